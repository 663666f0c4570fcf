//! When things happen: the queue of each die, the bus of each channel, suspension.
//!
//! A die works through its *line* in the order given. Reads go to the cells (array), then out over
//! the bus; programs come in over the bus, then to the cells; erases only use the cells. With cache
//! registers the bus part of one command overlaps the array part of its neighbour. An urgent read
//! *overtakes* whatever of the line has not started; if the array runs a program or erase that can
//! be suspended, that pauses after the suspend time, and goes on with what was left of it once no
//! overtaking read remains. A read never overtakes the program of its own page or the erase of its
//! own block. A register for each direction is assumed: a read is not held up by the data of a
//! program that waits in the die. Where dies share more than a bus, see [`crate::chips`].
//!
//! Invariants:
//! - events are handled in order of time, then of creation; so the bus serves whoever is ready
//!   first, and one number a channel (when it is free) is all its state;
//! - a command has at most one event to come: one whose number no command holds was cancelled;
//! - at most one command of a die is in the array, beside one suspended.

use crate::nand::Judged;
use flash::{Command, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Debug)]
pub(crate) struct Dies {
    pub(crate) manners: Manners,
    dies: Vec<Die>,
    /// `queue_depth` places a die, of which the first `Die::len` are taken, in order.
    jobs: Vec<Job>,
    /// When each channel's bus is free.
    bus_free_at: Vec<u64>,
    /// Earliest first; see [`Dies::schedule`].
    events: BinaryHeap<Reverse<u128>>,
    event_last: u64,
    suspensions: u64,
    /// Commands taken.
    taken: u64,
}

/// What all dies can do.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub queue_depth: u32,
    pub cache_read: bool,
    pub cache_program: bool,
    pub suspend_erase_ns: u64,
    pub suspend_program_ns: u64,
    pub slots_per_block: u32,
    /// The last so many units have a bus of their own each, behind the channels.
    pub fast_units: u32,
    /// Units of which only one works at a time; 1 if each is by itself.
    pub chip_units: u32,
    /// A command is given when the bus is idle, not before.
    pub commands_wait: bool,
}

#[derive(Clone, Debug, Default)]
struct Die {
    len: usize,
    /// How many of them are overtaking reads.
    overtaking: u32,
    busy_since: u64,
    busy_ns: u64,
}

/// A command on its way through a die.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub judged: Judged,
    /// Time in the array; once suspended, what is left of it.
    pub array_ns: u64,
    /// Time on the bus.
    pub bus_ns: u64,
    pub(crate) stage: Stage,
    pub(crate) overtakes: bool,
    /// Its place among all that were taken.
    pub(crate) arrived: u64,
    /// The event that ends this stage.
    event: u64,
    /// When the array is done with it.
    array_ends_at: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    Waiting,
    /// A program's data comes in, or waits for the bus.
    In,
    /// The data is in the die, the array is not yet free.
    Loaded,
    Array,
    /// Still in the array, about to yield.
    Suspending,
    Suspended,
    /// A read's data leaves, or waits for the bus.
    Out,
}

impl Job {
    pub fn new(judged: Judged, array_ns: u64, bus_ns: u64) -> Self {
        let stage = Stage::Waiting;
        Self {
            judged,
            array_ns,
            bus_ns,
            stage,
            overtakes: false,
            arrived: 0,
            event: 0,
            array_ends_at: 0,
        }
    }
}

impl Dies {
    pub fn new(manners: Manners, units: u32, channels: u32) -> Self {
        let places = (units * manners.queue_depth) as usize;
        let fast_units = manners.fast_units;
        Self {
            manners,
            dies: vec![Die::default(); units as usize],
            jobs: vec![Job::new(Judged::NONE, 0, 0); places],
            bus_free_at: vec![0; (channels + fast_units) as usize],
            events: BinaryHeap::with_capacity(2 * places),
            event_last: 0,
            suspensions: 0,
            taken: 0,
        }
    }

    /// Takes a command. Every event up to `now` was handled before.
    ///
    /// # Panics
    /// If the die's queue is full.
    pub fn submit(&mut self, now: Instant, mut job: Job) {
        let unit = job.judged.unit as usize;
        let base = self.base(unit);
        let len = self.dies[unit].len;
        assert!(len < self.manners.queue_depth as usize, "the queue depth was checked");
        self.taken += 1;
        job.arrived = self.taken;
        job.overtakes = self.may_overtake(&job, &self.jobs[base..base + len]);
        let die = &mut self.dies[unit];
        if len == 0 {
            die.busy_since = now.0;
        }
        die.len += 1;
        die.overtaking += u32::from(job.overtakes);
        self.jobs[base + len] = job;
        self.start(unit, now.0);
    }

    /// Handles events up to `until`, but stops at the first command that ends and returns it.
    pub fn step(&mut self, until: Instant) -> Option<(Instant, Judged)> {
        while let Some(&Reverse(event)) = self.events.peek() {
            let at = (event >> 64) as u64;
            if at > until.0 {
                return None;
            }
            self.events.pop();
            let unit = event as usize & UNIT_MASK;
            if let Some(judged) = self.end_stage(unit, (event as u64) >> UNIT_BITS, at) {
                return Some((Instant(at), judged));
            }
        }
        None
    }

    /// When [`Dies::step`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.events.peek().map(|&Reverse(event)| Instant((event >> 64) as u64))
    }

    /// Power is cut: hands out every command in the order of each die, and forgets it.
    pub fn cut(&mut self, now: Instant, mut take: impl FnMut(Judged)) {
        for unit in 0..self.dies.len() {
            let base = self.base(unit);
            let die = &mut self.dies[unit];
            for job in &self.jobs[base..base + die.len] {
                take(job.judged);
            }
            if die.len > 0 {
                die.busy_ns += now.0 - die.busy_since;
            }
            (die.len, die.overtaking) = (0, 0);
        }
        self.events.clear();
        self.bus_free_at.fill(now.0);
    }

    /// The commands of a die.
    pub fn jobs(&self, unit: u32) -> impl Iterator<Item = &Judged> {
        self.jobs_of(unit as usize).iter().map(|job| &job.judged)
    }

    /// How long a die had a command, up to `now`.
    pub fn busy_ns(&self, unit: u32, now: Instant) -> u64 {
        let die = &self.dies[unit as usize];
        let running = if die.len > 0 { now.0.saturating_sub(die.busy_since) } else { 0 };
        die.busy_ns + running
    }

    /// How often a program or erase was suspended.
    pub fn suspensions(&self) -> u64 {
        self.suspensions
    }

    /// An urgent read overtakes unless it needs what is ahead of it; where chips are shared every read does.
    fn may_overtake(&self, job: &Job, ahead: &[Job]) -> bool {
        let Command::Read { slot, urgent, .. } = job.judged.command else { return false };
        if !urgent && self.is_alone(job.judged.unit as usize) {
            return false;
        }
        !ahead.iter().any(|other| match other.judged.command {
            Command::Program { slot: first, count, .. } => slot.0.wrapping_sub(first.0) < count,
            Command::Erase { block, .. } => slot.0 / self.manners.slots_per_block == block.0,
            Command::Read { .. } | Command::Finish { .. } | Command::Flush { .. } => false,
        })
    }

    /// Ends the stage that `event` ends. Returns the command if that was its last.
    fn end_stage(&mut self, unit: usize, event: u64, at: u64) -> Option<Judged> {
        let base = self.base(unit);
        let jobs = &mut self.jobs[base..base + self.dies[unit].len];
        let index = jobs.iter().position(|job| job.event == event)?;
        let job = &mut jobs[index];
        let is_read = matches!(job.judged.command, Command::Read { .. });
        let mut ended = None;
        match job.stage {
            Stage::In => {
                job.stage = Stage::Loaded;
                job.event = 0;
            }
            Stage::Suspending => {
                job.stage = Stage::Suspended;
                job.event = 0;
                self.suspensions += 1;
            }
            Stage::Array if is_read => self.use_bus(unit, index, Stage::Out, at),
            Stage::Array | Stage::Out => ended = Some(self.remove(unit, index, at)),
            // The bus is idle, for which it waited.
            Stage::Waiting => job.event = 0,
            Stage::Loaded | Stage::Suspended => unreachable!("what is in the die has no event"),
        }
        self.start(unit, at);
        ended
    }

    /// Starts everything that may start now on this die.
    fn start(&mut self, unit: usize, now: u64) {
        if !self.is_alone(unit) {
            self.start_chip(unit, now);
            return;
        }
        let base = self.base(unit);
        let len = self.dies[unit].len;
        let jobs = &self.jobs[base..base + len];
        let mut array_free =
            !jobs.iter().any(|job| matches!(job.stage, Stage::Array | Stage::Suspending));
        if self.dies[unit].overtaking > 0 {
            self.start_overtaking(unit, array_free, now);
            return;
        }
        for index in 0..len {
            let job = &self.jobs[base + index];
            let ahead = (index > 0).then(|| &self.jobs[base + index - 1]);
            match (job.stage, &job.judged.command) {
                (Stage::Suspended | Stage::Loaded, _) if array_free => {
                    self.use_array(unit, index, now);
                    array_free = false;
                }
                (Stage::Waiting, Command::Program { .. }) => {
                    if !self.may_load(index, ahead) {
                        break;
                    }
                    self.use_bus(unit, index, Stage::In, now);
                }
                (Stage::Waiting, command) => {
                    let is_read = matches!(command, Command::Read { .. });
                    if !array_free || !(index == 0 || is_read && self.may_follow(index, ahead)) {
                        break;
                    }
                    self.use_array(unit, index, now);
                    array_free = false;
                }
                _ => {}
            }
        }
    }

    /// A program's data may come in: nothing is ahead, or a program that fills the array.
    fn may_load(&self, index: usize, ahead: Option<&Job>) -> bool {
        let Some(ahead) = ahead else { return true };
        self.manners.cache_program
            && index == 1
            && ahead.stage == Stage::Array
            && matches!(ahead.judged.command, Command::Program { .. })
    }

    /// A read may use the array: all that is ahead is a read that has left it.
    fn may_follow(&self, index: usize, ahead: Option<&Job>) -> bool {
        self.manners.cache_read && index == 1 && ahead.is_some_and(|job| job.stage == Stage::Out)
    }

    /// Brings the next overtaking read to the array, or makes what is there yield.
    fn start_overtaking(&mut self, unit: usize, array_free: bool, now: u64) {
        let base = self.base(unit);
        let jobs = &mut self.jobs[base..base + self.dies[unit].len];
        let Some(next) = jobs.iter().position(|job| job.overtakes && job.stage == Stage::Waiting)
        else {
            return;
        };
        if array_free {
            let leaving = jobs.iter().filter(|job| job.stage == Stage::Out).count();
            if leaving == 0 || (leaving == 1 && self.manners.cache_read) {
                self.use_array(unit, next, now);
            }
            return;
        }
        if let Some(running) = jobs.iter().position(|job| job.stage == Stage::Array) {
            self.suspend(unit, running, now);
        }
    }

    /// Makes what is in the array yield, if it can and that is sooner than its end.
    pub(crate) fn suspend(&mut self, unit: usize, index: usize, now: u64) {
        let base = self.base(unit);
        let running = &mut self.jobs[base + index];
        let pause_ns = match running.judged.command {
            Command::Program { .. } => self.manners.suspend_program_ns,
            Command::Erase { .. } => self.manners.suspend_erase_ns,
            Command::Read { .. } | Command::Finish { .. } | Command::Flush { .. } => 0,
        };
        let yields_at = now + pause_ns;
        if pause_ns == 0 || running.array_ends_at <= yields_at {
            return;
        }
        running.array_ns = running.array_ends_at - yields_at;
        running.stage = Stage::Suspending;
        running.event = schedule(&mut self.events, &mut self.event_last, yields_at, unit);
    }

    pub(crate) fn use_array(&mut self, unit: usize, index: usize, now: u64) {
        let base = self.base(unit);
        let job = &mut self.jobs[base + index];
        job.stage = Stage::Array;
        job.array_ends_at = now + job.array_ns;
        job.event = schedule(&mut self.events, &mut self.event_last, job.array_ends_at, unit);
    }

    /// Reserves the bus from now or from when it is free.
    pub(crate) fn use_bus(&mut self, unit: usize, index: usize, stage: Stage, now: u64) {
        let base = self.base(unit);
        let channel = self.channel_of(unit);
        let job = &mut self.jobs[base + index];
        let ends_at = self.bus_free_at[channel].max(now) + job.bus_ns;
        self.bus_free_at[channel] = ends_at;
        job.stage = stage;
        job.event = schedule(&mut self.events, &mut self.event_last, ends_at, unit);
    }

    /// Looks at a command that waits again then.
    pub(crate) fn wake_at(&mut self, unit: usize, index: usize, at: u64) {
        let base = self.base(unit);
        let event = schedule(&mut self.events, &mut self.event_last, at, unit);
        self.jobs[base + index].event = event;
    }

    /// When the bus of a unit is idle.
    pub(crate) fn bus_free_at(&self, unit: usize) -> u64 {
        self.bus_free_at[self.channel_of(unit)]
    }

    fn channel_of(&self, unit: usize) -> usize {
        let channels = self.bus_free_at.len() - self.manners.fast_units as usize;
        match unit.checked_sub(self.capacity_units()) {
            None => unit % channels,
            Some(fast) => channels + fast,
        }
    }

    /// A unit shares no more than a bus with others.
    fn is_alone(&self, unit: usize) -> bool {
        let shares = self.manners.chip_units > 1 || self.manners.commands_wait;
        !shares || unit >= self.capacity_units()
    }

    /// Units that are not fast ones.
    pub(crate) fn capacity_units(&self) -> usize {
        self.dies.len() - self.manners.fast_units as usize
    }

    /// What a unit has taken and not ended, in order.
    pub(crate) fn jobs_of(&self, unit: usize) -> &[Job] {
        let base = self.base(unit);
        &self.jobs[base..base + self.dies[unit].len]
    }

    fn remove(&mut self, unit: usize, index: usize, now: u64) -> Judged {
        let base = self.base(unit);
        let die = &mut self.dies[unit];
        let job = self.jobs[base + index];
        self.jobs.copy_within(base + index + 1..base + die.len, base + index);
        die.len -= 1;
        die.overtaking -= u32::from(job.overtakes);
        if die.len == 0 {
            die.busy_ns += now - die.busy_since;
        }
        job.judged
    }

    fn base(&self, unit: usize) -> usize {
        unit * self.manners.queue_depth as usize
    }
}

/// Adds an event and returns its number, never 0. An event is one integer that sorts by time, then
/// by number: 64 bits of time, 52 of number, 12 of unit.
fn schedule(
    events: &mut BinaryHeap<Reverse<u128>>,
    event_last: &mut u64,
    at: u64,
    unit: usize,
) -> u64 {
    *event_last += 1;
    let low = *event_last << UNIT_BITS | unit as u64;
    events.push(Reverse(u128::from(at) << 64 | u128::from(low)));
    *event_last
}

/// `Geometry::validate` admits 4096 units.
const UNIT_BITS: u32 = 12;
const UNIT_MASK: usize = (1 << UNIT_BITS) - 1;
