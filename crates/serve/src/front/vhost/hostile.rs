//! A guest whose memory holds any bytes, and a hypervisor that says anything, against a driver that keeps the contract of
//! [`Front`]: what a fuzz target runs. Nothing may panic, no request may reach beyond its volume, and no chain is put back
//! twice.
//!
//! The first byte of an input chooses which of both; the rest is memory, or messages.

use super::mapping::shared_file;
use super::memory::{Memory, Region};
use super::message::{HEAD_BYTES, Head};
use super::ring::Places;
use super::session::{Fault, Host, Session};
use super::*;
use crate::volume::Failure;
use std::sync::mpsc;

const ENTRIES: u16 = 16;
const MEMORY_BYTES: u64 = 64 << 10;
/// Where the parts of the ring are: what is available comes first, so that short inputs have it.
const DESCRIPTORS: u64 = 0x40;
const USED: u64 = 0x4000;
/// Of data, looked at of one request.
const LOOKED_AT: usize = 64 << 10;

fn disk() -> Disk {
    let (bytes, name) = (1 << 20, "disk".into());
    Disk { volume: 2, bytes, read_only: false, write_through: false, name }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    match input {
        [setup, memory @ ..] if setup & 1 == 0 => ring(*setup, memory),
        [_, messages @ ..] => session(messages),
        [] => {}
    }
}

/// A ring in this memory.
fn ring(setup: u8, bytes: &[u8]) {
    let region = Region { guest: 0, bytes: MEMORY_BYTES, user: 1 << 32, offset: 0 };
    let file = shared_file(c"hostile", MEMORY_BYTES).expect("the system has memory");
    let memory = Arc::new(Memory::map(&[region], &[file]).expect("it is whole"));
    let bytes = &bytes[..bytes.len().min(MEMORY_BYTES as usize)];
    assert!(memory.write(0, bytes), "it has room for as many");
    let user = region.user;
    let places = Places { descriptors: user + DESCRIPTORS, available: user, used: user + USED };
    let ring = Ring::new(memory, ENTRIES, places, setup & 2 != 0).expect("it lies in the memory");
    let event = || Arc::new(Event::new().expect("the system has eventfds"));
    let (ways, (ended, _waits)) = (Ways { call: event(), broken: event() }, mpsc::channel());
    let reins = Reins { stop: Arc::default(), ended };
    let mut queue = VhostQueue::new(disk(), (0, ring), (None, Vec::new()), ways, reins);
    let mut open = Vec::new();
    // A guest may make its requests available again by what is put back, for ever.
    for turn in 0..64 {
        match queue.resume() {
            Some(Happening::Request(ticket, request)) => open.push((ticket, request)),
            Some(Happening::Refused(volume)) => assert_eq!(volume, Some(2)),
            Some(Happening::Answered) => {}
            Some(other) => panic!("{other:?}"),
            None if open.is_empty() => break,
            None => {}
        }
        assert!(open.len() <= usize::from(ENTRIES), "as many as the ring holds");
        if turn % 3 == 2
            && let Some((ticket, request)) = open.pop()
        {
            answer(&mut queue, ticket, request, setup & 4 != 0);
        }
        queue.deliver();
    }
}

fn answer(queue: &mut VhostQueue, ticket: Ticket, request: volume::Request, fails: bool) {
    let volume::Request { volume, kind, offset, len } = request;
    assert_eq!(volume, 2);
    assert!(offset + u64::from(len) <= 1 << 20 || kind == Kind::Flush, "{request:?}");
    let mut data = vec![7; (len as usize).min(LOOKED_AT)];
    if kind.takes_data() {
        queue.bring(ticket, &mut data);
    }
    let ending = if fails { Answer::Failed(Failure::Gone) } else { Answer::Done };
    let follows = queue.answer(ticket, ending, &mut Vec::new());
    assert_eq!(follows, kind.reads() && !fails);
    if follows {
        queue.after_data(ticket, &mut std::iter::once(&data[..]), &mut Vec::new());
    }
    queue.finish(ticket);
}

/// A server whose shards serve nobody.
struct Nobody;

impl Host for Nobody {
    fn start(&mut self, _queue: VhostQueue, _kick: Event) -> Result<(), Fault> {
        Ok(())
    }

    fn has_ended(&self) -> bool {
        true
    }
}

/// These messages, until one of them is none, or ends the session.
fn session(mut bytes: &[u8]) {
    let mut session = Session::new(disk());
    while let Some(head) = bytes.first_chunk::<HEAD_BYTES>() {
        let Ok(head) = Head::decode(head) else { return };
        let Some(body) = bytes[HEAD_BYTES..].get(..head.bytes) else { return };
        bytes = &bytes[HEAD_BYTES + head.bytes..];
        let Ok(message) = Message::decode(head.request, body) else { return };
        if session.handle(message, Vec::new(), &mut Nobody).is_err() {
            return;
        }
    }
}
