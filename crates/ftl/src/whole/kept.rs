//! Whether what the host wants to write can be kept: what there is, against what is mapped.

use crate::whole::Ftl;

impl Ftl {
    /// How many blocks hold data, once they are counted.
    pub(crate) fn blocks_held(&self) -> Option<u64> {
        (!self.is_counting()).then_some(self.blocks_mapped)
    }

    /// More blocks hold data than can be kept.
    pub(crate) fn is_overfull(&self) -> bool {
        self.blocks_held().is_some_and(|held| self.spare.is_exceeded_by(held))
    }

    /// Whether a write to `blocks` logical blocks from `lba` on would make more hold data than can be
    /// kept.
    pub(crate) fn exceeds_kept(&self, lba: u32, blocks: u32) -> bool {
        let Some(held) = self.blocks_held().filter(|_| self.spare.is_bounded()) else {
            return false;
        };
        if self.spare.is_exceeded_by(held) && self.bands.free <= self.host_floor() {
            return true;
        }
        let (mut at, mut new) = (0, 0);
        if !self.shadows.is_empty() {
            new = (lba..lba + blocks).filter(|&lba| self.grows(lba)).count() as u32;
            at = blocks;
        }
        while at < blocks {
            let (mapped, run) = self.map.mapped_run(lba + at, blocks - at);
            new += if mapped { 0 } else { run };
            at += run;
        }
        new > 0 && self.spare.is_exceeded_by(held + u64::from(new))
    }
}
