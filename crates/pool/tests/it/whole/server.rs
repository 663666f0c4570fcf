//! The process of a node, over a store in memory or on raw flash, with the connections that it has.

use super::world::GEOMETRY;
use crate::disks::{Disk, RawDisk, Stamp, memory};
use flash::{Instant, MICROSECOND, Pairing, Random};
use ftl::raw::RawFormat;
use lab::device::{Manner, Small};
use nand::Faults;
use pool::message::{Answer, Ask, AskId, BandEntry, NodeFacts, Refusal, Signals};
use pool::node::congestion::ExpectedTail;
use pool::node::memory::MemorySettings;
use pool::node::raw::RawStoreSettings;
use pool::node::{Input, Node, NodeSettings, Output, PeerId};
use pool::words::{BandName, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a store is made on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Memory,
    /// What was not flushed does not survive a power cut.
    Volatile,
    Raw,
    /// Likewise, and of what was not flushed any page may be gone.
    RawVolatile,
}

impl Kind {
    pub fn is_volatile(self) -> bool {
        matches!(self, Self::Volatile | Self::RawVolatile)
    }
}

/// See the head of this file.
pub struct Server {
    pub id: NodeId,
    disk: Box<dyn Disk>,
    /// None while it is down.
    node: Option<Node<Stamp>>,
    /// Counts its starts.
    pub boot: u64,
    /// Asks of each connection that it has not answered.
    pending: BTreeMap<PeerId, u32>,
    /// It has no time before: a mount takes some.
    busy_until: Instant,
    pub said: VecDeque<Said>,
    /// Pages that it cannot read any more, until it is told to free their band.
    pub rotten: BTreeSet<(BandName, u32)>,
    /// Reads of such that it has not answered.
    unread: BTreeSet<(PeerId, AskId)>,
}

/// What it wants sent.
pub enum Said {
    Answer { peer: PeerId, id: AskId, answer: Answer<Stamp>, signals: Signals },
    Ask { to: NodeId, id: AskId, ask: Ask<Stamp> },
}

const RAW: Small = Small {
    manner: Manner::Nand(Pairing::None),
    units: 2,
    blocks_per_unit: 90,
    pages_per_block: 16,
    slots_per_page: 4,
    open_blocks_max: 0,
};

fn disk_of(kind: Kind, seed: u64, now: &mut Instant) -> Box<dyn Disk> {
    let settings = MemorySettings {
        bands_max: 160,
        read_ns: 60 * MICROSECOND,
        durable: !kind.is_volatile(),
        ..MemorySettings::default()
    };
    let manner = match kind {
        Kind::Memory | Kind::Volatile => return Box::new(memory(settings, seed)),
        Kind::Raw => RAW.manner,
        Kind::RawVolatile => Manner::File,
    };
    let medium = Small { manner, ..RAW }.build(Faults::default()).expect("a small device");
    let format = RawFormat { gang: 1, spare: 0.2, uuid: u128::from(seed) + 1, label: Vec::new() };
    let settings = RawStoreSettings { volumes_max: 64, ..RawStoreSettings::default() };
    Box::new(RawDisk::format(medium, format, settings, now).expect("it suits"))
}

impl Server {
    /// A node with an empty drive.
    pub fn new(id: NodeId, kind: Kind, seed: u64, now: u64) -> Self {
        let mut at = Instant(now);
        let mut server = Self {
            id,
            disk: disk_of(kind, seed, &mut at),
            node: None,
            boot: 0,
            pending: BTreeMap::new(),
            busy_until: Instant(0),
            said: VecDeque::new(),
            rotten: BTreeSet::new(),
            unread: BTreeSet::new(),
        };
        server.start(now);
        server
    }

    pub fn is_up(&self) -> bool {
        self.node.is_some()
    }

    pub fn facts(&self) -> NodeFacts {
        self.node.as_ref().expect("it is up").facts()
    }

    /// Whether nothing of the connection's asks is under way any more.
    pub fn is_idle(&self, is_of: impl Fn(PeerId) -> bool) -> bool {
        self.pending.iter().all(|(peer, count)| *count == 0 || !is_of(*peer))
    }

    /// The power is cut, in the midst of what it does.
    pub fn kill(&mut self, random: &mut Random) {
        (self.node, self.boot) = (None, self.boot + 1);
        self.pending.clear();
        self.unread.clear();
        self.said.clear();
        self.disk.cut(random);
    }

    pub fn start(&mut self, now: u64) {
        let mut at = Instant(now);
        let found = self.disk.mount(&mut at);
        self.busy_until = at;
        let expectation = Box::new(|_| ExpectedTail::default());
        let settings = NodeSettings { list_max: 16, ..NodeSettings::default() };
        self.node = Some(Node::new(at, self.id, settings, found, expectation));
    }

    /// What its drive has, while it is down.
    pub fn look(&mut self, now: u64) -> Vec<BandEntry> {
        let mut at = Instant(now);
        self.disk.mount(&mut at).bands.iter().map(|band| band.entry).collect()
    }

    pub fn ask(&mut self, now: u64, peer: PeerId, id: AskId, ask: Ask<Stamp>) {
        *self.pending.entry(peer).or_default() += 1;
        match &ask {
            Ask::Read { band, slot, .. }
                if self.rotten.contains(&(*band, slot / GEOMETRY.slots_per_page)) =>
            {
                self.unread.insert((peer, id));
            }
            Ask::Free { band, .. } => self.rotten.retain(|(of, _)| of != band),
            _ => {}
        }
        self.handle(now, Input::Ask { peer, id, ask });
    }

    /// Answers that it cannot.
    pub fn refuse(&mut self, peer: PeerId, id: AskId) {
        let (answer, signals) = (Answer::Refused(Refusal::Failed), Signals::default());
        self.said.push_back(Said::Answer { peer, id, answer, signals });
    }

    pub fn answer(&mut self, now: u64, from: NodeId, id: AskId, answer: Answer<Stamp>) {
        self.handle(now, Input::Answer { from, id, answer });
    }

    fn handle(&mut self, now: u64, input: Input<Stamp>) {
        let at = Instant(now).max(self.busy_until);
        let Some(node) = &mut self.node else { return };
        node.handle(at, input);
        self.drain(at);
    }

    fn drain(&mut self, at: Instant) {
        let Some(node) = &mut self.node else { return };
        while let Some(output) = node.poll() {
            match output {
                Output::Command { id, command } => self.disk.begin(at, id, command),
                Output::Answer { peer, id, mut answer, signals } => {
                    if self.unread.remove(&(peer, id))
                        && let Answer::Slots(slots) = &mut answer
                    {
                        slots.iter_mut().for_each(|slot| *slot = None);
                    }
                    *self.pending.get_mut(&peer).expect("it was asked") -= 1;
                    self.said.push_back(Said::Answer { peer, id, answer, signals });
                }
                Output::Ask { to, id, ask } => self.said.push_back(Said::Ask { to, id, ask }),
            }
        }
    }

    /// All that is due.
    pub fn advance(&mut self, now: u64) {
        if self.node.is_none() {
            // Without power its drive does nothing.
            return;
        }
        let at = Instant(now).max(self.busy_until);
        while self.node.is_some() && self.disk.deadline().is_some_and(|due| due <= at) {
            for end in self.disk.advance(at) {
                self.node.as_mut().expect("it is up").handle(at, Input::Ended(end));
                self.drain(at);
            }
        }
        // A store may have ended something at once.
        for end in self.disk.advance(at) {
            self.handle(now, Input::Ended(end));
        }
        if self.node.as_ref().and_then(Node::deadline).is_some_and(|due| due <= at) {
            self.handle(now, Input::Deadline);
        }
    }

    pub fn deadline(&self) -> Option<u64> {
        let node = self.node.as_ref()?;
        self.disk.deadline().into_iter().chain(node.deadline()).map(|at| at.0).min()
    }
}
