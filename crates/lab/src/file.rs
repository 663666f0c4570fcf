//! A medium that is not durable at completion, as a file or a block device with a volatile cache
//! is: until a flush ends, any program or erase may be lost, page by page and in any order.
//!
//! Invariants:
//! - What a flush covers (everything completed before the flush was handed over) survives any cut.
//! - Of everything later, each slot keeps a prefix of its own history, whatever happens to its
//!   neighbours: a later program of the same slot is never kept without the erase before it.
//! - A page is programmed only while it is erased and next in its block; anything else is an error
//!   of the FTL, and told so.
//! - One with records, as the folder of an emulated device has them, keeps of each block how far it was
//!   durable when its last program ended. It never says more than was so; only an erase that a cut undoes in
//!   part leaves a record of what is not there any more.
//! - What a failed flush covers is in doubt for ever, whatever flushes succeed after it: as the pages of
//!   a system that has told of the failure once.

use crate::medium::Content;
use flash::{BlockId, Command, Geometry, Instant, MICROSECOND, MediumError, Oob, Random, SlotId};
use nand::Faults;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

const READ_NS: u64 = 10 * MICROSECOND;
const PROGRAM_NS: u64 = 20 * MICROSECOND;
const ERASE_NS: u64 = 30 * MICROSECOND;
const FLUSH_NS: u64 = 50 * MICROSECOND;

// The fates of a step that no flush covers. Fate 0: all of it is kept.
const LOST: u32 = 1;
/// Its slots are unreadable; of an erase every other slot is done.
const TORN: u32 = 2;
/// Its slots have their header, and not the data that belongs to it.
const MIXED: u32 = 3;
/// Only the first half of its slots is kept.
const HALF: u32 = 4;
const FATES: u32 = 5;

/// What one slot holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Cell {
    /// Nothing since the erase.
    Erased,
    /// Data.
    Written(Oob, Content),
    /// Half of something: unreadable.
    Torn,
}

/// A step that no flush covers yet.
#[derive(Clone, Debug)]
struct Step {
    /// First slot it touches.
    slot: SlotId,
    /// What those slots held before.
    before: Vec<Cell>,
    /// What it makes of them.
    after: Vec<Cell>,
    /// When it completes.
    ends: Instant,
    erase: bool,
    /// What the record of its block told before.
    told: u32,
    /// A flush that should have covered it failed.
    in_doubt: bool,
}

/// A command that runs.
#[derive(Clone, Debug)]
struct Running {
    ends: Instant,
    command: Command,
    /// What a read found when its turn came: commands of a unit run in order.
    cells: Vec<Cell>,
    result: Result<(), MediumError>,
}

/// What goes wrong with a file.
#[derive(Clone, Debug)]
struct Wrong {
    faults: Faults,
    random: Random,
    programs: u64,
    flushes: u64,
    /// Blocks that failed.
    bad: BTreeSet<BlockId>,
    /// Blocks with a program that was cut short since their erase.
    cut: BTreeSet<BlockId>,
    /// The disk below is full from one instant to another.
    full: Option<(Instant, Instant)>,
}

impl Wrong {
    fn new(faults: Faults) -> Self {
        let random = Random::new(faults.seed);
        let (bad, cut) = (BTreeSet::new(), BTreeSet::new());
        Self { faults, random, programs: 0, flushes: 0, bad, cut, full: None }
    }

    fn draw(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.random.chance(chance)
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full.is_some_and(|(from, to)| (from..to).contains(&now))
    }

    fn program(&mut self, now: Instant, block: BlockId) -> Result<(), MediumError> {
        self.programs += 1;
        let chosen = self.faults.programs_failing.contains(&self.programs);
        if self.bad.contains(&block) || chosen || self.draw(self.faults.program_fail) {
            self.bad.insert(block);
            return Err(MediumError::BlockFailed);
        }
        if self.draw(self.faults.program_cut) {
            self.cut.insert(block);
            return Err(MediumError::Cut);
        }
        if self.is_full(now) { Err(MediumError::NoSpace) } else { Ok(()) }
    }

    fn erase(&mut self, now: Instant, block: BlockId) -> Result<(), MediumError> {
        if self.bad.contains(&block) || self.draw(self.faults.erase_fail) {
            self.bad.insert(block);
            return Err(MediumError::BlockFailed);
        }
        if self.is_full(now) {
            return Err(MediumError::NoSpace);
        }
        self.cut.remove(&block);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MediumError> {
        self.flushes += 1;
        let chosen = self.faults.flushes_failing.contains(&self.flushes);
        let failed = chosen || self.draw(self.faults.flush_fail);
        if failed { Err(MediumError::FlushFailed) } else { Ok(()) }
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct FileDevice {
    geometry: Geometry,
    cells: Vec<Cell>,
    erase_counts: Vec<u32>,
    /// In the order of submission.
    steps: VecDeque<Step>,
    /// Sorted by end, then by submission.
    running: Vec<Running>,
    units_free_at: Vec<Instant>,
    /// What runs at once per unit, to hold the FTL to the declared queue depth.
    in_flight: Vec<u32>,
    /// Where the geometry bounds them: blocks partly programmed since power came.
    open: BTreeSet<BlockId>,
    wrong: Wrong,
    /// By block, pages from the first on that are durable, as its record tells; empty if there are none.
    told: Vec<u32>,
}

impl FileDevice {
    /// An empty file of this shape.
    pub fn new(geometry: Geometry) -> Self {
        Self::with_faults(geometry, Faults::default())
    }

    /// An empty file that goes wrong so: programs, erases and flushes that fail, and pages that cannot be
    /// read any more.
    pub fn with_faults(geometry: Geometry, faults: Faults) -> Self {
        Self {
            cells: vec![Cell::Erased; geometry.slots() as usize],
            erase_counts: vec![0; geometry.blocks() as usize],
            steps: VecDeque::new(),
            running: Vec::new(),
            units_free_at: vec![Instant(0); geometry.units as usize],
            in_flight: vec![0; geometry.units as usize],
            open: BTreeSet::new(),
            wrong: Wrong::new(faults),
            told: Vec::new(),
            geometry,
        }
    }

    /// The same with a record of each block.
    pub fn with_records(mut self) -> Self {
        self.told = vec![0; self.geometry.blocks() as usize];
        self
    }

    /// Pages of a block, from the first on, that were durable as its record tells; 0 if it has none.
    pub fn pages_durable(&self, block: BlockId) -> u32 {
        self.told.get(block.0 as usize).copied().unwrap_or(0)
    }

    /// What the record of a block tells when one of its programs has ended. It is written behind that.
    fn note_durable(&mut self, block: BlockId) {
        if self.told.is_empty() || self.wrong.bad.contains(&block) {
            return;
        }
        let geometry = self.geometry;
        let first = geometry.slot(block, 0, 0).0;
        let slots = first..first + geometry.slots_per_block();
        let in_doubt =
            self.steps.iter().map(|step| step.slot.0).filter(|slot| slots.contains(slot));
        let cells = &self.cells[slots.start as usize..slots.end as usize];
        let whole = cells.iter().take_while(|cell| matches!(cell, Cell::Written(..))).count();
        let durable = in_doubt.map(|slot| slot - first).min().unwrap_or(whole as u32);
        self.told[block.0 as usize] = durable.min(whole as u32) / geometry.slots_per_page;
    }

    /// The disk below has no room from one instant to another.
    pub fn fill(&mut self, from: Instant, to: Instant) {
        self.wrong.full = Some((from, to));
    }

    /// Blocks that failed.
    pub fn bad_blocks(&self) -> Vec<BlockId> {
        self.wrong.bad.iter().copied().collect()
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.wrong.flushes
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Erase count of each block.
    pub fn erase_counts(&self) -> &[u32] {
        &self.erase_counts
    }

    /// What a slot holds now.
    pub fn cell(&self, slot: SlotId) -> &Cell {
        &self.cells[slot.0 as usize]
    }

    /// Every slot, for a test that damages some.
    pub fn cells_mut(&mut self) -> &mut [Cell] {
        &mut self.cells
    }

    /// When the next command ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.first().map(|running| running.ends)
    }

    /// Starts a command. `contents` is what a program writes.
    pub fn start(
        &mut self,
        now: Instant,
        command: Command,
        contents: Vec<Cell>,
    ) -> Result<(), String> {
        let duration = match command {
            Command::Read { .. } => READ_NS,
            Command::Program { .. } => PROGRAM_NS,
            Command::Erase { .. } => ERASE_NS,
            Command::Finish { .. } => 0,
            Command::Flush { .. } => FLUSH_NS,
        };
        let ends = match unit_of(&command, &self.geometry) {
            None => now + duration,
            Some(unit) => {
                self.in_flight[unit as usize] += 1;
                if self.in_flight[unit as usize] > self.geometry.queue_depth {
                    return Err(format!(
                        "{command:?} is one more than unit {unit} takes at once ({})",
                        self.geometry.queue_depth
                    ));
                }
                let free_at = &mut self.units_free_at[unit as usize];
                *free_at = (*free_at).max(now) + duration;
                *free_at
            }
        };
        let (mut cells, mut result) = (Vec::new(), Ok(()));
        match command {
            Command::Program { slot, .. } => {
                result = self.program(now, slot, contents, ends)?;
            }
            Command::Erase { block, .. } => {
                result = self.wrong.erase(now, block);
                if result.is_ok() {
                    self.erase(block, ends);
                }
            }
            Command::Read { slot, count, .. } => {
                let at = slot.0 as usize;
                if self.wrong.draw(self.wrong.faults.uncorrectable) {
                    let written = |cell: &&mut Cell| matches!(cell, Cell::Written(..));
                    let read = self.cells[at..at + count as usize].iter_mut();
                    read.filter(written).for_each(|cell| *cell = Cell::Torn);
                }
                cells.extend_from_slice(&self.cells[at..at + count as usize]);
            }
            Command::Finish { block, .. } => {
                self.open.remove(&block);
            }
            Command::Flush { .. } => result = self.wrong.flush(),
        }
        let at = self.running.partition_point(|running| running.ends <= ends);
        self.running.insert(at, Running { ends, command, cells, result });
        Ok(())
    }

    fn program(
        &mut self,
        now: Instant,
        slot: SlotId,
        mut after: Vec<Cell>,
        ends: Instant,
    ) -> Result<Result<(), MediumError>, String> {
        let geometry = self.geometry;
        let (block, page) = (geometry.block_of(slot), geometry.page_in_block(slot));
        if self.wrong.cut.contains(&block) {
            let told = !self.is_ending(block, MediumError::Cut);
            let why = || format!("program of block {}, which was cut short", block.0);
            return if told { Err(why()) } else { Ok(Err(MediumError::Cut)) };
        }
        let first = geometry.slot(block, 0, 0).0 as usize;
        let cells = &self.cells[first..first + geometry.slots_per_block() as usize];
        let used = cells.iter().rposition(|cell| *cell != Cell::Erased).map_or(0, |at| at + 1);
        let next = (used as u32).div_ceil(geometry.slots_per_page);
        if page != next || geometry.slot_in_page(slot) != 0 {
            return Err(format!(
                "program of page {page} of block {}, where page {next} is the next",
                block.0
            ));
        }
        if after.len() != geometry.slots_per_page as usize {
            return Err(format!(
                "program of {} slots in block {}; a page has {}",
                after.len(),
                block.0,
                geometry.slots_per_page
            ));
        }
        if self.wrong.bad.contains(&block) && !self.is_ending(block, MediumError::BlockFailed) {
            return Err(format!("program of block {}, which was reported bad", block.0));
        }
        self.hold_to_bound(block, page)?;
        let mut result = self.wrong.program(now, block);
        if result.is_ok() && self.is_ending(block, MediumError::NoSpace) {
            result = Err(MediumError::NoSpace);
        }
        if matches!(result, Err(MediumError::BlockFailed | MediumError::Cut)) {
            self.open.remove(&block);
        }
        if result == Err(MediumError::Cut) {
            if self.wrong.draw(0.5) {
                self.apply(slot, after, ends, false);
            }
            return Ok(result);
        }
        if result.is_err() {
            after.fill(Cell::Torn);
        }
        self.apply(slot, after, ends, false);
        Ok(result)
    }

    /// A program of the block has failed so, and that was not told yet.
    fn is_ending(&self, block: BlockId, error: MediumError) -> bool {
        self.running.iter().any(|running| {
            running.result == Err(error)
                && matches!(running.command, Command::Program { slot, .. }
                    if self.geometry.block_of(slot) == block)
        })
    }

    /// As a zoned disk does: so many zones are partly written at a time, and one that was finished takes
    /// no more.
    fn hold_to_bound(&mut self, block: BlockId, page: u32) -> Result<(), String> {
        let max = self.geometry.open_blocks_max as usize;
        if max == 0 {
            return Ok(());
        }
        if page == 0 && self.open.len() >= max {
            return Err(format!("block {} is begun while {max} are partly programmed", block.0));
        }
        if page > 0 && !self.open.contains(&block) {
            return Err(format!("program of block {}, which was finished", block.0));
        }
        if page + 1 == self.geometry.pages_per_block {
            self.open.remove(&block);
        } else {
            self.open.insert(block);
        }
        Ok(())
    }

    fn erase(&mut self, block: BlockId, ends: Instant) {
        self.open.remove(&block);
        self.erase_counts[block.0 as usize] += 1;
        let slots = self.geometry.slots_per_block() as usize;
        self.apply(self.geometry.slot(block, 0, 0), vec![Cell::Erased; slots], ends, true);
    }

    fn apply(&mut self, slot: SlotId, after: Vec<Cell>, ends: Instant, erase: bool) {
        let range = slot.0 as usize..slot.0 as usize + after.len();
        let before = self.cells[range.clone()].to_vec();
        self.cells[range].clone_from_slice(&after);
        let block = self.geometry.block_of(slot);
        let told = self.pages_durable(block);
        if erase && told > 0 {
            self.told[block.0 as usize] = 0;
        }
        self.steps.push_back(Step { slot, before, after, ends, erase, told, in_doubt: false });
    }

    /// The next command that has ended by `now`, what it read and how it ended.
    pub fn finish(
        &mut self,
        now: Instant,
    ) -> Option<(Command, Vec<Cell>, Result<(), MediumError>)> {
        if self.running.first()?.ends > now {
            return None;
        }
        let Running { ends, command, cells, result } = self.running.remove(0);
        if let Some(unit) = unit_of(&command, &self.geometry) {
            self.in_flight[unit as usize] -= 1;
        } else if matches!(command, Command::Flush { .. }) {
            // What ended while the flush ran is not covered.
            let started = Instant(ends.0 - FLUSH_NS);
            for step in self.steps.iter_mut().filter(|step| step.ends <= started) {
                step.in_doubt |= result.is_err();
            }
            self.steps.retain(|step| step.in_doubt || step.ends > started);
        } else if let (Command::Program { slot, .. }, Ok(())) = (command, result) {
            self.note_durable(self.geometry.block_of(slot));
        }
        Some((command, cells, result))
    }

    /// Steps that a power cut may undo.
    pub fn volatile_steps(&self) -> usize {
        self.steps.len()
    }

    /// Cuts the power: `choose(n)` picks one of `n` fates for each step that no flush covers.
    pub fn power_cut(&mut self, choose: &mut dyn FnMut(u32) -> u32) {
        // Back to what is durable, then forward again through each slot's own history.
        for step in self.steps.iter().rev() {
            let at = step.slot.0 as usize;
            self.cells[at..at + step.before.len()].clone_from_slice(&step.before);
        }
        for step in self.steps.iter().rev().filter(|step| step.erase && step.told > 0) {
            // Its record may not have got there, whatever its pages have.
            if choose(2) == 1 {
                self.told[self.geometry.block_of(step.slot).0 as usize] = step.told;
            }
        }
        let mut stopped = vec![false; self.cells.len()];
        for step in &self.steps {
            let slots = step.after.len();
            let fate = choose(if slots > 1 { FATES } else { FATES - 1 });
            for (i, after) in step.after.iter().enumerate() {
                let at = step.slot.0 as usize + i;
                if stopped[at] {
                    continue;
                }
                let kept = match fate {
                    LOST => None,
                    TORN if step.erase => (i % 2 == 0).then(|| after.clone()),
                    TORN => Some(Cell::Torn),
                    MIXED if step.erase => (i % 3 == 0).then(|| after.clone()),
                    MIXED => Some(mixed(after)),
                    HALF => (i < slots / 2).then(|| after.clone()),
                    _ => Some(after.clone()),
                };
                // A slot that lost a step keeps nothing that came after it.
                stopped[at] = kept.as_ref() != Some(after);
                if let Some(cell) = kept {
                    self.cells[at] = cell;
                }
            }
        }
        self.steps.clear();
        self.running.clear();
        self.units_free_at.fill(Instant(0));
        self.in_flight.fill(0);
        self.finish_all();
    }

    /// No block that is partly programmed takes any more before its erase.
    pub fn finish_all(&mut self) {
        self.open.clear();
    }
}

/// The unit whose queue a command takes a place in.
fn unit_of(command: &Command, geometry: &Geometry) -> Option<u32> {
    command.unit(geometry).filter(|_| !matches!(command, Command::Finish { .. }))
}

/// A slot whose header reached the disk, and whose data did only in part.
fn mixed(cell: &Cell) -> Cell {
    let Cell::Written(oob, content) = cell else { return Cell::Torn };
    let content = match content {
        Content::Stamp(stamp) => Content::Stamp(stamp ^ 0xff << 40),
        Content::Empty => Content::Stamp(0xff << 40),
        Content::Meta(bytes) => {
            let mut bytes = bytes.clone();
            let half = flash::BLOCK_BYTES / 2;
            Arc::make_mut(&mut bytes)[half..].fill(0x5a);
            Content::Meta(bytes)
        }
    };
    Cell::Written(*oob, content)
}

#[cfg(test)]
mod tests {
    use super::{Cell, FileDevice};
    use crate::medium::Content;
    use flash::{BlockId, Command, FastTier, Geometry, Instant, Pairing, SECOND, SlotId, Tag};

    fn device() -> FileDevice {
        FileDevice::new(Geometry {
            units: 1,
            blocks_per_unit: 2,
            pages_per_block: 4,
            slots_per_page: 1,
            pairing: Pairing::None,
            durable_at_completion: false,
            suspend: false,
            queue_depth: 8,
            endurance: 1000,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        })
    }

    fn program(device: &mut FileDevice, now: u64, slot: u32, stamp: u64) -> Result<(), String> {
        let cell = Cell::Written([0; 32], Content::Stamp(stamp));
        let command = Command::Program { tag: Tag(0), slot: SlotId(slot), count: 1 };
        device.start(Instant(now), command, vec![cell])
    }

    fn drain(device: &mut FileDevice, now: u64) {
        while device.finish(Instant(now)).is_some() {}
    }

    #[test]
    fn only_what_ended_before_the_flush_began_is_durable() {
        let mut device = device();
        program(&mut device, 0, 0, 1).expect("page 0 is next");
        drain(&mut device, SECOND);
        device.start(Instant(SECOND), Command::Flush { tag: Tag(1) }, vec![]).expect("legal");
        program(&mut device, SECOND, 1, 2).expect("page 1 is next");
        drain(&mut device, 2 * SECOND);
        assert_eq!(device.volatile_steps(), 1);
        device.power_cut(&mut |_| 1);
        assert_eq!(*device.cell(SlotId(0)), Cell::Written([0; 32], Content::Stamp(1)));
        assert_eq!(*device.cell(SlotId(1)), Cell::Erased);
    }

    #[test]
    fn a_lost_erase_brings_the_old_data_back_and_loses_what_followed_it() {
        let mut device = device();
        program(&mut device, 0, 0, 1).expect("page 0 is next");
        drain(&mut device, SECOND);
        device.start(Instant(SECOND), Command::Flush { tag: Tag(1) }, vec![]).expect("legal");
        drain(&mut device, 2 * SECOND);
        let erase = Command::Erase { tag: Tag(2), block: BlockId(0) };
        device.start(Instant(2 * SECOND), erase, vec![]).expect("legal");
        program(&mut device, 2 * SECOND, 0, 2).expect("page 0 is next again");
        let mut fates = [1, 0].into_iter();
        device.power_cut(&mut |_| fates.next().expect("two steps"));
        assert_eq!(*device.cell(SlotId(0)), Cell::Written([0; 32], Content::Stamp(1)));
    }

    #[test]
    fn a_program_out_of_order_or_twice_is_refused() {
        let mut device = device();
        assert!(program(&mut device, 0, 1, 1).is_err());
        program(&mut device, 0, 0, 1).expect("page 0 is next");
        let error = program(&mut device, 0, 0, 1).expect_err("programmed twice");
        assert!(error.contains("page 1 is the next"), "{error}");
    }
}
