//! What snapshots need of every change of the map, and of every look at it.
//!
//! The first change of a block after the newest snapshot of it moves what the map said of the block to its entry in
//! that snapshot's shadow ([`crate::map::shadows`]). A slot keeps the header that it has, which names the block and not
//! the shadow; so whoever goes from a header to an entry asks [`Ftl::holder`].
//!
//! Invariants:
//! - an entry of a shadow is filled together with the change that fills it, and emptied again if that change is undone;
//! - as long as a change may be undone, what it moved to a shadow stays there ([`Ftl::fills_undecided`]);
//! - no slot has two entries.

use crate::format::{NOTHING, POISONED, UNMAPPED, is_slot};
use crate::map::shadows::Place;
use crate::mutant::Mutant;
use crate::whole::Ftl;
use flash::{Lba, SlotId};

/// In place of what a block held before a change: it is in the shadow of the block's newest snapshot. No entry of a
/// block is ever that.
pub(crate) const IN_SHADOW: u32 = NOTHING;

/// What a read is given for an entry of a shadow.
fn shown(entry: u32) -> u32 {
    if entry == NOTHING { UNMAPPED } else { entry }
}

impl Ftl {
    /// Points `lba` to `entry` and returns what it pointed to; [`IN_SHADOW`] if a snapshot has that now.
    #[inline]
    pub(crate) fn remap(&mut self, lba: u32, entry: u32, order: u64) -> u32 {
        let kept = !self.shadows.is_far(lba) && self.keep_for_snapshot(lba, entry);
        let previous = self.map.replace(lba, entry);
        self.account(previous, entry, order);
        if kept { IN_SHADOW } else { previous }
    }

    /// Points `lba`, which points to `previous`, to `entry`.
    pub(crate) fn remap_known(&mut self, lba: u32, previous: u32, entry: u32, order: u64) {
        self.map.set(lba, previous, entry);
        self.account(previous, entry, order);
    }

    #[inline]
    fn account(&mut self, previous: u32, entry: u32, order: u64) {
        if is_slot(previous) {
            self.bands.invalidate(SlotId(previous), order, entry);
            self.blocks_mapped -= 1;
        }
        if is_slot(entry) {
            self.bands.validate(SlotId(entry));
            self.blocks_mapped += 1;
        }
    }

    /// Before `lba` changes to `entry`: moves what it holds to its newest snapshot, if that has nothing of it yet.
    /// True if so; then `lba` holds nothing.
    #[inline(never)]
    fn keep_for_snapshot(&mut self, lba: u32, entry: u32) -> bool {
        let previous = self.map.entry(lba);
        let Some(place) = self.unfilled(lba).filter(|_| previous != entry) else { return false };
        if entry == UNMAPPED && self.is_mutant(Mutant::TrimForgetsShadow) {
            return false;
        }
        self.fill(place, previous);
        self.map.set(lba, previous, UNMAPPED);
        true
    }

    /// Where `lba` is in the shadow of its newest snapshot, if that says nothing of it.
    fn unfilled(&self, lba: u32) -> Option<Place> {
        let place = self.shadows.newest(lba)?;
        let is_empty = self.map.entry(place.address) == UNMAPPED;
        (is_empty || self.is_mutant(Mutant::FillShadowTwice)).then_some(place)
    }

    /// An entry of a shadow that says nothing says from now on what its block held.
    fn fill(&mut self, place: Place, held: u32) {
        let entry = if held == UNMAPPED { NOTHING } else { held };
        self.map.set(place.address, UNMAPPED, entry);
        self.shadows.snapshot(place.of).held += u64::from(is_slot(held));
    }

    /// Empties an entry of a shadow, and returns what its block held.
    fn unfill(&mut self, place: Place) -> u32 {
        let held = shown(self.map.replace(place.address, UNMAPPED));
        self.shadows.snapshot(place.of).held -= u64::from(is_slot(held));
        held
    }

    /// Undoes the change that pointed `lba` to `slot` and moved what it held to a shadow. The slot is still valid, so
    /// the block points to it: it has not changed since, nor has a snapshot been taken.
    pub(crate) fn take_back(&mut self, lba: u32, slot: SlotId, order: u64) {
        let place = self.shadows.newest(lba).expect("what may be undone stays in its shadow");
        let held = self.unfill(place);
        self.map.set(lba, slot.0, held);
        self.bands.invalidate(slot, order, held);
        self.blocks_mapped -= 1;
    }

    /// The entry that points to `slot`, whose header names `lba`: that of the block, or of one of its shadows. That of
    /// the block if none does.
    #[inline]
    pub(crate) fn holder(&self, lba: u32, slot: SlotId) -> u32 {
        if self.shadows.is_far(lba) || self.map.entry(lba) == slot.0 {
            return lba;
        }
        let mut places = self.shadows.from(0, lba);
        let place = places.find(|place| self.map.entry(place.address) == slot.0);
        place.map_or(lba, |place| place.address)
    }

    /// The block that is read at `address`: itself, or the one whose shadow lies there.
    #[inline]
    pub(crate) fn block_at(&self, address: u32) -> u32 {
        if address < self.map.blocks() {
            return address;
        }
        self.shadows.at(address).map_or(UNMAPPED, |(_, lba)| lba)
    }

    /// What a read of `address` is given: the entry of a block, or the first one that says something on the way from
    /// the shadow of a snapshot over those of newer ones to the block.
    #[inline]
    pub(crate) fn entry_at(&self, address: u32) -> u32 {
        if address < self.map.blocks() {
            return self.map.entry(address);
        }
        let Some((of, lba)) = self.shadows.at(address) else { return POISONED };
        let mut entries = self.shadows.from(of, lba).map(|place| self.map.entry(place.address));
        let said = entries.find(|&entry| entry != UNMAPPED);
        said.map_or_else(|| self.map.entry(lba), shown)
    }

    /// What [`IN_SHADOW`] stands for where `lba` held it before.
    pub(crate) fn kept_of(&self, lba: u32) -> u32 {
        let place = self.shadows.newest(lba);
        place.map_or(POISONED, |place| shown(self.map.entry(place.address)))
    }

    /// What is read at `address`, and how many blocks from there on, at most `max`, lie in consecutive slots of one
    /// page with it, or hold nothing as it does.
    #[inline]
    pub(crate) fn run_at(&self, address: u32, max: u32) -> (u32, u32) {
        let first = self.entry_at(address);
        if address < self.map.blocks() {
            return (first, self.run_length(address, max, first));
        }
        let follows = |at: u32| {
            let entry = self.entry_at(address + at);
            if !is_slot(first) {
                return entry == first;
            }
            let slots = self.geometry.slots_per_page;
            entry.checked_sub(at) == Some(first) && entry / slots == first / slots
        };
        let more = (1..max).take_while(|&at| follows(at)).count() as u32;
        (first, 1 + more)
    }

    /// Length of the run from `lba`, at most `blocks`, of logical blocks (or of addresses of a snapshot) that all hold
    /// data or all do not; true if they do. What only a look at flash could tell counts as data.
    pub fn mapped_run(&self, lba: Lba, blocks: u32) -> (bool, u32) {
        if lba.0 >= self.map.blocks() {
            return self.mapped_run_of_snapshot(lba.0, blocks);
        }
        if self.refused.is_some() {
            return (true, blocks.min(self.map.blocks().saturating_sub(lba.0)));
        }
        self.map.mapped_run(lba.0, blocks)
    }

    fn mapped_run_of_snapshot(&self, address: u32, blocks: u32) -> (bool, u32) {
        let end = address.saturating_add(blocks).min(self.map.entries());
        let there = (address..end).take_while(|&at| self.shadows.at(at).is_some());
        let mapped = |at: u32| self.refused.is_some() || self.entry_at(at) != UNMAPPED;
        let is_mapped = mapped(address);
        let run = there.take_while(|&at| mapped(at) == is_mapped).count() as u32;
        (run > 0 && is_mapped, run)
    }

    /// Whether a write of `lba` makes one more block hold data: as it holds none, or as a snapshot keeps what it holds.
    pub(crate) fn grows(&self, lba: u32) -> bool {
        let is_kept = !self.shadows.is_far(lba)
            && self.unfilled(lba).is_some()
            && !self.is_mutant(Mutant::ShadowTakesNoSpace);
        is_kept || self.map.entry(lba) == UNMAPPED
    }

    /// The data of `slot`, which only an entry of a shadow points to, is lost. There is no record of that: what points
    /// to the slot on flash does so until the next checkpoint, and the band waits for it.
    pub(crate) fn poison_shadow(&mut self, address: u32, slot: SlotId) {
        let order = self.durable.next();
        let block = self.bands.block_of(slot);
        self.bands[block].hold_order = self.bands[block].hold_order.max(order);
        self.remap_known(address, slot.0, POISONED, order);
        if let Some((of, _)) = self.shadows.at(address) {
            self.shadows.snapshot(of).held -= 1;
        }
    }

    /// Blocks of changes that may be undone, and have moved what was there before to a shadow.
    pub(crate) fn fills_undecided(&self) -> Vec<u32> {
        let mut lbas = Vec::new();
        for page in self.pages.indices() {
            let page = &self.pages[page];
            let slots = (page.slot.0..).map(SlotId).zip(&page.slots).zip(&page.previous);
            let filled = slots.filter(|&(_, &previous)| previous == IN_SHADOW);
            lbas.extend(filled.map(|((at, slot), _)| self.own_header(at, slot).lba));
        }
        let moves = self.moves.iter().filter(|entry| entry.previous == IN_SHADOW);
        lbas.extend(moves.map(|entry| entry.append.lba));
        if self.host.atomic_writes > 0 {
            for request in self.host.requests.indices() {
                let entry = &self.host.requests[request];
                let members = entry.members.iter().filter(|_| entry.is_atomic());
                let filled = members.filter(|&&(_, _, previous)| previous == IN_SHADOW);
                lbas.extend(filled.map(|&(lba, ..)| lba));
            }
        }
        lbas
    }

    /// `lba` leaves the shadow of snapshot `of`: what that has of it goes to the next older one of the block, or
    /// nobody needs it. Recovery does this before it counts what is valid.
    pub(crate) fn leave_shadow(&mut self, of: usize, lba: u32, counted: bool) {
        let Some(place) = self.shadows.from(of, lba).next().filter(|place| place.of == of) else {
            return;
        };
        let entry = self.map.entry(place.address);
        if entry == UNMAPPED {
            return;
        }
        let older = self.shadows.older(of, lba);
        let takes = older.filter(|older| self.map.entry(older.address) == UNMAPPED);
        let takes = takes.filter(|_| !self.is_mutant(Mutant::DropForgetsOlder));
        let moves = u64::from(counted && is_slot(entry));
        if let Some(older) = takes {
            self.map.replace(older.address, entry);
            self.map.replace(place.address, UNMAPPED);
            self.shadows.snapshot(older.of).held += moves;
        } else if counted {
            let order = self.durable.next() - 1;
            self.remap_known(place.address, entry, UNMAPPED, order);
        } else {
            self.map.replace(place.address, UNMAPPED);
        }
        self.shadows.snapshot(of).held -= moves;
    }
}
