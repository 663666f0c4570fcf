//! What a host asks of the FTL, and what it is told.

use crate::Lba;

/// Chosen by the driver; comes back in the [`Reply`].
pub type RequestId = u64;

/// A driver's buffer of whole logical blocks, named in a request.
pub type BufferId = u32;

/// What the host knows about the data it writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Hint {
    /// The placement handle to append to, taken modulo the number of handles.
    pub handle: u8,
    /// How long the data will live.
    pub lifetime: Lifetime,
}

/// How long data will live before it is overwritten or trimmed, beside other data of its volume.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Lifetime {
    /// Nobody knows.
    #[default]
    Unknown,
    /// Short, as of a log that is checkpointed soon.
    Short,
    /// Between short and long.
    Medium,
    /// Long.
    Long,
    /// As good as for ever.
    Extreme,
}

impl Lifetime {
    /// Classes that are known.
    pub const CLASSES: u8 = 4;

    /// Of a write hint of Linux (`fcntl F_SET_RW_HINT`): 0 and 1 say nothing, 2 to 5 short to
    /// extreme.
    pub fn from_linux(hint: u8) -> Self {
        match hint {
            2 => Self::Short,
            3 => Self::Medium,
            4 => Self::Long,
            5 => Self::Extreme,
            _ => Self::Unknown,
        }
    }

    /// 0 for short to 3 for extreme.
    pub fn class(self) -> Option<u8> {
        (self as u8).checked_sub(1)
    }
}

/// The operation of a [`Request`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Fill `buffer` from the blocks.
    Read {
        /// Where the blocks go: block `i` of the request to index `i` of the buffer.
        buffer: BufferId,
    },
    /// Write the blocks from `buffer`, which stays untouched until the reply.
    Write {
        /// Where the blocks come from.
        buffer: BufferId,
        /// Reply only when the blocks would survive a power cut.
        fua: bool,
        /// All blocks or none survive a power cut; at most 64 blocks (256 KiB).
        atomic: bool,
        /// What the host knows about the data.
        hint: Hint,
    },
    /// The blocks are not needed: later reads return zeroes.
    Trim {
        /// Reply only when the trim would survive a power cut.
        fua: bool,
    },
    /// Reply when everything acknowledged before would survive a power cut.
    Flush,
}

/// A host request. `lba` and `blocks` are 0 for a flush.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Comes back in the reply.
    pub id: RequestId,
    /// First logical block.
    pub lba: Lba,
    /// Number of logical blocks.
    pub blocks: u32,
    /// What to do with them.
    pub operation: Operation,
}

/// Why a zone refuses a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneError {
    /// It would go beyond the end of the zone's capacity, or of the zone.
    Boundary,
    /// The zone is full: reset it before it is written again.
    Full,
    /// Nothing can be written to it any more.
    ReadOnly,
    /// Nothing is known of it any more.
    Offline,
    /// A write that does not begin at the write pointer.
    InvalidWrite,
    /// As many zones are active as may be: finish or reset one.
    TooManyActive,
    /// As many zones were opened as may be: close, finish or reset one.
    TooManyOpen,
    /// What was asked for cannot be done in the state that the zone is in.
    Transition,
}

impl std::fmt::Display for ZoneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Boundary => "it goes beyond the end of the zone",
            Self::Full => "the zone is full: reset it first",
            Self::ReadOnly => "the zone is read-only: its unit takes no more writes",
            Self::Offline => "the zone is offline: nothing is known of its unit",
            Self::InvalidWrite => "a zone is written at its write pointer: report it first",
            Self::TooManyActive => "too many zones are active: finish or reset one",
            Self::TooManyOpen => "too many zones are open: close, finish or reset one",
            Self::Transition => "the zone is in a state in which this cannot be done",
        })
    }
}

/// Why a request failed. Each tells the caller what it can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestError {
    /// Beyond the end of the logical space, empty, or an atomic write of more than 64 blocks.
    OutOfRange,
    /// No space can be reclaimed: trim or overwrite something; reads still work.
    NoSpace,
    /// The data cannot be read back intact. Other blocks are unaffected; writing heals it.
    Unreadable,
    /// The medium failed below (unit gone, flush failed): acknowledged but unflushed data may be
    /// lost, and the FTL accepts no more writes.
    Failed,
    /// The FTL is shutting down.
    ShuttingDown,
    /// Raw units: not whole granules, pages or raw blocks, as the operation wants them.
    Misaligned,
    /// Raw units: the raw block was written since its erase: erase it, and wait for the reply.
    NotErased,
    /// Raw units: not the page after the last one written.
    OutOfOrder,
    /// Raw units: some of it was not written since the erase.
    NotWritten,
    /// Raw units: the raw block is being written or erased.
    Busy,
    /// Raw units: a page to come shares cells with one that would have to be durable. Write on, up to
    /// where no page to come can harm it.
    AtRisk,
    /// Raw units: a program failed. What was acknowledged stays readable; erase the raw block before
    /// it is written again.
    ProgramFailed,
    /// Raw units as zones: the zone refuses.
    Zone(ZoneError),
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "beyond the end of the volume, or empty",
            Self::NoSpace => "the volume is full: trim or overwrite something",
            Self::Unreadable => "the data cannot be read back intact; writing it heals it",
            Self::Failed => "the medium failed: the volume accepts no more writes",
            Self::ShuttingDown => "the server is shutting down",
            Self::Misaligned => "not whole read granules, pages or raw blocks of the unit",
            Self::NotErased => {
                "the raw block was written before: erase it, wait for the reply, then write it"
            }
            Self::OutOfOrder => "pages of a raw block are written in order: this is not the next",
            Self::NotWritten => "not written since the raw block was erased",
            Self::Busy => "the raw block is being written or erased: wait for the reply to that",
            Self::AtRisk => {
                "a page to come shares cells with one that would have to be durable: write on first"
            }
            Self::ProgramFailed => {
                "a program failed: save what the raw block holds, erase it, then write it again"
            }
            Self::Zone(error) => return error.fmt(f),
        })
    }
}

impl std::error::Error for RequestError {}

/// What the time of a request went to, in a core that knows. Of its parts, which go on side by side, it is told of
/// the one that ended last.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Spent {
    /// Until all of it had a place: the map was read, or a write found room.
    pub place_ns: u64,
    /// From there until the medium had the command: its page became full, and its turn came on its unit.
    pub queue_ns: u64,
    /// At the medium.
    pub medium_ns: u64,
    /// From there until it could be answered: other pages before it, and what makes it durable.
    pub safety_ns: u64,
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The request's id.
    pub id: RequestId,
    /// Done, or why not.
    pub result: Result<(), RequestError>,
    /// Where the time went.
    pub spent: Spent,
}
