//! How bytes that are appended lie on the volume: in blocks that say themselves whose they are, so that the end of a
//! file needs no record of its own. A recovery reads on until a block does not go on where the last one ended.
//!
//! Invariants:
//! - A block names its file, its index in that and the *stamp* of its writer. No two openings for writing share
//!   a stamp, so that what an earlier writer left beyond the end is never taken for what the later one wrote.
//! - Only the last block of a file is written again, with more bytes; it is all old or all new.
//! - A block vouches for those before it that were durable when it was written. So what a power cut lost, which
//!   nobody vouches for, is told from what was damaged later. Behind the last block stands one without payload, which does so
//!   for that one, until the file goes on.

use crate::api::{BLOCK_BYTES, Error, Volume};

/// Bytes of a file in one block.
pub const PAYLOAD: usize = BLOCK_BYTES - HEAD;

const HEAD: usize = 32;
/// Bits of the payload's length; those above tell how many blocks lie between the last durable one and this.
const LENGTH_BITS: u32 = 12;
const MAGIC: u32 = 0x4b4c_4257;
/// Blocks in one write, at most.
const WRITE_BLOCKS_MAX: usize = 64;
const _: () = assert!(PAYLOAD < 1 << LENGTH_BITS);

/// What a block says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// Whose it is.
    pub file: u64,
    /// Which writer wrote it.
    pub stamp: u64,
    /// The how manyeth block of the file.
    pub index: u32,
    /// So many blocks from the first on were durable when it was written; 0 if it does not say.
    pub durable: u32,
}

impl Head {
    /// Of the block of that writer's file at `index`.
    pub fn new(file: u64, stamp: u64, index: u32) -> Self {
        Self { file, stamp, index, durable: 0 }
    }

    /// It is that block's.
    pub fn is(&self, file: u64, stamp: u64, index: u32) -> bool {
        (self.file, self.stamp, self.index) == (file, stamp, index)
    }

    /// What stands above the length: 0 for nothing, else one more than the blocks between.
    fn vouched(&self) -> u32 {
        let between = self.index.saturating_sub(self.durable);
        if self.durable == 0 || between + 1 >= 1 << (32 - LENGTH_BITS) { 0 } else { between + 1 }
    }
}

/// A block of `payload`.
pub fn encode(head: Head, payload: &[u8]) -> [u8; BLOCK_BYTES] {
    assert!(payload.len() <= PAYLOAD, "a block takes one payload");
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    let length = payload.len() as u32 | head.vouched() << LENGTH_BITS;
    block[4..8].copy_from_slice(&length.to_le_bytes());
    block[8..16].copy_from_slice(&head.file.to_le_bytes());
    block[16..24].copy_from_slice(&head.stamp.to_le_bytes());
    block[24..28].copy_from_slice(&head.index.to_le_bytes());
    block[HEAD..HEAD + payload.len()].copy_from_slice(payload);
    let sum = checksum(&block, payload.len());
    block[28..32].copy_from_slice(&sum.to_le_bytes());
    block
}

/// What a block says of itself, and its payload; `None` if it is none of these, or torn.
pub fn decode(block: &[u8]) -> Option<(Head, &[u8])> {
    let (head, rest) = block.split_first_chunk::<HEAD>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (length, vouched) = (word(4) & ((1 << LENGTH_BITS) - 1), word(4) >> LENGTH_BITS);
    let payload = rest.get(..length as usize)?;
    if word(0) != MAGIC || checksum(block, payload.len()) != word(28) {
        return None;
    }
    let index = word(24);
    let durable = if vouched == 0 { 0 } else { index.saturating_sub(vouched - 1) };
    Some((Head { file: long(8), stamp: long(16), index, durable }, payload))
}

fn checksum(block: &[u8], payload: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..28]), &block[HEAD..HEAD + payload])
}

/// The end of something that is appended to.
#[derive(Clone, Debug)]
pub struct Tail {
    file: u64,
    stamp: u64,
    /// Of the block that `bytes` begin with.
    index: u32,
    /// What is in no whole block yet.
    bytes: Vec<u8>,
    /// The last block lacks some of them.
    dirty: bool,
    /// Blocks from the first on that are durable.
    durable: u32,
    /// For so many of them a block behind them vouches. `None` until this writer has written one.
    vouched: Option<u32>,
}

impl Tail {
    /// Of something that has `size` bytes so far, of which `last` are in a block that is not full.
    pub fn new(file: u64, stamp: u64, size: u64, last: Vec<u8>) -> Self {
        assert_eq!(size % PAYLOAD as u64, last.len() as u64, "whole blocks come before");
        let index = (size / PAYLOAD as u64) as u32;
        Self { file, stamp, index, bytes: last, dirty: false, durable: 0, vouched: None }
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        u64::from(self.index) * PAYLOAD as u64 + self.bytes.len() as u64
    }

    /// Blocks that these take, with `more` bytes.
    pub fn blocks_with(&self, more: usize) -> u64 {
        (self.size() + more as u64).div_ceil(PAYLOAD as u64)
    }

    /// Takes bytes, and writes nothing.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.dirty |= !bytes.is_empty();
    }

    /// Whole blocks are waiting.
    pub fn has_whole(&self) -> bool {
        self.bytes.len() >= PAYLOAD
    }

    /// The bytes of the last block that is not full.
    pub fn last(&self) -> &[u8] {
        &self.bytes
    }

    /// The index of that block.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Writes whole blocks, and with `all` the one that is not full too. `place` tells where an index lies.
    pub fn write(
        &mut self,
        volume: &mut dyn Volume,
        all: bool,
        place: impl Fn(u32) -> Option<u64>,
    ) -> Result<(), Error> {
        let whole = self.bytes.len() / PAYLOAD;
        let count = if all && self.dirty { self.bytes.len().div_ceil(PAYLOAD) } else { whole };
        if count > 0 {
            // The first of them may be written again: what is durable of it is shorter than what comes, and no block behind
            // it may vouch for that.
            self.durable = self.durable.min(self.index);
            self.vouched.get_or_insert(0);
        }
        let mut run: Vec<u8> = Vec::with_capacity(count.min(WRITE_BLOCKS_MAX) * BLOCK_BYTES);
        let mut first = 0;
        for (payload, index) in self.bytes.chunks(PAYLOAD).take(count).zip(self.index..) {
            let at = place(index).ok_or_else(|| beyond(self.file, index))?;
            let blocks = (run.len() / BLOCK_BYTES) as u64;
            if blocks > 0 && (at != first + blocks || blocks == WRITE_BLOCKS_MAX as u64) {
                volume.write(first, &run)?;
                run.clear();
            }
            if run.is_empty() {
                first = at;
            }
            let durable = self.durable.min(index);
            let head = Head { durable, ..Head::new(self.file, self.stamp, index) };
            run.extend_from_slice(&encode(head, payload));
        }
        if !run.is_empty() {
            volume.write(first, &run)?;
        }
        self.bytes.drain(..whole * PAYLOAD);
        self.index += whole as u32;
        self.dirty &= !all && !self.bytes.is_empty();
        Ok(())
    }

    /// All that was written is durable.
    pub fn flushed(&mut self) {
        let last = u32::from(!self.bytes.is_empty() && !self.dirty);
        self.durable = self.index.saturating_add(last);
    }

    /// Writes a block that vouches for the last durable one, if none does, and there is room for it.
    pub fn vouch(
        &mut self,
        volume: &mut dyn Volume,
        place: impl Fn(u32) -> Option<u64>,
    ) -> Result<(), Error> {
        let next = self.index.saturating_add(u32::from(!self.bytes.is_empty()));
        // Before `next` there may be bytes that are in no block yet: nothing is known of that one then.
        let is_due = self.durable == next && self.vouched.is_some_and(|vouched| vouched < next);
        let Some(at) = place(next).filter(|_| is_due) else { return Ok(()) };
        let head = Head { durable: next, ..Head::new(self.file, self.stamp, next) };
        volume.write(at, &encode(head, &[]))?;
        self.vouched = Some(next);
        Ok(())
    }
}

fn beyond(file: u64, index: u32) -> Error {
    Error::Damaged(format!("file {file:x}: block {index} has no place on the volume"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written_and_no_other_bytes_are_one() {
        let head = Head::new(7 << 32 | 1, 9 << 32, 3);
        let block = encode(head, b"some bytes");
        assert_eq!(decode(&block), Some((head, &b"some bytes"[..])));
        for at in 0..HEAD + 10 {
            let mut bent = block;
            bent[at] ^= 1;
            assert_eq!(decode(&bent), None, "byte {at}");
        }
        let mut long = block;
        long[7] = 0xff;
        assert_eq!(decode(&long), None, "a length beyond the block");
        assert_eq!(decode(&[0; BLOCK_BYTES]), None);
        assert_eq!(decode(&[]), None);
    }

    #[test]
    fn a_block_vouches_for_what_was_durable_before_it_or_for_nothing() {
        for (index, durable, told) in [
            (3, 0, 0),
            (3, 1, 1),
            (3, 3, 3),
            (1 << 19, 1, 1),
            (1 << 21, 1, 0),
            (u32::MAX, u32::MAX, u32::MAX),
        ] {
            let head = Head { durable, ..Head::new(1 << 32, 5, index) };
            let full = [7; PAYLOAD];
            let block = encode(head, &full);
            assert_eq!(decode(&block), Some((Head { durable: told, ..head }, &full[..])));
        }
        let mut tail = Tail::new(1 << 32, 5, 0, Vec::new());
        tail.append(&[1; PAYLOAD]);
        tail.flushed();
        assert_eq!(tail.durable, 0, "nothing was written");
    }

    #[test]
    fn nobody_vouches_for_a_block_that_is_being_written_again() {
        struct Last(Vec<u8>);
        impl Volume for Last {
            fn blocks(&self) -> u64 {
                9
            }
            fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), Error> {
                unreachable!("it only writes")
            }
            fn write(&mut self, _: u64, bytes: &[u8]) -> Result<(), Error> {
                self.0 = bytes.into();
                Ok(())
            }
            fn flush(&mut self) -> Result<(), Error> {
                Ok(())
            }
        }
        let mut volume = Last(Vec::new());
        let mut tail = Tail::new(1 << 32, 5, 0, Vec::new());
        tail.append(&[1; PAYLOAD + 9]);
        tail.write(&mut volume, true, |index| Some(index.into())).unwrap();
        tail.flushed();
        assert_eq!(tail.durable, 2);
        tail.append(&[1; PAYLOAD]);
        tail.write(&mut volume, true, |index| Some(index.into())).unwrap();
        let blocks = volume.0.chunks(BLOCK_BYTES).map(|block| decode(block).unwrap().0);
        let told: Vec<_> = blocks.map(|head| (head.index, head.durable)).collect();
        assert_eq!(told, [(1, 1), (2, 1)], "of block 1 only what it was before is durable");
    }
}
