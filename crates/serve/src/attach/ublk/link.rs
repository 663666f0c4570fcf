//! A queue's connection to its volume: what is to be sent, and the answers as they come. It does no I/O: the queue hands
//! the memory to its ring.
//!
//! Invariant: while the ring sends or receives, what it sends from or receives to stays where it is.

use super::asked::Asked;
use client::wire;
use std::collections::VecDeque;

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 28;
/// Bytes of an answer's head.
const REPLY_BYTES: usize = 16;
/// What is received at once, unless it is the data of a read.
const INPUT_BYTES: usize = 64 << 10;
/// From so many missing bytes on, data is received where it is to go.
const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// Parts that are sent at once.
const PARTS_MAX: usize = 64;

/// What the queue knows of a tag.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The request, while it is with us.
    pub asked: Option<Asked>,
    /// Its place among all that came.
    pub came: u64,
    /// As which it was sent last.
    pub cookie: u64,
    /// The driver waits for nothing of this tag any more.
    pub gone: bool,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// The request of this tag has ended, with an error unless it is 0.
    Done(u16, u32),
    /// This is no answer to anything that was asked.
    Nonsense,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    Head,
    /// Data of a tag's read, from this byte on.
    Data(u16, u32),
}

/// Memory of a tag's data, by tag.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Of the first tag.
    pub start: *mut u8,
    /// Of each.
    pub io_bytes: u32,
}

impl Memory {
    /// Where the data of a tag is.
    pub fn of(&self, tag: u16) -> *mut u8 {
        // The memory holds that of every tag.
        self.start.wrapping_add(usize::from(tag) * self.io_bytes as usize)
    }
}

/// See the head of this file.
pub struct Link {
    memory: Memory,
    headers: Vec<[u8; HEADER_BYTES]>,
    /// What is to be sent, in order.
    parts: VecDeque<(*const u8, usize)>,
    iovecs: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
    input: Vec<u8>,
    /// What of it is received and not looked at.
    have: (usize, usize),
    /// An incomplete head.
    head: Vec<u8>,
    due: Due,
    sent: u64,
}

impl Link {
    /// Nothing is asked yet.
    pub fn new(depth: u16, memory: Memory) -> Self {
        // SAFETY: all zeroes are a message of nothing to nobody.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Self {
            memory,
            headers: vec![[0; HEADER_BYTES]; depth.into()],
            parts: VecDeque::new(),
            iovecs: Vec::with_capacity(PARTS_MAX),
            message,
            input: vec![0; INPUT_BYTES],
            have: (0, 0),
            head: Vec::with_capacity(REPLY_BYTES),
            due: Due::Head,
            sent: 0,
        }
    }

    /// A new connection: nothing of the one before counts.
    pub fn reset(&mut self) {
        self.parts.clear();
        self.head.clear();
        (self.have, self.due) = ((0, 0), Due::Head);
    }

    /// Asks for what a slot holds.
    pub fn ask(&mut self, tag: u16, slot: &mut Slot) {
        let Some(asked) = slot.asked else { return };
        self.sent += 1;
        slot.cookie = self.sent << 16 | u64::from(tag);
        let Asked { command, flags, offset, len } = asked;
        let header = &mut self.headers[usize::from(tag)];
        header.copy_from_slice(&wire::header(command, flags, slot.cookie, offset, len));
        self.parts.push_back((header.as_ptr(), HEADER_BYTES));
        if command == wire::command::WRITE {
            self.parts.push_back((self.memory.of(tag), len as usize));
        }
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

    /// Where the next bytes are to be received, and how many.
    pub fn incoming(&mut self, slots: &[Slot]) -> (*mut u8, u32) {
        if let Due::Data(tag, at) = self.due {
            let left = data_of(slots, tag) - at;
            if left >= DIRECT_BYTES_MIN {
                return (self.memory.of(tag).wrapping_add(at as usize), left);
            }
        }
        (self.input.as_mut_ptr(), INPUT_BYTES as u32)
    }

    /// So many bytes were received there.
    pub fn received(&mut self, bytes: u32, slots: &[Slot]) {
        match self.due {
            Due::Data(tag, at) if data_of(slots, tag) - at >= DIRECT_BYTES_MIN => {
                self.due = Due::Data(tag, at + bytes);
            }
            _ => {
                // What was left of a head stands before it.
                let (from, to) = self.have;
                debug_assert_eq!(from, to, "all that was received is looked at before more is");
                self.have = (0, bytes as usize);
            }
        }
    }

    /// The next thing that was heard, if it is all there.
    pub fn hear(&mut self, slots: &[Slot]) -> Option<Heard> {
        loop {
            match self.due {
                Due::Head => {
                    let (from, to) = self.have;
                    let taken = (REPLY_BYTES - self.head.len()).min(to - from);
                    self.head.extend_from_slice(&self.input[from..from + taken]);
                    self.have.0 += taken;
                    let whole: [u8; REPLY_BYTES] = self.head.as_slice().try_into().ok()?;
                    self.head.clear();
                    let Some((tag, error)) = answered(&whole, slots) else {
                        return Some(Heard::Nonsense);
                    };
                    let reads = slots[usize::from(tag)].asked.map(|asked| asked.command);
                    if error != 0 || reads != Some(wire::command::READ) {
                        return Some(Heard::Done(tag, error));
                    }
                    self.due = Due::Data(tag, 0);
                }
                Due::Data(tag, at) => {
                    let (from, to) = self.have;
                    let left = (data_of(slots, tag) - at) as usize;
                    let taken = left.min(to - from);
                    let into = self.memory.of(tag).wrapping_add(at as usize);
                    // SAFETY: within the memory of the tag, which the driver has left to us until it is answered.
                    unsafe {
                        std::ptr::copy_nonoverlapping(self.input[from..].as_ptr(), into, taken);
                    }
                    self.have.0 += taken;
                    if taken < left {
                        self.due = Due::Data(tag, at + taken as u32);
                        return None;
                    }
                    self.due = Due::Head;
                    return Some(Heard::Done(tag, 0));
                }
            }
        }
    }
}

/// Bytes that the read of a tag wants.
fn data_of(slots: &[Slot], tag: u16) -> u32 {
    slots[usize::from(tag)].asked.map_or(0, |asked| asked.data_bytes())
}

/// Which tag is answered, and with which error; `None` if it is not one that was asked.
fn answered(head: &[u8; REPLY_BYTES], slots: &[Slot]) -> Option<(u16, u32)> {
    let (error, cookie) = wire::simple_reply(head).ok()?;
    let tag = cookie as u16;
    let slot = slots.get(usize::from(tag))?;
    (slot.asked.is_some() && slot.cookie == cookie).then_some((tag, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::ublk::abi::{self, Descriptor};

    const IO_BYTES: u32 = 64 << 10;

    struct Queue {
        memory: Vec<u8>,
        slots: Vec<Slot>,
        link: Link,
    }

    fn queue() -> Queue {
        let mut memory = vec![0; 4 * IO_BYTES as usize];
        let link = Link::new(4, Memory { start: memory.as_mut_ptr(), io_bytes: IO_BYTES });
        Queue { memory, slots: vec![Slot::default(); 4], link }
    }

    impl Queue {
        fn ask(&mut self, tag: u16, operation: u8, sectors: u32) {
            let descriptor = Descriptor::new(operation.into(), 8, sectors);
            self.slots[usize::from(tag)].asked = Asked::of(&descriptor, IO_BYTES);
            self.link.ask(tag, &mut self.slots[usize::from(tag)]);
        }

        /// Takes all that is to be sent, `most` bytes at a time.
        fn sent(&mut self, most: usize) -> Vec<u8> {
            let mut all = Vec::new();
            while let Some(message) = self.link.outgoing() {
                // SAFETY: the link's own, which points to its headers and our memory.
                let parts = unsafe {
                    std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen)
                };
                let mut left = most;
                for part in parts {
                    let bytes = part.iov_len.min(left);
                    // SAFETY: as above.
                    all.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(part.iov_base.cast::<u8>(), bytes)
                    });
                    left -= bytes;
                }
                self.link.sent(most - left);
            }
            all
        }

        /// Brings bytes, `most` at a time; what was heard.
        fn bring(&mut self, bytes: &[u8], most: usize) -> Vec<Heard> {
            let (mut rest, mut heard) = (bytes, Vec::new());
            while !rest.is_empty() {
                let (into, room) = self.link.incoming(&self.slots);
                let taken = rest.len().min(most).min(room as usize);
                // SAFETY: there is so much room.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), into, taken) };
                rest = &rest[taken..];
                self.link.received(taken as u32, &self.slots);
                while let Some(one) = self.link.hear(&self.slots) {
                    heard.push(one);
                    if let Heard::Done(tag, _) = one {
                        self.slots[usize::from(tag)].asked = None;
                    }
                }
            }
            heard
        }

        fn reply(&self, tag: u16, error: u32) -> Vec<u8> {
            let mut bytes = 0x6744_6698u32.to_be_bytes().to_vec();
            bytes.extend(error.to_be_bytes());
            bytes.extend(self.slots[usize::from(tag)].cookie.to_be_bytes());
            bytes
        }
    }

    #[test]
    fn requests_go_out_with_their_data_however_little_is_sent_at_a_time() {
        for most in [1, 7, 100, 1 << 20] {
            let mut queue = queue();
            queue.memory[IO_BYTES as usize..][..1024].fill(9);
            queue.ask(0, abi::READ, 2);
            queue.ask(1, abi::WRITE, 2);
            queue.ask(2, abi::FLUSH, 0);
            let sent = queue.sent(most);
            assert_eq!(sent.len(), 3 * HEADER_BYTES + 1024, "{most}");
            assert!(sent[2 * HEADER_BYTES..][..1024].iter().all(|&byte| byte == 9), "{most}");
            assert_eq!(sent[6..8], [0, 0]);
            assert_eq!(sent[HEADER_BYTES + 6..][..2], [0, 1]);
        }
    }

    #[test]
    fn answers_come_in_any_order_and_in_pieces() {
        for most in [1, 5, 17, 1 << 20] {
            let mut queue = queue();
            queue.ask(0, abi::READ, 64);
            queue.ask(1, abi::WRITE, 2);
            queue.ask(3, abi::READ, 1);
            let mut bytes = queue.reply(1, 28);
            bytes.extend(queue.reply(3, 0));
            bytes.extend([3; 512]);
            bytes.extend(queue.reply(0, 0));
            bytes.extend((0..64 * 512).map(|at| at as u8));
            let heard = queue.bring(&bytes, most);
            assert_eq!(heard, [Heard::Done(1, 28), Heard::Done(3, 0), Heard::Done(0, 0)], "{most}");
            assert!(queue.memory[..64 * 512].iter().enumerate().all(|(at, &b)| b == at as u8));
            assert!(queue.memory[3 * IO_BYTES as usize..][..512].iter().all(|&byte| byte == 3));
        }
    }

    #[test]
    fn what_was_not_asked_is_nonsense() {
        let mut queue = queue();
        queue.ask(0, abi::FLUSH, 0);
        let old = queue.reply(0, 0);
        // Asked again, over another connection.
        queue.link.reset();
        let mut slot = queue.slots[0];
        queue.link.ask(0, &mut slot);
        queue.slots[0] = slot;
        assert_eq!(queue.bring(&old, 99), [Heard::Nonsense]);
        let reply = queue.reply(2, 0);
        assert_eq!(queue.bring(&reply, 99), [Heard::Nonsense]);
        assert_eq!(queue.bring(&[0; 16], 99), [Heard::Nonsense]);
    }
}
