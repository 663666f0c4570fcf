//! Media that bound how many of their blocks are partly programmed (`Geometry::open_blocks_max`; zones
//! are such blocks): how many bands are open, and those that were left before their end and are being
//! *finished*.
//!
//! Invariant: where there is a bound, bands that are open, or left and not finished yet, are never more than
//! it allows, if whoever opens one has asked.

use flash::{BlockId, Geometry};

/// Whose a band of the capacity tier is that counts against the bound.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Opener {
    Point,
    Checkpoint,
}

/// Bands of the capacity tier that count against the bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Openings {
    /// Most that may be open, or 0 where there is no bound.
    max: u32,
    /// Of append points.
    points: u32,
    /// Of checkpoints.
    checkpoints: u32,
    /// Of these, those that are being finished, and whose they were.
    finishing: Vec<(BlockId, Opener)>,
    /// A point has no band, and no place to open one.
    wanted: bool,
}

impl Openings {
    pub fn new(geometry: &Geometry) -> Self {
        Self { max: geometry.open_blocks_max, ..Self::default() }
    }

    pub fn are_bounded(&self) -> bool {
        self.max > 0
    }

    /// Nothing is being finished.
    pub fn rest(&self) -> bool {
        self.finishing.is_empty()
    }

    /// Bands that append points may have open together, where `kept` places are kept for a checkpoint.
    pub fn of_points_max(&self, kept: u32) -> u32 {
        self.max.saturating_sub(kept)
    }

    /// Whether a point may open one more band where `kept` places are kept for a checkpoint, and `others`
    /// for points that come first.
    pub fn point_may_open(&self, kept: u32, others: u32) -> bool {
        !self.are_bounded() || self.points + others < self.of_points_max(kept)
    }

    /// Whether a checkpoint of so many bands can open them now.
    pub fn checkpoint_may_open(&self, bands: u32) -> bool {
        !self.are_bounded() || self.points + self.checkpoints + bands <= self.max
    }

    /// What has to be kept at least for so many `bands` together, if that is more than there may be.
    pub fn are_too_few_for(&self, bands: u32) -> Option<u32> {
        (self.are_bounded() && bands > self.max).then_some(self.max)
    }

    /// A band was opened that counts.
    pub fn opened(&mut self, opener: Opener) {
        *self.count(opener) += 1;
    }

    /// A band that counts is full, or of a unit that is gone.
    pub fn closed(&mut self, opener: Opener) {
        *self.count(opener) -= 1;
    }

    /// A band that counts was left before its end, and is being finished.
    pub fn left(&mut self, block: BlockId, opener: Opener) {
        self.finishing.push((block, opener));
    }

    /// A band that was left is finished.
    pub fn finished(&mut self, block: BlockId) {
        let at = self.finishing.iter().position(|&(other, _)| other == block);
        let (_, opener) = self.finishing.remove(at.expect("it was being finished"));
        self.closed(opener);
    }

    /// A point has no band, and no place to open one.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a place has to be made, as one is wanted and none is about to be free; once.
    pub fn take_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted) && self.rest()
    }

    fn count(&mut self, opener: Opener) -> &mut u32 {
        match opener {
            Opener::Point => &mut self.points,
            Opener::Checkpoint => &mut self.checkpoints,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Opener, Openings};
    use flash::BlockId;

    fn bounded(max: u32) -> Openings {
        Openings { max, ..Openings::default() }
    }

    #[test]
    fn where_there_is_no_bound_everybody_may_open() {
        let mut openings = bounded(0);
        (0..100).for_each(|_| openings.opened(Opener::Point));
        assert!(openings.point_may_open(50, 50) && openings.checkpoint_may_open(50));
        assert_eq!(openings.are_too_few_for(1000), None);
    }

    #[test]
    fn points_leave_the_places_that_are_kept_for_a_checkpoint() {
        let mut openings = bounded(5);
        for _ in 0..3 {
            assert!(openings.point_may_open(2, 0));
            openings.opened(Opener::Point);
        }
        assert!(!openings.point_may_open(2, 0));
        assert!(openings.checkpoint_may_open(2));
        assert!(!openings.checkpoint_may_open(3));
        assert_eq!(openings.are_too_few_for(6), Some(5));
    }

    #[test]
    fn a_band_that_was_left_counts_until_it_is_finished() {
        let mut openings = bounded(1);
        openings.opened(Opener::Point);
        openings.left(BlockId(3), Opener::Point);
        openings.want();
        assert!(!openings.rest() && !openings.point_may_open(0, 0));
        assert!(!openings.take_wanted(), "one is about to be free");
        openings.finished(BlockId(3));
        assert!(openings.rest() && openings.point_may_open(0, 0));
        openings.want();
        assert!(openings.take_wanted() && !openings.take_wanted());
    }
}
