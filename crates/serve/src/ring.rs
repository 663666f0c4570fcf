//! The shard's io_uring: entries are queued here and go to the kernel with the one `enter` of a
//! loop turn; completions are copied out before anything acts on them.
//!
//! Invariant: memory that a queued entry points to stays valid until its completion was seen. Who
//! queues keeps it (jobs of the medium and connections own their buffers), and frees it only when
//! [`Ring::settle`] says that nothing is under way; else it is never freed. A panic would free it
//! before: so it ends the process first (`crate::panics`).

use io_uring::{IoUring, squeue, types};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long to wait for the kernel to let go of memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Meanwhile, how long to wait at a time.
const LOOK_AGAIN_NS: u64 = flash::SECOND / 10;

/// How often to look at the ring for each look at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// Who a completion belongs to: the high byte of its user data. Below it, in 24 bits, how much is to
/// be moved; then what the owner calls it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Owner {
    /// A job of the medium.
    Medium = 1,
    /// A listening socket.
    Accept = 2,
    /// A connection's receive.
    Receive = 3,
    /// A connection's send.
    Send = 4,
    /// The eventfd that other threads wake the shard with.
    Wake = 5,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Who queued it.
    pub owner: Owner,
    /// What the owner calls it.
    pub index: u32,
    /// As the system call: negative is an error number.
    pub result: i32,
    /// What was to be moved, of a read or a write of a medium; else 0.
    pub bytes: u32,
}

/// Most that one read or write of a medium moves.
const TRANSFER_BYTES_MAX: usize = (1 << 24) - 1;

/// Queues entries for, and takes completions from, the kernel.
pub struct Ring {
    ring: IoUring,
    queued: Vec<squeue::Entry>,
    under_way: u32,
}

impl Ring {
    /// A ring with room for `entries` at a time; more wait in memory.
    pub fn new(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(entries * 4)
            .build(entries)?;
        Ok(Self { ring, queued: Vec::with_capacity(entries as usize), under_way: 0 })
    }

    /// Entries that were queued and have not completed.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    fn queue(&mut self, entry: squeue::Entry, owner: Owner, index: u32) {
        self.queue_transfer(entry, 0, owner, index);
    }

    fn queue_transfer(&mut self, entry: squeue::Entry, bytes: usize, owner: Owner, index: u32) {
        debug_assert!(bytes <= TRANSFER_BYTES_MAX, "a page or the OOBs of a block are less");
        let data = (owner as u64) << 56 | (bytes as u64) << 32 | u64::from(index);
        self.queued.push(entry.user_data(data));
        self.under_way += 1;
    }

    /// Reads `bytes` at `offset`.
    pub fn read(&mut self, index: u32, fd: RawFd, bytes: *mut u8, len: usize, offset: u64) {
        let entry = io_uring::opcode::Read::new(types::Fd(fd), bytes, len as u32).offset(offset);
        self.queue_transfer(entry.build(), len, Owner::Medium, index);
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&mut self, index: u32, fd: RawFd, bytes: *const u8, len: usize, offset: u64) {
        let entry = io_uring::opcode::Write::new(types::Fd(fd), bytes, len as u32).offset(offset);
        self.queue_transfer(entry.build(), len, Owner::Medium, index);
    }

    /// Makes the file's data durable.
    pub fn sync_data(&mut self, index: u32, fd: RawFd) {
        let flags = types::FsyncFlags::DATASYNC;
        let entry = io_uring::opcode::Fsync::new(types::Fd(fd)).flags(flags);
        self.queue(entry.build(), Owner::Medium, index);
    }

    /// Gives the range back to the file system; it reads as zeroes after.
    pub fn punch(&mut self, index: u32, fd: RawFd, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let entry = io_uring::opcode::Fallocate::new(types::Fd(fd), len).offset(offset).mode(mode);
        self.queue(entry.build(), Owner::Medium, index);
    }

    /// Takes the next connection of a listening socket.
    pub fn accept(&mut self, index: u32, fd: RawFd) {
        let none = std::ptr::null_mut();
        let entry = io_uring::opcode::Accept::new(types::Fd(fd), none, std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC);
        self.queue(entry.build(), Owner::Accept, index);
    }

    /// Receives what is there, at most what the message has room for.
    pub fn receive(&mut self, index: u32, fd: RawFd, message: *mut libc::msghdr) {
        let entry = io_uring::opcode::RecvMsg::new(types::Fd(fd), message);
        self.queue(entry.build(), Owner::Receive, index);
    }

    /// Sends a message of several pieces.
    pub fn send(&mut self, index: u32, fd: RawFd, message: *const libc::msghdr) {
        let entry =
            io_uring::opcode::SendMsg::new(types::Fd(fd), message).flags(libc::MSG_NOSIGNAL as u32);
        self.queue(entry.build(), Owner::Send, index);
    }

    /// Reads the 8 bytes of an eventfd.
    pub fn wake(&mut self, fd: RawFd, bytes: *mut u8) {
        let entry = io_uring::opcode::Read::new(types::Fd(fd), bytes, 8);
        self.queue(entry.build(), Owner::Wake, 0);
    }

    /// Hands what is queued to the kernel and looks for up to `window_ns`, without sleeping, until
    /// a completion is there or about to be.
    pub fn look(&mut self, window_ns: u64, done: &mut Vec<Done>) -> io::Result<()> {
        self.enter(Some(0), done)?;
        let begun = Instant::now();
        while done.is_empty() {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.ring.submission().taskrun() || !self.ring.completion().is_empty() {
                    return self.enter(Some(0), done);
                }
                std::hint::spin_loop();
            }
            if begun.elapsed().as_nanos() as u64 >= window_ns {
                break;
            }
        }
        Ok(())
    }

    /// Hands what is queued to the kernel, waits until something completes or `wait_ns` have
    /// passed (0: does not wait), and appends the completions to `done`.
    pub fn enter(&mut self, wait_ns: Option<u64>, done: &mut Vec<Done>) -> io::Result<()> {
        loop {
            let all_queued = self.fill();
            let wait = all_queued && wait_ns != Some(0);
            self.submit(if wait { wait_ns } else { Some(0) })?;
            for entry in self.ring.completion() {
                let data = entry.user_data();
                self.under_way -= 1;
                let index = data as u32;
                let bytes = (data >> 32) as u32 & TRANSFER_BYTES_MAX as u32;
                done.push(Done { owner: owner(data), index, result: entry.result(), bytes });
            }
            if all_queued {
                return Ok(());
            }
        }
    }

    /// Waits until nothing is under way, or until `patience` is over. True if nothing is: only then may
    /// what entries pointed to be freed.
    pub fn settle(&mut self, patience: Duration) -> bool {
        let (begun, mut done) = (Instant::now(), Vec::new());
        while self.under_way > 0 && begun.elapsed() < patience {
            if self.enter(Some(LOOK_AGAIN_NS), &mut done).is_err() {
                return false;
            }
            done.clear();
        }
        self.under_way == 0
    }

    /// Frees what owns memory of entries, once the kernel holds none of it; if that takes too long,
    /// never.
    pub fn free<T>(&mut self, owner: T) {
        if !self.settle(PATIENCE) {
            std::mem::forget(owner);
        }
    }

    /// Moves queued entries to the submission queue; true if all fit.
    fn fill(&mut self) -> bool {
        let mut queue = self.ring.submission();
        let room = (queue.capacity() - queue.len()).min(self.queued.len());
        for entry in self.queued.drain(..room) {
            // SAFETY: by the invariant of this file the entry's memory outlives its completion.
            unsafe { queue.push(&entry) }.expect("room was counted");
        }
        self.queued.is_empty()
    }

    fn submit(&mut self, wait_ns: Option<u64>) -> io::Result<()> {
        let result = match wait_ns {
            // With deferred task work, completions arrive only inside `enter` with GETEVENTS,
            // which `submit_and_wait(0)` omits unless asked for by a timeout of nothing.
            Some(ns) => {
                let time = types::Timespec::new()
                    .sec(ns / flash::SECOND)
                    .nsec((ns % flash::SECOND) as u32);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
            None => self.ring.submit_and_wait(1),
        };
        match result.map_err(|e| e.raw_os_error().unwrap_or(0)) {
            Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            Err(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

fn owner(data: u64) -> Owner {
    match (data >> 56) as u8 {
        1 => Owner::Medium,
        2 => Owner::Accept,
        3 => Owner::Receive,
        4 => Owner::Send,
        5 => Owner::Wake,
        other => unreachable!("user data was made by `queue`, not {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn more_entries_than_the_ring_holds_all_complete() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        let mut ring = Ring::new(4).unwrap();
        let mut bytes = [1u8; 100];
        for i in 0..100 {
            ring.read(i, file.as_raw_fd(), &raw mut bytes[i as usize], 1, 0);
        }
        let mut done = Vec::new();
        while ring.under_way() > 0 {
            ring.enter(None, &mut done).unwrap();
        }
        let mut seen: Vec<u32> = done.iter().map(|done| done.index).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(done.iter().all(|done| done.result == 1 && done.owner == Owner::Medium));
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn enter_returns_when_its_time_is_over() {
        let mut ring = Ring::new(4).unwrap();
        let mut done = Vec::new();
        ring.enter(Some(1000), &mut done).unwrap();
        ring.enter(Some(0), &mut done).unwrap();
        assert!(done.is_empty());
    }
}
