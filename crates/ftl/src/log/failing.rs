//! Pages that could not be programmed: nothing that was in them is lost. Their slots are appended
//! again elsewhere, or the host is told that there is no space and its blocks show again what they
//! held before. And what becomes of all that waits when nothing can be written any more.
//!
//! A program that was cut short ([`MediumError::Cut`]) ends the same way, at once and without a word to the
//! host; its band is sound, and is used again after its erase as any other.
//!
//! Each program that is cut short ends its band, so where that happens often while space is short, bands may be
//! used up by copies of copies: each drains, and waits for what superseded it to be durable, which is said of an order
//! only when all before it are; one of these is what a failed page held, which waits for a band. But when nothing runs
//! and the medium was flushed, all that was programmed well is durable, whatever its order: so then bands go of which
//! everything was superseded by that.
//!
//! Invariants:
//! - the order of a failed page is held until its slots are safe elsewhere;
//! - a band that goes so was superseded by nothing that is still to be programmed, be it data, which says what it
//!   goes back to, or a record, which has no earlier order than what superseded the band;
//! - it has no record that recovery needs.

use crate::api::MountError;
use crate::api::Output;
use crate::format::{Kind, is_slot};
use crate::log::points::{NONE, Owner, PageState};
use crate::space::bands::BandState;
use crate::space::read_slo::Job;
use crate::space::scheduler::TAG_PROGRAM;
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{
    BlockId, Command, Instant, MILLISECOND, MediumError, RequestError, SlotId, SlotWrite, Tag,
};

/// How long to hold appends back after the medium had no room behind it.
const NO_SPACE_PAUSE_NS: u64 = 100 * MILLISECOND;

/// After so many tries, nobody waits for room any more.
const NO_SPACE_TRIES_MAX: u32 = 10;

impl Ftl {
    /// After a failed program: nothing more goes to this band. Pages that were not handed to the
    /// medium end here too, also those whose program nobody has come for yet.
    pub(crate) fn stop_appending(&mut self, open: u32, error: MediumError) {
        self.room_changes += 1;
        let block = self.opens[open].block;
        let unit = self.geometry.unit_of(block);
        if error == MediumError::UnitGone {
            self.lose_unit(unit);
        } else if error == MediumError::BlockFailed {
            self.bands.set_failing(block);
        }
        self.cuts |= error == MediumError::Cut;
        self.take_from_points(open, unit as usize);
        for point in &mut self.points {
            if point.page != NONE && self.pages[point.page].open == open {
                point.page = NONE;
            }
        }
        let outstanding = std::mem::take(&mut self.opens[open].outstanding);
        for &page in &outstanding {
            match self.pages[page].state {
                PageState::Assembling => self.pages[page].state = PageState::Ended(Err(error)),
                PageState::OnUnit => {
                    let recalled = self.units.unqueue_program(unit, page)
                        || error != MediumError::UnitGone && self.recall(unit, page);
                    if recalled {
                        self.pages[page].state = PageState::Ended(Err(error));
                    }
                }
                PageState::Ended(_) => {}
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
        self.units.program_ended(unit, page, self.now);
        true
    }

    /// Takes back the erases that nobody has asked for yet.
    fn recall_erases(&mut self) {
        let mut recalled = Vec::new();
        self.outputs.retain(|output| match *output {
            Output::Command(Command::Erase { block, .. }) => {
                recalled.push(block);
                false
            }
            _ => true,
        });
        for block in recalled {
            let unit = self.geometry.unit_of(block);
            self.units.ended(unit, Job::Erase, self.now);
            self.bands.set_state(block, BandState::Dirty);
        }
    }

    /// The medium had no room behind it.
    pub(crate) fn note_no_space(&mut self) {
        // What fails in a pause belongs to the try before it.
        if self.now >= self.no_space_until {
            self.no_space_tries += 1;
            self.no_space_until = self.now + NO_SPACE_PAUSE_NS;
        }
    }

    /// When the medium last had no room behind it; what fails within the pause that follows is the same.
    pub fn room_refused_at(&self) -> Option<Instant> {
        let begun = self.no_space_until.0.checked_sub(NO_SPACE_PAUSE_NS)?;
        Some(Instant(begun))
    }

    /// The medium has had no room for so long that nobody is to wait for it any more. What has to be
    /// written all the same is tried again and again.
    pub(crate) fn has_no_space(&self) -> bool {
        self.no_space_tries >= NO_SPACE_TRIES_MAX && self.now < self.no_space_until
    }

    /// Tells everybody who waits for room behind the medium that there is none.
    pub(crate) fn refuse_for_space(&mut self) {
        if !self.has_no_space() {
            return;
        }
        if self.phase == Phase::Formatting {
            self.fail_mount(MountError::NoSpace);
            return;
        }
        self.refuse_waiters();
        while !self.host.writes.is_empty() {
            self.refuse_oldest_write();
        }
    }

    fn refuse_waiters(&mut self) {
        for waiter in std::mem::take(&mut self.host.waiters) {
            self.fail_request(waiter.request, RequestError::NoSpace);
            self.finish(waiter.request);
        }
    }

    /// What waiters wait for found no place to go. Where the disk below is full, room there may change
    /// that; else the medium is used up.
    pub(crate) fn end_waiters(&mut self) {
        if self.no_space_tries > 0 {
            self.refuse_waiters();
        } else {
            self.fail();
        }
    }

    /// What failed pages held has no place to go and nothing moves: a checkpoint that waits for it gives its bands back,
    /// and bands that are settled make room for it.
    pub(crate) fn make_room_for_failed(&mut self) {
        if self.moves_failed == 0 || self.bands.free > 0 || !self.stands_still() {
            return;
        }
        self.make_room_of_checkpoint();
        // The members of a group wait for one another, and what they replaced may come back. Pages that share cells may
        // take each other with them.
        let plain = self.host.atomic_writes == 0 && !self.checkpoint.is_writing();
        if self.bands.free > 0 || !plain || self.tells_vital() {
            return;
        }
        let mut bands = self.bands.draining.clone();
        let records_from = self.first_record_to_come();
        bands.retain(|&block| self.is_settled(block, records_from));
        if bands.is_empty() {
            return;
        }
        if !self.flush.covers_all && !self.geometry.durable_at_completion {
            self.want_flush();
            return self.flush_pump();
        }
        for block in bands {
            self.bands[block].blank = true;
            self.counters.bands_let_go += 1;
        }
        self.drain();
        self.erase_everywhere();
    }

    /// Whether all that superseded what is in the band is durable after a flush, though not all that came before is.
    fn is_settled(&self, block: BlockId, records_from: u64) -> bool {
        let band = &self.bands[block];
        let superseded_by = band.invalid_order.max(band.vital_order);
        band.hold_order < self.checkpoint.order
            && band.reads_pending == 0
            && !band.blank
            && superseded_by < records_from
            && !self.is_gone_back_to(block)
    }

    /// The first order of those that hold a record which is not programmed: what it supersedes says so nowhere.
    fn first_record_to_come(&self) -> u64 {
        let is_record = |kind: Kind| !matches!(kind, Kind::Data | Kind::Pad);
        let failed = self.moves.iter().filter(|entry| is_record(entry.append.kind));
        let failed = failed.filter_map(|entry| entry.failed_order);
        let of_record = |&page: &u32| {
            let mut placed = self.pages[page].placed();
            placed.any(|(at, slot)| is_record(self.own_header(at, slot).kind))
        };
        let pages = self.pages.indices().filter(of_record).map(|page| self.pages[page].order);
        failed.chain(pages).min().unwrap_or(u64::MAX)
    }

    /// Whether what is in flight would go back to something in the band if it came to nothing.
    fn is_gone_back_to(&self, block: BlockId) -> bool {
        let is_there =
            |before: &u32| is_slot(*before) && self.bands.block_of(SlotId(*before)) == block;
        self.pages.indices().any(|page| self.pages[page].previous.iter().any(is_there))
            || self.moves.iter().any(|entry| is_there(&entry.previous))
    }

    /// The slots of a page that could not be programmed are appended again elsewhere, or the host
    /// is told that there is no space.
    pub(crate) fn fail_page(&mut self, page: u32, error: MediumError) {
        // Those that the medium was never given have not failed there.
        self.counters.programs_failed += u64::from(error != MediumError::FlushFailed);
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
                if self.writes_ended() {
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

    /// The medium could not make its state durable, or nothing may be written to it any more. What it
    /// holds unflushed is unknown, so nothing is acknowledged: a flush that failed is never tried again
    /// and called done. Everybody who waits for something that would have to be written is told so.
    pub(crate) fn fail(&mut self) {
        match self.phase {
            Phase::Failed | Phase::Stopped | Phase::ReadOnly => return,
            Phase::Mounting | Phase::Formatting => {
                self.fail_mount(MountError::Medium);
                return;
            }
            Phase::Running | Phase::Stopping => {}
        }
        self.counters.medium_failures += 1;
        self.phase = Phase::Failed;
        self.stop_writing();
        if self.is_leaving() {
            self.give_up_detach();
        }
        self.label_fails();
        self.snapshots_fail();
    }

    /// After the medium failed, nothing is made durable at the end.
    pub(crate) fn stop_failed(&mut self) {
        let quiet = self.units.iter().all(|unit| unit.running == 0) && self.flush.running.is_none();
        if self.stop_asked && quiet && self.host.requests.in_use() == 0 {
            self.phase = Phase::Stopped;
            self.outputs.push_back(Output::Stopped(false));
        }
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
        self.host.atomic_placing = false;
        self.end_pages();
        self.moves_failed = 0;
        // Newest first: what one of them replaced may be another one.
        for entry in std::mem::take(&mut self.moves).into_iter().rev() {
            self.unhold_source(&entry);
            self.drop_move(entry);
        }
        self.rest_destage();
        self.place_reroutes();
    }

    /// Pages that the medium does not have never get there. Those that it has are awaited, because they
    /// hold their place and somebody's memory.
    fn end_pages(&mut self) {
        self.recall_erases();
        let live: Vec<u32> = self.opens.indices().filter(|&open| self.opens[open].live).collect();
        for open in live {
            self.stop_appending(open, MediumError::FlushFailed);
            self.end_front(open);
            if self.opens[open].live {
                self.close_if_done(open);
            }
        }
        // Reads may have waited behind what was taken back.
        self.dispatch_all();
    }

    fn refuse_part(&mut self, request: u32) {
        self.fail_request(request, RequestError::NoSpace);
        self.part_ended(request);
    }

    /// Gives a logical block its content from before `from` back. That is still there: its band
    /// waits for `order`, which is not safe yet.
    fn undo(&mut self, from: SlotId, previous: u32, order: u64, slot: &SlotWrite) {
        self.redirect(from, previous);
        if is_slot(previous) {
            // What superseded this slot meanwhile superseded the previous one, too.
            let block = self.bands.block_of(SlotId(previous));
            self.bands[block].invalid_order = self.durable.next() - 1;
        }
        let header = self.own_header(from, slot);
        self.give_back(header.lba, from, previous, order);
    }

    /// Nothing will ever be in `from`: whoever would go back to it goes to `entry`, which is where its
    /// content went, or what was there before it.
    pub(crate) fn redirect(&mut self, from: SlotId, entry: u32) {
        let forget = |before: &mut u32| {
            if *before == from.0 {
                *before = entry;
            }
        };
        for page in self.pages.indices() {
            self.pages[page].previous.iter_mut().for_each(forget);
        }
        self.moves.iter_mut().for_each(|entry| forget(&mut entry.previous));
        if self.host.atomic_writes > 0 {
            for request in self.host.requests.indices() {
                let members = &mut self.host.requests[request].members;
                members.iter_mut().for_each(|(.., before)| forget(before));
            }
        }
    }
}
