//! Time, the network, the plane's file, the nodes, the clients, and what must hold.

use super::owner::{Owner, Said};
use crate::nodes::{Node, page};
use flash::{Instant, MILLISECOND, Random, SECOND};
use pool::control::contract::{Change, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, Known, PlaneInput, PlaneOutput, Store};
use pool::control::keys;
use pool::control::mutant::Mutant;
use pool::control::ownership::OwnershipConfig;
use pool::control::values::{
    Degraded, FORMAT, NodeRecord, NodeState, PoolRecord, Value, VolumeRecord,
};
use pool::message::{Answer, Ask, AskId, Refusal};
use pool::opening::{Opened, Opening, OpeningConfig, OpeningInput, OpeningOutput};
use pool::words::{BandName, BandShape, DomainId, Generation, NodeId, PoolId, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const VOLUME: VolumeId = VolumeId(1);
pub const REPLICAS: usize = 2;
pub const SHAPE: BandShape = BandShape { pages: 4, slots_per_page: 1 };
pub const BANDS: u32 = 12;
const NODES: u32 = 5;
const END: u64 = 120 * SECOND;

/// How often what goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub delay_ns_max: u64,
    /// Of a message.
    pub lost: f64,
    /// Each so often, on average, something happens to a client, a link, the plane.
    pub chaos_ns: u64,
}

impl Rates {
    pub fn of_seed(seed: u64) -> Self {
        let delay_ns_max = [2, 20, 200][seed as usize % 3] * MILLISECOND;
        let chaos_ns = [300, 1000][seed as usize / 3 % 2] * MILLISECOND;
        Self { delay_ns_max, lost: [0.0, 0.02][seed as usize / 6 % 2], chaos_ns }
    }
}

pub struct World {
    now: u64,
    random: Random,
    rates: Rates,
    plane: Embedded,
    /// What is durable of the plane's log, and its starts.
    file: Vec<u8>,
    starts: u64,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    mutant: Option<Mutant>,
    pub model: Model,
}

struct Client {
    state: State,
    /// Of its clock: local time is true time by this many thousandths.
    rate: u64,
    paused: bool,
    inbox: VecDeque<Message>,
    /// The connections to nodes, counted; odd ones are up.
    links: Vec<u64>,
    /// When the last ask of each connection arrives: they keep their order.
    arrives: Vec<u64>,
    wake_at: u64,
}

enum State {
    Opening(Box<Opening<u64>>),
    Owner(Box<Owner>),
    Gone,
}

#[derive(Clone, Debug)]
enum Message {
    Plane { id: PlaneAskId, answer: PlaneAnswer },
    Node { node: NodeId, link: u64, id: AskId, answer: Answer<u64> },
    Up { node: NodeId },
    Down { node: NodeId },
}

enum Event {
    ToPlane { client: usize, id: PlaneAskId, ask: PlaneAsk },
    Stored { starts: u64, store: Store },
    ToNode { client: usize, link: u64, node: NodeId, id: AskId, ask: Ask<u64> },
    ToClient { client: usize, message: Message },
    Wake { client: usize },
    PlaneDeadline,
    Chaos,
}

/// What must hold, whoever opens.
#[derive(Default)]
pub struct Model {
    pub openings: u64,
    pub acknowledged: u64,
    pub degraded: u64,
    pub stale: u64,
    /// Of all that happened.
    pub trace: u64,
    newest: Generation,
    /// Acknowledged pages of each life.
    acked: BTreeMap<BandName, u32>,
    /// What was sent as the pages of a life.
    stamps: BTreeMap<(BandName, u32), u64>,
    /// No owner needs it any more.
    freed: BTreeSet<BandName>,
    /// What an opening found, and what it found not.
    shown: BTreeMap<BandName, u32>,
    dropped: BTreeSet<BandName>,
}

impl World {
    pub fn new(seed: u64, rates: Rates) -> Self {
        let nodes = vec![Node { list_max: 3, ..Node::default() }; NODES as usize];
        let mut world = Self {
            now: 0,
            random: Random::new(seed),
            rates,
            plane: Embedded::create(PoolId(1), 1),
            file: Vec::new(),
            starts: 0,
            nodes,
            clients: Vec::new(),
            events: BTreeMap::new(),
            sequence: 0,
            mutant: None,
            model: Model::default(),
        };
        world.found();
        // The pool is founded before anything goes wrong.
        world.at(SECOND, Event::Chaos);
        world
    }

    #[cfg(feature = "mutants")]
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        self.plane.plant(mutant);
    }

    pub fn run(&mut self) {
        self.begin();
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > END {
                return;
            }
            self.now = at;
            self.model.trace = self.model.trace.wrapping_mul(31).wrapping_add(at);
            self.happen(event);
        }
    }

    /// Puts the pool into the plane.
    fn found(&mut self) {
        let (name, degraded) = ("disk".to_owned(), Degraded::GoOn);
        let (replicas, bands, blocks) = (REPLICAS as u8, BANDS, 1000);
        let volume = VOLUME;
        let record = VolumeRecord {
            volume,
            name,
            blocks,
            replicas,
            shape: SHAPE,
            bands,
            degraded,
            ..VolumeRecord::default()
        };
        let key = keys::volume(VOLUME);
        let pool = PoolRecord { pool: PoolId(1), format: FORMAT };
        let value = pool.encode(keys::POOL);
        let mut changes = vec![
            Change::Put { value, key: keys::POOL.to_owned(), lease: None },
            Change::Put { value: record.encode(&key), key, lease: None },
        ];
        for node in 0..NODES {
            let (address, profile) = (String::new(), String::new());
            // The last two fail together.
            let (node, domain) = (NodeId(node), DomainId(node.min(NODES - 2)));
            let record = NodeRecord { node, domain, address, profile, state: NodeState::In };
            let key = keys::node(node);
            changes.push(Change::Put { value: record.encode(&key), key, lease: None });
        }
        let ask = PlaneAsk::Commit { checks: Vec::new(), changes };
        let id = PlaneAskId(0);
        self.plane.handle(Instant(0), PlaneInput::Ask { client: u64::MAX, id, ask });
        self.drive_plane();
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after_ns, self.sequence), event);
    }

    /// A message on its way; now and then it never arrives.
    fn send(&mut self, event: Event) {
        if self.random.chance(self.rates.lost) {
            return;
        }
        // A few are very late.
        let slow = if self.random.chance(0.02) { 20 } else { 1 };
        let delay = self.random.below(slow * self.rates.delay_ns_max) + 10_000;
        self.at(delay, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToPlane { client, id, ask } => {
                let client = client as u64;
                self.plane.handle(Instant(self.now), PlaneInput::Ask { client, id, ask });
                self.drive_plane();
            }
            Event::Stored { starts, store } => self.stored(starts, store),
            Event::ToNode { client, link, node, id, ask } => {
                self.ask_node(client, link, node, id, ask)
            }
            Event::ToClient { client, message } => {
                self.clients[client].inbox.push_back(message);
                self.run_client(client);
            }
            Event::Wake { client } => {
                if self.now >= self.clients[client].wake_at {
                    self.run_client(client);
                }
            }
            Event::PlaneDeadline => {
                self.plane.handle(Instant(self.now), PlaneInput::Deadline);
                self.drive_plane();
            }
            Event::Chaos => self.chaos(),
        }
    }

    fn drive_plane(&mut self) {
        while let Some(output) = self.plane.poll() {
            match output {
                PlaneOutput::Answer(told) if told.client == u64::MAX => {}
                PlaneOutput::Answer(told) => {
                    let message = Message::Plane { id: told.id, answer: told.answer };
                    self.send(Event::ToClient { client: told.client as usize, message });
                }
                PlaneOutput::Store(store) => {
                    let starts = self.starts;
                    // The disk is not faster for a later record.
                    self.at(3 * MILLISECOND, Event::Stored { starts, store });
                }
            }
        }
        if let Some(at) = self.plane.deadline() {
            self.at(at.0.saturating_sub(self.now), Event::PlaneDeadline);
        }
    }

    fn stored(&mut self, starts: u64, store: Store) {
        if starts != self.starts {
            return;
        }
        let sequence = match store {
            Store::Append { bytes, sequence } => {
                self.file.extend(bytes);
                sequence
            }
            Store::Replace { bytes, sequence } => {
                self.file = bytes;
                sequence
            }
        };
        self.plane.handle(Instant(self.now), PlaneInput::Stored { sequence });
        self.drive_plane();
    }

    fn ask_node(&mut self, client: usize, link: u64, node: NodeId, id: AskId, ask: Ask<u64>) {
        let source = match &ask {
            Ask::Copy { band, from, .. } => {
                self.nodes[from.nodes()[0].0 as usize].bands.get(band).cloned()
            }
            _ => None,
        };
        let answer = self.nodes[node.0 as usize].ask(ask, source);
        self.model.stale += u64::from(matches!(answer, Answer::Refused(Refusal::Stale { .. })));
        if self.clients[client].links[node.0 as usize] == link {
            let message = Message::Node { node, link, id, answer };
            self.send(Event::ToClient { client, message });
        }
    }

    fn chaos(&mut self) {
        let next = self.random.below(2 * self.rates.chaos_ns) + MILLISECOND;
        self.at(next, Event::Chaos);
        let client = self.random.below(self.clients.len().max(1) as u64) as usize;
        let node = self.random.below(u64::from(NODES)) as usize;
        match self.random.below(20) {
            _ if self.clients.is_empty() => self.begin(),
            0 | 1 if self.living() < 3 => self.begin(),
            2 => self.clients[client].state = State::Gone,
            3 => self.clients[client].paused = true,
            4 => self.crash_plane(),
            5..=11 => self.turn(client, node),
            12 => (0..self.clients.len()).for_each(|client| self.turn(client, node)),
            _ => {}
        }
        // What was broken mends itself after a while.
        let client = self.random.below(self.clients.len() as u64) as usize;
        if self.clients[client].paused && self.random.chance(0.5) {
            self.clients[client].paused = false;
            self.run_client(client);
        }
        for node in 0..NODES as usize {
            if self.clients[client].links[node].is_multiple_of(2) && self.random.chance(0.5) {
                self.turn(client, node);
            }
        }
        if self.living() == 0 {
            self.begin();
        }
    }

    fn living(&self) -> usize {
        self.clients.iter().filter(|client| !matches!(client.state, State::Gone)).count()
    }

    fn crash_plane(&mut self) {
        self.starts += 1;
        let known = Known { revision: 0 };
        let opened = Embedded::open(Instant(self.now), PoolId(1), &self.file, known, 2);
        let (mut plane, length) = opened.expect("what is stored is sound");
        self.file.truncate(length);
        if let Some(mutant) = self.mutant {
            plane.plant(mutant);
        }
        self.plane = plane;
        self.drive_plane();
    }

    /// A link breaks, or is there again.
    fn turn(&mut self, client: usize, node: usize) {
        self.clients[client].links[node] += 1;
        let up = self.clients[client].links[node] % 2 == 1;
        let node = NodeId(node as u32);
        let message = if up { Message::Up { node } } else { Message::Down { node } };
        self.at(0, Event::ToClient { client, message });
    }

    /// Another client opens the volume.
    fn begin(&mut self) {
        let client = self.clients.len();
        let rate = 950 + self.random.below(100);
        let ownership = OwnershipConfig::new(VOLUME, client as u128 + 1);
        let now = Instant(self.now * rate / 1000);
        let mut opening = Opening::new(now, OpeningConfig::new(PoolId(1), ownership));
        if let Some(mutant) = self.mutant {
            opening.plant(mutant);
        }
        let state = State::Opening(Box::new(opening));
        let (links, arrives) = (vec![0; NODES as usize], vec![0; NODES as usize]);
        let inbox = VecDeque::new();
        self.clients.push(Client {
            state,
            rate,
            paused: false,
            inbox,
            links,
            arrives,
            wake_at: u64::MAX,
        });
        for node in 0..NODES as usize {
            self.turn(client, node);
        }
    }

    fn run_client(&mut self, client: usize) {
        if self.clients[client].paused {
            return;
        }
        let now = Instant(self.now * self.clients[client].rate / 1000);
        self.shows(client, now);
        while let Some(message) = self.clients[client].inbox.pop_front() {
            if let Message::Node { node, link, .. } = &message
                && self.clients[client].links[node.0 as usize] != *link
            {
                continue;
            }
            self.take(client, now, &message);
            self.shows(client, now);
        }
        match &mut self.clients[client].state {
            State::Opening(opening) => opening.handle(now, OpeningInput::Deadline),
            State::Owner(owner) => owner.elapsed(now, &mut self.random),
            State::Gone => return,
        }
        self.outputs(client, now);
        self.shows(client, now);
        let deadline = match &self.clients[client].state {
            State::Opening(opening) => opening.deadline(now),
            State::Owner(owner) => owner.deadline(),
            State::Gone => None,
        };
        if let Some(at) = deadline {
            let rate = self.clients[client].rate;
            let wake_at = (at.0 * 1000).div_ceil(rate).max(self.now + 10_000);
            self.clients[client].wake_at = wake_at;
            self.at(wake_at - self.now, Event::Wake { client });
        }
    }

    fn take(&mut self, client: usize, now: Instant, message: &Message) {
        match &mut self.clients[client].state {
            State::Opening(opening) => opening.handle(
                now,
                match message {
                    Message::Plane { id, answer } => OpeningInput::Plane { id: *id, answer },
                    Message::Node { node, id, answer, .. } => {
                        OpeningInput::Node { node: *node, id: *id, answer }
                    }
                    Message::Up { node } => OpeningInput::Up { node: *node, durable: true },
                    Message::Down { node } => OpeningInput::Down { node: *node },
                },
            ),
            State::Owner(owner) => match message {
                Message::Plane { id, answer } => owner.plane(now, *id, answer),
                Message::Node { node, id, answer, .. } => owner.node(now, *node, *id, answer),
                Message::Up { .. } => {}
                Message::Down { node } => owner.down(now, *node),
            },
            State::Gone => {}
        }
        self.outputs(client, now);
    }

    fn outputs(&mut self, client: usize, now: Instant) {
        while let State::Opening(opening) = &mut self.clients[client].state {
            let output = opening.poll();
            match output {
                None => break,
                Some(OpeningOutput::Connect(_)) => {}
                Some(OpeningOutput::Plane { id, ask }) => {
                    self.send(Event::ToPlane { client, id, ask })
                }
                Some(OpeningOutput::Node { node, id, ask }) => self.ask_of(client, node, id, ask),
                Some(OpeningOutput::Failed(error)) => {
                    self.model.check(
                        matches!(error, pool::opening::OpeningError::Overtaken { .. }),
                        &format!("an opening fails only when it is overtaken: {error}"),
                    );
                    self.clients[client].state = State::Gone;
                }
                Some(OpeningOutput::Opened(opened)) => self.opened(client, now, &opened),
            }
        }
        loop {
            let State::Owner(owner) = &mut self.clients[client].state else { return };
            let Some(said) = owner.poll() else { return };
            let generation = owner.generation;
            match said {
                Said::Plane { id, ask } => self.send(Event::ToPlane { client, id, ask }),
                Said::Node { node, id, ask } => {
                    if let Ask::Append { band, page, slots, .. } = &ask {
                        let stamp = slots[0].data.expect("a stamp");
                        self.model.stamps.insert((*band, *page), stamp);
                    }
                    self.ask_of(client, node, id, ask);
                }
                Said::Acknowledged { name, page } => self.model.acknowledge(generation, name, page),
                Said::Degraded => self.model.degraded += 1,
                Said::Freed { name } => drop(self.model.freed.insert(name)),
                Said::Over => self.clients[client].state = State::Gone,
            }
        }
    }

    fn ask_of(&mut self, client: usize, node: NodeId, id: AskId, ask: Ask<u64>) {
        let link = self.clients[client].links[node.0 as usize];
        if link % 2 == 1 {
            if self.random.chance(self.rates.lost) {
                // A connection loses nothing but by its end.
                return self.turn(client, node.0 as usize);
            }
            let event = Event::ToNode { client, link, node, id, ask };
            let slow = if self.random.chance(0.01) { 30 } else { 1 };
            let delay = slow * self.random.below(self.rates.delay_ns_max) + 10_000;
            let arrives = &mut self.clients[client].arrives[node.0 as usize];
            *arrives = (*arrives).max(self.now + delay);
            let delay = *arrives - self.now;
            self.at(delay, event);
        }
    }

    fn opened(&mut self, client: usize, now: Instant, opened: &Opened) {
        let State::Opening(opening) =
            std::mem::replace(&mut self.clients[client].state, State::Gone)
        else {
            unreachable!("only an opening opens");
        };
        let (ownership, mut registry) = opening.into_parts().expect("it was opened");
        let generation = ownership.generation().expect("it is owned");
        if let Some(mutant) = self.mutant {
            registry.plant(mutant);
        }
        self.model.open(generation, opened, &self.nodes);
        let links = &self.clients[client].links;
        let up = (0..NODES).filter(|&node| links[node as usize] % 2 == 1).map(NodeId).collect();
        let owner = Owner::new(now, ownership, registry, opened, up);
        self.clients[client].state = State::Owner(Box::new(owner));
        self.clients[client].wake_at = self.now + 10_000;
        self.at(10_000, Event::Wake { client });
    }

    /// A client that may read does so all the time.
    fn shows(&mut self, client: usize, now: Instant) {
        let State::Owner(owner) = &self.clients[client].state else { return };
        if owner.readable_until().is_some_and(|until| now < until) {
            let newest = self.model.newest;
            self.model.check(
                owner.generation >= newest,
                &format!("generation {:?} reads after {newest:?} was opened", owner.generation),
            );
        }
    }
}

impl Model {
    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        assert!(holds, "{what}");
    }

    fn acknowledge(&mut self, generation: Generation, name: BandName, page: u32) {
        self.acknowledged += 1;
        if generation < self.newest && !self.freed.contains(&name) {
            let shown = self.shown.get(&name).is_some_and(|&pages| pages > page);
            self.check(
                shown,
                &format!("page {page} of {name:?} is acknowledged after it was dropped"),
            );
        }
        let acked = self.acked.entry(name).or_default();
        *acked = (*acked).max(page + 1);
    }

    fn open(&mut self, generation: Generation, opened: &Opened, nodes: &[Node]) {
        self.openings += 1;
        self.check(generation > self.newest, &format!("{generation:?} was opened twice"));
        self.newest = generation;
        self.check(
            opened.refused.is_empty() && opened.complete,
            &format!("nobody said not to wait: {opened:?}"),
        );
        for (name, pages) in &self.acked {
            if self.freed.contains(name) {
                continue;
            }
            let found = opened.band(name.band).filter(|band| band.name == *name);
            let whole = found.is_some_and(|band| band.pages >= *pages);
            self.check(
                whole,
                &format!("{generation:?}: {pages} pages of {name:?} became {found:?}"),
            );
        }
        for band in &opened.bands {
            let name = band.name;
            self.check(
                !self.dropped.contains(&name),
                &format!("{name:?} was dropped and is shown"),
            );
            let before = *self.shown.entry(name).or_insert(band.pages);
            self.check(before == band.pages, &format!("{name:?} had {before} pages: {band:?}"));
            for node in &band.holders {
                let copy = nodes[node.0 as usize].bands.get(&name);
                let copy = copy.unwrap_or_else(|| panic!("{node:?} has nothing of {band:?}"));
                self.check(copy.sealed, &format!("{band:?} is not sealed on {node:?}"));
                let held = copy.pages.len() as u32;
                self.check(held == band.pages, &format!("{node:?} has {held} pages of {band:?}"));
                for (at, found) in (0..).zip(&copy.pages) {
                    let same = self.stamps.get(&(name, at)).is_some_and(|of| page(*of) == *found);
                    self.check(same, &format!("page {at} of {name:?} on {node:?} is another's"));
                }
            }
        }
        let names: BTreeSet<BandName> = self.stamps.keys().map(|(name, _)| *name).collect();
        for name in names.difference(&self.freed) {
            if opened.band(name.band).is_none_or(|band| band.name != *name) {
                self.dropped.insert(*name);
            }
        }
    }
}
