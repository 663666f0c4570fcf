//! The map of a drive whose indirection unit is larger than a logical block, as that of QLC drives is,
//! and the buffer such a drive writes through: a target around the FTL that is its firmware.
//!
//! A write is cut at the units. Each piece waits until no other write of its unit is under way. Then
//! it waits in one queue with all reads, which is served strictly in order: a write there needs room in
//! the buffer, and one that is not a whole unit keeps the queue for `merge_ns`. With room it is
//! acknowledged, as the buffer survives power cuts. What is not a whole unit reads the unit first and
//! is merged into it. The whole unit then goes to flash, and room and unit are free again when it is programmed. So
//! writes of one unit follow one another at the pace of a program, and are not merged with each other.
//!
//! Reads of units that are in the buffer take no time; others go to flash as they are. A trim counts
//! for the whole units in it. A flush waits for nothing; it tells of a unit that could not be written.
//!
//! Invariants:
//! - of each unit at most one piece is past its turn, and pieces take their turns in order of arrival;
//! - inside, a unit is read to be merged only after every earlier write of it has ended;
//! - room in use is that of the pieces that were acknowledged and are not in flash.

use super::cache::BlockHasher;
use super::placement::{FdpStatistics, Placement};
use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target, TargetCounts};
use flash::{Hint, Instant, RequestError, Slab};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

/// What an [`Indirection`] is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IndirectionConfig {
    /// Bytes of a unit: whole blocks.
    pub unit_bytes: u64,
    /// Bytes of the buffer: units that are merged or programmed at a time.
    pub buffer_bytes: u64,
    /// How long the firmware is busy with a write that has to be merged, and looks at no other
    /// command.
    pub merge_ns: u64,
}

/// See the head of this file.
pub struct Indirection<T> {
    inner: T,
    config: IndirectionConfig,
    now: Instant,
    commands: Slab<Command>,
    pieces: Slab<Piece>,
    /// By unit: the piece whose turn it is, and those that wait for theirs.
    turns: HashMap<u32, VecDeque<u32>, BuildHasherDefault<BlockHasher>>,
    /// Reads, and pieces whose turn it is: served from the front.
    queue: VecDeque<Waiter>,
    /// Until then the firmware looks at nothing.
    busy_until: Instant,
    /// Units that the buffer still has room for.
    room: u64,
    failed: Option<RequestError>,
    host_bytes_written: u64,
    /// Pieces for which a unit was read and merged.
    merged: u64,
    done: VecDeque<Done>,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    token: u64,
    pieces_left: u32,
    result: Result<(), RequestError>,
}

/// What a command does to one unit.
#[derive(Clone, Copy, Debug)]
struct Piece {
    command: u32,
    unit: u32,
    stage: Stage,
    is_whole: bool,
    is_trim: bool,
    hint: Hint,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// For its turn, or for room.
    Waits,
    /// The rest of its unit is being read.
    Merges,
    /// The whole unit is in the buffer and on its way to flash.
    Leaves,
}

/// What waits for the firmware.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Read { token: u64, io: Io },
    Piece(u32),
}

/// Whose I/O the inner target ended.
enum Inside {
    Read(u32),
    Piece(u32),
}

impl Inside {
    fn token(self) -> u64 {
        match self {
            Self::Read(command) => u64::from(command),
            Self::Piece(piece) => 1 << 63 | u64::from(piece),
        }
    }

    fn of(token: u64) -> Self {
        if token >> 63 == 0 { Self::Read(token as u32) } else { Self::Piece(token as u32) }
    }
}

impl<T: Target> Indirection<T> {
    /// Puts a map and a buffer of that kind before `inner`.
    pub fn new(inner: T, config: IndirectionConfig) -> Self {
        assert!(config.unit_bytes > 0, "units have a size");
        Self {
            now: inner.now(),
            inner,
            commands: Slab::default(),
            pieces: Slab::default(),
            turns: HashMap::default(),
            queue: VecDeque::new(),
            busy_until: Instant(0),
            room: (config.buffer_bytes / config.unit_bytes).max(1),
            failed: None,
            host_bytes_written: 0,
            merged: 0,
            done: VecDeque::new(),
            config,
        }
    }

    /// The target inside.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// When something happens next.
    fn next(&self) -> Option<Instant> {
        let waits = !self.queue.is_empty() && self.busy_until > self.now;
        self.inner.deadline().into_iter().chain(waits.then_some(self.busy_until)).min()
    }

    fn units(&self, io: &Io) -> std::ops::Range<u64> {
        let unit = self.config.unit_bytes;
        io.offset / unit..(io.offset + io.bytes).div_ceil(unit)
    }

    fn unit_io(&self, kind: IoKind, piece: &Piece) -> Io {
        let bytes = self.config.unit_bytes;
        Io { kind, offset: u64::from(piece.unit) * bytes, bytes, hint: piece.hint }
    }

    fn end(&mut self, token: u64, result: Result<(), RequestError>) {
        self.done.push_back(Done { token, result, at: self.now });
    }

    fn end_piece(&mut self, command: u32, result: Result<(), RequestError>) {
        let entry = &mut self.commands[command];
        entry.pieces_left -= 1;
        entry.result = entry.result.and(result);
        if entry.pieces_left == 0 {
            let Command { token, result, .. } = *entry;
            self.commands.remove(command);
            self.end(token, result);
        }
    }

    fn read(&mut self, token: u64, io: Io) -> Result<(), Failure> {
        let leaves = |unit: u64| {
            let front = self.turns.get(&(unit as u32)).and_then(VecDeque::front);
            front.is_some_and(|&piece| self.pieces[piece].stage == Stage::Leaves)
        };
        if self.units(&io).all(leaves) {
            self.end(token, Ok(()));
            return Ok(());
        }
        let command = self.commands.insert(Command { token, pieces_left: 1, result: Ok(()) });
        self.inner.submit(self.now, Inside::Read(command).token(), io)
    }

    /// A write or a trim.
    fn change(&mut self, token: u64, io: Io) -> Result<(), Failure> {
        let (unit_bytes, is_trim) = (self.config.unit_bytes, io.kind == IoKind::Erase);
        let end = io.offset + io.bytes;
        let is_whole = |unit: u64| io.offset <= unit * unit_bytes && (unit + 1) * unit_bytes <= end;
        let units = self.units(&io).filter(|&unit| !is_trim || is_whole(unit));
        let pieces_left = units.clone().count() as u32;
        if pieces_left == 0 {
            // A trim of parts of units: there is nothing that it could change.
            self.end(token, Ok(()));
            return Ok(());
        }
        self.host_bytes_written += if is_trim { 0 } else { io.bytes };
        let command = self.commands.insert(Command { token, pieces_left, result: Ok(()) });
        for unit in units {
            let is_whole = is_whole(unit);
            let (unit, hint) = (unit as u32, io.hint);
            let piece = Piece { command, unit, stage: Stage::Waits, is_whole, is_trim, hint };
            let index = self.pieces.insert(piece);
            let turns = self.turns.entry(unit).or_default();
            turns.push_back(index);
            if turns.len() == 1 {
                self.turn(index)?;
            }
        }
        Ok(())
    }

    /// It is the turn of a piece.
    fn turn(&mut self, index: u32) -> Result<(), Failure> {
        if self.pieces[index].is_trim {
            let io = self.unit_io(IoKind::Erase, &self.pieces[index]);
            return self.inner.submit(self.now, Inside::Piece(index).token(), io);
        }
        self.queue.push_back(Waiter::Piece(index));
        Ok(())
    }

    /// Serves the queue as far as it can go now.
    fn serve(&mut self) -> Result<(), Failure> {
        while self.busy_until <= self.now
            && let Some(&front) = self.queue.front()
        {
            match front {
                Waiter::Read { token, io } => {
                    self.queue.pop_front();
                    self.read(token, io)?;
                }
                Waiter::Piece(_) if self.room == 0 => break,
                Waiter::Piece(index) => {
                    self.queue.pop_front();
                    self.admit(index)?;
                }
            }
        }
        Ok(())
    }

    /// There is room for a piece: it is safe.
    fn admit(&mut self, index: u32) -> Result<(), Failure> {
        self.room -= 1;
        let piece = self.pieces[index];
        self.end_piece(piece.command, Ok(()));
        if piece.is_whole {
            return self.leave(index);
        }
        self.merged += 1;
        self.busy_until = self.now + self.config.merge_ns;
        self.pieces[index].stage = Stage::Merges;
        let io = self.unit_io(IoKind::Read, &piece);
        self.inner.submit(self.now, Inside::Piece(index).token(), io)
    }

    fn leave(&mut self, index: u32) -> Result<(), Failure> {
        self.pieces[index].stage = Stage::Leaves;
        let io = self.unit_io(IoKind::Write, &self.pieces[index]);
        self.inner.submit(self.now, Inside::Piece(index).token(), io)
    }

    /// What was inside for a piece has ended.
    fn ended(&mut self, index: u32, result: Result<(), RequestError>) -> Result<(), Failure> {
        let piece = self.pieces[index];
        if piece.stage == Stage::Merges && result.is_ok() {
            return self.leave(index);
        }
        if piece.is_trim {
            self.end_piece(piece.command, result);
        } else {
            self.failed = self.failed.or(result.err());
            self.room += 1;
        }
        self.pieces.remove(index);
        let turns = self.turns.get_mut(&piece.unit).expect("it was its turn");
        turns.pop_front();
        let next = turns.front().copied();
        if next.is_none() {
            self.turns.remove(&piece.unit);
        }
        next.map_or(Ok(()), |next| self.turn(next))
    }

    fn collect(&mut self) -> Result<(), Failure> {
        while let Some(Done { token, result, .. }) = self.inner.take_done() {
            match Inside::of(token) {
                Inside::Read(command) => self.end_piece(command, result),
                Inside::Piece(piece) => self.ended(piece, result)?,
            }
        }
        self.serve()
    }
}

impl<T: Target> Target for Indirection<T> {
    fn bytes(&self) -> u64 {
        let bytes = self.inner.bytes();
        bytes - bytes % self.config.unit_bytes
    }

    fn flash_bytes(&self) -> u64 {
        self.inner.flash_bytes()
    }

    fn rules(&self) -> Rules {
        self.inner.rules()
    }

    fn lanes(&self) -> u32 {
        self.inner.lanes()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn foresee(&self, ios: &[Io]) {
        self.inner.foresee(ios);
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        if !io.is_within(self.bytes()) {
            self.end(token, Err(RequestError::OutOfRange));
            return Ok(());
        }
        match io.kind {
            IoKind::Read => self.queue.push_back(Waiter::Read { token, io }),
            IoKind::Write | IoKind::Erase => self.change(token, io)?,
            IoKind::Flush => {
                let failed = self.failed.take().map_or(Ok(()), Err);
                self.end(token, failed);
            }
        }
        self.advance(now)
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        self.next()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.collect()?;
        while let Some(next) = self.next().filter(|&next| next <= now) {
            self.now = self.now.max(next);
            self.inner.advance(self.now)?;
            self.collect()?;
        }
        // "Whenever" moves nothing on.
        if now != Instant(u64::MAX) {
            self.now = self.now.max(now);
        }
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        // What merging adds is the drive's own doing.
        TargetCounts { bytes_written: self.host_bytes_written, ..self.inner.counts() }
    }

    fn counter(&self, name: &str) -> u64 {
        if name == "units_merged" { self.merged } else { self.inner.counter(name) }
    }

    fn erase_count_max(&self) -> u32 {
        self.inner.erase_count_max()
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.inner.queue_at(offset) + self.queue.len() as u32
    }

    fn placement(&self) -> Option<Placement> {
        self.inner.placement()
    }

    fn fdp(&self) -> Option<FdpStatistics> {
        self.inner.fdp()
    }
}

#[cfg(test)]
mod tests;
