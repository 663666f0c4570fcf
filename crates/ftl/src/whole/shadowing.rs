//! What snapshots need of every change of the map, and of every look at it.
//!
//! The first change of a block after the newest snapshot of it moves what the map said of the block to its entry in
//! that snapshot's shadow ([`crate::map::shadows`]). A slot keeps the header that it has, which names the block and not
//! the shadow; so whoever goes from a header to an entry asks [`Ftl::holder`].
//!
//! A block of a clone that has not changed holds what its snapshot has ([`crate::map::clones`]): a look at it goes on
//! there, and a trim of it leaves a mark.
//!
//! Invariants:
//! - an entry of a shadow is filled together with the change that fills it, and emptied again if that change is undone;
//! - as long as a change may be undone, what it moved to a shadow stays there ([`Ftl::fills_undecided`]);
//! - no slot has two entries.

use crate::format::{INHERITED, NOTHING, POISONED, UNMAPPED, is_slot};
use crate::map::shadows::Place;
use crate::mutant::Mutant;
use crate::whole::Ftl;
use flash::{Lba, SlotId};

/// In place of what a block held before a change: it is in the shadow of the block's newest snapshot. No entry of a
/// block is ever that.
pub(crate) const IN_SHADOW: u32 = INHERITED;

/// What a read is given for an entry that says something.
pub(crate) fn shown(entry: u32) -> u32 {
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
        self.fill(place, lba, previous);
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
    fn fill(&mut self, place: Place, lba: u32, held: u32) {
        let entry = if held == UNMAPPED { self.unchanged(lba) } else { held };
        self.map.set(place.address, UNMAPPED, entry);
        self.shadows.snapshot(place.of).held += u64::from(is_slot(held));
    }

    /// `lba`, which holds nothing, becomes a clone: a snapshot that had it in a former life says so from now on.
    pub(crate) fn keep_nothing(&mut self, lba: u32) {
        if !self.shadows.is_far(lba)
            && let Some(place) = self.unfilled(lba)
        {
            self.fill(place, lba, UNMAPPED);
        }
    }

    /// What a shadow says of a block that holds nothing itself.
    pub(crate) fn unchanged(&self, lba: u32) -> u32 {
        let of_clone = self.shadows.clones.origin(lba).is_some();
        let forgets = self.is_mutant(Mutant::SnapshotForgetsOrigin);
        if of_clone && !forgets { INHERITED } else { NOTHING }
    }

    /// What the entry of a block says that was trimmed.
    pub(crate) fn trimmed(&self, lba: u32) -> u32 {
        let of_clone = !self.shadows.is_far(lba) && self.shadows.clones.origin(lba).is_some();
        if of_clone && !self.is_mutant(Mutant::TrimShowsOrigin) { NOTHING } else { UNMAPPED }
    }

    /// Empties an entry of a shadow, and returns what its block held.
    fn unfill(&mut self, place: Place, lba: u32) -> u32 {
        let held = match self.map.replace(place.address, UNMAPPED) {
            INHERITED => UNMAPPED,
            NOTHING => self.trimmed(lba),
            held => held,
        };
        self.shadows.snapshot(place.of).held -= u64::from(is_slot(held));
        held
    }

    /// Undoes the change that pointed `lba` to `slot` and moved what it held to a shadow. The slot is still valid, so
    /// the block points to it: it has not changed since, nor has a snapshot been taken.
    pub(crate) fn take_back(&mut self, lba: u32, slot: SlotId, order: u64) {
        let place = self.shadows.newest(lba).expect("what may be undone stays in its shadow");
        let held = self.unfill(place, lba);
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

    /// Whether a slot whose header names `named` may be what is read at `address`: the block there has it, or what that is a
    /// clone of.
    pub(crate) fn may_name(&self, address: u32, named: u32) -> bool {
        self.blocks_behind(address).any(|lba| lba == named)
    }

    /// The block that is read at `address`, the one that it is a clone of, and so on.
    pub(crate) fn blocks_behind(&self, address: u32) -> impl Iterator<Item = u32> + '_ {
        let origin = |&lba: &u32| {
            let address = match self.shadows.is_far(lba) {
                true => None,
                false => self.shadows.clones.origin(lba),
            };
            address.map(|address| self.block_at(address))
        };
        std::iter::successors(Some(self.block_at(address)), origin)
    }

    /// What a read of `address` is given: the entry of a block, or the first one that says something on the way from
    /// the shadow of a snapshot over those of newer ones to the block, and from one of a clone to its snapshot.
    #[inline]
    pub(crate) fn entry_at(&self, address: u32) -> u32 {
        if address < self.map.blocks() {
            let entry = self.map.entry(address);
            let is_own = entry != UNMAPPED && entry != NOTHING || self.shadows.is_far(address);
            return if is_own { shown(entry) } else { self.entry_behind(address, entry) };
        }
        let Some((of, lba)) = self.shadows.at(address) else { return POISONED };
        let mut entries = self.shadows.from(of, lba).map(|place| self.map.entry(place.address));
        let said = entries.find(|&entry| entry != UNMAPPED);
        self.entry_behind(lba, said.unwrap_or_else(|| self.map.entry(lba)))
    }

    /// What is read where the entry of `lba`, or that of a shadow of it, says this.
    fn entry_behind(&self, lba: u32, said: u32) -> u32 {
        match said {
            UNMAPPED | INHERITED => {
                self.shadows.clones.origin(lba).map_or(UNMAPPED, |address| self.entry_at(address))
            }
            said => shown(said),
        }
    }

    /// What [`IN_SHADOW`] stands for where `lba` held it before.
    pub(crate) fn kept_of(&self, lba: u32) -> u32 {
        let place = self.shadows.newest(lba);
        place.map_or(POISONED, |place| self.entry_behind(lba, self.map.entry(place.address)))
    }

    /// What is read where `lba` held `previous` before, which its entry does not say any more.
    pub(crate) fn entry_before(&self, lba: u32, previous: u32) -> u32 {
        if previous == IN_SHADOW { self.kept_of(lba) } else { self.entry_behind(lba, previous) }
    }

    /// What is read at `address`, and how many blocks from there on, at most `max`, lie in consecutive slots of one
    /// page with it, or hold nothing as it does.
    #[inline]
    pub(crate) fn run_at(&self, address: u32, max: u32) -> (u32, u32) {
        let first = self.entry_at(address);
        if address < self.map.blocks() && !self.shadows.clones.overlap(address, max) {
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
            let end = lba.0.saturating_add(blocks).min(self.map.entries());
            let there = (lba.0..end).take_while(|&at| self.shadows.at(at).is_some());
            return self.seen_run(lba.0, there.count() as u32);
        }
        let blocks = blocks.min(self.map.blocks() - lba.0);
        if self.refused.is_none() && !self.shadows.clones.overlap(lba.0, blocks) {
            return self.map.mapped_run(lba.0, blocks);
        }
        self.seen_run(lba.0, blocks)
    }

    /// The same by what a look at each of these addresses gives, which are there.
    fn seen_run(&self, address: u32, blocks: u32) -> (bool, u32) {
        if self.refused.is_some() {
            return (blocks > 0, blocks);
        }
        let mapped = |at: u32| self.entry_at(at) != UNMAPPED;
        let is_mapped = blocks > 0 && mapped(address);
        let run = (address..address + blocks).take_while(|&at| mapped(at) == is_mapped);
        (is_mapped, run.count() as u32)
    }

    /// Whether a trim of these blocks would change nothing.
    pub(crate) fn hold_nothing(&self, lba: u32, blocks: u32) -> bool {
        if !self.shadows.clones.overlap(lba, blocks) {
            return self.map.mapped_run(lba, blocks) == (false, blocks);
        }
        let nothing = |at: u32| match self.map.entry(at) {
            UNMAPPED => self.entry_at(at) == UNMAPPED,
            entry => entry == NOTHING && self.trimmed(at) == NOTHING,
        };
        (lba..lba + blocks).all(nothing)
    }

    /// Whether a write of `lba` makes one more block hold data: as it holds none, or as a snapshot keeps what it holds.
    pub(crate) fn grows(&self, lba: u32) -> bool {
        let is_kept = !self.shadows.is_far(lba)
            && self.unfilled(lba).is_some()
            && !self.is_mutant(Mutant::ShadowTakesNoSpace);
        is_kept || matches!(self.map.entry(lba), UNMAPPED | NOTHING)
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
            let placed = page.placed().zip(&page.previous);
            let filled = placed.filter(|&(_, &previous)| previous == IN_SHADOW);
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
