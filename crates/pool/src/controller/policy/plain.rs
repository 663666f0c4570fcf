//! Policies without segregation: every node serves reads and writes.

use super::super::solver::Demand;
use super::super::weights::Mode;
use super::{Allotment, Decision, NodeView, Policy, View};
use crate::profile::Carried;

/// All equal.
#[derive(Debug)]
pub(super) struct Static;

impl Policy for Static {
    fn plan(&mut self, view: &View<'_>) -> Decision {
        let equal = |node: &NodeView<'_>| {
            let weight = if node.is_live { 1.0 } else { 0.0 };
            Allotment { mode: Mode::Mixed, read: weight, write: weight }
        };
        Decision { nodes: view.nodes.iter().map(equal).collect(), ..Decision::default() }
    }
}

/// Each gets so much that all are as late as each other, at the share of writes that all see.
#[derive(Debug)]
pub(super) struct Weighted;

impl Policy for Weighted {
    fn plan(&mut self, view: &View<'_>) -> Decision {
        let Demand { reads, writes } = view.demand;
        let percent = 100.0 * writes / (reads + writes).max(f64::MIN_POSITIVE);
        let live: Vec<&NodeView<'_>> = view.nodes.iter().collect();
        let loads = equally_late(&live, percent, reads + writes);
        let carried: f64 =
            view.nodes.iter().filter(|node| node.is_live).map(|n| n.model.peak(percent)).sum();
        let allot = |load: &f64| Allotment { mode: Mode::Mixed, read: *load, write: *load };
        Decision {
            nodes: loads.iter().map(allot).collect(),
            peak: carried / (reads + writes).max(f64::MIN_POSITIVE),
            ..Decision::default()
        }
    }
}

/// Halvings of the latency that all have.
const HALVINGS: usize = 40;
/// From this part of what all carry on loads are as peaks are, as published.
const NEAR_PEAK: f64 = 0.95;

/// Loads of nodes at a share of writes, `load` together, that make their latencies equal; near the peak and
/// beyond, in the ratio of their peaks.
pub(super) fn equally_late(nodes: &[&NodeView<'_>], percent: f64, load: f64) -> Vec<f64> {
    let live = nodes.iter().map(|node| node.is_live.then_some(node.model));
    let curves: Vec<Option<&Carried>> =
        live.map(|model| model.map(|model| model.curve(percent))).collect();
    let within = |us: f64| -> Vec<f64> {
        curves.iter().map(|curve| curve.map_or(0.0, |curve| curve.load_within(us))).collect()
    };
    let Some(most) = nodes.iter().map(|node| node.model.slo().us).reduce(f64::max) else {
        return Vec::new();
    };
    let peaks = within(most);
    if load >= NEAR_PEAK * peaks.iter().sum::<f64>() {
        return peaks;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if within(middle).iter().sum::<f64>() >= load {
            high = middle;
        } else {
            low = middle;
        }
    }
    within(high)
}
