//! Clones among the snapshots: they are made of any snapshot, of a clone's as well, written, trimmed, given up, and the
//! power is cut meanwhile. The model of the volume knows what their blocks hold: what was given to them, until they
//! change.

use super::Explorer;
use super::known::{Known, Phase};
use crate::driver::{Failure, Sim};
use crate::host::Host;
use crate::model::OperationId;
use crate::workload::{Action, Op};
use flash::Hint;
use ftl::{ShadowStretch, SnapshotError, SnapshotOrder, SnapshotStep};
use std::collections::BTreeMap;

/// Clones at a time.
const CLONES_MAX: usize = 4;

/// Most blocks of one.
const BLOCKS_MAX: u32 = 60;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Making,
    There,
    Leaving,
}

/// A clone, as its host knows it.
#[derive(Clone, Debug)]
pub(super) struct KnownClone {
    number: u32,
    pub(super) stretches: Vec<ShadowStretch>,
    stage: Stage,
    /// When it was made, as snapshots are taken.
    made_at: u32,
    /// What the order that is under way changes.
    changes: Vec<OperationId>,
}

fn overlap(stretches: &[ShadowStretch], others: &[ShadowStretch]) -> bool {
    stretches.iter().any(|it| others.iter().any(|other| it.meets(other.first, other.blocks)))
}

impl Explorer<'_> {
    /// Makes a clone or gives one up. False if there is nothing to make one of.
    pub(super) fn act_on_clones(&mut self, host: &mut Host, cuts: bool) -> Result<bool, Failure> {
        if self.clones_from == self.logical_blocks {
            return Ok(false);
        }
        if !self.clones.is_empty() && (self.clones.len() == CLONES_MAX || self.random.chance(0.3)) {
            let at = self.random.below(self.clones.len() as u64) as usize;
            self.give_up(host, at, cuts)?;
            return Ok(true);
        }
        let taken = self.known.iter().filter(|known| known.phase == Phase::Taken);
        let taken: Vec<Known> = taken.cloned().collect();
        if taken.is_empty() {
            return Ok(false);
        }
        let of = &taken[self.random.below(taken.len() as u64) as usize];
        let Some(stretches) = self.draw_clone(of) else { return Ok(false) };
        self.make(host, of, stretches, cuts)?;
        Ok(true)
    }

    /// Parts of a snapshot, and where they could be cloned.
    fn draw_clone(&mut self, of: &Known) -> Option<Vec<ShadowStretch>> {
        let mut stretches: Vec<ShadowStretch> = Vec::new();
        for part in &of.stretches {
            let at = self.random.below(u64::from(part.blocks)) as u32;
            let most = (part.blocks - at).min(BLOCKS_MAX);
            let blocks = 1 + self.random.below(u64::from(most)) as u32;
            let room = self.logical_blocks - self.clones_from;
            if blocks > room {
                continue;
            }
            let first = self.clones_from + self.random.below(u64::from(room - blocks + 1)) as u32;
            let stretch = ShadowStretch { first, blocks, shadow: part.shadow + at };
            let mut taken = self.clones.iter().map(|clone| &clone.stretches);
            let is_free = !taken.any(|others| overlap(&[stretch], others));
            if is_free && !overlap(&[stretch], &stretches) {
                stretches.push(stretch);
            }
        }
        (!stretches.is_empty()).then_some(stretches)
    }

    fn rest(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        while host.sim.in_flight() > 0 {
            self.step(host, cuts)?;
        }
        Ok(())
    }

    fn trim(&mut self, host: &mut Host, of: &[ShadowStretch], cuts: bool) -> Result<(), Failure> {
        for &ShadowStretch { first: lba, blocks, .. } in of {
            let fua = self.random.chance(0.3);
            host.submit(Op { action: Action::Trim { fua }, lba, blocks }, Hint::default());
        }
        self.rest(host, cuts)
    }

    fn make(
        &mut self,
        host: &mut Host,
        of: &Known,
        stretches: Vec<ShadowStretch>,
        cuts: bool,
    ) -> Result<(), Failure> {
        self.rest(host, cuts)?;
        self.trim(host, &stretches, cuts)?;
        let mut changes = Vec::new();
        for stretch in &stretches {
            let addresses = stretch.shadow..stretch.shadow + stretch.blocks;
            let stamps: Option<Vec<u64>> = addresses.map(|address| of.held_at(address)).collect();
            let stamps = stamps.ok_or_else(|| Failure("a snapshot without content".into()))?;
            changes.push(host.model.submit_clone(stretch.first, &stamps));
        }
        let number = self.next_number;
        self.next_number += 1;
        host.sim.order_snapshot(number, SnapshotOrder::Clone(&stretches));
        self.moment += 1;
        let (stage, made_at) = (Stage::Making, self.moment);
        self.clones.push(KnownClone { number, stretches, stage, made_at, changes });
        self.await_clone(host, number, cuts)
    }

    /// What the order about a clone that is under way comes to.
    fn await_clone(&mut self, host: &mut Host, number: u32, cuts: bool) -> Result<(), Failure> {
        let waits = |clone: &KnownClone| clone.number == number && clone.stage != Stage::There;
        while self.clones.iter().any(waits) {
            self.step(host, cuts)?;
        }
        Ok(())
    }

    /// Gives a clone up, or sees it refused if there are snapshots of it.
    fn give_up(&mut self, host: &mut Host, at: usize, cuts: bool) -> Result<(), Failure> {
        let KnownClone { number, stretches, .. } = self.clones[at].clone();
        self.rest(host, cuts)?;
        let is_known = |number: u32| self.known.iter().any(|known| known.number == number);
        let mut leaving = host.sim.ftl().snapshots();
        leaving.retain(|status| !is_known(status.number));
        if leaving.iter().any(|status| overlap(&status.stretches, &stretches)) {
            // One of the clone, or of before it: nobody remembers.
            return Ok(());
        }
        let passes = |known: &&Known| matches!(known.phase, Phase::Preparing | Phase::Dropping);
        if self.known.iter().filter(passes).any(|known| overlap(&known.stretches, &stretches)) {
            // It is there or not when the order has its turn.
            return Ok(());
        }
        let was_needed = self.has_snapshots(&self.clones[at]);
        let mut changes = Vec::new();
        if !was_needed {
            // What is durable of it is what is seen from here on.
            let done = host.counts.done;
            host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
            self.rest(host, cuts)?;
            if host.counts.done == done {
                return Ok(());
            }
            self.seen = Some(BTreeMap::new());
            for &ShadowStretch { first: lba, blocks, .. } in &stretches {
                host.submit(Op { action: Action::Read, lba, blocks }, Hint::default());
            }
            self.rest(host, cuts)?;
            let seen = self.seen.take().unwrap_or_default();
            let inherited = seen.iter().filter(|&(&lba, &stamp)| stamp > 0 && stamp as u32 != lba);
            changes.extend(inherited.map(|(&lba, _)| host.model.submit_trim(lba, 1, true)));
        }
        let Some(clone) = self.clones.iter_mut().find(|clone| clone.number == number) else {
            return Err(Failure(format!("clone {number} vanished")));
        };
        (clone.stage, clone.changes) = (Stage::Leaving, changes);
        host.sim.order_snapshot(number, SnapshotOrder::Drop);
        self.await_clone(host, number, cuts)?;
        let is_gone = self.clones.iter().all(|clone| clone.number != number);
        match (was_needed, is_gone) {
            (true, false) => Ok(()),
            (true, true) => Err(Failure(format!("clone {number} went, which has snapshots"))),
            (false, true) => self.trim(host, &stretches, cuts),
            (false, false) => Err(Failure(format!("clone {number} stays"))),
        }
    }

    /// Gives up a clone of which there is no snapshot, if there is one. False if not.
    pub(super) fn give_clone_up(&mut self, host: &mut Host) -> Result<bool, Failure> {
        let is_free = |clone: &KnownClone| !self.has_snapshots(clone);
        let Some(at) = self.clones.iter().position(is_free) else { return Ok(false) };
        // Snapshots of it may still be leaving.
        self.give_up(host, at, false)?;
        if self.fruitless > super::FRUITLESS_STEPS_MAX {
            return Err(host.sim.stuck());
        }
        self.step(host, false)?;
        Ok(true)
    }

    /// The end of an order about a clone; false if it was about a snapshot.
    pub(super) fn hear_of_clone(
        &mut self,
        host: &mut Host,
        number: u32,
        step: SnapshotStep,
        result: Result<(), SnapshotError>,
    ) -> Result<bool, Failure> {
        let Some(at) = self.clones.iter().position(|clone| clone.number == number) else {
            return Ok(false);
        };
        let clone = &mut self.clones[at];
        let stage = if step == SnapshotStep::Clone { Stage::Making } else { Stage::Leaving };
        if clone.stage != stage {
            return Err(Failure(format!("{step:?} of clone {number} ended as {result:?}")));
        }
        let changes = std::mem::take(&mut clone.changes);
        match (step, result) {
            (SnapshotStep::Clone, Ok(())) => {
                clone.stage = Stage::There;
                self.report.cloned += 1;
            }
            (SnapshotStep::Drop, Err(SnapshotError::Needed)) if changes.is_empty() => {
                clone.stage = Stage::There;
            }
            (SnapshotStep::Drop, Ok(())) => {
                self.clones.remove(at);
                self.report.clones_dropped += 1;
            }
            _ => return Err(Failure(format!("{step:?} of clone {number} failed: {result:?}"))),
        }
        changes.into_iter().for_each(|change| host.model.acknowledge(change));
        Ok(true)
    }

    /// Those that should be there are, and no others.
    pub(super) fn check_clones(&self, sim: &Sim) -> Result<(), Failure> {
        let found = sim.ftl().clones();
        for (number, stretches) in &found {
            let known = self.clones.iter().find(|clone| clone.number == *number);
            known
                .filter(|clone| clone.stretches == *stretches)
                .ok_or_else(|| Failure(format!("there is clone {number} of {stretches:?}")))?;
        }
        let is_there = |clone: &KnownClone| found.iter().any(|(number, _)| *number == clone.number);
        match self.clones.iter().find(|it| it.stage == Stage::There && !is_there(it)) {
            Some(gone) => Err(Failure(format!("clone {} is gone", gone.number))),
            None => Ok(()),
        }
    }

    /// A mount has decided what was in doubt.
    pub(super) fn settle_clones(&mut self, sim: &Sim) {
        let found = sim.ftl().clones();
        self.clones.retain(|clone| found.iter().any(|(number, _)| *number == clone.number));
        for clone in &mut self.clones {
            clone.stage = Stage::There;
            clone.changes.clear();
        }
    }

    /// Whether there are clones of this snapshot.
    pub(super) fn has_clones(&self, at: usize) -> bool {
        let of = &self.known[at].stretches;
        let named = |it: &ShadowStretch| {
            of.iter().any(|of| it.shadow >= of.shadow && it.shadow < of.shadow + of.blocks)
        };
        self.clones.iter().any(|clone| clone.stretches.iter().any(named))
    }

    /// Whether there are snapshots of this clone, or will be.
    fn has_snapshots(&self, clone: &KnownClone) -> bool {
        self.known.iter().any(|known| {
            let is_later = known.taken_at == 0 || known.taken_at > clone.made_at;
            is_later && overlap(&known.stretches, &clone.stretches)
        })
    }

    /// An order about a clone has not ended.
    pub(super) fn is_clone_ordered(&self) -> bool {
        self.clones.iter().any(|clone| clone.stage != Stage::There)
    }

    /// Some blocks of a clone, sometimes: a snapshot may be taken of them.
    pub(super) fn part_of_clone(&mut self) -> Option<(u32, u32)> {
        if self.clones.is_empty() || !self.random.chance(0.5) {
            return None;
        }
        let at = self.random.below(self.clones.len() as u64) as usize;
        let stretch = self.clones[at].stretches[0];
        let inside = self.random.below(u64::from(stretch.blocks)) as u32;
        Some((stretch.first + inside, stretch.blocks - inside))
    }
}
