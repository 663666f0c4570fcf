//! Bands: what the FTL opens, appends to, fills and reclaims. A band is one block of one unit.
//!
//! Invariants, checked by `Bands::verify` in tests and by the lab:
//! - a band's `slots_valid` is the number of map entries that point into it, and their bits are set
//!   in `valid`;
//! - a band is erased only when it has no valid slot, no read waits for it, every program that
//!   superseded its slots is durable (`invalid_order`, `vital_order`), and no record in it is needed
//!   by recovery (`hold_order`).

use crate::format::is_slot;
use crate::policy::{BandView, CHUNK_BANDS, Columns, FullBands};
use crate::space::divisor::Divisor;
use crate::space::filling::Filling;
use crate::space::openings::Openings;
use crate::space::sums::UnitSums;
use flash::{BlockId, Geometry, SlotId};
use std::collections::VecDeque;

/// A gain of one slot in so many less is still as good as the most, by how many bands the unit has to
/// be opened, now or soon: one that has none takes no appends at all.
const NEAR_MOST: [u32; 3] = [4, 16, 32];

/// Index of a full band that is no victim: of the fast tier, or failing.
const UNLISTED: u32 = u32::MAX;

/// No gain is as good as a greater one.
const EXACTLY: [u32; 3] = [u32::MAX; 3];

/// Where a band is in its life. *Free* of the glossary is `Clean`, `Erasing` and `Dirty`; *Full* is
/// `Full`, `Victim` and `Draining`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum BandState {
    /// Erased, may be opened.
    Clean,
    /// An erase is queued or running.
    Erasing,
    /// Holds nothing that anyone needs; must be erased before it is opened.
    #[default]
    Dirty,
    /// An append point or a program still works on it.
    Open,
    /// Recovery found it, and what of it is valid is not known yet.
    Uncounted,
    /// Readable, may become a victim.
    Full,
    /// Its valid slots are being relocated.
    Victim,
    /// No valid slot left; waits until it may be erased.
    Draining,
    /// Holds the last checkpoint, or the one being written.
    Checkpoint,
    /// Bad: never written again. May still hold valid slots on their way out.
    Retired,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Band {
    pub state: BandState,
    /// Free since the mount: an erase may have been cut off, so it is erased again, but only when it
    /// is about to be needed; most were erased well.
    pub unproven: bool,
    /// Recovery found it, so what it says of itself is all that is known of it.
    pub found: bool,
    /// A victim of the fast tier, and what is valid in it stays there.
    pub stays: bool,
    /// A program failed: its data moves, then it is retired instead of erased.
    pub failing: bool,
    /// The medium had no room for its first page, without which no other is programmed: nothing is in
    /// it, so nobody needs it once its content has found another place. Or nobody was promised what is in it, see
    /// `log::failing`.
    pub blank: bool,
    pub slots_valid: u32,
    /// Slots of pages allocated since the erase.
    pub slots_written: u32,
    /// Slots from 0 on whose program has ended.
    pub slots_done: u32,
    pub erase_count: u32,
    /// Order of the first page.
    pub first_order: u64,
    /// Highest order that superseded one of its slots.
    pub invalid_order: u64,
    /// The same of slots of the fast tier that others of it superseded, which are vital and wait for no
    /// copy on its way to the capacity tier. `invalid_order` leaves them out.
    pub vital_order: u64,
    /// Highest order of a record that recovery needs until the next checkpoint covers it.
    pub hold_order: u64,
    /// For the stream policies.
    pub filling: Filling,
    /// Reads queued or running on it, and moves of what was read from it.
    pub reads_pending: u32,
    /// Index in `Bands::full` while `Full`, or [`UNLISTED`].
    full_index: u32,
}

impl Band {
    fn is_empty_victim(&self) -> bool {
        self.state == BandState::Victim && self.slots_valid == 0
    }

    /// The map points to slots below `end`, so they were written, whatever of the band can be read. Of a
    /// band that recovery did not look at, that is all that is known, and stays unsaid.
    fn reach(&mut self, end: u32) {
        if self.slots_written > 0 {
            self.slots_written = self.slots_written.max(end);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bands {
    list: Vec<Band>,
    /// One bit a slot: the map points to it.
    valid: Vec<u64>,
    full: Vec<BlockId>,
    /// `slots_valid` of each band in `full`: a victim policy looks at them all.
    full_valid: Vec<u32>,
    /// The least of each chunk of `full_valid`.
    full_least: Vec<u32>,
    /// `first_order` of each band in `full`, likewise.
    full_opened: Vec<u64>,
    /// When a chunk of `full` last got another band, as a count of `moves`: a victim policy that
    /// keeps a copy renews the rest only.
    full_moved: Vec<u64>,
    slots_per_band: u32,
    /// Bands from this number on are of the fast tier.
    fast_from: u32,
    /// Slots, likewise.
    fast_from_slot: u32,
    /// Of them, those that are full, the oldest first: as the host filled them, and those of what was
    /// kept when these were reclaimed.
    fast_full: [VecDeque<BlockId>; 2],
    by_slots_per_band: Divisor,
    by_slots_per_unit: Divisor,
    by_blocks_per_unit: Divisor,
    sums: Vec<UnitSums>,
    clean: Vec<Vec<BlockId>>,
    dirty: Vec<Vec<BlockId>>,
    /// Clean, dirty and erasing bands of all units that answer, those of the fast tier apart.
    pub free: u32,
    /// The same of the fast tier.
    pub free_fast: u32,
    pub draining: Vec<BlockId>,
    /// Victims in which nothing is valid any more.
    pub victims_empty: u32,
    /// There are spare bands enough to lose a little with a victim where it spreads appends.
    pub spreads: bool,
    /// Bands that are failing or have failed.
    pub failing: u32,
    /// Bands that were retired.
    retired: u32,
    /// Changes of state so far.
    pub moves: u64,
    /// Those that count against a bound of the medium.
    pub openings: Openings,
    /// Upper bound of any band's erase count, the fast tier apart, which does not wear as flash does.
    pub erase_count_most: u32,
}

impl Bands {
    pub fn new(geometry: &Geometry) -> Self {
        let units = geometry.units as usize;
        Self {
            list: vec![Band::default(); geometry.blocks() as usize],
            valid: vec![0; (geometry.slots() as usize).div_ceil(64)],
            full: Vec::new(),
            full_valid: Vec::new(),
            full_least: vec![u32::MAX; (geometry.blocks() as usize).div_ceil(CHUNK_BANDS)],
            full_opened: Vec::new(),
            full_moved: vec![0; (geometry.blocks() as usize).div_ceil(CHUNK_BANDS)],
            slots_per_band: geometry.slots_per_block(),
            fast_from: geometry.capacity_blocks(),
            fast_from_slot: geometry.capacity_blocks() * geometry.slots_per_block(),
            fast_full: Default::default(),
            by_slots_per_band: Divisor::new(geometry.slots_per_block()),
            // The slots of the whole medium fit, so those of a unit do.
            by_slots_per_unit: Divisor::new(geometry.slots_per_block() * geometry.blocks_per_unit),
            by_blocks_per_unit: Divisor::new(geometry.blocks_per_unit),
            sums: vec![UnitSums::default(); units],
            clean: vec![Vec::new(); units],
            dirty: vec![Vec::new(); units],
            free: 0,
            free_fast: 0,
            draining: Vec::new(),
            victims_empty: 0,
            spreads: false,
            failing: 0,
            retired: 0,
            moves: 0,
            openings: Openings::new(geometry),
            erase_count_most: 0,
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.list.len() as u32).map(BlockId)
    }

    pub fn block_of(&self, slot: SlotId) -> BlockId {
        BlockId(self.by_slots_per_band.divide(slot.0))
    }

    pub fn unit_of_slot(&self, slot: SlotId) -> u32 {
        self.by_slots_per_unit.divide(slot.0)
    }

    fn unit_of(&self, block: BlockId) -> usize {
        self.by_blocks_per_unit.divide(block.0) as usize
    }

    pub fn is_valid(&self, slot: SlotId) -> bool {
        self.valid[slot.0 as usize / 64] & 1 << (slot.0 % 64) != 0
    }

    /// Reads what [`Bands::invalidate`] will change, ahead of it.
    pub fn warm(&self, slot: SlotId) {
        let block = self.block_of(slot);
        std::hint::black_box((self.is_valid(slot), self[block].slots_valid));
    }

    /// The map that recovery loaded points to `slot`; false if it does so twice. The counts follow
    /// with [`Bands::count_loaded`]: one look at a bit is all that each of many entries costs.
    pub fn load(&mut self, slot: SlotId) -> bool {
        if self[self.block_of(slot)].state == BandState::Checkpoint {
            return false;
        }
        let (word, bit) = (&mut self.valid[slot.0 as usize / 64], 1 << (slot.0 % 64));
        let first = *word & bit == 0;
        *word |= bit;
        first
    }

    /// Counts what was loaded.
    pub fn count_loaded(&mut self) {
        let mut first = 0;
        for band in &mut self.list {
            let end = first + self.slots_per_band as usize;
            band.slots_valid = count_ones(&self.valid, first, end);
            band.reach(end_of_ones(&self.valid, first, end));
            first = end;
        }
    }

    /// Counts what was loaded into bands that are listed already. The uncounted ones become full, or
    /// drain if nothing in them is valid.
    pub fn settle_loaded(&mut self) {
        for block in self.ids() {
            let first = (block.0 * self.slots_per_band) as usize;
            let end = first + self.slots_per_band as usize;
            let valid = count_ones(&self.valid, first, end);
            let reached = end_of_ones(&self.valid, first, end);
            let unit = self.unit_of(block);
            self.sums[unit].slots_valid += u64::from(valid);
            self[block].slots_valid = valid;
            self[block].reach(reached);
            match self[block].state {
                BandState::Uncounted if valid > 0 => self.set_state(block, BandState::Full),
                BandState::Uncounted => self.set_state(block, BandState::Draining),
                _ => {}
            }
        }
        self.victims_empty = self.count_victims_empty();
    }

    fn count_victims_empty(&self) -> u32 {
        self.list.iter().filter(|band| band.is_empty_victim()).count() as u32
    }

    /// Whether a slot of `block` may be valid, before all is counted.
    pub fn may_be_valid(&self, block: BlockId) -> bool {
        matches!(self[block].state, BandState::Uncounted | BandState::Retired)
    }

    /// The map now points to `slot`.
    pub fn validate(&mut self, slot: SlotId) {
        debug_assert!(!self.is_valid(slot));
        self.valid[slot.0 as usize / 64] |= 1 << (slot.0 % 64);
        let block = self.block_of(slot);
        let band = &mut self.list[block.0 as usize];
        self.victims_empty -= u32::from(band.is_empty_victim());
        band.slots_valid += 1;
        let sums = &mut self.sums[self.by_blocks_per_unit.divide(block.0) as usize];
        sums.slots_valid += 1;
        sums.slots_reclaimable -= u64::from(is_reclaimable(band.state));
        if band.state == BandState::Full
            && let index = band.full_index as usize
            && let Some(valid) = self.full_valid.get_mut(index)
        {
            *valid += 1;
            if self.full_least[index / CHUNK_BANDS] == *valid - 1 {
                self.note_least(index / CHUNK_BANDS);
            }
        }
    }

    fn note_least(&mut self, chunk: usize) {
        self.full_least[chunk] = self.least_of(chunk);
    }

    /// The least of a chunk of the full bands.
    fn least_of(&self, chunk: usize) -> u32 {
        let valid = self.full_valid.iter().skip(chunk * CHUNK_BANDS).take(CHUNK_BANDS);
        valid.copied().min().unwrap_or(u32::MAX)
    }

    /// The map points to `by` since the page of `order`, and no more to `slot`.
    pub fn invalidate(&mut self, slot: SlotId, order: u64, by: u32) {
        debug_assert!(self.is_valid(slot));
        self.valid[slot.0 as usize / 64] &= !(1 << (slot.0 % 64));
        let block = self.block_of(slot);
        let band = &mut self.list[block.0 as usize];
        band.slots_valid -= 1;
        self.victims_empty += u32::from(band.is_empty_victim());
        let sums = &mut self.sums[self.by_blocks_per_unit.divide(block.0) as usize];
        sums.slots_valid -= 1;
        sums.slots_reclaimable += u64::from(is_reclaimable(band.state));
        let vital = block.0 >= self.fast_from && is_slot(by) && by >= self.fast_from_slot;
        let latest = if vital { &mut band.vital_order } else { &mut band.invalid_order };
        *latest = (*latest).max(order);
        if band.state == BandState::Full {
            let index = band.full_index as usize;
            if let Some(valid) = self.full_valid.get_mut(index) {
                *valid -= 1;
                let least = &mut self.full_least[index / CHUNK_BANDS];
                *least = (*least).min(*valid);
            }
            if band.slots_valid == 0 {
                self.set_state(block, BandState::Draining);
            }
        }
    }

    /// Moves `block` to `state` and between the lists that follow from it.
    pub fn set_state(&mut self, block: BlockId, state: BandState) {
        let unit = self.unit_of(block);
        let band = &mut self.list[block.0 as usize];
        let free = matches!(state, BandState::Draining) || is_free(state);
        debug_assert!(
            !free || band.slots_valid == 0,
            "{block:?} holds valid data and is to be {state:?}"
        );
        self.sums[unit].account(band, self.slots_per_band, false);
        self.victims_empty -= u32::from(band.is_empty_victim());
        let before = std::mem::replace(&mut band.state, state);
        self.sums[unit].account(band, self.slots_per_band, true);
        self.victims_empty += u32::from(band.is_empty_victim());
        self.moves += 1;
        self.retired += u32::from(state == BandState::Retired);
        match before {
            BandState::Clean => remove(&mut self.clean[unit], block),
            BandState::Dirty => remove(&mut self.dirty[unit], block),
            BandState::Draining => remove(&mut self.draining, block),
            BandState::Full => self.remove_full(block),
            _ => {}
        }
        match state {
            BandState::Clean => self.clean[unit].push(block),
            BandState::Dirty => self.dirty[unit].push(block),
            BandState::Draining => self.draining.push(block),
            BandState::Full if self.is_fast(block) => self.add_fast_full(block),
            // To empty it gives no room.
            BandState::Full if self[block].failing => self[block].full_index = UNLISTED,
            BandState::Full => {
                let band = &mut self.list[block.0 as usize];
                band.full_index = self.full.len() as u32;
                let chunk = self.full.len() / CHUNK_BANDS;
                self.full_moved[chunk] = self.moves;
                self.full_least[chunk] = self.full_least[chunk].min(band.slots_valid);
                self.full_valid.push(band.slots_valid);
                self.full_opened.push(band.first_order);
                self.full.push(block);
            }
            _ => {}
        }
        let free = if self.is_fast(block) { &mut self.free_fast } else { &mut self.free };
        *free = *free + u32::from(is_free(state)) - u32::from(is_free(before));
    }

    /// A program failed in the band, or its maker says so.
    pub fn set_failing(&mut self, block: BlockId) {
        self.failing += u32::from(!std::mem::replace(&mut self[block].failing, true));
    }

    /// Bands have turned out bad.
    pub fn any_bad(&self) -> bool {
        self.bad_changes() > 0
    }

    /// Changes whenever a band turns out bad.
    pub fn bad_changes(&self) -> u32 {
        self.failing.wrapping_add(self.retired)
    }

    fn is_fast(&self, block: BlockId) -> bool {
        block.0 >= self.fast_from
    }

    /// Keeps the list in the order in which the bands were opened.
    fn add_fast_full(&mut self, block: BlockId) {
        let band = &mut self.list[block.0 as usize];
        band.full_index = UNLISTED;
        let opened = band.first_order;
        let full = &mut self.fast_full[usize::from(band.filling.kept)];
        let newer = |other: &&BlockId| self.list[other.0 as usize].first_order > opened;
        let at = full.len() - full.iter().rev().take_while(newer).count();
        full.insert(at, block);
    }

    /// Full bands of the fast tier, the oldest first: those of what was kept there, or the others.
    pub fn fast_full(&self, kept: bool) -> &VecDeque<BlockId> {
        &self.fast_full[usize::from(kept)]
    }

    /// Draining bands that are not of the fast tier.
    pub fn draining_slow(&self) -> usize {
        if self.fast_from as usize == self.list.len() {
            return self.draining.len();
        }
        self.draining.iter().filter(|&&block| !self.is_fast(block)).count()
    }

    /// Draining bands of the fast tier.
    pub fn draining_fast(&self) -> usize {
        self.draining.len() - self.draining_slow()
    }

    /// Puts every band on the list of its state; for bands whose state was set directly.
    pub fn index_all(&mut self) {
        (self.free, self.free_fast, self.victims_empty) = (0, 0, 0);
        self.sums.fill(UnitSums::default());
        for sums in &mut self.sums {
            // As if all were retired, which the loop below says first.
            sums.bands_retired = self.list.len() as u32 / self.clean.len() as u32;
        }
        for block in self.ids() {
            let state = std::mem::replace(&mut self[block].state, BandState::Retired);
            let unit = self.unit_of(block);
            self.sums[unit].slots_valid += u64::from(self[block].slots_valid);
            self.set_state(block, state);
            if !self.is_fast(block) {
                self.erase_count_most = self.erase_count_most.max(self[block].erase_count);
            }
        }
    }

    /// The band was erased once more.
    pub fn count_erase(&mut self, block: BlockId) {
        let unit = self.unit_of(block);
        let count = self.list[block.0 as usize].erase_count;
        self.list[block.0 as usize].erase_count = count + 1;
        if !self.is_fast(block) {
            self.erase_count_most = self.erase_count_most.max(count + 1);
        }
        self.sums[unit].remove_count(count);
        self.sums[unit].add_count(count + 1);
    }

    pub fn sums(&self, unit: u32) -> &UnitSums {
        &self.sums[unit as usize]
    }

    fn remove_full(&mut self, block: BlockId) {
        if self.is_fast(block) {
            let kept = self.list[block.0 as usize].filling.kept;
            let full = &mut self.fast_full[usize::from(kept)];
            let index = full.iter().position(|&other| other == block);
            full.remove(index.expect("a full band is on its list"));
            return;
        }
        let index = self.list[block.0 as usize].full_index as usize;
        if index == UNLISTED as usize {
            return;
        }
        self.full.swap_remove(index);
        self.full_valid.swap_remove(index);
        self.full_opened.swap_remove(index);
        if let Some(&moved) = self.full.get(index) {
            self.full_moved[index / CHUNK_BANDS] = self.moves;
            self.list[moved.0 as usize].full_index = index as u32;
        }
        self.note_least(index / CHUNK_BANDS);
        self.note_least(self.full.len() / CHUNK_BANDS);
    }

    /// Bands that a unit has to be opened, now or soon; 2 for more.
    fn supply(&self, unit: usize) -> u32 {
        let sums = &self.sums[unit];
        (sums.bands_free + sums.bands_coming).min(2)
    }

    pub fn clean(&self, unit: u32) -> &[BlockId] {
        &self.clean[unit as usize]
    }

    pub fn dirty(&self, unit: u32) -> &[BlockId] {
        &self.dirty[unit as usize]
    }

    pub fn full(&self) -> &[BlockId] {
        &self.full
    }

    /// The first valid slot at or after `from` and before `end`.
    pub fn next_valid(&self, from: SlotId, end: SlotId) -> Option<SlotId> {
        let mut at = from.0;
        while at < end.0 {
            let word = self.valid[at as usize / 64] >> (at % 64);
            if word != 0 {
                let slot = at + word.trailing_zeros();
                return (slot < end.0).then_some(SlotId(slot));
            }
            at += 64 - at % 64;
        }
        None
    }

    /// How many slots from `first`, a valid one, up to `end` and no further, reach to the last valid
    /// one without more than `gap` invalid ones in between.
    pub fn valid_run(&self, first: SlotId, end: SlotId, gap: u32) -> u32 {
        let mut last = first;
        while let Some(next) = self.next_valid(SlotId(last.0 + 1), end) {
            if next.0 - last.0 > gap + 1 {
                break;
            }
            last = next;
        }
        last.0 + 1 - first.0
    }

    /// What a victim policy sees.
    pub fn view(&self, order_next: u64) -> FullView<'_> {
        FullView { bands: self, order_next }
    }

    /// Checks the counts against the map; `Err` names the first band that does not add up.
    pub fn verify(&self, map: impl Iterator<Item = SlotId>) -> Result<(), String> {
        let mut counts = vec![0u32; self.list.len()];
        for slot in map {
            if !self.is_valid(slot) {
                return Err(format!("slot {} is mapped but not marked valid", slot.0));
            }
            counts[self.block_of(slot).0 as usize] += 1;
        }
        for (block, band) in self.list.iter().enumerate() {
            if band.slots_valid != counts[block] {
                return Err(format!(
                    "band {block} counts {} valid slots, the map points to {}",
                    band.slots_valid, counts[block]
                ));
            }
            let listed = !self.is_fast(BlockId(block as u32)) && !band.failing;
            let (listed, at) = (listed && band.state == BandState::Full, band.full_index as usize);
            if listed && self.full_valid.get(at) != Some(&band.slots_valid) {
                return Err(format!("band {block} is listed with another count of valid slots"));
            }
            if listed && self.full_opened.get(at) != Some(&band.first_order) {
                return Err(format!("band {block} is listed as opened at another time"));
            }
        }
        self.verify_sums()?;
        let bits: u32 = self.valid.iter().map(|word| word.count_ones()).sum();
        if bits != counts.iter().sum::<u32>() {
            return Err(format!("{bits} slots are marked valid, not as many are mapped"));
        }
        Ok(())
    }

    /// The same where only a part of the map is at hand: what it says, and that the counts agree.
    pub fn verify_part(
        &self,
        map: impl Iterator<Item = SlotId>,
        blocks_mapped: u64,
    ) -> Result<(), String> {
        let mut seen = vec![0u64; self.valid.len()];
        for slot in map {
            let (word, bit) = (slot.0 as usize / 64, 1 << (slot.0 % 64));
            if !self.is_valid(slot) || seen[word] & bit != 0 {
                return Err(format!("slot {} is mapped twice, or not marked valid", slot.0));
            }
            seen[word] |= bit;
        }
        let bits: u64 = self.valid.iter().map(|word| u64::from(word.count_ones())).sum();
        let counted: u64 = self.list.iter().map(|band| u64::from(band.slots_valid)).sum();
        if bits != blocks_mapped || counted != blocks_mapped {
            return Err(format!(
                "{blocks_mapped} blocks are mapped, {bits} slots marked valid, {counted} counted"
            ));
        }
        self.verify_sums()
    }

    pub fn verify_sums(&self) -> Result<(), String> {
        let mut chunks = 0..self.full_least.len();
        if let Some(chunk) = chunks.find(|&at| self.full_least[at] != self.least_of(at)) {
            return Err(format!("the least of chunk {chunk} of the full bands is another"));
        }
        let empty = self.count_victims_empty();
        if empty != self.victims_empty {
            return Err(format!("{empty} victims are empty, {} are counted", self.victims_empty));
        }
        for (unit, bands) in self.list.chunks(self.list.len() / self.sums.len()).enumerate() {
            let mut sums = UnitSums::default();
            for band in bands {
                sums.account(band, self.slots_per_band, true);
                sums.slots_valid += u64::from(band.slots_valid);
            }
            if sums != self.sums[unit] {
                return Err(format!("unit {unit} is {sums:?}, kept as {:?}", self.sums[unit]));
            }
        }
        Ok(())
    }

    /// Bytes of DRAM behind all this.
    pub fn memory_bytes(&self) -> u64 {
        (self.list.len() * size_of::<Band>() + self.valid.len() * 8) as u64
    }
}

impl std::ops::Index<BlockId> for Bands {
    type Output = Band;
    fn index(&self, block: BlockId) -> &Band {
        &self.list[block.0 as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Bands {
    fn index_mut(&mut self, block: BlockId) -> &mut Band {
        &mut self.list[block.0 as usize]
    }
}

/// The full bands, for a victim policy.
pub(crate) struct FullView<'a> {
    bands: &'a Bands,
    order_next: u64,
}

impl FullView<'_> {
    /// The band with the fewest valid slots; among equals one whose unit is short of bands.
    pub fn emptiest(&self) -> Option<BlockId> {
        self.nearly_fewest(EXACTLY)
    }

    /// The band with the fewest valid slots, or nearly: one with a little more is better if its unit is
    /// short of bands. An append point works on as many units as have one for it, and no more; and what is
    /// appended where there is one fills the next victims of those units, never of the others.
    fn nearly_fewest(&self, near_most: [u32; 3]) -> Option<BlockId> {
        // Chunks without bands have the most.
        let least =
            self.bands.full_least.iter().copied().min().filter(|&least| least < u32::MAX)?;
        let gain = self.bands.slots_per_band - least;
        let near = near_most.map(|share| least + gain / share);
        // Where no unit is short none of the bands with more valid slots is good enough.
        let supplies = (0..self.bands.sums.len()).map(|unit| self.bands.supply(unit));
        let most = near[supplies.min().unwrap_or(0) as usize];
        // Few have so few, so whole chunks are passed by.
        let chunks = self.bands.full.chunks(CHUNK_BANDS);
        let chunks = chunks.zip(self.bands.full_valid.chunks(CHUNK_BANDS));
        chunks
            .zip(&self.bands.full_least)
            .filter(|&(_, &least)| least <= most)
            .flat_map(|((blocks, valid), _)| blocks.iter().zip(valid))
            .filter(|&(_, &valid)| valid <= most)
            .map(|(&block, &valid)| (self.bands.supply(self.bands.unit_of(block)), valid, block))
            .filter(|&(supply, valid, _)| valid <= near[supply as usize])
            .min()
            .map(|(.., block)| block)
    }
}

impl FullBands for FullView<'_> {
    fn columns(&self) -> Columns<'_> {
        Columns {
            blocks: &self.bands.full,
            slots_valid: &self.bands.full_valid,
            opened: &self.bands.full_opened,
        }
    }

    fn slots(&self) -> u32 {
        self.bands.slots_per_band
    }

    fn band(&self, index: usize) -> BandView {
        let block = self.bands.full[index];
        let band = &self.bands[block];
        BandView {
            block,
            unit: self.bands.unit_of(block) as u32,
            slots_valid: band.slots_valid,
            age_pages: self.order_next.saturating_sub(band.first_order),
            erase_count: band.erase_count,
        }
    }

    fn pages(&self) -> u64 {
        self.order_next
    }

    fn units(&self) -> u32 {
        self.bands.sums.len() as u32
    }

    fn supply(&self, unit: u32) -> u32 {
        self.bands.supply(unit as usize)
    }

    fn moves(&self) -> u64 {
        self.bands.moves
    }

    fn moved_since(&self, chunk: usize, moves: u64) -> bool {
        self.bands.full_moved[chunk] > moves
    }

    /// As it says, or nearly, see [`FullView::nearly_fewest`].
    fn fewest_valid(&self) -> Option<BlockId> {
        self.nearly_fewest(if self.bands.spreads { NEAR_MOST } else { EXACTLY })
    }
}

/// Bits set from `first` up to `end`.
fn count_ones(words: &[u64], first: usize, end: usize) -> u32 {
    let mut ones = 0;
    let mut at = first;
    while at < end {
        let bits = (64 - at % 64).min(end - at);
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        ones += (words[at / 64] >> (at % 64) & mask).count_ones();
        at += bits;
    }
    ones
}

/// How far behind `first` the last bit lies that is set below `end`, itself counted; 0 if there is none.
fn end_of_ones(words: &[u64], first: usize, end: usize) -> u32 {
    let is_set = |&at: &usize| words[at / 64] >> (at % 64) & 1 != 0;
    (first..end).rev().find(is_set).map_or(0, |at| (at + 1 - first) as u32)
}

pub(super) fn is_free(state: BandState) -> bool {
    matches!(state, BandState::Clean | BandState::Dirty | BandState::Erasing)
}

pub(super) fn is_reclaimable(state: BandState) -> bool {
    matches!(state, BandState::Full | BandState::Victim | BandState::Draining)
}

/// Lists of free and draining bands are short or taken from the end.
fn remove(list: &mut Vec<BlockId>, block: BlockId) {
    let index = list.iter().rposition(|&other| other == block);
    list.swap_remove(index.expect("a band is on the list of its state"));
}

#[cfg(test)]
mod tests {
    use super::{BandState, Bands, NEAR_MOST, count_ones};
    use crate::policy::FullBands;
    use crate::space::small_geometry;
    use flash::{BlockId, FastTier, Geometry, SlotId};

    #[test]
    fn a_unit_without_bands_gets_the_next_victim_if_that_costs_little() {
        // The second unit has no band free and none coming.
        let geometry = small_geometry();
        let choice = |valid: u32, spreads: bool| {
            let mut bands = Bands::new(&geometry);
            for block in 2..8 {
                let first = block * geometry.slots_per_block();
                let valid = if block == 2 { 48 } else { valid };
                (first..first + valid).for_each(|slot| bands.validate(SlotId(slot)));
                bands[BlockId(block)].state = BandState::Full;
            }
            bands.index_all();
            bands.spreads = spreads;
            bands.view(1).fewest_valid()
        };
        assert_eq!(choice(52, true), Some(BlockId(4)));
        assert_eq!(choice(53, true), Some(BlockId(2)));
        assert_eq!(choice(48, false), Some(BlockId(4)));
        assert_eq!(choice(49, false), Some(BlockId(2)));
    }

    #[test]
    fn the_band_with_nearly_the_fewest_valid_slots_is_what_a_walk_over_all_finds() {
        let geometry = small_geometry();
        let slots = geometry.slots_per_block();
        for seed in 0..500 {
            let mut random = flash::Random::new(seed);
            let mut bands = Bands::new(&geometry);
            let least = random.below(u64::from(slots)) as u32;
            for block in bands.ids() {
                if random.chance(0.7) {
                    let valid = least + random.below(u64::from(slots - least) / 2 + 1) as u32;
                    let first = block.0 * slots;
                    (first..first + valid).for_each(|slot| bands.validate(SlotId(slot)));
                    bands[block].state = BandState::Full;
                }
            }
            bands.index_all();
            bands.spreads = true;
            let valid = |block: BlockId| bands[block].slots_valid;
            let fewest = bands.full().iter().map(|&block| valid(block)).min().unwrap_or(0);
            let most = |supply: u32| fewest + (slots - fewest) / NEAR_MOST[supply as usize];
            let ranks = bands.full().iter();
            let ranks = ranks.map(|&of| (bands.supply(bands.unit_of(of)), valid(of), of));
            let walked = ranks.filter(|&(supply, valid, _)| valid <= most(supply)).min();
            let walked = walked.map(|(.., block)| block);
            assert_eq!(bands.view(1).fewest_valid(), walked, "seed {seed}");
        }
    }

    #[test]
    fn what_a_slot_of_the_fast_tier_supersedes_there_waits_for_no_copy_to_the_other() {
        let geometry =
            Geometry { fast: FastTier { units: 1, blocks_per_unit: 4 }, ..small_geometry() };
        let orders = |slot: u32, by: u32| {
            let mut bands = Bands::new(&geometry);
            bands.index_all();
            bands.validate(SlotId(slot));
            bands.invalidate(SlotId(slot), 7, by);
            let band = &bands[bands.block_of(SlotId(slot))];
            (band.invalid_order, band.vital_order)
        };
        let (slow, fast, other) = (1, 4 * 64, 5 * 64);
        assert_eq!(orders(fast, other), (0, 7));
        assert_eq!(orders(fast, slow), (7, 0), "destaged");
        assert_eq!(orders(fast, crate::format::UNMAPPED), (7, 0), "trimmed");
        assert_eq!(orders(slow, fast), (7, 0));
    }

    #[test]
    fn ones_are_counted_where_ranges_cut_words() {
        let words = [0x8000_0000_0000_0001, u64::MAX, 0b1011];
        for (first, end) in [(0, 0), (0, 1), (1, 63), (0, 64), (63, 66), (60, 132), (128, 192)] {
            let bit = |at: usize| (words[at / 64] >> (at % 64) & 1) as u32;
            let expected: u32 = (first..end).map(bit).sum();
            assert_eq!(count_ones(&words, first, end), expected, "{first}..{end}");
        }
    }
}
