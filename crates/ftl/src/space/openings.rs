//! Media that bound how many of their blocks are partly programmed (`Geometry::open_blocks_max`; zones
//! are such blocks): who may open a band, and when one that is left before its end is *finished*.
//!
//! A checkpoint opens all its bands at once, so as many places are kept for it. Of the others each
//! append point can have one; what is over goes to points that widen their stripes.
//!
//! Invariants, where there is a bound:
//! - bands that are open, or left and not finished yet, are never more than it allows;
//! - a point in use that has no band gets one: places are kept for those that may come, and where switches
//!   have used them up, another point leaves a band of its stripe.

use crate::api::MountError;
use crate::api::Output;
use crate::log::points::{NONE, OpenBand, Point};
use crate::policy::Purpose;
use crate::space::scheduler;
use crate::whole::Ftl;
use flash::{BlockId, Command, Tag};

/// Bands of the capacity tier that count against the bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Openings {
    /// Of append points.
    points: u32,
    /// Of checkpoints.
    checkpoints: u32,
    /// Of these, those that are being finished, and whether a point had them.
    finishing: Vec<(BlockId, bool)>,
    /// A point has no band, and no place to open one.
    wanted: bool,
}

impl Openings {
    /// Nothing is being finished.
    pub fn rest(&self) -> bool {
        self.finishing.is_empty()
    }

    fn count(&mut self, of_point: bool) -> &mut u32 {
        if of_point { &mut self.points } else { &mut self.checkpoints }
    }
}

impl Ftl {
    fn bounds_openings(&self, block: BlockId) -> bool {
        self.geometry.open_blocks_max > 0 && !self.geometry.is_fast(block)
    }

    /// Bands that append points may have open together.
    fn openings_of_points(&self) -> u32 {
        // The fast tier takes the checkpoints while it stays.
        let kept = if self.tier_serves() { 0 } else { self.layout_alone_bands() };
        self.geometry.open_blocks_max.saturating_sub(kept)
    }

    /// Bands of a checkpoint that lies on the capacity tier.
    fn layout_alone_bands(&self) -> u32 {
        self.layout_of(false).map_or(u32::MAX / 2, |layout| layout.bands)
    }

    /// Whether there is room for the bands of all points, and a checkpoint, without the fast tier.
    pub(crate) fn may_leave_openings(&self) -> bool {
        let max = self.geometry.open_blocks_max;
        let points = self.points.iter().filter(|point| !point.keeps).count() as u32;
        max == 0 || points + self.layout_alone_bands() <= max
    }

    /// Whether the point of this open band has others beside it, or is idle, and fills no page of this
    /// one: where places are short, that is one to leave.
    pub(crate) fn is_spare_opening(&self, open: u32) -> bool {
        let OpenBand { block, point, .. } = self.opens[open];
        let Some(point) = self.points.get(point as usize) else { return false };
        let fills = point.page != NONE && self.pages[point.page].open == open;
        self.bounds_openings(block) && !fills && (point.idle || point.bands().nth(1).is_some())
    }

    /// Most handles of all volumes together that the bound has room for, if there is one. Half of the
    /// places are for wider stripes, and for the host's points while a fast tier leaves.
    pub(crate) fn handles_max_open(&self) -> u32 {
        if self.geometry.open_blocks_max == 0 {
            return u32::MAX;
        }
        let volumes = self.streams.volumes() as u32;
        (self.openings_of_points() / 2).max(2 * volumes)
    }

    /// Places that append points in use may want for their first bands.
    fn points_wanting(&self) -> u32 {
        let here = |point: &&Point| !self.is_elsewhere(point);
        let in_use = self.points.iter().filter(here).filter(|point| !point.idle).count() as u32;
        let has_open = self.points.iter().filter(here).filter(|point| point.has_open());
        self.handles_max_open().max(in_use).saturating_sub(has_open.count() as u32)
    }

    /// Whether `point` appends to the fast tier, where there is no bound.
    fn is_elsewhere(&self, point: &Point) -> bool {
        point.purpose == Purpose::Host && self.tier_serves()
    }

    /// Whether `point` may have one more band open, as far as the bound is concerned.
    pub(crate) fn may_open_one_more(&self, point: &Point) -> bool {
        if self.geometry.open_blocks_max == 0 || self.is_elsewhere(point) {
            return true;
        }
        let others = if point.has_open() { self.points_wanting() } else { 0 };
        self.bands.openings.points + others < self.openings_of_points()
    }

    /// Whether a checkpoint can open its bands now, as far as the bound is concerned.
    pub(crate) fn may_open_checkpoint(&self) -> bool {
        let Openings { points, checkpoints, .. } = self.bands.openings;
        let max = self.geometry.open_blocks_max;
        let on_fast = self.geometry.is_fast_unit(self.units_for(Purpose::Checkpoint).start);
        max == 0 || on_fast || points + checkpoints + self.layout.bands <= max
    }

    /// `Err` if the bound has no room for this device: what it wants at least.
    pub(crate) fn check_openings(&self) -> Result<(), MountError> {
        let checkpoint = if self.geometry.is_tiered() { 0 } else { self.layout.bands };
        let wanted = checkpoint + 2 * self.streams.volumes() as u32;
        match self.geometry.open_blocks_max {
            0 => Ok(()),
            max if wanted <= max => Ok(()),
            max => Err(MountError::OpenBlocks { wanted, max }),
        }
    }

    /// `point` finds no unit for a page: if that is for want of a place, one is to be made.
    pub(crate) fn want_opening(&mut self, point: usize) {
        let point = &self.points[point];
        self.bands.openings.wanted |= !point.has_open() && !self.may_open_one_more(point);
    }

    /// Makes a place for a point that has no band, unless one is about to be free.
    pub(crate) fn openings_pump(&mut self) {
        if !std::mem::take(&mut self.bands.openings.wanted) || !self.bands.openings.rest() {
            return;
        }
        let live = self.opens.indices().filter(|&open| self.opens[open].live);
        if live.clone().any(|open| self.opens[open].cut) {
            return;
        }
        // The fullest: least of it stays unused.
        let spare = live.filter(|&open| self.is_spare_opening(open));
        if let Some(open) =
            spare.max_by_key(|&open| self.bands[self.opens[open].block].slots_written)
        {
            self.leave_band(open);
            self.room_changes += 1;
        }
    }

    pub(crate) fn note_open(&mut self, block: BlockId, purpose: Purpose) {
        if self.bounds_openings(block) {
            *self.bands.openings.count(purpose != Purpose::Checkpoint) += 1;
        }
    }

    /// Nothing is appended to a band any more, and nothing of it is under way.
    pub(crate) fn give_open(&mut self, open: u32) {
        self.note_left(open);
        self.opens[open].live = false;
        self.opens.give(open);
    }

    fn note_left(&mut self, open: u32) {
        let OpenBand { block, point, cut, .. } = self.opens[open];
        if !self.bounds_openings(block) {
            return;
        }
        let of_point = point != NONE;
        let whole = !cut && self.bands[block].slots_done == self.geometry.slots_per_block();
        let gone = self.units[self.geometry.unit_of(block) as usize].gone;
        if whole || gone || self.writes_ended() {
            *self.bands.openings.count(of_point) -= 1;
            return;
        }
        self.bands.openings.finishing.push((block, of_point));
        let tag = Tag(scheduler::TAG_FLUSH | block.0);
        self.outputs.push_back(Output::Command(Command::Finish { tag, block }));
    }

    pub(crate) fn complete_finish(&mut self, block: BlockId) {
        let at = self.bands.openings.finishing.iter().position(|&(other, _)| other == block);
        let (_, of_point) =
            self.bands.openings.finishing.remove(at.expect("it was being finished"));
        *self.bands.openings.count(of_point) -= 1;
        self.room_changes += 1;
    }
}
