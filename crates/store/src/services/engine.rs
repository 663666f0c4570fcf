//! What the services ask of an engine: sorted bytes in slices, batches that are all or nothing, and a durable write. RocksDB is
//! one ([`super::Loaded`]); tests have one in memory.

use super::Refused;
use super::key::KeyRange;

/// In the place of a slice: what is the store's own.
pub const OWN: u32 = u32::MAX;

/// One change of a batch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// A key has this value from now on.
    Put {
        /// In this slice.
        slice: u32,
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// A key has none.
    Delete {
        /// In this slice.
        slice: u32,
        /// The key.
        key: Vec<u8>,
    },
    /// No key of a range has one.
    DeleteRange {
        /// In this slice.
        slice: u32,
        /// The keys.
        range: KeyRange,
    },
}

impl Change {
    /// Bytes that it takes in a batch.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload_bytes()
    }

    /// Bytes of its keys and its value.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key, .. } => key.len(),
            Self::DeleteRange { range, .. } => range.from.len() + range.to.len(),
        }
    }

    /// Appends it as the engine reads it: kind, slice, two lengths, two strings of bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let (kind, slice, first, second): (u8, u32, &[u8], &[u8]) = match self {
            Self::Put { slice, key, value } => (1, *slice, key, value),
            Self::Delete { slice, key } => (2, *slice, key, &[]),
            Self::DeleteRange { slice, range } => (3, *slice, &range.from, &range.to),
        };
        into.push(kind);
        for number in [slice, first.len() as u32, second.len() as u32] {
            into.extend(number.to_le_bytes());
        }
        into.extend(first);
        into.extend(second);
    }
}

const HEAD_BYTES: usize = 13;

/// An SST of the engine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Table {
    /// The slice that it belongs to.
    pub slice: u32,
    /// Its level.
    pub level: u32,
    /// Its bytes.
    pub bytes: u64,
    /// What the engine calls it.
    pub name: String,
    /// Why it cannot be read, if that is known.
    pub damage: Option<String>,
    /// The first key in it.
    pub smallest: Vec<u8>,
    /// The last one.
    pub largest: Vec<u8>,
}

/// What [`Engine::scan`] calls with a key and its value; `false` ends it.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// Sorted bytes in slices. All of it may be called by many threads.
pub trait Engine: Send + Sync {
    /// How many slices there are.
    fn slices(&self) -> u32;
    /// Bytes of a raw block.
    fn block_bytes(&self) -> u64;
    /// Raw blocks that an SST fills, at most.
    fn sst_blocks(&self) -> u32 {
        1
    }
    /// Makes all changes, or none. With `durable` they are durable when this returns, and so is whatever was written before.
    fn write(&self, changes: &[&Change], durable: bool) -> Result<(), Refused>;
    /// Fails with the reason while no write is taken, as after one that found no room. With `go_on` it finds out whether there is
    /// some again, which may take a while.
    fn takes_writes(&self, _go_on: bool) -> Result<(), Refused> {
        Ok(())
    }
    /// The value of a key.
    fn get(&self, slice: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Refused>;
    /// The same as far as it is in memory; `None` if units would have to be asked.
    fn get_in_memory(&self, slice: u32, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, Refused> {
        self.get(slice, key).map(Some)
    }
    /// Nothing can be changed: it was opened to read what is left.
    fn is_only_read(&self) -> bool {
        false
    }
    /// Calls `each` with what is in the range, in order, until it says `false`.
    fn scan(&self, slice: u32, range: &KeyRange, each: &mut Each<'_>) -> Result<(), Refused>;
    /// A number that the engine knows of a slice.
    fn property(&self, slice: u32, name: &str) -> u64;
    /// What the engine, or the store below it (`weir.`), has counted under a name since it was opened.
    fn count(&self, _name: &str) -> u64 {
        0
    }
    /// Every SST, and every log that could not be read whole.
    fn tables(&self) -> Vec<Table>;
    /// Reads all of an SST and compares its checksums.
    fn verify(&self, table: &str) -> Result<(), Refused>;
    /// Writes a slice anew, without what was deleted in it.
    fn compact(&self, slice: u32) -> Result<(), Refused>;
}
