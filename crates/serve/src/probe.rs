//! Asking a drive for single I/Os at chosen instants and taking their ends: what is below a measurement of a
//! drive. No FTL and no file system of ours is in the way; the same ring is that serves clients.

pub use crate::device::whole::{Drive, Purpose, mark, occupant};

use crate::runtime::buffer::Buffer;
use crate::runtime::ring::{DriverChoice, DriverReport, Ring};
use flash::{BLOCK_BYTES, Random};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long before an instant to stop sleeping: a thread is not woken to the microsecond. A thread that never sleeps
/// is stopped by the kernel for 50 ms of each second if it runs before all others.
const AWAKE_NS: u64 = 30_000;
/// Longest look at the ring between two at the clock.
const LOOK_NS: u64 = 5_000;

/// I/Os of a drive, some of them under way. It belongs to the thread that made it.
pub struct Requests {
    ring: Ring,
    file: Arc<File>,
    /// Until it is dropped.
    memory: Option<Buffer>,
    blocks_each: u32,
    free: Vec<u32>,
    /// Makes each block that is written unlike all others.
    stamp: u64,
    idle: Duration,
}

/// The end of an I/O.
#[derive(Debug)]
pub struct Ended {
    /// The slot that [`Requests::submit`] gave it.
    pub slot: u32,
    /// What the system said of it.
    pub result: io::Result<()>,
}

impl Requests {
    /// So many I/Os at a time, of so many blocks each at most. What is written is drawn from `seed`.
    ///
    /// # Errors
    /// The system grants neither an io_uring nor threads.
    pub fn new(drive: &Drive, slots: u32, blocks_each: u32, seed: u64) -> Result<Self, String> {
        let ring = Ring::new(slots, DriverChoice::Auto).map_err(|why| why.to_string())?;
        let mut memory = Buffer::new(slots * blocks_each);
        let mut random = Random::new(seed);
        for word in memory.bytes_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        mark(memory.bytes_mut());
        let (file, free) = (Arc::clone(&drive.direct), (0..slots).rev().collect());
        let stamp = random.next_u64();
        Ok(Self {
            ring,
            file,
            memory: Some(memory),
            blocks_each,
            free,
            stamp,
            idle: Duration::ZERO,
        })
    }

    /// What carries the I/Os.
    pub fn driver(&self) -> &DriverReport {
        self.ring.report()
    }

    /// True if one more I/O may be under way.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// How long it waited for ends with nothing else to do.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Asks for blocks from `first` on, with the next [`Requests::wait`]; the slot that names it until it ends.
    ///
    /// # Panics
    /// If there is no room, or it is longer than was said.
    pub fn submit(&mut self, is_write: bool, first: u64, blocks: u32) -> u32 {
        assert!(
            blocks > 0 && blocks <= self.blocks_each,
            "{blocks} of {} blocks",
            self.blocks_each
        );
        let slot = self.free.pop().expect("who submits has asked for room");
        let memory = self.memory.as_mut().expect("it is there until it is dropped");
        let start = (slot * self.blocks_each) as usize * BLOCK_BYTES;
        let bytes = blocks as usize * BLOCK_BYTES;
        let (fd, offset) = (self.file.as_raw_fd(), first * BLOCK_BYTES as u64);
        let part = &mut memory.bytes_mut()[start..start + bytes];
        if is_write {
            for block in part.chunks_exact_mut(BLOCK_BYTES) {
                self.stamp = self.stamp.wrapping_add(1);
                // A read may have left somebody's bytes here.
                mark(block);
                block[8..16].copy_from_slice(&self.stamp.to_le_bytes());
            }
            self.ring.write(slot, fd, part.as_ptr(), bytes, offset);
        } else {
            self.ring.read(slot, fd, part.as_mut_ptr(), bytes, offset);
        }
        slot
    }

    /// Hands over what was submitted and takes what has ended, waiting up to `wait` for the first end.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn wait(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        let (called, mut done) = (Instant::now(), Vec::new());
        // Handing over may take as long as an I/O: it is no waiting, but time that passes.
        self.ring.enter(Some(0), &mut done)?;
        let begun = Instant::now();
        loop {
            let left = wait.saturating_sub(called.elapsed()).as_nanos() as u64;
            if !done.is_empty() || left == 0 {
                break;
            }
            if left > AWAKE_NS {
                self.ring.enter(Some(left - AWAKE_NS), &mut done)?;
            } else {
                self.ring.look(left.min(LOOK_NS), &mut done)?;
            }
        }
        if !wait.is_zero() {
            self.idle += begun.elapsed();
        }
        for done in done {
            self.free.push(done.index);
            let result = match done.result {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                moved if moved as u32 == done.bytes => Ok(()),
                moved => Err(io::Error::other(format!("moved {moved} of {} bytes", done.bytes))),
            };
            ended.push(Ended { slot: done.index, result });
        }
        Ok(())
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.ring.free((self.memory.take(), Arc::clone(&self.file)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_marked_unlike_and_read_back() {
        let drive = Drive::null(64).expect("memory");
        let mut requests = Requests::new(&drive, 4, 2, 3).expect("a ring or threads");
        let mut ended = Vec::new();
        for first in [0, 2, 10, 12] {
            assert!(requests.has_room());
            requests.submit(true, first, 2);
        }
        assert!(!requests.has_room());
        while ended.len() < 4 {
            requests.wait(Duration::from_secs(5), &mut ended).expect("it works");
        }
        assert!(ended.iter().all(|ended| ended.result.is_ok()), "{ended:?}");
        let mut blocks = [[0; BLOCK_BYTES]; 3];
        for (block, at) in blocks.iter_mut().zip([0, 1, 12]) {
            let offset = at * BLOCK_BYTES as u64;
            std::os::unix::fs::FileExt::read_exact_at(&*drive.direct, block, offset).expect("read");
            assert!(block.iter().any(|&byte| byte != 0), "it was written");
            assert_eq!(occupant(&*block), None, "a measurement left it there");
        }
        assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2], "no drive can keep them once");
        ended.clear();
        requests.submit(false, 63, 2);
        while ended.is_empty() {
            requests.wait(Duration::from_secs(5), &mut ended).expect("it works");
        }
        assert!(ended[0].result.is_err(), "half of it lies beyond the end");
    }

    #[test]
    fn a_wait_ends_in_time_when_nothing_is_under_way() {
        let drive = Drive::null(16).expect("memory");
        let mut requests = Requests::new(&drive, 2, 1, 3).expect("a ring or threads");
        let (begun, mut ended) = (Instant::now(), Vec::new());
        requests.wait(Duration::from_millis(20), &mut ended).expect("it works");
        assert!(ended.is_empty() && begun.elapsed() >= Duration::from_millis(20));
        assert!(requests.idle() >= Duration::from_millis(19));
    }
}
