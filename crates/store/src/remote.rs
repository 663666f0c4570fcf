//! The volume and the raw blocks of servers: the volume over NBD; blocks are put and deleted by ID over HTTP, and read
//! over NBD from where the server placed them, which takes less of both processors: many at a time, each unit's with one
//! send ([`flight`]).
//!
//! A server may be started again with another device: whatever is put, and whatever is read over a new connection, is
//! compared with where the store's blocks lie ([`places`]).

mod extents;
mod flight;
mod places;
mod room;
mod silence;
mod volume;

pub use extents::Extents;
pub use room::{Room, UnitRoom};
pub use volume::RemoteVolume;

use crate::api::{Error, Piece, RawBlocks};
use client::{Address, Blocks, Device, Place};
use flight::{Asked, Flight, READ_BYTES_MAX, Span};
use places::{At, Places};
use silence::Silence;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long a server may take to answer who does not say how long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Connections that are read from at a time, and all that there are: those that nobody uses are kept for the next ones. A
/// server takes 100 of NBD unless told otherwise.
const READS_MAX: usize = 88;
const CONNECTIONS_MAX: usize = 96;
/// Puts of one file at a time: so many units write it side by side, and a writer has as many blocks in memory.
const PUTS_MAX: usize = 4;
/// Requests over HTTP at a time. A server takes 64 connections on its control socket unless told otherwise.
pub(crate) const ASKING_MAX: usize = 56;
const CONFLICT: u32 = 409;
const NOT_FOUND: u32 = 404;
const FAILED: u32 = 500;
const NO_ROOM: u32 = 507;
/// NBD's, of a read: what is there cannot be read back, or nothing is.
const UNREADABLE: u32 = 5;
const NOT_WRITTEN: u32 = 22;

/// Where the parts of a store are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Addresses {
    /// The raw units, as an NBD address: `nbd+unix:///?socket=weir-units/nbd.sock`; or a block volume for SSTs, without HTTP.
    pub units: String,
    /// The HTTP of the same server: its control socket, or an address. Empty for a block volume.
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
pub enum Units {
    /// Of a device.
    Raw(Device),
    /// Extents of a block volume at this address.
    Extents(String),
}

impl Units {
    /// Asks which there are.
    pub fn open(addresses: &Addresses) -> Result<Self, Error> {
        if addresses.control.is_empty() {
            return Ok(Self::Extents(addresses.units.clone()));
        }
        let failed =
            |error: client::Error| Error::Io(format!("the units {}: {error}", addresses.units));
        let device = Device::open(&addresses.units).map_err(failed)?;
        Ok(Self::Raw(device.with_http(place(addresses))))
    }

    /// What room they have.
    pub fn room(&self) -> Result<Room, Error> {
        match self {
            Self::Raw(device) => {
                let units = device.status().map_err(|error| Error::Io(error.to_string()))?;
                Ok(Room::of(&units))
            }
            Self::Extents(uri) => {
                let (raw_blocks, raw_blocks_free) = extents::room(&mut RemoteVolume::open(uri)?)?;
                let unit = UnitRoom { raw_blocks_free, raw_blocks, ..UnitRoom::default() };
                Ok(Room { units: vec![unit] })
            }
        }
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
    /// Whether the units answer reads.
    silence: Silence,
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
            silence: Silence::default(),
        })
    }

    fn place(&self, id: u128, patience: Duration) -> Result<At, Error> {
        if let Some(at) = self.places.get(id) {
            return Ok(at);
        }
        let at = self.find(id, patience)?.ok_or_else(|| lost(id))?;
        self.places.note(id, at);
        Ok(at)
    }

    /// Where the server has it now.
    fn find(&self, id: u128, patience: Duration) -> Result<Option<At>, Error> {
        let _turn = self.asking.take_some(1, patience).ok_or_else(|| late(patience))?;
        let found = self.blocks.find_within(id as u64, patience);
        let found = found.map_err(|error| told(id, &error))?;
        let found = found.filter(|block| block.id == id);
        Ok(found.map(|block| At { unit: block.unit, raw_block: block.raw_block }))
    }

    /// The server that answers has the device of this store, as far as blocks other than this one tell.
    fn check_device(&self, id: u128, patience: Duration) -> Result<(), Error> {
        self.places.check(id, |witness| self.find(witness, patience))
    }

    /// Connects to the unit of a block, and sees that it is there.
    fn connect(&self, id: u128, at: At, patience: Duration) -> Result<Flight, Error> {
        self.compared.store(false, Ordering::Relaxed);
        self.make_room(at.unit);
        let flight = match Flight::open(&self.address, at.unit, patience) {
            Ok(flight) => flight,
            // A server that is stopped answers nothing else either.
            Err(error) if is_late(&error) => return Err(late(patience)),
            // It may have other units.
            Err(error) => {
                let error = told(id, &error.into());
                return Err(self.check_device(id, patience).err().unwrap_or(error));
            }
        };
        if self.find(id, patience)? == Some(at) {
            return Ok(flight);
        }
        self.check_device(id, patience)?;
        Err(lost(id))
    }

    /// What was put has to be on the device of the store; else it is taken back.
    fn check_put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        // In this order: what the same server has that has the others is on their device.
        let checked = self.check_device(id, PATIENCE).and_then(|()| self.find(id, PATIENCE));
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
            self.compare(id, bytes).inspect_err(|_| drop(self.delete(id)))?;
            self.compared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A block that begins so over HTTP has to do so on the units that are read over NBD.
    fn compare(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        let mut granule = vec![0; self.blocks.granule_bytes() as usize];
        let piece = Piece { id, offset: 0, into: &mut granule };
        let read = self.read(&mut [piece], None).into_iter().collect::<Result<(), Error>>();
        let why = match read {
            Ok(()) if bytes.starts_with(&granule) => return Ok(()),
            Ok(()) => "other bytes are read than were put".into(),
            Err(error) => error.to_string(),
        };
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
        idle.lock().expect("no holder panics").push(flight);
        self.idle_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends connections to other units that nobody uses, until there may be one more.
    fn make_room(&self, unit: u32) {
        let units = self.idle.len() as u32;
        for at in (1..units).map(|step| (unit + step) % units) {
            while self.idle_count.load(Ordering::Relaxed) + self.reading.taken() >= CONNECTIONS_MAX
            {
                if self.idle(at).is_none() {
                    break;
                }
            }
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
    fn read_units(
        &self,
        units: &mut [&mut [Asked<'_>]],
        patience: Duration,
        failed: &mut impl FnMut(usize, Error),
    ) {
        let rounds = units.iter().map(|reads| reads.len().div_ceil(flight::READS_MAX)).max();
        for round in 0..rounds.unwrap_or(0) {
            let mut sent = Vec::with_capacity(units.len());
            for reads in units.iter_mut() {
                let Some(reads) = reads.chunks_mut(flight::READS_MAX).nth(round) else { continue };
                let flight = self.send(reads, patience);
                sent.push((reads, flight));
            }
            for (reads, flight) in sent {
                match flight.and_then(|flight| self.receive(flight, reads, patience)) {
                    Ok(()) => {
                        self.silence.heard();
                        self.explain(reads, failed);
                    }
                    Err(error) => {
                        if let Error::Unreachable(_) = error {
                            self.silence.unheard(&error);
                        }
                        reads.iter().for_each(|read| failed(read.index, error.clone()));
                    }
                }
            }
        }
    }

    /// Asks for reads of one unit.
    fn send(&self, reads: &[Asked<'_>], patience: Duration) -> Result<Flight, Error> {
        let Asked { id, at, .. } = reads[0];
        if let Some(mut flight) = self.idle(at.unit)
            && flight.set_patience(patience).and_then(|()| flight.send(reads)).is_ok()
        {
            return Ok(flight);
        }
        let mut flight = self.connect(id, at, patience)?;
        flight.send(reads).map_err(|error| told(id, &error.into()))?;
        Ok(flight)
    }

    /// Waits for their answers.
    fn receive(
        &self,
        mut flight: Flight,
        reads: &mut [Asked<'_>],
        patience: Duration,
    ) -> Result<(), Error> {
        let Asked { id, at, .. } = reads[0];
        let mut received = flight.receive(reads);
        if let Err(client::Error::Io(error)) = &received {
            if is_late(error) {
                return Err(late(patience));
            }
            // The server may have been started again; what is read cannot have changed.
            flight = self.connect(id, at, patience)?;
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
            let error = match again {
                // What comes now nobody has compared with the device of the store.
                Ok(()) => Error::Io(format!(
                    "raw block {:032x}: it was refused once, and can be read now: ask again",
                    read.id
                )),
                Err(client::Error::Refused { code: UNREADABLE | NOT_WRITTEN, message }) => {
                    Error::Damaged(format!("raw block {:032x}: {message}", read.id))
                }
                Err(error) => told(read.id, &error),
            };
            failed(read.index, error);
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

    fn late_puts_max(&self) -> usize {
        (self.device.units() as usize).clamp(4 * PUTS_MAX, ASKING_MAX)
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
                Err(self.check_device(id, PATIENCE).err().unwrap_or(told(id, &error)))
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

    fn read(&self, pieces: &mut [Piece<'_>], patience: Option<Duration>) -> Vec<Result<(), Error>> {
        let mut results = vec![Ok(()); pieces.len()];
        // Who works in the background waits for a server that may go on; who asks for somebody is told.
        let trial = patience.map(|_| self.silence.begin()).transpose();
        let Ok(_trial) = trial.inspect_err(|why| results.fill(Err(why.clone()))) else {
            return results;
        };
        let patience = patience.unwrap_or(PATIENCE);
        let mut reads = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter_mut().enumerate() {
            match self.place(piece.id, patience) {
                Ok(at) => self.asked(at, index, piece, &mut reads),
                Err(error) => results[index] = Err(error),
            }
        }
        reads.sort_by_key(|read| read.at.unit);
        let mut units: Vec<_> =
            reads.chunk_by_mut(|one, next| one.at.unit == next.at.unit).collect();
        let mut left = &mut units[..];
        while !left.is_empty() {
            let Some(turns) = self.reading.take_some(left.len(), patience) else {
                let reads = left.iter().flat_map(|reads| reads.iter());
                reads.for_each(|read| results[read.index] = Err(late(patience)));
                break;
            };
            let (now, later) = std::mem::take(&mut left).split_at_mut(turns.count);
            self.read_units(now, patience, &mut |index, error| results[index] = Err(error));
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

    fn has_two_doors(&self) -> bool {
        true
    }

    fn check(&self, id: u128) -> Result<(), Error> {
        let mut granule = vec![0; self.blocks.granule_bytes() as usize];
        match self.blocks.get(id, 0, &mut granule) {
            Ok(()) => self.compare(id, &granule),
            // What cannot be read there either tells nothing.
            Err(_) => Ok(()),
        }
    }

    fn why_full(&self) -> Option<String> {
        Some(Room::of(&self.device.status().ok()?).why_full())
    }
}

/// So many at a time: a server ends connections that wait beyond those that it takes.
struct Turns {
    all: usize,
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
        Self { all: count, left: Mutex::new(count), given_back: Condvar::new() }
    }

    fn taken(&self) -> usize {
        self.all - *self.left.lock().expect("no holder panics")
    }

    fn take(&self) -> Turn<'_> {
        loop {
            if let Some(turn) = self.take_some(1, PATIENCE) {
                return turn;
            }
        }
    }

    /// As many as there are, at most `wanted` and at least one: who has some never waits for more. `None` if there was
    /// none for so long.
    fn take_some(&self, wanted: usize, patience: Duration) -> Option<Turn<'_>> {
        let left = self.left.lock().expect("no holder panics");
        let left = self.given_back.wait_timeout_while(left, patience, |left| *left == 0);
        let (mut left, _) = left.expect("no holder panics");
        let count = wanted.min(*left);
        *left -= count;
        (count > 0).then_some(Turn { of: self, count })
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
    match error {
        client::Error::Io(error) => Error::Unreachable(format!("the units do not answer: {error}")),
        error => Error::Io(format!("raw block {id:032x}: {error}")),
    }
}

/// Nothing came within the time that a socket was given.
fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn late(patience: Duration) -> Error {
    Error::Unreachable(format!(
        "the units do not answer: nothing came within {} s: their server is stopped, or has too much to do",
        patience.as_secs_f64()
    ))
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
