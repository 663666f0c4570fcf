//! One send of many pieces: what is not sent yet is sent next.
//!
//! Invariant: while a send is under way, what its pieces are stays in place; whoever owns the pieces sees to it.

use super::data::push_iovec;

/// Most iovecs of one message; the kernel allows no more.
pub const IOVECS_MAX: usize = 1024;

/// See the head of this file.
pub struct Gather {
    iovecs: Vec<libc::iovec>,
    /// The first of `iovecs` that is not wholly sent.
    next: usize,
    message: Box<libc::msghdr>,
    /// The kernel has a message that points to the pieces.
    under_way: bool,
}

impl Default for Gather {
    fn default() -> Self {
        // SAFETY: a message header of zeroes is one without content.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Self { iovecs: Vec::new(), next: 0, message, under_way: false }
    }
}

impl Gather {
    /// The message of these pieces, to be sent; none is under way.
    pub fn begin<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) -> *const libc::msghdr {
        self.next = 0;
        slices.for_each(|slice| push_iovec(&mut self.iovecs, slice));
        self.under_way = true;
        self.message()
    }

    /// The message of what is left to send. It stays in place until the send completes.
    fn message(&mut self) -> *const libc::msghdr {
        let left = &mut self.iovecs[self.next..];
        self.message.msg_iovlen = left.len().min(IOVECS_MAX) as _;
        self.message.msg_iov = left.as_mut_ptr();
        &raw const *self.message
    }

    /// The send that is under way has completed with `sent` bytes. What is left of it is to be sent at
    /// once; `None` if that was all, and [`Gather::end`] comes next.
    pub fn sent(&mut self, mut sent: usize) -> Option<*const libc::msghdr> {
        assert!(self.under_way, "a send that completes was under way");
        while let Some(iovec) = self.iovecs.get_mut(self.next) {
            if sent < iovec.iov_len {
                iovec.iov_base = iovec.iov_base.wrapping_byte_add(sent);
                iovec.iov_len -= sent;
                return Some(self.message());
            }
            sent -= iovec.iov_len;
            self.next += 1;
        }
        None
    }

    /// The send is over, whatever came of it: the kernel holds none of the pieces.
    pub fn end(&mut self) {
        self.under_way = false;
        self.iovecs.clear();
    }

    /// A send is under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }
}
