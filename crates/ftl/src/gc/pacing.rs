//! How far writes of the host and GC may be apart: what GC gains by each slot that it moves the host may append, and
//! so much more as the settings let it be ahead.
//!
//! Invariant: the fewer bands are free, the less the host may owe, and at its floor nothing.

use crate::space::FREE_AT_REST;
use crate::whole::{Ftl, Phase};

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
}
