//! Snapshots and clones, as a root record has them.

use super::{MASK_48, u32_at, u64_at};

/// Most bytes that the snapshots and clones of a device take in a root record: 12 for each, and 12 for each of its
/// stretches.
pub const SNAPSHOT_BYTES_MAX: usize = 900;

/// What a snapshot takes beside its stretches, and what a stretch takes.
const RECORD_BYTES: usize = 12;
const STRETCH_BYTES: usize = 12;

/// Bit of a record: the snapshot was given up, and what its shadow has is nobody's.
const LEAVING: u8 = 1;
/// Bit of a record: it is a clone, and its stretches name what its blocks are clones of.
const CLONE: u8 = 2;

/// Blocks of a volume, and where their shadow lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShadowStretch {
    /// The first logical block.
    pub first: u32,
    /// How many.
    pub blocks: u32,
    /// The address of the shadow of the first one; the others follow.
    pub shadow: u32,
}

impl ShadowStretch {
    /// The address of the shadow of `lba`, if it is one of these blocks.
    pub(crate) fn shadow_of(&self, lba: u32) -> Option<u32> {
        let at = lba.wrapping_sub(self.first);
        (at < self.blocks).then(|| self.shadow + at)
    }

    /// The block whose shadow lies at `address`, if that is here.
    pub(crate) fn block_at(&self, address: u32) -> Option<u32> {
        let at = address.wrapping_sub(self.shadow);
        (at < self.blocks).then(|| self.first + at)
    }

    /// Whether some of `blocks` blocks from `first` on are of these.
    pub fn meets(&self, first: u32, blocks: u32) -> bool {
        let (own, end) = (u64::from(self.first), u64::from(first) + u64::from(blocks));
        own < end && u64::from(first) < own + u64::from(self.blocks)
    }

    /// The first address behind the shadow, if there is one.
    pub(crate) fn shadow_end(&self) -> Option<u32> {
        self.shadow.checked_add(self.blocks)
    }

    /// The first block behind these, if there is one.
    pub(crate) fn end(&self) -> Option<u32> {
        self.first.checked_add(self.blocks)
    }
}

/// A snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SnapshotRecord {
    /// What the owner calls it.
    pub number: u32,
    /// It holds what had a sequence below this.
    pub cut: u64,
    /// It was given up.
    pub leaving: bool,
    /// Its blocks and their shadows.
    pub stretches: Vec<ShadowStretch>,
}

/// Blocks that are as a snapshot has them until they are written or trimmed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CloneRecord {
    /// What the owner calls it; no snapshot has this number.
    pub number: u32,
    /// It began with this sequence: what has an older one is of another life of its blocks.
    pub cut: u64,
    /// Its blocks, and in place of shadows the addresses of the snapshot that they are clones of.
    pub stretches: Vec<ShadowStretch>,
}

impl SnapshotRecord {
    /// Bytes that a snapshot, or a clone, of so many stretches takes.
    pub(crate) fn bytes_of(stretches: usize) -> usize {
        RECORD_BYTES + STRETCH_BYTES * stretches
    }
}

/// The records as bytes.
pub(super) fn encode(snapshots: &[SnapshotRecord], clones: &[CloneRecord]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for SnapshotRecord { number, cut, leaving, stretches } in snapshots {
        let flags = if *leaving { LEAVING } else { 0 };
        push((*number, *cut, flags), stretches, &mut bytes);
    }
    for CloneRecord { number, cut, stretches } in clones {
        push((*number, *cut, CLONE), stretches, &mut bytes);
    }
    bytes
}

fn push((number, cut, flags): (u32, u64, u8), stretches: &[ShadowStretch], bytes: &mut Vec<u8>) {
    bytes.extend(number.to_le_bytes());
    bytes.extend(&(cut & MASK_48).to_le_bytes()[..6]);
    bytes.push(flags);
    bytes.push(stretches.len() as u8);
    for stretch in stretches {
        bytes.extend(stretch.first.to_le_bytes());
        bytes.extend(stretch.blocks.to_le_bytes());
        bytes.extend(stretch.shadow.to_le_bytes());
    }
}

/// The records of `bytes`; `None` if these are something else.
pub(super) fn decode(mut bytes: &[u8]) -> Option<(Vec<SnapshotRecord>, Vec<CloneRecord>)> {
    let (mut snapshots, mut clones) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let (record, rest) = bytes.split_at_checked(RECORD_BYTES)?;
        let (stretches, rest) = rest.split_at_checked(STRETCH_BYTES * usize::from(record[11]))?;
        let stretch = |bytes: &[u8]| ShadowStretch {
            first: u32_at(bytes, 0),
            blocks: u32_at(bytes, 4),
            shadow: u32_at(bytes, 8),
        };
        let stretches = stretches.chunks_exact(STRETCH_BYTES).map(stretch).collect();
        let (number, cut) = (u32_at(record, 0), u64_at(record, 4) & MASK_48);
        if record[10] & CLONE != 0 {
            clones.push(CloneRecord { number, cut, stretches });
        } else {
            let leaving = record[10] & LEAVING != 0;
            snapshots.push(SnapshotRecord { number, cut, leaving, stretches });
        }
        bytes = rest;
    }
    Some((snapshots, clones))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_v5_snapshot_bytes() {
        let stretch = ShadowStretch { first: 0x0403_0201, blocks: 0x14, shadow: 0x2403_0201 };
        let record = SnapshotRecord {
            number: 7,
            cut: 0x0000_a1a2_a3a4_a5a6,
            leaving: true,
            stretches: vec![stretch],
        };
        let bytes = encode(std::slice::from_ref(&record), &[]);
        let expected = [
            7, 0, 0, 0, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 1, 1, 1, 2, 3, 4, 0x14, 0, 0, 0, 1, 2,
            3, 0x24,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(bytes.len(), SnapshotRecord::bytes_of(1));
        assert_eq!(decode(&bytes), Some((vec![record], vec![])));
        assert_eq!(decode(&bytes[..23]), None, "cut short");
        assert_eq!(decode(&[]), Some((Vec::new(), Vec::new())));
    }

    #[test]
    fn format_v6_clone_bytes() {
        let stretch = ShadowStretch { first: 0x0403_0201, blocks: 0x14, shadow: 0x2403_0201 };
        let clone = CloneRecord { number: 9, cut: 0xb1, stretches: vec![stretch] };
        let bytes = encode(&[], std::slice::from_ref(&clone));
        let expected =
            [9, 0, 0, 0, 0xb1, 0, 0, 0, 0, 0, 2, 1, 1, 2, 3, 4, 0x14, 0, 0, 0, 1, 2, 3, 0x24];
        assert_eq!(bytes, expected);
        assert_eq!(decode(&bytes), Some((vec![], vec![clone])));
    }

    #[test]
    fn a_stretch_tells_which_block_is_whose_shadow() {
        let stretch = ShadowStretch { first: 10, blocks: 5, shadow: 100 };
        assert_eq!((stretch.shadow_of(10), stretch.shadow_of(14)), (Some(100), Some(104)));
        assert_eq!((stretch.shadow_of(9), stretch.shadow_of(15)), (None, None));
        assert_eq!((stretch.block_at(104), stretch.block_at(105)), (Some(14), None));
        assert!(stretch.meets(14, 1) && stretch.meets(0, 11) && stretch.meets(12, u32::MAX));
        assert!(!stretch.meets(15, 1) && !stretch.meets(0, 10));
    }
}
