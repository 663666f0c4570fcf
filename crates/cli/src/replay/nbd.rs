//! An NBD export as the target of a replay: one connection, as many requests in flight as the replay
//! wants; a thread takes the replies. Fixed newstyle with simple replies, which every server speaks.
//! What is written are random bytes. TLS is not spoken.

use super::live::{Answer, Event, Io, Live};
use crate::Failure;
use flash::Random;
use lab::trace::Op;
use serve::nbd::constants as wire;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT_DEFAULT: u16 = 10809;
/// The protocol's default limit is 32 MiB; smaller pieces interleave better.
const PIECE_BYTES: u64 = 1 << 20;
/// A trim carries no payload: it may be as long as a request can say, in whole blocks.
const TRIM_BYTES: u64 = 1 << 30;
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(20);

/// See the head of this file.
pub struct Nbd {
    stream: Stream,
    capacity: u64,
    flags: u16,
    pending: Arc<Pending>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    receiver: Option<JoinHandle<()>>,
    cookie_last: u64,
    payload: Vec<u8>,
}

/// Requests without a reply, by cookie: the token, and the bytes that the reply brings.
type Pending = Mutex<HashMap<u64, (u64, u64)>>;

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Where a server is: nbd+unix:///EXPORT?socket=PATH or nbd://HOST[:PORT]/EXPORT.
#[derive(Debug, PartialEq)]
enum Address {
    Unix(String),
    Tcp(String, u16),
}

impl Nbd {
    /// Connects; refuses an export that cannot be written if it is to be.
    pub fn connect(uri: &str, write: bool) -> Result<Self, Failure> {
        let (address, export) = parse(uri)?;
        let failed = |error: io::Error| {
            format!("{uri}: {error}: is the server running, and the export's name right?")
        };
        let mut stream = Stream::dial(&address).map_err(failed)?;
        stream.set_patience(Some(HANDSHAKE_PATIENCE)).map_err(failed)?;
        let (capacity, flags) = negotiate(&mut stream, &export).map_err(failed)?;
        stream.set_patience(None).map_err(failed)?;
        if write && flags & wire::SEND_READ_ONLY != 0 {
            return Err(format!(
                "{uri}: is read-only: replay only the reads with --read-threads N --write-threads 0"
            ));
        }
        let pending = Arc::<Pending>::default();
        let (sender, events) = channel();
        let receiver = {
            let (replies, pending) = (stream.again().map_err(failed)?, Arc::clone(&pending));
            let sender = sender.clone();
            std::thread::spawn(move || {
                let why = receive(BufReader::new(replies), &pending, &sender);
                sender.send(Event::Lost(why)).ok();
            })
        };
        let mut random = Random::new(1);
        let words = (0..PIECE_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes());
        let (payload, receiver) = (words.collect(), Some(receiver));
        Ok(Self {
            stream,
            capacity,
            flags,
            pending,
            sender,
            events,
            receiver,
            cookie_last: 0,
            payload,
        })
    }

    /// What the server would have to offer for this I/O and does not.
    fn lacks(&self, io: &Io) -> Option<&'static str> {
        let has = |flag: u16| self.flags & flag != 0;
        match io.op {
            Op::Trim if !has(wire::SEND_TRIM) => Some("the server takes no trims"),
            Op::Flush if !has(wire::SEND_FLUSH) => Some("the server takes no flushes"),
            _ if io.fua && !has(wire::SEND_FUA) => Some("the server takes no FUA"),
            _ => None,
        }
    }

    fn send(&mut self, io: &Io) -> io::Result<()> {
        self.cookie_last += 1;
        let cookie = self.cookie_last;
        let (command, bytes_read) = match io.op {
            Op::Read => (wire::CMD_READ, io.length),
            Op::Write => (wire::CMD_WRITE, 0),
            Op::Trim => (wire::CMD_TRIM, 0),
            Op::Flush => (wire::CMD_FLUSH, 0),
        };
        let flags = if io.fua { wire::CMD_FLAG_FUA } else { 0 };
        lock(&self.pending).insert(cookie, (io.token, bytes_read));
        let header = header(command, flags, cookie, io.offset, io.length as u32);
        self.stream.write_all(&header)?;
        match io.op {
            Op::Write => self.stream.write_all(&self.payload[..io.length as usize]),
            _ => Ok(()),
        }
    }
}

fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(wire::REQUEST_HEADER_BYTES);
    header.extend(wire::REQUEST_MAGIC.to_be_bytes());
    header.extend(flags.to_be_bytes());
    header.extend(command.to_be_bytes());
    header.extend(cookie.to_be_bytes());
    header.extend(offset.to_be_bytes());
    header.extend(length.to_be_bytes());
    header
}

fn lock(pending: &Pending) -> std::sync::MutexGuard<'_, HashMap<u64, (u64, u64)>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live for Nbd {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn longest(&self, op: Op) -> u64 {
        if op == Op::Trim { TRIM_BYTES } else { PIECE_BYTES }
    }

    fn submit(&mut self, io: Io) -> Result<(), Failure> {
        if let Some(lack) = self.lacks(&io) {
            let answer = Answer { token: io.token, at: Instant::now(), error: Some(lack.into()) };
            return self.sender.send(Event::Answer(answer)).map_err(|_| "nobody listens".into());
        }
        self.send(&io).map_err(|error| format!("the connection broke: {error}"))
    }

    fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        // A server that has gone already needs no farewell.
        let _ = self.stream.write_all(&header(wire::CMD_DISC, 0, 0, 0, 0));
        self.stream.close();
        if let Some(receiver) = self.receiver.take() {
            receiver.join().ok();
        }
    }
}

/// Takes replies until the connection ends; says why it did.
fn receive(mut replies: impl Read, pending: &Pending, sender: &Sender<Event>) -> String {
    let mut data = Vec::new();
    loop {
        let mut reply = [0; wire::SIMPLE_REPLY_BYTES];
        if let Err(error) = replies.read_exact(&mut reply) {
            return format!("the connection ended: {error}");
        }
        let at = Instant::now();
        let (magic, error) = (be32(&reply), be32(&reply[4..]));
        let cookie = u64::from(be32(&reply[8..])) << 32 | u64::from(be32(&reply[12..]));
        if magic != wire::SIMPLE_REPLY_MAGIC {
            return format!("the server sent {magic:#x} where a reply was due");
        }
        let Some((token, bytes)) = lock(pending).remove(&cookie) else {
            return format!("the server answered request {cookie}, which was not asked");
        };
        // Latency is up to the data's last byte.
        let mut at_end = at;
        if error == 0 && bytes > 0 {
            data.resize(bytes as usize, 0);
            if let Err(error) = replies.read_exact(&mut data) {
                return format!("the connection ended: {error}");
            }
            at_end = Instant::now();
        }
        let error = (error != 0).then(|| format!("the server's error {error}"));
        if sender.send(Event::Answer(Answer { token, at: at_end, error })).is_err() {
            return "nobody listens".into();
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

/// Chooses an export, the old way that every server knows; its size and flags.
fn negotiate(stream: &mut Stream, export: &str) -> io::Result<(u64, u16)> {
    let refused = |what: &str| io::Error::other(what.to_owned());
    let mut greeting = [0; wire::GREETING_BYTES];
    stream.read_exact(&mut greeting)?;
    if greeting[..8] != wire::MAGIC.to_be_bytes()
        || greeting[8..16] != wire::OPTION_MAGIC.to_be_bytes()
    {
        return Err(refused("does not greet as an NBD server"));
    }
    let flags = wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES;
    let offered = u16::from_be_bytes([greeting[16], greeting[17]]);
    stream.write_all(&u32::from(flags & offered).to_be_bytes())?;
    let mut option = Vec::from(wire::OPTION_MAGIC.to_be_bytes());
    option.extend(wire::OPT_EXPORT_NAME.to_be_bytes());
    option.extend((export.len() as u32).to_be_bytes());
    option.extend(export.as_bytes());
    stream.write_all(&option)?;
    let mut answer = [0; 10];
    stream
        .read_exact(&mut answer)
        .map_err(|_| refused("the server does not know the export, or asks for TLS"))?;
    if offered & wire::FLAG_NO_ZEROES == 0 {
        stream.read_exact(&mut [0; wire::EXPORT_NAME_PADDING])?;
    }
    let size = u64::from(be32(&answer)) << 32 | u64::from(be32(&answer[4..]));
    Ok((size, u16::from_be_bytes([answer[8], answer[9]])))
}

fn parse(uri: &str) -> Result<(Address, String), Failure> {
    let wrong = |why: &str| {
        Err(format!(
            "{uri}: {why}: for example nbd+unix:///default?socket=weir-data/nbd.sock or \
             nbd://127.0.0.1:10809/default"
        ))
    };
    if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
        let Some((export, query)) = rest.split_once('?') else {
            return wrong("has no ?socket=PATH");
        };
        let mut pairs = query.split('&');
        return match pairs.find_map(|pair| pair.strip_prefix("socket=")) {
            Some(path) if !path.is_empty() => Ok((Address::Unix(path.into()), export.into())),
            _ => wrong("has no ?socket=PATH"),
        };
    }
    let Some(rest) = uri.strip_prefix("nbd://") else {
        return wrong("only nbd+unix:// and nbd:// are spoken");
    };
    let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
    let address = match host.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((host, port)) if !port.contains(']') => match port.parse() {
            Ok(port) => Address::Tcp(host.into(), port),
            Err(_) => return wrong("the port is not a number"),
        },
        _ => Address::Tcp(host.into(), PORT_DEFAULT),
    };
    match &address {
        Address::Tcp(host, _) if host.is_empty() => wrong("has no host"),
        _ => Ok((address, export.into())),
    }
}

impl Stream {
    fn dial(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port))?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        })
    }

    fn again(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(patience),
            Self::Tcp(stream) => stream.set_read_timeout(patience),
        }
    }

    /// Ends the connection for the thread that reads from it too.
    fn close(&self) {
        match self {
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both).ok(),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both).ok(),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, parse};

    #[test]
    fn addresses_are_read_and_wrong_ones_told() {
        let unix = Address::Unix("a/nbd.sock".into());
        assert_eq!(parse("nbd+unix:///x?socket=a/nbd.sock"), Ok((unix, "x".into())));
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(parse("nbd://h/x"), Ok((tcp("h", 10809), "x".into())));
        assert_eq!(parse("nbd://[::1]:99"), Ok((tcp("[::1]", 99), String::new())));
        for wrong in ["nbd+unix:///x", "nbds://h/x", "nbd:///x", "nbd://h:p/x", "nbd+unix:///x?s=1"]
        {
            assert!(parse(wrong).unwrap_err().contains("for example"), "{wrong}");
        }
    }
}
