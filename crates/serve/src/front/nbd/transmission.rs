//! Transmission: request headers in, checked requests out.
//!
//! Invariants:
//! - A request that reaches the driver is within its export, allowed by it and by what was
//!   negotiated; the driver need not look again.
//! - After a refusal the stream is still in step: the payload of a refused write is read through
//!   and dropped. Where that cannot be (bad magic, a payload beyond the limit) the connection ends.
//! - Requests are counted, not remembered: nothing is looked up by the client's cookie, so a cookie
//!   used twice harms nobody but the client that cannot tell its replies apart.

use super::constants::*;
use super::handshake::Session;
use super::reply::push_error;
use super::wire::{Fields, Gather};
use super::{CloseReason, Error, Event, Kind, Request, Server};

/// The header of a request, as sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Header {
    /// `None` if the bytes are not a request: the stream is out of step.
    pub(super) fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        })
    }
}

/// A refusal that keeps the connection.
#[derive(Debug)]
struct Refusal {
    cookie: u64,
    error: Error,
    message: String,
}

#[derive(Debug)]
enum Stage {
    Header,
    /// The driver takes the payload of a write.
    Payload {
        left: u32,
    },
    /// Reading through the payload of a refused write.
    Drain {
        left: u32,
        refusal: Refusal,
    },
}

/// The transmission phase of one connection.
#[derive(Debug)]
pub(super) struct Transmission {
    session: Session,
    stage: Stage,
    gather: Gather,
    requests: u32,
    bytes: u64,
}

impl Transmission {
    pub(super) fn new(session: Session) -> Self {
        Self { session, stage: Stage::Header, gather: Gather::default(), requests: 0, bytes: 0 }
    }

    pub(super) fn session(&self) -> Session {
        self.session
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.gather.held_bytes()
    }

    /// Requests not finished, and the bytes of their buffers.
    pub(super) fn in_flight(&self) -> (u32, u64) {
        (self.requests, self.bytes)
    }

    /// The largest request would still be within the limits.
    pub(super) fn has_room(&self, server: &Server) -> bool {
        let bytes_max = self.bytes + u64::from(server.limits.payload_bytes);
        self.requests < server.limits.requests && bytes_max <= server.limits.bytes_in_flight
    }

    pub(super) fn payload_left(&self) -> u32 {
        if let Stage::Payload { left } = self.stage { left } else { 0 }
    }

    pub(super) fn payload_received(&mut self, bytes: usize) {
        let left = self.payload_left();
        assert!(bytes <= left as usize, "the driver took bytes beyond the payload");
        let left = left - bytes as u32;
        if left > 0 {
            self.stage = Stage::Payload { left };
        } else if matches!(self.stage, Stage::Payload { .. }) {
            self.stage = Stage::Header;
        }
    }

    pub(super) fn finish(&mut self, request: &Request) {
        let bytes = request.buffer_bytes();
        assert!(self.requests > 0 && self.bytes >= bytes, "a request of this connection");
        self.requests -= 1;
        self.bytes -= bytes;
    }

    /// Consumes a prefix of `bytes` that holds at most one request header.
    pub(super) fn receive(
        &mut self,
        server: &Server,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Event>) {
        match &mut self.stage {
            Stage::Payload { .. } => panic!("the driver takes the payload, then goes on receiving"),
            Stage::Drain { left, refusal } => {
                let consumed = bytes.len().min(*left as usize);
                *left -= consumed as u32;
                if *left > 0 {
                    return (consumed, None);
                }
                push_refusal(out, self.session.structured, refusal);
                self.stage = Stage::Header;
                (consumed, Some(Event::Refused(self.session.export)))
            }
            Stage::Header => {
                let (consumed, header) = self.gather.array::<REQUEST_HEADER_BYTES>(bytes);
                let Some(header) = header else { return (consumed, None) };
                let Some(header) = Header::decode(&header) else {
                    return (consumed, Some(Event::Close(CloseReason::BadMagic)));
                };
                (consumed, self.accept(server, header, out))
            }
        }
    }

    fn accept(&mut self, server: &Server, header: Header, out: &mut Vec<u8>) -> Option<Event> {
        if header.command == CMD_DISC {
            return Some(Event::Close(CloseReason::Disconnected));
        }
        let payload = if header.command == CMD_WRITE { header.len } else { 0 };
        let export = &server.exports[self.session.export];
        if payload > export.payload_bytes_max(&server.limits) {
            // Reading through it could take 4 GiB of a client that ignores what it was told.
            return Some(Event::Close(CloseReason::WriteTooLong(payload)));
        }
        match self.check(server, &header) {
            Ok(kind) => {
                let request = Request {
                    cookie: header.cookie,
                    kind,
                    offset: header.offset,
                    len: header.len,
                    export: self.session.export,
                    structured: self.session.structured,
                };
                self.requests += 1;
                self.bytes += request.buffer_bytes();
                if payload > 0 {
                    self.stage = Stage::Payload { left: payload };
                }
                Some(Event::Request(request))
            }
            Err((error, message)) => {
                let refusal = Refusal { cookie: header.cookie, error, message };
                if payload > 0 {
                    self.stage = Stage::Drain { left: payload, refusal };
                    return None;
                }
                push_refusal(out, self.session.structured, &refusal);
                Some(Event::Refused(self.session.export))
            }
        }
    }

    fn check(&self, server: &Server, header: &Header) -> Result<Kind, (Error, String)> {
        if server.shutting_down {
            return Err((Error::ShuttingDown, "the server is shutting down".into()));
        }
        let flag = |bit: u16| header.flags & bit != 0;
        let fua = flag(CMD_FLAG_FUA);
        // Each command with the flags it knows. FUA is legal on every command.
        let (kind, known) = match header.command {
            CMD_READ => (Kind::Read { df: flag(CMD_FLAG_DF) }, CMD_FLAG_DF),
            CMD_WRITE => (Kind::Write { fua }, 0),
            CMD_FLUSH => (Kind::Flush, 0),
            CMD_TRIM => (Kind::Trim { fua }, 0),
            CMD_CACHE => (Kind::Cache, 0),
            CMD_WRITE_ZEROES => {
                let (no_hole, fast) = (flag(CMD_FLAG_NO_HOLE), flag(CMD_FLAG_FAST_ZERO));
                let known = CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO;
                (Kind::WriteZeroes { fua, no_hole, fast }, known)
            }
            CMD_BLOCK_STATUS => {
                (Kind::BlockStatus { req_one: flag(CMD_FLAG_REQ_ONE) }, CMD_FLAG_REQ_ONE)
            }
            unknown => return Err((Error::Invalid, format!("unknown command {unknown}"))),
        };
        let unknown = header.flags & !(known | CMD_FLAG_FUA);
        if unknown != 0 {
            return Err((Error::Invalid, format!("flags {unknown:#x} do not fit the command")));
        }
        if kind == (Kind::Read { df: true }) && !self.session.structured {
            return Err((Error::Invalid, "DF needs structured replies".into()));
        }
        if matches!(kind, Kind::BlockStatus { .. }) && !self.session.allocation {
            let message = format!("select {CONTEXT_NAME} for this export before asking for it");
            return Err((Error::Invalid, message));
        }
        self.check_range(server, header, kind)?;
        Ok(kind)
    }

    fn check_range(
        &self,
        server: &Server,
        header: &Header,
        kind: Kind,
    ) -> Result<(), (Error, String)> {
        let Header { offset, len, .. } = *header;
        let export = &server.exports[self.session.export];
        if kind == Kind::Flush {
            if offset == 0 && len == 0 {
                return Ok(());
            }
            return Err((Error::Invalid, "offset and length of a flush must be 0".into()));
        }
        let changes =
            matches!(kind, Kind::Write { .. } | Kind::Trim { .. } | Kind::WriteZeroes { .. });
        if changes && export.read_only {
            return Err((Error::NotPermitted, "the export is read-only".into()));
        }
        if matches!(kind, Kind::WriteZeroes { .. }) && !export.zeroes {
            let message = "a raw unit has no zeroes of its own: write them, or erase";
            return Err((Error::NotSupported, message.into()));
        }
        if len == 0 {
            return Err((Error::Invalid, "the length is 0".into()));
        }
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > export.size_bytes) {
            let grows = matches!(kind, Kind::Write { .. } | Kind::WriteZeroes { .. });
            let error = if grows { Error::NoSpace } else { Error::Invalid };
            let size = export.size_bytes;
            return Err((error, format!("{len} bytes at {offset} exceed the export's {size}")));
        }
        let block = export.block_min;
        if offset % u64::from(block) != 0 || len % block != 0 {
            return Err((
                Error::Invalid,
                format!("offset and length must be multiples of {block}"),
            ));
        }
        let payload_max = export.payload_bytes_max(&server.limits);
        if let Kind::Read { df } = kind
            && len > payload_max
        {
            let error = if df { Error::Overflow } else { Error::Invalid };
            return Err((error, format!("read at most {payload_max} bytes at once")));
        }
        Ok(())
    }
}

fn push_refusal(out: &mut Vec<u8>, structured: bool, refusal: &Refusal) {
    push_error(out, structured, refusal.cookie, refusal.error, &refusal.message);
}
