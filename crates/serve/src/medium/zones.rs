//! Zones of a zoned block device, by the kernel's requests for them (`linux/blkzoned.h`): each is written
//! in order, from its start to its capacity, and reset as a whole.
//!
//! Resets and finishes have no place in a ring, and take milliseconds: a thread of the store makes
//! them, and tells their end by an eventfd that the ring reads.
//!
//! Invariant: those of one store are made in the order they were asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

/// `BLKGETZONESZ`: sectors of a zone, 0 if the device is none of zones.
const GET_ZONE_SECTORS: libc::c_ulong = 0x8004_1284;
/// `BLKGETNRZONES`.
const GET_ZONES: libc::c_ulong = 0x8004_1285;
/// `BLKREPORTZONE`.
const REPORT: libc::c_ulong = 0xc010_1282;
/// `BLKRESETZONE`.
const RESET: libc::c_ulong = 0x4010_1283;
/// `BLKFINISHZONE`.
const FINISH: libc::c_ulong = 0x4010_1288;

/// What the kernel counts in.
const SECTOR: u64 = 512;
/// Zones told in one report.
const REPORTED_MAX: usize = 4096;
/// Set in a report that tells capacities.
const TELLS_CAPACITY: u32 = 1;

/// How a zone is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneKind {
    /// In order only.
    Sequential,
    /// Anywhere, or as the device prefers: not for us.
    Other,
}

/// What can be done with a zone now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZoneState {
    Empty,
    /// Partly written.
    Active,
    /// To the end, or finished.
    Full,
    /// Its content can be read, and never change.
    ReadOnly,
    /// Nothing can be done with it.
    Offline,
}

/// One zone, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Zone {
    pub at: u64,
    pub bytes: u64,
    /// Of them, those that can be written.
    pub capacity: u64,
    /// Of these, those that were.
    pub written: u64,
    pub kind: ZoneKind,
    pub state: ZoneState,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Range {
    sector: u64,
    sectors: u64,
}

/// `struct blk_zone`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Reported {
    start: u64,
    len: u64,
    write_pointer: u64,
    kind: u8,
    condition: u8,
    flags: [u8; 6],
    capacity: u64,
    reserved: [u8; 24],
}

/// `struct blk_zone_report` with its zones.
#[repr(C)]
struct Report {
    sector: u64,
    count: u32,
    flags: u32,
    zones: [Reported; REPORTED_MAX],
}

/// Bytes of a zone of the block device; `None` if it is not zoned.
pub fn zone_bytes(file: &File) -> io::Result<Option<u64>> {
    let sectors = number(file, GET_ZONE_SECTORS);
    match sectors {
        Ok(0) => Ok(None),
        Ok(sectors) => Ok(Some(u64::from(sectors) * SECTOR)),
        // A plain file, or a kernel without zones.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All zones, in order.
pub fn report(file: &File) -> io::Result<Vec<Zone>> {
    let count = number(file, GET_ZONES)? as usize;
    let mut zones: Vec<Zone> = Vec::with_capacity(count);
    // SAFETY: all zeroes are a report of nothing.
    let mut report: Box<Report> = unsafe { Box::new_zeroed().assume_init() };
    while zones.len() < count {
        report.sector = zones.last().map_or(0, |zone| (zone.at + zone.bytes) / SECTOR);
        (report.count, report.flags) = (REPORTED_MAX as u32, 0);
        // SAFETY: the kernel fills in at most `count` zones, for which there is room.
        ask(unsafe { libc::ioctl(file.as_raw_fd(), REPORT, &raw mut *report) })?;
        let told = (report.count as usize).min(REPORTED_MAX);
        if told == 0 {
            break;
        }
        let with_capacity = report.flags & TELLS_CAPACITY != 0;
        zones.extend(report.zones[..told].iter().map(|zone| understood(zone, with_capacity)));
    }
    Ok(zones)
}

fn understood(zone: &Reported, with_capacity: bool) -> Zone {
    let capacity = if with_capacity { zone.capacity } else { zone.len };
    let state = match zone.condition {
        1 => ZoneState::Empty,
        0xd => ZoneState::ReadOnly,
        0xe => ZoneState::Full,
        0xf => ZoneState::Offline,
        _ => ZoneState::Active,
    };
    let written = match state {
        ZoneState::Empty | ZoneState::Offline => 0,
        ZoneState::Full => capacity,
        // Where it is of no use it is not told, and what is there has to be found by looking.
        ZoneState::ReadOnly => capacity,
        ZoneState::Active => zone.write_pointer.saturating_sub(zone.start).min(capacity),
    };
    Zone {
        at: zone.start * SECTOR,
        bytes: zone.len * SECTOR,
        capacity: capacity * SECTOR,
        written: written * SECTOR,
        kind: if zone.kind == 2 { ZoneKind::Sequential } else { ZoneKind::Other },
        state,
    }
}

/// Empties the zones of a range.
pub fn reset(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    change(file.as_raw_fd(), RESET, at, bytes)
}

/// Nothing more is written to the zones of a range until they are reset.
pub fn finish(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    change(file.as_raw_fd(), FINISH, at, bytes)
}

fn change(fd: RawFd, request: libc::c_ulong, at: u64, bytes: u64) -> io::Result<()> {
    let range = Range { sector: at / SECTOR, sectors: bytes / SECTOR };
    // SAFETY: the kernel reads one range.
    ask(unsafe { libc::ioctl(fd, request, &raw const range) })
}

fn number(file: &File, request: libc::c_ulong) -> io::Result<u32> {
    let mut number = 0u32;
    // SAFETY: the kernel writes one number.
    ask(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut number) }).map(|()| number)
}

fn ask(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a store asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    Reset,
    Finish,
}

struct Task {
    change: Change,
    at: u64,
    bytes: u64,
    event: Arc<Event>,
}

struct Event {
    fd: OwnedFd,
    /// 0, or an error number below it.
    result: AtomicI32,
}

/// The thread that changes zones for one store, and what it was asked for.
pub struct Changer {
    tasks: Sender<Task>,
    /// By job.
    pending: BTreeMap<u32, Arc<Event>>,
}

impl Changer {
    /// Changes zones of `file`. The thread ends with the changer.
    pub fn new(file: File) -> io::Result<Self> {
        let (tasks, asked) = mpsc::channel::<Task>();
        thread::Builder::new().name("zones".into()).spawn(move || {
            for Task { change, at, bytes, event } in asked {
                let result = match change {
                    Change::Reset => reset(&file, at, bytes),
                    Change::Finish => finish(&file, at, bytes),
                };
                let code = result.err().map_or(0, |e| -e.raw_os_error().unwrap_or(libc::EIO));
                event.result.store(code, Ordering::Release);
                let one = 1u64.to_ne_bytes();
                // SAFETY: 8 bytes of ours. An eventfd takes its first count.
                unsafe { libc::write(event.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        })?;
        Ok(Self { tasks, pending: BTreeMap::new() })
    }

    /// Has a zone changed for `job`; the eventfd that tells its end.
    pub fn ask(&mut self, job: u32, change: Change, at: u64, bytes: u64) -> io::Result<RawFd> {
        // SAFETY: a new descriptor, which is ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        ask(fd)?;
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let event = Arc::new(Event { fd, result: AtomicI32::new(0) });
        self.pending.insert(job, event.clone());
        let fd = event.fd.as_raw_fd();
        self.tasks.send(Task { change, at, bytes, event }).map_err(io::Error::other)?;
        Ok(fd)
    }

    /// What came of the change that `job` asked for, if it did: 0, or an error number below it.
    pub fn take(&mut self, job: u32) -> Option<i32> {
        Some(self.pending.remove(&job)?.result.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ring::EVENT_BYTES;

    #[test]
    fn the_kernels_words_for_a_zone_are_understood() {
        assert_eq!(size_of::<Reported>(), 64, "struct blk_zone");
        assert_eq!(std::mem::offset_of!(Report, zones), 16, "struct blk_zone_report");
        let zone = Reported {
            start: 2048,
            len: 1024,
            write_pointer: 2048 + 16,
            kind: 2,
            condition: 2,
            capacity: 768,
            ..Reported::default()
        };
        let found = understood(&zone, true);
        let wanted = Zone {
            at: 1 << 20,
            bytes: 512 << 10,
            capacity: 384 << 10,
            written: 8 << 10,
            kind: ZoneKind::Sequential,
            state: ZoneState::Active,
        };
        assert_eq!(found, wanted);
        // A kernel that tells no capacity means the whole zone.
        assert_eq!(understood(&zone, false).capacity, 512 << 10);
        let of = |condition| understood(&Reported { condition, ..zone }, true);
        assert_eq!((of(1).state, of(1).written), (ZoneState::Empty, 0));
        assert_eq!((of(0xe).state, of(0xe).written), (ZoneState::Full, 384 << 10));
        assert_eq!(of(0xd).state, ZoneState::ReadOnly);
        assert_eq!((of(0xf).state, of(0xf).written), (ZoneState::Offline, 0));
        assert_eq!(understood(&Reported { kind: 1, ..zone }, true).kind, ZoneKind::Other);
    }

    #[test]
    fn a_plain_file_has_no_zones_and_a_change_of_one_is_refused() {
        let file = File::open("/dev/null").unwrap();
        assert_eq!(zone_bytes(&file).unwrap(), None);
        assert!(report(&file).is_err());
        let mut changer = Changer::new(file).unwrap();
        let fd = changer.ask(3, Change::Reset, 0, 4096).unwrap();
        let mut bytes = [0u8; EVENT_BYTES];
        // SAFETY: as many bytes as are asked for.
        let got = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), EVENT_BYTES) };
        assert_eq!(got, EVENT_BYTES as isize);
        assert_eq!(changer.take(3), Some(-libc::ENOTTY));
        assert_eq!(changer.take(3), None);
    }
}
