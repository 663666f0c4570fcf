//! Atomic writes of more than one block.
//!
//! Every member carries its index in the group. When all are programmed, a commit record decides
//! the group; recovery takes the members only with it. Until the record is safe, the group holds
//! the order of its first page, so that nothing its members replace is erased.

use crate::format::{Kind, UNMAPPED, is_slot};
use crate::log::points::{Append, Appended, Owner};
use crate::space::Grounds;
use crate::space::bands::BandState;
use crate::whole::Ftl;
use crate::whole::shadowing::IN_SHADOW;
use flash::SlotId;

impl Ftl {
    /// Whether an atomic write can be placed without waiting for GC, which it would hold up: the
    /// bands that GC empties wait for orders that the undecided group holds.
    pub(crate) fn room_for_group(&self, index: u32, point: usize) -> bool {
        let room_at = |point: usize| self.slots_left(&self.points[point]);
        let (room, fast) = (room_at(point), self.on_fast(point));
        let (free, floor) = if fast {
            (self.bands.free_fast, self.fast_floor())
        } else {
            (self.bands.free, self.host_floor())
        };
        let blocks = self.host.requests[index].blocks;
        if free > floor || room >= blocks && free >= floor {
            return true;
        }
        // Where all stands still, GC waits for nobody: what is invalid lies in open bands, whoever's they are, and
        // only writes that fill these bring it within reach. One slot is for the commit record.
        let others = (0..self.points.len()).filter(|&other| fast || !self.on_fast(other));
        self.host.borrowing && others.map(room_at).sum::<u32>() > blocks
    }

    /// All blocks of an atomic write are programmed: its commit record decides it.
    pub(crate) fn commit_group(&mut self, index: u32) {
        let entry = &mut self.host.requests[index];
        entry.committing = true;
        entry.pending = 1;
        let (lba, sequence) = (entry.lba, entry.sequence);
        let last = (entry.blocks - 1) as u8;
        let first = entry.orders.iter().min().copied().unwrap_or(0) as u32;
        let owner = Owner::Request(index);
        let mut append = Append::record(Kind::Commit, lba, sequence, first, self.empty_crc, owner);
        append.group = (0, last);
        self.host.commits.push_back((index, append));
        self.place_commits();
    }

    /// An atomic write failed: every block that it still owns gets its old content back, which the
    /// held orders kept.
    pub(crate) fn undo_group(&mut self, index: u32) {
        let members = std::mem::take(&mut self.host.requests[index].members);
        for &(lba, slot, previous) in members.iter().rev() {
            self.give_back(lba, slot, previous, self.host.requests[index].order_last);
        }
        let orders = std::mem::take(&mut self.host.requests[index].orders);
        if let Some(&first) = orders.first() {
            self.release(first);
        }
        self.finish(index);
    }

    /// Points `lba` to `previous` again if it still points to `slot`.
    pub(crate) fn give_back(&mut self, lba: u32, slot: SlotId, previous: u32, order: u64) {
        // As long as its slot is valid, it is what the block points to, or one of its shadows.
        if !self.bands.is_valid(slot) {
            return;
        }
        if previous == IN_SHADOW {
            self.take_back(lba, slot, order);
        } else {
            self.remap_known(self.holder(lba, slot), slot.0, previous, order);
        }
        // Its map may hold what is undone here.
        self.checkpoint.begin_anew();
        if is_slot(previous) {
            let block = self.bands.block_of(SlotId(previous));
            if self.bands[block].state == BandState::Draining {
                self.bands.set_state(block, BandState::Full);
            }
        }
    }

    /// A slot of an atomic write is elsewhere now.
    pub(crate) fn move_member(&mut self, index: u32, from: SlotId, to: SlotId) {
        let members = &mut self.host.requests[index].members;
        if let Some(member) = members.iter_mut().find(|member| member.1 == from) {
            member.1 = to;
        }
    }

    /// Appends commit records, as far as there is room.
    pub(crate) fn place_commits(&mut self) {
        while let Some((index, _)) = self.host.commits.front() {
            let index = *index;
            let Some(point) = self.record_point(Grounds::Record) else { return };
            let (_, append) = self.host.commits.pop_front().expect("the front exists");
            let Appended { slot, order, .. } = self.append(point, append);
            self.note_order(index, order);
            self.note_placed(index, slot, UNMAPPED);
            let mut after = std::mem::take(&mut self.host.requests[index].orders);
            let first = after[0];
            after.retain(|&member| member != first);
            after.push(order);
            self.durable.link(after, first);
            self.seal(point);
        }
    }

    /// True if the read of `index` must wait for an atomic write that is not decided.
    pub(crate) fn wait_for_group(&mut self, index: u32) -> bool {
        let (lba, end) = {
            let entry = &self.host.requests[index];
            (entry.lba, entry.lba + entry.blocks)
        };
        let writer = self.host.requests.indices().find(|&other| {
            let entry = &self.host.requests[other];
            let placing = entry.pending > 0 && entry.placed > 0;
            entry.is_atomic() && placing && entry.lba < end && lba < entry.lba + entry.blocks
        });
        if let Some(writer) = writer {
            self.host.requests[writer].readers.push(index);
        }
        writer.is_some()
    }

    /// Whether the sequence belongs to an atomic write that is not committed.
    pub(crate) fn group_undecided(&self, sequence: u64) -> bool {
        self.host.atomic_writes > 0
            && self.host.requests.indices().any(|index| {
                let entry = &self.host.requests[index];
                entry.is_atomic() && entry.pending > 0 && entry.sequence == sequence
            })
    }
}
