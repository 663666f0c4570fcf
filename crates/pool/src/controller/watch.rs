//! Is a drive as its profile says? One that is seen slower for long is planned with a slower profile, one that
//! got better is trusted again, slowly. And a drive near the end of its endurance is given fewer writes.
//!
//! A drive of slowness s takes s times as long for everything: it carries an s-th of the load, s times later.

use crate::profile::LoadModel;
use flash::{Instant, SECOND};

/// How much slower than its profile a drive is, by what was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watch {
    slowness: f64,
    /// Since when it has been slower, or quicker, than is planned.
    slower: Option<Instant>,
    quicker: Option<Instant>,
}

/// So much later than expected is slower.
const LATE: f64 = 1.5;
/// So much sooner is quicker.
const SOON: f64 = 0.8;
/// For that long, before anything is made of it: longer than any burst of GC, far shorter than wear.
const SLOWER_NS: u64 = 2 * SECOND;
/// Trust comes back more slowly than it goes.
const QUICKER_NS: u64 = 10 * SECOND;
/// In one step.
const STEP: f64 = 1.25;
const SLOWNESS_MAX: f64 = 1000.0;

impl Default for Watch {
    fn default() -> Self {
        Self { slowness: 1.0, slower: None, quicker: None }
    }
}

impl Watch {
    /// How many times as slow as its profile the drive is planned.
    pub fn slowness(&self) -> f64 {
        self.slowness
    }

    /// What was seen of a drive: `tail_us` at the quantile of the service level, at these reads and writes a
    /// second. `model` is what is planned with now. True if the slowness changed.
    pub fn see(
        &mut self,
        now: Instant,
        model: &LoadModel,
        reads: f64,
        writes: f64,
        tail_us: f64,
    ) -> bool {
        // A drive that gets more than it was planned is late through no fault of its own.
        let Some(expected) = model.latency(reads, writes) else { return false };
        let ratio = tail_us / expected;
        let since = |held: Option<Instant>, holds: bool| holds.then(|| held.unwrap_or(now));
        self.slower = since(self.slower, ratio > LATE);
        self.quicker = since(self.quicker, ratio < SOON && self.slowness > 1.0);
        if self.slower.is_some_and(|slower| now - slower >= SLOWER_NS) {
            // Far from the truth it goes there at once, near it by steps: what is seen is noisy.
            let step = if ratio > 4.0 { ratio / 2.0 } else { STEP };
            self.slowness = (self.slowness * step).min(SLOWNESS_MAX);
            self.slower = None;
            return true;
        }
        if self.quicker.is_some_and(|quicker| now - quicker >= QUICKER_NS) {
            self.slowness = (self.slowness / STEP).max(1.0);
            self.quicker = None;
            return true;
        }
        false
    }
}

/// From this part of its endurance on a drive gets fewer writes.
const WORN_FROM: f64 = 0.9;

/// At most so many writes a second of the `peak` that a drive carries, when this part of its endurance is used.
pub fn writes_of_worn(peak: f64, wear: f64) -> f64 {
    if wear <= WORN_FROM {
        return f64::INFINITY;
    }
    peak * ((1.0 - wear) / (1.0 - WORN_FROM)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Profile, Slo};
    use flash::MILLISECOND;

    #[test]
    fn a_drive_that_is_slow_for_long_is_planned_slower_and_trusted_again_later() {
        let profile = Profile::builtin("s39wna0kc01659").expect("it is known");
        let model = |slowness| {
            LoadModel::slowed(&profile, Slo::default(), 1.0, slowness).expect("it is whole")
        };
        for truth in [3.0, 10.0] {
            let (mut watch, mut now, mut changes) = (Watch::default(), Instant(0), 0);
            let mut run = |watch: &mut Watch, truth: f64, seconds: u64| {
                for _ in 0..seconds * 10 {
                    let planned = model(watch.slowness());
                    let load = planned.peak(0.0) / 2.0;
                    // Of a drive that gets more than it carries requests pile up.
                    let tail = model(truth).latency(load, 0.0).unwrap_or(1500.0);
                    changes += usize::from(watch.see(now, &planned, load, 0.0, tail));
                    now = now + 100 * MILLISECOND;
                }
            };
            run(&mut watch, truth, 1);
            assert_eq!(watch.slowness(), 1.0, "a second may be a burst of GC");
            run(&mut watch, truth, 60);
            let seen = watch.slowness();
            assert!(seen > truth / 1.6 && seen < truth * 1.6, "{seen} for {truth}");
            run(&mut watch, 1.0, 300);
            assert!(watch.slowness() < 1.3, "{} when it is well again", watch.slowness());
            assert!(changes < 40, "{changes} changes");
        }
    }

    #[test]
    fn a_drive_near_its_end_gets_fewer_writes_and_at_last_none() {
        assert_eq!(writes_of_worn(100.0, 0.5), f64::INFINITY);
        assert!((writes_of_worn(100.0, 0.95) - 50.0).abs() < 1e-9);
        assert_eq!(writes_of_worn(100.0, 1.2), 0.0);
    }
}
