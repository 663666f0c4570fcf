//! Addresses. Each is its own type, so that a block is never taken for a logical block.

/// A logical block of a shard: 4 KiB that the host can address.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lba(pub u32);

/// An erase block of a unit as the host sees it: `unit * blocks_per_unit + block`. On multi-plane
/// flash this is the block of every plane together (inside `nand`: a superblock).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockId(pub u32);

/// A physical 4 KiB slot, counted through the medium in the order unit, block, page, slot. Read
/// it apart with the methods of [`crate::Geometry`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SlotId(pub u32);
