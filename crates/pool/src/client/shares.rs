//! How much each open band is wanted for more pages, so that every node gets its part of the writes.
//!
//! The controller says what part of the writes each node is to get, but a page goes to all members of its band, and
//! which bands are open, and on which nodes, has grown over a while: bands of nodes that wrote before are many, those
//! of one that has just turned to writes are few. So each node has a factor, a band is wanted as much as the product
//! of its members' factors, and factors are made to fit by turns: what got too little has its factor raised. (That is
//! iterative proportional fitting, as the weights of reads are, see [`crate::controller::balance`].)
//!
//! Invariant: a node of which nothing is open has the largest factor: the bands that are opened next are for it.

use crate::words::NodeId;
use std::collections::BTreeMap;

/// Turns: what is left over is less than what changes until the next time.
const TURNS: usize = 8;

/// A factor lies between one over this and this.
const FACTOR_MAX: f64 = 64.0;

/// See [`Shares::of`].
pub const WANTED_MAX: f64 = 4.0;

/// A node that takes writes.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The part of all pages that it is to get, on any scale.
    target: f64,
    factor: f64,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    nodes: BTreeMap<NodeId, Share>,
    /// Of the band that is wanted most.
    most: f64,
}

impl Shares {
    /// Of nodes and what they are to get, and of the members of each open band.
    pub fn new(targets: &[(NodeId, f64)], open: &[Vec<NodeId>]) -> Self {
        let all: f64 = targets.iter().map(|&(_, target)| target).sum();
        let share = |&(node, target): &(NodeId, f64)| {
            (node, Share { target: target / all.max(f64::MIN_POSITIVE), factor: 1.0 })
        };
        let wanted = targets.iter().filter(|&&(_, target)| target > 0.0);
        let mut shares = Self { nodes: wanted.map(share).collect(), most: 0.0 };
        // Bands of the same members are wanted alike.
        let mut groups: BTreeMap<&[NodeId], f64> = BTreeMap::new();
        for members in open.iter().filter(|members| shares.product(members) > 0.0) {
            *groups.entry(&members[..]).or_default() += 1.0;
        }
        (0..TURNS).for_each(|_| shares.turn(&groups));
        shares.most = groups.keys().map(|members| shares.product(members)).fold(0.0, f64::max);
        shares
    }

    fn turn(&mut self, groups: &BTreeMap<&[NodeId], f64>) {
        let mut got: BTreeMap<NodeId, f64> = BTreeMap::new();
        let mut all = 0.0;
        for (members, bands) in groups {
            let part = bands * self.product(members);
            for &member in *members {
                *got.entry(member).or_default() += part;
                all += part;
            }
        }
        for (node, share) in &mut self.nodes {
            let got = got.get(node).copied().unwrap_or(0.0) / all.max(f64::MIN_POSITIVE);
            let times = if got > 0.0 { share.target / got } else { FACTOR_MAX };
            share.factor = (share.factor * times).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        }
    }

    /// How much a band is wanted, on any scale; 0 if a member takes no writes.
    fn product(&self, members: &[NodeId]) -> f64 {
        let factor = |node: &NodeId| self.nodes.get(node).map_or(0.0, |share| share.factor);
        members.iter().map(factor).product()
    }

    /// Whether a node is to get pages at all.
    pub fn has(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// How much a band of these members is wanted: 1 as much as the one that is open and wanted most, at most
    /// [`WANTED_MAX`], as one that would be opened may be.
    pub fn of(&self, members: &[NodeId]) -> f64 {
        let product = self.product(members);
        let wanted = if self.most > 0.0 { product / self.most } else { product.min(1.0) };
        wanted.min(WANTED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<const N: usize>(ids: [u32; N]) -> Vec<NodeId> {
        ids.map(NodeId).to_vec()
    }

    #[test]
    fn each_node_gets_its_part_however_many_bands_it_has_open() {
        let targets = [(NodeId(1), 3.0), (NodeId(2), 2.0), (NodeId(3), 2.0), (NodeId(4), 1.0)];
        let mut open = vec![nodes([2, 3]); 40];
        open.extend(vec![nodes([1, 2]); 2]);
        open.extend([nodes([1, 3]), nodes([1, 4]), nodes([3, 4]), nodes([2, 4])]);
        let shares = Shares::new(&targets, &open);
        let mut got = [0.0; 5];
        for members in &open {
            members.iter().for_each(|node| got[node.0 as usize] += shares.of(members));
        }
        let all: f64 = got.iter().sum();
        for (node, target) in targets {
            let part = got[node.0 as usize] / all;
            assert!((part - target / 8.0).abs() < 0.04, "node {}: {part} of {target}/8", node.0);
        }
        assert!(open.iter().any(|members| shares.of(members) == 1.0));
    }

    #[test]
    fn a_node_without_an_open_band_is_wanted_most_and_one_that_takes_no_writes_not_at_all() {
        let targets = [(NodeId(1), 1.0), (NodeId(2), 1.0), (NodeId(3), 1.0), (NodeId(4), 0.0)];
        let shares = Shares::new(&targets, &vec![nodes([1, 2]); 9]);
        assert_eq!(shares.of(&nodes([1, 3])), WANTED_MAX);
        assert_eq!(shares.of(&nodes([1, 4])), 0.0);
        let none = Shares::new(&targets, &[]);
        assert_eq!((none.of(&nodes([1, 2])), none.of(&nodes([2, 4]))), (1.0, 0.0));
    }
}
