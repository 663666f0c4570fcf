//! Data between the views of an FTL and the blocks that go to nodes.

use crate::pool::block::Block;
use crate::runtime::buffer::{Buffer, Views};
use flash::{
    BLOCK_BYTES, Completion, MediumError, OOB_BYTES, Payload, SlotData, SlotRead, SlotWrite, Tag,
};
use pool::client::{End, SlotEnd};
use pool::message::{Slot, ZEROES_CRC};
use pool::node::store::Data;

/// The slots of a program, with a copy of their data.
pub fn slots(writes: &[SlotWrite], views: &Views) -> Vec<Slot<Block>> {
    let has_data = |write: &&SlotWrite| write.data != SlotData::Empty;
    let count = writes.iter().filter(has_data).count() as u32;
    let mut blocks = Vec::new().into_iter();
    if count > 0 {
        let mut buffer = Buffer::new(count);
        let places = buffer.bytes_mut().chunks_exact_mut(BLOCK_BYTES);
        for (to, write) in places.zip(writes.iter().filter(has_data)) {
            match &write.data {
                SlotData::Payload(payload) => to.copy_from_slice(views.block(*payload)),
                SlotData::Meta(bytes) => to.copy_from_slice(&bytes[..]),
                SlotData::Empty => unreachable!("it was left out"),
            }
        }
        blocks = Block::all_of(buffer).into_iter();
    }
    let slot = |write: &SlotWrite| {
        let data = match write.data {
            SlotData::Empty => None,
            _ => blocks.next(),
        };
        Slot { oob: write.oob, crc: data.as_ref().map_or(ZEROES_CRC, Data::crc), data }
    };
    writes.iter().map(slot).collect()
}

/// Tells the FTL how a command has ended, with what was read in its views.
pub fn complete(end: End<Block>, views: &mut Views, take: &mut dyn FnMut(Completion<'_>)) {
    match end {
        End::Read { tag, into, slots, durable } => {
            complete_read((tag, into, durable), slots, views, take);
        }
        End::Program { tag, result } => take(Completion::Program { tag, result }),
        End::Erase { tag, result } => take(Completion::Erase { tag, result }),
        End::Finish { tag } => take(Completion::Finish { tag }),
        End::Flush { tag, result } => take(Completion::Flush { tag, result }),
    }
}

const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

fn complete_read(
    (tag, into, durable): (Tag, Option<Payload>, bool),
    slots: Result<Vec<SlotEnd<Block>>, MediumError>,
    views: &mut Views,
    take: &mut dyn FnMut(Completion<'_>),
) {
    let ends = match slots {
        Ok(ends) => ends,
        Err(error) => return take(Completion::Read { tag, slots: Err(error) }),
    };
    if let Some(into) = into {
        for (at, end) in (0..).zip(&ends) {
            let Some(slot) = &end.slot else { continue };
            let payload = Payload { index: into.index + at, ..into };
            match &slot.data {
                Some(data) => views.block_mut(payload).copy_from_slice(data.bytes()),
                None => views.block_mut(payload).fill(0),
            }
        }
    }
    let read = |end| slot_read(end, into.is_none(), durable);
    let few;
    let many;
    // Most reads are of a slot.
    let reads: &[SlotRead<'_>] = match &ends[..] {
        [one] => {
            few = [read(one)];
            &few
        }
        all => {
            many = all.iter().map(read).collect::<Vec<_>>();
            &many
        }
    };
    take(Completion::Read { tag, slots: Ok(reads) });
}

/// What the FTL is told of a slot; with its bytes if it has named no place for them.
fn slot_read(end: &SlotEnd<Block>, with_bytes: bool, durable: bool) -> SlotRead<'_> {
    let status = end.status;
    let Some(slot) = &end.slot else {
        return SlotRead { status, oob: [0; OOB_BYTES], crc: ZEROES_CRC, bytes: None, durable };
    };
    let bytes = slot.data.as_ref().map_or(&ZEROES[..], |data| &data.bytes()[..]);
    SlotRead { status, oob: slot.oob, crc: slot.crc, bytes: with_bytes.then_some(bytes), durable }
}
