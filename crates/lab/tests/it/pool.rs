//! Volumes of a pool: the FTL over remote bands, on simulated nodes.

use flash::{FastTier, Geometry, Hint, Instant, MILLISECOND, Pairing, Random};
use ftl::{FormatOptions, Ftl, Settings};
use lab::Sim;
use lab::pool::cluster::{Cluster, NodePlan};
use lab::pool::drive::Episodes;
use lab::pool::medium::PoolMedium;
use lab::pool::network::Wire;
use pool::client::Config;
use pool::profile::{Profile, Slo};
use pool::words::{DomainId, Generation, NodeId, VolumeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const NODES: u32 = 6;
const BLOCKS: u32 = 4096;
const STEPS: u32 = 1500;
const SEEDS: u64 = 1000;

fn cluster(nodes: u32, seed: u64) -> Rc<RefCell<Cluster>> {
    let names: Vec<&str> = Profile::names().collect();
    let plan = |id: u32| {
        let profile = Profile::builtin(names[id as usize % names.len()]).expect("it is known");
        let (domain, slo) = (DomainId(id / 2), Slo::default());
        NodePlan::of(&profile, domain, Episodes::default(), slo, seed ^ u64::from(id))
            .expect("it is whole")
    };
    Rc::new(RefCell::new(Cluster::new((0..nodes).map(plan).collect(), Wire::default(), seed)))
}

fn geometry() -> Geometry {
    Geometry {
        units: 8,
        blocks_per_unit: 16,
        pages_per_block: 16,
        slots_per_page: 4,
        pairing: Pairing::None,
        durable_at_completion: true,
        suspend: false,
        queue_depth: 4,
        endurance: 1_000_000,
        open_blocks_max: 0,
        fast: FastTier::NONE,
    }
}

fn volume(cluster: &Rc<RefCell<Cluster>>, seed: u64) -> Sim<Ftl, PoolMedium> {
    let config = Config { seed, ..Config::new(VolumeId(1), Generation(1), geometry(), 2) };
    let medium = PoolMedium::new(cluster.clone(), config).expect("the config is right");
    let options = FormatOptions { logical_blocks: BLOCKS, uuid: 7, label: Vec::new() };
    let settings = Settings::default();
    let relocation = settings.relocation_blocks;
    let health = lab::medium::Medium::health(&medium);
    let ftl = Ftl::format(geometry(), &health, options, settings.clone()).expect("it fits");
    let mut sim =
        Sim::new(ftl, medium, lab::driver::REQUEST_BLOCKS_MAX, relocation, settings, Instant(0));
    sim.run_until_ready().expect("a new volume is formatted");
    sim
}

/// A write or read that was asked for and is not answered.
type Asked = BTreeMap<u64, (u32, Option<u64>)>;

/// What the host knows: the newest stamp of each block.
struct Model {
    stamps: Vec<u64>,
    asked: Asked,
    next: u64,
}

impl Model {
    fn new() -> Self {
        Self { stamps: vec![lab::model::ZERO; BLOCKS as usize], asked: Asked::new(), next: 0 }
    }

    /// Asks for something of a block that nobody else waits for.
    fn ask(&mut self, sim: &mut Sim<Ftl, PoolMedium>, random: &mut Random) {
        let lba = random.below(u64::from(BLOCKS)) as u32;
        if self.asked.values().any(|&(other, _)| other == lba) {
            return;
        }
        self.next += 1;
        if random.chance(0.6) {
            sim.write(self.next, lba, &[self.next], (random.chance(0.1), false), Hint::default());
            self.asked.insert(self.next, (lba, Some(self.next)));
        } else {
            sim.read(self.next, lba, 1);
            self.asked.insert(self.next, (lba, None));
        }
    }

    /// Holds what was answered against what was written.
    fn check(&mut self, sim: &mut Sim<Ftl, PoolMedium>) -> Result<(), String> {
        while let Some(finished) = sim.take_finished() {
            let (lba, stamp) = self.asked.remove(&finished.token).expect("it was asked");
            finished.result.map_err(|why| format!("block {lba}: {why}"))?;
            match stamp {
                Some(stamp) => self.stamps[lba as usize] = stamp,
                None if sim.stamps(&finished) != [self.stamps[lba as usize]] => {
                    let (seen, is) = (sim.stamps(&finished)[0], self.stamps[lba as usize]);
                    return Err(format!("block {lba} reads {seen}, and {is} was written"));
                }
                None => {}
            }
            sim.release(finished);
        }
        Ok(())
    }
}

/// What ails a node, and until when.
#[derive(Clone, Copy, Debug)]
enum Ill {
    Dead(NodeId),
    Slow(NodeId),
    Apart(NodeId),
}

fn fall_ill(sim: &Sim<Ftl, PoolMedium>, pool: &RefCell<Cluster>, random: &mut Random) -> Ill {
    let (now, node) = (sim.now(), NodeId(random.below(u64::from(NODES)) as u32));
    let mut pool = pool.borrow_mut();
    match random.below(3) {
        0 => {
            pool.kill(now, node);
            Ill::Dead(node)
        }
        1 => {
            pool.slow(node, 100.0);
            Ill::Slow(node)
        }
        _ => {
            pool.partition(now, sim.medium().peer(), node, true);
            Ill::Apart(node)
        }
    }
}

fn get_well(sim: &Sim<Ftl, PoolMedium>, pool: &RefCell<Cluster>, ill: Ill) {
    let (now, mut pool) = (sim.now(), pool.borrow_mut());
    match ill {
        Ill::Dead(node) => pool.restart(now, node),
        Ill::Slow(node) => pool.slow(node, 1.0),
        Ill::Apart(node) => pool.partition(now, sim.medium().peer(), node, false),
    }
}

/// A life of a volume under load, while one node at a time falls ill: its trace, and how many bands were cut.
fn lives(seed: u64) -> Result<(u64, u64), String> {
    let cluster = cluster(NODES, seed);
    let mut sim = volume(&cluster, seed);
    let (mut random, mut model) = (Random::new(seed), Model::new());
    let mut ill: Option<(Ill, Instant)> = None;
    for _ in 0..STEPS {
        for _ in 0..random.below(8) {
            model.ask(&mut sim, &mut random);
        }
        match ill {
            Some((which, until)) if sim.now() >= until => {
                get_well(&sim, &cluster, which);
                ill = None;
            }
            None if random.chance(0.03) => {
                let until = sim.now() + (1 + random.below(60)) * MILLISECOND;
                ill = Some((fall_ill(&sim, &cluster, &mut random), until));
            }
            _ => {}
        }
        let limit = sim.now() + random.below(MILLISECOND);
        sim.run_until_idle(limit).map_err(|why| why.to_string())?;
        model.check(&mut sim)?;
    }
    if let Some((which, _)) = ill {
        get_well(&sim, &cluster, which);
    }
    sim.run_until_answered().map_err(|why| why.to_string())?;
    model.check(&mut sim)?;
    let seen = sim.read_all(BLOCKS).map_err(|why| why.to_string())?;
    for (lba, (seen, written)) in seen.iter().zip(&model.stamps).enumerate() {
        if *seen != Some(*written) {
            return Err(format!("at last block {lba} reads {seen:?}, and {written} was written"));
        }
    }
    sim.verify_ftl().map_err(|why| why.to_string())?;
    Ok((sim.trace_hash(), sim.medium().remote().counters().cuts))
}

#[test]
fn no_node_that_dies_is_slow_or_apart_fails_or_loses_anything() {
    let mut cuts = 0;
    for seed in 0..SEEDS {
        let life = lives(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        if seed % 10 == 0 {
            assert_eq!(lives(seed), Ok(life), "seed {seed} is another run the second time");
        }
        cuts += life.1;
    }
    println!("{SEEDS} lives, {cuts} bands cut short");
    assert!(cuts > SEEDS, "nodes that die cut what is open there: {cuts}");
}
