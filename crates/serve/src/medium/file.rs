//! Bytes of an emulated device in sparse files: `data` (slot index * 4096), `oob` (slot index *
//! 32) and `blocks` (one 16-byte record a block: its write pointer and erase count).
//!
//! Invariants, which make a kill at any instant harmless (the page cache survives it):
//! - a program writes data and OOB first and the block's record last, so a page below the write
//!   pointer is whole;
//! - an erase clears OOB and data first and writes the record last, so an old page is never
//!   taken for one of the block's next life. Killed between, the pages read as torn.
//!
//! After a power loss of the host the record may be there without the page: its OOB then is
//! all zeroes (opening clears OOB beyond the write pointers), which reads as torn.
//!
//! The parts of a two-tier device are opened so that each write is durable when it completes
//! (`O_DSYNC`); in the order above, no power loss then takes what was told done. A fast tier is
//! overwritten in place: its erase clears the OOB and gives nothing back to the file system, which
//! else would have to find new room, and write of it, for the next write. Its programs write no
//! record: how far a block is written, its OOBs tell, and a slot whose data did not get there with its
//! OOB is told by its checksum. It may lie in one file or disk, each area at a place of its own.

use crate::buffer::Buffer;
use crate::ring::Ring;
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, SlotId};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a block's record.
pub const RECORD_BYTES: usize = 16;

/// Part of a file.
pub struct Area {
    /// The file.
    pub file: File,
    /// Where the area begins.
    pub at: u64,
}

/// The files of one shard of an emulated device, or of a fast tier.
pub struct FileStore {
    data: Area,
    oob: Area,
    blocks: Area,
    /// The device's generation, which other servers may have bumped.
    generation: Area,
    /// What it held when this server opened the device.
    generation_bytes: [u8; GENERATION_BYTES],
    geometry: Geometry,
    /// OOBs of an erased block, where an erase writes them.
    zeroes: Option<Buffer>,
}

/// Bytes of the generation file: the number, and its CRC-32C.
pub const GENERATION_BYTES: usize = 12;

/// Where in block 0 of a job's scratch memory the block record is; the OOBs are before it.
const RECORD_AT: usize = BLOCK_BYTES - RECORD_BYTES;
/// Where in block 0 the generation is read to.
const GENERATION_AT: usize = RECORD_AT - 64;
const _: () = assert!(64 * OOB_BYTES <= GENERATION_AT, "the OOBs of the largest page fit");

impl FileStore {
    /// Opens the files in `dir`; with `synced` each write is durable when it completes.
    pub fn open(
        dir: &Path,
        geometry: &Geometry,
        (writable, synced): (bool, bool),
        fence: Fence,
    ) -> io::Result<Self> {
        let open = |name: &str| {
            let path = dir.join(name);
            let mut options = File::options();
            options.read(true).write(writable);
            options.custom_flags(if synced { libc::O_DSYNC } else { 0 });
            let file = options.open(&path);
            let file =
                file.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            Ok::<Area, io::Error>(Area { file, at: 0 })
        };
        Ok(Self::of_areas([open("data")?, open("oob")?, open("blocks")?], geometry, fence))
    }

    /// Data, OOBs and records in these areas.
    pub fn of_areas([data, oob, blocks]: [Area; 3], geometry: &Geometry, fence: Fence) -> Self {
        let generation = Area { file: fence.file, at: fence.at };
        let (generation_bytes, geometry) = (fence.expected, *geometry);
        Self { data, oob, blocks, generation, generation_bytes, geometry, zeroes: None }
    }

    /// The same, overwritten in place.
    pub fn overwritten(mut self) -> Self {
        let bytes = self.geometry.slots_per_block() as usize * OOB_BYTES;
        self.zeroes = Some(Buffer::new(bytes.div_ceil(BLOCK_BYTES) as u32));
        self
    }

    /// Whether programs leave the records as they are: [`FileStore::slots_written`] tells.
    pub fn finds_pointers(&self) -> bool {
        self.zeroes.is_some()
    }

    /// By block, the slots up to the last that has an OOB.
    pub fn slots_written(&self) -> io::Result<Vec<u32>> {
        let bytes = self.geometry.slots_per_block() as usize * OOB_BYTES;
        let mut oobs = vec![0; bytes];
        let mut written = Vec::new();
        for block in 0..u64::from(self.geometry.blocks()) {
            self.oob.file.read_exact_at(&mut oobs, self.oob.at + block * bytes as u64)?;
            let mut slots = oobs.chunks_exact(OOB_BYTES);
            let last = slots.rposition(|oob| oob.iter().any(|&byte| byte != 0));
            written.push(last.map_or(0, |last| last as u32 + 1));
        }
        Ok(written)
    }

    /// Clears the OOB behind the slots written in each block: what a power loss of the host may
    /// have left there must never be taken for a page of the block's present life.
    pub fn clear_beyond(&self, slots_written: impl Fn(BlockId) -> u32) -> io::Result<()> {
        let zeroes = vec![0u8; self.geometry.slots_per_block() as usize * OOB_BYTES];
        let mut found = zeroes.clone();
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let at = slots_written(block) as usize * OOB_BYTES;
            let start = self.oob.at + u64::from(block.0) * zeroes.len() as u64 + at as u64;
            self.oob.file.read_exact_at(&mut found[at..], start)?;
            if found[at..] != zeroes[at..] {
                self.oob.file.write_all_at(&zeroes[at..], start)?;
            }
        }
        Ok(())
    }

    /// The records of all blocks.
    pub fn read_records(&self) -> io::Result<Vec<u8>> {
        let mut records = vec![0; self.geometry.blocks() as usize * RECORD_BYTES];
        self.blocks.file.read_exact_at(&mut records, self.blocks.at)?;
        Ok(records)
    }

    /// Queues the reads of `count` slots: data to `to`, OOBs to the scratch memory.
    pub fn read(
        &self,
        job: u32,
        (first, count): (SlotId, u32),
        to: *mut u8,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let (slot, count) = (u64::from(first.0), count as usize);
        let bytes = count * BLOCK_BYTES;
        let at = self.data.at + slot * BLOCK_BYTES as u64;
        ring.read(job, self.data.fd(), to, bytes, at);
        let oob = scratch.bytes_mut().as_mut_ptr();
        let at = self.oob.at + slot * OOB_BYTES as u64;
        ring.read(job, self.oob.fd(), oob, count * OOB_BYTES, at);
        2
    }

    /// Queues the writes of `count` slots, which stand in the scratch memory.
    pub fn program(
        &self,
        job: u32,
        (first, count): (SlotId, u32),
        scratch: &Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let (slot, count) = (u64::from(first.0), count as usize);
        let (oob, data) = scratch.bytes().split_at(BLOCK_BYTES);
        let bytes = count * BLOCK_BYTES;
        let at = self.data.at + slot * BLOCK_BYTES as u64;
        ring.write(job, self.data.fd(), data.as_ptr(), bytes, at);
        let at = self.oob.at + slot * OOB_BYTES as u64;
        ring.write(job, self.oob.fd(), oob.as_ptr(), count * OOB_BYTES, at);
        2
    }

    /// Queues what forgets a block's content.
    pub fn clear(&self, job: u32, block: BlockId, ring: &mut Ring) -> u32 {
        let slots = u64::from(self.geometry.slots_per_block());
        let first = u64::from(block.0) * slots;
        if let Some(zeroes) = &self.zeroes {
            let at = self.oob.at + first * OOB_BYTES as u64;
            let bytes = slots as usize * OOB_BYTES;
            ring.write(job, self.oob.fd(), zeroes.bytes().as_ptr(), bytes, at);
            return 1;
        }
        for (area, bytes) in [(&self.data, BLOCK_BYTES as u64), (&self.oob, OOB_BYTES as u64)] {
            ring.punch(job, area.fd(), area.at + first * bytes, slots * bytes);
        }
        2
    }

    /// Queues the write of a block's record.
    pub fn record(
        &self,
        job: u32,
        block: BlockId,
        record: [u8; RECORD_BYTES],
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let bytes = &mut scratch.bytes_mut()[RECORD_AT..][..RECORD_BYTES];
        bytes.copy_from_slice(&record);
        let at = self.blocks.at + u64::from(block.0) * RECORD_BYTES as u64;
        ring.write(job, self.blocks.fd(), bytes.as_ptr(), RECORD_BYTES, at);
        1
    }

    /// Queues the syncs of all three files.
    pub fn sync(&self, job: u32, ring: &mut Ring) -> u32 {
        for area in [&self.data, &self.oob, &self.blocks] {
            ring.sync_data(job, area.fd());
        }
        3
    }

    /// Queues the read of the generation: after the syncs, so that a server which was fenced
    /// meanwhile does not acknowledge them.
    pub fn read_generation(&self, job: u32, scratch: &mut Buffer, ring: &mut Ring) -> u32 {
        let to = scratch.bytes_mut()[GENERATION_AT..].as_mut_ptr();
        let at = self.generation.at;
        ring.read(job, self.generation.fd(), to, GENERATION_BYTES, at);
        1
    }

    /// True if the generation that was read is the one of this server's open.
    pub fn is_current(&self, scratch: &Buffer) -> bool {
        scratch.bytes()[GENERATION_AT..][..GENERATION_BYTES] == self.generation_bytes
    }
}

impl Area {
    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// What tells a server that another one has taken over the device.
pub struct Fence {
    /// The file with the generation.
    pub file: File,
    /// Where in it.
    pub at: u64,
    /// What it must hold.
    pub expected: [u8; GENERATION_BYTES],
}

/// The bytes of the generation file.
pub fn encode_generation(generation: u64) -> [u8; GENERATION_BYTES] {
    let mut bytes = [0; GENERATION_BYTES];
    bytes[..8].copy_from_slice(&generation.to_le_bytes());
    let crc = flash::crc(&bytes[..8]);
    bytes[8..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The number in the generation file, if it is sound.
pub fn decode_generation(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (encode_generation(number)[..] == *bytes).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_comes_back_and_a_damaged_one_does_not() {
        let mut bytes = encode_generation(77);
        assert_eq!(decode_generation(&bytes), Some(77));
        bytes[3] ^= 1;
        assert_eq!(decode_generation(&bytes), None);
        assert_eq!(decode_generation(&bytes[..5]), None);
    }
}
