//! The ways in: protocols that ask something of volumes. A shard knows none of them; what it needs of a
//! client's protocol is [`Front`].
//!
//! - [`nbd`]: the NBD protocol, as a state machine that knows nothing of shards either.
//! - `client`: an NBD client as a [`Front`].
//! - [`nvme`]: a queue of NVMe over TCP, a [`Front`] itself.
//! - [`vhost`]: a ring in the memory of a guest, a [`Front`] itself; and the sessions of their hypervisors.
//!
//! Blocks by ID come over HTTP (`crate::control`) and by the shard's own desk, as they are no ranges of a volume.

mod client;
pub mod nbd;
pub mod nvme;
pub mod vhost;

pub use client::NbdClient;
pub use nvme::NvmeClient;

use crate::exports::Offered;
use crate::volume::{Answer, Request};
use flash::Instant;

/// Names a request of a client from its event until its reply was sent.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket(pub u32);

/// What the driver has to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Bring TLS up, then call [`Front::tls_started`].
    StartTls,
    /// The client has chosen its volume: it may stay.
    Opened,
    /// Do this, then call [`Front::answer`]. It is within its volume. The data of a write follows in the
    /// stream (see [`Front::payload_left`]), or comes later, where [`Front::asks_for_data`] says so.
    Request(Ticket, Request),
    /// What comes next is more data of a request that waits for it.
    Data(Ticket),
    /// All data of such a request has come, and was found to be sound.
    Whole(Ticket),
    /// All of it has come, and not as it was sent: answer by [`crate::volume::Failure::Spoilt`].
    Spoilt(Ticket),
    /// A request was answered by the protocol alone, as it should be.
    Answered,
    /// A request for this volume, if it named one that there is, was answered with an error by the protocol alone:
    /// count it.
    Refused(Option<usize>),
    /// Read no more, finish what is in flight, send what is to be sent, close.
    Close,
}

/// The outcome of [`Front::receive`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Received {
    /// How many of the offered bytes are dealt with.
    pub consumed: usize,
    /// What to do about it.
    pub event: Option<Event>,
}

/// What the end of a payload means for its request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Payload {
    /// That was all of its data.
    Whole,
    /// An event will tell what becomes of it.
    More,
    /// That was all, and it is not as it was sent.
    Spoilt,
}

/// How a client takes it that its requests wait for the limits of their volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Patience {
    /// It waits as long as that takes.
    Endless,
    /// It gives up, and takes that for a fault of more than the request; but may be told to come again.
    Returns {
        /// It does so at once, and not after the time that it is told.
        at_once: bool,
    },
}

/// A client's protocol: a state machine without socket, thread or clock. It puts what is to be sent into the
/// `out` that it is given; data of reads does not pass through it.
///
/// Each ticket is answered once, then finished once. What a client sends never makes it panic.
pub trait Front: Send {
    /// Consumes a prefix of `bytes` with at most one message; nothing while it accepts no more. Not while
    /// payload is due.
    fn receive(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received;

    /// There is room for another request, and for its reply behind `unsent` bytes.
    fn accepts_more(&self, unsent: usize) -> bool;

    /// Bytes of the stream that are the data of the write handed out last.
    fn payload_left(&self) -> u32;

    /// The driver took so many of them.
    fn payload_received(&mut self, bytes: usize);

    /// A request that had waited in the protocol for room, if there is room now; or one that lies where the protocol
    /// finds it by itself.
    fn resume(&mut self) -> Option<Event> {
        None
    }

    /// There is memory for the data of this write, of which none is in the stream now. True if the client is asked
    /// for it, which is put into `out`.
    fn asks_for_data(&mut self, _ticket: Ticket, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The data of this write comes only once it is asked for ([`Front::asks_for_data`]).
    fn keeps_data(&self, _ticket: Ticket) -> bool {
        false
    }

    /// How long requests may be kept waiting.
    fn patience(&self) -> Patience {
        Patience::Endless
    }

    /// When a client comes again that is told to, where its place is so far away and it was told so often before; `None`
    /// if it does not.
    fn comes_back_ns(&self, _wait_ns: u64, _before: u32) -> Option<u64> {
        None
    }

    /// This is a further part of what a client asked for as one, so that it does not count once more.
    fn is_part(&self, _ticket: Ticket) -> bool {
        false
    }

    /// A request waits, without memory, until the limits of its volume let it in; or waits no more.
    fn waits(&mut self, _ticket: Ticket, _waits: bool) {}

    /// The data of a write is there with its request, and comes by [`Front::bring`] instead of the stream.
    fn has_data(&self) -> bool {
        false
    }

    /// Fills this with the next bytes of a write's data. False if they are lost, and the write with them.
    fn bring(&mut self, _ticket: Ticket, _into: &mut [u8]) -> bool {
        false
    }

    /// It was dealt with so much of it, since [`Front::deliver`] was called, that others come first.
    fn is_sated(&self) -> bool {
        false
    }

    /// The client was asked for data, so that the stream must be taken as it comes: whatever it brings has memory.
    fn awaits_data(&self) -> bool {
        false
    }

    /// The driver has taken all of a payload, which is this.
    fn payload_ended(&mut self, _payload: &mut dyn Iterator<Item = &[u8]>) -> Payload {
        Payload::Whole
    }

    /// Bytes of a request before its payload.
    fn header_bytes(&self) -> usize;

    /// From now on the bytes are decrypted ones.
    fn tls_started(&mut self);

    /// Its handshake is finished, so that it counts as a client.
    fn has_come_in(&self) -> bool {
        true
    }

    /// Requests not finished.
    fn in_flight(&self) -> u32;

    /// When to call [`Front::expire`].
    fn deadline(&self) -> Option<Instant>;

    /// Why the client is to be dropped, if its time is over.
    fn expire(&mut self, now: Instant) -> Option<&'static str>;

    /// The server stops: what comes from now on is refused, what is in flight goes on.
    fn shut_down(&mut self);

    /// Other volumes are offered from now on. False if the client has no reason to stay: what is in flight is finished.
    fn offered(&mut self, offered: &Offered, out: &mut Vec<u8>) -> bool;

    /// Puts the reply into `out`. True if the data of the read, as much as it asked for, follows it.
    fn answer(&mut self, ticket: Ticket, answer: Answer<'_>, out: &mut Vec<u8>) -> bool;

    /// The data of a read was put behind its reply: puts into `out` what follows it.
    fn after_data(
        &mut self,
        _ticket: Ticket,
        _data: &mut dyn Iterator<Item = &[u8]>,
        _out: &mut Vec<u8>,
    ) {
    }

    /// True if replies, and data of reads, were put where the client finds them, so that nothing is to be sent. It is
    /// told of those since the last call.
    fn deliver(&mut self) -> bool {
        false
    }

    /// The reply was sent and its memory is free, or nobody will take it any more.
    fn finish(&mut self, ticket: Ticket);
}
