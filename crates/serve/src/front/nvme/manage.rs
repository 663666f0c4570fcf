//! The admin queue of a client: what it asks of its controller.

use super::admin::{self, Asked};
use super::command::{self, Command};
use super::status::Status;
use super::{EVENTS_MAX, Event, Namespace, NvmeClient, fabrics, fdp, subsystem};
use flash::MILLISECOND;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The log of namespaces that have changed.
pub(super) const CHANGED_LOG: u8 = 0x04;
/// Most of them that it tells one by one.
const CHANGED_MAX: usize = 1024;
/// What a host tells of its behavior.
pub(super) const BEHAVIOR_BYTES: u32 = 512;

impl NvmeClient {
    /// A command of the admin queue, or a property of any.
    pub(super) fn manage(&mut self, command: &Command, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some(seat) = &self.seat else { return Err(Status::SEQUENCE) };
        let controller = Arc::clone(&seat.controller);
        let local = self.local;
        let subsystem = Arc::clone(&self.subsystem);
        let namespaces = Arc::clone(&self.namespaces);
        let namespaces = &namespaces;
        let asked = Asked { subsystem: &subsystem, namespaces, controller: &controller, local };
        let answer = match command.opcode() {
            command::FABRICS => match command.0[4] {
                fabrics::PROPERTY_GET => admin::Answer::Value(fabrics::get(&controller, command)?),
                fabrics::PROPERTY_SET => {
                    fabrics::set(&controller, command)?;
                    admin::Answer::Value(0)
                }
                _ => return Err(Status::OPCODE),
            },
            _ if controller.state() != 1 => return Err(Status::SEQUENCE),
            command::IDENTIFY => asked.identify(command)?,
            command::GET_LOG if command.word(10) as u8 == CHANGED_LOG && !controller.discovery => {
                asked.part_of(command, self.changed_log(command))?
            }
            command::GET_LOG => asked.log(command)?,
            command::SET_FEATURES | command::GET_FEATURES => self.feature(command)?,
            command::DIRECTIVE_RECEIVE => asked.directives(command)?,
            command::KEEP_ALIVE => admin::Answer::Value(0),
            command::AWAIT_EVENT if self.events.len() >= EVENTS_MAX => return Err(Status::EVENTS),
            command::AWAIT_EVENT => {
                // It is answered when something happens.
                self.events.push(command.id());
                self.tell_changed(out);
                return Ok(());
            }
            command::ABORT => admin::Answer::Value(self.abort(command, out)),
            _ => return Err(Status::OPCODE),
        };
        let (page, result) = match answer {
            admin::Answer::Value(value) => (None, value),
            admin::Answer::Told(value, page) => (Some(page), value),
            admin::Answer::Page(page) => (Some(page), 0),
        };
        match page {
            None => self.complete(command.id(), result, Status::SUCCESS, out),
            Some(page) => {
                let page = &page[..page.len().min(command.room()? as usize)];
                if !page.is_empty() {
                    self.agreed.unwrap_or_default().push_data(out, command.id(), page);
                }
                self.complete(command.id(), result, Status::SUCCESS, out);
            }
        }
        Ok(())
    }

    /// The namespace that a command names, and its volume.
    pub(super) fn namespace(&self, command: &Command) -> Result<(&Namespace, usize), Status> {
        let Some(seat) = &self.seat else { return Err(Status::SEQUENCE) };
        let mut number = command.nsid();
        if command.opcode() == command::FLUSH && number == u32::MAX {
            // A flush is of the whole device, whichever volume it names.
            number = self.namespaces.first().map_or(number, |first| first.number);
        }
        let namespace = subsystem::find(&self.namespaces, number, &seat.controller.host.nqn);
        Ok((namespace.ok_or(Status::NAMESPACE)?, number as usize - 1))
    }

    /// The namespace that a volume is.
    pub(super) fn volume(&self, volume: usize) -> Option<&Namespace> {
        let number = volume as u32 + 1;
        let at = self.namespaces.binary_search_by_key(&number, |namespace| namespace.number);
        at.ok().map(|at| &self.namespaces[at])
    }

    /// Features of data placement, which is as it is.
    fn placement_feature(&self, command: &Command) -> Option<Result<admin::Answer, Status>> {
        let feature = command.word(10) as u8;
        self.subsystem.placement.as_ref().filter(|_| matches!(feature, 0x1d | 0x1e))?;
        let group = feature == 0x1e || command.word(11) as u16 == fdp::GROUP;
        Some(match (command.opcode(), feature) {
            _ if !group => Err(Status::FIELD),
            (command::SET_FEATURES, _) => Err(Status::FEATURE),
            // On, by the first configuration.
            (_, 0x1d) => Ok(admin::Answer::Value(1)),
            _ => Ok(admin::Answer::Told(1, fdp::EVENTS.to_vec())),
        })
    }

    /// Takes over the namespaces that there are now, and tells the host which are others.
    pub(super) fn renew(&mut self, out: &mut Vec<u8>) {
        let before = std::mem::replace(&mut self.namespaces, self.subsystem.namespaces());
        let Some(seat) = &self.seat else { return };
        if seat.queue > 0 || seat.controller.discovery {
            return;
        }
        let host = &seat.controller.host.nqn;
        let numbers = before.iter().chain(self.namespaces.iter()).map(|namespace| namespace.number);
        let find = |all: &'_ [Namespace], number| subsystem::find(all, number, host).cloned();
        let other = |&number: &u32| find(&before, number) != find(&self.namespaces, number);
        self.changed.extend(numbers.filter(other));
        self.tell_changed(out);
    }

    /// Tells the host that namespaces have changed, if it wants to know, once until it has read which.
    fn tell_changed(&mut self, out: &mut Vec<u8>) {
        let wanted = self.features.events & admin::EVENTS_OF_NAMESPACES != 0;
        if self.changed.is_empty() || self.changed_told || !wanted || self.events.is_empty() {
            return;
        }
        self.changed_told = true;
        let id = self.events.remove(0);
        // A notice, that namespace attributes have changed, and the log that tells of which.
        let result = 0x02 | u64::from(CHANGED_LOG) << 16;
        self.complete(id, result, Status::SUCCESS, out);
    }

    /// Log page: the namespaces that have changed since it was read last, unless it is only looked at.
    fn changed_log(&mut self, command: &Command) -> Vec<u8> {
        let mut log = vec![0; 4 * CHANGED_MAX];
        let many = self.changed.len() > CHANGED_MAX;
        let numbers = if many { vec![u32::MAX] } else { self.changed.iter().copied().collect() };
        for (place, number) in log.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let retains = command.word(10) & 1 << 15 != 0;
        if !retains {
            self.changed.clear();
            self.changed_told = false;
        }
        log
    }

    /// True if the host tells how it behaves, in data that comes with it. On another queue that is another command.
    pub(super) fn sets_behavior(&self, command: &Command) -> bool {
        let admin = self.seat.as_ref().is_some_and(|seat| seat.queue == 0);
        let sets = command.opcode() == command::SET_FEATURES;
        admin && sets && command.word(10) as u8 == command::HOST_BEHAVIOR
    }

    /// The host has told how it behaves, of which only how it tries again is looked at.
    pub(super) fn set_behavior(
        &mut self,
        command: &Command,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let controller = self.seat.as_ref().map(|seat| &seat.controller);
        let status = match (controller, data[0]) {
            (Some(controller), 0 | 1) if controller.state() == 1 && !controller.discovery => {
                controller.delays.store(data[0] == 1, Ordering::Release);
                Status::SUCCESS
            }
            (Some(controller), 0 | 1) if !controller.discovery => Status::SEQUENCE,
            _ => Status::FIELD,
        };
        self.complete(command.id(), 0, status, out);
        None
    }

    /// True if the host tries again after the delay that it is told.
    pub(super) fn goes_by_delays(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.controller.delays.load(Ordering::Acquire))
    }

    /// Ends a wait for events; other commands cannot be called back. 0: it was ended.
    fn abort(&mut self, command: &Command, out: &mut Vec<u8>) -> u64 {
        let id = (command.word(10) >> 16) as u16;
        let Some(at) = self.events.iter().position(|event| *event == id) else { return 1 };
        self.events.remove(at);
        self.complete(id, 0, Status::ABORTED, out);
        0
    }

    fn feature(&mut self, command: &Command) -> Result<admin::Answer, Status> {
        if let Some(answer) = self.placement_feature(command) {
            return answer;
        }
        let (feature, value) = (command.word(10) as u8, command.word(11));
        let sets = command.opcode() == command::SET_FEATURES;
        let Some(seat) = &self.seat else { return Err(Status::SEQUENCE) };
        let granted = &seat.controller.granted;
        let current = match (feature, sets) {
            // A number of queues, of each kind, less one.
            (0x07, true) => {
                let wanted = (value & 0xffff).min(value >> 16);
                if wanted == 0xffff {
                    return Err(Status::FIELD);
                }
                granted.store((wanted + 1).min(subsystem::QUEUES_MAX.into()), Ordering::Release);
                let less = granted.load(Ordering::Acquire) - 1;
                less | less << 16
            }
            (0x07, false) => {
                let less = granted.load(Ordering::Acquire).max(1) - 1;
                less | less << 16
            }
            (0x0b, true) => {
                self.features.events = value;
                0
            }
            (0x0b, false) => self.features.events,
            (0x0f, true) => {
                self.features.keep_alive_ns = u64::from(value) * MILLISECOND;
                0
            }
            (0x0f, false) => (self.features.keep_alive_ns / MILLISECOND) as u32,
            (command::HOST_BEHAVIOR, false) if !seat.controller.discovery => {
                let mut page = vec![0; BEHAVIOR_BYTES as usize];
                page[0] = seat.controller.delays.load(Ordering::Acquire).into();
                return Ok(admin::Answer::Page(page));
            }
            // What there is of a volatile cache is always on.
            (0x06, false) => 1,
            (0x02 | 0x04 | 0x05 | 0x0a, false) => 0,
            (0x02 | 0x04 | 0x05 | 0x06 | 0x0a, true) => return Err(Status::FEATURE),
            _ => return Err(Status::FIELD),
        };
        Ok(admin::Answer::Value(current.into()))
    }
}
