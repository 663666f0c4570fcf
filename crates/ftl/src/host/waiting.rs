//! Where a request of the host is: for an operator who wonders why one takes so long, and for a test that
//! finds one stuck.

use crate::host::requests::Class;
use crate::log::points::{Owner, PageState};
use crate::space::scheduler::ReadPurpose;
use crate::whole::Ftl;
use flash::RequestId;

impl Ftl {
    /// What the request waits for, in words.
    pub fn waits_for(&self, id: RequestId) -> String {
        let requests = &self.host.requests;
        match requests.live().find(|&index| requests[index].id == id) {
            Some(index) => self.request_waits_for(index),
            None => "nothing: it was answered".into(),
        }
    }

    fn request_waits_for(&self, index: u32) -> String {
        let entry = &self.host.requests[index];
        if let Some(waiter) = self.host.waiters.iter().find(|waiter| waiter.request == index) {
            return match self.flush.running {
                Some(covered) if covered > waiter.order => "a flush of the medium".into(),
                _ => format!(
                    "pages before it to be safe: order {} of {}",
                    self.durable.safe_below(),
                    waiter.order
                ),
            };
        }
        if self.host.commits.iter().any(|&(request, _)| request == index) {
            return "room for the commit record of an atomic write".into();
        }
        if entry.claim.missing > 0 {
            return format!("{} pieces of the map", entry.claim.missing);
        }
        if self.host.writes.contains(&index) {
            return self.placing_waits_for().into();
        }
        if let Some(text) = self.pages_of(index).or_else(|| self.reads_of(index)) {
            return text;
        }
        if self.host.reroutes.iter().any(|&(request, ..)| request == index) {
            return "the map of a block whose page could not be programmed".into();
        }
        if entry.class == Class::Read && self.host.atomic_writes > 0 {
            return "the end of an atomic write".into();
        }
        format!("something else: {}", self.explain())
    }

    /// What the oldest write waits for.
    fn placing_waits_for(&self) -> &'static str {
        if self.checkpoint.settling {
            "the first checkpoint after the mount"
        } else if self.now < self.no_space_until {
            "room below the medium"
        } else if self.map.is_cached() && self.loads_running() > 0 {
            "pieces of the map, or GC"
        } else {
            "space, which GC makes"
        }
    }

    /// Where the pages of a write are.
    fn pages_of(&self, index: u32) -> Option<String> {
        let mine = |&page: &u32| self.pages[page].owners.contains(&Owner::Request(index));
        if let Some(page) = self.pages.live().find(mine) {
            let unit = self.bands.unit_of_slot(self.pages[page].slot);
            return Some(match self.pages[page].state {
                PageState::Assembling => "its page to be full or old enough".into(),
                PageState::OnUnit if self.units[unit as usize].programs.contains(&page) => {
                    format!("the queue of unit {unit}")
                }
                PageState::OnUnit => format!("the medium: a program on unit {unit}"),
                PageState::Ended(_) => format!("the page before its own on unit {unit}"),
            });
        }
        let moves = |entry: &crate::log::moves::Move| entry.append.owner == Owner::Request(index);
        self.moves.iter().any(moves).then(|| "room for what a failed program held".into())
    }

    /// Where a read of a request is.
    fn reads_of(&self, index: u32) -> Option<String> {
        let mine = |read: &u32| self.units.reads[*read].purpose == ReadPurpose::Host(index);
        for (number, unit) in self.units.iter().enumerate() {
            if unit.reads.iter().any(mine) {
                return Some(format!("the queue of unit {number}"));
            }
        }
        let parked = |&page: &u32| self.pages[page].waiters.iter().any(mine);
        if let Some(page) = self.pages.live().find(parked) {
            let unit = self.bands.unit_of_slot(self.pages[page].slot);
            return Some(format!("the program of its page on unit {unit}"));
        }
        let read = self.units.reads.live().find(mine)?;
        let unit = self.bands.unit_of_slot(self.units.reads[read].slot);
        Some(format!("the medium: a read on unit {unit}"))
    }
}
