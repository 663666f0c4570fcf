//! How fast counts grow, over the last second or so, for who asks now and then.

use flash::{Instant, SECOND};

/// The pace of some counts.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// When they were last looked at, what they were, and what they grew by a second before that.
    at: Instant,
    counts: Vec<u64>,
    per_sec: Vec<u64>,
}

impl Rates {
    /// Looks at the counts if it is time to.
    pub fn note(&mut self, now: Instant, counts: impl FnOnce() -> Vec<u64>) {
        if now - self.at >= SECOND {
            let counts = counts();
            *self = Self { per_sec: self.grown(now, &counts), at: now, counts };
        }
    }

    /// What each grows by a second. Of one that was not there before nothing is known.
    pub fn per_sec(&self, now: Instant, counts: &[u64]) -> Vec<u64> {
        // Nobody looked for long: nothing happened in between, or it would have been looked at.
        if now - self.at >= SECOND { self.grown(now, counts) } else { self.per_sec.clone() }
    }

    fn grown(&self, now: Instant, counts: &[u64]) -> Vec<u64> {
        let ns = u128::from((now - self.at).max(1));
        let before = self.counts.iter().copied().map(Some).chain(std::iter::repeat(None));
        let grown = |(&count, before): (&u64, Option<u64>)| {
            let grown = count.saturating_sub(before.unwrap_or(count));
            (u128::from(grown) * u128::from(SECOND) / ns) as u64
        };
        counts.iter().zip(before).map(grown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_second_and_of_a_new_count_none_is_known() {
        let mut rates = Rates::default();
        rates.note(Instant(SECOND), || vec![100, 0]);
        rates.note(Instant(SECOND * 3 / 2), || unreachable!("too early"));
        rates.note(Instant(3 * SECOND), || vec![300, 4, 9]);
        assert_eq!(rates.per_sec(Instant(3 * SECOND + 1), &[900, 4, 9]), [100, 2, 0]);
        assert_eq!(rates.per_sec(Instant(13 * SECOND), &[300, 4, 19]), [0, 0, 1]);
    }
}
