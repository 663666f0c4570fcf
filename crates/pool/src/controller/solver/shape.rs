//! What one kind of drive can do: the points that are best at some price, and the edge of what it can carry.
//!
//! A drive spends its time on a mix of points, or idles. Serving fewer reads or writes than a mix gives is
//! always allowed and costs the same, so a point that a mix of others covers at no more cost is of no use and
//! is left out: no answer at any price changes by it.

use super::simplex::Simplex;
use crate::profile::Point;

/// No point: the drive idles.
pub const IDLE: usize = usize::MAX;

/// Inside the solver rates are in millions a second and costs in thousands of seconds a second, so that all
/// numbers are near 1.
pub const RATE: f64 = 1e6;
/// See [`RATE`].
pub const COST: f64 = 1e9;

/// A kind of drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    reads: Vec<f64>,
    writes: Vec<f64>,
    costs: Vec<f64>,
    chain: Vec<Point>,
}

/// What a drive does: parts of its time at points, less what it is spared of the reads and writes of these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    parts: [(u16, f64); PARTS_MAX],
    count: u8,
    /// All in all, in the solver's units, what it is spared left out.
    pub rates: Point,
}

const PARTS_MAX: usize = 4;

impl Mix {
    /// Adds part of the time at a point.
    pub fn add(&mut self, shape: &Shape, at: usize, share: f64) {
        self.parts[usize::from(self.count)] = (at as u16, share);
        self.count += 1;
        self.rates.reads += shape.reads[at] * share;
        self.rates.writes += shape.writes[at] * share;
        self.rates.cost += shape.costs[at] * share;
    }

    /// Which points, and which share of the time.
    pub fn parts(&self) -> &[(u16, f64)] {
        &self.parts[..usize::from(self.count)]
    }
}

impl Shape {
    /// Of all that a drive was seen to do. Points that do nothing are left out.
    pub fn new(points: &[Point]) -> Self {
        let points: Vec<Point> = points
            .iter()
            .filter(|point| point.reads + point.writes > 0.0)
            .map(|p| Point { reads: p.reads / RATE, writes: p.writes / RATE, cost: p.cost / COST })
            .collect();
        let mut all = Self::of(&points);
        let kept = all.useful();
        all = Self::of(&kept.iter().map(|at| points[*at]).collect::<Vec<_>>());
        assert!(all.reads.len() < usize::from(u16::MAX), "a profile has hundreds of points");
        all.chain = chain(&all);
        all
    }

    fn of(points: &[Point]) -> Self {
        Self {
            reads: points.iter().map(|point| point.reads).collect(),
            writes: points.iter().map(|point| point.writes).collect(),
            costs: points.iter().map(|point| point.cost).collect(),
            chain: Vec::new(),
        }
    }

    /// Points that are best at some price.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// The drive can do nothing within its service level.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// One of them, in the solver's units.
    pub fn point(&self, at: usize) -> Point {
        Point { reads: self.reads[at], writes: self.writes[at], cost: self.costs[at] }
    }

    /// The edge of what the drive can carry, from most reads to most writes: reads fall, writes rise, and
    /// every further write costs more reads than the one before. Costs are no less than need be.
    pub fn chain(&self) -> &[Point] {
        &self.chain
    }

    /// What is best at these prices of a read and a write, and what it gains over its cost; idling gains 0.
    pub fn best(&self, read: f64, write: f64) -> (f64, usize) {
        let (mut most, mut best) = (0.0, IDLE);
        let points = self.reads.iter().zip(&self.writes).zip(&self.costs).enumerate();
        for (at, ((reads, writes), cost)) in points {
            let gain = read * reads + write * writes - cost;
            if gain > most {
                (most, best) = (gain, at);
            }
        }
        (most, best)
    }

    /// The cheapest mix that covers `target`; where none does, one that covers as large a part as can be.
    pub fn cover(&self, target: Point) -> Mix {
        // x_0 is the part of the target that is covered, worth more than any cost.
        let worth = 1e4 * (1e-9 + self.costs.iter().copied().fold(0.0, f64::max));
        let mut simplex = Simplex::<4>::new([0.0, 0.0, 1.0, 1.0]);
        simplex.enter(0, worth, &[target.reads, target.writes, 1.0, 0.0]);
        for _ in 0..TURNS_MAX {
            let duals = simplex.duals();
            let [read, write, _, time] = duals;
            if simplex.enter_slack(&duals, 1e-12 * worth) {
                continue;
            }
            let (gain, at) = self.best(read, write);
            if at == IDLE || gain <= time + 1e-12 * worth {
                break;
            }
            let rows = [-self.reads[at], -self.writes[at], 0.0, 1.0];
            if !simplex.enter(at + 1, -self.costs[at], &rows) {
                break;
            }
        }
        let mut mix = Mix::default();
        for (id, share) in simplex.parts() {
            if (1..=self.len()).contains(&id) && share > 0.0 {
                mix.add(self, id - 1, share);
            }
        }
        mix.rates.reads = mix.rates.reads.min(target.reads);
        mix.rates.writes = mix.rates.writes.min(target.writes);
        mix
    }

    /// Clarkson's way: a point is checked against the few that are known to be of use; if these do not cover
    /// it, the prices that show it name another one of use.
    fn useful(&self) -> Vec<usize> {
        let mut kept: Vec<usize> = Vec::new();
        for at in 0..self.len() {
            while !kept.contains(&at) {
                let Some([read, write, cost]) = self.uncovered(at, &kept) else { break };
                let gain = |at: &usize| {
                    read * self.reads[*at] + write * self.writes[*at] - cost * self.costs[*at]
                };
                let best = (0..self.len()).max_by(|a, b| gain(a).total_cmp(&gain(b)));
                match best.filter(|best| !kept.contains(best)) {
                    Some(best) => kept.push(best),
                    // Rounding: what is known covers it as good as wholly.
                    None => break,
                }
            }
        }
        kept.sort_unstable();
        kept
    }

    /// Prices of a read, a write and a cost at which point `at` is better than any mix of `kept`; `None` if
    /// such a mix covers it.
    fn uncovered(&self, at: usize, kept: &[usize]) -> Option<[f64; 3]> {
        // How far along the ray through the point does what is kept reach? What it covers is convex and has 0
        // in it, so it covers the point if it reaches 1.
        let point = self.point(at);
        let mut simplex = Simplex::<4>::new([0.0, 0.0, 0.0, 1.0]);
        let ray = [point.reads, point.writes, -point.cost, 0.0];
        let rows = |at: usize| [-self.reads[at], -self.writes[at], self.costs[at], 1.0];
        simplex.enter(0, 1.0, &ray);
        for _ in 0..TURNS_MAX {
            let duals = simplex.duals();
            let worth =
                |rows: &[f64; 4]| -> f64 { rows.iter().zip(&duals).map(|(a, b)| a * b).sum() };
            if simplex.enter_slack(&duals, 1e-12) {
                continue;
            }
            if worth(&ray) < 1.0 - 1e-12 && simplex.enter(0, 1.0, &ray) {
                continue;
            }
            let best = kept.iter().min_by(|a, b| worth(&rows(**a)).total_cmp(&worth(&rows(**b))));
            match best {
                Some(&best) if worth(&rows(best)) < -1e-12 => {
                    if !simplex.enter(best + 1, 0.0, &rows(best)) {
                        break;
                    }
                }
                _ => break,
            }
        }
        let [read, write, cost, reach] = simplex.duals();
        (reach < 1.0 - 1e-9).then_some([read, write, cost])
    }
}

/// Far more than was ever needed: a linear program of four rows that turns in a circle is left.
const TURNS_MAX: usize = 200;

fn chain(shape: &Shape) -> Vec<Point> {
    let mut points: Vec<Point> = (0..shape.len()).map(|at| shape.point(at)).collect();
    // From most reads down; of those that are equal the cheapest with most writes first.
    points.sort_by(|a, b| {
        let writes = b.writes.total_cmp(&a.writes);
        b.reads.total_cmp(&a.reads).then(writes).then(a.cost.total_cmp(&b.cost))
    });
    let mut chain: Vec<Point> = Vec::new();
    for point in points {
        if chain.last().is_some_and(|last| point.writes <= last.writes) {
            continue;
        }
        while let [.., before, last] = chain.as_slice() {
            let gained = (last.writes - before.writes) * (before.reads - point.reads);
            let lost = (point.writes - before.writes) * (before.reads - last.reads);
            if lost < gained {
                break;
            }
            chain.pop();
        }
        chain.push(point);
    }
    chain
}
