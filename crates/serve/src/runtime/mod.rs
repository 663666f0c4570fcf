//! What a server runs on: a thread, a ring and an engine for each shard, the mailboxes between them, and the
//! memory of requests. It knows volumes and fronts, and no protocol.

pub mod buffer;
pub mod crypt;
pub mod data;
pub mod frames;
pub mod gather;
pub mod ring;
pub mod shard;
