//! A fast tier comes and goes.
//!
//! *Detach* ([`crate::api::Input::DetachFast`]): from then on the host's append points are on the capacity
//! tier, every band of the fast tier is destaged, and when nothing valid is left there, a checkpoint
//! goes to the capacity tier whose root record knows of no fast units. When it is complete, the FTL is
//! that of a device of one kind.
//!
//! *Attach*: a device that was made without a fast tier, or has lost it so, is mounted with one. What
//! the fast units hold is none of its data, and is erased; the first checkpoint after the mount lies
//! there, and its root record knows of them.
//!
//! So the newest complete checkpoint says whether the device has a fast tier, and a power cut between
//! any two steps leaves it as before or as after. Fast units are the last ones: no slot changes its
//! number.
//!
//! Invariants:
//! - from the checkpoint without fast units on nothing is appended there: what recovery would ignore;
//! - until the host's append points have left, no band of the fast tier counts as empty.

use crate::api::Output;
use crate::format::{CheckpointLayout, VERSION};
use crate::log::points::NONE;
use crate::policy::Purpose;
use crate::space::bands::BandState;
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{BlockId, Geometry};
use std::ops::Range;

/// How far a detach is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Leaving {
    #[default]
    No,
    /// What is valid on the fast tier is being destaged.
    Draining,
    /// The checkpoint without it is on its way; so many were complete before.
    Recording { checkpoints: u64 },
}

/// A tier of which no unit answers any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LostTier {
    /// The fast one.
    Fast,
    /// The other one.
    Capacity,
}

impl std::fmt::Display for LostTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fast => "no unit of the fast tier answers",
            Self::Capacity => "no unit of the capacity tier answers",
        })
    }
}

impl Ftl {
    fn leaving_stage(&self) -> Leaving {
        self.tier.as_ref().map_or(Leaving::No, |tier| tier.leaving)
    }

    /// The host writes to the capacity tier, because the fast one is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving_stage() != Leaving::No
    }

    /// The host is served from the fast tier.
    pub(crate) fn tier_serves(&self) -> bool {
        self.geometry.is_tiered() && !self.is_leaving()
    }

    fn fast_units(&self) -> Range<u32> {
        self.geometry.capacity_units()..self.geometry.units
    }

    /// The shape that the next checkpoint tells of.
    pub(crate) fn geometry_recorded(&self) -> Geometry {
        match self.leaving_stage() {
            Leaving::Recording { .. } => self.geometry.without_fast(),
            Leaving::No | Leaving::Draining => self.geometry,
        }
    }

    /// Checkpoints lie on the fast tier as long as it stays.
    pub(crate) fn checkpoints_leave(&self) -> bool {
        matches!(self.leaving_stage(), Leaving::Recording { .. })
    }

    /// The layout of a checkpoint of this device with or without its fast units.
    pub(crate) fn layout_of(&self, tiered: bool) -> Option<CheckpointLayout> {
        self.layout_with(tiered, VERSION, self.map.shadow_blocks())
    }

    /// The same, of a version of the format and with so many entries of shadows.
    pub(crate) fn layout_with(
        &self,
        tiered: bool,
        version: u16,
        shadow_blocks: u32,
    ) -> Option<CheckpointLayout> {
        let geometry = if tiered { self.geometry } else { self.geometry.without_fast() };
        let entries = self.map.blocks().checked_add(shadow_blocks)?;
        CheckpointLayout::of_version(&geometry, entries, version)
    }

    pub(crate) fn begin_detach(&mut self) {
        if self.is_leaving() {
            return;
        }
        if self.phase != Phase::Running || self.tier.is_none() || !self.may_leave_openings() {
            self.outputs.push_back(Output::FastDetached(false));
            return;
        }
        for point in 0..self.points.len() {
            if self.on_fast(point) {
                self.seal(point);
            }
        }
        self.set_leaving(Leaving::Draining);
        for open in self.opens.indices() {
            let entry = &self.opens[open];
            if !entry.live || entry.point == NONE {
                continue;
            }
            if self.geometry.is_fast(entry.block) || self.is_spare_opening(open) {
                self.leave_band(open);
            }
        }
        self.forget_room();
    }

    /// Appends nothing more to an open band that no page is being filled of.
    pub(crate) fn leave_band(&mut self, open: u32) {
        let block = self.opens[open].block;
        let unit = self.geometry.unit_of(block) as usize;
        self.take_from_points(open, unit);
        self.bands[block].slots_written = self.geometry.slots_per_block();
        self.opens[open].cut = true;
        self.close_if_done(open);
    }

    /// The fast tier stays: nothing can be destaged any more.
    pub(crate) fn give_up_detach(&mut self) {
        self.set_leaving(Leaving::No);
        self.forget_room();
        self.outputs.push_back(Output::FastDetached(false));
    }

    fn set_leaving(&mut self, stage: Leaving) {
        if let Some(tier) = &mut self.tier {
            tier.leaving = stage;
        }
    }

    /// Takes a detach on as far as it can go now.
    pub(crate) fn detach_pump(&mut self) {
        match self.leaving_stage() {
            Leaving::No => {}
            Leaving::Draining => {
                if self.fast_units().any(|unit| self.is_lost_with_data(unit)) {
                    // It can never be drained; what it holds may come back with it.
                    self.give_up_detach();
                } else if self.fast_is_empty() && self.checkpoint.is_idle() {
                    let layout = self.layout_of(false);
                    self.layout = layout.expect("a smaller device has a smaller checkpoint");
                    let checkpoints = self.counters.checkpoints;
                    self.set_leaving(Leaving::Recording { checkpoints });
                    self.forget_room();
                    self.checkpoint.want();
                }
            }
            Leaving::Recording { checkpoints } => {
                let quiet = |unit: u32| {
                    let unit = &self.units[unit as usize];
                    unit.running == 0 && unit.programs.is_empty()
                };
                if self.counters.checkpoints > checkpoints && self.fast_units().all(quiet) {
                    self.let_go_of_fast();
                }
            }
        }
    }

    fn is_lost_with_data(&self, unit: u32) -> bool {
        let holds = self.is_counting() || self.bands.sums(unit).slots_valid > 0;
        self.units[unit as usize].gone && holds
    }

    /// Slots of the fast tier that hold valid data.
    pub(crate) fn slots_valid_fast(&self) -> u64 {
        self.fast_units().map(|unit| self.bands.sums(unit).slots_valid).sum()
    }

    fn fast_is_empty(&self) -> bool {
        let busy = |unit: u32| {
            let state = &self.units[unit as usize];
            !state.programs.is_empty() || state.programs_running > 0
        };
        let open = |&open: &u32| {
            let entry = &self.opens[open];
            entry.live && entry.point != NONE && self.geometry.is_fast(entry.block)
        };
        self.slots_valid_fast() == 0
            && !self.is_counting()
            && self.tier.as_ref().is_none_or(crate::tier::destage::Tier::rests)
            && self.moves_failed == 0
            && !self.fast_units().any(busy)
            && !self.opens.indices().any(|index| open(&index))
    }

    /// Nothing needs the fast units any more: from now on this is a device without.
    fn let_go_of_fast(&mut self) {
        for unit in self.fast_units() {
            let first = unit * self.geometry.blocks_per_unit;
            for block in (first..first + self.geometry.blocks_per_unit).map(BlockId) {
                if self.bands[block].state != BandState::Retired {
                    self.bands.set_state(block, BandState::Retired);
                }
            }
        }
        self.units.forget_fast();
        for point in 0..self.points.len() {
            if self.points[point].purpose == Purpose::Destage || self.points[point].keeps {
                self.seal(point);
                self.points[point].idle = true;
            }
        }
        self.geometry = self.geometry.without_fast();
        if let Some(tier) = self.tier.take() {
            self.reclaim.take_chunks(tier.chunks());
        }
        self.forget_room();
        self.drain_check = true;
        self.outputs.push_back(Output::FastDetached(true));
    }

    /// Where there is room for whom has changed.
    fn forget_room(&mut self) {
        self.room_changes += 1;
        self.views = crate::log::room::Views::default();
    }

    /// The tier of which no unit answers, if there is one (a device of one kind is all capacity tier): then
    /// nothing can be promised any more, and what can still be read stays as it is, for the day when the tier is back.
    pub fn tier_lost(&self) -> Option<LostTier> {
        let slow = 0..self.geometry.capacity_units();
        let lost = |mut units: Range<u32>| units.all(|unit| self.units[unit as usize].gone);
        if self.geometry.is_tiered() && lost(self.fast_units()) {
            return Some(LostTier::Fast);
        }
        lost(slow).then_some(LostTier::Capacity)
    }
}
