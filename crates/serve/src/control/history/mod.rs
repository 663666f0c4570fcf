//! What a server did in the last hour in steps of seconds, and in the last day in steps of a minute: `GET /history`.
//!
//! A task on the thread of HTTP asks the shards at each step. What is kept of a step is what their counters grew by,
//! and the latencies of the requests that ended in it: the difference of two histograms, not a mean of percentiles.
//! The coarse rows are made the same way, from looks that lie a minute apart, and stay over a restart ([`file`]).
//!
//! Invariants: rows are in the order of the clock, whoever sets it; there are never more than the rings take.

mod file;
mod sample;
#[cfg(test)]
mod tests;

use super::doors::Access;
use super::routes::Routes;
use super::{gather, refusal};
use crate::Wanted;
use crate::latency::{Op, Summary};
use crate::nbd::Export;
use crate::server::Control;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sample::{COLUMNS, Row, Snapshot};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Between two looks.
const STEP: Duration = Duration::from_secs(2);
/// Between two coarse rows.
const COARSE: Duration = Duration::from_secs(60);
/// An hour of the one, a day of the other: with some thirty numbers each, less than 500 KiB.
const ROWS_MAX: usize = 1800;
const COARSE_ROWS_MAX: usize = 1440;
/// Between two writes of the file, which has some 200 KiB.
const SAVED: Duration = Duration::from_secs(300);

/// The history of a server, which its threads share.
#[derive(Default)]
pub struct History(Mutex<Kept>);

/// What is kept.
struct Kept {
    fine: Ring,
    coarse: Ring,
    /// Of each volume, by operation: the last step.
    volumes: BTreeMap<usize, Volume>,
    /// Another server has the device, and with it the file.
    lost: bool,
}

impl Default for Kept {
    fn default() -> Self {
        let (fine, coarse) = (Ring::new(ROWS_MAX, STEP), Ring::new(COARSE_ROWS_MAX, COARSE));
        Self { fine, coarse, volumes: BTreeMap::new(), lost: false }
    }
}

/// The last step of a volume.
type Volume = BTreeMap<&'static str, VolumeRates>;

#[derive(Clone, Debug, PartialEq, Serialize)]
struct VolumeRates {
    per_sec: f64,
    bytes_per_sec: f64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

/// The newest rows, oldest first.
struct Ring {
    rows: VecDeque<Row>,
    rows_max: usize,
    /// The time that so many rows span where none is missing.
    span_ms: u64,
}

impl Ring {
    fn new(rows_max: usize, step: Duration) -> Self {
        let span_ms = rows_max as u64 * step.as_millis() as u64;
        Self { rows: VecDeque::new(), rows_max, span_ms }
    }

    /// A clock that was set back takes with it what lies in its future. What is older than the span goes, however few
    /// rows there are: a server that was away for a week has no rows of the day before.
    fn push(&mut self, row: Row) {
        while self.rows.back().is_some_and(|last| last.at_unix_ms >= row.at_unix_ms) {
            self.rows.pop_back();
        }
        self.forget_before(row.at_unix_ms);
        if self.rows.len() == self.rows_max {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    /// Drops what is older than the span at an instant.
    fn forget_before(&mut self, now_unix_ms: u64) {
        let oldest = now_unix_ms.saturating_sub(self.span_ms);
        while self.rows.front().is_some_and(|first| first.at_unix_ms < oldest) {
            self.rows.pop_front();
        }
    }

    /// Column by column, the rows after an instant.
    fn columns(&self, since_unix_ms: u64) -> Columns {
        let first = self.rows.partition_point(|row| row.at_unix_ms <= since_unix_ms);
        let rows = || self.rows.range(first..);
        let column = |index: usize| rows().map(|row| row.values[index]).collect();
        Columns {
            at_unix_ms: rows().map(|row| row.at_unix_ms).collect(),
            values: (0..).zip(COLUMNS).map(|(index, name)| (name, column(index))).collect(),
        }
    }
}

/// Rows as JSON has them: a list a column, with null for what there was nothing to tell of.
#[derive(Serialize)]
struct Columns {
    at_unix_ms: Vec<u64>,
    #[serde(flatten)]
    values: BTreeMap<&'static str, Vec<Option<f32>>>,
}

/// The answer to `GET /history`.
#[derive(Serialize)]
struct Told<'a> {
    now_unix_ms: u64,
    step_ms: u64,
    coarse_step_ms: u64,
    fine: Columns,
    coarse: Columns,
    volumes: Vec<VolumeTold<'a>>,
}

#[derive(Serialize)]
struct VolumeTold<'a> {
    name: &'a str,
    #[serde(flatten)]
    rates: Volume,
}

impl History {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up what the last server of this device has left.
    fn load(&self, folder: &Path, uuid: u128) {
        match file::read(folder, uuid) {
            Ok(rows) => {
                let mut kept = self.kept();
                rows.into_iter().for_each(|row| kept.coarse.push(row));
                kept.coarse.forget_before(unix_ms());
            }
            Err(reason) => {
                let path = file::path(folder);
                tracing::warn!("{}: {reason}: the history begins anew", path.display());
            }
        }
    }

    /// Leaves the coarse rows to the next server. Nothing was seen yet: nothing is written.
    fn save(&self, control: &Control) {
        let Some((folder, uuid)) = control.folder() else { return };
        let kept = self.kept();
        let (columns, lost) = (kept.coarse.columns(0), kept.lost);
        drop(kept);
        if columns.at_unix_ms.is_empty() || lost {
            return;
        }
        if let Err(error) = file::write(&folder, uuid, &columns) {
            let path = file::path(&folder);
            tracing::warn!("{}: the history cannot be kept: {error}", path.display());
        }
    }

    fn told(&self, exports: &[Export], since_unix_ms: u64) -> serde_json::Result<String> {
        let kept = self.kept();
        let rates = |volume: usize| kept.volumes.get(&volume).cloned().unwrap_or_default();
        serde_json::to_string(&Told {
            now_unix_ms: unix_ms(),
            step_ms: STEP.as_millis() as u64,
            coarse_step_ms: COARSE.as_millis() as u64,
            fine: kept.fine.columns(since_unix_ms),
            coarse: kept.coarse.columns(since_unix_ms),
            volumes: exports
                .iter()
                .map(|export| VolumeTold { name: &export.name, rates: rates(export.volume) })
                .collect(),
        })
    }
}

/// Makes rows of looks at the shards.
struct Recorder {
    step: Option<Arc<Snapshot>>,
    minute: Option<Arc<Snapshot>>,
    coarse: Duration,
}

impl Recorder {
    fn new(coarse: Duration) -> Self {
        Self { step: None, minute: None, coarse }
    }

    /// Takes a look. Between the first one and none there is nothing to tell.
    fn note(&mut self, history: &History, now: Snapshot) {
        let now = Arc::new(now);
        let mut kept = history.kept();
        if let Some(before) = self.step.replace(Arc::clone(&now)) {
            kept.fine.push(Row::between(&before, &now));
            kept.volumes = volumes(&before, &now);
        }
        let Some(before) = &self.minute else {
            self.minute = Some(now);
            return;
        };
        if now.at.duration_since(before.at) >= self.coarse {
            kept.coarse.push(Row::between(before, &now));
            self.minute = Some(now);
        }
    }
}

/// What each volume was asked in a step.
fn volumes(before: &Snapshot, now: &Snapshot) -> BTreeMap<usize, Volume> {
    let seconds = now.seconds_since(before);
    let tell = |volume: usize| -> Volume {
        let one = |op: Op| {
            let asked =
                now.asked_since(before, |volumes| volumes.get(&volume)?[op as usize].as_deref())?;
            let summary = Summary::of(&asked);
            let [p50_ns, _, p99_ns, p999_ns, _] = summary.percentiles_ns;
            Some(VolumeRates {
                per_sec: summary.count as f64 / seconds,
                bytes_per_sec: asked.bytes as f64 / seconds,
                p50_ns,
                p99_ns,
                p999_ns,
                max_ns: summary.max_ns,
            })
        };
        Op::ALL.into_iter().filter_map(|op| Some((op.name(), one(op)?))).collect()
    };
    now.asked.volumes.keys().map(|&volume| (volume, tell(volume))).collect()
}

/// Looks at the shards for ever. A look that one does not answer is left out: the next row tells of both steps.
pub async fn keep(control: Control) {
    let mut recorder = Recorder::new(COARSE);
    let mut steps = interval(STEP);
    // After a stop of the machine one look is as good as all that were missed.
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saved = Instant::now();
    let wanted = Wanted { latencies: true, ..Wanted::default() };
    loop {
        steps.tick().await;
        let Ok(shards) = gather(&control, wanted).await else { continue };
        control.history().kept().lost |= shards.iter().any(|shard| shard.fenced);
        recorder.note(control.history(), Snapshot::of(&shards, unix_ms()));
        if saved.elapsed() >= SAVED {
            saved = Instant::now();
            let control = control.clone();
            // Neither clients nor the next look wait for a disk.
            drop(tokio::task::spawn_blocking(move || control.history().save(&control)));
        }
    }
}

/// The server begins.
pub fn begin(control: &Control) {
    if let Some((folder, uuid)) = control.folder() {
        control.history().load(&folder, uuid);
    }
}

/// The server ends.
pub fn end(control: &Control) {
    control.history().save(control);
}

/// The routes of this file.
pub fn routes(routes: Routes) -> Routes {
    routes.get("/history", Access::Open, show)
}

async fn show(State(control): State<Control>, RawQuery(query): RawQuery) -> Response {
    let since = match since(query.as_deref().unwrap_or_default()) {
        Ok(since) => since,
        Err(reason) => return refusal(StatusCode::BAD_REQUEST, &reason),
    };
    match control.history().told(&control.exports(), since) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// `since=MS`, or nothing for all that there is.
fn since(query: &str) -> Result<u64, String> {
    let Some(text) = query.strip_prefix("since=") else {
        let known = query.is_empty();
        return known.then_some(0).ok_or(format!("{query}: a history knows since=MS"));
    };
    let bad =
        |_| format!("since={text}: must be milliseconds since 1970, e.g. at_unix_ms of a row");
    text.parse().map_err(bad)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
