//! Volumes as disks of guests: the device of virtio-blk, by the protocol vhost-user. A hypervisor shares its guest's
//! memory with us, where the rings are, and the guest's requests go from there to the shards and back without it.
//!
//! - [`session`]: what a hypervisor says over its socket, message by message, and what comes of it.
//! - [`VhostQueue`]: one ring, as a [`Front`] of a shard.
//! - `ring`, `request`, `disk`: virtio's ring, its block requests, and what is told of a disk; `memory`, `mapping`: the
//!   guest's memory, which may go away at any time; `inflight`: what outlives a server that is killed.
//!
//! Invariants:
//! - What a guest writes is copied before it is looked at, and looked at once. Data is copied, too: what is programmed is
//!   what its checksum is of, although the guest may change its memory meanwhile.
//! - A request that reaches the driver lies within its volume. What a guest asks against the rules ends with an error
//!   of that request; a ring that contradicts itself is not looked at any more; both harm nobody else.
//! - No chain is put back twice, and each is before the ring ends.

mod channel;
mod disk;
mod event;
pub mod hostile;
mod inflight;
mod mapping;
mod memory;
mod message;
mod request;
mod ring;
pub mod session;

pub use channel::{Came, Channel, Lost, send};
pub use disk::Disk;
pub use event::Event;
pub use message::Message;

use super::{Event as Happening, Front, Received, Ticket};
use crate::exports::Offered;
use crate::volume::{self, Answer, Kind};
use flash::{BLOCK_BYTES, Instant, Slab};
use inflight::Track;
use request::{Cursor, HEAD_BYTES, Piece, Refusal, Status, Task};
use ring::{Broken, Ring};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Lists of pieces that are kept for the next requests.
const SPARE_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Life {
    Serving,
    /// Takes nothing more: the server stops. What is in flight goes on.
    Resting,
    /// It contradicts itself: nothing is taken any more.
    Broken,
    /// The session wants it to end.
    Ending,
}

/// A request in flight.
struct Flight {
    head: u16,
    pieces: Vec<Piece>,
    /// Where its data goes on.
    data: Cursor,
    status_at: u64,
    /// It reads so many bytes; others none.
    reads: Option<u32>,
}

/// How the guest and its hypervisor are told.
#[derive(Clone)]
pub struct Ways {
    /// That requests are answered.
    pub call: Arc<Event>,
    /// That a ring is broken.
    pub broken: Arc<Event>,
}

/// How a session ends a ring that a shard has.
pub struct Reins {
    /// It is to end. Who sets it kicks the ring.
    pub stop: Arc<AtomicBool>,
    /// Gets the entry where it would have gone on, once nothing is in flight any more.
    pub ended: Sender<u16>,
}

/// See the head of this file.
pub struct VhostQueue {
    disk: Disk,
    number: u16,
    ring: Ring,
    track: Option<Track>,
    /// Chains that a server before this one had not finished.
    again: VecDeque<u16>,
    ways: Ways,
    reins: Reins,
    flights: Slab<Flight>,
    spare: Vec<Vec<Piece>>,
    life: Life,
    /// Chains taken since answers were delivered: a guest whose answers are new requests must not go on for ever.
    taken: u16,
    /// The log tells that a request was refused.
    refusal_told: bool,
}

impl VhostQueue {
    /// A ring, with what it has to do again.
    pub fn new(
        disk: Disk,
        (number, ring): (u16, Ring),
        (track, again): (Option<Track>, Vec<u16>),
        ways: Ways,
        reins: Reins,
    ) -> Self {
        // A server before this one may have put chains back of which the guest has not heard.
        ways.call.signal();
        Self {
            disk,
            number,
            ring,
            track,
            again: again.into(),
            ways,
            reins,
            flights: Slab::default(),
            spare: Vec::new(),
            life: Life::Serving,
            taken: 0,
            refusal_told: false,
        }
    }

    /// Which of its guest's rings it is.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The head of the next chain, which is noted to be in flight.
    fn next(&mut self) -> Result<Option<u16>, Broken> {
        if self.track.as_ref().is_some_and(Track::is_spoilt) {
            return Err(Broken::Spoilt);
        }
        // These are noted since before.
        if let Some(head) = self.again.pop_front() {
            return Ok(Some(head));
        }
        let head = self.ring.take()?;
        if let (Some(head), Some(track)) = (head, &mut self.track) {
            track.taken(head);
        }
        Ok(head)
    }

    /// Looks at a chain. What it asks of the volume is for the driver; all else is answered here.
    fn begin(&mut self, head: u16) -> Happening {
        self.taken = self.taken.saturating_add(1);
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.clear();
        if let Err(bad) = self.ring.chain(head, &mut pieces) {
            self.tell_refusal(&bad);
            // There is no place that could be trusted with a status.
            self.put(head, 0);
            self.spare.push(pieces);
            return Happening::Refused(Some(self.disk.volume));
        }
        let asked = request::parse(self.ring.memory(), &pieces, &self.disk);
        let status_at = asked.status_at.unwrap_or_default();
        let (data, reads) = match asked.task {
            Ok(Task::Volume(Kind::Read, _, len)) => (Cursor::at(&pieces, true, 0), Some(len)),
            _ => (Cursor::at(&pieces, false, HEAD_BYTES), None),
        };
        let mut flight = Flight { head, pieces, data, status_at, reads };
        match asked.task {
            Ok(Task::Volume(kind, offset, len)) => {
                let volume = self.disk.volume;
                let ticket = Ticket(self.flights.insert(flight));
                let request = volume::Request { volume, kind, offset, len };
                Happening::Request(ticket, request)
            }
            Ok(Task::Name) => {
                let name = self.disk.short_name();
                flight.data = Cursor::at(&flight.pieces, true, 0);
                flight.data.write(self.ring.memory(), &flight.pieces, &name);
                self.end(head, Some(status_at), Status::Ok, name.len() as u32);
                self.keep(flight.pieces);
                Happening::Answered
            }
            Err(Refusal { status, why }) => {
                self.tell_refusal(&why);
                self.end(head, asked.status_at, status, 0);
                self.keep(flight.pieces);
                Happening::Refused(Some(self.disk.volume))
            }
        }
    }

    /// Puts a chain back, with its status and behind so many bytes of data.
    fn end(&mut self, head: u16, status_at: Option<u64>, status: Status, data: u32) {
        let written = match status_at {
            Some(at) => data + u32::from(self.ring.memory().write(at, &[status as u8])),
            None => 0,
        };
        self.put(head, written);
    }

    fn put(&mut self, head: u16, written: u32) {
        if let Some(track) = &mut self.track {
            track.putting(head);
        }
        self.ring.put(head, written);
        if let Some(track) = &mut self.track {
            track.put(head, self.ring.used_next());
        }
    }

    /// A request in flight is answered.
    fn complete(&mut self, ticket: Ticket, status: Status, data: u32) {
        let Flight { head, status_at, .. } = self.flights[ticket.0];
        self.end(head, Some(status_at), status, data);
    }

    fn keep(&mut self, pieces: Vec<Piece>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(pieces);
        }
    }

    fn break_off(&mut self, why: Broken) {
        self.life = Life::Broken;
        self.ways.broken.signal();
        let (volume, queue) = (&self.disk.name, self.number);
        tracing::warn!(%volume, queue, "a guest's ring is broken, and is looked at no more: {why}");
    }

    /// Once for each ring: a guest could fill the log. The others are counted.
    fn tell_refusal(&mut self, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.refusal_told, true) {
            let (volume, queue) = (&self.disk.name, self.number);
            tracing::info!(%volume, queue, "a request of a guest was refused, as are others like it: {why}");
        }
    }
}

impl Front for VhostQueue {
    /// It has no stream.
    fn receive(&mut self, _now: Instant, _bytes: &[u8], _out: &mut Vec<u8>) -> Received {
        Received { consumed: 0, event: None }
    }

    /// As many as the ring holds.
    fn accepts_more(&self, _unsent: usize) -> bool {
        true
    }

    fn payload_left(&self) -> u32 {
        0
    }

    fn payload_received(&mut self, _bytes: usize) {}

    fn resume(&mut self) -> Option<Happening> {
        if self.life != Life::Ending && self.reins.stop.load(Ordering::Acquire) {
            self.life = Life::Ending;
            return Some(Happening::Close);
        }
        while self.life == Life::Serving {
            match self.next() {
                Ok(Some(head)) => return Some(self.begin(head)),
                Ok(None) if self.ring.sleep() => return None,
                Ok(None) => {}
                Err(broken) => self.break_off(broken),
            }
        }
        None
    }

    fn is_sated(&self) -> bool {
        self.taken >= self.ring.entries()
    }

    fn has_data(&self) -> bool {
        true
    }

    fn bring(&mut self, ticket: Ticket, into: &mut [u8]) -> bool {
        let memory = self.ring.memory();
        let Flight { data, pieces, .. } = &mut self.flights[ticket.0];
        // What was taken away reads as zeroes, which the guest has never written.
        data.read(memory, pieces, into) && !memory.is_spoilt()
    }

    fn header_bytes(&self) -> usize {
        0
    }

    fn tls_started(&mut self) {}

    fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn expire(&mut self, _now: Instant) -> Option<&'static str> {
        None
    }

    fn shut_down(&mut self) {
        if self.life == Life::Serving {
            self.life = Life::Resting;
        }
    }

    /// Of a volume that is gone every request fails, until the session has ended it.
    fn offered(&mut self, offered: &Offered, _out: &mut Vec<u8>) -> bool {
        if let Some(volume) = offered.get(self.disk.volume) {
            self.disk.bytes = volume.blocks * BLOCK_BYTES as u64;
        }
        true
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer<'_>, _out: &mut Vec<u8>) -> bool {
        match answer {
            Answer::Done if self.flights[ticket.0].reads.is_some() => return true,
            // Virtio asks for neither places, extents nor zones.
            Answer::Done | Answer::Placed(_) | Answer::Extents(_) | Answer::Zones(..) => {
                self.complete(ticket, Status::Ok, 0);
            }
            Answer::Failed(_) => self.complete(ticket, Status::Failed, 0),
        }
        false
    }

    fn after_data(
        &mut self,
        ticket: Ticket,
        data: &mut dyn Iterator<Item = &[u8]>,
        _out: &mut Vec<u8>,
    ) {
        let memory = self.ring.memory();
        let Flight { data: cursor, pieces, reads, .. } = &mut self.flights[ticket.0];
        let len = reads.unwrap_or_default();
        for slice in data {
            cursor.write(memory, pieces, slice);
        }
        self.complete(ticket, Status::Ok, len);
    }

    /// Answers are where the guest looks: it is told of them once.
    fn deliver(&mut self) -> bool {
        self.taken = 0;
        if self.ring.must_tell() {
            self.ways.call.signal();
        }
        true
    }

    fn finish(&mut self, ticket: Ticket) {
        let flight = self.flights.remove(ticket.0);
        self.keep(flight.pieces);
    }
}

impl Drop for VhostQueue {
    fn drop(&mut self) {
        // Nobody may wait any more.
        self.reins.ended.send(self.ring.next()).ok();
    }
}

#[cfg(test)]
mod tests;
