//! The slowest requests of the last minutes, each with where its time went: reads, and beside them the others, which
//! may take so much longer that no read would be among the slowest.
//!
//! Invariants: memory is bounded, whatever comes; a request that is no candidate costs one comparison.

use super::{Op, Timed};
use crate::latency::why::Waited;
use crate::volume::Request;
use flash::{Instant, MILLISECOND, SECOND};
use std::collections::VecDeque;

/// A request that took no longer is not slow.
pub const SLOW_NS: u64 = MILLISECOND;
/// The slowest of each so long are kept, and how many.
const WINDOW_NS: u64 = 30 * SECOND;
const KEPT_MAX: usize = 16;
/// For how long they are kept.
const KEPT_NS: u64 = 600 * SECOND;
const WINDOWS_MAX: usize = (KEPT_NS / WINDOW_NS) as usize;

/// A request that took long.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// When its reply was sent.
    pub sent: Instant,
    /// What was asked.
    pub request: Request,
    /// The same as latencies name it.
    pub op: Op,
    /// From its header to the end of its reply, and of that each of the first three of [`super::STAGES`].
    pub total_ns: u64,
    /// See `total_ns`.
    pub stages: [u64; 3],
    /// Of the first of them, what the limits of the volume have taken.
    pub limited_ns: u64,
    /// What its last piece waited for, if somebody looked.
    pub waited: Option<Box<Waited>>,
}

/// Keeps the slowest.
#[derive(Debug, Default)]
pub struct Slowest {
    reads: Kept,
    others: Kept,
}

/// Those of one kind.
#[derive(Debug)]
struct Kept {
    /// Oldest first.
    windows: VecDeque<Window>,
    /// What took no longer is not kept now.
    least_ns: u64,
    /// When the last window ends.
    ends: Instant,
}

#[derive(Debug)]
struct Window {
    ends: Instant,
    /// Slowest first.
    kept: Vec<Slow>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { windows: VecDeque::new(), least_ns: SLOW_NS, ends: Instant(0) }
    }
}

impl Slowest {
    /// A request was answered that took `total_ns`, and its reply was sent.
    #[inline]
    pub fn note(&mut self, total_ns: u64, timed: &Timed, sent: Instant) {
        if total_ns <= SLOW_NS {
            return;
        }
        let Some(op) = Op::of(timed.request.kind) else { return };
        let kept = if op == Op::Read { &mut self.reads } else { &mut self.others };
        if total_ns > kept.least_ns || sent >= kept.ends {
            let stages = timed.stages(sent);
            let (request, waited) = (timed.request, timed.waited.clone());
            let limited_ns = timed.limited_ns;
            kept.keep(Slow { sent, request, op, total_ns, stages, limited_ns, waited });
        }
    }

    /// What is not older is not worth a look yet: it is far from what is kept now.
    pub fn look_from_ns(&self) -> u64 {
        (self.reads.least_ns.min(self.others.least_ns) / 4).max(SLOW_NS)
    }

    /// The `each` slowest reads and the `each` slowest others that were sent in the time that they are kept.
    pub fn slowest(&self, now: Instant, each: usize) -> Vec<Slow> {
        let kinds = [&self.reads, &self.others];
        kinds.iter().flat_map(|kept| kept.slowest(now, each)).cloned().collect()
    }
}

impl Kept {
    fn keep(&mut self, slow: Slow) {
        let sent = slow.sent;
        if sent >= self.ends {
            self.ends = sent + WINDOW_NS;
            self.windows.retain(|window| sent < window.ends + KEPT_NS);
            self.windows.push_back(Window { ends: self.ends, kept: Vec::new() });
            if self.windows.len() > WINDOWS_MAX {
                self.windows.pop_front();
            }
        }
        let Some(window) = self.windows.back_mut() else { return };
        let at = window.kept.partition_point(|other| other.total_ns >= slow.total_ns);
        window.kept.insert(at, slow);
        window.kept.truncate(KEPT_MAX);
        self.least_ns = match window.kept.last() {
            Some(last) if window.kept.len() == KEPT_MAX => last.total_ns,
            _ => SLOW_NS,
        };
    }

    /// Slowest first.
    fn slowest(&self, now: Instant, count: usize) -> Vec<&Slow> {
        let recent = |slow: &&Slow| now < slow.sent + KEPT_NS;
        let all = self.windows.iter().flat_map(|window| window.kept.iter().filter(recent));
        let mut all: Vec<&Slow> = all.collect();
        all.sort_by_key(|slow| std::cmp::Reverse((slow.total_ns, slow.sent)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Kind;

    fn note(slowest: &mut Slowest, ms: u64, sent: Instant) {
        note_of(slowest, Kind::Read, ms, sent);
    }

    fn note_of(slowest: &mut Slowest, kind: Kind, ms: u64, sent: Instant) {
        let request = Request { volume: 0, kind, offset: 0, len: 4096 };
        let timed = Timed {
            request,
            asked: Instant(0),
            begun: Instant(0),
            done: Instant(0),
            limited_ns: 0,
            failed: false,
            waited: None,
            spent: None,
        };
        slowest.note(ms * MILLISECOND, &timed, sent);
    }

    fn told(slowest: &Slowest, now: Instant, count: usize) -> Vec<u64> {
        let all = slowest.slowest(now, count);
        all.iter().map(|slow| slow.total_ns / MILLISECOND).collect()
    }

    #[test]
    fn the_slowest_are_told_first_and_what_is_not_slow_not_at_all() {
        let mut slowest = Slowest::default();
        [3, 1, 9, 5].into_iter().for_each(|ms| note(&mut slowest, ms, Instant(ms)));
        assert_eq!(told(&slowest, Instant(9), 10), [9, 5, 3]);
        assert_eq!(told(&slowest, Instant(9), 2), [9, 5]);
    }

    #[test]
    fn reads_are_kept_though_all_writes_are_slower() {
        let mut slowest = Slowest::default();
        for at in 0..1000 {
            note_of(&mut slowest, Kind::Write { fua: false, handle: None }, 100, Instant(at));
            note_of(&mut slowest, Kind::Read, 5, Instant(at));
        }
        assert_eq!(told(&slowest, Instant(1000), 3), [5, 5, 5, 100, 100, 100]);
        assert_eq!(slowest.look_from_ns(), 5 * MILLISECOND / 4);
    }

    #[test]
    fn memory_is_bounded_and_the_slowest_of_each_half_minute_stay() {
        let mut slowest = Slowest::default();
        for at in 0..100_000_u64 {
            // A second has 25 of them, of 2 to 102 ms; the first of all is the slowest.
            note(
                &mut slowest,
                if at == 0 { 500 } else { 2 + at * 7919 % 101 },
                Instant(at * SECOND / 25),
            );
            let windows = &slowest.reads.windows;
            let kept: usize = windows.iter().map(|window| window.kept.len()).sum();
            assert!(kept <= KEPT_MAX * WINDOWS_MAX && windows.len() <= WINDOWS_MAX);
        }
        let now = Instant(100_000 * SECOND / 25);
        let all = slowest.slowest(now, usize::MAX);
        assert!(
            all.len() > KEPT_MAX * (WINDOWS_MAX - 2)
                && all.iter().all(|slow| now < slow.sent + KEPT_NS)
        );
        // But in the half minute that has not ended.
        let slowest = all.iter().filter(|slow| slow.total_ns >= 90 * MILLISECOND).count();
        assert!(slowest > KEPT_MAX * (WINDOWS_MAX - 2), "{slowest} of {}", all.len());
    }

    #[test]
    fn old_ones_leave_though_nothing_slow_comes_after_them() {
        let mut slowest = Slowest::default();
        note(&mut slowest, 50, Instant(0));
        assert_eq!(told(&slowest, Instant(KEPT_NS - 1), 10), [50]);
        assert_eq!(told(&slowest, Instant(KEPT_NS), 10), [0; 0]);
    }

    #[test]
    fn a_quiet_half_minute_keeps_what_was_too_quick_for_a_busy_one() {
        let mut slowest = Slowest::default();
        (0..KEPT_MAX as u64).for_each(|at| note(&mut slowest, 100, Instant(at)));
        note(&mut slowest, 2, Instant(SECOND));
        assert!(!told(&slowest, Instant(SECOND), 1000).contains(&2));
        assert_eq!(slowest.reads.least_ns, 100 * MILLISECOND, "while it is full");
        note(&mut slowest, 2, Instant(WINDOW_NS));
        assert!(told(&slowest, Instant(WINDOW_NS), 1000).contains(&2));
        assert_eq!(slowest.reads.least_ns, SLOW_NS);
    }
}
