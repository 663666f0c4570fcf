//! Requests to the units and the buffers they name. A driver moves the data; what is in a buffer is either the
//! store's own bytes or the handles of the node's data.

use super::bands::Reading;
use super::format::Block;
use super::{CommandId, Data, RawStore};
use crate::words::BandName;
use flash::{
    BLOCK_BYTES, Command, Hint, Lba, MediumError, Operation, Payload, Reply, Request, RequestError,
    SlotRead, Tag,
};
use ftl::{Core, Input};

/// What one slot of a program holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Piece<'a, D> {
    /// The node's data.
    Data(&'a D),
    /// The store's own bytes.
    Bytes(&'a [u8; BLOCK_BYTES]),
    /// Zeroes.
    Zeroes,
}

/// What a read must give for a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wants {
    /// The bytes themselves.
    Bytes,
    /// Whatever the driver keeps data in.
    Data,
}

/// What the driver gives for a slot that it has read.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a, D> {
    /// The bytes.
    Bytes(&'a [u8; BLOCK_BYTES]),
    /// Data.
    Data(D),
}

/// One slot of a write.
#[derive(Clone, Debug)]
pub(super) enum Written<D> {
    Data(D),
    Bytes(Block),
    Zeroes,
}

#[derive(Debug)]
pub(super) enum Buffer<D> {
    Write(Vec<Written<D>>),
    /// The store's own slots.
    Bytes(Vec<Option<Block>>),
    /// Data, each with the checksum of what was read.
    Data(Vec<(Option<D>, Option<u32>)>),
    /// Of an erase or a flush.
    Nothing,
}

/// What a request to the units is for.
#[derive(Clone, Debug)]
pub(super) enum What {
    Append {
        id: CommandId,
        band: BandName,
    },
    Footer {
        id: CommandId,
        band: BandName,
        pages: u32,
    },
    Free {
        id: CommandId,
        raw: u32,
    },
    /// An erase that nobody waits for.
    Reclaim {
        raw: u32,
    },
    Flush {
        id: CommandId,
    },
    /// The header of the page that is read, or its data.
    Read {
        read: u32,
    },
    Look {
        look: u64,
    },
    LogRead {
        raw: u32,
    },
    LogWrite,
}

#[derive(Clone, Debug)]
pub(super) struct Io {
    pub what: What,
    buffer: u32,
}

impl<D: Data> RawStore<D> {
    /// What a slot of a program holds: the payload is that of `SlotData::Payload`.
    ///
    /// # Panics
    /// If no write has such a slot.
    pub fn piece(&self, payload: Payload) -> Piece<'_, D> {
        let Buffer::Write(slots) = &self.buffers[payload.buffer] else {
            panic!("buffer {} is of no write", payload.buffer)
        };
        match &slots[payload.index as usize] {
            Written::Data(data) => Piece::Data(data),
            Written::Bytes(bytes) => Piece::Bytes(bytes),
            Written::Zeroes => Piece::Zeroes,
        }
    }

    /// What a read into this place must give.
    ///
    /// # Panics
    /// If no read has such a place.
    pub fn wants(&self, payload: Payload) -> Wants {
        match &self.buffers[payload.buffer] {
            Buffer::Bytes(_) => Wants::Bytes,
            Buffer::Data(_) => Wants::Data,
            Buffer::Write(_) | Buffer::Nothing => {
                panic!("buffer {} is of no read", payload.buffer)
            }
        }
    }

    /// Takes what was read into a place. What is not of the kind that is wanted there is left out: it
    /// cannot be what was written.
    pub fn give(&mut self, payload: Payload, given: Given<'_, D>) {
        let at = payload.index as usize;
        match (&mut self.buffers[payload.buffer], given) {
            (Buffer::Bytes(slots), Given::Bytes(bytes)) => slots[at] = Some(Box::new(*bytes)),
            (Buffer::Data(slots), Given::Data(data)) => slots[at].0 = Some(data),
            _ => {}
        }
    }

    pub(super) fn note_command(&mut self, command: &Command) {
        if let Command::Read { tag, into: Some(into), count, .. } = *command {
            self.reading.insert(tag, (into, count));
        }
    }

    /// Keeps the checksums of what was read: the data itself never comes here.
    pub(super) fn note_read(&mut self, tag: Tag, slots: Result<&[SlotRead<'_>], MediumError>) {
        let Some((into, _)) = self.reading.remove(&tag) else { return };
        let (Ok(slots), Buffer::Data(kept)) = (slots, &mut self.buffers[into.buffer]) else {
            return;
        };
        for (at, read) in (into.index as usize..).zip(slots) {
            kept[at].1 = read.is_readable().then_some(read.crc);
        }
    }

    fn submit(&mut self, what: What, buffer: Buffer<D>, request: Request, checksums: &[u32]) {
        self.ios_begun += 1;
        let buffer = self.buffers.insert(buffer);
        self.ios.insert(self.ios_begun, Io { what, buffer });
        let operation = match request.operation {
            Operation::Read { .. } => Operation::Read { buffer },
            Operation::Write { fua, atomic, hint, .. } => {
                Operation::Write { buffer, fua, atomic, hint }
            }
            other => other,
        };
        let request = Request { id: self.ios_begun, operation, ..request };
        self.units.handle(self.now, Input::Request { request, checksums });
    }

    fn request(&self, raw: u32, place: u32, blocks: u32, operation: Operation) -> Request {
        let lba = Lba(raw * self.units.lanes().slots + place);
        Request { id: 0, lba, blocks, operation }
    }

    /// Writes whole pages of the flash at `place` of a raw block; with a tag those are its first.
    pub(super) fn write(
        &mut self,
        what: What,
        (raw, place): (u32, u32),
        mut slots: Vec<(Written<D>, u32)>,
        (tag, fua): (Option<u128>, bool),
    ) {
        let whole = self.whole(slots.len() as u64) as usize;
        slots.resize_with(whole, || (Written::Zeroes, 0));
        let checksums: Vec<u32> = slots
            .iter()
            .map(|(slot, crc)| match slot {
                Written::Data(_) => *crc,
                Written::Bytes(bytes) => flash::crc(&bytes[..]),
                Written::Zeroes => self.empty_crc,
            })
            .collect();
        if let Some(tag) = tag {
            self.units.tag(Lba(raw * self.units.lanes().slots), tag);
        }
        let hint = Hint::default();
        let operation = Operation::Write { buffer: 0, fua, atomic: false, hint };
        let request = self.request(raw, place, whole as u32, operation);
        let slots = slots.into_iter().map(|(slot, _)| slot).collect();
        self.submit(what, Buffer::Write(slots), request, &checksums);
    }

    /// Reads the store's own slots.
    pub(super) fn read_bytes(&mut self, what: What, raw: u32, place: u32, count: u32) {
        let request = self.request(raw, place, count, Operation::Read { buffer: 0 });
        let slots = (0..count).map(|_| None).collect();
        self.submit(what, Buffer::Bytes(slots), request, &[]);
    }

    pub(super) fn read_data(&mut self, what: What, raw: u32, place: u32, count: u32) {
        let request = self.request(raw, place, count, Operation::Read { buffer: 0 });
        let slots = (0..count).map(|_| (None, None)).collect();
        self.submit(what, Buffer::Data(slots), request, &[]);
    }

    pub(super) fn erase(&mut self, what: What, raw: u32) {
        let slots = self.units.lanes().slots;
        let request = self.request(raw, 0, slots, Operation::Trim { fua: true });
        self.submit(what, Buffer::Nothing, request, &[]);
    }

    pub(super) fn flush_units(&mut self, id: CommandId) {
        let request = Request { id: 0, lba: Lba(0), blocks: 0, operation: Operation::Flush };
        self.submit(What::Flush { id }, Buffer::Nothing, request, &[]);
    }

    /// The units answered a request.
    pub(super) fn replied(&mut self, reply: Reply) {
        let Io { what, buffer } = self.ios.remove(&reply.id).expect("a request is answered once");
        let buffer = self.buffers.remove(buffer);
        let result = reply.result;
        match (what, buffer) {
            (What::Append { id, band }, _) => self.appended(id, band, result),
            (What::Footer { id, band, pages }, _) => self.footer_written(id, band, pages, result),
            (What::Free { id, raw }, _) => self.freed(id, raw, result),
            (What::Reclaim { raw }, _) => self.reclaimed(raw, result),
            (What::Flush { id }, _) => self.flushed(id, result),
            (What::Read { read }, buffer) => self.take_read(read, buffer),
            (What::Look { look }, Buffer::Bytes(slots)) => self.looked(look, slots, result),
            (What::Look { look }, Buffer::Data(slots)) => self.looked_through(look, slots, result),
            (What::LogRead { raw }, Buffer::Bytes(slots)) => self.log_read(raw, slots),
            (What::LogWrite, _) => self.log_written(result),
            (what, _) => unreachable!("{what:?} reads the store's own slots"),
        }
    }

    fn take_read(&mut self, read: u32, buffer: Buffer<D>) {
        let reading: &mut Reading<D> = &mut self.reads[read];
        match buffer {
            Buffer::Bytes(slots) => reading.take_header(slots),
            Buffer::Data(slots) => reading.take_data(slots),
            Buffer::Write(_) | Buffer::Nothing => unreachable!("a read reads"),
        }
        self.end_read_part(read);
    }

    /// A raw block is erased again; or is tried again where there was no room below; or will not be before the next
    /// mount.
    pub(super) fn reclaimed(&mut self, raw: u32, result: Result<(), RequestError>) {
        match result {
            Ok(()) => {
                let lane = self.lane_of(raw);
                self.free[lane].insert(raw);
            }
            Err(RequestError::NoSpace) => self.unerased.push(raw),
            Err(_) => {}
        }
        self.log_pump();
    }

    /// Erases what could not be erased while there was no room below.
    pub(super) fn erase_again(&mut self) {
        for raw in std::mem::take(&mut self.unerased) {
            self.erase(What::Reclaim { raw }, raw);
        }
    }
}
