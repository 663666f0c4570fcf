//! The controller's side of NVMe over TCP: a state machine for each connection, without socket, thread or clock.
//! A connection is one queue, the admin queue or one for I/O, and what all share is the [`Subsystem`].
//!
//! Invariants:
//! - A request that reaches the driver lies within its namespace, which its host may see.
//! - Data is taken only where it was announced: behind its command, or as asked for by an R2T, in order and once.
//! - A host has at most as many commands under way as its queue holds. What it sends against the protocol ends its
//!   connection with a termination request, and nobody else's.
//! - Commands that wait for room wait here, by their entries alone; so data that is on its way is always taken.

mod admin;
mod auth;
mod authentication;
mod command;
mod fabrics;
mod fdp;
mod flight;
mod health;
pub mod hostile;
mod manage;
mod pdu;
#[cfg(test)]
mod placed_tests;
mod status;
mod subsystem;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod zoned_tests;
mod zones;

pub use auth::{HostKeys, Keys, Secret};
pub use fdp::Handles;
pub use health::Health;
pub use subsystem::{Atomic, DISCOVERY_NQN, NQN_BYTES_MAX, Namespace, Subsystem, nqn_of, uuid_of};
pub use zones::ZoneShape;

use super::{Event, Front, Patience, Payload, Received, Ticket};
use crate::exports::Offered;
use crate::volume::{self, Answer, Failure, Kind};
use command::{Command, Place, Task};
use flash::{Instant, SECOND, Slab};
use flight::{Flight, Group, Waiting};
use pdu::{Agreed, Common, DATA_BYTES_MAX, Fault, IN_CAPSULE_BYTES};
use status::Status;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subsystem::{Namespaces, Seat};

/// Data of reads and writes that one queue may have under way beyond what comes in capsules.
const BYTES_IN_FLIGHT: u64 = 8 << 20;
/// Requests under way from which on others wait.
const FLIGHTS_MAX: usize = 1024;
/// Bytes to be sent from which on no more is received.
const UNSENT_BYTES: usize = 1 << 20;
/// How often an I/O queue looks whether its controller is still there.
const LOOK_NS: u64 = 2 * SECOND;
/// Entries of the admin queue before connect.
const FIRST_ENTRIES: u16 = 1;
/// Events that a host may await.
const EVENTS_MAX: usize = 4;

/// What the next bytes are.
enum Stage {
    /// A PDU's head.
    Head,
    /// Data that is for us.
    Own { command: Command, data: Vec<u8>, need: usize, digest: bool },
    /// Data that the driver takes.
    Payload { ticket: Ticket, left: u32, digest: bool },
    /// The digest of what the driver has taken.
    Digest { ticket: Ticket, sum: u32 },
    /// Data of a command that was refused: so many bytes, digest included.
    Drain { left: u32, command: Command, status: Status },
    /// Nothing any more.
    Ended,
}

/// See the head of this file.
pub struct NvmeClient {
    subsystem: Arc<Subsystem>,
    /// Its namespaces as the shard was told last.
    namespaces: Namespaces,
    /// Of the admin queue: those of which the host has not read that they have changed, and that it was told of any.
    changed: BTreeSet<u32>,
    changed_told: bool,
    local: Option<SocketAddr>,
    agreed: Option<Agreed>,
    stage: Stage,
    /// An incomplete head or digest.
    held: Vec<u8>,
    seat: Option<Seat>,
    entries: u16,
    /// Commands taken, modulo `entries`.
    head: u16,
    /// Commands not completed.
    outstanding: u32,
    flights: Slab<Flight>,
    groups: Slab<Group>,
    /// Commands that wait for room, and trims of commands that are several.
    waiting: VecDeque<Waiting>,
    bytes: u64,
    /// Requests whose data is on its way.
    due: u32,
    events: Vec<u16>,
    features: Features,
    dialogue: auth::Dialogue,
    deadline: Option<Instant>,
    shutting_down: bool,
}

/// Features that a host may set.
#[derive(Default)]
struct Features {
    keep_alive_ns: u64,
    events: u32,
}

impl NvmeClient {
    /// A host has connected to `local`.
    pub fn new(now: Instant, subsystem: Arc<Subsystem>, local: Option<SocketAddr>) -> Self {
        let deadline = Some(now + subsystem.handshake_ns);
        let namespaces = subsystem.namespaces();
        Self {
            subsystem,
            namespaces,
            changed: BTreeSet::new(),
            changed_told: false,
            local,
            agreed: None,
            stage: Stage::Head,
            held: Vec::new(),
            seat: None,
            entries: FIRST_ENTRIES,
            head: 0,
            outstanding: 0,
            flights: Slab::default(),
            groups: Slab::default(),
            waiting: VecDeque::new(),
            bytes: 0,
            due: 0,
            events: Vec::new(),
            features: Features::default(),
            dialogue: auth::Dialogue::default(),
            deadline,
            shutting_down: false,
        }
    }

    /// Ends the connection for what the host did.
    fn fail(
        &mut self,
        now: Instant,
        fault: &Fault,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let host = self.seat.as_ref().map_or("?", |seat| &seat.controller.host.nqn);
        if let Some(more) = self.subsystem.broken.admit(now) {
            let reason = fault.reason;
            tracing::warn!(
                host,
                reason,
                more,
                "an NVMe host broke the protocol, and its connection ends"
            );
        }
        pdu::push_termination(out, fault, head);
        self.stage = Stage::Ended;
        Some(Event::Close)
    }

    /// Tells of data that was damaged on its way: its host hears of the command alone, and nobody of the network.
    fn note_digest(&self, now: Instant, sound: bool) {
        if sound {
            return;
        }
        if let Some(more) = self.subsystem.spoilt.admit(now) {
            let host = self.seat.as_ref().map_or("?", |seat| &seat.controller.host.nqn);
            tracing::warn!(
                host,
                more,
                "data of an NVMe host came with a wrong digest, and is refused"
            );
        }
    }

    /// Takes the head of a PDU as far as it is there.
    fn receive_head(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received {
        let mut consumed = 0;
        loop {
            let known = self.held.first_chunk::<{ pdu::COMMON_BYTES }>().copied();
            let common = match known {
                None => None,
                Some(common) => {
                    let most = if self.held[0] == pdu::H2C_DATA {
                        DATA_BYTES_MAX
                    } else {
                        IN_CAPSULE_BYTES
                    };
                    match Common::decode(&common, self.agreed.as_ref(), most) {
                        Ok(common) => Some(common),
                        Err(fault) => {
                            let head = std::mem::take(&mut self.held);
                            let event = self.fail(now, &fault, &head, out);
                            return Received { consumed: consumed.max(1), event };
                        }
                    }
                }
            };
            let need = common.map_or(pdu::COMMON_BYTES, |common| common.head);
            let taken = (need - self.held.len()).min(bytes.len() - consumed);
            self.held.extend_from_slice(&bytes[consumed..consumed + taken]);
            consumed += taken;
            if self.held.len() < need {
                return Received { consumed, event: None };
            }
            if let Some(common) = common {
                let head = std::mem::take(&mut self.held);
                let event = match self.head_done(now, &common, &head, out) {
                    Ok(event) => event,
                    Err(fault) => self.fail(now, &fault, &head, out),
                };
                // Its memory is for the next one.
                self.held = head;
                self.held.clear();
                return Received { consumed, event };
            }
        }
    }

    fn head_done(
        &mut self,
        now: Instant,
        common: &Common,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Fault> {
        let Some(agreed) = self.agreed else {
            if common.kind == pdu::IC_REQ {
                self.agreed = Some(pdu::initialize(head, out)?);
                return Ok(None);
            }
            return Ok(self.ended("it ended the connection before it began"));
        };
        if !pdu::header_is_sound(head, common, &agreed) {
            return Err(Fault::HEADER_DIGEST);
        }
        match common.kind {
            pdu::CAPSULE_CMD => {
                let mut entry = [0; pdu::SQE_BYTES];
                entry.copy_from_slice(&head[8..72]);
                self.command(now, Command(entry), common, out)
            }
            pdu::H2C_DATA => self.data(common, head),
            _ => Ok(self.ended("the host found an error in what it was sent")),
        }
    }

    fn ended(&mut self, reason: &str) -> Option<Event> {
        tracing::debug!(reason, "an NVMe connection ends");
        self.stage = Stage::Ended;
        Some(Event::Close)
    }

    /// Data that an R2T has asked for.
    fn data(&mut self, common: &Common, head: &[u8]) -> Result<Option<Event>, Fault> {
        if self.seat.as_ref().is_some_and(|seat| !seat.is_current()) {
            return Ok(self.ended("its controller is gone, or was reset"));
        }
        let (command, tag) = (pdu::u16_at(head, 8), pdu::u16_at(head, 10));
        let (offset, len) = (pdu::u32_at(head, 12), pdu::u32_at(head, 16));
        let flight = self.flights.get_mut(tag.into());
        let Some((flight, due)) = flight.and_then(|flight| flight.due.map(|due| (flight, due)))
        else {
            return Err(Fault::field(10, "data that nobody has asked for"));
        };
        if flight.command != command {
            return Err(Fault::field(8, "data of another command than asked for"));
        }
        if len != common.data || offset != due || len > flight.task.len - due {
            return Err(Fault::range("data out of order or beyond what was asked for"));
        }
        let ends = due + len == flight.task.len;
        if ends != (common.flags & pdu::FLAG_LAST != 0) {
            return Err(Fault::field(1, "the last data is not marked so, or others are"));
        }
        flight.due = Some(due + len);
        let ticket = Ticket(tag.into());
        self.stage = Stage::Payload { ticket, left: len, digest: common.digest };
        Ok(Some(Event::Data(ticket)))
    }

    /// A command has come, and `common` tells what data with it.
    fn command(
        &mut self,
        now: Instant,
        command: Command,
        common: &Common,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Fault> {
        if self.outstanding >= u32::from(self.entries) + self.events.len() as u32 {
            return Err(Fault::sequence("more commands than its queue holds"));
        }
        self.outstanding += 1;
        self.head = (self.head + 1) % self.entries;
        if let Some(seat) = &self.seat {
            if seat.queue == 0 {
                self.rearm(now);
            } else if !seat.is_current() {
                return Ok(self.ended("its controller is gone, or was reset"));
            }
        }
        match self.begin(now, &command, common, out) {
            Ok(event) => Ok(event),
            Err(status) if common.data > 0 => {
                let left = common.data + if common.digest { 4 } else { 0 };
                self.stage = Stage::Drain { left, command, status };
                Ok(None)
            }
            Err(status) => Ok(self.refuse(&command, status, out)),
        }
    }

    /// Answers a command by an error. One for a volume is told; hosts ask on admin queues for what is not there, to see
    /// what is.
    fn refuse(&mut self, command: &Command, status: Status, out: &mut Vec<u8>) -> Option<Event> {
        self.complete(command.id(), 0, status, out);
        let serves = self.seat.as_ref().is_some_and(|seat| seat.queue > 0);
        serves.then(|| Event::Refused(self.namespace(command).ok().map(|(_, volume)| volume)))
    }

    fn begin(
        &mut self,
        now: Instant,
        command: &Command,
        common: &Common,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Status> {
        let data = common.data;
        let connects = command.opcode() == command::FABRICS && command.0[4] == fabrics::CONNECT;
        let queue = self.seat.as_ref().map(|seat| seat.queue);
        let own = match (command.opcode(), queue) {
            (command::FABRICS, _) if connects => Some(fabrics::CONNECT_BYTES),
            (_, None) => return Err(Status::SEQUENCE),
            _ if command.brings_message() => Some(command.message_bytes()?),
            _ if self.must_authenticate() && !command.authenticates() => {
                return Err(Status::AUTHENTICATION);
            }
            (command::TRIM, Some(1..)) => Some(command.ranges_bytes()),
            _ if self.sets_behavior(command) => Some(manage::BEHAVIOR_BYTES),
            _ => None,
        };
        if let Some(wanted) = own {
            // Both are short enough for every capsule.
            let need = command.enclosed(wanted, data)? as usize;
            let (command, digest) = (command.clone(), common.digest);
            self.stage = Stage::Own { command, data: Vec::with_capacity(need), need, digest };
            return Ok(None);
        }
        if self.shutting_down {
            return Err(Status::PATH);
        }
        if queue == Some(0) || command.opcode() == command::FABRICS {
            if data > 0 {
                return Err(Status::FIELD);
            }
            if command.authenticates() {
                return self.tell_message(now, command, out);
            }
            self.manage(command, out)?;
            return Ok(None);
        }
        self.begin_io(command, common, out)
    }

    /// An I/O command, no dataset management.
    fn begin_io(
        &mut self,
        command: &Command,
        common: &Common,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Status> {
        let (namespace, volume) = self.namespace(command)?;
        if command.opcode() == command::MANAGE_RECEIVE && namespace.handles.count > 0 {
            let page = fdp::status_of(&self.namespaces, namespace, command)?;
            return self.answer_page(command, common, page, out);
        }
        let task = match &namespace.zones {
            Some(shape) => zones::task(command, namespace, shape)?,
            None => command.task(namespace)?,
        };
        if let (Kind::Write { handle: Some(_), .. }, Some(placement), Ok(Some(identifier))) =
            (task.kind, &self.subsystem.placement, fdp::named(command))
            && !namespace.handles.of(identifier).1
        {
            placement.note_invalid(command.nsid(), identifier);
        }
        let takes = task.kind.takes_data();
        let sends = matches!(command.opcode(), command::READ | zones::REPORT);
        let place = match takes || sends {
            true if takes => command.place(task.len, common.data)?,
            true => match command.place(task.len, common.data)? {
                Place::Apart => Place::Apart,
                Place::Capsule => return Err(Status::SGL_KIND),
            },
            false if common.data > 0 => return Err(Status::SGL_LENGTH),
            false => Place::Apart,
        };
        let Task { kind, offset, len } = task;
        let (command, len) = (command.id(), u64::from(len));
        let (group, follows) = (None, false);
        let wanted = Waiting { command, kind, offset, len, volume, sends, group, follows };
        if takes && place == Place::Capsule {
            let event = self.hand_out(task, &wanted, false);
            if let Event::Request(ticket, _) = event {
                let (left, digest) = (common.data, common.digest);
                self.stage = Stage::Payload { ticket, left, digest };
            }
            return Ok(Some(event));
        }
        self.waiting.push_back(wanted);
        Ok(self.resume())
    }

    /// Answers an I/O command by what is known here.
    fn answer_page(
        &mut self,
        command: &Command,
        common: &Common,
        mut page: Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Status> {
        let bytes = (command.word(11) as usize + 1).saturating_mul(4);
        if bytes > DATA_BYTES_MAX as usize {
            return Err(Status::FIELD);
        }
        if command.place(bytes as u32, common.data)? != Place::Apart {
            return Err(Status::SGL_KIND);
        }
        page.resize(bytes, 0);
        self.agreed.unwrap_or_default().push_data(out, command.id(), &page);
        self.complete(command.id(), 0, Status::SUCCESS, out);
        Ok(None)
    }

    /// A request for the driver. `apart`: so its data comes.
    fn hand_out(&mut self, task: Task, wanted: &Waiting, apart: bool) -> Event {
        let &Waiting { command, volume, sends, group, follows, .. } = wanted;
        self.bytes += task.held_bytes();
        let (due, spoilt, waits) = (None, false, false);
        let flight =
            Flight { command, task, volume, sends, apart, due, spoilt, waits, group, follows };
        let ticket = Ticket(self.flights.insert(flight));
        let Task { kind, offset, len } = task;
        Event::Request(ticket, volume::Request { volume, kind, offset, len })
    }

    /// A command's data is all here, and it is for us.
    fn own_done(
        &mut self,
        now: Instant,
        command: &Command,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        if command.brings_message() {
            return self.hear_message(now, command, data, out);
        }
        if command.opcode() == command::FABRICS {
            return self.connect(now, command, data, out);
        }
        if self.sets_behavior(command) {
            return self.set_behavior(command, data, out);
        }
        let ranges = &data[..command.ranges_bytes() as usize];
        let (trims, volume) = match self.namespace(command) {
            Ok((namespace, volume)) => (command::trims(ranges, namespace), volume),
            Err(status) => (Err(status), 0),
        };
        match trims {
            Err(status) => return self.refuse(command, status, out),
            Ok(trims) if trims.is_empty() || !command.trims() => {
                self.complete(command.id(), 0, Status::SUCCESS, out);
            }
            Ok(trims) => {
                let parts = trims.iter().map(|(_, len)| len.div_ceil(command::TRIM_BYTES_MAX));
                let group = Group { left: parts.sum(), status: Status::SUCCESS };
                let group = Some(self.groups.insert(group));
                let (command, kind) = (command.id(), Kind::Trim { fua: false });
                self.waiting.extend(trims.into_iter().enumerate().map(|(at, (offset, len))| {
                    let (sends, follows) = (false, at > 0);
                    Waiting { command, kind, offset, len, volume, sends, group, follows }
                }));
            }
        }
        self.resume()
    }

    fn complete(&mut self, command: u16, result: u64, status: Status, out: &mut Vec<u8>) {
        self.outstanding -= 1;
        let mut completion = [0; 16];
        completion[..8].copy_from_slice(&result.to_le_bytes());
        completion[8..10].copy_from_slice(&self.head.to_le_bytes());
        completion[12..14].copy_from_slice(&command.to_le_bytes());
        completion[14..].copy_from_slice(&(status.0 << 1).to_le_bytes());
        self.agreed.unwrap_or_default().push_response(out, &completion);
    }

    /// A request of a command has ended; the command with it, unless it has others.
    fn ended_with(&mut self, ticket: Ticket, (result, status): (u64, Status), out: &mut Vec<u8>) {
        let Flight { command, group, .. } = self.flights[ticket.0];
        let status = match group {
            None => status,
            Some(index) => {
                let group = &mut self.groups[index];
                group.left -= 1;
                if group.status == Status::SUCCESS {
                    group.status = status;
                }
                if group.left > 0 {
                    return;
                }
                self.groups.remove(index).status
            }
        };
        self.complete(command, result, status, out);
    }

    /// Data or a digest, not of a head.
    fn receive_rest(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received {
        match std::mem::replace(&mut self.stage, Stage::Head) {
            Stage::Own { command, mut data, need, digest } => {
                let whole = need + if digest { 4 } else { 0 };
                let consumed = bytes.len().min(whole - data.len());
                data.extend_from_slice(&bytes[..consumed]);
                if data.len() < whole {
                    self.stage = Stage::Own { command, data, need, digest };
                    return Received { consumed, event: None };
                }
                let sound = !digest || pdu::u32_at(&data, need) == flash::crc(&data[..need]);
                self.note_digest(now, sound);
                let event = if sound {
                    self.own_done(now, &command, &data[..need], out)
                } else {
                    self.refuse(&command, Status::TRANSPORT, out)
                };
                Received { consumed, event }
            }
            Stage::Digest { ticket, sum } => {
                let consumed = bytes.len().min(4 - self.held.len());
                self.held.extend_from_slice(&bytes[..consumed]);
                if self.held.len() < 4 {
                    self.stage = Stage::Digest { ticket, sum };
                    return Received { consumed, event: None };
                }
                let sound = pdu::u32_at(&self.held, 0) == sum;
                self.held.clear();
                self.note_digest(now, sound);
                self.flights[ticket.0].spoilt |= !sound;
                Received { consumed, event: self.data_done(ticket) }
            }
            Stage::Drain { left, command, status } => {
                let consumed = bytes.len().min(left as usize);
                let left = left - consumed as u32;
                if left > 0 {
                    self.stage = Stage::Drain { left, command, status };
                    return Received { consumed, event: None };
                }
                Received { consumed, event: self.refuse(&command, status, out) }
            }
            stage => {
                self.stage = stage;
                Received { consumed: bytes.len(), event: None }
            }
        }
    }

    /// A PDU's data was taken and is sound or not; an event if that was all of its command's.
    fn data_done(&mut self, ticket: Ticket) -> Option<Event> {
        let flight = &mut self.flights[ticket.0];
        if flight.due.is_some_and(|due| due < flight.task.len) {
            return None;
        }
        if flight.due.take().is_some() {
            self.due -= 1;
        }
        Some(if flight.spoilt { Event::Spoilt(ticket) } else { Event::Whole(ticket) })
    }
}

impl Front for NvmeClient {
    fn receive(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Received {
        match &self.stage {
            Stage::Payload { .. } => panic!("the driver takes the payload, then goes on receiving"),
            Stage::Head => self.receive_head(now, bytes, out),
            _ => self.receive_rest(now, bytes, out),
        }
    }

    fn accepts_more(&self, unsent: usize) -> bool {
        unsent < UNSENT_BYTES
    }

    fn resume(&mut self) -> Option<Event> {
        let task = self.waiting.front()?.next();
        let bytes = task.held_bytes();
        let full = self.bytes > 0 && self.bytes + bytes > BYTES_IN_FLIGHT;
        if full || self.flights.len() >= FLIGHTS_MAX {
            return None;
        }
        let mut wanted = self.waiting.pop_front()?;
        let event = self.hand_out(task, &wanted, task.kind.takes_data());
        if wanted.len > u64::from(task.len) {
            wanted.offset += u64::from(task.len);
            wanted.len -= u64::from(task.len);
            wanted.follows = true;
            self.waiting.push_front(wanted);
        }
        Some(event)
    }

    fn asks_for_data(&mut self, ticket: Ticket, out: &mut Vec<u8>) -> bool {
        let flight = &mut self.flights[ticket.0];
        if !flight.apart {
            return false;
        }
        flight.due = Some(0);
        self.due += 1;
        let (agreed, len) = (self.agreed.unwrap_or_default(), flight.task.len);
        agreed.push_ready(out, flight.command, ticket.0 as u16, len);
        true
    }

    fn keeps_data(&self, ticket: Ticket) -> bool {
        self.flights[ticket.0].apart
    }

    /// A host gives each command a time, and resets the controller when that is over.
    fn patience(&self) -> Patience {
        Patience::Returns { at_once: !self.goes_by_delays() }
    }

    fn comes_back_ns(&self, wait_ns: u64, before: u32) -> Option<u64> {
        status::comes_back_ns(wait_ns, before)
    }

    fn is_part(&self, ticket: Ticket) -> bool {
        self.flights[ticket.0].follows
    }

    fn waits(&mut self, ticket: Ticket, waits: bool) {
        let flight = &mut self.flights[ticket.0];
        let bytes = flight.task.held_bytes();
        match (std::mem::replace(&mut flight.waits, waits), waits) {
            (false, true) => self.bytes -= bytes,
            (true, false) => self.bytes += bytes,
            _ => {}
        }
    }

    fn awaits_data(&self) -> bool {
        self.due > 0
    }

    fn payload_left(&self) -> u32 {
        if let Stage::Payload { left, .. } = self.stage { left } else { 0 }
    }

    fn payload_received(&mut self, bytes: usize) {
        if let Stage::Payload { left, .. } = &mut self.stage {
            assert!(bytes <= *left as usize, "the driver took bytes beyond the payload");
            *left -= bytes as u32;
        }
    }

    fn payload_ended(&mut self, payload: &mut dyn Iterator<Item = &[u8]>) -> Payload {
        let Stage::Payload { ticket, left: 0, digest } = self.stage else {
            panic!("a payload ends once");
        };
        if digest {
            self.stage = Stage::Digest { ticket, sum: pdu::digest(payload) };
            return Payload::More;
        }
        self.stage = Stage::Head;
        match self.data_done(ticket) {
            None => Payload::More,
            Some(Event::Spoilt(_)) => Payload::Spoilt,
            Some(_) => Payload::Whole,
        }
    }

    fn header_bytes(&self) -> usize {
        72 + 24
    }

    fn tls_started(&mut self) {}

    fn has_come_in(&self) -> bool {
        self.seat.is_some() && !self.must_authenticate()
    }

    fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn expire(&mut self, now: Instant) -> Option<&'static str> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        match &self.seat {
            None => Some("it connected no queue in time"),
            Some(_) if self.must_authenticate() => Some("its host did not authenticate in time"),
            Some(seat) if seat.queue == 0 => Some("its host does not keep it alive"),
            Some(seat) if !seat.is_current() => Some("its controller is gone"),
            Some(_) => {
                self.rearm(now);
                None
            }
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    fn offered(&mut self, _offered: &Offered, out: &mut Vec<u8>) -> bool {
        self.renew(out);
        true
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer<'_>, out: &mut Vec<u8>) -> bool {
        let flight = &self.flights[ticket.0];
        let mut result = 0;
        let status = match answer {
            Answer::Done if flight.sends => {
                let agreed = self.agreed.unwrap_or_default();
                agreed.push_data_header(out, flight.command, flight.task.len);
                return true;
            }
            Answer::Done | Answer::Extents(_) => Status::SUCCESS,
            Answer::Placed(offset) => {
                result = self.volume(flight.volume).map_or(0, |of| offset >> of.block_shift);
                Status::SUCCESS
            }
            Answer::Zones(zones, count) => {
                let bytes = flight.task.len as usize;
                let page = match self.volume(flight.volume) {
                    Some(namespace) => zones::report_page(namespace, zones, count, bytes),
                    None => vec![0; bytes],
                };
                let agreed = self.agreed.unwrap_or_default();
                agreed.push_data(out, flight.command, &page);
                Status::SUCCESS
            }
            Answer::Failed(Failure::Later { wait_ns, before }) => {
                status::later(wait_ns, before, self.goes_by_delays())
            }
            Answer::Failed(failure) => failure.into(),
        };
        self.ended_with(ticket, (result, status), out);
        false
    }

    fn after_data(
        &mut self,
        ticket: Ticket,
        data: &mut dyn Iterator<Item = &[u8]>,
        out: &mut Vec<u8>,
    ) {
        self.agreed.unwrap_or_default().push_data_digest(out, data);
        self.ended_with(ticket, (0, Status::SUCCESS), out);
    }

    fn finish(&mut self, ticket: Ticket) {
        let flight = self.flights.remove(ticket.0);
        if !flight.waits {
            self.bytes -= flight.task.held_bytes();
        }
        if flight.due.is_some() {
            self.due -= 1;
        }
    }
}
