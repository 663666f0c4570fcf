//! What the host asks: checked whole against the state of each raw block, then either refused with
//! the reason or taken apart into what the units do.

use super::blocks::Die;
use super::{After, EraseTime, Phase, RawState, RawUnits, ReadOp, WriteUnit};
use crate::api::{Ahead, By, Output, Waits};
use crate::mutant::Mutant;
use flash::{
    Lba, MediumError, Operation, Payload, Reply, RequestError, RequestId, SlotId, SlotRead,
    SlotStatus, Spent,
};

/// A request on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    id: RequestId,
    /// Parts without an end, and one for the submission itself.
    parts: u32,
    result: Option<RequestError>,
    /// Reply only when it would survive a power cut.
    fua: bool,
    writes: bool,
    lane: u32,
}

impl RawUnits {
    /// What the request waits for. It takes microseconds: not for each request.
    pub fn waits_for(&self, id: RequestId) -> Waits {
        let live = self.requests.live().into_iter().map(|index| &self.requests[index]);
        let Some(request) = live.into_iter().find(|request| request.id == id) else {
            return Waits::Nothing;
        };
        // A flush is of no lane.
        if request.lane >= self.lanes.lanes || self.flush.running && request.fua {
            return Waits::Flush;
        }
        let units = (0..self.lanes.gang).map(|member| self.lanes.unit(request.lane, member));
        let dies = units.map(|unit| &self.dies[unit as usize]);
        let any = |runs: fn(&Die) -> u32| dies.clone().any(|die| runs(die) > 0);
        let ahead = match request.writes {
            _ if any(|die| die.erases_running) => Ahead::Erase,
            false if any(|die| die.programs_running) => Ahead::Program(By::Host),
            _ => Ahead::Medium,
        };
        Waits::Unit(request.lane, ahead)
    }

    pub(crate) fn submit(&mut self, request: flash::Request, checksums: &[u32]) {
        let result = self.check(&request).and_then(|()| self.accept(&request, checksums));
        if let Err(error) = result {
            self.counters.host_errors += 1;
            if matches!(request.operation, Operation::Write { .. }) {
                // A tag belongs to the write that it was given for, not to the next of anybody.
                self.tags_next.remove(&(request.lba.0 / self.lanes.slots));
            }
            let (id, result) = (request.id, Err(error));
            self.outputs.push_back(Output::Reply(Reply { id, result, spent: Spent::default() }));
        }
    }

    /// What holds for every request.
    fn check(&self, request: &flash::Request) -> Result<(), RequestError> {
        let looks = matches!(request.operation, Operation::Read { .. })
            || request.operation == Operation::Flush && self.is_untouched();
        match self.phase {
            Phase::Running => {}
            Phase::ReadOnly | Phase::Failed if looks => {}
            Phase::ReadOnly | Phase::Failed => return Err(RequestError::Failed),
            _ => return Err(RequestError::ShuttingDown),
        }
        let end = u64::from(request.lba.0) + u64::from(request.blocks);
        let is_flush = request.operation == Operation::Flush;
        if !is_flush && (request.blocks == 0 || end > u64::from(self.lanes.logical_blocks())) {
            return Err(RequestError::OutOfRange);
        }
        Ok(())
    }

    fn accept(&mut self, request: &flash::Request, checksums: &[u32]) -> Result<(), RequestError> {
        let (lba, blocks) = (request.lba.0, request.blocks);
        match request.operation {
            Operation::Read { buffer } => {
                self.check_read(lba, blocks)?;
                let taken = self.take_request(request, false);
                self.queue_reads(taken, lba, blocks, buffer);
                self.end_part(taken, Ok(()));
            }
            Operation::Write { buffer, fua, atomic, .. } => {
                assert_eq!(checksums.len(), blocks as usize, "one checksum a block");
                self.check_write(lba, blocks, fua, atomic)?;
                let taken = self.take_request(request, fua);
                self.begin_write(taken, lba, blocks, buffer, checksums);
                self.counters.host_blocks_written += u64::from(blocks);
                self.end_part(taken, Ok(()));
            }
            Operation::Trim { fua } => {
                self.check_erase(lba, blocks)?;
                let taken = self.take_request(request, fua);
                for raw in lba / self.lanes.slots..(lba + blocks) / self.lanes.slots {
                    self.begin_erase(taken, raw);
                }
                self.counters.host_blocks_trimmed += u64::from(blocks);
                self.end_part(taken, Ok(()));
            }
            Operation::Flush => {
                self.counters.host_flushes += 1;
                if self.is_untouched() {
                    let taken = self.take_request(request, false);
                    self.end_part(taken, Ok(()));
                    return Ok(());
                }
                if self.pages_at_risk() {
                    return Err(RequestError::AtRisk);
                }
                let taken = self.take_request(request, false);
                self.begin_part(taken);
                self.when_durable(After::Part(taken));
                self.end_part(taken, Ok(()));
            }
        }
        Ok(())
    }

    fn check_read(&self, lba: u32, blocks: u32) -> Result<(), RequestError> {
        let granule = self.settings.read_granule;
        if !lba.is_multiple_of(granule) || !blocks.is_multiple_of(granule) {
            return Err(RequestError::Misaligned);
        }
        let (first, last) = (lba / self.lanes.slots, (lba + blocks - 1) / self.lanes.slots);
        for raw in first..=last {
            let end = (lba + blocks - raw * self.lanes.slots).min(self.lanes.slots);
            let block = &self.raw[raw as usize];
            let readable = block.pages * self.geometry.slots_per_page;
            if self.lane[self.lane_of_raw(raw) as usize].unknown {
                return Err(RequestError::Failed);
            }
            if block.state == RawState::Erasing || end > readable {
                return Err(RequestError::NotWritten);
            }
        }
        Ok(())
    }

    fn check_write(
        &self,
        lba: u32,
        blocks: u32,
        fua: bool,
        atomic: bool,
    ) -> Result<(), RequestError> {
        let raw = lba / self.lanes.slots;
        let block = &self.raw[raw as usize];
        if self.lane[self.lane_of_raw(raw) as usize].gone {
            return Err(RequestError::Failed);
        }
        if self.settings.write == WriteUnit::Block {
            if !lba.is_multiple_of(self.lanes.slots) || blocks != self.lanes.slots {
                return Err(RequestError::Misaligned);
            }
            return match block.state {
                RawState::Erased => Ok(()),
                _ => Err(RequestError::NotErased),
            };
        }
        let slots = self.geometry.slots_per_page;
        let at = lba - raw * self.lanes.slots;
        let aligned = lba.is_multiple_of(slots) && blocks.is_multiple_of(slots);
        if !aligned || at + blocks > self.lanes.slots {
            return Err(RequestError::Misaligned);
        }
        if atomic && blocks > slots {
            return Err(RequestError::OutOfRange);
        }
        let writable = matches!(block.state, RawState::Erased | RawState::Open);
        if !writable || at / slots < block.pages_taken {
            return Err(RequestError::NotErased);
        }
        if at / slots > block.pages_taken {
            return Err(RequestError::OutOfOrder);
        }
        if fua && self.is_at_risk((at + blocks) / slots) {
            return Err(RequestError::AtRisk);
        }
        Ok(())
    }

    fn check_erase(&self, lba: u32, blocks: u32) -> Result<(), RequestError> {
        if !lba.is_multiple_of(self.lanes.slots) || !blocks.is_multiple_of(self.lanes.slots) {
            return Err(RequestError::Misaligned);
        }
        for raw in lba / self.lanes.slots..(lba + blocks) / self.lanes.slots {
            if self.lane[self.lane_of_raw(raw) as usize].gone {
                return Err(RequestError::Failed);
            }
            let erasing = self.raw[raw as usize].state == RawState::Erasing;
            if erasing || self.writing.contains_key(&raw) {
                return Err(RequestError::Busy);
            }
        }
        Ok(())
    }

    /// A page to come may still destroy one of the first `pages` of a raw block.
    fn is_at_risk(&self, pages: u32) -> bool {
        let per_block = self.geometry.pages_per_block;
        (0..self.lanes.gang).any(|member| {
            let written = (pages + self.lanes.gang - 1 - member) / self.lanes.gang;
            written > 0 && self.geometry.pairing.closure(written - 1, per_block) >= written
        })
    }

    /// An acknowledged page may be destroyed by one to come.
    fn pages_at_risk(&self) -> bool {
        self.open.iter().any(|&raw| self.is_at_risk(self.raw[raw as usize].pages))
    }

    fn take_request(&mut self, request: &flash::Request, fua: bool) -> u32 {
        let taken = self.requests.take();
        let lane = match request.operation {
            Operation::Flush => super::NONE,
            _ => request.lba.0 / self.lanes.lane_slots(),
        };
        let writes = !matches!(request.operation, Operation::Read { .. });
        self.requests[taken] =
            Request { id: request.id, parts: 1, result: None, fua, writes, lane };
        if let Some(lane) = self.lane.get_mut(lane as usize) {
            lane.requests += 1;
        }
        taken
    }

    pub(crate) fn begin_part(&mut self, request: u32) {
        self.requests[request].parts += 1;
    }

    /// A part of the request ended; the last one ends the request.
    pub(crate) fn end_part(&mut self, request: u32, result: Result<(), RequestError>) {
        let entry = &mut self.requests[request];
        entry.parts -= 1;
        entry.result = entry.result.or(result.err());
        if entry.parts > 0 {
            return;
        }
        if self.phase == Phase::Failed && entry.writes {
            entry.result = entry.result.or(Some(RequestError::Failed));
        }
        let fua = entry.fua && entry.result.is_none() && !self.geometry.durable_at_completion;
        if fua && !self.is_mutant(Mutant::RawIgnoreFua) {
            let entry = &mut self.requests[request];
            entry.fua = false;
            entry.parts = 1;
            self.when_durable(After::Part(request));
            return;
        }
        let Request { id, result, lane, .. } = self.requests[request];
        self.requests.give(request);
        if let Some(lane) = self.lane.get_mut(lane as usize) {
            lane.requests -= 1;
            lane.quiet_since = self.now;
        }
        self.counters.host_errors += u64::from(result.is_some());
        let result = result.map_or(Ok(()), Err);
        self.outputs.push_back(Output::Reply(Reply { id, result, spent: Spent::default() }));
    }

    /// One read a page.
    fn queue_reads(&mut self, request: u32, lba: u32, blocks: u32, buffer: u32) {
        self.counters.host_blocks_read += u64::from(blocks);
        let slots_per_page = self.geometry.slots_per_page;
        let mut at = lba;
        while at < lba + blocks {
            let in_page = at % slots_per_page;
            let count = (slots_per_page - in_page).min(lba + blocks - at);
            let raw = at / self.lanes.slots;
            let page = at % self.lanes.slots / slots_per_page;
            let (member, index) = (page % self.lanes.gang, page / self.lanes.gang);
            self.begin_part(request);
            let Some(block) = self.block_at(raw, member) else {
                assert!(self.raw[raw as usize].lost, "a page that is written has a block");
                self.counters.reads_unreadable += 1;
                self.end_part(request, Err(RequestError::Unreadable));
                at += count;
                continue;
            };
            let read = self.reads.take();
            self.reads[read] = ReadOp {
                request: Some(request),
                slot: self.geometry.slot(block, index, in_page),
                count,
                into: Some(Payload { buffer, index: at - lba }),
                raw,
                sequence: self.raw[raw as usize].sequence,
            };
            self.dies[self.geometry.unit_of(block) as usize].reads.push_back(read);
            at += count;
        }
        for lane in lba / self.lanes.lane_slots()..=(lba + blocks - 1) / self.lanes.lane_slots() {
            self.dispatch_lane(lane);
        }
    }

    pub(crate) fn complete_read(&mut self, read: u32, slots: Result<&[SlotRead<'_>], MediumError>) {
        let op = self.reads[read];
        let unit = self.geometry.unit_of(self.geometry.block_of(op.slot));
        self.dies[unit as usize].reads_running -= 1;
        self.ended(unit, false);
        self.reads.give(read);
        if matches!(slots, Err(MediumError::UnitGone)) {
            self.lose_unit(unit);
        }
        match op.request {
            None => self.end_mount_read(&op, slots),
            Some(request) => {
                let result = self.judge_read(&op, slots);
                self.end_part(request, result);
            }
        }
        self.dispatch(unit);
    }

    fn judge_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) -> Result<(), RequestError> {
        let slots = slots.map_err(|_| RequestError::Failed)?;
        assert_eq!(slots.len(), op.count as usize, "a read returns what was asked");
        for (i, read) in (0..).zip(slots) {
            self.counters.slots_corrected +=
                u64::from(matches!(read.status, SlotStatus::Corrected(_)));
            let slot = SlotId(op.slot.0 + i);
            let header = super::format::header_of(read, slot, self.uuid_crc);
            let index = op.raw % self.lanes.raw_blocks;
            if header.is_some_and(|it| it.raw_block == index && it.sequence == op.sequence) {
                continue;
            }
            let block = &self.raw[op.raw as usize];
            let emptied = matches!(block.state, RawState::Erased | RawState::Erasing);
            if block.sequence != op.sequence || emptied {
                // Erased while the read waited.
                return Err(RequestError::NotWritten);
            }
            self.counters.reads_unreadable += 1;
            return Err(RequestError::Unreadable);
        }
        Ok(())
    }

    /// Sixteen bytes of the owner to be kept with the next write of the raw block at `lba` if that
    /// begins it, and given back by [`RawUnits::written`] as long as that is not erased.
    pub fn tag(&mut self, lba: Lba, tag: u128) {
        self.tags_next.insert(lba.0 / self.lanes.slots, tag);
    }

    /// True if erases are carried out in the background.
    pub(crate) fn erases_later(&self) -> bool {
        self.settings.erase == EraseTime::Background
    }
}
