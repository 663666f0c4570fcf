//! How long the solver takes and how exact it is: `cargo run --release -p pool --example solver`. A whole turn of the
//! controller is measured by `weir bench pool-turn`.
//!
//! Drives are made of the seven published profiles that have all shares of writes; each has loads and
//! latencies of its own, so that no two share a shape. Times are what the solver takes of a processor, which on
//! a machine that does other things is less than what passes on the wall: the mean of many runs for each demand,
//! of all demands the median and the slowest.

use flash::Random;
use pool::controller::solver::{Demand, Drive, Fleet, Shape, Terms, peak, solve};
use pool::profile::{LoadModel, Point, Profile, Slo};

const WRITES: [f64; 3] = [0.1, 0.3, 0.5];
const LOADS: [f64; 3] = [0.5, 0.9, 0.99];
/// Of a pool of one drive; of a larger one fewer.
const RUNS_OF_ALL: usize = 30_000;
const GOALS: [(usize, f64, f64); 3] = [(10, 5.0, 1e-3), (1_000, 5.0, 1e-3), (10_000, 100.0, 1e-3)];

fn main() {
    println!(
        "{:>7} {:>8} {:>10} {:14} {:>9} {:>9} {:>9}  goal",
        "drives", "points", "prune ms", "terms", "ms", "ms most", "gap most"
    );
    for (count, ms_goal, gap_goal) in GOALS {
        let (fleet, prune) = timed(1, || fleet(count, 7));
        let points: usize = fleet.shapes.iter().map(Shape::len).sum();
        let free = Terms { is_local: false, is_apart: false, ..Terms::default() };
        let local = Terms { is_apart: false, ..Terms::default() };
        for (name, terms) in [("none", free), ("local", local), ("local, apart", Terms::default())]
        {
            let (mut times, mut gap) = (Vec::new(), 0.0f64);
            for writes in WRITES {
                let mix = Demand::of_clients(1.0 - writes, writes, terms.replicas, 1.0);
                let most = peak(&fleet, mix, terms);
                for load in LOADS {
                    let at = |rate: f64| rate * most * load;
                    let demand = Demand { reads: at(mix.reads), writes: at(mix.writes) };
                    let runs = (RUNS_OF_ALL / count).max(3);
                    let (plan, ms) = timed(runs, || solve(&fleet, demand, terms));
                    assert!(plan.is_feasible(), "{writes} {load}");
                    gap = gap.max(plan.gap());
                    times.push(ms);
                }
            }
            times.sort_by(f64::total_cmp);
            let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
            let is_met = most <= ms_goal && gap <= gap_goal;
            let told = if is_met { "met" } else { "missed" };
            println!(
                "{count:>7} {points:>8} {prune:>10.1} {name:14} {median:>9.2} {most:>9.2} {gap:>9.1e}  \
                 {told} (<= {ms_goal} ms, <= {gap_goal:.0e})"
            );
        }
    }
}

/// What `work` gives, and milliseconds that it takes when it is run so many times; see the head of the file.
fn timed<T>(runs: usize, mut work: impl FnMut() -> T) -> (T, f64) {
    #[expect(clippy::disallowed_types, reason = "an example is a driver: it has a clock")]
    let begun = std::time::Instant::now();
    let before = processor_ns();
    let mut made = work();
    for _ in 1..runs {
        made = work();
    }
    let wall = begun.elapsed().as_secs_f64() * 1e9;
    let spent = processor_ns().zip(before).map(|(after, before)| (after - before) as f64);
    (made, spent.unwrap_or(wall) / 1e6 / runs as f64)
}

/// What this thread had of a processor, where the system tells. It counts in ticks, so short work is repeated.
fn processor_ns() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    told.split_whitespace().next()?.parse().ok()
}

/// Drives of which each has its own loads and latencies, twenty to a failure domain.
fn fleet(count: usize, seed: u64) -> Fleet {
    let models: Vec<LoadModel> = Profile::names()
        .map(|name| Profile::builtin(name).expect("its name was just told"))
        .filter(|profile| profile.curves.len() == 9)
        .map(|profile| LoadModel::new(&profile, Slo::default(), 1.0).expect("it is whole"))
        .collect();
    let mut random = Random::new(seed);
    let mut fleet = Fleet { domains: count.div_ceil(20).max(count.min(5)), ..Fleet::default() };
    for at in 0..count {
        let points = models[random.below(models.len() as u64) as usize].points();
        let (load, late) = (0.8 + 0.4 * random.fraction(), 0.8 + 0.4 * random.fraction());
        let points: Vec<Point> = points
            .iter()
            .map(|p| {
                let noise = late * (0.95 + 0.1 * random.fraction());
                let cost = p.cost * load * noise;
                Point { reads: p.reads * load, writes: p.writes * load, cost }
            })
            .collect();
        fleet.shapes.push(Shape::new(&points));
        let (reads_max, writes_max) = (f64::INFINITY, f64::INFINITY);
        let domain = at % fleet.domains;
        fleet.drives.push(Drive { shape: at, scale: 1.0, domain, reads_max, writes_max });
    }
    fleet
}
