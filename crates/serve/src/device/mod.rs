//! Devices: what a server has under its shards. A device is made once from [`DeviceOptions`] and
//! opened many times; opening gives one [`Medium`] a shard.
//!
//! Invariants: one process at a time has a device open (a lock that dies with the process); each
//! open for writing has a generation of its own, which the media look at before they write and before
//! anything is acknowledged ([`crate::medium::Watch`]), so that a server which lost the device to another
//! does neither any more; nothing is written to a file before all files are known to be of this device
//! and of one time ([`identity`]).

mod age;
mod checks;
mod direct;
mod error;
mod fast;
mod folder;
mod growth;
mod home;
mod identity;
mod kept;
mod lock;
mod own;
mod places;
pub(crate) mod raw;
mod summed;
mod volumes;
pub(crate) mod whole;
mod zoned;

pub use crate::kept::{KeptCounts, KeptOptions, KeptPlace};
pub use age::Age;
pub use error::DeviceError;
pub use fast::FastOptions;
pub(crate) use growth::read_only;
pub use growth::{Growth, Wish};
pub use raw::RawOptions;
pub use volumes::{
    Change, ChangeError, JOINT, Limits, NAME_BYTES_MAX, NUMBER_MAX, Shadow, Snapshot, Stretch,
    Table, TableLimits, Volume, blocks_of, decode as decode_volumes, encode as encode_volumes,
    is_name, size_text, volumes_of,
};

use crate::kept::Kept;
use crate::medium::{Injections, Medium, MemoryStore, Store};
use crate::runtime::shard::{CoreFormat, CoreSettings};
use crate::volume::Split;
use fast::{FastNote, FastPart, NewPart};
use flash::{BLOCK_BYTES, FastTier, Geometry};
use ftl::{FormatOptions, MountReport, Settings};
use identity::Mark;
use nand::{Faults, Layout, Nand, Profile};
use own::{Description, Own};
use std::path::{Path, PathBuf};

/// Shards that a device may have.
pub const SHARDS_MAX: u64 = 64;

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
    /// Logical blocks that it has at least: room for volumes to come.
    pub blocks_min: u64,
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
    /// Present if a fast tier stands before it.
    pub fast: Option<FastOptions>,
    /// Memory that a restart after a crash resumes from; chosen at each start.
    pub kept: KeptOptions,
    /// Which tier vanishes from an emulated device, and when; chosen at each start.
    pub losses: Losses,
    /// What goes wrong below an emulated device; chosen at each start.
    pub injections: Injections,
    /// How many times slower than the world emulated flash lives; chosen at each start.
    pub dilate: u32,
}

/// When a tier stops answering, counted from the start of the server; 0 is never.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Losses {
    /// The fast tier.
    pub fast_ns: u64,
    /// The capacity tier.
    pub capacity_ns: u64,
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
        let geometry = shape.nand(profile, &options.faults, 0, None)?.geometry();
        let of_tier = |fast| tier(fast, &geometry, (1, format.logical_blocks), settings);
        let tier = options.fast.as_ref().map(of_tier).transpose()?;
        Ok((shape.nand(profile, &options.faults, 0, tier.as_ref())?, format))
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
    /// Unless it is in memory.
    own: Option<Own>,
    /// It is not formatted yet: [`Device::commit`] writes what it is.
    fresh: bool,
    /// Its fast tier, if it has one beside it.
    fast: Option<FastPart>,
    /// Its kept memory, or why it has none.
    kept: Result<Kept, String>,
    /// Of a zoned device.
    erase_counts: Option<zoned::EraseCounts>,
    /// Why nothing may be written to it, and what of it is lost.
    impaired: Vec<String>,
    /// How many times slower than the world its emulated flash lives.
    dilation: u32,
}

/// The shape of each shard and what it offers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    channels: u32,
    dies_per_channel: u32,
    blocks_per_plane: u32,
    logical_blocks: u32,
}

/// The fast units of each shard.
#[derive(Clone, Debug)]
pub struct Tier {
    /// How many.
    fast: FastTier,
    /// Whose times they have.
    profile: Profile,
}

impl Device {
    /// Makes a device on media without content. The caller formats it, as `formats` says, and
    /// then calls [`Device::commit`]; if it does not get there, there is no device.
    pub fn create(options: &DeviceOptions, settings: &Settings) -> Result<Self, DeviceError> {
        let split = Split::new(options.shards as usize);
        let mut plan = plan(options, &split, settings)?;
        let formats = std::mem::take(&mut plan.formats);
        let (shards, shape, tier) = (options.shards, plan.shape, plan.tier.as_ref());
        let mut device = Self {
            media: Vec::new(),
            formats,
            raw: plan.raw.clone(),
            split,
            own: None,
            fresh: true,
            fast: None,
            kept: Err("the device is in memory".into()),
            erase_counts: None,
            impaired: Vec::new(),
            dilation: 1,
        };
        let mut note = None;
        if let (Some(fast), Some(tier)) = (&options.fast, tier)
            && let Some(path) = fast::path_of(&fast.kind)
        {
            let nand = shape.nand(plan.profile(options), &options.faults, 0, Some(tier))?;
            let geometry = nand.geometry();
            let new = NewPart { kind: &fast.kind, device: plan.uuid, shards, geometry };
            let made = new.create(&Mark::fresh(plan.uuid, 0))?;
            device.fast = Some(FastPart::open(&made, path, (path, plan.uuid), Mode::ReadWrite)?);
            note = Some(made);
        }
        let master = Mark::fresh(plan.uuid, 0).beside(note.as_ref());
        let (path, what, lock) = match &options.kind {
            Kind::Memory { profile } => {
                let media = (0..shards).map(|shard| {
                    let nand = shape.nand(profile, &options.faults, shard, tier)?;
                    let store = Store::Memory(MemoryStore::new(&nand.geometry()));
                    Ok(Medium::new(nand, store, true))
                });
                device.media = media.collect::<Result<_, DeviceError>>()?;
                return Ok(device);
            }
            Kind::Nand { path, profile } => {
                let folder = folder::Description {
                    uuid: plan.uuid,
                    shards,
                    shape,
                    profile: profile.clone(),
                    faults: options.faults.clone(),
                    op_percent: options.raw.is_none().then_some(options.op_percent),
                    raw: plan.raw.clone(),
                    fast: note,
                    bound: true,
                    edited: false,
                };
                let lock = folder::create(path, &folder, &master)?;
                (path, Description::Folder(Box::new(folder)), lock)
            }
            Kind::File { path } => {
                let parts = plan.parts(options, note);
                let lock = direct::create(path, &parts, &master)?;
                (path, Description::File(parts), lock)
            }
        };
        let mut own = Own::new(path, what, lock, &master)?;
        own.begin(device.fast.as_mut())?;
        let opened = own.open(device.fast.as_ref(), (Mode::ReadWrite, None))?;
        (device.own, device.erase_counts) = (Some(own), opened.erase_counts);
        device.keep_new(&options.kept, settings);
        device.compose(opened.stores)?;
        Ok(device)
    }

    /// Opens a device that was made before, with its fast tier, if it has one, where it was last.
    pub fn open(kind: &Kind, mode: Mode) -> Result<Self, DeviceError> {
        Self::open_beside(kind, None, mode)
    }

    /// The same with its fast tier at another place, if one is given.
    pub fn open_beside(kind: &Kind, fast: Option<&Path>, mode: Mode) -> Result<Self, DeviceError> {
        Self::open_cold(kind, fast, mode, &KeptOptions::default())
    }

    /// The same where kept memory of it, of which nothing is believed, would be as `kept` says.
    fn open_cold(
        kind: &Kind,
        fast: Option<&Path>,
        mode: Mode,
        kept: &KeptOptions,
    ) -> Result<Self, DeviceError> {
        let mut own = Own::claim(kind, mode)?;
        let part = own.open_fast(fast, mode)?;
        let older = own.is_older_than_kept(part.as_ref(), kept);
        Self::assemble(own, part, (mode, older), Err("the device is only looked at".into()))
    }

    /// Whether [`Device::open_as`] would attach a fast tier.
    pub fn lacks_fast(options: &DeviceOptions) -> bool {
        let has_one = |made: toml::Table| made.contains_key("fast");
        options.fast.is_some()
            && Self::exists(&options.kind)
            && Self::description(&options.kind).is_ok_and(|made| !has_one(made))
    }

    /// The same with its fast tier where `options` say. One that is opened for writing, and has
    /// none, gets one: it is attached, large enough for `shadow_blocks` entries of snapshots in the map of a shard. One that
    /// can be read and not be written is opened to be read, and tells why ([`Device::impaired`]).
    pub fn open_as(
        options: &DeviceOptions,
        (settings, shadow_blocks): (&Settings, u32),
        mode: Mode,
    ) -> Result<Self, DeviceError> {
        let opened = Self::open_whole(options, (settings, shadow_blocks), mode);
        let why = match &opened {
            Err(error) if error.is_for_want_of_space() => Some(error.to_string()),
            Ok(device) if !device.impaired.is_empty() => None,
            _ => return opened,
        };
        if mode == Mode::ReadOnly {
            return opened;
        }
        drop(opened);
        let place = options.fast.as_ref().and_then(|fast| fast::path_of(&fast.kind));
        let mut device = Self::open_cold(&options.kind, place, Mode::ReadOnly, &options.kept)?;
        device.impaired.extend(why);
        Ok(device)
    }

    /// Slows the clock of its emulated flash so many times.
    pub fn dilate(mut self, times: u32) -> Self {
        self.media.iter_mut().for_each(|medium| medium.dilate(times));
        self.dilation = times;
        self
    }

    /// How many times slower than the world its emulated flash lives.
    pub fn dilation(&self) -> u32 {
        self.dilation
    }

    /// Why nothing may be written to the device, in words; none if it may.
    pub fn impaired(&self) -> &[String] {
        &self.impaired
    }

    /// What is wrong if a shard was formatted for another number of logical blocks than the device says.
    pub(crate) fn contradicted<'a>(
        &self,
        mut found: impl Iterator<Item = &'a MountReport>,
    ) -> Option<DeviceError> {
        let own = self.own.as_ref()?;
        let Description::Folder(description) = &own.what else {
            // Elsewhere a checksum covers it.
            return None;
        };
        let described = description.shape.logical_blocks;
        // One that is to grow, and is only looked at, is as it was.
        let other = found.find(|it| it.logical_blocks != described && !it.may_grow)?;
        Some(folder::contradicted(&own.path, described, other.logical_blocks))
    }

    /// Tells something else of it that is wrong.
    pub(crate) fn impair(&mut self, why: String) {
        self.impaired.push(why);
    }

    fn open_whole(
        options: &DeviceOptions,
        (settings, shadow_blocks): (&Settings, u32),
        mode: Mode,
    ) -> Result<Self, DeviceError> {
        let mut own = Own::claim(&options.kind, mode)?;
        if let (None, Some(fast), Mode::ReadWrite) = (own.note(), &options.fast, mode) {
            own.attach(fast, settings, shadow_blocks)?;
        }
        let place = options.fast.as_ref().and_then(|fast| fast::path_of(&fast.kind));
        let part = own.open_fast(place, mode)?;
        let older = own.is_older_than_kept(part.as_ref(), &options.kept);
        let kept = match &older {
            None => own.open_kept(part.as_ref(), (&options.kept, settings), mode),
            Some(_) => Err("it tells of more than the device has".into()),
        };
        let resumes = kept.as_ref().is_ok_and(|kept| kept.cold.is_none());
        let device = Self::assemble(own, part, (mode, older), kept)?;
        let distrusted = device.kept.as_ref().ok().and_then(|kept| kept.cold.clone());
        let (true, Some(why)) = (resumes, distrusted) else { return Ok(device) };
        // Some of it was believed before it was found to be wrong: all begins anew without.
        drop(device);
        let mut device = Self::open_whole(options, (settings, shadow_blocks), mode)?;
        if let Ok(kept) = &mut device.kept {
            kept.cold = Some(why);
        }
        Ok(device)
    }

    fn assemble(
        mut own: Own,
        mut part: Option<FastPart>,
        (mode, older): (Mode, Option<String>),
        mut kept: Result<Kept, String>,
    ) -> Result<Self, DeviceError> {
        let damaged = own.examine(part.as_ref())?;
        let mode = if damaged.is_some() || older.is_some() { Mode::ReadOnly } else { mode };
        if mode == Mode::ReadWrite {
            own.begin(part.as_mut())?;
        }
        let direct::Opened { stores, erase_counts, unreadable } =
            own.open(part.as_ref(), (mode, kept.as_mut().ok()))?;
        if let Ok(kept) = &mut kept {
            kept.adopt(own.found.generation);
        }
        let raw = own.what.raw().cloned();
        let edited = own.edited().map(|error| error.to_string());
        let split = Split::new(stores.len());
        let mut device = Self {
            media: Vec::new(),
            formats: Vec::new(),
            raw,
            split,
            own: Some(own),
            fresh: false,
            fast: part,
            kept,
            erase_counts: erase_counts.filter(|_| mode == Mode::ReadWrite),
            impaired: [edited, older, damaged, unreadable].into_iter().flatten().collect(),
            dilation: 1,
        };
        device.compose(stores)?;
        Ok(device)
    }

    /// Puts the tiers of each shard together.
    fn compose(&mut self, stores: Vec<(Nand, Store)>) -> Result<(), DeviceError> {
        for (shard, (mut nand, store)) in (0..).zip(stores) {
            let mut kept = self.kept.as_mut().ok();
            let fast = self.fast.as_ref();
            let fast = fast.map(|fast| fast.store(shard, &mut nand, kept.as_deref_mut()));
            let fast = fast.transpose()?;
            let medium = Medium::new(nand, store, fast.is_some());
            let medium = match fast {
                Some(fast) => medium.with_fast(fast),
                None => medium,
            };
            self.media.push(match kept.and_then(|kept| kept.take_shard(shard)) {
                Some(kept) => medium.with_kept(kept),
                None => medium,
            });
        }
        Ok(())
    }

    /// Where the device and its fast tier are, for people.
    pub fn places(&self) -> (String, String) {
        let shown = |path: Option<&Path>| path.map_or("memory".into(), |p| p.display().to_string());
        (shown(self.own.as_ref().map(|own| own.path.as_path())), shown(self.fast_path()))
    }

    /// Where it is now and its uuid, if it is in a folder and open for writing.
    pub(crate) fn folder(&self) -> Option<(PathBuf, u128)> {
        let own = self.own.as_ref().filter(|own| own.begun)?;
        Some((own.folder()?, own.uuid()))
    }

    /// Where the fast tier is, if there is one beside the device.
    pub fn fast_path(&self) -> Option<&Path> {
        self.fast.as_ref().map(FastPart::path)
    }

    /// The fast tier holds nothing any more, and no medium uses it again: from now on the device is
    /// one without. Returns where it was.
    pub fn detach_fast(&mut self) -> Result<Option<PathBuf>, DeviceError> {
        let Some(fast) = &self.fast else { return Ok(None) };
        let path = fast.path().to_owned();
        if let Some(own) = &mut self.own {
            own.note_fast(None)?;
        }
        self.fast = None;
        Ok(Some(path))
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
        if !std::mem::take(&mut self.fresh) {
            return Ok(());
        }
        if let Some(fast) = &mut self.fast {
            fast.finish()?;
        }
        self.own.as_ref().map_or(Ok(()), Own::commit)
    }

    /// What the device was made with, by the keys of the config's `[device]`; the profile as the
    /// table of a profile file.
    pub fn description(kind: &Kind) -> Result<toml::Table, DeviceError> {
        match kind {
            Kind::Memory { .. } => Ok(toml::Table::new()),
            Kind::Nand { path, .. } => folder::describe(path),
            Kind::File { path } => direct::description(path),
        }
    }

    /// Throws away the fast tier that lies there, whosever it is.
    pub fn wipe_fast(options: &FastOptions) -> Result<(), DeviceError> {
        fast::path_of(&options.kind).map_or(Ok(()), fast::wipe)
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

    fn nand(
        &self,
        profile: &Profile,
        faults: &Faults,
        shard: u32,
        tier: Option<&Tier>,
    ) -> Result<Nand, DeviceError> {
        let seed = faults.seed.wrapping_add(u64::from(shard));
        let faults = Faults { seed, ..faults.clone() };
        let made = match tier {
            None => Nand::new(profile, &self.layout(), faults),
            Some(Tier { fast, profile: quick }) => {
                Nand::tiered(profile, &self.layout(), quick, *fast, faults)
            }
        };
        made.map_err(DeviceError::Options)
    }
}

const RAW_WITHOUT_FAST: &str = "device.fast: raw units have no fast tier: take [device.fast] out, or \
                                use mode = \"block\"";
const VOLATILE_CAPACITY: &str = "device.fast: a device in memory is gone with the server, so its fast tier \
                                 is in memory, too; for example: kind = \"memory\"";
const VOLATILE_FAST: &str = "device.fast.kind = \"memory\": what is acknowledged from it would be \
                             gone with the server, while the device is not; for example: kind = \
                             \"nand\", or kind = \"memory\" for the device too";

/// The fast units of each shard that `options` ask for, behind units of this geometry, where the map of a shard has so many
/// entries.
fn tier(
    options: &FastOptions,
    geometry: &Geometry,
    (shards, entries): (u32, u32),
    settings: &Settings,
) -> Result<Tier, DeviceError> {
    let profile = match &options.kind {
        Kind::Memory { profile } | Kind::Nand { profile, .. } => profile.clone(),
        Kind::File { .. } => direct::profile(&direct::Bands::PLAIN),
    };
    let band = u64::from(geometry.slots_per_block()) * BLOCK_BYTES as u64;
    let min = ftl::fast_blocks_min(geometry, entries, settings);
    let bands = match options.bytes {
        Some(bytes) => {
            let bands = (bytes / u64::from(shards)).div_ceil(band);
            u32::try_from(bands).unwrap_or(u32::MAX)
        }
        None => (geometry.capacity_blocks() / 16).max(min + min / 2),
    };
    if bands < min {
        let mib = |bands: u32| (u64::from(bands) * band * u64::from(shards)).div_ceil(1 << 20);
        return Err(DeviceError::Options(format!(
            "device.fast.capacity: {} MiB are too few for this device, whose map (with its \
             snapshots) and open blocks take {} MiB there at least (blocks of {} MiB); for example: capacity = \"{}MiB\"",
            mib(bands),
            mib(min),
            band >> 20,
            mib(min * 2)
        )));
    }
    let units = (options.units / shards).max(1).max(bands.div_ceil(geometry.blocks_per_unit));
    let fast = FastTier { units, blocks_per_unit: bands.div_ceil(units) };
    Ok(Tier { fast, profile })
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
    tier: Option<Tier>,
    /// Of a file or disk.
    bands: direct::Bands,
    direct: Profile,
}

impl Plan {
    /// What the header of a file or disk tells of it.
    fn parts(&self, options: &DeviceOptions, fast: Option<FastNote>) -> direct::Parts {
        let DeviceOptions { shards, op_percent, .. } = *options;
        let Self { shape, bands, uuid, .. } = *self;
        let raw = self.raw.clone();
        direct::Parts { shards, shape, bands, op_percent, uuid, fast, raw, added: Vec::new() }
    }

    fn profile<'a>(&'a self, options: &'a DeviceOptions) -> &'a Profile {
        match &options.kind {
            Kind::Memory { profile } | Kind::Nand { profile, .. } => profile,
            Kind::File { .. } => &self.direct,
        }
    }
}

/// What a device keeps of how it was made, by the keys of a config's `[device]`; `None` if a number of its raw
/// units is none of TOML's.
fn described(
    kind: &str,
    raw: Option<&RawOptions>,
    numbers: &[(&str, Option<u32>)],
    fast: Option<toml::Table>,
) -> Option<toml::Table> {
    let mut table = toml::Table::new();
    table.insert("kind".into(), kind.into());
    table.insert("mode".into(), if raw.is_some() { "raw" } else { "block" }.into());
    if let Some(raw) = raw {
        raw.describe(&mut table)?;
    }
    for (key, number) in numbers {
        number.map(|number| table.insert((*key).into(), i64::from(number).into()));
    }
    fast.map(|fast| table.insert("fast".into(), fast.into()));
    Some(table)
}

fn plan(options: &DeviceOptions, split: &Split, settings: &Settings) -> Result<Plan, DeviceError> {
    let bands = match &options.kind {
        Kind::File { path } => direct::Bands::at(path, options.shards, options.raw.is_some())?,
        Kind::Memory { .. } | Kind::Nand { .. } => direct::Bands::PLAIN,
    };
    let direct = direct::profile(&bands);
    let profile = match &options.kind {
        Kind::Memory { profile } | Kind::Nand { profile, .. } => profile,
        Kind::File { .. } => &direct,
    };
    if let Some(raw) = &options.raw {
        if let Kind::File { path } = &options.kind {
            direct::expect_no_zones(path)?;
        }
        let uuid = random_uuid()?;
        let (shape, format) = raw.shape(options, profile, uuid)?;
        let raw = Some(RawOptions { spare: Some(format.spare), ..raw.clone() });
        if options.fast.is_some() {
            return Err(DeviceError::Options(RAW_WITHOUT_FAST.into()));
        }
        let formats = vec![CoreFormat::Raw(format)];
        return Ok(Plan { shape, formats, uuid, raw, tier: None, bands, direct });
    }
    let formats = formats(options, split)?;
    let logical_blocks = formats[0].logical_blocks;
    let shape = shape(options, profile, settings, logical_blocks)?;
    let mut fast_units = None;
    if let Some(fast) = &options.fast {
        let volatile = |kind: &Kind| matches!(kind, Kind::Memory { .. });
        if volatile(&fast.kind) != volatile(&options.kind) {
            let reason = if volatile(&fast.kind) { VOLATILE_FAST } else { VOLATILE_CAPACITY };
            return Err(DeviceError::Options(reason.into()));
        }
        let geometry = shape.nand(profile, &options.faults, 0, None)?.geometry();
        fast_units = Some(tier(fast, &geometry, (options.shards, logical_blocks), settings)?);
    }
    let whole = shape.nand(profile, &options.faults, 0, fast_units.as_ref())?.geometry();
    checks::settings_fit(settings, &whole, options.shards)?;
    let uuid = formats[0].uuid;
    let formats = formats.into_iter().map(CoreFormat::Block).collect();
    Ok(Plan { shape, formats, uuid, raw: None, tier: fast_units, bands, direct })
}

/// How to format each shard for the FTL: all get the same label, so that any tells the volumes.
fn formats(options: &DeviceOptions, split: &Split) -> Result<Vec<FormatOptions>, DeviceError> {
    let mut first = 0;
    let volumes = (1..).zip(&options.volumes).map(|(number, volume)| {
        let VolumeOptions { name, blocks, read_only } = volume.clone();
        let stretch = Stretch { first, blocks };
        first += blocks;
        Volume::made(number, name, stretch, read_only)
    });
    let table = Table::made(volumes.collect());
    let blocks = first.max(options.blocks_min);
    let label = encode_volumes(&table).ok_or_else(|| {
        DeviceError::Options(format!(
            "{} volumes with names of at most {NAME_BYTES_MAX} bytes do not fit into the label \
             of {} bytes: use fewer or shorter ones",
            table.volumes.len(),
            ftl::LABEL_BYTES_MAX
        ))
    })?;
    let per_shard = split.shard_blocks(blocks);
    let logical_blocks = u32::try_from(per_shard).map_err(|_| {
        const SHARD_BLOCKS: u64 = 1 << 32;
        let tib = |blocks: u64| blocks.div_ceil(SHARD_BLOCKS / 16);
        // A stripe may be left over, so one that would be full to the last block is one too few.
        let mend = match blocks / SHARD_BLOCKS + 1 {
            shards @ ..=SHARDS_MAX => format!("say shards = {shards} or more"),
            _ => format!(
                "make the volumes (or device.capacity) smaller: {}TiB with shards = {SHARDS_MAX} can be had",
                16 * SHARDS_MAX - 1
            ),
        };
        DeviceError::Options(format!(
            "volumes of {} TiB are more than {} of at most {SHARDS_MAX} device.shards can address, 16 TiB each: {mend}",
            tib(blocks),
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
    let geometry = shape.nand(profile, &fault_free, 0, None)?.geometry();
    let wanted = u64::from(logical_blocks) * u64::from(100 + options.op_percent) / 100;
    let blocks = ftl::blocks_per_unit_for(&geometry, wanted, settings, |geometry| {
        geometry.validate().map_err(DeviceError::Options)?;
        shape.blocks_per_plane = geometry.blocks_per_unit;
        Ok(shape.nand(profile, &options.faults, 0, None)?.health())
    })?;
    if blocks.is_some() {
        return Ok(shape);
    }
    Err(DeviceError::Options(format!(
        "no number of blocks makes {} MiB of logical capacity and the OP: use smaller volumes",
        u64::from(logical_blocks) * BLOCK_BYTES as u64 / (1 << 20)
    )))
}

fn random_uuid() -> Result<u128, DeviceError> {
    crate::random::number().map_err(DeviceError::io(Path::new("getrandom"), "draw a uuid"))
}
