//! How fast a count grows, over the last second or so, for who asks now and then.

use flash::{Instant, SECOND};

/// The pace of a count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// When it was last looked at, what it was, and what it grew by a second before that.
    at: Instant,
    count: u64,
    per_sec: u64,
}

impl Rate {
    /// Looks at the count if it is time to.
    pub fn note(&mut self, now: Instant, count: impl FnOnce() -> u64) {
        if now - self.at >= SECOND {
            let count = count();
            *self = Self { per_sec: self.grown(now, count), at: now, count };
        }
    }

    /// What it grows by a second.
    pub fn per_sec(&self, now: Instant, count: u64) -> u64 {
        // Nobody looked for long: nothing happened in between, or it would have been looked at.
        if now - self.at >= SECOND { self.grown(now, count) } else { self.per_sec }
    }

    fn grown(&self, now: Instant, count: u64) -> u64 {
        let grown = u128::from(count.saturating_sub(self.count)) * u128::from(SECOND);
        (grown / u128::from((now - self.at).max(1))) as u64
    }
}
