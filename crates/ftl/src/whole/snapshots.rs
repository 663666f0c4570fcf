//! Snapshots are taken and given up ([`SnapshotOrder`]) while the host is served.
//!
//! *Taking one.* First there is room made for its shadow: the map grows, and with it every checkpoint from the next one
//! on, so none may be under way. Then, at one instant, the sequences are cut; what changes from then on fills the
//! shadow. The snapshot is in every root record from then on, so when a checkpoint is complete that was begun after the
//! cut, a recovery finds it, and before, nothing of it: what its shadow has in a checkpoint whose root records do not
//! name it is nobody's.
//!
//! *Giving one up.* Its record says that it is leaving. When that is durable it can never come back, and block by block
//! what is in its shadow goes to the next older snapshot, or nowhere. A recovery that finds one that is leaving does so
//! with all of it at once.
//!
//! *A clone* takes no time: from the next sequence on its blocks are as its snapshot has them ([`crate::map::clones`]). It is in
//! the root records, too, and is answered for as a cut is. Given up, what it does not have itself is nothing at once, and
//! durably so when that is answered.
//!
//! Invariants:
//! - one at a time leaves;
//! - no chunk of a checkpoint is of after a cut that its root records do not have;
//! - while a checkpoint is written no block leaves a shadow: it would have one half of a block that moves;
//! - each order is answered once, before `Stopped` or not at all.

use crate::api::{Output, SnapshotError, SnapshotOrder, SnapshotStatus, SnapshotStep};
use crate::format::{CheckpointLayout, CloneRecord, ShadowStretch, UNMAPPED, VERSION};
use crate::host::requests::{Class, HostRequest};
use crate::map::shadows::Life;
use crate::mutant::Mutant;
use crate::space::bands::BandState;
use crate::tier::destage::fast_bands_min;
use crate::whole::{Ftl, Phase};
use flash::{Instant, MICROSECOND};
use std::collections::VecDeque;

/// Blocks that leave a shadow in one step, and the time from one step to the next: between them the host is served.
const SWEEP_BLOCKS: u32 = 1 << 14;
const SWEEP_NS: u64 = 200 * MICROSECOND;

/// Checkpoints do not grow to more than one in so many bands: on a device of 24 bands that had four of them, the first
/// checkpoint after a power cut could find too few that were free, and no write went on.
const CHECKPOINT_PARTS: u32 = 6;

/// The status warns when less than one in so many blocks is left.
const FULL_PARTS: u64 = 20;

#[derive(Clone, Debug)]
struct Asked {
    number: u32,
    step: SnapshotStep,
    stretches: Vec<ShadowStretch>,
}

/// What was asked for and is not answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// Their turn has not come, oldest first.
    queue: VecDeque<Asked>,
    /// So many changes of the record there were.
    changes: u64,
    /// The checkpoint that was begun last has the first so many.
    begun: u64,
    /// The number of each that is not durable, whose it is and what.
    waiting: VecDeque<(u64, u32, SnapshotStep)>,
    /// When the next blocks leave a shadow.
    sweep_at: Instant,
    /// The next one is a block whose last change may be undone: it waits for whatever decides that.
    sweep_waits: bool,
    /// The map is to grow, which waits for the end of a checkpoint: none is begun before.
    grows: bool,
    /// It waits until as many bands are free as checkpoints of so many want; else 0.
    bands_wanted: u32,
}

impl Orders {
    /// Nobody waits for his turn.
    pub fn rest(&self) -> bool {
        self.queue.is_empty()
    }

    /// No checkpoint may be begun before the map has grown.
    pub fn wait_to_grow(&self) -> bool {
        self.grows
    }
}

/// What came of an order whose turn it was.
enum Turn {
    /// It is to be tried again.
    Waits,
    /// It is answered when a checkpoint has it.
    Begun,
    Ended(Result<(), SnapshotError>),
}

impl Ftl {
    /// The snapshots that there are, oldest first, and then those that are prepared.
    pub fn snapshots(&self) -> Vec<SnapshotStatus> {
        let list = self.shadows.list().iter().map(|snapshot| SnapshotStatus {
            number: snapshot.number,
            stretches: snapshot.stretches.clone(),
            taken: snapshot.life == Life::Taken,
            blocks_held: snapshot.held,
        });
        let prepared = self.shadows.prepared().iter().map(|(number, stretches)| SnapshotStatus {
            number: *number,
            stretches: stretches.clone(),
            taken: false,
            blocks_held: 0,
        });
        list.chain(prepared).collect()
    }

    /// The clones that there are, oldest first: their numbers, and what their blocks are clones of.
    pub fn clones(&self) -> Vec<(u32, Vec<ShadowStretch>)> {
        let list = self.shadows.clones.list().iter();
        list.map(|clone| (clone.number, clone.stretches.clone())).collect()
    }

    /// Entries of the map beside those of the logical blocks: what snapshots take in it, and in checkpoints.
    pub fn shadow_blocks(&self) -> u32 {
        self.map.shadow_blocks()
    }

    /// Words for the owner, if what snapshots hold leaves little.
    pub(crate) fn snapshots_warning(&self) -> Option<String> {
        let (held, mapped, most) = (self.shadows.held(), self.blocks_mapped, self.spare.most());
        let is_little = held > 0 && FULL_PARTS * most.saturating_sub(mapped) < most;
        is_little.then(|| {
            format!(
                "{mapped} of {most} blocks are held, {held} of them by snapshots only: writes that would keep more are \
                 refused beyond that, also of blocks that hold data if a snapshot needs what they hold. Give a \
                 snapshot up, or trim what is not needed"
            )
        })
    }

    pub(crate) fn order_snapshot(&mut self, number: u32, order: SnapshotOrder<'_>) {
        let step = order.step();
        let stretches = match order {
            SnapshotOrder::Prepare(stretches) | SnapshotOrder::Clone(stretches) => {
                stretches.to_vec()
            }
            SnapshotOrder::Cut | SnapshotOrder::Drop => Vec::new(),
        };
        if self.phase != Phase::Running {
            self.answer_snapshot(number, step, Err(SnapshotError::Failed));
        } else if step != SnapshotStep::Cut {
            self.snapshots.queue.push_back(Asked { number, step, stretches });
        } else if let Err(error) = self.cut_snapshot(number) {
            self.answer_snapshot(number, step, Err(error));
        }
    }

    fn answer_snapshot(
        &mut self,
        number: u32,
        step: SnapshotStep,
        result: Result<(), SnapshotError>,
    ) {
        self.outputs.push_back(Output::Snapshot { number, step, result });
    }

    /// Moves what was ordered on as far as it can go now.
    pub(crate) fn snapshots_pump(&mut self) {
        if self.snapshots.rest() && self.shadows.is_empty() {
            return;
        }
        self.sweep();
        while let Some(Asked { number, step, .. }) = self.snapshots.queue.front() {
            let (number, step) = (*number, *step);
            let turn = match step {
                SnapshotStep::Prepare => self.prepare_snapshot(number),
                SnapshotStep::Clone => self.make_clone(number),
                SnapshotStep::Cut | SnapshotStep::Drop => self.drop_snapshot(number),
            };
            match turn {
                Turn::Waits => return,
                Turn::Begun => {}
                Turn::Ended(result) => self.answer_snapshot(number, step, result),
            }
            self.snapshots.queue.pop_front();
        }
    }

    fn prepare_snapshot(&mut self, number: u32) -> Turn {
        let blocks = self.map.blocks();
        (self.snapshots.grows, self.snapshots.bands_wanted) = (false, 0);
        let Some(asked) = self.snapshots.queue.front() else { return Turn::Waits };
        let stretches = &asked.stretches;
        let takes = self.shadows.takes(number, stretches, blocks);
        if let Some(error) = self.refusal_of(number, stretches, takes) {
            return Turn::Ended(Err(error));
        }
        let end = stretches.iter().filter_map(ShadowStretch::shadow_end).max().unwrap_or(blocks);
        let wanted = (end - blocks).max(self.map.shadow_blocks());
        let grows = wanted > self.map.shadow_blocks();
        if (grows || self.shadows.is_empty()) && !self.has_room_for_shadows(wanted) {
            return Turn::Ended(Err(SnapshotError::NoSpace));
        }
        if grows && let Some(turn) = self.grow_shadows(wanted) {
            return turn;
        }
        let stretches = asked_stretches(&mut self.snapshots);
        self.shadows.prepare(number, stretches);
        Turn::Ended(Ok(()))
    }

    /// Why there can be no snapshot or clone of this number and these stretches, which could be one or not.
    fn refusal_of(
        &self,
        number: u32,
        stretches: &[ShadowStretch],
        takes: bool,
    ) -> Option<SnapshotError> {
        if self.map.is_cached() {
            Some(SnapshotError::CachedMap)
        } else if self.shadows.knows(number) {
            Some(SnapshotError::Number)
        } else if !takes {
            Some(SnapshotError::Stretches)
        } else if !self.shadows.fits_record(stretches.len()) {
            Some(SnapshotError::TooMany)
        } else {
            None
        }
    }

    /// Makes the map larger, or says what there is to wait for.
    fn grow_shadows(&mut self, wanted: u32) -> Option<Turn> {
        self.snapshots.grows = self.checkpoint.is_writing();
        if self.snapshots.grows || self.is_leaving() {
            return Some(Turn::Waits);
        }
        let tiered = self.geometry_recorded().is_tiered();
        let bands = self.layout_with(tiered, VERSION, wanted).map_or(0, |layout| layout.bands);
        if bands > self.layout.bands {
            self.snapshots.bands_wanted = bands;
            let (free, floor) = if self.tier_serves() {
                (self.bands.free_fast, self.fast_floor())
            } else {
                (self.bands.free, self.host_floor())
            };
            if free < floor {
                // GC makes them, as for the host, if it can.
                let is_lost = self.phase != Phase::Running || self.stands_still();
                let turn = Turn::Ended(Err(SnapshotError::NoSpace));
                return Some(if is_lost { self.give_up_bands(turn) } else { Turn::Waits });
            }
        }
        self.snapshots.bands_wanted = 0;
        self.resize_shadows(wanted);
        None
    }

    fn give_up_bands(&mut self, turn: Turn) -> Turn {
        self.snapshots.bands_wanted = 0;
        self.room_changes += 1;
        turn
    }

    /// Free bands that stay for a checkpoint: its own, and as many as it is larger than the last one. Those do not come
    /// back when it is complete, and after a power cut the next one must find room all the same.
    #[inline]
    pub(crate) fn bands_for_checkpoint(&self) -> u32 {
        // First, because it is asked for every page, and most devices have no snapshot.
        if self.map.shadow_blocks() == 0 && self.snapshots.bands_wanted == 0 {
            return if self.checkpoint.is_writing() { 0 } else { self.layout.bands };
        }
        let bands = self.layout.bands.max(self.snapshots.bands_wanted);
        let more = bands.saturating_sub(self.checkpoint.bands.len() as u32);
        if self.checkpoint.is_writing() { more } else { bands + more }
    }

    /// Whether the device can keep what it holds beside checkpoints of so many entries of shadows, and these have
    /// their place.
    fn has_room_for_shadows(&self, shadow_blocks: u32) -> bool {
        let geometry = self.geometry_recorded();
        let entries = self.map.blocks().checked_add(shadow_blocks);
        let layout = entries.and_then(|entries| CheckpointLayout::new(&geometry, entries));
        let Some(layout) = layout else { return false };
        let grows = layout.bands > self.layout.bands;
        if grows && CHECKPOINT_PARTS * layout.bands >= geometry.capacity_blocks() {
            return false;
        }
        let on_flash = if geometry.is_tiered() { 0 } else { layout.bands };
        let open = on_flash + 2 * self.streams.volumes() as u32;
        let fast = self.bands.ids().filter(|&block| {
            let band = &self.bands[block];
            let is_good = !band.failing && band.state != BandState::Retired;
            geometry.is_tiered() && geometry.is_fast(block) && is_good
        });
        let least = fast_bands_min(layout.bands, u32::from(self.settings.handles));
        self.spare.fits(&self.geometry, shadow_blocks, self.blocks_mapped)
            && self.bands.openings.are_too_few_for(open).is_none()
            && (!geometry.is_tiered() || fast.count() as u32 >= least)
    }

    /// The map has so many entries of shadows from now on, and so has the next checkpoint.
    pub(crate) fn resize_shadows(&mut self, shadow_blocks: u32) {
        assert!(!self.checkpoint.is_writing(), "a checkpoint is written as it was begun");
        self.map.resize_shadows(shadow_blocks);
        let layout = self.layout_of(self.geometry_recorded().is_tiered());
        self.layout = layout.expect("it was asked whether there is room");
        self.set_up_reclaim();
        self.views.of = None;
        self.room_changes += 1;
    }

    /// Gives back the entries behind the last shadow, unless a checkpoint is being written that has them.
    fn trim_shadows(&mut self) {
        let needed = self.shadows.entries_needed(self.map.blocks());
        let is_smaller = needed < self.map.shadow_blocks();
        if is_smaller && !self.checkpoint.is_writing() && !self.is_leaving() {
            self.resize_shadows(needed);
        }
    }

    /// What the blocks of a prepared snapshot hold now is what it holds.
    fn cut_snapshot(&mut self, number: u32) -> Result<(), SnapshotError> {
        let prepared = self.shadows.prepared().iter().find(|(of, _)| *of == number);
        let (_, stretches) = prepared.ok_or(SnapshotError::Number)?;
        let changes =
            |entry: &HostRequest| matches!(entry.class, Class::Write { .. } | Class::Trim { .. });
        if self.requests_of(stretches).any(changes) {
            return Err(SnapshotError::Busy);
        }
        let stretches = self.shadows.unprepare(number).ok_or(SnapshotError::Number)?;
        self.shadows.take(number, self.sequence_next, stretches);
        if !self.is_mutant(Mutant::CutKeepsCheckpoint) {
            // What changes from now on fills the new shadow, of which its root records say nothing: an older snapshot that
            // has what is there would miss it.
            self.checkpoint.begin_anew();
        }
        self.note_record(number, SnapshotStep::Cut);
        Ok(())
    }

    /// What is under way of the host's for these blocks.
    fn requests_of(&self, stretches: &[ShadowStretch]) -> impl Iterator<Item = &HostRequest> {
        let touches =
            |entry: &&HostRequest| stretches.iter().any(|it| it.meets(entry.lba, entry.blocks));
        let live = self.host.requests.live().into_iter();
        live.map(|index| &self.host.requests[index]).filter(touches)
    }

    fn make_clone(&mut self, number: u32) -> Turn {
        let Some(asked) = self.snapshots.queue.front() else { return Turn::Waits };
        let stretches = &asked.stretches;
        let holds = |it: &ShadowStretch| {
            self.map.run(it.first, it.blocks).iter().any(|&entry| entry != UNMAPPED)
        };
        let takes = self.shadows.takes_clone(stretches, self.map.blocks());
        let error = if let Some(error) = self.refusal_of(number, stretches, takes) {
            Some(error)
        } else if self.requests_of(stretches).next().is_some() {
            Some(SnapshotError::Busy)
        } else if stretches.iter().any(holds) {
            Some(SnapshotError::NotEmpty)
        } else {
            None
        };
        if let Some(error) = error {
            return Turn::Ended(Err(error));
        }
        let stretches = asked_stretches(&mut self.snapshots);
        for lba in self.shadows.had_before(&stretches).into_iter().flatten() {
            self.keep_nothing(lba);
        }
        let cut = self.next_sequence();
        self.shadows.begin_clone(CloneRecord { number, cut, stretches });
        self.checkpoint.begin_anew();
        self.note_record(number, SnapshotStep::Clone);
        Turn::Begun
    }

    /// What the clone does not have itself is nothing from now on.
    fn drop_clone(&mut self, number: u32) -> Turn {
        let clone = self.shadows.clones.numbered(number);
        let stretches = clone.map_or(&[][..], |clone| &clone.stretches);
        if self.requests_of(stretches).next().is_some() {
            return Turn::Ended(Err(SnapshotError::Busy));
        }
        self.shadows.end_clone(number);
        self.checkpoint.begin_anew();
        self.note_record(number, SnapshotStep::Drop);
        Turn::Begun
    }

    fn drop_snapshot(&mut self, number: u32) -> Turn {
        if self.shadows.unprepare(number).is_some() {
            self.trim_shadows();
            return Turn::Ended(Ok(()));
        }
        if self.shadows.is_needed(number) && !self.is_mutant(Mutant::DropForgetsClones) {
            return Turn::Ended(Err(SnapshotError::Needed));
        }
        if self.shadows.clones.numbered(number).is_some() {
            return self.drop_clone(number);
        }
        let Some(of) = self.shadows.taken(number) else {
            return Turn::Ended(Err(SnapshotError::Number));
        };
        if self.shadows.leaving().is_some() {
            return Turn::Waits;
        }
        let hasty = self.is_mutant(Mutant::SweepBeforeDurable);
        self.shadows.snapshot(of).life = if hasty { Life::Swept(0) } else { Life::Leaving };
        self.note_record(number, SnapshotStep::Drop);
        Turn::Begun
    }

    /// The record has changed: whoever ordered it is told when that is durable.
    fn note_record(&mut self, number: u32, step: SnapshotStep) {
        self.snapshots.changes += 1;
        self.snapshots.waiting.push_back((self.snapshots.changes, number, step));
        self.checkpoint.rest_until(self.now);
    }

    /// A change of the record is on no checkpoint, nor on the one being written.
    pub(crate) fn snapshots_want_checkpoint(&self) -> bool {
        !self.snapshots.waiting.is_empty() && self.phase == Phase::Running
    }

    /// A checkpoint begins: its root records have the snapshots as they are now.
    pub(crate) fn snapshots_begun(&mut self) {
        self.snapshots.begun = self.snapshots.changes;
        if self.is_mutant(Mutant::SnapshotTooEarly) {
            self.snapshots_durable();
        }
    }

    /// The checkpoint that was begun last is durable.
    pub(crate) fn snapshots_durable(&mut self) {
        let begun = self.snapshots.begun;
        while let Some((_, number, step)) =
            self.snapshots.waiting.pop_front_if(|(change, ..)| *change <= begun)
        {
            if step == SnapshotStep::Drop
                && let Some(of) = self.shadows.leaving()
                && self.shadows.list()[of].number == number
            {
                self.shadows.snapshot(of).life = Life::Swept(0);
                self.snapshots.sweep_at = self.now;
            }
            self.answer_snapshot(number, step, Ok(()));
        }
        self.stir_snapshots();
    }

    /// A checkpoint has ended, well or not: who waits for that has his turn before the next one.
    pub(crate) fn stir_snapshots(&mut self) {
        self.snapshots.sweep_waits = false;
        self.stirred |= !self.snapshots.rest() || self.shadows.are_swept();
    }

    /// Whether somebody has his turn before another checkpoint begins.
    pub(crate) fn snapshots_hold_checkpoint(&self) -> bool {
        self.snapshots.grows || self.shadows.are_swept() && !self.snapshots.sweep_waits
    }

    /// Nothing is written any more: what a recovery finds is not known.
    pub(crate) fn snapshots_fail(&mut self) {
        for (_, number, step) in std::mem::take(&mut self.snapshots.waiting) {
            self.answer_snapshot(number, step, Err(SnapshotError::Failed));
        }
        (self.snapshots.grows, self.snapshots.bands_wanted) = (false, 0);
        for Asked { number, step, .. } in std::mem::take(&mut self.snapshots.queue) {
            self.answer_snapshot(number, step, Err(SnapshotError::Failed));
        }
    }

    /// When the next blocks leave a shadow.
    pub(crate) fn sweep_deadline(&self) -> Option<Instant> {
        if !self.shadows.are_swept() {
            return None;
        }
        let waits = self.snapshots.sweep_waits || self.checkpoint.is_writing();
        (self.may_write() && !waits).then_some(self.snapshots.sweep_at)
    }

    /// The next blocks leave the shadow of a snapshot that was given up. A checkpoint between two steps does no harm: by it
    /// all of that shadow is still to be left, and what is not there any more is what a recovery lets go, too. One whose last change may be undone stays,
    /// and all behind it, until that is decided.
    fn sweep(&mut self) {
        let Some(of) = self.shadows.leaving() else { return };
        let Life::Swept(mut at) = self.shadows.list()[of].life else { return };
        let rests = self.now < self.snapshots.sweep_at && !self.snapshots.sweep_waits;
        if rests || self.checkpoint.is_writing() {
            return;
        }
        self.snapshots.sweep_waits = false;
        self.snapshots.sweep_at = self.now + SWEEP_NS;
        let undecided = self.fills_undecided();
        for _ in 0..SWEEP_BLOCKS {
            let Some(lba) = self.shadows.list()[of].block(at) else {
                self.shadows.forget(of);
                self.trim_shadows();
                self.stirred = true;
                return;
            };
            let place = self.shadows.from(of, lba).next().filter(|place| place.of == of);
            let is_filled = place.is_some_and(|place| self.map.entry(place.address) != UNMAPPED);
            if is_filled {
                if undecided.contains(&lba) && !self.is_mutant(Mutant::SweepUndecided) {
                    self.snapshots.sweep_waits = true;
                    return;
                }
                self.leave_shadow(of, lba, true);
            }
            at += 1;
            self.shadows.snapshot(of).life = Life::Swept(at);
        }
    }
}

/// The stretches of the order whose turn it is.
fn asked_stretches(orders: &mut Orders) -> Vec<ShadowStretch> {
    orders.queue.front_mut().map_or_else(Vec::new, |asked| std::mem::take(&mut asked.stretches))
}
