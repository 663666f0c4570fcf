//! The fast tier over HTTP: `GET /fast` tells how it does, `POST /fast/detach` takes it away.

use super::doors::Access;
use super::routes::Routes;
use super::{gather, refusal};
use crate::fast::{Detach, FastControl, detach};
use crate::runtime::shard::CoreStatus;
use crate::server::Control;
use crate::{ShardStatus, Wanted};
use axum::extract::{Json, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use flash::BLOCK_BYTES;
use serde_json::{Value, json};

/// The routes of this file.
pub fn routes(routes: Routes) -> Routes {
    routes.get("/fast", Access::Open, show).change(Method::POST, "/fast/detach", begin)
}

async fn show(State(control): State<Control>) -> Response {
    match gather(&control, Wanted::default()).await {
        Ok(shards) => Json(json(control.fast(), &shards)).into_response(),
        Err(response) => response,
    }
}

async fn begin(State(control): State<Control>) -> Response {
    let shards = match gather(&control, Wanted::default()).await {
        Ok(shards) => shards,
        Err(response) => return response,
    };
    if tiers(&shards).next().is_none() {
        let reason = "this device has no fast tier: there is nothing to detach";
        return refusal(StatusCode::CONFLICT, reason);
    }
    match detach(&control) {
        Ok(()) => Json(json(control.fast(), &shards)).into_response(),
        Err(reason) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &reason),
    }
}

fn tiers(shards: &[ShardStatus]) -> impl Iterator<Item = ftl::TierStatus> {
    shards.iter().filter_map(|shard| match &shard.core {
        CoreStatus::Block(status) => status.tier,
        CoreStatus::Raw(_) => None,
    })
}

/// The fast tier of all shards; null if the device has none and nobody took one away.
pub fn json(control: &FastControl, shards: &[ShardStatus]) -> Value {
    let detach = control.detach();
    let serves = tiers(shards).next().is_some();
    let lost = tiers(shards).find_map(|tier| tier.lost);
    let (state, reason) = match &detach {
        Detach::Draining => ("draining", None),
        Detach::Failed(reason) => ("failed", Some(reason.clone())),
        Detach::Done(_) if !serves => ("detached", None),
        _ if lost.is_some() => ("lost", lost.map(|lost| lost.to_string())),
        _ if serves => ("serving", None),
        _ => return Value::Null,
    };
    let path = match detach {
        Detach::Done(path) => path,
        _ => control.path(),
    };
    let sum =
        |of: fn(&ftl::TierStatus) -> u64| -> u64 { tiers(shards).map(|tier| of(&tier)).sum() };
    let bands = sum(|tier| tier.bands.into());
    let used = bands - sum(|tier| tier.bands_free.into());
    let block = BLOCK_BYTES as u64;
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let counter = |name: &str| total(shards, name);
    let written = counter("host_blocks_written");
    let fast = counter("fast_slots_programmed");
    json!({
        "state": state,
        "reason": reason,
        "path": path,
        "bytes": sum(|tier| tier.slots) * block,
        "bytes_valid": sum(|tier| tier.slots_valid) * block,
        "fill": share(used, bands),
        "bands": bands,
        "bands_free": bands - used,
        "destage_bytes_per_sec": shards.iter().map(|s| s.destage_bytes_per_sec).sum::<u64>(),
        "bytes_destaged": counter("slots_destaged") * block,
        "read_hit_share": share(counter("fast_host_blocks_read"), counter("host_blocks_read")),
        "write_drop_share": share(counter("slots_dropped"), written),
        "requests_spilled": counter("requests_spilled"),
        "waf": share(fast, written),
        "waf_capacity": share(counter("slots_programmed").saturating_sub(fast), written),
    })
}

fn total(shards: &[ShardStatus], wanted: &str) -> u64 {
    let counters = shards.iter().flat_map(|shard| shard.core.counters());
    counters.filter(|(name, _)| *name == wanted).map(|(_, value)| value).sum()
}
