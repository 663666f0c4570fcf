//! Load-latency profiles of drives: read, checked, and asked.
//!
//! A profile is what was measured: at each share of writes the loads that were tried, how many requests were
//! given up and how long the others took. [`LoadModel`] is what the pool makes of it for one service level;
//! [`raw`] reads the files that were published.
//!
//! Invariants: shares rise and are within 0..=100 %, loads are finite and above 0, quantiles of one load never
//! fall. Loads need not rise and latencies need not rise with them: that is noise, which [`LoadModel`] mends.

mod builtin;
mod fault;
mod model;
pub mod raw;

pub use fault::{Fault, ProfileError};
pub use model::{Carried, DAMPING, LoadModel, Point};

use flash::crc;

/// The latency that a drive has to stay within for a load to count as carried, in microseconds: the goal of
/// Sandook's experiments.
pub const PEAK_US: f64 = 1000.0;

/// What a drive did at one load, in requests of 4 KiB at uniform addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPoint {
    /// Requests that ended, a second.
    pub iops: f64,
    /// Requests that were given up.
    pub lost: f64,
    /// Microseconds; infinite where fewer requests than that share ended.
    pub p50: f64,
    /// Likewise.
    pub p90: f64,
    /// Likewise.
    pub p99: f64,
    /// Likewise.
    pub p999: f64,
    /// Likewise.
    pub p9999: f64,
}

impl LoadPoint {
    /// Microseconds within which this share of the requests ended.
    pub fn latency(&self, quantile: Quantile) -> f64 {
        match quantile {
            Quantile::P50 => self.p50,
            Quantile::P90 => self.p90,
            Quantile::P99 => self.p99,
            Quantile::P999 => self.p999,
            Quantile::P9999 => self.p9999,
        }
    }

    fn quantiles_rise(&self) -> bool {
        let all = [self.p50, self.p90, self.p99, self.p999, self.p9999];
        all.windows(2).all(|pair| pair[0] <= pair[1])
    }
}

/// The quantile of latency that counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Quantile {
    /// Half may take longer.
    P50,
    /// A tenth may take longer.
    #[default]
    P90,
    /// A hundredth may.
    P99,
    /// A thousandth may.
    P999,
    /// One in ten thousand may.
    P9999,
}

impl Quantile {
    /// As a share.
    pub fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P90 => 0.9,
            Self::P99 => 0.99,
            Self::P999 => 0.999,
            Self::P9999 => 0.9999,
        }
    }
}

/// A service level: this quantile of latency stays below so many microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Which requests count.
    pub quantile: Quantile,
    /// Microseconds.
    pub us: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Self { quantile: Quantile::P90, us: PEAK_US }
    }
}

/// The most that a drive was seen to carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Requests a second at the last load it carried.
    pub iops: f64,
    /// The next load was too much; else nobody tried more.
    pub is_bounded: bool,
}

/// A drive at one share of writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Percent of the requests that are writes.
    pub writes_percent: f64,
    /// In the order of the loads that were tried, rising.
    pub points: Vec<LoadPoint>,
}

impl Curve {
    /// As [`Curve::peak_within`] at [`PEAK_US`].
    pub fn peak(&self, quantile: Quantile) -> Option<Peak> {
        self.peak_within(Slo { quantile, us: PEAK_US })
    }

    /// The last load before the first at which a request was given up or the service level was missed;
    /// `None` if the first was too much already.
    pub fn peak_within(&self, slo: Slo) -> Option<Peak> {
        let carried = self.carried(slo);
        let last = carried.last()?;
        Some(Peak { iops: last.iops, is_bounded: carried.len() < self.points.len() })
    }

    /// The loads up to the peak.
    pub fn carried(&self, slo: Slo) -> &[LoadPoint] {
        let is_carried =
            |point: &&LoadPoint| point.lost == 0.0 && point.latency(slo.quantile) < slo.us;
        let count = self.points.iter().take_while(is_carried).count();
        &self.points[..count]
    }

    /// What the drive did at the load that is nearest to this one.
    pub fn near(&self, iops: f64) -> &LoadPoint {
        let far = |point: &LoadPoint| (point.iops - iops).abs();
        let nearest = self.points.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        nearest.expect("a curve has a point")
    }

    /// What the drive did at the least load.
    pub fn unloaded(&self) -> &LoadPoint {
        &self.points[0]
    }
}

/// What was measured of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its serial number, in lower case.
    pub name: String,
    /// By share of writes, rising.
    pub curves: Vec<Curve>,
    /// Checksum of the text it was read from.
    pub sum: u32,
}

const HEADER: &str = "writes,iops,lost,p50,p90,p99,p999,p9999";
const FIELDS: usize = 8;

impl Profile {
    /// Reads `writes,iops,lost,p50,p90,p99,p999,p9999`: percent, requests a second, requests, microseconds.
    ///
    /// # Errors
    /// The line, what is wrong with it and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let mut lines = (1..).zip(text.lines());
        let wrong = |line: usize, fault: Fault| ProfileError::new(name, line, fault);
        match lines.next() {
            Some((_, line)) if line.trim_end() == HEADER => {}
            other => {
                let found = other.map_or("nothing", |(_, line)| line).to_owned();
                return Err(wrong(1, Fault::Header { found, expected: HEADER }));
            }
        }
        let mut curves: Vec<Curve> = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let (writes_percent, point) = point(line).map_err(|fault| wrong(number, fault))?;
            match curves.last_mut() {
                Some(last) if last.writes_percent == writes_percent => last.points.push(point),
                Some(last) if last.writes_percent > writes_percent => {
                    let before = last.writes_percent;
                    return Err(wrong(number, Fault::ShareFell { before, found: writes_percent }));
                }
                _ => curves.push(Curve { writes_percent, points: vec![point] }),
            }
        }
        if curves.is_empty() {
            return Err(wrong(1, Fault::Empty));
        }
        if !text.ends_with('\n') {
            return Err(wrong(text.lines().count(), Fault::CutOff));
        }
        Ok(Self { name: name.to_owned(), curves, sum: crc(text.as_bytes()) })
    }

    /// The text that [`Profile::parse`] reads.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for curve in &self.curves {
            for p in &curve.points {
                let share = curve.writes_percent;
                let (iops, lost) = (p.iops, p.lost);
                text += &format!("{share},{iops},{lost},{},{},{},", p.p50, p.p90, p.p99);
                text += &format!("{},{}\n", p.p999, p.p9999);
            }
        }
        text
    }

    /// The published profile of the drive with this serial number.
    pub fn builtin(name: &str) -> Option<Self> {
        let (name, text) = builtin::TEXTS.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("the tests parse every profile"))
    }

    /// The names that [`Profile::builtin`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        builtin::TEXTS.iter().map(|(name, _)| *name)
    }

    /// The curve at this share of writes.
    pub fn curve(&self, writes_percent: f64) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.writes_percent == writes_percent)
    }
}

fn point(line: &str) -> Result<(f64, LoadPoint), Fault> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let found = fields.len();
    let &[writes, iops, lost, p50, p90, p99, p999, p9999] = fields.as_slice() else {
        return Err(Fault::Fields { found, expected: FIELDS, header: HEADER });
    };
    let writes = finite("writes", writes)?;
    if writes > 100.0 {
        return Err(Fault::ShareBeyond { found: writes });
    }
    let point = LoadPoint {
        iops: finite("iops", iops)?,
        lost: finite("lost", lost)?,
        p50: latency("p50", p50)?,
        p90: latency("p90", p90)?,
        p99: latency("p99", p99)?,
        p999: latency("p999", p999)?,
        p9999: latency("p9999", p9999)?,
    };
    check(&point)?;
    Ok((writes, point))
}

/// What holds of every load, however it was read.
fn check(point: &LoadPoint) -> Result<(), Fault> {
    if point.iops == 0.0 {
        return Err(Fault::NoLoad);
    }
    if !point.quantiles_rise() {
        let quantiles = [point.p50, point.p90, point.p99, point.p999, point.p9999];
        return Err(Fault::QuantilesFall { quantiles });
    }
    Ok(())
}

/// A number from 0 on. Infinity is none: a drive was never seen to do infinitely much.
fn finite(field: &'static str, text: &str) -> Result<f64, Fault> {
    let value = latency(field, text)?;
    if value.is_infinite() {
        return Err(Fault::Infinite { field });
    }
    Ok(value)
}

/// A number from 0 on, or infinity: fewer requests ended than the quantile asks for.
fn latency(field: &'static str, text: &str) -> Result<f64, Fault> {
    let value = text.parse::<f64>().ok().filter(|value| *value >= 0.0);
    value.ok_or_else(|| Fault::NotANumber { field, text: text.to_owned() })
}

#[cfg(test)]
mod tests;
