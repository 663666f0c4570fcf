//! Reading all there is of a shard: in the order in which it lies on the medium, many reads at a time, with
//! the medium told ahead what comes. Reads in the order of the logical blocks go to and fro on what was written
//! at random, and leave all units but one idle.

use super::Offline;
use crate::runtime::buffer::Buffer;
use crate::runtime::shard::{Origin, Piece, Work};
use crate::server::virtual_turn;
use flash::{Geometry, Lba, RequestError, SlotId};
use ftl::Core;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most logical blocks of one read.
const RUN_BLOCKS: u32 = 64;
/// Reads under way: so many that each unit has some. Their memory is 32 MiB.
const DEPTH: usize = 128;
/// Slots that the medium is told of at once: 32 MiB. Twice that is told ahead.
const AHEAD_SLOTS: usize = 8192;

/// Logical blocks that follow each other, and of which each lies where the order of a sweep comes next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// The first.
    pub lba: u32,
    /// How many; at most 64.
    pub blocks: u32,
}

/// What is to be read, in order.
#[derive(Debug, Default)]
pub struct Sweep {
    runs: Vec<Run>,
    parts: Vec<Part>,
}

/// What the medium is told of at once.
#[derive(Debug)]
struct Part {
    /// The run that it begins with.
    run: usize,
    stretches: Vec<(SlotId, u32)>,
}

type Found = (Option<SlotId>, u32);

impl Sweep {
    /// Logical blocks that will be read.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.blocks)).sum()
    }

    /// One run of each `of`, from the one at `first` on.
    #[must_use]
    pub fn sample(&self, first: usize, of: usize) -> Self {
        let runs = self.runs.iter().skip(first % of).step_by(of).copied().collect();
        // What lies between would be brought along.
        Self { runs, parts: Vec::new() }
    }

    /// Runs of raw blocks, each read as a whole, of all units in turn.
    pub fn of_raw_blocks(blocks: &[(Lba, u32)], blocks_per_unit: u32) -> Self {
        let mut runs = Vec::new();
        for &(first, blocks) in blocks {
            let ends = first.0 + blocks;
            let cut = (first.0..ends).step_by(RUN_BLOCKS as usize);
            runs.extend(cut.map(|lba| Run { lba, blocks: RUN_BLOCKS.min(ends - lba) }));
        }
        runs.sort_unstable_by_key(|run| (run.lba % blocks_per_unit, run.lba));
        Self { runs, parts: Vec::new() }
    }

    fn of(geometry: &Geometry, found: &[Found]) -> Self {
        let mut sweep = Self::default();
        for part in found.chunks(AHEAD_SLOTS) {
            let run = sweep.runs.len();
            sweep.parts.push(Part { run, stretches: stretches(geometry, part) });
            for &(_, lba) in part {
                sweep.push(lba, run);
            }
        }
        sweep
    }

    /// Adds a block to the last run, unless that began before run `part` or is another's.
    fn push(&mut self, lba: u32, part: usize) {
        match self.runs[part..].last_mut() {
            Some(run) if run.lba + run.blocks == lba && run.blocks < RUN_BLOCKS => run.blocks += 1,
            _ => self.runs.push(Run { lba, blocks: 1 }),
        }
    }
}

impl Offline {
    /// The logical blocks of a range that hold data, in the order to read them. It takes 16 bytes a block
    /// of memory, so a large range is swept in pieces.
    pub fn sweep_of(&self, range: Range<u32>) -> Sweep {
        let (Some(ftl), geometry) = (self.ftl(), self.geometry()) else { return Sweep::default() };
        let mut found: Vec<Found> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (mapped, blocks) = ftl.mapped_run(Lba(at), range.end - at);
            if blocks == 0 {
                break;
            }
            let blocks = at..at + blocks;
            at = blocks.end;
            if mapped {
                found.extend(blocks.map(|lba| (Core::slot_of(ftl, Lba(lba)), lba)));
            }
        }
        found.sort_unstable_by_key(|&(slot, lba)| (place(&geometry, slot), lba));
        Sweep::of(&geometry, &found)
    }

    /// The blocks that snapshots hold and their volumes do not, each once, in the order to read them.
    pub fn sweep_of_snapshots(&self) -> Sweep {
        let (Some(ftl), geometry) = (self.ftl(), self.geometry()) else { return Sweep::default() };
        let slot_of = |lba: u32| Core::slot_of(ftl, Lba(lba));
        let mut found: Vec<Found> = Vec::new();
        for part in ftl.snapshots().iter().filter(|of| of.taken).flat_map(|of| &of.stretches) {
            let blocks = (part.first..part.first + part.blocks).zip(part.shadow..);
            let own = blocks.filter(|&(lba, shadow)| slot_of(lba) != slot_of(shadow));
            found.extend(own.map(|(_, shadow)| (slot_of(shadow), shadow)));
        }
        found.retain(|(slot, _)| slot.is_some());
        found.sort_unstable_by_key(|&(slot, lba)| (place(&geometry, slot), lba));
        // Of several snapshots that have the same.
        found.dedup_by_key(|(slot, _)| *slot);
        Sweep::of(&geometry, &found)
    }

    /// Reads all of a sweep, verified by checksums, and tells `each` how its runs went, in any order.
    pub fn read_all(&mut self, sweep: &Sweep, mut each: impl FnMut(Run, Result<(), RequestError>)) {
        let Sweep { runs, parts } = sweep;
        let (mut buffers, mut free) = (Vec::<Buffer>::new(), Vec::new());
        let mut under_way: BTreeMap<u32, usize> = BTreeMap::new();
        let (mut next, mut told, mut finished) = (0, 0, Vec::new());
        while next < runs.len() || !under_way.is_empty() {
            // One part is on its way while the one before it is read.
            while told < parts.len() && (told == 0 || parts[told - 1].run <= next) {
                self.tell(&parts[told]);
                told += 1;
            }
            while next < runs.len() && under_way.len() < DEPTH {
                let buffer = free.pop().unwrap_or_else(|| {
                    buffers.push(Buffer::new(RUN_BLOCKS));
                    buffers.len() - 1
                });
                let Run { lba, blocks } = runs[next];
                let origin = Origin { shard: 0, request: next as u32 };
                let view = buffers[buffer].view(0, blocks);
                self.engine.submit(Piece { origin, work: Work::Read, lba, blocks, view });
                under_way.insert(next as u32, buffer);
                next += 1;
            }
            let turned = virtual_turn(&mut self.engine, &mut self.ring, &mut self.now);
            self.engine.take_finished(&mut finished);
            for ended in std::mem::take(&mut finished) {
                let buffer = under_way.remove(&ended.origin.request);
                free.push(buffer.expect("a read ends once"));
                each(runs[ended.origin.request as usize], ended.result);
            }
            if turned.is_err() {
                // The ring is gone: what was asked for cannot be known any more, nor what was not yet. The
                // kernel may still write to the memory.
                let _ = buffers.leak();
                let asked = under_way.into_keys().map(|run| run as usize);
                asked
                    .chain(next..runs.len())
                    .for_each(|run| each(runs[run], Err(RequestError::Failed)));
                return;
            }
        }
    }

    fn tell(&self, part: &Part) {
        for &(first, slots) in &part.stretches {
            self.engine.medium.will_read(first, slots);
        }
    }
}

/// Where slots lie that are read soon: of each block from the first to the last, unless little of much is wanted.
fn stretches(geometry: &Geometry, found: &[Found]) -> Vec<(SlotId, u32)> {
    let mut wanted: BTreeMap<u32, (u32, u32, u32)> = BTreeMap::new();
    for slot in found.iter().filter_map(|&(slot, _)| slot) {
        let block = geometry.block_of(slot).0;
        let (first, end, count) = wanted.entry(block).or_insert((slot.0, slot.0, 0));
        (*first, *end, *count) = ((*first).min(slot.0), (*end).max(slot.0 + 1), *count + 1);
    }
    let dense = wanted.into_values().filter(|(first, end, count)| count * 4 >= end - first);
    dense.map(|(first, end, _)| (SlotId(first), end - first)).collect()
}

/// What sorts slots so that all units are read at once, each from its beginning to its end.
fn place(geometry: &Geometry, slot: Option<SlotId>) -> u64 {
    // Where it lies is known to the core alone.
    let Some(slot) = slot else { return u64::MAX };
    let block = geometry.block_of(slot);
    let row = u64::from(block.0 % geometry.blocks_per_unit);
    let row = row * u64::from(geometry.pages_per_block) + u64::from(geometry.page_in_block(slot));
    let page = row * u64::from(geometry.units) + u64::from(geometry.unit_of(block));
    page * u64::from(geometry.slots_per_page) + u64::from(geometry.slot_in_page(slot))
}
