//! What the owner of a device chooses: once, when it is formatted ([`FormatOptions`]), and at each
//! mount ([`Settings`]). Both are checked whole before anything starts.

use crate::host::shares::{FastShare, SHARES_MAX};
use crate::log::streams::StreamVolume;
use crate::map::bytes_min_to_hold;
use crate::map::volumes::MapVolume;
use crate::policy::PolicyNames;
use crate::policy::stream::HANDLES_MAX;
use flash::{Geometry, MICROSECOND, MILLISECOND};

/// Chosen when the device is formatted, kept in the root record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FormatOptions {
    /// Logical blocks the device offers. At most [`logical_blocks_max`].
    pub logical_blocks: u32,
    /// Tells this device's slots from any other's.
    pub uuid: u128,
    /// Bytes of the owner (the server keeps its volume table here), at most [`LABEL_BYTES_MAX`].
    pub label: Vec<u8>,
}

/// Most bytes of a label.
pub const LABEL_BYTES_MAX: usize = 3072;

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
    /// Recover and read only: nothing is programmed or erased.
    pub read_only: bool,
    /// Show blocks that may be older than what was written last, and go on from there, where parts of
    /// the map or slots of unknown blocks are lost; else they are refused, and nothing is written.
    pub salvage: bool,
}

/// Most placement handles of all volumes together, when mounted.
const STREAM_HANDLES_MAX: u32 = 256;

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
            relocation_blocks: 1024,
            destage_above: 70,
            fast_shares: Vec::new(),
            map_bytes: 0,
            map_piece_blocks: 1024,
            map_volumes: Vec::new(),
            policies: PolicyNames::default(),
            volumes: Vec::new(),
            seed: 1,
            read_only: false,
            salvage: false,
        }
    }
}

impl Settings {
    /// `Err` names the key, its value, what is wrong and a value that works.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), String> {
        geometry.validate()?;
        if !(1..=HANDLES_MAX).contains(&self.handles) {
            return Err(format!("handles = {}: must be 1 to 16, for example 4", self.handles));
        }
        if self.stripe_units > geometry.units {
            return Err(format!(
                "stripe_units = {}: the device has {} units; use 0 for all",
                self.stripe_units, geometry.units
            ));
        }
        if self.destage_above > 95 {
            return Err(format!(
                "destage_above = {}: must be 0 to 95 percent, for example 70",
                self.destage_above
            ));
        }
        if self.fast_shares.len() > SHARES_MAX {
            return Err(format!(
                "fast_share: {} volumes have a share of the fast tier, at most {SHARES_MAX} can",
                self.fast_shares.len()
            ));
        }
        let pages_min = if geometry.is_tiered() { 4 } else { 2 };
        let blocks_min = pages_min * geometry.slots_per_page;
        if self.relocation_blocks < blocks_min {
            return Err(format!(
                "relocation_blocks = {}: must hold {pages_min} pages, at least {blocks_min}",
                self.relocation_blocks
            ));
        }
        self.validate_map(geometry)?;
        self.policies.validate()?;
        let wanted = crate::log::streams::handles_wanted(self)?;
        if wanted > STREAM_HANDLES_MAX {
            return Err(format!(
                "streams: the policies want {wanted} placement handles in all, at most \
                 {STREAM_HANDLES_MAX} can be had; give some of them fewer, for example sfr:handles=4"
            ));
        }
        Ok(())
    }

    fn validate_map(&self, geometry: &Geometry) -> Result<(), String> {
        let piece = self.map_piece_blocks;
        if !piece.is_power_of_two() || !(8..=1024).contains(&piece) {
            return Err(format!(
                "map_piece_blocks = {piece}: must be a power of two from 8 to 1024, for example 1024"
            ));
        }
        let blocks = geometry.slots() as u32;
        let by_page = self.map_volumes.iter().filter(|volume| volume.page);
        let by_page: Vec<_> = by_page.map(|volume| volume.blocks.clone()).collect();
        let min = bytes_min_to_hold(blocks, piece, &by_page);
        if self.map_bytes != 0 && self.map_bytes < min {
            return Err(format!(
                "map_memory of {} bytes: the map of a device of this size, or of each of its shards, \
                 works in {min} bytes of DRAM and more, with what of it is to stay there; use 0 for all of it",
                self.map_bytes
            ));
        }
        Ok(())
    }
}
