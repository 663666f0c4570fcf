//! A disk or file that is taken whole by somebody who measures it.
//!
//! Invariant: nothing is written to one that somebody uses, or that holds anything but zeroes or what a measurement
//! left there ([`SCRATCH`]).

use super::DeviceError;
use super::direct::{self, HEAD_BYTES};
use super::zoned::Zoned;
use flash::BLOCK_BYTES;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// What every block begins with that a measurement wrote.
const SCRATCH: &[u8; 8] = b"WEIRLOAD";

/// Where in a block a signature of two bytes might be: what a measurement writes has zeroes there, as drawn bytes
/// would be taken for one now and then.
const SHORT_SIGNATURES: [usize; 2] = [510, 1080];

/// What a measurement does to a drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// It is only read, whoever else uses it.
    Read,
    /// What is there is lost.
    Overwrite,
}

/// A disk or file that is measured.
pub struct Drive {
    /// Keeps others away, where it is written.
    _claim: Option<File>,
    pub(crate) direct: Arc<File>,
    blocks: u64,
    notes: Vec<String>,
}

/// Less is a cache, not a drive.
const BLOCKS_LEAST: u64 = 256;

impl Drive {
    /// Opens what is at `path` for direct I/O.
    ///
    /// # Errors
    /// It is no disk or file, or is in use or holds something and would be overwritten, or what the system says.
    pub fn open(path: &Path, purpose: Purpose) -> Result<Self, DeviceError> {
        if !path.exists() {
            let mend = "name a disk, or make a file first: fallocate -l 8GiB FILE";
            return Err(DeviceError::invalid(path, "is not there", mend));
        }
        let (claim, mut notes) = match purpose {
            Purpose::Overwrite => (Some(claim(path)?), Vec::new()),
            Purpose::Read => (None, in_use(path).into_iter().collect()),
        };
        let direct = direct::open_direct(path, purpose == Purpose::Overwrite, false);
        let mut file = direct.map_err(|error| match error {
            DeviceError::Io { error, .. } if error.raw_os_error() == Some(libc::EINVAL) => {
                let mend = "measure a file on another one, or a disk";
                DeviceError::invalid(path, "its file system has no direct I/O", mend)
            }
            other => other,
        })?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(DeviceError::io(path, "tell the size"))?;
        let blocks = bytes / BLOCK_BYTES as u64;
        if blocks < BLOCKS_LEAST {
            let reason = format!("has {bytes} bytes, of which nothing can be learned");
            return Err(DeviceError::invalid(path, reason, "name one of 1 MiB at least"));
        }
        let metadata = file.metadata().map_err(DeviceError::io(path, "examine"))?;
        if purpose == Purpose::Read && metadata.is_file() && metadata.blocks() * 512 < bytes {
            notes.push("the file has holes, which are read without its disk".into());
        }
        Ok(Self { _claim: claim, direct: Arc::new(file), blocks, notes })
    }

    /// Memory that looks like a file: what a measurement takes where no drive is in its way.
    ///
    /// # Errors
    /// What the system says.
    pub fn null(blocks: u64) -> io::Result<Self> {
        // SAFETY: the name is a C string, and the descriptor is a new one.
        let file = unsafe {
            let fd = libc::memfd_create(c"weir-null".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
        };
        // Written, so that reads find memory and no holes.
        let mut rest = blocks;
        let zeroes = vec![0; 256 * BLOCK_BYTES];
        while rest > 0 {
            let part = rest.min(256);
            io::Write::write_all(&mut &file, &zeroes[..part as usize * BLOCK_BYTES])?;
            rest -= part;
        }
        Ok(Self { _claim: None, direct: Arc::new(file), blocks, notes: Vec::new() })
    }

    /// Whole blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// What makes figures of it doubtful, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Takes it for oneself, if it may be overwritten.
fn claim(path: &Path) -> Result<File, DeviceError> {
    let file =
        direct::open_alone(path, OpenOptions::new().write(true)).map_err(|error| match error {
            DeviceError::Locked { path, .. } => {
                let reason = "is in use: a server, or another measurement, has it open";
                DeviceError::invalid(&path, reason, "stop that first")
            }
            other => other,
        })?;
    if Zoned::at(path)?.is_some() {
        let reason = "is a zoned disk, which takes no writes at any address";
        return Err(DeviceError::invalid(path, reason, "measure its reads: --read-only"));
    }
    let mut head = Vec::new();
    let read = (&file).take(HEAD_BYTES).read_to_end(&mut head);
    read.map_err(DeviceError::io(path, "read the head"))?;
    let Some(what) = occupant(&head) else { return Ok(file) };
    let reason = format!("holds {what}, which a measurement of writes would destroy");
    let mend = format!(
        "measure only its reads with --read-only; or, if nothing on it is needed, clear its head: dd if=/dev/zero \
         of={} bs=1M count=1 conv=notrunc",
        path.display()
    );
    Err(DeviceError::invalid(path, reason, mend))
}

/// What would be lost with a drive whose first [`HEAD_BYTES`], or all of it, are these; `None` if nothing would.
pub fn occupant(head: &[u8]) -> Option<&'static str> {
    match direct::signature(head) {
        _ if direct::is_ours(head) => Some("a device of Weir's"),
        Some(known) => Some(known),
        None if head.starts_with(SCRATCH) || head.iter().all(|&byte| byte == 0) => None,
        None => Some("data of somebody's"),
    }
}

/// Makes blocks what a measurement may overwrite again.
pub fn mark(blocks: &mut [u8]) {
    for block in blocks.chunks_exact_mut(BLOCK_BYTES) {
        block[..SCRATCH.len()].copy_from_slice(SCRATCH);
        SHORT_SIGNATURES.iter().for_each(|&at| block[at..at + 2].fill(0));
    }
}

/// Who else uses a disk that is only read, in words.
fn in_use(path: &Path) -> Option<String> {
    let taken = direct::open_alone(path, &mut OpenOptions::new());
    let busy = matches!(taken, Err(DeviceError::Busy(_) | DeviceError::Locked { .. }));
    busy.then(|| "it is in use: what others ask of it meanwhile slows what is measured".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(name: &str, head: &[u8], bytes: u64) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("weir-whole-{}-{name}", std::process::id()));
        let mut file = File::create(&path).expect("a scratch file");
        file.write_all(head).expect("it is written");
        file.set_len(bytes).expect("it is sized");
        path
    }

    fn refused(name: &str, head: &[u8], bytes: u64, says: &str) {
        let path = file(name, head, bytes);
        let why = Drive::open(&path, Purpose::Overwrite).err().expect(says).to_string();
        assert!(why.contains(says), "{why}");
        assert!(why.contains(path.to_str().expect("it is UTF-8")), "it names the place: {why}");
        assert_eq!(&std::fs::read(&path).expect("it is there")[..head.len()], head);
        std::fs::remove_file(path).ok();
    }

    #[test]
    fn what_holds_anything_is_not_overwritten() {
        let mut ext4 = vec![0; 1082];
        ext4[1080..].copy_from_slice(b"\x53\xef");
        refused("ext4", &ext4, 4 << 20, "an ext2, ext3 or ext4 file system");
        refused("weir", b"WEIRFILE", 4 << 20, "a device of Weir's");
        refused("text", b"my thesis", 4 << 20, "data of somebody's");
        refused("scratch-ext4", &[&SCRATCH[..], &ext4[8..]].concat(), 4 << 20, "ext4");
        refused("small", b"", 8192, "8192 bytes");
        let folder = Drive::open(&std::env::temp_dir(), Purpose::Overwrite).err();
        assert!(folder.expect("a folder").to_string().contains("neither a plain file nor a disk"));
        let missing = Drive::open(Path::new("no-such-drive"), Purpose::Overwrite).err();
        assert!(missing.expect("nothing").to_string().contains("fallocate"));
    }

    #[test]
    fn what_is_empty_or_was_measured_before_is_taken_by_one_at_a_time() {
        for (name, head) in [("empty", &b""[..]), ("scratch", &SCRATCH[..])] {
            let path = file(name, head, 4 << 20);
            let drive = Drive::open(&path, Purpose::Overwrite).expect(name);
            assert_eq!((drive.blocks(), drive.notes().len()), (1024, 0));
            let second = Drive::open(&path, Purpose::Overwrite).err().expect("it is taken");
            assert!(second.to_string().contains("in use"), "{second}");
            let reader = Drive::open(&path, Purpose::Read).expect("reads harm nobody");
            assert!(
                reader.notes().iter().any(|note| note.contains("in use")),
                "{:?}",
                reader.notes()
            );
            assert!(
                reader.notes().iter().any(|note| note.contains("holes")),
                "{:?}",
                reader.notes()
            );
            std::fs::remove_file(path).ok();
        }
    }
}
