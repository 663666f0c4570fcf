//! Prints which three of the seven drives of `pool-unlike` come nearest to Sandook's worked example of segregation,
//! three SSDs that carry 1.2 M/s mixed and 2.2 M/s segregated (0.8 + 0.8 + 0.6), by their profiles alone, and what
//! the solver says of these when blocks lie where they lie:
//! `cargo run -p lab --example pool_three`
//!
//! All 35 choices are tried, with one copy and with two, 1 to 60 % of writes, P90 and P99 below 1 ms. Without garbage
//! collection: what a volume carries is less.

use pool::controller::solver::{Demand, Drive, Fleet, Shape, Terms, peak};
use pool::profile::{LoadModel, Profile, Quantile, Slo};

/// The source's figures, requests a second.
const MIXED: f64 = 1.2e6;
const SEGREGATED: f64 = 2.2e6;
/// And of one drive: it reads as much, or writes as much.
const READER: f64 = 0.8e6;
const WRITER: f64 = 0.6e6;

/// How the three are used when they are mixed.
const MIXES: [&str; 2] = ["equal", "by weights"];
/// And when they are segregated.
const SEGREGATIONS: [&str; 3] =
    ["one mode each", "a plan, blocks anywhere", "a plan, blocks where written"];

/// What three drives carry of clients' requests at one share of writes.
struct Carried {
    names: [String; 3],
    copies: u32,
    writes: u32,
    mixed: [f64; 2],
    segregated: [f64; 3],
}

impl Carried {
    fn new(names: [String; 3], models: [&LoadModel; 3], copies: u32, writes: u32) -> Self {
        let share = f64::from(writes) / 100.0;
        let demand = Demand::of_clients(1.0 - share, share, copies, 1.0);
        let per_request = demand.reads + demand.writes;
        let percent = 100.0 * demand.writes / per_request;
        let peaks = models.map(|model| model.peak(percent));
        let least = peaks.iter().copied().fold(f64::INFINITY, f64::min);
        let mixed = [3.0 * least, peaks.iter().sum()].map(|all| all / per_request);
        let plan = |is_local| {
            let is_apart = is_local && copies > 1;
            let terms = Terms { replicas: copies, is_local, is_apart, ..Terms::default() };
            // The solver's units are millions a second: a demand of one would be lost in rounding.
            let asked = Demand { reads: demand.reads * 1e6, writes: demand.writes * 1e6 };
            peak(&fleet(models), asked, terms) * 1e6
        };
        let segregated = [one_mode_each(models, demand), plan(false), plan(true)];
        Self { names, copies, writes, mixed, segregated }
    }

    /// How far the worse of two figures is from the source's, as a part.
    fn off(&self, mix: usize, segregation: usize) -> f64 {
        let mixed = (self.mixed[mix] / MIXED - 1.0).abs();
        mixed.max((self.segregated[segregation] / SEGREGATED - 1.0).abs())
    }
}

/// The best of the six ways to have each drive only read or only write.
fn one_mode_each(models: [&LoadModel; 3], demand: Demand) -> f64 {
    let times = |writers: u32| {
        let peak_of = |does_write: bool| {
            let percent = if does_write { 100.0 } else { 0.0 };
            let is_one = |at: usize| (writers >> at & 1 == 1) == does_write;
            (0..3).filter(|at| is_one(*at)).map(|at| models[at].peak(percent)).sum::<f64>()
        };
        (peak_of(false) / demand.reads).min(peak_of(true) / demand.writes)
    };
    (1..7).map(times).fold(0.0, f64::max)
}

fn fleet(models: [&LoadModel; 3]) -> Fleet {
    let mut fleet = Fleet { domains: 3, ..Fleet::default() };
    for (at, model) in models.iter().enumerate() {
        fleet.shapes.push(Shape::new(&model.points()));
        let most = f64::INFINITY;
        let drive = Drive { shape: at, scale: 1.0, domain: at, reads_max: most, writes_max: most };
        fleet.drives.push(drive);
    }
    fleet
}

/// All choices of three, of all shares and numbers of copies.
fn choices(models: &[(String, LoadModel)]) -> Vec<Carried> {
    let mut all = Vec::new();
    for a in 0..models.len() {
        for b in a + 1..models.len() {
            for c in b + 1..models.len() {
                let three = [a, b, c].map(|at| &models[at]);
                for (copies, writes) in
                    [1, 2].into_iter().flat_map(|n| (1..=60).map(move |w| (n, w)))
                {
                    let names = three.map(|(name, _)| name.clone());
                    let of = three.map(|(_, model)| model);
                    all.push(Carried::new(names, of, copies, writes));
                }
            }
        }
    }
    all
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for quantile in [Quantile::P90, Quantile::P99] {
        let slo = Slo { quantile, ..Slo::default() };
        let mut models = Vec::new();
        for profile in Profile::names().filter_map(Profile::builtin) {
            if profile.curves.len() == 9 {
                models.push((profile.name.clone(), LoadModel::new(&profile, slo, 1.0)?));
            }
        }
        println!("{quantile:?} below 1 ms; k/s of reads alone and of writes alone:");
        for (name, model) in &models {
            println!("  {name}: {:.0} {:.0}", model.peak(0.0) / 1e3, model.peak(100.0) / 1e3);
        }
        let near = |percent: f64, said: f64| {
            let is_near = |model: &LoadModel| (model.peak(percent) / said - 1.0).abs() <= 0.1;
            models.iter().filter(|(_, model)| is_near(model)).count()
        };
        println!("  within 10 % of 0.8 M/s of reads alone: {}", near(0.0, READER));
        println!("  within 10 % of 0.6 M/s of writes alone: {}", near(100.0, WRITER));
        let all = choices(&models);
        println!("copies, mixed, segregated: nearest three, % of writes, M/s mixed and segregated");
        for copies in [1, 2] {
            for (mix, mixed) in MIXES.iter().enumerate() {
                for (segregation, segregated) in SEGREGATIONS.iter().enumerate() {
                    let off = |one: &&Carried| one.off(mix, segregation);
                    let of_these = all.iter().filter(|one| one.copies == copies);
                    let within = of_these.clone().filter(|one| off(one) <= 0.1).count();
                    let best = of_these.min_by(|a, b| off(a).total_cmp(&off(b)));
                    let best = best.expect("there are choices");
                    let [m, s] = [best.mixed[mix] / 1e6, best.segregated[segregation] / 1e6];
                    println!(
                        "  {copies}, {mixed}, {segregated}: {} at {} %: {m:.2} {s:.2}, off by {:.0} %; {within} within 10 %",
                        best.names.join(" "),
                        best.writes,
                        100.0 * best.off(mix, segregation)
                    );
                }
            }
        }
    }
    Ok(())
}
