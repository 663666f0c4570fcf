//! The solver against a textbook's simplex on small pools, against closed forms, and against what was computed
//! of the published drives by other means.

use super::*;
use crate::profile::{LoadModel, Profile, Slo};
use flash::Random;

/// A dense tableau with Bland's rule: `max gain . x` where `rows . x <= limits`, `x >= 0`, any sign of limits.
/// Slow and plain. `None` if nothing meets the limits.
fn oracle(gain: &[f64], rows: &[Vec<f64>], limits: &[f64]) -> Option<f64> {
    let (n, m) = (gain.len(), rows.len());
    // One more column lets rows be broken, at a price that no gain outweighs.
    let width = n + m + 2;
    let mut table = vec![vec![0.0; width]; m + 1];
    for (at, row) in rows.iter().enumerate() {
        table[at][..n].copy_from_slice(row);
        table[at][n + at] = 1.0;
        table[at][n + m] = if limits[at] < 0.0 { -1.0 } else { 0.0 };
        table[at][width - 1] = limits[at];
    }
    let mut basis: Vec<usize> = (n..n + m).collect();
    for (at, gain) in gain.iter().enumerate() {
        table[m][at] = -gain;
    }
    table[m][n + m] = 1e6;
    let worst = (0..m).min_by(|a, b| limits[*a].total_cmp(&limits[*b]))?;
    if limits[worst] < 0.0 {
        pivot(&mut table, &mut basis, worst, n + m);
    }
    for _ in 0..20_000 {
        let Some(enters) = (0..width - 1).find(|at| table[m][*at] < -1e-9) else {
            let broken = (0..m).any(|at| basis[at] == n + m && table[at][width - 1] > 1e-7);
            return (!broken).then_some(table[m][width - 1]);
        };
        let ratio = |at: &usize| table[*at][width - 1] / table[*at][enters];
        let leaves = (0..m)
            .filter(|at| table[*at][enters] > 1e-9)
            .min_by(|a, b| ratio(a).total_cmp(&ratio(b)).then(basis[*a].cmp(&basis[*b])))?;
        pivot(&mut table, &mut basis, leaves, enters);
    }
    panic!("the oracle turns in a circle");
}

fn pivot(table: &mut [Vec<f64>], basis: &mut [usize], leaves: usize, enters: usize) {
    let by = table[leaves][enters];
    for value in &mut table[leaves] {
        *value /= by;
    }
    let row = table[leaves].clone();
    for (_, other) in table.iter_mut().enumerate().filter(|(at, _)| *at != leaves) {
        let times = other[enters];
        for (value, from) in other.iter_mut().zip(&row) {
            *value -= times * from;
        }
    }
    basis[leaves] = enters;
}

/// A pool as its linear program: for each drive its points, then reads and writes that it is spared.
struct Program {
    points: Vec<Vec<Point>>,
    rows: Vec<Vec<f64>>,
    limits: Vec<f64>,
    columns: usize,
}

impl Program {
    /// With a last column for how many times the demand is met.
    fn new(points: &[Vec<Point>], drives: &[Drive], demand: Demand, terms: Terms) -> Self {
        let columns = points.iter().map(|points| points.len() + 2).sum::<usize>() + 1;
        let mut program =
            Self { points: points.to_vec(), rows: Vec::new(), limits: Vec::new(), columns };
        let copies = f64::from(terms.replicas);
        let all = |_: usize| true;
        let times = columns - 1;
        // Demand: times * demand - what is done <= 0.
        program.row(drives, all, [-1.0, 0.0], 0.0, (times, demand.reads));
        program.row(drives, all, [0.0, -1.0], 0.0, (times, demand.writes));
        for (at, drive) in drives.iter().enumerate() {
            let mine = |other: usize| other == at;
            program.time(at);
            if terms.is_local {
                let per = copies * demand.reads / demand.writes;
                program.row(drives, mine, [1.0, -per], 0.0, (times, 0.0));
            }
            for (rates, most) in [([1.0, 0.0], drive.reads_max), ([0.0, 1.0], drive.writes_max)] {
                if most.is_finite() {
                    program.row(drives, mine, rates, most, (times, 0.0));
                }
            }
            program.row(drives, mine, [-1.0, 0.0], 0.0, (times, 0.0));
            program.row(drives, mine, [0.0, -1.0], 0.0, (times, 0.0));
        }
        if terms.is_apart {
            for domain in 0..drives.len() {
                let of = |at: usize| drives[at].domain == domain;
                program.row(drives, of, [0.0, 1.0], 0.0, (times, -demand.writes / copies));
            }
        }
        program
    }

    fn time(&mut self, drive: usize) {
        let mut row = vec![0.0; self.columns];
        let mut at = 0;
        for (index, points) in self.points.iter().enumerate() {
            if index == drive {
                row[at..at + points.len()].fill(1.0);
            }
            at += points.len() + 2;
        }
        self.rows.push(row);
        self.limits.push(1.0);
    }

    fn row(
        &mut self,
        drives: &[Drive],
        of: impl Fn(usize) -> bool,
        rates: [f64; 2],
        limit: f64,
        more: (usize, f64),
    ) {
        let mut row = vec![0.0; self.columns];
        let mut at = 0;
        for (index, (points, drive)) in self.points.iter().zip(drives).enumerate() {
            let by = if of(index) { 1.0 } else { 0.0 };
            for (to, point) in row[at..].iter_mut().zip(points) {
                *to = by * drive.scale * (rates[0] * point.reads + rates[1] * point.writes);
            }
            row[at + points.len()] = -by * rates[0];
            row[at + points.len() + 1] = -by * rates[1];
            at += points.len() + 2;
        }
        row[more.0] = more.1;
        self.rows.push(row);
        self.limits.push(limit);
    }

    fn peak(&self) -> f64 {
        let mut gain = vec![0.0; self.columns];
        gain[self.columns - 1] = 1.0;
        oracle(&gain, &self.rows, &self.limits).expect("nothing is a plan, too")
    }

    /// Least cost of the demand itself.
    fn cost(&self, drives: &[Drive]) -> Option<f64> {
        let mut gain = Vec::new();
        for (points, drive) in self.points.iter().zip(drives) {
            gain.extend(points.iter().map(|point| -point.cost * drive.scale));
            gain.extend([0.0, 0.0]);
        }
        gain.push(0.0);
        let (mut rows, mut limits) = (self.rows.clone(), self.limits.clone());
        for sign in [1.0, -1.0] {
            let mut row = vec![0.0; self.columns];
            row[self.columns - 1] = sign;
            rows.push(row);
            limits.push(sign);
        }
        oracle(&gain, &rows, &limits).map(|gain| -gain)
    }
}

/// A few drives with a few points near 1 M a second and 1 ms, in units that the oracle can reckon with.
fn small(random: &mut Random) -> (Vec<Vec<Point>>, Vec<Drive>) {
    let count = 2 + random.below(4) as usize;
    let mut points = Vec::new();
    let mut drives = Vec::new();
    for at in 0..count {
        let mine = (0..2 + random.below(5)).map(|_| {
            let (reads, writes) = match random.below(4) {
                0 => (random.fraction(), 0.0),
                1 => (0.0, random.fraction()),
                _ => (random.fraction() * 0.7, random.fraction() * 0.7),
            };
            let cost = (reads + writes) * (0.1 + random.fraction());
            Point { reads, writes, cost }
        });
        points.push(mine.collect::<Vec<_>>());
        let cap = |random: &mut Random, most: f64| {
            if random.chance(0.25) { random.fraction() * most } else { f64::INFINITY }
        };
        drives.push(Drive {
            shape: at,
            scale: 0.5 + random.fraction(),
            domain: random.below(count as u64) as usize,
            reads_max: cap(random, 0.8),
            writes_max: cap(random, 0.5),
        });
    }
    (points, drives)
}

fn fleet(points: &[Vec<Point>], drives: &[Drive]) -> Fleet {
    let millions = |points: &Vec<Point>| {
        let of = |p: &Point| Point {
            reads: p.reads * RATE,
            writes: p.writes * RATE,
            cost: p.cost * COST,
        };
        Shape::new(&points.iter().map(of).collect::<Vec<_>>())
    };
    let capped = |drive: &Drive| Drive {
        reads_max: drive.reads_max * RATE,
        writes_max: drive.writes_max * RATE,
        ..*drive
    };
    Fleet {
        shapes: points.iter().map(millions).collect(),
        drives: drives.iter().map(capped).collect(),
        domains: drives.len(),
    }
}

/// What must hold of every plan; `demand` is what it is for.
fn check(fleet: &Fleet, demand: Demand, terms: Terms, plan: &Plan, seed: u64) {
    let met = plan.peak.min(1.0);
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
    let sum = |of: fn(&Point) -> f64| plan.drives.iter().map(|part| of(&part.rates)).sum::<f64>();
    let (reads, writes) = (sum(|rates| rates.reads), sum(|rates| rates.writes));
    assert!(reads >= demand.reads * met * (1.0 - 1e-6), "seed {seed}: {reads} of {demand:?}");
    assert!(writes >= demand.writes * met * (1.0 - 1e-6), "seed {seed}: {writes} of {demand:?}");
    assert!(near(plan.rates.cost, sum(|rates| rates.cost)), "seed {seed}");
    assert!(plan.bound <= plan.rates.cost * (1.0 + 1e-9), "seed {seed}: the bound is none");
    let mut domains = vec![0.0; fleet.domains];
    for (part, drive) in plan.drives.iter().zip(&fleet.drives) {
        let shape = &fleet.shapes[drive.shape];
        let time: f64 = part.points.iter().map(|point| point.1).sum();
        assert!(
            part.points.iter().all(|point| point.1 >= 0.0) && time <= 1.0 + 1e-9,
            "seed {seed}"
        );
        let done = |of: fn(&Point) -> f64| {
            part.points.iter().map(|(at, time)| of(&shape.point(*at)) * time).sum::<f64>()
                * drive.scale
        };
        let rates = part.rates;
        assert!(rates.reads <= done(|p| p.reads) * RATE * (1.0 + 1e-9) + 1e-3, "seed {seed}");
        assert!(rates.writes <= done(|p| p.writes) * RATE * (1.0 + 1e-9) + 1e-3, "seed {seed}");
        assert!(rates.reads >= 0.0 && rates.writes >= 0.0, "seed {seed}: {rates:?}");
        assert!(rates.reads <= drive.reads_max * (1.0 + 1e-6), "seed {seed}");
        assert!(rates.writes <= drive.writes_max * (1.0 + 1e-6), "seed {seed}");
        if terms.is_local {
            let per = f64::from(terms.replicas) * demand.reads / demand.writes;
            assert!(
                rates.reads <= per * rates.writes * (1.0 + 1e-6) + 1.0,
                "seed {seed}: {rates:?}"
            );
        }
        domains[drive.domain] += rates.writes;
    }
    if terms.is_apart {
        let most = demand.writes * met / f64::from(terms.replicas);
        let full = domains.iter().copied().fold(0.0, f64::max);
        assert!(full <= most * (1.0 + 1e-5), "seed {seed}: {full} of {most} in one domain");
    }
}

fn terms(random: &mut Random) -> Terms {
    Terms {
        replicas: 2 + random.below(2) as u32,
        is_local: random.chance(0.5),
        is_apart: random.chance(0.5),
        gap_max: 1e-7,
    }
}

#[test]
fn plans_and_peaks_of_small_pools_are_those_of_a_textbook() {
    let (mut met, mut capped) = (0, 0);
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let (points, drives) = small(&mut random);
        let terms = terms(&mut random);
        let unit = Demand { reads: 0.05 + random.fraction(), writes: 0.05 + random.fraction() };
        let fleet = fleet(&points, &drives);
        let scaled = |by: f64| Demand { reads: unit.reads * by, writes: unit.writes * by };
        let most = Program::new(&points, &drives, unit, terms).peak();
        let found = peak(&fleet, scaled(RATE), terms);
        assert!(
            (found - most).abs() <= 2e-6 * (1e-3 + most),
            "seed {seed}: {found} for {most} {terms:?}"
        );
        if most < 1e-3 {
            continue;
        }
        let load = [0.3, 0.8, 0.97, 1.3][random.below(4) as usize];
        let asked = scaled(most * load);
        let plan = solve(&fleet, scaled(most * load * RATE), terms);
        check(&fleet, scaled(most * load * RATE), terms, &plan, seed);
        let least = Program::new(&points, &drives, asked, terms).cost(&drives);
        assert_eq!(plan.is_feasible(), load < 1.0, "seed {seed}");
        assert_eq!(least.is_some(), load < 1.0, "seed {seed}: the oracle at {load}");
        if let Some(least) = least {
            let cost = plan.rates.cost / COST;
            assert!(
                (cost - least).abs() <= 1e-5 * least,
                "seed {seed}: {cost} for {least} {terms:?}"
            );
            assert!(
                plan.bound / COST <= least * (1.0 + 1e-6),
                "seed {seed}: {} bounds {least}, {cost} found, {terms:?} {load}",
                plan.bound / COST
            );
            assert!(plan.gap() <= 1e-5, "seed {seed}: a gap of {}", plan.gap());
            met += 1;
            capped += usize::from(terms.is_apart);
        }
    }
    assert!(met > 800 && capped > 300, "{met} and {capped} plans were compared");
}

/// The published drives that were measured at all nine shares of writes.
fn published() -> Fleet {
    let profiles = Profile::names().map(|name| Profile::builtin(name).expect("it was just named"));
    let whole: Vec<Profile> = profiles.filter(|profile| profile.curves.len() == 9).collect();
    let mut fleet = Fleet { domains: whole.len(), ..Fleet::default() };
    for (at, profile) in whole.iter().enumerate() {
        let model = LoadModel::new(profile, Slo::default(), 1.0).expect("it is whole");
        fleet.shapes.push(Shape::new(&model.points()));
        fleet.drives.push(drive(at, at));
    }
    assert_eq!(fleet.drives.len(), 7);
    fleet
}

fn drive(shape: usize, domain: usize) -> Drive {
    Drive { shape, scale: 1.0, domain, reads_max: f64::INFINITY, writes_max: f64::INFINITY }
}

#[test]
fn seven_published_drives_carry_what_was_computed_by_other_means() {
    // The bound with locality and without: from a search over the price of a read, on peaks alone. Profiles and
    // definition are the same, so only the digits that were noted differ.
    let fleet = published();
    for (writes, free, local) in [(0.1, 4708, 4562), (0.3, 3228, 3142), (0.5, 2363, 2333)] {
        let demand = Demand::of_clients((1.0 - writes) * 1e6, writes * 1e6, 2, 1.0);
        let at = |is_local| {
            peak(&fleet, demand, Terms { is_local, is_apart: false, ..Terms::default() })
        };
        let (free, local) = (f64::from(free) / 1e3, f64::from(local) / 1e3);
        assert!((at(false) - free).abs() < 6e-4, "{} without locality at {writes}", at(false));
        assert!((at(true) - local).abs() < 6e-4, "{} with locality at {writes}", at(true));
        let apart = peak(&fleet, demand, Terms::default());
        assert!(apart <= at(true) * (1.0 + 1e-9), "domains add a bound");
    }
}

#[test]
fn plans_of_published_drives_are_within_a_thousandth_of_the_best_at_every_load() {
    let fleet = published();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let writes = 0.02 + 0.9 * random.fraction();
        let terms = Terms {
            is_local: random.chance(0.5),
            is_apart: random.chance(0.5),
            ..Terms::default()
        };
        let demand = Demand::of_clients((1.0 - writes) * 1e6, writes * 1e6, 2, 1.2);
        let most = peak(&fleet, demand, terms);
        let mut before = 0.0;
        for load in [0.001, 0.2, 0.5, 0.8, 0.95, 0.99, 0.9999, 1.0] {
            let by = most * load * (1.0 - 1e-9);
            let asked = Demand { reads: demand.reads * by, writes: demand.writes * by };
            let plan = solve(&fleet, asked, terms);
            check(&fleet, asked, terms, &plan, seed);
            assert!(plan.is_feasible(), "seed {seed}: {load} of the peak");
            assert!(load > 0.999 || plan.gap() <= 1e-3, "seed {seed} at {load}: {}", plan.gap());
            assert!(plan.rates.cost >= before * (1.0 - 1e-3), "seed {seed}: more work costs more");
            before = plan.rates.cost;
        }
        let much = Demand { reads: demand.reads * most * 1.5, writes: demand.writes * most * 1.5 };
        let plan = solve(&fleet, much, terms);
        check(&fleet, much, terms, &plan, seed);
        assert!((plan.peak - 1.0 / 1.5).abs() < 1e-5, "seed {seed}: {}", plan.peak);
    }
}

#[test]
fn the_order_of_drives_changes_no_plan() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let (points, drives) = small(&mut random);
        let terms = terms(&mut random);
        let plain = fleet(&points, &drives);
        let demand = Demand { reads: 5e5, writes: 3e5 };
        let by = 0.7 * peak(&plain, demand, terms);
        if by < 1e-3 {
            continue;
        }
        let asked = Demand { reads: demand.reads * by, writes: demand.writes * by };
        let mut turned = plain.clone();
        turned.drives.reverse();
        let (a, b) = (solve(&plain, asked, terms), solve(&turned, asked, terms));
        assert!((a.peak - b.peak).abs() < 1e-6 * a.peak, "seed {seed}: {} {}", a.peak, b.peak);
        let (x, y) = (a.rates.cost, b.rates.cost);
        assert!((x - y).abs() < 1e-5 * x, "seed {seed}: {x} and {y}");
    }
}

#[test]
fn equal_drives_that_suffer_from_mixing_are_parted_as_a_formula_says() {
    // Reads alone 1 M, writes alone 0.4 M, nothing of use between: with reads and writes of all drives in the
    // ratio a : b, n drives carry n / (a / 1 M + b / 0.4 M) of them.
    let points = [
        Point { reads: 1e6, writes: 0.0, cost: 1e8 },
        Point { reads: 0.0, writes: 4e5, cost: 4e7 },
    ];
    let mut fleet = Fleet { domains: 10, ..Fleet::default() };
    fleet.shapes.push(Shape::new(&points));
    fleet.drives = (0..10).map(|at| drive(0, at)).collect();
    for (reads, writes) in [(0.9, 0.2), (0.7, 0.6), (0.5, 1.0)] {
        let demand = Demand { reads: reads * 1e6, writes: writes * 1e6 };
        let found = peak(&fleet, demand, Terms::default());
        let formula = 10.0 / (reads + writes / 0.4);
        assert!((found - formula).abs() < 1e-6 * formula, "{found} for {formula}");
        // Both cost 100 us a request, so the least cost is their number times that.
        let plan = solve(&fleet, demand, Terms::default());
        let least = 100.0 * (demand.reads + demand.writes);
        assert!((plan.rates.cost - least).abs() < 1e-3 * least && plan.gap() < 1e-3);
    }
}

/// One of them is asked for all that are alike; where each has a shape of its own it is asked itself.
#[test]
fn drives_that_are_alike_do_what_each_would_do_alone() {
    let mut met = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut alike = published();
        let kinds = alike.shapes.len() as u64;
        alike.domains = 2 + random.below(6) as usize;
        alike.drives.clear();
        for _ in 0..4 + random.below(40) {
            let domain = random.below(alike.domains as u64) as usize;
            let of = drive(random.below(kinds) as usize, domain);
            let writes_max = if random.chance(0.2) { 5e4 } else { f64::INFINITY };
            alike.drives.push(Drive { writes_max, ..of });
        }
        let mut alone = alike.clone();
        alone.shapes.clear();
        for (at, drive) in alone.drives.iter_mut().enumerate() {
            alone.shapes.push(alike.shapes[drive.shape].clone());
            drive.shape = at;
        }
        let by = alike.drives.len() as f64;
        let demand = Demand {
            reads: by * 3e5 * random.fraction(),
            writes: by * 1e5 * (0.01 + random.fraction()),
        };
        let terms = terms(&mut random);
        let (plan, other) = (solve(&alike, demand, terms), solve(&alone, demand, terms));
        assert!((plan.peak - other.peak).abs() <= 1e-9 * other.peak, "seed {seed}");
        let (cost, least) = (plan.rates.cost, other.rates.cost);
        assert!(
            cost >= other.bound * (1.0 - 1e-9) && least >= plan.bound * (1.0 - 1e-9),
            "seed {seed}"
        );
        assert!((cost - least).abs() <= 2.0 * terms.gap_max.max(1e-9) * least, "seed {seed}");
        check(&alike, demand, terms, &plan, seed);
        met += usize::from(plan.is_feasible());
    }
    assert!(met > 50, "{met} demands were met");
}

#[test]
fn a_demand_of_one_kind_or_of_none_has_a_plan() {
    let fleet = published();
    let plan = solve(&fleet, Demand { reads: 1e6, writes: 0.0 }, Terms::default());
    assert!(plan.is_feasible() && plan.rates.writes > 0.0, "every plan has weights for both");
    let plan = solve(&fleet, Demand { reads: 0.0, writes: 1e6 }, Terms::default());
    assert!(plan.is_feasible() && plan.rates.reads > 0.0);
    let idle = solve(&fleet, Demand::default(), Terms::default());
    assert!(idle.is_feasible() && idle.drives.len() == 7);
    let none = solve(&Fleet::default(), Demand { reads: 1.0, writes: 1.0 }, Terms::default());
    assert!(!none.is_feasible() && none.drives.is_empty());
}

#[test]
fn garbage_collection_adds_reads_and_writes_of_its_own() {
    let demand = Demand::of_clients(900.0, 100.0, 3, 1.5);
    assert_eq!(demand, Demand { reads: 950.0, writes: 450.0 });
}

#[test]
fn points_that_a_mix_of_others_covers_are_left_out_and_change_no_answer() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let points: Vec<Point> = (0..60)
            .map(|_| {
                let (load, share) = (random.fraction(), [0.0, 0.3, 1.0][random.below(3) as usize]);
                let us = 0.1 + load * load + 0.2 * random.fraction();
                let cost = load * us * COST;
                Point { reads: load * (1.0 - share) * RATE, writes: load * share * RATE, cost }
            })
            .collect();
        let shape = Shape::new(&points);
        assert!(shape.len() < points.len(), "seed {seed}");
        for _ in 0..50 {
            let (read, write) = (random.fraction() * 4.0, random.fraction() * 4.0);
            let all =
                points.iter().map(|p| (read * p.reads + write * p.writes) / RATE - p.cost / COST);
            let most = all.fold(0.0, f64::max);
            let (kept, _) = shape.best(read, write);
            assert!((kept - most).abs() <= 1e-8, "seed {seed}: {kept} for {most}");
        }
    }
}
