//! Host requests: from the call to the reply.
//!
//! Writes and trims are placed in the order they come, as far as there is space; reads never wait
//! for them. A write is acknowledged when its slots are programmed; with FUA, and for a flush, when
//! that would survive a power cut.

use crate::api::{ATOMIC_BLOCKS_MAX, Output, TRIM_BLOCKS_MAX};
use crate::format::{Header, Kind, MASK_48, POISONED, UNMAPPED, decode_header, is_slot};
use crate::log::points::{Append, Appended, NONE, Owner};
use crate::map::residency::{Claim, Residency};
use crate::mutant::Mutant;
use crate::slab::Slab;
use crate::space::Grounds;
use crate::space::read_slo::Way;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use crate::whole::Phase;
use crate::whole::shadowing::shown;
use flash::{
    BufferId, Hint, Instant, MediumError, Operation, Payload, Reply, Request, RequestError,
    SlotData, SlotId, SlotRead, SlotStatus, Spent,
};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Class {
    #[default]
    Read,
    Write {
        fua: bool,
        atomic: bool,
        hint: Hint,
    },
    Trim {
        fua: bool,
    },
    Flush,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct HostRequest {
    pub id: u64,
    pub lba: u32,
    pub blocks: u32,
    pub class: Class,
    pub buffer: BufferId,
    pub checksums: Vec<u32>,
    /// Blocks that have a slot.
    pub placed: u32,
    /// Blocks that the stream policy was asked about, and the append point it wants for the last.
    pub decided: u32,
    pub point: u16,
    /// Slots or reads that have not ended.
    pub pending: u32,
    pub error: Option<RequestError>,
    /// Highest order of its slots.
    pub order_last: u64,
    /// Of an atomic group: its sequence, the orders it holds, and whether its commit is placed.
    pub sequence: u64,
    pub orders: Vec<u64>,
    pub committing: bool,
    /// Part of it found no place on the fast tier that it belongs to.
    pub spilled: bool,
    /// It is counted among the writes that were held back.
    pub throttled: bool,
    /// Whose it is, see `shares`.
    pub share: u8,
    /// And what to restore if it fails: logical block, its slot, what the map said before.
    pub members: Vec<(u32, SlotId, u32)>,
    /// Requests that wait until this atomic write is decided.
    pub readers: Vec<u32>,
    /// Pieces of the map that it keeps in DRAM for its next step.
    pub claim: Claim,
    /// When it came, when all of it had its place, and when the part that ended last was begun by the medium and
    /// ended.
    pub came: Instant,
    pub placed_at: Instant,
    pub ran: (Instant, Instant),
}

impl HostRequest {
    pub fn reads(&self) -> bool {
        self.class == Class::Read
    }

    pub fn writes(&self) -> bool {
        matches!(self.class, Class::Write { .. })
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.class, Class::Write { atomic: true, .. })
    }
}

/// Somebody who waits until every order up to `order` is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub order: u64,
    pub request: u32,
}

/// What the host waits for.
#[derive(Debug, Default)]
pub(crate) struct Host {
    pub requests: Slab<HostRequest>,
    pub residency: Residency,
    /// Writes and trims that are not placed whole, oldest first.
    pub writes: VecDeque<u32>,
    /// The last so many of them came since `Ftl::warm_writes`.
    writes_cold: usize,
    /// The oldest of `writes` was tried and found no place.
    pub held: bool,
    /// Commit records that wait for room.
    pub commits: VecDeque<(u32, Append)>,
    /// Request, first logical block and count of reads that met a failed page.
    pub reroutes: Vec<(u32, u32, u32)>,
    pub waiters: Vec<Waiter>,
    /// Atomic writes of more than one block, and of them those that have a slot.
    pub atomic_writes: u32,
    pub groups_undecided: u32,
    /// An atomic write is placed in part.
    pub atomic_placing: bool,
    /// Writes may use the open bands of other handles.
    pub borrowing: bool,
    /// Trims with a record on its way, and records of refused ones.
    pub trims_running: u32,
    /// Scratch of `wake_waiters`.
    woken: Vec<u32>,
}

impl Ftl {
    pub(crate) fn submit(&mut self, request: Request, checksums: &[u32]) {
        if let Err(error) = self.admit(&request) {
            let (id, result) = (request.id, Err(error));
            self.outputs.push_back(Output::Reply(Reply { id, result, spent: Spent::default() }));
            return;
        }
        let index = self.host.requests.take();
        let entry = &mut self.host.requests[index];
        (entry.id, entry.lba, entry.blocks) = (request.id, request.lba.0, request.blocks);
        (entry.placed, entry.pending, entry.error) = (0, 0, None);
        entry.decided = 0;
        (entry.order_last, entry.sequence, entry.committing) = (0, 0, false);
        (entry.spilled, entry.throttled) = (false, false);
        (entry.came, entry.placed_at, entry.ran) = (self.now, self.now, (self.now, self.now));
        entry.checksums.clear();
        entry.members.clear();
        match request.operation {
            Operation::Read { buffer } => {
                (entry.class, entry.buffer) = (Class::Read, buffer);
                self.counters.host_reads += 1;
                self.start_read(index);
            }
            Operation::Write { buffer, fua, atomic, hint } => {
                assert_eq!(checksums.len(), request.blocks as usize, "one checksum a block");
                // A lone block is atomic as it is.
                let atomic = atomic && request.blocks > 1;
                (entry.class, entry.buffer) = (Class::Write { fua, atomic, hint }, buffer);
                entry.checksums.extend_from_slice(checksums);
                self.counters.host_writes += 1;
                self.host.atomic_writes += u32::from(atomic);
                self.queue_write(index);
                self.host.writes_cold += 1;
                if self.map.is_cached() {
                    self.claim_ahead(index);
                }
            }
            Operation::Trim { fua } => {
                entry.class = Class::Trim { fua };
                self.queue_write(index);
                self.host.writes_cold += 1;
            }
            Operation::Flush => {
                entry.class = Class::Flush;
                self.counters.host_flushes += 1;
                if self.is_untouched() {
                    self.finish(index);
                    return;
                }
                let order = self.durable.next() - 1;
                self.wait_durable(order, index);
            }
        }
    }

    fn admit(&self, request: &Request) -> Result<(), RequestError> {
        match self.phase {
            Phase::Running | Phase::ReadOnly => {}
            Phase::Failed => {
                if !matches!(request.operation, Operation::Read { .. }) {
                    return Err(RequestError::Failed);
                }
            }
            _ => return Err(RequestError::ShuttingDown),
        }
        if request.operation == Operation::Flush {
            return Ok(());
        }
        let end = u64::from(request.lba.0) + u64::from(request.blocks);
        let read = matches!(request.operation, Operation::Read { .. });
        let beyond = end > u64::from(self.map.blocks());
        let of_snapshot =
            read && beyond && self.shadows.are_readable(request.lba.0, request.blocks);
        if request.blocks == 0 || beyond && !of_snapshot {
            return Err(RequestError::OutOfRange);
        }
        if let Operation::Write { atomic: true, .. } = request.operation
            && request.blocks > ATOMIC_BLOCKS_MAX
        {
            return Err(RequestError::OutOfRange);
        }
        if let Some(refused) = self.refused.as_ref().filter(|_| read)
            && (request.lba.0..end as u32)
                .any(|lba| self.blocks_behind(lba).any(|lba| refused.holds(lba)))
        {
            return Err(RequestError::Unreadable);
        }
        if !read && (self.phase == Phase::ReadOnly || self.sequence_next >= MASK_48) {
            return Err(RequestError::Failed);
        }
        Ok(())
    }

    fn start_read(&mut self, index: u32) {
        let entry = &mut self.host.requests[index];
        // Held while the runs are queued, so that an early completion does not reply.
        entry.pending = 1;
        let (lba, blocks) = (entry.lba, entry.blocks);
        self.counters.host_blocks_read += u64::from(blocks);
        if self.map.is_cached() {
            self.note_looked_up(lba, blocks);
        }
        self.resume_read(index);
    }

    /// Begins a read, or goes on with it after the atomic write it waited for was decided.
    fn resume_read(&mut self, index: u32) {
        if self.map.is_cached() {
            self.read_on(index);
            return;
        }
        if self.host.atomic_writes > 0 && self.wait_for_group(index) {
            return;
        }
        self.look_up(index, self.host.requests[index].blocks);
        self.part_ended(index);
    }

    /// Splits the next `blocks` blocks of a read into runs that one command can read.
    pub(crate) fn look_up(&mut self, index: u32, blocks: u32) {
        let (lba, mut at, buffer) = {
            let entry = &mut self.host.requests[index];
            let at = entry.placed;
            entry.placed += blocks;
            entry.placed_at = self.now;
            (entry.lba, at, entry.buffer)
        };
        let end = at + blocks;
        while at < end {
            let (first, count) = self.run_at(lba + at, end - at);
            let into = Payload { buffer, index: at };
            match first {
                UNMAPPED => self.outputs.push_back(Output::ReadZeroes { into, count }),
                POISONED => self.fail_request(index, RequestError::Unreadable),
                slot => {
                    self.note_read(slot, count);
                    self.host.requests[index].pending += 1;
                    let read = self.units.reads.take();
                    self.units.reads[read] = ReadOp {
                        purpose: ReadPurpose::Host(index),
                        slot: SlotId(slot),
                        count,
                        into: Some(into),
                        lba: lba + at,
                        since: self.now,
                        way: Way::Reads,
                        begun: self.now,
                    };
                    self.start_slot_read(read);
                }
            }
            at += count;
        }
    }

    /// Consecutive logical blocks that lie in consecutive slots of one page, or have none.
    pub(crate) fn run_length(&self, lba: u32, max: u32, first: u32) -> u32 {
        let map = self.map.run(lba, max);
        if !is_slot(first) {
            return map.iter().take_while(|&&entry| shown(entry) == first).count() as u32;
        }
        if max == 1 {
            return 1;
        }
        let page_end =
            first + self.geometry.slots_per_page - self.geometry.slot_in_page(SlotId(first));
        let matches = (first..page_end).zip(map).take_while(|&(slot, &entry)| entry == slot);
        matches.count() as u32
    }

    /// A host read came back. Returns true if every slot was what it should be.
    pub(crate) fn end_host_read(
        &mut self,
        request: u32,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let sound = match slots {
            Ok(slots) => self.check_slots(op, slots),
            Err(_) => false,
        };
        if !sound {
            self.counters.reads_unreadable += 1;
            self.fail_request(request, RequestError::Unreadable);
        }
        let unit = self.bands.unit_of_slot(op.slot);
        self.units.note_slow(unit, op, self.now);
        self.host.requests[request].ran = (op.begun, self.now);
        self.part_ended(request);
    }

    fn check_slots(&mut self, op: &ReadOp, slots: &[SlotRead<'_>]) -> bool {
        assert_eq!(slots.len() as u32, op.count, "the medium answers for every slot");
        let mut sound = true;
        for (index, read) in slots.iter().enumerate() {
            let slot = SlotId(op.slot.0 + index as u32);
            let header = self.check_slot(slot, read);
            let right = header.is_some_and(|header| {
                header.kind == Kind::Data && self.may_name(op.lba + index as u32, header.lba)
            });
            sound &= right || (self.is_mutant(Mutant::SkipAddress) && header.is_some());
        }
        sound
    }

    /// The header of a slot that was read, if the slot is what was appended there: sound data, for
    /// this place, of this life of its band. Notes what should be refreshed.
    pub(crate) fn check_slot(&mut self, slot: SlotId, read: &SlotRead<'_>) -> Option<Header> {
        match read.status {
            SlotStatus::Ok => {}
            SlotStatus::Corrected(bits) => {
                self.counters.slots_corrected += 1;
                if bits >= self.settings.refresh_bits {
                    self.refresh(self.bands.block_of(slot));
                }
            }
            SlotStatus::Erased | SlotStatus::Uncorrectable => return None,
        }
        let header = decode_header(&read.oob, slot, self.uuid_crc)?;
        if header.payload_crc != read.crc && !self.is_mutant(Mutant::SkipChecksum) {
            return None;
        }
        let band = &self.bands[self.bands.block_of(slot)];
        // Older than the band's first page: left from before the last erase.
        (header.order >= band.first_order).then_some(header)
    }

    /// Places writes and trims, oldest first, as far as there is space.
    pub(crate) fn place_writes(&mut self) {
        self.warm_writes();
        let mut blocked = 0;
        while let Some(at) = self.next_write(blocked).filter(|_| !self.checkpoint.settling) {
            let index = self.host.writes[at];
            let done = match self.host.requests[index].class {
                Class::Write { hint, atomic, .. } => self.place_blocks(index, hint, atomic),
                Class::Trim { .. } => self.place_trim(index),
                Class::Read | Class::Flush => unreachable!("only writes and trims are placed"),
            };
            if !done {
                let Some(others) = self.block_share(index, blocked) else { return };
                blocked = others;
                continue;
            }
            self.host.writes.remove(at);
            self.unqueue_write(index);
            self.unclaim(index);
            self.after_placing(index);
        }
    }

    /// Brings the map entries of new writes into the cache, and what the stream policies look at, all
    /// at once: the misses overlap, where each by itself would hold up its write.
    fn warm_writes(&mut self) {
        let cold = std::mem::take(&mut self.host.writes_cold);
        let lbas = self.host.writes.iter().rev().take(cold);
        let lbas = lbas.map(|&index| self.host.requests[index].lba);
        for lba in lbas.clone() {
            self.warm(lba);
        }
        self.streams.warm(lbas.clone());
        for lba in lbas {
            match self.map.peek(lba) {
                Some(slot) if is_slot(slot) => self.bands.warm(SlotId(slot)),
                _ => {}
            }
        }
    }

    /// Reads the map entry of `lba` ahead of its use.
    pub(crate) fn warm(&self, lba: u32) {
        std::hint::black_box(self.map.peek(lba));
    }

    fn after_placing(&mut self, index: u32) {
        self.host.requests[index].placed_at = self.now;
        if let Class::Write { fua: true, .. } | Class::Trim { fua: true } =
            self.host.requests[index].class
        {
            if !self.note_commit() {
                self.seal_pages_of(index);
            }
        } else if self.is_beside_a_flood(index) {
            self.seal_pages_of(index);
        }
        self.part_ended(index);
    }

    /// Programs the pages that hold part of request `index` and still have room.
    fn seal_pages_of(&mut self, index: u32) {
        for point in 0..self.points.len() {
            let page = self.points[point].page;
            if page != NONE && self.pages[page].owners.contains(&Owner::Request(index)) {
                self.seal(point);
            }
        }
    }

    /// Places blocks until the request is done or there is no room. Its `pending` counts one extra
    /// from the first block to `after_placing`.
    fn place_blocks(&mut self, index: u32, hint: Hint, atomic: bool) -> bool {
        if self.host.requests[index].placed == 0 && self.host.requests[index].pending == 0 {
            if !self.entry_is_there(index) {
                return false;
            }
            let entry = &self.host.requests[index];
            if self.exceeds_kept(entry.lba, entry.blocks) {
                self.counters.writes_refused += 1;
                self.fail_request(index, RequestError::NoSpace);
                self.host.requests[index].pending = 1;
                return true;
            }
            if atomic {
                let point = self.wished_point(index, hint);
                let room = self.room_for_group(index, point) || self.room_behind(index);
                if self.holds_back(index) || !room {
                    return false;
                }
                self.host.atomic_placing = true;
            }
            self.host.requests[index].pending = 1;
        }
        while self.host.requests[index].placed < self.host.requests[index].blocks {
            if !self.host.atomic_placing && self.holds_back(index) {
                return false;
            }
            if !self.entry_is_there(index) {
                return false;
            }
            let wished = self.wished_point(index, hint);
            let wished = if atomic { wished } else { self.closing_point(wished, Grounds::Usual) };
            self.lba_next = self.host.requests[index].lba + self.host.requests[index].placed;
            self.part_from_flood(index, wished);
            let Some(point) = self.point_or_any(wished, self.host.borrowing, Grounds::Usual) else {
                return false;
            };
            self.place_block(index, point, atomic);
        }
        self.host.atomic_placing = false;
        true
    }

    fn place_block(&mut self, index: u32, point: usize, atomic: bool) {
        let sequence = match self.host.requests[index].sequence {
            // Taken with the first slot, not before: a checkpoint that begins in between would
            // count the group as one that it covers.
            0 => self.next_sequence(),
            group => group,
        };
        if atomic && self.host.requests[index].sequence == 0 {
            self.host.requests[index].sequence = sequence;
            self.host.groups_undecided += 1;
        }
        let entry = &mut self.host.requests[index];
        let at = entry.placed;
        let group = if atomic { (at as u8, (entry.blocks - 1) as u8) } else { (0, 0) };
        let lba = entry.lba + at;
        let append = Append {
            kind: Kind::Data,
            lba,
            sequence,
            payload_crc: entry.checksums[at as usize],
            argument: 0,
            group,
            data: SlotData::Payload(Payload { buffer: entry.buffer, index: at }),
            owner: Owner::Request(index),
        };
        entry.placed += 1;
        entry.pending += 1;
        let Appended { slot, order, page } = self.append(point, append);
        let previous = self.remap(lba, slot.0, order);
        let in_page = (slot.0 - self.pages[page].slot.0) as usize;
        self.pages[page].previous[in_page] = previous;
        self.note_order(index, order);
        self.note_placed(index, slot, previous);
        if atomic {
            let orders = &mut self.host.requests[index].orders;
            if orders.is_empty() {
                // Holds everything that the group's slots replace, to the group's end.
                self.durable.hold(order);
            }
            if orders.last() != Some(&order) {
                orders.push(order);
            }
            self.host.requests[index].members.push((lba, slot, previous));
        }
        self.counters.host_blocks_written += 1;
        self.charge_host(index);
    }

    fn place_trim(&mut self, index: u32) -> bool {
        if self.host.requests[index].placed == 0 {
            self.host.requests[index].pending = 1;
            if self.now < self.no_space_until {
                self.fail_request(index, RequestError::NoSpace);
                return true;
            }
        }
        while self.host.requests[index].placed < self.host.requests[index].blocks {
            let entry = &self.host.requests[index];
            let lba = entry.lba + entry.placed;
            let max = (entry.blocks - entry.placed).min(TRIM_BLOCKS_MAX);
            if self.gate_changes() {
                return false;
            }
            let Some(count) = self.trim_window(index, max) else { return false };
            let Some(point) = self.record_point(Grounds::Trim) else {
                if self.now < self.no_space_until {
                    self.fail_request(index, RequestError::NoSpace);
                    return true;
                }
                return false;
            };
            self.host.requests[index].placed += count;
            self.counters.host_blocks_trimmed += u64::from(count);
            self.trim_range(index, point, lba, count);
        }
        true
    }

    /// The append point for a record that must find room even when the host has none left.
    pub(crate) fn record_point(&mut self, grounds: Grounds) -> Option<usize> {
        let mut points = 0..self.points.len();
        let fast =
            points.clone().find(|&at| self.on_fast(at) && self.page_of(at, grounds).is_some());
        fast.or_else(|| points.find(|&point| self.page_of(point, grounds).is_some()))
    }

    fn trim_range(&mut self, index: u32, point: usize, lba: u32, count: u32) {
        // A trim that is still on its way could be undone by a power cut after this one's reply.
        let settled =
            self.host.trims_running == 0 || self.host.trims_running == 1 && self.holds_trim(index);
        if settled && self.hold_nothing(lba, count) {
            // What unmapped them may be acknowledged and not durable; with FUA this trim answers
            // for it.
            self.note_order(index, self.durable.next() - 1);
            return;
        }
        if !self.holds_trim(index) {
            self.host.trims_running += 1;
        }
        self.host.requests[index].pending += 1;
        self.host.requests[index].committing = true;
        let sequence = self.next_sequence();
        let owner = Owner::Request(index);
        self.note_trim(lba, count);
        let append = Append::record(Kind::Trim, lba, sequence, count, self.empty_crc, owner);
        let Appended { slot, order, .. } = self.append(point, append);
        for lba in lba..lba + count {
            let previous = self.remap(lba, self.trimmed(lba), order);
            self.note_placed(index, slot, previous);
        }
        self.note_order(index, order);
    }

    /// Whether the trim request has a record on its way.
    fn holds_trim(&self, index: u32) -> bool {
        self.host.requests[index].committing
    }

    /// A write waits though nothing runs that could make room for it: it waits for more than its
    /// turn.
    pub(crate) fn host_stands_still(&self) -> bool {
        let loads = self.map.is_cached() && self.loads_running() > 0;
        self.host.held && !self.host.writes.is_empty() && self.units.no_work_runs() && !loads
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence_next += 1;
        self.sequence_next - 1
    }

    pub(crate) fn note_order(&mut self, request: u32, order: u64) {
        let entry = &mut self.host.requests[request];
        entry.order_last = entry.order_last.max(order);
    }

    pub(crate) fn fail_request(&mut self, request: u32, error: RequestError) {
        self.host.requests[request].error.get_or_insert(error);
    }

    /// One slot or read of the request has ended; after the last it goes on, or is answered.
    pub(crate) fn part_ended(&mut self, index: u32) {
        let fua_ignored = self.is_mutant(Mutant::IgnoreFua);
        let failed = self.writes_ended();
        let entry = &mut self.host.requests[index];
        entry.pending -= 1;
        if entry.pending > 0 {
            return;
        }
        if failed && entry.class != Class::Read {
            // Its pages may all be there; but nobody can say that they will stay.
            entry.error.get_or_insert(RequestError::Failed);
        }
        match entry.class {
            Class::Write { atomic: true, .. } if entry.error.is_some() => self.undo_group(index),
            Class::Write { atomic: true, .. } if !entry.committing => self.commit_group(index),
            Class::Write { fua: true, .. } | Class::Trim { fua: true }
                if entry.error.is_none() && !fua_ignored =>
            {
                let order = self.host.requests[index].order_last;
                self.wait_durable(order, index);
            }
            // The fast tier is durable at completion; there, what shares cells is not.
            _ if entry.spilled && entry.error.is_none() => {
                let order = self.host.requests[index].order_last;
                self.wait_durable(order, index);
            }
            _ => self.finish(index),
        }
    }

    /// Replies, now or when every order up to `order` is durable.
    pub(crate) fn wait_durable(&mut self, order: u64, request: u32) {
        let dropped = self.is_mutant(Mutant::DropFlush);
        if self.durable.vital_durable_below() > order || dropped {
            self.finish(request);
            return;
        }
        if self.writes_ended() {
            // Nothing makes it durable any more.
            self.fail_request(request, RequestError::Failed);
            self.finish(request);
            return;
        }
        if !self.note_commit() {
            self.force_vital(order);
        }
        self.host.waiters.push(Waiter { order, request });
        self.durable_rose = true;
    }

    /// Replies to those whose orders are durable.
    pub(crate) fn wake_waiters(&mut self) {
        let durable_below = self.durable.vital_durable_below();
        let mut woken = std::mem::take(&mut self.host.woken);
        self.host.waiters.retain(|waiter| {
            let done = waiter.order < durable_below;
            if done {
                woken.push(waiter.request);
            }
            !done
        });
        for request in woken.drain(..) {
            self.finish(request);
        }
        self.host.woken = woken;
    }

    pub(crate) fn finish(&mut self, index: u32) {
        let entry = &mut self.host.requests[index];
        let result = entry.error.map_or(Ok(()), Err);
        let (id, spent) = (entry.id, entry.spent(self.now));
        let group = entry.is_atomic();
        if group && entry.sequence > 0 {
            self.host.groups_undecided -= 1;
            // The last free band is kept while a group is undecided.
            self.room_changes += 1;
            if let Some(tier) = &mut self.tier {
                tier.undecided.clear();
            }
        }
        if matches!(entry.class, Class::Trim { .. }) && entry.committing {
            self.host.trims_running -= 1;
        }
        // Marks the entry as not an undecided atomic write.
        entry.class = Class::Read;
        self.outputs.push_back(Output::Reply(Reply { id, result, spent }));
        self.counters.host_errors += u64::from(result.is_err());
        self.unclaim(index);
        if group {
            self.host.atomic_writes -= 1;
            for reader in std::mem::take(&mut self.host.requests[index].readers) {
                self.resume_read(reader);
            }
        }
        self.host.requests.give(index);
    }

    /// If nothing will make room for the oldest write, room that other handles have left serves it;
    /// if there is none, it is refused rather than kept for ever.
    pub(crate) fn serve_or_refuse(&mut self) {
        while !self.host.writes.is_empty() && self.stands_still() {
            let before = self.counters.host_blocks_written;
            self.host.borrowing = true;
            self.place_writes();
            self.host.borrowing = false;
            self.erase_wanted();
            self.demand_space();
            // An erase that began, or a record that was placed, makes room yet.
            if self.counters.host_blocks_written == before && self.stands_still() {
                self.refuse_oldest_write();
                self.place_writes();
            }
        }
    }

    /// The medium failed: a write that is not placed whole ends here.
    pub(crate) fn abandon(&mut self, index: u32) {
        self.fail_request(index, RequestError::Failed);
        let entry = &mut self.host.requests[index];
        if entry.pending == 0 {
            entry.pending = 1;
        }
        self.part_ended(index);
    }

    /// No space can be had for the oldest write: say so rather than wait for ever.
    pub(crate) fn refuse_oldest_write(&mut self) {
        let Some(index) = self.host.writes.pop_front() else { return };
        self.unqueue_write(index);
        self.host.atomic_placing = false;
        self.counters.writes_refused += 1;
        self.fail_request(index, RequestError::NoSpace);
        let entry = &mut self.host.requests[index];
        if entry.pending == 0 {
            entry.pending = 1;
        }
        self.part_ended(index);
    }

    /// When the oldest page was opened that padding would help: a host request waits for it, and
    /// its unit has no other program to do meanwhile.
    pub(crate) fn oldest_assembling(&self) -> Option<flash::Instant> {
        let pages = self.points.iter().map(|point| point.page).filter(|&page| page != NONE);
        pages.filter_map(|page| self.padding_helps(page)).min()
    }

    pub(crate) fn padding_helps(&self, page: u32) -> Option<flash::Instant> {
        let entry = &self.pages[page];
        let unit = self.geometry.unit_of(self.opens[entry.open].block);
        let idle = self.units[unit as usize].appends_waiting() == 0;
        (idle && self.page_is_waited_for(page)).then_some(self.gathers_until(page))
    }

    fn page_is_waited_for(&self, page: u32) -> bool {
        let host = |owner: &Owner| matches!(owner, Owner::Request(_));
        !self.pages[page].waiters.is_empty() || self.pages[page].owners.iter().any(host)
    }
}
