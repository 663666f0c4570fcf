//! What the owner of raw units chooses: once, when the device is formatted ([`RawFormat`]), and at
//! each mount ([`RawSettings`]). Both are checked whole before anything starts.

use super::format::RAW_LABEL_BYTES_MAX;
use flash::{Geometry, Health, MILLISECOND};

/// Chosen when the device is formatted.
#[derive(Clone, Debug, PartialEq)]
pub struct RawFormat {
    /// Units that make a lane: 1 for TSSD, the dies of a channel for SDF.
    pub gang: u32,
    /// Share of each unit's blocks kept back for bad blocks and lane records, 0 to 0.9.
    pub spare: f64,
    /// Tells this device's slots from any other's.
    pub uuid: u128,
    /// Bytes of the owner, at most [`RAW_LABEL_BYTES_MAX`].
    pub label: Vec<u8>,
}

/// What one write fills.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum WriteUnit {
    /// A whole raw block, all or nothing (SDF).
    #[default]
    Block,
    /// Whole program pages, in order within the raw block (TSSD).
    Page,
}

/// When an erase is carried out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EraseTime {
    /// In its turn among the writes; the reply comes when it is done.
    #[default]
    Now,
    /// When the lane is idle or a clean block is needed; the reply comes when a record of it is.
    Background,
}

/// Chosen at each mount.
#[derive(Clone, Debug, PartialEq)]
pub struct RawSettings {
    /// What one write fills.
    pub write: WriteUnit,
    /// When an erase is carried out.
    pub erase: EraseTime,
    /// Reads start and end at multiples of this many logical blocks.
    pub read_granule: u32,
    /// Most suspensions of one program or erase.
    pub suspensions_max: u32,
    /// Background erases wait until a lane had no request for this long.
    pub idle_ns: u64,
    /// Recover and read only: nothing is programmed or erased.
    pub read_only: bool,
    /// Zones of a lane that may be open at a time, and active; 0: any number. See [`super::zones`].
    pub zones_open_max: u32,
    /// See above.
    pub zones_active_max: u32,
}

impl Default for RawSettings {
    fn default() -> Self {
        Self {
            write: WriteUnit::Block,
            erase: EraseTime::Now,
            read_granule: 1,
            suspensions_max: 4,
            idle_ns: 2 * MILLISECOND,
            read_only: false,
            zones_open_max: 0,
            zones_active_max: 0,
        }
    }
}

impl RawSettings {
    /// `Err` names the key, its value, what is wrong and a value that works.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), String> {
        refuse_shape(geometry)?;
        let slots = geometry.slots_per_page;
        if self.read_granule == 0 || !slots.is_multiple_of(self.read_granule) {
            return Err(format!(
                "read_granule = {} blocks of 4 KiB: must divide the {slots} of a page, for \
                 example 1",
                self.read_granule
            ));
        }
        let (open, active) = (self.zones_open_max, self.zones_active_max);
        if active > 0 && (open == 0 || open > active) {
            return Err(format!(
                "zones_open_max = {open} with zones_active_max = {active}: an open zone is active, so \
                 there may be as many at most, for example {active}"
            ));
        }
        Ok(())
    }
}

/// `Err` if raw units cannot be on a medium of this kind.
fn refuse_shape(geometry: &Geometry) -> Result<(), String> {
    geometry.validate()?;
    if geometry.is_tiered() {
        return Err("raw units are of one kind: this device has a fast tier; take that away".into());
    }
    if geometry.open_blocks_max > 0 {
        let reason = "the owner of raw units writes to as many blocks as it likes, and this medium bounds \
                      how many are partly programmed (open_blocks_max, a zoned device): use mode = \"block\"";
        return Err(reason.into());
    }
    Ok(())
}

/// How units are ganged into lanes and lanes divided into raw blocks: the address space of raw
/// units. Lane `k` has the units `k`, `k + lanes`, `k + 2 * lanes` and so on, because those share a
/// bus; page `p` of a raw block is page `p / gang` of its block on the `p % gang`-th of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lanes {
    /// Lanes.
    pub lanes: u32,
    /// Units of each.
    pub gang: u32,
    /// Raw blocks of each.
    pub raw_blocks: u32,
    /// Program pages of a raw block.
    pub pages: u32,
    /// Logical blocks of a raw block.
    pub slots: u32,
}

impl Lanes {
    /// `Err` says why `gang` units cannot make a lane of this medium.
    pub fn new(geometry: &Geometry, gang: u32, raw_blocks: u32) -> Result<Self, String> {
        if gang == 0 || !geometry.units.is_multiple_of(gang) {
            return Err(format!(
                "gang = {gang}: must divide the {} units of the medium, for example 1",
                geometry.units
            ));
        }
        let pages = geometry.pages_per_block * gang;
        let lanes = geometry.units / gang;
        Ok(Self { lanes, gang, raw_blocks, pages, slots: pages * geometry.slots_per_page })
    }

    /// Logical blocks of one lane.
    pub fn lane_slots(&self) -> u32 {
        self.raw_blocks * self.slots
    }

    /// Logical blocks of all lanes.
    pub fn logical_blocks(&self) -> u32 {
        self.lanes * self.lane_slots()
    }

    /// Logical blocks from the start of a zone to that of the next: hosts find zones by shifts.
    pub fn zone_slots(&self) -> u32 {
        self.slots.next_power_of_two()
    }

    /// The unit at `member` of `lane`.
    pub fn unit(&self, lane: u32, member: u32) -> u32 {
        lane + member * self.lanes
    }

    /// The lane of a unit.
    pub fn lane_of(&self, unit: u32) -> u32 {
        unit % self.lanes
    }

    /// The position of a unit in its lane.
    pub fn member_of(&self, unit: u32) -> u32 {
        unit / self.lanes
    }

    /// Blocks of a unit that lane records may take at once: two, on different units of a gang, and
    /// one more while a new one takes the place of an old one.
    pub(crate) fn record_blocks(&self) -> u32 {
        if self.gang == 1 { 3 } else { 2 }
    }

    /// The lanes that `format` asks for on a medium of this health; `Err` says what stands against
    /// it and what would work.
    pub fn of_format(
        geometry: &Geometry,
        health: &Health,
        format: &RawFormat,
    ) -> Result<Self, String> {
        refuse_shape(geometry)?;
        if !(0.0..=0.9).contains(&format.spare) {
            return Err(format!("spare = {}: must be 0 to 0.9, for example 0.01", format.spare));
        }
        if format.label.len() > RAW_LABEL_BYTES_MAX {
            return Err(format!(
                "label of {} bytes: at most {RAW_LABEL_BYTES_MAX}",
                format.label.len()
            ));
        }
        let spare = (f64::from(geometry.blocks_per_unit) * format.spare).ceil() as u32;
        let raw_blocks = geometry.blocks_per_unit - spare;
        let lanes = Self::new(geometry, format.gang, raw_blocks)?;
        let mut good = vec![geometry.blocks_per_unit; geometry.units as usize];
        for &block in &health.bad_blocks {
            good[geometry.unit_of(block) as usize] -= 1;
        }
        for (unit, &good) in (0..).zip(&good) {
            let usable = good.saturating_sub(lanes.record_blocks());
            if raw_blocks == 0 || usable < raw_blocks && !health.units_gone.contains(&unit) {
                let least = 1.0 - f64::from(usable) / f64::from(geometry.blocks_per_unit);
                return Err(format!(
                    "spare = {}: unit {unit} has {good} good blocks of {}, of which lane records \
                     take {}: spare must be at least {:.4}",
                    format.spare,
                    geometry.blocks_per_unit,
                    lanes.record_blocks(),
                    (least * 10_000.0).ceil() / 10_000.0,
                ));
            }
        }
        Ok(lanes)
    }
}
