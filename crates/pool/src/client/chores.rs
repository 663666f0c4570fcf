//! What nodes still have to be told about bands that are over: that they end here (*seals*), or that nobody
//! needs them (*frees*). Who is away is told when it is back.
//!
//! Invariants:
//! - a free takes the place of a seal of the same life, never the reverse;
//! - an erase ends when all members that are there have freed the band, and at the latest after a while: a
//!   node that does not answer is as good as away, and what it still holds is of a life that is over;
//! - who has sealed a life and who has nothing of it any more is told, whenever no member that is there still
//!   owes it: the control plane keeps the rest in mind.

use super::nodes::Nodes;
use crate::message::Ask;
use crate::words::{BandName, Generation, NodeId};
use flash::{BlockId, Instant, Tag};
use std::collections::BTreeMap;

/// What a node is to do with a band.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum What {
    /// It ends after so many pages.
    Seal(u32),
    /// Nobody needs it.
    Free,
}

#[derive(Clone, Copy, Debug)]
struct Chore {
    what: What,
    asked: bool,
    not_before: Instant,
}

/// A life that is over, until all its members have done what there is to do.
#[derive(Clone, Debug)]
struct Over {
    /// Those that still have to.
    nodes: Vec<NodeId>,
    pages: u32,
    sealed: Vec<NodeId>,
    nothing: Vec<NodeId>,
    /// Something of these was not told yet.
    news: bool,
    /// The erase that waits for it, and how long at most.
    erase: Option<(Tag, Instant)>,
}

/// How far the members of a life that is over have come.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Closed {
    /// Which.
    pub name: BandName,
    /// Pages that count; 0 if it is freed.
    pub pages: u32,
    /// Have it, sealed at these.
    pub sealed: Vec<NodeId>,
    /// Have nothing of it.
    pub nothing: Vec<NodeId>,
}

/// What has ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// Erases.
    pub erases: Vec<BlockId>,
    /// Of the same, in the same order.
    pub tags: Vec<Tag>,
    /// Lives.
    pub closed: Vec<Closed>,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Chores {
    by_node: BTreeMap<NodeId, BTreeMap<BandName, Chore>>,
    over: BTreeMap<BandName, Over>,
    /// Something may be settled, or sent.
    stirred: bool,
}

impl Chores {
    /// These nodes end the band after so many pages.
    pub fn seal(&mut self, name: BandName, nodes: &[NodeId], pages: u32) {
        nodes.iter().for_each(|&node| self.add(node, name, What::Seal(pages)));
        self.over.insert(name, Over::new(nodes.to_vec(), pages, None));
    }

    /// These nodes forget the band. `erase` waits for it, to `limit` at most.
    pub fn free(&mut self, name: BandName, nodes: &[NodeId], erase: Option<(Tag, Instant)>) {
        // A member that was dropped meanwhile may still have something to seal.
        let mut all = self.over.remove(&name).map_or_else(Vec::new, |over| over.nodes);
        all.extend_from_slice(nodes);
        all.sort_unstable();
        all.dedup();
        all.iter().for_each(|&node| self.add(node, name, What::Free));
        self.over.insert(name, Over::new(all, 0, erase));
    }

    /// One node has something of a life that is over or was never whole: nobody waits for it.
    pub fn add(&mut self, node: NodeId, name: BandName, what: What) {
        let chore = Chore { what, asked: false, not_before: Instant(0) };
        self.by_node.entry(node).or_default().insert(name, chore);
        self.stirred = true;
    }

    /// Whether this node is to free this life.
    pub fn frees(&self, node: NodeId, name: BandName) -> bool {
        let chore = self.by_node.get(&node).and_then(|chores| chores.get(&name));
        chore.is_some_and(|chore| matches!(chore.what, What::Free))
    }

    /// What this node can be asked now, as often as it has room.
    pub fn next<D>(
        &mut self,
        now: Instant,
        node: NodeId,
        generation: Generation,
    ) -> Option<(BandName, What, Ask<D>)> {
        let chores = self.by_node.get_mut(&node)?;
        let (&band, chore) =
            chores.iter_mut().find(|(_, chore)| !chore.asked && chore.not_before <= now)?;
        chore.asked = true;
        let ask = match chore.what {
            What::Seal(pages) => Ask::Seal { band, generation, pages },
            What::Free => Ask::Free { band, generation },
        };
        Some((band, chore.what, ask))
    }

    /// Nodes with something to be asked.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.by_node.keys().copied().collect()
    }

    /// A node has done it.
    pub fn done(&mut self, node: NodeId, name: BandName, what: What) {
        self.strike(node, name, what, matches!(what, What::Seal(_)));
    }

    /// A node never will: it has no such band, or less of it than it should.
    pub fn gave_up(&mut self, node: NodeId, name: BandName, what: What) {
        self.strike(node, name, what, false);
    }

    fn strike(&mut self, node: NodeId, name: BandName, what: What, sealed: bool) {
        self.stirred = true;
        let Some(chores) = self.by_node.get_mut(&node) else { return };
        if chores.get(&name).is_none_or(|chore| chore.what != what) {
            // It has something else to do with the band by now.
            return;
        }
        chores.remove(&name);
        if chores.is_empty() {
            self.by_node.remove(&node);
        }
        let Some(over) = self.over.get_mut(&name) else { return };
        if over.nodes.contains(&node) {
            over.nodes.retain(|&other| other != node);
            if sealed {
                over.sealed.push(node)
            } else {
                over.nothing.push(node)
            }
            over.news = true;
        }
    }

    /// A node could not do it now: it is asked again, not before `at`.
    pub fn again(&mut self, node: NodeId, name: BandName, what: What, at: Instant) {
        let chore = self.by_node.get_mut(&node).and_then(|chores| chores.get_mut(&name));
        if let Some(chore) = chore.filter(|chore| chore.what == what) {
            (chore.asked, chore.not_before) = (false, at);
        }
        self.stirred = true;
    }

    /// A node is no part of the pool any more.
    pub fn forget(&mut self, node: NodeId) {
        self.by_node.remove(&node);
        self.over.values_mut().for_each(|over| over.nodes.retain(|&other| other != node));
        self.stirred = true;
    }

    /// Somebody came or went, or time passed.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether something may be sent or has ended.
    pub fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// What has ended by now.
    pub fn settle<P>(&mut self, now: Instant, nodes: &Nodes<P>) -> Settled {
        let mut settled = Settled::default();
        if !std::mem::take(&mut self.stirred) {
            return settled;
        }
        self.over.retain(|&name, over| {
            let waits = over.nodes.iter().any(|&node| nodes.is_up(node));
            let erase = over.erase.take_if(|(_, limit)| !waits || now >= *limit);
            if let Some((tag, _)) = erase {
                settled.erases.push(BlockId(name.band));
                settled.tags.push(tag);
            }
            // With the end of an erase in any case: who is away holds a life that is over.
            if erase.is_some() || over.news && !waits {
                over.news = false;
                let (sealed, nothing) = (over.sealed.clone(), over.nothing.clone());
                settled.closed.push(Closed { name, pages: over.pages, sealed, nothing });
            }
            !over.nodes.is_empty() || over.erase.is_some()
        });
        settled
    }

    /// When the first erase has waited long enough.
    pub fn deadline(&self) -> Option<Instant> {
        self.over.values().filter_map(|over| over.erase).map(|(_, limit)| limit).min()
    }

    /// Erases that wait.
    pub fn erases(&self) -> Vec<Tag> {
        self.over.values().filter_map(|over| over.erase).map(|(tag, _)| tag).collect()
    }

    /// Things left to tell a node.
    pub fn count(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, BTreeMap::len)
    }
}

impl Over {
    fn new(nodes: Vec<NodeId>, pages: u32, erase: Option<(Tag, Instant)>) -> Self {
        Self { nodes, pages, sealed: Vec::new(), nothing: Vec::new(), news: false, erase }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NodeFacts;
    use crate::words::{DomainId, VolumeId};

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BAND: BandName = BandName { volume: VolumeId(1), band: 4, life: 9 };
    const NOW: Instant = Instant(5);

    fn nodes() -> Nodes<()> {
        let mut nodes = Nodes::new(9, true);
        for node in [A, B] {
            nodes.join(node, DomainId(node.0));
            nodes.up(NodeFacts { node, ..NodeFacts::default() });
        }
        nodes
    }

    fn closed(pages: u32, sealed: &[NodeId], nothing: &[NodeId]) -> Closed {
        Closed { name: BAND, pages, sealed: sealed.to_vec(), nothing: nothing.to_vec() }
    }

    fn next(chores: &mut Chores, node: NodeId) -> Option<What> {
        chores.next::<()>(NOW, node, Generation(1)).map(|(.., what, _)| what)
    }

    #[test]
    fn an_erase_ends_when_all_that_are_there_have_freed_the_band() {
        let (mut nodes, mut chores) = (nodes(), Chores::default());
        chores.free(BAND, &[A, B], Some((Tag(3), Instant(100))));
        assert_eq!(next(&mut chores, A), Some(What::Free));
        assert_eq!(next(&mut chores, A), None, "it was asked");
        chores.done(A, BAND, What::Free);
        assert_eq!(chores.settle(NOW, &nodes), Settled::default());
        nodes.down(B);
        chores.stir();
        let settled = chores.settle(NOW, &nodes);
        assert_eq!((settled.erases, settled.tags), (vec![BlockId(4)], vec![Tag(3)]));
        assert_eq!(settled.closed, [closed(0, &[], &[A])]);
        assert_eq!(next(&mut chores, B), Some(What::Free), "remembered");
    }

    #[test]
    fn an_erase_does_not_wait_for_ever() {
        let (nodes, mut chores) = (nodes(), Chores::default());
        chores.free(BAND, &[A, B], Some((Tag(3), Instant(100))));
        assert_eq!(chores.deadline(), Some(Instant(100)));
        chores.stir();
        assert_eq!(chores.settle(Instant(100), &nodes).tags, [Tag(3)]);
        assert_eq!((chores.count(A), chores.count(B)), (1, 1));
    }

    #[test]
    fn who_has_sealed_a_life_is_told_when_no_member_that_is_there_still_has_to() {
        let (mut nodes, mut chores) = (nodes(), Chores::default());
        chores.seal(BAND, &[A, B], 7);
        nodes.down(B);
        assert_eq!(chores.settle(NOW, &nodes).closed, [], "nobody has sealed it");
        assert_eq!(next(&mut chores, A), Some(What::Seal(7)));
        chores.again(A, BAND, What::Seal(7), Instant(5));
        assert_eq!(next(&mut chores, A), Some(What::Seal(7)));
        chores.done(A, BAND, What::Seal(7));
        assert_eq!(chores.settle(NOW, &nodes).closed, [closed(7, &[A], &[])]);
        nodes.up(NodeFacts { node: B, ..NodeFacts::default() });
        assert_eq!(next(&mut chores, B), Some(What::Seal(7)));
        chores.gave_up(B, BAND, What::Seal(7));
        assert_eq!(chores.settle(NOW, &nodes).closed, [closed(7, &[A], &[B])]);
        chores.stir();
        assert_eq!(chores.settle(NOW, &nodes), Settled::default(), "all is told");
    }

    #[test]
    fn a_free_takes_the_place_of_a_seal_under_way() {
        let (nodes, mut chores) = (nodes(), Chores::default());
        chores.seal(BAND, &[A, B], 7);
        assert_eq!(next(&mut chores, A), Some(What::Seal(7)));
        chores.free(BAND, &[B], None);
        chores.done(A, BAND, What::Seal(7));
        assert_eq!(next(&mut chores, A), Some(What::Free), "a member that was dropped, too");
        chores.done(A, BAND, What::Free);
        assert_eq!(chores.settle(NOW, &nodes).closed, []);
        chores.done(B, BAND, What::Free);
        assert_eq!(chores.settle(NOW, &nodes).closed, [closed(0, &[], &[A, B])]);
    }
}
