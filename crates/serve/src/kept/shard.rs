//! What is kept of one shard's medium: how far each block is written, and the OOBs of pages, so that a
//! mount after a crash of the process need not look for them. By 4 KiB, then 64 bytes a block, then
//! frames; numbers little-endian.
//!
//! | bytes of the first 4 KiB | holds |
//! |---|---|
//! | 0..4 | the frame that is taken next |
//! | 4..8, 8..12 | plus one, the first slot of the program that ended last on the capacity tier, on the fast tier; 0: it is erased since, or there was none |
//! | 64..96, 96..128 | the OOB of that slot |
//!
//! | bytes of a block's entry | holds |
//! |---|---|
//! | 0..4 | CRC-32C of bytes 4..64 and the block (u32) |
//! | 4..8 | erase count |
//! | 8..12 | slots written since the erase, from the first on |
//! | 12..16 | its frame; all ones: none |
//! | 16..20 | 1: settled, the above is all there is; 2: a program or erase is under way |
//! | 32..64 | OOB of the first slot; zeroes: not known |
//!
//! | bytes of a frame | holds |
//! |---|---|
//! | 0..4 | block |
//! | 4..8 | erase count |
//! | 8..12 | CRC-32C of the bytes before |
//! | from 64 | OOB of each slot of the block; zeroes: not known |
//!
//! Invariants:
//! - an entry says that something is under way before the I/O of that is queued, and says that it is
//!   settled before the completion is told: what is settled is on the medium, and nothing else is;
//! - what is read here counts only if its checksum is right. An OOB has one of its own, which covers the
//!   device and the slot. So an entry that a crash, or anything else, has torn is one that says nothing;
//! - a frame is cleared before it is given to a block, and OOBs are put into it before the entry says
//!   that they are there.

use super::region::Part;
use super::word;
use flash::{BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use ftl::format::{Header, decode_header};
use std::sync::atomic::{Ordering, compiler_fence};

/// The memory of one shard.
pub struct KeptShard {
    part: Part,
    geometry: Geometry,
    frames: u32,
    /// Of the shard's uuid, as the OOBs are summed.
    uuid_crc: u32,
    /// A mount is under way.
    mounting: bool,
    /// Entries say something.
    trusted: bool,
    /// Reads that were answered, and such that were not.
    counts: KeptCounts,
    /// What is left out, to show that tests find it.
    #[cfg(test)]
    pub flaw: Option<Flaw>,
}

/// A deliberate bug.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flaw {
    /// An erase is under way and the entry does not say so.
    EraseUnsaid,
    /// A program is under way and the entry does not say so.
    ProgramUnsaid,
    /// What a mount reads of a torn page is answered as if it were whole.
    TornLearned,
}

/// How a mount went.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KeptCounts {
    /// Reads of the mount that were answered from memory.
    pub reads_answered: u64,
    /// Reads of the mount that went to the medium.
    pub reads_passed: u64,
}

/// What must be on a medium that kept memory is believed for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Witness {
    /// Nothing that is known of.
    None,
    /// This slot with this OOB.
    Slot(SlotId, Oob),
    /// It was changed when the process died, or since.
    Damaged,
}

/// What an entry says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    erase_count: u32,
    slots: u32,
    frame: u32,
    state: u32,
    first: Oob,
}

const SETTLED: u32 = 1;
const UNDER_WAY: u32 = 2;
const NO_FRAME: u32 = u32::MAX;

const HEAD_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 64;
const FRAME_HEAD_BYTES: usize = 64;
const _: () = assert!(ENTRY_BYTES == 32 + OOB_BYTES);

/// Bytes that a shard of this shape takes with so many frames.
pub fn shard_bytes(geometry: &Geometry, frames: u32) -> u64 {
    let entries = u64::from(geometry.blocks()) * ENTRY_BYTES as u64;
    let frames = u64::from(frames) * frame_bytes(geometry) as u64;
    (HEAD_BYTES as u64 + entries + frames).next_multiple_of(HEAD_BYTES as u64)
}

/// Bytes of a frame.
pub fn frame_bytes(geometry: &Geometry) -> usize {
    FRAME_HEAD_BYTES + geometry.slots_per_block() as usize * OOB_BYTES
}

impl KeptShard {
    /// Over memory that is all zeroes, or with `trusted` that an earlier server has left.
    pub fn new(part: Part, geometry: &Geometry, frames: u32, uuid_crc: u32, trusted: bool) -> Self {
        assert!(part.bytes().len() as u64 >= shard_bytes(geometry, frames));
        Self {
            part,
            geometry: *geometry,
            frames,
            uuid_crc,
            mounting: false,
            trusted,
            counts: KeptCounts::default(),
            #[cfg(test)]
            flaw: None,
        }
    }

    /// A mount begins: until its end reads may be answered from here, and are noted.
    pub fn begin_mount(&mut self) {
        self.mounting = true;
    }

    /// The mount has ended. How it went.
    pub fn end_mount(&mut self) -> KeptCounts {
        self.mounting = false;
        self.counts
    }

    /// A mount is under way.
    pub fn is_mounting(&self) -> bool {
        self.mounting
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.part.bytes_mut().fill(0);
        self.trusted = false;
    }

    /// Slots of a block that are written, if nothing was under way there; the medium says that its
    /// erase count is `erase_count`.
    pub fn slots_written(&self, block: BlockId, erase_count: u32) -> Option<u32> {
        if !self.trusted {
            return None;
        }
        let entry = self.entry(block).filter(|entry| entry.state == SETTLED)?;
        (entry.erase_count == erase_count).then_some(entry.slots)
    }

    /// What was programmed last on a tier.
    pub fn witness(&self, fast: bool) -> Witness {
        let (word_at, oob_at) = witness_at(fast);
        let bytes = self.part.bytes();
        let Some(slot) = word(bytes, word_at).checked_sub(1).filter(|_| self.trusted) else {
            return Witness::None;
        };
        let slot = SlotId(slot);
        let oob: Oob = bytes[oob_at..oob_at + OOB_BYTES].try_into().expect("the length of an OOB");
        let is_slot = u64::from(slot.0) < self.geometry.slots()
            && self.geometry.is_fast(self.geometry.block_of(slot)) == fast;
        match is_slot.then(|| self.header(slot, &oob)).flatten() {
            Some(_) => Witness::Slot(slot, oob),
            None => Witness::Damaged,
        }
    }

    /// Whether a medium that has `found` where the slot was programmed last, of a block with this erase count,
    /// is older than this memory. A copy from before of the memory itself is told by what came later there.
    pub fn is_newer(&self, (slot, oob): (SlotId, Oob), (found, erase_count): (Oob, u32)) -> bool {
        if found == oob {
            return false;
        }
        let order = |oob| self.header(slot, oob).map(|header| header.order);
        match order(&found) {
            Some(there) => Some(there) < order(&oob),
            None => {
                let entry = self.entry(self.geometry.block_of(slot));
                entry.is_some_and(|entry| erase_count <= entry.erase_count)
            }
        }
    }

    /// A program of `slot` has ended: until its block is erased, the slot is on the medium.
    fn put_witness(&mut self, slot: SlotId, oob: &[u8]) {
        let (word_at, oob_at) = witness_at(self.geometry.is_fast(self.geometry.block_of(slot)));
        let bytes = self.part.bytes_mut();
        // Cut short between the two, the OOB is of another slot than the word says: damaged.
        bytes[oob_at..oob_at + OOB_BYTES].copy_from_slice(oob);
        compiler_fence(Ordering::Release);
        bytes[word_at..word_at + 4].copy_from_slice(&(slot.0 + 1).to_le_bytes());
    }

    fn forget_witness_in(&mut self, block: BlockId) {
        let (word_at, _) = witness_at(self.geometry.is_fast(block));
        let slot = word(self.part.bytes(), word_at).checked_sub(1).map(SlotId);
        if slot.is_some_and(|slot| self.geometry.block_of(slot) == block) {
            self.part.bytes_mut()[word_at..word_at + 4].fill(0);
        }
    }

    /// What was found on the medium: so many slots of a block are written, and nothing is under way.
    pub fn found(&mut self, block: BlockId, erase_count: u32, slots: u32) {
        let old = self.entry(block).filter(|entry| entry.erase_count == erase_count);
        let entry = match old {
            // Its frame may have been given to another block by now: then that says so itself.
            Some(old) => Entry { slots, state: SETTLED, ..old },
            None => Entry { erase_count, slots, frame: NO_FRAME, state: SETTLED, first: [0; 32] },
        };
        if old != Some(entry) {
            self.put(block, &entry);
        }
    }

    /// A block is not as its write pointer alone would say.
    pub fn forget(&mut self, block: BlockId) {
        let at = HEAD_BYTES + block.0 as usize * ENTRY_BYTES;
        self.part.bytes_mut()[at..at + ENTRY_BYTES].fill(0);
    }

    /// A program of the block is about to be queued.
    pub fn begin_program(&mut self, block: BlockId) {
        #[cfg(test)]
        if self.flaw == Some(Flaw::ProgramUnsaid) {
            return;
        }
        // An entry that says nothing goes on saying nothing, until an erase.
        if let Some(entry) = self.entry(block) {
            self.put(block, &Entry { state: UNDER_WAY, ..entry });
        }
    }

    /// An erase of the block is about to be queued.
    pub fn begin_erase(&mut self, block: BlockId) {
        #[cfg(test)]
        if self.flaw == Some(Flaw::EraseUnsaid) {
            return;
        }
        self.forget_witness_in(block);
        // Of its pages nobody knows anything from now on.
        if let Some(entry) = self.entry(block) {
            let (frame, first) = (NO_FRAME, [0; OOB_BYTES]);
            self.put(block, &Entry { state: UNDER_WAY, frame, first, ..entry });
        }
    }

    /// Slots from `slot` on are programmed; these are their OOBs.
    pub fn programmed(&mut self, slot: SlotId, erase_count: u32, oobs: &[u8]) {
        let block = self.geometry.block_of(slot);
        let first = slot.0 % self.geometry.slots_per_block();
        let count = (oobs.len() / OOB_BYTES) as u32;
        self.put_witness(slot, &oobs[..OOB_BYTES]);
        let old = self.entry(block);
        // Of a block that nothing is known of, this is not all.
        let Some(mut entry) =
            old.filter(|old| old.erase_count == erase_count && old.slots == first)
        else {
            return;
        };
        if first == 0 {
            entry.first.copy_from_slice(&oobs[..OOB_BYTES]);
            let wants = self.header(slot, &entry.first).is_some_and(|header| !needs_bytes(&header));
            entry.frame = if wants { self.take_frame(block, erase_count) } else { NO_FRAME };
        }
        if self.frame_is_of(&entry, block) {
            let at = self.frame_at(entry.frame) + FRAME_HEAD_BYTES + first as usize * OOB_BYTES;
            self.part.bytes_mut()[at..at + oobs.len()].copy_from_slice(oobs);
        } else {
            entry.frame = NO_FRAME;
        }
        compiler_fence(Ordering::Release);
        (entry.slots, entry.state) = (first + count, SETTLED);
        self.put(block, &entry);
    }

    /// The block is erased.
    pub fn erased(&mut self, block: BlockId, erase_count: u32) {
        let (frame, state, first) = (NO_FRAME, SETTLED, [0; OOB_BYTES]);
        self.put(block, &Entry { erase_count, slots: 0, frame, state, first });
    }

    /// A mount has read the first slot of a block: its OOB, and the checksum of its data. A kill may have left
    /// an OOB without its data, and who is answered from here sees no data.
    pub fn learn_first(&mut self, slot: SlotId, erase_count: u32, (oob, crc): (&Oob, u32)) {
        let block = self.geometry.block_of(slot);
        let fits = self.payload_crc(slot, oob) == Some(crc);
        #[cfg(test)]
        let fits = fits || self.flaw == Some(Flaw::TornLearned) && *oob != [0; OOB_BYTES];
        if !fits {
            return;
        }
        let entry = self.entry(block).filter(|entry| {
            entry.state == SETTLED && entry.slots > 0 && entry.erase_count == erase_count
        });
        if let Some(entry) = entry.filter(|entry| entry.first != *oob) {
            self.put(block, &Entry { first: *oob, ..entry });
        }
    }

    /// Puts the OOBs of `count` slots from `slot` on into `oobs`, zeroes for erased ones; false if not
    /// all are known, or their bytes are wanted, too. `erase_count` is the medium's.
    pub fn answer(
        &mut self,
        slot: SlotId,
        count: u32,
        erase_count: u32,
        oobs: &mut Vec<Oob>,
    ) -> bool {
        let answered = self.is_answered(slot, count, erase_count, oobs);
        if answered {
            self.counts.reads_answered += 1;
        } else {
            oobs.clear();
            self.counts.reads_passed += 1;
        }
        answered
    }

    fn is_answered(&self, slot: SlotId, count: u32, erase_count: u32, oobs: &mut Vec<Oob>) -> bool {
        let block = self.geometry.block_of(slot);
        let entry = self.entry(block).filter(|entry| {
            entry.state == SETTLED && entry.erase_count == erase_count && self.mounting
        });
        let Some(entry) = entry.filter(|_| self.trusted) else { return false };
        let first = slot.0 % self.geometry.slots_per_block();
        for index in first..first + count {
            if index >= entry.slots {
                oobs.push([0; OOB_BYTES]);
                continue;
            }
            let Some(oob) = self.oob(block, &entry, index) else { return false };
            let header = self.header(SlotId(slot.0 + index - first), &oob);
            if header.is_none_or(|header| needs_bytes(&header)) {
                return false;
            }
            oobs.push(oob);
        }
        true
    }

    /// The checksum of the bytes of a slot with this OOB, if that is sound.
    pub fn payload_crc(&self, slot: SlotId, oob: &Oob) -> Option<u32> {
        self.header(slot, oob).map(|header| header.payload_crc)
    }

    fn header(&self, slot: SlotId, oob: &Oob) -> Option<Header> {
        decode_header(oob, slot, self.uuid_crc)
    }

    /// What is kept of slot `index` of a block.
    fn oob(&self, block: BlockId, entry: &Entry, index: u32) -> Option<Oob> {
        if index == 0 {
            return Some(entry.first);
        }
        if !self.frame_is_of(entry, block) {
            return None;
        }
        let at = self.frame_at(entry.frame) + FRAME_HEAD_BYTES + index as usize * OOB_BYTES;
        self.part.bytes()[at..at + OOB_BYTES].try_into().ok()
    }

    /// Gives the frame that was taken longest ago to a block.
    fn take_frame(&mut self, block: BlockId, erase_count: u32) -> u32 {
        if self.frames == 0 {
            return NO_FRAME;
        }
        let frame = word(self.part.bytes(), 0) % self.frames;
        let (at, len) = (self.frame_at(frame), frame_bytes(&self.geometry));
        let bytes = &mut self.part.bytes_mut()[at..at + len];
        // Whoever had it, has it no more from here on.
        bytes[..FRAME_HEAD_BYTES].fill(0);
        compiler_fence(Ordering::Release);
        bytes[FRAME_HEAD_BYTES..].fill(0);
        compiler_fence(Ordering::Release);
        bytes[..FRAME_HEAD_BYTES].copy_from_slice(&frame_head(block, erase_count));
        self.part.bytes_mut()[..4].copy_from_slice(&(frame + 1).to_le_bytes());
        frame
    }

    fn frame_is_of(&self, entry: &Entry, block: BlockId) -> bool {
        if entry.frame >= self.frames {
            return false;
        }
        let at = self.frame_at(entry.frame);
        self.part.bytes()[at..at + FRAME_HEAD_BYTES] == frame_head(block, entry.erase_count)
    }

    fn frame_at(&self, frame: u32) -> usize {
        let entries = self.geometry.blocks() as usize * ENTRY_BYTES;
        HEAD_BYTES + entries + frame as usize * frame_bytes(&self.geometry)
    }

    fn entry(&self, block: BlockId) -> Option<Entry> {
        let at = HEAD_BYTES + block.0 as usize * ENTRY_BYTES;
        let bytes = &self.part.bytes()[at..at + ENTRY_BYTES];
        if word(bytes, 0) != entry_crc(bytes, block) {
            return None;
        }
        let slots = word(bytes, 8);
        let entry = Entry {
            erase_count: word(bytes, 4),
            slots,
            frame: word(bytes, 12),
            state: word(bytes, 16),
            first: bytes[32..].try_into().ok()?,
        };
        (slots <= self.geometry.slots_per_block()).then_some(entry)
    }

    fn put(&mut self, block: BlockId, entry: &Entry) {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[4..8].copy_from_slice(&entry.erase_count.to_le_bytes());
        bytes[8..12].copy_from_slice(&entry.slots.to_le_bytes());
        bytes[12..16].copy_from_slice(&entry.frame.to_le_bytes());
        bytes[16..20].copy_from_slice(&entry.state.to_le_bytes());
        bytes[32..].copy_from_slice(&entry.first);
        let crc = entry_crc(&bytes, block);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let at = HEAD_BYTES + block.0 as usize * ENTRY_BYTES;
        self.part.bytes_mut()[at..at + ENTRY_BYTES].copy_from_slice(&bytes);
        // Before whatever comes next is queued or told.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Where the witness of a tier is: its slot plus one, and its OOB.
fn witness_at(fast: bool) -> (usize, usize) {
    (4 + 4 * usize::from(fast), 64 + OOB_BYTES * usize::from(fast))
}

/// Whether a mount wants the bytes of such a slot, too.
fn needs_bytes(header: &Header) -> bool {
    header.kind.is_of_checkpoint()
}

fn frame_head(block: BlockId, erase_count: u32) -> [u8; FRAME_HEAD_BYTES] {
    let mut bytes = [0; FRAME_HEAD_BYTES];
    bytes[..4].copy_from_slice(&block.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&erase_count.to_le_bytes());
    let crc = flash::crc(&bytes[..8]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn entry_crc(bytes: &[u8], block: BlockId) -> u32 {
    flash::crc_append(flash::crc(&bytes[4..ENTRY_BYTES]), &block.0.to_le_bytes())
}
