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
    /// What else is known of pages that are not sound, while it is not sealed.
    pub gaps: Gaps,
}

/// Which pages of a copy are not sound, beyond where the first one is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Gaps {
    /// Behind the last of them, but for those at the end.
    pub until: u32,
    /// Those at the end: of each some slots are sound, and it is the last one, or so are all behind it.
    pub loose: u32,
    /// Of some of the last pages, from [`Gaps::parts_from`] on, a bit for each slot that is sound.
    pub parts: [u64; PARTS],
}

/// Pages at the end of a copy of which it is told what is sound in them: a power cut tears so many that were on their way.
pub const PARTS: usize = 8;

impl Gaps {
    /// The first page that [`Gaps::parts`] tells of, of a copy of so many pages of which the first `sound` are: so that the
    /// last ones are told, but of those at the end that are not sound the first.
    pub fn parts_from(&self, pages: u32, sound: u32) -> u32 {
        let firm = pages.saturating_sub(self.loose);
        firm.min(pages.saturating_sub(PARTS as u32)).max(sound)
    }

    /// Of how many pages [`Gaps::parts`] tells: none where all are sound.
    pub fn parts_told(&self, pages: u32, sound: u32) -> usize {
        (pages.saturating_sub(self.parts_from(pages, sound)) as usize).min(PARTS)
    }
}

impl BandEntry {
    /// Of a copy of which nothing is known to be damaged.
    pub fn whole(band: BandName, header: BandHeader, pages: u32, sealed: bool) -> Self {
        let (torn, gaps) = (false, Gaps::default());
        Self { band, header, pages, sealed, sound: pages, torn, gaps }
    }

    /// Pages up to the last one that is sound.
    pub fn firm(&self) -> u32 {
        self.pages.saturating_sub(self.gaps.loose)
    }

    /// A bit for each slot of a page that is known to be sound.
    pub fn sound_slots(&self, page: u32) -> u64 {
        let (firm, Gaps { until, parts, .. }) = (self.firm(), self.gaps);
        if page < self.sound || (until..firm).contains(&page) {
            return low_bits(self.header.shape.slots_per_page);
        }
        let at = page.checked_sub(self.gaps.parts_from(self.pages, self.sound));
        let part = at.filter(|_| page < self.pages).and_then(|at| parts.get(at as usize));
        part.copied().unwrap_or(0)
    }
}

/// A number with the lowest `count` of 64 bits set.
pub fn low_bits(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
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
