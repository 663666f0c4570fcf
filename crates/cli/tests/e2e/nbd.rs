//! A small blocking NBD client: fixed newstyle handshake, simple replies, and requests that may be
//! in flight together. It exists because no tool lets a test see exactly which writes were
//! acknowledged at the instant the server died.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connected client past its handshake.
pub struct Client {
    stream: UnixStream,
    pub size: u64,
    pub flags: u16,
    cookie_next: u64,
    /// Bytes that the reply of each request in flight carries.
    pending: BTreeMap<u64, u32>,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    pub cookie: u64,
    /// 0, or an `errno` of the protocol.
    pub error: u32,
    /// What a read returned.
    pub data: Vec<u8>,
}

impl Client {
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = dial(socket)?;
        greet(&mut stream)?;
        let name_bytes = u32::try_from(export.len()).expect("a short name");
        let mut body = name_bytes.to_be_bytes().to_vec();
        body.extend_from_slice(export.as_bytes());
        body.extend_from_slice(&0u16.to_be_bytes());
        send_option(&mut stream, OPTION_GO, &body)?;
        let (mut size, mut flags) = (0, 0);
        loop {
            match read_option_reply(&mut stream)? {
                (REPLY_ACK, _) => break,
                (REPLY_INFO, info) if info.len() == 12 && info[..2] == [0, 0] => {
                    size = u64::from_be_bytes(info[2..10].try_into().expect("eight bytes"));
                    flags = u16::from_be_bytes(info[10..12].try_into().expect("two bytes"));
                }
                (REPLY_INFO, _) => {}
                (kind, text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(io::Error::other(format!("option refused ({kind:#x}): {text}")));
                }
            }
        }
        Ok(Self { stream, size, flags, cookie_next: 1, pending: BTreeMap::new() })
    }

    /// Sends a request and returns its cookie at once.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        let mut bytes = header(command, flags, cookie, offset, length);
        bytes.extend_from_slice(data);
        self.pending.insert(cookie, if command == READ { length } else { 0 });
        self.stream.write_all(&bytes)?;
        Ok(cookie)
    }

    /// Bytes as they are, for clients that misbehave.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// If something can be received, or the connection has ended, within this time.
    pub fn is_ready(&self, patience: Duration) -> bool {
        let mut asked =
            libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = libc::c_int::try_from(patience.as_millis()).expect("a short time");
        // SAFETY: one descriptor, which is open, in memory that lives as long as the call.
        unsafe { libc::poll(&raw mut asked, 1, ms) > 0 }
    }

    /// The next reply, of whichever request.
    pub fn receive(&mut self) -> io::Result<Answer> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let magic = u32::from_be_bytes(head[..4].try_into().expect("four bytes"));
        assert_eq!(magic, SIMPLE_REPLY_MAGIC, "a simple reply was due");
        let error = u32::from_be_bytes(head[4..8].try_into().expect("four bytes"));
        let cookie = u64::from_be_bytes(head[8..16].try_into().expect("eight bytes"));
        let length = self.pending.remove(&cookie).expect("a reply to something that was asked");
        let mut data = vec![0; if error == 0 { length as usize } else { 0 }];
        self.stream.read_exact(&mut data)?;
        Ok(Answer { cookie, error, data })
    }

    /// One request and its reply, with nothing else in flight.
    fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> Answer {
        assert!(self.pending.is_empty(), "nothing else is in flight");
        self.send(command, flags, offset, length, data).expect("the request was sent");
        self.receive().expect("a reply came")
    }

    /// Reads, or returns the error number.
    pub fn try_read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let answer = self.call(READ, 0, offset, length, &[]);
        if answer.error == 0 { Ok(answer.data) } else { Err(answer.error) }
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.try_read(offset, length).unwrap_or_else(|e| panic!("read at {offset}: errno {e}"))
    }

    /// Writes, or returns the error number.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        let length = u32::try_from(data.len()).expect("a short write");
        match self.call(WRITE, 0, offset, length, data).error {
            0 => Ok(()),
            error => Err(error),
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.try_write(offset, data).unwrap_or_else(|e| panic!("write at {offset}: errno {e}"));
    }

    pub fn flush(&mut self) {
        assert_eq!(self.call(FLUSH, 0, 0, 0, &[]).error, 0, "the flush succeeded");
    }

    /// Any command without data, for its error number.
    pub fn errno_of(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.call(command, flags, offset, length, &[]).error
    }
}

/// A connection that has said nothing yet. Reads give up after a while, so that a silent server
/// fails a test instead of hanging it.
pub fn dial(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Reads the server's greeting and answers it.
pub fn greet(stream: &mut UnixStream) -> io::Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(io::Error::other(format!("not an NBD greeting: {greeting:?}")));
    }
    // Fixed newstyle, and no 124 zeroes.
    stream.write_all(&3u32.to_be_bytes())
}

pub fn send_option(stream: &mut UnixStream, option: u32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).expect("a short option");
    stream.write_all(&option_header(option, length))?;
    stream.write_all(body)
}

/// The head of an option that announces `length` bytes.
pub fn option_header(option: u32, length: u32) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// The head of a request.
pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// The kind and the body of the next reply to an option.
pub fn read_option_reply(stream: &mut UnixStream) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let magic = u64::from_be_bytes(head[..8].try_into().expect("eight bytes"));
    if magic != OPTION_REPLY_MAGIC {
        return Err(io::Error::other(format!("not a reply to an option: {head:?}")));
    }
    let kind = u32::from_be_bytes(head[12..16].try_into().expect("four bytes"));
    let length = u32::from_be_bytes(head[16..20].try_into().expect("four bytes"));
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok((kind, body))
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const FLAG_FUA: u16 = 1;

pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;

pub const OPTION_GO: u32 = 7;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
