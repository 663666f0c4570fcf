//! A drive of a node: the raw store over a medium of the server, on this thread's ring.
//!
//! Invariants: while a command of the medium is under way, the memory that it reads to or writes from is held here;
//! one command has one view.

use crate::backend::Backend;
use crate::medium::{Lost, Medium};
use crate::pool::block::Block;
use crate::runtime::buffer::{Buffer, View, Views};
use crate::runtime::ring::{Done, Ring};
use flash::{Command, Completion, Instant, Payload, Slab, SlotData, SlotRead, SlotWrite, Tag};
use ftl::raw::RawFormat;
use ftl::{Core, Input};
use pool::node::raw::{Given, Output, Piece, RawStore, RawStoreSettings, Wants};
use pool::node::store::{self, CommandId, End, Found};
use std::collections::BTreeMap;

/// What a command of the medium moves.
enum Transfer {
    /// To where, and the memory of its view.
    Read { into: Payload, buffer: Buffer },
    /// The memory of its view.
    Write { _held: Source },
}

/// Where a program's data come from.
enum Source {
    /// The blocks as they came, one behind the other.
    Chunk { _first: Block },
    /// A copy.
    Copy { _buffer: Buffer },
    /// It has none.
    Nothing,
}

/// See the head of this file.
pub struct Drive {
    store: RawStore<Block>,
    medium: Medium,
    views: Views,
    /// By their views.
    transfers: Slab<Transfer>,
    of_tag: BTreeMap<Tag, u32>,
    ends: Vec<End<Block>>,
    ready: Option<Result<Box<Found>, String>>,
    stopped: Option<bool>,
}

/// What a read brought of each slot: its checksum, unless it cannot be read.
type ReadSums = Vec<Option<u32>>;

impl Drive {
    /// A drive over this medium, formatted if a format is given, else mounted. Virtual time jumps: returns what was
    /// found, and when it is.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(
        medium: Medium,
        format: Option<RawFormat>,
        settings: RawStoreSettings,
        ring: &mut Ring,
    ) -> Result<(Self, Found, Instant), String> {
        let (geometry, health) = (*medium.geometry(), medium.health());
        let store = match format {
            Some(format) => RawStore::format(geometry, &health, format, settings)?,
            None => RawStore::mount(geometry, &health, settings)?,
        };
        let mut drive = Self {
            store,
            views: Views::new(0, medium.lends()),
            medium,
            transfers: Slab::default(),
            of_tag: BTreeMap::new(),
            ends: Vec::new(),
            ready: None,
            stopped: None,
        };
        let mut now = Instant(0);
        match drive.run_until_ready(ring, &mut now) {
            Ok(found) => Ok((drive, *found, now)),
            Err(reason) => {
                ring.free(drive);
                Err(reason)
            }
        }
    }

    /// Goes on in virtual time until the store is ready, or why it will not be.
    fn run_until_ready(
        &mut self,
        ring: &mut Ring,
        now: &mut Instant,
    ) -> Result<Box<Found>, String> {
        let mut done = Vec::new();
        loop {
            self.turn(*now, ring);
            if let Some(lost) = self.lost() {
                return Err(lost.to_string());
            }
            if let Some(ready) = self.ready.take() {
                return ready;
            }
            if ring.under_way() > 0 {
                let entered = ring.enter(None, &mut done);
                entered.map_err(|error| format!("{}: {error}", ring.report().name))?;
                done.drain(..).for_each(|done| self.io_done(*now, done, ring));
            } else if let Some(deadline) = self.deadline() {
                *now = deadline.max(*now);
            } else {
                let why = self.store.units().explain();
                return Err(format!("it neither goes on nor ends: {why}"));
            }
        }
    }

    /// Stops the units below; [`Drive::stopped`] tells when they have.
    pub fn begin_stop(&mut self, now: Instant) {
        self.store.handle(now, Input::Shutdown);
    }

    /// The units have stopped; true if everything is durable.
    pub fn stopped(&self) -> Option<bool> {
        self.stopped
    }

    /// The store, to look at.
    pub fn store(&self) -> &RawStore<Block> {
        &self.store
    }

    /// The medium, to look at.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// The medium, to look whether it is still this process's.
    pub fn medium_mut(&mut self) -> &mut Medium {
        &mut self.medium
    }

    /// Why the drive is no more this process's, if it is not.
    pub fn lost(&self) -> Option<Lost> {
        self.medium.lost()
    }

    /// Begins a command of the node.
    pub fn begin(
        &mut self,
        now: Instant,
        id: CommandId,
        command: store::Command<Block>,
        ring: &mut Ring,
    ) {
        self.store.begin(now, id, command);
        self.settle(now, ring);
    }

    /// An I/O operation of the medium is done.
    pub fn io_done(&mut self, now: Instant, done: Done, ring: &mut Ring) {
        self.medium.io_done(now, done, ring);
    }

    /// Does all that can be done now.
    pub fn turn(&mut self, now: Instant, ring: &mut Ring) {
        self.settle(now, ring);
        if self.store.deadline().is_some_and(|at| at <= now) {
            self.store.handle(now, Input::Deadline);
            self.settle(now, ring);
        }
        while self.complete(now, ring) {
            self.settle(now, ring);
        }
    }

    /// Commands that have ended.
    pub fn take_ends(&mut self) -> std::vec::Drain<'_, End<Block>> {
        self.ends.drain(..)
    }

    /// When to call [`Drive::turn`] if no I/O ends before.
    pub fn deadline(&self) -> Option<Instant> {
        self.medium.deadline().into_iter().chain(self.store.deadline()).min()
    }

    fn settle(&mut self, now: Instant, ring: &mut Ring) {
        while let Some(output) = self.store.poll() {
            match output {
                Output::Medium(command) => self.start(now, command, ring),
                Output::Ready(result) => {
                    self.ready = Some(result.map_err(|error| error.to_string()));
                }
                Output::Ended(end) => self.ends.push(end),
                Output::Stopped(durable) => self.stopped = Some(durable),
            }
        }
    }

    fn start(&mut self, now: Instant, mut command: Command, ring: &mut Ring) {
        let mut slots = Vec::new();
        match &mut command {
            Command::Program { tag, .. } => {
                let tag = *tag;
                let (source, view) = self.source(tag);
                let index = self.transfers.insert(Transfer::Write { _held: source });
                self.views.set(index, view);
                self.of_tag.insert(tag, index);
                slots = self.slots(tag, index);
            }
            Command::Read { tag, into: Some(into), count, .. } => {
                let buffer = Buffer::new(*count);
                let view = buffer.view(0, *count);
                let index = self.transfers.insert(Transfer::Read { into: *into, buffer });
                self.views.set(index, view);
                self.of_tag.insert(*tag, index);
                *into = Payload { buffer: index, index: 0 };
            }
            _ => {}
        }
        self.medium.start(now, command, &slots, &mut self.views, ring);
    }

    /// Where the data of a program are, in one piece.
    fn source(&self, tag: Tag) -> (Source, View) {
        let blocks: Vec<&Block> = self.data_of(tag).collect();
        let count = blocks.len() as u32;
        let Some(first) = blocks.first() else { return (Source::Nothing, View::NONE) };
        if blocks.windows(2).all(|pair| pair[0].is_before(pair[1])) {
            return (Source::Chunk { _first: (*first).clone() }, first.view(count));
        }
        let mut copy = Buffer::new(count);
        for (to, block) in copy.bytes_mut().chunks_exact_mut(flash::BLOCK_BYTES).zip(&blocks) {
            to.copy_from_slice(block.bytes());
        }
        let view = copy.view(0, count);
        (Source::Copy { _buffer: copy }, view)
    }

    /// The node's data among the slots of a program.
    fn data_of(&self, tag: Tag) -> impl Iterator<Item = &Block> {
        self.store.program(tag).iter().filter_map(|write| match write.data {
            SlotData::Payload(payload) => match self.store.piece(payload) {
                Piece::Data(block) => Some(block),
                Piece::Bytes(_) | Piece::Zeroes => None,
            },
            SlotData::Meta(_) | SlotData::Empty => None,
        })
    }

    /// The slots of a program as the medium takes them, with the node's data in the view `index`.
    fn slots(&self, tag: Tag, index: u32) -> Vec<SlotWrite> {
        let mut next = 0;
        let slot = |write: &SlotWrite| {
            let SlotData::Payload(payload) = write.data else { return write.clone() };
            let data = match self.store.piece(payload) {
                Piece::Bytes(bytes) => SlotData::Meta(Box::new(*bytes)),
                Piece::Zeroes => SlotData::Empty,
                Piece::Data(_) => {
                    next += 1;
                    SlotData::Payload(Payload { buffer: index, index: next - 1 })
                }
            };
            SlotWrite { data, oob: write.oob }
        };
        self.store.program(tag).iter().map(slot).collect()
    }

    /// Takes over the next completion of the medium; false if there is none by now.
    fn complete(&mut self, now: Instant, ring: &mut Ring) -> bool {
        let Self { store, medium, views, .. } = self;
        let mut ended: Option<(Tag, ReadSums)> = None;
        let completed = medium.poll(now, views, ring, &mut |completion| {
            ended = match &completion {
                Completion::Read { tag, slots } => {
                    let sum = |slot: &SlotRead<'_>| slot.is_readable().then_some(slot.crc);
                    Some((
                        *tag,
                        slots.map(|slots| slots.iter().map(sum).collect()).unwrap_or_default(),
                    ))
                }
                Completion::Program { tag, .. } => Some((*tag, Vec::new())),
                _ => None,
            };
            store.handle(now, Input::Completion(completion));
        });
        let index = ended.as_ref().and_then(|(tag, _)| self.of_tag.remove(tag));
        if let (Some(index), Some((_, sums))) = (index, ended) {
            self.views.clear(index);
            if let Transfer::Read { into, buffer } = self.transfers.remove(index) {
                self.give(into, buffer, &sums);
            }
        }
        completed
    }

    /// Hands to the store what was read.
    fn give(&mut self, into: Payload, buffer: Buffer, sums: &[Option<u32>]) {
        let blocks = Block::all_with(buffer, sums);
        for (at, block) in (0..).zip(blocks) {
            let (Some(block), payload) = (block, Payload { index: into.index + at, ..into }) else {
                continue;
            };
            match self.store.wants(payload) {
                Wants::Bytes => self.store.give(payload, Given::Bytes(block.bytes())),
                Wants::Data => self.store.give(payload, Given::Data(block)),
            }
        }
    }
}
