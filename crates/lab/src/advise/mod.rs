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
pub use timed::{Playing, Timed};

use crate::device_file::{DeviceSpec, Inside};
use crate::driver::Failure;
use crate::parallel::{SeedFailure, for_each_seed, guarded};
use crate::replay::FitError;
use crate::streams::{Rounds, StreamDevice, StreamWaf};
use crate::trace::TraceError;
use ftl::policy::stream::{self, Shape};
use nand::Profile;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// So many times faster than recorded, where the device can keep up with that.
    pub load: f64,
    /// In a closed loop of this depth instead, for latencies.
    pub depth: Option<u32>,
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
    /// Latencies, and what is programmed beside the host's data and GC's; or why the device failed.
    pub timed: Result<Timed, String>,
    /// Bytes of the detector for a device of 1 TiB.
    pub memory_per_tib: u64,
    /// Until the flash has had its erases, at the trace's write rate.
    pub years: f64,
}

impl Row {
    /// Slots programmed for any reason, by slots written for the host.
    pub fn waf_total(&self) -> f64 {
        self.waf.waf + self.timed.as_ref().map_or(0.0, |timed| timed.overhead)
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
    /// How the timed pass was played.
    pub playing: Playing,
    /// By timestamps the device would not have kept up.
    pub behind: bool,
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
/// The oracle with many classes and with few: the better one counts, as each class keeps a band
/// from GC.
const ORACLES: [&str; 2] = ["oracle:12", "oracle:5"];
/// Requests in flight where the device cannot keep up with the timestamps.
const BEHIND_DEPTH: u32 = 16;
/// Bands of the device that takes no time.
const BANDS: u32 = 2048;
/// A band has at least so many blocks.
const SLOTS_PER_BAND_MIN: u32 = 8;
/// A round is compared with the one before in parts that write the capacity, but no more of them.
const PARTS_MAX: u64 = 16;
/// Rounds beyond the least, until two agree.
const ROUNDS_MORE: u32 = 4;
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
    // A part of the address space has a part of the requests: played faster they come as often.
    let wanted = match options.depth {
        Some(depth) => Playing::Depth(depth),
        None => Playing::Timestamps(options.load * trace.facts.sample as f64),
    };
    let run = Run {
        trace,
        options,
        slots_per_band: (trace.changes.logical_blocks / BANDS).max(SLOTS_PER_BAND_MIN),
        rounds: rounds(trace, options.overwrites),
        timed_requests: trace.requests.len().min(timed::REQUESTS_MAX) as u64,
        wanted,
        behind: OnceLock::new(),
        done: 0.into(),
        progress,
    };
    let mut advice = Advice {
        facts: trace.facts.clone(),
        device: format!("{} ({})", options.device.name, options.device.kind()),
        endurance: flash.endurance,
        timed_requests: run.timed_requests,
        playing: wanted,
        behind: false,
        slots_per_band: run.slots_per_band,
        rows: Vec::new(),
        bounds: Vec::new(),
    };
    run.measure(&choices(options), &mut advice)?;
    Ok(advice)
}

/// Every combination, by over-provisioning first.
fn choices(options: &Options) -> Vec<timed::Choice<'_>> {
    let mut choices = Vec::new();
    for &op_percent in &options.op_percents {
        for stream in &options.streams {
            for victim in &options.victims {
                let seed = options.seed;
                choices.push(timed::Choice { stream, victim, op_percent, seed });
            }
        }
    }
    choices
}

/// One simulation.
enum Job<'a> {
    Waf(timed::Choice<'a>),
    /// By the timestamps, and in a closed loop if the device cannot keep up with these.
    First(timed::Choice<'a>),
    /// As the first was played.
    Timed(timed::Choice<'a>),
}

/// Its result.
enum Got {
    Waf(StreamWaf),
    Timed(Result<Timed, String>),
}

/// What all simulations have in common.
struct Run<'a> {
    trace: &'a Recorded,
    options: &'a Options,
    slots_per_band: u32,
    rounds: Rounds,
    timed_requests: u64,
    /// How the timed pass should be played.
    wanted: Playing,
    /// What the first one found: the device cannot keep up with that.
    behind: OnceLock<bool>,
    /// Blocks and requests of all simulations so far.
    done: AtomicU64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Run<'_> {
    /// Fills the rows and bounds of `advice`, and says how the timed pass was played.
    fn measure(
        &self,
        choices: &[timed::Choice<'_>],
        advice: &mut Advice,
    ) -> Result<(), AdviseError> {
        let ops = &self.options.op_percents;
        let bounds = ops.iter().flat_map(|&op_percent| {
            let (victim, seed) = (ORACLE_VICTIM, self.options.seed);
            ORACLES.map(|stream| Job::Waf(timed::Choice { stream, victim, op_percent, seed }))
        });
        // Who waits for the first comes last; until then nobody has to.
        let mut jobs: Vec<Job<'_>> =
            choices.iter().take(1).map(|&choice| Job::First(choice)).collect();
        jobs.extend(choices.iter().map(|&choice| Job::Waf(choice)).chain(bounds));
        jobs.extend(choices.iter().skip(1).map(|&choice| Job::Timed(choice)));
        let (mut wafs, mut timed) = (Vec::new(), Vec::new());
        for got in self.all(&jobs)? {
            match got {
                Got::Waf(waf) => wafs.push(waf),
                Got::Timed(result) => timed.push(result),
            }
        }
        advice.behind = self.behind.get() == Some(&true);
        advice.playing = self.playing(advice.behind);
        let mut wafs = wafs.into_iter();
        for (&choice, timed) in choices.iter().zip(timed) {
            let waf = wafs.next().expect("each combination is counted");
            let row = row(choice, waf, timed, advice);
            advice.rows.push(row);
        }
        for &op_percent in ops {
            let oracles = wafs.by_ref().take(ORACLES.len());
            let best = oracles.min_by(|a, b| a.waf.total_cmp(&b.waf));
            advice.bounds.extend(best.map(|waf| Bound { op_percent, waf }));
        }
        Ok(())
    }

    fn playing(&self, behind: bool) -> Playing {
        if behind { Playing::Depth(BEHIND_DEPTH) } else { self.wanted }
    }

    fn all(&self, jobs: &[Job<'_>]) -> Result<Vec<Got>, AdviseError> {
        // As if all were alike: near enough for a progress bar.
        let passes = self.rounds.each / (self.trace.changes.list.len() as u64).max(1);
        let pass = passes * self.trace.facts.blocks_written;
        let filled = 4 * u64::from(self.trace.changes.logical_blocks);
        let written = filled + u64::from(self.rounds.least + 1) * pass;
        let whole = (written + self.timed_requests) * jobs.len() as u64 / 2;
        let run = |index: u64| {
            let mut tell = |more: u64| {
                let before = self.done.fetch_add(more, Ordering::Relaxed);
                (self.progress)(before + more, whole);
            };
            self.job(&jobs[index as usize], &mut tell)
        };
        for_each_seed(0..jobs.len() as u64, self.options.threads, run).map_err(AdviseError::Run)
    }

    fn job(&self, job: &Job<'_>, tell: &mut dyn FnMut(u64)) -> Result<Got, Failure> {
        match *job {
            Job::Waf(timed::Choice { stream, victim, op_percent, seed }) => {
                let device = StreamDevice {
                    slots_per_band: self.slots_per_band,
                    op_percent,
                    victim: victim.into(),
                    // What these cost is measured with the latencies.
                    checkpoint_slots: u64::from(self.trace.changes.logical_blocks),
                    seed,
                };
                device.measure(&self.trace.changes, stream, self.rounds, tell).map(Got::Waf)
            }
            Job::First(choice) => self.first(choice, tell).map(Got::Timed),
            Job::Timed(choice) => {
                let playing = self.playing(*self.behind.wait());
                self.timed(choice, playing, false, tell).map(Got::Timed)
            }
        }
    }

    fn first(
        &self,
        choice: timed::Choice<'_>,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Result<Timed, String>, Failure> {
        let first = guarded(|| self.timed(choice, self.wanted, true, tell));
        // What one cannot keep up with tells nothing of any: latencies would grow for ever.
        let behind = matches!(&first, Ok(Ok(timed)) if !timed.keeps_up);
        // Whatever came of it, others wait for this.
        self.behind.get_or_init(|| behind);
        if behind { self.timed(choice, self.playing(behind), false, tell) } else { first }
    }

    /// With `gives_up` only until it is clear that the device cannot keep up.
    fn timed(
        &self,
        choice: timed::Choice<'_>,
        playing: Playing,
        gives_up: bool,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Result<Timed, String>, Failure> {
        let device = timed::device(&self.options.device, choice, self.trace.bytes());
        let mut device = device.map_err(Failure)?;
        let pass = timed::Pass { playing, gives_up, seed: choice.seed };
        let timed = timed::measure(&mut *device, self.trace, pass, tell);
        // A device that fails under this load is a finding, not the end.
        Ok(timed.map_err(|failure| failure.to_string()))
    }
}

fn row(
    choice: timed::Choice<'_>,
    waf: StreamWaf,
    timed: Result<Timed, String>,
    advice: &Advice,
) -> Row {
    let policy = stream::by_name(choice.stream, Shape { blocks: TIB_BLOCKS, handles: 1 });
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
    row
}

/// The end of the trace to warm up, then whole passes; of a trace that does not write the capacity,
/// rounds of as many passes as do.
fn rounds(trace: &Recorded, overwrites: f64) -> Rounds {
    let capacity = u64::from(trace.changes.logical_blocks);
    let pass = trace.facts.blocks_written.max(1);
    let passes = capacity.div_ceil(pass);
    let least = (overwrites * capacity as f64 / (passes * pass) as f64).ceil().max(1.0) as u32;
    let each = passes * trace.changes.list.len() as u64;
    let (warm, parts) = if passes > 1 { (each, 1) } else { (trace.warm, pass / capacity) };
    let parts = parts.clamp(1, PARTS_MAX) as u32;
    Rounds { warm, each, parts, least, most: least + ROUNDS_MORE }
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
        Inside::Ftl(flash, _) if flash.fast.is_some() => Err(AdviseError::Device(format!(
            "device {:?} has a fast tier, which takes every write first: what is advised is for flash \
             alone; use a device without one",
            spec.name
        ))),
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
