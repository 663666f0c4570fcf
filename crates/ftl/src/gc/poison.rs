//! Slots whose data is lost, and with it the word of which logical block it was. The block says so
//! until it is written again. Where only a part of the map is in DRAM it is looked for chunk by chunk.
//!
//! Invariant: while a slot is looked for, its band is not given up; so what points to it cannot come
//! to point there again after it was looked at, and one pass finds it.

use crate::format::{CHUNK_ENTRIES, Kind, POISONED, UNMAPPED};
use crate::log::moves::Move;
use crate::log::points::{Append, Owner};
use crate::map::Needs;
use crate::map::residency::TRIES_MAX;
use crate::space::bands::BandState;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use flash::{BlockId, MediumError, SlotId, SlotRead};

/// Content pages read at a time.
const READS_MAX: u32 = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// Looked for in this pass, and in the next one.
    slots: Vec<SlotId>,
    next_slots: Vec<SlotId>,
    /// Content page to look at next.
    page: u32,
    reads: u32,
    tries: u32,
}

impl Search {
    pub fn is_under_way(&self) -> bool {
        !self.slots.is_empty() || !self.next_slots.is_empty()
    }
}

impl Ftl {
    /// A failing band must be emptied, whatever GC thinks of it.
    pub(crate) fn restore_failing(&mut self, block: BlockId) {
        if self.bands[block].failing && self.bands[block].state == BandState::Full {
            self.reclaim.wanted.push_back((block, "program failed: data moved"));
        }
    }

    /// The data of `slot` is lost.
    pub(crate) fn poison(&mut self, slot: SlotId) {
        if let Some(flat) = self.map.flat() {
            // There is no reverse map in DRAM: this is rare, and a look at the whole map is right.
            let found = flat.iter().position(|&entry| entry == slot.0);
            match found.map(|at| at as u32) {
                Some(lba) if lba < self.map.blocks() => self.poison_block(lba, slot),
                Some(address) => self.poison_shadow(address, slot),
                None => {}
            }
            return;
        }
        if !self.reclaim.search.slots.contains(&slot)
            && !self.reclaim.search.next_slots.contains(&slot)
        {
            let block = self.bands.block_of(slot);
            self.bands[block].reads_pending += 1;
            self.reclaim.search.next_slots.push(slot);
            self.search_on();
        }
    }

    fn poison_block(&mut self, lba: u32, slot: SlotId) {
        self.counters.blocks_poisoned += 1;
        let sequence = self.next_sequence();
        let owner = Owner::Nobody;
        let append = Append::record(Kind::Poison, lba, sequence, 0, self.empty_crc, owner);
        // The order that superseded the slot is not known before the record has a page; no order
        // after it is durable before the record is, so the next one serves.
        let order = self.durable.next();
        self.remap_known(lba, slot.0, POISONED, order);
        let point = self.relocate_point() as u16;
        let (from, failed_order, previous) = (None, None, UNMAPPED);
        self.push_move(Move { append, from, failed_order, previous, point, credit: 0 });
    }

    /// Goes on with the search as far as it can go now.
    fn search_on(&mut self) {
        loop {
            if self.reclaim.search.slots.is_empty() {
                self.reclaim.search.slots = std::mem::take(&mut self.reclaim.search.next_slots);
                (self.reclaim.search.page, self.reclaim.search.tries) = (0, 0);
            }
            if self.reclaim.search.slots.is_empty() {
                return;
            }
            let pages = self.layout.chunks.div_ceil(self.geometry.slots_per_page);
            while self.reclaim.search.page < pages && self.reclaim.search.reads < READS_MAX {
                self.search_page(self.reclaim.search.page);
                self.reclaim.search.page += 1;
            }
            if self.reclaim.search.reads > 0 {
                return;
            }
            // One that is not found was overwritten meanwhile.
            for slot in std::mem::take(&mut self.reclaim.search.slots) {
                let block = self.bands.block_of(slot);
                self.bands[block].reads_pending -= 1;
                self.drain_check = true;
            }
        }
    }

    /// Looks at what of a content page is known, and reads the rest.
    fn search_page(&mut self, page: u32) {
        let mut wanted = None;
        for chunk in self.chunks_of_page(page) {
            if self.map.cached().is_some_and(|cached| cached.chunk_needs_base(chunk)) {
                let first = wanted.map_or(chunk, |(first, _)| first);
                wanted = Some((first, chunk));
            } else {
                self.search_chunk(chunk, None);
            }
        }
        if let Some((first, last)) = wanted {
            self.reclaim.search.reads += 1;
            self.read_bases(first, last, ReadPurpose::Search);
        }
    }

    fn search_chunk(&mut self, chunk: u32, base: Option<&[u8]>) {
        let mut entries = [UNMAPPED; CHUNK_ENTRIES];
        if let Some(cached) = self.map.cached() {
            cached.compose(chunk, base, &mut entries);
        }
        for at in 0..self.reclaim.search.slots.len() {
            let slot = self.reclaim.search.slots[at];
            let found = entries.iter().position(|&entry| entry == slot.0);
            if let Some(index) = found.filter(|_| self.bands.is_valid(slot) && self.may_write()) {
                self.poison_block(chunk * CHUNK_ENTRIES as u32 + index as u32, slot);
            }
        }
    }

    /// Chunks of the last checkpoint came back.
    pub(crate) fn end_search_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        self.reclaim.search.reads -= 1;
        let mut missed = None;
        for index in 0..op.count {
            let chunk = op.lba + index;
            let slot = SlotId(op.slot.0 + index);
            let read = slots.ok().and_then(|slots| slots.get(index as usize));
            let base = self.base_bytes(chunk, slot, read);
            let needed = self.map.cached().is_some_and(|cached| cached.chunk_needs_base(chunk));
            if base.is_some() || !needed {
                self.search_chunk(chunk, base.as_deref());
            } else {
                let first = missed.map_or(chunk, |(first, _)| first);
                missed = Some((first, chunk));
            }
        }
        if let Some((first, last)) = missed {
            // It may be of the checkpoint before the last one by now.
            self.reclaim.search.tries += u32::from(self.base_slot(op.lba) == op.slot);
            if self.reclaim.search.tries < TRIES_MAX {
                self.reclaim.search.reads += 1;
                self.read_bases(first, last, ReadPurpose::Search);
            } else if self.mends(first, Needs::Search(first, last)) {
                self.reclaim.search.reads += 1;
            } else if !self.lose_chunk(first) {
                self.lose_base();
            }
        }
        self.search_on();
    }
}
