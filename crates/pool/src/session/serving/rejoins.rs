//! What came of nodes that are taken in while the volume is served.

use super::{Link, REJOIN_NS, Serving, Stage};
use crate::client;
use crate::client::directory::Phase;
use crate::control::ownership::OwnershipInput;
use crate::message::{AskId, Refusal};
use crate::opening::RejoinOutput;
use crate::repair::RepairInput;
use crate::session::{Output, Part};
use crate::words::{BandName, NodeId};
use flash::BlockId;

impl<D: Clone> Serving<D> {
    pub(super) fn of_rejoins(&mut self) -> bool {
        let mut some = false;
        let rejoins = |(_, link): &(&NodeId, &Link<D>)| matches!(link.stage, Stage::Rejoins(..));
        let nodes: Vec<NodeId> = self.links.iter().filter(rejoins).map(|(node, _)| *node).collect();
        for node in nodes {
            while let Some(link) = self.links.get_mut(&node)
                && let Stage::Rejoins(rejoin, number) = &mut link.stage
                && let Some(output) = rejoin.poll()
            {
                let number = *number;
                (some, _) = (true, self.of_rejoin(node, number, output));
            }
        }
        some
    }

    fn of_rejoin(&mut self, node: NodeId, number: u64, output: RejoinOutput<D>) {
        let now = self.now;
        match output {
            RejoinOutput::Node { id, ask } => {
                let id = Part::Rejoin.id(AskId(number << 32 | id.0));
                self.outputs.push_back(Output::Ask { node, id, ask });
            }
            RejoinOutput::Holds(band, _) => {
                let held = self.remote.directory().held(BlockId(band.band));
                // One that was not found when the FTL was mounted is found by the next opening.
                let is_it = held.is_some_and(|held| held.name == band);
                if is_it && self.repair.is_bad(node, band) {
                    // It is whole and was found damaged: it would be taken for a copy until scrub finds it again.
                    self.remote.handle(now, client::Input::Damaged { band, node });
                } else if is_it {
                    self.take_copy(band, node);
                }
            }
            RejoinOutput::Rid(name) => self.standing.rid(name, node),
            RejoinOutput::Bad(name) => {
                let held = self.remote.directory().life(name);
                if held.is_some_and(|held| held.phase == Phase::Sealed) {
                    self.distrust_copy(name, node);
                } else {
                    self.forget_copy(name, node);
                }
                self.repair(RepairInput::Bad(node, name));
            }
            RejoinOutput::Stray(_) => {}
            RejoinOutput::Joined if self.clear.contains(&node) => self.is_emptied(node),
            RejoinOutput::Joined => {
                // Its older lives went with the rejoin.
                self.garbage.retain(|(of, _)| *of != node);
                self.joined(node);
            }
            RejoinOutput::Failed(Refusal::Stale { highest }) => {
                self.ownership.handle(now, OwnershipInput::Stale { highest });
            }
            RejoinOutput::Failed(_) => {
                if let Some(link) = self.links.get_mut(&node) {
                    link.stage = Stage::Waits(now + REJOIN_NS);
                }
            }
        }
    }

    /// A node has all of a band. One that stood for it, as nobody had all of it, does so no more.
    pub(super) fn take_copy(&mut self, band: BandName, node: NodeId) {
        self.remote.handle(self.now, client::Input::Copied { band, node });
        self.standing.joined(band, node);
        let held = self.remote.directory().life(band);
        let others: Vec<NodeId> = held.map_or(Vec::new(), |held| held.nodes.clone());
        for other in others {
            if other != node && self.repair.is_bad(other, band) {
                self.distrust_copy(band, other);
            }
        }
    }

    /// A copy counts no more, and is read only for what no other one has.
    pub(super) fn distrust_copy(&mut self, band: BandName, node: NodeId) {
        self.remote.handle(self.now, client::Input::Damaged { band, node });
        self.standing.left(band, node);
    }

    /// A copy counts no more.
    pub(super) fn forget_copy(&mut self, band: BandName, node: NodeId) {
        self.remote.handle(self.now, client::Input::Dropped { band, node });
        self.standing.left(band, node);
    }
}
