//! What there is: bands and their units, whose turn a unit's queues are, how many bands may be open.

pub(crate) mod bands;
pub(crate) mod capacity;
pub(crate) mod divisor;
pub(crate) mod filling;
pub(crate) mod openings;
pub(crate) mod read_slo;
pub(crate) mod scheduler;
pub(crate) mod spare;

/// Bands that only GC may open.
pub(crate) const RESERVE_BANDS: u32 = 3;

/// Free bands above the host's floor without which GC never rests.
pub(crate) const FREE_AT_REST: u32 = 2;
