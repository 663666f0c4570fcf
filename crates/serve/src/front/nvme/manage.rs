//! The admin queue of a client: what it asks of its controller.

use super::admin::{self, Asked};
use super::command::{self, Command};
use super::status::Status;
use super::{EVENTS_MAX, NvmeClient, fabrics, fdp, subsystem};
use flash::MILLISECOND;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl NvmeClient {
    /// A command of the admin queue, or a property of any.
    pub(super) fn manage(&mut self, command: &Command, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some(seat) = &self.seat else { return Err(Status::SEQUENCE) };
        let controller = Arc::clone(&seat.controller);
        let local = self.local;
        let subsystem = Arc::clone(&self.subsystem);
        let asked = Asked { subsystem: &subsystem, controller: &controller, local };
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
            command::GET_LOG => asked.log(command)?,
            command::SET_FEATURES | command::GET_FEATURES => self.feature(command)?,
            command::DIRECTIVE_RECEIVE => asked.directives(command)?,
            command::KEEP_ALIVE => admin::Answer::Value(0),
            command::AWAIT_EVENT if self.events.len() >= EVENTS_MAX => return Err(Status::EVENTS),
            command::AWAIT_EVENT => {
                // It is answered when something happens, which beside the end of the connection nothing does.
                self.events.push(command.id());
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
            // What there is of a volatile cache is always on.
            (0x06, false) => 1,
            (0x02 | 0x04 | 0x05 | 0x0a, false) => 0,
            (0x02 | 0x04 | 0x05 | 0x06 | 0x0a, true) => return Err(Status::FEATURE),
            _ => return Err(Status::FIELD),
        };
        Ok(admin::Answer::Value(current.into()))
    }
}
