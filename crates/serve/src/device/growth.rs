//! A device that becomes larger: it gets units behind those that it has, in every shard, and the logical blocks that these
//! are for. First its files have room for them, then its description tells of them, then the next mount takes them
//! (`ftl`): whatever a cut leaves of that, it is the one device or the other, and the next open for writing goes on with it.
//!
//! Invariant: nothing that was there moves, and no file has a use for what was added before the description tells of it.

use super::direct;
use super::own::{Description, Flash, Own};
use super::places::places;
use super::{Device, DeviceError, Kind, Mode, Shape, folder, size_text};
use crate::volume::{STRIPE_BLOCKS, Split};
use ftl::Settings;
use nand::BlockRecord;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How large a device is to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wish {
    /// So many channels over all shards, of a file or disk units; and as many logical blocks as keep its over-provisioning.
    Channels(u32),
    /// So many logical blocks, and as many channels as keep its over-provisioning.
    Blocks(u64),
}

/// Before and after.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Growth {
    /// Channels over all shards, of a file or disk units.
    pub channels: (u32, u32),
    /// Logical blocks of the device.
    pub blocks: (u64, u64),
}

/// Channels that are tried beyond those that a wish for blocks should need.
const TRIES: u32 = 64;
/// Channels over all shards that a device may have, as when it is made.
const CHANNELS_MAX: u32 = 1024;
/// Times that a file or disk may grow: its header has room for more.
const TIMES_MAX: usize = 64;

/// What is said of a device that must not be written.
pub fn read_only(kind: &Kind, why: &str) -> DeviceError {
    let mend = "mend that first, or copy what can be read to a new device; nothing was written";
    DeviceError::invalid(path_of(kind), format!("can only be read: {why}"), mend)
}

fn path_of(kind: &Kind) -> &Path {
    match kind {
        Kind::Memory { .. } => Path::new("memory"),
        Kind::Nand { path, .. } | Kind::File { path } => path,
    }
}

impl Device {
    /// Logical blocks that each shard has, as far as it is described; 0 of a device in memory.
    pub(crate) fn logical_blocks(&self) -> u32 {
        self.own.as_ref().map_or(0, |own| own.shape().logical_blocks)
    }

    /// `Err` if the device is of a kind that does not grow.
    pub(crate) fn expect_to_grow(kind: &Kind) -> Result<(), DeviceError> {
        let path = path_of(kind);
        if !Self::exists(kind) && !matches!(kind, Kind::Memory { .. }) {
            // It knows best what is missing.
            Own::claim(kind, Mode::ReadOnly)?;
        }
        let made = Self::description(kind)?;
        let is_zoned = matches!(kind, Kind::File { .. }) && direct::is_zoned(path)?;
        let (reason, mend) = if matches!(kind, Kind::Memory { .. }) {
            ("is gone with its server", "make it as large as it is to be")
        } else if made.get("mode").and_then(toml::Value::as_str) == Some("raw") {
            ("has raw units, which a host has numbered", "make a second device beside it")
        } else if made.contains_key("fast") {
            let mend =
                "detach it (`weir ctl fast detach`), let the device grow, and attach it again";
            ("has a fast tier, whose units come behind all others", mend)
        } else if is_zoned {
            ("is a zoned disk, whose zones are all in use", "make a second device beside it")
        } else {
            return Ok(());
        };
        Err(DeviceError::invalid(path, reason, mend))
    }

    /// Goes on with a growth that was cut off before the device was described anew; else changes nothing.
    ///
    /// # Errors
    /// It cannot be opened for writing.
    pub fn resume_growth(kind: &Kind) -> Result<(), DeviceError> {
        match kind {
            Kind::Nand { path, .. } if folder::is_growing(path) => {
                Own::claim(kind, Mode::ReadWrite).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Makes room for a larger device, whose snapshots have so many entries in the map of a shard, and describes it; the
    /// next mount for writing makes it that.
    pub(crate) fn grow(
        kind: &Kind,
        wish: Wish,
        (settings, shadow_blocks): (&Settings, u32),
    ) -> Result<Growth, DeviceError> {
        let mut own = Own::claim(kind, Mode::ReadWrite)?;
        let flash = own.flash();
        let (shards, before) = (flash.shards, flash.shape);
        let after = larger(&own.path, (&flash, shadow_blocks), wish, settings)?;
        if after.channels > before.channels {
            own.grow(after)?;
        }
        let split = Split::new(shards as usize);
        let blocks = [before, after].map(|shape| split.device_blocks(shape.logical_blocks));
        Ok(Growth {
            channels: (before.channels * shards, after.channels * shards),
            blocks: (blocks[0], blocks[1]),
        })
    }
}

impl Own {
    fn grow(&mut self, to: Shape) -> Result<(), DeviceError> {
        match &mut self.what {
            Description::Folder(description) => {
                let larger = folder::Description { shape: to, ..(**description).clone() };
                folder::grow(&self.path, description, &larger)?;
                **description = larger;
            }
            Description::File(parts) => {
                let mut larger = parts.clone();
                larger.added.push(to.channels - parts.shape.channels);
                larger.shape = to;
                extend(&self.path, &self.lock, &larger)?;
                *parts = larger;
                self.commit()?;
            }
        }
        Ok(())
    }
}

/// Makes room in a file or on a disk for what was added last, and writes its records.
fn extend(path: &Path, file: &File, parts: &direct::Parts) -> Result<(), DeviceError> {
    if parts.added.len() > TIMES_MAX {
        let reason = format!("has grown {TIMES_MAX} times, and its header takes no more");
        return Err(DeviceError::invalid(path, reason, "copy it to a new device"));
    }
    let (places, bytes) = places(&parts.nand(None)?.geometry(), parts, 0);
    if let Some(found) = direct::disk_bytes(file, path)? {
        if found < bytes {
            let reason = format!("has {found} bytes where the larger device needs {bytes}");
            let mend = "make the disk larger, or say fewer --channels or a smaller --capacity";
            return Err(DeviceError::invalid(path, reason, mend));
        }
    } else if file.metadata().map_err(DeviceError::io(path, "size"))?.len() < bytes {
        file.set_len(bytes).map_err(DeviceError::io(path, "size"))?;
    }
    for added in places.iter().filter_map(|place| place.extents.last()) {
        let records = BlockRecord::FRESH.encode().repeat(added.blocks as usize);
        let written = file.write_all_at(&records, added.records_at);
        written.map_err(DeviceError::io(path, "write the records"))?;
    }
    file.sync_all().map_err(DeviceError::io(path, "sync"))
}

/// The shape of each shard that the wish comes to; the same if that is what there is.
fn larger(
    path: &Path,
    flash: (&Flash, u32),
    wish: Wish,
    settings: &Settings,
) -> Result<Shape, DeviceError> {
    let Flash { shape, shards, .. } = *flash.0;
    let split = Split::new(shards as usize);
    match wish {
        Wish::Channels(channels) if !channels.is_multiple_of(shards) => {
            Err(DeviceError::Options(format!(
                "--channels {channels}: the device has {shards} shards, and as many channels in each: say a multiple, \
                 for example {}",
                (shape.channels + 1) * shards
            )))
        }
        Wish::Channels(channels) if channels < shape.channels * shards => {
            let reason = format!("has {} channels, which stay", shape.channels * shards);
            Err(DeviceError::invalid(path, reason, "say more --channels than that"))
        }
        Wish::Channels(channels) if channels > CHANNELS_MAX => Err(too_many(path, channels.into())),
        Wish::Channels(channels) => {
            let channels = channels / shards;
            let logical_blocks = offered(flash, channels, settings)?;
            Ok(Shape { channels, logical_blocks, ..shape })
        }
        // Whole stripes are compared: what was said once is no less the next time.
        Wish::Blocks(blocks) if split.shard_blocks(blocks) < u64::from(shape.logical_blocks) => {
            let has = size_text(split.device_blocks(shape.logical_blocks));
            let reason = format!("has a capacity of {has}, and grows only");
            Err(DeviceError::invalid(path, reason, "say a larger --capacity"))
        }
        Wish::Blocks(blocks) => {
            let wanted = u32::try_from(split.shard_blocks(blocks));
            let logical_blocks = wanted.map_err(|_| too_large())?;
            let channels = channels_for(path, flash, logical_blocks, settings)?;
            Ok(Shape { channels, logical_blocks, ..shape })
        }
    }
}

/// The fewest channels that offer so many logical blocks.
fn channels_for(
    path: &Path,
    flash: (&Flash, u32),
    logical_blocks: u32,
    settings: &Settings,
) -> Result<u32, DeviceError> {
    let Flash { shape, shards, .. } = *flash.0;
    let Shape { channels, logical_blocks: now, .. } = shape;
    // As many times the channels are enough, and a few less may be: of a larger device the FTL needs a smaller part.
    let times = (u64::from(logical_blocks) * u64::from(channels)).div_ceil(u64::from(now));
    let most = CHANNELS_MAX / shards;
    let (mut few, mut many) = (channels, u32::try_from(times).unwrap_or(u32::MAX));
    while many > most || offered(flash, many, settings)? < logical_blocks {
        if many >= most || u64::from(many) >= times + u64::from(TRIES) {
            return Err(too_many(path, times * u64::from(shards)));
        }
        // Whole stripes, or blocks that are bad from the start.
        many += 1;
        few = many;
    }
    while few < many {
        let middle = few + (many - few) / 2;
        let suffices = offered(flash, middle, settings)? >= logical_blocks;
        if suffices { many = middle } else { few = middle + 1 }
    }
    Ok(many)
}

fn too_many(path: &Path, channels: u64) -> DeviceError {
    let reason =
        format!("would have some {channels} channels, and a device has {CHANNELS_MAX} at most");
    DeviceError::invalid(path, reason, "copy it to a new device, whose channels are larger")
}

fn too_large() -> DeviceError {
    DeviceError::Options(
        "--capacity: more than the shards of this device can address, 16 TiB each: say less".into(),
    )
}

/// Logical blocks that each shard offers with so many channels and the over-provisioning that it has, where snapshots have
/// so many entries in its map.
fn offered(
    (flash, shadow_blocks): (&Flash, u32),
    channels: u32,
    settings: &Settings,
) -> Result<u32, DeviceError> {
    let now = flash.shape;
    if channels == now.channels {
        return Ok(now.logical_blocks);
    }
    let mut least = u32::MAX;
    for shard in 0..flash.shards {
        let most = |channels| -> Result<u64, DeviceError> {
            let shape = Shape { channels, ..now };
            let nand = shape.nand(&flash.profile, &flash.faults, shard, None)?;
            nand.geometry().validate().map_err(DeviceError::Options)?;
            let (geometry, health) = (nand.geometry(), nand.health());
            let most = ftl::logical_blocks_beside(&geometry, &health, settings, shadow_blocks);
            Ok(most.into())
        };
        let (before, after) = (most(now.channels)?, most(channels)?);
        let blocks = u64::from(now.logical_blocks) * after / before.max(1);
        least = least.min(u32::try_from(blocks.min(after)).unwrap_or(u32::MAX));
    }
    let whole = if flash.shards > 1 { least - least % STRIPE_BLOCKS as u32 } else { least };
    Ok(whole.max(now.logical_blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nand::{Faults, Profile};

    fn flash(shards: u32) -> Flash {
        let shape = Shape {
            channels: 4,
            dies_per_channel: 1,
            blocks_per_plane: 40,
            logical_blocks: 6 * 1024,
        };
        let profile = Profile::builtin("slc").unwrap();
        Flash { shape, profile, faults: Faults::default(), shards }
    }

    fn wished(shards: u32, wish: Wish) -> Result<(u32, u32), String> {
        let larger = larger(Path::new("dev"), (&flash(shards), 0), wish, &Settings::default());
        larger.map(|it| (it.channels, it.logical_blocks)).map_err(|error| error.to_string())
    }

    #[test]
    fn over_provisioning_stays_as_it_is() {
        let (channels, blocks) = wished(1, Wish::Channels(8)).unwrap();
        assert_eq!(channels, 8);
        let times = f64::from(blocks) / f64::from(6 * 1024);
        assert!((2.0..2.1).contains(&times), "the FTL takes less of more: {times}");
        assert_eq!(wished(1, Wish::Blocks(u64::from(blocks))), Ok((8, blocks)));
        let (channels, _) = wished(1, Wish::Blocks(u64::from(blocks) + 1)).unwrap();
        assert_eq!(channels, 9);
        let (_, of_each) = wished(2, Wish::Channels(16)).unwrap();
        assert_eq!(of_each, blocks - blocks % 256, "whole stripes");
    }

    #[test]
    fn what_is_no_growth_is_nothing_or_refused() {
        let now = (4, 6 * 1024);
        assert_eq!(wished(1, Wish::Channels(4)), Ok(now));
        assert_eq!(wished(1, Wish::Blocks(6 * 1024)), Ok(now));
        let (_, of_each) = wished(1, Wish::Blocks(6 * 1024 + 1)).unwrap();
        assert_eq!(of_each, 6 * 1024 + 1);
        assert_eq!(wished(2, Wish::Blocks(12 * 1024 - 511)), Ok(now), "up to whole stripes");
        for (shards, wish, words) in [
            (2, Wish::Blocks(12 * 1024 - 512), "has a capacity of 48MiB"),
            (2, Wish::Channels(9), "for example 10"),
            (1, Wish::Channels(3), "has 4 channels"),
            (1, Wish::Blocks(6 * 1024 - 1), "grows only"),
            (1, Wish::Blocks(1 << 33), "16 TiB"),
            (1, Wish::Blocks(1 << 31), "1024 at most"),
            (1, Wish::Channels(u32::MAX), "1024 at most"),
        ] {
            let refused = wished(shards, wish).unwrap_err();
            assert!(refused.contains(words), "{wish:?}: {refused}");
        }
    }
}
