//! The scheduler of each unit: host reads first, and they may suspend what runs; then lane records;
//! then writes and erases in the order of the host; then erases that nobody waits for, once the lane
//! is idle. A unit's queue is kept full, so that the data of one program is on the bus while the one
//! before fills the cells.

use super::blocks::{Use, Work};
use super::{Phase, RawUnits};
use crate::api::Output;
use crate::space::scheduler::{PROGRAMS_MAX, TAG_ERASE, TAG_PROGRAM, TAG_READ};
use flash::{BlockId, Command, MICROSECOND, MediumError, SlotId, SlotWrite, Tag};

/// Clean blocks kept ahead on a unit by erasing those whose last erase is in doubt.
const CLEAN_AHEAD: usize = 2;

/// Whose page is programmed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum PageOf {
    #[default]
    Nobody,
    /// A write, by `RawUnits::writes` index.
    Write { write: u32 },
    /// The record of a lane.
    Record { lane: u32 },
}

/// A page at the medium, or about to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub of: PageOf,
    pub slot: SlotId,
    pub slots: Vec<SlotWrite>,
}

/// What became of the first in a unit's line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// A command went to the medium, and there may be more.
    Issued,
    /// The line changed: look again.
    Again,
    Wait,
}

impl RawUnits {
    pub(crate) fn dispatch_lane(&mut self, lane: u32) {
        for member in 0..self.lanes.gang {
            self.dispatch(self.lanes.unit(lane, member));
        }
    }

    /// Hands to `unit` what it can take.
    pub(crate) fn dispatch(&mut self, unit: u32) {
        while self.dies[unit as usize].running() < self.geometry.queue_depth {
            let die = &mut self.dies[unit as usize];
            if let Some(read) = die.reads.pop_front().or_else(|| die.reads_low.pop_front()) {
                self.issue_read(unit, read);
                continue;
            }
            let (gone, pause_until) = (die.gone, die.pause_until);
            if !self.may_write() || gone {
                return;
            }
            if self.now < pause_until {
                self.look_later(pause_until);
                return;
            }
            let die = &mut self.dies[unit as usize];
            if die.record.is_some() {
                if die.programs_running >= PROGRAMS_MAX {
                    return;
                }
                let page = die.record.take().expect("looked above");
                self.issue_program(unit, page);
                continue;
            }
            let forced = self.erase_all || die.clean_wanted;
            if forced && die.erases_running == 0 && self.erase_free(unit, "space was needed") {
                continue;
            }
            match self.step_work(unit) {
                Some(Step::Issued | Step::Again) => {}
                Some(Step::Wait) => {
                    // What it waits for may be an erase that nothing has begun.
                    let die = &self.dies[unit as usize];
                    let begin = die.clean_wanted && die.erases_running == 0;
                    if !begin || !self.erase_free(unit, "space was needed") {
                        return;
                    }
                }
                None => {
                    if !self.erase_idle(unit) {
                        return;
                    }
                }
            }
        }
    }

    fn step_work(&mut self, unit: u32) -> Option<Step> {
        let work = *self.dies[unit as usize].work.front()?;
        Some(match work {
            Work::Program(write) => self.step_write(unit, write),
            Work::Erase(block) => {
                let lane = self.lanes.lane_of(unit);
                let settled = self.lane[lane as usize].settled;
                let waits = !settled || self.dies[unit as usize].erases_running > 0;
                if waits && self.has_no_space() {
                    // Those before it may find no room for ever.
                    self.dies[unit as usize].work.pop_front();
                    self.put_erase_off(block);
                    return Some(Step::Again);
                }
                if waits {
                    return Some(Step::Wait);
                }
                self.dies[unit as usize].work.pop_front();
                self.dies[unit as usize].last_reason = "erase: the host asked for it";
                self.issue_erase(unit, block);
                Step::Issued
            }
        })
    }

    /// Erases a block that nobody needs, if the lane is idle.
    fn erase_idle(&mut self, unit: u32) -> bool {
        let die = &self.dies[unit as usize];
        let wanted =
            !die.dirty.is_empty() || !die.unproven.is_empty() && die.clean.len() < CLEAN_AHEAD;
        if !wanted || self.phase != Phase::Running || die.running() > 0 {
            return false;
        }
        let Some(lane) = self.lane.get(self.lanes.lane_of(unit) as usize) else { return false };
        let idle_at = lane.quiet_since + self.settings.idle_ns;
        if !lane.settled || lane.requests > 0 || self.now < idle_at {
            let again = self.now + self.settings.idle_ns.max(MICROSECOND);
            self.look_later(if self.now < idle_at { idle_at } else { again });
            return false;
        }
        self.erase_free(unit, "the lane was idle")
    }

    fn erase_free(&mut self, unit: u32, why: &'static str) -> bool {
        let lane = self.lane.get(self.lanes.lane_of(unit) as usize);
        let settled = lane.is_some_and(|lane| lane.settled);
        let waits = lane.is_some_and(|lane| lane.frees_old());
        let blocks = &self.blocks;
        let die = &mut self.dies[unit as usize];
        let block = if settled {
            die.dirty.pop_front().or_else(|| die.unproven.pop_front())
        } else {
            // The newest durable record is of an earlier mount, and may say that nothing was erased after
            // it: what the host emptied since waits. Of two writes of a raw block that recovery refused
            // the older must not come back because the newer one was erased before a record says that both
            // are dead: so what holds nothing goes first.
            let left = die.dirty.iter().position(|block| !blocks[block.0 as usize].emptied);
            let left = left.or((!waits && !die.dirty.is_empty()).then_some(0));
            die.unproven.pop_front().or_else(|| die.dirty.remove(left?))
        };
        let Some(block) = block else { return false };
        die.last_reason = why;
        self.blocks[block.0 as usize].emptied = false;
        self.set_use(block, Use::Erasing);
        self.issue_erase(unit, block);
        true
    }

    fn issue_erase(&mut self, unit: u32, block: BlockId) {
        self.begin(unit);
        self.dies[unit as usize].erases_running += 1;
        let tag = Tag(TAG_ERASE | block.0);
        self.outputs.push_back(Output::Command(Command::Erase { tag, block }));
    }

    fn issue_read(&mut self, unit: u32, read: u32) {
        self.begin(unit);
        let op = self.reads[read];
        let die = &mut self.dies[unit as usize];
        let long = die.programs_running + die.erases_running > 0;
        let urgent = op.request.is_some()
            && long
            && self.geometry.suspend
            && die.suspensions < self.settings.suspensions_max;
        die.suspensions += u32::from(urgent);
        die.reads_running += 1;
        self.outputs.push_back(Output::Command(Command::Read {
            tag: Tag(TAG_READ | read),
            slot: op.slot,
            count: op.count,
            into: op.into,
            urgent,
        }));
    }

    pub(crate) fn issue_program(&mut self, unit: u32, page: u32) {
        self.begin(unit);
        self.dies[unit as usize].programs_running += 1;
        let (tag, slot) = (Tag(TAG_PROGRAM | page), self.pages[page].slot);
        let count = self.geometry.slots_per_page;
        self.outputs.push_back(Output::Command(Command::Program { tag, slot, count }));
    }

    pub(crate) fn complete_program(&mut self, page: u32, result: Result<(), MediumError>) {
        let Page { of, slot, .. } = &self.pages[page];
        let (of, unit) = (*of, self.unit_of(self.geometry.block_of(*slot)));
        self.give_page(page);
        self.dies[unit as usize].programs_running -= 1;
        self.ended(unit, true);
        match of {
            PageOf::Write { write } => self.end_write_page(write, unit, result),
            PageOf::Record { lane } => self.end_record(lane, unit, result),
            PageOf::Nobody => unreachable!("a page at the medium is somebody's"),
        }
        self.dispatch(unit);
    }

    pub(crate) fn give_page(&mut self, page: u32) {
        self.pages[page].of = PageOf::Nobody;
        self.pages.give(page);
    }

    fn begin(&mut self, unit: u32) {
        let die = &mut self.dies[unit as usize];
        if die.running() == 0 {
            die.busy_since = self.now;
        }
    }

    /// After a command of `unit` ended and was taken off its running count.
    pub(crate) fn ended(&mut self, unit: u32, long: bool) {
        let die = &mut self.dies[unit as usize];
        if long {
            die.suspensions = 0;
        }
        if die.running() == 0 {
            die.busy_ns += self.now - die.busy_since;
        }
    }

    /// Nothing is written on `unit` for a while.
    pub(crate) fn pause(&mut self, unit: u32, ns: u64) {
        self.dies[unit as usize].pause_until = self.now + ns;
        self.look_later(self.now + ns);
    }
}
