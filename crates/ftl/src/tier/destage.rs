//! The fast tier of a two-tier device: every write of the host is acknowledged from it, and destaged
//! to the capacity tier in the background.
//!
//! It is no second log with a map of its own but a class of units of this FTL: the one map points to
//! slots of either tier. Append points of the host are on the fast units, those of destage and GC on
//! the others. Destage is GC of the fast tier: its full bands are read, the oldest first, and what is
//! still valid is appended to the capacity tier, with its sequence, in whole pages; what was overwritten
//! meanwhile is dropped unwritten. Where that is a good part of a band, the rest is *kept*: it is appended to
//! the fast tier once more, to bands of its own. So the tier fills with what is valid, and not with
//! what hot blocks leave behind. All that makes GC safe makes destage safe: the original stays,
//! and is what reads find, until the copy is durable (`Band::invalid_order`). What is superseded on the
//! fast tier itself, overwritten or kept, waits for vital orders only (`Band::vital_order`): copies to the
//! capacity tier take as long as that programs, and would hold back all bands emptied meanwhile.
//!
//! Pacing: destage begins when more than `destage_above` of the tier is filled. Once fewer than
//! `Levels::throttle` bands are free, each destaged slot earns the host some appends, fewer as bands
//! run out: as GC does it (see `reclaim`). To the GC of the capacity tier, destage is what the host
//! is elsewhere: it waits for credit and leaves the reserve alone.
//!
//! Invariants:
//! - what was kept on the fast tier is destaged when its band is reclaimed again, and nothing is kept
//!   where the host needs the room: bands come free whatever is written;
//! - destage has relocation buffers of its own, and a queue of its own: it waits for GC, never GC for
//!   destage;
//! - checkpoints lie on the fast tier, which keeps bands for the next one free.

use crate::config::Settings;
use crate::format::{CheckpointLayout, UNMAPPED, is_slot};
use crate::gc::reclaim::Victim;
use crate::host::shares::Shares;
use crate::log::moves::Move;
use crate::log::points::{NONE, Owner};
use crate::mutant::Mutant;
use crate::policy::Purpose;
use crate::space::Grounds;
use crate::space::bands::BandState;
use crate::tier::detach::{Leaving, LostTier};
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{BLOCK_BYTES, BlockId, Geometry, Health, SlotId};
use std::collections::VecDeque;
use std::ops::Range;

/// Free bands of the fast tier that only records may open.
const RECORD_BANDS: u32 = 1;

/// The host is throttled when less than one band in so many is free. Destage has to begin well before
/// that, or the host waits for each band of it.
const THROTTLE_SHARE: u32 = 16;

/// Bands destaged at a time, if the buffers hold no more than these.
const VICTIMS_MIN: u32 = 4;

/// Share of the relocation buffers that destage uses when nothing presses, as a divisor.
const CHUNKS_AT_EASE: usize = 4;

/// What is valid in a victim stays on the fast tier if it is less than so many percent of its slots. Zipf
/// 1.2 gains from a half up to here; beyond it the tier's own bandwidth goes into what is kept.
const KEPT_BELOW: u32 = 70;

/// Bands of the tier for each one that what is kept may have open.
const BANDS_PER_KEPT: u32 = 6;

/// A page of the fast tier that is being filled goes out when fewer programs than this are on the way
/// on its unit: what comes meanwhile is committed together.
const PROGRAMS_BEFORE_COMMIT: u32 = 2;

/// What destage has in hand.
#[derive(Clone, Debug)]
pub(crate) struct Tier {
    pub victims: Vec<Victim>,
    /// Read, and waiting for a place on the capacity tier.
    pub moves: VecDeque<Move>,
    /// Read, and waiting for another place on the fast tier.
    pub kept: VecDeque<Move>,
    /// Free chunks of relocation buffers, a page each.
    chunks: Vec<u32>,
    chunks_all: Range<u32>,
    /// The chunk that the next slots are read into, and how much of it is used.
    filling: Option<(u32, u32)>,
    /// Host slots that may be placed while the tier is nearly full, in 1/256.
    credit: i64,
    /// Bands of which nothing is left but parts of atomic writes: not to be read again before one is decided.
    pub undecided: Vec<BlockId>,
    /// Whether the tier is on its way out.
    pub leaving: Leaving,
}

impl Tier {
    /// For a medium of this shape, if it has two tiers, with half of `chunks` chunks of relocation
    /// buffers: GC must go on while destage waits for it.
    pub fn of(geometry: &Geometry, chunks: u32) -> Option<Self> {
        let own = chunks - chunks / 2..chunks;
        geometry.is_tiered().then(|| Self {
            victims: Vec::new(),
            moves: VecDeque::new(),
            kept: VecDeque::new(),
            chunks: own.clone().rev().collect(),
            chunks_all: own,
            filling: None,
            credit: 0,
            undecided: Vec::new(),
            leaving: Leaving::No,
        })
    }

    /// Chunks that are not GC's.
    pub fn chunks_own(&self) -> u32 {
        self.chunks_all.end - self.chunks_all.start
    }

    /// Its own buffers.
    pub fn chunks(&self) -> Range<u32> {
        self.chunks_all.clone()
    }

    pub fn owns_chunk(&self, chunk: u32) -> bool {
        self.chunks_all.contains(&chunk)
    }

    /// Nothing that was read into `chunk` is needed any more.
    pub fn give_chunk(&mut self, chunk: u32) {
        match &mut self.filling {
            Some((filling, used)) if *filling == chunk => *used = 0,
            _ => self.chunks.push(chunk),
        }
    }

    /// The chunk to read into, and how much of it is used: `None` if but `kept` are left.
    fn take_room(&mut self, kept: usize) -> Option<(u32, u32)> {
        if self.filling.is_none() && self.chunks.len() > kept {
            self.filling = self.chunks.pop().map(|chunk| (chunk, 0));
        }
        self.filling
    }

    /// Nothing is in hand.
    pub fn rests(&self) -> bool {
        self.victims.is_empty() && self.moves.is_empty() && self.kept.is_empty()
    }
}

/// Numbers of free bands of the fast tier below which something happens.
#[derive(Clone, Copy, Debug)]
struct Levels {
    /// The host opens none.
    floor: u32,
    /// The host has only what destage earns it.
    throttle: u32,
    /// Destage begins.
    start: u32,
}

/// Fewest bands that a fast tier must have: two checkpoints, the reserve, an open band for each of
/// `handles` and what destage works on.
pub(crate) fn fast_bands_min(checkpoint_bands: u32, handles: u32) -> u32 {
    2 * checkpoint_bands + RECORD_BANDS + handles + 3
}

/// The fast tier of a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TierStatus {
    /// Its bands.
    pub bands: u32,
    /// Of them, those that are free.
    pub bands_free: u32,
    /// Slots that it has.
    pub slots: u64,
    /// Of them, those that hold valid data.
    pub slots_valid: u64,
    /// It is being drained, to be detached.
    pub leaves: bool,
    /// All units of one tier are gone: which.
    pub lost: Option<LostTier>,
}

/// Fewest blocks that the fast tier of a device must have: of `geometry`, with so many entries in its map (of logical
/// blocks, and of shadows), under these settings.
pub fn fast_blocks_min(geometry: &Geometry, entries: u32, settings: &Settings) -> u32 {
    let bands = CheckpointLayout::new(geometry, entries.max(1));
    let bands = bands.map_or(u32::MAX / 4, |layout| layout.bands);
    fast_bands_min(bands, u32::from(settings.handles))
}

impl Ftl {
    /// Who has how much of the fast tier: what volumes save up takes half of the bands in which the
    /// host is throttled.
    pub(crate) fn set_up_shares(&mut self) {
        if self.geometry.is_tiered() {
            let levels = self.levels();
            let bands = (levels.throttle - levels.floor) / 2;
            let reserve = bands.max(1) * self.geometry.slots_per_block() / 2;
            self.shares = Shares::new(&self.settings.fast_shares, reserve);
        }
    }

    /// Whether the fast tier is large enough for this device; `Err` says how large it must be.
    pub(crate) fn check_fast_tier(&self, health: &Health) -> Result<(), String> {
        if !self.geometry.is_tiered() {
            return Ok(());
        }
        let bad = health.bad_blocks.iter().filter(|&&block| self.geometry.is_fast(block)).count();
        let bands = self.geometry.fast_blocks().saturating_sub(bad as u32);
        let min = fast_bands_min(self.layout.bands, u32::from(self.settings.handles));
        if bands < min {
            let band_bytes = u64::from(self.geometry.slots_per_block()) * BLOCK_BYTES as u64;
            let mib = (band_bytes * u64::from(min)) >> 20;
            return Err(format!(
                "the fast tier has {bands} usable bands: a device of {} logical blocks with {} \
                 handles wants {min} at least ({mib} MiB)",
                self.map.blocks(),
                self.settings.handles
            ));
        }
        Ok(())
    }

    /// Slots that went from the fast tier to the capacity tier since the mount.
    pub fn slots_destaged(&self) -> u64 {
        self.counters.slots_destaged
    }

    pub(crate) fn tier_status(&self) -> Option<TierStatus> {
        let bands = self.geometry.fast_blocks();
        self.geometry.is_tiered().then(|| TierStatus {
            bands,
            bands_free: self.bands.free_fast,
            slots: u64::from(bands) * u64::from(self.geometry.slots_per_block()),
            slots_valid: self.slots_valid_fast(),
            leaves: self.is_leaving(),
            lost: self.tier_lost(),
        })
    }

    /// The units that append points of `purpose` use.
    pub(crate) fn units_for(&self, purpose: Purpose) -> Range<u32> {
        let (slow, all) = (self.geometry.capacity_units(), self.geometry.units);
        match purpose {
            _ if slow == all => 0..all,
            Purpose::Checkpoint if self.checkpoints_leave() => 0..slow,
            Purpose::Host if self.is_leaving() => 0..slow,
            Purpose::Host | Purpose::Checkpoint => slow..all,
            Purpose::Destage | Purpose::Relocate => 0..slow,
        }
    }

    /// Units that are not fast.
    pub(crate) fn slow_units(&self) -> u32 {
        self.geometry.units - self.geometry.fast.units
    }

    /// Whether `point` appends to the fast tier.
    #[inline]
    pub(crate) fn on_fast(&self, point: usize) -> bool {
        self.points[point].purpose == Purpose::Host && self.tier_serves()
    }

    fn is_fast_slot(&self, slot: u32) -> bool {
        is_slot(slot) && self.geometry.is_fast(self.bands.block_of(SlotId(slot)))
    }

    fn levels(&self) -> Levels {
        let bands = self.geometry.fast_blocks();
        let floor = self.checkpoint_reserve_fast() + RECORD_BANDS;
        let throttle = floor + 1 + bands / THROTTLE_SHARE;
        let free = u64::from(bands) * u64::from(100 - self.settings.destage_above) / 100;
        Levels { floor, throttle, start: (free as u32).max(throttle + 1) }
    }

    /// Free bands of the fast tier that stay for a checkpoint. What cannot wait goes to the capacity
    /// tier instead.
    fn checkpoint_reserve_fast(&self) -> u32 {
        if self.checkpoints_leave() { 0 } else { self.bands_for_checkpoint() }
    }

    /// Below this many free bands no append point of the host opens one of the fast tier.
    pub(crate) fn fast_floor(&self) -> u32 {
        self.levels().floor
    }

    /// Most placement handles of the host that the fast tier has bands for.
    pub(crate) fn handles_max_fast(&self) -> u32 {
        self.geometry.fast_blocks().saturating_sub(fast_bands_min(self.layout.bands, 0)) / 2
    }

    pub(crate) fn may_open_tiered(
        &self,
        purpose: Purpose,
        has_open: bool,
        grounds: Grounds,
    ) -> bool {
        if self.now < self.no_space_until {
            return false;
        }
        let (free, free_fast) = (self.bands.free, self.bands.free_fast);
        let (record, group) = (grounds.is_record(), self.host.atomic_placing);
        match purpose {
            Purpose::Checkpoint => true,
            Purpose::Host if record || group => free_fast > self.checkpoint_reserve_fast(),
            // What waits for clean bands is what frees those that are held.
            Purpose::Host if self.checkpoint_starves() => false,
            Purpose::Host => free_fast > self.fast_floor() + u32::from(has_open),
            _ if record => free > 0,
            Purpose::Destage => free > self.host_floor() + u32::from(has_open),
            Purpose::Relocate if has_open => free > self.host_floor(),
            Purpose::Relocate => free > 0,
        }
    }

    fn checkpoint_starves(&self) -> bool {
        let clean = |unit| self.bands.clean(unit).len() as u32;
        self.checkpoint.is_wanted()
            && self.units_for(Purpose::Checkpoint).map(clean).sum::<u32>() <= self.layout.bands
    }

    /// A checkpoint waits for clean bands of the tier that GC works on.
    pub(crate) fn checkpoint_starves_capacity(&self) -> bool {
        !self.tier_serves()
            && self.checkpoint.is_wanted()
            && self.clean_capacity() <= self.layout.bands
    }

    /// Erased bands that are not of the fast tier.
    pub(crate) fn clean_capacity(&self) -> u32 {
        let units = 0..self.geometry.capacity_units();
        units.map(|unit| self.bands.clean(unit).len() as u32).sum()
    }

    /// True if the host must wait before it appends: for GC, or for destage.
    pub(crate) fn gate_host(&self, index: u32) -> bool {
        match &self.tier {
            Some(tier) if tier.leaving == Leaving::No => {
                let short = || self.bands.free_fast < self.levels().throttle;
                let may = self.share_has_credit(index);
                // Who is held back because the units are busy goes on when they are not.
                let idle = tier.victims.is_empty() && may.is_none_or(|_| self.units.no_work_runs());
                !may.unwrap_or_else(|| tier.credit > 0 || !short()) && !self.host.borrowing && !idle
            }
            _ => self.gate_writes(),
        }
    }

    /// What hosts write goes to the fast tier.
    pub(crate) fn destages_for_hosts(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.leaving == Leaving::No)
    }

    /// The fast tier has no room for an atomic write and none to come, but the capacity tier has.
    pub(crate) fn room_behind(&self, index: u32) -> bool {
        let destages = |&point: &usize| self.points[point].purpose == Purpose::Destage;
        self.host.borrowing
            && (0..self.points.len()).filter(destages).any(|at| self.room_for_group(index, at))
    }

    /// The host has placed one slot.
    #[inline]
    pub(crate) fn charge_host(&mut self, index: u32) {
        self.charge_share(index);
        match &mut self.tier {
            Some(tier) if tier.leaving == Leaving::No => tier.credit -= 256,
            _ => self.reclaim.credit -= 256,
        }
    }

    /// Who appends to the same units as GC has something that waits.
    pub(crate) fn someone_waits_for_gc(&self) -> bool {
        match &self.tier {
            None => !self.host.writes.is_empty(),
            Some(tier) => {
                !tier.moves.is_empty()
                    || tier.leaving != Leaving::No && !self.host.writes.is_empty()
            }
        }
    }

    /// What was read finds no place, though nothing runs that could make one.
    pub(crate) fn destage_stands_still(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| !tier.moves.is_empty()) && self.units.no_work_runs()
    }

    /// The host waits, and the fast tier is nearly full.
    pub(crate) fn host_waits_for_destage(&self) -> bool {
        self.tier_serves()
            && !self.host.writes.is_empty()
            && self.bands.free_fast < self.levels().throttle
    }

    /// Something of `request` went to `slot`, and what was in `previous` is not needed any more.
    #[inline]
    pub(crate) fn note_placed(&mut self, request: u32, slot: SlotId, previous: u32) {
        if !self.geometry.is_tiered() {
            return;
        }
        if !self.is_fast_slot(slot.0) {
            self.counters.requests_spilled += u64::from(!self.host.requests[request].spilled);
            self.host.requests[request].spilled = true;
        }
        self.counters.slots_dropped += u64::from(self.is_fast_slot(previous));
    }

    /// What was in `from` has moved.
    #[inline]
    pub(crate) fn note_moved(&mut self, from: SlotId, to: SlotId, owner: Owner) {
        if self.geometry.is_tiered()
            && matches!(owner, Owner::Relocation(_))
            && self.is_fast_slot(from.0)
        {
            let stayed = self.is_fast_slot(to.0);
            self.counters.slots_kept += u64::from(stayed);
            self.counters.slots_destaged += u64::from(!stayed);
        }
    }

    /// Counts blocks of host reads that the fast tier serves.
    #[inline]
    pub(crate) fn note_read(&mut self, slot: u32, blocks: u32) {
        if self.geometry.is_tiered() && self.is_fast_slot(slot) {
            self.counters.host_blocks_read_fast += u64::from(blocks);
        }
    }

    /// Moves destage on as far as it can go now.
    pub(crate) fn tier_pump(&mut self) {
        self.place_kept();
        self.place_destaged();
        self.pick_destage();
        let mut index = 0;
        while index < self.tier_mut().victims.len() {
            if !self.destaged(index) {
                self.read_destage(index);
                index += 1;
            }
        }
        self.ask_for_records();
        self.free_buffers();
        self.resume_destage();
    }

    /// All buffers are taken by pages that are being filled, while the host waits, or the tier is to
    /// be emptied: these go out as they are.
    fn free_buffers(&mut self) {
        let tier = self.tier_mut();
        let taken = tier.chunks.is_empty() && tier.filling.is_none();
        let early = !tier.moves.is_empty() || !self.host_waits_for_destage() && !self.is_leaving();
        if !taken || early {
            return;
        }
        if self.units.no_work_runs() {
            for point in 0..self.points.len() {
                if !self.on_fast(point) {
                    self.seal(point);
                }
            }
        }
    }

    fn tier_mut(&mut self) -> &mut Tier {
        self.tier.as_mut().expect("a two-tier device")
    }

    /// Whether what is read may still be destaged. At a shutdown it stays where it is.
    pub(crate) fn may_destage(&self) -> bool {
        self.phase == Phase::Running
            || self.phase == Phase::Stopping
                && (!self.host.writes.is_empty() || self.checkpoint_starves())
    }

    fn pick_destage(&mut self) {
        let levels = self.levels();
        while self.may_destage() && !self.checkpoint.settling {
            let free = self.bands.free_fast;
            if free >= levels.throttle {
                self.tier_mut().credit = 0;
            }
            match free {
                _ if free >= levels.start => self.shares.refill(),
                _ if free < levels.throttle => self.shares.run_short(),
                _ => {}
            }
            let victims = self.tier_mut().victims.len();
            // Emptied bands wait for the pages that hold the copies: more victims fill those.
            let emptied =
                if self.host_waits_for_destage() { 0 } else { self.bands.draining_fast() };
            let all = self.is_leaving();
            let enough = !all && free + (victims + emptied) as u32 >= levels.start;
            if enough || victims >= self.victims_wanted(&levels) {
                return;
            }
            let Some((block, keeps)) = self.fast_victim() else { return };
            let reason = match keeps {
                _ if all => "destage: the fast tier leaves",
                true => "destage: what lives on in a band that was overwritten in part is kept",
                false => "destage: the fast tier fills",
            };
            self.destage(block, keeps, reason);
        }
    }

    /// The band to reclaim next, and whether what is valid in it stays on the tier. That pays if a good
    /// part of the band was overwritten: then the tier holds more that is valid, and for longer. What
    /// stayed once leaves at its second turn. It has half of the tier: with more of it the host's bands
    /// come to their turn sooner, with more that has yet to be overwritten, which the fast units then copy.
    fn fast_victim(&self) -> Option<(BlockId, bool)> {
        let undecided = self.tier.as_ref().map_or(&[][..], |tier| &tier.undecided);
        let oldest = |kept: bool| {
            let mut full = self.bands.fast_full(kept).iter().copied();
            full.find(|block| !self.holds_failed_slots(*block) && !undecided.contains(block))
        };
        let (new, kept) = (oldest(false), oldest(true));
        let slots = self.geometry.slots_per_block();
        let pays = |block: &BlockId| {
            self.may_keep() && 100 * self.bands[*block].slots_valid < KEPT_BELOW * slots
        };
        let keeps = new.as_ref().is_some_and(pays);
        let (Some(new), Some(kept)) = (new, kept) else {
            return new.map(|block| (block, keeps)).or(kept.map(|block| (block, false)));
        };
        let takes_kept = if keeps {
            self.slots_kept() >= self.bands.fast_full(false).len() as u32 * slots
        } else {
            self.bands[kept].first_order < self.bands[new].first_order
        };
        Some(if takes_kept { (kept, false) } else { (new, keeps) })
    }

    /// Nothing is kept that the host needs the room for; nor where what is kept, in bands of its own on
    /// each unit, would be much of the tier.
    fn may_keep(&self) -> bool {
        if self.phase != Phase::Running || self.is_leaving() {
            return false;
        }
        let Levels { floor, throttle, .. } = self.levels();
        if self.bands.free_fast <= floor + (throttle - floor) / 4 {
            return false;
        }
        let points = self.points.iter().filter(|point| point.keeps && !point.idle).count() as u32;
        let of_kept = BANDS_PER_KEPT * points * self.geometry.fast.units;
        self.geometry.fast_blocks() >= floor + of_kept
    }

    /// Appends what stays to the fast tier, or if no band can be had for it, has it destaged.
    fn place_kept(&mut self) {
        while let Some(mut entry) = self.tier_mut().kept.pop_front() {
            let from = entry.from.expect("what is kept comes from somewhere");
            let point = usize::from(entry.point);
            if !self.bands.is_valid(from) {
                self.unhold_source(&entry);
                self.tell(entry.append.owner);
            } else if self.may_keep() && self.page_of(point, Grounds::Usual).is_some() {
                self.unhold_source(&entry);
                // It takes one of the slots that the band gives.
                self.tier_mut().credit += entry.credit - 256;
                self.shares.earn(entry.credit - 256);
                self.place_move(entry, point, false);
            } else if self.may_keep() && self.waits_for_queue(point) {
                self.tier_mut().kept.push_front(entry);
                return;
            } else {
                entry.point = self.destage_point(entry.append.lba, self.bands.block_of(from));
                self.tier_mut().moves.push_back(entry);
            }
        }
    }

    /// Slots of bands of what was kept, and of what is on its way there.
    fn slots_kept(&self) -> u32 {
        let full = self.bands.fast_full(true).len() as u32 * self.geometry.slots_per_block();
        let bands = self.points.iter().filter(|point| point.keeps).flat_map(|point| point.bands());
        let open = bands.map(|open| self.bands[self.opens[open].block].slots_written);
        let victims = self.tier.iter().flat_map(|tier| &tier.victims);
        let coming = victims.map(|victim| &self.bands[victim.block]).filter(|band| band.stays);
        full + open.sum::<u32>() + coming.map(|band| band.slots_valid).sum::<u32>()
    }

    /// What is to be kept finds no page on the fast tier because its units are busy, and not for want
    /// of bands: to destage it for that would cost the capacity tier what half a page time saves.
    fn waits_for_queue(&self, point: usize) -> bool {
        self.may_open(Purpose::Host, self.points[point].has_open(), Grounds::Usual)
            && !self.units.no_work_runs()
    }

    /// One at ease, more as the tier fills.
    fn victims_wanted(&self, levels: &Levels) -> usize {
        let short = levels.start.saturating_sub(self.bands.free_fast) as usize;
        let range = (levels.start - levels.throttle) as usize;
        let chunks = self.tier.as_ref().map_or(0, Tier::chunks_own);
        // As many as fill the buffers: each page of them is on its way to a unit of its own.
        let most = (chunks / self.geometry.pages_per_block).max(VICTIMS_MIN) as usize;
        if self.is_leaving() { most } else { (1 + short * (most - 1) / range).min(most) }
    }

    /// Begins to destage a full band of the fast tier.
    pub(crate) fn destage(&mut self, block: BlockId, keeps: bool, reason: &'static str) {
        let levels = self.levels();
        let slots = i64::from(self.geometry.slots_per_block());
        let valid = i64::from(self.bands[block].slots_valid);
        let room = i64::from(self.bands.free_fast.saturating_sub(levels.floor));
        // 3/4 of what the band gives at the floor, 5/4 of it where throttling begins.
        let share = 192 + 128 * room / i64::from(levels.throttle - levels.floor);
        let credit = slots * share / valid.max(1);
        self.counters.bands_destaged += 1;
        self.units[self.geometry.unit_of(block) as usize].last_reason = reason;
        self.bands.set_state(block, BandState::Victim);
        self.bands[block].stays = keeps;
        let cursor = self.geometry.slot(block, 0, 0);
        let ceiling = self.credit_max();
        let tier = self.tier_mut();
        tier.credit = tier.credit.clamp(-ceiling, ceiling);
        tier.victims.push(Victim { block, cursor, reads: 0, credit, for_space: true });
    }

    /// Ends the victim at `index` if nothing of it is left to do.
    fn destaged(&mut self, index: usize) -> bool {
        let tier = self.tier.as_ref().expect("a two-tier device");
        let Victim { block, cursor, reads, .. } = tier.victims[index];
        if cursor < self.band_end(block) || reads > 0 {
            return false;
        }
        if self.bands[block].slots_valid > 0 {
            // What was read and has no place yet counts there, too.
            if self.bands[block].reads_pending > 0 {
                return false;
            }
            // Something stayed: part of an undecided atomic write, or a shutdown.
            let undecided = self.host.groups_undecided > 0;
            let tier = self.tier_mut();
            tier.victims.remove(index);
            tier.undecided.extend(undecided.then_some(block));
            self.bands.set_state(block, BandState::Full);
            self.restore_failing(block);
            return true;
        }
        self.tier_mut().victims.remove(index);
        self.bands.set_state(block, BandState::Draining);
        self.drain();
        true
    }

    /// Reads the next valid slots of a victim, as long as there are buffers.
    fn read_destage(&mut self, index: usize) {
        let pressed = self.bands.free_fast < self.levels().throttle || self.is_leaving();
        let tier = self.tier_mut();
        let kept = if pressed {
            0
        } else {
            tier.chunks_all.len() - (tier.chunks_all.len() / CHUNKS_AT_EASE).max(1)
        };
        loop {
            let tier = self.tier.as_mut().expect("a two-tier device");
            let Victim { block, cursor, .. } = tier.victims[index];
            let end = self.geometry.slot(block, 0, 0).0 + self.geometry.slots_per_block();
            if cursor.0 >= end {
                return;
            }
            let Some(first) = self.bands.next_valid(cursor, SlotId(end)) else {
                tier.victims[index].cursor = SlotId(end);
                return;
            };
            let Some((chunk, used)) = tier.take_room(kept) else { return };
            tier.victims[index].reads += 1;
            let count = self.read_run(first, chunk, used);
            let left = self.geometry.slots_per_page - used - count;
            let tier = self.tier_mut();
            tier.filling = (left > 0).then_some((chunk, used + count));
            tier.victims[index].cursor = SlotId(first.0 + count);
        }
    }

    /// Appends what was read to the capacity tier, as far as there is room.
    fn place_destaged(&mut self) {
        while let Some(front) = self.tier_mut().moves.front() {
            let (lba, wished) = (front.append.lba, usize::from(front.point));
            let from = front.from.expect("what is destaged comes from somewhere");
            if !self.bands.is_valid(from) || self.drops_valid(lba, from) {
                let dropped = self.pop_destaged();
                self.tell(dropped.append.owner);
                continue;
            }
            if self.gate_writes() {
                return;
            }
            self.lba_next = lba;
            let Some(point) = self.place_for_destage(wished) else { return };
            let entry = self.pop_destaged();
            self.tier_mut().credit += entry.credit;
            self.shares.earn(entry.credit);
            self.reclaim.credit -= 256;
            self.place_move(entry, point, false);
        }
    }

    /// A seeded bug: one valid block in so many is forgotten.
    fn drops_valid(&mut self, lba: u32, from: SlotId) -> bool {
        let drops = self.is_mutant(Mutant::DropWhenDestaged) && from.0.is_multiple_of(5);
        if drops {
            let order = self.durable.next() - 1;
            self.remap_known(self.holder(lba, from), from.0, UNMAPPED, order);
        }
        drops
    }

    fn pop_destaged(&mut self) -> Move {
        let entry = self.tier_mut().moves.pop_front().expect("the front was looked at");
        self.unhold_source(&entry);
        entry
    }

    /// The wished append point; where space is tight, one of another handle of destage that has room;
    /// and any of the capacity tier rather than that all stands still.
    fn place_for_destage(&mut self, wished: usize) -> Option<usize> {
        let closing = self.closing_point(wished, Grounds::Usual);
        if self.page_of(closing, Grounds::Usual).is_some() {
            return Some(closing);
        }
        let tight = self.bands.free <= self.host_floor();
        let stuck = tight && self.units.no_work_runs();
        let others: Vec<_> = (0..self.points.len())
            .filter(|&other| match self.points[other].purpose {
                Purpose::Destage => tight,
                Purpose::Relocate => stuck,
                Purpose::Host | Purpose::Checkpoint => false,
            })
            .collect();
        others.into_iter().find(|&other| self.page_of(other, Grounds::Usual).is_some())
    }

    /// Programs what the fast tier's append points are filling where the unit is nearly idle: nobody
    /// waits for a page to fill that costs only what is in it.
    pub(crate) fn commit_fast(&mut self) {
        for point in 0..self.points.len() {
            let page = self.points[point].page;
            if page == NONE || !self.on_fast(point) {
                continue;
            }
            let entry = &self.pages[page];
            let unit = self.geometry.unit_of(self.opens[entry.open].block);
            let waiting = self.units[unit as usize].appends_waiting();
            if !entry.slots.is_empty() && waiting < PROGRAMS_BEFORE_COMMIT {
                self.seal(point);
            }
        }
    }

    /// Emptied bands may hold records that recovery needs until the next checkpoint: where bands are
    /// short, that comes now.
    fn ask_for_records(&mut self) {
        if self.bands.free_fast >= self.levels().throttle {
            return;
        }
        let mut draining = self.bands.draining.iter();
        let held = draining.any(|&block| {
            self.geometry.is_fast(block) && self.bands[block].hold_order >= self.checkpoint.order
        });
        if held {
            self.checkpoint.want();
        }
    }

    /// What destage has in hand stays where it is.
    pub(crate) fn rest_destage(&mut self) {
        let Some(tier) = &mut self.tier else { return };
        let kept = std::mem::take(&mut tier.kept);
        for entry in std::mem::take(&mut tier.moves).into_iter().chain(kept) {
            self.unhold_source(&entry);
            self.tell(entry.append.owner);
        }
        for index in 0..self.tier_mut().victims.len() {
            let block = self.tier_mut().victims[index].block;
            let end = self.band_end(block);
            self.tier_mut().victims[index].cursor = end;
        }
        let mut index = 0;
        while index < self.tier_mut().victims.len() {
            index += usize::from(!self.destaged(index));
        }
    }
}
