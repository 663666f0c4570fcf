//! NBD clients that come while what is to be served is not open yet, as it waits for others that may never come.
//!
//! They wait in the kernel at first: an opening is mostly over in a moment, and clients that connect again after a
//! restart may take a refusal for good. Those that have waited for [`HOLD`] are accepted here and told why there is
//! nothing: an error is more than silence.
//!
//! Invariant: when [`Vestibule`] is dropped nobody accepts here any more, so that whoever comes next is the server's.

use crate::nbd::{Connection, Event, Export, Limits, TlsMode};
use crate::panics;
use crate::rated::Rated;
use flash::{Instant, SECOND};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Who is told what the opening waits for by then, in words.
pub type Waits = Box<dyn Fn() -> String + Send>;

/// So long a client waits that the volume is opened: after a take-over that takes the lease of the last owner and some.
const HOLD: Duration = Duration::from_secs(10);
/// Between two looks at who has come or said something.
const LOOK: Duration = Duration::from_millis(50);
/// Clients that are spoken with at a time. The oldest goes for the next.
const GUESTS_MAX: usize = 16;
/// A client may take so long to ask and to hear.
const TALK_NS: u64 = 2 * SECOND;

/// See the head of this file.
pub struct Vestibule {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Vestibule {
    /// Tells whoever comes by `doors` and has waited long enough what `waits` says; nothing of it to strangers before TLS.
    pub fn open(doors: &[OwnedFd], has_tls: bool, waits: Waits) -> io::Result<Self> {
        let doors = doors.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        let (end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("vestibule".into()).spawn(move || {
            panics::end_the_process();
            let mut inside = Inside::new(doors, has_tls, waits);
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                inside.turn();
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Vestibule {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Inside {
    doors: Vec<Door>,
    has_tls: bool,
    waits: Waits,
    guests: Vec<Guest>,
    begun: std::time::Instant,
    /// Strangers can have it told as often as they like.
    told: Rated,
}

struct Door {
    listener: OwnedFd,
    /// Since when somebody waits there.
    called: Option<std::time::Instant>,
}

/// A client that is told.
struct Guest {
    /// A stream socket, of whatever kind.
    stream: UnixStream,
    protocol: Connection,
    out: Vec<u8>,
    is_over: bool,
}

impl Inside {
    fn new(doors: Vec<OwnedFd>, has_tls: bool, waits: Waits) -> Self {
        let doors = doors.into_iter().map(|listener| Door { listener, called: None }).collect();
        let begun = std::time::Instant::now();
        Self { doors, has_tls, waits, guests: Vec::new(), begun, told: Rated::default() }
    }

    fn turn(&mut self) {
        let now = Instant(self.begun.elapsed().as_nanos() as u64);
        let mut came = Vec::new();
        self.doors.iter_mut().for_each(|door| door.look(&mut came));
        if !came.is_empty() {
            let why = match self.has_tls {
                true => "the volume is not open yet: try again later".to_owned(),
                false => (self.waits)(),
            };
            if let Some(more) = self.told.admit(now) {
                tracing::warn!(more, "NBD clients are sent away: {why}");
            }
            let why: Arc<str> = why.into();
            self.guests.extend(came.into_iter().map(|stream| Guest::new(now, stream, &why)));
            let too_many = self.guests.len().saturating_sub(GUESTS_MAX);
            self.guests.drain(..too_many);
        }
        self.guests.retain_mut(|guest| guest.talk(now).is_ok_and(|goes_on| goes_on));
    }
}

impl Door {
    /// Accepts those who have waited long enough, and who came behind them.
    fn look(&mut self, came: &mut Vec<UnixStream>) {
        if !is_readable(self.listener.as_raw_fd()) {
            self.called = None;
            return;
        }
        if self.called.get_or_insert_with(std::time::Instant::now).elapsed() < HOLD {
            return;
        }
        for _ in 0..GUESTS_MAX {
            match is_readable(self.listener.as_raw_fd()).then(|| accept(&self.listener)) {
                Some(Ok(stream)) => came.push(stream),
                Some(Err(_)) | None => return,
            }
        }
    }
}

impl Guest {
    fn new(now: Instant, stream: UnixStream, why: &Arc<str>) -> Self {
        let (mut out, none): (_, [Export; 0]) = (Vec::new(), []);
        let limits = Limits { handshake_ns: TALK_NS, ..Limits::default() };
        let mut protocol = Connection::new(now, none.into(), TlsMode::Off, limits, &mut out);
        protocol.offer_nothing(Arc::clone(why));
        Self { stream, protocol, out, is_over: false }
    }

    /// Hears and says what there is; true while it goes on.
    fn talk(&mut self, now: Instant) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut rest: &[u8] = match self.stream.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => &bytes[..count],
            Err(error) if error.kind() == ErrorKind::WouldBlock => &[],
            Err(error) => return Err(error),
        };
        while !rest.is_empty() && !self.is_over {
            let received = self.protocol.receive(now, rest, &mut self.out);
            self.is_over |= matches!(received.event, Some(Event::Close(_)));
            // Whoever does not take its answers is not heard.
            self.is_over |= received.consumed == 0;
            rest = &rest[received.consumed..];
        }
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(!self.is_over && self.protocol.expire(now).is_none())
    }
}

/// Whether somebody waits to be accepted.
fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: it is valid for the call. One that fails leaves that nobody has come.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

fn accept(listener: &OwnedFd) -> io::Result<UnixStream> {
    let (none, flags) = (std::ptr::null_mut, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: nobody wants the address; the result is checked.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), none(), none().cast(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn who_comes_while_nothing_is_open_waits_a_moment_and_hears_why() {
        let path = std::env::temp_dir().join(format!("weir-vestibule-{}", std::process::id()));
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).unwrap();
        let mut early = UnixStream::connect(&path).unwrap();
        let begun = std::time::Instant::now();
        let waits = Box::new(|| "volume data waits for node 2".to_owned());
        let vestibule = Vestibule::open(&[listener.try_clone().unwrap().into()], false, waits);
        let vestibule = vestibule.unwrap();
        // Flags, then GO of the volume "data" with no wish for facts.
        let asked = [&3u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04data\0\0"];
        early.write_all(&asked.concat()).unwrap();
        early.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = vec![0; 18 + 20];
        early.read_exact(&mut answer).unwrap();
        assert!(begun.elapsed() >= HOLD);
        assert_eq!(&answer[18 + 12..18 + 16], &0x8000_0006u32.to_be_bytes());
        let mut text = vec![0; u32::from_be_bytes(answer[34..38].try_into().unwrap()) as usize];
        early.read_exact(&mut text).unwrap();
        assert_eq!(text, b"volume data waits for node 2");
        drop(vestibule);
        // Whoever comes now is the server's.
        let _late = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
        std::fs::remove_file(&path).ok();
    }
}
