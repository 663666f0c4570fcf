//! Damage, done to a medium behind the back of whoever uses it.

use super::kinds::{Field, Harm};
use crate::medium::{Content, Mask, SimMedium};
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, Random, SlotId};
use ftl::format::{Header, decode_header, encode_header};
use std::sync::Arc;

/// Where content comes from that does not belong where it is put.
pub(super) struct Sources {
    /// The device at earlier moments, oldest first.
    pub older: Vec<SimMedium>,
    /// Another device of the same shape.
    pub foreign: SimMedium,
    /// The device at an earlier moment, which lived on by itself since.
    pub clone: SimMedium,
    pub uuid_crc: u32,
}

/// What was there before a moment, and what was elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    pub sources: &'a Sources,
    /// So many of the earlier moments are before this one.
    pub older: usize,
}

impl Past<'_> {
    /// The earlier moments, the latest first.
    fn moments(&self) -> impl Iterator<Item = &SimMedium> {
        self.sources.older[..self.older].iter().rev()
    }
}

/// The slots of the page of `slot`.
pub(super) fn page_of(geometry: &Geometry, slot: SlotId) -> Vec<SlotId> {
    let first = slot.0 - geometry.slot_in_page(slot);
    (first..first + geometry.slots_per_page).map(SlotId).collect()
}

/// `pages` pages from that of `slot` on, as far as its block goes.
pub(super) fn pages_of(geometry: &Geometry, slot: SlotId, pages: u32) -> Vec<SlotId> {
    let block = geometry.block_of(slot);
    let first = geometry.page_in_block(slot);
    let end = (first + pages).min(geometry.pages_per_block);
    (first..end).flat_map(|page| page_of(geometry, geometry.slot(block, page, 0))).collect()
}

/// The slots of a block.
pub(super) fn band_of(geometry: &Geometry, block: BlockId) -> Vec<SlotId> {
    pages_of(geometry, geometry.slot(block, 0, 0), geometry.pages_per_block)
}

/// Does `harm` to `slots`; false if everything reads as before.
pub(super) fn apply(
    harm: Harm,
    slots: &[SlotId],
    medium: &mut SimMedium,
    past: Past<'_>,
    random: &mut Random,
) -> bool {
    let geometry = *medium.geometry();
    if harm.is_of_record() {
        return damage_record(harm, geometry.block_of(slots[0]), medium, past, random);
    }
    let before: Vec<_> = slots.iter().map(|&slot| shows(medium, slot)).collect();
    let distance = other_place(medium, slots, random);
    for &slot in slots {
        damage_slot(harm, slot, distance, medium, past, random);
    }
    slots.iter().zip(before).any(|(&slot, before)| shows(medium, slot) != before)
}

/// What a read of a slot finds.
pub(super) fn shows(medium: &SimMedium, slot: SlotId) -> (bool, Option<(Oob, Content)>) {
    (medium.is_readable(slot), medium.peek(slot))
}

/// Slots, from the first of `slots` on, to another one that was written.
fn other_place(medium: &SimMedium, slots: &[SlotId], random: &mut Random) -> u32 {
    let all = medium.geometry().slots() as u32;
    let candidates = (0..16).map(|_| random.below(u64::from(all)) as u32);
    let found = candidates.filter(|&at| medium.peek(SlotId(at)).is_some() && at != slots[0].0);
    let at = found.last().unwrap_or(0);
    (at + all - slots[0].0) % all
}

fn damage_slot(
    harm: Harm,
    slot: SlotId,
    distance: u32,
    medium: &mut SimMedium,
    past: Past<'_>,
    random: &mut Random,
) {
    let all = medium.geometry().slots() as u32;
    let of = |source: &SimMedium| source.peek(slot).filter(|_| source.is_readable(slot));
    let found = match harm {
        Harm::Erased | Harm::Unreadable => {
            let mask = if harm == Harm::Erased { Mask::Erased } else { Mask::Unreadable };
            return medium.mask(slot, mask);
        }
        Harm::Data => medium.peek(slot).map(|(oob, content)| (oob, flipped(content, random))),
        Harm::Oob(field) => {
            medium.peek(slot).map(|(oob, content)| (flipped_field(oob, field, random), content))
        }
        Harm::Zeroed => Some(([0; OOB_BYTES], Content::Empty)),
        Harm::Scrambled => {
            Some((std::array::from_fn(|_| random.next_u64() as u8), noise(medium, slot, random)))
        }
        Harm::Stale => {
            let now = of(medium);
            // The latest moment at which it held something else.
            let older = past.moments().map(of).find(|then| *then != now);
            let Some(then) = older else { return };
            if then.is_none() {
                return medium.mask(slot, Mask::Erased);
            }
            then
        }
        Harm::Moved => medium.peek(SlotId((slot.0 + distance) % all)),
        Harm::Foreign => of(&past.sources.foreign),
        Harm::Cloned => of(&past.sources.clone),
        Harm::Readdressed => {
            readdressed(medium, SlotId((slot.0 + distance) % all), slot, past.sources.uuid_crc)
        }
        Harm::PointerSmall | Harm::PointerLarge | Harm::PointerStale | Harm::EraseCount => None,
    };
    if let Some((oob, content)) = found {
        medium.damage(slot, oob, content);
    }
}

fn flipped(content: Content, random: &mut Random) -> Content {
    match content {
        Content::Stamp(stamp) => Content::Stamp(stamp ^ 1 << random.below(64)),
        Content::Empty => Content::Stamp(1 << random.below(64)),
        Content::Meta(mut bytes) => {
            let at = random.below(BLOCK_BYTES as u64) as usize;
            Arc::make_mut(&mut bytes)[at] ^= 1 << random.below(8);
            Content::Meta(bytes)
        }
    }
}

fn flipped_field(mut oob: Oob, field: Field, random: &mut Random) -> Oob {
    let bytes = field.bytes();
    let at = bytes.start + random.below(bytes.len() as u64) as usize;
    oob[at] ^= 1 << random.below(8);
    oob
}

/// Bytes where the FTL's own bytes are, else a stamp that no block has.
fn noise(medium: &SimMedium, slot: SlotId, random: &mut Random) -> Content {
    match medium.peek(slot) {
        Some((_, Content::Meta(_))) => {
            let mut bytes = Box::new([0; BLOCK_BYTES]);
            bytes.fill_with(|| random.next_u64() as u8);
            Content::Meta(Arc::from(bytes))
        }
        _ => Content::Stamp(random.next_u64() | 1 << 63),
    }
}

/// What slot `from` holds, with a header that is right for `slot`.
fn readdressed(
    medium: &SimMedium,
    from: SlotId,
    slot: SlotId,
    uuid_crc: u32,
) -> Option<(Oob, Content)> {
    let (oob, content) = medium.peek(from)?;
    let header = decode_header(&oob, from, uuid_crc)?;
    let own = decode_header(&medium.peek(slot)?.0, slot, uuid_crc)?;
    let header = Header { order: own.order, ..header };
    Some((encode_header(&header, slot, uuid_crc), content))
}

/// What the medium keeps of a block becomes wrong.
fn damage_record(
    harm: Harm,
    block: BlockId,
    medium: &mut SimMedium,
    past: Past<'_>,
    random: &mut Random,
) -> bool {
    let geometry = *medium.geometry();
    let Some(mut record) = medium.record(block) else { return false };
    let before = record;
    let whole = geometry.pages_per_block
        * if geometry.is_fast(block) { geometry.slots_per_page } else { 1 };
    match harm {
        Harm::PointerSmall if record.write_pointer > 0 => {
            record.write_pointer -= 1 + random.below(record.write_pointer.into()) as u32;
        }
        Harm::PointerLarge if record.write_pointer < whole => {
            let room = whole - record.write_pointer;
            record.write_pointer += 1 + random.below(room.into()) as u32;
        }
        Harm::PointerStale => {
            let mut older = past.moments().filter_map(|older| older.record(block));
            match older.find(|older| older.write_pointer != record.write_pointer) {
                Some(older) => record = older,
                None => return false,
            }
        }
        Harm::EraseCount => {
            record.erase_count = [0, record.erase_count + 1000, 1 << 31][random.below(3) as usize];
        }
        _ => {}
    }
    // The tail counts back from the write pointer.
    record.damaged_tail = 0;
    medium.restore_record(block, record);
    record != before
}
