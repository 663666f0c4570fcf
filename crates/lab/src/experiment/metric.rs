//! What is measured at a point: numbers by name. `reads` of one client are `CLIENT.read_mean`; the
//! same name without a client is about all clients together.

use super::ExperimentError;
use super::curves::{Course, CurveFile, curves};
use super::run::Measures;
use crate::load::{Latency, Seen};
use crate::target::{Target, TargetCounts};
use crate::tenant::Figures;
use std::collections::BTreeMap;

/// Names of the parts of a latency, and their shares where they are quantiles.
const LATENCIES: [(&str, Option<f64>); 9] = [
    ("mean", None),
    ("min", None),
    ("max", None),
    ("deviation", None),
    ("p50", Some(0.5)),
    ("p90", Some(0.9)),
    ("p99", Some(0.99)),
    ("p999", Some(0.999)),
    ("p9999", Some(0.9999)),
];

/// The unit of a metric, or an error that lists those there are.
pub fn metric_unit(metric: &str) -> Result<&'static str, ExperimentError> {
    let name = metric.rsplit('.').next().unwrap_or(metric);
    let unit = match name {
        "read_bandwidth" | "write_bandwidth" | "bandwidth" => Some("GB/s"),
        "read_each" | "write_each" => Some("MB/s"),
        "read_iops" | "write_iops" | "iops" | "bound" => Some("1/s"),
        "read_spikes" | "write_spikes" | "io_spikes" | "usable" => Some("%"),
        "errors" | "unfinished" | "erases" | "suspensions" | "waf" | "waf_capacity" => Some(""),
        "waf_gc" | "waf_all" | "alpha" | "handles" | "optimum" => Some(""),
        "over_optimum" => Some("%"),
        "tps" => Some("1/s"),
        "fdp_host_written" | "fdp_media_written" | "fdp_media_erased" | "fdp_reallocated" => {
            Some("GB")
        }
        "fdp_unit_changes" | "fdp_invalid_identifiers" => Some(""),
        _ if name.starts_with("profile_") => profile_unit(&name["profile_".len()..]),
        "unfinished_max" => Some("ms"),
        _ => name.split_once('_').and_then(|(kind, part)| {
            let known = ["read", "write", "io", "batch", "transaction"].contains(&kind)
                && LATENCIES.iter().any(|(name, _)| *name == part);
            known.then_some("ms")
        }),
    };
    unit.ok_or_else(|| {
        ExperimentError(format!(
            "metric {metric:?}: there is no such one; known are read_bandwidth, write_bandwidth, \
             bandwidth, read_each, write_each, read_iops, write_iops, iops, bound, read_spikes, write_spikes, io_spikes, errors, \
             unfinished, unfinished_max, erases, suspensions, waf, waf_capacity, waf_gc, waf_all, alpha, handles, \
             optimum, over_optimum, tps, usable, fdp_ and profile_ with what docs/experiments.md lists, and \
             read_, write_, io_, batch_ or transaction_ with mean, min, max, deviation, p50, p90, \
             p99, p999 or p9999"
        ))
    })
}

fn add_latency(values: &mut BTreeMap<String, f64>, prefix: &str, kind: &str, latency: &Latency) {
    if latency.count() == 0 {
        return;
    }
    for (part, share) in LATENCIES {
        let ns = match (part, share) {
            (_, Some(share)) => latency.quantile_ns(share) as f64,
            ("min", _) => latency.min_ns() as f64,
            ("max", _) => latency.max_ns() as f64,
            ("deviation", _) => latency.deviation_ns(),
            _ => latency.mean_ns(),
        };
        values.insert(format!("{prefix}{kind}_{part}"), ns / 1e6);
    }
}

fn add_seen(values: &mut BTreeMap<String, f64>, prefix: &str, seen: &Seen, spike_ns: u64) {
    let mut put = |name: &str, value: f64| values.insert(format!("{prefix}{name}"), value);
    put("read_bandwidth", seen.per_second(seen.bytes_read) / 1e9);
    put("write_bandwidth", seen.per_second(seen.bytes_written) / 1e9);
    put("bandwidth", seen.per_second(seen.bytes_read + seen.bytes_written) / 1e9);
    put("read_iops", seen.per_second(seen.reads_done));
    put("write_iops", seen.per_second(seen.writes_done));
    put("iops", seen.per_second(seen.reads_done + seen.writes_done));
    put("errors", seen.errors as f64);
    put("unfinished", seen.unfinished.count() as f64);
    put("unfinished_max", seen.unfinished.max_ns() as f64 / 1e6);
    if seen.reads.count() > 0 {
        put("read_spikes", 100.0 * seen.reads.share_over(spike_ns));
    }
    if seen.writes.count() > 0 {
        put("write_spikes", 100.0 * seen.writes.share_over(spike_ns));
    }
    let ios = seen.ios();
    if ios.count() > 0 {
        values.insert(format!("{prefix}io_spikes"), 100.0 * ios.share_over(spike_ns));
    }
    add_latency(values, prefix, "read", &seen.reads);
    add_latency(values, prefix, "write", &seen.writes);
    add_latency(values, prefix, "io", &ios);
    add_latency(values, prefix, "batch", &seen.batches);
    add_latency(values, prefix, "transaction", &seen.transactions);
    let transactions = seen.transactions.count();
    if transactions > 0 {
        values.insert(format!("{prefix}tps"), seen.per_second(transactions as f64));
    }
}

/// Name, unit, and how it follows from a profile.
type ProfileMetric = (&'static str, &'static str, fn(&Figures) -> f64);

const PROFILE: [ProfileMetric; 13] = [
    ("size_mean", "KiB", |figures| figures.size_mean / 1024.0),
    ("size_p50", "KiB", |figures| figures.size_p50 / 1024.0),
    ("small", "%", |figures| 100.0 * figures.small),
    ("sequential", "%", |figures| 100.0 * figures.sequential),
    ("flushes", "", |figures| figures.flushes),
    ("overwrites", "%", |figures| 100.0 * figures.overwrites),
    ("near", "%", |figures| 100.0 * figures.near),
    ("distance_p50", "%", |figures| figures.distance(1)),
    ("distance_p75", "%", |figures| figures.distance(2)),
    ("top_hundredth", "%", |figures| 100.0 * figures.top[0]),
    ("top_tenth", "%", |figures| 100.0 * figures.top[1]),
    ("trimmed", "%", |figures| 100.0 * figures.trimmed),
    ("writes_per_block", "", |figures| figures.blocks_written as f64 / figures.footprint as f64),
];

fn profile_unit(name: &str) -> Option<&'static str> {
    PROFILE.iter().find(|(known, ..)| *known == name).map(|(_, unit, _)| *unit)
}

/// What a tenant did to its part.
pub(super) fn add_profile(values: &mut BTreeMap<String, f64>, tenant: &str, figures: &Figures) {
    for (name, _, of) in PROFILE {
        values.insert(format!("{tenant}.profile_{name}"), of(figures));
    }
}

/// What decides which figures a point has.
pub(super) struct Wanted<'a> {
    /// A latency above it is a spike.
    pub spike_ns: u64,
    pub curves: &'a [CurveFile],
}

/// Everything measured at a point.
pub(super) fn metrics(
    clients: &[(String, u32, Seen)],
    before: TargetCounts,
    target: &dyn Target,
    course: &Course<'_>,
    wanted: &Wanted<'_>,
) -> Measures {
    let spike_ns = wanted.spike_ns;
    let mut values = BTreeMap::new();
    let mut all = Seen::default();
    for (name, threads, seen) in clients {
        add_seen(&mut values, &format!("{name}."), seen, spike_ns);
        for (kind, bytes) in [("read", seen.bytes_read), ("write", seen.bytes_written)] {
            let each = seen.per_second(bytes) / 1e6 / f64::from(*threads);
            values.insert(format!("{name}.{kind}_each"), each);
        }
        all.merge(seen);
    }
    add_seen(&mut values, "", &all, spike_ns);
    let after = target.counts();
    let programmed = after.bytes_programmed - before.bytes_programmed;
    let written = after.bytes_written - before.bytes_written;
    if written > 0 {
        values.insert("waf".into(), programmed as f64 / written as f64);
        let fast = after.bytes_programmed_fast - before.bytes_programmed_fast;
        values.insert("waf_capacity".into(), (programmed - fast) as f64 / written as f64);
        let relocated = after.bytes_relocated - before.bytes_relocated;
        values.insert("waf_gc".into(), 1.0 + relocated as f64 / written as f64);
    }
    let waf = values.get("waf").copied().unwrap_or(1.0);
    let rates = (values.get("read_iops"), values.get("write_iops"));
    if let (Some(&reads), Some(&writes)) = rates
        && let Some(bound) = target.bound(reads, writes, waf)
    {
        values.insert("bound".into(), bound);
    }
    values.insert("usable".into(), 100.0 * target.bytes() as f64 / target.flash_bytes() as f64);
    values.insert("erases".into(), (after.erases - before.erases) as f64);
    values.insert("suspensions".into(), (after.suspensions - before.suspensions) as f64);
    if let Some(fdp) = target.fdp() {
        let mut put = |name: &str, value: f64| values.insert(format!("fdp_{name}"), value);
        put("host_written", fdp.host_bytes_written as f64 / 1e9);
        put("media_written", fdp.media_bytes_written as f64 / 1e9);
        put("media_erased", fdp.media_bytes_erased as f64 / 1e9);
        put("reallocated", fdp.media_bytes_reallocated as f64 / 1e9);
        put("unit_changes", fdp.unit_changes as f64);
        put("invalid_identifiers", fdp.invalid_identifiers as f64);
    }
    Measures { values, curves: curves(wanted.curves, clients, &all, course) }
}
