//! The nodes as the client sees them: who is there, what the controller wants of each, how each feels, and
//! what each was asked and has not answered.
//!
//! Invariants:
//! - an ask has one answer or ends with the connection; an answer to nothing is ignored;
//! - a plan of the controller holds until its time is over, then every node counts the same;
//! - no node is asked more than [`Config::asks_max`](super::Config::asks_max) things at a time.

use super::congestion::Limit;
use crate::controller::weights::{NodeWeights, Weights};
use crate::message::{AskId, NodeFacts, Signals};
pub use crate::words::Mode;
use crate::words::{DomainId, NodeId};
use flash::{Instant, MILLISECOND};
use std::collections::BTreeMap;

/// What the controller wants, for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// By node; one that is not there counts 1 for both.
    pub shares: Vec<NodeWeights>,
    /// Not beyond this.
    pub until: Instant,
}

impl Plan {
    /// What came at `now`.
    pub fn of(weights: &Weights, now: Instant) -> Self {
        Self { shares: weights.nodes.clone(), until: now + weights.valid_ns }
    }
}

/// What an ask was for.
#[derive(Clone, Debug)]
pub struct Asked<P> {
    /// Of whom.
    pub node: NodeId,
    /// When.
    pub at: Instant,
    /// What for.
    pub purpose: P,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it fails together with.
    pub domain: DomainId,
    /// Connected, and what it says of itself.
    pub facts: Option<NodeFacts>,
    /// How much of its weight it gets.
    pub limit: Limit,
    /// Asks without an answer.
    pub asked: u32,
    /// What its drive had to do when it last told.
    pub queue: u32,
    /// It refused to begin a band, or failed one: none is begun there before this.
    pub shy_until: Instant,
    /// Bands whose first page it refused as one that cannot be.
    pub unfit: u64,
    /// Drained or replaced: it gets no new band.
    pub leaves: bool,
    share: NodeWeights,
    /// When it was told to serve reads only, after it had served writes.
    reads_since: Option<Instant>,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Nodes<P> {
    nodes: BTreeMap<NodeId, Node>,
    asked: BTreeMap<AskId, Asked<P>>,
    next: u64,
    asks_max: u32,
    congestion: bool,
    /// Of the plan in force.
    plan_until: Option<Instant>,
}

impl<P> Nodes<P> {
    /// None yet.
    pub fn new(asks_max: u32, congestion: bool) -> Self {
        Self {
            nodes: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            asks_max,
            congestion,
            plan_until: None,
        }
    }

    /// A node of the pool, or another domain for one.
    pub fn join(&mut self, id: NodeId, domain: DomainId) {
        let node = self.nodes.entry(id).or_insert(Node {
            domain,
            facts: None,
            limit: Limit::default(),
            asked: 0,
            queue: 0,
            shy_until: Instant(0),
            unfit: 0,
            leaves: false,
            share: even(id),
            reads_since: None,
        });
        (node.domain, node.leaves) = (domain, false);
    }

    /// The node gets no new band any more.
    pub fn leave(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.leaves = true;
        }
    }

    /// Those that get none.
    pub fn leaving(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, node)| node.leaves).map(|(id, _)| *id)
    }

    /// The node is no part of the pool any more.
    pub fn remove(&mut self, id: NodeId) -> Vec<P> {
        let lost = self.down(id);
        self.nodes.remove(&id);
        lost
    }

    /// A connection was made. False if the node is none of the pool.
    pub fn up(&mut self, facts: NodeFacts) -> bool {
        let Some(node) = self.nodes.get_mut(&facts.node) else { return false };
        (node.facts, node.shy_until, node.queue) = (Some(facts), Instant(0), 0);
        true
    }

    /// The connection is gone, and with it the answers to these.
    pub fn down(&mut self, id: NodeId) -> Vec<P> {
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.facts, node.asked) = (None, 0);
        }
        self.asked
            .extract_if(.., |_, asked| asked.node == id)
            .map(|(_, asked)| asked.purpose)
            .collect()
    }

    /// Whether a node can be asked something now.
    pub fn has_room(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.facts.is_some() && node.asked < self.asks_max)
    }

    /// Whether it is there, and is asked as much at a time as it may be.
    pub fn is_full(&self, id: NodeId) -> bool {
        self.is_up(id) && !self.has_room(id)
    }

    /// Whether a node is connected.
    pub fn is_up(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.facts.is_some())
    }

    /// Whether what a node has answered survives its power cut.
    pub fn is_durable(&self, id: NodeId) -> bool {
        self.nodes.get(&id).and_then(|node| node.facts).is_some_and(|facts| facts.durable)
    }

    /// Numbers an ask.
    pub fn ask(&mut self, now: Instant, id: NodeId, purpose: P) -> AskId {
        let node = self.nodes.get_mut(&id).expect("only known nodes are asked");
        node.asked += 1;
        self.next += 1;
        let ask = AskId(self.next);
        self.asked.insert(ask, Asked { node: id, at: now, purpose });
        ask
    }

    /// An answer came: what was asked, and whether the node's limit fell. `None` if nothing was.
    pub fn answered(
        &mut self,
        now: Instant,
        id: NodeId,
        ask: AskId,
        signals: Signals,
    ) -> Option<(Asked<P>, bool)> {
        if self.asked.get(&ask).is_none_or(|asked| asked.node != id) {
            return None;
        }
        let asked = self.asked.remove(&ask)?;
        let node = self.nodes.get_mut(&id)?;
        node.asked = node.asked.saturating_sub(1);
        node.queue = u32::from(signals.queue);
        let fell = self.congestion && node.limit.told(now, signals.congestion);
        Some((asked, fell))
    }

    /// The node is late. True if its limit fell.
    pub fn late(&mut self, now: Instant, id: NodeId) -> bool {
        let congestion = self.congestion;
        self.nodes.get_mut(&id).is_some_and(|node| congestion && node.limit.late(now))
    }

    /// It refused the first page of a band as one that cannot be.
    pub fn note_unfit(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.unfit += 1;
        }
    }

    /// No band is begun on this node before `until`.
    pub fn shy(&mut self, id: NodeId, until: Instant) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.shy_until = node.shy_until.max(until);
        }
    }

    /// A plan of the controller, unless it is over already.
    pub fn plan(&mut self, now: Instant, plan: &Plan) {
        if plan.until <= now {
            return;
        }
        for (&id, node) in &mut self.nodes {
            let share = plan.shares.iter().find(|share| share.node == id);
            let share = share.copied().unwrap_or(even(id));
            if share.mode != node.share.mode {
                node.limit.calm(now);
                node.reads_since = (share.mode == Mode::Reads).then_some(now);
            }
            node.share = share;
        }
        self.plan_until = Some(plan.until);
    }

    /// Falls back to equal weights when the plan is over. True if it is just so.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.plan_until.is_none_or(|until| now < until) {
            return false;
        }
        self.plan_until = None;
        self.nodes.iter_mut().for_each(|(&id, node)| {
            (node.share, node.reads_since) = (even(id), None);
        });
        true
    }

    /// Until when the plan holds.
    pub fn plan_until(&self) -> Option<Instant> {
        self.plan_until
    }

    /// Weight of a replica on this node for a read now.
    pub fn read_weight(&mut self, now: Instant, id: NodeId) -> f64 {
        let Some(node) = self.nodes.get_mut(&id) else { return 0.0 };
        let part = if node.has_turned(now, RAMP_NS) { RAMP } else { 1.0 };
        node.share.read * node.limit.now(now) * part
    }

    /// Weight of a node for a band that is opened now; `None` if it takes none.
    pub fn write_weight(&mut self, now: Instant, id: NodeId) -> Option<f64> {
        let node = self.nodes.get_mut(&id)?;
        if node.facts.is_none() || node.leaves || now < node.shy_until {
            return None;
        }
        let write = if node.share.mode == Mode::Reads { 0.0 } else { node.share.write };
        Some(write * for_writes(node.limit.now(now)))
    }

    /// The part of its weight that a node gets for what it said of itself, if that is so little that it is ill.
    pub fn ill(&mut self, now: Instant, id: NodeId) -> Option<f64> {
        let limit = self.nodes.get_mut(&id).map_or(1.0, |node| node.limit.now(now));
        (limit < ILL_BELOW).then_some(limit)
    }

    /// What a node is for now.
    pub fn mode(&self, id: NodeId) -> Mode {
        self.nodes.get(&id).map_or(Mode::Mixed, |node| node.share.mode)
    }

    /// What part of the pages each node is to get, on any scale.
    pub fn write_targets(&mut self, now: Instant) -> Vec<(NodeId, f64)> {
        let target = |node: &mut Node| {
            let shut = node.facts.is_none() || node.share.mode == Mode::Reads;
            if shut { 0.0 } else { node.share.write * for_writes(node.limit.now(now)) }
        };
        self.nodes.iter_mut().map(|(&id, node)| (id, target(node))).collect()
    }

    /// Whether what is open on a node is wanted all the same where there is nothing else, though it is to serve reads.
    pub fn lingers(&self, now: Instant, id: NodeId) -> bool {
        let node = self.nodes.get(&id).filter(|node| node.facts.is_some());
        node.is_some_and(|node| node.has_turned(now, LINGER_NS))
    }

    /// When what is open on a node that serves reads now is not wanted any more at all, if that is still to come.
    pub fn lingers_until(&self, now: Instant) -> Option<Instant> {
        let ends = self.nodes.values().filter_map(|node| node.reads_since);
        ends.map(|since| since + LINGER_NS).filter(|&at| at > now).min()
    }

    /// What is known of one.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// All, by id.
    pub fn all(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    /// Whether some limit is on its way up.
    pub fn recovers(&mut self, now: Instant) -> bool {
        self.nodes.values_mut().any(|node| node.limit.now(now) < 1.0)
    }
}

impl Node {
    /// Whether it was told to serve reads only within the last `ns`.
    fn has_turned(&self, now: Instant, ns: u64) -> bool {
        self.reads_since.is_some_and(|since| now - since < ns)
    }
}

/// So long after a node was told to serve reads what is open there still takes what has no other place: of bands on
/// those that serve writes from now on the control plane has to hear first.
const LINGER_NS: u64 = 4 * MILLISECOND;

/// So long a drive has writes of before to do beside the reads that it serves from now on: it is given less of these,
/// or they pile up, and one that is planned to be nearly full takes long to work them off.
const RAMP_NS: u64 = 6 * MILLISECOND;

/// That part of its weight.
const RAMP: f64 = 0.1;

/// A node whose limit is below this gets no writes while others take them: one that was halved three times in a row
/// is ill, and a write waits for the slowest of its members where a read can turn to another. Its reads tell when it
/// is well again.
pub const ILL_BELOW: f64 = 0.2;

fn for_writes(limit: f64) -> f64 {
    if limit < ILL_BELOW { 0.0 } else { limit }
}

/// What a node gets of which no controller says anything.
fn even(node: NodeId) -> NodeWeights {
    NodeWeights { node, mode: Mode::Mixed, read: 1.0, write: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Congestion;

    fn two() -> Nodes<u32> {
        let mut nodes = Nodes::new(2, true);
        for id in [1, 2] {
            nodes.join(NodeId(id), DomainId(id));
            assert!(nodes.up(NodeFacts { node: NodeId(id), ..NodeFacts::default() }));
        }
        nodes
    }

    #[test]
    fn what_was_asked_ends_with_its_answer_or_with_the_connection() {
        let (mut nodes, [a, b]) = (two(), [NodeId(1), NodeId(2)]);
        let first = nodes.ask(Instant(1), a, 7);
        nodes.ask(Instant(2), a, 8);
        assert!(!nodes.has_room(a) && nodes.has_room(b));
        let signals = Signals { queue: 5, ..Signals::default() };
        assert!(nodes.answered(Instant(3), b, first, signals).is_none(), "not asked of this one");
        let (asked, fell) = nodes.answered(Instant(3), a, first, signals).unwrap();
        assert_eq!((asked.purpose, asked.at, fell), (7, Instant(1), false));
        assert!(nodes.answered(Instant(3), a, first, signals).is_none(), "answered already");
        assert_eq!(nodes.get(a).unwrap().queue, 5);
        assert_eq!(nodes.down(a), [8]);
        assert!(!nodes.has_room(a) && nodes.write_weight(Instant(3), a).is_none());
    }

    #[test]
    fn a_plan_holds_until_its_time_is_over_then_all_count_the_same() {
        let (mut nodes, [a, b]) = (two(), [NodeId(1), NodeId(2)]);
        let share = NodeWeights { node: a, mode: Mode::Reads, read: 3.0, write: 2.0 };
        let (until, later) = (Instant(MILLISECOND * 100), Instant(MILLISECOND * 50));
        nodes.plan(Instant(0), &Plan { shares: vec![share], until });
        assert_eq!(nodes.read_weight(later, a), 3.0);
        assert_eq!(nodes.write_weight(Instant(1), a), Some(0.0), "it serves reads");
        assert_eq!(nodes.write_targets(later), [(a, 0.0), (b, 1.0)]);
        assert!(!nodes.expire(later) && nodes.expire(until));
        assert_eq!(nodes.read_weight(until, a), 1.0);
        assert_eq!(nodes.write_weight(until, a), Some(1.0));
        nodes.plan(until, &Plan { shares: vec![share], until });
        assert_eq!(nodes.plan_until(), None, "it was late");
    }

    #[test]
    fn a_node_that_turns_to_reads_is_given_few_at_first_and_what_is_open_there_lingers() {
        let (mut nodes, a) = (two(), NodeId(1));
        let at = |ms: u64| Instant(MILLISECOND * ms);
        let share = |mode| NodeWeights { node: a, mode, read: 1.0, write: 1.0 };
        let plan = |mode| Plan { shares: vec![share(mode)], until: at(1000) };
        nodes.plan(at(10), &plan(Mode::Writes));
        assert_eq!((nodes.read_weight(at(11), a), nodes.lingers(at(11), a)), (1.0, false));
        nodes.plan(at(20), &plan(Mode::Reads));
        // The same plan told again is no turn.
        nodes.plan(at(21), &plan(Mode::Reads));
        assert_eq!((nodes.read_weight(at(22), a), nodes.lingers(at(22), a)), (RAMP, true));
        assert_eq!(nodes.write_weight(at(22), a), Some(0.0), "no new band, though");
        assert_eq!(nodes.lingers_until(at(22)), Some(at(20) + LINGER_NS));
        let later = at(20) + RAMP_NS.max(LINGER_NS);
        assert_eq!((nodes.read_weight(later, a), nodes.lingers(later, a)), (1.0, false));
        assert_eq!(nodes.lingers_until(later), None);
    }

    #[test]
    fn a_congested_node_gets_half_and_one_that_leaves_nothing_new() {
        let (mut nodes, [a, b]) = (two(), [NodeId(1), NodeId(2)]);
        let ask = nodes.ask(Instant(1), a, 7);
        let signals = Signals { congestion: Congestion::Congested, ..Signals::default() };
        assert!(!nodes.answered(Instant(3), a, ask, signals).unwrap().1, "it may be a burst");
        let ask = nodes.ask(Instant(3), a, 7);
        let at = |ns| Instant(super::super::congestion::LASTS_NS + ns);
        assert!(nodes.answered(at(3), a, ask, signals).unwrap().1);
        assert_eq!(nodes.read_weight(at(4), a), 0.5);
        assert!(nodes.recovers(at(4)));
        nodes.late(at(60 * MILLISECOND), a);
        let ill = at(120 * MILLISECOND);
        nodes.late(ill, a);
        assert_eq!(nodes.write_weight(ill, a), Some(0.0));
        assert_eq!(nodes.write_targets(ill), [(a, 0.0), (b, 1.0)]);
        assert!(nodes.read_weight(ill, a) > 0.0, "its reads tell when it is well again");
        nodes.leave(b);
        assert_eq!(nodes.write_weight(at(4), b), None);
        nodes.shy(a, ill + 9);
        assert_eq!(nodes.write_weight(ill + 8, a), None);
        assert_eq!(nodes.write_weight(ill + 9, a), Some(0.0));
    }
}
