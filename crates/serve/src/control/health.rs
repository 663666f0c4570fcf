//! For who starts and restarts servers: `/healthz` answers as long as the process does its work, `/readyz` tells
//! whether clients can be served.

use super::{gather, refusal};
use crate::pulse::Pulse;
use crate::server::Control;
use crate::{ShardStatus, Wanted};
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Every shard's turns come to an end, however late under load: a restart would not help whatever else is wrong. No
/// shard is asked, so the answer comes at once.
pub async fn alive(State(control): State<Control>, pulse: Arc<Pulse>) -> Response {
    match pulse.stuck(&control.beats(), Instant::now()) {
        None => Json(json!({ "alive": true })).into_response(),
        Some((shard, age)) => {
            let reason = format!("shard {shard} has been in one turn for {} s", age.as_secs());
            refusal(StatusCode::SERVICE_UNAVAILABLE, &reason)
        }
    }
}

/// Every shard serves; reads at least.
pub async fn ready(State(control): State<Control>) -> Response {
    let shards = match gather(&control, Wanted::default()).await {
        Ok(shards) => shards,
        Err(response) => return response,
    };
    let reasons = why_not(&shards);
    match reasons.is_empty() {
        true => Json(json!({ "ready": true })).into_response(),
        false => refusal(StatusCode::SERVICE_UNAVAILABLE, &reasons.join("; ")),
    }
}

/// What keeps clients from being served.
fn why_not(shards: &[ShardStatus]) -> Vec<String> {
    let reason = |(index, shard): (usize, &ShardStatus)| match shard.core.phase() {
        _ if shard.fenced => {
            Some(format!("shard {index} is fenced: another server has the device"))
        }
        "running" | "read-only" => None,
        phase => Some(format!("shard {index} is {phase}")),
    };
    shards.iter().enumerate().filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::why_not;
    use crate::CoreStatus;
    use crate::control::metrics::shards;

    #[test]
    fn a_server_is_ready_unless_a_shard_of_it_has_failed_or_lost_the_device() {
        let mut shards = shards("ready");
        assert_eq!(why_not(&shards), [""; 0]);
        let CoreStatus::Block(status) = &mut shards[1].core else { panic!("block mode") };
        status.phase = "failed";
        shards[0].fenced = true;
        let told = why_not(&shards);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("fenced") && told[1] == "shard 1 is failed", "{told:?}");
        let CoreStatus::Block(status) = &mut shards[1].core else { panic!("block mode") };
        status.phase = "read-only";
        shards[0].fenced = false;
        assert_eq!(why_not(&shards), [""; 0], "it serves reads");
    }
}
