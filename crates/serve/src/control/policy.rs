//! Policies over HTTP: `GET /policy` lists what can decide, `POST /policy` puts a policy in charge,
//! `PUT /plugins/{name}` loads a WebAssembly module to make policies of.
//!
//! A module is compiled by a process of its own ([`crate::compiler`]), and policies are made on
//! threads of their own: neither this thread nor a shard waits for that.

use super::doors::{Access, Door};
use super::refusal;
use super::routes::Routes;
use crate::compiler::CompileError;
use crate::policies::{SwitchError, WASM, switch};
use crate::server::Control;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Json, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use ftl::policy::DECISIONS;
use ftl::policy::catalogue::{self, Entry};
use plugin::{MODULE_BYTES_MAX, Module};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

/// Longest name of who asks.
const BY_CHARS_MAX: usize = 64;

/// The routes of this file.
pub fn routes(routes: Routes) -> Routes {
    let load = put(load).layer(DefaultBodyLimit::max(MODULE_BYTES_MAX + 1));
    routes.get("/policy", Access::Open, list).change(Method::POST, "/policy", set).with(
        Method::PUT,
        "/plugins/{name}",
        Access::Change,
        load,
    )
}

/// Which policy decides what from now on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    decision: String,
    name: String,
    /// Who asks, for the record.
    #[serde(default)]
    by: String,
}

async fn set(
    State(control): State<Control>,
    Extension(door): Extension<Door>,
    Json(wanted): Json<Wanted>,
) -> Response {
    let Wanted { decision, name, by } = wanted;
    let by: String = by.chars().filter(|letter| !letter.is_control()).take(BY_CHARS_MAX).collect();
    let by = if by.is_empty() { door.to_string() } else { format!("{by}, {door}") };
    let answer = json!({ "decision": decision, "name": name });
    let switched = spawn_blocking(move || switch(&control, &decision, &name, &by)).await;
    match switched {
        Ok(Ok(())) => Json(answer).into_response(),
        Ok(Err(error @ SwitchError::Refused(_))) => {
            refusal(StatusCode::BAD_REQUEST, &error.to_string())
        }
        Ok(Err(error @ SwitchError::NoAnswer(_))) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn load(State(control): State<Control>, Path(name): Path<String>, body: Bytes) -> Response {
    match spawn_blocking(move || control.plugins().load(&name, &body)).await {
        Ok(Ok(module)) => {
            tracing::info!(name = module.name(), bytes = module.bytes(), "a module was loaded");
            Json(of_module(&module)).into_response()
        }
        Ok(Err(error @ CompileError::Refused(_))) => {
            refusal(StatusCode::BAD_REQUEST, &error.to_string())
        }
        Ok(Err(error @ CompileError::Busy)) => {
            refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn list(State(control): State<Control>) -> Response {
    let modules = control.plugins().list();
    let of = |decision: &&str| {
        let built_in = catalogue::of(decision).map(built_in);
        let made = modules
            .iter()
            .filter(|module| module.kinds().iter().any(|kind| kind.decision() == *decision));
        let made = made.map(|module| {
            json!({ "name": module.policy_name(), "params": "", "about": "a module of yours" })
        });
        json!({
            "decision": decision,
            "per_volume": matches!(*decision, "stream" | "mapping"),
            "policies": built_in.chain(made).collect::<Vec<Value>>(),
        })
    };
    Json(json!({
        "decisions": DECISIONS.iter().chain(&["mapping"]).map(of).collect::<Vec<Value>>(),
        "plugins": modules.iter().map(of_module).collect::<Vec<Value>>(),
    }))
    .into_response()
}

fn built_in(entry: &Entry) -> Value {
    json!({ "name": entry.name, "params": entry.params, "about": entry.about })
}

fn of_module(module: &Module) -> Value {
    let kinds: Vec<&str> = module.kinds().iter().map(|kind| kind.decision()).collect();
    json!({
        "name": module.name(),
        "policy": format!("{WASM}{}", module.name()),
        "decisions": kinds,
        "bytes": module.bytes(),
    })
}
