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
    /// Of these, those that were given up.
    pub given_up: Vec<NodeId>,
    /// Nodes that were asked.
    pub listed: BTreeSet<NodeId>,
}

impl Blocked {
    pub fn explain(&self) -> String {
        let list = |nodes: &mut dyn Iterator<Item = NodeId>| {
            let names: Vec<String> = nodes.map(|node| node.0.to_string()).collect();
            names.join(", ")
        };
        let is_away = |node: NodeId| !self.listed.contains(&node);
        // One whose members were all asked may be on those that were not.
        let unheard = self.bands.iter().find(|band| band.sound().any(is_away));
        let band = unheard.or(self.bands.first().filter(|_| self.nodes.is_empty()));
        if let Some(first) = band {
            return format!(
                "waiting for a node that has one of {} bands that may be open: of band {}, one of nodes {}",
                self.bands.len(),
                first.name.band,
                list(&mut first.sound()),
            );
        }
        if !self.nodes.is_empty() {
            let nodes = list(&mut self.nodes.iter().copied());
            let mut text =
                format!("waiting for nodes {nodes}: together they may have all copies of a band");
            if !self.given_up.is_empty() {
                let given_up = list(&mut self.given_up.iter().copied());
                text += &format!(
                    "; of them, nodes {given_up} were given up: client.go_on = true opens the volume without"
                );
            }
            return text;
        }
        "fencing and listing the nodes".to_owned()
    }
}
