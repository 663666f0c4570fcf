//! The driver for kernels that grant an io_uring. What newer ones offer is used where it is there:
//! each level of [`Level`] asks for less than the one before.
//!
//! Invariant: a ring that was made works. An operation went through it and came back, and the
//! kernel knows all that will be asked of it.

use super::choice::Refusal;
use super::{Done, Entry, Operation};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::io;
use std::time::Instant;

/// How often to look at the ring for each look at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// What a ring saves, from all to nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// Completions are made only when the one thread asks for them (Linux 6.1).
    Deferred,
    /// Completions never interrupt the thread (Linux 5.19).
    Cooperative,
    /// As Linux 5.11 has it.
    Basic,
}

impl Level {
    /// In the order to try them.
    pub const ALL: [Self; 3] = [Self::Deferred, Self::Cooperative, Self::Basic];

    /// What to say of it, and whether people should hear of it.
    pub fn words(self) -> (&'static str, bool) {
        match self {
            Self::Deferred => ("with deferred task work", false),
            Self::Cooperative => ("without deferred task work, which Linux 6.1 has: slower", true),
            Self::Basic => ("without what Linux 5.19 and 6.1 added: slower", true),
        }
    }

    fn build(self, entries: u32) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(entries * 4);
        match self {
            Self::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag()
            }
            Self::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
            Self::Basic => &mut builder,
        };
        builder.build(entries)
    }
}

/// What will be asked for.
const OPCODES: [u8; 9] = [
    opcode::Nop::CODE,
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::Accept::CODE,
    opcode::RecvMsg::CODE,
    opcode::SendMsg::CODE,
];

/// How much smaller a ring is tried where memory that may be locked is short (before Linux 5.12).
const SMALLER: u32 = 8;

/// An io_uring.
pub struct Uring {
    ring: IoUring,
    level: Level,
}

impl Uring {
    /// A ring of the highest level that the kernel has.
    pub fn new(entries: u32) -> Result<Self, Refusal> {
        let mut refusal = None;
        for level in Level::ALL {
            match Self::at(level, entries) {
                // An older kernel does not know a flag.
                Err(lower) if lower.error.raw_os_error() == Some(libc::EINVAL) => {
                    refusal = Some(lower);
                }
                made => return made,
            }
        }
        Err(refusal.expect("there is a level"))
    }

    /// A ring of this level.
    pub fn at(level: Level, entries: u32) -> Result<Self, Refusal> {
        let refused = |doing| move |error| Refusal { doing, error };
        let built = match level.build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && entries > SMALLER => {
                level.build(entries / SMALLER)
            }
            built => built,
        };
        let ring = built.map_err(refused("io_uring_setup"))?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            let error = io::Error::new(io::ErrorKind::Unsupported, "it cannot wait with a timeout");
            return Err(Refusal { doing: "io_uring_setup", error });
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(refused("io_uring_register"))?;
        if let Some(code) = OPCODES.into_iter().find(|&code| !probe.is_supported(code)) {
            let reason = format!("operation {code} is not known");
            let error = io::Error::new(io::ErrorKind::Unsupported, reason);
            return Err(Refusal { doing: "io_uring_register", error });
        }
        let mut made = Self { ring, level };
        made.prove().map_err(refused("io_uring_enter"))?;
        Ok(made)
    }

    /// What it saves.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Sends nothing through it and waits for that. A filter may let the ring be made and refuse to
    /// enter it.
    fn prove(&mut self) -> io::Result<()> {
        let entry = opcode::Nop::new().build();
        // SAFETY: the entry refers to no memory.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring is empty");
        let begun = Instant::now();
        while self.ring.completion().next().is_none() {
            self.submit(Some(flash::MILLISECOND))?;
            if begun.elapsed().as_secs() >= 5 {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Looks for up to `window_ns`, without sleeping; true if a completion is there or about to be.
    pub fn look(&mut self, window_ns: u64) -> bool {
        let begun = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.ring.submission().taskrun() || !self.ring.completion().is_empty() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed().as_nanos() as u64 >= window_ns {
                return false;
            }
        }
    }

    /// See [`super::Ring::enter`].
    pub fn enter(
        &mut self,
        queued: &mut Vec<Entry>,
        wait_ns: Option<u64>,
        done: &mut Vec<Done>,
    ) -> io::Result<()> {
        loop {
            let all_queued = self.fill(queued);
            let wait = all_queued && wait_ns != Some(0);
            self.submit(if wait { wait_ns } else { Some(0) })?;
            done.extend(self.ring.completion().map(|c| Done::of(c.user_data(), c.result())));
            if all_queued {
                return Ok(());
            }
        }
    }

    /// Moves queued entries to the submission queue; true if all fit.
    fn fill(&mut self, queued: &mut Vec<Entry>) -> bool {
        let mut queue = self.ring.submission();
        let room = (queue.capacity() - queue.len()).min(queued.len());
        for entry in queued.drain(..room) {
            let entry = prepared(entry.operation).user_data(entry.data);
            // SAFETY: by the invariant of `super` the entry's memory outlives its completion.
            unsafe { queue.push(&entry) }.expect("room was counted");
        }
        queued.is_empty()
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

fn prepared(operation: Operation) -> squeue::Entry {
    match operation {
        Operation::Read { fd, bytes, len, offset } => {
            opcode::Read::new(types::Fd(fd), bytes, len).offset(offset).build()
        }
        Operation::Write { fd, bytes, len, offset } => {
            opcode::Write::new(types::Fd(fd), bytes, len).offset(offset).build()
        }
        Operation::SyncData { fd } => {
            opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build()
        }
        Operation::Punch { fd, offset, len } => {
            let mode = super::PUNCH;
            opcode::Fallocate::new(types::Fd(fd), len).offset(offset).mode(mode).build()
        }
        Operation::ReadEvent { fd, bytes } => {
            opcode::Read::new(types::Fd(fd), bytes, super::EVENT_BYTES as u32).build()
        }
        Operation::Await { fd } => opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build(),
        Operation::Accept { fd } => {
            let none = std::ptr::null_mut();
            opcode::Accept::new(types::Fd(fd), none, std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Operation::Receive { fd, message } => opcode::RecvMsg::new(types::Fd(fd), message).build(),
        Operation::Send { fd, message } => {
            opcode::SendMsg::new(types::Fd(fd), message).flags(libc::MSG_NOSIGNAL as u32).build()
        }
    }
}
