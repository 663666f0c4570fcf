//! Replies: how a [`Request`] is answered, in the form its client negotiated.
//!
//! Invariant: a reply never lies about its size. The data that a header announces is exactly the
//! request's, chunks cover it in order and once, extents end where the request ends.
//!
//! The methods are the request's own and need no connection: they may be called wherever the
//! answer is known. They only append to `out`; the bytes of a read never pass through here.

use flash::RequestError;

use super::constants::*;
use super::wire::cut;
use super::{Error, Extent, Kind, Request};

impl Request {
    /// Answers anything but a read or a block status: done.
    pub fn reply_done(&self, out: &mut Vec<u8>) {
        let answers = matches!(self.kind, Kind::Read { .. } | Kind::BlockStatus { .. });
        assert!(!answers, "a read is answered with data, a block status with extents");
        // Also with structured replies: the simple form is four bytes shorter and always legal.
        push_simple(out, self.cookie, 0);
    }

    /// Answers a read whose data is all in hand: send exactly `len` bytes of it right after `out`.
    pub fn reply_data(&self, out: &mut Vec<u8>) {
        assert!(matches!(self.kind, Kind::Read { .. }), "only a read is answered with data");
        if self.structured {
            push_data_chunk(out, self.cookie, self.offset, self.len, CHUNK_FLAG_DONE);
        } else {
            push_simple(out, self.cookie, 0);
        }
    }

    /// Answers a read with data and holes, if its client can take that; else use
    /// [`reply_data`](Self::reply_data) with the zeroes in the data.
    pub fn reply_sparse(&self) -> Option<SparseReply> {
        let fragments = self.structured && self.kind == (Kind::Read { df: false });
        let (cookie, next, left) = (self.cookie, self.offset, self.len);
        fragments.then_some(SparseReply { cookie, next, left })
    }

    /// Answers a block status. `extents` tell the state of the export from the request's offset
    /// on; neighbours that are alike are merged, and what exceeds the request, the one extent
    /// a client may have asked for, or [`EXTENTS_MAX`] is left out. What they leave untold at the
    /// start counts as data, so that there is always an answer.
    pub fn reply_extents(&self, out: &mut Vec<u8>, extents: &[Extent]) {
        let Kind::BlockStatus { req_one } = self.kind else {
            panic!("only a block status is answered with extents")
        };
        let count_max = if req_one { 1 } else { EXTENTS_MAX };
        let merged = merge(extents, self.len, count_max);
        let len = (4 + 8 * merged.len()) as u32;
        push_chunk(out, self.cookie, CHUNK_BLOCK_STATUS, CHUNK_FLAG_DONE, len);
        out.extend_from_slice(&CONTEXT_ID.to_be_bytes());
        for (len, flags) in merged {
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
    }

    /// Answers with an error. Only a client with structured replies sees the message, cut to
    /// [`MESSAGE_BYTES_MAX`].
    pub fn reply_error(&self, out: &mut Vec<u8>, error: Error, message: &str) {
        push_error(out, self.structured, self.cookie, error, message);
    }

    /// Answers with an error at byte `offset` of the export, where the client can be told so.
    pub fn reply_error_at(&self, out: &mut Vec<u8>, error: Error, message: &str, offset: u64) {
        let inside = offset >= self.offset && offset - self.offset < u64::from(self.len);
        let located = matches!(
            self.kind,
            Kind::Read { .. } | Kind::Write { .. } | Kind::Trim { .. } | Kind::BlockStatus { .. }
        );
        if !(self.structured && inside && located) {
            return self.reply_error(out, error, message);
        }
        let message = cut(message, MESSAGE_BYTES_MAX).as_bytes();
        let len = (4 + 2 + message.len() + 8) as u32;
        push_chunk(out, self.cookie, CHUNK_ERROR_OFFSET, CHUNK_FLAG_DONE, len);
        push_error_body(out, error, message);
        out.extend_from_slice(&offset.to_be_bytes());
    }

    /// Answers with the error of the FTL.
    pub fn reply_failed(&self, out: &mut Vec<u8>, error: RequestError) {
        self.reply_error(out, error.into(), &error.to_string());
    }
}

/// The reply to one read, chunk by chunk, in ascending order. The chunk that ends the request ends
/// the reply; until then the client waits, so go on until [`left`](Self::left) is 0 or
/// [`fail`](Self::fail).
#[derive(Debug)]
#[must_use = "a reply that is not completed leaves the client waiting"]
pub struct SparseReply {
    cookie: u64,
    next: u64,
    left: u32,
}

impl SparseReply {
    /// Bytes of the request not yet told.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The next `len` bytes are data: send exactly as many right after `out`.
    pub fn data(&mut self, out: &mut Vec<u8>, len: u32) {
        let (offset, done) = self.advance(len);
        push_data_chunk(out, self.cookie, offset, len, done);
    }

    /// The next `len` bytes read as zeroes.
    pub fn hole(&mut self, out: &mut Vec<u8>, len: u32) {
        let (offset, done) = self.advance(len);
        push_chunk(out, self.cookie, CHUNK_OFFSET_HOLE, done, 12);
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
    }

    /// The rest cannot be had.
    pub fn fail(self, out: &mut Vec<u8>, error: Error, message: &str) {
        assert!(self.left > 0, "a complete reply has succeeded");
        push_error(out, true, self.cookie, error, message);
    }

    fn advance(&mut self, len: u32) -> (u64, u16) {
        assert!(len > 0, "an empty chunk is not allowed");
        assert!(len <= self.left, "chunks stay within the request");
        let offset = self.next;
        self.next += u64::from(len);
        self.left -= len;
        (offset, if self.left == 0 { CHUNK_FLAG_DONE } else { 0 })
    }
}

/// Lengths and flags of at most `count_max` (and at least one) unlike neighbours within `len`.
fn merge(extents: &[Extent], len: u32, count_max: usize) -> Vec<(u32, u32)> {
    let (mut merged, mut left) = (Vec::<(u32, u32)>::new(), len);
    for extent in extents.iter().filter(|extent| extent.len > 0) {
        let part = extent.len.min(u64::from(left)) as u32;
        let hole = if extent.hole { STATE_HOLE } else { 0 };
        let zero = if extent.zero { STATE_ZERO } else { 0 };
        let full = merged.len() == count_max;
        match merged.last_mut() {
            _ if part == 0 => break,
            Some((sum, flags)) if *flags == hole | zero => *sum += part,
            _ if full => break,
            _ => merged.push((part, hole | zero)),
        }
        left -= part;
    }
    if merged.is_empty() {
        merged.push((len, 0));
    }
    merged
}

/// An error reply: a simple one, or one chunk with a message.
pub(super) fn push_error(
    out: &mut Vec<u8>,
    structured: bool,
    cookie: u64,
    error: Error,
    message: &str,
) {
    if !structured {
        return push_simple(out, cookie, error as u32);
    }
    let message = cut(message, MESSAGE_BYTES_MAX).as_bytes();
    push_chunk(out, cookie, CHUNK_ERROR, CHUNK_FLAG_DONE, (4 + 2 + message.len()) as u32);
    push_error_body(out, error, message);
}

fn push_error_body(out: &mut Vec<u8>, error: Error, message: &[u8]) {
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
}

fn push_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn push_data_chunk(out: &mut Vec<u8>, cookie: u64, offset: u64, len: u32, flags: u16) {
    // Reads are bounded by Limits::payload_bytes, far from where this would wrap.
    let chunk_len = len.checked_add(8).expect("a read is bounded");
    push_chunk(out, cookie, CHUNK_OFFSET_DATA, flags, chunk_len);
    out.extend_from_slice(&offset.to_be_bytes());
}

fn push_chunk(out: &mut Vec<u8>, cookie: u64, chunk: u16, flags: u16, len: u32) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&chunk.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}
