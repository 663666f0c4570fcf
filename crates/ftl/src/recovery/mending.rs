//! Parity of a checkpoint's content: what makes up for a slot of it that is lost.
//!
//! A run of content pages is followed by a page of parity, which holds, slot by slot, what those of the
//! run come to, taken together bit by bit (XOR). So one slot in each place of a run may be lost, or a
//! whole page of it, and what it held follows from the others. The map is never rebuilt from the bands
//! for that, which cannot tell of a trim, of a block that was lost, or of an atomic write that was
//! undone, once a checkpoint has covered what said so.
//!
//! A mount that misses content reads its runs anew; where only a part of the map is in DRAM, what turns
//! out lost later is mended before every band is read, and what is lost after all was counted is mended
//! when somebody needs it.
//!
//! Invariants:
//! - only slots of the checkpoint in question, each sound by its own checksum, are put together;
//! - what was mended is damage: the report names the slots, and the next checkpoint writes them anew;
//! - runs are read in batches, so it takes a bounded amount of memory.

use crate::format::{CHUNK_ENTRIES, CheckpointLayout, Kind, UNMAPPED, u32_at};
use crate::map::Needs;
use crate::recovery::mount::{Mount, Named};
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use flash::{BLOCK_BYTES, FastTier, Geometry, MediumError, SlotId, SlotRead};
use std::collections::{BTreeMap, BTreeSet};

/// Runs that are read at a time.
const RUNS_AT_ONCE: usize = 256;

/// What the slots of the run being written come to, by place in their page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parity {
    sums: Vec<Box<[u8; BLOCK_BYTES]>>,
}

impl Parity {
    pub fn clear(&mut self) {
        self.sums.clear();
    }

    pub fn add(&mut self, in_page: u32, bytes: &[u8; BLOCK_BYTES]) {
        while self.sums.len() <= in_page as usize {
            self.sums.push(Box::new([0; BLOCK_BYTES]));
        }
        add(&mut self.sums[in_page as usize], bytes);
    }

    /// The sums of the run, which ends.
    pub fn take(&mut self) -> Vec<Box<[u8; BLOCK_BYTES]>> {
        std::mem::take(&mut self.sums)
    }
}

fn add(sum: &mut [u8; BLOCK_BYTES], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

/// The slots in one place of a run.
#[derive(Clone)]
struct Sum {
    bytes: Box<[u8; BLOCK_BYTES]>,
    /// Slots that are missing, and the content slot that is, if it is not the parity.
    missing: u32,
    content: Option<u32>,
}

impl std::fmt::Debug for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} missing", self.missing)
    }
}

/// What is read to mend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mending {
    tried: bool,
    /// Runs to be read.
    queue: BTreeSet<u32>,
    sums: Sums,
}

/// By run and place in a page.
type Sums = BTreeMap<(u32, u32), Sum>;

/// The content slots that follow from the rest of their runs.
fn alone(sums: &mut Sums) -> Vec<(u32, Box<[u8; BLOCK_BYTES]>)> {
    let sums = std::mem::take(sums).into_values();
    let alone = sums.filter(|sum| sum.missing == 1);
    alone.filter_map(|sum| Some((sum.content?, sum.bytes))).collect()
}

/// Chunks of the last complete checkpoint that were lost while the host was served, after all were counted.
#[derive(Clone, Default)]
pub(crate) struct Mended {
    /// By chunk.
    chunks: BTreeMap<u32, Box<[u8; BLOCK_BYTES]>>,
    /// They read again when the run that is being read has come.
    waiting: Vec<Needs>,
    /// Runs that were read, whatever came of it.
    read: BTreeSet<u32>,
    /// The one being read, and how many of its pages are on their way.
    run: Option<u32>,
    reads: u32,
    sums: Sums,
}

impl std::fmt::Debug for Mended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { chunks, waiting, run, reads, .. } = self;
        write!(f, "{} chunks, {waiting:?} waiting for run {run:?}, {reads} reads", chunks.len())
    }
}

impl Mended {
    pub fn is_reading(&self) -> bool {
        self.run.is_some()
    }

    pub fn bytes_of(&self, chunk: u32) -> Option<&[u8; BLOCK_BYTES]> {
        self.chunks.get(&chunk).map(|bytes| &**bytes)
    }
}

impl Ftl {
    /// How the checkpoint lies in its bands.
    pub(crate) fn layout_chosen(&self, chosen: &Named) -> CheckpointLayout {
        self.layout_recorded(chosen).expect("checked with the root records")
    }

    /// The same; `None` if there is no such checkpoint.
    pub(crate) fn layout_recorded(&self, named: &Named) -> Option<CheckpointLayout> {
        let [units, .., fast_units, fast_blocks] = named.shape;
        let fast = FastTier { units: fast_units, blocks_per_unit: fast_blocks };
        let geometry = Geometry { units, fast, ..self.geometry };
        let entries = named.logical_blocks.checked_add(named.shadow_blocks)?;
        CheckpointLayout::of_version(&geometry, entries, named.version)
    }

    /// Reads the runs of content slots from `first` on that were not found, once. False if there is
    /// nothing to read.
    pub(crate) fn begin_mending(&mut self, mount: &mut Mount, first: u32) -> bool {
        let slots = first..self.layout.slots();
        let missing: Vec<u32> = slots.filter(|&slot| !mount.found[slot as usize]).collect();
        self.read_runs(mount, &missing, false)
    }

    /// The same for chunks that turned out lost while the host is served.
    pub(crate) fn begin_late_mending(&mut self, mount: &mut Mount) -> bool {
        let missing: Vec<u32> = self.lost_chunks().into_iter().collect();
        self.read_runs(mount, &missing, true)
    }

    fn read_runs(&mut self, mount: &mut Mount, missing: &[u32], late: bool) -> bool {
        let layout = self.layout_chosen(&mount.chosen);
        let parity = layout.has_parity();
        if missing.is_empty() || !parity || std::mem::replace(&mut mount.mending.tried, true) {
            return false;
        }
        let per_page = self.geometry.slots_per_page;
        mount.mending.queue = missing.iter().map(|slot| layout.run_of(slot / per_page)).collect();
        self.read_next_runs(mount, late)
    }

    /// Reads the next runs of the queue; false if there is none.
    fn read_next_runs(&mut self, mount: &mut Mount, late: bool) -> bool {
        let layout = self.layout_chosen(&mount.chosen);
        mount.mending.sums.clear();
        let mut any = false;
        for _ in 0..RUNS_AT_ONCE {
            let Some(run) = mount.mending.queue.pop_first() else { break };
            for page in layout.pages_of_run(run) {
                let (position, index) = layout.place(page);
                any = true;
                let Some(block) = mount.chosen.bands.get(position as usize).copied().flatten()
                else {
                    self.note_mending(mount, page, SlotId(0), &[]);
                    continue;
                };
                let slot = self.geometry.slot(block, index, 0);
                mount.read(self.geometry.unit_of(block), slot, self.geometry.slots_per_page);
            }
        }
        if any {
            mount.begin_mend(late);
        }
        any
    }

    /// A page of a run came back; no slots if it could not be read.
    pub(crate) fn take_mending(
        &mut self,
        mount: &mut Mount,
        first: SlotId,
        slots: &[SlotRead<'_>],
    ) {
        let layout = self.layout_chosen(&mount.chosen);
        let block = self.geometry.block_of(first);
        let bands = &mount.chosen.bands;
        let Some(position) = bands.iter().position(|&band| band == Some(block)) else { return };
        let page = layout.page_at(position as u32, self.geometry.page_in_block(first));
        self.note_mending(mount, page, first, slots);
    }

    fn note_mending(
        &mut self,
        mount: &mut Mount,
        page: u32,
        first: SlotId,
        slots: &[SlotRead<'_>],
    ) {
        let layout = self.layout_chosen(&mount.chosen);
        let name = mount.footer.map_or(0, |footer| footer.checkpoint);
        let mut sums = std::mem::take(&mut mount.mending.sums);
        let lost = self.add_to_sums(&mut sums, (&layout, name), page, first, slots);
        mount.mending.sums = sums;
        for slot in lost.into_iter().filter(|_| first.0 > 0) {
            self.note_damaged(mount, slot);
        }
    }

    /// Adds the slots of page `page` of the checkpoint of this layout and name to those of its run. Returns
    /// those that are not sound.
    fn add_to_sums(
        &self,
        sums: &mut Sums,
        (layout, name): (&CheckpointLayout, u64),
        page: u32,
        first: SlotId,
        slots: &[SlotRead<'_>],
    ) -> Vec<SlotId> {
        let per_page = self.geometry.slots_per_page;
        let content = layout.content_before(page);
        let is_parity = layout.is_parity(page);
        let run = layout.run_of(if is_parity { content - 1 } else { content });
        let mut lost = Vec::new();
        for in_page in 0..per_page {
            let (kind, number, index) = if is_parity {
                (Kind::Parity, run * per_page + in_page, None)
            } else {
                let index = content * per_page + in_page;
                match index.checked_sub(layout.chunks) {
                    None => (Kind::Map, index, Some(index)),
                    Some(number) if index < layout.slots() => {
                        (Kind::BandTable, number, Some(index))
                    }
                    // Behind the end of the content.
                    Some(_) => continue,
                }
            };
            let slot = SlotId(first.0 + in_page);
            let sound = slots.get(in_page as usize).and_then(|read| {
                let (header, bytes) = self.checkpoint_bytes(slot, read)?;
                let it = header.kind == kind && header.lba == number && header.sequence == name;
                it.then_some(bytes)
            });
            let sum = sums.entry((run, in_page)).or_insert_with(|| Sum {
                bytes: Box::new([0; BLOCK_BYTES]),
                missing: 0,
                content: None,
            });
            if let Some(bytes) = sound {
                add(&mut sum.bytes, bytes);
            } else {
                sum.missing += 1;
                sum.content = sum.content.or(index);
                lost.push(slot);
            }
        }
        lost
    }

    /// A batch of runs was read.
    pub(crate) fn end_mending(&mut self, mount: &mut Mount) -> Result<(), crate::api::MountError> {
        for (index, bytes) in alone(&mut mount.mending.sums) {
            if mount.found[index as usize] {
                continue;
            }
            mount.report.content_mended += 1;
            self.adopt_content(mount, index, &bytes[..]);
            if let Some(cached) = self.map.cached_mut().filter(|_| index < self.layout.chunks) {
                cached.lose_chunk(index);
                self.recover_chunk(index, &entries_of(&bytes));
            }
        }
        if self.read_next_runs(mount, false) {
            return Ok(());
        }
        mount.end_mend();
        self.end_content(mount)
    }

    /// The same while the host is served.
    pub(crate) fn end_late_mending(&mut self, mount: &mut Mount) {
        let mut mended = BTreeSet::new();
        for (chunk, bytes) in alone(&mut mount.mending.sums) {
            let mut entries = [UNMAPPED; CHUNK_ENTRIES];
            let Some(cached) = self.map.cached_mut().filter(|_| chunk < self.layout.chunks) else {
                continue;
            };
            // What changed since the checkpoint is on top of it.
            cached.compose(chunk, Some(&bytes[..]), &mut entries);
            cached.lose_base_of(chunk);
            self.recover_chunk(chunk, &entries);
            self.count(chunk, None);
            mended.insert(chunk);
        }
        self.counters.slots_damaged += mended.len() as u64;
        self.end_loads_of(&mended);
        if !self.read_next_runs(mount, true) {
            mount.begin_counting();
        }
    }

    /// Whether parity gives `chunk` of the last checkpoint, or may: then its run is read, and `needs` reads it
    /// again.
    pub(crate) fn mends(&mut self, chunk: u32, needs: Needs) -> bool {
        let Some(layout) = self.checkpoint.base_layout.filter(CheckpointLayout::has_parity) else {
            return false;
        };
        let run = layout.run_of(chunk / self.geometry.slots_per_page);
        let mended = &mut self.checkpoint.mended;
        if mended.is_reading() {
            mended.waiting.push(needs);
            return true;
        }
        if mended.chunks.contains_key(&chunk) {
            self.read_again(needs);
            return true;
        }
        if !mended.read.insert(run) {
            return false;
        }
        mended.run = Some(run);
        mended.waiting.push(needs);
        for page in layout.pages_of_run(run) {
            let (position, index) = layout.place(page);
            let block = self.checkpoint.base_bands.get(position as usize).copied().flatten();
            let Some(block) = block else {
                self.add_to_mended(page, SlotId(0), &[]);
                continue;
            };
            self.bands[block].reads_pending += 1;
            let read = self.units.reads.take();
            let (slot, count) = (self.geometry.slot(block, index, 0), self.geometry.slots_per_page);
            let purpose = ReadPurpose::Mend;
            self.units.reads[read] =
                ReadOp { purpose, slot, count, lba: page, ..ReadOp::default() };
            self.checkpoint.mended.reads += 1;
            self.queue_read(read);
        }
        true
    }

    fn add_to_mended(&mut self, page: u32, first: SlotId, slots: &[SlotRead<'_>]) {
        let Some(layout) = self.checkpoint.base_layout else { return };
        let name = self.checkpoint.base_name;
        let mut sums = std::mem::take(&mut self.checkpoint.mended.sums);
        self.add_to_sums(&mut sums, (&layout, name), page, first, slots);
        self.checkpoint.mended.sums = sums;
    }

    /// A page of the run that is being read came back.
    pub(crate) fn end_mend_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        // It may have been of the checkpoint before.
        let (position, index) = match self.checkpoint.base_layout {
            Some(layout) if self.checkpoint.mended.run.is_some() => layout.place(op.lba),
            _ => return,
        };
        let block = self.checkpoint.base_bands.get(position as usize).copied().flatten();
        if block.is_none_or(|block| self.geometry.slot(block, index, 0) != op.slot) {
            return;
        }
        self.add_to_mended(op.lba, op.slot, slots.unwrap_or_default());
        let mended = &mut self.checkpoint.mended;
        mended.reads -= 1;
        if mended.reads > 0 {
            return;
        }
        mended.run = None;
        let found = alone(&mut mended.sums);
        self.counters.slots_damaged += found.len() as u64;
        mended.chunks.extend(found);
        let waiting = std::mem::take(&mut mended.waiting);
        waiting.into_iter().for_each(|needs| self.read_again(needs));
        if self.may_write() {
            // The next one has them anew.
            self.checkpoint.want();
        }
    }

    fn read_again(&mut self, needs: Needs) {
        match needs {
            Needs::Piece(piece) => self.read_piece(piece),
            Needs::Search(first, last) => self.read_bases(first, last, ReadPurpose::Search),
            Needs::Stage => self.stirred = true,
        }
    }

    /// Another checkpoint is the last one: what of the one before was mended does not matter any more.
    pub(crate) fn forget_mended(&mut self) {
        let waiting = std::mem::take(&mut self.checkpoint.mended).waiting;
        waiting.into_iter().for_each(|needs| self.read_again(needs));
    }

    /// What the blocks of `chunk`, which has no base any more, hold.
    fn recover_chunk(&mut self, chunk: u32, entries: &[u32; CHUNK_ENTRIES]) {
        let first = chunk * CHUNK_ENTRIES as u32;
        for (lba, &entry) in (first..self.map.blocks()).zip(entries) {
            let cached = self.map.cached();
            let there = cached.is_some_and(|cached| cached.is_resident(cached.piece(lba)));
            if !there && entry != UNMAPPED {
                self.map.recover(lba, entry);
            }
        }
    }
}

fn entries_of(bytes: &[u8; BLOCK_BYTES]) -> [u32; CHUNK_ENTRIES] {
    std::array::from_fn(|at| u32_at(bytes, 4 * at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::{FastTier, Geometry, Pairing};

    #[test]
    fn pages_of_content_and_of_parity_take_turns() {
        let geometry = Geometry {
            units: 4,
            blocks_per_unit: 64,
            pages_per_block: 32,
            slots_per_page: 2,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 1,
            endurance: 1,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        };
        for blocks in [1, 1024, 30 * 1024, 31 * 1024, 32 * 1024, 700 * 1024] {
            let layout = CheckpointLayout::new(&geometry, blocks).expect("it fits");
            let mut content = 0;
            for page in 0..layout.pages {
                assert_eq!(layout.content_before(page), content, "{blocks} blocks, page {page}");
                let run = layout.run_of(if layout.is_parity(page) { content - 1 } else { content });
                assert!(layout.pages_of_run(run).contains(&page));
                let (position, index) = layout.place(page);
                assert_eq!(layout.page_at(position, index), page);
                if !layout.is_parity(page) {
                    assert_eq!(layout.page_of_content(content), page);
                    content += 1;
                }
            }
            assert_eq!(content, layout.content_pages);
            assert!(layout.is_parity(layout.pages - 1), "each run ends with one");
        }
    }

    #[test]
    fn one_slot_follows_from_the_others() {
        let mut random = flash::Random::new(5);
        let slots: Vec<[u8; BLOCK_BYTES]> =
            (0..7).map(|_| std::array::from_fn(|_| random.below(256) as u8)).collect();
        let mut parity = Parity::default();
        slots.iter().for_each(|slot| parity.add(0, slot));
        let mut sum = parity.take().remove(0);
        slots.iter().skip(1).for_each(|slot| add(&mut sum, slot));
        assert_eq!(*sum, slots[0]);
    }
}
