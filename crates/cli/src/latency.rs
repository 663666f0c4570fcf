//! Latencies as the status has them, for people.

use crate::output::table;
use crate::size::{bytes, count};
use serde_json::{Map, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    let stages = ops(&status["latency"]["stages"]);
    for (stage, shown) in STAGES {
        let of = stages.get(stage).map(ops).unwrap_or_default();
        // What took none of anybody's time is no news.
        for (op, times) in of.into_iter().filter(|(_, times)| times["max_ns"] != 0) {
            rows.push(row(format!("  {op}: {shown}"), &times));
        }
    }
    let mut heads = vec!["  latency".to_owned(), "requests".to_owned()];
    heads.extend(COLUMNS.map(|(head, _)| head.to_owned()));
    rows.insert(0, heads);
    table(&rows)
}

/// The stages of a request in the order of its life, and those within the device.
const STAGES: [(&str, &str); 7] = [
    ("admission", "admission"),
    ("device", "device, of which"),
    ("place", "- place"),
    ("queue", "- queue"),
    ("medium", "- medium"),
    ("safety", "- safety"),
    ("reply", "reply"),
];

/// The slowest requests of the last minutes, and why; nothing where none was slow.
pub fn slow_text(status: &Value) -> String {
    let slow = crate::status::array(&status["slow"]);
    if slow.is_empty() {
        return String::new();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = |request: &Value| {
        let at_ms = request["at_unix_ms"].as_u64().unwrap_or(0);
        let ago = Duration::from_millis((now.as_millis() as u64).saturating_sub(at_ms));
        let word = |key: &str| request[key].as_str().unwrap_or_default();
        let number = |key: &str| request[key].as_u64().unwrap_or(0);
        // A flush has neither offset nor length.
        let place = match number("length") {
            0 => String::new(),
            length => format!("{} at {} of ", bytes(length), number("offset")),
        };
        format!(
            "  {} ago: {} of {place}{}, {}\n",
            crate::status::ago(ago.as_nanos() as u64),
            word("op"),
            word("volume"),
            word("told"),
        )
    };
    let lines: String = slow.iter().map(line).collect();
    format!("slowest requests of the last ten minutes (more of them: GET /slow)\n{lines}")
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
    use super::{slow_text, text, time};
    use serde_json::json;

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        let told = [0.0, 999.0, 1500.0, 73_400.0, 250_000.0, 1_234_000.0, 12e9].map(time);
        assert_eq!(told, ["0 ns", "999 ns", "1.50 µs", "73.4 µs", "250 µs", "1.23 ms", "12.0 s"]);
    }

    #[test]
    fn slow_requests_are_told_with_what_they_waited_for() {
        assert_eq!(slow_text(&json!({ "slow": [] })), "");
        let told = "8.2 ms: waited 7.9 ms for an erase of unit 7";
        let slow = json!({
            "at_unix_ms": u64::MAX, "volume": "default", "op": "read", "offset": 8192,
            "length": 4096, "total_us": 8200.0, "why": [], "told": told,
        });
        let text = slow_text(&json!({ "slow": [slow] }));
        let line = format!("  0 s ago: read of 4 KiB at 8192 of default, {told}\n");
        assert!(text.ends_with(&line), "{text}");
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
