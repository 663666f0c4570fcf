//! What a medium is told and what it answers.

use crate::{BLOCK_BYTES, BlockId, Geometry, SlotId};

/// Names a command until its completion.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tag(pub u32);

/// One block of a driver's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Payload {
    /// Which buffer. Ids from [`Payload::RELOCATION`] up belong to the FTL's relocation pool: the
    /// driver provides that pool, `ftl::Config::relocation_blocks` blocks in buffer `RELOCATION`.
    pub buffer: u32,
    /// Which block of the buffer.
    pub index: u32,
}

impl Payload {
    /// The buffer id of the pool that holds blocks on their way from one band to another.
    pub const RELOCATION: u32 = u32::MAX;
}

/// Out-of-band bytes kept with each slot. Opaque to the medium; laid out by `ftl::format`.
pub type Oob = [u8; OOB_BYTES];

/// Bytes of [`Oob`].
pub const OOB_BYTES: usize = 32;

/// The content of one slot of a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SlotData {
    /// A block that the driver holds.
    Payload(Payload),
    /// The FTL's own bytes.
    Meta(Box<[u8; BLOCK_BYTES]>),
    /// Zeroes: a record that says all in its OOB, or padding.
    Empty,
}

/// One slot of a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SlotWrite {
    /// Kept beside the data.
    pub oob: Oob,
    /// The data.
    pub data: SlotData,
}

/// A command to the medium. Commands of one unit start in the order given, except that an urgent
/// read may suspend what runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// Read `count` consecutive slots of one page.
    Read {
        /// Comes back in the completion.
        tag: Tag,
        /// First slot.
        slot: SlotId,
        /// Slots, all of the same page.
        count: u32,
        /// Where the data goes, slot `i` to `into.index + i`. With `None` the completion carries
        /// the bytes: the FTL reads its own records, or only wants to know whether they are sound.
        into: Option<Payload>,
        /// May suspend a running program or erase.
        urgent: bool,
    },
    /// Program the next page of a block, or on a fast unit the next part of one. The driver asks
    /// `Ftl::program(tag)` for the slots and has copied them when it returns to the FTL.
    Program {
        /// Comes back in the completion.
        tag: Tag,
        /// First slot: of the page, or after the last one programmed.
        slot: SlotId,
        /// Slots: a whole page, except on a fast unit.
        count: u32,
    },
    /// Erase a block.
    Erase {
        /// Comes back in the completion.
        tag: Tag,
        /// Which block.
        block: BlockId,
    },
    /// Nothing more is programmed into this block, which is not full, until it is erased. Given only
    /// where partly programmed blocks are few ([`Geometry::open_blocks_max`]); costs no time of its unit.
    Finish {
        /// Comes back in the completion.
        tag: Tag,
        /// Which block.
        block: BlockId,
    },
    /// Make every completed program and erase durable. Belongs to no unit.
    Flush {
        /// Comes back in the completion.
        tag: Tag,
    },
}

impl Command {
    /// The command's tag.
    pub fn tag(&self) -> Tag {
        match *self {
            Command::Read { tag, .. }
            | Command::Program { tag, .. }
            | Command::Erase { tag, .. }
            | Command::Finish { tag, .. }
            | Command::Flush { tag } => tag,
        }
    }

    /// The unit that executes it; `None` for a flush.
    pub fn unit(&self, geometry: &Geometry) -> Option<u32> {
        match *self {
            Command::Read { slot, .. } | Command::Program { slot, .. } => {
                Some(geometry.unit_of(geometry.block_of(slot)))
            }
            Command::Erase { block, .. } | Command::Finish { block, .. } => {
                Some(geometry.unit_of(block))
            }
            Command::Flush { .. } => None,
        }
    }
}

/// How one slot of a read came back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotStatus {
    /// As programmed.
    Ok,
    /// As programmed, after correcting this many bits (worst codeword).
    Corrected(u32),
    /// Nothing was programmed since the block's erase.
    Erased,
    /// Torn, worn, or damaged beyond correction.
    Uncorrectable,
}

impl SlotRead<'_> {
    /// What was read is as it was programmed, as far as the medium can tell.
    pub fn is_readable(&self) -> bool {
        matches!(self.status, SlotStatus::Ok | SlotStatus::Corrected(_))
    }
}

/// One slot of a completed read.
#[derive(Clone, Copy, Debug)]
pub struct SlotRead<'a> {
    /// How it came back. Unless `Ok` or `Corrected`, the rest means nothing.
    pub status: SlotStatus,
    /// The bytes beside the data.
    pub oob: Oob,
    /// CRC-32C of the data as read, computed by the driver.
    pub crc: u32,
    /// The data itself, if the command had no `into`. A driver that keeps stamps instead of bytes
    /// gives the bytes only of `SlotData::Meta`.
    pub bytes: Option<&'a [u8]>,
    /// The medium knows by itself that this slot was programmed, and durable: no power
    /// cut explains what is not sound here, only damage or an erase that was cut off. `false` says nothing.
    pub durable: bool,
}

/// Why a program, erase or flush failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MediumError {
    /// The block is bad from now on; what it held before stays readable. Append elsewhere.
    BlockFailed,
    /// The program ended without being done, and nothing is bad: the block takes no more pages until its
    /// erase, what it held before stays readable, and what was in the page may be there or not. Append
    /// elsewhere, at once.
    Cut,
    /// The medium has no room behind it (a full disk under an emulated device): nothing is bad,
    /// try again when there is room.
    NoSpace,
    /// The unit no longer answers.
    UnitGone,
    /// The medium could not make its state durable. What was not flushed may be lost.
    FlushFailed,
}

/// The end of a [`Command`].
#[derive(Clone, Copy, Debug)]
pub enum Completion<'a> {
    /// A read ended. `Err` only if the unit is gone or the medium failed as a whole.
    Read {
        /// The command's.
        tag: Tag,
        /// One entry a slot.
        slots: Result<&'a [SlotRead<'a>], MediumError>,
    },
    /// A program ended.
    Program {
        /// The command's.
        tag: Tag,
        /// Programmed, or why not.
        result: Result<(), MediumError>,
    },
    /// An erase ended.
    Erase {
        /// The command's.
        tag: Tag,
        /// Erased, or why not.
        result: Result<(), MediumError>,
    },
    /// A block is finished, or could not be: then it counts as partly programmed until its erase.
    Finish {
        /// The command's.
        tag: Tag,
    },
    /// A flush ended.
    Flush {
        /// The command's.
        tag: Tag,
        /// Durable, or why not.
        result: Result<(), MediumError>,
    },
}

/// What the medium knows about each block: given to the FTL when it mounts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Health {
    /// Erase count of each block, by [`BlockId`].
    pub erase_counts: Vec<u32>,
    /// Blocks not to be used: factory marks and grown ones.
    pub bad_blocks: Vec<BlockId>,
    /// Units that no longer answer.
    pub units_gone: Vec<u32>,
}

impl Health {
    /// What it says of a medium of this shape, which may lack the last units of the one it is of.
    pub fn within(mut self, geometry: &crate::Geometry) -> Self {
        let (units, blocks) = (geometry.units, geometry.blocks());
        self.erase_counts.truncate(blocks as usize);
        self.bad_blocks.retain(|block| block.0 < blocks);
        self.units_gone.retain(|&unit| unit < units);
        self
    }
}
