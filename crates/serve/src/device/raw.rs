//! Devices of raw units: what they are made from, how many blocks that takes, and what NBD can carry.

use super::{DeviceError, DeviceOptions, Shape};
use flash::{BLOCK_BYTES, Geometry, Health};
use ftl::raw::{EraseTime, Lanes, RawFormat, RawSettings, WriteUnit};
use nand::{Faults, Profile};
use serde::{Deserialize, Serialize};

/// Longest payload of a request that clients may count on.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// What raw units are made from, and how they are mounted.
#[derive(Clone, Debug, PartialEq)]
pub struct RawOptions {
    /// Dies that make a unit.
    pub gang: u32,
    /// Share of the blocks kept back; `None` finds one.
    pub spare: Option<f64>,
    /// Logical blocks that all units offer together, at least.
    pub blocks: u64,
    /// Chosen at each mount.
    pub settings: RawSettings,
}

/// What a device keeps of how its raw units were made: as in a config's `[raw]`, the granule in bytes.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNote {
    gang: u32,
    spare: f64,
    write: String,
    erase: String,
    read_granule: u32,
}

impl RawNote {
    pub fn new(raw: &RawOptions) -> Self {
        Self {
            gang: raw.gang,
            spare: raw.spare.unwrap_or_default(),
            write: write_name(raw.settings.write).into(),
            erase: erase_name(raw.settings.erase).into(),
            read_granule: raw.settings.read_granule * BLOCK_BYTES as u32,
        }
    }

    /// `Err` names the key that cannot be.
    pub fn options(&self, blocks: u32) -> Result<RawOptions, String> {
        let write = write_of(&self.write);
        let erase = erase_of(&self.erase);
        let settings = RawSettings {
            write: write.ok_or_else(|| format!("raw.write = {:?}", self.write))?,
            erase: erase.ok_or_else(|| format!("raw.erase = {:?}", self.erase))?,
            read_granule: self.read_granule / BLOCK_BYTES as u32,
            ..RawSettings::default()
        };
        Ok(RawOptions {
            gang: self.gang,
            spare: Some(self.spare),
            blocks: u64::from(blocks),
            settings,
        })
    }
}

impl RawOptions {
    /// What they add to the description of a device by the keys of a config's `[device]`; `None` if a number
    /// is none of TOML's.
    pub(super) fn describe(&self, table: &mut toml::Table) -> Option<()> {
        table.insert("raw".into(), toml::Value::try_from(RawNote::new(self)).ok()?);
        let kib = self.blocks * (BLOCK_BYTES as u64 >> 10);
        table.insert("offered".into(), format!("{kib}KiB").into());
        Some(())
    }

    /// The smallest shape that offers what is asked for, and how to format it.
    pub(super) fn shape(
        &self,
        options: &DeviceOptions,
        profile: &Profile,
        uuid: u128,
    ) -> Result<(Shape, RawFormat), DeviceError> {
        let &DeviceOptions { channels, dies_per_channel, shards, .. } = options;
        if shards != 1 {
            return Err(DeviceError::Options(format!(
                "shards = {shards}: raw units are served by one thread: use shards = 1"
            )));
        }
        let mut shape =
            Shape { channels, dies_per_channel, blocks_per_plane: 1, logical_blocks: 0 };
        let fault_free = Faults { seed: options.faults.seed, ..Faults::default() };
        let geometry = shape.nand(profile, &fault_free, 0, None)?.geometry();
        let per_row = u64::from(geometry.units) * u64::from(geometry.slots_per_block());
        let row = |blocks: u64| u32::try_from(blocks.div_ceil(per_row)).unwrap_or(u32::MAX);
        let mut blocks = row(self.blocks).max(4);
        for _ in 0..64 {
            shape.blocks_per_plane = blocks;
            let geometry = Geometry { blocks_per_unit: blocks, ..geometry };
            geometry.validate().map_err(DeviceError::Options)?;
            self.settings.validate(&geometry).map_err(DeviceError::Options)?;
            let health = shape.nand(profile, &options.faults, 0, None)?.health();
            let spare = match self.spare {
                Some(spare) => Some(spare),
                None => self.find_spare(&geometry, &health),
            };
            let Some(spare) = spare else {
                blocks = blocks.saturating_add(1);
                continue;
            };
            let format = RawFormat { gang: self.gang, spare, uuid, label: Vec::new() };
            let lanes = match Lanes::of_format(&geometry, &health, &format) {
                Ok(lanes) => lanes,
                // With more blocks a small share may be enough.
                Err(_) if blocks < BLOCKS_SMALL => {
                    blocks += blocks / 2;
                    continue;
                }
                Err(reason) => return Err(DeviceError::Options(reason)),
            };
            fits_request(&lanes, self.settings.write).map_err(DeviceError::Options)?;
            let slots = u64::from(lanes.raw_blocks) * u64::from(lanes.slots);
            let offered = slots * u64::from(lanes.lanes);
            let Ok(logical_blocks) = u32::try_from(offered) else {
                return Err(DeviceError::Options(format!(
                    "{} GiB of raw units exceed the 16 TiB that one device addresses: use less \
                     capacity",
                    self.blocks >> 18
                )));
            };
            if offered >= self.blocks {
                shape.logical_blocks = logical_blocks;
                return Ok((shape, format));
            }
            blocks = blocks.saturating_add(row(self.blocks - offered).max(1));
        }
        Err(DeviceError::Options(format!(
            "no number of blocks makes {} MiB of raw units: use a smaller capacity or spare",
            self.blocks >> 8
        )))
    }

    /// A share that covers records, the bad blocks that are there and two to come, and at least a
    /// hundredth; `None` if there are too few blocks for any.
    fn find_spare(&self, geometry: &Geometry, health: &Health) -> Option<f64> {
        let blocks = geometry.blocks_per_unit;
        let share = |spare: u32| f64::from(spare) / f64::from(blocks);
        let enough = |&spare: &u32| {
            let format =
                RawFormat { gang: self.gang, spare: share(spare), uuid: 0, label: Vec::new() };
            Lanes::of_format(geometry, health, &format).is_ok()
        };
        // Units that cannot be ganged so are told by the format itself.
        if !geometry.units.is_multiple_of(self.gang.max(1)) {
            return Some(share(1));
        }
        let least = (1..blocks).find(enough)?;
        let spare = (least + 2).max(blocks.div_ceil(100));
        (spare < blocks && share(spare) <= 0.9).then(|| share(spare))
    }
}

/// What to do where a disk has room for so many blocks of each unit only.
pub fn mend_for(raw: &RawOptions, geometry: &Geometry, blocks_per_unit: u64) -> String {
    let kept = f64::from(geometry.blocks_per_unit) * raw.spare.unwrap_or_default();
    let rows = blocks_per_unit.saturating_sub(kept.ceil() as u64);
    let row_bytes =
        u64::from(geometry.units) * u64::from(geometry.slots_per_block()) * BLOCK_BYTES as u64;
    match (rows * row_bytes) >> 20 {
        0 => "take fewer device.channels, or a larger disk".into(),
        mib => format!("make device.capacity smaller, for example capacity = \"{mib}MiB\""),
    }
}

/// Devices of fewer blocks a unit may grow to satisfy the spare asked for.
const BLOCKS_SMALL: u32 = 1024;

/// `Err` if a raw block must be written by one request and is longer than any.
pub fn fits_request(lanes: &Lanes, write: WriteUnit) -> Result<(), String> {
    let bytes = u64::from(lanes.slots) * BLOCK_BYTES as u64;
    if write == WriteUnit::Block && bytes > REQUEST_BYTES_MAX {
        return Err(format!(
            "raw blocks of {} MiB cannot be written by one request of at most {} MiB: use a \
             smaller gang than {}, or write = \"page\"",
            bytes >> 20,
            REQUEST_BYTES_MAX >> 20,
            lanes.gang
        ));
    }
    Ok(())
}

/// The word of a config for what one write fills.
pub fn write_name(write: WriteUnit) -> &'static str {
    match write {
        WriteUnit::Block => "block",
        WriteUnit::Page => "page",
    }
}

/// The meaning of [`write_name`].
pub fn write_of(name: &str) -> Option<WriteUnit> {
    [WriteUnit::Block, WriteUnit::Page].into_iter().find(|&write| write_name(write) == name)
}

/// The word of a config for when an erase is carried out.
pub fn erase_name(erase: EraseTime) -> &'static str {
    match erase {
        EraseTime::Now => "now",
        EraseTime::Background => "background",
    }
}

/// The meaning of [`erase_name`].
pub fn erase_of(name: &str) -> Option<EraseTime> {
    [EraseTime::Now, EraseTime::Background].into_iter().find(|&erase| erase_name(erase) == name)
}
