//! A network in virtual time between the parts of a pool: what is sent arrives once and in order, or the
//! connection breaks and both ends hear of it, as with TCP.
//!
//! Invariants:
//! - What is sent on one connection arrives in the order it was sent, each after the delay of the network.
//! - After a break nothing of the old connection arrives; between the ends of a cut line nothing does, and
//!   what was sent before the cut and had not arrived is lost with the connection.
//! - Both ends of a connection that breaks, or is made again, are told, in the order of their names.

use flash::{Instant, Random, Slab};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Who sends and receives.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Peer(pub u32);

/// What every message goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// From one end to the other.
    pub delay_ns: u64,
    /// And up to so much longer, evenly.
    pub jitter_ns: u64,
    /// What a peer sends leaves it at this rate; 0 for at once.
    pub bytes_per_s: u64,
    /// After a cut, so long until the ends know.
    pub notice_ns: u64,
}

impl Default for Wire {
    /// Of a rack with 100 Gbit/s.
    fn default() -> Self {
        Self {
            delay_ns: 8_000,
            jitter_ns: 2_000,
            bytes_per_s: 12_500_000_000,
            notice_ns: 5_000_000,
        }
    }
}

/// What comes out of the network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Arrival<M> {
    /// This was sent.
    Message(M),
    /// The connection broke: what was sent and not answered may or may not have arrived.
    Broken,
    /// There is a connection again.
    Made,
}

/// Something that happens at a peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event<M> {
    /// Where.
    pub at: Peer,
    /// The other end.
    pub from: Peer,
    /// What.
    pub arrival: Arrival<M>,
}

/// See the head of this file.
pub struct Network<M> {
    wire: Wire,
    random: Random,
    /// By instant and number: where it is in `events`. They are large, and an order of small ones is quickly kept.
    coming: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// Each with the connection that it belongs to.
    events: Slab<(Event<M>, Option<u64>)>,
    numbers: u64,
    /// When the last message of a direction arrives.
    last: BTreeMap<(Peer, Peer), Instant>,
    /// When a peer has sent all that it was given.
    busy_until: BTreeMap<Peer, Instant>,
    cut: BTreeSet<(Peer, Peer)>,
    /// From then on the new connection of a pair is there.
    made_at: BTreeMap<(Peer, Peer), Instant>,
    /// How many connections a pair has had.
    epochs: BTreeMap<(Peer, Peer), u64>,
}

fn pair(one: Peer, other: Peer) -> (Peer, Peer) {
    (one.min(other), one.max(other))
}

impl<M> Network<M> {
    /// All are connected.
    pub fn new(wire: Wire, seed: u64) -> Self {
        Self {
            wire,
            random: Random::new(seed),
            coming: BinaryHeap::new(),
            events: Slab::default(),
            numbers: 0,
            last: BTreeMap::new(),
            busy_until: BTreeMap::new(),
            cut: BTreeSet::new(),
            made_at: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    fn put(&mut self, at: Instant, event: Event<M>, epoch: Option<u64>) {
        self.numbers += 1;
        let index = self.events.insert((event, epoch));
        self.coming.push(Reverse((at, self.numbers, index)));
    }

    fn epoch(&self, one: Peer, other: Peer) -> u64 {
        self.epochs.get(&pair(one, other)).copied().unwrap_or(0)
    }

    /// Sends `message` of so many bytes.
    pub fn send(&mut self, now: Instant, from: Peer, to: Peer, bytes: u64, message: M) {
        let made = self.made_at.get(&pair(from, to)).is_none_or(|&made| made <= now);
        if self.cut.contains(&pair(from, to)) || !made {
            return;
        }
        let free = self.busy_until.get(&from).copied().unwrap_or_default().max(now);
        let wire_ns = match self.wire.bytes_per_s {
            0 => 0,
            rate => bytes.saturating_mul(1_000_000_000) / rate,
        };
        self.busy_until.insert(from, free + wire_ns);
        let jitter = self.random.below(self.wire.jitter_ns + 1);
        let earliest = self.last.get(&(from, to)).copied().unwrap_or_default();
        let at = (free + wire_ns + self.wire.delay_ns + jitter).max(earliest);
        self.last.insert((from, to), at);
        let event = Event { at: to, from, arrival: Arrival::Message(message) };
        let epoch = self.epoch(from, to);
        self.put(at, event, Some(epoch));
    }

    /// Nothing passes between the two from now on.
    pub fn cut(&mut self, now: Instant, one: Peer, other: Peer) {
        if self.cut.insert(pair(one, other)) {
            self.tell(now + self.wire.notice_ns, one, other, || Arrival::Broken);
        }
    }

    /// The line is whole again, and a new connection is made.
    pub fn heal(&mut self, now: Instant, one: Peer, other: Peer) {
        if self.cut.remove(&pair(one, other)) {
            // Not before the ends know of the break.
            let at = now + self.wire.notice_ns + self.wire.delay_ns;
            self.make(at, one, other);
        }
    }

    /// The connection breaks and is made again: what was on its way is lost.
    pub fn reset(&mut self, now: Instant, one: Peer, other: Peer) {
        if !self.cut.contains(&pair(one, other)) {
            self.tell(now, one, other, || Arrival::Broken);
            self.make(now + self.wire.delay_ns, one, other);
        }
    }

    fn make(&mut self, at: Instant, one: Peer, other: Peer) {
        self.made_at.insert(pair(one, other), at);
        self.tell(at, one, other, || Arrival::Made);
    }

    fn tell(&mut self, at: Instant, one: Peer, other: Peer, what: impl Fn() -> Arrival<M>) {
        *self.epochs.entry(pair(one, other)).or_default() += 1;
        for (at_peer, from) in [(one.min(other), one.max(other)), (one.max(other), one.min(other))]
        {
            self.put(at, Event { at: at_peer, from, arrival: what() }, None);
        }
    }

    /// When something arrives next.
    pub fn deadline(&self) -> Option<Instant> {
        self.coming.peek().map(|&Reverse((at, ..))| at)
    }

    /// What has arrived by `now`, one at a time.
    pub fn take(&mut self, now: Instant) -> Option<Event<M>> {
        while let Some(&Reverse((at, _, index))) = self.coming.peek() {
            if at > now {
                return None;
            }
            self.coming.pop();
            let (event, epoch) = self.events.remove(index);
            if epoch.is_none_or(|epoch| epoch == self.epoch(event.at, event.from)) {
                return Some(event);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer(1);
    const B: Peer = Peer(2);

    fn all(network: &mut Network<u32>) -> Vec<(u32, Arrival<u32>)> {
        let mut seen = Vec::new();
        while let Some(event) = network.take(Instant(u64::MAX)) {
            seen.push((event.at.0, event.arrival));
        }
        seen
    }

    #[test]
    fn what_is_sent_arrives_in_order_after_its_delay() {
        for seed in 0..50 {
            let mut network = Network::new(Wire { jitter_ns: 100_000, ..Wire::default() }, seed);
            for number in 0..100 {
                network.send(Instant(u64::from(number) * 10), A, B, 4096, number);
            }
            assert!(network.deadline().expect("much is coming").0 >= 8_000, "seed {seed}");
            let expected: Vec<_> = (0..100).map(|number| (2, Arrival::Message(number))).collect();
            assert_eq!(all(&mut network), expected, "seed {seed}");
        }
    }

    #[test]
    fn a_peer_sends_no_faster_than_its_rate() {
        let wire = Wire { jitter_ns: 0, bytes_per_s: 1_000_000, ..Wire::default() };
        let mut network = Network::new(wire, 1);
        network.send(Instant(0), A, B, 1000, 1);
        network.send(Instant(0), A, Peer(3), 1000, 2);
        let first = network.take(Instant(u64::MAX)).expect("sent");
        assert_eq!(first.at, B);
        assert_eq!(network.deadline(), Some(Instant(2_000_000 + 8_000)));
    }

    #[test]
    fn a_cut_loses_what_was_on_its_way_and_both_ends_hear_of_it() {
        let mut network = Network::new(Wire::default(), 1);
        network.send(Instant(0), A, B, 0, 1);
        network.cut(Instant(10), B, A);
        network.send(Instant(20), A, B, 0, 2);
        network.send(Instant(20), A, Peer(3), 0, 3);
        network.heal(Instant(30), A, B);
        network.send(Instant(40), B, A, 0, 4);
        let seen = all(&mut network);
        let expected = [
            (3, Arrival::Message(3)),
            (1, Arrival::Broken),
            (2, Arrival::Broken),
            (1, Arrival::Made),
            (2, Arrival::Made),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_sent_before_a_new_connection_is_made_is_lost() {
        let mut network = Network::new(Wire::default(), 1);
        network.send(Instant(0), A, B, 0, 1);
        network.reset(Instant(10), A, B);
        network.send(Instant(20), A, B, 0, 2);
        network.send(Instant(10_000), A, B, 0, 3);
        let messages: Vec<_> = all(&mut network)
            .into_iter()
            .filter(|(_, arrival)| matches!(arrival, Arrival::Message(_)))
            .collect();
        assert_eq!(messages, [(2, Arrival::Message(3))]);
    }
}
