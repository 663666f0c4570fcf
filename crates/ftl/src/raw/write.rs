//! Writes and erases, from the raw block's state to the blocks of its units.
//!
//! A program that fails makes its block bad. A write of a whole raw block starts that block again on
//! a spare one, as the host's buffer is still there. A write of pages fails, and the raw block with
//! it: what was acknowledged stays readable where it is, nothing can be added, and the host erases
//! the raw block when it has read what it wants.

use super::blocks::{Use, Work};
use super::format::{RawHeader, encode_raw_header};
use super::schedule::{PageOf, Step};
use super::{After, NONE, RawState, RawUnits, RequestError, WriteUnit};
use crate::mutant::Mutant;
use crate::space::scheduler::PROGRAMS_MAX;
use flash::{BlockId, MediumError, Payload, SlotData, SlotId, SlotWrite};

/// The last page of a raw block's block on a medium with a volatile cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum LastPage {
    /// It must wait until all before it are durable: recovery looks at the last page only, so it
    /// must not survive without them.
    #[default]
    Closed,
    /// The medium flush of this number makes them so.
    Flushing(u64),
    Open,
}

/// A write on one unit of its lane.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// The next page to program, counted in the raw block.
    next: u32,
    running: u32,
    done: u32,
    last_page: LastPage,
    /// Its block failed; begins again on another when nothing runs.
    restart: bool,
}

/// A write of pages of one raw block.
#[derive(Debug, Default)]
pub(crate) struct Write {
    request: u32,
    raw: u32,
    first: u32,
    end: u32,
    buffer: u32,
    checksums: Vec<u32>,
    members: Vec<Member>,
    failed: Option<RequestError>,
    header: Option<RawHeader>,
}

impl Write {
    fn is_done(&self) -> bool {
        self.members.iter().map(|member| member.done).sum::<u32>() == self.end - self.first
    }

    fn first_page_of(&self, member: u32, gang: u32) -> u32 {
        self.first + (member + gang - self.first % gang) % gang
    }
}

impl RawUnits {
    pub(crate) fn begin_write(
        &mut self,
        request: u32,
        lba: u32,
        blocks: u32,
        buffer: u32,
        checksums: &[u32],
    ) {
        let raw = lba / self.lanes.slots;
        let slots = self.geometry.slots_per_page;
        let first = lba % self.lanes.slots / slots;
        let end = first + blocks / slots;
        let whole = self.settings.write == WriteUnit::Block;
        let block = &mut self.raw[raw as usize];
        if block.state == RawState::Erased {
            block.state = RawState::Open;
            block.sequence = self.sequence_next;
            self.sequence_next += 1;
            if let Some(tag) = self.tags_next.remove(&raw) {
                self.tags.insert(raw, tag);
            }
        }
        block.pages_taken = end;
        let header = RawHeader {
            raw_block: raw % self.lanes.raw_blocks,
            sequence: block.sequence,
            whole,
            tag: self.tags.get(&raw).copied(),
        };
        self.begin_part(request);
        let taken = self.writes.take();
        let write = &mut self.writes[taken];
        (write.request, write.raw, write.first, write.end) = (request, raw, first, end);
        (write.buffer, write.failed, write.header) = (buffer, None, Some(header));
        write.checksums.clear();
        write.checksums.extend_from_slice(checksums);
        write.members.clear();
        let lane = raw / self.lanes.raw_blocks;
        for member in 0..self.lanes.gang {
            let next = write.first_page_of(member, self.lanes.gang);
            write.members.push(Member { next, ..Member::default() });
            if next < end {
                let unit = self.lanes.unit(lane, member);
                self.dies[unit as usize].work.push_back(Work::Program(taken));
            }
        }
        self.writing.entry(raw).or_default().push_back(taken);
        self.dispatch_lane(lane);
    }

    /// Programs the next page of `write` on `unit`, if that can be done now.
    pub(crate) fn step_write(&mut self, unit: u32, taken: u32) -> Step {
        let member = self.lanes.member_of(unit);
        let write = &self.writes[taken];
        let (raw, state) = (write.raw, write.members[member as usize]);
        let end = write.end;
        let settled = self.lane[self.lane_of_raw(raw) as usize].settled;
        let full = self.dies[unit as usize].programs_running >= PROGRAMS_MAX;
        if self.is_unsettled_for_long(self.lane_of_raw(raw)) {
            self.fail_write(taken, RequestError::NoSpace);
            return Step::Again;
        }
        if !settled || full || state.restart {
            return Step::Wait;
        }
        let Some(block) = self.block_of_write(unit, raw, member) else {
            let lane = self.lanes.lane_of(unit);
            if self.clean_may_come(unit) || self.lane[lane as usize].frees_old() {
                self.dies[unit as usize].clean_wanted = true;
                if !self.has_no_space() {
                    return Step::Wait;
                }
                // The erase that it waits for may find no room for ever.
            } else {
                self.dies[unit as usize].last_reason = "no spare block is left";
            }
            self.fail_write(taken, RequestError::NoSpace);
            return Step::Again;
        };
        let index = state.next / self.lanes.gang;
        if index + 1 == self.geometry.pages_per_block && !self.may_end_block(taken, unit) {
            return Step::Wait;
        }
        let state = &mut self.writes[taken].members[member as usize];
        let page = state.next;
        state.next += self.lanes.gang;
        state.running += 1;
        if state.next >= end {
            // At once: when the write has ended, its place is another's.
            self.dies[unit as usize].work.pop_front();
        }
        let slot = self.geometry.slot(block, index, 0);
        let prepared = self.prepare_page(taken, page, slot);
        self.issue_program(unit, prepared);
        Step::Issued
    }

    /// The block on `unit` that takes the raw block's pages.
    fn block_of_write(&mut self, unit: u32, raw: u32, member: u32) -> Option<BlockId> {
        if let Some(block) = self.block_at(raw, member) {
            return Some(block);
        }
        let block = self.take_clean(unit, Use::Raw)?;
        self.map[(raw * self.lanes.gang + member) as usize] = block.0;
        Some(block)
    }

    /// The last page of a block may be programmed: all before it are as durable as they can be.
    fn may_end_block(&mut self, taken: u32, unit: u32) -> bool {
        if self.geometry.durable_at_completion {
            return true;
        }
        let member = self.lanes.member_of(unit);
        match self.writes[taken].members[member as usize].last_page {
            LastPage::Open => return true,
            LastPage::Flushing(_) => return false,
            LastPage::Closed => {}
        }
        if self.dies[unit as usize].programs_running == 0 {
            let flush = self.next_flush();
            self.writes[taken].members[member as usize].last_page = LastPage::Flushing(flush);
            self.when_durable(After::LastPage { write: taken, member, flush });
        }
        false
    }

    pub(crate) fn open_last_page(&mut self, taken: u32, member: u32, flush: u64) {
        // The write may have failed meanwhile, and its place be another's.
        let Some(state) = self.writes[taken].members.get_mut(member as usize) else { return };
        if state.last_page == LastPage::Flushing(flush) {
            state.last_page = LastPage::Open;
            let lane = self.lane_of_raw(self.writes[taken].raw);
            self.dispatch(self.lanes.unit(lane, member));
        }
    }

    fn prepare_page(&mut self, taken: u32, page: u32, slot: SlotId) -> u32 {
        let prepared = self.pages.take();
        let write = &self.writes[taken];
        let header = write.header.expect("a write under way has a header");
        let slots_per_page = self.geometry.slots_per_page;
        let at = (page - write.first) * slots_per_page;
        let entry = &mut self.pages[prepared];
        entry.of = PageOf::Write { write: taken };
        entry.slot = slot;
        entry.slots.clear();
        for i in 0..slots_per_page {
            let crc = write.checksums[(at + i) as usize];
            let oob = encode_raw_header(&header, SlotId(slot.0 + i), self.uuid_crc, crc);
            let data = SlotData::Payload(Payload { buffer: write.buffer, index: at + i });
            entry.slots.push(SlotWrite { oob, data });
        }
        prepared
    }

    /// A page of a write ended.
    pub(crate) fn end_write_page(
        &mut self,
        taken: u32,
        unit: u32,
        result: Result<(), MediumError>,
    ) {
        let member = self.lanes.member_of(unit);
        let write = &mut self.writes[taken];
        let raw = write.raw;
        let state = &mut write.members[member as usize];
        state.running -= 1;
        match result {
            Ok(()) => {
                state.done += 1;
                self.counters.slots_programmed += u64::from(self.geometry.slots_per_page);
                self.no_space_tries = 0;
            }
            // Of a block that takes no more nothing can be promised to who fills it, so it ends as failed; after its
            // erase one whose program was only cut short is as good as any.
            Err(error @ (MediumError::BlockFailed | MediumError::Cut)) => {
                self.counters.programs_failed += 1;
                let whole = write.header.is_some_and(|header| header.whole);
                state.restart = whole;
                if let Some(block) = self.block_at(raw, member) {
                    self.blocks[block.0 as usize].failing |= error == MediumError::BlockFailed;
                }
                if !whole {
                    self.fail_write(taken, RequestError::ProgramFailed);
                } else if self.lane[self.lane_of_raw(raw) as usize].gone {
                    // No other block of it is written any more.
                    self.fail_write(taken, RequestError::Failed);
                }
            }
            Err(MediumError::NoSpace) => {
                self.room_refused_at = Some(self.now);
                self.pause_for_room(unit);
                self.fail_write(taken, RequestError::NoSpace);
            }
            Err(MediumError::UnitGone) => {
                self.fail_write(taken, RequestError::Failed);
                self.lose_unit(unit);
            }
            Err(MediumError::FlushFailed) => self.fail_write(taken, RequestError::Failed),
        }
        if self.writes[taken].failed.is_some() {
            self.end_failed(taken);
            return;
        }
        let state = self.writes[taken].members[member as usize];
        if state.restart && state.running == 0 {
            self.restart(taken, unit);
        }
        self.end_writes(raw);
    }

    /// The block that `write` filled on `unit` failed: fills another.
    fn restart(&mut self, taken: u32, unit: u32) {
        let member = self.lanes.member_of(unit);
        let write = &mut self.writes[taken];
        let (raw, sequence) = (write.raw, write.header.map_or(0, |header| header.sequence));
        let next = write.first_page_of(member, self.lanes.gang);
        write.members[member as usize] = Member { next, ..Member::default() };
        let lane = self.lane_of_raw(raw);
        let failed = self.unmap(raw, member);
        if let Some(block) = failed {
            if self.block(block).failing {
                self.put_bad(block, "a program failed");
            } else {
                self.put_dirty(block);
            }
            self.lane[lane as usize].dead.insert((block, sequence));
        }
        let work = &mut self.dies[unit as usize].work;
        if !work.contains(&Work::Program(taken)) {
            work.push_front(Work::Program(taken));
        }
        if failed.is_some() {
            // Last: a lane with no block left for its record is lost, and with it the writes in its queues. This one
            // has to be among them.
            self.want_record(lane);
        }
        self.dispatch(unit);
    }

    /// Ends the writes of `raw` that are done, in order.
    fn end_writes(&mut self, raw: u32) {
        while let Some(writing) = self.writing.get_mut(&raw)
            && let Some(&taken) = writing.front()
        {
            let write = &self.writes[taken];
            if write.failed.is_some() || !write.is_done() {
                return;
            }
            writing.pop_front();
            if writing.is_empty() {
                self.writing.remove(&raw);
            }
            let (request, end) = (write.request, write.end);
            let block = &mut self.raw[raw as usize];
            block.pages = end;
            if end == self.lanes.pages {
                block.state = RawState::Full;
                self.open.remove(&raw);
            } else {
                self.open.insert(raw);
            }
            self.writes.give(taken);
            self.end_part(request, Ok(()));
        }
    }

    /// `write` and those of the same raw block after it end with `error`, once nothing of them runs.
    pub(crate) fn fail_write(&mut self, taken: u32, error: RequestError) {
        if self.writes[taken].failed.is_some() {
            return;
        }
        let raw = self.writes[taken].raw;
        let writing = self.writing.get(&raw).into_iter().flatten();
        let failed: Vec<u32> = writing.copied().skip_while(|&write| write != taken).collect();
        let lane = self.lane_of_raw(raw);
        self.raw[raw as usize].state = RawState::Torn;
        self.open.remove(&raw);
        for &write in &failed {
            self.writes[write].failed = Some(error);
            for member in 0..self.lanes.gang {
                let unit = self.lanes.unit(lane, member) as usize;
                self.dies[unit].work.retain(|work| *work != Work::Program(write));
            }
        }
        for write in failed {
            self.end_failed(write);
        }
    }

    /// Answers a failed write of which nothing runs any more.
    fn end_failed(&mut self, taken: u32) {
        let write = &self.writes[taken];
        let Some(error) = write.failed else { return };
        if write.members.iter().any(|member| member.running > 0) {
            return;
        }
        let (raw, request) = (write.raw, write.request);
        let whole = write.header.is_some_and(|header| header.whole);
        let Some(writing) = self.writing.get_mut(&raw) else { return };
        let before = writing.len();
        writing.retain(|&write| write != taken);
        if writing.len() == before {
            return;
        }
        if writing.is_empty() {
            self.writing.remove(&raw);
        }
        if whole {
            // Nothing of it will ever count, also where a clean stop comes before the erase.
            let sequence = self.raw[raw as usize].sequence;
            for member in 0..self.lanes.gang {
                if let Some(block) = self.unmap(raw, member) {
                    let lane = self.lane_of_raw(raw) as usize;
                    self.lane[lane].dead.insert((block, sequence));
                    self.put_dirty(block);
                }
            }
            self.raw[raw as usize] = super::RawBlock::default();
            self.tags.remove(&raw);
        }
        self.writes.give(taken);
        self.end_part(request, Err(error));
    }

    fn unmap(&mut self, raw: u32, member: u32) -> Option<BlockId> {
        let entry = &mut self.map[(raw * self.lanes.gang + member) as usize];
        let block = std::mem::replace(entry, NONE);
        (block != NONE).then_some(BlockId(block))
    }

    pub(crate) fn begin_erase(&mut self, request: u32, raw: u32) {
        let lane = self.lane_of_raw(raw);
        let block = &mut self.raw[raw as usize];
        if block.state == RawState::Erased {
            // Where an erase was refused for want of room a record stands for it, which may still be on its way.
            let entry = &mut self.lane[lane as usize];
            if entry.is_recording() && !entry.gone && self.no_space_tries > 0 {
                entry.wait_for_newest(request);
                self.begin_part(request);
            }
            return;
        }
        let sequence = block.sequence;
        (block.state, block.pages, block.pages_taken) = (RawState::Erased, 0, 0);
        (block.gap, block.goes_on) = (None, false);
        self.open.remove(&raw);
        self.tags.remove(&raw);
        let later = self.erases_later() && self.dead_fit(lane, self.lanes.gang);
        // What is lost has nothing to be erased: its record must say that it is not wanted any more.
        let mut recorded = std::mem::take(&mut self.raw[raw as usize].lost);
        let mut erasing = 0;
        for member in 0..self.lanes.gang {
            let Some(block) = self.unmap(raw, member) else { continue };
            if later || self.block(block).failing {
                self.lane[lane as usize].dead.insert((block, sequence));
                self.blocks[block.0 as usize].emptied = !self.lane[lane as usize].settled;
                self.put_dirty(block);
                recorded = true;
                continue;
            }
            self.begin_part(request);
            self.set_use(block, Use::Erasing);
            self.erase_waiters.insert(block, (request, raw));
            erasing += 1;
            let unit = self.lanes.unit(lane, member);
            self.dies[unit as usize].work.push_back(Work::Erase(block));
        }
        if erasing > 0 {
            self.raw[raw as usize].state = RawState::Erasing;
            self.erasing.insert(raw, erasing);
        }
        if recorded && self.is_mutant(Mutant::RawEraseUnrecorded) {
            self.want_record(lane);
        } else if recorded {
            self.wait_for_record(lane, request);
        }
        self.dispatch_lane(lane);
    }

    pub(crate) fn complete_erase(&mut self, block: BlockId, result: Result<(), MediumError>) {
        let unit = self.unit_of(block);
        let lane = self.lanes.lane_of(unit);
        self.dies[unit as usize].erases_running -= 1;
        self.ended(unit, true);
        match result {
            Ok(()) => {
                self.blocks[block.0 as usize].erase_count += 1;
                self.counters.erases += 1;
                self.put_clean(block);
                self.dies[unit as usize].clean_wanted = false;
                for sequence in self.dead_sequences(block) {
                    self.when_durable(After::Forget(block, sequence));
                }
                self.end_erase(block, Ok(()));
            }
            Err(error @ (MediumError::BlockFailed | MediumError::Cut)) => {
                self.counters.erases_failed += 1;
                if error == MediumError::BlockFailed {
                    self.put_bad(block, "an erase failed");
                } else {
                    self.put_dirty(block);
                }
                self.end_failed_erase(block);
            }
            // Nothing is wrong with the block: it is erased later.
            Err(MediumError::NoSpace) => {
                self.pause_for_room(unit);
                self.put_dirty(block);
                self.note_no_space(lane);
                self.end_failed_erase(block);
            }
            Err(MediumError::FlushFailed) => {
                self.pause_for_room(unit);
                self.put_dirty(block);
                self.end_erase(block, Err(RequestError::Failed));
            }
            Err(MediumError::UnitGone) => {
                self.end_erase(block, Err(RequestError::Failed));
                self.lose_unit(unit);
            }
        }
        self.pump_record(lane);
        self.dispatch(unit);
    }

    /// The erase of `block` cannot begin for want of room: a record that is to come stands for it.
    pub(crate) fn put_erase_off(&mut self, block: BlockId) {
        self.put_dirty(block);
        let lane = self.lanes.lane_of(self.unit_of(block));
        self.blocks[block.0 as usize].emptied = !self.lane[lane as usize].settled;
        self.end_failed_erase(block);
    }

    /// A block that could not be erased may still hold what it held. If the host waits for it, a
    /// record that says so stands for the erase.
    fn end_failed_erase(&mut self, block: BlockId) {
        let Some(&(request, raw)) = self.erase_waiters.get(&block) else { return };
        let lane = self.lanes.lane_of(self.unit_of(block));
        let sequence = self.raw[raw as usize].sequence;
        self.lane[lane as usize].dead.insert((block, sequence));
        self.wait_for_record(lane, request);
        self.end_erase(block, Ok(()));
    }

    pub(crate) fn end_erase(&mut self, block: BlockId, result: Result<(), RequestError>) {
        let Some((request, raw)) = self.erase_waiters.remove(&block) else { return };
        let left = self.erasing.get_mut(&raw).expect("an erase that is waited for is counted");
        *left -= 1;
        if *left == 0 {
            self.erasing.remove(&raw);
            self.raw[raw as usize].state = RawState::Erased;
            // Nobody waits for it, but once it is told, a block that shows what it held before the erase is
            // known to be damaged.
            self.want_record(self.lane_of_raw(raw));
        }
        self.end_part(request, result);
    }
}
