//! What people and other programs are told of a histogram.

use super::Series;
use flash::{MICROSECOND, SECOND};
use serde_json::{Value, json};

/// A [`Series`] in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Requests.
    pub count: u64,
    /// Their mean, in nanoseconds.
    pub mean_ns: f64,
    /// The 50th, 90th, 99th, 99.9th and 99.99th percentile.
    pub percentiles_ns: [u64; 5],
    /// The longest one.
    pub max_ns: u64,
}

/// As the status names them, and what they are.
const PERCENTILES: [(&str, f64); 5] =
    [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999), ("p9999_ns", 0.9999)];

impl Summary {
    /// Of what was counted.
    pub fn of(series: &Series) -> Self {
        let histogram = series.histogram();
        let count = histogram.len();
        Self {
            count,
            mean_ns: series.sum_ns as f64 / count.max(1) as f64,
            percentiles_ns: PERCENTILES
                .map(|(_, share)| histogram.value_at_quantile(share).min(series.max_ns)),
            max_ns: series.max_ns,
        }
    }

    /// As the status has it.
    pub fn json(&self) -> Value {
        let mut value =
            json!({ "count": self.count, "mean_ns": self.mean_ns, "max_ns": self.max_ns });
        for ((name, _), ns) in PERCENTILES.iter().zip(self.percentiles_ns) {
            value[*name] = ns.into();
        }
        value
    }
}

/// The upper bounds of the classic histogram, from 10 µs to 10 s in steps of 1, 2.5 and 5.
pub const BOUNDS_NS: [u64; 19] = bounds();

const fn bounds() -> [u64; 19] {
    let mut bounds = [0; 19];
    let (mut at, mut ten) = (0, 10 * MICROSECOND);
    while at < bounds.len() {
        bounds[at] = match at % 3 {
            0 => ten,
            1 => ten * 5 / 2,
            _ => ten * 5,
        };
        if at % 3 == 2 {
            ten *= 10;
        }
        at += 1;
    }
    bounds
}
const _: () = assert!(BOUNDS_NS[18] == 10 * SECOND);

/// For each of [`BOUNDS_NS`] how many took no longer, to the 1 % of a histogram's step.
pub fn within(series: &Series) -> [u64; BOUNDS_NS.len()] {
    let mut counts = [0; BOUNDS_NS.len()];
    let (mut at, mut sum) = (0, 0);
    let histogram = series.histogram();
    for step in histogram.iter_recorded() {
        while at < counts.len() && BOUNDS_NS[at] < step.value_iterated_to() {
            counts[at] = sum;
            at += 1;
        }
        sum += step.count_since_last_iteration();
    }
    counts[at..].fill(sum);
    counts
}
