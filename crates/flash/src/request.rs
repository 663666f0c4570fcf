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
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The request's id.
    pub id: RequestId,
    /// Done, or why not.
    pub result: Result<(), RequestError>,
}
