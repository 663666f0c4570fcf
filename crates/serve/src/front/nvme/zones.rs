//! The zoned command set: what a command asks of a zoned namespace, and the bytes that tell of its zones.
//!
//! A zone of the host has the size of a power of two, as hosts find zones by shifts, and of it only its capacity
//! can be written.

use super::admin::put;
use super::command::{self, Command, FUA, Task};
use super::pdu::{DATA_BYTES_MAX, u64_at};
use super::status::Status;
use super::subsystem::Namespace;
use crate::volume::{Kind, ZoneWork};
use flash::ZoneError;
use ftl::raw::zones::{Zone, ZoneAction, ZoneState};

/// Zone management send.
pub const MANAGE: u8 = 0x79;
/// Zone management receive.
pub const REPORT: u8 = 0x7a;
/// Zone append.
pub const APPEND: u8 = 0x7d;
/// I/O commands that zoned namespaces have.
pub const IO: [u8; 6] = [command::FLUSH, command::WRITE, command::READ, MANAGE, REPORT, APPEND];
/// Of them those that change data.
pub const CHANGES: [u8; 3] = [command::WRITE, MANAGE, APPEND];

/// Bytes of a descriptor in a report, and of what precedes them.
const DESCRIPTOR_BYTES: usize = 64;
/// Written in order, from the start: the only type there is.
const TYPE_SEQUENTIAL: u8 = 2;
/// Attribute: it became full without the host.
const FINISHED_BY_CONTROLLER: u8 = 1;
/// The write pointer of a zone that has none.
const NO_POINTER: u64 = u64::MAX;

/// What is the same of all zones of a namespace. In blocks of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ZoneShape {
    /// From the start of one to that of the next, a power of two.
    pub size: u64,
    /// Of it what can be written.
    pub capacity: u64,
    /// That may be open at a time; 0: any number.
    pub open_max: u32,
    /// That may be active at a time; 0: any number.
    pub active_max: u32,
}

/// What an I/O command asks of its namespace, whose zones are of this shape.
///
/// # Errors
/// What is wrong with it.
pub fn task(command: &Command, namespace: &Namespace, shape: &ZoneShape) -> Result<Task, Status> {
    let (opcode, control) = (command.opcode(), command.word(12));
    if !IO.contains(&opcode) {
        return Err(Status::OPCODE);
    }
    if opcode == command::FLUSH {
        return Ok(Task { kind: Kind::Flush, offset: 0, len: 0 });
    }
    if CHANGES.contains(&opcode) && namespace.read_only {
        return Err(Status::PROTECTED);
    }
    let first = u64_at(&command.0, 40);
    let offset = first << namespace.block_shift;
    if opcode == MANAGE {
        let kind = manage(command, first, namespace, shape)?;
        return Ok(Task {
            kind,
            offset: if first < namespace.blocks { offset } else { 0 },
            len: 0,
        });
    }
    if first >= namespace.blocks {
        return Err(Status::RANGE);
    }
    if opcode == REPORT {
        let (kind, len) = report(command)?;
        return Ok(Task { kind, offset, len });
    }
    // Neither protection information nor directives.
    if control >> 26 & 0xf != 0 || opcode != command::READ && control >> 20 & 0xf != 0 {
        return Err(Status::FIELD);
    }
    let blocks = u64::from(control & 0xffff) + 1;
    if first + blocks > namespace.blocks {
        return Err(Status::RANGE);
    }
    let bytes = blocks << namespace.block_shift;
    if bytes > u64::from(DATA_BYTES_MAX) {
        return Err(Status::FIELD);
    }
    let (inside, fua) = (first % shape.size, control & FUA != 0);
    let work = match opcode {
        APPEND if inside != 0 => return Err(Status::FIELD),
        APPEND => ZoneWork::Append { fua },
        // Neither a read nor a write goes from one zone to the next.
        _ if inside + blocks > shape.size => return Err(ZoneError::Boundary.into()),
        command::READ => ZoneWork::Read,
        _ => ZoneWork::Write { fua },
    };
    Ok(Task { kind: Kind::Zone(work), offset, len: bytes as u32 })
}

fn manage(
    command: &Command,
    first: u64,
    namespace: &Namespace,
    shape: &ZoneShape,
) -> Result<Kind, Status> {
    let (word, all) = (command.word(13), command.word(13) & 1 << 8 != 0);
    let action = match word as u8 {
        1 => ZoneAction::Close,
        2 => ZoneAction::Finish,
        3 => ZoneAction::Open,
        4 => ZoneAction::Reset,
        5 => ZoneAction::Offline,
        // There are no extensions of descriptors to be set, and no random writes in a window.
        _ => return Err(Status::FIELD),
    };
    if !all && first >= namespace.blocks {
        return Err(Status::RANGE);
    }
    if !all && !first.is_multiple_of(shape.size) {
        return Err(Status::FIELD);
    }
    Ok(Kind::Zone(ZoneWork::Manage { action, all }))
}

fn report(command: &Command) -> Result<(Kind, u32), Status> {
    let (bytes, word) = ((u64::from(command.word(12)) + 1) * 4, command.word(13));
    let state = match (word >> 8) as u8 {
        0 => None,
        1 => Some(ZoneState::Empty),
        2 => Some(ZoneState::ImplicitlyOpen),
        3 => Some(ZoneState::ExplicitlyOpen),
        4 => Some(ZoneState::Closed),
        5 => Some(ZoneState::Full),
        6 => Some(ZoneState::ReadOnly),
        7 => Some(ZoneState::Offline),
        _ => return Err(Status::FIELD),
    };
    // Reports are plain ones: no zone has an extension.
    if word as u8 != 0 || bytes > u64::from(DATA_BYTES_MAX) {
        return Err(Status::FIELD);
    }
    let most = (bytes as u32 / DESCRIPTOR_BYTES as u32).saturating_sub(1);
    let partial = word & 1 << 16 != 0;
    Ok((Kind::Zones { state, most, partial }, bytes as u32))
}

/// The `bytes` of a report of zones, of which there are `count`.
pub fn report_page(namespace: &Namespace, zones: &[Zone], count: u64, bytes: usize) -> Vec<u8> {
    let mut page = vec![0; DESCRIPTOR_BYTES * (zones.len() + 1)];
    put(&mut page, 0, &count.to_le_bytes());
    let Some(shape) = &namespace.zones else { return page };
    for (zone, into) in zones.iter().zip(page.chunks_exact_mut(DESCRIPTOR_BYTES).skip(1)) {
        let start = u64::from(zone.index) * shape.size;
        let written =
            (u64::from(zone.written) * flash::BLOCK_BYTES as u64) >> namespace.block_shift;
        let (state, pointer) = match zone.state {
            ZoneState::Empty => (0x1, start),
            ZoneState::ImplicitlyOpen => (0x2, start + written),
            ZoneState::ExplicitlyOpen => (0x3, start + written),
            ZoneState::Closed => (0x4, start + written),
            ZoneState::ReadOnly => (0xd, NO_POINTER),
            ZoneState::Full => (0xe, NO_POINTER),
            ZoneState::Offline => (0xf, NO_POINTER),
        };
        let attributes = if zone.cut_short { FINISHED_BY_CONTROLLER } else { 0 };
        put(into, 0, &[TYPE_SEQUENTIAL, state << 4, attributes]);
        put(into, 8, &shape.capacity.to_le_bytes());
        put(into, 16, &start.to_le_bytes());
        put(into, 24, &pointer.to_le_bytes());
    }
    page.resize(bytes, 0);
    page
}

/// What identify says of a namespace for the zoned command set.
pub fn identify_namespace(shape: &ZoneShape, page: &mut [u8]) {
    // One less than there may be; all ones: there is no limit.
    put(page, 4, &shape.active_max.wrapping_sub(1).to_le_bytes());
    put(page, 8, &shape.open_max.wrapping_sub(1).to_le_bytes());
    put(page, 2816, &shape.size.to_le_bytes());
}
