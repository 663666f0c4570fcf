//! Looks at what the old pieces of a shard wait for, so that the slowest requests can tell where their time went.
//!
//! What a piece waits for changes only by what a turn gives to the core. So a look at the end of a turn holds until the
//! next turn, and a shard that sleeps has to wake only for pieces that became old meanwhile. Invariant: looks are at
//! least [`LOOK_NS`] apart and at a bounded number of pieces, and there is none while no piece is old.

use super::Engine;
use crate::latency::Waited;
use flash::{Instant, MILLISECOND};

/// Looks come no more often.
const LOOK_NS: u64 = MILLISECOND;
/// Pieces of one look: the oldest. The others have their look when they are among them.
const LOOKED_AT_MAX: usize = 16;

/// When to look next.
#[derive(Debug)]
pub(super) struct Looking {
    /// A piece that is younger is not looked at.
    from_ns: u64,
    /// When pieces will be old that nobody has looked at.
    next: Option<Instant>,
    last: Instant,
    /// Pieces that were looked at are still there.
    again: bool,
    /// Something happened since.
    pub changed: bool,
}

impl Default for Looking {
    fn default() -> Self {
        let (from_ns, last) = (MILLISECOND, Instant(0));
        Self { from_ns, next: None, last, again: false, changed: false }
    }
}

impl Looking {
    /// A piece was begun.
    pub fn begun(&mut self, since: Instant) {
        self.next.get_or_insert(since + self.from_ns);
    }

    fn due(&self) -> Option<Instant> {
        let again = (self.again && self.changed).then_some(self.last + LOOK_NS);
        self.next.into_iter().chain(again).min()
    }
}

impl Engine {
    /// When to call [`Engine::look_at_old`] if nothing happens before.
    pub fn look_at_old_due(&self) -> Option<Instant> {
        if self.active.is_empty() { None } else { self.looking.due() }
    }

    /// Looks what the pieces wait for that are older than `from_ns`, if it is time to.
    pub fn look_at_old(&mut self, now: Instant, from_ns: u64) {
        self.looking.from_ns = from_ns;
        if self.looking.due().is_none_or(|due| now < due) {
            return;
        }
        self.forget_ended();
        let live = self.begun.iter().map(|&(index, _)| (index, self.active[index].since));
        let old = live.clone().take_while(|&(_, since)| now >= since + from_ns);
        let old: Vec<u32> = old.map(|(index, _)| index).take(LOOKED_AT_MAX).collect();
        let next = live.clone().nth(old.len());
        let next = next.map(|(_, since)| (since + from_ns).max(now + LOOK_NS));
        if !old.is_empty() {
            self.look_at(now, &old);
        }
        let looking = &mut self.looking;
        (looking.next, looking.last) = (next, now);
        (looking.again, looking.changed) = (!old.is_empty(), false);
    }

    fn look_at(&mut self, now: Instant, pieces: &[u32]) {
        let late_ns = self.lateness.ns();
        let active = &mut self.active;
        self.core.look(pieces.iter().copied(), |index, waits| {
            let piece = &mut active[index];
            let first = || Box::new(Waited::new(piece.since, piece.late_ns));
            piece.waited.get_or_insert_with(first).look(now, late_ns, waits);
        });
    }

    /// Takes the pieces that have ended off the list of those that were begun.
    fn forget_ended(&mut self) {
        let active = &self.active;
        self.begun.retain(|&(index, number)| {
            active.get(index).is_some_and(|active| active.number == number)
        });
    }
}

#[cfg(test)]
mod tests;
