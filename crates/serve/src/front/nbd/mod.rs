//! The server side of the NBD protocol: fixed newstyle negotiation, simple and structured replies,
//! block status, as a state machine without sockets, threads or clock.
//!
//! # Driving contract
//! The driver owns a socket, a buffer `out` of bytes to send, and buffers for data.
//!
//! 1. [`Connection::new`] puts the greeting into `out`. Send `out` whenever it holds something.
//! 2. Give received bytes to [`Connection::receive`]. It consumes a prefix with at most one message
//!    and returns at most one [`Event`]; offer the rest again until nothing is left or nothing was
//!    consumed. The pieces may be of any size; the connection keeps incomplete headers itself.
//! 3. [`Event::Request`]: the request is valid and counted as in flight. If it is a write, the next
//!    [`payload_left`](Connection::payload_left) bytes of the stream are its data: take them where
//!    they are to go, first from what was already received, then straight from the socket, and tell
//!    by [`payload_received`](Connection::payload_received). `receive` comes next when none is left.
//! 4. Answer with one `reply_` method of the [`Request`], in any order of requests. When the reply
//!    has been *sent* and the buffer is free, give the request back to [`Connection::finish`].
//! 5. Back-pressure: while [`accepts_more`](Connection::accepts_more) is false, `receive` consumes
//!    nothing. Stop reading the socket; go on after `finish` or after `out` was sent. The payload of
//!    a write already handed out is not concerned: keep taking it.
//! 6. [`Event::StartTls`]: send `out`, do the TLS handshake with the bytes that come after, call
//!    [`tls_started`](Connection::tls_started), then continue with decrypted bytes.
//! 7. [`Event::Opened`]: an export was chosen; open it now, not before. If that fails, hang up.
//! 8. [`Event::Close`]: read no more. Finish what is in flight, send `out`, close the socket. The
//!    same when the client hangs up; that needs no call.
//! 9. Call [`expire`](Connection::expire) when [`deadline`](Connection::deadline) has come.
//!
//! Calling `receive` while a payload is due, or finishing more than was started, is a broken
//! invariant and panics. Nothing a client sends does.
//!
//! # Choices where the protocol leaves one
//! - A length of 0 is `EINVAL` on all that has a range, as with nbdkit.
//! - Beyond the end: `ENOSPC` for write and write zeroes, `EINVAL` for the rest, as with qemu.
//! - A write longer than the maximum ends the connection; a read so long is `EINVAL`, or
//!   `EOVERFLOW` if it asks for one chunk.
//! - Block sizes are always told. The empty name is the first export.
//!
//! # Memory
//! Per connection: one incomplete message (at most `option_bytes` before, 27 bytes after an export
//! is chosen), and counters. `out` grows by one message's replies per call, and not at all once it
//! holds `unsent_bytes`.
//!
//! ```
//! use flash::Instant;
//! use serve::nbd::{Connection, Event, Export, Kind, Limits, TlsMode};
//!
//! let exports = [Export::new("disk", 1 << 20)].into();
//! let mut out = Vec::new(); // to the client
//! let mut connection =
//!     Connection::new(Instant(0), exports, TlsMode::Off, Limits::default(), &mut out);
//! assert_eq!(&out[..16], b"NBDMAGICIHAVEOPT");
//!
//! // From the client: flags, EXPORT_NAME "disk", a write of "hello" at offset 7, a disconnect.
//! let mut bytes = Vec::new();
//! bytes.extend(3u32.to_be_bytes());
//! bytes.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
//! bytes.extend(b"\x25\x60\x95\x13\0\0\0\x01COOKIE01\0\0\0\0\0\0\0\x07\0\0\0\x05hello");
//! bytes.extend(b"\x25\x60\x95\x13\0\0\0\x02COOKIE02\0\0\0\0\0\0\0\0\0\0\0\0");
//!
//! let mut disk = vec![0; 1 << 20];
//! let mut received = &bytes[..];
//! while !received.is_empty() {
//!     let step = connection.receive(Instant(1), received, &mut out);
//!     received = &received[step.consumed..];
//!     match step.event {
//!         Some(Event::Request(request)) => {
//!             assert_eq!(request.kind(), Kind::Write { fua: false });
//!             // A driver would take what is there and read the rest from the socket.
//!             let (start, len) = (request.offset() as usize, request.len() as usize);
//!             disk[start..start + len].copy_from_slice(&received[..len]);
//!             received = &received[len..];
//!             connection.payload_received(len);
//!             request.reply_done(&mut out);
//!             connection.finish(request); // once `out` is sent
//!         }
//!         Some(Event::Opened(export)) => assert_eq!(export, 0),
//!         Some(Event::Refused(_)) => unreachable!("both are as the protocol has them"),
//!         Some(Event::StartTls) => unreachable!("TLS is off"),
//!         Some(Event::Close(reason)) => assert_eq!(reason.to_string(), "the client disconnected"),
//!         // Nothing consumed: send `out` and finish requests, then offer the same bytes again.
//!         None => assert!(step.consumed > 0),
//!     }
//! }
//! assert_eq!(&disk[7..12], b"hello");
//! assert!(out.ends_with(b"\x67\x44\x66\x98\0\0\0\0COOKIE01"));
//! ```

pub mod constants;
mod export;
mod handshake;
mod reply;
#[cfg(test)]
mod tests;
mod transmission;
mod wire;

use std::fmt;
use std::sync::Arc;

use flash::{Instant, RequestError, SECOND};

use handshake::{Handshake, Step};
use transmission::Transmission;

pub use crate::volume::Extent;
pub use export::{BadExport, Export};
pub use reply::SparseReply;

/// Whether clients speak through TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsMode {
    /// The server has no TLS.
    Off,
    /// Before TLS, nothing is answered but the wish to start it.
    Required,
}

/// What one client may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// From connect to the choice of an export.
    pub handshake_ns: u64,
    /// Options of one negotiation.
    pub options: u32,
    /// Data of one option.
    pub option_bytes: u32,
    /// An export's name, or a query for metadata contexts.
    pub name_bytes: u32,
    /// Data of one read or write.
    pub payload_bytes: u32,
    /// Requests in flight.
    pub requests: u32,
    /// Data of all reads and writes in flight.
    pub bytes_in_flight: u64,
    /// Bytes in `out` from which on no more is received.
    pub unsent_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_ns: 10 * SECOND,
            options: 32,
            option_bytes: 8192,
            name_bytes: 4096,
            payload_bytes: 32 << 20,
            requests: 128,
            bytes_in_flight: 64 << 20,
            unsent_bytes: 1 << 20,
        }
    }
}

/// What a client asks for, already checked against export and negotiation. Not `Clone`: each is
/// given back once, to [`Connection::finish`].
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a request holds its share of the limits until it is finished"]
pub struct Request {
    cookie: u64,
    kind: Kind,
    offset: u64,
    len: u32,
    export: usize,
    structured: bool,
}

impl Request {
    /// The client's name for it, for logs. Not unique if the client is careless.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// What to do.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// First byte; 0 for a flush.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes; 0 for a flush, else at least 1 and within the export.
    #[expect(clippy::len_without_is_empty, reason = "a range, not a container")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Index of the export.
    pub fn export(&self) -> usize {
        self.export
    }

    /// Bytes of data the request moves, hence of the buffer it needs.
    pub fn buffer_bytes(&self) -> u64 {
        match self.kind {
            Kind::Read { .. } | Kind::Write { .. } => u64::from(self.len),
            _ => 0,
        }
    }
}

/// The operation of a [`Request`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Answer by `reply_data` or `reply_sparse`.
    Read {
        /// In one chunk; `reply_sparse` sees to it.
        df: bool,
    },
    /// Its data follows in the stream.
    Write {
        /// Reply when it would survive a power cut.
        fua: bool,
    },
    /// Reply when all that was replied to before, on any connection, would survive a power cut.
    Flush,
    /// The range is not needed.
    Trim {
        /// Reply when it would survive a power cut.
        fua: bool,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Reply when it would survive a power cut.
        fua: bool,
        /// A later write must find room: do not only trim.
        no_hole: bool,
        /// Answer [`Error::NotSupported`] at once rather than be as slow as a write.
        fast: bool,
    },
    /// The range will be read soon.
    Cache,
    /// Answer by `reply_extents`.
    BlockStatus {
        /// Only the first extent; `reply_extents` sees to it.
        req_one: bool,
    },
}

/// The errors the protocol knows, by their number on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Error {
    /// EPERM: the export is read-only.
    NotPermitted = 1,
    /// EIO.
    Io = 5,
    /// ENOMEM.
    NoMemory = 12,
    /// EINVAL.
    Invalid = 22,
    /// ENOSPC.
    NoSpace = 28,
    /// EOVERFLOW: too long for one chunk.
    Overflow = 75,
    /// ENOTSUP: zeroes cannot be written fast.
    NotSupported = 95,
    /// ESHUTDOWN.
    ShuttingDown = 108,
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::OutOfRange
            | RequestError::Misaligned
            | RequestError::NotErased
            | RequestError::OutOfOrder
            | RequestError::NotWritten => Self::Invalid,
            RequestError::NoSpace => Self::NoSpace,
            RequestError::Unreadable
            | RequestError::Failed
            | RequestError::Busy
            | RequestError::AtRisk
            | RequestError::ProgramFailed
            // Of what NBD has not.
            | RequestError::Zone(_) => Self::Io,
            RequestError::ShuttingDown => Self::ShuttingDown,
        }
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The client said goodbye.
    Disconnected,
    /// The client gave up the negotiation.
    Aborted,
    /// The server stops.
    ShuttingDown,
    /// No export chosen in time.
    HandshakeTimeout,
    /// What came is not an option or a request.
    BadMagic,
    /// The client needs something we did not offer.
    UnknownClientFlags(u32),
    /// More than [`Limits::options`].
    TooManyOptions,
    /// Too long even to be refused.
    OptionTooLong(u32),
    /// EXPORT_NAME asked for what is not there, and knows no error reply.
    UnknownExport,
    /// EXPORT_NAME before TLS, which knows no error reply.
    TlsRequired,
    /// Bytes after the wish for TLS that did not wait for our consent: an attack or a broken client.
    PlaintextBeforeTls,
    /// A write longer than was announced as possible.
    WriteTooLong(u32),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the client disconnected"),
            Self::Aborted => f.write_str("the client gave up the negotiation"),
            Self::ShuttingDown => f.write_str("the server is shutting down"),
            Self::HandshakeTimeout => f.write_str("the client chose no export in time"),
            Self::BadMagic => f.write_str("the client sent something that is not NBD"),
            Self::UnknownClientFlags(flags) => {
                write!(f, "the client set unknown handshake flags ({flags:#x})")
            }
            Self::TooManyOptions => f.write_str("the client sent too many options"),
            Self::OptionTooLong(len) => write!(f, "the client sent an option of {len} bytes"),
            Self::UnknownExport => {
                f.write_str("the client asked by EXPORT_NAME for an export that does not exist")
            }
            Self::TlsRequired => f.write_str("the client asked for an export before TLS"),
            Self::PlaintextBeforeTls => {
                f.write_str("the client sent plaintext after asking for TLS: an injected command?")
            }
            Self::WriteTooLong(len) => {
                write!(f, "the client sent a write of {len} bytes, longer than the maximum")
            }
        }
    }
}

/// What the driver has to do.
#[derive(Debug, Eq, PartialEq)]
pub enum Event {
    /// Bring TLS up, then call [`Connection::tls_started`].
    StartTls,
    /// The client chose the export of this index.
    Opened(usize),
    /// Do this and reply.
    Request(Request),
    /// A request for the export of this index was answered with an error: it needs nothing more.
    Refused(usize),
    /// Read no more, finish what is in flight, send `out`, close.
    Close(CloseReason),
}

/// The outcome of [`Connection::receive`].
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub struct Received {
    /// How many of the offered bytes are dealt with. 0 only if none were offered or
    /// [`Connection::accepts_more`] is false.
    pub consumed: usize,
    /// What to do about it.
    pub event: Option<Event>,
}

/// What both phases need to know of the server.
#[derive(Debug)]
struct Server {
    exports: Arc<[Export]>,
    limits: Limits,
    shutting_down: bool,
    /// Why nothing is offered by now.
    nothing: Option<Arc<str>>,
}

#[derive(Debug)]
enum Phase {
    Handshake { handshake: Handshake, deadline: Instant },
    Transmission(Transmission),
}

/// One client. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Connection {
    server: Server,
    phase: Phase,
    closed: Option<CloseReason>,
}

impl Connection {
    /// A client has connected. The greeting goes to `out`.
    ///
    /// # Panics
    /// If an export does not pass [`Export::check`], or the limits exclude what was promised:
    /// options and requests of at least 1, `bytes_in_flight` of at least `payload_bytes`, and
    /// `payload_bytes` of at least each export's `block_preferred`.
    pub fn new(
        now: Instant,
        exports: Arc<[Export]>,
        tls: TlsMode,
        limits: Limits,
        out: &mut Vec<u8>,
    ) -> Self {
        for export in exports.iter() {
            assert_eq!(export.check(), Ok(()), "exports are checked when they are configured");
            assert!(limits.payload_bytes >= export.block_preferred, "preferred is possible");
        }
        assert!(limits.options > 0 && limits.requests > 0 && limits.unsent_bytes > 0);
        assert!(limits.payload_bytes > 0);
        assert!(limits.bytes_in_flight >= u64::from(limits.payload_bytes), "one request fits");
        let phase = Phase::Handshake {
            handshake: Handshake::new(tls, out),
            deadline: now + limits.handshake_ns,
        };
        let server = Server { exports, limits, shutting_down: false, nothing: None };
        Self { server, phase, closed: None }
    }

    /// Consumes a prefix of `bytes` with at most one message. Replies that need no driver go to
    /// `out`, which holds what is not yet sent.
    ///
    /// # Panics
    /// If the payload of a write is still due.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received {
        if let Some(reason) = self.closed.or_else(|| self.expire(now)) {
            let event = Some(Event::Close(reason));
            return Received { consumed: bytes.len(), event };
        }
        assert_eq!(self.payload_left(), 0, "take the payload of the write before the next message");
        if bytes.is_empty() || !self.accepts_more(out.len()) {
            return Received { consumed: 0, event: None };
        }
        let (consumed, event) = match &mut self.phase {
            Phase::Transmission(transmission) => transmission.receive(&self.server, bytes, out),
            Phase::Handshake { handshake, .. } => {
                let (consumed, step) = handshake.receive(&self.server, bytes, out);
                (consumed, self.apply(step))
            }
        };
        assert!(consumed > 0 && consumed <= bytes.len(), "each call makes progress");
        if let Some(Event::Close(reason)) = event {
            self.closed = Some(reason);
        }
        Received { consumed, event }
    }

    fn apply(&mut self, step: Step) -> Option<Event> {
        match step {
            Step::Wait => None,
            Step::StartTls => Some(Event::StartTls),
            Step::Close(reason) => Some(Event::Close(reason)),
            Step::Open(session) => {
                self.phase = Phase::Transmission(Transmission::new(session));
                Some(Event::Opened(session.export))
            }
        }
    }

    /// TLS is up; from now on `receive` gets decrypted bytes. All that was negotiated before is
    /// forgotten.
    ///
    /// # Panics
    /// If [`Event::StartTls`] did not come before.
    pub fn tls_started(&mut self) {
        let Phase::Handshake { handshake, .. } = &mut self.phase else {
            panic!("TLS starts before an export is chosen")
        };
        handshake.tls_started();
    }

    /// There is room for another request, and for its reply behind the `unsent` bytes.
    pub fn accepts_more(&self, unsent: usize) -> bool {
        let room = match &self.phase {
            Phase::Handshake { .. } => true,
            Phase::Transmission(transmission) => transmission.has_room(&self.server),
        };
        room && unsent < self.server.limits.unsent_bytes
    }

    /// Bytes of the stream that are the data of the write handed out last.
    pub fn payload_left(&self) -> u32 {
        match &self.phase {
            Phase::Handshake { .. } => 0,
            Phase::Transmission(transmission) => transmission.payload_left(),
        }
    }

    /// The driver took `bytes` of the payload.
    ///
    /// # Panics
    /// If that is more than was left.
    pub fn payload_received(&mut self, bytes: usize) {
        match &mut self.phase {
            Phase::Handshake { .. } => assert_eq!(bytes, 0, "no payload during negotiation"),
            Phase::Transmission(transmission) => transmission.payload_received(bytes),
        }
    }

    /// The reply was sent and the buffer is free (or the client is gone).
    ///
    /// # Panics
    /// If the request is not one of this connection's.
    pub fn finish(&mut self, request: Request) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            panic!("there are no requests before an export is chosen")
        };
        transmission.finish(&request);
    }

    /// Requests not finished, and the bytes of their buffers.
    pub fn in_flight(&self) -> (u32, u64) {
        match &self.phase {
            Phase::Handshake { .. } => (0, 0),
            Phase::Transmission(transmission) => transmission.in_flight(),
        }
    }

    /// When to call [`expire`](Self::expire), if no export was chosen before.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Handshake { deadline, .. } if self.closed.is_none() => Some(*deadline),
            _ => None,
        }
    }

    /// Ends a negotiation that takes too long. The driver then does as on [`Event::Close`].
    pub fn expire(&mut self, now: Instant) -> Option<CloseReason> {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.closed = Some(CloseReason::HandshakeTimeout);
            return self.closed;
        }
        None
    }

    /// The server stops: options and requests from now on are refused. What is in flight goes on.
    pub fn shut_down(&mut self) {
        self.server.shutting_down = true;
    }

    /// Nothing is offered yet: each option is answered by an error that says why.
    pub fn offer_nothing(&mut self, why: Arc<str>) {
        self.server.nothing = Some(why);
    }

    /// Index of the chosen export.
    pub fn export(&self) -> Option<usize> {
        match &self.phase {
            Phase::Handshake { .. } => None,
            Phase::Transmission(transmission) => Some(transmission.session().export),
        }
    }

    /// Bytes kept of an incomplete message.
    pub fn held_bytes(&self) -> usize {
        match &self.phase {
            Phase::Handshake { handshake, .. } => handshake.held_bytes(),
            Phase::Transmission(transmission) => transmission.held_bytes(),
        }
    }
}
