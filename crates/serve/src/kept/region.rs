//! The file behind kept memory, mapped. It is the owner's alone: made with mode 0600, never followed
//! through a link, locked while it is mapped; one of another user, or that others may write, is not
//! looked into.
//!
//! It is known by its first bytes, which are there from before it grows and for as long as it lives.
//!
//! Invariants: all of it is taken from the file system before it is touched, so that memory which runs
//! out is an error here and no signal later; the [`Part`]s handed out do not overlap, and the mapping
//! outlives them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// What kept memory begins with.
pub const MAGIC: &[u8; 8] = b"WEIRKEPT";

/// A file that nobody else has open, not mapped yet.
pub struct KeptFile {
    file: File,
    path: PathBuf,
}

impl KeptFile {
    /// Opens the file at `path`; `None` if there is none.
    ///
    /// # Errors
    /// It is in use, or not only ours; then it is not touched.
    pub fn open(path: &Path) -> Result<Option<Self>, String> {
        match options().open(path) {
            Ok(file) => Self::own(file, path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(path, "opened", &error)),
        }
    }

    /// Makes the file at `path`, which holds nothing yet.
    ///
    /// # Errors
    /// Something is there, or nothing can be made there.
    pub fn create(path: &Path) -> Result<Self, String> {
        let made = options().create_new(true).open(path);
        Self::own(made.map_err(|error| failed(path, "made", &error))?, path)
    }

    fn own(file: File, path: &Path) -> Result<Self, String> {
        let metadata = file.metadata().map_err(|error| failed(path, "examined", &error))?;
        // SAFETY: no memory is involved.
        let me = unsafe { libc::geteuid() };
        let shown = path.display();
        if !metadata.is_file() || metadata.nlink() != 1 {
            return Err(format!("{shown} is not a plain file with one name"));
        }
        if metadata.uid() != me || metadata.mode() & 0o077 != 0 {
            return Err(format!(
                "{shown} is not its owner's alone (user {}, mode {:03o}, where user {me} and 600 are \
                 wanted): remove it",
                metadata.uid(),
                metadata.mode() & 0o777
            ));
        }
        // SAFETY: no memory is involved.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(format!("{shown} is in use by another server: name another place"));
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// `Err` if it holds something, and not kept memory: it is somebody's, whatever its name.
    pub fn is_kept_memory(&self) -> Result<(), String> {
        let mut begin = Vec::new();
        let head = (&self.file).take(MAGIC.len() as u64).read_to_end(&mut begin);
        head.map_err(|error| failed(&self.path, "read", &error))?;
        if begin.is_empty() || begin == MAGIC {
            return Ok(());
        }
        Err(format!(
            "{} holds something else than kept memory, and is left as it is: name another place",
            self.path.display()
        ))
    }

    /// Its length.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads bytes of it.
    pub fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    /// Maps `bytes` bytes; with `empty` they are zeroes behind the mark, whatever was there.
    ///
    /// # Errors
    /// There is not so much room.
    pub fn map(self, bytes: u64, empty: bool) -> Result<Arc<Region>, String> {
        if empty {
            let emptied = self.file.set_len(0).and_then(|()| self.file.write_all_at(MAGIC, 0));
            emptied.map_err(|error| failed(&self.path, "emptied", &error))?;
        }
        // SAFETY: no memory is involved.
        let code = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, bytes as libc::off_t) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code);
            let wanted = format!("given {} MiB", bytes.div_ceil(1 << 20));
            return Err(failed(&self.path, &wanted, &error));
        }
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        let len = bytes as usize;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(failed(&self.path, "mapped", &io::Error::last_os_error()));
        }
        let start = NonNull::new(start.cast()).ok_or("mapped at 0")?;
        Ok(Arc::new(Region { start, len, path: self.path, _file: self.file }))
    }
}

fn options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn failed(path: &Path, what: &str, error: &io::Error) -> String {
    format!("{} cannot be {what}: {error}", path.display())
}

/// The mapped file.
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    path: PathBuf,
    /// Locked.
    _file: File,
}

// SAFETY: the mapping belongs to the region and is only reached through parts, of which each byte is
// in one at most.
unsafe impl Send for Region {}
// SAFETY: as above; a region itself has no method that touches the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts it into parts of these lengths, from the start on.
    pub fn cut(self: &Arc<Self>, lengths: &[usize]) -> Vec<Part> {
        assert!(lengths.iter().sum::<usize>() <= self.len, "the parts lie within the region");
        assert_eq!(Arc::strong_count(self), 1, "it is cut once");
        let mut at = 0;
        let part = |&len: &usize| {
            // SAFETY: within the mapping, asserted above.
            let start = unsafe { self.start.add(at) };
            at += len;
            Part { start, len, region: Arc::clone(self) }
        };
        lengths.iter().map(part).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; no part is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Some bytes of a region, of one owner.
pub struct Part {
    start: NonNull<u8>,
    len: usize,
    region: Arc<Region>,
}

// SAFETY: a part owns its bytes.
unsafe impl Send for Part {}

impl Part {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for this length, and no other part has any of them. Another process that maps
        // the file would break the lock that it must not break.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to change them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` keeps other users away.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.region.path()
    }
}
