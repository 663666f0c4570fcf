//! From a client's request to pieces of blocks, and from finished pieces to the reply.
//!
//! Invariant: a request's buffer covers whole blocks; byte `offset % 4096` of it is the first
//! byte of the request. Every piece of a request counts in its `pieces` until it is finished.

use super::connection::{Connection, Ending, Incoming};
use super::outbox::Answered;
use super::{Finished, Life, Message, Origin, Piece, Shard, Work};
use crate::front::{Event, Payload, Ticket};
use crate::latency::{Timed, Waited};
use crate::runtime::buffer::View;
use crate::runtime::crypt::Crypt;
use crate::runtime::data::Data;
use crate::volume::{
    Answer, BLOCK, EXTENTS_MAX, Extent, Failure, Kind, Request, Run, ZEROES_BLOCKS, parts,
};
use flash::{Instant, RequestError, Spent};

/// What a client asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Its name.
    pub ticket: Ticket,
    /// The request.
    pub request: Request,
    /// When its header came.
    pub at: Instant,
    /// The limits of its volume let it in, or will when its turn comes; and how long it has waited for that, since when.
    pub admitted: bool,
    pub limited_ns: u64,
    pub waits_since: Instant,
}

/// A request in flight.
pub struct Pending {
    connection: u32,
    asked: Asked,
    /// When it went to the device.
    begun: Instant,
    /// Under which offer.
    pub(super) offer: u64,
    /// Bytes that were acknowledged before it began.
    bytes_before: u64,
    data: Option<Data>,
    /// What the range is compared with.
    expected: Option<Data>,
    pieces: u32,
    result: Result<(), RequestError>,
    /// What its last piece waited for that took long enough for a look.
    waited: Option<Box<Waited>>,
    /// What the time of its last piece went to, if a core told.
    spent: Option<Spent>,
    /// Where an append went, as the core counts.
    placed: Option<u32>,
}

impl Pending {
    /// Goes to the device now, with its memory and what that is compared with.
    fn new(
        connection: u32,
        asked: Asked,
        (begun, offer, bytes_before): (Instant, u64, u64),
        (data, expected): (Option<Data>, Option<Data>),
    ) -> Self {
        let (pieces, result, waited, spent, placed) = (0, Ok(()), None, None, None);
        Self {
            connection,
            asked,
            begun,
            offer,
            bytes_before,
            data,
            expected,
            pieces,
            result,
            waited,
            spent,
            placed,
        }
    }

    /// It fails as it is.
    pub(super) fn fail(&mut self, error: RequestError) {
        self.result = Err(error);
    }

    pub(super) fn request(&self) -> Request {
        self.asked.request
    }

    pub(super) fn data_mut(&mut self) -> Option<&mut Data> {
        self.data.as_mut()
    }

    /// It fails, whatever becomes of its pieces. Returns its memory, which they may still use.
    pub(super) fn abandon(&mut self, error: RequestError) -> Option<Data> {
        self.result = Err(error);
        self.data.take()
    }
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
        let wants_more = idle && connection.front.accepts_more(unsent);
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
        if let Some(asked) = connection.held.take() {
            return self.begin(index, asked);
        }
        if connection.incoming.is_some() {
            return self.step_payload(index);
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
        let event = match connection.resume() {
            Some(event) => Some(event),
            None => {
                let Some(received) = connection.next_event(now) else { return false };
                received.event
            }
        };
        self.mark_dirty(index);
        if !self.may_stay(now, index) {
            return false;
        }
        let connection = &mut self.connections[index];
        match event {
            None => true,
            Some(Event::Data(ticket)) => {
                connection.incoming = connection.parked.remove(&ticket).map(|mut incoming| {
                    incoming.from = incoming.at;
                    incoming
                });
                true
            }
            Some(Event::Whole(ticket)) => self.come(index, ticket, true),
            Some(Event::Spoilt(ticket)) => self.come(index, ticket, false),
            Some(Event::Answered) => true,
            Some(Event::Opened) => {
                self.expiries_stale = true;
                true
            }
            Some(Event::Refused(volume)) => {
                // One that is gone has no name any more.
                let there = volume.filter(|&volume| self.offered.get(volume).is_some());
                self.latencies.note_refused(there);
                true
            }
            Some(Event::StartTls) => self.start_tls(index),
            Some(Event::Request(ticket, request)) => {
                let (admitted, limited_ns, waits_since) = (false, 0, now);
                let asked = Asked { ticket, request, at: now, admitted, limited_ns, waits_since };
                self.begin(index, asked)
            }
            Some(Event::Close) => {
                self.end(index, Ending::Finishing);
                false
            }
        }
    }

    /// Takes what is there of a payload; true if there may be more of the stream behind it.
    fn step_payload(&mut self, index: u32) -> bool {
        let connection = &mut self.connections[index];
        let Some(payload) = connection.take_payload() else { return false };
        let Some(incoming) = connection.incoming.take() else { return false };
        let ticket = incoming.asked.ticket;
        connection.parked.insert(ticket, incoming);
        match payload {
            Payload::More => true,
            Payload::Whole => self.come(index, ticket, true),
            Payload::Spoilt => self.come(index, ticket, false),
        }
    }

    /// All the data of a request has come, `sound` or not.
    fn come(&mut self, index: u32, ticket: Ticket, sound: bool) -> bool {
        let Some(incoming) = self.connections[index].parked.remove(&ticket) else { return false };
        let Incoming { asked, data, .. } = incoming;
        match sound {
            true => self.dispatch(index, asked, Some(data)),
            false => self.answer_unbegun(index, ticket, Failure::Spoilt, Some(data)),
        }
        true
    }

    fn start_tls(&mut self, index: u32) -> bool {
        let connection = &mut self.connections[index];
        match self.shared.tls.as_ref().map(Crypt::accept) {
            Some(Ok(crypt)) => connection.start_tls(crypt),
            Some(Err(error)) => {
                tracing::error!(%error, "TLS cannot start");
                self.end(index, Ending::Finishing);
            }
            None => unreachable!("TLS is offered only if there is a configuration"),
        }
        true
    }

    /// Starts a request, or holds it until there is a buffer: then false.
    fn begin(&mut self, index: u32, asked: Asked) -> bool {
        let Asked { ticket, request, .. } = asked;
        if !request.is_fast_enough() {
            self.answer_unbegun(index, ticket, Failure::Slow, None);
            return true;
        }
        let front = &self.connections[index].front;
        let comes = request.kind.takes_data() && !front.keeps_data(ticket);
        let asked = match comes {
            true if self.must_hold(index, &asked) => {
                self.connections[index].held = Some(asked);
                return false;
            }
            true => asked,
            // Whoever has to wait does so without memory.
            false => match self.admit(index, asked, None) {
                Some((asked, _)) => asked,
                None => return true,
            },
        };
        let front = &self.connections[index].front;
        let only = front.in_flight() <= 1 || front.awaits_data();
        let data = match request.buffer_blocks() {
            0 => None,
            blocks => match self.take_data(blocks, only, request.kind) {
                Some(data) => Some(data),
                None => {
                    self.connections[index].held = Some(asked);
                    if !self.starved.contains(&index) {
                        self.starved.push_back(index);
                    }
                    return false;
                }
            },
        };
        self.with_memory(index, asked, data);
        true
    }

    /// Goes on with a request that has the memory it needs: with its data, if that is there, or still to come.
    pub(super) fn with_memory(&mut self, index: u32, asked: Asked, data: Option<Data>) {
        let Asked { ticket, request, .. } = asked;
        match (request.kind, data) {
            (kind, Some(data)) if kind.takes_data() => {
                if self.connections[index].front.has_data() {
                    return self.bring(index, asked, data);
                }
                let at = (request.offset % BLOCK) as usize;
                let incoming = Incoming { asked, data, from: at, at };
                let connection = &mut self.connections[index];
                if connection.front.asks_for_data(ticket, &mut connection.outbox.filling.bytes) {
                    connection.parked.insert(ticket, incoming);
                    self.mark_dirty(index);
                } else {
                    connection.incoming = Some(incoming);
                }
            }
            (_, data) => self.dispatch(index, asked, data),
        }
    }

    /// Fills memory with the data of a write that is there with its request, and goes on with it.
    fn bring(&mut self, index: u32, asked: Asked, mut data: Data) {
        let (at, len) = ((asked.request.offset % BLOCK) as usize, asked.request.len as usize);
        let front = &mut self.connections[index].front;
        if data.fill_by(at, len, &mut |slice| front.bring(asked.ticket, slice)) {
            self.dispatch(index, asked, Some(data));
        } else {
            self.answer_unbegun(index, asked.ticket, Failure::Spoilt, Some(data));
        }
    }

    /// Answers a request that was not begun.
    pub(super) fn answer_unbegun(
        &mut self,
        connection: u32,
        ticket: Ticket,
        failure: Failure,
        data: Option<Data>,
    ) {
        let data = data.map(|data| (data, 0, 0));
        self.reply(connection, ticket, Answer::Failed(failure), (data, None));
    }

    /// Memory for the data of a request, in the form that the medium wants.
    pub(super) fn take_data(&mut self, blocks: u32, only: bool, kind: Kind) -> Option<Data> {
        if !self.engine.medium.lends() {
            return self.pool.run(blocks, only);
        }
        let empty = kind.reads();
        self.pool.cells(blocks, only, empty, self.engine.frames())
    }

    /// Splits a request into pieces and sends them to their shards.
    pub(super) fn dispatch(&mut self, connection: u32, asked: Asked, data: Option<Data>) {
        let Some((asked, data)) = self.pass(connection, asked, data) else { return };
        let request = asked.request;
        if let Some(failure) = self.refused(&request) {
            return self.refuse(connection, asked, data, failure);
        }
        let Request { kind, offset, len, .. } = request;
        let (len, covered) = (u64::from(len), u64::from(request.covered_blocks()));
        self.connections[connection].requests += 1;
        let data = self.beside(kind, covered as u32, data);
        let begun = (self.now, self.changes.offers, self.acknowledged.bytes());
        let index = self.requests.insert(Pending::new(connection, asked, begun, data));
        if self.engine.medium.fenced() {
            self.requests[index].result = Err(RequestError::Failed);
            return self.answer(index);
        }
        if kind.reads() || kind == Kind::Compare {
            self.connections[connection].begun += len as usize;
        }
        let (first, handle) = (offset / BLOCK, self.handle_of(request.volume));
        match kind {
            Kind::Read | Kind::Compare => self.send(index, Work::Read, first, (0, covered)),
            Kind::Write { fua, handle: named } => {
                let (handle, atomic) = (named.unwrap_or(handle), self.is_atomic(&request));
                for part in parts(offset, len) {
                    let work = match part.within {
                        None => Work::Write { fua, handle, atomic },
                        Some((from, to)) => Work::Merge { from, to, fua, handle },
                    };
                    let at = (part.block, part.blocks);
                    self.send(index, work, first + part.block, at);
                }
            }
            Kind::Zeroes { fua, no_hole, .. } => {
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
            Kind::Extents => return self.extents(index, first, covered),
            Kind::Zone(work) => self.send_zone(index, work),
            Kind::Zones { .. } => return self.answer_zones(index),
        }
        if self.requests[index].pieces == 0 {
            self.answer(index);
        }
    }

    /// Answers what cannot be begun; who asks for a volume that is gone may go too.
    fn refuse(&mut self, connection: u32, asked: Asked, data: Option<Data>, failure: Failure) {
        let volume = asked.request.volume;
        self.latencies.note_refused(self.offered.get(volume).map(|_| volume));
        self.answer_unbegun(connection, asked.ticket, failure, data);
        let front = &mut self.connections[connection];
        let out = &mut front.outbox.filling.bytes;
        if failure == Failure::Gone && !front.front.offered(&self.offered, out) {
            self.end(connection, Ending::Finishing);
        }
    }

    /// The placement handle of what names none.
    fn handle_of(&self, volume: usize) -> u8 {
        self.offered.get(volume).map_or(0, |volume| volume.handle)
    }

    /// Whether a write of whole blocks is to be seen whole or not at all.
    fn is_atomic(&self, request: &Request) -> bool {
        let most = self.offered.get(request.volume).map_or(1, |volume| volume.atomic_blocks);
        let (len, block) = (u64::from(request.len), BLOCK);
        let is_whole = request.offset.is_multiple_of(block) && len.is_multiple_of(block);
        is_whole && len > block && len / block <= u64::from(most)
    }

    /// Where the blocks of a request's volume from `block` on are, as many of `blocks` as follow each other there.
    fn place(&self, index: u32, block: u64, blocks: u64) -> Run {
        let volume = self.offered.get(self.requests[index].asked.request.volume);
        let stretch = volume.expect("its volume was there when it began").run(block, blocks);
        self.shared.split.run(stretch.first, stretch.blocks)
    }

    /// Memory for what is read, and what that is compared with.
    fn beside(
        &mut self,
        kind: Kind,
        blocks: u32,
        data: Option<Data>,
    ) -> (Option<Data>, Option<Data>) {
        if kind != Kind::Compare {
            return (data, None);
        }
        // It must not wait: it holds memory itself, and who waits holding some could wait for another.
        (self.take_data(blocks, true, Kind::Read), data)
    }

    /// Writes zeroes, so that the space stays taken: every piece from the same few blocks.
    fn write_zeroes(&mut self, index: u32, fua: bool, handle: u8, first: u64, blocks: u64) {
        let chunk = u64::from(ZEROES_BLOCKS);
        for from in (first..first + blocks).step_by(chunk as usize) {
            let count = chunk.min(first + blocks - from);
            self.send(index, Work::Write { fua, handle, atomic: false }, from, (2, count));
        }
    }

    /// Sends blocks from `first` of its volume, blocks `at` (first and count) of the request's
    /// buffer, to the shards that hold them.
    fn send(&mut self, index: u32, work: Work, first: u64, at: (u64, u64)) {
        let (mut next, end) = (first, first + at.1);
        while next < end {
            let run = self.place(index, next, end - next);
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

    pub(super) fn send_to(
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
    fn extents(&mut self, index: u32, first: u64, blocks: u64) {
        let run = self.place(index, first, blocks);
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
        while next < end && extents.len() < EXTENTS_MAX {
            let (mapped, blocks) = self.engine.mapped_run(flash::Lba(next), end - next);
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
        if let Some(extent) = extents.first_mut() {
            extent.len -= self.requests[index].asked.request.offset % BLOCK;
        }
        self.answer_now(index, Answer::Extents(&extents));
    }

    /// Answers a request that has no memory.
    pub(super) fn answer_now(&mut self, index: u32, answer: Answer<'_>) {
        let Pending { connection, asked, .. } = self.requests.remove(index);
        self.connections[connection].requests -= 1;
        self.reply(connection, asked.ticket, answer, (None, None));
    }

    /// A piece of a request is done.
    pub(super) fn piece_done(&mut self, finished: Finished) {
        let index = finished.origin.request;
        let pending = &mut self.requests[index];
        pending.pieces -= 1;
        pending.result = pending.result.and(finished.result);
        pending.spent = finished.spent;
        pending.placed = finished.placed;
        if finished.waited.is_some() {
            pending.waited = finished.waited;
        }
        if pending.pieces == 0 {
            self.answer(index);
        }
    }

    pub(super) fn answer(&mut self, index: u32) {
        let pending = self.requests.remove(index);
        let placed = pending.placed.map(|lba| self.place_of(pending.asked.request.volume, lba));
        let Pending { connection, asked, begun, bytes_before, data, expected, result, .. } =
            pending;
        let (waited, spent) = (pending.waited, pending.spent);
        let Asked { ticket, request, at, limited_ns, .. } = asked;
        let fenced = self.engine.medium.fenced();
        self.connections[connection].requests -= 1;
        if result.is_ok() {
            self.acknowledged.note(&request, bytes_before);
        }
        let answer = match result {
            Err(_) if fenced => Answer::Failed(Failure::Moved),
            Err(error) => Answer::Failed(Failure::Device(error)),
            Ok(()) if differ(&request, data.as_ref(), expected.as_ref()) => {
                Answer::Failed(Failure::Differs)
            }
            Ok(()) => placed.map_or(Answer::Done, Answer::Placed),
        };
        if let Some(expected) = expected {
            self.pool.put(expected, self.engine.frames());
        }
        let data = data.map(|data| (data, (request.offset % BLOCK) as usize, request.len as usize));
        let (done, failed) = (self.now, result.is_err());
        let timed = Timed { request, asked: at, begun, done, limited_ns, failed, waited, spent };
        self.reply(connection, ticket, answer, (data, Some(timed)));
    }

    /// Puts a reply into the outbox, and behind it the data of a read: memory, first byte, bytes.
    fn reply(
        &mut self,
        connection: u32,
        ticket: Ticket,
        answer: Answer<'_>,
        (data, timed): (Option<(Data, usize, usize)>, Option<Timed>),
    ) {
        let client: &mut Connection = &mut self.connections[connection];
        let replies = &mut client.outbox.filling;
        let data_follows = client.front.answer(ticket, answer, &mut replies.bytes);
        match data {
            Some((data, start, len)) if data_follows => {
                let answered = Answered { ticket, data: Some(data), timed };
                replies.answer_with_data(answered, start, len);
                let (bytes, data) = replies.last_data();
                client.front.after_data(ticket, &mut data.into_iter().flatten(), bytes);
            }
            data => {
                let data = data.map(|(data, ..)| data);
                replies.answer(Answered { ticket, data, timed });
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

/// True if what was read is not what the client compares it with.
fn differ(request: &Request, read: Option<&Data>, expected: Option<&Data>) -> bool {
    let (Some(read), Some(expected)) = (read, expected) else { return false };
    let (start, len) = ((request.offset % BLOCK) as usize, request.len as usize);
    let bytes =
        |data: &'_ Data| -> Vec<u8> { data.slices(start, len).flatten().copied().collect() };
    bytes(read) != bytes(expected)
}

/// What holds no data reads as zeroes, or, as in raw units, not at all.
fn extent(mapped: bool, blocks: u32, zeroes: bool) -> Extent {
    Extent { len: u64::from(blocks) * BLOCK, hole: !mapped, zero: !mapped && zeroes }
}
