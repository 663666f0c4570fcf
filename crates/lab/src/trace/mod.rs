//! Traces: block requests that were recorded somewhere, read as a stream of [`Record`]s in constant
//! memory, whatever format they are in.
//!
//! - [`Reader`] opens a file, sees through gzip and zstd, finds out the format ([`detect`]) and
//!   yields records; [`Writer`] writes them again, in the same or another format.
//! - One file per format: a text format is a [`Text`] of two functions, and one line in
//!   [`Format::text`]. The binary ones are [`weir`] (our own, compact) and [`blktrace`].
//! - [`stat`] says what a trace does.
//!
//! Invariants of what a [`Reader`] yields: the first record has time 0 and time never goes back;
//! reads and writes have 1 byte to [`LENGTH_MAX`], a trim has at least one; no record ends beyond
//! [`ADDRESS_MAX`]; a flush has neither address nor length. What cannot be read so is an error that
//! names file, place and reason, or, on request, a counted repair ([`Repairs`]).

mod alibaba;
mod blkparse;
mod blktrace;
mod block_rq;
mod cloudphysics;
mod detect;
mod error;
mod fields;
mod fio;
mod lines;
mod mqsim;
mod msr;
mod reader;
mod source;
mod spc;
pub mod stat;
mod systor;
mod tencent;
#[cfg(test)]
mod tests;
mod weir;
mod writer;

pub use error::{Place, TraceError};
pub use reader::{Options, Reader, Repairs};
pub use writer::{WriteError, Writer};

use std::collections::BTreeMap;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Op {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
    /// The bytes are not needed any more.
    Trim,
    /// Everything acknowledged before becomes durable.
    Flush,
}

impl Op {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Trim, Self::Flush];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::Flush => "flush",
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record {
    /// When it was issued, from the first record of the trace.
    pub time_ns: u64,
    /// What it asks for.
    pub op: Op,
    /// Durable before it is answered: writes and trims only.
    pub fua: bool,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Which device, disk or stream of those that were recorded.
    pub volume: u32,
    /// How long it took where it was recorded, if that is known.
    pub response_ns: Option<u64>,
}

impl Record {
    /// The first byte after it.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Whether it belongs to a sample of one in `share` regions of 1 MiB, chosen by volume and
    /// address alone, so that what happens within a region stays whole. Flushes always do.
    pub fn is_sampled(&self, share: u64) -> bool {
        let region = self.offset >> 20 ^ u64::from(self.volume) << 44;
        self.op == Op::Flush || flash::Random::new(region).below(share) == 0
    }
}

/// Longest read or write: larger ones come from misread fields.
pub const LENGTH_MAX: u64 = 1 << 30;
/// No record ends beyond it (4 EiB), so that sums of addresses do not overflow.
pub const ADDRESS_MAX: u64 = 1 << 62;

/// A file format of traces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Weir's own: compact, with checksums.
    Weir,
    /// MSR Cambridge CSV.
    Msr,
    /// SYSTOR '17 CSV.
    Systor,
    /// CloudPhysics CSV.
    CloudPhysics,
    /// Alibaba block traces CSV.
    Alibaba,
    /// Tencent CBS CSV.
    Tencent,
    /// SPC, as of the UMass repository.
    Spc,
    /// What `blkparse` prints.
    Blkparse,
    /// What `blktrace` records, one file.
    Blktrace,
    /// fio's I/O log, version 2 or 3.
    Fio,
    /// The kernel's block_rq events as CSV.
    BlockRq,
    /// MQSim's and DiskSim's ASCII.
    Mqsim,
}

impl Format {
    /// Every format. Where two fit a text equally well, the first is taken.
    pub const ALL: [Self; 12] = [
        Self::Weir,
        Self::Blktrace,
        Self::Fio,
        Self::Msr,
        Self::Systor,
        Self::Alibaba,
        Self::Tencent,
        Self::CloudPhysics,
        Self::Spc,
        Self::Blkparse,
        Self::BlockRq,
        Self::Mqsim,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Msr => "msr",
            Self::Systor => "systor",
            Self::CloudPhysics => "cloudphysics",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Spc => "spc",
            Self::Blkparse => "blkparse",
            Self::Blktrace => "blktrace",
            Self::Fio => "fio",
            Self::BlockRq => "block-rq",
            Self::Mqsim => "mqsim",
        }
    }

    /// The format of this name; `Err` lists those there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        (Self::ALL.into_iter().find(|format| format.name() == name))
            .ok_or_else(|| format!("no trace format is called {name:?}; there are {}", names()))
    }

    /// How its lines are read and written; `None` for a binary format.
    fn text(self) -> Option<&'static Text> {
        match self {
            Self::Weir | Self::Blktrace => None,
            Self::Msr => Some(&msr::TEXT),
            Self::Systor => Some(&systor::TEXT),
            Self::CloudPhysics => Some(&cloudphysics::TEXT),
            Self::Alibaba => Some(&alibaba::TEXT),
            Self::Tencent => Some(&tencent::TEXT),
            Self::Spc => Some(&spc::TEXT),
            Self::Blkparse => Some(&blkparse::TEXT),
            Self::Fio => Some(&fio::TEXT),
            Self::BlockRq => Some(&block_rq::TEXT),
            Self::Mqsim => Some(&mqsim::TEXT),
        }
    }
}

/// What is wrong with a line, for people: what stands there and what should.
type Reason = String;

/// Makes the line of a record.
type Print = fn(&Record, &mut Context) -> Result<String, Reason>;

/// A text format: one record a line.
struct Text {
    /// The record of a line; `None` for a line that holds none and is sound (a header, a comment).
    /// Times are as they stand in the file.
    parse: fn(&str, &mut Context) -> Result<Option<Record>, Reason>,
    /// What stands before the first line.
    header: Option<&'static str>,
    /// The line of a record; `None` if the format is not written.
    print: Option<Print>,
}

/// What a line means beyond its own text.
struct Context {
    /// Bytes of a sector, for formats that count in sectors.
    sector_bytes: u64,
    /// The action of blktrace that makes a record, such as 'D'.
    action: char,
    /// Volumes that have names.
    names: Names,
    /// Time so far, for formats that give waits.
    clock_ns: u64,
    /// What the header said, for formats with versions.
    version: u32,
    /// Nothing but a summary follows.
    summary: bool,
}

impl Context {
    fn new(sector_bytes: u32, action: char) -> Self {
        Self {
            sector_bytes: u64::from(sector_bytes),
            action,
            names: Names::default(),
            clock_ns: 0,
            version: 0,
            summary: false,
        }
    }

    /// Bytes of a range in sectors.
    fn sectors(&self, first: u64, count: u64) -> Result<(u64, u64), Reason> {
        let bytes = |name: &str, sectors: u64| {
            (sectors.checked_mul(self.sector_bytes))
                .ok_or_else(|| format!("the {name} is {sectors} sectors: beyond any device"))
        };
        Ok((bytes("address", first)?, bytes("length", count)?))
    }
}

/// Numbers for volumes that have names, in the order of appearance.
#[derive(Default)]
struct Names {
    by_name: BTreeMap<String, u32>,
    names: Vec<String>,
}

/// A trace with more names has misread fields.
const NAMES_MAX: usize = 1 << 16;

impl Names {
    fn number(&mut self, name: &str) -> Result<u32, Reason> {
        if let Some(&number) = self.by_name.get(name) {
            return Ok(number);
        }
        if self.names.len() >= NAMES_MAX {
            return Err(format!("{name:?} is volume number {NAMES_MAX}: too many"));
        }
        let number = self.names.len() as u32;
        self.by_name.insert(name.into(), number);
        self.names.push(name.into());
        Ok(number)
    }
}
