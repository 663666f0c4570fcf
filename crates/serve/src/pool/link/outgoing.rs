//! What a link has to say: heads of messages, and between them data straight from where they are.
//!
//! Invariant: one send at a time; what it points to neither moves nor goes until it has completed.

use super::Crypt;
use crate::pool::block::Block;
use crate::runtime::data::push_iovec;
use pool::wire::{Message, WireError};

/// Most iovecs of one send; the kernel allows no more.
const IOVECS_MAX: usize = 1024;

#[derive(Default)]
struct Half {
    heads: Vec<u8>,
    /// Data, each behind the first so many bytes of the heads.
    data: Vec<(usize, Block)>,
}

impl Half {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let parts = self.data.iter().flat_map(move |(at, block)| {
            let head = &self.heads[from..*at];
            from = *at;
            [head, &block.bytes()[..]]
        });
        let last = self.data.last().map_or(0, |(at, _)| *at);
        parts.chain([&self.heads[last..]]).filter(|slice| !slice.is_empty())
    }

    fn bytes(&self) -> usize {
        self.heads.len() + self.data.len() * flash::BLOCK_BYTES
    }

    fn clear(&mut self) {
        self.heads.clear();
        self.data.clear();
    }
}

/// See the head of this file.
pub struct Outgoing {
    filling: Half,
    sending: Half,
    under_way: bool,
    iovecs: Vec<libc::iovec>,
    /// The first of them that is not wholly sent.
    next: usize,
    header: Box<libc::msghdr>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            filling: Half::default(),
            sending: Half::default(),
            under_way: false,
            iovecs: Vec::new(),
            next: 0,
            // SAFETY: a message header of zeroes is one without content.
            header: Box::new(unsafe { std::mem::zeroed() }),
        }
    }
}

impl Outgoing {
    /// Adds a message.
    pub fn add(&mut self, message: &Message<Block>) -> Result<(), WireError> {
        let encoded = message.encode()?;
        self.filling.heads.extend_from_slice(&encoded.head);
        let at = self.filling.heads.len();
        self.filling.data.extend(encoded.payload.into_iter().map(|block| (at, block.clone())));
        Ok(())
    }

    /// Bytes that the kernel has not taken.
    pub fn bytes(&self) -> usize {
        self.filling.bytes() + self.sending.bytes()
    }

    /// Turns what was added, and what TLS has to say, into the next send; `None` if one is under way or there
    /// is nothing to send.
    pub fn begin(&mut self, crypt: Option<&mut Crypt>) -> Option<*const libc::msghdr> {
        if self.under_way {
            return None;
        }
        std::mem::swap(&mut self.filling, &mut self.sending);
        if let Some(crypt) = crypt {
            let cipher = crypt.seal(self.sending.slices());
            self.sending.clear();
            self.sending.heads = cipher;
        }
        if self.sending.heads.is_empty() {
            return None;
        }
        self.next = 0;
        self.iovecs.clear();
        for slice in self.sending.slices() {
            push_iovec(&mut self.iovecs, slice);
        }
        self.under_way = true;
        Some(self.message())
    }

    fn message(&mut self) -> *const libc::msghdr {
        let left = &mut self.iovecs[self.next..];
        self.header.msg_iovlen = left.len().min(IOVECS_MAX) as _;
        self.header.msg_iov = left.as_mut_ptr();
        &raw const *self.header
    }

    /// The kernel took so many bytes. What is left of the send is to be sent at once; `None` if nothing is.
    pub fn sent(&mut self, mut bytes: usize) -> Option<*const libc::msghdr> {
        while let Some(iovec) = self.iovecs.get_mut(self.next) {
            if bytes < iovec.iov_len {
                iovec.iov_base = iovec.iov_base.wrapping_byte_add(bytes);
                iovec.iov_len -= bytes;
                return Some(self.message());
            }
            bytes -= iovec.iov_len;
            self.next += 1;
        }
        self.end();
        None
    }

    /// The send is over, whatever came of it.
    pub fn end(&mut self) {
        self.under_way = false;
        self.iovecs.clear();
        self.sending.clear();
    }

    /// A send is under way.
    pub fn is_sending(&self) -> bool {
        self.under_way
    }
}
