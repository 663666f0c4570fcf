//! Fewest valid slots first.

use super::{FullBands, VictimPolicy};
use flash::{BlockId, Random};

/// The cheapest band to empty right now. Optimal for uniform random writes (Desnoyers 2012).
#[derive(Clone, Copy, Debug)]
pub struct Greedy;

impl VictimPolicy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        (0..bands.len())
            .map(|index| bands.band(index))
            .min_by_key(|band| (band.slots_valid, band.block))
            .map(|band| band.block)
    }
}
