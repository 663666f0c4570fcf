//! What a medium declares about itself, and the arithmetic of its addresses.

use crate::{BlockId, SlotId};

/// Which pages share cells, so that a power cut while one is programmed can destroy another that
/// was programmed before.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pairing {
    /// Every page has cells of its own (SLC, one-shot program units).
    #[default]
    None,
    /// Groups of this many consecutive pages share cells.
    Adjacent(u32),
    /// Two-bit cells programmed lower pages first: wordline 0 holds pages 0 and 2, wordline `w`
    /// pages `2w - 1` and `2w + 2`, and the last one the block's last two odd pages out
    /// (the usual MLC order, e.g. Micron L74A).
    Staircase,
}

impl Pairing {
    /// The last page that shares cells with `page`. Once it is programmed, no later program can
    /// harm `page`. Returns `page` itself if nothing later shares its cells.
    pub fn last_partner(self, page: u32, pages_per_block: u32) -> u32 {
        let last = match self {
            Pairing::None => page,
            Pairing::Adjacent(bits) => page - page % bits + bits - 1,
            Pairing::Staircase if page == 0 => 2,
            // Odd pages are lower ones, whose upper page follows three later.
            Pairing::Staircase if page % 2 == 1 => page + 3,
            Pairing::Staircase => page,
        };
        last.min(pages_per_block - 1).max(page)
    }

    /// The last page that shares cells with any page up to `page`: once it is programmed, all of
    /// those are out of danger.
    pub fn closure(self, page: u32, pages_per_block: u32) -> u32 {
        let first = page.saturating_sub(3);
        let partners = (first..=page).map(|page| self.last_partner(page, pages_per_block));
        partners.max().unwrap_or(page)
    }

    /// The pages before `page` whose cells programming `page` touches again, oldest first.
    pub fn earlier_partners(self, page: u32, pages_per_block: u32) -> impl Iterator<Item = u32> {
        let reach = match self {
            Pairing::None => 0,
            Pairing::Adjacent(bits) => bits - 1,
            Pairing::Staircase => 3,
        };
        (page.saturating_sub(reach)..page).filter(move |&earlier| match self {
            Pairing::None => false,
            Pairing::Adjacent(bits) => earlier / bits == page / bits,
            Pairing::Staircase => self.last_partner(earlier, pages_per_block) == page,
        })
    }
}

/// The units that come last on a two-tier medium, so that the others keep their numbers when a fast
/// tier comes or goes: fast, durable at completion, and without the ways of NAND. A program there covers any number of slots from the block's write pointer to the
/// end of a page, pages share no cells, and an erase costs nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FastTier {
    /// The last so many units are fast; 0 on a medium of one kind.
    pub units: u32,
    /// Blocks that each of them has; the rest of its block numbers name nothing.
    pub blocks_per_unit: u32,
}

impl FastTier {
    /// No fast units.
    pub const NONE: Self = Self { units: 0, blocks_per_unit: 0 };
}

/// The shape and the manners of a medium. A *page* here is what one program command fills: the
/// program unit (on multi-plane flash the same page of every plane).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Independent lanes.
    pub units: u32,
    /// Erase blocks of each unit.
    pub blocks_per_unit: u32,
    /// Program units of each block.
    pub pages_per_block: u32,
    /// 4 KiB slots of each program unit.
    pub slots_per_page: u32,
    /// Which pages share cells.
    pub pairing: Pairing,
    /// A completed program survives a power cut (pairing aside) without a flush.
    pub durable_at_completion: bool,
    /// A running program or erase can be suspended for a read.
    pub suspend: bool,
    /// Commands that a unit takes at once.
    pub queue_depth: u32,
    /// Program/erase cycles a block is specified for.
    pub endurance: u32,
    /// Most blocks of the capacity units that may be partly programmed at a time, as zones are; 0 for
    /// no such limit. Where there is one, a block that is left before its end is finished.
    pub open_blocks_max: u32,
    /// The units that are not of the kind that all else here describes.
    pub fast: FastTier,
}

impl Geometry {
    /// Blocks of all units.
    pub fn blocks(&self) -> u32 {
        self.units * self.blocks_per_unit
    }

    /// Whether some units are fast and the others for capacity.
    pub fn is_tiered(&self) -> bool {
        self.fast.units > 0
    }

    /// Whether `unit` is a fast one of a two-tier medium.
    pub fn is_fast_unit(&self, unit: u32) -> bool {
        unit >= self.capacity_units()
    }

    /// Whether `block` lies on a fast unit.
    pub fn is_fast(&self, block: BlockId) -> bool {
        block.0 >= self.capacity_blocks()
    }

    /// Whether there is such a block: a fast unit may have fewer than the others.
    pub fn exists(&self, block: BlockId) -> bool {
        !self.is_fast(block) || block.0 % self.blocks_per_unit < self.fast.blocks_per_unit
    }

    /// Blocks of the fast units.
    pub fn fast_blocks(&self) -> u32 {
        self.fast.units * self.fast.blocks_per_unit
    }

    /// Units for capacity: those before the fast ones; all on a medium of one kind.
    pub fn capacity_units(&self) -> u32 {
        self.units - self.fast.units
    }

    /// Blocks of the units for capacity; of all units on a medium of one kind.
    pub fn capacity_blocks(&self) -> u32 {
        self.capacity_units() * self.blocks_per_unit
    }

    /// The fast units alone, counted from 0.
    pub fn fast_alone(&self) -> Self {
        let FastTier { units, blocks_per_unit } = self.fast;
        Self { units, blocks_per_unit, open_blocks_max: 0, fast: FastTier::NONE, ..*self }
    }

    /// What [`Self::fast_alone`] calls a block of a fast unit.
    pub fn block_in_fast_alone(&self, block: BlockId) -> BlockId {
        let unit = self.unit_of(block) - self.capacity_units();
        self.fast_alone().block(unit, block.0 % self.blocks_per_unit)
    }

    /// What [`Self::fast_alone`] calls a slot of a fast unit.
    pub fn slot_in_fast_alone(&self, slot: SlotId) -> SlotId {
        let (slots, block) = (self.slots_per_block(), self.block_of(slot));
        SlotId(self.block_in_fast_alone(block).0 * slots + slot.0 % slots)
    }

    /// The block that [`Self::fast_alone`] calls so.
    pub fn block_of_fast_alone(&self, own: BlockId) -> BlockId {
        let alone = self.fast_alone();
        let unit = self.capacity_units() + alone.unit_of(own);
        self.block(unit, own.0 % alone.blocks_per_unit)
    }

    /// The same medium without its fast units.
    pub fn without_fast(&self) -> Self {
        Self { units: self.capacity_units(), fast: FastTier::NONE, ..*self }
    }

    /// Whether all that the FTL acknowledges here survives a power cut, flushed or not: nothing is
    /// volatile, and no page shares cells with one to come, or a fast tier stands before it.
    pub fn keeps_every_acknowledged_write(&self) -> bool {
        self.durable_at_completion && (self.pairing == Pairing::None || self.is_tiered())
    }

    /// Which pages of `block` share cells.
    pub fn pairing_of(&self, block: BlockId) -> Pairing {
        if self.is_fast(block) { Pairing::None } else { self.pairing }
    }

    /// Slots of one block.
    pub fn slots_per_block(&self) -> u32 {
        self.pages_per_block * self.slots_per_page
    }

    /// Slots of the whole medium.
    pub fn slots(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.slots_per_block())
    }

    /// The block at `index` of `unit`.
    pub fn block(&self, unit: u32, index: u32) -> BlockId {
        debug_assert!(unit < self.units && index < self.blocks_per_unit);
        BlockId(unit * self.blocks_per_unit + index)
    }

    /// The slot at `page`, `slot` of `block`.
    pub fn slot(&self, block: BlockId, page: u32, slot: u32) -> SlotId {
        debug_assert!(page < self.pages_per_block && slot < self.slots_per_page);
        SlotId(block.0 * self.slots_per_block() + page * self.slots_per_page + slot)
    }

    /// The block that holds `slot`.
    pub fn block_of(&self, slot: SlotId) -> BlockId {
        BlockId(slot.0 / self.slots_per_block())
    }

    /// The unit that holds `block`.
    pub fn unit_of(&self, block: BlockId) -> u32 {
        block.0 / self.blocks_per_unit
    }

    /// The page of `slot` within its block.
    pub fn page_in_block(&self, slot: SlotId) -> u32 {
        slot.0 % self.slots_per_block() / self.slots_per_page
    }

    /// The position of `slot` within its page.
    pub fn slot_in_page(&self, slot: SlotId) -> u32 {
        // A block is whole pages, so the page's slots line up with the medium's.
        slot.0 % self.slots_per_page
    }

    /// `Err` says what is wrong with the shape, in words for the owner of a config file.
    pub fn validate(&self) -> Result<(), String> {
        let named = [
            ("units", self.units, 4096),
            ("blocks_per_unit", self.blocks_per_unit, 1 << 24),
            ("pages_per_block", self.pages_per_block, 1 << 16),
            ("slots_per_page", self.slots_per_page, 64),
            ("queue_depth", self.queue_depth, 64),
        ];
        for (name, value, max) in named {
            if value == 0 || value > max {
                return Err(format!("{name} is {value}; it must be 1 to {max}"));
            }
        }
        self.validate_fast()?;
        let slots = u64::from(self.units)
            * u64::from(self.blocks_per_unit)
            * u64::from(self.pages_per_block)
            * u64::from(self.slots_per_page);
        if slots >= u64::from(u32::MAX) - 1 {
            return Err(format!(
                "{slots} slots of 4 KiB; one shard addresses at most {} (16 TiB)",
                u32::MAX - 2
            ));
        }
        Ok(())
    }

    fn validate_fast(&self) -> Result<(), String> {
        if !self.is_tiered() {
            return Ok(());
        }
        let FastTier { units, blocks_per_unit } = self.fast;
        if units >= self.units {
            return Err(format!(
                "fast.units is {units}; of {} units one at least is slow",
                self.units
            ));
        }
        if blocks_per_unit == 0 || blocks_per_unit > self.blocks_per_unit {
            return Err(format!(
                "fast.blocks_per_unit is {blocks_per_unit}; it must be 1 to {}",
                self.blocks_per_unit
            ));
        }
        if !self.durable_at_completion {
            return Err("a fast tier wants a medium that is durable at completion".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Pairing;

    #[test]
    fn staircase_pairs_every_page_once() {
        let pages = 16;
        let mut partners = [0u32; 16];
        for page in 0..pages {
            for earlier in Pairing::Staircase.earlier_partners(page, pages) {
                assert_eq!(Pairing::Staircase.last_partner(earlier, pages), page);
                partners[earlier as usize] += 1;
                partners[page as usize] += 1;
            }
        }
        assert!(partners.iter().all(|&n| n >= 1), "a page without partner: {partners:?}");
    }

    #[test]
    fn closure_covers_every_earlier_page() {
        for pairing in [Pairing::None, Pairing::Adjacent(3), Pairing::Staircase] {
            for page in 0..24 {
                let expected = (0..=page).map(|page| pairing.last_partner(page, 24)).max();
                assert_eq!(Some(pairing.closure(page, 24)), expected, "{pairing:?} {page}");
            }
        }
    }

    #[test]
    fn adjacent_pages_share_cells_in_groups() {
        let pairing = Pairing::Adjacent(3);
        assert_eq!(pairing.last_partner(3, 9), 5);
        assert_eq!(pairing.earlier_partners(5, 9).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(pairing.earlier_partners(3, 9).count(), 0);
    }
}
