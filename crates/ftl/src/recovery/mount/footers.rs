//! Which checkpoint a mount goes by: the newest with a sound footer, or with one that was there. What of the
//! copies that are kept of root records and footers is damaged is noted by the way.
//!
//! Invariant: an older checkpoint is gone by only if no power cut, and nothing else, can have left a newer one
//! whole.

use super::{Mount, Named, Stage};
use crate::api::MountError;
use crate::format::{Footer, Header, Kind, ROOT_PAGES, decode_header};
use crate::mutant::Mutant;
use crate::recovery::mending::Mending;
use crate::whole::Ftl;
use flash::{BLOCK_BYTES, BlockId, SlotId, SlotRead, SlotStatus};
use std::collections::BTreeSet;

impl Ftl {
    /// Goes to the next older checkpoint; after the last, back to the newest damaged one.
    pub(super) fn read_footers(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        let Some(next) = mount.checkpoints.pop() else {
            return self.begin_without_footer(mount);
        };
        mount.stage = Stage::Footer;
        self.set_up_layout(&next)?;
        let second_root = self.layout.footers().map(|(position, _)| (position, 1));
        let places = self.layout.footers().into_iter().chain(second_root).chain(self.seals());
        for (position, page) in places {
            if let Some(block) = next.bands[position as usize] {
                let unit = self.geometry.unit_of(block) as usize;
                mount.jobs[unit].push_back((self.geometry.slot(block, page, 0), 1));
            }
        }
        (mount.chosen, mount.footer) = (next, None);
        mount.footers_unsound.clear();
        mount.footers_missing.clear();
        mount.sealed = false;
        mount.bands_sound.clear();
        mount.mending = Mending::default();
        Ok(())
    }

    /// The map has the entries that this checkpoint has, and says nothing of them yet.
    fn set_up_layout(&mut self, named: &Named) -> Result<(), MountError> {
        if named.shadow_blocks > 0 && self.map.is_cached() {
            return Err(MountError::MapOfSnapshots);
        }
        if named.logical_blocks != self.map.blocks() {
            self.resize(named.logical_blocks)?;
        }
        if !self.map.is_cached() {
            self.map.resize_shadows(0);
            self.map.resize_shadows(named.shadow_blocks);
        }
        self.layout = self.layout_chosen(named);
        Ok(())
    }

    pub(super) fn note_footer(&self, mount: &mut Mount, slot: SlotId, read: &SlotRead<'_>) {
        let block = self.geometry.block_of(slot);
        if self.geometry.page_in_block(slot) < ROOT_PAGES {
            let header = self.checkpoint_bytes(slot, read).map(|(header, _)| header);
            let of_it =
                |header: &Header| header.kind == Kind::Root && header.sequence == mount.chosen.name;
            if header.as_ref().is_some_and(of_it) {
                mount.bands_sound.insert(block);
            }
            return;
        }
        if self.is_seal_place(mount, slot) {
            mount.sealed |= self.is_seal(mount, slot, read);
            return;
        }
        let footer = self.checkpoint_bytes(slot, read).and_then(|(header, bytes)| {
            Footer::decode(bytes).filter(|_| header.kind == Kind::Footer)
        });
        match footer.filter(|footer| footer.checkpoint == mount.chosen.name) {
            Some(footer) => mount.footer = Some(footer),
            None if read.status == SlotStatus::Erased => {
                mount.footers_missing.push((slot, false));
            }
            None => {
                let readable = read.status != SlotStatus::Uncorrectable;
                mount.footers_missing.push((slot, readable));
                mount.footers_unsound.insert(block);
            }
        }
    }

    fn is_seal_place(&self, mount: &Mount, slot: SlotId) -> bool {
        let (block, page) = (self.geometry.block_of(slot), self.geometry.page_in_block(slot));
        let here = |&(position, index): &(u32, u32)| {
            index == page && mount.chosen.bands[position as usize] == Some(block)
        };
        self.seals().iter().any(here)
    }

    /// Whether the slot is padding of the checkpoint's time.
    fn is_seal(&self, mount: &Mount, slot: SlotId, read: &SlotRead<'_>) -> bool {
        let readable = read.is_readable();
        let header = decode_header(&read.oob, slot, self.uuid_crc).filter(|_| readable);
        header.is_some_and(|header| {
            header.kind == Kind::Pad
                && header.order >= mount.chosen.name
                && header.payload_crc == read.crc
        })
    }

    /// Notes the places of root records and footers that nothing sound is in, where no power cut explains
    /// that. Root records are durable before a footer is written. Of two footers the power may have been
    /// cut before one was durable, also at the end of a clean stop, but both are before a seal is written.
    pub(super) fn note_copies(&self, mount: &mut Mount) {
        let Some(footer) = mount.footer else { return };
        let mut unsound = Vec::new();
        for &block in mount.chosen.bands.iter().flatten().filter(|_| mount.footer_found) {
            let places = (0..ROOT_PAGES).map(|page| self.geometry.slot(block, page, 0));
            let name = footer.checkpoint;
            unsound.extend(places.filter(|&slot| !mount.roots_sound.contains(&(slot, name))));
        }
        let damaged =
            |&&(_, readable): &&(SlotId, bool)| mount.sealed || readable && self.tells_torn();
        unsound.extend(mount.footers_missing.iter().filter(damaged).map(|&(slot, _)| slot));
        // What could not be programmed was never there.
        unsound.retain(|&slot| !self.bands[self.geometry.block_of(slot)].failing);
        unsound.into_iter().for_each(|slot| self.note_damaged(mount, slot));
    }

    pub(super) fn begin_content(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        mount.footer_found = mount.footer.is_some();
        if mount.footer_found {
            mount.footers_unsound.clear();
        } else if !mount.footers_unsound.is_empty() && !self.is_mutant(Mutant::NeverRebuild) {
            mount.footer = Self::footer_of_root(mount, mount.chosen.name);
        } else {
            return self.read_footers(mount);
        }
        mount.stage = Stage::Content;
        mount.table = vec![0; self.layout.table_slots as usize * BLOCK_BYTES];
        let slots = self.layout.chunks + self.layout.table_slots;
        mount.found = vec![false; slots as usize];
        let whole =
            mount.footers_unsound.is_empty() && mount.chosen.bands.iter().all(Option::is_some);
        mount.table_only = self.map.is_cached() && whole;
        let first = if mount.table_only { self.layout.chunks } else { 0 };
        self.read_content(mount, first);
        Ok(())
    }

    /// No footer is sound. Every band tells what it holds; the newest checkpoint that seems to have
    /// been complete tells from where on records are whole.
    pub(super) fn begin_without_footer(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        if self.is_mutant(Mutant::NeverRebuild) {
            return Err(MountError::NoCheckpoint);
        }
        if let Some(damaged) = mount.damaged.take() {
            mount.chosen = damaged;
        } else if let Some(name) = mount.roots.iter().map(|(_, root)| root.checkpoint).max() {
            let roots = mount.roots.iter().filter(|(_, root)| root.checkpoint == name);
            let bands: BTreeSet<BlockId> = roots.clone().map(|(block, _)| *block).collect();
            let named = roots.map(|(_, root)| Named::of(root));
            let named = named.max_by_key(|it| (it.shape, it.version, it.shadow_blocks));
            let bands = bands.into_iter().map(Some).collect();
            mount.chosen = Named { bands, ..named.expect("there is a root record of that name") };
        }
        mount.footers_missing.clear();
        mount.sealed = false;
        self.set_up_layout(&mount.chosen)?;
        mount.footer = Self::footer_of_root(mount, mount.chosen.name);
        mount.table = vec![0; self.layout.table_slots as usize * BLOCK_BYTES];
        mount.found = vec![false; (self.layout.chunks + self.layout.table_slots) as usize];
        self.begin_scan(mount)
    }
}
