//! What can be wrong with a device: each says where, what, and how to mend it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a device cannot be made or opened.
#[derive(Debug)]
pub enum DeviceError {
    /// The system refused something.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// Another process has the device open.
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process, as far as it is known.
        pid: Option<u32>,
    },
    /// There is no device.
    Missing(PathBuf),
    /// There is a device already.
    Exists(PathBuf),
    /// The system uses the disk.
    Busy(PathBuf),
    /// Somebody else's data is there.
    Foreign {
        /// Where.
        path: PathBuf,
        /// What it looks like.
        what: String,
    },
    /// A file does not hold what it must.
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to do about it.
        mend: String,
    },
    /// The options do not make a device.
    Options(String),
    /// The device is of another mode than it was to be opened in.
    Mode {
        /// The device.
        path: PathBuf,
        /// What it is: "raw" or "block".
        found: &'static str,
    },
    /// The FTL of a shard refuses to start.
    Mount {
        /// Which shard.
        shard: usize,
        /// Why.
        reason: String,
    },
}

impl DeviceError {
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::Io { path, doing, error }
    }

    /// Of a file that the device needs: one that is missing, or is no such file at all, is put back as `mend` says.
    pub(crate) fn of_own(
        path: &Path,
        doing: &'static str,
        mend: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| match error.kind() {
            io::ErrorKind::NotFound => Self::invalid(&path, "is missing", mend),
            io::ErrorKind::InvalidInput => Self::invalid(&path, error.to_string(), mend),
            _ => Self::io(&path, doing)(error),
        }
    }

    /// True if a file system had no room for what was to be written.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        let codes = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG];
        let Self::Io { error, .. } = self else { return false };
        error.raw_os_error().is_some_and(|code| codes.contains(&code))
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_path_buf(), reason: reason.into(), mend: mend.into() }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, doing, error } => {
                write!(f, "{}: cannot {doing}: {error}", path.display())?;
                match error.raw_os_error() {
                    Some(libc::EROFS) => f.write_str(
                        ": what may only be read can be served so: read_only = true in [ftl] of a config",
                    ),
                    _ => Ok(()),
                }
            }
            Self::Locked { path, pid: Some(pid) } if *pid == std::process::id() => write!(
                f,
                "{}: this very process ({pid}) has it open already: a device and its fast tier, and two \
                 devices, need a place each",
                path.display()
            ),
            Self::Locked { path, pid: Some(pid) } => write!(
                f,
                "{}: the device is in use by process {pid}: stop that server first",
                path.display()
            ),
            Self::Locked { path, pid: None } => {
                write!(f, "{}: the device is in use: stop that server first", path.display())
            }
            Self::Missing(path) => write!(
                f,
                "{}: no device here: make one with `weir format`, or start `weir serve` with a \
                 config that describes it",
                path.display()
            ),
            Self::Exists(path) => write!(
                f,
                "{}: there is a device here already: choose another path, or remove it if \
                 nothing on it is needed",
                path.display()
            ),
            Self::Busy(path) => write!(
                f,
                "{}: the disk is in use: it is mounted, or part of another, or a server has it \
                 open: see `lsblk {}`, and unmount it or stop that server first",
                path.display(),
                path.display()
            ),
            Self::Foreign { path, what } => write!(
                f,
                "{}: holds {what}: choose another path; or, if nothing on it is needed, throw it \
                 away with `weir format --force`",
                path.display()
            ),
            Self::Invalid { path, reason, mend } => {
                write!(f, "{}: {reason}; {mend}", path.display())
            }
            Self::Mode { path, found } => write!(
                f,
                "{}: was formatted with mode = {found:?}: say that in [device], or name another \
                 path for a device of the other mode",
                path.display()
            ),
            Self::Options(reason) => f.write_str(reason),
            Self::Mount { shard, reason } => write!(f, "shard {shard}: {reason}"),
        }
    }
}

impl std::error::Error for DeviceError {}
