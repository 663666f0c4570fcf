//! The status as JSON. Names are stable; see `openapi.json`.

use super::doors::Right;
use super::latency;
use crate::exports::unit_name;
use crate::latency::ByOp;
use crate::nbd::Export;
use crate::runtime::shard::{NO_ROOM, UnitBlocks};
use crate::server::Restart;
use crate::{CoreStatus, RawShape, ShardStatus};
use flash::{BLOCK_BYTES, Instant, MILLISECOND};
use ftl::policy::DECISIONS;
use ftl::raw::{LaneStatus, RawBlockState};
use ftl::{MapStatus, PolicyChange, StreamStatus, UnitStatus};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything about a server.
pub fn json(exports: &[Export], settled: &[String], shards: &[ShardStatus]) -> Value {
    let latencies = latency::sum(shards);
    let volumes: Vec<Value> = exports
        .iter()
        .map(|export| {
            let of_none = ByOp::default();
            let by_op = latencies.volumes.get(&export.volume).unwrap_or(&of_none);
            json!({
                "name": export.name,
                "size_bytes": export.size_bytes,
                "read_only": export.read_only,
                "latency": latency::by_op(by_op),
                "refused": latencies.refused.get(&Some(export.volume)).unwrap_or(&0),
            })
        })
        .collect();
    let mut totals: Map<String, Value> = Map::new();
    for (name, value) in shards.iter().flat_map(|shard| shard.core.counters()) {
        let sum = totals.get(*name).and_then(Value::as_u64).unwrap_or(0);
        totals.insert((*name).into(), json!(sum.saturating_add(*value)));
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "volumes": volumes,
        "waf": waf(shards),
        "counters": totals,
        "latency": latency::json(&latencies),
        "shards": shards.iter().map(|one| shard(one, settled)).collect::<Vec<_>>(),
    })
}

/// Where clients connect: a socket by its whole path, as whoever asks may be anywhere.
pub fn connect(nbd: &[String], nvme: Option<SocketAddr>) -> Value {
    const UNIX: &str = "nbd+unix:///?socket=";
    let whole = |place: &String| {
        let path = place.strip_prefix(UNIX).and_then(|path| std::path::absolute(path).ok());
        path.map_or(place.clone(), |path| format!("{UNIX}{}", path.display()))
    };
    let nvme: Vec<String> = nvme.iter().map(|address| format!("nvme://{address}/")).collect();
    json!({ "nbd": nbd.iter().map(whole).collect::<Vec<_>>(), "nvme": nvme })
}

/// How the device was opened.
pub fn restart(restart: &Restart) -> Value {
    json!({
        "resumed": restart.cold.is_none(),
        "why_not": restart.cold,
        "took_ms": restart.took_ms,
        "kept_bytes": restart.kept_bytes,
        "mount_reads_answered": restart.counts.reads_answered,
        "mount_reads_passed": restart.counts.reads_passed,
        "text": restart.to_string(),
        "impaired": restart.impaired,
        "dilate": restart.dilation,
    })
}

/// Slots programmed per block that the host wrote since the mount; `None` before the first write.
pub fn waf(shards: &[ShardStatus]) -> Option<f64> {
    let sum = |wanted: &str| -> u64 {
        let counters = shards.iter().flat_map(|shard| shard.core.counters());
        counters.filter(|(name, _)| *name == wanted).map(|(_, value)| value).sum()
    };
    let written = sum("host_blocks_written");
    (written > 0).then(|| sum("slots_programmed") as f64 / written as f64)
}

fn shard(shard: &ShardStatus, settled: &[String]) -> Value {
    let counters: Map<String, Value> =
        shard.core.counters().iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
    let bins = |wear: &[(u32, u32)]| -> Vec<Value> {
        wear.iter().map(|(from, blocks)| json!({ "erase_count": from, "blocks": blocks })).collect()
    };
    let mut value = json!({
        "phase": shard.core.phase(),
        "fenced": shard.fenced,
        "lacks_room": shard.lacks_room,
        "warnings": warnings(shard),
        "driver": shard.driver.name,
        "driver_why": shard.driver.why,
        "slow_requests": shard.slow_requests,
        "connections": shard.connections,
        "requests": shard.requests,
        "requests_limited": shard.requests_limited,
        "requests_put_off": shard.requests_put_off,
        "buffer_bytes": shard.buffer_bytes,
        "counters": counters,
        "latency": latency::by_op(&shard.latencies.whole()),
        "units": units(shard),
        "wear": bins(&shard.wear),
        "wear_fast": bins(&shard.wear_fast),
    });
    match &shard.core {
        CoreStatus::Block(status) => {
            let policies = &status.policies;
            value["mode"] = "block".into();
            value["raw"] = Value::Null;
            let names = DECISIONS.iter().map(|&of| (of.into(), json!(policies.of(of))));
            value["policies"] = Value::Object(names.collect());
            value["streams"] = streams(&status.streams, &shard.moved_bytes_per_sec);
            value["mappings"] = status.mappings.iter().map(mapping).collect();
            let switches = status.switches.iter();
            value["policy_switches"] =
                switches.map(|change| switch(change, shard.now, settled)).collect();
        }
        CoreStatus::Raw(status) => {
            value["mode"] = "raw".into();
            value["raw"] = raw_shape(&status.shape);
            value["policies"] = Value::Null;
            value["streams"] = Value::Null;
            value["mappings"] = Value::Null;
            value["policy_switches"] = Value::Null;
        }
    }
    value
}

/// What the owner should know.
fn warnings(shard: &ShardStatus) -> Vec<&str> {
    let of_core: &[String] = match &shard.core {
        CoreStatus::Block(status) => &status.warnings,
        CoreStatus::Raw(_) => &[],
    };
    let room = shard.lacks_room.then_some(NO_ROOM);
    room.into_iter().chain(of_core.iter().map(String::as_str)).collect()
}

/// A switch of a policy: when, what, from, to, by whom or why.
fn switch(change: &PolicyChange, now: Instant, settled: &[String]) -> Value {
    let decision = &change.decision;
    let volume = decision.split_once('/').and_then(|(kind, index)| {
        Some(format!("{kind}/{}", settled.get(index.parse::<usize>().ok()?)?))
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ago_ns = now - change.at;
    json!({
        "unix_ms": (since.as_millis() as u64).saturating_sub(ago_ns / MILLISECOND),
        "ago_ns": ago_ns,
        "decision": volume.as_ref().unwrap_or(decision),
        "from": change.from,
        "to": change.to,
        "why": change.why,
    })
}

/// The stream policies; `per_sec` has the rates of their handles behind those of the units.
fn streams(streams: &[StreamStatus], per_sec: &[u64]) -> Value {
    let handles = streams.iter().map(|stream| stream.slots_host.len() + stream.slots_moved.len());
    let units = per_sec.len().saturating_sub(handles.sum());
    let mut rates = per_sec.iter().copied().skip(units);
    let mut of = |slots: &[u64]| -> Vec<u64> { rates.by_ref().take(slots.len()).collect() };
    let one = |stream: &StreamStatus| {
        json!({
            "first_block": stream.first,
            "blocks": stream.blocks,
            "stream": stream.stream,
            "handles_host": stream.handles_host,
            "handles_moved": stream.handles_moved,
            "handles_short": stream.handles_short,
            "bytes_host": bytes_by_handle(&stream.slots_host),
            "bytes_moved": bytes_by_handle(&stream.slots_moved),
            "bytes_host_per_sec": of(&stream.slots_host),
            "bytes_moved_per_sec": of(&stream.slots_moved),
            "memory_bytes": stream.memory_bytes,
        })
    };
    streams.iter().map(one).collect()
}

fn bytes_by_handle(slots: &[u64]) -> Vec<u64> {
    slots.iter().map(|slots| slots * BLOCK_BYTES as u64).collect()
}

/// How a volume is mapped.
fn mapping(mapping: &MapStatus) -> Value {
    json!({
        "first_block": mapping.first,
        "blocks": mapping.blocks,
        "mapping": mapping.mapping,
        "blocks_to_come": mapping.blocks_to_come,
    })
}

/// The shape of raw units.
pub fn raw_shape(shape: &RawShape) -> Value {
    let lanes = &shape.lanes;
    json!({
        "units": lanes.lanes,
        "gang": lanes.gang,
        "raw_blocks_per_unit": lanes.raw_blocks,
        "raw_block_bytes": shape.raw_block_bytes(),
        "page_bytes": shape.page_bytes,
        "granule_bytes": shape.granule_bytes,
    })
}

/// The units of a shard, as the mode has them.
pub fn units(shard: &ShardStatus) -> Vec<Value> {
    match &shard.core {
        CoreStatus::Block(status) => {
            let rates = shard.moved_bytes_per_sec.chunks(2).chain(std::iter::repeat(&[][..]));
            status.units.iter().zip(rates).map(|(unit, rates)| block_unit(unit, rates)).collect()
        }
        CoreStatus::Raw(status) => (0..).zip(&status.units).map(raw_unit).collect(),
    }
}

/// `rates` are what is read and programmed in a second.
fn block_unit(unit: &UnitStatus, rates: &[u64]) -> Value {
    let rate = |at: usize| rates.get(at).copied().unwrap_or(0);
    json!({
        "bytes_read_per_sec": rate(0),
        "bytes_programmed_per_sec": rate(1),
        "tier": if unit.fast { "fast" } else { "capacity" },
        "bytes_read": unit.slots_read * BLOCK_BYTES as u64,
        "bytes_programmed": unit.slots_programmed * BLOCK_BYTES as u64,
        "erases": unit.erases,
        "slots": unit.slots,
        "reads_queued": unit.reads_queued,
        "appends_queued": unit.appends_queued,
        "commands_running": unit.commands_running,
        "busy_ns": unit.busy_ns,
        "bands_free": unit.bands_free,
        "bands_retired": unit.bands_retired,
        "slots_valid": unit.slots_valid,
        "slots_reclaimable": unit.slots_reclaimable,
        "erase_count_min": unit.erase_count_min,
        "erase_count_max": unit.erase_count_max,
        "gone": unit.gone,
        "last_reason": unit.last_reason,
    })
}

fn raw_unit((number, unit): (u32, &LaneStatus)) -> Value {
    json!({
        "unit": number,
        "export": unit_name(number),
        "requests": unit.requests,
        "reads_queued": unit.reads_queued,
        "writes_queued": unit.writes_queued,
        "erases_queued": unit.erases_queued,
        "busy_ns": unit.busy_ns,
        "raw_blocks_erased": unit.raw_blocks_erased,
        "raw_blocks_open": unit.raw_blocks_open,
        "raw_blocks_full": unit.raw_blocks_full,
        "raw_blocks_torn": unit.raw_blocks_torn,
        "raw_blocks_erasing": unit.raw_blocks_erasing,
        "pages_written": unit.pages_written,
        "erase_count_min": unit.erase_count_min,
        "erase_count_max": unit.erase_count_max,
        "blocks_bad": unit.blocks_bad,
        "blocks_spare": unit.blocks_spare,
        "blocks_dirty": unit.blocks_dirty,
        "gone": unit.gone,
        "last_reason": unit.last_reason,
    })
}

/// The raw blocks of a unit that hold something. Their tags are the keys to blocks by ID: told only to who
/// may read those.
pub fn raw_blocks(blocks: &UnitBlocks, right: Right) -> Vec<Value> {
    let block = |(index, block): &(u32, RawBlockState)| {
        json!({
            "raw_block": index,
            "state": block.state,
            "bytes_written": u64::from(block.blocks_written) * BLOCK_BYTES as u64,
            "tag": block.tag.filter(|_| right.0).map(|tag| format!("{tag:032x}")),
            "sequence": block.sequence,
        })
    };
    blocks.iter().map(block).collect()
}
