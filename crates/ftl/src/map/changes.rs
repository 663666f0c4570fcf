//! Changes of the map since the last complete checkpoint, of the blocks whose piece is not in DRAM.
//!
//! Six bytes a change: the blocks of a group share one sorted list, so that a block's number in it
//! fits a `u16` beside the change's *round* (see `cached`).
//!
//! Invariant: the records of a group ascend by block, and no block has two.

use std::ops::Range;

/// A list holds the changes of so many blocks, as a power of two. Wide, as an empty list costs 24
/// bytes; not wider, as a record is put between others by moving these.
const GROUP_SHIFT: u32 = 13;

/// In a record's first word, above the block's number in its group: the round.
const ROUND: u16 = 1 << GROUP_SHIFT;

/// Words of a record: block and round, low and high half of the entry.
const WORDS: usize = 3;

/// Records that a list grows by at least.
const GROWTH: usize = 4;

/// What a list takes beyond its records.
const LIST_BYTES: usize = size_of::<Vec<u16>>();

/// Blocks that a list covers. Pieces never lie across two lists.
pub(super) const GROUP_BLOCKS: u32 = 1 << GROUP_SHIFT;

/// One change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Change {
    pub lba: u32,
    pub entry: u32,
    pub round: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Changes {
    groups: Vec<Vec<u16>>,
    /// Bytes of the lists' records, used or not.
    bytes: u64,
}

impl Changes {
    pub fn new(blocks: u32) -> Self {
        Self { groups: vec![Vec::new(); blocks.div_ceil(GROUP_BLOCKS) as usize], bytes: 0 }
    }

    /// Bytes of DRAM that lists without records take for so many blocks.
    pub fn bytes_min(blocks: u32) -> u64 {
        u64::from(blocks.div_ceil(GROUP_BLOCKS)) * LIST_BYTES as u64
    }

    /// Bytes of DRAM behind the records.
    pub fn record_bytes(&self) -> u64 {
        self.bytes
    }

    pub fn groups(&self) -> u32 {
        self.groups.len() as u32
    }

    #[cfg(test)]
    pub fn get(&self, lba: u32) -> Option<u32> {
        self.of(lba..lba + 1).next().map(|change| change.entry)
    }

    /// The changes of `blocks`, which lie in one group.
    pub fn of(&self, blocks: Range<u32>) -> impl Iterator<Item = Change> + '_ {
        let group = blocks.start / GROUP_BLOCKS;
        let list = &self.groups[group as usize];
        let records = records(list, &blocks);
        list[WORDS * records.start..WORDS * records.end]
            .chunks_exact(WORDS)
            .map(move |record| decode(group, record))
    }

    /// `lba` holds `entry` now.
    pub fn set(&mut self, change: Change) {
        let Change { lba, .. } = change;
        self.replace(lba..lba + 1, 1, std::iter::once(change));
    }

    /// Puts `count` changes, ascending, in place of those of `blocks`, which lie in one group.
    pub fn replace(
        &mut self,
        blocks: Range<u32>,
        count: usize,
        changes: impl Iterator<Item = Change>,
    ) {
        let list = &mut self.groups[(blocks.start / GROUP_BLOCKS) as usize];
        let before = list.capacity();
        let records = records(list, &blocks);
        let longer = (list.len() + WORDS * count).saturating_sub(WORDS * records.len());
        if longer > list.capacity() {
            let more = longer - list.len();
            list.reserve_exact(more.max(WORDS * GROWTH).max(list.len() / 8));
        }
        list.splice(WORDS * records.start..WORDS * records.end, changes.flat_map(encode));
        shrink(list);
        self.bytes = self.bytes - 2 * before as u64 + 2 * list.capacity() as u64;
    }

    /// Forgets the changes of `blocks`, which lie in one group.
    pub fn remove(&mut self, blocks: Range<u32>) {
        self.replace(blocks, 0, std::iter::empty());
    }

    /// Forgets the changes of one round in a group.
    pub fn forget_round(&mut self, group: u32, round: u8) {
        let list = &mut self.groups[group as usize];
        let before = list.capacity();
        let mut kept = 0;
        for at in (0..list.len()).step_by(WORDS) {
            if round_of(list[at]) != round {
                list.copy_within(at..at + WORDS, kept);
                kept += WORDS;
            }
        }
        list.truncate(kept);
        shrink(list);
        self.bytes = self.bytes - 2 * before as u64 + 2 * list.capacity() as u64;
    }

    /// All changes become those of one round.
    pub fn join_rounds(&mut self, round: u8) {
        for record in self.groups.iter_mut().flat_map(|list| list.chunks_exact_mut(WORDS)) {
            record[0] = record[0] % ROUND + ROUND * u16::from(round);
        }
    }
}

/// The records of `blocks` in their group's list, by number.
fn records(list: &[u16], blocks: &Range<u32>) -> Range<usize> {
    let first = (blocks.start % GROUP_BLOCKS) as u16;
    let end = first + (blocks.end - blocks.start) as u16;
    find(list, first)..find(list, end)
}

/// The first record whose block is not before `index`.
fn find(list: &[u16], index: u16) -> usize {
    let (mut low, mut high) = (0, list.len() / WORDS);
    while low < high {
        let middle = low.midpoint(high);
        if list[WORDS * middle] % ROUND < index {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Gives back what a list does not need.
fn shrink(list: &mut Vec<u16>) {
    let needed = list.len() + WORDS * 2 * GROWTH + list.len() / 4;
    if list.capacity() > needed || list.is_empty() {
        list.shrink_to_fit();
    }
}

fn round_of(word: u16) -> u8 {
    (word / ROUND) as u8
}

fn encode(change: Change) -> [u16; WORDS] {
    let index = (change.lba % GROUP_BLOCKS) as u16;
    let first = index + ROUND * u16::from(change.round);
    [first, change.entry as u16, (change.entry >> 16) as u16]
}

fn decode(group: u32, record: &[u16]) -> Change {
    Change {
        lba: group * GROUP_BLOCKS + u32::from(record[0] % ROUND),
        entry: u32::from(record[1]) | u32::from(record[2]) << 16,
        round: round_of(record[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;
    use std::collections::BTreeMap;

    #[test]
    fn changes_are_those_of_an_ordered_map() {
        let blocks = 3 * GROUP_BLOCKS;
        let mut random = Random::new(3);
        let (mut changes, mut model) = (Changes::new(blocks), BTreeMap::new());
        for step in 0..20_000u32 {
            let lba = random.below(u64::from(blocks / 8)) as u32 * 7 % blocks;
            let round = random.below(2) as u8;
            let first = lba / 64 * 64;
            match random.below(40) {
                0 => {
                    let group = lba / GROUP_BLOCKS;
                    changes.forget_round(group, round);
                    model.retain(|&lba, &mut (_, of)| lba / GROUP_BLOCKS != group || of != round);
                }
                1 => {
                    changes.remove(first..first + 64);
                    model.retain(|lba, _| !(first..first + 64).contains(lba));
                }
                2 => {
                    let new: Vec<_> = (first..first + 64)
                        .step_by(3)
                        .map(|lba| Change { lba, entry: step, round })
                        .collect();
                    changes.replace(first..first + 64, new.len(), new.iter().copied());
                    model.retain(|lba, _| !(first..first + 64).contains(lba));
                    model.extend(new.iter().map(|change| (change.lba, (step, round))));
                }
                3 if step % 50 == 0 => {
                    changes.join_rounds(round);
                    model.values_mut().for_each(|entry| entry.1 = round);
                }
                _ => {
                    changes.set(Change { lba, entry: step << 16 | lba, round });
                    model.insert(lba, (step << 16 | lba, round));
                }
            }
            assert_eq!(changes.get(lba), model.get(&lba).map(|entry| entry.0), "step {step}");
        }
        let all = (0..3).flat_map(|group| {
            let first = group * GROUP_BLOCKS;
            changes.of(first..first + GROUP_BLOCKS).collect::<Vec<_>>()
        });
        let all: Vec<_> = all.map(|change| (change.lba, (change.entry, change.round))).collect();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        let capacity: usize = changes.groups.iter().map(Vec::capacity).sum();
        assert_eq!(changes.record_bytes(), 2 * capacity as u64);
    }

    #[test]
    fn many_changes_take_about_six_bytes_each() {
        let mut changes = Changes::new(1 << 20);
        let mut random = Random::new(1);
        for entry in 0..1 << 17 {
            changes.set(Change { lba: random.below(1 << 20) as u32, entry, round: 0 });
        }
        let count: usize = changes.groups.iter().map(|list| list.len() / WORDS).sum();
        let bytes = changes.record_bytes() as f64 / count as f64;
        assert!((6.0..8.0).contains(&bytes), "{bytes} bytes a change");
    }
}
