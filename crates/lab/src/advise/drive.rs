//! The drive that is advised on, and the device that is measured for it.
//!
//! A drive is sized as it is elsewhere: one that is told by its flash as a server makes it, one of a file as
//! its file says. Where the trace touches as much as the drive offers, the drive itself is measured. Where it
//! touches less a device with as much for GC is, by logical block, in shorter blocks: what the FTL keeps for
//! itself and what lies in half-filled open bands weighs more on a small device, so that gets what it
//! lacks on top. An erase is made shorter as the blocks are, so that a byte erased takes its time.

use super::{AdviseError, Choice, Recorded};
use crate::device_file::{DeviceSpec, Flash, FtlChoice, Inside, Scale};
use crate::report::number::bytes;
use crate::target::Target;
use flash::{BLOCK_BYTES, Geometry, Health};
use ftl::policy::stream::{self, Shape};
use ftl::{Settings, blocks_per_unit_for, logical_blocks_max};
use nand::{Faults, Layout, Nand, Profile};

/// Of a drive that is told by its flash alone, unless told otherwise: so large that what the FTL needs
/// for itself is next to nothing.
const CAPACITY_DEFAULT: u64 = 1 << 40;
/// Blocks of each unit of a device that stands for a drive with more, if they can be made short enough.
const BLOCKS_PER_UNIT: u32 = 512;
/// Pages of the shortest block.
const PAGES_MIN: u32 = 6;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    spec: DeviceSpec,
    sizing: Sizing,
    /// What it offers, if that was said.
    capacity: Option<u64>,
}

/// What over-provisioning is in percent of the capacity.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sizing {
    /// Flash beyond the capacity and what the FTL needs for itself.
    OfCapacity,
    /// All flash beyond the capacity, that of the FTL included.
    OfFlash,
}

/// A drive with its flash, under one combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sized {
    /// Its flash.
    pub geometry: Geometry,
    /// What it offers.
    pub logical_blocks: u64,
    /// What the FTL does not need for itself.
    pub slots_left: u64,
}

impl Sized {
    fn new(geometry: Geometry, logical_blocks: u64, settings: &Settings) -> Self {
        let slots_left = logical_blocks_max(&geometry, &Health::default(), settings).into();
        Self { geometry, logical_blocks, slots_left }
    }

    /// Bytes of flash.
    pub fn flash_bytes(&self) -> u64 {
        self.geometry.slots() * BLOCK
    }

    /// Flash by what is offered.
    pub fn flash_share(&self) -> f64 {
        self.geometry.slots() as f64 / self.logical_blocks.max(1) as f64
    }

    /// What is left to GC, in percent of what is offered.
    pub fn percent_left(&self) -> f64 {
        (self.slots_left as f64 / self.logical_blocks.max(1) as f64 - 1.0) * 100.0
    }
}

impl Drive {
    /// The FTL on this flash, without a front, as a server has it; `capacity` in bytes is 1 TiB
    /// unless told.
    pub fn of_flash(profile: Profile, dies: (u32, u32), capacity: Option<u64>) -> Self {
        let (channels, dies_per_channel) = dies;
        let text = format!(
            "name = \"flash\"\nkind = \"ftl\"\nprofile = \"tlc\"\n[ftl]\nover_provisioning = 0.25\n\
             [layout]\nchannels = {channels}\ndies_per_channel = {dies_per_channel}\n\
             blocks_per_plane = 65536\n"
        );
        let mut spec = DeviceSpec::parse(&text).expect("every key is right");
        spec.name.clone_from(&profile.name);
        if let Inside::Ftl(flash, _) = &mut spec.inside {
            flash.profile = profile;
        }
        Self { spec, sizing: Sizing::OfCapacity, capacity }
    }

    /// The device of a file; with a `capacity` in bytes it has so many fewer blocks on each plane.
    pub fn of_file(spec: DeviceSpec, capacity: Option<u64>) -> Self {
        Self { spec, sizing: Sizing::OfFlash, capacity }
    }

    /// Its name and kind.
    pub fn name(&self) -> String {
        format!("{} ({})", self.spec.name, self.spec.kind())
    }

    /// Its flash, if it can be advised on.
    pub(super) fn check(
        &self,
        trace: &Recorded,
        choices: &[Choice<'_>],
    ) -> Result<&Profile, AdviseError> {
        let (flash, _) = self.inside().map_err(AdviseError::Device)?;
        if flash.fast.is_some() {
            return Err(AdviseError::Device(format!(
                "device {:?} has a fast tier, which takes every write first: what is advised is for flash \
                 alone; use a device without one",
                self.spec.name
            )));
        }
        for &choice in choices {
            let sized = self.sized(choice, trace.bytes()).map_err(AdviseError::Device)?;
            let offers = sized.logical_blocks * BLOCK;
            if trace.bytes() > offers {
                return Err(AdviseError::Device(format!(
                    "device {:?} offers {} with {} % of over-provisioning and the trace \
                     touches {}: choose a larger device or --capacity, or take a part of the address \
                     space, such as --sample 1/{}",
                    self.spec.name,
                    bytes(offers),
                    choice.op_percent,
                    bytes(trace.bytes()),
                    trace.facts.sample * 2 * trace.bytes().div_ceil(offers.max(1))
                )));
            }
        }
        Ok(&flash.profile)
    }

    fn inside(&self) -> Result<(&Flash, &FtlChoice), String> {
        match &self.spec.inside {
            Inside::Ftl(flash, ftl) => Ok((flash, ftl)),
            Inside::Raw(..) => Err(format!(
                "device {:?} has raw units and no FTL, so no GC to choose: use a device with one, such as \
                 tssd or gen3, or a flash profile, such as tlc",
                self.spec.name
            )),
            Inside::Pool(_) => Err(format!(
                "device {:?} is a volume of a pool: its GC is that of any device with an FTL, so use one, \
                 such as tssd or gen3, or a flash profile, such as tlc",
                self.spec.name
            )),
            Inside::Array(members) => Err(format!(
                "device {:?} consists of several: use one of them, {}",
                self.spec.name, members.member.name
            )),
        }
    }

    /// The drive in full, under this combination; `bytes` is what it has to offer at least, if nobody
    /// said.
    pub fn sized(&self, choice: Choice<'_>, bytes: u64) -> Result<Sized, String> {
        let (flash, ftl) = self.inside()?;
        let geometry = geometry_of(&flash.profile, units_of(&flash.layout))?;
        let settings = settings_of(ftl, choice);
        if self.sizing == Sizing::OfCapacity {
            let logical_blocks = self.capacity.unwrap_or(CAPACITY_DEFAULT.max(bytes)) / BLOCK;
            let wanted = logical_blocks as f64 * (100.0 + choice.op_percent) / 100.0;
            let health = Health::default();
            let found = blocks_per_unit_for(&geometry, wanted as u64, &settings, |geometry| {
                geometry.validate().map(|()| health.clone())
            })?;
            let blocks_per_unit =
                found.ok_or("no number of blocks makes this capacity: use a smaller --capacity")?;
            let geometry = Geometry { blocks_per_unit, ..geometry };
            return Ok(Sized::new(geometry, logical_blocks, &settings));
        }
        let utilization = utilization(choice);
        let mut blocks_per_unit = flash.layout.blocks_per_plane;
        if let Some(capacity) = self.capacity {
            let spec = self.with(choice, flash.clone(), utilization)?;
            if let Scale::BlocksPerPlane(blocks) = spec.scale_for(capacity, 1)? {
                blocks_per_unit = blocks;
            }
        }
        let geometry = Geometry { blocks_per_unit, ..geometry };
        let logical_blocks = (geometry.slots() as f64 * utilization) as u64;
        Ok(Sized::new(geometry, logical_blocks, &settings))
    }

    /// The device with this flash, policies and utilization.
    fn with(
        &self,
        choice: Choice<'_>,
        flash: Flash,
        utilization: f64,
    ) -> Result<DeviceSpec, String> {
        let (_, ftl) = self.inside()?;
        let ftl = FtlChoice { utilization, settings: settings_of(ftl, choice) };
        Ok(DeviceSpec { inside: Inside::Ftl(flash, Box::new(ftl)), ..self.spec.clone() })
    }

    /// The device that is measured for the drive, on which a trace that touches `bytes` fits.
    pub fn build(&self, choice: Choice<'_>, bytes: u64) -> Result<Box<dyn Target>, String> {
        let (flash, ftl) = self.inside()?;
        let drive = self.sized(choice, bytes)?;
        let (flash, blocks, utilization) = if self.is_whole(bytes) {
            let exact = (drive.logical_blocks as f64 + 0.5) / drive.geometry.slots() as f64;
            let of_file = utilization(choice);
            let utilization = if self.sizing == Sizing::OfFlash { of_file } else { exact };
            (flash.clone(), drive.geometry.blocks_per_unit, utilization)
        } else {
            let settings = settings_of(ftl, choice);
            let (profile, geometry) = standing_for(&drive, flash, &settings, bytes / BLOCK)?;
            let mut layout = flash.layout.clone();
            // As much flash as the drive has, in shorter blocks: so its cache shrinks as the capacity does.
            let full = drive.geometry.slots() / u64::from(drive.geometry.units);
            let blocks = full / u64::from(geometry.slots_per_block());
            layout.blocks_per_plane =
                u32::try_from(blocks).unwrap_or(u32::MAX).max(geometry.blocks_per_unit);
            // Half a block more, as it is cut to whole ones.
            let utilization = ((bytes / BLOCK) as f64 + 0.5) / geometry.slots() as f64;
            (Flash { profile, layout, fast: None }, geometry.blocks_per_unit, utilization)
        };
        let spec = self.with(choice, flash, utilization)?;
        spec.build(Scale::BlocksPerPlane(blocks), &Faults::default(), choice.seed)
    }

    /// The drive itself is measured for a trace that touches `bytes`.
    pub fn is_whole(&self, bytes: u64) -> bool {
        self.capacity.is_some_and(|capacity| capacity <= bytes)
    }
}

fn settings_of(ftl: &FtlChoice, choice: Choice<'_>) -> Settings {
    let mut settings = ftl.settings.clone();
    settings.policies.stream = choice.stream.into();
    settings.policies.victim = choice.victim.into();
    settings
}

/// What a device file calls utilization.
fn utilization(choice: Choice<'_>) -> f64 {
    1.0 / (1.0 + choice.op_percent / 100.0)
}

fn units_of(layout: &Layout) -> u32 {
    layout.channels * layout.dies_per_channel
}

/// The geometry of this flash, with one block for each unit.
fn geometry_of(profile: &Profile, units: u32) -> Result<Geometry, String> {
    let layout = Layout { channels: units, dies_per_channel: 1, blocks_per_plane: 1 };
    let nand = Nand::new(profile, &layout, Faults::default()).map_err(|why| why.to_string())?;
    Ok(nand.geometry())
}

/// Slots that are left to data and GC: beside what the FTL keeps for itself, and its open bands, which are
/// half full on average.
fn slots_usable(geometry: &Geometry, settings: &Settings) -> Result<f64, String> {
    let shape = Shape { blocks: 1, handles: settings.handles };
    let handles = stream::by_name(&settings.policies.stream, shape)?.handles();
    let stripe = if settings.stripe_units == 0 { geometry.units } else { settings.stripe_units };
    let open = f64::from(u32::from(handles.host + handles.moved) * stripe) / 2.0;
    let most = logical_blocks_max(geometry, &Health::default(), settings);
    Ok(f64::from(most) - open * f64::from(geometry.slots_per_block()))
}

/// Flash for so many logical blocks that leaves GC what the drive leaves it, as a share of the logical
/// blocks: what it is made of, and how much.
fn standing_for(
    drive: &Sized,
    flash: &Flash,
    settings: &Settings,
    logical_blocks: u64,
) -> Result<(Profile, Geometry), String> {
    let share = logical_blocks as f64 / drive.logical_blocks as f64;
    let wanted = slots_usable(&drive.geometry, settings)? * share;
    let profile = shortened(&flash.profile, &drive.geometry, share);
    let geometry = geometry_of(&profile, drive.geometry.units)?;
    let slots_per_row = f64::from(geometry.units * geometry.slots_per_block());
    let least = (logical_blocks as f64 / slots_per_row) as u32 + 1;
    for blocks_per_unit in least..least.saturating_mul(16).saturating_add(1024) {
        let geometry = Geometry { blocks_per_unit, ..geometry };
        let offers = logical_blocks_max(&geometry, &Health::default(), settings);
        if u64::from(offers) >= logical_blocks && slots_usable(&geometry, settings)? >= wanted {
            return Ok((profile, geometry));
        }
    }
    Err("its flash cannot be made small enough: use a trace that touches more".into())
}

/// The flash with blocks so short that a share of the drive has as many as the drive, or enough.
fn shortened(profile: &Profile, drive: &Geometry, share: f64) -> Profile {
    let blocks = f64::from(drive.blocks_per_unit) * share;
    let wanted = blocks / f64::from(drive.blocks_per_unit.min(BLOCKS_PER_UNIT));
    let wanted = (f64::from(profile.pages_per_block) * wanted) as u32;
    // Whole wordlines, and an even number of them for any page order.
    let step = (2 * profile.bits_per_cell).max(2);
    let pages = (wanted.max(PAGES_MIN).div_ceil(step) * step).min(profile.pages_per_block);
    let erase_ns = profile.erase_ns * u64::from(pages) / u64::from(profile.pages_per_block);
    Profile { pages_per_block: pages, erase_ns, ..profile.clone() }
}
