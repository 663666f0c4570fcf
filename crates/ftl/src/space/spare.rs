//! What bad bands leave: how many more may go before the device cannot keep what it promised, and what
//! it does from then on. Bands that hold no data even on a full device, GC's reserve above all, are
//! what keeps writes going, so they are never given to data: beyond what can be kept, a write of a block
//! that holds nothing is refused, with the reason in the status. Blocks that hold data are overwritten,
//! trimmed and read as before. Only where more is held than can be kept, because bands went bad under it,
//! and the reserve is all that is free, overwrites are refused, too: GC would wear out what is left for a few
//! slots a time, and trims, which are the way out, would find no room for their records.
//!
//! Invariant: what can be kept follows from the good bands by the rule that the format goes by.

use crate::space::bands::BandState;
use crate::space::capacity::logical_blocks_of;
use crate::whole::Ftl;

/// Spare bands below which the status warns, if any band went bad.
const SPARE_WARNED: u32 = 4;

/// Kept from one bad band to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spare {
    /// For so many bad bands, see [`crate::space::bands::Bands::bad_changes`].
    seen: Option<u32>,
    /// Bands of the capacity tier that are bad, or are being emptied because they are.
    bad: u32,
    /// Most logical blocks that can hold data.
    blocks_max: u32,
    /// Bands that may go bad before that is less than the device offers.
    bands: u32,
}

impl Ftl {
    /// Counts anew if bands went bad.
    pub(crate) fn count_spare(&mut self) {
        let key = self.bands.bad_changes();
        if self.spare.seen == Some(key) {
            return;
        }
        let capacity = self.bands.ids().take(self.geometry.capacity_blocks() as usize);
        let is_bad = |block: &flash::BlockId| {
            self.bands[*block].failing || self.bands[*block].state == BandState::Retired
        };
        let bad = capacity.filter(is_bad).count() as u32;
        let good = self.geometry.capacity_blocks() - bad;
        let blocks = self.map.blocks();
        let kept = |good: u32| logical_blocks_of(&self.geometry, good, &self.settings);
        // What can be kept falls with every band, so the last that suffices is found by halving.
        let (mut few, mut many) = (0, good);
        while few < many {
            let mid = few + (many - few) / 2;
            if kept(mid) >= blocks { many = mid } else { few = mid + 1 }
        }
        let blocks_max = kept(good).min(blocks);
        let bands = if blocks_max == blocks { good - few } else { 0 };
        self.spare = Spare { seen: Some(key), bad, blocks_max, bands };
    }

    /// More blocks hold data than can be kept: bands went bad on a device that was full.
    pub(crate) fn is_overfull(&self) -> bool {
        let Spare { blocks_max, .. } = self.spare;
        blocks_max < self.map.blocks()
            && !self.is_counting()
            && self.blocks_mapped > u64::from(blocks_max)
    }

    /// Whether a write to `blocks` logical blocks from `lba` on would make more hold data than can be
    /// kept.
    pub(crate) fn exceeds_kept(&self, lba: u32, blocks: u32) -> bool {
        if self.spare.blocks_max >= self.map.blocks() || self.is_counting() {
            return false;
        }
        if self.is_overfull() && self.bands.free <= self.host_floor() {
            return true;
        }
        let (mut at, mut new) = (0, 0);
        while at < blocks {
            let (mapped, run) = self.map.mapped_run(lba + at, blocks - at);
            new += if mapped { 0 } else { run };
            at += run;
        }
        new > 0 && self.blocks_mapped + u64::from(new) > u64::from(self.spare.blocks_max)
    }

    /// Words for the owner, if bad bands left little.
    pub(crate) fn spare_warning(&self) -> Option<String> {
        let Spare { bad, blocks_max, bands, .. } = self.spare;
        let blocks = self.map.blocks();
        if self.spare.seen.is_none() || bad == 0 {
            return None;
        }
        if self.is_overfull() {
            return Some(format!(
                "{bad} bad bands: {blocks_max} of {blocks} blocks can be kept, and {} hold data; writes of \
                 blocks that hold none are refused, and of others where no more is free than GC needs. Trim what \
                 is not needed, which goes on, or move to another device",
                self.blocks_mapped
            ));
        }
        if blocks_max < blocks {
            return Some(format!(
                "{bad} bad bands: {blocks_max} of {blocks} blocks can hold data, {} do; writes of blocks \
                 that hold none are refused beyond that, the others go on. Trim what is not needed, or \
                 move to another device",
                self.blocks_mapped
            ));
        }
        (bands < SPARE_WARNED).then(|| {
            format!(
                "{bad} bad bands: {} more and writes of blocks that hold no data will be refused as the \
                 device fills; move to another device",
                bands + 1
            )
        })
    }

    /// For the status: bad bands, those that may go, and what can be kept.
    pub(crate) fn spare_counters(&self) -> [(&'static str, u64); 3] {
        [
            ("bands_bad", self.spare.bad.into()),
            ("bands_spare", self.spare.bands.into()),
            ("logical_blocks_kept", self.spare.blocks_max.into()),
        ]
    }
}
