//! What takes too long: a warning for a request that is old, with what it waits for; and an end for a stop
//! that does not come to one by itself.

use super::{Life, Shard};
use crate::volume::{Kind, Request};
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

/// A stop waits so long for what cannot be reached: long enough for a link that broke to be made anew.
const CUT_OFF_NS: u64 = 3 * SECOND;

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
    /// When what is below could last be reached, or the stop began.
    reached_at: Instant,
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
            reached_at: Instant(0),
        }
    }

    /// When to look again.
    pub fn deadline(&self) -> Option<Instant> {
        let stop = self.stops().then(|| self.stop_at.min(self.reached_at + CUT_OFF_NS));
        self.watch_at.into_iter().chain(stop).min()
    }

    fn stops(&self) -> bool {
        self.stop_at != Instant(u64::MAX)
    }
}

/// What was written, trimmed or zeroed and acknowledged by a shard, and how much of it a flush has made durable since: the
/// rest is what a power cut could take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acknowledged {
    bytes: u64,
    bytes_flushed: u64,
}

impl Acknowledged {
    /// So much until now: a flush that begins now makes that durable.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// A request that began when so much was acknowledged has ended well.
    pub fn note(&mut self, request: &Request, bytes_before: u64) {
        match request.kind {
            Kind::Flush => self.bytes_flushed = self.bytes_flushed.max(bytes_before),
            Kind::Write { fua: false, .. }
            | Kind::Zeroes { fua: false, .. }
            | Kind::Trim { fua: false } => self.bytes += u64::from(request.len),
            _ => {}
        }
    }

    fn unflushed(self) -> u64 {
        self.bytes - self.bytes_flushed
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
        self.late.reached_at = now;
    }

    /// Gives the stop up when its time is over, or what it waits for cannot be reached. True if it was.
    pub(super) fn give_up_stop(&mut self, now: Instant) -> bool {
        if !self.late.stops() || matches!(self.life, Life::Stopped { .. }) {
            return false;
        }
        match self.engine.medium.cut_off() {
            Some(why) if now >= self.late.reached_at + CUT_OFF_NS => {
                return self.stop_cut_off(&why);
            }
            Some(_) => {}
            None => self.late.reached_at = now,
        }
        if now < self.late.stop_at {
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

    /// Ends without what cannot be reached. That is an unclean end only if it takes something that was acknowledged: what
    /// was flushed is there, and who waits for an answer was promised nothing.
    fn stop_cut_off(&mut self, why: &str) -> bool {
        let (place, requests) = (&self.shared.places.0, self.requests.len());
        let unflushed = self.acknowledged.unflushed();
        if unflushed > 0 {
            tracing::error!(
                shard = self.me,
                "{place}: {why}: the stop does not wait for them. Of what was written and acknowledged {unflushed} bytes \
                 were not flushed, and what of them is not on the nodes is lost as by a power cut; {requests} requests have \
                 no answer. The next start recovers"
            );
        } else {
            tracing::warn!(
                shard = self.me,
                "{place}: {why}: the stop does not wait for them. All that was acknowledged had been flushed, so nothing is \
                 lost; {requests} requests have no answer. The next start recovers"
            );
        }
        self.life = Life::Stopped { durable: unflushed == 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_began_and_nothing_else() {
        let request = |kind, len| Request { volume: 0, kind, offset: 0, len };
        let write = request(Kind::Write { fua: false, handle: None }, 4096);
        let flush = request(Kind::Flush, 0);
        let mut acknowledged = Acknowledged::default();
        acknowledged.note(&write, 0);
        let before = acknowledged.bytes();
        acknowledged.note(&write, 0);
        assert_eq!(acknowledged.unflushed(), 8192);
        acknowledged.note(&flush, before);
        assert_eq!(
            acknowledged.unflushed(),
            4096,
            "one was acknowledged while the flush was under way"
        );
        // One that began earlier and ends later takes nothing back.
        acknowledged.note(&flush, 0);
        assert_eq!(acknowledged.unflushed(), 4096);
        for durable in
            [Kind::Write { fua: true, handle: None }, Kind::Trim { fua: true }, Kind::Read]
        {
            acknowledged.note(&request(durable, 4096), 0);
        }
        assert_eq!(acknowledged.unflushed(), 4096);
        acknowledged.note(&request(Kind::Trim { fua: false }, 4096), 0);
        acknowledged.note(&flush, acknowledged.bytes());
        assert_eq!(acknowledged.unflushed(), 0);
    }
}
