//! What must hold: a few lines that know what each block may show.

use super::machine::Wish;
use pool::words::Generation;
use std::collections::BTreeMap;

/// What a block may hold.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Acknowledged last, or shown since.
    known: u64,
    /// Asked for since: it may be there or not, until a read or a later write tells.
    open: Vec<u64>,
    /// What may come back if the power is cut, and since which write it is not seen any more: what no flush that
    /// began after that write has ended for.
    older: Vec<(u64, u64)>,
    /// All that was ever asked for.
    ever: Vec<u64>,
    /// It was acknowledged before more was lost than copies make up for, and was not written since.
    is_lost: bool,
}

impl Block {
    /// Whether no flush has ended that began after it got what it holds.
    fn was_promised_to_nobody(&self) -> bool {
        self.is_lost || !self.open.is_empty() || !self.older.is_empty()
    }

    fn shows(&mut self, value: u64, at: u64, is_volatile: bool) {
        let gone = std::iter::once(self.known).chain(self.open.drain(..));
        if is_volatile {
            self.older.extend(gone.filter(|old| *old != value).map(|old| (old, at)));
        }
        self.known = value;
    }
}

/// See the head of this file.
#[derive(Default)]
pub struct Model {
    blocks: BTreeMap<u32, Block>,
    newest: Generation,
    /// Nodes may lose what was not flushed.
    is_volatile: bool,
    /// An FTL may find no way on, and fails whatever it is asked then.
    gives_up: bool,
    /// How many writes were acknowledged before each flush that is under way was begun.
    flushing: Vec<u64>,
    pub openings: u64,
    pub writes: u64,
    pub reads: u64,
    pub flushes: u64,
    /// Nodes that a client gave up as they did not flush in time, of clients that run.
    pub late_flushes: u64,
    /// Machines that heard that the volume has grown.
    pub growths: u64,
    pub failures: u64,
    /// Reads of what was lost.
    pub unreadable: u64,
    /// Of all that happened.
    pub trace: u64,
}

impl Model {
    pub fn new(is_volatile: bool, gives_up: bool) -> Self {
        Self { is_volatile, gives_up, ..Self::default() }
    }

    /// Makes it part of the course.
    pub fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x100_0000_01b3).rotate_left(17);
    }

    pub fn opened(&mut self, generation: Generation) {
        assert!(generation > self.newest, "{generation:?} was opened after {:?}", self.newest);
        self.newest = generation;
        self.openings += 1;
        // What the last owner's host was not told to be durable may be gone. What is there now was flushed.
        self.flushing.clear();
        for block in self.blocks.values_mut() {
            block.open.extend(block.older.drain(..).map(|(value, _)| value));
        }
    }

    /// What was written may be gone, so that something older is shown or nothing can be read, until it is written anew.
    pub fn lost(&mut self) {
        for block in self.blocks.values_mut() {
            block.open.clone_from(&block.ever);
            block.open.push(0);
            block.is_lost = true;
        }
    }

    /// Whether this may end with an error, and the host goes on.
    pub fn may_fail(&self, lba: u32, wish: Wish) -> bool {
        wish == Wish::Read && self.blocks.get(&lba).is_some_and(|block| block.is_lost)
    }

    pub fn begun(&mut self, lba: u32, wish: Wish) {
        if let Wish::Write(value) = wish {
            let block = self.blocks.entry(lba).or_default();
            block.open.push(value);
            block.ever.push(value);
        }
        if wish == Wish::Flush {
            self.flushing.push(self.writes);
        }
    }

    /// A machine of this generation tells its host.
    pub fn replied(
        &mut self,
        generation: Generation,
        lba: u32,
        wish: Wish,
        result: Result<u64, ()>,
    ) {
        let Ok(value) = result else {
            match self.may_fail(lba, wish) {
                true => self.unreadable += 1,
                false => self.failures += 1,
            }
            let of = self.blocks.get(&lba);
            let may = wish != Wish::Read || of.is_some_and(Block::was_promised_to_nobody);
            assert!(
                may || self.gives_up,
                "{generation:?} cannot read block {lba}, flushed: {of:x?}"
            );
            return;
        };
        let newest = self.newest;
        assert!(
            generation == newest,
            "{generation:?} told its host {wish:?} of block {lba} after {newest:?} had opened"
        );
        self.note(value ^ u64::from(lba));
        match wish {
            Wish::Write(value) => {
                self.writes += 1;
                let block = self.blocks.entry(lba).or_default();
                block.shows(value, self.writes, self.is_volatile);
                block.is_lost = false;
            }
            Wish::Read => {
                self.reads += 1;
                let block = self.blocks.entry(lba).or_default();
                let may = value == block.known || block.open.contains(&value);
                assert!(may, "{generation:?}: block {lba} shows {value:#x}, not one of {block:x?}");
                // Shown, it stays.
                block.shows(value, self.writes + 1, self.is_volatile);
            }
            Wish::Flush => {
                self.flushes += 1;
                // Whichever of those under way it was, it began no earlier than the first.
                let began = self.flushing.remove(0);
                for block in self.blocks.values_mut() {
                    block.older.retain(|(_, since)| *since > began);
                }
            }
        }
    }
}
