//! The volume and the raw blocks of servers: the volume over NBD; blocks are put and deleted by ID over HTTP, and read
//! over NBD from where the server placed them, which takes less of both processors: many at a time, each unit's with one
//! send ([`flight`]).
//!
//! A server may be started again with another device: whatever is put, and whatever is read over a new connection, is
//! compared with where the store's blocks lie ([`places`]).

mod flight;
mod places;
mod room;

pub use room::{Room, UnitRoom};

use crate::api::{BLOCK_BYTES, Error, Piece, RawBlocks, Volume};
use client::wire::{Connection, command};
use client::{Address, Blocks, Device, Place, Stream};
use flight::{Asked, Flight, READ_BYTES_MAX, Span};
use places::{At, Places};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Connections that are read from at a time, and those that are kept for the next ones. A server takes 100 of NBD unless told otherwise.
const READS_MAX: usize = 48;
const IDLE_MAX: usize = 48;
/// Puts of one file at a time: so many units write it side by side, and a writer has as many blocks in memory.
const PUTS_MAX: usize = 4;
/// Requests over HTTP at a time. A server takes 32 connections on its control socket unless told otherwise.
const ASKING_MAX: usize = 16;
const CONFLICT: u32 = 409;
const NOT_FOUND: u32 = 404;
const FAILED: u32 = 500;
const NO_ROOM: u32 = 507;

/// Where the parts of a store are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Addresses {
    /// The raw units, as an NBD address: `nbd+unix:///?socket=weir-units/nbd.sock`.
    pub units: String,
    /// The HTTP of the same server: its control socket, or an address.
    pub control: String,
    /// The token for an address.
    pub token: Option<String>,
    /// The small volume, as an NBD address with its name: `nbd+unix:///default?socket=weir-small/nbd.sock`.
    pub volume: String,
}

/// Where the HTTP of the units is.
fn place(addresses: &Addresses) -> Place {
    let place: Place = match addresses.control.parse() {
        Ok(place) => place,
        Err(never) => match never {},
    };
    match &addresses.token {
        Some(token) => place.with_token(token),
        None => place,
    }
}

/// The raw units of a server, as far as room goes.
pub struct Units(Device);

impl Units {
    /// Asks which there are.
    pub fn open(addresses: &Addresses) -> Result<Self, Error> {
        let failed =
            |error: client::Error| Error::Io(format!("the units {}: {error}", addresses.units));
        let device = Device::open(&addresses.units).map_err(failed)?;
        Ok(Self(device.with_http(place(addresses))))
    }

    /// What room they have.
    pub fn room(&self) -> Result<Room, Error> {
        let units = self.0.status().map_err(|error| Error::Io(error.to_string()))?;
        Ok(Room::of(&units))
    }
}

/// Keeps other processes of this machine from the store, as long as it is there.
pub struct Lock(#[expect(dead_code, reason = "held, and let go at the end")] File);

impl Lock {
    /// Of the store on this volume. `None` over TCP: there the store itself says who has it.
    pub fn take(volume: &str) -> Result<Option<Self>, Error> {
        let (address, export) = client::parse(volume).map_err(Error::Usage)?;
        let Address::Unix(socket) = address else { return Ok(None) };
        let name = format!("store-{}.lock", export.replace('/', "-"));
        // By whatever link it was named: it is one socket.
        let socket = std::fs::canonicalize(&socket).unwrap_or_else(|_| socket.into());
        let path = socket.with_file_name(name);
        let failed = |error| Error::Io(format!("{}: {error}", path.display()));
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                file.read_to_string(&mut owner).ok();
                return Err(Error::Owned(format!(
                    "the store on {volume} is in use by process {}: one process has a store at a time: \
                     end that one first",
                    owner.trim()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let noted = file.set_len(0).and_then(|()| file.rewind());
        noted.and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Some(Self(file)))
    }
}

/// The same by the store's own key, whatever address its volume is named by.
pub struct KeyLock(#[expect(dead_code, reason = "held, and let go at the end")] UnixDatagram);

impl KeyLock {
    /// Of the store with this key. It is a name of the kernel's, which goes with the process.
    pub fn take(key: u64, volume: &str) -> Result<Self, Error> {
        let name = format!("weir-store-{key:016x}");
        let taken =
            SocketAddr::from_abstract_name(&name).and_then(|name| UnixDatagram::bind_addr(&name));
        taken.map(Self).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Error::Owned(format!(
                "the store on {volume} is in use by another process of this machine, which names it otherwise: one \
                 process has a store at a time: end that one first (`ss -xap | grep {name}` shows it)"
            )),
            _ => Error::Io(format!("the name {name} cannot be taken: {error}")),
        })
    }
}

/// A volume over NBD.
pub struct RemoteVolume {
    connection: Connection,
    uri: String,
}

impl RemoteVolume {
    /// Connects.
    pub fn open(uri: &str) -> Result<Self, Error> {
        let (address, export) = client::parse(uri).map_err(Error::Usage)?;
        let failed = |error: client::Error| Error::Io(format!("the small volume {uri}: {error}"));
        let stream = Stream::dial(&address).map_err(|error| failed(error.into()))?;
        stream.set_patience(Some(PATIENCE)).map_err(|error| failed(error.into()))?;
        let connection = Connection::open(stream, &export).map_err(failed)?;
        Ok(Self { connection, uri: uri.into() })
    }

    fn ask(&mut self, command: u16, block: u64, data: &[u8], into: &mut [u8]) -> Result<(), Error> {
        let length = (data.len() + into.len()) as u32;
        let asked =
            self.connection.request(command, block * BLOCK_BYTES as u64, length, data, into);
        asked.map_err(|error| Error::Io(format!("the small volume {}: {error}", self.uri)))
    }
}

impl Volume for RemoteVolume {
    fn blocks(&self) -> u64 {
        self.connection.size / BLOCK_BYTES as u64
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), Error> {
        self.ask(command::READ, block, &[], into)
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        self.ask(command::WRITE, block, bytes, &mut [])
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.ask(command::FLUSH, 0, &[], &mut [])
    }
}

/// Raw blocks of a server.
pub struct RemoteBlocks {
    blocks: Blocks,
    device: Device,
    /// Of the units.
    address: Address,
    /// Connections to each unit that nobody uses.
    idle: Vec<Mutex<Vec<Flight>>>,
    /// How many that are.
    idle_count: AtomicUsize,
    /// Connections that may be used now.
    reading: Turns,
    /// A block stays where it was put.
    places: Places,
    /// Requests over HTTP that may begin now.
    asking: Turns,
    /// The two addresses, for people.
    names: String,
    /// They were seen to be of one device, since they connected last.
    compared: AtomicBool,
}

impl RemoteBlocks {
    /// Connects.
    pub fn open(addresses: &Addresses) -> Result<Self, Error> {
        let (Addresses { units, control, .. }, place) = (addresses, place(addresses));
        let failed = |error: client::Error| Error::Io(format!("the raw units {units}: {error}"));
        let (address, _) = client::parse(units).map_err(Error::Usage)?;
        let device = Device::open(units).map_err(failed)?.with_http(place.clone());
        let blocks = Blocks::open(place)
            .map_err(|error| Error::Io(format!("blocks by ID at {control}: {error}")))?;
        let idle = (0..device.units()).map(|_| Mutex::default()).collect();
        let (reading, idle_count) = (Turns::new(READS_MAX), AtomicUsize::new(0));
        Ok(Self {
            blocks,
            device,
            address,
            idle,
            idle_count,
            reading,
            places: Places::default(),
            asking: Turns::new(ASKING_MAX),
            names: format!("{units} with {control}"),
            compared: AtomicBool::new(false),
        })
    }

    fn place(&self, id: u128) -> Result<At, Error> {
        if let Some(at) = self.places.get(id) {
            return Ok(at);
        }
        let at = self.find(id)?.ok_or_else(|| lost(id))?;
        self.places.note(id, at);
        Ok(at)
    }

    /// Where the server has it now.
    fn find(&self, id: u128) -> Result<Option<At>, Error> {
        let _turn = self.asking.take();
        let found = self.blocks.find(id as u64).map_err(|error| told(id, &error))?;
        let found = found.filter(|block| block.id == id);
        Ok(found.map(|block| At { unit: block.unit, raw_block: block.raw_block }))
    }

    /// The server that answers has the device of this store, as far as blocks other than this one tell.
    fn check_device(&self, id: u128) -> Result<(), Error> {
        self.places.check(id, |witness| self.find(witness))
    }

    /// Connects to the unit of a block, and sees that it is there.
    fn connect(&self, id: u128, at: At) -> Result<Flight, Error> {
        self.compared.store(false, Ordering::Relaxed);
        let flight = match Flight::open(&self.address, at.unit, PATIENCE) {
            Ok(flight) => flight,
            // It may have other units.
            Err(error) => {
                let error = told(id, &error.into());
                return Err(self.check_device(id).err().unwrap_or(error));
            }
        };
        if self.find(id)? == Some(at) {
            return Ok(flight);
        }
        self.check_device(id)?;
        Err(lost(id))
    }

    /// What was put has to be on the device of the store; else it is taken back.
    fn check_put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        // In this order: what the same server has that has the others is on their device.
        let checked = self.check_device(id).and_then(|()| self.find(id));
        match checked {
            Ok(Some(at)) => self.places.note(id, at),
            Ok(None) => return Err(lost(id)),
            Err(error) => {
                self.blocks.delete(id).ok();
                return Err(error);
            }
        }
        if !self.compared.load(Ordering::Relaxed) {
            // First, as the comparison connects.
            self.compare(id, bytes)?;
            self.compared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The first block that is put over HTTP has to be on the units that are read over NBD.
    fn compare(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        let mut granule = vec![0; self.blocks.granule_bytes() as usize];
        let piece = Piece { id, offset: 0, into: &mut granule };
        let read = self.read(&mut [piece]).into_iter().collect::<Result<(), Error>>();
        let why = match read {
            Ok(()) if bytes.starts_with(&granule) => return Ok(()),
            Ok(()) => "other bytes are read than were put".into(),
            Err(error) => error.to_string(),
        };
        self.delete(id).ok();
        Err(Error::Usage(format!(
            "{} is not one device, or cannot read what it has just written: {why}: name the units, and the HTTP of the \
             same server (--units, --control)",
            self.names
        )))
    }

    fn idle(&self, unit: u32) -> Option<Flight> {
        let kept = self.idle.get(unit as usize)?.lock().expect("no holder panics").pop()?;
        self.idle_count.fetch_sub(1, Ordering::Relaxed);
        Some(kept)
    }

    fn keep(&self, flight: Flight) {
        let Some(idle) = self.idle.get(flight.unit() as usize) else { return };
        if self.idle_count.fetch_add(1, Ordering::Relaxed) < IDLE_MAX {
            idle.lock().expect("no holder panics").push(flight);
        } else {
            self.idle_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What has to be asked for a piece of a block that lies there.
    fn asked<'a>(&self, at: At, index: usize, piece: &'a mut Piece<'_>, into: &mut Vec<Asked<'a>>) {
        let granule = self.blocks.granule_bytes();
        let mut offset = u64::from(at.raw_block) * self.block_bytes() + piece.offset;
        for part in piece.into.chunks_mut(READ_BYTES_MAX) {
            let count = part.len();
            let span = Span::around(offset, count, granule);
            into.push(Asked { id: piece.id, at, span, into: part, index, answer: None });
            offset += count as u64;
        }
    }

    /// Reads of as many units as there are turns: all are asked before the first answer is waited for.
    fn read_units(&self, units: &mut [&mut [Asked<'_>]], failed: &mut impl FnMut(usize, Error)) {
        let rounds = units.iter().map(|reads| reads.len().div_ceil(flight::READS_MAX)).max();
        for round in 0..rounds.unwrap_or(0) {
            let mut sent = Vec::with_capacity(units.len());
            for reads in units.iter_mut() {
                let Some(reads) = reads.chunks_mut(flight::READS_MAX).nth(round) else { continue };
                let flight = self.send(reads);
                sent.push((reads, flight));
            }
            for (reads, flight) in sent {
                match flight.and_then(|flight| self.receive(flight, reads)) {
                    Ok(()) => self.explain(reads, failed),
                    Err(error) => reads.iter().for_each(|read| failed(read.index, error.clone())),
                }
            }
        }
    }

    /// Asks for reads of one unit.
    fn send(&self, reads: &[Asked<'_>]) -> Result<Flight, Error> {
        let Asked { id, at, .. } = reads[0];
        if let Some(mut flight) = self.idle(at.unit)
            && flight.send(reads).is_ok()
        {
            return Ok(flight);
        }
        let mut flight = self.connect(id, at)?;
        flight.send(reads).map_err(|error| told(id, &error.into()))?;
        Ok(flight)
    }

    /// Waits for their answers.
    fn receive(&self, mut flight: Flight, reads: &mut [Asked<'_>]) -> Result<(), Error> {
        let Asked { id, at, .. } = reads[0];
        let mut received = flight.receive(reads);
        if let Err(client::Error::Io(_)) = received {
            // The server may have been started again; what is read cannot have changed.
            flight = self.connect(id, at)?;
            received = flight.send(reads).map_err(Into::into).and_then(|()| flight.receive(reads));
        }
        received.map_err(|error| told(id, &error))?;
        self.keep(flight);
        Ok(())
    }

    /// Why reads were refused: each is asked once more, by a connection that tells the reason.
    fn explain(&self, reads: &[Asked<'_>], failed: &mut impl FnMut(usize, Error)) {
        for read in reads.iter().filter(|read| read.answer != Some(0)) {
            let (offset, length) = read.span.range();
            let unit = self.device.unit(read.at.unit);
            let again = unit.and_then(|mut unit| unit.read(offset, &mut vec![0; length]));
            // What comes now nobody has compared with the device of the store.
            let error = again.err().unwrap_or_else(|| client::Error::Refused {
                code: read.answer.unwrap_or_default(),
                message: "it was refused once, and can be read now: ask again".into(),
            });
            failed(read.index, told(read.id, &error));
        }
    }
}

impl RawBlocks for RemoteBlocks {
    fn block_bytes(&self) -> u64 {
        self.blocks.block_bytes()
    }

    fn units(&self) -> u32 {
        self.device.units()
    }

    fn puts_at_once(&self) -> usize {
        (self.device.units() as usize).min(PUTS_MAX)
    }

    fn put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        let turn = self.asking.take();
        let put = self.blocks.put(id, bytes);
        drop(turn);
        match put {
            Ok(()) => self.check_put(id, bytes),
            Err(client::Error::Refused { code: CONFLICT, message }) => Err(Error::Taken(message)),
            // Its unit is full, or fails: another number is on another unit.
            Err(client::Error::Refused { code: NO_ROOM | FAILED, message }) => {
                Err(Error::UnitFull(message))
            }
            // Those of another device may have blocks of another size.
            Err(error @ client::Error::Refused { .. }) => {
                Err(self.check_device(id).err().unwrap_or(told(id, &error)))
            }
            Err(error) => Err(told(id, &error)),
        }
    }

    fn delete(&self, id: u128) -> Result<(), Error> {
        self.places.forget(id);
        let _turn = self.asking.take();
        match self.blocks.delete(id) {
            Ok(()) | Err(client::Error::Refused { code: NOT_FOUND, .. }) => Ok(()),
            Err(error) => Err(told(id, &error)),
        }
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> Vec<Result<(), Error>> {
        let mut results = vec![Ok(()); pieces.len()];
        let mut reads = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter_mut().enumerate() {
            match self.place(piece.id) {
                Ok(at) => self.asked(at, index, piece, &mut reads),
                Err(error) => results[index] = Err(error),
            }
        }
        reads.sort_by_key(|read| read.at.unit);
        let mut units: Vec<_> =
            reads.chunk_by_mut(|one, next| one.at.unit == next.at.unit).collect();
        let mut left = &mut units[..];
        while !left.is_empty() {
            let turns = self.reading.take_some(left.len());
            let (now, later) = std::mem::take(&mut left).split_at_mut(turns.count);
            self.read_units(now, &mut |index, error| results[index] = Err(error));
            left = later;
        }
        results
    }

    fn list(&self) -> Result<Vec<u128>, Error> {
        let listed = self.blocks.list();
        let listed = listed.map_err(|error| Error::Io(format!("blocks by ID: {error}")))?;
        for block in &listed {
            self.places.note(block.id, At { unit: block.unit, raw_block: block.raw_block });
        }
        Ok(listed.into_iter().map(|block| block.id).collect())
    }

    fn why_full(&self) -> Option<String> {
        Some(Room::of(&self.device.status().ok()?).why_full())
    }
}

/// So many at a time: a server ends connections that wait beyond those that it takes.
struct Turns {
    left: Mutex<usize>,
    given_back: Condvar,
}

/// Some of them, given back when it is dropped.
struct Turn<'a> {
    of: &'a Turns,
    count: usize,
}

impl Turns {
    fn new(count: usize) -> Self {
        Self { left: Mutex::new(count), given_back: Condvar::new() }
    }

    fn take(&self) -> Turn<'_> {
        self.take_some(1)
    }

    /// As many as there are, at most `wanted` and at least one: who has some never waits for more.
    fn take_some(&self, wanted: usize) -> Turn<'_> {
        let left = self.left.lock().expect("no holder panics");
        let left = self.given_back.wait_while(left, |left| *left == 0);
        let mut left = left.expect("no holder panics");
        let count = wanted.min(*left);
        *left -= count;
        Turn { of: self, count }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.of.left.lock().expect("no holder panics") += self.count;
        match self.count {
            1 => self.of.given_back.notify_one(),
            _ => self.of.given_back.notify_all(),
        }
    }
}

fn told(id: u128, error: &client::Error) -> Error {
    Error::Io(format!("raw block {id:032x}: {error}"))
}

fn lost(id: u128) -> Error {
    Error::Damaged(format!(
        "raw block {id:032x} is not on the units: its unit lost it, or somebody deleted it there"
    ))
}

#[cfg(test)]
mod tests {
    use super::{Error, KeyLock};

    #[test]
    fn a_key_has_one_owner_until_that_one_lets_go() {
        let key = 0x7e57_0000_0000_0000 | u64::from(std::process::id());
        let first = KeyLock::take(key, "one").expect("nobody has it");
        let refused = KeyLock::take(key, "other").map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Owned(why) if why.contains("other is in use")),
            "{refused}"
        );
        assert!(KeyLock::take(key ^ 1, "one").is_ok());
        drop(first);
        assert!(KeyLock::take(key, "other").is_ok());
    }
}
