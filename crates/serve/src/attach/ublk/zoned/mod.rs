//! A queue's connection to a raw unit: NVMe over TCP, and the data of requests, which the driver hands over by reads and writes
//! of its device. Of the connection it does no I/O: the queue hands the memory to its ring.
//!
//! Invariants:
//! - a write or an append that a server may have carried out is not carried out again. A write is at the write pointer, so that
//!   a zone refuses it the second time: then the zone's pointer tells whether it was the first time that counted. An append
//!   goes wherever the pointer is, so it fails instead ([`appends`]);
//! - while the ring receives, what it receives to stays where it is.

mod appends;
mod asked;

pub use appends::Appends;
pub use asked::parameters;

use super::abi::{self, Descriptor};
use super::outbox::Outbox;
use super::wire::{Heard, Memory, Slot, Wire};
use crate::attach::target::Zones;
use appends::Note;
use asked::{Asked, CAPSULE_BYTES_MAX, Fate, REPORT_OF_ONE, Work};
use client::nvme::{self, CAPSULE_BYTES, HEAD_BYTES, STATUS_CODE, u16_at, u32_at, u64_at};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is received at once, unless it is the data of a read.
const INPUT_BYTES: usize = 64 << 10;
/// From so many missing bytes on, data is received where it is to go.
const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// How long a server may take to carry out a write whose connection has ended.
const CARRIED_OUT: Duration = Duration::from_secs(10);

/// What the next bytes are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    Head,
    /// Data of a tag's command: from this byte on, up to that.
    Data(u16, u32, u32),
}

/// How far the command of a tag's request is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// It is asked for the first time.
    First,
    /// A server before may have carried it out.
    Again,
    /// It was refused where it may have been carried out before: its zone is asked for.
    Checked,
    /// It was carried out, and is made durable.
    Flushed,
}

/// What is known of a tag's request.
#[derive(Clone, Copy, Debug)]
struct State {
    step: Step,
    /// Since when it is waited for the end of the write that was asked for before.
    waits_since: Option<Instant>,
    /// Bytes of data that have come.
    came: u32,
    /// Of an append: where it is noted.
    note: Option<u32>,
    /// Of an append that has ended: the sector where its data is.
    placed: u64,
}

/// Of which queue of which device.
pub struct Place {
    /// The device through which requests come.
    pub device: Arc<File>,
    /// The queue.
    pub queue: u16,
    /// Requests at a time.
    pub depth: u16,
    /// Appends of the device that are under way.
    pub appends: Arc<Mutex<Appends>>,
    /// Another process served the device before.
    pub was_there: bool,
}

/// See the head of this file.
pub struct Link {
    zones: Zones,
    memory: Memory,
    place: Place,
    capsules: Vec<[u8; CAPSULE_BYTES]>,
    /// Those of data that was asked for.
    heads: Vec<[u8; HEAD_BYTES]>,
    states: Vec<State>,
    outbox: Outbox,
    input: Vec<u8>,
    /// What of it is received and not looked at.
    have: (usize, usize),
    /// An incomplete head.
    head: Vec<u8>,
    due: Due,
    /// Zones that were written since this process serves the device.
    written: BTreeSet<u64>,
}

impl Link {
    /// Nothing is asked yet.
    pub fn new(zones: Zones, memory: Memory, place: Place) -> Self {
        let depth = usize::from(place.depth);
        let state = State { step: Step::First, waits_since: None, came: 0, note: None, placed: 0 };
        Self {
            zones,
            memory,
            place,
            capsules: vec![[0; CAPSULE_BYTES]; depth],
            heads: vec![[0; HEAD_BYTES]; depth],
            states: vec![state; depth],
            outbox: Outbox::new(),
            input: vec![0; INPUT_BYTES],
            have: (0, 0),
            head: Vec::with_capacity(HEAD_BYTES),
            due: Due::Head,
            written: BTreeSet::new(),
        }
    }

    fn state(&mut self, tag: u16) -> &mut State {
        &mut self.states[usize::from(tag)]
    }

    fn appends(&self) -> std::sync::MutexGuard<'_, Appends> {
        self.place.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first bytes of a tag's memory.
    fn bytes(&mut self, tag: u16, bytes: u32) -> &mut [u8] {
        let bytes = bytes.min(self.memory.io_bytes) as usize;
        // SAFETY: within the memory of the tag, which nobody else uses while its request is looked at.
        unsafe { std::slice::from_raw_parts_mut(self.memory.of(tag), bytes) }
    }

    /// A command for the request of a tag, which may be another one than was asked.
    fn command(&mut self, tag: u16, asked: &Asked) {
        let bytes = if asked.sends() { asked.data_bytes(&self.zones) } else { 0 };
        let inside = if bytes <= CAPSULE_BYTES_MAX { bytes } else { 0 };
        let capsule = &mut self.capsules[usize::from(tag)];
        *capsule = nvme::capsule(&asked.command(tag, &self.zones), inside);
        self.outbox.push(capsule.as_ptr(), CAPSULE_BYTES);
        if inside > 0 {
            self.outbox.push(self.memory.of(tag), inside as usize);
        }
        self.state(tag).came = 0;
    }

    fn step(&mut self, tag: u16, step: Step, asked: &Asked) {
        self.state(tag).step = step;
        self.command(tag, asked);
    }

    /// Bytes that come for a tag's command.
    fn expected(&self, tag: u16, asked: &Asked) -> u32 {
        match (self.states[usize::from(tag)].step, asked.work) {
            (Step::Checked, _) => REPORT_OF_ONE,
            (_, Work::Read | Work::Report { .. }) => asked.data_bytes(&self.zones),
            _ => 0,
        }
    }

    /// What a whole head means; `None` if there is nothing to tell yet.
    fn look(&mut self, head: &[u8; HEAD_BYTES], slots: &[Slot<Asked>]) -> Option<Heard> {
        let tag = u16_at(head, if head[0] == nvme::KIND_RESPONSE { 20 } else { 8 });
        let len = u32_at(head, 4);
        let asked = slots.get(usize::from(tag)).and_then(|slot| slot.asked);
        let Some(asked) = asked.filter(|_| head[2] == HEAD_BYTES as u8) else {
            return Some(Heard::Nonsense);
        };
        match head[0] {
            nvme::KIND_RESPONSE if len == HEAD_BYTES as u32 => {
                let (result, status) = (u64_at(head, 8), u16_at(head, 22) >> 1 & STATUS_CODE);
                self.ended(tag, &asked, (result, status))
            }
            nvme::KIND_READY => {
                let (offset, bytes) = (u32_at(head, 12), u32_at(head, 16));
                let all = asked.data_bytes(&self.zones);
                if !asked.sends() || bytes != all || offset != 0 || all <= CAPSULE_BYTES_MAX {
                    return Some(Heard::Nonsense);
                }
                let own = &mut self.heads[usize::from(tag)];
                *own = nvme::data_head(head);
                self.outbox.push(own.as_ptr(), HEAD_BYTES);
                self.outbox.push(self.memory.of(tag), bytes as usize);
                None
            }
            nvme::KIND_DATA_IN if head[3] == HEAD_BYTES as u8 => {
                let (offset, bytes) = (u32_at(head, 12), u32_at(head, 16));
                let end = offset.checked_add(bytes).filter(|_| bytes > 0);
                let fits = end.is_some_and(|end| end <= self.expected(tag, &asked));
                if !fits || len != HEAD_BYTES as u32 + bytes {
                    return Some(Heard::Nonsense);
                }
                self.due = Due::Data(tag, offset, offset + bytes);
                None
            }
            _ => Some(Heard::Nonsense),
        }
    }

    /// A command has ended; what its request's end is, unless another command follows.
    fn ended(&mut self, tag: u16, asked: &Asked, (result, status): (u64, u16)) -> Option<Heard> {
        let state = self.states[usize::from(tag)];
        if status == 0 && state.came != self.expected(tag, asked) {
            return Some(Heard::Nonsense);
        }
        let bytes = asked.data_bytes(&self.zones) as i32;
        let refused = matches!(status, asked::INVALID_WRITE | asked::ZONE_IS_FULL);
        let done = match (state.step, status, asked.work) {
            (step, asked::INTERRUPTED, _) => {
                let next = self.next_of(step, asked);
                self.command(tag, &next);
                return None;
            }
            (Step::Again, _, Work::Write { .. }) if refused => {
                self.step(tag, Step::Checked, &asked.check(&self.zones));
                return None;
            }
            (Step::Checked, 0, work) => match asked.fate(self.bytes(tag, REPORT_OF_ONE)) {
                Fate::Written if work == (Work::Write { fua: true }) => {
                    self.step(tag, Step::Flushed, &FLUSH);
                    return None;
                }
                Fate::Written => bytes,
                Fate::UnderWay if self.is_worth_waiting(tag) && self.renew(tag, asked) => {
                    self.step(tag, Step::Again, asked);
                    return None;
                }
                Fate::UnderWay | Fate::Unknown => {
                    tracing::error!(
                        block = asked.first,
                        "a write that was asked for before was carried out in part, or its zone takes no more: it fails"
                    );
                    -libc::EIO
                }
            },
            (_, 0, _) => self.succeeded(tag, asked, result),
            (_, status, _) => asked::error_of(status),
        };
        self.forget(tag);
        Some(Heard::Done(tag, done))
    }

    /// What was asked in a step of a request.
    fn next_of(&self, step: Step, asked: &Asked) -> Asked {
        match step {
            Step::First | Step::Again => *asked,
            Step::Checked => asked.check(&self.zones),
            Step::Flushed => FLUSH,
        }
    }

    /// What the disk is told of a request that was carried out, whose data it gets.
    fn succeeded(&mut self, tag: u16, asked: &Asked, result: u64) -> i32 {
        let (zones, expected) = (self.zones, asked.data_bytes(&self.zones));
        let (whole, bytes) = match asked.work {
            Work::Read => (expected as i32, expected as usize),
            // The driver wants as much as it has room for, and looks where zones end.
            Work::Report { .. } => {
                let io_bytes = self.memory.io_bytes as i32;
                (io_bytes, asked::zones_for_linux(self.bytes(tag, expected), &zones))
            }
            Work::Append { .. } => {
                self.state(tag).placed = asked::sector_of(result, &zones);
                return expected as i32;
            }
            Work::Write { .. } => return expected as i32,
            Work::Flush | Work::Manage { .. } => return 0,
        };
        let at = abi::data_at(self.place.queue, tag);
        let device = Arc::clone(&self.place.device);
        match device.write_all_at(&self.bytes(tag, expected)[..bytes], at) {
            Ok(()) => whole,
            Err(error) => {
                tracing::error!(%error, "the data of a request cannot be handed over: it fails");
                -libc::EIO
            }
        }
    }

    /// Takes the data of a request into its memory.
    fn fetch_data(&mut self, tag: u16, asked: &Asked) -> io::Result<()> {
        let (at, bytes) = (abi::data_at(self.place.queue, tag), asked.data_bytes(&self.zones));
        let device = Arc::clone(&self.place.device);
        device.read_exact_at(self.bytes(tag, bytes), at)
    }

    /// The same, which a report of its zone may have overwritten, for another try.
    fn renew(&mut self, tag: u16, asked: &Asked) -> bool {
        let renewed = if asked.sends() { self.fetch_data(tag, asked) } else { Ok(()) };
        if let Err(error) = &renewed {
            tracing::error!(%error, "a request's data cannot be taken again: it fails");
        }
        renewed.is_ok()
    }

    /// Whether a write that a server still carries out for a connection before may yet come to its end.
    fn is_worth_waiting(&mut self, tag: u16) -> bool {
        let since = *self.state(tag).waits_since.get_or_insert_with(Instant::now);
        since.elapsed() < CARRIED_OUT
    }

    /// An append is answered.
    fn forget(&mut self, tag: u16) {
        if let Some(note) = self.state(tag).note.take()
            && let Err(error) = self.appends().answered(note)
        {
            tracing::warn!(%error, "an append stays noted as one that is not answered");
        }
    }

    /// Notes an append, or refuses it if the process before may have carried it out.
    fn note(&mut self, tag: u16, asked: &Asked) -> io::Result<()> {
        let crc = flash::crc(self.bytes(tag, asked.data_bytes(&self.zones)));
        let note = Note { zone: asked.first, blocks: asked.blocks, crc };
        let mut appends = self.appends();
        if appends.was_left(note)? {
            return Err(io::Error::other(
                "the process before may have carried out this append, which must not be done twice",
            ));
        }
        let place = appends.note(note)?;
        drop(appends);
        self.state(tag).note = Some(place);
        Ok(())
    }
}

/// What is asked to make a write durable that was carried out.
const FLUSH: Asked = Asked { work: Work::Flush, first: 0, blocks: 0 };

impl Wire for Link {
    type Asked = Asked;

    fn understand(&self, descriptor: &Descriptor) -> Option<Asked> {
        Asked::of(descriptor, &self.zones, self.memory.io_bytes)
    }

    fn address(&mut self, tag: u16) -> u64 {
        // The driver refuses one of anything but an append.
        std::mem::take(&mut self.state(tag).placed)
    }

    fn take(&mut self, tag: u16, asked: &Asked) -> io::Result<()> {
        let zone = asked.first - asked.first % self.zones.size;
        // Whatever the last request of this tag was, it is answered.
        self.forget(tag);
        (self.state(tag).step, self.state(tag).waits_since) = (Step::First, None);
        if asked.sends() {
            self.fetch_data(tag, asked)?;
        }
        match asked.work {
            Work::Append { .. } => self.note(tag, asked)?,
            // Of all that the process before has not answered, a zone has one write.
            Work::Write { .. } if self.place.was_there && self.written.insert(zone) => {
                self.state(tag).step = Step::Again;
            }
            Work::Manage { action: asked::RESET, all } => {
                self.appends().forget(|left| all || left == zone)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.outbox.clear();
        self.head.clear();
        (self.have, self.due) = ((0, 0), Due::Head);
    }

    fn ask(&mut self, tag: u16, asked: &Asked) {
        self.command(tag, asked);
    }

    fn ask_again(&mut self, tag: u16, slot: &Slot<Asked>) -> Result<(), i32> {
        let Some(asked) = &slot.asked else { return Ok(()) };
        if let Work::Append { .. } = asked.work {
            tracing::error!(
                block = asked.first,
                "an append that the server before was asked for may have been carried out, which must not be done twice: it fails"
            );
            self.forget(tag);
            return Err(-libc::EIO);
        }
        if !self.renew(tag, asked) {
            return Err(-libc::EIO);
        }
        self.step(tag, Step::Again, asked);
        Ok(())
    }

    fn outgoing(&mut self) -> Option<*const libc::msghdr> {
        self.outbox.outgoing()
    }

    fn sent(&mut self, bytes: usize) {
        self.outbox.sent(bytes);
    }

    fn incoming(&mut self, _: &[Slot<Asked>]) -> (*mut u8, u32) {
        match self.due {
            Due::Data(tag, at, end) if end - at >= DIRECT_BYTES_MIN => {
                (self.memory.of(tag).wrapping_add(at as usize), end - at)
            }
            _ => (self.input.as_mut_ptr(), INPUT_BYTES as u32),
        }
    }

    fn received(&mut self, bytes: u32, _: &[Slot<Asked>]) {
        match self.due {
            Due::Data(tag, at, end) if end - at >= DIRECT_BYTES_MIN => {
                self.state(tag).came += bytes;
                self.due = Due::Data(tag, at + bytes, end);
            }
            _ => {
                let (from, to) = self.have;
                debug_assert_eq!(from, to, "all that was received is looked at before more is");
                self.have = (0, bytes as usize);
            }
        }
    }

    fn hear(&mut self, slots: &[Slot<Asked>]) -> Option<Heard> {
        loop {
            let (from, to) = self.have;
            match self.due {
                Due::Head => {
                    let taken = (HEAD_BYTES - self.head.len()).min(to - from);
                    self.head.extend_from_slice(&self.input[from..from + taken]);
                    self.have.0 += taken;
                    let whole: [u8; HEAD_BYTES] = self.head.as_slice().try_into().ok()?;
                    self.head.clear();
                    if let Some(heard) = self.look(&whole, slots) {
                        return Some(heard);
                    }
                }
                Due::Data(tag, at, end) => {
                    let taken = ((end - at) as usize).min(to - from);
                    let into = self.memory.of(tag).wrapping_add(at as usize);
                    // SAFETY: within the memory of the tag, which is ours until its request is answered.
                    unsafe {
                        std::ptr::copy_nonoverlapping(self.input[from..].as_ptr(), into, taken);
                    }
                    self.have.0 += taken;
                    self.state(tag).came += taken as u32;
                    if at + (taken as u32) < end {
                        self.due = Due::Data(tag, at + taken as u32, end);
                        return None;
                    }
                    self.due = Due::Head;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
