//! A medium of a shard: [`nand::Nand`] knows the rules, the timing and the health; a store holds
//! the bytes. A command is complete when its emulated time has come *and* its I/O is done.
//!
//! Invariants:
//! - the store sees the commands of one block as the device would execute them: reads run
//!   together; a program waits for the program before it; an erase waits for all and all wait for
//!   it ([`Lanes`]);
//! - a job owns the memory of its I/O until the last of it has completed;
//! - nothing is acknowledged whose I/O failed;
//! - nothing is programmed or erased once another server has the device ([`Watch`]);
//! - kept memory is told of a program or erase before its I/O is queued, and of its end before that is
//!   told to anybody else;
//! - the fast units of a two-tier device on files have a store of their own ([`FastStore`]); on one in
//!   memory one store holds both.

mod direct;
mod durability;
mod failed;
mod fast;
mod fence;
mod file;
mod injected;
mod job;
mod kept;
mod lanes;
mod memory;
mod records;
mod store;
pub mod zones;

pub use direct::{DirectStore, Extent, Place, SLOTS_PER_PAGE, SLOTS_PER_RAW_PAGE, page_bytes};
pub use fast::{Area, FastStore, oob_sectors};
pub use fence::{Looks, Lost, TAKE_OVER, Watch};
pub use file::{
    Fence, FileStore, GENERATION_BYTES, RECORD_BYTES, decode_generation, encode_generation,
    gives_back,
};
pub use injected::Injections;
pub use memory::MemoryStore;
pub use store::Store;

use crate::backend::Backend;
use crate::kept::{KeptCounts, KeptShard};
use crate::runtime::buffer::{Buffer, Views};
use crate::runtime::ring::{Done, Ring};
use failed::flip;
use flash::{
    BLOCK_BYTES, BlockId, Command, Completion, Geometry, Health, Instant, MediumError, OOB_BYTES,
    Oob, Payload, Slab, SlotId, SlotRead, SlotStatus, SlotWrite, Tag,
};
use injected::{Fate, Injector};
pub use job::Job;
use job::{Step, What};
use lanes::{Access, Lanes};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Executes the commands of one FTL.
pub struct Medium {
    nand: nand::Nand,
    geometry: Geometry,
    store: Store,
    /// Of the fast units, which it counts alone ([`Geometry::fast_alone`]); unless `store` holds them, too.
    fast: Option<Store>,
    /// Present if a restart is to find here what it would look for in the store.
    kept: Option<KeptShard>,
    jobs: Slab<Job>,
    lanes: Lanes,
    done: VecDeque<u32>,
    /// Scratch memory of finished jobs.
    scratch: Vec<Buffer>,
    /// Room for OOBs of finished jobs.
    rooms: Vec<Vec<Oob>>,
    /// Unless the device is in memory.
    watch: Option<Watch>,
    /// Units that stop answering, and when.
    losses: Vec<(Instant, Range<u32>)>,
    /// Where there was no room for something, if that is known.
    full: Option<PathBuf>,
    /// What goes wrong below, for tests.
    injector: Option<Box<Injector>>,
    /// How many times slower than the world the emulated flash lives.
    dilation: u64,
}

impl Medium {
    /// A medium of these rules over this store.
    pub fn new(nand: nand::Nand, store: Store, durable_at_completion: bool) -> Self {
        let geometry = Geometry { durable_at_completion, ..nand.geometry() };
        let watch = store.watch();
        let lanes = Lanes::new(geometry.blocks());
        Self {
            nand,
            geometry,
            store,
            fast: None,
            kept: None,
            jobs: Slab::default(),
            lanes,
            done: VecDeque::new(),
            scratch: Vec::new(),
            rooms: Vec::new(),
            watch,
            losses: Vec::new(),
            injector: None,
            full: None,
            dilation: 1,
        }
    }

    /// The same with the fast units on files of their own.
    pub fn with_fast(mut self, store: FastStore) -> Self {
        self.fast = Some(Store::Fast(store));
        self
    }

    /// Slows the clock of the emulated flash: all that it does takes so many times longer.
    pub fn dilate(&mut self, times: u32) {
        self.dilation = u64::from(times.max(1));
    }

    /// The instant of the emulated flash at one of the world.
    fn of_flash(&self, now: Instant) -> Instant {
        Instant(now.0 / self.dilation)
    }

    fn may_write(&mut self) -> bool {
        self.watch.as_mut().is_none_or(Watch::may_write)
    }

    fn lose_what_is_due(&mut self, now: Instant) {
        let nand = &mut self.nand;
        self.losses.retain(|(at, units)| {
            let due = *at <= now;
            if due {
                units.clone().for_each(|unit| nand.kill_unit(unit));
            }
            !due
        });
    }

    /// Commands under way.
    pub fn under_way(&self) -> usize {
        self.jobs.len()
    }

    /// Memory holds the bytes at once: the order of the commands is the order of the unit.
    fn start_in_memory(&mut self, index: u32, slots: &[SlotWrite], views: &mut Views) {
        let needs_scratch = {
            let job = &self.jobs[index];
            matches!(job.what, What::Read { .. }) && job.into.is_none()
        };
        if needs_scratch {
            self.jobs[index].scratch = Some(self.take_scratch());
        }
        let Store::Memory(store) = &mut self.store else { return };
        let job = &mut self.jobs[index];
        match job.what {
            What::Read { slot, count } => store.read(job, slot, count, views),
            What::Program { slot, .. } => store.program(slot, slots, views),
            What::Erase { block } => store.erase(block, views),
            What::Finish { .. } | What::Flush => {}
        }
        job.step = Step::Record;
    }

    fn take_scratch(&mut self) -> Buffer {
        // The OOBs, the slots, and the sectors that a fast tier has its OOBs in.
        let blocks = self.geometry.slots_per_page + 3;
        self.scratch.pop().unwrap_or_else(|| Buffer::new(blocks))
    }

    /// Asks for the job's turn at its block.
    fn enters(&mut self, index: u32) -> bool {
        let Some((block, access)) = self.access(index) else { return true };
        self.lanes.enter(index, block, access)
    }

    fn access(&self, index: u32) -> Option<(BlockId, Access)> {
        match self.jobs[index].what {
            What::Read { slot, .. } => Some((self.geometry.block_of(slot), Access::Read)),
            What::Program { slot, .. } => Some((self.geometry.block_of(slot), Access::Program)),
            What::Finish { block } => Some((block, Access::Program)),
            What::Erase { block } => Some((block, Access::Erase)),
            What::Flush => None,
        }
    }

    /// Queues the first I/O of a job whose turn it is. An erase forgets only when its time has
    /// come, so that reads which the device executes before it have had theirs.
    fn begin(&mut self, index: u32, views: &mut Views, ring: &mut Ring) {
        let writes = matches!(self.jobs[index].what, What::Program { .. } | What::Finish { .. });
        if writes && !self.may_write() {
            return self.refuse_as_lost(index, ring);
        }
        let job = &mut self.jobs[index];
        job.step = Step::Bytes;
        if let Some(kept) = &mut self.kept {
            kept::begin(kept, &self.geometry, job.what);
        }
        let scratch = job.scratch.as_mut().expect("jobs of files have scratch memory");
        let on_fast = !matches!(job.what, What::Flush)
            && self.geometry.is_fast(block_of(&self.geometry, job.what));
        let (store, what) = route(&mut self.store, &mut self.fast, &self.geometry, job.what);
        job.io = match what {
            What::Erase { .. } => 0,
            // Some zoned disks read nothing where nothing is written, but an error.
            What::Read { slot, .. } if store.is_zoned() && self.nand.status(slot) == ERASED => 0,
            What::Read { slot, count } => {
                let to = read_target(job.into, count, scratch, views);
                let slot = match &mut self.injector {
                    Some(injector) if !on_fast => injector.read(slot, &self.geometry),
                    _ => slot,
                };
                store.read(index, (slot, count), to, scratch, ring)
            }
            What::Program { slot, count } => {
                let erase_count = self.nand.record(block_of(&self.geometry, job.what)).erase_count;
                let fate = match &mut self.injector {
                    Some(injector) if !on_fast => injector.program(slot, &self.geometry),
                    _ => Fate::Right,
                };
                match fate {
                    Fate::Lost => 0,
                    Fate::Right => store.program(index, (slot, count), erase_count, scratch, ring),
                    Fate::Astray(slot) => {
                        store.program(index, (slot, count), erase_count, scratch, ring)
                    }
                }
            }
            What::Finish { block } => store.finish(index, block, scratch, ring),
            What::Flush => store.sync(index, ring),
        };
        self.advance(index, ring);
    }

    /// A program of a server that has lost the device: it is not made.
    fn refuse_as_lost(&mut self, index: u32, ring: &mut Ring) {
        self.pass_over(index, MediumError::UnitGone, ring);
    }

    /// There was no room for the page before it, and who gave this program could not know. Pages that are
    /// missing between others would look damaged.
    fn refuse_for_space(&mut self, index: u32, ring: &mut Ring) {
        self.pass_over(index, MediumError::NoSpace, ring);
    }

    /// Ends a job that has its turn as if its I/O had failed.
    fn pass_over(&mut self, index: u32, error: MediumError, ring: &mut Ring) {
        let job = &mut self.jobs[index];
        (job.step, job.io, job.error) = (Step::Bytes, 0, Some(error));
        self.advance(index, ring);
    }

    /// What has been read of the end of a zone's change is replaced by what came of it.
    fn with_change(&mut self, done: Done) -> Done {
        let Store::Direct(store) = &mut self.store else { return done };
        match store.changed(done.index) {
            Some(0) | None => done,
            Some(code) => Done { result: code, ..done },
        }
    }

    /// Takes a job as far as it can go.
    fn advance(&mut self, index: u32, ring: &mut Ring) {
        loop {
            let job = &self.jobs[index];
            if job.io > 0 || !job.timed || matches!(job.step, Step::Waiting | Step::Done) {
                return;
            }
            let Some((step, io)) = self.next_step(index, ring) else {
                self.jobs[index].step = Step::Done;
                self.done.push_back(index);
                return;
            };
            let job = &mut self.jobs[index];
            (job.step, job.io) = (step, io);
        }
    }

    /// Queues the I/O of the step after the present one; `None` if that was the last.
    fn next_step(&mut self, index: u32, ring: &mut Ring) -> Option<(Step, u32)> {
        let writes = matches!(self.jobs[index].what, What::Program { .. } | What::Erase { .. });
        let to_come = matches!(self.jobs[index].step, Step::Bytes | Step::Mark | Step::Clear);
        if writes && to_come && !self.may_write() {
            self.jobs[index].error = Some(MediumError::UnitGone);
            return None;
        }
        let job = &mut self.jobs[index];
        let scratch = job.scratch.as_mut()?;
        let global = job.what;
        let (store, what) = route(&mut self.store, &mut self.fast, &self.geometry, global);
        match (what, job.step) {
            (What::Program { slot, count }, Step::Bytes) => {
                let record = self.nand.record(block_of(&self.geometry, global));
                let slots = (slot, count);
                let record =
                    store::record_after_program(store, slots, job.error, record, &self.geometry)?;
                let block = self.geometry.block_of(slot);
                Some((Step::Record, store.record(index, block, record, scratch, ring)))
            }
            (What::Erase { block }, Step::Bytes) if job.error.is_none() => {
                let after = self.nand.record(block_of(&self.geometry, global));
                let record = store::record_before_clear(&after, job.write_pointer);
                let io = match store.begin_erase(block) {
                    true => store.record(index, block, record, scratch, ring),
                    false => 0,
                };
                Some((Step::Mark, io))
            }
            (What::Erase { block }, Step::Mark) if job.error.is_none() => {
                Some((Step::Clear, store.clear(index, block, scratch, ring)))
            }
            (What::Erase { block }, Step::Bytes | Step::Mark | Step::Clear) => {
                let record =
                    store::record_after_erase(&self.nand.record(block_of(&self.geometry, global)));
                Some((Step::Record, store.record(index, block, record, scratch, ring)))
            }
            (What::Program { .. } | What::Erase { .. }, Step::Record) => {
                store.record_written(block_of(&self.geometry, what), ring);
                None
            }
            (What::Flush, Step::Bytes) if job.error.is_none() => {
                Some((Step::Record, store.read_generation(index, scratch, ring)))
            }
            (What::Flush, Step::Record) => {
                if !store.is_current(scratch) {
                    self.watch.iter_mut().for_each(Watch::look_now);
                    job.error = Some(MediumError::FlushFailed);
                }
                None
            }
            _ => None,
        }
    }

    /// Takes over what the emulated device has finished.
    fn tick(&mut self, now: Instant, ring: &mut Ring) {
        let of_flash = self.of_flash(now);
        while let Some(outcome) = self.nand.poll(of_flash) {
            let (tag, error) = match outcome {
                nand::Outcome::Read { tag, status, .. } => {
                    let job = &mut self.jobs[tag.0];
                    job.status = status.unwrap_or(SlotStatus::Uncorrectable);
                    (tag, status.err())
                }
                nand::Outcome::Program { tag, result, .. }
                | nand::Outcome::Erase { tag, result, .. } => (tag, result.err()),
                nand::Outcome::Flush { tag, result } => (tag, result.err()),
                nand::Outcome::Finish { tag } => (tag, None),
            };
            let job = &mut self.jobs[tag.0];
            job.error = error.or(job.error);
            let (flush, injector) = (matches!(job.what, What::Flush), &mut self.injector);
            if let Some(injector) = injector {
                if flush && injector.fails_flush() {
                    job.error = Some(MediumError::FlushFailed);
                }
                if injector.holds(now, tag.0) {
                    continue;
                }
            }
            job.timed = true;
            self.advance(tag.0, ring);
        }
        while let Some(index) = self.injector.as_mut().and_then(|injector| injector.release(now)) {
            self.jobs[index].timed = true;
            self.advance(index, ring);
        }
    }

    fn complete_read(
        &self,
        job: &Job,
        count: u32,
        views: &Views,
        take: &mut dyn FnMut(Completion<'_>),
    ) {
        // Most reads are of a slot or two: no need to clear room for a whole page.
        let (mut few, mut many);
        let slots = if count <= 4 {
            few = [NOT_READ; 4];
            &mut few[..count as usize]
        } else {
            many = [NOT_READ; SLOTS_MAX];
            &mut many[..count as usize]
        };
        let durable = self.is_durable(job);
        for (i, slot) in slots.iter_mut().enumerate() {
            slot.durable = durable;
            slot.oob = self.oob_read(job, i as u32);
            slot.crc = match (&self.kept, job.what) {
                (Some(kept), What::Read { slot: first, .. }) if job.kept => {
                    // It was sound when it was answered, or there is nothing.
                    kept.payload_crc(SlotId(first.0 + i as u32), &slot.oob).unwrap_or(0)
                }
                _ => flash::crc(target(job.into, i as u32, job.scratch.as_ref(), views)),
            };
            slot.status = self.status_of(job, i as u32);
            // What the rules call whole but the files hold no OOB of: its program never got to
            // the disk.
            if slot.oob == [0; OOB_BYTES] && slot.status != SlotStatus::Erased {
                slot.status = SlotStatus::Uncorrectable;
            }
            if let (None, Some(scratch)) = (job.into, &job.scratch) {
                slot.bytes = Some(data_slot(scratch, i as u32));
            }
        }
        take(Completion::Read { tag: job.tag, slots: Ok(slots) });
    }

    /// How slot `i` of a completed read came back. On a fast unit each has a status of its own.
    fn status_of(&self, job: &Job, i: u32) -> SlotStatus {
        match job.what {
            _ if job.damaged => SlotStatus::Uncorrectable,
            What::Read { slot, .. } if self.geometry.is_fast(self.geometry.block_of(slot)) => {
                self.nand.status(SlotId(slot.0 + i))
            }
            _ => job.status,
        }
    }

    /// The OOB of slot `i` of a completed read, zeroes if its page is not of the block's present
    /// life.
    fn oob_read(&self, job: &Job, i: u32) -> Oob {
        let What::Read { slot, .. } = job.what else { unreachable!("only reads have OOBs") };
        let block = self.geometry.block_of(slot);
        match (&self.store, &self.fast, &job.scratch) {
            (Store::Memory(_), ..) | (.., None) => job.oobs[i as usize],
            (_, Some(fast), Some(scratch)) if self.geometry.is_fast(block) => {
                let Store::Fast(store) = fast else {
                    unreachable!("fast units with memory of their own are on a fast store")
                };
                // Slots are counted from the first of the block, so its name does not matter.
                store.oob(scratch, slot, i)
            }
            (Store::Direct(store), _, Some(scratch)) => {
                let erase_count = self.nand.record(block).erase_count;
                store.oob(scratch, slot, i, erase_count)
            }
            (_, _, Some(scratch)) => oob_at(scratch, i),
        }
    }
}

impl Backend for Medium {
    fn full_file(&self) -> Option<&Path> {
        self.full.as_deref()
    }

    fn drop_fast(&mut self) {
        if let Some(mut kept) = self.kept.take() {
            kept.clear();
        }
        self.geometry = self.geometry.without_fast();
        self.fast = None;
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn health(&self) -> Health {
        // The fast units may have been let go of.
        self.nand.health().within(&self.geometry)
    }

    fn lost(&self) -> Option<Lost> {
        self.watch.as_ref()?.lost()
    }

    fn watch(&mut self) -> Option<&mut Watch> {
        self.watch.as_mut()
    }

    fn lends(&self) -> bool {
        matches!(self.store, Store::Memory(_))
    }

    fn will_read(&self, first: SlotId, slots: u32) {
        // A disk is read around the page cache, and what a fast tier holds is little.
        if let Store::File(store) = &self.store
            && !(self.fast.is_some() && self.geometry.is_fast(self.geometry.block_of(first)))
        {
            store.will_read(first, slots);
        }
    }

    fn lose(&mut self, at: Instant, fast: bool) {
        let slow = self.geometry.capacity_units();
        let units = if fast { slow..self.geometry.units } else { 0..slow };
        self.losses.push((at, units));
    }

    #[cfg(test)]
    fn program_failures(&self) -> u64 {
        self.nand.counters().program_failures
    }

    fn inject(&mut self, injections: Injections, shard: usize) {
        self.injector = injections.any().then(|| Box::new(Injector::new(injections, shard)));
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(Instant(0));
        }
        let held = self.injector.as_ref().and_then(|injector| injector.deadline());
        let of_flash = self.nand.deadline();
        let ends = of_flash.map(|at| Instant(at.0.saturating_mul(self.dilation)));
        ends.into_iter().chain(held).min()
    }

    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        views: &mut Views,
        ring: &mut Ring,
    ) {
        let oobs = self.rooms.pop().unwrap_or_default();
        let (what, into) = match command {
            Command::Read { slot, count, into, .. } => (What::Read { slot, count }, into),
            Command::Program { slot, count, .. } => (What::Program { slot, count }, None),
            Command::Erase { block, .. } => (What::Erase { block }, None),
            Command::Finish { block, .. } => (What::Finish { block }, None),
            Command::Flush { .. } => (What::Flush, None),
        };
        let write_pointer = match what {
            What::Erase { block } => self.nand.record(block).write_pointer,
            _ => 0,
        };
        let index = self.jobs.insert(Job {
            tag: command.tag(),
            what,
            into,
            io: 0,
            step: Step::Waiting,
            timed: false,
            error: None,
            scratch: None,
            oobs,
            write_pointer,
            status: SlotStatus::Erased,
            kept: false,
            refused: false,
            damaged: false,
        });
        if !self.losses.is_empty() {
            self.lose_what_is_due(now);
        }
        let of_flash = self.of_flash(now);
        if let Err(illegal) = self.nand.handle(of_flash, renamed(command, Tag(index))) {
            if matches!(illegal, nand::Illegal::ProgramBadBlock { .. }) && self.fails_untold(index)
            {
                self.refuse(index);
                return;
            }
            // The rules of the medium are the FTL's invariants: going on could harm data.
            panic!("the medium refused {command:?}: {illegal}");
        }
        if matches!(self.store, Store::Memory(_)) {
            self.start_in_memory(index, slots, views);
            return;
        }
        if self.answer_kept(index) {
            return;
        }
        let mut scratch = self.take_scratch();
        if let What::Program { .. } = what {
            fill_page(&mut scratch, slots, views);
        }
        self.jobs[index].scratch = Some(scratch);
        if self.enters(index) {
            self.begin(index, views, ring);
        }
    }

    fn io_done(&mut self, _: Instant, done: Done, ring: &mut Ring) {
        if done.index == fence::LOOK {
            self.watch.iter_mut().for_each(|watch| watch.ended(done));
            return;
        }
        let job = &mut self.jobs[done.index];
        job.io -= 1;
        let done = self.with_change(done);
        let done = self.with_fault(done);
        if self.is_damage(done) {
            self.jobs[done.index].damaged = true;
        } else if let Some(error) = self.judge(done) {
            self.fail_job(done.index, error);
        }
        self.advance(done.index, ring);
    }

    fn poll(
        &mut self,
        now: Instant,
        views: &mut Views,
        ring: &mut Ring,
        take: &mut dyn FnMut(Completion<'_>),
    ) -> bool {
        if self.done.is_empty() {
            self.tick(now, ring);
        }
        let Some(index) = self.done.pop_front() else { return false };
        let access = self.access(index);
        let mut job = self.jobs.remove(index);
        self.note_kept(&job);
        self.note_durable(index, &job);
        let took_turn = !job.kept && !job.refused && !matches!(self.store, Store::Memory(_));
        if let (Some((block, access)), true) = (access, took_turn) {
            self.lanes.leave(block, access);
            let full = job.error == Some(MediumError::NoSpace);
            while let Some(next) = self.lanes.admit(block) {
                if full && matches!(self.jobs[next].what, What::Program { .. }) {
                    self.refuse_for_space(next, ring);
                } else {
                    self.begin(next, views, ring);
                }
            }
        }
        let tag = job.tag;
        let result = job.error.map_or(Ok(()), Err);
        if let (Some(injector), What::Read { count, .. }) = (&mut self.injector, job.what) {
            flip(injector, &mut job, count, views);
        }
        self.forget_refused(&job);
        match job.what {
            What::Read { count, .. } => match result {
                Ok(()) => self.complete_read(&job, count, views, take),
                Err(error) => take(Completion::Read { tag, slots: Err(error) }),
            },
            What::Program { .. } => take(Completion::Program { tag, result }),
            What::Erase { .. } => take(Completion::Erase { tag, result }),
            What::Finish { .. } => take(Completion::Finish { tag }),
            What::Flush => take(Completion::Flush { tag, result }),
        }
        self.scratch.extend(job.scratch);
        job.oobs.clear();
        self.rooms.push(job.oobs);
        true
    }

    fn begin_mount(&mut self) {
        self.kept.iter_mut().for_each(KeptShard::begin_mount);
    }

    fn end_mount(&mut self) -> KeptCounts {
        self.kept.as_mut().map(KeptShard::end_mount).unwrap_or_default()
    }
}

/// The store that a command goes to, and the command as that store counts.
fn route<'a>(
    store: &'a mut Store,
    fast: &'a mut Option<Store>,
    geometry: &Geometry,
    what: What,
) -> (&'a mut Store, What) {
    let of_fast = !matches!(what, What::Flush) && geometry.is_fast(block_of(geometry, what));
    let Some(fast) = fast.as_mut().filter(|_| of_fast) else { return (store, what) };
    let own = |slot| geometry.slot_in_fast_alone(slot);
    let what = match what {
        What::Read { slot, count } => What::Read { slot: own(slot), count },
        What::Program { slot, count } => What::Program { slot: own(slot), count },
        What::Erase { block } => What::Erase { block: geometry.block_in_fast_alone(block) },
        What::Finish { .. } | What::Flush => what,
    };
    (fast, what)
}

/// The block of a command that has one.
fn block_of(geometry: &Geometry, what: What) -> BlockId {
    match what {
        What::Read { slot, .. } | What::Program { slot, .. } => geometry.block_of(slot),
        What::Erase { block } | What::Finish { block } => block,
        What::Flush => unreachable!("a flush is of no block"),
    }
}

const ERASED: SlotStatus = SlotStatus::Erased;

/// A slot of which nothing is known.
const NOT_READ: SlotRead<'static> = SlotRead {
    status: SlotStatus::Erased,
    oob: [0; OOB_BYTES],
    crc: 0,
    bytes: None,
    durable: false,
};

/// Most slots of a page ([`Geometry::validate`]).
const SLOTS_MAX: usize = 64;

fn renamed(command: Command, tag: Tag) -> Command {
    match command {
        Command::Read { slot, count, into, urgent, .. } => {
            Command::Read { tag, slot, count, into, urgent }
        }
        Command::Program { slot, count, .. } => Command::Program { tag, slot, count },
        Command::Erase { block, .. } => Command::Erase { tag, block },
        Command::Finish { block, .. } => Command::Finish { tag, block },
        Command::Flush { .. } => Command::Flush { tag },
    }
}

/// Copies a page to scratch memory: OOBs in block 0, slot `i` in block `i + 1`.
fn fill_page(scratch: &mut Buffer, slots: &[SlotWrite], views: &Views) {
    for (i, slot) in slots.iter().enumerate() {
        scratch.bytes_mut()[i * OOB_BYTES..][..OOB_BYTES].copy_from_slice(&slot.oob);
        memory::copy_slot(data_slot_mut(scratch, i as u32), &slot.data, views);
    }
}

fn oob_at(scratch: &Buffer, index: u32) -> Oob {
    let start = index as usize * OOB_BYTES;
    scratch.bytes()[start..start + OOB_BYTES].try_into().expect("the slice has this length")
}

fn data_slot(scratch: &Buffer, index: u32) -> &[u8] {
    &scratch.bytes()[(index as usize + 1) * BLOCK_BYTES..][..BLOCK_BYTES]
}

fn data_slot_mut(scratch: &mut Buffer, index: u32) -> &mut [u8] {
    &mut scratch.bytes_mut()[(index as usize + 1) * BLOCK_BYTES..][..BLOCK_BYTES]
}

fn read_target(
    into: Option<Payload>,
    count: u32,
    scratch: &mut Buffer,
    views: &mut Views,
) -> *mut u8 {
    match into {
        Some(into) => views.span(into, count),
        None => data_slot_mut(scratch, 0).as_mut_ptr(),
    }
}

fn target<'a>(
    into: Option<Payload>,
    i: u32,
    scratch: Option<&'a Buffer>,
    views: &'a Views,
) -> &'a [u8] {
    match (into, scratch) {
        (Some(into), _) => views.block(Payload { index: into.index + i, ..into }),
        (None, Some(scratch)) => data_slot(scratch, i),
        (None, None) => unreachable!("a read without a target has scratch memory"),
    }
}

fn errno(code: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(code)
}

#[cfg(test)]
mod kept_tests;
#[cfg(test)]
mod tests;
