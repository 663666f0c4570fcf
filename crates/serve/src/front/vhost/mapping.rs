//! Memory that another process shares with this one. It may take a part away again, by making the file shorter: then
//! the next look at it would end this process. So mappings of such files are watched: where one is cut off, memory of
//! our own takes its place before anybody sees, and the mapping says that it is *spoilt*.
//!
//! Invariant: memory of a mapping is only copied to and from, or looked at word by word, never lent as a reference or to
//! the kernel: somebody else changes it meanwhile.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Why shared memory cannot be used.
#[derive(Debug)]
pub enum BadMapping {
    /// It is no file in memory.
    Kind,
    /// It ends before it should.
    Short {
        /// Bytes that it has.
        has: u64,
        /// Bytes that it should have.
        needs: u64,
    },
    /// More is shared with this process than it can watch.
    TooMany,
    /// The system says no.
    System(io::Error),
}

impl fmt::Display for BadMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind => f.write_str(
                "is no file that can be shared: give the guest memory that is (memory-backend-memfd,share=on)",
            ),
            Self::Short { has, needs } => {
                write!(f, "has {has} bytes, and {needs} are told of")
            }
            Self::TooMany => write!(f, "is one more than the {WATCHES} that can be watched"),
            Self::System(error) => write!(f, "cannot be mapped: {error}"),
        }
    }
}

/// A part of a file, mapped.
#[derive(Debug)]
pub struct Mapping {
    /// Goes before the memory does.
    watch: Watch,
    start: NonNull<u8>,
    bytes: usize,
    /// What was asked for begins so far behind `start`.
    inside: usize,
}

// SAFETY: it owns its memory, whose bytes are only copied (head of this file).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` of a file from `offset` on.
    pub fn of(file: &OwnedFd, offset: u64, bytes: u64) -> Result<Self, BadMapping> {
        let status = status(file).map_err(BadMapping::System)?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(BadMapping::Kind);
        }
        let beyond = || BadMapping::System(io::Error::from(io::ErrorKind::InvalidInput));
        let needs = offset.checked_add(bytes).ok_or_else(beyond)?;
        let has = status.st_size as u64;
        if needs > has {
            return Err(BadMapping::Short { has, needs });
        }
        // Of large pages only whole ones can be mapped.
        let grain = (status.st_blksize as u64).max(PAGE_BYTES).next_power_of_two();
        let from = offset / grain * grain;
        let len = (needs - from).checked_next_multiple_of(grain).ok_or_else(beyond)? as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (any, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping, wherever the kernel likes.
        let start =
            unsafe { libc::mmap(any, len, access, libc::MAP_SHARED, fd, from as libc::off_t) };
        if start == libc::MAP_FAILED {
            return Err(BadMapping::System(io::Error::last_os_error()));
        }
        let unmap = || {
            // SAFETY: it was just mapped, and nobody knows of it.
            unsafe { libc::munmap(start, len) };
        };
        let Some(place) = NonNull::new(start.cast()) else {
            unmap();
            return Err(beyond());
        };
        let Some(watch) = Watch::begin(start as usize, len) else {
            unmap();
            return Err(BadMapping::TooMany);
        };
        Ok(Self { watch, start: place, bytes: len, inside: (offset - from) as usize })
    }

    /// Where what was asked for begins.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: within the mapping, which has more bytes than that.
        unsafe { self.start.add(self.inside) }
    }

    /// A part of it was taken away, so that what it holds is not what the other one believes.
    pub fn is_spoilt(&self) -> bool {
        self.watch.is_spoilt()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watch.end();
        // SAFETY: mapped with this length, and nobody has it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A file in memory of so many bytes, which can be shared and does not become shorter.
pub fn shared_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a text; the result is checked.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: no memory is involved.
    let done = unsafe {
        libc::ftruncate(fd, bytes as libc::off_t) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    if done { Ok(file) } else { Err(io::Error::last_os_error()) }
}

fn status(file: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: all zeroes are a value of it.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: it is writable.
    let done = unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) };
    if done == 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}

const PAGE_BYTES: u64 = 4096;

/// Mappings that can be watched: eight parts of memory for each of some hundred guests.
const WATCHES: usize = 1024;

/// One of [`WATCHED`].
#[derive(Debug)]
struct Watch {
    place: usize,
}

struct Watched {
    /// 0: free; 1: being taken; else where the mapping begins.
    start: AtomicUsize,
    bytes: AtomicUsize,
    spoilt: AtomicBool,
}

/// A signal handler must neither lock nor allocate: so it is a table that is always there.
static WATCHED: [Watched; WATCHES] = [const {
    Watched {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        spoilt: AtomicBool::new(false),
    }
}; WATCHES];

/// What the signal meant before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

impl Watch {
    fn begin(start: usize, bytes: usize) -> Option<Self> {
        listen();
        let free = |watched: &Watched| {
            watched.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let place = WATCHED.iter().position(free)?;
        let watched = &WATCHED[place];
        watched.bytes.store(bytes, Ordering::Relaxed);
        watched.spoilt.store(false, Ordering::Relaxed);
        watched.start.store(start, Ordering::Release);
        Some(Self { place })
    }

    fn is_spoilt(&self) -> bool {
        WATCHED[self.place].spoilt.load(Ordering::Relaxed)
    }

    fn end(&self) {
        WATCHED[self.place].start.store(0, Ordering::Release);
    }
}

/// Has the signal come to us, once for the process.
fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        // SAFETY: an action of zeroes is one; both are valid for the call, and what was before is kept for ever.
        unsafe {
            let before = Box::leak(Box::new(std::mem::zeroed::<libc::sigaction>()));
            let mut ours = std::mem::zeroed::<libc::sigaction>();
            ours.sa_sigaction = on_bus_error as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, std::ptr::null(), before);
            BEFORE.store(before, Ordering::Release);
            libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
        }
    });
}

/// The memory at an address is not there any more. If it is watched, zeroes of our own take its place, and whoever
/// looked goes on; else what was to happen before happens.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid description.
    let address = unsafe { (*info).si_addr() } as usize;
    for watched in &WATCHED {
        let start = watched.start.load(Ordering::Acquire);
        let bytes = watched.bytes.load(Ordering::Relaxed);
        if start <= 1 || !(start..start + bytes).contains(&address) {
            continue;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is ours as long as it is watched, and stays mapped. errno is that of who was
        // interrupted.
        let made = unsafe {
            let errno = *libc::__errno_location();
            let made = libc::mmap(start as *mut libc::c_void, bytes, access, kind, -1, 0);
            *libc::__errno_location() = errno;
            made
        };
        if made != libc::MAP_FAILED {
            watched.spoilt.store(true, Ordering::Relaxed);
            return;
        }
    }
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: it is what was there before, or nothing. The instruction is tried again, and meets that.
    unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn memfd(bytes: u64) -> OwnedFd {
        // SAFETY: the name is a text.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: a new descriptor, and no memory.
        unsafe {
            assert_eq!(libc::ftruncate(fd, bytes as i64), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn what_is_taken_away_reads_as_zeroes_and_is_told_of() {
        let file = memfd(1 << 20);
        let (cut, whole) = (memfd(1 << 20), memfd(1 << 20));
        let mapping = Mapping::of(&file, 8192, 1 << 19).unwrap();
        let (lost, kept) =
            (Mapping::of(&cut, 100, 5000).unwrap(), Mapping::of(&whole, 0, 4096).unwrap());
        // SAFETY: within the mappings.
        unsafe {
            mapping.start().write_volatile(7);
            lost.start().write_volatile(9);
            assert_eq!(libc::ftruncate(cut.as_raw_fd(), 0), 0);
            assert_eq!(lost.start().read_volatile(), 0);
            lost.start().add(4999).write_volatile(3);
            assert_eq!(lost.start().add(4999).read_volatile(), 3);
            assert_eq!(mapping.start().read_volatile(), 7);
        }
        assert!(lost.is_spoilt() && !mapping.is_spoilt() && !kept.is_spoilt());
        drop((lost, mapping));
        let again = Mapping::of(&memfd(4096), 0, 4096).unwrap();
        assert!(!again.is_spoilt(), "the place of one that is gone is as new");
    }

    #[test]
    fn what_is_shorter_than_told_or_no_file_is_refused() {
        let file = memfd(8192);
        assert!(matches!(
            Mapping::of(&file, 4096, 4097),
            Err(BadMapping::Short { has: 8192, needs: 8193 })
        ));
        assert!(matches!(Mapping::of(&file, u64::MAX, 2), Err(BadMapping::System(_))));
        let (mut ends, pair) = ([0; 2], libc::AF_UNIX);
        // SAFETY: there is room for both; they are new and nobody else's.
        let socket = unsafe {
            assert_eq!(libc::socketpair(pair, libc::SOCK_STREAM, 0, ends.as_mut_ptr()), 0);
            let _other = OwnedFd::from_raw_fd(ends[1]);
            OwnedFd::from_raw_fd(ends[0])
        };
        assert!(matches!(Mapping::of(&socket, 0, 1), Err(BadMapping::Kind)));
        assert!(shared_file(c"short", 4096).is_ok());
    }
}
