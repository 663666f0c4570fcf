//! Raw blocks as zones, for hosts that write zoned devices (ZNS): a raw block is a zone's capacity, its write
//! pointer is the zone's, and an erase is a reset. It keeps no map and no pointer of its own: what is written
//! the raw units know, and are asked each time. What it adds is what a host may tell of zones that are not
//! full: which of them it holds open, and how many of these there may be.
//!
//! A driver asks it for leave just before it gives a request to the raw units, so that nothing comes between.
//!
//! Invariants:
//! - A raw block that is written in part is an active zone, marked or not; a mark of one that is full counts
//!   no more. Marks are volatile: after a mount what is written in part is closed, as the specification has it.
//! - A zone that the raw units take no more writes for (a write failed, or power was cut while it was open) is
//!   full, from its write pointer on without data.
//! - A zone is finished by writing zeroes up to its end, as nothing else ends the risk that flash with shared
//!   cells is at; so what is acknowledged as full is full after a power cut.
//! - What others write or erase beside this layer is believed to the raw units.

use super::{RawState, RawUnits, WriteUnit};
use flash::{Lba, RequestError, ZoneError};
use std::collections::BTreeMap;

/// What a host may do with a zone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneState {
    /// Nothing is written.
    Empty,
    /// Open because it was written.
    ImplicitlyOpen,
    /// Open because the host wants that.
    ExplicitlyOpen,
    /// Active, not open.
    Closed,
    /// Written to its end, or taking no more.
    Full,
    /// Read, and nothing else.
    ReadOnly,
    /// Nothing.
    Offline,
}

/// What a host asks of a zone, beside reads and writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneAction {
    /// Keep it open.
    Open,
    /// Open no more.
    Close,
    /// Full, whatever is written of it.
    Finish,
    /// Empty again.
    Reset,
    /// No longer to be read: of a zone that is read-only.
    Offline,
}

/// A zone, as its host is told of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Zone {
    /// Which, counted in its unit.
    pub index: u32,
    /// What may be done with it.
    pub state: ZoneState,
    /// Logical blocks that are written, from its start.
    pub written: u32,
    /// It is full, and that was not the host's doing.
    pub cut_short: bool,
}

/// What the raw units have to do for an action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneStep {
    /// Nothing: it is done.
    Done,
    /// Trim the raw block.
    Erase,
    /// Write zeroes from this logical block of it on, at most so many; then act again.
    Pad(u32, u32),
}

/// What is known of a zone beside what is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mark {
    Implicit,
    Explicit,
    /// Closed before it was written.
    Closed,
    Finishing,
    Offline,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Zones {
    /// By raw block of the device.
    marks: BTreeMap<u32, Mark>,
}

impl Zones {
    /// The zones of units; `None` if writes of these fill whole raw blocks.
    pub fn of(units: &RawUnits) -> Option<Self> {
        (units.settings.write == WriteUnit::Page).then(Self::default)
    }

    /// Of `blocks` logical blocks from `inside` on those that hold data; the rest reads as zeroes.
    ///
    /// # Errors
    /// The zone is offline.
    pub fn readable(
        &self,
        units: &RawUnits,
        zone: Lba,
        inside: u32,
        blocks: u32,
    ) -> Result<u32, RequestError> {
        let raw = raw_of(units, zone);
        if self.state(units, raw) == ZoneState::Offline {
            return Err(RequestError::Zone(ZoneError::Offline));
        }
        Ok(written(units, raw).saturating_sub(inside).min(blocks))
    }

    /// Leave for a write of `blocks` from `inside` on. The zone is open then.
    ///
    /// # Errors
    /// What stands against it.
    pub fn write(
        &mut self,
        units: &RawUnits,
        zone: Lba,
        inside: u32,
        blocks: u32,
    ) -> Result<(), RequestError> {
        let at = self.pointer(units, zone, u64::from(inside) + u64::from(blocks))?;
        if inside != at {
            return Err(RequestError::Zone(ZoneError::InvalidWrite));
        }
        self.open(units, raw_of(units, zone), Mark::Implicit)
    }

    /// Leave for a write of `blocks` at the write pointer, which it returns.
    ///
    /// # Errors
    /// What stands against it.
    pub fn append(
        &mut self,
        units: &RawUnits,
        zone: Lba,
        blocks: u32,
    ) -> Result<u32, RequestError> {
        let at = self.pointer(units, zone, 0)?;
        self.pointer(units, zone, u64::from(at) + u64::from(blocks))?;
        self.open(units, raw_of(units, zone), Mark::Implicit)?;
        Ok(at)
    }

    /// The write pointer, if the zone may be written up to `end`.
    fn pointer(&self, units: &RawUnits, zone: Lba, end: u64) -> Result<u32, RequestError> {
        let raw = raw_of(units, zone);
        let error = match self.state(units, raw) {
            ZoneState::Full => ZoneError::Full,
            ZoneState::ReadOnly => ZoneError::ReadOnly,
            ZoneState::Offline => ZoneError::Offline,
            _ if units.raw[raw as usize].state == RawState::Erasing => {
                return Err(RequestError::Busy);
            }
            _ if end > u64::from(units.lanes.slots) => ZoneError::Boundary,
            _ => return Ok(taken(units, raw)),
        };
        Err(RequestError::Zone(error))
    }

    /// Does what can be done of an action by itself, and tells the rest.
    ///
    /// # Errors
    /// The zone is in a state in which that cannot be.
    pub fn act(
        &mut self,
        units: &RawUnits,
        zone: Lba,
        action: ZoneAction,
    ) -> Result<ZoneStep, RequestError> {
        use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, Offline, ReadOnly};
        let raw = raw_of(units, zone);
        match (action, self.state(units, raw)) {
            (ZoneAction::Open, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed) => {
                self.open(units, raw, Mark::Explicit)?;
            }
            (ZoneAction::Close, ImplicitlyOpen | ExplicitlyOpen) => self.close(units, raw),
            (ZoneAction::Finish, Empty | ImplicitlyOpen | ExplicitlyOpen | Closed) => {
                self.marks.insert(raw, Mark::Finishing);
                return Ok(self.pad(units, raw));
            }
            (ZoneAction::Finish, Full) => return Ok(self.pad(units, raw)),
            // Whoever resets it a second time may write only when the first has ended.
            (ZoneAction::Reset, Empty) if units.raw[raw as usize].state == RawState::Erasing => {
                return Err(RequestError::Busy);
            }
            (ZoneAction::Reset, Empty) => {}
            (ZoneAction::Reset, ImplicitlyOpen | ExplicitlyOpen | Closed | Full) => {
                self.marks.remove(&raw);
                if units.raw[raw as usize].state != RawState::Erased {
                    return Ok(ZoneStep::Erase);
                }
            }
            (ZoneAction::Offline, ReadOnly) => drop(self.marks.insert(raw, Mark::Offline)),
            (ZoneAction::Close, Closed) | (ZoneAction::Offline, Offline) => {}
            _ => return Err(RequestError::Zone(ZoneError::Transition)),
        }
        Ok(ZoneStep::Done)
    }

    /// What is left to be written of a zone that is being finished.
    fn pad(&mut self, units: &RawUnits, raw: u32) -> ZoneStep {
        let block = &units.raw[raw as usize];
        let (at, end) = (taken(units, raw), units.lanes.slots);
        let writable = matches!(block.state, RawState::Erased | RawState::Open);
        if self.marks.get(&raw) == Some(&Mark::Finishing) && writable && at < end {
            return ZoneStep::Pad(at, end - at);
        }
        self.marks.remove(&raw);
        ZoneStep::Done
    }

    /// True if an action on all zones is for this one, too.
    pub fn concerns(&self, units: &RawUnits, zone: Lba, action: ZoneAction) -> bool {
        use ZoneState::{Closed, ExplicitlyOpen, Full, ImplicitlyOpen, ReadOnly};
        let state = self.state(units, raw_of(units, zone));
        match action {
            ZoneAction::Open => state == Closed,
            ZoneAction::Close => matches!(state, ImplicitlyOpen | ExplicitlyOpen),
            ZoneAction::Finish => matches!(state, ImplicitlyOpen | ExplicitlyOpen | Closed),
            ZoneAction::Reset => matches!(state, ImplicitlyOpen | ExplicitlyOpen | Closed | Full),
            ZoneAction::Offline => state == ReadOnly,
        }
    }

    /// What was asked beside a host of zones empties these raw blocks, or a finish of one has failed.
    pub fn forget(&mut self, units: &RawUnits, first: Lba, blocks: u32) {
        let slots = units.lanes.slots;
        let end = (first.0 + blocks).div_ceil(slots);
        let marked: Vec<u32> =
            self.marks.range(first.0 / slots..end).map(|(&raw, _)| raw).collect();
        for raw in marked {
            self.marks.remove(&raw);
        }
    }

    /// The zones of `lane` from `first` on.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn report<'a>(
        &'a self,
        units: &'a RawUnits,
        lane: u32,
        first: u32,
    ) -> impl Iterator<Item = Zone> + 'a {
        assert!(lane < units.lanes.lanes, "a lane of the device");
        (first..units.lanes.raw_blocks).map(move |index| {
            let raw = units.raw_at(lane, index);
            let block = &units.raw[raw as usize];
            let cut_short = block.state == RawState::Torn;
            let state = self.state(units, raw);
            Zone { index, state, written: written(units, raw), cut_short }
        })
    }

    fn state(&self, units: &RawUnits, raw: u32) -> ZoneState {
        let lane = &units.lane[units.lane_of_raw(raw) as usize];
        let block = &units.raw[raw as usize];
        let mark = self.marks.get(&raw).copied();
        let full = block.pages_taken == units.lanes.pages;
        match (block.state, mark) {
            _ if lane.unknown || mark == Some(Mark::Offline) => ZoneState::Offline,
            _ if lane.gone => ZoneState::ReadOnly,
            (RawState::Full | RawState::Torn, _) => ZoneState::Full,
            (RawState::Erasing, _) => ZoneState::Empty,
            (RawState::Open, _) if full => ZoneState::Full,
            (_, Some(Mark::Finishing)) => ZoneState::Full,
            (_, Some(Mark::Implicit)) => ZoneState::ImplicitlyOpen,
            (_, Some(Mark::Explicit)) => ZoneState::ExplicitlyOpen,
            (RawState::Erased, None) => ZoneState::Empty,
            _ => ZoneState::Closed,
        }
    }

    /// Opens a zone that is neither full nor out of use, within the limits.
    fn open(&mut self, units: &RawUnits, raw: u32, mark: Mark) -> Result<(), RequestError> {
        let state = self.state(units, raw);
        if matches!(state, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen) {
            if mark == Mark::Explicit {
                self.marks.insert(raw, mark);
            }
            return Ok(());
        }
        let (open_max, active_max) =
            (units.settings.zones_open_max, units.settings.zones_active_max);
        let lane = units.lane_of_raw(raw);
        if state == ZoneState::Empty && active_max > 0 && self.active(units, lane) >= active_max {
            return Err(RequestError::Zone(ZoneError::TooManyActive));
        }
        if open_max > 0 {
            let first = units.raw_at(lane, 0);
            let marks = self.marks.range(first..first + units.lanes.raw_blocks);
            let open: Vec<(u32, ZoneState)> = marks
                .map(|(&raw, _)| (raw, self.state(units, raw)))
                .filter(|(_, state)| {
                    matches!(state, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
                })
                .collect();
            if open.len() >= open_max as usize {
                let closable = open.iter().find(|(_, state)| *state == ZoneState::ImplicitlyOpen);
                let &(closable, _) = closable.ok_or(RequestError::Zone(ZoneError::TooManyOpen))?;
                self.close(units, closable);
            }
        }
        self.marks.insert(raw, mark);
        Ok(())
    }

    fn close(&mut self, units: &RawUnits, raw: u32) {
        if units.raw[raw as usize].state == RawState::Erased {
            self.marks.insert(raw, Mark::Closed);
        } else {
            self.marks.remove(&raw);
        }
    }

    fn active(&self, units: &RawUnits, lane: u32) -> u32 {
        let first = units.raw_at(lane, 0);
        let states = (first..first + units.lanes.raw_blocks).map(|raw| self.state(units, raw));
        let active = states.filter(|state| {
            use ZoneState::{Closed, ExplicitlyOpen, ImplicitlyOpen};
            matches!(state, ImplicitlyOpen | ExplicitlyOpen | Closed)
        });
        active.count() as u32
    }
}

fn raw_of(units: &RawUnits, zone: Lba) -> u32 {
    zone.0 / units.lanes.slots
}

/// Logical blocks that may be read.
fn written(units: &RawUnits, raw: u32) -> u32 {
    units.raw[raw as usize].pages * units.geometry.slots_per_page
}

/// Logical blocks that writes were accepted for.
fn taken(units: &RawUnits, raw: u32) -> u32 {
    units.raw[raw as usize].pages_taken * units.geometry.slots_per_page
}
