//! `weir lab devices`: the devices that the lab can build, and what follows from their files.

use crate::output::{print, print_json, table};
use crate::{End, Failure};
use lab::device_file::{DeviceFigures, DeviceSpec};
use nand::Profile;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab devices              all that come with Weir\n  \
    weir lab devices --drives     drives that were fitted to published profiles (docs/drives.md)\n  \
    weir lab devices gen3         one of them\n  \
    weir lab devices my-ssd.toml  a file of yours, checked; docs/devices.md tells every key")]
pub struct Args {
    /// A built-in device, or a device file (a name that ends in .toml)
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Those that were fitted to the published profile of a drive
    #[arg(long, conflicts_with = "name")]
    drives: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The dies of a device that is told by its flash alone.
#[derive(clap::Args)]
#[group(id = "dies", multiple = true)]
pub struct Dies {
    /// --device PROFILE: buses [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub channels: Option<u32>,
    /// --device PROFILE: dies on each bus [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub dies_per_channel: Option<u32>,
}

impl Dies {
    /// Buses, and dies on each.
    pub fn or_default(&self) -> (u32, u32) {
        (self.channels.unwrap_or(4), self.dies_per_channel.unwrap_or(2))
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let specs = match &args.name {
        Some(name) => vec![find(name)?],
        None if args.drives => DeviceSpec::drive_names().filter_map(DeviceSpec::builtin).collect(),
        None => DeviceSpec::names().iter().filter_map(|name| DeviceSpec::builtin(name)).collect(),
    };
    if args.json {
        print_json(&specs.iter().map(as_json).collect());
    } else if args.name.is_some() {
        specs.iter().for_each(|spec| print(&as_text(spec)));
    } else {
        print(&as_table(&specs));
    }
    Ok(End::Good)
}

/// A device by its name, or by its file's.
pub fn find(name: &str) -> Result<DeviceSpec, Failure> {
    if name.ends_with(".toml") {
        let read = |name: &str| {
            let text = serve::files::read_named_text(name.as_ref());
            text.map_err(|why| format!("{name}: {why}"))
        };
        let table = DeviceSpec::whole_table(name, &read)?;
        let spec = DeviceSpec::of_table(table, &toml::Table::new());
        return spec.map_err(|why| format!("{name}: {why}"));
    }
    DeviceSpec::builtin(name).ok_or_else(|| {
        let names = DeviceSpec::names().join(", ");
        format!(
            "no device is called {name:?}; there are {names} and those of `weir lab devices --drives`, or name a \
             file: my-ssd.toml"
        )
    })
}

/// The device file that `--device` names; `None` if it names a kind of flash.
pub fn device_file(name: &str) -> Result<Option<DeviceSpec>, Failure> {
    if DeviceSpec::builtin(name).is_some() {
        return find(name).map(Some);
    }
    if name.ends_with(".toml") {
        let text =
            serve::files::read_named_text(name.as_ref()).map_err(|why| format!("{name}: {why}"))?;
        // Both kinds of file are checked key by key later; only a device has a kind.
        let is_device = text.parse().is_ok_and(|table: toml::Table| table.contains_key("kind"));
        return is_device.then(|| find(name)).transpose();
    }
    if Profile::builtin_names().contains(&name) {
        return Ok(None);
    }
    Err(format!(
        "--device {name}: no device or flash is called that; there are the devices {} and the flash \
         profiles {}, or name a file: my-ssd.toml",
        DeviceSpec::names().join(", "),
        Profile::builtin_names().join(", ")
    ))
}

fn gigabytes(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.0} GB", bytes / 1e9) } else { format!("{:.0} MB", bytes / 1e6) }
}

fn rate(bytes_per_s: f64) -> String {
    format!("{:.2} GB/s", bytes_per_s / 1e9)
}

fn as_table(specs: &[DeviceSpec]) -> String {
    let head = ["device", "kind", "units", "usable", "read max", "write max", "what"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for spec in specs {
        let figures = spec.figures();
        rows.push(vec![
            spec.name.clone(),
            spec.kind().into(),
            figures.units.to_string(),
            gigabytes(figures.usable_bytes),
            rate(figures.read_max),
            rate(figures.write_max),
            spec.description.clone(),
        ]);
    }
    table(&rows)
}

fn as_text(spec: &DeviceSpec) -> String {
    let figures = spec.figures();
    let row = |name: &str, value: String| vec![name.to_string(), value];
    let rows = [
        row("device", format!("{} ({})", spec.name, spec.kind())),
        row("", spec.description.clone()),
        row("source", spec.source.clone()),
        row("units", figures.units.to_string()),
        row("flash", gigabytes(figures.raw_bytes)),
        row("usable", gigabytes(figures.usable_bytes)),
        row("cache", gigabytes(figures.cache_bytes)),
        row("flash reads", rate(figures.flash_read)),
        row("flash programs", rate(figures.flash_program)),
        row("flash erases", rate(figures.flash_erase)),
        row("reads at most", rate(figures.read_max)),
        row("writes at most", format!("{}, without relocation", rate(figures.write_max))),
    ];
    table(&rows)
}

fn as_json(spec: &DeviceSpec) -> Value {
    let DeviceFigures {
        units,
        raw_bytes,
        usable_bytes,
        flash_read,
        flash_program,
        flash_erase,
        read_max,
        write_max,
        cache_bytes,
    } = spec.figures();
    json!({
        "name": spec.name,
        "kind": spec.kind(),
        "description": spec.description,
        "source": spec.source,
        "units": units,
        "raw_bytes": raw_bytes,
        "usable_bytes": usable_bytes,
        "cache_bytes": cache_bytes,
        "flash_read_bytes_per_s": flash_read,
        "flash_program_bytes_per_s": flash_program,
        "flash_erase_bytes_per_s": flash_erase,
        "read_bytes_per_s_max": read_max,
        "write_bytes_per_s_max": write_max,
    })
}
