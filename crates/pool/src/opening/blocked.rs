//! What an opening waits for, and for whom.

use crate::control::values::BandRecord;
use crate::words::NodeId;
use std::collections::BTreeSet;

/// What is not known without nodes that are away.
#[derive(Default)]
pub(super) struct Blocked {
    /// Bands of which it is not known how long they are, or who has them.
    pub bands: Vec<BandRecord>,
    /// Nodes that together may have all copies of a band.
    pub nodes: Vec<NodeId>,
    /// Nodes that were given up.
    pub given_up: BTreeSet<NodeId>,
    /// Nodes that were asked.
    pub listed: BTreeSet<NodeId>,
}

impl Blocked {
    pub fn explain(&self) -> String {
        let is_away = |node: NodeId| !self.listed.contains(&node);
        // One whose members were all asked may be on those that were not.
        let unheard = self.bands.iter().find(|band| band.sound().any(is_away));
        let band = unheard.or(self.bands.first().filter(|_| self.nodes.is_empty()));
        if let Some(first) = band {
            let members: Vec<NodeId> = first.sound().collect();
            return format!(
                "waiting for a node that has one of {} bands that may be open: of band {}, one of nodes {}{}",
                self.bands.len(),
                first.name.band,
                list(&members),
                self.of_given_up(&members),
            );
        }
        if !self.nodes.is_empty() {
            return format!(
                "waiting for nodes {}: together they may have all copies of a band{}",
                list(&self.nodes),
                self.of_given_up(&self.nodes),
            );
        }
        "fencing and listing the nodes".to_owned()
    }

    /// What is to be done about those among the nodes that are waited for which nobody means to bring back.
    fn of_given_up(&self, nodes: &[NodeId]) -> String {
        let is_given_up = |node: &NodeId| self.given_up.contains(node);
        let given_up: Vec<NodeId> = nodes.iter().copied().filter(is_given_up).collect();
        if given_up.is_empty() {
            return String::new();
        }
        format!(
            "; of them, nodes {} were given up: client.go_on = true opens the volume without",
            list(&given_up)
        )
    }
}

fn list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    names.join(", ")
}
