//! `weir attach` and `weir detach`: volumes as disks of this machine. What serves a device is a process of its own, which
//! goes on when the command has returned.

use crate::device::{DATA_DEFAULT, is_socket, nbd_of};
use crate::output::{print, print_json, table};
use crate::status::{array, ask_status, place_in};
use crate::{End, Failure};
use client::nvme::SCHEME;
use serde_json::{Value, json};
use serve::attach::record::{FOLDER, Found, Record, Way, file_name};
use serve::attach::{AttachError, QUEUES_MAX, Wanted, find, list, run as serve_device};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the service of a package has its NBD socket (packaging/weir.toml).
const SERVICE_SOCKET: &str = "/run/weir/nbd.sock";
/// Queues unless they are chosen: more cost memory, and a connection each.
const QUEUES: usize = 4;

/// Make a volume, or a raw unit, a disk of this machine: /dev/ublkbN, or /dev/nbdN
///
/// It needs root. By Linux's ublk driver (6.4 and newer, `modprobe ublk_drv`) the disk is /dev/ublkbN; with --nbd it is
/// /dev/nbdN of the kernel's NBD client. Under /dev/disk/by-id it is called weir-NAME. Either end may be killed and started
/// again: the disk stays, and requests wait until both are back. A raw unit, unit/N, is a disk with zones (6.6 and newer), of a
/// server that has NVMe over TCP.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir attach default\n  \
    weir attach data --data /var/lib/weir\n  \
    weir attach nbd://10.0.0.5/data --nbd\n  \
    weir attach unit/0 --data weir-zones\n  \
    weir attach nvme://10.0.0.5:4420/unit/0 --name far\n  \
    weir attach --list\n\n\
    `weir detach NAME` takes it away. If its process was killed, the same command again goes on with the disk.")]
pub struct Args {
    /// The volume, or the raw unit; or its NBD or NVMe address, if its server is elsewhere
    #[arg(value_name = "VOLUME", required_unless_present = "list")]
    volume: Option<String>,
    /// Where its server is: the folder or file of the device that is served, or its NBD socket
    #[arg(long, value_name = "PLACE", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// By the kernel's NBD client, as /dev/nbdN
    #[arg(long)]
    nbd: bool,
    /// What it is called here [default: the volume's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Nothing may be written
    #[arg(long)]
    read_only: bool,
    /// Queues of the disk, each with a connection of its own: 1 to 64 [default: one a processor, 4 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    queues: Option<u16>,
    /// With --nbd: so long after a server has gone, or has not answered, its requests are asked of the next connection
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "nbd")]
    timeout: String,
    /// Stay, as the process that serves the disk: for a service manager
    #[arg(long)]
    foreground: bool,
    /// List what is attached
    #[arg(long, conflicts_with_all = ["volume", "foreground"])]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Take a disk away that `weir attach` has made
///
/// What is under way is finished before. A disk that is mounted, or part of another one, stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir detach default\n  \
    weir detach /dev/ublkb0\n  \
    weir detach --all")]
pub struct DetachArgs {
    /// Its name, or its device
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,
    /// All that are attached
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Although somebody uses it, who then gets errors
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let Some(volume) = args.volume.as_deref().filter(|_| !args.list) else {
        return show(args.json);
    };
    let wanted = wanted(args, volume)?;
    if args.foreground {
        let name = wanted.name.clone();
        let ready = |record: &Record| tell_and_close(record, args.json);
        return match serve_device(&wanted, ready) {
            Ok(()) => Ok(End::Good),
            Err(error) if error.says_name() => Err(error.to_string()),
            Err(error) => Err(format!("{name}: {error}")),
        };
    }
    in_background(&wanted.name)
}

fn wanted(args: &Args, volume: &str) -> Result<Wanted, Failure> {
    let uri = uri_of(volume, &args.data)?;
    let (export, is_zoned) = match uri.starts_with(SCHEME) {
        true => (format!("unit/{}", client::nvme::parse(&uri)?.1), true),
        false => (client::parse(&uri)?.1, false),
    };
    if is_zoned && args.nbd {
        return Err(format!(
            "{volume}: is a disk with zones, of which the kernel's NBD client knows nothing: attach it without --nbd"
        ));
    }
    let name = args.name.clone().unwrap_or(export);
    if name.is_empty() {
        return Err(format!(
            "{volume}: names no volume: say which, as in nbd://HOST/data, or --name"
        ));
    }
    if name.contains(char::is_control) {
        return Err(format!("--name {name:?}: has no control characters: for example data"));
    }
    let seconds = flash::quantity::duration_ns(&args.timeout).map(|ns| ns / flash::SECOND);
    let timeout_s = seconds.filter(|seconds| (1..=3600).contains(seconds)).ok_or_else(|| {
        format!("--timeout {}: must be a time from 1s to 1h: for example 60s", args.timeout)
    })?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = args.queues.unwrap_or(processors.min(QUEUES) as u16);
    let way = if args.nbd { Way::Nbd } else { Way::Ublk };
    let (read_only, queues_said) = (args.read_only, args.queues.is_some());
    Ok(Wanted { name, uri, way, read_only, queues, queues_said, timeout_s })
}

/// The address of a volume or a raw unit: as it is said, or of what is served at a place.
fn uri_of(volume: &str, data: &Path) -> Result<String, Failure> {
    if volume.starts_with(SCHEME) {
        client::nvme::parse(volume)?;
        return Ok(volume.into());
    }
    if volume.contains("://") {
        client::parse(volume)?;
        return Ok(volume.into());
    }
    if client::nvme::unit(volume).is_some()
        && let Some(status) = place_in(data).and_then(|place| ask_status(&place)).ok()
        && status["shards"][0]["mode"] == "raw"
    {
        return zoned(&status, volume, data);
    }
    let missing = data == Path::new(DATA_DEFAULT) && !data.exists();
    let socket = match missing && Path::new(SERVICE_SOCKET).exists() {
        // Nobody said which, and none was made here: the machine's own service is meant.
        true => SERVICE_SOCKET.into(),
        false if is_socket(data) => data.to_owned(),
        false => nbd_of(data),
    };
    let shown = data.display();
    let socket = std::path::absolute(&socket).map_err(|error| format!("{shown}: {error}"))?;
    if !is_socket(&socket) {
        // Its server may have been told another place for it, and tells that at its control socket.
        let told = place_in(data).and_then(|place| ask_status(&place)).ok();
        return told.and_then(|status| told_of(&status, volume)).ok_or_else(|| {
            format!(
                "{shown}: nobody serves a device there ({} is not there): start `weir serve --data {shown}`, or name \
                 the server's NBD socket with --data, or the volume's NBD address",
                socket.display()
            )
        });
    }
    let socket = socket.to_str().ok_or_else(|| format!("{shown}: a path here must be UTF-8"))?;
    Ok(format!("nbd+unix:///{volume}?socket={socket}"))
}

/// The address of a raw unit as a disk with zones, as the status of its server tells.
fn zoned(status: &Value, unit: &str, data: &Path) -> Result<String, Failure> {
    let place = array(&status["connect"]["nvme"]).first().and_then(Value::as_str);
    place.map(|place| format!("{place}{unit}")).ok_or_else(|| {
        format!(
            "{unit}: raw units are disks with zones by NVMe over TCP, which the server of {} does not have: start it with --nvme \
             127.0.0.1:4420, and with --write page (docs/attach.md)",
            data.display()
        )
    })
}

/// The NBD address of a volume, as the status of its server tells: on this machine, if there is one.
fn told_of(status: &Value, volume: &str) -> Option<String> {
    let places = array(&status["connect"]["nbd"]).iter().filter_map(Value::as_str);
    let (here, elsewhere): (Vec<&str>, Vec<&str>) =
        places.partition(|place| place.starts_with("nbd+unix:"));
    match (here.first(), elsewhere.first()) {
        (Some(place), _) => Some(place.replacen(":///?", &format!(":///{volume}?"), 1)),
        (None, Some(place)) => Some(format!("{place}{volume}")),
        (None, None) => None,
    }
}

/// Tells that the device is there, and says nothing more on standard output: who waits for its end need not.
fn tell_and_close(record: &Record, json: bool) {
    match json {
        true => print_json(&json_of(record, true, false)),
        false => print(&format!(
            "{}: {}, which is {} too\n",
            record.name,
            record.device.display(),
            record.link.display()
        )),
    }
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        // SAFETY: no memory is involved; both are open.
        unsafe { libc::dup2(nothing.as_raw_fd(), libc::STDOUT_FILENO) };
    }
}

/// Starts the same again as a process that stays, and waits until it has said what is there.
fn in_background(name: &str) -> Result<End, Failure> {
    if let Some(found) = list().into_iter().find(|found| found.served && found.record.name == name)
    {
        // What is said of this try does not belong into the log of that process.
        return Err(AttachError::Attached(Box::new(Some(found.record)), name.into()).to_string());
    }
    let log = Path::new(FOLDER).join(file_name(name) + ".log");
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!("{}: {error}: attach and detach as root (sudo)", log.display())
        }
        _ => format!("{}: {error}", log.display()),
    };
    fs::create_dir_all(FOLDER).map_err(failed)?;
    let messages = File::options().append(true).create(true).open(&log).map_err(failed)?;
    let before = messages.metadata().map_err(failed)?.len();
    let binary = std::env::current_exe().map_err(|error| format!("where weir is: {error}"))?;
    let mut child = Command::new(binary)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(messages)
        // What ends this command's group is not meant for it.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{name}: its process cannot be started: {error}"))?;
    let mut told = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_string(&mut told).ok();
    }
    if !told.is_empty() {
        std::io::stdout().write_all(told.as_bytes()).ok();
        return Ok(End::Good);
    }
    child.wait().ok();
    let said = fs::read(&log).map_err(failed)?;
    let said =
        String::from_utf8_lossy(said.get(before as usize..).unwrap_or_default()).into_owned();
    // It is told here, and nothing is left of the try.
    match before {
        0 => drop(fs::remove_file(&log)),
        before => drop(File::options().write(true).open(&log).map(|log| log.set_len(before))),
    }
    let reason = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
    Err(reason.map_or_else(|| format!("{name}: its process has ended: {said}"), Into::into))
}

fn json_of(record: &Record, served: bool, lost: bool) -> Value {
    json!({
        "name": record.name,
        "device": record.device,
        "link": record.link,
        "way": record.way,
        "uri": record.uri,
        "pid": record.pid,
        "served": served,
        "record_lost": lost,
    })
}

fn show(json: bool) -> Result<End, Failure> {
    let all = list();
    if json {
        let all = all.iter().map(|found| json_of(&found.record, found.served, found.lost));
        print_json(&Value::Array(all.collect()));
        return Ok(End::Good);
    }
    let mut rows = vec![["name", "device", "volume", "process"].map(String::from).to_vec()];
    rows.extend(all.iter().map(|Found { record, served, lost }| {
        let (volume, process) = match (lost, served) {
            (false, true) => (record.uri.clone(), record.pid.to_string()),
            (false, false) => (record.uri.clone(), "none: attach it again, or detach it".into()),
            (true, served) => {
                let process = if *served { record.pid.to_string() } else { "?".into() };
                ("?".into(), format!("{process}: its record is gone or damaged: detach it"))
            }
        };
        vec![record.name.clone(), record.device.display().to_string(), volume, process]
    }));
    print(&if all.is_empty() { "nothing is attached\n".into() } else { table(&rows) });
    Ok(End::Good)
}

pub fn detach(args: &DetachArgs) -> Result<End, Failure> {
    let wanted = match &args.name {
        Some(name) => vec![find(name).map_err(|error| error.to_string())?],
        None => list(),
    };
    let (mut detached, mut failures) = (Vec::new(), Vec::new());
    for found in &wanted {
        match serve::attach::detach(found, args.force) {
            Ok(()) => detached.push(found.record.name.clone()),
            Err(error) => failures.push(error.to_string()),
        }
    }
    match args.json {
        true => print_json(&json!({ "detached": detached })),
        false => detached.iter().for_each(|name| print(&format!("{name}: detached\n"))),
    }
    if failures.is_empty() { Ok(End::Good) } else { Err(failures.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::{told_of, uri_of, zoned};
    use serde_json::json;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_volume_is_found_by_its_address_its_folder_or_its_socket() {
        let folder = std::env::temp_dir().join(format!("weir-attach-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let refused = uri_of("data", &folder).unwrap_err();
        assert!(refused.contains("nobody serves a device there"), "{refused}");
        let socket = folder.join("nbd.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let expected = format!("nbd+unix:///data?socket={}", socket.display());
        assert_eq!(uri_of("data", &folder), Ok(expected.clone()));
        assert_eq!(uri_of("data", &socket), Ok(expected));
        assert_eq!(uri_of("nbd://h/x", &folder), Ok("nbd://h/x".into()));
        assert!(uri_of("nbd:///x", &folder).unwrap_err().contains("has no host"));
        assert_eq!(uri_of("nvme://h/unit/1", &folder), Ok("nvme://h/unit/1".into()));
        assert!(uri_of("nvme://h/data", &folder).unwrap_err().contains("names no raw unit"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_server_whose_socket_is_elsewhere_tells_where() {
        let told = |places: &[&str]| told_of(&json!({ "connect": { "nbd": places } }), "data");
        let (unix, tcp) = ("nbd+unix:///?socket=/run/n.sock", "nbd://127.0.0.1:10809/");
        assert_eq!(told(&[tcp, unix]).unwrap(), "nbd+unix:///data?socket=/run/n.sock");
        assert_eq!(told(&[tcp]).unwrap(), "nbd://127.0.0.1:10809/data");
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn a_raw_unit_is_where_nvme_hosts_connect_or_it_is_told_what_is_missing() {
        let told = |places: &[&str]| {
            let status = json!({ "connect": { "nvme": places } });
            zoned(&status, "unit/3", std::path::Path::new("weir-zones"))
        };
        assert_eq!(told(&["nvme://127.0.0.1:4420/"]), Ok("nvme://127.0.0.1:4420/unit/3".into()));
        assert!(told(&[]).unwrap_err().contains("--nvme"));
    }
}
