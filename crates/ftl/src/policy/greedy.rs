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
        bands.fewest_valid()
    }
}
