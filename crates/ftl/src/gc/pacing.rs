//! Pacing: how much the host may write while space is short.
//!
//! Below `bands_free_low` free bands, every relocated slot earns the host a few appends, more while
//! many bands are free and fewer as they run out, so that writes slow down smoothly and never stop
//! dead. Reads take no part in this.
//!
//! Invariant: what the host owes is at most [`Ftl::debt_max`]. It goes on while GC has no victim in
//! hand, and owes what it writes then. Were that without a bound, it would stand still with the next
//! victim until all of it was earned: for many milliseconds, after as much without a wait.

use crate::space::FREE_AT_REST;
use crate::whole::{Ftl, Phase};

impl Ftl {
    /// True if the host must wait for GC before it appends.
    pub(crate) fn gate_writes(&self) -> bool {
        self.bands.free < self.bands_free_low()
            && self.reclaim.credit <= 0
            && !self.reclaim.victims.is_empty()
    }

    /// Most that the host can have earned, in 1/256 slots.
    pub(crate) fn credit_max(&self) -> i64 {
        256 * i64::from(self.geometry.slots_per_block().max(4 * self.slow_units()))
    }

    /// Most that it can owe, in 1/256 slots: what it puts into one band.
    fn debt_max(&self) -> i64 {
        256 * i64::from(self.geometry.slots_per_block())
    }

    /// A slot of the capacity tier was taken by the host, or by what is destaged for it.
    #[inline]
    pub(crate) fn charge_space(&mut self) {
        self.reclaim.credit = (self.reclaim.credit - 256).max(-self.debt_max());
    }

    /// What each relocated slot of a new victim earns, in 1/256 slots. One with nothing valid earns
    /// all at once.
    pub(crate) fn earn_by_victim(&mut self, slots: i64, valid: i64) -> i64 {
        let (floor, low) = (self.host_floor(), self.bands_free_low());
        let room = i64::from(self.bands.free.saturating_sub(floor));
        // 3/4 of what the victim gives at the floor, 5/4 of it at `low`.
        let share = 192 + 128 * room / i64::from((low - floor).max(1));
        if valid == 0 {
            self.reclaim.credit += slots * share;
        }
        self.reclaim.credit = self.reclaim.credit.min(self.credit_max());
        (slots - valid) * share / valid.max(1)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, Settings};
    use flash::{FastTier, Geometry, Health, Pairing};

    /// Formatting, of which nothing has run: what is owed does not depend on the medium.
    fn ftl() -> Ftl {
        let geometry = Geometry {
            units: 4,
            blocks_per_unit: 16,
            pages_per_block: 16,
            slots_per_page: 4,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 4,
            endurance: 1000,
            open_blocks_max: 0,
            fast: FastTier::default(),
        };
        let blocks = geometry.blocks() as usize;
        let health = Health { erase_counts: vec![0; blocks], ..Health::default() };
        let options = FormatOptions { logical_blocks: 1000, uuid: 1, label: Vec::new() };
        Ftl::format(geometry, &health, options, Settings::default()).expect("it fits")
    }

    #[test]
    fn what_was_written_while_no_victim_was_in_hand_is_owed_for_one_band_at_most() {
        let mut ftl = ftl();
        let slots = i64::from(ftl.geometry.slots_per_block());
        for _ in 0..100 * slots {
            ftl.charge_space();
        }
        assert_eq!(ftl.reclaim.credit, -256 * slots);
        ftl.earn_by_victim(slots, 0);
        let earned = ftl.reclaim.credit + 256 * slots;
        assert!(earned >= 192 * slots, "a victim with nothing valid earns at once: {earned}");
        ftl.charge_space();
        ftl.charge_space();
        assert_eq!(ftl.reclaim.credit, earned - 256 * slots - 512, "and all that comes is owed");
    }

    #[test]
    fn a_victim_earns_no_more_than_the_host_may_save_up() {
        let mut ftl = ftl();
        let slots = i64::from(ftl.geometry.slots_per_block());
        for _ in 0..20 {
            assert!(ftl.earn_by_victim(slots, slots / 2) >= 192, "half of it is gained");
            ftl.earn_by_victim(slots, 0);
        }
        assert_eq!(ftl.reclaim.credit, ftl.credit_max());
    }
}
