//! The lock that keeps a second server away, and the generation that tells a server it has been
//! replaced all the same (a lock does not reach across machines or copies of a folder). Beside the
//! generation is the master of the device's marks ([`super::identity`]).

use super::DeviceError;
use super::identity::{MARKS_BYTES, Mark, Opener, Role, State};
use crate::medium::{GENERATION_BYTES, decode_generation, encode_generation};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Locks the file at `path`, made if it is not there, and writes the process id into it.
pub fn acquire(path: &Path) -> Result<File, DeviceError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path).map_err(DeviceError::io(path, "open the lock"))?;
    if !try_lock(&file).map_err(DeviceError::io(path, "lock"))? {
        let mut text = String::new();
        let read = file.read_to_string(&mut text);
        let pid = read.ok().and_then(|_| text.trim().parse().ok());
        return Err(DeviceError::Locked { path: path.into(), pid });
    }
    // Whom to name to others. A full file system takes no process id, and the lock holds all the same.
    let named = file.set_len(0).and_then(|()| file.rewind());
    if let Err(error) = named.and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::debug!(%error, "{}: the lock names no process", path.display());
    }
    Ok(file)
}

/// Locks `file`; false if another process has it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: no memory is involved.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
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
