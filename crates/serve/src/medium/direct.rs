//! Bytes in a plain file or a block device, by direct I/O.
//!
//! There is no OOB area: a program unit is 64 KiB, of which the first 4 KiB hold the OOBs of the 15
//! slots that follow; it goes out with one write. The layout, numbers little-endian, by 4 KiB
//! sectors:
//!
//! | sector | holds |
//! |---|---|
//! | 0 | header, written by `crate::device` |
//! | 1 | generation: the 12 bytes of [`super::encode_generation`] |
//! | 2.. | one 16-byte record a block, `nand::BlockRecord` |
//! | from the next multiple of a block's bytes | the blocks of all shards in turn |
//!
//! The first sector of a program unit:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..4 | `b"WPU1"` |
//! | 4..8 | erase count of the block when it was programmed |
//! | 8..12 | page within the medium |
//! | 12..16 | CRC-32C of the other bytes up to 512 |
//! | 16..24 | generation of the server that wrote it |
//! | 32..512 | OOBs of 15 slots |
//!
//! Invariants: a page counts only if its first sector is sound and names the block's present erase
//! count, so what an erase could not discard is never taken for data; records change only at an
//! erase and are written after the discard, so write pointers are found by looking
//! ([`DirectStore::write_pointers`]); writes of one record sector follow one another.

use super::file::{Fence, GENERATION_BYTES, RECORD_BYTES};
use super::records::Records;
use crate::buffer::Buffer;
use crate::ring::Ring;
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;

/// Slots of data in a program unit.
pub const SLOTS_PER_PAGE: u32 = 15;
/// Bytes of a program unit.
pub const PAGE_BYTES: u64 = 64 << 10;

/// Reads at a time that look for write pointers: a disk is slow at one after the other.
const READS_AT_A_TIME: usize = 32;

const MAGIC: &[u8; 4] = b"WPU1";
const SUMMED_BYTES: usize = 512;
/// Where in the first sector of a program unit its OOBs are.
pub const OOBS_AT: usize = 32;
const _: () = assert!(OOBS_AT + SLOTS_PER_PAGE as usize * OOB_BYTES <= SUMMED_BYTES);
const _: () = assert!((SLOTS_PER_PAGE as usize + 1) * BLOCK_BYTES == PAGE_BYTES as usize);

/// Where the generation sector is.
pub const GENERATION_AT: u64 = BLOCK_BYTES as u64;

/// Where one shard's part of the file lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// First byte of its records, a multiple of 4 KiB.
    pub records_at: u64,
    /// First byte of its blocks.
    pub blocks_at: u64,
    /// This open's generation, kept with each page.
    pub generation: u64,
}

/// One shard's part of a file or block device.
pub struct DirectStore {
    file: File,
    geometry: Geometry,
    place: Place,
    expected: [u8; GENERATION_BYTES],
    records: Records,
}

impl DirectStore {
    /// Opens a part of `file`, which must be open for direct I/O.
    pub fn open(file: File, geometry: &Geometry, place: Place, fence: &Fence) -> io::Result<Self> {
        let records = Records::read(&file, place.records_at, geometry.blocks())?;
        let expected = fence.expected;
        Ok(Self { file, geometry: *geometry, place, expected, records })
    }

    /// The record of a block as of its last erase.
    pub fn stored_record(&self, block: BlockId) -> [u8; RECORD_BYTES] {
        self.records.of(block)
    }

    /// How many pages of each block are programmed, of this erase count each: [`Pages::written`].
    pub fn write_pointers(&self, blocks: &[(BlockId, u32)]) -> io::Result<Vec<u32>> {
        let pages = self.pages();
        let part = blocks.len().div_ceil(READS_AT_A_TIME).max(1);
        let find = |blocks: &[(BlockId, u32)]| -> io::Result<Vec<u32>> {
            blocks.iter().map(|&(block, erase_count)| pages.written(block, erase_count)).collect()
        };
        let found = thread::scope(|scope| {
            let parts: Vec<_> =
                blocks.chunks(part).map(|blocks| scope.spawn(move || find(blocks))).collect();
            let joined = parts.into_iter().map(|part| part.join().expect("reading does not panic"));
            joined.collect::<io::Result<Vec<Vec<u32>>>>()
        })?;
        Ok(found.concat())
    }

    fn pages(&self) -> Pages<'_> {
        Pages { file: &self.file, geometry: self.geometry, place: self.place }
    }

    /// The OOB of a slot of a block of this erase count; zeroes if its page is not sound.
    pub fn oob_of(&self, slot: SlotId, erase_count: u32) -> io::Result<Oob> {
        let mut sector = Buffer::new(1);
        self.file.read_exact_at(sector.bytes_mut(), self.pages().page_at(slot))?;
        Ok(self.oob(&sector, slot, 0, erase_count))
    }

    /// Queues the reads of a page's first sector and of `count` slots.
    pub fn read(
        &self,
        job: u32,
        (first, count): (SlotId, u32),
        to: *mut u8,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let page_at = self.pages().page_at(first);
        let header = scratch.bytes_mut().as_mut_ptr();
        ring.read(job, self.file.as_raw_fd(), header, BLOCK_BYTES, page_at);
        let slot = u64::from(self.geometry.slot_in_page(first)) + 1;
        let at = page_at + slot * BLOCK_BYTES as u64;
        ring.read(job, self.file.as_raw_fd(), to, count as usize * BLOCK_BYTES, at);
        2
    }

    /// The OOB of slot `i` of a completed read from `first` on; zeroes if the page is not sound.
    pub fn oob(&self, scratch: &Buffer, first: SlotId, i: u32, erase_count: u32) -> Oob {
        let sector = &scratch.bytes()[..BLOCK_BYTES];
        if self.pages().header(sector, self.page_start(first), erase_count).is_none() {
            return [0; OOB_BYTES];
        }
        let slot = self.geometry.slot_in_page(first) + i;
        let at = OOBS_AT + slot as usize * OOB_BYTES;
        sector[at..at + OOB_BYTES].try_into().expect("the slice has this length")
    }

    fn page_start(&self, slot: SlotId) -> SlotId {
        SlotId(slot.0 - self.geometry.slot_in_page(slot))
    }

    /// Queues the write of a page, which stands in the scratch memory with its OOBs at the start.
    pub fn program(
        &self,
        job: u32,
        first: SlotId,
        erase_count: u32,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let sector = &mut scratch.bytes_mut()[..BLOCK_BYTES];
        let oobs = SLOTS_PER_PAGE as usize * OOB_BYTES;
        sector.copy_within(..oobs, OOBS_AT);
        sector[OOBS_AT + oobs..].fill(0);
        sector[..4].copy_from_slice(MAGIC);
        sector[4..8].copy_from_slice(&erase_count.to_le_bytes());
        let page = first.0 / self.geometry.slots_per_page;
        sector[8..12].copy_from_slice(&page.to_le_bytes());
        sector[16..24].copy_from_slice(&self.place.generation.to_le_bytes());
        sector[24..OOBS_AT].fill(0);
        let sum = checksum(sector);
        sector[12..16].copy_from_slice(&sum.to_le_bytes());
        let (bytes, len) = (scratch.bytes().as_ptr(), PAGE_BYTES as usize);
        ring.write(job, self.file.as_raw_fd(), bytes, len, self.pages().page_at(first));
        1
    }

    /// Queues the discard of a block.
    pub fn clear(&self, job: u32, block: BlockId, ring: &mut Ring) -> u32 {
        let bytes = u64::from(self.geometry.pages_per_block) * PAGE_BYTES;
        let at = self.place.blocks_at + u64::from(block.0) * bytes;
        ring.punch(job, self.file.as_raw_fd(), at, bytes);
        1
    }

    /// Queues the write of a block's record, or lets it wait for the write of its sector.
    pub fn record(
        &mut self,
        job: u32,
        block: BlockId,
        record: [u8; RECORD_BYTES],
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        self.records.write(job, block, record, scratch.view(0, 1), (&self.file, ring));
        1
    }

    /// The write of a block's record has ended: the next of its sector goes on.
    pub fn record_written(&mut self, block: BlockId, ring: &mut Ring) {
        self.records.written(block, (&self.file, ring));
    }

    /// Queues the sync.
    pub fn sync(&self, job: u32, ring: &mut Ring) -> u32 {
        ring.sync_data(job, self.file.as_raw_fd());
        1
    }

    /// Queues the read of the generation, after the sync.
    pub fn read_generation(&self, job: u32, scratch: &mut Buffer, ring: &mut Ring) -> u32 {
        let to = scratch.bytes_mut().as_mut_ptr();
        ring.read(job, self.file.as_raw_fd(), to, BLOCK_BYTES, GENERATION_AT);
        1
    }

    /// True if the generation that was read is the one of this server's open.
    pub fn is_current(&self, scratch: &Buffer) -> bool {
        scratch.bytes()[..GENERATION_BYTES] == self.expected
    }
}

/// Where pages are, and whether they were programmed.
#[derive(Clone, Copy)]
struct Pages<'a> {
    file: &'a File,
    geometry: Geometry,
    place: Place,
}

impl Pages<'_> {
    /// Finds how many pages of a block are programmed. Most blocks are full or empty, which one or two
    /// looks tell; else by halving, and then page by page, so that what a power loss of the host left
    /// behind a gap is not taken for what was written after. What was flushed is always found.
    fn written(self, block: BlockId, erase_count: u32) -> io::Result<u32> {
        let pages = self.geometry.pages_per_block;
        let mut sector = Buffer::new(1);
        let mut generation = |page: u32| -> io::Result<Option<u64>> {
            let first = self.geometry.slot(block, page, 0);
            self.file.read_exact_at(sector.bytes_mut(), self.page_at(first))?;
            Ok(self.header(sector.bytes(), first, erase_count))
        };
        if generation(pages - 1)?.is_some() {
            return Ok(pages);
        }
        if generation(0)?.is_none() {
            return Ok(0);
        }
        let (mut low, mut high) = (1, pages - 1);
        while low < high {
            let middle = (low + high) / 2;
            match generation(middle)? {
                Some(_) => low = middle + 1,
                None => high = middle,
            }
        }
        let mut newest = 0;
        for page in 0..low {
            match generation(page)? {
                Some(at) if at >= newest => newest = at,
                _ => return Ok(page),
            }
        }
        Ok(low)
    }

    /// The generation in a page's first sector, if it is sound and of the block's present life.
    fn header(&self, sector: &[u8], first: SlotId, erase_count: u32) -> Option<u64> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| sector[at + i]));
        let page = first.0 / self.geometry.slots_per_page;
        let sound = sector[..4] == *MAGIC
            && word(4) == erase_count
            && word(8) == page
            && word(12) == checksum(sector);
        sound.then(|| u64::from(word(16)) | u64::from(word(20)) << 32)
    }

    fn page_at(&self, slot: SlotId) -> u64 {
        self.place.blocks_at + u64::from(slot.0 / self.geometry.slots_per_page) * PAGE_BYTES
    }
}

/// CRC-32C of a page's first sector, without the place where it stands.
fn checksum(sector: &[u8]) -> u32 {
    let sum = flash::crc(&sector[..12]);
    flash::crc_append(sum, &sector[16..SUMMED_BYTES])
}
