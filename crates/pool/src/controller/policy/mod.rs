//! Policies of the controller, by name: from the same view each says what every node serves and how much of the
//! reads and writes it gets. A policy cannot lose anything, whatever it says; it can only be slow.

mod plain;
mod ring;
mod solved;
mod table;

use super::balance::Group;
use super::solver::{Demand, Fleet, Terms};
use super::weights::Mode;
use crate::profile::LoadModel;
use crate::words::NodeId;
use flash::Instant;

/// A node, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Which.
    pub node: NodeId,
    /// What it carries.
    pub model: &'a LoadModel,
    /// It is there.
    pub is_live: bool,
}

/// What a policy knows.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Instant,
    /// Reads and writes of all nodes a second, copies and GC included.
    pub demand: Demand,
    /// What a plan keeps to.
    pub terms: Terms,
    /// In the order of their ids.
    pub nodes: &'a [NodeView<'a>],
    /// The same nodes, in the same order, as the solver sees them.
    pub fleet: &'a Fleet,
    /// Which nodes hold which part of the blocks together, by places in `nodes`; empty if nobody told.
    pub groups: &'a [Group],
    /// How long nodes serve the same at most.
    pub slot_ns: u64,
}

/// What a node is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allotment {
    /// What it serves.
    pub mode: Mode,
    /// Its weight of reads, from 0 on, on any scale.
    pub read: f64,
    /// Likewise of writes.
    pub write: f64,
}

/// What a policy decided, and how it came to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// By node, in the order of the view.
    pub nodes: Vec<Allotment>,
    /// How many times the demand the nodes carry by this policy's reckoning; 0 if it does not reckon.
    pub peak: f64,
    /// Cost of the plan, in microseconds of waiting a second; 0 if there is none.
    pub cost: f64,
    /// No plan costs less.
    pub bound: f64,
    /// How far reads of a node are from its target at most, as a part of all reads.
    pub reads_off: f64,
    /// Part of the blocks that lie only on nodes which serve writes now.
    pub stuck: f64,
}

/// See the head of the file.
pub trait Policy: Send + std::fmt::Debug {
    /// What every node is to do from now on.
    fn plan(&mut self, view: &View<'_>) -> Decision;
}

/// The names that [`named`] knows, and what each does.
pub const POLICIES: [(&str, &str); 5] = [
    ("static", "all nodes equal, serving reads and writes"),
    ("weighted", "all serve both, by weights that make their latencies equal"),
    (
        "segregated",
        "a ring of nodes of which the next few serve writes, the others reads, all equal",
    ),
    ("ring", "the same ring, by weights that make latencies equal"),
    ("solver", "modes and weights of the plan with the least total latency, rotated"),
];

/// The policy of this name.
pub fn named(name: &str) -> Option<Box<dyn Policy>> {
    Some(match name {
        "static" => Box::new(plain::Static),
        "weighted" => Box::new(plain::Weighted),
        "segregated" => Box::new(ring::Ring::new(false)),
        "ring" => Box::new(ring::Ring::new(true)),
        "solver" => Box::<solved::Solved>::default(),
        _ => return None,
    })
}
