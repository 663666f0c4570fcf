//! Blocks and the pools of each unit. The least-worn clean block is written next: dynamic wear
//! levelling, and all the levelling there is.
//!
//! Invariant: a block is in exactly one pool or use, which its state names.

use super::{NONE, RawUnits, RequestError};
use flash::{BlockId, Geometry, Health, Instant};
use std::collections::{BTreeSet, VecDeque};

/// What a block is used for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Use {
    /// Recovery has not yet said.
    #[default]
    Unknown,
    /// Erased.
    Clean,
    /// To be erased when the lane is idle.
    Dirty,
    /// Reads erased, but its last erase may have been cut: to be erased before it is written.
    Unproven,
    /// Holds a write of a raw block.
    Raw,
    /// Holds lane records.
    Record,
    Erasing,
    /// Not to be written again.
    Bad,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub erase_count: u32,
    pub used: Use,
    /// The medium says it is bad. It may still hold what is wanted.
    pub failing: bool,
    /// The host emptied it before a record of this mount was durable.
    pub emptied: bool,
}

/// What a unit does in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Work {
    /// Pages of a write, by `RawUnits::writes` index.
    Program(u32),
    Erase(BlockId),
}

/// The queues and pools of a unit.
#[derive(Debug, Default)]
pub(crate) struct Die {
    /// Host reads waiting, by `RawUnits::reads` index.
    pub reads: VecDeque<u32>,
    /// Reads of recovery.
    pub reads_low: VecDeque<u32>,
    pub work: VecDeque<Work>,
    /// The page of a lane record, by `RawUnits::pages` index.
    pub record: Option<u32>,
    pub reads_running: u32,
    pub programs_running: u32,
    pub erases_running: u32,
    /// Suspensions of what runs now.
    pub suspensions: u32,
    /// A lane record or a write waits for a clean block.
    pub clean_wanted: bool,
    /// Least worn first.
    pub clean: BTreeSet<(u32, BlockId)>,
    pub dirty: VecDeque<BlockId>,
    pub unproven: VecDeque<BlockId>,
    pub bad: u32,
    /// The medium had no room behind it: nothing is tried before.
    pub pause_until: Instant,
    pub busy_since: Instant,
    pub busy_ns: u64,
    pub gone: bool,
    pub last_reason: &'static str,
}

impl Die {
    pub fn running(&self) -> u32 {
        self.reads_running + self.programs_running + self.erases_running
    }

    /// Reads, writes and erases waiting or running.
    pub fn queued(&self) -> u32 {
        self.reads.len() as u32 + self.work.len() as u32 + self.running()
    }

    pub fn is_idle(&self) -> bool {
        self.running() == 0
            && self.reads.is_empty()
            && self.work.is_empty()
            && self.record.is_none()
    }
}

/// The blocks of a medium in this health, before anything is known of what they hold.
pub(crate) fn blocks_of(geometry: &Geometry, health: &Health) -> Vec<Block> {
    let mut blocks = vec![Block::default(); geometry.blocks() as usize];
    for (block, &erase_count) in blocks.iter_mut().zip(&health.erase_counts) {
        block.erase_count = erase_count;
    }
    for &bad in &health.bad_blocks {
        blocks[bad.0 as usize].failing = true;
    }
    blocks
}

impl RawUnits {
    pub(crate) fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    pub(crate) fn set_use(&mut self, block: BlockId, used: Use) {
        self.blocks[block.0 as usize].used = used;
    }

    /// Takes the least-worn clean block of `unit`.
    pub(crate) fn take_clean(&mut self, unit: u32, used: Use) -> Option<BlockId> {
        let die = &mut self.dies[unit as usize];
        let (_, block) = die.clean.pop_first()?;
        die.clean_wanted = false;
        assert_eq!(self.block(block).used, Use::Clean, "only a clean block is taken");
        self.set_use(block, used);
        Some(block)
    }

    pub(crate) fn put_clean(&mut self, block: BlockId) {
        let erase_count = self.block(block).erase_count;
        self.set_use(block, Use::Clean);
        self.dies[self.geometry.unit_of(block) as usize].clean.insert((erase_count, block));
    }

    /// Nothing needs what `block` holds: it is erased when there is time.
    pub(crate) fn put_dirty(&mut self, block: BlockId) {
        if self.block(block).failing {
            self.put_bad(block, "a bad block was emptied");
            return;
        }
        let unit = self.unit_of(block);
        self.set_use(block, Use::Dirty);
        self.dies[unit as usize].dirty.push_back(block);
        self.look_later(self.now + self.settings.idle_ns);
    }

    pub(crate) fn put_unproven(&mut self, block: BlockId) {
        self.set_use(block, Use::Unproven);
        let unit = self.unit_of(block);
        self.dies[unit as usize].unproven.push_back(block);
    }

    /// `block` is never written again.
    pub(crate) fn put_bad(&mut self, block: BlockId, reason: &'static str) {
        let unit = self.unit_of(block);
        let die = &mut self.dies[unit as usize];
        die.bad += 1;
        die.last_reason = reason;
        self.blocks[block.0 as usize].failing = true;
        self.set_use(block, Use::Bad);
    }

    /// True if a clean block of `unit` may still come.
    pub(crate) fn clean_may_come(&self, unit: u32) -> bool {
        let die = &self.dies[unit as usize];
        !die.dirty.is_empty() || !die.unproven.is_empty() || die.erases_running > 0
    }

    /// `lane` lost a unit, or the medium failed: nothing is written there any more.
    pub(crate) fn lose_lane(&mut self, lane: u32, error: RequestError) {
        self.lane[lane as usize].gone = true;
        for member in 0..self.lanes.gang {
            let unit = self.lanes.unit(lane, member) as usize;
            let work = std::mem::take(&mut self.dies[unit].work);
            for work in work {
                match work {
                    Work::Program(write) => self.fail_write(write, error),
                    Work::Erase(block) => self.end_erase(block, Err(error)),
                }
            }
            if let Some(page) = self.dies[unit].record.take() {
                self.give_page(page);
            }
            if self.dies[unit].gone {
                for read in std::mem::take(&mut self.dies[unit].reads) {
                    let request = self.reads[read].request.expect("a host's read");
                    self.reads.give(read);
                    self.end_part(request, Err(RequestError::Failed));
                }
            }
        }
        for (_, request) in std::mem::take(&mut self.lane[lane as usize].waiters) {
            self.end_part(request, Err(error));
        }
    }

    /// The unit no longer answers.
    pub(crate) fn lose_unit(&mut self, unit: u32) {
        if std::mem::replace(&mut self.dies[unit as usize].gone, true) {
            return;
        }
        self.counters.units_gone += 1;
        self.dies[unit as usize].last_reason = "unit gone";
        if self.mount.is_none() {
            self.lose_lane(self.lanes.lane_of(unit), RequestError::Failed);
        }
    }

    pub(crate) fn verify_blocks(&self) -> Result<(), String> {
        let mut used = vec![0u32; self.blocks.len()];
        for (at, &block) in self.map.iter().enumerate() {
            if block == NONE {
                continue;
            }
            used[block as usize] += 1;
            let (raw, member) = (at as u32 / self.lanes.gang, at as u32 % self.lanes.gang);
            let unit = self.lanes.unit(self.lane_of_raw(raw), member);
            if self.unit_of(BlockId(block)) != unit {
                return Err(format!("raw block {raw} has block {block} on another unit"));
            }
        }
        for (block, used) in (0..).map(BlockId).zip(used) {
            let is_raw = self.block(block).used == Use::Raw;
            if used > 1 || (used == 1) != is_raw {
                let state = self.block(block);
                return Err(format!("block {} is {state:?} and mapped {used} times", block.0));
            }
        }
        for (unit, die) in self.dies.iter().enumerate() {
            let of = |used: Use| {
                let first = unit * self.geometry.blocks_per_unit as usize;
                let blocks = &self.blocks[first..first + self.geometry.blocks_per_unit as usize];
                blocks.iter().filter(|block| block.used == used).count()
            };
            let pools = [
                ("clean", die.clean.len(), of(Use::Clean)),
                ("dirty", die.dirty.len(), of(Use::Dirty)),
                ("unproven", die.unproven.len(), of(Use::Unproven)),
            ];
            for (name, len, blocks) in pools {
                if len != blocks {
                    return Err(format!("unit {unit} has {blocks} {name} blocks, {len} listed"));
                }
            }
        }
        Ok(())
    }
}
