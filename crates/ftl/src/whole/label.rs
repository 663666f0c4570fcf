//! The owner's bytes ([`crate::api::Input::Label`]), changed while the host is served.
//!
//! The label is a part of every root record, and a root record is a part of a checkpoint: so a changed label is on the
//! medium when a checkpoint is complete that was begun after the change, and a recovery finds the label of before or
//! that of after, whole, whenever power goes.
//!
//! Invariants:
//! - each change is answered once, in the order they came, before `Stopped` or not at all;
//! - as long as one waits another checkpoint is wanted, unless one that has it is being written.

use crate::api::Output;
use crate::format::LABEL_BYTES_MAX;
use crate::mutant::Mutant;
use crate::whole::{Ftl, Phase};
use std::collections::VecDeque;

/// Changes of the label, which are counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relabel {
    /// So many were asked for.
    changes: u64,
    /// The checkpoint that was begun last has the first so many.
    begun: u64,
    /// The numbers of those that are not answered.
    waiting: VecDeque<u64>,
}

impl Ftl {
    /// Takes another label, which is answered when it is durable.
    pub(crate) fn relabel(&mut self, label: &[u8]) {
        if self.phase != Phase::Running || label.len() > LABEL_BYTES_MAX {
            self.outputs.push_back(Output::Labelled(false));
            return;
        }
        self.label = label.to_vec();
        self.relabel.changes += 1;
        self.relabel.waiting.push_back(self.relabel.changes);
        // Somebody waits for this one now; if there is no room, the next rest is as long as it would be.
        self.checkpoint.rest_until(self.now);
    }

    /// A change of the label is on no checkpoint, nor on the one being written.
    pub(crate) fn label_wants_checkpoint(&self) -> bool {
        !self.relabel.waiting.is_empty() && self.phase == Phase::Running
    }

    /// A checkpoint begins: its root records have the label as it is now.
    pub(crate) fn label_begun(&mut self) {
        self.relabel.begun = self.relabel.changes;
        if self.is_mutant(Mutant::LabelTooEarly) {
            self.label_durable();
        }
    }

    /// The checkpoint that was begun last is durable.
    pub(crate) fn label_durable(&mut self) {
        let begun = self.relabel.begun;
        while self.relabel.waiting.pop_front_if(|change| *change <= begun).is_some() {
            self.outputs.push_back(Output::Labelled(true));
        }
    }

    /// Nothing is written any more: which label a recovery finds is not known.
    pub(crate) fn label_fails(&mut self) {
        let unanswered = self.relabel.waiting.drain(..).map(|_| Output::Labelled(false));
        self.outputs.extend(unanswered);
    }
}
