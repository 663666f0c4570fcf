//! Commands of fabrics: connect, and the properties of a controller.

use super::admin::VERSION;
use super::command::Command;
use super::pdu::{u16_at, u64_at};
use super::status::Status;
use super::subsystem::{
    Controller, DISCOVERY_NQN, Host, NQN_BYTES_MAX, QUEUE_ENTRIES_MAX, Seat, Subsystem,
};
use flash::MILLISECOND;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Set a property.
pub const PROPERTY_SET: u8 = 0x00;
/// Connect a queue.
pub const CONNECT: u8 = 0x01;
/// Get a property.
pub const PROPERTY_GET: u8 = 0x04;
/// A message of authentication.
pub const AUTHENTICATION_SEND: u8 = 0x05;
/// Asks for one.
pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
/// In the result of connect: the host has to authenticate on this queue.
pub const AUTHENTICATE: u64 = 1 << 17;
/// Bytes of the data of a connect.
pub const CONNECT_BYTES: u32 = 1024;
/// The controller's number, of a host that wants a new one.
const ANY: u16 = 0xffff;

/// A queue that was connected.
pub struct Queue {
    /// Its place.
    pub seat: Seat,
    /// Commands that it holds.
    pub entries: u16,
    /// How long its host may be silent, in nanoseconds; 0: for ever.
    pub keep_alive_ns: u64,
}

/// Text of a field that a NUL ends.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&field[..end]).ok()?;
    (!text.is_empty() && text.len() <= NQN_BYTES_MAX).then_some(text)
}

/// Why a queue is not connected, and the result that goes with it.
pub struct Refused {
    /// The status.
    pub status: Status,
    /// Which parameter is wrong, if one is: its first byte, and whether that is in the data.
    pub result: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// A field of the data is wrong.
fn wrong_data(first: u64) -> Refused {
    Refused { status: Status::CONNECT_PARAMETER, result: first | 1 << 16 }
}

/// A field of the command is wrong.
fn wrong_command(first: u64) -> Refused {
    Refused { status: Status::CONNECT_PARAMETER, result: first }
}

/// The names of the host and of the subsystem that it wants, for the log.
pub fn names(data: &[u8]) -> (&str, &str) {
    (text(&data[512..768]).unwrap_or("?"), text(&data[256..512]).unwrap_or("?"))
}

/// Why it was refused, for the log.
pub fn reason(status: Status) -> &'static str {
    match status {
        Status::CONNECT_HOST => "it may not connect: [nvme] hosts and keys_file say who may",
        Status::CONNECT_PARAMETER => "it wants a subsystem, controller or queue that there is not",
        Status::CONNECT_BUSY => "the server is full, or stops",
        _ => "it asks for what cannot be",
    }
}

/// Connects a queue.
///
/// # Errors
/// Why not.
pub fn connect(
    subsystem: &Arc<Subsystem>,
    command: &Command,
    data: &[u8],
) -> Result<Queue, Refused> {
    let (format, queue) = (u16_at(&command.0, 40), u16_at(&command.0, 42));
    let (size, keep_alive_ms) = (u16_at(&command.0, 44), command.word(12));
    if format != 0 {
        return Err(Status::CONNECT_FORMAT.into());
    }
    let wanted = text(&data[256..512]).ok_or_else(|| wrong_data(256))?;
    let nqn = text(&data[512..768]).ok_or_else(|| wrong_data(512))?;
    let discovery = wanted == DISCOVERY_NQN;
    if !discovery && wanted != subsystem.nqn {
        return Err(wrong_data(256));
    }
    if size == 0 || size >= QUEUE_ENTRIES_MAX {
        return Err(wrong_command(44));
    }
    if !discovery && !subsystem.admits(nqn) {
        return Err(Status::CONNECT_HOST.into());
    }
    let id = data[..16].try_into().unwrap_or_default();
    let (host, controller) = (Host { nqn: nqn.into(), id }, u16_at(data, 16));
    let seat = match queue {
        0 if controller == ANY => subsystem.open(host, discovery)?,
        0 => return Err(wrong_data(16)),
        _ => subsystem.join(&host, controller, queue)?,
    };
    let keep_alive_ns = u64::from(keep_alive_ms) * MILLISECOND;
    Ok(Queue { seat, entries: size + 1, keep_alive_ns })
}

/// The value of a property.
///
/// # Errors
/// There is none of that size.
pub fn get(controller: &Controller, command: &Command) -> Result<u64, Status> {
    let wide = command.0[40] & 0b111 == 1;
    match (command.word(11), wide) {
        // Entries of a queue, contiguous; 10 s to get ready; the NVM command set, and others beside it.
        (0x00, true) => {
            let sets = 1 << 37 | 1 << 43;
            Ok(u64::from(QUEUE_ENTRIES_MAX - 1) | 1 << 16 | 20 << 24 | sets)
        }
        (0x08, false) => Ok(VERSION.into()),
        (0x14, false) => Ok(controller.configuration.load(Ordering::Acquire).into()),
        (0x1c, false) => Ok(controller.state().into()),
        _ => Err(Status::FIELD),
    }
}

/// Sets a property.
///
/// # Errors
/// It cannot be set, or not so.
pub fn set(controller: &Controller, command: &Command) -> Result<(), Status> {
    let (wide, value) = (command.0[40] & 0b111 == 1, u64_at(&command.0, 48));
    if command.word(11) != 0x14 || wide {
        return Err(Status::FIELD);
    }
    // Entries of 64 and 16 bytes for I/O, pages of 4 KiB, the NVM command set or all there are.
    let enabled = value & 1 != 0;
    let known = matches!(value >> 4 & 0b111, 0 | 0b110) && value >> 7 & 0xf == 0;
    let sizes = value >> 16 & 0xff == 0x46 || controller.discovery;
    if enabled && !(known && sizes) {
        return Err(Status::FIELD);
    }
    controller.configure(value as u32);
    Ok(())
}
