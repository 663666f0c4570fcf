//! What a queue has under way, and what waits there for room.

use super::command::{self, Task};
use super::status::Status;
use crate::volume::Kind;

/// A request in flight.
pub struct Flight {
    /// Of which command.
    pub command: u16,
    pub task: Task,
    pub volume: usize,
    /// The command wants the data that is read.
    pub sends: bool,
    /// Its data comes apart.
    pub apart: bool,
    /// Once the host was asked for that: the next byte of it.
    pub due: Option<u32>,
    /// A digest of its data was wrong.
    pub spoilt: bool,
    /// It waits without memory until the limits of its volume let it in.
    pub waits: bool,
    /// One of many of its command.
    pub group: Option<u32>,
    /// Not the first of these.
    pub follows: bool,
}

/// What waits for room. The range of a trim may be longer than one request can be: it goes out in parts, so that
/// what waits has a bounded size, whatever a host names.
pub struct Waiting {
    pub command: u16,
    pub kind: Kind,
    pub offset: u64,
    pub len: u64,
    pub volume: usize,
    pub sends: bool,
    pub group: Option<u32>,
    pub follows: bool,
}

impl Waiting {
    /// What goes out next of it.
    pub fn next(&self) -> Task {
        let len = self.len.min(command::TRIM_BYTES_MAX) as u32;
        Task { kind: self.kind, offset: self.offset, len }
    }
}

/// A command that is several requests.
pub struct Group {
    pub left: u64,
    pub status: Status,
}

impl Task {
    /// Memory that a request holds.
    pub fn held_bytes(&self) -> u64 {
        match self.kind {
            kind if kind.reads() || kind.takes_data() => self.len.into(),
            _ => 0,
        }
    }
}
