//! A volume of a pool as what stands below an FTL ([`Backend`]): the session of crate `pool`, its links to the nodes
//! and to the control plane, on the ring of a shard.
//!
//! Invariants:
//! - what the plane and dialing threads have to say comes through a mailbox, and is heard in the shard's turn;
//! - data that goes to nodes is the backend's own copy: a node that is late may still be sent it when the FTL has
//!   long gone on;
//! - the loss of the volume is told before the ends of commands that follow from it;
//! - of an earlier opening nothing is heard any more: its links are closed, and its answers of the plane passed over.

mod data;
mod open;
mod scrub;
#[cfg(test)]
mod tests;

pub use open::{Repairs, VolumeOptions, starter};
pub use scrub::When;

use super::block::Block;
use super::plane::PlaneLink;
use super::reach::{Dialed, Reach, Reached};
use crate::backend::Backend;
use crate::medium::Lost;
use crate::runtime::buffer::Views;
use crate::runtime::ring::{Done, EVENT_BYTES, Owner, Ring};
use crate::runtime::shard::{CoreSettings, Mailbox};
use flash::{BlockId, Command, Completion, Geometry, Health, Instant, SECOND, SlotWrite};
use ftl::policy::UnitWeights;
use pool::client::{Counters, End, Over, Plan};
use pool::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::keys;
use pool::control::values::{Value, VolumeRecord};
use pool::controller::weights::Weights;
use pool::message::Answer;
use pool::node::store::is_of_its_sum;
use pool::opening::Opened;
use pool::repair::Progress;
use pool::session::{Input, Note, Output, Session, SessionError};
use pool::words::{Generation, NodeId};
use scrub::Scrubbing;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The index of the read of the mailbox's eventfd among what the ring does for a medium.
const WAKE: u32 = u32::MAX;

/// To give the volume back may take so long; who opens it next waits for the lease else.
const RELEASE_NS: u64 = 2 * SECOND;

/// Nodes are asked so often how full they are: by that bands are spread.
const GREET_NS: u64 = 5 * SECOND;

/// What is asked when the volume is lost: no part of a session asks by this number. It is waited for so long.
const WHOSE: PlaneAskId = PlaneAskId(u64::MAX);
const WHOSE_NS: u64 = 2 * SECOND;

/// Takes an answer to wherever somebody waits for it.
pub type Tell<T> = Box<dyn FnOnce(T) + Send>;

/// What other threads tell a volume.
pub enum Notice {
    /// A connection to a node was made, or not.
    Dialed(Dialed),
    /// The control plane answers; to which opening, as this client counts them.
    Plane(u64, PlaneAskId, PlaneAnswer),
    /// What the controller wants from now on.
    Weights(Weights),
    /// Nodes that are away are not to be waited for.
    GoOn,
    /// When copies are to be read and compared. With `Now` the number is told that the round has which begins by it, or
    /// why none does.
    Scrub(When, Tell<Result<Option<u64>, &'static str>>),
    /// Nodes may differ by this share of their room before bands move.
    Spread(f64),
    /// Tell how it does.
    Status(Tell<VolumeStatus>),
    /// Tell how far repair has come, once the volume is open.
    Repair(Tell<Option<Progress>>),
}

/// How far repair of a volume has come; nothing if it is not open yet, or does not say so in time.
pub fn repair(mailbox: &Mailbox<Notice>, within: Duration) -> Option<Progress> {
    let (send, answer) = mpsc::channel();
    mailbox.push(Notice::Repair(Box::new(move |progress| {
        // Whoever asked may not have waited for it.
        send.send(progress).ok();
    })));
    answer.recv_timeout(within).ok().flatten()
}

/// How a volume of a pool does.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Of this opening, once it is open.
    pub generation: Option<Generation>,
    /// What it does and waits for, in words.
    pub explains: String,
    /// What its client has counted.
    pub counters: Option<Counters>,
    /// How far repair has come.
    pub repair: Option<Progress>,
    /// Lives of bands on record.
    pub records: usize,
    /// When copies are read and compared.
    pub scrub: When,
    /// Nodes of the pool: up, or why not.
    pub nodes: BTreeMap<NodeId, Option<String>>,
}

/// See the head of this file.
pub struct VolumeBackend {
    options: VolumeOptions,
    session: Session<Block>,
    /// Openings before this one.
    reopenings: u64,
    reopening: Reopening,
    reach: Reach,
    plane: PlaneLink,
    mailbox: Arc<Mailbox<Notice>>,
    inbox: VecDeque<Notice>,
    /// The eventfd is being read, here.
    wake_bytes: Box<[u8; EVENT_BYTES]>,
    armed: bool,
    geometry: Geometry,
    ends: VecDeque<End<Block>>,
    /// As the session said last, and whether the core knows them.
    weights: UnitWeights,
    are_weights_new: bool,
    /// Of which no copy is whole, and which the core was not told of.
    refreshes: VecDeque<BlockId>,
    lost: Option<Lost>,
    /// The session is over, as another one has the volume or deleted it: which is asked until then.
    fenced: Option<(Over, Instant)>,
    /// The engine has not been told of it yet.
    loss_due: bool,
    opened: Option<Result<Box<Opened>, SessionError>>,
    released: bool,
    checkpoints: u64,
    scrubbing: Scrubbing,
    /// When nodes are asked next how full they are.
    greet_at: Instant,
    now: Instant,
}

/// How far a volume that has grown is on its way to be opened anew.
enum Reopening {
    No,
    /// Its record has grown, and the engine was not heard of yet.
    Due(Box<VolumeRecord>),
    /// It is given back, until then at most.
    Releasing(Box<VolumeRecord>, Instant),
    /// It is being opened.
    Opening,
}

impl VolumeBackend {
    fn new(
        options: VolumeOptions,
        session: Session<Block>,
        (reach, plane): (Reach, PlaneLink),
        mailbox: Arc<Mailbox<Notice>>,
    ) -> Self {
        let geometry = pool::volume::geometry(&options.record);
        Self {
            options,
            session,
            reopenings: 0,
            reopening: Reopening::No,
            reach,
            plane,
            mailbox,
            inbox: VecDeque::new(),
            wake_bytes: Box::new([0; EVENT_BYTES]),
            armed: false,
            geometry,
            ends: VecDeque::new(),
            weights: UnitWeights::default(),
            are_weights_new: false,
            refreshes: VecDeque::new(),
            lost: None,
            fenced: None,
            loss_due: false,
            opened: None,
            released: false,
            checkpoints: 0,
            scrubbing: Scrubbing::new(Instant(0)),
            greet_at: Instant(GREET_NS),
            now: Instant(0),
        }
    }

    fn handle(&mut self, now: Instant, input: Input<'_, Block>) {
        self.session.handle(now, input);
        while let Some(output) = self.session.poll() {
            self.carry_out(now, output);
        }
    }

    fn carry_out(&mut self, now: Instant, output: Output<Block>) {
        match output {
            Output::Plane { id, ask } => self.plane.ask(id, ask),
            Output::Connect(nodes) => {
                let known: Vec<NodeId> = self.reach.nodes().map(|(node, _)| node).collect();
                for node in known {
                    if nodes.iter().all(|record| record.node != node) {
                        self.reach.set_address(now, node, None);
                    }
                }
                for record in nodes {
                    self.reach.set_address(now, record.node, Some(record.address));
                }
            }
            // A node that has gone meanwhile: that is on its way to the session.
            Output::Ask { node, id, ask } => drop(self.reach.ask(now, node, id, ask)),
            Output::Opened(opened) => self.opened = Some(Ok(opened)),
            Output::Failed(error) => self.opened = Some(Err(error)),
            Output::Ended(end) => self.ends.push_back(end),
            Output::Weights(weights) => (self.weights, self.are_weights_new) = (weights, true),
            Output::Refresh(block) => {
                tracing::warn!(
                    band = block.0,
                    "no copy of a band is whole, and none can be made: what of it is sound is written anew elsewhere"
                );
                self.refreshes.push_back(block);
            }
            // It is asked for before each reply.
            Output::Lease { .. } => {}
            Output::Fenced(over) => {
                // Whoever deletes a volume takes it over, too: which of both it was the control plane knows.
                let key = keys::volume(self.options.record.volume);
                self.plane.ask(WHOSE, PlaneAsk::Get { key });
                self.fenced = Some((over, now + WHOSE_NS));
            }
            Output::Noted(note) => log(&note),
            Output::Grown(_) if self.options.settings.map_bytes > 0 => tracing::warn!(
                "the volume has grown, and does so with the whole map in DRAM: leave `ftl.map_memory` out of the config of \
                 this client for one start"
            ),
            Output::Grown(record) => self.reopening = Reopening::Due(record),
            Output::Released => self.released = true,
        }
    }

    fn lose(&mut self, lost: Lost) {
        self.fenced = None;
        self.lost.get_or_insert(lost);
        self.loss_due = true;
    }

    /// The control plane says whose the volume is by now.
    fn told_whose(&mut self, answer: &PlaneAnswer) {
        let Some((over, _)) = self.fenced else { return };
        let key = keys::volume(self.options.record.volume);
        match answer {
            PlaneAnswer::Value { kept: None, .. } => self.lose(Lost::Deleted),
            PlaneAnswer::Value { kept: Some(kept), .. } => {
                let record = VolumeRecord::decode(&key, &kept.value);
                self.lose(match record.is_ok_and(|record| record.is_deleted) {
                    true => Lost::Deleted,
                    false => match over {
                        Over::Stale { highest } => Lost::ToClient(highest.0),
                        Over::LeaseLost => Lost::Lease,
                    },
                });
            }
            _ => self.lose_untold(over),
        }
    }

    /// The control plane does not say whether the volume is another one's or nobody's.
    fn lose_untold(&mut self, over: Over) {
        self.lose(match over {
            Over::Stale { highest } => Lost::ToSomebody(highest.0),
            Over::LeaseLost => Lost::LeaseOrDeleted,
        });
    }

    /// Hears all that there is, and has said what there is to say.
    fn run(&mut self, now: Instant, ring: &mut Ring) {
        self.now = now;
        if !self.armed {
            self.armed = true;
            let fd = self.mailbox.event_fd();
            ring.read_event(WAKE, fd, self.wake_bytes.as_mut_ptr());
        }
        while let Some(reached) = self.reach.poll() {
            self.reached(now, reached);
        }
        if self.session.deadline(now).is_some_and(|at| at <= now) {
            self.handle(now, Input::Deadline);
        }
        if let Some((over, _)) = self.fenced.filter(|(_, until)| now >= *until) {
            self.lose_untold(over);
        }
        if now >= self.greet_at {
            self.greet_at = now + GREET_NS;
            self.reach.greet();
        }
        self.scrub(now);
        self.begin_anew(now);
        self.reach.turn(now, ring);
    }

    /// Opens the volume anew, as its record is by now, once it was given back.
    fn begin_anew(&mut self, now: Instant) {
        let Reopening::Releasing(record, until) = &self.reopening else { return };
        if !self.released && now < *until {
            return;
        }
        self.options.record = VolumeRecord::clone(record);
        self.geometry = pool::volume::geometry(&self.options.record);
        self.reopening = Reopening::Opening;
        self.reopenings += 1;
        let told = open::hears(self.reopenings, &self.mailbox);
        self.plane = self.plane.sharing(told);
        self.reach.close(now);
        while self.reach.poll().is_some() {}
        let owner = match crate::pool::drawn() {
            Ok(owner) => owner,
            Err(error) => return self.unmounted(&error.to_string()),
        };
        self.reach.call(open::name(&self.options, owner));
        self.session = open::session(now, &self.options, owner);
        (self.released, self.opened) = (false, None);
        self.ends.clear();
        (self.weights, self.are_weights_new) = (UnitWeights::default(), false);
        self.scrubbing.begin_anew();
        if self.options.go_on {
            self.handle(now, Input::GoOn);
        }
        self.handle(now, Input::Deadline);
    }

    /// Has scrub begin or rest, once the volume is open.
    fn scrub(&mut self, now: Instant) {
        let Some(rounds) = self.session.scrub_rounds() else { return };
        if let Some(goes) = self.scrubbing.look(now, rounds) {
            self.handle(now, Input::Idle(goes));
        }
    }

    /// Scrub as somebody says: which round is begun by it, if one is.
    fn set_scrub(&mut self, now: Instant, when: When) -> Result<Option<u64>, &'static str> {
        let rounds = self.session.scrub_rounds();
        if when != When::Now {
            self.scrubbing.set(now, when, rounds.unwrap_or(0));
            return Ok(None);
        }
        let rounds = rounds.ok_or("the volume is not open yet: try again")?;
        if self.options.repairs.scrub_bytes_per_s == 0 {
            return Err("`client.scrub_rate` is 0, so no copies are read: give it another value");
        }
        self.scrubbing.set(now, when, rounds);
        self.handle(now, Input::Scrub);
        Ok(Some(rounds + 1))
    }

    fn reached(&mut self, now: Instant, reached: Reached) {
        match reached {
            Reached::Up(facts) => {
                tracing::info!(node = facts.node.0, "a node is reached");
                self.handle(now, Input::Up(facts));
            }
            Reached::Facts(facts) => self.handle(now, Input::Facts(facts)),
            Reached::Down(node, why) => {
                tracing::warn!(node = node.0, why, "the link to a node is gone");
                self.handle(now, Input::Down { node });
            }
            Reached::Answer { node, id, answer, signals } => {
                let answer = checked(answer);
                self.handle(now, Input::Answer { node, id, answer, signals });
            }
        }
    }

    fn told(&mut self, now: Instant, notice: Notice) {
        match notice {
            Notice::Dialed(dialed) => self.reach.dialed(now, dialed),
            Notice::Plane(_, WHOSE, answer) => self.told_whose(&answer),
            Notice::Plane(of, id, answer) if of == self.reopenings => {
                self.handle(now, Input::Plane { id, answer: &answer });
            }
            Notice::Plane(..) => {}
            Notice::Weights(weights) => {
                self.handle(now, Input::Plan(Plan::of(&weights, now)));
            }
            Notice::GoOn => self.handle(now, Input::GoOn),
            Notice::Scrub(when, answer) => answer(self.set_scrub(now, when)),
            Notice::Spread(share) => {
                self.reach.greet();
                self.handle(now, Input::Spread(share));
            }
            Notice::Status(answer) => answer(self.status(now)),
            Notice::Repair(answer) => answer(self.session.repair(now)),
        }
    }

    fn status(&self, now: Instant) -> VolumeStatus {
        let nodes = self.reach.nodes();
        VolumeStatus {
            generation: self.session.generation(),
            explains: self.session.explain(now),
            counters: self.session.client().map(|client| client.counters()),
            repair: self.session.repair(now),
            records: self.session.records().count(),
            scrub: self.scrubbing.when(),
            nodes: nodes.map(|(node, why)| (node, why.map(Into::into))).collect(),
        }
    }
}

impl Backend for VolumeBackend {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn health(&self) -> Health {
        pool::volume::fresh(&self.geometry)
    }

    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        views: &mut Views,
        _ring: &mut Ring,
    ) {
        self.scrubbing.busy(now);
        let input = match command {
            Command::Program { tag, slot, .. } => {
                let slots = data::slots(slots, views);
                Input::Program { tag, slot, slots }
            }
            other => Input::Command(other),
        };
        self.handle(now, input);
    }

    fn poll(
        &mut self,
        now: Instant,
        views: &mut Views,
        ring: &mut Ring,
        take: &mut dyn FnMut(Completion<'_>),
    ) -> bool {
        if self.ends.is_empty() || self.fenced.is_some() {
            self.run(now, ring);
        }
        if std::mem::take(&mut self.loss_due) {
            // The engine looks whether the volume is lost before it goes on.
            return true;
        }
        if self.fenced.is_some() {
            // What ends now ends as the volume is lost, which is told first.
            return false;
        }
        let Some(end) = self.ends.pop_front() else { return false };
        data::complete(end, views, take);
        true
    }

    fn io_done(&mut self, now: Instant, done: Done, ring: &mut Ring) {
        self.now = now;
        match done.owner {
            Owner::LinkReceive => self.reach.received(now, done.index, done.result),
            Owner::LinkSend => self.reach.sent(now, done.index, done.result, ring),
            _ if done.index == WAKE => {
                self.armed = false;
                let mailbox = Arc::clone(&self.mailbox);
                mailbox.drain(&mut self.inbox);
                while let Some(notice) = self.inbox.pop_front() {
                    self.told(now, notice);
                }
            }
            _ => unreachable!("nothing else was queued"),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let has_ends = !self.ends.is_empty() && self.fenced.is_none();
        if has_ends || self.loss_due || !self.armed {
            return Some(Instant(0));
        }
        let scrub = self.scrubbing.deadline().filter(|_| self.session.generation().is_some());
        let released = match &self.reopening {
            Reopening::Releasing(..) if self.released => Some(Instant(0)),
            Reopening::Releasing(_, until) => Some(*until),
            Reopening::Opening if self.opened.is_some() => Some(Instant(0)),
            _ => None,
        };
        let fenced = self.fenced.map(|(_, until)| until);
        let (session, reach) = (self.session.deadline(self.now), self.reach.deadline());
        let all = [session, reach, scrub, released, fenced, Some(self.greet_at)];
        all.into_iter().flatten().min()
    }

    fn lost(&self) -> Option<Lost> {
        self.lost
    }

    fn vouches(&self, now: Instant) -> bool {
        self.session.may_reply(now)
    }

    fn take_weights(&mut self) -> Option<UnitWeights> {
        std::mem::take(&mut self.are_weights_new).then(|| self.weights.clone())
    }

    fn take_refresh(&mut self) -> Option<BlockId> {
        self.refreshes.pop_front()
    }

    /// Another core is about to be made, which has to be told what the last one was.
    fn begin_mount(&mut self) {
        self.checkpoints = 0;
        self.refreshes.clear();
        self.are_weights_new = self.weights != UnitWeights::default();
    }

    fn is_outgrown(&self) -> bool {
        matches!(self.reopening, Reopening::Due(_))
    }

    fn reopen(&mut self, now: Instant) {
        let reopening = std::mem::replace(&mut self.reopening, Reopening::No);
        let Reopening::Due(record) = reopening else { unreachable!("it is asked before") };
        self.reopening = Reopening::Releasing(record, now + RELEASE_NS);
        self.handle(now, Input::Release);
    }

    fn reopened(&mut self) -> Option<CoreSettings> {
        if !matches!(self.reopening, Reopening::Opening) {
            return None;
        }
        let settings = match self.opened.take()? {
            Ok(_) => open::settings(&self.options),
            // It has grown once more meanwhile.
            Err(SessionError::Resized(record)) => {
                self.reopening = Reopening::Releasing(record, self.now);
                return None;
            }
            Err(error) => Err(error.to_string()),
        };
        settings.map_err(|reason| self.unmounted(&reason)).ok().inspect(|_| {
            self.reopening = Reopening::No;
        })
    }

    fn ends_failed(&mut self) -> bool {
        self.lost = self.lost.or(Some(Lost::Failed));
        true
    }

    fn unmounted(&mut self, reason: &str) {
        tracing::error!(reason, "the volume has grown and cannot be opened anew");
        self.lost = Some(Lost::Unopened);
        self.loss_due = true;
    }

    fn explain(&self) -> String {
        self.session.explain(self.now)
    }

    fn lost_slots(&self) -> bool {
        self.session.client().is_some_and(|client| client.counters().slots_lost > 0)
    }

    fn cut_off(&self) -> Option<String> {
        let away = |(node, why): (NodeId, Option<&str>)| match why? {
            "" => Some(format!("node {} is away", node.0)),
            why => Some(format!("node {}: {why}", node.0)),
        };
        let (nodes, away) = (self.reach.nodes().count(), self.reach.nodes().filter_map(away));
        let away: Vec<String> = away.collect();
        let lacks_nodes = || self.session.client().is_some_and(|client| client.lacks_nodes());
        let what = match away.len() {
            of if of == nodes => "none of its nodes can be reached",
            1.. if lacks_nodes() => "too few of its nodes can be reached to write to",
            _ => return None,
        };
        Some(format!("{what} ({})", away.join("; ")))
    }

    fn checkpoints(&mut self, now: Instant, count: u64) {
        if std::mem::replace(&mut self.checkpoints, count) != count {
            self.handle(now, Input::Checkpoints(count));
        }
    }

    fn end(&mut self, now: &mut dyn FnMut() -> Instant, ring: &mut Ring) {
        let begun = now();
        self.handle(begun, Input::Release);
        let mut done = Vec::new();
        while !self.released && self.lost.is_none() && now() < begun + RELEASE_NS {
            self.run(now(), ring);
            if ring.enter(Some(SECOND / 20), &mut done).is_err() {
                break;
            }
            let of_ours = |done: &Done| {
                matches!(done.owner, Owner::LinkReceive | Owner::LinkSend | Owner::Medium)
            };
            done.drain(..).filter(of_ours).for_each(|done| self.io_done(now(), done, ring));
        }
        self.reach.hang_up();
        self.mailbox.wake();
    }
}

/// Leaves out the slots whose data are not what was written.
fn checked(answer: Answer<Block>) -> Answer<Block> {
    match answer {
        Answer::Slots(slots) => {
            Answer::Slots(slots.into_iter().map(|slot| slot.filter(is_of_its_sum)).collect())
        }
        other => other,
    }
}

fn log(note: &Note) {
    match note {
        Note::Damaged(name, node) => tracing::warn!(
            node = node.0,
            band = name.band,
            "a copy of a band is damaged: another one is made from those that are sound"
        ),
        Note::Unlike(name, nodes) => {
            let nodes: Vec<u32> = nodes.iter().map(|node| node.0).collect();
            tracing::error!(?nodes, band = name.band, "sound copies of a band are unlike");
        }
        Note::Clear(node) => {
            tracing::info!(node = node.0, "nothing on the node is needed by the volume any more");
        }
    }
}
