//! What a medium tells kept memory, and what it asks of it.
//!
//! Invariant: kept memory hears of a program or erase before its I/O is queued, and of its end before
//! that is told to anybody else.

use super::{Job, Medium, Step, Store, What, block_of, data_slot, direct};
use crate::kept::KeptShard;
use flash::{Geometry, OOB_BYTES};

impl Medium {
    /// The same with kept memory, which the state of the blocks was found with.
    pub fn with_kept(mut self, mut kept: KeptShard) -> Self {
        for (block, record) in self.nand.records() {
            let nand::BlockRecord { erase_count, write_pointer, .. } = record;
            let plain =
                nand::BlockRecord { erase_count, write_pointer, ..nand::BlockRecord::FRESH };
            let slots = match self.geometry.is_fast(block) {
                true => write_pointer,
                false => write_pointer * self.geometry.slots_per_page,
            };
            match record == plain {
                true => kept.found(block, erase_count, slots),
                false => kept.forget(block),
            }
        }
        self.kept = Some(kept);
        self
    }

    /// Answers a read of a mount from kept memory, if that knows all that is asked for. It is complete
    /// when its emulated time has come.
    pub(super) fn answer_kept(&mut self, index: u32) -> bool {
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.is_mounting()) else { return false };
        let job = &mut self.jobs[index];
        let (What::Read { slot, count }, None) = (job.what, job.into) else { return false };
        let erase_count = self.nand.record(self.geometry.block_of(slot)).erase_count;
        job.kept = kept.answer(slot, count, erase_count, &mut job.oobs);
        if job.kept {
            job.step = Step::Record;
        }
        job.kept
    }

    /// Tells kept memory what has become of a block.
    pub(super) fn note_kept(&mut self, job: &Job) {
        let read = matches!(job.what, What::Read { .. });
        if self.kept.as_ref().is_none_or(|kept| read && (job.kept || !kept.is_mounting())) {
            return;
        }
        let learned = match (job.what, &job.scratch, job.into) {
            (What::Read { slot, .. }, Some(scratch), None)
                if slot.0.is_multiple_of(self.geometry.slots_per_block()) =>
            {
                Some((slot, self.oob_read(job, 0), flash::crc(data_slot(scratch, 0))))
            }
            _ => None,
        };
        let block = (!matches!(job.what, What::Flush)).then(|| block_of(&self.geometry, job.what));
        let erase_count = block.map_or(0, |block| self.nand.record(block).erase_count);
        let Some(kept) = &mut self.kept else { return };
        match (job.what, &job.scratch) {
            // What is written and not flushed may be gone.
            (What::Flush, _) if job.error.is_some() => kept.clear(),
            _ if job.error.is_some() => {}
            (What::Program { slot, count }, Some(scratch)) => {
                let direct = matches!(self.store, Store::Direct(_));
                let moved = direct && !self.geometry.is_fast(self.geometry.block_of(slot));
                let at = if moved { direct::OOBS_AT } else { 0 };
                let oobs = &scratch.bytes()[at..at + count as usize * OOB_BYTES];
                kept.programmed(slot, erase_count, oobs);
            }
            (What::Erase { block }, _) => kept.erased(block, erase_count),
            (What::Read { .. }, _) => {
                if let Some((slot, oob, crc)) = learned {
                    kept.learn_first(slot, erase_count, (&oob, crc));
                }
            }
            _ => {}
        }
    }
}

/// The I/O of a job is about to be queued.
pub(super) fn begin(kept: &mut KeptShard, geometry: &Geometry, what: What) {
    match what {
        What::Program { slot, .. } => kept.begin_program(geometry.block_of(slot)),
        What::Erase { block } => kept.begin_erase(block),
        What::Read { .. } | What::Finish { .. } | What::Flush => {}
    }
}
