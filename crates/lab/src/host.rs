//! A host that knows what it may read: a [`Sim`] with a [`Model`] beside it. Every answer is held
//! against the model when it comes.
//!
//! Invariant: the model learns of a submission before the FTL does, and of an answer at the step
//! that gave it; so at any step the model says exactly what a power cut may leave.

use crate::driver::{Failure, Finished, Sim};
use crate::model::Model;
use crate::workload::{Action, Op};
use flash::{Hint, Operation, RequestError};

/// What went through the host so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostCounts {
    /// Operations that were answered with success.
    pub done: u64,
    /// Blocks of successful writes.
    pub blocks_written: u64,
    /// Blocks of successful reads.
    pub blocks_read: u64,
    /// Reads that ended as unreadable.
    pub unreadable: u64,
    /// Writes and trims refused because nothing could be reclaimed.
    pub no_space: u64,
    /// Operations answered with another error that the moment allows.
    pub refused: u64,
}

/// See the head of this file.
pub struct Host {
    /// The device.
    pub sim: Sim,
    /// What it may return.
    pub model: Model,
    /// What went through so far.
    pub counts: HostCounts,
    /// A shutdown has begun, or the medium is gone: requests may be refused.
    pub refusals_are_legal: bool,
    /// The disk below has no room: changes and flushes may be refused for that.
    pub full_is_legal: bool,
    stamps: Vec<u64>,
}

impl Host {
    /// A host at a device that reads as `model` says.
    pub fn new(sim: Sim, model: Model) -> Self {
        Self {
            sim,
            model,
            counts: HostCounts::default(),
            refusals_are_legal: false,
            full_is_legal: false,
            stamps: Vec::new(),
        }
    }

    /// Submits an operation. `hint` counts for writes.
    pub fn submit(&mut self, op: Op, hint: Hint) {
        let Op { action, lba, blocks } = op;
        match action {
            Action::Read => {
                let id = self.model.submit_read(lba, blocks);
                self.sim.read(u64::from(id), lba, blocks);
            }
            Action::Write { fua, atomic } => {
                self.stamps.clear();
                self.stamps.resize(blocks as usize, 0);
                let id = self.model.submit_write(lba, fua, atomic, &mut self.stamps);
                self.sim.write(u64::from(id), lba, &self.stamps, (fua, atomic), hint);
            }
            Action::Trim { fua } => {
                let id = self.model.submit_trim(lba, blocks, fua);
                self.sim.trim(u64::from(id), lba, blocks, fua);
            }
            Action::Flush => {
                let id = self.model.submit_flush();
                self.sim.flush(u64::from(id));
            }
        }
    }

    /// Takes the answers that have come and holds them against the model. True if one of them
    /// changed what a power cut may leave.
    pub fn collect(&mut self) -> Result<bool, Failure> {
        let mut changed = false;
        while let Some(finished) = self.sim.take_finished() {
            changed |= self.judge(&finished)?;
            self.sim.release(finished);
        }
        Ok(changed)
    }

    /// Holds one answer against the model. True if it changed what a power cut may leave.
    pub fn judge(&mut self, finished: &Finished) -> Result<bool, Failure> {
        let (id, request) = (finished.token as u32, &finished.request);
        let is_read = matches!(request.operation, Operation::Read { .. });
        match finished.result {
            Ok(()) if is_read => {
                let stamps = self.sim.stamps(finished);
                self.model.finish_read(id, stamps).map_err(|why| {
                    Failure(format!("at {} ns, {request:?}: {why}", finished.finished.0))
                })?;
                self.counts.blocks_read += u64::from(request.blocks);
                self.counts.done += 1;
                Ok(false)
            }
            Ok(()) => {
                if matches!(request.operation, Operation::Write { .. }) {
                    self.counts.blocks_written += u64::from(request.blocks);
                }
                self.counts.done += 1;
                self.model.acknowledge(id);
                Ok(true)
            }
            Err(error) => {
                self.judge_error(finished, error)?;
                self.model.fail(id);
                Ok(false)
            }
        }
    }

    fn judge_error(&mut self, finished: &Finished, error: RequestError) -> Result<(), Failure> {
        let operation = &finished.request.operation;
        let legal = match error {
            RequestError::Unreadable => {
                self.counts.unreadable += 1;
                matches!(operation, Operation::Read { .. }) && self.model.tolerates_unreadable()
            }
            RequestError::NoSpace => {
                self.counts.no_space += 1;
                let grows = matches!(operation, Operation::Write { .. } | Operation::Trim { .. });
                let reads = matches!(operation, Operation::Read { .. });
                grows && self.is_worn_out() || !reads && self.full_is_legal
            }
            RequestError::Failed => {
                self.counts.refused += 1;
                let changes = !matches!(operation, Operation::Read { .. });
                self.refusals_are_legal || changes && (self.read_only() || self.is_worn_out())
            }
            RequestError::ShuttingDown => {
                self.counts.refused += 1;
                self.refusals_are_legal
            }
            _ => false,
        };
        if legal {
            return Ok(());
        }
        let request = &finished.request;
        let (at, state) = (finished.finished.0, self.sim.ftl().explain());
        let room = self.told_of_room();
        Err(Failure(format!("at {at} ns, {request:?} failed: {error:?}; {room}; {state}")))
    }

    /// What can be kept by the FTL's count and by ours, which have to say the same.
    fn told_of_room(&self) -> String {
        let count = |name| self.sim.ftl().counter(name);
        let (medium, settings) = (self.sim.medium(), self.sim.settings());
        let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), settings);
        let [kept, held, bad] = ["logical_blocks_kept", "blocks_mapped", "bands_bad"].map(count);
        let offered = self.model.logical_blocks();
        format!(
            "{offered} blocks offered, {held} held, {kept} kept with {bad} bad bands; {max} by the medium's health"
        )
    }

    /// So many blocks have failed that a device of this size could not be formatted any more with the policies of its
    /// mount. From here on writes may be refused.
    pub fn is_worn_out(&self) -> bool {
        let (medium, settings) = (self.sim.medium(), self.sim.settings());
        let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), settings);
        max < self.model.logical_blocks()
    }

    /// The device takes no writes, by its own word.
    pub fn read_only(&self) -> bool {
        self.sim.ftl().status().phase == "read-only"
    }

    /// Waits for every answer and checks each.
    pub fn drain(&mut self) -> Result<(), Failure> {
        self.sim.run_until_answered()?;
        self.collect().map(|_| ())
    }

    /// After a power cut: reads the whole device, checks that it is what that may leave, and goes on from it.
    pub fn settle(&mut self) -> Result<(), Failure> {
        let observed = self.sim.read_all(self.model.logical_blocks())?;
        let now = self.sim.now().0;
        let after = |why| Failure(format!("after a power cut at {now} ns: {why}"));
        self.model.check_recovered(&observed).map_err(after)?;
        self.model.settle(&observed);
        Ok(())
    }

    /// Reads the whole device and checks that it is what the model allows now, with nothing in
    /// flight and no power cut: exactly the acknowledged state.
    pub fn read_back(&mut self) -> Result<(), Failure> {
        let blocks = self.model.logical_blocks();
        for first in (0..blocks).step_by(64) {
            let count = 64.min(blocks - first);
            self.submit(Op { action: Action::Read, lba: first, blocks: count }, Hint::default());
            self.drain()?;
        }
        Ok(())
    }
}
