//! One client owns a volume: how it becomes the owner, and how it knows until when it is.
//!
//! *Raising.* The owner's record in the plane is replaced by one of the next generation, if it is still the one
//! that was read. Whoever did that is the owner, until another one does it: every change that an owner makes in
//! the plane names the revision of its record, so none of an older owner takes effect any more. An outcome that
//! is not known is looked up: the record names the opening, so it cannot be mistaken.
//!
//! *Lease.* The owner asks the plane again and again whether its record is still there. If so, nobody had
//! replaced it when the plane answered, hence nobody had when the owner asked: until `lease_ns` after it *asked*
//! it may show what the volume holds. Whoever replaces the record waits `lease_ns` of the record that it
//! replaced, counted from when it *heard* that it had, and an eighth longer, as clocks run differently fast. So
//! no two clients read at once, whatever the plane thinks of time. A record hands on the longest lease of those
//! that its owner did not wait out; and an owner releases only what it has waited out itself.
//!
//! *Loss.* The lease may end while nobody else owns the volume (the plane is away): reads wait, and go on when it
//! is back. Lost for good is the volume when the plane shows another record, or a node refuses the generation.

use super::contract::{Change, Check, Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId};
use super::keys;
use super::mutant::Mutant;
use super::values::{OwnerRecord, Value, ValueError};
use crate::words::{Fenced, Generation, VolumeId};
use flash::{Instant, MILLISECOND, SECOND};
use std::collections::VecDeque;
use std::fmt;

/// What an opening is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OwnershipConfig {
    /// What is to be owned.
    pub volume: VolumeId,
    /// Names this opening: drawn by chance, never used twice.
    pub owner: u128,
    /// How long reads go on without the plane; so long, too, does a successor wait.
    pub lease_ns: u64,
    /// An answer that is later than this is not waited for.
    pub answer_ns_max: u64,
}

impl OwnershipConfig {
    /// With 3 s of lease: two renewals may fail in a row, and a take-over is well within 10 s.
    pub fn new(volume: VolumeId, owner: u128) -> Self {
        Self { volume, owner, lease_ns: 3 * SECOND, answer_ns_max: 400 * MILLISECOND }
    }

    /// What nodes know this opening by: never 0 nor [`Fenced::DELETED`], and of two openings the same by chance alone.
    pub fn number(&self) -> u64 {
        ((self.owner >> 64) as u64 ^ self.owner as u64).clamp(1, Fenced::DELETED - 1)
    }
}

/// Ownership of a volume, from asking for it to losing it.
#[derive(Clone, Debug)]
pub struct Ownership {
    config: OwnershipConfig,
    state: State,
    in_flight: Option<(PlaneAskId, Instant)>,
    /// When to ask again, while nothing is in flight.
    ask_at: Instant,
    asks: u64,
    outputs: VecDeque<OwnershipOutput>,
    mutant: Option<Mutant>,
}

#[derive(Clone, Debug)]
enum State {
    /// Whose is it?
    Looking,
    /// The commit that makes it ours is under way; its predecessor asks for `wait_ns` of patience.
    Raising { record: OwnerRecord, wait_ns: u64 },
    /// It is ours.
    Owning(Owning),
    /// The commit that releases it is under way.
    Releasing(Owning),
    /// It is not ours any more.
    Ended,
}

#[derive(Clone, Debug)]
struct Owning {
    record: OwnerRecord,
    revision: u64,
    /// Predecessors may read until then.
    waited_out_at: Instant,
    lease_until: Option<Instant>,
    /// The driver was told that the lease holds.
    told: bool,
}

/// What happens to it.
#[derive(Clone, Debug)]
pub enum OwnershipInput<'a> {
    /// The plane answered; answers for others are no matter.
    Plane {
        /// What was asked.
        id: PlaneAskId,
        /// What came of it.
        answer: &'a PlaneAnswer,
    },
    /// A node refused this generation, as it has heard of a higher one.
    Stale {
        /// Which.
        highest: Generation,
    },
    /// The volume is not used any more: nothing is in flight, and nothing will be.
    Release,
    /// Time has passed.
    Deadline,
}

/// What it has to say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OwnershipOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// The volume is owned; it may be fenced and recovered, not yet read or written by the host.
    Raised {
        /// Of this opening.
        generation: Generation,
        /// Of the owner's record: what every commit of this owner checks.
        revision: u64,
    },
    /// No older owner reads any more, and until then no newer one does.
    Held {
        /// The end of the lease.
        until: Instant,
    },
    /// The lease has ended; whether the volume is still ours is not known. Reads wait.
    LeaseEnded,
    /// The volume is another's, for good.
    Lost {
        /// The generation that was heard of.
        by: Generation,
    },
    /// It was released.
    Released,
    /// The record cannot be made sense of, or generations are used up.
    Failed(OwnershipError),
}

/// Why a volume cannot be owned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnershipError {
    /// The record of the owner.
    Record(ValueError),
    /// A life has 32 bits for the generation.
    GenerationsUsedUp,
}

impl fmt::Display for OwnershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(error) => write!(f, "the record of the volume's owner {error}"),
            Self::GenerationsUsedUp => f.write_str(
                "the volume was opened 4294967295 times, more than its format can count: copy it to a new one",
            ),
        }
    }
}

impl Ownership {
    /// Begins to ask for the volume.
    pub fn new(now: Instant, config: OwnershipConfig) -> Self {
        assert!(config.lease_ns > 0, "a lease has some time");
        let mut ownership = Self {
            config,
            state: State::Looking,
            in_flight: None,
            ask_at: now,
            asks: 0,
            outputs: VecDeque::new(),
            mutant: None,
        };
        ownership.go_on(now);
        ownership
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Something happened.
    pub fn handle(&mut self, now: Instant, input: OwnershipInput<'_>) {
        match input {
            OwnershipInput::Plane { id, answer } => {
                if let Some((_, sent)) = self.in_flight.take_if(|(asked, _)| *asked == id) {
                    self.answered(now, sent, answer);
                }
            }
            OwnershipInput::Stale { highest } => self.lose(highest),
            OwnershipInput::Release => self.release(now),
            OwnershipInput::Deadline => {}
        }
        if self.in_flight.is_some_and(|(_, sent)| now >= sent + self.config.answer_ns_max) {
            // A commit may have happened: looking at the record tells.
            self.in_flight = None;
            self.unknown(now);
        }
        self.end_lease(now);
        self.go_on(now);
    }

    /// Something hints at another owner: the plane is asked now.
    pub fn look(&mut self, now: Instant) {
        self.ask_at = self.ask_at.min(now);
        self.handle(now, OwnershipInput::Deadline);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<OwnershipOutput> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self) -> Option<Instant> {
        let lease = match &self.state {
            State::Owning(of) if of.told => of.lease_until,
            State::Owning(of) if of.lease_until.is_some() => Some(of.waited_out_at),
            State::Ended => return None,
            _ => None,
        };
        let answer = self.in_flight.map(|(_, sent)| sent + self.config.answer_ns_max);
        let ask = answer.unwrap_or(self.ask_at);
        Some(lease.map_or(ask, |lease| lease.min(ask)))
    }

    /// The generation, from `Raised` on.
    pub fn generation(&self) -> Option<Generation> {
        self.owning().map(|of| of.record.generation)
    }

    /// Until when what is read may be shown: `None` before the predecessor is waited out and after a loss.
    pub fn readable_until(&self) -> Option<Instant> {
        self.owning().filter(|of| of.told).and_then(|of| of.lease_until)
    }

    /// What it waits for, in words.
    pub fn explain(&self, now: Instant) -> String {
        match &self.state {
            State::Looking => "asking the control plane who owns the volume".to_owned(),
            State::Raising { record, .. } => {
                format!("taking the volume over as generation {}", record.generation.0)
            }
            State::Owning(of) if now < of.waited_out_at => format!(
                "owned as generation {}; its last owner may read for another {} ms",
                of.record.generation.0,
                (of.waited_out_at - now) / MILLISECOND
            ),
            State::Owning(of) if of.told => {
                format!("owned as generation {}", of.record.generation.0)
            }
            State::Owning(of) => format!(
                "owned as generation {}, but the control plane did not say so for {} ms: reads wait",
                of.record.generation.0,
                self.config.lease_ns / MILLISECOND
            ),
            State::Releasing(_) => "releasing the volume".to_owned(),
            State::Ended => "the volume is not owned here any more".to_owned(),
        }
    }

    fn owning(&self) -> Option<&Owning> {
        match &self.state {
            State::Owning(of) | State::Releasing(of) => Some(of),
            _ => None,
        }
    }

    fn go_on(&mut self, now: Instant) {
        if self.in_flight.is_some() || now < self.ask_at {
            return;
        }
        let key = keys::owner(self.config.volume);
        let ask = match &self.state {
            State::Looking => PlaneAsk::Get { key },
            State::Owning(of) => {
                let checks = vec![Check { key, revision: of.revision }];
                PlaneAsk::Commit { checks, changes: Vec::new() }
            }
            State::Raising { .. } | State::Releasing(_) | State::Ended => return,
        };
        self.ask(now, ask);
    }

    fn ask(&mut self, now: Instant, ask: PlaneAsk) {
        let id = PlaneAskId::of_part(Part::Ownership, self.asks);
        self.asks += 1;
        self.in_flight = Some((id, now));
        self.ask_at = now + self.config.lease_ns / RENEWALS_PER_LEASE;
        self.outputs.push_back(OwnershipOutput::Ask { id, ask });
    }

    fn answered(&mut self, now: Instant, sent: Instant, answer: &PlaneAnswer) {
        match (std::mem::replace(&mut self.state, State::Looking), answer) {
            (State::Looking, PlaneAnswer::Value { kept, .. }) => self.looked(now, kept.as_ref()),
            (State::Raising { record, wait_ns }, PlaneAnswer::Committed { revision }) => {
                self.own(now, record, *revision, wait_ns);
            }
            (State::Owning(mut of), PlaneAnswer::Committed { .. }) => {
                of.lease_until = Some(sent + of.record.lease_ns.min(self.config.lease_ns));
                self.state = State::Owning(of);
                self.hold(now);
            }
            (State::Releasing(_), PlaneAnswer::Committed { .. }) => {
                self.state = State::Ended;
                self.outputs.push_back(OwnershipOutput::Released);
            }
            (State::Raising { .. }, PlaneAnswer::NotCommitted { .. }) => self.ask_at = now,
            (State::Owning(of), PlaneAnswer::NotCommitted { found })
            | (State::Releasing(of), PlaneAnswer::NotCommitted { found }) => {
                self.state = State::Owning(of);
                self.replaced(found.first().and_then(Option::as_ref));
            }
            (state, _) => {
                self.state = state;
                self.unknown(now);
            }
        }
    }

    /// What came of the last ask is not known.
    fn unknown(&mut self, now: Instant) {
        self.ask_at = now + RETRY_NS;
        self.state = match std::mem::replace(&mut self.state, State::Looking) {
            // A release that did not happen is found by the next renewal, one that did, too.
            State::Raising { .. } => State::Looking,
            State::Releasing(of) => State::Owning(of),
            state => state,
        };
    }

    fn looked(&mut self, now: Instant, kept: Option<&Kept>) {
        let key = keys::owner(self.config.volume);
        let found = kept.map(|kept| OwnerRecord::decode(&key, &kept.value)).transpose();
        let last = match found {
            Ok(last) => last,
            Err(error) => return self.fail(OwnershipError::Record(error)),
        };
        let revision = kept.map_or(0, |kept| kept.revision);
        let last = match last {
            Some(last) if last.owner == self.config.owner => {
                // The commit whose answer did not come had happened.
                if last.released {
                    self.state = State::Ended;
                    return self.outputs.push_back(OwnershipOutput::Released);
                }
                let wait_ns = last.lease_ns;
                return self.own(now, last, revision, wait_ns);
            }
            last => last.unwrap_or(OwnerRecord { released: true, ..OwnerRecord::default() }),
        };
        let generation = Generation(last.generation.0 + 1);
        if generation.0 > u64::from(u32::MAX) {
            return self.fail(OwnershipError::GenerationsUsedUp);
        }
        let wait_ns = if last.released { 0 } else { last.lease_ns };
        let lease_ns = self.config.lease_ns.max(wait_ns);
        let record =
            OwnerRecord { generation, owner: self.config.owner, lease_ns, released: false };
        let put = Change::Put { value: record.encode(&key), key: key.clone(), lease: None };
        let checks = vec![Check { key, revision }];
        self.state = State::Raising { record, wait_ns };
        self.ask(now, PlaneAsk::Commit { checks, changes: vec![put] });
    }

    fn own(&mut self, now: Instant, record: OwnerRecord, revision: u64, wait_ns: u64) {
        let wait_ns = if Mutant::LeaseNotWaitedOut.is(self.mutant) { 0 } else { wait_ns };
        let waited_out_at = now + wait_ns + wait_ns / DRIFT;
        let generation = record.generation;
        self.state = State::Owning(Owning {
            record,
            revision,
            waited_out_at,
            lease_until: None,
            told: false,
        });
        self.ask_at = now;
        self.outputs.push_back(OwnershipOutput::Raised { generation, revision });
    }

    fn hold(&mut self, now: Instant) {
        let State::Owning(of) = &mut self.state else { return };
        if let Some(until) = of.lease_until.filter(|until| now >= of.waited_out_at && now < *until)
        {
            of.told = true;
            self.outputs.push_back(OwnershipOutput::Held { until });
        }
    }

    fn end_lease(&mut self, now: Instant) {
        if let State::Owning(of) | State::Releasing(of) = &mut self.state
            && of.lease_until.is_some_and(|until| now >= until)
        {
            of.lease_until = None;
            if std::mem::take(&mut of.told) {
                self.outputs.push_back(OwnershipOutput::LeaseEnded);
            }
        }
        if let State::Owning(of) = &self.state
            && !of.told
        {
            self.hold(now);
        }
    }

    /// The record at the owner's key is not the one that we put there.
    fn replaced(&mut self, kept: Option<&Kept>) {
        let key = keys::owner(self.config.volume);
        match kept.map(|kept| OwnerRecord::decode(&key, &kept.value)) {
            // Released by a commit of ours whose answer did not come.
            Some(Ok(found)) if found.owner == self.config.owner && found.released => {
                self.state = State::Ended;
                self.outputs.push_back(OwnershipOutput::Released);
            }
            Some(Ok(found)) => self.lose(found.generation),
            Some(Err(error)) => self.fail(OwnershipError::Record(error)),
            // A plane that was wiped: whoever opens next begins at the first generation, and is refused by nodes.
            None => self.lose(Generation(0)),
        }
    }

    fn release(&mut self, now: Instant) {
        let State::Owning(of) = &self.state else { return };
        if now < of.waited_out_at {
            // An older owner may still read, and whoever comes next must wait for it: so the record stays.
            self.state = State::Ended;
            return self.outputs.push_back(OwnershipOutput::Released);
        }
        let of = of.clone();
        let key = keys::owner(self.config.volume);
        let record = OwnerRecord { released: true, ..of.record.clone() };
        let put = Change::Put { value: record.encode(&key), key: key.clone(), lease: None };
        let checks = vec![Check { key, revision: of.revision }];
        self.state = State::Releasing(of);
        self.ask(now, PlaneAsk::Commit { checks, changes: vec![put] });
    }

    fn lose(&mut self, by: Generation) {
        if !matches!(self.state, State::Ended) {
            self.state = State::Ended;
            self.outputs.push_back(OwnershipOutput::Lost { by });
        }
    }

    fn fail(&mut self, error: OwnershipError) {
        self.state = State::Ended;
        self.outputs.push_back(OwnershipOutput::Failed(error));
    }
}

/// So often the plane is asked within a lease.
const RENEWALS_PER_LEASE: u64 = 3;
/// Clocks of two machines differ in speed by less than one part in so many: far more than real ones do.
const DRIFT: u64 = 8;
/// After an ask that came to nothing.
const RETRY_NS: u64 = 100 * MILLISECOND;

#[cfg(test)]
mod tests;
