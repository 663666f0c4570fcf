//! Where appends go, and when they are safe: append points, pages, orders, flushes, failures.

pub(crate) mod by_unit;
pub(crate) mod closing;
pub(crate) mod commit;
pub(crate) mod durable;
pub(crate) mod failing;
pub(crate) mod flush;
pub(crate) mod moves;
pub(crate) mod points;
pub(crate) mod room;
pub(crate) mod streams;
pub(crate) mod vouching;
