//! A DRAM write cache: lines in the order they were written, and where each block is.
//!
//! Invariants:
//! - `used` is the room of lines not yet drained plus what was reserved for data on its way in;
//! - `newest` names, for each block in the cache, the youngest line that holds it;
//! - lines begin to drain in the order they came, and leave the front of the list when drained.

use flash::{BLOCK_BYTES, Hint};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Data of one write, or of a piece of it.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// First byte of the data.
    pub offset: u64,
    /// Bytes of the data.
    pub bytes: u64,
    /// What the client knows about it.
    pub hint: Hint,
    drained: bool,
}

impl Line {
    fn blocks(&self) -> std::ops::Range<u32> {
        blocks(self.offset, self.bytes)
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Lines {
    room: u64,
    used: u64,
    lines: VecDeque<Line>,
    /// Number of the first of `lines`.
    first: u64,
    /// Number of the next line to drain.
    next: u64,
    /// Data of the lines from there on.
    resting: u64,
    newest: HashMap<u32, u64, BuildHasherDefault<BlockHasher>>,
}

impl Lines {
    /// An empty cache for `bytes` of data.
    pub fn new(bytes: u64) -> Self {
        let blocks = (bytes / BLOCK_BYTES as u64) as usize;
        Self {
            room: bytes,
            used: 0,
            lines: VecDeque::new(),
            first: 0,
            next: 0,
            resting: 0,
            newest: HashMap::with_capacity_and_hasher(blocks, BuildHasherDefault::default()),
        }
    }

    /// Keeps room for data that is about to come; false if there is none.
    pub fn reserve(&mut self, offset: u64, bytes: u64) -> bool {
        let wanted = room_of(offset, bytes);
        let fits = self.used + wanted <= self.room;
        if fits {
            self.used += wanted;
        }
        fits
    }

    /// The data for which room was kept is here. It replaces that of a line for just the same
    /// blocks which has not begun to drain; then the room kept for it is free again, and this
    /// returns false.
    pub fn insert(&mut self, offset: u64, bytes: u64, hint: Hint) -> bool {
        let line = Line { offset, bytes, hint, drained: false };
        let (number, mut blocks) = (self.made(), line.blocks());
        let first = blocks.next().expect("an empty write was refused");
        let older = self.newest.insert(first, number);
        if let Some(older) = older
            && older >= self.next
            && self.line(older).blocks() == line.blocks()
            && blocks.clone().all(|block| self.newest.get(&block) == Some(&older))
        {
            self.newest.insert(first, older);
            let index = (older - self.first) as usize;
            self.lines[index].hint = hint;
            self.used -= room_of(offset, bytes);
            return false;
        }
        self.lines.push_back(line);
        self.resting += bytes;
        for block in blocks {
            self.newest.insert(block, number);
        }
        true
    }

    /// Whether every block of a read is here.
    pub fn covers(&self, offset: u64, bytes: u64) -> bool {
        !self.newest.is_empty()
            && blocks(offset, bytes).all(|block| self.newest.contains_key(&block))
    }

    /// The number of the line to drain next, if there is one.
    pub fn peek_next(&self) -> Option<u64> {
        (self.next < self.made()).then_some(self.next)
    }

    /// Bytes of lines that have not begun to drain.
    pub fn resting(&self) -> u64 {
        self.resting
    }

    /// The next line, and it begins to drain.
    pub fn take_next(&mut self) -> Option<u64> {
        let next = self.peek_next()?;
        self.resting -= self.line(next).bytes;
        self.next += 1;
        Some(next)
    }

    /// A line that is not drained.
    pub fn line(&self, number: u64) -> &Line {
        &self.lines[(number - self.first) as usize]
    }

    /// The line is in flash: its room is free.
    pub fn drained(&mut self, number: u64) {
        let line = *self.line(number);
        for block in line.blocks() {
            if let Entry::Occupied(entry) = self.newest.entry(block)
                && *entry.get() == number
            {
                entry.remove();
            }
        }
        self.used -= room_of(line.offset, line.bytes);
        self.lines[(number - self.first) as usize].drained = true;
        while self.lines.pop_front_if(|line| line.drained).is_some() {
            self.first += 1;
        }
    }

    /// Lines made so far.
    pub fn made(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Every line with a number below this is drained.
    pub fn drained_below(&self) -> u64 {
        self.first
    }
}

/// The logical blocks that hold these bytes.
fn blocks(offset: u64, bytes: u64) -> std::ops::Range<u32> {
    let block = BLOCK_BYTES as u64;
    (offset / block) as u32..(offset + bytes).div_ceil(block) as u32
}

/// The room that these bytes take: whole blocks.
pub fn room_of(offset: u64, bytes: u64) -> u64 {
    blocks(offset, bytes).len() as u64 * BLOCK_BYTES as u64
}

/// Fixed, so that every run is the same; quick, as blocks need no defence.
#[derive(Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, block: u32) {
        self.0 = (self.0 ^ u64::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
