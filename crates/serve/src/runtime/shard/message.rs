//! How threads reach a shard: a queue and an eventfd that wakes its ring.
//!
//! Bounded by construction: a piece belongs to a request that holds one of its connection's
//! places, a finished piece answers a piece, and the rest is rare.

use super::Shard;
use super::core::CoreStatus;
use super::engine::{Finished, Piece};
use super::ids::{IdList, IdRequest};
use crate::latency::Latencies;
use crate::runtime::ring::DriverReport;
use flash::Instant;
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;
use ftl::raw::RawBlockState;
use ftl::raw::ids::IdError;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// What a client speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Door {
    /// NBD.
    Nbd,
    /// NVMe over TCP.
    Nvme,
}

/// What a shard is told by another thread.
pub enum Message {
    /// A client for this shard to serve, and what it came by.
    Client(OwnedFd, Door),
    /// Execute this, then send `Finished` to its origin.
    Piece(Piece),
    /// What this shard had sent away is done.
    Finished(Finished),
    /// How much of the blocks from `lba` on holds data? Send `Mapped` to the origin.
    Map(Piece),
    /// The answer: request, mapped or not, and how many blocks.
    Mapped(u32, bool, u32),
    /// Tell the state.
    Status(Box<dyn FnOnce(ShardStatus) + Send>),
    /// Tell which raw blocks of a unit hold something.
    RawBlocks {
        /// The unit.
        unit: u32,
        /// Gets the answer; `None` if there is no such unit.
        answer: Box<dyn FnOnce(Option<UnitBlocks>) + Send>,
    },
    /// Put, read or delete a block by its ID.
    Id(IdRequest),
    /// List blocks by number.
    IdList {
        /// Those after this one.
        after: Option<u64>,
        /// At most so many.
        count: usize,
        /// Gets the answer.
        answer: Box<dyn FnOnce(Result<IdList, IdError>) + Send>,
    },
    /// Tell what the policies of a decision are made for.
    Shapes {
        /// Which decision.
        decision: String,
        /// The policy that shall decide it.
        name: String,
        /// Gets the answer.
        answer: Box<dyn FnOnce(Result<Vec<Shape>, String>) + Send>,
    },
    /// Switch a policy.
    Policy(PolicySwitch),
    /// Empty the fast tier.
    DetachFast {
        /// Gets true when nothing needs it any more.
        answer: Box<dyn FnOnce(bool) + Send>,
    },
    /// The fast tier is no part of the device any more: close it.
    DropFast,
    /// Stop when everything is finished.
    Shutdown,
    /// Another shard has drained: look whether all have.
    Drained,
}

/// Policies that were made elsewhere, to be put in charge: neither to make one nor to drop one may
/// hold up a shard.
pub struct PolicySwitch {
    /// Which decision.
    pub decision: String,
    /// What they are called.
    pub name: String,
    /// Who asks.
    pub by: String,
    /// One for each of the shapes.
    pub chosen: Vec<Chosen>,
    /// Gets those that were in charge.
    pub done: Box<dyn FnOnce(Result<Vec<Chosen>, String>) + Send>,
}

/// The raw blocks of a unit that hold something: which, and what.
pub type UnitBlocks = Vec<(u32, RawBlockState)>;

/// State of a shard.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Of the FTL or the raw units.
    pub core: CoreStatus,
    /// Clients served by this shard.
    pub connections: usize,
    /// Requests in flight.
    pub requests: usize,
    /// Bytes of request buffers in use.
    pub buffer_bytes: usize,
    /// Erase counts of all blocks, in bins for a histogram: lower bound and blocks.
    pub wear: Vec<(u32, u32)>,
    /// Another server has taken over the device.
    pub fenced: bool,
    /// The last write found no room below.
    pub lacks_room: bool,
    /// Requests that took longer than they should.
    pub slow_requests: u64,
    /// Bytes a second that go from the fast tier to the capacity tier.
    pub destage_bytes_per_sec: u64,
    /// Its way to the kernel.
    pub driver: DriverReport,
    /// The shard's time, as instants in `core` count it.
    pub now: Instant,
    /// How long the requests of its clients took.
    pub latencies: Latencies,
}

impl Shard {
    /// The state, as it is told.
    pub(super) fn status(&self) -> ShardStatus {
        let mut counts: Vec<u32> = self.engine.medium.health().erase_counts;
        counts.sort_unstable();
        let bin = (counts.last().copied().unwrap_or(0) / 32).max(1);
        let mut wear: Vec<(u32, u32)> = Vec::new();
        for count in counts {
            let from = count / bin * bin;
            match wear.last_mut() {
                Some((last, blocks)) if *last == from => *blocks += 1,
                _ => wear.push((from, 1)),
            }
        }
        ShardStatus {
            core: self.engine.status(),
            connections: self.connections.len(),
            requests: self.requests.len(),
            buffer_bytes: self.pool.bytes_out(),
            wear,
            fenced: self.engine.medium.fenced(),
            lacks_room: self.room.lacks,
            slow_requests: self.late.slow_requests,
            destage_bytes_per_sec: self
                .destaged
                .per_sec(self.clock.now(), self.engine.core.slots_destaged())
                * flash::BLOCK_BYTES as u64,
            driver: self.ring.report().clone(),
            now: self.clock.now(),
            latencies: self.latencies.clone(),
        }
    }
}

/// The way into a shard.
pub struct Mailbox<M = Message> {
    queue: Mutex<VecDeque<M>>,
    event: OwnedFd,
}

impl<M> Mailbox<M> {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { queue: Mutex::default(), event })
    }

    /// Adds a message and wakes the shard if it may sleep.
    pub fn push(&self, message: M) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(message);
        let first = queue.len() == 1;
        drop(queue);
        if first {
            self.wake();
        }
    }

    /// Takes all messages, in order.
    pub fn drain(&self, into: &mut VecDeque<M>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut queue);
    }

    /// Wakes the shard.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full counter means that the shard is awake already.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// What the shard's ring reads.
    pub fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
