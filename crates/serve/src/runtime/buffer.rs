//! Memory of whole blocks, aligned so that direct I/O takes it, and the table that turns the buffer
//! ids of the FTL into addresses.
//!
//! Invariants: a [`View`] is registered only while the piece it belongs to is in flight, and the
//! memory behind it outlives the piece; one view's blocks are touched by one shard at a time (the
//! sender of a piece does not look at them until its reply). All raw addresses of payload live
//! here.

use crate::runtime::data::Data;
use crate::runtime::frames::{FrameId, Frames};
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
        View { place: Place::Run(start), blocks }
    }

    /// Where block `index` is.
    pub fn address(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.blocks, "block {index} of a buffer of {}", self.blocks);
        // SAFETY: in bounds, asserted above.
        unsafe { self.start.add(index as usize * BLOCK_BYTES) }
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

/// One block of a request whose blocks lie apart: a frame, or nothing yet.
#[derive(Debug)]
pub struct Cell {
    start: *mut u8,
    frame: FrameId,
}

// SAFETY: as for a view.
unsafe impl Send for Cell {}

impl Cell {
    /// Without memory.
    pub const EMPTY: Cell = Cell { start: std::ptr::null_mut(), frame: 0 };

    /// With a frame of any content that nobody else holds.
    pub fn fresh(frames: &mut Frames) -> Self {
        let frame = frames.take();
        Self { start: frames.address(frame).as_ptr(), frame }
    }

    /// True if there is no memory.
    pub fn is_empty(&self) -> bool {
        self.start.is_null()
    }

    /// The block.
    pub fn bytes(&self) -> &[u8] {
        assert!(!self.is_empty(), "a block is there before somebody looks at it");
        // SAFETY: a whole frame, which the cell holds; not written meanwhile (head of this file).
        unsafe { std::slice::from_raw_parts(self.start, BLOCK_BYTES) }
    }

    /// The block, to change it. Nobody else holds the frame.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_empty(), "a block is there before somebody fills it");
        // SAFETY: as in `bytes`, and not read meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start, BLOCK_BYTES) }
    }

    /// Forgets the block.
    pub fn let_go(self, frames: &mut Frames) {
        if !self.is_empty() {
            frames.release(self.frame);
        }
    }
}

/// Blocks of a buffer that a piece in flight may use.
#[derive(Clone, Copy, Debug)]
pub struct View {
    place: Place,
    blocks: u32,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// One after another.
    Run(NonNull<u8>),
    /// Wherever the cells say.
    Cells(NonNull<Cell>),
    /// The same, but the frames are those of another shard.
    Foreign(NonNull<Cell>),
}

// SAFETY: a view crosses threads only with its piece, and only one side uses it at a time.
unsafe impl Send for View {}

impl View {
    /// A view of nothing, for pieces without data.
    pub const NONE: View = View { place: Place::Run(NonNull::dangling()), blocks: 0 };

    /// A view of `blocks` cells from `first`.
    pub fn cells(first: NonNull<Cell>, blocks: u32) -> Self {
        Self { place: Place::Cells(first), blocks }
    }

    /// The view as another shard must see it: it may fill and copy the blocks, not swap them.
    pub fn foreign(self) -> Self {
        match self.place {
            Place::Cells(first) => Self { place: Place::Foreign(first), ..self },
            _ => self,
        }
    }

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
        match self.place {
            // SAFETY: in bounds.
            Place::Run(start) => unsafe { start.as_ptr().add(index as usize * BLOCK_BYTES) },
            Place::Cells(first) | Place::Foreign(first) => {
                // SAFETY: in bounds, and the cells stay in place (head of this file).
                let start = unsafe { first.add(index as usize).as_ref().start };
                assert!(!start.is_null(), "a block is there before somebody uses it");
                start
            }
        }
    }

    /// The cell of block `index`, if its frame is this shard's.
    fn cell(&mut self, index: u32) -> Option<&mut Cell> {
        assert!(index < self.blocks, "block {index} of a view of {}", self.blocks);
        let Place::Cells(first) = self.place else { return None };
        // SAFETY: in bounds, in place, and used by one shard at a time (head of this file).
        Some(unsafe { first.add(index as usize).as_mut() })
    }
}

/// The views of one shard by buffer id, and the FTL's relocation pool.
pub struct Views {
    views: Vec<View>,
    relocation: View,
    /// What `relocation` looks at.
    _relocation: Data,
    /// The shard's frames.
    pub frames: Frames,
}

impl Views {
    /// No views yet; a relocation pool of `blocks`, which lie apart for a medium that `lends`.
    pub fn new(relocation_blocks: u32, lends: bool) -> Self {
        let blocks = relocation_blocks.max(1);
        let mut pool = match lends {
            true => Data::Cells((0..blocks).map(|_| Cell::EMPTY).collect()),
            false => Data::Run(Buffer::new(blocks)),
        };
        let relocation = pool.view(0, blocks);
        Self { views: Vec::new(), relocation, _relocation: pool, frames: Frames::default() }
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

    fn view(&self, payload: Payload) -> &View {
        match payload.buffer {
            Payload::RELOCATION => &self.relocation,
            id => &self.views[id as usize],
        }
    }

    fn view_mut(&mut self, payload: Payload) -> &mut View {
        match payload.buffer {
            Payload::RELOCATION => &mut self.relocation,
            id => &mut self.views[id as usize],
        }
    }

    /// One block of a view or of the relocation pool.
    pub fn block(&self, payload: Payload) -> &[u8] {
        self.view(payload).block(payload.index)
    }

    /// One block, to change it.
    pub fn block_mut(&mut self, payload: Payload) -> &mut [u8] {
        self.view_mut(payload).block_mut(payload.index)
    }

    /// The address of `count` consecutive blocks of a run, for the kernel to fill.
    pub fn span(&mut self, payload: Payload, count: u32) -> *mut u8 {
        let view = self.view_mut(payload);
        assert!(matches!(view.place, Place::Run(_)), "media on files get their blocks in runs");
        view.at(payload.index + count - 1); // asserts that the end is in bounds
        view.at(payload.index)
    }

    /// A frame with the content of a block: the block's own, with one more holder, or a copy.
    pub fn hand_over(&mut self, payload: Payload) -> FrameId {
        match self.view_mut(payload).cell(payload.index) {
            Some(cell) if !cell.is_empty() => {
                let frame = cell.frame;
                self.frames.hold(frame);
                frame
            }
            _ => {
                let view = *self.view(payload);
                self.frames.copy_of(view.block(payload.index))
            }
        }
    }

    /// Makes a block read as `frame`: by holding it, or by a copy.
    pub fn lend(&mut self, payload: Payload, frame: FrameId) {
        let mut view = *self.view(payload);
        let frames = &mut self.frames;
        match view.cell(payload.index) {
            Some(cell) => {
                frames.hold(frame);
                let start = frames.address(frame).as_ptr();
                std::mem::replace(cell, Cell { start, frame }).let_go(frames);
            }
            None => view.block_mut(payload.index).copy_from_slice(frames.bytes(frame)),
        }
    }

    /// Makes a block read as zeroes.
    pub fn lend_zeroes(&mut self, payload: Payload) {
        if let Place::Cells(_) = self.view(payload).place {
            let zeroes = self.frames.zeroes();
            self.lend(payload, zeroes);
            self.frames.release(zeroes);
        } else {
            self.block_mut(payload).fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_lead_to_the_blocks_of_their_buffer() {
        let mut buffer = Buffer::new(4);
        buffer.bytes_mut()[2 * BLOCK_BYTES] = 7;
        let mut views = Views::new(2, false);
        views.set(5, buffer.view(1, 3));
        assert_eq!(views.block(Payload { buffer: 5, index: 1 })[0], 7);
        views.block_mut(Payload { buffer: Payload::RELOCATION, index: 1 })[9] = 3;
        assert_eq!(views.block(Payload { buffer: Payload::RELOCATION, index: 1 })[9], 3);
    }

    #[test]
    fn cells_change_hands_and_blocks_of_other_shards_are_copied() {
        let mut views = Views::new(1, true);
        let mut data = Data::Cells(vec![Cell::fresh(&mut views.frames), Cell::EMPTY]);
        data.fill(0, &[5; BLOCK_BYTES]);
        views.set(0, data.view(0, 2));
        let payload = |index| Payload { buffer: 0, index };
        let frame = views.hand_over(payload(0));
        views.lend(payload(1), frame);
        assert_eq!(views.block(payload(1)).as_ptr(), views.block(payload(0)).as_ptr());
        let moved = Payload { buffer: Payload::RELOCATION, index: 0 };
        views.lend(moved, frame);
        assert_eq!((views.hand_over(moved), views.frames.held()), (frame, 1));
        views.lend_zeroes(payload(1));
        assert_eq!(views.block(payload(1)), [0; BLOCK_BYTES]);

        let mut other = Views::new(1, true);
        other.set(0, data.view(0, 1).foreign());
        let copy = other.hand_over(payload(0));
        assert_eq!((other.frames.bytes(copy)[7], other.frames.held()), (5, 1));
        let nines = other.frames.copy_of(&[9; BLOCK_BYTES]);
        let mut own = Data::Cells(vec![Cell::fresh(&mut views.frames)]);
        other.set(1, own.view(0, 1).foreign());
        other.lend(Payload { buffer: 1, index: 0 }, nines);
        assert_eq!(own.slices(0, 1).next(), Some(&[9][..]));
    }
}
