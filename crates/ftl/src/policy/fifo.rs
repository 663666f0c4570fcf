//! Oldest band first.

use super::{Columns, FullBands, SCAN_BANDS, VictimPolicy};
use flash::{BlockId, Random};

/// The band that was opened first (LRU cleaning): no choice at all, the classic baseline.
#[derive(Clone, Copy, Debug)]
pub struct Fifo;

impl VictimPolicy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        let Columns { blocks, opened, .. } = bands.columns();
        let mut best = (u64::MAX, BlockId(u32::MAX));
        for (opened, blocks) in opened.chunks(SCAN_BANDS).zip(blocks.chunks(SCAN_BANDS)) {
            if opened.iter().fold(u64::MAX, |least, &at| least.min(at)) <= best.0 {
                let bands = opened.iter().copied().zip(blocks.iter().copied());
                best = bands.fold(best, |best, band| best.min(band));
            }
        }
        (!blocks.is_empty()).then_some(best.1)
    }
}
