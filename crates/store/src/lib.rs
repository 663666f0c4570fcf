//! A store: files of a storage engine over raw flash. What an engine writes once and whole, as RocksDB its SSTs, is
//! raw blocks by ID, which are erased when the file is deleted, so that flash collects no garbage. What it
//! appends to, renames and keeps small (logs, manifests) is on a small block volume, with the journal that says
//! which file is what (docs/store.md; docs/adr/0018).
//!
//! ```text
//!   services    values, tables and files by name, over RocksDB on such a store
//!   abi         for C, and so for RocksDB's file system (crates/store/rocksdb)
//!   store       many threads; files of raw blocks; erases in the background
//!   writer         files that are written        late   tables that are on their way
//!   catalog        names, small files, what may be erased when
//!   journal     records in two areas        layout   what lies where
//!   tail        appended bytes in blocks that say whose they are
//!   api         the volume and the raw blocks; remote: those of servers
//! ```
#![warn(missing_docs)]

pub mod abi;
mod api;
mod catalog;
mod journal;
mod late;
mod layout;
mod path;
mod record;
pub mod remote;
pub mod services;
mod store;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

pub use api::{BLOCK_BYTES, Error, Piece, RawBlocks, Volume};
pub use catalog::Found;
pub use record::{Entry, Table};
pub use store::{Counts, Eraser, Missing, Opening, Reader, Seen, Store, Wanted};
pub use writer::{LateTable, TableWriter, Writer};
