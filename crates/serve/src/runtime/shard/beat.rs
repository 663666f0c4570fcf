//! Tells other threads whether a shard's turns come to an end, without asking the shard: one that has much to do
//! answers late, and is as healthy as one that sleeps.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the beginnings and the ends of turns: odd while there is one.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Beat(AtomicU64);

impl Beat {
    /// A turn begins, or ends. Called by its shard alone.
    pub(super) fn turn(&self, begins: bool) {
        let now = self.0.load(Ordering::Relaxed);
        if begins != is_turn(now) {
            self.0.store(now + 1, Ordering::Relaxed);
        }
    }

    /// The count, for [`is_turn`] and to compare with a later one.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether there is a turn at this count.
pub fn is_turn(count: u64) -> bool {
    count % 2 == 1
}
