//! A connection between two parts of a pool: messages of `pool::wire` over a socket, in TLS if the pool has
//! certificates. All that is said in a turn goes out with one send.
//!
//! Invariants:
//! - while a receive is under way, the input and the payload that arrives stay where they are; while a send is,
//!   what it points to does;
//! - whatever does not decode ends the link: nothing behind it is believed.

mod echo;
mod outgoing;

pub use crate::runtime::crypt::Crypt;
pub use echo::{Echo, EchoCost, echo};

use super::block::Block;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::Ring;
use flash::BLOCK_BYTES;
use outgoing::Outgoing;
use pool::wire::{self, Decoded, Message, WireError};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes that one receive may take beyond a payload.
const INPUT_BYTES: usize = 256 << 10;

/// From this many missing bytes on, a payload is received where it is to stay.
const DIRECT_BYTES_MIN: usize = 8 << 10;

/// Why a link is of no use any more.
#[derive(Debug)]
pub enum LinkError {
    /// What came is no message.
    Wire(WireError),
    /// TLS failed.
    Tls(rustls::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(f),
            Self::Tls(error) => write!(
                f,
                "TLS failed: {error}: do both sides have certificates of the pool's authority?"
            ),
        }
    }
}

impl std::error::Error for LinkError {}

/// A message whose data are arriving.
struct Partial {
    message: Message<u32>,
    payload: Buffer,
    /// Bytes of the payload that are there.
    at: usize,
}

/// One side of a connection.
pub struct Link {
    socket: OwnedFd,
    crypt: Option<Crypt>,
    input: Buffer,
    /// What of `input` is received and not dealt with.
    start: usize,
    end: usize,
    partial: Option<Partial>,
    receiving: bool,
    /// Bytes of the payload that the receive under way may take.
    direct: usize,
    iovecs: Box<[libc::iovec; 2]>,
    header: Box<libc::msghdr>,
    outgoing: Outgoing,
    /// It is over: what is under way ends, and nothing begins.
    gone: bool,
}

impl Link {
    /// A connection that was just made or accepted.
    pub fn new(socket: OwnedFd, crypt: Option<Crypt>) -> Self {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            socket,
            crypt,
            input: Buffer::new((INPUT_BYTES / BLOCK_BYTES) as u32),
            start: 0,
            end: 0,
            partial: None,
            receiving: false,
            direct: 0,
            iovecs: Box::new([nothing; 2]),
            // SAFETY: a message header of zeroes is one without content.
            header: Box::new(unsafe { std::mem::zeroed() }),
            outgoing: Outgoing::default(),
            gone: false,
        }
    }

    /// Says something; it goes out with the next [`Link::send`].
    ///
    /// # Errors
    /// It is longer than the wire allows.
    pub fn say(&mut self, message: &Message<Block>) -> Result<(), WireError> {
        self.outgoing.add(message)
    }

    /// Bytes that were said and not taken by the kernel.
    pub fn unsent_bytes(&self) -> usize {
        self.outgoing.bytes()
    }

    /// Queues a receive, if none is under way.
    pub fn receive(&mut self, index: u32, ring: &mut Ring) {
        if self.receiving || self.gone {
            return;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == INPUT_BYTES {
            self.input.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut iovecs = 0;
        self.direct = 0;
        if let (Some(partial), None) = (&mut self.partial, &self.crypt) {
            let missing = &mut partial.payload.bytes_mut()[partial.at..];
            if missing.len() >= DIRECT_BYTES_MIN {
                self.direct = missing.len();
                self.iovecs[0] =
                    libc::iovec { iov_base: missing.as_mut_ptr().cast(), iov_len: missing.len() };
                iovecs = 1;
            }
        }
        let room = &mut self.input.bytes_mut()[self.end..];
        self.iovecs[iovecs] =
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = (iovecs + 1) as _;
        self.receiving = true;
        ring.link_receive(index, self.socket.as_raw_fd(), &raw mut *self.header);
    }

    /// The receive has completed, as the system call does. False: the other side is gone.
    ///
    /// # Errors
    /// What came cannot be decrypted.
    pub fn received(&mut self, result: i32) -> Result<bool, LinkError> {
        self.receiving = false;
        let Ok(bytes @ 1..) = usize::try_from(result) else { return Ok(false) };
        let direct = bytes.min(self.direct);
        if let Some(partial) = self.partial.as_mut().filter(|_| direct > 0) {
            partial.at += direct;
        }
        self.end += bytes - direct;
        if let Some(crypt) = &mut self.crypt {
            let taken = crypt.take(&self.input.bytes()[self.start..self.end]);
            self.start = self.end;
            taken.map_err(LinkError::Tls)?;
        }
        Ok(true)
    }

    /// The next whole message.
    ///
    /// # Errors
    /// What came is none.
    pub fn next(&mut self) -> Result<Option<Message<Block>>, LinkError> {
        loop {
            let input = match &self.crypt {
                Some(crypt) => crypt.plain(),
                None => &self.input.bytes()[self.start..self.end],
            };
            if let Some(partial) = &mut self.partial {
                let missing = &mut partial.payload.bytes_mut()[partial.at..];
                let taken = missing.len().min(input.len());
                missing[..taken].copy_from_slice(&input[..taken]);
                partial.at += taken;
                let whole = taken == missing.len();
                self.consume(taken);
                return Ok(if whole { self.partial.take().map(Partial::whole) } else { None });
            }
            if input.is_empty() {
                return Ok(None);
            }
            match wire::decode(input).map_err(LinkError::Wire)? {
                Decoded::More(_) => return Ok(None),
                Decoded::Message { message, head_bytes, payload_slots } => {
                    self.consume(head_bytes);
                    if payload_slots == 0 {
                        return Ok(Some(message.with_data(|_| unreachable!("it has no data"))));
                    }
                    let payload = Buffer::new(payload_slots);
                    self.partial = Some(Partial { message, payload, at: 0 });
                }
            }
        }
    }

    fn consume(&mut self, bytes: usize) {
        match &mut self.crypt {
            Some(crypt) => crypt.consume(bytes),
            None => self.start += bytes,
        }
    }

    /// Queues a send of all that was said, if none is under way.
    pub fn send(&mut self, index: u32, ring: &mut Ring) {
        if self.gone {
            return;
        }
        if let Some(message) = self.outgoing.begin(self.crypt.as_mut()) {
            ring.link_send(index, self.socket.as_raw_fd(), message);
        }
    }

    /// The send has completed, as the system call does. False: the other side is gone.
    pub fn sent(&mut self, index: u32, result: i32, ring: &mut Ring) -> bool {
        let Ok(bytes @ 1..) = usize::try_from(result) else {
            self.outgoing.end();
            return false;
        };
        match self.outgoing.sent(bytes) {
            Some(_) if self.gone => self.outgoing.end(),
            Some(rest) => ring.link_send(index, self.socket.as_raw_fd(), rest),
            None => self.send(index, ring),
        }
        true
    }

    /// Ends it: what is under way completes at once. It may be dropped once [`Link::is_idle`].
    pub fn hang_up(&mut self) {
        self.gone = true;
        // SAFETY: no memory is involved. An error means that the peer was faster.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// A send is under way.
    pub fn is_sending(&self) -> bool {
        self.outgoing.is_sending()
    }

    /// The kernel holds none of its memory.
    pub fn is_idle(&self) -> bool {
        !self.receiving && !self.outgoing.is_sending()
    }
}

impl Partial {
    fn whole(self) -> Message<Block> {
        let blocks = Block::all_of(self.payload);
        self.message.with_data(|index| blocks[index as usize].clone())
    }
}
