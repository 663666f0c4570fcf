//! How threads reach a shard: a queue and an eventfd that wakes its ring.
//!
//! Bounded by construction: a piece belongs to a request that holds one of its connection's
//! places, a finished piece answers a piece, and the rest is rare.

use super::Shard;
use super::core::CoreStatus;
use super::engine::{Finished, Piece, Work};
use super::entrance::Place;
use super::ids::{IdList, IdRequest};
use super::snapshots::SnapshotAsk;
use super::volumes::{Cleared, Labelled};
use crate::exports::Offered;
use crate::front::vhost;
use crate::latency::{Latencies, Slow};
use crate::runtime::ring::DriverReport;
use flash::Instant;
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;
use ftl::raw::RawBlockState;
use ftl::raw::ids::IdError;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// What a client speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Door {
    /// NBD.
    Nbd,
    /// NVMe over TCP.
    Nvme,
}

/// Who has connected.
pub struct Caller {
    /// To speak with it.
    pub socket: Arc<OwnedFd>,
    /// What it came by.
    pub door: Door,
    /// As a newcomer.
    pub place: Place,
}

/// What a shard is told by another thread.
pub enum Message {
    /// A client for this shard to serve.
    Client(Caller),
    /// A guest's ring to serve, how it is kicked, and its place as a client.
    Guest(Box<vhost::VhostQueue>, vhost::Event, Place),
    /// Execute this, then send `Finished` to its origin.
    Piece(Piece),
    /// What this shard had sent away is done.
    Finished(Finished),
    /// How much of the blocks from `lba` on holds data? Send `Mapped` to the origin.
    Map(Piece),
    /// The answer: request, mapped or not, and how many blocks.
    Mapped(u32, bool, u32),
    /// Tell the state.
    Status(Wanted, Box<dyn FnOnce(ShardStatus) + Send>),
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
    /// Serve this from now on.
    Offer {
        /// What is offered.
        offered: Arc<Offered>,
        /// Called when nothing goes on that was begun before.
        answer: Box<dyn FnOnce() + Send>,
    },
    /// Keep another label.
    Label {
        /// The label.
        bytes: Vec<u8>,
        /// Gets true when it is durable, and false if nobody knows.
        answer: Labelled,
    },
    /// Trim or flush blocks that are no volume's.
    Clear {
        /// Which of both.
        work: Work,
        /// The first block of the shard.
        lba: u32,
        /// How many.
        blocks: u32,
        /// Gets the end.
        answer: Cleared,
    },
    /// Something about snapshots.
    Snapshots(SnapshotAsk),
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

/// What of the state is told that takes memory or time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The histograms of latencies, 30 KiB of each volume and operation.
    pub latencies: bool,
    /// So many of the slowest reads, and of the slowest other requests.
    pub slow: usize,
    /// The erases of all blocks, which takes a while where there are many.
    pub wear: bool,
}

/// State of a shard.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Of the FTL or the raw units.
    pub core: CoreStatus,
    /// Clients served by this shard.
    pub connections: usize,
    /// Requests in flight.
    pub requests: usize,
    /// Requests that wait until the limits of their volume let them in.
    pub requests_limited: usize,
    /// How often a client was told to come again, as the limits of its volume let it in much later.
    pub requests_put_off: u64,
    /// Bytes of request buffers in use.
    pub buffer_bytes: usize,
    /// Erase counts of the blocks of the capacity tier, in bins for a histogram: lower bound and blocks; if wanted.
    pub wear: Vec<(u32, u32)>,
    /// The same of the fast tier.
    pub wear_fast: Vec<(u32, u32)>,
    /// Another server has taken over the device.
    pub fenced: bool,
    /// The last write found no room below.
    pub lacks_room: bool,
    /// Requests that took longer than they should.
    pub slow_requests: u64,
    /// Bytes a second that go from the fast tier to the capacity tier.
    pub destage_bytes_per_sec: u64,
    /// What each of [`CoreStatus::moved_bytes`] grows by.
    pub moved_bytes_per_sec: Vec<u64>,
    /// Its way to the kernel.
    pub driver: DriverReport,
    /// The shard's time, as instants in `core` count it.
    pub now: Instant,
    /// How long the requests of its clients took, if that was wanted.
    pub latencies: Latencies,
    /// The slowest of the last minutes: as many as were wanted.
    pub slow: Vec<Slow>,
}

impl Shard {
    /// The state, as it is told.
    pub(super) fn status(&self, wanted: Wanted) -> ShardStatus {
        let counts = wanted.wear.then(|| self.engine.medium.health().erase_counts);
        let mut counts: Vec<u32> = counts.unwrap_or_default();
        let capacity = self.engine.medium.geometry().capacity_blocks();
        let fast = counts.split_off(counts.len().min(capacity as usize));
        let (now, core) = (self.clock.now(), self.engine.status());
        let destaged = self.destaged.per_sec(now, &[self.engine.core.slots_destaged()]);
        ShardStatus {
            moved_bytes_per_sec: self.moved.per_sec(now, &core.moved_bytes()),
            core,
            connections: self.connections.len(),
            requests: self.requests.len(),
            requests_limited: self.limited.len(),
            requests_put_off: self.limited.put_off,
            buffer_bytes: self.pool.bytes_out(),
            wear: in_bins(counts),
            wear_fast: in_bins(fast),
            fenced: self.engine.medium.fenced(),
            lacks_room: self.room.lacks,
            slow_requests: self.late.slow_requests,
            destage_bytes_per_sec: destaged
                .first()
                .map_or(0, |slots| slots * flash::BLOCK_BYTES as u64),
            driver: self.ring.report().clone(),
            now,
            latencies: match wanted.latencies {
                true => self.latencies.clone(),
                false => Latencies::default(),
            },
            slow: self.slowest.slowest(now, wanted.slow),
        }
    }
}

/// Erase counts in bins: lower bound and blocks.
fn in_bins(mut counts: Vec<u32>) -> Vec<(u32, u32)> {
    counts.sort_unstable();
    let bin = (counts.last().copied().unwrap_or(0) / 32).max(1);
    let mut bins: Vec<(u32, u32)> = Vec::new();
    for count in counts {
        let from = count / bin * bin;
        match bins.last_mut() {
            Some((last, blocks)) if *last == from => *blocks += 1,
            _ => bins.push((from, 1)),
        }
    }
    bins
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
