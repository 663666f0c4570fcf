//! Cost-benefit with ages that count only as far as they tell.

use super::cost_benefit::{NO_BAND, age, better_by_score, ratio};
use super::{Columns, FullBands, SCAN_BANDS, VictimPolicy};
use flash::{BlockId, Random};

/// As `CostBenefit`, but beyond [`MEANS`] times the mean age of all full bands a band is just old: a
/// transformed age, as in cost-age-time (Chiang, Lee and Chang 1999), with a bound that follows the load.
/// Where all data is alike, ages are too, and the choice comes near greedy's; where some of it is
/// cold, the oldest bands are not reclaimed over and over for a slot or two.
///
/// Of more than [`BANDS_MAX`] full bands so many are looked at, drawn anew for each victim, so that what a victim
/// costs does not grow with the device. The best of thousands is as good as the best of all: of 4096 it is
/// among the best thousandth 98 times in 100.
#[derive(Clone, Debug, Default)]
pub struct AgeAdaptive {
    /// Bands drawn for each victim, with replacement; 0 for all, or [`BANDS_MAX`].
    pub choices: u32,
    /// Where the runs begin that were drawn for the last victim.
    starts: Vec<usize>,
}

/// Of 1, 1.5, 2, 2.5 and 4 the least with which cost-benefit is better on none of uniform, Zipf, and two
/// hot and cold loads.
const MEANS: u64 = 2;

/// Most bands that are looked at for a victim.
const BANDS_MAX: usize = DRAWS * SCAN_BANDS;

/// Runs of bands that these are.
const DRAWS: usize = 64;

impl AgeAdaptive {
    /// One that draws so many bands for each victim; 0 for all.
    #[must_use]
    pub fn of(choices: u32) -> Self {
        Self { choices, starts: Vec::new() }
    }

    /// How many runs to look at, and how many bands each has, of so many in all.
    fn runs(&self, bands: usize) -> (usize, usize) {
        match self.choices as usize {
            0 if bands <= BANDS_MAX => (1, bands),
            0 => (DRAWS, SCAN_BANDS),
            choices => (choices, 1),
        }
    }
}

impl VictimPolicy for AgeAdaptive {
    fn name(&self) -> &'static str {
        "age-adaptive"
    }

    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId> {
        if bands.is_empty() {
            return None;
        }
        let columns = bands.columns();
        let (runs, length) = self.runs(bands.len());
        let places = (bands.len() - length + 1) as u64;
        self.starts.clear();
        self.starts.extend((0..runs).map(|_| random.below(places) as usize));
        let runs = self.starts.iter().map(|&start| columns.part(start..start + length));
        Some(best_of(bands, runs))
    }
}

/// The best of the bands of these runs, by ages that count up to [`MEANS`] times their mean.
fn best_of<'a>(bands: &dyn FullBands, runs: impl Iterator<Item = Columns<'a>> + Clone) -> BlockId {
    let (slots, pages) = (bands.slots(), bands.pages());
    // As one difference of sums: wrapped or not, it is right if no band is younger than now.
    let sums =
        runs.clone().map(|run| run.opened.iter().fold(0u64, |sum, &at| sum.wrapping_add(at)));
    let sum = sums.fold(0u64, u64::wrapping_add);
    let count: u64 = runs.clone().map(|run| run.opened.len() as u64).sum();
    let old = MEANS * (pages.wrapping_mul(count).wrapping_sub(sum) / count + 1);
    let old = old as f64;
    let best = runs.fold(NO_BAND, |best, run| {
        better_by_score(best, &run, |valid, opened| {
            ratio(slots, valid, age(pages, opened).min(old))
        })
    });
    best.1
}
