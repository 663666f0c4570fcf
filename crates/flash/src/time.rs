//! Time as a value: nanoseconds since the driver's start, virtual in `lab`, monotonic in `serve`.

use std::ops::{Add, Sub};

/// Nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

/// One microsecond in nanoseconds.
pub const MICROSECOND: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

impl Add<u64> for Instant {
    type Output = Self;
    /// The instant `ns` later.
    fn add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Sub for Instant {
    type Output = u64;
    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
