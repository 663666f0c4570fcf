//! The one source of randomness: xoshiro256** seeded by SplitMix64 (Blackman and Vigna, 2018).

/// A seeded generator. The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose whole future is fixed by `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        let state = std::array::from_fn(|_| {
            mix = mix.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = mix;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound` (Lemire's multiply-shift; bias below 2⁻³² for bounds of 32 bits).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.fraction() < p
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..1000).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Random::new(7).next_u64(), Random::new(8).next_u64());
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let (mut random, mut seen) = (Random::new(1), [0u32; 10]);
        for _ in 0..100_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
    }
}
