//! A blocking client of a Weir server in raw-unit mode: each unit of the device is read, written and
//! erased on its own, and tells its state; or whole raw blocks are kept by an ID ([`Blocks`]). And of a store ([`Store`]).
//!
//! ```no_run
//! let device = client::Device::open("nbd+unix:///?socket=weir-data/nbd.sock")?
//!     .with_http(std::path::Path::new("weir-data/control.sock"));
//! let mut unit = device.unit(0)?;
//! let block = vec![7; unit.shape().raw_block_bytes as usize];
//! unit.erase(0)?;
//! unit.write(0, &block)?;
//! let mut granule = vec![0; unit.shape().granule_bytes as usize];
//! unit.read(0, &mut granule)?;
//! println!("{} raw blocks are erased", unit.status()?.raw_blocks_erased);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A handle has a connection of its own and one request under way at a time: handles of different
//! units, or several of one, work side by side in threads. Misuse (a write of what is not erased, a
//! read of what is not written) comes back as [`Error::Refused`] with the server's reason, and the
//! handle stays good.
#![warn(missing_docs)]

mod address;
mod blocks;
pub mod frames;
pub mod http;
pub mod nvme;
pub mod percent;
pub mod store;
pub mod wire;

pub use address::{Address, Stream, parse};
pub use blocks::{Block, Blocks};
pub use http::Place;
pub use store::Store;

use serde::Deserialize;
use std::fmt;
use std::io;
use std::time::Duration;
use wire::{Connection, command};

/// How long a server may take to answer one request.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest payload of one request.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Why something did not happen.
#[derive(Debug)]
pub enum Error {
    /// The connection.
    Io(io::Error),
    /// The server said no; the connection is as good as before.
    Refused {
        /// NBD's number of the error; over HTTP the status code.
        code: u32,
        /// The reason, in the server's words.
        message: String,
    },
    /// The server said what no NBD server says.
    Protocol(String),
    /// The caller's mistake, or no such thing on that server.
    Usage(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection broke: {error}"),
            Self::Refused { message, .. } => write!(f, "the server refused: {message}"),
            Self::Protocol(what) | Self::Usage(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What one unit is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Bytes of what is erased at once.
    pub raw_block_bytes: u64,
    /// Bytes of what is programmed at once.
    pub page_bytes: u64,
    /// Reads start and end at multiples of this.
    pub granule_bytes: u64,
    /// A write fills a whole raw block; else whole pages, in order.
    pub whole_blocks: bool,
}

impl Shape {
    /// From the description of an export: `key=value` words, of which unknown ones do not matter.
    fn of_description(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let bytes = |key: &str| value(key)?.parse().ok().filter(|&bytes: &u64| bytes > 0);
        Some(Self {
            raw_block_bytes: bytes("raw_block_bytes")?,
            page_bytes: bytes("page_bytes")?,
            granule_bytes: bytes("granule_bytes")?,
            whole_blocks: value("write")? == "block",
        })
    }
}

/// State of a unit.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct UnitStatus {
    /// Its number.
    pub unit: u32,
    /// Requests under way.
    pub requests: u32,
    /// Reads of pages waiting or running.
    pub reads_queued: u32,
    /// Programs waiting or running.
    pub writes_queued: u32,
    /// Erases waiting or running.
    pub erases_queued: u32,
    /// Time with a command running, summed over the unit's dies.
    pub busy_ns: u64,
    /// Raw blocks that may be written from their start.
    pub raw_blocks_erased: u32,
    /// Raw blocks written in part.
    pub raw_blocks_open: u32,
    /// Raw blocks written whole.
    pub raw_blocks_full: u32,
    /// Raw blocks that must be erased before they are written.
    pub raw_blocks_torn: u32,
    /// Raw blocks being erased.
    pub raw_blocks_erasing: u32,
    /// Lowest erase count of a usable block.
    pub erase_count_min: u32,
    /// Highest erase count of a usable block.
    pub erase_count_max: u32,
    /// Blocks out of use.
    pub blocks_bad: u32,
    /// Good blocks beyond what the raw blocks need.
    pub blocks_spare: u32,
    /// Nothing can be written any more.
    pub gone: bool,
    /// The raw blocks that hold something; told of a single unit only.
    #[serde(default)]
    pub raw_blocks: Vec<RawBlock>,
}

/// State of a raw block that holds something.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct RawBlock {
    /// Its number within the unit.
    pub raw_block: u32,
    /// "open", "full", "torn" or "erasing".
    pub state: String,
    /// Bytes that may be read, from its start.
    pub bytes_written: u64,
}

/// A server of raw units.
#[derive(Clone, Debug)]
pub struct Device {
    address: Address,
    units: Vec<Shape>,
    http: Option<Place>,
}

impl Device {
    /// Asks the server at `uri` for its units: `nbd+unix:///?socket=PATH` or `nbd://HOST[:PORT]`.
    pub fn open(uri: &str) -> Result<Self, Error> {
        let (address, _) = parse(uri).map_err(Error::Usage)?;
        let exports = wire::list(&mut dial(&address)?)?;
        let shape = |unit: usize| {
            let name = format!("unit/{unit}");
            let description = exports.iter().find(|export| export.0 == name).map(|it| &it.1)?;
            Shape::of_description(description)
        };
        let units: Vec<Shape> = (0..exports.len()).map_while(shape).collect();
        if units.is_empty() {
            let names: Vec<&str> = exports.iter().map(|export| export.0.as_str()).collect();
            return Err(Error::Usage(format!(
                "{uri}: offers no raw units, but {}: make a device with `weir format --raw`",
                names.join(", ")
            )));
        }
        Ok(Self { address, units, http: None })
    }

    /// Tells where the server's HTTP is, for the state of units: its control socket, or an address.
    pub fn with_http(mut self, http: impl Into<Place>) -> Self {
        self.http = Some(http.into());
        self
    }

    /// How many units there are.
    pub fn units(&self) -> u32 {
        self.units.len() as u32
    }

    /// Opens a unit, on a connection of its own.
    pub fn unit(&self, unit: u32) -> Result<Unit, Error> {
        let Some(&shape) = self.units.get(unit as usize) else {
            return Err(Error::Usage(format!(
                "no unit {unit}: there are 0 to {}",
                self.units.len() - 1
            )));
        };
        let connection = Connection::open(dial(&self.address)?, &format!("unit/{unit}"))?;
        Ok(Unit { connection, shape, number: unit, http: self.http.clone() })
    }

    /// The state of every unit. Needs [`Device::with_http`].
    pub fn status(&self) -> Result<Vec<UnitStatus>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            units: Vec<UnitStatus>,
        }
        Ok(ask::<Answer>(self.http.as_ref(), "/units")?.units)
    }
}

/// An open unit.
pub struct Unit {
    connection: Connection,
    shape: Shape,
    number: u32,
    http: Option<Place>,
}

impl Unit {
    /// What it is.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its bytes.
    pub fn size_bytes(&self) -> u64 {
        self.connection.size
    }

    /// Its raw blocks.
    pub fn raw_blocks(&self) -> u32 {
        (self.connection.size / self.shape.raw_block_bytes) as u32
    }

    /// Fills `into` with what was written at `offset`: whole granules.
    pub fn read(&mut self, mut offset: u64, mut into: &mut [u8]) -> Result<(), Error> {
        while !into.is_empty() {
            let (now, rest) = into.split_at_mut(into.len().min(REQUEST_BYTES_MAX as usize));
            self.connection.request(command::READ, offset, now.len() as u32, &[], now)?;
            offset += now.len() as u64;
            into = rest;
        }
        Ok(())
    }

    /// Writes at `offset` what is erased there: whole raw blocks, or whole pages in order, as
    /// [`Shape::whole_blocks`] says. Several raw blocks are written one after the other.
    pub fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        let raw_block = self.shape.raw_block_bytes;
        // A request covers no more than one raw block, and ends with a page.
        let longest = REQUEST_BYTES_MAX - REQUEST_BYTES_MAX % self.shape.page_bytes;
        while !bytes.is_empty() {
            let room = (raw_block - offset % raw_block).min(longest);
            let (now, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.connection.request(command::WRITE, offset, now.len() as u32, now, &mut [])?;
            offset += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Erases a raw block, whatever it holds.
    pub fn erase(&mut self, raw_block: u32) -> Result<(), Error> {
        let bytes = self.shape.raw_block_bytes;
        let Ok(length) = u32::try_from(bytes) else {
            return Err(Error::Usage(format!("raw blocks of {bytes} bytes exceed one request")));
        };
        let offset = u64::from(raw_block) * bytes;
        self.connection.request(command::TRIM, offset, length, &[], &mut [])
    }

    /// Makes durable what was acknowledged.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.connection.request(command::FLUSH, 0, 0, &[], &mut [])
    }

    /// Its state, with that of each raw block. Needs [`Device::with_http`].
    pub fn status(&self) -> Result<UnitStatus, Error> {
        ask(self.http.as_ref(), &format!("/units/{}", self.number))
    }
}

fn dial(address: &Address) -> Result<Stream, Error> {
    let stream = Stream::dial(address)?;
    stream.set_patience(Some(PATIENCE))?;
    Ok(stream)
}

fn ask<T: serde::de::DeserializeOwned>(http: Option<&Place>, path: &str) -> Result<T, Error> {
    let Some(place) = http else {
        let reason = "the state is asked over HTTP: say where by Device::with_http";
        return Err(Error::Usage(reason.into()));
    };
    let body = http::get(place, path).map_err(Error::Usage)?;
    serde_json::from_str(&body).map_err(|error| Error::Protocol(format!("{place}{path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn a_description_tells_the_shape_and_one_of_another_server_none() {
        let text = "raw unit raw_block_bytes=8388608 page_bytes=8192 granule_bytes=4096 write=page";
        let shape = Shape {
            raw_block_bytes: 8 << 20,
            page_bytes: 8192,
            granule_bytes: 4096,
            whole_blocks: false,
        };
        assert_eq!(Shape::of_description(text), Some(shape));
        for other in ["", "a disk", "raw_block_bytes=0 page_bytes=1 granule_bytes=1 write=page"] {
            assert_eq!(Shape::of_description(other), None, "{other}");
        }
    }
}
