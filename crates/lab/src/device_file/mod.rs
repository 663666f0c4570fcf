//! Device files: flash, firmware, cache and link of a device, or several devices as one, as data.
//!
//! [`DeviceSpec::parse`] is the edge: it checks every key, and the error names each wrong key, its value,
//! what is wrong and an example. [`DeviceSpec::build`] makes a [`Target`](crate::target::Target),
//! smaller if wanted: a scale shrinks the blocks of each plane, and the DRAM cache with them, never
//! a rate or a latency. `docs/devices.md` tells every key; the built-in files are in `devices/`.

mod build;
mod figures;
mod files;
mod parse;
mod pool;

pub use self::pool::{ClientChoice, EventChoice, PoolChoice};
pub use build::Scale;
pub use figures::DeviceFigures;
pub use files::Read;

use crate::caching::CachingConfig;
use crate::ssd::{FrontConfig, IndirectionConfig};
use ftl::Settings;
use nand::{KeyError, KeyErrors, Layout, Profile};

/// A device, as its file says.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Short name, as in [`DeviceSpec::builtin`].
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Where the numbers come from.
    pub source: String,
    /// What is behind the front.
    pub inside: Inside,
    /// Link, firmware and cache.
    pub front: FrontConfig,
    /// The drive's map is coarser than a block.
    pub indirection: Option<IndirectionConfig>,
    /// A traditional cache before the device.
    pub caching: Option<Caching>,
    /// The stream policy in the host's driver, of a drive that takes placement identifiers.
    pub host_streams: Option<String>,
}

/// What is behind the front.
#[derive(Clone, Debug, PartialEq)]
pub enum Inside {
    /// Flash under our FTL.
    Ftl(Flash, Box<FtlChoice>),
    /// Flash whose units the host addresses directly.
    Raw(Flash, RawChoice),
    /// Several devices.
    Array(Members),
    /// A volume on the drives of many machines.
    Pool(Box<PoolChoice>),
}

/// How much flash of which kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Flash {
    /// Which kind.
    pub profile: Profile,
    /// How much.
    pub layout: Layout,
    /// What stands before it.
    pub fast: Option<Fast>,
}

/// A fast tier before the flash.
#[derive(Clone, Debug, PartialEq)]
pub struct Fast {
    /// Whose times it has.
    pub profile: Profile,
    /// Its units.
    pub units: u32,
    /// Its size as a share of the flash.
    pub share: f64,
}

/// A write-back cache before a device, on one that overwrites in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Caching {
    /// What it is on, and its size as a share of the flash behind.
    pub fast: Fast,
    /// How it works.
    pub config: CachingConfig,
}

/// The FTL of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct FtlChoice {
    /// Logical over physical capacity, bad blocks left out.
    pub utilization: f64,
    /// Policies and the rest.
    pub settings: Settings,
}

/// Raw units of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct RawChoice {
    /// Dies that make a unit: 1 for TSSD, the dies of a channel for SDF.
    pub gang: u32,
    /// Share of each unit's blocks kept back for bad blocks and records; 0: as little as they take.
    pub spare: f64,
    /// What one write fills: "block" (8 MiB of SDF) or "page" (TSSD).
    pub write: String,
    /// When an erase is carried out: "now" or "background".
    pub erase: String,
    /// Logical blocks of 4 KiB at whose multiples reads start and end.
    pub read_granule: u32,
    /// Most suspensions of one program or erase.
    pub suspensions_max: u32,
    /// Background erases wait until a unit had no request for this long.
    pub idle_ns: u64,
}

/// Several like devices as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Members {
    /// What each is.
    pub member: Box<DeviceSpec>,
    /// How many.
    pub count: u32,
    /// Bytes that go to each in turn; 0 puts them one after the other.
    pub chunk_bytes: u64,
}

impl DeviceSpec {
    /// A device that comes with Weir: one of [`DeviceSpec::names`] or [`DeviceSpec::drive_names`].
    pub fn builtin(name: &str) -> Option<Self> {
        let text = text_of(name)?;
        Some(Self::parse(text).expect("the tests parse every built-in device"))
    }

    /// The file of a device that comes with Weir.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        text_of(name)
    }

    /// The files of the devices that come with Weir.
    #[cfg(test)]
    pub(crate) fn texts() -> Vec<&'static str> {
        TEXTS.iter().copied().chain(DRIVES.iter().map(|(_, text)| *text)).collect()
    }

    /// Kinds of devices, and those of the papers.
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// Drives whose load-latency profile was published, by serial number: see [`crate::drives`].
    pub fn drive_names() -> impl Iterator<Item = &'static str> {
        DRIVES.iter().map(|(name, _)| *name)
    }

    /// A device that comes with Weir, with some keys of its file set to other values.
    pub fn builtin_with(name: &str, set: &toml::Table) -> Result<Self, String> {
        let table = builtin_table(name).ok_or_else(|| {
            format!("no device is called {name:?}; there are {}", NAMES.join(", "))
        })?;
        Self::of_table(table, set)
    }

    /// Reads a device file whole, or says all that is wrong with it.
    pub fn parse(toml_text: &str) -> Result<Self, KeyErrors> {
        nand::read_whole(toml_text, parse::device)
    }

    /// What kind of device it is: "ftl", "ssd", "raw", "array" or "pool".
    pub fn kind(&self) -> &'static str {
        match self.inside {
            Inside::Ftl(..) if self.front.hides_units => "ssd",
            Inside::Ftl(..) => "ftl",
            Inside::Raw(..) => "raw",
            Inside::Array(..) => "array",
            Inside::Pool(..) => "pool",
        }
    }
}

/// The file of a built-in device as it stands.
pub(crate) fn builtin_table(name: &str) -> Option<toml::Table> {
    Some(text_of(name)?.parse().expect("the tests parse every device"))
}

/// A file with the keys of the built-in device that it is like.
pub(crate) fn whole_table(toml_text: &str) -> Result<toml::Table, KeyError> {
    let whole = parse::with_like(toml_text)?;
    let text = whole.as_deref().unwrap_or(toml_text);
    Ok(text.parse().expect("its keys were read"))
}

fn text_of(name: &str) -> Option<&'static str> {
    let index = NAMES.iter().position(|&known| known == name);
    let drive = || DRIVES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    index.map(|index| TEXTS[index]).or_else(drive)
}

/// Puts every value of `from` into `into`, section by section.
pub(crate) fn merge(into: &mut toml::Table, from: &toml::Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

const NAMES: [&str; 20] = [
    "sdf",
    "tssd",
    "gen3",
    "intel-320",
    "ts8-2",
    "ts8-2-x11",
    "fusion-io",
    "mqsim-default",
    "wsr",
    "wsr-qlc",
    "qlc-ssd",
    "qlc-cached",
    "multi-stream",
    "fdp",
    "open-channel",
    "nvme-tlc-part",
    "nvme-mlc-part",
    "nvme-tlc",
    "nvme-mlc",
    "pool-unlike",
];

const TEXTS: [&str; 20] = [
    include_str!("../../../../devices/sdf.toml"),
    include_str!("../../../../devices/tssd.toml"),
    include_str!("../../../../devices/gen3.toml"),
    include_str!("../../../../devices/intel-320.toml"),
    include_str!("../../../../devices/ts8-2.toml"),
    include_str!("../../../../devices/ts8-2-x11.toml"),
    include_str!("../../../../devices/fusion-io.toml"),
    include_str!("../../../../devices/mqsim-default.toml"),
    include_str!("../../../../devices/wsr.toml"),
    include_str!("../../../../devices/wsr-qlc.toml"),
    include_str!("../../../../devices/qlc-ssd.toml"),
    include_str!("../../../../devices/qlc-cached.toml"),
    include_str!("../../../../devices/multi-stream.toml"),
    include_str!("../../../../devices/fdp.toml"),
    include_str!("../../../../devices/open-channel.toml"),
    include_str!("../../../../devices/nvme-tlc-part.toml"),
    include_str!("../../../../devices/nvme-mlc-part.toml"),
    include_str!("../../../../devices/nvme-tlc.toml"),
    include_str!("../../../../devices/nvme-mlc.toml"),
    include_str!("../../../../devices/pool-unlike.toml"),
];

macro_rules! drives {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../devices/drives/", $name, ".toml")))),*]
    };
}

const DRIVES: [(&str, &str); 15] = drives![
    "s39wna0kb01161",
    "s39wna0kc01659",
    "s39wna0kc02077",
    "s39wna0kc02078",
    "s39wna0kc02087",
    "s39wna0kc02089",
    "s47ana0m400877",
    "s47ana0m400923",
    "s47ana0m403316",
    "s47ana0m403318",
    "s47ana0m403393",
    "s5cvna0n101050",
    "sdm000015a60",
    "sdm00001c5d1",
    "sdm000024c8d",
];

#[cfg(test)]
mod tests;
