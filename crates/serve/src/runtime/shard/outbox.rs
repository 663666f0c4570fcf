//! What goes to a client: protocol bytes, and between them data straight from request buffers.
//! All that is ready goes out with one send.
//!
//! Invariants: one send at a time; while it is under way, nothing that its iovecs point to moves,
//! changes or is given back. What is added meanwhile goes to the other half, and what is given up
//! meanwhile (the client is gone, or took too long) is of the other half.

use crate::front::Ticket;
use crate::latency::Timed;
use crate::runtime::data::Data;
use crate::runtime::gather::Gather;
use std::vec::Drain;

/// A request that is answered, and its buffer: both are given back when the reply was sent.
pub struct Answered {
    /// For [`crate::front::Front::finish`].
    pub ticket: Ticket,
    /// The data of a read.
    pub data: Option<Data>,
    /// When what happened to it.
    pub timed: Option<Timed>,
}

/// One half: replies in order.
#[derive(Default)]
pub struct Replies {
    /// Protocol bytes.
    pub bytes: Vec<u8>,
    data: Vec<Part>,
    /// Bytes of all `data`.
    data_bytes: usize,
    answered: Vec<Answered>,
}

/// Goes out behind the first `at` protocol bytes.
struct Part {
    at: usize,
    /// Index into `answered`.
    answered: usize,
    start: usize,
    len: usize,
}

impl Replies {
    /// A request was answered by what `bytes` ends with.
    pub fn answer(&mut self, answered: Answered) {
        self.answered.push(answered);
    }

    /// As `answer`, and `len` bytes of the buffer from `start` on follow the protocol bytes.
    pub fn answer_with_data(&mut self, answered: Answered, start: usize, len: usize) {
        let data = Part { at: self.bytes.len(), answered: self.answered.len(), start, len };
        self.data.push(data);
        self.data_bytes += len;
        self.answered.push(answered);
    }

    /// The protocol bytes, to add to them, and the data put behind them last.
    pub fn last_data(&mut self) -> (&mut Vec<u8>, Option<impl Iterator<Item = &[u8]>>) {
        let part = self.data.last().and_then(|part| {
            let data = self.answered[part.answered].data.as_ref()?;
            Some(data.slices(part.start, part.len))
        });
        (&mut self.bytes, part)
    }

    /// Bytes of data that wait to be sent.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Empties it, and gives back what it held.
    fn forget(&mut self) -> Drain<'_, Answered> {
        self.bytes.clear();
        self.data.clear();
        self.data_bytes = 0;
        self.answered.drain(..)
    }

    /// Everything in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let parts = self.data.iter().flat_map(move |data| {
            let protocol = &self.bytes[from..data.at];
            from = data.at;
            let payload = self.answered[data.answered].data.as_ref();
            let payload = payload.map(|payload| payload.slices(data.start, data.len));
            std::iter::once(protocol).chain(payload.into_iter().flatten())
        });
        let last = self.data.last().map_or(0, |data| data.at);
        parts.chain(std::iter::once(&self.bytes[last..])).filter(|slice| !slice.is_empty())
    }
}

/// Replies to a client: one half is being sent, the other being filled.
#[derive(Default)]
pub struct Outbox {
    /// New replies go here.
    pub filling: Replies,
    sending: Replies,
    /// The send of `sending`.
    gather: Gather,
}

impl Outbox {
    /// Turns what was filled into the next message to send. `None` if one is under way, or if there is
    /// nothing to send.
    pub fn begin(&mut self) -> Option<*const libc::msghdr> {
        if self.gather.is_under_way() || self.filling.is_empty() {
            return None;
        }
        std::mem::swap(&mut self.filling, &mut self.sending);
        Some(self.gather.begin(self.sending.slices()))
    }

    /// The send that is under way has completed with `sent` bytes. What is left of it is to be sent at
    /// once; `None` if that was all, and [`Outbox::finish`] comes next.
    pub fn sent(&mut self, sent: usize) -> Option<*const libc::msghdr> {
        self.gather.sent(sent)
    }

    /// The send has completed, or failed: gives back what it held.
    pub fn finish(&mut self) -> Drain<'_, Answered> {
        assert!(self.gather.is_under_way(), "only a send that has completed gives anything back");
        self.gather.end();
        self.sending.forget()
    }

    /// Nobody will take what was filled: gives it back. A send that is under way keeps what is its own
    /// until it completes.
    pub fn discard(&mut self) -> Drain<'_, Answered> {
        self.filling.forget()
    }

    /// A send is under way.
    pub fn is_sending(&self) -> bool {
        self.gather.is_under_way()
    }

    /// Protocol bytes that the client has not taken.
    pub fn unsent_bytes(&self) -> usize {
        self.filling.bytes.len() + self.sending.bytes.len()
    }

    /// True if nothing is sent or to be sent.
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.sending.is_empty()
    }

    /// Replaces what was filled by its encryption, keeping what it holds until it is sent.
    pub fn encrypt(&mut self, encrypt: impl FnOnce(&Replies) -> Vec<u8>) {
        self.filling.bytes = encrypt(&self.filling);
        self.filling.data.clear();
        self.filling.data_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
