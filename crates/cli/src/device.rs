//! Which device a command means, and the config that results from a file and the command line.
//!
//! The command line is laid over the config as TOML before anything is checked, so that there is
//! one set of rules and one wording of errors, whoever wrote the value.

use crate::Failure;
use crate::contradiction::{self, Claims};
use crate::size::config_text;
use serve::config::Config;
use serve::device::{Kind, Table as VolumeTable, Volume};
use serve::files::read_named_text;
use serve::offline;
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The folder of a device unless told otherwise.
pub const DATA_DEFAULT: &str = "weir-data";
/// The volume of a device that nobody described.
const VOLUME_DEFAULT: &str = "default";
const CAPACITY_DEFAULT: &str = "8GiB";
const HTTP_DEFAULT: &str = "127.0.0.1:8420";
/// Longest path of a Unix socket.
const SOCKET_BYTES_MAX: usize = 107;

/// What a new device is made from; for `serve` and `format`.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "A new device (one that is there keeps what it was made with)")]
pub struct Shape {
    /// Size of the volume, e.g. 8GiB or 512MiB [default: 8GiB]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
    /// The flash to emulate: instant, slc, mlc-50nm, mlc-25nm, tlc, qlc, optane, or a .toml file
    /// [default: mlc-25nm]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Threads that share the device, each with channels of its own [default: 1]
    #[arg(long, value_name = "N")]
    pub shards: Option<u32>,
    /// Buses of the emulated flash, over all shards [default: 4]
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Dies on each bus; each works by itself [default: 2]
    #[arg(long, value_name = "N")]
    pub dies_per_channel: Option<u32>,
    /// Flash beyond the capacity, in percent of it; more means less GC [default: 25]
    #[arg(long, value_name = "PERCENT")]
    pub op_percent: Option<u32>,
    /// Put a fast tier before it, which every write goes to first: a folder (emulated, times of
    /// Optane), or a file or disk; a device that has none gets it at the next start
    #[arg(long, value_name = "PATH")]
    pub fast: Option<PathBuf>,
    /// Size of the fast tier [default: a sixteenth of the flash]
    #[arg(long, value_name = "SIZE", requires = "fast")]
    pub fast_capacity: Option<String>,
}

impl Shape {
    fn lay_over(&self, table: &mut Table) {
        if let Some(profile) = &self.profile {
            set(table, "device", "profile", profile.as_str().into());
        }
        if let Some(capacity) = &self.capacity {
            set(table, "device", "capacity", capacity.as_str().into());
        }
        if let Some(fast) = &self.fast {
            let path = std::path::absolute(fast).unwrap_or(fast.clone());
            let mut section = Table::new();
            section.insert("path".into(), path.to_string_lossy().into_owned().into());
            if let Some(capacity) = &self.fast_capacity {
                section.insert("capacity".into(), capacity.as_str().into());
            }
            set(table, "device", "fast", section.into());
        }
        let numbers = [
            ("channels", self.channels),
            ("dies_per_channel", self.dies_per_channel),
            ("shards", self.shards),
            ("op_percent", self.op_percent),
        ];
        for (key, value) in numbers {
            if let Some(value) = value {
                set(table, "device", key, i64::from(value).into());
            }
        }
    }
}

/// What raw units are made from, and how they are served; for `serve` and `format`.
#[derive(clap::Args, Debug, Default)]
#[command(
    next_help_heading = "Raw units: each is an export that clients write and erase themselves"
)]
pub struct RawShape {
    /// Make a device of raw units
    #[arg(long)]
    pub raw: bool,
    /// Dies that make a unit: 1 as TSSD has it, those of a channel for SDF [default: 1]
    #[arg(long, value_name = "N")]
    pub gang: Option<u32>,
    /// Share of the blocks kept back, e.g. 0.01 [default: 0.01, or what the device needs]
    #[arg(long, value_name = "SHARE")]
    pub spare: Option<f64>,
    /// What one write fills: block (a whole raw block) or page [default: block]
    #[arg(long, value_name = "UNIT")]
    pub write: Option<String>,
    /// When an erase is carried out: now or background [default: now]
    #[arg(long, value_name = "WHEN")]
    pub erase: Option<String>,
    /// Reads start and end at multiples of this, e.g. 8KiB [default: 4KiB]
    #[arg(long, value_name = "SIZE")]
    pub read_granule: Option<String>,
}

impl RawShape {
    fn lay_over(&self, table: &mut Table) {
        if self.raw {
            set(table, "device", "mode", "raw".into());
        }
        let values = [
            ("gang", self.gang.map(|gang| i64::from(gang).into())),
            ("spare", self.spare.map(Value::from)),
            ("write", self.write.as_deref().map(Value::from)),
            ("erase", self.erase.as_deref().map(Value::from)),
            ("read_granule", self.read_granule.as_deref().map(Value::from)),
        ];
        for (key, value) in values {
            if let Some(value) = value {
                set(table, "raw", key, value);
            }
        }
    }
}

/// What the command line says about a server or a new device.
#[derive(Default)]
pub struct Request<'a> {
    pub config: Option<&'a Path>,
    pub data: Option<&'a Path>,
    pub shape: Option<&'a Shape>,
    pub raw: Option<&'a RawShape>,
    pub memory: bool,
    /// Where HTTP listens; "none" or "off" for nowhere.
    pub http: Option<&'a str>,
    /// Other machines may reach it there.
    pub http_remote: bool,
    pub control: Option<&'a Path>,
    pub socket: Option<&'a Path>,
    pub tcp: Option<&'a str>,
    /// Other machines may reach it there, without TLS.
    pub tcp_plain: bool,
    /// Where NVMe hosts connect, and where discovery is.
    pub nvme: (Option<&'a str>, Option<&'a str>),
    /// How many times the clock of its flash is slowed.
    pub dilate: Option<u32>,
    /// Where hypervisors find the only volume as a disk.
    pub vhost: Option<&'a Path>,
    /// Expect a device to be made, not one that is there.
    pub fresh: bool,
    /// It will be opened for writing: a growth that was cut off goes on first.
    pub writes: bool,
}

/// A config, and the folder (or file) of its device.
pub struct Described {
    pub config: Config,
    /// Absolute.
    pub data: PathBuf,
}

/// Lays the command line over the config file, if any, and checks the whole.
pub fn describe(request: &Request<'_>) -> Result<Described, Failure> {
    let current = std::env::current_dir()
        .map_err(|error| format!("the current folder cannot be told: {error}: cd to another"))?;
    let (mut table, base) = match request.config {
        Some(path) => read_config(path, &current)?,
        None => (Table::new(), current.clone()),
    };
    let data = match (request.data, text_of(&table, "device", "path")) {
        (Some(data), _) => current.join(data),
        (None, Some(path)) => base.join(path),
        (None, None) => base.join(DATA_DEFAULT),
    };
    lay_over(&mut table, request, &data)?;
    let memory = text_of(&table, "device", "kind") == Some("memory");
    let mut found = None;
    if !memory && !request.fresh {
        if request.writes && !is_read_only(&table) {
            let resumed = serve::device::Device::resume_growth(&kind_of(&data));
            resumed.map_err(|error| error.to_string())?;
        }
        found = follow_existing(&mut table, request, &base, &data)?;
    }
    let names_volumes = table.contains_key("volume");
    add_volume(&mut table);
    if let Some(vhost) = request.vhost {
        lay_vhost(&mut table, vhost)?;
    }
    let mut config = Config::parse(&table.to_string(), &base).map_err(|errors| {
        let place = request.config.map_or("command line".into(), |path| path.display().to_string());
        format!("{place}: {errors}")
    })?;
    if let Some(volumes) = found.filter(|volumes| volumes.changed) {
        if !names_volumes {
            // What a device has that nobody describes is wished by nobody.
            config.wishes.clear();
        }
        config.adopt(&volumes);
    }
    Ok(Described { config, data })
}

fn is_read_only(table: &Table) -> bool {
    let ftl = table.get("ftl").and_then(Value::as_table);
    ftl.and_then(|ftl| ftl.get("read_only")).and_then(Value::as_bool).unwrap_or(false)
}

fn read_config(path: &Path, current: &Path) -> Result<(Table, PathBuf), Failure> {
    let place = path.display();
    let text = read_named_text(path).map_err(|error| {
        format!(
            "{place}: cannot be read: {error}: give the path of a config, or leave out --config"
        )
    })?;
    let table = text.parse::<Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!(
            "{place}: line {line}: {}; for example: [device]\\npath = \"weir-data\"",
            error.message()
        )
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok((table, current.join(folder)))
}

fn lay_over(table: &mut Table, request: &Request<'_>, data: &Path) -> Result<(), Failure> {
    set(table, "device", "path", utf8(data)?.into());
    if request.memory {
        set(table, "device", "kind", "memory".into());
    } else if is_file_or_disk(data) {
        set_default(table, "device", "kind", "file".into());
    }
    if let Some(shape) = request.shape {
        shape.lay_over(table);
    }
    if let Some(raw) = request.raw {
        raw.lay_over(table);
    }
    if let Some(times) = request.dilate {
        set(table, "device", "dilate", i64::from(times).into());
    }
    match request.http {
        Some("none" | "off") => set(table, "http", "enabled", false.into()),
        Some(address) => {
            set(table, "http", "enabled", true.into());
            set(table, "http", "address", address.into());
        }
        None => set_default(table, "http", "address", HTTP_DEFAULT.into()),
    }
    if request.http_remote {
        set(table, "http", "remote", true.into());
    }
    if let Some(address) = request.tcp {
        set(table, "nbd", "tcp", address.into());
    }
    for (key, value) in [("tcp", request.nvme.0), ("discovery", request.nvme.1)] {
        if let Some(value) = value {
            set(table, "nvme", key, value.into());
        }
    }
    if request.tcp_plain {
        set(table, "nbd", "tcp_plain", true.into());
        set(table, "nvme", "tcp_plain", true.into());
    }
    lay_sockets(table, request, data)
}

/// The sockets that nobody has named lie beside the device.
fn lay_sockets(table: &mut Table, request: &Request<'_>, data: &Path) -> Result<(), Failure> {
    let listens = text_of(table, "nbd", "unix").is_some() || text_of(table, "nbd", "tcp").is_some();
    let socket = match request.socket {
        Some(socket) => Some(std::path::absolute(socket).unwrap_or(socket.into())),
        None if listens => None,
        None => Some(beside(data, is_file(table, data), "nbd")),
    };
    if let Some(socket) = socket {
        set(table, "nbd", "unix", socket_text(&socket, "--socket")?.into());
    }
    let control = match request.control {
        Some(control) => Some(std::path::absolute(control).unwrap_or(control.into())),
        None if has(table, "control", "unix") => None,
        None => Some(beside(data, is_file(table, data), "control")),
    };
    if let Some(control) = control {
        set(table, "control", "unix", socket_text(&control, "--control")?.into());
    }
    Ok(())
}

/// The path of a socket as text, if the system takes it.
fn socket_text<'a>(socket: &'a Path, option: &str) -> Result<&'a str, Failure> {
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_BYTES_MAX {
        return Err(format!(
            "{}: the socket's path has {bytes} bytes, and the system allows {SOCKET_BYTES_MAX}: give \
             a shorter one, for example {option} /run/weir.sock",
            socket.display()
        ));
    }
    utf8(socket)
}

fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| format!("{}: is not UTF-8: choose a path that is", path.display()))
}

fn is_file(table: &Table, data: &Path) -> bool {
    data.is_file() || text_of(table, "device", "kind") == Some("file")
}

/// Where a socket of the device at `data` is: in its folder; beside it, if it is a file; and a disk has
/// no folder where one would be looked for.
fn beside(data: &Path, is_file: bool, name: &str) -> PathBuf {
    let short = if name == "nbd" { "sock".into() } else { format!("{name}.sock") };
    if is_block_device(data) {
        let disk = data.file_name().unwrap_or_default().to_string_lossy();
        std::path::absolute(format!("weir-{disk}.{short}")).unwrap_or_default()
    } else if is_file {
        data.with_extension(short)
    } else {
        data.join(format!("{name}.sock"))
    }
}

/// Where the control socket of the device at `data` is, unless a server was told another place.
pub fn control_of(data: &Path) -> PathBuf {
    beside(data, data.is_file(), "control")
}

/// Where the NBD socket of the device at `data` is, unless a server was told another place.
pub fn nbd_of(data: &Path) -> PathBuf {
    beside(data, data.is_file(), "nbd")
}

/// Whether a socket is there: of a server, if nobody has left it behind.
pub fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket())
}

/// A device that is there knows its volumes; what is said about it must not contradict it. Returns them where they are
/// needed before it is opened.
fn follow_existing(
    table: &mut Table,
    request: &Request<'_>,
    base: &Path,
    data: &Path,
) -> Result<Option<VolumeTable>, Failure> {
    if !exists(data) {
        return Ok(None);
    }
    let claims =
        Claims { table, file: request.config, shape: request.shape, raw: request.raw, base };
    contradiction::refuse(&claims, &kind_of(data), data)?;
    if follow_mode(table, &kind_of(data), data)? {
        return Ok(None);
    }
    let described = table.contains_key("volume") || has(table, "device", "capacity");
    if described && !wants_places(table) {
        return Ok(None);
    }
    let fast = table.get("device").and_then(|device| device.get("fast"));
    let fast = fast.and_then(|fast| fast.as_str().or(fast.get("path")?.as_str()));
    let found = volumes_of(data, fast.map(|fast| base.join(fast)).as_deref())?;
    if described {
        return Ok(Some(found));
    }
    let entry = |volume: &Volume| {
        let mut entry = Table::new();
        entry.insert("name".into(), volume.name.clone().into());
        let bytes = volume.blocks() * flash::BLOCK_BYTES as u64;
        entry.insert("size".into(), config_text(bytes).into());
        entry.insert("read_only".into(), volume.read_only.into());
        Value::Table(entry)
    };
    table.insert("volume".into(), Value::Array(found.volumes.iter().map(entry).collect()));
    Ok(Some(found))
}

/// What the config wishes depends on where volumes lie, which on a device whose volumes were changed only it knows.
fn wants_places(table: &Table) -> bool {
    let volumes = table.get("volume").and_then(Value::as_array);
    let wishes = |volume: &Value| {
        ["streams", "fast_share", "mapping"].iter().any(|key| volume.get(key).is_some())
    };
    has(table, "device", "fast") || volumes.is_some_and(|volumes| volumes.iter().any(wishes))
}

/// Lets the device that is there tell its mode, and how it is served unless that is said. True if it
/// is one of raw units, which offers no less than is claimed.
fn follow_mode(table: &mut Table, kind: &Kind, data: &Path) -> Result<bool, Failure> {
    let Ok(made) = serve::device::Device::description(kind) else { return Ok(false) };
    if let Some(mode) = made.get("mode") {
        set_default(table, "device", "mode", mode.clone());
    }
    let Some(Value::Table(raw)) = made.get("raw") else { return Ok(false) };
    let size = |text: Option<&str>| text.and_then(flash::quantity::bytes);
    let offered = size(made.get("offered").and_then(Value::as_str)).unwrap_or(u64::MAX);
    if let Some(claimed) = size(text_of(table, "device", "capacity"))
        && claimed > offered
    {
        return Err(format!(
            "{}: capacity {}: the raw units there offer {} together: leave the capacity out, or \
             name another device",
            data.display(),
            crate::size::bytes(claimed),
            crate::size::bytes(offered)
        ));
    }
    for (key, value) in raw {
        let value = match (key.as_str(), value.as_integer()) {
            ("read_granule", Some(bytes)) => config_text(bytes as u64).into(),
            _ => value.clone(),
        };
        set_default(table, "raw", key, value);
    }
    Ok(true)
}

/// The volumes of a device.
fn volumes_of(data: &Path, fast: Option<&Path>) -> Result<VolumeTable, Failure> {
    let settings = ftl::Settings::default();
    let kind = kind_of(data);
    let table = offline::look_beside(&kind, fast, &settings, |shards| offline::volumes_of(shards));
    let table = table.map_err(|error| error.to_string())?;
    table.ok_or_else(|| {
        format!(
            "{}: the volume table is damaged: `weir check` tells more; restore a backup",
            data.display()
        )
    })
}

/// One volume with the whole capacity, if the config describes none.
fn add_volume(table: &mut Table) {
    if text_of(table, "device", "mode") == Some("raw") {
        return set_default(table, "device", "capacity", CAPACITY_DEFAULT.into());
    }
    if table.contains_key("volume") {
        return;
    }
    let capacity = table.get("device").and_then(|device| device.get("capacity")).cloned();
    // What is no size is told as the device's capacity; the volume need not repeat it.
    let bytes = capacity.as_ref().and_then(Value::as_str).and_then(flash::quantity::bytes);
    if bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(flash::BLOCK_BYTES as u64)) {
        // Nor one that no volume can have.
        return;
    }
    let size = if bytes.is_some() { capacity } else { None };
    let mut volume = Table::new();
    volume.insert("name".into(), VOLUME_DEFAULT.into());
    volume.insert("size".into(), size.unwrap_or(CAPACITY_DEFAULT.into()));
    table.insert("volume".into(), Value::Array(vec![Value::Table(volume)]));
}

/// The only volume is a disk of guests, too.
fn lay_vhost(table: &mut Table, vhost: &Path) -> Result<(), Failure> {
    let path = std::path::absolute(vhost).unwrap_or(vhost.into());
    let path = socket_text(&path, "--vhost")?.to_owned();
    let volumes = table.get_mut("volume").and_then(Value::as_array_mut);
    match volumes.map(Vec::as_mut_slice) {
        Some([Value::Table(volume)]) => {
            volume.insert("vhost".into(), path.into());
            Ok(())
        }
        Some([_, _, ..]) => {
            Err("--vhost: is for the only volume, and there are several: say vhost = \"PATH\" in \
                                 each [[volume]] of a config"
                .into())
        }
        _ => Err("--vhost: raw units are no disks of guests: leave --raw or --vhost out".into()),
    }
}

fn section<'a>(table: &'a mut Table, name: &str) -> Option<&'a mut Table> {
    // What is no table there is told by the config's own check.
    table.entry(name).or_insert_with(|| Table::new().into()).as_table_mut()
}

fn set(table: &mut Table, name: &str, key: &str, value: Value) {
    if let Some(section) = section(table, name) {
        section.insert(key.into(), value);
    }
}

fn set_default(table: &mut Table, name: &str, key: &str, value: Value) {
    if let Some(section) = section(table, name) {
        section.entry(key).or_insert(value);
    }
}

fn has(table: &Table, name: &str, key: &str) -> bool {
    table.get(name).and_then(|section| section.get(key)).is_some()
}

fn text_of<'a>(table: &'a Table, name: &str, key: &str) -> Option<&'a str> {
    table.get(name)?.get(key)?.as_str()
}

/// The kind of the device at `data`, to open it: what it emulates it knows itself.
pub fn kind_of(data: &Path) -> Kind {
    if is_file_or_disk(data) {
        return Kind::File { path: data.into() };
    }
    let profile = nand::Profile::builtin("instant").expect("a built-in profile");
    Kind::Nand { path: data.into(), profile }
}

fn is_file_or_disk(path: &Path) -> bool {
    path.is_file() || is_block_device(path)
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// True if there is a device.
pub fn exists(data: &Path) -> bool {
    serve::device::Device::exists(&kind_of(data))
}

#[cfg(test)]
mod tests {
    use super::{RawShape, Request, Shape, describe};
    use serve::config::{Access, Listen};
    use serve::device::Kind;
    use std::path::Path;

    fn described(shape: &Shape, http: Option<&str>) -> Result<super::Described, String> {
        let data = Some(Path::new("/nowhere/at/all"));
        describe(&Request { data, shape: Some(shape), http, ..Request::default() })
    }

    #[test]
    fn nothing_said_means_eight_gib_of_mlc_beside_its_socket() {
        let described = described(&Shape::default(), None).unwrap();
        let device = &described.config.device;
        assert!(matches!(&device.kind, Kind::Nand { profile, .. } if profile.name == "mlc-25nm"));
        assert_eq!(device.volumes.len(), 1);
        assert_eq!(
            (device.volumes[0].name.as_str(), device.volumes[0].blocks),
            ("default", 2 << 20)
        );
        let socket = Listen::Unix("/nowhere/at/all/nbd.sock".into(), Access::OWNER);
        assert_eq!(described.config.nbd.listen, [socket]);
        let http = described.config.http.unwrap();
        assert_eq!((http.address, http.token_file), ("127.0.0.1:8420".parse().unwrap(), None));
        let control = described.config.control.unwrap();
        assert_eq!(control.path, Path::new("/nowhere/at/all/control.sock"));
        assert_eq!(control.access, Access::OWNER);
    }

    #[test]
    fn the_command_line_goes_over_the_config_and_its_errors_name_the_value() {
        let shape = Shape { capacity: Some("64MiB".into()), ..Shape::default() };
        let config = described(&shape, Some("none")).unwrap().config;
        assert_eq!((config.device.volumes[0].blocks, config.http), (16384, None));
        let banana = Shape { capacity: Some("banana".into()), ..Shape::default() };
        let error = described(&banana, Some("nonsense")).err().unwrap();
        assert!(error.contains("\"banana\"") && error.contains("\"nonsense\""), "{error}");
        assert!(!error.contains("volume["), "told once: {error}");
    }

    #[test]
    fn the_only_volume_is_a_disk_of_guests_where_the_command_line_says_so() {
        let (data, vhost) =
            (Some(Path::new("/nowhere/at/all")), Some(Path::new("/run/weir.vhost")));
        let config = describe(&Request { data, vhost, ..Request::default() }).unwrap().config;
        let guest = &config.guests[0];
        assert_eq!((&*guest.volume, &*guest.path), ("default", Path::new("/run/weir.vhost")));
        let raw = RawShape { raw: true, ..RawShape::default() };
        let raw = describe(&Request { data, vhost, raw: Some(&raw), ..Request::default() });
        assert!(raw.err().unwrap().contains("--vhost: raw units"));
        let file = std::env::temp_dir().join(format!("weir-vhost-{}.toml", std::process::id()));
        let volume = |name| format!("[[volume]]\nname = \"{name}\"\nsize = \"4MiB\"\n");
        std::fs::write(&file, volume("a") + &volume("b")).unwrap();
        let two = describe(&Request { config: Some(&file), data, vhost, ..Request::default() });
        std::fs::remove_file(&file).unwrap();
        assert!(two.err().unwrap().contains("--vhost: is for the only volume"));
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_refused_with_the_mend() {
        let data = format!("/tmp/{}", "x".repeat(120));
        let error = describe(&Request { data: Some(Path::new(&data)), ..Request::default() });
        let error = error.err().unwrap();
        assert!(error.contains("--socket"), "{error}");
    }
}
