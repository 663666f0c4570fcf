//! Staging: where only a part of the map is in DRAM, a checkpoint is made of the one before it and of
//! what changed since. The chunks of the next few content pages are read ahead; each page is put
//! together when its turn comes, of what the map holds at that instant.
//!
//! Invariant: what is read is of the last complete checkpoint, which does not change while another is
//! written: it serves whenever it comes.

use crate::format::CHUNK_ENTRIES;
use crate::map::Needs;
use crate::map::residency::TRIES_MAX;
use crate::mutant::Mutant;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use flash::{BLOCK_BYTES, MediumError, SlotId, SlotRead};
use std::collections::VecDeque;

/// Chunks that are read ahead, at most.
const CHUNKS_AHEAD: u32 = 256;

/// The base of one content page.
#[derive(Clone, Default)]
struct Page {
    /// By slot, what was read.
    bases: Vec<Option<Box<[u8]>>>,
    /// A read is on its way.
    asked: bool,
    tries: u32,
}

/// Content pages from the one that is put together next.
#[derive(Clone, Default)]
pub(crate) struct Staging {
    pages: VecDeque<Page>,
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let asked = self.pages.iter().filter(|page| page.asked).count();
        write!(f, "{} pages staged, {asked} asked", self.pages.len())
    }
}

impl Staging {
    pub fn clear(&mut self) {
        self.pages.clear();
    }
}

impl Ftl {
    /// Map chunks of content page `page`.
    pub(crate) fn chunks_of_page(&self, page: u32) -> std::ops::Range<u32> {
        let per_page = self.geometry.slots_per_page;
        (page * per_page).min(self.layout.chunks)..((page + 1) * per_page).min(self.layout.chunks)
    }

    /// Whether content page `next` can be put together now. Keeps the reads for it and for those after
    /// it going.
    pub(crate) fn content_is_staged(&mut self, next: u32) -> bool {
        if !self.map.is_cached() {
            return true;
        }
        let ahead = (CHUNKS_AHEAD / self.geometry.slots_per_page).max(2);
        let end = self.layout.content_pages.min(next + ahead);
        while next + (self.checkpoint.staging.pages.len() as u32) < end {
            let page = next + self.checkpoint.staging.pages.len() as u32;
            self.checkpoint.staging.pages.push_back(Page::default());
            self.ask_for_bases(next, page);
        }
        if !self.bases_are_missing(next, next) {
            return true;
        }
        self.ask_for_bases(next, next);
        false
    }

    /// Whether the base of a chunk of `page` is needed and not there; `next` is the page that is staged
    /// first.
    fn bases_are_missing(&self, next: u32, page: u32) -> bool {
        !self.missing_bases(next, page).is_empty()
    }

    fn missing_bases(&self, next: u32, page: u32) -> Vec<u32> {
        let Some(cached) = self.map.cached() else { return Vec::new() };
        let staged = &self.checkpoint.staging.pages[(page - next) as usize];
        let chunks = self.chunks_of_page(page);
        let first = chunks.start;
        let there = |chunk| staged.bases.get((chunk - first) as usize).is_some_and(Option::is_some);
        chunks.filter(|&chunk| !there(chunk) && cached.chunk_needs_base(chunk)).collect()
    }

    /// Reads the bases of `page` if one is missing: all of them, as what is in DRAM now may have left
    /// when the page's turn comes.
    fn ask_for_bases(&mut self, next: u32, page: u32) {
        if !self.bases_are_missing(next, page) {
            return;
        }
        let chunks = self.chunks_of_page(page);
        let staged = &mut self.checkpoint.staging.pages[(page - next) as usize];
        let waits = staged.tries >= TRIES_MAX && self.checkpoint.mended.is_reading();
        if !waits && !std::mem::replace(&mut staged.asked, true) {
            self.read_bases(chunks.start, chunks.end - 1, ReadPurpose::Stage(page));
        }
    }

    /// Reads the chunks `first` to `last`, of one content page, of the last complete checkpoint.
    pub(crate) fn read_bases(&mut self, first: u32, last: u32, purpose: ReadPurpose) {
        let slot = self.base_slot(first);
        let block = self.bands.block_of(slot);
        self.bands[block].reads_pending += 1;
        let read = self.units.reads.take();
        let count = last + 1 - first;
        self.units.reads[read] = ReadOp { purpose, slot, count, lba: first, ..ReadOp::default() };
        self.queue_read(read);
    }

    /// Chunks of the last checkpoint came back.
    pub(crate) fn end_stage_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let ReadPurpose::Stage(page) = op.purpose else {
            unreachable!("only reads for a checkpoint end here")
        };
        let next = self.layout.content_before(self.checkpoint.page_next);
        // One that was given up may have asked for it.
        let Some(at) = page.checked_sub(next) else { return };
        if at as usize >= self.checkpoint.staging.pages.len() {
            return;
        }
        self.checkpoint.staging.pages[at as usize].asked = false;
        let first = self.chunks_of_page(page).start;
        for index in 0..op.count {
            let (chunk, slot) = (op.lba + index, SlotId(op.slot.0 + index));
            let read = slots.ok().and_then(|slots| slots.get(index as usize));
            let Some(bytes) = self.base_bytes(chunk, slot, read) else { continue };
            let bases = &mut self.checkpoint.staging.pages[at as usize].bases;
            let slots = self.geometry.slots_per_page as usize;
            bases.resize(slots, None);
            bases[(chunk - first) as usize] = Some(bytes.into_owned().into());
            self.counters.map_chunks_streamed += 1;
        }
        let missing = self.missing_bases(next, page);
        if !missing.is_empty() {
            let staged = &mut self.checkpoint.staging.pages[at as usize];
            staged.tries += 1;
            if staged.tries >= TRIES_MAX {
                for chunk in missing {
                    if !self.regains(chunk, Needs::Stage) {
                        self.lose_base();
                    }
                }
            }
        }
    }

    /// The bases of the page that is put together now.
    pub(crate) fn take_staged(&mut self) -> Vec<Option<Box<[u8]>>> {
        self.checkpoint.staging.pages.pop_front().map(|page| page.bases).unwrap_or_default()
    }

    /// What chunk `index` holds now, as a checkpoint keeps it.
    pub(crate) fn chunk(&mut self, index: u32, base: Option<&[u8]>) -> Box<[u8; BLOCK_BYTES]> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let mut composed = [0; CHUNK_ENTRIES];
        self.compose_counted(index, base, &mut composed);
        let entries = match (self.map.flat(), self.map.cached()) {
            (None, Some(_)) => &composed[..],
            (flat, _) => {
                let flat = flat.unwrap_or_default();
                let first = index as usize * CHUNK_ENTRIES;
                &flat[first..(first + CHUNK_ENTRIES).min(flat.len())]
            }
        };
        let (held, rest) = bytes.split_at_mut(entries.len() * 4);
        // A plain loop over two slices, which the compiler turns into a copy.
        for (&entry, at) in entries.iter().zip(held.chunks_exact_mut(4)) {
            at.copy_from_slice(&entry.to_le_bytes());
        }
        // Unmapped.
        rest.fill(0xff);
        if let Some(cached) = self.map.cached_mut() {
            cached.cover(index);
        }
        bytes
    }

    /// The checkpoint that was written is what the map rests on from now on.
    pub(crate) fn rebase(&mut self) {
        self.checkpoint.base_name = self.checkpoint.order;
        self.checkpoint.base_bands = self.checkpoint.bands.iter().copied().map(Some).collect();
        self.checkpoint.base_layout = Some(self.layout);
        self.checkpoint.staging.clear();
        let lose_later = self.is_mutant(Mutant::CompletionForgetsLater);
        if let Some(cached) = self.map.cached_mut() {
            cached.checkpoint_completed(lose_later);
        }
        self.forget_mended();
    }

    /// Nearly half of what changes may take is taken: a checkpoint is due.
    pub(crate) fn changes_are_many(&self) -> bool {
        self.map
            .cached()
            .is_some_and(|cached| cached.changes_bytes() >= cached.changes_bytes_max() / 2)
    }

    /// So much of the map changed since the last checkpoint that the host waits for the next.
    pub(crate) fn gate_changes(&mut self) -> bool {
        let Some(cached) = self.map.cached_mut() else { return false };
        if cached.changes_bytes() < cached.changes_bytes_max() {
            return false;
        }
        if cached.sweep(0) {
            self.checkpoint.want();
        } else {
            // What the last one covers goes first.
            cached.sweep_on();
            self.stirred = true;
        }
        true
    }
}
