//! Tests of the NBD state machine, driven as a server would drive it: a memory disk, any split of
//! the stream into pieces, every limit watched after every call.

mod client;
mod handshake;
mod random;
mod regressions;
mod replies;
mod transmission;

use flash::Instant;

use super::constants::*;
use super::{CloseReason, Connection, Event, Export, Extent, Kind, Limits, Request, TlsMode};

/// The small exports all tests use: one to write, one not, one with 4 KiB blocks.
pub(super) fn exports() -> Vec<Export> {
    let mut data = Export::new("data", 1 << 20);
    data.description = "the first".into();
    let mut frozen = Export::new("frozen", 64 << 10);
    frozen.read_only = true;
    let mut blocks = Export::new("blocks", 1 << 20);
    blocks.block_min = 4096;
    vec![data, frozen, blocks]
}

/// What the driver saw, without the request tokens (they are given back).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    StartTls,
    Opened(usize),
    Request { cookie: u64, kind: Kind, offset: u64, len: u32 },
    Close(CloseReason),
}

/// A server with a memory disk that answers at once.
pub(super) struct Driver {
    pub(super) connection: Connection,
    pub(super) out: Vec<u8>,
    pub(super) seen: Vec<Seen>,
    /// Requests that the protocol answered with an error.
    pub(super) refused: usize,
    pub(super) disk: Vec<u8>,
    limits: Limits,
    /// Keep requests instead of answering them.
    pub(super) hold: Option<Vec<Request>>,
    /// The write whose payload is coming, and where its next byte goes.
    writing: Option<(Request, usize)>,
}

impl Driver {
    pub(super) fn new() -> Self {
        Self::with(exports(), TlsMode::Off, Limits::default())
    }

    pub(super) fn with(exports: Vec<Export>, tls: TlsMode, limits: Limits) -> Self {
        let size = exports.iter().map(|export| export.size_bytes).max().unwrap_or(0);
        let mut out = Vec::new();
        let connection = Connection::new(Instant(0), exports.into(), tls, limits, &mut out);
        assert_eq!(out.len(), GREETING_BYTES);
        out.clear();
        let disk = vec![0; size.min(1 << 20) as usize];
        let (seen, hold, writing) = (Vec::new(), None, None);
        Self { connection, out, seen, refused: 0, disk, limits, hold, writing }
    }

    /// A driver whose client has chosen `export`, with structured replies and block status if told.
    pub(super) fn opened(export: &str, structured: bool) -> Self {
        Self::opened_with(export, structured, Limits::default())
    }

    pub(super) fn opened_with(export: &str, structured: bool, limits: Limits) -> Self {
        let mut driver = Self::with(exports(), TlsMode::Off, limits);
        let mut bytes = client::client_flags(3);
        if structured {
            bytes.extend(client::option(OPT_STRUCTURED_REPLY, &[]));
            bytes.extend(client::set_context(export, &[CONTEXT_NAME]));
        }
        bytes.extend(client::go(export, &[]));
        driver.feed(&bytes);
        assert!(driver.connection.export().is_some(), "{:?}", driver.seen);
        driver.seen.clear();
        driver.out.clear();
        driver
    }

    /// Offers all of `bytes` in one piece, until nothing is consumed or the connection ends.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let consumed = self.step(rest);
            if consumed == 0 || !self.is_open() {
                return;
            }
            rest = &rest[consumed..];
        }
    }

    /// One call of `receive`, or one piece of a payload. Returns the bytes consumed.
    pub(super) fn step(&mut self, bytes: &[u8]) -> usize {
        if let Some((_, position)) = &mut self.writing {
            let part = bytes.len().min(self.connection.payload_left() as usize);
            let end = (*position + part).min(self.disk.len());
            let start = (*position).min(end);
            self.disk[start..end].copy_from_slice(&bytes[..end - start]);
            *position += part;
            self.connection.payload_received(part);
            if self.connection.payload_left() == 0
                && let Some((request, _)) = self.writing.take()
            {
                self.serve(request);
            }
            return part;
        }
        let before = self.out.len();
        let accepted = self.connection.accepts_more(before);
        let received = self.connection.receive(Instant(1), bytes, &mut self.out);
        assert!(accepted || received.consumed == 0 || !self.is_open());
        assert!(received.consumed <= bytes.len());
        self.check_bounds(before);
        match received.event {
            None => {}
            Some(Event::StartTls) => self.seen.push(Seen::StartTls),
            Some(Event::Opened(export)) => self.seen.push(Seen::Opened(export)),
            Some(Event::Refused(_)) => self.refused += 1,
            Some(Event::Close(reason)) => self.seen.push(Seen::Close(reason)),
            Some(Event::Request(request)) => {
                let (cookie, kind) = (request.cookie(), request.kind());
                let (offset, len) = (request.offset(), request.len());
                self.seen.push(Seen::Request { cookie, kind, offset, len });
                if self.connection.payload_left() > 0 {
                    assert!(matches!(kind, Kind::Write { .. }));
                    self.writing = Some((request, offset as usize));
                } else {
                    self.serve(request);
                }
            }
        }
        received.consumed
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.seen.last(), Some(Seen::Close(_)))
    }

    fn check_bounds(&self, out_before: usize) {
        let option_bytes = self.limits.option_bytes as usize;
        assert!(self.connection.held_bytes() <= option_bytes.max(REQUEST_HEADER_BYTES));
        let (requests, bytes) = self.connection.in_flight();
        assert!(requests <= self.limits.requests, "{requests} requests in flight");
        assert!(bytes <= self.limits.bytes_in_flight, "{bytes} bytes in flight");
        // One LIST of three exports is the longest answer.
        assert!(self.out.len() - out_before <= 2048, "one message, one bounded answer");
    }

    fn serve(&mut self, request: Request) {
        if let Some(held) = &mut self.hold {
            return held.push(request);
        }
        let start = (request.offset() as usize).min(self.disk.len());
        let end = (start + request.len() as usize).min(self.disk.len());
        match request.kind() {
            Kind::Read { .. } => {
                request.reply_data(&mut self.out);
                self.out.extend_from_slice(&self.disk[start..end]);
            }
            Kind::Trim { .. } | Kind::WriteZeroes { .. } => {
                self.disk[start..end].fill(0);
                request.reply_done(&mut self.out);
            }
            Kind::BlockStatus { .. } => {
                let zero = self.disk[start..end].iter().all(|&byte| byte == 0);
                let extent = Extent { len: u64::MAX, hole: zero, zero };
                request.reply_extents(&mut self.out, &[extent]);
            }
            Kind::Write { .. } | Kind::Flush | Kind::Cache => request.reply_done(&mut self.out),
        }
        self.connection.finish(request);
    }
}
