//! Makes a target of a device file.

use super::parse::CACHE_BYTES_MIN;
use super::{Caching, DeviceSpec, Fast, Flash, FtlChoice, Inside, Members, RawChoice};
use crate::caching::InPlace;
use crate::driver::Sim;
use crate::medium::SimMedium;
use crate::ssd::{Array, Detector, Front, FrontConfig, Indirection, Placement};
use crate::target::{RawTarget, SimTarget, Target};
use flash::{FastTier, Geometry, Health, Instant};
use ftl::raw::{EraseTime, Lanes, RawFormat, RawSettings, WriteUnit};
use ftl::{FormatOptions, Settings, logical_blocks_max};
use nand::{Faults, Layout, Nand};

/// Of every device that a file makes: none outlives its run.
pub(super) const UUID: u128 = 1;

/// How much of a device is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// This share of the blocks of each plane, above 0.
    Share(f64),
    /// So many blocks of each plane.
    BlocksPerPlane(u32),
}

impl Scale {
    /// All of it.
    pub const FULL: Self = Self::Share(1.0);

    fn blocks_per_plane(self, layout: &Layout) -> Result<u32, String> {
        self.of(layout.blocks_per_plane)
    }

    /// Blocks of a plane, or bands of a lane, where the whole device has so many.
    pub(super) fn of(self, full: u32) -> Result<u32, String> {
        match self {
            Self::BlocksPerPlane(blocks) if blocks > 0 => Ok(blocks),
            Self::Share(share) if share > 0.0 && share <= 1024.0 => {
                Ok((f64::from(full) * share).round().max(1.0) as u32)
            }
            Self::BlocksPerPlane(_) => {
                Err("0 blocks of each plane: must be above 0, for example 64".into())
            }
            Self::Share(share) => Err(format!(
                "a scale of {share}: must be above 0 and at most 1024, for example 0.01"
            )),
        }
    }
}

impl DeviceSpec {
    /// The least scale, from `blocks_min` blocks of each plane up to the full device, at which it
    /// offers `bytes`; `Err` says how many it has.
    pub fn scale_for(&self, bytes: u64, blocks_min: u32) -> Result<Scale, String> {
        let wrong = |why: String| format!("device {:?}: {why}", self.name);
        let (flash, geometry) = self.flash_geometry().map_err(wrong)?;
        let full = flash.layout.blocks_per_plane;
        let offers = |blocks_per_unit| {
            let geometry = resized(&geometry, blocks_per_unit);
            self.offers(&geometry).filter(|_| geometry.validate().is_ok())
        };
        let enough = |blocks: u32| offers(blocks).is_some_and(|offered| offered >= bytes);
        if !enough(full) {
            let has = offers(full).unwrap_or(0);
            return Err(wrong(format!("has {has} bytes in full, and {bytes} are wanted")));
        }
        let (mut few, mut many) = (blocks_min.min(full).saturating_sub(1), full);
        while many - few > 1 {
            let middle = few + (many - few) / 2;
            if enough(middle) { many = middle } else { few = middle }
        }
        Ok(Scale::BlocksPerPlane(many))
    }

    /// The flash of the device, or of a member, and its shape at full size.
    fn flash_geometry(&self) -> Result<(&Flash, Geometry), String> {
        match &self.inside {
            Inside::Ftl(flash, _) | Inside::Raw(flash, _) => {
                let nand = nand_of(flash, &flash.layout, Faults::default())?;
                Ok((flash, nand.geometry()))
            }
            Inside::Array(members) => members.member.flash_geometry(),
            Inside::Pool(_) => {
                Err("a pool has no flash of its own; name one of its size, or another device"
                    .into())
            }
        }
    }

    /// Bytes that clients may address if the flash has this shape; `None` if it is too small.
    fn offers(&self, geometry: &Geometry) -> Option<u64> {
        let (health, block) = (Health::default(), flash::BLOCK_BYTES as u64);
        match &self.inside {
            Inside::Ftl(_, choice) => {
                let (wanted, max) =
                    logical_blocks(geometry, &health, choice.utilization, &choice.settings);
                (wanted > 0 && wanted <= max).then_some(u64::from(wanted) * block)
            }
            Inside::Raw(_, choice) => {
                let format = raw_format(choice, geometry, &health);
                let lanes = Lanes::of_format(geometry, &health, &format).ok()?;
                Some(u64::from(lanes.logical_blocks()) * block)
            }
            Inside::Array(members) => {
                let bytes = members.member.offers(geometry)?;
                let used = bytes - bytes.checked_rem(members.chunk_bytes).unwrap_or(0);
                Some(used * u64::from(members.count))
            }
            Inside::Pool(_) => None,
        }
    }

    /// Makes the device, formatted and empty; formatting took some of its time. `seed` is that of its policies
    /// and, in an array, makes the faults of the members differ. `Err` says what is wrong and what
    /// would work.
    pub fn build(
        &self,
        scale: Scale,
        faults: &Faults,
        seed: u64,
    ) -> Result<Box<dyn Target>, String> {
        self.build_inside(scale, faults, seed)
            .and_then(|behind| -> Result<Box<dyn Target>, String> {
                Ok(match &self.caching {
                    Some(caching) => Box::new(cached(behind, caching)?),
                    None => behind,
                })
            })
            .map_err(|why| format!("device {:?}: {why}", self.name))
    }

    fn build_inside(
        &self,
        scale: Scale,
        faults: &Faults,
        seed: u64,
    ) -> Result<Box<dyn Target>, String> {
        match &self.inside {
            Inside::Ftl(flash, choice) => {
                let target = ftl_target(flash, choice, scale, faults, seed)?;
                let mut front = scaled(&self.front, flash, scale)?;
                if let Some(placement) = &mut front.placement {
                    placement.unit_bytes = reclaim_unit(&target, placement)?;
                }
                let inside: Box<dyn Target> = match &self.indirection {
                    Some(config) => Box::new(Indirection::new(target, config.clone())),
                    None => Box::new(target),
                };
                if front.is_transparent() {
                    return Ok(inside);
                }
                let drive = Front::new(inside, front);
                Ok(match &self.host_streams {
                    Some(stream) => Box::new(Detector::new(drive, stream)?),
                    None => Box::new(drive),
                })
            }
            Inside::Raw(flash, choice) => {
                let target = raw_target(flash, choice, scale, faults)?;
                let front = scaled(&self.front, flash, scale)?;
                Ok(if front.is_transparent() {
                    Box::new(target)
                } else {
                    Box::new(Front::new(target, front))
                })
            }
            Inside::Pool(choice) => {
                if faults.factory_bad > 0.0 {
                    return Err("factory_bad: a pool's bands are never bad; leave it out".into());
                }
                Ok(Box::new(choice.build(scale, seed)?))
            }
            Inside::Array(members) => {
                let array = array(members, scale, faults, seed)?;
                Ok(if self.front.is_transparent() {
                    Box::new(array)
                } else {
                    Box::new(Front::new(array, self.front.clone()))
                })
            }
        }
    }
}

/// Fewest lines of a cache: commands of a few MiB find room.
const LINES_MIN: u64 = 4096;

/// A cache before what is built already.
fn cached(behind: Box<dyn Target>, caching: &Caching) -> Result<Cached, String> {
    let Fast { profile, units, share } = &caching.fast;
    let blocks = (behind.flash_bytes() as f64 * share) as u64 / flash::BLOCK_BYTES as u64;
    if blocks < LINES_MIN {
        return Err(format!(
            "caching.share = {share}: makes {blocks} lines of so small a device, and at least \
             {LINES_MIN} are needed; give the device more blocks a plane"
        ));
    }
    let fast = InPlace::new(profile, *units, blocks, behind.now());
    Ok(Cached::new(fast, behind, caching.config.clone()))
}

type Cached = crate::caching::Caching<InPlace, Box<dyn Target>>;

fn array(
    members: &Members,
    scale: Scale,
    faults: &Faults,
    seed: u64,
) -> Result<Array<Box<dyn Target>>, String> {
    let built = (0..u64::from(members.count)).map(|number| {
        let faults = Faults { seed: faults.seed.wrapping_add(number), ..faults.clone() };
        members.member.build(scale, &faults, seed.wrapping_add(number))
    });
    Array::new(built.collect::<Result<_, _>>()?, members.chunk_bytes)
}

/// The flash of a device, with what stands before it, at this size.
fn nand_of(flash: &Flash, layout: &Layout, faults: Faults) -> Result<Nand, String> {
    let Some(fast) = &flash.fast else { return Nand::new(&flash.profile, layout, faults) };
    let slow = f64::from(layout.channels * layout.dies_per_channel);
    let blocks = slow * f64::from(layout.blocks_per_plane) * fast.share;
    let blocks_per_unit = (blocks / f64::from(fast.units)).round() as u32;
    let tier = FastTier {
        units: fast.units,
        blocks_per_unit: blocks_per_unit.clamp(1, layout.blocks_per_plane),
    };
    Nand::tiered(&flash.profile, layout, &fast.profile, tier, faults)
}

/// A device of this shape with so many blocks in each unit, its fast tier as large in proportion.
fn resized(geometry: &Geometry, blocks_per_unit: u32) -> Geometry {
    let full = u64::from(geometry.blocks_per_unit.max(1));
    let fast = u64::from(geometry.fast.blocks_per_unit) * u64::from(blocks_per_unit);
    // A fast tier has a block in each unit, however small the device.
    let fast = (fast.div_ceil(full) as u32).min(blocks_per_unit);
    let fast = FastTier { blocks_per_unit: fast, ..geometry.fast };
    Geometry { blocks_per_unit, fast, ..*geometry }
}

/// Bytes of a reclaim unit. `Err` if the drive cannot keep open what its identifiers name: it would
/// not say so, and its figures would be those of another.
fn reclaim_unit(target: &SimTarget, placement: &Placement) -> Result<u64, String> {
    let sim = target.sim();
    let streams = sim.ftl().status().streams;
    let offered = streams.last().map_or(0, |status| status.handles_host);
    if offered < placement.handles_inside() {
        return Err(format!(
            "placement.handles = {}: with so few spare blocks its FTL can keep {offered} handles \
             apart; lower it, or give the device more blocks a plane or more over-provisioning",
            placement.handles
        ));
    }
    Ok(u64::from(sim.medium().geometry().slots_per_block()) * flash::BLOCK_BYTES as u64)
}

/// The cache shrinks as the flash does.
fn scaled(front: &FrontConfig, flash: &Flash, scale: Scale) -> Result<FrontConfig, String> {
    let mut front = front.clone();
    let full = f64::from(flash.layout.blocks_per_plane);
    let share = f64::from(scale.blocks_per_plane(&flash.layout)?) / full;
    if let Some(cache) = &mut front.cache {
        let bytes = (cache.bytes as f64 * share) as u64;
        cache.bytes = (bytes - bytes % 4096).max(CACHE_BYTES_MIN);
    }
    Ok(front)
}

/// How raw units are made. Without a share to spare, as few blocks are kept back as these bad blocks
/// and the lane records take on the worst unit.
fn raw_format(choice: &RawChoice, geometry: &Geometry, health: &Health) -> RawFormat {
    let with = |spare| RawFormat { gang: choice.gang, spare, uuid: UUID, label: Vec::new() };
    if choice.spare > 0.0 {
        return with(choice.spare);
    }
    let blocks = f64::from(geometry.blocks_per_unit);
    // Half a block less, because a share of blocks is rounded up.
    let formats = (1..geometry.blocks_per_unit).map(|kept| with((f64::from(kept) - 0.5) / blocks));
    let mut works = formats.filter(|format| Lanes::of_format(geometry, health, format).is_ok());
    works.next().unwrap_or_else(|| with(choice.spare))
}

fn raw_target(
    flash: &Flash,
    choice: &RawChoice,
    scale: Scale,
    faults: &Faults,
) -> Result<RawTarget, String> {
    let layout =
        Layout { blocks_per_plane: scale.blocks_per_plane(&flash.layout)?, ..flash.layout.clone() };
    let nand = nand_of(flash, &layout, faults.clone())?;
    let medium = SimMedium::nand(nand);
    let format = raw_format(choice, medium.geometry(), &medium.health());
    let settings = RawSettings {
        write: if choice.write == "page" { WriteUnit::Page } else { WriteUnit::Block },
        erase: if choice.erase == "background" { EraseTime::Background } else { EraseTime::Now },
        read_granule: choice.read_granule,
        suspensions_max: choice.suspensions_max,
        idle_ns: choice.idle_ns,
        ..RawSettings::default()
    };
    settings.validate(medium.geometry())?;
    let failed = |failure: crate::driver::Failure| failure.to_string();
    let mut sim = Sim::format_raw(medium, format, settings, Instant(0)).map_err(failed)?;
    sim.run_until_ready().map_err(failed)?;
    Ok(RawTarget::raw(sim))
}

fn ftl_target(
    flash: &Flash,
    choice: &FtlChoice,
    scale: Scale,
    faults: &Faults,
    seed: u64,
) -> Result<SimTarget, String> {
    let blocks_per_plane = scale.blocks_per_plane(&flash.layout)?;
    let layout = Layout { blocks_per_plane, ..flash.layout.clone() };
    let settings = Settings { seed, ..choice.settings.clone() };
    let nand = nand_of(flash, &layout, faults.clone())?;
    let medium = SimMedium::nand_of_addresses(nand, UUID);
    settings.validate(medium.geometry())?;
    let health = medium.health();
    let (wanted, max) = logical_blocks(medium.geometry(), &health, choice.utilization, &settings);
    if wanted == 0 || wanted > max {
        return Err(too_small(medium.geometry(), choice, (wanted, max)));
    }
    let options = FormatOptions { logical_blocks: wanted, uuid: UUID, label: Vec::new() };
    let failed = |failure: crate::driver::Failure| failure.to_string();
    let mut sim = Sim::format(medium, options, settings, Instant(0)).map_err(failed)?;
    sim.run_until_ready().map_err(failed)?;
    Ok(SimTarget::new(sim))
}

/// Logical blocks wanted, and the most that the FTL can offer.
fn logical_blocks(
    geometry: &Geometry,
    health: &Health,
    utilization: f64,
    settings: &Settings,
) -> (u32, u32) {
    let bad = health.bad_blocks.iter().filter(|&&block| !geometry.is_fast(block)).count();
    let good = u64::from(geometry.capacity_blocks()) - bad as u64;
    let slots = good * u64::from(geometry.slots_per_block());
    ((slots as f64 * utilization) as u32, logical_blocks_max(geometry, health, settings))
}

fn too_small(geometry: &Geometry, choice: &FtlChoice, (wanted, max): (u32, u32)) -> String {
    let blocks = geometry.blocks_per_unit;
    // Steps of an eighth; on an impossible file none works.
    let sizes = std::iter::successors(Some(blocks), |size| Some(size + size / 8 + 1));
    let works = sizes.take(100).find(|&blocks_per_unit| {
        let geometry = resized(geometry, blocks_per_unit);
        let health = Health::default();
        if geometry.validate().is_err() {
            return false;
        }
        let (wanted, max) =
            logical_blocks(&geometry, &health, choice.utilization, &choice.settings);
        wanted > 0 && wanted <= max
    });
    let mend = match works {
        Some(size) => format!("{size} blocks a plane would do"),
        None => "lower the utilization".into(),
    };
    format!(
        "too small: with {blocks} blocks a plane the FTL can offer {max} blocks of 4 KiB, and a \
         utilization of {:.4} wants {wanted}; {mend}",
        choice.utilization
    )
}
