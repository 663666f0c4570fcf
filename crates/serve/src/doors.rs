//! The sockets that clients come in by, and how many may.

use crate::config::{Config, ControlConfig, HttpConfig, Listen};
use crate::control;
use crate::descriptors::{self, Clients};
use crate::guests::GuestDoor;
use crate::server::ServeError;
use crate::sockets::{self, Access, SocketFile, Speaks};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is bound before anything else is touched.
pub struct Doors {
    pub nbd: Vec<OwnedFd>,
    pub nbd_addresses: Vec<String>,
    /// For NVMe, the first of them with namespaces.
    pub nvme: Vec<OwnedFd>,
    pub nvme_addresses: Vec<SocketAddr>,
    /// For hypervisors, of each volume that has one.
    pub guests: Vec<GuestDoor>,
    pub http: control::Listeners,
    /// Removed at the end.
    pub files: Vec<SocketFile>,
}

impl Doors {
    /// Binds all sockets: an address in use is found before a device is touched.
    pub fn bind(config: &Config) -> Result<Self, ServeError> {
        let mut doors = Self {
            nbd: Vec::new(),
            nbd_addresses: Vec::new(),
            nvme: Vec::new(),
            nvme_addresses: Vec::new(),
            guests: Vec::new(),
            http: control::Listeners::default(),
            files: Vec::new(),
        };
        for listen in &config.nbd.listen {
            let (listener, address) = match listen {
                Listen::Unix(path, access) => {
                    let listener = doors.bind_unix(path, *access, Speaks::First)?;
                    (listener, format!("nbd+unix:///?socket={}", path.display()))
                }
                Listen::Tcp(address) => {
                    let (listener, bound) = bind_tcp(*address, address.to_string(), "")?;
                    (listener, format!("nbd://{bound}/"))
                }
            };
            doors.nbd.push(listener);
            doors.nbd_addresses.push(address);
        }
        for address in
            config.nvme.iter().flat_map(|nvme| [Some(nvme.address), nvme.discovery]).flatten()
        {
            let (listener, bound) = bind_tcp(address, format!("nvme://{address}"), " in [nvme]")?;
            doors.nvme.push(listener);
            doors.nvme_addresses.push(bound);
        }
        for guest in &config.guests {
            // Which features are there?
            let asked = Speaks::WhenAsked("\u{1}\0\0\0\u{1}\0\0\0\0\0\0\0");
            let listener = doors.bind_unix(&guest.path, guest.access, asked)?;
            doors.guests.push((listener, guest.volume.clone()));
        }
        doors.http = bind_http(config.control.as_ref(), config.http.as_ref(), &mut doors.files)?;
        Ok(doors)
    }

    /// Those that the first shard accepts clients of: for NBD, then for NVMe.
    pub fn listeners(&mut self) -> Vec<OwnedFd> {
        let mut listeners = std::mem::take(&mut self.nbd);
        listeners.append(&mut self.nvme);
        listeners
    }

    fn bind_unix(
        &mut self,
        path: &Path,
        access: Access,
        speaks: Speaks,
    ) -> Result<OwnedFd, ServeError> {
        let (listener, file) = bind_unix(path, access, speaks)?;
        self.files.push(file);
        Ok(listener)
    }
}

/// Binds the two doors of HTTP. The socket's file goes with what is put into `files`.
pub fn bind_http(
    control: Option<&ControlConfig>,
    http: Option<&HttpConfig>,
    files: &mut Vec<SocketFile>,
) -> Result<control::Listeners, ServeError> {
    let mut listeners = control::Listeners::default();
    if let Some(control) = control {
        let asked = Speaks::WhenAsked("HEAD / HTTP/1.0\r\n\r\n");
        let (listener, file) = bind_unix(&control.path, control.access, asked)?;
        files.push(file);
        listeners.control = Some(listener);
    }
    if let Some(http) = http {
        let named = format!("http://{}", http.address);
        listeners.tcp = Some(bind_tcp(http.address, named, " in [http]")?);
    }
    Ok(listeners)
}

fn bind_unix(
    path: &Path,
    access: Access,
    speaks: Speaks,
) -> Result<(OwnedFd, SocketFile), ServeError> {
    sockets::listen_unix(path, access, speaks)
        .map_err(|reason| ServeError::Listen { address: path.display().to_string(), reason })
}

fn bind_tcp(
    address: SocketAddr,
    named: String,
    place: &str,
) -> Result<(OwnedFd, SocketAddr), ServeError> {
    sockets::listen_tcp(address).map_err(|error| ServeError::Listen {
        address: named,
        reason: format!("cannot listen: {error}: choose another address or port{place}"),
    })
}

/// Kept for the hypervisor of each disk: its sockets, and four events for each of a dozen rings.
const GUEST_DESCRIPTORS: usize = 64;

/// So many may be in their handshake at least, however few clients there may be: a crowd must bring as many at once to
/// have one hung up on that would finish.
const NEWCOMERS_MIN: usize = 64;

/// How many clients of each kind there may be, within the descriptors that are left.
pub fn clients_max(config: &Config) -> Result<Clients, ServeError> {
    let wanted = Clients {
        nbd: config.nbd.clients_max,
        // All clients of a server that was started anew come at once.
        newcomers: 2 * config.nbd.clients_max.max(NEWCOMERS_MIN),
        http: config.http.as_ref().map_or(0, |http| http.clients_max),
        control: config.control.as_ref().map_or(0, |control| control.clients_max),
    };
    granted(wanted, config.guests.len() * GUEST_DESCRIPTORS)
}

/// What of these the descriptors allow that are left now, of which some are kept for others.
pub fn granted(wanted: Clients, kept: usize) -> Result<Clients, ServeError> {
    let system = |doing| move |error| ServeError::System { doing, error };
    let limit = descriptors::raise_limit().map_err(system("ask for the limit of open files"))?;
    let used = descriptors::used().map_err(system("count the open files"))?;
    let used = used + kept;
    let granted =
        wanted.within(limit, used).map_err(|few| ServeError::Descriptors(few.to_string()))?;
    if granted != wanted {
        let Clients { nbd, newcomers, http, control } = granted;
        tracing::warn!(
            limit,
            used,
            nbd,
            newcomers,
            http,
            control,
            "the limit of open files allows fewer clients than the config"
        );
    }
    Ok(granted)
}
