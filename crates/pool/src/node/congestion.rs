//! The node's judgement of its drive: every 10 ms the tail of what ended is held against what the drive's
//! profile promises at the load of now. Constants and transitions are Sandook's (NSDI 2026, released code).
//!
//! Invariants:
//! - Judged is the 99th percentile where all traffic is of one kind, else the 90th; of few requests the median:
//!   their tail is a single one of them, and no drive is without such.
//! - Above 2.5 ms, or above 1 ms and 2.5 times what is expected, the drive is congested at once. A window without that begins
//!   to clear it; it settles when the tail has come back to 0.7 of what was expected then, and is over
//!   when the tail falls below 0.9 of what was expected when it settled.
//! - Within the grace after a switch of modes nothing is congested: the load is another one by then.

use super::quantile::Quantiles;
use crate::message::Congestion;
use flash::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// How often the tail is judged.
pub const JUDGE_EVERY_NS: u64 = 10 * MILLISECOND;
/// The window over which the load is counted.
pub const LOAD_WINDOW_NS: u64 = 5 * MILLISECOND;
/// A tail above this is congestion, whatever was expected.
pub const TAIL_MAX_NS: u64 = 2500 * MICROSECOND;
/// A tail below this is none, however little was expected: it is within what pools promise, and a drive that
/// answers sooner than that need not be spared.
pub const TAIL_MIN_NS: u64 = MILLISECOND;
/// So is one above so many times what was expected.
pub const RATIO_MAX: f64 = 2.5;
/// A tail that clears has come back when it is above this share of what is expected.
pub const SETTLED_ABOVE: f64 = 0.7;
/// Congestion is over below this share.
pub const OVER_BELOW: f64 = 0.9;

/// What a drive does at present.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Reads that end in a second.
    pub reads_per_s: f64,
    /// Writes that end in a second.
    pub writes_per_s: f64,
}

/// The tail that the profile of a drive promises at a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedTail {
    /// Of reads, ns; 0 if it says nothing.
    pub read_ns: u64,
    /// Of writes, ns; 0 if it says nothing.
    pub write_ns: u64,
}

/// Looks the expectation up in the drive's profile.
pub type Expectation = Box<dyn Fn(Load) -> ExpectedTail + Send>;

/// Judges one drive.
pub struct Monitor {
    expectation: Expectation,
    state: Congestion,
    /// When the state changes next: a tail of reads and of writes.
    threshold: ExpectedTail,
    reads: Quantiles,
    writes: Quantiles,
    judged_at: Instant,
    window_from: Instant,
    window_reads: u64,
    window_writes: u64,
    load: Load,
    calm_until: Instant,
}

impl Monitor {
    /// One that judges a drive against `expectation`, from `now` on.
    pub fn new(now: Instant, expectation: Expectation) -> Self {
        Self {
            expectation,
            state: Congestion::None,
            threshold: ExpectedTail::default(),
            reads: Quantiles::default(),
            writes: Quantiles::default(),
            judged_at: now,
            window_from: now,
            window_reads: 0,
            window_writes: 0,
            load: Load::default(),
            calm_until: now,
        }
    }

    /// The profile was measured again.
    pub fn expect(&mut self, expectation: Expectation) {
        self.expectation = expectation;
    }

    /// Nothing is judged before `until`.
    pub fn calm(&mut self, until: Instant) {
        self.calm_until = until;
        self.state = Congestion::None;
    }

    /// Something of so many blocks ended that took `ns`. `queued` says what is left. Profiles are of single
    /// blocks, so the load counts blocks.
    pub fn ended(&mut self, now: Instant, write: bool, blocks: u32, ns: u64, queued: u32) {
        self.look(now, queued);
        let (tail, count) = match write {
            true => (&mut self.writes, &mut self.window_writes),
            false => (&mut self.reads, &mut self.window_reads),
        };
        tail.add(ns);
        *count += u64::from(blocks);
    }

    /// Time has gone on.
    pub fn look(&mut self, now: Instant, queued: u32) {
        let passed = now - self.window_from;
        if passed >= LOAD_WINDOW_NS {
            let per_s = |count: u64| count as f64 * SECOND as f64 / passed as f64;
            let (reads, writes) = (per_s(self.window_reads), per_s(self.window_writes));
            self.load = Load { reads_per_s: reads, writes_per_s: writes };
            (self.window_from, self.window_reads, self.window_writes) = (now, 0, 0);
        }
        if now - self.judged_at >= JUDGE_EVERY_NS {
            self.judged_at = now;
            self.judge(now, queued);
            self.reads.clear();
            self.writes.clear();
        }
    }

    /// The judgement.
    pub fn state(&self) -> Congestion {
        self.state
    }

    /// The load of the last window.
    pub fn load(&self) -> Load {
        self.load
    }

    /// When to look again, if something is under way or not yet over.
    pub fn deadline(&self, queued: u32) -> Option<Instant> {
        let ended = self.reads.count() + self.writes.count();
        let busy = queued > 0 || ended > 0 || self.state != Congestion::None;
        busy.then(|| self.judged_at + JUDGE_EVERY_NS)
    }

    fn judge(&mut self, now: Instant, queued: u32) {
        if now < self.calm_until {
            self.state = Congestion::None;
            return;
        }
        let mixed = self.reads.count() > 0 && self.writes.count() > 0;
        let percent = if mixed { 90 } else { 99 };
        let tail = ExpectedTail {
            read_ns: tail_of(&self.reads, percent),
            write_ns: tail_of(&self.writes, percent),
        };
        let expected = (self.expectation)(self.load);
        let nothing = self.reads.count() + self.writes.count() == 0;
        self.state = match self.state {
            // What is queued and does not end is the worst of tails, and no ground to clear anything.
            state if nothing && queued > 0 => state,
            _ if nothing => Congestion::None,
            _ if is_beyond(tail, expected) => Congestion::Congested,
            Congestion::Congested => {
                self.threshold = share_of(expected, SETTLED_ABOVE);
                Congestion::Clearing
            }
            Congestion::Clearing if exceeds(tail, self.threshold) => {
                self.threshold = share_of(expected, OVER_BELOW);
                Congestion::Settled
            }
            Congestion::Settled if !exceeds(tail, self.threshold) => Congestion::None,
            state => state,
        };
    }
}

/// A tail is told by so many requests that lie beyond it.
const BEYOND_MIN: u32 = 3;

fn tail_of(seen: &Quantiles, percent: u32) -> u64 {
    let beyond = seen.count() * (100 - percent) / 100;
    seen.at_percent(if beyond < BEYOND_MIN { 50 } else { percent })
}

fn is_beyond(tail: ExpectedTail, expected: ExpectedTail) -> bool {
    let worst = tail.read_ns.max(tail.write_ns);
    worst > TAIL_MAX_NS || worst > TAIL_MIN_NS && exceeds(tail, share_of(expected, RATIO_MAX))
}

fn exceeds(tail: ExpectedTail, bound: ExpectedTail) -> bool {
    let over = |tail: u64, bound: u64| bound > 0 && tail > bound;
    over(tail.read_ns, bound.read_ns) || over(tail.write_ns, bound.write_ns)
}

fn share_of(expected: ExpectedTail, share: f64) -> ExpectedTail {
    let of = |ns: u64| (ns as f64 * share) as u64;
    ExpectedTail { read_ns: of(expected.read_ns), write_ns: of(expected.write_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: ExpectedTail =
        ExpectedTail { read_ns: 400 * MICROSECOND, write_ns: 200 * MICROSECOND };

    /// Reads of `ns` come for as long as a judgement takes, and the judgement.
    fn window(monitor: &mut Monitor, now: &mut Instant, ns: u64) -> Congestion {
        for _ in 1..20 {
            *now = *now + JUDGE_EVERY_NS / 20;
            monitor.ended(*now, false, 1, ns, 1);
        }
        *now = *now + JUDGE_EVERY_NS / 20;
        monitor.look(*now, 1);
        monitor.state()
    }

    fn monitor() -> (Monitor, Instant) {
        (Monitor::new(Instant(0), Box::new(|_| EXPECTED)), Instant(0))
    }

    #[test]
    fn a_late_one_among_few_requests_is_no_congestion_and_most_of_them_late_are() {
        for (late, state) in [(2, Congestion::None), (12, Congestion::Congested)] {
            let (mut monitor, mut now) = monitor();
            for at in 1..=20 {
                now = now + JUDGE_EVERY_NS / 20;
                let us = if at <= late { 5000 } else { 100 };
                monitor.ended(now, false, 1, us * MICROSECOND, 1);
            }
            assert_eq!(monitor.state(), state, "{late} of 20 are late");
        }
    }

    #[test]
    fn a_tail_beyond_the_profile_is_congestion_that_clears_settles_and_ends() {
        let (mut monitor, mut now) = monitor();
        let us = MICROSECOND;
        assert_eq!(window(&mut monitor, &mut now, 900 * us), Congestion::None, "within 1 ms");
        assert_eq!(window(&mut monitor, &mut now, 1100 * us), Congestion::Congested);
        assert_eq!(window(&mut monitor, &mut now, 1100 * us), Congestion::Congested);
        assert_eq!(window(&mut monitor, &mut now, 100 * us), Congestion::Clearing);
        assert_eq!(window(&mut monitor, &mut now, 200 * us), Congestion::Clearing);
        assert_eq!(window(&mut monitor, &mut now, 390 * us), Congestion::Settled);
        assert_eq!(window(&mut monitor, &mut now, 390 * us), Congestion::Settled);
        assert_eq!(window(&mut monitor, &mut now, 300 * us), Congestion::None);
    }

    #[test]
    fn a_tail_above_2_5_ms_is_congestion_without_any_profile() {
        let mut monitor = Monitor::new(Instant(0), Box::new(|_| ExpectedTail::default()));
        let mut now = Instant(0);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MAX_NS / 2), Congestion::None);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MAX_NS + 1), Congestion::Congested);
    }

    #[test]
    fn a_tail_of_less_than_a_millisecond_is_none_however_little_was_expected() {
        let expected = ExpectedTail { read_ns: 30 * MICROSECOND, write_ns: 30 * MICROSECOND };
        let mut monitor = Monitor::new(Instant(0), Box::new(move |_| expected));
        let mut now = Instant(0);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MIN_NS * 8 / 10), Congestion::None);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MIN_NS * 12 / 10), Congestion::Congested);
    }

    #[test]
    fn nothing_is_congested_within_the_grace_of_a_switch() {
        let (mut monitor, mut now) = monitor();
        window(&mut monitor, &mut now, TAIL_MAX_NS * 2);
        monitor.calm(now + JUDGE_EVERY_NS + 1);
        assert_eq!(monitor.state(), Congestion::None);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MAX_NS * 2), Congestion::None);
        assert_eq!(window(&mut monitor, &mut now, TAIL_MAX_NS * 2), Congestion::Congested);
    }

    #[test]
    fn congestion_stays_while_nothing_ends_and_is_over_when_nothing_is_asked() {
        let (mut monitor, mut now) = monitor();
        window(&mut monitor, &mut now, TAIL_MAX_NS * 2);
        now = now + JUDGE_EVERY_NS;
        monitor.look(now, 3);
        assert_eq!(monitor.state(), Congestion::Congested);
        now = now + JUDGE_EVERY_NS;
        monitor.look(now, 0);
        assert_eq!(monitor.state(), Congestion::None);
        assert_eq!(monitor.deadline(0), None);
    }

    #[test]
    fn the_load_is_what_ended_in_the_last_window() {
        let (mut monitor, _) = monitor();
        for at in 1..=10 {
            monitor.ended(Instant(at * LOAD_WINDOW_NS / 10), at % 2 == 0, 1, MICROSECOND, 0);
        }
        monitor.look(Instant(LOAD_WINDOW_NS), 0);
        // The tenth came when the window was over.
        assert_eq!(monitor.load(), Load { reads_per_s: 1000.0, writes_per_s: 800.0 });
    }
}
