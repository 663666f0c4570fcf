//! One thread of a client: where its next I/O goes.

use super::{Client, Place};
use crate::target::{Io, IoKind, Target};
use crate::workload::{Action, Arrival, Generator, Workload};
use flash::{BLOCK_BYTES, Hint};
use std::collections::VecDeque;

/// I/Os that a thread draws ahead, so that the target can foresee them: as many as the processor
/// waits for at a time, and few enough to be still in its cache when they come.
const AHEAD: usize = 16;

/// See the head of this file.
pub struct Thread {
    /// Index of its client.
    pub client: u32,
    /// I/Os that have ended.
    pub ended: u64,
    /// I/Os that wait for their client's cap.
    pub delayed: u32,
    /// I/Os of the running batch that have ended.
    pub batch_ended: u32,
    /// When the running batch was submitted.
    pub batch_began: u64,
    drawn: u64,
    ios_max: u64,
    /// Draws grains: places of the I/O's size.
    generator: Generator,
    /// Drawn and not handed out.
    ahead: VecDeque<Io>,
    io_bytes: u64,
    hint: Hint,
    grain_bytes: u64,
    /// First byte of the thread's part of the space.
    base: u64,
    /// How much further its writes go.
    write_base: u64,
    interleave: Option<Interleave>,
}

/// Grain `i` lies on lane `i` modulo the lanes.
#[derive(Clone, Copy)]
struct Interleave {
    lanes: u64,
    /// Of each.
    lane_bytes: u64,
    /// The thread's first grain.
    first: u64,
}

impl Thread {
    /// `Err` if the target is too small for the client.
    pub fn new(
        client: &Client,
        index: u32,
        number: u32,
        target: &dyn Target,
        seed: u64,
    ) -> Result<Self, String> {
        let grain_bytes = client.io_bytes().next_multiple_of(BLOCK_BYTES as u64);
        let (lanes, bytes) = (u64::from(target.lanes()), target.bytes());
        let lane_bytes = bytes / lanes;
        let from = begin(client, bytes, grain_bytes);
        let rest = bytes.saturating_sub(from);
        let spanned = |bytes: u64| ((bytes as f64 * client.span) as u64).min(rest);
        let (threads, number) = (u64::from(client.threads), u64::from(number));
        // A part has two halves if reads and writes are apart.
        let halves = if client.apart { 2 } else { 1 };
        let lane_grains = spanned(lane_bytes) / grain_bytes / halves;
        let (base, grains, interleave) = match client.place {
            Place::Whole => (0, spanned(bytes) / grain_bytes / halves, None),
            Place::Lane => (number % lanes * lane_bytes, lane_grains, None),
            Place::Share => {
                let grains = spanned(bytes) / threads / grain_bytes / halves;
                (number * halves * grains * grain_bytes, grains, None)
            }
            Place::Interleaved => {
                (0, lane_grains * lanes, Some(Interleave { lanes, lane_bytes, first: 0 }))
            }
            Place::InterleavedShare => {
                let grains = lane_grains * lanes / threads;
                (0, grains, Some(Interleave { lanes, lane_bytes, first: number * grains }))
            }
        };
        // From the place of a read to that of a write.
        let half = if interleave.is_some() { lane_grains } else { grains };
        let write_base = half * (halves - 1) * grain_bytes;
        let grains = u32::try_from(grains).unwrap_or(u32::MAX);
        if grains == 0 {
            return Err(format!(
                "client {:?}: {} bytes an I/O, but its part of the target has fewer: the device is \
                 too small for the workload",
                client.name,
                client.io_bytes()
            ));
        }
        let mut generator = Generator::new(workload(client), grains, seed)?;
        // Sequential threads of one space begin at different places.
        if number > 0 && !matches!(client.place, Place::Share | Place::InterleavedShare) {
            generator.start_at((number * u64::from(grains) / threads) as u32);
        }
        Ok(Self {
            client: index,
            ended: 0,
            delayed: 0,
            batch_ended: 0,
            batch_began: 0,
            drawn: 0,
            ios_max: if client.ios_max == 0 { u64::MAX } else { client.ios_max },
            generator,
            ahead: VecDeque::with_capacity(AHEAD),
            io_bytes: client.io_bytes(),
            hint: client.hint,
            grain_bytes,
            base: base + from,
            write_base,
            interleave,
        })
    }

    /// The next I/O: a read or a write.
    pub fn draw(&mut self, target: &dyn Target) -> Io {
        self.drawn += 1;
        if self.ahead.is_empty() {
            for _ in 0..AHEAD {
                let io = self.draw_ahead();
                self.ahead.push_back(io);
            }
            target.foresee(self.ahead.make_contiguous());
        }
        self.ahead.pop_front().expect("more were drawn")
    }

    fn draw_ahead(&mut self) -> Io {
        let op = self.generator.draw();
        let grain = u64::from(op.lba);
        let offset = match self.interleave {
            Some(Interleave { lanes, lane_bytes, first }) => {
                let grain = first + grain;
                grain % lanes * lane_bytes + grain / lanes * self.grain_bytes
            }
            None => self.base + grain * self.grain_bytes,
        };
        let (kind, offset) = match op.action {
            Action::Read => (IoKind::Read, offset),
            _ => (IoKind::Write, offset + self.write_base),
        };
        Io { kind, offset, bytes: self.io_bytes, hint: self.hint }
    }

    pub fn has_submitted_all(&self) -> bool {
        self.drawn + u64::from(self.delayed) >= self.ios_max
    }

    pub fn has_ended(&self) -> bool {
        self.ended >= self.ios_max
    }
}

/// Where the client's part begins: on a grain, whatever the share, as what lies before is another's.
fn begin(client: &Client, bytes: u64, grain_bytes: u64) -> u64 {
    (bytes as f64 * client.from / grain_bytes as f64).ceil() as u64 * grain_bytes
}

/// Draws grains of the thread.
fn workload(client: &Client) -> Workload {
    Workload {
        reads: client.reads,
        pattern: client.pattern,
        arrival: Arrival::Closed { depth: 1 },
        ..Workload::default()
    }
}
