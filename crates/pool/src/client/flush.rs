//! Flushes, for nodes whose answers do not survive a power cut by themselves.
//!
//! Invariants:
//! - a flush ends well when every node that was written to since the last one, and is still there, has
//!   flushed after the flush began;
//! - a node that goes with pages that it has not flushed may have lost them: it counts no longer as a member
//!   of those bands. No flush ends well before the control plane has where they end; if it was the last
//!   member, none does any more.

use crate::words::{BandName, NodeId};
use flash::Tag;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
struct Flush {
    tag: Tag,
    /// Who has to flush, and the least number whose end is enough.
    left: BTreeMap<NodeId, u64>,
}

/// What a node has that may not be durable.
#[derive(Clone, Debug, Default)]
struct Dirty {
    /// Bands with pages.
    bands: BTreeSet<BandName>,
    /// Also a seal or a free.
    changed: bool,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Flushes {
    /// Since a node was last asked to flush.
    dirty: BTreeMap<NodeId, Dirty>,
    /// What it was asked to flush and has not, by the number of the flush.
    asked: BTreeMap<NodeId, BTreeMap<u64, BTreeSet<BandName>>>,
    running: VecDeque<Flush>,
    flushes: u64,
    /// Bands that lost a member which had not flushed, until it is on record where they end.
    holds: BTreeSet<BandName>,
    /// Something that was acknowledged may be on no node any more.
    broken: bool,
}

impl Flushes {
    /// A node that is not durable has a page of this band.
    pub fn wrote(&mut self, node: NodeId, name: BandName) {
        self.dirty.entry(node).or_default().bands.insert(name);
    }

    /// A node that is not durable has sealed or freed something.
    pub fn changed(&mut self, node: NodeId) {
        self.dirty.entry(node).or_default().changed = true;
    }

    /// A flush begins. Whom to ask.
    pub fn begin(&mut self, tag: Tag) -> Vec<NodeId> {
        self.flushes += 1;
        let dirty = std::mem::take(&mut self.dirty);
        let nodes: Vec<NodeId> = dirty.keys().copied().collect();
        for (node, dirty) in dirty {
            self.asked.entry(node).or_default().insert(self.flushes, dirty.bands);
        }
        // Those of a flush before this one that still runs are waited for, too.
        let last =
            |(&node, asked): (&NodeId, &BTreeMap<u64, _>)| Some((node, *asked.keys().last()?));
        let left = self.asked.iter().filter_map(last).collect();
        self.running.push_back(Flush { tag, left });
        nodes
    }

    /// What a node is to be asked to flush now, by number, if anything is left.
    pub fn number(&self, node: NodeId) -> Option<u64> {
        self.asked.get(&node).and_then(|asked| asked.keys().last()).copied()
    }

    /// A node has flushed all that it had when it was asked with this number.
    pub fn done(&mut self, node: NodeId, number: u64) {
        if let Some(asked) = self.asked.get_mut(&node) {
            asked.retain(|of, _| *of > number);
            if asked.is_empty() {
                self.asked.remove(&node);
            }
        }
        for flush in &mut self.running {
            flush.left.retain(|of, least| *of != node || *least > number);
        }
    }

    /// A node is gone: the bands of which it may have lost pages.
    pub fn down(&mut self, node: NodeId) -> BTreeSet<BandName> {
        let asked = self.asked.remove(&node).unwrap_or_default();
        let mut bands: BTreeSet<BandName> = asked.into_values().flatten().collect();
        bands.extend(self.dirty.remove(&node).unwrap_or_default().bands);
        self.done(node, u64::MAX);
        bands
    }

    /// No flush ends well until it is on record where this band ends.
    pub fn hold(&mut self, name: BandName) {
        self.holds.insert(name);
    }

    /// That is on record.
    pub fn kept(&mut self, name: BandName) {
        self.holds.remove(&name);
    }

    /// The last copy of something may be gone.
    pub fn break_all(&mut self) {
        self.broken = true;
    }

    /// Nobody needs this band any more, so nobody need flush it.
    pub fn freed(&mut self, name: BandName) {
        self.holds.remove(&name);
        let asked = self.asked.values_mut().flat_map(BTreeMap::values_mut);
        for bands in self.dirty.values_mut().map(|dirty| &mut dirty.bands).chain(asked) {
            bands.remove(&name);
        }
        self.dirty.retain(|_, dirty| dirty.changed || !dirty.bands.is_empty());
    }

    /// The next flush that has ended, and whether well.
    pub fn ended(&mut self) -> Option<(Tag, bool)> {
        if !self.holds.is_empty() && !self.broken {
            return None;
        }
        let flush = self.running.pop_front_if(|flush| flush.left.is_empty())?;
        Some((flush.tag, !self.broken))
    }

    /// All flushes under way: none ends well any more.
    pub fn end(&mut self) -> Vec<Tag> {
        self.running.drain(..).map(|flush| flush.tag).collect()
    }

    /// Nodes that a flush waits for.
    pub fn waits_for(&self) -> Vec<NodeId> {
        self.running.front().map_or_else(Vec::new, |flush| flush.left.keys().copied().collect())
    }

    /// Whether a flush waits for the control plane alone.
    pub fn waits_for_record(&self) -> bool {
        !self.holds.is_empty() && self.running.front().is_some_and(|flush| flush.left.is_empty())
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
        flushes.done(A, 2);
        assert_eq!(flushes.ended(), None);
        flushes.done(B, 2);
        assert_eq!(flushes.ended(), Some((Tag(2), true)));
        assert_eq!(flushes.begin(Tag(3)), [A], "what came meanwhile");
    }

    #[test]
    fn the_answer_to_an_earlier_flush_ends_no_later_one() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(Tag(1));
        assert_eq!(flushes.number(A), Some(1));
        flushes.wrote(A, BAND);
        flushes.begin(Tag(2));
        assert_eq!(flushes.number(A), Some(2));
        flushes.done(A, 1);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        assert_eq!(flushes.ended(), None, "what was written since is not durable");
        assert_eq!(flushes.down(A).len(), 1, "and may be lost");
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(Tag(1));
        assert_eq!(flushes.begin(Tag(2)), [], "nothing more to ask");
        flushes.done(A, 1);
        assert_eq!(
            [flushes.ended(), flushes.ended()],
            [Some((Tag(1), true)), Some((Tag(2), true))]
        );
    }

    #[test]
    fn who_goes_unflushed_is_no_member_any_more_and_of_the_last_one_everybody_is_told() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.wrote(B, BAND);
        flushes.begin(Tag(1));
        assert_eq!(flushes.down(A).into_iter().collect::<Vec<_>>(), [BAND]);
        assert_eq!(flushes.waits_for(), [B]);
        flushes.done(B, 1);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        flushes.wrote(B, BAND);
        flushes.down(B);
        flushes.break_all();
        flushes.begin(Tag(2));
        assert_eq!(flushes.ended(), Some((Tag(2), false)));
    }

    #[test]
    fn while_the_end_of_a_band_that_lost_a_member_is_not_on_record_no_flush_ends() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(Tag(1));
        flushes.down(A);
        flushes.hold(BAND);
        assert_eq!(flushes.ended(), None);
        assert!(flushes.waits_for_record());
        flushes.kept(BAND);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        flushes.hold(BAND);
        flushes.begin(Tag(2));
        flushes.freed(BAND);
        assert_eq!(flushes.ended(), Some((Tag(2), true)), "nobody needs it any more");
    }

    #[test]
    fn what_was_freed_need_not_be_flushed_but_a_seal_must() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.changed(B);
        flushes.freed(BAND);
        assert_eq!(flushes.begin(Tag(1)), [B]);
    }
}
