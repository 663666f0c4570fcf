//! The controller over a pool in which requests are a fluid: clients follow the weights, blocks lie on pairs of
//! drives and are overwritten uniformly, and each drive is late when it gets more than its profile carries.

use flash::{Instant, MILLISECOND, Random};
use pool::controller::solver::{Demand, Drive, Fleet, Shape, Terms, peak};
use pool::controller::weights::{Mode, Weights};
use pool::controller::{Controller, Input, Limit, NodeSeen, Output, Settings, VolumeSeen};
use pool::profile::{LoadModel, Profile, Slo};
use pool::words::{DomainId, Members, NodeId, VolumeId};

const PERIOD_NS: u64 = 100 * MILLISECOND;

/// The published drives that were measured at all shares of writes.
fn published() -> Vec<Profile> {
    let all = Profile::names().map(|name| Profile::builtin(name).expect("it was just named"));
    all.filter(|profile| profile.curves.len() == 9).collect()
}

/// A pool with two copies of each block, one drive to a domain.
struct Fluid {
    controller: Controller,
    now: Instant,
    models: Vec<LoadModel>,
    /// How many times as slow as its profile a drive is.
    slowness: Vec<f64>,
    alive: Vec<bool>,
    /// Part of the blocks on each two drives.
    held: Vec<Vec<f64>>,
    weights: Weights,
    profiles: Vec<Profile>,
}

/// Two different ones of so many, in either order.
fn two_of(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b)
}

/// What a period was like.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    /// Part of the requests that went to drives which got more than they carry.
    late: f64,
    /// The largest load of a drive, as a part of what it carries at its share of writes.
    fullest: f64,
}

/// Of the blocks so much is overwritten in a period: as much as all in fifty.
const OVERWRITTEN: f64 = 0.02;
/// Peaks are known to a few percent, the distance of the loads that were measured.
const FULL: f64 = 1.01;

impl Fluid {
    fn new(profiles: Vec<Profile>, policy: &str) -> Self {
        let settings = Settings { policy: policy.into(), damping: 1.0, ..Settings::default() };
        let mut controller = Controller::new(Instant(0), settings).expect("settings are sound");
        let mut models = Vec::new();
        for (at, profile) in profiles.iter().enumerate() {
            let node = NodeId(at as u32);
            let input = Input::Node { node, domain: DomainId(at as u32), profile: profile.clone() };
            controller.handle(Instant(0), input).expect("it is whole");
            models.push(LoadModel::new(profile, Slo::default(), 1.0).expect("it is whole"));
        }
        let count = profiles.len();
        let pairs = (count * (count - 1)) as f64;
        let held = (0..count)
            .map(|a| (0..count).map(|b| if a == b { 0.0 } else { 1.0 / pairs }).collect())
            .collect();
        Self {
            controller,
            now: Instant(0),
            models,
            slowness: vec![1.0; count],
            alive: vec![true; count],
            held,
            weights: Weights::default(),
            profiles,
        }
    }

    /// One period at these requests of clients a second.
    fn run(&mut self, reads: f64, writes: f64) -> Period {
        let count = self.models.len();
        self.now = self.now + PERIOD_NS;
        let mut told = vec![Input::VolumeSeen(
            VolumeId(0),
            VolumeSeen { reads, writes, waf: 1.0, redundancy: None },
        )];
        let mut held = Vec::new();
        for a in 0..count {
            for b in a + 1..count {
                let members = Members::new(&[NodeId(a as u32), NodeId(b as u32)]);
                let blocks = (2.0 * self.held[a][b] * 1e9) as u64;
                held.push((members.expect("they are different"), blocks));
            }
        }
        told.push(Input::Held(held));
        told.push(Input::Deadline);
        for input in told {
            self.controller.handle(self.now, input).expect("no profile is new");
        }
        while let Some(Output::Weights(weights)) = self.controller.poll() {
            self.weights = weights;
        }
        if self.weights.nodes.is_empty() {
            return Period::default();
        }
        let pairs = self.pairs_written();
        let mut loads = vec![[0.0, 0.0]; count];
        for (a, b) in two_of(count) {
            let (x, y) = (self.read_weight(a), self.read_weight(b));
            let part = if x + y > 0.0 { x / (x + y) } else { 0.5 };
            loads[a][0] += reads * 2.0 * self.held[a][b] * part;
            loads[a][1] += writes * 2.0 * pairs[a][b];
            self.held[a][b] += OVERWRITTEN * (pairs[a][b] - self.held[a][b]);
        }
        self.judge(&loads)
    }

    fn read_weight(&self, at: usize) -> f64 {
        if self.alive[at] { self.weights.nodes[at].read } else { 0.0 }
    }

    /// How often each two drives are drawn for a new block, half for either order: weighted, without
    /// replacement.
    fn pairs_written(&self) -> Vec<Vec<f64>> {
        let count = self.models.len();
        let weight = |at: usize| if self.alive[at] { self.weights.nodes[at].write } else { 0.0 };
        let all: f64 = (0..count).map(weight).sum();
        let mut pairs = vec![vec![0.0; count]; count];
        for (a, b) in two_of(count) {
            let (x, y) = (weight(a) / all, weight(b) / all);
            if x > 0.0 && y > 0.0 {
                let drawn = x * y / (1.0 - x) + y * x / (1.0 - y);
                pairs[a][b] = drawn / 2.0;
            }
        }
        pairs
    }

    fn judge(&mut self, loads: &[[f64; 2]]) -> Period {
        let mut period = Period::default();
        let all: f64 = loads.iter().map(|load| load[0] + load[1]).sum();
        for (at, [reads, writes]) in loads.iter().enumerate() {
            let load = reads + writes;
            if load <= 0.0 {
                continue;
            }
            let (profile, slow) = (&self.profiles[at], self.slowness[at]);
            let truth = LoadModel::slowed(profile, Slo::default(), 1.0, slow).expect("it is whole");
            let carried = truth.peak(100.0 * writes / load);
            period.fullest = period.fullest.max(load / carried);
            if load > carried * FULL {
                period.late += load / all;
            }
            if self.alive[at] {
                let tail_us =
                    truth.expected(*reads, *writes) * if load > carried { 2.0 } else { 1.0 };
                let seen =
                    NodeSeen { reads: *reads, writes: *writes, tail_us, ..NodeSeen::default() };
                let input = Input::NodeSeen(NodeId(at as u32), seen);
                self.controller.handle(self.now, input).expect("no profile is new");
            }
        }
        period
    }

    /// The worst part of late requests over the second half of so many periods at a demand.
    fn late(&mut self, demand: f64, writes: f64, periods: usize) -> f64 {
        let mut late = 0.0;
        for at in 0..periods {
            let period = self.run(demand * (1.0 - writes), demand * writes);
            if at >= periods / 2 {
                late += period.late;
            }
        }
        late / (periods / 2) as f64
    }
}

/// The most that a policy carries, in the steady state, with at most so large a part of requests at drives that
/// get more than they carry.
fn carried(profiles: &[Profile], policy: &str, writes: f64) -> f64 {
    let (mut low, mut high) = (1e5, 1e7);
    while high - low > 0.005 * high {
        let middle = (low + high) / 2.0;
        let mut fluid = Fluid::new(profiles.to_vec(), policy);
        if fluid.late(middle, writes, 600) <= LATE_MAX { low = middle } else { high = middle }
    }
    low
}

const LATE_MAX: f64 = 0.01;

/// The bound that no way of steering exceeds in the steady state, in requests of clients a second.
fn bound(profiles: &[Profile], writes: f64) -> f64 {
    let mut fleet = Fleet { domains: profiles.len(), ..Fleet::default() };
    for (at, profile) in profiles.iter().enumerate() {
        let model = LoadModel::new(profile, Slo::default(), 1.0).expect("it is whole");
        fleet.shapes.push(Shape::new(&model.points()));
        let (reads_max, writes_max) = (f64::INFINITY, f64::INFINITY);
        fleet.drives.push(Drive { shape: at, scale: 1.0, domain: at, reads_max, writes_max });
    }
    let demand = Demand::of_clients((1.0 - writes) * 1e6, writes * 1e6, 2, 1.0);
    peak(&fleet, demand, Terms::default()) * 1e6
}

#[test]
fn static_routing_carries_what_was_computed_by_other_means() {
    // n times what the worst drive carries at the share of writes of all.
    let profiles = published();
    for (writes, said) in [(0.1, 1.56), (0.3, 1.34), (0.5, 1.35)] {
        let found = carried(&profiles, "static", writes) / 1e6;
        assert!((found - said).abs() < 0.03 * said, "{found} for {said} at {writes}");
    }
}

#[test]
fn the_plan_carries_far_more_than_static_routing_and_most_of_the_bound() {
    // The parts of the bound are what it was seen to reach, less 2 points; 93 % are aimed at.
    let profiles = published();
    for (writes, part, times) in [(0.1, 0.83, 2.3), (0.3, 0.75, 1.7), (0.5, 0.81, 1.35)] {
        let bound = bound(&profiles, writes);
        let of_static = carried(&profiles, "static", writes);
        let found = carried(&profiles, "solver", writes);
        println!(
            "{writes} writes: static {:.2} M, solver {:.2} M, bound {:.2} M: {:.1} % of the bound",
            of_static / 1e6,
            found / 1e6,
            bound / 1e6,
            100.0 * found / bound
        );
        assert!(found >= part * bound, "{found} of {bound} at {writes}");
        assert!(found >= times * of_static, "{found} for {of_static} at {writes}");
        let weighted = carried(&profiles, "weighted", writes);
        assert!(found >= 1.2 * weighted, "{found} for {weighted} by weights alone at {writes}");
    }
}

#[test]
fn a_pool_of_many_drives_is_steered_no_worse_than_by_weights_alone() {
    // Beyond what tables are made for: all serve both.
    let seven = published();
    let profiles: Vec<Profile> = (0..70).map(|at| seven[at % seven.len()].clone()).collect();
    let demand = 0.55 * bound(&profiles, 0.1);
    let late = Fluid::new(profiles.clone(), "solver").late(demand, 0.1, 60);
    assert!(late <= LATE_MAX, "{late} late at {demand}");
    let plain = Fluid::new(profiles, "static").late(demand, 0.1, 60);
    assert!(plain > LATE_MAX, "static routing carries {demand}, too");
}

/// Of blocks whose two copies lie on any drives over a third would lie only on such that write.
#[test]
fn where_most_drives_would_write_at_a_time_all_serve_both_as_long_as_they_carry_it() {
    let modes = |reads: f64, writes: f64| {
        let mut fluid = Fluid::new(published(), "solver");
        for _ in 0..20 {
            fluid.run(reads, writes);
        }
        fluid.weights.nodes.iter().map(|node| node.mode).collect::<Vec<Mode>>()
    };
    let all_mixed = |modes: Vec<Mode>| modes.iter().all(|mode| *mode == Mode::Mixed);
    assert!(all_mixed(modes(5e5, 5e5)), "half of all are writes");
    assert!(!all_mixed(modes(9e5, 1e5)), "few are");
    assert!(!all_mixed(modes(1.2e6, 1.2e6)), "it is more than all carry that serve both");
}

#[test]
fn a_drive_ten_times_as_slow_loses_its_share_and_no_more() {
    let profiles = published();
    let demand = 0.5 * bound(&profiles, 0.1);
    let mut fluid = Fluid::new(profiles.clone(), "solver");
    assert!(fluid.late(demand, 0.1, 100) <= LATE_MAX);
    fluid.slowness[1] = 10.0;
    let late = fluid.late(demand, 0.1, 400);
    assert!(late <= LATE_MAX, "{late} late with a slow drive that is known");
    let limits = &fluid.controller.explain().limits;
    let known =
        limits.iter().any(|limit| matches!(limit, Limit::Slow(NodeId(1), times) if *times > 3.0));
    assert!(known, "{limits:?}");
    let mut plain = Fluid::new(profiles, "static");
    plain.slowness[1] = 10.0;
    assert!(plain.late(1.0e6, 0.1, 100) > LATE_MAX, "static routing falls to its pace");
}

#[test]
fn a_lost_node_gets_nothing_after_a_second_and_its_part_again_when_it_is_back() {
    let profiles = published();
    let demand = 0.5 * bound(&profiles, 0.1);
    let mut fluid = Fluid::new(profiles, "solver");
    fluid.late(demand, 0.1, 50);
    fluid.alive[5] = false;
    for _ in 0..11 {
        fluid.run(demand * 0.9, demand * 0.1);
    }
    let lost = fluid.weights.nodes[5];
    assert_eq!((lost.read, lost.write), (0.0, 0.0));
    assert!(fluid.controller.explain().limits.contains(&Limit::Gone(NodeId(5))));
    fluid.alive[5] = true;
    fluid
        .controller
        .handle(fluid.now, Input::NodeSeen(NodeId(5), NodeSeen::default()))
        .expect("known");
    let late = fluid.late(demand, 0.1, 300);
    let back = fluid.weights.nodes[5];
    assert!(back.read + back.write > 0.0 && late <= LATE_MAX, "{back:?} {late}");
}

#[test]
fn new_blocks_spread_over_many_pairs_of_drives() {
    let profiles = published();
    let demand = 0.8 * bound(&profiles, 0.1);
    let mut fluid = Fluid::new(profiles, "solver");
    fluid.late(demand, 0.1, 600);
    let pairs: Vec<f64> = (0..7)
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .map(|(a, b)| 2.0 * fluid.held[a][b])
        .collect();
    let largest = pairs.iter().copied().fold(0.0, f64::max);
    let used = pairs.iter().filter(|part| **part > 0.005).count();
    assert!((pairs.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    assert!(largest < 0.35 && used >= 10, "{largest} of the blocks on one pair, {used} of 21 used");
}

#[test]
fn weights_are_sound_whatever_happens() {
    let profiles = published();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let policy = ["static", "weighted", "segregated", "ring", "solver"][seed as usize % 5];
        let settings = Settings {
            policy: policy.into(),
            replicas: 1 + random.below(3) as u32,
            ..Settings::default()
        };
        let replicas = settings.replicas as usize;
        let mut controller = Controller::new(Instant(0), settings).expect("settings are sound");
        let mut now = Instant(0);
        for step in 0..200 {
            now = now + random.below(80 * MILLISECOND);
            let node = NodeId(random.below(12) as u32);
            let any = |random: &mut Random, most: f64| match random.below(12) {
                0 => 0.0,
                1 => f64::NAN,
                2 => f64::INFINITY,
                3 => -1.0,
                _ => random.fraction() * most,
            };
            let input = match random.below(8) {
                0 | 1 => Input::Node {
                    node,
                    domain: DomainId(node.0 % 4),
                    profile: profiles[random.below(7) as usize].clone(),
                },
                2 => Input::Gone(node),
                3 => Input::Removed(node),
                4 | 5 => Input::NodeSeen(
                    node,
                    NodeSeen {
                        reads: any(&mut random, 5e5),
                        writes: any(&mut random, 2e5),
                        rejected: any(&mut random, 1e3),
                        tail_us: any(&mut random, 5e3),
                        wear: any(&mut random, 1.5),
                        room: None,
                    },
                ),
                6 => Input::VolumeSeen(
                    VolumeId(random.below(3) as u32),
                    VolumeSeen {
                        reads: any(&mut random, 5e6),
                        writes: any(&mut random, 1e6),
                        waf: any(&mut random, 3.0),
                        redundancy: None,
                    },
                ),
                _ => {
                    let held = (0..random.below(20)).filter_map(|_| {
                        let of = |random: &mut Random| NodeId(random.below(14) as u32);
                        let members = [of(&mut random), of(&mut random)];
                        Some((Members::new(&members)?, random.below(1000)))
                    });
                    Input::Held(held.collect())
                }
            };
            controller.handle(now, input).expect("profiles are whole");
            while let Some(Output::Weights(weights)) = controller.poll() {
                check(&weights, &controller, replicas, seed, step);
            }
        }
    }
}

fn check(weights: &Weights, controller: &Controller, replicas: usize, seed: u64, step: u32) {
    let at = format!("seed {seed} step {step}");
    let limits = &controller.explain().limits;
    let gone = |node: NodeId| limits.contains(&Limit::Gone(node));
    let live = weights.nodes.iter().filter(|node| !gone(node.node)).count();
    let (mut reads, mut writes, mut domains) = (0.0, 0.0, Vec::new());
    for node in &weights.nodes {
        assert!(node.read >= 0.0 && node.write >= 0.0, "{at}: {node:?}");
        assert!(!gone(node.node) || node.read + node.write == 0.0, "{at}: {node:?} is gone");
        (reads, writes) = (reads + node.read, writes + node.write);
        if node.write > 0.0 {
            assert!(node.mode != Mode::Reads, "{at}: {node:?} takes no writes");
            domains.push(node.node.0 % 4);
        }
    }
    if live > 0 {
        assert!((reads - 1.0).abs() < 1e-9 && (writes - 1.0).abs() < 1e-9, "{at}: {weights:?}");
        domains.sort_unstable();
        domains.dedup();
        let mut there: Vec<u32> =
            weights.nodes.iter().filter(|n| !gone(n.node)).map(|n| n.node.0 % 4).collect();
        there.sort_unstable();
        there.dedup();
        assert!(domains.len() >= replicas.min(there.len()), "{at}: {domains:?} {weights:?}");
    }
    assert!(!controller.explain().to_string().contains("NaN"), "{at}: {}", controller.explain());
}

#[test]
fn the_same_inputs_give_the_same_weights() {
    let run = || {
        let mut fluid = Fluid::new(published(), "solver");
        let mut told = Vec::new();
        for at in 0..60 {
            fluid.run(2e6 + 1e4 * f64::from(at), 3e5);
            told.push(fluid.weights.clone());
        }
        told
    };
    assert_eq!(run(), run());
}
