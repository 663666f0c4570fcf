//! One client of one volume, from the moment it wants the volume until it gives it back: the opening, then
//! ownership, registry, client, repair and the rejoining of nodes, wired to each other. The server, the lab and
//! the tests drive this one machine.
//!
//! # How it is driven
//!
//! 1. [`Session::new`], then drain [`Session::poll`] after every [`Session::handle`]; give [`Input::Deadline`] at
//!    [`Session::deadline`]. Nothing else is needed for the opening: connect to all that [`Output::Connect`]
//!    names, say [`Input::Up`] with what the node tells of itself and [`Input::Down`] when a connection ends or an
//!    answer is too late, and carry asks and answers.
//! 2. At [`Output::Opened`] the FTL is mounted (or formatted: a volume without any band was never used) over
//!    the geometry of [`SessionConfig::client`], with a `flash::Health` that knows of nothing bad. Its commands are
//!    given as [`Input::Command`] or [`Input::Program`], and end as [`Output::Ended`]; a driver turns that into a
//!    `flash::Completion`. [`Output::Weights`] goes to `Ftl::set_unit_weights`, [`Output::Refresh`] to
//!    `Ftl::ask_refresh`.
//! 3. After each turn of the FTL the driver gives [`Input::Checkpoints`] if the FTL's counter `checkpoints` has
//!    changed: only what a checkpoint covers leaves the record.
//! 4. *Replies of the FTL to its host* go out only while [`Session::may_reply`]; else they wait for the next
//!    [`Output::Lease`]. Reads that the FTL answers of what it has in memory, and acknowledgements, would else come
//!    after another client has opened the volume.
//! 5. At [`Output::Fenced`] the FTL gets `ftl::Input::Fail` before anything else, replies that wait are dropped, and
//!    every connection of the host ends. Commands still end, each with an error.
//! 6. To stop, shut the FTL down, then [`Input::Release`]; [`Output::Released`] is the end.
//!
//! # What is asked of the driver
//!
//! - An answer is given only if the connection on which it was asked is still the newest one to that node.
//! - The node begins nothing of an older connection once it has listed anything on a newer one.
//! - After a pause (a stopped process, a migrated machine) the clock is read anew before anything is sent to a
//!   host: `now` is never older than the moment of deciding what to send.
//! - Data of a read is checked against [`Slot::crc`](crate::message::Slot), and `None` where it does not fit.
//!
//! # What it sees to
//!
//! - Bands are sealed, and on record, before they are served: [`crate::opening`].
//! - A band is registered before its first append, and an erase of one that is on record goes to the nodes when the
//!   control plane has kept that the life is over: else the next opening would take what an absent member still has
//!   for one that counts, or wait for a copy that nobody has any more.
//! - The record of a band goes when a checkpoint that began after its seal has ended, so covers it, and as many
//!   domains as replicas have it sealed ([`standing`]).
//! - Where a member of a band on record is away, leaves, or went before it had flushed, the end of the band goes on
//!   record, as soon as some node has all of it durably: whoever opens next need not find it out from the members that
//!   are left, and does not wait for what nobody has.
//! - A node that comes is fenced, listed and, if not durable at completion, flushed before anything there counts.
//! - A node that is in again after it had been clear is emptied first, as it may have lives that are over and of which
//!   nothing is on record any more; it is used only when the record of that is gone.

mod members;
mod serving;
mod standing;
mod view;

use crate::client::{self, Config, End, Over, Plan};
use crate::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use crate::control::mutant::Mutant;
use crate::control::values::{BandRecord, NodeRecord, VolumeRecord};
use crate::message::{Answer, Ask, AskId, NodeFacts, Signals, Slot};
use crate::opening::{Opened, Opening, OpeningConfig, OpeningError, OpeningInput, OpeningOutput};
use crate::repair::{Progress, RepairConfig};
use crate::words::{BandName, Generation, NodeId};
use flash::{BlockId, Command, Geometry, Instant, SECOND, SlotId, Tag};
use ftl::policy::UnitWeights;
use members::{Members, Read};
use serving::Serving;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// What a session is told.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfig {
    /// Which volume of which pool, and how it is taken over.
    pub opening: OpeningConfig,
    /// Volume, generation and replicas are set by what the opening finds.
    pub client: Config,
    /// Generation, replicas and shape likewise.
    pub repair: RepairConfig,
}

impl SessionConfig {
    /// With defaults for all but what must be known: `geometry` is what the FTL is told that the volume is, the
    /// same at each opening.
    pub fn new(opening: OpeningConfig, geometry: Geometry) -> Self {
        let client = Config::new(opening.ownership.volume, Generation(1), geometry, 2);
        let repair = RepairConfig::new(Generation(1), 2, client.shape());
        Self { opening, client, repair }
    }
}

/// See the head of this file. `D` is what the driver keeps data in.
pub struct Session<D> {
    config: SessionConfig,
    state: State<D>,
    /// Who can be reached, until the volume is opened.
    up: BTreeMap<NodeId, NodeFacts>,
    plan: Option<Plan>,
    outputs: VecDeque<Output<D>>,
    mutant: Option<Mutant>,
}

enum State<D> {
    /// And the nodes of the pool, while it waits for some.
    Opening(Box<Opening<D>>, Members),
    Serving(Box<Serving<D>>),
    Over,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Input<'a, D> {
    /// The plane answered.
    Plane {
        /// What was asked.
        id: PlaneAskId,
        /// What came of it.
        answer: &'a PlaneAnswer,
    },
    /// A connection to a node was made. It takes the place of an older one.
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
    /// The FTL has written so many whole checkpoints since it was made.
    Checkpoints(u64),
    /// The controller's weights and modes.
    Plan(Plan),
    /// What a node that is reached says of itself by now.
    Facts(NodeFacts),
    /// Whether the volume is idle enough for scrub.
    Idle(bool),
    /// A round of scrub begins now.
    Scrub,
    /// Nodes may differ by this share of their room, above 0, before bands move: from now on.
    Spread(f64),
    /// The owner of the volume says not to wait for nodes that are away: see [`crate::opening`].
    GoOn,
    /// The FTL has stopped, or there never was one: the volume is given back.
    Release,
    /// [`Session::deadline`] has come.
    Deadline,
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub enum Output<D> {
    /// Ask the plane.
    Plane {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// These are the nodes of the pool now: connect to them, and to no others.
    Connect(Vec<NodeRecord>),
    /// Ask a node.
    Ask {
        /// Which.
        node: NodeId,
        /// Pairs the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// The volume is ours: mount the FTL.
    Opened(Box<Opened>),
    /// A command of the FTL has ended.
    Ended(End<D>),
    /// For `ftl::Ftl::set_unit_weights`.
    Weights(UnitWeights),
    /// For `ftl::Ftl::ask_refresh`: no copy of what lies there is whole, and none can be made.
    Refresh(BlockId),
    /// Replies may go out until then; see [`Session::may_reply`].
    Lease {
        /// Not from then on.
        until: Instant,
    },
    /// The volume is another's. The FTL gets `ftl::Input::Fail` before the ends that follow.
    Fenced(Over),
    /// The volume was not opened. It is over.
    Failed(SessionError),
    /// Somebody should know.
    Noted(Note),
    /// The record of the volume tells of more bands than this session has: the next one has them. Told once.
    Grown(Box<VolumeRecord>),
    /// The volume was given back. It is over.
    Released,
}

/// What somebody should know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Note {
    /// A copy was found damaged; another one is made.
    Damaged(BandName, NodeId),
    /// Sound copies of a band are unlike: the checksums of the FTL tell which is right when it is read.
    Unlike(BandName, Vec<NodeId>),
    /// The volume needs nothing any more of a node that leaves.
    Clear(NodeId),
}

/// Why a volume was not opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SessionError {
    /// As the opening says.
    Opening(OpeningError),
    /// The config does not fit the volume: what, and what would.
    Config(String),
    /// The volume was resized while it was opened: it is to be opened anew as this record says.
    Resized(Box<VolumeRecord>),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening(error) => error.fmt(f),
            Self::Config(error) => f.write_str(error),
            Self::Resized(record) => {
                write!(
                    f,
                    "it was resized just now, to {} blocks of 4 KiB: open it again",
                    record.blocks
                )
            }
        }
    }
}

impl<D: Clone> Session<D> {
    /// Begins to take a volume over.
    pub fn new(now: Instant, config: SessionConfig) -> Self {
        let opening = Opening::new(now, config.opening);
        let members = Members::new(now + LONG_NS, config.opening.ownership.volume);
        let mut session = Self {
            config,
            state: State::Opening(Box::new(opening), members),
            up: BTreeMap::new(),
            plan: None,
            outputs: VecDeque::new(),
            mutant: None,
        };
        session.of_opening(now);
        session
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
        match &mut self.state {
            State::Opening(opening, _) => opening.plant(mutant),
            State::Serving(serving) => serving.plant(mutant),
            State::Over => {}
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Instant, input: Input<'_, D>) {
        match &mut self.state {
            State::Opening(..) => {
                self.open(now, input);
                self.of_opening(now);
            }
            State::Serving(serving) => {
                if serving.handle(now, input, &mut self.outputs) {
                    self.state = State::Over;
                }
            }
            State::Over => {}
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Output<D>> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::Opening(opening, members) => {
                let looks = opening.waits_for_nodes().then(|| members.deadline());
                opening.deadline(now).into_iter().chain(looks).min()
            }
            State::Serving(serving) => serving.deadline(now),
            State::Over => None,
        }
    }

    /// Whether a reply of the FTL may go out to its host.
    pub fn may_reply(&self, now: Instant) -> bool {
        match &self.state {
            State::Serving(serving) => {
                let keeps = !Mutant::LeaseNotKept.is(self.mutant);
                serving.readable_until().is_some_and(|until| !keeps || now < until)
            }
            _ => false,
        }
    }

    /// Of this opening, once the volume is open.
    pub fn generation(&self) -> Option<Generation> {
        match &self.state {
            State::Serving(serving) => Some(serving.generation()),
            _ => None,
        }
    }

    /// The client, once the volume is open: for counters, the directory and what it explains.
    pub fn client(&self) -> Option<&client::Remote<D>> {
        match &self.state {
            State::Serving(serving) => Some(serving.remote()),
            _ => None,
        }
    }

    /// How far repair has come, once the volume is open.
    pub fn repair(&self, now: Instant) -> Option<Progress> {
        match &self.state {
            State::Serving(serving) => Some(serving.progress(now)),
            _ => None,
        }
    }

    /// Whole rounds of scrub, once the volume is open.
    pub fn scrub_rounds(&self) -> Option<u64> {
        match &self.state {
            State::Serving(serving) => Some(serving.scrub_rounds()),
            _ => None,
        }
    }

    /// Lives of bands that are on record, once the volume is open.
    pub fn records(&self) -> impl Iterator<Item = &BandRecord> {
        let serving = match &self.state {
            State::Serving(serving) => Some(serving),
            _ => None,
        };
        serving.into_iter().flat_map(|serving| serving.records())
    }

    /// What it does and waits for, in words.
    pub fn explain(&self, now: Instant) -> String {
        match &self.state {
            State::Opening(opening, _) => opening.explain(now),
            State::Serving(serving) => serving.explain(now),
            State::Over => "the volume is not used here any more".to_owned(),
        }
    }

    fn open(&mut self, now: Instant, input: Input<'_, D>) {
        let State::Opening(opening, members) = &mut self.state else { return };
        let input = match &input {
            Input::Plane { id, answer } => {
                if let Some(Read::Nodes(nodes)) = members.answered(now, *id, answer) {
                    opening.handle(now, OpeningInput::Nodes(&nodes));
                }
                OpeningInput::Plane { id: *id, answer }
            }
            Input::Up(facts) => {
                self.up.insert(facts.node, *facts);
                OpeningInput::Up { node: facts.node, durable: facts.durable }
            }
            Input::Down { node } => {
                self.up.remove(node);
                OpeningInput::Down { node: *node }
            }
            Input::Answer { node, id, answer, .. } => match Part::of(*id) {
                (Part::Opening, id) => OpeningInput::Node { node: *node, id, answer },
                _ => return,
            },
            Input::GoOn => OpeningInput::GoOn,
            Input::Deadline => OpeningInput::Deadline,
            Input::Plan(plan) => {
                self.plan = Some(plan.clone());
                return;
            }
            Input::Release => {
                // Whoever comes next waits for the lease, if there is one.
                self.state = State::Over;
                self.outputs.push_back(Output::Released);
                return;
            }
            Input::Facts(facts) => {
                self.up.entry(facts.node).and_modify(|known| *known = *facts);
                return;
            }
            Input::Checkpoints(_) | Input::Idle(_) | Input::Scrub | Input::Spread(_) => return,
            Input::Command(_) | Input::Program { .. } => {
                panic!("an FTL is mounted when the volume was opened")
            }
        };
        opening.handle(now, input);
        if opening.waits_for_nodes()
            && let Some((id, ask)) = members.elapsed(now)
        {
            self.outputs.push_back(Output::Plane { id, ask });
        }
    }

    fn of_opening(&mut self, now: Instant) {
        loop {
            let State::Opening(opening, _) = &mut self.state else { return };
            let Some(output) = opening.poll() else { return };
            let output = match output {
                OpeningOutput::Plane { id, ask } => Output::Plane { id, ask },
                OpeningOutput::Connect(nodes) => Output::Connect(nodes),
                OpeningOutput::Node { node, id, ask } => {
                    Output::Ask { node, id: Part::Opening.id(id), ask }
                }
                OpeningOutput::Opened(opened) => return self.opened(now, *opened),
                OpeningOutput::Failed(error) => {
                    self.state = State::Over;
                    Output::Failed(SessionError::Opening(error))
                }
            };
            self.outputs.push_back(output);
        }
    }

    fn opened(&mut self, now: Instant, opened: Opened) {
        let State::Opening(opening, mut members) = std::mem::replace(&mut self.state, State::Over)
        else {
            unreachable!("only an opening opens")
        };
        let owned = opening.into_parts().expect("it was opened");
        let up = std::mem::take(&mut self.up);
        let mut config = self.config.clone();
        let serving = fit(&mut config, &opened).and_then(|()| {
            members.rest(now);
            let parts = (owned.0, owned.1, members);
            Serving::new(now, &config, parts, &opened, up).map_err(SessionError::Config)
        });
        let mut serving = match serving {
            Ok(serving) => serving,
            Err(error) => return self.outputs.push_back(Output::Failed(error)),
        };
        if let Some(mutant) = self.mutant {
            serving.plant(mutant);
        }
        self.outputs.push_back(Output::Opened(Box::new(opened)));
        self.state = State::Serving(Box::new(serving));
        if let Some(plan) = self.plan.take() {
            self.handle(now, Input::Plan(plan));
        }
        self.handle(now, Input::Deadline);
    }
}

/// An opening for which all is there is over by then.
const LONG_NS: u64 = 4 * SECOND;

/// Holds the config against the volume, and completes it.
fn fit(config: &mut SessionConfig, opened: &Opened) -> Result<(), SessionError> {
    let volume = &opened.volume;
    let (of, shape) = (&config.client.geometry, config.client.shape());
    let lanes = if volume.lanes == 0 { of.units } else { volume.lanes };
    if shape != volume.shape {
        return Err(SessionError::Config(format!(
            "it was opened with bands of {} pages with {} slots, and has such of {} with {}",
            shape.pages, shape.slots_per_page, volume.shape.pages, volume.shape.slots_per_page
        )));
    }
    if (of.units, of.blocks()) != (lanes, volume.bands) {
        return Err(SessionError::Resized(Box::new(volume.clone())));
    }
    config.client.volume = volume.volume;
    config.client.replicas = u32::from(volume.replicas);
    (config.repair.replicas, config.repair.shape) = (volume.replicas, volume.shape);
    Ok(())
}

/// Who asks a node: each part has numbers of its own, and the upper 8 bits of an ask say whose it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Opening = 1,
    Client = 2,
    Repair = 3,
    Rejoin = 4,
}

impl Part {
    fn id(self, id: AskId) -> AskId {
        AskId((self as u64) << 56 | id.0)
    }

    fn of(id: AskId) -> (Self, AskId) {
        let part = match id.0 >> 56 {
            1 => Self::Opening,
            2 => Self::Client,
            3 => Self::Repair,
            _ => Self::Rejoin,
        };
        (part, AskId(id.0 & ((1 << 56) - 1)))
    }
}
