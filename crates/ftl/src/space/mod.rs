//! What there is: bands and their units, whose turn a unit's queues are, how many bands may be open.

pub(crate) mod bands;
pub(crate) mod divisor;
pub(crate) mod openings;
pub(crate) mod read_slo;
pub(crate) mod scheduler;
pub(crate) mod spare;
