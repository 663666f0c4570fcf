//! Eventfds: how a guest says that there is something to do, and how it is told that something is done.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An eventfd that never blocks.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// One that nobody else knows.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// One that somebody has sent; `None` if it is something else. Anything else could block, or hold the shard up
    /// with events that nothing takes away.
    pub fn of(fd: OwnedFd) -> Option<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        if link.to_str() != Some("anon_inode:[eventfd]") {
            return None;
        }
        // SAFETY: no memory is involved.
        let done = unsafe {
            let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
        };
        done.then_some(Self(fd))
    }

    /// Wakes whoever waits for it.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full counter means that it is signalled already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes away that it was signalled. True if it was.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes.
        let read = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        read == 8
    }

    /// From now on, this one is what `other` is; who signals it meanwhile signals the one or the other.
    pub fn become_as(&self, other: &Event) -> io::Result<()> {
        // SAFETY: no memory is involved; both are open.
        let done = unsafe { libc::dup3(other.0.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Another name for the same one.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl From<Event> for OwnedFd {
    fn from(event: Event) -> Self {
        event.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_taken_once_and_can_become_another() {
        let (event, other) = (Event::new().unwrap(), Event::new().unwrap());
        assert!(!event.clear());
        event.signal();
        event.signal();
        assert!(event.clear() && !event.clear());
        event.become_as(&other).unwrap();
        event.signal();
        assert!(other.clear());
        assert!(Event::of(event.try_clone().unwrap().into()).is_some());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Event::of(file.into()).is_none());
    }
}
