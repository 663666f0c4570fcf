//! What pays on a device for a given trace: stream policy, victim policy, over-provisioning; how far each
//! is from perfect knowledge, and which to choose.
//!
//! Each combination is measured once, on the production FTL and the drive that is asked about
//! ([`drive`], [`timed`]): filled, brought to the steady state of the trace, with its flushes and times, and
//! then over a round. So write amplification is what a replay finds, padding and its effect on GC included.
//! Only the bound is measured on flash that takes no time ([`crate::streams`]). All runs are independent of
//! each other, so threads change nothing but the time.

mod choice;
mod drive;
mod recorded;
mod show;
#[cfg(test)]
mod tests;
mod timed;

pub use choice::{Advised, choose, span};
pub use drive::{Drive, Sized};
pub use recorded::{Facts, Recorded};
pub use show::{how, report};
pub use timed::{Choice, Playing, Timed};

use crate::driver::Failure;
use crate::parallel::{SeedFailure, for_each_seed, guarded};
use crate::replay::precondition::ROUNDS_MAX;
use crate::replay::{FitError, Wearing, fell_behind, overloaded};
use crate::streams::{Rounds, StreamDevice, StreamWaf};
use crate::trace::TraceError;
use flash::BLOCK_BYTES;
use ftl::policy::stream::{self, Shape};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is tried, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What is advised on.
    pub drive: Drive,
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
    /// In a closed loop of this depth instead.
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
    /// All of it is asked for within a moment.
    NoRate {
        /// From its first request to its last.
        duration_ns: u64,
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
            Self::NoRate { duration_ns } => write!(
                f,
                "all of its requests come within {duration_ns} ns, and of so short a time there is no rate, so no \
                 lifetime either: give a longer trace, or --qd N to have it played as fast as the drive takes it"
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
    /// Of the drive, not of what is measured for it.
    pub drive: Sized,
    /// Write amplification and latencies; or why the device failed.
    pub timed: Result<Timed, String>,
    /// Bytes of the detector for a device of 1 TiB.
    pub memory_per_tib: u64,
    /// Until the flash of the drive has had its erases, at the trace's write rate, or at what the drive can take
    /// of that.
    pub years: f64,
}

impl Row {
    /// Slots programmed for any reason, by slots written for the host; endless if the device failed.
    pub fn waf(&self) -> f64 {
        self.timed.as_ref().map_or(f64::INFINITY, |timed| timed.waf)
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        format!("{}, {}", self.stream, self.victim)
    }

    /// The drive, under this combination.
    pub fn wearing(&self, endurance: u32) -> Wearing {
        Wearing {
            flash_bytes: self.drive.flash_bytes(),
            offered_bytes: self.drive.logical_blocks * BLOCK_BYTES as u64,
            endurance,
            waf: self.waf(),
        }
    }
}

/// Perfect knowledge of death times.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Physical above logical capacity, in percent.
    pub op_percent: f64,
    /// Write amplification by GC, where nothing takes time and nothing is flushed.
    pub waf: StreamWaf,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Of the trace.
    pub facts: Facts,
    /// What the drive is.
    pub device: String,
    /// The drive itself was measured, not a smaller device that stands for it.
    pub whole: bool,
    /// Erases of a block that the flash is made for.
    pub endurance: u32,
    /// Requests of a round.
    pub timed_requests: u64,
    /// How the trace was played.
    pub playing: Playing,
    /// By timestamps the device would not have kept up.
    pub behind: bool,
    /// How long a round should take.
    pub wanted_ns: f64,
    /// By over-provisioning, then in the order of the options.
    pub rows: Vec<Row>,
    /// One for each over-provisioning.
    pub bounds: Vec<Bound>,
}

impl Advice {
    /// How many such drives the trace needs under this combination, where one cannot carry it: how long a round
    /// takes in a closed loop, by how long it should take.
    pub fn needs(&self, row: &Row) -> Option<f64> {
        let timed = row.timed.as_ref().ok().filter(|_| self.behind)?;
        Some(timed.took_ns as f64 / self.wanted_ns.max(1.0))
    }

    /// Bytes that the trace writes in a second at the speed that it is played at.
    pub fn write_rate(&self) -> f64 {
        let sample = self.facts.sample as f64;
        let load = match self.playing {
            Playing::Timestamps(rate) => rate / sample,
            Playing::Depth(_) => 1.0,
        };
        self.facts.write_rate() * load
    }

    /// Bytes a second that are written to one drive under this combination: what the trace writes, or as much of
    /// it as the drive can take.
    pub fn rate(&self, row: &Row) -> f64 {
        self.write_rate() / self.needs(row).unwrap_or(1.0).max(1.0)
    }
    /// What is to be known before all else: that the drive cannot carry the trace, or not always.
    pub fn headline(&self, row: &Row) -> Option<String> {
        let timed = row.timed.as_ref().ok()?;
        match (self.needs(row), self.playing) {
            (Some(times), _) if times > 1.0 => Some(overloaded(times)),
            (Some(_), _) => Some(
                "this drive carries this trace as advised, but not under the first combination that was tried, so \
                 none was played by the timestamps; latencies are left out"
                    .into(),
            ),
            // In a closed loop that was asked for nothing is late.
            (None, Playing::Depth(_)) => None,
            (None, Playing::Timestamps(_)) => {
                fell_behind(timed.reads.max_ns().max(timed.writes.max_ns()))
            }
        }
    }

    /// The bound that a row is held against.
    pub fn bound_of(&self, row: &Row) -> Option<&Bound> {
        self.bounds.iter().find(|bound| bound.op_percent == row.op_percent)
    }

    /// How far a row is above the oracle, as a share of the oracle's.
    pub fn distance(&self, row: &Row) -> Option<f64> {
        let timed = row.timed.as_ref().ok()?;
        self.bound_of(row).map(|bound| timed.waf_by_gc() / bound.waf.waf - 1.0)
    }
}

/// The victim policy of the oracle: the best with data sorted by lifetime.
const ORACLE_VICTIM: &str = "cost-benefit";
/// The oracle with many classes and with few: the better one counts, as each class keeps a band
/// from GC.
const ORACLES: [&str; 2] = ["oracle:12", "oracle:5"];
/// The oracle has so much over-provisioning where the drive leaves less: with nothing there is no FTL.
const ORACLE_PERCENT_MIN: f64 = 3.0;
/// Requests in flight where the device cannot keep up with the timestamps: as many as keep every unit busy, since it is
/// asked how much the drive can do.
const BEHIND_DEPTH: u32 = 256;
/// Bands of the oracle's device.
const BANDS: u32 = 2048;
/// A band has at least so many blocks.
const SLOTS_PER_BAND_MIN: u32 = 8;
/// A round is compared with the one before in parts that write the capacity, but no more of them.
const PARTS_MAX: u64 = 16;
/// Rounds of the oracle beyond the least, until two agree.
const ROUNDS_MORE: u32 = 4;
/// The shortest trace that says how often something is asked for.
const DURATION_NS_MIN: u64 = 1_000_000;
/// Blocks of a volume of 1 TiB.
const TIB_BLOCKS: u32 = 1 << 28;

/// Measures every combination. `progress` is told of (done, all), in blocks written and requests.
///
/// # Errors
/// A device without an FTL, or one too small; a failure of a simulation.
pub fn advise(
    trace: &Recorded,
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Advice, AdviseError> {
    let choices = choices(options);
    let flash = options.drive.check(trace, &choices)?;
    let duration_ns = trace.facts.duration_ns;
    if options.depth.is_none() && duration_ns < DURATION_NS_MIN {
        return Err(AdviseError::NoRate { duration_ns });
    }
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
        wanted,
        behind: OnceLock::new(),
        done: 0.into(),
        progress,
    };
    let mut advice = Advice {
        facts: trace.facts.clone(),
        device: options.drive.name(),
        whole: options.drive.is_whole(trace.bytes()),
        endurance: flash.endurance,
        timed_requests: trace.requests.len() as u64 * trace.passes(),
        playing: wanted,
        behind: false,
        wanted_ns: match wanted {
            Playing::Timestamps(load) => (trace.period_ns() * trace.passes()) as f64 / load,
            Playing::Depth(_) => 0.0,
        },
        rows: Vec::new(),
        bounds: Vec::new(),
    };
    run.measure(&choices, &mut advice)?;
    Ok(advice)
}

/// Every combination, by over-provisioning first.
fn choices(options: &Options) -> Vec<Choice<'_>> {
    let mut choices = Vec::new();
    for &op_percent in &options.op_percents {
        for stream in &options.streams {
            for victim in &options.victims {
                let seed = options.seed;
                choices.push(Choice { stream, victim, op_percent, seed });
            }
        }
    }
    choices
}

/// One simulation.
enum Job<'a> {
    Bound(Choice<'a>),
    /// By the timestamps, and in a closed loop if the device cannot keep up with these.
    First(Choice<'a>),
    /// As the first was played.
    Timed(Choice<'a>),
}

/// Its result.
enum Got {
    Bound(StreamWaf),
    Timed(Box<Result<Timed, String>>),
}

/// What all simulations have in common.
struct Run<'a> {
    trace: &'a Recorded,
    options: &'a Options,
    slots_per_band: u32,
    rounds: Rounds,
    /// How the trace should be played.
    wanted: Playing,
    /// What the first one found: the device cannot keep up with that.
    behind: OnceLock<bool>,
    /// Blocks and requests of all simulations so far.
    done: AtomicU64,
    progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Run<'_> {
    /// Fills the rows and bounds of `advice`, and says how the trace was played.
    fn measure(&self, choices: &[Choice<'_>], advice: &mut Advice) -> Result<(), AdviseError> {
        let ops = &self.options.op_percents;
        let bounds = ops.iter().flat_map(|&op_percent| {
            let (victim, seed) = (ORACLE_VICTIM, self.options.seed);
            ORACLES.map(|stream| Job::Bound(Choice { stream, victim, op_percent, seed }))
        });
        // Who waits for the first comes last; until then nobody has to.
        let mut jobs: Vec<Job<'_>> =
            choices.iter().take(1).map(|&choice| Job::First(choice)).collect();
        jobs.extend(bounds);
        jobs.extend(choices.iter().skip(1).map(|&choice| Job::Timed(choice)));
        let (mut bounds, mut timed) = (Vec::new(), Vec::new());
        for got in self.all(&jobs)? {
            match got {
                Got::Bound(waf) => bounds.push(waf),
                Got::Timed(result) => timed.push(*result),
            }
        }
        advice.behind = self.behind.get() == Some(&true);
        advice.playing = self.playing(advice.behind);
        for (&choice, timed) in choices.iter().zip(timed) {
            let drive = self.sized(choice)?;
            let row = row(choice, drive, timed, advice);
            advice.rows.push(row);
        }
        let mut bounds = bounds.into_iter();
        for &op_percent in ops {
            let oracles = bounds.by_ref().take(ORACLES.len());
            let best = oracles.min_by(|a, b| a.waf.total_cmp(&b.waf));
            advice.bounds.extend(best.map(|waf| Bound { op_percent, waf }));
        }
        Ok(())
    }

    fn sized(&self, choice: Choice<'_>) -> Result<Sized, AdviseError> {
        self.options.drive.sized(choice, self.trace.bytes()).map_err(AdviseError::Device)
    }

    fn playing(&self, behind: bool) -> Playing {
        if behind { Playing::Depth(BEHIND_DEPTH) } else { self.wanted }
    }

    fn all(&self, jobs: &[Job<'_>]) -> Result<Vec<Got>, AdviseError> {
        // As if all came to a steady state as soon as they can: near enough for a progress bar.
        let round = self.trace.requests.len() as u64 * self.trace.passes();
        let whole = round * (self.least() as u64 + 1) * jobs.len() as u64;
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
            Job::Bound(choice) => self.bound(choice, tell).map(Got::Bound),
            Job::First(choice) => self.first(choice, tell).map(Box::new).map(Got::Timed),
            Job::Timed(choice) => {
                let playing = self.playing(*self.behind.wait());
                self.timed(choice, playing, false, tell).map(Box::new).map(Got::Timed)
            }
        }
    }

    /// The oracle has what the drive leaves to data and GC.
    fn bound(&self, choice: Choice<'_>, tell: &mut dyn FnMut(u64)) -> Result<StreamWaf, Failure> {
        let plain = Choice { stream: "none", ..choice };
        let drive = self.sized(plain).map_err(|error| Failure(error.to_string()))?;
        let device = StreamDevice {
            slots_per_band: self.slots_per_band,
            op_percent: drive.percent_left().max(ORACLE_PERCENT_MIN),
            victim: choice.victim.into(),
            // A bound has none of them.
            checkpoint_slots: u64::from(self.trace.changes.logical_blocks),
            seed: choice.seed,
        };
        device.measure(&self.trace.changes, choice.stream, self.rounds, tell)
    }

    fn first(
        &self,
        choice: Choice<'_>,
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
        choice: Choice<'_>,
        playing: Playing,
        gives_up: bool,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Result<Timed, String>, Failure> {
        let mut device = match self.options.drive.build(choice, self.trace.bytes()) {
            Ok(device) => device,
            // One too small for this policy is a finding, too.
            Err(why) => return Ok(Err(why)),
        };
        let least = self.least();
        let rounds = least..=least.max(ROUNDS_MAX);
        let pass = timed::Pass { playing, gives_up, rounds };
        let timed = timed::measure(&mut *device, self.trace, pass, tell);
        // A device that fails under this load is a finding, not the end.
        Ok(timed.map_err(|failure| failure.to_string()))
    }

    /// Rounds before the measured one, at least: two, to be compared.
    fn least(&self) -> usize {
        self.rounds.least.max(2) as usize
    }
}

fn row(choice: Choice<'_>, drive: Sized, timed: Result<Timed, String>, advice: &Advice) -> Row {
    let policy = stream::by_name(choice.stream, Shape { blocks: TIB_BLOCKS, handles: 1 });
    let mut row = Row {
        stream: choice.stream.into(),
        victim: choice.victim.into(),
        op_percent: choice.op_percent,
        drive,
        timed,
        memory_per_tib: policy.map_or(0, |policy| policy.memory_bytes()),
        years: 0.0,
    };
    row.years = row.wearing(advice.endurance).years(advice.rate(&row));
    row
}

/// Of the oracle: the end of the trace to warm up, then whole passes; of a trace that does not write the capacity,
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
