//! How much of its weight each node gets: halved at once when it says that it is congested, raised step by
//! step when it has cleared, as published for Sandook (and on, other than in its published runs).
//!
//! Invariants: a limit is between [`LIMIT_MIN`] and 1; within [`WINDOW_NS`] it is halved at most once.

use crate::message::Congestion;
use flash::{Instant, MILLISECOND};

/// A limit is halved at most once, and raised one step, in this time.
pub const WINDOW_NS: u64 = 50 * MILLISECOND;

/// A limit never falls below this: a node that gets nothing could not say that it has recovered.
pub const LIMIT_MIN: f64 = 0.001;

const STEP: f64 = 0.05;

/// What a node said so long ago says nothing any more: its limit rises as if it had cleared.
const STALE_NS: u64 = 10 * WINDOW_NS;

/// The limit of one node.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    limit: f64,
    state: Congestion,
    told_at: Instant,
    halved_at: Option<Instant>,
    /// Up to when what has risen is counted in.
    raised_at: Instant,
    /// How often it was halved.
    pub halvings: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            limit: 1.0,
            state: Congestion::None,
            told_at: Instant(0),
            halved_at: None,
            raised_at: Instant(0),
            halvings: 0,
        }
    }
}

impl Limit {
    /// The node says how it feels. True if the limit fell.
    pub fn told(&mut self, now: Instant, state: Congestion) -> bool {
        self.raise(now);
        (self.state, self.told_at) = (state, now);
        state == Congestion::Congested && self.halve(now)
    }

    /// The node says nothing, though it should have: it is taken to be congested. True if the limit fell.
    pub fn late(&mut self, now: Instant) -> bool {
        self.told(now, Congestion::Congested)
    }

    /// The share of its weight that the node gets now.
    pub fn now(&mut self, now: Instant) -> f64 {
        self.raise(now);
        self.limit
    }

    fn halve(&mut self, now: Instant) -> bool {
        if self.halved_at.is_some_and(|at| now - at < WINDOW_NS) {
            return false;
        }
        self.halved_at = Some(now);
        self.halvings += 1;
        self.limit = (self.limit * 0.5).max(LIMIT_MIN);
        true
    }

    fn raise(&mut self, now: Instant) {
        let rises = matches!(self.state, Congestion::None | Congestion::Clearing)
            || now - self.told_at >= STALE_NS;
        if self.limit >= 1.0 || !rises {
            self.raised_at = now;
            return;
        }
        let windows = (now - self.raised_at) / WINDOW_NS;
        // More than all that is missing makes no difference.
        self.limit = (self.limit + STEP * windows.min(20) as f64).min(1.0);
        self.raised_at = self.raised_at + windows * WINDOW_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_halved_at_once_and_then_once_in_a_window() {
        let mut limit = Limit::default();
        for ms in 0..100 {
            limit.told(Instant(ms * MILLISECOND), Congestion::Congested);
        }
        assert_eq!(limit.now(Instant(100 * MILLISECOND)), 0.25);
        assert_eq!(limit.halvings, 2);
        for ms in 100..2000 {
            limit.told(Instant(ms * MILLISECOND), Congestion::Congested);
        }
        assert_eq!(limit.now(Instant(2000 * MILLISECOND)), LIMIT_MIN);
    }

    #[test]
    fn a_limit_rises_in_steps_while_the_node_clears_and_rests_while_it_has_settled() {
        let mut limit = Limit::default();
        limit.told(Instant(0), Congestion::Congested);
        limit.told(Instant(10), Congestion::Settled);
        assert_eq!(limit.now(Instant(10) + 5 * WINDOW_NS), 0.5);
        limit.told(Instant(10) + 5 * WINDOW_NS, Congestion::Clearing);
        let after = |windows: u64| Instant(10) + (5 + windows) * WINDOW_NS;
        assert!((limit.now(after(1)) - 0.55).abs() < 1e-9);
        assert!((limit.now(after(3)) - 0.65).abs() < 1e-9);
        assert_eq!(limit.now(after(100)), 1.0);
    }

    #[test]
    fn a_node_of_which_nothing_is_heard_gets_its_chance_again() {
        let mut limit = Limit::default();
        limit.late(Instant(0));
        assert_eq!(limit.now(Instant(STALE_NS - 1)), 0.5);
        assert!(limit.now(Instant(STALE_NS) + 2 * WINDOW_NS) > 0.5);
    }
}
