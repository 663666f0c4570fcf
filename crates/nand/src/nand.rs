//! The device: judges each command by the rules ([`crate::cells`]), lets it take its time
//! ([`crate::dies`]), and answers.

use crate::cells::{Cells, Place};
use crate::dies::{Dies, Job, Manners};
use crate::{BlockRecord, Faults, Illegal, Layout, Profile};
use flash::{
    BLOCK_BYTES, BlockId, Command, FastTier, Geometry, Health, Instant, MediumError, Payload,
    SlotId, SlotStatus, Tag,
};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// An emulated NAND device. See the crate's page for how to drive it.
#[derive(Clone, Debug)]
pub struct Nand {
    geometry: Geometry,
    /// The latest `now` given.
    now: Instant,
    cells: Cells,
    dies: Dies,
    durations: Arc<Durations>,
    /// Of the fast units; those of all others on a device of one kind.
    fast_durations: Arc<Durations>,
    units: Vec<Unit>,
    /// Ended, not yet polled.
    ready: VecDeque<Judged>,
    in_flight: usize,
    counters: Counters,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// A read ended.
    Read {
        /// The command's.
        tag: Tag,
        /// First slot.
        slot: SlotId,
        /// Slots.
        count: u32,
        /// Where the command wants the data.
        into: Option<Payload>,
        /// How the slots came back: one status, as they are of one page. On a fast unit each slot
        /// has its own: ask [`Nand::status`]; this one is of the first.
        status: Result<SlotStatus, MediumError>,
    },
    /// A program ended. If `Ok`, the driver stores the content.
    Program {
        /// The command's.
        tag: Tag,
        /// First slot.
        slot: SlotId,
        /// Slots.
        count: u32,
        /// Programmed, or why not.
        result: Result<(), MediumError>,
    },
    /// An erase ended. If `Ok`, the driver drops the content.
    Erase {
        /// The command's.
        tag: Tag,
        /// Which block.
        block: BlockId,
        /// Erased, or why not.
        result: Result<(), MediumError>,
    },
    /// A block is finished.
    Finish {
        /// The command's.
        tag: Tag,
    },
    /// A flush ended; there was nothing to do, but it may fail all the same.
    Flush {
        /// The command's.
        tag: Tag,
        /// Durable, or why not.
        result: Result<(), MediumError>,
    },
}

/// What the device did since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Reads taken.
    pub reads: u64,
    /// Programs taken.
    pub programs: u64,
    /// Erases taken.
    pub erases: u64,
    /// Programs and erases suspended for a read.
    pub suspensions: u64,
    /// Data bytes asked for by reads.
    pub bytes_read: u64,
    /// Data bytes of programs.
    pub bytes_programmed: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed, those of bad blocks included.
    pub erase_failures: u64,
    /// Flushes that failed.
    pub flush_failures: u64,
    /// Reads that were corrected.
    pub reads_corrected: u64,
    /// Reads that could not be corrected.
    pub reads_uncorrectable: u64,
    /// Power cuts.
    pub power_cuts: u64,
}

/// A command and what will be said of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub command: Command,
    pub unit: u32,
    verdict: Verdict,
    /// The block before a program or erase took effect.
    before: BlockRecord,
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Read(Result<SlotStatus, MediumError>),
    Change(Result<(), MediumError>),
}

#[derive(Clone, Debug)]
struct Unit {
    /// Commands taken whose outcome was not polled.
    taken: u32,
    /// From when on it does not answer.
    gone_at: Instant,
}

/// How long things take, looked up instead of computed.
#[derive(Debug)]
struct Durations {
    instant: bool,
    /// Command and tR of each page of a block.
    read_ns: Vec<u64>,
    /// Bus time of a read, by first slot in the page, then by count.
    read_bus_ns: Vec<u64>,
    /// Likewise of a host's.
    host_read_bus_ns: Vec<u64>,
    program_ns: Vec<u64>,
    program_bus_ns: u64,
    erase_ns: u64,
}

impl Judged {
    /// Fills an unused place.
    pub const NONE: Self = Self {
        command: Command::Flush { tag: Tag(0) },
        unit: 0,
        verdict: Verdict::Change(Ok(())),
        before: BlockRecord::FRESH,
    };
}

impl Nand {
    /// A fresh device. `Err` says what is wrong with the layout or the faults.
    pub fn new(profile: &Profile, layout: &Layout, faults: Faults) -> Result<Self, String> {
        Self::assemble(profile, layout, profile, FastTier::NONE, faults)
    }

    /// A fresh device of two kinds: `fast` units with the times of `fast_profile`, of which nothing
    /// else counts, behind the units of `layout`.
    pub fn tiered(
        profile: &Profile,
        layout: &Layout,
        fast_profile: &Profile,
        fast: FastTier,
        faults: Faults,
    ) -> Result<Self, String> {
        Self::assemble(profile, layout, fast_profile, fast, faults)
    }

    fn assemble(
        profile: &Profile,
        layout: &Layout,
        fast_profile: &Profile,
        fast: FastTier,
        faults: Faults,
    ) -> Result<Self, String> {
        let mut geometry = profile.geometry(layout);
        geometry.units = geometry.units.saturating_add(fast.units);
        geometry.fast = fast;
        geometry.validate()?;
        faults.validate(geometry.units)?;
        let (dies, together) = (layout.dies_per_channel, profile.chip_units);
        if !dies.is_multiple_of(together) {
            return Err(format!(
                "dies_per_channel = {dies}: must be a multiple of chip_units = {together}, for \
                 example {}",
                dies.next_multiple_of(together)
            ));
        }
        let mut units =
            vec![Unit { taken: 0, gone_at: Instant(u64::MAX) }; geometry.units as usize];
        if let Some((unit, at)) = faults.dead_unit {
            units[unit as usize].gone_at = at;
        }
        let manners = Manners {
            queue_depth: geometry.queue_depth,
            cache_read: profile.cache_read,
            cache_program: profile.cache_program,
            suspend_erase_ns: profile.suspend_erase_ns,
            suspend_program_ns: profile.suspend_program_ns,
            slots_per_block: geometry.slots_per_block(),
            fast_units: fast.units,
            chip_units: profile.chip_units,
            commands_wait: profile.commands_wait,
        };
        let places = units.len() * geometry.queue_depth as usize;
        Ok(Self {
            geometry,
            now: Instant(0),
            cells: Cells::new(profile, geometry, faults),
            dies: Dies::new(manners, geometry.units, layout.channels),
            durations: Arc::new(Durations::new(profile, geometry)),
            fast_durations: Arc::new(Durations::new(fast_profile, geometry)),
            units,
            ready: VecDeque::with_capacity(places + 1),
            in_flight: 0,
            counters: Counters::default(),
        })
    }

    /// Takes a command, or refuses it if a real part would not do it; a refused command changes
    /// nothing.
    pub fn handle(&mut self, now: Instant, command: Command) -> Result<(), Illegal> {
        self.advance(now);
        match command {
            Command::Read { slot, count, .. } => self.read(command, slot, count),
            Command::Program { slot, count, .. } => self.program(command, slot, count),
            Command::Erase { block, .. } => self.erase(command, block),
            Command::Finish { block, .. } => {
                self.cells.locate_block(block)?;
                self.cells.finish(block);
                self.in_flight += 1;
                self.ready.push_back(Judged { command, ..Judged::NONE });
                Ok(())
            }
            Command::Flush { .. } => {
                self.in_flight += 1;
                let result = self.cells.flush();
                self.counters.flush_failures += u64::from(result.is_err());
                let verdict = Verdict::Change(result);
                self.ready.push_back(Judged { command, verdict, ..Judged::NONE });
                Ok(())
            }
        }
    }

    /// The next command whose time has come by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Outcome> {
        self.now = self.now.max(now);
        let judged = match self.ready.pop_front() {
            Some(judged) => judged,
            None => self.step()?,
        };
        self.in_flight -= 1;
        let verdict = judged.verdict;
        match judged.command {
            Command::Flush { tag } => {
                let Verdict::Change(result) = verdict else {
                    unreachable!("a flush is judged as a change")
                };
                return Some(Outcome::Flush { tag, result });
            }
            Command::Finish { tag, .. } => return Some(Outcome::Finish { tag }),
            _ => {}
        }
        self.units[judged.unit as usize].taken -= 1;
        Some(match (judged.command, verdict) {
            (Command::Read { tag, slot, count, into, .. }, Verdict::Read(status)) => {
                Outcome::Read { tag, slot, count, into, status }
            }
            (Command::Program { tag, slot, count }, Verdict::Change(result)) => {
                Outcome::Program { tag, slot, count, result }
            }
            (Command::Erase { tag, block }, Verdict::Change(result)) => {
                Outcome::Erase { tag, block, result }
            }
            _ => unreachable!("a command is judged by its kind"),
        })
    }

    /// When to poll next; there may be nothing yet, as a step inside the device also counts.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ready.is_empty() { self.dies.deadline() } else { Some(self.now) }
    }

    /// Cuts the power now: each command in flight gets one of its torn outcomes, `choose(n)`
    /// answering with 0 to n - 1, and none is answered. Then power is back.
    ///
    /// A program: 0 its page still reads erased, 1 it is programmed, 2 its page is uncorrectable,
    /// 3 so are the pages that share its cells and were programmed before (if there are any).
    /// One of n slots on a fast unit: 0 to 2 as before; then for each k below n, first slots that are
    /// programmed while the others are uncorrectable, and after these the reverse.
    /// An erase: 0 nothing happened, 1 the block is erased, 2 all its pages are uncorrectable,
    /// 3 all but the first, which is intact, 4 the first page reads erased, the others are intact
    /// (3 and 4 only if the block has more than one page).
    ///
    /// A unit executes in order: what is behind a command that did not end complete never started,
    /// and is not asked about. As nobody can tell what was in flight and ended well from what did
    /// not quite, the blocks of all of them refuse programs until they are erased.
    pub fn power_cut(&mut self, choose: &mut dyn FnMut(u32) -> u32) {
        let mut cut: Vec<Judged> = self.ready.drain(..).collect();
        self.dies.cut(self.now, |judged| cut.push(judged));
        for judged in cut.iter().rev() {
            if let Some(place) = self.changes(judged) {
                self.cells.revert(place.block, judged.before);
            }
        }
        let mut stopped = BTreeSet::new();
        for judged in &cut {
            let Some(place) = self.changes(judged) else { continue };
            // What was behind a program that was cut never started.
            let program = matches!(judged.command, Command::Program { .. });
            if judged.before.bad || program && judged.before.needs_erase {
                continue;
            }
            if stopped.contains(&place.unit) {
                self.cells.distrust(place.block);
                continue;
            }
            let program = match judged.command {
                Command::Program { count, .. } => Some(count),
                _ => None,
            };
            let outcomes = match program {
                Some(count) => self.cells.torn_program_outcomes(place, count),
                None => self.cells.torn_erase_outcomes(),
            };
            let outcome = choose(outcomes);
            assert!(outcome < outcomes, "choose({outcomes}) answered {outcome}");
            let complete = match program {
                Some(count) => self.cells.tear_program(place, count, outcome),
                None => self.cells.tear_erase(place.block, outcome),
            };
            if !complete {
                stopped.insert(place.unit);
            }
        }
        for unit in &mut self.units {
            unit.taken = 0;
        }
        self.in_flight = 0;
        self.finish_all();
        self.counters.power_cuts += 1;
    }

    /// No block that is partly programmed takes any more before its erase: what a driver does on a
    /// medium that bounds them ([`Geometry::open_blocks_max`]) before it does anything else.
    pub fn finish_all(&mut self) {
        self.cells.finish_all();
    }

    /// Sets the state of a block, as [`Nand::record`] once gave it.
    ///
    /// # Panics
    /// If the medium has no such block.
    pub fn restore(&mut self, block: BlockId, record: BlockRecord) {
        self.cells.restore(block, BlockRecord { unsure: 0, ..record });
    }

    /// Makes the page of `slot` uncorrectable until its block is erased. Nothing happens if the
    /// page is erased.
    ///
    /// # Panics
    /// If the medium has no such slot.
    pub fn mark_uncorrectable(&mut self, slot: SlotId) {
        let place = self.cells.locate(slot).expect("a slot of this medium");
        if !self.cells.record(place.block).is_erased(place.page) {
            self.cells.mark_uncorrectable(place);
        }
    }

    /// The program of the page of `slot` failed in what holds the bytes: its block is bad from now on, as if
    /// the cells had failed.
    ///
    /// # Panics
    /// If the medium has no such slot.
    pub fn fail_program(&mut self, slot: SlotId) {
        let place = self.cells.locate(slot).expect("a slot of this medium");
        self.cells.fail_program(place);
    }

    /// The erase of a block failed in what holds the bytes: it is bad from now on.
    ///
    /// # Panics
    /// If the medium has no such block.
    pub fn fail_erase(&mut self, block: BlockId) {
        self.cells.fail_erase(block);
    }

    /// The unit stops answering now. What it is doing ends with `UnitGone`, or as if nothing were: of a
    /// device that goes, some answers are on their way already, and come in between.
    ///
    /// # Panics
    /// If the medium has no such unit.
    pub fn kill_unit(&mut self, unit: u32) {
        let unit = &mut self.units[unit as usize];
        unit.gone_at = unit.gone_at.min(self.now);
    }

    /// The unit answers again, with what it held.
    ///
    /// # Panics
    /// If the medium has no such unit.
    pub fn revive_unit(&mut self, unit: u32) {
        self.units[unit as usize].gone_at = Instant(u64::MAX);
    }

    /// The shape of the device. A page is the same page of every plane, a unit is a die.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What the FTL must know when it mounts.
    pub fn health(&self) -> Health {
        let records = self.cells.records();
        let bad =
            |(index, record): (usize, &BlockRecord)| record.bad.then_some(BlockId(index as u32));
        Health {
            erase_counts: records.iter().map(|record| record.erase_count).collect(),
            bad_blocks: records.iter().enumerate().filter_map(bad).collect(),
            units_gone: (0..self.geometry.units).filter(|&unit| self.is_gone(unit)).collect(),
        }
    }

    /// Commands taken whose outcome was not polled.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The state of every block, in order.
    pub fn records(&self) -> impl Iterator<Item = (BlockId, BlockRecord)> {
        let records = self.cells.records().iter().enumerate();
        records.map(|(index, &record)| (BlockId(index as u32), record))
    }

    /// The state of a block.
    ///
    /// # Panics
    /// If the medium has no such block.
    pub fn record(&self, block: BlockId) -> BlockRecord {
        self.cells.record(block)
    }

    /// The first slots of pages that are uncorrectable beside what the records say: those marked
    /// one by one, by [`Nand::mark_uncorrectable`] or by `Faults::uncorrectable`.
    pub fn damaged_pages(&self) -> impl Iterator<Item = SlotId> {
        self.cells.damaged_pages()
    }

    /// What a read of this slot would find now, were it not for errors drawn at each read. A driver
    /// asks this after a power cut, to know which of the programs in flight to store.
    ///
    /// # Panics
    /// If the medium has no such slot.
    pub fn status(&self, slot: SlotId) -> SlotStatus {
        self.cells.status(self.cells.locate(slot).expect("a slot of this medium"))
    }

    /// How long a unit had a command, up to the latest `now`.
    ///
    /// # Panics
    /// If the medium has no such unit.
    pub fn unit_busy_ns(&self, unit: u32) -> u64 {
        self.dies.busy_ns(unit, self.now)
    }

    /// What the device did since it was made.
    pub fn counters(&self) -> Counters {
        Counters { suspensions: self.dies.suspensions(), ..self.counters }
    }

    fn read(&mut self, command: Command, slot: SlotId, count: u32) -> Result<(), Illegal> {
        let place = self.cells.locate(slot)?;
        self.cells.check_read(slot, count)?;
        self.check_queue(place.unit)?;
        let status = if self.is_gone(place.unit) {
            Err(MediumError::UnitGone)
        } else {
            Ok(self.cells.read(self.now, place, count))
        };
        self.counters.reads += 1;
        self.counters.bytes_read += u64::from(count) * BLOCK_BYTES as u64;
        match status {
            Ok(SlotStatus::Corrected(_)) => self.counters.reads_corrected += 1,
            Ok(SlotStatus::Uncorrectable) => self.counters.reads_uncorrectable += 1,
            _ => {}
        }
        let verdict = Verdict::Read(status);
        let judged = Judged { command, unit: place.unit, verdict, before: BlockRecord::FRESH };
        if self.takes_time(judged) {
            let durations = self.durations_of(place.unit);
            let index = place.slot_in_page * self.geometry.slots_per_page + count - 1;
            let page = self.geometry.page_in_block(slot);
            let array_ns = durations.read_ns[page as usize];
            let bus_ns = match command {
                Command::Read { into: Some(into), .. } if into.buffer != Payload::RELOCATION => {
                    durations.host_read_bus_ns[index as usize]
                }
                _ => durations.read_bus_ns[index as usize],
            };
            self.dies.submit(self.now, Job::new(judged, array_ns, bus_ns));
        }
        Ok(())
    }

    fn program(&mut self, command: Command, slot: SlotId, count: u32) -> Result<(), Illegal> {
        let place = self.cells.locate(slot)?;
        self.check_queue(place.unit)?;
        let before = self.cells.record(place.block);
        let result = if self.is_gone(place.unit) {
            Err(MediumError::UnitGone)
        } else {
            match self.cells.check_program(slot, place, count) {
                Ok(()) => self.cells.program(self.now, place, count),
                // The caller cannot know yet.
                Err(Illegal::ProgramBadBlock { .. })
                    if self.is_ending(place, MediumError::BlockFailed) =>
                {
                    Err(MediumError::BlockFailed)
                }
                Err(Illegal::NeedsErase { .. }) if self.is_ending(place, MediumError::Cut) => {
                    Err(MediumError::Cut)
                }
                Err(illegal) => return Err(illegal),
            }
        };
        self.counters.programs += 1;
        self.counters.bytes_programmed += u64::from(count) * BLOCK_BYTES as u64;
        self.counters.program_failures += u64::from(result == Err(MediumError::BlockFailed));
        let judged = Judged { command, unit: place.unit, verdict: Verdict::Change(result), before };
        if self.takes_time(judged) {
            let durations = self.durations_of(place.unit);
            let array_ns = durations.program_ns[self.geometry.page_in_block(slot) as usize];
            let bus_ns = if self.geometry.is_fast_unit(place.unit) {
                durations.read_bus_ns[count as usize - 1]
            } else {
                durations.program_bus_ns
            };
            self.dies.submit(self.now, Job::new(judged, array_ns, bus_ns));
        }
        Ok(())
    }

    fn erase(&mut self, command: Command, block: BlockId) -> Result<(), Illegal> {
        let place = self.cells.locate_block(block)?;
        self.check_queue(place.unit)?;
        let before = self.cells.record(block);
        let result = if self.is_gone(place.unit) {
            Err(MediumError::UnitGone)
        } else {
            self.cells.erase(block)
        };
        self.counters.erases += 1;
        self.counters.erase_failures += u64::from(result == Err(MediumError::BlockFailed));
        let judged = Judged { command, unit: place.unit, verdict: Verdict::Change(result), before };
        if self.takes_time(judged) {
            let erase_ns = self.durations_of(place.unit).erase_ns;
            self.dies.submit(self.now, Job::new(judged, erase_ns, 0));
        }
        Ok(())
    }

    fn durations_of(&self, unit: u32) -> &Durations {
        if self.geometry.is_fast_unit(unit) { &self.fast_durations } else { &self.durations }
    }

    /// Counts a judged command in, and answers it at once if that takes no time.
    fn takes_time(&mut self, judged: Judged) -> bool {
        self.units[judged.unit as usize].taken += 1;
        self.in_flight += 1;
        let takes_time = !self.durations_of(judged.unit).instant && !self.is_gone(judged.unit);
        if !takes_time {
            self.ready.push_back(judged);
        }
        takes_time
    }

    fn check_queue(&self, unit: u32) -> Result<(), Illegal> {
        let depth = self.geometry.queue_depth;
        if self.units[unit as usize].taken >= depth {
            return Err(Illegal::QueueFull { unit, depth });
        }
        Ok(())
    }

    /// A command in flight ends so and has failed the block, or found it failed.
    fn is_ending(&self, place: Place, error: MediumError) -> bool {
        self.ready.iter().chain(self.dies.jobs(place.unit)).any(|judged| {
            matches!(judged.verdict, Verdict::Change(Err(of)) if of == error)
                && self.changes(judged).is_some_and(|other| other.block == place.block)
        })
    }

    /// Where a command changes cells, unless it reads or its unit is gone.
    fn changes(&self, judged: &Judged) -> Option<Place> {
        if matches!(judged.verdict, Verdict::Change(Err(MediumError::UnitGone))) {
            return None;
        }
        match judged.command {
            Command::Program { slot, .. } => self.cells.locate(slot).ok(),
            Command::Erase { block, .. } => self.cells.locate_block(block).ok(),
            Command::Read { .. } | Command::Finish { .. } | Command::Flush { .. } => None,
        }
    }

    fn is_gone(&self, unit: u32) -> bool {
        self.units[unit as usize].gone_at <= self.now
    }

    /// Lets the dies work up to `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(judged) = self.step() {
            self.ready.push_back(judged);
        }
    }

    /// The next command that the dies end by now.
    fn step(&mut self) -> Option<Judged> {
        let (at, mut judged) = self.dies.step(self.now)?;
        let answers_still = judged.command.tag().0.is_multiple_of(2);
        if self.units[judged.unit as usize].gone_at <= at && !answers_still {
            judged.verdict = match judged.verdict {
                Verdict::Read(_) => Verdict::Read(Err(MediumError::UnitGone)),
                Verdict::Change(_) => Verdict::Change(Err(MediumError::UnitGone)),
            };
        }
        Some(judged)
    }
}

impl Durations {
    fn new(profile: &Profile, geometry: Geometry) -> Self {
        let pages = 0..geometry.pages_per_block;
        let slots = geometry.slots_per_page;
        let block = BLOCK_BYTES as u64;
        let places = |index: u32| (u64::from(index / slots) * block, u64::from(index % slots) + 1);
        let read_bus_ns = |index: u32| {
            let (offset, count) = places(index);
            profile.bus_ns(profile.read_wire_bytes(offset, count * block))
        };
        let host_read_bus_ns = |index: u32| {
            let (offset, count) = places(index);
            profile.bus_ns(profile.host_read_wire_bytes(offset, count))
        };
        Self {
            instant: profile.is_instant(),
            read_ns: pages
                .clone()
                .map(|page| profile.command_ns + profile.page_read_ns(page))
                .collect(),
            read_bus_ns: (0..slots * slots).map(read_bus_ns).collect(),
            host_read_bus_ns: (0..slots * slots).map(host_read_bus_ns).collect(),
            program_ns: pages.map(|page| profile.page_program_ns(page)).collect(),
            program_bus_ns: profile.command_ns + profile.bus_ns(profile.program_unit_wire_bytes()),
            erase_ns: profile.command_ns + profile.erase_ns,
        }
    }
}
