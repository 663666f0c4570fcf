//! A client machine: a session with the FTL over it and a host that reads, writes, trims and flushes. What a driver
//! has to do beside carrying messages is all here, and is what the head of `pool::session` asks for.

use super::world::{GEOMETRY, VOLUME};
use crate::disks::Stamp;
use flash::{
    BLOCK_BYTES, BufferId, Command, Completion, Geometry, Health, Hint, Instant, Lba, MICROSECOND,
    MILLISECOND, MediumError, Operation, Payload, Random, Reply, Request, SlotData, SlotRead,
    SlotStatus, SlotWrite,
};
use ftl::policy::UnitWeights;
use ftl::{FormatOptions, Ftl, Settings};
use pool::client::End;
use pool::control::mutant::Mutant;
use pool::control::ownership::OwnershipConfig;
use pool::message::Slot;
use pool::node::store::Data;
use pool::opening::OpeningConfig;
use pool::session::{Input, Output, Session, SessionConfig};
use pool::words::PoolId;
use std::collections::{BTreeMap, VecDeque};

/// Logical blocks of the volume.
pub const BLOCKS_PER_LANE: u32 = 50;
/// As many as a quarter of over-provisioning leaves.
pub const BLOCKS_PER_LANE_PRESSED: u32 = 131;
const REQUESTS_MAX: usize = 4;
const REQUESTS_MAX_PRESSED: usize = 8;

/// The FTL's own blocks, by what stands for each: the same for all machines, as the bytes of a block are.
#[derive(Default)]
pub struct Interned(Vec<Vec<u8>>);

/// Stamps from here on stand for blocks of the FTL's own.
const INTERNED: u64 = 1 << 63;

impl Interned {
    fn add(&mut self, bytes: &[u8]) -> Stamp {
        self.0.push(bytes.to_vec());
        Stamp(INTERNED | (self.0.len() as u64 - 1))
    }

    fn bytes(&self, stamp: Stamp) -> Option<&[u8]> {
        (stamp.0 >= INTERNED).then(|| &self.0[(stamp.0 - INTERNED) as usize][..])
    }

    /// What the FTL takes for the checksum of a block.
    fn crc(&self, stamp: Option<Stamp>) -> u32 {
        match stamp {
            None => zero_crc(),
            Some(stamp) => self.bytes(stamp).map_or_else(|| stamp.crc(), flash::crc),
        }
    }
}

fn zero_crc() -> u32 {
    flash::crc(&[0; BLOCK_BYTES])
}

/// What the host asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    Read,
    /// A trim writes 0.
    Write(u64),
    Flush,
}

/// What happens that somebody must check or carry.
pub enum Said {
    Session(Output<Stamp>),
    /// The host asks for this.
    Begun {
        lba: u32,
        wish: Wish,
    },
    /// It is answered: with the value that was read.
    Replied {
        lba: u32,
        wish: Wish,
        result: Result<u64, ()>,
    },
    Ready,
    /// Too little was left of the volume.
    Gone,
    /// It stopped in order.
    Stopped,
}

/// What the volume is.
#[derive(Clone, Copy)]
pub struct Shape {
    pub lanes: u32,
    pub blocks_per_lane: u32,
    pub is_durable: bool,
    /// All copies are read all the time.
    pub scrubs: bool,
    /// Nobody waits for nodes that are away, and what is found is shown.
    pub salvages: bool,
}

pub struct Machine {
    pub session: Session<Stamp>,
    ftl: Option<Ftl>,
    geometry: Geometry,
    blocks_per_lane: u32,
    seed: u64,
    /// By request: what is read or written.
    buffers: BTreeMap<u64, Stamp>,
    relocation: Vec<Stamp>,
    requests: BTreeMap<u64, (u32, Wish)>,
    next: u64,
    pub is_ready: bool,
    /// It reads all copies all the time.
    scrubs: bool,
    salvages: bool,
    /// Replies that wait for the lease.
    replies: VecDeque<Reply>,
    /// Of the lanes, as the session said last.
    weights: UnitWeights,
    act_at: Instant,
    checkpoints: u64,
    stopping: bool,
    /// It is over: it may be forgotten.
    pub is_over: bool,
    /// Blocks to be read, all one after the other, in place of anything else.
    pub audit: Option<u32>,
    /// The same of blocks to be written, once all were read.
    pub rewritten: Option<u32>,
    /// All that is read now was written anew.
    pub is_sure: bool,
    pub said: VecDeque<Said>,
}

fn settings(seed: u64) -> Settings {
    Settings {
        append_wait_ns: 50 * MICROSECOND,
        idle_ns: MILLISECOND,
        relocation_blocks: 32,
        checkpoint_slots: 200,
        seed,
        ..Settings::default()
    }
}

impl Machine {
    pub fn new(now: Instant, number: u64, shape: Shape, mutant: Option<Mutant>) -> Self {
        let mut ownership = OwnershipConfig::new(VOLUME, u128::from(number) + 1);
        ownership.lease_ns = 300 * MILLISECOND;
        ownership.answer_ns_max = 60 * MILLISECOND;
        let mut opening = OpeningConfig::new(PoolId(1), ownership);
        opening.patience_ns = 150 * MILLISECOND;
        let units = shape.lanes;
        let geometry = Geometry { units, durable_at_completion: shape.is_durable, ..GEOMETRY };
        let mut config = SessionConfig::new(opening, geometry);
        config.client.seed = number + 1;
        config.client.program_limit_ns = 40 * MILLISECOND;
        config.client.flush_limit_ns = 50 * MILLISECOND;
        config.client.erase_limit_ns = 200 * MILLISECOND;
        config.repair.absence_ns = 700 * MILLISECOND;
        let mut session = Session::new(now, config);
        if let Some(mutant) = mutant {
            session.plant(mutant);
        }
        if shape.salvages {
            session.handle(now, Input::GoOn);
        }
        Self {
            session,
            ftl: None,
            geometry,
            blocks_per_lane: shape.blocks_per_lane,
            seed: number,
            buffers: BTreeMap::new(),
            relocation: vec![Stamp(0); settings(0).relocation_blocks as usize],
            requests: BTreeMap::new(),
            next: 0,
            is_ready: false,
            scrubs: shape.scrubs,
            salvages: shape.salvages,
            replies: VecDeque::new(),
            weights: UnitWeights::default(),
            act_at: now,
            checkpoints: 0,
            stopping: false,
            is_over: false,
            audit: None,
            rewritten: None,
            is_sure: false,
            said: VecDeque::new(),
        }
    }

    pub fn handle(&mut self, now: Instant, input: Input<'_, Stamp>, interned: &mut Interned) {
        self.session.handle(now, input);
        self.pump(now, interned);
    }

    /// The FTL, once the volume was opened.
    pub fn mount(&mut self, is_formatted: bool) {
        let (health, logical_blocks) = (Health::default(), self.blocks());
        let (salvage, own) = (self.salvages, settings(self.seed));
        let settings = Settings { logical_blocks_min: logical_blocks, salvage, ..own };
        let ftl = if is_formatted {
            Ftl::mount(self.geometry, &health, settings)
        } else {
            let options = FormatOptions { logical_blocks, uuid: 77, label: Vec::new() };
            Ftl::format(self.geometry, &health, options, settings)
        };
        let ftl = self.ftl.insert(ftl.expect("the geometry suits"));
        ftl.set_unit_weights(&self.weights);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant, random: &mut Random, interned: &mut Interned) {
        self.session.handle(now, Input::Deadline);
        if let Some(ftl) = &mut self.ftl
            && ftl.deadline().is_some_and(|at| at <= now)
        {
            ftl.handle(now, ftl::Input::Deadline);
        }
        if now >= self.act_at {
            let pause = MILLISECOND + random.below(6 * MILLISECOND);
            self.act_at = now + if self.is_pressed() { pause / 16 } else { pause };
            self.act(now, random);
        }
        self.pump(now, interned);
    }

    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let ftl = self.ftl.as_ref().and_then(Ftl::deadline);
        let acts = self.is_ready.then_some(self.act_at);
        [self.session.deadline(now), ftl, acts].into_iter().flatten().min()
    }

    /// Stops in order.
    pub fn stop(&mut self, now: Instant, interned: &mut Interned) {
        if !std::mem::replace(&mut self.stopping, true) {
            match &mut self.ftl {
                Some(ftl) if self.is_ready => ftl.handle(now, ftl::Input::Shutdown),
                _ => self.session.handle(now, Input::Release),
            }
            self.pump(now, interned);
        }
    }

    /// Logical blocks that the volume has for this machine.
    pub fn blocks(&self) -> u32 {
        self.geometry.units * self.blocks_per_lane
    }

    fn is_pressed(&self) -> bool {
        self.blocks_per_lane == BLOCKS_PER_LANE_PRESSED
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether nothing that the host asked for is unanswered.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// What the FTL tells of itself, and what the session waits for.
    pub fn explain(&self, now: Instant) -> String {
        let ftl = self.ftl.as_ref().map_or_else(String::new, Ftl::explain);
        let repair = self.session.repair(now);
        format!("{}{repair:?}\n{}", self.session.explain(now), &ftl[..ftl.len().min(800)])
    }

    fn act(&mut self, now: Instant, random: &mut Random) {
        let most = if self.is_pressed() { REQUESTS_MAX_PRESSED } else { REQUESTS_MAX };
        if !self.is_ready || self.stopping || self.requests.len() >= most {
            return;
        }
        if let Some(next) = self.audit.filter(|next| *next < self.blocks()) {
            if self.is_busy(next) {
                // Of two at a time either may come first: the model would not know what to expect.
                return;
            }
            self.audit = Some(next + 1);
            self.act_at = now;
            return self.submit(now, next, Wish::Read);
        }
        if let Some(next) = self.rewritten.filter(|next| *next < self.blocks()) {
            if !self.is_busy(next) {
                self.rewritten = Some(next + 1);
                self.submit(now, next, Wish::Write(1 + random.below(INTERNED - 2)));
            }
            return;
        }
        if self.audit.is_some() {
            return;
        }
        let lba = random.below(u64::from(self.blocks())) as u32;
        let wish = match random.below(20) {
            0..=10 => Wish::Write(1 + random.below(INTERNED - 2)),
            11 => Wish::Write(0),
            12 => Wish::Flush,
            _ => Wish::Read,
        };
        if !self.is_busy(lba) {
            self.submit(now, lba, wish);
        }
    }

    fn is_busy(&self, lba: u32) -> bool {
        self.requests.values().any(|(of, _)| *of == lba)
    }

    fn submit(&mut self, now: Instant, lba: u32, wish: Wish) {
        let (id, buffer) = (self.next, self.next as BufferId);
        self.next += 1;
        let lba = if wish == Wish::Flush { u32::MAX } else { lba };
        let mut sums = Vec::new();
        let operation = match wish {
            Wish::Read => Operation::Read { buffer },
            Wish::Flush => Operation::Flush,
            Wish::Write(0) => Operation::Trim { fua: false },
            Wish::Write(value) => {
                sums.push(Stamp(value).crc());
                Operation::Write { buffer, fua: false, atomic: false, hint: Hint::default() }
            }
        };
        self.buffers
            .insert(id, if let Wish::Write(value) = wish { Stamp(value) } else { Stamp(0) });
        self.requests.insert(id, (lba, wish));
        self.said.push_back(Said::Begun { lba, wish });
        let blocks = u32::from(wish != Wish::Flush);
        let at = if wish == Wish::Flush { Lba(0) } else { Lba(lba) };
        let request = Request { id, lba: at, blocks, operation };
        let ftl = self.ftl.as_mut().expect("it is ready");
        ftl.handle(now, ftl::Input::Request { request, checksums: &sums });
    }

    /// Carries out what the session and the FTL want, until neither wants anything.
    pub fn pump(&mut self, now: Instant, interned: &mut Interned) {
        loop {
            if let Some(output) = self.ftl.as_mut().and_then(Ftl::poll) {
                self.of_ftl(now, output, interned);
            } else if let Some(output) = self.session.poll() {
                self.of_session(now, output, interned);
            } else {
                break;
            }
        }
        let counters = self.ftl.as_ref().map_or(0, |ftl| ftl.counter("checkpoints"));
        if counters != self.checkpoints {
            self.checkpoints = counters;
            self.session.handle(now, Input::Checkpoints(counters));
            return self.pump(now, interned);
        }
        while self.session.may_reply(now)
            && let Some(reply) = self.replies.pop_front()
        {
            self.reply(&reply);
        }
    }

    fn of_ftl(&mut self, now: Instant, output: ftl::Output, interned: &mut Interned) {
        match output {
            ftl::Output::Command(Command::Program { tag, slot, .. }) => {
                let writes = self.ftl.as_ref().expect("it asks").program(tag);
                let slots = writes.iter().map(|write| self.slot(write, interned)).collect();
                self.session.handle(now, Input::Program { tag, slot, slots });
            }
            ftl::Output::Command(command) => self.session.handle(now, Input::Command(command)),
            ftl::Output::ReadZeroes { into, count } => {
                (0..count).for_each(|at| self.fill(into, at, Stamp(0)));
            }
            ftl::Output::Reply(reply) => self.replies.push_back(reply),
            // The volume went to another one meanwhile.
            ftl::Output::Ready(Err(_)) if self.is_over => {}
            ftl::Output::Ready(Err(_)) if self.salvages => self.said.push_back(Said::Gone),
            ftl::Output::Ready(result) => {
                let report = result.unwrap_or_else(|why| panic!("the mount failed: {why}"));
                assert!(
                    self.salvages || report.damage().is_none(),
                    "{:?} at {now:?}",
                    report.damage()
                );
                self.is_ready = true;
                self.act_at = now;
                if self.scrubs {
                    self.session.handle(now, Input::Idle(true));
                }
                self.said.push_back(Said::Ready);
            }
            ftl::Output::Stopped(_) => self.session.handle(now, Input::Release),
            ftl::Output::FastDetached(_) => unreachable!("there is no fast tier"),
            ftl::Output::Labelled(_) => unreachable!("nobody changes the label"),
            ftl::Output::Snapshot { .. } => unreachable!("nobody takes a snapshot"),
        }
    }

    fn of_session(&mut self, now: Instant, output: Output<Stamp>, interned: &Interned) {
        match output {
            Output::Ended(end) => self.complete(now, end, interned),
            Output::Weights(weights) => {
                self.weights.clone_from(&weights);
                if let Some(ftl) = &mut self.ftl {
                    ftl.set_unit_weights(&weights);
                }
            }
            Output::Refresh(block) => {
                if let Some(ftl) = &mut self.ftl {
                    ftl.ask_refresh(block);
                }
            }
            Output::Fenced(_) => {
                self.replies.clear();
                if let Some(ftl) = &mut self.ftl {
                    ftl.handle(now, ftl::Input::Fail);
                }
                self.is_over = true;
                self.said.push_back(Said::Session(output));
            }
            Output::Released | Output::Failed(_) => {
                self.is_over = true;
                self.said.push_back(Said::Stopped);
                self.said.push_back(Said::Session(output));
            }
            Output::Lease { .. } => {}
            output => self.said.push_back(Said::Session(output)),
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let (lba, wish) = self.requests.remove(&reply.id).expect("it was asked");
        let value = self.buffers.remove(&reply.id).expect("it has a buffer");
        let result = reply.result.map(|()| value.0).map_err(|_| ());
        self.said.push_back(Said::Replied { lba, wish, result });
    }

    fn slot(&self, write: &SlotWrite, interned: &mut Interned) -> Slot<Stamp> {
        let data = match &write.data {
            SlotData::Payload(from) if from.buffer == Payload::RELOCATION => {
                Some(self.relocation[from.index as usize])
            }
            SlotData::Payload(from) => Some(self.buffers[&u64::from(from.buffer)]),
            SlotData::Meta(bytes) => Some(interned.add(&bytes[..])),
            SlotData::Empty => None,
        };
        Slot { oob: write.oob, crc: data.map_or_else(zero_crc, |data| data.crc()), data }
    }

    fn fill(&mut self, into: Payload, at: u32, data: Stamp) {
        if into.buffer == Payload::RELOCATION {
            self.relocation[(into.index + at) as usize] = data;
        } else {
            self.buffers.insert(u64::from(into.buffer), data);
        }
    }

    fn complete(&mut self, now: Instant, end: End<Stamp>, interned: &Interned) {
        let completion = match end {
            End::Program { tag, result } => Completion::Program { tag, result },
            End::Erase { tag, result } => Completion::Erase { tag, result },
            End::Finish { tag } => Completion::Finish { tag },
            End::Flush { tag, result } => Completion::Flush { tag, result },
            End::Read { tag, into, slots, durable } => {
                let Ok(slots) = slots else {
                    let read = Completion::Read { tag, slots: Err(MediumError::UnitGone) };
                    return self.end(now, read);
                };
                for (at, end) in (0..).zip(&slots) {
                    if let (Some(into), SlotStatus::Ok) = (into, end.status) {
                        let data = end.slot.as_ref().and_then(|slot| slot.data);
                        self.fill(into, at, data.unwrap_or(Stamp(0)));
                    }
                }
                let read = |end: &pool::client::SlotEnd<Stamp>| {
                    let data = end.slot.as_ref().and_then(|slot| slot.data);
                    SlotRead {
                        status: end.status,
                        oob: end.slot.as_ref().map_or([0; 32], |slot| slot.oob),
                        crc: interned.crc(data),
                        bytes: None,
                        durable,
                    }
                };
                let mut reads: Vec<SlotRead<'_>> = slots.iter().map(read).collect();
                for (read, end) in reads.iter_mut().zip(&slots) {
                    let data = end.slot.as_ref().and_then(|slot| slot.data);
                    read.bytes = data.and_then(|data| interned.bytes(data));
                }
                return self.end(now, Completion::Read { tag, slots: Ok(&reads) });
            }
        };
        self.end(now, completion);
    }

    fn end(&mut self, now: Instant, completion: Completion<'_>) {
        let ftl = self.ftl.as_mut().expect("it asked");
        ftl.handle(now, ftl::Input::Completion(completion));
    }
}
