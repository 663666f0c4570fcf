//! Taking a volume over: from whoever owned it, whatever state that one left it in, and while it may still be
//! running and think that it owns the volume.
//!
//! # What is promised
//!
//! 1. *Nothing acknowledged is lost.* Each page whose append was ever acknowledged, and whose band was not freed
//!    since, is in the directory, on every holder that it names.
//! 2. *The old owner is over.* From when the opening is complete nothing that it asks of a node can be acknowledged
//!    to its host, and it shows its host nothing any more.
//! 3. *What was shown stays, what was dropped stays gone.* All openings agree on the pages of a life of a band.
//! 4. It may end anywhere and be begun anew, by anybody, as often as one likes.
//!
//! # Why it is so
//!
//! *The plane.* Generation `g` is ours once the owner's record is. Every commit of an older owner names the
//! revision of its own record, so from then on it cannot register a band, nor declare that a member is lacking:
//! the records that we read afterwards are all that there will ever be of older generations, and each band that
//! an older owner can append to has one, with its write set `W` and the members `L` that are lacking.
//!
//! *Fencing.* An append is acknowledged when all of `S = W \ L` have it. A node that was fenced takes none of an
//! older generation, for ever. So once *one* member of `S` is fenced, no append to this band is acknowledged any
//! more; we wait until that is so of every band on record. Other nodes may be away, and may still take appends of
//! the old owner: they are never acknowledged, and such a node is fenced and listed before it is used.
//!
//! *The prefix.* Each page that was ever acknowledged is on every member of `S`, hence on each one that was
//! fenced, and each copy is told as far as anything of it is there. So the number of acknowledged pages is at most the
//! least count of any fenced member of `S`, and cutting the band there loses none of them; all fenced members of `S` have
//! that prefix, byte for byte, as a page of a life is written with one content only. (A copy behind which something lies
//! that is not sound, or that is not there at all, may be one that lost acknowledged pages: it has no say where another
//! one says more and has all of that sound. Where nobody says it, what any of them has stays, also where nobody has all of it:
//! see [`decide::pages`]. Where a drive is damaged, or the power was cut before a flush, pages in it may be missing: the node
//! says from where on, and such a copy is none, but it is read for what others lack. Where there are only such copies the
//! opening waits for whoever may have a better one.) Pages beyond may be dropped: that member is known not to have them. Nor
//! was such a page ever shown: the FTL shows what was acknowledged. Where the last owner sealed a copy itself it had ended
//! the band there, beyond all acknowledged pages, so that is where
//! the band ends.
//!
//! *Agreement.* What counts was flushed before: nodes that lose it would leave a count that nobody has. Another
//! opening may see other members, and would find another count. So the count is put on record before anything rests
//! on it, by a commit that is void if we are not the owner any more; whoever opens next finds it decided. (It need
//! not be where all of `W` are sealed alike: whoever is asked says the same.) Only then are copies sealed there. A
//! copy that is sealed elsewhere, or too short, is none; a copy that comes back later is held against the record,
//! which stays until every member of `W` was dealt with ([`crate::control::registry`]). A copy that is not sealed
//! and of which nothing is on record is never shown; its band is empty if the directory is complete, and else
//! refused.
//!
//! *Completeness.* A band without a record lies, sealed, on `R` nodes of different domains: the registry sees
//! to it. Copies made by repair come before old ones go, or the band is on record again before one does, and a node
//! is taken for clear of a volume only when it was found to hold nothing that is needed. So if the nodes that we have not listed are in fewer than `R`
//! domains, each such band was listed. Else bands may be missing, of which nobody who answers knows: we wait, or,
//! if the owner says so, open with `complete` false, and then what is not there is *unknown*, not empty.
//!
//! *Lives.* No life is used twice and later openings have later ones, so of the lives of a band the newest counts:
//! it was registered, and so begun, after the older ones had been freed by their owner. A life that was dropped, or
//! that was freed while a node was away, stays on record, as one of no pages, until every node was listed and
//! nothing is left of it, nor of older ones, which such a node may have, too. Only the last life of a band, whose
//! free was cut off with its owner, may be shown again, while the band is empty: the FTL knows erases that were cut
//! off.
//!
//! *Reading.* The old owner shows nothing after its lease, which we wait out ([`crate::control::ownership`]).
//!
//! *Interruption.* All that changes before the opening is complete is what any opening would do: a fence, a count
//! on record that any later one adopts, seals there, copies of what is sealed. None of it is undone or done
//! differently by whoever begins anew, and no host was shown anything.
//!
//! What is asked of others: a node keeps what it said was durable (one that lost its drive is another node, with
//! another name); the driver says that a node is down when an answer is too late. The owner of the volume may say
//! that bands are not to be waited for none of whose members can be reached: reads of them are refused, and what an
//! older owner still acknowledges there will be lost. Only who knows that those nodes are gone may say so.

mod blocked;
pub mod decide;
mod directory;
mod error;
mod peers;
mod reading;
mod rejoin;

pub use directory::{Opened, OpenedBand};
pub use error::OpeningError;
pub use rejoin::{KnownBand, Rejoin, RejoinOutput};

use crate::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use crate::control::mutant::Mutant;
use crate::control::ownership::{Ownership, OwnershipConfig, OwnershipInput, OwnershipOutput};
use crate::control::registry::{Owned, Registry, RegistryOutput};
use crate::control::values::{BandRecord, NodeRecord, VolumeRecord};
use crate::message::{Answer, Ask, AskId, BandHeader};
use crate::words::{BandName, DomainId, Fenced, Generation, MEMBERS_MAX, Members, NodeId, PoolId};
use blocked::Blocked;
use decide::{Seen, Worth};
use flash::{Instant, SECOND};
use peers::{Came, Peers, Task};
use reading::{Read, Reading};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an opening is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OpeningConfig {
    /// Of this pool.
    pub pool: PoolId,
    /// Which volume, and how it is owned.
    pub ownership: OwnershipConfig,
    /// So long nodes are waited for that are away and need not be there.
    pub patience_ns: u64,
    /// Of a copy that completes a band.
    pub copy_bytes_per_s_max: u64,
}

impl OpeningConfig {
    /// Nodes have 2 s, which is less than a lease that must be waited out anyway; copies are not slowed down, as
    /// nothing else goes on.
    pub fn new(pool: PoolId, ownership: OwnershipConfig) -> Self {
        Self { pool, ownership, patience_ns: 2 * SECOND, copy_bytes_per_s_max: u64::MAX }
    }
}

/// The opening of a volume by one client, for payloads of kind `D`.
pub struct Opening<D> {
    config: OpeningConfig,
    phase: Phase,
    ownership: Ownership,
    /// From raising on.
    reading: Option<Reading>,
    /// From reading on.
    read: Option<Open>,
    /// Nodes that can be reached, and whether they are durable at completion.
    up: BTreeMap<NodeId, bool>,
    patient_until: Instant,
    /// The owner of the volume says not to wait for what nobody can tell.
    go_on: bool,
    outputs: VecDeque<OpeningOutput<D>>,
    mutant: Option<Mutant>,
}

/// What is there once the plane was read.
struct Open {
    volume: VolumeRecord,
    registry: Registry,
    peers: Peers,
    /// Counts that are not on record yet.
    undecided: VecDeque<(BandName, u32)>,
    /// Bands that this opening sealed: those that were open.
    tail: BTreeSet<BandName>,
    /// Copies that a node would not make whole.
    bad: BTreeSet<(NodeId, BandName)>,
    /// Bands that are completed where they can be, and where it was tried.
    tried: BTreeSet<(NodeId, BandName)>,
}

/// How far it has come. Whenever a node goes, it goes back to `Gather`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// The volume becomes ours, and the plane is read.
    Raise,
    /// Nodes are fenced and listed.
    Gather,
    /// What they have is made durable: a count on record that rests on what a power cut takes would be waited for for ever.
    Harden,
    /// Counts are put on record.
    Decide,
    /// Copies are sealed there.
    Seal,
    /// Bands that were open get the copies that they should have.
    Complete,
    /// All of it is made durable.
    Flush,
    /// The last owner's lease is waited out.
    Wait,
    /// It is over, well or not.
    Over,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum OpeningInput<'a, D> {
    /// The plane answered.
    Plane {
        /// What was asked.
        id: PlaneAskId,
        /// What came of it.
        answer: &'a PlaneAnswer,
    },
    /// A node of the pool can be reached, on a new connection.
    Up {
        /// Which.
        node: NodeId,
        /// Of its facts: what it answers as done survives a power cut.
        durable: bool,
    },
    /// A node cannot be reached any more; nothing that it was asked is answered.
    Down {
        /// Which.
        node: NodeId,
    },
    /// A node answered.
    Node {
        /// Which.
        node: NodeId,
        /// What was asked.
        id: AskId,
        /// What came of it.
        answer: &'a Answer<D>,
    },
    /// The nodes of the pool as they are on record by now: where they are, and which are given up. One that is new has
    /// nothing of the volume.
    Nodes(&'a [NodeRecord]),
    /// The owner of the volume says not to wait for nodes that are away: see the end of the module's text.
    GoOn,
    /// Time has passed.
    Deadline,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum OpeningOutput<D> {
    /// Ask the plane.
    Plane {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// Connect to all of these, and say which can be reached.
    Connect(Vec<NodeRecord>),
    /// Ask a node.
    Node {
        /// Which.
        node: NodeId,
        /// Pairs the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// The volume is ours and may be used: take ownership and registry by [`Opening::into_parts`].
    Opened(Box<Opened>),
    /// The volume was not opened.
    Failed(OpeningError),
}

impl<D> Opening<D> {
    /// Begins to take a volume over.
    pub fn new(now: Instant, config: OpeningConfig) -> Self {
        let mut opening = Self {
            config,
            phase: Phase::Raise,
            ownership: Ownership::new(now, config.ownership),
            reading: None,
            read: None,
            up: BTreeMap::new(),
            patient_until: now,
            go_on: false,
            outputs: VecDeque::new(),
            mutant: None,
        };
        opening.step(now);
        opening
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        self.ownership.plant(mutant);
    }

    /// Something happened.
    pub fn handle(&mut self, now: Instant, input: OpeningInput<'_, D>) {
        match input {
            OpeningInput::Plane { id, answer } => self.plane(now, id, answer),
            OpeningInput::Up { node, durable } => {
                self.up.insert(node, durable);
                let lost = self.read.as_mut().is_some_and(|open| open.up(node, durable));
                self.gather_anew(lost);
            }
            OpeningInput::Down { node } => {
                self.up.remove(&node);
                let lost = self.read.as_mut().is_some_and(|open| open.peers.down(node));
                self.gather_anew(lost);
            }
            OpeningInput::Node { node, id, answer } => self.node(now, node, id, answer),
            OpeningInput::Nodes(nodes) => self.renew(nodes),
            OpeningInput::GoOn => self.go_on = true,
            OpeningInput::Deadline => {
                self.ownership.handle(now, OwnershipInput::Deadline);
                if let Some(open) = &mut self.read {
                    open.registry.elapsed(now);
                }
            }
        }
        self.step(now);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<OpeningOutput<D>> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.phase == Phase::Over {
            return None;
        }
        let open = self.read.as_ref();
        let patience =
            (self.phase == Phase::Gather && now < self.patient_until).then_some(self.patient_until);
        [
            self.ownership.deadline(),
            self.reading.as_ref().and_then(Reading::deadline),
            open.and_then(|open| open.registry.deadline()),
            open.and_then(|open| open.peers.deadline(now)),
            patience,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Who owns the volume from now on, and what it has on record; after `Opened`.
    pub fn into_parts(self) -> Option<(Ownership, Registry)> {
        self.read.map(|open| (self.ownership, open.registry))
    }

    /// What it waits for, and for whom, in words.
    pub fn explain(&self, now: Instant) -> String {
        let Some(open) = &self.read else { return self.ownership.explain(now) };
        match self.phase {
            Phase::Raise => "reading the control plane".to_owned(),
            Phase::Gather => open.blocked().explain(),
            Phase::Decide => "writing down where bands end that were open".to_owned(),
            Phase::Seal => "sealing the bands that were open".to_owned(),
            Phase::Complete => "copying bands that were open and lack a member".to_owned(),
            Phase::Harden | Phase::Flush => "flushing the nodes".to_owned(),
            Phase::Wait => self.ownership.explain(now),
            Phase::Over => "nothing".to_owned(),
        }
    }

    fn plane(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        self.ownership.handle(now, OwnershipInput::Plane { id, answer });
        if let Some(open) = &mut self.read {
            open.registry.answered(now, id, answer);
        }
        let Some(reading) = &mut self.reading else { return };
        match reading.answered(now, id, answer) {
            Ok(Some(read)) => self.begin(now, *read),
            Ok(None) => {}
            Err(error) => self.fail(error),
        }
    }

    /// The plane was read: the nodes can be fenced.
    fn begin(&mut self, now: Instant, read: Read) {
        self.reading = None;
        let owned = read.owned;
        let by = Fenced { generation: owned.generation, owner: self.config.ownership.number() };
        let mut peers = Peers::new(owned.volume, by);
        let replicas = usize::from(read.volume.replicas);
        let mut registry = Registry::new(owned, replicas, read.tail, read.bands);
        if let Some(mutant) = self.mutant {
            registry.plant(mutant);
        }
        for record in &read.nodes {
            // One that is in again is emptied first, while the volume is served: what it has may be of lives that are
            // over, and nothing says so any more.
            peers.add(record.clone(), read.clear.contains(&record.node));
        }
        let mut open = Open {
            volume: read.volume,
            registry,
            peers,
            undecided: VecDeque::new(),
            tail: BTreeSet::new(),
            bad: BTreeSet::new(),
            tried: BTreeSet::new(),
        };
        for (&node, &durable) in &self.up {
            open.up(node, durable);
        }
        self.read = Some(open);
        self.patient_until = now + self.config.patience_ns;
        self.phase = Phase::Gather;
        self.outputs.push_back(OpeningOutput::Connect(read.nodes));
    }

    fn node(&mut self, now: Instant, node: NodeId, id: AskId, answer: &Answer<D>) {
        let Some(open) = &mut self.read else { return };
        match open.peers.answered(now, node, id, answer) {
            Came::Nothing => {}
            Came::Listed => {
                // Nothing was begun yet in this generation: somebody had it before, of whom the plane knows nothing.
                let generation = self.ownership.generation().unwrap_or_default();
                let newest = open.peers.newest(node);
                if let Some(band) = newest.filter(|band| band.life >> 32 >= generation.0) {
                    let highest = Generation(band.life >> 32);
                    return self.fail(OpeningError::PlaneOld { node, highest });
                }
                if let Some(band) = newest.filter(|band| open.registry.is_unheard(band.life)) {
                    return self.fail(OpeningError::PlaneBehind { node, band });
                }
                // Whoever comes while copies are sealed may have one, too.
                self.gather_anew(true);
            }
            Came::Refused(Task::Seal { name, .. }, _) => drop(open.bad.insert((node, name))),
            // Repair will try it again elsewhere, and what is not freed is garbage.
            Came::Refused(Task::Copy { .. } | Task::Free { .. }, _) => {}
            // It is of no use as it is; it may have been too full, or busy with what it begins with.
            Came::Refused(Task::Fence | Task::List { .. } | Task::Flush, _) => {
                let lost = open.peers.again(now, node);
                self.gather_anew(lost);
            }
            Came::Stale(highest) => {
                let generation = self.ownership.generation().unwrap_or_default();
                self.reading = Some(Reading::of_owner(
                    now,
                    generation,
                    (node, highest),
                    self.config.ownership,
                ));
            }
        }
    }

    /// Whether nodes are waited for: people may say meanwhile where they are now, or that they are gone.
    pub fn waits_for_nodes(&self) -> bool {
        self.phase == Phase::Gather
    }

    fn renew(&mut self, nodes: &[NodeRecord]) {
        let Some(open) = &mut self.read else { return };
        let news = nodes.iter().filter(|record| open.peers.renew(record)).count();
        if news > 0 {
            let records = open.peers.all().map(|(_, peer)| peer.record.clone()).collect();
            self.outputs.push_back(OpeningOutput::Connect(records));
        }
    }

    fn gather_anew(&mut self, lost: bool) {
        if lost && !matches!(self.phase, Phase::Raise | Phase::Over) {
            self.phase = Phase::Gather;
        }
    }

    /// Goes on as far as it can.
    fn step(&mut self, now: Instant) {
        self.own(now);
        if self.read.is_some() && self.reading.is_some() {
            // A node has heard of a higher generation. Whosoever that is: here it ends, and nothing is changed any
            // more.
            return;
        }
        loop {
            self.write_down(now);
            let before = self.phase;
            self.advance(now);
            if self.phase == before {
                break;
            }
        }
        if self.phase != Phase::Over {
            self.ask(now);
        }
    }

    fn own(&mut self, now: Instant) {
        while let Some(output) = self.ownership.poll() {
            match output {
                OwnershipOutput::Ask { id, ask } => {
                    self.outputs.push_back(OpeningOutput::Plane { id, ask });
                }
                OwnershipOutput::Raised { generation, revision } => {
                    let volume = self.config.ownership.volume;
                    let owned = Owned { volume, generation, revision };
                    self.reading = Some(Reading::new(now, owned, self.config));
                }
                OwnershipOutput::Held { .. } | OwnershipOutput::LeaseEnded => {}
                OwnershipOutput::Lost { by } => self.fail(OpeningError::Overtaken { by }),
                OwnershipOutput::Released => self.phase = Phase::Over,
                OwnershipOutput::Failed(error) => self.fail(OpeningError::Ownership(error)),
            }
        }
        if let Some(reading) = &mut self.reading {
            reading.elapsed(now);
            while let Some((id, ask)) = reading.poll() {
                self.outputs.push_back(OpeningOutput::Plane { id, ask });
            }
        }
    }

    /// Takes what the registry has to say, and gives it what is undecided.
    fn write_down(&mut self, now: Instant) {
        let Some(open) = &mut self.read else { return };
        while let Some(&(name, pages)) = open.undecided.front() {
            if open.registry.decide(now, name, pages).is_err() {
                break;
            }
            open.undecided.pop_front();
        }
        while let Some(output) = open.registry.poll() {
            match output {
                RegistryOutput::Ask { id, ask } => {
                    self.outputs.push_back(OpeningOutput::Plane { id, ask });
                }
                // The next renewal tells whose the volume is.
                RegistryOutput::Lost => self.ownership.look(now),
                _ => {}
            }
        }
    }

    fn advance(&mut self, now: Instant) {
        let Some(open) = &mut self.read else { return };
        self.phase = match self.phase {
            Phase::Gather
                if !open.may_decide(now >= self.patient_until, self.go_on, self.mutant) =>
            {
                Phase::Gather
            }
            Phase::Gather => {
                open.flush();
                Phase::Harden
            }
            Phase::Harden if open.peers.are_idle() => {
                open.decide(self.mutant);
                Phase::Decide
            }
            Phase::Decide if open.undecided.is_empty() && open.registry.is_idle() => {
                open.seal(self.mutant);
                Phase::Seal
            }
            Phase::Seal if open.peers.are_idle() => {
                open.complete(self.config.copy_bytes_per_s_max);
                Phase::Complete
            }
            Phase::Complete if open.peers.are_idle() => {
                open.flush();
                Phase::Flush
            }
            Phase::Flush if open.peers.are_idle() => Phase::Wait,
            Phase::Wait => match self.ownership.readable_until().filter(|until| now < *until) {
                // Copies that a node would not seal may have been the last ones of a band.
                Some(_) if !open.may_decide(true, self.go_on, self.mutant) => Phase::Gather,
                Some(until) => {
                    let opened = open.opened(until, self.go_on, self.mutant);
                    open.tidy(now);
                    self.outputs.push_back(OpeningOutput::Opened(Box::new(opened)));
                    Phase::Over
                }
                None => Phase::Wait,
            },
            phase => phase,
        };
    }

    fn ask(&mut self, now: Instant) {
        let Some(open) = &mut self.read else { return };
        while let Some((node, id, ask)) = open.peers.poll(now) {
            self.outputs.push_back(OpeningOutput::Node { node, id, ask });
        }
    }

    fn fail(&mut self, error: OpeningError) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.outputs.push_back(OpeningOutput::Failed(error));
        }
    }
}

impl Open {
    fn up(&mut self, node: NodeId, durable: bool) -> bool {
        let lost = self.peers.down(node);
        self.bad.retain(|(of, _)| *of != node);
        self.peers.up(node, durable);
        lost
    }

    /// Nodes that are not durable at completion flush what they have.
    fn flush(&mut self) {
        for node in self.peers.unflushed() {
            self.peers.push(node, Task::Flush);
        }
    }

    /// What the fenced ones of its members have of a life on record.
    fn seen_by_members(&self, record: &BandRecord) -> Vec<Seen> {
        let members = record.members.nodes().iter();
        let listed = members.filter_map(|&node| Some((node, self.peers.peer(node)?)));
        let listed = listed.filter(|(_, peer)| peer.is_listed());
        listed.map(|(node, peer)| (node, peer.entry(record.name))).collect()
    }

    /// What all fenced nodes have of a band.
    fn seen(&self, name: BandName) -> Vec<Seen> {
        self.peers.listed().map(|(node, peer)| (node, peer.entry(name))).collect()
    }

    /// How many pages a life on record has that no later one follows, if that can be told.
    fn count(&self, record: &BandRecord, mutant: Option<Mutant>) -> Option<u32> {
        if record.sealed.is_some() {
            return record.sealed;
        }
        let seen = self.seen(record.name);
        // Told to the control plane just before its members were found clear, and never begun. Of one that was, repair has
        // made copies before they were: somebody has it.
        let is_clear = |node: NodeId| self.peers.peer(node).is_some_and(|peer| peer.clear);
        let is_nowhere = seen.iter().all(|(_, entry)| entry.is_none()) && self.missing().is_empty();
        if is_nowhere && record.sound().all(is_clear) {
            return Some(0);
        }
        let pages = decide::pages(record, &seen, self.all_have_come(), mutant)?;
        // One that has nothing may have been emptied by repair, when others had it whole. If all of these may be
        // away, it says nothing.
        let emptied = |(node, entry): &Seen| record.members.has(*node) && entry.is_none();
        let is_unsure = pages == 0 && !self.missing().is_empty() && seen.iter().any(emptied);
        (!is_unsure).then_some(pages)
    }

    /// Whether the length of a life on record can be told, and somebody has all of it.
    fn is_known(&self, record: &BandRecord) -> bool {
        let Some(pages) = self.count(record, None) else { return false };
        // Mostly a member has it, and not all other nodes need be looked at.
        pages == 0
            || !self.having(record.name, pages, self.seen_by_members(record)).is_empty()
            || !self.having(record.name, pages, self.seen(record.name)).is_empty()
            || self.all_have_come() && !self.parts(record.name, pages).is_empty()
    }

    /// Those that have all of a band, sealed or not.
    fn having(&self, name: BandName, pages: u32, seen: Vec<Seen>) -> Vec<NodeId> {
        let good = |node: NodeId, worth| {
            matches!(worth, Worth::Whole | Worth::Seal) && !self.bad.contains(&(node, name))
        };
        let seen = seen
            .into_iter()
            .filter_map(|(node, entry)| Some((node, decide::worth(pages, &entry?))));
        seen.filter(|(node, worth)| good(*node, *worth)).map(|(node, _)| node).collect()
    }

    fn blocked(&self) -> Blocked {
        let mut blocked = Blocked::default();
        for record in self.registry.records().filter(|record| self.is_newest(record)) {
            if !self.is_known(record) {
                blocked.bands.push(*record);
            }
        }
        blocked.nodes = self.missing();
        let given_up = self.peers.all().filter(|(_, peer)| !peer.record.state.counts());
        blocked.given_up = given_up.map(|(node, _)| node).collect();
        blocked.listed = self.peers.listed().map(|(node, _)| node).collect();
        blocked
    }

    /// Nodes that were not asked and that together may have all copies of a band.
    fn missing(&self) -> Vec<NodeId> {
        let away: Vec<NodeId> = self.away();
        let domains: BTreeSet<DomainId> =
            away.iter().filter_map(|&node| self.peers.domain(node)).collect();
        if domains.len() < usize::from(self.volume.replicas) { Vec::new() } else { away }
    }

    /// Nodes that may hold something, and were not asked.
    fn away(&self) -> Vec<NodeId> {
        let away = self.peers.all().filter(|(_, peer)| !peer.is_listed() && !peer.clear);
        away.map(|(node, _)| node).collect()
    }

    fn may_decide(&self, patience_over: bool, go_on: bool, mutant: Option<Mutant>) -> bool {
        if !self.away().is_empty() && !patience_over {
            return false;
        }
        let blocked = self.blocked();
        let bands = blocked.bands.is_empty() || Mutant::FenceNotCounted.is(mutant);
        go_on || (bands && blocked.nodes.is_empty())
    }

    /// Finds the counts that have to go on record.
    fn decide(&mut self, mutant: Option<Mutant>) {
        self.undecided.clear();
        let open = |record: &&BandRecord| record.sealed.is_none() && self.is_newest(record);
        let records: Vec<BandRecord> = self.registry.records().filter(open).copied().collect();
        for record in &records {
            let Some(pages) = self.count(record, mutant) else { continue };
            if decide::is_agreed(record, &self.seen_by_members(record)) {
                continue;
            }
            self.undecided.push_back((record.name, pages));
        }
        if Mutant::CutNotRecorded.is(mutant) {
            self.undecided.clear();
        }
    }

    /// Whether no later life of the band is on record, or sealed somewhere: then this one was freed before that
    /// was begun.
    fn is_newest(&self, record: &BandRecord) -> bool {
        let newest = self.registry.newest(record.name.band);
        let later = |peer: &peers::Peer| peer.has_later(record.name);
        newest.is_some_and(|newest| newest.name == record.name)
            && !self.peers.listed().any(|(_, peer)| later(peer))
    }

    /// How many pages a life on record has, if that can be told.
    fn pages(&self, record: &BandRecord, mutant: Option<Mutant>) -> Option<u32> {
        if !self.is_newest(record) {
            return Some(0);
        }
        self.count(record, mutant)
    }

    /// Has copies made whole.
    fn seal(&mut self, mutant: Option<Mutant>) {
        let records: Vec<BandRecord> = self.registry.records().copied().collect();
        for record in records {
            let Some(pages) = self.pages(&record, mutant) else { continue };
            let name = record.name;
            let seen = self.seen(name);
            let is_whole = !self.having(name, pages, seen.clone()).is_empty();
            for (node, entry) in seen {
                let Some(entry) = entry.filter(|_| !self.bad.contains(&(node, name))) else {
                    continue;
                };
                let task = match decide::worth(pages, &entry) {
                    Worth::Seal => Task::Seal { name, pages },
                    // There is nothing better.
                    Worth::Part if !is_whole && !entry.sealed => Task::Seal { name, pages },
                    Worth::Free => Task::Free { name },
                    Worth::Whole | Worth::Part | Worth::Bad => continue,
                };
                self.tail.insert(name);
                self.peers.push(node, task);
            }
        }
    }

    /// Has bands copied that were open and are on too few nodes.
    fn complete(&mut self, bytes_per_s_max: u64) {
        for name in self.tail.clone() {
            let Some(record) = self.registry.record(name) else { continue };
            let pages = self.pages(record, None).unwrap_or(0);
            let mut members = self.having(name, pages, self.seen(name));
            let parts = self.parts(name, pages);
            let sources: Vec<NodeId> = members.iter().chain(&parts).copied().collect();
            let from = Members::new(&sources[..sources.len().min(MEMBERS_MAX)]);
            let Some(from) = from.filter(|_| pages > 0) else { continue };
            while members.len() < usize::from(self.volume.replicas) {
                let Some(to) = self.target(name, &members) else { break };
                members.push(to);
                let of = Members::new(&members).expect("as many as replicas, all different");
                let header = BandHeader { members: of, shape: self.volume.shape };
                self.tried.insert((to, name));
                self.peers.push(to, Task::Copy { name, from, header, pages, bytes_per_s_max });
            }
        }
    }

    /// Takes lives off the record of which nothing is left anywhere, nor of older ones: these would come back.
    fn tidy(&mut self, now: Instant) {
        if !self.away().is_empty() {
            return;
        }
        let records: Vec<BandRecord> = self.registry.records().copied().collect();
        for record in records {
            let older = |peer: &peers::Peer| peer.has_older(record.name);
            if self.pages(&record, None) != Some(0) || self.peers.listed().any(|(_, of)| older(of))
            {
                continue;
            }
            let rid = |(_, peer): &(NodeId, &peers::Peer)| {
                peer.clear || (peer.is_listed() && peer.entry(record.name).is_none())
            };
            let rid: Vec<NodeId> = self.peers.all().filter(rid).map(|(node, _)| node).collect();
            // Where too much waits it is found again by the next opening.
            let _ = self.registry.freed(now, record.name, &rid);
        }
    }

    /// The emptiest node that may have a copy, too.
    fn target(&self, name: BandName, members: &[NodeId]) -> Option<NodeId> {
        let domains: Vec<_> = members.iter().filter_map(|&node| self.peers.domain(node)).collect();
        let fits = |node: NodeId, peer: &peers::Peer| {
            let fresh = peer.entry(name).is_none() && !self.tried.contains(&(node, name));
            peer.takes() && fresh && !domains.contains(&peer.record.domain)
        };
        let fitting = self.peers.all().filter(|(node, peer)| fits(*node, peer));
        fitting.min_by_key(|(node, peer)| (peer.load(), *node)).map(|(node, _)| node)
    }
}
