//! What a controller knows: records of nodes from the plane, reports from nodes and clients, and the plan that comes
//! of them. No sockets and no clock: the process hands in what happened.

use flash::Instant;
use pool::control::contract::{Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::election::{Election, ElectionOutput};
use pool::control::follow::{Follow, FollowOutput, published};
use pool::control::keys;
use pool::control::values::{NodeRecord, Value};
use pool::control::wire::Report;
use pool::controller::weights::Weights;
use pool::controller::{Controller, Explained, Input, Output, Settings, SettingsError};
use pool::profile::Profile;
use pool::words::{Members, NodeId, VolumeId};
use std::collections::BTreeMap;

/// The profile of a node whose record names this one is what the node itself measured.
pub const OWN_PROFILE: &str = "own";

/// Reports of a volume's blocks older than that are of a client that is gone.
const HELD_NS: u64 = 60 * flash::SECOND;
/// Nodes that may report a profile of their own.
const PROFILES_MAX: usize = 1 << 14;

/// See the head of the file.
pub struct Plans {
    election: Election,
    controller: Controller,
    nodes: Follow,
    records: BTreeMap<NodeId, NodeRecord>,
    /// What nodes said of their drives.
    profiles: BTreeMap<NodeId, Profile>,
    held: BTreeMap<VolumeId, (Instant, Vec<(Members, u64)>)>,
}

impl Plans {
    /// A candidate; see [`Election::new`].
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn new(
        now: Instant,
        (me, address, lease_ns): (u128, &str, u64),
        settings: Settings,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            election: Election::new(now, me, address, lease_ns),
            controller: Controller::new(now, settings)?,
            nodes: Follow::new(now, Part::Nodes, keys::nodes()),
            records: BTreeMap::new(),
            profiles: BTreeMap::new(),
            held: BTreeMap::new(),
        })
    }

    /// The plane answered.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        self.election.answered(now, id, answer);
        self.nodes.answered(now, id, answer);
    }

    /// A node or a client said something.
    pub fn reported(&mut self, now: Instant, report: Report) {
        match report {
            Report::Node { node, seen } => self.tell(now, Input::NodeSeen(node, seen)),
            Report::Volume { volume, seen } => self.tell(now, Input::VolumeSeen(volume, seen)),
            Report::Profile { node, text } => self.profile(now, node, &text),
            Report::Held { volume, groups } => {
                self.held.insert(volume, (now, groups));
                self.hold(now);
            }
        }
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        self.election.elapsed(now);
        self.nodes.elapsed(now);
        if self.election.is_leading(now) && now >= self.controller.deadline() {
            self.tell(now, Input::Deadline);
        }
    }

    /// When to look at the time.
    pub fn deadline(&self, now: Instant) -> Instant {
        let plan = self.election.is_leading(now).then(|| self.controller.deadline());
        let all = [self.election.deadline(), self.nodes.deadline(), plan];
        all.into_iter().flatten().min().expect("an election always has a deadline")
    }

    /// What to ask the plane.
    pub fn poll(&mut self, now: Instant) -> Option<(PlaneAskId, PlaneAsk)> {
        while let Some(output) = self.nodes.poll() {
            match output {
                FollowOutput::Ask { id, ask } => return Some((id, ask)),
                FollowOutput::All(all) => self.all_nodes(now, all),
                FollowOutput::Changed(changes) => {
                    for (key, kept) in changes {
                        self.node(now, &key, kept.as_ref());
                    }
                }
            }
        }
        while let Some(Output::Weights(weights)) = self.controller.poll() {
            self.publish(now, &weights);
        }
        while let Some(output) = self.election.poll() {
            match output {
                ElectionOutput::Ask { id, ask } => return Some((id, ask)),
                ElectionOutput::Elected => tracing::info!("elected: this is the pool's controller"),
                ElectionOutput::Deposed => tracing::warn!("not the pool's controller any more"),
                ElectionOutput::Published => {}
            }
        }
        None
    }

    /// Why the last plan is as it is.
    pub fn explain(&self) -> &Explained {
        self.controller.explain()
    }

    fn publish(&mut self, now: Instant, weights: &Weights) {
        let leads = self.election.is_leading(now);
        if leads && !self.election.publish(now, weights.valid_ns, published(weights)) {
            tracing::warn!(
                "weights of {} nodes are more than the control plane takes: all are equal",
                weights.nodes.len()
            );
        }
    }

    fn tell(&mut self, now: Instant, input: Input) {
        let told = self.controller.handle(now, input);
        told.expect("only profiles are refused, and this is none");
    }

    fn all_nodes(&mut self, now: Instant, all: Vec<(String, Kept)>) {
        let there: Vec<String> = all.iter().map(|(key, _)| key.clone()).collect();
        let gone: Vec<NodeId> = self.records.keys().copied().collect();
        for node in gone.into_iter().filter(|node| !there.contains(&keys::node(*node))) {
            self.node(now, &keys::node(node), None);
        }
        for (key, kept) in &all {
            self.node(now, key, Some(kept));
        }
    }

    fn node(&mut self, now: Instant, key: &str, kept: Option<&Kept>) {
        let known = self.records.iter().find(|(node, _)| keys::node(**node) == key);
        let known = known.map(|(node, _)| *node);
        let record = kept.map(|kept| NodeRecord::decode(key, &kept.value)).transpose();
        match record {
            Err(error) => tracing::warn!("the record {key} {error}"),
            Ok(Some(record)) if record.state.counts() => {
                let node = record.node;
                self.records.insert(node, record);
                self.join(now, node);
            }
            Ok(_) => {
                if let Some(node) = known {
                    self.records.remove(&node);
                    self.tell(now, Input::Removed(node));
                }
            }
        }
    }

    fn profile(&mut self, now: Instant, node: NodeId, text: &str) {
        let known = self.profiles.contains_key(&node);
        if !known && self.profiles.len() >= PROFILES_MAX {
            return;
        }
        match Profile::parse(OWN_PROFILE, text) {
            Ok(profile) => {
                if self.profiles.insert(node, profile.clone()) != Some(profile) {
                    self.join(now, node);
                }
            }
            Err(error) => tracing::warn!(node = node.0, "the profile of a node: {error}"),
        }
    }

    /// Tells the planner of a node, if all that it takes is known.
    fn join(&mut self, now: Instant, node: NodeId) {
        let Some(record) = self.records.get(&node) else { return };
        let domain = record.domain;
        let profile = match record.profile.as_str() {
            OWN_PROFILE => self.profiles.get(&node).cloned(),
            name => Profile::builtin(name),
        };
        let Some(profile) = profile else {
            if record.profile != OWN_PROFILE {
                tracing::warn!(
                    node = node.0,
                    "the record of a node names the profile {:?}, which there is not: it gets no weight",
                    record.profile
                );
            }
            return self.tell(now, Input::Unknown { node, domain });
        };
        if let Err(error) = self.controller.handle(now, Input::Node { node, domain, profile }) {
            tracing::warn!(node = node.0, "a node cannot be planned with: {error}");
            self.tell(now, Input::Unknown { node, domain });
        }
    }

    /// Blocks of all volumes by who holds them.
    fn hold(&mut self, now: Instant) {
        self.held.retain(|_, (at, _)| now - *at < HELD_NS);
        let mut all: BTreeMap<&[NodeId], (Members, u64)> = BTreeMap::new();
        for (members, blocks) in self.held.values().flat_map(|(_, groups)| groups) {
            all.entry(members.nodes()).or_insert((*members, 0)).1 += blocks;
        }
        let all = all.into_values().collect();
        self.tell(now, Input::Held(all));
    }
}
