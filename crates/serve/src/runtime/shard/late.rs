//! What takes too long: a warning for a request that is old, with what it waits for; and an end for a stop
//! that does not come to one by itself.

use super::{Life, Shard};
use flash::{Instant, SECOND};
use ftl::{Ftl, LostTier};

/// How long things may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// A request that is older is warned of.
    pub slow_ns: u64,
    /// A stop that takes longer is given up.
    pub stop_ns: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { slow_ns: 10 * SECOND, stop_ns: 30 * SECOND }
    }
}

/// Requests described in one warning.
const TOLD_MAX: usize = 3;

/// What a shard remembers of it.
#[derive(Debug)]
pub(super) struct Late {
    bounds: Bounds,
    /// When a request will be too old, if it is still there.
    watch_at: Option<Instant>,
    /// Warnings come no more often than requests may be old.
    quiet_until: Instant,
    /// Requests that were too old.
    pub slow_requests: u64,
    /// The log tells that the device failed.
    failure_told: bool,
    /// When the stop under way is given up.
    pub stop_at: Instant,
}

impl Late {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            watch_at: None,
            quiet_until: Instant(0),
            slow_requests: 0,
            failure_told: false,
            stop_at: Instant(u64::MAX),
        }
    }

    /// When to look again.
    pub fn deadline(&self) -> Option<Instant> {
        let stop = (self.stop_at != Instant(u64::MAX)).then_some(self.stop_at);
        self.watch_at.into_iter().chain(stop).min()
    }
}

impl Shard {
    /// Logs once that nothing is written any more.
    pub(super) fn log_failure(&mut self) {
        let is_lost = self.engine.medium.lost().is_some();
        if !self.late.failure_told && !is_lost && self.engine.core.has_failed() {
            self.late.failure_told = true;
            tracing::error!(
                shard = self.me,
                "{}: the device failed: nothing is written any more, and what can be read is read; look \
                 at the disk below, then start the server again, which recovers",
                self.shared.places.0,
            );
        }
    }

    /// Logs that a policy broke since it did so last.
    pub(super) fn log_broken_policy(&mut self) {
        let broken = self.engine.core.policies_broken();
        if broken == self.policies_broken {
            return;
        }
        self.policies_broken = broken;
        if let Some(change) = self.engine.core.ftl().and_then(Ftl::last_switch) {
            let ftl::PolicyChange { decision, from, to, why, .. } = change;
            tracing::warn!(shard = self.me, %decision, %from, %to, %why, "a policy was replaced");
        }
    }

    /// Logs once that a tier does not answer any more.
    pub(super) fn log_lost_tier(&mut self) {
        if self.loss_told {
            return;
        }
        let Some(lost) = self.engine.core.ftl().and_then(Ftl::tier_lost) else { return };
        self.loss_told = true;
        let (device, fast) = &self.shared.places;
        let place = if lost == LostTier::Fast { fast } else { device };
        tracing::error!(
            shard = self.me,
            "{place}: {lost}: nothing is written any more, and what can be read is read; bring it \
             back, then start the server again"
        );
    }

    /// Warns of requests that are too old.
    pub(super) fn watch(&mut self, now: Instant) {
        let slow_ns = self.late.bounds.slow_ns;
        let Some(oldest) = self.engine.oldest() else {
            self.late.watch_at = None;
            return;
        };
        if now < oldest + slow_ns || now < self.late.quiet_until {
            self.late.watch_at = Some((oldest + slow_ns).max(self.late.quiet_until));
            return;
        }
        self.late.quiet_until = now + slow_ns;
        self.late.watch_at = Some(self.late.quiet_until);
        let late = self.engine.late(now, slow_ns);
        self.late.slow_requests += late.iter().filter(|late| late.new).count() as u64;
        for late in late.iter().take(TOLD_MAX) {
            tracing::warn!(
                shard = self.me,
                request = late.what,
                block = late.lba,
                blocks = late.blocks,
                seconds = late.age_ns / SECOND,
                waits_for = %self.engine.core.waits_for(late.index),
                of = late.len,
                "a request takes long"
            );
        }
    }

    /// Looks what old requests wait for.
    pub(super) fn look_at_old(&mut self, now: Instant) {
        self.engine.look_at_old(now, self.slowest.look_from_ns());
    }

    /// A stop begins: it is over within a bound.
    pub(super) fn begin_stop(&mut self, now: Instant) {
        self.late.stop_at = now + self.late.bounds.stop_ns;
    }

    /// Gives the stop up when its time is over. True if it was.
    pub(super) fn give_up_stop(&mut self, now: Instant) -> bool {
        if now < self.late.stop_at || matches!(self.life, Life::Stopped { .. }) {
            return false;
        }
        let late = self.engine.late(now, 0);
        let requests = self.requests.len();
        let first = late.first().map(|late| {
            let waits_for = self.engine.core.waits_for(late.index);
            format!("; the oldest, a {} at block {}, waits for {waits_for}", late.what, late.lba)
        });
        tracing::debug!(shard = self.me, "{}", self.engine.core.explain());
        tracing::error!(
            shard = self.me,
            "the stop is given up after {} s: {requests} requests have no answer{}; {}. What was \
             acknowledged is safe as after a crash; the next start recovers",
            self.late.bounds.stop_ns / SECOND,
            first.unwrap_or_default(),
            self.engine.core.say_failures(),
        );
        self.life = Life::Stopped { durable: false };
        true
    }
}
