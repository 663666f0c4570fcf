//! The lock that keeps a second server away, and the generation that tells a server it has been
//! replaced all the same (a lock does not reach across machines or copies of a folder).

use super::DeviceError;
use crate::files;
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
    let mut file =
        files::open(path, &mut options).map_err(DeviceError::io(path, "open the lock"))?;
    if !try_lock(&file).map_err(DeviceError::io(path, "lock"))? {
        let mut text = String::new();
        let read = (&file).take(PID_BYTES_MAX).read_to_string(&mut text);
        let pid = read.ok().and_then(|_| text.trim().parse().ok());
        return Err(DeviceError::Locked { path: path.into(), pid });
    }
    let failed = "write the process id into the lock";
    file.set_len(0).map_err(DeviceError::io(path, failed))?;
    file.rewind().map_err(DeviceError::io(path, failed))?;
    writeln!(file, "{}", std::process::id()).map_err(DeviceError::io(path, failed))?;
    Ok(file)
}

/// What a process id takes at most.
const PID_BYTES_MAX: u64 = 32;

/// Locks `file`; false if another process has it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: no memory is involved.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Reads the generation in a file at `at`.
pub fn read_generation(file: &File, path: &Path, at: u64) -> Result<u64, DeviceError> {
    let mut bytes = [0; GENERATION_BYTES];
    file.read_exact_at(&mut bytes, at).map_err(DeviceError::io(path, "read the generation"))?;
    decode_generation(&bytes).ok_or_else(|| {
        let mend = "restore it from a backup, or write the 12 bytes of generation 0 (eight zeroes \
                    and their CRC-32C) if no other server can have this device open";
        DeviceError::invalid(path, "the generation is damaged", mend)
    })
}

/// Makes `generation` the present one, durably.
pub fn write_generation(
    file: &File,
    path: &Path,
    at: u64,
    generation: u64,
) -> Result<(), DeviceError> {
    let failed = "write the generation";
    let bytes = encode_generation(generation);
    file.write_all_at(&bytes, at).map_err(DeviceError::io(path, failed))?;
    file.sync_all().map_err(DeviceError::io(path, failed))
}
