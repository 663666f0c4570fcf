//! The volume table as bytes.
//!
//! Version 1 is written when a device is made:
//!
//! | bytes | holds (numbers little-endian) |
//! |---|---|
//! | 0..4 | `b"WVOL"` |
//! | 4..6 | version, 1 |
//! | 6..8 | number of volumes |
//! | then, for each | length of the name (1), name (UTF-8), first block (8), blocks (8), flags (1): bit 0 read-only |
//! | last 4 | CRC-32C of all before |
//!
//! Version 2 is written from the first change on, version 3 as long as there is a snapshot, and version 4 as long as
//! there is a clone. Version 5 takes the place of 3 and 4 on a device that has grown with snapshots. Their numbers are of
//! seven bits a byte, the lowest first, each byte but the last with its highest bit set:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..4 | `b"WVOL"` |
//! | 4..6 | version, 2 to 5 |
//! | then | the next volume's or snapshot's number; number of volumes |
//! | then, for each | its number; flags (1): bit 0 read-only, bit 1 has a uuid, bit 2 has limits, bit 3 (from version 4 on) is a clone; length of the name (1), name (UTF-8); if it has one, uuid (16); if it has some, requests a second, bytes a second, milliseconds of burst; if it is a clone, the number of its snapshot; its stretches |
//! | then | the stretches that are leaving |
//! | then, from version 3 on | number of snapshots |
//! | then, for each | its number; the number of its volume; length of the name (1), name (UTF-8); uuid (16); the stretches of its shadow |
//! | then, version 5 | logical blocks of the device when this was written: it has grown since by as many as it has more, and all shadows lie as much farther behind |
//! | last 4 | CRC-32C of all before |
//!
//! Stretches: how many; of each its first block and its blocks.

use super::{Limits, NAME_BYTES_MAX, Snapshot, Stretch, Table, Volume};

const MAGIC: &[u8; 4] = b"WVOL";
const MADE: u16 = 1;
const CHANGED: u16 = 2;
const WITH_SNAPSHOTS: u16 = 3;
const WITH_CLONES: u16 = 4;
const HAS_GROWN: u16 = 5;

const READ_ONLY: u8 = 1;
const HAS_UUID: u8 = 2;
const HAS_LIMITS: u8 = 4;
const HAS_ORIGIN: u8 = 8;

/// The table as bytes; `None` if it does not fit into a label.
pub fn encode(table: &Table) -> Option<Vec<u8>> {
    if table.volumes.iter().any(|volume| volume.name.len() > NAME_BYTES_MAX) {
        return None;
    }
    let mut bytes = MAGIC.to_vec();
    if table.changed {
        let version = match table.snapshots.is_empty() {
            true => CHANGED,
            false if table.device_blocks > 0 => HAS_GROWN,
            false if has_clones(table) => WITH_CLONES,
            false => WITH_SNAPSHOTS,
        };
        bytes.extend_from_slice(&version.to_le_bytes());
        encode_changed(table, &mut bytes);
        if !table.snapshots.is_empty() {
            encode_snapshots(&table.snapshots, &mut bytes);
            if table.device_blocks > 0 {
                push_number(table.device_blocks, &mut bytes);
            }
        }
    } else {
        bytes.extend_from_slice(&MADE.to_le_bytes());
        encode_made(table, &mut bytes)?;
    }
    let crc = flash::crc(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    (bytes.len() <= ftl::LABEL_BYTES_MAX).then_some(bytes)
}

fn has_clones(table: &Table) -> bool {
    table.volumes.iter().any(|volume| volume.origin.is_some())
}

fn encode_made(table: &Table, bytes: &mut Vec<u8>) -> Option<()> {
    bytes.extend_from_slice(&u16::try_from(table.volumes.len()).ok()?.to_le_bytes());
    for volume in &table.volumes {
        push_name(&volume.name, bytes);
        let stretch = volume.stretches.first()?;
        bytes.extend_from_slice(&stretch.first.to_le_bytes());
        bytes.extend_from_slice(&stretch.blocks.to_le_bytes());
        bytes.push(u8::from(volume.read_only));
    }
    Some(())
}

fn encode_changed(table: &Table, bytes: &mut Vec<u8>) {
    push_number(table.next_number.into(), bytes);
    push_number(table.volumes.len() as u64, bytes);
    for volume in &table.volumes {
        let Volume { number, name, uuid, stretches, read_only, limits, origin } = volume;
        push_number((*number).into(), bytes);
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let has_limits = *limits != Limits::default();
        bytes.push(
            flag(*read_only, READ_ONLY)
                | flag(uuid.is_some(), HAS_UUID)
                | flag(has_limits, HAS_LIMITS)
                | flag(origin.is_some(), HAS_ORIGIN),
        );
        push_name(name, bytes);
        bytes.extend(uuid.iter().flat_map(|uuid| uuid.to_le_bytes()));
        if has_limits {
            for number in [limits.iops, limits.bytes_per_sec, limits.burst_ms] {
                push_number(number, bytes);
            }
        }
        if let Some(origin) = origin {
            push_number((*origin).into(), bytes);
        }
        push_stretches(stretches, bytes);
    }
    push_stretches(&table.leaving, bytes);
}

fn encode_snapshots(snapshots: &[Snapshot], bytes: &mut Vec<u8>) {
    push_number(snapshots.len() as u64, bytes);
    for Snapshot { number, volume, name, uuid, stretches } in snapshots {
        push_number((*number).into(), bytes);
        push_number((*volume).into(), bytes);
        push_name(name, bytes);
        bytes.extend(uuid.to_le_bytes());
        push_stretches(stretches, bytes);
    }
}

fn push_name(name: &str, bytes: &mut Vec<u8>) {
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
}

fn push_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn push_stretches(stretches: &[Stretch], bytes: &mut Vec<u8>) {
    push_number(stretches.len() as u64, bytes);
    for stretch in stretches {
        push_number(stretch.first, bytes);
        push_number(stretch.blocks, bytes);
    }
}

/// The table in a label; `None` if the label holds none that is sound.
pub fn decode(label: &[u8]) -> Option<Table> {
    let (body, crc) = label.split_last_chunk::<4>()?;
    if flash::crc(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut fields = Fields(body.strip_prefix(MAGIC)?);
    let version = u16::from_le_bytes(fields.array()?);
    let table = match version {
        MADE => decode_made(&mut fields)?,
        CHANGED => decode_changed(&mut fields, 0)?,
        WITH_SNAPSHOTS..=HAS_GROWN => {
            let flags = if version == WITH_SNAPSHOTS { 0 } else { HAS_ORIGIN };
            let table = decode_changed(&mut fields, flags)?;
            let snapshots = decode_snapshots(&mut fields)?;
            let device_blocks = if version == HAS_GROWN { fields.number()? } else { 0 };
            // There is one way to write a table without any.
            let is_so = match version {
                HAS_GROWN => device_blocks > 0,
                _ => has_clones(&table) == (version == WITH_CLONES),
            };
            let has_some = !snapshots.is_empty();
            (has_some && is_so).then_some(Table { snapshots, device_blocks, ..table })?
        }
        _ => return None,
    };
    (fields.0.is_empty() && table.is_sound()).then_some(table)
}

fn decode_made(fields: &mut Fields<'_>) -> Option<Table> {
    let count = u16::from_le_bytes(fields.array()?);
    let mut volumes = Vec::new();
    for number in 1..=u32::from(count) {
        let name = fields.name()?;
        let first = u64::from_le_bytes(fields.array()?);
        let blocks = u64::from_le_bytes(fields.array()?);
        let read_only = match fields.take(1)?[0] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let stretch = Stretch { first, blocks }.checked()?;
        volumes.push(Volume::made(number, name, stretch, read_only));
    }
    Some(Table::made(volumes))
}

/// With the flags that every version has, and these.
fn decode_changed(fields: &mut Fields<'_>, more: u8) -> Option<Table> {
    let next_number = u32::try_from(fields.number()?).ok()?;
    let mut volumes = Vec::new();
    for _ in 0..fields.number()? {
        let number = u32::try_from(fields.number()?).ok()?;
        let flags = fields.take(1)?[0];
        if flags & !(READ_ONLY | HAS_UUID | HAS_LIMITS | more) != 0 {
            return None;
        }
        let name = fields.name()?;
        let uuid = match flags & HAS_UUID {
            0 => None,
            _ => Some(u128::from_le_bytes(fields.array()?)),
        };
        let mut limits = Limits::default();
        if flags & HAS_LIMITS != 0 {
            let [iops, bytes_per_sec, burst_ms] =
                [fields.number()?, fields.number()?, fields.number()?];
            limits = Limits { iops, bytes_per_sec, burst_ms };
            if limits == Limits::default() {
                return None;
            }
        }
        let origin = match flags & HAS_ORIGIN {
            0 => None,
            _ => Some(u32::try_from(fields.number()?).ok()?),
        };
        let (read_only, stretches) = (flags & READ_ONLY != 0, fields.stretches()?);
        volumes.push(Volume { number, name, uuid, stretches, read_only, limits, origin });
    }
    let leaving = fields.stretches()?;
    Some(Table { volumes, leaving, next_number, changed: true, ..Table::default() })
}

fn decode_snapshots(fields: &mut Fields<'_>) -> Option<Vec<Snapshot>> {
    let mut snapshots = Vec::new();
    for _ in 0..fields.number()? {
        let number = u32::try_from(fields.number()?).ok()?;
        let volume = u32::try_from(fields.number()?).ok()?;
        let name = fields.name()?;
        let uuid = u128::from_le_bytes(fields.array()?);
        snapshots.push(Snapshot { number, volume, name, uuid, stretches: fields.stretches()? });
    }
    Some(snapshots)
}

impl Stretch {
    /// None without blocks or beyond all numbers.
    fn checked(self) -> Option<Self> {
        (self.blocks > 0 && self.first.checked_add(self.blocks).is_some()).then_some(self)
    }
}

/// What is left of a table.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(len)?;
        self.0 = left;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn name(&mut self) -> Option<String> {
        let len = usize::from(self.take(1)?[0]);
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            // There is one way to write a number.
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn stretches(&mut self) -> Option<Vec<Stretch>> {
        let count = self.number()?;
        let stretch = |_| Stretch { first: self.number()?, blocks: self.number()? }.checked();
        (0..count).map(stretch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::STRIPE_BLOCKS;

    fn made() -> Table {
        let volume = |number, name: &str, first, blocks, read_only| {
            Volume::made(number, name.into(), Stretch { first, blocks }, read_only)
        };
        Table::made(vec![volume(1, "data", 0, 1000, false), volume(2, "gold", 1000, 24, true)])
    }

    fn changed() -> Table {
        let mut table = made();
        table.changed = true;
        table.next_number = 300;
        table.volumes[0].uuid = Some(u128::MAX - 5);
        table.volumes[0].stretches.push(Stretch { first: 1 << 37, blocks: 129 });
        table.volumes[1].limits = Limits { iops: 128, bytes_per_sec: 1 << 40, burst_ms: 127 };
        table.leaving = vec![Stretch { first: 5000, blocks: 1 }];
        table
    }

    fn with_snapshots() -> Table {
        let ground = ((1 << 37) + (1 << 20), 64 * STRIPE_BLOCKS);
        let (table, _) = changed().with_snapshot(("data", "monday", 9), ground, &[]).unwrap();
        table.with_snapshot(("gold", "ä", u128::MAX), ground, &[]).unwrap().0
    }

    fn with_clone() -> Table {
        let ground = ((1 << 37) + (1 << 20), 64 * STRIPE_BLOCKS);
        with_snapshots().with_clone(("gold@ä", "c", 4), ground).unwrap().0
    }

    fn grown(table: Table) -> Table {
        Table { device_blocks: (1 << 37) + (1 << 20), ..table }
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        for table in [
            made(),
            changed(),
            with_snapshots(),
            with_clone(),
            grown(with_snapshots()),
            grown(with_clone()),
            Table { changed: true, ..Table::made(Vec::new()) },
        ] {
            let bytes = encode(&table).unwrap();
            assert_eq!(decode(&bytes), Some(table));
        }
    }

    #[test]
    fn no_damaged_or_cut_table_is_taken_for_one() {
        for table in [made(), changed(), with_snapshots(), with_clone(), grown(with_clone())] {
            let bytes = encode(&table).unwrap();
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]), None);
            }
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert_eq!(decode(&damaged), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_table_that_contradicts_itself_is_refused() {
        let sealed = |table: &Table| decode(&encode(table).unwrap());
        let spoil = |spoil: fn(&mut Table)| {
            let mut table = changed();
            spoil(&mut table);
            sealed(&table)
        };
        assert!(spoil(|_| ()).is_some());
        assert_eq!(spoil(|table| table.leaving[0].first = 10), None, "two have a block");
        assert_eq!(spoil(|table| table.volumes[1].name = "data".into()), None);
        assert_eq!(spoil(|table| table.volumes[1].number = 1), None);
        assert_eq!(spoil(|table| table.next_number = 2), None);
        assert_eq!(spoil(|table| table.volumes[1].stretches.clear()), None);
    }

    #[test]
    fn a_table_that_exceeds_the_label_is_refused() {
        let volume = |number: u32| {
            let stretch = Stretch { first: number.into(), blocks: 1 };
            Volume::made(number, format!("{number:064}"), stretch, false)
        };
        assert_eq!(encode(&Table::made((1..=100).map(volume).collect())), None);
    }
}
