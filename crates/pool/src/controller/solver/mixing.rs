//! The cheapest mix of answers of all drives that meets the demand, and the prices at which no mix of these
//! answers is cheaper: a linear program with a row for reads, one for writes, one for the time, and one for
//! each domain that is full.

use super::answer::{Answer, Prices};
use super::fleet::Problem;
use super::simplex::Simplex;

/// Domains that can be full at once: of R replicas each, at most R, and some that were for a while.
pub(super) const DOMAINS_FULL_MAX: usize = 8;
const ROWS: usize = 4 + DOMAINS_FULL_MAX;

/// The program. Column 0 is the part of the demand that is met, the others are answers.
pub(super) struct Mixing {
    simplex: Simplex<ROWS>,
    columns: Vec<(f64, [f64; ROWS])>,
    /// What meeting the demand is worth, in units of `cost`.
    worth: f64,
    cost: f64,
    reads: f64,
    writes: f64,
    full: Vec<usize>,
    most: f64,
}

/// Far more columns come in than that only if the program turns in a circle.
const TURNS_MAX: usize = 200;

impl Mixing {
    /// Meeting the demand is worth `worth`; costs are near `cost`.
    pub fn new(problem: &Problem<'_>, worth: f64, cost: f64, full: &[usize]) -> Self {
        let mut limits = [0.0; ROWS];
        limits[2] = 1.0;
        limits[3] = 1.0;
        limits[4..].fill(1.0);
        let (reads, writes) = (problem.demand.reads, problem.demand.writes);
        let mut met = [0.0; ROWS];
        met[..3].fill(1.0);
        let worth = worth / cost;
        let mut simplex = Simplex::new(limits);
        simplex.enter(0, worth, &met);
        let (full, most) = (full.to_vec(), problem.domain_writes_max);
        Self { simplex, columns: vec![(worth, met)], worth, cost, reads, writes, full, most }
    }

    /// One more answer; what it does in the domains that are full.
    pub fn add(&mut self, answer: &Answer, domain_writes: impl Fn(usize) -> f64) {
        let mut rows = [0.0; ROWS];
        rows[0] = -answer.rates.reads / self.reads;
        rows[1] = -answer.rates.writes / self.writes;
        rows[3] = 1.0;
        for (row, domain) in rows[4..].iter_mut().zip(&self.full) {
            *row = domain_writes(*domain) / self.most;
        }
        self.columns.push((-answer.rates.cost / self.cost, rows));
    }

    /// Mixes anew.
    pub fn solve(&mut self) {
        for _ in 0..TURNS_MAX {
            let duals = self.simplex.duals();
            if self.simplex.enter_slack(&duals, 1e-13) {
                continue;
            }
            let reduced = |column: &(f64, [f64; ROWS])| -> f64 {
                column.0 - column.1.iter().zip(&duals).map(|(a, b)| a * b).sum::<f64>()
            };
            let all = self.columns.iter().enumerate().map(|(id, column)| (reduced(column), id));
            let Some((gain, id)) = all.max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            let (own, rows) = self.columns[id];
            if gain <= 1e-12 * self.worth.max(1.0) || !self.simplex.enter(id, own, &rows) {
                break;
            }
        }
    }

    /// What the mix costs; `None` while it does not meet the demand.
    pub fn cost(&self) -> Option<f64> {
        let is_met = self.simplex.value(0) >= 1.0 - 1e-9;
        let cost = self.shares().map(|(at, share)| -self.columns[at + 1].0 * share).sum::<f64>();
        is_met.then_some(cost * self.cost)
    }

    /// Which answers, in the order they came, and how much of each.
    pub fn shares(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let answers = 1..self.columns.len();
        self.simplex
            .parts()
            .filter(move |part| answers.contains(&part.0) && part.1 > 0.0)
            .map(|(id, share)| (id - 1, share))
    }

    /// The prices at which no mix of the answers so far is cheaper.
    pub fn prices(&self, domains: usize) -> Prices {
        let duals = self.simplex.duals().map(|dual| dual.max(0.0) * self.cost);
        let mut by_domain = vec![0.0; if self.full.is_empty() { 0 } else { domains }];
        for (dual, domain) in duals[4..].iter().zip(&self.full) {
            by_domain[*domain] = dual / self.most;
        }
        let (read, write) = (duals[0] / self.reads, duals[1] / self.writes);
        Prices { read, write, domains: by_domain }
    }
}
