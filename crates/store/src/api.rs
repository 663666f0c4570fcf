//! The two things that a store stands on, and what can go wrong. Tests have both in memory, and cut the
//! power of both after every step.

use std::fmt;
use std::time::Duration;

/// What the volume writes all or nothing.
pub const BLOCK_BYTES: usize = 4096;

/// The small block volume. A write is in the volume when it returns, so that the end of this process loses
/// nothing; it is safe from a power cut after a flush.
pub trait Volume: Send {
    /// Blocks of [`BLOCK_BYTES`].
    fn blocks(&self) -> u64;
    /// Fills `into`, whole blocks, from `block` on.
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), Error>;
    /// Writes whole blocks from `block` on. Each block is all old or all new.
    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error>;
    /// The same, and may be on its way when this returns, with others, of which a crash may leave any. What is written again
    /// comes behind what was begun before, and so does a read.
    fn begin_write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        self.write(block, bytes)
    }
    /// All that was begun is in the volume when this returns. Once one of them failed, this does, and a flush too.
    fn end_writes(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Nobody needs these blocks any more.
    fn trim(&mut self, _block: u64, _blocks: u64) -> Result<(), Error> {
        Ok(())
    }
    /// What was written is durable when this returns.
    fn flush(&mut self) -> Result<(), Error>;
}

/// A part of a raw block that is wanted.
#[derive(Debug)]
pub struct Piece<'a> {
    /// The block.
    pub id: u128,
    /// Where in it.
    pub offset: u64,
    /// What is filled with it.
    pub into: &'a mut [u8],
}

/// Raw blocks by ID. All of it may be called by many threads.
pub trait RawBlocks: Send + Sync {
    /// Bytes of a raw block.
    fn block_bytes(&self) -> u64;
    /// Units that numbers take turns on.
    fn units(&self) -> u32;
    /// Puts that one file may have under way. With more than one each has a thread.
    fn puts_at_once(&self) -> usize {
        1
    }
    /// Puts that files may have under way whose writing has ended, if it has more than one.
    fn late_puts_max(&self) -> usize {
        4 * self.puts_at_once()
    }
    /// Writes a whole block: durable when this returns. [`Error::Taken`] and [`Error::UnitFull`] are about
    /// this number only.
    fn put(&self, id: u128, bytes: &[u8]) -> Result<(), Error>;
    /// Erases a block; one that is not there is none to erase.
    fn delete(&self, id: u128) -> Result<(), Error>;
    /// Fills all of them, as many at a time as may be; how each of them went. Who gives a patience is told
    /// [`Error::Unreachable`] when it ends before the units answer.
    fn read(&self, pieces: &mut [Piece<'_>], patience: Option<Duration>) -> Vec<Result<(), Error>>;
    /// The IDs of all blocks that are there, whoever they belong to.
    fn list(&self) -> Result<Vec<u128>, Error>;
    /// What is listed and put goes another way than what is read: they may be those of two devices.
    fn has_two_doors(&self) -> bool {
        false
    }
    /// Whether they are of one device, as far as the block of this ID tells, which is listed.
    fn check(&self, _id: u128) -> Result<(), Error> {
        Ok(())
    }
    /// Why no unit takes a block, and what helps, if more is known of it than that.
    fn why_full(&self) -> Option<String> {
        None
    }
}

/// Why a store did not do something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Error {
    /// No such file or folder.
    NotFound(String),
    /// It is there already, or is not of the kind that was asked for.
    Unfit(String),
    /// The number is taken by another block.
    Taken(String),
    /// The unit of the number has no erased raw block, or cannot write one.
    UnitFull(String),
    /// No room: what is full, and what helps.
    Full(String),
    /// Another process owns the store.
    Owned(String),
    /// The units are those of another device.
    Foreign(String),
    /// What lies there is not what was written there.
    Damaged(String),
    /// The connection, or the server's refusal.
    Io(String),
    /// The server of the units is not there, or did not answer within the time that was given.
    Unreachable(String),
    /// The caller's mistake.
    Usage(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(path) => write!(f, "{path}: no such file or folder in the store"),
            Self::Unfit(what)
            | Self::Taken(what)
            | Self::UnitFull(what)
            | Self::Full(what)
            | Self::Owned(what)
            | Self::Foreign(what)
            | Self::Damaged(what)
            | Self::Io(what)
            | Self::Unreachable(what)
            | Self::Usage(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
