//! What a volume is, whoever asks: requests over its bytes, how they fall into parts of blocks, and which
//! shard holds what. Pure: no socket, no protocol, no memory of requests.
//!
//! Invariants:
//! - A request lies within its volume: a front that was asked for more refuses that itself.
//! - The parts of a request cover each of its bytes once; those that are cut lie within one block.

pub mod limiter;
mod parts;
mod split;

pub use limiter::Limiter;
pub use parts::{ZEROES_BLOCKS, parts};
pub use split::{Run, STRIPE_BLOCKS, Split};

use flash::{BLOCK_BYTES, RequestError};
use ftl::raw::zones::{Zone, ZoneAction, ZoneState};
use std::fmt;

/// Bytes of a logical block.
pub const BLOCK: u64 = BLOCK_BYTES as u64;

/// What is asked of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// By its place among the exported volumes.
    pub volume: usize,
    /// What to do.
    pub kind: Kind,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush, else at least 1.
    pub len: u32,
}

/// What a [`Request`] wants. `fua`: answer when it would survive a power cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The data of the range.
    Read,
    /// Its data is on its way.
    Write {
        fua: bool,
        /// The placement handle that it names, if it does; else it is that of the volume.
        handle: Option<u8>,
    },
    /// Whether the range holds the data that is on its way.
    Compare,
    /// All that was answered before, on any connection, would survive a power cut.
    Flush,
    /// The range is not needed.
    Trim { fua: bool },
    /// The range reads as zeroes afterwards.
    Zeroes {
        fua: bool,
        /// A later write must find room: do not only trim.
        no_hole: bool,
        /// Refuse at once rather than be as slow as a write.
        fast: bool,
    },
    /// The range will be read soon.
    Cache,
    /// Which of the range holds data.
    Extents,
    /// Of a raw unit as zones, whose bytes are counted as its host does: see [`ftl::raw::Lanes::zone_slots`].
    Zone(ZoneWork),
    /// How the zones are, from the one at the offset on: those in a state, at most so many of them.
    Zones {
        /// In which; `None`: in any.
        state: Option<ZoneState>,
        most: u32,
        /// Those that are not told are not counted.
        partial: bool,
    },
}

/// What is done with a zone. What is read and written lies in one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneWork {
    /// The data of the range; what was not written reads as zeroes.
    Read,
    /// Its data is on its way.
    Write { fua: bool },
    /// The same, at the write pointer of the zone at the offset.
    Append { fua: bool },
    /// Changes the state of the zone at the offset, or of `all` that are in a fitting one.
    Manage { action: ZoneAction, all: bool },
}

impl Kind {
    /// Its data is on its way.
    pub fn takes_data(self) -> bool {
        use ZoneWork::{Append, Write};
        matches!(
            self,
            Self::Write { .. } | Self::Compare | Self::Zone(Write { .. } | Append { .. })
        )
    }

    /// The data of its range is wanted.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Zone(ZoneWork::Read))
    }
}

/// A stretch of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Bytes; may reach beyond the request.
    pub len: u64,
    /// Holds no data.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// Blocks of zeroes that one piece writes to a zone that is finished.
pub const ZONE_PAD_BLOCKS: u32 = 64;

/// Most extents of one answer: who wants the rest asks again.
pub const EXTENTS_MAX: usize = 1024;

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// As it should; of a read, the data is in its buffer.
    Done,
    /// What the range holds from its first byte on.
    Extents(&'a [Extent]),
    /// As it should: the data was appended at this byte.
    Placed(u64),
    /// How the zones are; and how many are in the wanted state, told or not, unless only those count.
    Zones(&'a [Zone], u64),
    /// Not as it should.
    Failed(Failure),
}

/// Why a request fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// The device says so.
    Device(RequestError),
    /// Zeroes were to be as quick as a trim, and could not.
    Slow,
    /// Another server has taken over the device.
    Moved,
    /// The volume was deleted.
    Gone,
    /// The range does not hold what it was compared with.
    Differs,
    /// The data did not come as it was sent.
    Spoilt,
    /// The limits of its volume let it in so much later that who asked is told to come again; its place is kept. Only
    /// for clients that do ([`crate::front::Patience`]).
    Later {
        /// When it comes to its place.
        wait_ns: u64,
        /// How often it was told so before.
        before: u32,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Gone => f.write_str("the volume was deleted"),
            Self::Slow => f.write_str("these zeroes would take as long as a write"),
            Self::Differs => f.write_str("the range holds other data"),
            Self::Spoilt => f.write_str("the data was damaged on its way"),
            Self::Later { .. } => f.write_str("the limits of the volume let it in later"),
            Self::Moved => {
                f.write_str("another server has taken over the device: reconnect to that one")
            }
        }
    }
}

impl Request {
    /// Blocks that it touches.
    pub fn covered_blocks(&self) -> u32 {
        (self.offset % BLOCK + u64::from(self.len)).div_ceil(BLOCK) as u32
    }

    /// Blocks of memory that it needs: for its data, or for zeroes and the two ends of their range.
    pub fn buffer_blocks(&self) -> u32 {
        match self.kind {
            kind if kind.takes_data() || kind.reads() => self.covered_blocks(),
            Kind::Zone(ZoneWork::Manage { action: ZoneAction::Finish, .. }) => ZONE_PAD_BLOCKS,
            Kind::Zeroes { no_hole: true, .. } => 2 + self.covered_blocks().min(ZEROES_BLOCKS),
            Kind::Zeroes { .. } => 2,
            _ => 0,
        }
    }

    /// False if zeroes must come faster than a write or not at all, and only a write would do: to
    /// keep the space, or to change part of a block.
    pub fn is_fast_enough(&self) -> bool {
        let Kind::Zeroes { fast: true, no_hole, .. } = self.kind else { return true };
        let whole = self.offset.is_multiple_of(BLOCK) && u64::from(self.len).is_multiple_of(BLOCK);
        !no_hole && whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_fast_only_where_a_trim_will_do() {
        for (no_hole, offset, len, fast) in [
            (false, 8192, 4096, true),
            (true, 8192, 4096, false),
            (false, 8192, 4097, false),
            (false, 512, 4096, false),
        ] {
            let zeroes = |fast| {
                let kind = Kind::Zeroes { fua: false, no_hole, fast };
                Request { volume: 0, kind, offset, len }
            };
            assert_eq!(zeroes(true).is_fast_enough(), fast);
            assert!(zeroes(false).is_fast_enough());
        }
    }

    #[test]
    fn memory_is_for_whole_blocks_and_of_zeroes_for_no_more_than_a_few() {
        let request = |kind, offset, len| Request { volume: 0, kind, offset, len };
        assert_eq!(request(Kind::Read, 4095, 2).buffer_blocks(), 2);
        assert_eq!(request(Kind::Trim { fua: true }, 0, 1 << 30).buffer_blocks(), 0);
        let zeroes = |no_hole| Kind::Zeroes { fua: false, no_hole, fast: false };
        assert_eq!(request(zeroes(false), 0, 1 << 30).buffer_blocks(), 2);
        assert_eq!(request(zeroes(true), 0, 1 << 30).buffer_blocks(), 2 + ZEROES_BLOCKS);
    }
}
