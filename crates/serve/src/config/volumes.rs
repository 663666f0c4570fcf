//! `[[volume]]`: the volumes that a device is made with, and what is done for each at every start.
//!
//! A device whose volumes were changed while it was served knows them better than a config does: then the names and
//! sizes here count no more, and what else is said of a name holds for the volume that has it ([`Config::adopt`]).

use super::{Config, GuestConfig, Section, doors, fast, of_module};
use crate::device::{Limits, NAME_BYTES_MAX, Stretch, Table, VolumeOptions, is_name, size_text};
use crate::policies::{PluginFile, WASM};
use crate::volume::Split;
use flash::{BLOCK_BYTES, MILLISECOND};
use ftl::policy::stream;
use ftl::{ATOMIC_BLOCKS_MAX, MapVolume, Settings, StreamVolume};
use std::collections::BTreeMap;
use std::path::Path;

/// What is wished for a volume, beside a name and a size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// Of which.
    pub name: String,
    /// The stream policy, of one that asks for it.
    pub stream: Option<String>,
    /// Its weight in the fast tier.
    pub share: u32,
    /// Whether its map stays in DRAM.
    pub page: bool,
    /// Writes of up to so many blocks are seen whole or not at all; up to 1: no more than a block is.
    pub atomic_blocks: u32,
    /// Whether it is served read-only, if that is said here.
    pub read_only: Option<bool>,
    /// How much clients may ask, if that is said here.
    pub limits: Option<Limits>,
}

/// The NVMe hosts that may see a volume, of each that not all may.
pub type Hosts = BTreeMap<String, Vec<String>>;

const STREAMS_EXAMPLE: &str = "\"sfr:handles=8\"";

const KEYS: &[&str] = &[
    "name",
    "size",
    "read_only",
    "streams",
    "fast_share",
    "mapping",
    "atomic_writes",
    "nvme_hosts",
    "vhost",
    "vhost_mode",
    "vhost_group",
    "iops",
    "bandwidth",
    "burst",
];

/// What all `[[volume]]` say.
#[derive(Default)]
pub struct Sections {
    /// The volumes.
    pub volumes: Vec<VolumeOptions>,
    /// What is wished for each, in the same order.
    pub wishes: Vec<Wish>,
    /// Who may see them over NVMe.
    pub hosts: Hosts,
    /// Which of them are disks of guests.
    pub guests: Vec<GuestConfig>,
}

/// Reads them.
pub fn sections(root: &mut Section<'_>, plugins: &[PluginFile], base: &Path) -> Sections {
    let mut all = Sections::default();
    for (index, table) in root.sections("volume").into_iter().enumerate() {
        let mut section = Section::new(format!("volume[{index}]."), table, root.errors);
        let made = volume(&mut section, &all.volumes);
        let wish = wish(&mut section, plugins);
        let hosts = doors::nvme_hosts(&mut section, "nvme_hosts");
        let guest = doors::guest(&mut section, base);
        if let Some((path, _)) = guest.as_ref().filter(|(path, _)| all.has_socket(path)) {
            let reason = "another volume has this socket";
            section.refuse("vhost", &format!("{:?}", path.display()), reason, "\"data2.sock\"");
        }
        section.finish(KEYS);
        let Some(mut volume) = made else { continue };
        volume.read_only = wish.read_only.unwrap_or(false);
        if !hosts.is_empty() {
            all.hosts.insert(volume.name.clone(), hosts);
        }
        let name = || volume.name.clone();
        all.guests.extend(guest.map(|(path, access)| GuestConfig { volume: name(), path, access }));
        all.wishes.push(Wish { name: name(), ..wish });
        all.volumes.push(volume);
    }
    all
}

impl Sections {
    fn has_socket(&self, path: &Path) -> bool {
        self.guests.iter().any(|guest| guest.path == path)
    }
}

/// What a volume is made from, if that can be.
fn volume(section: &mut Section<'_>, others: &[VolumeOptions]) -> Option<VolumeOptions> {
    let name_missing = !section.has("name");
    let name = section.text("name", "\"data\"");
    if name_missing {
        section.refuse("name", "", "is missing", "\"data\"");
    }
    if let Some(name) = &name {
        if !is_name(name) {
            let reason = format!(
                "must have at most {NAME_BYTES_MAX} bytes, no / or ?, and no control characters"
            );
            section.refuse("name", &format!("{name:?}"), reason, "\"data\"");
        }
        if others.iter().any(|volume| volume.name == *name) {
            let reason = "another volume has this name";
            section.refuse("name", &format!("{name:?}"), reason, "\"data2\"");
        }
    }
    let size_missing = !section.has("size");
    let size = section.size("size", "\"8GiB\"");
    if size_missing {
        section.refuse("size", "", "is missing", "\"8GiB\"");
    }
    if let Some(bytes) = size
        && (bytes == 0 || bytes % BLOCK_BYTES as u64 != 0)
    {
        section.refuse_written("size", NO_BLOCKS, "\"8GiB\"");
    }
    Some(VolumeOptions { name: name?, blocks: size? / BLOCK_BYTES as u64, read_only: false })
}

/// Said of a size.
const NO_BLOCKS: &str = "must be a multiple of 4096 bytes, and not 0";

fn wish(section: &mut Section<'_>, plugins: &[PluginFile]) -> Wish {
    let read_only = section.flag("read_only");
    let stream = section.text("streams", STREAMS_EXAMPLE);
    let shape = stream::Shape { blocks: 1, handles: 1 };
    if let Some(name) = &stream
        && let Err(reason) = of_module(name, plugins)
            .and_then(|known| if known { Ok(()) } else { stream::by_name(name, shape).map(drop) })
    {
        section.refuse("streams", &format!("{name:?}"), reason, STREAMS_EXAMPLE);
    }
    let share = section.integer("fast_share", 1, 1000, "10").unwrap_or(1) as u32;
    let page = section.choice("mapping", &["cached", "page"]).as_deref() == Some("page");
    let atomic_blocks = atomic_blocks(section);
    let limits = limits(section);
    Wish { name: String::new(), stream, share, page, atomic_blocks, read_only, limits }
}

/// Up to how many blocks writes are to be atomic.
fn atomic_blocks(section: &mut Section<'_>) -> u32 {
    let block = BLOCK_BYTES as u64;
    let most = u64::from(ATOMIC_BLOCKS_MAX) * block;
    let bytes = section.size("atomic_writes", "\"16KiB\"").unwrap_or(block);
    if !bytes.is_power_of_two() || !(block..=most).contains(&bytes) {
        let reason =
            "must be a power of two from 4KiB, which is no more than any volume has, to 256KiB";
        section.refuse_written("atomic_writes", reason, "\"16KiB\"");
        return 1;
    }
    (bytes / block) as u32
}

/// How much clients may ask of a volume, if any of it is said.
fn limits(section: &mut Section<'_>) -> Option<Limits> {
    let said = ["iops", "bandwidth", "burst"].iter().any(|key| section.has(key));
    let iops = section.integer("iops", 0, Limits::IOPS_MAX, "5000").unwrap_or(0);
    let bytes_per_sec = section.size("bandwidth", "\"100MiB\"").unwrap_or(0);
    let burst_ns = section.duration("burst", "\"100ms\"").unwrap_or(0);
    if burst_ns > 0 && burst_ns < MILLISECOND {
        let reason = "must be 0s, which is 100ms, or 1ms or more";
        section.refuse_written("burst", reason, "\"100ms\"");
    }
    let limits = Limits { iops, bytes_per_sec, burst_ms: burst_ns / MILLISECOND };
    if let Err((key, reason)) = limits.check() {
        let example = match key {
            "bandwidth" => "\"100MiB\"",
            "iops" => "5000",
            _ => "\"100ms\"",
        };
        section.refuse_written(key, reason, example);
    }
    said.then_some(limits)
}

/// Refuses a capacity that is less than the volumes have together.
pub fn fit(section: &mut Section<'_>, volumes: &[VolumeOptions], capacity: Option<u64>) {
    let blocks: u64 = volumes.iter().map(|volume| volume.blocks).sum();
    if capacity.is_some_and(|bytes| blocks.saturating_mul(BLOCK_BYTES as u64) > bytes) {
        let sum = size_text(blocks);
        let reason = format!("the volumes have {sum} together");
        section.refuse_written("capacity", reason, &format!("\"{sum}\""));
    }
}

/// Refuses a capacity that the only volume, of which nothing else is said, cannot have.
pub fn check_only(section: &mut Section<'_>, capacity: Option<u64>) {
    if capacity.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64)) {
        section.refuse_written("capacity", NO_BLOCKS, "\"8GiB\"");
    }
}

/// Where the volumes of a device lie that is made with these.
pub fn in_order(volumes: &[VolumeOptions]) -> Vec<Stretch> {
    let mut first = 0;
    let stretches = volumes.iter().map(|volume| {
        let stretch = Stretch { first, blocks: volume.blocks };
        first += volume.blocks;
        stretch
    });
    stretches.collect()
}

/// What the FTL does for the volumes that lie there. Over several shards their borders are those of whole stripes: next
/// to one, up to a stripe of a shard goes by what is said of the neighbour.
pub fn settle(ftl: &mut Settings, shards: u32, places: &[Stretch], wishes: &[Wish]) {
    let split = Split::new(shards as usize);
    // A device beyond what shards address is refused when it is made.
    let of_shard = |place: &Stretch| {
        let first = split.shard_blocks(place.first);
        (first as u32, (split.shard_blocks(place.end()) - first) as u32)
    };
    // A volume that nobody describes has no wish.
    let none = Wish { share: 1, ..Wish::default() };
    let wishes = wishes.iter().chain(std::iter::repeat(&none));
    let volumes: Vec<_> = places.iter().map(of_shard).zip(wishes).collect();
    ftl.fast_shares = fast::shares(&volumes);
    ftl.map_volumes = volumes
        .iter()
        .map(|&((first, blocks), wish)| MapVolume {
            blocks: first..first + blocks,
            page: wish.page,
        })
        .collect();
    let default = &ftl.policies.stream;
    let is_own = |wish: &Wish| wish.stream.as_ref().is_some_and(|name| name != default);
    if !volumes.iter().any(|(_, wish)| is_own(wish)) {
        ftl.volumes = Vec::new();
        return;
    }
    let streams = volumes.iter().map(|&((first, blocks), wish)| {
        // That of a module comes into force when the server runs.
        let built_in = wish.stream.as_ref().filter(|name| !name.starts_with(WASM));
        StreamVolume { first, blocks, stream: built_in.unwrap_or(default).clone() }
    });
    ftl.volumes = streams.collect();
}

impl Config {
    /// Takes the volumes of a device that were changed since it was made: what is wished for a name holds for the
    /// volume that has it, and of one in several pieces for the largest of them.
    pub fn adopt(&mut self, table: &Table) {
        let wish = |name: &String| {
            let found = self.wishes.iter().find(|wish| wish.name == *name);
            found.cloned().unwrap_or(Wish { name: name.clone(), share: 1, ..Wish::default() })
        };
        let wishes: Vec<Wish> = table.volumes.iter().map(|volume| wish(&volume.name)).collect();
        let largest = |stretches: &Vec<Stretch>| {
            stretches.iter().max_by_key(|stretch| stretch.blocks).copied()
        };
        let places: Vec<Stretch> =
            table.volumes.iter().filter_map(|volume| largest(&volume.stretches)).collect();
        settle(&mut self.ftl, self.device.shards, &places, &wishes);
        self.device.volumes = table
            .volumes
            .iter()
            .map(|volume| VolumeOptions {
                name: volume.name.clone(),
                blocks: volume.blocks(),
                read_only: volume.read_only,
            })
            .collect();
        let is_there = |name: &str| wishes.iter().any(|wish| wish.name == name);
        self.chosen.retain(|(decision, _)| {
            decision.split_once('/').is_none_or(|(_, volume)| is_there(volume))
        });
        // A snapshot may have a socket for hypervisors.
        let is_snapshot = |name: &str| table.snapshot(name).is_some();
        let unknown = |wish: &&Wish| !is_there(&wish.name) && !is_snapshot(&wish.name);
        for wish in self.wishes.iter().filter(unknown) {
            tracing::warn!(
                "[[volume]] {:?} of the config is not on the device, whose volumes were changed since: `weir volume \
                 list` tells those that are, `weir volume create` makes one",
                wish.name
            );
        }
        self.wishes = wishes;
    }

    /// What is wished for the volume of this name.
    pub fn wish(&self, name: &str) -> Option<&Wish> {
        self.wishes.iter().find(|wish| wish.name == name)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::device::{Change, Stretch, Table, TableLimits, Volume};
    use std::path::Path;

    #[test]
    fn volumes_that_were_changed_take_with_them_what_is_wished_for_their_names() {
        let text = "[device]\nshards = 2\n\
             [[volume]]\nname = \"a\"\nsize = \"4MiB\"\nstreams = \"sfr:handles=4\"\nfast_share = 3\n\
             [[volume]]\nname = \"b\"\nsize = \"4MiB\"\nmapping = \"page\"\niops = 10\n\
             [[volume]]\nname = \"gone\"\nsize = \"4MiB\"\n";
        let mut config = Config::parse(text, Path::new(".")).unwrap();
        let made = |number, name: &str, first| {
            Volume::made(number, name.into(), Stretch { first, blocks: 1024 }, false)
        };
        let table = Table::made(vec![made(1, "b", 0), made(2, "c", 1024), made(3, "a", 2048)]);
        let room = TableLimits { device_blocks: 8192 };
        let grow = Change::Resize { name: "b".into(), blocks: 4096, shrink: false };
        config.adopt(&table.with(&grow, room).unwrap());
        let names: Vec<_> = config.device.volumes.iter().map(|v| (&v.name[..], v.blocks)).collect();
        assert_eq!(names, [("b", 4096), ("c", 1024), ("a", 1024)]);
        let streams: Vec<_> =
            config.ftl.volumes.iter().map(|v| (v.first, v.blocks, &v.stream[..])).collect();
        let largest = (1536, 1536, "none");
        assert_eq!(streams, [largest, (512, 512, "none"), (1024, 512, "sfr:handles=4")]);
        let pages: Vec<_> = config.ftl.map_volumes.iter().map(|v| v.page).collect();
        assert_eq!(pages, [true, false, false]);
        let shares: Vec<_> = config.ftl.fast_shares.iter().map(|s| s.weight).collect();
        assert_eq!(shares, [1, 1, 3]);
        assert_eq!(config.wish("b").unwrap().limits.unwrap().iops, 10);
        assert!(config.wish("gone").is_none());
    }

    #[test]
    fn a_limit_that_cannot_be_kept_is_refused_by_its_own_key() {
        for (keys, key) in [
            ("iops = 50\nburst = \"999us\"", "burst"),
            ("iops = 50\nburst = \"61s\"", "burst"),
            ("burst = \"1s\"", "burst"),
            ("iops = 4294967297", "iops"),
            ("bandwidth = \"2PiB\"", "bandwidth"),
        ] {
            let text = format!("[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n{keys}\n");
            let refused = Config::parse(&text, Path::new(".")).unwrap_err();
            let keys: Vec<&str> = refused.0.iter().map(|error| &error.key[..]).collect();
            assert_eq!(keys, [format!("volume[0].{key}")], "{refused}");
        }
    }

    #[test]
    fn atomic_writes_are_a_power_of_two_that_the_ftl_keeps() {
        let parse = |size: &str| {
            let text =
                format!("[[volume]]\nname = \"a\"\nsize = \"1MiB\"\natomic_writes = \"{size}\"\n");
            Config::parse(&text, Path::new("."))
        };
        for (size, blocks) in [("4KiB", 1), ("16KiB", 4), ("256KiB", 64)] {
            assert_eq!(parse(size).unwrap().wish("a").unwrap().atomic_blocks, blocks);
        }
        for size in ["0", "2KiB", "12KiB", "512KiB"] {
            let refused = parse(size).unwrap_err();
            assert_eq!(refused.0[0].key, "volume[0].atomic_writes", "{size}: {refused}");
        }
    }

    #[test]
    fn what_is_said_of_a_volume_being_read_only_holds_and_silence_says_nothing() {
        let wish = |said: &str| {
            let text = format!("[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n{said}");
            Config::parse(&text, Path::new(".")).unwrap().wish("a").unwrap().read_only
        };
        assert_eq!(wish(""), None);
        assert_eq!(wish("read_only = true\n"), Some(true));
        assert_eq!(wish("read_only = false\n"), Some(false));
    }
}
