//! Negotiation: client flags, then options until one of them chooses an export.
//!
//! Invariants:
//! - Nothing reaches the driver before an export is chosen, except that TLS must start.
//! - An option is acted on when all of its data is there and never before; at most
//!   `Limits::option_bytes` of data are held.
//! - What was negotiated before TLS does not outlive it, and no byte that came before TLS is read
//!   as if it had come through it.
//! - Every text sent back is bounded, whatever the client put into the option it answers.

use super::constants::*;
use super::wire::{Fields, Gather, cut};
use super::{CloseReason, Export, Server, TlsMode};

/// What transmission has to know of the negotiation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// Index of the chosen export.
    pub(super) export: usize,
    /// Structured replies were negotiated.
    pub(super) structured: bool,
    /// `base:allocation` was negotiated for this export.
    pub(super) allocation: bool,
}

/// What one message of the client led to.
#[derive(Debug)]
pub(super) enum Step {
    Wait,
    StartTls,
    Open(Session),
    Close(CloseReason),
}

#[derive(Debug)]
enum Stage {
    ClientFlags,
    Header,
    Data {
        option: u32,
        len: usize,
    },
    /// Reading through an option that is too long, to refuse it.
    Drain {
        option: u32,
        left: u32,
    },
    /// The driver is bringing TLS up.
    Tls,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tls {
    Off,
    Required,
    Active,
}

/// The negotiation of one connection.
#[derive(Debug)]
pub(super) struct Handshake {
    stage: Stage,
    gather: Gather,
    options_seen: u32,
    no_zeroes: bool,
    tls: Tls,
    structured: bool,
    /// The export for which the client chose `base:allocation`.
    allocation_of: Option<usize>,
}

/// A refusal that keeps the connection.
struct OptionError {
    code: u32,
    message: String,
}

impl OptionError {
    fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn invalid(message: &str) -> Self {
        Self::new(REP_ERR_INVALID, message)
    }
}

impl Handshake {
    /// Starts a negotiation and greets the client.
    pub(super) fn new(tls: TlsMode, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self {
            stage: Stage::ClientFlags,
            gather: Gather::default(),
            options_seen: 0,
            no_zeroes: false,
            tls: match tls {
                TlsMode::Off => Tls::Off,
                TlsMode::Required => Tls::Required,
            },
            structured: false,
            allocation_of: None,
        }
    }

    /// Consumes a prefix of `bytes` that holds at most one message.
    pub(super) fn receive(
        &mut self,
        server: &Server,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let (consumed, step) = match self.stage {
            Stage::ClientFlags => self.receive_client_flags(bytes),
            Stage::Header => self.receive_option_header(server, bytes, out),
            Stage::Data { option, len } => {
                let (consumed, data) = self.gather.vector(len, bytes);
                match data {
                    Some(data) => (consumed, self.finish_option(server, option, &data, out)),
                    None => (consumed, Step::Wait),
                }
            }
            Stage::Drain { option, left } => self.drain(option, left, bytes, out),
            Stage::Tls => return (bytes.len(), Step::Close(CloseReason::PlaintextBeforeTls)),
        };
        if !matches!(step, Step::StartTls) {
            return (consumed, step);
        }
        // The client has to wait for our consent before it speaks TLS, so whatever already follows
        // was put there by someone who wants it taken for protected text.
        if consumed < bytes.len() {
            return (bytes.len(), Step::Close(CloseReason::PlaintextBeforeTls));
        }
        push_reply(out, OPT_STARTTLS, REP_ACK, &[]);
        (consumed, Step::StartTls)
    }

    /// TLS is up: forget what was said in the clear.
    pub(super) fn tls_started(&mut self) {
        assert!(matches!(self.stage, Stage::Tls), "TLS starts only after Event::StartTls");
        self.stage = Stage::Header;
        self.tls = Tls::Active;
        self.structured = false;
        self.allocation_of = None;
        assert_eq!(self.gather.held_bytes(), 0, "plaintext does not survive into TLS");
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.gather.held_bytes()
    }

    fn receive_client_flags(&mut self, bytes: &[u8]) -> (usize, Step) {
        let (consumed, flags) = self.gather.array::<4>(bytes);
        let Some(flags) = flags.map(u32::from_be_bytes) else { return (consumed, Step::Wait) };
        // A client without FIXED_NEWSTYLE is answered as if it had it: it may ignore the answers.
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return (consumed, Step::Close(CloseReason::UnknownClientFlags(flags)));
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.stage = Stage::Header;
        (consumed, Step::Wait)
    }

    fn receive_option_header(
        &mut self,
        server: &Server,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        let (consumed, header) = self.gather.array::<OPTION_HEADER_BYTES>(bytes);
        let Some(header) = header else { return (consumed, Step::Wait) };
        let mut fields = Fields(&header);
        let (Some(magic), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32())
        else {
            unreachable!("16 bytes hold 8 + 4 + 4")
        };
        if magic != OPTION_MAGIC {
            return (consumed, Step::Close(CloseReason::BadMagic));
        }
        if self.options_seen == server.limits.options {
            return (consumed, Step::Close(CloseReason::TooManyOptions));
        }
        self.options_seen += 1;
        // EXPORT_NAME has no error reply: an oversized one can only be dropped.
        let len_max = if option == OPT_EXPORT_NAME { 0 } else { DRAIN_BYTES_MAX };
        if len <= server.limits.option_bytes {
            self.stage = Stage::Data { option, len: len as usize };
            if len == 0 {
                return (consumed, self.finish_option(server, option, &[], out));
            }
        } else if len <= len_max {
            self.stage = Stage::Drain { option, left: len };
        } else {
            return (consumed, Step::Close(CloseReason::OptionTooLong(len)));
        }
        (consumed, Step::Wait)
    }

    fn drain(&mut self, option: u32, left: u32, bytes: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let consumed = bytes.len().min(left as usize);
        let left = left - consumed as u32;
        if left > 0 {
            self.stage = Stage::Drain { option, left };
            return (consumed, Step::Wait);
        }
        self.stage = Stage::Header;
        if option == OPT_ABORT {
            push_reply(out, option, REP_ACK, &[]);
            return (consumed, Step::Close(CloseReason::Aborted));
        }
        let error =
            OptionError::new(REP_ERR_TOO_BIG, "the option is longer than this server reads");
        push_error(out, option, &error);
        (consumed, Step::Wait)
    }

    /// All of an option is there: act on it.
    fn finish_option(
        &mut self,
        server: &Server,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        self.stage = Stage::Header;
        match self.option(server, option, data, out) {
            Ok(step) => step,
            // EXPORT_NAME knows no error reply: the client would take it for the export's size.
            Err(error) if option == OPT_EXPORT_NAME => Step::Close(match error.code {
                REP_ERR_TLS_REQD => CloseReason::TlsRequired,
                REP_ERR_SHUTDOWN => CloseReason::ShuttingDown,
                _ => CloseReason::UnknownExport,
            }),
            Err(error) => {
                push_error(out, option, &error);
                Step::Wait
            }
        }
    }

    fn option(
        &mut self,
        server: &Server,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, OptionError> {
        if option == OPT_ABORT {
            push_reply(out, option, REP_ACK, &[]);
            return Ok(Step::Close(CloseReason::Aborted));
        }
        if server.shutting_down {
            return Err(OptionError::new(REP_ERR_SHUTDOWN, "the server is shutting down"));
        }
        if let Some(why) = &server.nothing {
            return Err(OptionError::new(REP_ERR_UNKNOWN, why.as_ref()));
        }
        if self.tls == Tls::Required && option != OPT_STARTTLS {
            return Err(OptionError::new(REP_ERR_TLS_REQD, "start TLS first (STARTTLS)"));
        }
        match option {
            OPT_EXPORT_NAME => self.export_name(server, data, out),
            OPT_LIST => list(server, data, out).map(|()| Step::Wait),
            OPT_STARTTLS => self.start_tls(data),
            OPT_INFO | OPT_GO => self.info_or_go(server, option, data, out),
            OPT_STRUCTURED_REPLY => {
                expect_empty(data)?;
                self.structured = true;
                push_reply(out, option, REP_ACK, &[]);
                Ok(Step::Wait)
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
                self.meta_context(server, option, data, out).map(|()| Step::Wait)
            }
            _ => Err(OptionError::new(REP_ERR_UNSUP, format!("option {option} is not supported"))),
        }
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<Step, OptionError> {
        expect_empty(data)?;
        match self.tls {
            Tls::Off => Err(OptionError::new(REP_ERR_POLICY, "this server is set up without TLS")),
            Tls::Active => Err(OptionError::invalid("TLS is already active")),
            Tls::Required => {
                self.stage = Stage::Tls;
                Ok(Step::StartTls)
            }
        }
    }

    fn export_name(
        &mut self,
        server: &Server,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, OptionError> {
        let session = self.session(find_export(server, data)?);
        let export = &server.exports[session.export];
        out.extend_from_slice(&export.size_bytes.to_be_bytes());
        out.extend_from_slice(&transmission_flags(export, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        Ok(Step::Open(session))
    }

    fn info_or_go(
        &mut self,
        server: &Server,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, OptionError> {
        let short = || OptionError::invalid("the name or the list of facts exceeds the option");
        let mut fields = Fields(data);
        let name = fields.string().ok_or_else(short)?;
        let facts = fields.u16().ok_or_else(short)?;
        let (mut wants_name, mut wants_description) = (false, false);
        for _ in 0..facts {
            match fields.u16().ok_or_else(short)? {
                INFO_NAME => wants_name = true,
                INFO_DESCRIPTION => wants_description = true,
                // EXPORT and BLOCK_SIZE are always told; unknown facts are to be ignored.
                _ => {}
            }
        }
        if !fields.is_empty() {
            return Err(OptionError::invalid("the option is longer than its fields"));
        }
        let session = self.session(find_export(server, name)?);
        let export = &server.exports[session.export];

        let flags = transmission_flags(export, self.structured);
        push_info(
            out,
            option,
            INFO_EXPORT,
            &[&export.size_bytes.to_be_bytes(), &flags.to_be_bytes()],
        );
        if wants_name {
            push_info(out, option, INFO_NAME, &[export.name.as_bytes()]);
        }
        if wants_description && !export.description.is_empty() {
            push_info(out, option, INFO_DESCRIPTION, &[export.description.as_bytes()]);
        }
        let block_max = export.payload_bytes_max(&server.limits);
        let sizes = [export.block_min, export.block_preferred, block_max].map(u32::to_be_bytes);
        push_info(out, option, INFO_BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        push_reply(out, option, REP_ACK, &[]);
        Ok(if option == OPT_GO { Step::Open(session) } else { Step::Wait })
    }

    fn meta_context(
        &mut self,
        server: &Server,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), OptionError> {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            // A new choice replaces the old one, also when it is refused.
            self.allocation_of = None;
        }
        if !self.structured {
            return Err(OptionError::invalid("negotiate structured replies first"));
        }
        let short = || OptionError::invalid("the name or the queries exceed the option");
        let mut fields = Fields(data);
        let name = fields.string().ok_or_else(short)?;
        let queries = fields.u32().ok_or_else(short)?;
        let mut selected = queries == 0 && !set;
        // Ends with the data, whatever number the client claims: each query takes four bytes.
        for _ in 0..queries {
            let query = fields.string().ok_or_else(short)?;
            if query.len() > server.limits.name_bytes as usize {
                return Err(OptionError::new(REP_ERR_TOO_BIG, "the query is too long"));
            }
            selected |= query == CONTEXT_NAME.as_bytes() || (query == b"base:" && !set);
        }
        if !fields.is_empty() {
            return Err(OptionError::invalid("the option is longer than its fields"));
        }
        let export = find_export(server, name)?;
        if selected {
            let id = if set { CONTEXT_ID } else { 0 };
            push_reply(
                out,
                option,
                REP_META_CONTEXT,
                &[&id.to_be_bytes(), CONTEXT_NAME.as_bytes()],
            );
        }
        if selected && set {
            self.allocation_of = Some(export);
        }
        push_reply(out, option, REP_ACK, &[]);
        Ok(())
    }

    fn session(&self, export: usize) -> Session {
        // A context chosen for another export does not count for this one.
        let allocation = self.structured && self.allocation_of == Some(export);
        Session { export, structured: self.structured, allocation }
    }
}

fn list(server: &Server, data: &[u8], out: &mut Vec<u8>) -> Result<(), OptionError> {
    expect_empty(data)?;
    for export in server.exports.iter() {
        let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
        let name_len = (name.len() as u32).to_be_bytes();
        push_reply(out, OPT_LIST, REP_SERVER, &[&name_len, name, description]);
    }
    push_reply(out, OPT_LIST, REP_ACK, &[]);
    Ok(())
}

/// The export called `name`. The empty name is for ever that of the first volume that there was: a client that
/// connects again after its volume was deleted must not find another one in its place.
fn find_export(server: &Server, name: &[u8]) -> Result<usize, OptionError> {
    if name.len() > server.limits.name_bytes as usize {
        return Err(OptionError::new(REP_ERR_TOO_BIG, "the export name is too long"));
    }
    let Ok(name) = std::str::from_utf8(name) else {
        return Err(OptionError::invalid("the export name is not UTF-8"));
    };
    let named = server.exports.iter().position(|export| export.name == name);
    let first = || server.exports.iter().position(|export| export.volume == 0);
    let default = if name.is_empty() { first() } else { None };
    named.or(default).ok_or_else(|| {
        let more = if name.chars().nth(64).is_some() { "..." } else { "" };
        let start: String = name.chars().take(64).flat_map(char::escape_debug).collect();
        let message = match name {
            "" => "the first volume of this device is gone: name an export; LIST shows the names"
                .into(),
            _ => format!("no export is named \"{start}{more}\"; LIST shows the names"),
        };
        OptionError::new(REP_ERR_UNKNOWN, message)
    })
}

fn expect_empty(data: &[u8]) -> Result<(), OptionError> {
    if data.is_empty() { Ok(()) } else { Err(OptionError::invalid("this option takes no data")) }
}

/// What the export can do, for this client.
pub(super) fn transmission_flags(export: &Export, structured: bool) -> u16 {
    let always = SEND_HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | SEND_CAN_MULTI_CONN;
    let write = if export.read_only {
        SEND_READ_ONLY
    } else {
        let zeroes = SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        SEND_TRIM | if export.zeroes { zeroes } else { 0 }
    };
    always | write | if structured { SEND_DF } else { 0 }
}

fn push_reply(out: &mut Vec<u8>, option: u32, reply: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let len = u32::try_from(len).expect("names and messages are bounded by STRING_BYTES_MAX");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn push_info(out: &mut Vec<u8>, option: u32, fact: u16, parts: &[&[u8]]) {
    let fact = fact.to_be_bytes();
    let all: Vec<&[u8]> = std::iter::once(&fact[..]).chain(parts.iter().copied()).collect();
    push_reply(out, option, REP_INFO, &all);
}

fn push_error(out: &mut Vec<u8>, option: u32, error: &OptionError) {
    push_reply(out, option, error.code, &[cut(&error.message, MESSAGE_BYTES_MAX).as_bytes()]);
}
