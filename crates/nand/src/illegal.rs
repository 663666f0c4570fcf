//! What a real part would not do, or would do wrong without saying so: a bug of the caller.

use flash::{BlockId, SlotId};

/// A command that breaks a rule of NAND. Nothing happened; no outcome follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Illegal {
    /// The address is beyond the medium.
    OutOfRange {
        /// First slot, or first slot of the block.
        slot: u64,
        /// Slots of the medium.
        slots: u64,
    },
    /// The unit already has as many commands as it takes.
    QueueFull {
        /// Which.
        unit: u32,
        /// How many it takes.
        depth: u32,
    },
    /// A read of no slot.
    ReadOfNothing {
        /// Where.
        slot: SlotId,
    },
    /// A read goes beyond the end of a page.
    ReadAcrossPages {
        /// First slot.
        slot: SlotId,
        /// Slots asked for.
        count: u32,
        /// Slots left in the page.
        left: u32,
    },
    /// A program does not start at a page's first slot.
    ProgramInsidePage {
        /// Where it starts.
        slot: SlotId,
    },
    /// A program is not of one whole page; or on a fast unit, not of a part of one.
    ProgramOfPart {
        /// Where it starts.
        slot: SlotId,
        /// Slots that it has.
        count: u32,
        /// Slots that it must have, or on a fast unit may have at most.
        wanted: u32,
    },
    /// A page is programmed again before its block was erased.
    ProgramTwice {
        /// Which block.
        block: BlockId,
        /// Which page.
        page: u32,
        /// The page that may be programmed next.
        write_pointer: u32,
    },
    /// A page is programmed before those ahead of it.
    ProgramOutOfOrder {
        /// Which block.
        block: BlockId,
        /// Which page.
        page: u32,
        /// The page that may be programmed next.
        write_pointer: u32,
    },
    /// A program of a block that was reported bad.
    ProgramBadBlock {
        /// Which.
        block: BlockId,
    },
    /// A block is begun while as many are partly programmed as may be.
    TooManyOpen {
        /// Which.
        block: BlockId,
        /// How many may be.
        max: u32,
    },
    /// A program of a block that was finished, by a command or by the loss of power.
    Finished {
        /// Which.
        block: BlockId,
    },
    /// A program of a block that a power cut has left half done.
    NeedsErase {
        /// Which.
        block: BlockId,
    },
}

impl std::fmt::Display for Illegal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::OutOfRange { slot, slots } => {
                write!(f, "slot {slot} is out of range: the medium has {slots} slots")
            }
            Self::QueueFull { unit, depth } => {
                write!(f, "unit {unit} already has {depth} commands: wait for an outcome")
            }
            Self::ReadOfNothing { slot } => {
                write!(f, "read of 0 slots at slot {}: ask for at least 1", slot.0)
            }
            Self::ReadAcrossPages { slot, count, left } => write!(
                f,
                "read of {count} slots at slot {} crosses its page's end: at most {left}",
                slot.0
            ),
            Self::ProgramInsidePage { slot } => {
                write!(f, "program at slot {}, which is not the first slot of a page", slot.0)
            }
            Self::ProgramOfPart { slot, count, wanted } => write!(
                f,
                "program of {count} slots at slot {}: {wanted} are a page, or what is left of it",
                slot.0
            ),
            Self::ProgramTwice { block, page, write_pointer } => write!(
                f,
                "page {page} of block {} is programmed already: erase the block, or program \
                 page {write_pointer}",
                block.0
            ),
            Self::ProgramOutOfOrder { block, page, write_pointer } => write!(
                f,
                "page {page} of block {} is out of order: program page {write_pointer} first",
                block.0
            ),
            Self::ProgramBadBlock { block } => {
                write!(f, "program of block {}, which is bad: append elsewhere", block.0)
            }
            Self::TooManyOpen { block, max } => write!(
                f,
                "program of the first page of block {} while {max} blocks, the most that may, are partly \
                 programmed: fill or finish one first",
                block.0
            ),
            Self::Finished { block } => {
                write!(f, "program of block {}, which was finished: erase it first", block.0)
            }
            Self::NeedsErase { block } => write!(
                f,
                "program of block {}, which a power cut left half done: erase it first",
                block.0
            ),
        }
    }
}

impl std::error::Error for Illegal {}
