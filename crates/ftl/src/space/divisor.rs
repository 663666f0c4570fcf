//! Division by a number that stays the same. Addresses are taken apart several times for every
//! slot, and the geometry need not be powers of two; a multiplication costs a fraction of a
//! division.

/// Divides any `u32` by one number, exactly (Lemire, Kaser, Kurz 2019).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    /// 2^64 by the divisor, rounded up; 0 stands for a divisor of 1.
    reciprocal: u64,
}

impl Divisor {
    /// `by` is not 0.
    pub fn new(by: u32) -> Self {
        Self { reciprocal: (u64::MAX / u64::from(by)).wrapping_add(1) }
    }

    pub fn divide(self, number: u32) -> u32 {
        if self.reciprocal == 0 {
            return number;
        }
        ((u128::from(self.reciprocal) * u128::from(number)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn a_divisor_divides_as_the_processor_does() {
        let mut random = flash::Random::new(1);
        let check = |by: u32, number: u32| {
            assert_eq!(Divisor::new(by).divide(number), number / by, "{number} by {by}");
        };
        for by in (1..300).chain([1 << 16, 1 << 31, u32::MAX - 1, u32::MAX]) {
            for multiple in [0, 1, u32::MAX / by / 2, u32::MAX / by] {
                check(by, multiple * by);
                check(by, (multiple * by).saturating_sub(1));
                check(by, (multiple * by).saturating_add(by - 1));
            }
            for _ in 0..100 {
                check(by, random.below(1 << 32) as u32);
            }
        }
    }
}
