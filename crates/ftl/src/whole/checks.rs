//! Whether the settings fit each other and the medium, asked before anything starts.

use crate::config::{SHARES_MAX, Settings, handles_wanted};
use crate::map::bytes_min_to_hold;
use crate::policy::stream::HANDLES_MAX;
use flash::Geometry;

/// Most placement handles of all volumes together, when mounted.
const STREAM_HANDLES_MAX: u32 = 256;

impl Settings {
    /// `Err` names the key, its value, what is wrong and a value that works.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), String> {
        geometry.validate()?;
        if !(1..=HANDLES_MAX).contains(&self.handles) {
            return Err(format!("handles = {}: must be 1 to 16, for example 4", self.handles));
        }
        if self.stripe_units > geometry.units {
            return Err(format!(
                "stripe_units = {}: the device has {} units; use 0 for all",
                self.stripe_units, geometry.units
            ));
        }
        if self.destage_above > 95 {
            return Err(format!(
                "destage_above = {}: must be 0 to 95 percent, for example 70",
                self.destage_above
            ));
        }
        if self.fast_shares.len() > SHARES_MAX {
            return Err(format!(
                "fast_share: {} volumes have a share of the fast tier, at most {SHARES_MAX} can",
                self.fast_shares.len()
            ));
        }
        let pages_min = if geometry.is_tiered() { 4 } else { 2 };
        let blocks_min = pages_min * geometry.slots_per_page;
        if self.relocation_blocks < blocks_min {
            return Err(format!(
                "relocation_blocks = {}: must hold {pages_min} pages, at least {blocks_min}",
                self.relocation_blocks
            ));
        }
        self.validate_map(geometry)?;
        self.policies.validate()?;
        let wanted = handles_wanted(self, |policy| policy.handles().host + policy.handles().moved)?;
        if wanted > STREAM_HANDLES_MAX {
            return Err(format!(
                "streams: the policies want {wanted} placement handles in all, at most \
                 {STREAM_HANDLES_MAX} can be had; give some of them fewer, for example sfr:handles=4"
            ));
        }
        Ok(())
    }

    fn validate_map(&self, geometry: &Geometry) -> Result<(), String> {
        let piece = self.map_piece_blocks;
        if !piece.is_power_of_two() || !(8..=1024).contains(&piece) {
            return Err(format!(
                "map_piece_blocks = {piece}: must be a power of two from 8 to 1024, for example 1024"
            ));
        }
        let blocks = geometry.slots() as u32;
        let by_page = self.map_volumes.iter().filter(|volume| volume.page);
        let by_page: Vec<_> = by_page.map(|volume| volume.blocks.clone()).collect();
        let min = bytes_min_to_hold(blocks, piece, &by_page);
        if self.map_bytes != 0 && self.map_bytes < min {
            return Err(format!(
                "map_memory of {} bytes: the map of a device of this size, or of each of its shards, \
                 works in {min} bytes of DRAM and more, with what of it is to stay there; use 0 for all of it",
                self.map_bytes
            ));
        }
        Ok(())
    }
}
