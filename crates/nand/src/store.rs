//! Where a driver that keeps content in memory keeps it: by slot, whatever a slot's content is to
//! that driver (bytes, or a stamp that stands for them).
//!
//! The store knows no rules: it holds what the driver puts there when [`crate::Nand`] says that a
//! program succeeded, and it is asked only for slots whose status is sound.

use flash::{BlockId, Geometry, Oob, SlotId};

/// Content by slot. A block's memory is allocated at its first program, as far as it is programmed,
/// and kept through erases.
#[derive(Clone, Debug)]
pub struct Store<C> {
    slots_per_block: u32,
    blocks: Vec<Vec<Option<(Oob, C)>>>,
}

impl<C> Store<C> {
    /// An empty store for a medium of this shape.
    pub fn new(geometry: Geometry) -> Self {
        let blocks = (0..geometry.blocks()).map(|_| Vec::new()).collect();
        Self { slots_per_block: geometry.slots_per_block(), blocks }
    }

    /// Puts content into a slot of the medium.
    ///
    /// # Panics
    /// If the slot is beyond the medium.
    pub fn program(&mut self, slot: SlotId, oob: Oob, content: C) {
        let (block, index) = self.place(slot);
        let slots = &mut self.blocks[block];
        if index == slots.len() {
            slots.push(Some((oob, content)));
            return;
        }
        if index > slots.len() {
            // A program before this one failed, or was torn and not kept.
            slots.resize_with(index + 1, || None);
        }
        slots[index] = Some((oob, content));
    }

    /// The content of a slot, if there is any.
    pub fn read(&self, slot: SlotId) -> Option<(&Oob, &C)> {
        let (block, index) = self.place(slot);
        self.blocks.get(block)?.get(index)?.as_ref().map(|(oob, content)| (oob, content))
    }

    /// Drops the content of a block.
    ///
    /// # Panics
    /// If the block is beyond the medium.
    pub fn erase(&mut self, block: BlockId) {
        self.blocks[block.0 as usize].clear();
    }

    fn place(&self, slot: SlotId) -> (usize, usize) {
        let block = slot.0 / self.slots_per_block;
        (block as usize, (slot.0 - block * self.slots_per_block) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::Store;
    use crate::{Faults, Layout, Nand, Profile};
    use flash::{BlockId, OOB_BYTES, SlotId};

    #[test]
    fn a_store_gives_back_what_was_programmed_until_the_erase() {
        let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 2 };
        let profile = Profile::builtin("instant").unwrap();
        let geometry = Nand::new(&profile, &layout, Faults::default()).unwrap().geometry();
        let mut store = Store::new(geometry);
        let oob = |byte| [byte; OOB_BYTES];
        store.program(SlotId(0), oob(1), 'a');
        store.program(SlotId(3), oob(2), 'b');
        store.program(SlotId(256), oob(3), 'c');
        assert_eq!(store.read(SlotId(0)), Some((&oob(1), &'a')));
        assert_eq!(store.read(SlotId(2)), None, "the gap before slot 3");
        assert_eq!(store.read(SlotId(3)), Some((&oob(2), &'b')));
        let copy = store.clone();
        store.erase(BlockId(0));
        assert_eq!(store.read(SlotId(0)), None);
        assert_eq!(store.read(SlotId(256)), Some((&oob(3), &'c')));
        assert_eq!(store.read(SlotId(9999)), None);
        assert_eq!(copy.read(SlotId(3)), Some((&oob(2), &'b')), "a clone is its own");
    }
}
