//! What is to be sent on a connection, in order. It does no I/O: the queue hands the memory to its ring.
//!
//! Invariant: while the ring sends, what it sends from stays where it is. So a part lies in memory of a tag, which stays until
//! its request is answered and the connection is over or has taken it.

use std::collections::VecDeque;

/// Parts that are sent at once.
const PARTS_MAX: usize = 64;

/// See the head of this file.
pub struct Outbox {
    parts: VecDeque<(*const u8, usize)>,
    iovecs: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
}

impl Outbox {
    /// There is nothing to send.
    pub fn new() -> Self {
        // SAFETY: all zeroes are a message of nothing to nobody.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Self { parts: VecDeque::new(), iovecs: Vec::with_capacity(PARTS_MAX), message }
    }

    /// Nothing of what was to be sent is, any more.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// These bytes are to be sent behind the others.
    pub fn push(&mut self, start: *const u8, bytes: usize) {
        self.parts.push_back((start, bytes));
    }

    /// What to send now, if there is anything. It is sent, or given up, before this is called again.
    pub fn outgoing(&mut self) -> Option<*const libc::msghdr> {
        if self.parts.is_empty() {
            return None;
        }
        self.iovecs.clear();
        let parts = self.parts.iter().take(PARTS_MAX);
        self.iovecs.extend(
            parts.map(|&(start, len)| libc::iovec {
                iov_base: start.cast_mut().cast(),
                iov_len: len,
            }),
        );
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len() as _;
        Some(&raw const *self.message)
    }

    /// So many bytes of it are sent.
    pub fn sent(&mut self, mut bytes: usize) {
        while let Some((start, len)) = self.parts.front_mut() {
            if bytes < *len {
                *start = start.wrapping_add(bytes);
                *len -= bytes;
                return;
            }
            bytes -= *len;
            self.parts.pop_front();
        }
    }
}
