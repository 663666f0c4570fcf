//! Pages that could not be programmed: nothing that was in them is lost. Their slots are appended
//! again elsewhere, or the host is told that there is no space and its blocks show again what they
//! held before. And what becomes of all that waits when nothing can be written any more.
//!
//! Invariant: the order of a failed page is held until its slots are safe elsewhere.

use crate::append::{NONE, Owner, PageState};
use crate::format::{Kind, POISONED};
use crate::units::TAG_PROGRAM;
use crate::{Ftl, Output, Phase, slo};
use flash::{Command, MediumError, RequestError, SlotId, SlotWrite, Tag};

impl Ftl {
    /// After a failed program: nothing more goes to this band. Pages that were not handed to the
    /// medium end here too, also those whose program nobody has come for yet.
    pub(crate) fn stop_appending(&mut self, open: u32, error: MediumError) {
        self.room_changes += 1;
        let block = self.opens[open].block;
        let unit = self.geometry.unit_of(block);
        if error == MediumError::UnitGone {
            self.lose_unit(unit);
        } else if error != MediumError::NoSpace {
            self.bands.set_failing(block);
        }
        self.take_from_points(open, unit as usize);
        for point in &mut self.points {
            if point.page != NONE && self.pages[point.page].open == open {
                point.page = NONE;
            }
        }
        let outstanding = std::mem::take(&mut self.opens[open].outstanding);
        for &page in &outstanding {
            let state = self.pages[page].state;
            match state {
                PageState::Queued => {
                    self.units[unit as usize].programs.retain(|&other| other != page);
                    self.pages[page].state = PageState::Ended(Err(error));
                }
                PageState::Assembling => self.pages[page].state = PageState::Ended(Err(error)),
                PageState::Running if error != MediumError::UnitGone && self.recall(unit, page) => {
                    self.pages[page].state = PageState::Ended(Err(error));
                }
                PageState::Running | PageState::Ended(_) => {}
            }
        }
        self.opens[open].outstanding = outstanding;
        // What is programmed shares cells with nothing that is still to come.
        while let Some((_, order)) = self.opens[open].at_risk.pop_front() {
            self.release(order);
        }
        self.bands[block].slots_written = self.geometry.slots_per_block();
        self.opens[open].cut = true;
    }

    /// Takes the program of `page` back, if nobody has asked for it yet.
    fn recall(&mut self, unit: u32, page: u32) -> bool {
        let tag = Tag(TAG_PROGRAM | page);
        let of_page = |output: &Output| match output {
            Output::Command(Command::Program { tag: of, .. }) => *of == tag,
            _ => false,
        };
        let Some(at) = self.outputs.iter().position(of_page) else { return false };
        self.outputs.remove(at);
        let state = &mut self.units[unit as usize];
        state.running -= 1;
        state.programs_running -= 1;
        self.ended(unit, slo::Kind::Program);
        true
    }

    /// The slots of a page that could not be programmed are appended again elsewhere, or the host
    /// is told that there is no space.
    pub(crate) fn fail_page(&mut self, page: u32, error: MediumError) {
        self.counters.programs_failed += 1;
        let (order, first, open) =
            (self.pages[page].order, self.pages[page].slot, self.pages[page].open);
        self.note_ended(page);
        if self.opens[open].point == NONE {
            self.checkpoint_page_ended(page, Err(error));
        } else {
            let slots = std::mem::take(&mut self.pages[page].slots);
            for (index, slot) in slots.into_iter().enumerate() {
                let from = SlotId(first.0 + index as u32);
                let owner = self.pages[page].owners[index];
                let previous = self.pages[page].previous[index];
                let refused = match owner {
                    Owner::Request(request) if error == MediumError::NoSpace => Some(request),
                    _ => None,
                };
                if self.phase == Phase::Failed {
                    let entry = self.failed_move(from, previous, order, slot, owner);
                    self.drop_move(entry);
                    continue;
                }
                match (refused, self.own_header(from, &slot).kind) {
                    (Some(request), Kind::Data) => {
                        self.undo(from, previous, order, &slot);
                        self.refuse_part(request);
                    }
                    // Records have to come through: what they say holds already. But a trim need
                    // not wait for room to be told that there is none.
                    (Some(request), Kind::Trim) => {
                        self.host.trims_running += 1;
                        self.append_again(from, previous, order, slot, Owner::RefusedTrim);
                        self.refuse_part(request);
                    }
                    _ => self.append_again(from, previous, order, slot, owner),
                }
            }
            self.release(order);
        }
        let waiters = std::mem::take(&mut self.pages[page].waiters);
        self.pages[page].clear();
        self.pages.give(page);
        for read in waiters {
            self.reroute(read);
        }
    }

    /// The medium could not make its state durable. What it holds unflushed is unknown, so nothing
    /// is acknowledged any more: a flush that failed is never tried again and called done.
    pub(crate) fn fail(&mut self) {
        self.counters.medium_failures += 1;
        self.phase = Phase::Failed;
        self.stop_writing();
    }

    /// Whoever waits for what would have to be written is told that it will not be.
    pub(crate) fn stop_writing(&mut self) {
        for waiter in std::mem::take(&mut self.host.waiters) {
            self.fail_request(waiter.request, RequestError::Failed);
            self.finish(waiter.request);
        }
        for write in std::mem::take(&mut self.host.writes) {
            self.unqueue_write(write);
            self.abandon(write);
        }
        for (request, _) in std::mem::take(&mut self.host.commits) {
            self.abandon(request);
        }
        self.moves_failed = 0;
        // Newest first: what one of them replaced may be another one.
        for entry in std::mem::take(&mut self.moves).into_iter().rev() {
            self.unhold_source(&entry);
            self.drop_move(entry);
        }
        self.rest_destage();
        // Readers wait for what is being assembled.
        for point in 0..self.points.len() {
            self.seal(point);
        }
        self.place_reroutes();
    }

    fn refuse_part(&mut self, request: u32) {
        self.fail_request(request, RequestError::NoSpace);
        self.part_ended(request);
    }

    /// Gives a logical block its content from before `from` back. That is still there: its band
    /// waits for `order`, which is not safe yet.
    fn undo(&mut self, from: SlotId, previous: u32, order: u64, slot: &SlotWrite) {
        for other in self.pages.indices() {
            for entry in &mut self.pages[other].previous {
                if *entry == from.0 {
                    *entry = previous;
                }
            }
        }
        if previous < POISONED {
            // What superseded this slot meanwhile superseded the previous one, too.
            let block = self.bands.block_of(SlotId(previous));
            self.bands[block].invalid_order = self.durable.next() - 1;
        }
        let header = self.own_header(from, slot);
        self.give_back(header.lba, from, previous, order);
    }
}
