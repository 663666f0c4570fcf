//! The plan of the exact solver. What share of its time each drive reads, writes or does both follows from
//! profiles, demand and terms; the table makes slots of it, which drives write together and when, and goes on
//! making them better; the weights of reads are balanced over the replicas that there are.
//!
//! Where there is nothing to gain from slots (no more drives than copies), or no time to find good ones (very
//! many drives, or more copies than two), all drives serve both, by weights that make them equally late. So they do
//! where the plan has most drives write at a time: the plan does not know that blocks lie where they lie, and of those
//! with two copies on any drives the square of that part lies only on drives which write.

use super::super::balance::{Group, balance};
use super::super::solver::{Demand, Plan, solve};
use super::super::weights::Mode;
use super::plain::equally_late;
use super::table::{Card, DRIVES_MAX, MIXED, READS, Table, Times, WRITES};
use super::{Allotment, Decision, NodeView, Policy, View};
use flash::Instant;

/// The policy.
#[derive(Debug, Default)]
pub(super) struct Solved {
    table: Table,
    turns_at: Option<Instant>,
    /// Weights of reads of a moment ago, where the next balance begins.
    reads: Vec<f64>,
    /// All drives serve both, as too many would write at a time.
    mixes: bool,
}

/// With more of the drives than that writing at a time over a third of the blocks would lie on such alone. As long as
/// all are mixed already the second counts.
const WRITERS_MAX: [f64; 2] = [0.6, 0.55];
/// All drives carry so many times the demand when they serve both, to be taken for good enough; likewise.
const CARRIES_MIN: [f64; 2] = [1.05, 1.0];

/// It is planned for that much more than is asked: demand and drives are never quite as they were.
const HEADROOM: f64 = 1.02;

impl Policy for Solved {
    fn plan(&mut self, view: &View<'_>) -> Decision {
        let ahead = |rate: f64| rate * HEADROOM;
        let demand = Demand { reads: ahead(view.demand.reads), writes: ahead(view.demand.writes) };
        let plan = solve(view.fleet, demand, view.terms);
        let mut decision = Decision {
            peak: plan.peak * HEADROOM,
            cost: plan.rates.cost,
            bound: plan.bound,
            ..Decision::default()
        };
        let drives = view.nodes.len();
        let has_slots = view.terms.replicas == 2 && (3..=DRIVES_MAX).contains(&drives);
        let is_busy = demand.reads + demand.writes > 0.0;
        self.mixes = has_slots && is_busy && self.is_to_mix(view, &plan, demand);
        decision.nodes = if has_slots && is_busy && !self.mixes {
            self.in_slots(view, &plan, demand)
        } else {
            all_mixed(view, demand)
        };
        decision.stuck = stuck(view.groups, &decision.nodes);
        self.balance(view, &mut decision);
        decision
    }
}

/// Part of the blocks that lie only on drives which write now.
fn stuck(groups: &[Group], nodes: &[Allotment]) -> f64 {
    let is_stuck = |group: &&Group| group.members().all(|at| nodes[at].mode == Mode::Writes);
    groups.iter().filter(is_stuck).map(|group| group.share).sum()
}

/// All drives serve both.
fn all_mixed(view: &View<'_>, demand: Demand) -> Vec<Allotment> {
    let (percent, load) = share(demand);
    let nodes: Vec<&NodeView<'_>> = view.nodes.iter().collect();
    let loads = equally_late(&nodes, percent, load).into_iter().zip(&view.fleet.drives);
    loads
        .map(|(read, drive)| {
            let write = (read * percent / 100.0).min(drive.writes_max);
            Allotment { mode: Mode::Mixed, read: read * (1.0 - percent / 100.0), write }
        })
        .collect()
}

/// What percentage of all that is asked of drives are writes, and how much all is.
fn share(demand: Demand) -> (f64, f64) {
    let load = demand.reads + demand.writes;
    (100.0 * demand.writes / load.max(f64::MIN_POSITIVE), load)
}

impl Solved {
    /// Whether all drives are to serve both: most would write at a time, and all together carry the demand so.
    fn is_to_mix(&self, view: &View<'_>, plan: &Plan, demand: Demand) -> bool {
        let drives = view.nodes.len();
        let writing: f64 = (0..drives).map(|at| times(view, plan, at)[WRITES]).sum();
        let (percent, load) = share(demand);
        let live = view.nodes.iter().filter(|node| node.is_live);
        let carried: f64 = live.map(|node| node.model.peak(percent)).sum();
        let at = usize::from(self.mixes);
        writing > WRITERS_MAX[at] * drives as f64 && carried >= CARRIES_MIN[at] * load
    }

    /// What the table has for this slot.
    fn in_slots(&mut self, view: &View<'_>, plan: &Plan, demand: Demand) -> Vec<Allotment> {
        let card = |at: usize| {
            let (node, writes_max) = (&view.nodes[at], view.fleet.drives[at].writes_max);
            Card::new(times(view, plan, at), node.model, demand, node.is_live, writes_max)
        };
        let cards: Vec<Card<'_>> = (0..view.nodes.len()).map(card).collect();
        let met = plan.peak.min(1.0);
        let carried = Demand { reads: demand.reads * met, writes: demand.writes * met };
        self.table.improve(&cards, carried);
        if self.turns_at.is_none_or(|at| view.now >= at) {
            self.turns_at = Some(view.now + view.slot_ns);
            self.table.turn();
        }
        let allot = |(chosen, card): (&usize, &Card<'_>)| {
            let (read, write) = card.rates[*chosen];
            Allotment { mode: [Mode::Reads, Mode::Writes, Mode::Mixed][*chosen], read, write }
        };
        self.table.now().iter().zip(&cards).map(allot).collect()
    }

    /// Weights of reads that give each node its part, by who holds what.
    fn balance(&mut self, view: &View<'_>, decision: &mut Decision) {
        if view.groups.is_empty() {
            return;
        }
        let capacities: Vec<f64> = decision.nodes.iter().map(|node| node.read).collect();
        let balance = balance(view.groups, &capacities, &self.reads);
        decision.reads_off = balance.off;
        for (node, weight) in decision.nodes.iter_mut().zip(&balance.weights) {
            node.read = *weight;
        }
        self.reads = balance.weights;
    }
}

/// Parts of its time that the plan has a drive in each mode. Time in which it idles is spread over them.
fn times(view: &View<'_>, plan: &Plan, at: usize) -> Times {
    let shape = &view.fleet.shapes[view.fleet.drives[at].shape];
    let mut times = Times::default();
    for (point, time) in &plan.drives[at].points {
        let does = shape.point(*point);
        let mode = match (does.reads > 0.0, does.writes > 0.0) {
            (true, false) => READS,
            (false, true) => WRITES,
            _ => MIXED,
        };
        times[mode] += time;
    }
    let busy: f64 = times.iter().sum();
    if busy > 0.0 { times.map(|time| time / busy) } else { times }
}
