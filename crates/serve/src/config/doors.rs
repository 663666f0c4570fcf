//! Who is let in where: sockets with their permissions, addresses, HTTP, and the control socket.

use super::section::{ConfigError, Section};
use super::{ControlConfig, GuestConfig, HttpConfig, Listen, NbdConfig, NvmeConfig};
use crate::front::nvme::{DISCOVERY_NQN, NQN_BYTES_MAX};
use crate::sockets::{self, Access};
use flash::SECOND;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use toml::Value;

/// Where the API and the dashboard are expected unless told otherwise.
const HTTP_PORT_DEFAULT: u16 = 8420;

/// Where whoever changes the server is expected unless told otherwise.
const CONTROL_DEFAULT: &str = "control.sock";

/// A socket at `unix`, and who may connect to it: keys `unix_mode` and `unix_group`.
pub fn unix(section: &mut Section<'_>, base: &Path, most: u32) -> (Option<PathBuf>, Access) {
    socket(section, base, most, ["unix", "unix_mode", "unix_group"])
}

/// A socket in the file system, its permissions and its group, by these keys.
fn socket(
    section: &mut Section<'_>,
    base: &Path,
    most: u32,
    [key, mode_key, group_key]: [&str; 3],
) -> (Option<PathBuf>, Access) {
    let path = section.text(key, "\"weir.sock\"").map(|path| base.join(path));
    if let Some(path) = &path
        && let Some(reason) = sockets::too_long(path)
    {
        section.refuse(key, &path.display().to_string(), reason, "\"/run/weir.sock\"");
    }
    let mut access = Access::OWNER;
    if let Some(text) = section.text(mode_key, "\"0660\"") {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| mode & !most == 0);
        match mode {
            Some(mode) => access.mode = mode,
            None => {
                let reason = format!("must be octal permissions of {most:04o} at most");
                section.refuse(mode_key, &format!("{text:?}"), reason, "\"0660\"");
            }
        }
    }
    if let Some(name) = section.text(group_key, "\"disk\"") {
        access.group = sockets::group(&name);
        if access.group.is_none() {
            section.refuse(group_key, &format!("{name:?}"), "is no group here", "\"disk\"");
        }
    }
    (path, access)
}

/// Where NBD listens.
pub fn listen(section: &mut Section<'_>, base: &Path, default: &str) -> Vec<Listen> {
    let mut listen = Vec::new();
    let (path, access) = unix(section, base, 0o666);
    listen.extend(path.map(|path| Listen::Unix(path, access)));
    listen.extend(section.address("tcp", "\"127.0.0.1:10809\"").map(Listen::Tcp));
    if listen.is_empty() {
        listen.push(Listen::Unix(base.join(default), access));
    }
    listen
}

/// Plain NBD has neither secrecy nor a login: whoever reaches its address reads and writes all there is.
pub fn refuse_plain_tcp(section: &mut Section<'_>, listen: &[Listen], has_tls: bool) {
    let plain = section.flag("tcp_plain").unwrap_or(false);
    for listen in listen {
        let Listen::Tcp(address) = listen else { continue };
        if !has_tls && !plain && !is_loopback(address.ip()) {
            let reason = "is reached from other machines, and without TLS everybody there could read \
                          and write all data: set tls = \"required\", or tcp_plain = true (--tcp-plain) \
                          if that is meant";
            section.refuse("tcp", &format!("{address}"), reason, "\"127.0.0.1:10809\"");
        }
    }
}

/// Where hypervisors find a volume as a disk, and who of them may, if it has such a socket.
pub fn guest(section: &mut Section<'_>, base: &Path) -> Option<(PathBuf, Access)> {
    let (path, access) = socket(section, base, 0o666, ["vhost", "vhost_mode", "vhost_group"]);
    path.map(|path| (path, access))
}

/// Refuses sockets of one path: the later one would be taken for a server that is there already.
pub fn sockets_apart(
    root: &mut Section<'_>,
    (nbd, control): (&NbdConfig, Option<&ControlConfig>),
    guests: &[GuestConfig],
) {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or(path.to_owned());
    let nbd = nbd.listen.iter().filter_map(|listen| match listen {
        Listen::Unix(path, _) => Some((whole(path), "the NBD server's")),
        Listen::Tcp(_) => None,
    });
    let mut taken: Vec<(PathBuf, &'static str)> = nbd.collect();
    let whose = |taken: &[(PathBuf, &'static str)], path: &Path| {
        taken.iter().find(|(other, _)| *other == whole(path)).map(|(_, whose)| *whose)
    };
    if let Some(control) = control {
        if let Some(whose) = whose(&taken, &control.path) {
            let value = format!("{:?}", control.path.display().to_string());
            root.errors.push(one_path(
                "control.unix".into(),
                value,
                whose,
                "unix = \"control.sock\"",
            ));
        }
        taken.push((whole(&control.path), "the control"));
    }
    for guest in guests {
        let Some(whose) = whose(&taken, &guest.path) else { continue };
        let volumes = root.written("volume").and_then(Value::as_array);
        let named =
            |volume: &Value| volume.get("name").and_then(Value::as_str) == Some(&guest.volume);
        let at = volumes.and_then(|volumes| volumes.iter().position(named)).unwrap_or(0);
        let value = volumes.and_then(|volumes| volumes.get(at)?.get("vhost")).map(Value::to_string);
        let (key, value) = (format!("volume[{at}].vhost"), value.unwrap_or_default());
        root.errors.push(one_path(key, value, whose, "vhost = \"data.vhost\""));
    }
}

fn one_path(key: String, value: String, whose: &str, example: &str) -> ConfigError {
    ConfigError { key, value, reason: format!("is {whose} socket"), example: example.into() }
}

/// Where the discovery service of NVMe is by convention.
const DISCOVERY_PORT: u16 = 8009;

/// `[nvme]`: served if it says where.
pub fn nvme(
    mut section: Section<'_>,
    volume_hosts: BTreeMap<String, Vec<String>>,
    base: &Path,
) -> Option<NvmeConfig> {
    let address = section.address("tcp", "\"127.0.0.1:4420\"");
    let mut discovery = address.map(|address| SocketAddr::new(address.ip(), DISCOVERY_PORT));
    match section.text("discovery", "\"127.0.0.1:8009\"").as_deref() {
        Some("none") => discovery = None,
        Some(text) => match text.parse() {
            Ok(address) => discovery = Some(address),
            Err(_) => {
                discovery = None;
                let reason = "must be an IP address and a port, or none";
                section.refuse("discovery", &format!("{text:?}"), reason, "\"127.0.0.1:8009\"");
            }
        },
        None => {}
    }
    if let (Some(address), Some(other)) = (address, discovery) {
        refuse_one_address(&mut section, address, other);
    }
    let nqn = section.text("nqn", NQN_EXAMPLE);
    if let Some(name) = &nqn {
        check_nqn(&mut section, "nqn", name);
        if name == DISCOVERY_NQN {
            let reason =
                "is the name of every discovery service, so that hosts would find no volumes there";
            section.refuse("nqn", &format!("{name:?}"), reason, NQN_EXAMPLE);
        }
    }
    let hosts = nvme_hosts(&mut section, "hosts");
    let keys_file = section.text("keys_file", "\"nvme-keys\"").map(|file| base.join(file));
    let plain = section.flag("tcp_plain").unwrap_or(false);
    for (key, address) in [("tcp", address), ("discovery", discovery.filter(|_| address.is_some()))]
    {
        let Some(address) = address.filter(|address| !plain && !is_loopback(address.ip())) else {
            continue;
        };
        let reason = match keys_file {
            None => {
                "is reached from other machines, and NVMe over TCP has neither secrecy nor, without keys_file, a login: \
                 everybody there could read and write all data; set tcp_plain = true (--tcp-plain) if that is \
                 meant, best with keys_file"
            }
            Some(_) => {
                "is reached from other machines, and what hosts and server say is not encrypted: who is on the \
                 way can read and change it; set tcp_plain = true (--tcp-plain) if that network can be trusted"
            }
        };
        section.refuse(key, &address.to_string(), reason, "\"127.0.0.1:4420\"");
    }
    section.finish(&["tcp", "discovery", "nqn", "hosts", "keys_file", "tcp_plain"]);
    Some(NvmeConfig { address: address?, discovery, nqn, hosts, volume_hosts, keys_file })
}

/// The discovery service listens where nobody else does.
fn refuse_one_address(section: &mut Section<'_>, address: SocketAddr, discovery: SocketAddr) {
    let same = address.ip().to_canonical() == discovery.ip().to_canonical();
    let any = address.ip().is_unspecified() || discovery.ip().is_unspecified();
    if address.port() != discovery.port() || address.port() == 0 || !(same || any) {
        return;
    }
    let key = if section.written("discovery").is_some() { "discovery" } else { "tcp" };
    let example = if key == "tcp" { "\"127.0.0.1:4420\"" } else { "\"127.0.0.1:8009\"" };
    let reason = "tcp and discovery would have one address (discovery is at port 8009 unless it is said, or none)";
    section.refuse_written(key, reason, example);
}

/// The NQNs of hosts that may do something; none if all may.
pub fn nvme_hosts(section: &mut Section<'_>, key: &'static str) -> Vec<String> {
    let hosts = section.texts(key, "[\"nqn.2014-08.org.nvmexpress:uuid:...\"]");
    for name in &hosts {
        check_nqn(section, key, name);
    }
    hosts
}

fn check_nqn(section: &mut Section<'_>, key: &'static str, name: &str) {
    if !name.starts_with("nqn.") || name.len() > NQN_BYTES_MAX || name.contains(char::is_control) {
        let reason = format!("must begin with nqn. and have at most {NQN_BYTES_MAX} bytes");
        section.refuse(key, &format!("{name:?}"), reason, NQN_EXAMPLE);
    }
}

const NQN_EXAMPLE: &str = "\"nqn.2026-01.org.example:flash\"";

/// `[http]`.
pub fn http(mut section: Section<'_>, base: &Path) -> Option<HttpConfig> {
    let enabled = section.flag("enabled").unwrap_or(true);
    let address = section.address("address", "\"127.0.0.1:8420\"");
    let address = address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], HTTP_PORT_DEFAULT)));
    if !section.flag("remote").unwrap_or(false) && enabled && !is_loopback(address.ip()) {
        let reason = "is reached from other machines: status and metrics would be told to everybody \
                      there, and a token would pass in the clear: set remote = true (--http-remote) if \
                      that is meant";
        section.refuse("address", &address.to_string(), reason, "\"127.0.0.1:8420\"");
    }
    let hosts = section.texts("hosts", "[\"flash.example.org\"]");
    let token_file = section.text("token_file", "\"weir-data/token\"").map(|file| base.join(file));
    let clients_max = section.integer("clients_max", 1, 1000, "64").unwrap_or(64) as usize;
    let head_timeout_ns = section.duration("head_timeout", "\"20s\"").unwrap_or(20 * SECOND);
    section.finish(&[
        "enabled",
        "address",
        "remote",
        "hosts",
        "token_file",
        "clients_max",
        "head_timeout",
    ]);
    enabled.then_some(HttpConfig { address, hosts, token_file, clients_max, head_timeout_ns })
}

/// `[control]`.
pub fn control(mut section: Section<'_>, base: &Path) -> Option<ControlConfig> {
    let enabled = section.flag("enabled").unwrap_or(true);
    // Whoever may write to it controls the server: never everybody.
    let (path, access) = unix(&mut section, base, 0o660);
    let clients_max = section.integer("clients_max", 1, 1000, "64").unwrap_or(64) as usize;
    section.finish(&["enabled", "unix", "unix_mode", "unix_group", "clients_max"]);
    let path = path.unwrap_or_else(|| base.join(CONTROL_DEFAULT));
    enabled.then_some(ControlConfig { path, access, clients_max })
}

/// True if only this machine reaches it.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}
