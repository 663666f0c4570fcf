//! Whose turn it is at a block of a store on files. Reads run together and beside a program;
//! programs one after another; an erase alone. First come, first served per block.

use flash::BlockId;
use std::collections::VecDeque;

/// What a job does to its block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Reads pages that were programmed before.
    Read,
    /// Programs the next page.
    Program,
    /// Erases the block.
    Erase,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    reads: u16,
    program: bool,
    erase: bool,
    waiting: u16,
}

impl Lane {
    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => !self.erase,
            Access::Program => !self.erase && !self.program,
            Access::Erase => !self.erase && !self.program && self.reads == 0,
        }
    }

    fn occupy(&mut self, access: Access) {
        match access {
            Access::Read => self.reads += 1,
            Access::Program => self.program = true,
            Access::Erase => self.erase = true,
        }
    }
}

/// The turns at all blocks of a medium.
pub struct Lanes {
    lanes: Vec<Lane>,
    /// Jobs that wait, oldest first. Short: a few blocks at most have any.
    waiting: VecDeque<(u32, BlockId, Access)>,
}

impl Lanes {
    /// Nobody is at any of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        Self { lanes: vec![Lane::default(); blocks as usize], waiting: VecDeque::new() }
    }

    /// True if `job` may go at once; else it waits for [`Lanes::admit`].
    pub fn enter(&mut self, job: u32, block: BlockId, access: Access) -> bool {
        let lane = &mut self.lanes[block.0 as usize];
        if lane.waiting == 0 && lane.allows(access) {
            lane.occupy(access);
            return true;
        }
        lane.waiting += 1;
        self.waiting.push_back((job, block, access));
        false
    }

    /// A job that was at `block` is done.
    pub fn leave(&mut self, block: BlockId, access: Access) {
        let lane = &mut self.lanes[block.0 as usize];
        match access {
            Access::Read => lane.reads -= 1,
            Access::Program => lane.program = false,
            Access::Erase => lane.erase = false,
        }
    }

    /// The next job that may go now.
    pub fn admit(&mut self, block: BlockId) -> Option<u32> {
        let lane = &mut self.lanes[block.0 as usize];
        if lane.waiting == 0 {
            return None;
        }
        let position = self.waiting.iter().position(|&(_, at, _)| at == block)?;
        let (job, _, access) = self.waiting[position];
        if !lane.allows(access) {
            return None;
        }
        lane.occupy(access);
        lane.waiting -= 1;
        self.waiting.remove(position);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Lanes};
    use flash::BlockId;

    #[test]
    fn an_erase_waits_for_reads_and_what_comes_after_waits_for_it() {
        let (mut lanes, block) = (Lanes::new(2), BlockId(1));
        assert!(lanes.enter(1, block, Access::Read));
        assert!(!lanes.enter(2, block, Access::Erase));
        assert!(!lanes.enter(3, block, Access::Program));
        assert!(lanes.enter(4, BlockId(0), Access::Erase));
        assert_eq!(lanes.admit(block), None);
        lanes.leave(block, Access::Read);
        assert_eq!(lanes.admit(block), Some(2));
        assert_eq!(lanes.admit(block), None);
        lanes.leave(block, Access::Erase);
        assert_eq!(lanes.admit(block), Some(3));
    }

    #[test]
    fn reads_run_beside_a_program_but_programs_one_by_one() {
        let (mut lanes, block) = (Lanes::new(1), BlockId(0));
        assert!(lanes.enter(1, block, Access::Program));
        assert!(lanes.enter(2, block, Access::Read));
        assert!(!lanes.enter(3, block, Access::Program));
        lanes.leave(block, Access::Program);
        assert_eq!(lanes.admit(block), Some(3));
    }
}
