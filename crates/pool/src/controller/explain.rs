//! Why a plan is as it is, in numbers and in words.

use super::policy::Decision;
use super::solver::Demand;
use super::weights::Mode;
use super::{Controller, Node, REDUNDANCY_NS, Redundancy, Room};
use crate::words::{DomainId, NodeId, VolumeId};
use flash::Instant;
use std::collections::BTreeSet;
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
    /// A node is there, and nothing is known of what its drive can do.
    Unknown(NodeId),
    /// A node has hardly a raw block left for another band.
    Full {
        /// Which.
        node: NodeId,
        /// Its raw blocks for bands.
        bands: u32,
        /// Those that hold one.
        used: u32,
    },
}

impl Limit {
    /// What to do about it, where that is not plain.
    fn mend(&self) -> Option<&'static str> {
        match self {
            Self::Unknown(_) => Some(
                "measure the drive with `weir profile` and name the file in the node's config (node.profile), or let it \
                 join again with --profile NAME",
            ),
            Self::Full { .. } => Some("let more nodes join, or delete volumes"),
            _ => None,
        }
    }

    /// What it is, without what to do.
    fn tell(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            Self::Unknown(node) => write!(f, "node {} has no profile to plan by", node.0),
            Self::Full { node, bands, used } => {
                write!(f, "node {} is full: {used} of {bands} raw blocks hold bands", node.0)
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f)?;
        self.mend().map_or(Ok(()), |mend| write!(f, ": {mend}"))
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
    /// What keeps the pool from doing more.
    pub limits: Vec<Limit>,
    /// What nodes have room for, as each told last.
    pub rooms: Vec<(NodeId, Room)>,
    /// Whether volumes have all their copies, of those whose clients tell.
    pub redundancy: Vec<(VolumeId, Redundancy)>,
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
        for (at, limit) in self.limits.iter().enumerate() {
            write!(f, "; ")?;
            limit.tell(f)?;
            // What can be done about many nodes is said once.
            let next = self.limits.get(at + 1).and_then(Limit::mend);
            if let Some(mend) = limit.mend().filter(|mend| next != Some(mend)) {
                write!(f, ": {mend}")?;
            }
        }
        Ok(())
    }
}

/// So many times as long as its profile says is worth telling.
const SLOW: f64 = 1.2;
const WORN: f64 = 0.9;
/// Percent of its raw blocks, from which on a node is full: the rest is on its way to be freed.
const FULL: u64 = 98;

impl Controller {
    pub(super) fn explained_by(&self, now: Instant, decision: &Decision) -> Explained {
        let count = |mode: Mode| decision.nodes.iter().filter(|node| node.mode == mode).count();
        let redundancy = self.volumes.iter().filter_map(|(volume, (seen, at))| {
            let told = seen.redundancy.filter(|_| now - *at < REDUNDANCY_NS)?;
            Some((*volume, told))
        });
        Explained {
            policy: self.settings.policy.clone(),
            demand: self.demand,
            peak: decision.peak,
            cost: decision.cost,
            bound: decision.bound,
            modes: [Mode::Mixed, Mode::Reads, Mode::Writes].map(count),
            reads_off: decision.reads_off,
            stuck: decision.stuck,
            limits: self.limits(now, decision),
            rooms: self.rooms(),
            redundancy: redundancy.collect(),
        }
    }

    fn limits(&self, now: Instant, decision: &Decision) -> Vec<Limit> {
        let mut limits = Vec::new();
        if decision.peak > 0.0 && decision.peak < 1.0 {
            limits.push(Limit::Demand(decision.peak));
        }
        // Copies lie on all that are there: also where the plan counts on nothing.
        let there = self.there(now);
        let domains: BTreeSet<DomainId> = there.iter().map(|(_, domain, _)| *domain).collect();
        if domains.len() < self.settings.replicas as usize {
            limits.push(Limit::Domains(domains.len()));
        }
        let rejected: f64 = self.nodes.iter().map(|node| node.seen.rejected).sum();
        if rejected > 0.0 {
            limits.push(Limit::Rejected(rejected));
        }
        for (node, drive) in self.nodes.iter().zip(&self.fleet.drives) {
            limits.extend(of_node(node, drive.scale > 0.0));
        }
        let silent_ns = self.settings.silent_ns;
        let (live, gone): (Vec<_>, Vec<_>) =
            self.strangers.iter().partition(|(_, of)| of.is_live(now, silent_ns));
        limits.extend(gone.into_iter().map(|(node, _)| Limit::Gone(*node)));
        // Who has not told anything yet may still tell of its drive.
        let told = live.into_iter().filter(|(_, of)| of.seen.is_some());
        limits.extend(told.map(|(node, _)| Limit::Unknown(*node)));
        let full = there.into_iter().filter_map(|(node, _, room)| {
            let room = room.filter(|room| {
                room.bands > 0 && u64::from(room.used) * 100 >= u64::from(room.bands) * FULL
            })?;
            Some(Limit::Full { node, bands: room.bands, used: room.used })
        });
        limits.extend(full);
        limits
    }

    /// Nodes that are there, by what they fail together with, and their room where it is known.
    fn there(&self, now: Instant) -> Vec<(NodeId, DomainId, Option<Room>)> {
        let drives = self.nodes.iter().zip(&self.fleet.drives);
        let planned = drives.filter(|(_, drive)| drive.scale > 0.0);
        let planned = planned.map(|(node, _)| (node.node, node.domain, node.seen.room));
        let strangers =
            self.strangers.iter().filter(|(_, of)| of.is_live(now, self.settings.silent_ns));
        let strangers = strangers.map(|(node, of)| (*node, of.domain, of.room()));
        planned.chain(strangers).collect()
    }

    fn rooms(&self) -> Vec<(NodeId, Room)> {
        let planned = self.nodes.iter().map(|node| (node.node, node.seen.room));
        let strangers = self.strangers.iter().map(|(node, of)| (*node, of.room()));
        let all = planned.chain(strangers);
        all.filter_map(|(node, room)| Some((node, room?))).collect()
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
