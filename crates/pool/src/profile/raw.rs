//! The published files of a drive: one for each share of writes, named `SERIAL_100r.csv` (reads alone) or
//! `SERIAL_NNNw.csv` (NN.N % of writes), with the lines of an open-loop load generator.
//!
//! What is refused: another header, lines of two drives, negative, infinite or no numbers where only a latency
//! may be infinite, quantiles that fall within a line, an empty file, a share twice, no reads alone or no
//! writes alone. What is mended, and told as a [`Repair`]: a load that fell without a request being given up
//! is left out; a latency that falls as the load rises counts as the largest so far; a usual share that is
//! missing is answered by the next larger one.

use super::{Curve, Fault, LoadPoint, Profile, ProfileError, check, finite, latency};
use flash::crc_append;
use std::fmt;

/// A published file.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name, which says the share of writes.
    pub name: &'a str,
    /// What it holds.
    pub text: &'a str,
}

/// A profile, and what was mended to get it.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// The profile.
    pub profile: Profile,
    /// What was done to it, by share of writes.
    pub repairs: Vec<Repair>,
}

/// Something odd that does not spoil a profile.
#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// More was asked and less was done, without anything given up: the line is left out.
    LoadFell {
        /// In which file.
        file: String,
        /// Its line.
        line: usize,
    },
    /// At so many loads some quantile was lower than at a smaller load: they count as the largest so far.
    LatencyFell {
        /// In which file.
        file: String,
        /// How many.
        loads: usize,
    },
    /// This share was not measured: the next larger one answers for it, which is on the safe side where
    /// writes slow the drive.
    ShareMissing {
        /// Percent of writes.
        writes_percent: f64,
        /// Answers for it.
        answered_by: f64,
    },
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadFell { file, line } => write!(
                f,
                "{file}, line {line}: more was asked and less was done, without anything given up: left out"
            ),
            Self::LatencyFell { file, loads } => write!(
                f,
                "{file}: at {loads} loads a quantile was lower than at a smaller load: it counts as the largest \
                 so far"
            ),
            Self::ShareMissing { writes_percent, answered_by } => write!(
                f,
                "{writes_percent} % of writes was not measured: {answered_by} % answers for it"
            ),
        }
    }
}

const HEADER: &str = "SerialNumber,Distribution,Target,Actual,Dropped,NeverSent,Median,90th,99th,99.9th,99.99th,Start,StartTsc";
const FIELDS: usize = 13;
/// The shares at which drives are profiled as a rule.
const SHARES: [f64; 7] = [0.0, 10.0, 20.0, 30.0, 50.0, 70.0, 100.0];

/// Makes one profile of the files of a drive, given in any order.
///
/// # Errors
/// The file, its line, what is wrong and what would be right.
pub fn import(files: &[File<'_>]) -> Result<Import, ProfileError> {
    let mut serial: Option<String> = None;
    let mut repairs = Vec::new();
    let mut curves: Vec<Curve> = Vec::new();
    let mut sum = 0;
    for file in files {
        let whole = |fault| ProfileError::new(file.name, 0, fault);
        let writes_percent = share(file.name).ok_or_else(|| whole(Fault::NoShare))?;
        if curves.iter().any(|curve| curve.writes_percent == writes_percent) {
            return Err(whole(Fault::ShareTwice { writes_percent }));
        }
        let points = read(*file, &mut serial, &mut repairs)?;
        sum = crc_append(sum, file.text.as_bytes());
        curves.push(Curve { writes_percent, points });
    }
    curves.sort_by(|a, b| a.writes_percent.total_cmp(&b.writes_percent));
    let name = serial.unwrap_or_default().to_lowercase();
    if curves.is_empty() {
        return Err(ProfileError::new(&name, 0, Fault::Empty));
    }
    for writes_percent in SHARES {
        if curves.iter().any(|curve| curve.writes_percent == writes_percent) {
            continue;
        }
        let larger = curves.iter().find(|curve| curve.writes_percent > writes_percent);
        match larger {
            Some(curve) if writes_percent > 0.0 => {
                let answered_by = curve.writes_percent;
                repairs.push(Repair::ShareMissing { writes_percent, answered_by });
            }
            _ => return Err(ProfileError::new(&name, 0, Fault::ShareMissing { writes_percent })),
        }
    }
    Ok(Import { profile: Profile { name, curves, sum }, repairs })
}

/// The percent of writes that the name of a file tells.
fn share(name: &str) -> Option<f64> {
    let (_, tail) = name.strip_suffix(".csv")?.rsplit_once('_')?;
    if tail == "100r" {
        return Some(0.0);
    }
    let permille: u32 = tail.strip_suffix('w')?.parse().ok()?;
    (1..=1000).contains(&permille).then(|| f64::from(permille) / 10.0)
}

fn read(
    file: File<'_>,
    serial: &mut Option<String>,
    repairs: &mut Vec<Repair>,
) -> Result<Vec<LoadPoint>, ProfileError> {
    let wrong = |line: usize, fault: Fault| ProfileError::new(file.name, line, fault);
    let mut lines = (1..).zip(file.text.lines());
    match lines.next() {
        Some((_, line)) if line.trim_end() == HEADER => {}
        other => {
            let found = other.map_or("nothing", |(_, line)| line).to_owned();
            return Err(wrong(1, Fault::Header { found, expected: HEADER }));
        }
    }
    let mut points: Vec<LoadPoint> = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let (found, point) = point(line).map_err(|fault| wrong(number, fault))?;
        let expected = serial.get_or_insert_with(|| found.to_owned());
        if found != expected {
            let (found, expected) = (found.to_owned(), expected.clone());
            return Err(wrong(number, Fault::OtherDevice { found, expected }));
        }
        let fell = points.last().is_some_and(|last| point.lost == 0.0 && point.iops <= last.iops);
        if fell {
            repairs.push(Repair::LoadFell { file: file.name.to_owned(), line: number });
        } else {
            points.push(point);
        }
    }
    if points.is_empty() {
        return Err(wrong(1, Fault::Empty));
    }
    if !file.text.ends_with('\n') {
        return Err(wrong(file.text.lines().count(), Fault::CutOff));
    }
    let loads = falls(&points);
    if loads > 0 {
        repairs.push(Repair::LatencyFell { file: file.name.to_owned(), loads });
    }
    Ok(points)
}

/// Loads, of those that were carried, at which the tail was shorter than at a smaller load.
fn falls(points: &[LoadPoint]) -> usize {
    let (mut p90, mut p99, mut count) = (0.0, 0.0, 0);
    for point in points.iter().take_while(|point| point.lost == 0.0) {
        count += usize::from(point.p90 < p90 || point.p99 < p99);
        (p90, p99) = (point.p90.max(p90), point.p99.max(p99));
    }
    count
}

fn point(line: &str) -> Result<(&str, LoadPoint), Fault> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != FIELDS {
        return Err(Fault::Fields { found: fields.len(), expected: FIELDS, header: HEADER });
    }
    finite("Target", fields[2])?;
    let point = LoadPoint {
        iops: finite("Actual", fields[3])?,
        lost: finite("Dropped", fields[4])?,
        p50: latency("Median", fields[6])?,
        p90: latency("90th", fields[7])?,
        p99: latency("99th", fields[8])?,
        p999: latency("99.9th", fields[9])?,
        p9999: latency("99.99th", fields[10])?,
    };
    check(&point)?;
    Ok((fields[0], point))
}
