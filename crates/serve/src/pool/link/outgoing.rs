//! What a link has to say: heads of messages, and between them data straight from where they are.
//!
//! Invariant: one send at a time; what it points to neither moves nor goes until it has completed.

use super::Crypt;
use crate::pool::block::Block;
use crate::runtime::gather::Gather;
use pool::wire::{Message, WireError};

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
#[derive(Default)]
pub struct Outgoing {
    filling: Half,
    sending: Half,
    gather: Gather,
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
        if self.gather.is_under_way() {
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
        Some(self.gather.begin(self.sending.slices()))
    }

    /// The kernel took so many bytes. What is left of the send is to be sent at once; `None` if nothing is.
    pub fn sent(&mut self, bytes: usize) -> Option<*const libc::msghdr> {
        let rest = self.gather.sent(bytes);
        if rest.is_none() {
            self.end();
        }
        rest
    }

    /// The send is over, whatever came of it.
    pub fn end(&mut self) {
        self.gather.end();
        self.sending.clear();
    }

    /// A send is under way.
    pub fn is_sending(&self) -> bool {
        self.gather.is_under_way()
    }
}
