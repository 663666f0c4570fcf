//! What a zoned disk's request asks of a zoned namespace, what its parameters promise of that, and how Linux is told of zones.

use crate::attach::target::{Shown, Zones};
use crate::attach::ublk::abi::{self, Descriptor, Parameters};
use crate::attach::ublk::asked::SECTOR;
use crate::nbd::constants::SEND_READ_ONLY;
use client::nvme::{self, Entry, u64_at};

/// Most data in the capsule of a command; more is asked for.
pub const CAPSULE_BYTES_MAX: u32 = 8192;
/// Bytes of a zone's descriptor in a report, and of what precedes them: as many as Linux has.
const DESCRIPTOR_BYTES: usize = abi::ZONE_BYTES;
/// Bytes of the report of one zone.
pub const REPORT_OF_ONE: u32 = 2 * DESCRIPTOR_BYTES as u32;

const FUA: u32 = 1 << 30;
const ALL_ZONES: u32 = 1 << 8;
/// A report says how many zones are in it, and not how many there are.
const PARTIAL: u32 = 1 << 16;
/// Actions on a zone.
const CLOSE: u8 = 1;
const FINISH: u8 = 2;
const OPEN: u8 = 3;
/// Makes it empty.
pub const RESET: u8 = 4;

/// States of a zone: between these are those of open ones.
const EMPTY: u8 = 1;
const CLOSED: u8 = 4;
const FULL: u8 = 0xe;
/// Attribute of a zone: it became full without the host.
const CUT_SHORT: u8 = 1;

/// What is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// Read.
    Read,
    /// Write at the write pointer, which the host knows.
    Write { fua: bool },
    /// Write at the write pointer, wherever that is.
    Append { fua: bool },
    /// Flush.
    Flush,
    /// An action on a zone, or on all.
    Manage { action: u8, all: bool },
    /// Tell of so many zones at most.
    Report { zones: u32 },
}

/// A request of a zoned namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asked {
    /// What.
    pub work: Work,
    /// From which block on.
    pub first: u64,
    /// How many.
    pub blocks: u32,
}

impl Asked {
    /// What a descriptor asks; `None` for what no zoned namespace does. Data is at most `io_bytes`.
    pub fn of(descriptor: &Descriptor, zones: &Zones, io_bytes: u32) -> Option<Self> {
        let Descriptor { operation, sectors, first, .. } = *descriptor;
        let (shift, fua) = (sector_shift(zones), operation & abi::FUA != 0);
        let of_zone = |action| (Work::Manage { action, all: false }, 0);
        let (work, sectors) = match operation as u8 {
            // Of the whole disk, whatever else it says.
            abi::FLUSH => return Some(Self { work: Work::Flush, first: 0, blocks: 0 }),
            abi::ZONE_RESET_ALL => {
                let work = Work::Manage { action: RESET, all: true };
                return Some(Self { work, first: 0, blocks: 0 });
            }
            abi::READ => (Work::Read, sectors),
            abi::WRITE => (Work::Write { fua }, sectors),
            abi::ZONE_APPEND => (Work::Append { fua }, sectors),
            abi::ZONE_OPEN => of_zone(OPEN),
            abi::ZONE_CLOSE => of_zone(CLOSE),
            abi::ZONE_FINISH => of_zone(FINISH),
            abi::ZONE_RESET => of_zone(RESET),
            // What is no sector here is a number of zones.
            abi::REPORT_ZONES => {
                let most = io_bytes / DESCRIPTOR_BYTES as u32 - 1;
                (Work::Report { zones: sectors.min(most) }, 0)
            }
            _ => return None,
        };
        let whole = first.is_multiple_of(1 << shift) && sectors.is_multiple_of(1 << shift);
        let asked = Self { work, first: first >> shift, blocks: sectors >> shift };
        let has_data = matches!(work, Work::Read) || asked.sends();
        let fits = u64::from(sectors) * SECTOR <= io_bytes.into() && (sectors > 0 || !has_data);
        (whole && fits).then_some(asked)
    }

    /// Data goes to the namespace.
    pub fn sends(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Append { .. })
    }

    /// Bytes of its data, whichever way that goes.
    pub fn data_bytes(&self, zones: &Zones) -> u32 {
        match self.work {
            Work::Report { zones } => (zones + 1) * DESCRIPTOR_BYTES as u32,
            _ => self.blocks << zones.block_shift,
        }
    }

    /// The command of this name that asks it.
    pub fn command(&self, id: u16, zones: &Zones) -> Entry {
        let bytes = self.data_bytes(zones);
        let entry = |opcode| nvme::with_first(nvme::entry(opcode, id, zones.namespace), self.first);
        let moves = |opcode, fua, apart| {
            let control = self.blocks.wrapping_sub(1) | if fua { FUA } else { 0 };
            nvme::with_word(nvme::with_data(entry(opcode), bytes, apart), 12, control)
        };
        let apart = bytes > CAPSULE_BYTES_MAX;
        match self.work {
            Work::Flush => nvme::entry(nvme::FLUSH, id, zones.namespace),
            Work::Read => moves(nvme::READ, false, true),
            Work::Write { fua } => moves(nvme::WRITE, fua, apart),
            Work::Append { fua } => moves(nvme::ZONE_APPEND, fua, apart),
            Work::Manage { action, all } => {
                let all = if all { ALL_ZONES } else { 0 };
                nvme::with_word(entry(nvme::ZONE_MANAGE), 13, u32::from(action) | all)
            }
            Work::Report { .. } => {
                let entry = nvme::with_data(entry(nvme::ZONE_REPORT), bytes, true);
                nvme::with_word(nvme::with_word(entry, 12, bytes / 4 - 1), 13, PARTIAL)
            }
        }
    }

    /// What is asked of its zone where it may have been carried out.
    pub fn check(&self, zones: &Zones) -> Self {
        let first = self.first - self.first % zones.size;
        Self { work: Work::Report { zones: 1 }, first, blocks: 0 }
    }

    /// What became of a write that may have been carried out and that its zone has refused, by what a report tells of the zone.
    /// Only this host writes there, one write of a zone at a time.
    pub fn fate(&self, report: &[u8]) -> Fate {
        let zone = &report[DESCRIPTOR_BYTES..];
        let (state, attributes) = (zone[1] >> 4, zone[2]);
        let [capacity, start, pointer] = [8, 16, 24].map(|at| u64_at(zone, at));
        let end = self.first + u64::from(self.blocks);
        match state {
            EMPTY..=CLOSED if pointer == end => Fate::Written,
            EMPTY..=CLOSED if (self.first..end).contains(&pointer) => Fate::UnderWay,
            FULL if attributes & CUT_SHORT == 0 && end == start + capacity => Fate::Written,
            _ => Fate::Unknown,
        }
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It was carried out.
    Written,
    /// It is being carried out, for a connection before.
    UnderWay,
    /// Nobody can tell, or it will never be.
    Unknown,
}

/// A block has this power of two of sectors.
fn sector_shift(zones: &Zones) -> u8 {
    zones.block_shift - SECTOR.trailing_zeros() as u8
}

/// A block as Linux counts.
pub fn sector_of(block: u64, zones: &Zones) -> u64 {
    block << sector_shift(zones)
}

/// What the disk is told of a status that is not success.
pub fn error_of(status: u16) -> i32 {
    match status {
        OPCODE => -libc::EOPNOTSUPP,
        TOO_MANY_ACTIVE => -libc::EOVERFLOW,
        TOO_MANY_OPEN => -libc::ETOOMANYREFS,
        UNREADABLE => -libc::ENODATA,
        CAPACITY => -libc::ENOSPC,
        _ => -libc::EIO,
    }
}

const OPCODE: u16 = 0x01;
/// It was not done now, for no fault of anybody's.
pub const INTERRUPTED: u16 = 0x21;
const CAPACITY: u16 = 0x81;
/// The zone takes no more.
pub const ZONE_IS_FULL: u16 = 0x1b9;
/// The write is not at the write pointer.
pub const INVALID_WRITE: u16 = 0x1bc;
const TOO_MANY_ACTIVE: u16 = 0x1bd;
const TOO_MANY_OPEN: u16 = 0x1be;
const UNREADABLE: u16 = 0x281;

/// Makes Linux's zones of a report, from its start on. How many bytes they have.
pub fn zones_for_linux(report: &mut [u8], zones: &Zones) -> usize {
    let room = (report.len() / DESCRIPTOR_BYTES).saturating_sub(1);
    let count = usize::try_from(u64_at(report, 0)).map_or(room, |count| count.min(room));
    let sector = |block| sector_of(block, zones);
    for at in 0..count {
        let from = &report[(at + 1) * DESCRIPTOR_BYTES..][..DESCRIPTOR_BYTES];
        let (kind, state) = (from[0] & 0xf, from[1] >> 4);
        let [capacity, start, pointer] = [8, 16, 24].map(|at| u64_at(from, at));
        let pointer = match state {
            FULL => sector(start + zones.size),
            _ if pointer == u64::MAX => u64::MAX,
            _ => sector(pointer),
        };
        let mut zone = [0; DESCRIPTOR_BYTES];
        zone[..8].copy_from_slice(&sector(start).to_ne_bytes());
        zone[8..16].copy_from_slice(&sector(zones.size).to_ne_bytes());
        zone[16..24].copy_from_slice(&pointer.to_ne_bytes());
        // Types and states have the same numbers.
        (zone[24], zone[25]) = (kind, state);
        zone[32..40].copy_from_slice(&sector(capacity).to_ne_bytes());
        report[at * DESCRIPTOR_BYTES..][..DESCRIPTOR_BYTES].copy_from_slice(&zone);
    }
    count * DESCRIPTOR_BYTES
}

/// What a disk of these zones is like.
pub fn parameters(shown: &Shown, zones: &Zones, read_only: bool, io_bytes: u32) -> Parameters {
    let is_read_only = read_only || shown.export.flags & SEND_READ_ONLY != 0;
    let (shift, sectors) = (zones.block_shift, shown.export.size / SECTOR);
    let zone_sectors = sector_of(zones.size, zones) as u32;
    // A limit above the number of zones is none.
    let limit =
        |most: u32| if u64::from(most) > sectors / u64::from(zone_sectors) { 0 } else { most };
    Parameters {
        len: size_of::<Parameters>() as u32,
        types: abi::BASIC_AND_ZONES,
        attributes: abi::VOLATILE_CACHE
            | abi::HAS_FUA
            | if is_read_only { abi::READ_ONLY } else { 0 },
        shifts: [shift; 4],
        sectors_max: io_bytes / SECTOR as u32,
        chunk_sectors: zone_sectors,
        sectors,
        zones_open_max: limit(zones.open_max),
        zones_active_max: limit(zones.active_max),
        append_sectors_max: io_bytes / SECTOR as u32,
        ..Parameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::nvme::{u16_at, u32_at};
    use client::wire::Export;

    const IO_BYTES: u32 = 1 << 19;
    const ZONES: Zones =
        Zones { namespace: 3, block_shift: 12, size: 1024, open_max: 2, active_max: 9 };

    fn asked(operation: u32, first: u64, sectors: u32) -> Option<Asked> {
        Asked::of(&Descriptor::new(operation, first, sectors), &ZONES, IO_BYTES)
    }

    /// Opcode, namespace, bytes of data and where they are, first block, words 12 and 13.
    fn command(operation: u32, first: u64, sectors: u32) -> (u8, u32, u32, u8, u64, u32, u32) {
        let entry = asked(operation, first, sectors).unwrap().command(7, &ZONES);
        assert_eq!(u16_at(&entry, 2), 7);
        let [word12, word13] = [48, 52].map(|at| u32_at(&entry, at));
        (
            entry[0],
            entry[4].into(),
            u32_at(&entry, 32),
            entry[39],
            u64_at(&entry, 40),
            word12,
            word13,
        )
    }

    #[test]
    fn each_request_of_a_zoned_disk_is_a_command_of_a_zoned_namespace() {
        let of = u32::from;
        assert_eq!(command(of(abi::READ), 8, 16), (0x02, 3, 8192, 0x5a, 1, 1, 0));
        assert_eq!(
            command(of(abi::WRITE) | abi::FUA, 8, 16),
            (0x01, 3, 8192, 0x01, 1, 1 | 1 << 30, 0)
        );
        assert_eq!(
            command(of(abi::WRITE), 8, 24),
            (0x01, 3, 12288, 0x5a, 1, 2, 0),
            "data on its own"
        );
        assert_eq!(command(of(abi::ZONE_APPEND), 8192, 8), (0x7d, 3, 4096, 0x01, 1024, 0, 0));
        assert_eq!(command(of(abi::FLUSH), u64::MAX, 0), (0, 3, 0, 0, 0, 0, 0), "as Linux says it");
        for (operation, action) in
            [(abi::ZONE_CLOSE, 1), (abi::ZONE_FINISH, 2), (abi::ZONE_OPEN, 3), (abi::ZONE_RESET, 4)]
        {
            assert_eq!(command(of(operation), 8192, 8192), (0x79, 3, 0, 0, 1024, 0, action));
        }
        assert_eq!(command(of(abi::ZONE_RESET_ALL), 0, 0), (0x79, 3, 0, 0, 0, 0, 4 | 1 << 8));
        let report = (0x7a, 3, 6 * 64, 0x5a, 1024, 6 * 16 - 1, 1 << 16);
        assert_eq!(command(of(abi::REPORT_ZONES), 8192, 5), report);
        let many = asked(of(abi::REPORT_ZONES), 0, u32::MAX).unwrap();
        assert_eq!(many.data_bytes(&ZONES), IO_BYTES);
        // What is none, is no whole number of blocks, or has more data than there is memory for.
        for (operation, first, sectors) in [
            (abi::DISCARD, 0, 8),
            (abi::WRITE_ZEROES, 0, 8),
            (abi::READ, 1, 8),
            (abi::WRITE, 0, 7),
            (abi::WRITE, 0, 0),
            (abi::WRITE, 0, 1032),
        ] {
            assert_eq!(asked(of(operation), first, sectors), None, "{operation}");
        }
    }

    /// A report of one zone of 1,024 blocks, of which 768 can be written.
    fn report(state: u8, attributes: u8, pointer: u64) -> Vec<u8> {
        let mut report = vec![0; 128];
        report[0] = 1;
        (report[64], report[65], report[66]) = (2, state << 4, attributes);
        report[72..80].copy_from_slice(&768u64.to_le_bytes());
        report[80..88].copy_from_slice(&1024u64.to_le_bytes());
        report[88..96].copy_from_slice(&pointer.to_le_bytes());
        report
    }

    #[test]
    fn a_write_that_may_have_been_carried_out_is_known_by_the_write_pointer() {
        let write = asked(abi::WRITE.into(), (1024 + 4) * 8, 16).unwrap();
        assert_eq!(write.check(&ZONES).first, 1024);
        for (state, attributes, pointer, fate) in [
            (2, 0, 1030, Fate::Written),
            (4, 0, 1030, Fate::Written),
            (2, 0, 1028, Fate::UnderWay),
            (1, 0, 1028, Fate::UnderWay),
            (2, 0, 1029, Fate::UnderWay),
            (2, 0, 1031, Fate::Unknown),
            (1, 0, 1024, Fate::Unknown),
            (0xe, 0, u64::MAX, Fate::Unknown),
            (0xd, 0, 1030, Fate::Unknown),
        ] {
            let report = report(state, attributes, pointer);
            assert_eq!(write.fate(&report), fate, "{state} {pointer}");
        }
        let last = asked(abi::WRITE.into(), (1024 + 760) * 8, 64).unwrap();
        assert_eq!(last.fate(&report(0xe, 0, u64::MAX)), Fate::Written);
        let cut_short = report(0xe, CUT_SHORT, u64::MAX);
        assert_eq!(last.fate(&cut_short), Fate::Unknown, "a crash has ended the zone");
    }

    #[test]
    fn linux_is_told_of_zones_in_sectors() {
        let told = |state, pointer| {
            let mut page = report(state, 0, pointer);
            assert_eq!(zones_for_linux(&mut page, &ZONES), 64);
            let words = [0, 8, 16, 32].map(|at| u64_at(&page, at));
            (words, page[24], page[25])
        };
        assert_eq!(told(2, 1030), ([8192, 8192, 8240, 6144], 2, 2));
        assert_eq!(told(0xe, u64::MAX), ([8192, 8192, 16384, 6144], 2, 0xe));
        assert_eq!(told(0xf, u64::MAX), ([8192, 8192, u64::MAX, 6144], 2, 0xf));
        // One that says that it has more zones than there is room for.
        let mut lies = report(1, 0, 1024);
        lies[..8].fill(0xff);
        assert_eq!(zones_for_linux(&mut lies, &ZONES), 64);
    }

    #[test]
    fn a_zoned_disk_promises_what_its_namespace_does() {
        let export = Export { size: 4 << 22, ..Export::default() };
        let shown = Shown { export, zones: Some(ZONES) };
        let told = parameters(&shown, &ZONES, false, IO_BYTES);
        assert_eq!(
            (told.sectors, told.chunk_sectors, told.append_sectors_max),
            (32768, 8192, 1024)
        );
        assert_eq!((told.zones_open_max, told.zones_active_max), (2, 0), "there are four zones");
        assert_eq!((told.len, told.types, told.shifts), (112, 0b1001, [12; 4]));
        assert_eq!(told.attributes, abi::VOLATILE_CACHE | abi::HAS_FUA);
        assert_ne!(parameters(&shown, &ZONES, true, IO_BYTES).attributes & abi::READ_ONLY, 0);
    }

    #[test]
    fn an_error_is_one_that_linux_knows_for_zones() {
        assert_eq!(error_of(TOO_MANY_OPEN), -libc::ETOOMANYREFS);
        assert_eq!(error_of(TOO_MANY_ACTIVE), -libc::EOVERFLOW);
        assert_eq!(error_of(0x7ff), -libc::EIO);
    }
}
