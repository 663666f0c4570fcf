//! The unit scheduler: one set of queues per unit. Host reads go first and may suspend what runs;
//! erases go when the erase policy allows it or space demands it; then reads of the FTL's own, then
//! programs, in the order of their pages.

use crate::api::Output;
use crate::policy::{EraseView, WEIGHT_FULL};
use crate::space::bands::BandState;
use crate::space::read_slo::{Kind, Way};
use crate::whole::Ftl;
use flash::{BlockId, Command, Instant, MediumError, Payload, SlotId, Tag};
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

#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    /// Host reads waiting, by `Ftl::reads` index.
    pub reads: VecDeque<u32>,
    /// Reads of GC, scrub and recovery.
    pub reads_low: VecDeque<u32>,
    /// Pages waiting to be programmed, by `Ftl::pages` index.
    pub programs: VecDeque<u32>,
    /// Commands of every kind at the medium; of them, those for the host, programs and erases.
    pub running: u32,
    pub reads_running: u32,
    pub programs_running: u32,
    pub erases_running: u32,
    /// Suspensions of what runs now.
    suspensions: u32,
    quiet_since: Instant,
    pub busy_since: Instant,
    pub busy_ns: u64,
    pub gone: bool,
    /// How much it is wanted for new pages, see `room`.
    pub weight: u16,
    /// Bands that the application asked to erase.
    pub erases_asked: u32,
    /// What runs was begun alone, and when: the time it takes is its own.
    alone: Option<(Kind, Instant)>,
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
}

impl Ftl {
    /// Hands to `unit` what it can take.
    pub(crate) fn dispatch(&mut self, unit: u32) {
        while self.units[unit as usize].running < self.geometry.queue_depth {
            let state = &mut self.units[unit as usize];
            if let Some(read) = state.reads.pop_front() {
                self.issue_read(unit, read);
                continue;
            }
            let programs_max = self.work_allowed(unit);
            if programs_max == 0 {
                break;
            }
            if self.erase_next(unit) {
                continue;
            }
            let yields = self.destage_yields(unit);
            let state = &mut self.units[unit as usize];
            if let Some(read) = state.reads_low.pop_front_if(|_| !yields) {
                self.issue_read(unit, read);
                continue;
            }
            if state.programs_running >= programs_max || !self.issue_program(unit) {
                break;
            }
        }
    }

    fn issue_read(&mut self, unit: u32, read: u32) {
        let op = self.reads[read];
        let state = &mut self.units[unit as usize];
        let host = op.purpose.is_hosts();
        let long = state.programs_running + state.erases_running > 0;
        let urgent = host
            && long
            && self.geometry.suspend
            && !self.geometry.is_fast_unit(unit)
            && state.suspensions < self.settings.suspensions_max;
        state.suspensions += u32::from(urgent);
        state.reads_running += u32::from(host);
        if urgent {
            self.reads[read].way = Way::Suspended;
        }
        self.begin(unit, Kind::Read);
        self.outputs.push_back(Output::Command(Command::Read {
            tag: Tag(TAG_READ | read),
            slot: op.slot,
            count: op.count,
            into: op.into,
            urgent,
        }));
    }

    fn issue_program(&mut self, unit: u32) -> bool {
        let ready = |&page: &u32| {
            let page = &self.pages[page];
            page.index == 0 || self.opens[page.open].header_durable
        };
        let programs = &self.units[unit as usize].programs;
        let Some(&first) = programs.front() else { return false };
        let page = if ready(&first) {
            self.units[unit as usize].programs.pop_front();
            first
        } else {
            let Some(at) = programs.iter().position(ready) else { return false };
            self.units[unit as usize].programs.remove(at).expect("found above")
        };
        self.begin(unit, Kind::Program);
        let state = &mut self.units[unit as usize];
        state.programs_running += 1;
        self.pages[page].state = crate::log::points::PageState::Running;
        self.outputs.push_back(Output::Command(Command::Program {
            tag: Tag(TAG_PROGRAM | page),
            slot: self.pages[page].slot,
            count: self.pages[page].slots.len() as u32,
        }));
        true
    }

    /// Erases one dirty band of `unit` if the policy or the lack of space says so.
    fn erase_next(&mut self, unit: u32) -> bool {
        let Some(&block) = self.bands.dirty(unit).last() else { return false };
        let state = &self.units[unit as usize];
        if state.erases_running > 0 || state.gone || !self.may_write() {
            return false;
        }
        let bands_clean = self.bands.clean(unit).len() as u32;
        // Where an erase costs nothing, there is nothing to wait for.
        let free = self.geometry.is_fast_unit(unit);
        let forced =
            free || self.erase_all || self.space_wanted || (bands_clean == 0 && self.clean_wanted);
        let asked = state.erases_asked;
        let ahead = self.bands[block].unproven && bands_clean >= CLEAN_AHEAD;
        if !forced && asked == 0 && ahead {
            return false;
        }
        if !forced {
            let view = EraseView {
                reads_waiting: state.reads_waiting(),
                appends_waiting: state.appends_waiting(),
                quiet_since: state.quiet_since,
                now: self.now,
                idle_ns: self.settings.idle_ns,
                bands_clean,
                asked,
            };
            // What the application asks for is its own choice, under any policy.
            if asked == 0 && !self.policies.erase.erase_now(&view) {
                if self.policies.erase.waits_for_time() {
                    self.erase_retry_at = Some(self.now + self.settings.idle_ns);
                }
                return false;
            }
            if asked == 0 && !self.erase_fits(unit) {
                self.erase_retry_at = Some(self.now + self.settings.idle_ns);
                return false;
            }
        } else if !self.erase_fits(unit) {
            self.counters.slo_breaches_space += 1;
        }
        self.begin(unit, Kind::Erase);
        let state = &mut self.units[unit as usize];
        state.erases_running += 1;
        state.last_reason = match (forced, asked) {
            (true, _) => "erase: space was needed",
            (_, 0) => "erase: the policy allowed it",
            _ => "erase: the application asked",
        };
        self.counters.erases_forced += u64::from(forced);
        self.counters.erases_asked += u64::from(!forced && asked > 0);
        state.erases_asked = asked.saturating_sub(1);
        self.bands.set_state(block, BandState::Erasing);
        self.outputs
            .push_back(Output::Command(Command::Erase { tag: Tag(TAG_ERASE | block.0), block }));
        true
    }

    /// One more command of `unit` goes to the medium.
    fn begin(&mut self, unit: u32, kind: Kind) {
        let state = &mut self.units[unit as usize];
        if state.running == 0 {
            state.busy_since = self.now;
            state.alone = Some((kind, self.now));
        }
        state.running += 1;
    }

    /// After a command of `unit` ended and was taken off its running count.
    pub(crate) fn ended(&mut self, unit: u32, kind: Kind) {
        let fast = self.geometry.is_fast_unit(unit);
        let state = &mut self.units[unit as usize];
        if let Some((_, since)) = state.alone.take_if(|alone| alone.0 == kind)
            && state.suspensions == 0
            && !fast
        {
            self.learned.add(kind, self.now - since);
        }
        if kind != Kind::Read {
            state.suspensions = 0;
        }
        if state.running == 0 {
            state.busy_ns += self.now - state.busy_since;
            state.quiet_since = self.now;
        }
    }

    /// Queues a read on the unit of its slot.
    pub(crate) fn queue_read(&mut self, read: u32) {
        let op = self.reads[read];
        let unit = self.bands.unit_of_slot(op.slot);
        let state = &mut self.units[unit as usize];
        match op.purpose {
            purpose if purpose.is_hosts() => {
                state.read_last = Some(self.now);
                if op.way == Way::Reads {
                    self.reads[read].way = Way::of(state);
                }
                state.reads.push_back(read);
            }
            _ => state.reads_low.push_back(read),
        }
        self.dispatch(unit);
    }

    pub(crate) fn complete_erase(&mut self, block: BlockId, result: Result<(), MediumError>) {
        let unit = self.geometry.unit_of(block);
        let state = &mut self.units[unit as usize];
        state.running -= 1;
        state.erases_running -= 1;
        self.ended(unit, Kind::Erase);
        if self.bands[block].state != BandState::Erasing {
            // The unit was lost while it erased. What its last answers say helps nobody.
            assert!(self.units[unit as usize].gone, "an erase of a band that is not being erased");
            self.counters.erases += u64::from(result.is_ok());
            return self.dispatch(unit);
        }
        match result {
            Ok(()) => {
                self.bands[block].unproven = false;
                self.bands.count_erase(block);
                self.counters.erases += 1;
                self.bands.set_state(block, BandState::Clean);
            }
            Err(MediumError::UnitGone) => self.lose_unit(unit),
            Err(error @ (MediumError::NoSpace | MediumError::FlushFailed | MediumError::Cut)) => {
                // Nothing is wrong with the block: it is tried again, after a pause.
                if error == MediumError::NoSpace {
                    self.note_no_space();
                }
                self.bands.set_state(block, BandState::Dirty);
                let pause = self.no_space_until.max(self.now + self.settings.idle_ns);
                self.erase_retry_at = Some(pause);
                return;
            }
            Err(MediumError::BlockFailed) => self.retire(block, "erase failed"),
        }
        self.dispatch(unit);
    }

    /// `block` is never written again.
    pub(crate) fn retire(&mut self, block: BlockId, reason: &'static str) {
        self.counters.bands_retired += 1;
        self.units[self.geometry.unit_of(block) as usize].last_reason = reason;
        self.bands.set_state(block, BandState::Retired);
    }

    /// `unit` no longer answers: nothing is appended there again, what it holds is lost to reads.
    pub(crate) fn lose_unit(&mut self, unit: u32) {
        if std::mem::replace(&mut self.units[unit as usize].gone, true) {
            return;
        }
        self.counters.units_gone += 1;
        self.units[unit as usize].last_reason = "unit gone";
        for point in &mut self.points {
            point.open[unit as usize] = crate::log::points::NONE;
        }
        let first = unit * self.geometry.blocks_per_unit;
        for block in (first..first + self.geometry.blocks_per_unit).map(BlockId) {
            if !matches!(self.bands[block].state, BandState::Open | BandState::Retired) {
                self.bands.set_state(block, BandState::Retired);
            }
        }
        self.forget_victims_of(unit);
        // The last one may have had bands there.
        self.checkpoint.want();
    }

    /// True if nothing runs or waits that is not a read of the host.
    pub(crate) fn no_work_runs(&self) -> bool {
        self.units.iter().all(|unit| {
            unit.running == unit.reads_running
                && unit.programs.is_empty()
                && unit.reads_low.is_empty()
        })
    }

    pub(crate) fn all_units_quiet(&self) -> bool {
        self.units.iter().all(|unit| unit.running == 0 && unit.programs.is_empty())
    }
}
