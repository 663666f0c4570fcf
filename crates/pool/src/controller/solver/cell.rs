//! The part of the plane of two prices in which the best ones lie: a convex polygon that each answer halves.

/// A convex polygon of prices of a read and a write.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    corners: Vec<[f64; 2]>,
}

impl Cell {
    /// All prices at which the demand is worth no more than `worth`.
    pub fn new(read_max: f64, write_max: f64) -> Self {
        Self { corners: vec![[0.0, 0.0], [read_max, 0.0], [0.0, write_max]] }
    }

    /// The centre of gravity: any line through it leaves at most 1 - 1/e of the area on either side. `None`
    /// if nothing is left that has one.
    pub fn centre(&self) -> Option<[f64; 2]> {
        let first = *self.corners.first()?;
        let (mut area, mut centre) = (0.0, [0.0; 2]);
        for pair in self.corners.windows(2).skip(1) {
            let [a, b] = [minus(pair[0], first), minus(pair[1], first)];
            let twice = a[0] * b[1] - a[1] * b[0];
            area += twice;
            for axis in 0..2 {
                centre[axis] += twice * (a[axis] + b[axis]) / 3.0;
            }
        }
        let inside = [first[0] + centre[0] / area, first[1] + centre[1] / area];
        (area > 0.0 && inside.iter().all(|axis| axis.is_finite() && *axis >= 0.0)).then_some(inside)
    }

    /// Keeps where `slope . (prices - at) >= least`.
    pub fn keep(&mut self, at: [f64; 2], slope: [f64; 2], least: f64) {
        let height = |corner: &[f64; 2]| {
            slope[0] * (corner[0] - at[0]) + slope[1] * (corner[1] - at[1]) - least
        };
        let mut kept = Vec::with_capacity(self.corners.len() + 1);
        for (index, corner) in self.corners.iter().enumerate() {
            let next = &self.corners[(index + 1) % self.corners.len()];
            let (here, there) = (height(corner), height(next));
            if here >= 0.0 {
                kept.push(*corner);
            }
            if (here >= 0.0) != (there >= 0.0) {
                let part = here / (here - there);
                kept.push([
                    corner[0] + part * (next[0] - corner[0]),
                    corner[1] + part * (next[1] - corner[1]),
                ]);
            }
        }
        self.corners = kept;
    }
}

fn minus(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_cut_through_its_centre_until_a_point_is_left() {
        let (mut cell, target) = (Cell::new(3.0, 6.0), [0.7, 1.1]);
        assert_eq!(cell.centre(), Some([1.0, 2.0]));
        for _ in 0..60 {
            let Some(at) = cell.centre() else { break };
            let slope = [target[0] - at[0], target[1] - at[1]];
            cell.keep(at, slope, 0.0);
        }
        let at = cell.corners[0];
        assert!((at[0] - 0.7).abs() < 1e-6 && (at[1] - 1.1).abs() < 1e-6, "{at:?}");
        cell.keep([9.0, 9.0], [1.0, 1.0], 0.0);
        assert_eq!(cell.centre(), None);
    }
}
