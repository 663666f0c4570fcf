//! Clones, as far as the map is concerned: which blocks are as a snapshot has them until they change.
//!
//! What the entry of a clone's block says:
//! - [`UNMAPPED`](crate::format::UNMAPPED): the block has not changed since; it is as the snapshot has it, at an address
//!   of that one's shadow;
//! - [`NOTHING`](crate::format::NOTHING): it was trimmed;
//! - a slot, or that what it held was lost.
//!
//! Invariants:
//! - no block is of two clones;
//! - the snapshot is older than its clone, and no cut is the same sequence as that of a clone; so the way from a clone to what it was made of comes to an end;
//! - as long as a clone is there, so are the addresses that it names.

use super::shadows::Shadows;
use crate::format::{CloneRecord, ShadowStretch};

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clones {
    /// In the order of their cuts.
    list: Vec<CloneRecord>,
}

impl Clones {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The clones that there are, oldest first.
    pub fn list(&self) -> &[CloneRecord] {
        &self.list
    }

    /// The clone that has `lba`, and the address that this is a clone of.
    fn find(&self, lba: u32) -> Option<(&CloneRecord, u32)> {
        self.list.iter().find_map(|clone| {
            let address = clone.stretches.iter().find_map(|it| it.shadow_of(lba));
            Some((clone, address?))
        })
    }

    /// The address of a snapshot that `lba` is a clone of.
    pub fn origin(&self, lba: u32) -> Option<u32> {
        self.find(lba).map(|(_, address)| address)
    }

    /// The sequence that the clone of `lba` began with.
    pub fn cut_of(&self, lba: u32) -> Option<u64> {
        self.find(lba).map(|(clone, _)| clone.cut)
    }

    /// Whether one of these blocks is of a clone.
    pub fn overlap(&self, lba: u32, blocks: u32) -> bool {
        self.stretches().any(|it| it.meets(lba, blocks))
    }

    /// Whether a clone is made of one of these addresses.
    pub fn name(&self, stretches: &[ShadowStretch]) -> bool {
        let named = |it: &ShadowStretch| {
            self.stretches()
                .any(|of| it.shadow < of.shadow + of.blocks && of.shadow < it.shadow + it.blocks)
        };
        stretches.iter().any(named)
    }

    pub(super) fn stretches_mut(&mut self) -> impl Iterator<Item = &mut ShadowStretch> {
        self.list.iter_mut().flat_map(|clone| &mut clone.stretches)
    }

    pub fn stretches(&self) -> impl Iterator<Item = &ShadowStretch> {
        self.list.iter().flat_map(|clone| &clone.stretches)
    }

    /// The clone of this number.
    pub fn numbered(&self, number: u32) -> Option<&CloneRecord> {
        self.list.iter().find(|clone| clone.number == number)
    }

    pub(super) fn push(&mut self, clone: CloneRecord) {
        self.list.push(clone);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.list.retain(|clone| clone.number != number);
    }
}

impl Shadows {
    /// Whether a clone could be made of these stretches, of a device of so many logical blocks: no other clone has its blocks,
    /// and each is made of one stretch of a snapshot that can be read.
    pub fn takes_clone(&self, stretches: &[ShadowStretch], blocks: u32) -> bool {
        let takes = |(at, it): (usize, &ShadowStretch)| {
            let mut others = self.clones.stretches().chain(&stretches[..at]);
            it.blocks > 0
                && it.end().is_some_and(|end| end <= blocks)
                && self.are_readable(it.shadow, it.blocks)
                && !others.any(|other| it.meets(other.first, other.blocks))
        };
        (1..=super::shadows::STRETCHES_MAX).contains(&stretches.len())
            && stretches.iter().enumerate().all(takes)
    }

    /// Of these stretches what snapshots had in a former life.
    pub fn had_before(&self, stretches: &[ShadowStretch]) -> Vec<std::ops::Range<u32>> {
        let taken = self.list().iter().flat_map(|snapshot| &snapshot.stretches);
        let common = |it: &ShadowStretch, of: &ShadowStretch| {
            it.first.max(of.first)..(it.first + it.blocks).min(of.first + of.blocks)
        };
        let all = taken.flat_map(|of| stretches.iter().map(move |it| common(it, of)));
        all.filter(|range| !range.is_empty()).collect()
    }

    /// These blocks, which hold nothing, are a clone from now on; whatever comes has a sequence from its cut on.
    pub fn begin_clone(&mut self, clone: CloneRecord) {
        self.clones.push(clone);
        self.bound();
    }

    /// What the blocks of a clone do not have themselves is nothing from now on.
    pub fn end_clone(&mut self, number: u32) {
        self.clones.remove(number);
        self.bound();
    }

    /// Whether somebody would miss what is given up with the clone or snapshot of this number: clones of it, or snapshots
    /// of a clone.
    pub fn is_needed(&self, number: u32) -> bool {
        if let Some(clone) = self.clones.numbered(number) {
            // One that was taken before is of a former life of the blocks.
            let later = self.list().iter().filter(|snapshot| snapshot.cut > clone.cut);
            let later = later.map(|snapshot| &snapshot.stretches);
            let prepared = self.prepared().iter().map(|(_, stretches)| stretches);
            let mut taken = later.chain(prepared).flatten();
            return taken.any(|of| clone.stretches.iter().any(|it| it.meets(of.first, of.blocks)));
        }
        let snapshot = self.list().iter().find(|snapshot| snapshot.number == number);
        snapshot.is_some_and(|snapshot| self.clones.name(&snapshot.stretches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(first: u32, blocks: u32, shadow: u32) -> ShadowStretch {
        ShadowStretch { first, blocks, shadow }
    }

    fn clone(number: u32, cut: u64, stretches: &[ShadowStretch]) -> CloneRecord {
        CloneRecord { number, cut, stretches: stretches.to_vec() }
    }

    /// Blocks 0 to 8 and 20 to 24 have a snapshot at 100 and 108; block 40 on is a clone of some of them.
    fn shadows() -> Shadows {
        let mut shadows = Shadows::default();
        shadows.take(1, 10, vec![stretch(0, 8, 100), stretch(20, 4, 108)]);
        shadows.begin_clone(clone(2, 15, &[stretch(40, 8, 100), stretch(50, 2, 110)]));
        shadows
    }

    #[test]
    fn a_block_of_a_clone_names_what_it_was_made_of() {
        let shadows = shadows();
        assert_eq!(shadows.clones.origin(47), Some(107));
        assert_eq!(shadows.clones.origin(51), Some(111));
        assert_eq!((shadows.clones.origin(48), shadows.clones.origin(0)), (None, None));
        assert_eq!(shadows.clones.cut_of(40), Some(15));
        assert!(shadows.clones.overlap(30, 11) && !shadows.clones.overlap(30, 10));
        assert!(!shadows.is_far(51) && shadows.is_far(52));
    }

    #[test]
    fn clones_have_no_block_in_common_and_are_of_what_can_be_read() {
        let mut shadows = shadows();
        assert!(shadows.takes_clone(&[stretch(60, 8, 100), stretch(68, 2, 100)], 100));
        assert!(
            !shadows.takes_clone(&[], 100) && !shadows.takes_clone(&[stretch(60, 0, 100)], 100)
        );
        assert!(!shadows.takes_clone(&[stretch(95, 6, 100)], 100), "no such blocks");
        assert!(!shadows.takes_clone(&[stretch(60, 9, 100)], 100), "more than the stretch has");
        assert!(!shadows.takes_clone(&[stretch(60, 8, 50)], 100), "of no snapshot");
        assert!(!shadows.takes_clone(&[stretch(47, 4, 100)], 100), "a clone has the first");
        assert!(shadows.takes_clone(&[stretch(7, 4, 100)], 100), "of a former life");
        assert_eq!(shadows.had_before(&[stretch(7, 4, 100), stretch(60, 4, 100)]), vec![7..8]);
        assert!(!shadows.takes_clone(&[stretch(60, 4, 100), stretch(63, 4, 100)], 100));
        shadows.snapshot(0).life = super::super::shadows::Life::Leaving;
        assert!(!shadows.takes_clone(&[stretch(60, 4, 100)], 100), "it leaves");
    }

    #[test]
    fn what_a_clone_is_made_of_and_what_is_made_of_a_clone_are_needed() {
        let mut shadows = shadows();
        assert!(shadows.is_needed(1) && !shadows.is_needed(2));
        shadows.take(3, 20, vec![stretch(44, 2, 120)]);
        assert!(shadows.is_needed(2) && !shadows.is_needed(3));
        shadows.begin_clone(clone(4, 30, &[stretch(0, 2, 102)]));
        assert!(!shadows.is_needed(4), "the snapshot of its blocks was taken before");
        shadows.end_clone(4);
        shadows.end_clone(2);
        assert!(!shadows.is_needed(1) && shadows.clones.is_empty());
    }
}
