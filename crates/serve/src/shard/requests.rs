//! From a client's request to pieces of blocks, and from finished pieces to the reply.
//!
//! Invariant: a request's buffer covers whole blocks; byte `offset % 4096` of it is the first
//! byte of the request. Every piece of a request counts in its `pieces` until it is finished.

use super::connection::{Connection, Ending, Incoming};
use super::outbox::Answered;
use super::{Life, Message, Origin, Piece, Shard, Work};
use crate::buffer::View;
use crate::data::Data;
use crate::nbd::{self, Event, Extent, Kind};
use flash::{BLOCK_BYTES, Instant, RequestError};

/// A request in flight.
pub struct Pending {
    connection: u32,
    request: nbd::Request,
    data: Option<Data>,
    pieces: u32,
    result: Result<(), RequestError>,
}

impl Pending {
    /// It fails, whatever becomes of its pieces. Returns its memory, which they may still use.
    pub(super) fn abandon(&mut self, error: RequestError) -> Option<Data> {
        self.result = Err(error);
        self.data.take()
    }
}

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of zeroes that one piece writes when a range must keep its space.
const ZEROES_BLOCKS: u32 = 256;

/// Part of a range of bytes, in whole blocks or within one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Part {
    /// First block, counted from the one that holds the first byte.
    block: u64,
    blocks: u64,
    /// Bytes `from..to` of the only block, if not all of them.
    within: Option<(u16, u16)>,
}

/// Parts of `len` bytes at `offset`: perhaps a piece of a block, whole blocks, a piece of a block.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let (head, end) = (offset % BLOCK, offset % BLOCK + len);
    let whole_first = if head > 0 { 1 } else { 0 };
    let whole_end = end / BLOCK;
    let within = |block: u64, from: u64, to: u64| {
        let bounds = Some((from as u16, to as u16));
        (from < to).then_some(Part { block, blocks: 1, within: bounds })
    };
    let first = if head > 0 { within(0, head, end.min(BLOCK)) } else { None };
    let whole = (whole_end > whole_first).then(|| Part {
        block: whole_first,
        blocks: whole_end - whole_first,
        within: None,
    });
    let tail_is_head = head > 0 && whole_end == 0;
    let last = if tail_is_head { None } else { within(whole_end, 0, end % BLOCK) };
    first.into_iter().chain(whole).chain(last)
}

impl Shard {
    /// Takes what the client has sent as far as it goes, then receives more if there is room.
    pub(super) fn proceed(&mut self, now: Instant, index: u32) {
        while self.step(now, index) {}
        let shutting_down = self.life != Life::Serving;
        let connection = &mut self.connections[index];
        if connection.receiving || connection.ending != Ending::No {
            return;
        }
        // What is refused while shutting down needs no reading beyond what came.
        let wants_payload = connection.incoming.is_some();
        let unsent = connection.outbox.unsent_bytes();
        let idle = connection.held.is_none() && !connection.postponed;
        let wants_more = idle && connection.nbd.accepts_more(unsent);
        if wants_payload || (wants_more && !shutting_down) {
            connection.receive(index, &mut self.ring);
        }
    }

    /// One event or payload; true if there may be more.
    fn step(&mut self, now: Instant, index: u32) -> bool {
        let connection = &mut self.connections[index];
        if connection.receiving {
            return false;
        }
        if let Some(request) = connection.held.take() {
            return self.begin(index, request);
        }
        if connection.incoming.is_some() {
            if !connection.take_payload() {
                return false;
            }
            let Some(Incoming { request, data, .. }) = connection.incoming.take() else {
                return false;
            };
            self.dispatch(index, request, Some(data));
            return true;
        }
        if connection.ending == Ending::Gone {
            return false;
        }
        if connection.has_batch() {
            if !connection.postponed {
                connection.postponed = true;
                self.postponed.push(index);
            }
            return false;
        }
        let Some(received) = connection.next_event(now) else { return false };
        self.mark_dirty(index);
        match received.event {
            None => true,
            Some(Event::Opened(_)) => {
                self.expiries_stale = true;
                true
            }
            Some(Event::StartTls) => self.start_tls(index),
            Some(Event::Request(request)) => self.begin(index, request),
            Some(Event::Close(reason)) => {
                tracing::debug!(%reason, "a connection ends");
                self.end(index, Ending::Finishing);
                false
            }
        }
    }

    fn start_tls(&mut self, index: u32) -> bool {
        let connection = &mut self.connections[index];
        let session = self.shared.tls.clone().map(rustls::ServerConnection::new);
        match session {
            Some(Ok(session)) => connection.start_tls(session),
            Some(Err(error)) => {
                tracing::error!(%error, "TLS cannot start");
                self.end(index, Ending::Finishing);
            }
            None => unreachable!("TLS is offered only if there is a configuration"),
        }
        true
    }

    /// Starts a request, or holds it until there is a buffer: then false.
    fn begin(&mut self, index: u32, request: nbd::Request) -> bool {
        if !is_fast_enough(request.kind(), request.offset(), request.len()) {
            self.refuse(index, request, "these zeroes would take as long as a write");
            return true;
        }
        let covered = match request.kind() {
            Kind::Read { .. } | Kind::Write { .. } => covered_blocks(&request),
            // Room for the two blocks at the ends of the range, and for zeroes to write.
            Kind::WriteZeroes { no_hole: true, .. } => {
                2 + covered_blocks(&request).min(ZEROES_BLOCKS)
            }
            Kind::WriteZeroes { .. } => 2,
            _ => 0,
        };
        let only = self.connections[index].nbd.in_flight().0 <= 1;
        let data = match covered {
            0 => None,
            blocks => match self.take_data(blocks, only, request.kind()) {
                Some(data) => Some(data),
                None => {
                    self.connections[index].held = Some(request);
                    if !self.starved.contains(&index) {
                        self.starved.push_back(index);
                    }
                    return false;
                }
            },
        };
        match (request.kind(), data) {
            (Kind::Write { .. }, Some(data)) => {
                let at = (request.offset() % BLOCK) as usize;
                self.connections[index].incoming = Some(Incoming { request, data, at });
            }
            (_, data) => self.dispatch(index, request, data),
        }
        true
    }

    /// Memory for the data of a request, in the form that the medium wants.
    fn take_data(&mut self, blocks: u32, only: bool, kind: Kind) -> Option<Data> {
        if !self.engine.medium.lends() {
            return self.pool.run(blocks, only);
        }
        let empty = matches!(kind, Kind::Read { .. });
        self.pool.cells(blocks, only, empty, self.engine.frames())
    }

    /// Answers that the request cannot be as fast as it was asked to be.
    fn refuse(&mut self, index: u32, request: nbd::Request, message: &str) {
        let replies = &mut self.connections[index].outbox.filling;
        request.reply_error(&mut replies.bytes, nbd::Error::NotSupported, message);
        replies.answer(Answered { request, data: None });
        self.mark_dirty(index);
    }

    /// Splits a request into pieces and sends them to their shards.
    fn dispatch(&mut self, connection: u32, request: nbd::Request, data: Option<Data>) {
        let (kind, offset) = (request.kind(), request.offset());
        let (len, export) = (u64::from(request.len()), request.export());
        let covered = u64::from(covered_blocks(&request));
        self.connections[connection].requests += 1;
        let result = Ok(());
        let pending = Pending { connection, request, data, pieces: 0, result };
        let index = self.requests.insert(pending);
        if self.engine.medium.fenced() {
            self.requests[index].result = Err(RequestError::Failed);
            return self.answer(index);
        }
        let volume = self.shared.volumes[export];
        let (first, handle) = (volume.first_block + offset / BLOCK, volume.handle);
        match kind {
            Kind::Read { .. } => {
                self.connections[connection].begun += len as usize;
                self.send(index, Work::Read, first, (0, covered));
            }
            Kind::Write { fua } => {
                for part in parts(offset, len) {
                    let work = match part.within {
                        None => Work::Write { fua, handle },
                        Some((from, to)) => Work::Merge { from, to, fua, handle },
                    };
                    let at = (part.block, part.blocks);
                    self.send(index, work, first + part.block, at);
                }
            }
            Kind::WriteZeroes { fua, no_hole, .. } => {
                self.requests[index].data.iter_mut().for_each(Data::clear);
                for (number, part) in parts(offset, len).enumerate() {
                    if no_hole && part.within.is_none() {
                        self.write_zeroes(index, fua, handle, first + part.block, part.blocks);
                        continue;
                    }
                    let (work, at) = match part.within {
                        None => (Work::Trim { fua }, (0, part.blocks)),
                        Some((from, to)) => {
                            let work = Work::Merge { from, to, fua, handle };
                            (work, (number.min(1) as u64, 1))
                        }
                    };
                    self.send(index, work, first + part.block, at);
                }
            }
            Kind::Trim { fua } => {
                for part in parts(offset, len).filter(|part| part.within.is_none()) {
                    let at = (0, part.blocks);
                    self.send(index, Work::Trim { fua }, first + part.block, at);
                }
            }
            Kind::Flush => {
                for shard in 0..self.shared.mailboxes.len() {
                    self.send_to(index, shard, Work::Flush, 0, 0, View::NONE);
                }
            }
            Kind::Cache => {}
            Kind::BlockStatus { .. } => return self.block_status(index, first, covered),
        }
        if self.requests[index].pieces == 0 {
            self.answer(index);
        }
    }

    /// Writes zeroes, so that the space stays taken: every piece from the same few blocks.
    fn write_zeroes(&mut self, index: u32, fua: bool, handle: u8, first: u64, blocks: u64) {
        let chunk = u64::from(ZEROES_BLOCKS);
        for from in (first..first + blocks).step_by(chunk as usize) {
            let count = chunk.min(first + blocks - from);
            self.send(index, Work::Write { fua, handle }, from, (2, count));
        }
    }

    /// Sends blocks from `first` on the device, blocks `at` (first and count) of the request's
    /// buffer, to the shards that hold them.
    fn send(&mut self, index: u32, work: Work, first: u64, at: (u64, u64)) {
        let (mut next, end) = (first, first + at.1);
        while next < end {
            let run = self.shared.split.run(next, end - next);
            let view = match (&mut self.requests[index].data, work) {
                (_, Work::Trim { .. } | Work::Flush) | (None, _) => View::NONE,
                (Some(data), _) => {
                    let from = (at.0 + next - first) as u32;
                    if run.shard == self.me {
                        data.view(from, run.blocks)
                    } else {
                        data.provide(from, run.blocks, self.engine.frames());
                        data.view(from, run.blocks).foreign()
                    }
                }
            };
            self.send_to(index, run.shard, work, run.lba, run.blocks, view);
            next += u64::from(run.blocks);
        }
    }

    fn send_to(
        &mut self,
        request: u32,
        shard: usize,
        work: Work,
        lba: u32,
        blocks: u32,
        view: View,
    ) {
        self.requests[request].pieces += 1;
        let origin = Origin { shard: self.me, request };
        let piece = Piece { origin, work, lba, blocks, view };
        if shard == self.me {
            self.engine.submit(piece);
        } else {
            self.shared.mailboxes[shard].push(Message::Piece(piece));
        }
    }

    /// Tells what of the first run of a range holds data; the client asks again for the rest.
    fn block_status(&mut self, index: u32, first: u64, blocks: u64) {
        let run = self.shared.split.run(first, blocks);
        if run.shard != self.me {
            self.requests[index].pieces += 1;
            let origin = Origin { shard: self.me, request: index };
            let (lba, blocks) = (run.lba, run.blocks);
            let piece = Piece { origin, work: Work::Read, lba, blocks, view: View::NONE };
            self.shared.mailboxes[run.shard].push(Message::Map(piece));
            return;
        }
        let zeroes = self.engine.core.raw().is_none();
        let (mut extents, mut next, end) = (Vec::new(), run.lba, run.lba + run.blocks);
        while next < end && extents.len() < nbd::constants::EXTENTS_MAX {
            let (mapped, blocks) = self.engine.core.mapped_run(flash::Lba(next), end - next);
            extents.push(extent(mapped, blocks, zeroes));
            next += blocks.max(1);
        }
        self.answer_extents(index, extents);
    }

    /// Another shard has told what a range holds.
    pub(super) fn mapped(&mut self, index: u32, mapped: bool, blocks: u32) {
        self.answer_extents(index, vec![extent(mapped, blocks, true)]);
    }

    fn answer_extents(&mut self, index: u32, mut extents: Vec<Extent>) {
        let Pending { connection, request, .. } = self.requests.remove(index);
        if let Some(extent) = extents.first_mut() {
            extent.len -= request.offset() % BLOCK;
        }
        let client = &mut self.connections[connection];
        client.requests -= 1;
        request.reply_extents(&mut client.outbox.filling.bytes, &extents);
        client.outbox.filling.answer(Answered { request, data: None });
        self.mark_dirty(connection);
    }

    /// A piece of a request is done.
    pub(super) fn piece_done(&mut self, index: u32, result: Result<(), RequestError>) {
        let pending = &mut self.requests[index];
        pending.pieces -= 1;
        pending.result = pending.result.and(result);
        if pending.pieces == 0 {
            self.answer(index);
        }
    }

    pub(super) fn answer(&mut self, index: u32) {
        let Pending { connection, request, data, result, .. } = self.requests.remove(index);
        let fenced = self.engine.medium.fenced();
        let client: &mut Connection = &mut self.connections[connection];
        client.requests -= 1;
        let replies = &mut client.outbox.filling;
        match (request.kind(), result) {
            (_, Err(_)) if fenced => {
                let message = "another server has taken over the device: reconnect to that one";
                request.reply_error(&mut replies.bytes, nbd::Error::ShuttingDown, message);
                replies.answer(Answered { request, data });
            }
            (_, Err(error)) => {
                request.reply_failed(&mut replies.bytes, error);
                replies.answer(Answered { request, data });
            }
            (Kind::Read { .. }, Ok(())) => {
                request.reply_data(&mut replies.bytes);
                let (start, len) = ((request.offset() % BLOCK) as usize, request.len() as usize);
                replies.answer_with_data(Answered { request, data }, start, len);
            }
            (_, Ok(())) => {
                request.reply_done(&mut replies.bytes);
                replies.answer(Answered { request, data });
            }
        }
        self.mark_dirty(connection);
    }

    /// Lets clients go on that had begun enough before the engine's turn. True if there were any.
    pub(super) fn resume_postponed(&mut self, now: Instant) -> bool {
        let mut postponed = std::mem::take(&mut self.postponed);
        let mut resumed = false;
        for index in postponed.drain(..) {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.begun = 0;
            if connection.has_batch() {
                // Goes on when its replies are sent.
                self.postponed.push(index);
                continue;
            }
            connection.postponed = false;
            resumed = true;
            self.proceed(now, index);
        }
        resumed
    }

    /// Lets clients go on that waited for a buffer, as long as there are buffers.
    pub(super) fn feed_starved(&mut self, now: Instant) {
        while let Some(index) = self.starved.pop_front() {
            if self.connections.get(index).is_none() {
                continue;
            }
            self.proceed(now, index);
            if self.starved.contains(&index) {
                return;
            }
        }
    }
}

/// What holds no data reads as zeroes, or, as in raw units, not at all.
fn extent(mapped: bool, blocks: u32, zeroes: bool) -> Extent {
    Extent { len: u64::from(blocks) * BLOCK, hole: !mapped, zero: !mapped && zeroes }
}

/// False if zeroes must come faster than a write or not at all, and only a write would do: to
/// keep the space, or to change part of a block.
fn is_fast_enough(kind: Kind, offset: u64, len: u32) -> bool {
    let Kind::WriteZeroes { fast: true, no_hole, .. } = kind else { return true };
    !no_hole && offset.is_multiple_of(BLOCK) && u64::from(len).is_multiple_of(BLOCK)
}

/// Blocks that the request touches.
fn covered_blocks(request: &nbd::Request) -> u32 {
    let head = request.offset() % BLOCK;
    (head + u64::from(request.len())).div_ceil(BLOCK) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_byte_of_a_range_once() {
        for offset in [0, 1, 511, 4095, 4096, 5000] {
            for len in [1u64, 2, 511, 512, 4095, 4096, 4097, 8191, 8192, 12_289] {
                let mut covered = Vec::new();
                for part in parts(offset, len) {
                    let start = part.block * BLOCK;
                    let (from, to) = match part.within {
                        Some((from, to)) => (start + u64::from(from), start + u64::from(to)),
                        None => (start, start + part.blocks * BLOCK),
                    };
                    assert!(from < to, "offset {offset}, len {len}: {part:?}");
                    covered.extend(from..to);
                }
                let head = offset % BLOCK;
                assert!(covered.into_iter().eq(head..head + len), "offset {offset}, len {len}");
            }
        }
    }

    #[test]
    fn zeroes_are_fast_only_where_a_trim_will_do() {
        let zeroes = |no_hole, fast| Kind::WriteZeroes { fua: false, no_hole, fast };
        for (no_hole, offset, len, fast) in [
            (false, 8192, 4096, true),
            (true, 8192, 4096, false),
            (false, 8192, 4097, false),
            (false, 512, 4096, false),
        ] {
            assert_eq!(is_fast_enough(zeroes(no_hole, true), offset, len), fast);
            assert!(is_fast_enough(zeroes(no_hole, false), offset, len));
        }
    }
}
