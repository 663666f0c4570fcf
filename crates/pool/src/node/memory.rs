//! A store in memory: for tests, with planted faults, and for simulated drives, whose commands take as long as
//! a model of the drive says.
//!
//! Invariant: it keeps the contract of [`super::store`] also where faults are planted: what is lost is told as lost,
//! never shown as something else.

use super::store::{
    Command, CommandId, Data, Done, End, Found, FoundBand, Opening, Sensed, StoreError,
    is_of_its_sum, page_sum,
};
use crate::message::{BandEntry, BandHeader, Slot};
use crate::words::{BandName, Fenced, VolumeId};
use flash::{Instant, MICROSECOND, Random};
use std::collections::BTreeMap;

/// What goes wrong, each with its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryFaults {
    /// A slot that was appended can never be read; of every other one what stands beside its data can.
    pub lost: f64,
    /// An append fails, and its band with it.
    pub failing: f64,
    /// A command takes `slow_ns` more.
    pub slow: f64,
    /// How much that is.
    pub slow_ns: u64,
    /// From this command on, counted from the first, the drive takes no writes.
    pub fails_at: u64,
}

impl Default for MemoryFaults {
    fn default() -> Self {
        Self { lost: 0.0, failing: 0.0, slow: 0.0, slow_ns: 0, fails_at: u64::MAX }
    }
}

/// The drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySettings {
    /// Bands that it has room for.
    pub bands_max: u32,
    /// What ended survives a power cut.
    pub durable: bool,
    /// How long a read takes, where [`MemoryStore::begin`] is told nothing else.
    pub read_ns: u64,
    /// The same of anything else.
    pub write_ns: u64,
    /// A band that was open when the power was cut takes pages afterwards.
    pub open_after_cut: bool,
    /// What goes wrong.
    pub faults: MemoryFaults,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            bands_max: 1024,
            durable: true,
            read_ns: 80 * MICROSECOND,
            write_ns: 20 * MICROSECOND,
            open_after_cut: false,
            faults: MemoryFaults::default(),
        }
    }
}

#[derive(Clone, Debug)]
struct Page<D> {
    slots: Vec<Option<Slot<D>>>,
    sum: u32,
    durable: bool,
    /// Counts what ended: a flush makes durable what ended before it was begun.
    order: u64,
}

#[derive(Clone, Debug)]
struct MemoryBand<D> {
    header: BandHeader,
    hidden: bool,
    failed: bool,
    sealed: bool,
    pages: Vec<Page<D>>,
}

#[derive(Clone, Debug)]
struct Running<D> {
    id: CommandId,
    command: Command<D>,
    /// What had ended when it was begun.
    order: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct MemoryStore<D> {
    settings: MemorySettings,
    random: Random,
    bands: BTreeMap<BandName, MemoryBand<D>>,
    fences: BTreeMap<VolumeId, Fenced>,
    /// By when they end, then in order.
    running: BTreeMap<(Instant, u64), Running<D>>,
    /// When the last change of a band ends that was begun.
    changed_until: BTreeMap<BandName, Instant>,
    begun: u64,
    ended: u64,
}

/// The band that a command changes.
fn changed_by<D>(command: &Command<D>) -> Option<BandName> {
    match *command {
        Command::Append { band, .. } | Command::Seal { band, .. } | Command::Free { band } => {
            Some(band)
        }
        Command::Fence { .. }
        | Command::Forget { .. }
        | Command::Sum { .. }
        | Command::Read { .. }
        | Command::Flush => None,
    }
}

impl<D: Data> MemoryStore<D> {
    /// An empty one. Its faults follow from `seed`.
    pub fn new(settings: MemorySettings, seed: u64) -> Self {
        Self {
            settings,
            random: Random::new(seed),
            bands: BTreeMap::new(),
            fences: BTreeMap::new(),
            running: BTreeMap::new(),
            changed_until: BTreeMap::new(),
            begun: 0,
            ended: 0,
        }
    }

    /// What is there, for a node that begins.
    pub fn found(&self) -> Found {
        let bands = self.bands.iter().map(|(&name, band)| FoundBand {
            entry: BandEntry::whole(name, band.header, band.pages.len() as u32, band.sealed),
            failed: band.failed,
        });
        Found {
            bands: bands.collect(),
            fences: self.fences.clone(),
            bands_max: self.settings.bands_max,
            band_pages: u32::MAX,
            durable: self.settings.durable,
        }
    }

    /// Begins a command that takes as long as the settings say, or `ns`.
    pub fn begin(&mut self, now: Instant, id: CommandId, command: Command<D>, ns: Option<u64>) {
        let read = matches!(command, Command::Read { .. } | Command::Sum { .. });
        let faults = self.settings.faults;
        let usual = if read { self.settings.read_ns } else { self.settings.write_ns };
        let slow = if self.random.chance(faults.slow) { faults.slow_ns } else { 0 };
        let mut at = now + ns.unwrap_or(usual) + slow;
        if let Some(band) = changed_by(&command) {
            // Changes of a band take effect in the order in which they are begun.
            let until = self.changed_until.entry(band).or_default();
            at = at.max(*until);
            *until = at;
        }
        self.begun += 1;
        let running = Running { id, command, order: self.ended };
        self.running.insert((at, self.begun), running);
    }

    /// The next command that has ended by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<End<D>> {
        let entry = self.running.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let ((at, number), Running { id, command, order }) = entry.remove_entry();
        if let Some(band) = changed_by(&command)
            && self.changed_until.get(&band) == Some(&at)
        {
            self.changed_until.remove(&band);
        }
        let failed = number >= self.settings.faults.fails_at;
        let result = self.carry_out(command, order, failed);
        Some(End { id, result, sensed: Sensed::default() })
    }

    /// When the next command ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.keys().next().map(|&(at, _)| at)
    }

    /// Cuts the power: of what has not ended a part is done, in order; what was not durable is gone from some
    /// page on. `random` chooses.
    pub fn power_cut(&mut self, random: &mut Random) {
        let running = std::mem::take(&mut self.running);
        for Running { command, order, .. } in running.into_values() {
            let flushes = matches!(command, Command::Flush);
            if !flushes && random.chance(0.5) {
                // Whoever asked was not answered: an error is as good as none.
                let _unheard = self.carry_out(command, order, false);
            } else if let Command::Append { band, .. } = command
                && let Some(band) = self.bands.get_mut(&band)
            {
                // It is torn: so nothing comes after it.
                band.failed = true;
            }
        }
        self.changed_until.clear();
        let (durable, open) = (self.settings.durable, self.settings.open_after_cut);
        self.bands.retain(|_, band| {
            let kept = band.pages.iter().take_while(|page| page.durable).count();
            if !durable {
                let more = random.below((band.pages.len() - kept) as u64 + 1) as usize;
                band.pages.truncate(kept + more);
            }
            band.failed |= !open && !band.sealed;
            band.pages.iter_mut().for_each(|page| page.durable = true);
            band.sealed || !band.hidden && !band.pages.is_empty()
        });
    }

    fn carry_out(
        &mut self,
        command: Command<D>,
        order: u64,
        failed: bool,
    ) -> Result<Done<D>, StoreError> {
        match command {
            Command::Sum { band, page } => {
                let band = self.bands.get(&band).ok_or(StoreError::NoBand)?;
                let page = band.pages.get(page as usize).ok_or(StoreError::NoBand)?;
                return Ok(Done::Sum(Some(page.sum)));
            }
            Command::Read { band, slot, count, .. } => return self.read(band, slot, count),
            _ if failed => return Err(StoreError::Failed),
            Command::Fence { volume, to } => drop(self.fences.insert(volume, to)),
            Command::Forget { volume } => drop(self.fences.remove(&volume)),
            Command::Append { band, page, open, slots, .. } => {
                self.append(band, page, open, slots)?;
            }
            Command::Seal { band, pages, .. } => {
                let band = self.bands.get_mut(&band).ok_or(StoreError::NoBand)?;
                band.pages.truncate(pages as usize);
                band.pages.iter_mut().for_each(|page| page.durable = true);
                band.sealed = true;
            }
            Command::Free { band } => drop(self.bands.remove(&band)),
            Command::Flush => {
                let pages = self.bands.values_mut().flat_map(|band| &mut band.pages);
                pages.filter(|page| page.order <= order).for_each(|page| page.durable = true);
            }
        }
        Ok(Done::Done)
    }

    fn append(
        &mut self,
        name: BandName,
        page: u32,
        open: Option<Opening>,
        slots: Vec<Slot<D>>,
    ) -> Result<(), StoreError> {
        let faults = self.settings.faults;
        if self.random.chance(faults.failing) {
            if let Some(band) = self.bands.get_mut(&name) {
                band.failed = true;
            }
            return Err(StoreError::BandFailed);
        }
        if let Some(Opening { header, hidden }) = open {
            if self.bands.len() as u32 >= self.settings.bands_max {
                return Err(StoreError::Full);
            }
            let (failed, sealed) = (false, false);
            let band = MemoryBand { header, hidden, failed, sealed, pages: Vec::new() };
            let before = self.bands.insert(name, band);
            assert!(before.is_none(), "a band is opened once");
        }
        let band = self.bands.get_mut(&name).ok_or(StoreError::NoBand)?;
        if band.failed {
            return Err(StoreError::BandFailed);
        }
        assert!(!band.sealed, "a sealed band never changes");
        assert_eq!(page as usize, band.pages.len(), "pages come in order");
        let sum = page_sum(&slots);
        let random = &mut self.random;
        let slots = slots.into_iter().map(|slot| match random.chance(faults.lost) {
            true => damaged(slot, random.chance(0.5)),
            false => Some(slot),
        });
        self.ended += 1;
        let (slots, durable, order) = (slots.collect(), self.settings.durable, self.ended);
        band.pages.push(Page { slots, sum, durable, order });
        Ok(())
    }

    fn read(&self, name: BandName, slot: u32, count: u32) -> Result<Done<D>, StoreError> {
        let band = self.bands.get(&name).ok_or(StoreError::NoBand)?;
        let per_page = band.header.shape.slots_per_page;
        let page = band.pages.get((slot / per_page) as usize).ok_or(StoreError::NoBand)?;
        let first = (slot % per_page) as usize;
        let slots = &page.slots[first..first + count as usize];
        let slots = slots.iter().map(|slot| slot.clone().filter(is_of_its_sum));
        Ok(Done::Slots(slots.collect()))
    }
}

/// What is left of a slot that was damaged: nothing, or what stood beside its data.
fn damaged<D>(slot: Slot<D>, keeps_oob: bool) -> Option<Slot<D>> {
    let slot = Slot { data: None, ..slot };
    (keeps_oob && slot.is_lost()).then_some(slot)
}
