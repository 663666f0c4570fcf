//! What bad bands leave: how many more may go before the device cannot keep what it promised, and what
//! it does from then on. Bands that hold no data even on a full device, GC's reserve above all, are
//! what keeps writes going, so they are never given to data: beyond what can be kept, a write of a block
//! that holds nothing is refused, with the reason in the status. Blocks that hold data are overwritten,
//! trimmed and read as before. Only where more is held than can be kept, because bands went bad under it,
//! and the reserve is all that is free, overwrites are refused, too: GC would wear out what is left for a few
//! slots a time, and trims, which are the way out, would find no room for their records.
//!
//! Invariants:
//! - what can be kept follows from the good bands by the rule that the format goes by;
//! - as long as no band is bad and there is no snapshot it is counted with the fewest open bands that any format could have gone by, whatever the
//!   policies: a restart with more handles takes no room from the data, as handles for which there are no bands share
//!   those of others;
//! - then it is counted for the policies of the mount, whatever is in charge since, so a switch takes no room either. With
//!   the fewest open bands a device of 64 bands, of which 13 were bad and 20 open, found no room for an overwrite.

use crate::config::Settings;
use crate::space::bands::{BandState, Bands};
use crate::space::capacity::{OpenBands, logical_blocks_of};
use flash::{BlockId, Geometry};

/// Spare bands below which the status warns, if any band went bad.
const SPARE_WARNED: u32 = 4;

/// Kept from one bad band to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    /// What is open at a time, by the settings of the mount.
    open: OpenBands,
    /// For so many bad bands, see [`crate::space::bands::Bands::bad_changes`], and so many entries of shadows.
    seen: Option<(u32, u32)>,
    /// Bands of the capacity tier that are bad, or are being emptied because they are.
    bad: u32,
    /// Most logical blocks that can hold data.
    blocks_max: u32,
    /// Bands that may go bad before that is less than the device offers.
    bands: u32,
    /// Logical blocks that the device offers.
    offered: u32,
    /// Entries of the map for the shadows of snapshots: with these, more may hold data than the device offers.
    shadow_blocks: u32,
}

impl Spare {
    /// Of a device that is mounted with `settings`. Nothing is counted yet.
    pub fn new(settings: &Settings) -> Self {
        let open = OpenBands::of(settings);
        Self { open, seen: None, bad: 0, blocks_max: 0, bands: 0, offered: 0, shadow_blocks: 0 }
    }

    /// Counts anew if bands went bad, or there are more or fewer shadows. The device offers so many logical blocks, and
    /// has so many entries of shadows beside.
    pub fn count(
        &mut self,
        bands: &Bands,
        geometry: &Geometry,
        (offered, shadow_blocks): (u32, u32),
    ) {
        let key = (bands.bad_changes(), shadow_blocks);
        if self.seen == Some(key) && self.offered == offered {
            return;
        }
        let capacity = bands.ids().take(geometry.capacity_blocks() as usize);
        let is_bad =
            |block: &BlockId| bands[*block].failing || bands[*block].state == BandState::Retired;
        let bad = capacity.filter(is_bad).count() as u32;
        let good = geometry.capacity_blocks() - bad;
        // What can be kept falls with every band, so the last that suffices is found by halving.
        let (mut few, mut many) = (0, good);
        while few < many {
            let mid = few + (many - few) / 2;
            let open = self.open_with(bad + (good - mid), shadow_blocks);
            let suffices = logical_blocks_of(geometry, mid, open, shadow_blocks) >= offered;
            if suffices { many = mid } else { few = mid + 1 }
        }
        let open = self.open_with(bad, shadow_blocks);
        let blocks_max = logical_blocks_of(geometry, good, open, shadow_blocks).min(offered);
        let bands = if blocks_max == offered { good - few } else { 0 };
        *self = Self { seen: Some(key), bad, blocks_max, bands, offered, shadow_blocks, ..*self };
    }

    /// What has to be open beside what is kept, with so many bad bands and entries of shadows.
    fn open_with(&self, bad: u32, shadow_blocks: u32) -> OpenBands {
        if bad == 0 && shadow_blocks == 0 { OpenBands::LEAST } else { self.open }
    }

    /// All that the device offers can be kept.
    pub fn suffices(&self) -> bool {
        self.blocks_max >= self.offered
    }

    /// More may hold data than can be kept: bands went bad, or there are snapshots.
    pub fn is_bounded(&self) -> bool {
        self.shadow_blocks > 0 || !self.suffices()
    }

    /// If so many logical blocks and entries of shadows hold data, more do than can be kept.
    pub fn is_exceeded_by(&self, held: u64) -> bool {
        self.is_bounded() && held > u64::from(self.blocks_max)
    }

    /// Whether a device on which so much holds data can keep it, and has more room than that takes, with so many entries
    /// of shadows.
    pub fn fits(&self, geometry: &Geometry, shadow_blocks: u32, held: u64) -> bool {
        let good = geometry.capacity_blocks() - self.bad;
        let kept = logical_blocks_of(
            geometry,
            good,
            self.open_with(self.bad, shadow_blocks),
            shadow_blocks,
        );
        self.seen.is_some() && held <= u64::from(kept)
    }

    /// Most that can hold data.
    pub fn most(&self) -> u64 {
        self.blocks_max.into()
    }

    /// Words for the owner, if bad bands left little. So many blocks hold data; `None` while they are still
    /// being counted.
    pub fn warning(&self, held: Option<u64>) -> Option<String> {
        let Self { bad, blocks_max, bands, offered, .. } = *self;
        if self.seen.is_none() || bad == 0 {
            return None;
        }
        if let Some(held) = held.filter(|&held| self.is_exceeded_by(held)) {
            return Some(format!(
                "{bad} bad bands: {blocks_max} of {offered} blocks can be kept, and {held} hold data; writes of \
                 blocks that hold none are refused, and of others where no more is free than GC needs. Trim what \
                 is not needed, which goes on, or move to another device"
            ));
        }
        if blocks_max < offered {
            let held = held.map_or("some".to_owned(), |held| held.to_string());
            return Some(format!(
                "{bad} bad bands: {blocks_max} of {offered} blocks can hold data, {held} do; writes of blocks \
                 that hold none are refused beyond that, the others go on. Trim what is not needed, or \
                 move to another device"
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
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("bands_bad", self.bad.into()),
            ("bands_spare", self.bands.into()),
            ("logical_blocks_kept", self.blocks_max.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::Spare;
    use crate::config::Settings;
    use crate::space::bands::{BandState, Bands};
    use crate::space::capacity::{OpenBands, logical_blocks_of};
    use crate::space::small_geometry;
    use flash::{BlockId, Geometry};

    #[test]
    fn with_each_bad_band_less_is_spare_and_then_less_is_kept() {
        let geometry = Geometry { units: 4, blocks_per_unit: 32, ..small_geometry() };
        let (settings, blocks) = (Settings::default(), geometry.blocks());
        let mut bands = Bands::new(&geometry);
        for block in bands.ids() {
            bands[block].state = BandState::Full;
        }
        bands.index_all();
        // Two bands more than what is offered needs.
        let offered = logical_blocks_of(&geometry, blocks - 2, OpenBands::of(&settings), 0);
        let mut spare = Spare::new(&settings);
        let mut kept = Vec::new();
        for bad in 0..4 {
            spare.count(&bands, &geometry, (offered, 0));
            assert_eq!(spare.counters()[0], ("bands_bad", bad));
            kept.push((
                spare.suffices(),
                spare.counters()[1].1,
                spare.is_exceeded_by(offered.into()),
            ));
            assert_eq!(spare.warning(Some(0)).is_some(), bad > 0);
            bands.set_state(BlockId(bad as u32), BandState::Retired);
        }
        assert_eq!(kept, [(true, 2, false), (true, 1, false), (true, 0, false), (false, 0, true)]);
    }
}
