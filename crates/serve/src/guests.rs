//! The sockets by which hypervisors take volumes as disks of their guests (vhost-user). One thread for each such volume
//! speaks with one hypervisor at a time; what the guest asks goes from its memory to the shards, and not through here.
//!
//! Invariant: a session is over, and nothing of its rings in flight, before the next one begins. So two never answer the
//! same request.

use crate::front::vhost::session::{Fault, Host, Reply, Session};
use crate::front::vhost::{Came, Channel, Disk, Event, Lost, Message, VhostQueue, send};
use crate::panics;
use crate::rated::Rated;
use crate::runtime::shard::{Message as ToShard, Shared};
use crate::server::ServeError;
use flash::{BLOCK_BYTES, Instant};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// By which the threads are told that something has changed.
#[derive(Debug, Default)]
pub struct Bells {
    /// One for each thread.
    bells: Vec<Event>,
    /// The shards have ended.
    ended: AtomicBool,
}

impl Bells {
    /// So many.
    ///
    /// # Errors
    /// The system has no eventfds left.
    pub fn new(count: usize) -> Result<Self, ServeError> {
        let bells = (0..count).map(|_| Event::new()).collect::<io::Result<_>>();
        let no_event = |error| ServeError::System { doing: "make an eventfd", error };
        Ok(Self { bells: bells.map_err(no_event)?, ended: AtomicBool::new(false) })
    }

    /// Other volumes are offered, or the same in other sizes.
    pub fn ring(&self) {
        self.bells.iter().for_each(Event::signal);
    }
}

/// A socket that hypervisors connect to, and the name of its volume.
pub type GuestDoor = (OwnedFd, String);

/// The threads.
#[derive(Default)]
pub struct Guests {
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
}

impl Guests {
    /// Lets hypervisors in.
    pub fn start(doors: Vec<GuestDoor>, shared: &Arc<Shared>) -> Result<Self, ServeError> {
        let mut guests = Self { shared: Some(Arc::clone(shared)), threads: Vec::new() };
        for (number, (listener, name)) in doors.into_iter().enumerate() {
            let door = Door {
                number,
                name,
                volume: None,
                listener,
                shared: Arc::clone(shared),
                begun: std::time::Instant::now(),
                told: Told::default(),
            };
            let thread = std::thread::Builder::new().name(format!("vhost-{number}"));
            let thread = thread.spawn(move || {
                panics::end_the_process();
                door.run();
            });
            let doing = "start a thread for a volume's vhost socket";
            guests.threads.push(thread.map_err(|error| ServeError::System { doing, error })?);
        }
        Ok(guests)
    }

    /// The shards have ended: nobody is served any more.
    pub fn end(&mut self) {
        let Some(shared) = &self.shared else { return };
        shared.guests.ended.store(true, Ordering::Release);
        shared.guests.ring();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.end();
    }
}

/// What hypervisors can cause as often as they like is told at a bounded rate.
#[derive(Default)]
struct Told {
    came: Rated,
    left: Rated,
    dropped: Rated,
    unaccepted: Rated,
}

/// Why a session ends.
enum Over {
    /// The hypervisor has left.
    Left,
    /// It did what it must not.
    Fault(Fault),
    /// Its volume is gone.
    Gone,
    /// The server has ended.
    Ended,
}

impl From<Fault> for Over {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// One volume's thread.
struct Door {
    number: usize,
    /// Of the volume, by the config.
    name: String,
    /// The volume that had this name when it was looked for, and is still there, whatever it is called now.
    volume: Option<usize>,
    listener: OwnedFd,
    shared: Arc<Shared>,
    begun: std::time::Instant,
    told: Told,
}

impl Door {
    fn run(mut self) {
        // A session may have taken the bell that told of the end.
        while !self.has_ended() {
            let [called, rung] = readable([self.listener.as_raw_fd(), self.bell().as_raw_fd()]);
            if rung {
                self.bell().clear();
            }
            if !called || self.has_ended() {
                continue;
            }
            match accept(&self.listener) {
                Ok(socket) => self.talk(socket),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if let Some(more) = self.told.unaccepted.admit(self.now()) {
                        let volume = &self.name;
                        tracing::warn!(%volume, %error, more, "a hypervisor could not be accepted");
                    }
                    // It waits in the kernel; at once the same would happen again.
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    }

    /// One hypervisor, from its first word to its last.
    fn talk(&mut self, socket: OwnedFd) {
        let over = match self.disk() {
            None => Over::Gone,
            Some(disk) => {
                let (mut session, mut channel) = (Session::new(disk), Channel::new(socket));
                let over = loop {
                    if let Err(over) = self.turn(&mut session, &mut channel) {
                        break over;
                    }
                };
                session.stop(&Seats(self));
                over
            }
        };
        let (now, volume) = (self.now(), &self.name);
        match over {
            Over::Left => {
                if let Some(more) = self.told.left.admit(now) {
                    tracing::info!(%volume, more, "a hypervisor left");
                }
            }
            Over::Fault(fault) => {
                if let Some(more) = self.told.dropped.admit(now) {
                    tracing::warn!(%volume, more, "a hypervisor was dropped: {fault}");
                }
            }
            Over::Gone => {
                if let Some(more) = self.told.dropped.admit(now) {
                    tracing::warn!(%volume, more, "a hypervisor was dropped: there is no such volume");
                }
            }
            Over::Ended => {}
        }
    }

    /// Waits until there is something to do for a session, and does it.
    fn turn(&self, session: &mut Session, channel: &mut Channel) -> Result<(), Over> {
        let [spoken, rung] = readable([channel.as_raw_fd(), self.bell().as_raw_fd()]);
        if rung {
            self.bell().clear();
            self.look(session)?;
        }
        if !spoken {
            return Ok(());
        }
        match channel.receive().map_err(Fault::Lost)? {
            Came::Part => Ok(()),
            Came::End => Err(Over::Left),
            Came::Message(head, body, files) => {
                let lost = |bad| Fault::Lost(Lost::Message(bad));
                let message = Message::decode(head.request, &body).map_err(lost)?;
                if message == Message::Own {
                    self.tell_came();
                }
                let done = session.handle(message, files, &mut Seats(self));
                let wanted = head.wants_reply && session.replies();
                let reply = match &done {
                    Ok(Some(reply)) => reply,
                    Ok(None) if wanted => &Reply::number(0),
                    Ok(None) => return Ok(()),
                    Err(_) if wanted => &Reply::number(1),
                    Err(_) => &Reply::default(),
                };
                if done.is_ok() || wanted {
                    let sent = channel.answer(head.request, &reply.body, reply.file.as_ref());
                    sent.map_err(|error| Fault::System("answer a hypervisor", error))?;
                }
                done.map(drop).map_err(Over::Fault)
            }
        }
    }

    /// What is offered has changed, or the server has ended.
    fn look(&self, session: &mut Session) -> Result<(), Over> {
        if self.has_ended() {
            return Err(Over::Ended);
        }
        let offered = self.shared.offered();
        let volume = offered.get(session.disk().volume).ok_or(Over::Gone)?;
        let bytes = volume.blocks * BLOCK_BYTES as u64;
        if bytes == session.disk().bytes {
            return Ok(());
        }
        if let Some((socket, message)) = session.resized(bytes) {
            let sent = send(socket, &message, None);
            sent.map_err(|error| Fault::System("tell a hypervisor of another size", error))?;
        }
        Ok(())
    }

    /// The volume, as a disk.
    fn disk(&mut self) -> Option<Disk> {
        let offered = self.shared.offered();
        let known = self.volume.filter(|&volume| offered.get(volume).is_some());
        let volume = offered.volumes.iter().find(|volume| match known {
            Some(known) => volume.number as usize - 1 == known,
            None => volume.name == self.name,
        })?;
        self.volume = Some(volume.number as usize - 1);
        Some(Disk {
            volume: volume.number as usize - 1,
            bytes: volume.blocks() * BLOCK_BYTES as u64,
            read_only: volume.read_only,
            write_through: false,
            name: volume.name.clone(),
        })
    }

    fn tell_came(&self) {
        if let Some(more) = self.told.came.admit(self.now()) {
            tracing::info!(volume = %self.name, more, "a hypervisor came");
        }
    }

    fn bell(&self) -> &Event {
        &self.shared.guests.bells[self.number]
    }

    fn has_ended(&self) -> bool {
        self.shared.guests.ended.load(Ordering::Acquire)
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }
}

/// Places at shards for the rings of a session: one after the other, so that each ring of a guest has as much of the
/// processors as the others.
struct Seats<'a>(&'a Door);

impl Host for Seats<'_> {
    fn start(&mut self, queue: VhostQueue, kick: Event) -> Result<(), Fault> {
        let shared = &self.0.shared;
        let clients_max = shared.entrance.clients_max();
        let place = shared.entrance.seat().ok_or(Fault::Full(clients_max))?;
        let shard = (self.0.number + usize::from(queue.number())) % shared.mailboxes.len();
        shared.mailboxes[shard].push(ToShard::Guest(Box::new(queue), kick, place));
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

/// After an accept that failed, as it does without descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let none = std::ptr::null_mut;
    // SAFETY: nobody wants the address; the result is checked.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), none(), none().cast(), libc::SOCK_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until one of them has something, or has ended; which of them.
fn readable(fds: [RawFd; 2]) -> [bool; 2] {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: both are valid for the call. A signal that cuts it off leaves that nothing has come.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
    polled.map(|polled| count > 0 && polled.revents != 0)
}
