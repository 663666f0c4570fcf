//! A small histogram of latencies from which a tail is read: 16 buckets for each power of two, so that an
//! answer is at most a sixteenth too large. 4 KiB, whatever comes in.

/// Buckets for each power of two.
const STEPS: u64 = 16;
const STEPS_LOG: u32 = STEPS.ilog2();
/// Up to 2^40 ns, 18 minutes; what takes longer is counted there.
const POWERS: usize = 40;
const BUCKETS: usize = POWERS * STEPS as usize;

/// Latencies of one window.
#[derive(Clone, Debug)]
pub struct Quantiles {
    counts: Vec<u32>,
    total: u32,
}

impl Default for Quantiles {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

impl Quantiles {
    /// Takes one.
    pub fn add(&mut self, ns: u64) {
        let at = bucket_of(ns).min(BUCKETS - 1);
        self.counts[at] = self.counts[at].saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// How many came in.
    pub fn count(&self) -> u32 {
        self.total
    }

    /// The least bound, of those it has, below which `percent` of 100 lie; 0 of none.
    pub fn at_percent(&self, percent: u32) -> u64 {
        let wanted = (u64::from(self.total) * u64::from(percent)).div_ceil(100);
        if wanted == 0 {
            return 0;
        }
        let mut seen = 0;
        for (at, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted {
                return upper_bound(at);
            }
        }
        upper_bound(BUCKETS - 1)
    }
}

/// Below two steps each number has a bucket of its own; above, each power of two is cut into steps.
fn bucket_of(ns: u64) -> usize {
    if ns < 2 * STEPS {
        return ns as usize;
    }
    let power = ns.ilog2() - STEPS_LOG;
    (u64::from(power) * STEPS + (ns >> power)) as usize
}

fn upper_bound(at: usize) -> u64 {
    let at = at as u64;
    if at < 2 * STEPS {
        return at;
    }
    let power = at / STEPS - 1;
    ((at % STEPS + STEPS + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;

    #[test]
    fn a_quantile_is_never_too_small_and_at_most_a_sixteenth_too_large() {
        for seed in 0..20 {
            let (mut random, mut quantiles) = (Random::new(seed), Quantiles::default());
            let mut all: Vec<u64> = Vec::new();
            for _ in 0..1 + random.below(3000) {
                let bits = random.below(39);
                let ns = random.below(1 << bits);
                all.push(ns);
                quantiles.add(ns);
            }
            all.sort_unstable();
            for percent in [1, 50, 90, 99, 100] {
                let exact = all[(all.len() * percent).div_ceil(100) - 1];
                let told = quantiles.at_percent(percent as u32);
                assert!(told >= exact, "seed={seed} {percent} %: {told} for {exact}");
                assert!(
                    told <= exact + exact / 16 + 1,
                    "seed={seed} {percent} %: {told} for {exact}"
                );
            }
        }
    }

    #[test]
    fn nothing_has_no_tail_and_what_never_ends_is_counted_last() {
        let mut quantiles = Quantiles::default();
        assert_eq!((quantiles.count(), quantiles.at_percent(99)), (0, 0));
        quantiles.add(u64::MAX);
        assert!(quantiles.at_percent(1) > 1 << 39);
        quantiles.clear();
        assert_eq!(quantiles.count(), 0);
    }
}
