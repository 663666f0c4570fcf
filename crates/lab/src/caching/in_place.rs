//! A device that overwrites in place, as 3D XPoint does: no map, no erase, no GC. It has the times of a
//! flash profile; consecutive blocks lie on consecutive units, which work side by side.
//!
//! A unit serves one block at a time, in the order of asking: command and transfer keep it busy, then
//! the cells take their time while the next block may come. An I/O ends with its last block.

use crate::driver::Failure;
use crate::ssd::serial::Serial;
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use flash::{BLOCK_BYTES, Instant, RequestError};
use nand::Profile;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// See the head of this file.
pub struct InPlace {
    units: Vec<Serial>,
    blocks: u64,
    read_ns: u64,
    program_ns: u64,
    /// Of a block: command and transfer.
    busy_ns: u64,
    now: Instant,
    /// Time, number, token: earliest first.
    ends: BinaryHeap<Reverse<(u64, u64, u64)>>,
    submitted: u64,
    done: VecDeque<Done>,
    written: u64,
}

impl InPlace {
    /// `blocks` over `units` units with the times of `profile`.
    pub fn new(profile: &Profile, units: u32, blocks: u64, now: Instant) -> Self {
        let transfer = (BLOCK_BYTES as f64 * profile.bus_ns_per_byte).round() as u64;
        Self {
            units: vec![Serial::default(); units.max(1) as usize],
            blocks,
            read_ns: profile.read_ns.first().copied().unwrap_or(0),
            program_ns: profile.program_ns.first().copied().unwrap_or(0),
            busy_ns: profile.command_ns + transfer,
            now,
            ends: BinaryHeap::new(),
            submitted: 0,
            done: VecDeque::new(),
            written: 0,
        }
    }
}

impl Target for InPlace {
    fn bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }

    fn flash_bytes(&self) -> u64 {
        self.bytes()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        let result = if io.offset + io.bytes > self.bytes() {
            Err(RequestError::OutOfRange)
        } else {
            Ok(())
        };
        let cells_ns = match io.kind {
            IoKind::Read => self.read_ns,
            IoKind::Write => self.program_ns,
            IoKind::Erase | IoKind::Flush => 0,
        };
        if result.is_err() || cells_ns == 0 {
            self.done.push_back(Done { token, result, at: now });
            return Ok(());
        }
        let block = BLOCK_BYTES as u64;
        let blocks = io.offset / block..(io.offset + io.bytes).div_ceil(block);
        self.written += if io.kind == IoKind::Write { io.bytes } else { 0 };
        let units = self.units.len() as u64;
        let sent = blocks.map(|block| {
            let unit = (block % units) as usize;
            self.units[unit].take(now, self.busy_ns)
        });
        let last = sent.max().unwrap_or(now);
        self.submitted += 1;
        self.ends.push(Reverse(((last + cells_ns).0, self.submitted, token)));
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(self.now);
        }
        self.ends.peek().map(|&Reverse((at, ..))| Instant(at))
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(&Reverse((at, _, token))) = self.ends.peek() {
            if at > now.0 {
                break;
            }
            self.ends.pop();
            self.now = self.now.max(Instant(at));
            self.done.push_back(Done { token, result: Ok(()), at: Instant(at) });
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
        TargetCounts {
            bytes_written: self.written,
            bytes_programmed: self.written,
            bytes_programmed_fast: self.written,
            ..TargetCounts::default()
        }
    }

    fn counter(&self, _: &str) -> u64 {
        0
    }

    fn erase_count_max(&self) -> u32 {
        0
    }

    fn queue_at(&self, _: u64) -> u32 {
        self.ends.len() as u32
    }
}
