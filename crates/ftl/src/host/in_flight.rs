//! Host reads that meet a page whose program has not ended. They wait for it, so that nobody sees what
//! a power cut could still undo; or read the original, if the page holds a copy. If the program fails
//! they look for the block again; as long as its slot has no other place, they are given what was there
//! before, which nobody has seen replaced: so no read waits for room.

use crate::api::Output;
use crate::format::{POISONED, UNMAPPED, is_slot};
use crate::log::moves::Move;
use crate::log::points::Owner;
use crate::mutant::Mutant;
use crate::space::read_slo::Way;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use flash::{Payload, RequestError, SlotId};

impl Ftl {
    /// Queues a read. Where the program of a slot has not ended, the read waits for it; or, if the
    /// slot is a copy that GC makes, goes to the original, which is still there.
    pub(crate) fn start_slot_read(&mut self, read: u32) {
        let op = self.units.reads[read];
        if self.moves_failed > 0 && self.any_failed(op.slot, op.count) {
            let ReadPurpose::Host(request) = op.purpose else {
                unreachable!("only host reads start here")
            };
            self.units.reads.give(read);
            self.host.reroutes.push((request, op.lba, op.count));
            return;
        }
        let block = self.bands.block_of(op.slot);
        let end = op.slot.0 - self.geometry.slot(block, 0, 0).0 + op.count;
        let band = &self.bands[block];
        let programmed =
            band.state != crate::space::bands::BandState::Open || end <= band.slots_done;
        if programmed || self.is_mutant(Mutant::ReadBeforeProgram) {
            self.bands[block].reads_pending += 1;
            self.queue_read(read);
            return;
        }
        if op.count > 1 && self.geometry.is_fast(block) {
            // Its slots may be of several programs, ended and not.
            self.split_read(read);
            return;
        }
        let page = self.page_in_flight(block, op.slot);
        let first = (op.slot.0 - self.pages[page].slot.0) as usize;
        let originals = self.pages[page].owners[first..first + op.count as usize]
            .iter()
            .any(|owner| matches!(owner, Owner::Relocation(_)));
        if !originals {
            self.bands[block].reads_pending += 1;
            self.units.reads[read].way = Way::InFlight;
            self.pages[page].waiters.push(read);
            return;
        }
        let (ReadPurpose::Host(request), Some(into)) = (op.purpose, op.into) else {
            unreachable!("only host reads meet a page in flight")
        };
        self.host.requests[request].pending += op.count;
        for index in 0..op.count {
            self.read_in_flight(page, first, index, &op, into);
        }
        self.units.reads.give(read);
        self.part_ended(request);
    }

    /// Queues a host read slot by slot.
    fn split_read(&mut self, read: u32) {
        let op = self.units.reads[read];
        let (ReadPurpose::Host(request), Some(into)) = (op.purpose, op.into) else {
            unreachable!("only host reads meet a page in flight")
        };
        self.units.reads.give(read);
        self.host.requests[request].pending += op.count - 1;
        for index in 0..op.count {
            let read = self.units.reads.take();
            let (slot, lba) = (SlotId(op.slot.0 + index), op.lba + index);
            let into = Some(Payload { index: into.index + index, ..into });
            self.units.reads[read] = ReadOp { slot, count: 1, into, lba, ..op };
            self.start_slot_read(read);
        }
    }

    /// Whether one of the slots could not be programmed and has no other place yet.
    pub(crate) fn any_failed(&self, first: SlotId, count: u32) -> bool {
        self.moves.iter().any(|entry| {
            let within = |from: SlotId| (first.0..first.0 + count).contains(&from.0);
            entry.failed_order.is_some() && entry.from.is_some_and(within)
        })
    }

    /// Reads one slot of a page in flight: the original of a copy, or the slot when programmed.
    fn read_in_flight(&mut self, page: u32, first: usize, index: u32, op: &ReadOp, into: Payload) {
        let at = first + index as usize;
        let original = self.pages[page].previous[at];
        let copy = matches!(self.pages[page].owners[at], Owner::Relocation(_));
        let from_original = copy && is_slot(original);
        let slot = if from_original { SlotId(original) } else { SlotId(op.slot.0 + index) };
        let block = self.bands.block_of(slot);
        self.bands[block].reads_pending += 1;
        let read = self.units.reads.take();
        let into = Some(Payload { index: into.index + index, ..into });
        self.units.reads[read] = ReadOp { slot, count: 1, into, lba: op.lba + index, ..*op };
        if from_original {
            self.queue_read(read);
        } else {
            self.units.reads[read].way = Way::InFlight;
            self.pages[page].waiters.push(read);
        }
    }

    fn page_in_flight(&self, block: flash::BlockId, slot: SlotId) -> u32 {
        let mut opens = self.opens.indices();
        let open = opens.find(|&open| self.opens[open].live && self.opens[open].block == block);
        let open = open.expect("an open band has an entry");
        let mut pages = self.opens[open].outstanding.iter().copied();
        pages
            .find(|&page| slot.0.wrapping_sub(self.pages[page].slot.0) < self.pages[page].room)
            .expect("a slot whose program has not ended has a page")
    }

    /// A parked read whose page failed: its block is elsewhere now, or about to be.
    pub(crate) fn reroute(&mut self, read: u32) {
        let op = self.units.reads[read];
        let block = self.bands.block_of(op.slot);
        self.bands[block].reads_pending -= 1;
        let ReadPurpose::Host(request) = op.purpose else {
            unreachable!("only host reads wait for a page")
        };
        self.units.reads.give(read);
        self.host.reroutes.push((request, op.lba, op.count));
    }

    /// What `lba` points to; where that could not be programmed and has no other place yet, what it
    /// pointed to before.
    fn entry_to_read(&self, lba: u32) -> u32 {
        let mut entry = self.entry_at(lba);
        if self.moves_failed == 0 {
            return entry;
        }
        let failed = |slot: u32| {
            let of_slot = |entry: &&Move| {
                entry.failed_order.is_some() && entry.from.is_some_and(|from| from.0 == slot)
            };
            self.moves.iter().find(of_slot).map(|entry| entry.previous)
        };
        while let Some(previous) = failed(entry) {
            entry = self.entry_before(lba, previous);
        }
        entry
    }

    /// Looks again where rerouted blocks are.
    pub(crate) fn place_reroutes(&mut self) {
        if self.host.reroutes.is_empty() {
            return;
        }
        for (request, lba, count) in std::mem::take(&mut self.host.reroutes) {
            if !self.entries_are_there(lba, count) {
                self.host.reroutes.push((request, lba, count));
                continue;
            }
            let (first, buffer) =
                (self.host.requests[request].lba, self.host.requests[request].buffer);
            for lba in lba..lba + count {
                let into = Payload { buffer, index: lba - first };
                match self.entry_to_read(lba) {
                    UNMAPPED => self.outputs.push_back(Output::ReadZeroes { into, count: 1 }),
                    POISONED => self.fail_request(request, RequestError::Unreadable),
                    slot => {
                        self.host.requests[request].pending += 1;
                        let read = self.units.reads.take();
                        self.units.reads[read] = ReadOp {
                            purpose: ReadPurpose::Host(request),
                            slot: SlotId(slot),
                            count: 1,
                            into: Some(into),
                            lba,
                            since: self.now,
                            way: Way::InFlight,
                            begun: self.now,
                        };
                        self.start_slot_read(read);
                    }
                }
            }
            self.part_ended(request);
        }
    }
}
