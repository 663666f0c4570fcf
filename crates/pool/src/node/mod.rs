//! The node: what serves one drive of a pool. It takes what clients, repair and other nodes ask, decides what may
//! be done, and gives its store ([`store`]) commands. It does no I/O: a driver carries [`Output`]s out and
//! brings [`Input`]s, and drains [`Node::poll`] after each.
//!
//! Invariants:
//! - Of each volume only the highest generation that was heard of changes or sees anything. A higher one is durable
//!   in the store, and every change of a lower one has ended, before anything is answered to it: so what an
//!   owner of a volume finds after its fence was answered stays as it is, but for what it does itself.
//! - An ask is answered exactly once, and the changes of one band happen in the order they were asked.
//! - Everything is bounded: asks without an answer of each peer and of all, their bytes, volumes, bands, copies.
//! - A band that is being copied here is nobody's to see until it is sealed, durably.
//!
//! [`store`] is the contract with the store, [`raw`] the store on raw flash, [`memory`] the one for tests and
//! simulated drives. `serving` does what is asked, `copying` fetches bands from other nodes,
//! `forgetting` frees what deleted volumes have left, [`congestion`] judges the
//! drive with [`quantile`].

pub mod congestion;
mod copying;
mod forgetting;
pub mod memory;
pub mod quantile;
pub mod raw;
mod serving;
pub mod store;
#[cfg(test)]
mod tests;

use crate::control::deletions::Deleted;
use crate::message::{Answer, Ask, AskId, BandEntry, BandHeader, NodeFacts, Refusal, Signals};
use crate::words::{BandName, Generation, NodeId, VolumeId};
pub use crate::words::{Fenced, Mode};
use congestion::{Expectation, Monitor};
use copying::Copying;
use flash::{BLOCK_BYTES, Instant, MILLISECOND, Slab};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::{Command, CommandId, Data, End, Found, PAGE_SLOTS_MAX, Sensed, StoreError};

/// Who asks: a connection, named by the driver and never named again.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct PeerId(pub u64);

/// The bounds of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeSettings {
    /// Asks without an answer of one peer.
    pub asks_per_peer_max: u32,
    /// Asks without an answer of all peers.
    pub asks_max: u32,
    /// Bytes of data that all asks without an answer may bring or want.
    pub bytes_max: u64,
    /// Volumes that may ever be fenced here.
    pub volumes_max: u32,
    /// Bands that are copied here at a time.
    pub copies_max: u32,
    /// Bands that one answer to a list names.
    pub list_max: u32,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            asks_per_peer_max: 1024,
            asks_max: 4096,
            bytes_max: 256 << 20,
            volumes_max: 1024,
            copies_max: 4,
            list_max: 512,
        }
    }
}

/// An event for [`Node::handle`].
#[derive(Clone, Debug)]
pub enum Input<D> {
    /// A peer asks.
    Ask {
        /// Who.
        peer: PeerId,
        /// Comes back with the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// A command of the store ended.
    Ended(End<D>),
    /// Another node answers an [`Output::Ask`].
    Answer {
        /// Who.
        from: NodeId,
        /// Of the ask.
        id: AskId,
        /// What.
        answer: Answer<D>,
    },
    /// A peer is gone: nothing of what it has asked is begun any more. Whoever has connected anew may rest on that.
    Gone(PeerId),
    /// A volume is deleted, as the control plane proves; to be told again while [`Node::volumes`] names it.
    Deleted(Deleted),
    /// The controller wants the node in this mode.
    Mode(Mode),
    /// The instant of [`Node::deadline`] has come.
    Deadline,
}

/// What [`Node::poll`] hands to the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output<D> {
    /// Tell a peer; nobody, if it is gone.
    Answer {
        /// Whom.
        peer: PeerId,
        /// Of what it asked.
        id: AskId,
        /// What.
        answer: Answer<D>,
        /// How the node feels.
        signals: Signals,
    },
    /// Give this to the store.
    Command {
        /// Comes back with the end.
        id: CommandId,
        /// What to do.
        command: Command<D>,
    },
    /// Ask another node.
    Ask {
        /// Whom.
        to: NodeId,
        /// Comes back with the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
}

/// For so long after a switch to [`Mode::Reads`] new bands are still taken: clients hear of it later.
pub const MODE_GRACE_NS: u64 = MILLISECOND;

/// An ask without an answer.
#[derive(Debug)]
struct Pending<D> {
    peer: PeerId,
    id: AskId,
    since: Instant,
    /// That it moves to or from the drive.
    blocks: u32,
    /// Until it is begun.
    ask: Option<Ask<D>>,
    volume: VolumeId,
    generation: Generation,
    /// It is counted in the `changing` of its volume.
    changes: bool,
}

/// How far a volume is fenced.
#[derive(Debug, Default)]
struct Fence {
    /// Durable. Nothing below counts.
    least: Fenced,
    /// A higher one on its way to be.
    rising: Option<Rising>,
    /// Changes begun and not ended.
    changing: u32,
    /// The store is about to forget it: nothing is given to it that would be forgotten, too.
    forgetting: bool,
}

#[derive(Debug)]
struct Rising {
    to: Fenced,
    durable: bool,
    /// What was asked of the volume since.
    waiting: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BandState {
    /// Takes pages, the next at this place; those before that are begun.
    Open {
        taken: u32,
    },
    /// Takes no more pages, but for its seal is as an open one.
    Failed,
    Sealed,
    /// A seal or a free is at the store.
    Ending,
    Freeing,
    Copying,
}

#[derive(Debug)]
struct Band {
    header: BandHeader,
    /// Pages that are there.
    pages: u32,
    /// The first of them that the store has found damaged, or any number behind the last.
    sound: u32,
    /// What was written last is not all sound.
    torn: bool,
    /// So many of the last ones are not sound.
    loose: u32,
    state: BandState,
    /// Appends at the store.
    appending: u32,
    /// Asks that wait for what is at the store.
    waiting: VecDeque<u32>,
}

/// No page of a band was found damaged.
const ALL_SOUND: u32 = u32::MAX;

/// Whose a command of the store is.
#[derive(Clone, Debug)]
enum Task {
    Fence(VolumeId),
    Append { ask: u32, band: BandName },
    Sum { ask: u32, sum: u32 },
    Read { ask: u32 },
    Seal { ask: u32, band: BandName, pages: u32 },
    Free { ask: u32, band: BandName },
    FreeDeleted { band: BandName },
    Forget(VolumeId),
    Flush { ask: u32 },
    CopyAppend { ask: u32 },
    CopySeal { ask: u32 },
    CopyFree { ask: u32 },
}

/// See the head of this file.
pub struct Node<D> {
    node: NodeId,
    settings: NodeSettings,
    bands_max: u32,
    band_pages: u32,
    durable: bool,
    mode: Mode,
    mode_strict_at: Instant,
    /// The drive takes no writes any more.
    failed: bool,
    now: Instant,
    fences: BTreeMap<VolumeId, Fence>,
    bands: BTreeMap<BandName, Band>,
    asks: Slab<Pending<D>>,
    asks_of: BTreeMap<PeerId, u32>,
    /// Peers that are gone and have asks left.
    gone: BTreeSet<PeerId>,
    /// That all asks without an answer move.
    blocks: u64,
    tasks: BTreeMap<CommandId, Task>,
    /// By ask.
    copies: BTreeMap<u32, Copying<D>>,
    /// Asks that may be begun now: fences and bands give them back one after the other.
    ready: VecDeque<u32>,
    commands: u64,
    asked: u64,
    monitor: Monitor,
    outputs: VecDeque<Output<D>>,
}

impl<D: Data> Node<D> {
    /// The node `node` over a store that found `found`.
    pub fn new(
        now: Instant,
        node: NodeId,
        settings: NodeSettings,
        found: Found,
        expectation: Expectation,
    ) -> Self {
        let mut bands = BTreeMap::new();
        for band in found.bands {
            let state = match band {
                band if band.entry.sealed => BandState::Sealed,
                band if band.failed => BandState::Failed,
                band => BandState::Open { taken: band.entry.pages },
            };
            let BandEntry { band, header, pages, sound, torn, loose, .. } = band.entry;
            let sound = if sound < pages { sound } else { ALL_SOUND };
            bands.insert(band, Band { pages, sound, torn, loose, ..Band::new(header, state) });
        }
        let fences = found.fences.into_iter();
        Self {
            node,
            settings,
            bands_max: found.bands_max,
            band_pages: found.band_pages,
            durable: found.durable,
            mode: Mode::Mixed,
            mode_strict_at: now,
            failed: false,
            now,
            fences: fences
                .map(|(volume, least)| (volume, Fence { least, ..Fence::default() }))
                .collect(),
            bands,
            asks: Slab::default(),
            asks_of: BTreeMap::new(),
            gone: BTreeSet::new(),
            blocks: 0,
            tasks: BTreeMap::new(),
            copies: BTreeMap::new(),
            ready: VecDeque::new(),
            commands: 0,
            asked: 0,
            monitor: Monitor::new(now, expectation),
            outputs: VecDeque::new(),
        }
    }

    /// Takes one event.
    pub fn handle(&mut self, now: Instant, input: Input<D>) {
        self.now = self.now.max(now);
        self.monitor.look(self.now, self.tasks.len() as u32);
        match input {
            Input::Ask { peer, id, ask } => self.ask(peer, id, ask),
            Input::Ended(end) => self.ended(end),
            Input::Answer { from, id, answer } => self.copy_answered(from, id, answer),
            Input::Gone(peer) => {
                if self.asks_of.contains_key(&peer) {
                    self.gone.insert(peer);
                }
            }
            Input::Deleted(deleted) => self.deleted(deleted),
            Input::Mode(mode) => self.set_mode(mode),
            Input::Deadline => {}
        }
        self.pump_copies();
        while let Some(ask) = self.ready.pop_front() {
            self.admit(ask);
        }
    }

    /// What to do next; drain it after every `handle`.
    pub fn poll(&mut self) -> Option<Output<D>> {
        self.outputs.pop_front()
    }

    /// When to give [`Input::Deadline`], if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let judge = self.monitor.deadline(self.tasks.len() as u32);
        let copies = self.copies.values().filter_map(Copying::deadline);
        copies.chain(judge).min()
    }

    /// What it says of itself to who connects.
    pub fn facts(&self) -> NodeFacts {
        NodeFacts {
            node: self.node,
            durable: self.durable,
            bands: self.bands_max,
            bands_used: self.bands.len() as u32,
            band_pages: self.band_pages,
        }
    }

    /// The drive was measured again: from now on its tail is held against this.
    pub fn expect(&mut self, expectation: Expectation) {
        self.monitor.expect(expectation);
    }

    /// Volumes that something is known of here.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.fences.keys().copied()
    }

    /// The drive takes no writes any more.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The load of now, as the monitor counts it.
    pub fn load(&self) -> congestion::Load {
        self.monitor.load()
    }

    /// Asks without an answer.
    pub fn asks(&self) -> u32 {
        self.asks.len() as u32
    }

    fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            self.mode = mode;
            self.mode_strict_at = self.now + MODE_GRACE_NS;
            self.monitor.calm(self.mode_strict_at);
        }
    }

    fn ask(&mut self, peer: PeerId, id: AskId, ask: Ask<D>) {
        let of_peer = self.asks_of.get(&peer).copied().unwrap_or(0);
        let blocks = blocks_of(&ask);
        let bytes = (self.blocks + u64::from(blocks)) * BLOCK_BYTES as u64;
        // One ask alone is never too large: its message is bounded.
        let full = self.asks.len() as u32 >= self.settings.asks_max
            || self.blocks > 0 && blocks > 0 && bytes > self.settings.bytes_max;
        if full || of_peer >= self.settings.asks_per_peer_max {
            let (answer, signals) = (Answer::Refused(Refusal::Busy), self.signals());
            self.outputs.push_back(Output::Answer { peer, id, answer, signals });
            return;
        }
        *self.asks_of.entry(peer).or_default() += 1;
        let (volume, generation) = owner_of(&ask);
        self.blocks += u64::from(blocks);
        let (since, ask) = (self.now, Some(ask));
        let pending = Pending { peer, id, since, blocks, ask, volume, generation, changes: false };
        let index = self.asks.insert(pending);
        self.ready.push_back(index);
    }

    /// Holds an ask against the fence of its volume, and begins it, lets it wait or refuses it.
    fn admit(&mut self, index: u32) {
        let Pending { peer, volume, generation, ask, .. } = &self.asks[index];
        if self.gone.contains(peer) {
            return self.refuse(index, Refusal::Busy);
        }
        let (volume, generation) = (*volume, *generation);
        let ask = ask.as_ref().expect("it was not begun");
        let owner = if let Ask::Fence { owner, .. } = ask { Some(*owner) } else { None };
        let by = Fenced { generation, owner: owner.unwrap_or(0) };
        let changes = matches!(
            ask,
            Ask::Append { .. } | Ask::Seal { .. } | Ask::Free { .. } | Ask::Copy { .. }
        );
        let sees = matches!(ask, Ask::Read { .. } | Ask::List { .. });
        // Of a volume that was never fenced here there is nothing to see and nothing to free.
        let begins =
            owner.is_some() || matches!(ask, Ask::Append { open: Some(_), .. } | Ask::Copy { .. });
        match self.fences.get_mut(&volume) {
            Some(Fence { rising: Some(rising), .. }) => rising.waiting.push_back(index),
            Some(fence) if generation < fence.least.generation || fence.least.is_anothers(by) => {
                let highest = fence.least.generation;
                self.refuse(index, Refusal::Stale { highest });
            }
            // Where nothing can be written nobody can be fenced, and nothing changes: to see it harms nobody.
            Some(fence) if generation > fence.least.generation && !(self.failed && sees) => {
                self.raise(index, volume, by);
            }
            // Of this generation something was heard before its owner said who it is.
            Some(fence) if fence.least < by && generation == fence.least.generation => {
                self.raise(index, volume, by);
            }
            None if begins => self.raise(index, volume, by),
            known => {
                if let Some(fence) = known.filter(|_| changes) {
                    fence.changing += 1;
                    self.asks[index].changes = true;
                }
                self.begin(index);
            }
        }
    }

    /// A generation is heard of that is higher than any before: it is made durable first.
    fn raise(&mut self, index: u32, volume: VolumeId, to: Fenced) {
        let known = self.fences.contains_key(&volume);
        if volume == NO_VOLUME {
            return self.refuse(index, Refusal::Invalid);
        }
        if self.failed {
            return self.refuse(index, Refusal::Failed);
        }
        if !known && self.fences.len() as u32 >= self.settings.volumes_max {
            return self.refuse(index, Refusal::Full);
        }
        self.rise(volume, to, VecDeque::from([index]));
    }

    fn rise(&mut self, volume: VolumeId, to: Fenced, waiting: VecDeque<u32>) {
        let fence = self.fences.entry(volume).or_default();
        fence.rising = Some(Rising { to, durable: false, waiting });
        if !fence.forgetting {
            self.command(Command::Fence { volume, to }, Task::Fence(volume));
        }
        self.stop_copies_of(volume);
    }

    /// The store has kept a generation, or has not.
    fn raised(&mut self, volume: VolumeId, result: Result<(), StoreError>) {
        let fence = self.fences.get_mut(&volume).expect("it rises");
        let rising = fence.rising.as_mut().expect("it rises");
        match result {
            Ok(()) => rising.durable = true,
            Err(error) => {
                let waiting = std::mem::take(&mut rising.waiting);
                fence.rising = None;
                if fence.least == Fenced::default() && fence.changing == 0 {
                    self.fences.remove(&volume);
                }
                for index in waiting {
                    self.refuse(index, refusal_of(error));
                }
            }
        }
        self.settle(volume);
    }

    /// Lets what waits for a fence go on when nothing of a lower generation is under way any more.
    fn settle(&mut self, volume: VolumeId) {
        let Some(fence) = self.fences.get_mut(&volume) else { return };
        if fence.changing > 0 || !fence.rising.as_ref().is_some_and(|rising| rising.durable) {
            return;
        }
        let rising = fence.rising.take().expect("looked above");
        fence.least = rising.to;
        self.ready.extend(rising.waiting);
        self.go_on_forgetting(volume);
    }

    fn command(&mut self, command: Command<D>, task: Task) {
        self.commands += 1;
        let id = CommandId(self.commands);
        self.tasks.insert(id, task);
        self.outputs.push_back(Output::Command { id, command });
    }

    fn refuse(&mut self, index: u32, refusal: Refusal) {
        self.answer(index, Answer::Refused(refusal), Sensed::default());
    }

    /// Answers an ask, and forgets it.
    fn answer(&mut self, index: u32, answer: Answer<D>, sensed: Sensed) {
        let Pending { peer, id, volume, changes, blocks, .. } = self.asks.remove(index);
        self.blocks -= u64::from(blocks);
        let left = self.asks_of.get_mut(&peer).expect("it is counted");
        *left -= 1;
        if *left == 0 {
            self.asks_of.remove(&peer);
            self.gone.remove(&peer);
        }
        let Sensed { unit_queue, unit_stirs } = sensed;
        let signals = Signals { unit_queue, unit_stirs, ..self.signals() };
        self.outputs.push_back(Output::Answer { peer, id, answer, signals });
        if changes {
            self.change_over(volume);
        }
    }

    /// A change has ended, whatever became of it.
    fn change_over(&mut self, volume: VolumeId) {
        let fence = self.fences.get_mut(&volume).expect("it is counted");
        fence.changing -= 1;
        self.settle(volume);
    }

    fn signals(&self) -> Signals {
        let queue = self.tasks.len().min(usize::from(u16::MAX)) as u16;
        Signals { congestion: self.monitor.state(), queue, ..Signals::default() }
    }

    fn note_error(&mut self, error: StoreError) {
        self.failed |= error == StoreError::Failed;
    }
}

/// Names no volume: the raw store keeps its log under it.
pub const NO_VOLUME: VolumeId = VolumeId(u32::MAX);

/// Blocks that an ask moves to or from the drive.
fn blocks_of<D>(ask: &Ask<D>) -> u32 {
    match ask {
        // A page of zeroes is a record at least.
        Ask::Append { slots, .. } => {
            (slots.iter().filter(|slot| slot.data.is_some()).count() as u32).max(1)
        }
        // One of more is refused.
        Ask::Read { count, .. } => (*count).min(PAGE_SLOTS_MAX),
        _ => 0,
    }
}

fn owner_of<D>(ask: &Ask<D>) -> (VolumeId, Generation) {
    match *ask {
        Ask::Fence { volume, generation, .. }
        | Ask::Flush { volume, generation }
        | Ask::List { volume, generation, .. } => (volume, generation),
        Ask::Append { band, generation, .. }
        | Ask::Read { band, generation, .. }
        | Ask::Seal { band, generation, .. }
        | Ask::Free { band, generation, .. }
        | Ask::Copy { band, generation, .. } => (band.volume, generation),
    }
}

fn refusal_of(error: StoreError) -> Refusal {
    match error {
        StoreError::Full => Refusal::Full,
        StoreError::BandFailed => Refusal::BandFailed,
        StoreError::Failed => Refusal::Failed,
        StoreError::NoBand => Refusal::NoBand,
        StoreError::Shape => Refusal::Invalid,
    }
}
