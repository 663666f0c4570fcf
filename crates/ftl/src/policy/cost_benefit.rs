//! Space gained over work done, weighed by age.

use super::{Columns, FullBands, SCAN_BANDS, VictimPolicy};
use flash::{BlockId, Random};

/// Largest (1 − u)·age / 2u, with u the valid ratio (Rosenblum and Ousterhout, LFS, 1992): an old
/// band is worth reclaiming at a higher valid ratio, because what is left in it will stay.
#[derive(Clone, Copy, Debug)]
pub struct CostBenefit;

impl VictimPolicy for CostBenefit {
    fn name(&self) -> &'static str {
        "cost-benefit"
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        let (slots, pages) = (bands.slots(), bands.pages());
        best_by_score(&bands.columns(), |valid, opened| {
            // +1: a band of this very instant still has to be comparable.
            ratio(slots, valid, pages.saturating_sub(opened) + 1)
        })
    }
}

/// What a band of this age gives over what it costs. Times and counts are far from where a sign would be,
/// and signed numbers become floating ones in one instruction.
#[inline(always)]
pub(super) fn ratio(slots: u32, valid: u32, age_pages: u64) -> (f64, f64) {
    let float = |count: u32| f64::from(count as i32);
    (float(slots - valid) * age_pages as i64 as f64, float(2 * valid).max(0.5))
}

/// A share of a score that rounding never comes to.
const ROUNDING: f64 = 1e-9;

/// The band with the largest score, the first in address among equals. `score` makes of valid slots
/// and the time when the band was opened a fraction of two positive numbers: it is divided only for
/// bands that may be the best so far.
#[inline(always)]
pub(super) fn best_by_score(
    columns: &Columns<'_>,
    score: impl Fn(u32, u64) -> (f64, f64),
) -> Option<BlockId> {
    let Columns { blocks, slots_valid, opened } = *columns;
    let mut best = (f64::NEG_INFINITY, BlockId(u32::MAX));
    let chunks = slots_valid.chunks(SCAN_BANDS).zip(opened.chunks(SCAN_BANDS));
    for ((valid, opened), blocks) in chunks.zip(blocks.chunks(SCAN_BANDS)) {
        let bound = best.0 * (1.0 - ROUNDING);
        let hits = valid.iter().zip(opened).fold(0u32, |hits, (&valid, &opened)| {
            let (over, under) = score(valid, opened);
            hits | u32::from(over >= bound * under)
        });
        if hits == 0 {
            continue;
        }
        for ((&valid, &opened), &block) in valid.iter().zip(opened).zip(blocks) {
            let (over, under) = score(valid, opened);
            let score = over / under;
            if score > best.0 || (score == best.0 && block < best.1) {
                best = (score, block);
            }
        }
    }
    (!blocks.is_empty()).then_some(best.1)
}
