//! Space gained over work done, weighed by age.

use super::{BandView, FullBands, VictimPolicy};
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
        let mut best: Option<(f64, BlockId)> = None;
        for index in 0..bands.len() {
            let band = bands.band(index);
            let score = score(&band);
            let better = best
                .is_none_or(|(most, block)| score > most || (score == most && band.block < block));
            if better {
                best = Some((score, band.block));
            }
        }
        best.map(|(_, block)| block)
    }
}

fn score(band: &BandView) -> f64 {
    let valid = f64::from(band.slots_valid);
    let invalid = f64::from(band.slots - band.slots_valid);
    // +1: a band of this very instant still has to be comparable.
    invalid * (band.age_pages + 1) as f64 / (2.0 * valid).max(0.5)
}
