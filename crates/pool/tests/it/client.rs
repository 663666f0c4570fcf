//! The whole FTL over `pool::client::Remote`, with nodes that are a few lines: maps of bands. Answers are
//! delayed and come in any order, nodes go and come back, are slow, or give unsound slots; the client itself is
//! killed, and a fresh one lists the nodes. Every acknowledged write reads back, every trimmed block as zeroes.

use flash::{
    BLOCK_BYTES, BlockId, BufferId, Command, Completion, FastTier, Geometry, Health, Hint, Instant,
    Lba, MICROSECOND, MILLISECOND, MediumError, Operation, Pairing, Payload, Random, Request,
    SECOND, SlotData, SlotRead, SlotStatus, SlotWrite,
};
use ftl::{FormatOptions, Ftl, Settings};
use pool::client::directory::Held;
use pool::client::{Config, Counters, Directory, End, Input, Output, Remote};
use pool::message::{Answer, Ask, AskId, BandEntry, BandHeader, NodeFacts, Refusal, Signals, Slot};
use pool::opening::{Opened, OpenedBand};
use pool::words::{BandName, DomainId, Generation, NodeId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A stamp of 8 bytes stands for a host block; the FTL's own blocks are whole.
type Data = Arc<Vec<u8>>;

const VOLUME: VolumeId = VolumeId(7);
const NODES: u32 = 5;

const GEOMETRY: Geometry = Geometry {
    units: 4,
    blocks_per_unit: 24,
    pages_per_block: 8,
    slots_per_page: 2,
    pairing: Pairing::None,
    durable_at_completion: true,
    suspend: false,
    queue_depth: 8,
    endurance: 1_000_000,
    open_blocks_max: 0,
    fast: FastTier::NONE,
};

struct Band {
    header: BandHeader,
    pages: Vec<Vec<Slot<Data>>>,
    sealed: bool,
}

/// A node that is obviously right.
#[derive(Default)]
struct Node {
    fence: Generation,
    bands: BTreeMap<BandName, Band>,
}

impl Node {
    fn answer(&mut self, ask: Ask<Data>) -> Answer<Data> {
        let generation = match ask {
            Ask::Fence { generation, .. }
            | Ask::Append { generation, .. }
            | Ask::Read { generation, .. }
            | Ask::Seal { generation, .. }
            | Ask::Free { generation, .. }
            | Ask::Flush { generation, .. }
            | Ask::List { generation, .. }
            | Ask::Copy { generation, .. } => generation,
        };
        if generation < self.fence {
            return Answer::Refused(Refusal::Stale { highest: self.fence });
        }
        self.fence = generation;
        self.obey(ask).unwrap_or_else(Answer::Refused)
    }

    fn obey(&mut self, ask: Ask<Data>) -> Result<Answer<Data>, Refusal> {
        match ask {
            Ask::Fence { .. } | Ask::Flush { .. } => {}
            Ask::Append { band, page, open, slots, .. } => {
                if let (0, Some(header)) = (page, open) {
                    let new = Band { header, pages: Vec::new(), sealed: false };
                    self.bands.entry(band).or_insert(new);
                }
                let band = self.bands.get_mut(&band).ok_or(Refusal::NoBand)?;
                let expected = band.pages.len() as u32;
                if let Some(there) = band.pages.get(page as usize) {
                    return if *there == slots { Ok(Answer::Done) } else { Err(Refusal::Differs) };
                }
                if band.sealed {
                    return Err(Refusal::Sealed { pages: expected });
                }
                if page != expected {
                    return Err(Refusal::OutOfOrder { expected });
                }
                band.pages.push(slots);
            }
            Ask::Read { band, slot, count, .. } => {
                let band = self.bands.get(&band).ok_or(Refusal::NoBand)?;
                let per_page = band.header.shape.slots_per_page;
                let page = band.pages.get((slot / per_page) as usize).ok_or(Refusal::Invalid)?;
                let first = (slot % per_page) as usize;
                let slots = page.get(first..first + count as usize).ok_or(Refusal::Invalid)?;
                return Ok(Answer::Slots(slots.iter().cloned().map(Some).collect()));
            }
            Ask::Seal { band, pages, .. } => {
                let band = self.bands.get_mut(&band).ok_or(Refusal::NoBand)?;
                if band.pages.len() < pages as usize {
                    return Err(Refusal::Invalid);
                }
                band.pages.truncate(pages as usize);
                band.sealed = true;
            }
            Ask::Free { band, .. } => {
                self.bands.remove(&band);
            }
            Ask::List { .. } => {
                let entry = |(&band, of): (&BandName, &Band)| {
                    BandEntry::whole(band, of.header, of.pages.len() as u32, of.sealed)
                };
                let bands = self.bands.iter().map(entry).collect();
                return Ok(Answer::Bands { bands, more: false });
            }
            Ask::Copy { .. } => return Err(Refusal::Invalid),
        }
        Ok(Answer::Done)
    }
}

enum Event {
    ToNode { node: NodeId, connection: u64, id: AskId, ask: Ask<Data> },
    ToClient { node: NodeId, connection: u64, id: AskId, answer: Answer<Data> },
    Registered(BandName),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// A node takes so many times as long.
    slow: Option<NodeId>,
    /// A node's slots are unsound, one in five.
    unsound: Option<NodeId>,
    /// One step in so many, a node goes or comes back.
    come_and_go: u64,
    /// Nodes that go for good, and at which step.
    lost: Option<(NodeId, u64)>,
    /// A node refuses, one append in twenty.
    refuses: Option<NodeId>,
    /// What nodes have answered does not survive their power cut before a flush.
    volatile: bool,
}

/// All but the client: nodes, network, time.
struct World {
    now: Instant,
    random: Random,
    nodes: BTreeMap<NodeId, Node>,
    /// Connections: counted, and whether it is there.
    links: BTreeMap<NodeId, (u64, bool)>,
    events: BTreeMap<(Instant, u64), Event>,
    /// When the last ask to a node gets there: they come in order.
    last: BTreeMap<NodeId, Instant>,
    count: u64,
    trouble: Trouble,
    replicas: u32,
    generation: u64,
    steps: u64,
    geometry: Geometry,
    /// Lives that the control plane knows to be over.
    over: BTreeSet<BandName>,
}

/// What a block may hold.
#[derive(Clone, Debug, Default)]
struct Model {
    known: BTreeMap<u32, u64>,
    /// Written, and not acknowledged.
    open: BTreeMap<u32, u64>,
}

struct Client {
    ftl: Ftl,
    remote: Remote<Data>,
    buffers: Vec<Vec<Data>>,
    relocation: Vec<Data>,
    /// By request: block, what was written, or `None` for a read.
    requests: BTreeMap<u64, (u32, Option<u64>)>,
    next: u64,
    ready: bool,
    stopped: Option<bool>,
    may_be_fenced: bool,
    fenced: bool,
}

fn stamp(value: u64) -> Data {
    Arc::new(value.to_le_bytes().to_vec())
}

fn zero_crc() -> u32 {
    flash::crc(&[0; BLOCK_BYTES])
}

fn settings(seed: u64) -> Settings {
    Settings {
        append_wait_ns: 20 * MICROSECOND,
        idle_ns: 100 * MICROSECOND,
        relocation_blocks: 64,
        checkpoint_slots: 300,
        seed,
        ..Settings::default()
    }
}

impl World {
    fn new(seed: u64, replicas: u32, trouble: Trouble) -> Self {
        let ids = (1..=NODES).map(NodeId);
        Self {
            now: Instant(1),
            random: Random::new(seed),
            nodes: ids.clone().map(|id| (id, Node::default())).collect(),
            links: ids.clone().map(|id| (id, (0, true))).collect(),
            events: BTreeMap::new(),
            last: ids.map(|id| (id, Instant(0))).collect(),
            count: 0,
            trouble,
            replicas,
            generation: 0,
            steps: 0,
            over: BTreeSet::new(),
            geometry: Geometry { durable_at_completion: !trouble.volatile, ..GEOMETRY },
        }
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    fn send(&mut self, node: NodeId, id: AskId, ask: Ask<Data>) {
        let delay = MICROSECOND * (5 + self.random.below(20));
        let at = self.last[&node].max(self.now + delay);
        self.last.insert(node, at);
        let connection = self.links[&node].0;
        self.at(at, Event::ToNode { node, connection, id, ask });
    }

    /// What takes a node its time; answers come in any order.
    fn service_ns(&mut self, node: NodeId) -> u64 {
        let ns = MICROSECOND * (20 + self.random.below(150));
        if self.trouble.slow == Some(node) { 100 * ns } else { ns }
    }

    /// The connection goes: of what was on its way, some got there.
    fn cut(&mut self, node: NodeId) {
        let link = self.links.get_mut(&node).unwrap();
        (link.0, link.1) = (link.0 + 1, false);
        let arrives = self.random.below(4);
        let mine = |event: &Event| matches!(event, Event::ToNode { node: of, .. } if *of == node);
        let keys: Vec<_> =
            self.events.iter().filter(|(_, event)| mine(event)).map(|(&key, _)| key).collect();
        for (index, key) in keys.into_iter().enumerate() {
            let event = self.events.remove(&key);
            if let Some(Event::ToNode { ask, .. }) = event
                && (index as u64) < arrives
            {
                self.nodes.get_mut(&node).unwrap().answer(ask);
            }
        }
    }

    fn facts(&self, node: NodeId) -> NodeFacts {
        NodeFacts {
            node,
            durable: !self.trouble.volatile,
            bands: 1000,
            bands_used: 0,
            band_pages: u32::MAX,
        }
    }

    /// What lies on too few nodes, as a member is away or an erase was cut off, is copied before it is served.
    fn complete_copies(&mut self, directory: &mut Directory) {
        let held: Vec<Held> = directory.bands().cloned().collect();
        for Held { name, nodes, pages, .. } in held {
            let missing = (self.replicas as usize).saturating_sub(nodes.len());
            let from = &self.nodes[&nodes[0]].bands[&name];
            let (header, mut copy) = (from.header, from.pages.clone());
            copy.truncate(pages as usize);
            let up = (1..=NODES).map(NodeId).filter(|&id| self.is_up(id) && !nodes.contains(&id));
            for id in up.take(missing).collect::<Vec<_>>() {
                let band = Band { header, pages: copy.clone(), sealed: true };
                self.nodes.get_mut(&id).unwrap().bands.insert(name, band);
                assert!(directory.add(name, id), "a sealed band");
            }
        }
    }

    /// What was on its way is lost, or got there.
    fn kill_client(&mut self) {
        for node in (1..=NODES).map(NodeId) {
            if self.is_up(node) {
                self.cut(node);
                self.links.get_mut(&node).unwrap().1 = true;
            }
        }
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.links[&node].1
    }

    fn away(&self) -> u32 {
        self.links.values().filter(|link| !link.1).count() as u32
    }

    /// A client of the next generation, over what the nodes that are there list.
    fn open(&mut self) -> Remote<Data> {
        self.events.clear();
        self.generation += 1;
        let generation = Generation(self.generation);
        let mut lists = Vec::new();
        for (&id, node) in self.nodes.iter_mut().filter(|(id, _)| self.links[id].1) {
            node.answer(Ask::Fence { volume: VOLUME, generation, owner: 1 });
            node.bands.retain(|name, _| !self.over.contains(name));
            let Answer::Bands { bands, .. } =
                node.answer(Ask::List { volume: VOLUME, generation, after: None })
            else {
                panic!("a list")
            };
            lists.extend(bands.into_iter().map(|entry| (id, entry)));
        }
        let mut config = Config::new(VOLUME, generation, self.geometry, self.replicas);
        config.seed = self.random.next_u64();
        (config.program_limit_ns, config.read_limit_ns) = (5 * MILLISECOND, 2 * MILLISECOND);
        let complete = self.away() < self.replicas;
        let opened = self.settle(&lists, complete);
        let mut directory = Directory::of(GEOMETRY.blocks(), &opened);
        self.complete_copies(&mut directory);
        let mut remote = Remote::new(config, directory).unwrap();
        remote.handle(self.now, Input::Lease { until: Instant(u64::MAX) });
        for node in (1..=NODES).map(NodeId) {
            remote.handle(self.now, Input::Joined { node, domain: DomainId(node.0) });
        }
        for node in (1..=NODES).map(NodeId).filter(|&node| self.is_up(node)) {
            remote.handle(self.now, Input::Up(self.facts(node)));
        }
        remote
    }
}

impl World {
    /// What an opening would find: of each band the newest life, as long as its shortest sealed copy, or else
    /// its shortest one. It is sealed there, and older lives go.
    fn settle(&mut self, lists: &[(NodeId, BandEntry)], complete: bool) -> Opened {
        let mut opened = Opened { complete, ..Opened::default() };
        let generation = Generation(self.generation);
        let names: BTreeSet<BandName> = lists.iter().map(|(_, entry)| entry.band).collect();
        for &band in &names {
            let of = || lists.iter().filter(|(_, entry)| entry.band == band);
            let last = BandName { life: u64::MAX, ..band };
            let is_older = names.range(band..=last).nth(1).is_some();
            let least = |sealed| of().filter(|of| of.1.sealed == sealed).map(|of| of.1.pages).min();
            let pages = if is_older { 0 } else { least(true).or(least(false)).unwrap_or(0) };
            let holders: Vec<NodeId> =
                of().filter(|(_, entry)| entry.pages >= pages).map(|(node, _)| *node).collect();
            for node in &holders {
                let ask = match pages {
                    0 => Ask::Free { band, generation },
                    _ => Ask::Seal { band, generation, pages },
                };
                assert_eq!(self.nodes.get_mut(node).unwrap().answer(ask), Answer::Done);
            }
            if pages > 0 {
                opened.bands.push(OpenedBand { name: band, pages, holders });
            }
        }
        opened
    }
}

impl Client {
    fn new(ftl: Ftl, remote: Remote<Data>) -> Self {
        Self {
            ftl,
            remote,
            buffers: Vec::new(),
            relocation: vec![stamp(u64::MAX); settings(0).relocation_blocks as usize],
            requests: BTreeMap::new(),
            next: 0,
            ready: false,
            stopped: None,
            may_be_fenced: false,
            fenced: false,
        }
    }

    fn format(world: &mut World, seed: u64, logical_blocks: u32) -> Self {
        let remote = world.open();
        let options =
            FormatOptions { logical_blocks, uuid: u128::from(seed) + 1, label: Vec::new() };
        let ftl = Ftl::format(world.geometry, &Health::default(), options, settings(seed)).unwrap();
        Self::new(ftl, remote)
    }

    fn mount(world: &mut World, seed: u64) -> Self {
        let remote = world.open();
        let ftl = Ftl::mount(world.geometry, &Health::default(), settings(seed)).unwrap();
        Self::new(ftl, remote)
    }

    fn payload(&self, from: Payload) -> Data {
        if from.buffer == Payload::RELOCATION {
            return self.relocation[from.index as usize].clone();
        }
        self.buffers[from.buffer as usize][from.index as usize].clone()
    }

    fn fill(&mut self, into: Payload, data: Data) {
        if into.buffer == Payload::RELOCATION {
            self.relocation[into.index as usize] = data;
        } else {
            self.buffers[into.buffer as usize][into.index as usize] = data;
        }
    }

    fn slot(&self, write: &SlotWrite) -> Slot<Data> {
        let data = match &write.data {
            SlotData::Payload(from) => Some(self.payload(*from)),
            SlotData::Meta(bytes) => Some(Arc::new(bytes.to_vec())),
            SlotData::Empty => None,
        };
        let crc = data.as_ref().map_or_else(zero_crc, |data| flash::crc(data));
        Slot { oob: write.oob, crc, data }
    }

    /// Carries out what both want, until neither wants anything.
    fn drain(&mut self, world: &mut World, model: &mut Model) {
        loop {
            if let Some(output) = self.ftl.poll() {
                self.of_ftl(world, model, output);
            } else if let Some(output) = self.remote.poll() {
                self.of_remote(world, output);
            } else {
                return;
            }
        }
    }

    fn of_ftl(&mut self, world: &mut World, model: &mut Model, output: ftl::Output) {
        match output {
            ftl::Output::Command(Command::Program { tag, slot, .. }) => {
                let slots = self.ftl.program(tag).iter().map(|write| self.slot(write)).collect();
                self.remote.handle(world.now, Input::Program { tag, slot, slots });
            }
            ftl::Output::Command(command) => {
                self.remote.handle(world.now, Input::Command(command));
            }
            ftl::Output::ReadZeroes { into, count } => {
                for index in into.index..into.index + count {
                    self.fill(Payload { index, ..into }, stamp(0));
                }
            }
            ftl::Output::Reply(reply) => {
                let (lba, wrote) = self.requests.remove(&reply.id).expect("a request");
                if self.may_be_fenced {
                    // A read of a block that it takes for trimmed needs no node: the driver's lease is for that.
                    let acknowledged = wrote.is_some() && reply.result.is_ok();
                    assert!(!acknowledged, "a client that is over acknowledged {lba}");
                    return;
                }
                assert_eq!(reply.result, Ok(()), "block {lba}: {}", self.remote.explain());
                if let Some(value) = wrote {
                    model.open.remove(&lba);
                    model.known.insert(lba, value);
                    return;
                }
                let read = &self.buffers[reply.id as usize][0];
                assert_eq!(
                    *read,
                    stamp(model.known.get(&lba).copied().unwrap_or(0)),
                    "block {lba}"
                );
            }
            ftl::Output::Ready(result) => {
                let report = result.unwrap_or_else(|why| panic!("the mount failed: {why}"));
                assert_eq!(report.damage(), None);
                self.ready = true;
            }
            ftl::Output::Stopped(durable) => self.stopped = Some(durable),
            ftl::Output::FastDetached(_) => unreachable!("there is no fast tier"),
            ftl::Output::Labelled(_) => unreachable!("nobody changes the label"),
            ftl::Output::Snapshot { .. } => unreachable!("nobody takes a snapshot"),
        }
    }

    fn of_remote(&mut self, world: &mut World, output: Output<Data>) {
        match output {
            Output::Ask { node, id, ask } => world.send(node, id, ask),
            Output::Register(openings) => {
                let at = world.now + MICROSECOND * (100 + world.random.below(500));
                for opening in openings {
                    world.at(at, Event::Registered(opening.name));
                }
            }
            Output::Ended(end) => self.complete(world.now, end),
            Output::Weights(weights) => self.ftl.set_unit_weights(&weights),
            Output::Fenced(over) => {
                assert!(self.may_be_fenced, "fenced: {over:?}");
                self.fenced = true;
                self.ftl.handle(world.now, ftl::Input::Fail);
            }
            Output::Closed(closed) if closed.pages == 0 => {
                world.over.insert(closed.name);
            }
            Output::Ends { name, .. } => self.remote.handle(world.now, Input::EndKept(name)),
            Output::Unused(_) | Output::Closed(_) | Output::Unflushed(_) | Output::Flushed(_) => {}
        }
    }

    fn complete(&mut self, now: Instant, end: End<Data>) {
        let completion = match end {
            End::Program { tag, result } => Completion::Program { tag, result },
            End::Erase { tag, result } => Completion::Erase { tag, result },
            End::Finish { tag } => Completion::Finish { tag },
            End::Flush { tag, result } => Completion::Flush { tag, result },
            End::Read { tag, into, slots, durable } => {
                let Ok(slots) = slots else {
                    let read = Completion::Read { tag, slots: Err(MediumError::UnitGone) };
                    return self.ftl.handle(now, ftl::Input::Completion(read));
                };
                for (index, slot) in slots.iter().enumerate() {
                    let data = slot.slot.as_ref().and_then(|slot| slot.data.clone());
                    if let (Some(into), SlotStatus::Ok) = (into, slot.status) {
                        let at = Payload { index: into.index + index as u32, ..into };
                        self.fill(at, data.unwrap_or_else(|| stamp(u64::MAX)));
                    }
                }
                let reads: Vec<SlotRead<'_>> = slots
                    .iter()
                    .map(|end| {
                        let slot = end.slot.as_ref();
                        let data = slot.and_then(|slot| slot.data.as_ref());
                        let crc = data.map_or_else(zero_crc, |data| flash::crc(data));
                        let whole = data.filter(|data| data.len() == BLOCK_BYTES);
                        SlotRead {
                            status: end.status,
                            oob: slot.map_or([0; 32], |slot| slot.oob),
                            crc,
                            bytes: whole.map(|data| &data[..]),
                            durable,
                        }
                    })
                    .collect();
                let read = Completion::Read { tag, slots: Ok(&reads) };
                return self.ftl.handle(now, ftl::Input::Completion(read));
            }
        };
        self.ftl.handle(now, ftl::Input::Completion(completion));
    }

    fn submit(&mut self, now: Instant, lba: u32, wrote: Option<u64>) {
        let id = self.next;
        self.next += 1;
        let value = wrote.unwrap_or(u64::MAX);
        self.buffers.push(vec![stamp(value)]);
        let buffer = id as BufferId;
        let checksums = [flash::crc(&stamp(value))];
        let (operation, checksums) = match wrote {
            Some(0) => (Operation::Trim { fua: false }, &checksums[..0]),
            Some(_) => {
                let hint = Hint::default();
                let write = Operation::Write { buffer, fua: false, atomic: false, hint };
                (write, &checksums[..])
            }
            None => (Operation::Read { buffer }, &checksums[..0]),
        };
        let request = Request { id, lba: Lba(lba), blocks: 1, operation };
        self.requests.insert(id, (lba, wrote));
        self.ftl.handle(now, ftl::Input::Request { request, checksums });
    }

    /// The next thing that happens. False if nothing ever will.
    fn step(&mut self, world: &mut World, model: &mut Model) -> bool {
        self.drain(world, model);
        world.steps += 1;
        self.trouble(world);
        let network = world.events.keys().next().map(|&(at, _)| at);
        let deadlines = [self.ftl.deadline(), self.remote.deadline()];
        let Some(next) = network.into_iter().chain(deadlines.into_iter().flatten()).min() else {
            return false;
        };
        world.now = world.now.max(next);
        let now = world.now;
        if network.is_some_and(|at| at <= now) {
            let (_, event) = world.events.pop_first().unwrap();
            self.happens(world, event);
        } else {
            self.remote.handle(now, Input::Deadline);
            if self.ftl.deadline().is_some_and(|at| at <= now) {
                self.ftl.handle(now, ftl::Input::Deadline);
            }
        }
        self.drain(world, model);
        true
    }

    fn happens(&mut self, world: &mut World, event: Event) {
        let now = world.now;
        match event {
            Event::Registered(name) => self.remote.handle(now, Input::Registered(name)),
            Event::ToNode { node, connection, id, ask } => {
                if world.links[&node] != (connection, true) {
                    return;
                }
                let refuses = world.trouble.refuses == Some(node) && world.random.below(20) == 0;
                let answer = match ask {
                    Ask::Append { .. } if refuses => {
                        let all =
                            [Refusal::Busy, Refusal::Mode, Refusal::BandFailed, Refusal::Full];
                        Answer::Refused(all[world.random.below(4) as usize])
                    }
                    ask => world.nodes.get_mut(&node).unwrap().answer(ask),
                };
                let at = now + world.service_ns(node);
                world.at(at, Event::ToClient { node, connection, id, answer });
            }
            Event::ToClient { node, connection, id, mut answer } => {
                if world.links[&node] != (connection, true) {
                    return;
                }
                if let Answer::Slots(slots) = &mut answer
                    && world.trouble.unsound == Some(node)
                {
                    // What a driver does with data that does not fit its checksum.
                    for slot in slots.iter_mut().filter(|_| world.random.below(5) == 0) {
                        *slot = None;
                    }
                }
                let signals = Signals::default();
                self.remote.handle(now, Input::Answer { node, id, answer, signals });
            }
        }
    }

    /// Nodes go and come back.
    fn trouble(&mut self, world: &mut World) {
        if let Some((node, step)) = world.trouble.lost
            && world.steps >= step
            && world.is_up(node)
        {
            world.cut(node);
            self.remote.handle(world.now, Input::Down { node });
        }
        let every = world.trouble.come_and_go;
        if every == 0 || world.random.below(every) > 0 {
            return;
        }
        let node = NodeId(1 + world.random.below(u64::from(NODES)) as u32);
        if world.trouble.lost.is_some_and(|(lost, _)| lost == node) {
            return;
        }
        if !world.is_up(node) {
            world.links.get_mut(&node).unwrap().1 = true;
            self.rejoin(world, node);
            self.remote.handle(world.now, Input::Up(world.facts(node)));
        } else if world.away() + 1 < world.replicas {
            world.cut(node);
            self.remote.handle(world.now, Input::Down { node });
        }
    }

    /// A node that was away when the volume was opened may hold bands that are in the directory: then it is a
    /// member of them again. What it holds of lives that are over is freed.
    fn rejoin(&mut self, world: &mut World, node: NodeId) {
        let generation = Generation(world.generation);
        let there = world.nodes.get_mut(&node).unwrap();
        let lives: Vec<(BandName, u32)> =
            there.bands.iter().map(|(&name, band)| (name, band.pages.len() as u32)).collect();
        for (band, has) in lives.into_iter().filter(|(name, _)| name.life >> 32 < generation.0) {
            let held = self.remote.directory().held(BlockId(band.band));
            match held.filter(|held| held.name == band && held.pages <= has) {
                Some(held) if held.nodes.contains(&node) => {}
                Some(held) => {
                    there.answer(Ask::Seal { band, generation, pages: held.pages });
                    self.remote.handle(world.now, Input::Copied { band, node });
                }
                None => {
                    there.answer(Ask::Free { band, generation });
                }
            }
        }
    }

    fn run_until(
        &mut self,
        world: &mut World,
        model: &mut Model,
        what: &str,
        done: impl Fn(&Self) -> bool,
    ) {
        let limit = world.now + 20 * SECOND;
        while !done(self) {
            let goes_on = self.step(world, model);
            if !goes_on && !done(self) || world.now > limit {
                let (ftl, remote) = (self.ftl.explain(), self.remote.explain());
                panic!("no {what} at {}: {remote}{}", world.now.0, &ftl[..ftl.len().min(600)]);
            }
        }
    }

    /// Writes, trims and reads blocks, each block one thing at a time.
    fn work(&mut self, world: &mut World, model: &mut Model, blocks: u32, operations: u32) {
        for _ in 0..operations {
            self.run_until(world, model, "request", |client| client.requests.len() < 8);
            let lba = world.random.below(u64::from(blocks)) as u32;
            if self.requests.values().any(|&(other, _)| other == lba) {
                continue;
            }
            let wrote = match world.random.below(10) {
                0..=5 => Some(1 + world.random.below(u64::from(u32::MAX))),
                6 => Some(0),
                _ => None,
            };
            if let Some(value) = wrote {
                model.open.insert(lba, value);
            }
            self.submit(world.now, lba, wrote);
        }
    }

    /// Reads all; what was not acknowledged may show or not, but then for good.
    fn read_back(&mut self, world: &mut World, model: &mut Model, blocks: u32) {
        for lba in 0..blocks {
            let id = self.next;
            let open = model.open.remove(&lba);
            let Some(open) = open else {
                self.submit(world.now, lba, None);
                self.run_until(world, model, "read", |client| client.requests.is_empty());
                continue;
            };
            // Either is right; the model takes what is read.
            let before = model.known.get(&lba).copied().unwrap_or(0);
            self.submit(world.now, lba, None);
            self.requests.insert(id, (lba, Some(before)));
            self.run_until(world, model, "read", |client| client.requests.is_empty());
            let read = &self.buffers[id as usize][0];
            let seen = [before, open].into_iter().find(|&value| *read == stamp(value));
            let seen =
                seen.unwrap_or_else(|| panic!("block {lba}: {before} or {open}, not {read:?}"));
            model.known.insert(lba, seen);
        }
    }
}

/// One life of a volume: format, work, the client killed and a fresh one, more than once, a clean end, one more.
fn live(seed: u64, replicas: u32, trouble: Trouble) -> Counters {
    let mut world = World::new(seed, replicas, trouble);
    let max = ftl::logical_blocks_max(&world.geometry, &Health::default(), &settings(seed));
    // Bands that are cut hold little.
    let blocks = max / 3;
    let mut model = Model::default();
    let mut client = Client::format(&mut world, seed, blocks);
    client.run_until(&mut world, &mut model, "format", |client| client.ready);
    let operations = 1000 + world.random.below(2000) as u32;
    client.work(&mut world, &mut model, blocks, operations);
    let counters = client.remote.counters();
    for _ in 0..1 + seed % 3 {
        world.kill_client();
        client = Client::mount(&mut world, seed);
        client.run_until(&mut world, &mut model, "mount", |client| client.ready);
        client.read_back(&mut world, &mut model, blocks);
        let operations = 300 + world.random.below(300) as u32;
        client.work(&mut world, &mut model, blocks, operations);
    }
    client.run_until(&mut world, &mut model, "end", |client| client.requests.is_empty());
    client.ftl.handle(world.now, ftl::Input::Shutdown);
    client.run_until(&mut world, &mut model, "stop", |client| client.stopped.is_some());
    assert_eq!(client.stopped, Some(true));
    let mut client = Client::mount(&mut world, seed);
    client.run_until(&mut world, &mut model, "second mount", |client| client.ready);
    client.read_back(&mut world, &mut model, blocks);
    counters
}

/// Runs the seeds of a test, `POOL_ROUNDS` times as many, or only `POOL_SEED`.
fn seeds(range: std::ops::Range<u64>, trouble: impl Fn(u64) -> Trouble) -> Vec<Counters> {
    let rounds = told_by("POOL_ROUNDS").unwrap_or(1).max(1);
    let run = |seed: u64| {
        let _told = Told(seed);
        live(seed, 2 + (seed % 2) as u32, trouble(seed))
    };
    if let Some(seed) = told_by("POOL_SEED") {
        return vec![run(seed)];
    }
    // A thousand seeds belong to a test; those of a later round are of its own last digits.
    let all = (0..rounds).flat_map(|round| range.clone().map(move |seed| seed + 1000 * round));
    all.map(run).collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds to run is for whoever runs the test to say"
)]
fn told_by(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Tells the seed of a run that fails.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("seed {seed}: repeat with POOL_SEED={seed} cargo test -p pool client");
        }
    }
}

fn sum(counters: &[Counters], of: impl Fn(&Counters) -> u64) -> u64 {
    counters.iter().map(of).sum()
}

fn all_seeds() -> bool {
    told_by("POOL_SEED").is_none()
}

#[test]
fn a_volume_without_trouble_reads_back_and_nothing_is_cut() {
    let counters = seeds(0..20, |_| Trouble::default());
    assert_eq!(sum(&counters, |c| c.cuts + c.openings_again + c.slots_lost), 0);
    assert!(sum(&counters, |c| c.programs) > 10_000);
}

#[test]
fn a_node_lost_at_any_step_costs_no_request_and_no_acknowledged_write() {
    let counters = seeds(100..180, |seed| Trouble {
        lost: Some((NodeId(1 + (seed % 5) as u32), seed * 7919 % 8_000)),
        ..Trouble::default()
    });
    let cuts = sum(&counters, |c| c.cuts);
    println!("{cuts} bands cut");
    assert!(!all_seeds() || cuts > 40, "{cuts}");
}

#[test]
fn nodes_that_come_and_go_cost_no_request_and_no_acknowledged_write() {
    let counters = seeds(200..280, |seed| Trouble {
        come_and_go: [150, 300, 2000][seed as usize / 2 % 3],
        ..Trouble::default()
    });
    let (cuts, again) = (sum(&counters, |c| c.cuts), sum(&counters, |c| c.openings_again));
    println!("{cuts} bands cut, {again} given another opening");
    assert!(!all_seeds() || cuts > 200 && again > 10, "{cuts} {again}");
}

#[test]
fn a_node_a_hundred_times_as_slow_holds_up_little() {
    let counters = seeds(300..330, |seed| Trouble {
        slow: Some(NodeId(1 + (seed % 5) as u32)),
        come_and_go: [0, 1000][seed as usize / 2 % 2],
        ..Trouble::default()
    });
    let late = sum(&counters, |c| c.late_programs);
    let hedges = sum(&counters, |c| c.hedges);
    println!("{late} late with a program, {hedges} reads hedged");
    assert!(!all_seeds() || late > 50 && hedges > 50, "{late} {hedges}");
}

#[test]
fn unsound_slots_of_one_member_come_from_another() {
    let counters = seeds(400..440, |seed| Trouble {
        unsound: Some(NodeId(1 + (seed % 5) as u32)),
        ..Trouble::default()
    });
    let unsound = sum(&counters, |c| c.unsound);
    println!("{unsound} unsound slots");
    assert_eq!(sum(&counters, |c| c.slots_lost), 0);
    assert!(!all_seeds() || unsound > 300, "{unsound}");
}

#[test]
fn a_node_that_refuses_appends_costs_no_request() {
    let counters = seeds(500..540, |seed| Trouble {
        refuses: Some(NodeId(1 + (seed % 5) as u32)),
        come_and_go: [0, 500][seed as usize / 2 % 2],
        ..Trouble::default()
    });
    let refused = sum(&counters, |c| c.appends_refused);
    println!("{refused} appends refused");
    // Who refuses is asked to begin a band again after a while only, and for its next part of the writes.
    assert!(!all_seeds() || refused > 150, "{refused}");
}

#[test]
fn over_nodes_that_must_be_flushed_one_that_is_lost_costs_no_request() {
    seeds(600..640, |seed| Trouble {
        volatile: true,
        lost: Some((NodeId(1 + (seed % 5) as u32), seed * 7919 % 12_000)),
        ..Trouble::default()
    });
}

/// As a process that was stopped and goes on: it acknowledges nothing, shows nothing, and changes nothing.
#[test]
fn a_client_that_was_paused_while_another_took_over_does_nothing_any_more() {
    for seed in 700..720 {
        let _told = Told(seed);
        let mut world = World::new(seed, 2 + (seed % 2) as u32, Trouble::default());
        let (mut model, blocks) = (Model::default(), 300);
        let mut old = Client::format(&mut world, seed, blocks);
        old.run_until(&mut world, &mut model, "format", |client| client.ready);
        old.work(&mut world, &mut model, blocks, 500);
        old.run_until(&mut world, &mut model, "end", |client| client.requests.is_empty());
        world.kill_client();
        let mut new = Client::mount(&mut world, seed);
        new.run_until(&mut world, &mut model, "mount", |client| client.ready);
        new.read_back(&mut world, &mut model, blocks);
        new.work(&mut world, &mut model, blocks, 200);
        let (of_new, generation) = (std::mem::take(&mut world.events), world.generation);
        old.may_be_fenced = true;
        for lba in 0..8 {
            let wrote = (lba % 2 == 0).then_some(1_000_000 + u64::from(lba));
            old.submit(world.now, 290 + lba, wrote);
        }
        // What it had in flight is lost with its connections.
        for node in (1..=NODES).map(NodeId) {
            old.remote.handle(world.now, Input::Down { node });
            old.remote.handle(world.now, Input::Up(world.facts(node)));
        }
        let mut nobodys = Model::default();
        old.run_until(&mut world, &mut nobodys, "end", |client| client.requests.is_empty());
        assert!(old.fenced && world.generation == generation);
        world.events = of_new;
        new.run_until(&mut world, &mut model, "end", |client| client.requests.is_empty());
        new.read_back(&mut world, &mut model, blocks);
    }
}
