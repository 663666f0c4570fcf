//! The open bands of an append point: at most one with room on each unit. How many there are is asked several times a
//! page, so they are counted as they come and go.

use crate::log::points::NONE;

#[derive(Clone, Debug)]
pub(crate) struct ByUnit {
    /// By `Ftl::opens` index, or [`NONE`].
    open: Vec<u32>,
    /// Of them, those that are not `NONE`.
    count: u32,
}

impl ByUnit {
    pub fn new(units: u32) -> Self {
        Self { open: vec![NONE; units as usize], count: 0 }
    }

    /// `open` is what there is on `unit` from now on. What there was before.
    pub fn put(&mut self, unit: usize, open: u32) -> u32 {
        let before = std::mem::replace(&mut self.open[unit], open);
        self.count += u32::from(open != NONE);
        self.count -= u32::from(before != NONE);
        before
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.open.iter().copied().filter(|&open| open != NONE)
    }

    /// Units, whether or not there is a band on them.
    pub fn units(&self) -> usize {
        self.open.len()
    }
}

impl std::ops::Index<usize> for ByUnit {
    type Output = u32;

    fn index(&self, unit: usize) -> &u32 {
        &self.open[unit]
    }
}

#[cfg(test)]
mod tests {
    use super::{ByUnit, NONE};

    #[test]
    fn bands_are_counted_as_they_come_and_go() {
        let mut random = flash::Random::new(3);
        let mut bands = ByUnit::new(7);
        for step in 0..1000 {
            let unit = random.below(7) as usize;
            let before = bands[unit];
            let open = if random.chance(0.5) { NONE } else { random.below(100) as u32 };
            assert_eq!(bands.put(unit, open), before, "step {step}");
            assert_eq!((bands[unit], bands.count()), (open, bands.iter().count() as u32));
        }
    }
}
