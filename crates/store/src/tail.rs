//! How bytes that are appended lie on the volume: in blocks that say themselves whose they are, so that the end of a
//! file needs no record of its own. A recovery reads on until a block does not go on where the last one ended.
//!
//! Invariants:
//! - A block names its file, its index in that and the *stamp* of its writer. No two openings for writing share
//!   a stamp, so that what an earlier writer left beyond the end is never taken for what the later one wrote.
//! - Only the last block of a file is written again, with more bytes; it is all old or all new.
//! - A block vouches for the bytes before it that were durable when it was written. So what a power cut lost, which
//!   nobody vouches for, is told from what was damaged later, or is an older copy. Behind the last block stands one without
//!   payload, which does so for what is durable of that one; where the file goes on, the block in its place says the same.

use crate::api::{BLOCK_BYTES, Error, Volume};

/// Bytes of a file in one block.
pub const PAYLOAD: usize = BLOCK_BYTES - HEAD;

const HEAD: usize = 32;
/// Bits of the payload's length; those above tell what was durable.
const LENGTH_BITS: u32 = 12;
/// Of those above: the rest of them are the bytes of the block before that were durable, and all before that one was. Without
/// this bit they are one more than the blocks between this one and those that were; 0 for nothing.
const PART: u32 = 1 << 19;
const MAGIC: u32 = 0x4b4c_4257;
/// Blocks in one write, at most.
const WRITE_BLOCKS_MAX: usize = 64;
const _: () = assert!(PAYLOAD < 1 << LENGTH_BITS && PART << LENGTH_BITS == 1 << 31);

/// What a block says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// Whose it is.
    pub file: u64,
    /// Which writer wrote it.
    pub stamp: u64,
    /// The how manyeth block of the file.
    pub index: u32,
    /// So many bytes of the file from the first on were durable when it was written, at least; 0 if it does not say.
    pub durable: u64,
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

    /// What stands above the length.
    fn vouched(&self) -> u32 {
        let before = start(self.index.saturating_sub(1));
        if self.durable > before {
            return PART | (self.durable - before) as u32;
        }
        let blocks = (self.durable / PAYLOAD as u64) as u32;
        let between = self.index - blocks;
        if blocks == 0 || between + 1 >= PART { 0 } else { between + 1 }
    }
}

/// Where the payload of a block begins in its file.
pub fn start(index: u32) -> u64 {
    u64::from(index) * PAYLOAD as u64
}

/// What a block at `index` says is durable by what stands above its length.
fn durable(index: u32, vouched: u32, is_empty: bool) -> u64 {
    let before = start(index.saturating_sub(1));
    let part = u64::from(vouched & !PART);
    if vouched & PART != 0 {
        return if part <= PAYLOAD as u64 { before + part } else { 0 };
    }
    match vouched {
        0 => 0,
        // Builds before this one wrote no more behind the last block than that it was there.
        _ if is_empty => before + 1,
        _ => start(index.saturating_sub(vouched - 1)),
    }
}

/// A block of `payload`.
pub fn encode(head: Head, payload: &[u8]) -> [u8; BLOCK_BYTES] {
    assert!(payload.len() <= PAYLOAD, "a block takes one payload");
    assert!(head.durable <= start(head.index), "it vouches for what is before it");
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
    let durable = durable(index, vouched, payload.is_empty());
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
    /// Bytes in all that are in blocks.
    written: u64,
    /// Bytes in all that are durable, as far as this writer knows.
    durable: u64,
    /// Bytes in all for which a block behind them vouches; those that were there before this writer need none.
    vouched: u64,
}

impl Tail {
    /// Of something that has `size` bytes so far, of which `last` are in a block that is not full.
    pub fn new(file: u64, stamp: u64, size: u64, last: Vec<u8>) -> Self {
        assert_eq!(size % PAYLOAD as u64, last.len() as u64, "whole blocks come before");
        let index = (size / PAYLOAD as u64) as u32;
        Self { file, stamp, index, bytes: last, written: size, durable: 0, vouched: size }
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        start(self.index) + self.bytes.len() as u64
    }

    /// Blocks that these take, with `more` bytes.
    pub fn blocks_with(&self, more: usize) -> u64 {
        (self.size() + more as u64).div_ceil(PAYLOAD as u64)
    }

    /// Takes bytes, and writes nothing.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
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

    /// Begins to write whole blocks, and with `all` the one that is not full too. `place` tells where an index lies.
    pub fn write(
        &mut self,
        volume: &mut dyn Volume,
        all: bool,
        place: impl Fn(u32) -> Option<u64>,
    ) -> Result<(), Error> {
        let whole = self.bytes.len() / PAYLOAD;
        let rest = all && self.written < self.size();
        let count = if rest { self.bytes.len().div_ceil(PAYLOAD) } else { whole };
        let mut run: Vec<u8> = Vec::with_capacity(count.min(WRITE_BLOCKS_MAX) * BLOCK_BYTES);
        let mut first = 0;
        for (payload, index) in self.bytes.chunks(PAYLOAD).take(count).zip(self.index..) {
            let at = place(index).ok_or_else(|| beyond(self.file, index))?;
            let blocks = (run.len() / BLOCK_BYTES) as u64;
            if blocks > 0 && (at != first + blocks || blocks == WRITE_BLOCKS_MAX as u64) {
                volume.begin_write(first, &run)?;
                run.clear();
            }
            if run.is_empty() {
                first = at;
            }
            // Of the first of them, which may be written again, some was durable: the one behind it takes the place of the
            // block that said so, and says the same.
            let durable = self.durable.min(start(index));
            let head = Head { durable, ..Head::new(self.file, self.stamp, index) };
            run.extend_from_slice(&encode(head, payload));
        }
        if !run.is_empty() {
            volume.begin_write(first, &run)?;
        }
        self.bytes.drain(..whole * PAYLOAD);
        self.index += whole as u32;
        self.written = if all { self.size() } else { self.written.max(start(self.index)) };
        Ok(())
    }

    /// All that was written is durable.
    pub fn flushed(&mut self) {
        self.durable = self.written;
    }

    /// Begins to write a block that vouches for what is durable of the last one, if none does, and there is room for it.
    pub fn vouch(
        &mut self,
        volume: &mut dyn Volume,
        place: impl Fn(u32) -> Option<u64>,
    ) -> Result<(), Error> {
        let next = self.written.div_ceil(PAYLOAD as u64) as u32;
        let is_due = self.durable == self.written && self.vouched < self.written;
        let Some(at) = place(next).filter(|_| is_due) else { return Ok(()) };
        let head = Head { durable: self.durable, ..Head::new(self.file, self.stamp, next) };
        volume.begin_write(at, &encode(head, &[]))?;
        self.vouched = self.durable;
        Ok(())
    }
}

fn beyond(file: u64, index: u32) -> Error {
    Error::Damaged(format!("file {file:x}: block {index} has no place on the volume"))
}

/// A block as builds before this one wrote it, which counted no bytes of the last block.
#[cfg(test)]
pub fn as_builds_before_wrote(block: &[u8; BLOCK_BYTES]) -> Option<[u8; BLOCK_BYTES]> {
    let (head, payload) = decode(block)?;
    let blocks = (head.durable / PAYLOAD as u64) as u32;
    let told = if payload.is_empty() { 1 } else { head.index - blocks + 1 };
    let told = if head.durable == 0 { 0 } else { told };
    let mut block = *block;
    block[4..8].copy_from_slice(&(payload.len() as u32 | told << LENGTH_BITS).to_le_bytes());
    let sum = checksum(&block, payload.len());
    block[28..32].copy_from_slice(&sum.to_le_bytes());
    Some(block)
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
        let whole = PAYLOAD as u64;
        for (index, durable, told) in [
            (0, 0, 0),
            (1, 1, 1),
            (3, 0, 0),
            (3, 9, 0),
            (3, whole, whole),
            (3, whole + 9, whole),
            (3, 2 * whole, 2 * whole),
            (3, 2 * whole + 9, 2 * whole + 9),
            (3, 3 * whole, 3 * whole),
            (PART - 1, whole, whole),
            (PART, whole, 0),
            (u32::MAX, start(u32::MAX), start(u32::MAX)),
        ] {
            let head = Head { durable, ..Head::new(1 << 32, 5, index) };
            let block = encode(head, &[7; PAYLOAD]);
            let told = Head { durable: told, ..head };
            assert_eq!(decode(&block), Some((told, &[7; PAYLOAD][..])));
        }
        for durable in [2 * whole + 1, 2 * whole + 9, 3 * whole] {
            let head = Head { durable, ..Head::new(1 << 32, 5, 3) };
            assert_eq!(decode(&encode(head, &[])), Some((head, &[][..])), "behind the last one");
        }
        let mut tail = Tail::new(1 << 32, 5, 0, Vec::new());
        tail.append(&[1; PAYLOAD]);
        tail.flushed();
        assert_eq!(tail.durable, 0, "nothing was written");
    }

    #[test]
    fn a_block_that_says_only_that_the_last_one_was_there_vouches_for_some_of_it() {
        let whole = PAYLOAD as u64;
        let of = |index, durable| Head { durable, ..Head::new(1 << 32, 5, index) };
        for (head, payload, told) in [
            (of(3, 2 * whole + 9), &b""[..], 2 * whole + 1),
            (of(3, 3 * whole), b"", 2 * whole + 1),
            (of(3, 3 * whole), b"some", 3 * whole),
            (of(3, 2 * whole + 9), b"some", 2 * whole),
            (of(9, 2 * whole), b"some", 2 * whole),
        ] {
            let block = as_builds_before_wrote(&encode(head, payload)).unwrap();
            assert_eq!(decode(&block), Some((Head { durable: told, ..head }, payload)));
        }
    }

    #[test]
    fn nobody_vouches_for_more_of_a_block_that_is_written_again_than_was_durable() {
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
        assert_eq!(tail.durable, PAYLOAD as u64 + 9);
        tail.append(&[1; 2 * PAYLOAD]);
        tail.write(&mut volume, true, |index| Some(index.into())).unwrap();
        let blocks = volume.0.chunks(BLOCK_BYTES).map(|block| decode(block).unwrap().0);
        let told: Vec<_> = blocks.map(|head| (head.index, head.durable)).collect();
        let whole = PAYLOAD as u64;
        // The last one has no room for how much that was.
        let right = [(1, whole), (2, whole + 9), (3, whole)];
        assert_eq!(told, right, "of block 1 only what it was before is durable");
    }
}
