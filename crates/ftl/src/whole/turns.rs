//! Turns of the units: the scheduler is given what it goes by, and what it needs of other parts.

use crate::log::points::NONE;
use crate::space::bands::BandState;
use crate::space::read_slo::Job;
use crate::space::scheduler::{Erases, Turn};
use crate::whole::{Ftl, Phase};
use flash::{BlockId, MediumError};

impl Ftl {
    /// Hands to `unit` what it can take.
    pub(crate) fn dispatch(&mut self, unit: u32) {
        let erases = match self.may_write() {
            false => Erases::Never,
            true if self.erase_all => Erases::All,
            true if self.units.clean_wanted => Erases::WhereNoneIsClean,
            true => Erases::Chosen,
        };
        self.dispatch_with(unit, erases);
    }

    fn dispatch_with(&mut self, unit: u32, erases: Erases) {
        let serves = self.phase == Phase::Running && !self.is_leaving();
        let destage_is_spaced = serves && !self.shares.is_empty();
        let (pages, opens) = (&self.pages, &self.opens);
        // Nothing of a band is programmed before its first page is durable.
        let program = |page: u32| {
            let page = &pages[page];
            let ready = page.index == 0 || opens[page.open].header_durable;
            ready.then_some((page.slot, page.slots.len() as u32))
        };
        let mut turn = Turn {
            now: self.now,
            erases,
            destage_is_spaced,
            policy: &mut *self.policies.erase,
            bands: &mut self.bands,
            outputs: &mut self.outputs,
        };
        self.units.dispatch(unit, &mut turn, program);
    }

    pub(crate) fn dispatch_all(&mut self) {
        for unit in 0..self.geometry.units {
            self.dispatch(unit);
        }
    }

    /// Erases whatever can be erased.
    pub(crate) fn erase_everywhere(&mut self) {
        let erases = if self.may_write() { Erases::All } else { Erases::Never };
        for unit in 0..self.geometry.units {
            self.dispatch_with(unit, erases);
        }
    }

    /// Queues a read on the unit of its slot.
    pub(crate) fn queue_read(&mut self, read: u32) {
        let unit = self.bands.unit_of_slot(self.units.reads[read].slot);
        self.units.queue_read(unit, read, self.now);
        self.dispatch(unit);
    }

    pub(crate) fn complete_erase(&mut self, block: BlockId, result: Result<(), MediumError>) {
        let unit = self.geometry.unit_of(block);
        self.units.ended(unit, Job::Erase, self.now);
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
                self.units.retry_erases(pause);
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
            point.open.put(unit as usize, NONE);
            point.aside.retain(|aside| aside.unit != unit);
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
}
