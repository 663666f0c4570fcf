//! A volume and raw blocks in memory, whose power can be cut, or which fail, at any step.

use crate::{BLOCK_BYTES, Error, Piece, RawBlocks, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub const RAW_BYTES: u64 = 32 << 10;
pub const UNITS: u32 = 4;

pub type Block = [u8; BLOCK_BYTES];

/// Draws from a seed.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// What happens at a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mishap {
    /// The power goes: what is under way may have happened, and all later steps fail.
    Cut,
    /// The process goes: as above, and nothing that was written is lost.
    Kill,
    /// This step alone fails, whether it happened or not.
    Fail,
    /// None of these, but a block is an older copy of itself afterwards, which may be told.
    Older,
}

#[derive(Clone)]
pub struct Inner {
    durable: BTreeMap<u64, Block>,
    /// Every version since the last flush.
    cached: BTreeMap<u64, Vec<Block>>,
    /// Every version that was ever written, once somebody asked for them.
    written: Option<BTreeMap<u64, Vec<Block>>>,
    /// Writes that were begun, which happen in any order.
    begun: Vec<(u64, Vec<u8>)>,
    /// One of them failed, and nobody was told.
    failed: bool,
    /// Draws the order.
    order: Random,
    pub raw: BTreeMap<u128, Vec<u8>>,
    pub raw_blocks_max: usize,
    pub puts_at_once: usize,
    /// So many puts fail.
    pub fail_puts: u32,
    /// Puts with this number and later ones wait.
    pub puts_held: Option<u64>,
    /// Puts that began to wait.
    pub puts_waited: u32,
    /// Times that the units were asked for parts, of many at a time.
    pub reads: u32,
    volume_blocks: u64,
    pub steps: u64,
    mishap: Option<(u64, Mishap)>,
    down: bool,
    random: Random,
}

#[derive(Clone)]
pub struct World(Arc<Mutex<Inner>>);

impl World {
    pub fn new(seed: u64, volume_blocks: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            written: None,
            begun: Vec::new(),
            failed: false,
            order: Random(seed | 1),
            raw: BTreeMap::new(),
            raw_blocks_max: usize::MAX,
            puts_at_once: 1,
            fail_puts: 0,
            puts_held: None,
            puts_waited: 0,
            reads: 0,
            volume_blocks,
            steps: 0,
            mishap: None,
            down: false,
            random: Random(seed | 1),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub fn in_steps(&self, steps: u64, mishap: Mishap) {
        let world = &mut *self.lock();
        world.mishap = Some((world.steps + steps, mishap));
    }

    /// A copy of the volume, of which all is durable.
    pub fn volume(&self) -> BTreeMap<u64, Block> {
        let world = self.lock();
        assert!(world.cached.is_empty(), "the copy is of a volume at rest");
        world.durable.clone()
    }

    /// Puts a copy in the volume's place.
    pub fn set_volume(&self, copy: BTreeMap<u64, Block>) {
        let world = &mut *self.lock();
        (world.durable, world.cached) = (copy, BTreeMap::new());
    }

    /// The mishap took place.
    pub fn had_mishap(&self) -> bool {
        let world = self.lock();
        world.mishap.is_some_and(|(at, _)| world.steps >= at)
    }

    /// Starts again; of what was begun nothing more happens. After a cut each block of the volume is any of those that it could be.
    pub fn restart(&self) {
        let world = &mut *self.lock();
        world.begun.clear();
        let lost = matches!(world.mishap, Some((_, Mishap::Cut)));
        for (block, versions) in std::mem::take(&mut world.cached) {
            let count = versions.len() as u64;
            let kept = if lost { world.random.draw(count + 1) } else { count };
            if let Some(version) = kept.checked_sub(1) {
                world.durable.insert(block, versions[version as usize]);
            }
        }
        (world.down, world.mishap, world.failed) = (false, None, false);
    }

    /// What is in the volume's cache becomes durable.
    pub fn settle(&self) {
        let world = &mut *self.lock();
        world.end_writes();
        world.settle();
    }

    /// Keeps every version of each block from now on.
    pub fn keep_versions(&self) {
        self.lock().written = Some(BTreeMap::new());
    }

    /// All versions of each block that were written since, the last one too.
    pub fn versions(&self) -> BTreeMap<u64, Vec<Block>> {
        self.lock().written.clone().unwrap()
    }

    /// Another world, as this one is now, which keeps no versions.
    pub fn copy(&self) -> Self {
        let world = Inner { written: None, ..self.lock().clone() };
        Self(Arc::new(Mutex::new(world)))
    }

    /// What a block of the volume holds, if it was ever written.
    pub fn block(&self, block: u64) -> Option<[u8; BLOCK_BYTES]> {
        let world = self.lock();
        assert!(world.cached.is_empty(), "synced before");
        world.durable.get(&block).copied()
    }

    /// Writes a block of the volume behind the store's back.
    pub fn put(&self, block: u64, bytes: [u8; BLOCK_BYTES]) {
        self.lock().durable.insert(block, bytes);
    }

    /// Changes a byte of the volume.
    pub fn bend(&self, block: u64, byte: usize) {
        let world = &mut *self.lock();
        assert!(world.cached.is_empty(), "synced before");
        world.durable.entry(block).or_insert([0; BLOCK_BYTES])[byte] ^= 1;
    }
}

fn down() -> Error {
    Error::Io("no power".into())
}

impl Inner {
    fn settle(&mut self) {
        for (block, versions) in std::mem::take(&mut self.cached) {
            self.durable.insert(block, *versions.last().unwrap());
        }
    }

    /// What was begun happens, in any order; the blocks of what the power or the process goes with may be some of it.
    fn end_writes(&mut self) {
        while !self.begun.is_empty() {
            let next = self.order.draw(self.begun.len() as u64) as usize;
            let (block, bytes) = self.begun.swap_remove(next);
            self.failed |= self.write(block, &bytes).is_err();
        }
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let (happens, told) = self.step();
        for (at, bytes) in (block..).zip(bytes.chunks(BLOCK_BYTES)) {
            assert!(at < self.volume_blocks, "beyond the volume");
            // What is cut off happens in part.
            if told || happens && self.random.draw(2) == 0 {
                let bytes: Block = bytes.try_into().unwrap();
                self.cached.entry(at).or_default().push(bytes);
                if let Some(written) = &mut self.written {
                    written.entry(at).or_default().push(bytes);
                }
            }
        }
        if told { Ok(()) } else { Err(down()) }
    }

    /// Whether the step happens, and whether it then says so.
    fn step(&mut self) -> (bool, bool) {
        if self.down {
            return (false, false);
        }
        self.steps += 1;
        match self.mishap {
            Some((at, mishap)) if at == self.steps => {
                self.down = mishap != Mishap::Fail;
                (self.random.draw(2) == 0, false)
            }
            _ => (true, true),
        }
    }
}

impl Volume for World {
    fn blocks(&self) -> u64 {
        self.lock().volume_blocks
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), Error> {
        let world = &mut *self.lock();
        world.end_writes();
        if world.down {
            return Err(down());
        }
        for (at, into) in (block..).zip(into.chunks_mut(BLOCK_BYTES)) {
            let cached = world.cached.get(&at).and_then(|versions| versions.last());
            let bytes = cached.or_else(|| world.durable.get(&at));
            into.copy_from_slice(bytes.unwrap_or(&[0; BLOCK_BYTES]));
        }
        Ok(())
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let world = &mut *self.lock();
        world.end_writes();
        world.write(block, bytes)
    }

    fn begin_write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let world = &mut *self.lock();
        let end = |(block, bytes): &(u64, Vec<u8>)| block + (bytes.len() / BLOCK_BYTES) as u64;
        let new = (block, bytes.to_vec());
        if world.begun.iter().any(|old| old.0 < end(&new) && block < end(old)) {
            world.end_writes();
        }
        if std::mem::take(&mut world.failed) {
            return Err(down());
        }
        world.begun.push(new);
        Ok(())
    }

    fn end_writes(&mut self) -> Result<(), Error> {
        let world = &mut *self.lock();
        world.end_writes();
        if std::mem::take(&mut world.failed) { Err(down()) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        Volume::end_writes(self)?;
        let world = &mut *self.lock();
        let (happens, told) = world.step();
        if happens {
            world.settle();
        }
        if told { Ok(()) } else { Err(down()) }
    }
}

impl RawBlocks for World {
    fn block_bytes(&self) -> u64 {
        RAW_BYTES
    }

    fn units(&self) -> u32 {
        UNITS
    }

    fn puts_at_once(&self) -> usize {
        self.lock().puts_at_once
    }

    fn put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, RAW_BYTES, "whole blocks");
        let is_held = || self.lock().puts_held.is_some_and(|from| id as u64 >= from);
        if is_held() {
            self.lock().puts_waited += 1;
        }
        while is_held() {
            std::thread::yield_now();
        }
        let world = &mut *self.lock();
        let of = |id: u128| id as u64 % u64::from(UNITS);
        if world.raw.keys().any(|&there| there as u64 == id as u64) {
            return Err(Error::Taken("taken".into()));
        }
        if world.raw.keys().filter(|&&there| of(there) == of(id)).count() >= world.raw_blocks_max {
            return Err(Error::UnitFull("full".into()));
        }
        if world.fail_puts > 0 {
            world.fail_puts -= 1;
            return Err(down());
        }
        let (happens, told) = world.step();
        if happens {
            world.raw.insert(id, bytes.to_vec());
        }
        if told { Ok(()) } else { Err(down()) }
    }

    fn delete(&self, id: u128) -> Result<(), Error> {
        let world = &mut *self.lock();
        let (happens, told) = world.step();
        if happens {
            world.raw.remove(&id);
        }
        if told { Ok(()) } else { Err(down()) }
    }

    fn read(&self, pieces: &mut [Piece<'_>], _: Option<Duration>) -> Vec<Result<(), Error>> {
        let world = &mut *self.lock();
        world.reads += u32::from(!pieces.is_empty());
        let read = |piece: &mut Piece<'_>| {
            let block = world.raw.get(&piece.id).filter(|_| !world.down).ok_or_else(down)?;
            piece.into.copy_from_slice(&block[piece.offset as usize..][..piece.into.len()]);
            Ok(())
        };
        pieces.iter_mut().map(read).collect()
    }

    fn list(&self) -> Result<Vec<u128>, Error> {
        Ok(self.lock().raw.keys().copied().collect())
    }
}
