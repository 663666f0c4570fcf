//! What the whole store is asked: how it does, to read everything (`/scrub`), to write it anew (`/compact`).

use super::query::Query;
use super::{Store, refusal, refused};
use ::store::services::{Scrubbed, SliceStatus};
use axum::extract::{Json, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Every route of a store, for programs.
pub const OPENAPI: &str = include_str!("openapi.json");

/// What goes on in the background.
pub struct Work {
    scrub: Mutex<Scrub>,
    compact: Arc<Semaphore>,
}

impl Default for Work {
    fn default() -> Self {
        Self { scrub: Mutex::default(), compact: Arc::new(Semaphore::new(1)) }
    }
}

/// The last scrub.
#[derive(Default)]
struct Scrub {
    running: bool,
    done: Option<Scrubbed>,
    failed: Option<String>,
}

impl Work {
    fn scrub(&self) -> MutexGuard<'_, Scrub> {
        self.scrub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scrub_json(&self) -> Value {
        let scrub = self.scrub();
        let mut value = json!(scrub.done);
        if value.is_null() {
            value = json!({});
        }
        value["running"] = scrub.running.into();
        value["failed"] = json!(scrub.failed);
        value
    }
}

pub async fn status(State(store): State<Store>) -> Response {
    let (slices, missing) =
        match store.ask_memory(|service| Ok((service.status(), service.missing()))).await {
            Ok(told) => told,
            Err(response) => return response,
        };
    let sum = |of: fn(&SliceStatus) -> u64| slices.iter().map(of).sum::<u64>();
    let (service, counts) = (&store.service, store.service.counts());
    let block_bytes = service.engine().block_bytes();
    let count = |name: &str| service.engine().count(name);
    let room = service.room().map(|(free, kept)| {
        json!({ "raw_blocks_free": free, "raw_blocks_kept": kept, "raw_block_bytes": block_bytes })
    });
    let (units, units_failed, units_why) = match &*service.units() {
        Ok(room) => (json!(room.units), room.failed(), None),
        Err(why) => (json!([]), None, Some(why.clone())),
    };
    let not_ready = service.ready().err().map(|why| why.to_string());
    Json(json!({
        "mode": "store",
        "keys": sum(|slice| slice.keys),
        "table_bytes": sum(|slice| slice.table_bytes),
        "raw_blocks": sum(|slice| slice.raw_blocks),
        "written": {
            "bytes": counts.bytes,
            "log_bytes": count("rocksdb.wal.bytes"),
            "table_bytes": count("weir.table_bytes_put"),
            "raw_blocks": count("weir.raw_blocks_put"),
            "raw_blocks_erased": count("weir.raw_blocks_erased"),
        },
        "memory_bytes": sum(|slice| slice.memory_bytes),
        "compaction_bytes": sum(|slice| slice.compaction_bytes),
        "commits": counts.commits,
        "batches": counts.batches,
        "room": room,
        "units": units,
        "units_failed": units_failed,
        "units_why": units_why,
        "not_ready": not_ready,
        "missing": missing,
        "only_read": service.engine().is_only_read(),
        "stopped": service.stopped().map(|why| why.to_string()),
        "slices": slices,
    }))
    .into_response()
}

pub async fn healthy(State(store): State<Store>) -> Response {
    match store.service.stopped() {
        None => Json(json!({ "healthy": true })).into_response(),
        Some(why) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, &format!("nothing can be written: {why}"))
        }
    }
}

pub async fn ready(State(store): State<Store>) -> Response {
    match store.service.ready() {
        Ok(()) => Json(json!({ "ready": true })).into_response(),
        Err(why) => refusal(StatusCode::SERVICE_UNAVAILABLE, &why.to_string()),
    }
}

pub async fn openapi() -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, JSON)], OPENAPI).into_response()
}

pub async fn scrubbed(State(store): State<Store>) -> Response {
    Json(store.work.scrub_json()).into_response()
}

pub async fn scrub(State(store): State<Store>) -> Response {
    {
        let mut scrub = store.work.scrub();
        if scrub.running {
            return refusal(
                StatusCode::CONFLICT,
                "a scrub is under way: GET /scrub tells how far it is",
            );
        }
        *scrub = Scrub { running: true, done: Some(Scrubbed::default()), failed: None };
    }
    let ours = store.clone();
    let run = move || {
        let result = ours.service.scrub(&mut |done| {
            ours.work.scrub().done = Some(done.clone());
            !ours.stopping.load(Ordering::Relaxed)
        });
        let mut scrub = ours.work.scrub();
        scrub.running = false;
        match result {
            Ok(done) => scrub.done = Some(done),
            Err(why) => scrub.failed = Some(why.to_string()),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("store-scrub".into()).spawn(run) {
        store.work.scrub().running = false;
        let reason = format!("a thread cannot be started: {error}: try again");
        return refusal(StatusCode::SERVICE_UNAVAILABLE, &reason);
    }
    (StatusCode::ACCEPTED, Json(store.work.scrub_json())).into_response()
}

pub async fn compact(State(store): State<Store>, uri: Uri) -> Response {
    compacted(&store, &uri).await.unwrap_or_else(|refused| refused)
}

async fn compacted(store: &Store, uri: &Uri) -> Result<Response, Response> {
    let mut query = Query::of(uri)?;
    let slice = query.take_number("slice")?;
    query.end()?;
    let slices = match slice {
        Some(slice) => {
            store.service.has_slice(slice).map_err(refused)?;
            slice..slice + 1
        }
        None => 0..store.service.slices(),
    };
    let alone = Arc::clone(&store.work.compact).try_acquire_owned();
    let under_way =
        "a compaction that somebody asked for is under way: ask again when it has ended";
    let _alone = alone.map_err(|_| refusal(StatusCode::CONFLICT, under_way))?;
    for slice in slices {
        store.ask(move |service| service.compact(slice)).await?;
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
