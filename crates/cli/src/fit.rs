//! `weir lab fit`: a device of the lab beside the load-latency profile of a drive, and constants with which both
//! agree.

use crate::output::{Progress, print, print_json, table};
use crate::{End, Failure};
use lab::device_file::DeviceSpec;
use lab::drives::{Agreement, Fitted, Part, Profile, Share, beside, fit};
use lab::fit::Effort;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab fit sdm000024c8d                                   a drive beside the device that was fitted to it\n  \
    weir lab fit s39wna0kc02078 --device s39wna0kc02077         the same with another drive's constants\n  \
    weir lab fit my.csv --device nvme-tlc --tries 200 --out my.toml\n\n\
    A profile has the lines `writes,iops,lost,p50,p90,p99,p999,p9999`: percent of writes, requests of 4 KiB a \
    second at uniform addresses, requests given up, microseconds. With --tries the constants of the device that \
    no data sheet tells are looked for, from those of its file on. docs/drives.md tells which, and what was \
    found for the drives whose profiles come with Weir.")]
pub struct Args {
    /// A profile that comes with Weir, or a file that ends in .csv
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// A built-in device, or a device file [default: the one that was fitted to the profile]
    #[arg(long, value_name = "NAME|FILE.toml")]
    device: Option<String>,
    /// Look for better constants, in about so many devices; 0 measures the device as it is
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    tries: u32,
    /// The first step of the search, as a factor
    #[arg(long, value_name = "FACTOR", default_value_t = 1.2, value_parser = step)]
    step: f64,
    /// Write the device with the constants found to this file, which must not be there
    #[arg(long, value_name = "FILE.toml", requires = "tries")]
    out: Option<PathBuf>,
    /// Flash of each device that is measured: a larger one takes longer, and its GC works less
    #[arg(long, value_name = "MB", default_value_t = FLASH_MB, value_parser = clap::value_parser!(u64).range(64..=1 << 24))]
    flash: u64,
    /// Everything that is drawn comes from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::lab::seed_range())]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const FLASH_MB: u64 = lab::drives::FLASH_BYTES >> 20;

impl Args {
    fn flash_bytes(&self) -> u64 {
        self.flash << 20
    }
}

/// The least step: what is nearer is not told apart by what is measured.
const STEP_LEAST: f64 = 1.01;

fn step(text: &str) -> Result<f64, String> {
    let step = text.parse::<f64>().ok().filter(|step| (STEP_LEAST..=4.0).contains(step));
    step.ok_or_else(|| format!("a factor from {STEP_LEAST} to 4, such as 1.2"))
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let profile = profile(&args.profile)?;
    let name = match &args.device {
        Some(name) => name,
        None if DeviceSpec::drive_names().any(|drive| drive == args.profile) => &args.profile,
        None => {
            return Err(format!(
                "--device: no device was fitted to {}; name one to begin with, for example --device nvme-tlc",
                args.profile
            ));
        }
    };
    let part = Part::of(&device_text(name)?).map_err(|why| format!("{name}: {why}"))?;
    let out = args.out.as_deref().map(create).transpose()?;
    let result = if args.tries == 0 {
        let agreement = beside(&part, args.flash_bytes(), &profile, args.seed);
        agreement.map(|agreement| Fitted { part, agreement, tries: 1 })
    } else {
        search(&part, &profile, args)
    };
    let fitted = result.map_err(|why| format!("{name}: {why}"));
    if let (Err(_), Some(path)) = (&fitted, &args.out) {
        std::fs::remove_file(path).ok();
    }
    let fitted = fitted?;
    if let (Some(mut file), Some(path)) = (out, &args.out) {
        let written = file.write_all(device_of(&fitted, args).as_bytes());
        written.map_err(|error| format!("{}: cannot be written: {error}", path.display()))?;
    }
    if args.json {
        print_json(&as_json(&fitted));
    } else {
        print(&as_text(&fitted.agreement));
    }
    Ok(End::Good)
}

/// A profile that comes with Weir, or a file's.
pub fn profile(name: &str) -> Result<Profile, Failure> {
    if !name.ends_with(".csv") {
        return Profile::builtin(name).ok_or_else(|| {
            let names: Vec<&str> = Profile::names().collect();
            let names = names.join(", ");
            format!("no profile is called {name:?}; there are {names}, or name a file: my-ssd.csv")
        });
    }
    let text = serve::files::read_named_text(name.as_ref())
        .map_err(|why| format!("{name}: cannot be read: {why}"))?;
    Profile::parse(name, &text).map_err(|why| why.to_string())
}

fn device_text(name: &str) -> Result<String, Failure> {
    if name.ends_with(".toml") {
        return serve::files::read_named_text(name.as_ref())
            .map_err(|why| format!("{name}: cannot be read: {why}"));
    }
    DeviceSpec::builtin_text(name).map(String::from).ok_or_else(|| {
        let names = DeviceSpec::names().join(", ");
        format!(
            "--device {name}: no device is called that; there are {names} and the drives of `weir lab devices \
             --drives`, or name a file: my-ssd.toml"
        )
    })
}

/// The file is made before the search: what cannot be written must not cost an hour.
fn create(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::create_new(path)
        .map_err(|error| format!("--out {}: cannot be made: {error}", path.display()))
}

fn search(part: &Part, profile: &Profile, args: &Args) -> Result<Fitted, Failure> {
    let effort = Effort { step: args.step, step_least: STEP_LEAST, tries_max: args.tries };
    let mut progress = Progress::new(format!("fit {}", args.profile));
    let (mut tried, mut least) = (0, f64::INFINITY);
    fit(part, args.flash_bytes(), profile, effort, args.seed, &mut |device| {
        tried += 1;
        least = device.error.as_ref().map_or(least, |error| least.min(*error));
        progress.tell(&format!("{tried} of about {} devices, error {least:.4}", args.tries));
    })
}

/// A device file, which says how it came to be.
fn device_of(fitted: &Fitted, args: &Args) -> String {
    let name = args.device.as_deref().unwrap_or(&args.profile);
    format!(
        "# Constants found by `weir lab fit {} --device {name} --tries {} --step {} --flash {} --seed {}`.\n{}",
        args.profile,
        args.tries,
        args.step,
        args.flash,
        args.seed,
        fitted.part.file()
    )
}

fn as_text(agreement: &Agreement) -> String {
    let head = ["writes", "peak", "drive", "off", "idle", "drive", "off", "half", "drive", "off"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let off = |percent: f64| format!("{percent:+.1} %");
    rows.extend(agreement.shares.iter().map(|share| {
        let above = if share.said.is_bounded { "" } else { " or more" };
        vec![
            format!("{} %", share.writes_percent),
            format!("{:.0}", share.peak),
            format!("{:.0}{above}", share.said.iops),
            off(share.peak_off()),
            format!("{:.0} us", share.unloaded.us),
            format!("{:.0} us", share.unloaded.said_us),
            off(share.unloaded.off()),
            format!("{:.0} us", share.half.us),
            format!("{:.0} us", share.half.said_us),
            off(share.half.off()),
        ]
    }));
    let worst = |figure: fn(&Share) -> f64| agreement.worst(figure);
    format!(
        "{}farthest off: peaks {:.1} %, idle {:.1} %, half {:.1} %\n",
        table(&rows),
        worst(Share::peak_off),
        worst(|share| share.unloaded.off()),
        worst(|share| share.half.off())
    )
}

fn as_json(fitted: &Fitted) -> Value {
    let shares = fitted.agreement.shares.iter().map(|share| {
        json!({
            "writes_percent": share.writes_percent,
            "peak_iops": share.peak,
            "drive_peak_iops": share.said.iops,
            "drive_peak_is_bounded": share.said.is_bounded,
            "peak_off_percent": share.peak_off(),
            "idle_iops": share.unloaded.iops,
            "idle_p90_us": share.unloaded.us,
            "drive_idle_p90_us": share.unloaded.said_us,
            "half_iops": share.half.iops,
            "half_p90_us": share.half.us,
            "drive_half_p90_us": share.half.said_us,
        })
    });
    json!({
        "error": fitted.agreement.error(),
        "devices": fitted.tries,
        "shares": shares.collect::<Value>(),
        "device": fitted.part.file(),
    })
}
