//! What a volume is made of: from its size to the bands that it has, and from its record to what the FTL is told.
//!
//! Invariant: the geometry of a record never changes, whoever opens the volume, and whenever.

use crate::control::values::{Degraded, VolumeRecord};
use crate::words::{BandShape, MEMBERS_MAX, VolumeId};
use flash::{BLOCK_BYTES, FastTier, Geometry, Health, Pairing};
use ftl::Settings;

/// What somebody wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What people call it.
    pub name: String,
    /// Logical blocks.
    pub blocks: u64,
    /// Copies of each band.
    pub replicas: u8,
    /// Physical capacity beyond the logical one, in percent of that; what the FTL needs comes on top.
    pub op_percent: u32,
    /// Bytes of a band.
    pub band_bytes: u64,
    /// What happens where fewer nodes than replicas can be written to.
    pub degraded: Degraded,
}

impl Wanted {
    /// Two copies, 25 % of over-provisioning, bands of 8 MiB.
    pub fn new(name: impl Into<String>, blocks: u64) -> Self {
        let (replicas, op_percent, band_bytes) = (2, 25, 8 << 20);
        let degraded = Degraded::Pause;
        Self { name: name.into(), blocks, replicas, op_percent, band_bytes, degraded }
    }
}

/// Programs of a lane under way: its band lies on drives that do many things at once.
pub const PROGRAMS_MAX: u32 = 4;

/// Bands that writes may be ahead of GC: a slot that is moved goes over the network twice.
pub const BANDS_AHEAD: u32 = 8;

/// Slots of a page: with the header that a node adds they fill 16, whole pages of any flash.
pub const PAGE_SLOTS: u32 = 15;

/// Least and most bytes of a band.
pub const BAND_BYTES: (u64, u64) = (1 << 20, 256 << 20);

/// Lanes that a volume has at most, and the bands that a lane has at least.
const LANES_MAX: u32 = 32;
const LANE_BANDS_MIN: u32 = 16;
/// Fewer than that leave GC nothing to choose from.
const LANES_MIN: u32 = 4;

/// The record of a volume as somebody wants it.
///
/// # Errors
/// What cannot be, and what could.
pub fn plan(volume: VolumeId, wanted: &Wanted) -> Result<VolumeRecord, String> {
    let Wanted { name, blocks, replicas, op_percent, band_bytes, degraded } = wanted;
    if name.is_empty() || name.len() > 63 || name.contains(['/', '?', '\0']) {
        return Err(format!("name {name:?}: 1 to 63 bytes, and no / or ?; for example: data"));
    }
    if *replicas == 0 || usize::from(*replicas) > MEMBERS_MAX {
        return Err(format!("replicas = {replicas}: 1 to {MEMBERS_MAX}; for example: 2"));
    }
    if !(BAND_BYTES.0..=BAND_BYTES.1).contains(band_bytes) {
        return Err(format!(
            "a band of {band_bytes} bytes: {} to {}; for example: 8MiB",
            BAND_BYTES.0, BAND_BYTES.1
        ));
    }
    let pages = (band_bytes / (u64::from(PAGE_SLOTS) * BLOCK_BYTES as u64)).max(2) as u32;
    let shape = BandShape { pages, slots_per_page: PAGE_SLOTS };
    let slots = blocks.saturating_mul(u64::from(100 + op_percent)) / 100;
    let too_large = || format!("{blocks} blocks: a volume has at most 16 TiB with what is beside");
    if u32::try_from(*blocks).is_err() {
        return Err(too_large());
    }
    if *blocks == 0 {
        return Err("a size of 0: at least one block of 4 KiB; for example: 64GiB".into());
    }
    let mut lanes = LANES_MAX;
    loop {
        let row = u64::from(lanes) * u64::from(shape.slots());
        let shaped = geometry_of(shape, lanes, 1);
        let health = |of: &Geometry| Ok::<_, std::convert::Infallible>(fresh(of));
        let settings = settings();
        if slots.div_ceil(row) > u64::from(u32::MAX / lanes) {
            return Err(too_large());
        }
        let Ok(found) = ftl::blocks_per_unit_for(&shaped, slots, &settings, health);
        let per_lane = found.ok_or_else(|| {
            format!(
                "bands of {band_bytes} bytes are too small for {blocks} blocks: use larger ones"
            )
        })?;
        if per_lane >= LANE_BANDS_MIN || lanes == LANES_MIN {
            let bands = lanes.checked_mul(per_lane).ok_or_else(too_large)?;
            let (name, replicas, degraded) = (name.clone(), *replicas, *degraded);
            let blocks = *blocks;
            return Ok(VolumeRecord {
                volume,
                name,
                blocks,
                replicas,
                shape,
                bands,
                degraded,
                is_deleted: false,
            });
        }
        lanes /= 2;
    }
}

/// What the FTL of a volume is told that its medium is.
pub fn geometry(record: &VolumeRecord) -> Geometry {
    let fits = |lanes: &u32| {
        record.bands.is_multiple_of(*lanes)
            && (record.bands / lanes >= LANE_BANDS_MIN || *lanes <= LANES_MIN)
    };
    let lanes = (0..).map(|by| LANES_MAX >> by).take_while(|&lanes| lanes > 0).find(fits);
    let lanes = lanes.unwrap_or(1);
    geometry_of(record.shape, lanes, record.bands / lanes)
}

fn geometry_of(shape: BandShape, lanes: u32, per_lane: u32) -> Geometry {
    Geometry {
        units: lanes,
        blocks_per_unit: per_lane,
        pages_per_block: shape.pages,
        slots_per_page: shape.slots_per_page,
        pairing: Pairing::None,
        // Some nodes are not: those that were written to are flushed when it matters.
        durable_at_completion: false,
        suspend: false,
        queue_depth: 64,
        // Nodes level their own wear: a band is no part of any drive.
        endurance: u32::MAX,
        open_blocks_max: 0,
        fast: FastTier::NONE,
    }
}

/// Nothing is bad or worn.
pub fn fresh(geometry: &Geometry) -> Health {
    Health { erase_counts: vec![0; geometry.blocks() as usize], ..Health::default() }
}

/// How the FTL of a volume works: a band is far, so many are ready, and much is moved at a time.
pub fn settings() -> Settings {
    Settings {
        relocation_blocks: 4096,
        programs_max: PROGRAMS_MAX,
        bands_ahead: BANDS_AHEAD,
        ..Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_geometry_that_it_was_planned_with() {
        for mib in [16, 100, 1024, 10 << 10, 1 << 20] {
            let wanted = Wanted::new("v", mib << 8);
            let record = plan(VolumeId(1), &wanted).expect("it can be");
            let geometry = geometry(&record);
            geometry.validate().expect("an FTL takes it");
            assert_eq!(geometry.blocks(), record.bands, "{mib} MiB");
            let slots = u64::from(record.bands) * u64::from(record.shape.slots());
            assert!(slots >= (mib << 8) * 125 / 100);
            let options =
                ftl::FormatOptions { logical_blocks: record.blocks as u32, uuid: 1, label: vec![] };
            let health = fresh(&geometry);
            ftl::Ftl::format(geometry, &health, options, settings()).expect("it can be formatted");
        }
    }

    #[test]
    fn what_cannot_be_is_told_with_what_can() {
        let wanted = Wanted::new("v", 1 << 20);
        for (wrong, word) in [
            (Wanted { replicas: 5, ..wanted.clone() }, "1 to 4"),
            (Wanted { name: "a/b".into(), ..wanted.clone() }, "no /"),
            (Wanted { blocks: 0, ..wanted.clone() }, "size of 0"),
            (Wanted { blocks: 1 << 33, ..wanted.clone() }, "16 TiB"),
            (Wanted { band_bytes: 4096, ..wanted.clone() }, "8MiB"),
        ] {
            let error = plan(VolumeId(1), &wrong).expect_err(word);
            assert!(error.contains(word), "{error}");
        }
    }
}
