//! The configs of a node and of the client of a volume: those of any part of a pool, a section of their own, and the
//! sections of `weir serve` that have a meaning for them.

use crate::config::{Config, ConfigErrors, Section};
use crate::pool::PoolError;
use crate::pool::config::{self, PartConfig};
use crate::pool::volume::Repairs;
use flash::SECOND;
use pool::profile::Profile;
use pool::words::NodeId;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Table;

/// What a node is told.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Of which pool it is, and where its control plane is.
    pub part: PartConfig,
    /// Who it is.
    pub node: NodeId,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Guests at a time.
    pub guests_max: usize,
    /// What its drive can do.
    pub profile: Option<Profile>,
    /// The socket for `weir pool`'s questions to this process.
    pub control: Option<PathBuf>,
    /// Of it, the device and the driver count.
    pub server: Config,
}

/// What the client of a volume is told.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Of which pool it is, and where its control plane is.
    pub part: PartConfig,
    /// The volume that it serves.
    pub volume: String,
    /// What it calls itself.
    pub name: String,
    /// Nodes that are away are not waited for when it opens the volume.
    pub go_on: bool,
    /// What repair and scrub may take.
    pub repairs: Repairs,
    /// The socket for `weir pool`'s questions to this process.
    pub control: Option<PathBuf>,
    /// Of it, all but the device counts.
    pub server: Config,
}

/// A number is put behind it, and both have to fit what nodes take.
const NAME_BYTES_MAX: usize = 40;

const OF_PARTS: [&str; 3] = ["pool", "plane", "controller"];
const EXAMPLE: &str = "\"10.0.0.1:7402\"";

impl NodeConfig {
    /// Reads a config file.
    ///
    /// # Errors
    /// All that is wrong with it, by key.
    pub fn load(path: &Path) -> Result<Self, PoolError> {
        config::load(path, Self::parse)
    }

    /// Reads a config; relative paths are relative to `base`.
    ///
    /// # Errors
    /// As [`NodeConfig::load`].
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigErrors> {
        let (part, own, rest) = split(text, "node")?;
        let mut errors = Vec::new();
        let mut section = Section::new("node.", own, &mut errors);
        if !section.has("id") {
            section.refuse("id", "", "is missing", "1");
        }
        let node = section.integer("id", 1, u64::from(u32::MAX), "1");
        if !section.has("listen") {
            section.refuse("listen", "", "is missing", EXAMPLE);
        }
        let listen = section.address("listen", EXAMPLE);
        let guests_max = section.integer("guests_max", 1, 1 << 16, "256").unwrap_or(256) as usize;
        let control = section.text("control", "\"node.sock\"").map(|path| base.join(path));
        let profile = profile(&mut section, base);
        section.finish(&["id", "listen", "guests_max", "control", "profile"]);
        let part = PartConfig::of_table(part, base);
        let server = of_server(rest, base, &["device", "raw", "runtime", "ftl"]);
        let (part, server) = all(errors, part, server)?;
        let (Some(node), Some(listen)) = (node, listen) else {
            unreachable!("what is missing was told")
        };
        Ok(Self { part, node: NodeId(node as u32), listen, guests_max, profile, control, server })
    }
}

/// A built-in one, or a file of `weir profile`.
fn profile(section: &mut Section<'_>, base: &Path) -> Option<Profile> {
    let example = "\"drive.profile\"";
    let name = section.text("profile", example)?;
    if let Some(profile) = Profile::builtin(&name) {
        return Some(profile);
    }
    let path = base.join(&name);
    let read = crate::files::read_named_text(&path).map_err(|error| error.to_string());
    let parsed =
        read.and_then(|text| Profile::parse(&name, &text).map_err(|error| error.to_string()));
    match parsed {
        Ok(profile) => Some(profile),
        Err(reason) => {
            section.refuse("profile", &format!("{name:?}"), reason, example);
            None
        }
    }
}

impl VolumeConfig {
    /// Reads a config file.
    ///
    /// # Errors
    /// All that is wrong with it, by key.
    pub fn load(path: &Path) -> Result<Self, PoolError> {
        config::load(path, Self::parse)
    }

    /// Reads a config; relative paths are relative to `base`.
    ///
    /// # Errors
    /// As [`VolumeConfig::load`].
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigErrors> {
        let (part, own, rest) = split(text, "client")?;
        let mut errors = Vec::new();
        let mut section = Section::new("client.", own, &mut errors);
        if !section.has("volume") {
            section.refuse("volume", "", "is missing", "\"data\"");
        }
        let volume = section.text("volume", "\"data\"").unwrap_or_default();
        let name = section.text("name", "\"client-1\"").unwrap_or("client".into());
        if name.len() > NAME_BYTES_MAX {
            let reason = format!("at most {NAME_BYTES_MAX} bytes");
            section.refuse("name", &format!("{name:?}"), reason, "\"client-1\"");
        }
        let go_on = section.flag("go_on").unwrap_or(false);
        let control = section.text("control", "\"client.sock\"").map(|path| base.join(path));
        let repairs = repairs(&mut section);
        section.finish(&[
            "volume",
            "name",
            "go_on",
            "control",
            "repair_rate",
            "repair_copies",
            "absence",
            "spread",
            "scrub_rate",
        ]);
        let part = PartConfig::of_table(part, base);
        let sections = ["nbd", "http", "control", "runtime", "ftl", "plugin", "server"];
        let server = of_server(rest, base, &sections);
        let (part, server) = all(errors, part, server)?;
        Ok(Self { part, volume, name, go_on, repairs, control, server })
    }
}

/// What repair and scrub of a volume may take.
fn repairs(section: &mut Section<'_>) -> Repairs {
    let mut repairs = Repairs::default();
    let mut rate = |key: &str, example: &str, least: u64, value: &mut u64| {
        let Some(bytes) = section.size(key, example) else { return };
        if bytes != least && bytes < RATE_MIN {
            let reason =
                if least == 0 { "must be 64KiB or more, or 0" } else { "must be 64KiB or more" };
            section.refuse(key, &format!("{bytes} bytes"), reason, example);
        }
        *value = bytes;
    };
    rate("repair_rate", "\"100MiB\"", RATE_MIN, &mut repairs.bytes_per_s_max);
    rate("scrub_rate", "\"8MiB\"", 0, &mut repairs.scrub_bytes_per_s);
    if let Some(copies) = section.integer("repair_copies", 1, 256, "8") {
        repairs.copies_max = copies as u32;
    }
    if let Some(ns) = section.duration("absence", "\"30s\"") {
        if !(SECOND..=24 * 3600 * SECOND).contains(&ns) {
            section.refuse("absence", &format!("{ns} ns"), "must be 1s to 86400s", "\"30s\"");
        }
        repairs.absence_ns = ns;
    }
    if let Some(percent) = section.integer("spread", 1, 100, "10") {
        repairs.spread_max = percent as f64 / 100.0;
    }
    repairs
}

/// Slower than that nothing ends.
const RATE_MIN: u64 = 64 << 10;

/// What all parts of a pool have, the section `own`, and the rest.
fn split(text: &str, own: &str) -> Result<(Table, Table, Table), ConfigErrors> {
    let (mut part, mut rest) = (Table::new(), Table::new());
    let mut mine = Table::new();
    for (key, value) in crate::config::table(text)? {
        match value {
            toml::Value::Table(table) if key == own => mine = table,
            value if OF_PARTS.contains(&&*key) => drop(part.insert(key, value)),
            value => drop(rest.insert(key, value)),
        }
    }
    Ok((part, mine, rest))
}

/// The config of a server, of which only these sections have a meaning here.
fn of_server(rest: Table, base: &Path, sections: &[&str]) -> Result<Config, ConfigErrors> {
    let mut errors = Vec::new();
    let mut root = Section::new("", rest.clone(), &mut errors);
    sections.iter().for_each(|section| drop(root.remove(section)));
    root.finish(sections);
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    Config::parse(&rest.to_string(), base)
}

/// All errors of all parts at once.
fn all(
    mut errors: Vec<crate::config::ConfigError>,
    part: Result<PartConfig, ConfigErrors>,
    server: Result<Config, ConfigErrors>,
) -> Result<(PartConfig, Config), ConfigErrors> {
    match (part, server) {
        (Ok(part), Ok(server)) if errors.is_empty() => Ok((part, server)),
        (part, server) => {
            errors.extend(part.err().map(|of| of.0).unwrap_or_default());
            errors.extend(server.err().map(|of| of.0).unwrap_or_default());
            Err(ConfigErrors(errors))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: &str = "[pool]\nid = \"000000000000000000000000000000ff\"\nauthority = \"a\"\n\
                        certificate = \"b\"\nkey = \"c\"\n[plane]\naddress = \"127.0.0.1:7\"\n";

    #[test]
    fn a_node_is_a_part_with_a_device_of_raw_units() {
        let text = format!(
            "{PART}[node]\nid = 3\nlisten = \"127.0.0.1:0\"\nprofile = \"S4510\"\n\
             [device]\nmode = \"raw\"\npath = \"d\"\n"
        );
        let wrong = NodeConfig::parse(&text, Path::new("/base")).expect_err("no such profile");
        assert!(wrong.to_string().contains("node.profile"), "{wrong}");
        let name = Profile::names().next().expect("there are profiles");
        let config = NodeConfig::parse(&text.replace("S4510", name), Path::new("/base"));
        let config = config.expect("whole");
        assert_eq!(config.node, NodeId(3));
        assert!(config.server.device.raw.is_some() && config.profile.is_some());
    }

    #[test]
    fn what_repair_and_scrub_may_take_is_told_within_bounds() {
        let parse = |keys: &str| {
            let text = format!("{PART}[client]\nvolume = \"data\"\n{keys}");
            VolumeConfig::parse(&text, Path::new("/base")).map_err(|errors| errors.to_string())
        };
        assert_eq!(parse("").expect("whole").repairs, Repairs::default());
        let keys = "repair_rate = \"1GiB\"\nrepair_copies = 3\nabsence = \"2s\"\nspread = 25\n\
                    scrub_rate = \"0KiB\"\n";
        let wanted = Repairs {
            bytes_per_s_max: 1 << 30,
            copies_max: 3,
            absence_ns: 2 * SECOND,
            spread_max: 0.25,
            scrub_bytes_per_s: 0,
        };
        assert_eq!(parse(keys).expect("whole").repairs, wanted);
        for (keys, said) in [
            ("repair_rate = \"0KiB\"\n", "client.repair_rate"),
            ("scrub_rate = \"1KiB\"\n", "or 0"),
            ("repair_copies = 0\n", "client.repair_copies"),
            ("absence = \"10ms\"\n", "client.absence"),
            ("spread = 0\n", "client.spread"),
        ] {
            let text = parse(keys).map(drop).expect_err(keys);
            assert!(text.contains(said), "{keys}: {text}");
        }
    }

    #[test]
    fn what_is_wrong_in_any_section_is_told_at_once() {
        let text = "[pool]\n[node]\nid = 0\n[nbd]\n";
        let errors =
            NodeConfig::parse(text, Path::new("/")).expect_err("much is wrong").to_string();
        for part in ["node.id", "node.listen", "pool.id", "plane.address", "nbd"] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        let text = format!("{PART}[client]\nvolum = \"x\"\n[device]\npath = \"d\"\n");
        let errors = VolumeConfig::parse(&text, Path::new("/")).expect_err("wrong").to_string();
        for part in ["client.volume", "client.volum ", "device"] {
            assert!(errors.contains(part) || errors.contains(part.trim()), "{part}: {errors}");
        }
    }
}
