//! What the FTL costs by itself: processor time of a random read and a random write through the
//! core, on a medium that answers at once from flat arrays, and the memory of the map.
//!
//! Nothing is subtracted: the time of the medium's arrays and of this loop is in the figures.

use super::{Figure, Goal, Request, cpu_ns, measured, median};
use crate::device::{self, Shape, kind_of};
use flash::{
    BLOCK_BYTES, BlockId, Command, Completion, FastTier, Geometry, Health, Hint, Instant, Lba, Oob,
    Operation, Pairing, Payload, Random, SlotData, SlotId, SlotRead, SlotStatus, Tag,
};
use ftl::{FormatOptions, Ftl, Input, Output, Settings};
use std::collections::{BTreeMap, VecDeque};

/// Requests in flight: about what a busy server hands over at a time.
const BATCH: u32 = 32;
/// Logical by physical capacity.
const UTILIZATION: f64 = 0.8;
pub(super) const RUNS: usize = 3;

/// 4 GiB behind a fast tier of 5 % of it.
const TIERED: Geometry =
    Geometry { units: 10, fast: FastTier { units: 2, blocks_per_unit: 102 }, ..GEOMETRY };

/// 4 GiB over 8 units with pages of one slot.
pub(super) const GEOMETRY: Geometry = Geometry {
    units: 8,
    blocks_per_unit: 512,
    pages_per_block: 256,
    slots_per_page: 1,
    pairing: Pairing::None,
    durable_at_completion: true,
    suspend: false,
    queue_depth: 8,
    endurance: 100_000,
    open_blocks_max: 0,
    fast: FastTier::NONE,
};

pub fn read_cpu(request: &mut Request<'_>) {
    let operations = if request.quick { 1_000_000 } else { 5_000_000 };
    let goal = Goal::AtMost(200.0);
    let figure = aged(GEOMETRY, false, Settings::default()).and_then(|mut core| {
        let ns = core.cost(operations, false)?;
        Ok(Figure::new("ftl-read-cpu", ns, "ns/read", goal)
            .note(format!("4 KiB random, {BATCH} in flight, 4 GiB, median of {RUNS}")))
    });
    (request.sink)(measured("ftl-read-cpu", "ns/read", goal, figure));
}

pub fn write_cpu(request: &mut Request<'_>) {
    let operations = if request.quick { 1_000_000 } else { 4_000_000 };
    let goal = Goal::AtMost(600.0);
    let figure = aged(GEOMETRY, true, Settings::default()).and_then(|mut core| {
        let before = core.waf_counters();
        let ns = core.cost(operations, true)?;
        let after = core.waf_counters();
        let waf = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
        Ok(Figure::new("ftl-write-cpu", ns, "ns/write", goal).note(format!(
            "4 KiB random, 80 % utilization, WAF {waf:.2} with GC, median of {RUNS}"
        )))
    });
    (request.sink)(measured("ftl-write-cpu", "ns/write", goal, figure));
}

/// What a write costs that is acknowledged from a fast tier, destage and the GC behind it included.
pub fn tier_cpu(request: &mut Request<'_>) {
    let operations = if request.quick { 1_000_000 } else { 4_000_000 };
    let goal = Goal::AtMost(1000.0);
    let figure = aged(TIERED, true, Settings::default()).and_then(|mut core| {
        let before = core.ftl.counter("slots_destaged");
        let ns = core.cost(operations, true)?;
        let destaged = core.ftl.counter("slots_destaged") - before;
        let share = destaged as f64 / (RUNS as u64 * operations) as f64;
        Ok(Figure::new("ftl-tier-write-cpu", ns, "ns/write", goal).note(format!(
            "4 KiB random behind a fast tier of 5 %, {:.0} % destaged, median of {RUNS}",
            100.0 * share
        )))
    });
    (request.sink)(measured("ftl-tier-write-cpu", "ns/write", goal, figure));
}

/// Half of what SPDK's FTL takes in its small geometry with GC: a cache of 512 MiB before 4 GiB of memory,
/// uniform random writes. Like it, the medium here copies each block that is programmed or read.
const SPDK_HALVED_NS: f64 = 2_550.0;

/// The same on a medium that is memory: what a write costs with the copies of its block, from tier to tier.
pub fn tier_copy_cpu(request: &mut Request<'_>) {
    let name = "ftl-tier-write-copy-cpu";
    let operations = if request.quick { 500_000 } else { 2_000_000 };
    let goal = Goal::AtMost(SPDK_HALVED_NS);
    let figure = aged(TIERED, true, Settings::default()).and_then(|mut core| {
        core.medium.copies = Some(Copies::new(&TIERED, &core.medium));
        let before = core.ftl.counter("slots_programmed");
        let ns = core.cost(operations, true)?;
        let programmed = core.ftl.counter("slots_programmed") - before;
        let each = programmed as f64 / (RUNS as u64 * operations) as f64;
        Ok(Figure::new(name, ns, "ns/write", goal).note(format!(
            "the same with a copy of each block that is programmed ({each:.2} a write, on both tiers) or \
             read to be moved, median of {RUNS}"
        )))
    });
    (request.sink)(measured(name, "ns/write", goal, figure));
}

pub fn map_bytes(request: &mut Request<'_>) {
    for (name, capacity) in
        [("map-bytes-per-block-8gib", "8GiB"), ("map-bytes-per-block-64gib", "64GiB")]
    {
        if request.wants(name) {
            let goal = Goal::AtMost(8.5);
            let figure = map_bytes_of(capacity).map(|bytes| {
                Figure::new(name, bytes, "bytes", goal).note(format!("mlc-25nm, {capacity}"))
            });
            (request.sink)(measured(name, "bytes", goal, figure));
        }
    }
}

/// Makes the device that `weir format --capacity` makes, and asks its FTL.
fn map_bytes_of(capacity: &str) -> Result<f64, String> {
    let folder = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let shape = Shape { capacity: Some(capacity.into()), ..Shape::default() };
    let described = device::describe(&device::Request {
        data: Some(&folder),
        shape: Some(&shape),
        fresh: true,
        ..device::Request::default()
    })?;
    let ask = || {
        let config = &described.config;
        serve::offline::format(&config.device, &config.ftl)?;
        serve::offline::with_device(&kind_of(&folder), &config.ftl, true, |shards| {
            let blocks: u64 =
                shards.iter().map(|shard| u64::from(shard.report().logical_blocks)).sum();
            let bytes: u64 = shards.iter().filter_map(|shard| Some(shard.ftl()?.map_bytes())).sum();
            bytes as f64 / blocks as f64
        })
    };
    let result = ask().map_err(|error| error.to_string());
    std::fs::remove_dir_all(&folder).ok();
    result
}

/// A core with every block written once, and with `steady` until GC has turned everything over.
pub(super) fn aged(geometry: Geometry, steady: bool, settings: Settings) -> Result<Core, String> {
    let mut core = Core::format(geometry, settings)?;
    let blocks = core.logical_blocks;
    let mut next = 0;
    core.run(u64::from(blocks), true, || {
        next += 1;
        next - 1
    })?;
    if steady {
        let mut random = Random::new(1);
        let operations = 3 * GEOMETRY.slots();
        core.run(operations, true, || random.below(u64::from(blocks)) as u32)?;
    }
    Ok(core)
}

/// An FTL and a medium that answers at once.
pub(super) struct Core {
    pub(super) ftl: Ftl,
    now: Instant,
    logical_blocks: u32,
    medium: Medium,
    /// Commands that the FTL gave and the medium did not answer yet.
    commands: VecDeque<Command>,
    /// Scratch of `settle`.
    cells: Vec<Cell>,
    replies: u64,
}

impl Core {
    fn format(geometry: Geometry, settings: Settings) -> Result<Self, String> {
        let health =
            Health { erase_counts: vec![0; geometry.blocks() as usize], ..Health::default() };
        let logical_blocks = (GEOMETRY.slots() as f64 * UTILIZATION) as u32;
        let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
        let medium = Medium::new(&geometry, &settings);
        let ftl = Ftl::format(geometry, &health, options, settings)?;
        let now = Instant(0);
        let commands = VecDeque::new();
        let cells = Vec::new();
        let mut core = Self { ftl, now, logical_blocks, medium, commands, cells, replies: 0 };
        core.settle()?;
        Ok(core)
    }

    /// Processor nanoseconds of one random operation, median of some runs.
    fn cost(&mut self, operations: u64, write: bool) -> Result<f64, String> {
        self.cost_within(1.0, operations, write)
    }

    /// The same, within the first `share` of the blocks.
    pub(super) fn cost_within(
        &mut self,
        share: f64,
        operations: u64,
        write: bool,
    ) -> Result<f64, String> {
        let mut costs = Vec::new();
        let blocks = (f64::from(self.logical_blocks) * share) as u64;
        for seed in 0..RUNS {
            let mut random = Random::new(seed as u64 + 2);
            let begun = cpu_ns();
            self.run(operations, write, || random.below(blocks) as u32)?;
            costs.push((cpu_ns() - begun) as f64 / operations as f64);
        }
        median(costs).ok_or_else(|| "nothing was run".into())
    }

    /// Runs one-block operations, a batch at a time.
    fn run(
        &mut self,
        operations: u64,
        write: bool,
        mut place: impl FnMut() -> u32,
    ) -> Result<(), String> {
        let mut done = 0;
        while done < operations {
            let batch = u64::from(BATCH).min(operations - done) as u32;
            let expected = self.replies + u64::from(batch);
            self.now = self.now + 10_000;
            for buffer in 0..batch {
                let lba = Lba(place());
                let checksum = lba.0.wrapping_mul(0x9e37_79b9) ^ done as u32;
                self.medium.host[buffer as usize] = checksum;
                let operation = if write {
                    Operation::Write { buffer, fua: false, atomic: false, hint: Hint::default() }
                } else {
                    Operation::Read { buffer }
                };
                let request = flash::Request { id: buffer.into(), lba, blocks: 1, operation };
                let checksums: &[u32] = if write { &[checksum] } else { &[] };
                self.ftl.handle(self.now, Input::Request { request, checksums });
            }
            self.settle()?;
            while self.replies < expected {
                // A write may wait for a deadline, never for ever.
                let at = self.ftl.deadline().ok_or("the FTL stands still")?;
                self.now = self.now.max(at);
                self.ftl.handle(self.now, Input::Deadline);
                self.settle()?;
            }
            done += u64::from(batch);
        }
        Ok(())
    }

    /// Answers commands until there are none.
    fn settle(&mut self) -> Result<(), String> {
        self.drain()?;
        while !self.commands.is_empty() {
            // All that wait are looked up at once, so that the medium's cache misses overlap: they
            // are not what is measured here.
            let mut cells = std::mem::take(&mut self.cells);
            cells.extend(self.commands.iter().map(|command| self.medium.look_up(command)));
            for cell in cells.drain(..) {
                let command = self.commands.pop_front().expect("one cell a command");
                self.medium.answer(command, &cell, &mut self.ftl, self.now);
            }
            self.cells = cells;
            self.drain()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), String> {
        while let Some(output) = self.ftl.poll() {
            match output {
                Output::Command(command) => {
                    if let Command::Program { tag, slot, .. } = command {
                        self.medium.program(slot, self.ftl.program(tag));
                    }
                    self.commands.push_back(command);
                }
                Output::Reply(reply) => {
                    reply.result.map_err(|error| format!("a request failed: {error:?}"))?;
                    self.replies += 1;
                }
                Output::Ready(result) => {
                    result.map_err(|error| error.to_string())?;
                }
                Output::ReadZeroes { .. }
                | Output::Stopped(_)
                | Output::FastDetached(_)
                | Output::Labelled(_)
                | Output::Snapshot { .. } => {}
            }
        }
        Ok(())
    }

    /// Slots the host wrote, and slots programmed for any reason.
    fn waf_counters(&self) -> (u64, u64) {
        (self.ftl.counter("host_blocks_written"), self.ftl.counter("slots_programmed"))
    }
}

/// What the medium keeps of a slot: one cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Cell {
    oob: Oob,
    crc: u32,
    written: bool,
}

/// OOB and checksum of every slot, and the bytes of the FTL's own.
struct Medium {
    cells: Vec<Cell>,
    slots_per_block: u32,
    /// Checksums of what the host's buffers and the relocation pool hold.
    host: Vec<u32>,
    relocation: Vec<u32>,
    empty_crc: u32,
    /// By slot. Kept only if a part of the map is read again: else nothing but a mount reads them, and
    /// copies would count as the FTL's time.
    own: Option<BTreeMap<u32, Box<[u8; BLOCK_BYTES]>>>,
    /// What is in the slots, if the medium is to be memory.
    copies: Option<Copies>,
}

type Block = [u8; BLOCK_BYTES];

/// Bytes of every slot, and of the buffers that they come from and go to.
struct Copies {
    slots: Vec<Block>,
    host: Vec<Block>,
    relocation: Vec<Block>,
}

impl Copies {
    fn new(geometry: &Geometry, medium: &Medium) -> Self {
        // Not zeroes, which would be pages that are not there yet.
        let blocks = |count: usize| vec![[1; BLOCK_BYTES]; count];
        Self {
            slots: blocks(geometry.slots() as usize),
            host: blocks(medium.host.len()),
            relocation: blocks(medium.relocation.len()),
        }
    }

    fn program(&mut self, at: usize, data: &SlotData) {
        match data {
            SlotData::Payload(Payload { buffer: Payload::RELOCATION, index }) => {
                self.slots[at] = self.relocation[*index as usize];
            }
            SlotData::Payload(from) => self.slots[at] = self.host[from.buffer as usize],
            SlotData::Meta(bytes) => self.slots[at] = **bytes,
            SlotData::Empty => {}
        }
    }

    fn read(&mut self, slot: SlotId, into: Payload) {
        let to = match into {
            Payload { buffer: Payload::RELOCATION, index } => &mut self.relocation[index as usize],
            Payload { buffer, .. } => &mut self.host[buffer as usize],
        };
        *to = self.slots[slot.0 as usize];
    }
}

impl Medium {
    fn new(geometry: &Geometry, settings: &Settings) -> Self {
        Self {
            cells: vec![Cell::default(); geometry.slots() as usize],
            slots_per_block: geometry.slots_per_block(),
            host: vec![0; BATCH as usize],
            relocation: vec![0; settings.relocation_blocks as usize],
            empty_crc: flash::crc(&[0; BLOCK_BYTES]),
            own: (settings.map_bytes > 0).then(BTreeMap::new),
            copies: None,
        }
    }

    fn program(&mut self, first: SlotId, slots: &[flash::SlotWrite]) {
        for (at, write) in (first.0 as usize..).zip(slots) {
            let crc = match &write.data {
                SlotData::Payload(from) if from.buffer == Payload::RELOCATION => {
                    self.relocation[from.index as usize]
                }
                SlotData::Payload(from) => self.host[from.buffer as usize],
                SlotData::Meta(bytes) => {
                    if let Some(own) = &mut self.own {
                        own.insert(at as u32, bytes.clone());
                    }
                    self.empty_crc
                }
                SlotData::Empty => self.empty_crc,
            };
            self.cells[at] = Cell { oob: write.oob, crc, written: true };
            if let Some(copies) = &mut self.copies {
                copies.program(at, &write.data);
            }
        }
    }

    /// What `command` reads.
    fn look_up(&self, command: &Command) -> Cell {
        match command {
            Command::Read { slot, .. } => self.cells[slot.0 as usize],
            _ => Cell::default(),
        }
    }

    /// Ends `command`; `cell` is what it reads.
    fn answer(&mut self, command: Command, cell: &Cell, ftl: &mut Ftl, now: Instant) {
        match command {
            // Pages have one slot, so a read has one too.
            Command::Read { tag, slot, into, .. } => {
                let status = if cell.written { SlotStatus::Ok } else { SlotStatus::Erased };
                let crc = cell.crc;
                if let Some(Payload { buffer: Payload::RELOCATION, index }) = into {
                    self.relocation[index as usize] = crc;
                }
                if let (Some(copies), Some(into)) = (&mut self.copies, into) {
                    copies.read(slot, into);
                }
                // Whoever wants no buffer filled wants the bytes.
                let own = self.own.as_ref().filter(|_| into.is_none());
                let own = own.and_then(|own| own.get(&slot.0));
                let bytes = own.map(|bytes| &bytes[..]);
                let slots = [SlotRead { status, oob: cell.oob, crc, bytes, durable: false }];
                complete(ftl, now, Completion::Read { tag, slots: Ok(&slots) });
            }
            Command::Program { tag, .. } => {
                complete(ftl, now, Completion::Program { tag, result: Ok(()) });
            }
            Command::Erase { tag, block } => {
                self.erase(block);
                complete(ftl, now, Completion::Erase { tag, result: Ok(()) });
            }
            Command::Finish { tag, .. } => complete(ftl, now, Completion::Finish { tag }),
            Command::Flush { tag } => flush(ftl, now, tag),
        }
    }

    fn erase(&mut self, block: BlockId) {
        let slots = self.slots_per_block;
        let first = block.0 * slots;
        if let Some(own) = &mut self.own {
            let written = own.range(first..first + slots).map(|(&slot, _)| slot);
            for slot in written.collect::<Vec<_>>() {
                own.remove(&slot);
            }
        }
        for cell in &mut self.cells[first as usize..(first + slots) as usize] {
            cell.written = false;
        }
    }
}

fn complete(ftl: &mut Ftl, now: Instant, completion: Completion<'_>) {
    ftl.handle(now, Input::Completion(completion));
}

fn flush(ftl: &mut Ftl, now: Instant, tag: Tag) {
    complete(ftl, now, Completion::Flush { tag, result: Ok(()) });
}
