//! The driver for systems without io_uring: sockets and events are tried at once and, if they would
//! block, again when an epoll says so; files are read and written by [`Workers`].
//!
//! Invariants:
//! - nothing here blocks but the wait itself: every try is one that returns at once, so an event that
//!   comes for nothing does no harm;
//! - a descriptor has at most one operation in each direction under way, and is watched exactly
//!   while it has one.

use super::workers::Workers;
use super::{Done, Entry, Operation};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Events that are taken at once; more wait in the kernel.
const EVENTS_MAX: usize = 64;

/// See the head of this file.
pub struct Plain {
    epoll: OwnedFd,
    awaited: BTreeMap<RawFd, Awaited>,
    workers: Workers,
    ready: Vec<Done>,
}

/// What a descriptor must be ready for.
#[derive(Default)]
struct Awaited {
    input: Option<Entry>,
    output: Option<Entry>,
}

impl Plain {
    /// One without anything under way.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let workers = Workers::new()?;
        control(&epoll, libc::EPOLL_CTL_ADD, workers.event_fd(), libc::EPOLLIN)?;
        Ok(Self { epoll, awaited: BTreeMap::new(), workers, ready: Vec::new() })
    }

    /// See [`super::Ring::enter`].
    pub fn enter(
        &mut self,
        queued: &mut Vec<Entry>,
        wait_ns: Option<u64>,
        done: &mut Vec<Done>,
    ) -> io::Result<()> {
        for entry in queued.drain(..) {
            self.start(entry);
        }
        let waited = self.wait(if self.ready.is_empty() { wait_ns } else { Some(0) });
        done.append(&mut self.ready);
        waited
    }

    fn start(&mut self, entry: Entry) {
        match entry.operation {
            Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::SyncData { .. }
            | Operation::Punch { .. } => self.workers.hand(entry),
            Operation::ReadEvent { fd, .. }
            | Operation::Await { fd }
            | Operation::Receive { fd, .. } => {
                self.go_on(fd, Awaited { input: Some(entry), output: None }, false);
            }
            Operation::Accept { fd } => {
                // A connection may be gone again when it is to be taken.
                // SAFETY: no memory is involved. If it fails, so does the accept.
                unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
                self.go_on(fd, Awaited { input: Some(entry), output: None }, false);
            }
            Operation::Send { fd, .. } => {
                self.go_on(fd, Awaited { input: None, output: Some(entry) }, false);
            }
        }
    }

    /// Tries what a descriptor may be ready for, and has it watched for what would block.
    fn go_on(&mut self, fd: RawFd, mut tried: Awaited, shut: bool) {
        for place in [&mut tried.input, &mut tried.output] {
            if let Some(entry) = place
                && let Some(result) = attempt(&entry.operation, shut)
            {
                self.ready.push(Done::of(entry.data, result));
                *place = None;
            }
        }
        if tried.input.is_none() && tried.output.is_none() {
            return;
        }
        let awaited = self.awaited.entry(fd).or_default();
        for (place, entry) in
            [(&mut awaited.input, tried.input), (&mut awaited.output, tried.output)]
        {
            assert!(place.is_none() || entry.is_none(), "one operation in each direction");
            *place = place.take().or(entry);
        }
        let interest = awaited.interest();
        if let Err(error) = watch(&self.epoll, fd, interest) {
            let code = -error.raw_os_error().unwrap_or(libc::EIO);
            let awaited = self.awaited.remove(&fd).unwrap_or_default();
            let entries = [awaited.input, awaited.output].into_iter().flatten();
            self.ready.extend(entries.map(|entry| Done::of(entry.data, code)));
        }
    }

    /// Waits for events, and goes on with what they are about.
    fn wait(&mut self, wait_ns: Option<u64>) -> io::Result<()> {
        // An epoll counts in milliseconds, a poll of the epoll in nanoseconds.
        if let Some(ns @ 1..) = wait_ns
            && !readable_within(self.epoll.as_raw_fd(), ns)?
        {
            return Ok(());
        }
        let timeout = if wait_ns.is_none() { -1 } else { 0 };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let (to, most) = (events.as_mut_ptr(), EVENTS_MAX as i32);
        // SAFETY: there is room for as many events as are asked for.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), to, most, timeout) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in &events[..count as usize] {
            let fd = event.u64 as RawFd;
            if fd == self.workers.event_fd() {
                self.workers.take_finished(&mut self.ready);
            } else if let Some(awaited) = self.awaited.remove(&fd) {
                // Whichever direction it was: the other one says that it would block.
                let shut = event.events & (libc::EPOLLHUP | libc::EPOLLRDHUP) as u32 != 0;
                self.go_on(fd, awaited, shut);
            }
        }
        Ok(())
    }
}

impl Awaited {
    fn interest(&self) -> i32 {
        let input = if self.input.is_some() { libc::EPOLLIN | libc::EPOLLRDHUP } else { 0 };
        let output = if self.output.is_some() { libc::EPOLLOUT } else { 0 };
        // Once: it is not watched when nobody waits.
        input | output | libc::EPOLLONESHOT
    }
}

/// Tells the epoll what a descriptor is to be watched for. Whether it knows the descriptor it tells
/// itself: one that was closed is forgotten there, and its number comes again.
fn watch(epoll: &OwnedFd, fd: RawFd, interest: i32) -> io::Result<()> {
    match control(epoll, libc::EPOLL_CTL_MOD, fd, interest) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            control(epoll, libc::EPOLL_CTL_ADD, fd, interest)
        }
        told => told,
    }
}

fn control(epoll: &OwnedFd, what: i32, fd: RawFd, interest: i32) -> io::Result<()> {
    let mut event = libc::epoll_event { events: interest as u32, u64: fd as u64 };
    // SAFETY: the event is valid for the call.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &raw mut event) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until there is something to read, or the time is over.
fn readable_within(fd: RawFd, ns: u64) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec {
        tv_sec: (ns / flash::SECOND) as libc::time_t,
        tv_nsec: (ns % flash::SECOND) as libc::c_long,
    };
    // SAFETY: all are valid for the call.
    let result = unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
    if result >= 0 {
        return Ok(result > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// Tries it without waiting: what came of it, negative for an error number; `None` if it would
/// block. `shut`: the kernel says that nothing more will come.
fn attempt(operation: &Operation, shut: bool) -> Option<i32> {
    let result = match *operation {
        Operation::ReadEvent { fd, bytes } => {
            // The eventfd may be one that blocks.
            match readable_within(fd, 0) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(-error.raw_os_error().unwrap_or(libc::EIO)),
            }
            // SAFETY, here and below: by the invariant of `super` the memory is valid for the call.
            super::uninterrupted(|| unsafe { libc::read(fd, bytes.cast(), super::EVENT_BYTES) })
        }
        Operation::Await { fd } => match readable_within(fd, 0) {
            Ok(true) => libc::POLLIN.into(),
            Ok(false) => return None,
            Err(error) => return Some(-error.raw_os_error().unwrap_or(libc::EIO)),
        },
        Operation::Accept { fd } => {
            let none = std::ptr::null_mut;
            // SAFETY: nobody wants the address.
            let accept = || unsafe { libc::accept4(fd, none(), none().cast(), libc::SOCK_CLOEXEC) };
            super::uninterrupted(|| accept() as isize)
        }
        Operation::Receive { fd, message } => {
            super::uninterrupted(|| unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) })
        }
        Operation::Send { fd, message } => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            super::uninterrupted(|| unsafe { libc::sendmsg(fd, message, flags) })
        }
        Operation::Read { .. }
        | Operation::Write { .. }
        | Operation::SyncData { .. }
        | Operation::Punch { .. } => unreachable!("files are for the workers: {operation:?}"),
    };
    match (result, operation) {
        // A listening socket that was shut says for ever that it is ready, and that it would block.
        (would_block, Operation::Accept { .. }) if would_block == -libc::EAGAIN && shut => {
            Some(-libc::EINVAL)
        }
        (would_block, _) if would_block == -libc::EAGAIN => None,
        (result, _) => Some(result),
    }
}
