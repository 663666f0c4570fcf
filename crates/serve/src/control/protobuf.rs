//! Prometheus' binary form of the metrics (`io.prometheus.client.MetricFamily`, delimited): the only one in which a
//! scrape has native histograms. Who asks for it gets all families in it, made of the same encoding as the text, and the
//! latencies both as a classic and as a native histogram.

use crate::latency::{Op, Series};
use flash::SECOND;

/// Steps of a native histogram between one power of two and the next: 2^3, so that a bucket is 9 % wide.
const SCHEMA: i32 = 3;
/// Below this no native bucket is told of: nothing that is timed takes so short.
const ZERO_SECONDS: f64 = 1e-12;

/// The types of a family, by the number that the form has for them.
const COUNTER: u64 = 0;
const GAUGE: u64 = 1;
const HISTOGRAM: u64 = 4;

/// All metrics of an OpenMetrics text of ours; the family `native` is of `durations`, too.
pub fn encode(open: &str, native: &str, durations: &[(String, Op, Series)]) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families(open) {
        let mut told = Message::default();
        told.text(1, &family.told_name());
        told.text(2, &family.help);
        told.number(3, family.kind);
        for metric in family.metrics() {
            let series = || {
                let of = |name: &str| metric.labels.iter().find(|label| label.0 == name);
                let (volume, op) = (&of("volume")?.1, &of("op")?.1);
                durations.iter().find(|one| one.0 == *volume && one.1.name() == op)
            };
            let series = (family.name == native).then(series).flatten();
            told.message(4, &metric.told(family.kind, series.map(|(_, _, series)| series)));
        }
        varint(&mut out, told.0.len() as u64);
        out.extend(told.0);
    }
    out
}

/// A family of metrics as its lines have it.
#[derive(Default)]
struct Family {
    name: String,
    help: String,
    kind: u64,
    samples: Vec<Sample>,
}

/// A line.
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// One metric of a family: the lines that have the same labels.
struct Metric {
    labels: Vec<(String, String)>,
    value: f64,
    /// Of a histogram: upper bounds and how many are not above.
    buckets: Vec<(f64, u64)>,
    count: u64,
}

fn families(open: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(what), Some(name), Some(told)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if families.last().is_none_or(|family| family.name != name) {
                families.push(Family { name: name.into(), ..Family::default() });
            }
            let family = families.last_mut().expect("it was pushed");
            match what {
                "HELP" => family.help = unescaped(told),
                "TYPE" => {
                    family.kind = match told {
                        "counter" => COUNTER,
                        "histogram" => HISTOGRAM,
                        _ => GAUGE,
                    }
                }
                _ => {}
            }
        } else if let (Some(family), Some(sample)) = (families.last_mut(), sample(line)) {
            family.samples.push(sample);
        }
    }
    families
}

/// A line of a sample: `name{label="value",...} number`.
fn sample(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = head.split_once('{') else {
        return Some(Sample { name: head.into(), labels: Vec::new(), value });
    };
    let mut rest = labels.strip_suffix('}')?;
    let mut labels = Vec::new();
    while let Some((label, after)) = rest.split_once("=\"") {
        // The quotation mark that no stroke goes before, but for pairs of strokes.
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        labels.push((label.trim_start_matches(',').into(), unescaped(&after[..end])));
        rest = &after[end + 1..];
    }
    Some(Sample { name: name.into(), labels, value })
}

fn unescaped(text: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = chars.next() {
        match (c, (c == '\\').then(|| chars.next()).flatten()) {
            ('\\', Some('n')) => out.push('\n'),
            (_, Some(escaped)) => out.push(escaped),
            (c, None) => out.push(c),
        }
    }
    out
}

impl Family {
    /// Of counters the text has the name without what its lines end with.
    fn told_name(&self) -> String {
        if self.kind == COUNTER { format!("{}_total", self.name) } else { self.name.clone() }
    }

    /// Lines of the same labels are one metric. They lie together.
    fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> = Vec::new();
        for sample in &self.samples {
            let (bounds, labels): (Vec<_>, Vec<_>) = sample
                .labels
                .iter()
                .cloned()
                .partition(|(name, _)| name == "le" && self.kind == HISTOGRAM);
            if metrics.last().is_none_or(|metric| metric.labels != labels) {
                metrics.push(Metric { labels, value: 0.0, buckets: Vec::new(), count: 0 });
            }
            let metric = metrics.last_mut().expect("it was pushed");
            match bounds.first() {
                Some((_, bound)) => {
                    metric
                        .buckets
                        .push((bound.parse().unwrap_or(f64::INFINITY), sample.value as u64));
                }
                None if self.kind == HISTOGRAM && sample.name.ends_with("_count") => {
                    metric.count = sample.value as u64;
                }
                None => metric.value = sample.value,
            }
        }
        metrics
    }
}

impl Metric {
    fn told(&self, kind: u64, native: Option<&Series>) -> Message {
        let mut told = Message::default();
        for (name, value) in &self.labels {
            let mut pair = Message::default();
            pair.text(1, name);
            pair.text(2, value);
            told.message(1, &pair);
        }
        let mut value = Message::default();
        if kind != HISTOGRAM {
            value.double(1, self.value);
            told.message(if kind == COUNTER { 3 } else { 2 }, &value);
            return told;
        }
        value.number(1, self.count);
        value.double(2, self.value);
        for &(bound, count) in &self.buckets {
            let mut bucket = Message::default();
            bucket.number(1, count);
            bucket.double(2, bound);
            value.message(3, &bucket);
        }
        if let Some(series) = native {
            tell_native(&mut value, series);
        }
        told.message(7, &value);
        told
    }
}

/// Buckets whose bounds are powers of 2^(1/8), those that are empty left out.
fn tell_native(histogram: &mut Message, series: &Series) {
    histogram.signed(5, SCHEMA.into());
    histogram.double(6, ZERO_SECONDS);
    histogram.number(7, 0);
    let mut buckets: Vec<(i64, i64)> = Vec::new();
    for step in series.histogram().iter_recorded() {
        let seconds = step.value_iterated_to().max(1) as f64 / SECOND as f64;
        let index = (seconds.log2() * f64::from(1 << SCHEMA)).ceil() as i64;
        let count = step.count_since_last_iteration() as i64;
        match buckets.last_mut() {
            Some(last) if last.0 == index => last.1 += count,
            _ => buckets.push((index, count)),
        }
    }
    // A span is a run of buckets, told by how many are left out before it.
    let (mut next, mut spans): (i64, Vec<(i64, u64)>) = (0, Vec::new());
    for &(index, _) in &buckets {
        match spans.last_mut() {
            Some(span) if index == next => span.1 += 1,
            _ => spans.push((index - next, 1)),
        }
        next = index + 1;
    }
    for (offset, length) in spans {
        let mut span = Message::default();
        span.signed(1, offset);
        span.number(2, length);
        histogram.message(12, &span);
    }
    let mut before = 0;
    for (_, count) in buckets {
        histogram.signed(13, count - before);
        before = count;
    }
}

/// The fields of a message, as Protocol Buffers write them.
#[derive(Default)]
struct Message(Vec<u8>);

/// How a field is written.
const VARINT: u64 = 0;
const FIXED: u64 = 1;
const BYTES: u64 = 2;

impl Message {
    fn number(&mut self, field: u64, value: u64) {
        varint(&mut self.0, field << 3 | VARINT);
        varint(&mut self.0, value);
    }

    /// Small whether it is above or below zero.
    fn signed(&mut self, field: u64, value: i64) {
        self.number(field, ((value << 1) ^ (value >> 63)) as u64);
    }

    fn double(&mut self, field: u64, value: f64) {
        varint(&mut self.0, field << 3 | FIXED);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    fn message(&mut self, field: u64, value: &Self) {
        self.bytes(field, &value.0);
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        varint(&mut self.0, field << 3 | BYTES);
        varint(&mut self.0, value.len() as u64);
        self.0.extend(value);
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_its_labels_whatever_is_in_them() {
        let sample =
            sample(r#"weir_x_total{volume="a\"b\\",op="read, =\"x"} 2.5"#).expect("a sample");
        assert_eq!((sample.name.as_str(), sample.value), ("weir_x_total", 2.5));
        let labels = [("volume", "a\"b\\"), ("op", "read, =\"x")];
        assert_eq!(sample.labels, labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(super::sample("weir_x").is_none());
    }

    #[test]
    fn numbers_are_written_as_protocol_buffers_have_them() {
        let mut message = Message::default();
        message.number(1, 300);
        message.signed(5, -3);
        message.text(2, "ab");
        assert_eq!(message.0, [0x08, 0xac, 0x02, 0x28, 0x05, 0x12, 2, b'a', b'b']);
    }

    #[test]
    fn families_have_their_metrics_and_counters_their_whole_names() {
        let open = "# HELP weir_a Of a.\n# TYPE weir_a counter\nweir_a_total{shard=\"0\"} 1\nweir_a_total{shard=\"1\"} 2\n\
                    # HELP weir_h H.\n# TYPE weir_h histogram\nweir_h_sum{op=\"read\"} 3.0\nweir_h_count{op=\"read\"} 4\n\
                    weir_h_bucket{le=\"0.5\",op=\"read\"} 1\nweir_h_bucket{le=\"+Inf\",op=\"read\"} 4\n# EOF\n";
        let families = families(open);
        let names: Vec<String> = families.iter().map(Family::told_name).collect();
        assert_eq!(names, ["weir_a_total", "weir_h"]);
        assert_eq!(families[0].metrics().len(), 2);
        let [histogram] = &families[1].metrics()[..] else { panic!("one histogram") };
        assert_eq!((histogram.count, histogram.value), (4, 3.0));
        assert_eq!(histogram.buckets, [(0.5, 1), (f64::INFINITY, 4)]);
    }
}
