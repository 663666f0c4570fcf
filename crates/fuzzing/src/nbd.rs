//! A hostile NBD client: any bytes, split anywhere, against a driver that keeps the contract of
//! `serve::nbd`. Nothing may panic, and no limit may be passed.
//!
//! The first byte chooses the set-up, the second the sizes of the pieces; the rest is the stream.

use flash::Instant;
use serve::nbd::{Connection, Event, Export, Extent, Kind, Limits, Request, TlsMode};

/// Answers in a form that fits the request; the data itself is of no interest.
fn answer(request: &Request, variant: u8, out: &mut Vec<u8>) {
    if variant % 5 == 4 {
        let offset = request.offset().wrapping_add(u64::from(variant));
        return request.reply_error_at(out, serve::nbd::Error::Io, "fuzz", offset);
    }
    match request.kind() {
        Kind::Read { .. } => match request.reply_sparse() {
            None => request.reply_data(out),
            Some(mut reply) => {
                while reply.left() > 0 {
                    let part = reply.left().min(1 + reply.left() / 2);
                    if variant & 1 == 0 { reply.data(out, part) } else { reply.hole(out, part) }
                }
            }
        },
        Kind::BlockStatus { .. } => {
            let extent = |len: u8, hole| Extent { len: len.into(), hole, zero: hole };
            request.reply_extents(out, &[extent(variant, true), extent(3, false)]);
        }
        _ => request.reply_done(out),
    }
}

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let [setup, pieces, stream @ ..] = input else { return };
    let mut limits = Limits::default();
    if setup & 1 != 0 {
        limits.option_bytes = 48;
        limits.payload_bytes = 4096;
        limits.bytes_in_flight = 8192;
        limits.requests = 3;
        limits.unsent_bytes = 256;
    }
    let tls = if setup & 2 != 0 { TlsMode::Required } else { TlsMode::Off };
    let mut second = Export::new("b", 1 << 40);
    second.read_only = setup & 4 != 0;
    second.block_min = 512;
    let exports = vec![Export::new("a", i64::MAX as u64), second].into();
    let mut out = Vec::new();
    let mut connection = Connection::new(Instant(0), exports, tls, limits, &mut out);
    let (mut start, mut end, mut now) = (0, 0, 0);
    let mut writing: Option<Request> = None;
    let mut held: Vec<Request> = Vec::new();
    while start < stream.len() {
        end = stream.len().min(end.max(start) + 1 + usize::from(*pieces));
        now += 1000;
        if let Some(request) = writing.take() {
            let part = (end - start).min(connection.payload_left() as usize);
            connection.payload_received(part);
            start += part;
            if connection.payload_left() > 0 {
                writing = Some(request);
            } else {
                held.push(request);
            }
            continue;
        }
        let before = out.len();
        let received = connection.receive(Instant(now), &stream[start..end], &mut out);
        assert!(received.consumed <= end - start);
        assert!(connection.held_bytes() <= (limits.option_bytes as usize).max(28));
        assert!(out.len() - before <= 4096, "one message, one bounded answer");
        let (requests, bytes) = connection.in_flight();
        assert!(requests <= limits.requests && bytes <= limits.bytes_in_flight);
        if received.consumed == 0 {
            assert!(!connection.accepts_more(out.len()), "a stall without back-pressure");
            for request in held.drain(..) {
                answer(&request, *pieces, &mut out);
                connection.finish(request);
            }
            out.clear();
        }
        start += received.consumed;
        match received.event {
            None | Some(Event::Opened(_) | Event::Refused(_)) => {}
            Some(Event::StartTls) => connection.tls_started(),
            Some(Event::Close(_)) => break,
            Some(Event::Request(request)) => {
                if connection.payload_left() > 0 {
                    writing = Some(request);
                } else {
                    held.push(request);
                }
            }
        }
    }
    for request in held.drain(..).chain(writing) {
        answer(&request, setup.wrapping_add(*pieces), &mut out);
        connection.finish(request);
    }
    assert_eq!(connection.in_flight(), (0, 0), "what is finished is forgotten");
}
