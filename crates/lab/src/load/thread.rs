//! One thread of a client: where its next I/O goes.

use super::{Client, Place};
use crate::target::Target;
use crate::workload::{Action, Arrival, Generator, Workload};
use flash::BLOCK_BYTES;

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
    grain_bytes: u64,
    /// First byte of the thread's part of the space.
    base: u64,
    /// With interleaving: how many lanes and the bytes of each.
    lanes: Option<(u64, u64)>,
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
        let grain_bytes = client.bytes.next_multiple_of(BLOCK_BYTES as u64);
        let (lanes, bytes) = (u64::from(target.lanes()), target.bytes());
        let lane_bytes = bytes / lanes;
        // What is left of so many bytes: the first one, and how many grains.
        let part = |bytes: u64| {
            let spanned = (bytes as f64 * client.span) as u64;
            let first = (spanned as f64 * client.skip) as u64 / grain_bytes * grain_bytes;
            (first, (spanned - first) / grain_bytes)
        };
        let (base, grains, interleave) = match client.place {
            Place::Whole => {
                let (first, grains) = part(bytes);
                (first, grains, None)
            }
            Place::Lane => {
                let (first, grains) = part(lane_bytes);
                (u64::from(number) % lanes * lane_bytes + first, grains, None)
            }
            Place::Share => {
                let (first, grains) = part(bytes);
                let grains = grains / u64::from(client.threads);
                (first + u64::from(number) * grains * grain_bytes, grains, None)
            }
            Place::Interleaved => {
                let (first, grains) = part(lane_bytes);
                (first, grains * lanes, Some((lanes, lane_bytes)))
            }
        };
        let grains = u32::try_from(grains).unwrap_or(u32::MAX);
        if grains == 0 {
            return Err(format!(
                "client {:?}: {} bytes an I/O, but its part of the target has fewer: the device is \
                 too small for the workload",
                client.name, client.bytes
            ));
        }
        let workload = Workload {
            reads: client.reads,
            pattern: client.pattern,
            arrival: Arrival::Closed { depth: 1 },
            ..Workload::default()
        };
        let mut generator = Generator::new(workload, grains, seed)?;
        // Sequential threads of one space begin at different places.
        if client.place != Place::Share && number > 0 {
            generator.start_at(
                (u64::from(number) * u64::from(grains) / u64::from(client.threads)) as u32,
            );
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
            grain_bytes,
            base,
            lanes: interleave,
        })
    }

    /// Whether the next I/O reads, and its first byte.
    pub fn draw(&mut self) -> (bool, u64) {
        self.drawn += 1;
        let op = self.generator.draw();
        let grain = u64::from(op.lba);
        let offset = match self.lanes {
            Some((lanes, lane_bytes)) => {
                self.base + grain % lanes * lane_bytes + grain / lanes * self.grain_bytes
            }
            None => self.base + grain * self.grain_bytes,
        };
        (op.action == Action::Read, offset)
    }

    pub fn has_submitted_all(&self) -> bool {
        self.drawn + u64::from(self.delayed) >= self.ios_max
    }

    pub fn has_ended(&self) -> bool {
        self.ended >= self.ios_max
    }
}
