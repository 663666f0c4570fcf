//! Memory of whole blocks, aligned so that direct I/O takes it: a pool with a cap, and the table
//! that turns the buffer ids of the FTL into addresses.
//!
//! Invariants: a [`View`] is registered only while the piece it belongs to is in flight, and the
//! memory behind it outlives the piece; one view's blocks are touched by one shard at a time (the
//! sender of a piece does not look at them until its reply). All raw addresses of payload live
//! here.

use flash::{BLOCK_BYTES, Payload};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Aligned memory of whole blocks.
pub struct Buffer {
    start: NonNull<u8>,
    blocks: u32,
}

// SAFETY: a buffer owns its memory.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeroed memory of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        let layout = Self::layout(blocks);
        let start = if layout.size() >= MAPPED_BYTES_MIN {
            map(layout.size())
        } else {
            // SAFETY: the layout is not empty, `layout` sees to it.
            NonNull::new(unsafe { alloc_zeroed(layout) })
        };
        let Some(start) = start else { handle_alloc_error(layout) };
        Self { start, blocks }
    }

    fn layout(blocks: u32) -> Layout {
        assert!(blocks > 0, "a buffer holds at least one block");
        let bytes = blocks as usize * BLOCK_BYTES;
        Layout::from_size_align(bytes, BLOCK_BYTES).expect("a buffer fits the address space")
    }

    /// How many blocks it holds.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid and initialised for this length; `&self` keeps writers away,
        // except the medium through a view, which nobody reads meanwhile (head of this file).
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.blocks as usize * BLOCK_BYTES)
        }
    }

    /// The bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` keeps other users away.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.blocks as usize * BLOCK_BYTES)
        }
    }

    /// A view of `blocks` blocks from `first`.
    pub fn view(&self, first: u32, blocks: u32) -> View {
        assert!(first + blocks <= self.blocks, "a view lies inside its buffer");
        // SAFETY: in bounds, asserted above.
        let start = unsafe { self.start.add(first as usize * BLOCK_BYTES) };
        View { start, blocks }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let layout = Self::layout(self.blocks);
        // SAFETY: mapped, or allocated with this layout.
        unsafe {
            if layout.size() >= MAPPED_BYTES_MIN {
                libc::munmap(self.start.as_ptr().cast(), layout.size());
            } else {
                dealloc(self.start.as_ptr(), layout);
            }
        }
    }
}

/// From this size on, memory is mapped: its zeroes cost nothing until they are touched, and
/// large pages spare address look-ups.
const MAPPED_BYTES_MIN: usize = 2 << 20;

/// Maps zeroed memory; `None` if the system has none.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range was just mapped. It is a wish; refusing it harms nothing.
    unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    NonNull::new(start.cast())
}

/// Blocks of a buffer that a piece in flight may use.
#[derive(Clone, Copy, Debug)]
pub struct View {
    start: NonNull<u8>,
    blocks: u32,
}

// SAFETY: a view crosses threads only with its piece, and only one side uses it at a time.
unsafe impl Send for View {}

impl View {
    /// A view of nothing, for pieces without data.
    pub const NONE: View = View { start: NonNull::dangling(), blocks: 0 };

    /// How many blocks it spans.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Block `index`.
    pub fn block(&self, index: u32) -> &[u8] {
        // SAFETY: in bounds (asserted), alive and not written meanwhile (head of this file).
        unsafe { std::slice::from_raw_parts(self.at(index), BLOCK_BYTES) }
    }

    /// Block `index`, to change it.
    pub fn block_mut(&mut self, index: u32) -> &mut [u8] {
        // SAFETY: as in `block`, and not read meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.at(index), BLOCK_BYTES) }
    }

    fn at(&self, index: u32) -> *mut u8 {
        assert!(index < self.blocks, "block {index} of a view of {}", self.blocks);
        // SAFETY: in bounds.
        unsafe { self.start.as_ptr().add(index as usize * BLOCK_BYTES) }
    }
}

/// The views of one shard by buffer id, and the FTL's relocation pool.
pub struct Views {
    views: Vec<View>,
    relocation: Buffer,
}

impl Views {
    /// No views yet; a relocation pool of `blocks`.
    pub fn new(relocation_blocks: u32) -> Self {
        Self { views: Vec::new(), relocation: Buffer::new(relocation_blocks.max(1)) }
    }

    /// Registers `view` under `id`.
    pub fn set(&mut self, id: u32, view: View) {
        if self.views.len() <= id as usize {
            self.views.resize(id as usize + 1, View::NONE);
        }
        self.views[id as usize] = view;
    }

    /// Forgets the view of `id`.
    pub fn clear(&mut self, id: u32) {
        self.views[id as usize] = View::NONE;
    }

    /// One block of a view or of the relocation pool.
    pub fn block(&self, payload: Payload) -> &[u8] {
        if payload.buffer == Payload::RELOCATION {
            let start = payload.index as usize * BLOCK_BYTES;
            return &self.relocation.bytes()[start..start + BLOCK_BYTES];
        }
        self.views[payload.buffer as usize].block(payload.index)
    }

    /// The address of `count` consecutive blocks, for the kernel to fill.
    pub fn span(&mut self, payload: Payload, count: u32) -> *mut u8 {
        let last = Payload { index: payload.index + count - 1, ..payload };
        self.block_mut(last); // asserts that the end is in bounds
        self.block_mut(payload).as_mut_ptr()
    }

    /// One block, to change it.
    pub fn block_mut(&mut self, payload: Payload) -> &mut [u8] {
        if payload.buffer == Payload::RELOCATION {
            let start = payload.index as usize * BLOCK_BYTES;
            return &mut self.relocation.bytes_mut()[start..start + BLOCK_BYTES];
        }
        self.views[payload.buffer as usize].block_mut(payload.index)
    }
}

/// Request buffers in sizes of powers of two, reused; beyond the cap there are none until one
/// comes back.
pub struct Pool {
    free: Vec<Vec<Buffer>>,
    bytes_out: usize,
    bytes_free: usize,
    bytes_max: usize,
}

impl Pool {
    /// A pool that has at most `bytes_max` bytes out at a time.
    pub fn new(bytes_max: usize) -> Self {
        let free = (0..u32::BITS).map(|_| Vec::new()).collect();
        Self { free, bytes_out: 0, bytes_free: 0, bytes_max }
    }

    /// A buffer of at least `blocks` blocks, of any content; `None` if the pool is exhausted and
    /// the buffer is not the `only` one of its client. A client that has none gets one, however
    /// full the pool: others that take no replies must not stop it. So the bound is the cap and
    /// one largest request a client.
    pub fn take(&mut self, blocks: u32, only: bool) -> Option<Buffer> {
        let class = blocks.max(1).next_power_of_two().trailing_zeros();
        let bytes = BLOCK_BYTES << class;
        if !only && self.bytes_out + bytes > self.bytes_max {
            return None;
        }
        self.bytes_out += bytes;
        if let Some(buffer) = self.free[class as usize].pop() {
            self.bytes_free -= bytes;
            return Some(buffer);
        }
        // What is kept for reuse counts too: make room among the other sizes.
        let kept_max = self.bytes_max.saturating_sub(self.bytes_out);
        for kept in self.free.iter_mut().rev() {
            while self.bytes_free > kept_max {
                let Some(buffer) = kept.pop() else { break };
                self.bytes_free -= buffer.blocks() as usize * BLOCK_BYTES;
            }
        }
        Some(Buffer::new(1 << class))
    }

    /// Takes a buffer back: one that `take` gave.
    pub fn put(&mut self, buffer: Buffer) {
        let bytes = buffer.blocks() as usize * BLOCK_BYTES;
        self.bytes_out -= bytes;
        self.bytes_free += bytes;
        self.free[buffer.blocks().trailing_zeros() as usize].push(buffer);
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
        let mut pool = Pool::new(16 * BLOCK_BYTES);
        let a = pool.take(8, false).unwrap();
        let b = pool.take(5, false).unwrap();
        assert_eq!((a.blocks(), b.blocks()), (8, 8));
        assert!(pool.take(1, false).is_none());
        pool.put(a);
        assert_eq!(pool.take(1, false).unwrap().blocks(), 1);
    }

    #[test]
    fn a_client_without_buffer_gets_one_from_an_exhausted_pool() {
        let mut pool = Pool::new(BLOCK_BYTES);
        let large = pool.take(1000, true).unwrap();
        assert!(pool.take(1, false).is_none());
        assert!(pool.take(1, true).is_some());
        pool.put(large);
    }

    #[test]
    fn views_lead_to_the_blocks_of_their_buffer() {
        let mut buffer = Buffer::new(4);
        buffer.bytes_mut()[2 * BLOCK_BYTES] = 7;
        let mut views = Views::new(2);
        views.set(5, buffer.view(1, 3));
        assert_eq!(views.block(Payload { buffer: 5, index: 1 })[0], 7);
        views.block_mut(Payload { buffer: Payload::RELOCATION, index: 1 })[9] = 3;
        assert_eq!(views.block(Payload { buffer: Payload::RELOCATION, index: 1 })[9], 3);
    }
}
