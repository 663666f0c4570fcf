//! The unit scheduler: one set of queues per unit. Host reads go first and may suspend what runs;
//! erases go when the erase policy allows it or space demands it; then reads of the FTL's own, then
//! programs, in the order of their pages.
//!
//! It knows neither pages nor requests: a program is a number, of which it asks where and how long when its
//! turn has come, and what a read is for only tells who waits for it.

use crate::api::Output;
use crate::config::Settings;
use crate::policy::{ErasePolicy, EraseView, WEIGHT_FULL};
use crate::slab::Slab;
use crate::space::bands::{BandState, Bands};
use crate::space::read_slo::{Job, Learned, Way};
use flash::{BlockId, Command, Geometry, Health, Instant, Payload, SlotId, Tag};
use std::collections::VecDeque;

/// Programs handed to a unit at once: one runs while the next one's data is on the bus.
pub(crate) const PROGRAMS_MAX: u32 = 2;

/// Clean bands kept ahead on a unit by erasing what was free at the mount.
const CLEAN_AHEAD: u32 = 2;

pub(crate) const TAG_READ: u32 = 0;
pub(crate) const TAG_PROGRAM: u32 = 1 << 30;
pub(crate) const TAG_ERASE: u32 = 2 << 30;
pub(crate) const TAG_FLUSH: u32 = 3 << 30;
pub(crate) const TAG_KIND: u32 = 3 << 30;

/// In this order, and beginning with a line of the processor's cache: whoever looks for a place for a page looks at
/// the first two lines of every unit.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Unit {
    /// Host reads waiting, by their number.
    pub reads: VecDeque<u32>,
    /// Pages waiting to be programmed, by number.
    pub programs: VecDeque<u32>,
    /// Commands of every kind at the medium; of them, those for the host, programs and erases.
    pub running: u32,
    pub reads_running: u32,
    pub programs_running: u32,
    pub erases_running: u32,
    pub gone: bool,
    /// How much it is wanted for new pages.
    pub weight: u16,
    /// Reads of GC, scrub and recovery.
    pub reads_low: VecDeque<u32>,
    /// The pages whose programs run, in the order in which they were begun, and when.
    pub pages_running: VecDeque<(u32, Instant)>,
    /// When the last erase was begun.
    pub erase_since: Instant,
    /// Suspensions of what runs now.
    pub suspensions: u32,
    quiet_since: Instant,
    pub busy_since: Instant,
    pub busy_ns: u64,
    /// What was begun here since the mount.
    pub slots_read: u64,
    pub slots_programmed: u64,
    pub erases: u64,
    /// Bands that the application asked to erase.
    pub erases_asked: u32,
    /// What runs was begun alone, and when: the time it takes is its own.
    pub alone: Option<(Job, Instant)>,
    /// When a host read was last queued here.
    pub read_last: Option<Instant>,
    /// Since when work of ours waits for host reads to end.
    pub held_since: Option<Instant>,
    /// Host reads that took longer than the service level, and why the last one did.
    pub reads_over_slo: u64,
    pub slow_reason: &'static str,
    pub last_reason: &'static str,
}

impl Unit {
    pub fn new(gone: bool) -> Self {
        Self { gone, weight: WEIGHT_FULL, ..Self::default() }
    }

    pub fn appends_waiting(&self) -> u32 {
        self.programs.len() as u32 + self.programs_running
    }

    pub fn reads_waiting(&self) -> u32 {
        self.reads.len() as u32 + self.reads_running
    }
}

/// What a read is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum ReadPurpose {
    /// Of a host request, by `Ftl::requests` index.
    Host(u32),
    /// Of GC: the victim, and the chunk of relocation buffers it fills.
    Relocate(BlockId, u32),
    #[default]
    Scrub,
    /// Of recovery.
    Mount,
    /// Of a piece of the map that a host request needs; `ReadOp::lba` is its chunk.
    Map(u32),
    /// Of map chunks, from `ReadOp::lba` on, for a content page of the next checkpoint.
    Stage(u32),
    /// Of map chunks, from `ReadOp::lba` on, to look for what points to a lost slot.
    Search,
    /// Of map chunks, from `ReadOp::lba` on, to count what they point to.
    Count,
    /// Of page `ReadOp::lba` of the last checkpoint, to make up for a chunk of its run.
    Mend,
}

impl ReadPurpose {
    /// A host request waits for it, or may.
    pub fn is_hosts(self) -> bool {
        matches!(self, Self::Host(_) | Self::Map(_) | Self::Mend)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadOp {
    pub purpose: ReadPurpose,
    pub slot: SlotId,
    pub count: u32,
    pub into: Option<Payload>,
    /// Logical block expected in the first slot, for host reads.
    pub lba: u32,
    /// When the host asked, and what was in the way.
    pub since: Instant,
    pub way: Way,
    /// When the medium had it.
    pub begun: Instant,
}

/// Which erases may begin in a turn beside those on fast units, where an erase costs nothing.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Erases {
    /// None at all: the medium may not be written.
    Never,
    /// Those that the policy, or the application, wants.
    Chosen,
    /// Also one on a unit that has no clean band left, as somebody found none.
    WhereNoneIsClean,
    /// All: nothing goes on without, or the device is being formatted.
    All,
}

/// What a unit's turn goes by, and where its commands go.
pub(crate) struct Turn<'a> {
    pub now: Instant,
    pub erases: Erases,
    /// Destage reads from a few fast units at a time, and from none where a program waits.
    pub destage_is_spaced: bool,
    pub policy: &'a mut dyn ErasePolicy,
    pub bands: &'a mut Bands,
    pub outputs: &'a mut VecDeque<Output>,
}

/// What happened here, for the status.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub erases_forced: u64,
    pub erases_asked: u64,
    /// Erases that made the service level unsure, because space was needed.
    pub slo_breaches_space: u64,
    /// Host reads that took longer than the service level, by [`Way`].
    pub over_slo: [u64; 5],
}

/// The queues of all units.
pub(crate) struct Scheduler {
    pub(super) geometry: Geometry,
    pub(super) read_slo_ns: u64,
    idle_ns: u64,
    suspensions_max: u32,
    programs_max: u32,
    pub(super) units: Vec<Unit>,
    /// Reads that wait or run.
    pub reads: Slab<ReadOp>,
    pub(super) learned: Learned,
    /// Somebody found no clean band on a unit that has a dirty one.
    pub clean_wanted: bool,
    /// When to ask again about an erase that the policy or the service level did not allow.
    erase_retry_at: Option<Instant>,
    pub counts: Counts,
}

impl Scheduler {
    pub fn new(geometry: Geometry, health: &Health, settings: &Settings) -> Self {
        let unit = |unit| Unit::new(health.units_gone.contains(&unit));
        Self {
            geometry,
            read_slo_ns: settings.read_slo_ns,
            idle_ns: settings.idle_ns,
            suspensions_max: settings.suspensions_max,
            programs_max: match settings.programs_max {
                0 => PROGRAMS_MAX,
                set => set,
            },
            units: (0..geometry.units).map(unit).collect(),
            reads: Slab::default(),
            learned: Learned::default(),
            clean_wanted: false,
            erase_retry_at: None,
            counts: Counts::default(),
        }
    }

    /// Programs of a unit that the medium is given at once.
    pub fn programs_max(&self) -> u32 {
        self.programs_max
    }

    /// The fast units are nobody's any more.
    pub fn forget_fast(&mut self) {
        for unit in self.geometry.capacity_units()..self.geometry.units {
            self.units[unit as usize].gone = true;
        }
        self.geometry = self.geometry.without_fast();
    }

    /// Hands to `unit` what it can take. `program` tells of a waiting program where it begins and how many
    /// slots it has, or nothing while it may not begin.
    pub fn dispatch(
        &mut self,
        unit: u32,
        turn: &mut Turn<'_>,
        program: impl Fn(u32) -> Option<(SlotId, u32)>,
    ) {
        while self.units[unit as usize].running < self.geometry.queue_depth {
            if let Some(read) = self.units[unit as usize].reads.pop_front() {
                self.issue_read(unit, read, turn);
                continue;
            }
            let programs_max = self.work_allowed(unit, turn.now);
            if programs_max == 0 {
                break;
            }
            if self.erase_next(unit, turn) {
                continue;
            }
            let yields = turn.destage_is_spaced && self.destage_yields(unit);
            let state = &mut self.units[unit as usize];
            if let Some(read) = state.reads_low.pop_front_if(|_| !yields) {
                self.issue_read(unit, read, turn);
                continue;
            }
            if state.programs_running >= programs_max || !self.issue_program(unit, turn, &program) {
                break;
            }
        }
    }

    fn issue_read(&mut self, unit: u32, read: u32, turn: &mut Turn<'_>) {
        let op = self.reads[read];
        let state = &mut self.units[unit as usize];
        let host = op.purpose.is_hosts();
        let long = state.programs_running + state.erases_running > 0;
        let urgent = host
            && long
            && self.geometry.suspend
            && !self.geometry.is_fast_unit(unit)
            && state.suspensions < self.suspensions_max;
        state.suspensions += u32::from(urgent);
        state.reads_running += u32::from(host);
        state.slots_read += u64::from(op.count);
        let entry = &mut self.reads[read];
        entry.begun = turn.now;
        if urgent {
            entry.way = Way::Suspended;
        }
        self.begin(unit, Job::Read, turn.now);
        turn.outputs.push_back(Output::Command(Command::Read {
            tag: Tag(TAG_READ | read),
            slot: op.slot,
            count: op.count,
            into: op.into,
            urgent,
        }));
    }

    fn issue_program(
        &mut self,
        unit: u32,
        turn: &mut Turn<'_>,
        program: &impl Fn(u32) -> Option<(SlotId, u32)>,
    ) -> bool {
        let programs = &mut self.units[unit as usize].programs;
        let Some(&first) = programs.front() else { return false };
        let (page, (slot, count)) = if let Some(place) = program(first) {
            programs.pop_front();
            (first, place)
        } else {
            let ready = |(at, &page): (usize, &u32)| program(page).map(|place| (at, page, place));
            let Some((at, page, place)) = programs.iter().enumerate().find_map(ready) else {
                return false;
            };
            programs.remove(at);
            (page, place)
        };
        self.begin(unit, Job::Program, turn.now);
        let state = &mut self.units[unit as usize];
        state.programs_running += 1;
        state.slots_programmed += u64::from(count);
        state.pages_running.push_back((page, turn.now));
        let tag = Tag(TAG_PROGRAM | page);
        turn.outputs.push_back(Output::Command(Command::Program { tag, slot, count }));
        true
    }

    /// Erases one dirty band of `unit` if the policy or the lack of space says so.
    fn erase_next(&mut self, unit: u32, turn: &mut Turn<'_>) -> bool {
        let Some(&block) = turn.bands.dirty(unit).last() else { return false };
        let state = &self.units[unit as usize];
        if state.erases_running > 0 || state.gone || turn.erases == Erases::Never {
            return false;
        }
        let bands_clean = turn.bands.clean(unit).len() as u32;
        // Where an erase costs nothing, there is nothing to wait for.
        let free = self.geometry.is_fast_unit(unit);
        let short = bands_clean == 0 && turn.erases == Erases::WhereNoneIsClean;
        let forced = free || turn.erases == Erases::All || short;
        let asked = state.erases_asked;
        let ahead = turn.bands[block].unproven && bands_clean >= CLEAN_AHEAD;
        if !forced && (asked == 0 && ahead || !self.erase_is_chosen(unit, bands_clean, turn)) {
            return false;
        }
        if forced && !self.erase_fits(unit, turn.now) {
            self.counts.slo_breaches_space += 1;
        }
        self.begin(unit, Job::Erase, turn.now);
        let state = &mut self.units[unit as usize];
        state.erases_running += 1;
        state.erase_since = turn.now;
        state.erases += 1;
        state.last_reason = match (forced, asked) {
            (true, _) => "erase: space was needed",
            (_, 0) => "erase: the policy allowed it",
            _ => "erase: the application asked",
        };
        self.counts.erases_forced += u64::from(forced);
        self.counts.erases_asked += u64::from(!forced && asked > 0);
        state.erases_asked = asked.saturating_sub(1);
        turn.bands.set_state(block, BandState::Erasing);
        turn.outputs
            .push_back(Output::Command(Command::Erase { tag: Tag(TAG_ERASE | block.0), block }));
        true
    }

    /// Whether the application asked for an erase of `unit`, or the policy wants one and it fits.
    fn erase_is_chosen(&mut self, unit: u32, bands_clean: u32, turn: &mut Turn<'_>) -> bool {
        let state = &self.units[unit as usize];
        // What the application asks for is its own choice, under any policy.
        if state.erases_asked > 0 {
            return true;
        }
        let view = EraseView {
            reads_waiting: state.reads_waiting(),
            appends_waiting: state.appends_waiting(),
            quiet_since: state.quiet_since,
            now: turn.now,
            idle_ns: self.idle_ns,
            bands_clean,
            asked: 0,
        };
        let wanted = turn.policy.erase_now(&view);
        if wanted && self.erase_fits(unit, turn.now) {
            return true;
        }
        if wanted || turn.policy.waits_for_time() {
            self.erase_retry_at = Some(turn.now + self.idle_ns);
        }
        false
    }

    /// Whether a read of destage on the fast unit `unit` waits: they are read from a quarter of the fast
    /// units at a time, one after the other, and not from one where a program waits, or every write of
    /// every volume would wait for it.
    fn destage_yields(&self, unit: u32) -> bool {
        if !self.geometry.is_fast_unit(unit) {
            return false;
        }
        let reads = |unit: &Unit| unit.running > unit.programs_running + unit.reads_running;
        let fast = &self.units[self.geometry.capacity_units() as usize..];
        let own = &self.units[unit as usize];
        reads(own)
            || own.appends_waiting() > 0
            || fast.iter().filter(|unit| reads(unit)).count() >= (fast.len() / 4).max(1)
    }

    /// One more command of `unit` goes to the medium.
    fn begin(&mut self, unit: u32, kind: Job, now: Instant) {
        let state = &mut self.units[unit as usize];
        if state.running == 0 {
            state.busy_since = now;
            state.alone = Some((kind, now));
        }
        state.running += 1;
    }

    /// A command of `unit` ended, or was taken back before the medium had it.
    pub fn ended(&mut self, unit: u32, kind: Job, now: Instant) {
        let fast = self.geometry.is_fast_unit(unit);
        let state = &mut self.units[unit as usize];
        state.running -= 1;
        match kind {
            Job::Read => {}
            Job::Program => state.programs_running -= 1,
            Job::Erase => state.erases_running -= 1,
        }
        if let Some((_, since)) = state.alone.take_if(|alone| alone.0 == kind)
            && state.suspensions == 0
            && !fast
        {
            self.learned.add(kind, now - since);
        }
        if kind != Job::Read {
            state.suspensions = 0;
        }
        if state.running == 0 {
            state.busy_ns += now - state.busy_since;
            state.quiet_since = now;
        }
    }

    /// The program of `page` on `unit` ended, or was taken back. When it was begun.
    pub fn program_ended(&mut self, unit: u32, page: u32, now: Instant) -> Instant {
        let pages = &mut self.units[unit as usize].pages_running;
        let at = pages.iter().position(|&(other, _)| other == page);
        let begun = at.and_then(|at| pages.remove(at)).map_or(now, |(_, begun)| begun);
        self.ended(unit, Job::Program, now);
        begun
    }

    /// The read `read` of `unit` ended. What it was; its number is the caller's to give back.
    pub fn read_ended(&mut self, unit: u32, read: u32, now: Instant) -> ReadOp {
        let op = self.reads[read];
        self.units[unit as usize].reads_running -= u32::from(op.purpose.is_hosts());
        self.ended(unit, Job::Read, now);
        op
    }

    /// Queues the read `read` on `unit`.
    pub fn queue_read(&mut self, unit: u32, read: u32, now: Instant) {
        let op = &mut self.reads[read];
        let state = &mut self.units[unit as usize];
        if op.purpose.is_hosts() {
            state.read_last = Some(now);
            if op.way == Way::Reads {
                op.way = Way::of(state);
            }
            state.reads.push_back(read);
        } else {
            state.reads_low.push_back(read);
        }
    }

    pub fn queue_program(&mut self, unit: u32, page: u32) {
        self.units[unit as usize].programs.push_back(page);
    }

    /// Takes a program that waits out of the queue of `unit`; false if it does not wait there.
    pub fn unqueue_program(&mut self, unit: u32, page: u32) -> bool {
        let programs = &mut self.units[unit as usize].programs;
        let waiting = programs.len();
        programs.retain(|&other| other != page);
        programs.len() < waiting
    }

    /// Asks again about erases from `at` on.
    pub fn retry_erases(&mut self, at: Instant) {
        self.erase_retry_at = Some(at);
    }

    /// When to ask again about erases.
    pub fn erase_retry_at(&self) -> Option<Instant> {
        self.erase_retry_at
    }

    /// Whether it is time to ask again about erases; once.
    pub fn erases_are_due(&mut self, now: Instant) -> bool {
        self.erase_retry_at.take_if(|at| now >= *at).is_some()
    }

    /// True if nothing runs or waits that is not a read of the host.
    pub fn no_work_runs(&self) -> bool {
        self.units.iter().all(|unit| {
            unit.running == unit.reads_running
                && unit.programs.is_empty()
                && unit.reads_low.is_empty()
        })
    }

    /// True if nothing runs, and no program waits.
    pub fn are_quiet(&self) -> bool {
        self.units.iter().all(|unit| unit.running == 0 && unit.programs.is_empty())
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Unit> {
        self.units.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Unit> {
        self.units.iter_mut()
    }

    pub fn get(&self, unit: u32) -> Option<&Unit> {
        self.units.get(unit as usize)
    }

    /// The units of the fast tier.
    pub fn fast(&self) -> &[Unit] {
        &self.units[self.geometry.capacity_units() as usize..]
    }
}

impl std::ops::Index<usize> for Scheduler {
    type Output = Unit;

    fn index(&self, unit: usize) -> &Unit {
        &self.units[unit]
    }
}

impl std::ops::IndexMut<usize> for Scheduler {
    fn index_mut(&mut self, unit: usize) -> &mut Unit {
        &mut self.units[unit]
    }
}

impl std::ops::Index<std::ops::Range<usize>> for Scheduler {
    type Output = [Unit];

    fn index(&self, units: std::ops::Range<usize>) -> &[Unit] {
        &self.units[units]
    }
}

#[cfg(test)]
mod tests;
