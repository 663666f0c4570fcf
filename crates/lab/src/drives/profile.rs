//! Load-latency profiles of drives: read, checked, and asked.

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

/// The quantile of latency that counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Quantile {
    /// A tenth may take longer.
    P90,
    /// A hundredth may.
    P99,
}

impl Quantile {
    /// As a share.
    pub fn share(self) -> f64 {
        match self {
            Self::P90 => 0.9,
            Self::P99 => 0.99,
        }
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
    /// The last load before the first at which a request was given up or the quantile exceeded [`PEAK_US`];
    /// `None` if the first was too much already.
    pub fn peak(&self, quantile: Quantile) -> Option<Peak> {
        let carried = |point: &&LoadPoint| {
            let latency = match quantile {
                Quantile::P90 => point.p90,
                Quantile::P99 => point.p99,
            };
            point.lost == 0.0 && latency < PEAK_US
        };
        let count = self.points.iter().take_while(carried).count();
        let last = self.points[..count].last()?;
        Some(Peak { iops: last.iops, is_bounded: count < self.points.len() })
    }

    /// What the drive did at the least load.
    pub fn unloaded(&self) -> &LoadPoint {
        &self.points[0]
    }

    /// What it did at the load that is nearest to this one.
    pub fn near(&self, iops: f64) -> &LoadPoint {
        let far = |point: &LoadPoint| (point.iops - iops).abs();
        let nearest = self.points.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        nearest.expect("a curve has a point")
    }
}

/// What was published of a drive.
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

impl Profile {
    /// Reads `writes,iops,lost,p50,p90,p99,p999,p9999`: percent, requests a second, requests, microseconds.
    ///
    /// # Errors
    /// The line, what is wrong with it and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        let wrong = |line: usize, why: String| Err(format!("profile {name:?}, line {line}: {why}"));
        match lines.next() {
            Some((_, HEADER)) => {}
            other => {
                let found = other.map_or("nothing", |(_, line)| line);
                return wrong(1, format!("it begins with {found:?}, not with {HEADER:?}"));
            }
        }
        let mut curves: Vec<Curve> = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let (writes_percent, point) = match point(line) {
                Ok(read) => read,
                Err(why) => return wrong(number, why),
            };
            match curves.last_mut() {
                Some(last) if last.writes_percent == writes_percent => last.points.push(point),
                Some(last) if last.writes_percent > writes_percent => {
                    let before = last.writes_percent;
                    return wrong(
                        number,
                        format!("{writes_percent} % of writes after {before} %: sort them"),
                    );
                }
                _ => curves.push(Curve { writes_percent, points: vec![point] }),
            }
        }
        if curves.is_empty() {
            return wrong(1, "no line follows the header".into());
        }
        Ok(Self { name: name.to_owned(), curves, sum: crc(text.as_bytes()) })
    }

    /// The published profile of the drive with this serial number.
    pub fn builtin(name: &str) -> Option<Self> {
        let (name, text) = TEXTS.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("the tests parse every profile"))
    }

    /// The names that [`Profile::builtin`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TEXTS.iter().map(|(name, _)| *name)
    }

    /// The curve at this share of writes.
    pub fn curve(&self, writes_percent: f64) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.writes_percent == writes_percent)
    }
}

fn point(line: &str) -> Result<(f64, LoadPoint), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let &[writes, iops, lost, p50, p90, p99, p999, p9999] = fields.as_slice() else {
        return Err(format!("{} fields instead of the 8 of {HEADER:?}", fields.len()));
    };
    let number = |name: &str, text: &str| {
        let value = text.parse::<f64>().ok().filter(|value| *value >= 0.0);
        value.ok_or_else(|| format!("{name} = {text:?}: a number from 0 on, such as 75"))
    };
    let writes = number("writes", writes)?;
    if writes > 100.0 {
        return Err(format!("writes = {writes}: at most 100 %"));
    }
    let point = LoadPoint {
        iops: number("iops", iops)?,
        lost: number("lost", lost)?,
        p50: number("p50", p50)?,
        p90: number("p90", p90)?,
        p99: number("p99", p99)?,
        p999: number("p999", p999)?,
        p9999: number("p9999", p9999)?,
    };
    if point.iops == 0.0 || point.iops.is_infinite() {
        return Err(format!("iops = {iops}: above 0, such as 26258"));
    }
    if point.p50 > point.p90 || point.p90 > point.p99 {
        return Err(format!("{p50}, {p90} and {p99} us: quantiles never fall"));
    }
    Ok((writes, point))
}

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../devices/profiles/", $name, ".csv")))),*]
    };
}

const TEXTS: [(&str, &str); 15] = profiles![
    "s39wna0kb01161",
    "s39wna0kc01659",
    "s39wna0kc02077",
    "s39wna0kc02078",
    "s39wna0kc02087",
    "s39wna0kc02089",
    "s47ana0m400877",
    "s47ana0m400923",
    "s47ana0m403316",
    "s47ana0m403318",
    "s47ana0m403393",
    "s5cvna0n101050",
    "sdm000015a60",
    "sdm00001c5d1",
    "sdm000024c8d",
];

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "writes,iops,lost,p50,p90,p99,p999,p9999\n\
        0,1000,0,70,80,90,100,110\n0,2000,0,70,900,2000,inf,inf\n0,3000,7,70,90,90,100,110\n\
        50,1000,0,70,80,90,100,110\n";

    #[test]
    fn every_published_profile_is_read() {
        for name in Profile::names() {
            let profile = Profile::builtin(name).expect("it is known");
            assert!(profile.curves.len() >= 3, "{name}");
            for writes in [0.0, 100.0] {
                let curve = profile.curve(writes).expect("both ends were measured");
                assert!(curve.peak(Quantile::P90).is_some(), "{name} at {writes} %");
            }
        }
        assert!(Profile::builtin("other").is_none());
    }

    #[test]
    fn a_peak_is_the_last_load_that_was_carried() {
        let profile = Profile::parse("two", TWO).expect("it is right");
        let reads = profile.curve(0.0).expect("it is there");
        let peak = |quantile| reads.peak(quantile).expect("the first load was carried");
        assert_eq!(peak(Quantile::P90), Peak { iops: 2000.0, is_bounded: true });
        assert_eq!(peak(Quantile::P99), Peak { iops: 1000.0, is_bounded: true });
        let mixed = profile.curve(50.0).expect("it is there");
        let unbounded = Peak { iops: 1000.0, is_bounded: false };
        assert_eq!(mixed.peak(Quantile::P90), Some(unbounded));
    }

    #[test]
    fn bad_profiles_are_refused_with_the_line() {
        let refused = |from: &str, to: &str, says: &str| {
            let why = Profile::parse("p", &TWO.replace(from, to)).expect_err(to);
            assert!(why.contains(says) && why.contains("line"), "{why}");
        };
        refused("writes,", "", "begins with");
        refused("50,1000,0", "50,1000", "7 fields");
        refused("50,1000,0", "50,x,0", "iops = \"x\"");
        refused("50,1000,0", "50,0,0", "above 0");
        refused("50,1000,0", "-1,1000,0", "writes");
        refused("50,1000,0", "150,1000,0", "at most 100");
        refused("70,900,2000", "70,900,800", "never fall");
        let turned = "writes,iops,lost,p50,p90,p99,p999,p9999\n9,1,0,1,1,1,1,1\n8,1,0,1,1,1,1,1\n";
        assert!(Profile::parse("p", turned).expect_err("turned").contains("sort them"));
        assert!(Profile::parse("p", HEADER).expect_err("empty").contains("no line"));
    }
}
