//! `weir profile`: a load-latency profile of a drive, measured, made of published files, or shown.

mod file;
mod generator;
mod place;
mod report;
mod session;
mod target;

use crate::output::{print, print_json};
use crate::stop;
use crate::trace::duration;
use crate::{End, Failure};
use file::Out;
use lab::drives::{Profile, raw};
use place::Place;
use serde_json::{Value, json};
use session::{Measured, Session, Wishes};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true).args(["device", "import", "show"]),
    after_help = "Examples:\n  \
    weir profile /dev/nvme1n1 --yes           its profile, in nvme1n1.csv; WHAT IS ON IT IS LOST\n  \
    weir profile /dev/nvme1n1 --read-only     only reads, which change nothing\n  \
    weir profile test.img --writes 0,50,100 --seconds 0.1 --points 8 --yes --out test.csv\n  \
    weir profile --import S1_100r.csv S1_250w.csv S1_1000w.csv --out s1.csv\n  \
    weir profile --show s1.csv                what it carries at each share of writes\n\n\
    Requests of 4 KiB at uniform addresses go out at drawn instants, however the drive is doing, and their latency \
    counts from then. docs/profile.md tells how loads are chosen, and what the figures are worth.")]
pub struct Args {
    /// A block device, a plain file, or an NBD export (nbd+unix:///EXPORT?socket=PATH, nbd://HOST[:PORT]/EXPORT)
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    measuring: Measuring,
    /// Make one profile of published files, which are named SERIAL_100r.csv and SERIAL_NNNw.csv
    #[arg(long, value_name = "FILES", num_args = 1..)]
    import: Vec<PathBuf>,
    /// Show what a profile that comes with Weir, or a file that ends in .csv, carries
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "out")]
    show: Option<String>,
    /// The profile, which must not be there yet [default: the device's or drive's name, with .csv]
    #[arg(long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How to measure.
#[derive(clap::Args)]
struct Measuring {
    /// Percent of writes to measure at
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = percent,
        default_values = ["0", "10", "20", "30", "50", "70", "100"], conflicts_with_all = ["import", "show"])]
    writes: Vec<f64>,
    /// How long each load counts
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds, conflicts_with_all = ["import", "show"])]
    seconds: f64,
    /// How many loads to try at each share of writes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = points, conflicts_with_all = ["import", "show"])]
    points: usize,
    /// Where latency has run away: beyond it no more is asked for
    #[arg(long, value_name = "TIME", value_parser = latency, default_value = "10ms", conflicts_with_all = ["import", "show"])]
    max_latency: u64,
    /// Measure reads alone, and write nothing
    #[arg(long, conflicts_with_all = ["writes", "yes", "import", "show"])]
    read_only: bool,
    /// Do not overwrite the drive once before it is measured: it was prepared
    #[arg(long, conflicts_with_all = ["read_only", "import", "show"])]
    no_fill: bool,
    /// What is on the device may be lost
    #[arg(long, conflicts_with_all = ["import", "show"])]
    yes: bool,
    /// What is drawn is drawn from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::lab::seed_range(), conflicts_with_all = ["import", "show"])]
    seed: u64,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "percents from 0 to 100, such as 0,10,50,100".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "seconds from 0.05 to 3600, such as 2".into())
}

fn points(text: &str) -> Result<usize, String> {
    let points = text.parse::<usize>().ok().filter(|points| (8..=200).contains(points));
    points.ok_or_else(|| "a count from 8 to 200: fewer do not find where latency runs away".into())
}

/// Nanoseconds.
fn latency(text: &str) -> Result<u64, String> {
    let ns = duration(text)?;
    let bounds = 1_000_000..=10_000_000_000;
    bounds.contains(&ns).then_some(ns).ok_or_else(|| "a time from 1ms to 10s, such as 10ms".into())
}

impl Measuring {
    fn wishes(&self) -> Wishes {
        let mut shares = if self.read_only { vec![0.0] } else { self.writes.clone() };
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        Wishes {
            shares,
            seconds: self.seconds,
            loads: self.points,
            latency_most_us: self.max_latency as f64 / 1e3,
            fill: !self.read_only && !self.no_fill,
            seed: self.seed,
        }
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    match (&args.device, &args.show) {
        (Some(device), _) => measure(args, device),
        (None, Some(name)) => show(name, args.json),
        (None, None) => import(args),
    }
}

fn show(name: &str, json: bool) -> Result<End, Failure> {
    let profile = crate::fit::profile(name)?;
    tell(&profile, report::peaks_json(&profile), json);
    Ok(End::Good)
}

fn tell(profile: &Profile, value: Value, json: bool) {
    if json {
        print_json(&value);
    } else {
        print(&report::peaks_text(profile));
    }
}

/// Makes one profile of published files.
fn import(args: &Args) -> Result<End, Failure> {
    let read = |path: &PathBuf| {
        let text = serve::files::read_named_text(path)
            .map_err(|why| format!("--import {}: cannot be read: {why}", path.display()))?;
        Ok((path.to_string_lossy().into_owned(), text))
    };
    let texts: Vec<(String, String)> =
        args.import.iter().map(read).collect::<Result<_, Failure>>()?;
    let files: Vec<raw::File<'_>> =
        texts.iter().map(|(name, text)| raw::File { name, text }).collect();
    let raw::Import { profile, repairs } = raw::import(&files).map_err(|why| why.to_string())?;
    let mut out = Out::new(&out_path(args, &profile.name))?;
    out.keep(&profile)?;
    let repairs: Vec<String> = repairs.iter().map(raw::Repair::to_string).collect();
    for repair in &repairs {
        eprintln!("note: {repair}");
    }
    let mut value = report::peaks_json(&profile);
    value["repairs"] = json!(repairs);
    value["out"] = json!(out.path());
    tell(&profile, value, args.json);
    told(&out);
    Ok(End::Good)
}

fn told(out: &Out) {
    eprintln!("the profile is in {}", out.path().display());
}

/// Where the profile goes.
fn out_path(args: &Args, name: &str) -> PathBuf {
    args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.csv")))
}

/// What a device is called: the last part of its path or address.
fn name_of(device: &str) -> String {
    let path = match device.split_once("://") {
        Some((_, address)) => address.split('?').next().and_then(|it| it.split_once('/')),
        None => Some(("", device)),
    };
    let path = path.map_or("", |(_, path)| path);
    let stem = Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "drive".into())
}

fn measure(args: &Args, device: &str) -> Result<End, Failure> {
    let wishes = args.measuring.wishes();
    let writes = wishes.fill || wishes.shares.iter().any(|share| *share > 0.0);
    // What is not there is told before what would be lost.
    let is_there = device.contains("://") || Path::new(device).exists();
    if writes && is_there && !args.measuring.yes {
        return Err(format!(
            "{device}: what is on it would be lost, as it is overwritten: say --yes if nothing on it is needed, or \
             measure only its reads with --read-only"
        ));
    }
    let name = name_of(device);
    let mut out = Out::new(&out_path(args, &name))?;
    let place = Place::open(device, writes)?;
    for note in place.notes() {
        eprintln!("note: {device}: {note}");
    }
    stop::listen();
    let session = Session::new(&place, &wishes, &stop::is_wished);
    let measured = session.measure(&name, &mut out).map_err(|why| {
        let kept = if out.is_written { "; what was measured before is kept" } else { "" };
        format!("{device}: {why}{kept}")
    })?;
    report(args, &wishes, &measured, (&name, &out));
    let is_good = out.is_written && !measured.interrupted;
    Ok(if is_good { End::Good } else { End::Bad })
}

/// Tells what was measured.
fn report(args: &Args, wishes: &Wishes, measured: &Measured, (name, out): (&str, &Out)) {
    let profile = measured.profile(name);
    if args.json {
        let mut value = report::measured_json(measured, wishes, &profile);
        value["out"] = json!(out.is_written.then(|| out.path()));
        print_json(&value);
    } else {
        print(&report::measured_text(measured));
        print("\n");
        print(&report::peaks_text(&profile));
    }
    for remark in report::remarks(measured, wishes) {
        eprintln!("note: {remark}");
    }
    if out.is_written {
        told(out);
    } else {
        eprintln!("nothing of it is the drive's: no profile was written");
    }
}

#[cfg(test)]
mod tests {
    use super::{latency, name_of, percent, points, seconds};

    #[test]
    fn values_on_the_command_line_are_checked() {
        assert_eq!(percent("12.5"), Ok(12.5));
        assert!(percent("101").is_err() && percent("-1").is_err() && percent("nan").is_err());
        assert_eq!((seconds("0.5"), points("8")), (Ok(0.5), Ok(8)));
        assert!(seconds("0").is_err() && seconds("inf").is_err() && points("7").is_err());
        assert_eq!(latency("10ms"), Ok(10_000_000));
        assert!(latency("10us").is_err() && latency("x").is_err());
    }

    #[test]
    fn a_profile_is_called_as_its_device() {
        assert_eq!(name_of("/dev/nvme0n1"), "nvme0n1");
        assert_eq!(name_of("data/test.img"), "test");
        assert_eq!(name_of("nbd+unix:///default?socket=weir-data/nbd.sock"), "default");
        assert_eq!(name_of("nbd://node:10809/fast"), "fast");
        assert_eq!(name_of("nbd+unix:///?socket=x"), "drive");
    }
}
