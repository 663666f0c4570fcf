//! Clients that come: they are accepted, told apart by the door they came by, and seated at a shard.

use super::connection::{Connection, Ear, Ending};
use super::entrance::Place;
use super::message::Caller;
use super::outbox::Outbox;
use super::{ACCEPT_AGAIN_NS, Door, Life, Message, Shard};
use crate::front::{Front, NbdClient, NvmeClient, nbd, vhost};
use crate::runtime::ring::Done;
use crate::sockets;
use flash::Instant;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

impl Shard {
    pub(super) fn accepted(&mut self, now: Instant, done: Done) {
        if self.life != Life::Serving {
            if done.result >= 0 {
                // SAFETY: the kernel made this descriptor for us; dropping it hangs up.
                drop(unsafe { OwnedFd::from_raw_fd(done.result) });
            }
            return;
        }
        if done.result < 0 {
            let error = io::Error::from_raw_os_error(-done.result);
            if let Some(more) = self.told.unaccepted.admit(now) {
                tracing::warn!(%error, more, "a client could not be accepted");
            }
            // It waits in the kernel; at once the same would happen again.
            self.accept_again.push((now + ACCEPT_AGAIN_NS, done.index));
            return;
        }
        let listener = self.listeners[done.index as usize].as_raw_fd();
        self.ring.accept(done.index, listener);
        // SAFETY: the kernel made this descriptor for us.
        let socket = Arc::new(unsafe { OwnedFd::from_raw_fd(done.result) });
        let Some(place) = self.shared.entrance.come(now, &socket) else { return };
        let shard = self.next_shard;
        self.next_shard = (shard + 1) % self.shared.mailboxes.len();
        let door = if done.index < self.shared.nbd_doors { Door::Nbd } else { Door::Nvme };
        let caller = Caller { socket, door, place };
        if shard == self.me {
            self.welcome(now, caller);
        } else {
            self.shared.mailboxes[shard].push(Message::Client(caller));
        }
    }

    /// Accepts again where that failed a while ago.
    pub(super) fn accept_on(&mut self, now: Instant) {
        for (at, index) in std::mem::take(&mut self.accept_again) {
            if self.life != Life::Serving {
                continue;
            } else if at <= now {
                self.ring.accept(index, self.listeners[index as usize].as_raw_fd());
            } else {
                self.accept_again.push((at, index));
            }
        }
    }

    pub(super) fn welcome(&mut self, now: Instant, caller: Caller) {
        if self.life != Life::Serving {
            return;
        }
        let Caller { socket, door, place } = caller;
        sockets::prepare(&socket, self.shared.tcp_patience);
        let mut outbox = Outbox::default();
        let out = &mut outbox.filling.bytes;
        let front: Box<dyn Front> = match (door, &self.shared.nvme) {
            (Door::Nvme, Some(subsystem)) => {
                let local = sockets::local_address(&socket);
                Box::new(NvmeClient::new(now, Arc::clone(subsystem), local))
            }
            _ => {
                let tls = match self.shared.tls {
                    Some(_) => nbd::TlsMode::Required,
                    None => nbd::TlsMode::Off,
                };
                let exports = Arc::clone(&self.offered.exports);
                Box::new(NbdClient::new(now, exports, tls, self.shared.limits, out))
            }
        };
        let leaving_ns = self.shared.limits.handshake_ns;
        self.seat(now, Connection::new(Ear::Socket(socket), place, front, outbox, leaving_ns));
    }

    /// A guest's ring, whose session found a place for it.
    pub(super) fn welcome_guest(
        &mut self,
        now: Instant,
        mut queue: Box<vhost::VhostQueue>,
        kick: vhost::Event,
        place: Place,
    ) {
        if self.life != Life::Serving {
            return;
        }
        // Its volume may have another size since its session looked.
        queue.offered(&self.offered, &mut Vec::new());
        self.seat(now, Connection::new(Ear::Kick(kick), place, queue, Outbox::default(), 0));
    }

    fn seat(&mut self, now: Instant, connection: Connection) {
        let index = self.connections.insert(Box::new(connection));
        if let Some(more) = self.told.came.admit(now) {
            tracing::info!(shard = self.me, client = index, more, "a client came");
        }
        self.mark_dirty(index);
        self.proceed(now, index);
        self.expiries_stale = true;
    }

    /// False if a client has just finished its handshake, and there is no place for it. Of what it asked for nothing was
    /// begun, and it does not hear that it could stay.
    pub(super) fn may_stay(&mut self, now: Instant, index: u32) -> bool {
        let Connection { place, front, .. } = &mut *self.connections[index];
        if !place.is_newcomer() || !front.has_come_in() || place.finish(now) {
            return true;
        }
        self.end(index, Ending::Gone);
        false
    }
}
