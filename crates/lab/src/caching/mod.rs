//! A traditional write-back cache before a device, as bcache and Open CAS are: fixed lines of a block
//! each on a device that overwrites in place, what each holds and whether it is dirty written beside the
//! data, dirty lines cleaned in the order of their addresses. A baseline of the lab, as a target.
//!
//! - Write: the processor (command and lines), a line for each block that has none (free, or the clean
//!   one used least recently; if there are too few, it waits until cleaning made some, first come, first
//!   served), data to the lines, and metadata if a line changed what it holds or became dirty. It is
//!   acknowledged when both are written.
//! - Read: processor; from the lines what they hold, the rest from the device behind, which then goes
//!   to lines of its own if there are any. The read does not wait for those.
//! - A stream of large sequential writes goes past the cache, as far as no dirty line is concerned.
//! - Cleaning: above `clean_above` dirty lines, and with all its depth above `clean_full` or when
//!   writers wait. Dirty neighbours, up to `clean_bytes` and not across a multiple of that, are read
//!   from the lines and written behind as one, then the metadata says so. A line that was written
//!   meanwhile stays dirty.
//! - Flush: nothing to wait for, as lines and metadata are durable. Trims go to the device behind where
//!   no line holds anything.
//!
//! Invariants:
//! - data acknowledged and not behind yet is in a dirty line;
//! - a line whose data is on its way (in or out) is not given to another block;
//! - a read that fetched a block keeps it only if nobody wrote near it meanwhile.

mod config;
mod in_place;
mod lines;
mod streams;

pub use config::CachingConfig;
pub use in_place::InPlace;

use crate::driver::Failure;
use crate::ssd::serial::Pool;
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use flash::{BLOCK_BYTES, Hint, Instant, RequestError, Slab};
use lines::{Lines, NONE};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use streams::Streams;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks whose writes are counted together, to see whether what a read fetched is still true.
const REGION_BLOCKS: u32 = 16;

/// See the head of this file.
pub struct Caching<F, S> {
    fast: F,
    slow: S,
    config: CachingConfig,
    now: Instant,
    lines: Lines,
    /// Where metadata begins on the fast device.
    metadata: u64,
    processor: Pool,
    /// Time, number, what: earliest first.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    event_last: u64,
    commands: Slab<Command>,
    jobs: Slab<Clean>,
    parts: Slab<Part>,
    streams: Streams,
    /// Writes that wait for lines.
    waiting: VecDeque<u32>,
    /// Jobs under way.
    cleaning: u32,
    /// Cleaning goes on from this block.
    cursor: u32,
    /// Writes so far of each region.
    writes: Vec<u32>,
    /// Writes and trims past the cache that are under way.
    past: u32,
    failed: Option<RequestError>,
    counts: Counts,
    done: VecDeque<Done>,
    #[cfg(test)]
    trace: Vec<tests::Moved>,
}

/// What it did so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes_written: u64,
    blocks_read: u64,
    blocks_hit: u64,
    blocks_cleaned: u64,
    bytes_past: u64,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    token: u64,
    io: Io,
    first: u32,
    end: u32,
    parts_left: u32,
    result: Result<(), RequestError>,
    /// It belongs to a stream that does.
    goes_past: bool,
}

/// Dirty neighbours on their way behind.
#[derive(Clone, Copy, Debug)]
struct Clean {
    first: u32,
    end: u32,
    parts_left: u32,
    stage: Stage,
    result: Result<(), RequestError>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// From the lines.
    Reads,
    /// To the device behind.
    Writes,
    /// That they are clean.
    Notes,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// The processor is done with a command.
    Decided(u32),
    /// The processor is done with a cleaning job.
    Cleans(u32),
}

/// An I/O on one of the devices.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Of a command, with the blocks whose lines it uses or that it fetches.
    Command { command: u32, first: u32, blocks: u32, use_of: Use },
    /// Of a cleaning job.
    Job(u32),
    /// Blocks that a read fetched, on their way to lines.
    Fill { first: u32, blocks: u32 },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Use {
    LineRead,
    LineWrite,
    Metadata,
    /// From behind; the sum of writes of its regions when it began.
    Fetch(u32),
    Past,
}

impl<F: Target, S: Target> Caching<F, S> {
    /// A cache on `fast`, which is used up to its metadata, before `slow`.
    pub fn new(fast: F, slow: S, config: CachingConfig) -> Self {
        let blocks = (slow.bytes() / BLOCK) as u32;
        // 16 bytes a line lie behind the lines.
        let lines = fast.bytes() / (BLOCK + 16);
        Self {
            now: fast.now().max(slow.now()),
            lines: Lines::new(lines as u32, blocks),
            metadata: lines * BLOCK,
            processor: Pool::new(config.cores),
            events: BinaryHeap::new(),
            event_last: 0,
            commands: Slab::default(),
            jobs: Slab::default(),
            parts: Slab::default(),
            streams: Streams::default(),
            waiting: VecDeque::new(),
            cleaning: 0,
            cursor: 0,
            writes: vec![0; blocks.div_ceil(REGION_BLOCKS) as usize],
            past: 0,
            failed: None,
            counts: Counts::default(),
            done: VecDeque::new(),
            fast,
            slow,
            config,
            #[cfg(test)]
            trace: Vec::new(),
        }
    }

    fn schedule(&mut self, lines: u32, event: Event) {
        let ns = self.config.command_ns + u64::from(lines) * self.config.line_ns;
        let at = self.processor.take(self.now, ns);
        self.event_last += 1;
        self.events.push(Reverse((at.0, self.event_last, event)));
    }

    fn end(&mut self, token: u64, result: Result<(), RequestError>) {
        self.done.push_back(Done { token, result, at: self.now });
    }

    fn decided(&mut self, command: u32) -> Result<(), Failure> {
        let Command { io, goes_past, .. } = self.commands[command];
        match io.kind {
            IoKind::Read => self.read(command),
            IoKind::Write if goes_past && self.forget(command) => self.go_past(command),
            IoKind::Write if !self.waiting.is_empty() || !self.write(command)? => {
                self.waiting.push_back(command);
                self.clean();
                Ok(())
            }
            IoKind::Write => {
                self.clean();
                Ok(())
            }
            IoKind::Erase => self.trim(command),
            IoKind::Flush => {
                self.commands[command].result = self.failed.take().map_or(Ok(()), Err);
                self.end_command(command);
                Ok(())
            }
        }
    }

    /// Drops the clean lines of a command up to the first that is not clean; true if there is none.
    fn forget(&mut self, command: u32) -> bool {
        let Command { first, end, .. } = self.commands[command];
        (first..end).all(|block| self.lines.forget(block))
    }

    fn note_writes(&mut self, first: u32, end: u32) {
        for region in first / REGION_BLOCKS..end.div_ceil(REGION_BLOCKS) {
            self.writes[region as usize] = self.writes[region as usize].wrapping_add(1);
        }
    }

    /// Writes near these blocks so far.
    fn writes_near(&self, first: u32, end: u32) -> u32 {
        let regions = first / REGION_BLOCKS..end.div_ceil(REGION_BLOCKS);
        regions.fold(0, |sum, region| sum.wrapping_add(self.writes[region as usize]))
    }

    fn go_past(&mut self, command: u32) -> Result<(), Failure> {
        let Command { io, first, end, .. } = self.commands[command];
        self.note_writes(first, end);
        self.counts.bytes_past += io.bytes;
        self.behind(command, first..end, Use::Past, io)
    }

    fn behind(
        &mut self,
        command: u32,
        blocks: Range<u32>,
        use_of: Use,
        io: Io,
    ) -> Result<(), Failure> {
        let (first, count) = (blocks.start, blocks.len() as u32);
        self.past += u32::from(use_of == Use::Past);
        self.commands[command].parts_left += 1;
        let part = self.parts.insert(Part::Command { command, first, blocks: count, use_of });
        let (offset, bytes) = (u64::from(first) * BLOCK, u64::from(count) * BLOCK);
        #[cfg(test)]
        self.trace.push(tests::Moved::Command {
            token: self.commands[command].token,
            first,
            count,
        });
        self.slow.submit(self.now, u64::from(part), Io { offset, bytes, ..io })
    }

    /// Takes lines for a write and sends it to them; false if there are too few.
    fn write(&mut self, command: u32) -> Result<bool, Failure> {
        let Command { first, end, .. } = self.commands[command];
        // What it hits is held first, so that it does not take those for the rest.
        let mut missing = 0;
        let mut changes = false;
        for block in first..end {
            match self.lines.find(block) {
                NONE => missing += 1,
                line => {
                    changes |= !self.lines.is_dirty(line);
                    self.lines.hold(line, false);
                }
            }
        }
        let fits = missing <= self.lines.available();
        for block in first..end {
            let mut line = self.lines.find(block);
            if line != NONE {
                self.lines.release(line, false);
            } else if fits {
                line = self.lines.take(block).expect("there are enough");
                changes = true;
            }
            if fits {
                self.lines.hold(line, true);
            }
        }
        if !fits {
            return Ok(false);
        }
        self.note_writes(first, end);
        self.use_lines(command, first..end, Use::LineWrite)?;
        if changes {
            let at = self.metadata_of(self.lines.find(first));
            self.commands[command].parts_left += 1;
            let (blocks, use_of) = (0, Use::Metadata);
            let part = self.parts.insert(Part::Command { command, first, blocks, use_of });
            self.fast.submit(self.now, u64::from(part), at)?;
        }
        Ok(true)
    }

    /// A write of the block of metadata that tells of a line.
    fn metadata_of(&self, line: u32) -> Io {
        let entry = u64::from(line) * 16;
        let block = (self.fast.bytes() - self.metadata) / BLOCK;
        let offset = self.metadata + (entry / BLOCK).min(block.saturating_sub(1)) * BLOCK;
        Io { kind: IoKind::Write, offset, bytes: BLOCK, hint: Hint::default() }
    }

    /// Reads or writes the lines of blocks, those that lie side by side as one.
    fn use_lines(&mut self, command: u32, blocks: Range<u32>, use_of: Use) -> Result<(), Failure> {
        let kind = if use_of == Use::LineRead { IoKind::Read } else { IoKind::Write };
        for run in self.line_runs(blocks) {
            let (first, blocks) = (run.start, run.len() as u32);
            #[cfg(test)]
            self.note_run(Some(self.commands[command].token), &run, kind);
            self.commands[command].parts_left += 1;
            let part = self.parts.insert(Part::Command { command, first, blocks, use_of });
            let io = self.line_io(kind, &run);
            self.fast.submit(self.now, u64::from(part), io)?;
        }
        Ok(())
    }

    /// These blocks, all of which are in lines, cut where the lines do not follow each other.
    fn line_runs(&self, blocks: Range<u32>) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for block in blocks {
            let line = self.lines.find(block);
            match runs.last_mut() {
                Some(run) if self.lines.find(run.end - 1) + 1 == line => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    fn line_io(&self, kind: IoKind, run: &Range<u32>) -> Io {
        let offset = u64::from(self.lines.find(run.start)) * BLOCK;
        Io { kind, offset, bytes: run.len() as u64 * BLOCK, hint: Hint::default() }
    }

    fn read(&mut self, command: u32) -> Result<(), Failure> {
        let Command { io, first, end, .. } = self.commands[command];
        self.counts.blocks_read += u64::from(end - first);
        let mut block = first;
        // It does not end while it is being cut.
        self.commands[command].parts_left += 1;
        while block < end {
            let is_hit = self.lines.find(block) != NONE;
            let alike = |&next: &u32| (self.lines.find(next) != NONE) == is_hit;
            let next = block + (block..end).take_while(alike).count() as u32;
            if is_hit {
                self.counts.blocks_hit += u64::from(next - block);
                (block..next).for_each(|block| self.lines.hold(self.lines.find(block), false));
                self.use_lines(command, block..next, Use::LineRead)?;
            } else {
                let near = self.writes_near(block, next);
                self.behind(command, block..next, Use::Fetch(near), io)?;
            }
            block = next;
        }
        self.end_part(command, Ok(()));
        Ok(())
    }

    /// What a read fetched goes to lines, if nobody wrote near it and there are lines.
    fn fill(&mut self, first: u32, end: u32, near: u32) -> Result<(), Failure> {
        let is_true = self.past == 0
            && self.writes_near(first, end) == near
            && (first..end).all(|block| self.lines.find(block) == NONE);
        // Writers come first.
        if !is_true || !self.waiting.is_empty() || self.lines.available() < end - first {
            return Ok(());
        }
        for block in first..end {
            let line = self.lines.take(block).expect("there are enough");
            self.lines.hold(line, false);
            #[cfg(test)]
            self.trace.push(tests::Moved::Filled { line, block });
        }
        for run in self.line_runs(first..end) {
            let part = Part::Fill { first: run.start, blocks: run.len() as u32 };
            let part = self.parts.insert(part);
            let io = self.line_io(IoKind::Write, &run);
            self.fast.submit(self.now, u64::from(part), io)?;
        }
        Ok(())
    }

    fn trim(&mut self, command: u32) -> Result<(), Failure> {
        let Command { io, first, end, .. } = self.commands[command];
        self.note_writes(first, end);
        self.commands[command].parts_left += 1;
        let mut block = first;
        while block < end {
            let is_free = self.lines.forget(block);
            let mut next = block + 1;
            while is_free && next < end && self.lines.forget(next) {
                next += 1;
            }
            if is_free {
                self.behind(command, block..next, Use::Past, io)?;
            }
            block = next;
        }
        self.end_part(command, Ok(()));
        Ok(())
    }

    /// Jobs that may be under way now.
    fn depth(&self) -> u32 {
        let CachingConfig { clean_above, clean_full, clean_depth, .. } = self.config;
        let dirty = self.lines.dirty_share() * 100.0;
        if !self.waiting.is_empty() || dirty >= clean_full {
            return clean_depth;
        }
        if dirty <= clean_above {
            return 0;
        }
        let share = (dirty - clean_above) / (clean_full - clean_above);
        1 + (f64::from(clean_depth - 1) * share) as u32
    }

    /// Begins cleaning jobs.
    fn clean(&mut self) {
        let depth = self.depth();
        // Dirty blocks that are being cleaned already are passed over, all of them once at most.
        let mut wrapped = false;
        while self.cleaning < depth {
            let first = self.lines.next_dirty(self.cursor);
            if first == NONE {
                if wrapped {
                    return;
                }
                (wrapped, self.cursor) = (true, 0);
                continue;
            }
            self.cursor = first + 1;
            if !self.lines.begin_clean(first) {
                continue;
            }
            let unit = (self.config.clean_bytes / BLOCK) as u32;
            let bound = first - first % unit + unit;
            let mut end = first + 1;
            while end < bound && (end as usize) < self.blocks() && self.lines.begin_clean(end) {
                end += 1;
            }
            self.cursor = end;
            let (parts_left, stage) = (0, Stage::Reads);
            let job = self.jobs.insert(Clean { first, end, parts_left, stage, result: Ok(()) });
            self.cleaning += 1;
            self.schedule(end - first, Event::Cleans(job));
        }
    }

    fn blocks(&self) -> usize {
        (self.slow.bytes() / BLOCK) as usize
    }

    fn clean_reads(&mut self, job: u32) -> Result<(), Failure> {
        let Clean { first, end, .. } = self.jobs[job];
        let runs = self.line_runs(first..end);
        self.jobs[job].parts_left = runs.len() as u32;
        for run in runs {
            #[cfg(test)]
            self.note_run(None, &run, IoKind::Read);
            let part = self.parts.insert(Part::Job(job));
            let io = self.line_io(IoKind::Read, &run);
            self.fast.submit(self.now, u64::from(part), io)?;
        }
        Ok(())
    }

    fn job_part(&mut self, index: u32, result: Result<(), RequestError>) -> Result<(), Failure> {
        let job = &mut self.jobs[index];
        job.parts_left -= 1;
        job.result = job.result.and(result);
        if job.parts_left > 0 {
            return Ok(());
        }
        let Clean { first, end, stage, result, .. } = *job;
        let (offset, bytes) = (u64::from(first) * BLOCK, u64::from(end - first) * BLOCK);
        match stage {
            _ if result.is_err() => self.cleaned(index),
            Stage::Reads => {
                (job.stage, job.parts_left) = (Stage::Writes, 1);
                let part = self.parts.insert(Part::Job(index));
                let io = Io { kind: IoKind::Write, offset, bytes, hint: Hint::default() };
                self.slow.submit(self.now, u64::from(part), io)
            }
            Stage::Writes => {
                #[cfg(test)]
                self.trace.push(tests::Moved::Behind { first, end });
                let job = &mut self.jobs[index];
                (job.stage, job.parts_left) = (Stage::Notes, 1);
                let part = self.parts.insert(Part::Job(index));
                let io = self.metadata_of(self.lines.find(first));
                self.fast.submit(self.now, u64::from(part), io)
            }
            Stage::Notes => self.cleaned(index),
        }
    }

    /// A job is over: writers may find lines.
    fn cleaned(&mut self, index: u32) -> Result<(), Failure> {
        let Clean { first, end, result, .. } = self.jobs[index];
        self.jobs.remove(index);
        self.failed = self.failed.or(result.err());
        (first..end).for_each(|block| self.lines.end_clean(block, result.is_ok()));
        self.counts.blocks_cleaned += u64::from(end - first);
        self.cleaning -= 1;
        self.admit()?;
        self.clean();
        Ok(())
    }

    fn admit(&mut self) -> Result<(), Failure> {
        while let Some(&command) = self.waiting.front() {
            if !self.write(command)? {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn end_part(&mut self, index: u32, result: Result<(), RequestError>) {
        let command = &mut self.commands[index];
        command.parts_left -= 1;
        command.result = command.result.and(result);
        if command.parts_left == 0 {
            self.end_command(index);
        }
    }

    fn end_command(&mut self, index: u32) {
        let Command { token, result, .. } = self.commands[index];
        self.commands.remove(index);
        self.end(token, result);
    }

    fn ended(&mut self, part: u32, result: Result<(), RequestError>) -> Result<(), Failure> {
        let ended = self.parts[part];
        self.parts.remove(part);
        match ended {
            Part::Job(job) => self.job_part(job, result),
            Part::Fill { first, blocks } => {
                self.release(first, blocks, false);
                self.admit()
            }
            Part::Command { command, first, blocks, use_of } => {
                self.end_part(command, result);
                match use_of {
                    Use::LineRead | Use::LineWrite => {
                        self.release(first, blocks, use_of == Use::LineWrite);
                        self.admit()
                    }
                    Use::Fetch(near) if result.is_ok() => self.fill(first, first + blocks, near),
                    Use::Past => {
                        // What a read fetched meanwhile may be older.
                        self.past -= 1;
                        self.note_writes(first, first + blocks);
                        Ok(())
                    }
                    Use::Fetch(_) | Use::Metadata => Ok(()),
                }
            }
        }
    }

    fn release(&mut self, first: u32, blocks: u32, wrote: bool) {
        for block in first..first + blocks {
            self.lines.release(self.lines.find(block), wrote);
        }
    }

    fn collect(&mut self) -> Result<(), Failure> {
        loop {
            let Some(done) = self.fast.take_done().or_else(|| self.slow.take_done()) else {
                return Ok(());
            };
            self.ended(done.token as u32, done.result)?;
        }
    }
}

impl<F: Target, S: Target> Target for Caching<F, S> {
    fn bytes(&self) -> u64 {
        self.slow.bytes()
    }

    fn flash_bytes(&self) -> u64 {
        self.slow.flash_bytes()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn foresee(&self, ios: &[Io]) {
        self.slow.foresee(ios);
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        if !io.is_within(self.bytes()) {
            self.end(token, Err(RequestError::OutOfRange));
            return Ok(());
        }
        let (first, end) =
            ((io.offset / BLOCK) as u32, (io.offset + io.bytes).div_ceil(BLOCK) as u32);
        if io.kind == IoKind::Write {
            self.counts.bytes_written += io.bytes;
        }
        let (parts_left, goes_past) = (0, false);
        let command = Command { token, io, first, end, parts_left, result: Ok(()), goes_past };
        // What goes past touches no line.
        let goes_past = io.kind == IoKind::Write && self.streams.goes_past(&io, &self.config);
        let command = self.commands.insert(Command { goes_past, ..command });
        self.schedule(if goes_past { 0 } else { end - first }, Event::Decided(command));
        self.advance(now)
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        let own = self.events.peek().map(|&Reverse((at, ..))| Instant(at));
        own.into_iter().chain(self.fast.deadline()).chain(self.slow.deadline()).min()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        loop {
            self.collect()?;
            let own = self.events.peek().map(|&Reverse((at, ..))| Instant(at));
            let (fast, slow) = (self.fast.deadline(), self.slow.deadline());
            let next = own.into_iter().chain(fast).chain(slow).min();
            let Some(next) = next.filter(|&next| next <= now) else { break };
            self.now = self.now.max(next);
            if fast.is_some_and(|at| at <= self.now) {
                self.fast.advance(self.now)?;
            } else if slow.is_some_and(|at| at <= self.now) {
                self.slow.advance(self.now)?;
            } else if let Some(Reverse((_, _, event))) = self.events.pop() {
                match event {
                    Event::Decided(command) => self.decided(command)?,
                    Event::Cleans(job) => self.clean_reads(job)?,
                }
            }
        }
        // "Whenever" moves nothing on.
        if now != Instant(u64::MAX) {
            self.now = self.now.max(now);
        }
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        let (fast, slow) = (self.fast.counts(), self.slow.counts());
        TargetCounts {
            bytes_written: self.counts.bytes_written,
            bytes_programmed: fast.bytes_programmed + slow.bytes_programmed,
            bytes_programmed_fast: fast.bytes_programmed,
            ..slow
        }
    }

    fn counter(&self, name: &str) -> u64 {
        match name {
            "cache_blocks_read" => self.counts.blocks_read,
            "cache_blocks_hit" => self.counts.blocks_hit,
            "cache_blocks_cleaned" => self.counts.blocks_cleaned,
            "cache_bytes_past" => self.counts.bytes_past,
            _ => self.slow.counter(name),
        }
    }

    fn erase_count_max(&self) -> u32 {
        self.slow.erase_count_max()
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.waiting.len() as u32 + self.slow.queue_at(offset)
    }
}

#[cfg(test)]
mod tests;
