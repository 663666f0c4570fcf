//! What a shard tells of the health of its part of the device, for hosts that ask for it on any shard.

use super::{CoreStatus, Shard};
use crate::front::nvme::Health;
use flash::{Geometry, Instant, SECOND};

/// How long after work the health is told: counters that are read by hand or every few minutes need not be newer.
const AFTER_NS: u64 = SECOND;

/// When a shard tells it next.
#[derive(Debug, Default)]
pub(super) struct Told {
    due: Option<Instant>,
}

impl Told {
    /// Something was done, so that there will be something to tell.
    pub(super) fn worked(&mut self, now: Instant) {
        self.due.get_or_insert(now + AFTER_NS);
    }

    /// When to look again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }
}

impl Shard {
    /// Tells it, if it is time to.
    pub(super) fn tell_health(&mut self, now: Instant) {
        if self.health.due.is_none_or(|due| now < due) {
            return;
        }
        self.health.due = None;
        if let Some(subsystem) = &self.shared.nvme {
            let erase_counts = self.engine.medium.health().erase_counts;
            let geometry = self.engine.medium.geometry();
            let health = of_part(&self.engine.status(), geometry, &erase_counts);
            subsystem.healths.tell(self.me, health);
        }
    }
}

/// Of the flash for capacity; a fast tier is another medium, and has other bounds.
fn of_part(status: &CoreStatus, geometry: &Geometry, erase_counts: &[u32]) -> Health {
    let count = |wanted: &str| {
        let counters = status.counters().iter();
        counters.filter(|(name, _)| *name == wanted).map(|(_, value)| *value).sum::<u64>()
    };
    let blocks = geometry.capacity_blocks();
    let slots = u64::from(blocks) * u64::from(geometry.slots_per_block());
    let retired: u64 = match status {
        CoreStatus::Block(status) => {
            let units = status.units.iter().take(geometry.capacity_units() as usize);
            units.map(|unit| u64::from(unit.bands_retired)).sum()
        }
        CoreStatus::Raw(status) => status.units.iter().map(|unit| u64::from(unit.blocks_bad)).sum(),
    };
    Health {
        blocks_read: count("host_blocks_read"),
        blocks_written: count("host_blocks_written"),
        reads: count("host_reads"),
        writes: count("host_writes"),
        media_errors: count("reads_unreadable"),
        blocks_programmed: count("slots_programmed"),
        blocks_erased: count("erases") * u64::from(geometry.slots_per_block()),
        erases: erase_counts.iter().take(blocks as usize).map(|count| u64::from(*count)).sum(),
        endurance: u64::from(blocks) * u64::from(geometry.endurance),
        spare: slots.saturating_sub(count("logical_blocks")),
        retired: retired * u64::from(geometry.slots_per_block()),
        read_only: u64::from(status.phase() == "read-only"),
    }
}
