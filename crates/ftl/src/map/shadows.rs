//! Snapshots, as far as the map is concerned: which blocks they hold, and where the shadow of each lies.
//!
//! A shadow is a stretch of entries above those of the logical blocks. What an entry of a shadow says:
//! - [`UNMAPPED`](crate::format::UNMAPPED): the block has not changed since; it is as the next newer snapshot of it
//!   has it, or else as the block is now;
//! - [`NOTHING`](crate::format::NOTHING): the block held nothing;
//! - [`INHERITED`](crate::format::INHERITED): the block is of a clone, and was as that one's snapshot has it;
//! - a slot, or that what it held was lost.
//!
//! Invariants:
//! - snapshots are in the order of their cuts;
//! - an entry of a shadow is filled when its block changes for the first time between its own cut and the next one of
//!   that block. So with a sequence and the cuts it follows which entry has a version ([`Shadows::since`]), and no
//!   slot has to say which snapshot it is for;
//! - no two shadows have an address in common.

use super::clones::Clones;
use crate::format::{CloneRecord, SNAPSHOT_BYTES_MAX, ShadowStretch, SnapshotRecord};

/// Most stretches of a snapshot: their number is a byte in the root record.
pub(super) const STRETCHES_MAX: usize = u8::MAX as usize;

/// How far the life of a snapshot has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Life {
    Taken,
    /// It was given up, and is to be until that is durable.
    Leaving,
    /// Of its blocks, in the order of its stretches, so many have left the shadow.
    Swept(u64),
}

/// A snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub number: u32,
    /// It holds what had a sequence below this.
    pub cut: u64,
    pub life: Life,
    pub stretches: Vec<ShadowStretch>,
    /// Slots in its shadow.
    pub held: u64,
}

impl Snapshot {
    /// The address that has `lba`, unless it has left.
    fn address_of(&self, lba: u32) -> Option<u32> {
        let mut before = 0;
        for stretch in &self.stretches {
            if let Some(address) = stretch.shadow_of(lba) {
                let at = before + u64::from(lba - stretch.first);
                let has_left = matches!(self.life, Life::Swept(swept) if at < swept);
                return (!has_left).then_some(address);
            }
            before += u64::from(stretch.blocks);
        }
        None
    }

    fn block_at(&self, address: u32) -> Option<u32> {
        self.stretches.iter().find_map(|stretch| stretch.block_at(address))
    }

    /// The block that is number `at` in the order of the stretches.
    pub fn block(&self, mut at: u64) -> Option<u32> {
        for stretch in &self.stretches {
            if at < u64::from(stretch.blocks) {
                return Some(stretch.first + at as u32);
            }
            at -= u64::from(stretch.blocks);
        }
        None
    }
}

/// An entry of a shadow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// Which snapshot, see [`Shadows::snapshot`].
    pub of: usize,
    pub address: u32,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadows {
    list: Vec<Snapshot>,
    /// There is room for the shadows of these, and no more is known of them.
    prepared: Vec<(u32, Vec<ShadowStretch>)>,
    /// What is a clone of a snapshot.
    pub clones: Clones,
    /// No other blocks are in any snapshot, or of a clone.
    first: u32,
    blocks: u32,
}

impl Shadows {
    /// Those of a root record; `None` if they cannot be of a device with so many logical blocks and so many entries
    /// in all.
    pub fn recovered(
        (records, clones): (&[SnapshotRecord], &[CloneRecord]),
        blocks: u32,
        entries: u32,
    ) -> Option<Self> {
        let mut shadows = Self::default();
        for record in records {
            let later = shadows.list.last().is_none_or(|last| last.cut <= record.cut);
            let fits = shadows.takes(record.number, &record.stretches, blocks)
                && record.stretches.iter().all(|it| it.shadow_end() <= Some(entries));
            if !later || !fits {
                return None;
            }
            shadows.list.push(Snapshot {
                number: record.number,
                cut: record.cut,
                life: if record.leaving { Life::Leaving } else { Life::Taken },
                stretches: record.stretches.clone(),
                held: 0,
            });
        }
        // Before they are looked at: a clone may have been made of a snapshot of another, and has no block that a snapshot of
        // before it has.
        for clone in clones {
            let alone = || {
                !shadows.knows(clone.number)
                    && clone.stretches.iter().all(|it| !shadows.clones.overlap(it.first, it.blocks))
            };
            let later = shadows.clones.list().last().is_none_or(|last| last.cut <= clone.cut);
            let of = |it: &ShadowStretch| {
                it.end().is_some_and(|end| end <= blocks)
                    && shadows.are_readable(it.shadow, it.blocks)
            };
            if !clone.stretches.iter().all(of) || !later || !alone() {
                return None;
            }
            shadows.clones.push(clone.clone());
        }
        shadows.bound();
        Some(shadows)
    }

    /// There are so many logical blocks more, behind which all addresses lie.
    pub fn shift(&mut self, blocks: u32) {
        let taken = self.list.iter_mut().flat_map(|snapshot| &mut snapshot.stretches);
        let prepared = self.prepared.iter_mut().flat_map(|(_, stretches)| stretches);
        let addressed = taken.chain(prepared).chain(self.clones.stretches_mut());
        addressed.for_each(|stretch| stretch.shadow += blocks);
    }

    /// What a root record says of them.
    pub fn records(&self) -> Vec<SnapshotRecord> {
        let record = |snapshot: &Snapshot| SnapshotRecord {
            number: snapshot.number,
            cut: snapshot.cut,
            leaving: snapshot.life != Life::Taken,
            stretches: snapshot.stretches.clone(),
        };
        self.list.iter().map(record).collect()
    }

    /// Whether no snapshot holds `lba`, nor is it of a clone, for all that one look can tell.
    #[inline]
    pub fn is_far(&self, lba: u32) -> bool {
        lba.wrapping_sub(self.first) >= self.blocks
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The snapshots that were taken, oldest first.
    pub fn list(&self) -> &[Snapshot] {
        &self.list
    }

    pub fn snapshot(&mut self, of: usize) -> &mut Snapshot {
        &mut self.list[of]
    }

    /// Those that were prepared.
    pub fn prepared(&self) -> &[(u32, Vec<ShadowStretch>)] {
        &self.prepared
    }

    /// Where `lba` is in the shadows of the snapshots from number `of` on, oldest first.
    pub fn from(&self, of: usize, lba: u32) -> impl DoubleEndedIterator<Item = Place> + '_ {
        let place = move |(of, snapshot): (usize, &Snapshot)| {
            snapshot.address_of(lba).map(|address| Place { of, address })
        };
        self.list.iter().enumerate().skip(of).filter_map(place)
    }

    /// Where `lba` is in the shadows of the snapshots that hold what had this sequence, oldest first: the first of
    /// these entries that says something has the version, if there are any; if none does, `lba` has it.
    pub fn since(&self, lba: u32, sequence: u64) -> impl Iterator<Item = Place> + '_ {
        self.from(self.list.partition_point(|snapshot| snapshot.cut <= sequence), lba)
    }

    /// Where `lba` is in the shadow of the newest snapshot that has it.
    pub fn newest(&self, lba: u32) -> Option<Place> {
        self.from(0, lba).next_back()
    }

    /// Where `lba` is in the shadow of the newest snapshot before number `of` that has it.
    pub fn older(&self, of: usize, lba: u32) -> Option<Place> {
        self.from(0, lba).take_while(|place| place.of < of).last()
    }

    /// The snapshot whose shadow has `address`, and the block.
    pub fn at(&self, address: u32) -> Option<(usize, u32)> {
        let mut list = self.list.iter().enumerate();
        list.find_map(|(of, snapshot)| Some((of, snapshot.block_at(address)?)))
    }

    /// Whether all these addresses are of one stretch of a snapshot that can be read.
    pub fn are_readable(&self, address: u32, blocks: u32) -> bool {
        let within = |stretch: &ShadowStretch| {
            let at = address.wrapping_sub(stretch.shadow);
            at < stretch.blocks && blocks <= stretch.blocks - at
        };
        let mut taken = self.list.iter().filter(|snapshot| snapshot.life == Life::Taken);
        taken.any(|snapshot| snapshot.stretches.iter().any(within))
    }

    /// Whether a snapshot could be made of these stretches, of a device of so many logical blocks.
    pub fn takes(&self, number: u32, stretches: &[ShadowStretch], blocks: u32) -> bool {
        let sound = |it: &ShadowStretch| {
            it.blocks > 0
                && it.end().is_some_and(|end| end <= blocks)
                && it.shadow >= blocks
                && it.shadow_end().is_some()
        };
        let mut others: Vec<&ShadowStretch> = self.stretches().collect();
        let free = |it: &ShadowStretch, other: &ShadowStretch| {
            it.shadow_end() <= Some(other.shadow) || other.shadow_end() <= Some(it.shadow)
        };
        for (at, stretch) in stretches.iter().enumerate() {
            let own = &stretches[..at];
            if !sound(stretch)
                || !others.iter().all(|other| free(stretch, other))
                || own.iter().any(|other| stretch.meets(other.first, other.blocks))
            {
                return false;
            }
            others.push(stretch);
        }
        (1..=STRETCHES_MAX).contains(&stretches.len()) && !self.knows(number)
    }

    /// Whether there is a snapshot of this number, be it prepared or leaving.
    pub fn knows(&self, number: u32) -> bool {
        self.list.iter().any(|snapshot| snapshot.number == number)
            || self.clones.numbered(number).is_some()
            || self.prepared.iter().any(|(of, _)| *of == number)
    }

    /// Whether the root record has room for one more of so many stretches.
    pub fn fits_record(&self, stretches: usize) -> bool {
        let all = self.list.iter().map(|snapshot| &snapshot.stretches);
        let all = all.chain(self.prepared.iter().map(|(_, stretches)| stretches));
        let all = all.chain(self.clones.list().iter().map(|clone| &clone.stretches));
        let bytes: usize = all.map(|stretches| SnapshotRecord::bytes_of(stretches.len())).sum();
        bytes + SnapshotRecord::bytes_of(stretches) <= SNAPSHOT_BYTES_MAX
    }

    /// Entries that are needed above those of `blocks` logical blocks.
    pub fn entries_needed(&self, blocks: u32) -> u32 {
        let ends = self.stretches().filter_map(ShadowStretch::shadow_end);
        ends.max().map_or(0, |end| end - blocks)
    }

    pub(super) fn stretches(&self) -> impl Iterator<Item = &ShadowStretch> {
        let prepared = self.prepared.iter().flat_map(|(_, stretches)| stretches);
        self.list.iter().flat_map(|snapshot| &snapshot.stretches).chain(prepared)
    }

    /// Keeps these addresses for the shadow of a snapshot.
    pub fn prepare(&mut self, number: u32, stretches: Vec<ShadowStretch>) {
        self.prepared.push((number, stretches));
    }

    /// The stretches that were prepared for a snapshot.
    pub fn unprepare(&mut self, number: u32) -> Option<Vec<ShadowStretch>> {
        let at = self.prepared.iter().position(|(of, _)| *of == number)?;
        Some(self.prepared.remove(at).1)
    }

    /// What these blocks hold is a snapshot; whatever comes has a sequence from `cut` on.
    pub fn take(&mut self, number: u32, cut: u64, stretches: Vec<ShadowStretch>) {
        self.list.push(Snapshot { number, cut, life: Life::Taken, stretches, held: 0 });
        self.bound();
    }

    /// The snapshot of this number that was taken and not given up.
    pub fn taken(&self, number: u32) -> Option<usize> {
        let is_it = |snapshot: &Snapshot| snapshot.number == number && snapshot.life == Life::Taken;
        self.list.iter().position(is_it)
    }

    /// One that was given up, if there is any.
    pub fn leaving(&self) -> Option<usize> {
        self.list.iter().position(|snapshot| snapshot.life != Life::Taken)
    }

    /// Blocks are leaving a shadow.
    pub fn are_swept(&self) -> bool {
        self.list.iter().any(|snapshot| matches!(snapshot.life, Life::Swept(_)))
    }

    /// Forgets a snapshot, whose shadow says nothing any more.
    pub fn forget(&mut self, of: usize) {
        self.list.remove(of);
        self.bound();
    }

    /// Slots in all shadows.
    pub fn held(&self) -> u64 {
        self.list.iter().map(|snapshot| snapshot.held).sum()
    }

    pub(super) fn bound(&mut self) {
        let snapshots = || self.list.iter().flat_map(|snapshot| &snapshot.stretches);
        let stretches = || snapshots().chain(self.clones.stretches());
        let first = stretches().map(|stretch| stretch.first).min().unwrap_or(0);
        let end = stretches().filter_map(ShadowStretch::end).max().unwrap_or(0);
        (self.first, self.blocks) = (first, end - first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(first: u32, blocks: u32, shadow: u32) -> ShadowStretch {
        ShadowStretch { first, blocks, shadow }
    }

    fn addresses(places: impl Iterator<Item = Place>) -> Vec<u32> {
        places.map(|place| place.address).collect()
    }

    #[test]
    fn a_version_is_looked_for_in_the_snapshots_that_were_taken_after_it() {
        let mut shadows = Shadows::default();
        assert!(shadows.is_far(0) && shadows.is_far(u32::MAX));
        shadows.take(1, 10, vec![stretch(0, 8, 100), stretch(20, 4, 108)]);
        shadows.take(2, 20, vec![stretch(4, 8, 120)]);
        shadows.take(3, 30, vec![stretch(0, 8, 140)]);
        assert!(!shadows.is_far(0) && !shadows.is_far(23) && shadows.is_far(24));
        assert_eq!(addresses(shadows.since(5, 9)), [105, 121, 145]);
        assert_eq!(
            addresses(shadows.since(5, 10)),
            [121, 145],
            "what came with the cut is not in it"
        );
        assert_eq!(addresses(shadows.since(5, 30)), [0; 0]);
        assert_eq!(addresses(shadows.since(2, 12)), [142], "the second one has not got it");
        assert_eq!(shadows.newest(22), Some(Place { of: 0, address: 110 }));
        assert_eq!(shadows.older(2, 3), Some(Place { of: 0, address: 103 }));
        assert_eq!(shadows.at(109), Some((0, 21)));
        assert_eq!(shadows.at(119), None);
    }

    #[test]
    fn what_has_left_a_shadow_is_not_there() {
        let mut shadows = Shadows::default();
        shadows.take(1, 10, vec![stretch(0, 8, 100), stretch(20, 4, 108)]);
        shadows.snapshot(0).life = Life::Swept(9);
        assert_eq!((shadows.newest(7), shadows.newest(20)), (None, None));
        assert_eq!(shadows.newest(21), Some(Place { of: 0, address: 109 }));
        assert!(!shadows.are_readable(109, 1), "nor is it read");
    }

    #[test]
    fn shadows_have_no_address_in_common_and_lie_above_the_blocks() {
        let mut shadows = Shadows::default();
        shadows.prepare(1, vec![stretch(0, 10, 100)]);
        let takes = |stretches: &[ShadowStretch]| shadows.takes(2, stretches, 100);
        assert!(takes(&[stretch(0, 10, 110), stretch(50, 50, 120)]));
        assert!(!takes(&[]) && !takes(&[stretch(0, 0, 110)]));
        assert!(!takes(&[stretch(0, 10, 109)]), "another's");
        assert!(!takes(&[stretch(0, 10, 110), stretch(20, 10, 119)]), "its own");
        assert!(!takes(&[stretch(0, 10, 110), stretch(9, 10, 120)]), "a block twice");
        assert!(!takes(&[stretch(0, 10, 90)]), "not above");
        assert!(!takes(&[stretch(95, 10, 110)]), "no such block");
        assert!(!takes(&[stretch(0, 10, u32::MAX - 5)]));
        assert!(!shadows.takes(1, &[stretch(0, 10, 110)], 100), "the number is taken");
        assert_eq!(shadows.entries_needed(100), 10);
    }

    #[test]
    fn records_are_what_they_were_made_of() {
        let mut shadows = Shadows::default();
        shadows.take(1, 10, vec![stretch(0, 8, 100)]);
        shadows.take(4, 20, vec![stretch(0, 8, 108)]);
        shadows.snapshot(0).life = Life::Leaving;
        let records = shadows.records();
        let clone = |cut, first, shadow| CloneRecord {
            number: 5,
            cut,
            stretches: vec![stretch(first, 8, shadow)],
        };
        let recovered = |records: &[SnapshotRecord], clones: &[CloneRecord], entries| {
            Shadows::recovered((records, clones), 100, entries)
        };
        let found = recovered(&records, &[clone(30, 50, 108)], 116).expect("they are sound");
        assert_eq!(found.records(), records);
        assert_eq!(found.clones.list(), [clone(30, 50, 108)]);
        assert!(recovered(&records, &[clone(30, 50, 100)], 116).is_none(), "of one that leaves");
        assert!(recovered(&records, &[clone(30, 93, 108)], 116).is_none(), "no such blocks");
        assert!(recovered(&records, &[], 115).is_none(), "beyond the entries");
        let turned: Vec<_> = records.into_iter().rev().collect();
        assert!(recovered(&turned, &[], 116).is_none(), "not in their order");
    }
}
