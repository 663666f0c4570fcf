//! What there is: bands and their units, whose turn a unit's queues are, how many bands may be open.

pub(crate) mod bands;
pub(crate) mod capacity;
pub(crate) mod divisor;
pub(crate) mod filling;
pub(crate) mod openings;
pub(crate) mod read_slo;
pub(crate) mod scheduler;
pub(crate) mod spare;
pub(crate) mod sums;

/// Bands that only GC may open.
pub(crate) const RESERVE_BANDS: u32 = 3;

/// Free bands above the host's floor without which GC never rests.
pub(crate) const FREE_AT_REST: u32 = 2;

/// On what grounds a page is wanted, and so how far down the free bands it may go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Grounds {
    /// What is left above the reserves of its purpose.
    Usual,
    /// GC has in hand what would free the bands that a waiting checkpoint wants, and nothing else goes on:
    /// it may open some of these.
    Pressed,
    /// The record of a trim: it makes room, so it goes below all reserves. Where bands go bad it leaves what a checkpoint
    /// needs, without which the room that it makes is never free.
    Trim,
    /// A record that must find room, be it in the last free band.
    Record,
}

impl Grounds {
    /// It goes below the reserves of its purpose.
    pub fn is_record(self) -> bool {
        matches!(self, Self::Trim | Self::Record)
    }
}

/// For the tests of the parts here: two units of four bands of 64 slots.
#[cfg(test)]
fn small_geometry() -> flash::Geometry {
    flash::Geometry {
        units: 2,
        blocks_per_unit: 4,
        pages_per_block: 16,
        slots_per_page: 4,
        pairing: flash::Pairing::None,
        durable_at_completion: true,
        suspend: false,
        queue_depth: 4,
        endurance: 1000,
        open_blocks_max: 0,
        fast: flash::FastTier::default(),
    }
}
