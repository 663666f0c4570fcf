//! Time, the network, the control plane, the nodes and the machines.

use super::losing::Course;
use super::machine::{BLOCKS_PER_LANE, BLOCKS_PER_LANE_PRESSED, Interned, Machine, Said, Shape};
use super::model::Model;
use super::server::{Kind, Said as NodeSaid, Server};
use crate::disks::Stamp;
use crate::plane::{Plane, STORE_NS, Says, Storing};
use flash::{FastTier, Geometry, Instant, MICROSECOND, MILLISECOND, Pairing, Random, SECOND};
use pool::control::contract::{Change, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::keys;
use pool::control::mutant::Mutant;
use pool::control::values::{
    Degraded, FORMAT, NodeRecord, NodeState, PoolRecord, Value, VolumeRecord,
};
use pool::message::{Answer, Ask, AskId, Refusal, Signals};
use pool::node::PeerId;
use pool::session::{Input, Output};
use pool::words::{DomainId, NodeId, PoolId, VolumeId};
use std::collections::{BTreeMap, VecDeque};

pub const VOLUME: VolumeId = VolumeId(1);
pub const REPLICAS: u8 = 2;
pub const SERVERS: usize = 5;

/// What the FTL is told that the volume is.
pub const GEOMETRY: Geometry = Geometry {
    units: 3,
    blocks_per_unit: 16,
    pages_per_block: 6,
    slots_per_page: 2,
    pairing: Pairing::None,
    durable_at_completion: true,
    suspend: false,
    queue_depth: 4,
    endurance: 1_000_000,
    open_blocks_max: 0,
    fast: FastTier::NONE,
};

/// So long things go wrong; then they are mended, and all must come to rest.
pub const TROUBLE_NS: u64 = 10 * SECOND;
const CALM_NS: u64 = 30 * SECOND;
/// No message is later than this.
const ANSWER_NS: u64 = 2 * SECOND;

/// What is to happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scene {
    /// Whatever copies make up for.
    Usual,
    /// There are only as many nodes as copies, and copies rot.
    Narrow,
    /// In the end more drives are lost than copies make up for.
    Losing,
}

pub struct World {
    pub now: u64,
    pub random: Random,
    plane: Plane,
    /// The plane cannot be reached before then.
    plane_away_until: u64,
    pub servers: Vec<Server>,
    /// By which each server's messages are slower.
    pub slow: Vec<u64>,
    /// Each server is stopped until then: what comes to it waits.
    pub stopped_until: Vec<u64>,
    /// This one flushes nothing.
    pub will_not_flush: Option<usize>,
    pub states: BTreeMap<NodeId, (DomainId, NodeState)>,
    pub clients: Vec<Client>,
    pub interned: Interned,
    /// What nodes asked of each other and was not answered: by whom, in which start, and of whom.
    fetches: BTreeMap<(usize, u64, AskId), NodeId>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    delay_ns: u64,
    pub chaos_ns: u64,
    pub mutant: Option<Mutant>,
    /// The volume has as many blocks as one that is made without more ado, its host has much to write, and servers stop
    /// for a while. Cut programs may use up its bands then: an FTL that finds no way on fails, and the next one mounts.
    pub is_pressed: bool,
    /// What the volume has, and whether that becomes more.
    pub lanes: u32,
    pub grows: bool,
    /// The volume goes on with fewer copies where nodes are missing.
    goes_on: bool,
    /// See [`Scene`].
    pub is_narrow: bool,
    /// Copies that did.
    pub rotten: u64,
    /// See [`Scene`].
    pub loses: bool,
    pub course: Course,
    /// Of machines that make the best of it.
    pub interruptions: u32,
    /// Those drives.
    pub lost: Vec<NodeId>,
    /// The FTL does not take the medium for durable at completion.
    is_like_product: bool,
    pub is_formatted: bool,
    pub is_calm: bool,
    pub kinds: Vec<Kind>,
    pub model: Model,
}

/// A place where a machine runs, or ran.
pub struct Client {
    pub machine: Option<Machine>,
    number: u64,
    /// Of its clock, in thousandths of true time.
    rate: u64,
    pub paused: bool,
    inbox: VecDeque<Message>,
    /// Counts the connections to each server; odd ones are up.
    pub links: Vec<u64>,
    /// When the last ask of each connection arrives: they keep their order.
    arrives: Vec<u64>,
    wake_at: u64,
}

impl Client {
    /// By its clock.
    pub fn time(&self, now: u64) -> Instant {
        Instant(now * self.rate / 1000)
    }
}

enum Message {
    Plane { id: PlaneAskId, answer: PlaneAnswer },
    Node { server: usize, link: u64, id: AskId, answer: Answer<Stamp>, signals: Signals },
    Up { server: usize, link: u64 },
    Down { node: NodeId },
}

enum Event {
    ToPlane { client: usize, number: u64, id: PlaneAskId, ask: PlaneAsk },
    Stored(Storing),
    PlaneDeadline,
    ToNode { client: usize, number: u64, link: u64, server: usize, id: AskId, ask: Ask<Stamp> },
    NodeToNode { from: usize, boot: u64, to: NodeId, id: AskId, ask: Ask<Stamp> },
    NodeAnswers { to: usize, boot: u64, from: NodeId, id: AskId, answer: Answer<Stamp> },
    ToClient { client: usize, number: u64, message: Message },
    Wake { client: usize },
    Server { server: usize },
    Connect { client: usize, number: u64, server: usize },
    Chaos,
}

/// Connections of nodes among each other are named by this bit.
const OF_NODE: u64 = 1 << 63;

impl World {
    pub fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        Self::of(seed, Scene::Usual, mutant)
    }

    pub fn of(seed: u64, scene: Scene, mutant: Option<Mutant>) -> Self {
        let is_narrow = scene == Scene::Narrow;
        let kind = |server: usize| match seed % 8 {
            7 if seed % 16 == 15 && server < 3 => Kind::RawVolatile,
            7 if seed % 16 == 15 => Kind::Volatile,
            3 | 7 if server < 2 => Kind::Raw,
            5 => Kind::Volatile,
            _ => Kind::Memory,
        };
        let kinds: Vec<Kind> = (0..SERVERS).map(kind).collect();
        let is_volatile = kinds.iter().any(|kind| kind.is_volatile());
        let of = |(at, kind): (usize, &Kind)| Server::new(NodeId(at as u32), *kind, seed, 0);
        let servers: Vec<Server> = kinds.iter().enumerate().map(of).collect();
        let client = |number| Client {
            machine: None,
            number,
            rate: 1000,
            paused: false,
            inbox: VecDeque::new(),
            links: vec![0; SERVERS],
            arrives: vec![0; SERVERS],
            wake_at: 0,
        };
        let is_pressed = seed % 8 == 4 || seed % 8 == 6;
        let often = if is_pressed { 400 } else { [40, 120][seed as usize / 3 % 2] };
        let mut world = Self {
            now: 0,
            random: Random::new(seed),
            plane: Plane::create(),
            plane_away_until: 0,
            servers,
            slow: vec![1; SERVERS],
            stopped_until: vec![0; SERVERS],
            will_not_flush: None,
            states: BTreeMap::new(),
            clients: (0..3).map(client).collect(),
            interned: Interned::default(),
            fetches: BTreeMap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            delay_ns: [200, 1000, 4000][seed as usize % 3] * MICROSECOND,
            chaos_ns: often * MILLISECOND,
            mutant,
            lanes: GEOMETRY.units,
            is_pressed,
            is_like_product: seed % 8 != 3,
            grows: matches!(seed % 16, 9 | 11 | 13),
            goes_on: matches!(seed % 8, 1 | 4 | 5 | 7) && !is_narrow,
            is_narrow,
            rotten: 0,
            loses: scene == Scene::Losing,
            course: Course::default(),
            interruptions: 0,
            lost: Vec::new(),
            is_formatted: false,
            is_calm: false,
            kinds,
            model: Model::new(is_volatile, is_pressed),
        };
        #[cfg(feature = "mutants")]
        if let Some(mutant) = mutant {
            world.plane.plant(mutant);
        }
        world.found();
        world
    }

    fn found(&mut self) {
        let pool = PoolRecord { pool: PoolId(1), format: FORMAT };
        self.put(keys::POOL.to_owned(), &pool);
        self.put_volume();
        let nodes = if self.is_narrow { u32::from(REPLICAS) } else { SERVERS as u32 };
        for node in 0..nodes {
            // The last two fail together.
            self.set(NodeId(node), DomainId(node.min(SERVERS as u32 - 2)), NodeState::In);
        }
    }

    /// Some nodes may lose what was not flushed.
    pub(super) fn is_volatile(&self) -> bool {
        self.kinds.iter().any(|kind| kind.is_volatile())
    }

    fn blocks_per_lane(&self) -> u32 {
        if self.is_pressed { BLOCKS_PER_LANE_PRESSED } else { BLOCKS_PER_LANE }
    }

    pub(super) fn put_volume(&mut self) {
        let bands = self.lanes * GEOMETRY.blocks_per_unit;
        let record = VolumeRecord {
            volume: VOLUME,
            name: "disk".to_owned(),
            blocks: u64::from(self.lanes * self.blocks_per_lane()),
            replicas: REPLICAS,
            shape: pool::words::BandShape {
                pages: GEOMETRY.pages_per_block,
                slots_per_page: GEOMETRY.slots_per_page,
            },
            bands,
            lanes: self.lanes,
            degraded: if self.goes_on { Degraded::GoOn } else { Degraded::Pause },
            ..VolumeRecord::default()
        };
        self.put(keys::volume(VOLUME), &record);
    }

    fn put<V: Value>(&mut self, key: String, value: &V) {
        let change = Change::Put { value: value.encode(&key), key, lease: None };
        let says = self.plane.put(self.now, vec![change]);
        self.of_plane(says);
    }

    /// Somebody says what is to become of a node.
    pub fn set(&mut self, node: NodeId, domain: DomainId, state: NodeState) {
        self.states.insert(node, (domain, state));
        let (address, profile) = (String::new(), String::new());
        let record = NodeRecord { node, domain, address, profile, state };
        self.put(keys::node(node), &record);
    }

    /// Something goes wrong again after a while.
    pub fn chaos_after(&mut self, after_ns: u64) {
        self.after(after_ns, Event::Chaos);
    }

    fn after(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after_ns, self.sequence), event);
    }

    fn delay(&mut self) -> u64 {
        // A few are very late.
        let slow = if self.random.chance(0.01) { 20 } else { 1 };
        self.random.below(slow * self.delay_ns) + 20 * MICROSECOND
    }

    /// Of a message to or from a server. Where nothing is answered for longer a driver ends the connection.
    fn delay_of(&mut self, server: usize) -> u64 {
        (self.slow[server] * self.delay()).min(ANSWER_NS)
    }

    /// Runs until all trouble is over, and all has come to rest.
    pub fn run(&mut self) {
        self.begin(0);
        self.after(300 * MILLISECOND, Event::Chaos);
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.model.note(at);
            self.happen(event);
            if !self.is_calm && self.now > TROUBLE_NS {
                self.calm_down();
            }
            if self.course == Course::Gone {
                return;
            }
            if self.is_calm && self.is_at_rest() {
                return self.check_copies();
            }
            assert!(
                self.now < TROUBLE_NS + CALM_NS,
                "no rest: {}\nlacking: {:?}",
                self.explain(),
                self.lacking()
            );
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(at) = self.waits_until(&event) {
            return self.after(at - self.now, event);
        }
        match event {
            Event::ToPlane { client, number, id, ask } => {
                if self.now >= self.plane_away_until {
                    let name = (client as u64) << 32 | number;
                    let says = self.plane.ask(self.now, name, id, ask);
                    self.of_plane(says);
                }
            }
            Event::Stored(storing) => {
                let says = self.plane.stored(self.now, storing);
                self.of_plane(says);
            }
            Event::PlaneDeadline => {
                let says = self.plane.elapsed(self.now);
                self.of_plane(says);
            }
            Event::ToNode { client, number, link, server, id, ask } => {
                let is_new = self.clients[client].number == number
                    && self.clients[client].links[server] == link;
                if is_new && self.servers[server].is_up() {
                    let peer = PeerId((client as u64) << 48 | number << 24 | link);
                    if self.will_not_flush == Some(server) && matches!(ask, Ask::Flush { .. }) {
                        self.servers[server].refuse(peer, id);
                    } else {
                        self.servers[server].ask(self.now, peer, id, ask);
                    }
                    self.of_server(server);
                }
            }
            Event::NodeToNode { from, boot, to, id, ask } => self.fetch(from, boot, to, id, ask),
            Event::NodeAnswers { to, boot, from, id, answer } => {
                let waits = self.fetches.remove(&(to, boot, id)).is_some();
                if waits && self.servers[to].boot == boot {
                    self.servers[to].answer(self.now, from, id, answer);
                    self.of_server(to);
                }
            }
            Event::ToClient { client, number, message } => {
                if self.clients[client].number == number {
                    self.clients[client].inbox.push_back(message);
                    self.run_client(client);
                }
            }
            Event::Wake { client } => {
                if self.now >= self.clients[client].wake_at {
                    self.run_client(client);
                }
            }
            Event::Server { server } => {
                self.servers[server].advance(self.now);
                self.of_server(server);
            }
            Event::Connect { client, number, server } => self.connect(client, number, server),
            Event::Chaos => self.chaos(),
        }
    }

    /// What happens to a server that is stopped happens when it goes on, in the same order.
    fn waits_until(&self, event: &Event) -> Option<u64> {
        let server = match event {
            Event::ToNode { server, .. } | Event::Server { server } => *server,
            Event::NodeToNode { to, .. } => self.server_of(*to)?,
            Event::NodeAnswers { to, .. } => *to,
            _ => return None,
        };
        Some(self.stopped_until[server]).filter(|at| *at > self.now)
    }

    // The plane.

    fn of_plane(&mut self, says: Says) {
        for told in says.told {
            let (client, number) = ((told.client >> 32) as usize, told.client & 0xffff_ffff);
            let message = Message::Plane { id: told.id, answer: told.answer };
            let delay = self.delay();
            if self.now >= self.plane_away_until {
                self.after(delay, Event::ToClient { client, number, message });
            }
        }
        for storing in says.storing {
            self.after(STORE_NS, Event::Stored(storing));
        }
        if let Some(at) = says.deadline {
            self.after(at.0.saturating_sub(self.now), Event::PlaneDeadline);
        }
    }

    pub fn crash_plane(&mut self) {
        let says = self.plane.crash(self.now);
        self.of_plane(says);
    }

    pub fn part_from_plane(&mut self, for_ns: u64) {
        self.plane_away_until = self.now + for_ns;
    }

    // Nodes.

    fn server_of(&self, node: NodeId) -> Option<usize> {
        self.servers.iter().position(|server| server.id == node)
    }

    fn fetch(&mut self, from: usize, boot: u64, to: NodeId, id: AskId, ask: Ask<Stamp>) {
        let Some(server) = self.server_of(to).filter(|&server| self.servers[server].is_up()) else {
            return self.cannot_fetch(from, boot, to, id);
        };
        let peer = PeerId(OF_NODE | (from as u64) << 48 | boot);
        self.servers[server].ask(self.now, peer, id, ask);
        self.of_server(server);
    }

    /// A node's driver answers in the place of one that cannot be reached.
    fn cannot_fetch(&mut self, to: usize, boot: u64, from: NodeId, id: AskId) {
        let answer = Answer::Refused(Refusal::Failed);
        self.after(MILLISECOND, Event::NodeAnswers { to, boot, from, id, answer });
    }

    fn of_server(&mut self, server: usize) {
        self.servers[server].advance(self.now);
        while let Some(said) = self.servers[server].said.pop_front() {
            let delay = self.delay_of(server);
            let boot = self.servers[server].boot;
            let event = match said {
                NodeSaid::Ask { to, id, ask } => {
                    self.fetches.insert((server, boot, id), to);
                    Event::NodeToNode { from: server, boot, to, id, ask }
                }
                NodeSaid::Answer { peer, id, answer, .. } if peer.0 & OF_NODE != 0 => {
                    let to = (peer.0 >> 48 & 0x7fff) as usize;
                    let (boot, from) = (peer.0 & 0xffff_ffff, self.servers[server].id);
                    Event::NodeAnswers { to, boot, from, id, answer }
                }
                NodeSaid::Answer { peer, id, answer, signals } => {
                    let client = (peer.0 >> 48) as usize;
                    let (number, link) = (peer.0 >> 24 & 0xff_ffff, peer.0 & 0xff_ffff);
                    let message = Message::Node { server, link, id, answer, signals };
                    Event::ToClient { client, number, message }
                }
            };
            self.after(delay, event);
        }
        if let Some(at) = self.servers[server].deadline() {
            self.after(at.saturating_sub(self.now).max(1), Event::Server { server });
        }
    }

    pub fn kill_server(&mut self, server: usize) {
        let mut random = Random::new(self.random.next_u64());
        self.servers[server].kill(&mut random);
        let killed = self.servers[server].id;
        let lost: Vec<_> =
            self.fetches.iter().filter(|(_, of)| **of == killed).map(|(by, _)| *by).collect();
        for (by, boot, id) in lost {
            self.cannot_fetch(by, boot, killed, id);
        }
        for client in 0..self.clients.len() {
            self.disconnect(client, server);
        }
    }

    pub fn start_server(&mut self, server: usize) {
        self.servers[server].start(self.now);
        self.of_server(server);
        for client in 0..self.clients.len() {
            self.reconnect(client, server);
        }
    }

    /// The drive is lost: another node takes its place, with another name.
    pub fn replace_server(&mut self, server: usize) {
        let old = self.servers[server].id;
        let (domain, _) = self.states[&old];
        if self.servers[server].is_up() {
            self.kill_server(server);
        }
        let boot = self.servers[server].boot;
        let new = NodeId(old.0 + SERVERS as u32);
        let seed = self.random.next_u64();
        self.servers[server] = Server::new(new, self.kinds[server], seed, self.now);
        self.servers[server].boot = boot + 1;
        self.set(old, domain, NodeState::ReplacedBy(new));
        self.set(new, domain, NodeState::In);
        self.of_server(server);
        for client in 0..self.clients.len() {
            self.reconnect(client, server);
        }
    }

    // Machines.

    pub fn disconnect(&mut self, client: usize, server: usize) {
        let of = &mut self.clients[client];
        if of.links[server] % 2 == 1 {
            of.links[server] += 1;
            let (number, node) = (of.number, self.servers[server].id);
            let message = Message::Down { node };
            self.after(0, Event::ToClient { client, number, message });
        }
    }

    pub fn reconnect(&mut self, client: usize, server: usize) {
        let number = self.clients[client].number;
        let delay = self.delay();
        self.after(delay, Event::Connect { client, number, server });
    }

    /// A connection is made, once nothing of the last one is under way at the node.
    fn connect(&mut self, client: usize, number: u64, server: usize) {
        let of = &self.clients[client];
        if of.number != number || of.links[server] % 2 == 1 || !self.servers[server].is_up() {
            return;
        }
        let is_of = |peer: PeerId| peer.0 & OF_NODE == 0 && peer.0 >> 48 == client as u64;
        if !self.servers[server].is_idle(is_of) {
            return self.after(MILLISECOND, Event::Connect { client, number, server });
        }
        let of = &mut self.clients[client];
        of.links[server] += 1;
        let link = of.links[server];
        self.after(0, Event::ToClient { client, number, message: Message::Up { server, link } });
    }

    /// A machine begins at a place where none runs.
    pub fn begin(&mut self, client: usize) {
        let rate = 950 + self.random.below(100);
        let blocks_per_lane = self.blocks_per_lane();
        // In the product some nodes may not be, so that the FTL waits for flushes whatever they are.
        let is_durable = !self.is_volatile() && !self.is_like_product;
        let of = &mut self.clients[client];
        assert!(of.machine.is_none(), "a machine runs there");
        (of.number, of.rate, of.paused) = (of.number + 8, rate, false);
        of.inbox.clear();
        let number = of.number;
        let now = Instant(self.now * rate / 1000);
        let (lanes, scrubs) = (self.lanes, self.is_narrow);
        let salvages = self.course == Course::Salvaged;
        let shape = Shape { lanes, blocks_per_lane, is_durable, scrubs, salvages };
        of.machine = Some(Machine::new(now, number, shape, self.mutant));
        for server in 0..SERVERS {
            let of = &mut self.clients[client];
            of.links[server] += of.links[server] % 2;
            self.reconnect(client, server);
        }
        self.clients[client].wake_at = self.now;
        self.after(0, Event::Wake { client });
    }

    /// The machine is gone at once.
    pub fn end(&mut self, client: usize) {
        let of = &mut self.clients[client];
        (of.machine, of.paused, of.number) = (None, false, of.number + 8);
        of.links.iter_mut().for_each(|link| *link += *link % 2);
    }

    pub fn run_client(&mut self, client: usize) {
        if self.clients[client].paused || self.clients[client].machine.is_none() {
            return;
        }
        let now = Instant(self.now * self.clients[client].rate / 1000);
        while let Some(message) = self.clients[client].inbox.pop_front() {
            self.take(client, now, message);
            self.heard(client, now);
            if self.clients[client].machine.is_none() {
                return;
            }
        }
        let of = self.clients[client].machine.as_mut().expect("it runs");
        of.elapsed(now, &mut self.random, &mut self.interned);
        self.heard(client, now);
        let rate = self.clients[client].rate;
        let deadline =
            self.clients[client].machine.as_ref().and_then(|machine| machine.deadline(now));
        if let Some(at) = deadline {
            let wake_at = (at.0 * 1000).div_ceil(rate).max(self.now + 10 * MICROSECOND);
            self.clients[client].wake_at = wake_at;
            self.after(wake_at - self.now, Event::Wake { client });
        }
    }

    fn take(&mut self, client: usize, now: Instant, message: Message) {
        let of = &mut self.clients[client];
        let Some(machine) = &mut of.machine else { return };
        let interned = &mut self.interned;
        match message {
            Message::Plane { id, answer } => {
                machine.handle(now, Input::Plane { id, answer: &answer }, interned);
            }
            Message::Node { server, link, .. } | Message::Up { server, link }
                if of.links[server] != link => {}
            Message::Node { server, id, answer, signals, .. } => {
                let node = self.servers[server].id;
                machine.handle(now, Input::Answer { node, id, answer, signals }, interned);
            }
            Message::Up { server, .. } => {
                machine.handle(now, Input::Up(self.servers[server].facts()), interned);
            }
            Message::Down { node } => machine.handle(now, Input::Down { node }, interned),
        }
    }

    /// What the machine has to say.
    fn heard(&mut self, client: usize, now: Instant) {
        loop {
            let Some(machine) = &mut self.clients[client].machine else { return };
            let Some(said) = machine.said.pop_front() else { break };
            match said {
                Said::Session(output) => self.of_session(client, now, output),
                Said::Begun { lba, wish } => self.model.begun(lba, wish),
                Said::Replied { lba, wish, result } => {
                    let generation = machine.session.generation().expect("it is open");
                    self.model.replied(generation, lba, wish, result);
                    // The last copy of something that was not flushed is gone: a server ends, and begins anew.
                    let machine = self.clients[client].machine.as_mut().expect("it said so");
                    machine.is_over |= result.is_err() && !self.model.may_fail(lba, wish);
                }
                Said::Ready => self.is_formatted = true,
                Said::Gone => self.course = Course::Gone,
                Said::Stopped => {}
            }
        }
        if self.clients[client].machine.as_ref().is_some_and(|machine| machine.is_over) {
            self.end(client);
        }
    }

    fn of_session(&mut self, client: usize, now: Instant, output: Output<Stamp>) {
        let number = self.clients[client].number;
        match output {
            Output::Plane { id, ask } => {
                let delay = self.delay();
                self.after(delay, Event::ToPlane { client, number, id, ask });
            }
            Output::Ask { node, id, ask } => {
                let Some(server) = self.server_of(node) else { return };
                let link = self.clients[client].links[server];
                if link % 2 == 1 {
                    let delay = self.delay_of(server);
                    let arrives = &mut self.clients[client].arrives[server];
                    *arrives = (*arrives + 1).max(self.now + delay);
                    let after_ns = *arrives - self.now;
                    self.after(after_ns, Event::ToNode { client, number, link, server, id, ask });
                }
            }
            Output::Opened(opened) => {
                let is_whole = opened.complete && opened.refused.is_empty();
                assert!(is_whole || self.course == Course::Salvaged, "nobody said to go on");
                let machine = self.clients[client].machine.as_mut().expect("it opened");
                self.model.opened(machine.session.generation().expect("it is open"));
                machine.mount(self.is_formatted);
                machine.pump(now, &mut self.interned);
            }
            Output::Failed(error) => {
                let said = error.to_string();
                let grew = self.grows && said.contains("resized just now");
                assert!(grew || said.contains("another client has opened"), "{said}");
            }
            // It ends in order, and the next one begins with what the volume has by then.
            Output::Grown(_) => {
                self.model.growths += 1;
                let machine = self.clients[client].machine.as_mut().expect("it said so");
                machine.stop(now, &mut self.interned);
            }
            Output::Connect(_)
            | Output::Noted(_)
            | Output::Released
            | Output::Fenced(_)
            | Output::Ended(_)
            | Output::Weights(_)
            | Output::Refresh(_)
            | Output::Lease { .. } => {}
        }
    }

    pub fn explain(&self) -> String {
        let mut text = format!("at {} ns\n", self.now);
        for (at, client) in self.clients.iter().enumerate() {
            let now = Instant(self.now * client.rate / 1000);
            if let Some(machine) = &client.machine {
                let said = machine.explain(now);
                text.push_str(&format!("machine {at}, links {:?}: {said}\n", client.links));
            }
        }
        text
    }
}
