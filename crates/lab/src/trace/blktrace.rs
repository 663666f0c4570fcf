//! What `blktrace` records: one file of its binary events, of one processor or as `blkparse -d`
//! merges them. Each event is 48 bytes in the recording machine's order, and data of its own.
//!
//! One action makes a record, as in the text of `blkparse`; notes, requests of drivers and the
//! other actions are passed over. A volume is a device, named `major,minor`.

use super::reader::Found;
use super::{Context, Op, Record};
use std::io::{self, Read};

/// The upper 24 bits of an event's first word; the lower 8 are the version.
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const EVENT_BYTES: usize = 48;

/// Bits of the upper half of an event's action: the kind of request.
const WRITE: u32 = 1 << 1;
const FLUSH: u32 = 1 << 2;
const DRIVER: u32 = 1 << 9;
const NOTE: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;
const FUA: u32 = 1 << 15;

/// The lower half of an event's action, and its letter.
const ACTIONS: [(u32, char); 13] = [
    (1, 'Q'),
    (2, 'M'),
    (3, 'F'),
    (4, 'G'),
    (5, 'S'),
    (6, 'R'),
    (7, 'D'),
    (8, 'C'),
    (9, 'P'),
    (10, 'U'),
    (12, 'I'),
    (13, 'X'),
    (15, 'A'),
];

/// True if a file begins as one of these.
pub(super) fn is_magic(head: &[u8]) -> bool {
    let Some(word) = head.first_chunk::<4>() else { return false };
    [u32::from_le_bytes(*word), u32::from_be_bytes(*word)].contains(&(MAGIC | VERSION))
}

pub(super) struct Decoder {
    bytes: Box<dyn Read + Send>,
    /// Where the next event stands, and the one before.
    next_at: u64,
    at: u64,
    ended: bool,
}

impl Decoder {
    pub(super) fn new(bytes: Box<dyn Read + Send>) -> Self {
        Self { bytes, next_at: 0, at: 0, ended: false }
    }

    /// Where the last event stood.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn find(&mut self, context: &mut Context) -> io::Result<Found> {
        let bad = |reason: &str| Ok(Found::Bad(reason.into(), String::new()));
        while !self.ended {
            self.at = self.next_at;
            let mut event = Vec::with_capacity(EVENT_BYTES);
            self.bytes.by_ref().take(EVENT_BYTES as u64).read_to_end(&mut event)?;
            if event.is_empty() {
                break;
            }
            let Some(event) = event.first_chunk::<EVENT_BYTES>() else {
                self.ended = true;
                return bad("the file is cut off in an event");
            };
            if !is_magic(event) {
                self.ended = true;
                return bad("is no event of blktrace version 7: what follows is lost");
            }
            let event = Event::decode(event);
            let data = u64::from(event.data_bytes);
            let skipped = io::copy(&mut self.bytes.by_ref().take(data), &mut io::sink())?;
            self.next_at = self.at + EVENT_BYTES as u64 + skipped;
            if skipped < data {
                self.ended = true;
                return bad("the file is cut off in the data of an event");
            }
            match event.record(context) {
                Ok(Some(record)) => return Ok(Found::Record(record)),
                Ok(None) => {}
                Err(reason) => return bad(&reason),
            }
        }
        Ok(Found::End)
    }
}

struct Event {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    data_bytes: u16,
}

impl Event {
    fn decode(event: &[u8; EVENT_BYTES]) -> Self {
        let little = event[0] == VERSION as u8;
        let number = |at: usize, length: usize| {
            let bytes = event[at..at + length].iter().map(|&byte| u64::from(byte));
            let fold = |value: u64, byte: u64| value << 8 | byte;
            if little { bytes.rev().fold(0, fold) } else { bytes.fold(0, fold) }
        };
        Self {
            time_ns: number(8, 8),
            sector: number(16, 8),
            bytes: number(24, 4) as u32,
            action: number(28, 4) as u32,
            device: number(36, 4) as u32,
            data_bytes: number(46, 2) as u16,
        }
    }

    fn record(&self, context: &mut Context) -> Result<Option<Record>, String> {
        let kind = self.action >> 16;
        let action = ACTIONS.iter().find(|(code, _)| *code == self.action & 0xffff);
        let chosen = action.is_some_and(|(_, letter)| *letter == context.action);
        if kind & (NOTE | DRIVER) != 0 || !chosen {
            return Ok(None);
        }
        let op = match () {
            () if kind & DISCARD != 0 => Op::Trim,
            () if kind & FLUSH != 0 && self.bytes == 0 => Op::Flush,
            () if kind & WRITE != 0 => Op::Write,
            () => Op::Read,
        };
        if self.bytes == 0 && op != Op::Flush {
            return Ok(None);
        }
        let (offset, _) = context.sectors(self.sector, 0)?;
        let name = format!("{},{}", self.device >> 20, self.device & 0xf_ffff);
        Ok(Some(Record {
            time_ns: self.time_ns,
            op,
            fua: kind & FUA != 0 && matches!(op, Op::Write | Op::Trim),
            offset: if op == Op::Flush { 0 } else { offset },
            length: u64::from(self.bytes),
            volume: context.names.number(&name)?,
            response_ns: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoder, FLUSH, MAGIC, NOTE, VERSION, WRITE};
    use crate::trace::reader::Found;
    use crate::trace::{Context, Op, Record};
    use std::io::Cursor;

    fn event(action: u32, sector: u64, bytes: u32, data: &[u8]) -> Vec<u8> {
        let mut event = Vec::new();
        event.extend((MAGIC | VERSION).to_le_bytes());
        event.extend(1u32.to_le_bytes());
        event.extend(5_000u64.to_le_bytes());
        event.extend(sector.to_le_bytes());
        event.extend(bytes.to_le_bytes());
        event.extend(action.to_le_bytes());
        event.extend(77u32.to_le_bytes());
        event.extend((8u32 << 20 | 1).to_le_bytes());
        event.extend(0u32.to_le_bytes());
        event.extend(0u16.to_le_bytes());
        event.extend((data.len() as u16).to_le_bytes());
        event.extend(data);
        event
    }

    fn all(bytes: Vec<u8>) -> Result<Vec<Record>, String> {
        let mut decoder = Decoder::new(Box::new(Cursor::new(bytes)));
        let mut context = Context::new(512, 'D');
        let mut records = Vec::new();
        loop {
            match decoder.find(&mut context).expect("memory can be read") {
                Found::Record(record) => records.push(record),
                Found::Bad(reason, _) => return Err(reason),
                Found::End => return Ok(records),
            }
        }
    }

    #[test]
    fn issued_requests_are_records_and_the_rest_is_passed_over() {
        let mut bytes = event(NOTE << 16, 0, 0, b"process");
        bytes.extend(event(WRITE << 16 | 1, 8, 4096, &[]));
        bytes.extend(event(WRITE << 16 | 7, 8, 4096, &[1, 2, 3]));
        bytes.extend(event(FLUSH << 16 | 7, 0, 0, &[]));
        let write = Record {
            time_ns: 5_000,
            op: Op::Write,
            fua: false,
            offset: 4096,
            length: 4096,
            volume: 0,
            response_ns: None,
        };
        let flush = Record { op: Op::Flush, offset: 0, length: 0, ..write };
        assert_eq!(all(bytes), Ok(vec![write, flush]));
    }

    #[test]
    fn a_cut_and_a_wrong_event_are_told() {
        let bytes = event(WRITE << 16 | 7, 8, 4096, &[1, 2, 3]);
        for end in 1..bytes.len() {
            assert!(all(bytes[..end].to_vec()).unwrap_err().contains("cut off"), "{end}");
        }
        let mut wrong = bytes.clone();
        wrong.extend([0; 48]);
        assert!(all(wrong).unwrap_err().contains("no event"));
    }
}
