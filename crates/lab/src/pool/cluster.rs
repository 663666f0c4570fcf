//! The nodes of a pool, each with a drive, and the network to the clients: all that a volume's client does not
//! see but by messages.
//!
//! Invariants:
//! - Time never goes back, and all that is due at an instant happens before anything later.
//! - The same inputs and seed give the same run, to the bit.

use super::drive::{Episodes, ProfiledDrive};
use super::network::{Arrival, Event, Network, Peer, Wire};
use crate::medium::{Content, stamp_crc};
use flash::{BLOCK_BYTES, Instant, Random};
use pool::message::{Answer, Ask, AskId, NodeFacts, Signals};
use pool::node::congestion::{ExpectedTail, Load};
use pool::node::memory::{MemorySettings, MemoryStore};
use pool::node::quantile::Quantiles;
use pool::node::store::{Command, Data};
use pool::node::{Input, Mode, Node, NodeSettings, Output, PeerId};
use pool::profile::{LoadModel, Profile, ProfileError, Quantile, Slo};
use pool::words::{DomainId, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Data for Content {
    fn crc(&self) -> u32 {
        match self {
            Self::Stamp(stamp) => stamp_crc(*stamp),
            Self::Meta(bytes) => flash::crc(&bytes[..]),
            Self::Empty => flash::crc(&[0; BLOCK_BYTES]),
        }
    }
}

/// What goes over the network.
#[derive(Clone, Debug)]
pub enum Packet {
    /// To a node.
    Ask(AskId, Ask<Content>),
    /// To who asked.
    Answer(AskId, Answer<Content>, Signals),
}

/// What reaches a client.
#[derive(Clone, Debug)]
pub enum Reached {
    /// A connection to this node was made.
    Up(NodeFacts),
    /// It broke.
    Down(NodeId),
    /// An answer.
    Answer(NodeId, AskId, Answer<Content>, Signals),
}

/// A node to be.
pub struct NodePlan {
    /// What it fails together with.
    pub domain: DomainId,
    /// How long its requests take.
    pub drive: ProfiledDrive,
    /// What the node expects of it where all traffic is of one kind, at the 99th percentile, and where it is mixed,
    /// at the 90th: what it judges by.
    pub expected: [LoadModel; 2],
    /// Of the service level, in percent.
    pub percent: u32,
    /// Bands that it has room for.
    pub bands: u32,
}

struct Host {
    domain: DomainId,
    node: Node<Content>,
    store: MemoryStore<Content>,
    drive: ProfiledDrive,
    expected: [LoadModel; 2],
    percent: u32,
    /// Not running: what reaches it is lost.
    down: bool,
    /// Since this was last taken.
    seen: Seen,
    took: Quantiles,
}

/// What a drive was given since it was last asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// How long what was asked took, at the quantile of the service level; 0 if there was nothing.
    pub tail_ns: u64,
}

impl NodePlan {
    /// A drive of this profile.
    ///
    /// # Errors
    /// If the profile lacks reads alone, or writes alone.
    pub fn of(
        profile: &Profile,
        domain: DomainId,
        episodes: Episodes,
        slo: Slo,
        seed: u64,
    ) -> Result<Self, ProfileError> {
        let at = |quantile| LoadModel::new(profile, Slo { quantile, ..slo }, 1.0);
        Ok(Self {
            domain,
            drive: ProfiledDrive::new(profile, episodes, seed),
            expected: [at(Quantile::P99)?, at(Quantile::P90)?],
            percent: (slo.quantile.share() * 100.0) as u32,
            bands: 1 << 16,
        })
    }
}

/// The first client's name; those below are nodes.
const CLIENTS: u32 = 1 << 20;

/// See the head of this file.
pub struct Cluster {
    now: Instant,
    network: Network<Packet>,
    hosts: Vec<Host>,
    /// When each node has something to do.
    due: BTreeSet<(Instant, u32)>,
    due_of: Vec<Option<Instant>>,
    inboxes: BTreeMap<Peer, VecDeque<Reached>>,
    /// What is left of what a power cut interrupts.
    random: Random,
}

impl Cluster {
    /// Of these nodes, all running and empty; `seed` is for the network and the faults of stores.
    pub fn new(plans: Vec<NodePlan>, wire: Wire, seed: u64) -> Self {
        let hosts: Vec<Host> = (0..)
            .zip(plans)
            .map(|(id, plan)| {
                let settings =
                    MemorySettings { bands_max: plan.bands, ..MemorySettings::default() };
                let store = MemoryStore::new(settings, seed ^ u64::from(id) << 32);
                let node = start_node(Instant(0), NodeId(id), &store, &plan.expected);
                let NodePlan { domain, drive, expected, percent, .. } = plan;
                Host {
                    domain,
                    node,
                    store,
                    drive,
                    expected,
                    percent,
                    down: false,
                    seen: Seen::default(),
                    took: Quantiles::default(),
                }
            })
            .collect();
        Self {
            now: Instant(0),
            network: Network::new(wire, seed),
            due: BTreeSet::new(),
            due_of: vec![None; hosts.len()],
            hosts,
            inboxes: BTreeMap::new(),
            random: Random::new(seed ^ 0xc0ffee),
        }
    }

    /// A client, connected to all nodes that run. [`Cluster::take`] tells it so first.
    pub fn add_client(&mut self) -> Peer {
        let peer = Peer(CLIENTS + self.inboxes.len() as u32);
        let up = self.hosts.iter().filter(|host| !host.down);
        let up = up.map(|host| Reached::Up(host.node.facts())).collect();
        self.inboxes.insert(peer, up);
        peer
    }

    /// The nodes and their domains.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, DomainId)> + '_ {
        (0..).zip(&self.hosts).map(|(id, host)| (NodeId(id), host.domain))
    }

    /// A client asks a node.
    pub fn ask(&mut self, now: Instant, client: Peer, node: NodeId, id: AskId, ask: Ask<Content>) {
        let bytes = ask_bytes(&ask);
        self.network.send(now, client, Peer(node.0), bytes, Packet::Ask(id, ask));
    }

    /// What has reached a client by now.
    pub fn take(&mut self, client: Peer) -> Option<Reached> {
        self.inboxes.get_mut(&client)?.pop_front()
    }

    /// Whether something has reached a client that it has not taken.
    pub fn has_reached(&self, client: Peer) -> bool {
        self.inboxes.get(&client).is_some_and(|inbox| !inbox.is_empty())
    }

    /// When something happens next.
    pub fn deadline(&self) -> Option<Instant> {
        let of_hosts = self.due.first().map(|&(at, _)| at);
        self.network.deadline().into_iter().chain(of_hosts).min()
    }

    /// All that is due by `now` happens.
    pub fn advance(&mut self, now: Instant) {
        while let Some(next) = self.deadline().filter(|&next| next <= now) {
            self.now = self.now.max(next);
            while let Some(event) = self.network.take(self.now) {
                self.arrived(event);
            }
            while let Some(&(at, id)) = self.due.first()
                && at <= self.now
            {
                self.turn(id);
            }
        }
        self.now = self.now.max(now);
    }

    /// How many times slower than its profile a drive is from now on.
    pub fn slow(&mut self, node: NodeId, times: f64) {
        self.hosts[node.0 as usize].drive.slow = times;
    }

    /// The power of a node is cut: what it was asked and has not answered may be done or not, what its store made
    /// durable is there when it runs again.
    pub fn kill(&mut self, now: Instant, node: NodeId) {
        let host = &mut self.hosts[node.0 as usize];
        host.down = true;
        host.store.power_cut(&mut self.random);
        self.reschedule(node.0);
        let clients: Vec<Peer> = self.inboxes.keys().copied().collect();
        clients.into_iter().for_each(|client| self.network.cut(now, client, Peer(node.0)));
    }

    /// It runs again, with what its store has.
    pub fn restart(&mut self, now: Instant, node: NodeId) {
        let host = &mut self.hosts[node.0 as usize];
        host.node = start_node(now, node, &host.store, &host.expected);
        host.down = false;
        self.reschedule(node.0);
        let clients: Vec<Peer> = self.inboxes.keys().copied().collect();
        clients.into_iter().for_each(|client| self.network.heal(now, client, Peer(node.0)));
    }

    /// The line between a client and a node is cut, or whole again.
    pub fn partition(&mut self, now: Instant, client: Peer, node: NodeId, is_cut: bool) {
        if is_cut {
            self.network.cut(now, client, Peer(node.0));
        } else if !self.hosts[node.0 as usize].down {
            self.network.heal(now, client, Peer(node.0));
        }
    }

    /// The controller has a node serve so.
    pub fn set_mode(&mut self, now: Instant, node: NodeId, mode: Mode) {
        self.hosts[node.0 as usize].node.handle(now, Input::Mode(mode));
        self.carry_out(node.0);
    }

    /// What each drive was given since this was last asked.
    pub fn take_seen(&mut self) -> Vec<Seen> {
        let take = |host: &mut Host| {
            let tail_ns = host.took.at_percent(host.percent);
            host.took.clear();
            Seen { tail_ns, ..std::mem::take(&mut host.seen) }
        };
        self.hosts.iter_mut().map(take).collect()
    }

    fn arrived(&mut self, event: Event<Packet>) {
        let Event { at, from, arrival } = event;
        if at.0 < CLIENTS {
            // A node only hears asks: a connection that breaks tells it nothing it needs.
            if let Arrival::Message(Packet::Ask(id, ask)) = arrival
                && !self.hosts[at.0 as usize].down
            {
                let peer = PeerId(u64::from(from.0));
                let (host, now) = (&mut self.hosts[at.0 as usize], self.now);
                host.node.handle(now, Input::Ask { peer, id, ask });
                self.carry_out(at.0);
            }
            return;
        }
        let node = NodeId(from.0);
        let reached = match arrival {
            Arrival::Message(Packet::Answer(id, answer, signals)) => {
                Reached::Answer(node, id, answer, signals)
            }
            Arrival::Message(Packet::Ask(..)) => unreachable!("nobody asks a client"),
            Arrival::Broken => Reached::Down(node),
            Arrival::Made => Reached::Up(self.hosts[from.0 as usize].node.facts()),
        };
        self.inboxes.entry(at).or_default().push_back(reached);
    }

    /// What is due at a node.
    fn turn(&mut self, id: u32) {
        let (host, now) = (&mut self.hosts[id as usize], self.now);
        while let Some(end) = host.store.poll(now) {
            host.node.handle(now, Input::Ended(end));
        }
        if host.node.deadline().is_some_and(|at| at <= now) {
            host.node.handle(now, Input::Deadline);
        }
        self.carry_out(id);
    }

    fn carry_out(&mut self, id: u32) {
        let (host, now) = (&mut self.hosts[id as usize], self.now);
        while let Some(output) = host.node.poll() {
            match output {
                Output::Answer { peer, id: ask, answer, signals } => {
                    let bytes = answer_bytes(&answer);
                    let packet = Packet::Answer(ask, answer, signals);
                    self.network.send(now, Peer(id), Peer(peer.0 as u32), bytes, packet);
                }
                Output::Command { id: command, command: what } => {
                    let ns = host.take_ns(now, &what);
                    host.store.begin(now, command, what, Some(ns));
                }
                Output::Ask { to, id: ask, ask: what } => {
                    let bytes = ask_bytes(&what);
                    self.network.send(now, Peer(id), Peer(to.0), bytes, Packet::Ask(ask, what));
                }
            }
        }
        self.reschedule(id);
    }

    fn reschedule(&mut self, id: u32) {
        let host = &self.hosts[id as usize];
        let next = host.store.deadline().into_iter().chain(host.node.deadline()).min();
        let next = next.filter(|_| !host.down).map(|at| at.max(self.now));
        let known = &mut self.due_of[id as usize];
        if *known != next {
            if let Some(at) = known.take() {
                self.due.remove(&(at, id));
            }
            if let Some(at) = next {
                self.due.insert((at, id));
            }
            *known = next;
        }
    }
}

impl Host {
    /// How long the drive takes for a command.
    fn take_ns(&mut self, now: Instant, command: &Command<Content>) -> u64 {
        let (blocks, is_write) = match command {
            Command::Read { count, .. } => (*count, false),
            Command::Append { slots, .. } => {
                // What the store writes beside the data rides in the same write.
                (slots.iter().filter(|slot| slot.data.is_some()).count().max(1) as u32, true)
            }
            Command::Sum { .. } => (1, false),
            // Records of a few bytes.
            Command::Fence { .. } | Command::Forget { .. } | Command::Seal { .. } => (1, true),
            // A discard, and on a durable drive a flush, cost nothing that profiles tell of.
            Command::Free { .. } | Command::Flush => return 0,
        };
        let ns = self.drive.end_of(now, is_write, blocks) - now;
        if is_write {
            self.seen.writes += u64::from(blocks);
        } else {
            self.seen.reads += u64::from(blocks);
        }
        self.took.add(ns);
        ns
    }
}

fn start_node(
    now: Instant,
    id: NodeId,
    store: &MemoryStore<Content>,
    expected: &[LoadModel; 2],
) -> Node<Content> {
    let [of_one, of_both] = expected.clone();
    let expectation = move |load: Load| {
        let is_mixed = load.reads_per_s > 0.0 && load.writes_per_s > 0.0;
        let model = if is_mixed { &of_both } else { &of_one };
        let us = model.expected(load.reads_per_s, load.writes_per_s);
        let ns = (us * 1e3) as u64;
        ExpectedTail { read_ns: ns, write_ns: ns }
    };
    let settings = NodeSettings::default();
    Node::new(now, id, settings, store.found(), Box::new(expectation))
}

/// Bytes of a message beside its data: what the wire format takes at most for a head.
const HEAD_BYTES: u64 = 64;
const SLOT_BYTES: u64 = 40;

fn ask_bytes(ask: &Ask<Content>) -> u64 {
    match ask {
        Ask::Append { slots, .. } => HEAD_BYTES + slots.iter().map(slot_bytes).sum::<u64>(),
        _ => HEAD_BYTES,
    }
}

fn answer_bytes(answer: &Answer<Content>) -> u64 {
    match answer {
        Answer::Slots(slots) => HEAD_BYTES + slots.iter().flatten().map(slot_bytes).sum::<u64>(),
        Answer::Bands { bands, .. } => HEAD_BYTES * (1 + bands.len() as u64),
        _ => HEAD_BYTES,
    }
}

fn slot_bytes(slot: &pool::message::Slot<Content>) -> u64 {
    SLOT_BYTES + if slot.data.is_some() { BLOCK_BYTES as u64 } else { 0 }
}
