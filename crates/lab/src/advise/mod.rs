//! What pays on a device for a given trace: stream policy, victim policy, over-provisioning; how far each
//! is from perfect knowledge, and which to choose.
//!
//! Each combination is measured twice on the production FTL. *Write amplification* on flash that
//! takes no time ([`crate::streams`]): the trace's writes and trims, again and again until the
//! device no longer changes. *Latency* on the emulated device ([`timed`]): filled, aged, and then the
//! trace once by its timestamps. All runs are independent of each other, so threads change nothing but the time.

mod choice;
mod recorded;
mod show;
#[cfg(test)]
mod tests;
mod timed;

pub use choice::{Choice, choose, span};
pub use recorded::{Facts, Recorded};
pub use show::{how, report};
pub use timed::Timed;

use crate::device_file::{DeviceSpec, Inside};
use crate::driver::Failure;
use crate::parallel::{SeedFailure, for_each_seed};
use crate::replay::FitError;
use crate::streams::{Rounds, StreamDevice, StreamWaf};
use crate::trace::TraceError;
use ftl::policy::stream::{self, Shape};
use nand::Profile;
use std::fmt;

/// What is tried, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The device: an FTL on flash, or a drive.
    pub device: DeviceSpec,
    /// Stream policies, with parameters.
    pub streams: Vec<String>,
    /// Victim policies.
    pub victims: Vec<String>,
    /// Physical above logical capacity, in percent.
    pub op_percents: Vec<f64>,
    /// Writes in whole capacities before write amplification is believed, at least.
    pub overwrites: f64,
    /// So many times faster than recorded.
    pub load: f64,
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Simulations at a time.
    pub threads: usize,
}

/// Why there is no advice.
#[derive(Debug)]
pub enum AdviseError {
    /// The trace cannot be read.
    Trace(TraceError),
    /// Nor laid onto a device.
    Fit(FitError),
    /// It has no request.
    Empty,
    /// It only reads.
    NoWrites {
        /// Requests of it.
        requests: u64,
    },
    /// The sample has no write.
    SampleTooSmall {
        /// One in so many regions was taken.
        share: u64,
    },
    /// It touches more than a device can have.
    TooLarge {
        /// Bytes of it.
        bytes: u64,
    },
    /// The device cannot be advised on.
    Device(String),
    /// A simulation failed.
    Run(SeedFailure),
}

impl fmt::Display for AdviseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Fit(error) => error.fmt(f),
            Self::Empty => f.write_str(
                "has no request: give another trace; for blkparse and blktrace, --action may choose \
                 others",
            ),
            Self::NoWrites { requests } => write!(
                f,
                "none of its {requests} requests is a write, and without writes there is no write \
                 amplification to choose by: for latencies use `weir replay`"
            ),
            Self::SampleTooSmall { share } => write!(
                f,
                "the sample of 1/{share} of its address space has no write: take a larger one, such \
                 as --sample 1/{}",
                share / 2
            ),
            Self::TooLarge { bytes } => write!(
                f,
                "it touches {bytes} bytes, more than a device of the lab can have: take a part of its \
                 address space, such as --sample 1/1000"
            ),
            Self::Device(why) => f.write_str(why),
            Self::Run(error) => write!(f, "a simulation failed: {}", error.failure),
        }
    }
}

impl std::error::Error for AdviseError {}

impl From<TraceError> for AdviseError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<FitError> for AdviseError {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

/// One combination.
#[derive(Clone, Debug)]
pub struct Row {
    /// The stream policy, with parameters.
    pub stream: String,
    /// The victim policy.
    pub victim: String,
    /// Physical above logical capacity, in percent.
    pub op_percent: f64,
    /// Write amplification by GC, without delays.
    pub waf: StreamWaf,
    /// Latencies, and what is programmed beside the host's data and GC's.
    pub timed: Timed,
    /// Bytes of the detector for a device of 1 TiB.
    pub memory_per_tib: u64,
    /// Until the flash has had its erases, at the trace's write rate.
    pub years: f64,
}

impl Row {
    /// Slots programmed for any reason, by slots written for the host.
    pub fn waf_total(&self) -> f64 {
        self.waf.waf + self.timed.overhead
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        format!("{}, {}", self.stream, self.victim)
    }
}

/// Perfect knowledge of death times.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Physical above logical capacity, in percent.
    pub op_percent: f64,
    /// Write amplification by GC.
    pub waf: StreamWaf,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Of the trace.
    pub facts: Facts,
    /// What the device is.
    pub device: String,
    /// Erases of a block that the flash is made for.
    pub endurance: u32,
    /// Requests of the timed pass.
    pub timed_requests: u64,
    /// Timestamps were played so many times as fast as recorded.
    pub load: f64,
    /// Blocks of a band of the runs without delays.
    pub slots_per_band: u32,
    /// By over-provisioning, then in the order of the options.
    pub rows: Vec<Row>,
    /// One for each over-provisioning.
    pub bounds: Vec<Bound>,
}

impl Advice {
    /// The bound that a row is held against.
    pub fn bound_of(&self, row: &Row) -> Option<&Bound> {
        self.bounds.iter().find(|bound| bound.op_percent == row.op_percent)
    }

    /// How far a row is above the oracle, as a share of the oracle's.
    pub fn distance(&self, row: &Row) -> Option<f64> {
        self.bound_of(row).map(|bound| row.waf.waf / bound.waf.waf - 1.0)
    }
}

/// The victim policy of the oracle: the best with data sorted by lifetime.
const ORACLE_VICTIM: &str = "cost-benefit";
/// Bands of the device that takes no time.
const BANDS: u32 = 2048;
/// A band has at least so many blocks.
const SLOTS_PER_BAND_MIN: u32 = 16;
/// Rounds beyond the least, until two agree.
const ROUNDS_MORE: u32 = 3;
/// Blocks of a volume of 1 TiB.
const TIB_BLOCKS: u32 = 1 << 28;

/// The device of a flash profile: our FTL on it, without a front, as `weir replay` has it.
pub fn flash_device(profile: Profile, channels: u32, dies_per_channel: u32) -> DeviceSpec {
    let text = format!(
        "name = \"flash\"\nkind = \"ftl\"\nprofile = \"tlc\"\n[ftl]\nover_provisioning = 0.25\n\
         [layout]\nchannels = {channels}\ndies_per_channel = {dies_per_channel}\n\
         blocks_per_plane = 65536\n"
    );
    let mut spec = DeviceSpec::parse(&text).expect("every key is right");
    spec.name.clone_from(&profile.name);
    if let Inside::Ftl(flash, _) = &mut spec.inside {
        flash.profile = profile;
    }
    spec
}

/// One simulation.
enum Job<'a> {
    Waf { stream: &'a str, victim: &'a str, op_percent: f64 },
    Timed(timed::Choice<'a>),
}

/// Its result.
enum Got {
    Waf(StreamWaf),
    Timed(Timed),
}

/// Measures every combination. `progress` is told of (done, all), in blocks written and requests.
///
/// # Errors
/// A device without an FTL, or one too small; a failure of a simulation.
pub fn advise(
    trace: &Recorded,
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Advice, AdviseError> {
    let flash = check_device(&options.device, trace)?;
    let slots_per_band = (trace.changes.logical_blocks / BANDS).max(SLOTS_PER_BAND_MIN);
    // A part of the address space has a part of the requests: played faster they come as often.
    let load = options.load * trace.facts.sample as f64;
    let rounds = rounds(trace, options.overwrites);
    let jobs = jobs(options);
    let timed_requests = trace.requests.len().min(timed::REQUESTS_MAX) as u64;
    let work = Work::new(&jobs, trace, rounds, timed_requests, progress);
    let run = |index: u64| {
        let mut tell = |done| work.done(done);
        match &jobs[index as usize] {
            Job::Waf { stream, victim, op_percent } => {
                let device = StreamDevice {
                    slots_per_band,
                    op_percent: *op_percent,
                    victim: (*victim).into(),
                    seed: options.seed,
                };
                device.measure(&trace.changes, stream, rounds, &mut tell).map(Got::Waf)
            }
            Job::Timed(choice) => {
                let device = timed::device(&options.device, *choice, trace.bytes());
                let mut device = device.map_err(Failure)?;
                timed::measure(&mut *device, trace, load, options.seed, &mut tell).map(Got::Timed)
            }
        }
    };
    let got =
        for_each_seed(0..jobs.len() as u64, options.threads, run).map_err(AdviseError::Run)?;
    let mut advice = Advice {
        facts: trace.facts.clone(),
        device: format!("{} ({})", options.device.name, options.device.kind()),
        endurance: flash.endurance,
        timed_requests,
        load,
        slots_per_band,
        rows: Vec::new(),
        bounds: Vec::new(),
    };
    collect(&jobs, got, &mut advice);
    Ok(advice)
}

/// Every combination twice, and the oracle once for each over-provisioning.
fn jobs(options: &Options) -> Vec<Job<'_>> {
    let mut jobs = Vec::new();
    for &op_percent in &options.op_percents {
        for stream in &options.streams {
            for victim in &options.victims {
                let (stream, victim, seed) = (stream.as_str(), victim.as_str(), options.seed);
                jobs.push(Job::Waf { stream, victim, op_percent });
                jobs.push(Job::Timed(timed::Choice { stream, victim, op_percent, seed }));
            }
        }
        jobs.push(Job::Waf { stream: "oracle", victim: ORACLE_VICTIM, op_percent });
    }
    jobs
}

/// Whole passes of the trace that write the capacity, as often as wanted and twice at least.
fn rounds(trace: &Recorded, overwrites: f64) -> Rounds {
    let capacity = u64::from(trace.changes.logical_blocks);
    let pass = trace.facts.blocks_written.max(1);
    let passes = capacity.div_ceil(pass);
    let least = (overwrites * capacity as f64 / (passes * pass) as f64).ceil().max(2.0) as u32;
    let each = passes * trace.changes.list.len() as u64;
    Rounds { warm: 0, each, least, most: least + ROUNDS_MORE }
}

/// How far all simulations together have come.
struct Work<'a> {
    done: std::sync::atomic::AtomicU64,
    all: u64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl<'a> Work<'a> {
    fn new(
        jobs: &[Job<'_>],
        trace: &Recorded,
        rounds: Rounds,
        timed_requests: u64,
        progress: &'a (dyn Fn(u64, u64) + Sync),
    ) -> Self {
        let passes = rounds.each / (trace.changes.list.len() as u64).max(1);
        let capacity = u64::from(trace.changes.logical_blocks);
        let counted = capacity + u64::from(rounds.least) * passes * trace.facts.blocks_written;
        let all = jobs.iter().map(|job| match job {
            Job::Waf { .. } => counted,
            Job::Timed(_) => timed_requests,
        });
        Self { done: 0.into(), all: all.sum(), progress }
    }

    fn done(&self, more: u64) {
        let before = self.done.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        (self.progress)(before + more, self.all);
    }
}

/// Results to rows: a combination's two follow each other.
fn collect(jobs: &[Job<'_>], got: Vec<Got>, advice: &mut Advice) {
    let mut pending = None;
    for (job, got) in jobs.iter().zip(got) {
        match (job, got) {
            (Job::Waf { stream: "oracle", op_percent, .. }, Got::Waf(waf)) => {
                advice.bounds.push(Bound { op_percent: *op_percent, waf });
            }
            (Job::Waf { .. }, Got::Waf(waf)) => pending = Some(waf),
            (Job::Timed(choice), Got::Timed(timed)) => {
                let waf = pending.take().expect("its write amplification came before");
                let shape = Shape { blocks: TIB_BLOCKS, handles: 1 };
                let policy = stream::by_name(choice.stream, shape);
                let mut row = Row {
                    stream: choice.stream.into(),
                    victim: choice.victim.into(),
                    op_percent: choice.op_percent,
                    waf,
                    timed,
                    memory_per_tib: policy.map_or(0, |policy| policy.memory_bytes()),
                    years: 0.0,
                };
                row.years = years(&row, advice);
                advice.rows.push(row);
            }
            _ => unreachable!("each job gives what it is for"),
        }
    }
}

/// Endurance times physical capacity, by what is programmed in a year.
fn years(row: &Row, advice: &Advice) -> f64 {
    const YEAR_S: f64 = 365.25 * 86400.0;
    let facts = &advice.facts;
    let physical = (facts.logical_bytes * facts.sample) as f64 * (1.0 + row.op_percent / 100.0);
    let programmed = facts.write_rate() * row.waf_total() * YEAR_S;
    f64::from(advice.endurance) * physical / programmed.max(f64::MIN_POSITIVE)
}

/// The flash of a device that can be advised on.
fn check_device<'a>(spec: &'a DeviceSpec, trace: &Recorded) -> Result<&'a Profile, AdviseError> {
    match &spec.inside {
        Inside::Ftl(flash, choice) => {
            let layout = &flash.layout;
            let units = u64::from(layout.channels) * u64::from(layout.dies_per_channel);
            let planes = u64::from(flash.profile.planes) * u64::from(flash.profile.page_bytes);
            let block = planes * u64::from(flash.profile.pages_per_block);
            let bytes = units * u64::from(layout.blocks_per_plane) * block;
            let offers = (bytes as f64 * choice.utilization) as u64;
            if trace.bytes() > offers {
                return Err(AdviseError::Device(format!(
                    "device {:?} offers {offers} bytes and the trace touches {}: choose a larger \
                     device, or take a part of the address space, such as --sample 1/{}",
                    spec.name,
                    trace.bytes(),
                    trace.facts.sample * 2 * trace.bytes().div_ceil(offers.max(1))
                )));
            }
            Ok(&flash.profile)
        }
        Inside::Raw(..) => Err(AdviseError::Device(format!(
            "device {:?} has raw units and no FTL, so no GC to choose: use a device with one, such as \
             tssd or gen3, or a flash profile, such as tlc",
            spec.name
        ))),
        Inside::Array(members) => Err(AdviseError::Device(format!(
            "device {:?} consists of several: use one of them, {}",
            spec.name, members.member.name
        ))),
    }
}
