//! What the control plane and the controller know of a pool, as JSON.

use super::PoolError;
use super::config::PlaneConfig;
use super::controller::explained;
use super::plane::PlaneCalls;
use super::records::{self, Found};
use flash::BLOCK_BYTES;
use pool::control::contract::Kept;
use pool::control::keys;
use pool::control::values::{
    BandRecord, ControllerRecord, Degraded, NodeRecord, NodeState, OwnerRecord, Value as _,
    VolumeRecord, WeightsRecord,
};
use pool::controller::Explained;
use pool::words::Mode;
use serde_json::{Value, json};

/// All of it. What is missing or cannot be read is told in its place.
///
/// # Errors
/// The plane cannot be asked.
pub fn status(config: &PlaneConfig) -> Result<Value, PoolError> {
    let mut calls = PlaneCalls::connect(config)?;
    let nodes = records::nodes(&mut calls)?;
    let mut volumes = Vec::new();
    for Found { record, .. } in records::volumes(&mut calls)? {
        let owner = calls.get(keys::owner(record.volume))?;
        let bands = calls.range(keys::bands(record.volume))?;
        volumes.push(volume(&record, owner.as_ref(), &bands));
    }
    let controller = calls.get(keys::CONTROLLER.to_owned())?;
    let weights = calls.get(keys::WEIGHTS.to_owned())?;
    Ok(json!({
        "pool": format!("{:032x}", config.pool.0),
        "plane": config.at.to_string(),
        "nodes": nodes.iter().map(|found| node(&found.record)).collect::<Vec<_>>(),
        "volumes": volumes,
        "controller": self::controller(config, controller.as_ref()),
        "weights": self::weights(weights.as_ref()),
    }))
}

/// The word for what is meant to become of a node.
pub fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::In => "in",
        NodeState::Draining => "draining",
        NodeState::Out => "out",
        NodeState::ReplacedBy(_) => "replaced",
    }
}

/// A node as JSON.
pub fn node(record: &NodeRecord) -> Value {
    let by = match record.state {
        NodeState::ReplacedBy(by) => Some(by.0),
        _ => None,
    };
    json!({
        "node": record.node.0,
        "domain": record.domain.0,
        "address": record.address,
        "profile": record.profile,
        "state": state(record.state),
        "replaced_by": by,
    })
}

/// A volume as JSON, as its record has it.
pub fn volume_record(record: &VolumeRecord) -> Value {
    json!({
        "volume": record.volume.0,
        "name": record.name,
        "bytes": record.blocks * BLOCK_BYTES as u64,
        "replicas": record.replicas,
        "bands": record.bands,
        "band_bytes": u64::from(record.shape.slots()) * BLOCK_BYTES as u64,
        "degraded": match record.degraded {
            Degraded::Pause => "pause",
            Degraded::GoOn => "go-on",
        },
    })
}

fn volume(record: &VolumeRecord, owner: Option<&Kept>, bands: &[(String, Kept)]) -> Value {
    let key = keys::owner(record.volume);
    let owner = owner.map(|kept| match OwnerRecord::decode(&key, &kept.value) {
        Ok(owner) => json!({
            "generation": owner.generation.0,
            "released": owner.released,
            "lease_ms": owner.lease_ns / flash::MILLISECOND,
        }),
        Err(error) => json!({ "error": format!("{key} {error}") }),
    });
    let bands: Vec<_> =
        bands.iter().map(|(key, kept)| BandRecord::decode(key, &kept.value)).collect();
    let count = |what: fn(&BandRecord) -> bool| {
        bands.iter().filter(|band| band.as_ref().is_ok_and(what)).count()
    };
    let mut told = volume_record(record);
    told["owner"] = owner.unwrap_or(Value::Null);
    told["bands_maybe_open"] = json!(count(|band| band.sealed.is_none()));
    told["bands_lacking"] = json!(count(|band| band.lacks != 0));
    told["bands_unsound"] = json!(bands.iter().filter(|band| band.is_err()).count());
    told
}

fn controller(config: &PlaneConfig, kept: Option<&Kept>) -> Value {
    let Some(kept) = kept else { return Value::Null };
    let record = match ControllerRecord::decode(keys::CONTROLLER, &kept.value) {
        Ok(record) => record,
        Err(error) => return json!({ "error": format!("{} {error}", keys::CONTROLLER) }),
    };
    let asked = match record.address.parse() {
        Ok(address) => explained(config, address).map_err(|error| error.to_string()),
        Err(_) => Err(format!("{:?} is no address", record.address)),
    };
    match asked {
        Ok(plan) => json!({ "address": record.address, "plan": self::plan(&plan) }),
        Err(error) => json!({ "address": record.address, "error": error }),
    }
}

fn plan(of: &Explained) -> Value {
    let [mixed, reads, writes] = of.modes;
    json!({
        "policy": of.policy,
        "reads_per_s": of.demand.reads,
        "writes_per_s": of.demand.writes,
        "peak": of.peak,
        "gap": of.gap(),
        "bound": of.bound,
        "cost": of.cost,
        "modes": { "mixed": mixed, "reads": reads, "writes": writes },
        "reads_off": of.reads_off,
        "stuck": of.stuck + 0.0,
        "limits": of.limits.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "text": of.to_string(),
    })
}

fn weights(kept: Option<&Kept>) -> Value {
    let Some(kept) = kept else { return Value::Null };
    let record = match WeightsRecord::decode(keys::WEIGHTS, &kept.value) {
        Ok(record) => record,
        Err(error) => return json!({ "error": format!("{} {error}", keys::WEIGHTS) }),
    };
    let mode = |number| match Mode::of_number(number) {
        Mode::Mixed => "mixed",
        Mode::Reads => "reads",
        Mode::Writes => "writes",
    };
    let nodes = record.nodes.iter().map(|of| {
        json!({ "node": of.node.0, "mode": mode(of.mode), "read": of.read, "write": of.write })
    });
    json!({
        "sequence": record.sequence,
        "valid_ms": record.valid_ns / flash::MILLISECOND,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}
