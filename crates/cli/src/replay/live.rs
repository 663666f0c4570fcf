//! A replay against something real, by the wall clock. One thread issues, as [`Lanes`] say, and
//! takes the answers; the target answers from threads of its own, with the time of each answer.
//!
//! Invariants: nothing is written without `--overwrite`; a target that stops answering ends the
//! replay with an error, and no thread waits for ever.

use super::Plan;
use super::direct::Direct;
use super::nbd::Nbd;
use super::report::{Clock, Outcome};
use crate::Failure;
use crate::output::Progress;
use flash::Slab;
use lab::replay::{Fit, Issue, Lanes, Next, Tally};
use lab::trace::Op;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// One I/O for a target.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    pub token: u64,
    pub op: Op,
    pub fua: bool,
    pub offset: u64,
    pub length: u64,
}

/// The answer to an I/O.
pub struct Answer {
    pub token: u64,
    /// Taken where the answer came in.
    pub at: Instant,
    pub error: Option<String>,
}

/// What a target's threads say.
pub enum Event {
    Answer(Answer),
    /// The target is gone: nothing more will be answered.
    Lost(String),
}

/// Something real.
pub trait Live {
    fn capacity(&self) -> u64;
    /// Bytes of its longest I/O of this kind.
    fn longest(&self, op: Op) -> u64;
    /// Hands an I/O over; does not wait for its answer.
    fn submit(&mut self, io: Io) -> Result<(), Failure>;
    /// Where the answers come.
    fn events(&self) -> &Receiver<Event>;
}

const NBD_IN_FLIGHT: u32 = 256;
const DIRECT_IN_FLIGHT: u32 = 64;
/// More threads than that only wait for each other.
const THREADS_MAX: u32 = 1024;
/// A sleeping thread is not woken to the microsecond.
const LATE_NS: u64 = 1_000_000;
/// A target without one answer in this time hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn replay(plan: &Plan<'_>, name: &str) -> Result<Outcome, Failure> {
    let args = plan.args;
    let writes = plan.survey.changes > 0 && args.pacing.writes();
    if writes && !args.overwrite {
        return Err(format!(
            "{name}: the trace has {} writes and trims, and what they touch is lost: say \
             --overwrite, or replay only the reads with --read-threads N --write-threads 0",
            plan.survey.changes
        ));
    }
    if args.precondition != lab::replay::precondition::Precondition::None {
        return Err("--precondition: is for emulated devices: fill a real one with fio".into());
    }
    let is_nbd = name.starts_with("nbd");
    let in_flight = if is_nbd { NBD_IN_FLIGHT } else { DIRECT_IN_FLIGHT };
    let mut target: Box<dyn Live> = if is_nbd {
        Box::new(Nbd::connect(name, writes)?)
    } else {
        let threads = args.pacing.depth(in_flight).min(THREADS_MAX);
        Box::new(Direct::open(Path::new(name), writes, args.buffered, threads)?)
    };
    let fit = plan.fit(target.capacity())?;
    let mut lanes = plan.lanes(in_flight, args.pacing.rounds);
    let mut progress = Progress::new("replaying");
    let whole = plan.requests();
    let mut run = Run { fit: &fit, flights: Slab::default(), tally: Tally::new(LATE_NS) };
    let elapsed = run.go(&mut *target, &mut lanes, &mut |done| progress.at(done, whole));
    drop(progress);
    let elapsed = elapsed.map_err(|error| format!("{name}: {error}"))?;
    Ok(Outcome {
        clock: Clock::Host,
        against: name.into(),
        capacity: target.capacity(),
        elapsed_ns: elapsed,
        late_after_ns: LATE_NS,
        tally: run.tally,
        device: None,
    })
}

/// A request of the trace on its way.
struct Flight {
    issue: Issue,
    left: u32,
    error: Option<String>,
}

struct Run<'a> {
    fit: &'a Fit,
    flights: Slab<Flight>,
    tally: Tally,
}

impl Run<'_> {
    /// Runs to the last answer; returns how long it took.
    fn go(
        &mut self,
        target: &mut dyn Live,
        lanes: &mut Lanes<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Failure> {
        let begun = Instant::now();
        let since = |at: Instant| at.saturating_duration_since(begun).as_nanos() as u64;
        loop {
            let now_ns = since(Instant::now());
            let next = lanes.next(now_ns).map_err(|error| error.to_string())?;
            let patience = match next {
                Next::Issue(issue) => {
                    self.tally.issued(&issue, now_ns);
                    if !self.submit(target, issue)? {
                        lanes.completed(issue.lane);
                        self.tally.ended(&issue, now_ns, None);
                    }
                    Duration::ZERO
                }
                Next::Wait(Some(due_ns)) => Duration::from_nanos(due_ns - now_ns),
                Next::End if lanes.in_flight() == 0 => return Ok(now_ns),
                Next::Wait(None) | Next::End => PATIENCE,
            };
            let mut wait = patience;
            while let Some(event) = receive(target.events(), wait, patience == PATIENCE)? {
                wait = Duration::ZERO;
                let answer = match event {
                    Event::Answer(answer) => answer,
                    Event::Lost(why) => return Err(why),
                };
                if let Some(issue) = self.answered(&answer, since(answer.at)) {
                    lanes.completed(issue.lane);
                }
                if self.tally.requests().is_multiple_of(1024) {
                    progress(self.tally.requests());
                }
            }
        }
    }

    /// Hands the request's I/Os over; false if there are none.
    fn submit(&mut self, target: &mut dyn Live, issue: Issue) -> Result<bool, Failure> {
        let mut pieces = Vec::new();
        let record = issue.record;
        self.tally.moved(self.fit.pieces(&record, &mut pieces));
        let longest = target.longest(record.op);
        pieces = pieces.into_iter().flat_map(|piece| parts(piece, longest)).collect();
        if record.op == Op::Flush {
            pieces.push((0, 0));
        }
        if pieces.is_empty() {
            return Ok(false);
        }
        let flight = Flight { issue, left: pieces.len() as u32, error: None };
        let token = self.flights.insert(flight);
        for (offset, length) in pieces {
            let (token, op, fua) = (u64::from(token), record.op, record.fua);
            target.submit(Io { token, op, fua, offset, length })?;
        }
        Ok(true)
    }

    /// The request that has ended with this answer, if one has.
    fn answered(&mut self, answer: &Answer, at_ns: u64) -> Option<Issue> {
        let flight = &mut self.flights[answer.token as u32];
        flight.left -= 1;
        if flight.error.is_none() {
            flight.error.clone_from(&answer.error);
        }
        if flight.left > 0 {
            return None;
        }
        let Flight { issue, error, .. } = self.flights.remove(answer.token as u32);
        self.tally.ended(&issue, at_ns, error);
        Some(issue)
    }
}

/// A range in parts of at most `longest` bytes.
fn parts((offset, length): (u64, u64), longest: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = length.div_ceil(longest);
    (0..count).map(move |i| (offset + i * longest, longest.min(length - i * longest)))
}

/// The next event within `wait`; `Err` if there is none and one was `awaited`.
fn receive(
    events: &Receiver<Event>,
    wait: Duration,
    awaited: bool,
) -> Result<Option<Event>, Failure> {
    match events.recv_timeout(wait) {
        Ok(event) => Ok(Some(event)),
        Err(RecvTimeoutError::Timeout) if awaited && !wait.is_zero() => {
            Err(format!("has not answered for {} s: it hangs", PATIENCE.as_secs()))
        }
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err("its threads have ended".into()),
    }
}
