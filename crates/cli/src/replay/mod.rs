//! `weir replay`: a trace against an emulated device in virtual time, or against something real by
//! the wall clock. One set of options, one survey of the trace, one report; what differs is who
//! answers ([`emulated`], [`live`]).

mod direct;
mod emulated;
pub(crate) mod live;
pub(crate) mod nbd;
mod report;

use crate::devices::Dies;
use crate::output::Progress;
use crate::trace::{Reading, duration};
use crate::{End, Failure};
use lab::replay::precondition::Precondition;
use lab::replay::{Fit, FitKind, LaneOptions, Lanes, Looped, Pace, Part, Records, Survey};
use lab::trace::Reader;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("against").required(true).args(["device", "config", "target"]),
    after_help = "Examples:\n  \
    weir replay pgbench.csv.gz --device tlc --fit pack --precondition random\n  \
    weir replay web.csv.gz --device intel-320 --capacity 16GiB --fit wrap --precondition fill\n  \
    weir replay web.csv.gz --config weir.toml --load 10x\n  \
    weir replay web.csv.gz --device mlc-25nm --read-threads 32 --write-threads 4 --write-cap 40MB/s\n  \
    weir replay web.csv.gz --target 'nbd+unix:///default?socket=weir-data/nbd.sock' --overwrite\n  \
    weir replay web.csv.gz --target /dev/nvme1n1 --write-threads 0 --read-threads 16\n\n\
    Without --qd and threads it is an open loop: requests go out when the trace says, and latency \
    counts from then, whatever is still in flight. --device and --config run in media time, \
    --target in host time; no figure mixes them.")]
pub struct Args {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Emulate a device (`weir lab devices` lists them) or the FTL on this flash (a profile's name);
    /// or a .toml file of either
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Emulate the device of this config
    #[arg(long, value_name = "FILE", conflicts_with = "dies")]
    config: Option<PathBuf>,
    /// Something real: nbd+unix:///EXPORT?socket=PATH, nbd://HOST[:PORT]/EXPORT, a file or a block
    /// device
    #[arg(long, value_name = "TARGET", conflicts_with = "dies")]
    target: Option<String>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    pacing: Pacing,
    /// Addresses beyond the device: refuse; wrap around; scale all down; or pack only what the trace
    /// touches, in extents of 1 MiB
    #[arg(long, value_name = "HOW", value_parser = fit_kind, default_value = "refuse")]
    fit: FitKind,
    /// Before it begins: none; fill writes everything once; after that random overwrites at random, and
    /// trace replays the trace itself, until the device is in steady state
    #[arg(long, value_name = "HOW", value_parser = precondition_kind, default_value = "none")]
    precondition: Precondition,
    /// What is drawn is drawn from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::lab::seed_range())]
    seed: u64,
    /// Latencies above it are told as spikes
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "50ms")]
    spike: u64,
    /// Allow writes and trims on --target: what is there is lost
    #[arg(long)]
    overwrite: bool,
    /// A file or block device: through the page cache, not by direct I/O
    #[arg(long)]
    buffered: bool,
    /// Write the result as JSON to this file; - is standard output, and no table then
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The emulated device, beyond its profile.
#[derive(clap::Args)]
struct Shape {
    /// --device: size, e.g. 8GiB; a whole device gets fewer blocks on each plane [default: what the
    /// trace needs]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["config", "target"])]
    capacity: Option<String>,
    #[command(flatten)]
    dies: Dies,
    /// --device PROFILE: flash beyond the capacity, in percent of it [default: 25]
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["config", "target"])]
    op_percent: Option<u32>,
}

/// What is issued when.
#[derive(clap::Args)]
struct Pacing {
    /// So many times faster than recorded, such as 3x
    #[arg(long, value_name = "X", value_parser = load, conflicts_with_all = ["qd", "read_threads"])]
    load: Option<f64>,
    /// By the timestamps of the trace: the default
    #[arg(long, conflicts_with_all = ["qd", "read_threads"])]
    timestamps: bool,
    /// In a closed loop: so many in flight, in the order of the trace
    #[arg(long, value_name = "N", conflicts_with = "read_threads",
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    qd: Option<u32>,
    /// In a closed loop: so many reads in flight; 0 leaves reads out
    #[arg(long, value_name = "N", requires = "write_threads",
        value_parser = clap::value_parser!(u32).range(0..=65536))]
    read_threads: Option<u32>,
    /// With --read-threads: so many writes, trims and flushes in flight; 0 leaves them out
    #[arg(long, value_name = "N", requires = "read_threads",
        value_parser = clap::value_parser!(u32).range(0..=65536))]
    write_threads: Option<u32>,
    /// Most bytes of writes a second, such as 40MB/s; reads go their own way then
    #[arg(long, value_name = "RATE", value_parser = byte_rate)]
    write_cap: Option<u64>,
    /// Open loop: so many in flight at most; what is due and must wait counts as late
    /// [default: 16384 emulated, 256 on NBD, 64 on a file or block device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    in_flight_max: Option<u32>,
    /// Rounds: the trace again and again
    #[arg(long = "loop", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

fn fit_kind(text: &str) -> Result<FitKind, String> {
    match text {
        "refuse" => Ok(FitKind::Refuse),
        "wrap" => Ok(FitKind::Wrap),
        "scale" => Ok(FitKind::Scale),
        "pack" => Ok(FitKind::Pack),
        _ => Err("must be refuse, wrap, scale or pack".into()),
    }
}

fn precondition_kind(text: &str) -> Result<Precondition, String> {
    match text {
        "none" => Ok(Precondition::None),
        "fill" => Ok(Precondition::Fill),
        "random" => Ok(Precondition::Random),
        "trace" => Ok(Precondition::Trace),
        _ => Err("must be none, fill, random or trace".into()),
    }
}

/// A factor of speed, such as 3x.
pub fn load(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
    number
        .filter(|load: &f64| (1e-3..=1e6).contains(load))
        .ok_or_else(|| "must be a factor from 0.001x to 1000000x, for example 3x".into())
}

fn byte_rate(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text);
    (flash::quantity::bytes(size).filter(|&bytes| bytes > 0))
        .ok_or_else(|| "must be a size a second, for example 40MB/s".into())
}

impl Pacing {
    fn is_open(&self) -> bool {
        self.qd.is_none() && self.read_threads.is_none()
    }

    /// True if writes, trims and flushes are replayed.
    fn writes(&self) -> bool {
        self.write_threads != Some(0)
    }

    /// Most requests in flight.
    fn depth(&self, in_flight_default: u32) -> u32 {
        match (self.qd, self.read_threads, self.write_threads) {
            (Some(depth), ..) => depth,
            (_, Some(reads), Some(writes)) => reads.saturating_add(writes),
            _ => self.in_flight_max.unwrap_or(in_flight_default),
        }
    }

    /// One lane, or two where reads and writes go apart.
    fn lanes(&self, in_flight_default: u32) -> Vec<LaneOptions> {
        let write_cap = self.write_cap;
        let lane = |part, pace| LaneOptions { part, pace, write_cap };
        let in_flight_max = self.in_flight_max.unwrap_or(in_flight_default);
        let open = Pace::Timestamps { load: self.load.unwrap_or(1.0), in_flight_max };
        match (self.qd, self.read_threads, self.write_threads) {
            (_, Some(reads), Some(writes)) => {
                vec![lane(Part::Reads, Pace::Depth(reads)), lane(Part::Others, Pace::Depth(writes))]
            }
            (Some(depth), ..) => vec![lane(Part::All, Pace::Depth(depth))],
            _ if write_cap.is_some() => vec![lane(Part::Reads, open), lane(Part::Others, open)],
            _ => vec![lane(Part::All, open)],
        }
    }

    /// For the report.
    fn text(&self) -> String {
        let mut text = match (self.qd, self.read_threads, self.write_threads) {
            (Some(depth), ..) => format!("closed loop, {depth} in flight"),
            (_, Some(reads), Some(writes)) => {
                format!("closed loop, {reads} reads and {writes} writes in flight")
            }
            _ => format!("open loop, timestamps at {}x", self.load.unwrap_or(1.0)),
        };
        if let Some(cap) = self.write_cap {
            text.push_str(&format!(", writes capped at {} a second", crate::size::bytes(cap)));
        }
        if self.rounds > 1 {
            text.push_str(&format!(", {} rounds", self.rounds));
        }
        text
    }
}

/// The trace and what is to be done with it.
struct Plan<'a> {
    args: &'a Args,
    survey: Survey,
}

impl Plan<'_> {
    fn fit(&self, capacity: u64) -> Result<Fit, Failure> {
        Fit::new(&self.survey, self.args.fit, capacity)
            .map_err(|error| format!("{}: {error}", self.args.trace.display()))
    }

    /// What will be issued, for a progress bar.
    fn requests(&self) -> u64 {
        self.survey.requests * self.args.pacing.rounds
    }

    /// What is issued when, so many times over.
    fn lanes(&self, in_flight_default: u32, rounds: u64) -> Lanes<'_> {
        let lanes = self.args.pacing.lanes(in_flight_default).into_iter().map(|options| {
            let reading = self.args.reading.options();
            let open = move || Reader::open(&self.args.trace, &reading);
            let looped = Looped::new(open, rounds, self.survey.period_ns());
            (options, Box::new(looped) as Records<'_>)
        });
        Lanes::new(lanes.collect())
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    if args.trace.as_os_str() == "-" {
        return Err("-: a replay reads its trace more than once: save it to a file".into());
    }
    let mut reader = args.reading.open(&args.trace)?;
    let mut progress = Progress::new(format!("reading {}", args.trace.display()));
    let survey = Survey::read(&mut reader, args.fit, &mut |reader| {
        let (done, whole) = reader.progress();
        progress.at(done, whole);
    });
    drop(progress);
    let survey = survey.map_err(|error| error.to_string())?;
    if survey.requests == 0 {
        return Err(format!(
            "{}: has no request to replay: for blkparse and blktrace, --action may choose others",
            args.trace.display()
        ));
    }
    let plan = Plan { args, survey };
    let outcome = match &args.target {
        Some(target) => live::replay(&plan, target)?,
        None => emulated::replay(&plan)?,
    };
    report::tell(&plan, &outcome)
}

#[cfg(test)]
mod tests {
    use super::{byte_rate, load};

    #[test]
    fn values_on_the_command_line_are_checked() {
        assert_eq!(load("3x"), Ok(3.0));
        assert_eq!(load("0.5"), Ok(0.5));
        assert!(load("x").is_err() && load("0x").is_err() && load("nan").is_err());
        assert_eq!(byte_rate("40MB/s"), Ok(40_000_000));
        assert_eq!(byte_rate("1MiB"), Ok(1 << 20));
        assert!(byte_rate("0MB/s").is_err() && byte_rate("fast").is_err());
    }
}
