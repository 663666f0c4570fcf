//! One look at the shards, and what the difference of two tells. Pure.

use crate::ShardStatus;
use crate::control::reasons::filled;
use crate::latency::{ByOp, Latencies, Op, Series, Summary};
use crate::runtime::shard::CoreStatus;
use flash::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::time::Instant;

/// What a row has, beside when it ends. Names are stable: the file has them too.
pub const COLUMNS: [&str; 31] = [
    "read_per_sec",
    "write_per_sec",
    "flush_per_sec",
    "read_bytes_per_sec",
    "write_bytes_per_sec",
    "read_p50_ns",
    "read_p99_ns",
    "read_p999_ns",
    "read_max_ns",
    "write_p50_ns",
    "write_p99_ns",
    "write_p999_ns",
    "write_max_ns",
    "host_bytes_per_sec",
    "gc_bytes_per_sec",
    "destage_bytes_per_sec",
    "kept_bytes_per_sec",
    "padding_bytes_per_sec",
    "checkpoint_bytes_per_sec",
    "other_bytes_per_sec",
    "fast_bytes_per_sec",
    "programmed_bytes_per_sec",
    "waf",
    "erases_per_sec",
    "victims_per_sec",
    "throttled_per_sec",
    "errors_per_sec",
    "bands_free",
    "bands_free_low",
    "fast_fill",
    "mapped_share",
];

/// Of [`COLUMNS`], those by which bytes are programmed for a reason: together they are all.
#[cfg(test)]
pub const REASONS: std::ops::Range<usize> = 13..20;

/// A look at the shards: counters since the mount, and how things are.
pub struct Snapshot {
    pub at: Instant,
    pub at_unix_ms: u64,
    counters: BTreeMap<&'static str, u64>,
    /// What its volumes were asked since the mount.
    pub asked: Latencies,
    /// Bands of the fast tier that hold data, and all that it has.
    fast_bands: Option<(u32, u32)>,
    /// Some shard is an FTL. Raw units move nothing by themselves, so they have neither WAF, victims nor bands.
    moves: bool,
}

/// What happened from one look to the next, in the order of [`COLUMNS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub at_unix_ms: u64,
    pub values: [Option<f32>; COLUMNS.len()],
}

impl Snapshot {
    /// Of all shards together, now.
    pub fn of(shards: &[ShardStatus], at_unix_ms: u64) -> Self {
        let (mut counters, mut asked) = (BTreeMap::new(), Latencies::default());
        let (mut fast_bands, mut moves) = (None, false);
        for shard in shards {
            moves |= matches!(shard.core, CoreStatus::Block(_));
            for (name, value) in shard.core.counters() {
                *counters.entry(*name).or_insert(0) += value;
            }
            asked.add(&shard.latencies);
            if let CoreStatus::Block(status) = &shard.core
                && let Some(tier) = &status.tier
            {
                let (used, all) = fast_bands.unwrap_or((0, 0));
                fast_bands = Some((used + tier.bands - tier.bands_free, all + tier.bands));
            }
        }
        Self { at: Instant::now(), at_unix_ms, counters, asked, fast_bands, moves }
    }

    /// Never 0, so that rates are numbers.
    pub fn seconds_since(&self, before: &Self) -> f64 {
        self.at.duration_since(before.at).as_secs_f64().max(1e-3)
    }

    /// What was asked since: the part of the latencies that `find` finds, if anything was.
    pub fn asked_since<'a>(
        &'a self,
        before: &'a Self,
        find: impl Fn(&'a BTreeMap<usize, ByOp>) -> Option<&'a Series>,
    ) -> Option<Series> {
        let mut series = find(&self.asked.volumes)?.clone();
        if let Some(before) = find(&before.asked.volumes) {
            series.subtract(before);
        }
        (series.count() > 0).then_some(series)
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Of an operation over all volumes.
    fn whole(&self, op: Op) -> Series {
        let mut whole = Series::default();
        let all = self.asked.volumes.values().chain([&self.asked.gone]);
        let mine = all.filter_map(|volume| volume[op as usize].as_ref());
        mine.for_each(|series| whole.add(series));
        whole
    }
}

impl Row {
    /// What happened between two looks.
    pub fn between(before: &Snapshot, now: &Snapshot) -> Self {
        let seconds = now.seconds_since(before);
        let mut values = [None; COLUMNS.len()];
        let mut set = |name: &str, value: f64| {
            let index = COLUMNS.iter().position(|column| *column == name);
            values[index.expect("a column")] = Some(value as f32);
        };
        for (op, name) in [(Op::Read, "read"), (Op::Write, "write"), (Op::Flush, "flush")] {
            let mut asked = now.whole(op);
            asked.subtract(&before.whole(op));
            let summary = Summary::of(&asked);
            set(&format!("{name}_per_sec"), summary.count as f64 / seconds);
            if op == Op::Flush {
                continue;
            }
            set(&format!("{name}_bytes_per_sec"), asked.bytes as f64 / seconds);
            let [p50, _, p99, p999, _] = summary.percentiles_ns;
            let told = [("p50", p50), ("p99", p99), ("p999", p999), ("max", summary.max_ns)];
            for (which, ns) in told.into_iter().filter(|_| summary.count > 0) {
                set(&format!("{name}_{which}_ns"), ns as f64);
            }
        }
        let grown = |name: &str| now.counter(name).saturating_sub(before.counter(name));
        let bytes = |slots: u64| (slots * BLOCK_BYTES as u64) as f64 / seconds;
        let (host, programmed) = (grown("host_blocks_written"), grown("slots_programmed"));
        set("programmed_bytes_per_sec", bytes(programmed));
        set("erases_per_sec", grown("erases") as f64 / seconds);
        set("errors_per_sec", grown("host_errors") as f64 / seconds);
        if now.moves {
            let parts = filled(grown);
            // What no counter names: pages of padding only, headers of bands, and copies that a host's write overtook.
            let named: u64 = parts.iter().map(|(_, slots)| slots).sum();
            for (reason, slots) in
                parts.into_iter().chain([("other", programmed.saturating_sub(named))])
            {
                set(&format!("{reason}_bytes_per_sec"), bytes(slots));
            }
            set("fast_bytes_per_sec", bytes(grown("fast_slots_programmed")));
            set("victims_per_sec", grown("victims") as f64 / seconds);
            let throttled = grown("writes_throttled") + grown("writes_behind_destage");
            set("throttled_per_sec", throttled as f64 / seconds);
            set("bands_free", now.counter("bands_free") as f64);
            set("bands_free_low", now.counter("bands_free_low") as f64);
            if host > 0 {
                set("waf", programmed as f64 / host as f64);
            }
        }
        if let Some((used, all)) = now.fast_bands.filter(|(_, all)| *all > 0) {
            set("fast_fill", f64::from(used) / f64::from(all));
        }
        let blocks = now.counter("logical_blocks");
        if blocks > 0 {
            set("mapped_share", now.counter("blocks_mapped") as f64 / blocks as f64);
        }
        Self { at_unix_ms: now.at_unix_ms, values }
    }
}
