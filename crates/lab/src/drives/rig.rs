//! A device of the lab, measured as the published drives were: requests of 4 KiB at uniform addresses and drawn
//! instants, at rising loads.

use crate::driver::Failure;
use crate::load::{Client, Latency, Pace, Window, run};
use crate::target::Target;
use flash::{BLOCK_BYTES, Random};
use pool::profile::{Curve, LoadPoint, PEAK_US, Peak, Profile, Quantile};

/// A device that holds data, at loads of one's choice.
pub struct Rig {
    target: Box<dyn Target>,
    /// The target is one of so many like parts of the drive, and gets that share of the requests.
    parts: u32,
    random: Random,
}

/// The 90th percentile of latency at a load that was published, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// Requests a second.
    pub iops: f64,
    /// Of the device.
    pub us: f64,
    /// Of the drive.
    pub said_us: f64,
}

impl Beside {
    /// How far the device is from the drive, in percent.
    pub fn off(&self) -> f64 {
        100.0 * (self.us / self.said_us - 1.0)
    }
}

/// What was measured at one share of writes, and what was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Percent of the requests that are writes.
    pub writes_percent: f64,
    /// Requests a second that the device carries.
    pub peak: f64,
    /// That the drive carried.
    pub said: Peak,
    /// At the least load that was published.
    pub unloaded: Beside,
    /// At that nearest to half of the drive's peak.
    pub half: Beside,
}

impl Share {
    /// How far the device's peak is from the drive's, in percent. Where nobody tried a higher load, more is right.
    pub fn peak_off(&self) -> f64 {
        let off = 100.0 * (self.peak / self.said.iops - 1.0);
        if self.said.is_bounded { off } else { off.min(0.0) }
    }
}

/// A device beside a drive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// By share of writes, rising.
    pub shares: Vec<Share>,
}

impl Agreement {
    /// The figure that is farthest off, in percent, without its sign.
    pub fn worst(&self, figure: impl Fn(&Share) -> f64) -> f64 {
        self.shares.iter().map(|share| figure(share).abs()).fold(0.0, f64::max)
    }

    /// What a fit makes small: the mean of how far the logarithms are apart, in which peaks count twice as much as
    /// latencies without load and four times as much as those at half of it. It is no square, and not the worst: a
    /// curve that no constants reach is not to spoil the others.
    pub fn error(&self) -> f64 {
        let of = |off: f64| libm::fabs(libm::log(1.0 + (off / 100.0).max(-0.99)));
        let one = |share: &Share| {
            of(share.peak_off()) + 0.5 * of(share.unloaded.off()) + 0.25 * of(share.half.off())
        };
        self.shares.iter().map(one).sum::<f64>() / self.shares.len().max(1) as f64
    }
}

/// Between loads the device rests: what was too much for it is done by then.
const REST_NS: u64 = 500_000_000;
/// How long a load is kept up before it counts: several programs of the slowest flash.
const WARMUP_NS: u64 = 10_000_000;
/// A load counts at least so long.
const MEASURE_NS: u64 = 30_000_000;
/// And at least for so many requests, so that a hundredth of them is some.
const REQUESTS: f64 = 8_000.0;
/// A peak is known when the load that was carried and that which was not are no farther apart.
const PRECISION: f64 = 1.02;
/// First guesses are so far to both sides of the published peak.
const AROUND: f64 = 1.08;

impl Rig {
    /// Writes the whole device once, so that every read finds data. It is all of a drive, or one of so many
    /// like `parts` over which the drive spreads its addresses.
    ///
    /// # Errors
    /// What failed inside.
    pub fn new(target: Box<dyn Target>, parts: u32, seed: u64) -> Result<Self, Failure> {
        let mut rig = Self { target, parts, random: Random::new(seed) };
        let fill = Client::filling(rig.target.bytes() / BLOCK_BYTES as u64);
        run(&mut *rig.target, &[fill], Window::WHENEVER, seed)?;
        Ok(rig)
    }

    /// Latencies of all requests at this load, those without an end as long as they have waited.
    ///
    /// # Errors
    /// What failed inside.
    pub fn latencies(&mut self, writes_percent: f64, iops: f64) -> Result<Latency, Failure> {
        let client = Client {
            pace: Pace::Rate(iops / f64::from(self.parts)),
            reads: 1.0 - writes_percent / 100.0,
            bytes: BLOCK_BYTES as u64,
            ..Client::default()
        };
        let requests_ns = REQUESTS * f64::from(self.parts) / iops * 1e9;
        let measure_ns = MEASURE_NS.max(requests_ns as u64);
        self.target.advance(self.target.now() + REST_NS)?;
        while self.target.take_done().is_some() {}
        let window = Window { warmup_ns: WARMUP_NS, measure_ns };
        let seen = run(&mut *self.target, &[client], window, self.random.next_u64())?;
        match seen[0].first_error {
            Some(error) => Err(Failure(format!("at {iops} requests a second: {error:?}"))),
            None => Ok(seen[0].ios()),
        }
    }

    /// The most that the device carries, looked for from the published peak on.
    fn peak(&mut self, writes: f64, said: Peak) -> Result<f64, Failure> {
        let mut carries = |iops: f64| -> Result<bool, Failure> {
            let latencies = self.latencies(writes, iops)?;
            Ok(latencies.quantile_ns(Quantile::P90.share()) as f64 / 1e3 < PEAK_US)
        };
        let (mut carried, mut too_much) = (said.iops / AROUND, None);
        while !carries(carried)? {
            too_much = Some(carried);
            carried /= AROUND * AROUND;
            if carried < said.iops / 16.0 {
                return Ok(carried);
            }
        }
        if !said.is_bounded && too_much.is_none() {
            if carries(said.iops)? {
                return Ok(said.iops);
            }
            too_much = Some(said.iops);
        }
        let mut too_much = too_much.unwrap_or_default();
        while too_much == 0.0 {
            let next = (carried * AROUND * AROUND).max(said.iops * AROUND);
            if !carries(next)? {
                too_much = next;
            } else if next > said.iops * 16.0 {
                return Ok(next);
            } else {
                carried = next;
            }
        }
        while too_much / carried > PRECISION {
            let middle = (carried * too_much).sqrt();
            if carries(middle)? { carried = middle } else { too_much = middle }
        }
        Ok((carried * too_much).sqrt())
    }

    /// The device's 90th percentile at a load that was published.
    fn at(&mut self, writes_percent: f64, point: &LoadPoint) -> Result<Beside, Failure> {
        let latencies = self.latencies(writes_percent, point.iops)?;
        let us = latencies.quantile_ns(Quantile::P90.share()) as f64 / 1e3;
        Ok(Beside { iops: point.iops, us, said_us: point.p90 })
    }

    /// The figures of one curve of a drive.
    ///
    /// # Errors
    /// What failed inside; a curve whose first load was too much has no figures, and is an error.
    pub fn share(&mut self, curve: &Curve) -> Result<Share, Failure> {
        let writes_percent = curve.writes_percent;
        let said = curve.peak(Quantile::P90).ok_or_else(|| {
            Failure(format!(
                "at {writes_percent} % of writes even the least load of the profile takes {PEAK_US} us or more, \
                 so that it tells no peak; leave these lines out"
            ))
        })?;
        let unloaded = self.at(writes_percent, curve.unloaded())?;
        let half = self.at(writes_percent, curve.near(said.iops / 2.0))?;
        let peak = self.peak(writes_percent, said)?;
        Ok(Share { writes_percent, peak, said, unloaded, half })
    }

    /// The device beside a drive, at every share of writes that was published.
    ///
    /// # Errors
    /// As of [`Rig::share`].
    pub fn beside(&mut self, profile: &Profile) -> Result<Agreement, Failure> {
        let shares = profile.curves.iter().map(|curve| self.share(curve));
        Ok(Agreement { shares: shares.collect::<Result<_, _>>()? })
    }
}
