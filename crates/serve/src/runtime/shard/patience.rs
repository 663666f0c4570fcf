//! How long a shard looks for work before it sleeps. To wake a sleeping thread costs more than a
//! small request does, so a shard that was woken soon after it fell asleep looks longer the next
//! time; one whose waits are long stops looking, and an idle server burns nothing. Where processors
//! are scarce looking harms, so a look that was cut off ends it for a while.
//!
//! Invariant: a wait that was longer than `max_ns` halves the time to look, so that after an idle
//! spell of a few waits it is 0.

/// Time to look before sleeping, learned from the waits so far.
#[derive(Debug)]
pub struct Patience {
    max_ns: u64,
    window_ns: u64,
    /// Waits that must pass before it looks again.
    pause: u32,
}

/// Looking for less than this is not worth the look at the clock.
const WINDOW_NS_MIN: u64 = 2000;

impl Patience {
    /// Looks for at most `max_ns`; 0 never looks.
    pub fn new(max_ns: u64) -> Self {
        Self { max_ns, window_ns: 0, pause: 0 }
    }

    /// How long to look now.
    pub fn window_ns(&self) -> u64 {
        if self.pause > 0 { 0 } else { self.window_ns }
    }

    /// The look took so long. Far longer than it should: somebody else needs the processor.
    pub fn looked(&mut self, ns: u64) {
        if ns > 4 * self.max_ns {
            self.pause = PAUSE_WAITS;
        }
    }

    /// The last wait, looking and sleeping, took so long.
    pub fn waited(&mut self, ns: u64) {
        self.pause = self.pause.saturating_sub(1);
        if ns <= self.max_ns {
            self.window_ns = self.max_ns;
        } else if self.window_ns > 0 {
            let half = self.window_ns / 2;
            self.window_ns = if half < WINDOW_NS_MIN { 0 } else { half };
        }
    }
}

/// How many waits it sleeps at once after somebody else took the processor from a look.
const PAUSE_WAITS: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::Patience;

    #[test]
    fn short_waits_make_it_look_and_long_ones_stop_it() {
        let mut patience = Patience::new(50_000);
        assert_eq!(patience.window_ns(), 0);
        patience.waited(20_000);
        assert_eq!(patience.window_ns(), 50_000);
        for _ in 0..5 {
            patience.waited(1_000_000);
        }
        assert_eq!(patience.window_ns(), 0);
    }

    #[test]
    fn a_look_that_was_cut_off_stops_it_for_a_while() {
        let mut patience = Patience::new(50_000);
        patience.waited(20_000);
        patience.looked(51_000);
        assert_eq!(patience.window_ns(), 50_000);
        patience.looked(3_000_000);
        for _ in 0..super::PAUSE_WAITS {
            assert_eq!(patience.window_ns(), 0);
            patience.waited(20_000);
        }
        assert_eq!(patience.window_ns(), 50_000);
    }

    #[test]
    fn it_never_looks_when_told_so() {
        let mut patience = Patience::new(0);
        patience.waited(0);
        patience.waited(1);
        assert_eq!(patience.window_ns(), 0);
    }
}
