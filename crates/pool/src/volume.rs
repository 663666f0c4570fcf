//! What a volume is made of: from its size to the bands that it has, and from its record to what the FTL is told.
//!
//! Invariant: whoever opens a volume by the same record finds the same geometry. A volume that grows gets lanes behind
//! those that it has, of as many bands each: what lies in these stays where it is.

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
    /// No room is kept for it.
    pub is_thin: bool,
}

impl Wanted {
    /// Two copies, 25 % of over-provisioning, bands of 8 MiB.
    pub fn new(name: impl Into<String>, blocks: u64) -> Self {
        let (replicas, op_percent, band_bytes) = (2, 25, 8 << 20);
        let degraded = Degraded::Pause;
        let (name, is_thin) = (name.into(), false);
        Self { name, blocks, replicas, op_percent, band_bytes, degraded, is_thin }
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

/// Lanes that a volume is made with at most, and the bands that a lane has at least.
const LANES_MAX: u32 = 32;
/// Lanes that it may grow to: each keeps bands open.
const LANES_GROWN_MAX: u32 = 1024;
const LANE_BANDS_MIN: u32 = 16;
/// Fewer than that leave GC nothing to choose from.
const LANES_MIN: u32 = 4;

/// The record of a volume as somebody wants it.
///
/// # Errors
/// What cannot be, and what could.
pub fn plan(volume: VolumeId, wanted: &Wanted) -> Result<VolumeRecord, String> {
    let Wanted { name, blocks, replicas, op_percent, band_bytes, degraded, is_thin } = wanted;
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
    let slots = slots_of(*blocks, *op_percent)?;
    let mut lanes = LANES_MAX;
    loop {
        let row = u64::from(lanes) * u64::from(shape.slots());
        let shaped = geometry_of(shape, lanes, 1);
        let health = |of: &Geometry| Ok::<_, std::convert::Infallible>(fresh(of));
        let settings = settings();
        if slots.div_ceil(row) > u64::from(u32::MAX / lanes) {
            return Err(too_large(*blocks));
        }
        let Ok(found) = ftl::blocks_per_unit_for(&shaped, slots, &settings, health);
        let per_lane = found.ok_or_else(|| {
            format!(
                "bands of {band_bytes} bytes are too small for {blocks} blocks: use larger ones"
            )
        })?;
        if per_lane >= LANE_BANDS_MIN || lanes == LANES_MIN {
            let bands = lanes.checked_mul(per_lane).ok_or_else(|| too_large(*blocks))?;
            let (name, replicas, degraded) = (name.clone(), *replicas, *degraded);
            return Ok(VolumeRecord {
                volume,
                name,
                blocks: *blocks,
                replicas,
                shape,
                bands,
                lanes,
                op_percent: *op_percent,
                degraded,
                is_deleted: false,
                is_thin: *is_thin,
            });
        }
        lanes /= 2;
    }
}

/// The record of a volume that grows to so many logical blocks: with lanes behind those that it has, one at least, so
/// that it keeps its over-provisioning.
///
/// # Errors
/// It cannot, and what it could.
pub fn grown(record: &VolumeRecord, blocks: u64) -> Result<VolumeRecord, String> {
    if blocks < record.blocks {
        return Err(format!(
            "it has {} blocks of 4 KiB, and {blocks} are less: a volume only grows; make a smaller one and copy it",
            record.blocks
        ));
    }
    if blocks == record.blocks {
        return Ok(record.clone());
    }
    let now = geometry(record);
    // What lanes have beside what the FTL needs.
    let room = |lanes: u32| {
        let shaped = geometry_of(record.shape, lanes, now.blocks_per_unit);
        u64::from(ftl::logical_blocks_max(&shaped, &fresh(&shaped), &settings()))
    };
    let op_percent = match record.op_percent {
        // Of a record of before: what it has.
        0 => (room(now.units) * 100 / record.blocks.max(1)).saturating_sub(100) as u32,
        known => known,
    };
    let slots = slots_of(blocks, op_percent)?;
    let of_lane = u64::from(now.blocks_per_unit) * u64::from(record.shape.slots());
    let least = slots.div_ceil(of_lane).max(u64::from(now.units) + 1);
    let least = u32::try_from(least).unwrap_or(u32::MAX);
    let suffices = |&lanes: &u32| room(lanes) >= slots;
    let lanes = (least..=LANES_GROWN_MAX).find(suffices).ok_or_else(|| {
        format!(
            "{blocks} blocks of 4 KiB would take more than {LANES_GROWN_MAX} lanes, of which it has {}: make a volume \
             of that size and copy it",
            now.units
        )
    })?;
    let bands = lanes.checked_mul(now.blocks_per_unit).ok_or_else(|| too_large(blocks))?;
    Ok(VolumeRecord { blocks, bands, lanes, op_percent, ..record.clone() })
}

/// Slots for so many logical blocks and what is beside.
fn slots_of(blocks: u64, op_percent: u32) -> Result<u64, String> {
    match blocks {
        0 => Err("a size of 0: at least one block of 4 KiB; for example: 64GiB".into()),
        1..=0xffff_ffff => Ok(blocks * u64::from(100 + op_percent) / 100),
        _ => Err(too_large(blocks)),
    }
}

fn too_large(blocks: u64) -> String {
    format!("{blocks} blocks: a volume has at most 16 TiB with what is beside")
}

/// What the FTL of a volume is told that its medium is.
pub fn geometry(record: &VolumeRecord) -> Geometry {
    let lanes = match record.lanes {
        0 => lanes_of_before(record.bands),
        lanes => lanes,
    };
    geometry_of(record.shape, lanes, record.bands / lanes)
}

/// Lanes of a record that does not tell them: it was never grown.
fn lanes_of_before(bands: u32) -> u32 {
    let fits = |lanes: &u32| {
        bands.is_multiple_of(*lanes) && (bands / lanes >= LANE_BANDS_MIN || *lanes <= LANES_MIN)
    };
    let lanes = (0..).map(|by| LANES_MAX >> by).take_while(|&lanes| lanes > 0).find(fits);
    lanes.unwrap_or(1)
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
    fn a_record_of_before_grows_from_the_lanes_that_it_always_had() {
        for (mib, lanes) in [(16, 4), (100, 4), (1024, 8), (10 << 10, 32)] {
            let record = plan(VolumeId(1), &Wanted::new("v", mib << 8)).expect("it can be");
            let before = VolumeRecord { lanes: 0, op_percent: 0, ..record };
            let geometry = geometry(&before);
            assert_eq!((geometry.units, geometry.blocks()), (lanes, before.bands), "{mib} MiB");
            let grown = grown(&before, mib << 9).expect("it can be");
            assert_eq!(grown.bands, grown.lanes * geometry.blocks_per_unit);
            assert!(grown.lanes > lanes && grown.lanes <= 2 * lanes, "{mib} MiB: {}", grown.lanes);
        }
    }

    #[test]
    fn a_volume_that_grows_keeps_its_lanes_and_its_over_provisioning_and_an_ftl_takes_it() {
        for mib in [16, 100, 1024, 64 << 10] {
            let mut record = plan(VolumeId(1), &Wanted::new("v", mib << 8)).expect("it can be");
            for times in [1, 2, 5] {
                let blocks = record.blocks * times + 1;
                let larger = grown(&record, blocks).expect("it can be");
                let (before, after) = (geometry(&record), geometry(&larger));
                assert_eq!((larger.blocks, larger.lanes), (blocks, after.units));
                assert!(after.units > before.units, "{mib} MiB: a lane at least");
                assert_eq!(Geometry { units: before.units, ..after }, before);
                assert!(after.slots() >= blocks * 125 / 100);
                let most = ftl::logical_blocks_max(&after, &fresh(&after), &settings());
                assert!(u64::from(most) >= blocks * 125 / 100, "{mib} MiB: {most} {blocks}");
                let fewer = Geometry { units: after.units - 1, ..after };
                let most = ftl::logical_blocks_max(&fewer, &fresh(&fewer), &settings());
                let is_least = fewer.units == before.units || u64::from(most) < blocks * 125 / 100;
                assert!(is_least, "{mib} MiB: {} lanes were enough", fewer.units);
                record = larger;
            }
            assert_eq!(grown(&record, record.blocks), Ok(record.clone()), "said twice");
        }
    }

    #[test]
    fn a_size_that_a_volume_cannot_grow_to_is_told_with_what_to_do() {
        let record = plan(VolumeId(1), &Wanted::new("v", 1 << 18)).expect("it can be");
        for (blocks, word) in
            [(1 << 17, "only grows"), (1 << 27, "1024 lanes"), (1 << 33, "16 TiB")]
        {
            let error = grown(&record, blocks).expect_err(word);
            assert!(error.contains(word), "{error}");
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
