//! What a client asks of a node, and what it is answered. The data of slots is whatever the driver keeps it
//! in: `D` is a handle, a frame or, in the lab, a stamp.
//!
//! Invariants of the protocol:
//! - A node refuses whatever would change or show a volume to a generation below the highest that it has
//!   heard of for that volume, which it keeps durably before it says so.
//! - An append is answered as done only when it is durable on the node, if the node says that it is
//!   (`NodeFacts::durable`), else a flush makes it so.
//! - Everything may be asked again: an append of a page that is there with the same sum is done, a seal of
//!   what is sealed at that page and a free of what is not there, too.
//! - A band on a node has the pages `0..pages`, without holes.

use crate::words::{BandName, BandShape, Generation, Members, NodeId, VolumeId};
use flash::Oob;

/// Pairs an answer with what was asked, on one connection.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct AskId(pub u64);

/// One slot of an append, or of what a read returned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Slot<D> {
    /// The FTL's bytes beside the data; opaque to nodes.
    pub oob: Oob,
    /// CRC-32C of the data, which whoever stores or forwards it checks.
    pub crc: u32,
    /// The data; `None` for zeroes, which are not sent, or for data that are lost.
    pub data: Option<D>,
}

/// CRC-32C of a block of zeroes.
pub const ZEROES_CRC: u32 = 0x98F9_4189;

impl<D> Slot<D> {
    /// Whether all that is left is what stood beside the data: these were no zeroes, and are damaged.
    pub fn is_lost(&self) -> bool {
        self.data.is_none() && self.crc != ZEROES_CRC
    }
}

/// Something that a client, or another node, wants of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask<D> {
    /// Nothing below this generation may use the volume any more.
    Fence {
        /// Whose.
        volume: VolumeId,
        /// From now on the least.
        generation: Generation,
        /// Which opening asks: another one of the same generation is refused. Never 0 in what a client asks.
        owner: u64,
    },
    /// Append a page. The first one opens the band.
    Append {
        /// To which.
        band: BandName,
        /// Of who asks.
        generation: Generation,
        /// The next page of the band.
        page: u32,
        /// With page 0: what the header of the band says.
        open: Option<BandHeader>,
        /// As many as a page of the band has.
        slots: Vec<Slot<D>>,
    },
    /// Read slots of one page.
    Read {
        /// Of which.
        band: BandName,
        /// Of who asks.
        generation: Generation,
        /// The first.
        slot: u32,
        /// How many.
        count: u32,
        /// Whoever waits for it waits now: it may suspend what the drive does.
        urgent: bool,
    },
    /// The band ends after so many pages; what is beyond is forgotten. From now on it never changes.
    Seal {
        /// Which.
        band: BandName,
        /// Of who asks.
        generation: Generation,
        /// Pages that stay, at most those that are there.
        pages: u32,
    },
    /// Nobody needs the band any more.
    Free {
        /// Which.
        band: BandName,
        /// Of who asks.
        generation: Generation,
    },
    /// Make durable what was answered before. Only where the node is not durable at completion.
    Flush {
        /// Whose.
        volume: VolumeId,
        /// Of who asks.
        generation: Generation,
    },
    /// Which bands of a volume are there?
    List {
        /// Whose.
        volume: VolumeId,
        /// Of who asks.
        generation: Generation,
        /// Only bands behind this one, in the order of names; to ask on.
        after: Option<BandName>,
    },
    /// Fetch a sealed band from another node and keep it: repair, drain, rebalance.
    Copy {
        /// Which.
        band: BandName,
        /// Of who asks.
        generation: Generation,
        /// Who has it: the first has all of it, if anybody has; the others are asked for what those before them cannot
        /// read.
        from: Members,
        /// What the header of this copy says: its members are those after the copy.
        header: BandHeader,
        /// Pages of the sealed band.
        pages: u32,
        /// No faster than this.
        bytes_per_s_max: u64,
    },
}

/// What every member of a band says of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BandHeader {
    /// Who has the band, as far as was known when this copy was begun.
    pub members: Members,
    /// Pages and slots.
    pub shape: BandShape,
}

/// A band on a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BandEntry {
    /// Its name.
    pub band: BandName,
    /// What its header says.
    pub header: BandHeader,
    /// Pages that are there.
    pub pages: u32,
    /// It never changes any more.
    pub sealed: bool,
    /// Those of them, from the first on, that are sound as far as the node knows. Behind the first one that is not others
    /// are: the medium is damaged, or a power cut has left out what was not flushed, and nothing tells which.
    pub sound: u32,
    /// It is not sealed, and what was written last is not all sound: a power cut has torn it, or it is damaged. So it does not
    /// say where the band ends.
    pub torn: bool,
    /// Of its last pages so many are damaged, or torn by a power cut, while it is not sealed.
    pub loose: u32,
}

impl BandEntry {
    /// Of a copy of which nothing is known to be damaged.
    pub fn whole(band: BandName, header: BandHeader, pages: u32, sealed: bool) -> Self {
        Self { band, header, pages, sealed, sound: pages, torn: false, loose: 0 }
    }

    /// Pages up to the last one that is sound.
    pub fn firm(&self) -> u32 {
        self.pages.saturating_sub(self.loose)
    }
}

/// The answer to an [`Ask`], always with [`Signals`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer<D> {
    /// Done: of a fence, append, seal, free, flush, copy.
    Done,
    /// Of a read, a slot each. What cannot be read is `None`, or a slot whose data are lost ([`Slot::is_lost`]):
    /// another member has it.
    Slots(Vec<Option<Slot<D>>>),
    /// Of a list, in the order of names; with `more`, ask again after the last.
    Bands {
        /// Some of them.
        bands: Vec<BandEntry>,
        /// There are more.
        more: bool,
    },
    /// Not done, and why.
    Refused(Refusal),
}

/// Why a node did not do what it was asked. Each tells the client what it can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The volume has a newer owner: stop, for good.
    Stale {
        /// The highest generation that the node has heard of.
        highest: Generation,
    },
    /// There is no such band here, or not in this life.
    NoBand,
    /// The band never changes any more.
    Sealed {
        /// Its pages.
        pages: u32,
    },
    /// Not the page that comes next.
    OutOfOrder {
        /// This one does.
        expected: u32,
    },
    /// The page is there with other content, or the band with another header.
    Differs,
    /// The node takes no appends of new bands now: the controller has it serve reads.
    Mode,
    /// No room for another band.
    Full,
    /// The drive failed at this band: it keeps what it had, and takes no more.
    BandFailed,
    /// The drive as a whole takes no writes any more.
    Failed,
    /// A page or a slot beyond what is there, an append of a wrong number of slots, a checksum that does not fit
    /// the data: whoever asked is wrong, or what came between.
    Invalid,
    /// More is asked at once than the node takes: ask again later.
    Busy,
}

/// How a node feels about its load: comes with every answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Signals {
    /// By its own judgement, against the profile of its drive.
    pub congestion: Congestion,
    /// Requests that the drive has not answered.
    pub queue: u16,
    /// Where the node runs Weir on raw flash: requests waiting for the unit that was asked.
    pub unit_queue: Option<u16>,
    /// Likewise: GC or an erase of the unit is under way or about to begin.
    pub unit_stirs: bool,
}

/// See the constants in the pool's facts: Sandook's disk monitor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Congestion {
    /// Send as the weights say.
    #[default]
    None,
    /// It was congested and clears: send a little more each time.
    Clearing,
    /// It was congested and has settled: send as now.
    Settled,
    /// Send half.
    Congested,
}

/// What a node says of itself when a connection is made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NodeFacts {
    /// Who it is.
    pub node: NodeId,
    /// What is answered as done survives a power cut.
    pub durable: bool,
    /// Bands that it has room for, all in all.
    pub bands: u32,
    /// Bands that are taken.
    pub bands_used: u32,
    /// Pages of the longest band of a volume that a raw block holds for sure.
    pub band_pages: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_have_the_sum_that_is_said() {
        assert_eq!(ZEROES_CRC, flash::crc(&[0; flash::BLOCK_BYTES]));
        let slot = |crc, data| Slot { oob: [0; 32], crc, data };
        assert!(!slot(ZEROES_CRC, None::<u8>).is_lost());
        assert!(slot(1, None::<u8>).is_lost());
        assert!(!slot(1, Some(1u8)).is_lost());
    }
}
