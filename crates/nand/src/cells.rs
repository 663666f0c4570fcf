//! What the blocks hold and how they fail: the rules of NAND, without time.
//!
//! A slot of a fast unit is a page of its own here: it is programmed, torn and damaged by itself.
//!
//! Invariants:
//! - every command is judged and takes effect when it is handed over. As a unit executes in order,
//!   that equals its effect when it executes; [`Cells::revert`] and [`Cells::tear`] undo it if power
//!   is cut before the outcome was taken.
//! - a block's write pointer only grows until its erase, and a bad block's record never changes.

use crate::record::BlockRecord;
use crate::{Faults, Illegal, Profile, Rber};
use flash::{BlockId, Geometry, Instant, MediumError, Random, SECOND, SlotId, SlotStatus};
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(crate) struct Cells {
    geometry: Geometry,
    slots: u64,
    slots_per_block: u32,
    blocks: Vec<BlockRecord>,
    /// Pages, by their first slot, that are uncorrectable beside what the records say. A
    /// mark outlives the erase unseen and goes when its page is programmed again.
    damaged_pages: BTreeSet<u32>,
    /// Where [`Geometry::open_blocks_max`] bounds them: blocks partly programmed since power came.
    open: BTreeSet<BlockId>,
    faults: Faults,
    random: Random,
    /// Programs so far.
    programs: u64,
    /// Flushes so far.
    flushes: u64,
    errors: Option<ErrorModel>,
    ecc_bits_per_kib: u32,
    /// Reads of sound pages may draw errors.
    errs: bool,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub unit: u32,
    pub block: BlockId,
    pub page: u32,
    pub slot_in_page: u32,
}

/// What the error model needs to know of each block beside its record.
#[derive(Clone, Debug)]
struct ErrorModel {
    rber: Rber,
    blocks: Vec<Exposure>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Exposure {
    /// Of the block since its erase.
    reads: u32,
    /// When the block's first page was programmed.
    programmed_at: Instant,
}

impl Cells {
    pub fn new(profile: &Profile, geometry: Geometry, faults: Faults) -> Self {
        let blocks = vec![BlockRecord::default(); geometry.blocks() as usize];
        let errors = faults.wear_errors.then(|| ErrorModel {
            rber: profile.rber,
            blocks: vec![Exposure::default(); blocks.len()],
        });
        let mut cells = Self {
            geometry,
            slots: geometry.slots(),
            slots_per_block: geometry.slots_per_block(),
            blocks,
            damaged_pages: BTreeSet::new(),
            open: BTreeSet::new(),
            random: Random::new(faults.seed),
            programs: 0,
            flushes: 0,
            errs: faults.wear_errors || faults.correctable > 0.0 || faults.uncorrectable > 0.0,
            faults,
            errors,
            ecc_bits_per_kib: profile.ecc_bits_per_kib,
        };
        if cells.faults.factory_bad > 0.0 {
            cells.draw_factory_bad(profile.planes);
        }
        cells
    }

    pub fn locate(&self, slot: SlotId) -> Result<Place, Illegal> {
        if u64::from(slot.0) >= self.slots {
            return Err(Illegal::OutOfRange { slot: slot.0.into(), slots: self.slots });
        }
        let block = slot.0 / self.slots_per_block;
        let in_block = slot.0 - block * self.slots_per_block;
        let slots_per_page = self.slots_per_page(BlockId(block));
        let page = in_block / slots_per_page;
        Ok(Place {
            unit: block / self.geometry.blocks_per_unit,
            block: BlockId(block),
            page,
            slot_in_page: in_block - page * slots_per_page,
        })
    }

    /// Slots that are programmed or torn as one.
    fn slots_per_page(&self, block: BlockId) -> u32 {
        if self.geometry.is_fast(block) { 1 } else { self.geometry.slots_per_page }
    }

    fn pages_per_block(&self, block: BlockId) -> u32 {
        if self.geometry.is_fast(block) {
            self.slots_per_block
        } else {
            self.geometry.pages_per_block
        }
    }

    pub fn locate_block(&self, block: BlockId) -> Result<Place, Illegal> {
        if block.0 as usize >= self.blocks.len() {
            let slot = u64::from(block.0) * u64::from(self.slots_per_block);
            return Err(Illegal::OutOfRange { slot, slots: self.slots });
        }
        let unit = block.0 / self.geometry.blocks_per_unit;
        Ok(Place { unit, block, page: 0, slot_in_page: 0 })
    }

    pub fn check_read(&self, slot: SlotId, count: u32) -> Result<(), Illegal> {
        let left = self.geometry.slots_per_page - self.geometry.slot_in_page(slot);
        if count == 0 {
            return Err(Illegal::ReadOfNothing { slot });
        }
        if count > left {
            return Err(Illegal::ReadAcrossPages { slot, count, left });
        }
        Ok(())
    }

    pub fn read(&mut self, now: Instant, place: Place, count: u32) -> SlotStatus {
        match self.status(place) {
            SlotStatus::Ok if self.errs && !self.geometry.is_fast(place.block) => {
                self.read_errors(now, place, count)
            }
            status => status,
        }
    }

    /// What the cells hold, as far as no read draws an error.
    pub fn status(&self, place: Place) -> SlotStatus {
        let record = &self.blocks[place.block.0 as usize];
        if record.is_erased(place.page) {
            SlotStatus::Erased
        } else if record.is_damaged(place.page) || self.is_marked(place) {
            SlotStatus::Uncorrectable
        } else {
            SlotStatus::Ok
        }
    }

    pub fn check_program(&self, slot: SlotId, place: Place, count: u32) -> Result<(), Illegal> {
        let (block, page) = (place.block, place.page);
        let fast = self.geometry.is_fast(block);
        let in_page = if fast { self.geometry.slot_in_page(slot) } else { 0 };
        let wanted = self.geometry.slots_per_page - in_page;
        let record = &self.blocks[block.0 as usize];
        let write_pointer = record.write_pointer;
        if place.slot_in_page != 0 {
            Err(Illegal::ProgramInsidePage { slot })
        } else if count == 0 || count > wanted || count < wanted && !fast {
            Err(Illegal::ProgramOfPart { slot, count, wanted })
        } else if record.bad || !self.geometry.exists(block) {
            Err(Illegal::ProgramBadBlock { block })
        } else if record.needs_erase {
            Err(Illegal::NeedsErase { block })
        } else if page < write_pointer {
            Err(Illegal::ProgramTwice { block, page, write_pointer })
        } else if page > write_pointer {
            Err(Illegal::ProgramOutOfOrder { block, page, write_pointer })
        } else {
            self.check_open(block, page)
        }
    }

    fn bounds_open(&self, block: BlockId) -> bool {
        self.geometry.open_blocks_max > 0 && !self.geometry.is_fast(block)
    }

    fn check_open(&self, block: BlockId, page: u32) -> Result<(), Illegal> {
        let max = self.geometry.open_blocks_max;
        if !self.bounds_open(block) {
            Ok(())
        } else if page == 0 && self.open.len() as u32 >= max {
            Err(Illegal::TooManyOpen { block, max })
        } else if page > 0 && !self.open.contains(&block) {
            Err(Illegal::Finished { block })
        } else {
            Ok(())
        }
    }

    /// Nothing more is programmed into `block` until its erase.
    pub fn finish(&mut self, block: BlockId) {
        self.open.remove(&block);
    }

    /// No block takes any more before its erase.
    pub fn finish_all(&mut self) {
        self.open.clear();
    }

    /// Pages that a program of `count` slots at `place` covers.
    pub fn pages_of(&self, place: Place, count: u32) -> u32 {
        if self.geometry.is_fast(place.block) { count } else { 1 }
    }

    pub fn program(&mut self, now: Instant, place: Place, count: u32) -> Result<(), MediumError> {
        let pages = self.pages_of(place, count);
        self.forget_marks(place, pages);
        if let Some(errors) = &mut self.errors
            && place.page == 0
        {
            errors.blocks[place.block.0 as usize].programmed_at = now;
        }
        let record = &mut self.blocks[place.block.0 as usize];
        (0..pages).for_each(|_| record.advance());
        self.programs += 1;
        self.note_programmed(place, pages);
        let chosen = self.faults.programs_failing.contains(&self.programs);
        let drawn = self.faults.program_fail > 0.0 && self.random.chance(self.faults.program_fail);
        if chosen || drawn {
            self.blocks[place.block.0 as usize].bad = true;
            self.open.remove(&place.block);
            self.damage(place, 0..pages);
            return Err(MediumError::BlockFailed);
        }
        if self.faults.program_cut > 0.0 && self.random.chance(self.faults.program_cut) {
            self.open.remove(&place.block);
            let record = &mut self.blocks[place.block.0 as usize];
            record.needs_erase = true;
            if self.random.chance(0.5) {
                record.write_pointer -= pages;
            }
            return Err(MediumError::Cut);
        }
        Ok(())
    }

    /// Whether a flush fails.
    pub fn flush(&mut self) -> Result<(), MediumError> {
        self.flushes += 1;
        let chosen = self.faults.flushes_failing.contains(&self.flushes);
        let drawn = self.faults.flush_fail > 0.0 && self.random.chance(self.faults.flush_fail);
        if chosen || drawn { Err(MediumError::FlushFailed) } else { Ok(()) }
    }

    /// A program that had succeeded here failed below.
    pub fn fail_program(&mut self, place: Place) {
        let Place { block, page, .. } = place;
        self.open.remove(&block);
        let record = &mut self.blocks[block.0 as usize];
        record.bad = true;
        if record.write_pointer == page + 1 && !self.geometry.is_fast(block) {
            record.damage_tail(page);
        } else {
            // Others were programmed behind it meanwhile.
            self.mark_uncorrectable(place);
        }
    }

    /// An erase that had succeeded here failed below.
    pub fn fail_erase(&mut self, block: BlockId) {
        let pages = self.pages_per_block(block);
        let record = &mut self.blocks[block.0 as usize];
        record.bad = true;
        record.damage_from(0, pages);
    }

    fn note_programmed(&mut self, place: Place, pages: u32) {
        if !self.bounds_open(place.block) {
            return;
        }
        if place.page + pages == self.geometry.pages_per_block {
            self.open.remove(&place.block);
        } else {
            self.open.insert(place.block);
        }
    }

    /// Marks of an earlier life of pages that are programmed now.
    fn forget_marks(&mut self, place: Place, pages: u32) {
        if !self.damaged_pages.is_empty() {
            for page in 0..pages {
                let page = self.page_id(Place { page: place.page + page, ..place });
                self.damaged_pages.remove(&page);
            }
        }
    }

    /// Some of the pages programmed last, counted from `place` on, are uncorrectable.
    fn damage(&mut self, place: Place, pages: std::ops::Range<u32>) {
        for page in pages {
            let at = Place { page: place.page + page, ..place };
            if self.geometry.is_fast(place.block) {
                // More than a record can say.
                self.mark_uncorrectable(at);
            } else {
                self.blocks[place.block.0 as usize].damage_tail(at.page);
            }
        }
    }

    pub fn erase(&mut self, block: BlockId) -> Result<(), MediumError> {
        let record = &mut self.blocks[block.0 as usize];
        if record.bad {
            return Err(MediumError::BlockFailed);
        }
        *record = record.erased();
        self.open.remove(&block);
        if let Some(errors) = &mut self.errors {
            errors.blocks[block.0 as usize] = Exposure::default();
        }
        if self.faults.erase_fail > 0.0 && self.random.chance(self.faults.erase_fail) {
            self.blocks[block.0 as usize].bad = true;
            let pages = self.pages_per_block(block);
            self.blocks[block.0 as usize].damage_from(0, pages);
            return Err(MediumError::BlockFailed);
        }
        Ok(())
    }

    /// Takes a block back to what it was before a program or erase that power cut short.
    pub fn revert(&mut self, block: BlockId, before: BlockRecord) {
        self.blocks[block.0 as usize] = before;
    }

    /// A program or erase that never started, but whose block nobody can trust to be untouched.
    pub fn distrust(&mut self, block: BlockId) {
        self.blocks[block.0 as usize].needs_erase = true;
    }

    /// The outcomes that a power cut can give the program of `count` slots.
    pub fn torn_program_outcomes(&self, place: Place, count: u32) -> u32 {
        if self.geometry.is_fast(place.block) {
            return 3 + 2 * (count - 1);
        }
        let pages = self.geometry.pages_per_block;
        let mut partners = self.geometry.pairing.earlier_partners(place.page, pages);
        if partners.next().is_some() { 4 } else { 3 }
    }

    /// Gives an interrupted program one of its outcomes. True if it ended complete.
    pub fn tear_program(&mut self, place: Place, count: u32, outcome: u32) -> bool {
        let pages = self.pages_of(place, count);
        if outcome >= 1 {
            self.forget_marks(place, pages);
        }
        let record = &mut self.blocks[place.block.0 as usize];
        assert_eq!(record.write_pointer, place.page, "the program was undone before");
        if outcome >= 1 {
            (0..pages).for_each(|_| record.advance());
        }
        if outcome >= 2 && self.geometry.is_fast(place.block) {
            // All of them, the first so many, or all but these.
            let kept = outcome - 2;
            let lost = match kept {
                0 => 0..pages,
                _ if kept < pages => kept..pages,
                _ => 0..kept - pages + 1,
            };
            record.needs_erase = true;
            self.damage(place, lost);
            return false;
        }
        if outcome >= 2 {
            record.damage_tail(place.page);
        }
        if outcome == 3 {
            let pages = self.geometry.pages_per_block;
            for partner in self.geometry.pairing.earlier_partners(place.page, pages) {
                record.damage_tail(partner);
            }
        }
        record.needs_erase = true;
        outcome == 1
    }

    /// The outcomes that a power cut can give an erase.
    pub fn torn_erase_outcomes(&self) -> u32 {
        if self.geometry.pages_per_block > 1 { 5 } else { 3 }
    }

    /// Gives an interrupted erase one of its outcomes. True if it ended complete.
    pub fn tear_erase(&mut self, block: BlockId, outcome: u32) -> bool {
        let pages = self.pages_per_block(block);
        let record = &mut self.blocks[block.0 as usize];
        let erased = record.erased();
        if outcome != 0 {
            record.erase_count = erased.erase_count;
        }
        match outcome {
            0 => {}
            1 => *record = erased,
            2 => record.damage_from(0, pages),
            3 => record.damage_from(1, pages),
            _ => record.first_erased = true,
        }
        record.needs_erase = true;
        outcome == 1
    }

    pub fn mark_uncorrectable(&mut self, place: Place) {
        let page = self.page_id(place);
        self.damaged_pages.insert(page);
    }

    pub fn restore(&mut self, block: BlockId, mut record: BlockRecord) {
        record.write_pointer = record.write_pointer.min(self.pages_per_block(block));
        self.blocks[block.0 as usize] = record;
    }

    pub fn record(&self, block: BlockId) -> BlockRecord {
        self.blocks[block.0 as usize]
    }

    pub fn records(&self) -> &[BlockRecord] {
        &self.blocks
    }

    pub fn damaged_pages(&self) -> impl Iterator<Item = SlotId> {
        let is_programmed = |slot: &SlotId| {
            let place = self.locate(*slot).expect("a mark is of a slot of this medium");
            !self.blocks[place.block.0 as usize].is_erased(place.page)
        };
        self.damaged_pages.iter().map(|&first| SlotId(first)).filter(is_programmed)
    }

    /// Superblock `i` is the `i`-th good block of every plane, so a die loses as many as its worst
    /// plane, and they lie at the end of its range. Block 0 of a plane is good by contract.
    fn draw_factory_bad(&mut self, planes: u32) {
        let blocks = self.geometry.blocks_per_unit;
        for unit in 0..self.geometry.capacity_units() {
            let mut bad_max = 0;
            for _ in 0..planes {
                let share = self.faults.factory_bad;
                let bad = (1..blocks).filter(|_| self.random.chance(share)).count() as u32;
                bad_max = bad_max.max(bad);
            }
            for index in blocks - bad_max..blocks {
                let record = &mut self.blocks[self.geometry.block(unit, index).0 as usize];
                record.bad = true;
                record.damage_from(0, self.geometry.pages_per_block);
            }
        }
    }

    /// The errors that a read of sound slots draws.
    fn read_errors(&mut self, now: Instant, place: Place, count: u32) -> SlotStatus {
        let faults = &self.faults;
        if faults.uncorrectable > 0.0 && self.random.chance(faults.uncorrectable) {
            self.mark_uncorrectable(place);
            return SlotStatus::Uncorrectable;
        }
        let mut bits = 0;
        if faults.correctable > 0.0 && self.random.chance(faults.correctable) {
            bits = 1 + self.random.below(self.ecc_bits_per_kib.max(1).into()) as u32;
        }
        if let Some(errors) = &mut self.errors {
            let cycles = self.blocks[place.block.0 as usize].erase_count;
            let exposure = &mut errors.blocks[place.block.0 as usize];
            exposure.reads = exposure.reads.saturating_add(1);
            let days = (now - exposure.programmed_at) as f64 / (86_400.0 * SECOND as f64);
            let mean = errors.rber.rate(cycles, days, exposure.reads) * CODEWORD_BITS;
            for _ in 0..count * CODEWORDS_PER_SLOT {
                bits = bits.max(poisson(&mut self.random, mean));
            }
            if bits > self.ecc_bits_per_kib {
                // Not marked: the next read of these cells draws its noise anew, as a retry does.
                return SlotStatus::Uncorrectable;
            }
        }
        if bits == 0 { SlotStatus::Ok } else { SlotStatus::Corrected(bits) }
    }

    fn is_marked(&self, place: Place) -> bool {
        !self.damaged_pages.is_empty() && self.damaged_pages.contains(&self.page_id(place))
    }

    fn page_id(&self, place: Place) -> u32 {
        place.block.0 * self.slots_per_block + place.page * self.slots_per_page(place.block)
    }
}

/// A Poisson draw, by walking up the distribution from 0 with one uniform number.
fn poisson(random: &mut Random, mean: f64) -> u32 {
    if mean > 500.0 {
        // Far beyond any ECC, and e^-mean would underflow.
        return mean as u32;
    }
    let mut left = random.fraction();
    // Not the platform's exp: the same seed gives the same errors on any machine.
    let mut share = libm::exp(-mean);
    let mut n = 0;
    while left >= share && n < 4096 {
        left -= share;
        n += 1;
        share *= mean / f64::from(n);
    }
    n
}

/// The ECC works on codewords of 1 KiB.
const CODEWORD_BITS: f64 = 8192.0;
const CODEWORDS_PER_SLOT: u32 = 4;

#[cfg(test)]
mod tests {
    use super::poisson;
    use flash::Random;

    #[test]
    fn poisson_draws_have_the_mean_and_variance_asked_for() {
        for mean in [0.1, 3.0, 40.0] {
            let (mut random, n) = (Random::new(5), 100_000);
            let draws: Vec<f64> = (0..n).map(|_| poisson(&mut random, mean).into()).collect();
            let average = draws.iter().sum::<f64>() / f64::from(n);
            let variance =
                draws.iter().map(|d| libm::pow(d - average, 2.0)).sum::<f64>() / f64::from(n);
            assert!((average / mean - 1.0).abs() < 0.02, "seed 5, mean {mean}: {average}");
            assert!((variance / mean - 1.0).abs() < 0.03, "seed 5, mean {mean}: {variance}");
        }
    }
}
