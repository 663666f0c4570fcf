//! Volumes over HTTP: `GET /volumes` lists them and the room there is, `POST /volumes` makes one, `PATCH
//! /volumes/{name}` changes its name, size or limits, `DELETE /volumes/{name}` deletes it, `POST /volumes/{name}/snapshots`
//! takes a snapshot, which is deleted as a volume is, by its whole name, and `POST /volumes/{snapshot}/clones` makes a volume
//! that begins as it is. What was answered with 200 is durable and in force.

use super::doors::Access;
use super::refusal;
use super::routes::Routes;
use crate::device::{Change, ChangeError, JOINT, Limits, Snapshot, Stretch, Volume, blocks_of};
use crate::living::{Refused, Shown};
use crate::server::Control;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Json, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use flash::BLOCK_BYTES;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::task::spawn_blocking;

/// The routes of this file.
pub fn routes(routes: Routes) -> Routes {
    routes
        .get("/volumes", Access::Open, list)
        .change(Method::POST, "/volumes", create)
        .change(Method::PATCH, "/volumes/{name}", change)
        .change(Method::DELETE, "/volumes/{name}", delete)
        .change(Method::POST, "/volumes/{name}/snapshots", snapshot)
        .change(Method::POST, "/volumes/{name}/clones", clone)
}

/// A volume to be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Made {
    name: String,
    size_bytes: u64,
    #[serde(default)]
    read_only: bool,
}

/// A snapshot or a clone to be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Taken {
    name: String,
}

/// What of a volume shall be other than it is: one of these.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Other {
    name: Option<String>,
    size_bytes: Option<u64>,
    /// It may be smaller than it was.
    #[serde(default)]
    shrink: bool,
    limits: Option<OtherLimits>,
}

/// Each 0 unless it is said.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct OtherLimits {
    iops: u64,
    bytes_per_sec: u64,
    burst_ms: u64,
}

async fn list(State(control): State<Control>) -> Response {
    // The shards are asked for what snapshots hold.
    match spawn_blocking(move || json_of(&control)).await {
        Ok(value) => Json(value).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn create(
    State(control): State<Control>,
    made: Result<Json<Made>, JsonRejection>,
) -> Response {
    let Json(Made { name, size_bytes, read_only }) = match made {
        Ok(made) => made,
        Err(error) => return refusal(error.status(), &error.body_text()),
    };
    let Some(blocks) = whole_blocks(size_bytes) else { return bad_size() };
    make_new(control, name.clone(), |uuid| Change::Create { name, blocks, uuid, read_only }).await
}

async fn change(
    State(control): State<Control>,
    Path(name): Path<String>,
    other: Result<Json<Other>, JsonRejection>,
) -> Response {
    let Json(Other { name: to, size_bytes, shrink, limits }) = match other {
        Ok(other) => other,
        Err(error) => return refusal(error.status(), &error.body_text()),
    };
    let called = to.clone().unwrap_or(name.clone());
    let change = match (to, size_bytes, limits) {
        (Some(to), None, None) => {
            let uuid = control.volumes().uuid_by_name(&name);
            Change::Rename { from: name, to, uuid }
        }
        (None, Some(size_bytes), None) => {
            let Some(blocks) = whole_blocks(size_bytes) else { return bad_size() };
            Change::Resize { name, blocks, shrink }
        }
        (None, None, Some(OtherLimits { iops, bytes_per_sec, burst_ms })) => {
            let limits = Limits { iops, bytes_per_sec, burst_ms };
            if let Err((key, reason)) = limits.check() {
                return refusal(StatusCode::BAD_REQUEST, &format!("{key}: {reason}"));
            }
            Change::Limit { name, limits }
        }
        _ => {
            let reason = "one change at a time: name, size_bytes (with shrink), or limits";
            return refusal(StatusCode::BAD_REQUEST, reason);
        }
    };
    make(control, change, called).await
}

async fn snapshot(
    State(control): State<Control>,
    Path(volume): Path<String>,
    taken: Result<Json<Taken>, JsonRejection>,
) -> Response {
    let Json(Taken { name }) = match taken {
        Ok(taken) => taken,
        Err(error) => return refusal(error.status(), &error.body_text()),
    };
    let called = format!("{volume}{JOINT}{name}");
    make_new(control, called, |uuid| Change::Snapshot { volume, name, uuid }).await
}

async fn clone(
    State(control): State<Control>,
    Path(of): Path<String>,
    taken: Result<Json<Taken>, JsonRejection>,
) -> Response {
    let Json(Taken { name }) = match taken {
        Ok(taken) => taken,
        Err(error) => return refusal(error.status(), &error.body_text()),
    };
    make_new(control, name.clone(), |uuid| Change::Clone { of, name, uuid }).await
}

async fn delete(State(control): State<Control>, Path(name): Path<String>) -> Response {
    make(control, Change::Delete { name: name.clone() }, name).await
}

/// Makes what hosts know by a uuid from then on.
async fn make_new(
    control: Control,
    called: String,
    change: impl FnOnce(u128) -> Change,
) -> Response {
    match control.volumes().new_uuid(&called) {
        Ok(uuid) => make(control, change(uuid), called).await,
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Makes a change, on a thread that may wait, and tells of the volume, or the snapshot, that is called so then.
async fn make(control: Control, change: Change, called: String) -> Response {
    let made = spawn_blocking(move || -> Result<Value, Refused> {
        control.volumes().change(change)?;
        Ok(json_of(&control))
    });
    match made.await {
        Ok(Ok(mut all)) => {
            let found = |key: &str| {
                let mut there = all[key].as_array().into_iter().flatten();
                there.find(|one| one["name"] == called.as_str()).cloned()
            };
            let volume = found("volumes").or_else(|| found("snapshots"));
            all["volume"] = volume.unwrap_or_default();
            Json(all).into_response()
        }
        Ok(Err(refused)) => refusal(status_of(&refused), &refused.to_string()),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn status_of(refused: &Refused) -> StatusCode {
    match refused {
        Refused::Change(ChangeError::Unknown(..)) => StatusCode::NOT_FOUND,
        Refused::Change(
            ChangeError::Name(_) | ChangeError::Size | ChangeError::SnapshotName(_),
        ) => StatusCode::BAD_REQUEST,
        Refused::Change(_) | Refused::Never(_) => StatusCode::CONFLICT,
        Refused::Unknown(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn bad_size() -> Response {
    refusal(StatusCode::BAD_REQUEST, &ChangeError::Size.to_string())
}

fn whole_blocks(bytes: u64) -> Option<u64> {
    let block = BLOCK_BYTES as u64;
    (bytes > 0 && bytes.is_multiple_of(block)).then_some(bytes / block)
}

fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES as u64)
}

/// The volumes, their snapshots, and what room there is. It waits for the shards, if there are snapshots.
fn json_of(control: &Control) -> Value {
    let volumes = control.volumes();
    let Shown { table, device_blocks, free_blocks } = volumes.shown();
    let offered = control.offered();
    let one = |volume: &Volume| {
        // What is in force may be by the config.
        let found = offered.volumes.iter().find(|served| served.number == volume.number);
        let served = found.unwrap_or(volume);
        let Limits { iops, bytes_per_sec, burst_ms } = served.limits;
        let stretch =
            |stretch: &Stretch| json!({ "first_block": stretch.first, "blocks": stretch.blocks });
        json!({
            "name": volume.name,
            "number": volume.number,
            "size_bytes": bytes(volume.blocks()),
            "read_only": served.read_only,
            "clone_of": table.origin_of(volume),
            "limits": { "iops": iops, "bytes_per_sec": bytes_per_sec, "burst_ms": burst_ms },
            "stretches": volume.stretches.iter().map(stretch).collect::<Vec<_>>(),
        })
    };
    let held = match table.snapshots.is_empty() {
        true => BTreeMap::new(),
        false => volumes.held_blocks(),
    };
    let taken = |snapshot: &Snapshot| {
        let volume = table.volumes.iter().find(|volume| volume.number == snapshot.volume);
        json!({
            "name": table.name_of(snapshot),
            "number": snapshot.number,
            "volume": volume.map(|volume| &volume.name),
            "size_bytes": bytes(snapshot.blocks()),
            "held_bytes": held.get(&snapshot.number).map(|&blocks| bytes(blocks)),
        })
    };
    json!({
        "fixed": volumes.fixed_because(),
        "volumes": table.volumes.iter().map(one).collect::<Vec<_>>(),
        "snapshots": table.snapshots.iter().map(taken).collect::<Vec<_>>(),
        "device_bytes": bytes(device_blocks),
        "free_bytes": bytes(free_blocks),
        "leaving_bytes": bytes(blocks_of(&table.leaving)),
    })
}
