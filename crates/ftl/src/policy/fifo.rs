//! Oldest band first.

use super::{FullBands, VictimPolicy};
use flash::{BlockId, Random};

/// The band that was opened first (LRU cleaning): no choice at all, the classic baseline.
#[derive(Clone, Copy, Debug)]
pub struct Fifo;

impl VictimPolicy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        (0..bands.len())
            .map(|index| bands.band(index))
            .min_by_key(|band| (u64::MAX - band.age_pages, band.block))
            .map(|band| band.block)
    }
}
