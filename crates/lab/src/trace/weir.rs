//! Weir's own trace format: compact, with a checksum per block of records. `docs/traces.md` has it
//! byte by byte.
//!
//! Invariants: a block can be read without any other; a file without the block that ends it was cut
//! off, and reading it tells; `decode(encode(records)) == records`.

use super::reader::{Found, check};
use super::{Op, Reason, Record};
use std::io::{self, Read, Write};

/// How a file begins; the last byte is the version.
pub(super) const MAGIC: [u8; 8] = *b"WeirTrc\x01";

/// Before the payload: its bytes, and its records.
const HEADER_BYTES: usize = 8;
/// Behind the payload: CRC-32C of all of the block before.
const CHECKSUM_BYTES: usize = 4;
/// Records of a block that is written; about 30 KB.
const RECORDS: u32 = 4096;
/// Most payload bytes of a block that is read.
const PAYLOAD_BYTES_MAX: u32 = 1 << 20;
/// A record has at least its flags, its time and its place.
const RECORD_BYTES_MIN: u32 = 3;

const FLAG_OP: u8 = 0b11;
const FLAG_FUA: u8 = 1 << 2;
/// The response time follows.
const FLAG_RESPONSE: u8 = 1 << 3;
/// The volume follows; else it is that of the record before.
const FLAG_VOLUME: u8 = 1 << 4;
/// The length follows; else it is that of the record before.
const FLAG_LENGTH: u8 = 1 << 5;
/// The place counts bytes; else it, and the length, count sectors of 512.
const FLAG_BYTES: u8 = 1 << 6;
const FLAG_UNKNOWN: u8 = 1 << 7;

/// What a record is told against; at the start of a block all zeroes.
#[derive(Clone, Copy, Default)]
struct Before {
    time_ns: u64,
    volume: u32,
    length: u64,
    end: u64,
}

impl Before {
    fn of(record: &Record) -> Self {
        let Record { time_ns, volume, length, .. } = *record;
        Self { time_ns, volume, length, end: record.end() }
    }
}

/// Writes the format.
pub(super) struct Encoder<W: Write> {
    out: W,
    /// Room for the header, and the payload so far.
    block: Vec<u8>,
    records: u32,
    before: Before,
    last_ns: u64,
}

impl<W: Write> Encoder<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        let (block, before) = (vec![0; HEADER_BYTES], Before::default());
        Ok(Self { out, block, records: 0, before, last_ns: 0 })
    }

    /// Writes a record. Time must not go back.
    pub(super) fn write(&mut self, record: &Record) -> io::Result<()> {
        assert!(record.time_ns >= self.last_ns, "a reader gives records in order of time");
        self.last_ns = record.time_ns;
        encode(record, &self.before, &mut self.block);
        self.before = Before::of(record);
        self.records += 1;
        if self.records == RECORDS { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let payload_bytes = (self.block.len() - HEADER_BYTES) as u32;
        self.block[..4].copy_from_slice(&payload_bytes.to_le_bytes());
        self.block[4..HEADER_BYTES].copy_from_slice(&self.records.to_le_bytes());
        let sum = flash::crc(&self.block);
        self.out.write_all(&self.block)?;
        self.out.write_all(&sum.to_le_bytes())?;
        self.block.truncate(HEADER_BYTES);
        self.records = 0;
        self.before = Before::default();
        Ok(())
    }

    /// Ends the file and gives back what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        if self.records > 0 {
            self.end_block()?;
        }
        self.end_block()?;
        Ok(self.out)
    }
}

fn encode(record: &Record, before: &Before, out: &mut Vec<u8>) {
    let code = match record.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Trim => 2,
        Op::Flush => 3,
    };
    let sectors = [record.offset, record.length, before.end];
    let in_bytes = sectors.iter().any(|bytes| !bytes.is_multiple_of(512));
    let unit = if in_bytes { 1 } else { 512 };
    let flag = |flag: u8, set: bool| if set { flag } else { 0 };
    out.push(
        code | flag(FLAG_FUA, record.fua)
            | flag(FLAG_RESPONSE, record.response_ns.is_some())
            | flag(FLAG_VOLUME, record.volume != before.volume)
            | flag(FLAG_LENGTH, record.length != before.length)
            | flag(FLAG_BYTES, in_bytes),
    );
    put(record.time_ns - before.time_ns, out);
    if record.volume != before.volume {
        put(u64::from(record.volume), out);
    }
    // Addresses end below 2^62: the difference fits.
    let step = (record.offset as i64 - before.end as i64) / unit;
    put(((step << 1) ^ (step >> 63)) as u64, out);
    if record.length != before.length {
        put(record.length / unit as u64, out);
    }
    if let Some(response_ns) = record.response_ns {
        put(response_ns, out);
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the format.
pub(super) struct Decoder {
    bytes: Box<dyn Read + Send>,
    /// The block being read: header and payload.
    block: Vec<u8>,
    /// What is used of it.
    used: usize,
    /// Records left in it.
    left: u32,
    before: Before,
    /// Where it stands in the file.
    block_at: u64,
    /// Where the next one does.
    next_at: u64,
    begun: bool,
    ended: bool,
}

impl Decoder {
    pub(super) fn new(bytes: Box<dyn Read + Send>) -> Self {
        Self {
            bytes,
            block: Vec::new(),
            used: 0,
            left: 0,
            before: Before::default(),
            block_at: 0,
            next_at: 0,
            begun: false,
            ended: false,
        }
    }

    /// Where the next record stands.
    pub(super) fn at(&self) -> u64 {
        self.block_at + self.used as u64
    }

    pub(super) fn find(&mut self) -> io::Result<Found> {
        if !self.begun {
            self.begun = true;
            if let Some(bad) = self.read_magic()? {
                return Ok(bad);
            }
        }
        while self.left == 0 {
            if self.ended {
                return Ok(Found::End);
            }
            if let Some(bad) = self.read_block()? {
                return Ok(bad);
            }
        }
        self.left -= 1;
        let mut rest = &self.block[self.used..];
        let record = decode(&mut rest, &self.before);
        self.used = self.block.len() - rest.len();
        match record {
            Ok(record) if self.left > 0 || rest.is_empty() => {
                self.before = Before::of(&record);
                Ok(Found::Record(record))
            }
            // The checksum is right, so whoever wrote it is wrong: nothing after it is to be trusted.
            outcome => {
                self.left = 0;
                let reason = outcome.err().unwrap_or_else(|| "has bytes after its records".into());
                Ok(Found::Bad(format!("the block is malformed: {reason}"), String::new()))
            }
        }
    }

    fn read_magic(&mut self) -> io::Result<Option<Found>> {
        let mut magic = [0; MAGIC.len()];
        let read = read_up_to(&mut self.bytes, &mut magic)?;
        self.next_at = read as u64;
        if magic == MAGIC {
            return Ok(None);
        }
        self.ended = true;
        let reason = match magic[..7] == MAGIC[..7] {
            true => format!("version {} of the format: this weir reads version 1", magic[7]),
            false => "does not begin as a trace of Weir's own format".into(),
        };
        Ok(Some(Found::Bad(reason, String::new())))
    }

    /// `Some` if the next block cannot be used.
    fn read_block(&mut self) -> io::Result<Option<Found>> {
        (self.block_at, self.used, self.before) = (self.next_at, 0, Before::default());
        let bad = |reason: String| Ok(Some(Found::Bad(reason, String::new())));
        // Until the block is known to be whole and its length to be right, nothing follows it.
        self.ended = true;
        self.block.clear();
        self.block.resize(HEADER_BYTES, 0);
        let read = read_up_to(&mut self.bytes, &mut self.block)?;
        if read < HEADER_BYTES {
            return bad("the file is cut off: it has no end".into());
        }
        let field =
            |at: usize| self.block[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let (length, records) = (field(0), field(4));
        if length > PAYLOAD_BYTES_MAX || records > length / RECORD_BYTES_MIN {
            return bad("the header of a block is damaged: what follows is lost".into());
        }
        let end = HEADER_BYTES + length as usize;
        self.block.resize(end + CHECKSUM_BYTES, 0);
        let read = read_up_to(&mut self.bytes, &mut self.block[HEADER_BYTES..])?;
        if HEADER_BYTES + read < self.block.len() {
            return bad("the file is cut off in a block".into());
        }
        self.next_at += self.block.len() as u64;
        let sum = self.block[end..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        self.block.truncate(end);
        self.ended = false;
        if sum != flash::crc(&self.block) {
            return bad(format!("the checksum of a block of {records} records is wrong"));
        }
        (self.used, self.left) = (HEADER_BYTES, records);
        self.ended = length == 0;
        Ok(None)
    }
}

/// As many bytes as there are, up to the length of `into`.
fn read_up_to(bytes: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match bytes.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn decode(rest: &mut &[u8], before: &Before) -> Result<Record, Reason> {
    let Some((&flags, after)) = rest.split_first() else {
        return Err("ends before its last record".into());
    };
    *rest = after;
    if flags & FLAG_UNKNOWN != 0 {
        return Err(format!("a record has the unknown flags {flags:#x}"));
    }
    let op = match flags & FLAG_OP {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Trim,
        _ => Op::Flush,
    };
    let unit = if flags & FLAG_BYTES != 0 { 1 } else { 512 };
    let out_of_range = || "a number is out of range".to_string();
    let time_ns = before.time_ns.checked_add(take(rest)?).ok_or_else(out_of_range)?;
    let volume = match flags & FLAG_VOLUME != 0 {
        true => u32::try_from(take(rest)?).map_err(|_| out_of_range())?,
        false => before.volume,
    };
    let step = take(rest)?;
    let step = (step >> 1) as i64 ^ -((step & 1) as i64);
    let offset = step.checked_mul(unit).and_then(|step| before.end.checked_add_signed(step));
    let offset = offset.ok_or_else(out_of_range)?;
    let length = match flags & FLAG_LENGTH != 0 {
        true => take(rest)?.checked_mul(unit as u64).ok_or_else(out_of_range)?,
        false => before.length,
    };
    let response_ns = if flags & FLAG_RESPONSE != 0 { Some(take(rest)?) } else { None };
    let fua = flags & FLAG_FUA != 0;
    let mut record = Record { time_ns, op, fua, offset, length, volume, response_ns };
    check(&mut record)?;
    Ok(record)
}

fn take(rest: &mut &[u8]) -> Result<u64, Reason> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((&byte, after)) = rest.split_first() else {
            return Err("ends within a number".into());
        };
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("has a number of more than 64 bits".into())
}
