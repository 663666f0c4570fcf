//! An NBD client as a [`Front`].

use super::nbd::{self, Kind, constants::REQUEST_HEADER_BYTES};
use super::{Event, Front, Received, Ticket};
use crate::exports::Offered;
use crate::volume::{self, Answer, Failure};
use flash::{Instant, Slab};
use std::sync::Arc;

/// See the head of this file.
pub struct NbdClient {
    protocol: nbd::Connection,
    exports: Arc<[nbd::Export]>,
    /// By ticket.
    requests: Slab<nbd::Request>,
}

impl NbdClient {
    /// A client has connected. The greeting goes to `out`.
    pub fn new(
        now: Instant,
        exports: Arc<[nbd::Export]>,
        tls: nbd::TlsMode,
        limits: nbd::Limits,
        out: &mut Vec<u8>,
    ) -> Self {
        let protocol = nbd::Connection::new(now, Arc::clone(&exports), tls, limits, out);
        Self { protocol, exports, requests: Slab::default() }
    }
}

impl Front for NbdClient {
    fn receive(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received {
        let nbd::Received { consumed, event } = self.protocol.receive(now, bytes, out);
        let event = event.map(|event| match event {
            nbd::Event::StartTls => Event::StartTls,
            nbd::Event::Opened(_) => Event::Opened,
            nbd::Event::Request(request) => {
                let asked = of_volume(self.exports[request.export()].volume, &request);
                Event::Request(Ticket(self.requests.insert(request)), asked)
            }
            nbd::Event::Refused(export) => Event::Refused(Some(self.exports[export].volume)),
            nbd::Event::Close(reason) => {
                tracing::debug!(%reason, "a connection ends");
                Event::Close
            }
        });
        Received { consumed, event }
    }

    fn accepts_more(&self, unsent: usize) -> bool {
        self.protocol.accepts_more(unsent)
    }

    fn payload_left(&self) -> u32 {
        self.protocol.payload_left()
    }

    fn payload_received(&mut self, bytes: usize) {
        self.protocol.payload_received(bytes);
    }

    fn header_bytes(&self) -> usize {
        REQUEST_HEADER_BYTES
    }

    fn tls_started(&mut self) {
        self.protocol.tls_started();
    }

    fn has_come_in(&self) -> bool {
        self.protocol.export().is_some()
    }

    fn in_flight(&self) -> u32 {
        self.protocol.in_flight().0
    }

    fn deadline(&self) -> Option<Instant> {
        self.protocol.deadline()
    }

    fn expire(&mut self, now: Instant) -> Option<&'static str> {
        self.protocol.expire(now).map(|_| "it chose no export in time")
    }

    fn shut_down(&mut self) {
        self.protocol.shut_down();
    }

    /// A client of a volume that is gone has nothing to stay for. One of a volume of another size learns of that at its
    /// next connection: the protocol cannot tell.
    fn offered(&mut self, offered: &Offered, _out: &mut Vec<u8>) -> bool {
        let chosen = self.protocol.export().map(|export| self.exports[export].volume);
        chosen.is_none_or(|volume| offered.get(volume).is_some())
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer<'_>, out: &mut Vec<u8>) -> bool {
        let request = &self.requests[ticket.0];
        match answer {
            Answer::Done if matches!(request.kind(), Kind::Read { .. }) => {
                request.reply_data(out);
                return true;
            }
            // NBD asks for no zones.
            Answer::Done | Answer::Placed(_) | Answer::Zones(..) => request.reply_done(out),
            Answer::Extents(extents) => request.reply_extents(out, extents),
            Answer::Failed(failure) => {
                request.reply_error(out, error_of(failure), &failure.to_string());
            }
        }
        false
    }

    fn finish(&mut self, ticket: Ticket) {
        self.protocol.finish(self.requests.remove(ticket.0));
    }
}

/// What of a request is about the volume. The rest, how the answer is written, is the protocol's.
fn of_volume(volume: usize, request: &nbd::Request) -> volume::Request {
    let kind = match request.kind() {
        Kind::Read { .. } => volume::Kind::Read,
        Kind::Write { fua } => volume::Kind::Write { fua, handle: None },
        Kind::Flush => volume::Kind::Flush,
        Kind::Trim { fua } => volume::Kind::Trim { fua },
        Kind::WriteZeroes { fua, no_hole, fast } => volume::Kind::Zeroes { fua, no_hole, fast },
        Kind::Cache => volume::Kind::Cache,
        Kind::BlockStatus { .. } => volume::Kind::Extents,
    };
    let (offset, len) = (request.offset(), request.len());
    volume::Request { volume, kind, offset, len }
}

fn error_of(failure: Failure) -> nbd::Error {
    match failure {
        Failure::Device(error) => error.into(),
        Failure::Slow => nbd::Error::NotSupported,
        Failure::Moved | Failure::Gone => nbd::Error::ShuttingDown,
        // Of what NBD has not.
        Failure::Differs | Failure::Spoilt | Failure::Later { .. } => nbd::Error::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::RequestError;

    /// A client that has chosen the volume, and asks for what the bytes say.
    fn asked(header: &[u8]) -> (NbdClient, Ticket, volume::Request) {
        let exports = [nbd::Export::new("disk", 1 << 20)].into();
        let (limits, mut out) = (nbd::Limits::default(), Vec::new());
        let mut client = NbdClient::new(Instant(0), exports, nbd::TlsMode::Off, limits, &mut out);
        let hello = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk";
        let bytes: Vec<u8> = hello.iter().chain(header).copied().collect();
        let mut rest = &bytes[..];
        let mut opened = false;
        loop {
            let Received { consumed, event } = client.receive(Instant(0), rest, &mut out);
            rest = &rest[consumed..];
            match event {
                Some(Event::Opened) => opened = true,
                Some(Event::Request(ticket, request)) => {
                    assert!(opened && rest.is_empty());
                    return (client, ticket, request);
                }
                Some(other) => panic!("{other:?}"),
                None => assert!(consumed > 0),
            }
        }
    }

    const READ: &[u8] = b"\x25\x60\x95\x13\0\0\0\0COOKIE01\0\0\0\0\0\0\x10\0\0\0\x20\0";

    #[test]
    fn a_read_is_answered_with_its_data_or_with_an_error_and_its_place_is_free_then() {
        let errors = [(Failure::Moved, 108), (Failure::Device(RequestError::Unreadable), 5)];
        for failure in [None].into_iter().chain(errors.map(Some)) {
            let (mut client, ticket, request) = asked(READ);
            let kind = volume::Kind::Read;
            assert_eq!(request, volume::Request { volume: 0, kind, offset: 4096, len: 8192 });
            assert_eq!(client.in_flight(), 1);
            let mut out = Vec::new();
            let answer = failure.map_or(Answer::Done, |(failure, _)| Answer::Failed(failure));
            let data_follows = client.answer(ticket, answer, &mut out);
            assert_eq!(data_follows, failure.is_none());
            let error = failure.map_or(0, |(_, number)| number);
            assert_eq!(out[4..8], u32::to_be_bytes(error));
            assert!(out.ends_with(b"COOKIE01"));
            client.finish(ticket);
            assert_eq!(client.in_flight(), 0);
        }
    }
}
