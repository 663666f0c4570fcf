//! One client's socket: receive buffer, the payload it is sending, replies, TLS. A guest has no socket: it kicks, and
//! what it wants lies in its memory.
//!
//! Invariant: while a receive is under way, the input buffer and the payload's buffer stay where
//! they are.

use super::entrance::Place;
use super::outbox::Outbox;
use super::requests::Asked;
use crate::front::{Event, Front, Payload, Received, Ticket, vhost};
use crate::runtime::buffer::Buffer;
use crate::runtime::crypt::Crypt;
use crate::runtime::data::{self, Data};
use crate::runtime::frames::fetch;
use crate::runtime::gather::IOVECS_MAX;
use crate::runtime::ring::Ring;
use flash::Instant;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes that one receive may take beyond a payload.
const INPUT_BYTES: usize = 256 << 10;

/// From this many missing bytes on, a payload is received where it is to go.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// Data that a client's reads may have under way before the engine has its turn and the replies go
/// out: a part of a core's own cache.
const BATCH_BYTES: usize = 256 << 10;

/// A write whose payload is arriving.
pub struct Incoming {
    /// The request.
    pub asked: Asked,
    /// Where the payload goes.
    pub data: Data,
    /// Where in it the payload that arrives begins.
    pub from: usize,
    /// Where in it its next byte goes.
    pub at: usize,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ending {
    /// Not in sight.
    No,
    /// Reads no more; what is in flight is finished and sent.
    Finishing,
    /// The client is gone: what is in flight is finished and dropped.
    Gone,
}

/// One client.
pub struct Connection {
    /// The protocol.
    pub front: Box<dyn Front>,
    /// Replies.
    pub outbox: Outbox,
    /// A write whose payload is arriving.
    pub incoming: Option<Incoming>,
    /// Writes whose data the client was asked for.
    pub parked: BTreeMap<Ticket, Incoming>,
    /// A request that waits for a buffer.
    pub held: Option<Asked>,
    /// Bytes of reads begun since the engine last had its turn.
    pub begun: usize,
    /// On the shard's list of connections with more requests for the engine's next turn.
    pub postponed: bool,
    /// Requests in the shard's table.
    pub requests: u32,
    /// Is the connection ending?
    pub ending: Ending,
    /// A receive is under way.
    pub receiving: bool,
    /// On the shard's list of connections with something to send.
    pub dirty: bool,
    /// How long a client that leaves may take for the next bytes of its last replies.
    leaving_ns: u64,
    /// When the client last took something of what is sent, or could begin to.
    taken_at: Instant,
    ear: Ear,
    /// Among all clients. It is free only once the socket is closed: declared, and so dropped, after it.
    pub place: Place,
    input: Buffer,
    /// What of `input` is received and not yet dealt with.
    start: usize,
    end: usize,
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
    /// Payload bytes that the receive under way may take.
    direct: usize,
    /// The last request brought much payload, and so may the next: receive no more than its header
    /// beside the missing payload, so that the rest need not be copied from the input.
    bulk: bool,
    tls: Option<Tls>,
}

/// How a client is heard.
pub enum Ear {
    /// By what comes over a socket.
    Socket(Arc<OwnedFd>),
    /// By its kicks.
    Kick(vhost::Event),
}

struct Tls {
    crypt: Crypt,
    started: bool,
    /// The outbox holds the plain consent to start TLS, and nothing else.
    consent_due: bool,
}

impl Connection {
    /// A new client, whose greeting is in `outbox`.
    pub fn new(
        ear: Ear,
        place: Place,
        front: Box<dyn Front>,
        outbox: Outbox,
        leaving_ns: u64,
    ) -> Self {
        // A guest is heard by nothing that would need room.
        let input_blocks = match ear {
            Ear::Socket(_) => (INPUT_BYTES / flash::BLOCK_BYTES) as u32,
            Ear::Kick(_) => 1,
        };
        Self {
            front,
            outbox,
            incoming: None,
            parked: BTreeMap::new(),
            held: None,
            begun: 0,
            postponed: false,
            requests: 0,
            ending: Ending::No,
            receiving: false,
            dirty: false,
            leaving_ns,
            taken_at: Instant(0),
            ear,
            place,
            input: Buffer::new(input_blocks),
            start: 0,
            end: 0,
            iovecs: Vec::new(),
            // SAFETY: a message header of zeroes is one without content.
            message: unsafe { std::mem::zeroed() },
            direct: 0,
            bulk: false,
            tls: None,
        }
    }

    /// From now on the stream is encrypted.
    pub fn start_tls(&mut self, crypt: Crypt) {
        self.tls = Some(Tls { crypt, started: false, consent_due: true });
    }

    /// Queues a receive: the missing payload straight to its buffer, the rest to the input.
    pub fn receive(&mut self, index: u32, ring: &mut Ring) {
        assert!(!self.receiving, "one receive at a time");
        let socket = match &self.ear {
            Ear::Socket(socket) => socket.as_raw_fd(),
            Ear::Kick(kick) => {
                self.receiving = true;
                return ring.await_readable(index, kick.as_raw_fd());
            }
        };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == INPUT_BYTES {
            self.input.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.iovecs.clear();
        self.direct = self.list_missing();
        let room = &self.input.bytes()[self.end..];
        let room = match self.bulk {
            true => &room[..room.len().min(self.front.header_bytes())],
            false => room,
        };
        self.iovecs
            .push(libc::iovec { iov_base: room.as_ptr().cast_mut().cast(), iov_len: room.len() });
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len() as _;
        self.receiving = true;
        ring.receive(index, socket, &raw mut self.message);
    }

    /// Lists where the missing payload goes, as far as one receive may take it there.
    fn list_missing(&mut self) -> usize {
        let missing = self.front.payload_left() as usize;
        let Some(incoming) = &self.incoming else { return 0 };
        if self.tls.is_some() || missing < DIRECT_BYTES_MIN {
            return 0;
        }
        self.bulk = true;
        let mut listed = 0;
        for slice in incoming.data.slices(incoming.at, missing) {
            if self.iovecs.len() + 1 == IOVECS_MAX {
                break;
            }
            fetch(slice);
            data::push_iovec(&mut self.iovecs, slice);
            listed += slice.len();
        }
        listed
    }

    /// A receive brought `bytes`. `Err`: the client is no longer to be trusted.
    pub fn received(&mut self, bytes: usize) -> Result<(), rustls::Error> {
        if let Ear::Kick(kick) = &self.ear {
            kick.clear();
            return Ok(());
        }
        let direct = bytes.min(self.direct);
        if let (Some(incoming), true) = (&mut self.incoming, direct > 0) {
            incoming.at += direct;
            self.front.payload_received(direct);
        }
        self.end += bytes - direct;
        self.decrypt()
    }

    /// Takes encrypted input as far as it goes.
    fn decrypt(&mut self) -> Result<(), rustls::Error> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let taken = tls.crypt.take(&self.input.bytes()[self.start..self.end]);
        self.start = self.end;
        taken?;
        if !tls.started && !tls.crypt.is_handshaking() {
            tls.started = true;
            self.front.tls_started();
        }
        Ok(())
    }

    /// True if there are bytes of TLS to send.
    pub fn wants_send(&self) -> bool {
        let handshake = self.tls.as_ref().is_some_and(|tls| tls.crypt.wants_send());
        handshake || !self.outbox.filling.is_empty()
    }

    /// Received bytes not yet dealt with.
    pub fn input(&self) -> &[u8] {
        match &self.tls {
            Some(tls) => tls.crypt.plain(),
            None => &self.input.bytes()[self.start..self.end],
        }
    }

    /// True if as much data is being read, or waits to be sent, as fits the caches: more would push
    /// out what was just checked before the kernel copies it. Or the client has had its share of a turn.
    pub fn has_batch(&self) -> bool {
        self.begun + self.outbox.filling.data_bytes() >= BATCH_BYTES || self.front.is_sated()
    }

    /// Lets the protocol look at the input; `None` if there is none or it takes none now.
    pub fn next_event(&mut self, now: Instant) -> Option<Received> {
        let bytes = match &self.tls {
            Some(tls) => tls.crypt.plain(),
            None => &self.input.bytes()[self.start..self.end],
        };
        if bytes.is_empty() || !self.front.accepts_more(self.outbox.unsent_bytes()) {
            return None;
        }
        let received = self.front.receive(now, bytes, &mut self.outbox.filling.bytes);
        self.bulk = false;
        self.consume(received.consumed);
        (received.consumed > 0).then_some(received)
    }

    /// A request that had waited in the protocol; of those that come, it is the next one.
    pub fn resume(&mut self) -> Option<Event> {
        match self.front.accepts_more(self.outbox.unsent_bytes()) {
            true => self.front.resume(),
            false => None,
        }
    }

    /// Moves payload from the input to the buffer it belongs to. If it is complete, what that means.
    pub fn take_payload(&mut self) -> Option<Payload> {
        let mut incoming = self.incoming.take()?;
        let input = self.input();
        let taken = input.len().min(self.front.payload_left() as usize);
        incoming.data.fill(incoming.at, &input[..taken]);
        incoming.at += taken;
        self.incoming = Some(incoming);
        self.consume(taken);
        self.front.payload_received(taken);
        if self.front.payload_left() > 0 {
            return None;
        }
        let Incoming { data, from, at, .. } = self.incoming.as_ref()?;
        Some(self.front.payload_ended(&mut data.slices(*from, at - from)))
    }

    fn consume(&mut self, bytes: usize) {
        match &mut self.tls {
            Some(tls) => tls.crypt.consume(bytes),
            None => self.start += bytes,
        }
    }

    /// Queues a send of all that is ready, if none is under way.
    pub fn send(&mut self, now: Instant, index: u32, ring: &mut Ring) {
        let Ear::Socket(socket) = &self.ear else { return };
        if self.outbox.is_sending() || !self.wants_send() {
            return;
        }
        if let Some(tls) = &mut self.tls {
            // The consent to start TLS goes out before anything is encrypted.
            if !std::mem::take(&mut tls.consent_due) {
                let crypt = &mut tls.crypt;
                self.outbox.encrypt(|replies| crypt.seal(replies.slices()));
            }
        }
        if let Some(message) = self.outbox.begin() {
            self.taken_at = now;
            ring.send(index, socket.as_raw_fd(), message);
        }
    }

    /// A send has completed with `bytes`. False if the rest of it was queued, and it goes on.
    pub fn sent(&mut self, now: Instant, bytes: usize, index: u32, ring: &mut Ring) -> bool {
        self.taken_at = now;
        match self.outbox.sent(bytes) {
            Some(rest) => {
                if let Ear::Socket(socket) = &self.ear {
                    ring.send(index, socket.as_raw_fd(), rest);
                }
                false
            }
            None => true,
        }
    }

    /// When to call [`Connection::expire`]: when a negotiation has to end, or, of a client that leaves,
    /// when it must have taken something of its last replies.
    pub fn deadline(&self) -> Option<Instant> {
        let leaves = self.ending == Ending::Finishing && self.outbox.is_sending();
        let leaving = leaves.then(|| self.taken_at + self.leaving_ns);
        self.front.deadline().into_iter().chain(leaving).min()
    }

    /// Why the client is to be dropped, if its time is over.
    pub fn expire(&mut self, now: Instant) -> Option<&'static str> {
        if let Some(reason) = self.front.expire(now) {
            return Some(reason);
        }
        let over = self.deadline().is_some_and(|deadline| now >= deadline);
        over.then_some("it left, and does not take its last replies")
    }

    /// Ends the conversation: what is under way on the socket completes at once, and so does a wait for a kick.
    pub fn hang_up(&self) {
        match &self.ear {
            Ear::Socket(socket) => {
                // SAFETY: no memory is involved. An error means that the peer was faster.
                unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
            }
            Ear::Kick(kick) => kick.signal(),
        }
    }

    /// Nothing is in flight any more.
    pub fn is_idle(&self) -> bool {
        self.requests == 0 && !self.receiving && !self.outbox.is_sending()
    }
}
