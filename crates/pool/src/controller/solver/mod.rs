//! The exact solver: which drive does what share of which work, so that a demand is met with the least total
//! latency, or how much of it can be met at all.
//!
//! Each drive picks a mix of the points of its profile, reads and writes a second and what they cost, or idles.
//! Two sums couple the drives: the reads and the writes of the demand (and the writes of failure domains, where
//! they are full). So the prices of a read and of a write tell each drive what to do, and finding the best plan
//! is finding two numbers ([`least`](self), [`peak`](self)). A plan comes with a bound that no other can undercut:
//! the gap between them is its certificate.
//!
//! - [`Shape`] is what a drive can do, [`Fleet`] all drives, [`Demand`] what is asked, [`Terms`] what a plan keeps to.
//! - [`solve`] gives the [`Plan`], [`peak`] only how many times the demand is carried.

mod answer;
mod cell;
mod fleet;
mod least;
mod mixing;
mod peak;
mod shape;
mod simplex;

pub use fleet::{Demand, Drive, Fleet, Terms};
pub use shape::Shape;

use crate::profile::Point;
use fleet::Problem;
use shape::{COST, RATE};

/// What a drive does by a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Reads and writes a second, and their cost.
    pub rates: Point,
    /// At which points of its shape it spends which share of its time; it idles in the rest. With all these it
    /// would do at least what `rates` says.
    pub points: Vec<(usize, f64)>,
}

/// Where reads and writes go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// How many times the demand the drives carry: below 1 it cannot be met, and the plan is what they carry.
    pub peak: f64,
    /// By drive.
    pub drives: Vec<Part>,
    /// Of all drives. Reads and writes are those of the demand, or of the part of it that is carried.
    pub rates: Point,
    /// No plan that does as much costs less.
    pub bound: f64,
    /// Price of a read in microseconds: what one more a second costs.
    pub read_price: f64,
    /// Likewise of a write.
    pub write_price: f64,
}

impl Plan {
    /// The demand is met.
    pub fn is_feasible(&self) -> bool {
        self.peak >= 1.0
    }

    /// How much less the best plan may cost, as a part of what this one costs.
    pub fn gap(&self) -> f64 {
        if self.rates.cost > 0.0 {
            ((self.rates.cost - self.bound) / self.rates.cost).max(0.0)
        } else {
            0.0
        }
    }
}

/// How many times the demand the drives carry.
pub fn peak(fleet: &Fleet, demand: Demand, terms: Terms) -> f64 {
    peak::most(&Problem::new(fleet, demand, terms)).times
}

/// The plan for a demand. Where that is more than the drives carry, the plan for as much of it as they do.
pub fn solve(fleet: &Fleet, demand: Demand, terms: Terms) -> Plan {
    let problem = Problem::new(fleet, demand, terms);
    if problem.demand.reads <= 0.0 {
        let drives = vec![Part::default(); fleet.drives.len()];
        return Plan { peak: f64::INFINITY, drives, ..Plan::default() };
    }
    let most = peak::most(&problem);
    let cost: f64 = most.drives.iter().map(|drive| drive.cost).sum();
    if most.times < 1.0 || cost <= 0.0 {
        return covering(fleet, &most, 1.0, 0.0);
    }
    let least = least::least(&problem, most.times, cost);
    if least.shares.is_empty() {
        // So near the peak that the prices went out of bounds: what does the most does the demand as well.
        return covering(fleet, &most, 1.0 / most.times, least.bound);
    }
    let mut plan = Plan {
        peak: most.times,
        bound: least.bound * COST,
        read_price: least.prices.read * COST / RATE,
        write_price: least.prices.write * COST / RATE,
        ..Plan::default()
    };
    for (at, drive) in fleet.drives.iter().enumerate() {
        let shape = &fleet.shapes[drive.shape];
        let mut part = Part::default();
        for (answer, share) in &least.shares {
            let mix = least.answers[*answer].mix(shape, at);
            add(&mut part.rates, mix.rates, share * drive.scale);
            for (point, time) in mix.parts() {
                part.spend(usize::from(*point), time * share);
            }
        }
        plan.take(part);
    }
    plan
}

/// The plan in which each drive does part of what it does at the peak, as cheaply as it can.
fn covering(fleet: &Fleet, most: &peak::Most, part: f64, bound: f64) -> Plan {
    let mut plan = Plan { peak: most.times, bound: bound * COST, ..Plan::default() };
    for (drive, does) in fleet.drives.iter().zip(&most.drives) {
        let mut taken = Part::default();
        if drive.scale > 0.0 {
            let shape = &fleet.shapes[drive.shape];
            let by = part / drive.scale;
            let mix =
                shape.cover(Point { reads: does.reads * by, writes: does.writes * by, cost: 0.0 });
            add(&mut taken.rates, mix.rates, drive.scale);
            for (point, time) in mix.parts() {
                taken.spend(usize::from(*point), *time);
            }
        }
        plan.take(taken);
    }
    plan
}

/// In the units of users.
fn add(to: &mut Point, rates: Point, times: f64) {
    to.reads += rates.reads * times * RATE;
    to.writes += rates.writes * times * RATE;
    to.cost += rates.cost * times * COST;
}

impl Part {
    fn spend(&mut self, point: usize, time: f64) {
        match self.points.iter_mut().find(|spent| spent.0 == point) {
            Some(spent) => spent.1 += time,
            None => self.points.push((point, time)),
        }
    }
}

impl Plan {
    fn take(&mut self, part: Part) {
        self.rates.reads += part.rates.reads;
        self.rates.writes += part.rates.writes;
        self.rates.cost += part.rates.cost;
        self.drives.push(part);
    }
}

#[cfg(test)]
mod tests;
