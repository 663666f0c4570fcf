//! A linear program with a handful of rows whose columns are named one at a time: `max gains . x` where
//! `rows . x <= limits`, `x >= 0` and no limit is below 0, so that `x = 0` is where it starts.
//!
//! Whoever uses it has the columns, finds by the [`Simplex::duals`] one that gains, and lets it
//! [`Simplex::enter`]. Nothing that is proved by it rests on its arithmetic: bounds are computed from the duals
//! and all columns, whatever state it is in.

/// Columns with this number and above are the slacks of the rows.
pub const SLACK: usize = usize::MAX - 64;

/// Below this a pivot is rounding.
const PIVOT_MIN: f64 = 1e-11;

/// The state: which columns are in use, and how much of each.
#[derive(Clone, Debug)]
pub struct Simplex<const M: usize> {
    ids: [usize; M],
    gains: [f64; M],
    values: [f64; M],
    inverse: [[f64; M]; M],
}

impl<const M: usize> Simplex<M> {
    /// Nothing is in use.
    pub fn new(limits: [f64; M]) -> Self {
        let unit = |row| std::array::from_fn(|at| if at == row { 1.0 } else { 0.0 });
        Self {
            ids: std::array::from_fn(|row| SLACK + row),
            gains: [0.0; M],
            values: limits,
            inverse: std::array::from_fn(unit),
        }
    }

    /// The price of each row.
    pub fn duals(&self) -> [f64; M] {
        let mut duals = [0.0; M];
        for (gain, row) in self.gains.iter().zip(&self.inverse) {
            for (dual, inverse) in duals.iter_mut().zip(row) {
                *dual += gain * inverse;
            }
        }
        duals
    }

    /// The columns in use, slacks included, and how much of each.
    pub fn parts(&self) -> impl Iterator<Item = (usize, f64)> {
        self.ids.iter().copied().zip(self.values.iter().map(|value| value.max(0.0)))
    }

    /// How much of this column is in use.
    pub fn value(&self, id: usize) -> f64 {
        self.parts().filter(|part| part.0 == id).map(|part| part.1).sum()
    }

    /// The gains of columns are others now. Slacks gain nothing.
    pub fn reprice(&mut self, gain: impl Fn(usize) -> f64) {
        for (id, gains) in self.ids.iter().zip(&mut self.gains) {
            *gains = if *id >= SLACK { 0.0 } else { gain(*id) };
        }
    }

    /// The slack of the row whose price is most below `-least` comes in, if there is one.
    pub fn enter_slack(&mut self, duals: &[f64; M], least: f64) -> bool {
        let cheapest = (0..M).min_by(|a, b| duals[*a].total_cmp(&duals[*b])).unwrap_or(0);
        let rows = std::array::from_fn(|at| if at == cheapest { 1.0 } else { 0.0 });
        duals[cheapest] < -least && self.enter(SLACK + cheapest, 0.0, &rows)
    }

    /// Uses as much of this column as its rows allow, in place of the one that runs out first. False if nothing
    /// bounds it, or it is in use.
    pub fn enter(&mut self, id: usize, gain: f64, rows: &[f64; M]) -> bool {
        if self.ids.contains(&id) {
            return false;
        }
        let mut along = [0.0; M];
        for (to, inverse) in along.iter_mut().zip(&self.inverse) {
            *to = inverse.iter().zip(rows).map(|(a, b)| a * b).sum();
        }
        let mut leaves: Option<(f64, usize)> = None;
        for row in (0..M).filter(|row| along[*row] > PIVOT_MIN) {
            let ratio = self.values[row].max(0.0) / along[row];
            let is_first = leaves.is_none_or(|(least, at)| {
                ratio < least || ratio == least && self.ids[row] < self.ids[at]
            });
            if is_first {
                leaves = Some((ratio, row));
            }
        }
        let Some((ratio, leaves)) = leaves else { return false };
        for row in (0..M).filter(|row| *row != leaves) {
            self.values[row] = (self.values[row] - ratio * along[row]).max(0.0);
        }
        self.pivot(leaves, &along);
        (self.ids[leaves], self.gains[leaves], self.values[leaves]) = (id, gain, ratio);
        true
    }

    fn pivot(&mut self, leaves: usize, along: &[f64; M]) {
        for inverse in &mut self.inverse[leaves] {
            *inverse /= along[leaves];
        }
        let pivot = self.inverse[leaves];
        for row in (0..M).filter(|row| *row != leaves) {
            for (to, from) in self.inverse[row].iter_mut().zip(&pivot) {
                *to -= along[row] * from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_two_products_under_three_limits_is_found() {
        // max 3x + 5y where x <= 4, 2y <= 12, 3x + 2y <= 18: the textbook's, 36 at (2, 6).
        let columns = [(3.0, [1.0, 0.0, 3.0]), (5.0, [0.0, 2.0, 2.0])];
        let mut simplex = Simplex::<3>::new([4.0, 12.0, 18.0]);
        for _ in 0..10 {
            let duals = simplex.duals();
            if simplex.enter_slack(&duals, 1e-12) {
                continue;
            }
            for (id, (gain, rows)) in columns.iter().enumerate() {
                let worth: f64 = rows.iter().zip(&duals).map(|(a, b)| a * b).sum();
                if gain - worth > 1e-12 {
                    simplex.enter(id, *gain, rows);
                }
            }
        }
        assert!((simplex.value(0) - 2.0).abs() < 1e-12 && (simplex.value(1) - 6.0).abs() < 1e-12);
        let [x, y, z] = simplex.duals();
        assert!((4.0 * x + 12.0 * y + 18.0 * z - 36.0).abs() < 1e-12);
    }
}
