//! The shard's way to the kernel: entries are queued here and go there with the one `enter` of a
//! loop turn; completions are copied out before anything acts on them.
//!
//! Two drivers stand behind it: an io_uring, with as many of its savings as the kernel has
//! ([`uring`]); and, where that is refused, threads for files and an epoll for sockets ([`plain`]).
//! Nobody above can tell them apart but by their speed.
//!
//! Invariant: memory that a queued entry points to stays valid until its completion was seen. Who
//! queues keeps it (jobs of the medium and connections own their buffers), and frees it only when
//! [`Ring::settle`] says that nothing is under way; else it is never freed. A panic would free it
//! before: so it ends the process first (`crate::panics`).

mod choice;
mod plain;
mod uring;
mod workers;

pub use choice::{DriverChoice, DriverReport, NoDriver};

use plain::Plain;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use uring::Uring;

/// How long to wait for the kernel to let go of memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Meanwhile, how long to wait at a time.
const LOOK_AGAIN_NS: u64 = flash::SECOND / 10;

/// Who a completion belongs to: the high byte of its user data. Below it, in 24 bits, how much is to
/// be moved; then what the owner calls it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Owner {
    /// A job of the medium.
    Medium = 1,
    /// A listening socket.
    Accept = 2,
    /// A connection's receive, or its wait for something to read.
    Receive = 3,
    /// A connection's send.
    Send = 4,
    /// The eventfd that other threads wake the shard with.
    Wake = 5,
    /// The receive of a link to another part of a pool.
    LinkReceive = 6,
    /// Its send.
    LinkSend = 7,
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

/// What the kernel is asked for.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Read { fd: RawFd, bytes: *mut u8, len: u32, offset: u64 },
    Write { fd: RawFd, bytes: *const u8, len: u32, offset: u64 },
    SyncData { fd: RawFd },
    Punch { fd: RawFd, offset: u64, len: u64 },
    ReadEvent { fd: RawFd, bytes: *mut u8 },
    Await { fd: RawFd },
    Accept { fd: RawFd },
    Receive { fd: RawFd, message: *mut libc::msghdr },
    Send { fd: RawFd, message: *const libc::msghdr },
}

/// An operation, and what its completion is known by.
#[derive(Clone, Copy, Debug)]
struct Entry {
    operation: Operation,
    data: u64,
}

/// Queues entries for, and takes completions from, the kernel.
pub struct Ring {
    queued: Vec<Entry>,
    under_way: u32,
    driver: Driver,
    report: DriverReport,
}

enum Driver {
    Uring(Box<Uring>),
    Plain(Box<Plain>),
}

impl Ring {
    /// A ring with room for `entries` at a time; more wait in memory.
    ///
    /// # Errors
    /// No driver that `choice` allows works here.
    pub fn new(entries: u32, choice: DriverChoice) -> Result<Self, NoDriver> {
        let (driver, report) = Driver::new(entries, choice)?;
        Ok(Self { queued: Vec::with_capacity(entries as usize), under_way: 0, driver, report })
    }

    /// Which driver it is, and why.
    pub fn report(&self) -> &DriverReport {
        &self.report
    }

    /// Entries that were queued and have not completed.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    fn queue(&mut self, operation: Operation, owner: Owner, index: u32) {
        self.queue_transfer(operation, 0, owner, index);
    }

    fn queue_transfer(&mut self, operation: Operation, bytes: usize, owner: Owner, index: u32) {
        debug_assert!(bytes <= TRANSFER_BYTES_MAX, "a page or the OOBs of a block are less");
        let data = (owner as u64) << 56 | (bytes as u64) << 32 | u64::from(index);
        self.queued.push(Entry { operation, data });
        self.under_way += 1;
    }

    /// Reads `bytes` at `offset`.
    pub fn read(&mut self, index: u32, fd: RawFd, bytes: *mut u8, len: usize, offset: u64) {
        let operation = Operation::Read { fd, bytes, len: len as u32, offset };
        self.queue_transfer(operation, len, Owner::Medium, index);
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&mut self, index: u32, fd: RawFd, bytes: *const u8, len: usize, offset: u64) {
        let operation = Operation::Write { fd, bytes, len: len as u32, offset };
        self.queue_transfer(operation, len, Owner::Medium, index);
    }

    /// Makes the file's data durable.
    pub fn sync_data(&mut self, index: u32, fd: RawFd) {
        self.queue(Operation::SyncData { fd }, Owner::Medium, index);
    }

    /// Gives the range back to the file system; it reads as zeroes after.
    pub fn punch(&mut self, index: u32, fd: RawFd, offset: u64, len: u64) {
        self.queue(Operation::Punch { fd, offset, len }, Owner::Medium, index);
    }

    /// Waits for an eventfd that tells the end of something for a job of the medium, and reads its
    /// [`EVENT_BYTES`].
    pub fn read_event(&mut self, index: u32, fd: RawFd, bytes: *mut u8) {
        let operation = Operation::ReadEvent { fd, bytes };
        self.queue_transfer(operation, EVENT_BYTES, Owner::Medium, index);
    }

    /// Takes the next connection of a listening socket.
    pub fn accept(&mut self, index: u32, fd: RawFd) {
        self.queue(Operation::Accept { fd }, Owner::Accept, index);
    }

    /// Receives what is there, at most what the message has room for.
    pub fn receive(&mut self, index: u32, fd: RawFd, message: *mut libc::msghdr) {
        self.queue(Operation::Receive { fd, message }, Owner::Receive, index);
    }

    /// Waits until there is something to read, as in place of a receive.
    pub fn await_readable(&mut self, index: u32, fd: RawFd) {
        self.queue(Operation::Await { fd }, Owner::Receive, index);
    }

    /// Sends a message of several pieces.
    pub fn send(&mut self, index: u32, fd: RawFd, message: *const libc::msghdr) {
        self.queue(Operation::Send { fd, message }, Owner::Send, index);
    }

    /// Receives for a link what is there.
    pub fn link_receive(&mut self, index: u32, fd: RawFd, message: *mut libc::msghdr) {
        self.queue(Operation::Receive { fd, message }, Owner::LinkReceive, index);
    }

    /// Sends what a link has to say.
    pub fn link_send(&mut self, index: u32, fd: RawFd, message: *const libc::msghdr) {
        self.queue(Operation::Send { fd, message }, Owner::LinkSend, index);
    }

    /// Reads the [`EVENT_BYTES`] of the eventfd that other threads wake the shard with.
    pub fn wake(&mut self, fd: RawFd, bytes: *mut u8) {
        self.queue(Operation::ReadEvent { fd, bytes }, Owner::Wake, 0);
    }

    /// Hands what is queued to the kernel and looks for up to `window_ns`, without sleeping, until
    /// a completion is there or about to be.
    pub fn look(&mut self, window_ns: u64, done: &mut Vec<Done>) -> io::Result<()> {
        self.enter(Some(0), done)?;
        if let Driver::Uring(driver) = &mut self.driver
            && done.is_empty()
            && driver.look(window_ns)
        {
            return self.enter(Some(0), done);
        }
        Ok(())
    }

    /// Hands what is queued to the kernel, waits until something completes or `wait_ns` have
    /// passed (0: does not wait), and appends the completions to `done`.
    pub fn enter(&mut self, wait_ns: Option<u64>, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        let entered = match &mut self.driver {
            Driver::Uring(driver) => driver.enter(&mut self.queued, wait_ns, done),
            Driver::Plain(driver) => driver.enter(&mut self.queued, wait_ns, done),
        };
        self.under_way -= (done.len() - before) as u32;
        entered
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
    #[expect(clippy::mem_forget, reason = "the kernel may still write to it")]
    pub fn free<T>(&mut self, owner: T) {
        if !self.settle(PATIENCE) {
            std::mem::forget(owner);
        }
    }
}

impl Done {
    fn of(data: u64, result: i32) -> Self {
        let bytes = (data >> 32) as u32 & TRANSFER_BYTES_MAX as u32;
        Self { owner: owner(data), index: data as u32, result, bytes }
    }
}

fn owner(data: u64) -> Owner {
    match (data >> 56) as u8 {
        1 => Owner::Medium,
        2 => Owner::Accept,
        3 => Owner::Receive,
        4 => Owner::Send,
        5 => Owner::Wake,
        6 => Owner::LinkReceive,
        7 => Owner::LinkSend,
        other => unreachable!("user data was made by `queue`, not {other}"),
    }
}

/// Calls the system again as long as a signal cuts it off; negative is an error number.
fn uninterrupted(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            return result as i32;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            code => return -code.unwrap_or(libc::EIO),
        }
    }
}

/// Bytes that the read of an eventfd moves.
pub const EVENT_BYTES: usize = 8;

/// How a file gives back room: it reads as zeroes there, and keeps its size.
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

#[cfg(test)]
mod tests;
