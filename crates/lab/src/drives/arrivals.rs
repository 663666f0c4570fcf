//! When requests come and what they ask for, where a drive is measured: a Poisson process of single blocks at
//! uniform addresses, which does not care how the drive is doing.

use flash::Random;

/// A request that comes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// Nanoseconds since the first could have come.
    pub at_ns: u64,
    /// Else it is a read.
    pub is_write: bool,
    /// Which block, from 0.
    pub block: u64,
}

/// All requests of a load, without end. The same seed gives the same requests.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Random,
    at_ns: f64,
    gap_ns: f64,
    writes: f64,
    blocks: u64,
}

impl Arrivals {
    /// So many requests a second, of which this percentage are writes, over so many blocks.
    ///
    /// # Panics
    /// If there is no load, or no block.
    pub fn new(iops: f64, writes_percent: f64, blocks: u64, seed: u64) -> Self {
        assert!(iops > 0.0 && blocks > 0, "{iops} requests a second over {blocks} blocks");
        let (gap_ns, writes) = (1e9 / iops, writes_percent / 100.0);
        Self { random: Random::new(seed), at_ns: 0.0, gap_ns, writes, blocks }
    }

    /// How many come before this instant, which are taken.
    pub fn count_before(&mut self, at_ns: u64) -> u64 {
        let mut next = self.clone();
        let mut count = 0;
        while next.draw().at_ns < at_ns {
            *self = next.clone();
            count += 1;
        }
        count
    }

    fn draw(&mut self) -> Arrival {
        self.at_ns -= libm::log(1.0 - self.random.fraction()) * self.gap_ns;
        let is_write = self.random.chance(self.writes);
        let block = self.random.below(self.blocks);
        Arrival { at_ns: self.at_ns as u64, is_write, block }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        Some(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrival, Arrivals};

    const SEED: u64 = 5;

    fn taken(iops: f64, writes: f64, blocks: u64, count: usize) -> Vec<Arrival> {
        Arrivals::new(iops, writes, blocks, SEED).take(count).collect()
    }

    #[test]
    fn gaps_are_exponential_and_as_long_as_the_load_says() {
        println!("seed {SEED}");
        let all = taken(50_000.0, 0.0, 1, 200_000);
        let rate = all.len() as f64 / all[all.len() - 1].at_ns as f64 * 1e9;
        assert!((rate / 50_000.0 - 1.0).abs() < 0.01, "{rate}");
        let gaps = all.windows(2).map(|pair| (pair[1].at_ns - pair[0].at_ns) as f64 / 20_000.0);
        let gaps: Vec<f64> = gaps.collect();
        let longer = |than: f64| gaps.iter().filter(|gap| **gap > than).count() as f64;
        for than in [0.1, 1.0, 3.0] {
            let share = longer(than) / gaps.len() as f64;
            let said = libm::exp(-than);
            assert!((share / said - 1.0).abs() < 0.05, "{share} of gaps beyond {than}, not {said}");
        }
    }

    #[test]
    fn writes_are_drawn_by_their_share_and_addresses_evenly() {
        println!("seed {SEED}");
        let all = taken(1.0, 30.0, 8, 80_000);
        let writes = all.iter().filter(|arrival| arrival.is_write).count();
        assert!((23_400..24_600).contains(&writes), "{writes}");
        for block in 0..8 {
            let count = all.iter().filter(|arrival| arrival.block == block).count();
            assert!((9_600..10_400).contains(&count), "{count} at {block}");
        }
        assert!(taken(1.0, 0.0, 8, 1000).iter().all(|arrival| !arrival.is_write));
        assert!(taken(1.0, 100.0, 8, 1000).iter().all(|arrival| arrival.is_write));
        assert_eq!(taken(9.0, 30.0, 8, 100), taken(9.0, 30.0, 8, 100), "a seed says it all");
    }

    #[test]
    fn who_counts_what_has_come_goes_on_with_what_comes_next() {
        let all = taken(1e6, 50.0, 100, 1000);
        let mut arrivals = Arrivals::new(1e6, 50.0, 100, SEED);
        assert_eq!(arrivals.count_before(all[600].at_ns), 600);
        assert_eq!(arrivals.count_before(all[600].at_ns), 0);
        assert_eq!(arrivals.next(), Some(all[600]));
    }
}
