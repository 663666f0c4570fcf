//! The thread of a node: one ring, the drive, the node that decides, its guests, and its way to other nodes.
//!
//! A turn: wait in the ring; take what completed; give the node what its guests want and what its drive has ended;
//! carry out what it says; look whether the device is still ours, where something is said to be done; one send for each
//! guest with answers.

use super::drive::Drive;
use super::guests::{Guests, Wanted};
use super::room::Below;
use super::slowed::Slowed;
use crate::backend::Backend;
use crate::medium::{Looks, Lost};
use crate::pool::block::Block;
use crate::pool::reach::{Dialed, OURS, Reach, Reached};
use crate::runtime::ring::{Done, Owner, Ring};
use crate::runtime::shard::{Clock, Mailbox};
use flash::{Instant, SECOND};
use pool::control::deletions::Deleted;
use pool::message::{Answer, Ask, AskId, NodeFacts, Refusal, Signals};
use pool::node::quantile::Quantiles;
use pool::node::store::CommandId;
use pool::node::{Input, Node, Output, PeerId, congestion};
use pool::words::{Mode, NodeId, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// After an accept that failed, as it does without descriptors.
const ACCEPT_AGAIN_NS: u64 = SECOND / 5;

/// How long a drive may take to make everything durable at the end, and how often that is looked for.
const STOP_NS: u64 = 60 * SECOND;
const LOOK_NS: u64 = SECOND / 20;

/// What other threads tell the thread of a node.
pub enum Notice {
    /// A connection to another node was made, or not.
    Dialed(Dialed),
    /// Where the other nodes of the pool are.
    Addresses(BTreeMap<NodeId, String>),
    /// The controller wants the node in this mode, for so long from now on.
    Mode(Mode, u64),
    /// A volume is deleted.
    Deleted(Deleted),
    /// Answers of the drive come so much later from now on, to try what a slow drive does.
    Slow(u64),
    /// Tell how it does.
    Status(Box<dyn FnOnce(NodeStatus) + Send>),
    /// Stop.
    Stop,
}

/// How a node does.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// What it says of itself.
    pub facts: NodeFacts,
    /// Who is connected.
    pub guests: Vec<String>,
    /// The load of now.
    pub load: congestion::Load,
    /// Asks without an answer.
    pub asks: u32,
    /// The drive takes no writes any more.
    pub failed: bool,
    /// Erase counts of the drive's blocks: the least, the mean, the most.
    pub wear: (u32, f64, u32),
    /// Reads and writes that were answered, in blocks.
    pub done: Blocks,
    /// Other nodes that it cannot reach, and why.
    pub unreached: Vec<(NodeId, String)>,
    /// Answers come so much later than the drive has them.
    pub slow_ns: u64,
    /// The 99th percentile of what the drive took since this was asked last, in ns.
    pub tail_ns: u64,
    /// Erases that a block of the drive is made for.
    pub endurance: u32,
    /// Volumes that it knows something of.
    pub volumes: Vec<VolumeId>,
}

impl NodeStatus {
    /// How much of what the drive is made for is used up, as a share.
    pub fn worn(&self) -> f64 {
        self.wear.1 / f64::from(self.endurance.max(1))
    }
}

/// Blocks read and written since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocks {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
}

/// Why the thread of a node ended early.
#[derive(Debug)]
pub enum NodeEnd {
    /// The ring failed.
    Ring(&'static str, io::Error),
    /// Another process has the device.
    Lost(Lost),
    /// Not everything could be made durable.
    NotDurable,
}

/// An answer to a guest.
type Said = (PeerId, AskId, Answer<Block>, Signals);

/// See the head of this file.
pub struct NodeServer {
    node: Node<Block>,
    drive: Drive,
    below: Below,
    slowed: Slowed,
    guests: Guests,
    reach: Reach,
    /// What was asked of other nodes and not answered.
    asked: BTreeMap<NodeId, Vec<AskId>>,
    ring: Ring,
    clock: Clock,
    listener: OwnedFd,
    accept_again: Option<Instant>,
    mailbox: Arc<Mailbox<Notice>>,
    inbox: VecDeque<Notice>,
    wake_bytes: Box<[u8; 8]>,
    /// Answers that something is done, until a look that began after them finds the device ours: another process may
    /// have taken it since it was written to.
    unvouched: VecDeque<Said>,
    looks: Looks,
    done: Blocks,
    /// When commands of the drive were begun, and how long those took that have ended.
    begun: BTreeMap<CommandId, Instant>,
    took: Quantiles,
    completions: Vec<Done>,
    /// What the controller wants holds until then.
    mode_until: Option<Instant>,
    stopping: bool,
}

impl NodeServer {
    /// A node over an open drive.
    pub fn new(
        (node, drive, below, clock): (Node<Block>, Drive, Below, Clock),
        (guests, reach): (Guests, Reach),
        ring: Ring,
        (listener, mailbox): (OwnedFd, Arc<Mailbox<Notice>>),
    ) -> Self {
        Self {
            node,
            drive,
            below,
            slowed: Slowed::default(),
            guests,
            reach,
            asked: BTreeMap::new(),
            ring,
            clock,
            listener,
            accept_again: None,
            mailbox,
            inbox: VecDeque::new(),
            wake_bytes: Box::new([0; 8]),
            unvouched: VecDeque::new(),
            looks: Looks::default(),
            done: Blocks::default(),
            begun: BTreeMap::new(),
            took: Quantiles::default(),
            completions: Vec::new(),
            mode_until: None,
            stopping: false,
        }
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// Why it had to end.
    pub fn run(mut self) -> Result<(), NodeEnd> {
        let result = self.serve();
        // What the kernel holds of ours completes.
        // SAFETY: no memory is involved.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.mailbox.wake();
        self.guests.hang_up();
        self.reach.hang_up();
        let mut ring = self.ring;
        ring.free((self.drive, self.guests, self.reach, self.wake_bytes));
        result
    }

    fn serve(&mut self) -> Result<(), NodeEnd> {
        self.ring.accept(0, self.listener.as_raw_fd());
        self.rearm_wake();
        while !self.stopping {
            self.go_on()?;
        }
        // Nobody is served any more: what the drive has begun ends, and is durable.
        let now = self.clock.now();
        self.guests.close(now);
        self.reach.close(now);
        self.drive.begin_stop(now);
        let until = now + STOP_NS;
        while self.clock.now() < until {
            match self.drive.stopped() {
                Some(true) => return Ok(()),
                Some(false) => return Err(NodeEnd::NotDurable),
                None => self.go_on()?,
            }
        }
        Err(NodeEnd::NotDurable)
    }

    /// One turn.
    fn go_on(&mut self) -> Result<(), NodeEnd> {
        let mut done = std::mem::take(&mut self.completions);
        let now = self.clock.now();
        let wait = self.deadline().map(|at| at - now);
        let wait =
            if self.stopping { Some(wait.map_or(LOOK_NS, |ns| ns.min(LOOK_NS))) } else { wait };
        let entered = self.ring.enter(wait, &mut done);
        entered.map_err(|error| NodeEnd::Ring(self.ring.report().name, error))?;
        let now = self.clock.now();
        done.drain(..).for_each(|done| self.completed(now, done));
        self.completions = done;
        self.turn(now);
        self.drive.lost().map_or(Ok(()), |lost| Err(NodeEnd::Lost(lost)))
    }

    fn rearm_wake(&mut self) {
        self.ring.wake(self.mailbox.event_fd(), self.wake_bytes.as_mut_ptr());
    }

    fn completed(&mut self, now: Instant, done: Done) {
        match done.owner {
            Owner::Medium => self.drive.io_done(now, done, &mut self.ring),
            Owner::Accept => self.accepted(now, done),
            Owner::LinkReceive if done.index & OURS != 0 => {
                self.reach.received(now, done.index, done.result);
            }
            Owner::LinkReceive => {
                self.guests.received(now, done.index, done.result, self.node.facts());
            }
            Owner::LinkSend if done.index & OURS != 0 => {
                self.reach.sent(now, done.index, done.result, &mut self.ring);
            }
            Owner::LinkSend => self.guests.sent(now, done.index, done.result, &mut self.ring),
            Owner::Wake => {
                self.rearm_wake();
                let mailbox = Arc::clone(&self.mailbox);
                mailbox.drain(&mut self.inbox);
                while let Some(notice) = self.inbox.pop_front() {
                    self.told(now, notice);
                }
            }
            Owner::Receive | Owner::Send => unreachable!("a node has no clients of volumes"),
        }
    }

    fn accepted(&mut self, now: Instant, done: Done) {
        if done.result < 0 && self.stopping {
            return;
        }
        if done.result < 0 {
            let error = io::Error::from_raw_os_error(-done.result);
            tracing::warn!(%error, "a guest could not be accepted");
            self.accept_again = Some(now + ACCEPT_AGAIN_NS);
            return;
        }
        // SAFETY: the kernel made this descriptor for us.
        let socket = unsafe { OwnedFd::from_raw_fd(done.result) };
        if !self.stopping {
            self.ring.accept(0, self.listener.as_raw_fd());
            self.guests.welcome(now, socket);
        }
    }

    fn told(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Dialed(dialed) => self.reach.dialed(now, dialed),
            Notice::Addresses(addresses) => {
                let me = self.node.facts().node;
                let known: Vec<NodeId> = self.reach.nodes().map(|(node, _)| node).collect();
                let gone = known.into_iter().filter(|node| !addresses.contains_key(node));
                gone.for_each(|node| self.reach.set_address(now, node, None));
                for (node, address) in addresses.into_iter().filter(|(node, _)| *node != me) {
                    self.reach.set_address(now, node, Some(address));
                }
            }
            Notice::Mode(mode, valid_ns) => {
                self.mode_until = Some(now + valid_ns);
                self.node.handle(now, Input::Mode(mode));
            }
            Notice::Deleted(deleted) => {
                self.node.handle(now, Input::Deleted(deleted));
                self.settle(now);
            }
            Notice::Slow(ns) => self.slowed.set(ns),
            Notice::Status(answer) => answer(self.status()),
            Notice::Stop => self.stopping = true,
        }
    }

    fn status(&mut self) -> NodeStatus {
        let tail_ns = self.took.at_percent(99);
        self.took.clear();
        let counts = self.drive.medium().health().erase_counts;
        let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
        let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let mean = sum as f64 / counts.len().max(1) as f64;
        let unreached = self.reach.nodes();
        NodeStatus {
            facts: self.node.facts(),
            guests: self.guests.names().map(Into::into).collect(),
            load: self.node.load(),
            asks: self.node.asks(),
            failed: self.node.has_failed(),
            wear: (least.unwrap_or(0), mean, most.unwrap_or(0)),
            done: self.done,
            unreached: unreached.filter_map(|(node, why)| Some((node, why?.to_owned()))).collect(),
            slow_ns: self.slowed.ns(),
            tail_ns,
            endurance: self.drive.medium().geometry().endurance,
            volumes: self.node.volumes().collect(),
        }
    }

    /// Carries out all that can be done now.
    fn turn(&mut self, now: Instant) {
        if self.accept_again.take_if(|at| *at <= now).is_some() {
            self.ring.accept(0, self.listener.as_raw_fd());
        }
        while let Some(wanted) = self.guests.poll() {
            let input = match wanted {
                Wanted::Ask { peer, id, ask } => Input::Ask { peer, id, ask },
                Wanted::Gone(peer) => Input::Gone(peer),
            };
            self.node.handle(now, input);
            self.settle(now);
        }
        while let Some(reached) = self.reach.poll() {
            self.reached(now, reached);
            self.settle(now);
        }
        if self.mode_until.take_if(|until| *until <= now).is_some() {
            // Nobody plans any more: all nodes are equal.
            self.node.handle(now, Input::Mode(Mode::Mixed));
        }
        self.drive.medium_mut().look(&mut self.ring);
        if self.node.deadline().is_some_and(|at| at <= now) {
            self.node.handle(now, Input::Deadline);
            self.settle(now);
        }
        loop {
            self.drive.turn(now, &mut self.ring);
            self.slowed.take(now, self.drive.take_ends());
            let mut idle = true;
            while let Some(end) = self.slowed.due(now) {
                idle = false;
                if let Some(begun) = self.begun.remove(&end.id) {
                    self.took.add(now - begun);
                }
                self.node.handle(now, Input::Ended(end));
                self.settle(now);
            }
            if idle {
                break;
            }
        }
        self.below.log(now, &self.drive);
        self.vouch();
        self.guests.turn(now, &mut self.ring);
        self.reach.turn(now, &mut self.ring);
    }

    fn reached(&mut self, now: Instant, reached: Reached) {
        match reached {
            Reached::Up(_) | Reached::Facts(_) => {}
            Reached::Answer { node, id, answer, .. } => {
                if let Some(asked) = self.asked.get_mut(&node) {
                    asked.retain(|other| *other != id);
                }
                self.node.handle(now, Input::Answer { from: node, id, answer });
            }
            Reached::Down(node, why) => {
                tracing::warn!(node = node.0, why, "the link to a node is gone");
                for id in self.asked.remove(&node).unwrap_or_default() {
                    self.unanswered(now, node, id);
                }
            }
        }
    }

    /// Another node cannot be asked now: later, perhaps.
    fn unanswered(&mut self, now: Instant, from: NodeId, id: AskId) {
        let answer = Answer::Refused(Refusal::Busy);
        self.node.handle(now, Input::Answer { from, id, answer });
    }

    fn settle(&mut self, now: Instant) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Answer { peer, id, answer, signals } => {
                    if let Answer::Slots(slots) = &answer {
                        self.done.reads += slots.len() as u64;
                    }
                    if matches!(answer, Answer::Done) {
                        self.unvouched.push_back((peer, id, answer, signals));
                    } else {
                        self.guests.answer(peer, id, answer, signals);
                    }
                }
                Output::Command { id, command } => {
                    if let pool::node::store::Command::Append { slots, .. } = &command {
                        self.done.writes += slots.len() as u64;
                    }
                    self.begun.insert(id, now);
                    self.drive.begin(now, id, command, &mut self.ring);
                }
                Output::Ask { to, id, ask } => self.ask(now, to, id, ask),
            }
        }
    }

    /// Lets go of answers that were kept before a look which found the device ours, and has the others looked for.
    fn vouch(&mut self) {
        while !self.unvouched.is_empty() {
            let waiting = self.unvouched.len();
            let settled = match self.drive.medium_mut().watch() {
                None => waiting,
                // One that cannot look does not try at every turn.
                Some(watch) if !watch.is_ours() && !watch.due_in().is_zero() => return,
                Some(watch) => {
                    let settled = self.looks.settle(waiting, watch, &mut self.ring);
                    // Where it is another's the node is about to end; where that is not known it is looked again.
                    let Some(settled) = settled.filter(|_| watch.is_ours()) else { return };
                    settled
                }
            };
            for (peer, id, answer, signals) in self.unvouched.drain(..settled) {
                self.guests.answer(peer, id, answer, signals);
            }
        }
    }

    fn ask(&mut self, now: Instant, to: NodeId, id: AskId, ask: Ask<Block>) {
        if self.reach.ask(now, to, id, ask) {
            self.asked.entry(to).or_default().push(id);
        } else {
            self.unanswered(now, to, id);
        }
    }

    fn deadline(&mut self) -> Option<Instant> {
        let look = self.drive.medium_mut().look_due(self.clock.now());
        let deadlines = [
            self.drive.deadline(),
            self.node.deadline(),
            self.guests.deadline(),
            self.reach.deadline(),
            self.slowed.deadline(),
            self.accept_again,
            self.mode_until,
            look,
        ];
        deadlines.into_iter().flatten().min()
    }
}
