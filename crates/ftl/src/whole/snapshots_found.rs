//! Recovery of snapshots: which there are, and which entry has a version that was found.
//!
//! Replay goes by sequences, so it does what the writes of the host did. A version that was written after all cuts
//! changes its block: what the map says of the block so far goes to the shadow of the newest snapshot, if that has
//! nothing. One that was written before a cut was only copied since (GC, destage), or is there already: it belongs to
//! the first entry that says something on the way from the first snapshot taken after it to the block. Why that is
//! right whatever the power cut has left:
//! - the chunk of a shadow is written to a checkpoint after that of its block, so where the block's entry is new the
//!   shadow has what was there before;
//! - a version that is copied has an entry, and so belongs to the first snapshot that was taken after it was written; as
//!   long as that one's shadow says nothing of the block, it has what the next newer one has;
//! - where what filled a shadow was not durable and the copy is, the shadow is empty again, and the copy is the block's,
//!   whose original may have been erased.
//!
//! Invariants:
//! - the snapshots are those of the checkpoint that recovery goes by, and no others;
//! - what of a shadow is lost with its chunk is an error to read, and never an older version;
//! - what was written to the blocks of a clone before it began is not found.

use crate::api::MountError;
use crate::format::{CHUNK_ENTRIES, INHERITED, NOTHING, POISONED, Root, UNMAPPED, is_slot};
use crate::map::shadows::{Life, Shadows};
use crate::mutant::Mutant;
use crate::recovery::mount::Mount;
use crate::whole::Ftl;
use std::ops::Range;

/// What a version that is found does to the newest snapshot of its block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fills {
    /// Nothing: it says that what is there was lost.
    Nothing,
    /// What the block held goes to the shadow.
    Held,
    /// Likewise, but what it held is not known for certain.
    Doubtful,
}

impl Ftl {
    /// Takes the snapshots of the checkpoint that recovery goes by.
    pub(crate) fn take_snapshots(&mut self, mount: &Mount) -> Result<(), MountError> {
        let of_it = |root: &&Root| root.uuid == self.uuid && root.checkpoint == mount.chosen.name;
        let root = mount.roots.iter().map(|(_, root)| root).find(of_it);
        let mut records = root.map_or_else(Vec::new, |root| root.snapshots.clone());
        let clones = root.map_or_else(Vec::new, |root| root.clones.clone());
        if self.is_mutant(Mutant::CutNotRecorded) {
            records.iter_mut().for_each(|record| record.cut = 0);
        }
        let records = (&records[..], &clones[..]);
        let shadows = Shadows::recovered(records, self.map.blocks(), self.map.entries());
        self.shadows = shadows.ok_or(MountError::Geometry)?;
        Ok(())
    }

    /// Before the replay: what lies between the shadows is nobody's, and what was lost of them is not known.
    pub(crate) fn clear_shadows(&mut self, mount: &Mount) {
        if self.map.shadow_blocks() == 0 {
            return;
        }
        let stretches = self.shadows.list().iter().flat_map(|snapshot| &snapshot.stretches);
        let mut used: Vec<Range<u32>> =
            stretches.map(|it| it.shadow..it.shadow + it.blocks).collect();
        used.sort_unstable_by_key(|range| range.start);
        let mut from = self.map.blocks();
        for range in &used {
            self.map.recover_unmapped(from..range.start);
            from = range.end;
        }
        self.map.recover_unmapped(from..self.map.entries());
        for address in used.into_iter().flatten() {
            if !mount.found[address as usize / CHUNK_ENTRIES] {
                self.map.replace(address, POISONED);
            }
        }
    }

    /// Recovery: `lba` held `entry` from `sequence` on. Returns the entry that says so now, if there is such a block.
    pub(crate) fn recover_version(
        &mut self,
        lba: u32,
        sequence: u64,
        entry: u32,
        fills: Fills,
    ) -> Option<u32> {
        let mut entry = entry;
        if lba < self.map.blocks() && !self.shadows.is_far(lba) {
            if entry == UNMAPPED && !self.is_mutant(Mutant::ReplayShowsOrigin) {
                entry = self.trimmed(lba);
            }
            match self.place_of(lba, sequence) {
                Some(address) if address != lba => {
                    let entry = if entry == UNMAPPED { NOTHING } else { entry };
                    self.map.replace(address, entry);
                    return Some(address);
                }
                _ if self.is_of_former_life(lba, sequence) => return None,
                Some(_) => {}
                None => self.recover_fill(lba, entry, fills),
            }
        }
        self.map.recover(lba, entry).then_some(lba)
    }

    /// The entry that has the version of `lba` of this sequence; `None` if it came after all snapshots.
    fn place_of(&self, lba: u32, sequence: u64) -> Option<u32> {
        let mut places = self.shadows.since(lba, sequence).peekable();
        places.peek().filter(|_| !self.is_mutant(Mutant::ReplayIgnoresCuts))?;
        let said = places.find(|place| self.map.entry(place.address) != UNMAPPED);
        Some(said.map_or(lba, |place| place.address))
    }

    /// `lba` is about to become `entry`: what it holds goes to its newest snapshot, if that has nothing of it.
    fn recover_fill(&mut self, lba: u32, entry: u32, fills: Fills) {
        let held = self.map.entry(lba);
        let place = self.shadows.newest(lba).filter(|_| fills != Fills::Nothing && held != entry);
        let Some(place) = place.filter(|place| self.map.entry(place.address) == UNMAPPED) else {
            return;
        };
        if self.is_mutant(Mutant::ReplayForgetsShadow) {
            return;
        }
        let held = match held {
            _ if fills == Fills::Doubtful => POISONED,
            UNMAPPED => self.unchanged(lba),
            held => held,
        };
        self.map.replace(place.address, held);
    }

    /// Whether a version of `lba` is of before the clone that has it now.
    pub(crate) fn is_of_former_life(&self, lba: u32, sequence: u64) -> bool {
        !self.shadows.is_far(lba)
            && self.shadows.clones.cut_of(lba).is_some_and(|cut| sequence < cut)
    }

    /// Recovery: what is read of `lba` as far as it has come.
    pub(crate) fn seen_at(&self, lba: u32) -> u32 {
        if self.map.is_cached() { self.map.recovered(lba) } else { self.entry_at(lba) }
    }

    /// Recovery: these blocks were trimmed at `sequence`; `fills` says what of one is known.
    pub(crate) fn recover_trim(
        &mut self,
        blocks: Range<u32>,
        sequence: u64,
        fills: impl Fn(u32) -> Fills,
    ) {
        if self.shadows.is_empty() {
            self.map.recover_unmapped(blocks);
            return;
        }
        for lba in blocks {
            self.recover_version(lba, sequence, UNMAPPED, fills(lba));
        }
    }

    /// Whether a version of `lba` is older than what a snapshot has of it: then it is not what the block holds.
    pub(crate) fn is_of_snapshot(&self, lba: u32, sequence: u64) -> bool {
        !self.shadows.is_far(lba) && self.place_of(lba, sequence).is_some_and(|at| at != lba)
    }

    /// Blocks of snapshots whose entries are in lost chunks.
    pub(crate) fn shadows_lost(&self, is_lost: impl Fn(usize) -> bool) -> u64 {
        let stretches = self.shadows.list().iter().flat_map(|snapshot| &snapshot.stretches);
        let addresses = stretches.flat_map(|it| it.shadow..it.shadow + it.blocks);
        addresses.filter(|&address| is_lost(address as usize / CHUNK_ENTRIES)).count() as u64
    }

    /// Whether `address` is of a shadow that is being left: what it says may be nobody's, and its band erased.
    pub(crate) fn is_leaving_shadow(&self, address: u32) -> bool {
        let of = self.shadows.at(address).map(|(of, _)| of);
        of.is_some_and(|of| self.shadows.list()[of].life != Life::Taken)
    }

    /// After the replay, before anything is counted: what was leaving has left, and no more entries are kept than there
    /// are shadows.
    pub(crate) fn settle_shadows(&mut self) {
        if self.map.shadow_blocks() == 0 {
            return;
        }
        while let Some(of) = self.shadows.leaving() {
            let mut at = 0;
            while let Some(lba) = self.shadows.list()[of].block(at) {
                self.leave_shadow(of, lba, false);
                at += 1;
            }
            self.shadows.forget(of);
        }
        self.map.resize_shadows(self.shadows.entries_needed(self.map.blocks()));
        let layout = self.layout_of(self.geometry.is_tiered());
        self.layout = layout.expect("a smaller map has a smaller checkpoint");
    }

    /// All entries are what they should be: counts what the shadows hold.
    pub(crate) fn count_shadows(&mut self) {
        for of in 0..self.shadows.list().len() {
            let held = self.slots_in_shadow(of);
            self.shadows.snapshot(of).held = held;
        }
    }

    fn slots_in_shadow(&self, of: usize) -> u64 {
        let stretches = self.shadows.list()[of].stretches.iter();
        let addresses = stretches.flat_map(|it| it.shadow..it.shadow + it.blocks);
        addresses.filter(|&address| is_slot(self.map.entry(address))).count() as u64
    }

    /// What must hold of shadows between any two events; `Err` says what does not.
    pub(crate) fn verify_shadows(&self) -> Result<(), String> {
        for (of, snapshot) in self.shadows.list().iter().enumerate() {
            let held = self.slots_in_shadow(of);
            if held != snapshot.held {
                let (number, counted) = (snapshot.number, snapshot.held);
                return Err(format!("snapshot {number} counts {counted} slots and has {held}"));
            }
        }
        let entries = (0..).zip(self.map.flat().unwrap_or_default());
        for (address, &entry) in entries {
            let of_block = address < self.map.blocks();
            if of_block && entry == INHERITED {
                return Err(format!("block {address} has the mark of a shadow"));
            }
            if !of_block && entry != UNMAPPED && self.shadows.at(address).is_none() {
                return Err(format!("address {address} is nobody's shadow, and says {entry}"));
            }
        }
        Ok(())
    }
}
