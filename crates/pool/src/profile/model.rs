//! What the pool makes of a profile for one service level: how late answers are at a load, and how much a
//! drive carries.
//!
//! At each share of writes the model is a piecewise linear, never falling function from load to latency, up to
//! the last load at which the service level held. Where a profile is noisy, loads are sorted and a latency
//! counts as the largest so far. A share that was not measured is rounded up to one that was, as published.

use super::{Curve, Fault, LoadPoint, Profile, ProfileError, Slo};

/// Something that a drive can do: so many reads and writes a second, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// A second.
    pub reads: f64,
    /// A second.
    pub writes: f64,
    /// Load times latency: microseconds that requests wait, a second.
    pub cost: f64,
}

/// A drive under a service level.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadModel {
    slo: Slo,
    /// By share of writes, rising, from 0 to 100 %.
    curves: Vec<Carried>,
}

/// What a drive carries at one share of writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    writes_percent: f64,
    /// (requests a second, microseconds), loads rising, latencies never falling.
    knots: Vec<(f64, f64)>,
}

impl Carried {
    /// Requests a second of which the quantile is no later than so many microseconds.
    pub fn load_within(&self, us: f64) -> f64 {
        let knots = &self.knots;
        let count = knots.partition_point(|knot| knot.1 <= us);
        match (count.checked_sub(1).map(|at| knots[at]), knots.get(count)) {
            (Some(below), Some(above)) => {
                below.0 + (above.0 - below.0) * (us - below.1) / (above.1 - below.1)
            }
            (Some(last), None) => last.0,
            (None, _) => 0.0,
        }
    }

    fn new(curve: &Curve, slo: Slo, scale: f64, slowness: f64) -> Self {
        let carried = curve.carried(Slo { us: slo.us / slowness, ..slo }).iter();
        let knot = |point: &LoadPoint| {
            (point.iops * scale / slowness, point.latency(slo.quantile) * slowness)
        };
        let mut all: Vec<(f64, f64)> = carried.map(knot).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut knots: Vec<(f64, f64)> = Vec::with_capacity(all.len());
        for (load, us) in all {
            let us = knots.last().map_or(us, |last| us.max(last.1));
            match knots.last_mut() {
                Some(last) if last.0 == load => last.1 = us,
                _ => knots.push((load, us)),
            }
        }
        Self { writes_percent: curve.writes_percent, knots }
    }

    fn peak(&self) -> f64 {
        self.knots.last().map_or(0.0, |last| last.0)
    }

    /// `None` beyond the peak.
    fn latency(&self, load: f64) -> Option<f64> {
        let at = self.knots.partition_point(|knot| knot.0 < load);
        let &(right, right_us) = self.knots.get(at)?;
        // Below the least load that was tried nothing gets faster.
        let Some(&(left, left_us)) = at.checked_sub(1).map(|left| &self.knots[left]) else {
            return Some(right_us);
        };
        Some(left_us + (right_us - left_us) * (load - left) / (right - left))
    }
}

/// Of what was measured so much is counted on, where the model is to be on the safe side: as published.
pub const DAMPING: f64 = 0.95;

/// Nothing is so much faster, or slower, than it was measured.
const SCALE_MAX: f64 = 10_000.0;

impl LoadModel {
    /// The drive of `profile`, if all its loads were `scale` times what was measured: 1, or [`DAMPING`].
    ///
    /// # Errors
    /// If reads alone or writes alone were not measured, or the scale is none.
    pub fn new(profile: &Profile, slo: Slo, scale: f64) -> Result<Self, ProfileError> {
        Self::slowed(profile, slo, scale, 1.0)
    }

    /// As [`LoadModel::new`], of a drive that takes `slowness` times as long for everything as its profile
    /// says: it carries that much less, that much later.
    ///
    /// # Errors
    /// As above.
    pub fn slowed(
        profile: &Profile,
        slo: Slo,
        scale: f64,
        slowness: f64,
    ) -> Result<Self, ProfileError> {
        let wrong = |fault| ProfileError::new(&profile.name, 0, fault);
        for found in [scale, slowness] {
            if !(found > 0.0 && found <= SCALE_MAX) {
                return Err(wrong(Fault::Scale { found }));
            }
        }
        for writes_percent in [0.0, 100.0] {
            if profile.curve(writes_percent).is_none() {
                return Err(wrong(Fault::ShareMissing { writes_percent }));
            }
        }
        let carried = |curve| Carried::new(curve, slo, scale, slowness);
        Ok(Self { slo, curves: profile.curves.iter().map(carried).collect() })
    }

    /// The service level it is made for.
    pub fn slo(&self) -> Slo {
        self.slo
    }

    /// Requests a second within the service level, at a share of writes in percent; 0 if it is never met.
    pub fn peak(&self, writes_percent: f64) -> f64 {
        self.curve(writes_percent).peak()
    }

    /// Microseconds at the quantile of the service level, of so many reads and writes a second; `None` if
    /// that is more than the drive carries.
    pub fn latency(&self, reads: f64, writes: f64) -> Option<f64> {
        self.curve(percent(reads, writes)).latency(reads + writes)
    }

    /// What to expect of a drive that is as its profile says, whatever the load: beyond the peak as at the
    /// peak, and the bound of the service level where it was never met.
    pub fn expected(&self, reads: f64, writes: f64) -> f64 {
        let curve = self.curve(percent(reads, writes));
        let at_peak = curve.knots.last().map_or(self.slo.us, |last| last.1);
        curve.latency(reads + writes).unwrap_or(at_peak)
    }

    /// All that the drive was seen to do within the service level.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for curve in &self.curves {
            let share = curve.writes_percent / 100.0;
            for &(load, us) in &curve.knots {
                let (reads, writes) = (load * (1.0 - share), load * share);
                points.push(Point { reads, writes, cost: load * us });
            }
        }
        points
    }

    /// What is carried at a share of writes.
    pub fn curve(&self, writes_percent: f64) -> &Carried {
        // What was meant as a measured share must not be rounded up to the next for its last digit.
        let least = writes_percent - 1e-9;
        let at = self.curves.iter().find(|curve| curve.writes_percent >= least);
        at.expect("writes alone were measured, and no share is larger")
    }
}

fn percent(reads: f64, writes: f64) -> f64 {
    let all = reads + writes;
    if all > 0.0 { (100.0 * writes / all).min(100.0) } else { 0.0 }
}
