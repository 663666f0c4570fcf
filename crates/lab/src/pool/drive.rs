//! A drive that answers as a published profile says: how long a request takes is drawn from what the real drive
//! showed at the load and the share of writes of the last milliseconds.
//!
//! It is what the pool's experiments put below a node where a thousand drives are simulated, or a drive of which
//! nothing but its profile is known. A drive whose flash is simulated is a [`crate::ssd`] instead.
//!
//! Invariants:
//! - Up to the greatest load that the profile shows without a lost request the drive carries what it is
//!   given; beyond it requests wait for their turn, so it never carries more.
//! - The same requests and seed give the same ends, to the bit.

use flash::{Instant, MILLISECOND, Random, SECOND};
use pool::profile::{Curve, LoadPoint, Profile};
use std::collections::VecDeque;

/// What counts as the load now: the requests of so long.
const WINDOW_NS: u64 = 5 * MILLISECOND;
/// In steps of this.
const STEP_NS: u64 = WINDOW_NS / 10;
/// Below the median there is nothing published: the quickest requests take so much of it.
const QUICKEST: f64 = 0.8;

/// A time in which a drive is slower than its profile: its own GC, or an illness.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Episodes {
    /// From the end of one to the next, on average, while the drive is written to; 0 for none.
    pub every_ns: u64,
    /// How long one lasts.
    pub lasts_ns: u64,
    /// So many times slower.
    pub slow: f64,
}

/// Requests of a step of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    step: u64,
    reads: u32,
    writes: u32,
}

/// See the head of this file.
pub struct ProfiledDrive {
    /// Each up to the load before the first at which requests were lost; of one without such, all of it.
    curves: Vec<Curve>,
    episodes: Episodes,
    /// So many times slower than its profile, from now on.
    pub slow: f64,
    random: Random,
    window: VecDeque<Count>,
    reads: u32,
    writes: u32,
    /// When the drive could begin another request at its greatest load.
    free_at: Instant,
    /// The episode that is under way, or comes next.
    episode: (Instant, Instant),
}

impl ProfiledDrive {
    /// Of a profile.
    pub fn new(profile: &Profile, episodes: Episodes, seed: u64) -> Self {
        let mut drive = Self {
            curves: profile.curves.iter().cloned().map(carried).collect(),
            episodes,
            slow: 1.0,
            random: Random::new(seed),
            window: VecDeque::new(),
            reads: 0,
            writes: 0,
            free_at: Instant(0),
            episode: (Instant(u64::MAX), Instant(u64::MAX)),
        };
        drive.plan_episode(Instant(0));
        drive
    }

    /// When a request of so many blocks that comes now has ended. Profiles are of single blocks: a request of
    /// several is the load of as many, and as late as one.
    pub fn end_of(&mut self, now: Instant, is_write: bool, blocks: u32) -> Instant {
        self.count(now, is_write, blocks);
        let (load, share) = self.load();
        let slow = self.slow * self.episode_now(now);
        let capacity =
            self.between(share, |curve| curve.points[curve.points.len() - 1].iops) / slow;
        let begins = self.free_at.max(now);
        self.free_at = begins + (f64::from(blocks) * SECOND as f64 / capacity) as u64;
        let at = self.random.fraction();
        let us = self.between(share, |curve| latency_us(curve, load * slow, at));
        begins + (us * slow * 1e3) as u64
    }

    fn count(&mut self, now: Instant, is_write: bool, blocks: u32) {
        let step = now.0 / STEP_NS;
        while let Some(oldest) = self.window.front()
            && oldest.step + WINDOW_NS / STEP_NS <= step
        {
            self.reads -= oldest.reads;
            self.writes -= oldest.writes;
            self.window.pop_front();
        }
        if self.window.back().is_none_or(|newest| newest.step != step) {
            self.window.push_back(Count { step, ..Count::default() });
        }
        let newest = self.window.back_mut().expect("it was just there");
        if is_write {
            newest.writes += blocks;
            self.writes += blocks;
        } else {
            newest.reads += blocks;
            self.reads += blocks;
        }
    }

    /// Requests a second, and the percentage of writes among them.
    fn load(&self) -> (f64, f64) {
        let all = f64::from(self.reads + self.writes);
        (all * SECOND as f64 / WINDOW_NS as f64, 100.0 * f64::from(self.writes) / all)
    }

    /// A figure at a share of writes, in percent, between those of the curves on both sides of it.
    fn between(&self, share: f64, figure: impl Fn(&Curve) -> f64) -> f64 {
        let above = self.curves.iter().position(|curve| curve.writes_percent >= share);
        let Some(above) = above else { return figure(&self.curves[self.curves.len() - 1]) };
        if above == 0 {
            return figure(&self.curves[0]);
        }
        let (lower, upper) = (&self.curves[above - 1], &self.curves[above]);
        let part = (share - lower.writes_percent) / (upper.writes_percent - lower.writes_percent);
        figure(lower) * (1.0 - part) + figure(upper) * part
    }

    fn episode_now(&mut self, now: Instant) -> f64 {
        if now < self.episode.0 {
            return 1.0;
        }
        if now >= self.episode.1 {
            self.plan_episode(now);
            return 1.0;
        }
        if self.writes > 0 { self.episodes.slow } else { 1.0 }
    }

    fn plan_episode(&mut self, now: Instant) {
        if self.episodes.every_ns == 0 {
            return;
        }
        let after = -libm::log(1.0 - self.random.fraction()) * self.episodes.every_ns as f64;
        let begins = now + after as u64;
        self.episode = (begins, begins + self.episodes.lasts_ns);
    }
}

/// What of a curve the drive carries, at least its first load.
fn carried(mut curve: Curve) -> Curve {
    let count = curve.points.iter().take_while(|point| point.lost == 0.0).count();
    curve.points.truncate(count.max(1));
    curve
}

/// The latency that a share `at` of the requests does not exceed at this load.
fn latency_us(curve: &Curve, load: f64, at: f64) -> f64 {
    let points = &curve.points;
    let above = points.iter().position(|point| point.iops >= load);
    match above {
        None => quantile_us(&points[points.len() - 1], at),
        Some(0) => quantile_us(&points[0], at),
        Some(above) => {
            let (lower, upper) = (&points[above - 1], &points[above]);
            let part = (load - lower.iops) / (upper.iops - lower.iops);
            quantile_us(lower, at) * (1.0 - part) + quantile_us(upper, at) * part
        }
    }
}

fn quantile_us(point: &LoadPoint, at: f64) -> f64 {
    let known = [
        (0.0, point.p50 * QUICKEST),
        (0.5, point.p50),
        (0.9, point.p90),
        (0.99, point.p99),
        (0.999, point.p999),
        (0.9999, point.p9999),
    ];
    let upper = known.iter().position(|(share, _)| *share >= at).unwrap_or(known.len() - 1);
    if upper == 0 {
        return known[0].1;
    }
    let ((from, least), (to, most)) = (known[upper - 1], known[upper]);
    least + (most - least) * ((at - from) / (to - from)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::profile::{Quantile, Slo};

    const NAME: &str = "s47ana0m403393";

    /// Gives the drive requests at drawn instants, and says what came of it: microseconds, rising, and how many
    /// ended a second.
    fn driven(drive: &mut ProfiledDrive, iops: f64, writes: f64, count: usize) -> (Vec<f64>, f64) {
        let (mut random, mut now, mut last) = (Random::new(9), 0.0, Instant(0));
        let mut latencies = Vec::with_capacity(count);
        for _ in 0..count {
            now += -libm::log(1.0 - random.fraction()) / iops * 1e9;
            let at = Instant(now as u64);
            let end = drive.end_of(at, random.chance(writes), 1);
            last = last.max(end);
            latencies.push((end - at) as f64 / 1e3);
        }
        let warm = count / 4;
        latencies.drain(..warm);
        latencies.sort_by(f64::total_cmp);
        (latencies, count as f64 / last.0 as f64 * 1e9)
    }

    #[test]
    fn latencies_are_those_of_the_profile_at_the_same_load() {
        let profile = Profile::builtin(NAME).expect("it is known");
        // The share of the last milliseconds is about that of the load: where a neighbouring curve is much steeper,
        // as at 75 % of this drive, that is seen.
        for share in [0.0, 30.0, 50.0, 100.0] {
            let curve = profile.curve(share).expect("it was measured");
            let carried = curve.carried(Slo::default());
            let point = carried[carried.len() / 2];
            let mut drive = ProfiledDrive::new(&profile, Episodes::default(), 1);
            let writes = curve.writes_percent / 100.0;
            let (latencies, _) = driven(&mut drive, point.iops, writes, 200_000);
            for quantile in [Quantile::P50, Quantile::P90, Quantile::P99] {
                let seen = latencies[(latencies.len() as f64 * quantile.share()) as usize];
                let said = point.latency(quantile);
                assert!(
                    (seen / said - 1.0).abs() < 0.25,
                    "{share} %, {quantile:?}: {seen} for {said}"
                );
            }
        }
    }

    #[test]
    fn no_drive_carries_more_than_its_profile_says_and_a_slow_one_less() {
        let profile = Profile::builtin(NAME).expect("it is known");
        let most = carried(profile.curves[0].clone()).points.pop().expect("it has one").iops;
        let mut drive = ProfiledDrive::new(&profile, Episodes::default(), 1);
        let (latencies, rate) = driven(&mut drive, most * 2.0, 0.0, 400_000);
        assert!((rate / most - 1.0).abs() < 0.02, "{rate} for {most}");
        assert!(latencies[latencies.len() / 2] > 10_000.0, "who asks for twice as much waits");
        let mut slow = ProfiledDrive::new(&profile, Episodes::default(), 1);
        slow.slow = 100.0;
        let (_, rate) = driven(&mut slow, most * 2.0, 0.0, 40_000);
        assert!((rate / most * 100.0 - 1.0).abs() < 0.05, "{rate} for a hundredth of {most}");
    }

    #[test]
    fn episodes_come_and_go_while_the_drive_is_written_to() {
        let profile = Profile::builtin(NAME).expect("it is known");
        let episodes = Episodes { every_ns: 20_000_000, lasts_ns: 2_000_000, slow: 20.0 };
        let late = |writes: f64| {
            let mut drive = ProfiledDrive::new(&profile, episodes, 1);
            let (latencies, _) = driven(&mut drive, 20_000.0, writes, 50_000);
            latencies[latencies.len() * 97 / 100]
        };
        assert!(late(0.5) > 5.0 * late(0.0), "{} and {}", late(0.5), late(0.0));
    }
}
