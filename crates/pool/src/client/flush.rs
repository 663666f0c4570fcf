//! Flushes, for nodes whose answers do not survive a power cut by themselves.
//!
//! Invariants:
//! - a flush ends well when every node that was written to since the last one, and is still there, has
//!   flushed;
//! - a node that goes with pages that it has not flushed may have lost them: it counts no longer as a member
//!   of those bands. If it was the last one, no flush ends well any more.

use crate::words::{BandName, NodeId};
use flash::Tag;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
struct Flush {
    tag: Tag,
    left: BTreeSet<NodeId>,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Flushes {
    /// Bands written since a node was last asked to flush.
    dirty: BTreeMap<NodeId, BTreeSet<BandName>>,
    /// The same of what it was asked to flush and has not.
    asked: BTreeMap<NodeId, BTreeSet<BandName>>,
    running: VecDeque<Flush>,
    /// Something that was acknowledged may be on no node any more.
    broken: bool,
}

impl Flushes {
    /// A node that is not durable has a page of this band.
    pub fn wrote(&mut self, node: NodeId, name: BandName) {
        self.dirty.entry(node).or_default().insert(name);
    }

    /// A flush begins. Whom to ask.
    pub fn begin(&mut self, tag: Tag) -> Vec<NodeId> {
        let dirty = std::mem::take(&mut self.dirty);
        let nodes: Vec<NodeId> = dirty.keys().copied().collect();
        for (node, bands) in dirty {
            self.asked.entry(node).or_default().extend(bands);
        }
        // Those of a flush before this one that still runs are waited for, too.
        self.running.push_back(Flush { tag, left: self.asked.keys().copied().collect() });
        nodes
    }

    /// A node has flushed all that it was asked to.
    pub fn done(&mut self, node: NodeId) {
        self.asked.remove(&node);
        self.running.iter_mut().for_each(|flush| {
            flush.left.remove(&node);
        });
    }

    /// A node is gone: the bands of which it may have lost pages.
    pub fn down(&mut self, node: NodeId) -> BTreeSet<BandName> {
        let mut bands = self.asked.remove(&node).unwrap_or_default();
        bands.extend(self.dirty.remove(&node).unwrap_or_default());
        self.done(node);
        bands
    }

    /// The last copy of something may be gone.
    pub fn break_all(&mut self) {
        self.broken = true;
    }

    /// Nobody needs this band any more, so nobody need flush it.
    pub fn freed(&mut self, name: BandName) {
        for bands in self.dirty.values_mut().chain(self.asked.values_mut()) {
            bands.remove(&name);
        }
        self.dirty.retain(|_, bands| !bands.is_empty());
    }

    /// The next flush that has ended, and whether well.
    pub fn ended(&mut self) -> Option<(Tag, bool)> {
        let flush = self.running.pop_front_if(|flush| flush.left.is_empty())?;
        Some((flush.tag, !self.broken))
    }

    /// All flushes under way: none ends well any more.
    pub fn end(&mut self) -> Vec<Tag> {
        self.running.drain(..).map(|flush| flush.tag).collect()
    }

    /// Nodes that a flush waits for.
    pub fn waits_for(&self) -> Vec<NodeId> {
        self.running.front().map_or_else(Vec::new, |flush| flush.left.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::VolumeId;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BAND: BandName = BandName { volume: VolumeId(1), band: 2, life: 3 };

    #[test]
    fn a_flush_asks_who_was_written_to_and_ends_with_the_last_answer() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.begin(Tag(1)), []);
        assert_eq!(flushes.ended(), Some((Tag(1), true)), "nothing to do");
        flushes.wrote(A, BAND);
        flushes.wrote(B, BAND);
        assert_eq!(flushes.begin(Tag(2)), [A, B]);
        flushes.wrote(A, BAND);
        flushes.done(A);
        assert_eq!(flushes.ended(), None);
        flushes.done(B);
        assert_eq!(flushes.ended(), Some((Tag(2), true)));
        assert_eq!(flushes.begin(Tag(3)), [A], "what came meanwhile");
    }

    #[test]
    fn who_goes_unflushed_is_no_member_any_more_and_of_the_last_one_everybody_is_told() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.wrote(B, BAND);
        flushes.begin(Tag(1));
        assert_eq!(flushes.down(A).into_iter().collect::<Vec<_>>(), [BAND]);
        assert_eq!(flushes.waits_for(), [B]);
        flushes.done(B);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        flushes.wrote(B, BAND);
        flushes.down(B);
        flushes.break_all();
        flushes.begin(Tag(2));
        assert_eq!(flushes.ended(), Some((Tag(2), false)));
    }

    #[test]
    fn what_was_freed_need_not_be_flushed() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.freed(BAND);
        assert_eq!(flushes.begin(Tag(1)), []);
    }
}
