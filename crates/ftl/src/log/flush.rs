//! Flushes of the medium: one at a time, for everybody who waits.

use crate::api::Output;
use crate::space::scheduler;
use crate::whole::Ftl;
use flash::{Command, MediumError, Tag};

/// Medium flushes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flush {
    pub wanted: bool,
    /// What the running one covers.
    pub running: Option<u64>,
    /// The first sequence that it does not cover.
    sequences: u64,
    pub begun: u64,
    pub ended: u64,
    /// No program has ended since the last one began.
    pub covers_all: bool,
}

impl Ftl {
    pub(crate) fn want_flush(&mut self) {
        self.flush.wanted = !self.geometry.durable_at_completion;
    }

    /// The number of the first medium flush that begins after now.
    pub(crate) fn flush_number_after_now(&self) -> u64 {
        if self.geometry.durable_at_completion { 0 } else { self.flush.begun + 1 }
    }

    pub(crate) fn flush_pump(&mut self) {
        if self.geometry.durable_at_completion || self.flush.running.is_some() {
            return;
        }
        let safe_below = self.durable.safe_below();
        let waited = self.host.waiters.iter().any(|waiter| waiter.order < safe_below);
        if !waited && !std::mem::take(&mut self.flush.wanted) {
            return;
        }
        self.flush.wanted = false;
        self.flush.running = Some(safe_below);
        self.flush.sequences = self.durable.sequences_safe(self.sequence_next);
        self.flush.begun += 1;
        self.flush.covers_all = true;
        self.counters.medium_flushes += 1;
        self.outputs.push_back(Output::Command(Command::Flush { tag: Tag(scheduler::TAG_FLUSH) }));
    }

    pub(crate) fn complete_flush(&mut self, result: Result<(), MediumError>) {
        let covered = self.flush.running.take().expect("a flush was running");
        self.flush.ended += 1;
        if result.is_err() {
            self.fail();
            return;
        }
        self.durable.flushed(covered, self.flush.sequences);
        self.durable_rose = true;
        for open in self.opens.indices() {
            let entry = &mut self.opens[open];
            if entry.live && entry.header_flush.is_some_and(|number| number <= self.flush.ended) {
                entry.header_flush = None;
                entry.header_durable = true;
                let unit = self.geometry.unit_of(entry.block);
                self.dispatch(unit);
            }
        }
    }
}
