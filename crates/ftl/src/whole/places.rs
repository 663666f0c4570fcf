//! Who may open a band where the medium bounds how many are open, see [`crate::space::openings`].
//!
//! A checkpoint opens all its bands at once, so as many places are kept for it. Of the others each
//! append point can have one; what is over goes to points that widen their stripes. A point in use that has
//! no band gets one: places are kept for those that may come, and where switches have used them up, another
//! point leaves a band of its stripe.

use crate::api::{MountError, Output};
use crate::log::points::{NONE, OpenBand, Point};
use crate::policy::Purpose;
use crate::space::openings::Opener;
use crate::space::scheduler;
use crate::whole::Ftl;
use flash::{BlockId, Command, Tag};

impl Ftl {
    fn bounds_openings(&self, block: BlockId) -> bool {
        self.bands.openings.are_bounded() && !self.geometry.is_fast(block)
    }

    /// Places that points leave to a checkpoint.
    fn places_kept(&self) -> u32 {
        // The fast tier takes the checkpoints while it stays.
        if self.tier_serves() { 0 } else { self.layout_alone_bands() }
    }

    /// Bands of a checkpoint that lies on the capacity tier.
    fn layout_alone_bands(&self) -> u32 {
        self.layout_of(false).map_or(u32::MAX / 2, |layout| layout.bands)
    }

    /// Whether there is room for the bands of all points, and a checkpoint, without the fast tier.
    pub(crate) fn may_leave_openings(&self) -> bool {
        let points = self.points.iter().filter(|point| !point.keeps).count() as u32;
        let bounded = self.bands.openings.are_bounded();
        !bounded || points <= self.bands.openings.of_points_max(self.layout_alone_bands())
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
        if !self.bands.openings.are_bounded() {
            return u32::MAX;
        }
        let volumes = self.streams.volumes() as u32;
        (self.bands.openings.of_points_max(self.places_kept()) / 2).max(2 * volumes)
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
        if !self.bands.openings.are_bounded() || self.is_elsewhere(point) {
            return true;
        }
        let others = if point.has_open() { self.points_wanting() } else { 0 };
        self.bands.openings.point_may_open(self.places_kept(), others)
    }

    /// Whether a checkpoint can open its bands now, as far as the bound is concerned.
    pub(crate) fn may_open_checkpoint(&self) -> bool {
        let on_fast = self.geometry.is_fast_unit(self.units_for(Purpose::Checkpoint).start);
        on_fast || self.bands.openings.checkpoint_may_open(self.layout.bands)
    }

    /// `Err` if the bound has no room for this device: what it wants at least.
    pub(crate) fn check_openings(&self) -> Result<(), MountError> {
        let checkpoint = if self.geometry.is_tiered() { 0 } else { self.layout.bands };
        let wanted = checkpoint + 2 * self.streams.volumes() as u32;
        match self.bands.openings.are_too_few_for(wanted) {
            None => Ok(()),
            Some(max) => Err(MountError::OpenBlocks { wanted, max }),
        }
    }

    /// `point` finds no unit for a page: if that is for want of a place, one is to be made.
    pub(crate) fn want_opening(&mut self, point: usize) {
        let point = &self.points[point];
        if !point.has_open() && !self.may_open_one_more(point) {
            self.bands.openings.want();
        }
    }

    /// Makes a place for a point that has no band, unless one is about to be free.
    pub(crate) fn openings_pump(&mut self) {
        if !self.bands.openings.take_wanted() {
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
            let opener = match purpose {
                Purpose::Checkpoint => Opener::Checkpoint,
                _ => Opener::Point,
            };
            self.bands.openings.opened(opener);
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
        let opener = if point == NONE { Opener::Checkpoint } else { Opener::Point };
        let whole = !cut && self.bands[block].slots_done == self.geometry.slots_per_block();
        let gone = self.units[self.geometry.unit_of(block) as usize].gone;
        if whole || gone || self.writes_ended() {
            self.bands.openings.closed(opener);
            return;
        }
        self.bands.openings.left(block, opener);
        let tag = Tag(scheduler::TAG_FLUSH | block.0);
        self.outputs.push_back(Output::Command(Command::Finish { tag, block }));
    }

    pub(crate) fn complete_finish(&mut self, block: BlockId) {
        self.bands.openings.finished(block);
        self.room_changes += 1;
    }
}
