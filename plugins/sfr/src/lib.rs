//! A stream policy for Weir: which blocks share bands. This one is AutoStream's SFR: what goes on
//! where the last write ended stays with it; any other write counts for its chunk of 1 MiB; the count
//! is halved with every quarter of the volume that is written; the stream is its logarithm.
//!
//! The host calls `stream_start` once, then `stream_write` for each block that is written. Optional:
//! `stream_move` for each block that GC moves, `stream_trim`, and `stream_reclaimed` for each band
//! that is empty again. Nothing else is there: no imports, no clock, no random numbers.
#![cfg_attr(target_arch = "wasm32", no_std)]

/// Placement handles for what the host writes and for what GC moves, each 1 to 16.
const HANDLES: usize = 8;
const MOVED_HANDLES: u32 = 1;
/// Whether `Write::age` is wanted: it costs the host a look at the map.
const USES_AGE: bool = false;

/// Blocks of a chunk, as a power of two: 1 MiB.
const CHUNK_SHIFT: u32 = 8;

/// A block that is written.
struct Write {
    /// Counted from the start of the volume.
    lba: u32,
    /// It follows the one before it in the same request.
    #[allow(dead_code)]
    continues: bool,
    /// The handle that the host asks for, and the lifetime class it names: 1 short to 4 for ever.
    #[allow(dead_code)]
    hint: (u8, u8),
    /// The handles there are: maybe fewer than wanted.
    handles: u32,
    /// Blocks written so far: the time.
    now: u64,
    /// How long ago the block was written last, -1 if it holds nothing, or is not known.
    #[allow(dead_code)]
    age: i64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Chunk {
    count: f32,
    written_at: u32,
}

struct Policy {
    chunks: &'static mut [Chunk],
    decay_inverse: f32,
    /// 2^(-index/64)
    halving: [f32; 64],
    /// Where a write would go on.
    end: u32,
    stream: u32,
}

impl Policy {
    /// For a volume of so many blocks. Memory can only be taken here: up to 4 MiB, and a byte for
    /// every 8 blocks.
    fn new(blocks: u32) -> Self {
        let chunks = (blocks >> CHUNK_SHIFT) as usize + 1;
        let at = allocate(chunks * size_of::<Chunk>());
        let chunks = unsafe { core::slice::from_raw_parts_mut(at as *mut Chunk, chunks) };
        // The 64th root of one half.
        let step = 0.989_228_013_193_975_5_f64;
        let (mut halving, mut power) = ([1.0; 64], 1.0);
        for entry in &mut halving {
            *entry = power as f32;
            power *= step;
        }
        let decay = (blocks / 4).max(1);
        Self { chunks, decay_inverse: 1.0 / decay as f32, halving, end: u32::MAX, stream: 0 }
    }

    /// The handle for a block, below `write.handles`.
    fn write(&mut self, write: &Write) -> u32 {
        let sequential = write.lba == self.end;
        self.end = write.lba + 1;
        if !sequential {
            let now = write.now as u32;
            let index = (write.lba >> CHUNK_SHIFT) as usize;
            let Chunk { count, written_at } = self.chunks[index];
            let count = count * self.faded(now.wrapping_sub(written_at)) + 1.0;
            self.chunks[index] = Chunk { count, written_at: now };
            self.stream = 0;
            let mut threshold = 2.0;
            while self.stream + 1 < HANDLES as u32 && count >= threshold {
                self.stream += 1;
                threshold *= 2.0;
            }
        }
        self.stream.min(write.handles - 1)
    }

    /// 2^(-elapsed/decay)
    fn faded(&self, elapsed: u32) -> f32 {
        let periods = elapsed as f32 * self.decay_inverse;
        if periods >= 120.0 {
            return 0.0;
        }
        let whole = periods as u32;
        let part = ((periods - whole as f32) * 64.0) as usize;
        self.halving[part.min(63)] * f32::from_bits((127 - whole) << 23)
    }

    /// These blocks hold nothing any more.
    fn trim(&mut self, first: u32, blocks: u32) {
        let from = first.div_ceil(1 << CHUNK_SHIFT) as usize;
        let end = ((first + blocks) >> CHUNK_SHIFT) as usize;
        for index in from..end {
            self.chunks[index] = Chunk { count: 0.0, written_at: 0 };
        }
    }
}

// What follows is the interface, version 1. Functions that are not needed may go.

static mut POLICY: Option<Policy> = None;

#[allow(static_mut_refs)]
fn policy() -> &'static mut Policy {
    // The host makes one call at a time, and `stream_start` first.
    match unsafe { &mut POLICY } {
        Some(policy) => policy,
        None => fail(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn weir_abi() -> i32 {
    1
}

#[unsafe(no_mangle)]
pub extern "C" fn stream_start(blocks: u32) -> u32 {
    unsafe { POLICY = Some(Policy::new(blocks)) };
    HANDLES as u32 | MOVED_HANDLES << 8 | (USES_AGE as u32) << 16
}

#[unsafe(no_mangle)]
pub extern "C" fn stream_write(
    lba: u32,
    flags: u32,
    hint: u32,
    handles: u32,
    now: u64,
    age: i64,
) -> u32 {
    policy().write(&Write {
        lba,
        continues: flags & 1 != 0,
        hint: (hint as u8, (hint >> 8) as u8),
        handles: handles & 0xff,
        now,
        age,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn stream_trim(first: u32, blocks: u32) {
    policy().trim(first, blocks);
}

/// New memory, zeroed, whole pages of it.
#[cfg(target_arch = "wasm32")]
fn allocate(bytes: usize) -> usize {
    core::arch::wasm32::memory_grow(0, bytes.div_ceil(65536)) * 65536
}

/// For tests on this machine.
#[cfg(not(target_arch = "wasm32"))]
fn allocate(bytes: usize) -> usize {
    vec![0u64; bytes.div_ceil(8)].leak().as_mut_ptr() as usize
}

#[cfg(target_arch = "wasm32")]
fn fail() -> ! {
    core::arch::wasm32::unreachable()
}

#[cfg(not(target_arch = "wasm32"))]
fn fail() -> ! {
    panic!("stream_start comes first")
}

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    fail()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_written_often_gets_a_higher_stream() {
        let mut policy = Policy::new(1 << 20);
        let mut write = |lba, now| {
            policy.write(&Write { lba, continues: false, hint: (0, 0), handles: 8, now, age: -1 })
        };
        assert_eq!(write(0, 1), 0);
        for now in 2..10 {
            write(if now % 2 == 0 { 5 } else { 9 }, now);
        }
        assert!(write(0, 10) > 2);
        assert_eq!(write(500_000, 11), 0);
    }
}
