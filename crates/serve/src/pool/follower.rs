//! Keeping up with the pool, for a part of it that serves: a thread hears from the control plane who the nodes are and
//! what the controller wants, and reports at its pace how the part does.

use super::PoolError;
use super::controller::ReportLink;
use super::doors::thread;
use super::plane::PlaneLink;
use flash::{Instant, MILLISECOND};
use pool::control::contract::{Part, PlaneAnswer, PlaneAskId};
use pool::control::deletions::{Deleted, Deletions, DeletionsOutput};
use pool::control::follow::{FeedOutput, Follow, FollowOutput, WeightsFeed};
use pool::control::keys;
use pool::control::values::{NodeRecord, Value};
use pool::controller::weights::Weights;
use pool::words::VolumeId;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How often it is reported how a part does.
const REPORT_NS: u64 = 100 * MILLISECOND;

/// What was heard.
pub enum Heard {
    /// The nodes of the pool, as they are now.
    Nodes(Vec<NodeRecord>),
    /// What the controller wants.
    Weights(Weights),
    /// A volume is deleted of which the part has something.
    Deleted(Deleted),
}

/// Follows until the process ends. `hear` is told what was heard, and `report` reports, both on the thread; of the
/// volumes that it returns it is asked whether they are deleted.
///
/// # Errors
/// The system has no thread for it.
pub fn follow(
    plane: &PlaneLink,
    reports: ReportLink,
    hear: impl FnMut(Heard) + Send + 'static,
    report: impl FnMut(&ReportLink) -> Vec<VolumeId> + Send + 'static,
) -> Result<(), PoolError> {
    let (tell, answers) = channel();
    let plane = plane.sharing(move |id, answer| {
        // The thread is gone only with the process.
        tell.send((id, answer)).ok();
    });
    let follower = Follower {
        plane,
        nodes: Follow::new(Instant(0), Part::Nodes, keys::nodes()),
        weights: WeightsFeed::new(Instant(0)),
        deletions: Deletions::new(Instant(0)),
        known: BTreeMap::new(),
        begun: std::time::Instant::now(),
        hear,
    };
    thread("follow", move || follower.run(&answers, &reports, report)).map(drop)
}

struct Follower<H> {
    plane: PlaneLink,
    nodes: Follow,
    weights: WeightsFeed,
    deletions: Deletions,
    known: BTreeMap<String, NodeRecord>,
    begun: std::time::Instant,
    hear: H,
}

impl<H: FnMut(Heard)> Follower<H> {
    fn run(
        mut self,
        answers: &Receiver<(PlaneAskId, PlaneAnswer)>,
        reports: &ReportLink,
        mut report: impl FnMut(&ReportLink) -> Vec<VolumeId>,
    ) {
        let mut report_at = Instant(REPORT_NS);
        loop {
            self.settle();
            let deadlines = [
                self.nodes.deadline(),
                self.weights.deadline(),
                self.deletions.deadline(),
                Some(report_at),
            ];
            let next = deadlines.into_iter().flatten().min().unwrap_or(report_at);
            let wait = Duration::from_nanos(next - self.now());
            match answers.recv_timeout(wait) {
                Ok((id, answer)) => {
                    let now = self.now();
                    self.nodes.answered(now, id, &answer);
                    self.weights.answered(now, id, &answer);
                    self.deletions.answered(now, id, &answer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.now();
            self.nodes.elapsed(now);
            self.weights.elapsed(now);
            self.deletions.elapsed(now);
            if now >= report_at {
                report_at = now + REPORT_NS;
                let volumes = report(reports);
                self.deletions.hold(now, volumes);
            }
        }
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }

    fn settle(&mut self) {
        let mut changed = false;
        while let Some(output) = self.nodes.poll() {
            match output {
                FollowOutput::Ask { id, ask } => self.plane.ask(id, ask),
                FollowOutput::All(all) => {
                    self.known.clear();
                    all.into_iter().for_each(|(key, kept)| self.learn(key, &kept.value));
                    changed = true;
                }
                FollowOutput::Changed(changes) => {
                    for (key, kept) in changes {
                        match kept {
                            Some(kept) => self.learn(key, &kept.value),
                            None => drop(self.known.remove(&key)),
                        }
                    }
                    changed = true;
                }
            }
        }
        if changed {
            (self.hear)(Heard::Nodes(self.known.values().cloned().collect()));
        }
        while let Some(output) = self.weights.poll() {
            match output {
                FeedOutput::Ask { id, ask } => self.plane.ask(id, ask),
                FeedOutput::Weights(weights) => (self.hear)(Heard::Weights(weights)),
                FeedOutput::Unsound(error) => tracing::warn!("key {} {error}", keys::WEIGHTS),
            }
        }
        while let Some(output) = self.deletions.poll() {
            match output {
                DeletionsOutput::Ask { id, ask } => self.plane.ask(id, ask),
                DeletionsOutput::Deleted(deleted) => (self.hear)(Heard::Deleted(deleted)),
            }
        }
    }

    fn learn(&mut self, key: String, value: &[u8]) {
        match NodeRecord::decode(&key, value) {
            Ok(record) => drop(self.known.insert(key, record)),
            Err(error) => tracing::warn!("key {key} {error}"),
        }
    }
}
