//! What the control plane and the controller know of a pool, as JSON.

use super::PoolError;
use super::config::PlaneConfig;
use super::controller::{self, Asked};
use super::plane::PlaneCalls;
use super::records::{self, Found};
use flash::BLOCK_BYTES;
use pool::control::contract::Kept;
use pool::control::keys;
use pool::control::values::{
    BandRecord, Degraded, NodeRecord, NodeState, OwnerRecord, Value as _, VolumeRecord,
    WeightsRecord,
};
use pool::controller::Explained;
use pool::words::{Mode, NodeId, VolumeId};
use serde_json::{Value, json};

/// All of it. What is missing or cannot be read is told in its place.
///
/// # Errors
/// The plane cannot be asked.
pub fn status(config: &PlaneConfig) -> Result<Value, PoolError> {
    let mut calls = PlaneCalls::connect(config)?;
    let nodes = records::nodes(&mut calls)?;
    let asked = controller::asked(config, &mut calls)?;
    let explained = asked.as_ref().and_then(Asked::explained);
    let mut volumes = Vec::new();
    for Found { record, .. } in records::volumes(&mut calls)? {
        let owner = calls.get(keys::owner(record.volume))?;
        let bands = calls.range(keys::bands(record.volume))?;
        let mut told = volume(&record, owner.as_ref(), &bands);
        told["redundancy"] = explained.map_or(Value::Null, |of| redundancy(of, record.volume));
        volumes.push(told);
    }
    let nodes = nodes.iter().map(|Found { record, .. }| {
        let mut told = node(record);
        told["room"] = explained.map_or(Value::Null, |of| room(of, record.node));
        told
    });
    let weights = calls.get(keys::WEIGHTS.to_owned())?;
    Ok(json!({
        "pool": format!("{:032x}", config.pool.0),
        "plane": config.at.to_string(),
        "nodes": nodes.collect::<Vec<_>>(),
        "volumes": volumes,
        "controller": asked.as_ref().map_or(Value::Null, controller_json),
        "weights": self::weights(weights.as_ref()),
    }))
}

/// Raw blocks of a node, if it has told of them.
fn room(of: &Explained, node: NodeId) -> Value {
    let found = of.rooms.iter().find(|(of, _)| *of == node);
    found.map_or(Value::Null, |(_, room)| json!({ "bands": room.bands, "bands_used": room.used }))
}

/// What the client of a volume says of its copies, if one does.
fn redundancy(of: &Explained, volume: VolumeId) -> Value {
    let found = of.redundancy.iter().find(|(of, _)| *of == volume);
    found.map_or(Value::Null, |(_, told)| {
        json!({
            "bands_lacking": told.lacking,
            "bands_stuck": told.stuck,
            "bands_draining": told.draining,
            "bands_spreading": told.spreading,
            "nodes_away": told.away,
            "bytes_left": told.bytes_left,
            "seconds_left": told.left_ns.map(|ns| ns as f64 / 1e9),
        })
    })
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
        "thin": record.is_thin,
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
    told["bands_unsound"] = json!(bands.iter().filter(|band| band.is_err()).count());
    told
}

fn controller_json(asked: &Asked) -> Value {
    match asked {
        Asked::Told(address, plan) => json!({ "address": address, "plan": plan_json(plan) }),
        Asked::Silent(address, error) => json!({ "address": address, "error": error }),
        Asked::Unsound(error) => json!({ "error": error }),
    }
}

fn plan_json(of: &Explained) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use pool::controller::{Limit, Redundancy, Room};

    #[test]
    fn what_nodes_and_clients_told_the_controller_is_at_them_and_what_is_not_told_is_null() {
        let told = Redundancy {
            lacking: 12,
            bytes_left: 3 << 30,
            left_ns: Some(40_500_000_000),
            ..Redundancy::default()
        };
        let full = Room { bands: 200, used: 198, pages: 136 };
        let explained = Explained {
            limits: vec![
                Limit::Full { node: NodeId(3), bands: 200, used: 198 },
                Limit::Unknown(NodeId(3)),
            ],
            rooms: vec![(NodeId(3), full)],
            redundancy: vec![(VolumeId(1), told)],
            ..Explained::default()
        };
        let of_node = room(&explained, NodeId(3));
        assert_eq!(of_node, json!({ "bands": 200, "bands_used": 198 }));
        assert!(room(&explained, NodeId(4)).is_null());
        let of_volume = redundancy(&explained, VolumeId(1));
        assert_eq!(
            (&of_volume["bands_lacking"], &of_volume["seconds_left"]),
            (&json!(12), &json!(40.5))
        );
        assert!(redundancy(&explained, VolumeId(2)).is_null());
        let limits = plan_json(&explained)["limits"].clone();
        assert!(limits[0].as_str().is_some_and(|it| it.contains("node 3 is full: 198 of 200")));
        assert!(limits[1].as_str().is_some_and(|it| it.contains("weir profile")), "{limits}");
    }
}
