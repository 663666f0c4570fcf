//! Counting: which slots are valid, where only a part of the map is in DRAM.
//!
//! There a mount does not read the map. It knows where each chunk of it lies and what was appended
//! since, so the host may read at once; but which slots are valid, and which bands hold none, is only
//! known when every chunk was looked at. The checkpoint that follows each mount goes through them all,
//! and counts them by the way. Where it cannot begin for want of free bands, or none is written, they
//! are read behind the host's reads.
//!
//! So a chunk that cannot be read is found while the host is served. Who needs it waits: the others are
//! counted, then every band is read, and what the chunk said is made of that (`rebuild`), as in a mount
//! that finds the loss before. What of it is in DRAM stays; of the rest nobody sees anything before it
//! is whole.
//!
//! Invariants:
//! - until all is counted the map does not change: no write is placed and nothing moves
//!   (`Ftl::settling`), so it does not matter when a chunk is counted;
//! - no band that may hold data is given up before all is counted: it is `Uncounted`, and on no list.

use crate::api::Rebuilt;
use crate::format::{CHUNK_ENTRIES, Kind, POISONED, UNMAPPED, u32_at};
use crate::map::residency::TRIES_MAX;
use crate::mutant::Mutant;
use crate::recovery::missing::Missing;
use crate::recovery::mount::{Mount, Probe};
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{MediumError, SlotId, SlotRead};
use std::collections::{BTreeMap, BTreeSet};

/// Content pages read at a time.
const READS_MAX: u32 = 8;

#[derive(Clone, Default)]
pub(crate) struct Counting {
    /// By chunk.
    counted: Vec<bool>,
    /// Chunks that are not.
    left: u32,
    /// Of them, those that cannot be read.
    lost: BTreeSet<u32>,
    /// Chunks are read to be counted, from this content page on.
    page: Option<u32>,
    reads: u32,
    /// Reads that did not give a chunk.
    tries: BTreeMap<u32, u32>,
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { left, lost, page, reads, .. } = self;
        write!(f, "{left} chunks to count, {} lost, page {page:?}, {reads} reads", lost.len())
    }
}

impl Ftl {
    /// True from the end of a mount that did not look at the whole map until all of it was counted.
    pub fn is_counting(&self) -> bool {
        self.checkpoint.counting.is_some()
    }

    /// What a rebuild came to that was begun after the mount had ended.
    pub fn rebuilt_late(&self) -> Option<Rebuilt> {
        self.counters.rebuilt_late
    }

    /// Chunks that are still to be counted.
    pub(crate) fn chunks_uncounted(&self) -> u32 {
        self.checkpoint.counting.as_ref().map_or(0, |counting| counting.left)
    }

    pub(crate) fn begin_counting(&mut self) {
        let chunks = self.layout.chunks;
        let counted = vec![false; chunks as usize];
        self.checkpoint.counting =
            Some(Box::new(Counting { counted, left: chunks, ..Counting::default() }));
        if let Some(cached) = self.map.cached_mut() {
            cached.forget_use();
        }
    }

    /// Whether there is anything to wait for.
    pub(crate) fn counts_on(&self) -> bool {
        let Some(counting) = &self.checkpoint.counting else { return false };
        counting.left > counting.lost.len() as u32 || counting.reads > 0
    }

    pub(crate) fn chunks_are_lost(&self) -> bool {
        self.checkpoint.counting.as_ref().is_some_and(|counting| !counting.lost.is_empty())
    }

    pub(crate) fn lost_chunks(&self) -> BTreeSet<u32> {
        self.checkpoint.counting.as_ref().map_or_else(BTreeSet::new, |of| of.lost.clone())
    }

    pub(crate) fn is_lost(&self, chunk: u32) -> bool {
        self.checkpoint.counting.as_ref().is_some_and(|counting| counting.lost.contains(&chunk))
    }

    /// `chunk` of the last checkpoint cannot be read. True if it will be rebuilt, as it was not looked at
    /// since the mount.
    pub(crate) fn lose_chunk(&mut self, chunk: u32) -> bool {
        let Some(counting) = &mut self.checkpoint.counting else { return false };
        if counting.counted[chunk as usize] {
            return false;
        }
        counting.lost.insert(chunk);
        // What else is lost is made up for at the same time.
        self.checkpoint.begin_anew();
        self.count_by_reads();
        true
    }

    /// Nobody else counts.
    pub(crate) fn count_by_reads(&mut self) {
        let Some(counting) = &mut self.checkpoint.counting else { return };
        if counting.page.is_none() {
            counting.page = Some(0);
            self.read_on_counting();
            // There may have been nothing to read.
            self.stirred = true;
        }
    }

    fn read_on_counting(&mut self) {
        let pages = self.layout.chunks.div_ceil(self.geometry.slots_per_page);
        while let Some(counting) = &mut self.checkpoint.counting
            && counting.reads < READS_MAX
            && let Some(page) = counting.page.filter(|&page| page < pages)
        {
            counting.page = Some(page + 1);
            self.count_page(page);
        }
    }

    /// Counts what of a content page is known, and reads the rest.
    fn count_page(&mut self, page: u32) {
        let mut wanted = None;
        for chunk in self.chunks_of_page(page) {
            let Some(counting) = &self.checkpoint.counting else { return };
            if counting.counted[chunk as usize] || counting.lost.contains(&chunk) {
                continue;
            }
            if self.map.cached().is_some_and(|cached| cached.chunk_needs_base(chunk)) {
                let first = wanted.map_or(chunk, |(first, _)| first);
                wanted = Some((first, chunk));
            } else {
                self.count(chunk, None);
            }
        }
        if let Some((first, last)) = wanted {
            self.read_to_count(first, last);
        }
    }

    fn read_to_count(&mut self, first: u32, last: u32) {
        if let Some(counting) = &mut self.checkpoint.counting {
            counting.reads += 1;
        }
        self.read_bases(first, last, ReadPurpose::Count);
    }

    /// Chunks of the last checkpoint came back.
    pub(crate) fn end_count_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let Some(counting) = &mut self.checkpoint.counting else { return };
        counting.reads -= 1;
        for index in 0..op.count {
            let (chunk, slot) = (op.lba + index, SlotId(op.slot.0 + index));
            let Some(counting) = &self.checkpoint.counting else { return };
            if counting.counted[chunk as usize] || counting.lost.contains(&chunk) {
                continue;
            }
            let read = slots.ok().and_then(|slots| slots.get(index as usize));
            let base = self.base_bytes(chunk, slot, read);
            let needed = self.map.cached().is_some_and(|cached| cached.chunk_needs_base(chunk));
            if base.is_some() || !needed {
                self.count(chunk, base.as_deref());
                continue;
            }
            let Some(counting) = &mut self.checkpoint.counting else { return };
            let tries = counting.tries.entry(chunk).or_default();
            *tries += 1;
            if *tries < TRIES_MAX {
                self.read_to_count(chunk, chunk);
            } else {
                self.lose_chunk(chunk);
            }
        }
        self.read_on_counting();
    }

    pub(crate) fn count(&mut self, chunk: u32, base: Option<&[u8]>) {
        self.compose_counted(chunk, base, &mut [UNMAPPED; CHUNK_ENTRIES]);
    }

    /// What every block of `chunk` holds, which is counted if it was not yet; `base` has its bytes, if
    /// it needs them. Nothing where the whole map is in DRAM.
    pub(crate) fn compose_counted(
        &mut self,
        chunk: u32,
        base: Option<&[u8]>,
        into: &mut [u32; CHUNK_ENTRIES],
    ) {
        let Some(cached) = self.map.cached() else { return };
        cached.compose(chunk, base, into);
        let Some(counting) = &mut self.checkpoint.counting else { return };
        if std::mem::replace(&mut counting.counted[chunk as usize], true) {
            return;
        }
        counting.left -= 1;
        counting.lost.remove(&chunk);
        if self.is_mutant(Mutant::CountBeforeReplay)
            && let Some(base) = base
        {
            let mut before: [u32; CHUNK_ENTRIES] = std::array::from_fn(|at| u32_at(base, 4 * at));
            self.count_entries(chunk, &mut before);
            return;
        }
        self.count_entries(chunk, into);
    }

    /// What `entries` point to is valid. They came from a medium: one that points to where there is no
    /// data, or two that point to one slot, would break what the rest of the FTL rests on.
    fn count_entries(&mut self, chunk: u32, entries: &mut [u32; CHUNK_ENTRIES]) {
        let slots = self.geometry.slots();
        let blocks = self.map.blocks();
        let Some(cached) = self.map.cached_mut() else { return };
        let first = chunk * CHUNK_ENTRIES as u32;
        for (lba, entry) in (first..blocks).zip(entries.iter_mut()) {
            if *entry >= POISONED {
                continue;
            }
            let slot = SlotId(*entry);
            let possible = u64::from(slot.0) < slots
                && self.bands.may_be_valid(self.bands.block_of(slot))
                && self.bands.load(slot);
            if possible {
                self.blocks_mapped += 1;
            } else {
                self.counters.blocks_poisoned += 1;
                *entry = POISONED;
                cached.poison(lba);
            }
        }
        cached.count_chunk(chunk, entries);
    }

    /// All is counted.
    pub(crate) fn end_counting(&mut self) {
        self.checkpoint.counting = None;
        self.bands.settle_loaded();
        for block in self.bands.ids() {
            self.restore_failing(block);
        }
        self.room_changes += 1;
        self.drain_check = true;
        self.stirred = true;
    }

    /// All is counted but for the chunks that are lost: every band is read to make up for them.
    pub(crate) fn begin_rescan(&mut self, mount: &mut Mount) {
        let found: Vec<bool> = (0..self.layout.chunks).map(|chunk| !self.is_lost(chunk)).collect();
        let mut rebuild = self.rebuild_of(mount, &found);
        let lost = self.lost_chunks();
        if let Some(cached) = self.map.cached_mut() {
            rebuild.keep(lost.iter().flat_map(|&chunk| cached.lose_base_of(chunk)).collect());
        }
        mount.begin_rescan(rebuild);
        mount.missing = Missing::default();
        for block in self.bands.ids() {
            let probe = mount.probes[block.0 as usize];
            let header = self.probed_header(block, probe);
            let known = match probe {
                Probe::Skipped | Probe::Erased => true,
                Probe::Unreadable | Probe::Read(_) => {
                    header.is_some_and(|header| header.kind == Kind::Root)
                }
            };
            if !known && mount.chosen.knows(&self.geometry, block) {
                self.scan_band(mount, block);
            }
        }
    }

    /// Every band was read: the lost chunks follow from that, and who waits for them goes on.
    pub(crate) fn end_rescan(&mut self, mut mount: Box<Mount>) {
        let footer = mount.footer.expect("a scan has a footer");
        let lost = self.lost_chunks();
        self.miss(&mut mount);
        let mut rebuild = mount.rebuild.take().expect("a scan for lost chunks rebuilds");
        self.rebuild_records(&mut rebuild, &mount.missing);
        let watermark = mount.missing.watermark();
        self.apply(&mut mount.candidates, &footer, watermark, Some(&mut rebuild));
        let rebuilt = self.end_rebuild(&rebuild, &footer);
        self.counters.rebuilt_late = Some(rebuilt);
        // Until the next checkpoint every record counts, as orders start at 1.
        self.checkpoint.order = 1;
        lost.iter().for_each(|&chunk| self.count(chunk, None));
        mount.begin_counting();
        self.mount = Some(mount);
        self.end_loads_of(&lost);
        if (rebuilt.blocks_refused > 0 || self.refused.is_some()) && self.may_write() {
            let stopping = self.phase == Phase::Stopping;
            self.phase = Phase::ReadOnly;
            self.stop_writing();
            if stopping {
                self.shut_down();
            }
        }
    }
}
