//! The medium of a simulation: emulated NAND, or a file that forgets what was not flushed
//! ([`FileDevice`]), with an 8-byte stamp in place of the 4096 bytes of a logical block.
//!
//! Invariants:
//! - Data moves only here: a program copies its slots when it is handed over, a read fills its
//!   buffers when it completes.
//! - The checksum of a stamp is that of its eight bytes, wherever it is computed, so a damaged or
//!   misplaced stamp fails the same checks as a damaged block would.
//! - What the part would refuse (programming twice, or out of order) is an error, never carried out.

use crate::file::{Cell, FileDevice};
use crate::packed::Packed;
use flash::{
    BLOCK_BYTES, BlockId, Command, Completion, Geometry, Health, Instant, MediumError, Oob,
    Payload, Random, SlotData, SlotId, SlotRead, SlotStatus, SlotWrite,
};
use nand::{BlockRecord, Faults, Nand, Outcome, Store};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a host buffer shows where a read left nothing, or something that no host wrote.
pub const GARBAGE: u64 = u64::MAX;

/// What a slot holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Content {
    /// Zeroes.
    #[default]
    Empty,
    /// A host block.
    Stamp(u64),
    /// The FTL's own bytes.
    Meta(Arc<[u8; BLOCK_BYTES]>),
}

/// The checksum that a host gives with the block that `stamp` stands for.
pub fn stamp_crc(stamp: u64) -> u32 {
    flash::crc(&stamp.to_le_bytes())
}

/// The driver's memory: host buffers of stamps, and the relocation pool.
#[derive(Clone, Debug)]
pub struct Buffers {
    stamps: Vec<u64>,
    /// Blocks of one host buffer.
    stride: usize,
    relocation: Vec<Content>,
}

impl Buffers {
    /// No host buffer yet; each will have `stride` blocks.
    pub fn new(stride: u32, relocation_blocks: u32) -> Self {
        Self {
            stamps: Vec::new(),
            stride: stride as usize,
            relocation: vec![Content::Empty; relocation_blocks as usize],
        }
    }

    /// Blocks of one host buffer.
    pub fn stride(&self) -> u32 {
        self.stride as u32
    }

    /// Adds a host buffer and names it.
    pub fn add(&mut self) -> u32 {
        let id = self.stamps.len() / self.stride;
        self.stamps.resize(self.stamps.len() + self.stride, GARBAGE);
        id as u32
    }

    /// The first `blocks` blocks of a host buffer.
    pub fn host(&self, buffer: u32, blocks: u32) -> &[u64] {
        let at = buffer as usize * self.stride;
        &self.stamps[at..at + blocks as usize]
    }

    /// The first `blocks` blocks of a host buffer, to be filled.
    pub fn host_mut(&mut self, buffer: u32, blocks: u32) -> &mut [u64] {
        let at = buffer as usize * self.stride;
        &mut self.stamps[at..at + blocks as usize]
    }

    fn content(&self, from: Payload) -> Content {
        if from.buffer == Payload::RELOCATION {
            self.relocation[from.index as usize].clone()
        } else {
            Content::Stamp(self.stamps[from.buffer as usize * self.stride + from.index as usize])
        }
    }

    pub(crate) fn fill(&mut self, into: Payload, offset: u32, content: &Content) {
        let index = (into.index + offset) as usize;
        if into.buffer == Payload::RELOCATION {
            self.relocation[index] = content.clone();
            return;
        }
        let stamp = match content {
            Content::Stamp(stamp) => *stamp,
            // No host wrote these: a reader must never see them.
            Content::Empty | Content::Meta(_) => GARBAGE,
        };
        self.stamps[into.buffer as usize * self.stride + index] = stamp;
    }
}

/// How a slot reads whatever it holds, until it is programmed or its block is erased.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mask {
    /// As if nothing had been programmed since the erase.
    Erased,
    /// Not at all.
    Unreadable,
}

impl Mask {
    fn status(self) -> SlotStatus {
        match self {
            Self::Erased => SlotStatus::Erased,
            Self::Unreadable => SlotStatus::Uncorrectable,
        }
    }
}

/// What just ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// A read: the medium is as it was.
    Read,
    /// A program, an erase or a flush.
    Change,
}

/// What the slots of NAND hold: whole, or packed.
#[derive(Clone, Debug)]
enum Contents {
    Whole(Store<Content>),
    Packed(Packed),
}

impl Contents {
    fn program(&mut self, slot: SlotId, oob: Oob, content: Content) {
        match self {
            Self::Whole(store) => store.program(slot, oob, content),
            Self::Packed(packed) => packed.program(slot, oob, content),
        }
    }

    fn read(&self, slot: SlotId) -> Option<(Oob, Cow<'_, Content>)> {
        match self {
            Self::Whole(store) => {
                store.read(slot).map(|(oob, content)| (*oob, Cow::Borrowed(content)))
            }
            Self::Packed(packed) => packed.read(slot),
        }
    }

    fn erase(&mut self, block: BlockId) {
        match self {
            Self::Whole(store) => store.erase(block),
            Self::Packed(packed) => packed.erase(block),
        }
    }

    /// Brings what a slot holds into the processor's cache.
    fn warm(&self, slot: SlotId) {
        match self {
            Self::Whole(store) => {
                std::hint::black_box(store.read(slot).map(|(oob, _)| oob[0]));
            }
            Self::Packed(packed) => packed.warm(slot),
        }
    }
}

#[derive(Clone, Debug)]
enum Device {
    Nand(Box<Nand>, Contents),
    File(Box<FileDevice>),
}

/// What a medium did with success since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DoneCounts {
    /// Slots programmed.
    pub slots_programmed: u64,
    /// Blocks erased.
    pub erases: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct SimMedium {
    device: Device,
    geometry: Geometry,
    empty_crc: u32,
    done: DoneCounts,
    /// Slots that a test damaged.
    masks: BTreeMap<SlotId, Mask>,
    /// Memory of [`SimMedium::deliver`], kept between calls.
    slots: Vec<SlotRead<'static>>,
}

/// What a [`crate::Sim`] needs of a medium. The server's media have a trait of the same shape.
pub trait Medium {
    /// Its shape.
    fn geometry(&self) -> &Geometry;
    /// What it did so far.
    fn done(&self) -> DoneCounts;
    /// Programs and erases suspended for a read.
    fn suspensions(&self) -> u64;
    /// What it knows about its blocks.
    fn health(&self) -> Health;
    /// When the next command ends.
    fn deadline(&self) -> Option<Instant>;
    /// Hands a command over. `slots` is what a program writes, from `Ftl::program`.
    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        buffers: &Buffers,
    ) -> Result<(), String>;
    /// Ends the next command that is due by `now`: fills its buffers and gives its completion to
    /// `sink`.
    fn deliver(
        &mut self,
        now: Instant,
        buffers: &mut Buffers,
        sink: impl FnOnce(Completion<'_>),
    ) -> Option<Ended>;
    /// What a driver does when it opens a medium that bounds how many blocks are partly programmed.
    fn finish_all(&mut self) {}
    /// Brings what a slot holds into the processor's cache.
    fn warm(&self, _slot: SlotId) {}
}

impl SimMedium {
    /// Emulated NAND, erased.
    pub fn nand(nand: Nand) -> Self {
        let geometry = nand.geometry();
        let store = Contents::Whole(Store::new(geometry));
        Self::new(Device::Nand(Box::new(nand), store), geometry)
    }

    /// Emulated NAND, erased, in a fifth of the memory if the stamp of a block is its address and the
    /// FTL is formatted with `uuid`.
    pub fn nand_of_addresses(nand: Nand, uuid: u128) -> Self {
        let geometry = nand.geometry();
        let store = Contents::Packed(Packed::new(geometry, uuid));
        Self::new(Device::Nand(Box::new(nand), store), geometry)
    }

    /// A file, empty. It forgets at a power cut what was not flushed.
    pub fn file(geometry: Geometry) -> Self {
        Self::file_with(geometry, Faults::default())
    }

    /// The same, and it goes wrong so.
    pub fn file_with(geometry: Geometry, faults: Faults) -> Self {
        Self::new(Device::File(Box::new(FileDevice::with_faults(geometry, faults))), geometry)
    }

    /// A file with a record of how far each block was durable.
    pub fn folder_with(geometry: Geometry, faults: Faults) -> Self {
        let file = FileDevice::with_faults(geometry, faults).with_records();
        Self::new(Device::File(Box::new(file)), geometry)
    }

    /// The disk below a file has no room from one instant to another.
    pub fn fill(&mut self, from: Instant, to: Instant) {
        if let Device::File(file) = &mut self.device {
            file.fill(from, to);
        }
    }

    fn new(device: Device, geometry: Geometry) -> Self {
        let empty_crc = flash::crc(&[0; BLOCK_BYTES]);
        let (done, masks) = (DoneCounts::default(), BTreeMap::new());
        Self { device, geometry, empty_crc, done, masks, slots: Vec::new() }
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The fast units are taken away.
    pub fn drop_fast(&mut self) {
        self.geometry = self.geometry.without_fast();
    }

    /// Of the units, which are all of one kind, so many that come last are not there yet.
    pub fn hide_units(&mut self, units: u32) {
        self.geometry.units -= units;
    }

    /// All units are there, with what they held: fast ones that were taken away, and those that were hidden.
    pub fn show_all(&mut self) {
        self.geometry = match &self.device {
            Device::Nand(nand, _) => nand.geometry(),
            Device::File(file) => *file.geometry(),
        };
    }

    /// `unit` stops answering.
    pub fn kill_unit(&mut self, unit: u32) {
        if let Device::Nand(nand, _) = &mut self.device {
            nand.kill_unit(unit);
        }
    }

    /// `unit` answers again, with what it held.
    pub fn revive_unit(&mut self, unit: u32) {
        if let Device::Nand(nand, _) = &mut self.device {
            nand.revive_unit(unit);
        }
    }

    /// What it did so far.
    pub fn done(&self) -> DoneCounts {
        self.done
    }

    /// Programs and erases suspended for a read.
    pub fn suspensions(&self) -> u64 {
        match &self.device {
            Device::Nand(nand, _) => nand.counters().suspensions,
            Device::File(_) => 0,
        }
    }

    /// What it knows about its blocks.
    pub fn health(&self) -> Health {
        match &self.device {
            Device::Nand(nand, _) => nand.health().within(&self.geometry),
            Device::File(file) => Health {
                erase_counts: file.erase_counts().to_vec(),
                bad_blocks: file.bad_blocks(),
                ..Health::default()
            }
            .within(&self.geometry),
        }
    }

    /// When the next command ends.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.device {
            Device::Nand(nand, _) => nand.deadline(),
            Device::File(file) => file.deadline(),
        }
    }

    /// Hands a command over. `slots` is what a program writes, from `Ftl::program`.
    pub fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        buffers: &Buffers,
    ) -> Result<(), String> {
        self.unmask(command);
        match &mut self.device {
            Device::Nand(nand, store) => {
                nand.handle(now, command).map_err(|illegal| illegal.to_string())?;
                match command {
                    Command::Program { slot, .. } => {
                        for (i, write) in (0..).zip(slots) {
                            store.program(SlotId(slot.0 + i), write.oob, content(write, buffers));
                        }
                    }
                    // What the read will find is brought into the cache meanwhile.
                    Command::Read { slot, count, .. } => {
                        (slot.0..slot.0 + count).for_each(|slot| store.warm(SlotId(slot)));
                    }
                    Command::Erase { .. } | Command::Finish { .. } | Command::Flush { .. } => {}
                }
                Ok(())
            }
            Device::File(file) => {
                let cells = slots.iter();
                let cells =
                    cells.map(|write| Cell::Written(write.oob, content(write, buffers))).collect();
                file.start(now, command, cells)
            }
        }
    }

    /// What a program writes, and what an erase clears, reads as it is from then on.
    fn unmask(&mut self, command: Command) {
        if self.masks.is_empty() {
            return;
        }
        let (first, slots) = match command {
            Command::Program { slot, count, .. } => (slot, count),
            Command::Erase { block, .. } => {
                (self.geometry.slot(block, 0, 0), self.geometry.slots_per_block())
            }
            Command::Read { .. } | Command::Finish { .. } | Command::Flush { .. } => return,
        };
        self.masks.retain(|slot, _| !(first.0..first.0 + slots).contains(&slot.0));
    }

    /// Ends the next command that is due by `now`: fills its buffers and gives its completion to
    /// `sink`.
    pub fn deliver(
        &mut self,
        now: Instant,
        buffers: &mut Buffers,
        sink: impl FnOnce(Completion<'_>),
    ) -> Option<Ended> {
        let done = &mut self.done;
        let mut slots_programmed = u64::from(self.geometry.slots_per_page);
        let sink = |completion: Completion<'_>, slots_programmed: u64| {
            match completion {
                Completion::Program { result: Ok(()), .. } => {
                    done.slots_programmed += slots_programmed;
                }
                Completion::Erase { result: Ok(()), .. } => done.erases += 1,
                _ => {}
            }
            sink(completion);
        };
        let ended = match &mut self.device {
            Device::Nand(nand, store) => {
                let outcome = nand.poll(now)?;
                if let Outcome::Erase { block, result: Ok(()), .. } = outcome {
                    store.erase(block);
                }
                if let Outcome::Program { count, .. } = outcome {
                    slots_programmed = u64::from(count);
                }
                let sink = |completion: Completion<'_>| sink(completion, slots_programmed);
                let masks = &self.masks;
                let content = Held { nand, store, masks, empty_crc: self.empty_crc };
                content.deliver(outcome, buffers, &mut self.slots, sink)
            }
            Device::File(file) => {
                file.deadline().filter(|&at| at <= now)?;
                let mut ended = file.finish(now).expect("its deadline has passed");
                mask_cells(&self.masks, ended.0, &mut ended.1);
                let sink = |completion: Completion<'_>| sink(completion, slots_programmed);
                deliver_file(&ended, file, self.empty_crc, buffers, sink)
            }
        };
        Some(ended)
    }

    /// Cuts the power. `choose(n)` picks one of `n` possible fates, as often as it is asked.
    pub fn power_cut(&mut self, choose: &mut dyn FnMut(u32) -> u32) {
        match &mut self.device {
            Device::Nand(nand, _) => nand.power_cut(choose),
            Device::File(file) => file.power_cut(choose),
        }
    }

    /// The same, with fates at random.
    pub fn power_cut_by_chance(&mut self, random: &mut Random) {
        self.power_cut(&mut |fates| random.below(u64::from(fates)) as u32);
    }

    /// What a driver does when it opens a medium that bounds how many blocks are partly programmed.
    pub fn finish_all(&mut self) {
        match &mut self.device {
            Device::Nand(nand, _) => nand.finish_all(),
            Device::File(file) => file.finish_all(),
        }
    }

    /// The slots that hold host blocks, for a test that damages some.
    pub fn stamped_slots(&self) -> Vec<(SlotId, u64)> {
        let slots = (0..self.geometry.slots() as u32).map(SlotId);
        slots
            .filter_map(|slot| match self.peek(slot) {
                Some((_, Content::Stamp(stamp))) => Some((slot, stamp)),
                _ => None,
            })
            .collect()
    }

    /// What a slot holds, whether or not the FTL still wants it.
    pub fn peek(&self, slot: SlotId) -> Option<(Oob, Content)> {
        match &self.device {
            Device::Nand(_, store) => {
                store.read(slot).map(|(oob, content)| (oob, content.into_owned()))
            }
            Device::File(file) => match file.cell(slot) {
                Cell::Written(oob, content) => Some((*oob, content.clone())),
                Cell::Erased | Cell::Torn => None,
            },
        }
    }

    /// Brings what a slot holds into the processor's cache.
    pub fn warm(&self, slot: SlotId) {
        if let Device::Nand(_, store) = &self.device {
            store.warm(slot);
        }
    }

    /// The page of `slot` cannot be read until its block is erased.
    pub fn rot(&mut self, slot: SlotId) {
        match &mut self.device {
            Device::Nand(nand, _) => nand.mark_uncorrectable(slot),
            Device::File(file) => {
                let first = (slot.0 - self.geometry.slot_in_page(slot)) as usize;
                let page = first..first + self.geometry.slots_per_page as usize;
                file.cells_mut()[page].fill(Cell::Torn);
            }
        }
    }

    /// Whether a slot was written and can be read.
    pub fn is_readable(&self, slot: SlotId) -> bool {
        if self.masks.contains_key(&slot) {
            return false;
        }
        match &self.device {
            Device::Nand(nand, _) => nand.status(slot) == SlotStatus::Ok,
            Device::File(file) => matches!(file.cell(slot), Cell::Written(..)),
        }
    }

    /// Makes `slot` read in another way than what it holds says.
    pub fn mask(&mut self, slot: SlotId, mask: Mask) {
        self.masks.insert(slot, mask);
    }

    /// What emulated NAND keeps of a block: its write pointer, its erases. A file keeps nothing.
    pub fn record(&self, block: BlockId) -> Option<BlockRecord> {
        match &self.device {
            Device::Nand(nand, _) => Some(nand.record(block)),
            Device::File(_) => None,
        }
    }

    /// Replaces what emulated NAND keeps of a block.
    pub fn restore_record(&mut self, block: BlockId, record: BlockRecord) {
        if let Device::Nand(nand, _) = &mut self.device {
            nand.restore(block, record);
        }
    }

    /// Replaces what a written slot holds, behind the medium's back: silent damage.
    pub fn damage(&mut self, slot: SlotId, oob: Oob, content: Content) {
        self.masks.remove(&slot);
        match &mut self.device {
            Device::Nand(_, store) => store.program(slot, oob, content),
            Device::File(file) => {
                file.cells_mut()[slot.0 as usize] = Cell::Written(oob, content);
            }
        }
    }
}

impl Medium for SimMedium {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }

    fn done(&self) -> DoneCounts {
        self.done()
    }

    fn suspensions(&self) -> u64 {
        self.suspensions()
    }

    fn health(&self) -> Health {
        self.health()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        buffers: &Buffers,
    ) -> Result<(), String> {
        self.start(now, command, slots, buffers)
    }

    fn deliver(
        &mut self,
        now: Instant,
        buffers: &mut Buffers,
        sink: impl FnOnce(Completion<'_>),
    ) -> Option<Ended> {
        self.deliver(now, buffers, sink)
    }

    fn finish_all(&mut self) {
        self.finish_all();
    }

    fn warm(&self, slot: SlotId) {
        self.warm(slot);
    }
}

pub(crate) fn content(write: &SlotWrite, buffers: &Buffers) -> Content {
    match &write.data {
        SlotData::Payload(from) => buffers.content(*from),
        SlotData::Meta(bytes) => Content::Meta(Arc::new(**bytes)),
        SlotData::Empty => Content::Empty,
    }
}

/// One slot as the FTL sees it.
pub(crate) fn slot_read<'a>(
    oob: Oob,
    content: &Cow<'a, Content>,
    status: SlotStatus,
    empty: u32,
) -> SlotRead<'a> {
    let crc = match &**content {
        Content::Stamp(stamp) => stamp_crc(*stamp),
        Content::Meta(bytes) => flash::crc(&bytes[..]),
        Content::Empty => empty,
    };
    // Bytes are never packed.
    let bytes = match content {
        Cow::Borrowed(Content::Meta(bytes)) => Some(&bytes[..]),
        _ => None,
    };
    SlotRead { status, oob, crc, bytes, durable: false }
}

pub(crate) fn without_data(status: SlotStatus) -> SlotRead<'static> {
    SlotRead { status, oob: [0; 32], crc: 0, bytes: None, durable: false }
}

/// What emulated NAND holds.
struct Held<'a> {
    nand: &'a Nand,
    store: &'a Contents,
    masks: &'a BTreeMap<SlotId, Mask>,
    empty_crc: u32,
}

impl<'a> Held<'a> {
    fn deliver(
        &self,
        outcome: Outcome,
        buffers: &mut Buffers,
        memory: &mut Vec<SlotRead<'static>>,
        sink: impl FnOnce(Completion<'_>),
    ) -> Ended {
        match outcome {
            Outcome::Read { tag, slot, count, into, status } => {
                let of_page = match status {
                    Ok(status) => status,
                    Err(error) => {
                        sink(Completion::Read { tag, slots: Err(error) });
                        return Ended::Read;
                    }
                };
                let geometry = self.nand.geometry();
                // There every slot has its own state.
                let fast = geometry.is_fast(geometry.block_of(slot));
                let mut slots: Vec<SlotRead<'a>> = recycle(std::mem::take(memory));
                for i in 0..count {
                    let own = fast.then(|| self.nand.status(SlotId(slot.0 + i)));
                    let mask = self.masks.get(&SlotId(slot.0 + i)).map(|mask| mask.status());
                    let status = mask.or(own).unwrap_or(of_page);
                    let found = self.store.read(SlotId(slot.0 + i));
                    slots.push(match (status, found) {
                        (SlotStatus::Ok | SlotStatus::Corrected(_), Some((oob, content))) => {
                            if let Some(into) = into {
                                buffers.fill(into, i, &content);
                            }
                            slot_read(oob, &content, status, self.empty_crc)
                        }
                        _ => without_data(status),
                    });
                }
                sink(Completion::Read { tag, slots: Ok(&slots) });
                *memory = recycle(slots);
                return Ended::Read;
            }
            Outcome::Program { tag, result, .. } => sink(Completion::Program { tag, result }),
            Outcome::Erase { tag, result, .. } => sink(Completion::Erase { tag, result }),
            Outcome::Finish { tag } => sink(Completion::Finish { tag }),
            Outcome::Flush { tag, result } => sink(Completion::Flush { tag, result }),
        }
        Ended::Change
    }
}

/// Damage that a test laid over what a file holds.
fn mask_cells(masks: &BTreeMap<SlotId, Mask>, command: Command, cells: &mut [Cell]) {
    let Command::Read { slot, .. } = command else { return };
    for (at, cell) in (slot.0..).zip(cells) {
        match masks.get(&SlotId(at)) {
            Some(Mask::Erased) => *cell = Cell::Erased,
            Some(Mask::Unreadable) => *cell = Cell::Torn,
            None => {}
        }
    }
}

fn deliver_file(
    (command, cells, result): &(Command, Vec<Cell>, Result<(), MediumError>),
    file: &FileDevice,
    empty_crc: u32,
    buffers: &mut Buffers,
    sink: impl FnOnce(Completion<'_>),
) -> Ended {
    let result = *result;
    match *command {
        Command::Read { tag, slot, into, .. } => {
            let geometry = file.geometry();
            let durable = file.pages_durable(geometry.block_of(slot));
            let durable = geometry.page_in_block(slot) < durable;
            let mut slots = Vec::with_capacity(cells.len());
            for (i, cell) in (0..).zip(cells) {
                let read = match cell {
                    Cell::Erased => without_data(SlotStatus::Erased),
                    Cell::Torn => without_data(SlotStatus::Uncorrectable),
                    Cell::Written(oob, content) => {
                        if let Some(into) = into {
                            buffers.fill(into, i, content);
                        }
                        slot_read(*oob, &Cow::Borrowed(content), SlotStatus::Ok, empty_crc)
                    }
                };
                slots.push(SlotRead { durable, ..read });
            }
            sink(Completion::Read { tag, slots: Ok(&slots) });
            return Ended::Read;
        }
        Command::Program { tag, .. } => sink(Completion::Program { tag, result }),
        Command::Erase { tag, .. } => sink(Completion::Erase { tag, result }),
        Command::Finish { tag, .. } => sink(Completion::Finish { tag }),
        Command::Flush { tag } => sink(Completion::Flush { tag, result }),
    }
    Ended::Change
}

/// An empty vector with the memory of `slots` and a lifetime of its own: collecting a vector's own
/// iterator reuses its memory, so reads allocate nothing.
fn recycle<'b>(mut slots: Vec<SlotRead<'_>>) -> Vec<SlotRead<'b>> {
    slots.clear();
    slots.into_iter().map(|_| unreachable!("it was cleared")).collect()
}
