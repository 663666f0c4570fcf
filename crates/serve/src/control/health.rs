//! For who starts and restarts servers: `/healthz` answers as long as the process does its work, `/readyz` tells
//! whether clients can be served.

use super::{gather, refusal};
use crate::runtime::shard::is_turn;
use crate::server::Control;
use crate::{ShardStatus, Wanted};
use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A turn that takes so long has no end.
const STUCK: Duration = Duration::from_secs(20);

/// What was seen of the turns of each shard: which, and since when.
#[derive(Default)]
pub struct Pulse(Mutex<Vec<(u64, Instant)>>);

impl Pulse {
    /// Takes what the counts of turns are `now`; tells who has been in one turn for too long, and for how long.
    fn stuck(&self, counts: &[u64], now: Instant) -> Option<(usize, Duration)> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.resize(counts.len(), (0, now));
        for (seen, &count) in seen.iter_mut().zip(counts) {
            if seen.0 != count || !is_turn(count) {
                *seen = (count, now);
            }
        }
        let ages = seen.iter().map(|&(_, since)| now.saturating_duration_since(since)).enumerate();
        ages.filter(|&(_, age)| age >= STUCK).max_by_key(|&(_, age)| age)
    }
}

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
    use super::{Pulse, STUCK, why_not};
    use crate::CoreStatus;
    use crate::control::metrics::shards;
    use std::time::Instant;

    #[test]
    fn a_shard_that_is_busy_or_asleep_is_healthy_and_one_whose_turn_has_no_end_is_not() {
        let (pulse, start) = (Pulse::default(), Instant::now());
        assert_eq!(pulse.stuck(&[0, 7], start), None);
        assert_eq!(pulse.stuck(&[0, 9], start + STUCK), None, "another turn");
        assert_eq!(pulse.stuck(&[0, 9], start + STUCK * 3 / 2), None, "not long enough");
        let stuck = pulse.stuck(&[0, 9], start + STUCK * 2);
        assert_eq!(stuck, Some((1, STUCK)), "who sleeps may do so for ever");
        assert_eq!(pulse.stuck(&[0, 10], start + STUCK * 3), None, "it has ended");
    }

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
