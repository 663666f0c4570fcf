//! An NBD export as the target of a replay: one connection, as many requests in flight as the replay
//! wants; a thread takes the replies. Fixed newstyle with simple replies, which every server speaks.
//! What is written are random bytes. TLS is not spoken.

use super::live::{Answer, Event, Io, Live};
use crate::Failure;
use client::wire::{header, negotiate_simple, simple_reply};
use client::{Stream, parse};
use flash::Random;
use lab::trace::Op;
use serve::nbd::constants as wire;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

impl Nbd {
    /// Connects; refuses an export that cannot be written if it is to be.
    pub fn connect(uri: &str, write: bool) -> Result<Self, Failure> {
        let (address, export) = parse(uri)?;
        let failed = |error: io::Error| {
            format!("{uri}: {error}: is the server running, and the export's name right?")
        };
        let mut stream = Stream::dial(&address).map_err(failed)?;
        stream.set_patience(Some(HANDSHAKE_PATIENCE)).map_err(failed)?;
        let (capacity, flags) = negotiate_simple(&mut stream, &export).map_err(failed)?;
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

    /// What is written, from its beginning on.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
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
        let (error, cookie) = match simple_reply(&reply) {
            Ok(told) => told,
            Err(why) => return why,
        };
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
