//! What a chain of a guest's memory asks of a disk: virtio's block requests. Pure but for the memory that it reads.
//!
//! A chain is two streams of bytes, whatever pieces they come in: what the device reads (a head of 16 bytes, then the
//! data of a write) and what it writes (the data of a read, then one byte of status).

use super::disk::{DISCARD_BYTES_MAX, Disk, NAME_BYTES};
use super::memory::Memory;
use crate::volume::Kind;

/// A piece of a guest's memory, which lies there as a whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u32,
    /// The device writes to it, and reads nothing there.
    pub writable: bool,
}

/// How a request ended, as its last byte tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// Well.
    Ok = 0,
    /// Not.
    Failed = 1,
    /// It is not known.
    Unsupported = 2,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Task {
    /// Something of the volume: what, from which byte on, how many.
    Volume(Kind, u64, u32),
    /// The name of the disk.
    Name,
}

/// Why a request is answered without the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// What the guest is told.
    pub status: Status,
    /// What people are told.
    pub why: &'static str,
}

/// A chain as a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asked {
    /// What it wants, or why that is refused.
    pub task: Result<Task, Refusal>,
    /// Where its status goes; `None`: there is no place for one.
    pub status_at: Option<u64>,
    /// Bytes to read, the head included, and to write, the status included.
    pub readable: u64,
    pub writable: u64,
}

/// Bytes of a head: type, nothing, sector.
pub const HEAD_BYTES: u64 = 16;
/// Bytes of a range to be trimmed or filled: sector, sectors, flags.
const RANGE_BYTES: u64 = 16;
/// Virtio counts in these, whatever the size of a block.
pub const SECTOR_BYTES: u64 = 512;
/// Most data of one request; a guest is told of less.
const DATA_BYTES_MAX: u64 = 32 << 20;
/// Zeroes may give their room back.
const UNMAP: u32 = 1;

fn refuse<T>(status: Status, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, why })
}

/// What the pieces of a chain ask of a disk.
pub fn parse(memory: &Memory, pieces: &[Piece], disk: &Disk) -> Asked {
    let sum = |writable: bool| -> u64 {
        let those = pieces.iter().filter(|piece| piece.writable == writable);
        those.map(|piece| u64::from(piece.bytes)).sum()
    };
    let (readable, writable) = (sum(false), sum(true));
    let last = pieces.iter().rev().find(|piece| piece.writable && piece.bytes > 0);
    let status_at = last.map(|piece| piece.address + u64::from(piece.bytes - 1));
    let task = match status_at {
        Some(_) => task(memory, pieces, disk, (readable, writable - 1)),
        None => refuse(Status::Failed, "it has no place for a status"),
    };
    Asked { task, status_at, readable, writable }
}

/// `room` is what can be written beside the status.
fn task(
    memory: &Memory,
    pieces: &[Piece],
    disk: &Disk,
    (readable, room): (u64, u64),
) -> Result<Task, Refusal> {
    let mut head = [0; HEAD_BYTES as usize];
    if readable < HEAD_BYTES || !Cursor::at(pieces, false, 0).read(memory, pieces, &mut head) {
        return refuse(Status::Failed, "it has no head");
    }
    let [a, b, c, d, _, _, _, _, sector @ ..] = head;
    let (kind, sector) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector));
    let data = readable - HEAD_BYTES;
    let changes = matches!(kind, OUT | DISCARD | ZEROES);
    if changes && disk.read_only {
        return refuse(Status::Failed, "the volume is read-only");
    }
    match kind {
        IN if data > 0 => refuse(Status::Failed, "a read brings data"),
        IN => volume(Kind::Read, disk, sector, room),
        OUT if room > 0 => refuse(Status::Failed, "a write has room for data"),
        OUT => volume(Kind::Write { fua: disk.write_through, handle: None }, disk, sector, data),
        FLUSH => Ok(Task::Volume(Kind::Flush, 0, 0)),
        NAME if room < NAME_BYTES as u64 => refuse(Status::Failed, "there is no room for a name"),
        NAME => Ok(Task::Name),
        DISCARD | ZEROES if data != RANGE_BYTES => {
            refuse(Status::Failed, "it has not one range, as the disk has told")
        }
        DISCARD | ZEROES => {
            let mut bytes = [0; RANGE_BYTES as usize];
            Cursor::at(pieces, false, HEAD_BYTES).read(memory, pieces, &mut bytes);
            range(kind, disk, bytes)
        }
        _ => refuse(Status::Unsupported, "there is no such request"),
    }
}

/// A read or write of data.
fn volume(kind: Kind, disk: &Disk, sector: u64, bytes: u64) -> Result<Task, Refusal> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        return refuse(Status::Failed, "its data are no whole sectors");
    }
    if bytes > DATA_BYTES_MAX {
        return refuse(Status::Failed, "it has more data than one request may");
    }
    within(disk, sector, bytes).map(|offset| Task::Volume(kind, offset, bytes as u32))
}

/// A trim, or zeroes.
fn range(kind: u32, disk: &Disk, bytes: [u8; RANGE_BYTES as usize]) -> Result<Task, Refusal> {
    let [sector @ .., a, b, c, d, e, f, g, h] = bytes;
    let (sector, count) = (u64::from_le_bytes(sector), u32::from_le_bytes([a, b, c, d]));
    let flags = u32::from_le_bytes([e, f, g, h]);
    let known = if kind == ZEROES { UNMAP } else { 0 };
    if flags & !known != 0 {
        return refuse(Status::Unsupported, "its range has flags that do not fit");
    }
    let bytes = u64::from(count) * SECTOR_BYTES;
    if bytes == 0 || bytes > DISCARD_BYTES_MAX {
        return refuse(Status::Failed, "its range is empty, or longer than the disk has told");
    }
    let offset = within(disk, sector, bytes)?;
    let kind = match kind {
        DISCARD => Kind::Trim { fua: disk.write_through },
        _ => Kind::Zeroes { fua: disk.write_through, no_hole: flags & UNMAP == 0, fast: false },
    };
    Ok(Task::Volume(kind, offset, bytes as u32))
}

fn within(disk: &Disk, sector: u64, bytes: u64) -> Result<u64, Refusal> {
    let offset = sector.checked_mul(SECTOR_BYTES);
    match offset.filter(|offset| offset.checked_add(bytes).is_some_and(|end| end <= disk.bytes)) {
        Some(offset) => Ok(offset),
        None => refuse(Status::Failed, "it goes beyond the end of the volume"),
    }
}

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const NAME: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

/// A place in one of the two streams of a chain, which goes on as bytes are copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    writable: bool,
    piece: usize,
    inside: u32,
}

impl Cursor {
    /// Behind the first `skip` bytes of what the device reads, or writes.
    pub fn at(pieces: &[Piece], writable: bool, mut skip: u64) -> Self {
        for (piece, one) in pieces.iter().enumerate().filter(|(_, one)| one.writable == writable) {
            if skip < u64::from(one.bytes) {
                return Self { writable, piece, inside: skip as u32 };
            }
            skip -= u64::from(one.bytes);
        }
        Self { writable, piece: pieces.len(), inside: 0 }
    }

    /// Copies what comes next from the guest. False if there is less, or its memory has gone.
    pub fn read(&mut self, memory: &Memory, pieces: &[Piece], into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let Some((address, here)) = self.next(pieces, into.len() - done) else { return false };
            if !memory.read(address, &mut into[done..done + here]) {
                return false;
            }
            done += here;
        }
        true
    }

    /// Copies to the guest, where the next bytes go. False as above.
    pub fn write(&mut self, memory: &Memory, pieces: &[Piece], from: &[u8]) -> bool {
        let mut done = 0;
        while done < from.len() {
            let Some((address, here)) = self.next(pieces, from.len() - done) else { return false };
            if !memory.write(address, &from[done..done + here]) {
                return false;
            }
            done += here;
        }
        true
    }

    /// Where the next bytes are, at most `most`, and goes on behind them.
    fn next(&mut self, pieces: &[Piece], most: usize) -> Option<(u64, usize)> {
        loop {
            let piece = pieces.get(self.piece)?;
            let left = if piece.writable == self.writable { piece.bytes - self.inside } else { 0 };
            if left == 0 {
                (self.piece, self.inside) = (self.piece + 1, 0);
                continue;
            }
            let here = most.min(left as usize);
            let address = piece.address + u64::from(self.inside);
            self.inside += here as u32;
            return Some((address, here));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::memory;
    use super::*;

    fn disk(read_only: bool) -> Disk {
        Disk { volume: 3, bytes: 1 << 20, read_only, write_through: false, name: "disk".into() }
    }

    fn head(kind: u32, sector: u64) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        bytes
    }

    /// The request that these bytes are, with room for as many (beside the status).
    fn parsed(bytes: &[u8], room: u32, disk: &Disk) -> Result<Task, Refusal> {
        let memory = memory(&[(0, 0x40000)]);
        assert!(memory.write(0x100, bytes));
        let pieces = [
            Piece { address: 0x100, bytes: bytes.len() as u32, writable: false },
            Piece { address: 0x20000, bytes: room + 1, writable: true },
        ];
        let asked = parse(&memory, &pieces, disk);
        assert_eq!(asked.status_at, Some(0x20000 + u64::from(room)));
        asked.task
    }

    #[test]
    fn requests_are_what_they_say_and_nothing_else_gets_through() {
        let with = |mut head: Vec<u8>, data: usize| {
            head.resize(head.len() + data, 7);
            head
        };
        let range = |kind, sector: u64, count: u32, flags: u32| {
            let mut bytes = head(kind, 0);
            bytes.extend(sector.to_le_bytes());
            bytes.extend(count.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes
        };
        let write = Kind::Write { fua: false, handle: None };
        let zeroes = |no_hole| Kind::Zeroes { fua: false, no_hole, fast: false };
        let trim = Kind::Trim { fua: false };
        let asked = |kind, offset, len| Ok(Task::Volume(kind, offset, len));
        let cases = [
            (head(IN, 2), 1024, asked(Kind::Read, 1024, 1024)),
            (with(head(OUT, 2047), 512), 0, asked(write, 2047 * 512, 512)),
            (head(FLUSH, 0), 0, asked(Kind::Flush, 0, 0)),
            (head(NAME, 0), 20, Ok(Task::Name)),
            (range(DISCARD, 8, 8, 0), 0, asked(trim, 4096, 4096)),
            (range(ZEROES, 8, 8, 0), 0, asked(zeroes(true), 4096, 4096)),
            (range(ZEROES, 0, 2048, UNMAP), 0, asked(zeroes(false), 0, 1 << 20)),
        ];
        for (bytes, room, task) in cases {
            assert_eq!(parsed(&bytes, room, &disk(false)), task, "{bytes:?}");
        }
        let through = Disk { write_through: true, ..disk(false) };
        let fua = Kind::Write { fua: true, handle: None };
        assert_eq!(parsed(&with(head(OUT, 0), 512), 0, &through), asked(fua, 0, 512));
        let refused = [
            (vec![0; 15], 512, Status::Failed),
            (head(IN, 0), 0, Status::Failed),
            (head(IN, 0), 511, Status::Failed),
            (head(IN, 2048), 512, Status::Failed),
            (head(IN, 2047), 1024, Status::Failed),
            (head(IN, u64::MAX / 2), 512, Status::Failed),
            (head(IN, u64::MAX / 512), 512, Status::Failed),
            (with(head(IN, 0), 1), 512, Status::Failed),
            (with(head(OUT, 0), 512), 1, Status::Failed),
            (with(head(OUT, 0), 513), 0, Status::Failed),
            (head(OUT, 0), 0, Status::Failed),
            (head(NAME, 0), 19, Status::Failed),
            (range(DISCARD, 8, 8, 1), 0, Status::Unsupported),
            (range(ZEROES, 8, 8, 2), 0, Status::Unsupported),
            (range(DISCARD, 8, 0, 0), 0, Status::Failed),
            (range(DISCARD, 2041, 8, 0), 0, Status::Failed),
            (with(range(ZEROES, 8, 8, 0), 16), 0, Status::Failed),
            (head(DISCARD, 0), 0, Status::Failed),
            (head(3, 0), 512, Status::Unsupported),
        ];
        for (bytes, room, status) in refused {
            let refusal = parsed(&bytes, room, &disk(false)).unwrap_err();
            assert_eq!(refusal.status, status, "{bytes:?}: {}", refusal.why);
        }
        for bytes in [with(head(OUT, 0), 512), range(DISCARD, 8, 8, 0), range(ZEROES, 8, 8, 0)] {
            assert!(parsed(&bytes, 0, &disk(true)).unwrap_err().why.contains("read-only"));
        }
    }

    #[test]
    fn the_two_streams_of_a_chain_do_not_care_where_it_is_cut() {
        let memory = memory(&[(0, 0x10000)]);
        let bytes: Vec<u8> = [head(OUT, 1), (0..=255).cycle().take(512).collect()].concat();
        for cut in 1..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert!(memory.write(0x100, first) && memory.write(0x2000, second));
            let piece =
                |address, bytes: usize, writable| Piece { address, bytes: bytes as u32, writable };
            let pieces = [
                piece(0x100, first.len(), false),
                piece(0x9000, 0, false),
                piece(0x2000, second.len(), false),
                piece(0x4000, 1, true),
                piece(0x5000, 0, true),
            ];
            let asked = parse(&memory, &pieces, &disk(false));
            let kind = Kind::Write { fua: false, handle: None };
            assert_eq!(asked.task, Ok(Task::Volume(kind, 512, 512)));
            assert_eq!((asked.status_at, asked.readable, asked.writable), (Some(0x4000), 528, 1));
            let mut cursor = Cursor::at(&pieces, false, HEAD_BYTES);
            let (mut one, mut rest, mut beyond) = ([0; 100], [0; 412], [0; 1]);
            assert!(cursor.read(&memory, &pieces, &mut one));
            assert!(cursor.read(&memory, &pieces, &mut rest));
            assert!([&one[..], &rest[..]].concat() == bytes[16..]);
            assert!(!cursor.read(&memory, &pieces, &mut beyond));
        }
        let none =
            parse(&memory, &[Piece { address: 0, bytes: 16, writable: false }], &disk(false));
        assert_eq!(none.status_at, None);
        assert!(none.task.is_err());
    }
}
