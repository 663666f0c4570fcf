//! The client side of the NBD protocol, as far as Weir's clients need it: fixed newstyle, LIST and GO,
//! structured replies with the reason of a refusal, one request at a time but for writes. TLS is not spoken.

use crate::Error;
use crate::address::Stream;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Read, Write};

const MAGIC: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
/// The code of a refusal: there is no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
const INFO_EXPORT: u16 = 0;
const INFO_DESCRIPTION: u16 = 2;
const CHUNK_FLAG_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_ERROR: u16 = 1 << 15;
/// Zeroes after the answer to EXPORT_NAME, unless both sides do without.
const EXPORT_NAME_PADDING: usize = 124;
/// No reply to an option is longer, nor a chunk that carries no data.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// What is read or sent at once, if there is as much.
const BUFFER_BYTES: usize = 64 << 10;

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Goodbye.
    pub const DISCONNECT: u16 = 2;
    /// Make durable what was acknowledged.
    pub const FLUSH: u16 = 3;
    /// Trim; of a raw unit: erase.
    pub const TRIM: u16 = 4;
}

/// The header of a request.
pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(28);
    header.extend(REQUEST_MAGIC.to_be_bytes());
    header.extend(flags.to_be_bytes());
    header.extend(command.to_be_bytes());
    header.extend(cookie.to_be_bytes());
    header.extend(offset.to_be_bytes());
    header.extend(length.to_be_bytes());
    header
}

/// The head of a simple reply: error, and the request's cookie; `Err` tells what came instead.
pub fn simple_reply(bytes: &[u8; 16]) -> Result<(u32, u64), String> {
    match be32(bytes) {
        SIMPLE_REPLY_MAGIC => Ok((be32(&bytes[4..]), be64(&bytes[8..]))),
        magic => Err(format!("the server sent {magic:#x} where a reply was due")),
    }
}

/// Reads the greeting and answers it; true if both sides do without the padding of EXPORT_NAME.
fn greet(stream: &mut Stream) -> io::Result<bool> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if greeting[..16] != *MAGIC {
        return Err(io::Error::other("does not greet as an NBD server"));
    }
    let flags = be16(&greeting[16..]) & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    stream.write_all(&u32::from(flags).to_be_bytes())?;
    Ok(flags & FLAG_NO_ZEROES != 0)
}

fn send_option(stream: &mut Stream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::from(OPTION_MAGIC);
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)
}

/// Chooses an export the old way that every server knows, with simple replies; its size and flags.
pub fn negotiate_simple(stream: &mut Stream, export: &str) -> io::Result<(u64, u16)> {
    let without_padding = greet(stream)?;
    send_option(stream, OPT_EXPORT_NAME, export.as_bytes())?;
    let mut answer = [0; 10];
    let unknown = "the server does not know the export, or asks for TLS";
    stream.read_exact(&mut answer).map_err(|_| io::Error::other(unknown))?;
    if !without_padding {
        stream.read_exact(&mut [0; EXPORT_NAME_PADDING])?;
    }
    Ok((be64(&answer), be16(&answer[8..])))
}

/// One reply to an option: its kind and data. A refusal is an error with the server's reason.
fn option_reply(stream: &mut Stream) -> Result<(u32, Vec<u8>), Error> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let (kind, len) = (be32(&head[12..]), be32(&head[16..]));
    if be64(&head) != OPTION_REPLY_MAGIC || len > REPLY_BYTES_MAX {
        return Err(Error::Protocol("the server answers options in no way that is known".into()));
    }
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data)?;
    if kind & REP_ERROR != 0 {
        let message = String::from_utf8_lossy(&data).into_owned();
        return Err(Error::Refused { code: kind, message });
    }
    Ok((kind, data))
}

/// What a server tells of an export.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Export {
    /// Its bytes.
    pub size: u64,
    /// Its transmission flags.
    pub flags: u16,
    /// What the server says of it: of a volume of Weir's which one of which device it is, whatever its name.
    pub description: String,
}

/// Chooses an export, with simple replies: what follows are requests.
///
/// # Errors
/// The server's reason; [`REP_ERR_UNKNOWN`] if there is no such export.
pub fn choose(stream: &mut Stream, export: &str) -> Result<Export, Error> {
    greet(stream)?;
    described(stream, OPT_GO, export)
}

/// Asks what an export is, and ends the connection.
///
/// # Errors
/// As for [`choose`].
pub fn look(stream: &mut Stream, export: &str) -> Result<Export, Error> {
    greet(stream)?;
    let found = described(stream, OPT_INFO, export)?;
    send_option(stream, OPT_ABORT, &[]).ok();
    Ok(found)
}

/// What the server says to an option that is about an export.
fn described(stream: &mut Stream, option: u32, export: &str) -> Result<Export, Error> {
    let mut data = Vec::from((export.len() as u32).to_be_bytes());
    data.extend(export.as_bytes());
    data.extend(1u16.to_be_bytes());
    data.extend(INFO_DESCRIPTION.to_be_bytes());
    send_option(stream, option, &data)?;
    let (mut found, mut description) = (None, String::new());
    loop {
        let (kind, data) = option_reply(stream)?;
        if kind == REP_ACK {
            break;
        }
        if kind == REP_INFO && data.len() >= 12 && be16(&data) == INFO_EXPORT {
            found = Some((be64(&data[2..]), be16(&data[10..])));
        } else if kind == REP_INFO && data.len() >= 2 && be16(&data) == INFO_DESCRIPTION {
            description = String::from_utf8_lossy(&data[2..]).into_owned();
        }
    }
    let (size, flags) = found.ok_or_else(|| Error::Protocol("the server tells no size".into()))?;
    Ok(Export { size, flags, description })
}

/// The exports of a server: names and descriptions. Ends the connection.
pub fn list(stream: &mut Stream) -> Result<Vec<(String, String)>, Error> {
    greet(stream)?;
    send_option(stream, OPT_LIST, &[])?;
    let mut exports = Vec::new();
    loop {
        let (kind, data) = option_reply(stream)?;
        match kind {
            REP_ACK => break,
            REP_SERVER => {
                let name_len = data.get(..4).map_or(0, be32) as usize;
                let name = data.get(4..4 + name_len);
                let (Some(name), Some(rest)) = (name, data.get(4 + name_len..)) else {
                    return Err(Error::Protocol("the server lists an export it cuts off".into()));
                };
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                exports.push((text(name), text(rest)));
            }
            _ => {}
        }
    }
    // The list is whole; the server needs no farewell.
    send_option(stream, OPT_ABORT, &[]).ok();
    Ok(exports)
}

/// An open export. Dropped, it says goodbye.
pub struct Connection {
    /// Replies come by one call of the system, head and data of a short read together.
    stream: BufReader<Stream>,
    /// Bytes of the export.
    pub size: u64,
    cookie: u64,
    /// Writes whose answers nobody waited for yet.
    begun: BTreeSet<u64>,
}

/// What a chunk of a reply says: to which request it is, whether it is the last one, and the refusal that it carries.
type Chunk = (u64, bool, Option<Error>);

impl Connection {
    /// Opens an export, with structured replies.
    pub fn open(mut stream: Stream, export: &str) -> Result<Self, Error> {
        greet(&mut stream)?;
        send_option(&mut stream, OPT_STRUCTURED_REPLY, &[])?;
        if option_reply(&mut stream)?.0 != REP_ACK {
            return Err(Error::Protocol("the server knows no structured replies".into()));
        }
        let Export { size, .. } = described(&mut stream, OPT_GO, export)?;
        let stream = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { stream, size, cookie: 0, begun: BTreeSet::new() })
    }

    /// A request with its reply. `data` goes with a write; a read fills `into`. No write that was begun is unanswered.
    pub fn request(
        &mut self,
        command: u16,
        offset: u64,
        length: u32,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(), Error> {
        assert!(self.begun.is_empty(), "answers to writes would come first");
        self.send(command, offset, length, data)?;
        let mut refusal = None;
        loop {
            let (cookie, done, error) = self.chunk(offset, into)?;
            if cookie != self.cookie {
                return Err(not_asked(cookie));
            }
            refusal = refusal.or(error);
            if done {
                return refusal.map_or(Ok(()), Err);
            }
        }
    }

    /// Sends a write and does not wait for its answer; its number, by which [`Connection::answer`] tells of it. A server has
    /// those that are under way in any order.
    pub fn begin_write(&mut self, offset: u64, data: &[u8]) -> Result<u64, Error> {
        self.send(command::WRITE, offset, data.len() as u32, data)?;
        self.begun.insert(self.cookie);
        Ok(self.cookie)
    }

    /// Waits for the next answer to a write that was begun: its number, and how it went. `Err` if none of those that were begun
    /// is answered any more.
    pub fn answer(&mut self) -> Result<(u64, Result<(), Error>), Error> {
        let answered = self.next_answer();
        if answered.is_err() {
            self.begun.clear();
        }
        answered
    }

    fn next_answer(&mut self) -> Result<(u64, Result<(), Error>), Error> {
        let mut refusal = None;
        loop {
            let (cookie, done, error) = self.chunk(0, &mut [])?;
            if !self.begun.contains(&cookie) {
                return Err(not_asked(cookie));
            }
            refusal = refusal.or(error);
            if done {
                self.begun.remove(&cookie);
                return Ok((cookie, refusal.map_or(Ok(()), Err)));
            }
        }
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> Result<(), Error> {
        self.cookie += 1;
        let mut head = header(command, 0, self.cookie, offset, length);
        let stream = self.stream.get_mut();
        // A short write is sent at once; a long one is not worth a copy.
        let (together, apart) =
            if data.len() <= BUFFER_BYTES { (data, &[][..]) } else { (&[][..], data) };
        head.extend_from_slice(together);
        stream.write_all(&head)?;
        Ok(stream.write_all(apart)?)
    }

    /// One chunk of a reply.
    fn chunk(&mut self, offset: u64, into: &mut [u8]) -> Result<Chunk, Error> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        if be32(&head) == SIMPLE_REPLY_MAGIC {
            let (code, cookie) = simple_reply(&head).map_err(Error::Protocol)?;
            let refusal =
                (code != 0).then(|| Error::Refused { code, message: "no reason told".into() });
            if refusal.is_none() {
                self.stream.read_exact(into)?;
            }
            return Ok((cookie, true, refusal));
        }
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let (flags, kind, length) = (be16(&head[4..]), be16(&head[6..]), be32(&length));
        if be32(&head) != STRUCTURED_REPLY_MAGIC {
            return Err(Error::Protocol("the server sent something where a reply was due".into()));
        }
        let refusal = self.chunk_content(kind, length, offset, into)?;
        Ok((be64(&head[8..]), flags & CHUNK_FLAG_DONE != 0, refusal))
    }

    fn chunk_content(
        &mut self,
        kind: u16,
        length: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<Option<Error>, Error> {
        let beyond = || Error::Protocol("the server sent data that was not asked for".into());
        if kind == CHUNK_OFFSET_DATA {
            let mut at = [0; 8];
            self.stream.read_exact(&mut at)?;
            let len = length.checked_sub(8).ok_or_else(beyond)? as usize;
            let from = u64::from_be_bytes(at).checked_sub(offset).ok_or_else(beyond)? as usize;
            let part = from.checked_add(len).and_then(|end| into.get_mut(from..end));
            self.stream.read_exact(part.ok_or_else(beyond)?)?;
            return Ok(None);
        }
        if length > REPLY_BYTES_MAX {
            return Err(beyond());
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        match kind {
            CHUNK_NONE => Ok(None),
            CHUNK_OFFSET_HOLE if data.len() == 12 => {
                let from = be64(&data).checked_sub(offset).ok_or_else(beyond)? as usize;
                let end = from.checked_add(be32(&data[8..]) as usize);
                let part = end.and_then(|end| into.get_mut(from..end));
                part.ok_or_else(beyond)?.fill(0);
                Ok(None)
            }
            kind if kind & CHUNK_ERROR != 0 && data.len() >= 6 => {
                let end = (6 + usize::from(be16(&data[4..]))).min(data.len());
                let message = String::from_utf8_lossy(&data[6..end]).into_owned();
                Ok(Some(Error::Refused { code: be32(&data), message }))
            }
            kind => Err(Error::Protocol(format!("the server sent a chunk of kind {kind}"))),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A server that has gone already needs no farewell.
        self.stream.get_mut().write_all(&header(command::DISCONNECT, 0, 0, 0, 0)).ok();
    }
}

fn not_asked(cookie: u64) -> Error {
    Error::Protocol(format!("the server answered request {cookie}, which was not asked"))
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}
