//! The words every other crate of Weir shares. No behaviour lives here that two crates could
//! disagree about: geometry and addresses, what a host asks ([`Request`], [`Reply`]), what a medium
//! is told and answers ([`Command`], [`Completion`]), virtual or monotonic time ([`Instant`]), the
//! seeded generator ([`Random`]), a table of what is in flight ([`Slab`]) and the checksum.
//!
//! Two rules hold for everything that uses these types:
//! - *handles, not payload*: a command names a buffer ([`Payload`]); the driver moves the bytes.
//! - *time is a value*: nothing here or above reads a clock.
//!
//! ```
//! use flash::{FastTier, Geometry, Pairing};
//! let geometry = Geometry {
//!     units: 8, blocks_per_unit: 256, pages_per_block: 256, slots_per_page: 4,
//!     pairing: Pairing::Staircase, durable_at_completion: true, suspend: true,
//!     queue_depth: 2, endurance: 3000, open_blocks_max: 0,
//!     fast: FastTier::NONE,
//! };
//! let slot = geometry.slot(geometry.block(3, 7), 5, 2);
//! assert_eq!(geometry.unit_of(geometry.block_of(slot)), 3);
//! assert_eq!(geometry.page_in_block(slot), 5);
//! ```
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod address;
mod command;
mod geometry;
pub mod quantity;
mod random;
mod request;
mod slab;
mod time;

pub use address::{BlockId, Lba, SlotId};
pub use command::{
    Command, Completion, Health, MediumError, OOB_BYTES, Oob, Payload, SlotData, SlotRead,
    SlotStatus, SlotWrite, Tag,
};
pub use geometry::{FastTier, Geometry, Pairing};
pub use random::Random;
pub use request::{
    BufferId, Hint, Lifetime, Operation, Reply, Request, RequestError, RequestId, Spent, ZoneError,
};
pub use slab::Slab;
pub use time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Bytes of a logical block, and of the slot that holds it.
pub const BLOCK_BYTES: usize = 4096;

/// CRC-32C (Castagnoli) of `bytes`: the checksum of everything Weir puts on flash.
pub fn crc(bytes: &[u8]) -> u32 {
    // One is faster by half on whole blocks, the other on what is as short as an OOB.
    if bytes.len() >= BLOCK_BYTES { crc_fast::crc32_iscsi(bytes) } else { crc32c::crc32c(bytes) }
}

/// CRC-32C of `bytes` after what `seed` already covers.
pub fn crc_append(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, crc, crc_append};

    #[test]
    fn the_checksum_of_a_block_is_the_same_in_one_part_and_in_many() {
        let block: Vec<u8> = (0..BLOCK_BYTES as u32).map(|i| ((i * i) >> 3) as u8).collect();
        let parts = block.chunks(100).fold(0, crc_append);
        assert_eq!(crc(&block), parts);
        assert_eq!(crc(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }
}
