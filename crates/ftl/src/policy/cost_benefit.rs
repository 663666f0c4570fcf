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
        best_by_score(&bands.columns(), |valid, opened| ratio(slots, valid, age(pages, opened)))
    }
}

/// What a band of this age gives over what it costs. Counts are far from where a sign would be, and
/// signed numbers become floating ones several at a time.
#[inline(always)]
pub(super) fn ratio(slots: u32, valid: u32, age: f64) -> (f64, f64) {
    let float = |count: u32| f64::from(count as i32);
    (float(slots - valid) * age, float(2 * valid).max(0.5))
}

/// Pages since a band was opened, and one: a band of this very instant still has to be comparable.
#[inline(always)]
pub(super) fn age(pages: u64, opened: u64) -> f64 {
    exact(pages.wrapping_sub(opened)).max(0.0) + 1.0
}

/// `number`, taken as signed, of less than 2^51 either way, as what it is. Processors turn 64 bits into a
/// floating number one at a time, but this is an addition and a subtraction: added to the bits of
/// 2^52 + 2^51, where the last bit counts one, it is added to that number.
#[inline(always)]
fn exact(number: u64) -> f64 {
    const BIAS: f64 = 6_755_399_441_055_744.0;
    f64::from_bits(BIAS.to_bits().wrapping_add(number)) - BIAS
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
    let best = better_by_score(NO_BAND, columns, score);
    (!columns.blocks.is_empty()).then_some(best.1)
}

/// What any band is better than.
pub(super) const NO_BAND: (f64, BlockId) = (f64::NEG_INFINITY, BlockId(u32::MAX));

/// The best of these bands if it is better than `best`, as [`best_by_score`] has it, with its score.
#[inline(always)]
pub(super) fn better_by_score(
    mut best: (f64, BlockId),
    columns: &Columns<'_>,
    score: impl Fn(u32, u64) -> (f64, f64),
) -> (f64, BlockId) {
    let Columns { blocks, slots_valid, opened } = *columns;
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
    best
}

#[cfg(test)]
mod tests {
    use super::{age, exact};
    use flash::Random;

    #[test]
    fn ages_are_exact_and_a_band_from_the_future_is_new() {
        let mut random = Random::new(3);
        for bits in 0..51 {
            let number = random.next_u64() >> (63 - bits);
            assert_eq!(exact(number % (1 << 51)), (number % (1 << 51)) as f64);
            assert_eq!(exact((number % (1 << 51)).wrapping_neg()), -((number % (1 << 51)) as f64));
        }
        assert_eq!((age(9, 2), age(9, 9), age(9, 12)), (8.0, 1.0, 1.0));
    }
}
