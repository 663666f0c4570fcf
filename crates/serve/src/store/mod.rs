//! A store's services over HTTP ([`store::services`]): values under `/kv`, cells under `/table`, files under `/fs`, and what
//! the whole store is told to do (docs/store.md has every route).
//!
//! It has the doors of a server of devices: the control socket, and TCP with a token for all that is more than the state. One
//! thread speaks HTTP; the engine is asked on others, as many as units are read at a time. Writes are
//! answered when they are durable, and share the syncs of the log.
#![expect(
    clippy::result_large_err,
    reason = "an answer that refuses is made once, and goes out as it is"
)]

mod body;
mod cells;
mod files;
mod listed;
mod metrics;
mod query;
#[cfg(test)]
mod tests;
mod values;
mod work;

use crate::config::{ControlConfig, HttpConfig};
use crate::control::{self, Access, Http, Listeners, Routes, Rules, guard, refusal};
use crate::descriptors::Clients;
use crate::doors;
use crate::server::ServeError;
use crate::signals::Stopper;
use crate::sockets::{self, SocketFile};
use ::store::remote::{Addresses, Units};
use ::store::services::{Change, Loaded, Opened, Refused, Service};
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post, put};
use body::Memory;
use flash::SECOND;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// What a store may take to stop: RocksDB ends what it has begun.
const STOP_NS: u64 = 60 * SECOND;
/// Requests that the engine works on at a time; each reads from one unit.
const THREADS: usize = 88;
/// Those that need no unit, on threads of their own: they never wait for a unit that another one waits for.
const MEMORY_THREADS: usize = 8;
/// A client has a connection for each request.
const CONTROL_CLIENTS_MAX: usize = 500;
/// How often the room of the units is asked for, and when little is left.
const ROOM_EVERY: Duration = Duration::from_millis(500);
const LITTLE_ROOM_EVERY: Duration = Duration::from_millis(50);
/// How long what a request began may go on after the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// What is served, and where.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The units and the small volume.
    pub addresses: Addresses,
    /// The library that `./x rocksdb` builds.
    pub engine: PathBuf,
    /// Slices of a new store.
    pub slices: Option<u32>,
    /// What for, with how much memory, and how long units may take to answer a read.
    pub opened: Opened,
    /// The control socket, for the owner of the process.
    pub control: PathBuf,
    /// HTTP over TCP.
    pub http: Option<HttpConfig>,
}

/// A store that clients may come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreReady {
    /// Where it listens over TCP.
    pub http: Option<SocketAddr>,
    /// Its slices.
    pub slices: u32,
    /// Files whose writing an earlier end cut off, and which are gone.
    pub cleared: u64,
    /// It was opened to read what is left.
    pub only_read: bool,
}

/// Why a store is not served, or not any more.
#[derive(Debug)]
pub enum StoreError {
    /// Sockets, threads, descriptors.
    Server(ServeError),
    /// The store cannot be opened.
    Open(Refused),
    /// Nothing can be written any more.
    Ended(Refused),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => error.fmt(f),
            Self::Open(why) => why.fmt(f),
            Self::Ended(why @ Refused::Damaged(_)) => write!(
                f,
                "the store has ended, as nothing can be written any more: {why}: what was acknowledged and lies \
                 elsewhere is safe: `weir store serve --damaged` reads it, `weir store dump` saves it, and `weir store \
                 load` puts it into another store"
            ),
            Self::Ended(why) => write!(
                f,
                "the store has ended, as nothing can be written any more: {why}: what was acknowledged is safe: see \
                 that its two servers run, and start it again"
            ),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<ServeError> for StoreError {
    fn from(error: ServeError) -> Self {
        Self::Server(error)
    }
}

/// Serves a store until a signal. `ready` is called once clients may come.
///
/// Call it before other threads are started, as [`crate::run`].
///
/// # Errors
/// Why it cannot, or had to end.
pub fn run(config: &StoreConfig, ready: impl FnOnce(&StoreReady)) -> Result<(), StoreError> {
    let stopper = Stopper::new(STOP_NS)?;
    let mut files = Vec::new();
    let control = ControlConfig {
        path: config.control.clone(),
        access: sockets::Access::OWNER,
        clients_max: CONTROL_CLIENTS_MAX,
    };
    let listeners = doors::bind_http(Some(&control), config.http.as_ref(), &mut files)?;
    let rules = Rules::of(config.http.as_ref())?;
    let engine =
        Loaded::open(&config.engine, &config.addresses, config.opened).map_err(StoreError::Open)?;
    let (ends, ended) = mpsc::channel();
    let fails = ends.clone();
    // Who waits for it may be gone: then it ends anyway.
    let failed = move |why: &Refused| drop(fails.send(Err(why.clone())));
    let service = Service::open(engine, config.slices, failed).map_err(StoreError::Open)?;
    let service = Arc::new(service);
    let room = Room::watch(&config.addresses, &service)?;
    let wanted = Clients {
        nbd: 0,
        newcomers: 0,
        http: config.http.as_ref().map_or(0, |http| http.clients_max),
        control: control.clients_max,
    };
    let clients = doors::granted(wanted, 0)?;
    let http = listeners.tcp.as_ref().map(|(_, address)| *address);
    let (slices, cleared) = (service.slices(), service.cleared());
    let only_read = service.engine().is_only_read();
    let told = StoreReady { http, slices, cleared, only_read };
    let server = start(listeners, rules, clients, Arc::clone(&service))?;
    stopper.stops(move || drop(ends.send(Ok(()))));
    ready(&told);
    let end = ended.recv().unwrap_or(Ok(()));
    if end.is_err() {
        // Clients hear why from the answers that are on their way.
        std::thread::sleep(ROOM_EVERY);
    }
    drop(server);
    drop(room);
    let end = end.map_err(StoreError::Ended);
    close(service, files, &end);
    end
}

/// Closes the engine when its last request has ended. One that does not end is left behind with the process: nothing
/// acknowledged needs it.
fn close(service: Arc<Service>, files: Vec<SocketFile>, end: &Result<(), StoreError>) {
    let mut service = service;
    for _ in 0..100 {
        match Arc::try_unwrap(service) {
            Ok(last) => return drop(last),
            Err(held) => service = held,
        }
        std::thread::sleep(FAREWELL / 100);
    }
    drop(files);
    tracing::warn!("a request of the store does not end: the process ends without closing it");
    if let Err(error) = end {
        eprintln!("error: {error}");
    }
    // RocksDB's threads would use what the end of the process takes from them.
    // SAFETY: it ends the process.
    unsafe { libc::_exit(if end.is_ok() { 0 } else { 2 }) };
}

/// Tells the service how much room the units have.
struct Room {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Room {
    fn watch(addresses: &Addresses, service: &Arc<Service>) -> Result<Self, StoreError> {
        let failed = |error: ::store::Error| StoreError::Open(Refused::Failed(error.to_string()));
        let units = Units::open(addresses).map_err(failed)?;
        service.set_room(Ok(units.room().map_err(failed)?));
        service.set_look(Box::new(move || units.room().map_err(|error| error.to_string())));
        let stop: Arc<AtomicBool> = Arc::default();
        let (stops, service) = (Arc::clone(&stop), Arc::clone(service));
        let watch = move || {
            while !stops.load(Ordering::Relaxed) {
                let is_little = service.is_nearly_full();
                std::thread::park_timeout(if is_little { LITTLE_ROOM_EVERY } else { ROOM_EVERY });
                // A server that does not answer now may later; what it says then counts.
                service.look();
            }
        };
        let thread = std::thread::Builder::new().name("store-room".into()).spawn(watch);
        let thread =
            thread.map_err(|error| ServeError::System { doing: "start a thread", error })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().ok();
        }
    }
}

/// The HTTP of a store, on a thread of its own.
fn start(
    listeners: Listeners,
    rules: Rules,
    clients: Clients,
    service: Arc<Service>,
) -> Result<Http, ServeError> {
    Http::on_a_thread(move |stopped| serve(listeners, rules, clients, service, stopped))
}

fn serve(
    listeners: Listeners,
    rules: Rules,
    clients: Clients,
    service: Arc<Service>,
    stopped: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS + MEMORY_THREADS + body::STREAMS_MAX)
        .build()?;
    let head_time = rules.head_time();
    let store = Store::new(service);
    let stopping = Arc::clone(&store.stopping);
    let router = router(Arc::new(rules), store);
    let result = runtime.block_on(async {
        let _doors = control::open(listeners, clients, head_time, router)?;
        stopped.await.ok();
        Ok(())
    });
    stopping.store(true, Ordering::Relaxed);
    runtime.shutdown_timeout(FAREWELL);
    result
}

/// What a request needs.
#[derive(Clone)]
struct Store {
    service: Arc<Service>,
    memory: Memory,
    units: Arc<Semaphore>,
    in_memory: Arc<Semaphore>,
    work: Arc<work::Work>,
    metrics: Arc<metrics::Metrics>,
    stopping: Arc<AtomicBool>,
}

impl Store {
    fn new(service: Arc<Service>) -> Self {
        let (memory, work, metrics) = (Memory::new(), Arc::default(), Arc::default());
        let of = |count| Arc::new(Semaphore::new(count));
        let (units, in_memory) = (of(THREADS), of(MEMORY_THREADS));
        Self { service, memory, units, in_memory, work, metrics, stopping: Arc::default() }
    }

    /// Asks the engine, on a thread that may wait for units.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Response> {
        self.ask_in_turn(&self.units, work).await
    }

    /// The same of what needs no unit.
    async fn ask_memory<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Response> {
        self.ask_in_turn(&self.in_memory, work).await
    }

    async fn ask_in_turn<T: Send + 'static>(
        &self,
        turns: &Arc<Semaphore>,
        work: impl FnOnce(&Service) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Response> {
        let turn = body::part(Arc::clone(turns).acquire_owned()).await?;
        let service = Arc::clone(&self.service);
        let work = move || {
            // As long as the thread is at it, also when the client has gone.
            let _turn = turn;
            work(&service)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result.map_err(refused),
            Err(_) => {
                Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, "the store has a bug: see its log"))
            }
        }
    }

    /// Makes changes; returns when they are durable. They go on if the client has gone.
    async fn commit(&self, changes: Vec<Change>) -> Result<(), Response> {
        let (sender, receiver) = oneshot::channel();
        self.service.submit(changes, Box::new(move |result| drop(sender.send(result))));
        match receiver.await {
            Ok(result) => result.map_err(refused),
            Err(_) => Err(refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                "the store is ending: ask again later",
            )),
        }
    }
}

/// Every route, behind the rules; all that comes is counted.
fn router(rules: Arc<Rules>, store: Store) -> axum::Router {
    let (router, _) = routes(Arc::clone(&rules)).into_parts();
    let router = router.fallback(unknown).method_not_allowed_fallback(not_allowed);
    let metrics = Arc::clone(&store.metrics);
    let router = router.layer(from_fn_with_state(rules, guard));
    router.layer(from_fn_with_state(metrics, metrics::measure)).with_state(store)
}

async fn unknown() -> Response {
    refusal(StatusCode::NOT_FOUND, "there is no such route: GET /openapi.json has all")
}

async fn not_allowed() -> Response {
    let reason = "this route does not take that method: GET /openapi.json has what it takes";
    refusal(StatusCode::METHOD_NOT_ALLOWED, reason)
}

/// A route that takes no query.
fn plain(handler: MethodRouter<Store>) -> MethodRouter<Store> {
    handler.layer(from_fn(query::none))
}

fn routes(rules: Arc<Rules>) -> Routes<Store> {
    let (data, change) = (Access::Private, Access::Change);
    Routes::new(rules)
        .with(Method::GET, "/status", Access::Open, plain(get(work::status)))
        .with(Method::GET, "/healthz", Access::Open, plain(get(work::healthy)))
        .with(Method::GET, "/readyz", Access::Open, plain(get(work::ready)))
        .with(Method::GET, "/metrics", Access::Open, plain(get(metrics::metrics)))
        .with(Method::GET, "/openapi.json", Access::Open, plain(get(work::openapi)))
        .with(Method::GET, "/scrub", Access::Open, plain(get(work::scrubbed)))
        .with(Method::POST, "/scrub", change, plain(post(work::scrub)))
        .with(Method::POST, "/compact", change, post(work::compact))
        .with(Method::GET, "/kv", data, get(values::list))
        .with(Method::POST, "/kv", change, post(values::many))
        .with(Method::GET, "/kv/{*key}", data, get(values::read))
        .with(Method::PUT, "/kv/{*key}", change, put(values::write))
        .with(Method::DELETE, "/kv/{*key}", change, delete(values::remove))
        .with(Method::GET, "/table", data, get(cells::list))
        .with(Method::POST, "/table", change, post(cells::many))
        .with(Method::GET, "/table/{*cell}", data, get(cells::read))
        .with(Method::PUT, "/table/{*cell}", change, put(cells::write))
        .with(Method::DELETE, "/table/{*cell}", change, delete(cells::remove))
        .with(Method::GET, "/fs/", data, get(files::read))
        .with(Method::GET, "/fs/{*path}", data, get(files::read))
        .with(Method::PUT, "/fs/{*path}", change, put(files::write))
        .with(Method::POST, "/fs/{*path}", change, post(files::rename))
        .with(Method::DELETE, "/fs/{*path}", change, delete(files::remove))
}

/// The answer for what the service does not do.
fn refused(why: Refused) -> Response {
    let code = match &why {
        Refused::Missing(_) => StatusCode::NOT_FOUND,
        Refused::Conflict(_) => StatusCode::CONFLICT,
        Refused::Usage(_) => StatusCode::BAD_REQUEST,
        Refused::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        Refused::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
        Refused::Unready(_) => StatusCode::SERVICE_UNAVAILABLE,
        Refused::Damaged(_) | Refused::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = refusal(code, &why.to_string());
    let why = match why {
        Refused::Damaged(_) => Some(metrics::Why("damaged")),
        Refused::Unready(_) => Some(metrics::Why("unready")),
        _ => None,
    };
    if let Some(why) = why {
        response.extensions_mut().insert(why);
    }
    response
}
