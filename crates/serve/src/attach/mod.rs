//! Volumes as disks of this machine: `/dev/ublkbN` by the ublk driver, `/dev/nbdN` by the kernel's NBD client. A process
//! for each looks after it: it serves the device (ublk), or has the kernel connect anew (NBD), sees that the volume has
//! another size, and takes the device away when it is told to.
//!
//! What is attached is noted ([`record`]), so that the device of a process that was killed is found by the next one, which
//! goes on with it.

mod kernel;
pub mod record;
mod strays;
mod target;
mod ublk;

use crate::nbd::constants::SEND_READ_ONLY;
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
use strays::Places;
use target::{Shown, Target};

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
    /// Somebody wants so many queues, and no others.
    pub queues_said: bool,
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
    /// The device that it would go on with is otherwise than it is wanted: how it is.
    Unlike(PathBuf, String),
    /// A device was attached under this name, and its record is lost.
    Lost(PathBuf),
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
    /// Its words begin with the name that was to be attached, or detached.
    pub fn says_name(&self) -> bool {
        matches!(self, Self::Attached(..) | Self::Other(_) | Self::Unknown(..))
    }

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
            Self::Unlike(device, how) => write!(
                f,
                "{}: is still there {how}, and would go on so: say the same as before, or `weir detach {}` first",
                device.display(),
                device.display()
            ),
            Self::Lost(device) => write!(
                f,
                "{}: was attached under this name, and the record of it is gone or damaged, so that nobody knows of \
                 which volume it is: `weir detach {}` takes it away",
                device.display(),
                device.display()
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
    fn look(&mut self, shown: Option<Shown>);
    /// Takes the device away: with `force` whoever uses it, and whatever its server does.
    fn remove(&mut self, force: bool);
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
    let (mut keeper, record) = match take_on(wanted, &mut target, &mut held) {
        Ok(taken) => taken,
        Err(error) => {
            // What a process before has left is there for the next try.
            if held.before.is_none() {
                held.remove();
            }
            return Err(error);
        }
    };
    ready(&record);
    crate::notify::serves(&format!("{} is {}", record.name, record.device.display()));
    keep(&mut *keeper, &target, &signals);
    forget_name(&record);
    held.remove();
    Ok(())
}

/// Makes the device, or goes on with the one that a process before has left, and notes it.
fn take_on(
    wanted: &Wanted,
    target: &mut Target,
    held: &mut Held,
) -> Result<(Box<dyn Keeper>, Record), AttachError> {
    let before = to_go_on_with(held, wanted)?;
    match held.before.as_ref().filter(|_| before.is_some()) {
        Some(left) => target.identity.clone_from(&left.identity),
        None => {
            let strays = strays::all(&Places::SYSTEM, &record::all(Path::new(record::FOLDER)));
            if let Some(found) = strays.iter().find(|found| found.record.name == wanted.name) {
                return Err(AttachError::Lost(found.record.device.clone()));
            }
        }
    }
    let shown = target.connect().map_err(AttachError::Server)?.1;
    target.identity.clone_from(&shown.export.description);
    if let Some(left) = held.before.as_ref().filter(|_| before.is_some()) {
        expect_like(&left.device, wanted, &shown.export)?;
    }
    let mut keeper = begin(wanted, target, shown, before)?;
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
        keeper.remove(false);
        return Err(AttachError::system(&record.link, "give the device this name")(error));
    }
    Ok((keeper, record))
}

/// Refuses to go on with a device that is not as it is wanted: it stays what it was made.
fn expect_like(device: &Path, wanted: &Wanted, export: &Export) -> Result<(), AttachError> {
    let (is_read_only, queues) = strays::shape_of(&Places::SYSTEM, device);
    let unlike = unlike(wanted, export.flags & SEND_READ_ONLY != 0, (is_read_only, queues));
    unlike.map_or(Ok(()), |how| Err(AttachError::Unlike(device.to_path_buf(), how)))
}

/// How a device is, if it is otherwise than it is wanted, as far as the system tells.
fn unlike(
    wanted: &Wanted,
    volume_is_read_only: bool,
    (is_read_only, queues): (Option<bool>, Option<u16>),
) -> Option<String> {
    match is_read_only {
        Some(false) if wanted.read_only => return Some("to be written".into()),
        Some(true) if !wanted.read_only && !volume_is_read_only => {
            return Some("to be read only (--read-only)".into());
        }
        _ => {}
    }
    let other = queues.filter(|&queues| wanted.queues_said && queues != wanted.queues)?;
    Some(format!("with {other} queues (--queues {other})"))
}

fn begin(
    wanted: &Wanted,
    target: &Target,
    shown: Shown,
    before: Option<u32>,
) -> Result<Box<dyn Keeper>, AttachError> {
    Ok(match wanted.way {
        Way::Ublk => Box::new(ublk::Device::begin(wanted, target, shown, before)?),
        Way::Nbd if target.is_zoned() => return Err(AttachError::NoDriver(NO_ZONES)),
        Way::Nbd => {
            let target = (target, wanted.timeout_s);
            Box::new(kernel::Device::begin(wanted, target, shown.export, before)?)
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

/// Takes that name away, unless it leads to another device by now.
fn forget_name(record: &Record) {
    if fs::read_link(&record.link).is_ok_and(|leads_to| leads_to == record.device) {
        fs::remove_file(&record.link).ok();
    }
}

/// Gives the device its name that stays the same.
fn name_it(record: &Record) -> io::Result<()> {
    fs::create_dir_all(LINKS)?;
    fs::remove_file(&record.link).ok();
    symlink(&record.device, &record.link)
}

/// Looks at the volume again and again, apart: a server that is not there may take long not to answer. One that is there and
/// has something else is told of, once.
fn look_on(target: Target) -> Receiver<Option<Shown>> {
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
            Some(FORCED) => return keeper.remove(true),
            Some(_) => match is_used(&keeper.node()) {
                false => return keeper.remove(false),
                true => {
                    let error = AttachError::InUse(keeper.node());
                    tracing::error!("{error}; the device stays");
                }
            },
            None if keeper.has_ended() => return keeper.remove(false),
            None => {
                if let Some(shown) = seen.try_iter().last() {
                    keeper.look(shown);
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

/// All that is attached, by the records and by the devices themselves.
pub fn list() -> Vec<Found> {
    let mut all = record::all(Path::new(record::FOLDER));
    let strays = strays::all(&Places::SYSTEM, &all);
    all.extend(strays);
    all.sort_by(|a, b| (&a.record.name, &a.record.device).cmp(&(&b.record.name, &b.record.device)));
    all
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
        return end_process(found, if force { FORCED } else { libc::SIGTERM });
    }
    if found.lost {
        remove_left(record, force)?;
        forget_name(record);
        record::forget(Path::new(record::FOLDER), &record.name);
        return Ok(());
    }
    let held = record::hold(Path::new(record::FOLDER), &record.name)?;
    remove_left(record, force)?;
    forget_name(record);
    held.remove();
    Ok(())
}

/// Takes a device away that no process of ours serves.
fn remove_left(record: &Record, force: bool) -> Result<(), AttachError> {
    match record.way {
        Way::Ublk => match ublk::is_there(record.number) {
            Ok(true) => ublk::remove(record.number, force),
            // Without a driver it has no device either.
            Ok(false) | Err(AttachError::NoDriver(_)) => Ok(()),
            Err(error) => Err(error),
        },
        Way::Nbd if kernel::is_there(record.number, &record.name) => kernel::remove(record.number),
        Way::Nbd => Ok(()),
    }
}

/// Has the process that serves a device take it away.
fn end_process(found: &Found, signal: i32) -> Result<(), AttachError> {
    let record = &found.record;
    // SAFETY: no memory is involved. The process holds its record, or its device, so that the number is still its own.
    if unsafe { libc::kill(record.pid as i32, signal) } != 0 {
        let system = AttachError::system(&record.device, "tell its process to end");
        return Err(system(io::Error::last_os_error()));
    }
    let is_there = |other: &Found| other.record.device == record.device;
    let begun = Instant::now();
    // A record that is damaged is in no list while its process still has to remove it, and the name of the device.
    let has_ended = || fs::read_link(format!("/proc/{}/exe", record.pid)).is_err();
    while begun.elapsed() < PATIENCE {
        let all = if found.lost { list() } else { record::all(Path::new(record::FOLDER)) };
        if !all.iter().any(is_there) && (!found.lost || has_ended()) {
            return Ok(());
        }
        std::thread::sleep(AGAIN);
    }
    Err(AttachError::Stuck(record.pid))
}

/// Said where zones are wanted of what has none.
const NO_ZONES: &str = "the kernel's NBD client has no zones: raw units are attached by the ublk driver, without --nbd";

/// To detach although somebody uses the device.
const FORCED: i32 = libc::SIGUSR1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_gone_on_with_only_as_it_is() {
        let wanted = |read_only: bool, queues: Option<u16>| Wanted {
            name: "a".into(),
            uri: "nbd://h/a".into(),
            way: Way::Ublk,
            read_only,
            queues: queues.unwrap_or(4),
            queues_said: queues.is_some(),
            timeout_s: 60,
        };
        let told = |wanted: &Wanted, of_volume, shape| unlike(wanted, of_volume, shape);
        assert_eq!(told(&wanted(false, None), false, (Some(false), Some(2))), None);
        assert_eq!(told(&wanted(false, None), true, (Some(true), Some(2))), None);
        assert_eq!(told(&wanted(true, Some(2)), false, (Some(true), Some(2))), None);
        assert_eq!(told(&wanted(true, Some(2)), false, (None, None)), None, "nobody can tell");
        let writable = told(&wanted(true, None), false, (Some(false), None)).unwrap();
        assert!(writable.contains("to be written"), "{writable}");
        let read_only = told(&wanted(false, None), false, (Some(true), None)).unwrap();
        assert!(read_only.contains("--read-only"), "{read_only}");
        let queues = told(&wanted(false, Some(3)), false, (Some(false), Some(2))).unwrap();
        assert!(queues.contains("--queues 2"), "{queues}");
    }
}
