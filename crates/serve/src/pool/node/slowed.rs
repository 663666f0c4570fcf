//! A drive that is slower than it is: what it has ended is told later, in the order of its ends. For trying what
//! a pool does about a slow drive.

use crate::pool::block::Block;
use flash::Instant;
use pool::node::store::End;
use std::collections::VecDeque;

/// See the head of this file.
#[derive(Default)]
pub struct Slowed {
    ns: u64,
    held: VecDeque<(Instant, End<Block>)>,
}

impl Slowed {
    /// From now on it takes so much longer; 0: nothing.
    pub fn set(&mut self, ns: u64) {
        self.ns = ns;
    }

    /// How much longer it takes.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// These have ended.
    pub fn take(&mut self, now: Instant, ends: impl Iterator<Item = End<Block>>) {
        let due = now + self.ns;
        self.held.extend(ends.map(|end| (due, end)));
    }

    /// The next one that may be told.
    pub fn due(&mut self, now: Instant) -> Option<End<Block>> {
        let (at, _) = self.held.front()?;
        // None waits longer than is set now, whatever was set when it came.
        if *at > now && *at - now <= self.ns {
            return None;
        }
        self.held.pop_front().map(|(_, end)| end)
    }

    /// When the next one is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.held.front().map(|(at, _)| *at)
    }
}
