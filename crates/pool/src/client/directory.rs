//! Which life of each band lies where, how many pages of it count, and whether it takes more. Made of what
//! the opening of the volume found, and kept up by what the client does.
//!
//! Invariants:
//! - the pages of a band that count are those that all its members had durably: what only some have was
//!   never acknowledged, and is not shown, so no later loss of a node takes back what somebody has seen;
//! - of several lives of a band the newest counts; what nodes hold of older ones is to be freed;
//! - a band that may lie on nodes which nobody could ask is not taken for an empty one;
//! - nodes that are no members and may have what members lack are known: those that are away and may be back with it,
//!   and those whose copy is damaged in part.

use crate::message::Signals;
use crate::opening::{Opened, OpenedBand};
use crate::words::{BandName, MEMBERS_MAX, NodeId};
use flash::{BlockId, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// How long a node's word on one of its units is believed.
const EXACT_NS: u64 = 2 * flash::MILLISECOND;

/// How far a band has come in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// It takes more pages.
    Open,
    /// It never changes until it is freed.
    Sealed,
}

/// What a member said last of the unit that holds the band.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    at: Instant,
    queue: Option<u16>,
    stirs: bool,
}

/// A band that has a life.
#[derive(Clone, Debug)]
pub struct Held {
    /// Which life.
    pub name: BandName,
    /// The nodes that have all pages that count.
    pub nodes: Vec<NodeId>,
    /// The pages that count.
    pub pages: u32,
    /// Whether it takes more.
    pub phase: Phase,
    words: [Word; MEMBERS_MAX],
}

/// A block of the volume's geometry.
#[derive(Clone, Debug, Default)]
pub enum Entry {
    /// Nothing: never opened, or erased.
    #[default]
    Unbound,
    /// Not found where anybody could look. It may be on a node that was not reached.
    Unsure,
    /// Its life has ended with nothing in it. Takes nothing until its erase.
    Spent,
    /// Something.
    Held(Held),
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Directory {
    entries: Vec<Entry>,
    /// Lives that nodes which are away may have, until they are listed again.
    missed: BTreeMap<NodeId, BTreeSet<BandName>>,
    /// Copies that are damaged in part, or too short.
    damaged: BTreeSet<(BandName, NodeId)>,
}

impl Directory {
    /// Of a volume that was just made: nothing of it is anywhere.
    pub fn empty(blocks: u32) -> Self {
        Self::new(vec![Entry::Unbound; blocks as usize])
    }

    fn new(entries: Vec<Entry>) -> Self {
        Self { entries, missed: BTreeMap::new(), damaged: BTreeSet::new() }
    }

    /// Of a volume that was opened: all that it found is sealed. What it did not find is empty only if it asked
    /// all nodes that may have it.
    pub fn of(blocks: u32, opened: &Opened) -> Self {
        let absent = if opened.complete { Entry::Unbound } else { Entry::Unsure };
        let mut directory = Self::new(vec![absent; blocks as usize]);
        for name in &opened.refused {
            if let Some(entry) = directory.entries.get_mut(name.band as usize) {
                *entry = Entry::Unsure;
            }
        }
        for OpenedBand { name, pages, holders } in &opened.bands {
            let nodes = holders.iter().copied().take(MEMBERS_MAX).collect();
            let (phase, words) = (Phase::Sealed, Default::default());
            let held = Held { name: *name, nodes, pages: *pages, phase, words };
            // Where bands may be missing the volume's owner says that nobody is to wait.
            if opened.complete && holders.len() < usize::from(opened.volume.replicas) {
                opened.away.iter().for_each(|&node| directory.miss(*name, node));
            }
            if let Some(entry) = directory.entries.get_mut(name.band as usize) {
                *entry = Entry::Held(held);
            }
        }
        for &(node, name) in &opened.bad {
            directory.has_some(name, node);
        }
        directory
    }

    /// What is known of a block.
    pub fn entry(&self, block: BlockId) -> &Entry {
        &self.entries[block.0 as usize]
    }

    /// Bands that nobody has who was asked when the volume was opened, and that were not erased since.
    pub fn unsure(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, Entry::Unsure)).count()
    }

    /// The life of a block, if it has one.
    pub fn held(&self, block: BlockId) -> Option<&Held> {
        match self.entry(block) {
            Entry::Held(held) => Some(held),
            _ => None,
        }
    }

    /// This life, if its block has no other one.
    pub fn life(&self, name: BandName) -> Option<&Held> {
        self.held(BlockId(name.band)).filter(|held| held.name == name)
    }

    /// A life begins, without a page yet.
    pub fn open(&mut self, name: BandName, nodes: &[NodeId]) {
        self.entries[name.band as usize] = Entry::Held(Held {
            name,
            nodes: nodes.to_vec(),
            pages: 0,
            phase: Phase::Open,
            words: Default::default(),
        });
    }

    /// All members have so many pages of the open band.
    pub fn grow(&mut self, block: BlockId, pages: u32) {
        if let Entry::Held(held) = &mut self.entries[block.0 as usize] {
            assert_eq!(held.phase, Phase::Open, "only an open band grows");
            held.pages = pages;
        }
    }

    /// The open band takes no more. One without a page is spent.
    pub fn close(&mut self, block: BlockId) {
        let entry = &mut self.entries[block.0 as usize];
        match entry {
            Entry::Held(held) if held.pages > 0 => held.phase = Phase::Sealed,
            _ => *entry = Entry::Spent,
        }
    }

    /// The block was erased. What it was.
    pub fn erase(&mut self, block: BlockId) -> Option<Held> {
        let Entry::Held(held) = std::mem::take(&mut self.entries[block.0 as usize]) else {
            return None;
        };
        for names in self.missed.values_mut() {
            names.remove(&held.name);
        }
        self.damaged.retain(|(name, _)| *name != held.name);
        Some(held)
    }

    /// One more node has all pages of this life, which was copied there. False if that is not the life any
    /// more, or it has no place for one more: then the copy is to be freed.
    pub fn add(&mut self, name: BandName, node: NodeId) -> bool {
        let Some(Entry::Held(held)) = self.entries.get_mut(name.band as usize) else {
            return false;
        };
        if held.name != name || held.phase == Phase::Open {
            return false;
        }
        if held.nodes.contains(&node) {
            return true;
        }
        if held.nodes.len() == MEMBERS_MAX {
            return false;
        }
        held.nodes.push(node);
        self.damaged.remove(&(name, node));
        true
    }

    /// Nothing is read from this node any more, of a sealed band. False if it is the last one: that is never
    /// dropped.
    pub fn remove(&mut self, name: BandName, node: NodeId) -> bool {
        let Some(Entry::Held(held)) = self.entries.get_mut(name.band as usize) else {
            return false;
        };
        if held.name != name || held.phase == Phase::Open || held.nodes == [node] {
            return false;
        }
        if let Some(at) = held.nodes.iter().position(|&other| other == node) {
            held.nodes.remove(at);
            // They stand by place.
            held.words = Default::default();
        }
        true
    }

    /// A node that is away may have all of this life when it is back.
    pub fn miss(&mut self, name: BandName, node: NodeId) {
        self.missed.entry(node).or_default().insert(name);
    }

    /// What a node has is known, or it never comes back.
    pub fn listed(&mut self, node: NodeId) {
        self.missed.remove(&node);
    }

    /// A node's copy of this life, which takes no more, is damaged: it is a member no more, if it is not the last one.
    pub fn distrust(&mut self, name: BandName, node: NodeId) {
        self.remove(name, node);
        self.has_some(name, node);
    }

    /// A node that is no member of this life has some of it.
    fn has_some(&mut self, name: BandName, node: NodeId) {
        if self.life(name).is_some_and(|held| !held.nodes.contains(&node)) {
            self.damaged.insert((name, node));
        }
    }

    /// Nodes that are no members of this life and may have of it what those lack.
    pub fn doubtful(&self, name: BandName) -> impl Iterator<Item = NodeId> {
        let missed = self.missed.iter().filter(move |(_, names)| names.contains(&name));
        let all = (name, NodeId(0))..=(name, NodeId(u32::MAX));
        let damaged = self.damaged.range(all).map(|&(_, node)| node);
        missed.map(|(&node, _)| node).chain(damaged)
    }

    /// What a node that answers for this band says of the unit that holds it.
    pub fn heard(&mut self, block: BlockId, node: NodeId, now: Instant, signals: Signals) {
        if let Entry::Held(held) = &mut self.entries[block.0 as usize]
            && let Some(at) = held.nodes.iter().position(|&other| other == node)
        {
            held.words[at] = Word { at: now, queue: signals.unit_queue, stirs: signals.unit_stirs };
        }
    }

    /// All bands that have a life: what repair and status look at.
    pub fn bands(&self) -> impl Iterator<Item = &Held> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Held(held) => Some(held),
            _ => None,
        })
    }
}

impl Held {
    /// Queue of the unit that holds the band at its member of this place, and whether GC stirs there, as far
    /// as it was told just now.
    pub fn exact(&self, at: usize, now: Instant) -> (Option<u32>, bool) {
        let word = self.words[at];
        if now - word.at > EXACT_NS {
            return (None, false);
        }
        (word.queue.map(u32::from), word.stirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::VolumeId;

    fn name(band: u32, life: u64) -> BandName {
        BandName { volume: VolumeId(1), band, life }
    }

    fn found(band: u32, holders: &[u32]) -> OpenedBand {
        let holders = holders.iter().map(|&node| NodeId(node)).collect();
        OpenedBand { name: name(band, 5), pages: 8, holders }
    }

    #[test]
    fn what_an_opening_found_is_sealed_and_what_it_could_not_look_for_is_not_taken_for_empty() {
        let bands = vec![found(0, &[1, 2]), found(2, &[1, 2, 3, 4, 5])];
        let opened =
            Opened { bands, refused: vec![name(1, 4)], complete: true, ..Opened::default() };
        let directory = Directory::of(4, &opened);
        let held = directory.held(BlockId(0)).unwrap();
        assert_eq!((held.name, held.pages, held.phase), (name(0, 5), 8, Phase::Sealed));
        assert_eq!(held.nodes, [NodeId(1), NodeId(2)]);
        assert_eq!(directory.held(BlockId(2)).unwrap().nodes.len(), MEMBERS_MAX);
        assert!(matches!(directory.entry(BlockId(1)), Entry::Unsure), "nobody has all of it");
        assert!(matches!(directory.entry(BlockId(3)), Entry::Unbound));
        let directory = Directory::of(4, &Opened { complete: false, ..opened });
        assert!(matches!(directory.entry(BlockId(3)), Entry::Unsure));
    }

    #[test]
    fn copies_that_are_none_may_have_what_a_member_lacks() {
        let bad = vec![(NodeId(3), name(0, 5)), (NodeId(1), name(0, 5)), (NodeId(4), name(0, 4))];
        let opened =
            Opened { bands: vec![found(0, &[1])], bad, complete: true, ..Opened::default() };
        let mut directory = Directory::of(1, &opened);
        let doubtful = |directory: &Directory| directory.doubtful(name(0, 5)).collect::<Vec<_>>();
        assert_eq!(doubtful(&directory), [NodeId(3)], "no member, and of this life");
        assert!(directory.add(name(0, 5), NodeId(2)));
        directory.distrust(name(0, 5), NodeId(1));
        assert_eq!(doubtful(&directory), [NodeId(1), NodeId(3)]);
        directory.erase(BlockId(0));
        assert_eq!(doubtful(&directory), []);
    }

    #[test]
    fn a_life_goes_from_open_to_sealed_to_erased_and_the_last_member_stays() {
        let mut directory = Directory::empty(4);
        let [a, b] = [NodeId(1), NodeId(2)];
        directory.open(name(3, 9), &[a, b]);
        assert!(!directory.add(name(3, 9), NodeId(3)), "an open band is not copied");
        assert!(!directory.remove(name(3, 9), a), "nor does it lose a member");
        directory.grow(BlockId(3), 2);
        directory.close(BlockId(3));
        assert!(directory.add(name(3, 9), NodeId(3)));
        assert!(!directory.add(name(3, 8), NodeId(4)), "another life");
        assert!(directory.remove(name(3, 9), a) && directory.remove(name(3, 9), b));
        assert!(!directory.remove(name(3, 9), NodeId(3)), "the last copy");
        assert_eq!(directory.bands().count(), 1);
        assert_eq!(directory.erase(BlockId(3)).unwrap().pages, 2);
        assert!(directory.held(BlockId(3)).is_none());
        directory.open(name(3, 10), &[a, b]);
        directory.close(BlockId(3));
        assert!(matches!(directory.entry(BlockId(3)), Entry::Spent));
    }
}
