//! What a server offers to NBD clients: the volumes of a block device, or the units of a raw one.

use crate::config::Config;
use crate::device::{Volume, decode_volumes, raw};
use crate::nbd;
use crate::runtime::shard::{Exported, RawShape};
use crate::server::{Found, ServeError};
use crate::volume::Split;
use flash::BLOCK_BYTES;
use ftl::raw::WriteUnit;

/// What clients may open. All three in the same order.
pub struct Offer {
    /// For people.
    pub volumes: Vec<Volume>,
    /// For the protocol.
    pub exports: Vec<nbd::Export>,
    /// For the shards.
    pub exported: Vec<Exported>,
}

/// What is on the device, if it is what the config asks for.
pub(crate) fn offer(found: &Found, split: Split, config: &Config) -> Result<Offer, ServeError> {
    match &found.raw {
        Some(shape) => units(shape, config),
        None => volumes(check_volumes(found, split, config)?, config),
    }
}

fn volumes(volumes: Vec<Volume>, config: &Config) -> Result<Offer, ServeError> {
    let mut offer = Offer { volumes: Vec::new(), exports: Vec::new(), exported: Vec::new() };
    for (index, mut volume) in volumes.into_iter().enumerate() {
        let options = &config.device.volumes[index];
        let mut export = nbd::Export::new(volume.name.clone(), volume.blocks * BLOCK_BYTES as u64);
        volume.read_only |= options.read_only || config.ftl.read_only;
        export.read_only = volume.read_only;
        offer.add(volume, export, index as u8 % config.ftl.handles)?;
    }
    Ok(offer)
}

/// One export a unit, so that its queue and its faults are its own.
fn units(shape: &RawShape, config: &Config) -> Result<Offer, ServeError> {
    let write = config.device.raw.as_ref().map(|raw| raw.settings.write).unwrap_or_default();
    raw::fits_request(&shape.lanes, write).map_err(ServeError::Volumes)?;
    let blocks = u64::from(shape.lanes.lane_slots());
    let mut offer = Offer { volumes: Vec::new(), exports: Vec::new(), exported: Vec::new() };
    for unit in 0..shape.lanes.lanes {
        let volume = Volume {
            name: unit_name(unit),
            first_block: u64::from(unit) * blocks,
            blocks,
            read_only: config.ftl.read_only,
        };
        let mut export = nbd::Export::new(volume.name.clone(), blocks * BLOCK_BYTES as u64);
        export.read_only = volume.read_only;
        export.zeroes = false;
        export.block_min = shape.granule_bytes;
        let written = match write {
            WriteUnit::Block => shape.raw_block_bytes() as u32,
            WriteUnit::Page => shape.page_bytes,
        };
        // Preferred sizes are powers of two.
        export.block_preferred = (1 << written.trailing_zeros()).max(shape.granule_bytes);
        // Words of `key=value`: NBD has no other place to tell a client what a unit is.
        export.description = format!(
            "raw unit raw_block_bytes={} page_bytes={} granule_bytes={} write={}",
            shape.raw_block_bytes(),
            shape.page_bytes,
            shape.granule_bytes,
            raw::write_name(write)
        );
        offer.add(volume, export, 0)?;
    }
    Ok(offer)
}

/// The export of a unit.
pub fn unit_name(unit: u32) -> String {
    format!("unit/{unit}")
}

impl Offer {
    fn add(&mut self, volume: Volume, export: nbd::Export, handle: u8) -> Result<(), ServeError> {
        export
            .check()
            .map_err(|e| ServeError::Volumes(format!("volume {:?}: {e}", volume.name)))?;
        self.exports.push(export);
        self.exported.push(Exported { first_block: volume.first_block, handle });
        self.volumes.push(volume);
        Ok(())
    }
}

/// The device's volumes, if they are what the config asks for.
fn check_volumes(found: &Found, split: Split, config: &Config) -> Result<Vec<Volume>, ServeError> {
    let damaged = || ServeError::Volumes("the volume table on the device is damaged".into());
    let report = &found.report;
    let volumes = decode_volumes(&report.label).ok_or_else(damaged)?;
    let end = volumes.iter().map(|volume| volume.first_block + volume.blocks).max().unwrap_or(0);
    if end > split.device_blocks(report.logical_blocks) {
        return Err(damaged());
    }
    let sizes = |name: &str, blocks: u64| {
        let kib = blocks * (BLOCK_BYTES as u64 >> 10);
        let size = if kib.is_multiple_of(1024) {
            format!("{}MiB", kib / 1024)
        } else {
            format!("{kib}KiB")
        };
        format!("{name:?} of {size}")
    };
    let wanted: Vec<_> =
        config.device.volumes.iter().map(|volume| sizes(&volume.name, volume.blocks)).collect();
    let found: Vec<_> = volumes.iter().map(|volume| sizes(&volume.name, volume.blocks)).collect();
    if wanted != found {
        return Err(ServeError::Volumes(format!(
            "volume: the config asks for {}, but the device was formatted with {}: say the same \
             in [[volume]] (or nothing, or in device.capacity), or format another device",
            wanted.join(", "),
            found.join(", ")
        )));
    }
    Ok(volumes)
}
