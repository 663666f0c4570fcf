//! How a queue comes to be served: its host connects it, and shows that it knows a secret, if it has to.

use super::auth::{MESSAGE_BYTES_MAX, Names};
use super::command::{self, Command};
use super::status::Status;
use super::{Event, LOOK_NS, NvmeClient, fabrics};
use flash::{Instant, SECOND};
use std::sync::Arc;

/// How long a host that sets no keep-alive may be silent at the discovery service, as the standard has it.
const DISCOVERY_NS: u64 = 120 * SECOND;

impl Command {
    /// True if it is about authentication.
    pub(super) fn authenticates(&self) -> bool {
        let kinds = [fabrics::AUTHENTICATION_SEND, fabrics::AUTHENTICATION_RECEIVE];
        self.opcode() == command::FABRICS && kinds.contains(&self.0[4])
    }

    /// True if it brings a message.
    pub(super) fn brings_message(&self) -> bool {
        self.opcode() == command::FABRICS && self.0[4] == fabrics::AUTHENTICATION_SEND
    }

    /// Bytes of the message that it brings, or asks for.
    pub(super) fn message_bytes(&self) -> Result<u32, Status> {
        // The protocol's identifier, and the one form that its messages have.
        if self.0[41..44] != [1, 1, 0xe9] {
            return Err(Status::FIELD);
        }
        let bytes = self.word(11);
        if (1..=MESSAGE_BYTES_MAX).contains(&bytes) { Ok(bytes) } else { Err(Status::FIELD) }
    }
}

impl NvmeClient {
    pub(super) fn connect(
        &mut self,
        now: Instant,
        command: &Command,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let connected = match (&self.seat, self.shutting_down) {
            (Some(_), _) => Err(Status::SEQUENCE.into()),
            (None, true) => Err(Status::CONNECT_BUSY.into()),
            (None, false) => fabrics::connect(&self.subsystem, command, data),
        };
        match connected {
            Ok(queue) => {
                let id = queue.seat.controller.id;
                (self.entries, self.head) = (queue.entries, 1);
                self.features.keep_alive_ns = queue.keep_alive_ns;
                tracing::debug!(
                    host = queue.seat.controller.host.nqn,
                    queue = queue.seat.queue,
                    "connected"
                );
                self.seat = Some(queue.seat);
                self.rearm(now);
                let wanted = if self.must_authenticate() { fabrics::AUTHENTICATE } else { 0 };
                let result = u64::from(id) | wanted;
                self.complete(command.id(), result, Status::SUCCESS, out);
                Some(Event::Opened)
            }
            Err(fabrics::Refused { status, result }) => {
                if let Some(more) = self.subsystem.refused.admit(now) {
                    let (host, wanted) = fabrics::names(data);
                    let reason = fabrics::reason(status);
                    tracing::warn!(host, wanted, reason, more, "an NVMe host was refused");
                }
                self.complete(command.id(), result, status, out);
                None
            }
        }
    }

    /// When to look again: at an admin queue's silence, or whether an I/O queue's controller is there.
    pub(super) fn rearm(&mut self, now: Instant) {
        if self.must_authenticate() {
            // It has as long for that as it had to connect.
            return;
        }
        let admin = self.seat.as_ref().is_none_or(|seat| seat.queue == 0);
        let discovers = self.seat.as_ref().is_some_and(|seat| seat.controller.discovery);
        self.deadline = match (admin, self.features.keep_alive_ns) {
            // It asks anybody for nothing, so nobody keeps a place for ever.
            (true, 0) if discovers => Some(now + DISCOVERY_NS),
            (true, 0) => None,
            (true, ns) => Some(now + ns),
            (false, _) => Some(now + LOOK_NS),
        };
    }

    /// True if nothing is done for this queue before its host has authenticated.
    pub(super) fn must_authenticate(&self) -> bool {
        let asks = self.seat.as_ref().is_some_and(|seat| !seat.controller.discovery);
        asks && self.subsystem.keys.is_some() && !self.dialogue.is_done()
    }

    /// The host says something.
    pub(super) fn hear_message(
        &mut self,
        now: Instant,
        command: &Command,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let subsystem = Arc::clone(&self.subsystem);
        let (Some(keys), Some(seat)) = (&subsystem.keys, &self.seat) else {
            self.complete(command.id(), 0, Status::OPCODE, out);
            return None;
        };
        let names = Names { host: &seat.controller.host.nqn, subsystem: &subsystem.nqn };
        let bytes = command.word(11) as usize;
        self.dialogue.hear(&data[..bytes.min(data.len())], keys, names);
        self.rearm(now);
        self.complete(command.id(), 0, Status::SUCCESS, out);
        None
    }

    /// The host asks what is said to it; one that has failed is told so, and hung up on.
    pub(super) fn tell_message(
        &mut self,
        now: Instant,
        command: &Command,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Status> {
        let subsystem = Arc::clone(&self.subsystem);
        let (Some(keys), Some(seat)) = (&subsystem.keys, &self.seat) else {
            return Err(Status::OPCODE);
        };
        let bytes = command.message_bytes()?;
        if command.room()? != bytes {
            return Err(Status::SGL_LENGTH);
        }
        let host = seat.controller.host.nqn.clone();
        let mut told = self.dialogue.tell(bytes as usize, keys);
        told.message.resize(bytes as usize, 0);
        self.agreed.unwrap_or_default().push_data(out, command.id(), &told.message);
        self.complete(command.id(), 0, Status::SUCCESS, out);
        let Some(failed) = told.failed else {
            self.rearm(now);
            return Ok(None);
        };
        if let Some(more) = subsystem.unauthenticated.admit(now) {
            let reason = failed.reason();
            tracing::warn!(host, reason, more, "an NVMe host did not authenticate");
        }
        Ok(self.ended("its host did not authenticate"))
    }
}
