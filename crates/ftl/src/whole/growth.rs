//! A device that has become larger: units were added behind those that it had, and its next checkpoint has them and
//! the logical blocks that they make room for, or neither.
//!
//! Invariant: units that no complete checkpoint tells of hold nothing of the device. Nothing is appended to them
//! before one does, as after a mount nothing is appended before the first checkpoint.

use super::Ftl;
use crate::api::MountError;
use crate::format::{Root, root_shape};
use crate::recovery::mount::Named;
use flash::{BlockId, Geometry};

impl Named {
    /// Whether the device had the unit of `block` when the checkpoint was written. A fast tier or units that came since
    /// hold nothing of it.
    pub fn knows(&self, geometry: &Geometry, block: BlockId) -> bool {
        geometry.unit_of(block) < self.shape[0]
    }
}

impl Ftl {
    /// Whether a device of this shape can have become one of the medium's: by nothing, by a fast tier that is not
    /// recorded, or by units that were added.
    pub(crate) fn may_have_been(&self, shape: [u32; 6]) -> bool {
        shape == root_shape(&self.geometry)
            || shape == root_shape(&self.geometry.without_fast())
            || self.has_grown_from(shape)
    }

    pub(crate) fn has_grown_from(&self, shape: [u32; 6]) -> bool {
        let before = Geometry { units: shape[0], ..self.geometry };
        let is_less = (1..self.geometry.units).contains(&shape[0]);
        is_less && !self.geometry.is_tiered() && shape == root_shape(&before)
    }

    /// Whether the mount can do what a device of this record needs to grow.
    pub(crate) fn check_growth(&self, newest: &Root) -> Result<(), MountError> {
        let wanted = self.settings.logical_blocks_min > newest.logical_blocks;
        let would_grow = wanted && self.has_grown_from(newest.shape) && !self.settings.read_only;
        if would_grow && self.map.is_cached() {
            return Err(MountError::MapOfGrowth);
        }
        Ok(())
    }

    /// The mount ends: gives the device the logical blocks that its new units are for, which the next checkpoint tells
    /// of. Returns how many. A device that must not be written has them, too, as long as it is mounted: of several shards
    /// some may have grown, and the shadows of snapshots lie at the same addresses in all of them.
    pub(crate) fn grow(&mut self, chosen: &Named) -> u32 {
        let by = self.settings.logical_blocks_min.saturating_sub(self.map.blocks());
        if by == 0 || self.map.is_cached() || !self.has_grown_from(chosen.shape) {
            return 0;
        }
        self.map.grow(by);
        self.shadows.shift(by);
        // Who named that number has checked that the medium has room for it.
        self.layout = self.layout_of(false).expect("a checkpoint of the larger device fits");
        self.set_up_streams().expect("the settings are sound");
        self.set_up_reclaim();
        by
    }
}
