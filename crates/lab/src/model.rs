//! The reference model: what each logical block may read as, now and after a power cut. So simple
//! that it is obviously right: a block is a list of versions in the order they were submitted.
//!
//! Invariants:
//! - A stamp names one version of one block and is never used twice, so a read that returns another
//!   block's data, or an older version, is told from every legal one. Zero is the trimmed block. A block of a clone has
//!   the stamp of what it is a clone of, until it is written.
//! - A read returns the newest version acknowledged (or seen by a read that ended) before it was
//!   submitted, or a later one: never older, never another block's.
//! - After a power cut a block reads as its newest durable version or a later submitted one.
//!   Durable is what a FUA reply, or a flush submitted after the write's reply, has promised; where
//!   the medium is durable at completion and no pages share cells, every reply promises it.
//!   Order of flush epochs follows: all that was acknowledged before an acknowledged flush is in
//!   place, whichever later write is visible.
//! - An atomic write is seen whole or not at all, except where it was overwritten later.
//! - What was read after a recovery is from then on the only allowed version.

use std::collections::VecDeque;

/// What a trimmed or never written block reads as.
pub const ZERO: u64 = 0;

/// Names an operation from its submission to its end.
pub type OperationId = u32;

#[derive(Clone, Copy, Debug)]
struct Version {
    sequence: u32,
    content: Content,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Content {
    /// What was written to the block as this version.
    Own,
    Nothing,
    /// The stamp of what the block is a clone of.
    Given(u64),
}

impl Version {
    fn stamp(self, lba: u32) -> u64 {
        match self.content {
            Content::Own => u64::from(self.sequence) << 32 | u64::from(lba),
            Content::Nothing => ZERO,
            Content::Given(stamp) => stamp,
        }
    }
}

/// One logical block. `versions` is sorted by sequence and starts at or before `durable`.
#[derive(Clone, Debug)]
struct Block {
    versions: Vec<Version>,
    /// Newest version that a power cut cannot take back.
    durable: u32,
    /// Newest version acknowledged or read: no later read may return an older one.
    current: u32,
    /// Reads in flight. They may still return what became outdated meanwhile.
    readers: u32,
}

impl Block {
    fn new(sequence: u32) -> Self {
        let versions = vec![Version { sequence, content: Content::Nothing }];
        Self { versions, durable: sequence, current: sequence, readers: 0 }
    }

    /// Forgets what neither a power cut nor a read in flight can bring back.
    fn prune(&mut self) {
        if self.readers > 0 {
            return;
        }
        let keep = self.durable.min(self.current);
        let outdated = self.versions.iter().take_while(|version| version.sequence < keep).count();
        self.versions.drain(..outdated);
    }

    /// Whether `stamp` is a version from before the durable one.
    fn once_held(&self, lba: u32, stamp: u64) -> bool {
        stamp == ZERO || stamp as u32 == lba && ((stamp >> 32) as u32) < self.durable
    }

    /// The newest version that reads as `stamp`.
    fn find(&self, lba: u32, stamp: u64) -> Option<u32> {
        self.find_version(lba, stamp).map(|version| version.sequence)
    }

    fn find_version(&self, lba: u32, stamp: u64) -> Option<Version> {
        self.versions.iter().rev().find(|version| version.stamp(lba) == stamp).copied()
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Free for the next operation.
    Vacant,
    /// A write or trim whose blocks got the sequence numbers from `first` on.
    Change { first: u32, fua: bool },
    /// `floors[i]` is the oldest version that block `i` may return.
    Read,
    /// Covers the acknowledgements up to this one.
    Flush { acknowledged: u64 },
}

#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    lba: u32,
    blocks: u32,
    floors: Vec<u32>,
}

/// An atomic write that is not known to be durable.
#[derive(Clone, Copy, Debug)]
struct Group {
    lba: u32,
    blocks: u32,
    first: u32,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Model {
    blocks: Vec<Block>,
    operations: Vec<Operation>,
    vacant: Vec<OperationId>,
    groups: Vec<Group>,
    sequence: u32,
    acknowledged: u64,
    /// Acknowledged, not durable: (number of the acknowledgement, block, version), oldest first.
    volatile: VecDeque<(u64, u32, u32)>,
    durable_at_reply: bool,
    unreadable_is_legal: bool,
    older_is_legal: bool,
}

impl Model {
    /// A device of `logical_blocks` blocks, all zero. `durable_at_reply`: the medium is durable at
    /// completion and no pages share cells.
    pub fn new(logical_blocks: u32, durable_at_reply: bool) -> Self {
        Self {
            blocks: vec![Block::new(0); logical_blocks as usize],
            operations: Vec::new(),
            vacant: Vec::new(),
            groups: Vec::new(),
            sequence: 0,
            acknowledged: 0,
            volatile: VecDeque::new(),
            durable_at_reply,
            unreadable_is_legal: false,
            older_is_legal: false,
        }
    }

    /// There are so many blocks more, all zero.
    pub fn grow(&mut self, blocks: u32) {
        self.blocks.resize(self.blocks.len() + blocks as usize, Block::new(0));
    }

    /// From now on a change is durable when it is acknowledged, or it is not.
    pub fn set_durable_at_reply(&mut self, on: bool) {
        self.durable_at_reply = on;
    }

    /// The medium damages data by itself: an error is then a legal answer to a read, wrong data
    /// never is. A recovery may show an older version: a slot that rots after the last checkpoint
    /// takes its header with it, and nothing else says that it was there.
    pub fn tolerate_unreadable(&mut self) {
        (self.unreadable_is_legal, self.older_is_legal) = (true, true);
    }

    /// From now on an error is a legal answer to a read. Nothing older is, nor anything else.
    pub fn tolerate_errors(&mut self) {
        self.unreadable_is_legal = true;
    }

    /// The next so many versions are left out: what is written from here on has others than what is
    /// written to a clone of the device that knows nothing of this.
    pub fn skip_sequences(&mut self, versions: u32) {
        self.sequence += versions;
    }

    /// What damaged data, or kept it from being read, is over.
    pub fn expect_readable(&mut self) {
        (self.unreadable_is_legal, self.older_is_legal) = (false, false);
    }

    /// Whether an error is a legal answer to a read.
    pub fn tolerates_unreadable(&self) -> bool {
        self.unreadable_is_legal
    }

    /// Logical blocks of the device.
    pub fn logical_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    fn begin(&mut self, kind: Kind, lba: u32, blocks: u32) -> OperationId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.operations.push(Operation {
                kind: Kind::Vacant,
                lba: 0,
                blocks: 0,
                floors: Vec::new(),
            });
            self.operations.len() as u32 - 1
        });
        let operation = &mut self.operations[id as usize];
        (operation.kind, operation.lba, operation.blocks) = (kind, lba, blocks);
        operation.floors.clear();
        id
    }

    fn change(
        &mut self,
        lba: u32,
        blocks: u32,
        fua: bool,
        content: impl Fn(u32) -> Content,
    ) -> OperationId {
        let first = self.sequence + 1;
        self.sequence = self.sequence.checked_add(blocks).expect("a run has under 2^32 writes");
        for i in 0..blocks {
            let version = Version { sequence: first + i, content: content(i) };
            self.blocks[(lba + i) as usize].versions.push(version);
        }
        self.begin(Kind::Change { first, fua }, lba, blocks)
    }

    /// A write is submitted. Fills `stamps`, one a block, with what it writes.
    pub fn submit_write(
        &mut self,
        lba: u32,
        fua: bool,
        atomic: bool,
        stamps: &mut [u64],
    ) -> OperationId {
        let blocks = stamps.len() as u32;
        let id = self.change(lba, blocks, fua, |_| Content::Own);
        let first = self.sequence + 1 - blocks;
        for (i, stamp) in (0..).zip(stamps) {
            *stamp = Version { sequence: first + i, content: Content::Own }.stamp(lba + i);
        }
        if atomic && blocks > 1 {
            self.groups.push(Group { lba, blocks, first });
        }
        id
    }

    /// A trim is submitted.
    pub fn submit_trim(&mut self, lba: u32, blocks: u32, fua: bool) -> OperationId {
        self.change(lba, blocks, fua, |_| Content::Nothing)
    }

    /// Blocks become a clone of what has these stamps, durably with the answer.
    pub fn submit_clone(&mut self, lba: u32, stamps: &[u64]) -> OperationId {
        let given = |i: u32| Content::Given(stamps[i as usize]);
        self.change(lba, stamps.len() as u32, true, given)
    }

    /// A read is submitted.
    pub fn submit_read(&mut self, lba: u32, blocks: u32) -> OperationId {
        let id = self.begin(Kind::Read, lba, blocks);
        let range = lba as usize..(lba + blocks) as usize;
        for block in &mut self.blocks[range] {
            block.readers += 1;
            self.operations[id as usize].floors.push(block.current);
        }
        id
    }

    /// A flush is submitted.
    pub fn submit_flush(&mut self) -> OperationId {
        self.begin(Kind::Flush { acknowledged: self.acknowledged }, 0, 0)
    }

    fn end(&mut self, id: OperationId) -> (Kind, u32, u32) {
        let operation = &mut self.operations[id as usize];
        self.vacant.push(id);
        (std::mem::replace(&mut operation.kind, Kind::Vacant), operation.lba, operation.blocks)
    }

    /// A write, trim or flush was acknowledged.
    pub fn acknowledge(&mut self, id: OperationId) {
        let (kind, lba, blocks) = self.end(id);
        match kind {
            Kind::Change { first, fua } => self.acknowledge_change(first, lba, blocks, fua),
            Kind::Flush { acknowledged } => self.make_durable(acknowledged),
            Kind::Read | Kind::Vacant => unreachable!("only changes and flushes are acknowledged"),
        }
    }

    fn acknowledge_change(&mut self, first: u32, lba: u32, blocks: u32, fua: bool) {
        self.acknowledged += 1;
        for i in 0..blocks {
            let block = &mut self.blocks[(lba + i) as usize];
            block.current = block.current.max(first + i);
            if fua || self.durable_at_reply {
                block.durable = block.durable.max(first + i);
                block.prune();
            } else {
                self.volatile.push_back((self.acknowledged, lba + i, first + i));
            }
        }
        if fua || self.durable_at_reply {
            self.groups.retain(|group| group.first != first);
        }
    }

    fn make_durable(&mut self, acknowledged: u64) {
        while self.volatile.front().is_some_and(|&(number, ..)| number <= acknowledged) {
            let (_, lba, sequence) = self.volatile.pop_front().expect("the loop looked");
            let block = &mut self.blocks[lba as usize];
            block.durable = block.durable.max(sequence);
            block.prune();
        }
        let blocks = &self.blocks;
        self.groups.retain(|group| {
            (0..group.blocks).any(|i| blocks[(group.lba + i) as usize].durable < group.first + i)
        });
    }

    /// A clean shutdown ended well: everything acknowledged is durable.
    pub fn shut_down(&mut self) {
        self.make_durable(self.acknowledged);
    }

    /// An operation was refused or failed: a change may have happened or not.
    pub fn fail(&mut self, id: OperationId) {
        if let (Kind::Read, lba, blocks) = self.end(id) {
            self.end_read(lba, blocks);
        }
    }

    fn end_read(&mut self, lba: u32, blocks: u32) {
        for block in &mut self.blocks[lba as usize..(lba + blocks) as usize] {
            block.readers -= 1;
            block.prune();
        }
    }

    /// A read returned `stamps`.
    pub fn finish_read(&mut self, id: OperationId, stamps: &[u64]) -> Result<(), String> {
        let lba = self.operations[id as usize].lba;
        for (i, &stamp) in stamps.iter().enumerate() {
            let floor = self.operations[id as usize].floors[i];
            let address = lba + i as u32;
            let block = &mut self.blocks[address as usize];
            match block.find(address, stamp) {
                // A zero may be any of several trims: then the oldest allowed one is the safe guess.
                Some(_) if stamp == ZERO => {
                    let is_zero = |version: &&Version| version.stamp(address) == ZERO;
                    let trims = block.versions.iter().filter(is_zero);
                    let legal = trims.map(|version| version.sequence).find(|&at| at >= floor);
                    let at = legal.ok_or_else(|| stale(address, stamp, floor, block))?;
                    block.current = block.current.max(at);
                }
                Some(at) if at >= floor => block.current = block.current.max(at),
                _ => return Err(stale(address, stamp, floor, block)),
            }
        }
        let (_, lba, blocks) = self.end(id);
        self.end_read(lba, blocks);
        Ok(())
    }

    /// Whether a device that was recovered after a power cut at this moment may read as
    /// `observed`, one stamp a block. `None` is an unreadable block: legal only on a medium that
    /// damages data by itself, see [`Model::tolerate_unreadable`].
    pub fn check_recovered(&self, observed: &[Option<u64>]) -> Result<(), String> {
        assert_eq!(observed.len(), self.blocks.len(), "every block is read");
        for (lba, (block, &stamp)) in (0..).zip(self.blocks.iter().zip(observed)) {
            let Some(stamp) = stamp else {
                if self.unreadable_is_legal {
                    continue;
                }
                return Err(format!("block {lba} is unreadable after recovery"));
            };
            match block.find(lba, stamp) {
                Some(at) if at >= block.durable => {}
                _ if self.older_is_legal && block.once_held(lba, stamp) => {}
                _ => return Err(stale(lba, stamp, block.durable, block)),
            }
        }
        self.groups.iter().try_for_each(|group| self.check_group(group, observed))
    }

    fn check_group(&self, group: &Group, observed: &[Option<u64>]) -> Result<(), String> {
        let (mut kept, mut lost) = (None, None);
        for i in 0..group.blocks {
            let lba = group.lba + i;
            let Some(stamp) = observed[lba as usize] else { continue };
            match self.blocks[lba as usize].find(lba, stamp) {
                Some(at) if at == group.first + i => kept = Some(lba),
                Some(at) if at < group.first + i => lost = Some(lba),
                _ => {}
            }
        }
        match (kept, lost) {
            (Some(kept), Some(lost)) => Err(format!(
                "the atomic write of blocks {}..{} was torn apart: block {kept} has it, block {lost} \
                 has not",
                group.lba,
                group.lba + group.blocks
            )),
            _ => Ok(()),
        }
    }

    /// Continue after a recovery that read as `observed`: nothing else is allowed from here on.
    /// Call [`Model::check_recovered`] first.
    pub fn settle(&mut self, observed: &[Option<u64>]) {
        for (lba, (block, &stamp)) in (0..).zip(self.blocks.iter_mut().zip(observed)) {
            block.readers = 0;
            // Nothing was seen of an unreadable block: what was allowed stays so.
            let Some(stamp) = stamp else { continue };
            let older = if stamp == ZERO { block.durable } else { (stamp >> 32) as u32 };
            let content = if stamp == ZERO { Content::Nothing } else { Content::Own };
            let seen = Version { sequence: older, content };
            let version = block.find_version(lba, stamp).unwrap_or(seen);
            let sequence = version.sequence;
            block.versions.clear();
            block.versions.push(version);
            (block.durable, block.current) = (sequence, sequence);
        }
        self.operations.clear();
        self.vacant.clear();
        self.groups.clear();
        self.volatile.clear();
    }
}

fn stale(lba: u32, stamp: u64, floor: u32, block: &Block) -> String {
    let seen = match (stamp, stamp as u32 == lba) {
        (ZERO, _) => "zeroes".to_string(),
        (_, true) => format!("its version {}", stamp >> 32),
        (_, false) => format!("stamp {stamp:#x}, which is not this block's"),
    };
    let allowed: Vec<String> = (block.versions.iter())
        .filter(|version| version.sequence >= floor)
        .map(|version| {
            let zeroes = match version.content {
                Content::Own => String::new(),
                Content::Nothing => " (zeroes)".into(),
                Content::Given(stamp) => format!(" (a clone of {stamp:#x})"),
            };
            format!("{}{zeroes}", version.sequence)
        })
        .collect();
    format!("block {lba} reads as {seen}; allowed are the versions {}", allowed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Model, ZERO};

    fn write(model: &mut Model, lba: u32, fua: bool, acknowledge: bool) -> u64 {
        let mut stamp = [0];
        let id = model.submit_write(lba, fua, false, &mut stamp);
        if acknowledge {
            model.acknowledge(id);
        }
        stamp[0]
    }

    fn read(model: &mut Model, lba: u32, stamp: u64) -> Result<(), String> {
        let id = model.submit_read(lba, 1);
        model.finish_read(id, &[stamp])
    }

    #[test]
    fn a_read_returns_the_acknowledged_version_or_a_later_one() {
        let mut model = Model::new(4, false);
        let old = write(&mut model, 1, false, true);
        let new = write(&mut model, 1, false, true);
        let pending = write(&mut model, 1, false, false);
        assert!(read(&mut model, 1, old).is_err());
        assert!(read(&mut model, 1, ZERO).is_err());
        assert_eq!(read(&mut model, 1, new), Ok(()));
        assert_eq!(read(&mut model, 1, pending), Ok(()));
        assert!(read(&mut model, 1, new).is_err(), "reads never go backwards");
        assert!(read(&mut model, 2, new).is_err(), "another block's data");
    }

    #[test]
    fn a_slow_read_may_return_what_was_overwritten_and_flushed_meanwhile() {
        let mut model = Model::new(1, true);
        let old = write(&mut model, 0, true, true);
        let slow = model.submit_read(0, 1);
        write(&mut model, 0, true, true);
        assert_eq!(model.finish_read(slow, &[old]), Ok(()));
        assert!(read(&mut model, 0, old).is_err());
    }

    #[test]
    fn a_flush_makes_durable_what_was_acknowledged_before_its_submission() {
        let mut model = Model::new(2, false);
        let first = write(&mut model, 0, false, true);
        let flush = model.submit_flush();
        let second = write(&mut model, 1, false, true);
        assert_eq!(model.check_recovered(&[Some(ZERO), Some(ZERO)]), Ok(()));
        model.acknowledge(flush);
        assert!(model.check_recovered(&[Some(ZERO), Some(ZERO)]).is_err());
        assert_eq!(model.check_recovered(&[Some(first), Some(ZERO)]), Ok(()));
        assert_eq!(model.check_recovered(&[Some(first), Some(second)]), Ok(()));
        assert!(model.check_recovered(&[Some(second), Some(second)]).is_err());
        assert!(model.check_recovered(&[None, Some(second)]).is_err());
    }

    #[test]
    fn what_a_recovery_showed_is_the_only_allowed_version() {
        let mut model = Model::new(1, false);
        let lost = write(&mut model, 0, false, true);
        assert_eq!(model.check_recovered(&[Some(ZERO)]), Ok(()));
        model.settle(&[Some(ZERO)]);
        assert!(model.check_recovered(&[Some(lost)]).is_err());
        assert_eq!(model.check_recovered(&[Some(ZERO)]), Ok(()));
    }

    #[test]
    fn an_atomic_write_is_all_or_nothing_unless_overwritten() {
        let mut model = Model::new(3, false);
        let mut stamps = [0; 3];
        model.submit_write(0, false, true, &mut stamps);
        let [a, b, c] = stamps.map(Some);
        let zero = Some(ZERO);
        assert_eq!(model.check_recovered(&[a, b, c]), Ok(()));
        assert_eq!(model.check_recovered(&[zero, zero, zero]), Ok(()));
        assert!(model.check_recovered(&[a, zero, c]).is_err());
        let later = Some(write(&mut model, 1, false, false));
        assert_eq!(model.check_recovered(&[a, later, c]), Ok(()));
        assert_eq!(model.check_recovered(&[zero, later, zero]), Ok(()));
        assert!(model.check_recovered(&[zero, b, zero]).is_err());
        model.submit_trim(2, 1, false);
        assert_eq!(model.check_recovered(&[a, b, zero]), Ok(()), "zero may be the later trim");
    }

    #[test]
    fn a_durable_medium_promises_every_reply() {
        let mut model = Model::new(1, true);
        write(&mut model, 0, false, true);
        assert!(model.check_recovered(&[Some(ZERO)]).is_err());
        let trim = model.submit_trim(0, 1, false);
        model.acknowledge(trim);
        assert_eq!(model.check_recovered(&[Some(ZERO)]), Ok(()));
    }

    #[test]
    fn only_a_rotting_medium_may_show_an_older_version_after_recovery() {
        let mut model = Model::new(2, true);
        let old = write(&mut model, 0, false, true);
        write(&mut model, 0, false, true);
        let other = write(&mut model, 1, false, true);
        assert!(model.check_recovered(&[Some(old), Some(other)]).is_err());
        model.tolerate_unreadable();
        assert_eq!(model.check_recovered(&[Some(old), Some(other)]), Ok(()));
        assert_eq!(model.check_recovered(&[None, Some(other)]), Ok(()));
        assert!(model.check_recovered(&[Some(other), Some(other)]).is_err(), "another block's");
        model.settle(&[Some(old), Some(other)]);
        assert_eq!(read(&mut model, 0, old), Ok(()));
    }

    #[test]
    fn a_failed_write_may_be_seen_or_not() {
        let mut model = Model::new(1, true);
        let mut stamp = [0];
        let id = model.submit_write(0, false, false, &mut stamp);
        model.fail(id);
        assert_eq!(model.check_recovered(&[Some(ZERO)]), Ok(()));
        assert_eq!(model.check_recovered(&[Some(stamp[0])]), Ok(()));
    }
}
