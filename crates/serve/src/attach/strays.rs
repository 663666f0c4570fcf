//! Devices of ours that no record tells of, because it was removed or damaged: found by the devices themselves, so that they
//! can be listed and taken away. The kernel's NBD client tells by which name it was connected; a ublk device is ours if a link
//! of ours leads to it, or if a process of ours serves it.

use super::record::{Found, Record, Way, name_of};
use super::{LINKS, kernel, ublk};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the system tells of devices.
pub struct Places<'a> {
    /// A folder for each block device.
    pub blocks: &'a str,
    /// Names that stay the same.
    pub links: &'a str,
    /// The process that serves a ublk device, if it is one of ours.
    pub server: fn(u32) -> Option<u32>,
}

impl Places<'static> {
    /// Those of this machine.
    pub const SYSTEM: Self = Self { blocks: "/sys/block", links: LINKS, server: our_server };
}

/// The devices of ours that are none of `known`.
pub fn all(places: &Places<'_>, known: &[Found]) -> Vec<Found> {
    let links = links(places);
    let entries = fs::read_dir(places.blocks).into_iter().flatten().flatten();
    let nodes = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let unknown = nodes.filter_map(|node| {
        let device = Path::new("/dev").join(&node);
        let is_known = known.iter().any(|found| found.record.device == device);
        if is_known { None } else { stray(places, &node, device, &links) }
    });
    unknown.collect()
}

/// What a device is, if it is ours.
fn stray(
    places: &Places<'_>,
    node: &str,
    device: PathBuf,
    links: &[(String, PathBuf)],
) -> Option<Found> {
    let (way, number) = way_of(node)?;
    let named = links.iter().find(|(_, leads_to)| *leads_to == device);
    let named = named.map(|(name, _)| name.clone());
    let (name, server) = match way {
        Way::Nbd => {
            said(places, node, "pid")?;
            let told = said(places, node, "backend");
            let told = told.and_then(|told| told.strip_prefix(kernel::OURS).map(str::to_owned));
            (told.or(named)?, None)
        }
        Way::Ublk => {
            let server = (places.server)(number);
            let name = named.or_else(|| server.map(|_| node.to_owned()))?;
            (name, server)
        }
    };
    let link = super::link_of(&name);
    let (uri, identity, pid) = (String::new(), String::new(), server.unwrap_or(0));
    let record = Record { name, uri, identity, way, number, device, link, pid };
    Some(Found { record, served: server.is_some(), lost: true })
}

/// Which kind of device a node is, and its number.
fn way_of(node: &str) -> Option<(Way, u32)> {
    let of = |prefix: &str| node.strip_prefix(prefix)?.parse().ok();
    of("ublkb").map(|number| (Way::Ublk, number)).or(of("nbd").map(|number| (Way::Nbd, number)))
}

/// What the system says of a device in a file of its folder.
fn said(places: &Places<'_>, node: &str, file: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(places.blocks).join(node).join(file)).ok()?;
    Some(text.trim().to_owned())
}

/// Names of ours, and the devices that they lead to.
fn links(places: &Places<'_>) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(places.links).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name_of(name.strip_prefix("weir-")?)?, fs::read_link(entry.path()).ok()?))
    });
    found.collect()
}

/// Whether a device is read only, and its queues, as far as the system tells.
pub fn shape_of(places: &Places<'_>, device: &Path) -> (Option<bool>, Option<u16>) {
    let node = device.file_name().unwrap_or_default().to_string_lossy();
    let is_read_only = said(places, &node, "ro").map(|text| text == "1");
    let queues = fs::read_dir(Path::new(places.blocks).join(&*node).join("mq")).ok();
    (is_read_only, queues.map(|queues| queues.count() as u16).filter(|&queues| queues > 0))
}

/// The process of ours that serves a ublk device.
fn our_server(number: u32) -> Option<u32> {
    let server = ublk::server_of(number)?;
    let name = fs::read_to_string(format!("/proc/{server}/comm")).ok()?;
    // The driver names who served it last, and that number may be another process's by now.
    let command = fs::read(format!("/proc/{server}/cmdline")).ok()?;
    let attaches = command.split(|&byte| byte == 0).any(|word| word == b"attach");
    (name.starts_with("weir") && attaches).then_some(server)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine with these devices, and what the system says of each.
    fn machine(name: &str, devices: &[(&str, &[(&str, &str)])]) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("weir-strays-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(folder.join("links")).unwrap();
        for (node, files) in devices {
            let of = folder.join("blocks").join(node);
            fs::create_dir_all(of.join("mq/0")).unwrap();
            fs::create_dir_all(of.join("mq/1")).unwrap();
            files.iter().for_each(|(file, text)| fs::write(of.join(file), text).unwrap());
        }
        folder
    }

    #[test]
    fn a_device_without_a_record_is_found_by_its_link_its_process_or_what_the_kernel_says() {
        let connected: &[(&str, &str)] =
            &[("pid", "7\n"), ("backend", "weir:far\n"), ("ro", "1\n")];
        let anothers: &[(&str, &str)] = &[("pid", "7\n"), ("backend", "qemu\n")];
        let folder = machine(
            "found",
            &[
                ("ublkb0", &[("ro", "0\n")]),
                ("ublkb1", &[]),
                ("ublkb2", &[]),
                ("ublkb3", &[]),
                ("nbd0", connected),
                ("nbd1", &[]),
                ("nbd2", anothers),
                ("sda", &[]),
            ],
        );
        let links = folder.join("links");
        symlink("/dev/ublkb0", links.join("weir-unit\\x2f7")).unwrap();
        symlink("/dev/ublkb3", links.join("weir-known")).unwrap();
        // Left from before; nothing is connected.
        symlink("/dev/nbd1", links.join("weir-left")).unwrap();
        let blocks = folder.join("blocks");
        let places = Places {
            blocks: blocks.to_str().unwrap(),
            links: links.to_str().unwrap(),
            server: |number| (number == 1).then_some(4711),
        };
        let known = Record {
            name: "known".into(),
            uri: "nbd://h/a".into(),
            identity: String::new(),
            way: Way::Ublk,
            number: 3,
            device: "/dev/ublkb3".into(),
            link: "/dev/disk/by-id/weir-known".into(),
            pid: 1,
        };
        let known = [Found { record: known, served: true, lost: false }];
        let mut found = all(&places, &known);
        found.sort_by(|a, b| a.record.device.cmp(&b.record.device));
        let told: Vec<_> = found
            .iter()
            .map(|Found { record, served, .. }| (&record.name[..], record.way, *served))
            .collect();
        let expected =
            [("far", Way::Nbd, false), ("unit/7", Way::Ublk, false), ("ublkb1", Way::Ublk, true)];
        assert_eq!(told, expected);
        assert_eq!(found[2].record.pid, 4711);
        let shape = |node: &str| shape_of(&places, Path::new(node));
        assert_eq!(shape("/dev/ublkb0"), (Some(false), Some(2)));
        assert_eq!(shape("/dev/nbd0"), (Some(true), Some(2)));
        assert_eq!(shape("/dev/nothing"), (None, None));
        fs::remove_dir_all(folder).unwrap();
    }
}
