//! The best of a few drawn at random.

use super::{FullBands, VictimPolicy};
use flash::{BlockId, Random};

/// Fewest valid slots among `choices` bands drawn with replacement (Van Houdt 2013): ten are
/// within 5 % of greedy at a cost that does not grow with the device.
#[derive(Clone, Copy, Debug)]
pub struct DChoices {
    /// Bands drawn.
    pub choices: u32,
}

impl VictimPolicy for DChoices {
    fn name(&self) -> &'static str {
        "d-choices"
    }

    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId> {
        if bands.is_empty() {
            return None;
        }
        (0..self.choices)
            .map(|_| bands.band(random.below(bands.len() as u64) as usize))
            .min_by_key(|band| (band.slots_valid, band.block))
            .map(|band| band.block)
    }
}
