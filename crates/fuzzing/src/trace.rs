//! Traces: any bytes, in any format, are read as records or refused with an error that has a
//! message, never a panic; what is read holds the invariants of a record, and Weir's own format
//! gives it back.

use lab::trace::{ADDRESS_MAX, Format, LENGTH_MAX, Op, Options, Reader, Record};
use std::io::Cursor;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let options = Options {
        // One more than there are: let it be found out.
        format: Format::ALL.get(usize::from(choice & 15)).copied(),
        skip_bad: choice & 16 != 0,
        repair_time: choice & 32 != 0,
        sector_bytes: if choice & 64 != 0 { 4096 } else { 512 },
        action: if choice & 128 != 0 { 'Q' } else { 'D' },
    };
    read(bytes, &options);
    // The checksums of our own format are hard to guess: its decoder sees a sound block too.
    if options.format == Some(Format::Weir) {
        read(&framed(bytes), &options);
    }
}

fn read(bytes: &[u8], options: &Options) {
    let Ok(reader) = Reader::from_read("trace", Cursor::new(bytes.to_vec()), options) else {
        return;
    };
    let mut last_ns = None;
    for record in reader {
        match record {
            Ok(record) => {
                verify(&record, last_ns);
                last_ns = Some(record.time_ns);
            }
            Err(error) => assert!(!error.to_string().is_empty(), "an error says what is wrong"),
        }
    }
}

fn verify(record: &Record, last_ns: Option<u64>) {
    match last_ns {
        None => assert_eq!(record.time_ns, 0, "time begins with the first record"),
        Some(last_ns) => assert!(record.time_ns >= last_ns, "time does not go back"),
    }
    assert!(record.offset + record.length <= ADDRESS_MAX);
    match record.op {
        Op::Read | Op::Write => assert!((1..=LENGTH_MAX).contains(&record.length)),
        Op::Trim => assert!(record.length > 0),
        Op::Flush => assert_eq!((record.offset, record.length), (0, 0)),
    }
}

/// The bytes as the payload of one sound block; the first says how many records it is to have.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let Some((&records, payload)) = bytes.split_first() else { return Vec::new() };
    let mut out = Vec::from(*b"WeirTrc\x01");
    for (payload, records) in [(payload, u32::from(records)), (&[][..], 0)] {
        let mut block = (payload.len() as u32).to_le_bytes().to_vec();
        block.extend(records.to_le_bytes());
        block.extend(payload);
        let sum = flash::crc(&block);
        out.extend(block);
        out.extend(sum.to_le_bytes());
    }
    out
}
