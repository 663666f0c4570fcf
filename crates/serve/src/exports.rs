//! What a server offers to its clients: the volumes of a block device, or the units of a raw one. Volumes come and go
//! while it is served: then there is another [`Offered`], which every shard takes over from its next turn on.

use crate::config::Config;
use crate::device::{Stretch, Table, Volume, raw, size_text, volumes_of};
use crate::nbd;
use crate::runtime::shard::RawShape;
use crate::server::{Found, ServeError};
use crate::volume::{Limiter, Split};
use flash::BLOCK_BYTES;
use ftl::raw::WriteUnit;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A volume, for the shards.
#[derive(Clone, Debug)]
pub struct Exported {
    /// By which requests name it, which no other volume of the device ever has: its number less one.
    pub volume: usize,
    /// Where its blocks are, in their order.
    pub stretches: Vec<Stretch>,
    /// How many it has.
    pub blocks: u64,
    /// The placement handle its writes go to.
    pub handle: u8,
    /// What keeps its limits, if it has some.
    pub limiter: Option<Arc<Limiter>>,
    /// Writes of up to so many blocks that lie in one piece are seen whole or not at all.
    pub atomic_blocks: u32,
}

impl Exported {
    /// The first of the device's blocks where the volume's blocks from `block` on are, and how many of `blocks` follow
    /// it there. `block` is one of the volume's.
    pub fn run(&self, block: u64, blocks: u64) -> Stretch {
        let mut inside = block;
        for stretch in &self.stretches {
            if inside < stretch.blocks {
                let blocks = blocks.min(stretch.blocks - inside);
                return Stretch { first: stretch.first + inside, blocks };
            }
            inside -= stretch.blocks;
        }
        unreachable!("block {block} is beyond a volume of {}", self.blocks)
    }

    /// The first block of one that lies in one piece.
    pub fn first_block(&self) -> u64 {
        self.stretches.first().map_or(0, |stretch| stretch.first)
    }
}

/// What clients may open. All in the same order, that of their numbers.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    /// For people.
    pub volumes: Vec<Volume>,
    /// For the protocol.
    pub exports: Arc<[nbd::Export]>,
    /// For the shards.
    pub exported: Vec<Exported>,
    /// Of those that are snapshots, which volume each is of; by numbers.
    pub snapshots: BTreeMap<u32, u32>,
}

impl Offered {
    /// The volume that one is, or of which it is a snapshot.
    pub fn volume_of<'a>(&'a self, volume: &'a Volume) -> &'a Volume {
        let number = self.snapshots.get(&volume.number);
        let found = number.and_then(|number| self.volumes.iter().find(|of| of.number == *number));
        found.unwrap_or(volume)
    }

    /// What requests for `volume` are about, if it is there.
    #[inline]
    pub fn get(&self, volume: usize) -> Option<&Exported> {
        match self.exported.get(volume) {
            // As long as none has gone.
            Some(exported) if exported.volume == volume => Some(exported),
            _ => {
                let at = self.exported.binary_search_by_key(&volume, |exported| exported.volume);
                Some(&self.exported[at.ok()?])
            }
        }
    }
}

/// What is on the device, if it is what the config asks for; and the table, unless these are raw units.
pub(crate) fn offer(
    found: &Found,
    split: Split,
    config: &mut Config,
) -> Result<(Offered, Option<Table>), ServeError> {
    match &found.raw {
        Some(shape) => Ok((units(shape, config, found.report.uuid)?, None)),
        None => {
            let table = check_volumes(found, split, config)?;
            let offered = volumes(&table, config, (&Offered::default(), found.report.uuid))?;
            Ok((offered, Some(table)))
        }
    }
}

/// The volumes of a table, as a config has them served on a device of this uuid. Limits that are as they were `before` go on.
pub(crate) fn volumes(
    table: &Table,
    config: &Config,
    (before, device): (&Offered, u128),
) -> Result<Offered, ServeError> {
    let mut all = Vec::new();
    for mut volume in table.volumes.iter().cloned() {
        let wish = config.wish(&volume.name);
        let wished = wish.and_then(|wish| wish.read_only).unwrap_or(volume.read_only);
        volume.read_only = wished || config.ftl.read_only;
        volume.limits = wish.and_then(|wish| wish.limits).unwrap_or(volume.limits);
        let limits = volume.limits;
        let known = before.get(volume.number as usize - 1);
        let known = known.and_then(|known| known.limiter.clone());
        let same = known.filter(|limiter| limiter.limits() == limits);
        let limiter = same.or_else(|| Limiter::of(limits).map(Arc::new));
        let atomic_blocks = wish.map_or(1, |wish| wish.atomic_blocks);
        all.push((volume, limiter, atomic_blocks));
    }
    let of = table.snapshots.iter().map(|snapshot| (snapshot.number, snapshot.volume));
    let snapshots: BTreeMap<u32, u32> = of.collect();
    for snapshot in &table.snapshots {
        // Who reads it counts among those who use its volume.
        let volume = all.iter().find(|(volume, ..)| volume.number == snapshot.volume);
        let (limits, limiter) =
            volume.map(|(volume, limiter, _)| (volume.limits, limiter.clone())).unwrap_or_default();
        let (number, stretches) = (snapshot.number, snapshot.stretches.clone());
        let (name, uuid, read_only) = (table.name_of(snapshot), Some(snapshot.uuid), true);
        let origin = None;
        let volume = Volume { number, name, uuid, stretches, read_only, limits, origin };
        all.push((volume, limiter, 1));
    }
    all.sort_by_key(|(volume, ..)| volume.number);
    let mut offer = Offer::default();
    for (volume, limiter, atomic_blocks) in all {
        let mut export =
            nbd::Export::new(volume.name.clone(), volume.blocks() * BLOCK_BYTES as u64);
        export.read_only = volume.read_only;
        // Whatever its name is, no other volume is that, here or elsewhere.
        export.description = format!("volume={} device={device:032x}", volume.number);
        let handle = ((volume.number - 1) % u32::from(config.ftl.handles)) as u8;
        offer.add(volume, export, handle)?;
        if let Some(added) = offer.exported.last_mut() {
            (added.limiter, added.atomic_blocks) = (limiter, atomic_blocks);
        }
    }
    Ok(Offered { snapshots, ..offer.into() })
}

/// One export a unit, so that its queue and its faults are its own.
fn units(shape: &RawShape, config: &Config, device: u128) -> Result<Offered, ServeError> {
    let write = config.device.raw.as_ref().map(|raw| raw.settings.write).unwrap_or_default();
    raw::fits_request(&shape.lanes, write).map_err(ServeError::Volumes)?;
    let blocks = u64::from(shape.lanes.lane_slots());
    let mut offer = Offer::default();
    for unit in 0..shape.lanes.lanes {
        let stretch = Stretch { first: u64::from(unit) * blocks, blocks };
        let volume = Volume::made(unit + 1, unit_name(unit), stretch, config.ftl.read_only);
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
            "raw unit raw_block_bytes={} page_bytes={} granule_bytes={} write={} device={device:032x}",
            shape.raw_block_bytes(),
            shape.page_bytes,
            shape.granule_bytes,
            raw::write_name(write)
        );
        offer.add(volume, export, 0)?;
    }
    Ok(offer.into())
}

/// The export of a unit.
pub fn unit_name(unit: u32) -> String {
    format!("unit/{unit}")
}

/// An [`Offered`] to be.
#[derive(Default)]
struct Offer {
    volumes: Vec<Volume>,
    exports: Vec<nbd::Export>,
    exported: Vec<Exported>,
}

impl Offer {
    fn add(
        &mut self,
        volume: Volume,
        mut export: nbd::Export,
        handle: u8,
    ) -> Result<(), ServeError> {
        export
            .check()
            .map_err(|e| ServeError::Volumes(format!("volume {:?}: {e}", volume.name)))?;
        let (stretches, blocks) = (volume.stretches.clone(), volume.blocks());
        export.volume = volume.number as usize - 1;
        let (volume_number, limiter) = (export.volume, None);
        self.exported.push(Exported {
            volume: volume_number,
            stretches,
            blocks,
            handle,
            limiter,
            atomic_blocks: 1,
        });
        self.exports.push(export);
        self.volumes.push(volume);
        Ok(())
    }
}

impl From<Offer> for Offered {
    fn from(offer: Offer) -> Self {
        let Offer { volumes, exports, exported } = offer;
        Self { volumes, exports: exports.into(), exported, ..Self::default() }
    }
}

/// The device's volumes, if they are what the config asks for. Those that were changed since the device was made are
/// what they are, and the config follows.
fn check_volumes(found: &Found, split: Split, config: &mut Config) -> Result<Table, ServeError> {
    let damaged = || ServeError::Volumes("the volume table on the device is damaged".into());
    let report = &found.report;
    let device_blocks = split.device_blocks(report.logical_blocks);
    let table = volumes_of(&report.label, device_blocks).ok_or_else(damaged)?;
    check_capacity(device_blocks, split, config)?;
    if table.changed {
        config.adopt(&table);
        return Ok(table);
    }
    let sizes = |name: &str, blocks: u64| format!("{name:?} of {}", size_text(blocks));
    let wanted: Vec<_> =
        config.device.volumes.iter().map(|volume| sizes(&volume.name, volume.blocks)).collect();
    let found: Vec<_> =
        table.volumes.iter().map(|volume| sizes(&volume.name, volume.blocks())).collect();
    if wanted != found {
        return Err(ServeError::Volumes(format!(
            "volume: the config asks for {}, but the device was formatted with {}: say the same \
             in [[volume]] (or nothing, or in device.capacity), or format another device",
            wanted.join(", "),
            found.join(", ")
        )));
    }
    Ok(table)
}

/// Refuses a capacity that is not the device's, whatever became of its volumes.
fn check_capacity(device_blocks: u64, split: Split, config: &Config) -> Result<(), ServeError> {
    let claimed = config.device.blocks_min;
    // Over several shards a device offers whole stripes.
    let made =
        |blocks| split.device_blocks(u32::try_from(split.shard_blocks(blocks)).unwrap_or(u32::MAX));
    if claimed == 0 || made(claimed) == device_blocks {
        return Ok(());
    }
    Err(ServeError::Volumes(format!(
        "capacity: the config says {}, but the device was formatted with {}, and volumes that are made, deleted or \
         resized do not change that: say the same in device.capacity (or nothing, the device knows it), or format \
         another device",
        size_text(claimed),
        size_text(device_blocks)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_that_is_not_the_devices_is_refused_with_both() {
        let check = |text: &str, shards: usize, device_blocks| {
            let text = format!("[device]\nshards = {shards}\n{text}");
            let config = Config::parse(&text, std::path::Path::new(".")).unwrap();
            check_capacity(device_blocks, Split::new(shards), &config)
        };
        let volume = "[[volume]]\nname = \"a\"\nsize = \"4MiB\"\n";
        assert!(check(volume, 1, 9999).is_ok(), "nothing is said");
        assert!(check("capacity = \"64MiB\"\n", 1, 16384).is_ok());
        assert!(check("capacity = \"61MiB\"\n", 4, 16384).is_ok(), "up to whole stripes");
        let refused = check(&format!("capacity = \"64MiB\"\n{volume}"), 1, 8192).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("says 64MiB") && text.contains("with 32MiB"), "{text}");
    }

    #[test]
    fn a_volume_in_pieces_is_found_piece_by_piece() {
        let stretch = |first, blocks| Stretch { first, blocks };
        let stretches = vec![stretch(100, 10), stretch(0, 5), stretch(50, 1)];
        let exported = Exported {
            volume: 0,
            stretches,
            blocks: 16,
            handle: 0,
            limiter: None,
            atomic_blocks: 1,
        };
        assert_eq!(exported.run(0, 16), stretch(100, 10));
        assert_eq!(exported.run(3, 4), stretch(103, 4));
        assert_eq!(exported.run(10, 6), stretch(0, 5));
        assert_eq!(exported.run(14, 2), stretch(4, 1));
        assert_eq!(exported.run(15, 1), stretch(50, 1));
    }

    #[test]
    fn a_snapshot_is_offered_read_only_in_its_place_and_with_the_limits_of_its_volume() {
        let volume = |number, name: &str, first| {
            Volume::made(number, name.into(), Stretch { first, blocks: 1024 }, false)
        };
        let mut table = Table::made(vec![volume(1, "a", 0), volume(2, "b", 1024)]);
        table.volumes[1].limits.iops = 10;
        let (mut table, _) = table.with_snapshot(("b", "x", 5), (4096, 256), &[]).unwrap();
        let room = crate::device::TableLimits { device_blocks: 4096 };
        let (name, blocks) = ("c".into(), 512);
        let made = crate::device::Change::Create { name, blocks, uuid: 1, read_only: false };
        table = table.with(&made, room).unwrap();
        let config = Config::parse("", std::path::Path::new(".")).unwrap();
        let offered = volumes(&table, &config, (&Offered::default(), 7)).unwrap();
        let told: Vec<_> =
            offered.exports.iter().map(|export| (&export.name[..], export.read_only)).collect();
        assert_eq!(told, [("a", false), ("b", false), ("b@x", true), ("c", false)]);
        let snapshot = offered.get(2).unwrap();
        assert_eq!((snapshot.blocks, snapshot.first_block()), (1024, 4096));
        let of_volume = offered.get(1).unwrap().limiter.as_ref().unwrap();
        assert!(Arc::ptr_eq(of_volume, snapshot.limiter.as_ref().unwrap()));
        assert_eq!(offered.volume_of(&offered.volumes[2]).name, "b");
        assert_eq!(offered.volume_of(&offered.volumes[3]).name, "c");
    }

    #[test]
    fn a_volume_is_found_by_what_no_other_is_called() {
        let exported = |volume| Exported {
            volume,
            stretches: Vec::new(),
            blocks: 0,
            handle: 0,
            limiter: None,
            atomic_blocks: 1,
        };
        let of = |volumes: &[usize]| Offered {
            exported: volumes.iter().map(|&volume| exported(volume)).collect(),
            ..Offered::default()
        };
        for (offered, there) in
            [(of(&[0, 1, 2]), vec![0, 1, 2]), (of(&[1, 2, 900]), vec![1, 2, 900])]
        {
            for volume in 0..1000 {
                let found = offered.get(volume).map(|exported| exported.volume);
                assert_eq!(found, there.contains(&volume).then_some(volume));
            }
        }
    }
}
