//! How far writes of the host and GC may be apart: what GC gains by each slot that it moves the host may append, and
//! so much more as the settings let it be ahead.
//!
//! Invariant: the fewer bands are free, the less the host may owe, and at its floor nothing.
//!
//! And what GC leaves alone where bands go bad. Each program that fails takes a band, and one after the other they would take GC's
//! own reserve: then no record of a trim finds a place any more, and no checkpoint, so that nothing is free ever again.
//! - The bands that a checkpoint needs are opened by nobody else, not even for a trim; only what failed, which is nowhere else, goes
//!   there, and a victim that gives more than it takes when nothing else goes on.
//! - A failing band can be read as before, and gives no room when it is empty: it is no victim, and is emptied when there is room.
//! - What finds no place goes back to where it was, so that the host, and a shutdown, go on without it.

use crate::policy::Purpose;
use crate::space::{FREE_AT_REST, Grounds};
use crate::whole::{Ftl, Phase};
use flash::BlockId;

/// Of so many bands between the host's floor and where GC begins the host may be ahead by one.
const ROOM_PER_AHEAD: u32 = 4;

impl Ftl {
    /// True if the host must wait for GC before it appends.
    pub(crate) fn gate_writes(&self) -> bool {
        self.bands.free < self.bands_free_low()
            && self.reclaim.credit <= -self.debt_allowed()
            && !self.reclaim.victims.is_empty()
    }

    /// What the host may owe GC now, in 1/256 slots: see [`crate::Settings::bands_ahead`].
    fn debt_allowed(&self) -> i64 {
        let (low, floor) = (self.bands_free_low(), self.host_floor());
        let room = i64::from(self.bands.free.saturating_sub(floor));
        self.debt_max() * room / i64::from((low - floor).max(1))
    }

    /// Most that the host can owe beside what it wrote while GC had no victim: it is to be stopped by its debt, little
    /// by little, and not by the last free band.
    pub(crate) fn debt_max(&self) -> i64 {
        let room = (self.bands_free_low() - self.host_floor()) / ROOM_PER_AHEAD;
        let slots = i64::from(self.geometry.slots_per_block());
        256 * slots * i64::from(self.settings.bands_ahead.min(room))
    }

    /// Most that the host can have earned, in 1/256 slots.
    pub(crate) fn credit_max(&self) -> i64 {
        256 * i64::from(self.geometry.slots_per_block().max(4 * self.slow_units()))
    }

    /// Up to how much the host is to have earned once all that was read is placed; `i64::MAX` where
    /// space must be made at any rate. Where reads have a service level GC goes on as the host uses
    /// its credit, and no sooner: who reads meanwhile would be disturbed for nothing. Elsewhere it
    /// works ahead: a host that comes in bursts finds free bands.
    pub(crate) fn credit_wanted(&self) -> i64 {
        let paced = self.settings.read_slo_ns > 0
            && self.phase == Phase::Running
            && self.bands.free > self.host_floor() + FREE_AT_REST + self.bands_for_streams()
            && !self.checkpoint_starves_capacity()
            && !self.host_stands_still()
            && !self.destage_stands_still();
        if paced { self.credit_max() / 2 } else { i64::MAX }
    }

    /// True if GC has yet to earn what the host may use.
    pub(crate) fn wants_space(&self) -> bool {
        self.reclaim.credit < self.credit_wanted()
    }

    /// Free bands that stay for a checkpoint where bands go bad or are cut: GC may lose its own reserve then, one program that
    /// fails after the other, and what is trimmed gets free by a checkpoint only. While one is written, too: it may fail.
    pub(crate) fn last_bands(&self) -> u32 {
        let keeps = self.loses_bands() && !self.tier_serves();
        if keeps { self.bands_for_checkpoint().max(self.layout.bands) } else { 0 }
    }

    /// Free bands that GC leaves. The last one is for the record that decides an atomic write.
    pub(crate) fn relocate_floor(&self, grounds: Grounds) -> u32 {
        let atomic = self.host.atomic_writes > 0;
        let last = if grounds == Grounds::Pressed || atomic { 0 } else { self.last_bands() };
        last.max(u32::from(self.host.groups_undecided > 0))
    }

    /// Programs fail, so that bands end before they are full.
    fn loses_bands(&self) -> bool {
        self.bands.any_bad() || self.cuts
    }

    /// Bands are lost, and GC has nothing left to open.
    pub(crate) fn is_down_to_last_bands(&self) -> bool {
        self.loses_bands() && self.bands.free <= self.relocate_floor(Grounds::Usual)
    }

    /// Whether what is valid in `block` finds a place: where GC has nothing left to open, in the bands that it has open, or in one
    /// of the last if the victim gives more than it takes.
    pub(crate) fn finds_room(&self, block: BlockId) -> bool {
        if !self.is_down_to_last_bands() {
            return true;
        }
        let (valid, slots) = (self.bands[block].slots_valid, self.geometry.slots_per_block());
        if 2 * valid <= slots && self.bands.free > self.relocate_floor(Grounds::Pressed) {
            return true;
        }
        let points = self.points.iter().filter(|point| point.purpose == Purpose::Relocate);
        points.map(|point| self.slots_left(point)).sum::<u32>() >= valid
    }

    /// The next band to reclaim for another reason than space. A failing one can be read as before, and gives no room when it
    /// is empty: it waits until there is some.
    pub(crate) fn next_wanted(&mut self) -> Option<(BlockId, &'static str)> {
        // A failing band holds slots that were never programmed until those have moved.
        if self.moves_failed > 0 {
            return None;
        }
        let tight = self.bands.free <= self.host_floor();
        let waits =
            |block: BlockId| tight && self.bands[block].failing && !self.geometry.is_fast(block);
        let at = self.reclaim.wanted.iter().position(|&(block, _)| !waits(block))?;
        self.reclaim.wanted.remove(at)
    }

    /// All victims stay what they were, as nothing of them can be moved.
    pub(crate) fn put_back_victims(&mut self) {
        for index in (0..self.reclaim.victims.len()).rev() {
            self.reclaim.victims[index].cursor = self.band_end(self.reclaim.victims[index].block);
            self.victim_done(index);
        }
    }
}
