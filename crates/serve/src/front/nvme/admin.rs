//! What the admin queue answers by data: identify, log pages, the values of features.

use super::command::{self, Command};
use super::status::{self, Status};
use super::subsystem::{
    Atomic, COMMAND_SET_NVM, COMMAND_SET_ZONED, Controller, QUEUE_ENTRIES_MAX, Subsystem,
};
use super::{Namespace, fdp, pdu, subsystem, zones};
use crate::device::NUMBER_MAX;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// NVMe 2.0.
pub const VERSION: u32 = 0x0002_0000;
/// Of the events and features that concern them: namespaces that come, go or change.
pub const EVENTS_OF_NAMESPACES: u32 = 1 << 8;
/// Most namespaces at a time: the table of volumes has room for fewer, a raw device for no more units.
const NAMESPACES_MAX: u32 = 1024;
/// Asynchronous events that may be awaited at a time, less one.
const EVENTS_LIMIT: u8 = 3;
/// The size of what identify answers.
const PAGE: usize = 4096;
/// Ranges of one dataset management.
pub const RANGES_MAX: u8 = 255;

/// What an admin command is answered with.
pub enum Answer {
    /// A result of eight bytes.
    Value(u64),
    /// Data.
    Page(Vec<u8>),
    /// Both.
    Told(u64, Vec<u8>),
}

/// Who asks whom, where.
pub struct Asked<'a> {
    /// Of what.
    pub subsystem: &'a Subsystem,
    /// Of these namespaces.
    pub namespaces: &'a [Namespace],
    /// By the host of this controller.
    pub controller: &'a Controller,
    /// At this address of ours.
    pub local: Option<SocketAddr>,
}

/// Puts bytes into a page.
pub fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_text(page: &mut [u8], at: usize, len: usize, text: &str, fill: u8) {
    page[at..at + len].fill(fill);
    let bytes = &text.as_bytes()[..text.len().min(len)];
    put(page, at, bytes);
}

impl Asked<'_> {
    fn active(&self) -> impl Iterator<Item = u32> {
        let all = if self.controller.discovery { &[] } else { self.namespaces };
        let numbers = all.iter().map(|namespace| namespace.number);
        numbers.filter(move |number| self.namespace(*number).is_some())
    }

    fn namespace(&self, number: u32) -> Option<&Namespace> {
        subsystem::find(self.namespaces, number, &self.controller.host.nqn)
    }

    fn is_zoned(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.zones.is_some())
    }

    fn set_of(&self, number: u32) -> Option<u8> {
        self.namespace(number).map(Namespace::command_set)
    }

    /// True if there are namespaces of this command set, or could be.
    fn has(&self, set: u8) -> bool {
        set == COMMAND_SET_NVM || set == COMMAND_SET_ZONED && self.is_zoned()
    }

    /// Identify.
    pub fn identify(&self, command: &Command) -> Result<Answer, Status> {
        let (what, set) = (command.word(10) as u8, (command.word(11) >> 24) as u8);
        let mut page = vec![0; PAGE];
        let namespace = || {
            let namespace = self.namespace(command.nsid());
            namespace.filter(|_| !self.controller.discovery).ok_or(Status::NAMESPACE)
        };
        match what {
            0x01 => self.identify_controller(&mut page),
            _ if self.controller.discovery => return Err(Status::FIELD),
            0x05..=0x07 if !self.has(set) => return Err(Status::COMMAND_SET),
            0x00 => identify_namespace(namespace()?, &mut page),
            0x02 | 0x07 => {
                if command.nsid() >= 0xffff_fffe {
                    return Err(Status::NAMESPACE);
                }
                let of_set = |number: &u32| what == 0x02 || self.set_of(*number) == Some(set);
                let after = self.active().filter(|number| *number > command.nsid());
                for (place, number) in page.chunks_exact_mut(4).zip(after.filter(of_set)) {
                    place.copy_from_slice(&number.to_le_bytes());
                }
            }
            0x03 => {
                // UUID, then the command set.
                put(&mut page, 0, &[3, 16, 0, 0]);
                put(&mut page, 4, &namespace()?.uuid.to_be_bytes());
                put(&mut page, 20, &[4, 1, 0, 0, namespace()?.command_set()]);
            }
            0x05 => match (set, &namespace()?.zones) {
                (COMMAND_SET_ZONED, Some(shape)) => zones::identify_namespace(shape, &mut page),
                (COMMAND_SET_NVM, None) => {}
                _ => return Err(Status::COMMAND_SET),
            },
            // Limits of the NVM command set: write zeroes and verify as long as their fields allow, ranges of trims.
            // Of the zoned one: appends as long as any write.
            0x06 if set == COMMAND_SET_NVM => page[3] = RANGES_MAX,
            0x06 => {}
            0x08 => {
                let namespace = namespace()?;
                put(&mut page, 1, &[1]);
                put(&mut page, 4, &1u32.to_le_bytes());
                put(&mut page, 8, &[u8::from(namespace.read_only)]);
                put(&mut page, 14, &[1]);
            }
            // The one combination of command sets.
            0x1c if self.is_zoned() => {
                page[0] = 1 << COMMAND_SET_NVM | 1 << COMMAND_SET_ZONED;
            }
            0x1c => page[0] = 1 << COMMAND_SET_NVM,
            _ => return Err(Status::FIELD),
        }
        Ok(Answer::Page(page))
    }

    fn identify_controller(&self, page: &mut [u8]) {
        let discovery = self.controller.discovery;
        put_text(page, 4, 20, &self.subsystem.serial, b' ');
        put_text(page, 24, 40, "Weir", b' ');
        put_text(page, 64, 8, env!("CARGO_PKG_VERSION"), b' ');
        put(page, 77, &[(pdu::DATA_BYTES_MAX / PAGE as u32).trailing_zeros() as u8]);
        put(page, 78, &self.controller.id.to_le_bytes());
        put(page, 80, &VERSION.to_le_bytes());
        // Events of namespaces that come, go or change.
        put(page, 92, &EVENTS_OF_NAMESPACES.to_le_bytes());
        put(page, 111, &[if discovery { 2 } else { 1 }]);
        if !discovery {
            // After how long a host may be told to try again, in tenths of a second.
            let delays = status::DELAYS_S.map(|seconds| (seconds as u16 * 10).to_le_bytes());
            put(page, 128, delays.as_flattened());
        }
        // One firmware slot, read only.
        put(page, 259, &[EVENTS_LIMIT, 0b11]);
        // Log pages may be read from an offset on; effects are told.
        put(page, 261, &[0b110, 0]);
        // Keep-alive in seconds.
        put(page, 320, &10u16.to_le_bytes());
        put(page, 514, &QUEUE_ENTRIES_MAX.to_le_bytes());
        // SGLs, and offsets within a capsule.
        put(page, 536, &(1u32 | 1 << 20).to_le_bytes());
        let nqn = if discovery { subsystem::DISCOVERY_NQN } else { &self.subsystem.nqn };
        put(page, 768, nqn.as_bytes());
        let capsule = (pdu::SQE_BYTES as u32 + pdu::IN_CAPSULE_BYTES) / 16;
        put(page, 1792, &capsule.to_le_bytes());
        put(page, 1796, &1u32.to_le_bytes());
        put(page, 1803, &[1]);
        if discovery {
            return;
        }
        // Several controllers, and states of access of which all are the best.
        put(page, 76, &[0b1010]);
        put(page, 342, &[10, 0b1]);
        put(page, 344, &1u32.to_le_bytes());
        put(page, 348, &1u32.to_le_bytes());
        put(page, 512, &[0x66, 0x44]);
        // Directives can be asked for.
        put(page, 256, &(1u16 << 5).to_le_bytes());
        if self.subsystem.placement.is_some() {
            // One endurance group, and flexible data placement.
            put(page, 96, &(1u32 << 4 | 1 << 19).to_le_bytes());
            put(page, 340, &fdp::GROUP.to_le_bytes());
        }
        // The largest number, and most at a time.
        put(page, 516, &NUMBER_MAX.to_le_bytes());
        put(page, 540, &NAMESPACES_MAX.to_le_bytes());
        // Compare, dataset management, write zeroes, verify, none of which a zoned namespace has.
        let optional = if self.is_zoned() { 0 } else { 0b1000_1101u16 };
        put(page, 520, &optional.to_le_bytes());
        // Flushes matter, also for all namespaces at once. Of the writes, one block is whole after a power cut in any
        // namespace (AWUN and AWUPF are 0); each says for itself if it is more.
        put(page, 525, &[0b111]);
    }

    /// A log page.
    pub fn log(&self, command: &Command) -> Result<Answer, Status> {
        let log = match (command.word(10) as u8, self.controller.discovery) {
            (0x70, true) => self.discovery_log(),
            (0x01, _) => vec![0; 64],
            (_, true) => return Err(Status::LOG_PAGE),
            (0x02, _) => self.subsystem.healths.sum().log(),
            (0x03, _) => firmware_log(),
            (0x05, _) => match (command.word(14) >> 24) as u8 {
                set if !self.has(set) => return Err(Status::COMMAND_SET),
                COMMAND_SET_ZONED => effects_log(&zones::IO, &zones::CHANGES),
                _ => effects_log(&command::IO, &command::CHANGES),
            },
            (0x0c, _) => self.access_log(),
            (0x20..=0x23, _) => self.placement_log(command)?,
            _ => return Err(Status::LOG_PAGE),
        };
        self.part_of(command, log)
    }

    /// The part of a log page that a host wants.
    pub fn part_of(&self, command: &Command, log: Vec<u8>) -> Result<Answer, Status> {
        let numd = u64::from(command.word(10) >> 16) | u64::from(command.word(11) & 0xffff) << 16;
        let bytes = (numd + 1) * 4;
        let offset = u64::from(command.word(12)) | u64::from(command.word(13)) << 32;
        if bytes > u64::from(pdu::DATA_BYTES_MAX) || !offset.is_multiple_of(4) {
            return Err(Status::FIELD);
        }
        let Some(rest) = usize::try_from(offset).ok().and_then(|from| log.get(from..)) else {
            return Err(Status::FIELD);
        };
        let mut page = rest[..rest.len().min(bytes as usize)].to_vec();
        page.resize(bytes as usize, 0);
        Ok(Answer::Page(page))
    }

    /// What the logs of data placement tell of the one endurance group.
    fn placement_log(&self, command: &Command) -> Result<Vec<u8>, Status> {
        let placement = self.subsystem.placement.as_ref().ok_or(Status::LOG_PAGE)?;
        if (command.word(11) >> 16) as u16 != fdp::GROUP {
            return Err(Status::FIELD);
        }
        let namespaces = self.namespaces;
        Ok(match command.word(10) as u8 {
            0x20 => fdp::configurations_log(placement, namespaces),
            0x21 => fdp::usage_log(namespaces),
            0x22 => fdp::statistics_log(&self.subsystem.healths.sum()),
            _ => placement.events_log(command.word(10) & 1 << 8 != 0),
        })
    }

    /// Directive receive: which directives there are for a namespace.
    pub fn directives(&self, command: &Command) -> Result<Answer, Status> {
        let (kind, operation) = ((command.word(11) >> 8) as u8, command.word(11) as u8);
        self.namespace(command.nsid()).ok_or(Status::NAMESPACE)?;
        if (kind, operation) != (0, 1) || self.controller.discovery {
            return Err(Status::FIELD);
        }
        let mut page = vec![0; PAGE];
        let placed = u8::from(self.subsystem.placement.is_some()) << fdp::DIRECTIVE;
        // Identify and data placement are supported, on, and stay so when the controller is reset.
        for at in [0, 32, 64] {
            page[at] = 1 | placed;
        }
        Ok(Answer::Page(page))
    }

    /// The one group of namespaces: all are reached as well as can be.
    fn access_log(&self) -> Vec<u8> {
        let numbers: Vec<u32> = self.active().collect();
        let mut log = vec![0; 16 + 32];
        put(&mut log, 8, &1u16.to_le_bytes());
        put(&mut log, 16, &1u32.to_le_bytes());
        put(&mut log, 20, &(numbers.len() as u32).to_le_bytes());
        put(&mut log, 32, &[1]);
        log.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        // As long as it may become: a host that reads it by parts must not run beyond its end.
        log.resize(log.len().max(16 + 32 + 4 * NAMESPACES_MAX as usize), 0);
        log
    }

    /// Where the subsystem is, for hosts that may connect to it.
    fn discovery_log(&self) -> Vec<u8> {
        let admitted = self.subsystem.admits(&self.controller.host.nqn);
        let port = self.subsystem.port.load(Ordering::Relaxed);
        let mut log = vec![0; 1024];
        let Some(local) = self.local.filter(|_| admitted && port > 0) else { return log };
        put(&mut log, 8, &1u64.to_le_bytes());
        let mut entry = vec![0; 1024];
        let ip = local.ip().to_canonical();
        // TCP, its family, an NVM subsystem; no secure channel is needed.
        put(&mut entry, 0, &[3, if ip.is_ipv4() { 1 } else { 2 }, 2, 2]);
        put(&mut entry, 4, &[1, 0, 0xff, 0xff, 32, 0]);
        put_text(&mut entry, 32, 32, &port.to_string(), b' ');
        put(&mut entry, 256, self.subsystem.nqn.as_bytes());
        put_text(&mut entry, 512, 256, &ip.to_string(), b' ');
        log.extend(entry);
        log
    }
}

fn identify_namespace(namespace: &Namespace, page: &mut [u8]) {
    // Of zones only the capacity can be written.
    let capacity = namespace
        .zones
        .map_or(namespace.blocks, |shape| namespace.blocks / shape.size * shape.capacity);
    put(page, 0, &namespace.blocks.to_le_bytes());
    for at in [8, 16] {
        put(page, at, &capacity.to_le_bytes());
    }
    // Several controllers; what is trimmed or was not written reads as zeroes, also by write zeroes.
    page[30] = 1;
    page[33] = 0b1001;
    if namespace.atomic.blocks > 1 {
        let Atomic { blocks, border_every, border_first } = namespace.atomic;
        // It says so of itself; then by how much, in normal operation and when power fails, and where its borders are. One
        // less each, but for the first border.
        page[24] |= 0b10;
        for at in [34, 36] {
            put(page, at, &(blocks - 1).to_le_bytes());
        }
        for at in [40, 44] {
            put(page, at, &border_every.saturating_sub(1).to_le_bytes());
        }
        put(page, 42, &border_first.to_le_bytes());
    }
    put(page, 92, &1u32.to_le_bytes());
    page[99] = u8::from(namespace.read_only);
    if namespace.handles.count > 0 {
        put(page, 102, &fdp::GROUP.to_le_bytes());
    }
    put(page, 104, &namespace.uuid.to_be_bytes());
    // The one format: blocks of 4 KiB, or in zones of a page of the flash.
    page[130] = namespace.block_shift;
}

fn firmware_log() -> Vec<u8> {
    let mut log = vec![0; 512];
    log[0] = 1;
    put_text(&mut log, 8, 8, env!("CARGO_PKG_VERSION"), b' ');
    log
}

/// Which commands there are, and whether they change data.
fn effects_log(io: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut log = vec![0; PAGE];
    for opcode in command::ADMIN {
        log[usize::from(opcode) * 4] = 1;
    }
    for opcode in io {
        log[1024 + usize::from(*opcode) * 4] = if changes.contains(opcode) { 0b11 } else { 1 };
    }
    log
}
