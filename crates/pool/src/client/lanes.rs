//! Where bands go that are opened next: *openings*, each a life and the nodes it will lie on, drawn ahead by
//! weight and told to the control plane before they are used, so that no append waits for it.
//!
//! An opening names a life and no band: which block the FTL opens next is known only when it does. Who opens
//! the volume after us asks the members of each opening for any band of that life.
//!
//! Invariants:
//! - the members of an opening are in different failure domains, and as many as the volume has replicas;
//!   fewer only once the control plane has recorded that the volume goes on degraded;
//! - no life is used twice, and none before the control plane has it;
//! - an opening whose members do not all take new bands any more is given back unused.

use super::nodes::Nodes;
use crate::words::{DomainId, Generation, MEMBERS_MAX, Members, NodeId};
use flash::{Instant, Random};
use std::collections::VecDeque;

/// A life to come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opening {
    /// See [`BandName::life`](crate::words::BandName::life).
    pub life: u64,
    /// Where the band will lie.
    pub members: Members,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Lanes {
    generation: Generation,
    replicas: usize,
    ahead: usize,
    degraded: bool,
    /// Those that the control plane has come first.
    openings: VecDeque<Opening>,
    /// Of them, those that it has.
    registered: usize,
    /// Some were told and are not confirmed.
    telling: bool,
    lives: u32,
    /// Somebody waits for one.
    wanted: bool,
}

impl Lanes {
    /// For a volume with so many replicas, and openings ahead.
    pub fn new(generation: Generation, replicas: u32, ahead: u32) -> Self {
        Self {
            generation,
            replicas: (replicas as usize).clamp(1, MEMBERS_MAX),
            ahead: ahead.max(1) as usize,
            degraded: false,
            openings: VecDeque::new(),
            registered: 0,
            telling: false,
            lives: 0,
            wanted: false,
        }
    }

    /// The control plane has recorded whether the volume goes on with fewer copies.
    pub fn set_degraded(&mut self, degraded: bool) {
        self.degraded = degraded;
    }

    /// A band that is opened now. Those that do not serve any more go to `unused`. `None`: one is wanted as
    /// soon as there can be.
    pub fn take<P>(
        &mut self,
        now: Instant,
        nodes: &mut Nodes<P>,
        unused: &mut Vec<u64>,
    ) -> Option<Opening> {
        while self.registered > 0 {
            self.registered -= 1;
            let opening = self.openings.pop_front()?;
            if self.serves(now, &opening, nodes) {
                self.wanted = false;
                return Some(opening);
            }
            unused.push(opening.life);
        }
        self.wanted = true;
        None
    }

    /// What is to be told to the control plane now: nothing while it is being told, and nothing while most
    /// of what is kept ahead is there.
    pub fn refill<P>(
        &mut self,
        now: Instant,
        nodes: &mut Nodes<P>,
        random: &mut Random,
    ) -> Vec<Opening> {
        if self.telling || self.openings.len() > self.ahead / 2 && !self.wanted {
            return Vec::new();
        }
        let mut batch = Vec::new();
        while self.openings.len() < self.ahead || self.wanted && batch.is_empty() {
            let Some(members) = self.draw(now, nodes, random) else { break };
            self.lives = self.lives.checked_add(1).expect("2^32 bands were opened in a generation");
            let life = self.generation.0 << 32 | u64::from(self.lives);
            batch.push(Opening { life, members });
            self.openings.push_back(Opening { life, members });
        }
        self.telling = !batch.is_empty();
        batch
    }

    /// The control plane has all openings that it was told.
    pub fn registered(&mut self) {
        self.telling = false;
        self.registered = self.openings.len();
    }

    /// Somebody waits, and there is none.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Openings that can be taken, and all.
    pub fn counts(&self) -> (usize, usize) {
        (self.registered, self.openings.len())
    }

    fn serves<P>(&self, now: Instant, opening: &Opening, nodes: &mut Nodes<P>) -> bool {
        let members = opening.members.nodes();
        let enough = self.degraded || members.len() >= self.replicas;
        // What nobody wants to write to is still better than to wait, if it was drawn so.
        enough && members.iter().all(|&id| nodes.write_weight(now, id).is_some())
    }

    /// Nodes in different domains, one after the other by weight. Those of weight 0 only where there are no
    /// others, and then fewer than there should be only if the volume goes on degraded.
    fn draw<P>(&self, now: Instant, nodes: &mut Nodes<P>, random: &mut Random) -> Option<Members> {
        let ids: Vec<(NodeId, DomainId)> = nodes.all().map(|(id, node)| (id, node.domain)).collect();
        let mut free: Vec<(NodeId, DomainId, f64)> = Vec::new();
        for (id, domain) in ids {
            if let Some(weight) = nodes.write_weight(now, id) {
                free.push((id, domain, weight));
            }
        }
        let mut drawn = Vec::new();
        while drawn.len() < self.replicas && !free.is_empty() {
            let (id, domain, _) = free[draw_one(&free, random)];
            drawn.push(id);
            free.retain(|&(_, other, _)| other != domain);
        }
        let enough = drawn.len() == self.replicas || self.degraded;
        if enough { Members::new(&drawn) } else { None }
    }
}

/// Index of one, by weight; evenly among all if none has any.
fn draw_one(free: &[(NodeId, DomainId, f64)], random: &mut Random) -> usize {
    let total: f64 = free.iter().map(|&(.., weight)| weight).sum();
    if total <= 0.0 {
        return random.below(free.len() as u64) as usize;
    }
    let mut at = random.fraction() * total;
    for (index, &(.., weight)) in free.iter().enumerate() {
        at -= weight;
        if at < 0.0 && weight > 0.0 {
            return index;
        }
    }
    // Rounding: the last one with a weight.
    free.iter().rposition(|&(.., weight)| weight > 0.0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::nodes::{Mode, Plan, Share};
    use super::*;
    use crate::message::NodeFacts;
    use std::collections::BTreeMap;

    /// Two nodes to a domain.
    fn nodes(count: u32) -> Nodes<()> {
        let mut nodes = Nodes::new(9, true);
        for id in 0..count {
            nodes.join(NodeId(id), DomainId(id / 2));
            nodes.up(NodeFacts { node: NodeId(id), ..NodeFacts::default() });
        }
        nodes
    }

    const NOW: Instant = Instant(1);

    #[test]
    fn openings_are_told_in_batches_and_taken_only_when_they_are_known() {
        let (mut nodes, mut random) = (nodes(6), Random::new(1));
        let mut lanes = Lanes::new(Generation(3), 2, 8);
        let mut unused = Vec::new();
        let told = lanes.refill(NOW, &mut nodes, &mut random);
        assert_eq!(told.len(), 8);
        assert_eq!(told[0].life, 3 << 32 | 1);
        assert_eq!(lanes.take(NOW, &mut nodes, &mut unused), None);
        assert!(lanes.refill(NOW, &mut nodes, &mut random).is_empty(), "one batch at a time");
        lanes.registered();
        for opening in &told[..3] {
            assert_eq!(lanes.take(NOW, &mut nodes, &mut unused).as_ref(), Some(opening));
            assert!(lanes.refill(NOW, &mut nodes, &mut random).is_empty(), "enough are left");
        }
        lanes.take(NOW, &mut nodes, &mut unused);
        assert_eq!(lanes.refill(NOW, &mut nodes, &mut random).len(), 4);
        assert!(unused.is_empty());
    }

    #[test]
    fn members_lie_in_different_domains_in_proportion_to_their_weights() {
        let (mut nodes, mut random) = (nodes(8), Random::new(2));
        let heavy = Share { node: NodeId(0), mode: Mode::Mixed, read: 1.0, write: 4.0 };
        let idle = Share { node: NodeId(5), mode: Mode::Reads, read: 1.0, write: 1.0 };
        nodes.plan(NOW, &Plan { shares: vec![heavy, idle], until: Instant(9) });
        let mut lanes = Lanes::new(Generation(1), 2, 4000);
        let mut counts = BTreeMap::new();
        for opening in lanes.refill(NOW, &mut nodes, &mut random) {
            let [a, b] = opening.members.nodes() else { panic!("two members") };
            assert_ne!(a.0 / 2, b.0 / 2, "one domain");
            [a, b].iter().for_each(|node| *counts.entry(node.0).or_insert(0u32) += 1);
        }
        assert!(!counts.contains_key(&5), "{counts:?}");
        let ratio = f64::from(counts[&0]) / f64::from(counts[&2]);
        assert!((2.5..4.5).contains(&ratio), "{counts:?}");
    }

    #[test]
    fn too_few_domains_make_no_opening_unless_the_volume_goes_on_degraded() {
        let (mut nodes, mut random) = (nodes(2), Random::new(3));
        let mut lanes = Lanes::new(Generation(1), 2, 4);
        let mut unused = Vec::new();
        assert!(lanes.refill(NOW, &mut nodes, &mut random).is_empty());
        assert_eq!(lanes.take(NOW, &mut nodes, &mut unused), None);
        assert!(lanes.is_wanted());
        lanes.set_degraded(true);
        let told = lanes.refill(NOW, &mut nodes, &mut random);
        assert!(told.iter().all(|opening| opening.members.nodes().len() == 1), "{told:?}");
        lanes.registered();
        assert!(lanes.take(NOW, &mut nodes, &mut unused).is_some());
        lanes.set_degraded(false);
        assert_eq!(lanes.take(NOW, &mut nodes, &mut unused), None, "they have too few members");
        assert_eq!(unused.len(), 3);
    }

    #[test]
    fn an_opening_with_a_member_that_went_is_given_back() {
        let (mut nodes, mut random) = (nodes(4), Random::new(4));
        let mut lanes = Lanes::new(Generation(1), 2, 4);
        let mut unused = Vec::new();
        let told = lanes.refill(NOW, &mut nodes, &mut random);
        lanes.registered();
        let gone = told[0].members.nodes()[0];
        nodes.down(gone);
        let taken = lanes.take(NOW, &mut nodes, &mut unused);
        assert!(taken.is_none_or(|opening| !opening.members.has(gone)));
        assert!(unused.contains(&told[0].life));
    }
}
