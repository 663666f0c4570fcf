//! A volume as `/dev/nbdN`: the kernel's NBD client, which is told by netlink which sockets to use. The kernel has the
//! sockets, so that the device goes on without this process; what this process is for is to connect anew when a server has
//! gone and come back, and to tell the kernel of another size.

mod netlink;

use super::strays::{self, Places};
use super::target::{Connection, Shown, Target};
use super::{AttachError, Keeper, Wanted};
use crate::nbd::constants::{SEND_CAN_MULTI_CONN, SEND_READ_ONLY};
use client::Stream;
use client::wire::Export;
use netlink::{Attributes, Family, number_of};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Commands.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// Attributes.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT: u16 = 8;
const IDENTIFIER: u16 = 10;
/// Of a list of sockets, and of each.
const SOCKET: u16 = 1;

/// Sectors, as Linux counts.
const SECTOR: u64 = 512;
/// How long requests wait for a server that is not there, in seconds: as long as it takes.
const WAITS_S: u64 = 10_000_000;

/// A device of the kernel's NBD client.
pub struct Device {
    family: Family,
    number: u32,
    name: String,
    timeout_s: u64,
    target: Target,
    export: Export,
    /// Our names for the kernel's sockets, by which is seen that one has ended.
    sockets: Vec<Stream>,
    /// Sockets that a process before has given to the kernel, of which we have no names.
    nameless: usize,
    /// Sockets that have ended, or may have. The kernel takes new ones for those only.
    missing: usize,
}

/// What the node of a device is called.
pub fn node(number: u32) -> PathBuf {
    format!("/dev/nbd{number}").into()
}

/// What the kernel says of the device in a file of its own.
fn said(number: u32, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/block/nbd{number}/{file}")).ok()?;
    Some(text.trim().to_owned())
}

/// Whether the device of a record is connected as this name.
pub fn is_there(number: u32, name: &str) -> bool {
    // Kernels before 5.14 do not tell whose it is.
    let is_ours = said(number, "backend").is_none_or(|found| found == identifier(name));
    said(number, "pid").is_some() && is_ours
}

/// What the kernel is told of whose a device is begins so, and ends with its name.
pub const OURS: &str = "weir:";

fn identifier(name: &str) -> String {
    format!("{OURS}{name}")
}

fn family() -> Result<Family, AttachError> {
    let system = AttachError::system(Path::new("netlink"), "ask for the NBD client");
    Family::find("nbd").map_err(system)?.ok_or(AttachError::NoDriver(NO_DRIVER))
}

fn refused(doing: &'static str, place: PathBuf) -> impl FnOnce(io::Error) -> AttachError {
    move |error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AttachError::NotPermitted("the kernel's NBD client"),
        _ => AttachError::system(&place, doing)(error),
    }
}

/// Disconnects a device.
pub fn remove(number: u32) -> Result<(), AttachError> {
    let index = Attributes::default().with(INDEX, &number.to_ne_bytes());
    let done = family()?.ask(DISCONNECT, &index).map(drop);
    match done {
        // It is not connected.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done.map_err(refused("disconnect it", node(number))),
    }
}

fn sockets_of(streams: &[Stream]) -> Attributes {
    streams.iter().fold(Attributes::default(), |all, stream| {
        let fd = stream.as_fd().as_raw_fd() as u32;
        all.with_nested(SOCKET, &Attributes::default().with(SOCKET, &fd.to_ne_bytes()))
    })
}

impl Device {
    /// Connects a device, or looks after the one of this number.
    ///
    /// # Errors
    /// What the kernel refuses, or the server.
    pub fn begin(
        wanted: &Wanted,
        (target, timeout_s): (&Target, u64),
        export: Export,
        before: Option<u32>,
    ) -> Result<Self, AttachError> {
        let queues = |number| strays::shape_of(&Places::SYSTEM, &node(number)).1;
        let nameless = before.map(|number| queues(number).unwrap_or(wanted.queues));
        let nameless = nameless.map_or(0, usize::from);
        let mut device = Self {
            family: family()?,
            number: before.unwrap_or(0),
            name: wanted.name.clone(),
            timeout_s,
            target: target.clone(),
            export,
            sockets: Vec::new(),
            nameless,
            missing: nameless,
        };
        if before.is_none() {
            device.connect(wanted)?;
        }
        Ok(device)
    }

    fn connect(&mut self, wanted: &Wanted) -> Result<(), AttachError> {
        let several = self.export.flags & SEND_CAN_MULTI_CONN != 0;
        let count = if several { wanted.queues } else { 1 };
        for _ in 0..count {
            self.sockets.push(self.target.connect().map_err(AttachError::Server)?.0.stream);
        }
        let read_only = if wanted.read_only { SEND_READ_ONLY } else { 0 };
        let flags = u64::from(self.export.flags | read_only);
        let attributes = self
            .times()
            .with(SIZE_BYTES, &self.export.size.to_ne_bytes())
            .with(BLOCK_SIZE_BYTES, &SECTOR.to_ne_bytes())
            .with(SERVER_FLAGS, &flags.to_ne_bytes())
            .with_nested(SOCKETS, &sockets_of(&self.sockets));
        let place = || PathBuf::from("/dev/nbd*");
        let told = self.family.ask(CONNECT, &attributes);
        let told = told.map_err(refused("connect one of them", place()))?;
        let odd = || refused("learn which it is", place())(io::ErrorKind::InvalidData.into());
        self.number = number_of(&told, INDEX).ok_or_else(odd)?;
        Ok(())
    }

    /// How long things may take, and whose device it is.
    fn times(&self) -> Attributes {
        Attributes::default()
            .with(TIMEOUT, &self.timeout_s.to_ne_bytes())
            .with(DEAD_CONNECTION_TIMEOUT, &WAITS_S.to_ne_bytes())
            .with_text(IDENTIFIER, &identifier(&self.name))
    }

    /// Gives the kernel new sockets in the place of those that have ended.
    fn replace(&mut self) {
        for _ in 0..std::mem::take(&mut self.missing) {
            let Ok((Connection { stream, .. }, _)) = self.target.connect() else {
                self.missing += 1;
                continue;
            };
            let streams = [stream];
            let attributes = self
                .times()
                .with(INDEX, &self.number.to_ne_bytes())
                .with_nested(SOCKETS, &sockets_of(&streams));
            match self.family.ask(RECONFIGURE, &attributes) {
                Ok(_) => self.sockets.extend(streams),
                Err(error) => {
                    let place = node(self.number);
                    tracing::warn!(%error, "{}: takes no new connection", place.display());
                    self.missing += 1;
                }
            }
        }
    }

    /// Forgets sockets that have ended. How many these are.
    fn ended(&mut self) -> usize {
        let before = self.sockets.len();
        self.sockets.retain(|stream| {
            let fd = stream.as_fd().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
            // SAFETY: one entry, as told.
            let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
            ready == 0
        });
        before - self.sockets.len()
    }

    fn resize(&mut self, export: Export) {
        let attributes = self
            .times()
            .with(INDEX, &self.number.to_ne_bytes())
            .with(SIZE_BYTES, &export.size.to_ne_bytes());
        let (place, bytes) = (node(self.number), export.size);
        match self.family.ask(RECONFIGURE, &attributes) {
            Ok(_) => tracing::warn!("{}: has {bytes} bytes from now on", place.display()),
            Err(error) => tracing::error!(%error, "{}: cannot be resized", place.display()),
        }
        self.export.size = export.size;
    }
}

/// Said where there is no NBD client.
const NO_DRIVER: &str =
    "the kernel here has no NBD client: `modprobe nbd` loads it where it is built";

impl Keeper for Device {
    fn number(&self) -> u32 {
        self.number
    }

    fn node(&self) -> PathBuf {
        node(self.number)
    }

    fn has_ended(&self) -> bool {
        !is_there(self.number, &self.name)
    }

    fn look(&mut self, shown: Option<Shown>) {
        match shown.map(|shown| shown.export) {
            None => self.missing = self.missing.max(self.nameless),
            Some(export) => {
                if self.missing > 0 {
                    self.replace();
                }
                if export.size != self.export.size {
                    self.resize(export);
                }
            }
        }
        // From the next look on, when the kernel has seen it too.
        let ended = self.ended();
        if ended > 0 {
            self.missing += ended;
            let place = node(self.number);
            tracing::warn!(
                ended,
                "{}: connections have ended: requests wait until the server is back",
                place.display()
            );
        }
    }

    fn remove(&mut self, _force: bool) {
        if let Err(error) = remove(self.number) {
            tracing::error!(%error, "it cannot be detached");
        }
    }
}
