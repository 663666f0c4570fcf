//! Keeping up with what keys of the plane hold: all of them are read, then watched from what was read first. A watch
//! that the plane forgets is begun anew with a read, so whoever follows sees the state, not every step to it.

use super::contract::{Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId, RANGE_MAX};
use super::keys;
use super::values::{NodeWeight, Value, ValueError, WeightsRecord};
use crate::controller::weights::{NodeWeights, Weights};
use crate::words::Mode;
use flash::{Instant, MILLISECOND, SECOND};
use std::collections::VecDeque;

/// Follows the keys of a range.
#[derive(Clone, Debug)]
pub struct Follow {
    part: Part,
    from: String,
    to: String,
    state: State,
    /// What is asked, and when that is given up; nothing while a watch stands.
    in_flight: Option<(PlaneAskId, Instant)>,
    ask_at: Instant,
    asks: u64,
    outputs: VecDeque<FollowOutput>,
}

#[derive(Clone, Debug)]
enum State {
    /// Behind what was found, and since when it may have changed.
    Reading { next: String, found: Vec<(String, Kept)>, since: Option<u64> },
    /// A watch was asked for.
    Beginning { since: u64 },
    /// It stands.
    Watching { id: PlaneAskId },
}

/// What it has to say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FollowOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// All there is, in the order of keys: forget what was told before.
    All(Vec<(String, Kept)>),
    /// These keys hold something else, or are gone.
    Changed(Vec<(String, Option<Kept>)>),
}

impl Follow {
    /// Begins to read the keys `from..to`. `part` is whose numbers its asks have.
    pub fn new(now: Instant, part: Part, (from, to): (String, String)) -> Self {
        let state = State::Reading { next: from.clone(), found: Vec::new(), since: None };
        let outputs = VecDeque::new();
        let mut follow =
            Self { part, from, to, state, in_flight: None, ask_at: now, asks: 0, outputs };
        follow.go_on(now);
        follow
    }

    /// The plane answered; answers for others are no matter.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        if let State::Watching { id: watch } = self.state {
            if watch == id {
                self.told(now, answer);
            }
            return self.go_on(now);
        }
        if self.in_flight.take_if(|(of, _)| *of == id).is_none() {
            return;
        }
        self.ask_at = now;
        let state = std::mem::replace(&mut self.state, State::Beginning { since: 0 });
        match (state, answer) {
            (
                State::Reading { mut found, since, .. },
                PlaneAnswer::Values { kept, more, revision },
            ) => {
                // Keys that change while the rest is read are told again by the watch.
                let since = since.unwrap_or(*revision);
                found.extend(kept.iter().cloned());
                match found.last() {
                    Some((last, _)) if *more => {
                        let next = format!("{last}\0");
                        self.state = State::Reading { next, found, since: Some(since) };
                    }
                    _ => {
                        self.outputs.push_back(FollowOutput::All(found));
                        self.state = State::Beginning { since };
                    }
                }
            }
            (State::Beginning { .. }, PlaneAnswer::Watching) => {
                self.state = State::Watching { id };
            }
            _ => self.read_anew(now),
        }
        self.go_on(now);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        if let Some((id, _)) = self.in_flight.take_if(|(_, until)| now >= *until) {
            if let State::Beginning { .. } = self.state {
                // It may stand all the same, and nobody would listen.
                let ask = PlaneAsk::Unwatch { watch: id };
                let id = self.number();
                self.outputs.push_back(FollowOutput::Ask { id, ask });
            }
            self.read_anew(now);
        }
        self.go_on(now);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<FollowOutput> {
        self.outputs.pop_front()
    }

    /// When to look at the time; `None` while a watch stands.
    pub fn deadline(&self) -> Option<Instant> {
        match (self.in_flight, &self.state) {
            (Some((_, until)), _) => Some(until),
            (None, State::Watching { .. }) => None,
            (None, _) => Some(self.ask_at),
        }
    }

    fn told(&mut self, now: Instant, answer: &PlaneAnswer) {
        match answer {
            PlaneAnswer::Changed { changes, .. } => {
                self.outputs.push_back(FollowOutput::Changed(changes.clone()));
            }
            PlaneAnswer::Watching => {}
            _ => self.read_anew(now),
        }
    }

    fn read_anew(&mut self, now: Instant) {
        self.state = State::Reading { next: self.from.clone(), found: Vec::new(), since: None };
        self.ask_at = now + RETRY_NS;
    }

    fn go_on(&mut self, now: Instant) {
        if self.in_flight.is_some() || now < self.ask_at {
            return;
        }
        let to = self.to.clone();
        let ask = match &self.state {
            State::Reading { next, .. } => {
                PlaneAsk::Range { from: next.clone(), to, limit: RANGE_MAX }
            }
            State::Beginning { since } => {
                PlaneAsk::Watch { from: self.from.clone(), to, since: *since }
            }
            State::Watching { .. } => return,
        };
        let id = self.number();
        self.in_flight = Some((id, now + ANSWER_NS));
        self.outputs.push_back(FollowOutput::Ask { id, ask });
    }

    fn number(&mut self) -> PlaneAskId {
        self.asks += 1;
        PlaneAskId::of_part(self.part, self.asks - 1)
    }
}

/// An answer that takes longer does not come.
const ANSWER_NS: u64 = 5 * SECOND;
/// After an ask that came to nothing.
const RETRY_NS: u64 = 100 * MILLISECOND;

/// Follows what the controller wants of clients and nodes.
#[derive(Clone, Debug)]
pub struct WeightsFeed {
    follow: Follow,
    /// Of the weights that were told last.
    revision: u64,
}

/// What a feed has to say.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// New weights, for [`crate::controller::weights::InForce::take`].
    Weights(Weights),
    /// What stands there is none.
    Unsound(ValueError),
}

impl WeightsFeed {
    /// Begins to read.
    pub fn new(now: Instant) -> Self {
        let range = (keys::WEIGHTS.to_owned(), format!("{}\0", keys::WEIGHTS));
        Self { follow: Follow::new(now, Part::Weights, range), revision: 0 }
    }

    /// The plane answered; answers for others are no matter.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        self.follow.answered(now, id, answer);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        self.follow.elapsed(now);
    }

    /// When to look at the time.
    pub fn deadline(&self) -> Option<Instant> {
        self.follow.deadline()
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<FeedOutput> {
        while let Some(output) = self.follow.poll() {
            let kept = match output {
                FollowOutput::Ask { id, ask } => return Some(FeedOutput::Ask { id, ask }),
                FollowOutput::All(all) => all.into_iter().next_back().map(|(_, kept)| kept),
                FollowOutput::Changed(changes) => {
                    changes.into_iter().next_back().and_then(|(_, kept)| kept)
                }
            };
            // Weights that were told before are not told again: else they would never expire where the
            // connection to the plane comes and goes.
            if let Some(kept) = kept.filter(|kept| kept.revision > self.revision) {
                self.revision = kept.revision;
                let record = WeightsRecord::decode(keys::WEIGHTS, &kept.value);
                return Some(match record {
                    Ok(record) => FeedOutput::Weights(weights(kept.revision, &record)),
                    Err(error) => FeedOutput::Unsound(error),
                });
            }
        }
        None
    }
}

/// As they are kept: the revision of the plane stands for the election, as it never falls.
fn weights(revision: u64, record: &WeightsRecord) -> Weights {
    let of = |it: &NodeWeight| NodeWeights {
        node: it.node,
        mode: Mode::of_number(it.mode),
        read: it.read,
        write: it.write,
    };
    let mut nodes: Vec<NodeWeights> = record.nodes.iter().map(of).collect();
    nodes.sort_by_key(|it| it.node);
    Weights { turn: (revision, record.sequence), valid_ns: record.valid_ns, nodes }
}

/// What a controller publishes, by [`super::election::Election::publish`].
pub fn published(weights: &Weights) -> Vec<NodeWeight> {
    let of = |it: &NodeWeights| NodeWeight {
        node: it.node,
        read: it.read,
        write: it.write,
        mode: it.mode.number(),
    };
    weights.nodes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::contract::{Change, PlaneRefusal};
    use crate::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
    use crate::words::{NodeId, PoolId};
    use std::collections::BTreeMap;

    struct Plane {
        plane: Embedded,
        told: Vec<(PlaneAskId, PlaneAnswer)>,
    }

    impl Plane {
        fn new() -> Self {
            Self { plane: Embedded::create(PoolId(1), 1), told: Vec::new() }
        }

        fn ask(&mut self, client: u64, id: PlaneAskId, ask: PlaneAsk) {
            self.plane.handle(Instant(0), PlaneInput::Ask { client, id, ask });
            while let Some(output) = self.plane.poll() {
                match output {
                    PlaneOutput::Answer(told) if told.client == 1 => {
                        self.told.push((told.id, told.answer));
                    }
                    PlaneOutput::Answer(_) => {}
                    PlaneOutput::Store(
                        Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                    ) => self.plane.handle(Instant(0), PlaneInput::Stored { sequence }),
                }
            }
        }

        fn change(&mut self, change: Change) {
            let ask = PlaneAsk::Commit { checks: Vec::new(), changes: vec![change] };
            self.ask(2, PlaneAskId(0), ask);
        }

        fn put(&mut self, key: &str, value: &[u8]) {
            let key = key.to_owned();
            self.change(Change::Put { key, value: value.to_vec(), lease: None });
        }
    }

    /// Lets both talk until neither has more to say, and keeps what the keys hold.
    fn talk(
        now: Instant,
        follow: &mut Follow,
        plane: &mut Plane,
        seen: &mut BTreeMap<String, Vec<u8>>,
    ) {
        loop {
            while let Some(output) = follow.poll() {
                match output {
                    FollowOutput::Ask { id, ask } => plane.ask(1, id, ask),
                    FollowOutput::All(all) => {
                        *seen = all.into_iter().map(|(key, kept)| (key, kept.value)).collect();
                    }
                    FollowOutput::Changed(changes) => {
                        for (key, kept) in changes {
                            match kept {
                                Some(kept) => drop(seen.insert(key, kept.value)),
                                None => drop(seen.remove(&key)),
                            }
                        }
                    }
                }
            }
            if plane.told.is_empty() {
                return;
            }
            for (id, answer) in std::mem::take(&mut plane.told) {
                follow.answered(now, id, &answer);
            }
        }
    }

    #[test]
    fn what_is_there_and_what_changes_is_told_also_beyond_one_answer() {
        let (mut plane, mut seen) = (Plane::new(), BTreeMap::new());
        for at in 0..RANGE_MAX + 10 {
            plane.put(&format!("node/{at:08x}"), b"1");
        }
        let mut follow = Follow::new(Instant(0), Part::Nodes, keys::nodes());
        talk(Instant(0), &mut follow, &mut plane, &mut seen);
        assert_eq!(seen.len(), RANGE_MAX as usize + 10);
        assert_eq!(follow.deadline(), None, "a watch stands");
        plane.put("node/00000003", b"2");
        plane.change(Change::Delete { key: "node/00000004".to_owned() });
        plane.put("other", b"2");
        talk(Instant(0), &mut follow, &mut plane, &mut seen);
        assert_eq!(seen.get("node/00000003"), Some(&b"2".to_vec()));
        assert_eq!(seen.len(), RANGE_MAX as usize + 9);
    }

    #[test]
    fn a_watch_that_is_forgotten_and_an_answer_that_does_not_come_are_made_up_for() {
        let (mut plane, mut seen) = (Plane::new(), BTreeMap::new());
        plane.put("node/1", b"1");
        let mut now = Instant(0);
        let mut follow = Follow::new(now, Part::Nodes, keys::nodes());
        talk(now, &mut follow, &mut plane, &mut seen);
        // The connection broke, and what happened meanwhile was told to nobody.
        plane.plane.handle(now, PlaneInput::Gone { client: 1 });
        plane.put("node/2", b"2");
        let watch = PlaneAskId::of_part(Part::Nodes, 1);
        follow.answered(now, watch, &PlaneAnswer::Forgotten);
        assert_eq!(follow.poll(), None, "not at once: the plane may be gone");
        now = follow.deadline().expect("it tries again");
        follow.elapsed(now);
        let Some(FollowOutput::Ask { id, .. }) = follow.poll() else { panic!("it reads") };
        follow.answered(now, id, &PlaneAnswer::Refused(PlaneRefusal::Unavailable));
        now = follow.deadline().expect("it tries again");
        follow.elapsed(now);
        assert!(matches!(follow.poll(), Some(FollowOutput::Ask { .. })));
        // This one is not answered at all.
        now = follow.deadline().expect("it does not wait for ever");
        follow.elapsed(now);
        now = follow.deadline().expect("it tries again");
        follow.elapsed(now);
        talk(now, &mut follow, &mut plane, &mut seen);
        assert_eq!(seen.len(), 2, "{seen:?}");
    }

    #[test]
    fn weights_are_told_once_and_in_the_order_of_nodes() {
        let now = Instant(0);
        let mut plane = Plane::new();
        let weight = |node, mode| NodeWeight { node: NodeId(node), read: 0.5, write: 0.25, mode };
        let mut sequence = 0;
        let mut publish = |plane: &mut Plane, nodes: Vec<NodeWeight>| {
            sequence += 1;
            let record = WeightsRecord { sequence, valid_ns: 9, nodes };
            plane.put(keys::WEIGHTS, &record.encode(keys::WEIGHTS));
        };
        publish(&mut plane, vec![weight(7, 1), weight(2, 2)]);
        let mut feed = WeightsFeed::new(now);
        let talk = |feed: &mut WeightsFeed, plane: &mut Plane| {
            let mut said = Vec::new();
            loop {
                while let Some(output) = feed.poll() {
                    match output {
                        FeedOutput::Ask { id, ask } => plane.ask(1, id, ask),
                        other => said.push(other),
                    }
                }
                if plane.told.is_empty() {
                    return said;
                }
                for (id, answer) in std::mem::take(&mut plane.told) {
                    feed.answered(now, id, &answer);
                }
            }
        };
        let said = talk(&mut feed, &mut plane);
        let [FeedOutput::Weights(first)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((first.turn, first.valid_ns), ((1, 1), 9));
        let modes: Vec<_> = first.nodes.iter().map(|it| (it.node.0, it.mode)).collect();
        assert_eq!(modes, [(2, Mode::Writes), (7, Mode::Reads)]);
        assert_eq!(published(first)[1], weight(7, 1), "there and back");
        // The same weights, read anew, are no news.
        feed.answered(now, PlaneAskId::of_part(Part::Weights, 1), &PlaneAnswer::Forgotten);
        feed.elapsed(now + RETRY_NS);
        assert_eq!(talk(&mut feed, &mut plane), []);
        publish(&mut plane, vec![weight(1, 0)]);
        let said = talk(&mut feed, &mut plane);
        let [FeedOutput::Weights(second)] = &said[..] else { panic!("{said:?}") };
        assert!(second.turn > first.turn);
        plane.put(keys::WEIGHTS, b"nonsense");
        assert!(matches!(talk(&mut feed, &mut plane)[..], [FeedOutput::Unsound(_)]));
        plane.change(Change::Delete { key: keys::WEIGHTS.to_owned() });
        assert_eq!(talk(&mut feed, &mut plane), []);
    }
}
