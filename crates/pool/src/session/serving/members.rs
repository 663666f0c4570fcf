//! Nodes that come, go, and are wanted or not, while a volume is served.

use super::{Edit, Link, REJOIN_NS, Serving, Stage};
use crate::client;
use crate::control::values::{NodeRecord, NodeState};
use crate::message::NodeFacts;
use crate::opening::Rejoin;
use crate::repair::{NodeView, RepairInput};
use crate::session::Output;
use crate::words::{Fenced, NodeId};
use flash::{Instant, SECOND};
use std::collections::BTreeMap;

/// A node that would not flush is taken in anew after this at most.
const REJOIN_NS_MAX: u64 = 30 * SECOND;

/// What nodes say of themselves is put together for so long.
const VIEWS_NS: u64 = SECOND / 4;

/// One that has been here for so long is as good as one that always was.
const CALM_NS: u64 = 60 * SECOND;

impl<D: Clone> Serving<D> {
    pub(super) fn up(&mut self, facts: NodeFacts) {
        self.down(facts.node);
        self.facts.insert(facts.node, facts);
        self.links.insert(facts.node, Link { facts, asked: 0, stage: Stage::Waits(self.now) });
    }

    pub(super) fn down(&mut self, node: NodeId) {
        let Some(link) = self.links.remove(&node) else { return };
        if link.facts.durable {
            self.standing.stir();
        } else {
            self.standing.down(node);
            self.seals.down(node);
        }
        if matches!(link.stage, Stage::Joined) {
            self.remote.handle(self.now, client::Input::Down { node });
            self.repair(RepairInput::Down(node));
        }
        self.tell(node);
    }

    /// A node was asked something that it answers, or its connection ends.
    pub(super) fn asked(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.asked += 1;
        }
    }

    pub(super) fn answered(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.asked = link.asked.saturating_sub(1);
        }
    }

    /// A node would not flush, or not in time: seals and frees that it had not flushed count no more than pages do. It
    /// is taken in anew, by what it has then, and flushed; later each time if that comes often, since each costs the
    /// volume a wait.
    pub(super) fn distrust(&mut self, node: NodeId) {
        if !self.links.contains_key(&node) {
            return;
        }
        let pause_ns = match self.distrusted.get(&node) {
            Some(&(at, ns)) if self.now - at < ns + CALM_NS => (2 * ns).min(REJOIN_NS_MAX),
            _ => REJOIN_NS,
        };
        self.distrusted.insert(node, (self.now, pause_ns));
        self.take_in_anew(node, self.now + pause_ns);
    }

    /// A node that is there is as good as gone until then. What it was asked is still answered, and waited for.
    fn take_in_anew(&mut self, node: NodeId, at: Instant) {
        let Some(&Link { facts, asked, .. }) = self.links.get(&node) else { return };
        self.down(node);
        self.links.insert(node, Link { facts, asked, stage: Stage::Waits(at) });
    }

    /// Nodes that wait and may be taken in are fenced and listed. What was asked of a node before is done by then,
    /// so that nothing changes behind the list.
    pub(super) fn admit(&mut self) {
        let now = self.now;
        let due =
            |link: &Link<D>| link.asked == 0 && matches!(link.stage, Stage::Waits(at) if at <= now);
        let waiting: Vec<NodeId> =
            self.links.iter().filter(|(_, link)| due(link)).map(|(node, _)| *node).collect();
        for node in waiting {
            let is_clear = self.clear.contains(&node);
            let takes = |record: &&NodeRecord| {
                !is_clear || record.state == NodeState::In && !self.emptied.contains(&node)
            };
            let Some(record) = self.records.get(&node).filter(takes) else { continue };
            let link = self.links.get_mut(&node).expect("it was just there");
            let (of, durable) = (record.clone(), link.facts.durable);
            let by = Fenced { generation: self.generation, owner: self.owner };
            let rejoin = Rejoin::new(now, self.volume, by, of, durable);
            self.rejoins += 1;
            link.stage = Stage::Rejoins(Box::new(rejoin), self.rejoins & 0xff_ffff);
        }
    }

    /// A node of which the volume needs nothing, and which is not asked by openings, may be in again. Before it is
    /// asked again it is emptied: what it has may be of lives that are over, of which nothing is on record any more.
    pub(super) fn empty_again(&mut self, node: NodeId, state: NodeState) {
        let is_again = state == NodeState::In && self.clear.contains(&node);
        let link = self.links.get(&node);
        let joined = link.is_some_and(|link| matches!(link.stage, Stage::Joined));
        if is_again && joined {
            self.take_in_anew(node, self.now);
        }
    }

    /// Nothing is left there. It is taken in when that is on record.
    pub(super) fn is_emptied(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.stage = Stage::Waits(self.now);
        }
        if self.emptied.insert(node) {
            self.edits.push_back(Edit::Unclear(node));
        }
    }

    /// A node was fenced and listed, and what it has is known.
    pub(super) fn joined(&mut self, node: NodeId) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.stage = Stage::Joined;
        let facts = link.facts;
        self.tell(node);
        self.remote.handle(self.now, client::Input::Up(facts));
        self.views();
        self.repair(RepairInput::Up(node));
        self.standing.stir();
    }

    /// The pool has these nodes now.
    pub(super) fn nodes(&mut self, nodes: Vec<NodeRecord>) {
        let new: BTreeMap<NodeId, NodeRecord> =
            nodes.iter().map(|record| (record.node, record.clone())).collect();
        if new == self.records {
            return;
        }
        let old = std::mem::replace(&mut self.records, new);
        for node in old.keys().filter(|node| !nodes.iter().any(|record| record.node == **node)) {
            self.down(*node);
            self.remote.handle(self.now, client::Input::Removed { node: *node });
        }
        let mut leaves = false;
        for record in nodes.iter().filter(|record| old.get(&record.node) != Some(record)) {
            self.empty_again(record.node, record.state);
            self.tell(record.node);
            leaves |= record.state != NodeState::In;
        }
        if leaves {
            self.settle_loose();
        }
        self.outputs.push_back(Output::Connect(nodes));
        self.views();
        self.standing.stir();
    }

    /// What the client is to make of a node.
    pub(super) fn tell(&mut self, node: NodeId) {
        let Some(record) = self.records.get(&node) else { return };
        let (state, domain) = (record.state, record.domain);
        let link = self.links.get(&node);
        let is_joined = link.is_some_and(|link| matches!(link.stage, Stage::Joined));
        let volatile = link.is_some_and(|link| !link.facts.durable);
        if !state.counts() && !is_joined {
            // It is given up: nobody waits for what only it may have.
            return self.remote.handle(self.now, client::Input::Removed { node });
        }
        self.remote.handle(self.now, client::Input::Joined { node, domain });
        let takes = state == NodeState::In && !self.is_clear(node);
        if !takes || (volatile && self.only_durable) {
            self.remote.handle(self.now, client::Input::Leaves { node });
        }
    }

    /// Whether nothing may be put there, as openings do not ask it, or soon will not.
    fn is_clear(&self, node: NodeId) -> bool {
        self.clear.contains(&node) || self.clearing.contains(&node)
    }

    /// A node says how full it is by now. What is to be spread, and where there is room, is told by that.
    pub(super) fn heard(&mut self, facts: NodeFacts) {
        let known = self.facts.get_mut(&facts.node).filter(|known| **known != facts);
        if let Some(known) = known {
            *known = facts;
            // Many are heard of at a time, and a look at all bands follows.
            self.views_at.get_or_insert(self.now + VIEWS_NS);
        }
    }

    /// What repair is to make of all nodes.
    pub(super) fn views(&mut self) {
        self.views_at = None;
        let view = |record: &NodeRecord| {
            let NodeRecord { node, domain, state, .. } = *record;
            let is_clear = state == NodeState::In && self.is_clear(node);
            let state = if is_clear { NodeState::Draining } else { state };
            let facts = self.facts.get(&node).copied().unwrap_or_default();
            let NodeFacts { durable, bands, bands_used, .. } = facts;
            NodeView { node, domain, state, durable, bands, bands_used, want: 1.0 }
        };
        let views = self.records.values().map(view).collect();
        self.repair(RepairInput::Nodes(views));
    }
}
