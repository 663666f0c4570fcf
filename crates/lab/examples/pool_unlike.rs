//! Prints what a pool of unlike drives carries within a service level, by the controller's policy, beside the
//! bound that the solver computes for the same profiles:
//! `cargo run -p lab --example pool_unlike -- [writes=10] [quantile=p90] [NAME=VALUE]... [POLICY]...`
//!
//! Names are those of the fields of `Shape` (`slot`, `period` and `measure` in milliseconds), `from` and `times`
//! (the first load, and each over the one before), and `settle`: how often each block is overwritten on average by
//! the first load before anything is measured, after all were overwritten twice in order. With `slow=TIMES` the load
//! stays the first one, the fastest drive becomes so many times slower, and it is told window by window what becomes
//! of that.

use flash::{FastTier, Geometry, Instant, MILLISECOND, Pairing, SECOND};
use ftl::{FormatOptions, Ftl, Settings};
use lab::Sim;
use lab::load::{Client, Latency, Pace, Window, run};
use lab::medium::Medium;
use lab::pool::cluster::{Cluster, NodePlan};
use lab::pool::drive::Episodes;
use lab::pool::medium::PoolMedium;
use lab::pool::network::Wire;
use lab::pool::volume::PoolVolume;
use lab::target::Target;
use pool::client::Config;
use pool::controller;
use pool::profile::{Profile, Quantile, Slo};
use pool::words::{DomainId, Generation, VolumeId};
use std::cell::RefCell;
use std::rc::Rc;

/// What can be set: `name=value`.
#[derive(Clone, Copy)]
struct Shape {
    lanes: u32,
    bands: u32,
    pages: u32,
    blocks: u32,
    low: u32,
    slot_ms: u64,
    period_ms: u64,
    measure_ms: u64,
    congestion: bool,
    hedging: bool,
    programs: u32,
    ahead: u32,
}

impl Shape {
    fn geometry(&self) -> Geometry {
        Geometry {
            units: self.lanes,
            blocks_per_unit: self.bands,
            pages_per_block: self.pages,
            slots_per_page: 4,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 64,
            endurance: 1_000_000,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        }
    }
}

fn pool(policy: &str, slo: Slo, shape: &Shape, seed: u64) -> Result<PoolVolume, String> {
    let geometry = shape.geometry();
    let profiles: Vec<Profile> = Profile::names()
        .filter_map(Profile::builtin)
        .filter(|profile| profile.curves.len() == 9)
        .collect();
    let plans = (0..).zip(&profiles).map(|(id, profile)| {
        let seed = seed ^ u64::from(id);
        NodePlan::of(profile, DomainId(id), Episodes::default(), slo, seed)
            .map_err(|why| why.to_string())
    });
    let plans: Vec<NodePlan> = plans.collect::<Result<_, String>>()?;
    let wire = Wire::default();
    let cluster = Rc::new(RefCell::new(Cluster::new(plans, wire, seed)));
    let volume = VolumeId(1);
    let config = Config {
        seed,
        congestion: shape.congestion,
        hedging: if shape.hedging { "quantile" } else { "none" }.into(),
        ..Config::new(volume, Generation(1), geometry, 2)
    };
    let medium = PoolMedium::new(cluster.clone(), config)?;
    let options = FormatOptions { logical_blocks: shape.blocks, uuid: 7, label: Vec::new() };
    let settings = Settings {
        bands_free_low: shape.low,
        relocation_blocks: 4096,
        programs_max: shape.programs,
        bands_ahead: shape.ahead,
        ..Settings::default()
    };
    let ftl = Ftl::format(geometry, &medium.health(), options, settings.clone())?;
    let blocks = lab::driver::REQUEST_BLOCKS_MAX;
    let relocation = settings.relocation_blocks;
    let mut sim = Sim::new(ftl, medium, blocks, relocation, settings, Instant(0));
    sim.run_until_ready().map_err(|why| why.to_string())?;
    let settings = controller::Settings {
        slo,
        policy: policy.into(),
        slot_ns: shape.slot_ms * MILLISECOND,
        period_ns: shape.period_ms * MILLISECOND,
        ..Default::default()
    };
    PoolVolume::new(sim, cluster, volume, &profiles, settings, wire.delay_ns)
}

/// What is asked for, and what of it may be said on the command line.
struct Asked {
    writes: f64,
    quantile: Quantile,
    policies: Vec<String>,
    load: f64,
    times: f64,
    settle: f64,
    /// How many times slower the fastest drive becomes, if it does.
    slow: Option<f64>,
    shape: Shape,
}

fn asked() -> Result<Asked, Box<dyn std::error::Error>> {
    let shape = Shape {
        lanes: 84,
        bands: 13,
        pages: 32,
        blocks: 60_000,
        low: 60,
        slot_ms: 40,
        period_ms: 20,
        measure_ms: 50,
        congestion: true,
        hedging: true,
        programs: 4,
        ahead: 8,
    };
    let (quantile, policies) = (Quantile::P90, Vec::new());
    let (load, times, slow) = (1.5e6, 1.2, None);
    let mut asked =
        Asked { writes: 10.0, quantile, policies, load, times, settle: 1.0, slow, shape };
    let shape = &mut asked.shape;
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("writes", value)) => asked.writes = value.parse()?,
            Some(("from", value)) => asked.load = value.parse()?,
            Some(("times", value)) => asked.times = value.parse()?,
            Some(("settle", value)) => asked.settle = value.parse()?,
            Some(("slow", value)) => asked.slow = Some(value.parse()?),
            Some(("blocks", value)) => shape.blocks = value.parse()?,
            Some(("lanes", value)) => shape.lanes = value.parse()?,
            Some(("bands", value)) => shape.bands = value.parse()?,
            Some(("pages", value)) => shape.pages = value.parse()?,
            Some(("low", value)) => shape.low = value.parse()?,
            Some(("slot", value)) => shape.slot_ms = value.parse()?,
            Some(("period", value)) => shape.period_ms = value.parse()?,
            Some(("measure", value)) => shape.measure_ms = value.parse()?,
            Some(("congestion", value)) => shape.congestion = value.parse()?,
            Some(("ahead", value)) => shape.ahead = value.parse()?,
            Some(("programs", value)) => shape.programs = value.parse()?,
            Some(("hedging", value)) => shape.hedging = value.parse()?,
            Some(("quantile", "p90")) => asked.quantile = Quantile::P90,
            Some(("quantile", "p99")) => asked.quantile = Quantile::P99,
            None => asked.policies.push(argument),
            Some(_) => return Err(format!("{argument}: see the head of the example").into()),
        }
    }
    if asked.policies.is_empty() {
        asked.policies = controller::policy::POLICIES.map(|(name, _)| name.to_string()).to_vec();
    }
    Ok(asked)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked = asked()?;
    let slo = Slo { quantile: asked.quantile, ..Slo::default() };
    for policy in &asked.policies {
        let volume = settled(&asked, policy, slo)?;
        match asked.slow {
            Some(times) => slowed(&asked, policy, times, volume)?,
            None => rising(&asked, policy, slo, volume)?,
        }
    }
    Ok(())
}

fn client(asked: &Asked, load: f64) -> Client {
    Client { pace: Pace::Rate(load), reads: 1.0 - asked.writes / 100.0, ..Client::default() }
}

fn window(asked: &Asked, warmup_ns: f64) -> Window {
    let measure_ns = asked.shape.measure_ms * MILLISECOND;
    Window { warmup_ns: warmup_ns as u64, measure_ns }
}

/// A pool of which every block was overwritten twice before anything counts, whatever is drawn later.
fn settled(
    asked: &Asked,
    policy: &str,
    slo: Slo,
) -> Result<PoolVolume, Box<dyn std::error::Error>> {
    let (shape, load) = (&asked.shape, asked.load);
    let mut volume = pool(policy, slo, shape, 1)?;
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        run(&mut volume, &[Client::filling(u64::from(shape.blocks))], Window::WHENEVER, 1)?;
    }
    println!("{policy}, filled at {} ms", volume.now().0 / MILLISECOND);
    let writes = load * asked.writes / 100.0;
    let settle = asked.settle * f64::from(shape.blocks) / writes * SECOND as f64;
    run(&mut volume, &[client(asked, load)], window(asked, settle), 2)?;
    println!("settled, {:.1} s", begun.elapsed().as_secs_f64());
    Ok(volume)
}

/// Load of a window before what is measured of it.
const LEAD_NS: f64 = 2e7;

/// How often it is looked what writes wait for.
const LOOK_NS: u64 = MILLISECOND / 2;

/// One window of the load, told.
fn measure(
    asked: &Asked,
    policy: &str,
    load: f64,
    volume: &mut PoolVolume,
) -> Result<Latency, Box<dyn std::error::Error>> {
    let writes = asked.writes / 100.0;
    let before = volume.counts();
    volume.look_at_waits(LOOK_NS);
    let begun = std::time::Instant::now();
    let seen = run(volume, &[client(asked, load)], window(asked, LEAD_NS), 2)?;
    let ios = seen[0].ios();
    let us = |ns: u64| ns as f64 / 1e3;
    let (reads, writes_seen) = (&seen[0].reads, &seen[0].writes);
    let waf = volume.counts().since(&before).waf();
    let bound = volume.bound(load * (1.0 - writes), load * writes, waf);
    println!(
        "{policy} {load:9.0}/s: p50 {:6.0} p90 {:6.0} p99 {:6.0} us; reads {:6.0} {:6.0}, writes {:6.0} {:6.0} {:6.0}; WAF {waf:.2}; bound {:.0}, peak {:.2}; {:.1} s",
        us(ios.quantile_ns(0.5)),
        us(ios.quantile_ns(0.9)),
        us(ios.quantile_ns(0.99)),
        us(reads.quantile_ns(0.9)),
        us(reads.quantile_ns(0.99)),
        us(writes_seen.quantile_ns(0.5)),
        us(writes_seen.quantile_ns(0.9)),
        us(writes_seen.quantile_ns(0.99)),
        bound.unwrap_or(0.0),
        volume.controller().explain().peak,
        begun.elapsed().as_secs_f64(),
    );
    if let Some(waits) = volume.look_at_waits(LOOK_NS) {
        println!("  {waits}");
    }
    Ok(ios)
}

/// What the controller and the client say of how it is.
fn explained(volume: &PoolVolume) {
    println!("{}", volume.controller().explain());
    println!("{}", volume.sim().medium().remote().explain());
    println!("{:?}", volume.sim().medium().remote().counters());
}

/// How many windows of [`slowed`] there are.
const WINDOWS: u64 = 30;

/// The fastest drive becomes slower under the load, which stays as it is.
fn slowed(
    asked: &Asked,
    policy: &str,
    times: f64,
    mut volume: PoolVolume,
) -> Result<(), Box<dyn std::error::Error>> {
    measure(asked, policy, asked.load, &mut volume)?;
    let fastest = volume.cluster().borrow().nodes().last().expect("a pool has nodes").0;
    volume.cluster().borrow_mut().slow(fastest, times);
    let since = volume.now();
    for _ in 0..WINDOWS {
        println!("after {} ms", (volume.now() - since) / MILLISECOND);
        measure(asked, policy, asked.load, &mut volume)?;
    }
    explained(&volume);
    Ok(())
}

/// More and more load until the objective is missed.
fn rising(
    asked: &Asked,
    policy: &str,
    slo: Slo,
    mut volume: PoolVolume,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut load = asked.load;
    loop {
        let p = measure(asked, policy, load, &mut volume)?.quantile_ns(slo.quantile.share());
        if p as f64 / 1e3 > slo.us {
            explained(&volume);
            break;
        }
        load *= asked.times;
    }
    Ok(())
}
