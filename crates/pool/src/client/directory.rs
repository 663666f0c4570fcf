//! Which life of each band lies where, how many pages of it count, and whether it takes more. Made of what
//! the nodes list when a volume is opened, and kept up by what the client does.
//!
//! Invariants:
//! - the pages of a band that count are those that all its members had durably: what only some have was
//!   never acknowledged, and is not shown, so no later loss of a node takes back what somebody has seen;
//! - of several lives of a band the newest counts; what nodes hold of older ones is to be freed;
//! - a band that may lie on nodes which nobody could ask is not taken for an empty one.

use crate::message::{BandEntry, Signals};
use crate::words::{BandName, BandShape, MEMBERS_MAX, NodeId};
use flash::{BlockId, Instant};
use std::collections::BTreeMap;

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
}

/// What the lists of the nodes say beside the directory.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Leftovers {
    /// Of older lives, or without a page that counts.
    pub free: Vec<(NodeId, BandName)>,
    /// Not sealed, or beyond what counts: to be sealed at so many pages, durably, before anything is shown. Else
    /// the next opening, which may see other members, could find that fewer count.
    pub seal: Vec<(NodeId, BandName, u32)>,
    /// Of another shape than the volume: not touched, not served.
    pub foreign: Vec<(NodeId, BandName)>,
}

impl Directory {
    /// Of the lists of all nodes that could be asked, which is all but fewer domains than a band has members
    /// if `complete`. The nodes were fenced before.
    pub fn new(
        shape: BandShape,
        blocks: u32,
        lists: &[(NodeId, BandEntry)],
        complete: bool,
    ) -> (Self, Leftovers) {
        let absent = if complete { Entry::Unbound } else { Entry::Unsure };
        let mut directory = Self { entries: vec![absent; blocks as usize] };
        let mut leftovers = Leftovers::default();
        let mut bands: BTreeMap<u32, Vec<(NodeId, BandEntry)>> = BTreeMap::new();
        for &(node, entry) in lists {
            if entry.header.shape != shape || entry.band.band >= blocks {
                leftovers.foreign.push((node, entry.band));
            } else {
                bands.entry(entry.band.band).or_default().push((node, entry));
            }
        }
        for (band, listed) in bands {
            directory.entries[band as usize] = settle(&listed, &mut leftovers);
        }
        (directory, leftovers)
    }

    /// What is known of a block.
    pub fn entry(&self, block: BlockId) -> &Entry {
        &self.entries[block.0 as usize]
    }

    /// The life of a block, if it has one.
    pub fn held(&self, block: BlockId) -> Option<&Held> {
        match self.entry(block) {
            Entry::Held(held) => Some(held),
            _ => None,
        }
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
        match std::mem::take(&mut self.entries[block.0 as usize]) {
            Entry::Held(held) => Some(held),
            _ => None,
        }
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

/// What counts of a band that nodes list so.
fn settle(listed: &[(NodeId, BandEntry)], leftovers: &mut Leftovers) -> Entry {
    let newest = listed.iter().map(|(_, entry)| entry.band.life).max().unwrap_or(0);
    let (of_newest, older): (Vec<_>, Vec<_>) =
        listed.iter().partition(|(_, entry)| entry.band.life == newest);
    leftovers.free.extend(older.iter().map(|(node, entry)| (*node, entry.band)));
    let pages_of = |sealed: bool| {
        let of = of_newest.iter().filter(move |(_, entry)| entry.sealed == sealed);
        of.map(|(_, entry)| entry.pages).min()
    };
    // A seal was set where everything acknowledged was before it; else what all have that answer.
    let pages = pages_of(true).or(pages_of(false)).unwrap_or(0);
    let Some(name) = of_newest.first().map(|(_, entry)| entry.band) else { return Entry::Unbound };
    if pages == 0 {
        leftovers.free.extend(of_newest.iter().map(|(node, entry)| (*node, entry.band)));
        return Entry::Unbound;
    }
    let mut nodes = Vec::new();
    for &(node, entry) in &of_newest {
        if entry.pages < pages || nodes.len() == MEMBERS_MAX {
            // It lacks some of it: repair makes a whole copy first.
            continue;
        }
        nodes.push(node);
        if !entry.sealed || entry.pages > pages {
            leftovers.seal.push((node, name, pages));
        }
    }
    Entry::Held(Held { name, nodes, pages, phase: Phase::Sealed, words: Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::BandHeader;
    use crate::words::{Members, VolumeId};

    const SHAPE: BandShape = BandShape { pages: 8, slots_per_page: 2 };

    fn name(band: u32, life: u64) -> BandName {
        BandName { volume: VolumeId(1), band, life }
    }

    fn listed(node: u32, band: u32, life: u64, pages: u32, sealed: bool) -> (NodeId, BandEntry) {
        let members = Members::new(&[NodeId(1), NodeId(2)]).unwrap();
        let header = BandHeader { members, shape: SHAPE };
        (NodeId(node), BandEntry { band: name(band, life), header, pages, sealed })
    }

    fn of(lists: &[(NodeId, BandEntry)]) -> (Directory, Leftovers) {
        Directory::new(SHAPE, 4, lists, true)
    }

    #[test]
    fn the_newest_life_counts_and_older_ones_are_freed() {
        let (directory, leftovers) =
            of(&[listed(1, 0, 5, 8, true), listed(2, 0, 5, 8, true), listed(3, 0, 4, 8, true)]);
        let held = directory.held(BlockId(0)).unwrap();
        assert_eq!((held.name, held.pages), (name(0, 5), 8));
        assert_eq!(held.nodes, [NodeId(1), NodeId(2)]);
        assert_eq!(leftovers.free, [(NodeId(3), name(0, 4))]);
        assert!(leftovers.seal.is_empty());
    }

    #[test]
    fn pages_that_only_some_have_do_not_count_and_are_sealed_away() {
        let (directory, leftovers) = of(&[listed(1, 2, 5, 4, false), listed(2, 2, 5, 3, false)]);
        let held = directory.held(BlockId(2)).unwrap();
        assert_eq!((held.pages, held.phase), (3, Phase::Sealed));
        let seals = [NodeId(1), NodeId(2)].map(|node| (node, name(2, 5), 3));
        assert_eq!(leftovers.seal, seals);
    }

    #[test]
    fn a_seal_says_what_counts_and_who_lacks_some_of_it_is_no_member() {
        let lists =
            [listed(1, 1, 5, 4, true), listed(2, 1, 5, 6, false), listed(3, 1, 5, 2, false)];
        let (directory, leftovers) = of(&lists);
        let held = directory.held(BlockId(1)).unwrap();
        assert_eq!((held.pages, &held.nodes[..]), (4, &[NodeId(1), NodeId(2)][..]));
        assert_eq!(leftovers.seal, [(NodeId(2), name(1, 5), 4)]);
    }

    #[test]
    fn a_band_without_a_common_page_is_free_again() {
        let (directory, leftovers) = of(&[listed(1, 1, 5, 1, false), listed(2, 1, 5, 0, false)]);
        assert!(matches!(directory.entry(BlockId(1)), Entry::Unbound));
        assert_eq!(leftovers.free.len(), 2);
    }

    #[test]
    fn what_nobody_could_look_for_is_not_taken_for_empty_and_foreign_bands_are_left_alone() {
        let mut foreign = listed(1, 1, 5, 3, true);
        foreign.1.header.shape.pages = 9;
        let (directory, leftovers) = Directory::new(SHAPE, 4, &[foreign], false);
        assert!(matches!(directory.entry(BlockId(1)), Entry::Unsure));
        assert_eq!(leftovers.foreign, [(NodeId(1), name(1, 5))]);
        assert!(leftovers.free.is_empty());
    }

    #[test]
    fn a_life_goes_from_open_to_sealed_to_erased_and_the_last_member_stays() {
        let (mut directory, _) = of(&[]);
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
