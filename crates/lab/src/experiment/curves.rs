//! Figures that are more than a number of each point: how latencies are distributed, and what went on over
//! time.
//!
//! A curve is measured only where a figure wants it. Of several seeds a curve has the mean at each of its places,
//! and over time the interval of that, too.

use super::file::Experiment;
use super::metric::metric_unit;
use super::report::drawn;
use super::seeds::{interval, mean};
use super::select::{matches, text_of};
use super::{CaseResult, ExperimentError, PointResult, Results};
use crate::load::{Latency, Seen, Slice, Slices};
use crate::report::{Axis, Figure, Origin, Scale, Series, Style};
use crate::target::TargetCounts;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Table;

/// Slices of a measurement.
pub(super) const SLICES: u32 = 60;

/// A curve: x and y.
pub type Curve = Vec<(f64, f64)>;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// The share of the I/Os that took no longer than x; on a logarithmic axis the share that did.
    Cdf,
    /// A rate or a latency in each slice of the measurement.
    OverTime,
}

/// A figure of curves, as the file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurveFile {
    pub id: String,
    pub title: String,
    pub kind: Kind,
    /// Of a distribution "read", "write", "io", "batch" or "transaction", over time a metric; with "CLIENT." before
    /// it, of that client only.
    pub of: String,
    #[serde(default)]
    pub y_log: bool,
    /// All, unless given.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Values of sweeps.
    #[serde(default)]
    pub at: Table,
    #[serde(default)]
    pub note: String,
}

impl CurveFile {
    /// Its name among the curves of a point.
    fn key(&self) -> String {
        match self.kind {
            Kind::Cdf => format!("cdf {}", self.of),
            Kind::OverTime => format!("over-time {}", self.of),
        }
    }

    fn client(&self) -> Option<&str> {
        self.of.rsplit_once('.').map(|(client, _)| client)
    }

    fn what(&self) -> &str {
        self.of.rsplit('.').next().unwrap_or(&self.of)
    }
}

const DISTRIBUTIONS: [&str; 5] = ["read", "write", "io", "batch", "transaction"];
const RATES: [&str; 7] =
    ["read_iops", "write_iops", "iops", "read_bandwidth", "write_bandwidth", "bandwidth", "waf"];
const KINDS: [&str; 3] = ["read", "write", "io"];
const PARTS: [(&str, Option<f64>); 6] = [
    ("mean", None),
    ("p50", Some(0.5)),
    ("p90", Some(0.9)),
    ("p99", Some(0.99)),
    ("p999", Some(0.999)),
    ("max", None),
];

fn is_over_time(what: &str) -> bool {
    let latency = what.split_once('_').is_some_and(|(kind, part)| {
        KINDS.contains(&kind) && PARTS.iter().any(|(known, _)| *known == part)
    });
    latency || RATES.contains(&what)
}

/// Checks what can be known of these figures before anything has run.
pub(super) fn check(experiment: &Experiment) -> Result<(), ExperimentError> {
    for curve in &experiment.curves {
        let wrong = |why: String| Err(ExperimentError(format!("figure {:?}: {why}", curve.id)));
        let what = curve.what();
        match curve.kind {
            Kind::Cdf if !DISTRIBUTIONS.contains(&what) => {
                return wrong(format!("of = {:?}: one of {}", curve.of, DISTRIBUTIONS.join(", ")));
            }
            Kind::OverTime
                if !is_over_time(what) || (what == "waf" && curve.client().is_some()) =>
            {
                return wrong(format!(
                    "of = {:?}: one of {}, or read_, write_ or io_ with mean, p50, p90, p99, p999 or max",
                    curve.of,
                    RATES.join(", ")
                ));
            }
            _ => {}
        }
        super::select::check_place(experiment, &curve.cases, &curve.at)
            .map_err(|why| ExperimentError(format!("figure {:?}: {why}", curve.id)))?;
        if curve.kind == Kind::OverTime && !experiment.has_clients(&curve.cases) {
            return wrong("over-time: only of cases with clients; name them in cases".into());
        }
    }
    Ok(())
}

/// What a point measured over time.
pub(super) struct Course<'a> {
    pub counts: &'a [TargetCounts],
}

/// The curves that the figures want of a point.
pub(super) fn curves(
    wanted: &[CurveFile],
    clients: &[(String, u32, Seen)],
    all: &Seen,
    course: &Course<'_>,
) -> BTreeMap<String, Curve> {
    let mut curves = BTreeMap::new();
    for curve in wanted {
        let own =
            |name: &str| clients.iter().find(|(known, ..)| known == name).map(|found| &found.2);
        let Some(seen) = curve.client().map_or(Some(all), own) else { continue };
        let points = match curve.kind {
            Kind::Cdf => distribution(&latency_of(seen, curve.what())),
            Kind::OverTime => seen
                .slices
                .as_ref()
                .map_or_else(Vec::new, |slices| over_time(slices, curve.what(), course.counts)),
        };
        curves.insert(curve.key(), points);
    }
    curves
}

fn latency_of(seen: &Seen, what: &str) -> Latency {
    match what {
        "read" => seen.reads.clone(),
        "write" => seen.writes.clone(),
        "batch" => seen.batches.clone(),
        "transaction" => seen.transactions.clone(),
        _ => seen.ios(),
    }
}

/// Shares in the order of time: percents up to 99, then ten times finer towards the end, as far as there are I/Os.
fn shares(count: u64) -> Vec<f64> {
    let percents = (0..99).map(|percent| f64::from(percent) / 100.0);
    let tail = (2..6).flat_map(|digits| {
        let step = libm::pow(10.0, -f64::from(digits));
        (0..9).map(move |number| 1.0 - step * f64::from(10 - number) / 10.0)
    });
    let told = |share: &f64| (1.0 - share) * count as f64 >= 1.0;
    percents.chain(tail).filter(told).collect()
}

/// Share and the milliseconds that it does not exceed.
fn distribution(latency: &Latency) -> Curve {
    let shares = shares(latency.count());
    shares.into_iter().map(|share| (share, latency.quantile_ns(share) as f64 / 1e6)).collect()
}

/// Seconds and the value in that slice.
fn over_time(slices: &Slices, what: &str, counts: &[TargetCounts]) -> Curve {
    let each_s = slices.each_ns as f64 / 1e9;
    let value = |(at, slice): (usize, &Slice)| {
        let seconds = (at as f64 + 0.5) * each_s;
        let value = match what {
            "waf" => waf(counts.get(at)?, counts.get(at + 1)?),
            _ => of_slice(slice, what, each_s),
        };
        value.map(|value| (seconds, value))
    };
    slices.list.iter().enumerate().filter_map(value).collect()
}

fn waf(before: &TargetCounts, after: &TargetCounts) -> Option<f64> {
    let done = after.since(before);
    (done.bytes_written > 0).then(|| done.waf())
}

fn of_slice(slice: &Slice, what: &str, each_s: f64) -> Option<f64> {
    let (reads, writes) = (slice.reads.count() as f64, slice.writes.count() as f64);
    let (read, written) = (slice.bytes_read as f64 / 1e9, slice.bytes_written as f64 / 1e9);
    let rate = match what {
        "read_iops" => Some(reads),
        "write_iops" => Some(writes),
        "iops" => Some(reads + writes),
        "read_bandwidth" => Some(read),
        "write_bandwidth" => Some(written),
        "bandwidth" => Some(read + written),
        _ => None,
    };
    if let Some(rate) = rate {
        return Some(rate / each_s);
    }
    let (kind, part) = what.split_once('_')?;
    let mut latency = if kind == "write" { slice.writes.clone() } else { slice.reads.clone() };
    if kind == "io" {
        latency.merge(&slice.writes);
    }
    let (_, share) = PARTS.iter().find(|(known, _)| *known == part)?;
    let ns = match (part, share) {
        (_, Some(share)) => latency.quantile_ns(*share) as f64,
        ("max", _) => latency.max_ns() as f64,
        _ => latency.mean_ns(),
    };
    // Of no I/O there is no latency.
    (latency.count() > 0).then_some(ns / 1e6)
}

/// A figure of curves: one for each case, at each point that fits.
pub(super) fn figure(
    experiment: &Experiment,
    file: &CurveFile,
    seeds: &[Results],
) -> Result<Figure, ExperimentError> {
    let first = seeds.first().map_or(&[][..], |results| &results.cases);
    let shown = |case: &CaseResult| file.cases.is_empty() || file.cases.contains(&case.case);
    let mut series = Vec::new();
    for (at, case) in first.iter().enumerate().filter(|(_, case)| shown(case)) {
        for (number, point) in case.points.iter().enumerate() {
            if matches(&point.at, &file.at) {
                let of_seeds = seeds.iter().map(|results| &results.cases[at].points[number]);
                let found = one(experiment, file, case, point, of_seeds.collect());
                // A case that does not use a sweep is the same at each of its values.
                let is_new =
                    |new: &Series| series.iter().all(|it: &Series| it.points != new.points);
                series.extend(found.filter(is_new));
            }
        }
    }
    let axis = |label: &str, unit: &str, log| {
        let scale = if log { Scale::Log } else { Scale::Linear };
        Axis { label: label.into(), unit: unit.into(), scale, categories: None }
    };
    let (x, y) = match file.kind {
        Kind::Cdf if file.y_log => {
            (axis("latency", "ms", true), axis("I/Os that take longer", "%", true))
        }
        Kind::Cdf => (axis("latency", "ms", true), axis("I/Os that take no longer", "%", false)),
        Kind::OverTime => {
            let label = file.what().replace('_', " ");
            (axis("time", "s", false), axis(&label, metric_unit(file.what())?, file.y_log))
        }
    };
    let (id, title, note) = (file.id.clone(), file.title.clone(), file.note.clone());
    Ok(Figure { id, title, x, y, series, note })
}

/// The curve of a point, as a series; `None` if nothing was measured.
fn one(
    experiment: &Experiment,
    file: &CurveFile,
    case: &CaseResult,
    point: &PointResult,
    of_seeds: Vec<&PointResult>,
) -> Option<Series> {
    let key = file.key();
    // By x: a seed may have nothing at one of them.
    let mut places: Vec<(f64, Vec<f64>)> = Vec::new();
    for (x, y) in of_seeds.iter().filter_map(|point| point.curves.get(&key)).flatten() {
        match places.binary_search_by(|(place, _)| place.total_cmp(x)) {
            Ok(at) => places[at].1.push(*y),
            Err(at) => places.insert(at, (*x, vec![*y])),
        }
    }
    if file.kind == Kind::Cdf {
        // The last places are told only where every seed had so many I/Os.
        let most = places.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        places.retain(|(_, values)| values.len() == most);
    }
    let curve = places.iter().map(|(x, values)| (*x, mean(values)));
    let (points, error_bars): (Curve, _) = match file.kind {
        Kind::Cdf => {
            let share = |share: f64| 100.0 * if file.y_log { 1.0 - share } else { share };
            (curve.map(|(at, latency)| (latency, share(at))).collect(), None)
        }
        Kind::OverTime => {
            let bars = places.iter().map(|(_, values)| {
                let at = mean(values);
                interval(values).map_or((at, at), |it| drawn(&it, at))
            });
            (curve.collect(), (of_seeds.len() > 1).then(|| bars.collect()))
        }
    };
    if points.is_empty() {
        return None;
    }
    // What the figure fixes need not be told of each curve.
    let free = point.at.iter().filter(|(name, _)| !file.at.contains_key(name));
    let free: Vec<String> =
        free.map(|(name, value)| format!("{name} {}", text_of(value))).collect();
    let many = experiment.points().len() > 1 && !free.is_empty();
    let name = if many { format!("{}, {}", case.case, free.join(", ")) } else { case.case.clone() };
    let origin = if case.baseline { Origin::Baseline } else { Origin::Weir };
    Some(Series { name, origin, style: Style::Line, points, error_bars })
}
