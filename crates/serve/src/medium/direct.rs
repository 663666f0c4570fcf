//! Bytes in a plain file or a block device, by direct I/O.
//!
//! There is no OOB area: the first 4 KiB of a program unit hold the OOBs of the slots that follow, 15 of them, or 16
//! with raw units, which are asked for powers of two; it goes out with one write. The layout, numbers little-endian, by 4 KiB
//! sectors:
//!
//! | sector | holds |
//! |---|---|
//! | 0 | header, written by `crate::device` |
//! | 1 | generation: the 12 bytes of [`super::encode_generation`] |
//! | 2.. | one 16-byte record a block, `nand::BlockRecord` |
//! | from the next multiple of a block's bytes | the blocks of all shards in turn |
//! | behind them, for each time that it grew | records and blocks of what it grew by, likewise |
//!
//! The first sector of a program unit:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..4 | `b"WPU1"` |
//! | 4..8 | erase count of the block when it was programmed |
//! | 8..12 | page within the medium |
//! | 12..16 | CRC-32C of the other bytes up to the end of the OOBs |
//! | 16..24 | generation of the server that wrote it |
//! | 32.. | OOBs of the slots, 32 bytes each |
//!
//! On a zoned device a block is a zone, from its start as far as whole program units fit, and an erase is a
//! reset. Header, generation and erase counts are then where `crate::device::zoned` says; there are no
//! records: how far a zone is written its pages tell, and that it is bad the device.
//!
//! Invariants: a page counts only if its first sector is sound and names the block's present erase
//! count, so what an erase could not discard is never taken for data; records change only at an
//! erase and are written after the discard, so write pointers are found by looking
//! ([`DirectStore::write_pointers`]); writes of one record sector follow one another.

use super::Watch;
use super::file::{Fence, GENERATION_BYTES, RECORD_BYTES, punch};
use super::records::Records;
use super::zones::{Change, Changer};
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::Ring;
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use nand::BlockRecord;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Slots of data in a program unit: with the OOBs before them 64 KiB.
pub const SLOTS_PER_PAGE: u32 = 15;
/// The same with raw units: who appends to those fills powers of two.
pub const SLOTS_PER_RAW_PAGE: u32 = 16;

/// Bytes of a program unit of so many slots.
pub const fn page_bytes(slots: u32) -> u64 {
    (slots as u64 + 1) * BLOCK_BYTES as u64
}

/// Reads at a time that look for write pointers: a disk is slow at one after the other.
const READS_AT_A_TIME: usize = 32;

const MAGIC: &[u8; 4] = b"WPU1";
/// Where in the first sector of a program unit its OOBs are.
pub const OOBS_AT: usize = 32;
const _: () = assert!(summed_bytes(SLOTS_PER_RAW_PAGE) <= BLOCK_BYTES);

/// Bytes of the first sector of a program unit of so many slots that its checksum covers.
const fn summed_bytes(slots: u32) -> usize {
    OOBS_AT + slots as usize * OOB_BYTES
}

/// Where one shard's part of the file lies.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    /// In the order of their blocks: what the device was made with, and what it grew by since.
    pub extents: Vec<Extent>,
    /// From one block to the next.
    pub stride: u64,
    /// This open's generation, kept with each page.
    pub generation: u64,
}

/// Blocks that lie side by side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub blocks: u32,
    /// First byte of their records, a multiple of 4 KiB.
    pub records_at: u64,
    /// First byte of the blocks.
    pub blocks_at: u64,
}

impl Place {
    /// Of blocks without records that lie side by side, as zones do.
    pub fn of_zones(blocks_at: u64, stride: u64, generation: u64) -> Self {
        let all = Extent { first: 0, blocks: u32::MAX, records_at: 0, blocks_at };
        Self { extents: vec![all], stride, generation }
    }

    /// The first byte of a block.
    pub fn block_at(&self, block: BlockId) -> u64 {
        let extent = &self.extents[self.extent_of(block)];
        extent.blocks_at + u64::from(block.0 - extent.first) * self.stride
    }

    fn extent_of(&self, block: BlockId) -> usize {
        let found = self.extents.iter().rposition(|extent| extent.first <= block.0);
        found.expect("the first extent begins with block 0")
    }
}

/// One shard's part of a file or block device.
pub struct DirectStore {
    file: File,
    geometry: Geometry,
    place: Place,
    generation_at: u64,
    expected: [u8; GENERATION_BYTES],
    manner: Manner,
}

/// What the blocks are on.
enum Manner {
    /// One for each extent.
    Plain(Vec<Records>),
    Zoned {
        changer: Changer,
        erase_counts: Arc<[AtomicU32]>,
        first: usize,
    },
}

impl DirectStore {
    /// Opens a part of `file`, which must be open for direct I/O.
    pub fn open(file: File, geometry: &Geometry, place: Place, fence: &Fence) -> io::Result<Self> {
        let records = place
            .extents
            .iter()
            .map(|extent| Records::read(&file, extent.records_at, (extent.first, extent.blocks)));
        let manner = Manner::Plain(records.collect::<io::Result<_>>()?);
        let Fence { at: generation_at, expected, .. } = *fence;
        Ok(Self { file, geometry: *geometry, place, generation_at, expected, manner })
    }

    /// Opens a part of a zoned device. The erase counts of its blocks are those from `first` on, which it
    /// keeps true.
    pub fn open_zoned(
        file: File,
        geometry: &Geometry,
        place: Place,
        fence: &Fence,
        (erase_counts, first): (Arc<[AtomicU32]>, usize),
    ) -> io::Result<Self> {
        let manner =
            Manner::Zoned { changer: Changer::new(file.try_clone()?)?, erase_counts, first };
        let Fence { at: generation_at, expected, .. } = *fence;
        Ok(Self { file, geometry: *geometry, place, generation_at, expected, manner })
    }

    /// Looks at the generation past the page cache.
    pub fn watch(&self) -> Option<Watch> {
        let file = self.file.try_clone().ok()?;
        Some(Watch::new(file, self.generation_at, self.expected, true))
    }

    /// The record of a block as of its last erase, if it is sound; not kept on zones.
    pub fn stored_record(&self, block: BlockId) -> Option<BlockRecord> {
        match &self.manner {
            Manner::Plain(records) => {
                BlockRecord::decode(&records[self.place.extent_of(block)].of(block))
            }
            Manner::Zoned { .. } => None,
        }
    }

    pub fn is_zoned(&self) -> bool {
        matches!(self.manner, Manner::Zoned { .. })
    }

    /// How many pages of each block are programmed, of this erase count each: [`Pages::written`].
    pub fn write_pointers(&self, blocks: &[(BlockId, u32)]) -> io::Result<Vec<Written>> {
        let pages = self.pages();
        let all = self.geometry.pages_per_block;
        side_by_side(blocks, |&(block, erase_count)| pages.written(block, erase_count, all))
    }

    /// Of zones, each with the number of pages that it may hold at most: its erase count, if it has a
    /// sound page, and how many pages are programmed. One whose first page cannot be read counts as
    /// written as far as it may be.
    pub fn found_in_zones(
        &self,
        zones: &[(BlockId, u32)],
    ) -> io::Result<Vec<Option<(u32, Written)>>> {
        let pages = self.pages();
        side_by_side(zones, |&(block, pages_max)| match pages.erase_count(block) {
            Ok(None) => Ok(None),
            Ok(Some(erase_count)) => {
                Ok(Some((erase_count, pages.written(block, erase_count, pages_max)?)))
            }
            Err(error) if is_unreadable(&error) => {
                Ok(Some((0, Written { pages: pages_max, unreadable: true })))
            }
            Err(error) => Err(error),
        })
    }

    /// Whether one of these pages, of blocks of these erase counts, is programmed.
    pub fn any_is_sound(&self, pages: &[(BlockId, u32, u32)]) -> io::Result<bool> {
        let all = self.pages();
        let found = side_by_side(pages, |&(block, erase_count, page)| {
            all.look(&mut Buffer::new(1), block, page, erase_count)
        })?;
        Ok(found.iter().any(|found| matches!(found, Look::Of(_))))
    }

    /// The erase count that a block's own pages tell; 0 if none does.
    pub fn erase_count_of(&self, block: BlockId) -> io::Result<u32> {
        Ok(self.pages().erase_count(block)?.unwrap_or(0))
    }

    fn pages(&self) -> Pages<'_> {
        Pages { file: &self.file, geometry: self.geometry, place: &self.place }
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
        let slots = self.geometry.slots_per_page;
        let oobs = slots as usize * OOB_BYTES;
        sector.copy_within(..oobs, OOBS_AT);
        sector[OOBS_AT + oobs..].fill(0);
        sector[..4].copy_from_slice(MAGIC);
        sector[4..8].copy_from_slice(&erase_count.to_le_bytes());
        let page = first.0 / self.geometry.slots_per_page;
        sector[8..12].copy_from_slice(&page.to_le_bytes());
        sector[16..24].copy_from_slice(&self.place.generation.to_le_bytes());
        sector[24..OOBS_AT].fill(0);
        let sum = checksum(sector, slots);
        sector[12..16].copy_from_slice(&sum.to_le_bytes());
        let (bytes, len) = (scratch.bytes().as_ptr(), page_bytes(slots) as usize);
        ring.write(job, self.file.as_raw_fd(), bytes, len, self.pages().page_at(first));
        1
    }

    /// Gives back what a program has left of a page. On a zone nothing is given back before its reset.
    pub fn forget_page(&self, first: SlotId) -> io::Result<()> {
        if self.is_zoned() {
            return Ok(());
        }
        let bytes = page_bytes(self.geometry.slots_per_page);
        punch(&self.file, self.pages().page_at(first), bytes)
    }

    /// Queues the discard of a block, or the reset of a zone, for which `scratch` is memory.
    pub fn clear(
        &mut self,
        job: u32,
        block: BlockId,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        if self.is_zoned() {
            return self.change(job, block, Change::Reset, scratch, ring);
        }
        let pages = u64::from(self.geometry.pages_per_block);
        let bytes = pages * page_bytes(self.geometry.slots_per_page);
        ring.punch(job, self.file.as_raw_fd(), self.pages().block_at(block), bytes);
        1
    }

    /// Queues the finish of a zone.
    pub fn finish(
        &mut self,
        job: u32,
        block: BlockId,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        self.change(job, block, Change::Finish, scratch, ring)
    }

    fn change(
        &mut self,
        job: u32,
        block: BlockId,
        change: Change,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let (at, bytes) = (self.pages().block_at(block), self.place.stride);
        let Manner::Zoned { changer, .. } = &mut self.manner else { return 0 };
        // Without a descriptor the ring tells the job so.
        let event = changer.ask(job, change, at, bytes).unwrap_or(-1);
        ring.read_event(job, event, scratch.bytes_mut().as_mut_ptr());
        1
    }

    /// What came of the change of a zone that `job` asked for: 0, or an error number below it. `None`
    /// for all other I/O.
    pub fn changed(&mut self, job: u32) -> Option<i32> {
        match &mut self.manner {
            Manner::Plain(_) => None,
            Manner::Zoned { changer, .. } => changer.take(job),
        }
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
        match &mut self.manner {
            Manner::Plain(records) => {
                let records = &mut records[self.place.extent_of(block)];
                records.write(job, block, record, scratch.view(0, 1), (&self.file, ring));
                1
            }
            Manner::Zoned { erase_counts, first, .. } => {
                let erase_count =
                    BlockRecord::decode(&record).map_or(0, |record| record.erase_count);
                erase_counts[*first + block.0 as usize].store(erase_count, Ordering::Relaxed);
                0
            }
        }
    }

    /// The write of a block's record has ended: the next of its sector goes on.
    pub fn record_written(&mut self, block: BlockId, ring: &mut Ring) {
        if let Manner::Plain(records) = &mut self.manner {
            let of = self.place.extent_of(block);
            records[of].written(block, (&self.file, ring));
        }
    }

    /// Queues the sync.
    pub fn sync(&self, job: u32, ring: &mut Ring) -> u32 {
        ring.sync_data(job, self.file.as_raw_fd());
        1
    }

    /// Queues the read of the generation, after the sync.
    pub fn read_generation(&self, job: u32, scratch: &mut Buffer, ring: &mut Ring) -> u32 {
        let to = scratch.bytes_mut().as_mut_ptr();
        ring.read(job, self.file.as_raw_fd(), to, BLOCK_BYTES, self.generation_at);
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
    place: &'a Place,
}

impl Pages<'_> {
    /// The erase count of a block when its first page was programmed, or its second one if that is not
    /// sound.
    fn erase_count(self, block: BlockId) -> io::Result<Option<u32>> {
        let mut sector = Buffer::new(1);
        for page in 0..self.geometry.pages_per_block.min(2) {
            let first = self.geometry.slot(block, page, 0);
            self.file.read_exact_at(sector.bytes_mut(), self.page_at(first))?;
            let erase_count = word(sector.bytes(), 4);
            if self.header(sector.bytes(), first, erase_count).is_some() {
                return Ok(Some(erase_count));
            }
        }
        Ok(None)
    }

    /// Finds how many of the first `pages` pages of a block are programmed. Most blocks are full or empty, which a few looks tell; in
    /// the others every page is looked at, so that what was flushed is found whatever is damaged before it. A page
    /// that the disk cannot read counts as programmed: nothing is then written over what it may hold.
    fn written(self, block: BlockId, erase_count: u32, pages: u32) -> io::Result<Written> {
        let mut sector = Buffer::new(1);
        let mut unreadable = false;
        let mut look = |page: u32| -> io::Result<Look> {
            let found = self.look(&mut sector, block, page, erase_count)?;
            unreadable |= found == Look::Unreadable;
            Ok(found)
        };
        let pages = last_written(pages, &mut look)?;
        Ok(Written { pages, unreadable })
    }

    /// What is at a page, which is read to `sector`.
    fn look(
        self,
        sector: &mut Buffer,
        block: BlockId,
        page: u32,
        erase_count: u32,
    ) -> io::Result<Look> {
        let first = self.geometry.slot(block, page, 0);
        match self.file.read_exact_at(sector.bytes_mut(), self.page_at(first)) {
            Ok(()) => Ok(self.header(sector.bytes(), first, erase_count).into()),
            Err(error) if is_unreadable(&error) => Ok(Look::Unreadable),
            Err(error) => Err(error),
        }
    }

    /// The generation in a page's first sector, if it is sound and of the block's present life.
    fn header(&self, sector: &[u8], first: SlotId, erase_count: u32) -> Option<u64> {
        let page = first.0 / self.geometry.slots_per_page;
        let sound = sector[..4] == *MAGIC
            && word(sector, 4) == erase_count
            && word(sector, 8) == page
            && word(sector, 12) == checksum(sector, self.geometry.slots_per_page);
        sound.then(|| u64::from(word(sector, 16)) | u64::from(word(sector, 20)) << 32)
    }

    fn block_at(&self, block: BlockId) -> u64 {
        self.place.block_at(block)
    }

    fn page_at(&self, slot: SlotId) -> u64 {
        let page = u64::from(self.geometry.page_in_block(slot));
        self.block_at(self.geometry.block_of(slot))
            + page * page_bytes(self.geometry.slots_per_page)
    }
}

/// How far a block is programmed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Written {
    /// Pages from the first on.
    pub pages: u32,
    /// The disk could not read one of those that were looked at.
    pub unreadable: bool,
}

/// What a look at a page finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Look {
    Empty,
    /// Programmed in this generation.
    Of(u64),
    Unreadable,
}

impl From<Option<u64>> for Look {
    fn from(generation: Option<u64>) -> Self {
        generation.map_or(Self::Empty, Self::Of)
    }
}

/// The page behind the last that is programmed, of the first `pages` of a block. Pages before it that are not sound are damaged if
/// they were flushed; what was not, a power loss may have left so, and the core tells the one from the other. Behind a page of a
/// later server those of an earlier one are what such a loss left, and count no more.
fn last_written(pages: u32, look: &mut impl FnMut(u32) -> io::Result<Look>) -> io::Result<u32> {
    if pages == 0 {
        return Ok(0);
    }
    if let Look::Of(_) = look(pages - 1)? {
        return Ok(pages);
    }
    if look(0)? == Look::Empty && (pages == 1 || look(1)? == Look::Empty) {
        return Ok(0);
    }
    let (mut newest, mut end) = (0, 0);
    for page in 0..pages {
        match look(page)? {
            Look::Of(at) if at < newest => break,
            Look::Of(at) => (newest, end) = (at, page + 1),
            Look::Unreadable => end = page + 1,
            Look::Empty => {}
        }
    }
    Ok(end)
}

/// True of an error of a disk that answers, and has lost what is asked for.
fn is_unreadable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODATA | libc::EILSEQ))
}

fn word(sector: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| sector[at + i]))
}

/// Does the same for all `items`, many at a time.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&T) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let part = items.len().div_ceil(READS_AT_A_TIME).max(1);
    let run = |items: &[T]| items.iter().map(&each).collect::<io::Result<Vec<R>>>();
    thread::scope(|scope| {
        let run = &run;
        let parts: Vec<_> =
            items.chunks(part).map(|items| scope.spawn(move || run(items))).collect();
        let mut all = Vec::with_capacity(items.len());
        for part in parts {
            all.extend(part.join().expect("reading does not panic")?);
        }
        Ok(all)
    })
}

/// CRC-32C of the first sector of a page of so many slots, without the place where it stands.
fn checksum(sector: &[u8], slots: u32) -> u32 {
    let sum = flash::crc(&sector[..12]);
    flash::crc_append(sum, &sector[16..summed_bytes(slots)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block of 8 pages, written up to `end`, with one unreadable page or none.
    #[test]
    fn a_damaged_page_hides_nothing_that_was_written_behind_it() {
        let hows = [Look::Unreadable, Look::Empty];
        for (how, end) in hows.into_iter().flat_map(|how| (0..=8).map(move |end| (how, end))) {
            for bad in 0..=8 {
                let mut look = |page: u32| {
                    Ok(match page {
                        _ if page == bad => how,
                        _ if page < end => Look::Of(3),
                        _ => Look::Empty,
                    })
                };
                let found = last_written(8, &mut look).unwrap();
                let last_is_gone = how == Look::Empty && bad + 1 == end;
                let least = end - u32::from(last_is_gone);
                assert!(found >= least, "written to {end}, page {bad} {how:?}: {found}");
                assert!(found <= end.max(bad + 1).min(8), "to {end}, {bad} {how:?}: {found}");
            }
        }
        // However much is damaged before it.
        let mut look =
            |page: u32| Ok(if page < 2 || page == 6 { Look::Of(3) } else { Look::Empty });
        assert_eq!(last_written(8, &mut look).unwrap(), 7);
        // What is older than what is before it was never flushed.
        let generations = [5, 5, 4, 4];
        let mut look = |page: u32| Ok(generations.get(page as usize).copied().into());
        assert_eq!(last_written(8, &mut look).unwrap(), 2);
    }
}
