//! What hosts of NVMe over TCP are shown of what a server offers.

mod keys;

use crate::config::Config;
use crate::device::{Stretch, Volume};
use crate::exports::Offered;
use crate::front::nvme;
use crate::runtime::shard::RawShape;
use crate::server::{Ready, ServeError};
use crate::volume::STRIPE_BLOCKS;
use flash::BLOCK_BYTES;
use ftl::policy::stream::{self, Shape};
use ftl::raw::WriteUnit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Refuses what [`subsystem`] could not read, before there is a device to name it after.
///
/// # Errors
/// What is wrong with the file of the secrets.
pub fn check(config: &Config) -> Result<(), ServeError> {
    let file = config.nvme.as_ref().and_then(|wanted| wanted.keys_file.as_ref());
    let read = file.map(|file| keys::read(file, "nqn.none"));
    read.transpose().map(drop).map_err(ServeError::Volumes)
}

/// Hosts that a config lets in and that no line of the file of the secrets is of: what is to be told of each.
pub fn strangers(config: &Config) -> Vec<String> {
    let Some(wanted) = &config.nvme else { return Vec::new() };
    let file = wanted.keys_file.as_ref();
    let Some(Ok(keys)) = file.map(|file| keys::read(file, "nqn.none")) else { return Vec::new() };
    let of_volumes = wanted
        .volume_hosts
        .iter()
        .map(|(volume, hosts)| (format!("[[volume]] {volume:?}: nvme_hosts"), hosts));
    let all = of_volumes.chain([("[nvme] hosts".to_owned(), &wanted.hosts)]);
    let strangers = all.flat_map(|(key, hosts)| {
        let unknown = hosts.iter().filter(|host| !keys.knows(host));
        let told = |host: &String| {
            format!("{key} names {host}, of which keys_file has no line: it cannot connect")
        };
        unknown.map(told).collect::<Vec<_>>()
    });
    strangers.collect()
}

impl Ready {
    /// Where NVMe hosts connect to the service with volumes.
    pub fn nvme_address(&self) -> Option<SocketAddr> {
        self.nvme.as_ref()?.1.first().copied()
    }
}

/// The volumes as NVMe hosts see them, if they are served so.
pub fn subsystem(
    config: &Config,
    offered: &Offered,
    (device, port, shards): (u128, u16, usize),
    (raw, band_blocks): (Option<&RawShape>, u32),
) -> Result<Option<Arc<nvme::Subsystem>>, ServeError> {
    let Some(wanted) = &config.nvme else { return Ok(None) };
    let namespaces = match raw {
        None => namespaces(config, device, offered),
        Some(raw) => zoned(config, device, (offered, raw))?,
    };
    let nqn = wanted.nqn.clone().unwrap_or_else(|| nvme::nqn_of(device));
    let serial = format!("{:020x}", device & ((1 << 80) - 1));
    let (handshake_ns, hosts) = (config.nbd.handshake_ns, wanted.hosts.clone());
    let mut subsystem =
        nvme::Subsystem::new(nqn, serial, namespaces, hosts, (handshake_ns, shards));
    subsystem.port.store(port, Ordering::Relaxed);
    let band_bytes = u64::from(band_blocks) * BLOCK_BYTES as u64;
    if raw.is_none() {
        subsystem = subsystem.with_placement(band_bytes);
    }
    if let Some(file) = &wanted.keys_file {
        let keys = keys::read(file, &subsystem.nqn).map_err(ServeError::Volumes)?;
        subsystem = subsystem.with_keys(keys);
    }
    Ok(Some(Arc::new(subsystem)))
}

/// The namespaces that volumes are.
pub fn namespaces(config: &Config, device: u128, offered: &Offered) -> Vec<nvme::Namespace> {
    let one = |volume: &Volume| nvme::Namespace {
        handles: handles(config, offered.volume_of(volume)),
        atomic: atomic(config, (offered, volume)),
        ..namespace(config, device, (offered, volume))
    };
    offered.volumes.iter().map(one).collect()
}

/// Those that raw units are.
fn zoned(
    config: &Config,
    device: u128,
    (offered, raw): (&Offered, &RawShape),
) -> Result<Vec<nvme::Namespace>, ServeError> {
    let (blocks, block_shift, shape) = zones(raw, config)?;
    let one = |volume: &Volume| nvme::Namespace {
        blocks,
        block_shift,
        zones: Some(shape),
        ..namespace(config, device, (offered, volume))
    };
    Ok(offered.volumes.iter().map(one).collect())
}

/// What both have: by the volume alone, without zones and placement handles.
fn namespace(
    config: &Config,
    device: u128,
    (offered, volume): (&Offered, &Volume),
) -> nvme::Namespace {
    nvme::Namespace {
        number: volume.number,
        blocks: volume.blocks(),
        block_shift: BLOCK_BYTES.trailing_zeros() as u8,
        zones: None,
        handles: nvme::Handles::default(),
        atomic: nvme::Atomic::default(),
        read_only: volume.read_only,
        uuid: volume.uuid.unwrap_or_else(|| nvme::uuid_of(device, &volume.name)),
        // Who may not see a volume sees no snapshot of it either.
        hosts: hosts(config, offered.volume_of(volume)),
    }
}

/// What NVMe hosts are told of atomic writes: as many blocks as the config says, unless the volume lies in pieces whose borders
/// cannot be told, as NVMe only knows borders at equal distances.
fn atomic(config: &Config, (offered, volume): (&Offered, &Volume)) -> nvme::Atomic {
    let exported = offered.get(volume.number as usize - 1);
    let blocks = exported.map_or(1, |exported| exported.atomic_blocks);
    let borders = borders(&volume.stretches, config.device.shards > 1);
    let Some((border_every, border_first)) = borders.filter(|_| blocks > 1) else {
        if blocks > 1 {
            tracing::warn!(
                "atomic_writes of the volume {:?} hold, but NVMe hosts are not told: it lies in several pieces, whose borders \
                 are not those of stripes of 1 MiB",
                volume.name
            );
        }
        return nvme::Atomic::default();
    };
    nvme::Atomic { blocks: blocks as u16, border_every, border_first }
}

/// Every how many blocks a volume of these pieces has a border that no atomic write goes over, and the first of them: those of
/// pieces, and those of stripes if there are several shards. `None` if they are not at equal distances.
fn borders(stretches: &[Stretch], is_striped: bool) -> Option<(u16, u16)> {
    if stretches.len() <= 1 && !is_striped {
        return Some((0, 0));
    }
    let to_stripe = |of: &Stretch| (STRIPE_BLOCKS - of.first % STRIPE_BLOCKS) % STRIPE_BLOCKS;
    let first = stretches.first()?;
    let first = if is_striped { to_stripe(first) } else { first.blocks % STRIPE_BLOCKS };
    let is_border = |block: u64| block % STRIPE_BLOCKS == first;
    let mut before = 0;
    for stretch in stretches {
        let fits = !is_striped || is_border(before + to_stripe(stretch));
        if before > 0 && !is_border(before) || !fits {
            return None;
        }
        before += stretch.blocks;
    }
    Some((STRIPE_BLOCKS as u16, first as u16))
}

/// The hosts that may see a volume, if not all may.
fn hosts(config: &Config, volume: &Volume) -> Vec<String> {
    let nvme = config.nvme.as_ref();
    nvme.and_then(|nvme| nvme.volume_hosts.get(&volume.name)).cloned().unwrap_or_default()
}

/// The placement handles that writes to a volume may name: those of a policy that goes by what the host
/// says. Others place data by themselves, and have one for all.
fn handles(config: &Config, volume: &Volume) -> nvme::Handles {
    let ftl = &config.ftl;
    let at = config.device.volumes.iter().position(|options| options.name == volume.name);
    let own = at.and_then(|at| ftl.volumes.get(at)).map(|volume| &volume.stream);
    let shape = Shape { blocks: 1, handles: ftl.handles };
    let policy = stream::by_name(own.unwrap_or(&ftl.policies.stream), shape).ok();
    match policy.filter(|policy| matches!(policy.name(), "none" | "hint")) {
        None => nvme::Handles { count: 1, first: 0, apart: false },
        Some(policy) => {
            let of = policy.handles();
            let own = (volume.number - 1) % u32::from(ftl.handles);
            let first = own as u8 % of.host;
            nvme::Handles { count: of.host, first, apart: of.moved >= of.host }
        }
    }
}

/// How an NVMe host counts a unit as zones: its blocks, the power of two of their bytes, and the zones' shape.
fn zones(shape: &RawShape, config: &Config) -> Result<(u64, u8, nvme::ZoneShape), ServeError> {
    let refuse = |reason: String| Err(ServeError::Volumes(format!("nvme: {reason}")));
    let settings = config.device.raw.as_ref().map(|raw| raw.settings.clone()).unwrap_or_default();
    if settings.write != WriteUnit::Page {
        let reason = "zones are written by pages, and these raw units by whole raw blocks: say write = \
                      \"page\" in [raw] (--write page), or leave [nvme] (--nvme) away";
        return refuse(reason.into());
    }
    if !shape.page_bytes.is_power_of_two() {
        return refuse(format!(
            "a block of a zoned namespace is a page of the flash, and has a power of two of bytes: {} are \
             none: choose another profile, or leave [nvme] (--nvme) away",
            shape.page_bytes
        ));
    }
    let page_slots = u64::from(shape.page_bytes) / BLOCK_BYTES as u64;
    let size = u64::from(shape.lanes.zone_slots()) / page_slots;
    let capacity = u64::from(shape.lanes.pages);
    let (open_max, active_max) = (settings.zones_open_max, settings.zones_active_max);
    let blocks = u64::from(shape.lanes.raw_blocks) * size;
    let block_shift = shape.page_bytes.trailing_zeros() as u8;
    Ok((blocks, block_shift, nvme::ZoneShape { size, capacity, open_max, active_max }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl::raw::Lanes;
    use std::path::Path;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new(".")).unwrap()
    }

    #[test]
    fn borders_of_atomic_writes_are_told_where_they_are_at_equal_distances() {
        let pieces = |all: &[(u64, u64)], is_striped| {
            let stretches: Vec<Stretch> =
                all.iter().map(|&(first, blocks)| Stretch { first, blocks }).collect();
            borders(&stretches, is_striped)
        };
        assert_eq!(pieces(&[(7, 1000)], false), Some((0, 0)), "one piece, one shard");
        assert_eq!(pieces(&[(512, 1000)], true), Some((256, 0)));
        assert_eq!(pieces(&[(513, 1000)], true), Some((256, 255)));
        assert_eq!(pieces(&[(512, 256), (2048, 10)], true), Some((256, 0)));
        assert_eq!(pieces(&[(512, 255), (2048, 10)], true), None, "a piece ends within");
        assert_eq!(pieces(&[(512, 256), (2049, 10)], true), None, "its stripes do");
        assert_eq!(pieces(&[(513, 255), (2048, 10)], true), Some((256, 255)));
        assert_eq!(pieces(&[(5, 300), (9, 512), (2000, 1)], false), Some((256, 44)));
        assert_eq!(pieces(&[(5, 300), (9, 500), (2000, 1)], false), None);
        assert_eq!(pieces(&[], true), None);
    }

    #[test]
    fn a_unit_is_shown_in_zones_of_a_power_of_two_of_its_pages() {
        let lanes = Lanes { lanes: 2, gang: 3, raw_blocks: 10, pages: 768, slots: 3072 };
        let shape = RawShape { lanes, page_bytes: 16384, granule_bytes: 4096 };
        let pages =
            config("[device]\nmode = \"raw\"\n[raw]\nwrite = \"page\"\nzones_open_max = 7\n");
        let (blocks, shift, zones) = super::zones(&shape, &pages).unwrap();
        assert_eq!((blocks, shift), (10 * 1024, 14));
        assert_eq!(
            (zones.size, zones.capacity, zones.open_max, zones.active_max),
            (1024, 768, 7, 0)
        );
        let odd = RawShape { page_bytes: 12288, ..shape };
        assert!(super::zones(&odd, &pages).unwrap_err().to_string().contains("power of two"));
        let whole = super::zones(&shape, &config("[device]\nmode = \"raw\"\n")).unwrap_err();
        assert!(whole.to_string().contains("write = \"page\""), "{whole}");
    }

    #[test]
    fn a_volume_has_the_handles_of_a_policy_that_listens_to_hosts() {
        let config = config(
            "[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n\
             [[volume]]\nname = \"b\"\nsize = \"1MiB\"\nstreams = \"hint:handles=8\"\n\
             [[volume]]\nname = \"c\"\nsize = \"1MiB\"\nstreams = \"sepbit\"\n\
             [ftl]\nhandles = 4\n",
        );
        let told = |number: u32| {
            let name = ["a", "b", "c"][number as usize - 1].into();
            let volume = Volume::made(number, name, Stretch { first: 0, blocks: 1 }, false);
            let nvme::Handles { count, first, apart } = handles(&config, &volume);
            (count, first, apart)
        };
        assert_eq!([1, 2, 3].map(told), [(4, 0, false), (8, 1, true), (1, 0, false)]);
    }
}
