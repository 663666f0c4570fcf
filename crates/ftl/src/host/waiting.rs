//! Where a request of the host is: for who wonders why one took so long, for an operator whose request does
//! not end, and for a test that finds one stuck.
//!
//! For a look nothing is kept: what the parts know of what is in flight tells, at the moment somebody looks. As the
//! FTL changes only when it is given an event, what a request waits for after one it waits for until the next.

use crate::api::{Ahead, By, Waits};
use crate::host::requests::{Class, HostRequest};
use crate::log::moves::Move;
use crate::log::points::{Owner, PageState};
use crate::map::Cached;
use crate::policy::Purpose;
use crate::space::read_slo::Way;
use crate::space::scheduler::{ReadPurpose, Unit};
use crate::whole::Ftl;
use flash::{Instant, RequestId, Spent};

impl HostRequest {
    /// What its time went to, if it ends `now`.
    pub(crate) fn spent(&self, now: Instant) -> Spent {
        let placed = self.placed_at.max(self.came);
        let begun = self.ran.0.max(placed);
        let ended = self.ran.1.max(begun);
        Spent {
            place_ns: placed - self.came,
            queue_ns: begun - placed,
            medium_ns: ended - begun,
            safety_ns: now.max(ended) - ended,
        }
    }
}

/// A look at what is in flight, to ask about several requests.
pub struct Look<'a> {
    ftl: &'a Ftl,
    requests: Vec<u32>,
    pages: Vec<u32>,
    reads: Vec<u32>,
}

impl Ftl {
    /// The write has to wait for GC, for destage, or for a checkpoint to take the map's changes. It is tried often and
    /// counted once.
    pub(super) fn holds_back(&mut self, index: u32) -> bool {
        let gated = self.gate_host(index);
        let held = gated || self.gate_changes();
        if held && !std::mem::replace(&mut self.host.requests[index].throttled, true) {
            match gated && self.destages_for_hosts() {
                true => self.counters.writes_behind_destage += 1,
                false => self.counters.writes_throttled += 1,
            }
        }
        held
    }

    /// Looks at what is in flight. It takes microseconds: not for each request.
    pub fn look(&self) -> Look<'_> {
        Look {
            ftl: self,
            requests: self.host.requests.live(),
            pages: self.pages.live(),
            reads: self.units.reads.live(),
        }
    }
}

impl Ftl {
    /// Whether what the host appends waits for units to take it, and not for a band: GC does nothing yet, or every
    /// unit has as many pages as may wait on it.
    fn queues_bound_the_host(&self) -> bool {
        let full = |unit: u32| {
            let state = &self.units[unit as usize];
            state.gone || state.appends_waiting() >= self.appends_max()
        };
        self.bands.free >= self.bands_free_low() || self.units_for(Purpose::Host).all(full)
    }
}

impl Look<'_> {
    /// What the request waits for.
    pub fn waits_for(&self, id: RequestId) -> Waits {
        let entries = &self.ftl.host.requests;
        match self.requests.iter().find(|&&index| entries[index].id == id) {
            Some(&index) => self.request_waits_for(index),
            None => Waits::Nothing,
        }
    }

    fn request_waits_for(&self, index: u32) -> Waits {
        let host = &self.ftl.host;
        let entry = &host.requests[index];
        if let Some(waiter) = host.waiters.iter().find(|waiter| waiter.request == index) {
            return match self.ftl.flush.running {
                Some(covered) if covered > waiter.order => Waits::Flush,
                _ => Waits::Safety,
            };
        }
        if host.commits.iter().any(|&(request, _)| request == index) {
            return Waits::FreeBand;
        }
        if entry.claim.missing > 0 {
            return Waits::Map;
        }
        if host.writes.contains(&index) {
            return self.placing_waits_for(index);
        }
        if let Some(waits) = self.program_waits_for(index).or_else(|| self.read_waits_for(index)) {
            return waits;
        }
        let moves = |entry: &Move| entry.append.owner == Owner::Request(index);
        let rerouted = host.reroutes.iter().any(|&(request, ..)| request == index);
        if rerouted || self.ftl.moves.iter().any(moves) {
            return Waits::AnotherPlace;
        }
        if entry.class == Class::Read && host.atomic_writes > 0 {
            return Waits::Atomic;
        }
        Waits::Other
    }

    /// What a write or trim waits for that is not placed whole.
    fn placing_waits_for(&self, index: u32) -> Waits {
        let ftl = self.ftl;
        let cached = ftl.map.cached();
        let full = |changes: &Cached| changes.changes_bytes() >= changes.changes_bytes_max();
        if ftl.checkpoint.settling {
            Waits::FirstCheckpoint
        } else if ftl.now < ftl.no_space_until {
            Waits::Room
        } else if cached.is_some_and(full) {
            Waits::Map
        } else if ftl.gate_host(index) {
            if ftl.tier.is_some() { Waits::Destage } else { Waits::GcPace }
        } else if cached.is_some() && ftl.loads_running() > 0 {
            Waits::Map
        } else if ftl.queues_bound_the_host() {
            Waits::Queues
        } else {
            Waits::FreeBand
        }
    }

    /// Where the page of a write is that is least far.
    fn program_waits_for(&self, index: u32) -> Option<Waits> {
        let pages = &self.ftl.pages;
        let mine = |&&page: &&u32| pages[page].owners.contains(&Owner::Request(index));
        let mine = self.pages.iter().filter(mine);
        // What has ended only waits for those before it.
        let page = mine.min_by_key(|&&page| matches!(pages[page].state, PageState::Ended(_)))?;
        let unit = self.ftl.bands.unit_of_slot(pages[*page].slot);
        Some(match pages[*page].state {
            PageState::Assembling => Waits::Page,
            PageState::OnUnit => self.page_waits_for(*page, unit),
            PageState::Ended(_) => Waits::Order,
        })
    }

    /// What a page waits for that was given to its unit.
    fn page_waits_for(&self, page: u32, unit: u32) -> Waits {
        let state = &self.ftl.units[unit as usize];
        let entry = &self.ftl.pages[page];
        let running = state.pages_running.iter().position(|&(other, _)| other == page);
        let since = running.map(|at| state.pages_running[at].1);
        if running.is_none() && entry.index > 0 && !self.ftl.opens[entry.open].header_durable {
            return Waits::Order;
        }
        let erases =
            state.erases_running > 0 && since.is_none_or(|since| state.erase_since <= since);
        let ahead = match (running, state.pages_running.front()) {
            _ if erases => Ahead::Erase,
            (None | Some(1..), Some(&(first, _))) => Ahead::Program(self.program_is_by(first)),
            (Some(_), _) if state.suspensions > 0 => Ahead::Suspended,
            (Some(_), _) => Ahead::Medium,
            (None, None) if state.reads_running > 0 => Ahead::Reads(By::Host),
            (None, None) => self.own_reads(unit).map_or(Ahead::Turn, Ahead::Reads),
        };
        Waits::Unit(unit, ahead)
    }

    /// Where a read of a request is that is least far.
    fn read_waits_for(&self, index: u32) -> Option<Waits> {
        let reads = &self.ftl.units.reads;
        let mine =
            self.reads.iter().filter(|&&read| reads[read].purpose == ReadPurpose::Host(index));
        let unit_of = |read: u32| self.ftl.bands.unit_of_slot(reads[read].slot);
        let queued = |read: u32| self.ftl.units[unit_of(read) as usize].reads.contains(&read);
        let parked = |read: u32| {
            let mut pages = self.pages.iter();
            pages.any(|&page| self.ftl.pages[page].waiters.contains(&read))
        };
        let rank = |&&read: &&u32| match () {
            () if queued(read) => 0,
            () if parked(read) => 1,
            () => 2,
        };
        let read = *mine.min_by_key(rank)?;
        let unit = unit_of(read);
        let ahead = match rank(&&read) {
            1 => Ahead::OwnProgram,
            rank => self.before_read(unit, rank == 0, reads[read].way),
        };
        Some(Waits::Unit(unit, ahead))
    }

    /// What stands before a host read on its unit.
    fn before_read(&self, unit: u32, queued: bool, way: Way) -> Ahead {
        let state: &Unit = &self.ftl.units[unit as usize];
        let paused = way == Way::Suspended;
        if state.erases_running > 0 {
            return if paused { Ahead::ErasePaused } else { Ahead::Erase };
        }
        if let Some(&(page, _)) = state.pages_running.front() {
            let by = self.program_is_by(page);
            return if paused { Ahead::ProgramPaused(by) } else { Ahead::Program(by) };
        }
        match self.own_reads(unit) {
            Some(by) => Ahead::Reads(by),
            // Of several at the medium nobody knows which is first.
            None if queued && state.reads_running > 0 => Ahead::Reads(By::Host),
            None => Ahead::Medium,
        }
    }

    /// For whom the reads are that are at the medium on `unit` and not for the host.
    fn own_reads(&self, unit: u32) -> Option<By> {
        let state = &self.ftl.units[unit as usize];
        if state.running == state.reads_running + state.programs_running + state.erases_running {
            return None;
        }
        let reads = &self.ftl.units.reads;
        let relocates = |&&read: &&u32| {
            let op = &reads[read];
            matches!(op.purpose, ReadPurpose::Relocate(..))
                && self.ftl.bands.unit_of_slot(op.slot) == unit
                && !state.reads_low.contains(&read)
        };
        Some(if self.reads.iter().any(|read| relocates(&read)) { By::Gc } else { By::Own })
    }

    /// For whom a page is programmed.
    fn program_is_by(&self, page: u32) -> By {
        let owners = &self.ftl.pages[page].owners;
        if owners.iter().any(|owner| matches!(owner, Owner::Request(_))) {
            By::Host
        } else if owners.iter().any(|owner| matches!(owner, Owner::Relocation(_))) {
            By::Gc
        } else {
            By::Own
        }
    }
}
