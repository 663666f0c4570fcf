//! The controller of a pool: it hears what clients ask and what nodes do, and says every 100 ms how much of the
//! reads and writes each node is to get and what it serves. It plans; it is never on the way of a request. What
//! it says expires, and then all nodes are equal (`weights`), so its death costs speed and nothing else.
//!
//! - [`solver`] finds the plan of least latency, with a bound that certifies it; [`policy`] makes modes and
//!   weights of it, or of something simpler, by name.
//! - [`balance`] finds weights of reads by which each node gets its part of them, given who holds what.
//! - [`watch`] notices drives that are slower than their profiles, and drives near the end of their endurance.
//!
//! Whatever a policy says, the controller sees to it that weights are of nodes that are there, not negative and
//! 1 together, and that writes find as many failure domains as there are replicas, if there are.

pub mod balance;
mod explain;
mod kinds;
pub mod policy;
pub mod solver;
pub mod watch;
pub mod weights;

pub use explain::{Explained, Limit};

use crate::profile::{DAMPING, LoadModel, Profile, ProfileError, Slo};
use crate::repair::Progress;
use crate::words::{DomainId, Members, NodeId, VolumeId};
use balance::Group;
use flash::{Instant, MILLISECOND, SECOND};
use kinds::Kinds;
use policy::{Allotment, Decision, NodeView, Policy, View};
use solver::{Demand, Drive, Fleet, Shape, Terms};
use std::collections::{BTreeMap, VecDeque};
use watch::Watch;
use weights::{Mode, NodeWeights, Weights};

/// What a controller goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What the plan has to keep.
    pub slo: Slo,
    /// Copies of every block.
    pub replicas: u32,
    /// One of [`policy::POLICIES`].
    pub policy: String,
    /// Of what profiles say so much is counted on.
    pub damping: f64,
    /// A plan is made so often.
    pub period_ns: u64,
    /// Nodes serve the same for so long at most, if there is a choice.
    pub slot_ns: u64,
    /// Clients and nodes go by what they were told for so long.
    pub valid_ns: u64,
    /// A node that says nothing for so long is taken to be gone.
    pub silent_ns: u64,
    /// See [`Terms::is_local`].
    pub is_local: bool,
    /// See [`Terms::is_apart`].
    pub is_apart: bool,
    /// Of the controller's election: later ones are larger.
    pub election: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slo: Slo::default(),
            replicas: 2,
            policy: "solver".into(),
            damping: DAMPING,
            period_ns: 100 * MILLISECOND,
            slot_ns: 300 * MILLISECOND,
            valid_ns: SECOND,
            silent_ns: SECOND,
            is_local: true,
            is_apart: true,
            election: 0,
        }
    }
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingsError {
    /// There is no such policy.
    Policy(String),
    /// So many copies: 1 to 4.
    Replicas(u32),
    /// This one is 0.
    Zero(&'static str),
    /// Not within (0, 1].
    Damping(f64),
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(name) => {
                let names = policy::POLICIES.map(|policy| policy.0).join(", ");
                write!(f, "policy = {name:?}: there is none of that name; take one of {names}")
            }
            Self::Replicas(found) => write!(f, "replicas = {found}: 1 to 4"),
            Self::Zero(name) => write!(f, "{name} = 0: above 0"),
            Self::Damping(found) => write!(f, "damping = {found}: above 0 and at most 1"),
        }
    }
}

impl std::error::Error for SettingsError {}

/// What was seen of a node in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeSeen {
    /// Reads that it completed, a second.
    pub reads: f64,
    /// Writes that it completed, a second.
    pub writes: f64,
    /// Requests that it refused because it was congested, a second.
    pub rejected: f64,
    /// Its latency at the quantile of the service level, in microseconds; 0 if it had nothing to do.
    pub tail_us: f64,
    /// The part of its endurance that is used.
    pub wear: f64,
    /// Its raw blocks, if it told of them.
    pub room: Option<Room>,
}

/// What a node has room for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Room {
    /// Bands that it has raw blocks for, all in all.
    pub bands: u32,
    /// Bands that are there.
    pub used: u32,
    /// Pages of the longest band of a volume that one of its raw blocks holds.
    pub pages: u32,
}

/// What the client of a volume saw in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VolumeSeen {
    /// Reads that were asked of it, a second, in blocks.
    pub reads: f64,
    /// Writes, likewise.
    pub writes: f64,
    /// What its FTL writes for each of them, copies not counted: 1 without GC.
    pub waf: f64,
    /// Nothing until its bands were counted.
    pub redundancy: Option<Redundancy>,
}

/// Whether bands of a volume are where they should be. Only its client knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Redundancy {
    /// Bands that lack a copy.
    pub lacking: u64,
    /// Bands for which nothing can be done now: there is nothing to copy from, or nowhere to copy to.
    pub stuck: u64,
    /// Bands that are to leave nodes which are drained.
    pub draining: u64,
    /// Bands that are to leave nodes which have more than their share.
    pub spreading: u64,
    /// Nodes that are away, and what they have is not copied yet as they may come back.
    pub away: u64,
    /// Bytes that are to be copied for all of it.
    pub bytes_left: u64,
    /// How long that takes at the pace of now; `None` if nothing goes on.
    pub left_ns: Option<u64>,
}

impl Redundancy {
    /// As repair has it, once it has counted.
    pub fn of(progress: &Progress) -> Option<Self> {
        let Progress { lacking, stuck, draining, spreading, away, bytes_left, left_ns, .. } =
            *progress;
        let told = Self { lacking, stuck, draining, spreading, away, bytes_left, left_ns };
        progress.is_counted.then_some(told)
    }
}

/// What a controller is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A node is there: new, back, or with a new profile.
    Node {
        /// Which.
        node: NodeId,
        /// What it fails together with.
        domain: DomainId,
        /// Of its drive.
        profile: Profile,
    },
    /// A node belongs to the pool, and nothing is known of what its drive can do.
    Unknown {
        /// Which.
        node: NodeId,
        /// What it fails together with.
        domain: DomainId,
    },
    /// A node is gone, until it says something again or is told of anew.
    Gone(NodeId),
    /// A node belongs to the pool no longer.
    Removed(NodeId),
    /// A node says how it does.
    NodeSeen(NodeId, NodeSeen),
    /// A client says how its volume does.
    VolumeSeen(VolumeId, VolumeSeen),
    /// Blocks, or bands, by who holds them, of all volumes.
    Held(Vec<(Members, u64)>),
    /// Time passed.
    Deadline,
}

/// What a controller says.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// For all clients and nodes.
    Weights(Weights),
}

#[derive(Debug)]
struct Node {
    node: NodeId,
    domain: DomainId,
    profile: Profile,
    model: LoadModel,
    /// The place of its shape in the fleet.
    kind: usize,
    seen: NodeSeen,
    seen_at: Instant,
    is_gone: bool,
    watch: Watch,
}

/// A node without a profile: no plan counts on it.
#[derive(Debug)]
struct Stranger {
    domain: DomainId,
    seen_at: Instant,
    /// Of what it told; nothing until then.
    seen: Option<NodeSeen>,
    is_gone: bool,
}

impl Stranger {
    fn is_live(&self, now: Instant, silent_ns: u64) -> bool {
        !self.is_gone && now - self.seen_at < silent_ns
    }

    fn room(&self) -> Option<Room> {
        self.seen.and_then(|seen| seen.room)
    }
}

/// More nodes, volumes or sets of members than that are not looked at.
const NODES_MAX: usize = 1 << 16;
const VOLUMES_MAX: usize = 1 << 16;
const GROUPS_MAX: usize = 1 << 20;
/// A demand that falls is believed by so much of the last one a period: bursts come again.
const FALLS: f64 = 0.8;
/// What the client of a volume told of its copies is believed for so long: longer than one that is busy is silent.
const REDUNDANCY_NS: u64 = 5 * SECOND;

/// See the head of the file.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    policy: Box<dyn Policy>,
    /// In the order of their ids; drives of the fleet likewise.
    nodes: Vec<Node>,
    fleet: Fleet,
    kinds: Kinds,
    strangers: BTreeMap<NodeId, Stranger>,
    volumes: BTreeMap<VolumeId, (VolumeSeen, Instant)>,
    held: Vec<(Members, u64)>,
    /// The same as parts of all, of the nodes that were live at the last plan; made anew when either changes.
    groups: Vec<Group>,
    grouped: Vec<bool>,
    demand: Demand,
    turn: u64,
    plans_at: Instant,
    explained: Explained,
    outputs: VecDeque<Output>,
}

impl Controller {
    /// A controller that knows of no node.
    ///
    /// # Errors
    /// If the settings make no sense.
    pub fn new(now: Instant, settings: Settings) -> Result<Self, SettingsError> {
        let policy = policy::named(&settings.policy)
            .ok_or_else(|| SettingsError::Policy(settings.policy.clone()))?;
        if !(1..=crate::words::MEMBERS_MAX as u32).contains(&settings.replicas) {
            return Err(SettingsError::Replicas(settings.replicas));
        }
        if !(settings.damping > 0.0 && settings.damping <= 1.0) {
            return Err(SettingsError::Damping(settings.damping));
        }
        let times = [
            ("period_ns", settings.period_ns),
            ("slot_ns", settings.slot_ns),
            ("valid_ns", settings.valid_ns),
            ("silent_ns", settings.silent_ns),
        ];
        if let Some((name, _)) = times.iter().find(|(_, ns)| *ns == 0) {
            return Err(SettingsError::Zero(name));
        }
        let plans_at = now + settings.period_ns;
        Ok(Self {
            settings,
            policy,
            nodes: Vec::new(),
            fleet: Fleet::default(),
            kinds: Kinds::default(),
            strangers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            held: Vec::new(),
            groups: Vec::new(),
            grouped: Vec::new(),
            demand: Demand::default(),
            turn: 0,
            plans_at,
            explained: Explained::default(),
            outputs: VecDeque::new(),
        })
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// If the profile of a node cannot be planned with; the node is then as it was.
    pub fn handle(&mut self, now: Instant, input: Input) -> Result<(), ProfileError> {
        match input {
            Input::Node { node, domain, profile } => {
                self.join(now, node, domain, profile)?;
                self.strangers.remove(&node);
            }
            Input::Unknown { node, domain } => {
                if self.place(node).is_err() && self.strangers.len() < NODES_MAX {
                    let new = Stranger { domain, seen_at: now, seen: None, is_gone: false };
                    self.strangers.entry(node).or_insert(new);
                }
            }
            Input::Gone(node) => {
                if let Ok(at) = self.place(node) {
                    self.nodes[at].is_gone = true;
                } else if let Some(stranger) = self.strangers.get_mut(&node) {
                    stranger.is_gone = true;
                }
            }
            Input::Removed(node) => {
                self.strangers.remove(&node);
                if let Ok(at) = self.place(node) {
                    self.kinds.leave(self.nodes.remove(at).kind);
                    self.grouped.clear();
                }
            }
            Input::NodeSeen(node, seen) => self.see(now, node, seen),
            Input::VolumeSeen(volume, seen) => {
                let (reads, writes) = (sound(seen.reads), sound(seen.writes));
                let seen = VolumeSeen { reads, writes, waf: sound(seen.waf).min(WAF_MAX), ..seen };
                if self.volumes.len() < VOLUMES_MAX || self.volumes.contains_key(&volume) {
                    self.volumes.insert(volume, (seen, now));
                }
            }
            Input::Held(held) => {
                self.held = if held.len() <= GROUPS_MAX { held } else { Vec::new() };
                self.grouped.clear();
            }
            Input::Deadline => {}
        }
        if now >= self.plans_at {
            self.plan(now);
            // Not `plans_at` again: who was late does not make up for it.
            self.plans_at = now + self.settings.period_ns;
        }
        Ok(())
    }

    /// What is to be told, in order.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When the next plan is made.
    pub fn deadline(&self) -> Instant {
        self.plans_at
    }

    /// Why the last plan is as it is.
    pub fn explain(&self) -> &Explained {
        &self.explained
    }

    fn place(&self, node: NodeId) -> Result<usize, usize> {
        self.nodes.binary_search_by_key(&node, |known| known.node)
    }

    fn join(
        &mut self,
        now: Instant,
        node: NodeId,
        domain: DomainId,
        profile: Profile,
    ) -> Result<(), ProfileError> {
        let place = self.place(node);
        if let Some(known) = place.ok().map(|at| &mut self.nodes[at])
            && known.profile == profile
        {
            // What was learned of it stays true.
            (known.domain, known.seen_at, known.is_gone) = (domain, now, false);
            return Ok(());
        }
        if place.is_err() && self.nodes.len() >= NODES_MAX {
            return Ok(());
        }
        let is_like = |known: &&Node| known.watch.slowness() == 1.0 && known.profile == profile;
        let (kind, model) = match self.nodes.iter().find(is_like) {
            Some(like) => (self.kinds.join(like.kind), like.model.clone()),
            None => {
                let model = LoadModel::new(&profile, self.settings.slo, self.settings.damping)?;
                let shape = Shape::new(&model.points());
                (self.kinds.add(&mut self.fleet.shapes, shape), model)
            }
        };
        let (seen, watch) = (NodeSeen::default(), Watch::default());
        let fresh =
            Node { node, domain, profile, model, kind, seen, seen_at: now, is_gone: false, watch };
        match place {
            Ok(at) => self.kinds.leave(std::mem::replace(&mut self.nodes[at], fresh).kind),
            Err(at) => {
                self.nodes.insert(at, fresh);
                self.grouped.clear();
            }
        }
        Ok(())
    }

    fn see(&mut self, now: Instant, node: NodeId, seen: NodeSeen) {
        if let Some(stranger) = self.strangers.get_mut(&node) {
            (stranger.seen_at, stranger.seen, stranger.is_gone) = (now, Some(seen), false);
        }
        let Ok(at) = self.place(node) else { return };
        let seen = NodeSeen {
            reads: sound(seen.reads),
            writes: sound(seen.writes),
            rejected: sound(seen.rejected),
            wear: sound(seen.wear),
            ..seen
        };
        let known = &mut self.nodes[at];
        (known.seen, known.seen_at, known.is_gone) = (seen, now, false);
        let has_tail = seen.tail_us > 0.0 && seen.tail_us.is_finite();
        if has_tail && known.watch.see(now, &known.model, seen.reads, seen.writes, seen.tail_us) {
            let (slo, damping) = (self.settings.slo, self.settings.damping);
            let slowed = LoadModel::slowed(&known.profile, slo, damping, known.watch.slowness());
            known.model = slowed.expect("the profile was planned with before");
            self.kinds.leave(known.kind);
            let shape = Shape::new(&known.model.points());
            known.kind = self.kinds.add(&mut self.fleet.shapes, shape);
        }
    }

    fn plan(&mut self, now: Instant) {
        let kept_ns = REDUNDANCY_NS.max(self.settings.silent_ns);
        self.volumes.retain(|_, (_, at)| now - *at < kept_ns);
        self.demand = self.demand_now(now);
        self.survey(now);
        self.group();
        let nodes: Vec<NodeView<'_>> = self
            .nodes
            .iter()
            .zip(&self.fleet.drives)
            .map(|(node, drive)| NodeView {
                node: node.node,
                model: &node.model,
                is_live: drive.scale > 0.0,
            })
            .collect();
        let terms = Terms {
            replicas: self.settings.replicas,
            is_local: self.settings.is_local,
            is_apart: self.settings.is_apart,
            ..Terms::default()
        };
        let (demand, slot_ns) = (self.demand, self.settings.slot_ns);
        let view = View {
            now,
            demand,
            terms,
            nodes: &nodes,
            fleet: &self.fleet,
            groups: &self.groups,
            slot_ns,
        };
        let mut decision = self.policy.plan(&view);
        self.mend(&mut decision);
        self.turn += 1;
        self.explained = self.explained_by(now, &decision);
        let of = |(node, allotted): (&Node, &Allotment)| NodeWeights {
            node: node.node,
            mode: allotted.mode,
            read: allotted.read,
            write: allotted.write,
        };
        self.outputs.push_back(Output::Weights(Weights {
            turn: (self.settings.election, self.turn),
            valid_ns: self.settings.valid_ns,
            nodes: self.nodes.iter().zip(&decision.nodes).map(of).collect(),
        }));
    }

    /// What clients ask, or, where they are silent, at least what nodes did.
    fn demand_now(&self, now: Instant) -> Demand {
        let silent = self.settings.silent_ns;
        let (mut asked, mut done) = (Demand::default(), Demand::default());
        for (seen, at) in self.volumes.values() {
            if now - *at < silent {
                let waf = seen.waf.max(1.0);
                let more = Demand::of_clients(seen.reads, seen.writes, self.settings.replicas, waf);
                asked.reads += more.reads;
                asked.writes += more.writes;
            }
        }
        for node in self.nodes.iter().filter(|node| now - node.seen_at < silent) {
            done.reads += node.seen.reads;
            done.writes += node.seen.writes;
        }
        Demand {
            reads: asked.reads.max(done.reads).max(self.demand.reads * FALLS),
            writes: asked.writes.max(done.writes).max(self.demand.writes * FALLS),
        }
    }

    /// The drives as they are now.
    fn survey(&mut self, now: Instant) {
        let mut domains: Vec<DomainId> = self.nodes.iter().map(|node| node.domain).collect();
        domains.sort_unstable();
        domains.dedup();
        self.fleet.domains = domains.len();
        self.fleet.drives.clear();
        for node in &self.nodes {
            let is_live = !node.is_gone && now - node.seen_at < self.settings.silent_ns;
            self.fleet.drives.push(Drive {
                shape: node.kind,
                scale: if is_live { 1.0 } else { 0.0 },
                domain: domains.binary_search(&node.domain).expect("it is one of them"),
                reads_max: f64::INFINITY,
                writes_max: watch::writes_of_worn(node.model.peak(100.0), node.seen.wear),
            });
        }
    }

    /// What nodes hold, as parts of all, without members that nobody knows or that are gone.
    fn group(&mut self) {
        let live = self.fleet.drives.iter().map(|drive| drive.scale > 0.0);
        if !self.grouped.is_empty() && live.clone().eq(self.grouped.iter().copied()) {
            return;
        }
        self.grouped = live.collect();
        let all: u64 = self.held.iter().map(|held| held.1).sum();
        self.groups.clear();
        for (members, blocks) in &self.held {
            let known = members.nodes().iter().filter_map(|node| self.place(*node).ok());
            let live: Vec<usize> = known.filter(|at| self.grouped[*at]).collect();
            if !live.is_empty() && *blocks > 0 {
                self.groups.push(Group::new(&live, *blocks as f64 / all as f64));
            }
        }
    }

    /// See the head of the file.
    fn mend(&self, decision: &mut Decision) {
        decision.nodes.resize(self.nodes.len(), Allotment::default());
        let mut domains = vec![false; self.fleet.domains];
        for (node, drive) in decision.nodes.iter_mut().zip(&self.fleet.drives) {
            let is_sound = |weight: f64| weight.is_finite() && weight > 0.0 && drive.scale > 0.0;
            node.read = if is_sound(node.read) { node.read } else { 0.0 };
            node.write = if is_sound(node.write) { node.write } else { 0.0 };
            domains[drive.domain] |= node.write > 0.0;
        }
        let writable = domains.iter().filter(|writable| **writable).count();
        if writable < self.settings.replicas as usize {
            open_all(&mut decision.nodes, &self.fleet);
        }
        let (reads, writes) = decision
            .nodes
            .iter()
            .fold((0.0, 0.0), |sum, node| (sum.0 + node.read, sum.1 + node.write));
        let live = self.fleet.drives.iter().filter(|drive| drive.scale > 0.0).count() as f64;
        for (node, drive) in decision.nodes.iter_mut().zip(&self.fleet.drives) {
            let equal = if drive.scale > 0.0 { 1.0 / live } else { 0.0 };
            node.read = if reads > 0.0 { node.read / reads } else { equal };
            node.write = if writes > 0.0 { node.write / writes } else { equal };
        }
    }
}

/// What others say of themselves is a number that can be reckoned with, or nothing.
fn sound(number: f64) -> f64 {
    if (0.0..=RATE_MAX).contains(&number) { number } else { 0.0 }
}

/// More requests a second than all flash of the world serves.
const RATE_MAX: f64 = 1e15;
const WAF_MAX: f64 = 1000.0;

/// Writes find too few domains: all nodes that are there take them.
fn open_all(nodes: &mut [Allotment], fleet: &Fleet) {
    let sum: f64 = nodes.iter().map(|node| node.write).sum();
    let usual = if sum > 0.0 { sum / nodes.len() as f64 } else { 1.0 };
    for (node, drive) in nodes.iter_mut().zip(&fleet.drives) {
        // A worn-out drive still takes writes when there is no other: data lost is worse than a drive.
        if drive.scale > 0.0 && node.write <= 0.0 {
            node.write = usual;
            if node.mode == Mode::Reads {
                node.mode = Mode::Mixed;
            }
        }
    }
}

#[cfg(test)]
mod tests;
