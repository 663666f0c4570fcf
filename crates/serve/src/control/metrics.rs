//! The status as Prometheus metrics, made anew for each scrape: the values live in the shards.
//!
//! Invariants: every counter of the FTL is exported ([`FTL`]; a test compares it with the FTL's own
//! list), under a name that says its unit and with a help text that says what it counts; what only
//! grows since the mount is a counter, whose name the encoder ends with `_total`; the rest are gauges.

use super::exposition::{Asked, Build, Durations, Format};
use super::reasons::filled;
use crate::latency::{Latencies, Op, Series};
use crate::nbd::Export;
use crate::{CoreStatus, ShardStatus};
use Type::{Counter, Gauge};
use ftl::UnitStatus;
use ftl::raw::LaneStatus;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::{counter, family::Family, gauge};
use prometheus_client::registry::Registry;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct ShardLabel {
    shard: usize,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct UnitLabel {
    shard: usize,
    unit: usize,
}

/// What only grows since the mount, or what is so now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Type {
    Counter,
    Gauge,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct ReasonLabel {
    shard: usize,
    reason: &'static str,
}

/// All metrics as text.
pub fn encode(
    shards: &[ShardStatus],
    exports: &[Export],
    format: Format,
) -> Result<Vec<u8>, fmt::Error> {
    let mut registry = Registry::with_prefix("weir");
    for (counter, kind, name, help) in FTL.iter().chain(RAW).chain(TIER).chain(MAP) {
        let value = |shard: &ShardStatus| {
            let found = shard.core.counters().iter().find(|(known, _)| known == counter);
            Some(found?.1 as f64)
        };
        // A device has the counters of its mode only.
        if shards.iter().any(|shard| value(shard).is_some()) {
            let value = |shard: &ShardStatus| value(shard).unwrap_or(0.0);
            register(&mut registry, *kind, name, help, per_shard(shards, value));
        }
    }
    reasons(&mut registry, shards);
    for (kind, name, help, value) in SHARD {
        register(&mut registry, *kind, name, help, per_shard(shards, value));
    }
    units_of(&mut registry, shards, UNIT, |core| match core {
        CoreStatus::Block(status) => &status.units,
        CoreStatus::Raw(_) => &[],
    });
    units_of(&mut registry, shards, RAW_UNIT, |core| match core {
        CoreStatus::Block(_) => &[],
        CoreStatus::Raw(status) => &status.units,
    });
    let latencies = super::latency::sum(shards);
    let durations: Arc<[_]> = durations(&latencies, exports).into();
    volumes(&mut registry, &durations);
    registry.register_collector(Box::new(refused(&latencies, exports)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(format.of(out, &durations))
}

/// What is one thing and has several reasons.
fn reasons(registry: &mut Registry, shards: &[ShardStatus]) {
    let filled = shards.iter().enumerate().flat_map(|(shard, status)| {
        // Raw units fill slots with what their host writes alone.
        let of_ftl = matches!(status.core, CoreStatus::Block(_));
        let by_reason = of_ftl.then(|| filled(|name| status.core.counter(name)));
        by_reason
            .into_iter()
            .flatten()
            .map(move |(reason, slots)| (ReasonLabel { shard, reason }, slots as f64))
    });
    let filled: Vec<_> = filled.collect();
    if !filled.is_empty() {
        let help = "Slots (4 KiB) filled, by why: what hosts wrote, what GC (with refresh and wear moves), destage and \
                    the fast tier's own GC moved, padding, checkpoints";
        register(registry, Counter, "slots_filled", help, filled.into_iter());
    }
    for (name, help, counters) in REASONS {
        let values = shards.iter().enumerate().flat_map(|(shard, status)| {
            counters.iter().filter_map(move |&(counter, reason)| {
                let found = status.core.counters().iter().find(|(known, _)| *known == counter)?;
                Some((ReasonLabel { shard, reason }, found.1 as f64))
            })
        });
        let values: Vec<_> = values.collect();
        if !values.is_empty() {
            register(registry, Counter, name, help, values.into_iter());
        }
    }
}

/// How long requests took, by volume and operation.
fn durations(latencies: &Latencies, exports: &[Export]) -> Vec<(String, Op, Series)> {
    let mut all = Vec::new();
    let asked =
        |export: &&Export| Some((export.name.clone(), latencies.volumes.get(&export.volume)?));
    for (name, by_op) in exports.iter().filter_map(|export| asked(&export)) {
        for (op, series) in Op::ALL.into_iter().zip(by_op) {
            all.extend(series.as_ref().map(|series| (name.clone(), op, (**series).clone())));
        }
    }
    all
}

/// What requests took, and what they moved.
fn volumes(registry: &mut Registry, all: &Arc<[(String, Op, Series)]>) {
    registry.register_collector(Box::new(Build));
    if all.is_empty() {
        return;
    }
    let values = |value: fn(&Series) -> u64| {
        all.iter().map(|(name, op, series)| (name.clone(), Some(*op), value(series))).collect()
    };
    registry.register_collector(Box::new(Asked {
        name: "request_bytes",
        help: "Bytes that the requests of clients moved, or named",
        values: values(|series| series.bytes),
    }));
    registry.register_collector(Box::new(Asked {
        name: "request_errors",
        help: "Requests of clients that were answered with an error",
        values: values(|series| series.errors),
    }));
    registry.register_collector(Box::new(Durations(Arc::clone(all))));
}

/// Requests that never came to the device. What named no volume has no name of one.
fn refused(latencies: &Latencies, exports: &[Export]) -> Asked {
    let count = |volume| *latencies.refused.get(&volume).unwrap_or(&0);
    let named = exports.iter().map(|export| (export.name.clone(), count(Some(export.volume))));
    let all = named.chain([(String::new(), count(None))]);
    Asked {
        name: "requests_refused",
        help: "Requests of clients that NBD or NVMe answered with an error, so that the device never saw them",
        values: all.map(|(name, count)| (name, None, count)).collect(),
    }
}

/// The metrics of the units that `list` finds, if there are any.
fn units_of<T>(
    registry: &mut Registry,
    shards: &[ShardStatus],
    metrics: &[Metric<T>],
    list: fn(&CoreStatus) -> &[T],
) {
    if shards.iter().all(|shard| list(&shard.core).is_empty()) {
        return;
    }
    for (kind, name, help, value) in metrics {
        let values = shards.iter().enumerate().flat_map(|(shard, status)| {
            let units = list(&status.core).iter().enumerate();
            units.map(move |(unit, state)| (UnitLabel { shard, unit }, value(state)))
        });
        register(registry, *kind, name, help, values);
    }
}

fn per_shard(
    shards: &[ShardStatus],
    value: impl Fn(&ShardStatus) -> f64,
) -> impl Iterator<Item = (ShardLabel, f64)> {
    shards.iter().enumerate().map(move |(shard, status)| (ShardLabel { shard }, value(status)))
}

fn register<L>(
    registry: &mut Registry,
    kind: Type,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, f64)>,
) where
    L: Clone + fmt::Debug + Eq + Hash + EncodeLabelSet + Send + Sync + 'static,
{
    match kind {
        Counter => {
            let family = Family::<L, counter::Counter<f64, AtomicU64>>::default();
            for (labels, value) in values {
                family.get_or_create(&labels).inc_by(value);
            }
            registry.register(name, help, family);
        }
        Gauge => {
            let family = Family::<L, gauge::Gauge<f64, AtomicU64>>::default();
            for (labels, value) in values {
                family.get_or_create(&labels).set(value);
            }
            registry.register(name, help, family);
        }
    }
}

/// A metric of each shard or unit: its name, its help, and where its value is.
type Metric<T> = (Type, &'static str, &'static str, fn(&T) -> f64);

const SHARD: &[Metric<ShardStatus>] = &[
    (Gauge, "connections", "NBD clients connected", |s| s.connections as f64),
    (Gauge, "requests", "NBD requests in flight", |s| s.requests as f64),
    (Gauge, "requests_limited", "Requests that wait for the limits of their volume", |s| {
        s.requests_limited as f64
    }),
    (
        Counter,
        "requests_put_off",
        "Times that an NVMe host was told to try a command again later, by the limits of its volume",
        |s| s.requests_put_off as f64,
    ),
    (Gauge, "buffer_bytes", "Bytes of request buffers in use", |s| s.buffer_bytes as f64),
    (Counter, "slow_requests", "Requests that took longer than server.slow_request", |s| {
        s.slow_requests as f64
    }),
    (Gauge, "fenced", "1 once another server has taken over the device, else 0", |s| {
        f64::from(u8::from(s.fenced))
    }),
    (
        Gauge,
        "lacks_room",
        "1 while the file system or disk below has no room for writes, else 0",
        |s| f64::from(u8::from(s.lacks_room)),
    ),
];

const UNIT: &[Metric<UnitStatus>] = &[
    (Counter, "unit_busy_seconds", "Seconds with a command running on the unit", |u| {
        u.busy_ns as f64 / flash::SECOND as f64
    }),
    (Counter, "unit_read_bytes", "Bytes read from the unit for any reason", |u| {
        (u.slots_read * flash::BLOCK_BYTES as u64) as f64
    }),
    (Counter, "unit_programmed_bytes", "Bytes programmed on the unit for any reason", |u| {
        (u.slots_programmed * flash::BLOCK_BYTES as u64) as f64
    }),
    (Counter, "unit_erases", "Erases of bands of the unit", |u| u.erases as f64),
    (Gauge, "unit_reads_queued", "Host reads waiting or running on the unit", |u| {
        u.reads_queued.into()
    }),
    (Gauge, "unit_appends_queued", "Programs waiting or running on the unit", |u| {
        u.appends_queued.into()
    }),
    (Gauge, "unit_bands_free", "Bands of the unit that hold no data", |u| u.bands_free.into()),
    (Gauge, "unit_bands_retired", "Bands of the unit that are out of use for good", |u| {
        u.bands_retired.into()
    }),
    (Gauge, "unit_slots_valid", "Slots (4 KiB) of the unit that hold valid data", |u| {
        u.slots_valid as f64
    }),
    (Gauge, "unit_slots_reclaimable", "Slots (4 KiB) of full bands that GC could gain", |u| {
        u.slots_reclaimable as f64
    }),
    (Gauge, "unit_erase_count_min", "Erases of the usable band with the fewest", |u| {
        u.erase_count_min.into()
    }),
    (Gauge, "unit_erase_count_max", "Erases of the usable band with the most", |u| {
        u.erase_count_max.into()
    }),
    (Gauge, "unit_gone", "1 once the unit has stopped answering, else 0", |u| {
        f64::from(u8::from(u.gone))
    }),
];

const RAW_UNIT: &[Metric<LaneStatus>] = &[
    (
        Counter,
        "unit_busy_seconds",
        "Seconds with a command running, summed over the unit's dies",
        { |u| u.busy_ns as f64 / flash::SECOND as f64 },
    ),
    (Gauge, "unit_requests", "Requests under way on the unit", |u| u.requests.into()),
    (Gauge, "unit_reads_queued", "Host reads of pages waiting or running on the unit", |u| {
        u.reads_queued.into()
    }),
    (Gauge, "unit_writes_queued", "Programs waiting or running on the unit", |u| {
        u.writes_queued.into()
    }),
    (Gauge, "unit_erases_queued", "Erases waiting or running on the unit", |u| {
        u.erases_queued.into()
    }),
    (Gauge, "unit_raw_blocks_erased", "Raw blocks that may be written from their start", |u| {
        u.raw_blocks_erased.into()
    }),
    (Gauge, "unit_raw_blocks_open", "Raw blocks written in part, or being written", |u| {
        u.raw_blocks_open.into()
    }),
    (Gauge, "unit_raw_blocks_full", "Raw blocks written whole", |u| u.raw_blocks_full.into()),
    (Gauge, "unit_raw_blocks_torn", "Raw blocks to be erased before they are written", |u| {
        u.raw_blocks_torn.into()
    }),
    (Gauge, "unit_blocks_bad", "Blocks of the unit out of use for good", |u| u.blocks_bad.into()),
    (Gauge, "unit_blocks_spare", "Good blocks beyond what the raw blocks need", |u| {
        u.blocks_spare.into()
    }),
    (Gauge, "unit_erase_count_min", "Erases of the usable block with the fewest", |u| {
        u.erase_count_min.into()
    }),
    (Gauge, "unit_erase_count_max", "Erases of the usable block with the most", |u| {
        u.erase_count_max.into()
    }),
    (Gauge, "unit_gone", "1 once nothing can be written to the unit any more, else 0", |u| {
        f64::from(u8::from(u.gone))
    }),
];

/// Counters that only raw units have, as [`FTL`].
const RAW: &[(&str, Type, &str, &str)] = &[
    (
        "erases_failed",
        Counter,
        "erases_failed",
        "Erases that the medium reported as failed; the blocks are out of use",
    ),
    ("records", Counter, "lane_records", "Lane records written"),
];

/// Of a map of which a part is in DRAM.
const MAP: &[(&str, Type, &str, &str)] = &[
    (
        "map_hits",
        Counter,
        "map_hits",
        "Host requests that found all they need of a partly resident map in DRAM",
    ),
    ("map_misses", Counter, "map_misses", "Host requests that waited for a part of the map"),
    ("map_pieces_loaded", Counter, "map_pieces_loaded", "Pieces of the map read from flash"),
    ("map_pieces_evicted", Counter, "map_pieces_evicted", "Pieces of the map that left DRAM"),
    (
        "map_reads_repeated",
        Counter,
        "map_reads_repeated",
        "Reads of the map that had to be done again",
    ),
    (
        "map_pieces_lost",
        Counter,
        "map_pieces_lost",
        "Pieces of the map that cannot be read: mount again, and they are rebuilt from flash",
    ),
    (
        "map_chunks_streamed",
        Counter,
        "map_chunks_streamed",
        "Chunks of the last checkpoint that were read for the next",
    ),
    (
        "map_chunks_uncounted",
        Gauge,
        "map_chunks_uncounted",
        "Chunks of the map that nobody has looked at since the start",
    ),
    (
        "map_chunks_rebuilt",
        Counter,
        "map_chunks_rebuilt",
        "Chunks of the map that were found lost after the start, and rebuilt from flash",
    ),
    (
        "map_changes_bytes",
        Gauge,
        "map_changes_bytes",
        "Bytes of DRAM for what changed in the map since the last checkpoint",
    ),
    (
        "map_changes_bytes_max",
        Gauge,
        "map_changes_bytes_max",
        "Bytes of changes beyond which writes wait for the next checkpoint",
    ),
];

/// Counters that only a device with a fast tier has, as [`FTL`].
const TIER: &[(&str, Type, &str, &str)] = &[
    ("fast_bands", Gauge, "fast_bands", "Bands of the fast tier"),
    ("fast_bands_free", Gauge, "fast_bands_free", "Bands of the fast tier that hold no data"),
    (
        "fast_slots_programmed",
        Counter,
        "fast_slots_programmed",
        "Slots (4 KiB) programmed on the fast tier; the others are the capacity tier's",
    ),
    (
        "fast_host_blocks_read",
        Counter,
        "fast_host_blocks_read",
        "Logical blocks (4 KiB) that hosts read and the fast tier served",
    ),
    ("fast_bands_destaged", Counter, "fast_bands_destaged", "Bands of the fast tier destaged"),
    (
        "slots_dropped",
        Counter,
        "slots_dropped",
        "Slots (4 KiB) of the fast tier overwritten or trimmed before they were destaged",
    ),
    (
        "requests_spilled",
        Counter,
        "requests_spilled",
        "Writes that went to the capacity tier because the fast one had no room",
    ),
];

/// The counters of the FTL: their names there, what they are, and name and help here.
const FTL: &[(&str, Type, &str, &str)] = &[
    ("logical_blocks", Gauge, "logical_blocks", "Logical blocks (4 KiB) that the shard offers"),
    (
        "blocks_mapped",
        Gauge,
        "logical_blocks_mapped",
        "Logical blocks (4 KiB) that hold data: written and not trimmed",
    ),
    (
        "blocks_shadowed",
        Gauge,
        "snapshot_blocks_held",
        "Blocks (4 KiB) of flash that only snapshots hold; counted in logical_blocks_mapped, too",
    ),
    ("bands_free", Gauge, "bands_free", "Bands that hold no data and can be opened"),
    ("bands_free_low", Gauge, "bands_free_low", "Free bands below which GC starts"),
    (
        "generation",
        Gauge,
        "generation",
        "How often the shard was mounted for writing since the format",
    ),
    ("map_bytes", Gauge, "map_bytes", "Bytes of DRAM that the map and the bands' validity take"),
    (
        "requests_running",
        Gauge,
        "ftl_requests",
        "Requests that the FTL has accepted and not answered",
    ),
    ("host_reads", Counter, "host_reads", "Read requests of hosts"),
    ("host_writes", Counter, "host_writes", "Write requests of hosts"),
    ("host_blocks_read", Counter, "host_blocks_read", "Logical blocks (4 KiB) that hosts read"),
    (
        "host_blocks_written",
        Counter,
        "host_blocks_written",
        "Logical blocks (4 KiB) that hosts wrote, counted when they get a slot: more than was programmed where the \
         medium then failed",
    ),
    (
        "host_blocks_trimmed",
        Counter,
        "host_blocks_trimmed",
        "Logical blocks (4 KiB) that hosts trimmed",
    ),
    ("host_flushes", Counter, "host_flushes", "Flushes that hosts asked for"),
    ("host_errors", Counter, "host_errors", "Requests that were answered with an error"),
    (
        "writes_throttled",
        Counter,
        "writes_throttled",
        "Writes that had to wait because GC, or a checkpoint of a cached map, was behind",
    ),
    (
        "writes_behind_destage",
        Counter,
        "writes_behind_destage",
        "Writes that had to wait because the fast tier was full, or their volume's share of it",
    ),
    (
        "writes_refused",
        Counter,
        "writes_refused",
        "Writes that were refused because there was no space left",
    ),
    (
        "slots_programmed",
        Counter,
        "slots_programmed",
        "Slots (4 KiB) programmed for any reason; by host_blocks_written it is the WAF, by slots_filled its parts",
    ),
    (
        "slots_upkeep",
        Counter,
        "slots_upkeep",
        "Slots (4 KiB) of valid data in bands that refresh and wear moves emptied, a part of those relocated",
    ),
    (
        "pages_padded",
        Counter,
        "pages_padded",
        "Pages programmed with padding only, to make earlier ones durable",
    ),
    (
        "slots_moved_closing",
        Counter,
        "slots_moved_closing",
        "Slots (4 KiB) that GC moved to where a flush would have padded",
    ),
    ("bands_bad", Gauge, "bands_bad", "Bands that are bad, or being emptied because they are"),
    (
        "bands_spare",
        Gauge,
        "bands_spare",
        "Bands that may yet go bad before the device cannot keep what it offers",
    ),
    (
        "logical_blocks_kept",
        Gauge,
        "logical_blocks_kept",
        "Logical blocks that can hold data with the bands that are left",
    ),
    ("slots_corrected", Counter, "slots_corrected", "Slots read whose bit errors were corrected"),
    (
        "reads_unreadable",
        Counter,
        "reads_unreadable",
        "Blocks that a host asked for and that failed their check: told as an error",
    ),
    (
        "programs_failed",
        Counter,
        "programs_failed",
        "Programs that the medium reported as failed; their data was programmed elsewhere",
    ),
    ("erases", Counter, "erases", "Bands erased"),
    (
        "erases_forced",
        Counter,
        "erases_forced",
        "Bands erased against the erase policy, because space was needed",
    ),
    ("bands_opened", Counter, "bands_opened", "Bands opened for appends"),
    (
        "bands_retired",
        Counter,
        "bands_retired",
        "Bands taken out of use for failed programs or erases, since the mount",
    ),
    (
        "bands_let_go",
        Counter,
        "bands_let_go",
        "Bands that went when room was short: what superseded them was durable, and not all that came before that",
    ),
    (
        "blocks_poisoned",
        Counter,
        "blocks_poisoned",
        "Logical blocks whose only copy was lost: reads fail until they are written again",
    ),
    (
        "slots_damaged",
        Gauge,
        "mount_slots_damaged",
        "Slots that the mount found damaged, and that no power cut explains",
    ),
    (
        "blocks_lost",
        Gauge,
        "mount_blocks_lost",
        "Logical blocks whose newest version the mount found missing: reads failed from then on",
    ),
    (
        "blocks_refused",
        Gauge,
        "mount_blocks_refused",
        "Logical blocks that may be older than what was written last, and are refused",
    ),
    (
        "blocks_stale_max",
        Gauge,
        "mount_blocks_stale_max",
        "Logical blocks that may be older than what was written last, and are shown: --salvage was given",
    ),
    ("units_gone", Counter, "units_gone", "Units that stopped answering"),
    ("victims", Counter, "gc_victims", "Bands that GC chose to reclaim"),
    (
        "refreshes",
        Counter,
        "refreshes",
        "Bands rewritten because their bit errors came near the limit of correction",
    ),
    ("wear_moves", Counter, "wear_moves", "Bands relocated to even out wear"),
    ("pages_scrubbed", Counter, "pages_scrubbed", "Pages that the scrub read and checked"),
    ("scrub_errors", Counter, "scrub_errors", "Slots that the scrub found unreadable"),
    ("checkpoints", Counter, "checkpoints", "Checkpoints of the map completed"),
    (
        "checkpoints_aborted",
        Counter,
        "checkpoints_aborted",
        "Checkpoints of the map given up before they were complete",
    ),
    ("medium_flushes", Counter, "medium_flushes", "Flushes sent to the medium"),
    (
        "medium_failures",
        Counter,
        "medium_failures",
        "Times the medium could not be made durable: the shard accepts no more writes",
    ),
    (
        "policy_invalid",
        Counter,
        "policy_invalid",
        "Answers of policies that were invalid and replaced by the default",
    ),
    ("policy_switches", Counter, "policy_switches", "Policies switched while running"),
    ("erases_asked", Counter, "erases_asked", "Bands erased because the application asked"),
    ("wear_moves_asked", Counter, "wear_moves_asked", "Wear moves that the application asked for"),
    (
        "static_fallbacks",
        Counter,
        "static_fallbacks",
        "Appends that static mapping put elsewhere, because their unit had no room",
    ),
    (
        "stream_fallbacks",
        Counter,
        "stream_fallbacks",
        "Moves that went to another placement handle than their stream's, because space was tight",
    ),
    ("stream_bytes", Gauge, "stream_bytes", "Memory of the tables of the stream policies"),
    (
        "slo_breaches_allowed",
        Counter,
        "slo_breaches_allowed",
        "Erases that may break the read service level, begun because space demanded them",
    ),
];

/// Counters of one thing by reason: its name and help here, and each counter with its reason.
#[allow(clippy::type_complexity, reason = "a table, read as one")]
const REASONS: &[(&str, &str, &[(&str, &str)])] = &[
    (
        "policies_replaced",
        "Policies replaced because they broke, by how",
        &[
            ("policies_trapped", "trapped"),
            ("policies_out_of_time", "out_of_time"),
            ("policies_out_of_memory", "out_of_memory"),
            ("policies_out_of_range", "out_of_range"),
        ],
    ),
    (
        "reads_over_slo",
        "Host reads that took longer than the read service level, by what was in their way",
        &[
            ("reads_over_slo_program", "program"),
            ("reads_over_slo_erase", "erase"),
            ("reads_over_slo_reads", "reads"),
            ("reads_over_slo_suspended", "suspended"),
            ("reads_over_slo_in_flight", "in_flight"),
        ],
    ),
];

/// What is told by [`filled`], without and with a fast tier.
#[cfg(test)]
const FILLED: [&[&str]; 2] =
    [&["slots_relocated", "slots_padded", "slots_checkpointed"], &["slots_destaged", "slots_kept"]];

/// It is the sum of those in [`REASONS`], as a query has it.
#[cfg(test)]
const SUMMED: &str = "reads_over_slo";

#[cfg(test)]
pub(super) use tests::{shards, shards_of};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::latency::{BOUNDS_NS, Timed};
    use crate::offline;
    use crate::volume::{Kind, Request};
    use flash::{Instant, MICROSECOND};
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The status of a device of two shards that has been written to.
    pub fn shards(test: &str) -> Vec<ShardStatus> {
        let text = "[device]\nprofile = \"instant\"\ncapacity = \"64MiB\"\nshards = 2\n";
        shards_of(test, text, |shards| shards[1].write(7, &[1; 8192]).unwrap())
    }

    /// The same of the device that a config's text tells, after what `prepare` does to it.
    pub fn shards_of(
        test: &str,
        text: &str,
        prepare: impl FnOnce(&mut [offline::Offline]),
    ) -> Vec<ShardStatus> {
        let name = format!("weir-metrics-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        let config = Config::parse(text, &folder).unwrap();
        offline::format(&config.device, &config.ftl).unwrap();
        let status = offline::with_device(&config.device.kind, &config.ftl, false, |shards| {
            prepare(shards);
            let statuses = shards.iter().map(|shard| ShardStatus {
                connections: 3,
                buffer_bytes: 4096,
                ..shard.state()
            });
            statuses.collect()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        status.unwrap()
    }

    fn plain(shards: &[ShardStatus]) -> String {
        let export = Export::new("default", 1 << 20);
        String::from_utf8(encode(shards, &[export], Format::Plain).unwrap()).unwrap()
    }

    /// The counters that these tables and those by reason have.
    fn known(tables: &[&[(&'static str, Type, &str, &str)]]) -> BTreeSet<&'static str> {
        let plain = tables.iter().flat_map(|table| table.iter()).map(|(counter, ..)| *counter);
        let by_reason = REASONS.iter().flat_map(|(.., counters)| counters.iter());
        let by_reason = by_reason.map(|(counter, _)| *counter).chain(FILLED[0].iter().copied());
        plain.chain(by_reason).chain([SUMMED]).collect()
    }

    fn counters_of(shard: &ShardStatus) -> BTreeSet<&'static str> {
        shard.core.counters().iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn every_counter_of_the_ftl_is_a_metric_and_no_other() {
        let known = known(&[FTL]);
        let shards = shards("all");
        let there = counters_of(&shards[0]);
        assert_eq!(known, there);
    }

    #[test]
    fn every_counter_of_raw_units_is_a_metric_too() {
        let text = "[device]\nmode = \"raw\"\nprofile = \"instant\"\ncapacity = \"64MiB\"\n";
        let shards = shards_of("raw", text, |_| {});
        let known = known(&[FTL, RAW]);
        let there = counters_of(&shards[0]);
        assert!(there.is_subset(&known), "{:?}", there.difference(&known));
        for (counter, ..) in RAW {
            assert!(there.contains(counter), "{counter}");
        }
    }

    #[test]
    fn every_counter_of_a_fast_tier_is_a_metric_too() {
        let text = "[device]\nprofile = \"instant\"\ncapacity = \"64MiB\"\npath = \"dev\"\nfast = \"dev/fast\"\n";
        let shards = shards_of("tier", text, |_| {});
        let mut known = known(&[FTL, TIER]);
        known.extend(FILLED[1]);
        let there = counters_of(&shards[0]);
        assert_eq!(known, there);
        assert!(plain(&shards).contains("weir_fast_bands{shard=\"0\"}"));
    }

    #[test]
    fn every_counter_of_a_map_in_part_in_dram_is_a_metric_too() {
        let text = "[device]\nprofile = \"instant\"\ncapacity = \"256MiB\"\n[ftl]\nmap_memory = \"64KiB\"\nmap_piece_blocks = 64\n";
        let shards = shards_of("map", text, |_| {});
        let known = known(&[FTL, MAP]);
        let there = counters_of(&shards[0]);
        assert_eq!(known, there);
        assert!(plain(&shards).contains("weir_map_hits_total{shard=\"0\"}"));
    }

    /// The names of a `metric{labels} value`, and the value.
    fn sample(line: &str) -> (&str, BTreeMap<&str, &str>, f64) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("open labels: {line}"));
        let pairs = labels.split_terminator(',').map(|pair| {
            let (key, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            (key, value.strip_suffix('"').unwrap_or_else(|| panic!("{line}")))
        });
        let value = value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(value.is_finite(), "{line}");
        (name, pairs.collect(), value)
    }

    /// Types by name, and all samples. As strict as the text format is: help, then type, then samples, once.
    fn parsed(text: &str) -> (BTreeMap<&str, &str>, Vec<Sample<'_>>) {
        let (mut types, mut helped, mut seen) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut samples = Vec::new();
        for line in text.lines() {
            match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
                ["#", "HELP", name, help] => {
                    assert!(help.contains(' ') && help.len() > 10, "{line}: says too little");
                    assert!(!help.contains("see "), "{line}: says it itself");
                    assert!(helped.insert(name), "{name} is explained twice");
                }
                ["#", "TYPE", name, kind] => {
                    assert!(helped.contains(name), "{line}: before its help");
                    assert_eq!(types.insert(name, kind), None, "{name}");
                }
                _ => {
                    let (name, labels, value) = sample(line);
                    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|ending| {
                        name.strip_suffix(ending)
                            .filter(|base| types.get(base) == Some(&"histogram"))
                    });
                    let metric = of_histogram.unwrap_or(name);
                    let kind = *types.get(metric).unwrap_or_else(|| panic!("no type: {line}"));
                    assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                    assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "{line}: comes twice");
                    samples.push((name, labels, value));
                }
            }
        }
        (types, samples)
    }

    type Sample<'a> = (&'a str, BTreeMap<&'a str, &'a str>, f64);

    /// The status of two shards of which the second has served requests.
    fn served(test: &str) -> Vec<ShardStatus> {
        let mut shards = shards(test);
        for (kind, us) in [(Kind::Read, 30), (Kind::Read, 3000), (Kind::Flush, 20_000_000)] {
            let request = Request { volume: 0, kind, offset: 0, len: 4096 };
            let (asked, begun, done) = (Instant(5), Instant(5), Instant(7));
            let failed = us == 3000;
            let timed = Timed {
                request,
                asked,
                begun,
                done,
                limited_ns: 0,
                failed,
                waited: None,
                spent: None,
            };
            shards[1].latencies.record(&timed, Instant(5 + us * MICROSECOND));
        }
        // One that named no volume, and two of the first that no device saw.
        for volume in [None, Some(0), Some(0)] {
            shards[0].latencies.note_refused(volume);
        }
        shards
    }

    #[test]
    fn the_metrics_keep_the_conventions_of_prometheus() {
        let text = plain(&served("lint"));
        let (types, samples) = parsed(&text);
        for name in types.keys() {
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            let words = name.strip_prefix("weir_").unwrap_or_else(|| panic!("{name}"));
            assert!(!words.starts_with("weir_") && words.chars().all(plain), "{name}");
            for unit in ["_ns", "_ms", "_us", "_kib", "_mib", "_percent", "_count", "_sum"] {
                assert!(!name.ends_with(unit), "{name}: base units, and no ending of histograms");
            }
        }
        // Those of requests and of the build, and why slots were filled.
        let of_requests = 6;
        let all = FTL.len() + SHARD.len() + UNIT.len() + REASONS.len() + of_requests;
        assert_eq!(types.len(), all);
        assert!(text.contains("weir_host_blocks_written_total{shard=\"1\"} 2"), "{text}");
        assert!(text.contains("weir_unit_busy_seconds_total{shard=\"0\",unit=\"0\"}"), "{text}");
        assert!(text.contains("weir_connections{shard=\"1\"} 3"), "{text}");
        assert!(text.contains("reason=\"erase\"} 0"), "{text}");
        let errors = "weir_request_errors_total{volume=\"default\",op=\"read\"} 1";
        assert!(text.contains(errors), "{text}");
        for refused in ["{volume=\"default\"} 2", "{volume=\"\"} 1"] {
            assert!(text.contains(&format!("weir_requests_refused_total{refused}\n")), "{text}");
        }
        let build = samples.iter().find(|(name, ..)| *name == "weir_build_info").unwrap();
        assert_eq!((build.1["version"], build.2), (env!("CARGO_PKG_VERSION"), 1.0));
    }

    #[test]
    fn a_request_is_in_every_bucket_from_its_time_on_and_in_the_count_and_the_sum() {
        let text = plain(&served("buckets"));
        let (_, samples) = parsed(&text);
        let of = |op: &str, ending: &str| -> Vec<(Option<&str>, f64)> {
            let wanted = format!("weir_request_duration_seconds{ending}");
            let mine = samples.iter().filter(|(name, labels, _)| {
                *name == wanted && labels["op"] == op && labels["volume"] == "default"
            });
            mine.map(|(_, labels, value)| (labels.get("le").copied(), *value)).collect()
        };
        let buckets = of("read", "_bucket");
        assert!(buckets.is_sorted_by_key(|(_, value)| *value), "{buckets:?}");
        assert_eq!(buckets.len(), BOUNDS_NS.len() + 1);
        let below = |le: &str| buckets.iter().find(|(found, _)| *found == Some(le)).unwrap().1;
        assert_eq!(
            [below("0.000025"), below("0.00005"), below("0.0025")],
            [0.0, 1.0, 1.0],
            "{text}"
        );
        assert_eq!([below("0.005"), below("+Inf")], [2.0, 2.0]);
        assert_eq!(of("read", "_count"), [(None, 2.0)]);
        assert!((of("read", "_sum")[0].1 - 0.003_03).abs() < 1e-9);
        assert_eq!(of("flush", "_bucket")[BOUNDS_NS.len() - 1].1, 0.0, "longer than all bounds");
        assert_eq!(of("flush", "_count"), [(None, 1.0)]);
    }

    #[test]
    fn promtool_finds_nothing_where_it_is_installed() {
        let mut command = Command::new("promtool");
        command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut promtool) = command.stdout(Stdio::piped()).spawn() else {
            eprintln!("skipped: promtool (of the package prometheus) is not installed");
            return;
        };
        let text = plain(&served("promtool"));
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told);
        assert!(output.status.success() && told.trim().is_empty(), "{told}");
    }
}
