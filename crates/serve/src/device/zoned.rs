//! Devices on a zoned block device: what its zones are like, and where the device says what it is, as no
//! place can be overwritten.
//!
//! Conventional zones are left alone. The first two sequential zones hold *heads*, the others are blocks:
//! those of each shard in turn. A head is, by 4 KiB sectors:
//!
//! | sector | holds |
//! |---|---|
//! | 0 | the header: what sector 0 of a plain disk holds (`direct.rs`) |
//! | 1 | the generation: 12 bytes, as of a plain disk; then u32 erase counts that follow, u32 CRC-32C of them; at 512 the master |
//! | 2.. | erase counts, u32 each, of the blocks of all shards |
//!
//! The head of generation `g` begins the zone `g % 2` of the two, which is reset before; heads that are
//! written later in the same generation follow it. So the newest is the last sound one of the zone
//! whose generation is higher, and the other zone begins with generation `g - 1` as long as nobody else
//! has opened the device: that is what a server looks at.
//!
//! Erase counts are those of the last head; a block that holds data tells its own in each page, and a
//! higher one counts. So after a crash the count of a block that is empty may be too low.
//!
//! Invariant: a head is written durably before anything that rests on it, and the zone of the newest is
//! never reset.

use super::direct::{self, Bands, Opened, Parts};
use super::identity::Mark;
use super::lock::{FOUND_BYTES, Found};
use super::{DeviceError, FastPart, Mode};
use crate::files;
use crate::kept::Kept;
use crate::medium::zones::{self, Zone, ZoneKind, ZoneState};
use crate::medium::{
    DirectStore, Fence, GENERATION_BYTES, Place, SLOTS_PER_PAGE, Store, encode_generation,
    page_bytes,
};
use crate::runtime::buffer::Buffer;
use flash::{BLOCK_BYTES, BlockId};
use nand::{BlockRecord, Nand};
use std::fs::{self, File};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const SECTOR: u64 = BLOCK_BYTES as u64;
/// Zones of heads: both stay partly written.
const HEADS: usize = 2;

/// A zoned block device.
#[derive(Debug)]
pub struct Zoned {
    /// The sequential zones, heads first; all of one size.
    zones: Vec<Zone>,
    /// Bytes that each takes at least.
    capacity: u64,
    /// Most that may be partly written; 0 for no limit.
    open_max: u32,
}

/// What a device of ours says of itself.
pub struct Head {
    pub header: [u8; BLOCK_BYTES],
    pub generation: u64,
    /// Unless it is of a build without marks.
    pub master: Option<Mark>,
    erase_counts: Vec<u32>,
    /// Behind it.
    end: u64,
}

/// Erase counts of the blocks of all shards.
pub type EraseCounts = Arc<[AtomicU32]>;

impl Zoned {
    /// The zoned device at `path`; `None` if it is another file or disk, or is not there.
    pub fn at(path: &Path) -> Result<Option<Self>, DeviceError> {
        let opened = files::open_or_disk(path, File::options().read(true), 0);
        let Ok(file) = opened else { return Ok(None) };
        let Some(bytes) =
            zones::zone_bytes(&file).map_err(DeviceError::io(path, "ask for zones"))?
        else {
            return Ok(None);
        };
        let all = zones::report(&file).map_err(DeviceError::io(path, "ask for its zones"))?;
        Self::of(all, bytes, open_max(&file))
            .map(Some)
            .map_err(|reason| DeviceError::invalid(path, reason, "use another disk"))
    }

    /// `Err` says why the zones are of no use.
    fn of(all: Vec<Zone>, bytes: u64, open_max: u32) -> Result<Self, String> {
        let usable = |zone: &Zone| zone.kind == ZoneKind::Sequential && zone.bytes == bytes;
        // Those that lie side by side: a block's place follows from its number.
        let all = all.into_iter().skip_while(|zone| !usable(zone));
        let zones: Vec<Zone> = all.take_while(usable).collect();
        // Zones that are offline may tell no capacity.
        let alive = zones.iter().filter(|zone| zone.state != ZoneState::Offline);
        let capacity = alive.map(|zone| zone.capacity).min().unwrap_or(0);
        if zones.len() <= HEADS || capacity < 4 * page_bytes(SLOTS_PER_PAGE) {
            let mib = capacity >> 20;
            return Err(format!(
                "has {} zones that are written in order, of {mib} MiB: they are too few, or too small",
                zones.len()
            ));
        }
        if zones[..HEADS]
            .iter()
            .any(|zone| matches!(zone.state, ZoneState::Offline | ZoneState::ReadOnly))
        {
            return Err("one of its first two zones is offline or read-only".into());
        }
        Ok(Self { zones, capacity, open_max })
    }

    /// What the blocks of a device on it are like, divided among so many shards, with program units of so many slots.
    pub fn bands(
        &self,
        path: &Path,
        shards: u32,
        slots_per_page: u32,
    ) -> Result<Bands, DeviceError> {
        let open_blocks_max = match self.open_max {
            0 => 0,
            max => max.saturating_sub(HEADS as u32) / shards.max(1),
        };
        if self.open_max > 0 && open_blocks_max == 0 {
            let reason =
                format!("has {} zones open at a time, {HEADS} of them for heads", self.open_max);
            let mend = format!("use fewer shards than {shards}");
            return Err(DeviceError::invalid(path, reason, mend));
        }
        let pages = u32::try_from(self.capacity / page_bytes(slots_per_page)).unwrap_or(u32::MAX);
        Ok(Bands { pages, slots_per_page, open_blocks_max })
    }

    /// `Err` if it has too few zones for so many blocks.
    pub fn check_size(&self, path: &Path, blocks: u64) -> Result<(), DeviceError> {
        let found = self.zones.len() - HEADS;
        if (found as u64) < blocks {
            let reason =
                format!("has {found} zones to use where the volumes and the OP need {blocks}");
            let mend = "make the volumes (or device.capacity) smaller, or device.op_percent, or take \
                        fewer channels";
            return Err(DeviceError::invalid(path, reason, mend));
        }
        Ok(())
    }

    fn zone_bytes(&self) -> u64 {
        self.zones[0].bytes
    }

    fn data(&self) -> &[Zone] {
        &self.zones[HEADS..]
    }

    /// True if something is written anywhere.
    fn is_written(&self) -> bool {
        self.zones.iter().any(|zone| !matches!(zone.state, ZoneState::Empty | ZoneState::Offline))
    }

    /// What is there that is not ours, in words.
    pub fn foreign(&self, path: &Path) -> Result<Option<String>, DeviceError> {
        let unfinished = self.head(path)?.is_some_and(|head| direct::is_unfinished(&head.header));
        let foreign = self.is_written() && !unfinished;
        Ok(foreign.then(|| "zones that are written, and not by Weir".into()))
    }

    /// Empties every zone that we would use, whatever is there.
    pub fn reset_all(&self, path: &Path, file: &File) -> Result<(), DeviceError> {
        let written = self
            .zones
            .iter()
            .filter(|zone| matches!(zone.state, ZoneState::Active | ZoneState::Full));
        for zone in written {
            let reset = zones::reset(file, zone.at, zone.bytes);
            reset.map_err(DeviceError::io(path, "reset the zones"))?;
        }
        Ok(())
    }

    /// Empties the zones and begins a device.
    pub fn begin(&self, path: &Path, file: &File, master: &Mark) -> Result<(), DeviceError> {
        self.reset_all(path, file)?;
        let found = Found { generation: master.generation, master: Some(*master) };
        self.write_head(path, &direct::unfinished(), (&found, None), &[])
    }

    /// Writes a master: of the generation there is, or of the next, which begins the other zone.
    pub fn write_master(&self, path: &Path, master: &Mark) -> Result<(), DeviceError> {
        let head = self.newest(path)?;
        let at = (master.generation == head.generation).then_some(head.end);
        let found = Found { generation: master.generation, master: Some(*master) };
        self.write_head(path, &head.header, (&found, at), &head.erase_counts)
    }

    /// Writes the header anew, in the generation there is.
    pub fn rewrite(&self, path: &Path, header: &[u8; BLOCK_BYTES]) -> Result<(), DeviceError> {
        self.write_again(path, |head| head.header = *header)
    }

    /// Writes the newest head again, with a change.
    fn write_again(&self, path: &Path, change: impl FnOnce(&mut Head)) -> Result<(), DeviceError> {
        let mut head = self.newest(path)?;
        change(&mut head);
        let found = Found { generation: head.generation, master: head.master };
        self.write_head(path, &head.header, (&found, Some(head.end)), &head.erase_counts)
    }

    /// The newest head of a device that was made here.
    pub fn newest(&self, path: &Path) -> Result<Head, DeviceError> {
        self.head(path)?.ok_or_else(|| {
            DeviceError::invalid(path, "holds no device of Weir", "see `weir format`")
        })
    }

    /// The newest head, if a device was made here, or is being made.
    pub fn head(&self, path: &Path) -> Result<Option<Head>, DeviceError> {
        let file = direct::open_direct(path, false, false)?;
        let mut newest: Option<Head> = None;
        for zone in &self.zones[..HEADS] {
            let mut at = zone.at;
            while let Some(head) = self.read_head(&file, zone, at) {
                at = head.end;
                if newest.as_ref().is_none_or(|newest| head.generation >= newest.generation) {
                    newest = Some(head);
                }
            }
        }
        Ok(newest)
    }

    /// The head at `at` of a zone, if one is sound there.
    fn read_head(&self, file: &File, zone: &Zone, at: u64) -> Option<Head> {
        let written = zone.at + zone.written;
        if at + 2 * SECTOR > written {
            return None;
        }
        let mut sectors = Buffer::new(2);
        file.read_exact_at(sectors.bytes_mut(), at).ok()?;
        let (header, sector) = sectors.bytes().split_at(BLOCK_BYTES);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| sector[at + i]));
        let Found { generation, master } = Found::decode(&sector[..FOUND_BYTES])?;
        let count = word(GENERATION_BYTES);
        let end = at + head_bytes(count as usize);
        if !direct::is_ours(header) || end > written || count as usize > self.data().len() {
            return None;
        }
        let mut counts = Buffer::new((count * 4).div_ceil(SECTOR as u32).max(1));
        if count > 0 {
            file.read_exact_at(counts.bytes_mut(), at + 2 * SECTOR).ok()?;
        }
        let bytes = &counts.bytes()[..count as usize * 4];
        if flash::crc(bytes) != word(GENERATION_BYTES + 4) {
            return None;
        }
        let erase_counts =
            bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Some(Head { header: header.try_into().ok()?, generation, master, erase_counts, end })
    }

    /// Writes a head of this generation at `at`, or to the begin of its zone if that is `None`.
    fn write_head(
        &self,
        path: &Path,
        header: &[u8; BLOCK_BYTES],
        (found, at): (&Found, Option<u64>),
        erase_counts: &[u32],
    ) -> Result<(), DeviceError> {
        let failed = "write the head";
        let file = direct::open_direct(path, true, false)?;
        let generation = found.generation;
        let zone = &self.zones[generation as usize % HEADS];
        let end = zone.at + zone.capacity;
        let bytes = head_bytes(erase_counts.len());
        let at = match at {
            Some(at) if at + bytes <= end => at,
            Some(_) => {
                let reason = "the zone of its head is full";
                return Err(DeviceError::invalid(
                    path,
                    reason,
                    "start the server anew, and try again",
                ));
            }
            None => {
                zones::reset(&file, zone.at, zone.bytes).map_err(DeviceError::io(path, failed))?;
                zone.at
            }
        };
        let mut head = Buffer::new((bytes / SECTOR) as u32);
        let (first, rest) = head.bytes_mut().split_at_mut(BLOCK_BYTES);
        first.copy_from_slice(header);
        let (sector, counts) = rest.split_at_mut(BLOCK_BYTES);
        for (to, count) in counts.as_chunks_mut::<4>().0.iter_mut().zip(erase_counts) {
            *to = count.to_le_bytes();
        }
        match &found.master {
            Some(master) => sector[..FOUND_BYTES].copy_from_slice(&Found::encode(master)),
            None => sector[..GENERATION_BYTES].copy_from_slice(&encode_generation(generation)),
        }
        let sum = flash::crc(&counts[..erase_counts.len() * 4]);
        for (i, number) in [erase_counts.len() as u32, sum].into_iter().enumerate() {
            sector[GENERATION_BYTES + i * 4..][..4].copy_from_slice(&number.to_le_bytes());
        }
        file.write_all_at(head.bytes(), at).map_err(DeviceError::io(path, failed))?;
        file.sync_all().map_err(DeviceError::io(path, failed))
    }
}

/// Bytes of a head with so many erase counts.
fn head_bytes(erase_counts: usize) -> u64 {
    2 * SECTOR + (erase_counts as u64 * 4).next_multiple_of(SECTOR)
}

/// Zones that may be partly written at a time, as the kernel knows; 0 for no limit. Where it bounds
/// those that are open apart from those that are active, the lower counts.
fn open_max(file: &File) -> u32 {
    let Ok(metadata) = file.metadata() else { return 0 };
    let id = metadata.st_rdev();
    let queue = format!("/sys/dev/block/{}:{}/queue", libc::major(id), libc::minor(id));
    let number = |name: &str| -> u32 {
        let text = fs::read_to_string(format!("{queue}/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let bounds = [number("max_active_zones"), number("max_open_zones")];
    bounds.into_iter().filter(|&max| max > 0).min().unwrap_or(0)
}

/// Keeps the erase counts, in the generation there is, for the master that is written next.
pub fn keep_counts(path: &Path, counts: &EraseCounts) -> Result<(), DeviceError> {
    let zoned = Zoned::at(path)?.ok_or_else(|| {
        DeviceError::invalid(path, "is not zoned any more", "connect the disk that was there")
    })?;
    zoned.write_again(path, |head| head.erase_counts = plain(counts))
}

fn plain(counts: &EraseCounts) -> Vec<u32> {
    counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

/// Opens the parts of a device.
pub fn open(
    path: &Path,
    (zoned, file): (&Zoned, &File),
    parts: &Parts,
    fast: Option<&FastPart>,
    (mode, mut kept): (Mode, Option<&mut Kept>),
) -> Result<Opened, DeviceError> {
    let head = zoned.newest(path)?;
    let (writable, generation) = (mode == Mode::ReadWrite, head.generation);
    let tier = fast.map(|fast| &fast.tier);
    let geometry = parts.nand(tier)?.geometry().without_fast();
    let blocks = geometry.blocks() as usize;
    zoned.check_size(path, blocks as u64 * u64::from(parts.shards))?;
    let of_head = |i| head.erase_counts.get(i).copied().unwrap_or(0).into();
    let counts: EraseCounts = (0..blocks * parts.shards as usize).map(of_head).collect();
    let mut media = Vec::new();
    for index in 0..parts.shards {
        let nand = parts.nand(tier)?;
        let first = index as usize * blocks;
        let direct = direct::open_direct(path, writable, tier.is_some())?;
        let place = zoned.place(first, generation);
        let fence = zoned.fence(file, path, generation)?;
        let store =
            DirectStore::open_zoned(direct, &geometry, place, &fence, (counts.clone(), first))
                .map_err(DeviceError::io(path, "open the zones"))?;
        media.push((nand, store));
    }
    let mut unreadable = 0;
    for (index, (nand, store)) in media.iter_mut().enumerate() {
        let zones = &zoned.data()[index * blocks..][..blocks];
        let counts = &counts[index * blocks..][..blocks];
        unreadable += restore(path, nand, store, (zones, counts))?;
        if let Some(kept) = &mut kept {
            let erase_count =
                |slot| counts[geometry.block_of(slot).0 as usize].load(Ordering::Relaxed);
            kept.compare(index as u32, false, |slot| store.oob_of(slot, erase_count(slot)).ok());
        }
    }
    if writable {
        finish_zones(path, file, &zoned.data()[..counts.len()])?;
        zoned.write_again(path, |head| head.erase_counts = plain(&counts))?;
    }
    let stores = media.into_iter().map(|(nand, store)| (nand, Store::Direct(store))).collect();
    let unreadable = direct::unreadable(unreadable);
    Ok(Opened { stores, erase_counts: Some(counts), unreadable })
}

impl Zoned {
    /// Where the blocks from `first` on are.
    fn place(&self, first: usize, generation: u64) -> Place {
        let (blocks_at, stride) = (self.data()[first].at, self.zone_bytes());
        Place::of_zones(blocks_at, stride, generation)
    }

    /// What a server that opens the device in `generation` finds until another one opens it.
    fn fence(&self, file: &File, path: &Path, generation: u64) -> Result<Fence, DeviceError> {
        let before = generation.saturating_sub(1);
        Ok(Fence {
            file: file.try_clone().map_err(DeviceError::io(path, "open"))?,
            at: self.zones[before as usize % HEADS].at + SECTOR,
            expected: encode_generation(before),
        })
    }
}

/// What was partly written is not appended to any more, and shall not count against the bound.
fn finish_zones(path: &Path, file: &File, zones: &[Zone]) -> Result<(), DeviceError> {
    for zone in zones.iter().filter(|zone| zone.state == ZoneState::Active) {
        zones::finish(file, zone.at, zone.bytes)
            .map_err(DeviceError::io(path, "finish a zone that was partly written"))?;
    }
    Ok(())
}

/// Brings the rules to the state of the zones.
fn restore(
    path: &Path,
    nand: &mut Nand,
    store: &DirectStore,
    (zones, counts): (&[Zone], &[AtomicU32]),
) -> Result<u32, DeviceError> {
    let page_bytes = page_bytes(nand.geometry().slots_per_page);
    let pages = |zone: &Zone| (zone.written / page_bytes) as u32;
    let blocks = (0..).map(BlockId).zip(zones);
    let written: Vec<(BlockId, u32)> =
        blocks.clone().map(|(block, zone)| (block, pages(zone))).filter(|&(_, n)| n > 0).collect();
    let found = store.found_in_zones(&written).map_err(DeviceError::io(path, "look for pages"))?;
    let (mut write_pointers, mut unreadable) = (vec![0; zones.len()], 0);
    for (&(block, _), found) in written.iter().zip(found) {
        let index = block.0 as usize;
        if let Some((erase_count, written)) = found {
            counts[index].fetch_max(erase_count, Ordering::Relaxed);
            write_pointers[index] = written.pages;
            unreadable += u32::from(written.unreadable);
        }
    }
    for (block, zone) in blocks {
        let index = block.0 as usize;
        let erase_count = counts[index].load(Ordering::Relaxed);
        let write_pointer = write_pointers[index];
        let bad = matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline);
        // Written, and by no whole page of ours: it takes nothing before a reset.
        let needs_erase = !bad && zone.written > 0 && write_pointer == 0;
        nand.restore(
            block,
            BlockRecord { erase_count, write_pointer, bad, needs_erase, ..BlockRecord::FRESH },
        );
    }
    Ok(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn zones(count: u64, capacity: u64) -> Vec<Zone> {
        let zone = |index| Zone {
            at: index * 4 * MIB,
            bytes: 4 * MIB,
            capacity,
            written: 0,
            kind: ZoneKind::Sequential,
            state: ZoneState::Empty,
        };
        (0..count).map(zone).collect()
    }

    #[test]
    fn the_first_two_sequential_zones_of_full_size_are_heads() {
        let mut all = zones(12, 3 * MIB);
        all[0].kind = ZoneKind::Other;
        all[7].bytes = MIB;
        let zoned = Zoned::of(all, 4 * MIB, 14).unwrap();
        assert_eq!(
            (zoned.capacity, zoned.zones[0].at, zoned.data()[0].at),
            (3 * MIB, 4 * MIB, 12 * MIB)
        );
        assert_eq!(zoned.data().len(), 4);
        let place = zoned.place(1, 7);
        assert_eq!(place, Place::of_zones(16 * MIB, 4 * MIB, 7));
        assert!(!zoned.is_written());
    }

    #[test]
    fn zones_of_no_use_are_refused() {
        let refused = |all| Zoned::of(all, 4 * MIB, 0).unwrap_err();
        assert!(refused(zones(2, 3 * MIB)).contains("2 zones"));
        assert!(refused(zones(8, 1 << 17)).contains("too small"));
        let mut all = zones(8, 3 * MIB);
        all[1].state = ZoneState::Offline;
        assert!(refused(all).contains("offline"));
        // One that is offline and tells no capacity makes no other smaller.
        let mut all = zones(8, 3 * MIB);
        (all[5].state, all[5].capacity) = (ZoneState::Offline, 0);
        assert_eq!(Zoned::of(all, 4 * MIB, 0).unwrap().capacity, 3 * MIB);
    }

    #[test]
    fn open_zones_are_divided_among_the_shards_beside_those_of_the_heads() {
        let path = Path::new("/dev/zoned");
        let of = |max| Zoned::of(zones(40, 3 * MIB), 4 * MIB, max).unwrap();
        let bands = Bands { pages: 48, slots_per_page: 15, open_blocks_max: 6 };
        assert_eq!(of(14).bands(path, 2, 15).unwrap(), bands);
        assert_eq!(of(14).bands(path, 2, 16).unwrap().pages, 45);
        assert_eq!(of(0).bands(path, 2, 15).unwrap().open_blocks_max, 0);
        let refused = of(3).bands(path, 2, 15).unwrap_err().to_string();
        for word in ["/dev/zoned", "3 zones", "fewer shards"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        assert!(of(14).check_size(path, 38).is_ok());
        assert!(of(14).check_size(path, 39).unwrap_err().to_string().contains("38 zones"));
    }

    #[test]
    fn a_head_takes_whole_sectors() {
        assert_eq!([0, 1, 1024, 1025].map(head_bytes), [8192, 12288, 12288, 16384]);
    }
}
