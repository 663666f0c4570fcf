//! How far the blocks of an emulated device are durable, so that their records can tell it: what was
//! durable and is not sound later is damage, and no power cut explains it.
//!
//! Invariant: never more than is so. A page counts when a flush has ended well that began after the page's
//! program had ended, and nothing counts any more from a flush on that failed.

use super::{Job, Medium, Store, What};
use flash::BlockId;

/// Of one shard.
pub struct Durability {
    /// By block: pages from the first on.
    pages: Vec<u32>,
    /// Each write is durable when it completes.
    synced: bool,
    /// A flush failed: nobody knows what became of what it covers.
    failed: bool,
    /// What was programmed since the last flush began: blocks, and pages of them from the first on.
    since: Vec<(BlockId, u32)>,
    /// The flushes under way, by job, and what they cover.
    flushing: Vec<(u32, Vec<(BlockId, u32)>)>,
}

impl Durability {
    /// So many pages of each block are durable by now; with `synced` each program is when it ends.
    pub fn new(pages: Vec<u32>, synced: bool) -> Self {
        Self { pages, synced, failed: false, since: Vec::new(), flushing: Vec::new() }
    }

    /// Pages of a block, from the first on.
    pub fn pages(&self, block: BlockId) -> u32 {
        self.pages.get(block.0 as usize).copied().unwrap_or(0)
    }

    /// The first `pages` pages of a block are programmed.
    pub fn programmed(&mut self, block: BlockId, pages: u32) {
        if self.synced {
            self.count(block, pages);
        } else {
            self.since.push((block, pages));
        }
    }

    /// A block is about to be erased. True if something of it was durable.
    pub fn erased(&mut self, block: BlockId) -> bool {
        let told = self.pages.get_mut(block.0 as usize).map(std::mem::take);
        let covered = self.flushing.iter_mut().map(|(_, covered)| covered);
        for list in covered.chain([&mut self.since]) {
            list.retain(|(other, _)| *other != block);
        }
        told.is_some_and(|pages| pages > 0)
    }

    /// A flush begins.
    pub fn begin_flush(&mut self, job: u32) {
        self.flushing.push((job, std::mem::take(&mut self.since)));
    }

    /// A flush has ended. Returns the blocks of which all of `pages_per_block` pages are durable by it.
    pub fn flushed(&mut self, job: u32, well: bool, pages_per_block: u32) -> Vec<BlockId> {
        self.failed |= !well;
        let ended = self.flushing.iter().position(|(other, _)| *other == job);
        let Some((_, covered)) = ended.map(|at| self.flushing.swap_remove(at)) else {
            return Vec::new();
        };
        for &(block, pages) in &covered {
            self.count(block, pages);
        }
        let whole = covered.into_iter().filter(|&(_, pages)| pages == pages_per_block);
        whole
            .map(|(block, _)| block)
            .filter(|&block| self.pages(block) == pages_per_block)
            .collect()
    }

    fn count(&mut self, block: BlockId, pages: u32) {
        if let Some(known) = self.pages.get_mut(block.0 as usize).filter(|_| !self.failed) {
            *known = (*known).max(pages);
        }
    }
}

impl Medium {
    /// Whether the page of a completed read was durable for certain.
    pub(super) fn is_durable(&self, job: &Job) -> bool {
        match (&self.store, job.what) {
            (Store::File(store), What::Read { slot, .. }) => {
                let fast = self.geometry.is_fast(self.geometry.block_of(slot));
                !fast && store.is_durable(slot)
            }
            _ => false,
        }
    }

    /// Takes note of what is programmed, or durable.
    pub(super) fn note_durable(&mut self, index: u32, job: &Job) {
        let Store::File(store) = &mut self.store else { return };
        match job.what {
            What::Flush => {
                for block in store.synced(index, job.error.is_none()) {
                    store.tell_durable(block, self.nand.record(block));
                }
            }
            What::Program { slot, .. }
                if job.error.is_none()
                    && !job.refused
                    && !self.geometry.is_fast(self.geometry.block_of(slot)) =>
            {
                store.programmed(slot);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Durability;
    use flash::BlockId;

    const BLOCK: BlockId = BlockId(0);

    #[test]
    fn what_was_programmed_before_a_flush_began_counts_when_it_has_ended_well() {
        let mut durability = Durability::new(vec![3, 0], false);
        durability.programmed(BLOCK, 4);
        durability.begin_flush(7);
        durability.programmed(BLOCK, 5);
        assert_eq!(durability.pages(BLOCK), 3);
        durability.flushed(7, true, 9);
        assert_eq!(durability.pages(BLOCK), 4);
        durability.begin_flush(8);
        assert_eq!(durability.flushed(8, true, 5), [BLOCK], "it is full");
        assert_eq!(durability.pages(BLOCK), 5);
    }

    #[test]
    fn nothing_counts_any_more_after_a_flush_that_failed() {
        let mut durability = Durability::new(vec![0], false);
        durability.programmed(BLOCK, 1);
        durability.begin_flush(1);
        durability.flushed(1, false, 9);
        durability.programmed(BLOCK, 2);
        durability.begin_flush(2);
        durability.flushed(2, true, 9);
        assert_eq!(durability.pages(BLOCK), 0);
    }

    #[test]
    fn an_erase_takes_back_what_flushes_under_way_would_count() {
        let mut durability = Durability::new(vec![2], false);
        durability.programmed(BLOCK, 3);
        durability.begin_flush(1);
        durability.programmed(BLOCK, 4);
        durability.erased(BLOCK);
        durability.flushed(1, true, 9);
        durability.begin_flush(2);
        durability.flushed(2, true, 9);
        assert_eq!(durability.pages(BLOCK), 0);
    }
}
