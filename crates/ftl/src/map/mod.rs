//! The map: where each logical block lies. Whole in DRAM ([`Map::flat`]), or a part of it
//! ([`Cached`]).
//!
//! Whoever looks at a block's entry or replaces it makes sure first that it is *there*
//! (`residency`). Who knows what the entry is, as GC knows from the slot it moves, need not:
//! [`Map::set`].

mod cached;
mod changes;
pub(crate) mod clones;
mod queues;
pub(crate) mod residency;
pub(crate) mod shadows;
pub(crate) mod staging;
#[cfg(test)]
mod tests;
pub(crate) mod volumes;

pub(crate) use cached::Cached;
use cached::bytes_min;
pub(crate) use cached::bytes_min_to_hold;

use crate::config::Settings;
use crate::format::{CHUNK_ENTRIES, UNMAPPED};
use flash::Geometry;
use std::ops::Range;

/// Fewest bytes of DRAM, for [`crate::config::Settings::map_bytes`], that the map of a device of this shape works
/// in, with pieces of `piece_blocks` blocks (see [`crate::config::Settings::map_piece_blocks`]).
pub fn map_bytes_min(geometry: &Geometry, piece_blocks: u32) -> u64 {
    bytes_min(geometry.slots() as u32, piece_blocks)
}

/// Who needs a chunk that could not be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    /// A piece on its way to DRAM.
    Piece(u32),
    /// The search for what points to a lost slot: chunks from the first to the last.
    Search(u32, u32),
    /// The next checkpoint, which asks again by itself.
    Stage,
}

/// A map that would be smaller than this is cut into pieces if it is to be: it is there to test that.
const FLAT_BYTES_MIN: u64 = 1 << 16;

/// Entries of a piece of which every block is unmapped.
const NOTHING: [u32; CHUNK_ENTRIES] = [UNMAPPED; CHUNK_ENTRIES];

#[derive(Clone, Debug)]
pub(crate) struct Map {
    blocks: u32,
    /// Every entry; empty if only a part is in DRAM.
    flat: Vec<u32>,
    cached: Option<Box<Cached>>,
}

impl Map {
    /// With every block unmapped, and as much of it in DRAM as the settings say.
    pub fn of(settings: &Settings, blocks: u32) -> Self {
        let (bytes, flat_bytes) = (settings.map_bytes, u64::from(blocks) * 4);
        if bytes == 0 || bytes >= flat_bytes.max(FLAT_BYTES_MIN) {
            return Self { blocks, flat: vec![UNMAPPED; blocks as usize], cached: None };
        }
        let mut cached = Box::new(Cached::new(blocks, bytes, settings.map_piece_blocks));
        let by_page = settings.map_volumes.iter().filter(|volume| volume.page);
        by_page.for_each(|volume| cached.hold_all(&volume.blocks));
        Self { blocks, flat: Vec::new(), cached: Some(cached) }
    }

    /// Logical blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Entries above those of the logical blocks: the shadows of snapshots.
    pub fn shadow_blocks(&self) -> u32 {
        (self.flat.len() as u32).saturating_sub(self.blocks)
    }

    /// Logical blocks, and entries above them.
    pub fn sizes(&self) -> (u32, u32) {
        (self.blocks, self.shadow_blocks())
    }

    /// All entries.
    pub fn entries(&self) -> u32 {
        self.blocks + self.shadow_blocks()
    }

    /// There are so many entries of shadows from now on. Those that come say nothing; the others stay.
    pub fn resize_shadows(&mut self, shadow_blocks: u32) {
        assert!(self.cached.is_none(), "shadows want the whole map in DRAM");
        self.flat.resize((self.blocks + shadow_blocks) as usize, UNMAPPED);
        if self.flat.len() < self.flat.capacity() / 2 {
            self.flat.shrink_to_fit();
        }
    }

    /// There are so many logical blocks more, which hold nothing. The entries of shadows stay behind them.
    pub fn grow(&mut self, blocks: u32) {
        assert!(self.cached.is_none(), "a device grows with its whole map in DRAM");
        let end = self.blocks as usize;
        self.flat.splice(end..end, std::iter::repeat_n(UNMAPPED, blocks as usize));
        self.blocks += blocks;
    }

    #[inline]
    pub fn is_cached(&self) -> bool {
        self.cached.is_some()
    }

    #[inline]
    pub fn cached(&self) -> Option<&Cached> {
        self.cached.as_deref()
    }

    #[inline]
    pub fn cached_mut(&mut self) -> Option<&mut Cached> {
        self.cached.as_deref_mut()
    }

    /// The whole map, if it is in DRAM.
    pub fn flat(&self) -> Option<&[u32]> {
        self.cached.is_none().then_some(&self.flat)
    }

    pub fn flat_mut(&mut self) -> Option<&mut [u32]> {
        self.cached.is_none().then_some(&mut self.flat)
    }

    /// What `lba` holds; `None` if it does not exist or its entry is not there.
    #[inline]
    pub fn peek(&self, lba: u32) -> Option<u32> {
        match &self.cached {
            None => self.flat.get(lba as usize).copied(),
            Some(cached) => (lba < self.blocks).then(|| cached.peek(lba)).flatten(),
        }
    }

    /// What `lba` holds, whose entry is there.
    #[inline]
    pub fn entry(&self, lba: u32) -> u32 {
        match &self.cached {
            None => self.flat[lba as usize],
            Some(cached) => cached.peek(lba).expect("the entry is there"),
        }
    }

    /// The entries from `lba` on, which are there: up to `max`, at least one.
    #[inline]
    pub fn run(&self, lba: u32, max: u32) -> &[u32] {
        match &self.cached {
            None => &self.flat[lba as usize..(lba + max) as usize],
            Some(cached) => {
                let piece = cached.piece(lba);
                let entries = cached.entries_of(piece).unwrap_or(&NOTHING);
                let blocks = cached.blocks_of(piece);
                let at = (lba - blocks.start) as usize;
                let end = ((lba + max).min(blocks.end) - blocks.start) as usize;
                &entries[at..end]
            }
        }
    }

    /// Whether the entries of all these blocks are there.
    #[inline]
    pub fn is_there(&self, lba: u32, blocks: u32) -> bool {
        let Some(cached) = &self.cached else { return true };
        let pieces = cached.piece(lba)..=cached.piece(lba + blocks - 1);
        pieces.into_iter().all(|piece| cached.is_resident(piece) || cached.is_unused(piece))
    }

    /// `lba`, whose entry is there, holds `entry` now. Returns what it held.
    #[inline]
    pub fn replace(&mut self, lba: u32, entry: u32) -> u32 {
        match &mut self.cached {
            None => std::mem::replace(&mut self.flat[lba as usize], entry),
            Some(cached) => cached.replace(lba, entry),
        }
    }

    /// `lba`, which holds `previous`, holds `entry` now.
    #[inline]
    pub fn set(&mut self, lba: u32, previous: u32, entry: u32) {
        match &mut self.cached {
            None => self.flat[lba as usize] = entry,
            Some(cached) => cached.set(lba, previous, entry),
        }
    }

    /// Recovery: `lba` holds `entry`. False if there is no such block.
    pub fn recover(&mut self, lba: u32, entry: u32) -> bool {
        if lba >= self.blocks {
            return false;
        }
        match &mut self.cached {
            None => self.flat[lba as usize] = entry,
            Some(cached) => cached.recover(lba, entry),
        }
        true
    }

    /// Recovery: these blocks are unmapped.
    pub fn recover_unmapped(&mut self, blocks: Range<u32>) {
        match &mut self.cached {
            None => self.flat[blocks.start as usize..blocks.end as usize].fill(UNMAPPED),
            Some(cached) => cached.recover_unmapped(blocks),
        }
    }

    /// Recovery: what `lba` holds, which does not hang on a checkpoint.
    pub fn recovered(&self, lba: u32) -> u32 {
        match &self.cached {
            None => self.flat[lba as usize],
            Some(cached) => cached.recovered(lba).unwrap_or(UNMAPPED),
        }
    }

    /// Length of the run from `lba`, at most `blocks`, of blocks that are all unmapped or all not;
    /// true if they are not. Where that cannot be told without a look at flash they count as not.
    pub fn mapped_run(&self, lba: u32, blocks: u32) -> (bool, u32) {
        let end = lba.saturating_add(blocks).min(self.blocks);
        if lba >= end {
            return (false, 0);
        }
        let mut run = 0;
        let mut mapped = None;
        while lba + run < end {
            let (is_mapped, length) = self.mapped_run_there(lba + run, end - lba - run);
            if *mapped.get_or_insert(is_mapped) != is_mapped {
                break;
            }
            run += length;
        }
        (mapped == Some(true), run)
    }

    fn mapped_run_there(&self, lba: u32, max: u32) -> (bool, u32) {
        if let Some(cached) = &self.cached {
            let piece = cached.piece(lba);
            if !cached.is_resident(piece) {
                let length = cached.blocks_of(piece).end - lba;
                return (!cached.is_unused(piece), length.min(max));
            }
        }
        let entries = self.run(lba, max);
        let mapped = entries[0] != UNMAPPED;
        let run = entries.iter().take_while(|&&entry| (entry != UNMAPPED) == mapped).count();
        (mapped, run as u32)
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> u64 {
        let cached = self.cached.as_ref().map_or(0, |cached| cached.memory_bytes());
        self.flat.len() as u64 * 4 + cached
    }
}
