//! Cost-benefit with ages that count only as far as they tell.

use super::cost_benefit::{NO_BAND, age, better_by_score, ratio};
use super::{Columns, FullBands, SCAN_BANDS, VictimPolicy};
use flash::{BlockId, Random};
use std::array::from_fn;

/// As `CostBenefit`, but beyond [`MEANS`] times the mean age of all full bands a band is just old: a
/// transformed age, as in cost-age-time (Chiang, Lee and Chang 1999), with a bound that follows the load.
/// Where all data is alike, ages are too, and the choice comes near greedy's; where some of it is
/// cold, the oldest bands are not reclaimed over and over for a slot or two.
///
/// Of more than [`BANDS_MAX`] full bands so many are looked at, drawn anew for each victim, so that what a victim
/// costs does not grow with the device. The best of thousands is as good as the best of all: of 4096 it is
/// among the best thousandth 98 times in 100.
#[derive(Clone, Copy, Debug)]
pub struct AgeAdaptive;

/// Of 1, 1.5, 2, 2.5 and 4 the least with which cost-benefit is better on none of uniform, Zipf, and two
/// hot and cold loads.
const MEANS: u64 = 2;

/// Most bands that are looked at for a victim.
const BANDS_MAX: usize = DRAWS * SCAN_BANDS;

/// Runs of bands that these are.
const DRAWS: usize = 64;

impl VictimPolicy for AgeAdaptive {
    fn name(&self) -> &'static str {
        "age-adaptive"
    }

    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId> {
        let columns = bands.columns();
        let (slots, pages) = (bands.slots(), bands.pages());
        let places = columns.blocks.len();
        if places <= BANDS_MAX {
            return best_of(slots, pages, &[columns]);
        }
        let starts = (places - SCAN_BANDS + 1) as u64;
        let runs: [Columns<'_>; DRAWS] = from_fn(|_| {
            let first = random.below(starts) as usize;
            columns.part(first..first + SCAN_BANDS)
        });
        best_of(slots, pages, &runs)
    }
}

/// The best of the bands of these runs, by ages that count up to [`MEANS`] times their mean.
fn best_of(slots: u32, pages: u64, runs: &[Columns<'_>]) -> Option<BlockId> {
    // As one difference of sums: wrapped or not, it is right if no band is younger than now.
    let opened = runs.iter().flat_map(|run| run.opened);
    let sum = opened.fold(0u64, |sum, &at| sum.wrapping_add(at));
    let count = runs.iter().map(|run| run.opened.len() as u64).sum::<u64>().max(1);
    let old = MEANS * (pages.wrapping_mul(count).wrapping_sub(sum) / count + 1);
    let old = old as f64;
    let best = runs.iter().fold(NO_BAND, |best, run| {
        better_by_score(best, run, |valid, opened| ratio(slots, valid, age(pages, opened).min(old)))
    });
    (best != NO_BAND).then_some(best.1)
}
