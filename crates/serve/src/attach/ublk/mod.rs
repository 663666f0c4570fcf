//! A volume as `/dev/ublkbN`: Linux's block devices in user space (ublk). This process is the device's server, and asks the
//! volume's server over NBD, or a raw unit's over NVMe/TCP, which is a disk with zones. Either may end and come back: the
//! driver keeps the device of a server that was killed (user recovery), and the next one goes on with it and with what had
//! not been answered.

mod abi;
mod asked;
mod control;
mod link;
mod outbox;
mod queue;
mod wire;
mod zoned;

use super::record::{self, FOLDER};
use super::target::{COMMANDS, Shown, Target};
use super::{AttachError, Keeper, Wanted};
use crate::front::vhost::Event;
use abi::Info;
use control::Control;
use link::Link;
use queue::{Reins, Setup};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests of a queue at a time.
const DEPTH: u16 = COMMANDS;
/// Most bytes of a request.
const IO_BYTES: u32 = 512 << 10;

/// A device that is served here.
pub struct Device {
    control: Control,
    number: u32,
    reins: Vec<Arc<Reins>>,
    queues: Vec<JoinHandle<()>>,
    shown: Shown,
    /// The driver can give a disk another size.
    resizes: bool,
}

/// What the node of a device is called.
pub fn node(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Whether the device of a record is still there, and waits for a server.
pub fn is_there(number: u32) -> Result<bool, AttachError> {
    let info = Control::open()?.info(number);
    info.map(|info| info.is_some()).map_err(refused("ask what it is", number))
}

/// Removes a device whose server has gone.
pub fn remove(number: u32, force: bool) -> Result<(), AttachError> {
    Control::open()?.remove(number, force).map_err(refused("remove it", number))
}

/// The process that serves a device, if one does.
pub fn server_of(number: u32) -> Option<u32> {
    let info = Control::open().ok()?.info(number).ok()??;
    u32::try_from(info.server).ok().filter(|&server| server > 0)
}

fn refused(doing: &'static str, number: u32) -> impl FnOnce(std::io::Error) -> AttachError {
    move |error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AttachError::NotPermitted(abi::CONTROL),
        _ => AttachError::system(&node(number), doing)(error),
    }
}

impl Device {
    /// Makes a device, or takes over the one of this number, and serves it.
    ///
    /// # Errors
    /// What the kernel refuses, or the server.
    pub fn begin(
        wanted: &Wanted,
        target: &Target,
        shown: Shown,
        before: Option<u32>,
    ) -> Result<Self, AttachError> {
        let mut control = Control::open()?;
        let features = control.features().unwrap_or(0);
        let resizes = features & abi::CAN_RESIZE != 0;
        let with_zones = match &shown.zones {
            Some(_) if features & abi::ZONED == 0 => return Err(AttachError::NoDriver(NO_ZONES)),
            Some(zones) => {
                expect_blocks(zones.block_shift)?;
                abi::ZONED | abi::USER_COPY
            }
            None => 0,
        };
        let info = match before {
            None => {
                let new = Info {
                    queues: wanted.queues,
                    depth: DEPTH,
                    io_bytes: IO_BYTES,
                    device: abi::ANY,
                    flags: abi::RECOVERY | abi::IOCTL_NUMBERS | with_zones,
                    ..Info::default()
                };
                control.add(new).map_err(|error| refused_new(error, with_zones != 0))?
            }
            Some(number) => {
                let doing = "take it over";
                control.begin_recovery(number).map_err(refused(doing, number))?;
                let info = control.info(number).map_err(refused(doing, number))?;
                info.ok_or_else(|| refused(doing, number)(std::io::ErrorKind::NotFound.into()))?
            }
        };
        let number = info.device;
        let (reins, queues) = (Vec::new(), Vec::new());
        let mut device = Self { control, number, reins, queues, shown, resizes };
        let begun = device.serve(wanted, target, &info, before.is_some());
        if let Err(error) = begun {
            // One that was there before stays for the next try.
            device.end(before.is_none(), false);
            return Err(error);
        }
        Ok(device)
    }

    fn serve(
        &mut self,
        wanted: &Wanted,
        target: &Target,
        info: &Info,
        recovers: bool,
    ) -> Result<(), AttachError> {
        let number = self.number;
        if !recovers {
            let (shown, read_only) = (&self.shown, wanted.read_only);
            let parameters = match &shown.zones {
                None => asked::parameters(&shown.export, read_only, info.io_bytes),
                Some(zones) => zoned::parameters(shown, zones, read_only, info.io_bytes),
            };
            let told = self.control.set_parameters(number, parameters);
            told.map_err(refused("say what the disk is like", number))?;
        }
        let file = Arc::new(control::open_device(number)?);
        let appends = match self.shown.zones {
            None => None,
            Some(_) => Some(appends(&wanted.name, recovers)?),
        };
        for queue in 0..info.queues {
            let zoned = appends.as_ref().map(|appends| zoned::Place {
                device: Arc::clone(&file),
                queue,
                depth: info.depth,
                appends: Arc::clone(appends),
                was_there: recovers,
            });
            self.begin_queue(&file, target, (info, queue), zoned)?;
        }
        match recovers {
            true => self.control.end_recovery(number).map_err(refused("take it over", number)),
            false => self.control.start(number).map_err(refused("show it", number)),
        }
    }

    /// Starts the thread of a queue, and waits until it waits for requests.
    fn begin_queue(
        &mut self,
        file: &Arc<File>,
        target: &Target,
        (info, queue): (&Info, u16),
        zoned: Option<zoned::Place>,
    ) -> Result<(), AttachError> {
        let doing = "serve a queue of it";
        let place = node(self.number);
        let system = |error| AttachError::system(&place, doing)(error);
        let (connection, shown) = target.connect().map_err(AttachError::Server)?;
        let bell = Event::new().map_err(system)?;
        let reins = Arc::new(Reins::new(bell));
        let setup = Setup {
            device: Arc::clone(file),
            number: queue,
            depth: info.depth,
            io_bytes: info.io_bytes,
            target: target.clone(),
            connection,
            reins: Arc::clone(&reins),
        };
        let (sender, receiver) = mpsc::channel();
        let depth = info.depth;
        let serve = move || {
            let told = sender.clone();
            let waits = || drop(told.send(None));
            let ended = match (shown.zones, zoned) {
                (Some(zones), Some(place)) => {
                    queue::serve(setup, |memory| zoned::Link::new(zones, memory, place), waits)
                }
                _ => queue::serve(setup, |memory| Link::new(depth, memory), waits),
            };
            if let Err(error) = ended {
                tracing::error!(queue, %error, "a queue of the device has ended");
                sender.send(Some(error)).ok();
            }
        };
        let name = format!("ublk-{queue}");
        self.queues.push(std::thread::Builder::new().name(name).spawn(serve).map_err(system)?);
        self.reins.push(reins);
        match receiver.recv() {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(system(error)),
            Err(_) => Err(system(std::io::Error::other("its thread has ended"))),
        }
    }

    /// Lets requests fail rather than wait for a server that is not there, or that is silent for too long; ends the
    /// queues, and removes the device, if that is wanted.
    fn end(&mut self, removes: bool, force: bool) {
        self.reins.iter().for_each(|reins| reins.leave());
        if !removes {
            return;
        }
        // The driver waits for the end of all requests, and with it this thread.
        let (ended, end) = mpsc::channel();
        let (reins, patience) = (self.reins.clone(), if force { SILENCE_FORCED } else { SILENCE });
        let watch = move || give_up_when_silent(&reins, patience, &end);
        if let Err(error) = std::thread::Builder::new().name("silence".into()).spawn(watch) {
            tracing::warn!(%error, "a server that is silent is waited for");
        }
        let removed = self.control.remove(self.number, force);
        drop(ended);
        match removed {
            Ok(()) => self.queues.drain(..).for_each(|queue| drop(queue.join())),
            Err(error) => {
                tracing::error!(%error, "{}: cannot be removed", node(self.number).display());
            }
        }
    }
}

/// Gives up a server that answers nothing for so long, unless there is nothing any more to wait for.
fn give_up_when_silent(reins: &[Arc<Reins>], patience: Duration, end: &Receiver<()>) {
    let heard = || reins.iter().map(|reins| reins.heard.load(Ordering::Relaxed)).sum::<u64>();
    let (mut last, mut since) = (heard(), Instant::now());
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(patience / 20) {
        let now = heard();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= patience {
            return reins.iter().for_each(|reins| reins.give_up());
        }
    }
}

/// How long a server may answer nothing while its device is being taken away.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCE_FORCED: Duration = Duration::from_secs(5);

/// Appends of a device that are under way.
fn appends(name: &str, was_there: bool) -> Result<Arc<Mutex<zoned::Appends>>, AttachError> {
    let path = record::appends(Path::new(FOLDER), name);
    let opened = zoned::Appends::open(&path, was_there);
    let opened = opened.map_err(AttachError::system(&path, "note appends there"))?;
    Ok(Arc::new(Mutex::new(opened)))
}

/// Refuses blocks that are larger than the driver takes: a page of this machine's memory.
fn expect_blocks(shift: u8) -> Result<(), AttachError> {
    // SAFETY: it only asks.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let bytes = 1u64 << shift;
    if bytes <= page {
        return Ok(());
    }
    Err(AttachError::Server(client::Error::Usage(format!(
        "its blocks are pages of flash of {bytes} bytes, and the ublk driver takes no blocks larger than the {page} of this \
         machine's memory pages: use a profile with smaller ones (slc, instant), or the kernel's own NVMe/TCP initiator"
    ))))
}

fn refused_new(error: std::io::Error, with_zones: bool) -> AttachError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AttachError::NotPermitted(abi::CONTROL),
        Some(libc::EOPNOTSUPP | libc::EINVAL) if with_zones => AttachError::NoDriver(NO_ZONES),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY) => AttachError::NoDriver(OLD_DRIVER),
        _ => AttachError::system(Path::new(abi::CONTROL), "make a device")(error),
    }
}

/// Said of a driver that does not know what is asked of it.
const OLD_DRIVER: &str = "the ublk driver of this kernel is too old: Linux 6.4 and newer will do; or use the kernel's NBD \
                          client: `weir attach --nbd`";

/// Said of a driver that makes no disks with zones.
const NO_ZONES: &str = "the ublk driver of this kernel makes no disks with zones: that needs Linux 6.6 or newer, built with \
                        BLK_DEV_ZONED (Debian 13, or 12 with the kernel of its backports); or use the kernel's own initiator: \
                        `nvme connect -t tcp`";

impl Keeper for Device {
    fn number(&self) -> u32 {
        self.number
    }

    fn node(&self) -> PathBuf {
        node(self.number)
    }

    fn has_ended(&self) -> bool {
        self.queues.iter().any(JoinHandle::is_finished)
    }

    fn look(&mut self, shown: Option<Shown>) {
        let export = shown.map(|shown| shown.export);
        let known = &mut self.shown.export;
        let Some(export) = export.filter(|export| export.size != known.size) else { return };
        known.size = export.size;
        let (place, bytes) = (self.node(), export.size);
        if !self.resizes {
            tracing::warn!(
                "{}: the volume has {bytes} bytes now, which the driver of this kernel cannot tell (Linux 6.16 and \
                 newer can): detach the volume and attach it again, or attach it with --nbd",
                place.display()
            );
            return;
        }
        match self.control.resize(self.number, bytes / asked::SECTOR) {
            Ok(()) => tracing::warn!("{}: has {bytes} bytes from now on", place.display()),
            Err(error) => tracing::error!(%error, "{}: cannot be resized", place.display()),
        }
    }

    fn remove(&mut self, force: bool) {
        self.end(true, force);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answers_is_waited_for_and_one_that_is_silent_is_given_up() {
        let reins = [Arc::new(Reins::new(Event::new().unwrap()))];
        let patience = Duration::from_millis(200);
        let watch = |reins: &[Arc<Reins>; 1]| {
            let ((ended, end), of) = (mpsc::channel(), reins.clone());
            let watching = std::thread::spawn(move || give_up_when_silent(&of, patience, &end));
            (ended, watching)
        };
        let (ended, watching) = watch(&reins);
        for _ in 0..30 {
            reins[0].heard.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(patience / 20);
        }
        drop(ended);
        watching.join().unwrap();
        assert!(!reins[0].gave_up(), "it was never silent for so long, and then all had ended");
        let (_ended, watching) = watch(&reins);
        watching.join().unwrap();
        assert!(reins[0].gave_up());
    }
}
