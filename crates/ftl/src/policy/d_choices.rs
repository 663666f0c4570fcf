//! The best of a few drawn at random.

use super::{Columns, FullBands, VictimPolicy};
use flash::{BlockId, Random};

/// Fewest valid slots among `choices` bands drawn with replacement (Van Houdt 2013): ten are
/// within 5 % of greedy at a cost that does not grow with the device.
#[derive(Clone, Copy, Debug)]
pub struct DChoices {
    /// Bands drawn.
    pub choices: u32,
}

impl VictimPolicy for DChoices {
    fn name(&self) -> &'static str {
        "d-choices"
    }

    fn pick(&mut self, bands: &dyn FullBands, random: &mut Random) -> Option<BlockId> {
        let Columns { blocks, slots_valid, .. } = bands.columns();
        if blocks.is_empty() {
            return None;
        }
        (0..self.choices)
            .map(|_| random.below(blocks.len() as u64) as usize)
            .map(|index| (slots_valid[index], blocks[index]))
            .min()
            .map(|(_, block)| block)
    }
}
