//! What a node asks of the store below it, and how that ends. There are two stores: [`super::raw`] on flash
//! and [`super::memory`] for tests and simulated drives.
//!
//! Invariants that every store keeps, and a node builds on:
//! - Commands of one band take effect in the order in which they were begun. Reads see what has ended.
//! - An append that did not end with [`Done::Done`] is there whole or not at all after a crash; one that did is
//!   there, if the store is durable or a flush that was begun later has ended.
//! - Fences, seals, frees and what is forgotten have survived a crash when they end, on every store.
//! - A hidden band (a copy under way) is there after a crash only if it was sealed.

use crate::message::{BandEntry, BandHeader, Slot, ZEROES_CRC};
use crate::words::{BandName, BandShape, Fenced, Generation, VolumeId};
use std::collections::BTreeMap;

/// The data of one slot, in whatever the driver keeps it: a frame of 4 KiB, a stamp. To clone it is cheap.
pub trait Data: Clone {
    /// CRC-32C of the data.
    fn crc(&self) -> u32;
}

/// Names a command until its end.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct CommandId(pub u64);

/// What a node wants of its store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command<D> {
    /// Keep that nothing below this generation may use the volume.
    Fence {
        /// Whose.
        volume: VolumeId,
        /// What counts.
        to: Fenced,
    },
    /// Forget who may use the volume: it is deleted, and no band of it is here any more. A node gives no fence of the
    /// volume before this has ended.
    Forget {
        /// Whose.
        volume: VolumeId,
    },
    /// Append a page; with `open` the first of a new band.
    Append {
        /// To which.
        band: BandName,
        /// Of who wrote it.
        generation: Generation,
        /// The page after the last one that was begun.
        page: u32,
        /// With page 0.
        open: Option<Opening>,
        /// As many as a page of the band has.
        slots: Vec<Slot<D>>,
    },
    /// The checksum of a page that is there: see [`page_sum`].
    Sum {
        /// Of which.
        band: BandName,
        /// The page.
        page: u32,
    },
    /// Read slots of one page.
    Read {
        /// Of which.
        band: BandName,
        /// The first.
        slot: u32,
        /// How many.
        count: u32,
        /// It may suspend what the drive does.
        urgent: bool,
    },
    /// The band ends here, for good.
    Seal {
        /// Which.
        band: BandName,
        /// Of who seals it.
        generation: Generation,
        /// Pages that stay.
        pages: u32,
    },
    /// Forget the band.
    Free {
        /// Which.
        band: BandName,
    },
    /// Make durable what has ended.
    Flush,
}

/// How a band begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opening {
    /// What is said of it.
    pub header: BandHeader,
    /// A copy: it counts from its seal on.
    pub hidden: bool,
}

/// The end of a [`Command`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct End<D> {
    /// The command's.
    pub id: CommandId,
    /// How it went.
    pub result: Result<Done<D>, StoreError>,
    /// What the store knows of the unit that did it.
    pub sensed: Sensed,
}

/// A command that went well.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Done<D> {
    /// Of all but a sum and a read.
    Done,
    /// Of a sum; `None` if the page is damaged.
    Sum(Option<u32>),
    /// Of a read: a slot each, `None` for what is not sound.
    Slots(Vec<Option<Slot<D>>>),
}

/// Why a store did not do what it was told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreError {
    /// No room for another band, or another fence.
    Full,
    /// The band takes no more; what it had stays.
    BandFailed,
    /// Nothing can be written any more.
    Failed,
    /// There is no such band.
    NoBand,
    /// A band of this shape does not fit.
    Shape,
}

/// What a store knows exactly of the part of the drive that served a command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sensed {
    /// Requests that wait there.
    pub unit_queue: Option<u16>,
    /// An erase or garbage collection is under way there, or about to begin.
    pub unit_stirs: bool,
}

/// What a store found when it was opened.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Found {
    /// The bands, by name.
    pub bands: Vec<FoundBand>,
    /// The least generation of each volume that was fenced.
    pub fences: BTreeMap<VolumeId, Fenced>,
    /// Bands that it has room for, all in all.
    pub bands_max: u32,
    /// Pages of the longest band of a volume that it takes for sure.
    pub band_pages: u32,
    /// What ended survives a power cut without a flush.
    pub durable: bool,
}

/// A band that was there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FoundBand {
    /// What a list tells of it.
    pub entry: BandEntry,
    /// It takes no more pages, as the drive failed at it or the power was cut while it was open.
    pub failed: bool,
}

/// The checksum of a page: of each slot's OOB, CRC and whether it is zeroes. Two appends of the same page
/// are the same if their sums are.
pub fn page_sum<D>(slots: &[Slot<D>]) -> u32 {
    slots.iter().fold(0, |sum, slot| {
        let sum = flash::crc_append(sum, &slot.oob);
        let sum = flash::crc_append(sum, &slot.crc.to_le_bytes());
        flash::crc_append(sum, &[u8::from(slot.data.is_some())])
    })
}

/// Whether a slot has no data, or those of its checksum.
pub fn is_of_its_sum<D: Data>(slot: &Slot<D>) -> bool {
    slot.data.as_ref().is_none_or(|data| data.crc() == slot.crc)
}

/// Whether each slot's checksum fits its data, and that of zeroes where it has none.
pub fn slots_are_sound<D: Data>(slots: &[Slot<D>]) -> bool {
    slots.iter().all(|slot| slot.crc == slot.data.as_ref().map_or(ZEROES_CRC, Data::crc))
}

/// Whether a band may be of this shape.
pub fn is_sound(shape: BandShape) -> bool {
    let pages = shape.pages > 0 && (1..=PAGE_SLOTS_MAX).contains(&shape.slots_per_page);
    pages && shape.pages.checked_mul(shape.slots_per_page).is_some()
}

/// Most slots of a page: the header of an append has room for so many.
pub const PAGE_SLOTS_MAX: u32 = 64;
