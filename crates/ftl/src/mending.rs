//! Parity of a checkpoint's content: what makes up for a slot of it that is lost.
//!
//! A run of content pages is followed by a page of parity, which holds, slot by slot, what those of the
//! run come to, taken together bit by bit (XOR). So one slot in each place of a run may be lost, or a
//! whole page of it, and what it held follows from the others. The map is never rebuilt from the bands
//! for that, which cannot tell of a trim, of a block that was lost, or of an atomic write that was
//! undone, once a checkpoint has covered what said so.
//!
//! A mount that misses content reads its runs anew; where only a part of the map is in DRAM, what turns
//! out lost later is mended before every band is read.
//!
//! Invariants:
//! - only slots of the checkpoint in question, each sound by its own checksum, are put together;
//! - what was mended is damage: the report names the slots, and the next checkpoint writes them anew;
//! - runs are read in batches, so it takes a bounded amount of memory.

use crate::Ftl;
use crate::format::{CHUNK_ENTRIES, CheckpointLayout, Kind, UNMAPPED, u32_at};
use crate::mount::{Mount, Named};
use flash::{BLOCK_BYTES, SlotId, SlotRead};
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
#[derive(Clone, Debug)]
struct Sum {
    bytes: Box<[u8; BLOCK_BYTES]>,
    /// Slots that are missing, and the content slot that is, if it is not the parity.
    missing: u32,
    content: Option<u32>,
}

/// What is read to mend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mending {
    tried: bool,
    /// Runs to be read.
    queue: BTreeSet<u32>,
    /// By run and place in a page.
    sums: BTreeMap<(u32, u32), Sum>,
}

impl Ftl {
    /// How the checkpoint lies in its bands.
    pub(crate) fn layout_chosen(&self, chosen: &Named) -> CheckpointLayout {
        let layout = self.layout_with(chosen.whole, chosen.parity);
        layout.expect("checked with the root records")
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
        let per_page = self.geometry.slots_per_page;
        let content = layout.content_before(page);
        let is_parity = layout.is_parity(page);
        let run = layout.run_of(if is_parity { content - 1 } else { content });
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
            let sum = mount.mending.sums.entry((run, in_page)).or_insert_with(|| Sum {
                bytes: Box::new([0; BLOCK_BYTES]),
                missing: 0,
                content: None,
            });
            match sound {
                Some(bytes) => add(&mut sum.bytes, bytes),
                None => {
                    sum.missing += 1;
                    sum.content = sum.content.or(index);
                    if first.0 > 0 {
                        self.note_damaged(mount, slot);
                    }
                }
            }
        }
    }

    /// The content slots that follow from the rest of their runs.
    fn mended(mount: &mut Mount) -> Vec<(u32, Box<[u8; BLOCK_BYTES]>)> {
        let sums = std::mem::take(&mut mount.mending.sums).into_values();
        let alone = sums.filter(|sum| sum.missing == 1);
        alone.filter_map(|sum| Some((sum.content?, sum.bytes))).collect()
    }

    /// A batch of runs was read.
    pub(crate) fn end_mending(&mut self, mount: &mut Mount) -> Result<(), crate::MountError> {
        for (index, bytes) in Self::mended(mount) {
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
        for (chunk, bytes) in Self::mended(mount) {
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
