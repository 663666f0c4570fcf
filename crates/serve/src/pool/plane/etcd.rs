//! etcd as the control plane of a pool. A pool's keys have a prefix; the revision of a key is etcd's `mod_revision`.
//!
//! Invariants: what is read is linearizable. A member that cannot do its work is left, with all that was under way
//! there. A cluster is only believed where a key says that this pool was founded in it: one that was wiped has none,
//! one that was restored into a new cluster has another's. A cluster whose revision falls is refused by the link.

use super::super::PoolError;
use super::super::config::{PlaneAt, PlaneConfig};
use super::super::doors::runtime;
use super::gateway::{Answers, EXHAUSTED, Gateway, GatewayError, INVALID, NOT_FOUND};
use super::link::{ASKS_MAX, Session};
use crate::base64;
use flash::SECOND;
use pool::control::contract::{
    Change, Check, Kept, LeaseId, PlaneAnswer, PlaneAsk, PlaneRefusal, RANGE_MAX,
};
use pool::control::keys;
use pool::control::lives::PlaneFacts;
use pool::control::values::{FORMAT, FoundedRecord, PoolRecord, Value as _};
use pool::words::PoolId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Connects to a member, and sees that this pool was founded in its cluster.
///
/// # Errors
/// The member, why not, and what to do.
pub async fn connect(member: &str, config: &PlaneConfig) -> Result<Session, String> {
    let cluster = Cluster::new(member, config);
    let facts = cluster.look().await?;
    let (asks, from) = mpsc::channel(ASKS_MAX);
    let (to, answers) = mpsc::unbounded_channel();
    let driver = Box::pin(drive(cluster, from, to));
    Ok(Session { asks, answers, driver, facts })
}

/// Founds a pool in an etcd cluster. Said twice it is done once.
///
/// # Errors
/// No member answers, another plane was named, or the cluster has this pool and is another one than it was.
pub fn found(config: &PlaneConfig) -> Result<(), PoolError> {
    let failed = |reason: String| PoolError::Plane { place: "etcd".to_owned(), reason };
    let PlaneAt::Etcd(members) = &config.at else {
        return Err(failed("plane.etcd names no member: Weir's own plane founds its pool".into()));
    };
    runtime()?.block_on(async {
        let mut reasons = Vec::new();
        for member in members {
            match Cluster::new(member, config).found().await {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(failed(reasons.join("; ")))
    })
}

/// A member, and whose keys.
#[derive(Clone)]
struct Cluster {
    gateway: Gateway,
    pool: PoolId,
    prefix: String,
    member: String,
}

/// Requests at a time, watches not counted.
const REQUESTS_MAX: usize = 16;
/// A member that nobody asks is looked at so often: it may be cut off from the others, and watches would be silent.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Takes asks until the member cannot do its work, and says why.
async fn drive(
    cluster: Cluster,
    mut asks: mpsc::Receiver<(u64, PlaneAsk)>,
    answers: mpsc::UnboundedSender<(u64, PlaneAnswer)>,
) -> String {
    let mut tasks: JoinSet<Result<u64, String>> = JoinSet::new();
    let mut watches: BTreeMap<u64, AbortHandle> = BTreeMap::new();
    let slots = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut look_at = Instant::now() + LOOK_EVERY;
    loop {
        tokio::select! {
            ask = asks.recv() => {
                let Some((number, ask)) = ask else { return "closed".to_owned() };
                let (cluster, answers) = (cluster.clone(), answers.clone());
                match ask {
                    PlaneAsk::Watch { from, to, since } => {
                        let watch = cluster.watch(number, (from, to, since), answers);
                        watches.insert(number, tasks.spawn(watch));
                    }
                    PlaneAsk::Unwatch { watch } => {
                        if let Some(watch) = watches.remove(&watch.0) {
                            watch.abort();
                        }
                    }
                    ask => {
                        let slots = Arc::clone(&slots);
                        tasks.spawn(async move {
                            let _slot = slots.acquire().await.expect("nobody closes it");
                            // Nobody takes it: the link is about to end.
                            answers.send((number, cluster.ask(ask).await?)).ok();
                            Ok(number)
                        });
                    }
                }
            }
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ok(number)) => drop(watches.remove(&number)),
                Ok(Err(trouble)) => return trouble,
                // A watch that was ended.
                Err(_) => {}
            },
            () = sleep_until(look_at) => {
                look_at = Instant::now() + LOOK_EVERY;
                let cluster = cluster.clone();
                tasks.spawn(async move { cluster.look().await.map(|_| 0) });
            }
        }
    }
}

impl Cluster {
    fn new(member: &str, config: &PlaneConfig) -> Self {
        let prefix = format!("weir/{:032x}/", config.pool.0);
        let gateway = Gateway::new(member, config);
        Self { gateway, pool: config.pool, prefix, member: member.to_owned() }
    }

    /// How far the cluster has come, if this pool was founded in it.
    async fn look(&self) -> Result<PlaneFacts, String> {
        let answer = self.range(json!({ "key": self.key(keys::FOUNDED) })).await?;
        let cluster = number(&answer["header"]["cluster_id"]);
        let revision = number(&answer["header"]["revision"]);
        let Some((_, kept)) = self.kept(&answer)?.into_iter().next() else {
            return Err(format!(
                "{}: this pool was not founded in this etcd, or it was wiped since: `weir pool found` begins a new \
                 pool there; a pool that has volumes needs its old etcd back",
                self.member
            ));
        };
        let record = FoundedRecord::decode(keys::FOUNDED, &kept.value)
            .map_err(|error| format!("{}: {} {error}", self.member, keys::FOUNDED))?;
        if record.pool != self.pool || record.cluster != cluster {
            return Err(format!(
                "{}: the pool was founded in etcd cluster {:x}, and this one is {cluster:x}: it was restored from a \
                 copy, which may lack what was changed since; name the members of the first one",
                self.member, record.cluster
            ));
        }
        Ok(PlaneFacts { revision, lives: Vec::new() })
    }

    async fn found(&self) -> Result<(), String> {
        // Any answer tells the cluster.
        let answer = self.range(json!({ "key": self.key(keys::FOUNDED) })).await?;
        let record =
            FoundedRecord { pool: self.pool, cluster: number(&answer["header"]["cluster_id"]) };
        let pool = PoolRecord { pool: self.pool, format: FORMAT };
        let all =
            [(keys::FOUNDED, record.encode(keys::FOUNDED)), (keys::POOL, pool.encode(keys::POOL))];
        let checks = [Check { key: keys::FOUNDED.to_owned(), revision: 0 }];
        let puts = all.map(|(key, value)| Change::Put { key: key.to_owned(), value, lease: None });
        match self.commit(&checks, &puts).await? {
            PlaneAnswer::Committed { .. } | PlaneAnswer::NotCommitted { .. } => {}
            other => return Err(format!("{}: {other:?}", self.member)),
        }
        self.look().await.map(drop)
    }

    async fn ask(&self, ask: PlaneAsk) -> Result<PlaneAnswer, String> {
        match ask {
            PlaneAsk::Get { key } => {
                let answer = self.range(json!({ "key": self.key(&key) })).await?;
                let kept = self.kept(&answer)?.into_iter().next().map(|(_, kept)| kept);
                Ok(PlaneAnswer::Value { kept, revision: number(&answer["header"]["revision"]) })
            }
            PlaneAsk::Range { from, to, limit } => self.values(&from, &to, limit).await,
            PlaneAsk::Commit { checks, changes } => self.commit(&checks, &changes).await,
            PlaneAsk::Grant { ttl_ns } => self.grant(ttl_ns).await,
            PlaneAsk::Keep { lease } => self.keep(lease).await,
            PlaneAsk::Revoke { lease } => {
                let body = json!({ "ID": lease.0.to_string() });
                self.answered(self.gateway.call("/v3/lease/revoke", &body).await, |_| {
                    PlaneAnswer::Done
                })
            }
            PlaneAsk::Watch { .. } | PlaneAsk::Unwatch { .. } => {
                unreachable!("watches are told apart before")
            }
        }
    }

    async fn range(&self, body: Value) -> Result<Value, String> {
        self.gateway.call("/v3/kv/range", &body).await.map_err(in_words)
    }

    async fn values(&self, from: &str, to: &str, limit: u32) -> Result<PlaneAnswer, String> {
        let limit = limit.clamp(1, RANGE_MAX);
        // A range that ends before it begins is empty, and etcd would take some of those for another thing.
        let is_empty = from >= to;
        let body = match is_empty {
            true => json!({ "key": self.key(from), "count_only": true }),
            false => json!({
                "key": self.key(from),
                "range_end": self.key(to),
                "limit": limit.to_string(),
            }),
        };
        let answer = self.range(body).await?;
        let revision = number(&answer["header"]["revision"]);
        let more = !is_empty && answer["more"] == true;
        Ok(PlaneAnswer::Values { kept: self.kept(&answer)?, more, revision })
    }

    async fn commit(&self, checks: &[Check], changes: &[Change]) -> Result<PlaneAnswer, String> {
        let compare = checks.iter().map(|check| {
            json!({
                "key": self.key(&check.key),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": check.revision.to_string(),
            })
        });
        let change = |change: &Change| match change {
            Change::Put { key, value, lease } => json!({ "request_put": {
                "key": self.key(key),
                "value": base64::encode(value),
                "lease": lease.map_or(0, |lease| lease.0).to_string(),
            } }),
            Change::Delete { key } => json!({ "request_delete_range": { "key": self.key(key) } }),
        };
        let look = |check: &Check| json!({ "request_range": { "key": self.key(&check.key) } });
        let body = json!({
            "compare": compare.collect::<Vec<_>>(),
            "success": changes.iter().map(change).collect::<Vec<_>>(),
            "failure": checks.iter().map(look).collect::<Vec<_>>(),
        });
        let called = self.gateway.call("/v3/kv/txn", &body).await;
        let answer = match called {
            Ok(answer) => answer,
            Err(error) => return self.answered(Err(error), |_| PlaneAnswer::Done),
        };
        if answer["succeeded"] == true {
            let revision = number(&answer["header"]["revision"]);
            return Ok(PlaneAnswer::Committed { revision });
        }
        let found = answer["responses"].as_array().into_iter().flatten();
        let found = found.map(|one| {
            let kept = self.kept(&one["response_range"])?;
            Ok(kept.into_iter().next().map(|(_, kept)| kept))
        });
        Ok(PlaneAnswer::NotCommitted { found: found.collect::<Result<_, String>>()? })
    }

    async fn grant(&self, ttl_ns: u64) -> Result<PlaneAnswer, String> {
        let seconds = ttl_ns.div_ceil(SECOND);
        if seconds == 0 {
            return Ok(PlaneAnswer::Refused(PlaneRefusal::Invalid));
        }
        let body = json!({ "TTL": seconds.to_string() });
        self.answered(self.gateway.call("/v3/lease/grant", &body).await, lease_of)
    }

    async fn keep(&self, lease: LeaseId) -> Result<PlaneAnswer, String> {
        let body = json!({ "ID": lease.0.to_string() });
        self.answered(self.gateway.call("/v3/lease/keepalive", &body).await, |answer| {
            match number(&answer["TTL"]) {
                // etcd says so of a lease that has ended.
                0 => PlaneAnswer::NoLease,
                _ => lease_of(answer),
            }
        })
    }

    /// Tells of changes until the watch ends. What ends it for good is no trouble of the member.
    async fn watch(
        self,
        watch: u64,
        (from, to, since): (String, String, u64),
        answers: mpsc::UnboundedSender<(u64, PlaneAnswer)>,
    ) -> Result<u64, String> {
        let body = json!({ "create_request": {
            "key": self.key(&from),
            "range_end": self.key(&to),
            "start_revision": (since + 1).to_string(),
        } });
        // Nobody takes it: the link is about to end.
        let tell = |answer| drop(answers.send((watch, answer)));
        let mut stream = match self.gateway.stream("/v3/watch", &body).await {
            Ok(stream) => stream,
            Err(GatewayError::Unavailable(reason)) => return Err(reason),
            Err(GatewayError::Refused(..)) => {
                tell(PlaneAnswer::Forgotten);
                return Ok(watch);
            }
        };
        self.follow(&mut stream, tell).await?;
        tell(PlaneAnswer::Forgotten);
        Ok(watch)
    }

    async fn follow(&self, stream: &mut Answers, tell: impl Fn(PlaneAnswer)) -> Result<(), String> {
        loop {
            let answer = match stream.next().await {
                Ok(Some(answer)) => answer,
                Ok(None) | Err(GatewayError::Refused(..)) => return Ok(()),
                Err(GatewayError::Unavailable(reason)) => return Err(reason),
            };
            // Changes before that are gone by compaction.
            if answer["canceled"] == true {
                return Ok(());
            }
            if answer["created"] == true {
                tell(PlaneAnswer::Watching);
            }
            // One answer may have several revisions, in order.
            let mut changes: Vec<(String, Option<Kept>)> = Vec::new();
            let mut revision = 0;
            for event in answer["events"].as_array().into_iter().flatten() {
                let (key, kept) = self.one(&event["kv"])?;
                if kept.revision != revision && !changes.is_empty() {
                    let changes = std::mem::take(&mut changes);
                    tell(PlaneAnswer::Changed { changes, revision });
                }
                revision = kept.revision;
                changes.push((key, (event["type"] != "DELETE").then_some(kept)));
            }
            if !changes.is_empty() {
                tell(PlaneAnswer::Changed { changes, revision });
            }
        }
    }

    /// An answer of the gateway as one of the plane; `Err` where the member cannot do its work.
    fn answered(
        &self,
        called: Result<Value, GatewayError>,
        of: impl FnOnce(&Value) -> PlaneAnswer,
    ) -> Result<PlaneAnswer, String> {
        match called {
            Ok(answer) => Ok(of(&answer)),
            Err(GatewayError::Refused(NOT_FOUND, _)) => Ok(PlaneAnswer::NoLease),
            Err(GatewayError::Refused(INVALID, reason)) => {
                tracing::warn!("etcd takes no such request: {reason}");
                Ok(PlaneAnswer::Refused(PlaneRefusal::Invalid))
            }
            Err(GatewayError::Refused(EXHAUSTED, reason)) => {
                tracing::warn!("etcd is full: {reason}");
                Ok(PlaneAnswer::Refused(PlaneRefusal::Full))
            }
            Err(error) => Err(in_words(error)),
        }
    }

    /// What a range found.
    fn kept(&self, answer: &Value) -> Result<Vec<(String, Kept)>, String> {
        answer["kvs"].as_array().into_iter().flatten().map(|kv| self.one(kv)).collect()
    }

    fn one(&self, kv: &Value) -> Result<(String, Kept), String> {
        let bytes = |what: &str| base64::decode(kv[what].as_str().unwrap_or_default());
        let strange = || format!("{}: etcd answers with a key that is not the pool's", self.member);
        let key = bytes("key").and_then(|key| String::from_utf8(key).ok());
        let key = key.and_then(|key| Some(key.strip_prefix(&self.prefix)?.to_owned()));
        let value = bytes("value").ok_or_else(strange)?;
        let revision = number(&kv["mod_revision"]);
        Ok((key.ok_or_else(strange)?, Kept { value, revision }))
    }

    /// A key as etcd has it.
    fn key(&self, key: &str) -> String {
        base64::encode(format!("{}{key}", self.prefix).as_bytes())
    }
}

fn lease_of(answer: &Value) -> PlaneAnswer {
    let (lease, seconds) = (number(&answer["ID"]), number(&answer["TTL"]));
    PlaneAnswer::Lease { lease: LeaseId(lease), ttl_ns: seconds * SECOND }
}

/// Numbers of 64 bits come as text, and 0 not at all.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn in_words(error: GatewayError) -> String {
    match error {
        GatewayError::Unavailable(reason) | GatewayError::Refused(_, reason) => reason,
    }
}
