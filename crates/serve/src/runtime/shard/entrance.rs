//! How many clients there may be, and who gives way.
//!
//! A client that has not finished its handshake (a *newcomer*) costs whoever sends it nothing, so it takes no place of
//! a client: newcomers have places of their own, and when those are taken the one that came first is hung up on in
//! favour of the next. Who would finish does so long before as many others have come; who only holds a socket open
//! keeps nobody out.
//!
//! Invariant: every connection has one [`Place`] as long as its socket is open, so that open sockets are bounded, too:
//! also by those that were hung up on and whose shard has not closed them yet.

use crate::rated::Rated;
use flash::Instant;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by all that let clients in.
#[derive(Debug)]
pub struct Entrance {
    clients_max: usize,
    newcomers_max: usize,
    /// Newcomers that were hung up on and that their shards have not closed yet: with more, the next ones are refused.
    leaving_max: usize,
    count: Mutex<Count>,
    /// The log is told of each at a bounded rate, whichever shard sees it.
    too_many: Rated,
    hung_up: Rated,
}

#[derive(Debug, Default)]
struct Count {
    clients: usize,
    /// By the order in which they came.
    newcomers: BTreeMap<u64, Arc<OwnedFd>>,
    leaving: usize,
    came: u64,
}

/// A connection's place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    entrance: Arc<Entrance>,
    of: Of,
}

#[derive(Debug)]
enum Of {
    /// With its number; it is hung up on if that is not among them any more.
    Newcomer(u64),
    Client,
}

impl Entrance {
    /// For at most so many clients at a time, and so many sockets of those that are none yet. Of these a half is for
    /// newcomers that were hung up on, so that a shard that is busy when a crowd comes has time to close them.
    pub fn new(clients_max: usize, newcomer_sockets: usize) -> Self {
        let leaving_max = newcomer_sockets / 2;
        assert!(leaving_max > 0, "nobody could come in");
        Self {
            clients_max,
            newcomers_max: newcomer_sockets - leaving_max,
            leaving_max,
            count: Mutex::default(),
            too_many: Rated::default(),
            hung_up: Rated::default(),
        }
    }

    /// Most clients at a time.
    pub fn clients_max(&self) -> usize {
        self.clients_max
    }

    /// Somebody has connected. `None` if there are as many clients already as there may be.
    pub fn come(self: &Arc<Self>, now: Instant, socket: &Arc<OwnedFd>) -> Option<Place> {
        let mut count = self.count();
        if count.clients >= self.clients_max {
            drop(count);
            self.tell_refused(now);
            return None;
        }
        if count.leaving >= self.leaving_max {
            drop(count);
            self.tell_hung_up(now);
            return None;
        }
        let oldest = match count.newcomers.len() >= self.newcomers_max {
            true => count.newcomers.pop_first(),
            false => None,
        };
        count.leaving += usize::from(oldest.is_some());
        let number = count.came;
        count.came += 1;
        count.newcomers.insert(number, Arc::clone(socket));
        drop(count);
        if let Some((_, oldest)) = oldest {
            // Its shard finds that its stream has ended, and closes it.
            // SAFETY: no memory is involved. An error means that the peer was faster.
            unsafe { libc::shutdown(oldest.as_raw_fd(), libc::SHUT_RDWR) };
            self.tell_hung_up(now);
        }
        Some(Place { entrance: Arc::clone(self), of: Of::Newcomer(number) })
    }

    /// A client that needs no handshake: a ring of a guest. `None` if there are as many as there may be.
    pub fn seat(self: &Arc<Self>) -> Option<Place> {
        let mut count = self.count();
        if count.clients >= self.clients_max {
            return None;
        }
        count.clients += 1;
        Some(Place { entrance: Arc::clone(self), of: Of::Client })
    }

    fn tell_refused(&self, now: Instant) {
        if let Some(more) = self.too_many.admit(now) {
            tracing::warn!(clients_max = self.clients_max, more, "a client too many was refused");
        }
    }

    fn tell_hung_up(&self, now: Instant) {
        if let Some(more) = self.hung_up.admit(now) {
            let newcomers_max = self.newcomers_max;
            tracing::warn!(
                newcomers_max,
                more,
                "connections that do not finish their handshake are hung up on, the oldest first, as others come"
            );
        }
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// True until [`Place::finish`] has made it that of a client.
    pub fn is_newcomer(&self) -> bool {
        matches!(self.of, Of::Newcomer(_))
    }

    /// The handshake is finished: from now on this is a client. False if it cannot be one, as meanwhile others have
    /// taken all places, or it was hung up on.
    pub fn finish(&mut self, now: Instant) -> bool {
        let Of::Newcomer(number) = self.of else { return true };
        let mut count = self.entrance.count();
        if !count.newcomers.contains_key(&number) {
            return false;
        }
        if count.clients >= self.entrance.clients_max {
            drop(count);
            self.entrance.tell_refused(now);
            return false;
        }
        count.newcomers.remove(&number);
        count.clients += 1;
        drop(count);
        self.of = Of::Client;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut count = self.entrance.count();
        match self.of {
            Of::Client => count.clients -= 1,
            Of::Newcomer(number) => {
                if count.newcomers.remove(&number).is_none() {
                    count.leaving -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    /// Our end of a stranger's socket, and the stranger's.
    fn called() -> (Arc<OwnedFd>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Arc::new(ours.into()), theirs)
    }

    fn is_hung_up_on(mut theirs: &UnixStream) -> bool {
        match theirs.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    const NOW: Instant = Instant(0);

    #[test]
    fn the_oldest_newcomer_gives_way_and_never_one_that_has_finished() {
        let entrance = Arc::new(Entrance::new(2, 4));
        let mut crowd: Vec<_> = Vec::new();
        let mut come = || {
            let (ours, theirs) = called();
            let place = entrance.come(NOW, &ours).expect("a place");
            crowd.push(theirs);
            (ours, place)
        };
        let (_client, mut place) = come();
        assert!(place.is_newcomer() && place.finish(NOW) && !place.is_newcomer());
        let idle = [come(), come(), come()];
        assert_eq!(
            crowd.iter().map(is_hung_up_on).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        // One that was hung up on while it finished is none of the clients.
        let [(_, mut first), (_, mut second), (_, mut third)] = idle;
        assert!(!first.finish(NOW));
        assert!(second.finish(NOW));
        assert!(!third.finish(NOW), "there are two clients already");
        drop((first, second, third, place));
        let count = entrance.count();
        assert_eq!((count.clients, count.newcomers.len(), count.leaving), (0, 0, 0));
    }

    #[test]
    fn one_client_too_many_is_refused_when_it_comes_and_a_guest_counts_as_one() {
        let entrance = Arc::new(Entrance::new(1, 2));
        let guest = entrance.seat().expect("a place");
        assert!(entrance.seat().is_none());
        assert!(entrance.come(NOW, &called().0).is_none());
        drop(guest);
        assert!(entrance.come(NOW, &called().0).is_some());
    }

    #[test]
    fn sockets_that_nobody_closes_are_bounded() {
        let entrance = Arc::new(Entrance::new(100, 16));
        let places: Vec<_> = (0..1000).filter_map(|_| entrance.come(NOW, &called().0)).collect();
        assert_eq!(places.len(), 16);
    }
}
