//! The log of the embedded plane (docs/formats.md, "Log of the embedded control plane").
//!
//! A head, a snapshot, then one record for each change. Records are numbered and say up to which number all was
//! durable when they were written. So what follows the last sound record is told apart: a torn tail was never
//! answered for and is not there; a gap that a later record knows to have been durable is damage. A snapshot
//! replaces the file as a whole, so a snapshot that is not whole is damage, too.

use super::codec::{Reader, Writer};
use super::contract::{Change, KEY_BYTES_MAX, LeaseId, VALUE_BYTES_MAX};
use super::lives::Life;
use crate::words::PoolId;
use std::fmt;

/// One record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    /// A snapshot begins, of so many records that follow.
    Snapshot { revision: u64, epoch: u64, leases_next: u64, records: u32 },
    /// Of a snapshot: a key.
    Key { key: String, value: Vec<u8>, revision: u64, lease: Option<LeaseId> },
    /// A lease was given out; in a snapshot, too.
    Lease { lease: LeaseId, ttl_ns: u64 },
    /// The plane started anew.
    Opened { epoch: u64, stamp: u64 },
    /// Of a snapshot: a start, and the revision then.
    Life(Life),
    /// A commit.
    Commit { revision: u64, changes: Vec<Change> },
    /// A lease ended, and its keys with it.
    Ended { lease: LeaseId, revision: u64 },
}

/// Why a log is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogError {
    /// It does not begin as one.
    NotALog,
    /// It was written by a version that knows more.
    Version(u16),
    /// It is another pool's.
    Pool(PoolId),
    /// Something that was durable is not there, or not sound.
    Damaged {
        /// Where, in bytes.
        at: usize,
    },
    /// It is older than what is known of it: it was restored from a backup.
    Old {
        /// Its revision.
        revision: u64,
        /// It had this one.
        known: u64,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALog => f.write_str("is not the log of a control plane: name the right file"),
            Self::Version(version) => {
                write!(f, "was written by a newer version (format {version}): update this one")
            }
            Self::Pool(pool) => write!(f, "belongs to pool {:032x}: name this pool's", pool.0),
            Self::Damaged { at } => {
                write!(f, "is damaged at byte {at}: put back the newest good copy of it")
            }
            Self::Old { revision, known } => write!(
                f,
                "ends at revision {revision}, but had {known}: it is an old copy, put back the newest one"
            ),
        }
    }
}

/// What a file begins with.
pub(super) fn head(pool: PoolId) -> Vec<u8> {
    let mut to = Writer { bytes: MAGIC.to_vec() };
    to.u16(VERSION);
    to.u16(0);
    to.u128(pool.0);
    let sum = flash::crc(&to.bytes);
    to.u32(sum);
    to.bytes
}

/// Whether a log that was read is of an older version.
pub(super) fn is_of_before(bytes: &[u8]) -> bool {
    bytes.get(4..6) != Some(&VERSION.to_le_bytes())
}

/// Appends a record to `bytes`.
pub(super) fn write(bytes: &mut Vec<u8>, sequence: u64, stored: u64, record: &Record) {
    let mut to = Writer::default();
    to.u64(sequence);
    to.u64(stored);
    body(&mut to, record);
    let length = u32::try_from(to.bytes.len()).expect("a record is bounded");
    bytes.extend(length.to_le_bytes());
    bytes.extend(flash::crc(&to.bytes).to_le_bytes());
    bytes.extend(to.bytes);
}

/// The sound records of a file, with the number behind the last one, and how long the file is without its torn
/// tail.
pub(super) fn read(pool: PoolId, bytes: &[u8]) -> Result<(Vec<Record>, u64, usize), LogError> {
    let rest = check_head(pool, bytes)?;
    let (mut records, mut at, mut next) = (Vec::new(), bytes.len() - rest.len(), 0);
    while let Some((sequence, _, record, length)) = record_at(&bytes[at..]) {
        if next != 0 && sequence != next {
            return Err(LogError::Damaged { at });
        }
        records.push(record);
        (next, at) = (sequence + 1, at + length);
    }
    // A record behind the gap that says that what is missing was durable makes the gap damage.
    let later = (at + 1..bytes.len()).filter_map(|at| record_at(&bytes[at..]));
    if later.into_iter().any(|(_, stored, _, _)| stored >= next.max(1)) {
        return Err(LogError::Damaged { at });
    }
    match records.first() {
        Some(&Record::Snapshot { records: count, .. }) if records.len() > count as usize => {
            Ok((records, next, at))
        }
        _ => Err(LogError::Damaged { at }),
    }
}

fn check_head(pool: PoolId, bytes: &[u8]) -> Result<&[u8], LogError> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(LogError::NotALog)?;
    let mut from = Reader { bytes: head };
    let fields = (from.take(4), from.u16(), from.u16(), from.u128(), from.u32());
    let (Some(magic), Some(version), Some(_), Some(of), Some(sum)) = fields else {
        return Err(LogError::NotALog);
    };
    if magic != MAGIC {
        return Err(LogError::NotALog);
    }
    if sum != flash::crc(&head[..HEAD_BYTES - 4]) {
        return Err(LogError::Damaged { at: 0 });
    }
    if !(1..=VERSION).contains(&version) {
        return Err(LogError::Version(version));
    }
    if of != pool.0 { Err(LogError::Pool(PoolId(of))) } else { Ok(rest) }
}

/// A sound record at the front of `bytes`: its number, what was durable before it, and its bytes.
fn record_at(bytes: &[u8]) -> Option<(u64, u64, Record, usize)> {
    let mut from = Reader { bytes };
    let (length, sum) = (from.u32()? as usize, from.u32()?);
    if !(17..=RECORD_BYTES_MAX).contains(&length) {
        return None;
    }
    let taken = from.take(length)?;
    if flash::crc(taken) != sum {
        return None;
    }
    let mut from = Reader { bytes: taken };
    let (sequence, stored) = (from.u64()?, from.u64()?);
    let record = body_of(&mut from)?;
    from.bytes.is_empty().then_some((sequence, stored, record, length + 8))
}

fn body(to: &mut Writer, record: &Record) {
    match record {
        Record::Snapshot { revision, epoch, leases_next, records } => {
            to.u8(1);
            to.u64(*revision);
            to.u64(*epoch);
            to.u64(*leases_next);
            to.u32(*records);
        }
        Record::Key { key, value, revision, lease } => {
            to.u8(2);
            to.slice(key.as_bytes());
            to.slice(value);
            to.u64(*revision);
            to.u64(lease.map_or(0, |lease| lease.0));
        }
        Record::Lease { lease, ttl_ns } => {
            to.u8(3);
            to.u64(lease.0);
            to.u64(*ttl_ns);
        }
        Record::Opened { epoch, stamp } => {
            to.u8(4);
            to.u64(*epoch);
            if *stamp != 0 {
                to.u64(*stamp);
            }
        }
        Record::Life(Life { stamp, revision }) => {
            to.u8(7);
            to.u64(*stamp);
            to.u64(*revision);
        }
        Record::Commit { revision, changes } => {
            to.u8(5);
            to.u64(*revision);
            to.u32(changes.len() as u32);
            for change in changes {
                write_change(to, change);
            }
        }
        Record::Ended { lease, revision } => {
            to.u8(6);
            to.u64(lease.0);
            to.u64(*revision);
        }
    }
}

fn write_change(to: &mut Writer, change: &Change) {
    to.slice(change.key().as_bytes());
    match change {
        Change::Put { value, lease, .. } => {
            to.u8(1);
            to.slice(value);
            to.u64(lease.map_or(0, |lease| lease.0));
        }
        Change::Delete { .. } => to.u8(0),
    }
}

fn body_of(from: &mut Reader<'_>) -> Option<Record> {
    let lease = |number: u64| (number != 0).then_some(LeaseId(number));
    Some(match from.u8()? {
        1 => {
            let (revision, epoch, leases_next) = (from.u64()?, from.u64()?, from.u64()?);
            Record::Snapshot { revision, epoch, leases_next, records: from.u32()? }
        }
        2 => {
            let (key, value) = (from.text()?, from.slice()?.to_vec());
            Record::Key { key, value, revision: from.u64()?, lease: lease(from.u64()?) }
        }
        3 => Record::Lease { lease: LeaseId(from.u64()?), ttl_ns: from.u64()? },
        // Of version 1, which drew no stamps.
        4 if from.bytes.len() == 8 => Record::Opened { epoch: from.u64()?, stamp: 0 },
        4 => Record::Opened { epoch: from.u64()?, stamp: from.u64()? },
        5 => {
            let (revision, count) = (from.u64()?, from.u32()?);
            let mut changes = Vec::new();
            for _ in 0..count {
                let key = from.text()?;
                changes.push(match from.u8()? {
                    1 => {
                        let value = from.slice()?.to_vec();
                        Change::Put { key, value, lease: lease(from.u64()?) }
                    }
                    0 => Change::Delete { key },
                    _ => return None,
                });
            }
            Record::Commit { revision, changes }
        }
        6 => Record::Ended { lease: LeaseId(from.u64()?), revision: from.u64()? },
        7 => Record::Life(Life { stamp: from.u64()?, revision: from.u64()? }),
        _ => return None,
    })
}

const MAGIC: &[u8; 4] = b"WPLN";
/// Version 1 drew no stamps. It becomes this one when it is opened.
const VERSION: u16 = 2;
/// Magic, version, 2 bytes of zeroes, pool, checksum.
const HEAD_BYTES: usize = 28;
/// A commit of as many of the largest values as a commit may have.
const RECORD_BYTES_MAX: usize =
    super::contract::CHANGES_MAX * (VALUE_BYTES_MAX + KEY_BYTES_MAX + 32) + 64;

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(7);

    fn records() -> Vec<Record> {
        let key = "node/00000001".to_owned();
        let put = Change::Put { key: key.clone(), value: vec![1, 2], lease: None };
        vec![
            Record::Snapshot { revision: 3, epoch: 1, leases_next: 2, records: 2 },
            Record::Key { key: key.clone(), value: vec![9], revision: 3, lease: Some(LeaseId(1)) },
            Record::Lease { lease: LeaseId(1), ttl_ns: 5 },
            Record::Opened { epoch: 2, stamp: 77 },
            Record::Life(Life { stamp: 77, revision: 3 }),
            Record::Opened { epoch: 3, stamp: 0 },
            Record::Commit { revision: 4, changes: vec![put, Change::Delete { key: "a".into() }] },
            Record::Ended { lease: LeaseId(1), revision: 5 },
        ]
    }

    /// Record `i` has number `i + 1`, and all before it was durable.
    fn file() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (head(POOL), Vec::new());
        for (at, record) in (0..).zip(&records()) {
            write(&mut bytes, at + 1, at, record);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_log_reads_back_and_a_torn_tail_is_not_there() {
        let (bytes, ends) = file();
        assert_eq!(read(POOL, &bytes), Ok((records(), 9, bytes.len())));
        for cut in ends[2]..bytes.len() {
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            let (found, next, length) =
                read(POOL, &bytes[..cut]).expect("a torn tail is no damage");
            assert_eq!(found, records()[..whole], "cut at {cut}");
            assert_eq!((next, length), (whole as u64 + 1, ends[whole - 1]));
        }
    }

    #[test]
    fn whatever_changes_before_the_last_record_is_damage() {
        let (bytes, ends) = file();
        for at in 0..ends[ends.len() - 2] {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read(POOL, &changed).is_err(), "byte {at} changed");
        }
        for cut in 0..ends[2] {
            assert!(read(POOL, &bytes[..cut]).is_err(), "a snapshot cut at {cut} is not whole");
        }
    }

    #[test]
    fn a_log_of_another_pool_or_version_is_refused_by_name() {
        let (mut bytes, _) = file();
        assert_eq!(read(PoolId(8), &bytes), Err(LogError::Pool(POOL)));
        bytes[4] = 3;
        let sum = flash::crc(&bytes[..HEAD_BYTES - 4]).to_le_bytes();
        bytes[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&sum);
        assert_eq!(read(POOL, &bytes), Err(LogError::Version(3)));
        assert_eq!(read(POOL, b"hello"), Err(LogError::NotALog));
    }
}
