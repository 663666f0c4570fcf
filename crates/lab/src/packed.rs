//! Content by slot for large devices: ten bytes a slot in place of an OOB of 32 and a stamp.
//!
//! A measurement writes blocks whose stamp is their address. Of such a slot all follows from its
//! logical block, sequence and order; the latter two are kept as distances from the block's first
//! slot. Whatever is not like that (records, the FTL's own bytes, damage) is kept whole beside it, so
//! what is read is what was programmed, to the bit; but for what a slot says of others, which recovery
//! alone looks at, and only after a power cut.
//!
//! Invariant: a slot whose ten bytes are [`OTHER`] is in `others`, or was never programmed. Of any
//! other slot an entry in `others` means nothing.

use crate::medium::{Content, stamp_crc};
use flash::{BlockId, Geometry, Oob, SlotId};
use ftl::format::{Header, Kind, decode_header, encode_header};
use std::borrow::Cow;

/// Bytes of a slot.
const SLOT_BYTES: usize = 10;

/// Bits of the distance from the first order of the block.
const ORDER_BITS: u32 = 22;

/// The slot is kept whole. No distance of orders is that large.
const OTHER: [u8; SLOT_BYTES] = [0xff; SLOT_BYTES];

#[derive(Clone, Debug, Default)]
struct Block {
    /// Order and sequence of the first slot that came packed; distances are from here.
    base: Option<(u64, u64)>,
    slots: Vec<[u8; SLOT_BYTES]>,
    /// By place in the block, those kept whole; ascending.
    others: Vec<(u32, Box<(Oob, Content)>)>,
}

/// See the head of this file. Used like [`nand::Store`].
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    slots_per_block: u32,
    lba_bits: u32,
    uuid_crc: u32,
    blocks: Vec<Block>,
}

impl Packed {
    /// An empty store for a medium of this shape, whose FTL is formatted with `uuid`.
    pub fn new(geometry: Geometry, uuid: u128) -> Self {
        Self {
            slots_per_block: geometry.slots_per_block(),
            lba_bits: 64 - geometry.slots().leading_zeros(),
            uuid_crc: ftl::format::uuid_crc(uuid),
            blocks: vec![Block::default(); geometry.blocks() as usize],
        }
    }

    /// Puts content into a slot of the medium.
    pub fn program(&mut self, slot: SlotId, oob: Oob, content: Content) {
        let (index, place) = self.place(slot);
        let header = self.regular(slot, &oob, &content);
        let lba_bits = self.lba_bits;
        let block = &mut self.blocks[index];
        let packed = header.and_then(|header| block.pack(&header, lba_bits));
        if packed.is_none() {
            block.keep_whole(place, (oob, content));
        }
        let packed = packed.unwrap_or(OTHER);
        match block.slots.get_mut(place as usize) {
            Some(slot) => *slot = packed,
            None => {
                block.slots.reserve_exact(self.slots_per_block as usize - block.slots.len());
                // A program before this one may have failed.
                block.slots.resize(place as usize, OTHER);
                block.slots.push(packed);
            }
        }
    }

    /// The content of a slot, if there is any.
    pub fn read(&self, slot: SlotId) -> Option<(Oob, Cow<'_, Content>)> {
        let (index, place) = self.place(slot);
        let block = self.blocks.get(index)?;
        let packed = block.slots.get(place as usize)?;
        if *packed == OTHER {
            let found = block.others.binary_search_by_key(&place, |other| other.0).ok()?;
            let (oob, content) = &*block.others[found].1;
            return Some((*oob, Cow::Borrowed(content)));
        }
        let header = block.unpack(packed, self.lba_bits);
        let content = Content::Stamp(header.lba.into());
        Some((encode_header(&header, slot, self.uuid_crc), Cow::Owned(content)))
    }

    /// Brings what a slot holds into the processor's cache.
    pub fn warm(&self, slot: SlotId) {
        let (index, place) = self.place(slot);
        let slots = self.blocks.get(index).map(|block| &block.slots);
        std::hint::black_box(slots.and_then(|slots| slots.get(place as usize)).map(|slot| slot[0]));
    }

    /// Drops the content of a block.
    pub fn erase(&mut self, block: BlockId) {
        let block = &mut self.blocks[block.0 as usize];
        block.base = None;
        block.slots.clear();
        block.others.clear();
    }

    /// The header of a slot that says nothing beyond lba, sequence and order.
    fn regular(&self, slot: SlotId, oob: &Oob, content: &Content) -> Option<Header> {
        let Content::Stamp(stamp) = content else { return None };
        let header = decode_header(oob, slot, self.uuid_crc)?;
        let header = Header { watermark: 0, vouches: None, ..header };
        let regular = regular(header.lba, header.sequence, header.order);
        (header == regular && *stamp == u64::from(header.lba)).then_some(header)
    }

    fn place(&self, slot: SlotId) -> (usize, u32) {
        let block = slot.0 / self.slots_per_block;
        (block as usize, slot.0 - block * self.slots_per_block)
    }
}

/// What all regular slots have in common.
fn regular(lba: u32, sequence: u64, order: u64) -> Header {
    let payload_crc = stamp_crc(lba.into());
    let (kind, argument, group) = (Kind::Data, 0, (0, 0));
    let (watermark, vouches) = (0, None);
    Header { kind, lba, sequence, order, payload_crc, argument, group, watermark, vouches }
}

impl Block {
    /// From the lowest bit: lba, distance of orders, distance of sequences.
    fn pack(&mut self, header: &Header, lba_bits: u32) -> Option<[u8; SLOT_BYTES]> {
        let (order, sequence) = *self.base.get_or_insert((header.order, header.sequence));
        let orders = header.order.checked_sub(order)?;
        let sequences = header.sequence.wrapping_sub(sequence) as i64;
        let sequence_bits = 8 * SLOT_BYTES as u32 - lba_bits - ORDER_BITS;
        let fits = header.lba >> (lba_bits - 1) <= 1
            && orders < (1 << ORDER_BITS) - 1
            && sequences.unsigned_abs() < 1 << (sequence_bits - 1);
        let sequences = sequences as u128 & ((1 << sequence_bits) - 1);
        let bits = u128::from(header.lba)
            | u128::from(orders) << lba_bits
            | sequences << (lba_bits + ORDER_BITS);
        let mut packed = [0; SLOT_BYTES];
        packed.copy_from_slice(&bits.to_le_bytes()[..SLOT_BYTES]);
        fits.then_some(packed)
    }

    fn unpack(&self, packed: &[u8; SLOT_BYTES], lba_bits: u32) -> Header {
        let (order, sequence) = self.base.expect("something was packed");
        let mut bytes = [0; 16];
        bytes[..SLOT_BYTES].copy_from_slice(packed);
        let bits = u128::from_le_bytes(bytes);
        let lba = (bits & ((1 << lba_bits) - 1)) as u32;
        let orders = (bits >> lba_bits) as u64 & ((1 << ORDER_BITS) - 1);
        // The sign is the highest bit.
        let unused = 128 - 8 * SLOT_BYTES as u32;
        let sequences = ((bits << unused) as i128 >> (unused + lba_bits + ORDER_BITS)) as i64;
        regular(lba, sequence.wrapping_add_signed(sequences), order + orders)
    }

    fn keep_whole(&mut self, place: u32, content: (Oob, Content)) {
        match self.others.binary_search_by_key(&place, |other| other.0) {
            Ok(found) => *self.others[found].1 = content,
            Err(at) => self.others.insert(at, (place, Box::new(content))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OTHER, Packed, regular};
    use crate::medium::{Content, stamp_crc};
    use flash::{BlockId, FastTier, Geometry, Pairing, Random, SlotId};
    use ftl::format::{Kind, encode_header, uuid_crc};
    use nand::Store;
    use std::sync::Arc;

    const UUID: u128 = 7;

    fn geometry(blocks_per_unit: u32) -> Geometry {
        Geometry {
            units: 4,
            blocks_per_unit,
            pages_per_block: 16,
            slots_per_page: 4,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 1,
            endurance: 1,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        }
    }

    /// Anything that may lie in a slot, most of it regular.
    fn draw(random: &mut Random, slot: SlotId, geometry: &Geometry) -> (flash::Oob, Content) {
        let lba = random.below(geometry.slots()) as u32;
        let far = if random.chance(0.1) { 1 << 40 } else { 1000 };
        let mut header = regular(lba, 1 + random.below(far), 1 + random.below(far));
        let mut stamp = u64::from(lba);
        match random.below(20) {
            0 => header.kind = Kind::Poison,
            1 => header.group = (0, 3),
            2 => (header.kind, header.argument) = (Kind::Trim, 5),
            3 => header.lba = u32::MAX - 3,
            4 => stamp = random.next_u64(),
            _ => {}
        }
        if random.chance(0.5) {
            header.payload_crc = stamp_crc(stamp);
        }
        let content = match random.below(20) {
            0 => Content::Empty,
            1 => Content::Meta(Arc::new([random.below(256) as u8; flash::BLOCK_BYTES])),
            _ => Content::Stamp(stamp),
        };
        let mut oob = encode_header(&header, slot, uuid_crc(UUID));
        if random.chance(0.05) {
            oob[random.below(32) as usize] ^= 1;
        }
        (oob, content)
    }

    #[test]
    fn what_is_read_is_what_was_programmed_to_the_bit() {
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let geometry = geometry([1, 8, 1 << 20][seed as usize % 3]);
            let (mut packed, mut whole) = (Packed::new(geometry, UUID), Store::new(geometry));
            for _ in 0..2000 {
                // Far apart and close together.
                let block = random.below(3) as u32 * (geometry.blocks() - 1) / 2;
                let slot = SlotId(block * 64 + random.below(64) as u32);
                if random.chance(0.01) {
                    packed.erase(BlockId(block));
                    whole.erase(BlockId(block));
                }
                let (oob, content) = draw(&mut random, slot, &geometry);
                packed.program(slot, oob, content.clone());
                whole.program(slot, oob, content);
                let probe = SlotId(block * 64 + random.below(64) as u32);
                let found = packed.read(probe);
                let found = found.as_ref().map(|(oob, content)| (oob, &**content));
                assert_eq!(found, whole.read(probe), "seed {seed}, slot {}", probe.0);
            }
        }
    }

    #[test]
    fn a_block_that_is_written_as_measurements_write_takes_ten_bytes_a_slot() {
        let geometry = geometry(1 << 20);
        let mut packed = Packed::new(geometry, UUID);
        let mut random = Random::new(1);
        for place in 0..64 {
            let lba = random.below(geometry.slots()) as u32;
            // As old as half a billion writes, and a page every thousand orders.
            let header = regular(lba, (1 << 40) + random.below(1 << 28), 5000 + place * 1000);
            let slot = SlotId(place as u32);
            let oob = encode_header(&header, slot, uuid_crc(UUID));
            packed.program(slot, oob, Content::Stamp(lba.into()));
        }
        assert!(packed.blocks[0].others.is_empty());
        assert!(packed.blocks[0].slots.iter().all(|slot| *slot != OTHER));
    }
}
