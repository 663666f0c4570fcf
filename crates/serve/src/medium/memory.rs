//! Blocks in memory: a table of frames by slot. What is programmed is handed over, what is read is
//! lent. Everything happens at once, in the order of the commands.
//!
//! Invariant: each slot that has content holds its frame until the erase.

use super::Job;
use crate::runtime::buffer::Views;
use crate::runtime::frames::{FrameId, fetch};
use flash::{BlockId, Geometry, OOB_BYTES, Oob, Payload, SlotData, SlotId, SlotWrite};

/// The content of a medium in memory.
pub struct MemoryStore {
    slots_per_block: u32,
    /// By block, as far as it is programmed. An erase keeps the room.
    blocks: Vec<Vec<Option<(Oob, FrameId)>>>,
}

impl MemoryStore {
    /// A store with nothing in it.
    pub fn new(geometry: &Geometry) -> Self {
        let blocks = (0..geometry.blocks()).map(|_| Vec::new()).collect();
        Self { slots_per_block: geometry.slots_per_block(), blocks }
    }

    fn place(&self, slot: SlotId) -> (usize, usize) {
        ((slot.0 / self.slots_per_block) as usize, (slot.0 % self.slots_per_block) as usize)
    }

    /// Takes over the slots of a program.
    pub fn program(&mut self, first: SlotId, slots: &[SlotWrite], views: &mut Views) {
        let (block, at) = self.place(first);
        let block = &mut self.blocks[block];
        // A page before this one may have been programmed by nobody.
        while block.len() < at {
            block.push(None);
        }
        assert_eq!(block.len(), at, "the pages of a block are programmed in order");
        for slot in slots {
            let frame = match &slot.data {
                SlotData::Payload(payload) => views.hand_over(*payload),
                SlotData::Meta(bytes) => views.frames.copy_of(&bytes[..]),
                SlotData::Empty => views.frames.zeroes(),
            };
            block.push(Some((slot.oob, frame)));
        }
    }

    /// Lends slots to where the job's command wants them. A block that was never programmed reads
    /// as zeroes; the medium reports it as erased. The checksums are taken at the completion, when
    /// the memory has had time to come near.
    pub fn read(&self, job: &mut Job, first: SlotId, count: u32, views: &mut Views) {
        let (block, at) = self.place(first);
        for i in 0..count {
            let slot = self.blocks[block].get(at + i as usize).copied().flatten();
            let (oob, frame) = slot.unwrap_or_else(|| ([0; OOB_BYTES], views.frames.zeroes()));
            let bytes = views.frames.bytes(frame);
            fetch(bytes);
            match (job.into, &mut job.scratch) {
                (Some(into), _) => views.lend(Payload { index: into.index + i, ..into }, frame),
                (None, Some(scratch)) => {
                    super::data_slot_mut(scratch, i).copy_from_slice(bytes);
                }
                (None, None) => unreachable!("a read without a target has scratch memory"),
            }
            job.oobs.push(oob);
            if slot.is_none() {
                views.frames.release(frame);
            }
        }
    }

    /// Forgets what the block held.
    pub fn erase(&mut self, block: BlockId, views: &mut Views) {
        for (_, frame) in self.blocks[block.0 as usize].drain(..).flatten() {
            views.frames.release(frame);
        }
    }
}

/// Copies the data of one slot to `to`.
pub fn copy_slot(to: &mut [u8], data: &SlotData, views: &Views) {
    match data {
        SlotData::Payload(payload) => to.copy_from_slice(views.block(*payload)),
        SlotData::Meta(bytes) => to.copy_from_slice(&bytes[..]),
        SlotData::Empty => to.fill(0),
    }
}
