//! A command of the core under way: what it does, and how far its I/O is.

use crate::runtime::buffer::Buffer;
use flash::{BlockId, MediumError, Oob, Payload, SlotId, SlotStatus, Tag};

/// A command under way.
pub struct Job {
    pub tag: Tag,
    pub what: What,
    /// Where a read goes; `None`: the scratch memory.
    pub into: Option<Payload>,
    /// I/O operations that have not completed.
    pub io: u32,
    pub step: Step,
    /// The emulated time has come.
    pub timed: bool,
    pub error: Option<MediumError>,
    /// The page and its OOBs, on their way to or from a file.
    pub scratch: Option<Buffer>,
    /// OOB of each slot read, from a store in memory.
    pub oobs: Vec<Oob>,
    /// Of an erase: how far the block was programmed before.
    pub write_pointer: u32,
    /// How the slots came back.
    pub status: SlotStatus,
    /// A read that is answered from kept memory.
    pub kept: bool,
    /// A program of a block whose failure the core has not heard of: nothing is done for it.
    pub refused: bool,
    /// The disk could not read what is there.
    pub damaged: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum What {
    Read { slot: SlotId, count: u32 },
    Program { slot: SlotId, count: u32 },
    Erase { block: BlockId },
    Finish { block: BlockId },
    Flush,
}

/// How far the I/O of a job is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Another command of the block goes first.
    Waiting,
    /// The bytes of a read or a program; the syncs of a flush.
    Bytes,
    /// The record of a block that is to be erased says no more that anything there was durable.
    Mark,
    /// An erase forgets the content.
    Clear,
    /// The block's record; the generation of a flush.
    Record,
    /// Handed over to be completed.
    Done,
}
