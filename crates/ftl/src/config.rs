//! What the owner of a device chooses: once, when it is formatted ([`FormatOptions`]), and at each
//! mount ([`Settings`]). Both are checked whole before anything starts.

use crate::policy::PolicyNames;
use crate::policy::stream::{self, Shape, StreamPolicy};
use flash::{MICROSECOND, MILLISECOND};
use std::ops::Range;

/// Chosen when the device is formatted, kept in the root record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FormatOptions {
    /// Logical blocks the device offers. At most [`crate::logical_blocks_max`].
    pub logical_blocks: u32,
    /// Tells this device's slots from any other's.
    pub uuid: u128,
    /// Bytes of the owner (the server keeps its volume table here), at most [`crate::LABEL_BYTES_MAX`].
    pub label: Vec<u8>,
}

/// Chosen at each mount.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Host placement handles, each with an append point of its own: 1 to 16.
    pub handles: u8,
    /// Units that one handle appends to at a time; 0 means all.
    pub stripe_units: u32,
    /// How long a partly filled page may wait for more blocks before it is padded.
    pub append_wait_ns: u64,
    /// Start GC when fewer bands than this are free; 0 lets the FTL choose: about one for each unit,
    /// and no more than a quarter of the spare bands.
    pub bands_free_low: u32,
    /// Slots appended between two checkpoints; 0 lets the FTL choose from the geometry.
    pub checkpoint_slots: u64,
    /// A scrub reads every valid page once in this time; 0 turns it off.
    pub scrub_period_ns: u64,
    /// Relocate what a read corrected by at least this many bits.
    pub refresh_bits: u32,
    /// Most suspensions of one program or erase.
    pub suspensions_max: u32,
    /// Longest that a host read shall wait for a program, an erase or a step of GC; 0 for no such
    /// goal. See `slo`.
    pub read_slo_ns: u64,
    /// An idle erase policy waits until a unit had no request for this long.
    pub idle_ns: u64,
    /// Bands that GC relocates at a time, as far as there are bands to spare: more make GC faster,
    /// fewer disturb fewer units. 0 lets the FTL choose from the geometry.
    pub victims_max: u32,
    /// Bands that the host may write ahead of GC while about `bands_free_low` bands are free, and the fewer the fewer
    /// are; 0 for none. Where reads and programs of GC take their time, as on a medium that is far, writes would else
    /// wait for each that is late, though there are free bands.
    pub bands_ahead: u32,
    /// Programs of a unit that the medium is given at once; 0 lets the FTL choose two: one runs while the data of
    /// the next is on its way. A medium that is far, or does several at a time, wants more.
    pub programs_max: u32,
    /// Relocation buffers that the driver provides, in blocks. On a two-tier device half of them is
    /// for destage, and bounds what it has under way.
    pub relocation_blocks: u32,
    /// On a two-tier device: destage when more than this share of the fast tier is filled, in percent,
    /// 0 to 95. The fuller it is kept, the more is overwritten there and never destaged.
    pub destage_above: u8,
    /// On a two-tier device: ranges of logical blocks with a share of the fast tier each, so that one
    /// writer waits for itself; with fewer than two it is everybody's.
    pub fast_shares: Vec<FastShare>,
    /// DRAM for the map, in bytes: the part of it that is looked at most, and what changed since the
    /// last checkpoint. 0 for all of it, 4 bytes a logical block.
    pub map_bytes: u64,
    /// With `map_bytes`: blocks whose entries come to DRAM and leave it together, a power of two from 8
    /// to 1024. Fewer make better use of it where hot blocks lie far apart, and larger tables.
    pub map_piece_blocks: u32,
    /// With `map_bytes`: volumes, and whether their entries stay in DRAM; all of the device is one if
    /// there are none.
    pub map_volumes: Vec<MapVolume>,
    /// Policies, by name.
    pub policies: PolicyNames,
    /// Ranges of logical blocks with a stream policy of their own; they must not overlap.
    pub volumes: Vec<StreamVolume>,
    /// Seed of the policies that draw.
    pub seed: u64,
    /// Logical blocks that the device is to have: a mount gives it those that are missing if units were added to the
    /// medium since its last checkpoint, and holds all of its map in DRAM for that. 0 for as many as it has.
    pub logical_blocks_min: u32,
    /// Recover and read only: nothing is programmed or erased.
    pub read_only: bool,
    /// Show blocks that may be older than what was written last, and go on from there, where parts of
    /// the map or slots of unknown blocks are lost; else they are refused, and nothing is written.
    pub salvage: bool,
}

/// A range of logical blocks with a stream policy of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StreamVolume {
    /// Its first logical block.
    pub first: u32,
    /// Its logical blocks.
    pub blocks: u32,
    /// The policy: a name of [`crate::policy::stream::STREAMS`], with parameters.
    pub stream: String,
}

/// A volume, as far as the map is concerned.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MapVolume {
    /// Its logical blocks.
    pub blocks: Range<u32>,
    /// It is mapped by page: its entries stay in DRAM once they came.
    pub page: bool,
}

/// The weight of a range of logical blocks in the fast tier. Requests are of one range each: one that
/// began in one and ended in another could overtake what the other has waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FastShare {
    /// Its first logical block.
    pub first: u32,
    /// How many.
    pub blocks: u32,
    /// Its part of the tier, by the sum of all: 1 to 1000.
    pub weight: u32,
}

/// Most shares of a device: one bit each.
pub(crate) const SHARES_MAX: usize = 63;

impl Default for Settings {
    fn default() -> Self {
        Self {
            handles: 1,
            stripe_units: 0,
            append_wait_ns: 100 * MICROSECOND,
            bands_free_low: 0,
            checkpoint_slots: 0,
            scrub_period_ns: 0,
            refresh_bits: 32,
            suspensions_max: 4,
            read_slo_ns: 0,
            idle_ns: 2 * MILLISECOND,
            victims_max: 0,
            bands_ahead: 0,
            programs_max: 0,
            relocation_blocks: 1024,
            destage_above: 70,
            fast_shares: Vec::new(),
            map_bytes: 0,
            map_piece_blocks: 1024,
            map_volumes: Vec::new(),
            policies: PolicyNames::default(),
            volumes: Vec::new(),
            seed: 1,
            logical_blocks_min: 0,
            read_only: false,
            salvage: false,
        }
    }
}

/// Handles that the stream policies of these settings would use in all, for the host and for
/// relocation, as `of` says; `Err` if one of them does not exist.
pub(crate) fn handles_wanted(
    settings: &Settings,
    of: fn(&dyn StreamPolicy) -> u8,
) -> Result<u32, String> {
    let names = settings.volumes.iter().map(|volume| volume.stream.as_str());
    let mut sum = 0;
    for name in names.chain([settings.policies.stream.as_str()]) {
        let shape = Shape { blocks: 1, handles: settings.handles };
        sum += u32::from(of(&*stream::by_name(name, shape)?));
    }
    Ok(sum)
}
