//! An open loop: requests go to the target when they are due, however it is doing, and each counts from the
//! instant it was due. What the target could not take yet has waited for the target; what the generator itself was
//! late for is measured apart, so that its own limit is never taken for a drive's.

use super::target::{Ended, Target};
use crate::Failure;
use lab::drives::{Arrivals, Limit, Seen};
use lab::load::Latency;

/// One load, for one lane of the generator or for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests a second.
    pub iops: f64,
    /// Percent of them that are writes.
    pub writes_percent: f64,
    /// Over so many blocks.
    pub blocks: u64,
    /// What is asked first does not count.
    pub warmup_ns: u64,
    /// What is asked then does.
    pub measure_ns: u64,
    /// Who waits longer for a place is given up, and with him this load.
    pub patience_ns: u64,
    /// What is drawn is drawn from it.
    pub seed: u64,
}

/// What one lane saw.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    latencies: Latency,
    /// The same, had the generator been punctual.
    punctual: Latency,
    /// How late the generator was, where it could have asked.
    late: Latency,
    /// Ends a second, while requests counted.
    iops: f64,
    lost: u64,
    /// Share of the time in which the generator had nothing to do.
    idle: f64,
}

/// A target without one answer in this time hangs.
const HANGS_NS: u64 = 60_000_000_000;
/// Longest wait, so that who interrupts is heard.
const LISTEN_NS: u64 = 100_000_000;

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    due_ns: u64,
    late_ns: u64,
    counts: bool,
}

struct Run<'a> {
    load: &'a Load,
    begun_ns: u64,
    flights: Vec<Option<Flight>>,
    under_way: u32,
    /// When there was room again, after there was none.
    room_since_ns: u64,
    /// When requests cease to count: at the end, or when the load is given up.
    until_ns: u64,
    ended: u64,
    lane: Lane,
}

/// Puts a load on a target. `None` if `stop` says so meanwhile.
///
/// # Errors
/// The target broke, or failed a request.
pub fn run(
    target: &mut dyn Target,
    load: &Load,
    stop: &dyn Fn() -> bool,
) -> Result<Option<Lane>, Failure> {
    let until_ns = load.warmup_ns + load.measure_ns;
    let begun_ns = target.now_ns();
    let mut run = Run {
        load,
        begun_ns,
        flights: Vec::new(),
        under_way: 0,
        room_since_ns: 0,
        until_ns,
        ended: 0,
        lane: Lane::default(),
    };
    let mut arrivals =
        Arrivals::new(load.iops, load.writes_percent, load.blocks, load.seed).peekable();
    let (mut ended, mut answered_ns) = (Vec::new(), 0);
    let idle_before = target.idle_ns();
    loop {
        let now_ns = target.now_ns() - begun_ns;
        while let Some(next) = arrivals
            .next_if(|next| next.at_ns <= now_ns && next.at_ns < run.until_ns && target.has_room())
        {
            let slot = target.submit(next.is_write, next.block, 1)?;
            run.submitted(slot, next.at_ns, target.now_ns() - begun_ns);
        }
        let due_ns = arrivals.peek().expect("arrivals never end").at_ns;
        if due_ns < run.until_ns && run.is_hopeless(now_ns, due_ns) {
            run.give_up(now_ns, &mut arrivals);
        }
        let is_over = arrivals.peek().expect("arrivals never end").at_ns >= run.until_ns;
        if is_over && run.under_way == 0 && now_ns >= run.until_ns {
            break;
        }
        let had_room = target.has_room();
        let wait_ns = match (is_over, run.under_way) {
            (true, 0) => run.until_ns - now_ns,
            (false, _) if had_room => due_ns.saturating_sub(target.now_ns() - begun_ns),
            _ => LISTEN_NS,
        };
        target.wait(wait_ns.min(LISTEN_NS), &mut ended)?;
        if stop() {
            return Ok(None);
        }
        if !ended.is_empty() || run.under_way == 0 {
            answered_ns = target.now_ns() - begun_ns;
        } else if target.now_ns() - begun_ns > answered_ns + HANGS_NS {
            return Err(format!("has not answered for {} s: it hangs", HANGS_NS / 1_000_000_000));
        }
        if !had_room && target.has_room() {
            run.room_since_ns = target.now_ns() - begun_ns;
        }
        for ended in ended.drain(..) {
            run.answered(ended)?;
        }
    }
    let whole_ns = target.now_ns() - begun_ns;
    run.lane.idle = (target.idle_ns() - idle_before) as f64 / whole_ns.max(1) as f64;
    Ok(Some(run.finish()))
}

impl Run<'_> {
    fn submitted(&mut self, slot: u32, due_ns: u64, now_ns: u64) {
        let counts = due_ns >= self.load.warmup_ns;
        let late_ns = now_ns.saturating_sub(due_ns.max(self.room_since_ns));
        if counts {
            self.lane.late.add(late_ns);
        }
        let at = slot as usize;
        if self.flights.len() <= at {
            self.flights.resize(at + 1, None);
        }
        self.flights[at] = Some(Flight { due_ns, late_ns, counts });
        self.under_way += 1;
    }

    /// True if what is due waits so long that nobody wants to know how much longer; not before the rate is
    /// known.
    fn is_hopeless(&self, now_ns: u64, due_ns: u64) -> bool {
        let known_ns = self.load.warmup_ns + self.load.measure_ns / 2;
        now_ns >= known_ns && now_ns.saturating_sub(due_ns) > self.load.patience_ns
    }

    /// Asks no more: what was due and not asked is lost.
    fn give_up(&mut self, now_ns: u64, arrivals: &mut std::iter::Peekable<Arrivals>) {
        let until_ns = now_ns.min(self.until_ns);
        while let Some(arrival) = arrivals.next_if(|next| next.at_ns < until_ns) {
            self.lane.lost += u64::from(arrival.at_ns >= self.load.warmup_ns);
        }
        self.until_ns = until_ns;
    }

    fn answered(&mut self, ended: Ended) -> Result<(), Failure> {
        let flight = self.flights[ended.slot as usize].take();
        let flight = flight.expect("a request ends once");
        self.under_way -= 1;
        if let Some(error) = ended.error {
            return Err(format!("a request failed: {error}"));
        }
        let at_ns = ended.at_ns.saturating_sub(self.begun_ns);
        if (self.load.warmup_ns..self.until_ns).contains(&at_ns) {
            self.ended += 1;
        }
        if flight.counts {
            let ns = at_ns.saturating_sub(flight.due_ns);
            self.lane.latencies.add(ns);
            self.lane.punctual.add(ns.saturating_sub(flight.late_ns));
        }
        Ok(())
    }

    fn finish(mut self) -> Lane {
        let counted_ns = self.until_ns - self.load.warmup_ns;
        self.lane.iops = self.ended as f64 * 1e9 / counted_ns.max(1) as f64;
        self.lane
    }
}

/// What was seen is not the drive's if the generator's lateness has made a quantile that counts larger by this share.
const LATE_SHARE: f64 = 0.1;
/// Nobody is punctual to less, in microseconds.
const LATE_US: f64 = 10.0;
/// Who has less time to spare than this may not have seen ends when they came.
const IDLE_LEAST: f64 = 0.03;

/// What all lanes saw of a load, and whose limit it is.
pub fn together(offered: f64, lanes: &[Lane]) -> Seen {
    let (mut latencies, mut punctual) = (Latency::default(), Latency::default());
    let mut late = Latency::default();
    for lane in lanes {
        latencies.join(&lane.latencies);
        punctual.join(&lane.punctual);
        late.join(&lane.late);
    }
    let iops = lanes.iter().map(|lane| lane.iops).sum();
    let lost = lanes.iter().map(|lane| lane.lost).sum();
    let seen = Seen::new(offered, iops, &latencies, lost);
    let late_p90 = late.quantile_ns(0.9) as f64 / 1e3;
    let is_late = [0.5, 0.9, 0.99].into_iter().any(|share| {
        let (seen, drive) = (latencies.quantile_ns(share), punctual.quantile_ns(share));
        seen as f64 > drive as f64 * (1.0 + LATE_SHARE) + LATE_US * 1e3
    });
    let is_busy = lanes.iter().any(|lane| lane.idle < IDLE_LEAST);
    let limit = if is_late || is_busy { Limit::Generator } else { Limit::Drive };
    Seen { late_p90, limit, ..seen }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::drives::Profile;
    use lab::pool::drive::{Episodes, ProfiledDrive};
    use std::collections::BTreeMap;

    /// A drive in virtual time. Submitting takes the generator time, too.
    struct Virtual {
        drive: ProfiledDrive,
        now_ns: u64,
        submit_ns: u64,
        free: Vec<u32>,
        ends: BTreeMap<(u64, u32), ()>,
        /// From the first on, the drive answers nothing until the second.
        stall: (u64, u64),
        idle_ns: u64,
    }

    impl Virtual {
        fn new(submit_ns: u64, slots: u32) -> Self {
            let profile = Profile::builtin("sdm000024c8d").expect("it is known");
            let drive = ProfiledDrive::new(&profile, Episodes::default(), 3);
            let (free, ends) = ((0..slots).collect(), BTreeMap::new());
            Self { drive, now_ns: 77, submit_ns, free, ends, stall: (u64::MAX, 0), idle_ns: 0 }
        }

        fn measure(&mut self, iops: f64) -> Seen {
            let load = Load {
                iops,
                writes_percent: 30.0,
                blocks: 1 << 20,
                warmup_ns: 20_000_000,
                measure_ns: 200_000_000,
                patience_ns: 50_000_000,
                seed: 9,
            };
            let lane = run(self, &load, &|| false).expect("it works").expect("nobody stops it");
            together(iops, &[lane])
        }
    }

    impl Target for Virtual {
        fn now_ns(&mut self) -> u64 {
            self.now_ns
        }

        fn has_room(&self) -> bool {
            !self.free.is_empty()
        }

        fn submit(&mut self, is_write: bool, _: u64, _: u32) -> Result<u32, Failure> {
            self.now_ns += self.submit_ns;
            let slot = self.free.pop().expect("there is room");
            let mut end = self.drive.end_of(flash::Instant(self.now_ns), is_write, 1).0;
            if (self.stall.0..self.stall.1).contains(&end) {
                end = self.stall.1;
            }
            self.ends.insert((end, slot), ());
            Ok(slot)
        }

        fn wait(&mut self, wait_ns: u64, ended: &mut Vec<Ended>) -> Result<(), Failure> {
            let until = self.now_ns + wait_ns;
            let next = self.ends.keys().next().map_or(until, |(end, _)| *end);
            let before = self.now_ns;
            self.now_ns = self.now_ns.max(next.min(until));
            self.idle_ns += self.now_ns - before;
            while let Some(entry) = self.ends.first_entry().filter(|it| it.key().0 <= self.now_ns) {
                let (at_ns, slot) = *entry.key();
                entry.remove();
                self.free.push(slot);
                ended.push(Ended { slot, at_ns, error: None });
            }
            Ok(())
        }

        fn idle_ns(&self) -> u64 {
            self.idle_ns
        }
    }

    #[test]
    fn a_load_that_is_carried_has_the_drives_latencies_and_its_own_rate() {
        let seen = Virtual::new(100, 1024).measure(300_000.0);
        assert_eq!((seen.limit, seen.point.lost), (Limit::Drive, 0.0));
        assert!((seen.point.iops / 300_000.0 - 1.0).abs() < 0.02, "{seen:?}");
        let profile = Profile::builtin("sdm000024c8d").expect("it is known");
        let said = profile.curve(30.0).expect("it was measured").near(300_000.0);
        assert!((seen.point.p90 / said.p90 - 1.0).abs() < 0.2, "{seen:?} for {said:?}");
        assert!(seen.p95 >= seen.point.p90 && seen.p95 <= seen.point.p99);
    }

    #[test]
    fn a_stall_of_the_drive_is_seen_by_all_that_were_due_meanwhile() {
        let mut drive = Virtual::new(100, 64);
        drive.stall = (100_000_000, 140_000_000);
        let seen = drive.measure(100_000.0);
        // A fifth of the time it answers nothing; who counts from when it is asked sees 64 slow requests of 20,000.
        assert!(seen.point.p90 > 15_000.0, "{seen:?}");
        assert_eq!(
            (seen.limit, seen.point.lost),
            (Limit::Drive, 0.0),
            "it is the drive that stalls"
        );
    }

    #[test]
    fn what_is_too_much_for_the_drive_is_given_up_and_tells_what_it_carries() {
        let seen = Virtual::new(50, 1024).measure(3_000_000.0);
        assert_eq!(seen.limit, Limit::Drive);
        assert!(seen.point.lost > 0.0 && seen.point.p99.is_infinite(), "{seen:?}");
        let profile = Profile::builtin("sdm000024c8d").expect("it is known");
        let curve = profile.curve(30.0).expect("it was measured");
        let most = curve.points.iter().map(|point| point.iops).fold(0.0, f64::max);
        assert!((seen.point.iops / most - 1.0).abs() < 0.1, "{seen:?} for {most}");
    }

    #[test]
    fn a_slow_generator_is_told_from_a_slow_drive() {
        let seen = Virtual::new(4_000, 1024).measure(400_000.0);
        assert_eq!(seen.limit, Limit::Generator, "{seen:?}");
        assert!(seen.late_p90 > 100.0, "{seen:?}");
        let seen = Virtual::new(4_000, 1024).measure(100_000.0);
        assert_eq!(seen.limit, Limit::Drive, "at half of what it can, it is punctual: {seen:?}");
    }

    #[test]
    fn who_interrupts_is_heard_and_a_failed_request_ends_it() {
        struct Failing(u64);
        impl Target for Failing {
            fn now_ns(&mut self) -> u64 {
                self.0 += 1_000;
                self.0
            }
            fn has_room(&self) -> bool {
                true
            }
            fn submit(&mut self, _: bool, _: u64, _: u32) -> Result<u32, Failure> {
                Ok(0)
            }
            fn wait(&mut self, _: u64, ended: &mut Vec<Ended>) -> Result<(), Failure> {
                ended.push(Ended { slot: 0, at_ns: self.0, error: Some("a bad block".into()) });
                Ok(())
            }
            fn idle_ns(&self) -> u64 {
                0
            }
        }
        let load = Load {
            iops: 1e9,
            writes_percent: 0.0,
            blocks: 1,
            warmup_ns: 0,
            measure_ns: 1,
            patience_ns: 1,
            seed: 1,
        };
        let load = Load { measure_ns: 1_000_000, ..load };
        assert!(run(&mut Failing(0), &load, &|| true).expect("not looked at").is_none());
        let why = run(&mut Failing(0), &load, &|| false).expect_err("it fails");
        assert!(why.contains("a bad block"), "{why}");
    }
}
