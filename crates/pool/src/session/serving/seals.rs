//! What is durable only when nodes have flushed, and is waited for. *Ends* of bands: what goes on record must be somewhere
//! whatever happens, else the next opening waits for pages that nobody has, though no flush of them ever ended. And
//! *seals* that repair waits for: of bands that were begun with fewer members than they should have, on nodes that are not
//! durable at completion. Repair makes the copies that these bands never had when each that is there is sealed for good. The
//! next checkpoint of the FTL would see to that, but where nothing is written there is none: so they are flushed. So are all
//! others when somebody has bands spread anew or a node drained: only those that are sealed for good may move.

use super::Serving;
use crate::client::{self, Closed};
use crate::control::values::NodeState;
use crate::message::NodeFacts;
use crate::repair::RepairInput;
use crate::words::{BandName, NodeId};
use flash::{Command, Tag};
use std::collections::{BTreeSet, VecDeque};

/// Of flushes that the FTL does not ask for: the tags of its own end in the number of a block, of which there are fewer.
pub(super) const SETTLES: Tag = Tag(u32::MAX);

/// A seal that is not durable yet.
#[derive(Clone, Copy, Debug)]
struct Seal {
    name: BandName,
    node: NodeId,
    /// Repair has a copy to make when it is.
    is_short: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Seals {
    /// Since the last flush of these began.
    unsettled: Vec<Seal>,
    /// What flushes of ours that are under way are for, in their order.
    settling: VecDeque<Vec<Seal>>,
    /// Lives whose end is to go on record when some node has all of it durably.
    postponed: BTreeSet<BandName>,
    /// Some of these came since a flush of ours began.
    is_wanted: bool,
}

impl Seals {
    /// A node is gone: what it had sealed counts no more.
    pub fn down(&mut self, node: NodeId) {
        for seals in self.settling.iter_mut().chain([&mut self.unsettled]) {
            seals.retain(|seal| seal.node != node);
        }
    }

    /// The end of this life waits for a flush.
    pub fn postpone(&mut self, name: BandName) {
        self.is_wanted |= self.postponed.insert(name);
    }

    /// A node has flushed: they are to be looked at again.
    pub fn take_postponed(&mut self) -> BTreeSet<BandName> {
        std::mem::take(&mut self.postponed)
    }

    /// Bands that repair waits for.
    pub fn count(&self) -> u64 {
        let all = self.settling.iter().flatten().chain(&self.unsettled);
        let short = all.filter(|seal| seal.is_short);
        short.map(|seal| seal.name).collect::<BTreeSet<_>>().len() as u64
    }
}

impl<D: Clone> Serving<D> {
    /// Members have sealed a band.
    pub(super) fn sealed(&mut self, Closed { name, pages, sealed, .. }: &Closed) {
        let Some(record) = self.registry.record(*name).filter(|_| *pages > 0) else { return };
        let members = record.members.nodes();
        let is_short = members.len() < self.replicas;
        let leaves =
            |node: &NodeId| self.records.get(node).is_some_and(|of| of.state != NodeState::In);
        if is_short || members.iter().any(leaves) {
            let durable =
                |node| self.facts.get(node).is_some_and(|facts: &NodeFacts| facts.durable);
            let volatile = sealed.iter().filter(|node| !durable(node));
            let seal = |&node| Seal { name: *name, node, is_short };
            self.seals.unsettled.extend(volatile.map(seal));
        }
    }

    pub(super) fn spread(&mut self, share: f64) {
        self.settle_loose();
        self.repair(RepairInput::Spread(share));
    }

    /// Bands are to move: those whose seals wait for a checkpoint, too. Where nothing is written none comes.
    pub(super) fn settle_loose(&mut self) {
        let loose = self.standing.loose();
        let seal = |(name, node)| Seal { name, node, is_short: false };
        self.seals.unsettled.extend(loose.into_iter().map(seal));
    }

    /// Has them flushed; whether it did. An end that is postponed cannot wait for the flush that is under way: it began
    /// before, and may not end before the end is on record.
    pub(super) fn settle_seals(&mut self) -> bool {
        let seals = &mut self.seals;
        let is_next = seals.settling.is_empty() && !seals.unsettled.is_empty();
        if !is_next && !seals.is_wanted {
            return false;
        }
        seals.is_wanted = false;
        seals.settling.push_back(std::mem::take(&mut seals.unsettled));
        let flush = Command::Flush { tag: SETTLES };
        self.remote.handle(self.now, client::Input::Command(flush));
        true
    }

    /// The first of these flushes has ended.
    pub(super) fn settled(&mut self, well: bool) {
        let settled = self.seals.settling.pop_front().filter(|_| well).unwrap_or_default();
        settled.iter().for_each(|seal| self.standing.flushed(seal.name, seal.node));
        if settled.iter().any(|seal| !seal.is_short) {
            // These may move now.
            self.views();
        }
    }
}
