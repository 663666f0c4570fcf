//! 4 KiB of data on their way through a part of a pool: a part of the memory that they arrived in, or that they
//! were read to. To clone one is to count it.

use crate::runtime::buffer::{Buffer, View};
use flash::BLOCK_BYTES;
use pool::node::store::Data;
use std::fmt;
use std::rc::Rc;

/// See the head of this file.
#[derive(Clone)]
pub struct Block {
    chunk: Rc<Buffer>,
    index: u32,
    /// Of the data, computed when they came.
    crc: u32,
}

impl Block {
    /// The blocks of a buffer that nobody writes to any more.
    pub fn all_of(buffer: Buffer) -> Vec<Self> {
        let blocks = buffer.blocks();
        let chunk = Rc::new(buffer);
        let of = |index: u32| {
            let bytes = &chunk.bytes()[index as usize * BLOCK_BYTES..][..BLOCK_BYTES];
            Self { chunk: Rc::clone(&chunk), index, crc: flash::crc(bytes) }
        };
        (0..blocks).map(of).collect()
    }

    /// The blocks of a buffer that was read to, with the checksums that the medium has for them; `None` for those
    /// that cannot be read.
    pub fn all_with(buffer: Buffer, sums: &[Option<u32>]) -> Vec<Option<Self>> {
        let chunk = Rc::new(buffer);
        let of = |(index, sum): (u32, &Option<u32>)| {
            sum.map(|crc| Self { chunk: Rc::clone(&chunk), index, crc })
        };
        (0..).zip(sums).map(of).collect()
    }

    /// The data.
    pub fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        let bytes = &self.chunk.bytes()[self.index as usize * BLOCK_BYTES..];
        bytes.first_chunk().expect("a chunk is whole blocks")
    }

    /// Whether `other` is the block behind this one in the same memory.
    pub fn is_before(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.chunk, &other.chunk) && other.index == self.index + 1
    }

    /// A view of so many blocks from this one on, which must outlive it.
    pub fn view(&self, blocks: u32) -> View {
        self.chunk.view(self.index, blocks)
    }
}

impl Data for Block {
    fn crc(&self) -> u32 {
        self.crc
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Block {}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {:08x}", self.crc)
    }
}
