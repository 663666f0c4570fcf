//! How a node learns that a volume is deleted of which it has something: it asks the plane, again and again, for the
//! record of each such volume. One that was away when that happened asks when it is back.
//!
//! That there is no record proves nothing by itself: a plane that was restored from a copy does not know of later
//! volumes. What proves it is an owner's record without a record of the volume, in one commit that changes nothing: the
//! first is made when a volume was made already, and outlasts it, so that its number is never used again. The
//! proof names the generation that the volume was shut with and the last life that was registered of any band; what
//! a node has of later ones is not what was deleted, and it keeps that.

use super::contract::{Check, Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId};
use super::keys;
use super::mutant::Mutant;
use super::values::{OwnerRecord, TailRecord, Value};
use crate::words::{Generation, VolumeId};
use flash::{Instant, SECOND};
use std::collections::VecDeque;

/// A volume is deleted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deleted {
    /// Which.
    pub volume: VolumeId,
    /// That it was shut with.
    pub generation: Generation,
    /// No later life of any band was registered.
    pub life: u64,
}

/// What it has to say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DeletionsOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// A volume is deleted.
    Deleted(Deleted),
}

/// Asks for volumes, one after the other.
#[derive(Clone, Debug)]
pub struct Deletions {
    /// Still to be asked for in this round.
    left: VecDeque<VolumeId>,
    step: Step,
    in_flight: Option<(PlaneAskId, Instant)>,
    round_at: Instant,
    asks: u64,
    outputs: VecDeque<DeletionsOutput>,
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Idle,
    /// Is there a record of it?
    Record(VolumeId),
    /// There is none: was there one ever?
    Owner(VolumeId),
    /// There was: how far did its bands come? With the revision of the owner's record.
    Tail(Deleted, u64),
    /// Is all of that true at once?
    Together(Deleted),
}

impl Deletions {
    /// Asks for nothing yet.
    pub fn new(now: Instant) -> Self {
        Self {
            left: VecDeque::new(),
            step: Step::Idle,
            in_flight: None,
            round_at: now,
            asks: 0,
            outputs: VecDeque::new(),
            mutant: None,
        }
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Something is here of these volumes. It is asked for them, if that is due.
    pub fn hold(&mut self, now: Instant, volumes: impl IntoIterator<Item = VolumeId>) {
        if now >= self.round_at && self.left.is_empty() && self.in_flight.is_none() {
            self.left.extend(volumes);
            self.round_at = now + ROUND_NS;
            self.next(now);
        }
    }

    /// The plane answered; answers for others are no matter.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        if self.in_flight.take_if(|(of, _)| *of == id).is_none() {
            return;
        }
        match (std::mem::replace(&mut self.step, Step::Idle), answer) {
            (Step::Record(volume), PlaneAnswer::Value { kept, .. }) => {
                if kept.is_some() && !Mutant::LivingForgotten.is(self.mutant) {
                    return self.next(now);
                }
                self.ask(now, Step::Owner(volume), PlaneAsk::Get { key: keys::owner(volume) });
            }
            (Step::Owner(volume), PlaneAnswer::Value { kept: Some(kept), .. }) => {
                let Some(owner) = decode::<OwnerRecord>(&keys::owner(volume), kept) else {
                    return self.next(now);
                };
                let deleted = Deleted { volume, generation: owner.generation, life: 0 };
                let ask = PlaneAsk::Get { key: keys::tail(volume) };
                self.ask(now, Step::Tail(deleted, kept.revision), ask);
            }
            (Step::Tail(deleted, owner), PlaneAnswer::Value { kept, .. }) => {
                self.together(now, deleted, owner, kept.as_ref());
            }
            (Step::Together(deleted), PlaneAnswer::Committed { .. }) => {
                self.outputs.push_back(DeletionsOutput::Deleted(deleted));
                self.next(now);
            }
            _ => self.next(now),
        }
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        if self.in_flight.take_if(|(_, until)| now >= *until).is_some() {
            // The plane is away, or slow: all of it again in the next round.
            self.left.clear();
            self.step = Step::Idle;
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<DeletionsOutput> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self) -> Option<Instant> {
        self.in_flight.map(|(_, until)| until)
    }

    fn together(&mut self, now: Instant, deleted: Deleted, owner: u64, tail: Option<&Kept>) {
        let volume = deleted.volume;
        let tail_key = keys::tail(volume);
        let (life, tail) = match tail {
            None => (0, 0),
            Some(kept) => match decode::<TailRecord>(&tail_key, kept) {
                Some(record) => (record.life, kept.revision),
                None => return self.next(now),
            },
        };
        let mut checks = vec![
            Check { key: keys::owner(volume), revision: owner },
            Check { key: tail_key, revision: tail },
        ];
        if !Mutant::LivingForgotten.is(self.mutant) {
            checks.push(Check { key: keys::volume(volume), revision: 0 });
        }
        let ask = PlaneAsk::Commit { checks, changes: Vec::new() };
        self.ask(now, Step::Together(Deleted { life, ..deleted }), ask);
    }

    fn next(&mut self, now: Instant) {
        self.step = Step::Idle;
        if let Some(volume) = self.left.pop_front() {
            self.ask(now, Step::Record(volume), PlaneAsk::Get { key: keys::volume(volume) });
        }
    }

    fn ask(&mut self, now: Instant, step: Step, ask: PlaneAsk) {
        let id = PlaneAskId::of_part(Part::Deletions, self.asks);
        self.asks += 1;
        (self.step, self.in_flight) = (step, Some((id, now + ANSWER_NS)));
        self.outputs.push_back(DeletionsOutput::Ask { id, ask });
    }
}

/// What does not decode proves nothing.
fn decode<V: Value>(key: &str, kept: &Kept) -> Option<V> {
    V::decode(key, &kept.value).ok()
}

/// A round of all volumes begins so long after the last one: an ask each, which is little beside what clients ask.
const ROUND_NS: u64 = 10 * SECOND;
/// An answer that takes longer does not come.
const ANSWER_NS: u64 = 5 * SECOND;

#[cfg(test)]
mod tests {
    use super::super::contract::Change;
    use super::super::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
    use super::super::values::VolumeRecord;
    use super::*;
    use crate::words::PoolId;

    const VOLUME: VolumeId = VolumeId(7);

    /// Lets nobody wait for what is stored.
    fn ask(plane: &mut Embedded, id: PlaneAskId, ask: PlaneAsk) -> Vec<(PlaneAskId, PlaneAnswer)> {
        plane.handle(Instant(0), PlaneInput::Ask { client: 1, id, ask });
        let mut told = Vec::new();
        while let Some(output) = plane.poll() {
            match output {
                PlaneOutput::Answer(it) => told.push((it.id, it.answer)),
                PlaneOutput::Store(
                    Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                ) => plane.handle(Instant(0), PlaneInput::Stored { sequence }),
            }
        }
        told
    }

    fn change(plane: &mut Embedded, change: Change) {
        let commit = PlaneAsk::Commit { checks: Vec::new(), changes: vec![change] };
        ask(plane, PlaneAskId(0), commit);
    }

    fn put<V: Value>(plane: &mut Embedded, key: String, value: &V) {
        change(plane, Change::Put { value: value.encode(&key), key, lease: None });
    }

    /// A plane that knows of a volume which was opened four times, and is there.
    fn living() -> Embedded {
        let mut plane = Embedded::create(PoolId(1), 1);
        put(
            &mut plane,
            keys::volume(VOLUME),
            &VolumeRecord { volume: VOLUME, ..VolumeRecord::default() },
        );
        let generation = Generation(5);
        let owner = OwnerRecord { generation, released: true, ..OwnerRecord::default() };
        put(&mut plane, keys::owner(VOLUME), &owner);
        put(&mut plane, keys::tail(VOLUME), &TailRecord { generation, sequence: 9, life: 4 << 32 });
        plane
    }

    /// What a round finds; `between` happens before each answer is heard.
    fn round(
        plane: &mut Embedded,
        mutant: Option<Mutant>,
        mut between: impl FnMut(&mut Embedded, &PlaneAsk),
    ) -> Vec<Deleted> {
        let (mut deletions, mut found) = (Deletions::new(Instant(0)), Vec::new());
        if let Some(mutant) = mutant {
            deletions.plant(mutant);
        }
        deletions.hold(Instant(0), [VolumeId(3), VOLUME, VolumeId(9)]);
        while let Some(output) = deletions.poll() {
            match output {
                DeletionsOutput::Ask { id, ask: wanted } => {
                    between(plane, &wanted);
                    for (id, answer) in ask(plane, id, wanted) {
                        deletions.answered(Instant(0), id, &answer);
                    }
                }
                DeletionsOutput::Deleted(deleted) => found.push(deleted),
            }
        }
        assert_eq!(deletions.deadline(), None, "it waits for nothing");
        found
    }

    #[test]
    fn a_volume_is_deleted_when_its_owner_is_known_and_its_record_is_gone() {
        let mut plane = living();
        assert_eq!(round(&mut plane, None, |_, _| ()), []);
        change(&mut plane, Change::Delete { key: keys::volume(VOLUME) });
        let deleted = Deleted { volume: VOLUME, generation: Generation(5), life: 4 << 32 };
        assert_eq!(round(&mut plane, None, |_, _| ()), [deleted]);
    }

    #[test]
    fn a_plane_that_never_heard_of_a_volume_or_cannot_be_read_proves_nothing() {
        assert_eq!(round(&mut Embedded::create(PoolId(1), 1), None, |_, _| ()), []);
        let mut plane = living();
        change(&mut plane, Change::Delete { key: keys::volume(VOLUME) });
        let (key, value) = (keys::owner(VOLUME), vec![1, 2, 3]);
        change(&mut plane, Change::Put { key, value, lease: None });
        assert_eq!(round(&mut plane, None, |_, _| ()), []);
    }

    #[test]
    fn what_changes_while_it_is_asked_is_not_taken_for_one_state() {
        for at in [keys::volume(VOLUME), keys::owner(VOLUME), keys::tail(VOLUME)] {
            let mut plane = living();
            change(&mut plane, Change::Delete { key: keys::volume(VOLUME) });
            let found = round(&mut plane, None, |plane, ask| {
                if matches!(ask, PlaneAsk::Commit { .. }) {
                    change(plane, Change::Put { key: at.clone(), value: vec![1], lease: None });
                }
            });
            assert_eq!(found, [], "{at}");
        }
    }

    #[test]
    fn a_plane_that_does_not_answer_is_asked_again_in_the_next_round() {
        let mut deletions = Deletions::new(Instant(0));
        deletions.hold(Instant(0), [VOLUME]);
        let due = deletions.deadline().expect("it waits for an answer");
        while deletions.poll().is_some() {}
        deletions.elapsed(due);
        deletions.hold(due, [VOLUME]);
        assert_eq!(deletions.poll(), None, "not before it is time");
        deletions.hold(Instant(ROUND_NS), [VOLUME]);
        assert!(matches!(deletions.poll(), Some(DeletionsOutput::Ask { .. })));
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_planted_bug_that_takes_a_living_volume_for_deleted_is_seen() {
        assert_ne!(round(&mut living(), Some(Mutant::LivingForgotten), |_, _| ()), []);
    }
}
