//! GC: choose a victim, relocate what is valid in it, hand the band back when it may be erased.
//! Also scrub, refresh and wear moves, which are reclaims for another reason.
//!
//! Pacing: below `bands_free_low` free bands, every relocated slot earns the host a few appends,
//! more while many bands are free and fewer as they run out, so that writes slow down smoothly and
//! never stop dead. Reads take no part in this.

use crate::format::{Header, Kind, UNMAPPED};
use crate::gc::poison::Search;
use crate::log::moves::Move;
use crate::log::points::{Append, NONE, Owner};
use crate::mutant::Mutant;
use crate::policy::{FullBands, Purpose, WearView};
use crate::space::bands::BandState;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::space::{Grounds, RESERVE_BANDS};
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{BlockId, MediumError, Payload, SlotData, SlotId, SlotRead, SlotStatus};
use std::collections::VecDeque;

/// At most one in so many spare bands is kept free to spread appends: what is free holds no data,
/// so GC works with that much less.
const SPARE_PER_FREE: u32 = 4;

/// Units for each victim at a time, unless the settings say how many.
const UNITS_PER_VICTIM: u32 = 2;

/// Least of these victims, on a device of few units.
const VICTIMS_MIN: u32 = 4;

/// Slots that were read and wait to be placed, for each that a page on every unit would take.
const MOVES_PER_PLACE: u32 = 4;

/// A gap of a page's slots over this is read: to sense the page once more would take longer.
const PAGES_PER_GAP: u32 = 8;

/// Reads of a victim at a time while reads have a service level and no write waits for space.
const VICTIM_READS_PACED: u32 = 4;

/// At most one wear move in so many bands that the host opens: 6 % of its appends.
const HOST_BANDS_PER_WEAR_MOVE: u64 = 16;

#[derive(Clone, Debug)]
pub(crate) struct Victim {
    pub block: BlockId,
    /// Next slot to look at.
    pub cursor: SlotId,
    /// Reads running.
    pub reads: u32,
    /// Host slots that each relocated slot earns, in 1/256.
    pub credit: i64,
    /// It was taken because space was short, and for nothing else.
    pub for_space: bool,
}

/// A valid slot of a victim that was read.
#[derive(Clone, Debug)]
struct Arrival {
    slot: SlotId,
    /// What is beside it, if it is sound.
    header: Option<Header>,
    /// Where the driver keeps it, in which chunk of relocation buffers.
    data: Payload,
    chunk: u32,
    /// Host slots that its relocation earns, in 1/256.
    credit: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaim {
    pub victims: Vec<Victim>,
    /// Reads running, of all of them.
    reads: u32,
    /// Bands to reclaim for another reason than space.
    pub wanted: VecDeque<(BlockId, &'static str)>,
    /// Slots that were found lost, and whose blocks are being looked for.
    pub search: Search,
    /// Chunks of one page of relocation buffers that are free.
    chunks: Vec<u32>,
    /// Slots in use of each chunk.
    chunk_slots: Vec<u32>,
    /// Read since `Ftl::take_arrivals`.
    arrivals: Vec<Arrival>,
    /// Read, and waiting for the map to tell whether they are what they say.
    doubted: Vec<Arrival>,
    /// Host slots that may be placed while space is short, in 1/256.
    pub credit: i64,
    /// Free bands that let appends go to all units at a time, if the settings do not say how many.
    bands_to_spread: u32,
    wear_checked: u64,
    scrub_cursor: u32,
    scrub_at: Option<flash::Instant>,
    /// A page is being scrubbed: the next one waits for it, however busy its unit is.
    scrubbing: bool,
}

impl Reclaim {
    /// These chunks are nobody else's any more.
    pub fn take_chunks(&mut self, chunks: std::ops::Range<u32>) {
        self.chunks.extend(chunks);
    }

    /// With buffers of `chunks` chunks, of which the last few are for others.
    pub fn new(chunks: u32, others: u32) -> Self {
        Self {
            chunks: (0..chunks - others).rev().collect(),
            chunk_slots: vec![0; chunks as usize],
            ..Self::default()
        }
    }
}

impl Ftl {
    /// Free bands that stay for a checkpoint.
    fn checkpoint_reserve(&self) -> u32 {
        if self.tier_serves() { 0 } else { self.bands_for_checkpoint() }
    }

    /// Below this many free bands no append point of the host opens a band.
    pub(crate) fn host_floor(&self) -> u32 {
        self.checkpoint_reserve() + RESERVE_BANDS
    }

    /// Below this many GC runs.
    pub(crate) fn bands_free_low(&self) -> u32 {
        match self.settings.bands_free_low {
            0 => self.host_floor() + 2 + self.reclaim.bands_to_spread + self.bands_for_streams(),
            low => low.max(self.host_floor() + 1),
        }
    }

    /// Free bands that let appends go to all units at a time, by the settings and the size.
    pub(crate) fn set_up_reclaim(&mut self) {
        let units = self.slow_units();
        let data = self.map.blocks().div_ceil(self.geometry.slots_per_block());
        let spare = self.geometry.capacity_blocks().saturating_sub(data);
        // A device that is full to the brim has its spare bands for checkpoints and GC itself.
        let reserved = 2 * self.layout.bands + RESERVE_BANDS + units;
        let allowed = spare.saturating_sub(reserved) / SPARE_PER_FREE;
        self.bands.spreads = allowed >= units;
        self.reclaim.bands_to_spread = match self.settings.read_slo_ns {
            0 => units.min(allowed).max(units / 4),
            // GC goes in small steps, a little on many units at a time, or it crowds on a few.
            _ => units / 4 + (2 * units).min(spare / SPARE_PER_FREE),
        };
    }

    /// Below this many GC runs. With a read service level it starts earlier than it must, and the
    /// number of victims follows the shortage: neither starts nor ends in a burst.
    pub(crate) fn gc_low(&self) -> u32 {
        let ahead = if self.settings.read_slo_ns > 0 { 2 + self.slow_units() / 8 } else { 0 };
        self.bands_free_low() + ahead
    }

    pub(crate) fn may_open(&self, purpose: Purpose, has_open: bool, grounds: Grounds) -> bool {
        if self.now < self.no_space_until {
            return false;
        }
        if self.tier_serves() {
            return self.may_open_tiered(purpose, has_open, grounds);
        }
        let free = self.bands.free;
        let record = match grounds {
            Grounds::Record => free > 0,
            Grounds::Trim => free > self.last_bands(),
            _ => false,
        };
        if self.checkpoint.is_wanted() && self.clean_capacity() <= self.layout.bands {
            // A checkpoint that waits for clean bands is what frees the held ones. If there is none,
            // GC is what makes them.
            let pressed = grounds == Grounds::Pressed && purpose == Purpose::Relocate && free > 1;
            return record || self.host.atomic_placing && free > 1 || pressed;
        }
        if self.host.atomic_placing {
            // What GC empties waits for the group: it must be placed with what there is.
            return record || purpose == Purpose::Host && free > 1;
        }
        match purpose {
            _ if grounds.is_record() => record,
            Purpose::Host | Purpose::Destage => free > self.host_floor() + u32::from(has_open),
            Purpose::Relocate if has_open => free > self.host_floor(),
            Purpose::Relocate => free > self.relocate_floor(grounds),
            Purpose::Checkpoint => true,
        }
    }

    pub(crate) fn reclaim_pump(&mut self) {
        if !self.may_write() {
            return;
        }
        if self.drain_check {
            self.drain();
        }
        let budget = self.credit_wanted();
        self.pick_victims(budget);
        // What was read and finds no place does not find it sooner with more behind it.
        let places = self.slow_units() * self.geometry.slots_per_page;
        let crowded = self.moves.len() as u32 >= MOVES_PER_PLACE * places;
        let mut index = 0;
        while index < self.reclaim.victims.len() {
            if self.victim_done(index) {
                continue;
            }
            let tight = self.bands.free <= self.host_floor();
            if (index == 0 || !tight && !crowded) && !self.reclaim.chunks.is_empty() {
                self.read_victim(index, budget);
            }
            index += 1;
        }
    }

    /// Slots of victims that are being read, or were and have no place yet.
    fn slots_in_hand(&self) -> u32 {
        let of_victims = || self.reclaim.victims.iter().map(|victim| victim.reads).sum::<u32>();
        debug_assert_eq!(self.reclaim.reads, of_victims(), "reads are counted for each victim");
        self.reclaim.reads * self.geometry.slots_per_page + self.moves.len() as u32
    }

    fn pick_victims(&mut self, budget: i64) {
        let wanted = self.phase == Phase::Running || !self.host.writes.is_empty();
        while wanted && !self.checkpoint.settling && self.reclaim.victims.len() < self.victims_max()
        {
            if let Some((block, reason)) = self.next_wanted() {
                match self.bands[block].state {
                    BandState::Full if self.geometry.is_fast(block) => {
                        self.destage(block, false, reason)
                    }
                    BandState::Full => {
                        self.counters.slots_upkeep += u64::from(self.bands[block].slots_valid);
                        self.start_victim(block, reason, false);
                    }
                    _ => {}
                }
                continue;
            }
            let coming = self.reclaim.victims.len() + self.bands.draining_slow();
            if self.bands.free + coming as u32 >= self.gc_low() {
                if self.bands.free >= self.bands_free_low() {
                    self.reclaim.credit = 0;
                }
                self.pick_filler();
                return;
            }
            if self.reclaim.credit >= budget {
                return;
            }
            let Some(block) = self.pick_victim() else { return };
            self.start_victim(block, "gc: space was needed", true);
        }
    }

    /// Whether reclaiming `block` makes room, and all of it can be read.
    fn gains(&self, block: BlockId) -> bool {
        self.bands[block].slots_valid < self.geometry.slots_per_block()
            && !self.holds_failed_slots(block)
    }

    pub(crate) fn holds_failed_slots(&self, block: BlockId) -> bool {
        let first = self.geometry.slot(block, 0, 0);
        self.moves_failed > 0 && self.any_failed(first, self.geometry.slots_per_block())
    }

    /// Victims at a time. Several half relocated ones could take the last free bands and none give
    /// its own back, so there are never more than bands to spare.
    fn victims_max(&self) -> usize {
        let wished = match self.settings.victims_max {
            0 => (self.slow_units() / UNITS_PER_VICTIM).max(VICTIMS_MIN),
            set => set,
        };
        let spare = self.bands.free.saturating_sub(self.host_floor());
        wished.min(spare).max(1) as usize
    }

    pub(crate) fn pick_victim(&mut self) -> Option<BlockId> {
        let view = self.bands.view(self.durable.next());
        let picked = self.policies.victim.pick(&view, &mut self.random);
        let full = |block: &BlockId| {
            block.0 < self.geometry.blocks() && self.bands[*block].state == BandState::Full
        };
        self.counters.policy_invalid +=
            u64::from(!view.is_empty() && picked.as_ref().is_none_or(|block| !full(block)));
        let good = picked.filter(|block| full(block) && self.gains(*block));
        if good.is_some() && self.bands.free >= self.host_floor() {
            return good;
        }
        // GC is using up its own reserve: victims that gain little cost more pages than they give,
        // and a policy that went on like that would end with no space.
        let emptiest = view.emptiest().filter(|&block| self.gains(block));
        let slots = self.geometry.slots_per_block();
        let gain = |block: BlockId| slots - self.bands[block].slots_valid;
        let enough = |block: &BlockId| match emptiest {
            Some(emptiest) if self.bands.free < RESERVE_BANDS => gain(*block) >= gain(emptiest),
            Some(emptiest) => 4 * gain(*block) >= 3 * gain(emptiest),
            None => true,
        };
        let picked = good.filter(enough).or(emptiest);
        // On flash that wears out under more than it can keep, little gained is soon lost with another band.
        let pays = |block: &BlockId| !self.is_overfull() || 2 * gain(*block) >= slots;
        picked.filter(|block| pays(block) && self.finds_room(*block))
    }

    pub(crate) fn start_victim(&mut self, block: BlockId, reason: &'static str, for_space: bool) {
        let slots = i64::from(self.geometry.slots_per_block());
        let valid = i64::from(self.bands[block].slots_valid);
        let (floor, low) = (self.host_floor(), self.bands_free_low());
        let room = i64::from(self.bands.free.saturating_sub(floor));
        // 3/4 of what the victim gives at the floor, 5/4 of it at `low`.
        let share = 192 + 128 * room / i64::from((low - floor).max(1));
        let credit = (slots - valid) * share / valid.max(1);
        if valid == 0 {
            self.reclaim.credit += slots * share;
        }
        // What the host wrote while GC had no victim in hand it owes, for one band at most: on a volume of hundreds of
        // units and small bands it would else stand still, with each victim, until it had earned many bands.
        let least = -256 * slots - self.debt_max();
        self.reclaim.credit = self.reclaim.credit.clamp(least, self.credit_max());
        self.counters.victims += 1;
        self.units[self.geometry.unit_of(block) as usize].last_reason = reason;
        self.bands.set_state(block, BandState::Victim);
        let cursor = self.geometry.slot(block, 0, 0);
        self.reclaim.victims.push(Victim { block, cursor, reads: 0, credit, for_space });
    }

    /// The device is shut down: what GC took in hand ahead of need stays where it is. To finish
    /// that could take the bands that the last checkpoint needs.
    pub(crate) fn rest_victims(&mut self) {
        for index in 0..self.reclaim.victims.len() {
            let Victim { block, for_space, .. } = self.reclaim.victims[index];
            if for_space {
                self.reclaim.victims[index].cursor = self.band_end(block);
            }
        }
    }

    /// Ends the victim at `index` if nothing of it is left to do.
    pub(crate) fn victim_done(&mut self, index: usize) -> bool {
        let victim = &self.reclaim.victims[index];
        let block = victim.block;
        if victim.reads > 0 || victim.cursor < self.band_end(block) {
            return false;
        }
        // Most of them have been read, and what is in them waits for a place: they need not be looked at one by one.
        if self.bands.victims_empty == 0 && !self.moves.is_empty() {
            return false;
        }
        if self.bands[block].slots_valid > 0 {
            if self.reclaim.search.is_under_way() || !self.reclaim.doubted.is_empty() {
                return false;
            }
            if self.moves.is_empty() {
                // Something stayed: part of an undecided atomic write, or a slot given back.
                self.reclaim.victims.remove(index);
                self.bands.set_state(block, BandState::Full);
                self.restore_failing(block);
                return true;
            }
            return false;
        }
        self.reclaim.victims.remove(index);
        self.bands.set_state(block, BandState::Draining);
        self.drain();
        true
    }

    pub(crate) fn band_end(&self, block: BlockId) -> SlotId {
        SlotId((block.0 + 1) * self.geometry.slots_per_block())
    }

    /// Reads the next valid slots of a victim, as long as there are buffers.
    fn read_victim(&mut self, index: usize, budget: i64) {
        let Victim { block, cursor, .. } = self.reclaim.victims[index];
        if cursor >= self.band_end(block) {
            return;
        }
        let paced = self.settings.read_slo_ns > 0 && self.host.writes.is_empty();
        let reads_max = if paced { VICTIM_READS_PACED } else { u32::MAX };
        let mut in_hand = i64::from(self.slots_in_hand());
        let in_hand_max = self.in_hand_max();
        loop {
            let Victim { block, cursor, credit, for_space, .. } = self.reclaim.victims[index];
            if for_space && self.reclaim.credit + in_hand * credit >= budget {
                return;
            }
            let end = self.band_end(block);
            if cursor >= end
                || in_hand >= in_hand_max
                || self.reclaim.chunks.is_empty()
                || self.reclaim.victims[index].reads >= reads_max
            {
                return;
            }
            let Some(cursor) = self.bands.next_valid(cursor, end) else {
                self.reclaim.victims[index].cursor = end;
                return;
            };
            let chunk = self.reclaim.chunks.pop().expect("checked above");
            let victim = &mut self.reclaim.victims[index];
            // First, as the read may end at once.
            victim.reads += 1;
            self.reclaim.reads += 1;
            let count = self.read_run(cursor, chunk, 0);
            self.reclaim.victims[index].cursor = SlotId(cursor.0 + count);
            in_hand += i64::from(count);
        }
    }

    /// Reads the valid slots from `first` on, as far as they lie together in its page, for a move,
    /// into what `chunk` has left behind `used`. Returns how many slots that takes: narrow gaps are
    /// read, too, and what is in them is dropped.
    pub(crate) fn read_run(&mut self, first: SlotId, chunk: u32, used: u32) -> u32 {
        let per_page = self.geometry.slots_per_page;
        let page_end = first.0 - first.0 % per_page + per_page;
        let end = SlotId(page_end.min(first.0 + per_page - used));
        let count = self.bands.valid_run(first, end, per_page / PAGES_PER_GAP);
        self.reclaim.chunk_slots[chunk as usize] += count;
        let block = self.bands.block_of(first);
        let read = self.units.reads.take();
        let into = Payload { buffer: Payload::RELOCATION, index: chunk * per_page + used };
        self.units.reads[read] = ReadOp {
            purpose: ReadPurpose::Relocate(block, chunk),
            slot: first,
            count,
            into: Some(into),
            lba: 0,
            ..ReadOp::default()
        };
        self.bands[block].reads_pending += 1;
        self.queue_read(read);
        count
    }

    /// One slot of a chunk is programmed or not needed.
    pub(crate) fn give_relocation(&mut self, chunk: u32) {
        let slots = &mut self.reclaim.chunk_slots[chunk as usize];
        *slots -= 1;
        if *slots == 0 {
            match &mut self.tier {
                Some(tier) if tier.owns_chunk(chunk) => tier.give_chunk(chunk),
                _ => self.reclaim.chunks.push(chunk),
            }
        }
    }

    /// A victim's slots were read: what is still valid moves.
    pub(crate) fn end_relocation_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let ReadPurpose::Relocate(block, chunk) = op.purpose else {
            unreachable!("only relocation reads end here")
        };
        let is_it = |victim: &&mut Victim| victim.block == block;
        let own = self.reclaim.victims.iter_mut().find(is_it);
        self.reclaim.reads -= u32::from(own.is_some());
        let mut destaged = self.tier.iter_mut().flat_map(|tier| &mut tier.victims);
        let victim = own.or_else(|| destaged.find(is_it));
        let credit = victim.map_or(0, |victim| {
            victim.reads -= 1;
            victim.credit
        });
        for index in 0..op.count {
            let slot = SlotId(op.slot.0 + index);
            let into = op.into.map(|first| Payload { index: first.index + index, ..first });
            let Some((data, slots)) = into.zip(slots.ok()).filter(|_| self.bands.is_valid(slot))
            else {
                self.give_relocation(chunk);
                continue;
            };
            let header = self.check_slot(slot, &slots[index as usize]);
            self.reclaim.arrivals.push(Arrival { slot, header, data, chunk, credit });
        }
    }

    /// Turns what was read since the last call into moves, together: their looks at the map miss
    /// the cache at the same time and not one after the other.
    pub(crate) fn take_arrivals(&mut self) {
        let mut arrivals = std::mem::take(&mut self.reclaim.arrivals);
        for arrival in std::mem::take(&mut self.reclaim.doubted) {
            let source = self.bands.block_of(arrival.slot);
            self.bands[source].reads_pending -= 1;
            self.drain_check = true;
            arrivals.push(arrival);
        }
        for header in arrivals.iter().filter_map(|arrival| arrival.header.as_ref()) {
            self.warm(header.lba);
        }
        for arrival in arrivals.drain(..) {
            self.relocate_slot(arrival);
        }
        self.reclaim.arrivals = arrivals;
    }

    /// Whether what is beside a slot can be told to be of this life of its band. What recovery found
    /// cannot: where a whole life of a band was lost, with its first page, it found the one before.
    /// There the map has the last word; if its entry is not there, it is loaded.
    fn may_trust(&mut self, arrival: &Arrival) -> bool {
        let found = self.bands[self.bands.block_of(arrival.slot)].found;
        let lba = arrival.header.as_ref().map(|header| header.lba);
        match lba.filter(|&lba| found && self.map.is_cached() && lba < self.map.blocks()) {
            Some(lba) => self.entries_are_there(lba, 1),
            None => true,
        }
    }

    fn relocate_slot(&mut self, arrival: Arrival) {
        let source = self.bands.block_of(arrival.slot);
        if self.bands.is_valid(arrival.slot) && !self.may_trust(&arrival) {
            // Looked at again when its entry is there. Until then its band is not given up.
            self.bands[source].reads_pending += 1;
            self.reclaim.doubted.push(arrival);
            return;
        }
        let Arrival { slot, header, data, chunk, credit } = arrival;
        if !self.bands.is_valid(slot) {
            self.give_relocation(chunk);
            return;
        }
        let header = header.filter(|header| {
            // Where the entry is not there (`Ftl::may_trust`): the header is of this very slot and this
            // life of its band, and the slot is valid, so that entry is what points to it.
            let entry = self.map.peek(self.holder(header.lba, slot));
            let says = entry.is_none_or(|entry| entry == slot.0);
            header.kind == Kind::Data && header.lba < self.map.blocks() && says
        });
        let Some(header) = header else {
            self.give_relocation(chunk);
            self.poison(slot);
            return;
        };
        let destaged = self.geometry.is_fast(source);
        if self.group_undecided(header.sequence) || destaged && !self.may_destage() {
            self.give_relocation(chunk);
            return;
        }
        self.vouch_again(self.bands.unit_of_slot(slot), &header);
        let fresh = self.is_mutant(Mutant::RenumberRelocated);
        let sequence = if fresh { self.next_sequence() } else { header.sequence };
        let point = if destaged && self.bands[source].stays {
            self.keep_point(header.lba, source)
        } else if destaged {
            self.destage_point(header.lba, source)
        } else {
            self.choose_move_point(header.lba, source, header.sequence)
        };
        self.push_move(Move {
            append: Append {
                kind: Kind::Data,
                lba: header.lba,
                sequence,
                payload_crc: header.payload_crc,
                argument: 0,
                group: header.group,
                data: SlotData::Payload(data),
                owner: Owner::Relocation(chunk),
            },
            from: Some(slot),
            failed_order: None,
            previous: UNMAPPED,
            point,
            credit,
        });
    }

    /// Bands without valid slots go back to be erased, as soon as nothing needs them.
    pub(crate) fn drain(&mut self) {
        self.drain_check = false;
        let mut index = 0;
        while let Some(&block) = self.bands.draining.get(index) {
            if !self.may_erase(block) {
                index += 1;
                continue;
            }
            if self.bands[block].failing {
                self.retire(block, "program failed");
            } else {
                self.note_reclaimed(block);
                self.bands.set_state(block, BandState::Dirty);
                self.dispatch(self.geometry.unit_of(block));
            }
        }
    }

    fn may_erase(&self, block: BlockId) -> bool {
        let band = &self.bands[block];
        // First, because it is what keeps most of them.
        if band.reads_pending > 0 {
            return false;
        }
        let overwritten = band.vital_order < self.durable.vital_durable_below()
            || self.is_mutant(Mutant::EraseBeforeOverwritten);
        let durable = band.invalid_order < self.durable.durable_below() && overwritten
            || self.is_mutant(Mutant::ReuseBeforeDurable)
            || self.geometry.is_fast(block) && self.is_mutant(Mutant::EraseBeforeDestaged);
        let held =
            band.hold_order >= self.checkpoint.order && !self.is_mutant(Mutant::EraseHeldRecords);
        band.blank || durable && !held
    }

    /// What keeps draining bands from being erased, if nothing else will resolve it: makes orders
    /// durable, asks for a checkpoint.
    pub(crate) fn push_drain(&mut self) {
        assert!(!self.bands.draining.is_empty(), "there are bands to push");
        // In one walk, as it is gone every time that something happens while space is short.
        let (mut first, mut last, mut held) = (u64::MAX, 0, false);
        for &block in &self.bands.draining {
            let band = &self.bands[block];
            let order = band.invalid_order.max(band.vital_order);
            (first, last) = (first.min(order), last.max(order));
            held |= band.hold_order >= self.checkpoint.order;
        }
        if held {
            self.checkpoint.want();
        }
        let order = last.min(self.durable.next() - 1);
        if order >= self.durable.safe_below() {
            // While anything runs, its pages close the pairs for nothing; and a further victim
            // fills a page that padding would waste.
            if self.units.no_work_runs() && !self.fill_with_victim() {
                self.force_safe(order);
            }
            // What the last ones wait for may itself wait for a band, which a flush gives of the first ones.
            let waits_for_flush = self.durable.durable_below()..self.durable.safe_below();
            if self.units.no_work_runs() && waits_for_flush.contains(&first) {
                self.want_flush();
            }
        } else if order >= self.durable.durable_below() {
            self.want_flush();
        }
    }

    /// Starts a victim whose slots fill the page that the drained bands wait for.
    fn fill_with_victim(&mut self) -> bool {
        let page = self.points[self.relocate_point()].page;
        let wanted = page != NONE && self.reclaim.victims.is_empty() && self.moves.is_empty();
        if !wanted || self.phase != Phase::Running {
            return false;
        }
        let Some(block) = self.pick_victim() else { return false };
        self.start_victim(block, "gc: filled a page that others wait for", false);
        self.read_victim(0, i64::MAX);
        true
    }

    /// Asks for the band's data to be appended anew.
    pub(crate) fn refresh(&mut self, block: BlockId) {
        let listed = self.reclaim.wanted.iter().any(|&(other, _)| other == block);
        if self.bands[block].state == BandState::Full && !listed && self.phase == Phase::Running {
            self.counters.refreshes += 1;
            self.reclaim.wanted.push_back((block, "refresh: it is read with damage"));
        }
    }

    /// Moves cold data when wear has spread too far. Looked at once in a while of host bands, so
    /// that moves cost a bounded share of the host's appends and never feed on themselves.
    pub(crate) fn level_wear(&mut self) {
        let turn = self.counters.bands_opened_host / HOST_BANDS_PER_WEAR_MOVE;
        if self.reclaim.wear_checked == turn
            || !self.reclaim.wanted.is_empty()
            || self.bands.free <= self.host_floor()
        {
            return;
        }
        self.reclaim.wear_checked = turn;
        let full = self.bands.full().iter();
        let least = full.min_by_key(|&&block| (self.bands[block].erase_count, block)).copied();
        let Some(block) = least else { return };
        let view = WearView {
            erase_count_least_full: self.bands[block].erase_count,
            erase_count_most: self.bands.erase_count_most,
            endurance: self.geometry.endurance,
        };
        if self.policies.wear.move_wanted(&view) {
            self.counters.wear_moves += 1;
            self.reclaim.wanted.push_back((block, "wear: cold data moved"));
        }
    }

    /// One step of the scrub, if it is due: the next page with valid slots is read and checked. One
    /// page at a time, behind every read of the host, and never faster than the period asks for.
    pub(crate) fn scrub_pump(&mut self) {
        let period = self.settings.scrub_period_ns;
        if period == 0 || self.phase != Phase::Running {
            return;
        }
        let pages = self.geometry.blocks() * self.geometry.pages_per_block;
        let step = (period / u64::from(pages)).max(1);
        let due = *self.reclaim.scrub_at.get_or_insert(self.now + step);
        if self.now < due {
            return;
        }
        self.reclaim.scrub_at = Some(self.now + step);
        if self.reclaim.scrubbing {
            return;
        }
        let page = self.reclaim.scrub_cursor;
        self.reclaim.scrub_cursor = (page + 1) % pages;
        let block = BlockId(page / self.geometry.pages_per_block);
        let Some((slot, count)) = self.scrub_range(block, page) else { return };
        self.bands[block].reads_pending += 1;
        let read = self.units.reads.take();
        self.units.reads[read] =
            ReadOp { purpose: ReadPurpose::Scrub, slot, count, lba: UNMAPPED, ..ReadOp::default() };
        self.reclaim.scrubbing = true;
        self.queue_read(read);
        self.counters.pages_scrubbed += 1;
    }

    /// What of a page is worth a look: its valid slots, or any page of the last checkpoint.
    fn scrub_range(&self, block: BlockId, page: u32) -> Option<(SlotId, u32)> {
        let per_page = self.geometry.slots_per_page;
        let (first, end) = (SlotId(page * per_page), SlotId((page + 1) * per_page));
        if self.checkpoint.bands.contains(&block) {
            return Some((first, per_page));
        }
        let band = &self.bands[block];
        let programmed = match band.state {
            BandState::Full => true,
            BandState::Open => {
                let end = (page % self.geometry.pages_per_block + 1) * per_page;
                end <= band.slots_done
            }
            _ => false,
        };
        if !programmed || self.holds_failed_slots(block) {
            return None;
        }
        let from = self.bands.next_valid(first, end)?;
        let last = (from.0..end.0).rev().find(|&slot| self.bands.is_valid(SlotId(slot)))?;
        Some((from, last + 1 - from.0))
    }

    pub(crate) fn end_scrub_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        self.reclaim.scrubbing = false;
        let Ok(slots) = slots else { return };
        let block = self.bands.block_of(op.slot);
        if self.bands[block].state == BandState::Checkpoint {
            self.end_checkpoint_scrub(slots);
            return;
        }
        let mut fading = slots.iter().any(|read| self.fades(read));
        for (index, read) in slots.iter().enumerate() {
            let slot = SlotId(op.slot.0 + index as u32);
            if self.check_slot(slot, read).is_none() && self.bands.is_valid(slot) {
                self.counters.scrub_errors += 1;
                fading = true;
                // The relocation reads it once more: cells at their limit may be read then.
                self.refresh(block);
            }
        }
        if fading && self.bands[block].state == BandState::Open {
            self.fill_up(block);
        }
    }

    fn fades(&self, read: &SlotRead<'_>) -> bool {
        matches!(read.status, SlotStatus::Corrected(bits) if bits >= self.settings.refresh_bits)
    }

    /// Pads an open band whose data fades: a full one can be reclaimed.
    pub(crate) fn fill_up(&mut self, block: BlockId) {
        let mut opens = self.opens.indices();
        let open = opens.find(|&open| self.opens[open].live && self.opens[open].block == block);
        if let Some(open) = open.filter(|&open| self.opens[open].point != NONE) {
            // The next round of the scrub finds it full.
            self.pad_to(open, self.geometry.pages_per_block - 1);
        }
    }

    /// The last checkpoint is not what it was: the next one takes its place.
    fn end_checkpoint_scrub(&mut self, slots: &[SlotRead<'_>]) {
        let bad =
            |read: &SlotRead<'_>| read.status == SlotStatus::Uncorrectable || self.fades(read);
        if slots.iter().any(bad) && self.checkpoint.is_idle() {
            self.counters.refreshes += 1;
            self.checkpoint.want();
        }
    }

    pub(crate) fn scrub_deadline(&self) -> Option<flash::Instant> {
        let on = self.settings.scrub_period_ns > 0 && self.phase == Phase::Running;
        on.then(|| self.reclaim.scrub_at.unwrap_or(self.now))
    }

    /// The unit is lost, and with it the victims on it.
    pub(crate) fn forget_victims_of(&mut self, unit: u32) {
        let geometry = self.geometry;
        self.reclaim.victims.retain(|victim| geometry.unit_of(victim.block) != unit);
        self.reclaim.reads = self.reclaim.victims.iter().map(|victim| victim.reads).sum();
        if let Some(tier) = &mut self.tier {
            tier.victims.retain(|victim| geometry.unit_of(victim.block) != unit);
        }
    }
}
