//! Requests that wait until the limits of their volume let them in ([`crate::volume::Limiter`]).
//!
//! A request waits behind those of its volume that came to this shard before it, and holds up no other: of one
//! connection, those of other volumes go on. Reads wait without memory, writes with their data, of which a volume has a
//! bounded part here; beyond that its connections are not read on.
//!
//! Invariants:
//! - who waits counts among the requests of its connection, so that this stays until it is dealt with;
//! - nobody waits for a volume that is gone, that has no limits any more, or while the server stops.

use super::connection::Ending;
use super::requests::Asked;
use super::{Life, Shard};
use crate::runtime::data::Data;
use crate::volume::limiter;
use flash::Instant;
use std::collections::{BTreeMap, VecDeque};

/// The part of the memory for requests that those which wait for one volume may hold.
const MEMORY_SHARE: usize = 8;
/// When to look again for memory that others have.
const MEMORY_AGAIN_NS: u64 = flash::MILLISECOND;

/// A request that waits.
struct Waiting {
    connection: u32,
    asked: Asked,
    data: Option<Data>,
}

/// Of one volume.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Of data.
    bytes: usize,
    /// Connections that are not read on until there are fewer.
    held: Vec<u32>,
    /// When the first may go.
    opens_at: Instant,
}

/// All that wait here.
pub struct Limited {
    queues: BTreeMap<usize, Queue>,
    /// The clock that all shards have.
    origin: std::time::Instant,
}

impl Limited {
    /// Nobody waits yet; the clock begins where that of the other shards does.
    pub fn new(origin: std::time::Instant) -> Self {
        Self { queues: BTreeMap::new(), origin }
    }

    /// When somebody may be let in.
    pub fn deadline(&self) -> Option<Instant> {
        self.queues.values().map(|queue| queue.opens_at).min()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

impl Shard {
    /// Lets a request in, or has it wait: then `None`.
    pub(super) fn admit(
        &mut self,
        connection: u32,
        asked: Asked,
        data: Option<Data>,
    ) -> Option<(Asked, Option<Data>)> {
        let volume = asked.request.volume;
        let limiter = self.offered.get(volume).and_then(|volume| volume.limiter.as_ref());
        let Some(limiter) = limiter else { return Some((asked, data)) };
        if self.life != Life::Serving || asked.admitted || !limiter::is_limited(asked.request.kind)
        {
            return Some((asked, data));
        }
        let now_ns = self.limited.now_ns();
        let opens_at = match self.limited.queues.get(&volume) {
            Some(queue) => queue.opens_at,
            None => match limiter.admit(now_ns, &asked.request) {
                Ok(()) => return Some((Asked { admitted: true, ..asked }, data)),
                Err(at_ns) => self.now + (at_ns - now_ns),
            },
        };
        let queue = self.limited.queues.entry(volume).or_default();
        queue.opens_at = opens_at;
        queue.bytes += data.as_ref().map_or(0, Data::bytes);
        let asked = Asked { admitted: true, waits_since: self.now, ..asked };
        queue.waiting.push_back(Waiting { connection, asked, data });
        self.connections[connection].requests += 1;
        None
    }

    /// True if the data of a write must not be taken now: those that wait for its volume hold as much as they may.
    /// The connection goes on when they do not.
    pub(super) fn must_hold(&mut self, connection: u32, asked: &Asked) -> bool {
        let bytes_max = self.shared.buffer_bytes_max / MEMORY_SHARE;
        let Some(queue) = self.limited.queues.get_mut(&asked.request.volume) else { return false };
        let holds = queue.bytes >= bytes_max && !asked.admitted;
        if holds && !queue.held.contains(&connection) {
            queue.held.push(connection);
        }
        holds
    }

    /// Lets in those whose time has come, and those that wait for nothing any more.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        if self.limited.queues.is_empty() {
            return;
        }
        self.now = self.now.max(now);
        let volumes: Vec<usize> = self.limited.queues.keys().copied().collect();
        for volume in volumes {
            while let Some(waiting) = self.next_admitted(volume) {
                let Waiting { connection, mut asked, data } = waiting;
                self.connections[connection].requests -= 1;
                asked.limited_ns = self.now - asked.waits_since;
                if self.connections[connection].ending == Ending::Gone {
                    self.connections[connection].front.finish(asked.ticket);
                    data.into_iter().for_each(|data| self.pool.put(data, self.engine.frames()));
                    self.mark_dirty(connection);
                } else {
                    self.dispatch(connection, asked, data);
                }
            }
            self.end_queue(now, volume);
        }
    }

    /// The next of a volume that need not wait any more, with its memory.
    fn next_admitted(&mut self, volume: usize) -> Option<Waiting> {
        let now_ns = self.limited.now_ns();
        let first = self.limited.queues.get(&volume)?.waiting.front()?;
        let (asked, has_data) = (first.asked, first.data.is_some());
        let gone = self.connections[first.connection].ending == Ending::Gone;
        let mut data = None;
        if !gone && !has_data && asked.request.buffer_blocks() > 0 {
            data = self.take_data(asked.request.buffer_blocks(), false, asked.request.kind);
            if data.is_none() && self.life == Life::Serving {
                // Others hold it, and wait for nobody.
                self.limited.queues.get_mut(&volume)?.opens_at = self.now + MEMORY_AGAIN_NS;
                return None;
            }
            if data.is_none() {
                data = self.take_data(asked.request.buffer_blocks(), true, asked.request.kind);
            }
        }
        let limiter = self.offered.get(volume).and_then(|volume| volume.limiter.as_ref());
        let opens_at_ns = match limiter {
            Some(limiter) if self.life == Life::Serving && !gone => {
                limiter.admit(now_ns, &asked.request).err()
            }
            _ => None,
        };
        let queue = self.limited.queues.get_mut(&volume)?;
        if let Some(at_ns) = opens_at_ns {
            queue.opens_at = self.now + (at_ns - now_ns);
            data.into_iter().for_each(|data| self.pool.put(data, self.engine.frames()));
            return None;
        }
        let mut waiting = queue.waiting.pop_front()?;
        queue.bytes -= waiting.data.as_ref().map_or(0, Data::bytes);
        waiting.data = waiting.data.or(data);
        Some(waiting)
    }

    /// Reads on where that was held up; a queue in which nobody waits goes.
    fn end_queue(&mut self, now: Instant, volume: usize) {
        let Some(queue) = self.limited.queues.get_mut(&volume) else { return };
        let bytes_max = self.shared.buffer_bytes_max / MEMORY_SHARE;
        let open = self.life == Life::Serving;
        let held = match queue.bytes < bytes_max {
            true => std::mem::take(&mut queue.held),
            false => Vec::new(),
        };
        if queue.waiting.is_empty() {
            self.limited.queues.remove(&volume);
        }
        for connection in held.into_iter().filter(|_| open) {
            if self.connections.get(connection).is_some() {
                self.proceed(now, connection);
            }
        }
    }
}
