//! The HTTP API and the dashboard, on a thread of its own: `GET /status` (JSON), `GET /metrics`
//! (Prometheus), `GET /slow` (why requests were slow), `GET /healthz` and `/readyz`, `GET /units` and `/units/N`, blocks by ID under `/blocks`, `/policy` and `/plugins`,
//! `/fast`, `/volumes`, `GET /history`, `GET /openapi.json`, and a page at `/`.
//!
//! It has two doors, the control socket and TCP; who may do what behind which, [`doors`] decides for
//! every request. How many clients there are and how long they may take is bounded by [`serving`].
//!
//! Shards are asked by message and answer on their own threads; one that does not answer in time
//! makes the whole answer a 503, so that nobody takes half a status for a whole one.

mod blocks;
mod dashboard;
mod doors;
mod exposition;
mod fast;
mod health;
mod history;
mod latency;
mod metrics;
mod policy;
mod protobuf;
mod reasons;
mod routes;
mod serving;
mod slow;
mod status;
mod token;
mod volumes;

pub(crate) use blocks::range_of;
pub use doors::Rules;
pub(crate) use doors::{Access, guard};
pub(crate) use exposition::{Build, Format};
pub use history::History;
pub(crate) use routes::Routes;
pub use status::{raw_shape as raw_shape_json, units as units_json};

use crate::descriptors::Clients;
use crate::policies::ANSWER_TIME;
use crate::server::{Control, ServeError};
use crate::{ShardStatus, Wanted};
use axum::Extension;
use axum::extract::{Json, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use doors::Right;
use serde_json::{Value, json};
use serving::{Limits, Listener};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

const OPENAPI: &str = include_str!("openapi.json");

/// How long what a request began may go on after the end of the server.
const FAREWELL: Duration = Duration::from_secs(2);

/// The sockets it listens at.
#[derive(Default)]
pub struct Listeners {
    /// The control socket.
    pub control: Option<OwnedFd>,
    /// The socket at an address.
    pub tcp: Option<(OwnedFd, SocketAddr)>,
}

/// The HTTP server. Stops when dropped.
pub struct Http {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Answers about the server behind `control`.
    pub fn start(
        listeners: Listeners,
        rules: Rules,
        clients: Clients,
        control: Control,
    ) -> Result<Self, ServeError> {
        Self::on_a_thread(move |stopped| serve(listeners, rules, clients, control, stopped))
    }

    /// What `serve` does until it hears that it is to stop.
    pub(crate) fn on_a_thread(
        serve: impl FnOnce(oneshot::Receiver<()>) -> std::io::Result<()> + Send + 'static,
    ) -> Result<Self, ServeError> {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                crate::panics::end_the_process();
                if let Err(error) = serve(stopped) {
                    tracing::error!(%error, "the HTTP server ended");
                }
            })
            .map_err(|error| ServeError::System { doing: "start a thread", error })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            // Either may be gone already; then there is nothing to stop.
            stop.send(()).ok();
            thread.join().ok();
        }
    }
}

fn serve(
    listeners: Listeners,
    rules: Rules,
    clients: Clients,
    control: Control,
    stopped: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let head_time = rules.head_time();
    let rules = Arc::new(rules);
    let (routes, _) = routes(Arc::clone(&rules), &control).into_parts();
    let ours = control.clone();
    let router = routes.layer(from_fn_with_state(rules, guard)).with_state(control);
    history::begin(&ours);
    let result = runtime.block_on(async {
        let mut doors = open(listeners, clients, head_time, router)?;
        doors.spawn(history::keep(ours.clone()));
        // Connections that are kept alive must not hold up the end.
        stopped.await.ok();
        Ok(())
    });
    runtime.shutdown_timeout(FAREWELL);
    history::end(&ours);
    result
}

/// Serves a router behind the doors, as long as the result is held.
///
/// # Errors
/// What the system says of the sockets.
pub(crate) fn open(
    listeners: Listeners,
    clients: Clients,
    head_time: Duration,
    router: axum::Router,
) -> std::io::Result<tokio::task::JoinSet<()>> {
    let mut doors = tokio::task::JoinSet::new();
    if let Some(socket) = listeners.control {
        let limits = Limits { clients_max: clients.control, head_time };
        doors.spawn(serving::serve(Listener::unix(socket)?, router.clone(), limits));
    }
    if let Some((socket, _)) = listeners.tcp {
        let limits = Limits { clients_max: clients.http, head_time };
        doors.spawn(serving::serve(Listener::tcp(socket)?, router, limits));
    }
    Ok(doors)
}

/// Every route.
fn routes(rules: Arc<Rules>, control: &Control) -> Routes {
    let pulse = Arc::new(crate::pulse::Pulse::default());
    let mut routes: Routes = Routes::new(rules)
        .get("/status", Access::Open, status)
        .get("/units", Access::Open, units)
        .get("/units/{unit}", Access::Open, unit)
        .get("/slow", Access::Open, slow)
        .get("/metrics", Access::Open, metrics)
        .get("/healthz", Access::Open, move |control| health::alive(control, pulse))
        .get("/readyz", Access::Open, health::ready)
        .get("/openapi.json", Access::Open, openapi);
    for add in [dashboard::routes, policy::routes, fast::routes, history::routes, volumes::routes] {
        routes = add(routes);
    }
    blocks::routes(routes, control)
}

async fn gather(control: &Control, wanted: Wanted) -> Result<Vec<ShardStatus>, Response> {
    let mut answers = Vec::new();
    for shard in 0..control.shards() {
        let (sender, receiver) = oneshot::channel();
        control.status(shard, wanted, move |status| {
            // The client may have gone meanwhile.
            sender.send(status).ok();
        });
        answers.push(receiver);
    }
    let mut all = Vec::new();
    for (shard, answer) in answers.into_iter().enumerate() {
        match tokio::time::timeout(ANSWER_TIME, answer).await {
            Ok(Ok(status)) => all.push(status),
            _ => {
                let reason = format!("shard {shard} does not answer: it is stopping, or stuck");
                return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, &reason));
            }
        }
    }
    Ok(all)
}

async fn status(State(control): State<Control>) -> Response {
    let wanted = Wanted { latencies: true, slow: slow::TOLD_BY_STATUS, wear: true };
    match gather(&control, wanted).await {
        Ok(shards) => {
            let exports = control.exports();
            let mut value = status::json(&exports, &control.settled(), &shards);
            value["fast"] = fast::json(control.fast(), &shards);
            value["connect"] = status::connect(&control.doors().0, control.doors().1);
            value["restart"] = status::restart(control.restart());
            let mut slowest = slow::json(&exports, &shards, wanted.slow);
            slowest.truncate(slow::TOLD_BY_STATUS);
            value["slow"] = slowest.into();
            Json(value).into_response()
        }
        Err(response) => response,
    }
}

async fn slow(State(control): State<Control>) -> Response {
    let wanted = Wanted { slow: slow::TOLD, ..Wanted::default() };
    match gather(&control, wanted).await {
        Ok(shards) => {
            let slow = slow::json(&control.exports(), &shards, wanted.slow);
            Json(json!({ "slow": slow })).into_response()
        }
        Err(response) => response,
    }
}

async fn units(State(control): State<Control>) -> Response {
    match gather(&control, Wanted::default()).await {
        Ok(shards) => {
            let units: Vec<Value> = shards.iter().flat_map(status::units).collect();
            let shape = shards.first().and_then(|shard| shard.core.raw());
            let shape = shape.map(|raw| status::raw_shape(&raw.shape));
            let mode = if shape.is_some() { "raw" } else { "block" };
            Json(json!({ "mode": mode, "raw": shape, "units": units })).into_response()
        }
        Err(response) => response,
    }
}

/// One unit, counted over the shards, and which of its raw blocks hold what.
async fn unit(
    State(control): State<Control>,
    Extension(right): Extension<Right>,
    Path(unit): Path<String>,
) -> Response {
    let shards = match gather(&control, Wanted::default()).await {
        Ok(shards) => shards,
        Err(response) => return response,
    };
    let mut units: Vec<Value> = shards.iter().flat_map(status::units).collect();
    let number = unit.parse().ok().filter(|&number: &usize| number < units.len());
    let Some(number) = number else {
        let reason = format!("no unit {unit}: there are 0 to {}", units.len().saturating_sub(1));
        return refusal(StatusCode::NOT_FOUND, &reason);
    };
    let mut value = units.swap_remove(number);
    if shards[0].core.raw().is_some() {
        let (sender, receiver) = oneshot::channel();
        control.raw_blocks(number as u32, move |blocks| {
            sender.send(blocks).ok();
        });
        match tokio::time::timeout(ANSWER_TIME, receiver).await {
            Ok(Ok(Some(blocks))) => value["raw_blocks"] = status::raw_blocks(&blocks, right).into(),
            _ => {
                let reason = "the shard does not answer: it is stopping, or stuck";
                return refusal(StatusCode::SERVICE_UNAVAILABLE, reason);
            }
        }
    }
    Json(value).into_response()
}

async fn metrics(State(control): State<Control>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::wanted(&accept.collect::<Vec<_>>().join(","));
    let wanted = Wanted { latencies: true, ..Wanted::default() };
    let shards = match gather(&control, wanted).await {
        Ok(shards) => shards,
        Err(response) => return response,
    };
    match metrics::encode(&shards, &control.exports(), format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn openapi() -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, JSON)], OPENAPI).into_response()
}

/// An answer that says why not.
pub(crate) fn refusal(code: StatusCode, reason: &str) -> Response {
    (code, Json(json!({ "error": reason }))).into_response()
}
