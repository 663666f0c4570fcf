//! Erases, and what the control plane has to keep of the lives that end with them before anybody is told; and of those
//! that lose a copy.

use super::{Serving, Stage};
use crate::client::directory::Entry;
use crate::client::{self, End};
use crate::control::mutant::Mutant;
use crate::control::registry::Busy;
use crate::session::Output;
use crate::words::{BandName, MEMBERS_MAX, Members as Nodes, NodeId};
use flash::{BlockId, Command, Tag};

impl<D: Clone> Serving<D> {
    /// A life that is on record is over there before any node is told: the next opening would wait for ever for a
    /// copy of what it takes for one that counts. One that is not is put there while nodes are away.
    pub(super) fn erase(&mut self, tag: Tag, block: BlockId) {
        let command = Command::Erase { tag, block };
        if let Some((name, nodes)) = self.life(block).filter(|_| !self.fenced) {
            if self.repair.is_copying(name) {
                // Nobody but the target may know of a copy that is made while its life ends.
                self.copied.insert(name, command);
                return;
            }
            if self.registry.record(name).is_some() {
                self.standing.over(name);
                self.settle(name);
            } else if !self.all_listed() {
                self.over(name, &nodes);
            }
            self.erasing.insert(tag, (name, nodes));
            if self.waits(name) {
                self.erases.insert(name, command);
                return;
            }
        }
        self.remote.handle(self.now, client::Input::Command(command));
    }

    /// What an erase ends, and who may have it. A life that nobody who was asked has is known if it is on record: it is
    /// over, too, as every later opening would wait for its members else.
    fn life(&self, block: BlockId) -> Option<(BandName, Vec<NodeId>)> {
        match self.remote.directory().entry(block) {
            Entry::Held(held) => Some((held.name, held.nodes.clone())),
            Entry::Unsure if !Mutant::UnsureStays.is(self.mutant) => {
                let record = self.registry.newest(block.0)?;
                Some((record.name, record.members.nodes().to_vec()))
            }
            Entry::Unsure | Entry::Unbound | Entry::Spent => None,
        }
    }

    /// A life that is not on record any more, and is over, comes back to it.
    pub(super) fn over(&mut self, name: BandName, nodes: &[NodeId]) {
        let members = Nodes::new(nodes).expect("holders are different, and no more than members");
        match self.registry.over(self.now, name, members) {
            Ok(()) => {
                self.standing.over(name);
                self.standing.changes(name);
            }
            Err(Busy) => drop(self.overs.insert(name, members)),
        }
    }

    /// A node's copy is about to go before there is another one: the band comes back to the record if it is not there, so
    /// that the next opening waits for those that have it. Repair says it again while that is not kept.
    pub(super) fn recall(&mut self, name: BandName, node: NodeId) {
        let Some(held) = self.remote.directory().life(name) else { return };
        let (pages, holders) = (held.pages, held.nodes.clone());
        match self.registry.record(name) {
            Some(record) if record.sealed.is_none() => self.tell_end(name),
            Some(_) => {}
            None => {
                let others = holders.iter().copied().filter(|of| *of != node);
                let mut members: Vec<NodeId> = others.take(MEMBERS_MAX - 1).collect();
                members.push(node);
                let members = Nodes::new(&members).expect("different, and no more than members");
                if self.registry.recall(self.now, name, pages, (members, node)).is_ok() {
                    let record = self.registry.record(name).expect("it is there from now on");
                    self.standing.found(record, pages, &holders, &[]);
                    self.standing.changes(name);
                }
            }
        }
    }

    /// No node has anything of the volume that is not known, or is to be freed and is not.
    pub(super) fn all_listed(&self) -> bool {
        let joined = |node: &NodeId| {
            let link = self.links.get(node);
            link.is_some_and(|link| matches!(link.stage, Stage::Joined))
        };
        let known = |node: &NodeId| self.clear.contains(node) || joined(node);
        let forgets = Mutant::LifeForgotten.is(self.mutant);
        forgets || (self.garbage.is_empty() && self.records.keys().all(known))
    }

    /// The end of an erase that not all have done waits until the control plane has that the life is over.
    pub(super) fn ended(&mut self, end: End<D>) {
        if let End::Erase { tag, .. } = &end
            && let Some((name, _)) = self.erasing.remove(tag)
            && self.waits(name)
            && !self.fenced
        {
            self.ends.insert(name, end);
            return;
        }
        self.outputs.push_back(Output::Ended(end));
    }

    pub(super) fn waits(&self, name: BandName) -> bool {
        let busy = self.busy.contains(&name) || self.overs.contains_key(&name);
        busy || self.standing.is_changing(name)
    }

    /// All that was to be said of a life's end is kept.
    pub(super) fn end_kept(&mut self, name: BandName) {
        let open = self.registry.record(name).is_some_and(|record| record.sealed.is_none());
        if open || self.waits(name) {
            return;
        }
        self.remote.handle(self.now, client::Input::EndKept(name));
        if let Some(command) = self.erases.remove(&name) {
            self.remote.handle(self.now, client::Input::Command(command));
        }
        if let Some(end) = self.ends.remove(&name) {
            self.outputs.push_back(Output::Ended(end));
        }
        if self.registry.record(name).is_none() {
            self.standing.forget(name);
        }
    }

    /// Goes on with erases whose band is copied nowhere any more.
    pub(super) fn erase_copied(&mut self) {
        let repair = &self.repair;
        let ended = self.copied.extract_if(.., |name, _| !repair.is_copying(*name));
        for (_, command) in ended.collect::<Vec<_>>() {
            let Command::Erase { tag, block } = command else { continue };
            self.erase(tag, block);
        }
    }
}
