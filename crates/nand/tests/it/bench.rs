//! What the tests share: a device on the bench, driven from deadline to deadline.

use flash::{BlockId, Command, Geometry, Instant, MediumError, SlotId, SlotStatus, Tag};
use nand::{Faults, Illegal, Layout, Nand, Outcome, Profile};

pub struct Bench {
    pub nand: Nand,
    pub now: Instant,
    tag: u32,
}

impl Bench {
    pub fn new(profile: &str, layout: Layout, faults: Faults) -> Self {
        Self::with(&Profile::builtin(profile).unwrap(), layout, faults)
    }

    pub fn with(profile: &Profile, layout: Layout, faults: Faults) -> Self {
        let nand = Nand::new(profile, &layout, faults).expect("the test's layout is sound");
        Self { nand, now: Instant(0), tag: 0 }
    }

    pub fn geometry(&self) -> Geometry {
        self.nand.geometry()
    }

    /// The first slot of a page.
    pub fn page(&self, block: u32, page: u32) -> SlotId {
        self.geometry().slot(BlockId(block), page, 0)
    }

    pub fn give_program(&mut self, slot: SlotId) -> Result<Tag, Illegal> {
        let tag = self.next_tag();
        let count = self.geometry().slots_per_page;
        self.nand.handle(self.now, Command::Program { tag, slot, count }).map(|()| tag)
    }

    pub fn give_erase(&mut self, block: u32) -> Result<Tag, Illegal> {
        let tag = self.next_tag();
        self.nand.handle(self.now, Command::Erase { tag, block: BlockId(block) }).map(|()| tag)
    }

    pub fn give_read(&mut self, slot: SlotId, count: u32, urgent: bool) -> Result<Tag, Illegal> {
        let tag = self.next_tag();
        let command = Command::Read { tag, slot, count, into: None, urgent };
        self.nand.handle(self.now, command).map(|()| tag)
    }

    /// Runs until the next outcome, and moves the time to it.
    pub fn next(&mut self) -> Option<Outcome> {
        loop {
            let at = self.nand.deadline()?;
            self.now = self.now.max(at);
            if let Some(outcome) = self.nand.poll(self.now) {
                return Some(outcome);
            }
        }
    }

    /// The next outcome and when it came.
    pub fn next_at(&mut self) -> (Tag, u64) {
        let outcome = self.next().expect("a command is in flight");
        (tag_of(&outcome), self.now.0)
    }

    pub fn program(&mut self, block: u32, page: u32) -> Result<Result<(), MediumError>, Illegal> {
        let slot = self.page(block, page);
        self.give_program(slot)?;
        match self.next() {
            Some(Outcome::Program { result, .. }) => Ok(result),
            other => panic!("not the end of a program: {other:?}"),
        }
    }

    pub fn erase(&mut self, block: u32) -> Result<(), MediumError> {
        self.give_erase(block).expect("an erase is legal anywhere");
        match self.next() {
            Some(Outcome::Erase { result, .. }) => result,
            other => panic!("not the end of an erase: {other:?}"),
        }
    }

    pub fn read(&mut self, block: u32, page: u32) -> Result<SlotStatus, MediumError> {
        let slot = self.page(block, page);
        self.give_read(slot, 1, false).expect("a read of one slot is legal anywhere");
        match self.next() {
            Some(Outcome::Read { status, .. }) => status,
            other => panic!("not the end of a read: {other:?}"),
        }
    }

    /// Programs the first pages of a block.
    pub fn fill(&mut self, block: u32, pages: u32) {
        for page in 0..pages {
            assert_eq!(self.program(block, page), Ok(Ok(())), "page {page} of block {block}");
        }
    }

    /// How the first pages of a block read: `.` erased, `o` sound, `x` uncorrectable.
    pub fn picture(&mut self, block: u32, pages: u32) -> String {
        let letter = |status| match status {
            Ok(SlotStatus::Erased) => '.',
            Ok(SlotStatus::Ok | SlotStatus::Corrected(_)) => 'o',
            Ok(SlotStatus::Uncorrectable) => 'x',
            Err(error) => panic!("{error:?}"),
        };
        (0..pages).map(|page| letter(self.read(block, page))).collect()
    }

    fn next_tag(&mut self) -> Tag {
        self.tag += 1;
        Tag(self.tag)
    }
}

pub fn tag_of(outcome: &Outcome) -> Tag {
    match *outcome {
        Outcome::Read { tag, .. }
        | Outcome::Program { tag, .. }
        | Outcome::Erase { tag, .. }
        | Outcome::Finish { tag }
        | Outcome::Flush { tag, .. } => tag,
    }
}

/// One die on one channel.
pub const ONE_DIE: Layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 8 };
