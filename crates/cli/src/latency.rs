//! Latencies as the status has them, for people.

use crate::output::table;
use crate::size::count;
use serde_json::{Map, Value};

/// The columns, and the keys of the status.
const COLUMNS: [(&str, &str); 7] = [
    ("mean", "mean_ns"),
    ("p50", "p50_ns"),
    ("p90", "p90_ns"),
    ("p99", "p99_ns"),
    ("p99.9", "p999_ns"),
    ("p99.99", "p9999_ns"),
    ("max", "max_ns"),
];

/// How long the requests of each volume took, and where the time of all went; nothing before the first request.
pub fn text(status: &Value) -> String {
    let empty = Map::new();
    let ops = |of: &Value| of.as_object().unwrap_or(&empty).clone();
    let mut rows = Vec::new();
    for volume in crate::status::array(&status["volumes"]) {
        let name = volume["name"].as_str().unwrap_or_default();
        for (op, times) in ops(&volume["latency"]) {
            rows.push(row(format!("  {name} {op}"), &times));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    for (stage, of) in ops(&status["latency"]["stages"]) {
        for (op, times) in ops(&of) {
            rows.push(row(format!("  {op}: {stage}"), &times));
        }
    }
    let mut heads = vec!["  latency".to_owned(), "requests".to_owned()];
    heads.extend(COLUMNS.map(|(head, _)| head.to_owned()));
    rows.insert(0, heads);
    table(&rows)
}

fn row(name: String, times: &Value) -> Vec<String> {
    let mut row = vec![name, count(times["count"].as_u64().unwrap_or(0))];
    row.extend(COLUMNS.map(|(_, key)| time(times[key].as_f64().unwrap_or(0.0))));
    row
}

/// A time of nanoseconds, with three digits.
pub fn time(ns: f64) -> String {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3)];
    let (unit, value) = units
        .into_iter()
        .find(|(_, size)| ns >= *size)
        .map_or(("ns", ns), |(unit, size)| (unit, ns / size));
    let digits = if value >= 100.0 || unit == "ns" {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::{text, time};
    use serde_json::json;

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let told = [0.0, 999.0, 1500.0, 73_400.0, 250_000.0, 1_234_000.0, 12e9].map(time);
        assert_eq!(told, ["0 ns", "999 ns", "1.50 µs", "73.4 µs", "250 µs", "1.23 ms", "12.0 s"]);
    }

    #[test]
    fn what_was_never_asked_has_no_row() {
        let times = json!({ "count": 2, "p50_ns": 1500, "max_ns": 2e6 });
        let volumes =
            json!([{ "name": "a", "latency": {} }, { "name": "b", "latency": { "read": times } }]);
        let stages = json!({ "device": { "read": times } });
        let told = text(&json!({ "volumes": volumes, "latency": { "stages": stages } }));
        assert!(told.contains("  b read") && told.contains("read: device"), "{told}");
        assert!(!told.contains("  a "), "{told}");
        assert_eq!(text(&json!({ "volumes": [] })), "");
    }
}
