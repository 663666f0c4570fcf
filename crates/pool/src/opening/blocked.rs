//! What an opening waits for, and for whom.

use crate::control::values::BandRecord;
use crate::words::NodeId;

/// What is not known without nodes that are away.
#[derive(Default)]
pub(super) struct Blocked {
    /// Bands none of whose members that count can be asked.
    pub bands: Vec<BandRecord>,
    /// Nodes that together may have all copies of a band.
    pub nodes: Vec<NodeId>,
}

impl Blocked {
    pub fn explain(&self) -> String {
        let list = |nodes: &mut dyn Iterator<Item = NodeId>| {
            let names: Vec<String> = nodes.map(|node| node.0.to_string()).collect();
            names.join(", ")
        };
        if let Some(first) = self.bands.first() {
            return format!(
                "waiting for a node that has one of {} bands that may be open: of band {}, one of nodes {}",
                self.bands.len(),
                first.name.band,
                list(&mut first.sound()),
            );
        }
        if !self.nodes.is_empty() {
            let nodes = list(&mut self.nodes.iter().copied());
            return format!(
                "waiting for nodes {nodes}: together they may have all copies of a band"
            );
        }
        "fencing and listing the nodes".to_owned()
    }
}
