//! How long reads take: a quantile over the last few thousand, from buckets that grow by an eighth.
//!
//! Invariant: of what was added, the older half counts half as much after each [`ROUND`] additions, so the
//! memory and the work are bounded and old news fades.

/// Buckets: 8 to an octave, from 1 µs to over an hour.
const BUCKETS: usize = 8 * 32;

/// After so many, all counts are halved.
const ROUND: u32 = 4096;

/// Below this many, nothing is known.
const ENOUGH: u32 = 64;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u32>,
    total: u32,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Latencies {
    /// One more took so long.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        if self.total >= 2 * ROUND {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// At least `permille` thousandths took no longer than this; `None` while too few are known.
    pub fn quantile(&self, permille: u32) -> Option<u64> {
        if self.total < ENOUGH {
            return None;
        }
        let wanted = (u64::from(self.total) * u64::from(permille)).div_ceil(1000);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted {
                return Some(upper(index));
            }
        }
        None
    }
}

/// Of eighths of octaves above a microsecond.
fn bucket(ns: u64) -> usize {
    let us8 = (ns / 125).max(8);
    let octave = us8.ilog2() - 3;
    let eighth = (us8 >> octave) - 8;
    ((octave * 8) as usize + eighth as usize).min(BUCKETS - 1)
}

/// The longest that falls into a bucket.
fn upper(index: usize) -> u64 {
    let (octave, eighth) = (index / 8, index as u64 % 8);
    ((8 + eighth + 1) << octave) * 125
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_near_the_true_one_and_never_below_it() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(500), None);
        for us in 1..=1000u64 {
            latencies.add(us * 1000);
        }
        for permille in [100, 500, 900, 990] {
            let (told, is) = (latencies.quantile(permille).unwrap(), u64::from(permille) * 1000);
            assert!(told >= is && told <= is + is / 7 + 1000, "{permille}: {told} of {is}");
        }
    }

    #[test]
    fn old_news_fades() {
        let mut latencies = Latencies::default();
        (0..8000).for_each(|_| latencies.add(1_000_000));
        (0..40_000).for_each(|_| latencies.add(10_000));
        assert!(latencies.quantile(900).unwrap() < 20_000);
    }
}
