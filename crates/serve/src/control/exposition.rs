//! In which form Prometheus gets its metrics, and what the encoder has no table for: latencies and the build.
//!
//! Prometheus' own text format is what is told unless the client prefers OpenMetrics, or the binary form. All are made
//! of one encoding: the older text names counters in full where it tells their type, and has no end mark.

use super::protobuf;
use crate::latency::{BOUNDS_NS, Op, Series, within};
use flash::SECOND;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Arc;

/// A form of the metrics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Prometheus' text format, 0.0.4.
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' binary form, which has native histograms.
    Protobuf,
}

impl Format {
    /// What a client wants that says `accept`.
    pub fn wanted(accept: &str) -> Self {
        let weight = |wanted: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next()?;
                let weight =
                    parts.clone().find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
                // Of the binary form there are others: of other messages, and as text.
                let is_other = |part: &str| match part.split_once('=') {
                    Some(("proto", message)) => message != MESSAGE,
                    Some(("encoding", encoding)) => encoding != "delimited",
                    _ => false,
                };
                (name == wanted && !parts.any(is_other)).then_some(weight.unwrap_or(1.0))
            });
            ranges.fold(0.0, f32::max)
        };
        let open = weight("application/openmetrics-text");
        let binary = weight(PROTOBUF);
        let plain = weight("text/plain").max(weight("text/*")).max(weight("*/*"));
        match () {
            () if binary > 0.0 && binary >= plain.max(open) => Self::Protobuf,
            () if open > 0.0 && open >= plain => Self::OpenMetrics,
            () => Self::Plain,
        }
    }

    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// This form of what the encoder made of all metrics, and of these latencies.
    pub fn of(self, open: String, durations: &[(String, Op, Series)]) -> Vec<u8> {
        match self {
            Self::OpenMetrics => open.into_bytes(),
            Self::Plain => plain(&open).into_bytes(),
            Self::Protobuf => protobuf::encode(&open, &format!("weir_{DURATIONS}"), durations),
        }
    }
}

/// The name of the binary form, and of what it holds.
const PROTOBUF: &str = "application/vnd.google.protobuf";
const MESSAGE: &str = "io.prometheus.client.MetricFamily";

fn plain(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + 1024);
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            continue;
        }
        // The help comes before the type.
        let words = |line: &str| line.splitn(4, ' ').map(str::to_owned).collect::<Vec<_>>();
        let head = words(line);
        let counts = match (&head[..], lines.peek().map(|next| words(next))) {
            ([_, kind, ..], Some(next)) if kind == "HELP" => {
                next.last().is_some_and(|kind| kind == "counter")
            }
            ([_, kind, _, of], _) if kind == "TYPE" => of == "counter",
            _ => false,
        };
        match &head[..] {
            [mark, kind, name, rest] if counts => {
                text.push_str(&format!("{mark} {kind} {name}_total {rest}\n"));
            }
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

/// The name of the latencies, without prefix.
const DURATIONS: &str = "request_duration_seconds";

/// `weir_request_duration_seconds`, by volume and operation.
#[derive(Debug)]
pub struct Durations(pub Arc<[(String, Op, Series)]>);

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        const HELP: &str = "Time from a request's header to its reply, which the kernel had taken";
        let mut metric = encoder.encode_descriptor(DURATIONS, HELP, None, MetricType::Histogram)?;
        for (volume, op, series) in &*self.0 {
            let count = series.count();
            let (mut buckets, mut below) = (Vec::new(), 0);
            for (bound, within) in BOUNDS_NS.into_iter().zip(within(series)) {
                buckets.push((seconds(bound), within - below));
                below = within;
            }
            buckets.push((f64::INFINITY, count - below));
            let labels = [("volume", volume.as_str()), ("op", op.name())];
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                seconds(series.sum_ns),
                count,
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Counters of what volumes were asked.
#[derive(Debug)]
pub struct Asked {
    /// The name, without prefix and `_total`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// By volume and, where they are told apart, operation.
    pub values: Vec<(String, Option<Op>, u64)>,
}

impl Collector for Asked {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        for (volume, op, value) in &self.values {
            let volume = [("volume", volume.as_str())].into_iter();
            let labels: Vec<_> = volume.chain(op.map(|op| ("op", op.name()))).collect();
            metric
                .encode_family(&labels.as_slice())?
                .encode_counter::<NoLabelSet, u64, u64>(value, None)?;
        }
        Ok(())
    }
}

/// `weir_build_info`: what serves.
#[derive(Debug)]
pub struct Build;

impl Collector for Build {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        const HELP: &str = "1, with the version of the server as a label";
        let mut metric = encoder.encode_descriptor("build_info", HELP, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        metric.encode_family(&labels)?.encode_gauge(&1u64)
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_form_that_it_prefers_and_plain_text_unless_it_says_so() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let old = "text/plain;version=0.0.4;q=0.8,application/openmetrics-text;q=0.3";
        for (accept, wanted) in [
            ("", Format::Plain),
            ("*/*", Format::Plain),
            ("text/html,*/*;q=0.8", Format::Plain),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Plain),
            (
                &*format!(
                    "{PROTOBUF};proto=io.prometheus.client.MetricFamily;encoding=delimited,{prometheus}"
                ),
                Format::Protobuf,
            ),
            (&*format!("{PROTOBUF};q=0.4,{prometheus}"), Format::OpenMetrics),
            (
                &*format!("{PROTOBUF};proto={MESSAGE};encoding=text,{prometheus}"),
                Format::OpenMetrics,
            ),
            (&*format!("{PROTOBUF};encoding=compact-text"), Format::Plain),
            (&*format!("{PROTOBUF};proto=io.prometheus.client.Metric"), Format::Plain),
            (prometheus, Format::OpenMetrics),
            (old, Format::Plain),
        ] {
            assert_eq!(Format::wanted(accept), wanted, "{accept}");
        }
    }

    #[test]
    fn plain_text_names_counters_whole_and_has_no_end_mark() {
        let open = "# HELP a Of b c.\n# TYPE a counter\na_total 1\n# HELP g G.\n# TYPE g gauge\ng 2\n# EOF\n";
        let told = "# HELP a_total Of b c.\n# TYPE a_total counter\na_total 1\n# HELP g G.\n# TYPE g gauge\ng 2\n";
        assert_eq!(Format::Plain.of(open.into(), &[]), told.as_bytes());
        assert_eq!(Format::OpenMetrics.of(open.into(), &[]), open.as_bytes());
    }
}
