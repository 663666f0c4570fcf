//! How bytes that are appended lie on the volume: in blocks that say themselves whose they are, so that the end of a
//! file needs no record of its own. A recovery reads on until a block does not go on where the last one ended.
//!
//! Invariants:
//! - A block names its file, its index in that and the *stamp* of its writer. No two openings for writing share
//!   a stamp, so that what an earlier writer left beyond the end is never taken for what the later one wrote.
//! - Only the last block of a file is written again, with more bytes; it is all old or all new.

use crate::api::{BLOCK_BYTES, Error, Volume};

/// Bytes of a file in one block.
pub const PAYLOAD: usize = BLOCK_BYTES - HEAD;

const HEAD: usize = 32;
const MAGIC: u32 = 0x4b4c_4257;
/// Blocks in one write, at most.
const WRITE_BLOCKS_MAX: usize = 64;
const _: () = assert!(PAYLOAD < u32::MAX as usize);

/// What a block says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// Whose it is.
    pub file: u64,
    /// Which writer wrote it.
    pub stamp: u64,
    /// The how manyeth block of the file.
    pub index: u32,
}

/// A block of `payload`.
pub fn encode(head: Head, payload: &[u8]) -> [u8; BLOCK_BYTES] {
    assert!(payload.len() <= PAYLOAD, "a block takes one payload");
    let mut block = [0; BLOCK_BYTES];
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    block[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
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
    let payload = rest.get(..word(4) as usize)?;
    if word(0) != MAGIC || checksum(block, payload.len()) != word(28) {
        return None;
    }
    Some((Head { file: long(8), stamp: long(16), index: word(24) }, payload))
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
}

impl Tail {
    /// Of something that has `size` bytes so far, of which `last` are in a block that is not full.
    pub fn new(file: u64, stamp: u64, size: u64, last: Vec<u8>) -> Self {
        assert_eq!(size % PAYLOAD as u64, last.len() as u64, "whole blocks come before");
        let index = (size / PAYLOAD as u64) as u32;
        Self { file, stamp, index, bytes: last, dirty: false }
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
            let head = Head { file: self.file, stamp: self.stamp, index };
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
}

fn beyond(file: u64, index: u32) -> Error {
    Error::Damaged(format!("file {file:x}: block {index} has no place on the volume"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written_and_no_other_bytes_are_one() {
        let head = Head { file: 7 << 32 | 1, stamp: 9 << 32, index: 3 };
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
}
