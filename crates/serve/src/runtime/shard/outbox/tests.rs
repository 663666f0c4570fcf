//! The kernel's side is played here: what a message points to is read when its send completes, as late
//! as a kernel could.

use super::*;
use crate::runtime::buffer::Buffer;
use flash::Random;
use std::collections::{BTreeSet, VecDeque};

#[test]
fn data_goes_out_between_the_protocol_bytes() {
    let mut outbox = Outbox::default();
    outbox.filling.bytes.extend_from_slice(b"abc");
    assert_eq!(outbox.filling.slices().collect::<Vec<_>>(), [b"abc"]);
    assert!(outbox.begin().is_some());
    assert!(outbox.sent(2).is_some());
    assert!(outbox.sent(1).is_none());
    assert_eq!(outbox.finish().count(), 0);
    assert!(outbox.is_empty());
}

/// Tickets as a front hands them out, so that each must be given back once.
#[derive(Default)]
struct Client {
    next: u32,
    /// Those that were not given back.
    out: BTreeSet<Ticket>,
}

impl Client {
    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.out.insert(ticket);
        ticket
    }

    fn back(&mut self, answered: &Answered) -> Ticket {
        let ticket = answered.ticket;
        assert!(self.out.remove(&ticket), "{ticket:?} was given back before");
        ticket
    }
}

/// What the kernel would send now.
fn gathered(message: *const libc::msghdr) -> Vec<u8> {
    // SAFETY: the outbox promises that all of it stays in place while a send is under way.
    unsafe {
        let message = &*message;
        let iovecs = std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen);
        let bytes = |iovec: &libc::iovec| {
            std::slice::from_raw_parts(iovec.iov_base.cast::<u8>(), iovec.iov_len).to_vec()
        };
        iovecs.iter().flat_map(bytes).collect()
    }
}

/// An outbox, and what must be true of it.
struct Model {
    client: Client,
    outbox: Outbox,
    /// Bytes that were filled and not begun to be sent, and the requests they answer.
    filled: (Vec<u8>, VecDeque<Ticket>),
    /// The same of the send under way, with the kernel's message.
    sending: Option<(*const libc::msghdr, Vec<u8>, VecDeque<Ticket>)>,
}

impl Model {
    fn fill(&mut self, random: &mut Random) {
        let protocol: Vec<u8> =
            (0..1 + random.below(40)).map(|_| random.next_u64() as u8).collect();
        self.outbox.filling.bytes.extend_from_slice(&protocol);
        self.filled.0.extend(&protocol);
        if random.chance(0.3) {
            return;
        }
        let ticket = self.client.ticket();
        self.filled.1.push_back(ticket);
        let answered = Answered { ticket, data: None, timed: None };
        if random.chance(0.4) {
            return self.outbox.filling.answer(answered);
        }
        let mut buffer = Buffer::new(1);
        buffer.bytes_mut().fill(random.next_u64() as u8);
        let (start, len) = (random.below(100) as usize, 1 + random.below(3000) as usize);
        self.filled.0.extend(&buffer.bytes()[start..start + len]);
        let answered = Answered { data: Some(Data::Run(buffer)), ..answered };
        self.outbox.filling.answer_with_data(answered, start, len);
    }

    fn begin(&mut self) {
        let begun = self.outbox.begin();
        assert_eq!(begun.is_some(), self.sending.is_none() && !self.filled.0.is_empty());
        if let Some(message) = begun {
            let (bytes, answers) = std::mem::take(&mut self.filled);
            self.sending = Some((message, bytes, answers));
        }
    }

    /// The send under way completes: with all, with a part, or with an error.
    fn complete(&mut self, random: &mut Random) {
        let Some((message, mut bytes, answers)) = self.sending.take() else { return };
        let there = gathered(message);
        assert!(!there.is_empty() && bytes.starts_with(&there), "what was sent had changed");
        let taken = random.below(there.len() as u64 + 1) as usize;
        let taken = if random.chance(0.5) { there.len() } else { taken };
        if taken > 0 && !random.chance(0.1) {
            bytes.drain(..taken);
            if let Some(message) = self.outbox.sent(taken) {
                self.sending = Some((message, bytes, answers));
                return;
            }
            assert!(bytes.is_empty(), "all was sent");
        }
        let back: Vec<Ticket> = self.outbox.finish().map(|it| self.client.back(&it)).collect();
        assert!(answers.iter().eq(&back), "what was answered is given back, in order");
    }

    /// The client is gone, or took too long.
    fn discard(&mut self) {
        let back: Vec<Ticket> = self.outbox.discard().map(|it| self.client.back(&it)).collect();
        let (_, answers) = std::mem::take(&mut self.filled);
        assert!(answers.iter().eq(&back), "only what is not being sent is given back");
    }
}

#[test]
fn whatever_happens_while_a_send_is_under_way_there_is_one_and_it_keeps_its_memory() {
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let (outbox, client) = (Outbox::default(), Client::default());
        let mut model = Model { client, outbox, filled: Default::default(), sending: None };
        for _ in 0..400 {
            match random.below(10) {
                // No more than a client may have in flight.
                0..4 if model.client.out.len() < 100 => model.fill(random),
                0..7 => model.begin(),
                7..9 => model.complete(random),
                _ => model.discard(),
            }
            let unsent = model.sending.as_ref().map_or(0, |(_, bytes, _)| bytes.len());
            assert_eq!(model.outbox.is_sending(), unsent > 0, "seed={seed}");
            assert_eq!(model.outbox.is_empty(), unsent == 0 && model.filled.0.is_empty());
        }
        model.discard();
        while model.sending.is_some() {
            model.complete(random);
        }
        assert!(model.client.out.is_empty(), "seed={seed}: all came back");
        assert!(model.outbox.is_empty() && model.outbox.unsent_bytes() == 0, "seed={seed}");
    }
}
