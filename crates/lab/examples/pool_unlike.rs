//! Prints what a pool of unlike drives carries within a service level, by the controller's policy, beside the
//! bound that the solver computes for the same profiles:
//! `cargo run --release -p lab --example pool_unlike -- [writes=10] [quantile=p90] [from=500000] [blocks=80000] [POLICY]...`

use flash::{FastTier, Geometry, Instant, MILLISECOND, Pairing, SECOND};
use ftl::{FormatOptions, Ftl, Settings};
use lab::Sim;
use lab::load::{Client, Pace, Window, run};
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

/// A lane takes `queue_depth` commands at a time, so lanes bound what is under way.
const LANES: u32 = 168;

fn geometry() -> Geometry {
    Geometry {
        units: LANES,
        blocks_per_unit: 16,
        pages_per_block: 32,
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

fn pool(policy: &str, slo: Slo, logical_blocks: u32, seed: u64) -> Result<PoolVolume, String> {
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
        asks_max: 4096,
        openings_ahead: 2,
        ..Config::new(volume, Generation(1), geometry(), 2)
    };
    let medium = PoolMedium::new(cluster.clone(), config)?;
    let options = FormatOptions { logical_blocks, uuid: 7, label: Vec::new() };
    let settings = Settings { bands_free_low: 120, relocation_blocks: 4096, ..Settings::default() };
    let ftl = Ftl::format(geometry(), &medium.health(), options, settings.clone())?;
    let blocks = lab::driver::REQUEST_BLOCKS_MAX;
    let relocation = settings.relocation_blocks;
    let mut sim = Sim::new(ftl, medium, blocks, relocation, settings, Instant(0));
    sim.run_until_ready().map_err(|why| why.to_string())?;
    let settings = controller::Settings { slo, policy: policy.into(), ..Default::default() };
    PoolVolume::new(sim, cluster, volume, &profiles, settings, wire.delay_ns)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut writes, mut quantile, mut policies) = (10.0, Quantile::P90, Vec::new());
    let (mut load, mut blocks) = (500_000.0, 80_000);
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("writes", value)) => writes = value.parse()?,
            Some(("from", value)) => load = value.parse()?,
            Some(("blocks", value)) => blocks = value.parse()?,
            Some(("quantile", "p90")) => quantile = Quantile::P90,
            Some(("quantile", "p99")) => quantile = Quantile::P99,
            None => policies.push(argument),
            Some(_) => {
                return Err(format!("{argument}: writes=10, quantile=p90, or a policy").into());
            }
        }
    }
    if policies.is_empty() {
        policies = controller::policy::POLICIES.map(|(name, _)| name.to_string()).to_vec();
    }
    let slo = Slo { quantile, ..Slo::default() };
    for policy in policies {
        let mut volume = pool(&policy, slo, blocks, 1)?;
        run(&mut volume, &[Client::filling(u64::from(blocks))], Window::WHENEVER, 1)?;
        println!("{policy}, filled at {} ms", volume.now().0 / MILLISECOND);
        let mut load = load;
        loop {
            let client =
                Client { pace: Pace::Rate(load), reads: 1.0 - writes / 100.0, ..Client::default() };
            // Every block is overwritten twice before anything counts.
            let warmup = 2.0 * f64::from(blocks) / (load * writes / 100.0);
            let window =
                Window { warmup_ns: (warmup * SECOND as f64) as u64, measure_ns: 50 * MILLISECOND };
            let before = volume.counts();
            let begun = std::time::Instant::now();
            let seen = run(&mut volume, &[client], window, 2)?;
            let ios = seen[0].ios();
            let us = |share: f64| ios.quantile_ns(share) as f64 / 1e3;
            println!(
                "{policy} {load:9.0}/s: p50 {:6.0} p90 {:6.0} p99 {:6.0} us; WAF {:.2}; gap {:.1e}, peak \
                 {:.0}; {:.1} s",
                us(0.5),
                us(0.9),
                us(0.99),
                volume.counts().since(&before).waf(),
                volume.controller().explain().gap(),
                volume.controller().explain().peak,
                begun.elapsed().as_secs_f64(),
            );
            if us(slo.quantile.share()) > slo.us {
                println!("{}", volume.controller().explain());
                println!("{}", volume.sim().medium().remote().explain());
                break;
            }
            load *= 1.2;
        }
    }
    Ok(())
}
