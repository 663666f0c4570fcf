//! Raw blocks on a block volume, for who has no raw units: extents of the volume, and a table that says which block each
//! holds. The drive below moves data and collects garbage as it does for any file system; a deletion is a trim.
//!
//! A block is there once its entry of the table is durable, which is written after the block is. An entry is a part of a
//! block of the volume, which is all old or all new.

use super::{READS_MAX, Turns};
use crate::api::{BLOCK_BYTES, Error, Piece, RawBlocks, Volume};
use crate::layout::{opened, sealed};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `Head::file` of the label.
const LABEL: u64 = 3;
/// Bytes of an extent of a volume that is made.
const EXTENT_BYTES: u64 = 8 << 20;
const ENTRY_BYTES: usize = 16;
const ENTRIES: usize = BLOCK_BYTES / ENTRY_BYTES;
/// Puts of one file at a time, as on units.
const PUTS_MAX: usize = 4;
/// A drive has no units that are known; so many extents are written side by side.
const WRITERS: u32 = 16;
/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// What the volume is: fixed when it is made.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Label {
    extent_bytes: u64,
    extents: u64,
}

impl Label {
    /// Of a volume of so many blocks.
    fn of(blocks: u64, extent_bytes: u64) -> Self {
        let each = extent_bytes / BLOCK_BYTES as u64;
        let fits = |extents: u64| Self { extent_bytes, extents }.data() + extents * each <= blocks;
        let most = blocks / each;
        let extents = (0..=most).rev().find(|&extents| fits(extents)).unwrap_or(0);
        Self { extent_bytes, extents }
    }

    fn table_blocks(&self) -> u64 {
        self.extents.div_ceil(ENTRIES as u64)
    }

    /// The first block of the first extent.
    fn data(&self) -> u64 {
        1 + self.table_blocks()
    }

    fn block(&self, extent: usize) -> u64 {
        self.data() + extent as u64 * (self.extent_bytes / BLOCK_BYTES as u64)
    }
}

/// Which block an extent holds.
#[derive(Default)]
struct Table {
    /// 0 of none.
    ids: Vec<u128>,
    extents: HashMap<u128, usize>,
    /// Extents that are free. Who takes one takes the one that has been free for longest.
    free: std::collections::VecDeque<usize>,
    /// IDs that are being put.
    coming: Vec<u128>,
}

impl Table {
    fn read(volume: &mut dyn Volume, label: &Label) -> Result<Self, Error> {
        let mut table = Self::default();
        let mut block = [0; BLOCK_BYTES];
        for at in 0..label.table_blocks() {
            volume.read(1 + at, &mut block)?;
            let ids = block.as_chunks::<ENTRY_BYTES>().0.iter().map(|id| u128::from_le_bytes(*id));
            table.ids.extend(ids);
        }
        table.ids.truncate(label.extents as usize);
        for (extent, &id) in table.ids.iter().enumerate() {
            match id {
                0 => table.free.push_back(extent),
                id => drop(table.extents.insert(id, extent)),
            }
        }
        Ok(table)
    }

    /// The block of the volume with the entry of an extent, and what is in it.
    fn block(&self, extent: usize) -> (u64, [u8; BLOCK_BYTES]) {
        let at = extent / ENTRIES;
        let mut block = [0; BLOCK_BYTES];
        let ids = self.ids.iter().skip(at * ENTRIES).take(ENTRIES);
        for (entry, id) in block.as_chunks_mut::<ENTRY_BYTES>().0.iter_mut().zip(ids) {
            *entry = id.to_le_bytes();
        }
        (1 + at as u64, block)
    }
}

/// Connects to the volume.
pub type Dial = Box<dyn Fn() -> Result<Box<dyn Volume>, Error> + Send + Sync>;

/// See the head of this file.
pub struct Extents {
    dial: Dial,
    idle: Mutex<Vec<Box<dyn Volume>>>,
    /// Who works on a connection has one of these.
    working: Turns,
    label: Label,
    table: Mutex<Table>,
}

fn label_of(volume: &mut dyn Volume) -> Result<Option<Label>, Error> {
    let mut block = [0; BLOCK_BYTES];
    volume.read(0, &mut block)?;
    if block.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let label: Option<Label> = opened(LABEL, &block);
    let known = label.filter(|label| {
        let each = label.extent_bytes / BLOCK_BYTES as u64;
        each > 0 && label.data() + label.extents * each <= volume.blocks()
    });
    known.map(Some).ok_or_else(|| {
        Error::Usage(
            "the volume for SSTs (--tables) holds something else: give one that was never written"
                .into(),
        )
    })
}

/// Extents of the volume, and how many of them are free.
pub fn room(volume: &mut dyn Volume) -> Result<(u32, u32), Error> {
    let Some(label) = label_of(volume)? else { return Ok((0, 0)) };
    let table = Table::read(volume, &label)?;
    Ok((label.extents as u32, table.free.len() as u32))
}

impl Extents {
    /// Of the volume; makes a table if it was never written.
    pub fn open(dial: Dial) -> Result<Self, Error> {
        Self::open_with(dial, EXTENT_BYTES)
    }

    fn open_with(dial: Dial, extent_bytes: u64) -> Result<Self, Error> {
        let mut volume = dial()?;
        let label = match label_of(&mut *volume)? {
            Some(label) => label,
            None => {
                let label = Label::of(volume.blocks(), extent_bytes);
                volume.write(0, &sealed(LABEL, &label))?;
                volume.flush()?;
                label
            }
        };
        let table = Mutex::new(Table::read(&mut *volume, &label)?);
        let (idle, working) = (Mutex::new(vec![volume]), Turns::new(READS_MAX));
        Ok(Self { dial, idle, working, label, table })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Volume>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on a connection of its own, of which there are no more than a server takes.
    fn with<T>(&self, work: impl FnOnce(&mut dyn Volume) -> Result<T, Error>) -> Result<T, Error> {
        let _turn = self.working.take();
        let kept = self.idle().pop();
        let mut volume = kept.map_or_else(|| (self.dial)(), Ok)?;
        let done = work(&mut *volume)?;
        self.idle().push(volume);
        Ok(done)
    }

    /// Has an extent hold this, durably.
    fn set(&self, extent: usize, id: u128) -> Result<(), Error> {
        let mut table = self.table();
        let before = std::mem::replace(&mut table.ids[extent], id);
        let (at, block) = table.block(extent);
        let set = self.with(|volume| {
            volume.write(at, &block)?;
            volume.flush()
        });
        if set.is_err() {
            table.ids[extent] = before;
        }
        set
    }

    fn read_one(&self, piece: &mut Piece<'_>) -> Result<(), Error> {
        let extent = self.table().extents.get(&piece.id).copied();
        let extent = extent.ok_or_else(|| super::lost(piece.id))?;
        let block_bytes = BLOCK_BYTES as u64;
        let mut offset = piece.offset;
        for part in piece.into.chunks_mut(REQUEST_BYTES_MAX) {
            let (first, skip) = (offset / block_bytes, (offset % block_bytes) as usize);
            let mut whole = vec![0; (skip + part.len()).next_multiple_of(BLOCK_BYTES)];
            self.with(|volume| volume.read(self.label.block(extent) + first, &mut whole))?;
            part.copy_from_slice(&whole[skip..][..part.len()]);
            offset += part.len() as u64;
        }
        Ok(())
    }
}

impl RawBlocks for Extents {
    fn block_bytes(&self) -> u64 {
        self.label.extent_bytes
    }

    fn units(&self) -> u32 {
        WRITERS
    }

    fn puts_at_once(&self) -> usize {
        PUTS_MAX
    }

    fn put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        let extent = {
            let mut table = self.table();
            if table.extents.contains_key(&id) || table.coming.contains(&id) {
                return Err(Error::Taken(format!("block {id:032x} is there already")));
            }
            let free = table.free.pop_front();
            let extent = free.ok_or_else(|| Error::UnitFull("no extent is free".into()))?;
            table.coming.push(id);
            extent
        };
        let written = self.with(|volume| {
            let first = self.label.block(extent);
            for (part, at) in bytes.chunks(REQUEST_BYTES_MAX).zip(0..) {
                volume.write(first + at * (REQUEST_BYTES_MAX / BLOCK_BYTES) as u64, part)?;
            }
            volume.flush()
        });
        let put = written.and_then(|()| self.set(extent, id));
        let mut table = self.table();
        table.coming.retain(|&coming| coming != id);
        match &put {
            Ok(()) => drop(table.extents.insert(id, extent)),
            Err(_) => table.free.push_back(extent),
        }
        put
    }

    fn delete(&self, id: u128) -> Result<(), Error> {
        let Some(extent) = self.table().extents.get(&id).copied() else { return Ok(()) };
        self.set(extent, 0)?;
        self.table().extents.remove(&id);
        let blocks = self.label.extent_bytes / BLOCK_BYTES as u64;
        let trimmed = self.with(|volume| volume.trim(self.label.block(extent), blocks));
        self.table().free.push_back(extent);
        trimmed
    }

    fn read(&self, pieces: &mut [Piece<'_>], _: Option<Duration>) -> Vec<Result<(), Error>> {
        pieces.iter_mut().map(|piece| self.read_one(piece)).collect()
    }

    fn list(&self) -> Result<Vec<u128>, Error> {
        Ok(self.table().extents.keys().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::World;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const BYTES: u64 = 32 << 10;

    fn open(world: &World) -> Extents {
        let world = world.clone();
        let dial: Dial = Box::new(move || Ok(Box::new(world.clone())));
        Extents::open_with(dial, BYTES).unwrap()
    }

    fn block(id: u128) -> Vec<u8> {
        vec![id as u8; BYTES as usize]
    }

    fn read(extents: &Extents, id: u128) -> Result<Vec<u8>, Error> {
        let mut into = vec![0; 9000];
        let mut pieces = [Piece { id, offset: 5000, into: &mut into }];
        extents.read(&mut pieces, None).pop().unwrap()?;
        Ok(into)
    }

    #[test]
    fn blocks_are_there_until_they_are_deleted_and_extents_are_used_again() {
        let world = World::new(1, 1024);
        let extents = open(&world);
        let mut ids: Vec<u128> = Vec::new();
        let full = loop {
            let id = (9 << 64) | (ids.len() as u128 + 1);
            match extents.put(id, &block(id)) {
                Ok(()) => ids.push(id),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::UnitFull(_)), "{full}");
        assert_eq!(ids.len() as u64, (1024 - 2) / 8);
        assert!(matches!(extents.put(ids[3], &block(1)), Err(Error::Taken(_))));
        extents.delete(ids[3]).unwrap();
        extents.delete(ids[3]).unwrap();
        assert!(read(&extents, ids[3]).is_err());
        extents.put(7 << 64, &block(0x77)).unwrap();
        let extents = open(&world);
        let mut listed = extents.list().unwrap();
        listed.sort_unstable();
        ids[3] = 7 << 64;
        ids.sort_unstable();
        assert_eq!(listed, ids);
        assert_eq!(read(&extents, 7 << 64).unwrap(), [0x77; 9000]);
        assert_eq!(read(&extents, ids[9]).unwrap(), block(ids[9])[..9000]);
        assert_eq!(room(&mut world.clone()), Ok((127, 0)));
    }

    /// A volume that takes its time.
    struct Slow(World);

    impl Volume for Slow {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }

        fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), Error> {
            std::thread::sleep(Duration::from_millis(2));
            Volume::read(&mut self.0, block, into)
        }

        fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
            self.0.write(block, bytes)
        }

        fn flush(&mut self) -> Result<(), Error> {
            self.0.flush()
        }
    }

    #[test]
    fn many_readers_share_as_many_connections_as_a_server_takes() {
        let (world, dialed) = (World::new(1, 1024), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&dialed);
        let dial: Dial = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Slow(world.clone())))
        });
        let extents = Extents::open_with(dial, BYTES).unwrap();
        extents.put(9 << 64, &block(0x99)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..300 {
                scope.spawn(|| assert_eq!(read(&extents, 9 << 64).unwrap(), [0x99; 9000]));
            }
        });
        let dialed = dialed.load(Ordering::Relaxed);
        assert!((2..=READS_MAX).contains(&dialed), "{dialed}");
    }

    #[test]
    fn what_was_put_is_there_after_a_power_cut_at_any_step_and_nothing_else() {
        for step in 1..40 {
            let world = World::new(step, 1024);
            let extents = open(&world);
            world.in_steps(step, crate::tests::Mishap::Cut);
            let (mut there, mut going) = (Vec::new(), None);
            for id in 1..20_u128 {
                if extents.put(id, &block(id)).is_err() {
                    going = Some(id);
                    break;
                }
                there.push(id);
                if id % 3 == 0 {
                    let old = there.remove(0);
                    if extents.delete(old).is_err() {
                        going = Some(old);
                        break;
                    }
                }
            }
            world.restart();
            let extents = open(&world);
            let mut listed = extents.list().unwrap();
            listed.retain(|&id| Some(id) != going);
            listed.sort_unstable();
            assert_eq!(listed, there, "step {step}");
            for id in extents.list().unwrap() {
                assert_eq!(read(&extents, id).unwrap(), block(id)[..9000], "step {step}: {id}");
            }
        }
    }
}
