//! The client of a volume: what a driver puts where a medium would be. The FTL's commands go in, asks to
//! nodes come out; answers go in, ends of commands come out.
//!
//! A driver gives each command of the FTL as [`Input::Command`], or a program as [`Input::Program`] with its
//! slots in whatever the driver keeps data in (`D`, which is cloned for each member), and turns [`End`] into a
//! `flash::Completion`. It checks the checksum of data that arrives ([`Slot::crc`](crate::message::Slot)) and
//! leaves `None` where it does not fit. The [`Directory`] is what [`crate::opening`] found; [`crate::session`]
//! drives both.
//!
//! The parts: [`directory`] (what lies where), [`lanes`] (where it goes next), [`programs`], [`reads`]
//! ([`choice`], [`latency`]), [`shares`], [`congestion`], [`chores`] (seals and frees), [`flush`], [`nodes`]. Nodes taking
//! turns in GC is not among them: that wants the nodes' consent, and reads keep off a unit that stirs anyway.
//!
//! Invariants:
//! - every command ends, once; programs only wait while too few nodes take bands, reads only while nodes that
//!   may have the data are away or do not answer, or the read lease is not renewed; flushes for the control plane;
//! - nothing is acknowledged with fewer copies than the header of its band names, and that has fewer than the
//!   volume's replicas only after [`Input::Degraded`];
//! - one stale answer, or the loss of the lease, ends the client for good.

pub mod choice;
pub mod chores;
pub mod config;
pub mod congestion;
pub mod directory;
mod events;
mod explain;
pub mod flush;
pub mod lanes;
pub mod latency;
pub mod nodes;
mod parked;
pub mod programs;
pub mod reads;
pub mod shares;
mod timers;

pub use chores::Closed;
pub use config::Config;
pub use directory::Directory;
pub use explain::Counters;
pub use lanes::Opening;
pub use nodes::{Mode, Plan};

use crate::control::mutant::Mutant;
use crate::message::{Answer, Ask, AskId, NodeFacts, Signals, Slot};
use crate::words::{BandName, DomainId, Generation, NodeId};
use chores::{Chores, What};
use flash::{BlockId, Command, Instant, MediumError, Random, SlotId, SlotStatus, Tag};
use flush::Flushes;
use ftl::policy::UnitWeights;
use lanes::Lanes;
use nodes::Nodes;
use parked::Parked;
use programs::Programs;
use reads::Reads;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use timers::Timers;

/// What happens to the client.
#[derive(Clone, Debug)]
pub enum Input<D> {
    /// The FTL wants something of its medium; not a program.
    Command(Command),
    /// The FTL programs a page.
    Program {
        /// Of the command.
        tag: Tag,
        /// Of the command.
        slot: SlotId,
        /// All of the page, with the checksum of each, as the driver computes it.
        slots: Vec<Slot<D>>,
    },
    /// A node is part of the pool, in this domain.
    Joined {
        /// Which.
        node: NodeId,
        /// What it fails together with.
        domain: DomainId,
    },
    /// A node gets no new bands: it is drained, or to be replaced.
    Leaves {
        /// Which.
        node: NodeId,
    },
    /// A node is no part of the pool any more: nobody waits for what only it may have.
    Removed {
        /// Which.
        node: NodeId,
    },
    /// A connection was made.
    Up(NodeFacts),
    /// A connection is gone, and what was asked on it will not be answered.
    Down {
        /// To whom.
        node: NodeId,
    },
    /// A node answers.
    Answer {
        /// Which.
        node: NodeId,
        /// What was asked.
        id: AskId,
        /// The answer.
        answer: Answer<D>,
        /// How the node feels.
        signals: Signals,
    },
    /// The controller's weights and modes.
    Plan(Plan),
    /// The control plane has this opening, see [`Output::Register`].
    Registered(BandName),
    /// The control plane has recorded whether the volume goes on with fewer copies where it must.
    Degraded(bool),
    /// Reads may be given until then.
    Lease {
        /// Not from then on.
        until: Instant,
    },
    /// The lease is lost: somebody else may own the volume.
    LeaseLost,
    /// A sealed band was copied whole to one more node.
    Copied {
        /// Which life.
        band: BandName,
        /// Where to.
        node: NodeId,
    },
    /// A sealed band is not read at this node any more: repair frees its copy, or the copy is none. The last
    /// one is named on: it may be readable in part.
    Dropped {
        /// Which life.
        band: BandName,
        /// Where.
        node: NodeId,
    },
    /// A node's copy of this life is damaged: it is read there only where nobody else has it. An open band ends where it
    /// is, as when a member fails.
    Damaged {
        /// Which life.
        band: BandName,
        /// Where.
        node: NodeId,
    },
    /// The control plane has that this life ends where [`Output::Ends`] said, or it is over.
    EndKept(BandName),
    /// [`Remote::deadline`] has come.
    Deadline,
}

/// What the client wants done, in this order.
#[derive(Clone, Debug)]
pub enum Output<D> {
    /// Ask a node.
    Ask {
        /// Which.
        node: NodeId,
        /// Comes back with the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// A command of the FTL has ended.
    Ended(End<D>),
    /// The control plane is to keep that these bands may be open, each in the place of any older life of it;
    /// then [`Input::Registered`] for each.
    Register(Vec<Opening>),
    /// These were never used and never will be: nobody has anything of them.
    Unused(Vec<Opening>),
    /// A life is over: who has sealed it, who has nothing of it. Told again when another member has come to it.
    /// With 0 pages it is freed. Of a life that is on record the driver gives the erase only when the control plane
    /// has kept that it is over.
    Closed(Closed),
    /// A member of this life went before it had flushed, and may have lost pages that count. The control plane is
    /// to keep that the life has so many; then [`Input::EndKept`]. No flush ends well before: whoever opens the
    /// volume next may see that member alone, and would find that fewer pages count.
    Ends {
        /// Which. It takes no more pages.
        name: BandName,
        /// That count.
        pages: u32,
    },
    /// This node would not flush, or did not in time: nothing that it has not flushed counts, neither pages nor seals
    /// and frees. Where it had pages, [`Output::Ends`] has come before.
    Unflushed(NodeId),
    /// A node has flushed what it was asked to.
    Flushed(NodeId),
    /// For `ftl::Ftl::set_unit_weights`.
    Weights(UnitWeights),
    /// The client is over: what was not acknowledged may have been done or not. The FTL gets `Input::Fail`
    /// before the ends that follow.
    Fenced(Over),
}

/// Why a client is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Over {
    /// The volume has a newer owner.
    Stale {
        /// With this generation, or one above it.
        highest: Generation,
    },
    /// The lease was lost.
    LeaseLost,
}

/// How a command of the FTL ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End<D> {
    /// A read.
    Read {
        /// Of the command.
        tag: Tag,
        /// Where the data is to go, as the command said.
        into: Option<flash::Payload>,
        /// One entry a slot. `Err` only if the client is over.
        slots: Result<Vec<SlotEnd<D>>, MediumError>,
        /// See [`flash::SlotRead::durable`].
        durable: bool,
    },
    /// A program.
    Program {
        /// Of the command.
        tag: Tag,
        /// Done, or cut, or the client is over.
        result: Result<(), MediumError>,
    },
    /// An erase.
    Erase {
        /// Of the command.
        tag: Tag,
        /// Done, or the client is over.
        result: Result<(), MediumError>,
    },
    /// A block is finished.
    Finish {
        /// Of the command.
        tag: Tag,
    },
    /// A flush.
    Flush {
        /// Of the command.
        tag: Tag,
        /// Durable, or not.
        result: Result<(), MediumError>,
    },
}

/// One slot of a read.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotEnd<D> {
    /// How it came back.
    pub status: SlotStatus,
    /// What it holds, if `Ok`.
    pub slot: Option<Slot<D>>,
}

/// What an ask was for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Append { name: BandName, page: u32 },
    Read { id: u64, block: BlockId },
    Chore { name: BandName, what: What },
    Flush { number: u64 },
}

/// See the head of this file.
pub struct Remote<D> {
    config: Config,
    now: Instant,
    random: Random,
    nodes: Nodes<Purpose>,
    directory: Directory,
    lanes: Lanes,
    programs: Programs<D>,
    reads: Reads<D>,
    chores: Chores,
    flushes: Flushes,
    timers: Timers,
    /// The timer that is set for each open band.
    band_timers: BTreeMap<BlockId, Instant>,
    /// The timer that is set for nodes.
    nodes_timer: Option<Instant>,
    /// The timer that is set for the first flush.
    flush_timer: Option<Instant>,
    /// Open bands with a page that a member had no room for.
    stalled: BTreeSet<BlockId>,
    /// Reads that go on when a member can take one.
    parked: Parked,
    /// Where each read of the FTL wants its data.
    into: BTreeMap<u64, Option<flash::Payload>>,
    lease_until: Instant,
    /// Reads that have ended and wait for the lease.
    held: VecDeque<End<D>>,
    over: Option<Over>,
    weights: UnitWeights,
    weights_stale: bool,
    counters: Counters,
    outputs: VecDeque<Output<D>>,
}

impl<D: Clone> Remote<D> {
    /// A client of a volume that was opened: all that the directory names is sealed.
    ///
    /// # Errors
    /// What of the config is wrong, and what would be right.
    pub fn new(config: Config, directory: Directory) -> Result<Self, String> {
        let (choice, hedging) = config.check()?;
        let of = (config.volume, config.generation);
        let mut lanes = Lanes::new(of, config.geometry, config.replicas, config.openings_ahead);
        for block in (0..config.geometry.blocks()).map(BlockId) {
            // Of one that may lie where nobody could look no new life begins: it would outlive what is there.
            if matches!(directory.entry(block), directory::Entry::Unbound) {
                lanes.freed(block, false);
            }
        }
        Ok(Self {
            now: Instant(0),
            random: Random::new(config.seed),
            nodes: Nodes::new(config.asks_max, config.congestion),
            directory,
            lanes,
            programs: Programs::new(config.shape(), config.generation, config.program_limit_ns),
            reads: Reads::new(choice, hedging, (config.read_limit_ns, config.read_limit_ns_max)),
            chores: Chores::default(),
            flushes: Flushes::default(),
            timers: Timers::default(),
            band_timers: BTreeMap::new(),
            nodes_timer: None,
            flush_timer: None,
            stalled: BTreeSet::new(),
            parked: Parked::default(),
            into: BTreeMap::new(),
            lease_until: Instant(0),
            held: VecDeque::new(),
            over: None,
            weights: UnitWeights::default(),
            weights_stale: false,
            counters: Counters::default(),
            outputs: VecDeque::new(),
            config,
        })
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.programs.plant(mutant);
    }

    /// Something happened. Drain [`Remote::poll`] after it.
    pub fn handle(&mut self, now: Instant, input: Input<D>) {
        self.now = self.now.max(now);
        if self.over.is_some() {
            self.end_at_once(&input);
            return;
        }
        match input {
            Input::Command(command) => self.command(command),
            Input::Program { tag, slot, slots } => self.program(tag, slot, slots),
            Input::Joined { node, domain } => {
                self.nodes.join(node, domain);
                self.weights_stale = true;
            }
            Input::Leaves { node } => {
                self.nodes.leave(node);
                self.weights_stale = true;
            }
            Input::Removed { node } => self.removed(node),
            Input::Up(facts) => self.up(facts),
            Input::Down { node } => self.down(node),
            Input::Answer { node, id, answer, signals } => self.answer(node, id, answer, signals),
            Input::Plan(plan) => {
                self.nodes.plan(self.now, &plan);
                self.weights_stale = true;
            }
            Input::Registered(name) => {
                self.lanes.registered(name);
                self.weights_stale = true;
            }
            Input::Degraded(degraded) => self.lanes.set_degraded(degraded),
            Input::Lease { until } => self.renewed(until),
            Input::LeaseLost => self.end_all(Over::LeaseLost),
            Input::Copied { band, node } => self.copied(band, node),
            Input::Dropped { band, node } => {
                self.directory.remove(band, node);
            }
            Input::Damaged { band, node } => self.damaged(band, node),
            Input::EndKept(name) => self.flushes.kept(name),
            Input::Deadline => {}
        }
        self.fire();
        if self.over.is_none() {
            self.pump();
        }
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Output<D>> {
        self.outputs.pop_front()
    }

    /// When to give [`Input::Deadline`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let of_lease =
            (!self.held.is_empty()).then_some(self.lease_until).filter(|&at| at > self.now);
        self.timers.first().into_iter().chain(of_lease).min()
    }

    /// What lies where.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Read { tag, slot, count, into, urgent } => {
                self.read(tag, slot, count, into, urgent);
            }
            Command::Erase { tag, block } => self.erase(tag, block),
            // What is partly written takes no place of its own.
            Command::Finish { tag, .. } => self.ended(End::Finish { tag }),
            Command::Flush { tag } => {
                for node in self.flushes.begin(self.now, tag) {
                    self.timers.set(self.now, timers::Timer::Flush(node));
                }
            }
            Command::Program { .. } => panic!("a program comes with its slots: Input::Program"),
        }
    }

    fn program(&mut self, tag: Tag, slot: SlotId, slots: Vec<Slot<D>>) {
        let geometry = self.config.geometry;
        let (block, page) = (geometry.block_of(slot), geometry.page_in_block(slot));
        assert_eq!(slots.len() as u32, geometry.slots_per_page, "a whole page is programmed");
        let begins = page == 0 && !matches!(self.directory.entry(block), directory::Entry::Spent);
        let takes = self.programs.has(block) || begins && self.directory.held(block).is_none();
        if !takes {
            // It was cut while the FTL had nothing under way there.
            self.ended(End::Program { tag, result: Err(MediumError::Cut) });
            return;
        }
        self.programs.add(self.now, block, page, tag, slots);
        self.weights_stale |= page == 0;
        self.send_pages(block);
    }

    fn erase(&mut self, tag: Tag, block: BlockId) {
        assert!(!self.programs.is_busy(block), "a block is erased after its programs have ended");
        // One that was never filled: its members have nothing that counts any more.
        let open = self.programs.nodes(block);
        self.programs.abandon(block);
        self.lanes.unwanted(block);
        match self.directory.erase(block) {
            Some(held) => {
                let limit = self.now + self.config.erase_limit_ns;
                let mut nodes = held.nodes;
                nodes.extend(open);
                self.flushes.freed(held.name);
                self.chores.free(held.name, &nodes, Some((tag, limit)));
                self.timers.set(limit, timers::Timer::Chores);
                self.weights_stale = true;
            }
            None => self.erased(tag, block),
        }
    }

    fn erased(&mut self, tag: Tag, block: BlockId) {
        self.lanes.freed(block, true);
        self.ended(End::Erase { tag, result: Ok(()) });
    }

    fn ended(&mut self, end: End<D>) {
        self.outputs.push_back(Output::Ended(end));
    }
}

#[cfg(test)]
mod tests;
