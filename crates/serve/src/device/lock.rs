//! The lock that keeps a second server away, and the generation that tells a server it has been
//! replaced all the same (a lock does not reach across machines or copies of a folder). Beside the
//! generation is the master of the device's marks ([`super::identity`]).

use super::identity::{MARKS_BYTES, Mark, Opener, Role, State};
use super::{DeviceError, Mode};
use crate::files;
use crate::medium::{GENERATION_BYTES, decode_generation, encode_generation};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Locks the file `lock` of `folder` for this open.
pub fn acquire(folder: &Path, mode: Mode) -> Result<File, DeviceError> {
    let path = folder.join("lock");
    match mode {
        Mode::ReadWrite => lock_alone(&path),
        Mode::ReadOnly => share(folder, &path),
    }
}

/// Locks the file at `path` beside others who only look, which writes nothing. Where there is none and
/// none can be made, the folder itself stands in for it: nobody else looks at that.
fn share(folder: &Path, path: &Path) -> Result<File, DeviceError> {
    let failed = DeviceError::io(path, "open the lock");
    let opened = match files::open(path, File::options().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::open(path, File::options().read(true).write(true).create(true))
        }
        opened => opened,
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) if !path.exists() && may_not_be_made(&error) => {
            tracing::warn!(
                %error,
                "{}: no lock can be made, so nothing keeps a server from writing to this device while it \
                 is looked at",
                path.display()
            );
            return File::open(folder).map_err(DeviceError::io(folder, "open"));
        }
        Err(error) => return Err(failed(error)),
    };
    match try_lock_as(&file, libc::LOCK_SH).map_err(DeviceError::io(path, "lock"))? {
        true => Ok(file),
        false => Err(locked(path, &file)),
    }
}

/// True if `error` is that of a place where nothing can be made.
fn may_not_be_made(error: &io::Error) -> bool {
    let codes = [libc::EROFS, libc::EACCES, libc::EPERM, libc::ENOSPC, libc::EDQUOT, libc::EFBIG];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// How often, and how long between, a lock is tried that this very process held last.
const OWN_TRIES: u32 = 50;
const OWN_PAUSE: Duration = Duration::from_millis(10);

fn is_own(held: &DeviceError) -> bool {
    matches!(held, DeviceError::Locked { pid: Some(pid), .. } if *pid == std::process::id())
}

fn locked(path: &Path, mut file: &File) -> DeviceError {
    let mut text = String::new();
    // It may be looked at more than once.
    let read = file.rewind().and_then(|()| file.take(PID_BYTES_MAX).read_to_string(&mut text));
    let pid = read.ok().and_then(|_| text.trim().parse().ok());
    // Who only looks, or cannot write, leaves the name of the server before.
    let pid = pid.filter(|pid| Path::new("/proc").join(format!("{pid}")).exists());
    DeviceError::Locked { path: path.into(), pid }
}

/// Locks the file at `path`, made if it is not there, and writes the process id into it.
fn lock_alone(path: &Path) -> Result<File, DeviceError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file =
        files::open(path, &mut options).map_err(DeviceError::io(path, "open the lock"))?;
    let mut tries = 0;
    while !try_lock(&file).map_err(DeviceError::io(path, "lock"))? {
        let held = locked(path, &file);
        // A lock that this process gave up just now is held on by a child of it until that has become its program.
        if tries == OWN_TRIES || !is_own(&held) {
            return Err(held);
        }
        tries += 1;
        std::thread::sleep(OWN_PAUSE);
    }
    // Whom to name to others. A full file system takes no process id, and the lock holds all the same.
    let named = file.set_len(0).and_then(|()| file.rewind());
    if let Err(error) = named.and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::debug!(%error, "{}: the lock names no process", path.display());
    }
    Ok(file)
}

/// What a process id takes at most.
const PID_BYTES_MAX: u64 = 32;

/// Locks `file`; false if another process has it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    try_lock_as(file, libc::LOCK_EX)
}

fn try_lock_as(file: &File, how: libc::c_int) -> io::Result<bool> {
    // SAFETY: no memory is involved.
    if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Where beside the generation the master is.
const MASTER_AT: usize = 512;
/// Bytes of both.
pub const FOUND_BYTES: usize = MASTER_AT + MARKS_BYTES;

/// What stands where the generation is.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub generation: u64,
    /// `None` on a device that was never opened by a build that knows marks.
    pub master: Option<Mark>,
}

impl Found {
    /// What these bytes tell; `None` if the generation is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let generation = decode_generation(bytes.get(..GENERATION_BYTES)?)?;
        let master = bytes.get(MASTER_AT..).and_then(Mark::decode_twice);
        let master = master.filter(|mark| mark.role == Role::Generation);
        let master = match master {
            Some(mark) if mark.generation == generation => Some(mark),
            // A cut between the two sectors, or an open by a build without marks: what this open was
            // nobody knows.
            Some(mark) if mark.generation + 1 == generation => {
                let opener = Opener::default();
                Some(Mark { generation, state: State::Opening, opener, ..mark })
            }
            _ => None,
        };
        Some(Self { generation, master })
    }

    /// The bytes of a master and its generation.
    pub fn encode(master: &Mark) -> [u8; FOUND_BYTES] {
        let mut bytes = [0; FOUND_BYTES];
        bytes[..GENERATION_BYTES].copy_from_slice(&encode_generation(master.generation));
        bytes[MASTER_AT..].copy_from_slice(&master.encode_twice());
        bytes
    }

    /// What an open for writing begins from.
    pub fn before(&self, uuid: u128) -> Mark {
        self.master.unwrap_or(Mark { state: State::Open, ..Mark::fresh(uuid, self.generation) })
    }
}

/// Reads the generation in a file at `at`, and the master beside it.
pub fn read_generation(file: &File, path: &Path, at: u64) -> Result<Found, DeviceError> {
    let mut bytes = [0; FOUND_BYTES];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DeviceError::io(path, "read the generation")(error)),
        }
    }
    Found::decode(&bytes[..read]).ok_or_else(|| {
        let mend = "restore it from a backup of the device as it was last in use";
        DeviceError::invalid(path, "the generation is damaged", mend)
    })
}

/// Makes the generation of `master` the present one, durably.
pub fn write_generation(
    file: &File,
    path: &Path,
    at: u64,
    master: &Mark,
) -> Result<(), DeviceError> {
    let failed = "write the generation";
    file.write_all_at(&Found::encode(master), at).map_err(DeviceError::io(path, failed))?;
    file.sync_all().map_err(DeviceError::io(path, failed))
}
