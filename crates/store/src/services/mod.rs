//! The services of a store: values by key, cells of tables, and immutable files, each a thin encoding of names as keys
//! of one engine, hashed over its slices (docs/store.md; docs/adr/0020).
//!
//! ```text
//!   service     opens a store; what is acknowledged when; whether there is room
//!   values · cells · files · scrub      what is asked, as reads and batches of the engine
//!   commit      many puts, one sync         scan     all slices as one order
//!   key         names as keys
//!   engine      what is asked of it; loaded: RocksDB; memory: a model
//! ```

mod cells;
mod commit;
pub mod engine;
mod files;
pub mod key;
mod loaded;
mod memory;
mod scan;
mod scrub;
mod service;
#[cfg(test)]
mod tests;
mod values;

pub use commit::{Answer, Counts};
pub use engine::{Change, Engine, OWN};
pub use files::{Entry, File, PIECE_BYTES, Upload};
pub use loaded::{Loaded, Mode, Opened};
pub use memory::Memory;
pub use scan::{Bounds, Page, Pair};
pub use scrub::Scrubbed;
pub use service::{Look, SLICES_DEFAULT, SLICES_MAX, Service, SliceStatus};
pub use values::{VALUE_BYTES_MAX, too_large};

use std::fmt;

/// Why a service did not do something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    /// There is no such thing.
    Missing(String),
    /// It is there already, or something is in its way.
    Conflict(String),
    /// The caller's mistake.
    Usage(String),
    /// Larger than may be.
    TooLarge(String),
    /// No room: what is full, and what helps.
    Full(String),
    /// What lies there is not what was written there.
    Damaged(String),
    /// Not now: the units do not answer, or the store is only read. Nothing was done.
    Unready(String),
    /// The engine failed: a write may have happened or not.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text)
            | Self::Conflict(text)
            | Self::Usage(text)
            | Self::TooLarge(text)
            | Self::Full(text)
            | Self::Damaged(text)
            | Self::Unready(text)
            | Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refused {}
