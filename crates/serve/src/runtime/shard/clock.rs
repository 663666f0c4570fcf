//! The time of a shard.

use flash::Instant;

/// Monotonic time that goes on where the mount's virtual time ended.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
    offset: u64,
}

impl Clock {
    /// It is `now`.
    pub fn starting_at(now: Instant) -> Self {
        Self { start: std::time::Instant::now(), offset: now.0 }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant(self.offset + self.start.elapsed().as_nanos() as u64)
    }
}
