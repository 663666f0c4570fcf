//! One controller at a time, and its weights.
//!
//! Whoever puts its name at the controller's key, where there is none, under a lease of the plane, is the
//! controller. It publishes weights under the same lease, each commit checking that the key is still its own: so
//! weights go when the controller does, and never come from two. Weights say, besides, how long whoever reads
//! them may use them, by its own clock. Nothing rests on a controller: without one, clients do what is safe.

use super::contract::{
    Change, Check, LeaseId, Part, PlaneAnswer, PlaneAsk, PlaneAskId, VALUE_BYTES_MAX,
};
use super::keys;
use super::values::{ControllerRecord, NodeWeight, Value, WeightsRecord};
use flash::Instant;
use std::collections::VecDeque;

/// A candidate, and perhaps the controller.
#[derive(Clone, Debug)]
pub struct Election {
    me: u128,
    address: String,
    ttl_ns: u64,
    state: State,
    in_flight: Option<(PlaneAskId, Instant, Asked)>,
    /// When to ask again, while nothing is in flight.
    ask_at: Instant,
    asks: u64,
    published: u64,
    /// The newest weights that were not put yet.
    weights: Option<(u64, Vec<NodeWeight>)>,
    outputs: VecDeque<ElectionOutput>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Without a lease.
    Idle,
    /// With a lease that was last kept alive by an ask of this time, and perhaps without the key.
    Candidate { lease: LeaseId, kept: Instant },
    /// It is the controller, for sure until then.
    Leading { lease: LeaseId, revision: u64, until: Instant },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    Lease,
    Claim,
    Keep,
    Publish,
}

/// What it has to say.
#[derive(Clone, Debug, PartialEq)]
pub enum ElectionOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// This one is the controller.
    Elected,
    /// It is no more.
    Deposed,
    /// What was last published is in the plane.
    Published,
}

impl Election {
    /// A candidate; `me` is drawn by chance, `address` is where it listens for reports. Its lease lasts `ttl_ns`
    /// beyond its last sign of life.
    pub fn new(now: Instant, me: u128, address: &str, ttl_ns: u64) -> Self {
        assert!(ttl_ns >= KEEPS_PER_LEASE, "a lease has some time");
        let mut election = Self {
            me,
            address: address.to_owned(),
            ttl_ns,
            state: State::Idle,
            in_flight: None,
            ask_at: now,
            asks: 0,
            published: 0,
            weights: None,
            outputs: VecDeque::new(),
        };
        election.go_on(now);
        election
    }

    /// Has the controller publish weights, which are good for `valid_ns`; they take the place of those that
    /// wait. `false`: this one is not the controller, or there are too many.
    pub fn publish(&mut self, now: Instant, valid_ns: u64, weights: Vec<NodeWeight>) -> bool {
        if !self.is_leading(now) || weights.len() > WEIGHTS_MAX {
            return false;
        }
        self.weights = Some((valid_ns, weights));
        self.go_on(now);
        true
    }

    /// The plane answered; answers for others are no matter.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        let Some((_, sent, asked)) = self.in_flight.take_if(|(of, ..)| *of == id) else { return };
        match (self.state, asked, answer) {
            (State::Idle, Asked::Lease, &PlaneAnswer::Lease { lease, .. }) => {
                self.state = State::Candidate { lease, kept: sent };
                self.ask_at = now;
            }
            (State::Candidate { lease, .. }, Asked::Keep, PlaneAnswer::Lease { .. }) => {
                self.state = State::Candidate { lease, kept: sent };
                self.ask_at = now;
            }
            (
                State::Candidate { lease, kept },
                Asked::Claim,
                &PlaneAnswer::Committed { revision },
            ) => {
                self.lead(now, lease, revision, kept);
            }
            (
                State::Candidate { lease, kept },
                Asked::Claim,
                PlaneAnswer::NotCommitted { found },
            ) => {
                // Ours, by a commit whose answer did not come.
                let ours = self.record(lease).encode(keys::CONTROLLER);
                if let Some(Some(found)) = found.first()
                    && found.value == ours
                {
                    self.lead(now, lease, found.revision, kept);
                }
            }
            (State::Leading { lease, revision, .. }, Asked::Keep, PlaneAnswer::Lease { .. }) => {
                self.state = State::Leading { lease, revision, until: sent + self.ttl_ns };
            }
            (_, Asked::Publish, PlaneAnswer::Committed { .. }) => {
                self.outputs.push_back(ElectionOutput::Published);
            }
            (_, Asked::Publish, PlaneAnswer::NotCommitted { .. }) => self.depose(),
            (_, _, PlaneAnswer::NoLease) => self.depose(),
            _ => {}
        }
        self.elapsed(now);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        if self.in_flight.is_some_and(|(_, sent, _)| now >= sent + self.ttl_ns / KEEPS_PER_LEASE) {
            self.in_flight = None;
        }
        if let State::Leading { until, .. } = self.state
            && now >= until
        {
            self.depose();
        }
        self.go_on(now);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<ElectionOutput> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self) -> Option<Instant> {
        let late = self.in_flight.map(|(_, sent, _)| sent + self.ttl_ns / KEEPS_PER_LEASE);
        let ask = late.unwrap_or(self.ask_at);
        match self.state {
            State::Leading { until, .. } => Some(ask.min(until)),
            _ => Some(ask),
        }
    }

    /// Whether this one is the controller, for sure.
    pub fn is_leading(&self, now: Instant) -> bool {
        matches!(self.state, State::Leading { until, .. } if now < until)
    }

    fn go_on(&mut self, now: Instant) {
        if self.in_flight.is_some() {
            return;
        }
        if let State::Leading { lease, revision, .. } = self.state
            && let Some((valid_ns, nodes)) = self.weights.take()
        {
            self.published += 1;
            let record = WeightsRecord { sequence: self.published, valid_ns, nodes };
            let checks = vec![Check { key: keys::CONTROLLER.to_owned(), revision }];
            let changes = vec![put(keys::WEIGHTS, record.encode(keys::WEIGHTS), lease)];
            return self.ask(now, PlaneAsk::Commit { checks, changes }, Asked::Publish);
        }
        if now < self.ask_at {
            return;
        }
        self.ask_at = now + self.ttl_ns / KEEPS_PER_LEASE;
        match self.state {
            State::Idle => self.ask(now, PlaneAsk::Grant { ttl_ns: self.ttl_ns }, Asked::Lease),
            State::Leading { lease, .. } => self.ask(now, PlaneAsk::Keep { lease }, Asked::Keep),
            State::Candidate { lease, kept } if now >= kept + self.ttl_ns / KEEPS_PER_LEASE => {
                self.ask(now, PlaneAsk::Keep { lease }, Asked::Keep);
            }
            State::Candidate { lease, .. } => {
                let value = self.record(lease).encode(keys::CONTROLLER);
                let changes = vec![put(keys::CONTROLLER, value, lease)];
                let checks = vec![Check { key: keys::CONTROLLER.to_owned(), revision: 0 }];
                self.ask(now, PlaneAsk::Commit { checks, changes }, Asked::Claim);
            }
        }
    }

    fn ask(&mut self, now: Instant, ask: PlaneAsk, asked: Asked) {
        let id = PlaneAskId::of_part(Part::Election, self.asks);
        self.asks += 1;
        self.in_flight = Some((id, now, asked));
        self.outputs.push_back(ElectionOutput::Ask { id, ask });
    }

    fn record(&self, lease: LeaseId) -> ControllerRecord {
        // With its lease, so that what an earlier lease of this candidate left is not taken for this one's.
        ControllerRecord { controller: self.me, lease: lease.0, address: self.address.clone() }
    }

    fn lead(&mut self, now: Instant, lease: LeaseId, revision: u64, kept: Instant) {
        self.state = State::Leading { lease, revision, until: kept + self.ttl_ns };
        self.ask_at = now;
        self.outputs.push_back(ElectionOutput::Elected);
    }

    fn depose(&mut self) {
        if matches!(self.state, State::Leading { .. }) {
            self.outputs.push_back(ElectionOutput::Deposed);
        }
        self.state = State::Idle;
        self.weights = None;
    }
}

fn put(key: &str, value: Vec<u8>, lease: LeaseId) -> Change {
    Change::Put { key: key.to_owned(), value, lease: Some(lease) }
}

/// So often a lease is kept alive within its time; an answer that is later is not waited for.
const KEEPS_PER_LEASE: u64 = 3;
/// Of one record.
const WEIGHTS_MAX: usize = (VALUE_BYTES_MAX - 64) / 21;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::contract::PlaneAnswer::Value as Found;
    use crate::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
    use crate::words::{NodeId, PoolId};
    use flash::SECOND;

    fn answer(at: Instant, plane: &mut Embedded, id: PlaneAskId, ask: PlaneAsk) -> PlaneAnswer {
        plane.handle(at, PlaneInput::Ask { client: 1, id, ask });
        let mut answer = None;
        while let Some(output) = plane.poll() {
            match output {
                PlaneOutput::Answer(told) => answer = Some(told.answer),
                PlaneOutput::Store(
                    Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                ) => {
                    plane.handle(at, PlaneInput::Stored { sequence });
                }
            }
        }
        answer.expect("answered")
    }

    /// Lets time pass for all who can ask, in turn; returns who said what.
    fn pass(
        now: &mut Instant,
        until: Instant,
        plane: &mut Embedded,
        all: &mut [&mut Election],
    ) -> Vec<(usize, ElectionOutput)> {
        let mut said = Vec::new();
        loop {
            for (of, election) in all.iter_mut().enumerate() {
                while let Some(output) = election.poll() {
                    let ElectionOutput::Ask { id, ask } = output else {
                        said.push((of, output));
                        continue;
                    };
                    let answer = answer(*now, plane, id, ask);
                    election.answered(*now, id, &answer);
                }
            }
            let leading = all.iter().filter(|election| election.is_leading(*now)).count();
            assert!(leading <= 1, "{leading} controllers at {now:?}");
            let next = all.iter().filter_map(|election| election.deadline()).min();
            let Some(next) = next.filter(|next| *next <= until) else { return said };
            *now = next.max(*now);
            all.iter_mut().for_each(|election| election.elapsed(*now));
        }
    }

    #[test]
    fn one_of_two_is_elected_and_the_other_one_when_it_is_gone_with_its_weights() {
        let (mut plane, mut now) = (Embedded::create(PoolId(1), 1), Instant(0));
        let mut first = Election::new(now, 1, "a", 3 * SECOND);
        let mut second = Election::new(now, 2, "b", 3 * SECOND);
        let said = pass(&mut now, Instant(9 * SECOND), &mut plane, &mut [&mut first, &mut second]);
        assert_eq!(said, [(0, ElectionOutput::Elected)]);
        let weight = NodeWeight { node: NodeId(1), read: 1.0, write: 0.5, mode: 0 };
        assert!(
            first.publish(now, SECOND, vec![weight]) && !second.publish(now, SECOND, vec![weight])
        );
        let said = pass(&mut now, Instant(10 * SECOND), &mut plane, &mut [&mut first, &mut second]);
        assert_eq!(said, [(0, ElectionOutput::Published)]);
        let get = || PlaneAsk::Get { key: keys::WEIGHTS.to_owned() };
        let Found { kept: Some(kept), .. } = answer(now, &mut plane, PlaneAskId(0), get()) else {
            panic!("the weights are there");
        };
        let found = WeightsRecord::decode(keys::WEIGHTS, &kept.value).expect("sound");
        assert_eq!((found.sequence, found.nodes), (1, vec![weight]));
        // The first one stands still.
        let said = pass(&mut now, Instant(20 * SECOND), &mut plane, &mut [&mut second]);
        assert_eq!(said, [(0, ElectionOutput::Elected)]);
        let answer = answer(now, &mut plane, PlaneAskId(0), get());
        assert!(matches!(answer, Found { kept: None, .. }), "weights go with their controller");
        assert!(!first.is_leading(now));
        let said = pass(&mut now, Instant(22 * SECOND), &mut plane, &mut [&mut first]);
        assert_eq!(said, [(0, ElectionOutput::Deposed)]);
    }
}
