//! Which loads to try of a drive, so that few of them tell its load-latency curve: a search that sees nothing but
//! what was measured so far.
//!
//! First comes a load that is too much, which tells what the drive does at most; then a light one, and lighter ones while
//! the drive ends nothing in the time that counts; then the knee of each service level by halving the ratio of what was
//! carried and what was not; what is left of the loads goes where the curve below the knee has its widest gap.
//!
//! Invariants:
//! - No load above [`Plan::load_most`] is tried, and no more than [`Plan::loads`] different ones; each at most
//!   [`TRIES_MOST`] times.
//! - What the generator was too slow for is never taken for the drive's: it bounds the search and is no part of
//!   the [`Curve`].

use crate::load::Latency;
use pool::profile::{Curve, LoadPoint, PEAK_US, Quantile, Slo};

/// What is looked for at one share of writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The most that may be asked for: requests a second.
    pub load_most: f64,
    /// How many loads to try.
    pub loads: usize,
    /// The knees to find, the most important one first, and how near: the ratio of the two loads around it.
    pub knees: Vec<(Slo, f64)>,
}

/// A knee that the pool goes by is found so near.
const PRECISION: f64 = 1.03;
/// Beyond the pool's service level a curve is steep.
const PRECISION_BEYOND: f64 = 1.15;
/// The light load is so much less than the most.
const LIGHT: f64 = 40.0;
/// A load that does not fit the others is tried again, so often in all.
pub const TRIES_MOST: u32 = 3;

impl Plan {
    /// The usual one: where the 90th and the 99th percentile reach [`PEAK_US`], and where the former reaches the
    /// latency at which nobody waits any longer.
    pub fn usual(load_most: f64, loads: usize, latency_most_us: f64) -> Self {
        let slo = |quantile, us| Slo { quantile, us };
        let mut knees = vec![
            (slo(Quantile::P90, PEAK_US), PRECISION),
            (slo(Quantile::P99, PEAK_US), PRECISION),
            (slo(Quantile::P90, latency_most_us), PRECISION_BEYOND),
        ];
        knees.dedup_by(|later, first| later.0 == first.0);
        Self { load_most, loads, knees }
    }
}

/// Who kept a load from being answered sooner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// It was asked as was meant: what was seen is the drive's.
    Drive,
    /// It was asked too late to tell.
    Generator,
}

/// What came of one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Requests a second that were asked for.
    pub offered: f64,
    /// What a profile keeps of it.
    pub point: LoadPoint,
    /// Microseconds; infinite where fewer requests than that ended.
    pub p95: f64,
    /// Microseconds, of those that ended.
    pub mean: f64,
    /// Microseconds by which the generator was late for a tenth of the requests, though it could have asked.
    pub late_p90: f64,
    /// Whose limit it is.
    pub limit: Limit,
    /// How often it was tried.
    pub tries: u32,
}

impl Seen {
    /// Makes it of the latencies of the requests that ended, `iops` of them a second, while so many did not.
    pub fn new(offered: f64, iops: f64, latencies: &Latency, lost: u64) -> Self {
        let all = (latencies.count() + lost).max(1) as f64;
        let us = |share: f64| {
            let rank = share * all / latencies.count().max(1) as f64;
            let ended = latencies.count() > 0 && rank <= 1.0;
            if ended { latencies.quantile_ns(rank) as f64 / 1e3 } else { f64::INFINITY }
        };
        let point = LoadPoint {
            // To the request: the rest is noise, and would be most of a file.
            iops: iops.round(),
            lost: lost as f64,
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            p9999: us(0.9999),
        };
        let mean = latencies.mean_ns() / 1e3;
        let (p95, limit) = (us(0.95), Limit::Drive);
        Self { offered, point, p95, mean, late_p90: 0.0, limit, tries: 1 }
    }

    /// True if the drive did this within the service level.
    pub fn is_within(&self, slo: Slo) -> bool {
        let Self { point, limit, .. } = self;
        *limit == Limit::Drive && point.lost == 0.0 && point.latency(slo.quantile) < slo.us
    }

    /// True if the drive ended nothing of it in the time that counts, which tells nothing of how it does.
    pub fn is_unanswered(&self) -> bool {
        self.point.iops == 0.0
    }

    /// True if it is a point of a profile.
    fn is_known(&self) -> bool {
        self.limit == Limit::Drive && !self.is_unanswered()
    }

    /// The one that tells more of the drive: of two tries, what the drive can do.
    fn or_better(self, other: Self) -> Self {
        let tries = self.tries + other.tries;
        let badness =
            |seen: &Self| (seen.limit == Limit::Generator, seen.point.lost, seen.point.p90);
        let best = if badness(&other) < badness(&self) { other } else { self };
        Self { tries, ..best }
    }
}

/// A search under way at one share of writes.
#[derive(Clone, Debug)]
pub struct Sweep {
    plan: Plan,
    /// By what was asked for, rising, each once.
    seen: Vec<Seen>,
}

impl Sweep {
    /// Nothing was tried yet.
    pub fn new(plan: Plan) -> Self {
        Self { plan, seen: Vec::new() }
    }

    /// What was seen so far, by load.
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Takes what came of a load.
    pub fn saw(&mut self, seen: Seen) {
        let at = self.seen.partition_point(|other| other.offered < seen.offered);
        match self.seen.get_mut(at).filter(|other| other.offered == seen.offered) {
            Some(other) => *other = other.or_better(seen),
            None => self.seen.insert(at, seen),
        }
    }

    /// The next load to try, in requests a second; `None` if enough is known.
    pub fn next(&self) -> Option<f64> {
        if self.seen.is_empty() {
            return Some(self.plan.load_most);
        }
        if let Some(again) = self.odd().or_else(|| self.doubted()) {
            return Some(again);
        }
        if self.seen.len() >= self.plan.loads {
            return None;
        }
        let least = &self.seen[0];
        match self.seen.iter().filter(|seen| !seen.is_unanswered()).count() {
            0 => return (least.offered > 1.0).then_some(least.offered / LIGHT),
            1 if !least.is_unanswered() => return Some(least.point.iops.max(1.0) / LIGHT),
            _ => {}
        }
        let knee = self.plan.knees.iter().find_map(|(slo, near)| self.towards(*slo, *near));
        knee.or_else(|| self.widest_gap())
    }

    /// A load below one that was carried, which was not, or was not asked for in time: something else may have
    /// disturbed it.
    fn odd(&self) -> Option<f64> {
        let (slo, _) = *self.plan.knees.first()?;
        let carried = self.seen.iter().rposition(|seen| seen.is_within(slo)).unwrap_or(0);
        let last = self.seen.len() - 1;
        let odd = self.seen.iter().enumerate().filter(|(at, seen)| {
            let fell = *at < carried && !seen.is_within(slo);
            fell || *at < last && seen.limit == Limit::Generator
        });
        let mut again = odd.filter(|(_, seen)| seen.tries < TRIES_MOST);
        again.next().map(|(_, seen)| seen.offered)
    }

    /// The load right above the first knee, once that was found: what disturbed it would be taken for the knee.
    fn doubted(&self) -> Option<f64> {
        let (slo, near) = *self.plan.knees.first()?;
        let (Some(_), Some(too_much)) = self.around(slo) else { return None };
        let is_found = self.towards(slo, near).is_none();
        let first = self.seen.iter().find(|seen| seen.offered == too_much)?;
        (is_found && first.tries == 1).then_some(too_much)
    }

    /// The last load that was carried, and the first that was not.
    fn around(&self, slo: Slo) -> (Option<f64>, Option<f64>) {
        let first = self.seen.iter().take_while(|seen| seen.is_within(slo)).count();
        let offered = |at: usize| self.seen.get(at).map(|seen| seen.offered);
        (first.checked_sub(1).and_then(offered), offered(first))
    }

    /// A load between those around a knee; `None` if they are near enough, or it lies outside of what is tried.
    fn towards(&self, slo: Slo, near: f64) -> Option<f64> {
        let (Some(carried), Some(too_much)) = self.around(slo) else { return None };
        (too_much / carried > near).then(|| (carried * too_much).sqrt())
    }

    /// The middle of the widest gap up to the last load that was carried in any sense.
    fn widest_gap(&self) -> Option<f64> {
        let last = self.plan.knees.iter().filter_map(|(slo, _)| self.around(*slo).0);
        let last = last.fold(self.seen[0].offered, f64::max);
        let up_to = self.seen.iter().filter(|seen| seen.offered <= last);
        let loads: Vec<f64> = up_to.map(|seen| seen.offered).collect();
        let gap = |pair: &&[f64]| pair[1] - pair[0];
        let widest = loads.windows(2).max_by(|a, b| gap(a).total_cmp(&gap(b)))?;
        // Nearer loads would only tell each other's noise.
        (widest[1] / widest[0] > PRECISION).then(|| (widest[0] + widest[1]) / 2.0)
    }

    /// What of it is the drive's, for a profile; `None` if nothing is.
    pub fn curve(&self, writes_percent: f64) -> Option<Curve> {
        let known = self.seen.iter().filter(|seen| seen.is_known());
        let points: Vec<LoadPoint> = known.map(|seen| seen.point).collect();
        (!points.is_empty()).then_some(Curve { writes_percent, points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drives::{Arrivals, Profile};
    use crate::pool::drive::{Episodes, ProfiledDrive};
    use flash::Instant;

    /// A drive in virtual time, measured as a real one is.
    struct Simulated {
        drive: ProfiledDrive,
        now: Instant,
        seed: u64,
    }

    const WARMUP_NS: u64 = 20_000_000;
    const MEASURE_NS: u64 = 400_000_000;
    const GIVEN_UP_NS: u64 = 100_000_000;

    impl Simulated {
        fn of(profile: &Profile, seed: u64) -> Self {
            let drive = ProfiledDrive::new(profile, Episodes::default(), seed);
            Self { drive, now: Instant(0), seed }
        }

        fn measure(&mut self, iops: f64, writes_percent: f64) -> Seen {
            self.seed += 1;
            let arrivals = Arrivals::new(iops, writes_percent, 1 << 20, self.seed);
            let (begun, until) = (self.now, WARMUP_NS + MEASURE_NS);
            let (mut latencies, mut ended, mut lost) = (Latency::default(), 0_u64, 0);
            for arrival in arrivals.take_while(|arrival| arrival.at_ns < until) {
                let at = begun + arrival.at_ns;
                let end = self.drive.end_of(at, arrival.is_write, 1);
                self.now = self.now.max(end);
                let is_late = end - at > GIVEN_UP_NS;
                let counts = arrival.at_ns >= WARMUP_NS;
                ended += u64::from((WARMUP_NS..until).contains(&(end - begun)));
                lost += u64::from(counts && is_late);
                if counts && !is_late {
                    latencies.add(end - at);
                }
            }
            self.now = self.now.max(begun + until) + GIVEN_UP_NS;
            Seen::new(iops, ended as f64 / MEASURE_NS as f64 * 1e9, &latencies, lost)
        }

        /// All that a plan asks for, and how many loads that took.
        fn sweep(&mut self, plan: &Plan, writes_percent: f64) -> (Sweep, u32) {
            let (mut sweep, mut tries) = (Sweep::new(plan.clone()), 0);
            while let Some(load) = sweep.next() {
                sweep.saw(self.measure(load, writes_percent));
                tries += 1;
            }
            (sweep, tries)
        }
    }

    /// The load at which a quantile reaches the service level, by a straight line between the loads around it; where
    /// the next one was more than the drive takes, the last that it took.
    fn crossing(curve: &Curve, slo: Slo) -> f64 {
        let carried = curve.carried(slo);
        let (last, next) = (carried[carried.len() - 1], curve.points[carried.len()]);
        if next.lost > 0.0 {
            return last.iops;
        }
        let (from, to) = (last.latency(slo.quantile), next.latency(slo.quantile));
        last.iops + (next.iops - last.iops) * (slo.us - from) / (to - from)
    }

    /// Loads that are tried of a drive.
    const LOADS: usize = 20;

    fn usual() -> Plan {
        Plan::usual(4e6, LOADS, 10_000.0)
    }

    #[test]
    fn peaks_of_simulated_drives_are_found_within_five_percent() {
        let mut found = 0;
        for (seed, name) in (1..).zip(["s39wna0kc01659", "s47ana0m400923", "sdm000024c8d"]) {
            let profile = Profile::builtin(name).expect("it is known");
            for curve in &profile.curves {
                let (writes, slo) = (curve.writes_percent, Slo::default());
                if !curve.peak(slo.quantile).expect("it carries something").is_bounded {
                    continue;
                }
                let (sweep, tries) = Simulated::of(&profile, seed).sweep(&usual(), writes);
                let measured = sweep.curve(writes).expect("it was measured");
                let peak = measured.peak(slo.quantile).expect("it carries something");
                let off = 100.0 * (peak.iops / crossing(curve, slo) - 1.0);
                println!("seed {seed}, {name} at {writes} %: {:.0}, {off:+.1} %", peak.iops);
                assert!(peak.is_bounded && off.abs() < 5.0, "{name} at {writes} %: {off} %");
                assert!(sweep.seen().len() <= LOADS && tries <= LOADS as u32 * TRIES_MOST);
                found += 1;
            }
        }
        assert!(found > 20, "{found} shares of three drives were looked at");
    }

    #[test]
    fn what_is_measured_of_a_simulated_drive_is_a_profile_that_is_read_back() {
        let profile = Profile::builtin("sdm000024c8d").expect("it is known");
        let mut drive = Simulated::of(&profile, 7);
        let shares = [0.0, 50.0, 100.0];
        let curves = shares.map(|writes| drive.sweep(&usual(), writes).0.curve(writes));
        let curves: Vec<Curve> = curves.into_iter().flatten().collect();
        let measured = Profile { name: "simulated".into(), curves, sum: 0 };
        let again = Profile::parse("simulated", &measured.to_text()).expect("it was written by us");
        assert_eq!(again.curves, measured.curves);
        let model = pool::profile::LoadModel::new(&again, Slo::default(), 1.0);
        let model = model.expect("reads alone and writes alone are there");
        // What the pool makes of it between the loads that were tried.
        for writes in shares {
            let said = profile.curve(writes).expect("it was published");
            let half = said.near(said.peak(Quantile::P90).expect("it is there").iops / 2.0);
            let (reads, share) = (half.iops * (1.0 - writes / 100.0), writes / 100.0);
            let us = model.latency(reads, half.iops * share).expect("it is carried");
            assert!(
                (us / half.p90 - 1.0).abs() < 0.25,
                "seed 7, {writes} %: {us} for {}",
                half.p90
            );
        }
    }

    /// What a load is answered with, without any noise: a latency of 100 us up to `most`, and of 100 ms beyond.
    fn answer(offered: f64, most: f64) -> Seen {
        let mut latencies = Latency::default();
        latencies.add(if offered <= most { 100_000 } else { 100_000_000 });
        Seen::new(offered, offered.min(most), &latencies, 0)
    }

    #[test]
    fn a_disturbed_load_is_tried_again_and_the_better_try_counts() {
        let mut sweep = Sweep::new(Plan::usual(100_000.0, LOADS, 10_000.0));
        let mut disturbed = None;
        while let Some(load) = sweep.next() {
            // A load next to the knee is light enough, but something else keeps the drive busy.
            let is_first = disturbed.is_none() && sweep.seen().len() >= 4 && load < 20_000.0;
            if is_first {
                disturbed = Some(load);
            }
            sweep.saw(answer(load, if is_first { 0.5 } else { 20_000.0 }));
        }
        let load = disturbed.expect("a light load is tried late");
        let seen = sweep.seen().iter().find(|seen| seen.offered == load).expect("it was tried");
        assert_eq!((seen.tries, seen.point.p90), (2, answer(load, load).point.p90));
        let peak = sweep.curve(0.0).expect("it was measured").peak(Quantile::P90);
        let peak = peak.expect("it carries something").iops;
        assert!((19_400.0..=20_000.0).contains(&peak), "{peak}");
    }

    #[test]
    fn a_load_that_stays_odd_is_given_up_and_bounds_the_peak() {
        let mut sweep = Sweep::new(Plan::usual(100_000.0, LOADS, 10_000.0));
        let mut tries = 0;
        while let Some(load) = sweep.next() {
            let is_bad = load > 3_000.0 && load < 7_000.0;
            sweep.saw(answer(load, if is_bad { 0.5 } else { 20_000.0 }));
            tries += 1;
        }
        assert!(sweep.seen().iter().all(|seen| seen.tries <= TRIES_MOST));
        assert!(tries <= LOADS as u32 * TRIES_MOST, "{tries}");
        let peak = sweep.curve(0.0).expect("it was measured").peak(Quantile::P90);
        assert!(
            peak.expect("it carries something").iops <= 3_000.0,
            "what is in doubt is not promised"
        );
    }

    /// A file that took so much at once that nothing had ended when the time that counts was over: the light load was a
    /// fortieth of nothing, and no request came of it.
    #[test]
    fn a_drive_that_ends_nothing_of_what_is_too_much_is_asked_for_less_until_it_does() {
        let mut sweep = Sweep::new(Plan::usual(1e6, LOADS, 10_000.0));
        while let Some(load) = sweep.next() {
            let done = if load > 50_000.0 { 0.0 } else { load.min(10_000.0) };
            sweep.saw(Seen {
                point: LoadPoint { iops: done, ..answer(load, 10_000.0).point },
                ..answer(load, 10_000.0)
            });
        }
        let curve = sweep.curve(0.0).expect("it was measured");
        assert!(curve.points.iter().all(|point| point.iops > 0.0));
        let peak = curve.peak(Quantile::P90).expect("it carries something").iops;
        assert!((9_700.0..=10_000.0).contains(&peak), "{peak}");
        // One that ends nothing at all is given up soon.
        let mut sweep = Sweep::new(Plan::usual(1e6, LOADS, 10_000.0));
        while let Some(load) = sweep.next() {
            sweep.saw(Seen::new(load, 0.0, &Latency::default(), 9));
        }
        assert!(sweep.seen().len() < 6 && sweep.curve(0.0).is_none(), "{:?}", sweep.seen());
    }

    #[test]
    fn what_the_generator_is_too_slow_for_is_not_the_drives() {
        let mut sweep = Sweep::new(Plan::usual(100_000.0, LOADS, 10_000.0));
        while let Some(load) = sweep.next() {
            let limit = if load > 30_000.0 { Limit::Generator } else { Limit::Drive };
            sweep.saw(Seen { limit, ..answer(load, 90_000.0) });
        }
        let curve = sweep.curve(0.0).expect("it was measured");
        assert!(curve.points.iter().all(|point| point.iops <= 30_000.0));
        let peak = curve.peak(Quantile::P90).expect("it carries something");
        assert!(!peak.is_bounded, "the drive may carry more");
        assert!(peak.iops > 29_000.0, "and this much it was seen to carry: {}", peak.iops);
    }

    #[test]
    fn a_drive_that_never_meets_the_service_level_is_measured_all_the_same() {
        let mut sweep = Sweep::new(Plan::usual(1e6, LOADS, 10_000.0));
        while let Some(load) = sweep.next() {
            let mut latencies = Latency::default();
            latencies.add(if load < 800.0 { 5_000_000 } else { 50_000_000 });
            sweep.saw(Seen::new(load, load.min(1_000.0), &latencies, 0));
        }
        let curve = sweep.curve(100.0).expect("it was measured");
        assert_eq!(curve.peak(Quantile::P90), None);
        let slow = curve.peak_within(Slo { quantile: Quantile::P90, us: 10_000.0 });
        let slow = slow.expect("within 10 ms it carries something").iops;
        assert!((600.0..800.0).contains(&slow), "{slow}");
    }

    #[test]
    fn requests_that_did_not_end_are_infinitely_late() {
        let mut latencies = Latency::default();
        (0..95).for_each(|_| latencies.add(100_000));
        let seen = Seen::new(100.0, 95.0, &latencies, 5);
        assert_eq!((seen.point.lost, seen.point.p90), (5.0, seen.p95));
        assert!(seen.p95.is_finite() && seen.point.p99.is_infinite());
        let none = Seen::new(100.0, 0.0, &Latency::default(), 7);
        assert!(none.point.p50.is_infinite());
        assert!(!none.is_within(Slo { quantile: Quantile::P50, us: f64::INFINITY }));
    }
}
