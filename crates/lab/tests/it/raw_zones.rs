//! Raw units as zones against the state machine of the specification (NVMe ZNS 1.1, section 2.1), written down
//! here once more: any actions in any order, with limits and without, and with a power cut at the end.

use crate::{THREADS, passed, seeds};
use flash::{Hint, Instant, Lba, Operation, Pairing, Random, RequestError, ZoneError};
use ftl::raw::zones::{ZoneAction, ZoneState, ZoneStep, Zones};
use ftl::raw::{Lanes, RawFormat, RawSettings, RawUnits, WriteUnit};
use lab::device::{Manner, Small};
use lab::parallel::for_each_seed;
use lab::{Failure, Sim};
use nand::Faults;

/// A zone as its host keeps count of it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Known {
    state: ZoneState,
    /// Stamps of the blocks that are written; 0 of those that are padded.
    written: Vec<u64>,
}

/// A host that keeps count of the zones of one unit. Its device is asked one thing at a time.
struct ZoneHost {
    sim: Sim<RawUnits>,
    zones: Zones,
    known: Vec<Known>,
    lanes: Lanes,
    page: u32,
    settings: RawSettings,
    stamp: u64,
}

fn zone(error: ZoneError) -> Result<(), RequestError> {
    Err(RequestError::Zone(error))
}

impl ZoneHost {
    fn of_seed(random: &mut Random) -> Result<Self, Failure> {
        let page = 1 + random.below(2) as u32;
        let pairing = [Pairing::None, Pairing::Staircase][random.below(2) as usize];
        let device = Small {
            manner: Manner::Nand(pairing),
            units: 2,
            blocks_per_unit: 12,
            pages_per_block: 6,
            slots_per_page: page,
            open_blocks_max: 0,
        };
        let limit = [(0, 0), (2, 0), (2, 3), (3, 3)][random.below(4) as usize];
        let settings = RawSettings {
            write: WriteUnit::Page,
            zones_open_max: limit.0,
            zones_active_max: limit.1,
            ..RawSettings::default()
        };
        let medium = device.build(Faults::default()).map_err(Failure)?;
        let format = RawFormat { gang: 2, spare: 0.34, uuid: 1, label: Vec::new() };
        let mut sim = Sim::format_raw(medium, format, settings.clone(), Instant(0))?;
        sim.run_until_ready()?;
        let lanes = sim.ftl().lanes();
        let zones = Zones::of(sim.ftl()).expect("pages are written");
        let empty = Known { state: ZoneState::Empty, written: Vec::new() };
        let known = vec![empty; lanes.raw_blocks as usize];
        Ok(Self { sim, zones, known, lanes, page, settings, stamp: 0 })
    }

    fn start(&self, index: usize) -> Lba {
        Lba(index as u32 * self.lanes.slots)
    }

    /// What the units were asked is awaited.
    fn end(&mut self) -> Result<(), Failure> {
        self.sim.run_until_answered()?;
        while let Some(finished) = self.sim.take_finished() {
            let Operation::Read { .. } = finished.request.operation else {
                finished.result.map_err(|error| Failure(format!("{error:?}")))?;
                self.sim.release(finished);
                continue;
            };
            let lba = finished.request.lba.0 as usize;
            let (index, from) = (lba / self.lanes.slots as usize, lba % self.lanes.slots as usize);
            let wanted = &self.known[index].written[from..from + finished.request.blocks as usize];
            let found = self.sim.stamps(&finished);
            if finished.result.is_err() || wanted != found {
                let result = finished.result;
                return Err(Failure(format!("zone {index}: {result:?} {found:?}, not {wanted:?}")));
            }
            self.sim.release(finished);
        }
        Ok(())
    }

    fn count(&self, of: &[ZoneState]) -> u32 {
        self.known.iter().filter(|known| of.contains(&known.state)).count() as u32
    }

    /// What opens a zone that is not open: the limits say whether, and which other one is closed for it.
    fn open(&mut self, index: usize, explicit: bool) -> Result<(), RequestError> {
        use ZoneState::{Closed, Empty, ExplicitlyOpen, ImplicitlyOpen};
        let state = self.known[index].state;
        let wanted = if explicit { ExplicitlyOpen } else { ImplicitlyOpen };
        if matches!(state, ImplicitlyOpen | ExplicitlyOpen) {
            if explicit {
                self.known[index].state = wanted;
            }
            return Ok(());
        }
        let RawSettings { zones_open_max: open_max, zones_active_max: active_max, .. } =
            self.settings;
        let active = self.count(&[ImplicitlyOpen, ExplicitlyOpen, Closed]);
        if state == Empty && active_max > 0 && active >= active_max {
            return zone(ZoneError::TooManyActive);
        }
        if open_max > 0 && self.count(&[ImplicitlyOpen, ExplicitlyOpen]) >= open_max {
            let other = self.known.iter().position(|known| known.state == ImplicitlyOpen);
            let Some(other) = other else { return zone(ZoneError::TooManyOpen) };
            self.known[other].state = Closed;
        }
        self.known[index].state = wanted;
        Ok(())
    }

    /// Writes or appends pages, at the write pointer or beside it.
    fn write(&mut self, index: usize, random: &mut Random) -> Result<(), Failure> {
        let at = self.known[index].written.len() as u32;
        let blocks = self.page * (1 + random.below(4) as u32);
        let appends = random.chance(0.5);
        let aside = !appends && random.chance(0.1);
        let inside = if aside { (at + self.page) % (self.lanes.slots) } else { at };
        let due = match self.known[index].state {
            ZoneState::Full => zone(ZoneError::Full),
            _ if inside + blocks > self.lanes.slots => zone(ZoneError::Boundary),
            _ if inside != at => zone(ZoneError::InvalidWrite),
            _ => self.open(index, false),
        };
        let (units, start) = (self.sim.ftl(), self.start(index));
        let admitted = match appends {
            true => self.zones.append(units, start, blocks),
            false => self.zones.write(units, start, inside, blocks).map(|()| inside),
        };
        let place = due.map(|()| at);
        if admitted != place {
            return Err(Failure(format!("zone {index}: {admitted:?}, but {place:?} is due")));
        }
        if admitted.is_err() {
            return Ok(());
        }
        let stamps: Vec<u64> = (1..=u64::from(blocks)).map(|i| self.stamp + i).collect();
        self.stamp += u64::from(blocks);
        self.sim.write(0, start.0 + at, &stamps, (false, false), Hint::default());
        let known = &mut self.known[index];
        known.written.extend(stamps);
        if known.written.len() as u32 == self.lanes.slots {
            known.state = ZoneState::Full;
        }
        self.end()
    }

    fn act(&mut self, index: usize, action: ZoneAction) -> Result<(), Failure> {
        use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen};
        let due = match (action, self.known[index].state) {
            (ZoneAction::Open, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed) => {
                self.open(index, true)
            }
            (ZoneAction::Close, ImplicitlyOpen | ExplicitlyOpen | Closed) => {
                self.known[index].state = Closed;
                Ok(())
            }
            (ZoneAction::Finish, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => {
                self.known[index].state = Full;
                self.known[index].written.resize(self.lanes.slots as usize, 0);
                Ok(())
            }
            (ZoneAction::Reset, _) => {
                self.known[index] = Known { state: Empty, written: Vec::new() };
                Ok(())
            }
            _ => zone(ZoneError::Transition),
        };
        let mut done = self.zones.act(self.sim.ftl(), self.start(index), action);
        while let Ok(step) = done {
            let (start, slots) = (self.start(index).0, self.lanes.slots);
            match step {
                ZoneStep::Done => break,
                ZoneStep::Erase => self.sim.trim(0, start, slots, false),
                ZoneStep::Pad(at, left) => {
                    let stamps = vec![0; left.min(2 * self.page) as usize];
                    self.sim.write(0, start + at, &stamps, (false, false), Hint::default());
                }
            }
            if step == ZoneStep::Erase {
                let state = self.sim.ftl().raw_block(Lba(start)).map(|block| block.state);
                let again = self.zones.act(self.sim.ftl(), Lba(start), ZoneAction::Reset);
                if state == Some("erasing") && again != Err(RequestError::Busy) {
                    return Err(Failure(format!("zone {index} is being erased: {again:?}")));
                }
                self.end()?;
                break;
            }
            self.end()?;
            done = self.zones.act(self.sim.ftl(), self.start(index), action);
        }
        if done.map(|_| ()) != due {
            return Err(Failure(format!("{action:?} of zone {index}: {done:?}, {due:?} is due")));
        }
        Ok(())
    }

    fn read(&mut self, index: usize, random: &mut Random) -> Result<(), Failure> {
        let stride = u64::from(self.lanes.zone_slots());
        let from = random.below(stride) as u32;
        let blocks = 1 + random.below(stride - u64::from(from)) as u32;
        let start = self.start(index);
        let there = self.zones.readable(self.sim.ftl(), start, from, blocks);
        let written = self.known[index].written.len() as u32;
        let due = written.saturating_sub(from).min(blocks);
        if there != Ok(due) {
            return Err(Failure(format!("zone {index} from {from}: {there:?}, {due} are there")));
        }
        if due > 0 {
            self.sim.read(0, start.0 + from, due);
        }
        self.end()
    }

    /// What is reported is what was done.
    fn compare(&self) -> Result<(), Failure> {
        let told: Vec<_> = self.zones.report(self.sim.ftl(), 0, 0).collect();
        for (zone, known) in told.iter().zip(&self.known) {
            if (zone.state, zone.written as usize) != (known.state, known.written.len()) {
                return Err(Failure(format!("{zone:?}, but {known:?}")));
            }
        }
        Ok(())
    }

    /// Mounts what is on the medium, as a power cut leaves it or a clean stop.
    fn restart(self, clean: bool) -> Result<Self, Failure> {
        let Self { mut sim, known, lanes, page, settings, stamp, .. } = self;
        if clean {
            sim.stop()?;
        }
        sim.run_until_idle(Instant(u64::MAX))?;
        let now = sim.now();
        let mut sim = Sim::mount_raw(sim.into_medium(), 2, settings.clone(), now)?;
        sim.run_until_ready()?;
        let zones = Zones::of(sim.ftl()).expect("pages are written");
        Ok(Self { sim, zones, known, lanes, page, settings, stamp })
    }
}

fn live(seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let mut host = ZoneHost::of_seed(&mut random)?;
    for _ in 0..300 {
        let index = random.below(host.known.len() as u64) as usize;
        let action = match random.below(24) {
            0 => Some(ZoneAction::Open),
            1 => Some(ZoneAction::Close),
            2 => Some(ZoneAction::Finish),
            3..=4 => Some(ZoneAction::Reset),
            _ => None,
        };
        match action {
            Some(action) => host.act(index, action)?,
            None if random.chance(0.3) => host.read(index, &mut random)?,
            None => host.write(index, &mut random)?,
        }
        host.compare()?;
    }
    let clean = random.chance(0.5);
    let mut host = host.restart(clean)?;
    // Nothing is open after a mount. What a power cut found open is full with what it holds, and nothing else.
    for (index, known) in host.known.iter_mut().enumerate() {
        let told = host.zones.report(host.sim.ftl(), 0, index as u32).next().expect("a zone");
        let active = !matches!(known.state, ZoneState::Empty | ZoneState::Full);
        let state = match known.written.len() {
            0 => ZoneState::Empty,
            _ if active && clean => ZoneState::Closed,
            _ => ZoneState::Full,
        };
        if told.state != state || told.cut_short != (active && !clean && !known.written.is_empty())
        {
            return Err(Failure(format!("after a restart (clean: {clean}): {told:?}, {known:?}")));
        }
        // On shared cells a power cut may take pages that nothing had made safe.
        known.written.truncate(told.written as usize);
        known.state = state;
    }
    for index in 0..host.known.len() {
        host.read(index, &mut random)?;
    }
    Ok(())
}

#[test]
fn zones_are_in_the_state_that_the_specification_says_whatever_is_asked_of_them() {
    let test = "zones_are_in_the_state_that_the_specification_says_whatever_is_asked_of_them";
    passed(test, for_each_seed(seeds(2100..2140), THREADS, live));
}
