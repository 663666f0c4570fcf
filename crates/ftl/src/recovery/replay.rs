//! Replay: what was appended after the checkpoint, put on top of its map.
//!
//! Only slots of orders from the checkpoint's name on count; what came before is in its map. Sorted
//! by sequence, then order, they are applied one after the other, so that for each logical block
//! the newest version wins over older ones and over the map, whatever order the pages were found
//! in. Why that is enough:
//! - a slot that the map points to and that was superseded since is superseded by a slot or record
//!   of a later order, which is found, or else was never durable; and then nothing that it replaced
//!   was erased (`Band::invalid_order`);
//! - a copy that GC made keeps its sequence, so it never wins over a later write;
//! - trims and commits are records with a sequence of their own; their bands are kept until a
//!   checkpoint covers them (`Band::hold_order`).

use crate::api::Output;
use crate::format::{
    Footer, Header, INHERITED, Kind, NOTHING, POISONED, UNMAPPED, Voucher, decode_header, is_slot,
};
use crate::mutant::Mutant;
use crate::recovery::missing::straddles;
use crate::recovery::mount::{Mount, Probe, SEQUENCES_SKIPPED};
use crate::recovery::rebuild::Rebuild;
use crate::space::bands::BandState;
use crate::space::scheduler::ReadOp;
use crate::whole::Ftl;
use crate::whole::Phase;
use crate::whole::snapshots_found::Fills;
use flash::{SlotId, SlotRead, SlotStatus};
use std::collections::BTreeSet;
use std::ops::Range;

/// A slot or record that recovery found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub sequence: u64,
    pub order: u64,
    pub slot: SlotId,
    pub lba: u32,
    pub argument: u32,
    pub kind: Kind,
    /// Index and last index of its atomic group; both 0 for a lone block.
    pub group: (u8, u8),
    /// It was there, and what it held cannot be read.
    pub lost: bool,
    /// See [`straddles`].
    pub straddles: bool,
}

impl Candidate {
    /// A slot whose header is sound, and nothing else of it.
    pub fn lost(header: &Header, slot: SlotId) -> Self {
        Self { lost: true, ..Self::found(header, slot, false) }
    }

    fn found(header: &Header, slot: SlotId, straddles: bool) -> Self {
        Self {
            sequence: header.sequence,
            order: header.order,
            slot,
            lba: header.lba,
            argument: header.argument,
            kind: header.kind,
            group: header.group,
            lost: false,
            straddles,
        }
    }

    /// What somebody vouches for.
    pub fn vouched(voucher: &Voucher, kind: Kind, argument: u32) -> Self {
        let Voucher { lba, sequence, .. } = *voucher;
        let (slot, group) = (SlotId(0), (0, 0));
        Self { sequence, order: 0, slot, lba, argument, kind, group, lost: true, straddles: false }
    }
}

impl Ftl {
    pub(crate) fn take_candidates(
        &mut self,
        mount: &mut Mount,
        op: &ReadOp,
        slots: &[SlotRead<'_>],
    ) {
        let footer = mount.footer.expect("a scan has a footer");
        let name = footer.checkpoint;
        let mut rebuild = mount.rebuild.take();
        let mut torn = false;
        for (index, read) in slots.iter().enumerate() {
            let slot = SlotId(op.slot.0 + index as u32);
            if read.status == SlotStatus::Erased && !read.durable {
                continue;
            }
            let readable = read.is_readable();
            let block = self.geometry.block_of(slot);
            let header = decode_header(&read.oob, slot, self.uuid_crc).filter(|_| readable);
            if header.as_ref().is_some_and(|it| it.order < self.bands[block].first_order) {
                // Left from before the band's last erase, which a power cut undid in part.
                if read.durable {
                    mount.missing.note_unsound(slot, read, None);
                }
                continue;
            }
            let trusting = self.is_mutant(Mutant::TrustTornPages);
            let Some(header) = header.filter(|header| header.payload_crc == read.crc || trusting)
            else {
                // Where data is newer than what is beside it, that does not tell what it was.
                let is_old = |it: &Header| it.order < name && mount.unfit.contains(&block);
                mount.missing.note_unsound(slot, read, header.filter(|it| !is_old(it)));
                match (&mut rebuild, header) {
                    (Some(rebuild), Some(header)) if header.order < name => {
                        rebuild.note_spoiled(&header);
                    }
                    (rebuild, header) => {
                        torn = true;
                        let rebuild = rebuild.as_mut().filter(|_| readable && header.is_none());
                        if let Some(rebuild) = rebuild.filter(|_| !self.bands[block].failing) {
                            rebuild.note_damaged(block, self.geometry.page_in_block(slot));
                        }
                    }
                }
                continue;
            };
            let page = self.geometry.page_in_block(slot);
            let band = &mut self.bands[block];
            band.slots_written = band.slots_written.max((page + 1) * self.geometry.slots_per_page);
            let place = self.place_in_band(slot);
            mount.missing.note_sound(block, place, &header, footer.sequence_begun);
            self.durable_seen = self.durable_seen.max(header.order);
            self.sequence_next = self.sequence_next.max(header.sequence + 1);
            if let Some(rebuild) = &mut rebuild {
                rebuild.note_kind(block, header.kind);
            }
            if header.order >= name {
                self.note_candidate(mount, slot, &header);
            } else if let Some(rebuild) = &mut rebuild {
                self.rebuild_slot(rebuild, slot, &header);
            }
        }
        if let Some(rebuild) = rebuild.as_mut().filter(|_| torn) {
            let block = self.geometry.block_of(op.slot);
            rebuild.note_unreadable(block, self.geometry.page_in_block(op.slot));
        }
        mount.rebuild = rebuild;
    }

    fn note_candidate(&mut self, mount: &mut Mount, slot: SlotId, header: &Header) {
        let kinds = [Kind::Data, Kind::Trim, Kind::Poison, Kind::Commit];
        if !kinds.contains(&header.kind) {
            return;
        }
        mount.report.slots_replayed += 1;
        if header.kind != Kind::Data {
            let block = self.geometry.block_of(slot);
            let band = &mut self.bands[block];
            band.hold_order = band.hold_order.max(header.order);
        }
        let straddles = mount.footer.is_some_and(|footer| straddles(header, &footer));
        mount.candidates.push(Candidate::found(header, slot, straddles));
    }

    /// Puts what was found after the checkpoint on top of its map.
    pub(crate) fn replay(&mut self, mount: &mut Mount) {
        let footer = mount.footer.expect("a scan has a footer");
        // The checkpoint that was read may have been of a device without its fast tier.
        let layout = self.layout_of(self.geometry.is_tiered());
        self.layout = layout.expect("checked with the root records");
        self.clear_shadows(mount);
        if let Some(rebuild) = &mut mount.rebuild {
            self.rebuild_records(rebuild, &mount.missing);
        }
        self.miss(mount);
        let watermark = mount.missing.watermark();
        let rebuild = mount.rebuild.as_mut();
        mount.report.blocks_lost = self.apply(&mut mount.candidates, &footer, watermark, rebuild);
        mount.report.rebuilt =
            mount.rebuild.as_ref().map(|rebuild| self.end_rebuild(rebuild, &footer));
        self.mark_checkpoint_bands(mount);
        self.settle_shadows();
        self.drop_impossible();
        self.count_shadows();
    }

    pub(crate) fn finish_mount(&mut self, mut mount: Box<Mount>) {
        let footer = mount.footer.expect("a scan has a footer");
        // Numbers that a torn page may have used are not used again.
        self.sequence_next = self.sequence_next.max(footer.sequence_next) + SEQUENCES_SKIPPED;
        let order_next = self.durable_seen.max(footer.order_next) + (1 << 20);
        self.restart_orders(order_next);
        if self.map.is_cached() {
            self.begin_counting();
        }
        self.settle_bands(&mount, order_next - 1);
        self.checkpoint.sequence_covered = footer.sequence_begun;
        self.generation = footer.generation + 1;
        // After a mount nothing is appended before a checkpoint that says "not clean".
        mount.report.clean = footer.clean;
        let rebuilt = mount.report.rebuilt;
        let gaps =
            rebuilt.is_some_and(|rebuilt| rebuilt.blocks_refused > 0) || self.refused.is_some();
        self.phase = if self.settings.read_only || gaps { Phase::ReadOnly } else { Phase::Running };
        mount.report.may_grow =
            self.phase == Phase::ReadOnly && self.has_grown_from(mount.chosen.shape);
        mount.report.blocks_added = self.grow(&mount.chosen);
        for block in self.lives_missing(&mount) {
            self.note_damaged(&mut mount, self.geometry.slot(block, 0, 0));
        }
        let report = self.report(std::mem::take(&mut mount.report));
        self.counters.slots_damaged = report.slots_damaged;
        self.counters.blocks_lost = report.blocks_lost;
        self.counters.blocks_refused = report.blocks_refused;
        self.counters.blocks_stale_max = report.blocks_stale_max;
        self.counters.rebuilt = report.rebuilt;
        if self.phase == Phase::Running {
            self.checkpoint.want();
            self.checkpoint.settling = true;
            self.drain_check = true;
            self.want_flush();
        }
        self.outputs.push_back(Output::Ready(Ok(Box::new(report))));
        if self.is_counting() {
            mount.begin_counting();
            self.mount = Some(mount);
            if self.phase == Phase::ReadOnly {
                self.count_by_reads();
            }
        }
    }

    /// Returns how many blocks are lost: that there was something newer is all that is known of them.
    pub(crate) fn apply(
        &mut self,
        candidates: &mut [Candidate],
        footer: &Footer,
        watermark: u64,
        mut rebuild: Option<&mut Rebuild>,
    ) -> u64 {
        if !self.is_mutant(Mutant::IgnoreSequence) {
            // What is lost is not, if it is found somewhere else.
            let key = |it: &Candidate| (it.sequence, !it.lost, it.order);
            candidates.sort_by_key(key);
        }
        let mut lost = BTreeSet::new();
        let whole = whole_groups(candidates, footer.checkpoint, watermark);
        let everything = self.is_mutant(Mutant::LoseGroup);
        for candidate in &*candidates {
            let end = candidate.lba.saturating_add(candidate.argument);
            let range = candidate.lba..end.min(self.map.blocks());
            if !candidate.lost && !lost.is_empty() {
                found_newer(&mut lost, candidate, &range);
            }
            match candidate.kind {
                Kind::Trim if candidate.lost => {
                    for lba in range.filter(|&lba| concerns(&rebuild, lba)) {
                        // One that holds nothing would be trimmed to nothing.
                        if self.map.is_cached() || is_slot(self.seen_at(lba)) {
                            let fills = fills_at(&rebuild, lba);
                            let sequence = candidate.sequence;
                            lost.extend(self.recover_version(lba, sequence, POISONED, fills));
                        }
                    }
                }
                Kind::Trim if self.is_mutant(Mutant::ForgetTrim) => {}
                Kind::Trim
                    if let Some(rebuild) = rebuild.as_mut().filter(|rebuild| rebuild.is_late()) =>
                {
                    for lba in rebuild.concerned(range) {
                        rebuild.replayed(lba);
                        self.map.recover(lba, UNMAPPED);
                    }
                }
                Kind::Trim if range.start < range.end => {
                    let fills = |lba| fills_at(&rebuild, lba);
                    self.recover_trim(range.clone(), candidate.sequence, fills);
                    if let Some(rebuild) = &mut rebuild {
                        range.for_each(|lba| rebuild.replayed(lba));
                    }
                }
                Kind::Data | Kind::Poison => {
                    let decided = candidate.group.1 == 0
                        || candidate.sequence < footer.sequence_begun
                        || everything
                        || whole.binary_search(&candidate.sequence).is_ok();
                    if decided && concerns(&rebuild, candidate.lba) {
                        lost.extend(self.apply_version(candidate, rebuild.as_deref_mut()));
                    }
                }
                _ => {}
            }
        }
        lost.len() as u64
    }

    /// Puts a version on top of the map. Returns the entry that says so if it is lost.
    fn apply_version(
        &mut self,
        candidate: &Candidate,
        rebuild: Option<&mut Rebuild>,
    ) -> Option<u32> {
        let &Candidate { lba, sequence, lost, .. } = candidate;
        let is_poison = candidate.kind == Kind::Poison;
        let entry = if lost || is_poison { POISONED } else { candidate.slot.0 };
        let fills = if is_poison { Fills::Nothing } else { fills_at(&rebuild, lba) };
        let at = self.recover_version(lba, sequence, entry, fills)?;
        if let Some(rebuild) = rebuild {
            rebuild.replayed(at);
        }
        lost.then_some(at)
    }

    /// Map entries from a medium are input: one that points outside the device or into the checkpoint, or
    /// two that point to one slot, would break what the rest of the FTL rests on.
    fn drop_impossible(&mut self) {
        let slots = self.geometry.slots();
        let blocks = self.map.blocks() as usize;
        let Some(flat) = self.map.flat_mut() else { return };
        let (own, shadows) = flat.split_at_mut(blocks);
        for (lba, entry) in (0..).zip(own.iter_mut()) {
            match *entry {
                INHERITED => *entry = POISONED,
                // What was left of a clone that was given up.
                NOTHING if self.shadows.clones.origin(lba).is_none() => *entry = UNMAPPED,
                _ => {}
            }
        }
        // Where a block and a snapshot of it point to one slot, the block has changed since, to something lost.
        for entry in shadows.iter_mut().chain(own) {
            if !is_slot(*entry) {
                continue;
            }
            if u64::from(*entry) >= slots || !self.bands.load(SlotId(*entry)) {
                self.counters.blocks_poisoned += 1;
                *entry = POISONED;
                continue;
            }
            self.blocks_mapped += 1;
        }
        self.bands.count_loaded();
    }

    /// Gives every band the state that follows from what was found.
    fn settle_bands(&mut self, mount: &Mount, order_last: u64) {
        let counting = self.is_counting();
        for block in self.bands.ids() {
            let probe = mount.probes[block.0 as usize];
            let header = self.probed_header(block, probe);
            let of_checkpoint = header.is_some_and(|header| header.kind == Kind::Root);
            let band = &mut self.bands[block];
            if band.state == BandState::Checkpoint {
                continue;
            }
            band.slots_done = self.geometry.slots_per_block();
            band.found = true;
            // What was found is durable after the first flush, not before.
            band.invalid_order = order_last;
            band.state = match probe {
                Probe::Skipped => BandState::Retired,
                _ if band.slots_valid > 0 => BandState::Full,
                Probe::Erased if band.failing => BandState::Retired,
                Probe::Erased => BandState::Dirty,
                _ if counting && !of_checkpoint => BandState::Uncounted,
                _ => BandState::Draining,
            };
            band.unproven = band.state == BandState::Dirty;
        }
        self.bands.index_all();
        for block in self.bands.ids() {
            self.restore_failing(block);
        }
    }
}

/// Whether what is found of `lba` counts.
fn concerns(rebuild: &Option<&mut Rebuild>, lba: u32) -> bool {
    rebuild.as_ref().is_none_or(|rebuild| rebuild.concerns(lba))
}

/// What is known of `lba` that a snapshot may want.
fn fills_at(rebuild: &Option<&mut Rebuild>, lba: u32) -> Fills {
    let doubtful = rebuild.as_ref().is_some_and(|rebuild| rebuild.is_in_doubt(lba));
    if doubtful { Fills::Doubtful } else { Fills::Held }
}

/// What is lost of the blocks of `candidate` does not matter any more.
fn found_newer(lost: &mut BTreeSet<u32>, candidate: &Candidate, range: &Range<u32>) {
    match candidate.kind {
        Kind::Trim => lost.retain(|lba| !range.contains(lba)),
        Kind::Data | Kind::Poison => {
            lost.remove(&candidate.lba);
        }
        _ => {}
    }
}

/// Sequences of the atomic groups that are whole, in order.
///
/// A commit record follows the programs of its group, but on a medium that loses what was not
/// flushed, or whose pages share cells, it can survive a member. So every member must be found, or
/// a later version of its block, unless the group began before the checkpoint: then the checkpoint
/// waited for it. Below the `watermark` it was durable, whatever became of its members.
fn whole_groups(candidates: &[Candidate], checkpoint: u64, watermark: u64) -> Vec<u64> {
    let mut members: Vec<(u64, u8)> = candidates
        .iter()
        .filter(|candidate| candidate.kind == Kind::Data && candidate.group.1 > 0)
        .map(|candidate| (candidate.sequence, candidate.group.0))
        .collect();
    members.sort_unstable();
    let mut commits: Vec<_> =
        candidates.iter().filter(|candidate| candidate.kind == Kind::Commit).collect();
    commits.sort_unstable_by_key(|commit| commit.sequence);
    let mut whole = Vec::new();
    // Newest first: whether an older one is superseded depends on the newer ones.
    for commit in commits.into_iter().rev() {
        // The low half of an order is enough: no group is 2³¹ pages older than a checkpoint.
        let began_before = (commit.argument.wrapping_sub(checkpoint as u32) as i32) < 0;
        let found = |index| members.binary_search(&(commit.sequence, index)).is_ok();
        let sound = |index| found(index) || superseded(candidates, &whole, commit, index);
        let durable = commit.sequence < watermark;
        if began_before || durable || (0..=commit.group.1).all(sound) {
            whole.push(commit.sequence);
        }
    }
    whole.sort_unstable();
    whole
}

/// Whether a later version of the group's block at `index` was found.
fn superseded(candidates: &[Candidate], whole: &[u64], commit: &Candidate, index: u8) -> bool {
    let lba = commit.lba.saturating_add(u32::from(index));
    candidates.iter().any(|later| {
        let covers = match later.kind {
            Kind::Data if later.group.1 > 0 => later.lba == lba && whole.contains(&later.sequence),
            Kind::Data | Kind::Poison => later.lba == lba,
            Kind::Trim => (later.lba..later.lba.saturating_add(later.argument)).contains(&lba),
            _ => false,
        };
        covers && later.sequence > commit.sequence
    })
}
