//! Snapshots of volumes, on a shard. Who asks is the thread of [`crate::living`]: it has all shards hold back what would
//! change a volume; when nothing of that kind goes on anywhere it has all of them cut, and go on.
//!
//! Invariants:
//! - from the answer to [`SnapshotAsk::Hold`] on until [`SnapshotAsk::GoOn`] no piece of a change of that volume is under way for a client of
//!   this shard, on whichever shard it would be;
//! - what is held back counts among the requests of its connection, so that this stays; it goes on in the order in which
//!   it came, and at the latest when the server stops.

use super::connection::Ending;
use super::requests::Asked;
use super::{Life, Shard};
use crate::runtime::data::Data;
use crate::volume::{Kind, Request};
use flash::Instant;
use ftl::{Input, ShadowStretch, SnapshotError, SnapshotOrder, SnapshotStatus, SnapshotStep};
use std::collections::VecDeque;

/// Gets the end of an order.
pub type Ordered = Box<dyn FnOnce(Result<(), SnapshotError>) + Send>;

/// What a shard is asked.
pub enum SnapshotAsk {
    /// Hold back what would change a volume.
    Hold {
        /// Which, as requests name it.
        volume: usize,
        /// Gets true when nothing of that kind goes on, false if the server stops.
        answer: Box<dyn FnOnce(bool) + Send>,
    },
    /// Hold nothing back any more.
    GoOn,
    /// Do this with a snapshot.
    Order {
        /// Its number.
        number: u32,
        /// What.
        order: SnapshotWork,
        /// Gets the end.
        answer: Ordered,
    },
    /// Tell which snapshots there are, and which clones.
    Tell(Box<dyn FnOnce(Vec<SnapshotStatus>) + Send>),
}

/// See [`SnapshotOrder`].
pub enum SnapshotWork {
    /// Make room for its shadow.
    Prepare(Vec<ShadowStretch>),
    /// Take it now; this is called at once when that is done, and the end comes when it is durable.
    Cut(Box<dyn FnOnce() + Send>),
    /// These blocks are a clone from now on.
    Clone(Vec<ShadowStretch>),
    /// Give it up.
    Drop,
}

/// What is under way of snapshots.
#[derive(Default)]
pub struct Snapshots {
    ordered: Vec<(u32, SnapshotStep, Ordered)>,
    holding: Option<Holding>,
    held: VecDeque<Held>,
}

/// Of which volume changes are held back, and who waits for the end of those that go on.
struct Holding {
    volume: usize,
    waits: Option<Box<dyn FnOnce(bool) + Send>>,
}

/// A request that is held back.
struct Held {
    connection: u32,
    asked: Asked,
    data: Option<Data>,
}

impl Snapshots {
    /// True if this is held back.
    pub fn holds(&self, request: &Request) -> bool {
        self.holding.as_ref().is_some_and(|holding| holding.volume == request.volume)
            && changes(request.kind)
    }
}

fn changes(kind: Kind) -> bool {
    matches!(kind, Kind::Write { .. } | Kind::Zeroes { .. } | Kind::Trim { .. })
}

impl Shard {
    /// Does what the thread of the volumes asks.
    pub(super) fn heed(&mut self, now: Instant, ask: SnapshotAsk) {
        match ask {
            SnapshotAsk::Hold { volume, answer } => {
                let waits = Some(answer);
                self.changes.snapshots.holding = Some(Holding { volume, waits });
            }
            SnapshotAsk::GoOn => self.go_on_held(),
            SnapshotAsk::Order { number, order, answer } => self.order(now, number, order, answer),
            SnapshotAsk::Tell(answer) => {
                let ftl = self.engine.core.ftl();
                let mut all = ftl.map(ftl::Ftl::snapshots).unwrap_or_default();
                let clones = ftl.map(ftl::Ftl::clones).unwrap_or_default();
                all.extend(clones.into_iter().map(|(number, stretches)| SnapshotStatus {
                    number,
                    stretches,
                    taken: true,
                    blocks_held: 0,
                }));
                answer(all);
            }
        }
    }

    fn order(&mut self, now: Instant, number: u32, order: SnapshotWork, answer: Ordered) {
        if self.life != Life::Serving || self.engine.medium.fenced() {
            return answer(Err(SnapshotError::Failed));
        }
        let given = match &order {
            SnapshotWork::Prepare(stretches) => SnapshotOrder::Prepare(stretches),
            SnapshotWork::Cut(_) => SnapshotOrder::Cut,
            SnapshotWork::Clone(stretches) => SnapshotOrder::Clone(stretches),
            SnapshotWork::Drop => SnapshotOrder::Drop,
        };
        self.changes.snapshots.ordered.push((number, given.step(), answer));
        self.engine.core.handle(now, Input::Snapshot { number, order: given });
        if let SnapshotWork::Cut(cut) = order {
            cut();
        }
    }

    /// An order has ended.
    pub(super) fn ordered(
        &mut self,
        (number, step): (u32, SnapshotStep),
        result: Result<(), SnapshotError>,
    ) {
        let ordered = &mut self.changes.snapshots.ordered;
        let at = ordered.iter().position(|(of, kind, _)| (*of, *kind) == (number, step));
        if let Some(at) = at {
            let (_, _, answer) = ordered.remove(at);
            let fenced = self.engine.medium.fenced();
            answer(if fenced { Err(SnapshotError::Failed) } else { result });
        }
    }

    /// Lets a request on; or holds it back, or lets it wait for the limits of its volume: then `None`.
    pub(super) fn pass(
        &mut self,
        connection: u32,
        asked: Asked,
        data: Option<Data>,
    ) -> Option<(Asked, Option<Data>)> {
        let (asked, data) = self.admit(connection, asked, data)?;
        if !self.changes.snapshots.holds(&asked.request) {
            return Some((asked, data));
        }
        self.connections[connection].requests += 1;
        self.changes.snapshots.held.push_back(Held { connection, asked, data });
        None
    }

    /// Tells who waits for it that nothing goes on which changes the volume; nothing is held back of a server that stops.
    pub(super) fn look_at_held(&mut self) {
        if self.life != Life::Serving {
            return self.go_on_held();
        }
        let Some(Holding { volume, waits }) = &mut self.changes.snapshots.holding else { return };
        let volume = *volume;
        let goes_on = self.requests.iter().any(|(_, pending)| {
            let request = pending.request();
            request.volume == volume && changes(request.kind)
        });
        if !goes_on && let Some(answer) = waits.take() {
            answer(true);
        }
    }

    fn go_on_held(&mut self) {
        if let Some(Holding { waits: Some(answer), .. }) = self.changes.snapshots.holding.take() {
            answer(false);
        }
        for Held { connection, asked, data } in std::mem::take(&mut self.changes.snapshots.held) {
            let client = &mut self.connections[connection];
            client.requests -= 1;
            if client.ending == Ending::Gone {
                client.front.finish(asked.ticket);
                data.into_iter().for_each(|data| self.pool.put(data, self.engine.frames()));
                self.mark_dirty(connection);
            } else {
                self.dispatch(connection, asked, data);
            }
        }
    }
}
