//! Volumes as disks of this machine: `/dev/ublkbN` by the ublk driver, `/dev/nbdN` by the kernel's NBD client. A process
//! for each looks after it: it serves the device (ublk), or has the kernel connect anew (NBD), sees that the volume has
//! another size, and takes the device away when it is told to.
//!
//! What is attached is noted ([`record`]), so that the device of a process that was killed is found by the next one, which
//! goes on with it.

mod kernel;
pub mod record;
mod target;
mod ublk;

use crate::signals;
use client::Error;
use client::wire::Export;
use flash::SECOND;
use record::{Found, Held, Record, Way};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use target::Target;

/// Where disks have names that stay the same.
const LINKS: &str = "/dev/disk/by-id";
/// How often the volume is looked at, for its size and whether its server is there.
const LOOK_NS: u64 = SECOND;
/// How long who detaches waits for the process that serves the device.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(50);
/// Most queues, or connections, of a device.
pub const QUEUES_MAX: u16 = 64;

/// What is to be attached.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// By which people name it.
    pub name: String,
    /// Where the volume is served.
    pub uri: String,
    /// How.
    pub way: Way,
    /// Nothing may be written.
    pub read_only: bool,
    /// Queues of the device, each with a connection of its own: 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// With the kernel's NBD client: after how many seconds without an answer a connection has ended.
    pub timeout_s: u64,
}

/// Why a volume is not attached, or not detached.
#[derive(Debug)]
pub enum AttachError {
    /// The address is none.
    Address(String),
    /// The server cannot be reached, or refuses.
    Server(client::Error),
    /// The kernel has no driver for it: what to do.
    NoDriver(&'static str),
    /// This user may not use that.
    NotPermitted(&'static str),
    /// It is attached, as this, under this name.
    Attached(Box<Option<Record>>, String),
    /// The record is of a device that another volume is attached as.
    Other(Box<Record>),
    /// Somebody uses the device.
    InUse(PathBuf),
    /// Nothing is attached under this name, but these are.
    Unknown(String, Vec<String>),
    /// The process that serves it does not end.
    Stuck(u32),
    /// The system refused something.
    System {
        /// Of what.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl AttachError {
    fn system(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted("block devices"),
            _ => Self::System { path, doing, error },
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(reason) => f.write_str(reason),
            Self::Server(error) => error.fmt(f),
            Self::NoDriver(mend) => f.write_str(mend),
            Self::NotPermitted(what) => {
                write!(f, "this user may not use {what}: attach and detach as root (sudo)")
            }
            Self::Attached(record, name) => {
                let as_what = record.as_ref().as_ref().map(|record| record.device.display());
                let as_what = as_what.map_or_else(String::new, |device| format!(" as {device}"));
                write!(
                    f,
                    "{name}: is attached already{as_what}: `weir detach` detaches it; to attach another volume of \
                     that name beside it, say --name"
                )
            }
            Self::Other(record) => write!(
                f,
                "{}: {} at {} waits under this name for a process to serve it: detach it first, or say another --name",
                record.name,
                record.device.display(),
                record.uri
            ),
            Self::InUse(device) => write!(
                f,
                "{}: is in use (mounted, or part of another device): see `lsblk {}`, and unmount it first",
                device.display(),
                device.display()
            ),
            Self::Unknown(name, there) if there.is_empty() => {
                write!(f, "{name}: nothing is attached here")
            }
            Self::Unknown(name, there) => {
                write!(f, "{name}: is not attached; there are {}", there.join(", "))
            }
            Self::Stuck(pid) => write!(
                f,
                "process {pid}, which serves the device, does not end: something may still use it; see its log"
            ),
            Self::System { path, doing, error } => {
                write!(f, "{}: cannot {doing}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for AttachError {}

/// What looks after a device.
trait Keeper {
    /// The number of the device.
    fn number(&self) -> u32;
    /// Its node.
    fn node(&self) -> PathBuf;
    /// It is gone, whoever has removed it.
    fn has_ended(&self) -> bool;
    /// What the volume is now; `None`: its server does not answer.
    fn look(&mut self, export: Option<Export>);
    /// Takes the device away.
    fn remove(&mut self);
}

/// Attaches a volume and looks after it until it is detached. `ready` is called when the device is there. Signals to end
/// detach it, unless somebody uses it.
///
/// # Errors
/// Why it cannot be attached.
pub fn run(wanted: &Wanted, ready: impl FnOnce(&Record)) -> Result<(), AttachError> {
    let mut target = Target::parse(&wanted.uri).map_err(AttachError::Address)?;
    let signals = signals::block(&[FORCED])
        .map_err(AttachError::system(Path::new("signals"), "wait for them"))?;
    let mut held = record::hold(Path::new(record::FOLDER), &wanted.name)?;
    let before = to_go_on_with(&held, wanted)?;
    if let Some(left) = held.before.as_ref().filter(|_| before.is_some()) {
        target.identity.clone_from(&left.identity);
    }
    let export = target.connect().map_err(AttachError::Server)?.1;
    target.identity.clone_from(&export.description);
    let mut keeper = begin(wanted, &target, export, before)?;
    let record = Record {
        name: wanted.name.clone(),
        uri: wanted.uri.clone(),
        identity: target.identity.clone(),
        way: wanted.way,
        number: keeper.number(),
        device: keeper.node(),
        link: link_of(&wanted.name),
        pid: std::process::id(),
    };
    let noted = held.note(&record).and_then(|()| name_it(&record));
    if let Err(error) = noted {
        keeper.remove();
        return Err(AttachError::system(&record.link, "give the device this name")(error));
    }
    ready(&record);
    crate::notify::serves(&format!("{} is {}", record.name, record.device.display()));
    keep(&mut *keeper, &target, &signals);
    fs::remove_file(&record.link).ok();
    held.remove();
    Ok(())
}

fn begin(
    wanted: &Wanted,
    target: &Target,
    export: Export,
    before: Option<u32>,
) -> Result<Box<dyn Keeper>, AttachError> {
    Ok(match wanted.way {
        Way::Ublk => Box::new(ublk::Device::begin(wanted, target, export, before)?),
        Way::Nbd => {
            let target = (target, wanted.timeout_s);
            Box::new(kernel::Device::begin(wanted, target, export, before)?)
        }
    })
}

/// The device that a process before has left, if it is still there.
fn to_go_on_with(held: &Held, wanted: &Wanted) -> Result<Option<u32>, AttachError> {
    let Some(before) = &held.before else { return Ok(None) };
    let there = match before.way {
        Way::Ublk => ublk::is_there(before.number)?,
        Way::Nbd => kernel::is_there(before.number, &before.name),
    };
    if there && (before.uri != wanted.uri || before.way != wanted.way) {
        return Err(AttachError::Other(Box::new(before.clone())));
    }
    Ok(there.then_some(before.number))
}

fn link_of(name: &str) -> PathBuf {
    Path::new(LINKS).join(format!("weir-{}", record::file_name(name)))
}

/// Gives the device its name that stays the same.
fn name_it(record: &Record) -> io::Result<()> {
    fs::create_dir_all(LINKS)?;
    fs::remove_file(&record.link).ok();
    symlink(&record.device, &record.link)
}

/// Looks at the volume again and again, apart: a server that is not there may take long not to answer. One that is there and
/// has something else is told of, once.
fn look_on(target: Target) -> Receiver<Option<Export>> {
    let (sender, receiver) = mpsc::channel();
    let look = move || {
        let mut told = None;
        loop {
            let seen = target.look();
            let odd = match &seen {
                Err(Error::Protocol(reason)) => Some(reason.clone()),
                _ => None,
            };
            if let Some(reason) = odd.as_ref().filter(|_| odd != told) {
                tracing::warn!(reason, "requests wait");
            }
            told = odd;
            if sender.send(seen.ok()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_nanos(LOOK_NS));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("look".into()).spawn(look) {
        tracing::error!(%error, "no thread can be started that sees that the volume changes");
    }
    receiver
}

/// Looks after a device until it is to go, or has gone.
fn keep(keeper: &mut dyn Keeper, target: &Target, signals: &libc::sigset_t) {
    let seen = look_on(target.clone());
    loop {
        match signals::wait(signals, Some(LOOK_NS)) {
            Some(FORCED) => return keeper.remove(),
            Some(_) => match is_used(&keeper.node()) {
                false => return keeper.remove(),
                true => {
                    let error = AttachError::InUse(keeper.node());
                    tracing::error!("{error}; the device stays");
                }
            },
            None if keeper.has_ended() => return keeper.remove(),
            None => {
                if let Some(export) = seen.try_iter().last() {
                    keeper.look(export);
                }
            }
        }
    }
}

/// True if the device is mounted, or part of another one.
fn is_used(device: &Path) -> bool {
    // Who uses a device so has it for himself.
    let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(device);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// All that is attached.
pub fn list() -> Vec<Found> {
    record::all(Path::new(record::FOLDER))
}

/// What is attached under a name, or as a device.
///
/// # Errors
/// Nothing is.
pub fn find(wanted: &str) -> Result<Found, AttachError> {
    let mut names = Vec::new();
    let device = fs::canonicalize(wanted).unwrap_or_else(|_| wanted.into());
    for found in list() {
        if found.record.name == wanted || found.record.device == device {
            return Ok(found);
        }
        names.push(found.record.name);
    }
    Err(AttachError::Unknown(wanted.into(), names))
}

/// Detaches a device. With `force` although somebody uses it, who then gets errors.
///
/// # Errors
/// Why not.
pub fn detach(found: &Found, force: bool) -> Result<(), AttachError> {
    let record = &found.record;
    if !force && is_used(&record.device) {
        return Err(AttachError::InUse(record.device.clone()));
    }
    if found.served {
        return end_process(record, if force { FORCED } else { libc::SIGTERM });
    }
    let held = record::hold(Path::new(record::FOLDER), &record.name)?;
    match record.way {
        Way::Ublk => match ublk::is_there(record.number) {
            Ok(true) => ublk::remove(record.number)?,
            // Without a driver it has no device either.
            Ok(false) | Err(AttachError::NoDriver(_)) => {}
            Err(error) => return Err(error),
        },
        Way::Nbd if kernel::is_there(record.number, &record.name) => kernel::remove(record.number)?,
        Way::Nbd => {}
    }
    fs::remove_file(&record.link).ok();
    held.remove();
    Ok(())
}

/// Has the process that serves a device take it away.
fn end_process(record: &Record, signal: i32) -> Result<(), AttachError> {
    // SAFETY: no memory is involved. The process holds its record, so that the number is still its own.
    if unsafe { libc::kill(record.pid as i32, signal) } != 0 {
        let system = AttachError::system(&record.device, "tell its process to end");
        return Err(system(io::Error::last_os_error()));
    }
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if list().iter().all(|found| found.record.name != record.name) {
            return Ok(());
        }
        std::thread::sleep(AGAIN);
    }
    Err(AttachError::Stuck(record.pid))
}

/// To detach although somebody uses the device.
const FORCED: i32 = libc::SIGUSR1;
