//! Replays a trace: against a [`Target`] of the lab in virtual time ([`run`]), or, with the same
//! [`Lanes`], [`Fit`] and [`Tally`], against something real by a driver with a clock.
//!
//! - [`Survey`] reads the trace once and knows its span; [`Fit`] lays it onto a device.
//! - [`Lanes`] say what is issued when: by the timestamps, under a multiplied load, or in a closed
//!   loop; reads and writes together or apart.
//! - [`Tally`] counts and keeps latencies.
//!
//! Invariants: every record of every round is issued once and answered once; an open loop measures
//! from when a request was due, not from when there was room for it, so that a device which falls
//! behind cannot hide it; the same trace, device and options give the same figures, to the bit.

mod fit;
mod lanes;
pub mod precondition;
mod tally;
#[cfg(test)]
mod tests;
mod written;

pub use fit::{Fit, FitError, FitKind, Survey};
pub use lanes::{Issue, LaneOptions, Lanes, Looped, Next, Pace, Part, Records};
pub use tally::{Kind, Tally};
pub use written::{ByReason, Programmed, Wearing, behind_after_ns, fell_behind, overloaded};

use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target};
use crate::trace::{Op, Record, TraceError};
use flash::{BLOCK_BYTES, Hint, Instant, RequestError};
use std::fmt;

/// Why a replay ended early.
#[derive(Debug)]
pub enum ReplayError {
    /// The trace cannot be read on.
    Trace(TraceError),
    /// The device takes no such writes.
    Fit(FitError),
    /// The simulated device broke a promise.
    Device(Failure),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Fit(error) => error.fmt(f),
            Self::Device(failure) => write!(f, "the simulated device failed: {failure}"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<TraceError> for ReplayError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<FitError> for ReplayError {
    fn from(error: FitError) -> Self {
        Self::Fit(error)
    }
}

impl From<Failure> for ReplayError {
    fn from(failure: Failure) -> Self {
        Self::Device(failure)
    }
}

/// A request of the trace on its way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    issue: Issue,
    /// I/Os of this stage without an answer.
    left: u32,
    stage: Stage,
    result: Result<(), RequestError>,
}

/// A request may be several I/Os, one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// Reads the blocks of which a write covers only a part.
    Edges,
    /// On raw units: erases what is written next.
    Erase,
    /// Does what was asked.
    Itself,
    /// Flushes behind a write that must be durable: a target knows no FUA, as many disks do not.
    Flush,
}

impl Stage {
    /// The stage after one that comes before the request itself.
    fn before_itself(self) -> Option<Self> {
        match self {
            Self::Edges => Some(Self::Erase),
            Self::Erase => Some(Self::Itself),
            Self::Itself | Self::Flush => None,
        }
    }
}

/// Everything of a run but the target and the lanes.
struct Run<'a> {
    fit: &'a Fit,
    rules: Rules,
    flights: Vec<Flight>,
    flights_free: Vec<u32>,
    tally: Tally,
    pieces: Vec<(u64, u64)>,
}

/// Virtual requests are late only when there is no room for them: not a nanosecond is granted.
const LATE_NS: u64 = 0;

/// Replays what `lanes` give on `target`, from its present on. `progress` is told now and then how
/// many requests are done. Returns what was seen and how long it took to the last answer.
pub fn run(
    target: &mut dyn Target,
    lanes: &mut Lanes<'_>,
    fit: &Fit,
    progress: &mut dyn FnMut(u64),
) -> Result<(Tally, u64), ReplayError> {
    run_until(u64::MAX, target, lanes, fit, progress)
}

/// The same, but no longer than it takes to know that it takes longer than `end_ns`: then some are
/// without an answer, and the time is that of this knowledge.
pub fn run_until(
    end_ns: u64,
    target: &mut dyn Target,
    lanes: &mut Lanes<'_>,
    fit: &Fit,
    progress: &mut dyn FnMut(u64),
) -> Result<(Tally, u64), ReplayError> {
    let mut run = Run {
        fit,
        rules: target.rules(),
        flights: Vec::new(),
        flights_free: Vec::new(),
        tally: Tally::new(LATE_NS),
        pieces: Vec::new(),
    };
    let start = target.now();
    let (mut now, mut steps) = (start, 0u64);
    loop {
        if now - start > end_ns {
            return Ok((run.tally, now - start));
        }
        let until = match lanes.next(now - start)? {
            Next::Issue(issue) => {
                run.tally.issued(&issue, now - start);
                if let Some(token) = run.begin(target, now, issue)? {
                    run.answer(token, now - start, lanes);
                }
                None
            }
            Next::Wait(until) => Some(until),
            Next::End if lanes.in_flight() == 0 => return Ok((run.tally, now - start)),
            Next::End => Some(None),
        };
        if let Some(until) = until {
            let due = until.map(|ns| Instant(start.0.saturating_add(ns)));
            let Some(at) = due.into_iter().chain(target.deadline()).min() else {
                return Err(
                    Failure("requests are never answered, and nothing is due".into()).into()
                );
            };
            now = now.max(at);
            target.advance(now)?;
        }
        while let Some(done) = target.take_done() {
            if let Some(token) = run.ended(target, now, done)? {
                run.answer(token, done.at - start, lanes);
            }
        }
        steps += 1;
        if steps.is_multiple_of(4096) {
            progress(run.tally.requests());
        }
    }
}

impl Run<'_> {
    fn begin(
        &mut self,
        target: &mut dyn Target,
        now: Instant,
        issue: Issue,
    ) -> Result<Option<u32>, Failure> {
        let flight = Flight { issue, left: 0, stage: Stage::Edges, result: Ok(()) };
        let token = self.flights_free.pop().unwrap_or_else(|| {
            self.flights.push(flight);
            (self.flights.len() - 1) as u32
        });
        self.flights[token as usize] = flight;
        self.tally.moved(self.fit.pieces(&issue.record, &mut self.pieces));
        let goes_on = self.go_on(target, now, token)?;
        Ok((!goes_on).then_some(token))
    }

    /// Submits the I/Os of the flight's stage, or of the next one that has any. False if there are
    /// none at all: a trim of less than a block.
    fn go_on(
        &mut self,
        target: &mut dyn Target,
        now: Instant,
        token: u32,
    ) -> Result<bool, Failure> {
        let Flight { issue, mut stage, .. } = self.flights[token as usize];
        self.fit.pieces(&issue.record, &mut self.pieces);
        let mut ios = self.ios(stage, &issue.record);
        while ios.is_empty()
            && let Some(next) = stage.before_itself()
        {
            stage = next;
            ios = self.ios(stage, &issue.record);
        }
        if stage == Stage::Edges {
            self.tally.partial();
        }
        let flight = &mut self.flights[token as usize];
        (flight.stage, flight.left) = (stage, ios.len() as u32);
        let goes_on = !ios.is_empty();
        ios.into_iter().try_for_each(|io| target.submit(now, u64::from(token), io))?;
        Ok(goes_on)
    }

    /// What a stage of a request at `self.pieces` submits.
    fn ios(&self, stage: Stage, record: &Record) -> Vec<Io> {
        // What a trace knows about data is which volume it belongs to.
        let hint = Hint { handle: record.volume as u8, ..Hint::default() };
        let io = |kind, offset, bytes| Io { kind, offset, bytes, hint };
        let pieces = self.pieces.iter().copied();
        let of = |kind, pieces: &mut dyn Iterator<Item = (u64, u64)>| {
            let some = pieces.filter(|&(_, bytes)| bytes > 0);
            some.map(|(offset, bytes)| io(kind, offset, bytes)).collect()
        };
        let Rules { read_bytes, erase_bytes, .. } = self.rules;
        match (stage, record.op) {
            (Stage::Edges, Op::Write) if erase_bytes == 0 => {
                let edges = pieces.flat_map(|(offset, bytes)| edges(offset, bytes));
                edges.map(|offset| io(IoKind::Read, offset, BLOCK_BYTES as u64)).collect()
            }
            (Stage::Erase, Op::Write) if erase_bytes > 0 => {
                of(IoKind::Erase, &mut pieces.map(|piece| begun(piece, erase_bytes)))
            }
            (Stage::Edges | Stage::Erase, _) => Vec::new(),
            (Stage::Flush, _) | (Stage::Itself, Op::Flush) => vec![io(IoKind::Flush, 0, 0)],
            (Stage::Itself, Op::Read) if read_bytes > BLOCK_BYTES as u64 => {
                of(IoKind::Read, &mut pieces.map(|piece| outer(piece, read_bytes)))
            }
            (Stage::Itself, Op::Read) => of(IoKind::Read, &mut { pieces }),
            (Stage::Itself, Op::Write) => of(IoKind::Write, &mut { pieces }),
            (Stage::Itself, Op::Trim) => {
                let whole = erase_bytes.max(BLOCK_BYTES as u64);
                of(IoKind::Erase, &mut pieces.map(|piece| inner(piece, whole)))
            }
        }
    }

    /// An I/O has ended. The flight that has ended with it, if one has.
    fn ended(
        &mut self,
        target: &mut dyn Target,
        now: Instant,
        done: Done,
    ) -> Result<Option<u32>, Failure> {
        let token = done.token as u32;
        let flight = &mut self.flights[token as usize];
        flight.left -= 1;
        flight.result = flight.result.and(done.result);
        if flight.left > 0 {
            return Ok(None);
        }
        let next = match flight.stage {
            Stage::Edges | Stage::Erase => flight.stage.before_itself(),
            Stage::Itself if flight.issue.record.fua => Some(Stage::Flush),
            Stage::Itself | Stage::Flush => None,
        };
        if let Some(next) = next.filter(|_| flight.result.is_ok()) {
            flight.stage = next;
            self.go_on(target, now, token)?;
            return Ok(None);
        }
        Ok(Some(token))
    }

    /// The answer of a flight came at `at_ns` of the replay.
    fn answer(&mut self, token: u32, at_ns: u64, lanes: &mut Lanes<'_>) {
        let Flight { issue, result, .. } = self.flights[token as usize];
        self.flights_free.push(token);
        lanes.completed(issue.lane);
        let error = result.err().map(|error| format!("{error:?}"));
        self.tally.ended(&issue, at_ns, error);
    }
}

/// The blocks that a range covers only in part: none, one or two, by their first bytes.
fn edges(offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
    const BLOCK: u64 = BLOCK_BYTES as u64;
    let end = offset + bytes;
    let head = (!offset.is_multiple_of(BLOCK)).then_some(offset / BLOCK * BLOCK);
    let tail = (!end.is_multiple_of(BLOCK)).then_some(end / BLOCK * BLOCK);
    head.into_iter().chain(tail.filter(|_| tail != head))
}

/// The multiples of `grain` that a range covers whole: what a trim may forget.
fn inner((offset, bytes): (u64, u64), grain: u64) -> (u64, u64) {
    let first = offset.div_ceil(grain) * grain;
    let end = (offset + bytes) / grain * grain;
    (first, end.saturating_sub(first))
}

/// The multiples of `grain` that a range touches.
fn outer((offset, bytes): (u64, u64), grain: u64) -> (u64, u64) {
    let first = offset / grain * grain;
    (first, (offset + bytes).div_ceil(grain) * grain - first)
}

/// The multiples of `grain` that begin within a range: what is erased before it is written.
fn begun((offset, bytes): (u64, u64), grain: u64) -> (u64, u64) {
    let first = offset.div_ceil(grain) * grain;
    (first, ((offset + bytes).div_ceil(grain) * grain).saturating_sub(first))
}
