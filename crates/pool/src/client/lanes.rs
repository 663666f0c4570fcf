//! Where bands go that are opened next: *openings*, each a life of a free band and the nodes it will lie on,
//! drawn by weight and told to the control plane ahead of their use, so that no append waits for it.
//!
//! Which free band of a lane the FTL opens next is its own choice; those erased least, and of them the first,
//! are its usual one. For another, or where nothing is ready, the append waits until the plane knows.
//!
//! Invariants:
//! - the members of an opening are in different failure domains, and as many as the volume has replicas;
//!   fewer only once the control plane has recorded that the volume goes on degraded, and then as many as there are
//!   domains with nodes that take bands, whether they are to or not;
//! - no life is used twice, and none before the control plane has it;
//! - of two members one serves reads, too, while others do not, as far as each node gets its part of the writes so;
//! - an opening whose members do not all take new bands any more, or that nobody wants there any more, is
//!   given back unused, and drawn anew.

use super::nodes::{Mode, Nodes};
use crate::words::{BandName, DomainId, Generation, MEMBERS_MAX, Members, NodeId, VolumeId};
use flash::{BlockId, Geometry, Instant, Random};
use std::collections::{BTreeMap, BTreeSet};

/// A life to come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opening {
    /// Of which band.
    pub name: BandName,
    /// Where it will lie.
    pub members: Members,
}

/// What a lane has for its next band.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// No band is free: nobody can wait for one.
    None,
    /// The control plane has no opening of it yet.
    Untold,
    /// This one.
    Ready(&'a Opening),
}

#[derive(Clone, Copy, Debug)]
struct Ahead {
    opening: Opening,
    registered: bool,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Lanes {
    volume: VolumeId,
    generation: Generation,
    replicas: usize,
    /// Openings kept for each lane.
    ahead: usize,
    degraded: bool,
    geometry: Geometry,
    /// Of each lane, free bands: erases that we know of, and which.
    free: Vec<BTreeSet<(u32, BlockId)>>,
    erases: Vec<u32>,
    openings: BTreeMap<BlockId, Ahead>,
    /// Somebody waits for these.
    wanted: BTreeSet<BlockId>,
    lives: u32,
    /// A band was freed, taken or is waited for since the last look.
    changed: bool,
}

impl Lanes {
    /// Of a volume, with so many replicas, and openings ahead for each lane.
    pub fn new(
        (volume, generation): (VolumeId, Generation),
        geometry: Geometry,
        replicas: u32,
        ahead: u32,
    ) -> Self {
        Self {
            volume,
            generation,
            replicas: (replicas as usize).clamp(1, MEMBERS_MAX),
            ahead: ahead as usize,
            degraded: false,
            geometry,
            free: vec![BTreeSet::new(); geometry.units as usize],
            erases: vec![0; geometry.blocks() as usize],
            openings: BTreeMap::new(),
            wanted: BTreeSet::new(),
            lives: 0,
            changed: true,
        }
    }

    /// The control plane has recorded whether the volume goes on with fewer copies.
    pub fn set_degraded(&mut self, degraded: bool) {
        (self.degraded, self.changed) = (degraded, true);
    }

    /// A band is free: found so, or erased.
    pub fn freed(&mut self, block: BlockId, by_erase: bool) {
        let lane = self.geometry.unit_of(block) as usize;
        let erases = &mut self.erases[block.0 as usize];
        self.free[lane].remove(&(*erases, block));
        *erases += u32::from(by_erase);
        self.free[lane].insert((*erases, block));
        self.changed = true;
    }

    /// The opening of a band whose first page is here. `None`: it is told to the plane as soon as there can be
    /// one.
    pub fn take<P>(
        &mut self,
        now: Instant,
        block: BlockId,
        nodes: &mut Nodes<P>,
    ) -> Option<Opening> {
        let lane = self.geometry.unit_of(block) as usize;
        self.changed |= self.free[lane].remove(&(self.erases[block.0 as usize], block));
        let ready = self.openings.get(&block).filter(|ahead| ahead.registered);
        let Some(opening) = ready.map(|ahead| ahead.opening) else {
            self.changed |= self.wanted.insert(block);
            return None;
        };
        if !self.serves(now, &opening, nodes, false) {
            self.wanted.insert(block);
            self.changed = true;
            return None;
        }
        self.openings.remove(&block);
        self.wanted.remove(&block);
        Some(opening)
    }

    /// What is to be told to the control plane now; and what it need not keep any more goes to `unused`.
    pub fn refill<P>(
        &mut self,
        now: Instant,
        nodes: &mut Nodes<P>,
        random: &mut Random,
        unused: &mut Vec<Opening>,
    ) -> Vec<Opening> {
        self.changed = false;
        let mut blocks: Vec<(BlockId, bool)> =
            self.wanted.iter().map(|&block| (block, false)).collect();
        for lane in &self.free {
            blocks.extend(lane.iter().take(self.ahead).map(|&(_, block)| (block, true)));
        }
        let mut batch = Vec::new();
        for (block, choosy) in blocks {
            if let Some(ahead) = self.openings.get(&block).copied() {
                if self.serves(now, &ahead.opening, nodes, choosy) {
                    continue;
                }
                // A life that the plane has not confirmed is replaced by the next one in its records.
                unused.push(ahead.opening);
                self.openings.remove(&block);
            }
            let Some(members) = self.draw(now, nodes, random, choosy) else { continue };
            self.lives = self.lives.checked_add(1).expect("2^32 bands were opened in a generation");
            let life = self.generation.0 << 32 | u64::from(self.lives);
            let name = BandName { volume: self.volume, band: block.0, life };
            let opening = Opening { name, members };
            self.openings.insert(block, Ahead { opening, registered: false });
            batch.push(opening);
        }
        batch
    }

    /// The control plane has this opening.
    pub fn registered(&mut self, name: BandName) {
        let ahead = self.openings.get_mut(&BlockId(name.band));
        if let Some(ahead) = ahead.filter(|ahead| ahead.opening.name == name) {
            ahead.registered = true;
        }
    }

    /// Nobody waits for an opening of this band any more.
    pub fn unwanted(&mut self, block: BlockId) {
        self.wanted.remove(&block);
    }

    /// Whether there may be something to be told, even if no node has changed.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Somebody waits, and there is none.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The band that is usually opened next in a lane.
    pub fn next(&self, lane: u32) -> Next<'_> {
        let Some((_, block)) = self.free[lane as usize].first() else { return Next::None };
        match self.openings.get(block) {
            Some(ahead) if ahead.registered => Next::Ready(&ahead.opening),
            _ => Next::Untold,
        }
    }

    /// Openings that can be taken, and all.
    pub fn counts(&self) -> (usize, usize) {
        let ready = self.openings.values().filter(|ahead| ahead.registered).count();
        (ready, self.openings.len())
    }

    /// Whether bands can be opened without these nodes, on as many others as there should be.
    pub fn can_do_without<P>(&self, now: Instant, late: &[NodeId], nodes: &mut Nodes<P>) -> bool {
        takers(now, late, nodes) >= self.replicas
    }

    /// How many members a band must have that is opened now.
    fn least<P>(&self, now: Instant, nodes: &mut Nodes<P>) -> usize {
        match self.degraded {
            true => takers(now, &[], nodes).clamp(1, self.replicas),
            false => self.replicas,
        }
    }

    /// Of a volume that goes on degraded: whether a band with so few members could have more by now.
    pub fn is_short<P>(&self, now: Instant, members: usize, nodes: &mut Nodes<P>) -> bool {
        self.degraded && members < self.replicas && members < self.least(now, nodes)
    }

    /// Whether the members of an opening take new bands; with `choosy`, whether they are also to.
    fn serves<P>(
        &self,
        now: Instant,
        opening: &Opening,
        nodes: &mut Nodes<P>,
        choosy: bool,
    ) -> bool {
        let members = opening.members.nodes();
        let takes = |weight: Option<f64>| weight.is_some_and(|weight| !choosy || weight > 0.0);
        (members.len() >= self.replicas || members.len() >= self.least(now, nodes))
            && members.iter().all(|&id| takes(nodes.write_weight(now, id)))
    }

    /// Nodes in different domains, one after the other by weight. Those of weight 0 only where there are no
    /// others, and not if `choosy`; fewer than there should be only if the volume goes on degraded.
    fn draw<P>(
        &self,
        now: Instant,
        nodes: &mut Nodes<P>,
        random: &mut Random,
        choosy: bool,
    ) -> Option<Members> {
        let ids: Vec<(NodeId, DomainId)> =
            nodes.all().map(|(id, node)| (id, node.domain)).collect();
        let mut free: Vec<(NodeId, DomainId, f64)> = Vec::new();
        for (id, domain) in ids {
            let weight = nodes.write_weight(now, id).filter(|&weight| !choosy || weight > 0.0);
            free.extend(weight.map(|weight| (id, domain, weight)));
        }
        let reads = |&(id, ..): &(NodeId, DomainId, f64)| nodes.mode(id) == Mode::Mixed;
        let pair = if self.replicas == 2 { draw_pair(&free, reads, random) } else { None };
        let mut drawn = pair.map_or_else(Vec::new, |pair| pair.to_vec());
        while drawn.len() < self.replicas && !free.is_empty() {
            let (id, domain, _) = free[draw_one(&free, random)];
            drawn.push(id);
            free.retain(|&(_, other, _)| other != domain);
        }
        let enough = drawn.len() == self.replicas || drawn.len() >= self.least(now, nodes);
        if enough { Members::new(&drawn) } else { None }
    }
}

/// Domains with nodes that take bands, without these.
fn takers<P>(now: Instant, without: &[NodeId], nodes: &mut Nodes<P>) -> usize {
    let all = nodes.all().filter(|(id, _)| !without.contains(id));
    let all: Vec<(NodeId, DomainId)> = all.map(|(id, node)| (id, node.domain)).collect();
    let takes = all.into_iter().filter(|(id, _)| nodes.write_weight(now, *id).is_some());
    takes.map(|(_, domain)| domain).collect::<BTreeSet<_>>().len()
}

/// Two nodes in different domains. Where some of them serve reads meanwhile and others do not, as many pairs as can be have
/// one that does: what lies only on those that do not is read there all the same, and these reads are late and make the
/// writes late. `None` where there are not both kinds, or one after the other will do.
fn draw_pair(
    free: &[(NodeId, DomainId, f64)],
    reads: impl Fn(&(NodeId, DomainId, f64)) -> bool,
    random: &mut Random,
) -> Option<[NodeId; 2]> {
    let all: f64 = free.iter().map(|&(.., weight)| weight).sum();
    let of_readers: f64 = free.iter().filter(|node| reads(node)).map(|&(.., weight)| weight).sum();
    let part = of_readers / all;
    if !(part > 0.0 && part < 1.0) {
        return None;
    }
    let first = free[draw_one(free, random)];
    // So that each node gets its part all the same.
    let alike = match reads(&first) {
        true => (2.0 * part - 1.0).max(0.0) / part,
        false => (1.0 - 2.0 * part).max(0.0) / (1.0 - part),
    };
    let is_reader = reads(&first) == random.chance(alike);
    let others = free.iter().filter(|node| node.1 != first.1 && node.2 > 0.0);
    let fits: Vec<_> = others.filter(|node| reads(node) == is_reader).copied().collect();
    if fits.is_empty() {
        return None;
    }
    let second = fits[draw_one(&fits, random)];
    Some([first.0, second.0])
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
    use super::super::nodes::Plan;
    use super::*;
    use crate::controller::weights::NodeWeights;
    use crate::message::NodeFacts;
    use flash::{FastTier, Pairing};

    /// Two nodes to a domain.
    fn nodes(count: u32) -> Nodes<()> {
        let mut nodes = Nodes::new(9, true);
        for id in 0..count {
            nodes.join(NodeId(id), DomainId(id / 2));
            nodes.up(NodeFacts { node: NodeId(id), ..NodeFacts::default() });
        }
        nodes
    }

    /// Two lanes of so many bands, all free.
    fn lanes(blocks_per_unit: u32, ahead: u32) -> Lanes {
        let geometry = Geometry {
            units: 2,
            blocks_per_unit,
            pages_per_block: 8,
            slots_per_page: 2,
            pairing: Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 8,
            endurance: 1000,
            open_blocks_max: 0,
            fast: FastTier::NONE,
        };
        let mut lanes = Lanes::new((VolumeId(1), Generation(3)), geometry, 2, ahead);
        (0..geometry.blocks()).for_each(|block| lanes.freed(BlockId(block), false));
        lanes
    }

    const NOW: Instant = Instant(1);

    /// What lay only on nodes that write was read there all the same.
    #[test]
    fn as_many_bands_as_can_be_lie_on_a_node_that_serves_reads_too_and_each_node_gets_its_part() {
        const DRAWS: usize = 20_000;
        // Two of six serve reads, too, and have so much of the weight together.
        for part in [0.2, 0.5, 0.8] {
            let weight = |id: u32| if id < 2 { part / 2.0 } else { (1.0 - part) / 4.0 };
            let free: Vec<_> = (0..6).map(|id| (NodeId(id), DomainId(id), weight(id))).collect();
            let reads = |node: &(NodeId, DomainId, f64)| node.0.0 < 2;
            let (mut random, mut got, mut without) = (Random::new(1), [0_usize; 6], 0_usize);
            for _ in 0..DRAWS {
                let pair = draw_pair(&free, reads, &mut random).expect("there are both kinds");
                assert_ne!(pair[0], pair[1]);
                pair.iter().for_each(|node| got[node.0 as usize] += 1);
                without += usize::from(pair.iter().all(|node| node.0 >= 2));
            }
            let share = |count: usize| count as f64 / DRAWS as f64;
            let least = (1.0 - 2.0 * part).max(0.0);
            assert!((share(without) - least).abs() < 0.02, "{part}: {without} pairs without");
            for (id, count) in (0..).zip(got) {
                let part_of = share(count) / 2.0;
                assert!((part_of - weight(id)).abs() < 0.02, "{part}: node {id} gets {part_of}");
            }
        }
    }

    #[test]
    fn where_all_nodes_are_alike_or_one_domain_has_all_readers_bands_are_drawn_one_node_after_the_other()
     {
        let free = [(NodeId(0), DomainId(0), 0.5), (NodeId(1), DomainId(0), 0.25)];
        let mut random = Random::new(1);
        assert_eq!(draw_pair(&free, |_| true, &mut random), None);
        assert_eq!(draw_pair(&free, |_| false, &mut random), None);
        assert_eq!(draw_pair(&[], |_| false, &mut random), None);
        assert_eq!(draw_pair(&free, |node| node.0 == NodeId(0), &mut random), None);
    }

    fn bands(openings: &[Opening]) -> Vec<u32> {
        openings.iter().map(|opening| opening.name.band).collect()
    }

    #[test]
    fn the_first_of_each_lane_are_told_ahead_and_taken_only_when_they_are_known() {
        let (mut nodes, mut random, mut unused) = (nodes(6), Random::new(1), Vec::new());
        let mut lanes = lanes(4, 2);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert_eq!(bands(&told), [0, 1, 4, 5]);
        assert_eq!(told[0].name.life, 3 << 32 | 1);
        assert_eq!(lanes.take(NOW, BlockId(0), &mut nodes), None, "it is not known yet");
        assert_eq!(bands(&lanes.refill(NOW, &mut nodes, &mut random, &mut unused)), [2]);
        told.iter().for_each(|opening| lanes.registered(opening.name));
        assert_eq!(lanes.take(NOW, BlockId(0), &mut nodes), Some(told[0]));
        assert!(!lanes.is_wanted());
        assert!(lanes.refill(NOW, &mut nodes, &mut random, &mut unused).is_empty());
        assert_eq!(lanes.take(NOW, BlockId(4), &mut nodes), Some(told[2]));
        assert_eq!(bands(&lanes.refill(NOW, &mut nodes, &mut random, &mut unused)), [6]);
        // One that was erased comes after those that were not.
        lanes.freed(BlockId(0), true);
        assert_eq!(lanes.take(NOW, BlockId(1), &mut nodes), Some(told[1]));
        assert_eq!(bands(&lanes.refill(NOW, &mut nodes, &mut random, &mut unused)), [3]);
        assert!(unused.is_empty());
    }

    #[test]
    fn members_lie_in_different_domains_in_proportion_to_their_weights() {
        let (mut nodes, mut random) = (nodes(8), Random::new(2));
        let heavy = NodeWeights { node: NodeId(0), mode: Mode::Mixed, read: 1.0, write: 4.0 };
        let idle = NodeWeights { node: NodeId(5), mode: Mode::Reads, read: 1.0, write: 1.0 };
        nodes.plan(NOW, &Plan { shares: vec![heavy, idle], until: Instant(9) });
        let mut lanes = lanes(2000, 2000);
        let mut counts = BTreeMap::new();
        for opening in lanes.refill(NOW, &mut nodes, &mut random, &mut Vec::new()) {
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
        let (mut nodes, mut random, mut unused) = (nodes(2), Random::new(3), Vec::new());
        let mut lanes = lanes(4, 2);
        assert!(lanes.refill(NOW, &mut nodes, &mut random, &mut unused).is_empty());
        assert_eq!(lanes.take(NOW, BlockId(0), &mut nodes), None);
        assert!(lanes.is_wanted());
        lanes.set_degraded(true);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert!(told.iter().all(|opening| opening.members.nodes().len() == 1), "{told:?}");
        told.iter().for_each(|opening| lanes.registered(opening.name));
        assert!(lanes.take(NOW, BlockId(0), &mut nodes).is_some());
        lanes.set_degraded(false);
        assert_eq!(lanes.take(NOW, BlockId(1), &mut nodes), None, "it has too few members");
    }

    #[test]
    fn a_volume_that_goes_on_degraded_has_all_copies_as_long_as_nodes_take_bands() {
        let (mut nodes, mut random, mut unused) = (nodes(3), Random::new(3), Vec::new());
        let mut lanes = lanes(4, 2);
        lanes.set_degraded(true);
        nodes.down(NodeId(2));
        let alone = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert!(!alone.is_empty() && alone.iter().all(|of| of.members.nodes().len() == 1));
        alone.iter().for_each(|opening| lanes.registered(opening.name));
        assert!(!lanes.is_short(NOW, 1, &mut nodes), "nobody else is there");
        // The other domain is back: nothing is begun with one copy any more, nor goes on so.
        nodes.up(NodeFacts { node: NodeId(2), ..NodeFacts::default() });
        assert!(lanes.is_short(NOW, 1, &mut nodes) && !lanes.is_short(NOW, 2, &mut nodes));
        assert_eq!(lanes.take(NOW, BlockId(alone[0].name.band), &mut nodes), None);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert!(!told.is_empty() && told.iter().all(|of| of.members.nodes().len() == 2));
        assert_eq!(unused.len(), alone.len());
        // It is to serve reads: nothing is kept ready with one copy, and who waits has two.
        let share = NodeWeights { node: NodeId(2), mode: Mode::Reads, read: 1.0, write: 1.0 };
        nodes.plan(NOW, &Plan { shares: vec![share], until: Instant(9) });
        lanes.freed(BlockId(3), false);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert!(told.iter().all(|of| of.members.nodes().len() == 2), "{told:?}");
    }

    #[test]
    fn nodes_can_be_done_without_while_enough_domains_are_left() {
        let (mut nodes, lanes) = (nodes(6), lanes(4, 1));
        assert!(lanes.can_do_without(NOW, &[NodeId(0), NodeId(1)], &mut nodes));
        assert!(!lanes.can_do_without(
            NOW,
            &[NodeId(0), NodeId(1), NodeId(2), NodeId(3)],
            &mut nodes
        ));
        nodes.down(NodeId(2));
        nodes.down(NodeId(3));
        assert!(!lanes.can_do_without(NOW, &[NodeId(0), NodeId(1)], &mut nodes));
    }

    #[test]
    fn an_opening_with_a_member_that_went_or_that_serves_reads_now_is_given_back() {
        let (mut nodes, mut random, mut unused) = (nodes(6), Random::new(4), Vec::new());
        let mut lanes = lanes(4, 1);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        told.iter().for_each(|opening| lanes.registered(opening.name));
        let gone = told[0].members.nodes()[0];
        nodes.down(gone);
        assert_eq!(lanes.take(NOW, BlockId(0), &mut nodes), None);
        let again = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        let of_0 = again.iter().find(|opening| opening.name.band == 0).unwrap();
        assert!(!of_0.members.has(gone) && of_0.name.life > told[0].name.life);
        assert!(unused.contains(&told[0]));
        unused.clear();
        let reads = again.last().unwrap();
        let share = NodeWeights {
            node: reads.members.nodes()[0],
            mode: Mode::Reads,
            read: 1.0,
            write: 1.0,
        };
        nodes.plan(NOW, &Plan { shares: vec![share], until: Instant(9) });
        lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert!(unused.contains(reads), "nobody waits for it yet, so a better one is drawn");
        // All serve reads: ahead nothing is drawn, and who waits gets what there is.
        let share = |id| NodeWeights { node: NodeId(id), mode: Mode::Reads, read: 1.0, write: 1.0 };
        nodes.plan(NOW, &Plan { shares: (0..6).map(share).collect(), until: Instant(9) });
        assert!(lanes.refill(NOW, &mut nodes, &mut random, &mut unused).is_empty());
        assert_eq!(lanes.take(NOW, BlockId(4), &mut nodes), None);
        let told = lanes.refill(NOW, &mut nodes, &mut random, &mut unused);
        assert_eq!(bands(&told), [4]);
        unused.clear();
        assert!(lanes.refill(NOW, &mut nodes, &mut random, &mut unused).is_empty());
        assert!(unused.is_empty(), "it is not drawn again and again");
    }
}
