//! How long requests take, always counted: HDR histograms of each volume and operation, and of what the time
//! went to: *admission* (its memory, and the data of a write), the *device* (FTL and medium), the *reply* (until
//! the kernel took it); and of the device's what [`Spent`] tells. Pure: a shard says when.
//!
//! Invariants: a request is recorded once, when its reply was sent; one whose client was gone by then is not.
//! Nothing is allocated for what never happened. The parts of a request add up to its whole.

mod cost;
mod slow;
mod summary;
mod why;

pub use cost::recording_ns;
pub use slow::{SLOW_NS, Slow, Slowest};
pub use summary::{BOUNDS_NS, Summary, within};
pub use why::{Lateness, Waited};

use crate::volume::{Kind, Request, ZoneWork};
use flash::{Instant, Spent};
use ftl::raw::zones::ZoneAction;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// What is told apart of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    /// Data came back, or was compared with what the client has.
    Read,
    /// Data was given.
    Write,
    /// What was acknowledged was made durable.
    Flush,
    /// A range was given up.
    Trim,
    /// A range was made to read as zeroes.
    Zeroes,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Trim, Op::Zeroes];

    /// Which one a request is. What asks nothing of the flash is none.
    fn of(kind: Kind) -> Option<Op> {
        match kind {
            Kind::Read | Kind::Compare => Some(Op::Read),
            Kind::Write { .. } => Some(Op::Write),
            Kind::Flush => Some(Op::Flush),
            Kind::Trim { .. } => Some(Op::Trim),
            Kind::Zeroes { .. } => Some(Op::Zeroes),
            Kind::Zone(ZoneWork::Read) => Some(Op::Read),
            Kind::Zone(ZoneWork::Write { .. } | ZoneWork::Append { .. }) => Some(Op::Write),
            Kind::Zone(ZoneWork::Manage { action: ZoneAction::Reset, .. }) => Some(Op::Trim),
            Kind::Zone(ZoneWork::Manage { .. }) => None,
            Kind::Cache | Kind::Extents | Kind::Zones { .. } => None,
        }
    }

    /// As status and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Trim => "trim",
            Op::Zeroes => "zeroes",
        }
    }
}

/// What the time of a request goes to: in three parts, then what of the device's a core tells apart.
pub const STAGES: [&str; 7] =
    ["admission", "device", "reply", "place", "queue", "medium", "safety"];

/// The first so many are told of every request, and make up the whole.
const STAGES_OF_ALL: usize = 3;

/// A request that was answered, with the instants of its life so far.
#[derive(Clone, Debug)]
pub struct Timed {
    /// What was asked.
    pub request: Request,
    /// When its header came.
    pub asked: Instant,
    /// When it had its memory and its data, and went to the device.
    pub begun: Instant,
    /// When the device had done it.
    pub done: Instant,
    /// How long the limits of its volume have kept it waiting before that.
    pub limited_ns: u64,
    /// It was answered with an error.
    pub failed: bool,
    /// What its last piece waited for, if that took long enough for a look.
    pub waited: Option<Box<Waited>>,
    /// What of the device's time its last piece spent where, if a core told.
    pub spent: Option<Spent>,
}

impl Timed {
    /// What each of the first three of [`STAGES`] took, for a reply that was sent at `sent`.
    fn stages(&self, sent: Instant) -> [u64; 3] {
        let begun = self.begun.max(self.asked);
        let done = self.done.max(begun);
        [begun - self.asked, done - begun, sent.max(done) - done]
    }
}

/// Latencies of one kind: the counts of an HDR histogram, which is made of them when somebody asks. Its own record
/// keeps more and takes several times as long (`weir bench latency-cpu`).
#[derive(Clone, Debug)]
pub struct Series {
    /// Of each [`step`].
    counts: Box<[u64]>,
    /// The longest, exactly.
    pub max_ns: u64,
    /// Of all, exactly.
    pub sum_ns: u64,
    /// Bytes that they moved or named.
    pub bytes: u64,
    /// Those that ended with an error.
    pub errors: u64,
}

/// Steps of 64 ns or 1 %, to an hour: 30 KiB.
const LEAST_NS: u64 = 64;
const MOST_NS: u64 = 3600 * flash::SECOND;
const DIGITS: u8 = 2;

/// Steps between one power of two and the next.
const FINE: u64 = 128;
const STEPS: usize = step(MOST_NS) + 1;

/// The step of a time, as HDR histograms have them: even up to twice [`FINE`], then [`FINE`] for each doubling.
#[inline]
const fn step(ns: u64) -> usize {
    let least = ns / LEAST_NS;
    if least < FINE {
        return least as usize;
    }
    let doublings = least.ilog2() - FINE.ilog2();
    (((doublings as u64 + 1) * FINE) + (least >> doublings) % FINE) as usize
}

/// The shortest time of a step.
const fn begin_of(step: usize) -> u64 {
    let step = step as u64;
    if step < FINE {
        return step * LEAST_NS;
    }
    ((FINE + step % FINE) << (step / FINE - 1)) * LEAST_NS
}

impl Default for Series {
    fn default() -> Self {
        let counts = vec![0; STEPS].into_boxed_slice();
        Self { counts, max_ns: 0, sum_ns: 0, bytes: 0, errors: 0 }
    }
}

impl Series {
    #[inline]
    fn record(&mut self, ns: u64) {
        self.counts[step(ns.min(MOST_NS))] += 1;
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += ns;
    }

    /// The histogram, in nanoseconds.
    pub fn histogram(&self) -> Histogram<u64> {
        let histogram = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS);
        let mut histogram = histogram.expect("bounds that a histogram can have");
        for (step, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            histogram.saturating_record_n(begin_of(step), count);
        }
        histogram
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Leaves what was counted since `before`, an earlier state of this one. The longest of it is known to a step.
    pub fn subtract(&mut self, before: &Series) {
        for (count, before) in self.counts.iter_mut().zip(&before.counts) {
            *count -= before;
        }
        let last = self.counts.iter().rposition(|&count| count > 0);
        self.max_ns = last.map_or(0, |step| self.max_ns.min(begin_of(step + 1) - 1));
        self.sum_ns -= before.sum_ns;
        self.bytes -= before.bytes;
        self.errors -= before.errors;
    }

    /// Counts in what another one counted.
    pub fn add(&mut self, other: &Series) {
        for (into, from) in self.counts.iter_mut().zip(&other.counts) {
            *into += from;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.bytes += other.bytes;
        self.errors += other.errors;
    }
}

/// Series by operation.
pub type ByOp = [Option<Box<Series>>; 5];

/// All that a shard has counted of the clients it serves.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Of each volume that somebody used.
    pub volumes: BTreeMap<usize, ByOp>,
    /// Of all volumes that are gone.
    pub gone: ByOp,
    /// Of each of [`STAGES`], over all volumes.
    pub stages: [ByOp; STAGES.len()],
    /// Requests that their protocol answered with an error: for each volume, and for those that named none that there is.
    pub refused: BTreeMap<Option<usize>, u64>,
}

impl Latencies {
    /// A reply was sent. How long the request took; 0 for what is not counted.
    pub fn record(&mut self, timed: &Timed, sent: Instant) -> u64 {
        let Some(op) = Op::of(timed.request.kind) else { return 0 };
        let stages = timed.stages(sent);
        let total_ns = stages.iter().sum();
        let [admission, device, reply] = stages;
        let Spent { place_ns, queue_ns, medium_ns, safety_ns } = timed.spent.unwrap_or_default();
        let stages = [admission, device, reply, place_ns, queue_ns, medium_ns, safety_ns];
        let told = if timed.spent.is_some() { stages.len() } else { STAGES_OF_ALL };
        for (series, ns) in self.stages.iter_mut().zip(stages).take(told) {
            series[op as usize].get_or_insert_default().record(ns);
        }
        let volume = timed.request.volume;
        let by_op = self.volumes.entry(volume).or_default();
        let series = by_op[op as usize].get_or_insert_default();
        series.record(total_ns);
        series.bytes += u64::from(timed.request.len);
        series.errors += u64::from(timed.failed);
        total_ns
    }

    /// A protocol answered a request for this volume with an error.
    pub fn note_refused(&mut self, volume: Option<usize>) {
        *self.refused.entry(volume).or_default() += 1;
    }

    /// Counts in what another shard counted.
    pub fn add(&mut self, other: &Latencies) {
        for (&volume, count) in &other.refused {
            *self.refused.entry(volume).or_default() += count;
        }
        for (&volume, from) in &other.volumes {
            add(self.volumes.entry(volume).or_default(), from);
        }
        add(&mut self.gone, &other.gone);
        for (into, from) in self.stages.iter_mut().zip(&other.stages) {
            add(into, from);
        }
    }

    /// Forgets of which volume it was what those were asked that are not there any more.
    pub fn keep(&mut self, is_there: impl Fn(usize) -> bool) {
        let gone = self.volumes.extract_if(.., |&volume, _| !is_there(volume));
        gone.for_each(|(_, by_op)| add(&mut self.gone, &by_op));
        let refused =
            self.refused.extract_if(.., |volume, _| volume.is_some_and(|of| !is_there(of)));
        let refused: u64 = refused.map(|(_, count)| count).sum();
        if refused > 0 {
            *self.refused.entry(None).or_default() += refused;
        }
    }

    /// All volumes together, those too that are gone.
    pub fn whole(&self) -> ByOp {
        let mut whole = self.gone.clone();
        self.volumes.values().for_each(|volume| add(&mut whole, volume));
        whole
    }
}

/// Counts `from` in.
pub fn add(into: &mut ByOp, from: &ByOp) {
    for (into, from) in into.iter_mut().zip(from) {
        if let Some(from) = from {
            into.get_or_insert_default().add(from);
        }
    }
}

#[cfg(test)]
mod tests;
