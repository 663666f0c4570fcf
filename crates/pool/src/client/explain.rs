//! What the client says of itself: counters, weights of lanes and bands, and in words what it waits for.

use super::directory::Phase;
use super::lanes::Next;
use super::nodes::Node;
use super::shares::{Shares, WANTED_MAX};
use super::{Output, Over, Remote};
use crate::words::{BandName, NodeId};
use flash::{BLOCK_BYTES, BlockId};
use ftl::policy::{UnitWeights, WEIGHT_FULL};

/// What was counted since the client was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Asks to nodes.
    pub asks: u64,
    /// Programs that ended well.
    pub programs: u64,
    /// Programs that ended as cut.
    pub programs_cut: u64,
    /// Bands that were cut, with or without a program under way.
    pub cuts: u64,
    /// Bands that got another opening, before they had a page.
    pub openings_again: u64,
    /// Openings that were given back unused.
    pub openings_unused: u64,
    /// Batches of openings told to the control plane.
    pub registrations: u64,
    /// Appends that nodes refused.
    pub appends_refused: u64,
    /// Appends and reads for which nodes had no room, and which they are asked for again.
    pub busy: u64,
    /// Members that were late with an append.
    pub late_programs: u64,
    /// Reads that were answered here: nothing was written there.
    pub reads_local: u64,
    /// Reads that nodes refused.
    pub reads_refused: u64,
    /// Members that were late with a read.
    pub late_reads: u64,
    /// Reads that were sent to a second member before the first was late.
    pub hedges: u64,
    /// Members that were asked after another refused, was unsound or late.
    pub retries: u64,
    /// Slots that a member should have had sound.
    pub unsound: u64,
    /// Slots that no member had.
    pub slots_lost: u64,
    /// Nodes that were given up since they did not flush in time.
    pub late_flushes: u64,
    /// Copies that went with a node before it had flushed them.
    pub unflushed_lost: u64,
}

impl<D: Clone> Remote<D> {
    /// What was counted.
    pub fn counters(&self) -> Counters {
        Counters {
            hedges: self.reads.hedges,
            retries: self.reads.retries,
            unsound: self.reads.unsound,
            ..self.counters
        }
    }

    /// How often each node's limit was halved.
    pub fn halvings(&self) -> Vec<(NodeId, u64)> {
        self.nodes.all().map(|(id, node)| (id, node.limit.halvings)).collect()
    }

    /// Lanes that are wanted for another band, and open bands that are wanted for more pages.
    pub fn places_wanted(&self) -> (usize, usize) {
        let next = self.weights.next.iter().filter(|&&weight| weight > 0).count();
        let open = self.weights.open.iter().filter(|&&(_, weight)| weight > 0).count();
        (next, open)
    }

    /// Whether some node has all pages of this life so that a power cut leaves them.
    pub fn is_durable(&self, name: BandName) -> bool {
        let has = |&node: &NodeId| {
            self.nodes.is_durable(node) || !self.flushes.unflushed(node).any(|of| of == name)
        };
        let is_alone = self.flushes.alone().any(|of| of == name);
        !is_alone && self.directory.life(name).is_some_and(|held| held.nodes.iter().any(has))
    }

    /// Open bands with fewer members than the volume has replicas.
    pub fn open_lacking(&self) -> u64 {
        let open = self.directory.bands().filter(|held| held.phase == Phase::Open);
        open.filter(|held| held.nodes.len() < self.config.replicas as usize).count() as u64
    }

    /// Whether programs wait for nodes: too few in different domains take bands.
    pub fn lacks_nodes(&self) -> bool {
        let (ready, ahead) = self.lanes.counts();
        self.lanes.is_wanted() && ahead <= ready
    }

    /// What the client does and waits for, in words.
    pub fn explain(&self) -> String {
        let mut text = match self.over {
            None => String::new(),
            Some(Over::LeaseLost) => "over: the lease was lost\n".into(),
            Some(Over::Stale { highest }) => {
                format!("over: the volume has a newer owner, of generation {}\n", highest.0)
            }
        };
        let (open, sealed) = self.directory.bands().fold((0, 0), |(open, sealed), held| {
            if held.phase == Phase::Open { (open + 1, sealed) } else { (open, sealed + 1) }
        });
        let (ready, ahead) = self.lanes.counts();
        text.push_str(&format!(
            "{open} bands open, {sealed} sealed; {ready} openings ready of {ahead}; {} programs and {} \
             reads under way, {} reads done that wait for the lease\n",
            self.programs.count(),
            self.reads.count(),
            self.held.len()
        ));
        let (next, takes) = self.places_wanted();
        text.push_str(&format!(
            "{takes} of {} open bands take pages now, and {next} of {} lanes another band\n",
            self.weights.open.len(),
            self.weights.next.len()
        ));
        if self.lacks_nodes() {
            text.push_str(
                "programs wait for nodes: too few in different domains are up and take new bands\n",
            );
        } else if self.lanes.is_wanted() {
            text.push_str(
                "programs wait for the control plane to keep that their bands may be open\n",
            );
        }
        let count = self.parked.len();
        if count > 0 {
            text.push_str(&format!("{count} reads wait for an answer, or for who has the data\n"));
        }
        let waits = self.flushes.waits_for();
        if !waits.is_empty() {
            text.push_str(&format!("a flush waits for nodes {:?}\n", ids(&waits)));
        }
        let alone = self.flushes.alone().count();
        if alone > 0 {
            text.push_str(&format!(
                "flushes wait for nodes that went before they had flushed the last copies of {alone} bands\n"
            ));
        }
        if self.flushes.waits_for_record() {
            text.push_str(
                "a flush waits for the control plane to keep where bands end that lost a member\n",
            );
        }
        if let Some(ns) = self.reads.quantile(500) {
            text.push_str(&format!("half of all reads take up to {} us\n", ns / 1000));
        }
        self.nodes.all().for_each(|(id, node)| text.push_str(&self.explain_node(id, node)));
        text
    }

    /// What it thinks of one node.
    fn explain_node(&self, id: NodeId, node: &Node) -> String {
        let state = match node.facts {
            None => "away",
            Some(_) if node.leaves => "leaving",
            Some(_) if self.now < node.shy_until => "takes no new bands for a while",
            Some(_) => "up",
        };
        let mut text = format!(
            "node {} in domain {}: {state}, {:?}, {} asks, {} seals and frees to be told, halved {} times\n",
            id.0,
            node.domain.0,
            self.nodes.mode(id),
            node.asked,
            self.chores.count(id),
            node.limit.halvings
        );
        if node.unfit > 0 {
            let mib = u64::from(self.config.shape().slots()) * BLOCK_BYTES as u64 / (1 << 20);
            text.push_str(&format!(
                "node {} refused the first page of {} bands: a band of {mib} MiB and its headers is more than a raw \
                 block there, it seems; make the volume with a smaller --band, or the drive with a larger raw.gang\n",
                id.0, node.unfit
            ));
        }
        text
    }

    /// Tells the FTL how much its places for pages are wanted, if that has changed: an open band so much that every node
    /// gets its part. A lane likewise for another band if the plane has the opening that comes next; else a page would
    /// wait there for the plane while other lanes could take it.
    pub(super) fn weigh(&mut self) {
        let now = self.now;
        let targets = self.nodes.write_targets(now);
        let (blocks, open): (Vec<BlockId>, Vec<&[NodeId]>) = self.programs.open().unzip();
        let shares = Shares::new(&targets, &open);
        let of_next = |lane| match self.lanes.next(lane) {
            Next::None => weight(1.0),
            Next::Untold => 0,
            Next::Ready(opening) => weight(shares.of(opening.members.nodes())),
        };
        let next = (0..self.config.geometry.units).map(of_next).collect();
        let open = blocks.into_iter().zip(open).map(|(block, members)| {
            // One that waits for its opening has no members yet.
            let wanted = if members.is_empty() { 0.0 } else { shares.of(members) };
            let stays = |node: &NodeId| shares.has(*node) || self.nodes.lingers(now, *node);
            let lingers = wanted == 0.0 && !members.is_empty() && members.iter().all(stays);
            (block, if lingers { 1 } else { weight(wanted) })
        });
        let weights = UnitWeights { next, open: open.collect() };
        if weights != self.weights {
            self.weights.clone_from(&weights);
            self.outputs.push_back(Output::Weights(weights));
        }
    }
}

/// Next to nothing is not nothing: that means that it is left alone.
fn weight(wanted: f64) -> u16 {
    let of_full = wanted / WANTED_MAX;
    if of_full > 0.0 { ((of_full * f64::from(WEIGHT_FULL)) as u16).max(1) } else { 0 }
}

fn ids(nodes: &[NodeId]) -> Vec<u32> {
    nodes.iter().map(|node| node.0).collect()
}
