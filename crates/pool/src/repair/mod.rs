//! Repair of sealed bands: copies that are lacking are made anew from those that are there, node to node; nodes
//! are emptied and bands spread by the same path; and copies are read and compared in idle time.
//!
//! A sealed band never changes, so a copy needs no agreement: it is whole or it is none. All that is decided here
//! follows from the directory as it is *now* and from which nodes are there; nothing is remembered that a restart
//! would miss. There are two moves, and a third one where there is nowhere to go:
//! - *Copy*: a band that has too few copies that count, in different domains, gets one more. The fewest copies come
//!   first, then nodes that are drained, then nodes that have more than their share.
//! - *Drop*: a band that has more copies than replicas loses one. It may go only when the directory names, beside
//!   it, holders in as many domains as there are replicas, on nodes that stay and that can be reached now. So a copy
//!   is never dropped before another one is durable and in the directory, and never the last one. The directory
//!   is told first ([`RepairOutput::Left`]), then the node.
//! - *Place*: a copy that is damaged or none goes first, and the next one is made in its place, where no other node can
//!   take it. `place` tells what has to hold before.
//!
//! A band of which nobody has all, though all are here, is beyond these: whoever wrote it is told
//! ([`RepairOutput::NotWhole`]), writes elsewhere what of it can be read, and frees it.
//!
//! What a connection asked of a node must not be done there after the next one was listed: else a drop that was
//! believed lost would take a copy that has been counted anew since.
//!
//! A band has one job at a time. Copies are within a rate and a number; a node that fails or is full is left alone
//! for a while.

mod copies;
mod place;
mod plan;
mod progress;
mod scrub;

pub use plan::Apart;
pub use progress::Progress;
pub use scrub::Round;

use crate::control::mutant::Mutant;
use crate::control::values::NodeState;
use crate::message::{Answer, Ask, AskId, Refusal};
use crate::words::{BandName, BandShape, DomainId, Generation, Members, NodeId};
use flash::{BLOCK_BYTES, Instant, MILLISECOND, SECOND};
use place::Place;
use plan::{Limits, Need, Nodes, Urgency};
use scrub::Scrub;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A band that never changes any more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SealedBand {
    /// Its newest life.
    pub name: BandName,
    /// Its pages.
    pub pages: u32,
    /// Nodes that have all of it, sealed, whether they can be reached or not.
    pub holders: Vec<NodeId>,
}

/// What repair sees of the client's directory. What [`RepairOutput`] says of it is in it when repair looks next.
pub trait Directory {
    /// The first sealed band behind this number.
    fn next(&self, after: Option<u32>) -> Option<SealedBand>;
    /// The band of this number, if it is sealed.
    fn band(&self, band: u32) -> Option<SealedBand>;
    /// The first band behind this number that has pages, as if it were sealed: of one that is open those that all its
    /// members have now, which never change.
    fn next_written(&self, after: Option<u32>) -> Option<SealedBand>;
    /// Likewise the band of this number.
    fn written(&self, band: u32) -> Option<SealedBand>;
    /// Whether this life is over, for sure: the band is empty, or has a later one.
    fn is_over(&self, name: BandName) -> bool;
    /// Whether the control plane has kept how long this life is: whoever opens the volume next waits for somebody who has
    /// it.
    fn is_on_record(&self, name: BandName) -> bool;
    /// Whether a band is open on a node, or about to be, or may be there without being known.
    fn may_have_more(&self, node: NodeId) -> bool;
}

/// What repair knows of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView {
    /// Which.
    pub node: NodeId,
    /// What it fails together with.
    pub domain: DomainId,
    /// What is meant to become of it.
    pub state: NodeState,
    /// What it answers as done survives a power cut.
    pub durable: bool,
    /// Bands that it has room for.
    pub bands: u32,
    /// Bands that are taken.
    pub bands_used: u32,
    /// How much of its room it is to fill, relative to others: 1, or what the controller says.
    pub want: f64,
}

/// What repair is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepairConfig {
    /// Of the owner.
    pub generation: Generation,
    /// Copies of each band.
    pub replicas: u8,
    /// Of all bands.
    pub shape: BandShape,
    /// All copies together are no faster.
    pub bytes_per_s_max: u64,
    /// Copies at once.
    pub copies_max: u32,
    /// A node that is away so long is taken for lost.
    pub absence_ns: u64,
    /// Nodes may differ by so much of their room before bands move.
    pub spread_max: f64,
    /// Of scrub, over all nodes; 0 is never.
    pub scrub_bytes_per_s: u64,
}

impl RepairConfig {
    /// 100 MiB/s in 8 copies; a node may be away for 30 s, as long as a restart takes; 10 % of spread; scrub with
    /// 8 MiB/s.
    pub fn new(generation: Generation, replicas: u8, shape: BandShape) -> Self {
        Self {
            generation,
            replicas,
            shape,
            bytes_per_s_max: 100 << 20,
            copies_max: 8,
            absence_ns: 30 * SECOND,
            spread_max: 0.1,
            scrub_bytes_per_s: 8 << 20,
        }
    }
}

/// Repair of the bands of one volume, for payloads of kind `D`.
pub struct Repair<D> {
    config: RepairConfig,
    nodes: Nodes,
    /// What is to be copied, the most urgent first.
    queue: BTreeSet<(Urgency, u32)>,
    /// By band.
    jobs: BTreeMap<u32, Job>,
    /// Where a copy that is none is to make place for one; by band.
    places: BTreeMap<u32, Place>,
    in_flight: BTreeMap<AskId, Asked>,
    /// Copies to be freed by node: older lives, and copies that are none.
    garbage: BTreeSet<(NodeId, BandName)>,
    /// Copies that cannot be copied from, or are none: they go when there are enough others, and are here until they are
    /// gone.
    bad: BTreeSet<(NodeId, BandName)>,
    /// Bands of which scrub found a damaged copy, until they have enough of them again.
    damaged: BTreeSet<BandName>,
    /// Bands that cannot be helped now.
    rest: BTreeMap<u32, Instant>,
    /// Bands of which the directory does not know yet what was said in this turn: they are left alone until the
    /// next one.
    told: BTreeSet<u32>,
    scan: Scan,
    scrub: Scrub,
    copied: Copied,
    asks: u64,
    stopped: bool,
    outputs: VecDeque<RepairOutput<D>>,
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    urgency: Urgency,
    name: BandName,
    pages: u32,
    /// Whoever has some of it, in the order in which they are asked.
    from: Members,
    to: NodeId,
    /// Whose copy goes then, to spread bands.
    leaves: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    Copy {
        band: u32,
    },
    Flush {
        band: u32,
    },
    Free {
        node: NodeId,
        name: BandName,
    },
    /// After a free.
    FlushFree {
        node: NodeId,
        name: BandName,
    },
}

/// The walk over the directory.
#[derive(Clone, Debug, Default)]
struct Scan {
    after: Option<u32>,
    next_at: Instant,
    /// Something changed since it began: it begins anew when it ends.
    again: bool,
    /// Rounds of scrub that were whole when it began, and up to which one a walk found that all is repaired.
    rounds: u64,
    mended: u64,
    /// What it has counted so far, and what the last whole one had.
    now: Tally,
    last: Tally,
    /// There was a whole one.
    is_counted: bool,
    /// Nodes that go and of which no copy was met so far.
    leaving: BTreeSet<NodeId>,
    cleared: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lacking: u64,
    /// Bands that are lacking until a copy that is under way is there, or of which there is news that the walk did not
    /// look at.
    unsettled: u64,
    draining: u64,
    spreading: u64,
    stuck: u64,
    pages: u64,
}

impl Tally {
    fn of(&mut self, urgency: Urgency) -> &mut u64 {
        match urgency {
            Urgency::Lacking { .. } => &mut self.lacking,
            Urgency::Drain => &mut self.draining,
            Urgency::Spread => &mut self.spreading,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    /// Since when something is copied without a pause, and how much.
    since: Option<Instant>,
    bytes: u64,
    bands: u64,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum RepairInput<'a, D> {
    /// All nodes of the pool, as they are now. A new one counts as away until it is up.
    Nodes(Vec<NodeView>),
    /// A node can be reached, was fenced and listed, and the directory knows what it has.
    Up(NodeId),
    /// It cannot.
    Down(NodeId),
    /// A node answered.
    Node {
        /// Which.
        node: NodeId,
        /// What was asked.
        id: AskId,
        /// What came of it.
        answer: &'a Answer<D>,
    },
    /// A node has a life of a band that is older than the directory's, or of one that is empty.
    Garbage(NodeId, BandName),
    /// A node has a copy that is none: too short, or damaged. The directory does not name it.
    Bad(NodeId, BandName),
    /// This band changed: look at it soon.
    Look(u32),
    /// Whether the volume is idle enough for scrub.
    Idle(bool),
    /// A round of scrub begins now: what was compared before does not count for it.
    Scrub,
    /// Nodes may differ by this share of their room, above 0, before bands move: from now on.
    Spread(f64),
    /// Time has passed.
    Deadline,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum RepairOutput<D> {
    /// Ask a node.
    Node {
        /// Which.
        node: NodeId,
        /// Pairs the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// The node has all of the band, durably: the directory names it from now on.
    Joined(BandName, NodeId),
    /// The directory names the node no more; its copy goes.
    Left(BandName, NodeId),
    /// Nothing is left of the band on the node, durably.
    Freed(BandName, NodeId),
    /// The node's copy, which the directory does not name, is to go before there is another one: the control plane is to
    /// keep that the band lacks it. Said again until [`Directory::is_on_record`].
    Recall(BandName, NodeId),
    /// A copy is damaged. The directory names it no more, and the band takes no more pages; another one is made, then
    /// it goes.
    Damaged(BandName, NodeId),
    /// Copies that are sound but unlike: whoever reads must tell which is right.
    Unlike(BandName, Vec<NodeId>),
    /// All nodes are here, and no copy can be made of all of the band: what of it is sound is to be written anew elsewhere,
    /// and the band freed. Said again while it is so.
    NotWhole(BandName),
    /// A node that is out or drained has nothing any more that is needed.
    Clear(NodeId),
    /// Another one owns the volume: it is over.
    Stale(Generation),
}

impl<D> Repair<D> {
    /// Without nodes yet.
    pub fn new(config: RepairConfig) -> Self {
        assert!(config.copies_max > 0 && config.bytes_per_s_max > 0, "repair makes copies");
        Self {
            nodes: Nodes::default(),
            queue: BTreeSet::new(),
            jobs: BTreeMap::new(),
            places: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            garbage: BTreeSet::new(),
            bad: BTreeSet::new(),
            damaged: BTreeSet::new(),
            rest: BTreeMap::new(),
            told: BTreeSet::new(),
            scan: Scan::default(),
            scrub: Scrub::new(config.generation, config.shape, config.scrub_bytes_per_s),
            copied: Copied::default(),
            asks: 0,
            stopped: false,
            outputs: VecDeque::new(),
            mutant: None,
            config,
        }
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Something happened. All outputs of the last turn have been taken, and are in the directory.
    pub fn handle(&mut self, now: Instant, input: RepairInput<'_, D>, directory: &dyn Directory) {
        assert!(self.outputs.is_empty(), "the directory knows all that was said");
        self.told.clear();
        match input {
            RepairInput::Nodes(views) => {
                for view in views.iter().filter(|view| view.state == NodeState::In) {
                    self.scan.cleared.remove(&view.node);
                }
                self.nodes.set(now, views);
                self.scan_anew(now);
            }
            RepairInput::Up(node) => {
                self.nodes.up(node);
                // It may have what others lack, or take what found no place.
                self.rest.clear();
                self.scan_anew(now);
            }
            RepairInput::Down(node) => self.down(now, node, directory),
            RepairInput::Node { node, id, answer } => {
                self.answered(now, node, id, answer, directory)
            }
            RepairInput::Garbage(node, name) => {
                self.garbage.insert((node, name));
            }
            RepairInput::Bad(node, name) => {
                self.bad.insert((node, name));
                // It may have what the others lack.
                self.rest.remove(&name.band);
            }
            RepairInput::Look(band) => {
                if let Some(band) = directory.band(band) {
                    self.look(now, &band);
                }
            }
            RepairInput::Idle(idle) => self.scrub.idle = idle,
            RepairInput::Scrub => self.scrub.begin(),
            RepairInput::Spread(share) => {
                assert!(share > 0.0, "nodes are never filled alike to the band");
                self.config.spread_max = share;
                self.scan_anew(now);
            }
            RepairInput::Deadline => {}
        }
        if self.nodes.elapsed(now, self.config.absence_ns) {
            self.scan_anew(now);
        }
        if !self.stopped {
            self.scan(now, directory);
            self.make_places(now, directory);
            self.copy(now, directory);
            self.free(directory);
            self.compare(now, directory);
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<RepairOutput<D>> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let rest = self.rest.values().copied().filter(|at| *at > now).min();
        let absence = self.nodes.deadline(self.config.absence_ns);
        let places = self.places.values().filter_map(Place::deadline).min();
        let all = [Some(self.scan.next_at), self.scrub.deadline(), rest, absence, places];
        all.into_iter().flatten().min()
    }

    /// Whether a copy of this life is being made somewhere.
    pub fn is_copying(&self, name: BandName) -> bool {
        self.jobs.get(&name.band).is_some_and(|job| job.name == name)
    }

    fn page_bytes(&self) -> u64 {
        u64::from(self.config.shape.slots_per_page) * BLOCK_BYTES as u64
    }

    fn limits(&self) -> Limits {
        Limits { absence_ns: self.config.absence_ns, spread: self.config.spread_max }
    }

    fn replicas(&self) -> usize {
        usize::from(self.config.replicas)
    }

    fn ask(&mut self, node: NodeId, asked: Asked, ask: Ask<D>) {
        let id = self.next_id();
        if matches!(asked, Asked::Free { .. }) {
            self.nodes.freed(node);
        }
        self.in_flight.insert(id, asked);
        self.outputs.push_back(RepairOutput::Node { node, id, ask });
    }

    fn next_id(&mut self) -> AskId {
        self.asks += 1;
        AskId(self.asks)
    }

    fn scan_anew(&mut self, now: Instant) {
        self.scan.again = true;
        self.scan.next_at = self.scan.next_at.min(now);
    }

    /// Looks at some bands more. Many bands are walked over in many turns, so that a turn is short.
    fn scan(&mut self, now: Instant, directory: &dyn Directory) {
        if now < self.scan.next_at {
            return;
        }
        if self.scan.after.is_none() {
            let goes = |view: &&NodeView| view.state != NodeState::In;
            self.scan.leaving = self.nodes.all().filter(goes).map(|view| view.node).collect();
            self.scan.leaving.retain(|node| !directory.may_have_more(*node));
            self.scan.again = false;
            self.scan.rounds = self.scrub.rounds_done;
        }
        for _ in 0..SCAN_BANDS {
            let Some(band) = directory.next(self.scan.after) else {
                return self.scanned(now, directory);
            };
            self.scan.after = Some(band.name.band);
            self.scan.leaving.retain(|node| !band.holders.contains(node));
            self.look(now, &band);
        }
        self.scan.next_at = now + SCAN_PAUSE_NS;
    }

    fn scanned(&mut self, now: Instant, directory: &dyn Directory) {
        self.scan.last = std::mem::take(&mut self.scan.now);
        self.scan.is_counted = true;
        self.scan.after = None;
        self.damaged.retain(|name| !directory.is_over(*name));
        let lacking = self.scan.last.lacking + self.scan.last.unsettled > 0
            || self.jobs.values().any(|job| job.urgency.is_lacking());
        if !lacking && self.damaged.is_empty() {
            self.scan.mended = self.scan.rounds;
        }
        let pause = if self.scan.again { SCAN_PAUSE_NS } else { RESCAN_NS };
        let rested = self.rest.values().map(|&at| at - now).min().unwrap_or(pause);
        self.scan.next_at = now + pause.min(rested.max(SCAN_PAUSE_NS));
        if lacking {
            // The copy that such a band lacks may be there, though nobody has listed it. And with a node that is clear
            // an opening waits for one domain less: it may do without the only one that has the band by now.
            self.scan.leaving.clear();
        }
        let states: BTreeMap<NodeId, NodeState> =
            self.nodes.all().map(|view| (view.node, view.state)).collect();
        for node in std::mem::take(&mut self.scan.leaving) {
            let goes = states.get(&node).is_some_and(|of| *of != NodeState::In);
            let comes = self.jobs.values().any(|job| job.to == node);
            if goes && !comes && !directory.may_have_more(node) && self.scan.cleared.insert(node) {
                self.outputs.push_back(RepairOutput::Clear(node));
            }
        }
    }

    /// Sees to one band.
    fn look(&mut self, now: Instant, band: &SealedBand) {
        let number = band.name.band;
        let under_way = self.jobs.get(&number);
        if under_way.is_some() || self.told.contains(&number) {
            self.scan.now.unsettled +=
                u64::from(under_way.is_none_or(|job| job.urgency.is_lacking()));
            return;
        }
        let need = self.nodes.need(now, band, self.replicas(), self.limits());
        if !matches!(need, Need::Copy(Urgency::Lacking { .. })) {
            self.damaged.remove(&band.name);
        }
        let urgency = match need {
            Need::Nothing => return,
            Need::Drop(node) => return self.leave(band, node),
            Need::Copy(urgency) => urgency,
        };
        let tally = &mut self.scan.now;
        tally.pages += u64::from(band.pages);
        *tally.of(urgency) += 1;
        if self.rest.get(&number).is_some_and(|until| now < *until) {
            return tally.stuck += 1;
        }
        self.rest.remove(&number);
        if self.places.contains_key(&number) {
            return;
        }
        self.queue.insert((urgency, number));
        if self.queue.len() > QUEUE_MAX {
            // The least urgent is met again by the next walk.
            self.queue.pop_last();
        }
    }

    fn leave(&mut self, band: &SealedBand, node: NodeId) {
        self.told.insert(band.name.band);
        self.outputs.push_back(RepairOutput::Left(band.name, node));
        if self.nodes.is_up(node) {
            let (generation, name) = (self.config.generation, band.name);
            let free = Ask::Free { band: name, generation };
            self.ask(node, Asked::Free { node, name }, free);
        } else {
            // It is told when it is back, if it is not named again by then.
            self.garbage.insert((node, band.name));
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        node: NodeId,
        id: AskId,
        answer: &Answer<D>,
        directory: &dyn Directory,
    ) {
        if let Answer::Refused(Refusal::Stale { highest }) = answer {
            if !std::mem::replace(&mut self.stopped, true) {
                self.outputs.push_back(RepairOutput::Stale(*highest));
            }
            return;
        }
        if let Some(found) = self.scrub.answered(now, id, answer) {
            return self.found(now, found, directory);
        }
        if self.place_answered(now, id, answer) {
            return;
        }
        let Some(asked) = self.in_flight.remove(&id) else { return };
        match (asked, answer) {
            (Asked::Copy { band }, Answer::Done) if !self.nodes.is_durable(node) => {
                let Some(job) = self.jobs.get(&band) else { return };
                let (volume, generation) = (job.name.volume, self.config.generation);
                self.ask(node, Asked::Flush { band }, Ask::Flush { volume, generation });
            }
            (Asked::Copy { band } | Asked::Flush { band }, Answer::Done) => {
                self.copied(band, directory)
            }
            (Asked::Copy { band } | Asked::Flush { band }, Answer::Refused(refusal)) => {
                self.not_copied(now, band, *refusal, directory);
            }
            (Asked::Free { node, name }, Answer::Done | Answer::Refused(Refusal::NoBand))
                if !self.nodes.is_durable(node) =>
            {
                let (volume, generation) = (name.volume, self.config.generation);
                let flush = Ask::Flush { volume, generation };
                self.ask(node, Asked::FlushFree { node, name }, flush);
            }
            (Asked::Free { node, name }, Answer::Done | Answer::Refused(Refusal::NoBand))
            | (Asked::FlushFree { node, name }, Answer::Done) => {
                self.outputs.push_back(RepairOutput::Freed(name, node));
                self.has_place(now, node, name, directory);
            }
            // Later, and not at once.
            (Asked::Free { node, name } | Asked::FlushFree { node, name }, _) => {
                self.garbage.insert((node, name));
                if self.bad.contains(&(node, name)) {
                    self.rest.insert(name.band, now + REST_NS);
                }
            }
            _ => {}
        }
    }

    fn down(&mut self, now: Instant, node: NodeId, directory: &dyn Directory) {
        self.nodes.down(now, node);
        self.places.retain(|_, place| !place.is_on(node));
        let found = self.scrub.down(now, node);
        self.found(now, found, directory);
        // Where only the source is gone from here the target may reach it all the same, and says what came of it: one
        // that is not heard out would have a copy that nobody knows of.
        let lost: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| job.to == node).map(|(band, _)| *band).collect();
        for band in lost {
            let job = self.jobs.remove(&band).expect("it was found there");
            self.nodes.coming(node, false, false);
            self.nodes.going(job.leaves, false);
            // It may be done all the same: what it is is found when the node is back and listed.
            let of_band = |asked: &Asked| matches!(asked, Asked::Copy { band: of } | Asked::Flush { band: of } if *of == band);
            self.in_flight.retain(|_, asked| !of_band(asked));
        }
        let is_free = |asked: &Asked| matches!(asked, Asked::Free { node: of, .. } | Asked::FlushFree { node: of, .. } if *of == node);
        for (_, asked) in self.in_flight.extract_if(.., |_, asked| is_free(asked)) {
            if let Asked::Free { node, name } | Asked::FlushFree { node, name } = asked {
                self.garbage.insert((node, name));
            }
        }
        self.scan_anew(now);
    }

    /// Frees what is garbage, and copies that are none once there are enough others.
    fn free(&mut self, directory: &dyn Directory) {
        let under_way =
            |asked: &&Asked| matches!(asked, Asked::Free { .. } | Asked::FlushFree { .. });
        let mut room = FREES_MAX.saturating_sub(self.in_flight.values().filter(under_way).count());
        let garbage: Vec<_> = self
            .garbage
            .iter()
            .filter(|(node, _)| self.nodes.is_up(*node))
            .take(room)
            .copied()
            .collect();
        for (node, name) in garbage {
            self.garbage.remove(&(node, name));
            if directory.is_over(name) {
                room = room.saturating_sub(1);
                self.free_one(node, name);
            } else if !Self::names(directory, node, name) {
                self.bad.insert((node, name));
            }
        }
        if self.bad.is_empty() {
            return;
        }
        let freeing = self.freeing();
        let may = |bad: &&(NodeId, BandName)| {
            let (node, name) = **bad;
            !freeing.contains(*bad) && self.nodes.is_up(node) && self.may_go(node, name, directory)
        };
        let bad: Vec<_> = self.bad.iter().filter(may).take(room).copied().collect();
        for (node, name) in bad {
            self.free_one(node, name);
        }
    }

    fn may_go(&self, node: NodeId, name: BandName, directory: &dyn Directory) -> bool {
        if self.told.contains(&name.band) {
            return false;
        }
        if Mutant::LastCopyDropped.is(self.mutant) {
            return true;
        }
        match directory.band(name.band).filter(|band| band.name == name) {
            Some(band) => {
                !band.holders.contains(&node) && self.nodes.enough(&band.holders, self.replicas())
            }
            None => directory.is_over(name),
        }
    }

    fn names(directory: &dyn Directory, node: NodeId, name: BandName) -> bool {
        let band = directory.band(name.band).filter(|band| band.name == name);
        band.is_some_and(|band| band.holders.contains(&node))
    }

    fn free_one(&mut self, node: NodeId, name: BandName) {
        let generation = self.config.generation;
        self.ask(node, Asked::Free { node, name }, Ask::Free { band: name, generation });
    }
}

/// Bands that a turn looks at, and how long it waits for the next: a million in a second.
const SCAN_BANDS: u32 = 1024;
const SCAN_PAUSE_NS: u64 = MILLISECOND;
/// After a walk that changed nothing.
const RESCAN_NS: u64 = 5 * SECOND;
/// Bands that wait to be copied, and that rest.
const QUEUE_MAX: usize = 4096;
/// What came to nothing is tried again after this.
const REST_NS: u64 = 5 * SECOND;
/// Frees under way.
const FREES_MAX: usize = 64;
