//! Bytes of a fast tier, in files or on a disk, by direct I/O; each write is durable when it
//! completes (`O_DIRECT | O_DSYNC`: the writes of different units run side by side, which those
//! through the page cache of one file do not).
//!
//! Three areas: slots (slot index * 4096); OOBs (32 bytes a slot, each block's to the next 4096);
//! records (16 bytes a block). A program writes its slots and, beside them, the sectors with their
//! OOBs; both must be durable before it is done. An erase writes zeroes over the OOBs and then the
//! record; it gives nothing back to a file system, which else would have to find new room, and
//! write of it, for the next write.
//!
//! Invariants:
//! - a program writes no record: how far a block is written, its OOBs tell; a slot that did not
//!   get there with its OOB is told by its checksum, one whose OOB did not by the zeroes;
//! - an OOB sector that is written again holds what it held, and more: programs of a block follow
//!   one another, and the OOBs of a block that is partly written are in memory.

use super::file::RECORD_BYTES;
use super::records::Records;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::Ring;
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

const SECTOR: u64 = BLOCK_BYTES as u64;
const OOBS_PER_SECTOR: u32 = (BLOCK_BYTES / OOB_BYTES) as u32;

/// Part of a file.
pub struct Area {
    /// The file.
    pub file: File,
    /// Where the area begins.
    pub at: u64,
}

impl Area {
    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Sectors with the OOBs of one block.
pub fn oob_sectors(geometry: &Geometry) -> u32 {
    geometry.slots_per_block().div_ceil(OOBS_PER_SECTOR)
}

/// The fast units of one shard.
pub struct FastStore {
    slots: Area,
    oobs: Area,
    record_area: Area,
    records: Records,
    geometry: Geometry,
    /// OOBs of the blocks that are partly written.
    begun: BTreeMap<u32, Buffer>,
    /// By block, the slots up to the last that had an OOB when the store was opened.
    written: Vec<u32>,
    /// OOBs of an erased block, where an erase writes them.
    zeroes: Buffer,
    /// Memory for OOBs of blocks to come.
    spare: Vec<Buffer>,
}

impl FastStore {
    /// Slots, OOBs and records in these areas, which must be open for direct I/O. `known` may tell of a
    /// block with this record how many of its slots are written.
    pub fn open(
        [slots, oobs, records]: [Area; 3],
        geometry: &Geometry,
        known: impl Fn(BlockId, &[u8; RECORD_BYTES]) -> Option<u32>,
    ) -> io::Result<Self> {
        let sectors = oob_sectors(geometry);
        let mut store = Self {
            slots,
            oobs,
            records: Records::read(&records.file, records.at, (0, geometry.blocks()))?,
            record_area: records,
            geometry: *geometry,
            begun: BTreeMap::new(),
            written: Vec::with_capacity(geometry.blocks() as usize),
            zeroes: Buffer::new(sectors),
            spare: Vec::new(),
        };
        for block in 0..geometry.blocks() {
            // The OOBs of one that is partly written are wanted all the same.
            let known = known(BlockId(block), &store.stored_record(BlockId(block)));
            let whole = known == Some(geometry.slots_per_block());
            if whole || known == Some(0) && store.begins_empty(BlockId(block))? {
                store.written.extend(known);
                continue;
            }
            let mut oobs = store.spare.pop().unwrap_or_else(|| Buffer::new(sectors));
            store.oobs.file.read_exact_at(oobs.bytes_mut(), store.oobs_at(BlockId(block)))?;
            let mut found = oobs.bytes().as_chunks::<OOB_BYTES>().0.iter();
            let last = found.rposition(|oob| *oob != [0; OOB_BYTES]);
            let written = last.map_or(0, |last| last as u32 + 1);
            store.written.push(written);
            if written > 0 && written < geometry.slots_per_block() {
                store.begun.insert(block, oobs);
            } else {
                store.spare.push(oobs);
            }
        }
        Ok(store)
    }

    /// Whether the first slots of a block have no OOBs.
    fn begins_empty(&mut self, block: BlockId) -> io::Result<bool> {
        let mut sector =
            self.spare.pop().unwrap_or_else(|| Buffer::new(oob_sectors(&self.geometry)));
        let bytes = &mut sector.bytes_mut()[..SECTOR as usize];
        self.oobs.file.read_exact_at(bytes, oobs_at(&self.oobs, &self.geometry, block))?;
        let empty = bytes.iter().all(|&byte| byte == 0);
        self.spare.push(sector);
        Ok(empty)
    }

    /// The OOB of a slot, in the area of the OOBs.
    pub fn oob_in(oobs: &Area, geometry: &Geometry, slot: SlotId) -> io::Result<Oob> {
        let index = slot.0 % geometry.slots_per_block();
        let at = oobs_at(oobs, geometry, geometry.block_of(slot))
            + u64::from(index / OOBS_PER_SECTOR) * SECTOR;
        let mut sector = Buffer::new(1);
        oobs.file.read_exact_at(sector.bytes_mut(), at)?;
        let found = sector.bytes().as_chunks::<OOB_BYTES>().0;
        Ok(found[(index % OOBS_PER_SECTOR) as usize])
    }

    /// The record of a block, in the area of the records.
    pub fn record_in(
        records: &Area,
        geometry: &Geometry,
        block: BlockId,
    ) -> io::Result<[u8; RECORD_BYTES]> {
        Ok(Records::read(&records.file, records.at, (0, geometry.blocks()))?.of(block))
    }

    /// How many slots of a block were written when the store was opened.
    pub fn slots_written(&self, block: BlockId) -> u32 {
        self.written[block.0 as usize]
    }

    /// The record of a block as of its last erase.
    pub fn stored_record(&self, block: BlockId) -> [u8; RECORD_BYTES] {
        self.records.of(block)
    }

    fn oobs_at(&self, block: BlockId) -> u64 {
        oobs_at(&self.oobs, &self.geometry, block)
    }

    /// The sectors with the OOBs of `count` slots, counted within the block.
    fn sectors_of(&self, (first, count): (SlotId, u32)) -> (u32, u32) {
        let slot = first.0 % self.geometry.slots_per_block();
        (slot / OOBS_PER_SECTOR, (slot + count).div_ceil(OOBS_PER_SECTOR))
    }

    /// Queues the reads of `count` slots, to `to`, and of their OOBs, to the end of the scratch
    /// memory.
    pub fn read(
        &self,
        job: u32,
        (first, count): (SlotId, u32),
        to: *mut u8,
        scratch: &mut Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let at = self.slots.at + u64::from(first.0) * SECTOR;
        ring.read(job, self.slots.fd(), to, count as usize * BLOCK_BYTES, at);
        let (from, end) = self.sectors_of((first, count));
        let oobs = scratch.address(scratch.blocks() - 2).as_ptr();
        let at = self.oobs_at(self.geometry.block_of(first)) + u64::from(from) * SECTOR;
        ring.read(job, self.oobs.fd(), oobs, (end - from) as usize * BLOCK_BYTES, at);
        2
    }

    /// The OOB of slot `i` of a completed read from `first` on.
    pub fn oob(&self, scratch: &Buffer, first: SlotId, i: u32) -> Oob {
        let slot = first.0 % self.geometry.slots_per_block();
        let sectors = &scratch.bytes()[(scratch.blocks() as usize - 2) * BLOCK_BYTES..];
        let at = (slot % OOBS_PER_SECTOR + i) as usize * OOB_BYTES;
        sectors[at..at + OOB_BYTES].try_into().expect("the slice has this length")
    }

    /// Queues the writes of `count` slots, which stand in the scratch memory behind their OOBs.
    pub fn program(
        &mut self,
        job: u32,
        (first, count): (SlotId, u32),
        scratch: &Buffer,
        ring: &mut Ring,
    ) -> u32 {
        let (found, data) = scratch.bytes().split_at(BLOCK_BYTES);
        let at = self.slots.at + u64::from(first.0) * SECTOR;
        ring.write(job, self.slots.fd(), data.as_ptr(), count as usize * BLOCK_BYTES, at);
        let (from, end) = self.sectors_of((first, count));
        let block = self.geometry.block_of(first);
        let at = self.oobs_at(block) + u64::from(from) * SECTOR;
        let oobs = self.begun.entry(block.0).or_insert_with(|| {
            let sectors = oob_sectors(&self.geometry);
            let mut oobs = self.spare.pop().unwrap_or_else(|| Buffer::new(sectors));
            oobs.bytes_mut().fill(0);
            oobs
        });
        let bytes = count as usize * OOB_BYTES;
        let slot = (first.0 % self.geometry.slots_per_block()) as usize;
        oobs.bytes_mut()[slot * OOB_BYTES..][..bytes].copy_from_slice(&found[..bytes]);
        let sectors = oobs.address(from).as_ptr();
        ring.write(job, self.oobs.fd(), sectors, (end - from) as usize * BLOCK_BYTES, at);
        2
    }

    /// The writes of a program have ended: the OOBs of a full block are not needed any more.
    pub fn programmed(&mut self, (first, count): (SlotId, u32)) {
        let slots = self.geometry.slots_per_block();
        if first.0 % slots + count == slots {
            self.spare.extend(self.begun.remove(&self.geometry.block_of(first).0));
        }
    }

    /// Queues what forgets a block's content.
    pub fn clear(&mut self, job: u32, block: BlockId, ring: &mut Ring) -> u32 {
        self.spare.extend(self.begun.remove(&block.0));
        let zeroes = self.zeroes.bytes();
        ring.write(job, self.oobs.fd(), zeroes.as_ptr(), zeroes.len(), self.oobs_at(block));
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
        self.records.write(job, block, record, scratch.view(0, 1), (&self.record_area.file, ring));
        1
    }

    /// The write of a block's record has ended: the next of its sector goes on.
    pub fn record_written(&mut self, block: BlockId, ring: &mut Ring) {
        self.records.written(block, (&self.record_area.file, ring));
    }
}

/// Where the OOBs of a block begin in the file of their area.
fn oobs_at(oobs: &Area, geometry: &Geometry, block: BlockId) -> u64 {
    oobs.at + u64::from(block.0) * u64::from(oob_sectors(geometry)) * SECTOR
}
