//! The records of blocks that lie side by side, where they are written by direct I/O: whole sectors, each with those of
//! many blocks.
//!
//! Invariant: writes of one sector follow one another, each with all that is known when it goes out.

use super::file::RECORD_BYTES;
use crate::runtime::buffer::{Buffer, View};
use crate::runtime::ring::Ring;
use flash::{BLOCK_BYTES, BlockId};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const RECORDS_PER_SECTOR: u32 = (BLOCK_BYTES / RECORD_BYTES) as u32;

/// The records of one shard's blocks.
pub struct Records {
    /// First byte in the file.
    at: u64,
    /// The block that the first record is of.
    first: u32,
    /// All records as they are or will be on the disk.
    bytes: Buffer,
    /// Per sector: a write is under way.
    writing: Vec<bool>,
    /// Jobs whose sector is being written.
    waiting: VecDeque<Waiting>,
}

/// A job that is to write a sector of records.
struct Waiting {
    job: u32,
    sector: u32,
    /// Memory of the job, which keeps it until the write has ended.
    scratch: View,
}

impl Records {
    /// Those of the blocks from `first` on, which begin at `at`.
    pub fn read(file: &File, at: u64, (first, blocks): (u32, u32)) -> io::Result<Self> {
        let sectors = blocks.div_ceil(RECORDS_PER_SECTOR);
        let mut bytes = Buffer::new(sectors);
        file.read_exact_at(bytes.bytes_mut(), at)?;
        let writing = vec![false; sectors as usize];
        Ok(Self { at, first, bytes, writing, waiting: VecDeque::new() })
    }

    /// That of a block as it was written last.
    pub fn of(&self, block: BlockId) -> [u8; RECORD_BYTES] {
        let start = (block.0 - self.first) as usize * RECORD_BYTES;
        self.bytes.bytes()[start..][..RECORD_BYTES].try_into().expect("16 bytes")
    }

    /// Queues the write of a block's record, or lets it wait for the write of its sector.
    /// `scratch` is a block of the job's memory.
    pub fn write(
        &mut self,
        job: u32,
        block: BlockId,
        record: [u8; RECORD_BYTES],
        scratch: View,
        (file, ring): (&File, &mut Ring),
    ) {
        let start = (block.0 - self.first) as usize * RECORD_BYTES;
        self.bytes.bytes_mut()[start..][..RECORD_BYTES].copy_from_slice(&record);
        let sector = (block.0 - self.first) / RECORDS_PER_SECTOR;
        let waiting = Waiting { job, sector, scratch };
        if self.writing[sector as usize] {
            self.waiting.push_back(waiting);
        } else {
            self.write_sector(waiting, (file, ring));
        }
    }

    /// Writes a copy of the sector as it is now, so that it may change meanwhile.
    fn write_sector(&mut self, mut turn: Waiting, (file, ring): (&File, &mut Ring)) {
        self.writing[turn.sector as usize] = true;
        let start = turn.sector as usize * BLOCK_BYTES;
        let copy = turn.scratch.block_mut(0);
        copy.copy_from_slice(&self.bytes.bytes()[start..start + BLOCK_BYTES]);
        ring.write(turn.job, file.as_raw_fd(), copy.as_ptr(), BLOCK_BYTES, self.at + start as u64);
    }

    /// The write of a block's record has ended: the next of its sector goes on.
    pub fn written(&mut self, block: BlockId, to: (&File, &mut Ring)) {
        let sector = (block.0 - self.first) / RECORDS_PER_SECTOR;
        self.writing[sector as usize] = false;
        let next = self.waiting.iter().position(|waiting| waiting.sector == sector);
        if let Some(turn) = next.and_then(|position| self.waiting.remove(position)) {
            self.write_sector(turn, to);
        }
    }
}
