//! Devices: what a server has under its shards. A device is made once from [`DeviceOptions`] and
//! opened many times; opening gives one [`Medium`] a shard.
//!
//! Invariants: one process at a time has a device open (a lock that dies with the process); each
//! open for writing has a generation of its own, which the media check before a flush is
//! acknowledged, so that a server which lost the device to another cannot acknowledge any more.

mod direct;
mod error;
mod folder;
mod lock;
pub(crate) mod raw;
mod volumes;

pub use error::DeviceError;
pub use raw::RawOptions;
pub use volumes::{NAME_BYTES_MAX, Volume, decode as decode_volumes, encode as encode_volumes};

use crate::medium::{Medium, MemoryStore, Store};
use crate::shard::{CoreFormat, CoreSettings, Split};
use flash::{BLOCK_BYTES, Geometry};
use ftl::{FormatOptions, Settings};
use nand::{Faults, Layout, Nand, Profile};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Where the bytes of a device are.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// In memory: gone with the process. Emulates `profile`.
    Memory {
        /// The flash to emulate.
        profile: Profile,
    },
    /// Emulated flash in the sparse files of a folder.
    Nand {
        /// The folder.
        path: PathBuf,
        /// The flash to emulate.
        profile: Profile,
    },
    /// A plain file or a block device, by direct I/O.
    File {
        /// Its path.
        path: PathBuf,
    },
}

/// What a device is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// Where the bytes are.
    pub kind: Kind,
    /// What clients see. Their first blocks are assigned here, in order.
    pub volumes: Vec<VolumeOptions>,
    /// Physical capacity beyond the logical one, in percent of the logical one; what the FTL needs
    /// for itself comes on top.
    pub op_percent: u32,
    /// Buses of the emulated flash, over all shards.
    pub channels: u32,
    /// Dies on each bus.
    pub dies_per_channel: u32,
    /// Threads that share the device.
    pub shards: u32,
    /// What goes wrong with the emulated flash.
    pub faults: Faults,
    /// Present if the device is one of raw units; then there are no volumes.
    pub raw: Option<RawOptions>,
}

impl DeviceOptions {
    /// What the device's cores are mounted with; `settings` are the FTL's.
    pub fn core_settings(&self, settings: &Settings) -> CoreSettings {
        core_settings(self.raw.as_ref(), settings)
    }

    /// The emulated flash of this device, empty and in memory, and how to format it, for a
    /// simulation. All of it in one piece: shards are threads of a server, and no matter of flash.
    pub fn simulated(&self, settings: &Settings) -> Result<(Nand, FormatOptions), DeviceError> {
        let options = Self { shards: 1, ..self.clone() };
        if options.raw.is_some() {
            let reason = "mode = \"raw\": raw units are simulated by the lab: see `weir lab list`";
            return Err(DeviceError::Options(reason.into()));
        }
        let (Kind::Memory { profile } | Kind::Nand { profile, .. }) = &options.kind else {
            let reason = "a file or block device cannot be simulated: use kind = \"nand\"";
            return Err(DeviceError::Options(reason.into()));
        };
        let format = formats(&options, &Split::new(1))?.remove(0);
        let shape = shape(&options, profile, settings, format.logical_blocks)?;
        Ok((shape.nand(profile, &options.faults, 0)?, format))
    }
}

/// A volume to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeOptions {
    /// What clients ask for.
    pub name: String,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Refuses writes.
    pub read_only: bool,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// To serve it; bumps the generation.
    ReadWrite,
    /// To look at it; changes nothing.
    ReadOnly,
}

/// An open device.
pub struct Device {
    /// One medium a shard.
    pub media: Vec<Medium>,
    /// For each shard, how to format it; empty if the device is formatted.
    pub formats: Vec<CoreFormat>,
    /// Present if it is a device of raw units: as it was made.
    pub raw: Option<RawOptions>,
    /// Which block is whose.
    pub split: Split,
    /// What [`Device::commit`] has to write.
    fresh: Option<Fresh>,
    /// Keeps other processes away.
    lock: Option<File>,
}

/// A device that is not formatted yet.
enum Fresh {
    Folder(PathBuf, Box<folder::Description>),
    File(PathBuf, direct::Parts),
}

/// The shape of each shard and what it offers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    channels: u32,
    dies_per_channel: u32,
    blocks_per_plane: u32,
    logical_blocks: u32,
}

impl Device {
    /// Makes a device on media without content. The caller formats it, as `formats` says, and
    /// then calls [`Device::commit`]; if it does not get there, there is no device.
    pub fn create(options: &DeviceOptions, settings: &Settings) -> Result<Self, DeviceError> {
        let split = Split::new(options.shards as usize);
        let plan = plan(options, &split, settings)?;
        let uuid = plan.uuid;
        let (media, lock, fresh) = match &options.kind {
            Kind::Memory { profile } => {
                let shape = plan.shape;
                let media = (0..options.shards).map(|shard| {
                    let nand = shape.nand(profile, &options.faults, shard)?;
                    let store = Store::Memory(MemoryStore::new(&nand.geometry()));
                    Ok(Medium::new(nand, store, true))
                });
                (media.collect::<Result<_, DeviceError>>()?, None, None)
            }
            Kind::Nand { path, profile } => {
                let shape = plan.shape;
                let folder = folder::Description {
                    uuid,
                    shards: options.shards,
                    shape,
                    profile: profile.clone(),
                    faults: options.faults.clone(),
                    op_percent: options.raw.is_none().then_some(options.op_percent),
                    raw: plan.raw.clone(),
                };
                let (media, lock) = folder::create(path, &folder)?;
                (media, Some(lock), Some(Fresh::Folder(path.clone(), Box::new(folder))))
            }
            Kind::File { path } => {
                let shape = plan.shape;
                let (media, lock) = direct::create(path, options.shards, shape)?;
                let DeviceOptions { shards, op_percent, .. } = *options;
                let parts = direct::Parts { shards, shape, op_percent, uuid };
                (media, Some(lock), Some(Fresh::File(path.clone(), parts)))
            }
        };
        Ok(Self { media, formats: plan.formats, raw: plan.raw, split, fresh, lock })
    }

    /// Opens a device that was made before.
    pub fn open(kind: &Kind, mode: Mode) -> Result<Self, DeviceError> {
        let (media, lock, raw) = match kind {
            Kind::Memory { .. } => {
                let reason = "a device in memory is gone with its process: it cannot be opened";
                return Err(DeviceError::Options(reason.into()));
            }
            Kind::Nand { path, .. } => folder::open(path, mode)?,
            Kind::File { path } => {
                let (media, lock) = direct::open(path, mode)?;
                (media, lock, None)
            }
        };
        let split = Split::new(media.len());
        Ok(Self { media, formats: Vec::new(), raw, split, fresh: None, lock: Some(lock) })
    }

    /// `Err` if the device is not of the mode that `options` ask for.
    pub fn expect_mode(&self, options: &DeviceOptions) -> Result<(), DeviceError> {
        if self.raw.is_some() == options.raw.is_some() {
            return Ok(());
        }
        let path = match &options.kind {
            Kind::Memory { .. } => PathBuf::new(),
            Kind::Nand { path, .. } | Kind::File { path } => path.clone(),
        };
        Err(DeviceError::Mode { path, found: if self.raw.is_some() { "raw" } else { "block" } })
    }

    /// The format has ended well: what was made is a device from now on.
    pub fn commit(&mut self) -> Result<(), DeviceError> {
        match (self.fresh.take(), &self.lock) {
            (Some(Fresh::Folder(path, description)), _) => folder::commit(&path, &description),
            (Some(Fresh::File(path, parts)), Some(file)) => direct::commit(&path, file, &parts),
            _ => Ok(()),
        }
    }

    /// What the device was made with, by the keys of the config's `[device]`; the profile as the
    /// table of a profile file.
    pub fn description(kind: &Kind) -> Result<toml::Table, DeviceError> {
        match kind {
            Kind::Memory { .. } => Ok(toml::Table::new()),
            Kind::Nand { path, .. } => folder::describe(path),
            Kind::File { path } => direct::describe(path).map(|parts| {
                let mut table = toml::Table::new();
                table.insert("kind".into(), "file".into());
                table.insert("mode".into(), "block".into());
                for (key, number) in [
                    ("shards", parts.shards),
                    ("channels", parts.shards * parts.shape.channels),
                    ("op_percent", parts.op_percent),
                ] {
                    table.insert(key.into(), i64::from(number).into());
                }
                table
            }),
        }
    }

    /// Throws away what lies at the path of a plain file or disk, whether a device or not.
    pub fn wipe(path: &Path) -> Result<(), DeviceError> {
        direct::wipe(path)
    }

    /// True if there is something to open.
    pub fn exists(kind: &Kind) -> bool {
        match kind {
            Kind::Memory { .. } => false,
            Kind::Nand { path, .. } => folder::exists(path),
            Kind::File { path } => direct::exists(path),
        }
    }
}

impl Shape {
    fn layout(&self) -> Layout {
        let Self { channels, dies_per_channel, blocks_per_plane, .. } = *self;
        Layout { channels, dies_per_channel, blocks_per_plane }
    }

    fn nand(&self, profile: &Profile, faults: &Faults, shard: u32) -> Result<Nand, DeviceError> {
        let seed = faults.seed.wrapping_add(u64::from(shard));
        let faults = Faults { seed, ..faults.clone() };
        Nand::new(profile, &self.layout(), faults).map_err(DeviceError::Options)
    }
}

/// What the cores of a device are mounted with: raw units as `raw` says, else the FTL.
pub(crate) fn core_settings(raw: Option<&RawOptions>, settings: &Settings) -> CoreSettings {
    match raw {
        Some(raw) => CoreSettings::Raw(raw.settings.clone()),
        None => CoreSettings::Block(Box::new(settings.clone())),
    }
}

/// A device to be.
struct Plan {
    shape: Shape,
    formats: Vec<CoreFormat>,
    uuid: u128,
    /// With the spare that was found.
    raw: Option<RawOptions>,
}

fn plan(options: &DeviceOptions, split: &Split, settings: &Settings) -> Result<Plan, DeviceError> {
    let direct = direct::profile();
    let profile = match &options.kind {
        Kind::Memory { profile } | Kind::Nand { profile, .. } => profile,
        Kind::File { .. } => &direct,
    };
    if let Some(raw) = &options.raw {
        if let Kind::File { path } = &options.kind {
            let reason = "raw units need emulated flash";
            let mend = "use a folder with kind = \"nand\", or mode = \"block\"";
            return Err(DeviceError::invalid(path, reason, mend));
        }
        let uuid = random_uuid()?;
        let (shape, format) = raw.shape(options, profile, uuid)?;
        let raw = RawOptions { spare: Some(format.spare), ..raw.clone() };
        return Ok(Plan { shape, formats: vec![CoreFormat::Raw(format)], uuid, raw: Some(raw) });
    }
    let formats = formats(options, split)?;
    let shape = shape(options, profile, settings, formats[0].logical_blocks)?;
    let uuid = formats[0].uuid;
    let formats = formats.into_iter().map(CoreFormat::Block).collect();
    Ok(Plan { shape, formats, uuid, raw: None })
}

/// How to format each shard for the FTL: all get the same label, so that any tells the volumes.
fn formats(options: &DeviceOptions, split: &Split) -> Result<Vec<FormatOptions>, DeviceError> {
    let mut first_block = 0;
    let volumes: Vec<Volume> = options
        .volumes
        .iter()
        .map(|volume| {
            let VolumeOptions { name, blocks, read_only } = volume.clone();
            let placed = Volume { name, first_block, blocks, read_only };
            first_block += blocks;
            placed
        })
        .collect();
    let label = encode_volumes(&volumes).ok_or_else(|| {
        DeviceError::Options(format!(
            "{} volumes with names of at most {NAME_BYTES_MAX} bytes do not fit into the label \
             of {} bytes: use fewer or shorter ones",
            volumes.len(),
            ftl::LABEL_BYTES_MAX
        ))
    })?;
    let per_shard = split.shard_blocks(first_block);
    let logical_blocks = u32::try_from(per_shard).map_err(|_| {
        DeviceError::Options(format!(
            "{first_block} logical blocks exceed what {} shards address (16 TiB each): use more",
            options.shards
        ))
    })?;
    let uuid = random_uuid()?;
    let format = |shard: u32| FormatOptions {
        logical_blocks,
        uuid: uuid ^ u128::from(shard),
        label: label.clone(),
    };
    Ok((0..options.shards).map(format).collect())
}

/// The smallest shape that holds the logical blocks and the OP, and that the FTL accepts.
fn shape(
    options: &DeviceOptions,
    profile: &Profile,
    settings: &Settings,
    logical_blocks: u32,
) -> Result<Shape, DeviceError> {
    let DeviceOptions { channels, dies_per_channel, shards, .. } = *options;
    if shards == 0 || channels % shards != 0 {
        return Err(DeviceError::Options(format!(
            "channels = {channels}: must be a multiple of shards = {shards}, for example {}",
            shards.max(1) * 4
        )));
    }
    let channels = channels / shards;
    let mut shape = Shape { channels, dies_per_channel, blocks_per_plane: 1, logical_blocks };
    let fault_free = Faults { seed: options.faults.seed, ..Faults::default() };
    let geometry = shape.nand(profile, &fault_free, 0)?.geometry();
    let wanted = u64::from(logical_blocks) * u64::from(100 + options.op_percent) / 100;
    let per_row = u64::from(geometry.units) * u64::from(geometry.slots_per_block());
    let mut blocks = u32::try_from(wanted.div_ceil(per_row)).unwrap_or(u32::MAX).max(4);
    // What the FTL needs for itself comes on top, so that on a small device it does not eat the
    // whole OP; it says how much.
    for _ in 0..64 {
        shape.blocks_per_plane = blocks;
        let geometry = Geometry { blocks_per_unit: blocks, ..geometry };
        geometry.validate().map_err(DeviceError::Options)?;
        let health = shape.nand(profile, &options.faults, 0)?.health();
        let offered = ftl::logical_blocks_max(&geometry, &health, settings);
        if u64::from(offered) >= wanted {
            return Ok(shape);
        }
        blocks = (blocks + blocks / 16).saturating_add(1);
    }
    Err(DeviceError::Options(format!(
        "no number of blocks makes {} MiB of logical capacity and the OP: use smaller volumes",
        u64::from(logical_blocks) * BLOCK_BYTES as u64 / (1 << 20)
    )))
}

fn random_uuid() -> Result<u128, DeviceError> {
    let mut bytes = [0u8; 16];
    // SAFETY: 16 writable bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 16 {
        let path = std::path::Path::new("getrandom");
        return Err(DeviceError::io(path, "draw a uuid")(std::io::Error::last_os_error()));
    }
    Ok(u128::from_le_bytes(bytes))
}
