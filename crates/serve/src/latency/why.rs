//! Where the time of a request went that took long: what it waited for, as somebody saw who looked now and then,
//! and only at what was old. Most requests are never looked at, and cost nothing here.

use flash::Instant;
use ftl::Waits;

/// Things that one request waited for and that are told apart; what comes beyond counts to the last of them.
const PARTS_MAX: usize = 8;

/// What a piece of a request waited for, on one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// The shard that did it: its units are meant.
    pub shard: usize,
    /// Before it was begun it waited so long for earlier changes of the same blocks.
    pub parked_ns: u64,
    parts: Vec<(Waits, u64)>,
    /// What it waited for when it was last looked at, and until when that is counted.
    last: Option<Waits>,
    until: Instant,
    /// What [`Lateness`] was then.
    late_ns: u64,
}

impl Waited {
    /// Of a piece that was begun at `since`, when the shard had been late for `late_ns`.
    pub fn new(since: Instant, late_ns: u64) -> Self {
        Self { shard: 0, parked_ns: 0, parts: Vec::new(), last: None, until: since, late_ns }
    }

    /// As `new`, of one that others had to go before.
    pub fn parked(parked_ns: u64, since: Instant, late_ns: u64) -> Self {
        Self { parked_ns, ..Self::new(since, late_ns) }
    }

    /// It is `now`, and the shard was late for `late_ns` so far: counts what went by since the last look, except
    /// what the shard itself was late.
    pub fn count(&mut self, now: Instant, late_ns: u64) {
        // What nobody looked at nobody can tell.
        let Some(last) = self.last else { return };
        let late = late_ns - self.late_ns;
        let ns = (now.max(self.until) - self.until).saturating_sub(late);
        (self.until, self.late_ns) = (self.until.max(now), late_ns);
        let full = self.parts.len() == PARTS_MAX;
        match self.parts.iter_mut().find(|part| part.0 == last) {
            Some(part) => part.1 += ns,
            None if full => self.parts[PARTS_MAX - 1].1 += ns,
            None => self.parts.push((last, ns)),
        }
    }

    /// A look: it waits for `waits` now. At the first one that is what it has waited for all the time.
    pub fn look(&mut self, now: Instant, late_ns: u64, waits: Waits) {
        if *self.last.get_or_insert(waits) == waits {
            // That the shard was late has not held it up: it would wait for the same without.
            self.late_ns = late_ns;
        }
        self.count(now, late_ns);
        self.last = Some(waits);
    }

    /// What it waited for, and for how long.
    pub fn parts(&self) -> &[(Waits, u64)] {
        &self.parts
    }
}

/// How long a shard let what was ready wait, in all: it was busy with other things, or its thread did not run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    ns: u64,
    due: Option<Instant>,
}

/// Less is no lateness: a turn takes its time.
const LATE_NS: u64 = 100 * flash::MICROSECOND;

impl Lateness {
    /// The next turn has something to do at `due`.
    pub fn expect(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    /// The next turn begins.
    pub fn note(&mut self, now: Instant) {
        if let Some(due) = self.due.take().filter(|&due| now >= due + LATE_NS) {
            self.ns += now - due;
        }
    }

    /// So far.
    pub fn ns(&self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::MILLISECOND;
    use ftl::Ahead;

    #[test]
    fn what_a_piece_waited_for_adds_up_to_its_time_less_what_the_shard_was_late() {
        let at = |ms: u64| Instant(ms * MILLISECOND);
        let erase = Waits::Unit(7, Ahead::Erase);
        let mut waited = Waited::new(at(10), 0);
        waited.look(at(11), 0, Waits::Map);
        waited.look(at(12), 0, erase);
        waited.look(at(15), 0, erase);
        let mut lateness = Lateness::default();
        lateness.expect(Some(at(14)));
        lateness.note(at(16));
        waited.look(at(16), lateness.ns(), erase);
        lateness.expect(Some(at(18)));
        lateness.note(at(19));
        assert_eq!(lateness.ns(), 3 * MILLISECOND);
        waited.look(at(19), lateness.ns(), Waits::Unit(7, Ahead::Medium));
        waited.count(at(20), lateness.ns());
        let parts = [(Waits::Map, 2), (erase, 6), (Waits::Unit(7, Ahead::Medium), 1)];
        assert_eq!(waited.parts(), parts.map(|(waits, ms)| (waits, ms * MILLISECOND)));
    }

    #[test]
    fn a_piece_that_waited_for_everything_takes_no_more_memory_than_for_some() {
        let mut waited = Waited::new(Instant(0), 0);
        for unit in 0..1000 {
            waited.look(Instant(u64::from(unit) * 10), 0, Waits::Unit(unit, Ahead::Erase));
        }
        waited.count(Instant(10_000), 0);
        assert_eq!(waited.parts().len(), PARTS_MAX);
        assert_eq!(waited.parts().iter().map(|part| part.1).sum::<u64>(), 10_000);
    }

    #[test]
    fn a_turn_that_comes_in_time_is_not_late() {
        let mut lateness = Lateness::default();
        lateness.expect(Some(Instant(1000)));
        lateness.note(Instant(1000 + LATE_NS - 1));
        lateness.note(Instant(9 * LATE_NS));
        assert_eq!(lateness.ns(), 0, "and what is due is due once");
    }
}
