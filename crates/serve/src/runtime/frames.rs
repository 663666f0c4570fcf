//! Blocks in memory that change hands instead of being copied: a write hands its blocks over to a
//! medium in memory, a read is lent those of the medium, and GC moves them.
//!
//! Invariants:
//! - a frame with more than one holder is not changed any more; who fills one is its only holder;
//! - a frame goes back to the free ones when its last holder lets go;
//! - holders are counted by one thread. Blocks of another shard's request are copied.

use crate::runtime::buffer::Buffer;
use flash::BLOCK_BYTES;
use std::ptr::NonNull;

/// Names a frame of one [`Frames`].
pub type FrameId = u32;

/// The frame that holds zeroes and is never changed.
const ZEROES: FrameId = 0;

/// Frames of an arena: large enough for large pages.
const ARENA_FRAMES: u32 = 4096;

/// The frames of a shard.
#[derive(Default)]
pub struct Frames {
    arenas: Vec<Buffer>,
    holders: Vec<u32>,
    free: Vec<FrameId>,
}

impl Frames {
    /// A frame of any content, whose only holder is the caller.
    pub fn take(&mut self) -> FrameId {
        if self.free.is_empty() {
            self.grow();
        }
        let frame = self.free.pop().expect("an arena has frames");
        self.holders[frame as usize] = 1;
        frame
    }

    fn grow(&mut self) {
        let first = self.holders.len() as u32;
        self.arenas.push(Buffer::new(ARENA_FRAMES));
        self.holders.resize((first + ARENA_FRAMES) as usize, 0);
        self.free.extend((first..first + ARENA_FRAMES).rev());
        if first == ZEROES {
            // Fresh memory is zeroes; held by nobody who lets go.
            self.free.pop();
            self.holders[ZEROES as usize] = 1;
        }
    }

    /// The frame of zeroes, with one more holder.
    pub fn zeroes(&mut self) -> FrameId {
        if self.arenas.is_empty() {
            self.grow();
        }
        self.hold(ZEROES);
        ZEROES
    }

    /// One more holder.
    pub fn hold(&mut self, frame: FrameId) {
        let holders = &mut self.holders[frame as usize];
        *holders = holders.checked_add(1).expect("fewer holders than slots");
    }

    /// A holder lets go.
    pub fn release(&mut self, frame: FrameId) {
        let holders = &mut self.holders[frame as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(frame);
        }
    }

    /// Where a frame is.
    pub fn address(&self, frame: FrameId) -> NonNull<u8> {
        self.arenas[(frame / ARENA_FRAMES) as usize].address(frame % ARENA_FRAMES)
    }

    /// The content of a frame.
    pub fn bytes(&self, frame: FrameId) -> &[u8] {
        let start = (frame % ARENA_FRAMES) as usize * BLOCK_BYTES;
        &self.arenas[(frame / ARENA_FRAMES) as usize].bytes()[start..start + BLOCK_BYTES]
    }

    /// A new frame that holds a copy.
    pub fn copy_of(&mut self, block: &[u8]) -> FrameId {
        let frame = self.take();
        let start = (frame % ARENA_FRAMES) as usize * BLOCK_BYTES;
        let arena = &mut self.arenas[(frame / ARENA_FRAMES) as usize];
        arena.bytes_mut()[start..start + BLOCK_BYTES].copy_from_slice(block);
        frame
    }

    /// Frames that somebody holds, besides the one of zeroes.
    pub fn held(&self) -> usize {
        self.holders.len().saturating_sub(self.free.len() + 1)
    }
}

/// Asks for the memory of `bytes` to come near: frames lie apart, so that no processor sees by
/// itself which comes next.
pub fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: it only asks, and the address is a valid one.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_when_its_last_holder_lets_go() {
        let mut frames = Frames::default();
        let frame = frames.copy_of(&[7; BLOCK_BYTES]);
        frames.hold(frame);
        frames.release(frame);
        assert_eq!((frames.bytes(frame)[9], frames.held()), (7, 1));
        frames.release(frame);
        assert_eq!(frames.held(), 0);
        assert_eq!(frames.take(), frame);
    }

    #[test]
    fn the_zeroes_stay_whoever_lets_go() {
        let mut frames = Frames::default();
        let zeroes = frames.zeroes();
        frames.release(zeroes);
        assert!(frames.bytes(zeroes).iter().all(|&byte| byte == 0));
        assert!((0..ARENA_FRAMES).all(|_| frames.take() != zeroes));
    }
}
