//! A core, FTL or raw units, with its medium: pieces of requests go in, finished pieces come out.
//!
//! Invariants:
//! - a piece that covers part of a block (*merge*: read, overlay, write) excludes every other
//!   change of that block until it is done, so that no acknowledged byte is overlaid by an old
//!   one; what waits goes on in the order of arrival;
//! - a piece's buffer id and request id are its index, and its view is registered as long as it
//!   is in flight.

mod looking;
mod renewing;
mod zones;

use super::core::{AnyCore, CoreSettings, CoreStatus, RawShape, raw_shape};
use crate::backend::Backend;
use crate::latency::{Lateness, Waited};
use crate::medium::Looks;
use crate::runtime::buffer::{Buffer, View, Views};
use crate::runtime::frames::Frames;
use crate::runtime::ring::{Done, Ring};
use crate::volume::ZoneWork;
use flash::{
    BLOCK_BYTES, Hint, Instant, Lba, Operation, Payload, Reply, Request, RequestError, RequestId,
    Slab, Spent,
};
use ftl::raw::zones::Zones;
use ftl::{Input, MountError, MountReport, Output, SnapshotError, SnapshotStep};
use looking::Looking;
use renewing::Renewing;
use std::collections::VecDeque;

/// What a piece does to its blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// Fill the view.
    Read,
    /// Write the view.
    Write {
        /// Durable before the reply.
        fua: bool,
        /// Placement handle.
        handle: u8,
        /// Seen whole or not at all, also after a power cut.
        atomic: bool,
    },
    /// Write bytes `from..to` of the view's only block, keep the rest of the block.
    Merge {
        /// First byte.
        from: u16,
        /// Byte after the last.
        to: u16,
        /// Durable before the reply.
        fua: bool,
        /// Placement handle.
        handle: u8,
    },
    /// Write the view to a raw block, durable before the reply, with a tag of the owner.
    Put {
        /// The tag.
        tag: u128,
    },
    /// Forget the blocks.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make durable what was acknowledged.
    Flush,
    /// Something with the zone that begins at the piece's first block.
    Zone {
        /// What.
        work: ZoneWork,
        /// From this block of the zone on.
        inside: u32,
    },
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Write { .. } => "write",
            Work::Merge { .. } => "write of part of a block",
            Work::Put { .. } => "put",
            Work::Trim { .. } => "trim",
            Work::Flush => "flush",
            Work::Zone { work: ZoneWork::Read, .. } => "read of a zone",
            Work::Zone { work: ZoneWork::Write { .. } | ZoneWork::Append { .. }, .. } => {
                "write to a zone"
            }
            Work::Zone { work: ZoneWork::Manage { .. }, .. } => "change of a zone",
        }
    }

    fn changes(self) -> bool {
        !matches!(self, Work::Read | Work::Flush | Work::Zone { work: ZoneWork::Read, .. })
    }
}

/// Who gets the result of a piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The shard of the client's connection.
    pub shard: usize,
    /// The request, as that shard names it.
    pub request: u32,
}

/// The part of a client's request that one shard executes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Who asked.
    pub origin: Origin,
    /// What to do.
    pub work: Work,
    /// First logical block of the shard.
    pub lba: u32,
    /// How many.
    pub blocks: u32,
    /// The data.
    pub view: View,
}

impl Piece {
    fn overlaps(&self, other: &Piece) -> bool {
        self.lba < other.lba + other.blocks && other.lba < self.lba + self.blocks
    }
}

/// A piece that is done.
pub struct Finished {
    /// Who asked.
    pub origin: Origin,
    /// How it ended.
    pub result: Result<(), RequestError>,
    /// What it waited for, if it took long enough for a look.
    pub waited: Option<Box<Waited>>,
    /// What its time went to, if the core tells.
    pub spent: Option<Spent>,
    /// Where an append to a zone went.
    pub placed: Option<u32>,
}

impl Finished {
    fn failed(self) -> Self {
        Self { result: Err(RequestError::Failed), ..self }
    }
}

struct Active {
    piece: Piece,
    /// Where a merge reads the old content to; `None` for other pieces, and once it writes.
    old: Option<Buffer>,
    /// When it was begun, and as which piece.
    since: Instant,
    number: u64,
    /// It was told to be late.
    told: bool,
    /// What the shard had been late by then.
    late_ns: u64,
    /// What it waits for, once somebody has looked.
    waited: Option<Box<Waited>>,
    /// Where an append to a zone goes.
    placed: Option<u32>,
}

/// A piece that was begun long ago.
pub struct Late {
    /// Its index, which is its id in the core.
    pub index: u32,
    /// What it does.
    pub what: &'static str,
    /// Its first block.
    pub lba: u32,
    /// How many.
    pub blocks: u32,
    /// For so long.
    pub age_ns: u64,
    /// Nobody was told of it before.
    pub new: bool,
    /// Pieces that are late.
    pub len: usize,
}

/// The events of a life: the end of a mount, and of a shutdown.
#[derive(Debug)]
pub enum Milestone {
    /// The mount or format ended.
    Ready(Result<MountReport, MountError>),
    /// Nothing needs the fast tier any more; false: it cannot be done without.
    FastDetached(bool),
    /// Another label is durable; false: nobody knows.
    Labelled(bool),
    /// The end of an order about a snapshot.
    Snapshot {
        /// Of which.
        number: u32,
        /// Which order.
        step: SnapshotStep,
        /// How it ended.
        result: Result<(), SnapshotError>,
    },
    /// The shutdown ended; true: everything is durable.
    Stopped(bool),
}

/// A core with its medium.
pub struct Engine {
    /// Decides.
    pub core: AnyCore,
    /// Executes.
    pub medium: Box<dyn Backend>,
    /// Of reads, in blocks.
    granule: u32,
    /// What of raw units may be asked by zones, if anything.
    zones: Option<Zones>,
    views: Views,
    active: Slab<Active>,
    /// Merges among `active`.
    merges: u32,
    /// With when they came.
    parked: VecDeque<(Instant, Piece)>,
    /// Pieces to be given to the FTL.
    due: VecDeque<u32>,
    /// Replies of the FTL that were not looked at.
    replies: VecDeque<Reply>,
    finished: Vec<Finished>,
    /// Pieces in the order they were begun, by index and number; those that are done go when they come
    /// to the front.
    begun: VecDeque<(u32, u64)>,
    begun_count: u64,
    looking: Looking,
    /// How late things were done here.
    pub lateness: Lateness,
    /// The latest that it was told.
    now: Instant,
    /// Done, and promised to be durable, before it is known that the device is still ours.
    unvouched: Vec<Finished>,
    looks: Looks,
    /// What the core answered while it was not known that nobody else has the data.
    held: Vec<Finished>,
    milestones: VecDeque<Milestone>,
    sums: Vec<u32>,
    /// The core was told that nothing may be written any more.
    failed: bool,
    renewing: Renewing,
}

impl Engine {
    /// Nothing is in flight yet.
    pub fn new(core: AnyCore, medium: Box<dyn Backend>, settings: &CoreSettings) -> Self {
        let views = Views::new(settings.relocation_blocks(), medium.lends());
        let granule = settings.granule();
        let zones = core.raw().and_then(Zones::of);
        Self {
            core,
            granule,
            zones,
            medium,
            views,
            active: Slab::default(),
            merges: 0,
            parked: VecDeque::new(),
            due: VecDeque::new(),
            replies: VecDeque::new(),
            finished: Vec::new(),
            begun: VecDeque::new(),
            begun_count: 0,
            looking: Looking::default(),
            lateness: Lateness::default(),
            now: Instant(0),
            unvouched: Vec::new(),
            looks: Looks::default(),
            held: Vec::new(),
            milestones: VecDeque::new(),
            sums: Vec::new(),
            failed: false,
            renewing: Renewing::default(),
        }
    }

    /// Nothing may be written to the medium any more: whatever waits for that ends with an error. Once is
    /// enough.
    pub fn fail(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.failed, true) {
            self.core.handle(now, Input::Fail);
        }
    }

    /// The frames of the requests' data.
    pub fn frames(&mut self) -> &mut Frames {
        &mut self.views.frames
    }

    /// Takes a piece. The next turn begins it.
    pub fn submit(&mut self, piece: Piece) {
        if let Some(piece) = self.hold(piece) {
            self.take(self.now, piece);
        }
    }

    /// Begins a piece that came at `came`, or parks it.
    fn take(&mut self, came: Instant, piece: Piece) {
        if self.must_wait(&piece, self.parked.len()) {
            self.parked.push_back((came, piece));
        } else {
            self.start(came, piece);
        }
    }

    /// It is `now`: pieces that are given from here on are begun then.
    pub fn note_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// When the oldest piece under way was begun.
    pub fn oldest(&mut self) -> Option<Instant> {
        while let Some(&(index, number)) = self.begun.front() {
            match self.active.get(index) {
                Some(active) if active.number == number => return Some(active.since),
                _ => self.begun.pop_front(),
            };
        }
        None
    }

    /// The id of the oldest piece under way.
    #[cfg(test)]
    pub fn late_index(&self) -> Option<u32> {
        let live = |&&(index, number): &&(u32, u64)| {
            self.active.get(index).is_some_and(|active| active.number == number)
        };
        self.begun.iter().find(live).map(|&(index, _)| index)
    }

    /// The pieces that were begun `age_ns` ago or earlier, oldest first.
    pub fn late(&mut self, now: Instant, age_ns: u64) -> Vec<Late> {
        let mut late = Vec::new();
        for &(index, number) in &self.begun {
            let Some(active) = self.active.get_mut(index) else { continue };
            if active.number != number || now < active.since + age_ns {
                continue;
            }
            let new = !std::mem::replace(&mut active.told, true);
            let Piece { work, lba, blocks, .. } = active.piece;
            let (what, age_ns) = (work.name(), now - active.since);
            late.push(Late { index, what, lba, blocks, age_ns, new, len: 0 });
        }
        let len = late.len();
        late.iter_mut().for_each(|late| late.len = len);
        late
    }

    /// True while a change of the same block is under way of which one is a merge, or waits
    /// among the first `ahead` of those parked.
    fn must_wait(&self, piece: &Piece, ahead: usize) -> bool {
        let merge = matches!(piece.work, Work::Merge { .. });
        if !piece.work.changes() || !(merge || self.merges > 0 || ahead > 0) {
            return false;
        }
        let is_merge = |other: &Piece| matches!(other.work, Work::Merge { .. });
        let conflicts = |other: &Piece| {
            other.work.changes() && (merge || is_merge(other)) && other.overlaps(piece)
        };
        self.active.iter().any(|(_, active)| conflicts(&active.piece))
            || self.parked.iter().take(ahead).any(|(_, parked)| parked.overlaps(piece))
    }

    /// Begins a piece that came at `came`.
    fn start(&mut self, came: Instant, piece: Piece) {
        let merge = matches!(piece.work, Work::Merge { .. });
        let old = merge.then(|| Buffer::new(1));
        self.merges += u32::from(merge);
        let view = old.as_ref().map_or(piece.view, |old| old.view(0, 1));
        self.begun_count += 1;
        let (since, number) = (self.now, self.begun_count);
        let late_ns = self.lateness.ns();
        let parked_ns = since - came;
        let waited = (parked_ns > 0).then(|| Box::new(Waited::parked(parked_ns, since, late_ns)));
        let (told, placed) = (false, None);
        let active = Active { piece, old, since, number, told, late_ns, waited, placed };
        let index = self.active.insert(active);
        self.begun.push_back((index, number));
        self.looking.begun(since);
        self.views.set(index, view);
        self.due.push_back(index);
    }

    /// Gives the piece to the FTL: a merge first as a read, then as a write.
    fn issue(&mut self, now: Instant, index: u32) {
        let Active { piece, old, .. } = &self.active[index];
        let write = |fua, handle, atomic| Operation::Write {
            buffer: index,
            fua,
            atomic,
            hint: Hint { handle, ..Hint::default() },
        };
        let operation = match piece.work {
            Work::Read => Operation::Read { buffer: index },
            Work::Merge { .. } if old.is_some() => Operation::Read { buffer: index },
            Work::Merge { fua, handle, .. } => write(fua, handle, false),
            Work::Write { fua, handle, atomic } => write(fua, handle, atomic),
            Work::Put { tag } => {
                // At once before its write: no other write can come between.
                self.core.tag(Lba(piece.lba), tag);
                write(true, 0, false)
            }
            Work::Trim { fua } => {
                if let (Some(zones), Some(units)) = (&mut self.zones, self.core.raw()) {
                    zones.forget(units, Lba(piece.lba), piece.blocks);
                }
                Operation::Trim { fua }
            }
            Work::Flush => Operation::Flush,
            Work::Zone { work, inside } => return self.issue_zone(now, index, work, inside),
        };
        self.sums.clear();
        if let Operation::Write { .. } = operation {
            let view = piece.view;
            self.sums.extend((0..piece.blocks).map(|i| flash::crc(view.block(i))));
        }
        let (lba, blocks) = (Lba(piece.lba), piece.blocks);
        let request = Request { id: RequestId::from(index), lba, blocks, operation };
        self.core.handle(now, Input::Request { request, checksums: &self.sums });
    }

    /// The FTL has answered.
    fn reply(&mut self, reply: Reply) {
        let index = reply.id as u32;
        let active = &mut self.active[index];
        if let (Some(old), Ok(())) = (active.old.take(), reply.result) {
            overlay(&mut active.piece, &old);
            self.views.set(index, active.piece.view);
            self.due.push_back(index);
            return;
        }
        if self.pads_on(index, reply.result) {
            self.due.push_back(index);
            return;
        }
        self.views.clear(index);
        let Active { piece, mut waited, placed, .. } = self.active.remove(index);
        self.merges -= u32::from(matches!(piece.work, Work::Merge { .. }));
        if let Some(waited) = &mut waited {
            waited.count(self.now, self.lateness.ns());
        }
        let result = reply.result;
        let spent = self.core.raw().is_none().then_some(reply.spent);
        let finished = Finished { origin: piece.origin, result, waited, spent, placed };
        if reply.result.is_ok() && self.is_promise(piece.work) {
            self.unvouched.push(finished);
        } else if reply.result.is_ok() && !self.medium.vouches(self.now) {
            self.held.push(finished);
        } else {
            self.finished.push(finished);
        }
        if piece.work.changes() {
            self.unpark();
        }
    }

    /// True if the client may rest on what was done, should another server have the device next. Where
    /// a look costs nothing all that changes the device counts.
    fn is_promise(&mut self, work: Work) -> bool {
        let durable = self.medium.geometry().durable_at_completion;
        let Some(watch) = self.medium.watch() else { return false };
        let all = watch.is_cheap() || durable;
        match work {
            Work::Read => false,
            Work::Write { fua, .. } | Work::Merge { fua, .. } | Work::Trim { fua } => fua || all,
            Work::Zone { work: ZoneWork::Read, .. } => false,
            Work::Zone { work: ZoneWork::Write { fua } | ZoneWork::Append { fua }, .. } => {
                fua || all
            }
            Work::Zone { .. } => all,
            Work::Put { .. } | Work::Flush => true,
        }
    }

    /// Lets go of promises that were kept before a look which found the device ours, and has the others
    /// looked for.
    fn vouch(&mut self, now: Instant, ring: &mut Ring) {
        self.let_out(now);
        if self.unvouched.is_empty() {
            return;
        }
        let Some(watch) = self.medium.watch() else { return };
        let Some(settled) = self.looks.settle(self.unvouched.len(), watch, ring) else { return };
        let ours = watch.is_ours();
        let told = self.unvouched.drain(..settled);
        self.finished.extend(told.map(|told| if ours { told } else { told.failed() }));
        if !self.unvouched.is_empty() {
            self.vouch(now, ring);
        }
    }

    /// Tells what the core has answered, once it is known that it was so, or that nobody knows.
    fn let_out(&mut self, now: Instant) {
        if self.held.is_empty() {
            return;
        }
        if self.medium.fenced() {
            self.finished.extend(self.held.drain(..).map(Finished::failed));
        } else if self.medium.vouches(now) {
            self.finished.append(&mut self.held);
        }
    }

    /// Starts what no longer has to wait.
    fn unpark(&mut self) {
        let mut position = 0;
        while position < self.parked.len() {
            let (came, piece) = self.parked[position];
            if self.must_wait(&piece, position) {
                position += 1;
            } else {
                self.parked.remove(position);
                self.start(came, piece);
            }
        }
    }

    /// An I/O operation of the medium is done.
    pub fn io_done(&mut self, now: Instant, done: Done, ring: &mut Ring) {
        self.medium.io_done(now, done, ring);
    }

    /// Carries out all that can be done now.
    pub fn turn(&mut self, now: Instant, ring: &mut Ring) {
        self.renew(now);
        self.work(now, ring);
        if let Some(ftl) = self.core.ftl() {
            self.medium.checkpoints(now, ftl.checkpoints());
        }
        if self.core.has_failed() && !self.failed && self.medium.ends_failed() {
            tracing::error!("{}{}", self.core.explain(), self.medium.explain());
            self.fail(now);
        }
        self.vouch(now, ring);
    }

    fn work(&mut self, now: Instant, ring: &mut Ring) {
        if self.medium.fenced() {
            self.fail(now);
        }
        if let Some(weights) = self.medium.take_weights() {
            self.core.set_unit_weights(&weights);
        }
        while let Some(block) = self.medium.take_refresh() {
            self.looking.changed = true;
            self.core.ask_refresh(block);
        }
        self.settle(now, ring);
        if self.core.deadline().is_some_and(|at| at <= now) {
            self.looking.changed = true;
            self.core.handle(now, Input::Deadline);
            self.settle(now, ring);
        }
        loop {
            let Self { core, medium, views, .. } = self;
            let completed = medium
                .poll(now, views, ring, &mut |done| core.handle(now, Input::Completion(done)));
            if !completed {
                return;
            }
            self.looking.changed = true;
            if self.medium.fenced() {
                self.fail(now);
            }
            self.settle(now, ring);
        }
    }

    /// Gives the FTL what is due, one event at a time: what it says is carried out before the
    /// next (its driving contract).
    fn settle(&mut self, now: Instant, ring: &mut Ring) {
        loop {
            while let Some(output) = self.core.poll() {
                self.carry_out(now, output, ring);
            }
            if let Some(reply) = self.replies.pop_front() {
                self.reply(reply);
            } else if let Some(index) = self.due.pop_front() {
                self.looking.changed = true;
                self.issue(now, index);
            } else {
                return;
            }
        }
    }

    fn carry_out(&mut self, now: Instant, output: Output, ring: &mut Ring) {
        match output {
            Output::Command(command) => {
                let slots = match command {
                    flash::Command::Program { tag, .. } => self.core.program(tag),
                    _ => &[],
                };
                self.medium.start(now, command, slots, &mut self.views, ring);
            }
            Output::ReadZeroes { into, count } => {
                for i in 0..count {
                    self.views.lend_zeroes(Payload { index: into.index + i, ..into });
                }
            }
            Output::Reply(reply) => self.replies.push_back(reply),
            Output::Ready(result) => {
                let result = result.map(|report| *report);
                self.mounted(&result);
                self.milestones.push_back(Milestone::Ready(result));
            }
            Output::FastDetached(gone) => {
                self.milestones.push_back(Milestone::FastDetached(gone));
            }
            Output::Labelled(durable) => {
                self.milestones.push_back(Milestone::Labelled(durable));
            }
            Output::Snapshot { number, step, result } => {
                self.milestones.push_back(Milestone::Snapshot { number, step, result });
            }
            Output::Stopped(durable) => {
                if self.stopped(now, durable) {
                    self.milestones.push_back(Milestone::Stopped(durable));
                }
            }
        }
    }

    /// Pieces that are done since the last call, appended to `into`.
    pub fn take_finished(&mut self, into: &mut Vec<Finished>) {
        into.append(&mut self.finished);
    }

    /// The next milestone.
    pub fn milestone(&mut self) -> Option<Milestone> {
        self.milestones.pop_front()
    }

    /// The shape of raw units, if these are.
    pub fn raw_shape(&self) -> Option<RawShape> {
        Some(raw_shape(self.core.raw()?, self.medium.geometry(), self.granule))
    }

    /// The state of the core.
    pub fn status(&self) -> CoreStatus {
        self.core.status(self.medium.geometry(), self.granule)
    }

    /// When to call [`Engine::turn`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let all = [self.core.deadline(), self.medium.deadline(), self.renewing_deadline()];
        all.into_iter().flatten().min()
    }
}

/// Completes the block of a merge: what the client did not give comes from the old content.
fn overlay(piece: &mut Piece, old: &Buffer) {
    let Work::Merge { from, to, .. } = piece.work else {
        unreachable!("only a merge reads the old content")
    };
    let (from, to) = (usize::from(from), usize::from(to));
    assert!(from < to && to <= BLOCK_BYTES, "a merge has bytes of its own");
    let block = piece.view.block_mut(0);
    block[..from].copy_from_slice(&old.bytes()[..from]);
    block[to..].copy_from_slice(&old.bytes()[to..]);
}
