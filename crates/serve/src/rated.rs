//! Log messages at a bounded rate: what a stranger can cause as often as he likes must fill neither a
//! log nor a disk. Every such message asks a [`Rated`] of its own first.

use flash::{Instant, SECOND};
use std::sync::atomic::{AtomicU64, Ordering};

/// Between two messages of one kind.
const PERIOD_NS: u64 = 5 * SECOND;

/// Lets one message through every so often, and counts the others.
#[derive(Debug, Default)]
pub struct Rated {
    /// Before it, nothing is let through.
    next: AtomicU64,
    left_out: AtomicU64,
}

impl Rated {
    /// Whether to log now: then, how many messages like it were left out since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let mine = |next| {
            let after = now.0.saturating_add(PERIOD_NS);
            self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if now.0 < next || !mine(next) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_period_tells_how_many_were_left_out() {
        let rated = Rated::default();
        let mut told = Vec::new();
        for step in 0..1000 {
            told.extend(rated.admit(Instant(step * SECOND / 50)));
        }
        assert_eq!(told, [0, 249, 249, 249]);
    }
}
