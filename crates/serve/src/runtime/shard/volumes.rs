//! Volumes that come and go: a shard takes over what is offered from now on, keeps another label, and trims what
//! volumes have left. Who asks is the thread of [`crate::living`].
//!
//! Invariant: whoever is told that an offer is taken over knows that no piece of a request goes on which was begun
//! under an earlier one. So what is trimmed afterwards stays so.

use super::connection::Ending;
use super::snapshots::Snapshots;
use super::{Life, Origin, Piece, Shard, Work};
use crate::exports::Offered;
use crate::runtime::buffer::View;
use crate::volume::{BLOCK, Failure, Kind, Request};
use flash::{Instant, RequestError, Slab};
use ftl::Input;
use std::collections::VecDeque;
use std::sync::Arc;

/// The `shard` of an [`Origin`] that is a part of what volumes have left.
pub const CLEARING: usize = usize::MAX - 1;

/// Gets whether a label is durable.
pub type Labelled = Box<dyn FnOnce(bool) + Send>;
/// Gets the end of a trim or flush.
pub type Cleared = Box<dyn FnOnce(Result<(), RequestError>) + Send>;

/// What is under way of changes.
#[derive(Default)]
pub struct Changes {
    /// How many offers were taken over.
    pub offers: u64,
    /// Who waits for the end of all that was begun under an offer before this one.
    waiting: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    /// In the order they were asked for.
    labels: VecDeque<Labelled>,
    clearing: Slab<Cleared>,
    /// Of snapshots.
    pub snapshots: Snapshots,
}

impl Changes {
    /// Nothing is being trimmed.
    pub fn is_idle(&self) -> bool {
        self.clearing.is_empty()
    }
}

impl Shard {
    /// Takes over what is offered from now on; `answer` is called when nothing goes on that was begun before.
    pub(super) fn adopt(&mut self, offered: Arc<Offered>, answer: Box<dyn FnOnce() + Send>) {
        self.latencies.keep(|volume| offered.get(volume).is_some());
        self.offered = offered;
        self.take_over_limits();
        self.changes.offers += 1;
        self.changes.waiting.push((self.changes.offers, answer));
        let offered = Arc::clone(&self.offered);
        for index in self.connection_indices() {
            let connection = &mut self.connections[index];
            let stays = connection.front.offered(&offered, &mut connection.outbox.filling.bytes);
            if !stays {
                self.end(index, Ending::Finishing);
            }
            self.mark_dirty(index);
        }
    }

    /// Tells those whose time has come that what was begun before has ended.
    pub(super) fn tell_adopted(&mut self) {
        self.look_at_held();
        if self.changes.waiting.is_empty() {
            return;
        }
        let oldest = self.requests.iter().map(|(_, request)| request.offer).min();
        let oldest = oldest.unwrap_or(u64::MAX);
        for (offer, answer) in std::mem::take(&mut self.changes.waiting) {
            match offer <= oldest {
                true => answer(),
                false => self.changes.waiting.push((offer, answer)),
            }
        }
    }

    /// Why a request cannot be begun: its volume is gone, or smaller than its client believes.
    pub(super) fn refused(&self, request: &Request) -> Option<Failure> {
        let Some(volume) = self.offered.get(request.volume) else { return Some(Failure::Gone) };
        // Zones are counted otherwise, and units stay as they are.
        if matches!(request.kind, Kind::Zone(_) | Kind::Zones { .. }) {
            return None;
        }
        let within = request.offset + u64::from(request.len) <= volume.blocks * BLOCK;
        let fills = matches!(request.kind, Kind::Write { .. } | Kind::Zeroes { .. });
        let error = if fills { RequestError::NoSpace } else { RequestError::OutOfRange };
        (!within).then_some(Failure::Device(error))
    }

    /// Keeps another label.
    pub(super) fn label(&mut self, now: Instant, bytes: &[u8], answer: Labelled) {
        // One that stops says nothing: that is no failure, and whoever asked hears that it has ended.
        if self.life != Life::Serving {
            return;
        }
        if self.engine.medium.fenced() {
            return answer(false);
        }
        self.changes.labels.push_back(answer);
        self.engine.core.handle(now, Input::Label(bytes));
    }

    /// A label is durable, or it is not known whether it is.
    pub(super) fn labelled(&mut self, durable: bool) {
        let Some(answer) = self.changes.labels.pop_front() else { return };
        let kept = durable && !self.engine.medium.fenced();
        if kept || self.life == Life::Serving {
            answer(kept);
        }
    }

    /// Trims blocks that are no volume's, or makes durable that all of them are.
    pub(super) fn clear(&mut self, work: Work, (lba, blocks): (u32, u32), answer: Cleared) {
        if self.life != Life::Serving {
            return answer(Err(RequestError::ShuttingDown));
        }
        let request = self.changes.clearing.insert(answer);
        let origin = Origin { shard: CLEARING, request };
        self.engine.submit(Piece { origin, work, lba, blocks, view: View::NONE });
    }

    /// A part of that is done.
    pub(super) fn cleared(&mut self, request: u32, result: Result<(), RequestError>) {
        let answer = self.changes.clearing.remove(request);
        answer(result);
    }
}
