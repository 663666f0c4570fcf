//! Which shard holds a logical block: stripes of 1 MiB in turn.

/// Logical blocks of a stripe.
pub const STRIPE_BLOCKS: u64 = 256;

/// The blocks of a device over its shards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Split {
    shards: u64,
}

/// Consecutive blocks of one shard that are consecutive on the device too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// Whose.
    pub shard: usize,
    /// First block, as the shard counts.
    pub lba: u32,
    /// How many.
    pub blocks: u32,
}

impl Split {
    /// A device of so many shards.
    pub fn new(shards: usize) -> Self {
        assert!(shards > 0, "a device has a shard");
        Self { shards: shards as u64 }
    }

    /// Blocks that all shards offer together if each offers `blocks`.
    pub fn device_blocks(&self, blocks: u32) -> u64 {
        match self.shards {
            1 => u64::from(blocks),
            shards => u64::from(blocks) / STRIPE_BLOCKS * STRIPE_BLOCKS * shards,
        }
    }

    /// Blocks that each shard must offer for a device of `blocks`.
    pub fn shard_blocks(&self, blocks: u64) -> u64 {
        match self.shards {
            1 => blocks,
            shards => blocks.div_ceil(STRIPE_BLOCKS * shards) * STRIPE_BLOCKS,
        }
    }

    /// Of consecutive blocks of the device those of one shard, as it counts: they follow each other there, too.
    pub fn part_of(&self, shard: usize, first: u64, blocks: u64) -> Option<(u32, u32)> {
        let before = |end: u64| match self.shards {
            1 => end,
            shards => {
                let round = STRIPE_BLOCKS * shards;
                let rest = (end % round).saturating_sub(shard as u64 * STRIPE_BLOCKS);
                end / round * STRIPE_BLOCKS + rest.min(STRIPE_BLOCKS)
            }
        };
        let (from, to) = (before(first), before(first + blocks));
        (from < to).then_some((from as u32, (to - from) as u32))
    }

    /// Which block of the device a shard has as its `lba`.
    pub fn device_block(&self, shard: usize, lba: u32) -> u64 {
        let (stripe, inside) = (u64::from(lba) / STRIPE_BLOCKS, u64::from(lba) % STRIPE_BLOCKS);
        (stripe * self.shards + shard as u64) * STRIPE_BLOCKS + inside
    }

    /// The run that starts with block `first` of the device and has at most `blocks`.
    pub fn run(&self, first: u64, blocks: u64) -> Run {
        if self.shards == 1 {
            return Run { shard: 0, lba: first as u32, blocks: blocks as u32 };
        }
        let (stripe, inside) = (first / STRIPE_BLOCKS, first % STRIPE_BLOCKS);
        Run {
            shard: (stripe % self.shards) as usize,
            lba: (stripe / self.shards * STRIPE_BLOCKS + inside) as u32,
            blocks: blocks.min(STRIPE_BLOCKS - inside) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_place_and_runs_cover_a_range_once() {
        for shards in 1..5 {
            let split = Split::new(shards);
            let total = 4000 * shards as u64;
            let mut seen = std::collections::BTreeSet::new();
            let mut next = 0;
            while next < total {
                let run = split.run(next, total - next);
                assert!(run.shard < shards && run.blocks > 0);
                for i in 0..run.blocks {
                    assert!(seen.insert((run.shard, run.lba + i)));
                    let single = split.run(next + u64::from(i), 1);
                    assert_eq!((single.shard, single.lba), (run.shard, run.lba + i));
                    assert_eq!(split.device_block(run.shard, run.lba + i), next + u64::from(i));
                }
                next += u64::from(run.blocks);
            }
            for (first, blocks) in [(0, 1), (255, 2), (100, 256), (0, total), (777, 1500)] {
                let mut runs: Vec<(usize, u32)> = Vec::new();
                for block in first..first + blocks {
                    let run = split.run(block, 1);
                    runs.push((run.shard, run.lba));
                }
                let parts = (0..shards)
                    .filter_map(|shard| Some((shard, split.part_of(shard, first, blocks)?)));
                let all = parts.flat_map(|(shard, (lba, count))| {
                    (lba..lba + count).map(move |lba| (shard, lba))
                });
                runs.sort_unstable();
                assert!(all.eq(runs), "{shards} shards: {blocks} blocks at {first}");
            }
            let most = seen.iter().map(|&(_, lba)| u64::from(lba) + 1).max().unwrap();
            assert!(most <= split.shard_blocks(total));
            assert!(split.device_blocks(split.shard_blocks(total) as u32) >= total);
        }
    }
}
