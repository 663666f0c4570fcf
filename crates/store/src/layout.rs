//! What lies where on the volume: what the store is, who owns it, two areas for the journal in turn, and chunks of
//! small files.

use crate::api::{BLOCK_BYTES, Error, Volume};
use crate::record::CHUNK_BLOCKS;
use crate::tail::{self, Head};
use serde::{Deserialize, Serialize};

/// `Head::file` of the journal's blocks, and of the two before. Small files count from 2^32.
pub const JOURNAL: u64 = 0;
const LABEL: u64 = 1;
const OWNER: u64 = 2;
const LABEL_BLOCK: u64 = 0;
const OWNER_BLOCK: u64 = 1;
const AREAS_BLOCK: u64 = 2;
/// 4 MiB: two areas of the least size, and some files.
const VOLUME_BLOCKS_MIN: u64 = 1024;
/// An area is a 64th of the volume, within these: a record of an SST takes some 100 bytes, so the largest
/// has room for 200,000 of them, which is 1.6 TB in blocks of 8 MiB.
const AREA_BLOCKS_MIN: u64 = 64;
const AREA_BLOCKS_MAX: u64 = 8192;
/// 2: blocks vouch for earlier ones. One of version 1 becomes one of version 2 when it is opened.
const VERSION: u32 = 2;
const VERSION_LEAST: u32 = 1;
/// Blocks in one write of zeroes.
const ZERO_BLOCKS: u64 = 64;

/// What the store is: fixed when it is made.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Layout {
    version: u32,
    /// High half of the IDs of its raw blocks.
    pub key: u64,
    /// Bytes of a raw block.
    pub block_bytes: u64,
    /// Blocks of the volume.
    volume_blocks: u64,
    /// Blocks of each of the journal's areas.
    pub area_blocks: u64,
    /// Nothing was in these before the store wrote there.
    #[serde(default)]
    blank: bool,
}

/// Who owns the store: the last one that wrote this.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Owner {
    /// Counts the openings.
    pub epoch: u32,
    /// Tells two apart that count the same.
    nonce: u64,
}

impl Layout {
    /// Of the store on the volume; one is made if the volume was never written.
    pub fn open(volume: &mut dyn Volume, nonce: u64, block_bytes: u64) -> Result<Self, Error> {
        let blocks = volume.blocks();
        if blocks < VOLUME_BLOCKS_MIN {
            return Err(Error::Usage(format!(
                "the small volume has {} KiB: a store needs {} KiB, and its logs more: 1 GiB does",
                blocks * 4,
                VOLUME_BLOCKS_MIN * 4
            )));
        }
        if Self::is_none(volume)? {
            let area_blocks = (blocks / 64).clamp(AREA_BLOCKS_MIN, AREA_BLOCKS_MAX);
            let layout = Self {
                version: VERSION,
                key: nonce,
                block_bytes,
                volume_blocks: blocks,
                area_blocks,
                blank: true,
            };
            // What another store left there is none of this one's.
            zero(volume, OWNER_BLOCK..AREAS_BLOCK + 2 * area_blocks)?;
            volume.flush()?;
            volume.write(LABEL_BLOCK, &sealed(LABEL, &layout))?;
            return Ok(layout);
        }
        let mut block = [0; BLOCK_BYTES];
        volume.read(LABEL_BLOCK, &mut block)?;
        let mut layout: Self = opened(LABEL, &block).ok_or_else(|| {
            let what = "the first block of the small volume is no store's: give another volume; restore \
                        it, if a store was there; or zero its first 4 KiB for a new, empty store, if nobody \
                        needs what is there";
            Error::Usage(what.into())
        })?;
        layout.check(blocks, block_bytes)?;
        if layout.version < VERSION {
            layout.version = VERSION;
            volume.write(LABEL_BLOCK, &sealed(LABEL, &layout))?;
            volume.flush()?;
        }
        Ok(layout)
    }

    /// Whether the volume was never written, so that a store would be made there.
    pub fn is_none(volume: &mut dyn Volume) -> Result<bool, Error> {
        if volume.blocks() < VOLUME_BLOCKS_MIN {
            return Ok(false);
        }
        let mut block = [0; BLOCK_BYTES];
        volume.read(LABEL_BLOCK, &mut block)?;
        Ok(block.iter().all(|&byte| byte == 0))
    }

    /// Whether a store was here whose label is gone: who opened it last is still told.
    pub fn was_one(volume: &mut dyn Volume) -> Result<bool, Error> {
        let mut block = [0; BLOCK_BYTES];
        volume.read(OWNER_BLOCK, &mut block)?;
        let owner: Option<Owner> = opened(OWNER, &block);
        Ok(owner.is_some() && Self::is_none(volume)?)
    }

    /// The key of the store on the volume, if there is one.
    pub fn key_of(volume: &mut dyn Volume) -> Result<Option<u64>, Error> {
        let mut block = [0; BLOCK_BYTES];
        volume.read(LABEL_BLOCK, &mut block)?;
        Ok(opened(LABEL, &block).map(|layout: Self| layout.key))
    }

    fn check(&self, blocks: u64, block_bytes: u64) -> Result<(), Error> {
        if !(VERSION_LEAST..=VERSION).contains(&self.version) {
            let version = self.version;
            return Err(Error::Usage(format!(
                "the store is of version {version}, and this build knows {VERSION_LEAST} to {VERSION}"
            )));
        }
        if self.block_bytes != block_bytes {
            return Err(Error::Usage(format!(
                "the store was made for raw blocks of {} bytes, and those of these units have \
                 {block_bytes}: these are not the units that it was made with",
                self.block_bytes
            )));
        }
        let fits = (1..=AREA_BLOCKS_MAX).contains(&self.area_blocks)
            && AREAS_BLOCK + 2 * self.area_blocks < self.volume_blocks;
        if self.volume_blocks > blocks || !fits {
            return Err(Error::Damaged(format!(
                "the store was made on a volume of {} blocks, and this one has {blocks}",
                self.volume_blocks
            )));
        }
        Ok(())
    }

    /// What is in the journal's areas, the store wrote.
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    /// Where a block of an area lies.
    pub fn journal_block(&self, area: u64, index: u32) -> Option<u64> {
        let index = u64::from(index);
        (index < self.area_blocks).then_some(AREAS_BLOCK + area * self.area_blocks + index)
    }

    /// Chunks for small files.
    pub fn chunks(&self) -> u32 {
        let rest = self.volume_blocks - AREAS_BLOCK - 2 * self.area_blocks;
        u32::try_from(rest / CHUNK_BLOCKS).unwrap_or(u32::MAX)
    }

    /// The first block of a chunk.
    pub fn chunk_block(&self, chunk: u32) -> u64 {
        AREAS_BLOCK + 2 * self.area_blocks + u64::from(chunk) * CHUNK_BLOCKS
    }
}

impl Owner {
    /// Makes this opening the owner, durably. Whoever was it before finds out by [`Owner::is_still`].
    /// It counts on from the last one, and from `least`.
    pub fn take(volume: &mut dyn Volume, nonce: u64, least: u32) -> Result<Self, Error> {
        let mut block = [0; BLOCK_BYTES];
        volume.read(OWNER_BLOCK, &mut block)?;
        let epoch = opened(OWNER, &block).map_or(0, |owner: Self| owner.epoch).max(least);
        let epoch = epoch.checked_add(1).ok_or_else(|| {
            Error::Damaged(
                "the store was opened 4,294,967,295 times, which is all it counts".into(),
            )
        })?;
        let owner = Self { epoch, nonce };
        volume.write(OWNER_BLOCK, &sealed(OWNER, &owner))?;
        volume.flush()?;
        Ok(owner)
    }

    /// Nobody has taken the store since.
    pub fn is_still(self, volume: &mut dyn Volume) -> Result<bool, Error> {
        let mut block = [0; BLOCK_BYTES];
        volume.read(OWNER_BLOCK, &mut block)?;
        Ok(opened(OWNER, &block) == Some(self))
    }

    /// A number that no other opening gives to anything.
    pub fn unique(self, count: u32) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(count)
    }
}

/// Writes zeroes.
fn zero(volume: &mut dyn Volume, blocks: std::ops::Range<u64>) -> Result<(), Error> {
    let zeroes = vec![0; ZERO_BLOCKS as usize * BLOCK_BYTES];
    let mut at = blocks.start;
    while at < blocks.end {
        let count = ZERO_BLOCKS.min(blocks.end - at);
        volume.write(at, &zeroes[..count as usize * BLOCK_BYTES])?;
        at += count;
    }
    Ok(())
}

pub(crate) fn sealed(file: u64, what: &impl Serialize) -> [u8; BLOCK_BYTES] {
    let text = serde_json::to_vec(what).expect("plain numbers are JSON");
    tail::encode(Head::new(file, 0, 0), &text)
}

pub(crate) fn opened<T: for<'de> Deserialize<'de>>(file: u64, block: &[u8]) -> Option<T> {
    let (head, text) = tail::decode(block)?;
    (head.file == file).then(|| serde_json::from_slice(text).ok()).flatten()
}
