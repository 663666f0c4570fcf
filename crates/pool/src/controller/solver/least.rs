//! The least total latency at a demand.
//!
//! Put a price on each read and each write: then every drive can choose for itself, and what the demand is
//! worth less what the drives gain is a bound that no plan can undercut. The bound is a concave function of the
//! prices; its highest point is the least cost. The search keeps the part of the plane of prices in which that
//! lies, asks at its centre of gravity, and throws away the side on which the bound falls; every other time it
//! asks at the prices of the best mix so far. The plan is the cheapest mix of the answers that meets the demand
//! (of at most three), so its cost less the best bound is what it can be away from the best plan, whatever the
//! search did: the gap.
//!
//! Domains that get more writes than they may are given a price of their own; then the prices are searched for
//! between the best ones and those of the mix.

use super::answer::{Answer, Asking, Prices};
use super::cell::Cell;
use super::fleet::Problem;
use super::mixing::{DOMAINS_FULL_MAX, Mixing};

/// What was found.
pub(super) struct Least {
    pub answers: Vec<Answer>,
    /// Which answers, and how much of each; empty if no mix met the demand.
    pub shares: Vec<(usize, f64)>,
    /// No plan costs less.
    pub bound: f64,
    /// Prices at the bound.
    pub prices: Prices,
}

/// Answers after which the search ends with the gap that it has.
const TURNS_MAX: usize = 120;

struct Search<'a> {
    asking: Asking<'a>,
    answers: Vec<Answer>,
    bound: f64,
    prices: Prices,
}

impl Search<'_> {
    /// Asks, and says how high the bound is there.
    fn ask(&mut self, prices: Prices) -> f64 {
        let answer = self.asking.ask(&prices);
        let demand = self.asking.problem().demand;
        let caps = self.asking.problem().domain_writes_max;
        let dearer: f64 =
            prices.domains.iter().filter(|price| **price > 0.0).map(|p| p * caps).sum();
        let bound =
            prices.read * demand.reads + prices.write * demand.writes - dearer - answer.gain;
        if bound > self.bound {
            (self.bound, self.prices) = (bound, prices);
        }
        self.answers.push(answer);
        bound
    }
}

/// See the head of the file. The drives carry `times` the demand, and that costs at most `cost`.
pub(super) fn least(problem: &Problem<'_>, times: f64, cost: f64) -> Least {
    // The bound at the best prices is at most the least cost, and grows with the demand at the rate of its worth:
    // worth * (times - 1) <= cost. Where that says little the prices go as far as this.
    let worth = 2.0 * cost / (times - 1.0).max(1e-4);
    let search = Search {
        asking: Asking::new(*problem),
        answers: Vec::new(),
        bound: 0.0,
        prices: Prices::default(),
    };
    let (mut search, mut mixing) = in_the_plane(search, problem, worth, cost);
    if problem.domain_writes_max.is_finite() {
        mixing = with_domains(&mut search, problem, mixing, worth, cost);
    }
    let is_met = mixing.cost().is_some();
    let shares = if is_met { mixing.shares().collect() } else { Vec::new() };
    Least { answers: search.answers, shares, bound: search.bound, prices: search.prices }
}

fn in_the_plane<'a>(
    mut search: Search<'a>,
    problem: &Problem<'_>,
    worth: f64,
    cost: f64,
) -> (Search<'a>, Mixing) {
    let demand = problem.demand;
    let mut cell = Cell::new(worth / demand.reads, worth / demand.writes);
    let mut mixing = Mixing::new(problem, worth, cost, &[]);
    for turn in 0..TURNS_MAX {
        let at = if turn % 2 == 0 { cell.centre() } else { None };
        let prices = match at {
            Some([read, write]) => Prices { read, write, ..Prices::default() },
            None => mixing.prices(0),
        };
        let at = [prices.read, prices.write];
        let bound = search.ask(prices);
        let answer = search.answers.last().expect("it was just given");
        let slope = [demand.reads - answer.rates.reads, demand.writes - answer.rates.writes];
        cell.keep(at, slope, (search.bound - bound).max(0.0));
        mixing.add(answer, |_| 0.0);
        mixing.solve();
        if is_close(mixing.cost(), search.bound, problem.gap_max()) {
            break;
        }
    }
    (search, mixing)
}

fn is_close(cost: Option<f64>, bound: f64, gap_max: f64) -> bool {
    cost.is_some_and(|cost| cost - bound <= gap_max * cost)
}

/// Part of the way from the best prices to those of the mix, at which is asked next.
const TOWARDS: f64 = 0.5;

/// What meeting the demand is worth says how dear writes of a domain can be; where that is too little the
/// demand is not met, and it is made this many times as much, so often.
const WORTH_TIMES: f64 = 32.0;
const WORTH_TRIES: usize = 5;

/// Domains that have more than they may get a price, until none has.
fn with_domains(
    search: &mut Search<'_>,
    problem: &Problem<'_>,
    mut mixing: Mixing,
    mut worth: f64,
    cost: f64,
) -> Mixing {
    let mut full: Vec<usize> = Vec::new();
    loop {
        let writes = domain_writes(problem, search, &mixing);
        let most = problem.domain_writes_max * (1.0 + 1e-6);
        let over = |domain: &usize| writes[*domain] > most && !full.contains(domain);
        let more: Vec<usize> = (0..writes.len()).filter(over).collect();
        if more.is_empty() {
            return mixing;
        }
        full.extend(more);
        for _ in 0..WORTH_TRIES {
            mixing = Mixing::new(problem, worth, cost, &full[..full.len().min(DOMAINS_FULL_MAX)]);
            among_full(search, problem, &mut mixing);
            if mixing.cost().is_some() {
                break;
            }
            worth *= WORTH_TIMES;
        }
        if full.len() > DOMAINS_FULL_MAX {
            return mixing;
        }
    }
}

/// Searches with a price for each full domain.
fn among_full(search: &mut Search<'_>, problem: &Problem<'_>, mixing: &mut Mixing) {
    for answer in &search.answers {
        mixing.add(answer, |domain| writes_in(problem, answer, domain));
    }
    mixing.solve();
    for turn in 0..TURNS_MAX {
        if is_close(mixing.cost(), search.bound, problem.gap_max()) {
            break;
        }
        let goal = mixing.prices(problem.fleet.domains);
        // Now and then at the prices of the mix itself, or the search may never get there.
        let towards = if turn % 4 == 3 { 1.0 } else { TOWARDS };
        search.ask(between(&search.prices, &goal, towards));
        let answer = search.answers.last().expect("it was just given");
        mixing.add(answer, |domain| writes_in(problem, answer, domain));
        mixing.solve();
    }
}

fn between(from: &Prices, to: &Prices, part: f64) -> Prices {
    let step = |a: f64, b: f64| a + part * (b - a);
    let domains = to.domains.iter().enumerate();
    Prices {
        read: step(from.read, to.read),
        write: step(from.write, to.write),
        domains: domains
            .map(|(at, to)| step(from.domains.get(at).copied().unwrap_or(0.0), *to))
            .collect(),
    }
}

/// Writes of the mix by domain.
fn domain_writes(problem: &Problem<'_>, search: &Search<'_>, mixing: &Mixing) -> Vec<f64> {
    let mut writes = vec![0.0; problem.fleet.domains];
    for (at, share) in mixing.shares() {
        for (index, drive) in problem.fleet.drives.iter().enumerate() {
            let mix = search.answers[at].mix(&problem.fleet.shapes[drive.shape], index);
            writes[drive.domain] += mix.rates.writes * drive.scale * share;
        }
    }
    writes
}

fn writes_in(problem: &Problem<'_>, answer: &Answer, domain: usize) -> f64 {
    let drives = problem.fleet.drives.iter().enumerate();
    drives
        .filter(|(_, drive)| drive.domain == domain)
        .map(|(at, drive)| {
            answer.mix(&problem.fleet.shapes[drive.shape], at).rates.writes * drive.scale
        })
        .sum()
}
