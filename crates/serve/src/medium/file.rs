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
//! all zeroes, which reads as torn, unless the record itself tells that the page was durable
//! ([`Durability`]): then it is lost. Or the page is there without the record: opening finds its OOB
//! beyond the write pointer, and takes the page for programmed, as it may be all that there is of it.
//!
//! Behind a fast tier the files are opened so that each write is durable when it completes
//! (`O_DSYNC`); in the order above, no power loss then takes what was told done.

use super::Watch;
use super::durability::Durability;
use super::job::{Step, What};
use crate::files;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::Ring;
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use nand::BlockRecord;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a block's record.
pub const RECORD_BYTES: usize = 16;

/// The files of one shard of an emulated device.
pub struct FileStore {
    /// Where they are.
    dir: PathBuf,
    data: File,
    oob: File,
    blocks: File,
    fence: Fence,
    geometry: Geometry,
    durability: Durability,
}

/// Bytes of the generation file: the number, and its CRC-32C.
pub const GENERATION_BYTES: usize = 12;

/// Where in block 0 of a job's scratch memory the block record is; the OOBs are before it.
const RECORD_AT: usize = BLOCK_BYTES - RECORD_BYTES;
/// Where in block 0 the generation is read to.
const GENERATION_AT: usize = RECORD_AT - 64;
const _: () = assert!(64 * OOB_BYTES <= GENERATION_AT, "the OOBs of the largest page fit");

impl FileStore {
    /// Opens the files in `dir`, whose records tell how many pages of each block are `durable`; with
    /// `synced` each write is durable when it completes.
    pub fn open(
        dir: &Path,
        geometry: &Geometry,
        (writable, synced): (bool, bool),
        fence: Fence,
        durable: Vec<u32>,
    ) -> io::Result<Self> {
        let open = |name: &str| {
            let path = dir.join(name);
            let mut options = File::options();
            options.read(true).write(writable);
            let flags = if synced { libc::O_DSYNC } else { 0 };
            let file = files::open_with(&path, &mut options, flags);
            file.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let (data, oob, blocks) = (open("data")?, open("oob")?, open("blocks")?);
        if writable {
            gives_back(&data)?;
        }
        let durability = Durability::new(durable, synced);
        let dir = dir.to_path_buf();
        Ok(Self { dir, data, oob, blocks, fence, geometry: *geometry, durability })
    }

    /// The file that a command writes to at this step, if it is one of the capacity tier. Of data and OOBs, which are
    /// written together, it is that of the data, which takes the room.
    pub fn file_of(&self, what: What, step: Step) -> Option<PathBuf> {
        let of_fast = |block| self.geometry.is_fast(block);
        match what {
            What::Program { slot, .. } if of_fast(self.geometry.block_of(slot)) => None,
            What::Erase { block } | What::Finish { block } if of_fast(block) => None,
            _ if matches!(step, Step::Mark | Step::Record) => Some(self.dir.join("blocks")),
            _ => Some(self.dir.join("data")),
        }
    }

    /// Whether the slot's page was programmed and is durable for certain.
    pub fn is_durable(&self, slot: SlotId) -> bool {
        let block = self.geometry.block_of(slot);
        self.geometry.page_in_block(slot) < self.durability.pages(block)
    }

    /// The program of a page has ended well.
    pub fn programmed(&mut self, slot: SlotId) {
        let block = self.geometry.block_of(slot);
        self.durability.programmed(block, self.geometry.page_in_block(slot) + 1);
    }

    /// Nothing of the block counts as durable any more. True if its record says that something is.
    pub fn begin_erase(&mut self, block: BlockId) -> bool {
        self.durability.erased(block)
    }

    /// The flush that is `job` has ended; returns the blocks that are full and durable by it.
    pub fn synced(&mut self, job: u32, well: bool) -> Vec<BlockId> {
        self.durability.flushed(job, well, self.geometry.pages_per_block)
    }

    /// Writes the record of a block that is full once more, when all of it is durable. It goes to the page
    /// cache, and nobody waits for it: the one before says less, and is as true.
    pub fn tell_durable(&self, block: BlockId, record: BlockRecord) {
        let full = record.write_pointer == self.geometry.pages_per_block;
        let plain = record.damaged_tail == 0 && !record.bad && !record.needs_erase;
        if full && plain {
            let (bytes, at) = self.encoded(block, record);
            let _ = self.blocks.write_all_at(&bytes, at);
        }
    }

    /// From here on data is written to `file`.
    #[cfg(test)]
    pub fn replace_data(&mut self, file: File) {
        self.data = file;
    }

    /// Looks at the generation through the page cache, as all of the folder is read.
    pub fn watch(&self) -> Option<Watch> {
        let file = self.fence.file.try_clone().ok()?;
        Some(Watch::new(file, self.fence.at, self.fence.expected, false))
    }

    /// The OOB of a slot.
    pub fn oob_of(&self, slot: SlotId) -> io::Result<Oob> {
        let mut oob = [0; OOB_BYTES];
        let at = u64::from(slot.0) * OOB_BYTES as u64;
        self.oob.read_exact_at(&mut oob, at)?;
        Ok(oob)
    }

    /// Pages of a block up to the last that has an OOB, at or behind page `from`.
    pub fn pages_found(&self, block: BlockId, from: u32) -> io::Result<u32> {
        let per_page = self.geometry.slots_per_page as usize;
        let skipped = from as usize * per_page;
        let mut oobs = vec![[0; OOB_BYTES]; self.geometry.slots_per_block() as usize - skipped];
        let first = u64::from(block.0) * u64::from(self.geometry.slots_per_block());
        let at = (first + skipped as u64) * OOB_BYTES as u64;
        self.oob.read_exact_at(oobs.as_flattened_mut(), at)?;
        let last = oobs.iter().rposition(|oob| *oob != [0; OOB_BYTES]);
        Ok(last.map_or(from, |last| from + (last / per_page) as u32 + 1))
    }

    /// Gives back the OOBs of `count` slots.
    pub fn forget_oobs(&self, first: SlotId, count: u32) -> io::Result<()> {
        let bytes = OOB_BYTES as u64;
        punch(&self.oob, u64::from(first.0) * bytes, u64::from(count) * bytes)
    }

    /// The records of all blocks.
    pub fn read_records(&self) -> io::Result<Vec<u8>> {
        let mut records = vec![0; self.geometry.blocks() as usize * RECORD_BYTES];
        self.blocks.read_exact_at(&mut records, 0)?;
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
        let at = slot * BLOCK_BYTES as u64;
        ring.read(job, self.data.as_raw_fd(), to, bytes, at);
        let oob = scratch.bytes_mut().as_mut_ptr();
        let at = slot * OOB_BYTES as u64;
        ring.read(job, self.oob.as_raw_fd(), oob, count * OOB_BYTES, at);
        2
    }

    /// Has the kernel read so many slots and their OOBs into the page cache meanwhile.
    pub fn will_read(&self, first: SlotId, slots: u32) {
        for (file, bytes) in [(&self.data, BLOCK_BYTES), (&self.oob, OOB_BYTES)] {
            let (at, len) = (u64::from(first.0) * bytes as u64, u64::from(slots) * bytes as u64);
            let advice = libc::POSIX_FADV_WILLNEED;
            // SAFETY: no memory is involved. It is a wish; refusing it harms nothing.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), at as i64, len as i64, advice) };
        }
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
        let at = slot * BLOCK_BYTES as u64;
        ring.write(job, self.data.as_raw_fd(), data.as_ptr(), bytes, at);
        let at = slot * OOB_BYTES as u64;
        ring.write(job, self.oob.as_raw_fd(), oob.as_ptr(), count * OOB_BYTES, at);
        2
    }

    /// Queues what forgets a block's content.
    pub fn clear(&self, job: u32, block: BlockId, ring: &mut Ring) -> u32 {
        let slots = u64::from(self.geometry.slots_per_block());
        let first = u64::from(block.0) * slots;
        for (file, bytes) in [(&self.data, BLOCK_BYTES as u64), (&self.oob, OOB_BYTES as u64)] {
            ring.punch(job, file.as_raw_fd(), first * bytes, slots * bytes);
        }
        2
    }

    /// Queues the write of a block's record, which tells beside that how far the block is durable.
    pub fn record(
        &self,
        job: u32,
        block: BlockId,
        record: BlockRecord,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let (record, at) = self.encoded(block, record);
        let bytes = &mut scratch.bytes_mut()[RECORD_AT..][..RECORD_BYTES];
        bytes.copy_from_slice(&record);
        ring.write(job, self.blocks.as_raw_fd(), bytes.as_ptr(), RECORD_BYTES, at);
        1
    }

    /// A block's record with what is durable of it, and where it stands.
    fn encoded(&self, block: BlockId, record: BlockRecord) -> ([u8; RECORD_BYTES], u64) {
        let record = record.with_durable(self.durability.pages(block));
        (record.encode(), u64::from(block.0) * RECORD_BYTES as u64)
    }

    /// Queues the syncs of all three files.
    pub fn sync(&mut self, job: u32, ring: &mut Ring) -> u32 {
        self.durability.begin_flush(job);
        for file in [&self.data, &self.oob, &self.blocks] {
            ring.sync_data(job, file.as_raw_fd());
        }
        3
    }

    /// Queues the read of the generation: after the syncs, so that a server which was fenced
    /// meanwhile does not acknowledge them.
    pub fn read_generation(&self, job: u32, scratch: &mut Buffer, ring: &mut Ring) -> u32 {
        let to = scratch.bytes_mut()[GENERATION_AT..].as_mut_ptr();
        ring.read(job, self.fence.file.as_raw_fd(), to, GENERATION_BYTES, self.fence.at);
        1
    }

    /// True if the generation that was read is the one of this server's open.
    pub fn is_current(&self, scratch: &Buffer) -> bool {
        scratch.bytes()[GENERATION_AT..][..GENERATION_BYTES] == self.fence.expected
    }
}

/// Gives back a part of a file.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is involved.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `Err` if the file system of `file` takes no room back from it, so that no block could be erased. Asked
/// behind its end, where that changes nothing.
pub fn gives_back(file: &File) -> io::Result<()> {
    let end = file.metadata()?.len();
    punch(file, end, BLOCK_BYTES as u64).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this file system takes no room back from files (FALLOC_FL_PUNCH_HOLE), and erased flash is \
             such room: put the folder on another one, for example ext4, xfs, btrfs or tmpfs; or have the \
             device in a plain file, kind = \"file\" in [device]",
        ),
        _ => error,
    })
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
