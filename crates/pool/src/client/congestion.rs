//! How much of its weight each node gets: halved when it says that it is congested, raised step by step when it
//! says so no more. The scheme is the one published for Sandook (and on, other than in its published runs), but
//! for three things without which healthy drives ended at a twentieth of their weight in the lab, and the load on
//! the others: a node is heard only when it has said it for longer than a burst takes; the larger a limit, the
//! larger its steps; and it rises as well while the node's tail has settled where its profile has it, which is what
//! a tail does at any load that is planned well.
//!
//! A node that was told to serve something else is late for a moment through no fault of its own: its drive still
//! has the requests of before, and its judgement is of a load that is no more. What it says then is not heard, or a
//! healthy node is halved at each turn of the controller, faster than its limit rises.
//!
//! Invariants: a limit is between [`LIMIT_MIN`] and 1; within [`WINDOW_NS`] it is halved at most once.

use crate::message::Congestion;
use flash::{Instant, MILLISECOND};

/// A limit is halved at most once, and raised one step, in this time.
pub const WINDOW_NS: u64 = 50 * MILLISECOND;

/// A limit never falls below this: a node that gets nothing could not say that it has recovered.
pub const LIMIT_MIN: f64 = 0.001;

/// A node is not heard for so long after its mode has changed: as long as its drive takes to be as the new load has
/// it, and two judgements.
pub const CALM_NS: u64 = 25 * MILLISECOND;

/// A node is halved when it has said for so long that it is congested, which is more than one judgement: a burst
/// that is over when it is known of would be answered with a burst at other nodes.
pub const LASTS_NS: u64 = 12 * MILLISECOND;

/// What is missing of a limit that is not small any more comes back by this part of it a window.
const GROWS: f64 = 0.5;

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
    /// Since when it has said nothing but that it is congested.
    since: Option<Instant>,
    /// What the node says before is not heard.
    calm_until: Instant,
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
            since: None,
            calm_until: Instant(0),
            halvings: 0,
        }
    }
}

impl Limit {
    /// The node says how it feels. True if the limit fell.
    pub fn told(&mut self, now: Instant, state: Congestion) -> bool {
        if now < self.calm_until {
            return false;
        }
        self.raise(now);
        (self.state, self.told_at) = (state, now);
        if state != Congestion::Congested {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now - since >= LASTS_NS && self.halve(now)
    }

    /// The node's mode has changed.
    pub fn calm(&mut self, now: Instant) {
        self.raise(now);
        (self.calm_until, self.since) = (now + CALM_NS, None);
    }

    /// The node says nothing, though it should have: it is taken to be congested. True if the limit fell.
    pub fn late(&mut self, now: Instant) -> bool {
        self.raise(now);
        (self.state, self.told_at) = (Congestion::Congested, now);
        self.since.get_or_insert(now);
        self.halve(now)
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
        let rises = self.state != Congestion::Congested || now - self.told_at >= STALE_NS;
        if self.limit >= 1.0 || !rises {
            self.raised_at = now;
            return;
        }
        let windows = (now - self.raised_at) / WINDOW_NS;
        // More than all that is missing makes no difference.
        for _ in 0..windows.min(20) {
            self.limit = (self.limit + STEP.max(self.limit * GROWS)).min(1.0);
        }
        self.raised_at = self.raised_at + windows * WINDOW_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node says this each millisecond from one to the other.
    fn says(limit: &mut Limit, ms: std::ops::Range<u64>, state: Congestion) {
        for ms in ms {
            limit.told(Instant(ms * MILLISECOND), state);
        }
    }

    #[test]
    fn a_limit_is_halved_when_congestion_lasts_and_then_once_in_a_window() {
        let mut limit = Limit::default();
        says(&mut limit, 0..100, Congestion::Congested);
        assert_eq!(limit.now(Instant(100 * MILLISECOND)), 0.25);
        assert_eq!(limit.halvings, 2);
        says(&mut limit, 100..2000, Congestion::Congested);
        assert_eq!(limit.now(Instant(2000 * MILLISECOND)), LIMIT_MIN);
    }

    #[test]
    fn bursts_that_are_over_at_the_next_judgement_halve_nothing() {
        let mut limit = Limit::default();
        for burst in 0..20 {
            let ms = burst * 40;
            says(&mut limit, ms..ms + 10, Congestion::Congested);
            says(&mut limit, ms + 10..ms + 40, Congestion::Clearing);
        }
        assert_eq!((limit.now(Instant(800 * MILLISECOND)), limit.halvings), (1.0, 0));
    }

    #[test]
    fn after_a_change_of_mode_a_node_is_not_heard_and_one_that_stays_congested_is() {
        let mut limit = Limit::default();
        for turn in 0..20 {
            limit.calm(Instant(turn * 100 * MILLISECOND));
            says(&mut limit, turn * 100..turn * 100 + 25, Congestion::Congested);
            says(&mut limit, turn * 100 + 25..turn * 100 + 100, Congestion::None);
        }
        assert_eq!(limit.halvings, 0);
        limit.calm(Instant(2000 * MILLISECOND));
        says(&mut limit, 2000..2050, Congestion::Congested);
        assert_eq!(limit.now(Instant(2050 * MILLISECOND)), 0.5);
        // A member that does not answer at all is late, whatever it was told.
        limit.calm(Instant(2100 * MILLISECOND));
        assert!(limit.late(Instant(2101 * MILLISECOND)));
    }

    #[test]
    fn a_limit_rises_by_larger_steps_the_larger_it_is_unless_the_node_is_congested() {
        let mut limit = Limit { limit: 0.04, ..Limit::default() };
        let after = |windows: u64| Instant(windows * WINDOW_NS);
        limit.told(Instant(0), Congestion::Settled);
        assert!((limit.now(after(1)) - 0.09).abs() < 1e-9);
        assert!((limit.now(after(3)) - 0.21).abs() < 1e-9);
        limit.told(after(3), Congestion::Congested);
        assert!((limit.now(after(5)) - 0.21).abs() < 1e-9);
        limit.told(after(5), Congestion::Clearing);
        assert_eq!(limit.now(after(9)), 1.0);
    }

    #[test]
    fn a_node_of_which_nothing_is_heard_gets_its_chance_again() {
        let mut limit = Limit::default();
        limit.late(Instant(0));
        assert_eq!(limit.now(Instant(STALE_NS - 1)), 0.5);
        assert!(limit.now(Instant(STALE_NS) + 2 * WINDOW_NS) > 0.5);
    }
}
