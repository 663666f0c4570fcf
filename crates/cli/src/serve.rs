//! `weir serve`: makes the device if it is not there, serves it until SIGTERM, SIGINT or SIGHUP, and tells
//! how to connect. The line that begins with `ready` is the last one printed.

use crate::device::{self, Described, RawShape, Request, Shape};
use crate::output::say;
use crate::{End, Failure};
use serve::config::{Config, Listen};
use serve::device::Kind;
use serve::{Ready, ServeError};
use std::fs;
use std::path::{Path, PathBuf};

/// In the device's folder while it is served: where the HTTP API listens.
pub const ADDRESS_FILE: &str = "http-address";

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir serve\n      8 GiB of emulated MLC flash in ./weir-data, made if it is not there\n  \
    weir serve --data /var/lib/weir --capacity 100GiB --profile tlc --shards 2\n      \
    a larger one, on two threads\n  \
    weir serve --raw --gang 2 --read-granule 8KiB\n      raw units of two dies each, written and \
    erased by the client: see the crate `client`\n  \
    weir serve --memory --capacity 2GiB\n      without files and without delays; gone at the end\n  \
    weir serve --memory --capacity 2GiB --vhost weir.vhost\n      the volume as a disk of a virtual machine, \
    too: QEMU connects there (docs/vhost.md)\n  \
    weir serve --config weir.toml\n      all that can be chosen: TLS, several volumes, policies\n  \
    weir serve --data /dev/sdx --capacity 100GiB\n      \
    a disk instead of emulated flash; see `weir format` if something is on it\n\n\
    The socket, the addresses and commands to try are printed when it is ready.\n\
    It ends with status 0 on SIGTERM, SIGHUP or Ctrl-C; with 2 if not everything could be made durable in\n\
    time, or if the folder of the device is gone; and at once, with 1, on a second signal, a second later or more. What was\n\
    acknowledged survives any other end too.")]
pub struct Args {
    /// A config file in TOML (docs/config.md tells every key); options here win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of the device; or a disk, or a plain file, to serve from [default: weir-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep the device in memory: nothing remains
    #[arg(long)]
    memory: bool,
    /// Where status, metrics and dashboard are; port 0 picks one, `none` for nowhere
    /// [default: 127.0.0.1:8420]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Let that be an address which other machines reach: everybody there may see status and metrics
    #[arg(long)]
    http_remote: bool,
    /// The Unix socket for whoever changes the server, as `weir ctl` does [default: control.sock in
    /// the folder of the device]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The Unix socket for NBD clients [default: nbd.sock in the folder of the device]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve NBD at this address, e.g. 127.0.0.1:10809, and at a socket only if --socket names one
    #[arg(long, value_name = "ADDR")]
    tcp: Option<String>,
    /// Serve NVMe over TCP at this address too, e.g. 127.0.0.1:4420: each volume is a namespace
    #[arg(long, value_name = "ADDR")]
    nvme: Option<String>,
    /// Where NVMe's discovery service is beside it; `none` for nowhere [default: port 8009 there]
    #[arg(long, value_name = "ADDR", requires = "nvme")]
    nvme_discovery: Option<String>,
    /// Let hypervisors (QEMU, Cloud Hypervisor) take the only volume as a disk of a guest, over vhost-user at this
    /// Unix socket; of several volumes each says so in the config
    #[arg(long, value_name = "PATH")]
    vhost: Option<PathBuf>,
    /// Let these be addresses which other machines reach, without TLS: everybody there may read and
    /// write all data
    #[arg(long)]
    tcp_plain: bool,
    /// After damage: have the blocks that are refused because they may be older than what was written
    /// last, as they were found, and write again. For this one start; `weir check` tells what is refused
    #[arg(long)]
    salvage: bool,
    /// Slow the clock of the emulated flash so many times, for flash that is faster than this machine;
    /// times and rates are then of a device that is as many times slower
    #[arg(long, value_name = "TIMES")]
    dilate: Option<u32>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    raw: RawShape,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let mut described = device::describe(&Request {
        config: args.config.as_deref(),
        data: args.data.as_deref(),
        shape: Some(&args.shape),
        raw: Some(&args.raw),
        writes: true,
        memory: args.memory,
        http: args.http.as_deref(),
        http_remote: args.http_remote,
        control: args.control.as_deref(),
        socket: args.socket.as_deref(),
        tcp: args.tcp.as_deref(),
        tcp_plain: args.tcp_plain,
        nvme: (args.nvme.as_deref(), args.nvme_discovery.as_deref()),
        dilate: args.dilate,
        vhost: args.vhost.as_deref(),
        fresh: false,
    })?;
    described.config.ftl.salvage = args.salvage;
    // This very program, even if a newer one has taken its place meanwhile.
    described.config.compiler = Some("/proc/self/exe".into());
    let Described { config, data } = &described;
    if let Err(error) = serve::check(config) {
        let place = args.config.as_ref().unwrap_or(data);
        return Err(format!("{}: {error}", place.display()));
    }
    let made = make_socket_folders(config)?;
    let exists = serve::device::Device::exists(&config.device.kind);
    match &config.device.kind {
        Kind::Memory { .. } => say("a device in memory: nothing of it remains\n"),
        _ if exists => say(&format!("the device in {}\n", data.display())),
        _ => say(&format!("making a device in {}\n", data.display())),
    }
    let address_file = data.join(ADDRESS_FILE);
    let tls = config.nbd.tls.is_some();
    let result = serve::run(config, |ready| {
        // What a server before us left there is not ours.
        fs::remove_file(&address_file).ok();
        if let Some(address) = ready.http
            && let Err(error) =
                serve::files::write(&address_file, format!("{address}\n").as_bytes())
            && data.is_dir()
        {
            tracing::warn!(%error, "{}: `weir status --data` cannot find us", address_file.display());
        }
        say(&greeting(ready, tls));
    });
    match result {
        Ok(()) => {
            fs::remove_file(&address_file).ok();
            Ok(End::Good)
        }
        Err(error) => {
            for folder in made.iter().rev() {
                // Those that hold something stay.
                fs::remove_dir(folder).ok();
            }
            let text = error.to_string();
            let mend = if text.contains("http://") { ", or --http none" } else { "" };
            // Some of these are about the device without naming it; a conflict at a socket has nothing to do
            // with it.
            let named = text.contains(&*data.to_string_lossy())
                || text.contains("://")
                || matches!(error, ServeError::Listen { .. });
            let place = if named { String::new() } else { format!("{}: ", data.display()) };
            Err(format!("{place}{text}{mend}"))
        }
    }
}

/// A socket needs its folder before there is a device in it. Returns those that were not there, the
/// outer before the inner.
fn make_socket_folders(config: &Config) -> Result<Vec<PathBuf>, Failure> {
    let unix = config.nbd.listen.iter().filter_map(|listen| match listen {
        Listen::Unix(path, _) => Some(path),
        Listen::Tcp(_) => None,
    });
    let control = config.control.as_ref().map(|control| &control.path);
    let guests = config.guests.iter().map(|guest| &guest.path);
    let token = config.http.as_ref().and_then(|http| http.token_file.as_ref());
    let mut made = Vec::new();
    for folder in unix.chain(control).chain(guests).chain(token).filter_map(|path| path.parent()) {
        let missing = folder.ancestors().take_while(|folder| !folder.exists());
        let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        made.extend(missing.into_iter().rev());
        fs::create_dir_all(folder).map_err(|error| {
            format!(
                "{}: the folder of the socket cannot be made: {error}: choose another with \
                 --data, --socket, --vhost or --control",
                folder.display()
            )
        })?;
    }
    Ok(made)
}

/// What people paste into another terminal.
pub fn greeting(ready: &Ready, tls: bool) -> String {
    let mut text = String::new();
    if let Some(shape) = &ready.raw {
        text.push_str(&format!("{}\n", raw_text(shape)));
    }
    // Of many units the first stands for all; `ready` tells each.
    let shown = if ready.raw.is_some() { 1 } else { ready.volumes.len() };
    for volume in &ready.volumes[..shown] {
        let size = crate::size::bytes(volume.blocks() * flash::BLOCK_BYTES as u64);
        let mode = if volume.read_only { ", read only" } else { "" };
        text.push_str(&format!("volume {}: {size}{mode}\n", volume.name));
    }
    let uris: Vec<String> = ready
        .volumes
        .iter()
        .flat_map(|volume| ready.nbd.iter().map(|address| uri(address, &volume.name, tls)))
        .collect();
    for uri in &uris[..shown * ready.nbd.len()] {
        text.push_str(&format!("nbd    {uri}\n"));
    }
    if ready.volumes.is_empty() {
        for address in &ready.nbd {
            text.push_str(&format!("nbd    {}\n", uri(address, "", tls)));
        }
    }
    text.push_str(&other_doors(ready));
    if let Some(address) = ready.http {
        text.push_str(&format!(
            "http   http://{address}/ (dashboard), /status, {}/metrics\n",
            if ready.raw.is_some() { "/units, " } else { "" }
        ));
    }
    if let Some(control) = &ready.control {
        let shown = control.display();
        text.push_str(&format!("control {shown} (for `weir ctl`)\n"));
    }
    if let (Some(_), Some(uri)) = (&ready.raw, uris.first()) {
        let place = match (&ready.control, ready.http) {
            (Some(control), _) => format!("  weir status --control '{}'\n", control.display()),
            (None, Some(address)) => format!("  weir status --http {address}\n"),
            (None, None) => String::new(),
        };
        text.push_str(&format!("\ntry in another terminal:\n  nbdinfo '{uri}'\n{place}\n"));
    } else if let Some(uri) = uris.first() {
        text.push_str(&format!(
            "\ntry in another terminal:\n  \
             nbdinfo '{uri}'\n  \
             qemu-img info -f raw '{uri}'\n  \
             nbdcopy --flush disk.img '{uri}'\n  \
             mkdir -p /tmp/weir-fuse && nbdfuse /tmp/weir-fuse/disk '{uri}' & sleep 1; \
             mkfs.ext4 -F /tmp/weir-fuse/disk\n\n"
        ));
    }
    match (uris.is_empty(), &ready.control) {
        (false, _) => text.push_str(&format!("ready {}\n", uris.join(" "))),
        (true, Some(control)) => {
            let control = control.display();
            text.push_str(&format!(
                "\nthere is no volume yet:\n  \
                 weir volume create NAME --size SIZE --control '{control}'\n\nready without volumes\n"
            ));
        }
        (true, None) => text.push_str("ready without volumes\n"),
    }
    text
}

/// Where volumes are served beside NBD.
fn other_doors(ready: &Ready) -> String {
    let mut text = String::new();
    if let Some((name, addresses)) = &ready.nvme {
        for (address, what) in addresses.iter().zip(["", " (discovery)"]) {
            text.push_str(&format!("nvme   {address} {name}{what}\n"));
        }
    }
    for (volume, path) in &ready.vhost {
        text.push_str(&format!("vhost  {} {volume} (a disk for QEMU)\n", path.display()));
    }
    text
}

/// How many units of what, in one line.
pub fn raw_text(shape: &serve::RawShape) -> String {
    let lanes = &shape.lanes;
    let size = |bytes: u64| crate::size::bytes(bytes);
    format!(
        "{} raw units, unit/0 to unit/{}, each of {} raw blocks of {} ({} pages of {}, reads of {})",
        lanes.lanes,
        lanes.lanes - 1,
        lanes.raw_blocks,
        size(shape.raw_block_bytes()),
        lanes.pages,
        size(shape.page_bytes.into()),
        size(shape.granule_bytes.into()),
    )
}

/// The address of a volume, absolute, as every NBD client takes it.
fn uri(address: &str, volume: &str, tls: bool) -> String {
    let volume = percent_encode(volume, b"-._~/");
    let uri = match address.split_once("/?socket=") {
        Some((scheme, socket)) => {
            let socket = std::path::absolute(Path::new(socket))
                .map_or(socket.to_owned(), |path| path.display().to_string());
            format!("{scheme}/{volume}?socket={}", percent_encode(&socket, b"-._~/"))
        }
        None => format!("{address}{volume}"),
    };
    if !tls {
        return uri;
    }
    let joint = if uri.contains('?') { '&' } else { '?' };
    format!("{}{joint}tls-certificates=DIRECTORY", uri.replacen("nbd", "nbds", 1))
}

pub fn percent_encode(text: &str, plain: &[u8]) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn addresses_can_be_pasted_whatever_is_in_them() {
        assert_eq!(
            uri("nbd+unix:///?socket=/a b/nbd.sock", "my data", false),
            "nbd+unix:///my%20data?socket=/a%20b/nbd.sock"
        );
        assert_eq!(uri("nbd://127.0.0.1:10809/", "d", false), "nbd://127.0.0.1:10809/d");
        assert_eq!(
            uri("nbd+unix:///?socket=/s", "d", true),
            "nbds+unix:///d?socket=/s&tls-certificates=DIRECTORY"
        );
    }
}
