//! What a store tells Prometheus (`GET /metrics`): what it was asked, by service and operation, and how long that took;
//! what it refused, and why; and what RocksDB, the store below it and the units have counted, asked anew for each scrape.
//!
//! Names are those of Prometheus' conventions: seconds and bytes, `_total` for what only grows since the start.

use super::Store;
use crate::control::{Build, Format, refusal};
use crate::latency::BOUNDS_NS;
use ::store::services::{Counts, Service, SliceStatus};
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flash::SECOND;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// What somebody asked, as metrics tell it apart.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
pub struct Asked {
    service: &'static str,
    op: &'static str,
}

impl Asked {
    /// `None` for what is no service's, as the state.
    fn of(method: &Method, path: &str, query: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let (service, rest) = match path.split_once('/') {
            Some((service, rest)) => (service, Some(rest)),
            None => (path, None),
        };
        let service = SERVICES.into_iter().find(|known| *known == service)?;
        let parts = rest.map_or(0, |rest| rest.split('/').count());
        let is_get = method == Method::GET || method == Method::HEAD;
        let op = match (service, method) {
            ("kv", _) if is_get && rest.is_none() => "scan",
            // A table, of which a row has two parts and a cell four.
            ("table", _) if is_get && parts < 4 => "scan",
            ("fs", _) if is_get && path.ends_with('/') => "list",
            (_, _) if is_get => "get",
            ("fs", &Method::POST) => "rename",
            (_, &Method::POST) if query.contains("do=get") => "get_many",
            (_, &Method::POST) => "write_many",
            (_, &Method::PUT) => "put",
            (_, &Method::DELETE) => "delete",
            _ => return None,
        };
        Some(Self { service, op })
    }
}

const SERVICES: [&str; 3] = ["kv", "table", "fs"];

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct Slice {
    slice: u32,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, EncodeLabelSet)]
struct Unit {
    unit: u32,
}

/// Why an answer refuses, where its status alone does not tell.
#[derive(Clone, Copy, Debug)]
pub struct Why(pub &'static str);

type Durations = Family<Asked, Histogram>;
type Counters<L> = Family<L, Counter>;

/// What was asked since the start.
#[derive(Debug)]
pub struct Metrics {
    durations: Durations,
    received: Counters<Asked>,
    sent: Counters<Asked>,
    refused: Counters<Reason>,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = || Histogram::new(BOUNDS_NS.into_iter().map(|ns| ns as f64 / SECOND as f64));
        let refused = Counters::default();
        for reason in REASONS {
            // One that never came is told as none, so that its rate is known from the first on.
            drop(refused.get_or_create(&Reason { reason }));
        }
        Self {
            durations: Family::new_with_constructor(buckets),
            received: Family::default(),
            sent: Family::default(),
            refused,
        }
    }
}

const REASONS: [&str; 10] = [
    "usage",
    "right",
    "conflict",
    "too_large",
    "busy",
    "unready",
    "full",
    "damaged",
    "failed",
    "other",
];

impl Metrics {
    fn note(&self, asked: Asked, took: Duration, received: u64, response: &Response) {
        self.durations.get_or_create(&asked).observe(took.as_secs_f64());
        self.received.get_or_create(&asked).inc_by(received);
        let exact = response.body().size_hint().exact();
        let sent = length(response.headers()).or(exact).unwrap_or(0);
        self.sent.get_or_create(&asked).inc_by(sent);
        if let Some(reason) = reason(response) {
            self.refused.get_or_create(&Reason { reason }).inc();
        }
    }
}

/// Why an answer refuses; `None` if it does not, or only says that there is no such thing.
fn reason(response: &Response) -> Option<&'static str> {
    if let Some(Why(why)) = response.extensions().get() {
        return Some(why);
    }
    Some(match response.status() {
        StatusCode::NOT_FOUND => return None,
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => "usage",
        StatusCode::RANGE_NOT_SATISFIABLE => "usage",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "right",
        StatusCode::CONFLICT => "conflict",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::REQUEST_TIMEOUT => "busy",
        StatusCode::INSUFFICIENT_STORAGE => "full",
        StatusCode::INTERNAL_SERVER_ERROR => "failed",
        status if status.is_client_error() || status.is_server_error() => "other",
        _ => return None,
    })
}

fn length(head: &HeaderMap) -> Option<u64> {
    head.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Counts every request, refused ones too.
pub async fn measure(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let uri = request.uri();
    let asked = Asked::of(request.method(), uri.path(), uri.query().unwrap_or_default());
    let received = length(request.headers()).unwrap_or(0);
    let begun = Instant::now();
    let response = next.run(request).await;
    if let Some(asked) = asked {
        metrics.note(asked, begun.elapsed(), received, &response);
    }
    response
}

/// `GET /metrics`.
pub async fn metrics(State(store): State<Store>, head: HeaderMap) -> Response {
    let accept = head.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::wanted(&accept.collect::<Vec<_>>().join(","));
    let registry = match store.ask_memory(|service| Ok(of_service(service))).await {
        Ok(registry) => registry,
        Err(response) => return response,
    };
    match encode(registry, &store.metrics, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn encode(
    mut registry: Registry,
    metrics: &Metrics,
    format: Format,
) -> Result<Vec<u8>, fmt::Error> {
    registry.register(
        "request_duration_seconds",
        "Time from a request's head to that of its answer, the body of the request included",
        metrics.durations.clone(),
    );
    registry.register(
        "received_bytes",
        "Bytes of bodies that clients announced with their requests",
        metrics.received.clone(),
    );
    registry.register("sent_bytes", "Bytes of bodies of answers", metrics.sent.clone());
    registry.register(
        "requests_refused",
        "Requests that were not done, by why: wrong, without the right, in the way of something, too large, too many at a \
         time, units that do not answer, no room, damage, a failed engine",
        metrics.refused.clone(),
    );
    let mut open = String::new();
    text::encode(&mut open, &registry)?;
    Ok(format.of(open, &[]))
}

/// What the engine counts: its name there, name and help here, and how many of its units are one of ours.
const ENGINE: &[(&str, &str, &str, f64)] = &[
    (
        "rocksdb.compact.read.bytes",
        "compaction_read_bytes",
        "Bytes of SSTs that compaction read",
        1.0,
    ),
    (
        "rocksdb.compact.write.bytes",
        "compaction_written_bytes",
        "Bytes of SSTs that compaction wrote",
        1.0,
    ),
    (
        "rocksdb.flush.write.bytes",
        "flush_written_bytes",
        "Bytes of SSTs that full memtables became",
        1.0,
    ),
    ("rocksdb.wal.bytes", "log_written_bytes", "Bytes written to the log", 1.0),
    (
        "rocksdb.stall.micros",
        "write_stall_seconds",
        "Seconds that writes waited for compaction or for memtables to be written",
        1e-6,
    ),
    ("rocksdb.block.cache.hit", "cache_hits", "Blocks of SSTs that were found in memory", 1.0),
    ("rocksdb.block.cache.miss", "cache_misses", "Blocks of SSTs that had to be read", 1.0),
    ("weir.raw_blocks_put", "raw_blocks_put", "Raw blocks written to the units", 1.0),
    (
        "weir.table_bytes_put",
        "table_put_bytes",
        "Bytes of SSTs in the raw blocks that were written, of flushes and compactions that have not ended too",
        1.0,
    ),
    ("weir.raw_blocks_erased", "raw_blocks_erased", "Raw blocks that were asked to be erased", 1.0),
    ("weir.reads", "table_reads", "Reads of raw blocks asked of the units", 1.0),
    ("weir.read_bytes", "table_read_bytes", "Bytes of SSTs read from the units", 1.0),
];

/// What is told of each slice.
#[allow(clippy::type_complexity, reason = "a table, read as one")]
const SLICE: &[(&str, &str, fn(&SliceStatus) -> u64)] = &[
    ("slice_keys", "Keys of the slice, as RocksDB estimates them", |slice| slice.keys),
    ("slice_tables", "SSTs of the slice", |slice| slice.tables),
    ("slice_table_bytes", "Bytes of the SSTs of the slice", |slice| slice.table_bytes),
    (
        "slice_raw_blocks",
        "Raw blocks that the SSTs of the slice fill, the last one of each in part",
        |slice| slice.raw_blocks,
    ),
    ("slice_memory_bytes", "Bytes of the memtables of the slice", |slice| slice.memory_bytes),
    (
        "slice_compaction_pending_bytes",
        "Bytes that compaction of the slice has still to write anew, as RocksDB estimates them",
        |slice| slice.compaction_bytes,
    ),
];

/// What the store, its engine and its units have counted.
fn of_service(service: &Service) -> Registry {
    let mut registry = Registry::with_prefix("weir_store");
    registry.register_collector(Box::new(Build));
    let Counts { commits, batches, bytes } = service.counts();
    counter(&mut registry, "commits", "Commits that are durable", commits as f64);
    counter(
        &mut registry,
        "syncs",
        "Syncs of the log, each of which made some durable",
        batches as f64,
    );
    counter(
        &mut registry,
        "committed_bytes",
        "Bytes of keys and values that were written",
        bytes as f64,
    );
    for (of, name, help, unit) in ENGINE {
        counter(&mut registry, name, help, service.engine().count(of) as f64 * unit);
    }
    let slices = service.status();
    for (name, help, value) in SLICE {
        let values = slices.iter().map(|slice| (Slice { slice: slice.slice }, value(slice) as f64));
        gauges(&mut registry, name, help, values);
    }
    let (is_ready, is_stopped) = (service.ready().is_ok(), service.stopped().is_some());
    let one = |is: bool| f64::from(u8::from(is));
    gauge(&mut registry, "ready", "1 while puts are taken, else 0", one(is_ready));
    gauge(
        &mut registry,
        "stopped",
        "1 once nothing can be written any more, else 0",
        one(is_stopped),
    );
    room(&mut registry, service);
    registry
}

fn room(registry: &mut Registry, service: &Service) {
    let kept = service.room().map_or(0, |(_, kept)| kept);
    let help =
        "Raw blocks that are kept free for compaction: puts are refused when no more are left";
    gauge(registry, "raw_blocks_kept", help, kept as f64);
    let units = service.units();
    let answer = f64::from(u8::from(units.is_ok()));
    gauge(registry, "units_answer", "1 while the server of the units answers, else 0", answer);
    let Ok(room) = &*units else { return };
    let of = |value: fn(&::store::remote::UnitRoom) -> u32| {
        let values = room.units.iter().map(move |unit| (Unit { unit: unit.unit }, value(unit)));
        values.map(|(labels, value)| (labels, value.into()))
    };
    let help = "Raw blocks of the unit that are free, or are being erased";
    gauges(registry, "unit_raw_blocks_free", help, of(|unit| unit.raw_blocks_free));
    let help = "Raw blocks that the unit has in all; none if it writes nothing more";
    gauges(registry, "unit_raw_blocks", help, of(|unit| unit.raw_blocks));
    let help = "Blocks of the unit's flash that may still take the place of one that fails";
    gauges(registry, "unit_blocks_spare", help, of(|unit| unit.blocks_spare));
    let help = "1 if the unit writes nothing any more, else 0";
    gauges(registry, "unit_gone", help, of(|unit| unit.gone.into()));
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let counter = Counter::<f64, AtomicU64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Gauge::<f64, AtomicU64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn gauges<L>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, f64)>,
) where
    L: Clone + fmt::Debug + Eq + Hash + EncodeLabelSet + Send + Sync + 'static,
{
    let family = Family::<L, Gauge<f64, AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_told_apart_by_service_and_operation() {
        for (method, path, query, service, op) in [
            (Method::GET, "/kv", "prefix=a", "kv", "scan"),
            (Method::GET, "/kv/a%2Fb", "", "kv", "get"),
            (Method::HEAD, "/kv/a", "", "kv", "get"),
            (Method::PUT, "/kv/a/b", "", "kv", "put"),
            (Method::DELETE, "/kv/a", "", "kv", "delete"),
            (Method::POST, "/kv", "do=get", "kv", "get_many"),
            (Method::POST, "/kv", "do=write", "kv", "write_many"),
            (Method::GET, "/table", "", "table", "scan"),
            (Method::GET, "/table/t", "from=a", "table", "scan"),
            (Method::GET, "/table/t/r", "", "table", "scan"),
            (Method::GET, "/table/t/r/f/", "", "table", "get"),
            (Method::POST, "/table", "do=write", "table", "write_many"),
            (Method::GET, "/fs/a/b", "", "fs", "get"),
            (Method::GET, "/fs/a/", "", "fs", "list"),
            (Method::GET, "/fs/", "all=true", "fs", "list"),
            (Method::POST, "/fs/a", "to=a/b", "fs", "rename"),
        ] {
            let asked = Asked::of(&method, path, query);
            assert_eq!(asked, Some(Asked { service, op }), "{method} {path}?{query}");
        }
        for (method, path) in [
            (Method::GET, "/status"),
            (Method::GET, "/"),
            (Method::GET, "/kvs/a"),
            (Method::PATCH, "/kv/a"),
        ] {
            assert_eq!(Asked::of(&method, path, ""), None, "{method} {path}");
        }
    }
}
