//! Volumes over real nodes and a real control plane, all with certificates: written, read, given back, taken over,
//! and with a node that dies.

use super::*;
use crate::pool::node::{self, NodeOptions, RunningNode};
use crate::pool::plane::PlaneCalls;
use crate::pool::plane::tests::Served;
use crate::pool::reach::Caller;
use crate::pool::tls;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::DriverChoice;
use crate::runtime::shard::{Clock, Engine, Finished, Milestone, Origin, Piece, Work};
use crate::{backend::Opened as Started, device::Kind};
use ::pool::control::contract::Change;
use ::pool::control::keys;
use ::pool::control::values::{FORMAT, NodeRecord, NodeState, PoolRecord, Value};
use ::pool::volume::{Wanted, plan};
use ::pool::words::{DomainId, VolumeId};
use flash::{BLOCK_BYTES, Random};
use nand::Profile;

const BLOCKS: u32 = 4096;

struct World {
    plane: Served,
    nodes: BTreeMap<u32, RunningNode>,
}

impl World {
    /// A pool of so many nodes in memory, and a volume.
    fn new(name: &str, nodes: u32) -> Self {
        let plane = Served::new(name);
        let pool = plane.config.pool;
        let mut world = Self { plane, nodes: BTreeMap::new() };
        let record = PoolRecord { pool, format: FORMAT };
        world.put(keys::POOL.into(), &record);
        for node in 1..=nodes {
            world.start(node);
        }
        let wanted = Wanted { band_bytes: 1 << 20, ..Wanted::new("data", BLOCKS.into()) };
        let volume = plan(VolumeId(1), &wanted).expect("it can be");
        world.put(keys::volume(VolumeId(1)), &volume);
        world
    }

    fn put(&self, key: String, value: &impl Value) {
        let mut calls = PlaneCalls::connect(&self.plane.client()).expect("a thread");
        let value = value.encode(&key);
        let changes = vec![Change::Put { key, value, lease: None }];
        calls.commit(Vec::new(), changes).expect("the plane answers");
    }

    fn start(&mut self, number: u32) {
        let config = self.plane.node();
        let profile = Profile::builtin("instant").expect("it is built in");
        let usual = node::tests::options(number, Kind::Memory { profile });
        let mut device = usual.device;
        let raw = device.raw.as_mut().expect("raw units");
        // Raw blocks of 2 MiB take bands of 1 MiB.
        (raw.blocks, raw.gang) = (1 << 16, 2);
        let tls = (config.identity.client, tls::server_name(config.pool));
        let options = NodeOptions {
            caller: Caller { pool: config.pool, name: format!("node {number}"), tls: Some(tls) },
            tls: Some(config.identity.server),
            device,
            ..usual
        };
        let running =
            node::start(options, |_| Ok::<(), crate::server::ServeError>(())).expect("it starts");
        let record = NodeRecord {
            node: NodeId(number),
            domain: DomainId(number),
            address: running.address.to_string(),
            profile: String::new(),
            state: NodeState::In,
        };
        self.put(keys::node(NodeId(number)), &record);
        self.nodes.insert(number, running);
    }

    /// The record of the volume tells of so many blocks from now on.
    fn grow(&self, blocks: u32) {
        let calls = &mut PlaneCalls::connect(&self.plane.client()).expect("a thread");
        let found = crate::pool::records::volume(calls, "data").expect("it is there");
        let larger = ::pool::volume::grown(&found.record, blocks.into()).expect("it can be");
        crate::pool::records::resize(calls, &found, &larger).expect("nobody else changes it");
    }

    fn open(&self) -> Volume {
        self.try_open().expect("it opens")
    }

    fn try_open(&self) -> Result<Volume, String> {
        let plane = self.plane.client();
        let mut calls = PlaneCalls::connect(&plane).expect("a thread");
        let found = crate::pool::records::volume(&mut calls, "data");
        let record = found.map_err(|error| error.to_string())?.record;
        let settings = ::pool::volume::settings();
        let (client, repairs) = ("test".to_owned(), Repairs::default());
        let options = VolumeOptions { plane, record, settings, client, go_on: false, repairs };
        let mailbox = Arc::new(Mailbox::new().expect("an eventfd"));
        let mut ring = Ring::new(256, DriverChoice::Auto).expect("a ring");
        let (engine, clock, _): Started = starter(options, Arc::clone(&mailbox))(&mut ring)?;
        Ok(Volume { engine, ring, clock, given: BTreeMap::new(), next: 0, mailbox })
    }
}

struct Volume {
    engine: Engine,
    ring: Ring,
    clock: Clock,
    given: BTreeMap<u32, Buffer>,
    next: u32,
    mailbox: Arc<Mailbox<Notice>>,
}

type Ended = (u32, Buffer, Result<(), flash::RequestError>);

impl Volume {
    fn submit(&mut self, work: Work, lba: u32, buffer: Buffer, blocks: u32) -> u32 {
        self.next += 1;
        let origin = Origin { shard: 0, request: self.next };
        let view = buffer.view(0, blocks.max(1));
        self.engine.note_time(self.clock.now());
        self.engine.submit(Piece { origin, work, lba, blocks, view });
        self.given.insert(self.next, buffer);
        self.next
    }

    fn turn(&mut self) -> Vec<Ended> {
        let now = self.clock.now();
        self.engine.note_time(now);
        self.engine.turn(now, &mut self.ring);
        let mut finished = Vec::new();
        self.engine.take_finished(&mut finished);
        if finished.is_empty() {
            let next = self.engine.deadline().unwrap_or(now + SECOND).min(now + SECOND);
            let mut done = Vec::new();
            self.ring.enter(Some(next - self.clock.now()), &mut done).expect("the ring works");
            let now = self.clock.now();
            done.into_iter().for_each(|done| self.engine.io_done(now, done, &mut self.ring));
        }
        let given = |Finished { origin, result, .. }: Finished| {
            (origin.request, self.given.remove(&origin.request).expect("it was given"), result)
        };
        finished.into_iter().map(given).collect()
    }

    fn wait(&mut self) -> Vec<Ended> {
        let begun = self.clock.now();
        let mut ended = Vec::new();
        while !self.given.is_empty() {
            ended.extend(self.turn());
            let core = &self.engine.core;
            assert!(self.clock.now() < begun + 60 * SECOND, "no end: {}", core.explain());
        }
        ended
    }

    /// Writes `count` blocks, a few at a time, with what `seed` says.
    fn write(&mut self, seed: u64, count: u32) {
        for first in (0..count).step_by(8) {
            let mut buffer = Buffer::new(8);
            buffer.bytes_mut().copy_from_slice(&content(seed, first));
            let work = Work::Write { fua: false, handle: 0, atomic: false };
            self.submit(work, first, buffer, 8);
            if first % 128 == 0 {
                self.wait().iter().for_each(|(.., result)| assert_eq!(*result, Ok(())));
            }
        }
        self.submit(Work::Flush, 0, Buffer::new(1), 0);
        self.wait().iter().for_each(|(.., result)| assert_eq!(*result, Ok(())));
    }

    fn check(&mut self, seed: u64, count: u32) {
        let mut of = BTreeMap::new();
        for first in (0..count).step_by(8) {
            of.insert(self.submit(Work::Read, first, Buffer::new(8), 8), first);
        }
        for (request, buffer, result) in self.wait() {
            assert_eq!(result, Ok(()), "block {}", of[&request]);
            assert!(buffer.bytes() == content(seed, of[&request]), "block {}", of[&request]);
        }
    }

    fn status(&mut self) -> VolumeStatus {
        let (send, answer) = std::sync::mpsc::channel();
        self.mailbox.push(Notice::Status(Box::new(move |status| drop(send.send(status)))));
        loop {
            self.turn();
            if let Ok(status) = answer.try_recv() {
                return status;
            }
        }
    }

    /// Stops the FTL and gives the volume back.
    fn close(mut self) {
        self.engine.shut_down(self.clock.now());
        loop {
            self.turn();
            match self.engine.milestone() {
                Some(Milestone::Stopped(durable)) => break assert!(durable),
                // Of a volume that has grown.
                Some(Milestone::Ready(Ok(_))) => {}
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        let clock = self.clock;
        self.engine.medium.end(&mut || clock.now(), &mut self.ring);
        self.ring.free(self.engine);
    }

    /// As when its process dies.
    fn die(mut self) {
        self.engine.medium.end(&mut || Instant(u64::MAX / 2), &mut self.ring);
        self.ring.free(self.engine);
    }
}

fn content(seed: u64, first: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8 * BLOCK_BYTES];
    let mut random = Random::new(seed << 32 | u64::from(first));
    bytes
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
    bytes
}

#[test]
fn what_is_written_to_a_volume_is_there_when_it_is_opened_again() {
    let world = World::new("again", 3);
    let mut volume = world.open();
    volume.write(1, BLOCKS);
    volume.check(1, BLOCKS);
    volume.write(2, BLOCKS / 2);
    volume.close();
    let mut volume = world.open();
    volume.check(2, BLOCKS / 2);
    let status = volume.status();
    assert_eq!(status.generation, Some(Generation(2)));
    assert!(status.nodes.values().all(Option::is_none), "{status:?}");
    volume.close();
}

#[test]
fn a_volume_goes_on_when_a_node_dies_and_has_two_copies_again_later() {
    let mut world = World::new("node-dies", 4);
    let mut volume = world.open();
    volume.write(1, BLOCKS);
    drop(world.nodes.remove(&2).expect("it runs").stop());
    volume.write(2, BLOCKS / 2);
    volume.check(2, BLOCKS / 2);
    volume.close();
    let mut volume = world.open();
    volume.check(2, BLOCKS / 2);
    volume.close();
}

#[test]
fn a_second_client_takes_the_volume_over_and_the_first_writes_nothing_more() {
    let world = World::new("take-over", 3);
    let mut first = world.open();
    first.write(1, BLOCKS / 4);
    // It is paused: it does not renew its lease, and does not know.
    let mut second = world.open();
    second.write(2, BLOCKS / 4);
    first.submit(Work::Write { fua: true, handle: 0, atomic: false }, 0, Buffer::new(8), 8);
    let ended = first.wait();
    assert!(ended.iter().all(|(.., result)| result.is_err()), "it owns the volume no more");
    assert!(first.engine.medium.lost().is_some());
    second.check(2, BLOCKS / 4);
    first.die();
    second.close();
}

#[test]
fn copies_are_compared_while_the_host_wants_nothing_and_when_somebody_says_so() {
    let world = World::new("scrub", 3);
    let mut volume = world.open();
    volume.write(1, BLOCKS);
    let begun = volume.clock.now();
    let pages = |volume: &mut Volume| volume.status().repair.expect("it is open").scrubbed.0;
    while pages(&mut volume) == 0 {
        assert!(volume.clock.now() < begun + 60 * SECOND, "nothing is compared");
    }
    volume.mailbox.push(Notice::Scrub(When::Never, Box::new(|_| {})));
    volume.status();
    let rests = pages(&mut volume);
    let until = volume.clock.now() + SECOND;
    while volume.clock.now() < until {
        // One page may have been under way.
        assert!(pages(&mut volume) <= rests + 1);
    }
    let (send, told) = std::sync::mpsc::channel();
    volume
        .mailbox
        .push(Notice::Scrub(When::Now, Box::new(move |round| send.send(round).expect("heard"))));
    volume.write(2, BLOCKS / 4);
    assert_eq!(told.try_recv(), Ok(Ok(Some(1))), "no round has been whole yet");
    assert_eq!(volume.status().scrub, When::Now, "a round takes longer than that");
    while pages(&mut volume) <= rests + 1 {
        assert!(volume.clock.now() < until + 60 * SECOND, "nothing is compared");
    }
    volume.close();
}

#[test]
fn a_volume_grows_while_it_is_served_and_what_came_meanwhile_is_done() {
    let world = World::new("grows", 3);
    let mut volume = world.open();
    volume.write(1, BLOCKS / 4);
    world.grow(BLOCKS + 1);
    while !volume.engine.medium.is_outgrown() {
        volume.turn();
    }
    // Said again while it is opened as it was said first.
    world.grow(2 * BLOCKS);
    let (begun, mut seed) = (volume.clock.now(), 1);
    let blocks = |volume: &Volume| volume.engine.status().counter("logical_blocks");
    while blocks(&volume) < u64::from(2 * BLOCKS) {
        assert!(volume.clock.now() < begun + 60 * SECOND, "it does not grow");
        seed += 1;
        volume.write(seed, 64);
        volume.check(seed, 64);
    }
    volume.write(seed + 1, 2 * BLOCKS);
    volume.check(seed + 1, 2 * BLOCKS);
    assert!(volume.status().generation > Some(Generation(1)), "it was opened anew");
    // Twice is no other thing than once; and it is found so by whoever opens it.
    world.grow(3 * BLOCKS);
    volume.close();
    let mut volume = world.open();
    assert_eq!(blocks(&volume), u64::from(3 * BLOCKS));
    volume.check(seed + 1, 2 * BLOCKS);
    volume.close();
}

#[test]
fn a_server_may_stop_at_any_moment_of_the_growth_of_its_volume() {
    let world = World::new("grows-stops", 3);
    let mut volume = world.open();
    volume.write(1, BLOCKS / 4);
    volume.close();
    let mut met = std::collections::BTreeSet::new();
    for phase in ["running", "stopping", "stopped", "mounting"].into_iter().cycle().take(12) {
        let mut volume = world.open();
        let blocks = volume.engine.status().counter("logical_blocks");
        world.grow(blocks as u32 + 1);
        let begun = volume.clock.now();
        let is_grown = |volume: &Volume| {
            let status = volume.engine.status();
            status.phase() == "running" && status.counter("logical_blocks") > blocks
        };
        let mut began = false;
        let is_there = |volume: &Volume, began| {
            is_grown(volume) || began && volume.engine.status().phase() == phase
        };
        while !is_there(&volume, began) {
            volume.turn();
            began |= volume.engine.medium.is_outgrown();
            assert!(volume.clock.now() < begun + 60 * SECOND, "nobody hears of it");
        }
        met.extend((!is_grown(&volume)).then_some(phase));
        volume.check(1, 8);
        volume.close();
    }
    assert_eq!(met.len(), 4, "only {met:?}");
    let mut volume = world.open();
    volume.check(1, BLOCKS / 4);
    volume.close();
}

#[test]
fn a_client_whose_ftl_has_failed_ends_and_the_next_one_recovers() {
    let world = World::new("failed", 3);
    let mut volume = world.open();
    volume.write(1, BLOCKS / 4);
    volume.engine.core.handle(volume.clock.now(), ftl::Input::Fail);
    volume.submit(Work::Write { fua: true, handle: 0, atomic: false }, 0, Buffer::new(8), 8);
    let ended = volume.wait();
    assert!(ended.iter().all(|(.., result)| result.is_err()), "nothing is written any more");
    assert_eq!(volume.engine.medium.lost(), Some(Lost::Failed));
    volume.die();
    let mut volume = world.open();
    volume.check(1, BLOCKS / 4);
    volume.close();
}
