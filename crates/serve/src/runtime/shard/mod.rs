//! A shard: one thread, one ring, one core (FTL or raw units) with its medium, and the clients assigned to it.
//!
//! A turn of the loop: wait in the ring; deal with completions and messages; let the engine do
//! all it can; answer what is finished; queue one send per client with replies. A client that reads
//! much at once has its turn in parts, so that what was checked is still near when it is sent. With
//! one shard nothing leaves the thread.
//!
//! Shutting down: every shard finishes the requests of its clients (*draining*), still serving the
//! pieces of the others; when the last has drained, each stops its FTL, lets go of its sockets and
//! ends.

mod arrivals;
mod beat;
mod clock;
mod connection;
mod core;
mod engine;
mod entrance;
mod fenced;
mod health;
mod ids;
mod late;
mod limited;
mod message;
mod outbox;
mod patience;
mod rate;
mod requests;
mod room;
mod shared;
mod snapshots;
mod volumes;
mod zones;

pub use beat::{Beat, is_turn};
pub use clock::Clock;
pub use core::{AnyCore, CoreFormat, CoreSettings, CoreStatus, RawShape, RawStatus};
pub use engine::{Engine, Finished, Milestone, Origin, Piece, Work};
pub use entrance::Entrance;
pub use ids::{IdAnswer, IdList, IdRequest, IdWork, whole_blocks};
pub use late::Bounds;
pub use message::{Door, Mailbox, Message, PolicySwitch, ShardStatus, UnitBlocks, Wanted};
pub use room::{NO_ROOM, ROOM_AGAIN, Room, RoomFound};
pub use shared::Shared;
pub use snapshots::{SnapshotAsk, SnapshotWork};

use crate::device::Losses;
use crate::exports::Offered;
use crate::latency::{Latencies, Slowest};
use crate::medium::Lost;
use crate::rated::Rated;
use crate::runtime::data::{Data, Pool};
use crate::runtime::ring::{Done, Owner, Ring};
use connection::{Connection, Ending};
use flash::{Instant, SECOND, Slab};
use ftl::{Input, Switch};
use outbox::{Answered, Outbox};
use patience::Patience;
use rate::Rates;
use requests::Pending;
use shared::FAILED;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::vec::Drain;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Life {
    Serving,
    /// Finishing the clients' requests.
    Draining,
    /// Waiting for the other shards to drain.
    Drained,
    /// The FTL makes everything durable.
    Stopping,
    Stopped {
        durable: bool,
    },
}

/// How long clients may take to receive their last replies.
const FAREWELL_NS: u64 = 2 * SECOND;

/// After an accept that failed, as it does without descriptors.
const ACCEPT_AGAIN_NS: u64 = SECOND / 5;

/// When the log last told of what strangers can cause as often as they like.
#[derive(Default)]
struct Told {
    unaccepted: Rated,
    dropped: Rated,
    came: Rated,
    went: Rated,
}

/// One thread's share of a server.
pub struct Shard {
    me: usize,
    shared: Arc<Shared>,
    offered: Arc<Offered>,
    changes: volumes::Changes,
    limited: limited::Limited,
    ring: Ring,
    engine: Engine,
    clock: Clock,
    patience: Patience,
    pool: Pool,
    connections: Slab<Box<Connection>>,
    requests: Slab<Pending>,
    /// Blocks by ID, if these are raw units.
    desk: Option<ids::Desk>,
    listeners: Vec<OwnedFd>,
    /// Connections with something to send.
    dirty: Vec<u32>,
    /// Connections with more requests for the engine's next turn.
    postponed: Vec<u32>,
    /// Connections that wait for a buffer.
    starved: VecDeque<u32>,
    inbox: VecDeque<Message>,
    wake_bytes: Box<[u8; 8]>,
    next_shard: usize,
    life: Life,
    late: late::Late,
    acknowledged: late::Acknowledged,
    /// In `Draining` and after: when patience with slow clients ends.
    farewell: Instant,
    /// When the time of the first client is over.
    expires: Option<Instant>,
    /// That may have changed.
    expiries_stale: bool,
    /// What strangers cause is told of at a bounded rate.
    told: Told,
    /// Listeners whose last accept failed, and when to try again.
    accept_again: Vec<(Instant, u32)>,
    /// Policies that broke, of which the log tells.
    policies_broken: u64,
    /// Who waits for the fast tier to be empty.
    detaching: Vec<Box<dyn FnOnce(bool) + Send>>,
    /// Memory of requests that were answered before what the medium does with it has ended.
    abandoned: Vec<Data>,
    /// Of what was destaged, and of [`CoreStatus::moved_bytes`].
    destaged: Rates,
    moved: Rates,
    /// The log tells that a tier is lost.
    loss_told: bool,
    room: Room,
    /// The clock as it was last looked at, for what happens to requests.
    now: Instant,
    latencies: Latencies,
    health: health::Told,
    slowest: Slowest,
}

/// Why a shard ended early.
#[derive(Debug)]
pub enum ShardError {
    /// The ring failed.
    Ring(&'static str, io::Error),
    /// Not everything could be made durable at the end.
    NotDurable,
    /// Another server has the device.
    Lost(Lost),
}

impl Shard {
    /// A shard over a mounted engine. `listeners` are those it accepts clients of.
    pub fn new(
        me: usize,
        shared: Arc<Shared>,
        ring: Ring,
        engine: Engine,
        clock: Clock,
        listeners: Vec<OwnedFd>,
    ) -> Self {
        let pool = Pool::new(shared.buffer_bytes_max);
        let patience = Patience::new(shared.busy_poll_ns);
        let desk = ids::Desk::of(&engine);
        let late = late::Late::new(shared.bounds);
        let offered = shared.offered();
        let limited = limited::Limited::new(shared.limits_since);
        Self {
            me,
            shared,
            offered,
            changes: volumes::Changes::default(),
            limited,
            ring,
            engine,
            clock,
            patience,
            pool,
            connections: Slab::default(),
            requests: Slab::default(),
            desk,
            listeners,
            dirty: Vec::new(),
            postponed: Vec::new(),
            starved: VecDeque::new(),
            inbox: VecDeque::new(),
            wake_bytes: Box::new([0; 8]),
            next_shard: 0,
            life: Life::Serving,
            late,
            acknowledged: late::Acknowledged::default(),
            farewell: Instant(u64::MAX),
            expires: None,
            expiries_stale: false,
            told: Told::default(),
            accept_again: Vec::new(),
            policies_broken: 0,
            detaching: Vec::new(),
            abandoned: Vec::new(),
            destaged: Rates::default(),
            moved: Rates::default(),
            loss_told: false,
            room: Room::default(),
            now: clock.now(),
            latencies: Latencies::default(),
            health: health::Told::default(),
            slowest: Slowest::default(),
        }
    }

    /// Serves until it is told to shut down.
    pub fn run(mut self) -> Result<(), ShardError> {
        let result = self.serve();
        self.beat(false);
        let clock = self.clock;
        self.engine.medium.end(&mut || clock.now(), &mut self.ring);
        if !self.let_go() {
            // The kernel, or another shard, may still write to what is ours: it is never freed.
            tracing::warn!(
                shard = self.me,
                "not everything under way has ended: its memory is kept"
            );
            let _kept = std::mem::ManuallyDrop::new(self);
        }
        result
    }

    fn serve(&mut self) -> Result<(), ShardError> {
        let Losses { fast_ns, capacity_ns } = self.shared.losses;
        for (after_ns, fast) in [(fast_ns, true), (capacity_ns, false)] {
            if after_ns > 0 {
                self.engine.medium.lose(self.clock.now() + after_ns, fast);
            }
        }
        self.engine.medium.inject(self.shared.injections, self.me);
        for (index, listener) in self.listeners.iter().enumerate() {
            self.ring.accept(index as u32, listener.as_raw_fd());
        }
        self.rearm_wake();
        self.health.worked(self.now);
        let (mut done, mut finished) = (Vec::new(), Vec::new());
        let mut more = false;
        loop {
            let now = if more { self.go_on(&mut done) } else { self.wait(&mut done) };
            let now = now.map_err(|error| ShardError::Ring(self.ring.report().name, error))?;
            self.engine.lateness.note(now);
            self.engine.note_time(now);
            self.now = now;
            for done in done.drain(..) {
                self.completed(now, done);
            }
            if !self.accept_again.is_empty() {
                self.accept_on(now);
            }
            self.destaged.note(now, || vec![self.engine.core.slots_destaged()]);
            self.moved.note(now, || self.engine.status().moved_bytes());
            self.engine.medium.look(&mut self.ring);
            self.admit_waiting(now);
            self.turn(now, &mut finished);
            self.expire(now);
            self.tell_health(now);
            let fed = self.send_replies(now);
            if let Some(lost) = self.engine.medium.lost() {
                self.end_fenced(lost);
                return Err(ShardError::Lost(lost));
            }
            more = self.resume_postponed(now) || fed;
            self.tell_adopted();
            self.watch(now);
            self.look_at_old(now);
            self.refresh_expiries();
            if let Life::Stopped { durable } = self.live_on(now) {
                return if durable { Ok(()) } else { Err(ShardError::NotDurable) };
            }
        }
    }

    /// Lets the engine do all it can. What is finished frees buffers and places, which lets requests
    /// in that can be finished in this turn too.
    fn turn(&mut self, now: Instant, finished: &mut Vec<engine::Finished>) {
        loop {
            self.engine.turn(now, &mut self.ring);
            self.engine.take_finished(finished);
            if finished.is_empty() {
                self.log_broken_policy();
                self.log_lost_tier();
                self.log_failure();
                self.log_room(now);
                return;
            }
            // What the processor did for them is theirs too.
            self.now = self.clock.now();
            self.health.worked(self.now);
            for mut finished in finished.drain(..) {
                let origin = finished.origin;
                finished.waited.iter_mut().for_each(|waited| waited.shard = self.me);
                if origin.shard == ids::IDS {
                    self.id_done(origin.request, finished.result);
                } else if origin.shard == volumes::CLEARING {
                    self.cleared(origin.request, finished.result);
                } else if origin.shard == self.me {
                    self.piece_done(finished);
                } else {
                    self.shared.mailboxes[origin.shard].push(Message::Finished(finished));
                }
            }
            self.feed_starved(now);
        }
    }

    /// Hands to the kernel what is queued, without waiting: there is more to do.
    fn go_on(&mut self, done: &mut Vec<Done>) -> io::Result<Instant> {
        self.ring.enter(Some(0), done)?;
        // The turns that follow each other are turns of their own.
        self.beat(false);
        self.beat(true);
        Ok(self.clock.now())
    }

    fn beat(&self, begins: bool) {
        self.shared.beats[self.me].turn(begins);
    }

    /// Waits until there is something to do: first awake, as long as that has paid, then asleep.
    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<Instant> {
        self.beat(false);
        let begun = self.clock.now();
        let wait_ns = self.wait_ns(begun);
        let window_ns = self.patience.window_ns().min(wait_ns.unwrap_or(u64::MAX));
        if window_ns > 0 {
            self.ring.look(window_ns, done)?;
            self.patience.looked(self.clock.now() - begun);
        }
        if done.is_empty() {
            let left = wait_ns.map(|ns| ns.saturating_sub(self.clock.now() - begun));
            self.ring.enter(left, done)?;
        }
        self.beat(true);
        let now = self.clock.now();
        self.patience.waited(now - begun);
        Ok(now)
    }

    fn wait_ns(&mut self, now: Instant) -> Option<u64> {
        let draining = (self.life != Life::Serving).then_some(self.farewell);
        let accept = self.accept_again.iter().map(|(at, _)| *at).min();
        let (late, look) = (self.late.deadline(), self.engine.medium.look_due(now));
        let (old, due) = (self.engine.look_at_old_due(), self.engine.deadline());
        self.engine.lateness.expect(due);
        let (health, limited) = (self.health.deadline(), self.limited.deadline(now));
        let deadlines = [due, self.expires, accept, draining, late, look, old, health, limited];
        let deadline = deadlines.into_iter().flatten().min()?;
        Some(deadline - now)
    }

    fn rearm_wake(&mut self) {
        let fd = self.shared.mailboxes[self.me].event_fd();
        self.ring.wake(fd, self.wake_bytes.as_mut_ptr());
    }

    fn completed(&mut self, now: Instant, done: Done) {
        match done.owner {
            Owner::Medium | Owner::LinkReceive | Owner::LinkSend => {
                self.engine.io_done(now, done, &mut self.ring);
            }
            Owner::Accept => self.accepted(now, done),
            Owner::Receive => self.received(now, done),
            Owner::Send => self.sent(now, done),
            Owner::Wake => {
                self.rearm_wake();
                let shared = Arc::clone(&self.shared);
                shared.mailboxes[self.me].drain(&mut self.inbox);
                while let Some(message) = self.inbox.pop_front() {
                    self.told(now, message);
                }
            }
        }
    }

    fn told(&mut self, now: Instant, message: Message) {
        match message {
            Message::Client(caller) => self.welcome(now, caller),
            Message::Guest(queue, kick, place) => self.welcome_guest(now, queue, kick, place),
            Message::Piece(piece) => self.engine.submit(piece),
            Message::Finished(finished) => {
                self.piece_done(finished);
                self.feed_starved(now);
            }
            Message::Map(piece) => {
                let (mapped, blocks) = self.engine.mapped_run(flash::Lba(piece.lba), piece.blocks);
                let answer = Message::Mapped(piece.origin.request, mapped, blocks);
                self.shared.mailboxes[piece.origin.shard].push(answer);
            }
            Message::Mapped(request, mapped, blocks) => self.mapped(request, mapped, blocks),
            Message::Status(wanted, answer) => answer(self.status(wanted)),
            Message::RawBlocks { unit, answer } => answer(self.engine.core.raw_blocks(unit)),
            Message::Id(request) => self.ask_id(request),
            Message::IdList { after, count, answer } => answer(self.list_ids(after, count)),
            Message::Shapes { decision, name, answer } => {
                let whole = (self.engine.medium.geometry(), self.shared.mailboxes.len());
                answer(self.engine.core.check_switch(&decision, &name, whole));
            }
            Message::Policy(PolicySwitch { decision, name, by, chosen, done }) => {
                let (decision, name, by) = (decision.as_str(), name.as_str(), by.as_str());
                let switch = Switch { now, decision, name, by, chosen };
                done(self.engine.core.switch_policy(switch));
            }
            Message::DetachFast { answer } => {
                self.detaching.push(answer);
                self.engine.core.handle(now, Input::DetachFast);
            }
            Message::Offer { offered, answer } => self.adopt(offered, answer),
            Message::Label { bytes, answer } => self.label(now, &bytes, answer),
            Message::Clear { work, lba, blocks, answer } => {
                self.clear(work, (lba, blocks), answer);
            }
            Message::Snapshots(ask) => self.heed(now, ask),
            Message::DropFast => self.engine.medium.drop_fast(),
            Message::Shutdown if self.life == Life::Serving => {
                self.life = Life::Draining;
                self.begin_stop(now);
                self.farewell = now + FAREWELL_NS;
                self.stop_listening();
                for index in self.connection_indices() {
                    self.connections[index].front.shut_down();
                }
            }
            Message::Shutdown | Message::Drained => {}
        }
    }

    fn connection_indices(&self) -> Vec<u32> {
        self.connections.iter().map(|(index, _)| index).collect()
    }

    /// Goes on to the next part of the shard's life when its time has come.
    fn live_on(&mut self, now: Instant) -> Life {
        if self.give_up_stop(now) {
            return self.life;
        }
        let drained = self.shared.drained.load(Ordering::Acquire);
        let ids_done = self.desk.as_ref().is_none_or(ids::Desk::is_idle) && self.changes.is_idle();
        if drained >= FAILED && matches!(self.life, Life::Draining | Life::Drained) {
            if let Some(watch) = self.engine.medium.watch() {
                // Perhaps another shard has failed because the device is another server's.
                watch.look_now();
                if watch.lost().is_some() {
                    self.shared.mailboxes[self.me].wake();
                    return self.life;
                }
            }
            self.life = Life::Stopping;
            self.engine.shut_down(now);
            self.shared.mailboxes[self.me].wake();
        } else if self.life == Life::Draining && self.requests.is_empty() && ids_done {
            let replies_left = self.connections.iter().any(|(_, c)| !c.outbox.is_empty());
            if !replies_left || now >= self.farewell {
                self.life = Life::Drained;
                self.farewell = Instant(u64::MAX);
                self.shared.drained.fetch_add(1, Ordering::AcqRel);
                for (shard, mailbox) in self.shared.mailboxes.iter().enumerate() {
                    if shard != self.me {
                        mailbox.push(Message::Drained);
                    }
                }
            }
        } else if self.life == Life::Draining && now >= self.farewell {
            self.farewell = now + FAREWELL_NS;
            tracing::warn!(requests = self.requests.len(), "requests take long to finish");
        }
        let shards = self.shared.mailboxes.len();
        if self.life == Life::Drained && self.shared.drained.load(Ordering::Acquire) == shards {
            self.life = Life::Stopping;
            self.engine.shut_down(now);
            // What it has to do is found by the next turn.
            self.shared.mailboxes[self.me].wake();
        }
        while let Some(milestone) = self.engine.milestone() {
            match milestone {
                Milestone::Stopped(durable) => {
                    if !durable {
                        self.log_unclean_stop(now);
                    }
                    self.life = Life::Stopped { durable };
                }
                Milestone::FastDetached(gone) => {
                    self.detaching.drain(..).for_each(|answer| answer(gone));
                }
                Milestone::Labelled(durable) => self.labelled(durable),
                Milestone::Snapshot { number, step, result } => {
                    self.ordered((number, step), result)
                }
                Milestone::Ready(_) => {}
            }
        }
        self.life
    }

    fn stop_listening(&self) {
        for listener in &self.listeners {
            // Wakes the accept that is under way.
            // SAFETY: no memory is involved.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }

    /// Hangs up on everybody and waits until the kernel holds none of our memory. True if it does not,
    /// and no piece of ours is with another shard.
    fn let_go(&mut self) -> bool {
        for index in self.connection_indices() {
            self.connections[index].hang_up();
        }
        self.shared.mailboxes[self.me].wake();
        let settled = self.ring.settle(Duration::from_nanos(FAREWELL_NS));
        settled && self.requests.is_empty()
    }

    fn mark_dirty(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    /// One send for each client that has replies. True if memory came back at once, and somebody waited for it, so that
    /// there is more to do.
    fn send_replies(&mut self, now: Instant) -> bool {
        let mut delivered = false;
        while let Some(index) = self.dirty.pop() {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.dirty = false;
            if connection.front.deliver() {
                self.take_back(index, Outbox::discard);
                delivered = true;
            } else if connection.ending == Ending::Gone {
                // What is being sent stays the kernel's until that completes.
                self.take_back(index, Outbox::discard);
            } else {
                connection.send(now, index, &mut self.ring);
                self.expiries_stale |= connection.ending == Ending::Finishing;
            }
            self.close_if_done(index);
        }
        let fed = delivered && !self.starved.is_empty();
        if fed {
            self.feed_starved(now);
        }
        fed
    }

    fn sent(&mut self, now: Instant, done: Done) {
        let connection = &mut self.connections[done.index];
        if done.result <= 0 {
            self.end(done.index, Ending::Gone);
            self.connections[done.index].hang_up();
        } else if connection.ending != Ending::Gone {
            let bytes = done.result as usize;
            if !connection.sent(now, bytes, done.index, &mut self.ring) {
                return;
            }
        }
        self.take_back(done.index, Outbox::finish);
        self.mark_dirty(done.index);
        self.proceed(now, done.index);
        self.feed_starved(now);
    }

    /// Takes back what one half of an outbox has held.
    fn take_back(&mut self, index: u32, given_back: fn(&mut Outbox) -> Drain<'_, Answered>) {
        let connection = &mut *self.connections[index];
        for answered in given_back(&mut connection.outbox) {
            connection.front.finish(answered.ticket);
            if let Some(timed) = answered.timed.filter(|_| connection.ending != Ending::Gone) {
                let total_ns = self.latencies.record(&timed, self.now);
                if self.offered.get(timed.request.volume).is_none() {
                    self.latencies.keep(|volume| self.offered.get(volume).is_some());
                }
                self.slowest.note(total_ns, &timed, self.now);
            }
            if let Some(data) = answered.data {
                self.pool.put(data, self.engine.frames());
            }
        }
    }

    /// The connection ends, if it does not already.
    fn end(&mut self, index: u32, ending: Ending) {
        let connection = &mut self.connections[index];
        connection.ending = connection.ending.max(ending);
        self.expiries_stale = true;
        if ending == Ending::Gone {
            self.leave_lines(index);
        }
    }

    fn received(&mut self, now: Instant, done: Done) {
        let connection = &mut self.connections[done.index];
        connection.receiving = false;
        match done.result {
            bytes if bytes > 0 => {
                if let Err(error) = connection.received(bytes as usize) {
                    if let Some(more) = self.told.dropped.admit(now) {
                        tracing::info!(%error, more, "a client was dropped: TLS failed");
                    }
                    self.end(done.index, Ending::Finishing);
                }
            }
            0 => self.end(done.index, Ending::Finishing),
            _ => self.end(done.index, Ending::Gone),
        }
        self.mark_dirty(done.index);
        self.proceed(now, done.index);
    }

    /// Removes a connection that has ended and holds nothing any more.
    fn close_if_done(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let more = connection.postponed && connection.ending == Ending::Finishing;
        let busy = more || connection.requests > 0 || connection.outbox.is_sending();
        if connection.ending == Ending::No || busy {
            return;
        }
        if !connection.receiving {
            let parked = std::mem::take(&mut connection.parked).into_values();
            for incoming in connection.incoming.take().into_iter().chain(parked) {
                connection.front.finish(incoming.asked.ticket);
                self.pool.put(incoming.data, self.engine.frames());
            }
        }
        if let Some(asked) = connection.held.take() {
            connection.front.finish(asked.ticket);
        }
        if connection.receiving {
            connection.hang_up();
        } else if connection.is_idle() && connection.outbox.is_empty() {
            self.connections.remove(index);
            self.leave_lines(index);
            if let Some(more) = self.told.went.admit(self.now) {
                tracing::info!(shard = self.me, client = index, more, "a client went");
            }
            self.expiries_stale = true;
        }
    }

    /// Drops the clients whose time is over.
    fn expire(&mut self, now: Instant) {
        if self.expires.is_none_or(|at| now < at) {
            return;
        }
        self.expiries_stale = true;
        for index in self.connection_indices() {
            let Some(reason) = self.connections[index].expire(now) else { continue };
            if let Some(more) = self.told.dropped.admit(now) {
                tracing::info!(reason, more, "a client was dropped");
            }
            self.end(index, Ending::Gone);
            self.connections[index].hang_up();
            self.mark_dirty(index);
        }
    }

    fn refresh_expiries(&mut self) {
        if std::mem::take(&mut self.expiries_stale) {
            self.expires = self.connections.iter().filter_map(|(_, c)| c.deadline()).min();
        }
    }
}
