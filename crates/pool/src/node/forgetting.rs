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

#[cfg(test)]
mod tests {
    use super::super::memory::MemorySettings;
    use super::super::tests::{Rig, append, band, fence, refused, seal};
    use super::super::{Input, NodeSettings};
    use super::*;
    use crate::message::{Answer, Refusal};
    use crate::words::{Generation, NodeId};

    /// That volume 1 was shut with this generation, its bands registered up to this life.
    fn proof(generation: u64, life: u64) -> Input<super::super::tests::Stamp> {
        let generation = Generation(generation);
        Input::Deleted(Deleted { volume: VolumeId(1), generation, life })
    }

    /// A node with six bands, of which two are open.
    fn filled() -> Rig {
        let mut rig = Rig::plain();
        for number in 0..6 {
            assert_eq!(rig.ask(append(number, 0, 3)), Answer::Done);
            if number < 4 {
                assert_eq!(rig.ask(seal(number, 1, 3)), Answer::Done);
            }
        }
        rig
    }

    fn run_out(rig: &mut Rig) {
        while rig.store.deadline().is_some() {
            rig.step();
        }
    }

    #[test]
    fn all_of_a_deleted_volume_is_freed_and_then_its_fence_is_forgotten() {
        let mut rig = filled();
        rig.give(proof(4, band(0).life));
        assert_eq!(rig.node.facts().bands_used, 6, "the fence is not durable yet");
        run_out(&mut rig);
        assert_eq!((rig.node.facts().bands_used, rig.node.volumes().count()), (0, 0));
        let found = rig.store.found();
        assert!(found.bands.is_empty() && found.fences.is_empty(), "{found:?}");
    }

    #[test]
    fn a_proof_that_does_not_know_who_was_fenced_here_or_what_is_here_frees_nothing() {
        let mut rig = filled();
        for stale in [proof(2, u64::MAX), proof(3, u64::MAX), proof(9, band(0).life - 1)] {
            rig.give(stale);
            run_out(&mut rig);
            assert_eq!(rig.node.facts().bands_used, 6);
            assert_eq!(rig.ask(append(5, 1, 3)), rig.ask(append(5, 1, 3)), "its owner goes on");
        }
    }

    #[test]
    fn an_owner_that_was_paused_changes_nothing_once_its_volume_is_deleted() {
        let mut rig = filled();
        let late = rig.send(0, append(5, 1, 3));
        rig.give(proof(4, band(0).life));
        assert_eq!(rig.wait(late), Answer::Done, "what it has begun ends first");
        while rig.node.facts().bands_used > 3 {
            rig.step();
        }
        let highest = Generation(4);
        assert_eq!(rig.ask(append(9, 0, 3)), refused(Refusal::Stale { highest }));
        // Not even one that says it was of the generation by which the volume was shut.
        assert_eq!(rig.ask(append(9, 0, 4)), refused(Refusal::Stale { highest }));
        run_out(&mut rig);
        assert_eq!(rig.node.volumes().count(), 0);
        // Forgotten, it would be let in again; that is freed in the next round.
        assert_eq!(rig.ask(append(9, 0, 3)), Answer::Done);
        rig.give(proof(4, band(0).life));
        run_out(&mut rig);
        assert_eq!((rig.node.facts().bands_used, rig.node.volumes().count()), (0, 0));
    }

    #[test]
    fn a_fence_that_rises_while_the_last_is_being_forgotten_is_kept() {
        let mut rig = filled();
        rig.give(proof(4, band(0).life));
        while rig.node.facts().bands_used > 0 {
            rig.step();
        }
        assert_eq!(rig.ask(fence(7)), Answer::Done);
        run_out(&mut rig);
        let least = Fenced { generation: Generation(7), owner: 0 };
        assert_eq!(rig.store.found().fences.get(&VolumeId(1)), Some(&least));
        assert_eq!(rig.ask(append(1, 0, 3)), refused(Refusal::Stale { highest: Generation(7) }));
    }

    #[test]
    fn a_power_cut_at_any_step_leaves_what_the_next_round_ends() {
        let mut steps = 0;
        loop {
            let mut rig = filled();
            rig.give(proof(4, band(0).life));
            let whole = (0..steps).all(|_| {
                let goes_on = rig.store.deadline().is_some();
                if goes_on {
                    rig.step();
                }
                goes_on
            });
            rig.cut();
            let found = rig.store.found();
            let shut = found.fences.get(&VolumeId(1)).is_none_or(|least| least.is_deleted());
            assert!(found.bands.len() == 6 || shut, "step {steps}: freed before the fence said so");
            rig.give(proof(4, band(0).life));
            run_out(&mut rig);
            let found = rig.store.found();
            assert!(found.bands.is_empty() && found.fences.is_empty(), "step {steps}: {found:?}");
            if !whole {
                return assert!(steps > 8, "a fence, six frees, and what is forgotten");
            }
            steps += 1;
        }
    }

    #[test]
    fn a_node_takes_no_end_of_volumes_one_after_the_other() {
        let bounds = NodeSettings { volumes_max: 1, ..NodeSettings::default() };
        let mut rig = Rig::new(NodeId(1), MemorySettings::default(), bounds);
        assert_eq!(rig.ask(fence(1)), Answer::Done);
        let volume = VolumeId(2);
        let other = crate::message::Ask::Fence { volume, generation: Generation(1), owner: 0 };
        assert_eq!(rig.ask(other.clone()), refused(Refusal::Full));
        rig.give(proof(2, 0));
        run_out(&mut rig);
        assert_eq!(rig.ask(other), Answer::Done);
    }
}
