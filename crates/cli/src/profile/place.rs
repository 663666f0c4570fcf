//! What is measured, whatever it is: how it is opened, filled, and given to the lanes of the generator.

use super::target::{Direct, Ended, Export, Target};
use crate::Failure;
use crate::output::Progress;
use client::wire::{header, negotiate_simple, simple_reply};
use client::{Stream, parse};
use flash::BLOCK_BYTES;
use serve::nbd::constants as wire;
use serve::probe::{Drive, Purpose, occupant};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// A disk, a file or an NBD export, taken for a measurement.
pub enum Place {
    /// By direct I/O.
    Drive(Drive),
    /// Over a socket.
    Export {
        /// Its address.
        uri: String,
        /// Whole blocks.
        blocks: u64,
        /// It is written, too.
        write: bool,
    },
}

/// Most requests under way, of all lanes: what an NVMe queue holds.
const SLOTS: u32 = 1024;
/// An NBD server bounds what one client may have under way.
const EXPORT_SLOTS: u32 = 256;
/// Blocks of each write that fills a drive, and how many of them are under way.
const FILL_BLOCKS: u32 = 256;
const FILL_SLOTS: u32 = 8;
/// What is read of an export to see whose it is.
const HEAD_BYTES: u64 = 1 << 20;
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(20);

impl Place {
    /// Opens it, and refuses what must not be overwritten if it is to be.
    pub fn open(name: &str, write: bool) -> Result<Self, Failure> {
        if name.starts_with("nbd:") || name.starts_with("nbd+unix:") {
            let blocks = look_at_export(name, write)?;
            return Ok(Self::Export { uri: name.into(), blocks, write });
        }
        let purpose = if write { Purpose::Overwrite } else { Purpose::Read };
        let drive = Drive::open(Path::new(name), purpose).map_err(|error| error.to_string())?;
        Ok(Self::Drive(drive))
    }

    /// Whole blocks.
    pub fn blocks(&self) -> u64 {
        match self {
            Self::Drive(drive) => drive.blocks(),
            Self::Export { blocks, .. } => *blocks,
        }
    }

    /// What makes figures of it doubtful, in words.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Drive(drive) => drive.notes(),
            Self::Export { .. } => &[],
        }
    }

    /// How many lanes the generator has for it, on so many processors: half of them are left to the drive's own
    /// work in the kernel. An export gets one, as not every server takes several connections for one volume.
    pub fn lanes(&self, processors: usize) -> u32 {
        match self {
            Self::Drive(_) => (processors as u32 / 2).clamp(1, 8),
            Self::Export { .. } => 1,
        }
    }

    /// What one of so many lanes asks. It belongs to the thread that made it.
    pub fn target(&self, lanes: u32, seed: u64) -> Result<Box<dyn Target>, Failure> {
        Ok(match self {
            Self::Drive(drive) => Box::new(Direct::new(drive, SLOTS / lanes, 1, seed)?),
            Self::Export { uri, write, .. } => {
                Box::new(Export::connect(uri, EXPORT_SLOTS, *write)?)
            }
        })
    }

    /// Writes all of it once, in order. False if `stop` says so meanwhile.
    pub fn fill(&self, seed: u64, stop: &dyn Fn() -> bool) -> Result<bool, Failure> {
        let mut target: Box<dyn Target> = match self {
            Self::Drive(drive) => Box::new(Direct::new(drive, FILL_SLOTS, FILL_BLOCKS, seed)?),
            Self::Export { uri, write, .. } => Box::new(Export::connect(uri, FILL_SLOTS, *write)?),
        };
        fill(&mut *target, self.blocks(), &mut Progress::new("overwriting all of it once"), stop)
    }
}

fn fill(
    target: &mut dyn Target,
    blocks: u64,
    progress: &mut Progress,
    stop: &dyn Fn() -> bool,
) -> Result<bool, Failure> {
    let (mut next, mut under_way, mut ended) = (0, 0_u32, Vec::<Ended>::new());
    while next < blocks || under_way > 0 {
        while next < blocks && target.has_room() {
            let part = (blocks - next).min(u64::from(FILL_BLOCKS)) as u32;
            target.submit(true, next, part)?;
            next += u64::from(part);
            under_way += 1;
        }
        target.wait(100_000_000, &mut ended)?;
        for ended in ended.drain(..) {
            under_way -= 1;
            if let Some(error) = ended.error {
                return Err(format!("cannot be overwritten: {error}"));
            }
        }
        progress.at(next, blocks);
        if stop() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The whole blocks of an export, once what it holds may be lost.
fn look_at_export(uri: &str, write: bool) -> Result<u64, Failure> {
    let (address, export) = parse(uri)?;
    let failed = |error: std::io::Error| {
        format!("{uri}: {error}: is the server running, and the export's name right?")
    };
    let mut stream = Stream::dial(&address).map_err(failed)?;
    stream.set_patience(Some(HANDSHAKE_PATIENCE)).map_err(failed)?;
    let (bytes, flags) = negotiate_simple(&mut stream, &export).map_err(failed)?;
    if write && flags & wire::SEND_READ_ONLY != 0 {
        return Err(format!("{uri}: is read-only: measure only its reads with --read-only"));
    }
    let blocks = bytes / BLOCK_BYTES as u64;
    if blocks == 0 {
        return Err(format!("{uri}: has {bytes} bytes: name an export of 1 MiB at least"));
    }
    if write {
        let mut head = vec![0; bytes.min(HEAD_BYTES) as usize];
        let read = header(wire::CMD_READ, 0, 1, 0, head.len() as u32);
        stream.write_all(&read).map_err(failed)?;
        let mut reply = [0; wire::SIMPLE_REPLY_BYTES];
        stream.read_exact(&mut reply).map_err(failed)?;
        let (error, _) = simple_reply(&reply).map_err(|why| format!("{uri}: {why}"))?;
        if error != 0 {
            return Err(format!("{uri}: its head cannot be read: the server's error {error}"));
        }
        stream.read_exact(&mut head).map_err(failed)?;
        if let Some(what) = occupant(&head) {
            return Err(format!(
                "{uri}: holds {what}, which a measurement of writes would destroy: measure only its reads with \
                 --read-only; or, if nothing on it is needed, write zeroes over its first MiB"
            ));
        }
    }
    stream.write_all(&header(wire::CMD_DISC, 0, 0, 0, 0)).map_err(failed)?;
    Ok(blocks)
}
