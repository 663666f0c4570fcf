//! Flushes, for nodes whose answers do not survive a power cut by themselves.
//!
//! Invariants:
//! - a flush ends well when every node that was written to since the last one, and is still there, has
//!   flushed after the flush began;
//! - a node that goes with pages that it has not flushed may have lost them: it counts no longer as a member
//!   of those bands. No flush ends well before the control plane has where they end; if it was the last
//!   member, none ends before a node is found to have all of it, and none does any more once it is found not to;
//! - a node that does not answer while all others have is as good as gone ([`Flushes::late`]), but nobody is where
//!   that would take the last copy of something.

use crate::words::{BandName, NodeId};
use flash::{Instant, Tag};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
struct Flush {
    tag: Tag,
    /// Who has to flush, and the least number whose end is enough.
    left: BTreeMap<NodeId, u64>,
    /// When its patience begins.
    since: Instant,
    /// How long those took that have answered.
    took_ns: u64,
}

/// A node is late with a flush after so many times as long as the slowest of the others took.
const LATE_TIMES: u64 = 4;

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
    /// Bands whose last member went before it had flushed, until some node is found to have all of them durably.
    alone: BTreeSet<BandName>,
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
    pub fn begin(&mut self, now: Instant, tag: Tag) -> Vec<NodeId> {
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
        self.running.push_back(Flush { tag, left, since: now, took_ns: 0 });
        nodes
    }

    /// What a node is to be asked to flush now, by number, if anything is left.
    pub fn number(&self, node: NodeId) -> Option<u64> {
        self.asked.get(&node).and_then(|asked| asked.keys().last()).copied()
    }

    /// A node has flushed all that it had when it was asked with this number.
    pub fn done(&mut self, now: Instant, node: NodeId, number: u64) {
        if let Some(asked) = self.asked.get_mut(&node) {
            asked.retain(|of, _| *of > number);
            if asked.is_empty() {
                self.asked.remove(&node);
            }
        }
        for flush in &mut self.running {
            if flush.left.extract_if(.., |of, least| *of == node && *least <= number).count() > 0 {
                flush.took_ns = now - flush.since;
            }
        }
    }

    /// When those are late whom the first flush waits for, if it waits for any.
    pub fn late_at(&self, limit_ns: u64) -> Option<Instant> {
        let flush = self.running.front().filter(|flush| !flush.left.is_empty())?;
        Some(flush.since + limit_ns.max(LATE_TIMES.saturating_mul(flush.took_ns)))
    }

    /// Nobody could do better than who is late: the first flush waits as long again.
    pub fn wait_on(&mut self, now: Instant) {
        if let Some(flush) = self.running.front_mut() {
            flush.since = now;
        }
    }

    /// Bands with pages that this node has not flushed.
    pub fn unflushed(&self, node: NodeId) -> impl Iterator<Item = BandName> {
        let asked = self.asked.get(&node).into_iter().flat_map(BTreeMap::values).flatten();
        let dirty = self.dirty.get(&node).into_iter().flat_map(|dirty| &dirty.bands);
        asked.chain(dirty).copied()
    }

    /// A node is gone: the bands of which it may have lost pages.
    pub fn down(&mut self, node: NodeId) -> BTreeSet<BandName> {
        let bands = self.unflushed(node).collect();
        self.asked.remove(&node);
        self.dirty.remove(&node);
        for flush in &mut self.running {
            flush.left.remove(&node);
        }
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

    /// The last member of this band went before it had flushed: no flush ends until some node is found to have it.
    pub fn wait_for(&mut self, name: BandName) {
        self.alone.insert(name);
    }

    /// A node was found to have all of this band, durably.
    pub fn found(&mut self, name: BandName) {
        self.alone.remove(&name);
    }

    /// Bands that no node is known to have durably.
    pub fn alone(&self) -> impl Iterator<Item = BandName> {
        self.alone.iter().copied()
    }

    /// The last copy of something is gone, or may be.
    pub fn break_all(&mut self) {
        self.broken = true;
    }

    /// Nobody needs this band any more, so nobody need flush it.
    pub fn freed(&mut self, name: BandName) {
        self.holds.remove(&name);
        self.alone.remove(&name);
        let asked = self.asked.values_mut().flat_map(BTreeMap::values_mut);
        for bands in self.dirty.values_mut().map(|dirty| &mut dirty.bands).chain(asked) {
            bands.remove(&name);
        }
        self.dirty.retain(|_, dirty| dirty.changed || !dirty.bands.is_empty());
    }

    /// The next flush that has ended, and whether well.
    pub fn ended(&mut self) -> Option<(Tag, bool)> {
        if !(self.broken || self.holds.is_empty() && self.alone.is_empty()) {
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

    const NOW: Instant = Instant(5);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BAND: BandName = BandName { volume: VolumeId(1), band: 2, life: 3 };

    #[test]
    fn a_flush_asks_who_was_written_to_and_ends_with_the_last_answer() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.begin(NOW, Tag(1)), []);
        assert_eq!(flushes.ended(), Some((Tag(1), true)), "nothing to do");
        flushes.wrote(A, BAND);
        flushes.wrote(B, BAND);
        assert_eq!(flushes.begin(NOW, Tag(2)), [A, B]);
        flushes.wrote(A, BAND);
        flushes.done(NOW, A, 2);
        assert_eq!(flushes.ended(), None);
        flushes.done(NOW, B, 2);
        assert_eq!(flushes.ended(), Some((Tag(2), true)));
        assert_eq!(flushes.begin(NOW, Tag(3)), [A], "what came meanwhile");
    }

    #[test]
    fn the_answer_to_an_earlier_flush_ends_no_later_one() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(NOW, Tag(1));
        assert_eq!(flushes.number(A), Some(1));
        flushes.wrote(A, BAND);
        flushes.begin(NOW, Tag(2));
        assert_eq!(flushes.number(A), Some(2));
        flushes.done(NOW, A, 1);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        assert_eq!(flushes.ended(), None, "what was written since is not durable");
        assert_eq!(flushes.down(A).len(), 1, "and may be lost");
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(NOW, Tag(1));
        assert_eq!(flushes.begin(NOW, Tag(2)), [], "nothing more to ask");
        flushes.done(NOW, A, 1);
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
        flushes.begin(NOW, Tag(1));
        assert_eq!(flushes.down(A).into_iter().collect::<Vec<_>>(), [BAND]);
        assert_eq!(flushes.waits_for(), [B]);
        flushes.done(NOW, B, 1);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        flushes.wrote(B, BAND);
        flushes.down(B);
        flushes.break_all();
        flushes.begin(NOW, Tag(2));
        assert_eq!(flushes.ended(), Some((Tag(2), false)));
    }

    #[test]
    fn while_the_end_of_a_band_that_lost_a_member_is_not_on_record_no_flush_ends() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.begin(NOW, Tag(1));
        flushes.down(A);
        flushes.hold(BAND);
        assert_eq!(flushes.ended(), None);
        assert!(flushes.waits_for_record());
        flushes.kept(BAND);
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
        flushes.hold(BAND);
        flushes.begin(NOW, Tag(2));
        flushes.freed(BAND);
        assert_eq!(flushes.ended(), Some((Tag(2), true)), "nobody needs it any more");
    }

    #[test]
    fn what_was_freed_need_not_be_flushed_but_a_seal_must() {
        let mut flushes = Flushes::default();
        flushes.wrote(A, BAND);
        flushes.changed(B);
        flushes.freed(BAND);
        assert_eq!(flushes.begin(NOW, Tag(1)), [B]);
    }

    #[test]
    fn who_does_not_answer_is_late_by_what_the_others_took_and_waited_for_again_if_need_be() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.late_at(100), None);
        flushes.wrote(A, BAND);
        flushes.wrote(B, BAND);
        flushes.begin(Instant(1000), Tag(1));
        assert_eq!(flushes.late_at(100), Some(Instant(1100)));
        flushes.done(Instant(1010), A, 1);
        assert_eq!(flushes.late_at(100), Some(Instant(1100)));
        assert_eq!(flushes.late_at(30), Some(Instant(1040)), "the other took 10");
        flushes.wait_on(Instant(1040));
        assert_eq!(flushes.late_at(30), Some(Instant(1080)));
        assert_eq!(flushes.unflushed(B).collect::<Vec<_>>(), [BAND]);
        assert_eq!(flushes.unflushed(A).count(), 0);
        flushes.down(B);
        assert_eq!(flushes.late_at(30), None, "it waits for nobody");
        assert_eq!(flushes.ended(), Some((Tag(1), true)));
    }
}
