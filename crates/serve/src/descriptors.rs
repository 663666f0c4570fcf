//! Descriptors: how many the process may have, and who gets how many of them. A crowd of one kind of
//! client must not take those of another, nor those that the device needs.

use std::fmt;
use std::io;

/// Most clients of each kind at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Clients {
    /// Over NBD.
    pub nbd: usize,
    /// Sockets of those that have not finished their handshake and would be one of these.
    pub newcomers: usize,
    /// Over HTTP.
    pub http: usize,
    /// Over the control socket.
    pub control: usize,
}

/// What is not there for all that the config asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooFew {
    /// What the process may have.
    pub limit: usize,
    /// What it has open already.
    pub used: usize,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, used } = self;
        write!(
            f,
            "the process may have {limit} files open, and the device takes {used}: too few are left \
             for clients: raise the limit (`ulimit -n 1024`)"
        )
    }
}

/// Kept free: for what a detach, a module or a name look-up opens for a moment.
const SPARE: usize = 16;

/// A server without these is of no use.
const LEAST: Clients = Clients { nbd: 4, newcomers: 16, http: 2, control: 2 };

impl Clients {
    /// As many of the wanted ones as fit. HTTP gives way first, NBD last.
    pub fn within(self, limit: usize, used: usize) -> Result<Self, TooFew> {
        let room = limit.saturating_sub(used + SPARE);
        let floor = |wanted: usize, least: usize| wanted.min(least);
        let least = Clients {
            nbd: floor(self.nbd, LEAST.nbd),
            newcomers: floor(self.newcomers, LEAST.newcomers),
            http: floor(self.http, LEAST.http),
            control: floor(self.control, LEAST.control),
        };
        let mut left = room.checked_sub(least.sum()).ok_or(TooFew { limit, used })?;
        let mut grant = |least: usize, wanted: usize| {
            let more = (wanted - least).min(left);
            left -= more;
            least + more
        };
        let nbd = grant(least.nbd, self.nbd);
        let newcomers = grant(least.newcomers, self.newcomers);
        let control = grant(least.control, self.control);
        Ok(Self { nbd, newcomers, http: grant(least.http, self.http), control })
    }

    fn sum(self) -> usize {
        self.nbd + self.newcomers + self.http + self.control
    }
}

/// Raises the limit of open files as far as the process may, and returns it.
pub fn raise_limit() -> io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable, and after it was filled, readable.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        // The old one will do if the system grants no more.
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
            limit.rlim_cur = before;
        }
    }
    Ok(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// Descriptors that are open now.
pub fn used() -> io::Result<usize> {
    // One of those listed is that of the list.
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_gives_way_before_nbd_and_nobody_gets_what_is_not_there() {
        let wanted = Clients { nbd: 100, newcomers: 200, http: 64, control: 16 };
        assert_eq!(wanted.within(1 << 20, 50), Ok(wanted));
        for limit in 0..600 {
            let Ok(granted) = wanted.within(limit, 50) else {
                assert!(limit < 50 + SPARE + LEAST.sum(), "{limit}");
                continue;
            };
            assert!(granted.sum() + 50 + SPARE <= limit, "{limit}: {granted:?}");
            assert!(granted.nbd == 100 || granted.http == LEAST.http, "{limit}: {granted:?}");
            assert!(granted.nbd <= 100 && granted.newcomers <= 200);
            assert!(granted.http <= 64 && granted.control <= 16);
        }
        // One who wants none of a kind keeps none for it.
        let only = Clients { nbd: 1, newcomers: 0, http: 0, control: 0 };
        assert_eq!(only.within(SPARE + 1, 0), Ok(only));
    }

    #[test]
    fn open_files_are_counted_within_the_limit() {
        let limit = raise_limit().unwrap();
        let used = used().unwrap();
        assert!((3..limit).contains(&used), "{used} of {limit}");
    }
}
