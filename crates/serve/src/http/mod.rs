//! The HTTP API and the dashboard, on a thread of its own: `GET /status` (JSON), `GET /metrics`
//! (Prometheus), `GET /units` and `/units/N`, blocks by ID under `/blocks`, `/policy` and `/plugins`,
//! `/fast`, `GET /openapi.json`, and a page at `/`.
//!
//! Shards are asked by message and answer on their own threads; one that does not answer in time
//! makes the whole answer a 503, so that nobody takes half a status for a whole one.

mod blocks;
mod fast;
mod metrics;
mod policy;
mod status;

pub use status::{raw_shape as raw_shape_json, units as units_json};

use crate::ShardStatus;
use crate::policies::ANSWER_TIME;
use crate::server::{Control, ServeError};
use axum::Router;
use axum::extract::{Json, Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

const PAGE: &str = include_str!("dashboard.html");
const OPENAPI: &str = include_str!("openapi.json");

/// The HTTP server. Stops when dropped.
pub struct Http {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An address that is ours, where nobody answers yet.
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Takes `address`.
    pub fn new(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |error: std::io::Error| ServeError::Listen {
            address: format!("http://{address}"),
            reason: format!("cannot listen: {error}: choose another address or port in [http]"),
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }
}

impl Http {
    /// Answers about the server behind `control`.
    pub fn start(bound: Bound, control: Control) -> Result<Self, ServeError> {
        let Bound { listener, address } = bound;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                if let Err(error) = serve(listener, control, stopped) {
                    tracing::error!(%error, "the HTTP server ended");
                }
            })
            .map_err(|error| ServeError::System { doing: "start a thread", error })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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
    listener: TcpListener,
    control: Control,
    stopped: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let routes = Router::new()
        .route("/", get(|| async { Html(PAGE) }))
        .route("/status", get(status))
        .route("/units", get(units))
        .route("/units/{unit}", get(unit))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .merge(blocks::routes(&control))
        .merge(policy::routes())
        .merge(fast::routes())
        .with_state(control);
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server =
            axum::serve(listener, routes.into_make_service_with_connect_info::<SocketAddr>());
        // Connections that are kept alive must not hold up the end.
        tokio::select! {
            result = async { server.await } => result,
            _ = stopped => Ok(()),
        }
    })
}

async fn gather(control: &Control) -> Result<Vec<ShardStatus>, Response> {
    let mut answers = Vec::new();
    for shard in 0..control.shards() {
        let (sender, receiver) = oneshot::channel();
        control.status(shard, move |status| {
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
    match gather(&control).await {
        Ok(shards) => {
            let mut value = status::json(control.exports(), &shards);
            value["fast"] = fast::json(control.fast(), &shards);
            value["restart"] = status::restart(control.restart());
            Json(value).into_response()
        }
        Err(response) => response,
    }
}

async fn units(State(control): State<Control>) -> Response {
    match gather(&control).await {
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
async fn unit(State(control): State<Control>, Path(unit): Path<String>) -> Response {
    let shards = match gather(&control).await {
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
            Ok(Ok(Some(blocks))) => value["raw_blocks"] = status::raw_blocks(&blocks).into(),
            _ => {
                let reason = "the shard does not answer: it is stopping, or stuck";
                return refusal(StatusCode::SERVICE_UNAVAILABLE, reason);
            }
        }
    }
    Json(value).into_response()
}

async fn metrics(State(control): State<Control>) -> Response {
    const TEXT: HeaderValue =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    let shards = match gather(&control).await {
        Ok(shards) => shards,
        Err(response) => return response,
    };
    match metrics::encode(&shards) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn openapi() -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, JSON)], OPENAPI).into_response()
}

fn refusal(code: StatusCode, reason: &str) -> Response {
    (code, Json(json!({ "error": reason }))).into_response()
}
