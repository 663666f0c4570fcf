//! Bytes in memory: one contiguous chunk per block, taken at its first program and given back by
//! the erase. Chunks are cut from arenas large enough for large pages. Everything happens at once, in the order of the commands.

use super::Job;
use crate::buffer::{Buffer, Views};
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, Payload, SlotData, SlotId, SlotWrite};

/// The bytes of a medium in memory.
pub struct MemoryStore {
    chunks: Vec<Option<Chunk>>,
    /// Chunks that no block has, so that the steady state allocates nothing.
    spare: Vec<Chunk>,
    arenas: Vec<Buffer>,
    geometry: Geometry,
}

struct Chunk {
    /// Which arena.
    arena: u32,
    /// Its first byte there.
    start: usize,
    oob: Vec<Oob>,
}

/// Least size of an arena.
const ARENA_BYTES: usize = 16 << 20;

impl MemoryStore {
    /// A store with nothing in it.
    pub fn new(geometry: &Geometry) -> Self {
        let chunks = (0..geometry.blocks()).map(|_| None).collect();
        Self { chunks, spare: Vec::new(), arenas: Vec::new(), geometry: *geometry }
    }

    /// Copies the slots of a program.
    pub fn program(&mut self, first: SlotId, slots: &[SlotWrite], views: &Views) {
        let per_block = self.geometry.slots_per_block();
        let at = first.0 % per_block;
        let block = (first.0 / per_block) as usize;
        if self.chunks[block].is_none() {
            self.chunks[block] = Some(self.take_chunk());
        }
        let Some(chunk) = &mut self.chunks[block] else { return };
        let arena = self.arenas[chunk.arena as usize].bytes_mut();
        for (slot, index) in slots.iter().zip(at as usize..) {
            chunk.oob[index] = slot.oob;
            let start = chunk.start + index * BLOCK_BYTES;
            copy_slot(&mut arena[start..start + BLOCK_BYTES], &slot.data, views);
        }
    }

    fn take_chunk(&mut self) -> Chunk {
        if self.spare.is_empty() {
            let slots = self.geometry.slots_per_block() as usize;
            let chunk_bytes = slots * BLOCK_BYTES;
            let count = (ARENA_BYTES / chunk_bytes).max(1);
            let arena = self.arenas.len() as u32;
            self.arenas.push(Buffer::new((count * slots) as u32));
            self.spare.extend((0..count).rev().map(|index| Chunk {
                arena,
                start: index * chunk_bytes,
                oob: vec![[0; OOB_BYTES]; slots],
            }));
        }
        self.spare.pop().expect("an arena holds at least one chunk")
    }

    /// Copies slots to where the job's command wants them, and takes their checksums. A block
    /// that was never programmed reads as zeroes; the medium reports it as erased.
    pub fn read(&self, job: &mut Job, first: SlotId, count: u32, views: &mut Views) {
        let per_block = self.geometry.slots_per_block();
        let at = (first.0 % per_block) as usize;
        let chunk = &self.chunks[(first.0 / per_block) as usize];
        for i in 0..count {
            let to = match (job.into, &mut job.scratch) {
                (Some(into), _) => views.block_mut(Payload { index: into.index + i, ..into }),
                (None, Some(scratch)) => super::data_slot_mut(scratch, i),
                (None, None) => unreachable!("a read without a target has scratch memory"),
            };
            let Some(chunk) = chunk else {
                to.fill(0);
                job.sums.push(([0; OOB_BYTES], 0));
                continue;
            };
            let start = chunk.start + (at + i as usize) * BLOCK_BYTES;
            let arena = self.arenas[chunk.arena as usize].bytes();
            to.copy_from_slice(&arena[start..start + BLOCK_BYTES]);
            job.sums.push((chunk.oob[at + i as usize], flash::crc(to)));
        }
    }

    /// Forgets what the block held.
    pub fn erase(&mut self, block: BlockId) {
        self.spare.extend(self.chunks[block.0 as usize].take());
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
