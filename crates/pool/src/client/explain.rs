//! What the client says of itself: counters, weights of lanes, and in words what it waits for.

use super::directory::Phase;
use super::{Output, Over, Remote};
use crate::words::NodeId;
use flash::BlockId;
use ftl::policy::WEIGHT_FULL;

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
        let takes = self.weights.iter().filter(|&&weight| weight > 0).count();
        text.push_str(&format!("{takes} of {} lanes take pages now\n", self.weights.len()));
        if self.lanes.is_wanted() {
            text.push_str(if ahead > ready {
                "programs wait for the control plane to keep that their bands may be open\n"
            } else {
                "programs wait for nodes: too few in different domains are up and take new bands\n"
            });
        }
        if !self.parked.is_empty() {
            let count = self.parked.len();
            text.push_str(&format!("{count} reads wait for an answer, or for who has the data\n"));
        }
        let waits = self.flushes.waits_for();
        if !waits.is_empty() {
            text.push_str(&format!("a flush waits for nodes {:?}\n", ids(&waits)));
        }
        if self.flushes.waits_for_record() {
            text.push_str(
                "a flush waits for the control plane to keep where bands end that lost a member\n",
            );
        }
        if let Some(ns) = self.reads.quantile(500) {
            text.push_str(&format!("half of all reads take up to {} us\n", ns / 1000));
        }
        for (id, node) in self.nodes.all() {
            let state = match node.facts {
                None => "away",
                Some(_) if node.leaves => "leaving",
                Some(_) if self.now < node.shy_until => "takes no new bands for a while",
                Some(_) => "up",
            };
            text.push_str(&format!(
                "node {} in domain {}: {state}, {:?}, {} asks, {} seals and frees to be told, halved {} \
                 times\n",
                id.0,
                node.domain.0,
                self.nodes.mode(id),
                node.asked,
                self.chores.count(id),
                node.limit.halvings
            ));
        }
        text
    }

    /// Tells the FTL how much each lane is wanted, if that has changed: as much as the member that is wanted
    /// least among all that are open there. One without an open band is as good as any if the plane has the
    /// opening that comes next; else a page would wait there for the plane while other lanes could take it.
    pub(super) fn weigh(&mut self) {
        let geometry = self.config.geometry;
        let mut open: Vec<Option<u16>> = vec![None; geometry.units as usize];
        for block in self.programs.blocks() {
            let weight = self.weight_of(block);
            let lane = &mut open[geometry.unit_of(block) as usize];
            *lane = Some(lane.map_or(weight, |least| least.min(weight)));
        }
        let of_next = |lane| if self.lanes.is_ready(lane) { WEIGHT_FULL } else { 0 };
        let weights: Vec<u16> =
            (0..).zip(open).map(|(lane, open)| open.unwrap_or_else(|| of_next(lane))).collect();
        if weights != self.weights {
            self.weights.clone_from(&weights);
            self.outputs.push_back(Output::Weights(weights));
        }
    }

    fn weight_of(&mut self, block: BlockId) -> u16 {
        if self.programs.is_unbound(block) {
            return 0;
        }
        let mut least = 1.0;
        for node in self.programs.nodes(block) {
            let weight = self.nodes.open_weight(self.now, node);
            if weight < least {
                least = weight;
            }
        }
        // Next to nothing is not nothing: that means that the lane is left alone.
        if least > 0.0 { ((least * f64::from(WEIGHT_FULL)) as u16).max(1) } else { 0 }
    }
}

fn ids(nodes: &[NodeId]) -> Vec<u32> {
    nodes.iter().map(|node| node.0).collect()
}
