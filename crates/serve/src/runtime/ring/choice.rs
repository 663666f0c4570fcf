//! Which driver a ring has: what was wished for, what the system grants, and the words for both.

use super::Driver;
use super::plain::Plain;
use super::uring::Uring;
use std::fmt;
use std::io;

/// Which driver may stand behind a ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DriverChoice {
    /// io_uring if the system grants it, else threads.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// Threads and epoll, whatever there is.
    Threads,
}

impl DriverChoice {
    /// The names, as a config has them.
    pub const NAMES: [&'static str; 3] = ["auto", "io_uring", "threads"];

    /// The one of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "io_uring" => Some(Self::IoUring),
            "threads" => Some(Self::Threads),
            _ => None,
        }
    }
}

/// Which driver a ring has got.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DriverReport {
    /// `io_uring` or `threads`.
    pub name: &'static str,
    /// Why this one; of an io_uring what it has of the savings that newer kernels offer.
    pub why: String,
    /// It is not what was hoped for: people should hear of it.
    pub lesser: bool,
}

impl fmt::Display for DriverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

/// Why io_uring cannot be used.
#[derive(Debug)]
pub struct Refusal {
    /// What was tried.
    pub doing: &'static str,
    /// What came of it.
    pub error: io::Error,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, error } = self;
        write!(f, "{doing}: {error}: ")?;
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => match disabled() {
                Some(level) => write!(f, "kernel.io_uring_disabled is {level}; set it to 0"),
                None => f.write_str(
                    "a container's seccomp profile forbids it; allow io_uring_setup, \
                     io_uring_enter and io_uring_register there",
                ),
            },
            Some(libc::ENOSYS) => f.write_str(
                "the kernel is older than Linux 5.1 or built without io_uring, or a seccomp \
                 profile hides it; allow io_uring_setup, io_uring_enter and io_uring_register there",
            ),
            Some(libc::ENOMEM) => {
                f.write_str("too little memory may be locked; raise `ulimit -l` (RLIMIT_MEMLOCK)")
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                f.write_str("too many files are open; raise `ulimit -n`")
            }
            _ => f.write_str("io_uring is used from Linux 5.11 on"),
        }
    }
}

/// What the system's switch for io_uring says, if it is not on for all.
fn disabled() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok().filter(|&level| level > 0)
}

/// Why there is no driver at all.
#[derive(Debug)]
pub enum NoDriver {
    /// Only io_uring was allowed.
    IoUring(Refusal),
    /// Threads and epoll do not work either; without a refusal io_uring was not allowed.
    Threads(Option<Refusal>, io::Error),
}

impl fmt::Display for NoDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IoUring(refusal) => write!(
                f,
                "runtime.driver = \"io_uring\", which this system does not grant: {refusal}; or say \
                 driver = \"auto\", which then uses threads"
            ),
            Self::Threads(refusal, error) => {
                write!(f, "threads cannot be used: an epoll or an eventfd was refused: {error}")?;
                f.write_str(
                    ": Weir needs epoll_create1, epoll_ctl, epoll_wait, ppoll and eventfd2, of any \
                     kernel since Linux 4.19, and descriptors (`ulimit -n`)",
                )?;
                match refusal {
                    Some(refusal) => write!(f, "; nor io_uring: {refusal}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for NoDriver {}

impl Driver {
    /// The best driver that `choice` allows and the system grants.
    pub fn new(entries: u32, choice: DriverChoice) -> Result<(Self, DriverReport), NoDriver> {
        let refusal = match choice {
            DriverChoice::Threads => None,
            DriverChoice::Auto | DriverChoice::IoUring => match Uring::new(entries) {
                Ok(ring) => {
                    let (why, lesser) = ring.level().words();
                    let report = DriverReport { name: "io_uring", why: why.into(), lesser };
                    return Ok((Self::Uring(Box::new(ring)), report));
                }
                Err(refusal) if choice == DriverChoice::IoUring => {
                    return Err(NoDriver::IoUring(refusal));
                }
                Err(refusal) => Some(refusal),
            },
        };
        match Plain::new() {
            Ok(plain) => {
                let why = match &refusal {
                    Some(refusal) => format!("slower, as io_uring is refused: {refusal}"),
                    None => "as the config says".into(),
                };
                let lesser = refusal.is_some();
                Ok((Self::Plain(Box::new(plain)), DriverReport { name: "threads", why, lesser }))
            }
            Err(error) => Err(NoDriver::Threads(refusal, error)),
        }
    }
}
