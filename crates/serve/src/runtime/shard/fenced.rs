//! What a shard still does when another server has the device.

use super::{Life, Shard};
use crate::medium::Lost;
use crate::runtime::ring::Owner;
use flash::{RequestError, SECOND};

/// How long clients may take to receive that nothing goes on.
const LAST_WORDS_NS: u64 = SECOND / 2;

impl Shard {
    /// Another server has the device: every request is answered with an error, and nothing more is
    /// written. Their memory is the shard's until the kernel has let go of it.
    pub(super) fn end_fenced(&mut self, lost: Lost) {
        tracing::error!(shard = self.me, "{}: {lost}", self.shared.places.0);
        self.life = Life::Draining;
        self.stop_listening();
        let requests: Vec<u32> = self.requests.iter().map(|(index, _)| index).collect();
        for index in requests {
            self.abandoned.extend(self.requests[index].abandon(RequestError::Failed));
            self.answer(index);
        }
        let deadline = self.clock.now() + LAST_WORDS_NS;
        let mut done = Vec::new();
        loop {
            let now = self.clock.now();
            self.send_replies(now);
            let told = self.connections.iter().all(|(_, connection)| connection.outbox.is_empty());
            if told || now >= deadline || self.ring.enter(Some(SECOND / 50), &mut done).is_err() {
                break;
            }
            // What else comes (of the medium, of other shards, of clients that ask for more) is about requests
            // that were answered just now, or that nobody answers any more.
            for done in
                done.drain(..).filter(|done| matches!(done.owner, Owner::Send | Owner::Accept))
            {
                self.completed(now, done);
            }
        }
    }
}
