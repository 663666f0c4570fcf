//! What a deleted volume has left: its bands are freed, then its fence is forgotten, so that another volume has room.
//!
//! Invariants:
//! - Nothing is freed before the volume is proved to be deleted ([`Deleted`]), by a plane that has heard of whoever
//!   was fenced here last, and of every band that is here.
//! - The fence says durably that the volume is deleted, and every change of an owner has ended, before the first band is
//!   freed: what an owner that was paused asks then is refused, and a restart goes on with what was begun.
//! - The fence is forgotten last. Whoever would write afterwards writes what is freed likewise: that the volume is
//!   deleted stays true, as its number is not used again.

use super::store::{Command, Data, StoreError};
use super::{BandState, Node, Task};
use crate::control::deletions::Deleted;
use crate::words::{BandName, Fenced, VolumeId};
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Bands of deleted volumes that are freed at a time: who is served does not wait for more.
const FREES_MAX: usize = 4;

impl<D: Data> Node<D> {
    /// Frees what there is of a deleted volume, if the proof fits what is here.
    pub(super) fn deleted(&mut self, Deleted { volume, generation, life }: Deleted) {
        let Some(fence) = self.fences.get(&volume) else { return };
        if self.failed || fence.rising.is_some() {
            return;
        }
        if fence.least.is_deleted() {
            return self.go_on_forgetting(volume);
        }
        let unheard = self.bands.range(all_of(volume)).any(|(name, _)| name.life > life);
        // A plane that was restored from an old copy: what it says of the volume is of another one, or of before.
        if generation <= fence.least.generation || unheard {
            return;
        }
        self.rise(volume, Fenced { generation, owner: Fenced::DELETED }, VecDeque::new());
    }

    /// Frees more of a volume that is deleted, and then forgets it.
    pub(super) fn go_on_forgetting(&mut self, volume: VolumeId) {
        let Some(fence) = self.fences.get_mut(&volume) else { return };
        let is_over = fence.rising.is_some() || fence.forgetting || self.failed;
        if is_over || !fence.least.is_deleted() {
            return;
        }
        let bands = self.bands.range_mut(all_of(volume));
        let (freeing, others): (Vec<_>, Vec<_>) =
            bands.partition(|(_, band)| band.state == BandState::Freeing);
        if freeing.is_empty() && others.is_empty() {
            fence.forgetting = true;
            return self.command(Command::Forget { volume }, Task::Forget(volume));
        }
        let mut names = Vec::new();
        for (&name, band) in others.into_iter().take(FREES_MAX.saturating_sub(freeing.len())) {
            band.state = BandState::Freeing;
            fence.changing += 1;
            names.push(name);
        }
        for band in names {
            self.command(Command::Free { band }, Task::FreeDeleted { band });
        }
    }

    /// A band of a deleted volume was freed, or was not: then it is tried when that is told again.
    pub(super) fn freed_deleted(&mut self, name: BandName, result: Result<(), StoreError>) {
        let band = self.bands.get_mut(&name).expect("it is freed");
        let waiting = std::mem::take(&mut band.waiting);
        match result {
            Ok(()) => drop(self.bands.remove(&name)),
            // Whether it is gone after a crash is not known: nothing is built on it.
            Err(_) => band.state = BandState::Failed,
        }
        for index in waiting {
            self.begin(index);
        }
        self.change_over(name.volume);
        if result.is_ok() {
            self.go_on_forgetting(name.volume);
        }
    }

    /// The store has forgotten a volume, or could not.
    pub(super) fn forgotten(&mut self, volume: VolumeId, result: Result<(), StoreError>) {
        let fence = self.fences.get_mut(&volume).expect("it is forgotten once");
        fence.forgetting = false;
        match &fence.rising {
            // Somebody has asked meanwhile: the store knows of nobody, and is told of this one now.
            Some(rising) => {
                let to = rising.to;
                self.command(Command::Fence { volume, to }, Task::Fence(volume));
            }
            None if result.is_ok() => drop(self.fences.remove(&volume)),
            None => {}
        }
    }
}

fn all_of(volume: VolumeId) -> RangeInclusive<BandName> {
    let first = BandName { volume, band: 0, life: 0 };
    first..=BandName { volume, band: u32::MAX, life: u64::MAX }
}
