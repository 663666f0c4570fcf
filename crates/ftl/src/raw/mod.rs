//! Raw units: the flash of a device addressed directly, as SDF and TSSD give it to their
//! applications. The host sees *lanes* (a die, or the ganged dies of a channel) of *raw blocks* (an
//! erase block on each unit of the lane, pages striped over them), which it reads, writes in order
//! and erases itself. There is no GC and no cache; below the address space there is only what a
//! channel engine does: a block map per lane with bad-block management and dynamic wear levelling.
//!
//! Driven exactly as [`crate::whole::Ftl`] is, through [`crate::api::Core`]: a read is a read, an erase is a trim
//! of whole raw blocks, and a flush makes durable what was acknowledged.
//!
//! Invariants:
//! - A raw block is readable up to its write pointer and nowhere else; the write pointer moves in the
//!   order of the writes, so what was acknowledged is a prefix.
//! - A block holds at most one write of one raw block. Of several blocks that claim a raw block the
//!   newest sequence counts, unless the lane's record lists it as dead.
//! - An erase is acknowledged when each block it emptied is erased, or listed as dead in a durable
//!   record; so what was erased never comes back.
//! - A write of a whole raw block counts when all of its pages are programmed, and not before.
//! - After a mount nothing is programmed or erased on a lane until a record of that mount is durable.
//! - Nobody acts on what a record says before it is durable in two blocks, so the damage of one is made up
//!   for by the other.
//!
//! `host` takes requests in, `write` carries writes and erases through, `schedule` has the queues of
//! each unit, `record` keeps lane records, `mount` formats and recovers with
//! `look` and `ends`, `format` is every byte. `ids` and `zones` are
//! layers above, for hosts that name blocks instead of places, and for hosts of zoned devices.

mod blocks;
mod config;
mod ends;
pub mod format;
mod host;
pub mod ids;
mod look;
mod mount;
mod record;
mod schedule;
mod status;
mod write;
pub mod zones;

pub use config::{EraseTime, Lanes, RawFormat, RawSettings, WriteUnit};
pub use format::{LaneRecord, Named, NamedState, RAW_LABEL_BYTES_MAX, RAW_VERSION};
pub use status::{LaneStatus, RawBlockState};

use crate::api::{Core, Input, MountError, Output, SnapshotError};
use crate::mutant::Mutant;
use crate::slab::Slab;
use blocks::Die;
use flash::{
    BlockId, Command, Completion, Geometry, Health, Instant, Lba, MILLISECOND, MediumError,
    Payload, RequestError, SlotId, SlotWrite, Tag,
};
use host::Request;
use mount::Mount;
use record::Lane;
use schedule::Page;
use status::Counters;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use write::Write;

/// Where the device is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Formatting,
    Mounting,
    Running,
    /// Mounted to look only.
    ReadOnly,
    /// Finishes what was accepted.
    Stopping,
    Stopped,
    /// The medium could not make its state durable: reads go on as far as they can.
    Failed,
}

/// What the host may do with a raw block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum RawState {
    /// Write it from its start.
    #[default]
    Erased,
    /// Write on at its write pointer.
    Open,
    /// Erase it.
    Full,
    /// Erase it: a write of it failed, or a power cut may have interrupted one.
    Torn,
    /// Wait for the erase.
    Erasing,
}

/// A raw block. What it was written with is in `RawUnits::map` and `RawUnits::tags`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawBlock {
    pub state: RawState,
    /// Pages that may be read.
    pub pages: u32,
    /// Pages that writes were accepted for.
    pub pages_taken: u32,
    /// The first page that was missing when it was recovered, where others lie behind it.
    pub gap: Option<u32>,
    /// When it was recovered there was more behind these pages, and not all of it sound.
    pub goes_on: bool,
    pub sequence: u64,
    /// Blocks of it are lost: what lay there cannot be read before the erase.
    pub lost: bool,
}

/// A read at the medium or on its way there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadOp {
    /// The host's request; `None` for a read of recovery.
    pub request: Option<u32>,
    pub slot: SlotId,
    pub count: u32,
    pub into: Option<Payload>,
    pub raw: u32,
    pub sequence: u64,
}

/// What happens when a flush of the medium ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum After {
    /// The record of this version of a lane is durable on this side.
    Record { lane: u32, side: usize, version: u64 },
    /// What the block held, up to this sequence, is gone for good.
    Forget(BlockId, u64),
    /// A part of the request is done.
    Part(u32),
    /// All pages but the last of a raw block's block are durable.
    LastPage { write: u32, member: u32, flush: u64 },
    /// The clean records may be made.
    Quiet,
}

/// Flushes of the medium.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    wanted: bool,
    running: bool,
    begun: u64,
    ended: u64,
    /// What each ends, by number.
    after: VecDeque<(u64, After)>,
}

/// See the head of this file.
pub struct RawUnits {
    geometry: Geometry,
    settings: RawSettings,
    lanes: Lanes,
    phase: Phase,
    now: Instant,
    outputs: VecDeque<Output>,

    uuid: u128,
    uuid_crc: u32,
    empty_crc: u32,
    label: Vec<u8>,
    generation: u64,
    formatted: bool,
    sequence_next: u64,

    raw: Vec<RawBlock>,
    /// By raw block and member: the block, or [`NONE`].
    map: Vec<u32>,
    tags: BTreeMap<u32, u128>,
    /// Tags of writes to come.
    tags_next: BTreeMap<u32, u128>,
    blocks: Vec<blocks::Block>,
    dies: Vec<Die>,
    lane: Vec<Lane>,

    requests: Slab<Request>,
    reads: Slab<ReadOp>,
    writes: Slab<Write>,
    /// Writes without a reply, by raw block, in order.
    writing: BTreeMap<u32, VecDeque<u32>>,
    pages: Slab<Page>,
    /// Requests that wait for the erase of a block, and the raw block.
    erase_waiters: BTreeMap<BlockId, (u32, u32)>,
    /// Blocks still to be erased for a raw block that is `Erasing`.
    erasing: BTreeMap<u32, u32>,
    /// Raw blocks written in part.
    open: BTreeSet<u32>,
    flush: Flush,
    /// When to look for idle lanes, or try again what the medium had no room for.
    look_at: Option<Instant>,
    /// A shutdown flushed what came before the clean records.
    quiet: Quiet,
    /// A shutdown was asked for.
    stop_asked: bool,
    /// Times in a row that the medium had no room behind it.
    no_space_tries: u32,
    /// When it last had none.
    room_refused_at: Option<Instant>,
    erase_all: bool,
    mount: Option<Box<Mount>>,
    counters: Counters,
    mutant: Option<Mutant>,
}

/// How far a shutdown is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Quiet {
    #[default]
    No,
    Flushing,
    /// The clean records are on their way.
    Recording,
}

/// After so many tries, nobody waits for room behind the medium any more.
const NO_SPACE_TRIES_MAX: u32 = 10;

/// How long a unit waits after the medium had no room behind it, and how often that doubles while there is none.
const NO_SPACE_PAUSE_NS: u64 = 100 * MILLISECOND;
const NO_SPACE_DOUBLINGS_MAX: u32 = 4;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

impl Core for RawUnits {
    type Settings = RawSettings;

    fn handle(&mut self, now: Instant, input: Input<'_>) {
        debug_assert!(now >= self.now, "time only goes forward");
        self.now = self.now.max(now);
        match input {
            Input::Request { request, checksums } => self.submit(request, checksums),
            Input::Completion(completion) => self.complete(completion),
            Input::Deadline => self.deadline_passed(),
            Input::DetachFast => self.outputs.push_back(Output::FastDetached(false)),
            Input::Label(_) => self.outputs.push_back(Output::Labelled(false)),
            Input::Snapshot { number, order } => {
                let (step, result) = (order.step(), Err(SnapshotError::Number));
                self.outputs.push_back(Output::Snapshot { number, step, result });
            }
            Input::Shutdown => self.shut_down(),
            Input::Fail => self.fail(),
        }
        self.pump();
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    fn program(&self, tag: Tag) -> &[SlotWrite] {
        assert_eq!(
            tag.0 & crate::space::scheduler::TAG_KIND,
            crate::space::scheduler::TAG_PROGRAM,
            "a program's tag"
        );
        &self.pages[tag.0 & !crate::space::scheduler::TAG_KIND].slots
    }

    fn queue_at(&self, lba: Lba) -> u32 {
        if lba.0 >= self.lanes.logical_blocks() {
            return 0;
        }
        let page = lba.0 % self.lanes.slots / self.geometry.slots_per_page;
        let unit = self.lanes.unit(lba.0 / self.lanes.lane_slots(), page % self.lanes.gang);
        self.dies[unit as usize].queued()
    }

    fn lane_count(&self) -> u32 {
        self.lanes.lanes
    }

    fn counter(&self, name: &str) -> u64 {
        self.counter_list().iter().find(|entry| entry.0 == name).map_or(0, |entry| entry.1)
    }

    fn verify(&self) -> Result<(), String> {
        self.verify_blocks()
    }

    fn explain(&self) -> String {
        self.explain_state()
    }
}

impl RawUnits {
    fn complete(&mut self, completion: Completion<'_>) {
        match completion {
            Completion::Read { tag, slots } => self.complete_read(tag.0, slots),
            Completion::Program { tag, result } => {
                self.complete_program(tag.0 & !crate::space::scheduler::TAG_KIND, result);
            }
            Completion::Erase { tag, result } => {
                self.complete_erase(BlockId(tag.0 & !crate::space::scheduler::TAG_KIND), result);
            }
            Completion::Finish { .. } => unreachable!("raw units finish no block"),
            Completion::Flush { result, .. } => self.complete_flush(result),
        }
    }

    /// Moves everything on that can move.
    fn pump(&mut self) {
        if self.mount.is_some() {
            self.mount_pump();
        }
        self.flush_pump();
        if self.phase == Phase::Stopping {
            self.stop_pump();
            self.flush_pump();
        }
        if self.stop_asked && !matches!(self.phase, Phase::Running | Phase::Stopped) {
            self.stop_unclean();
        }
    }

    /// The medium failed as a whole, or may not be written any more: only reads are served.
    pub fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// The host may only read: the owner wants it so.
    pub fn is_read_only(&self) -> bool {
        self.phase == Phase::ReadOnly
    }

    /// What was never written to since its mount is as it was found: nothing waits to be durable.
    fn is_untouched(&self) -> bool {
        self.phase == Phase::ReadOnly && self.counters.slots_programmed == 0
    }

    fn may_write(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping | Phase::Formatting)
    }

    /// Does `after` when all that has completed by now is durable.
    fn when_durable(&mut self, after: After) {
        if let (Phase::Failed, After::Part(request)) = (self.phase, after) {
            self.end_part(request, Err(RequestError::Failed));
            return;
        }
        if self.geometry.durable_at_completion {
            self.done_after(after);
            return;
        }
        self.flush.wanted |= !matches!(after, After::Forget(..));
        self.flush.after.push_back((self.next_flush(), after));
    }

    /// The number of the first medium flush that begins after now.
    fn next_flush(&self) -> u64 {
        self.flush.begun + 1
    }

    fn done_after(&mut self, after: After) {
        match after {
            After::Record { lane, side, version } => self.record_durable(lane, side, version),
            After::Forget(block, sequence) => self.forget_dead(block, sequence),
            After::Part(request) => self.end_part(request, Ok(())),
            After::LastPage { write, member, flush } => self.open_last_page(write, member, flush),
            After::Quiet => self.record_clean(),
        }
    }

    fn flush_pump(&mut self) {
        if self.flush.running || !self.flush.wanted || self.phase == Phase::Failed {
            return;
        }
        self.flush.wanted = false;
        self.flush.running = true;
        self.flush.begun += 1;
        self.counters.medium_flushes += 1;
        let tag = Tag(crate::space::scheduler::TAG_FLUSH);
        self.outputs.push_back(Output::Command(Command::Flush { tag }));
    }

    fn complete_flush(&mut self, result: Result<(), MediumError>) {
        self.flush.running = false;
        self.flush.ended += 1;
        if result.is_err() {
            self.fail();
            return;
        }
        while let Some(&(number, after)) = self.flush.after.front()
            && number <= self.flush.ended
        {
            self.flush.after.pop_front();
            self.done_after(after);
        }
    }

    /// The medium could not make its state durable, or nothing may be written to it any more. What it
    /// holds unflushed is unknown, so nothing is acknowledged: everybody who waits for something that
    /// would have to be written is told so.
    fn fail(&mut self) {
        match self.phase {
            Phase::Failed | Phase::Stopped | Phase::ReadOnly => return,
            Phase::Mounting | Phase::Formatting => {
                self.fail_mount(MountError::Medium);
                return;
            }
            Phase::Running | Phase::Stopping => {}
        }
        self.counters.medium_failures += 1;
        self.phase = Phase::Failed;
        for (_, after) in std::mem::take(&mut self.flush.after) {
            if let After::Part(request) = after {
                self.end_part(request, Err(RequestError::Failed));
            }
        }
        for lane in 0..self.lanes.lanes {
            self.lose_lane(lane, RequestError::Failed);
        }
    }

    fn shut_down(&mut self) {
        self.stop_asked = true;
        match self.phase {
            Phase::Running => self.phase = Phase::Stopping,
            // Failed: once the reads that are under way have ended.
            Phase::Stopping | Phase::Failed => {}
            _ => {
                // What was never written to is as it was found.
                let untouched = self.is_untouched();
                self.phase = Phase::Stopped;
                self.outputs.push_back(Output::Stopped(untouched));
            }
        }
    }

    /// After the medium failed, or while it has no room, nothing is made durable at the end.
    fn stop_unclean(&mut self) {
        let over = self.phase == Phase::Failed || self.has_no_space();
        let quiet = self.dies.iter().all(|die| die.running() == 0) && !self.flush.running;
        if self.stop_asked && over && quiet && self.requests.in_use() == 0 {
            self.phase = Phase::Stopped;
            self.outputs.push_back(Output::Stopped(false));
        }
    }

    /// Slots that were programmed since the mount.
    pub fn slots_programmed(&self) -> u64 {
        self.counters.slots_programmed
    }

    /// When the medium last had no room behind it.
    pub fn room_refused_at(&self) -> Option<Instant> {
        self.room_refused_at
    }

    /// The medium has had no room behind it for so long that nobody is to wait for it any more.
    pub(crate) fn has_no_space(&self) -> bool {
        self.no_space_tries >= NO_SPACE_TRIES_MAX
    }

    /// Nothing is tried on `unit` for a while. Each try wears the flash, so they are fewer where there has been no
    /// room for long.
    pub(crate) fn pause_for_room(&mut self, unit: u32) {
        let doublings = (self.no_space_tries / NO_SPACE_TRIES_MAX).min(NO_SPACE_DOUBLINGS_MAX);
        self.pause(unit, NO_SPACE_PAUSE_NS << doublings);
    }

    /// The lane's first record of this mount finds no room, and nobody is to wait for it any more.
    pub(crate) fn is_unsettled_for_long(&self, lane: u32) -> bool {
        !self.lane[lane as usize].settled && self.has_no_space()
    }

    /// The medium had no room for what must be written.
    pub(crate) fn note_no_space(&mut self, lane: u32) {
        self.no_space_tries += 1;
        self.room_refused_at = Some(self.now);
        if !self.has_no_space() {
            return;
        }
        if self.phase == Phase::Formatting {
            self.fail_mount(MountError::NoSpace);
        }
        for (_, request) in std::mem::take(&mut self.lane[lane as usize].waiters) {
            self.end_part(request, Err(RequestError::NoSpace));
        }
    }

    fn stop_pump(&mut self) {
        let settled = self.lane.iter().all(|lane| lane.gone || lane.settled);
        let idle = self.dies.iter().all(|die| die.gone || die.is_idle());
        if self.requests.in_use() > 0 || !settled || !idle {
            return;
        }
        match self.quiet {
            Quiet::No => {
                self.quiet = Quiet::Flushing;
                self.dies.iter_mut().for_each(|die| die.clean_wanted = false);
                self.when_durable(After::Quiet);
            }
            Quiet::Flushing => {}
            Quiet::Recording => {
                if self.lane.iter().all(|lane| lane.gone || !lane.is_recording()) {
                    self.phase = Phase::Stopped;
                    self.outputs.push_back(Output::Stopped(true));
                }
            }
        }
    }

    fn deadline_passed(&mut self) {
        if self.look_at.is_some_and(|at| self.now >= at) {
            self.look_at = None;
            for lane in 0..self.lanes.lanes {
                self.pump_record(lane);
                self.dispatch_lane(lane);
            }
        }
    }

    /// Gives [`Input::Deadline`] some time after now.
    fn look_later(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// The raw block at `index` of `lane`, counted over the device.
    fn raw_at(&self, lane: u32, index: u32) -> u32 {
        lane * self.lanes.raw_blocks + index
    }

    fn lane_of_raw(&self, raw: u32) -> u32 {
        raw / self.lanes.raw_blocks
    }

    fn block_at(&self, raw: u32, member: u32) -> Option<BlockId> {
        let block = self.map[(raw * self.lanes.gang + member) as usize];
        (block != NONE).then_some(BlockId(block))
    }

    fn unit_of(&self, block: BlockId) -> u32 {
        self.geometry.unit_of(block)
    }

    fn empty(
        geometry: Geometry,
        health: &Health,
        settings: RawSettings,
        lanes: Lanes,
    ) -> Result<Self, String> {
        settings.validate(&geometry)?;
        let mut units = Self {
            phase: Phase::Mounting,
            now: Instant(0),
            outputs: VecDeque::new(),
            uuid: 0,
            uuid_crc: 0,
            empty_crc: crate::format::empty_crc(),
            label: Vec::new(),
            generation: 0,
            formatted: false,
            sequence_next: 1,
            raw: Vec::new(),
            map: Vec::new(),
            tags: BTreeMap::new(),
            tags_next: BTreeMap::new(),
            blocks: blocks::blocks_of(&geometry, health),
            dies: (0..geometry.units).map(|_| Die::default()).collect(),
            lane: Vec::new(),
            requests: Slab::default(),
            reads: Slab::default(),
            writes: Slab::default(),
            writing: BTreeMap::new(),
            pages: Slab::default(),
            erase_waiters: BTreeMap::new(),
            erasing: BTreeMap::new(),
            open: BTreeSet::new(),
            flush: Flush::default(),
            look_at: None,
            quiet: Quiet::No,
            stop_asked: false,
            no_space_tries: 0,
            room_refused_at: None,
            erase_all: false,
            mount: None,
            counters: Counters::default(),
            mutant: None,
            geometry,
            settings,
            lanes,
        };
        for &unit in &health.units_gone {
            units.dies[unit as usize].gone = true;
        }
        Ok(units)
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants`
    /// nothing changes.
    pub fn set_mutant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    fn is_mutant(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    /// Takes the shape of the address space, all of it erased.
    fn resize(&mut self, lanes: Lanes) {
        self.lanes = lanes;
        let raw_blocks = (lanes.lanes * lanes.raw_blocks) as usize;
        self.raw = vec![RawBlock::default(); raw_blocks];
        self.map = vec![NONE; raw_blocks * lanes.gang as usize];
        self.lane = (0..lanes.lanes).map(|_| Lane::default()).collect();
        for unit in 0..self.geometry.units {
            self.lane[lanes.lane_of(unit) as usize].gone |= self.dies[unit as usize].gone;
        }
    }
}
