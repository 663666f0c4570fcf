//! Several targets as one: striped in chunks as RAID-0 does, or one after the other.
//!
//! An I/O is cut by member; the pieces of one member touch each other, so they are one I/O there. It
//! ends with its last piece. A flush goes to every member. Members one after the other are lanes.
//!
//! Invariants:
//! - members advance in the order of their deadlines, lower numbers first, so ends come in order of
//!   time;
//! - with chunks every member offers whole chunks, as many as the smallest holds.

use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target, TargetCounts};
use flash::{BLOCK_BYTES, Instant, RequestError};
use std::collections::VecDeque;

/// See the head of this file.
pub struct Array<T> {
    members: Vec<T>,
    /// 0: members one after the other.
    chunk_bytes: u64,
    /// Bytes used of each member.
    member_bytes: u64,
    /// By index: I/Os in flight. The index is the token inside.
    open: Vec<Open>,
    open_free: Vec<u32>,
    done: VecDeque<Done>,
    now: Instant,
    /// When each member has something to do: it changes only when the member is touched, and is asked several times
    /// for each event.
    due: Vec<Option<Instant>>,
    /// The first of them, and whose.
    next: Option<(Instant, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    token: u64,
    pieces_left: u32,
    result: Result<(), RequestError>,
}

impl<T: Target> Array<T> {
    /// `chunk_bytes` go to each member in turn; 0 puts the members one after the other. `Err` says
    /// what is wrong.
    pub fn new(members: Vec<T>, chunk_bytes: u64) -> Result<Self, String> {
        let least = members.iter().map(Target::bytes).min();
        let least = least.ok_or("an array without a member; give at least 1")?;
        let member_bytes = if chunk_bytes == 0 { least } else { least - least % chunk_bytes };
        if member_bytes == 0 {
            return Err(format!(
                "chunk_bytes = {chunk_bytes}: a member has only {least} bytes; use less"
            ));
        }
        let now = members.iter().map(Target::now).max().unwrap_or_default();
        let due: Vec<_> = members.iter().map(Target::deadline).collect();
        Ok(Self {
            now,
            next: first(&due),
            due,
            members,
            chunk_bytes,
            member_bytes,
            open: Vec::new(),
            open_free: Vec::new(),
            done: VecDeque::new(),
        })
    }

    /// The member that holds byte `offset`, and where.
    pub(super) fn place(&self, offset: u64) -> (usize, u64) {
        if self.chunk_bytes == 0 {
            let member = (offset / self.member_bytes).min(self.members.len() as u64 - 1);
            return (member as usize, offset - member * self.member_bytes);
        }
        let count = self.members.len() as u64;
        let (chunk, within) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
        ((chunk % count) as usize, chunk / count * self.chunk_bytes + within)
    }

    /// What of `io` lies on `member`.
    fn piece(&self, member: usize, io: &Io) -> Option<Io> {
        let (start, end) = (io.offset, io.offset + io.bytes);
        let number = member as u64;
        let (first, last) = if self.chunk_bytes == 0 {
            let base = number * self.member_bytes;
            let from = start.max(base);
            let to = end.min(base + self.member_bytes);
            (from.saturating_sub(base), to.saturating_sub(base))
        } else {
            // Bytes of this member below `offset`.
            let below = |offset: u64| {
                let stripe = self.chunk_bytes * self.members.len() as u64;
                let rest = (offset % stripe).saturating_sub(number * self.chunk_bytes);
                offset / stripe * self.chunk_bytes + rest.min(self.chunk_bytes)
            };
            (below(start), below(end))
        };
        (first < last).then(|| Io { offset: first, bytes: last - first, ..*io })
    }

    fn open(&mut self, token: u64, pieces: u32) -> u32 {
        let open = Open { token, pieces_left: pieces, result: Ok(()) };
        let index = self.open_free.pop().unwrap_or_else(|| {
            self.open.push(open);
            (self.open.len() - 1) as u32
        });
        self.open[index as usize] = open;
        index
    }

    /// Takes what a member has ended, now that it was touched.
    fn collect(&mut self, member: usize) {
        while let Some(done) = self.members[member].take_done() {
            let index = done.token as u32;
            let open = &mut self.open[index as usize];
            open.pieces_left -= 1;
            open.result = open.result.and(done.result);
            if open.pieces_left == 0 {
                self.done.push_back(Done { token: open.token, result: open.result, at: done.at });
                self.open_free.push(index);
            }
        }
        self.due[member] = self.members[member].deadline();
        self.next = first(&self.due);
    }
}

/// The first member that has something to do.
fn first(due: &[Option<Instant>]) -> Option<(Instant, usize)> {
    due.iter().enumerate().filter_map(|(member, at)| Some(((*at)?, member))).min()
}

impl<T: Target> Target for Array<T> {
    fn bytes(&self) -> u64 {
        self.member_bytes * self.members.len() as u64
    }

    fn flash_bytes(&self) -> u64 {
        self.members.iter().map(Target::flash_bytes).sum()
    }

    fn rules(&self) -> Rules {
        self.members[0].rules()
    }

    fn lanes(&self) -> u32 {
        if self.chunk_bytes == 0 { self.members.len() as u32 } else { 1 }
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn foresee(&self, ios: &[Io]) {
        for io in ios {
            let (member, offset) = self.place(io.offset);
            let bytes = io.bytes.min(BLOCK_BYTES as u64);
            self.members[member].foresee(&[Io { offset, bytes, ..*io }]);
        }
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        if !io.is_within(self.bytes()) {
            self.done.push_back(Done { token, result: Err(RequestError::OutOfRange), at: now });
            return Ok(());
        }
        let piece = |array: &Self, member| match io.kind {
            IoKind::Flush => Some(io),
            _ => array.piece(member, &io),
        };
        let count = self.members.len();
        let pieces = (0..count).filter(|&member| piece(self, member).is_some()).count();
        let open = self.open(token, pieces as u32);
        for member in 0..count {
            if let Some(io) = piece(self, member) {
                self.members[member].submit(now, u64::from(open), io)?;
                self.collect(member);
            }
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        self.next.map(|(at, _)| at)
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some((at, member)) = self.next.filter(|(at, _)| *at <= now) {
            self.members[member].advance(at)?;
            self.collect(member);
        }
        if now != Instant(u64::MAX) {
            self.now = self.now.max(now);
        }
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        let mut sum = TargetCounts::default();
        for counts in self.members.iter().map(Target::counts) {
            sum.bytes_written += counts.bytes_written;
            sum.bytes_programmed += counts.bytes_programmed;
            sum.bytes_relocated += counts.bytes_relocated;
            sum.bytes_programmed_fast += counts.bytes_programmed_fast;
            sum.erases += counts.erases;
            sum.suspensions += counts.suspensions;
        }
        sum
    }

    fn counter(&self, name: &str) -> u64 {
        self.members.iter().map(|member| member.counter(name)).sum()
    }

    fn erase_count_max(&self) -> u32 {
        self.members.iter().map(Target::erase_count_max).max().unwrap_or(0)
    }

    fn queue_at(&self, offset: u64) -> u32 {
        let (member, offset) = self.place(offset);
        self.members[member].queue_at(offset)
    }
}
