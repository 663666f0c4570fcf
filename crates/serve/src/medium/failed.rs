//! Commands that fail: what the rules and the core are told of it, and what a test makes go wrong.

use super::injected::Injector;
use super::{Job, Medium, Step, Store, What, block_of, data_slot_mut, errno};
use crate::runtime::buffer::Views;
use crate::runtime::ring::Done;
use flash::{BLOCK_BYTES, MediumError};

impl Medium {
    /// Whether a command has failed the block that job `index` programs, and its end was not handed over
    /// yet: who gave the program cannot know. The rules know of the failure as soon as they have judged
    /// the command; the core hears of it when the command's I/O is done and it is its turn.
    pub(super) fn fails_untold(&self, index: u32) -> bool {
        let block = block_of(&self.geometry, self.jobs[index].what);
        self.jobs.iter().any(|(_, job)| {
            job.error == Some(MediumError::BlockFailed)
                && !matches!(job.what, What::Flush)
                && block_of(&self.geometry, job.what) == block
        })
    }

    /// Ends a program as one of a block that has failed.
    pub(super) fn refuse(&mut self, index: u32) {
        let job = &mut self.jobs[index];
        (job.refused, job.timed, job.step) = (true, true, Step::Done);
        job.error = Some(MediumError::BlockFailed);
        self.done.push_back(index);
    }

    /// The I/O of a job failed. What makes a block bad is told to the rules, too: they hold to it, and it
    /// is still bad after a restart.
    pub(super) fn fail_job(&mut self, index: u32, error: MediumError) {
        let job = &mut self.jobs[index];
        if job.error.is_some() {
            return;
        }
        job.error = Some(error);
        if error == MediumError::NoSpace {
            self.full = self.store.file_of(job.what, job.step);
        }
        match job.what {
            What::Program { slot, .. } if error == MediumError::BlockFailed => {
                self.nand.fail_program(slot);
            }
            What::Erase { block } if error == MediumError::BlockFailed => {
                self.nand.fail_erase(block);
            }
            _ => {}
        }
    }

    /// A full file system may have taken a part of a program. What is left of it would look like a slot
    /// that was damaged later; without an OOB it reads as a page that was torn.
    pub(super) fn forget_refused(&self, job: &Job) {
        if job.error != Some(MediumError::NoSpace) {
            return;
        }
        let What::Program { slot, count } = job.what else { return };
        if self.geometry.is_fast(self.geometry.block_of(slot)) && self.fast.is_some() {
            return;
        }
        let forgotten = match &self.store {
            Store::File(store) => store.forget_oobs(slot, count),
            Store::Direct(store) => store.forget_page(slot),
            Store::Memory(_) | Store::Fast(_) => Ok(()),
        };
        if let Err(error) = forgotten {
            tracing::warn!(%error, ?slot, "what is left of a refused write will be called damage");
        }
    }

    /// True if a disk that answers cannot read what it was asked for: of one zone that is offline, or
    /// of some sectors.
    pub(super) fn is_damage(&mut self, done: Done) -> bool {
        let What::Read { slot, .. } = self.jobs[done.index].what else { return false };
        let of_fast = self.geometry.is_fast(self.geometry.block_of(slot));
        match -done.result {
            libc::ENODATA | libc::EILSEQ => true,
            libc::EIO if self.store.is_zoned() => !of_fast,
            // A disk that is gone cannot tell the generation, either.
            libc::EIO if !of_fast => self.watch.as_mut().is_some_and(|watch| {
                watch.look_now();
                watch.is_ours()
            }),
            _ => false,
        }
    }

    /// What the result of an I/O operation means for its job.
    pub(super) fn judge(&self, done: Done) -> Option<MediumError> {
        let job = &self.jobs[done.index];
        let unsupported = done.result == -libc::EOPNOTSUPP;
        let discards = matches!(&self.store, Store::Direct(store) if !store.is_zoned());
        if job.step == Step::Clear && unsupported && discards {
            // A device that cannot discard: stale pages are told by their erase count.
            return None;
        }
        if let What::Flush = job.what {
            return (done.result < 0).then_some(MediumError::FlushFailed);
        }
        match -done.result {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Some(MediumError::NoSpace),
            code @ (libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN) => {
                tracing::error!(?job.what, error = %errno(code), "the disk below the medium is gone");
                Some(MediumError::UnitGone)
            }
            code if code > 0 => {
                tracing::error!(?job.what, error = %errno(code), "I/O below the medium failed");
                match job.what {
                    What::Program { .. } | What::Erase { .. } => Some(MediumError::BlockFailed),
                    What::Read { .. } | What::Finish { .. } | What::Flush => {
                        Some(MediumError::UnitGone)
                    }
                }
            }
            // Files have their full length and buffers their full size: nothing moved means
            // that the file was cut off under us.
            0 if done.bytes > 0 => Some(MediumError::UnitGone),
            moved if -moved != done.bytes as i32 => match job.what {
                What::Read { .. } | What::Finish { .. } | What::Flush => {
                    Some(MediumError::UnitGone)
                }
                What::Program { .. } | What::Erase { .. } => Some(MediumError::NoSpace),
            },
            _ => None,
        }
    }

    /// What a test wants to go wrong with I/O does.
    pub(super) fn with_fault(&mut self, done: Done) -> Done {
        let what = self.jobs[done.index].what;
        let changes = matches!(what, What::Program { .. } | What::Erase { .. });
        let fails = |injector: &mut Box<Injector>| changes && injector.fails_io();
        let failed = self.injector.as_mut().is_some_and(fails);
        if failed { Done { result: -libc::EIO, ..done } } else { done }
    }
}

/// Flips a bit of what a read brought into memory of its own. Memory that is lent holds the medium's
/// only copy, and stays as it is.
pub(super) fn flip(injector: &mut Injector, job: &mut Job, count: u32, views: &mut Views) {
    if let Some(scratch) = &mut job.scratch {
        match job.into {
            Some(into) => {
                let at = views.span(into, count);
                let bytes = count as usize * BLOCK_BYTES;
                // SAFETY: the target of this read, which has ended; nobody else has it.
                injector.flip(unsafe { std::slice::from_raw_parts_mut(at, bytes) });
            }
            None => injector.flip(data_slot_mut(scratch, 0)),
        }
    }
}
