//! A snapshot, as its host knows it: which blocks it has, and a map of what they held.

use crate::driver::{Failure, Sim};
use crate::medium::Medium;
use flash::RequestError;
use ftl::{Core, Input, ShadowStretch, SnapshotError, SnapshotOrder, SnapshotStep};
use std::collections::BTreeMap;

/// Tokens of reads of snapshots: this, and the number. Those of the host are below.
pub(super) const SNAPSHOT_TOKEN: u64 = 1 << 40;

/// The end of an order about a snapshot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SnapshotEnd {
    /// Whose.
    pub number: u32,
    /// Which order.
    pub step: SnapshotStep,
    /// What came of it.
    pub result: Result<(), SnapshotError>,
}

impl<C: Core, M: Medium> Sim<C, M> {
    /// Orders something about a snapshot; requests go on.
    pub fn order_snapshot(&mut self, number: u32, order: SnapshotOrder<'_>) {
        let now = self.now();
        self.ftl_mut().handle(now, Input::Snapshot { number, order });
    }

    /// The next order about a snapshot that has ended.
    pub fn take_snapshot_end(&mut self) -> Option<SnapshotEnd> {
        self.snapshot_ends.pop_front()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Preparing,
    Prepared,
    Cutting,
    Taken,
    Dropping,
}

/// A snapshot, as the host knows it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub number: u32,
    pub stretches: Vec<ShadowStretch>,
    pub phase: Phase,
    /// When it was cut, as clones are made; 0 before.
    pub taken_at: u32,
    /// What its blocks held at its cut.
    pub content: BTreeMap<u32, u64>,
}

impl Known {
    pub fn is_readable(&self) -> bool {
        matches!(self.phase, Phase::Cutting | Phase::Taken)
    }

    /// The block whose shadow lies at `address`.
    fn block_at(&self, address: u32) -> Option<u32> {
        let of_it = |it: &&ShadowStretch| (it.shadow..it.shadow + it.blocks).contains(&address);
        let stretch = self.stretches.iter().find(of_it);
        stretch.map(|it| it.first + (address - it.shadow))
    }

    /// What it holds at `address`.
    pub fn held_at(&self, address: u32) -> Option<u64> {
        self.block_at(address).and_then(|lba| self.content.get(&lba)).copied()
    }

    /// Whether a read of `address` may give `stamp`.
    pub fn check(&self, address: u32, stamp: Option<u64>) -> Result<(), Failure> {
        let (lba, wanted) = (self.block_at(address), self.held_at(address));
        if stamp == wanted {
            return Ok(());
        }
        let number = self.number;
        Err(Failure(format!(
            "snapshot {number}, {:?}: block {lba:?} reads as {stamp:x?} and held {wanted:x?}",
            self.phase
        )))
    }

    /// Reads all of it.
    pub fn read(&self, sim: &mut Sim) -> Result<(), Failure> {
        match self.read_what_can_be(sim)? {
            0 => Ok(()),
            failed => Err(Failure(format!("{failed} blocks of {} are unreadable", self.number))),
        }
    }

    /// Reads all of it, and returns how many of its blocks are unreadable.
    pub fn read_what_can_be(&self, sim: &mut Sim) -> Result<u64, Failure> {
        let mut unreadable = 0;
        for stretch in &self.stretches {
            for first in (0..stretch.blocks).step_by(64) {
                let blocks = 64.min(stretch.blocks - first);
                unreadable += self.read_run(sim, stretch.shadow + first, blocks)?;
            }
        }
        Ok(unreadable)
    }

    fn read_run(&self, sim: &mut Sim, address: u32, blocks: u32) -> Result<u64, Failure> {
        sim.read(SNAPSHOT_TOKEN, address, blocks);
        sim.run_until_answered()?;
        let mut result = Ok(());
        while let Some(finished) = sim.take_finished() {
            if finished.token == SNAPSHOT_TOKEN {
                result = finished.result;
                let stamps = sim.stamps(&finished);
                for (at, &stamp) in (address..).zip(stamps).filter(|_| result.is_ok()) {
                    self.check(at, Some(stamp))?;
                }
            }
            sim.release(finished);
        }
        match result {
            Ok(()) => Ok(0),
            Err(RequestError::Unreadable) if blocks > 1 => {
                let each = (address..address + blocks).map(|at| self.read_run(sim, at, 1));
                each.sum()
            }
            Err(RequestError::Unreadable) => Ok(1),
            Err(error) => Err(Failure(format!("a read of snapshot {}: {error:?}", self.number))),
        }
    }
}
