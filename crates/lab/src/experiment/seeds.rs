//! One experiment measured with several seeds: means, and how sure they are.

use super::{CaseResult, PointResult, Results};
use crate::report::{Interval, student_t};
use std::collections::BTreeMap;

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// In which the mean lies at 95 % if the seeds' values spread normally; `None` for one value.
pub(super) fn interval(values: &[f64]) -> Option<Interval> {
    let freedom = values.len().checked_sub(1).filter(|&freedom| freedom > 0)?;
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let half = student_t(freedom) * (squares / freedom as f64 / values.len() as f64).sqrt();
    Some(Interval { low: mean - half, high: mean + half, seeds: values.len() as u32 })
}

/// The means of what was measured with each seed, with their intervals.
pub(super) fn combined(seeds: &[Results]) -> Results {
    let Some(first) = seeds.first() else { return Results { cases: Vec::new() } };
    let point = |case: usize, at: usize| PointResult {
        at: first.cases[case].points[at].at.clone(),
        ..of_point(seeds.iter().map(|results| &results.cases[case].points[at]))
    };
    let cases = first.cases.iter().enumerate().map(|(case, result)| CaseResult {
        points: (0..result.points.len()).map(|at| point(case, at)).collect(),
        ..result.clone()
    });
    Results { cases: cases.collect() }
}

fn of_point<'a>(seeds: impl Iterator<Item = &'a PointResult>) -> PointResult {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (metric, &value) in seeds.flat_map(|point| &point.values) {
        all.entry(metric).or_default().push(value);
    }
    let mut point = PointResult::default();
    for (metric, values) in all {
        point.values.insert(metric.clone(), mean(&values));
        point.intervals.extend(interval(&values).map(|interval| (metric.clone(), interval)));
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students_and_one_seed_has_none() {
        // Mean 12, standard deviation sqrt(2.5), five values.
        let found = interval(&[10.0, 11.0, 12.0, 13.0, 14.0]).unwrap();
        assert!((found.low - 10.037).abs() < 0.001 && (found.high - 13.963).abs() < 0.001);
        assert_eq!(found.seeds, 5);
        assert_eq!(interval(&[3.0]), None);
    }

    #[test]
    fn points_are_combined_metric_by_metric() {
        let of = |values: &[(&str, f64)]| PointResult {
            values: values.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            ..PointResult::default()
        };
        let results = |values: &[(&str, f64)]| Results {
            cases: vec![CaseResult { case: "a".into(), baseline: true, points: vec![of(values)] }],
        };
        let all = combined(&[results(&[("iops", 1.0), ("waf", 2.0)]), results(&[("iops", 4.0)])]);
        let point = &all.cases[0].points[0];
        assert_eq!(point.values["iops"], 2.5);
        assert_eq!(point.intervals["iops"].seeds, 2);
        assert!(point.intervals["iops"].low < 1.0 && point.intervals["iops"].high > 4.0);
        // One seed only: no such I/O ended with the other.
        assert_eq!((point.values["waf"], point.intervals.get("waf")), (2.0, None));
    }
}
