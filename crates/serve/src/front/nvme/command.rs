//! Commands: the fields of a submission queue entry, and what an I/O command asks of a volume.

use super::fdp;
use super::pdu::{DATA_BYTES_MAX, SQE_BYTES, u16_at, u32_at, u64_at};
use super::status::Status;
use super::subsystem::Namespace;
use crate::volume::Kind;

/// Flush.
pub const FLUSH: u8 = 0x00;
/// Write.
pub const WRITE: u8 = 0x01;
/// Read.
pub const READ: u8 = 0x02;
/// Compare.
pub const COMPARE: u8 = 0x05;
/// Write zeroes.
pub const WRITE_ZEROES: u8 = 0x08;
/// Dataset management, of which deallocate is done.
pub const TRIM: u8 = 0x09;
/// Verify.
pub const VERIFY: u8 = 0x0c;
/// I/O management receive.
pub const MANAGE_RECEIVE: u8 = 0x12;
/// I/O commands that there are.
pub const IO: [u8; 8] = [FLUSH, WRITE, READ, COMPARE, WRITE_ZEROES, TRIM, VERIFY, MANAGE_RECEIVE];

/// Of them those that change data.
pub const CHANGES: [u8; 3] = [WRITE, WRITE_ZEROES, TRIM];

/// Get log page.
pub const GET_LOG: u8 = 0x02;
/// Identify.
pub const IDENTIFY: u8 = 0x06;
/// Abort.
pub const ABORT: u8 = 0x08;
/// Set features.
pub const SET_FEATURES: u8 = 0x09;
/// Get features.
pub const GET_FEATURES: u8 = 0x0a;
/// The feature by which a host tells how it behaves.
pub const HOST_BEHAVIOR: u8 = 0x16;
/// Asynchronous event request.
pub const AWAIT_EVENT: u8 = 0x0c;
/// Keep alive.
pub const KEEP_ALIVE: u8 = 0x18;
/// Directive receive.
pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
/// Admin commands that there are.
pub const ADMIN: [u8; 8] = [
    GET_LOG,
    IDENTIFY,
    ABORT,
    SET_FEATURES,
    GET_FEATURES,
    AWAIT_EVENT,
    KEEP_ALIVE,
    DIRECTIVE_RECEIVE,
];
/// A command of fabrics, which another field tells apart.
pub const FABRICS: u8 = 0x7f;

/// Durable before the completion.
pub const FUA: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
const TRIM_RANGES: u32 = 1 << 2;

/// A submission queue entry.
#[derive(Clone, Debug)]
pub struct Command(pub [u8; SQE_BYTES]);

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// In its capsule.
    Capsule,
    /// It goes in PDUs of its own.
    Apart,
}

/// A range of a namespace, in bytes, and what to do with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Task {
    /// What.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Command {
    /// What to do.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// The host's name for it.
    pub fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Which namespace.
    pub fn nsid(&self) -> u32 {
        self.word(1)
    }

    /// A word of the entry.
    pub fn word(&self, number: usize) -> u32 {
        u32_at(&self.0, number * 4)
    }

    /// Where the data is, if it has the length that the command wants; `capsule` bytes came with it.
    pub fn place(&self, wanted: u32, capsule: u32) -> Result<Place, Status> {
        let kind = self.0[39];
        let len = u32_at(&self.0, 32);
        if self.0[1] >> 6 == 0 || self.0[1] & 0b11 != 0 {
            return Err(Status::FIELD);
        }
        let place = match kind {
            0x01 if u64_at(&self.0, 24) != 0 => return Err(Status::SGL_OFFSET),
            0x01 => Place::Capsule,
            0x5a => Place::Apart,
            _ => return Err(Status::SGL_KIND),
        };
        let there = if place == Place::Capsule { wanted } else { 0 };
        if len != wanted || capsule != there {
            return Err(Status::SGL_LENGTH);
        }
        Ok(place)
    }

    /// How many bytes came in the capsule, if they are those of the command and at least `least`. There may be more
    /// than the command needs: Linux sends a page for the ranges of a dataset management, however many there are.
    pub fn enclosed(&self, least: u32, capsule: u32) -> Result<u32, Status> {
        let len = u32_at(&self.0, 32).max(least);
        match self.place(len, capsule)? {
            Place::Capsule => Ok(len),
            Place::Apart => Err(Status::SGL_KIND),
        }
    }

    /// Bytes that the host takes of an answer.
    pub fn room(&self) -> Result<u32, Status> {
        if self.0[39] != 0x5a {
            return Err(Status::SGL_KIND);
        }
        Ok(u32_at(&self.0, 32))
    }

    /// Bytes that the ranges of a dataset management have.
    pub fn ranges_bytes(&self) -> u32 {
        (u32::from(self.0[40]) + 1) * 16
    }

    /// True if it is a dataset management that says which blocks are not needed; the rest are hints.
    pub fn trims(&self) -> bool {
        self.word(11) & TRIM_RANGES != 0
    }

    /// What an I/O command, no dataset management, asks of its namespace.
    pub fn task(&self, namespace: &Namespace) -> Result<Task, Status> {
        let (control, fua) = (self.word(12), self.word(12) & FUA != 0);
        let kind = match self.opcode() {
            FLUSH => return Ok(Task { kind: Kind::Flush, offset: 0, len: 0 }),
            WRITE => Kind::Write { fua, handle: self.handle(namespace)? },
            READ | VERIFY => Kind::Read,
            COMPARE => Kind::Compare,
            WRITE_ZEROES => {
                let no_hole = control & DEALLOCATE == 0;
                Kind::Zeroes { fua, no_hole, fast: false }
            }
            _ => return Err(Status::OPCODE),
        };
        let changes = matches!(kind, Kind::Write { .. } | Kind::Zeroes { .. });
        if changes && namespace.read_only {
            return Err(Status::PROTECTED);
        }
        // Protection information: the format has none.
        if control >> 26 & 0xf != 0 {
            return Err(Status::FIELD);
        }
        let (first, blocks) = (u64_at(&self.0, 40), u64::from(control & 0xffff) + 1);
        if first.checked_add(blocks).is_none_or(|end| end > namespace.blocks) {
            return Err(Status::RANGE);
        }
        let len = (blocks << namespace.block_shift) as u32;
        if !matches!(kind, Kind::Zeroes { .. }) && len > DATA_BYTES_MAX {
            return Err(Status::FIELD);
        }
        Ok(Task { kind, offset: first << namespace.block_shift, len })
    }
}

impl Command {
    /// The volume's handle that a write names, if it names one.
    fn handle(&self, namespace: &Namespace) -> Result<Option<u8>, Status> {
        let named = fdp::named(self)?;
        Ok(named.map(|identifier| namespace.handles.of(identifier).0))
    }
}

/// Most bytes of one trim.
pub const TRIM_BYTES_MAX: u64 = (1 << 32) - crate::volume::BLOCK;

/// The ranges, in bytes, that a dataset management names: offset and length.
pub fn trims(ranges: &[u8], namespace: &Namespace) -> Result<Vec<(u64, u64)>, Status> {
    if namespace.zones.is_some() {
        return Err(Status::OPCODE);
    }
    if namespace.read_only {
        return Err(Status::PROTECTED);
    }
    let mut trims = Vec::new();
    for range in ranges.chunks_exact(16) {
        let (blocks, first) = (u64::from(u32_at(range, 4)), u64_at(range, 8));
        if first.checked_add(blocks).is_none_or(|end| end > namespace.blocks) {
            return Err(Status::RANGE);
        }
        if blocks > 0 {
            trims.push((first << namespace.block_shift, blocks << namespace.block_shift));
        }
    }
    Ok(trims)
}
