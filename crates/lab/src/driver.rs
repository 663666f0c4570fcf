//! The virtual-time driver: one core (the FTL, or raw units), one simulated medium, one event loop. It is to the lab what
//! the real-time driver is to the server, and gives the same inputs to the same FTL.
//!
//! Invariants:
//! - Time never goes back, and stands still while there is output to carry out.
//! - At one instant completions come before deadlines. Those of one instant are given together,
//!   and their outputs are carried out before any other input but the host's: the same submissions
//!   give the same run, to the bit ([`Sim::trace_hash`]).
//! - Every request is answered exactly once, within a bound of media time ([`Sim::set_patience`]); an
//!   answer to no request, and a command that the medium refuses, are failures of the FTL ([`Failure`]).

use crate::checker::{TraceHash, verify_counts, verify_status};
use crate::medium::{Buffers, DoneCounts, Ended, GARBAGE, Medium, SimMedium, stamp_crc};
use crate::model::ZERO;
use crate::snapshots::SnapshotEnd;
use flash::{
    Command, Hint, Instant, Lba, Operation, Payload, Reply, Request, RequestError, RequestId,
    SECOND, SlotWrite,
};
use ftl::raw::{RawFormat, RawSettings, RawUnits};
use ftl::{Core, FormatOptions, Ftl, Input, MountError, MountReport, Output, Rebuilt, Settings};
use std::collections::VecDeque;
use std::sync::Arc;

/// The FTL broke a promise, or the rules of its medium. Says which.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Something to do to an FTL before its first step: how a test plants a bug that the checks must
/// find. Does nothing by default.
#[derive(Clone, Default)]
pub struct Plant(Option<Arc<ChangeFtl>>);

type ChangeFtl = dyn Fn(&mut Ftl) + Send + Sync;

impl Plant {
    /// Plants what `plant` does.
    pub fn new(plant: impl Fn(&mut Ftl) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(plant)))
    }

    /// Does it.
    pub fn apply(&self, ftl: &mut Ftl) {
        if let Some(plant) = &self.0 {
            plant(ftl);
        }
    }
}

impl std::fmt::Debug for Plant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Plant(something)" } else { "Plant(nothing)" })
    }
}

/// What one [`Sim::step`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// A read was handed to the medium, or ended: the medium is as it was.
    Read,
    /// A program, erase or flush was handed over, or ended.
    Change,
    /// The host got an answer.
    Reply,
    /// Anything else: a deadline, the end of a mount or of a shutdown.
    Other,
    /// Nothing is due up to the limit of the step.
    Idle,
}

/// How far the FTL's life has come.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Formats or mounts.
    Starting,
    /// Takes requests.
    Ready(MountReport),
    /// Could not be mounted.
    Refused(MountError),
    /// Shut down; true if everything is durable.
    Stopped(bool),
}

/// A host operation that ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// What the caller gave at submission.
    pub token: u64,
    /// What was asked.
    pub request: Request,
    /// The answer.
    pub result: Result<(), RequestError>,
    /// When it was asked.
    pub submitted: Instant,
    /// When it was answered.
    pub finished: Instant,
    /// The buffer, until [`Sim::release`].
    buffer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    token: u64,
    request: Request,
    submitted: Instant,
}

/// See the head of this file.
pub struct Sim<C: Core = Ftl, M: Medium = SimMedium> {
    ftl: C,
    settings: C::Settings,
    medium: M,
    /// What the medium had done before this FTL.
    done_before: DoneCounts,
    buffers: Buffers,
    buffers_free: Vec<u32>,
    /// By buffer: a request id is `count << 32 | buffer`, so a stale or doubled answer is noticed.
    pending: Vec<Option<Pending>>,
    /// Requests in the order they came, those at the front without an answer.
    oldest: VecDeque<RequestId>,
    patience_ns: u64,
    in_flight: u32,
    submitted: u64,
    finished: VecDeque<Finished>,
    checksums: Vec<u32>,
    now: Instant,
    state: State,
    /// The end of a detach, if there was one.
    detached: Option<bool>,
    labelled: Option<bool>,
    /// The ends of orders about snapshots, oldest first.
    pub(crate) snapshot_ends: VecDeque<SnapshotEnd>,
    /// The FTL's last word was an output: there may be more.
    draining: bool,
    trace: TraceHash,
    /// Deadlines in a row that led to nothing.
    fruitless: u32,
    /// When the next thing is due, if nothing has happened since that was found out (and there was no
    /// output): asked more often than it changes.
    due: Option<Due>,
}

/// When the medium and the FTL want to go on.
#[derive(Clone, Copy, Debug)]
struct Due {
    medium: Option<Instant>,
    ftl: Option<Instant>,
}

impl Due {
    fn first(self) -> Option<Instant> {
        self.medium.into_iter().chain(self.ftl).min()
    }
}

/// An FTL that asks this often for a deadline, and then does nothing with it, will never go on.
const FRUITLESS_MAX: u32 = 100_000;

/// How long a request may take, in media time: what takes longer is taken to be stuck. An open loop
/// beyond what the device can do has queues that take minutes.
const PATIENCE_NS: u64 = 3600 * SECOND;

/// A device that takes this many steps without one answer works for itself only.
const FRUITLESS_STEPS_MAX: u32 = 1_000_000;

/// Most blocks of a request to the FTL that the driver takes.
pub const REQUEST_BLOCKS_MAX: u32 = 256;

impl Sim<Ftl> {
    /// Formats `medium`. Step until [`Sim::state`] is `Ready`, or call [`Sim::run_until_ready`].
    pub fn format(
        medium: SimMedium,
        options: FormatOptions,
        settings: Settings,
        now: Instant,
    ) -> Result<Self, Failure> {
        let ftl = Ftl::format(*medium.geometry(), &medium.health(), options, settings.clone());
        let ftl = ftl.map_err(|why| Failure(format!("format was refused: {why}")))?;
        Ok(Self::new(ftl, medium, REQUEST_BLOCKS_MAX, settings.relocation_blocks, settings, now))
    }

    /// Mounts what `medium` holds.
    pub fn mount(medium: SimMedium, settings: Settings, now: Instant) -> Result<Self, Failure> {
        let ftl = Ftl::mount(*medium.geometry(), &medium.health(), settings.clone());
        let ftl = ftl.map_err(|why| Failure(format!("mount was refused: {why}")))?;
        Ok(Self::new(ftl, medium, REQUEST_BLOCKS_MAX, settings.relocation_blocks, settings, now))
    }

    /// Steps until the FTL knows what is valid: see [`Ftl::is_counting`].
    pub fn run_until_counted(&mut self) -> Result<(), Failure> {
        while self.ftl.is_counting() {
            if self.step(Instant(u64::MAX))? == Step::Idle && self.ftl.is_counting() {
                let state = self.ftl.explain();
                return Err(Failure(format!("what is valid is never counted: {state}")));
            }
        }
        Ok(())
    }

    /// What the mount, or the count after it, rebuilt.
    pub fn rebuilt(&mut self) -> Result<Option<Rebuilt>, Failure> {
        let report = self.run_until_ready()?.rebuilt;
        self.run_until_counted()?;
        Ok(report.or(self.ftl.rebuilt_late()))
    }

    /// Checks what must hold of the FTL between any two steps, see [`crate::checker`]. Walks the
    /// map: for small devices.
    pub fn verify(&self) -> Result<(), Failure> {
        self.ftl.verify().map_err(Failure)?;
        let status = self.ftl.status();
        verify_status(&status, &self.ftl.bands())?;
        verify_counts(&status, self.done_before, self.medium.done())
    }
}

impl Sim<RawUnits> {
    /// Formats `medium` as raw units.
    pub fn format_raw(
        medium: SimMedium,
        format: RawFormat,
        settings: RawSettings,
        now: Instant,
    ) -> Result<Self, Failure> {
        let raw_block = medium.geometry().slots_per_block() * format.gang;
        let raw = RawUnits::format(*medium.geometry(), &medium.health(), format, settings.clone());
        let raw = raw.map_err(|why| Failure(format!("format was refused: {why}")))?;
        Ok(Self::new(raw, medium, raw_block, 0, settings, now))
    }

    /// Mounts the raw units that `medium` holds, `gang` units to a lane.
    pub fn mount_raw(
        medium: SimMedium,
        gang: u32,
        settings: RawSettings,
        now: Instant,
    ) -> Result<Self, Failure> {
        let raw_block = medium.geometry().slots_per_block() * gang;
        let raw = RawUnits::mount(*medium.geometry(), &medium.health(), settings.clone());
        let raw = raw.map_err(|why| Failure(format!("mount was refused: {why}")))?;
        Ok(Self::new(raw, medium, raw_block, 0, settings, now))
    }

    /// Checks what must hold of raw units between any two steps. Walks the blocks.
    pub fn verify(&self) -> Result<(), Failure> {
        self.ftl.verify().map_err(Failure)?;
        let (before, done) = (self.done_before, self.medium.done());
        let counted = [
            ("erases", done.erases - before.erases),
            ("slots_programmed", done.slots_programmed - before.slots_programmed),
        ];
        for (name, done) in counted {
            let count = self.ftl.counter(name);
            if count != done {
                return Err(Failure(format!("{count} {name} counted, {done} done")));
            }
        }
        Ok(())
    }
}

impl<C: Core> Sim<C> {
    /// The fast units are taken away from the medium: nothing needs them any more.
    pub fn drop_fast(&mut self) {
        self.medium.drop_fast();
    }

    /// `unit` stops answering.
    pub fn kill_unit(&mut self, unit: u32) {
        self.due = None;
        self.medium.kill_unit(unit);
    }
}

impl<C: Core, M: Medium> Sim<C, M> {
    /// Drives `ftl`, whose format or mount has just begun, on `medium`.
    pub fn new(
        ftl: C,
        mut medium: M,
        request_blocks_max: u32,
        relocation_blocks: u32,
        settings: C::Settings,
        now: Instant,
    ) -> Self {
        medium.finish_all();
        Self {
            ftl,
            done_before: medium.done(),
            medium,
            buffers: Buffers::new(request_blocks_max, relocation_blocks),
            settings,
            buffers_free: Vec::new(),
            pending: Vec::new(),
            oldest: VecDeque::new(),
            patience_ns: PATIENCE_NS,
            in_flight: 0,
            submitted: 0,
            finished: VecDeque::new(),
            checksums: Vec::new(),
            now,
            state: State::Starting,
            detached: None,
            labelled: None,
            snapshot_ends: VecDeque::new(),
            draining: true,
            trace: TraceHash::default(),
            fruitless: 0,
            due: None,
        }
    }

    /// Checks what must hold inside the FTL between any two steps.
    pub fn verify_ftl(&self) -> Result<(), Failure> {
        self.ftl.verify().map_err(Failure)
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How far it has come.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the FTL was mounted with.
    pub fn settings(&self) -> &C::Settings {
        &self.settings
    }

    /// The FTL under test.
    pub fn ftl(&self) -> &C {
        &self.ftl
    }

    /// The FTL under test, for a policy switch or a planted fault.
    pub fn ftl_mut(&mut self) -> &mut C {
        self.due = None;
        &mut self.ftl
    }

    /// The medium, as it is now.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// The medium, for a test that damages it.
    pub fn medium_mut(&mut self) -> &mut M {
        self.due = None;
        &mut self.medium
    }

    /// The medium, with whatever is in flight on it: `power_cut` comes next.
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// What was asked for and is not answered.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.pending.iter().flatten().map(|pending| &pending.request)
    }

    /// Most blocks of a request.
    pub fn request_blocks_max(&self) -> u32 {
        self.buffers.stride()
    }

    /// Hash of every output so far, in order, with its time.
    pub fn trace_hash(&self) -> u64 {
        self.trace.value()
    }

    fn take_buffer(&mut self) -> u32 {
        self.buffers_free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.buffers.add()
        })
    }

    fn submit(&mut self, token: u64, buffer: u32, lba: u32, blocks: u32, operation: Operation) {
        self.submitted += 1;
        let id = self.submitted << 32 | u64::from(buffer);
        let request = Request { id, lba: Lba(lba), blocks, operation };
        self.pending[buffer as usize] = Some(Pending { token, request, submitted: self.now });
        self.in_flight += 1;
        self.oldest.push_back(id);
        self.due = None;
        self.ftl.handle(self.now, Input::Request { request, checksums: &self.checksums });
        self.checksums.clear();
    }

    /// Submits a write of `stamps`. `token` comes back with its end.
    pub fn write(
        &mut self,
        token: u64,
        lba: u32,
        stamps: &[u64],
        (fua, atomic): (bool, bool),
        hint: Hint,
    ) {
        let buffer = self.take_buffer();
        self.buffers.host_mut(buffer, stamps.len() as u32).copy_from_slice(stamps);
        self.checksums.extend(stamps.iter().map(|&stamp| stamp_crc(stamp)));
        let operation = Operation::Write { buffer, fua, atomic, hint };
        self.submit(token, buffer, lba, stamps.len() as u32, operation);
    }

    /// Submits a read; [`Sim::stamps`] has the answer.
    pub fn read(&mut self, token: u64, lba: u32, blocks: u32) {
        let buffer = self.take_buffer();
        self.buffers.host_mut(buffer, blocks).fill(GARBAGE);
        self.submit(token, buffer, lba, blocks, Operation::Read { buffer });
    }

    /// Submits a trim.
    pub fn trim(&mut self, token: u64, lba: u32, blocks: u32, fua: bool) {
        let buffer = self.take_buffer();
        self.submit(token, buffer, lba, blocks, Operation::Trim { fua });
    }

    /// Submits a flush.
    pub fn flush(&mut self, token: u64) {
        let buffer = self.take_buffer();
        self.submit(token, buffer, 0, 0, Operation::Flush);
    }

    /// The next operation that has ended. Give it back with [`Sim::release`].
    pub fn take_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Brings what a read of `lba` will find into the processor's cache.
    pub fn warm(&self, lba: u32) {
        if let Some(slot) = self.ftl.slot_of(Lba(lba)) {
            self.medium.warm(slot);
        }
    }

    /// What a finished operation's buffer holds.
    pub fn stamps(&self, finished: &Finished) -> &[u64] {
        self.buffers.host(finished.buffer, finished.request.blocks)
    }

    /// The buffer of a finished operation may be used again.
    pub fn release(&mut self, finished: Finished) {
        self.buffers_free.push(finished.buffer);
    }

    /// When the next thing is due that does not wait for the host; `None` if nothing is.
    pub fn deadline(&self) -> Option<Instant> {
        self.due().first()
    }

    fn due(&self) -> Due {
        self.due.unwrap_or_else(|| Due { medium: self.medium.deadline(), ftl: self.ftl.deadline() })
    }

    /// Does the next thing that is due by `limit`, and only that.
    pub fn step(&mut self, limit: Instant) -> Result<Step, Failure> {
        if let Some(due) = self.due
            && due.first().is_none_or(|next| next > limit.max(self.now))
        {
            return Ok(self.idle(limit));
        }
        if !self.draining
            && let Some(step) = self.deliver()
        {
            return Ok(step);
        }
        if let Some(output) = self.ftl.poll() {
            self.draining = true;
            self.due = None;
            return self.carry_out(output);
        }
        if std::mem::take(&mut self.draining)
            && let Some(step) = self.deliver()
        {
            return Ok(step);
        }
        let due = self.due();
        self.due = Some(due);
        let Some(next) = due.first().filter(|&next| next <= limit) else {
            return Ok(self.idle(limit));
        };
        self.now = self.now.max(next);
        self.due = None;
        self.watch()?;
        if let Some(step) = self.deliver() {
            return Ok(step);
        }
        if due.ftl.is_some_and(|deadline| deadline <= self.now) {
            self.ftl.handle(self.now, Input::Deadline);
        }
        self.fruitless += 1;
        if self.fruitless > FRUITLESS_MAX {
            return Err(Failure(format!("{FRUITLESS_MAX} deadlines in a row led to nothing")));
        }
        Ok(Step::Other)
    }

    /// No request takes longer than `ns` of media time from now on; what does is a failure.
    pub fn set_patience(&mut self, ns: u64) {
        self.patience_ns = ns;
    }

    /// Time has gone on: fails if the oldest request has waited too long.
    fn watch(&mut self) -> Result<(), Failure> {
        while let Some(&id) = self.oldest.front() {
            match &self.pending[id as u32 as usize] {
                Some(pending) if pending.request.id == id => {
                    if self.now - pending.submitted > self.patience_ns {
                        return Err(self.stuck());
                    }
                    return Ok(());
                }
                _ => self.oldest.pop_front(),
            };
        }
        Ok(())
    }

    fn idle(&mut self, limit: Instant) -> Step {
        // An open limit means "whenever": then time stands still.
        if limit != Instant(u64::MAX) {
            self.now = self.now.max(limit);
        }
        Step::Idle
    }

    fn deliver(&mut self) -> Option<Step> {
        if self.medium.deadline().is_none_or(|at| at > self.now) {
            return None;
        }
        self.due = None;
        let (ftl, now) = (&mut self.ftl, self.now);
        let ended = self.medium.deliver(now, &mut self.buffers, |completion| {
            ftl.handle(now, Input::Completion(completion));
        });
        ended.map(|ended| match ended {
            Ended::Read => Step::Read,
            Ended::Change => Step::Change,
        })
    }

    fn carry_out(&mut self, output: Output) -> Result<Step, Failure> {
        self.trace.add(self.now, &output);
        self.fruitless = 0;
        match output {
            Output::Command(command) => self.start(command),
            Output::ReadZeroes { into, count } => {
                self.fill_zeroes(into, count)?;
                Ok(Step::Other)
            }
            Output::Reply(reply) => self.answer(reply),
            Output::Ready(result) => {
                self.state = match result {
                    Ok(report) => State::Ready(*report),
                    Err(error) => State::Refused(error),
                };
                Ok(Step::Other)
            }
            Output::Stopped(durable) => {
                self.state = State::Stopped(durable);
                Ok(Step::Other)
            }
            Output::FastDetached(gone) => {
                self.detached = Some(gone);
                Ok(Step::Other)
            }
            Output::Labelled(durable) => {
                self.labelled = Some(durable);
                Ok(Step::Other)
            }
            Output::Snapshot { number, step, result } => {
                self.snapshot_ends.push_back(SnapshotEnd { number, step, result });
                Ok(Step::Other)
            }
        }
    }

    fn start(&mut self, command: Command) -> Result<Step, Failure> {
        let slots: &[SlotWrite] = match command {
            Command::Program { tag, .. } => self.ftl.program(tag),
            _ => &[],
        };
        (self.medium.start(self.now, command, slots, &self.buffers))
            .map_err(|why| Failure(format!("illegal use of the medium: {why}")))?;
        Ok(if matches!(command, Command::Read { .. }) { Step::Read } else { Step::Change })
    }

    fn fill_zeroes(&mut self, into: Payload, count: u32) -> Result<(), Failure> {
        let blocks_max = self.buffers.stride();
        if into.buffer as usize >= self.pending.len() || into.index + count > blocks_max {
            return Err(Failure(format!("{count} zeroes for {into:?}, which no host gave")));
        }
        let range = into.index as usize..(into.index + count) as usize;
        self.buffers.host_mut(into.buffer, blocks_max)[range].fill(ZERO);
        Ok(())
    }

    fn answer(&mut self, reply: Reply) -> Result<Step, Failure> {
        let buffer = reply.id as u32;
        let pending = self.pending.get_mut(buffer as usize);
        let pending = pending
            .and_then(|pending| pending.take_if(|pending| pending.request.id == reply.id))
            .ok_or_else(|| Failure(format!("{reply:?} answers no request in flight")))?;
        self.in_flight -= 1;
        self.finished.push_back(Finished {
            token: pending.token,
            request: pending.request,
            result: reply.result,
            submitted: pending.submitted,
            finished: self.now,
            buffer,
        });
        Ok(Step::Reply)
    }

    /// Steps until the format or mount has ended, well or not.
    pub fn run_until_mounted(&mut self) -> Result<&State, Failure> {
        while self.state == State::Starting {
            if self.step(Instant(u64::MAX))? == Step::Idle {
                return Err(Failure("the mount neither goes on nor ends".into()));
            }
        }
        Ok(&self.state)
    }

    /// Steps until the format or mount has ended well.
    pub fn run_until_ready(&mut self) -> Result<&MountReport, Failure> {
        self.run_until_mounted()?;
        match &self.state {
            State::Ready(report) => Ok(report),
            State::Refused(error) => Err(Failure(format!("mount failed: {error}"))),
            State::Starting | State::Stopped(_) => Err(Failure("stopped before it began".into())),
        }
    }

    /// The failure of a device that stands still with requests unanswered.
    pub fn stuck(&self) -> Failure {
        let waiting: Vec<String> = (self.pending.iter().flatten())
            .map(|Pending { request, submitted, .. }| {
                format!(
                    "{:?} at {} + {} since {}",
                    request.operation, request.lba.0, request.blocks, submitted.0
                )
            })
            .collect();
        Failure(format!(
            "{} requests were never answered, and nothing that ends them is due at {} ns: {}; {}",
            self.in_flight,
            self.now.0,
            waiting.join(", "),
            self.ftl.explain(),
        ))
    }

    /// Steps until every request is answered. Background work may go on after.
    pub fn run_until_answered(&mut self) -> Result<(), Failure> {
        let mut steps = 0;
        while self.in_flight > 0 {
            match self.step(Instant(u64::MAX))? {
                Step::Idle => return Err(self.stuck()),
                Step::Reply => steps = 0,
                _ => steps += 1,
            }
            if steps > FRUITLESS_STEPS_MAX {
                return Err(self.stuck());
            }
        }
        Ok(())
    }

    /// Steps until nothing more is due by `limit`.
    pub fn run_until_idle(&mut self, limit: Instant) -> Result<(), Failure> {
        while self.step(limit)? != Step::Idle {}
        Ok(())
    }

    /// Asks for a clean end; requests in flight are still answered.
    pub fn begin_shutdown(&mut self) {
        self.due = None;
        self.ftl.handle(self.now, Input::Shutdown);
    }

    /// Nothing may be written any more, as if another server had taken the medium over.
    pub fn fail(&mut self) {
        self.due = None;
        self.ftl.handle(self.now, Input::Fail);
    }

    /// Asks to do without the fast tier; requests go on.
    pub fn begin_detach(&mut self) {
        self.due = None;
        self.ftl.handle(self.now, Input::DetachFast);
    }

    /// Asks to keep another label; requests go on.
    pub fn begin_label(&mut self, label: &[u8]) {
        self.due = None;
        self.labelled = None;
        self.ftl.handle(self.now, Input::Label(label));
    }

    /// How the last change of the label ended, if it has: true if it is durable.
    pub fn labelled(&self) -> Option<bool> {
        self.labelled
    }

    /// How a detach ended, if one has: true if nothing needs the fast units any more.
    pub fn detached(&self) -> Option<bool> {
        self.detached
    }

    /// Shuts down; true if everything is durable.
    pub fn stop(&mut self) -> Result<bool, Failure> {
        self.begin_shutdown();
        loop {
            if let State::Stopped(durable) = self.state {
                return Ok(durable);
            }
            if self.step(Instant(u64::MAX))? == Step::Idle {
                return Err(Failure("the shutdown neither goes on nor ends".into()));
            }
        }
    }

    /// Shuts down and gives the medium back. `Err` if something was left undone.
    pub fn shutdown(mut self) -> Result<M, Failure> {
        match (self.stop()?, self.in_flight) {
            (true, 0) => Ok(self.medium),
            (false, _) => Err(Failure("the shutdown left data volatile".into())),
            (_, left) => Err(Failure(format!("the shutdown left {left} requests unanswered"))),
        }
    }

    /// Reads every logical block; `None` where the FTL says it is unreadable.
    pub fn read_all(&mut self, logical_blocks: u32) -> Result<Vec<Option<u64>>, Failure> {
        assert_eq!(self.in_flight, 0, "the device is quiet");
        self.finished.clear();
        let mut observed = vec![Some(GARBAGE); logical_blocks as usize];
        for first in (0..logical_blocks).step_by(REQUEST_BLOCKS_MAX as usize) {
            let blocks = REQUEST_BLOCKS_MAX.min(logical_blocks - first);
            self.read_range(first, blocks, &mut observed)?;
        }
        Ok(observed)
    }

    fn read_range(
        &mut self,
        first: u32,
        blocks: u32,
        observed: &mut [Option<u64>],
    ) -> Result<(), Failure> {
        self.read(0, first, blocks);
        self.run_until_answered()?;
        let finished = self.take_finished().expect("it was answered");
        match finished.result {
            Ok(()) => {
                let stamps = self.stamps(&finished).iter();
                let range = first as usize..(first + blocks) as usize;
                observed[range].iter_mut().zip(stamps).for_each(|(to, &from)| *to = Some(from));
                self.release(finished);
            }
            // Find out which of them it is.
            Err(RequestError::Unreadable) if blocks > 1 => {
                self.release(finished);
                for lba in first..first + blocks {
                    self.read_range(lba, 1, observed)?;
                }
            }
            Err(RequestError::Unreadable) => {
                self.release(finished);
                observed[first as usize] = None;
            }
            Err(error) => {
                return Err(Failure(format!("a read of {blocks} blocks from {first}: {error:?}")));
            }
        }
        Ok(())
    }
}
