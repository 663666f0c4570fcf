//! Reads that go on when a member can take one: all of them, and by the member that had no room when they were looked
//! at. So a member that has room again is of interest to those that wait for it, and only to as many as it takes:
//! under more load than the nodes carry a look at all for each answer cost more than all the rest.
//!
//! Invariant: who is parked is listed under each member that was full when it was parked, and under no other.

use crate::words::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Parked {
    /// Of each the members that were full.
    reads: BTreeMap<u64, Vec<NodeId>>,
    /// By these members, the oldest read first.
    by_node: BTreeMap<NodeId, BTreeSet<u64>>,
}

impl Parked {
    /// A read waits, and these members of its band had no room.
    pub fn park(&mut self, id: u64, full: Vec<NodeId>) {
        self.take(id);
        for &node in &full {
            self.by_node.entry(node).or_default().insert(id);
        }
        self.reads.insert(id, full);
    }

    /// It waits no longer.
    pub fn take(&mut self, id: u64) {
        for node in self.reads.remove(&id).into_iter().flatten() {
            let Some(reads) = self.by_node.get_mut(&node) else { continue };
            reads.remove(&id);
            if reads.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// The oldest that waits for room at this member, which is not counted there any more.
    pub fn next_at(&mut self, node: NodeId) -> Option<u64> {
        let id = *self.by_node.get(&node)?.first()?;
        let mut others = self.reads.get(&id).cloned().unwrap_or_default();
        others.retain(|&other| other != node);
        self.park(id, others);
        Some(id)
    }

    /// All that wait.
    pub fn all(&self) -> Vec<u64> {
        self.reads.keys().copied().collect()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Parked;
    use crate::words::NodeId;

    #[test]
    fn a_member_with_room_gets_the_oldest_that_waits_for_it_once() {
        let mut parked = Parked::default();
        parked.park(7, vec![NodeId(1), NodeId(2)]);
        parked.park(5, vec![NodeId(2)]);
        parked.park(6, Vec::new());
        assert_eq!(parked.next_at(NodeId(2)), Some(5));
        assert_eq!(parked.next_at(NodeId(2)), Some(7));
        assert_eq!(parked.next_at(NodeId(2)), None);
        // It waits for the other all the same, until it is told elsewhere.
        assert_eq!((parked.all(), parked.len()), (vec![5, 6, 7], 3));
        parked.park(5, vec![NodeId(2)]);
        assert_eq!(parked.next_at(NodeId(2)), Some(5));
        parked.take(7);
        assert_eq!(parked.next_at(NodeId(1)), None);
        [5, 6].into_iter().for_each(|id| parked.take(id));
        assert!(parked.len() == 0 && parked.by_node.is_empty());
    }
}
