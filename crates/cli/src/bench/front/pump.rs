//! Keeps requests of one block under way on a connection, whatever it speaks: the same work and the same care for each
//! front end. A block that is not the one that was written there is an error.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::time::{Duration, Instant};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Requests under way.
pub const DEPTH: u16 = 32;
/// Bytes that may wait to be looked at.
const INPUT_BYTES: usize = 256 << 10;

/// What a connection speaks.
pub trait Wire {
    /// Puts a request for a block under a name below [`DEPTH`].
    fn push(&self, out: &mut Vec<u8>, reads: bool, id: u16, block: u64);

    /// Takes a message, if the bytes begin with a whole one: its length, and the request that it ends, if it ends one.
    /// `block` tells the block of a request under way.
    ///
    /// # Errors
    /// It says what nobody has asked for.
    fn take(
        &self,
        bytes: &[u8],
        reads: bool,
        block: &dyn Fn(u16) -> Option<u64>,
    ) -> Result<Option<(usize, Option<u16>)>>;
}

/// The content of a block.
pub fn content(block: u64) -> [u8; BLOCK] {
    let mut content = [0; BLOCK];
    content[..8].copy_from_slice(&block.to_le_bytes());
    content
}

/// An answer that may not be.
pub fn wrong(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, why.into())
}

/// See the head of this file.
pub struct Pump<S, W> {
    stream: S,
    wire: W,
    blocks: u64,
    input: Vec<u8>,
    random: u64,
}

impl<S: Read + Write, W: Wire> Pump<S, W> {
    /// On a volume of so many blocks.
    pub fn new(stream: S, wire: W, blocks: u64) -> Self {
        Self { stream, wire, blocks, input: vec![0; INPUT_BYTES], random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Writes every block once.
    pub fn fill(&mut self) -> Result<()> {
        let mut blocks = 0..self.blocks;
        self.go(false, |_| blocks.next()).map(drop)
    }

    /// Reads or writes anywhere for so long; how many times.
    pub fn run(&mut self, reads: bool, time: Duration) -> Result<u64> {
        let (until, blocks) = (Instant::now() + time, self.blocks);
        self.go(reads, |random| {
            // Xorshift.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (Instant::now() < until).then(|| *random % blocks)
        })
    }

    /// Keeps requests under way at the blocks that `place` names, until it names none.
    fn go(&mut self, reads: bool, mut place: impl FnMut(&mut u64) -> Option<u64>) -> Result<u64> {
        let (mut out, mut done, mut end) = (Vec::new(), 0, 0);
        let mut under_way = [None; DEPTH as usize];
        for (id, slot) in (0..).zip(&mut under_way) {
            *slot = place(&mut self.random);
            slot.iter().for_each(|&block| self.wire.push(&mut out, reads, id, block));
        }
        while under_way.iter().any(Option::is_some) {
            self.stream.write_all(&out)?;
            out.clear();
            let bytes = self.stream.read(&mut self.input[end..])?;
            if bytes == 0 {
                return Err(wrong("the server has closed the connection"));
            }
            end += bytes;
            let mut start = 0;
            loop {
                let block = |id: u16| under_way.get(usize::from(id)).copied().flatten();
                let taken = self.wire.take(&self.input[start..end], reads, &block)?;
                let Some((len, ended)) = taken else { break };
                start += len;
                let Some(id) = ended else { continue };
                done += 1;
                let next = place(&mut self.random);
                under_way[usize::from(id)] = next;
                next.iter().for_each(|&block| self.wire.push(&mut out, reads, id, block));
            }
            self.input.copy_within(start..end, 0);
            end -= start;
        }
        Ok(done)
    }
}
