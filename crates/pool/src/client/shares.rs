//! How much each open band is wanted for more pages, so that every node gets its part of the writes.
//!
//! The controller says what part of the writes each node is to get, but a page goes to all members of its band, and
//! which bands are open, and on which nodes, has grown over a while: bands of nodes that wrote before are many, those
//! of one that has just turned to writes are few. So each node has a factor, a band is wanted as much as the product
//! of its members' factors, and factors are made to fit by turns: what got too little has its factor raised. (That is
//! iterative proportional fitting, as the weights of reads are, see [`crate::controller::balance`].)
//!
//! Invariant: a node of which nothing is open has the largest factor: the bands that are opened next are for it.

use crate::words::{MEMBERS_MAX, NodeId};

/// Turns: what is left over is less than what changes until the next time.
const TURNS: usize = 8;

/// A factor lies between one over this and this.
const FACTOR_MAX: f64 = 64.0;

/// See [`Shares::of`].
pub const WANTED_MAX: f64 = 4.0;

/// A node that takes writes.
#[derive(Clone, Copy, Debug)]
struct Share {
    node: NodeId,
    /// The part of all pages that it is to get, on any scale.
    target: f64,
    factor: f64,
}

/// Open bands of the same members: they are wanted alike.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Of the members, among the nodes that take writes.
    places: [usize; MEMBERS_MAX],
    members: usize,
    bands: f64,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// By node.
    nodes: Vec<Share>,
    /// Of the band that is wanted most.
    most: f64,
}

impl Shares {
    /// Of nodes and what they are to get, by node, and of the members of each open band.
    pub fn new(targets: &[(NodeId, f64)], open: &[&[NodeId]]) -> Self {
        let all: f64 = targets.iter().map(|&(_, target)| target).sum();
        let share = |&(node, target): &(NodeId, f64)| Share {
            node,
            target: target / all.max(f64::MIN_POSITIVE),
            factor: 1.0,
        };
        let wanted = targets.iter().filter(|&&(_, target)| target > 0.0);
        let mut shares = Self { nodes: wanted.map(share).collect(), most: 0.0 };
        assert!(shares.nodes.is_sorted_by_key(|share| share.node), "they are looked up by node");
        let groups = shares.groups(open);
        (0..TURNS).for_each(|_| shares.turn(&groups));
        shares.most = groups.iter().map(|group| shares.wanted(group)).fold(0.0, f64::max);
        shares
    }

    /// Those whose members all take writes, in the order of their members: sums come out the same whatever the order of
    /// the bands.
    fn groups(&self, open: &[&[NodeId]]) -> Vec<Group> {
        // Bands are many, their members are few.
        let mut counts: Vec<(&[NodeId], u32)> = Vec::new();
        for &members in open {
            match counts.binary_search_by_key(&members, |&(of, _)| of) {
                Ok(at) => counts[at].1 += 1,
                Err(at) => counts.insert(at, (members, 1)),
            }
        }
        let group = |(members, bands): (&[NodeId], u32)| {
            let mut places = [0; MEMBERS_MAX];
            for (place, &node) in places.iter_mut().zip(members) {
                *place = self.place(node)?;
            }
            Some(Group { places, members: members.len(), bands: f64::from(bands) })
        };
        counts.into_iter().filter_map(group).collect()
    }

    fn turn(&mut self, groups: &[Group]) {
        let mut got = vec![0.0; self.nodes.len()];
        let mut all = 0.0;
        for group in groups {
            let part = group.bands * self.wanted(group);
            for &place in group.places() {
                got[place] += part;
                all += part;
            }
        }
        for (share, got) in self.nodes.iter_mut().zip(got) {
            let got = got / all.max(f64::MIN_POSITIVE);
            let times = if got > 0.0 { share.target / got } else { FACTOR_MAX };
            share.factor = (share.factor * times).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        }
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |share| share.node).ok()
    }

    /// How much the bands of a group are wanted, on any scale.
    fn wanted(&self, group: &Group) -> f64 {
        group.places().iter().map(|&place| self.nodes[place].factor).product()
    }

    /// How much a band is wanted, on any scale; 0 if a member takes no writes.
    fn product(&self, members: &[NodeId]) -> f64 {
        let factor = |&node| self.place(node).map_or(0.0, |place| self.nodes[place].factor);
        members.iter().map(factor).product()
    }

    /// Whether a node is to get pages at all.
    pub fn has(&self, node: NodeId) -> bool {
        self.place(node).is_some()
    }

    /// How much a band of these members is wanted: 1 as much as the one that is open and wanted most, at most
    /// [`WANTED_MAX`], as one that would be opened may be.
    pub fn of(&self, members: &[NodeId]) -> f64 {
        let product = self.product(members);
        let wanted = if self.most > 0.0 { product / self.most } else { product.min(1.0) };
        wanted.min(WANTED_MAX)
    }
}

impl Group {
    fn places(&self) -> &[usize] {
        &self.places[..self.members]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<const N: usize>(ids: [u32; N]) -> Vec<NodeId> {
        ids.map(NodeId).to_vec()
    }

    fn of(open: &[Vec<NodeId>]) -> Vec<&[NodeId]> {
        open.iter().map(Vec::as_slice).collect()
    }

    #[test]
    fn each_node_gets_its_part_however_many_bands_it_has_open() {
        let targets = [(NodeId(1), 3.0), (NodeId(2), 2.0), (NodeId(3), 2.0), (NodeId(4), 1.0)];
        let mut open = vec![nodes([2, 3]); 40];
        open.extend(vec![nodes([1, 2]); 2]);
        open.extend([nodes([1, 3]), nodes([1, 4]), nodes([3, 4]), nodes([2, 4])]);
        let shares = Shares::new(&targets, &of(&open));
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
        let shares = Shares::new(&targets, &of(&vec![nodes([1, 2]); 9]));
        assert_eq!(shares.of(&nodes([1, 3])), WANTED_MAX);
        assert_eq!(shares.of(&nodes([1, 4])), 0.0);
        let none = Shares::new(&targets, &[]);
        assert_eq!((none.of(&nodes([1, 2])), none.of(&nodes([2, 4]))), (1.0, 0.0));
    }
}
