//! When the copies of a volume are read and compared: while its host wants nothing, once a day, or as somebody says.

use flash::{Instant, SECOND};

/// A host that has wanted nothing for so long is idle.
const IDLE_NS: u64 = SECOND;
/// Copies that were all compared rest until so long after that was begun.
const ROUND_NS: u64 = 24 * 3600 * SECOND;

/// When to scrub.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum When {
    /// While nothing else goes on, a round a day.
    #[default]
    Idle,
    /// Now, whatever else goes on, until a round is whole.
    Now,
    /// Not at all.
    Never,
}

impl When {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Now => "now",
            Self::Never => "never",
        }
    }
}

/// See the head of this file.
pub struct Scrubbing {
    when: When,
    goes: bool,
    busy_at: Instant,
    /// Whole rounds, and since when the next one is due.
    rounds: u64,
    due: Instant,
    begun: Option<Instant>,
}

impl Scrubbing {
    pub fn new(now: Instant) -> Self {
        let when = When::default();
        Self { when, goes: false, busy_at: now, rounds: 0, due: now, begun: None }
    }

    /// As somebody says, where so many rounds are whole. With `Now` a round begins, whatever was read before.
    pub fn set(&mut self, now: Instant, when: When, rounds: u64) {
        self.when = when;
        if when == When::Now {
            (self.rounds, self.begun) = (rounds, Some(now));
        }
    }

    /// The volume is opened anew, where no round is whole; what goes on does not any more until it was looked at.
    pub fn begin_anew(&mut self) {
        (self.goes, self.rounds) = (false, 0);
    }

    pub fn when(&self) -> When {
        self.when
    }

    /// The host wants something.
    pub fn busy(&mut self, now: Instant) {
        self.busy_at = now;
    }

    /// Whether it goes on, where so many rounds are whole; `None` if that is as it was.
    pub fn look(&mut self, now: Instant, rounds: u64) -> Option<bool> {
        if rounds > self.rounds {
            self.rounds = rounds;
            self.due = self.begun.take().unwrap_or(now) + ROUND_NS;
            if self.when == When::Now {
                self.when = When::Idle;
            }
        }
        let goes = match self.when {
            When::Idle => now >= self.busy_at + IDLE_NS && now >= self.due,
            When::Now => true,
            When::Never => false,
        };
        if goes {
            self.begun.get_or_insert(now);
        }
        (std::mem::replace(&mut self.goes, goes) != goes).then_some(goes)
    }

    /// When to look again, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.when == When::Idle && !self.goes;
        waits.then_some((self.busy_at + IDLE_NS).max(self.due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SECOND)
    }

    #[test]
    fn copies_are_compared_once_a_day_while_the_host_wants_nothing() {
        let mut scrub = Scrubbing::new(at(0));
        assert_eq!(scrub.look(at(0), 0), None);
        assert_eq!(scrub.deadline(), Some(at(1)));
        assert_eq!(scrub.look(at(1), 0), Some(true));
        scrub.busy(at(2));
        assert_eq!(scrub.look(at(2), 0), Some(false));
        assert_eq!(scrub.look(at(3), 0), Some(true));
        assert_eq!((scrub.look(at(4), 0), scrub.deadline()), (None, None));
        assert_eq!(scrub.look(at(10), 1), Some(false), "a round is whole");
        let next = at(1) + ROUND_NS;
        assert_eq!((scrub.deadline(), scrub.look(next, 1)), (Some(next), Some(true)));
    }

    #[test]
    fn what_somebody_says_holds_whatever_the_host_wants() {
        let mut scrub = Scrubbing::new(at(0));
        assert_eq!(scrub.look(at(1), 0), Some(true));
        scrub.set(at(2), When::Never, 0);
        assert_eq!((scrub.look(at(2), 0), scrub.deadline()), (Some(false), None));
        // The round before has just become whole.
        scrub.set(at(3), When::Now, 1);
        scrub.busy(at(3));
        assert_eq!(scrub.look(at(3), 1), Some(true));
        assert_eq!(scrub.look(at(4), 2), Some(false), "one round, then as usual");
        assert_eq!(scrub.when(), When::Idle);
    }
}
