//! Why a plan is as it is, in numbers and in words.

use super::policy::Decision;
use super::solver::Demand;
use super::weights::Mode;
use super::{Controller, Node};
use crate::words::NodeId;
use std::fmt;

/// Something that keeps the pool from doing more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The drives carry only this part of the demand within the service level.
    Demand(f64),
    /// Copies need different failure domains, and there are only so many with drives.
    Domains(usize),
    /// A node is not there.
    Gone(NodeId),
    /// A drive takes so many times as long as its profile says.
    Slow(NodeId, f64),
    /// A drive has used this part of its endurance.
    Worn(NodeId, f64),
    /// So many requests a second were refused by nodes that were congested.
    Rejected(f64),
    /// A drive meets the service level at no load that was measured.
    Useless(NodeId),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demand(part) => {
                write!(
                    f,
                    "the drives carry {:.0} % of the demand within the service level",
                    part * 100.0
                )
            }
            Self::Domains(count) => {
                write!(f, "only {count} failure domains have drives, fewer than replicas")
            }
            Self::Gone(node) => write!(f, "node {} is gone", node.0),
            Self::Slow(node, times) => {
                write!(f, "node {} takes {times:.1} times as long as its profile says", node.0)
            }
            Self::Worn(node, wear) => {
                write!(f, "node {} has used {:.0} % of its endurance", node.0, wear * 100.0)
            }
            Self::Rejected(rate) => write!(f, "nodes refused {rate:.0} requests a second"),
            Self::Useless(node) => {
                write!(f, "node {} meets the service level at no load that was measured", node.0)
            }
        }
    }
}

/// What the last plan was made for and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explained {
    /// By which policy.
    pub policy: String,
    /// Reads and writes of all drives a second, copies and GC included.
    pub demand: Demand,
    /// How many times the demand the drives carry; 0 if the policy does not reckon.
    pub peak: f64,
    /// Microseconds of waiting a second by the plan, and what no plan undercuts; 0 without a plan.
    pub cost: f64,
    /// See above.
    pub bound: f64,
    /// Nodes that serve both, reads, writes.
    pub modes: [usize; 3],
    /// How far reads of a node are from the plan at most, as a part of all.
    pub reads_off: f64,
    /// Part of the blocks that lie only on nodes which serve writes now.
    pub stuck: f64,
    /// What keeps the pool from doing more, by node.
    pub limits: Vec<Limit>,
}

impl Explained {
    /// How much less the best plan may cost, as a part.
    pub fn gap(&self) -> f64 {
        if self.bound > 0.0 { ((self.cost - self.bound) / self.cost).max(0.0) } else { 0.0 }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mixed, reads, writes] = self.modes;
        write!(
            f,
            "policy {}: {:.0} reads/s and {:.0} writes/s of drives; {mixed} nodes serve both, {reads} reads, \
             {writes} writes",
            self.policy, self.demand.reads, self.demand.writes
        )?;
        // Without demand they carry it any number of times.
        if self.peak > 0.0 && self.peak.is_finite() {
            write!(f, "; the drives carry {:.2} times that", self.peak)?;
        }
        if self.bound > 0.0 {
            write!(f, "; the plan is within {:.3} % of the best", self.gap() * 100.0)?;
        }
        if self.stuck > 0.0 {
            write!(f, "; {:.1} % of the blocks lie only where writes go", self.stuck * 100.0)?;
        }
        for limit in &self.limits {
            write!(f, "; {limit}")?;
        }
        Ok(())
    }
}

/// So many times as long as its profile says is worth telling.
const SLOW: f64 = 1.2;
const WORN: f64 = 0.9;

impl Controller {
    pub(super) fn explained_by(&self, decision: &Decision) -> Explained {
        let count = |mode: Mode| decision.nodes.iter().filter(|node| node.mode == mode).count();
        let mut limits = Vec::new();
        if decision.peak > 0.0 && decision.peak < 1.0 {
            limits.push(Limit::Demand(decision.peak));
        }
        let domains = self.fleet.domains_live();
        if domains < self.settings.replicas as usize {
            limits.push(Limit::Domains(domains));
        }
        let rejected: f64 = self.nodes.iter().map(|node| node.seen.rejected).sum();
        if rejected > 0.0 {
            limits.push(Limit::Rejected(rejected));
        }
        for (node, drive) in self.nodes.iter().zip(&self.fleet.drives) {
            limits.extend(of_node(node, drive.scale > 0.0));
        }
        Explained {
            policy: self.settings.policy.clone(),
            demand: self.demand,
            peak: decision.peak,
            cost: decision.cost,
            bound: decision.bound,
            modes: [Mode::Mixed, Mode::Reads, Mode::Writes].map(count),
            reads_off: decision.reads_off,
            stuck: decision.stuck,
            limits,
        }
    }
}

fn of_node(node: &Node, is_live: bool) -> impl Iterator<Item = Limit> {
    let (id, slowness, wear) = (node.node, node.watch.slowness(), node.seen.wear);
    let useless = node.model.points().is_empty();
    [
        (!is_live).then_some(Limit::Gone(id)),
        (slowness > SLOW).then_some(Limit::Slow(id, slowness)),
        (wear > WORN).then_some(Limit::Worn(id, wear)),
        useless.then_some(Limit::Useless(id)),
    ]
    .into_iter()
    .flatten()
}
