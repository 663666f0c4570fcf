//! Lane records: what recovery must know of a lane beside its blocks. Each record repeats all of it,
//! and every change is told twice, by records in two blocks, before anybody acts on it. So a power cut
//! while one is programmed can harm only the block that it goes to (pages share cells), and when a page or
//! a block of records is damaged the other one says the same, or what was acted on last.
//!
//! Invariants:
//! - A block of records is given up only when a newer record is durable in its place, and after a mount
//!   the newest one only when there are two.
//! - A mount begins new blocks: what a cut left half done is never written on.
//! - Nor is a block with a program that failed, whatever the reason: no page is programmed twice before an erase.

use super::blocks::Use;
use super::format::{LaneRecord, Named, NamedState, encode_record_oob, mark_of};
use super::schedule::PageOf;
use super::{After, Phase, Quiet, RawBlock, RawState, RawUnits, RequestError};
use flash::{BlockId, Instant, MediumError, SlotData, SlotId, SlotWrite};
use std::collections::{BTreeSet, VecDeque};

/// One of the two blocks that records go to.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    block: Option<BlockId>,
    next_page: u32,
    /// The version that its newest record tells, and the one that its newest durable record tells.
    written: u64,
    durable: u64,
}

/// A block of older records is needed until a record of a version is durable.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// On the side that it was of.
    Side(usize),
    Either,
    Both,
}

/// What is kept of a lane as a whole.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// A unit of it is lost, or its records are: nothing is written any more.
    pub gone: bool,
    /// No record of it is sound: what its blocks hold is not known.
    pub unknown: bool,
    /// A record of this mount is durable.
    pub settled: bool,
    /// Requests under way.
    pub requests: u32,
    pub quiet_since: Instant,
    /// Blocks, and the sequence of what counts there no more. Exactly that one: a raw block that
    /// stays open for long may go on in a block that was emptied after it was begun.
    pub dead: BTreeSet<(BlockId, u64)>,
    /// Of the newest record.
    pub number: u64,
    sides: [Side; 2],
    /// Where the next record goes.
    side: usize,
    /// Blocks of older records, and the version that replaces them.
    old: Vec<(BlockId, Until, u64)>,
    /// Counts changes that a record must tell.
    version: u64,
    /// The version of the record under way.
    writing: Option<u64>,
    /// Requests that wait for a version to be durable, in order.
    pub waiters: VecDeque<(u64, u32)>,
}

impl Lane {
    /// A change is not yet told by two durable records.
    pub fn is_recording(&self) -> bool {
        self.durable() < self.version
    }

    /// The version that both sides tell.
    fn durable(&self) -> u64 {
        self.sides[0].durable.min(self.sides[1].durable)
    }

    /// `request` ends when what was changed by now is told.
    pub fn wait_for_newest(&mut self, request: u32) {
        self.waiters.push_back((self.version, request));
    }

    /// Recovery found `block` with the newest record.
    pub fn keep_newest(&mut self, block: BlockId) {
        self.old.push((block, Until::Both, self.version + 1));
    }

    /// Recovery found `block` with the newest record but those of another block.
    pub fn keep_second(&mut self, block: BlockId) {
        self.old.push((block, Until::Either, self.version + 1));
    }

    /// A block of older records is free as soon as a record is durable that is or has been written.
    pub fn frees_old(&self) -> bool {
        let volatile = self.sides.iter().any(|side| side.durable < side.written);
        !self.old.is_empty() && (volatile || self.writing.is_some())
    }

    fn replaces(&self, until: Until, version: u64) -> bool {
        match until {
            Until::Side(side) => self.sides[side].durable >= version,
            Until::Either => self.sides.iter().any(|side| side.durable >= version),
            Until::Both => self.durable() >= version,
        }
    }
}

impl RawUnits {
    /// True if so many more dead blocks fit into the lane's record.
    pub(crate) fn dead_fit(&self, lane: u32, more: u32) -> bool {
        let dead = self.lane[lane as usize].dead.len() + more as usize;
        dead <= LaneRecord::dead_max(self.label.len())
    }

    pub(crate) fn want_record(&mut self, lane: u32) {
        self.lane[lane as usize].version += 1;
        self.pump_record(lane);
    }

    /// `request` ends when a record of the lane as it is now is durable.
    pub(crate) fn wait_for_record(&mut self, lane: u32, request: u32) {
        self.begin_part(request);
        let entry = &mut self.lane[lane as usize];
        if entry.gone || !matches!(self.phase, Phase::Running | Phase::Stopping) {
            // There will be none.
            self.end_part(request, Err(RequestError::Failed));
            return;
        }
        entry.waiters.push_back((entry.version + 1, request));
        self.want_record(lane);
    }

    /// Begins a record of the lane, if one is wanted and can be had.
    pub(crate) fn pump_record(&mut self, lane: u32) {
        let entry = &self.lane[lane as usize];
        let behind = entry.sides[entry.side].written < entry.version;
        let wanted = entry.writing.is_none() && behind;
        if !wanted || entry.gone || !self.may_write() {
            return;
        }
        if !self.dead_fit(lane, 0) {
            self.shrink_dead(lane);
            return;
        }
        let side = entry.side;
        let member = if side == 0 { 0 } else { self.lanes.gang - 1 };
        let unit = self.lanes.unit(lane, member);
        let pause_until = self.dies[unit as usize].pause_until;
        if self.now < pause_until {
            self.look_later(pause_until);
            return;
        }
        if self.quiet == Quiet::Recording && self.lane_erases(lane) {
            return;
        }
        let Side { block, next_page, .. } = entry.sides[side];
        let full = next_page == self.geometry.pages_per_block;
        let (block, page) = match block {
            Some(block) if !full => (block, next_page),
            before => {
                let Some(block) = self.take_clean(unit, Use::Record) else {
                    self.want_clean(lane, unit);
                    return;
                };
                let entry = &mut self.lane[lane as usize];
                entry.old.extend(before.map(|before| (before, Until::Side(side), entry.version)));
                entry.sides[side] = Side { block: Some(block), next_page: 0, ..entry.sides[side] };
                (block, 0)
            }
        };
        self.begin_record(lane, unit, self.geometry.slot(block, page, 0));
    }

    fn lane_erases(&self, lane: u32) -> bool {
        let mut units = (0..self.lanes.gang).map(|member| self.lanes.unit(lane, member));
        units.any(|unit| self.dies[unit as usize].erases_running > 0)
    }

    fn want_clean(&mut self, lane: u32, unit: u32) {
        if self.clean_may_come(unit) {
            self.dies[unit as usize].clean_wanted = true;
            self.dispatch(unit);
            return;
        }
        if self.lane[lane as usize].frees_old() {
            return;
        }
        self.dies[unit as usize].last_reason = "no spare block is left for records";
        self.lose_lane(lane, RequestError::NoSpace);
    }

    /// More blocks are dead than a record can name: some must be erased first.
    fn shrink_dead(&mut self, lane: u32) {
        let mut hope = false;
        for member in 0..self.lanes.gang {
            let unit = self.lanes.unit(lane, member);
            let die = &mut self.dies[unit as usize];
            let dirty = !die.dirty.is_empty();
            hope |= dirty || die.erases_running > 0;
            if dirty && die.erases_running == 0 {
                die.clean_wanted = true;
                self.dispatch(unit);
            }
        }
        if !hope {
            self.lose_lane(lane, RequestError::NoSpace);
        }
    }

    fn begin_record(&mut self, lane: u32, unit: u32, slot: SlotId) {
        let number = self.lane[lane as usize].number + 1;
        let record = self.lane_record(lane, number);
        let entry = &mut self.lane[lane as usize];
        entry.number = number;
        entry.writing = Some(entry.version);
        let bytes = record.encode();
        let crc = flash::crc(&bytes[..]);
        let page = self.pages.take();
        let prepared = &mut self.pages[page];
        prepared.of = PageOf::Record { lane };
        prepared.slot = slot;
        prepared.slots.clear();
        let oob = encode_record_oob(number, slot, self.uuid_crc, crc);
        prepared.slots.push(SlotWrite { oob, data: SlotData::Meta(bytes) });
        for i in 1..self.geometry.slots_per_page {
            let slot = SlotId(slot.0 + i);
            let oob = encode_record_oob(number, slot, self.uuid_crc, self.empty_crc);
            prepared.slots.push(SlotWrite { oob, data: SlotData::Empty });
        }
        self.counters.records += 1;
        assert!(self.dies[unit as usize].record.is_none(), "a lane writes one record at a time");
        self.dies[unit as usize].record = Some(page);
        self.dispatch(unit);
    }

    fn lane_record(&self, lane: u32, number: u64) -> LaneRecord {
        let entry = &self.lane[lane as usize];
        let clean = self.quiet == Quiet::Recording;
        let mut record = LaneRecord {
            uuid: self.uuid,
            shape: crate::format::shape(&self.geometry),
            gang: self.lanes.gang,
            raw_blocks: self.lanes.raw_blocks,
            lane,
            number,
            sequence_next: self.sequence_next,
            generation: self.generation,
            formatted: self.formatted,
            clean,
            label: self.label.clone(),
            dead: entry.dead.iter().copied().collect(),
            ..LaneRecord::default()
        };
        self.name_raw_blocks(lane, &mut record);
        record
    }

    /// Tells what is not whole, and which write each raw block holds.
    fn name_raw_blocks(&self, lane: u32, record: &mut LaneRecord) {
        let first = self.raw_at(lane, 0) as usize;
        let Some(blocks) = self.raw.get(first..first + self.lanes.raw_blocks as usize) else {
            return;
        };
        let mut named = Vec::new();
        for (raw_block, block) in (0..).zip(blocks) {
            let state = match block.state {
                _ if block.lost => NamedState::Lost,
                RawState::Erased | RawState::Full => continue,
                RawState::Open if block.pages == block.pages_taken => NamedState::Open,
                RawState::Open | RawState::Torn | RawState::Erasing => NamedState::Torn,
            };
            named.push(Named { raw_block, pages: block.pages, state });
        }
        record.names_all = named.len() <= record.open_max();
        named.truncate(record.open_max());
        record.open = named;
        record.mark_bytes = record.mark_bytes_max();
        if record.mark_bytes > 0 {
            let mark = |block: &RawBlock| match block.state {
                RawState::Erased => 0,
                _ => mark_of(block.sequence, record.mark_bytes),
            };
            record.marks = blocks.iter().map(mark).collect();
        }
    }

    /// The program of a record ended.
    pub(crate) fn end_record(&mut self, lane: u32, unit: u32, result: Result<(), MediumError>) {
        let entry = &mut self.lane[lane as usize];
        let version = entry.writing.take().expect("a record was under way");
        let side = entry.side;
        match result {
            Ok(()) => {
                entry.sides[side].written = version;
                entry.sides[side].next_page += 1;
                entry.side = 1 - side;
                self.no_space_tries = 0;
                self.counters.slots_programmed += u64::from(self.geometry.slots_per_page);
                self.when_durable(After::Record { lane, side, version });
            }
            Err(MediumError::Cut) => {
                self.counters.programs_failed += 1;
                self.give_up_block(lane, side);
            }
            Err(MediumError::BlockFailed) => {
                self.counters.programs_failed += 1;
                if let Some(block) = std::mem::take(&mut entry.sides[side]).block {
                    self.put_bad(block, "a record's program failed");
                }
            }
            Err(MediumError::NoSpace) => {
                self.give_up_block(lane, side);
                // Each erase makes room behind the medium, and the next try takes a block.
                self.dies[unit as usize].clean_wanted = true;
                self.pause_for_room(unit);
                self.note_no_space(lane);
            }
            Err(MediumError::UnitGone) => self.lose_unit(unit),
            Err(MediumError::FlushFailed) => self.lose_lane(lane, RequestError::Failed),
        }
        self.pump_record(lane);
    }

    /// The block that one side's records go to takes no more of them.
    fn give_up_block(&mut self, lane: u32, side: usize) {
        let entry = &mut self.lane[lane as usize];
        let Side { block, next_page, .. } = &mut entry.sides[side];
        let Some(block) = block.take() else { return };
        if *next_page == 0 {
            // No record is in it. Kept for later, such blocks would use up all others where many programs fail.
            self.put_dirty(block);
        } else {
            // What it told stays until a newer record is durable in its place.
            entry.old.push((block, Until::Side(side), entry.version));
        }
    }

    pub(crate) fn record_durable(&mut self, lane: u32, side: usize, version: u64) {
        let entry = &mut self.lane[lane as usize];
        entry.sides[side].durable = entry.sides[side].durable.max(version);
        let durable = entry.durable();
        entry.settled |= durable > 0;
        let (freed, old) = std::mem::take(&mut entry.old)
            .into_iter()
            .partition::<Vec<_>, _>(|&(_, until, version)| entry.replaces(until, version));
        entry.old = old;
        for (block, ..) in freed {
            self.put_dirty(block);
        }
        while let Some(&(version, request)) = self.lane[lane as usize].waiters.front()
            && version <= durable
        {
            self.lane[lane as usize].waiters.pop_front();
            self.end_part(request, Ok(()));
        }
        self.pump_record(lane);
        self.dispatch_lane(lane);
    }

    /// The sequences of what is dead in `block`.
    pub(crate) fn dead_sequences(&self, block: BlockId) -> Vec<u64> {
        let lane = self.lanes.lane_of(self.unit_of(block));
        let dead = self.lane[lane as usize].dead.range((block, 0)..=(block, u64::MAX));
        dead.map(|&(_, sequence)| sequence).collect()
    }

    pub(crate) fn forget_dead(&mut self, block: BlockId, sequence: u64) {
        let lane = self.lanes.lane_of(self.unit_of(block));
        self.lane[lane as usize].dead.remove(&(block, sequence));
        self.pump_record(lane);
    }

    /// Everything before is durable: now the records that say that nothing comes after them.
    pub(crate) fn record_clean(&mut self) {
        self.quiet = Quiet::Recording;
        for lane in 0..self.lanes.lanes {
            self.want_record(lane);
        }
    }
}
