//! When the client has to look after what again. A timer that is not needed any more may still fire:
//! whoever it is for looks whether it is time.

use crate::words::NodeId;
use flash::{BlockId, Instant};
use std::collections::BTreeSet;

/// What to look after.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Timer {
    /// The open band of this block: late answers, appends to be sent again.
    Band(BlockId),
    /// A read, by its number: to be hedged, or late.
    Read(u64),
    /// A node that could not flush when it was asked.
    Flush(NodeId),
    /// The first flush: nodes that are late with it.
    Flushes,
    /// Erases that wait too long, and work of nodes to be sent again.
    Chores,
    /// Expiry of the plan, limits that rise, bands to be bound.
    Nodes,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Timers {
    due: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    /// Looks after `timer` at `at`.
    pub fn set(&mut self, at: Instant, timer: Timer) {
        self.due.insert((at, timer));
    }

    /// Looks after `timer` at `at` in place of when `set` says, if at all.
    pub fn move_to(&mut self, set: &mut Option<Instant>, at: Option<Instant>, timer: Timer) {
        if *set == at {
            return;
        }
        if let Some(old) = std::mem::replace(set, at) {
            self.clear(old, timer);
        }
        if let Some(at) = at {
            self.set(at, timer);
        }
    }

    /// Not any more.
    pub fn clear(&mut self, at: Instant, timer: Timer) {
        self.due.remove(&(at, timer));
    }

    /// The first that is due by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Timer> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, timer));
        Some(timer)
    }

    /// When the first is due.
    pub fn first(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_not_before_their_time() {
        let mut timers = Timers::default();
        timers.set(Instant(9), Timer::Read(1));
        timers.set(Instant(5), Timer::Chores);
        timers.set(Instant(7), Timer::Nodes);
        timers.clear(Instant(7), Timer::Nodes);
        assert_eq!(timers.first(), Some(Instant(5)));
        assert_eq!(timers.pop(Instant(4)), None);
        assert_eq!(timers.pop(Instant(9)), Some(Timer::Chores));
        assert_eq!(timers.pop(Instant(9)), Some(Timer::Read(1)));
        assert_eq!(timers.pop(Instant(9)), None);
    }
}
