//! The config of a server: one TOML file, checked whole before anything starts. Every error names
//! the key, its value, the reason and an example, and all errors are told at once.
//!
//! An empty file is a config too: emulated flash in `./weir-data`, one volume, NBD on a socket
//! beside it, HTTP on loopback.

mod doors;
mod fast;
mod raw;
mod section;
mod volumes;

pub use section::ConfigError;
pub(crate) use section::Section;
pub use volumes::Wish;

use crate::device::{DeviceOptions, Kind, Losses, SHARDS_MAX, VolumeOptions};
use crate::files;
use crate::kept::{KeptOptions, KeptPlace};
use crate::medium::Injections;
use crate::policies::{PluginFile, WASM};
use crate::runtime::ring::DriverChoice;
use crate::runtime::shard::Bounds;
pub use crate::sockets::Access;
use crate::tls::TlsFiles;
use flash::{BLOCK_BYTES, SECOND};
use ftl::policy::DECISIONS;
use ftl::{PolicyNames, Settings};
use nand::{Faults, Profile};
use raw::RawSection;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Table;

/// Everything a server is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device, as it is to be made if it is not there.
    pub device: DeviceOptions,
    /// How the FTL works.
    pub ftl: Settings,
    /// The way to the kernel.
    pub driver: DriverChoice,
    /// The NBD server.
    pub nbd: NbdConfig,
    /// NVMe over TCP, if it is served.
    pub nvme: Option<NvmeConfig>,
    /// The volumes that are disks of guests.
    pub guests: Vec<GuestConfig>,
    /// The HTTP API, if there is one.
    pub http: Option<HttpConfig>,
    /// The socket that the same API has for whoever changes the server, if there is one.
    pub control: Option<ControlConfig>,
    /// Modules to load at the start.
    pub plugins: Vec<PluginFile>,
    /// The program that compiles them, called as [`crate::compiler`] says; `None`: this process does.
    pub compiler: Option<PathBuf>,
    /// Decisions that policies of these modules make, and their names.
    pub chosen: Vec<(String, String)>,
    /// What is done for each volume.
    pub wishes: Vec<Wish>,
    /// How long requests and stops may take.
    pub bounds: Bounds,
}

/// The NBD server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NbdConfig {
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Present if clients must use TLS.
    pub tls: Option<TlsFiles>,
    /// Most clients at a time.
    pub clients_max: usize,
    /// From connect to the choice of an export.
    pub handshake_ns: u64,
    /// How long a TCP peer may not answer the kernel, in nanoseconds; 0: for ever.
    pub tcp_timeout_ns: u64,
    /// Bytes of request buffers each shard may have in use.
    pub buffer_bytes_max: usize,
    /// How long a shard looks for work before it sleeps, once that has paid; 0: never.
    pub busy_poll_ns: u64,
}

/// NVMe over TCP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NvmeConfig {
    /// Where hosts connect.
    pub address: SocketAddr,
    /// Where else the discovery service is, if it is.
    pub discovery: Option<SocketAddr>,
    /// The name of the subsystem, if it is not made of the device's uuid.
    pub nqn: Option<String>,
    /// Hosts that may connect; empty: all.
    pub hosts: Vec<String>,
    /// Volumes that only some of them see, and which.
    pub volume_hosts: BTreeMap<String, Vec<String>>,
    /// The file with the secrets of hosts, if they have to authenticate.
    pub keys_file: Option<PathBuf>,
}

/// A volume as a disk of a guest (vhost-user).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GuestConfig {
    /// Its name.
    pub volume: String,
    /// Where hypervisors connect.
    pub path: PathBuf,
    /// Who of them may.
    pub access: Access,
}

/// The HTTP API over TCP: who shows no token there may look, and change nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HttpConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// Names beside those of this machine that requests may be for.
    pub hosts: Vec<String>,
    /// Holds the token of those who may do all. Made if it is not there.
    pub token_file: Option<PathBuf>,
    /// Most clients at a time.
    pub clients_max: usize,
    /// From the connection, or the last answer, to the end of a request's head.
    pub head_timeout_ns: u64,
}

/// The HTTP API over a socket in the file system: who may connect may do all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ControlConfig {
    /// Where it is.
    pub path: PathBuf,
    /// Who may connect.
    pub access: Access,
    /// Most clients at a time.
    pub clients_max: usize,
}

/// An address to listen at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Listen {
    /// A socket in the file system, and who may connect.
    Unix(PathBuf, Access),
    /// An address and port.
    Tcp(SocketAddr),
}

/// All that is wrong with a config, one line each.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads a config. Relative paths in it are relative to `base`, the folder of the file.
    pub fn parse(text: &str, base: &Path) -> Result<Self, ConfigErrors> {
        let table = table(text)?;
        let mut errors = Vec::new();
        let mut root = Section::new("", table, &mut errors);
        let plugins = plugins(&mut root, base);
        let mut chosen = Vec::new();
        let volumes::Sections { volumes, mut wishes, hosts, guests } =
            volumes::sections(&mut root, &plugins, base);
        let raw = raw::section(&mut root);
        let device = device(root.section("device"), base, volumes, raw);
        let is_raw = device.as_ref().is_some_and(|device| device.raw.is_some());
        let nbd = nbd(root.section("nbd"), base);
        let nvme = doors::nvme(root.section("nvme"), hosts, base);
        let http = doors::http(root.section("http"), base);
        let control = doors::control(root.section("control"), base);
        doors::sockets_apart(&mut root, (&nbd, control.as_ref()), &guests);
        let driver = runtime(root.section("runtime"));
        let mut ftl = ftl(root.section("ftl"), &plugins, (&mut chosen, is_raw));
        let bounds = bounds(root.section("server"));
        root.finish(&[
            "device", "raw", "volume", "plugin", "nbd", "nvme", "http", "control", "runtime",
            "ftl", "server",
        ]);
        match (errors.is_empty(), device) {
            (true, Some(mut device)) => {
                if let Some(raw) = &mut device.raw {
                    raw.settings.suspensions_max = ftl.suspensions_max;
                    raw.settings.idle_ns = ftl.idle_ns;
                    raw.settings.read_only = ftl.read_only;
                }
                let wide = chosen.iter().position(|(decision, _)| decision == "stream");
                if let Some(at) = wide
                    && wishes.iter().any(|wish| wish.stream.is_some())
                {
                    // For those only that do not say otherwise.
                    let (_, name) = chosen.remove(at);
                    for wish in &mut wishes {
                        wish.stream.get_or_insert_with(|| name.clone());
                    }
                }
                let places = volumes::in_order(&device.volumes);
                volumes::settle(&mut ftl, device.shards, &places, &wishes);
                for Wish { name, stream, .. } in &wishes {
                    if let Some(policy) = stream.as_ref().filter(|name| name.starts_with(WASM)) {
                        chosen.push((format!("stream/{name}"), policy.clone()));
                    }
                }
                Ok(Self {
                    compiler: None,
                    device,
                    ftl,
                    driver,
                    nbd,
                    nvme,
                    guests,
                    http,
                    control,
                    plugins,
                    chosen,
                    wishes,
                    bounds,
                })
            }
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Reads a config file.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = files::read_named_text(path).map_err(|error| {
            ConfigErrors(vec![ConfigError {
                key: path.display().to_string(),
                value: String::new(),
                reason: format!("cannot be read: {error}"),
                example: "weir serve --config weir.toml".into(),
            }])
        })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(".")))
    }
}

/// The keys of a file, not looked at yet.
pub(crate) fn table(text: &str) -> Result<Table, ConfigErrors> {
    text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        ConfigErrors(vec![ConfigError {
            key: "the file".into(),
            value: String::new(),
            reason: format!("is not TOML: line {line}: {}", e.message()),
            example: "[device]\npath = \"weir-data\"".into(),
        }])
    })
}

const VOLUME_BYTES_DEFAULT: u64 = 1 << 30;

/// The modules to load.
fn plugins(root: &mut Section<'_>, base: &Path) -> Vec<PluginFile> {
    let mut plugins: Vec<PluginFile> = Vec::new();
    for (index, table) in root.sections("plugin").into_iter().enumerate() {
        let mut section = Section::new(format!("plugin[{index}]."), table, root.errors);
        for (key, example) in [("name", "\"mine\""), ("file", "\"mine.wasm\"")] {
            if !section.has(key) {
                section.refuse(key, "", "is missing", example);
            }
        }
        let name = section.text("name", "\"mine\"");
        let file = section.text("file", "\"mine.wasm\"");
        if let Some(name) = &name
            && plugins.iter().any(|plugin| plugin.name == *name)
        {
            let reason = "another plugin has this name";
            section.refuse("name", &format!("{name:?}"), reason, "\"mine2\"");
        }
        section.finish(&["name", "file"]);
        if let (Some(name), Some(file)) = (name, file) {
            plugins.push(PluginFile { name, file: base.join(file) });
        }
    }
    plugins
}

/// Whether `name` is a policy of one of the modules; `Err` if its module is not there.
fn of_module(name: &str, plugins: &[PluginFile]) -> Result<bool, String> {
    let Some(module) = name.strip_prefix(WASM) else { return Ok(false) };
    if plugins.iter().any(|plugin| plugin.name == module) {
        return Ok(true);
    }
    let names: Vec<&str> = plugins.iter().map(|plugin| plugin.name.as_str()).collect();
    let there = if names.is_empty() { "none".into() } else { names.join(", ") };
    Err(format!("no [[plugin]] is called {module:?}; there are {there}"))
}

const DEVICE_KEYS: &[&str] = &[
    "kind",
    "mode",
    "path",
    "profile",
    "capacity",
    "op_percent",
    "shards",
    "channels",
    "dies_per_channel",
    "dilate",
    "faults",
    "fast",
    "kept_memory",
    "kept_memory_max",
];

fn device(
    mut section: Section<'_>,
    base: &Path,
    mut volumes: Vec<VolumeOptions>,
    raw: RawSection,
) -> Option<DeviceOptions> {
    let kind = section.choice("kind", &["nand", "file", "memory"]).unwrap_or("nand".into());
    let path = section.text("path", "\"weir-data\"").unwrap_or("weir-data".into());
    let path = base.join(path);
    refuse_emulation(&mut section, &kind);
    let named = section.text("profile", "\"mlc-25nm\"");
    let profile = profile(&mut section, named.as_deref(), &kind, base);
    let capacity = section.size("capacity", "\"8GiB\"");
    volumes::fit(&mut section, &volumes, capacity);
    let raw = raw::options(&mut section, raw, capacity, volumes.len());
    if raw.is_none() && volumes.is_empty() {
        volumes::check_only(&mut section, capacity);
        let blocks = capacity.unwrap_or(VOLUME_BYTES_DEFAULT) / BLOCK_BYTES as u64;
        volumes.push(VolumeOptions {
            name: "data".into(),
            blocks: blocks.max(1),
            read_only: false,
        });
    }
    let blocks_min = match &raw {
        None => capacity.unwrap_or(0).div_ceil(BLOCK_BYTES as u64),
        Some(_) => 0,
    };
    let op_percent = section.integer("op_percent", 1, 1000, "25").unwrap_or(25) as u32;
    let shards = section.integer("shards", 1, SHARDS_MAX, "1").unwrap_or(1) as u32;
    let channels_default = if kind == "file" { 8 * u64::from(shards) } else { 4 };
    let channels_default = channels_default.next_multiple_of(u64::from(shards));
    let channels = section.integer("channels", 1, 1024, "4").unwrap_or(channels_default) as u32;
    if !channels.is_multiple_of(shards) {
        let reason = format!("must be a multiple of shards = {shards}");
        section.refuse("channels", &channels.to_string(), reason, &(4 * shards).to_string());
    }
    if raw.is_some() {
        raw::check(&mut section, shards);
    }
    let dies_per_channel = section.integer("dies_per_channel", 1, 64, "2");
    let dies_per_channel = dies_per_channel.unwrap_or(if kind == "file" { 1 } else { 2 }) as u32;
    let dilate = section.integer("dilate", 1, 1_000_000, "10").unwrap_or(1) as u32;
    let (faults, losses, injections) = faults(section.section("faults"));
    let fast = fast::section(&mut section, &kind, &path, base, shards);
    let kept = kept(&mut section, &kind, base);
    section.finish(DEVICE_KEYS);
    let kind = match (kind.as_str(), profile) {
        ("file", _) => Kind::File { path },
        ("memory", Some(profile)) => Kind::Memory { profile },
        (_, Some(profile)) => Kind::Nand { path, profile },
        (_, None) => return None,
    };
    Some(DeviceOptions {
        kind,
        volumes,
        blocks_min,
        op_percent,
        channels,
        dies_per_channel,
        shards,
        faults,
        raw,
        fast,
        kept,
        losses,
        injections,
        dilate,
    })
}

/// Where a restart after a crash resumes from.
fn kept(section: &mut Section<'_>, kind: &str, base: &Path) -> KeptOptions {
    const EXAMPLE: &str = "\"auto\", \"off\" or \"/dev/shm/weir-mine\"";
    let place = match section.text("kept_memory", EXAMPLE).as_deref() {
        None | Some("auto") => KeptPlace::Auto,
        Some("off") => KeptPlace::Off,
        Some(path) if kind == "memory" => {
            let reason = "a device in memory is gone with the server: there is nothing to resume";
            section.refuse("kept_memory", &format!("{path:?}"), reason, "\"off\"");
            KeptPlace::Off
        }
        Some(path) => KeptPlace::At(base.join(path)),
    };
    let bytes_max = section.size("kept_memory_max", "\"256MiB\"").filter(|&bytes| bytes > 0);
    KeptOptions { place, bytes_max }
}

/// A file or disk is what it is: keys about emulated flash would be believed and have no effect.
fn refuse_emulation(section: &mut Section<'_>, kind: &str) {
    if kind != "file" {
        return;
    }
    for key in ["profile", "dies_per_channel", "dilate", "faults"] {
        if let Some(value) = section.remove(key) {
            section.errors.push(ConfigError {
                key: format!("device.{key}"),
                value: value.to_string(),
                reason: "has no effect: kind = \"file\" emulates no flash; leave it out".into(),
                example: "kind = \"file\"".into(),
            });
        }
    }
}

/// A built-in profile by name, or one in a file.
fn profile(
    section: &mut Section<'_>,
    named: Option<&str>,
    kind: &str,
    base: &Path,
) -> Option<Profile> {
    let name = named.unwrap_or(if kind == "memory" { "instant" } else { "mlc-25nm" });
    let example = "\"mlc-25nm\"";
    if !name.ends_with(".toml") {
        let found = Profile::builtin(name);
        if found.is_none() {
            let known = Profile::builtin_names().join(", ");
            let reason = format!("is neither built in ({known}) nor a file that ends in .toml");
            section.refuse("profile", &format!("{name:?}"), reason, example);
        }
        return found;
    }
    let read = files::read_text(&base.join(name)).map_err(|e| format!("cannot be read: {e}"));
    match read.and_then(|text| Profile::parse(&text).map_err(|e| e.to_string())) {
        Ok(profile) => Some(profile),
        Err(reason) => {
            section.refuse("profile", &format!("{name:?}"), reason, example);
            None
        }
    }
}

fn faults(mut section: Section<'_>) -> (Faults, Losses, Injections) {
    let faults = Faults {
        seed: section.integer("seed", 0, i64::MAX as u64, "1").unwrap_or(1),
        factory_bad: section.fraction("factory_bad", 0.5, "0.01").unwrap_or(0.0),
        program_fail: section.fraction("program_fail", 1.0, "0.0001").unwrap_or(0.0),
        erase_fail: section.fraction("erase_fail", 1.0, "0.0001").unwrap_or(0.0),
        correctable: section.fraction("correctable", 1.0, "0.01").unwrap_or(0.0),
        uncorrectable: section.fraction("uncorrectable", 1.0, "0.00001").unwrap_or(0.0),
        wear_errors: section.flag("wear_errors").unwrap_or(false),
        ..Faults::default()
    };
    let losses = Losses {
        fast_ns: section.duration("fast_gone", "\"10s\"").unwrap_or(0),
        capacity_ns: section.duration("capacity_gone", "\"10s\"").unwrap_or(0),
    };
    let injections = Injections {
        seed: faults.seed,
        slow: section.fraction("slow", 1.0, "0.001").unwrap_or(0.0),
        slow_ns: section.duration("slow_for", "\"100ms\"").unwrap_or(SECOND / 10),
        flush_fail: section.fraction("flush_fail", 1.0, "0.001").unwrap_or(0.0),
        io_error: section.fraction("io_error", 1.0, "0.0001").unwrap_or(0.0),
        lost_writes: section.fraction("lost_writes", 1.0, "0.0001").unwrap_or(0.0),
        stray_writes: section.fraction("stray_writes", 1.0, "0.0001").unwrap_or(0.0),
        stray_reads: section.fraction("stray_reads", 1.0, "0.0001").unwrap_or(0.0),
        flipped_reads: section.fraction("flipped_reads", 1.0, "0.0001").unwrap_or(0.0),
    };
    section.finish(&[
        "slow",
        "slow_for",
        "flush_fail",
        "io_error",
        "lost_writes",
        "stray_writes",
        "stray_reads",
        "flipped_reads",
        "seed",
        "factory_bad",
        "program_fail",
        "erase_fail",
        "correctable",
        "uncorrectable",
        "wear_errors",
        "fast_gone",
        "capacity_gone",
    ]);
    (faults, losses, injections)
}

/// How long a request and a stop may take.
fn bounds(mut section: Section<'_>) -> Bounds {
    let default = Bounds::default();
    let bounds = Bounds {
        slow_ns: section.duration("slow_request", "\"10s\"").unwrap_or(default.slow_ns),
        stop_ns: section.duration("stop_within", "\"30s\"").unwrap_or(default.stop_ns),
    };
    for (key, ns, example) in
        [("slow_request", bounds.slow_ns, "\"10s\""), ("stop_within", bounds.stop_ns, "\"30s\"")]
    {
        if !(SECOND / 10..=86_400 * SECOND).contains(&ns) {
            section.refuse_written(key, "must be 100ms to 1d", example);
        }
    }
    section.finish(&["slow_request", "stop_within"]);
    bounds
}

/// Where NBD clients are expected unless told otherwise.
const SOCKET_DEFAULT: &str = "weir.sock";

fn nbd(mut section: Section<'_>, base: &Path) -> NbdConfig {
    let listen = doors::listen(&mut section, base, SOCKET_DEFAULT);
    let required = section.choice("tls", &["off", "required"]).is_some_and(|tls| tls == "required");
    let certificate = section.text("tls_certificate", "\"server.pem\"");
    let key = section.text("tls_key", "\"server.key\"");
    let tls = match (required, certificate, key) {
        (true, Some(certificate), Some(key)) => {
            Some(TlsFiles { certificate: base.join(certificate), key: base.join(key) })
        }
        (true, certificate, _) => {
            let missing = if certificate.is_none() { "tls_certificate" } else { "tls_key" };
            let reason = "is missing, and tls = \"required\" needs it";
            section.refuse(missing, "", reason, "\"server.pem\"");
            None
        }
        (false, ..) => None,
    };
    doors::refuse_plain_tcp(&mut section, &listen, required);
    let clients_max = section.integer("clients_max", 1, 1000, "100").unwrap_or(100) as usize;
    let handshake_ns = section.duration("handshake_timeout", "\"10s\"").unwrap_or(10 * SECOND);
    let tcp_timeout_ns = section.duration("tcp_timeout", "\"60s\"").unwrap_or(60 * SECOND);
    if (1..SECOND).contains(&tcp_timeout_ns) {
        let reason = "must be at least 1s, or 0s for never";
        section.refuse_written("tcp_timeout", reason, "\"60s\"");
    }
    let buffers = section.size("buffers", "\"256MiB\"").unwrap_or(256 << 20);
    if buffers < 1 << 20 {
        let reason = "must be at least 1MiB";
        section.refuse_written("buffers", reason, "\"256MiB\"");
    }
    let busy_poll_ns = section.duration("busy_poll", "\"50us\"").unwrap_or(BUSY_POLL_NS);
    if busy_poll_ns > SECOND / 1000 {
        let reason = "must be at most 1ms: a shard burns its processor meanwhile";
        section.refuse_written("busy_poll", reason, "\"50us\"");
    }
    section.finish(&[
        "unix",
        "unix_mode",
        "unix_group",
        "tcp",
        "tcp_plain",
        "tcp_timeout",
        "tls",
        "tls_certificate",
        "tls_key",
        "clients_max",
        "handshake_timeout",
        "buffers",
        "busy_poll",
    ]);
    let buffer_bytes_max = buffers as usize;
    NbdConfig {
        listen,
        tls,
        clients_max,
        handshake_ns,
        tcp_timeout_ns,
        buffer_bytes_max,
        busy_poll_ns,
    }
}

/// The least that covers what a client at queue depth 1 takes from one reply to its next request
/// on common machines; what it costs at most, a shard woken every so often pays beside.
const BUSY_POLL_NS: u64 = 50 * flash::MICROSECOND;

fn runtime(mut section: Section<'_>) -> DriverChoice {
    let name = section.choice("driver", &DriverChoice::NAMES);
    section.finish(&["driver"]);
    name.and_then(|name| DriverChoice::by_name(&name)).unwrap_or_default()
}

fn ftl(
    mut section: Section<'_>,
    plugins: &[PluginFile],
    (chosen, is_raw): (&mut Vec<(String, String)>, bool),
) -> Settings {
    let mut settings = Settings::default();
    if let Some(handles) = section.integer("handles", 1, 16, "4") {
        settings.handles = handles as u8;
    }
    let mut number = |key: &str, max: u64, to: &mut u32| {
        if let Some(value) = section.integer(key, 0, max, &to.to_string()) {
            *to = value as u32;
        }
    };
    number("stripe_units", 4096, &mut settings.stripe_units);
    number("bands_free_low", 1 << 24, &mut settings.bands_free_low);
    number("refresh_bits", 1 << 16, &mut settings.refresh_bits);
    number("suspensions_max", 1 << 16, &mut settings.suspensions_max);
    number("relocation_blocks", 1 << 16, &mut settings.relocation_blocks);
    map(&mut section, is_raw, &mut settings);
    if let Some(percent) = section.integer("destage_above", 0, 95, "70") {
        settings.destage_above = percent as u8;
    }
    let mut duration = |key: &str, example: &str, to: &mut u64| {
        if let Some(value) = section.duration(key, example) {
            *to = value;
        }
    };
    duration("append_wait", "\"100us\"", &mut settings.append_wait_ns);
    duration("scrub_period", "\"30d\"", &mut settings.scrub_period_ns);
    duration("idle", "\"2ms\"", &mut settings.idle_ns);
    duration("read_slo", "\"5ms\"", &mut settings.read_slo_ns);
    if let Some(bytes) = section.size("checkpoint", "\"1GiB\"") {
        settings.checkpoint_slots = bytes / BLOCK_BYTES as u64;
    }
    if let Some(seed) = section.integer("seed", 0, i64::MAX as u64, "1") {
        settings.seed = seed;
    }
    settings.read_only = section.flag("read_only").unwrap_or(false);
    policies(section.section("policy"), plugins, chosen, &mut settings.policies);
    section.finish(&[
        "handles",
        "stripe_units",
        "append_wait",
        "read_slo",
        "bands_free_low",
        "checkpoint",
        "scrub_period",
        "refresh_bits",
        "suspensions_max",
        "idle",
        "relocation_blocks",
        "destage_above",
        "map_memory",
        "map_piece_blocks",
        "seed",
        "read_only",
        "policy",
    ]);
    settings
}

/// How much of the map is in DRAM, and in which pieces.
fn map(section: &mut Section<'_>, is_raw: bool, settings: &mut Settings) {
    if let Some(blocks) = section.integer("map_piece_blocks", 8, 1024, "1024") {
        if !blocks.is_power_of_two() {
            let reason = "must be a power of two from 8 to 1024";
            section.refuse_written("map_piece_blocks", reason, "64");
        }
        settings.map_piece_blocks = blocks as u32;
    }
    if let Some(bytes) = section.size("map_memory", "\"110MiB\"") {
        if is_raw && bytes > 0 {
            let reason = "has no effect: raw units have no map of blocks; leave it out";
            section.refuse_written("map_memory", reason, "\"0MiB\"");
        }
        settings.map_bytes = bytes;
    }
}

/// The policies that decide; those of modules, by decision, go to `chosen`.
fn policies(
    mut section: Section<'_>,
    plugins: &[PluginFile],
    chosen: &mut Vec<(String, String)>,
    names: &mut PolicyNames,
) {
    for &key in DECISIONS {
        let to = names.of_mut(key);
        let example = format!("{to:?}");
        let Some(value) = section.text(key, &example) else { continue };
        match of_module(&value, plugins) {
            // It comes into force when the server runs; until then the default decides.
            Ok(true) => chosen.push((key.into(), value)),
            Ok(false) => *to = value,
            Err(reason) => section.refuse(key, &format!("{value:?}"), reason, &example),
        }
    }
    if let Err(reason) = names.validate() {
        section.refuse("victim", "", reason, "\"greedy\"");
    }
    section.finish(DECISIONS);
}

#[cfg(test)]
mod tests;
