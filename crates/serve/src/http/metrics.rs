//! The status as Prometheus metrics, made anew for each scrape: the values live in the shards.

use crate::ShardStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
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

type PerShard = Family<ShardLabel, Gauge<u64, AtomicU64>>;
type PerUnit = Family<UnitLabel, Gauge<u64, AtomicU64>>;

/// All metrics as text. Counters of the FTL and gauges share one list without telling which is
/// which, so all are exported as gauges.
pub fn encode(shards: &[ShardStatus]) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("weir");
    let names: Vec<&str> = shards
        .first()
        .map(|shard| shard.ftl.counters.iter().map(|(name, _)| *name).collect())
        .unwrap_or_default();
    for (index, name) in names.into_iter().enumerate() {
        per_shard(&mut registry, name, "see the FTL's status", shards, |shard| {
            shard.ftl.counters.get(index).map_or(0, |(_, value)| *value)
        });
    }
    let help = "clients connected";
    per_shard(&mut registry, "connections", help, shards, |shard| shard.connections as u64);
    let help = "requests in flight";
    per_shard(&mut registry, "requests", help, shards, |shard| shard.requests as u64);
    let help = "bytes of request buffers in use";
    per_shard(&mut registry, "buffer_bytes", help, shards, |shard| shard.buffer_bytes as u64);
    let help = "1 once another server has taken over the device";
    per_shard(&mut registry, "fenced", help, shards, |shard| u64::from(shard.fenced));
    let help = "nanoseconds with a command running";
    per_unit(&mut registry, "unit_busy_ns", help, shards, |unit| unit.busy_ns);
    let help = "host reads waiting or running";
    per_unit(&mut registry, "unit_reads_queued", help, shards, |unit| unit.reads_queued.into());
    let help = "programs waiting or running";
    per_unit(&mut registry, "unit_appends_queued", help, shards, |unit| unit.appends_queued.into());
    let help = "free bands";
    per_unit(&mut registry, "unit_bands_free", help, shards, |unit| unit.bands_free.into());
    let help = "bands out of use";
    per_unit(&mut registry, "unit_bands_retired", help, shards, |unit| unit.bands_retired.into());
    let help = "slots that hold valid data";
    per_unit(&mut registry, "unit_slots_valid", help, shards, |unit| unit.slots_valid);
    let help = "highest erase count";
    per_unit(&mut registry, "unit_erase_count_max", help, shards, |u| u.erase_count_max.into());
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

fn per_shard(
    registry: &mut Registry,
    name: &str,
    help: &str,
    shards: &[ShardStatus],
    value: impl Fn(&ShardStatus) -> u64,
) {
    let family = PerShard::default();
    for (shard, status) in shards.iter().enumerate() {
        family.get_or_create(&ShardLabel { shard }).set(value(status));
    }
    registry.register(name, help, family);
}

fn per_unit(
    registry: &mut Registry,
    name: &str,
    help: &str,
    shards: &[ShardStatus],
    value: impl Fn(&ftl::UnitStatus) -> u64,
) {
    let family = PerUnit::default();
    for (shard, status) in shards.iter().enumerate() {
        for (unit, state) in status.ftl.units.iter().enumerate() {
            family.get_or_create(&UnitLabel { shard, unit }).set(value(state));
        }
    }
    registry.register(name, help, family);
}
