//! A whole turn of the controller: demand and state of all nodes in, weights and modes by who holds what out.

use super::super::{Figure, Goal, Request, cpu_ns};
use flash::{Instant, Random};
use pool::controller::{Controller, Input, NodeSeen, Settings, VolumeSeen};
use pool::profile::Profile;
use pool::words::{DomainId, Members, NodeId, VolumeId};

const UNIT: &str = "ms";
const CASES: [(&str, u32, f64); 2] =
    [("pool-turn-1000", 1_000, 5.0), ("pool-turn-10000", 10_000, 100.0)];
/// Pairs of nodes that hold blocks, for each node.
const GROUPS: usize = 50;
const TURNS: u64 = 20;
/// Nodes of a failure domain.
const DOMAIN_NODES: u32 = 20;

pub fn figures(request: &mut Request<'_>) {
    for (name, nodes, goal) in CASES {
        if !request.wants(name) {
            continue;
        }
        let (ms, gap) = turn(nodes);
        let figure = Figure::new(name, ms, UNIT, Goal::AtMost(goal));
        (request.sink)(figure.note(format!(
            "{nodes} drives of the published profiles, {} pairs that hold blocks; gap {gap:.1e}",
            GROUPS * nodes as usize
        )));
    }
}

/// Milliseconds of processor time of a turn, and how far from the best its plan may be.
fn turn(nodes: u32) -> (f64, f64) {
    let mut controller =
        Controller::new(Instant(0), Settings::default()).expect("the defaults are sound");
    let names: Vec<&str> = Profile::names().collect();
    for node in 0..nodes {
        let profile = Profile::builtin(names[node as usize % names.len()]).expect("it is known");
        let (node, domain) = (NodeId(node), DomainId(node / DOMAIN_NODES));
        controller.handle(Instant(0), Input::Node { node, domain, profile }).expect("it is whole");
    }
    let mut random = Random::new(3);
    let mut held = Vec::new();
    while held.len() < GROUPS * nodes as usize {
        let mut drawn = || NodeId(random.below(nodes.into()) as u32);
        if let Some(members) = Members::new(&[drawn(), drawn()]) {
            held.push((members, 1 + random.below(100)));
        }
    }
    controller.handle(Instant(0), Input::Held(held)).expect("no node");
    let by = f64::from(nodes);
    let mut turn = || {
        let now = controller.deadline();
        for node in 0..nodes {
            let seen = NodeSeen { reads: 1e5, writes: 2e4, ..NodeSeen::default() };
            controller.handle(now, Input::NodeSeen(NodeId(node), seen)).expect("known");
        }
        let seen =
            VolumeSeen { reads: 3e5 * by, writes: 3e4 * by, waf: 1.1, ..VolumeSeen::default() };
        controller.handle(now, Input::VolumeSeen(VolumeId(0), seen)).expect("no node");
        controller.handle(now, Input::Deadline).expect("no node");
        while controller.poll().is_some() {}
    };
    turn();
    let before = cpu_ns();
    (0..TURNS).for_each(|_| turn());
    let ms = (cpu_ns() - before) as f64 / 1e6 / TURNS as f64;
    (ms, controller.explain().gap())
}
