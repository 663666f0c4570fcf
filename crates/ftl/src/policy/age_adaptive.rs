//! Cost-benefit with ages that count only as far as they tell.

use super::cost_benefit::{age, best_by_score, ratio};
use super::{Columns, FullBands, VictimPolicy};
use flash::{BlockId, Random};

/// As `CostBenefit`, but beyond [`MEANS`] times the mean age of all full bands a band is just old: a
/// transformed age, as in cost-age-time (Chiang, Lee and Chang 1999), with a bound that follows the load.
/// Where all data is alike, ages are too, and the choice comes near greedy's; where some of it is
/// cold, the oldest bands are not reclaimed over and over for a slot or two.
#[derive(Clone, Copy, Debug)]
pub struct AgeAdaptive;

/// Of 1, 1.5, 2, 2.5 and 4 the least with which cost-benefit is better on none of uniform, Zipf, and two
/// hot and cold loads.
const MEANS: u64 = 2;

impl VictimPolicy for AgeAdaptive {
    fn name(&self) -> &'static str {
        "age-adaptive"
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        let columns = bands.columns();
        let Columns { opened, .. } = columns;
        let (slots, pages) = (bands.slots(), bands.pages());
        // As one difference of sums: wrapped or not, it is right if no band is younger than now.
        let sum = opened.iter().fold(0u64, |sum, &at| sum.wrapping_add(at));
        let count = opened.len().max(1) as u64;
        let old = MEANS * (pages.wrapping_mul(count).wrapping_sub(sum) / count + 1);
        let old = old as f64;
        best_by_score(&columns, |valid, opened| ratio(slots, valid, age(pages, opened).min(old)))
    }
}
