//! A queue's connection to its volume: what is to be sent, and the answers as they come. It does no I/O: the queue hands
//! the memory to its ring.
//!
//! Invariant: while the ring receives, what it receives to stays where it is.

use super::abi::Descriptor;
use super::asked::Asked;
use super::outbox::Outbox;
use super::wire::{Heard, Memory, Slot, Wire};
use client::wire;
use std::io;

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 28;
/// Bytes of an answer's head.
const REPLY_BYTES: usize = 16;
/// What is received at once, unless it is the data of a read.
const INPUT_BYTES: usize = 64 << 10;
/// From so many missing bytes on, data is received where it is to go.
const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// Of NBD: the server is stopping, so that another one will have to be asked.
const ESHUTDOWN: u32 = 108;

/// What the next bytes are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    Head,
    /// Data of a tag's read, from this byte on.
    Data(u16, u32),
}

/// See the head of this file.
pub struct Link {
    memory: Memory,
    headers: Vec<[u8; HEADER_BYTES]>,
    outbox: Outbox,
    /// As which the request of each tag was sent last.
    cookies: Vec<u64>,
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
        Self {
            memory,
            headers: vec![[0; HEADER_BYTES]; depth.into()],
            outbox: Outbox::new(),
            cookies: vec![0; depth.into()],
            input: vec![0; INPUT_BYTES],
            have: (0, 0),
            head: Vec::with_capacity(REPLY_BYTES),
            due: Due::Head,
            sent: 0,
        }
    }

    /// Which tag is answered, with which error, and what was asked; `None` if it is not one that was asked.
    fn answered(
        &self,
        head: &[u8; REPLY_BYTES],
        slots: &[Slot<Asked>],
    ) -> Option<(u16, u32, Asked)> {
        let (error, cookie) = wire::simple_reply(head).ok()?;
        let tag = cookie as u16;
        let asked = slots.get(usize::from(tag))?.asked?;
        (self.cookies[usize::from(tag)] == cookie).then_some((tag, error, asked))
    }
}

impl Wire for Link {
    type Asked = Asked;

    fn understand(&self, descriptor: &Descriptor) -> Option<Asked> {
        Asked::of(descriptor, self.memory.io_bytes)
    }

    fn address(&mut self, tag: u16) -> u64 {
        self.memory.of(tag) as u64
    }

    fn take(&mut self, _: u16, _: &Asked) -> io::Result<()> {
        // The driver has put the data into the memory.
        Ok(())
    }

    fn reset(&mut self) {
        self.outbox.clear();
        self.head.clear();
        (self.have, self.due) = ((0, 0), Due::Head);
    }

    fn ask(&mut self, tag: u16, asked: &Asked) {
        self.sent += 1;
        let cookie = self.sent << 16 | u64::from(tag);
        let Asked { command, flags, offset, len } = *asked;
        self.cookies[usize::from(tag)] = cookie;
        let header = &mut self.headers[usize::from(tag)];
        header.copy_from_slice(&wire::header(command, flags, cookie, offset, len));
        self.outbox.push(header.as_ptr(), HEADER_BYTES);
        if command == wire::command::WRITE {
            self.outbox.push(self.memory.of(tag), len as usize);
        }
    }

    fn ask_again(&mut self, tag: u16, slot: &Slot<Asked>) -> Result<(), i32> {
        // Whatever a volume does may be done twice.
        if let Some(asked) = &slot.asked {
            self.ask(tag, asked);
        }
        Ok(())
    }

    fn outgoing(&mut self) -> Option<*const libc::msghdr> {
        self.outbox.outgoing()
    }

    fn sent(&mut self, bytes: usize) {
        self.outbox.sent(bytes);
    }

    fn incoming(&mut self, slots: &[Slot<Asked>]) -> (*mut u8, u32) {
        if let Due::Data(tag, at) = self.due {
            let left = data_of(slots, tag) - at;
            if left >= DIRECT_BYTES_MIN {
                return (self.memory.of(tag).wrapping_add(at as usize), left);
            }
        }
        (self.input.as_mut_ptr(), INPUT_BYTES as u32)
    }

    fn received(&mut self, bytes: u32, slots: &[Slot<Asked>]) {
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

    fn hear(&mut self, slots: &[Slot<Asked>]) -> Option<Heard> {
        loop {
            match self.due {
                Due::Head => {
                    let (from, to) = self.have;
                    let taken = (REPLY_BYTES - self.head.len()).min(to - from);
                    self.head.extend_from_slice(&self.input[from..from + taken]);
                    self.have.0 += taken;
                    let whole: [u8; REPLY_BYTES] = self.head.as_slice().try_into().ok()?;
                    self.head.clear();
                    let Some((tag, error, asked)) = self.answered(&whole, slots) else {
                        return Some(Heard::Nonsense);
                    };
                    if error == ESHUTDOWN {
                        return Some(Heard::Leaves);
                    }
                    if error != 0 || asked.command != wire::command::READ {
                        return Some(Heard::Done(tag, asked.result(error)));
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
                    return Some(Heard::Done(tag, data_of(slots, tag) as i32));
                }
            }
        }
    }
}

/// Bytes that the read of a tag wants.
fn data_of(slots: &[Slot<Asked>], tag: u16) -> u32 {
    slots[usize::from(tag)].asked.map_or(0, |asked| asked.data_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::ublk::abi::{self, Descriptor};

    const IO_BYTES: u32 = 64 << 10;

    struct Queue {
        memory: Vec<u8>,
        slots: Vec<Slot<Asked>>,
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
            let asked = self.link.understand(&descriptor).unwrap();
            self.slots[usize::from(tag)].asked = Some(asked);
            self.link.ask(tag, &asked);
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
            bytes.extend(self.link.cookies[usize::from(tag)].to_be_bytes());
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
            let expected = [(1, -28), (3, 512), (0, 64 * 512)];
            assert_eq!(heard, expected.map(|(tag, result)| Heard::Done(tag, result)), "{most}");
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
        queue.link.ask_again(0, &queue.slots[0]).unwrap();
        assert_eq!(queue.bring(&old, 99), [Heard::Nonsense]);
        let reply = queue.reply(2, 0);
        assert_eq!(queue.bring(&reply, 99), [Heard::Nonsense]);
        assert_eq!(queue.bring(&[0; 16], 99), [Heard::Nonsense]);
    }
}
