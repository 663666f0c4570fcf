//! The whole: the one place that sees two parts at once. It takes events, hands each to the part it is
//! for, and moves on what can move ([`Ftl::poll`]).

mod checks;
mod growth;
mod kept;
pub(crate) mod label;
pub(crate) mod load;
mod places;
pub(crate) mod shadowing;
pub(crate) mod snapshots;
pub(crate) mod snapshots_found;
pub(crate) mod status;
pub(crate) mod switch;
mod turns;

use crate::api::{Core, Input, Output};
use crate::config::Settings;
use crate::format;
use crate::format::CheckpointLayout;
use crate::gc::reclaim::Reclaim;
use crate::host::requests::Host;
use crate::host::shares::Shares;
use crate::log::commit::Commit;
use crate::log::durable::Durable;
use crate::log::flush::Flush;
use crate::log::moves::Move;
use crate::log::points::{self, OpenBand, Page, Point};
use crate::log::room;
use crate::log::streams::Streams;
use crate::log::vouching::Vouching;
use crate::map::Map;
use crate::map::shadows::Shadows;
use crate::mutant::Mutant;
use crate::policy::Policies;
use crate::recovery::checkpoint::Checkpoint;
use crate::recovery::missing::Refused;
use crate::recovery::mount::Mount;
use crate::slab::Slab;
use crate::space::Grounds;
use crate::space::bands::{BandState, Bands};
use crate::space::scheduler::{self, ReadOp, ReadPurpose, Scheduler, Unit};
use crate::space::spare::Spare;
use crate::tier::destage::Tier;
use flash::{
    Completion, Geometry, Health, Instant, MediumError, Operation, Random, SlotId, SlotWrite, Tag,
};
use load::Profiled;
use status::Counters;
use std::collections::VecDeque;
use switch::Switches;

/// Where the FTL is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Erases what is there and writes the first checkpoint.
    Formatting,
    /// Recovers.
    Mounting,
    Running,
    /// Mounted to look only.
    ReadOnly,
    /// Finishes what was accepted.
    Stopping,
    Stopped,
    /// The medium failed as a whole: reads go on as far as they can.
    Failed,
}

/// A mounted device. See the crate's page for how to drive it.
pub struct Ftl {
    pub(crate) geometry: Geometry,
    pub(crate) settings: Settings,
    pub(crate) policies: Policies,
    pub(crate) random: Random,
    pub(crate) phase: Phase,
    pub(crate) now: Instant,
    pub(crate) outputs: VecDeque<Output>,
    /// Taken so far.
    pub(crate) events: u64,
    /// Something happened since the last `pump`.
    pub(crate) stirred: bool,
    pub(crate) uuid: u128,
    pub(crate) uuid_crc: u32,
    pub(crate) empty_crc: u32,
    pub(crate) label: Vec<u8>,
    pub(crate) relabel: label::Relabel,
    pub(crate) generation: u64,

    pub(crate) map: Map,
    pub(crate) blocks_mapped: u64,
    pub(crate) shadows: Shadows,
    pub(crate) snapshots: snapshots::Orders,
    pub(crate) bands: Bands,
    pub(crate) sequence_next: u64,
    /// Highest order that recovery met.
    pub(crate) durable_seen: u64,
    pub(crate) durable: Durable,
    /// What slots to come vouch for.
    pub(crate) vouching: Vouching,
    pub(crate) commit: Commit,
    /// `safe_below` or `durable_below` rose since waiters and draining bands were looked at.
    pub(crate) durable_rose: bool,
    pub(crate) drain_check: bool,

    pub(crate) points: Vec<Point>,
    pub(crate) streams: Streams,
    pub(crate) views: room::Views,
    pub(crate) pages: Slab<Page>,
    pub(crate) opens: Slab<OpenBand>,
    /// Counts what may have made room for a page, beside `Bands::moves`.
    pub(crate) room_changes: u64,
    pub(crate) moves: VecDeque<Move>,
    /// Of them, those whose slot could not be programmed: there is nothing to read there.
    pub(crate) moves_failed: u32,
    pub(crate) no_space_until: Instant,
    /// Times in a row that the medium had no room behind it.
    pub(crate) no_space_tries: u32,
    /// The medium has cut a program short since the mount, and so may end any band at any time.
    pub(crate) cuts: bool,
    /// A shutdown was asked for.
    pub(crate) stop_asked: bool,
    /// Logical block that the next page is opened for.
    pub(crate) lba_next: u32,

    pub(crate) host: Host,

    pub(crate) units: Scheduler,
    /// Format: erase everything at once.
    pub(crate) erase_all: bool,

    pub(crate) flush: Flush,

    pub(crate) reclaim: Reclaim,
    /// Bands that the medium wants emptied, each with its erases so far.
    pub(crate) refreshing: Vec<(flash::BlockId, u32)>,
    pub(crate) spare: Spare,
    /// On a two-tier device.
    pub(crate) tier: Option<Tier>,
    pub(crate) shares: Shares,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) layout: CheckpointLayout,
    pub(crate) mount: Option<Box<Mount>>,
    /// Blocks that may have held something newer than what recovery found.
    pub(crate) refused: Option<Refused>,
    pub(crate) counters: Counters,
    pub(crate) switches: Switches,
    pub(crate) profiled: Profiled,
    pub(crate) mutant: Option<Mutant>,

    // Scratch, kept for its memory.
    pub(crate) erase_counts: Vec<u32>,
}

impl Ftl {
    /// Takes one event. Drain [`Ftl::poll`] after it, or after the last of one instant.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        debug_assert!(now >= self.now, "time only goes forward");
        self.now = self.now.max(now);
        let stirs = match input {
            Input::Request { request, checksums } => {
                self.submit(request, checksums);
                !matches!(request.operation, Operation::Read { .. }) || self.read_stirs()
            }
            Input::Completion(completion) => self.complete(completion),
            Input::Deadline => {
                self.deadline_passed();
                true
            }
            Input::DetachFast => {
                self.begin_detach();
                true
            }
            Input::Label(label) => {
                self.relabel(label);
                true
            }
            Input::Snapshot { number, order } => {
                self.order_snapshot(number, order);
                true
            }
            Input::Shutdown => {
                self.shut_down();
                true
            }
            Input::Fail => {
                self.fail();
                true
            }
        };
        if self.reads_wait_for_frames() {
            self.admit_reads();
        }
        self.events += 1;
        self.stirred |= stirs;
        self.observe_load();
    }

    /// What to do next; `None` when there is nothing until the next event.
    pub fn poll(&mut self) -> Option<Output> {
        // A policy that is replaced at the end of a pump makes room for another one.
        while self.outputs.is_empty() && std::mem::take(&mut self.stirred) {
            self.pump();
        }
        self.outputs.pop_front()
    }

    /// When to give [`Input::Deadline`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let others = [self.scrub_deadline(), self.mapping_deadline(), self.vouching_deadline()];
        self.work_deadline().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// The deadline of what somebody waits for.
    pub(crate) fn work_deadline(&self) -> Option<Instant> {
        let assembling = self.oldest_assembling().map(|at| at + self.settings.append_wait_ns);
        let no_space = (self.no_space_until > self.now).then_some(self.no_space_until);
        let rest = self.checkpoint.rest_ends_at(self.now);
        let retry = self.units.erase_retry_at();
        let sweep = self.sweep_deadline();
        [assembling, no_space, rest, retry, sweep].into_iter().flatten().min()
    }

    /// The slots of a program command, until its completion.
    pub fn program(&self, tag: Tag) -> &[SlotWrite] {
        assert_eq!(tag.0 & scheduler::TAG_KIND, scheduler::TAG_PROGRAM, "the tag of a program");
        &self.pages[tag.0 & !scheduler::TAG_KIND].slots
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants`
    /// it changes nothing.
    pub fn set_mutant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    #[inline]
    pub(crate) fn is_mutant(&self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.mutant == Some(mutant)
    }

    /// True if the FTL may program and erase.
    pub(crate) fn may_write(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping | Phase::Formatting)
    }

    /// The medium failed as a whole, or may not be written any more: only reads are served.
    pub fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// The host may only read: the owner wants it so, or damage left blocks that are refused.
    pub fn is_read_only(&self) -> bool {
        self.phase == Phase::ReadOnly
    }

    /// What was never written to since its mount is as it was found: nothing waits to be durable.
    pub(crate) fn is_untouched(&self) -> bool {
        self.phase == Phase::ReadOnly && self.counters.slots_programmed == 0
    }

    /// True from the moment that nothing is written any more, whatever was begun.
    pub(crate) fn writes_ended(&self) -> bool {
        matches!(self.phase, Phase::Failed | Phase::ReadOnly | Phase::Stopped)
    }

    /// Whether the beginning or the end of a host read moves anything on but its own unit. True
    /// whenever in doubt.
    pub(crate) fn read_stirs(&self) -> bool {
        self.phase != Phase::Running
            || self.mount.is_some()
            || self.drain_check
            || !self.host.reroutes.is_empty()
            || !self.reclaim.wanted.is_empty()
    }

    /// Takes the end of a command. True if it moves anything on but its own unit.
    pub(crate) fn complete(&mut self, completion: Completion<'_>) -> bool {
        match completion {
            Completion::Read { tag, slots } => {
                let read = tag.0;
                let unit = self.bands.unit_of_slot(self.units.reads[read].slot);
                let op = self.units.read_ended(unit, read, self.now);
                if matches!(slots, Err(MediumError::UnitGone)) && self.phase != Phase::Mounting {
                    self.lose_unit(unit);
                }
                self.end_read(read, &op, slots);
                self.dispatch(unit);
                let host = matches!(op.purpose, ReadPurpose::Host(_)) && slots.is_ok();
                // A unit that falls idle may be the last one, which others wait for.
                return !host || self.units[unit as usize].running == 0 || self.read_stirs();
            }
            Completion::Program { tag, result } => {
                self.complete_program(tag.0 & !scheduler::TAG_KIND, result);
            }
            Completion::Erase { tag, result } => {
                self.complete_erase(flash::BlockId(tag.0 & !scheduler::TAG_KIND), result);
            }
            Completion::Finish { tag } => {
                self.complete_finish(flash::BlockId(tag.0 & !scheduler::TAG_KIND))
            }
            Completion::Flush { result, .. } => self.complete_flush(result),
        }
        true
    }

    pub(crate) fn end_read(
        &mut self,
        read: u32,
        op: &ReadOp,
        slots: Result<&[flash::SlotRead<'_>], MediumError>,
    ) {
        if op.purpose != ReadPurpose::Mount {
            let block = self.bands.block_of(op.slot);
            let band = &mut self.bands[block];
            band.reads_pending -= 1;
            self.drain_check |= band.reads_pending == 0 && band.state == BandState::Draining;
        }
        match op.purpose {
            ReadPurpose::Host(request) => self.end_host_read(request, op, slots),
            ReadPurpose::Relocate(..) => self.end_relocation_read(op, slots),
            ReadPurpose::Scrub => self.end_scrub_read(op, slots),
            ReadPurpose::Mount => self.end_mount_read(op, slots),
            ReadPurpose::Map(_) => self.end_piece_read(op, slots),
            ReadPurpose::Stage(_) => self.end_stage_read(op, slots),
            ReadPurpose::Search => self.end_search_read(op, slots),
            ReadPurpose::Count => self.end_count_read(op, slots),
            ReadPurpose::Mend => self.end_mend_read(op, slots),
        }
        self.units.reads.give(read);
    }

    /// Moves everything on that can move. Cheap when nothing can: it runs after every batch of
    /// events. Not inlined: `poll`, which runs for every output, would pay for its registers.
    #[inline(never)]
    pub(crate) fn pump(&mut self) {
        if self.mount.is_some() {
            self.mount_pump();
        }
        self.mapping_pump();
        if self.may_write() && self.tier_lost().is_some() {
            self.fail();
        }
        if !self.may_write() {
            self.place_reroutes();
            self.stop_if_done();
            return;
        }
        self.spare.count(&self.bands, &self.geometry, self.map.sizes());
        if std::mem::take(&mut self.durable_rose) {
            self.drain_check = true;
        }
        if !self.host.waiters.is_empty() {
            self.wake_waiters();
        }
        self.place_moves(Grounds::Usual);
        if !self.host.commits.is_empty() {
            self.place_commits();
        }
        self.place_reroutes();
        self.reclaim_pump();
        if self.tier.is_some() {
            self.tier_pump();
        }
        if !self.host.writes.is_empty() {
            self.place_writes();
            self.host.held = !self.host.writes.is_empty();
            if self.host_stands_still() {
                self.reclaim_pump();
            }
        }
        if self.tier.is_some() {
            self.commit_fast();
            self.detach_pump();
        }
        if !self.host.waiters.is_empty() {
            self.commit_pump();
        }
        self.place_kept_moves();
        self.openings_pump();
        self.relieve();
        self.snapshots_pump();
        self.checkpoint_pump();
        self.erase_wanted();
        self.flush_pump();
        if self.mount.is_some() {
            self.mount_pump();
        }
        self.demand_space();
        if !self.host.writes.is_empty() {
            self.serve_or_refuse();
        }
        self.refuse_for_space();
        let waits = !self.host.waiters.is_empty() || self.moves_failed > 0;
        if waits && self.stands_still() {
            self.end_waiters();
        }
        if self.switches.watched {
            self.replace_broken();
        }
        if self.reads_wait_for_frames() {
            self.admit_reads();
        }
        self.stop_if_done();
    }

    /// Somebody waits, nothing moves, and there is something to erase: then it is erased, whoever
    /// was to decide about it.
    pub(crate) fn demand_space(&mut self) {
        let waited = !self.host.writes.is_empty()
            || !self.host.waiters.is_empty()
            || self.checkpoint.is_wanted();
        if waited && self.stands_still() {
            self.erase_everywhere();
        }
        // GC may have opened so many bands for its handles that too few are left for a checkpoint,
        // and has them in hand that would be enough.
        let is_last = self.is_down_to_last_bands();
        let stuck = |ftl: &Self| !ftl.moves.is_empty() && ftl.stands_still();
        if waited && (self.checkpoint.is_wanted() || is_last) && stuck(self) {
            self.place_moves(Grounds::Pressed);
        }
        if is_last && (waited || self.phase == Phase::Stopping) && stuck(self) {
            self.put_back_moves();
        }
        self.make_room_for_failed();
    }

    /// Erases where an append point wanted a clean band and found a dirty one.
    pub(crate) fn erase_wanted(&mut self) {
        if self.units.clean_wanted {
            self.dispatch_all();
            self.units.clean_wanted = false;
        }
    }

    /// True if nothing runs, nothing waits for a unit and no deadline is set: without an event from
    /// outside all stays as it is.
    pub(crate) fn stands_still(&self) -> bool {
        let idle = |unit: &Unit| {
            unit.running == 0 && unit.programs.is_empty() && unit.reads_low.is_empty()
        };
        self.flush.running.is_none()
            && !self.flush.wanted
            && self.work_deadline().is_none()
            && self.bands.openings.rest()
            && !self.snapshots.wait_to_grow()
            && self.units.iter().all(idle)
    }

    /// Looks for what nothing else would move on.
    pub(crate) fn relieve(&mut self) {
        if !self.refreshing.is_empty() && self.phase == Phase::Running {
            self.refresh_asked();
            self.reclaim_pump();
        }
        let short = self.bands.free < self.bands_free_low();
        let stopping = self.phase == Phase::Stopping;
        // Who waits for a checkpoint may be all that goes on.
        let ordered = self.label_wants_checkpoint() || self.snapshots_want_checkpoint();
        let space = short && self.wants_space()
            || stopping
            || self.refreshing_drains()
            || self.host_waits_for_destage()
            || ordered && self.checkpoint.is_wanted();
        if !self.bands.draining.is_empty() && space {
            self.push_drain();
        }
        // What is moved closes pages for nothing, unless it waits itself for what these pages hold up.
        if let Some(order) = self.host.waiters.iter().map(|waiter| waiter.order).max()
            && order >= self.durable.vital_below()
            && self.units.no_work_runs()
            && (self.moves.is_empty() || self.stands_still())
        {
            self.force_vital(order.min(self.durable.next() - 1));
        }
        if !short {
            self.level_wear();
        }
    }

    pub(crate) fn deadline_passed(&mut self) {
        self.seal_overdue();
        if self.units.erases_are_due(self.now) {
            self.dispatch_all();
        }
        self.scrub_pump();
        self.vouch_at_rest();
    }

    /// Pads the pages that have waited long enough.
    pub(crate) fn seal_overdue(&mut self) {
        for point in 0..self.points.len() {
            let page = self.points[point].page;
            if page == points::NONE {
                continue;
            }
            let opened = self.padding_helps(page);
            if opened.is_some_and(|at| self.now >= at + self.settings.append_wait_ns) {
                self.fill_up_page(page, self.wants_fillers());
                self.seal(point);
            }
        }
    }

    pub(crate) fn shut_down(&mut self) {
        self.stop_asked = true;
        match self.phase {
            // Once the reads that are under way have ended.
            Phase::Failed => {}
            Phase::Running => {
                self.phase = Phase::Stopping;
                if self.host.writes.is_empty() {
                    self.rest_victims();
                }
            }
            Phase::Stopping => {}
            _ => {
                let untouched = self.is_untouched();
                self.phase = Phase::Stopped;
                self.outputs.push_back(Output::Stopped(untouched));
            }
        }
    }

    pub(crate) fn moves_are_done(&self) -> bool {
        let rest = self.tier.as_ref().is_none_or(Tier::rests);
        self.moves.is_empty() && self.reclaim.victims.is_empty() && rest
    }

    pub(crate) fn stop_if_done(&mut self) {
        if self.phase == Phase::Failed {
            self.stop_failed();
        }
        if self.phase != Phase::Stopping {
            return;
        }
        if !self.may_destage() {
            self.rest_destage();
        }
        let host_done = self.host.requests.in_use() == 0;
        let at_rest = host_done && self.moves_are_done();
        if at_rest && self.counters.clean_checkpoint_at.is_none() && self.checkpoint.is_idle() {
            self.counters.clean_checkpoint_at = Some(self.counters.checkpoints);
            self.checkpoint.want_clean();
            self.checkpoint_pump();
            self.flush_pump();
        }
        // After the checkpoint was asked for: if it cannot begin, nothing comes to look again.
        let moves_done = self.moves_are_done();
        let waits = self.checkpoint.is_wanted() || host_done && !moves_done;
        if waits && self.stands_still() || host_done && self.has_no_space() {
            // No space for the last checkpoint, or for what moves: all acknowledged is there.
            self.phase = Phase::Stopped;
            self.outputs.push_back(Output::Stopped(false));
            return;
        }
        if !host_done || !moves_done || self.counters.clean_checkpoint_at.is_none() {
            return;
        }
        let written = self.counters.clean_checkpoint_at < Some(self.counters.checkpoints);
        let quiet =
            self.units.are_quiet() && self.bands.openings.rest() && self.flush.running.is_none();
        if written && quiet {
            self.phase = Phase::Stopped;
            self.outputs.push_back(Output::Stopped(true));
        }
    }

    /// Checks what must hold between events; `Err` says what does not. For tests: it walks the map.
    pub fn verify(&self) -> Result<(), String> {
        if let Some(cached) = self.map.cached() {
            cached.verify()?;
            if self.is_counting() {
                return self.bands.verify_sums();
            }
            let slots = cached.resident().filter(|&(_, entry)| format::is_slot(entry));
            return self
                .bands
                .verify_part(slots.map(|(_, entry)| SlotId(entry)), self.blocks_mapped);
        }
        let flat = self.map.flat().unwrap_or_default();
        let mapped = flat.iter().filter(|&&entry| format::is_slot(entry));
        self.bands.verify(mapped.clone().map(|&entry| SlotId(entry)))?;
        let count = mapped.count() as u64;
        if count != self.blocks_mapped {
            return Err(format!("{} blocks are counted, {count} mapped", self.blocks_mapped));
        }
        self.verify_shadows()
    }

    pub(crate) fn empty(
        geometry: Geometry,
        health: &Health,
        settings: Settings,
        logical_blocks: u32,
    ) -> Result<Self, String> {
        let (layout, chunks) = Self::checked(&geometry, &settings, logical_blocks)?;
        let tier = Tier::of(&geometry, chunks);
        let mut ftl = Self {
            policies: Policies::new(settings.policies.clone())?,
            random: Random::new(settings.seed),
            phase: Phase::Mounting,
            now: Instant(0),
            outputs: VecDeque::new(),
            events: 0,
            stirred: false,
            uuid: 0,
            uuid_crc: 0,
            empty_crc: format::empty_crc(),
            label: Vec::new(),
            relabel: label::Relabel::default(),
            generation: 0,
            map: Map::of(&settings, logical_blocks),
            blocks_mapped: 0,
            shadows: Shadows::default(),
            snapshots: snapshots::Orders::default(),
            bands: bands_of(&geometry, health),
            sequence_next: 1,
            durable_seen: 0,
            durable: Durable::new(1, !geometry.durable_at_completion),
            vouching: Vouching::default(),
            commit: Commit::default(),
            durable_rose: false,
            drain_check: false,
            points: Vec::new(),
            streams: Streams::default(),
            views: room::Views::default(),
            pages: Slab::default(),
            opens: Slab::default(),
            room_changes: 0,
            moves: VecDeque::new(),
            moves_failed: 0,
            no_space_until: Instant(0),
            no_space_tries: 0,
            cuts: false,
            stop_asked: false,
            lba_next: 0,
            host: Host::default(),
            units: Scheduler::new(geometry, health, &settings),
            erase_all: false,
            flush: Flush::default(),
            refreshing: Vec::new(),
            reclaim: Reclaim::new(chunks, tier.as_ref().map_or(0, Tier::chunks_own)),
            spare: Spare::new(&settings),
            tier,
            shares: Shares::default(),
            checkpoint: Checkpoint::default(),
            layout,
            mount: None,
            refused: None,
            counters: Counters::default(),
            switches: Switches::default(),
            profiled: Profiled::default(),
            mutant: None,
            erase_counts: Vec::new(),
            geometry,
            settings,
        };
        ftl.set_up().map(|()| ftl)
    }

    /// Where checkpoints lie, and how many chunks of relocation buffers there are, if all fits together.
    pub(crate) fn checked(
        geometry: &Geometry,
        settings: &Settings,
        logical_blocks: u32,
    ) -> Result<(CheckpointLayout, u32), String> {
        settings.validate(geometry)?;
        let layout = CheckpointLayout::new(geometry, logical_blocks)
            .ok_or("pages_per_block is too small for a checkpoint; 8 and more work")?;
        Ok((layout, settings.relocation_blocks / geometry.slots_per_page))
    }

    /// What follows from the settings.
    pub(crate) fn set_up(&mut self) -> Result<(), String> {
        self.set_up_streams()?;
        self.set_up_shares();
        self.set_up_reclaim();
        self.set_up_mapping();
        self.set_up_profile();
        Ok(())
    }
}

impl Core for Ftl {
    type Settings = Settings;

    fn handle(&mut self, now: Instant, input: Input<'_>) {
        Self::handle(self, now, input);
    }

    fn poll(&mut self) -> Option<Output> {
        Self::poll(self)
    }

    fn deadline(&self) -> Option<Instant> {
        Self::deadline(self)
    }

    fn program(&self, tag: Tag) -> &[SlotWrite] {
        Self::program(self, tag)
    }

    fn queue_at(&self, lba: flash::Lba) -> u32 {
        Self::queue_at(self, lba)
    }

    fn slot_of(&self, lba: flash::Lba) -> Option<flash::SlotId> {
        let slot = self.map.peek(lba.0);
        slot.filter(|&slot| format::is_slot(slot)).map(SlotId)
    }

    fn counter(&self, name: &str) -> u64 {
        Self::counter(self, name)
    }

    fn verify(&self) -> Result<(), String> {
        Self::verify(self)
    }

    fn explain(&self) -> String {
        Self::explain(self)
    }
}

/// The bands of a medium in this health, before anything is known of what they hold.
fn bands_of(geometry: &Geometry, health: &Health) -> Bands {
    let mut bands = Bands::new(geometry);
    for block in bands.ids() {
        let erase_count = health.erase_counts.get(block.0 as usize).copied().unwrap_or(0);
        bands[block].erase_count = erase_count;
        if health.units_gone.contains(&geometry.unit_of(block)) || !geometry.exists(block) {
            bands[block].state = BandState::Retired;
        }
    }
    for &block in &health.bad_blocks {
        // Bad since the factory, or since it failed with data in it: recovery looks.
        bands.set_failing(block);
    }
    bands
}
