//! The nodes as an opening sees them: each is fenced, then listed; what it was then asked to do changes what is
//! known of it. A node that goes away is fenced and listed anew when it is back.
//!
//! What is known of a node holds as long as nobody with a higher generation comes: nothing below ours is taken
//! there any more, and we know what we asked for ourselves.

use crate::control::values::{NodeRecord, NodeState};
use crate::message::{Answer, Ask, AskId, BandEntry, BandHeader, Refusal};
use crate::words::{BandName, DomainId, Fenced, Generation, Members, NodeId, VolumeId};
use flash::{Instant, MILLISECOND};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// All nodes that may hold something of a volume.
pub(super) struct Peers {
    volume: VolumeId,
    by: Fenced,
    peers: BTreeMap<NodeId, Peer>,
    asks: u64,
}

/// One of them.
pub(super) struct Peer {
    pub record: NodeRecord,
    /// It holds nothing that the volume needs.
    pub clear: bool,
    pub durable: bool,
    state: State,
    /// What it has, once it is listed.
    entries: BTreeMap<BandName, BandEntry>,
    queue: VecDeque<Task>,
    in_flight: BTreeMap<AskId, Task>,
    /// It was too busy: nothing before then.
    rest_until: Instant,
    /// Something is there that may not be durable yet: what an older owner asked for, too.
    unflushed: bool,
    /// How often it would not be fenced, listed or flushed on this connection.
    refusals: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Away,
    Fencing,
    Listing,
    Listed,
}

/// What a node is to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Fence,
    List { after: Option<BandName> },
    Seal { name: BandName, pages: u32 },
    Free { name: BandName },
    Copy { name: BandName, from: Members, header: BandHeader, pages: u32, bytes_per_s_max: u64 },
    Flush,
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Came {
    /// Nothing that anybody waits for.
    Nothing,
    /// The node was fenced and listed.
    Listed,
    /// The node would not do it.
    Refused(Task, Refusal),
    /// The node has heard of a higher generation.
    Stale(Generation),
}

impl Peers {
    pub fn new(volume: VolumeId, by: Fenced) -> Self {
        Self { volume, by, peers: BTreeMap::new(), asks: 0 }
    }

    pub fn add(&mut self, record: NodeRecord, clear: bool) {
        let peer = Peer {
            clear,
            durable: true,
            state: State::Away,
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            rest_until: Instant(0),
            unflushed: false,
            refusals: 0,
            record,
        };
        self.peers.insert(peer.record.node, peer);
    }

    /// What is on record of a node that is known by now. True if that is news.
    pub fn renew(&mut self, record: &NodeRecord) -> bool {
        let known = self.peers.get_mut(&record.node).filter(|peer| peer.record != *record);
        known.map(|peer| peer.record = record.clone()).is_some()
    }

    /// A connection to a node is there.
    pub fn up(&mut self, node: NodeId, durable: bool) {
        // What is clear is never asked again: it may hold anything.
        let peer = self.peers.get_mut(&node).filter(|peer| !peer.clear);
        let Some(peer) = peer else { return };
        peer.refusals = 0;
        peer.durable = durable;
        peer.begin(Instant(0));
    }

    /// It refused what it must do to be of use: it is fenced and listed anew after a pause, each time a longer one.
    /// Whether it was of use until then.
    pub fn again(&mut self, now: Instant, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else { return false };
        let pause_ns = REFUSED_NS << peer.refusals.min(REFUSALS_MAX);
        peer.refusals += 1;
        peer.begin(now + pause_ns)
    }

    /// It ended, with all that was asked on it. Whether the node was of use until then.
    pub fn down(&mut self, node: NodeId) -> bool {
        self.peers.get_mut(&node).is_some_and(Peer::down)
    }

    pub fn push(&mut self, node: NodeId, task: Task) {
        let peer = self.peers.get_mut(&node).expect("tasks go to nodes that are known");
        peer.queue.push_back(task);
    }

    /// The next ask.
    pub fn poll<D>(&mut self, now: Instant) -> Option<(NodeId, AskId, Ask<D>)> {
        for (&node, peer) in &mut self.peers {
            if peer.in_flight.len() >= IN_FLIGHT_MAX || now < peer.rest_until {
                continue;
            }
            if let Some(task) = peer.queue.pop_front() {
                let id = AskId(self.asks);
                self.asks += 1;
                peer.in_flight.insert(id, task);
                return Some((node, id, task.ask(self.volume, self.by)));
            }
        }
        None
    }

    /// The latest life that this node has.
    pub fn newest(&self, node: NodeId) -> Option<BandName> {
        self.peer(node)?.entries().map(|entry| entry.band).max_by_key(|band| band.life)
    }

    /// When a node that was too busy may be asked again.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let rests = self.peers.values().filter(|peer| !peer.queue.is_empty());
        rests.map(|peer| peer.rest_until).filter(|until| *until > now).min()
    }

    pub fn answered<D>(
        &mut self,
        now: Instant,
        node: NodeId,
        id: AskId,
        answer: &Answer<D>,
    ) -> Came {
        let Some(peer) = self.peers.get_mut(&node) else { return Came::Nothing };
        let Some(task) = peer.in_flight.remove(&id) else { return Came::Nothing };
        match (task, answer) {
            (_, Answer::Refused(Refusal::Stale { highest })) => Came::Stale(*highest),
            (_, Answer::Refused(Refusal::Busy)) => {
                peer.queue.push_front(task);
                peer.rest_until = now + REST_NS;
                Came::Nothing
            }
            (Task::Free { name }, Answer::Done | Answer::Refused(Refusal::NoBand)) => {
                peer.entries.remove(&name);
                peer.unflushed = true;
                Came::Nothing
            }
            (Task::Seal { name, pages }, Answer::Refused(Refusal::Sealed { pages: at }))
                if *at == pages =>
            {
                peer.seal(name, pages);
                Came::Nothing
            }
            (_, Answer::Refused(refusal)) => Came::Refused(task, *refusal),
            (Task::List { after }, Answer::Bands { bands, more })
                if goes_on(after, bands) && !(*more && bands.is_empty()) =>
            {
                peer.listed(bands, *more)
            }
            (_, Answer::Done) => peer.did(task),
            // An answer to something else: the node is wrong, and what it has is not known.
            _ => Came::Refused(task, Refusal::Invalid),
        }
    }

    pub fn peer(&self, node: NodeId) -> Option<&Peer> {
        self.peers.get(&node)
    }

    pub fn all(&self) -> impl Iterator<Item = (NodeId, &Peer)> {
        self.peers.iter().map(|(&node, peer)| (node, peer))
    }

    pub fn listed(&self) -> impl Iterator<Item = (NodeId, &Peer)> {
        self.all().filter(|(_, peer)| peer.is_listed())
    }

    pub fn domain(&self, node: NodeId) -> Option<DomainId> {
        self.peers.get(&node).map(|peer| peer.record.domain)
    }

    /// Whether nothing that was asked is unanswered.
    pub fn are_idle(&self) -> bool {
        self.listed().all(|(_, peer)| peer.queue.is_empty() && peer.in_flight.is_empty())
    }

    /// Nodes where something has to be made durable.
    pub fn unflushed(&self) -> Vec<NodeId> {
        self.listed()
            .filter(|(_, peer)| !peer.durable && peer.unflushed)
            .map(|(node, _)| node)
            .collect()
    }
}

impl Peer {
    pub fn is_listed(&self) -> bool {
        self.state == State::Listed
    }

    pub fn entries(&self) -> impl Iterator<Item = &BandEntry> {
        self.entries.values()
    }

    pub fn entry(&self, name: BandName) -> Option<BandEntry> {
        self.entries.get(&name).copied()
    }

    /// Whether it has a later life of this band, sealed.
    pub fn has_later(&self, name: BandName) -> bool {
        let last = BandName { life: u64::MAX, ..name };
        let later = self.entries.range((Bound::Excluded(name), Bound::Included(last)));
        name != last && later.into_iter().any(|(_, entry)| entry.sealed)
    }

    /// Whether it has this life of a band or an older one.
    pub fn has_older(&self, name: BandName) -> bool {
        self.entries.range(BandName { life: 0, ..name }..=name).next().is_some()
    }

    /// Whether it takes copies.
    pub fn takes(&self) -> bool {
        self.is_listed() && self.record.state == NodeState::In
    }

    /// How much it has, and is about to have.
    pub fn load(&self) -> usize {
        self.entries.len() + self.queue.len() + self.in_flight.len()
    }

    fn begin(&mut self, at: Instant) -> bool {
        let was_listed = self.down();
        (self.state, self.rest_until, self.unflushed) = (State::Fencing, at, true);
        self.queue.push_back(Task::Fence);
        was_listed
    }

    fn down(&mut self) -> bool {
        self.entries.clear();
        self.queue.clear();
        self.in_flight.clear();
        self.unflushed = false;
        std::mem::replace(&mut self.state, State::Away) == State::Listed
    }

    fn listed(&mut self, bands: &[BandEntry], more: bool) -> Came {
        self.entries.extend(bands.iter().map(|entry| (entry.band, *entry)));
        if let Some(last) = bands.last().filter(|_| more) {
            self.queue.push_back(Task::List { after: Some(last.band) });
            return Came::Nothing;
        }
        self.state = State::Listed;
        Came::Listed
    }

    fn did(&mut self, task: Task) -> Came {
        match task {
            Task::Fence => {
                self.state = State::Listing;
                self.queue.push_back(Task::List { after: None });
            }
            Task::Seal { name, pages } => self.seal(name, pages),
            Task::Copy { name, header, pages, .. } => {
                self.unflushed = true;
                self.entries.insert(name, BandEntry::whole(name, header, pages, true));
            }
            Task::Flush => self.unflushed = false,
            Task::List { .. } | Task::Free { .. } => {}
        }
        Came::Nothing
    }

    fn seal(&mut self, name: BandName, pages: u32) {
        self.unflushed = true;
        if let Some(entry) = self.entries.get_mut(&name) {
            (entry.pages, entry.sealed) = (pages, true);
            entry.sound = entry.sound.min(pages);
        }
    }
}

/// Whether a list is in the order of names, from the one on behind which it was asked for.
fn goes_on(after: Option<BandName>, bands: &[BandEntry]) -> bool {
    let mut last = after;
    bands.iter().all(|entry| last.replace(entry.band).is_none_or(|last| last < entry.band))
}

impl Task {
    pub fn ask<D>(self, volume: VolumeId, by: Fenced) -> Ask<D> {
        let Fenced { generation, owner } = by;
        match self {
            Self::Fence => Ask::Fence { volume, generation, owner },
            Self::List { after } => Ask::List { volume, generation, after },
            Self::Seal { name: band, pages } => Ask::Seal { band, generation, pages },
            Self::Free { name: band } => Ask::Free { band, generation },
            Self::Copy { name: band, from, header, pages, bytes_per_s_max } => {
                Ask::Copy { band, generation, from, header, pages, bytes_per_s_max }
            }
            Self::Flush => Ask::Flush { volume, generation },
        }
    }
}

/// Asks of an opening that a node has at once.
const IN_FLIGHT_MAX: usize = 32;
/// After the first refusal of what must be done, and how often that is doubled.
const REFUSED_NS: u64 = 100 * MILLISECOND;
const REFUSALS_MAX: u32 = 9;
/// A node that was too busy is left alone so long.
const REST_NS: u64 = 10 * MILLISECOND;
