//! The data of a request: one run of memory for a medium on files, single frames for one in
//! memory.
//!
//! Invariant: what a [`View`] of it points to stays in place while a piece is in flight.

use crate::runtime::buffer::{Buffer, Cell, View};
use crate::runtime::frames::Frames;
use flash::BLOCK_BYTES;
use std::ptr::NonNull;

/// Memory of whole blocks.
pub enum Data {
    /// In one run.
    Run(Buffer),
    /// Block by block.
    Cells(Vec<Cell>),
}

impl Data {
    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.blocks() as usize * BLOCK_BYTES
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u32 {
        match self {
            Self::Run(buffer) => buffer.blocks(),
            Self::Cells(cells) => cells.len() as u32,
        }
    }

    /// A view of `blocks` blocks from `first`.
    pub fn view(&mut self, first: u32, blocks: u32) -> View {
        match self {
            Self::Run(buffer) => buffer.view(first, blocks),
            Self::Cells(cells) => {
                let cells = &mut cells[first as usize..(first + blocks) as usize];
                NonNull::new(cells.as_mut_ptr())
                    .map_or(View::NONE, |first| View::cells(first, blocks))
            }
        }
    }

    /// Sees to it that each of these blocks has memory: a read by another shard copies there.
    pub fn provide(&mut self, first: u32, blocks: u32, frames: &mut Frames) {
        let Self::Cells(cells) = self else { return };
        let cells = &mut cells[first as usize..(first + blocks) as usize];
        for cell in cells.iter_mut().filter(|cell| cell.is_empty()) {
            *cell = Cell::fresh(frames);
        }
    }

    /// Bytes `from..from + len`, in order, in as few slices as the memory allows.
    ///
    /// # Panics
    /// If one of the blocks has no memory yet.
    pub fn slices(&self, from: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let (mut at, end) = (from, from + len);
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let slice = match self {
                Self::Run(buffer) => &buffer.bytes()[at..end],
                Self::Cells(cells) => {
                    let inside = at % BLOCK_BYTES;
                    let left = (end - at).min(BLOCK_BYTES - inside);
                    &cells[at / BLOCK_BYTES].bytes()[inside..inside + left]
                }
            };
            at += slice.len();
            Some(slice)
        })
    }

    /// Has bytes `from..from + len` filled, in order, in as few slices as the memory allows; ends when `fill` says false,
    /// and then says so, too. Nobody else holds the blocks.
    pub fn fill_by(
        &mut self,
        from: usize,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> bool {
        match self {
            Self::Run(buffer) => fill(&mut buffer.bytes_mut()[from..from + len]),
            Self::Cells(cells) => {
                let (mut at, end) = (from, from + len);
                while at < end {
                    let inside = at % BLOCK_BYTES;
                    let here = (end - at).min(BLOCK_BYTES - inside);
                    let block = cells[at / BLOCK_BYTES].bytes_mut();
                    if !fill(&mut block[inside..inside + here]) {
                        return false;
                    }
                    at += here;
                }
                true
            }
        }
    }

    /// Copies `bytes` to byte `at` and after. Nobody else holds the blocks.
    pub fn fill(&mut self, mut at: usize, mut bytes: &[u8]) {
        match self {
            Self::Run(buffer) => buffer.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes),
            Self::Cells(cells) => {
                while !bytes.is_empty() {
                    let inside = at % BLOCK_BYTES;
                    let (now, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - inside));
                    let block = cells[at / BLOCK_BYTES].bytes_mut();
                    block[inside..inside + now.len()].copy_from_slice(now);
                    (at, bytes) = (at + now.len(), rest);
                }
            }
        }
    }

    /// Zeroes everywhere. Nobody else holds the blocks.
    pub fn clear(&mut self) {
        match self {
            Self::Run(buffer) => buffer.bytes_mut().fill(0),
            Self::Cells(cells) => cells.iter_mut().for_each(|cell| cell.bytes_mut().fill(0)),
        }
    }
}

/// Adds the memory of `slice` to a message, joined to what precedes it in memory.
pub fn push_iovec(iovecs: &mut Vec<libc::iovec>, slice: &[u8]) {
    let start = slice.as_ptr().cast_mut();
    match iovecs.last_mut() {
        Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == start.cast() => {
            last.iov_len += slice.len();
        }
        _ => iovecs.push(libc::iovec { iov_base: start.cast(), iov_len: slice.len() }),
    }
}

/// Request data within a cap; beyond it there is none until some comes back.
pub struct Pool {
    /// Buffers by powers of two of their blocks, for reuse.
    free: Vec<Vec<Buffer>>,
    /// Room for cells, for reuse.
    rooms: Vec<Vec<Cell>>,
    bytes_out: usize,
    bytes_free: usize,
    bytes_max: usize,
}

/// Rooms for cells that are kept.
const ROOMS_MAX: usize = 256;

impl Pool {
    /// A pool that has at most `bytes_max` bytes out at a time.
    pub fn new(bytes_max: usize) -> Self {
        let free = (0..u32::BITS).map(|_| Vec::new()).collect();
        Self { free, rooms: Vec::new(), bytes_out: 0, bytes_free: 0, bytes_max }
    }

    /// `None` is the answer if `bytes` are too many, unless they are the `only` ones of their
    /// client. A client that has none gets some, however full the pool: others that take no
    /// replies must not stop it. So the bound is the cap and one largest request a client.
    fn admit(&mut self, bytes: usize, only: bool) -> Option<()> {
        if !only && self.bytes_out + bytes > self.bytes_max {
            return None;
        }
        self.bytes_out += bytes;
        Some(())
    }

    /// A run of at least `blocks` blocks, of any content.
    pub fn run(&mut self, blocks: u32, only: bool) -> Option<Data> {
        let class = blocks.max(1).next_power_of_two().trailing_zeros();
        let bytes = BLOCK_BYTES << class;
        self.admit(bytes, only)?;
        if let Some(buffer) = self.free[class as usize].pop() {
            self.bytes_free -= bytes;
            return Some(Data::Run(buffer));
        }
        // What is kept for reuse counts too: make room among the other sizes.
        let kept_max = self.bytes_max.saturating_sub(self.bytes_out);
        for kept in self.free.iter_mut().rev() {
            while self.bytes_free > kept_max {
                let Some(buffer) = kept.pop() else { break };
                self.bytes_free -= buffer.blocks() as usize * BLOCK_BYTES;
            }
        }
        Some(Data::Run(Buffer::new(1 << class)))
    }

    /// `blocks` single blocks: of any content and nobody else's, or `empty` ones that wait for
    /// what a medium lends.
    pub fn cells(
        &mut self,
        blocks: u32,
        only: bool,
        empty: bool,
        frames: &mut Frames,
    ) -> Option<Data> {
        self.admit(blocks as usize * BLOCK_BYTES, only)?;
        let mut cells = self.rooms.pop().unwrap_or_default();
        let cell = || if empty { Cell::EMPTY } else { Cell::fresh(frames) };
        cells.extend(std::iter::repeat_with(cell).take(blocks as usize));
        Some(Data::Cells(cells))
    }

    /// Takes back what the pool gave.
    pub fn put(&mut self, data: Data, frames: &mut Frames) {
        let bytes = data.blocks() as usize * BLOCK_BYTES;
        self.bytes_out -= bytes;
        match data {
            Data::Run(buffer) => {
                self.bytes_free += bytes;
                self.free[buffer.blocks().trailing_zeros() as usize].push(buffer);
            }
            Data::Cells(mut cells) => {
                cells.drain(..).for_each(|cell| cell.let_go(frames));
                if self.rooms.len() < ROOMS_MAX {
                    self.rooms.push(cells);
                }
            }
        }
    }

    /// Bytes that are out.
    pub fn bytes_out(&self) -> usize {
        self.bytes_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_refuses_beyond_its_cap_and_gives_again_what_comes_back() {
        let (mut pool, mut frames) = (Pool::new(16 * BLOCK_BYTES), Frames::default());
        let a = pool.run(8, false).unwrap();
        let b = pool.cells(8, false, false, &mut frames).unwrap();
        assert_eq!((a.blocks(), b.blocks(), frames.held()), (8, 8, 8));
        assert!(pool.run(1, false).is_none());
        assert!(pool.cells(1, false, true, &mut frames).is_none());
        pool.put(a, &mut frames);
        assert_eq!(pool.run(1, false).unwrap().blocks(), 1);
        pool.put(b, &mut frames);
        assert_eq!(frames.held(), 0);
    }

    #[test]
    fn a_client_without_buffer_gets_one_from_an_exhausted_pool() {
        let (mut pool, mut frames) = (Pool::new(BLOCK_BYTES), Frames::default());
        let large = pool.run(1000, true).unwrap();
        assert!(pool.run(1, false).is_none());
        assert!(pool.run(1, true).is_some());
        pool.put(large, &mut frames);
    }

    #[test]
    fn both_kinds_give_back_the_bytes_they_were_filled_with() {
        let (mut pool, mut frames) = (Pool::new(1 << 20), Frames::default());
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES).map(|i| (i / 7) as u8).collect();
        let kinds =
            [pool.run(4, false).unwrap(), pool.cells(4, false, false, &mut frames).unwrap()];
        for mut data in kinds {
            data.clear();
            data.fill(100, &bytes);
            let found: Vec<u8> = data.slices(100, bytes.len()).flatten().copied().collect();
            assert!(found == bytes);
            assert!(data.slices(0, 100).flatten().all(|&byte| byte == 0));
            let mut rest = &bytes[..];
            let mut fill = |slice: &mut [u8]| {
                let (now, left) = rest.split_at(slice.len());
                slice.copy_from_slice(now);
                rest = left;
                true
            };
            assert!(data.fill_by(7, bytes.len(), &mut fill));
            assert!(data.slices(7, bytes.len()).flatten().eq(&bytes));
            assert!(!data.fill_by(0, 5000, &mut |_| false));
            pool.put(data, &mut frames);
        }
    }

    #[test]
    fn neighbours_in_memory_become_one_iovec() {
        let bytes = [0u8; 30];
        let mut iovecs = Vec::new();
        for slice in [&bytes[0..10], &bytes[10..15], &bytes[20..30]] {
            push_iovec(&mut iovecs, slice);
        }
        assert_eq!(iovecs.iter().map(|iovec| iovec.iov_len).collect::<Vec<_>>(), [15, 10]);
    }
}
