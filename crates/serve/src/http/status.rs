//! The status as JSON. Names are stable; see `openapi.json`.

use crate::ShardStatus;
use crate::nbd::Export;
use serde_json::{Map, Value, json};

/// Everything about a server.
pub fn json(exports: &[Export], shards: &[ShardStatus]) -> Value {
    let volumes: Vec<Value> = exports
        .iter()
        .map(|export| {
            json!({
                "name": export.name,
                "size_bytes": export.size_bytes,
                "read_only": export.read_only,
            })
        })
        .collect();
    let mut totals: Map<String, Value> = Map::new();
    for (name, value) in shards.iter().flat_map(|shard| &shard.ftl.counters) {
        let sum = totals.get(*name).and_then(Value::as_u64).unwrap_or(0);
        totals.insert((*name).into(), json!(sum.saturating_add(*value)));
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "volumes": volumes,
        "waf": waf(shards),
        "counters": totals,
        "shards": shards.iter().map(shard).collect::<Vec<_>>(),
    })
}

/// Slots programmed per block that the host wrote since the mount; `None` before the first write.
pub fn waf(shards: &[ShardStatus]) -> Option<f64> {
    let sum = |wanted: &str| -> u64 {
        let counters = shards.iter().flat_map(|shard| &shard.ftl.counters);
        counters.filter(|(name, _)| *name == wanted).map(|(_, value)| value).sum()
    };
    let written = sum("host_blocks_written");
    (written > 0).then(|| sum("slots_programmed") as f64 / written as f64)
}

fn shard(shard: &ShardStatus) -> Value {
    let counters: Map<String, Value> =
        shard.ftl.counters.iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
    let units: Vec<Value> = shard
        .ftl
        .units
        .iter()
        .map(|unit| {
            json!({
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
        })
        .collect();
    let wear = shard.wear.iter();
    let wear: Vec<_> =
        wear.map(|(from, blocks)| json!({ "erase_count": from, "blocks": blocks })).collect();
    let policies = &shard.ftl.policies;
    json!({
        "phase": shard.ftl.phase,
        "fenced": shard.fenced,
        "connections": shard.connections,
        "requests": shard.requests,
        "buffer_bytes": shard.buffer_bytes,
        "policies": {
            "victim": policies.victim,
            "wear": policies.wear,
            "erase": policies.erase,
            "unit": policies.unit,
        },
        "counters": counters,
        "units": units,
        "wear": wear,
    })
}
