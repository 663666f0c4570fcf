//! The stores of bytes, and what is the same in all that have files.

use super::job::{Step, What};
use super::{DirectStore, FastStore, FileStore, MemoryStore, Watch};
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::Ring;
use flash::{BlockId, Geometry, MediumError, SlotId};
use nand::BlockRecord;
use std::path::PathBuf;

/// Where the bytes are.
pub enum Store {
    /// Nowhere that survives the process.
    Memory(MemoryStore),
    /// In the folder of an emulated device.
    File(FileStore),
    /// In a plain file or a block device.
    Direct(DirectStore),
    /// Of the fast units, in files or on a disk of their own.
    Fast(FastStore),
}

/// Most queue I/O of a job and tell how many operations it is.
impl Store {
    /// On a zoned device.
    pub fn is_zoned(&self) -> bool {
        matches!(self, Self::Direct(store) if store.is_zoned())
    }

    /// The file that a command writes to at this step, of a device that has several.
    pub fn file_of(&self, what: What, step: Step) -> Option<PathBuf> {
        match self {
            Self::File(store) => store.file_of(what, step),
            Self::Memory(_) | Self::Direct(_) | Self::Fast(_) => None,
        }
    }

    /// What tells if another server has the device; `None` if there can be none, or the files cannot be
    /// told apart.
    pub fn watch(&self) -> Option<Watch> {
        match self {
            Self::Memory(_) | Self::Fast(_) => None,
            Self::File(store) => store.watch(),
            Self::Direct(store) => store.watch(),
        }
    }

    /// Queues the reads of `count` slots, to `to`, and of their OOBs.
    pub fn read(
        &self,
        job: u32,
        slots: (SlotId, u32),
        to: *mut u8,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.read(job, slots, to, scratch, ring),
            Self::Direct(store) => store.read(job, slots, to, scratch, ring),
            Self::Fast(store) => store.read(job, slots, to, scratch, ring),
        }
    }

    /// Queues the writes of `count` slots, which stand in the scratch memory; their block was erased
    /// so often.
    pub fn program(
        &mut self,
        job: u32,
        (first, count): (SlotId, u32),
        erase_count: u32,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.program(job, (first, count), scratch, ring),
            Self::Direct(store) => store.program(job, first, erase_count, scratch, ring),
            Self::Fast(store) => store.program(job, (first, count), scratch, ring),
        }
    }

    /// Queues the syncs.
    pub fn sync(&mut self, job: u32, ring: &mut Ring) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.sync(job, ring),
            Self::Direct(store) => store.sync(job, ring),
            Self::Fast(_) => unreachable!("a flush is of the capacity tier"),
        }
    }

    /// A block is about to be cleared. True if its record says that something there is durable: it must say so
    /// no more before that, so that who is killed in between has not damaged anything.
    pub fn begin_erase(&mut self, block: BlockId) -> bool {
        match self {
            Self::File(store) => store.begin_erase(block),
            Self::Memory(_) | Self::Direct(_) | Self::Fast(_) => false,
        }
    }

    /// Queues what forgets a block's content.
    pub fn clear(
        &mut self,
        job: u32,
        block: BlockId,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.clear(job, block, ring),
            Self::Direct(store) => store.clear(job, block, scratch, ring),
            Self::Fast(store) => store.clear(job, block, ring),
        }
    }

    /// Queues what lets nothing more be programmed into a block before its erase.
    pub fn finish(
        &mut self,
        job: u32,
        block: BlockId,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        match self {
            Self::Direct(store) => store.finish(job, block, scratch, ring),
            // The rules alone hold to it.
            Self::Memory(_) | Self::File(_) | Self::Fast(_) => 0,
        }
    }

    /// Queues the write of a block's record.
    pub fn record(
        &mut self,
        job: u32,
        block: BlockId,
        record: BlockRecord,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.record(job, block, record, scratch, ring),
            Self::Direct(store) => store.record(job, block, record.encode(), scratch, ring),
            Self::Fast(store) => store.record(job, block, record.encode(), scratch, ring),
        }
    }

    /// The write of a block's record has ended: where records share a sector, the next goes on.
    pub fn record_written(&mut self, block: BlockId, ring: &mut Ring) {
        match self {
            Self::Memory(_) | Self::File(_) => {}
            Self::Direct(store) => store.record_written(block, ring),
            Self::Fast(store) => store.record_written(block, ring),
        }
    }

    /// Queues the read of the generation, after the syncs.
    pub fn read_generation(&self, job: u32, scratch: &mut Buffer, ring: &mut Ring) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::File(store) => store.read_generation(job, scratch, ring),
            Self::Direct(store) => store.read_generation(job, scratch, ring),
            Self::Fast(_) => unreachable!("a flush is of the capacity tier"),
        }
    }

    /// True if the generation that was read is the one of this server's open.
    pub fn is_current(&self, scratch: &Buffer) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::File(store) => store.is_current(scratch),
            Self::Direct(store) => store.is_current(scratch),
            Self::Fast(_) => unreachable!("a flush is of the capacity tier"),
        }
    }
}

/// The record to write after the program of these slots, if the store wants one; that of their block
/// is `record`.
pub fn record_after_program(
    store: &mut Store,
    (first, count): (SlotId, u32),
    error: Option<MediumError>,
    mut record: BlockRecord,
    geometry: &Geometry,
) -> Option<BlockRecord> {
    let told = error.is_none_or(|error| error == MediumError::BlockFailed);
    match store {
        Store::File(_) => {
            if error.is_none() && record.damaged_tail == 0 && !record.bad {
                // The rules may be ahead by a program that has not begun here.
                record.write_pointer = geometry.page_in_block(first) + 1;
            }
            told.then_some(record)
        }
        Store::Fast(store) => {
            store.programmed((first, count));
            (record.bad && told).then_some(record)
        }
        Store::Memory(_) | Store::Direct(_) => None,
    }
}

/// The record of a block after an erase, without what is under way after it.
pub fn record_after_erase(record: &BlockRecord) -> BlockRecord {
    if record.bad || record.needs_erase {
        return *record;
    }
    BlockRecord { erase_count: record.erase_count, ..BlockRecord::FRESH }
}

/// The record of a block that is about to be cleared, when the rules have it erased already: whoever finds it looks at
/// every page that was programmed. Of the others none may seem to be: a checkpoint that was given up would have footers
/// that cannot be read, and count as one that was complete.
pub fn record_before_clear(after: &BlockRecord, write_pointer: u32) -> BlockRecord {
    BlockRecord {
        erase_count: after.erase_count.saturating_sub(1),
        write_pointer,
        ..BlockRecord::FRESH
    }
}
