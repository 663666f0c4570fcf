//! What the controller tells clients and nodes: how much of the reads and of the writes each node is to get,
//! and what nodes serve now. It holds for a while; then all nodes are equal and serve both.

pub use crate::words::Mode;
use crate::words::NodeId;
use flash::{Instant, MILLISECOND};

/// A node that was told to serve reads takes new bands for so long still: clients hear of it later.
pub const GRACE_NS: u64 = MILLISECOND;

/// Of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeWeights {
    /// Which.
    pub node: NodeId,
    /// What it serves.
    pub mode: Mode,
    /// Of the replicas of a block one is read as often as its weight is of the sum of theirs. Never negative;
    /// those of all nodes are 1 together.
    pub read: f64,
    /// Likewise: where new bands go.
    pub write: f64,
}

/// Of all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// Of the election of the controller that made them, and which of its own they are: later ones are larger.
    pub turn: (u64, u64),
    /// They hold for so long after they came, by the clock of whoever got them.
    pub valid_ns: u64,
    /// By node, in order.
    pub nodes: Vec<NodeWeights>,
}

/// The weights that a client or a node goes by.
#[derive(Clone, Debug, Default)]
pub struct InForce {
    weights: Weights,
    until: Instant,
}

impl InForce {
    /// New weights came. Older ones than are held already change nothing, and it says so.
    pub fn take(&mut self, now: Instant, weights: Weights) -> bool {
        if weights.turn < self.weights.turn {
            return false;
        }
        self.until = now + weights.valid_ns;
        self.weights = weights;
        true
    }

    /// Of a node at this time. What is not known, or expired, is as safe as can be: all equal, serving both.
    pub fn of(&self, now: Instant, node: NodeId) -> NodeWeights {
        let safe = NodeWeights { node, mode: Mode::Mixed, read: 1.0, write: 1.0 };
        if now >= self.until {
            return safe;
        }
        let nodes = &self.weights.nodes;
        match nodes.binary_search_by_key(&node, |weights| weights.node) {
            Ok(at) => nodes[at],
            // Its band may be the only one that answers, but nothing new is put on a node that nobody planned.
            Err(_) => NodeWeights { read: 0.0, write: 0.0, ..safe },
        }
    }

    /// When they expire.
    pub fn until(&self) -> Instant {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_expired_are_equal_and_older_ones_are_not_taken() {
        let one = |turn, read| Weights {
            turn,
            valid_ns: 100,
            nodes: vec![NodeWeights { node: NodeId(3), mode: Mode::Reads, read, write: 0.0 }],
        };
        let mut held = InForce::default();
        assert_eq!(held.of(Instant(5), NodeId(3)).mode, Mode::Mixed);
        assert!(held.take(Instant(10), one((1, 7), 0.25)));
        assert!(!held.take(Instant(11), one((1, 6), 0.5)), "it was on its way for long");
        assert!(!held.take(Instant(11), one((0, 9), 0.5)), "of a controller that is none any more");
        assert_eq!(held.of(Instant(109), NodeId(3)).read, 0.25);
        assert_eq!(held.of(Instant(109), NodeId(4)).write, 0.0);
        let safe = held.of(held.until(), NodeId(3));
        assert_eq!((safe.mode, safe.read, safe.write), (Mode::Mixed, 1.0, 1.0));
    }
}
