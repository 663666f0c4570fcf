//! What a sealed band needs, and where a copy may go: choices without side effects.

use super::{NodeView, SealedBand};
use crate::control::values::NodeState;
use crate::words::{BandName, DomainId, MEMBERS_MAX, Members, NodeId};
use flash::{Instant, MILLISECOND};
use std::collections::{BTreeMap, BTreeSet};

/// A band for which a node had no room now, as it makes as many copies already as it does at a time, is tried again
/// after this.
pub(super) const BUSY_NS: u64 = 50 * MILLISECOND;

/// The nodes, as repair sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    nodes: BTreeMap<NodeId, Node>,
    /// Share of its room that each node would have taken, if bands were spread as wanted, for each unit of `want`.
    level: f64,
}

#[derive(Clone, Debug)]
struct Node {
    view: NodeView,
    /// `None`: it can be reached.
    away_since: Option<Instant>,
    /// No copies go there before then.
    avoid_until: Instant,
    /// Copies on their way there.
    coming: u32,
    /// Bands that are being copied so that this one need not have them.
    going: u32,
    /// It has been away for so long that it lacks what it has.
    lacks: bool,
}

impl Node {
    /// What it has counts, also while it is away: it may be back soon.
    fn is_missed(&self) -> bool {
        self.view.state.counts() && !self.lacks
    }
}

/// What a band needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Need {
    /// It is where it should be.
    Nothing,
    /// One more copy.
    Copy(Urgency),
    /// It has a copy too many, here.
    Drop(NodeId),
}

/// Why a copy is made, the most urgent first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Urgency {
    /// So many domains have a copy, which are too few.
    Lacking { copies: u8 },
    /// A node is to be emptied.
    Drain,
    /// A node has more than its share.
    Spread,
}

impl Urgency {
    /// Whether the band has too few copies without this one.
    pub fn is_lacking(self) -> bool {
        matches!(self, Self::Lacking { .. })
    }
}

impl Nodes {
    pub fn set(&mut self, now: Instant, views: Vec<NodeView>) {
        let mut old = std::mem::take(&mut self.nodes);
        for view in views {
            let before = old.remove(&view.node);
            let node = before.map(|before| Node { view, ..before });
            let (away_since, avoid_until) = (Some(now), Instant(0));
            let new = Node { view, away_since, avoid_until, coming: 0, going: 0, lacks: false };
            let node = node.unwrap_or(new);
            self.nodes.insert(view.node, node);
        }
        let all = || {
            self.nodes.values().map(|node| &node.view).filter(|view| view.state == NodeState::In)
        };
        let used: f64 = all().map(|view| f64::from(view.bands_used)).sum();
        let room: f64 = all().map(|view| f64::from(view.bands) * view.want).sum();
        self.level = if room > 0.0 { used / room } else { 0.0 };
    }

    pub fn up(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            (node.away_since, node.avoid_until, node.lacks) = (None, Instant(0), false);
        }
    }

    pub fn down(&mut self, now: Instant, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.away_since.get_or_insert(now);
            node.coming = 0;
        }
    }

    pub fn avoid(&mut self, node: NodeId, until: Instant) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.avoid_until = until;
        }
    }

    /// A copy is on its way to a node, or no more; if it came, the node has it.
    pub fn coming(&mut self, node: NodeId, more: bool, came: bool) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.coming = if more { node.coming + 1 } else { node.coming.saturating_sub(1) };
            node.view.bands_used += u32::from(came);
        }
    }

    /// A band is moving away from a node, or no more.
    pub fn going(&mut self, node: Option<NodeId>, more: bool) {
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(&node)) {
            node.going = if more { node.going + 1 } else { node.going.saturating_sub(1) };
        }
    }

    /// A node is told to free a copy, and has that room.
    pub fn freed(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.view.bands_used = node.view.bands_used.saturating_sub(1);
        }
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.away_since.is_none())
    }

    /// Whether all can be reached, so that nobody has what none of them has.
    pub fn all_up(&self) -> bool {
        self.nodes.values().all(|node| node.away_since.is_none() || !node.view.state.counts())
    }

    /// Whether a node that cannot be reached is waited for.
    pub fn is_missed(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(Node::is_missed)
    }

    /// How many are away and taken for those that come back.
    pub fn away(&self) -> u64 {
        let is_away = |node: &&Node| node.away_since.is_some() && node.is_missed();
        self.nodes.values().filter(is_away).count() as u64
    }

    pub fn is_durable(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.view.durable)
    }

    pub fn all(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.values().map(|node| &node.view)
    }

    /// When an absence has been long enough, next.
    pub fn deadline(&self, absence_ns: u64) -> Option<Instant> {
        let away =
            self.nodes.values().filter(|node| !node.lacks).filter_map(|node| node.away_since);
        away.map(|since| since + absence_ns).min()
    }

    /// Whether a node has come to lack what it has, as it has been away for so long.
    pub fn elapsed(&mut self, now: Instant, absence_ns: u64) -> bool {
        let mut some = false;
        for node in self.nodes.values_mut() {
            let lacks = node.away_since.is_some_and(|since| now >= since + absence_ns);
            some |= lacks && !node.lacks;
            node.lacks = lacks;
        }
        some
    }

    fn domain(&self, node: NodeId) -> Option<DomainId> {
        self.nodes.get(&node).map(|node| node.view.domain)
    }

    /// Domains of those nodes of which `is` holds.
    fn domains(&self, nodes: &[NodeId], is: impl Fn(&Node) -> bool) -> BTreeSet<DomainId> {
        let known = nodes.iter().filter_map(|node| self.nodes.get(node));
        known.filter(|node| is(node)).map(|node| node.view.domain).collect()
    }

    /// What a band needs most.
    pub fn need(&self, now: Instant, band: &SealedBand, replicas: usize, limits: Limits) -> Need {
        let here =
            |node: &Node| node.away_since.is_none_or(|since| now < since + limits.absence_ns);
        let counts = self.domains(&band.holders, |node| here(node) && node.view.state.counts());
        if counts.len() < replicas {
            return Need::Copy(Urgency::Lacking { copies: counts.len() as u8 });
        }
        let stay =
            self.domains(&band.holders, |node| here(node) && node.view.state == NodeState::In);
        if stay.len() < replicas {
            return Need::Copy(Urgency::Drain);
        }
        if band.holders.len() > replicas {
            return self.surplus(band, replicas).map_or(Need::Nothing, Need::Drop);
        }
        match self.moves(now, band, limits.spread) {
            Some(_) => Need::Copy(Urgency::Spread),
            None => Need::Nothing,
        }
    }

    /// The holder, the fullest first, that a band is to move away from, as there is one for it that has less by more than
    /// `spread` of its room.
    pub fn moves(&self, now: Instant, band: &SealedBand, spread: f64) -> Option<NodeId> {
        let mut holders = band.holders.clone();
        holders.sort_by(|a, b| self.over(*b).total_cmp(&self.over(*a)).then(a.cmp(b)));
        holders.into_iter().find(|from| {
            let rest: Vec<NodeId> =
                band.holders.iter().copied().filter(|node| node != from).collect();
            let to = self.target(now, band, &rest, &BTreeSet::new());
            to.is_some_and(|to| self.gap(*from, to) > spread.max(self.step(*from, to)))
        })
    }

    /// By how much more of its room one node has than the other.
    fn gap(&self, from: NodeId, to: NodeId) -> f64 {
        self.over(from) - self.over(to)
    }

    /// By how much a band that moves brings two nodes together: those that differ by less would only change places.
    fn step(&self, from: NodeId, to: NodeId) -> f64 {
        let bands = |node: NodeId| self.nodes.get(&node).map_or(1, |node| node.view.bands.max(1));
        1.0 / f64::from(bands(from)) + 1.0 / f64::from(bands(to)) - EXACT
    }

    /// How far the fullest and the emptiest of the nodes are apart that are to be filled alike and can be reached.
    pub fn apart(&self) -> Option<Apart> {
        let is_here = |node: &&Node| {
            let view = &node.view;
            let takes = view.state == NodeState::In && view.want > 0.0 && view.bands > 0;
            takes && node.away_since.is_none()
        };
        let nodes = || self.nodes.values().filter(is_here).map(|node| node.view.node);
        let by = |a: &NodeId, b: &NodeId| self.over(*a).total_cmp(&self.over(*b)).then(b.cmp(a));
        let (fullest, emptiest) = (nodes().max_by(by)?, nodes().min_by(by)?);
        let used = |node: NodeId| {
            let of = &self.nodes[&node];
            (of.view.bands_used + of.coming, of.view.bands)
        };
        Some(Apart {
            share: self.gap(fullest, emptiest),
            step: self.step(fullest, emptiest),
            fullest: (fullest, used(fullest)),
            emptiest: (emptiest, used(emptiest)),
        })
    }

    /// Those that are here, or not away for long.
    pub fn present(&self, now: Instant, nodes: &[NodeId], absence_ns: u64) -> Vec<NodeId> {
        let here = |node: &&NodeId| {
            let away = self.nodes.get(node).map(|node| node.away_since);
            away.is_some_and(|away| away.is_none_or(|since| now < since + absence_ns))
        };
        nodes.iter().filter(here).copied().collect()
    }

    /// The copy that may go, if one may: as many domains as replicas keep one, on nodes that stay and can be
    /// reached.
    fn surplus(&self, band: &SealedBand, replicas: usize) -> Option<NodeId> {
        let may = |node: NodeId| {
            let rest: Vec<NodeId> = band.holders.iter().copied().filter(|of| *of != node).collect();
            self.enough(&rest, replicas)
        };
        self.first_to_go(band, may)
    }

    /// The holder that gives its place in the directory to a copy that was made, where that is full: one that does not stay
    /// or is not here, or that the copy was made for to have the band no more.
    pub fn gives_way(&self, band: &SealedBand, leaves: Option<NodeId>) -> Option<NodeId> {
        let stays = |node: &Node| node.view.state == NodeState::In && node.away_since.is_none();
        let goes = |node: NodeId| !self.nodes.get(&node).is_some_and(stays);
        if band.holders.len() < MEMBERS_MAX {
            return None;
        }
        self.first_to_go(band, goes).or(leaves.filter(|node| band.holders.contains(node)))
    }

    /// Of the holders that may go the one that is wanted least.
    fn first_to_go(&self, band: &SealedBand, may: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        // A node that is gone first, then one that goes, then the fullest.
        let rank = |node: &NodeId| match self.nodes.get(node).map(|of| of.view.state) {
            Some(NodeState::In) => 2,
            Some(NodeState::Draining) => 1,
            _ => 0,
        };
        let mut all: Vec<NodeId> = band.holders.iter().copied().filter(|node| may(*node)).collect();
        all.sort_by(|a, b| {
            let fuller = self.over(*b).total_cmp(&self.over(*a));
            rank(a).cmp(&rank(b)).then(fuller).then(a.cmp(b))
        });
        all.first().copied()
    }

    /// Whether these nodes hold a band as it should be, so that any other copy may go.
    pub fn enough(&self, holders: &[NodeId], replicas: usize) -> bool {
        let stay = |node: &Node| node.view.state == NodeState::In && node.away_since.is_none();
        self.domains(holders, stay).len() >= replicas
    }

    /// Where a copy comes from: of the nodes that can be reached those that have all of it, the one that others ask least
    /// first, then those that have some of it. Where only these are here, one that has all of it is waited for.
    pub fn sources(
        &self,
        band: &SealedBand,
        busy: &BTreeMap<NodeId, u32>,
        bad: &BTreeSet<(NodeId, BandName)>,
    ) -> Option<Members> {
        let is_bad = |node: NodeId| bad.contains(&(node, band.name));
        let load = |node: &NodeId| (busy.get(node).copied().unwrap_or(0), *node);
        let fits = |node: &NodeId| self.is_up(*node) && !is_bad(*node);
        let mut sources: Vec<NodeId> = band.holders.iter().copied().filter(fits).collect();
        sources.sort_by_key(load);
        let is_awaited = |node: &NodeId| self.is_missed(*node) && !is_bad(*node);
        if sources.is_empty() && band.holders.iter().any(is_awaited) {
            return None;
        }
        let some = |node: &NodeId| self.is_up(*node) && is_bad(*node);
        sources.extend(self.nodes.keys().copied().filter(some));
        Members::new(&sources[..sources.len().min(MEMBERS_MAX)])
    }

    /// Where a copy goes that lies beside `rest`: the emptiest for its share, in a domain of its own, without a
    /// copy that is none.
    pub fn target(
        &self,
        now: Instant,
        band: &SealedBand,
        rest: &[NodeId],
        bad: &BTreeSet<(NodeId, BandName)>,
    ) -> Option<NodeId> {
        let has_room = |node: &Node| node.view.bands_used + node.coming < node.view.bands;
        self.emptiest(now, band, rest, |node| {
            has_room(node) && !bad.contains(&(node.view.node, band.name))
        })
    }

    /// Where such a copy could go if the one that is none went there before, which gives its room.
    pub fn place(
        &self,
        now: Instant,
        band: &SealedBand,
        rest: &[NodeId],
        bad: &BTreeSet<(NodeId, BandName)>,
    ) -> Option<NodeId> {
        self.emptiest(now, band, rest, |node| bad.contains(&(node.view.node, band.name)))
    }

    /// The emptiest node for its share that takes copies now, in another domain than `rest`, of those that fit.
    fn emptiest(
        &self,
        now: Instant,
        band: &SealedBand,
        rest: &[NodeId],
        fits: impl Fn(&Node) -> bool,
    ) -> Option<NodeId> {
        let taken = self.domains(rest, |node| node.view.state == NodeState::In);
        let takes = |node: &&Node| {
            let view = &node.view;
            view.state == NodeState::In
                && node.away_since.is_none()
                && now >= node.avoid_until
                && view.want > 0.0
                && !band.holders.contains(&view.node)
                && !taken.contains(&view.domain)
        };
        let all = self.nodes.values().filter(takes).filter(|node| fits(node));
        let all = all.map(|node| node.view.node);
        all.min_by(|a, b| self.over(*a).total_cmp(&self.over(*b)).then(a.cmp(b)))
    }

    /// By how much of its room a node has more than its share; less than nothing if it has less.
    fn over(&self, node: NodeId) -> f64 {
        let Some(node) = self.nodes.get(&node).filter(|node| node.view.bands > 0) else {
            return 0.0;
        };
        let used = f64::from(node.view.bands_used + node.coming) - f64::from(node.going);
        used / f64::from(node.view.bands) - self.level * node.view.want
    }

    /// The members of a band after a copy to `to`: those that stay, in as many domains as there are replicas.
    pub fn members_after(&self, band: &SealedBand, to: NodeId, replicas: usize) -> Vec<NodeId> {
        let mut members = vec![to];
        let mut domains: Vec<_> = self.domain(to).into_iter().collect();
        for &node in &band.holders {
            let Some(of) = self.nodes.get(&node) else { continue };
            let fits = of.view.state == NodeState::In && !domains.contains(&of.view.domain);
            if fits && members.len() < replicas {
                members.push(node);
                domains.push(of.view.domain);
            }
        }
        members
    }
}

/// What is equal but for the arithmetic.
const EXACT: f64 = 1e-9;

/// The fullest node and the emptiest one, for their shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// By how much of their room they differ.
    pub share: f64,
    /// By how much less they would if one band moved.
    pub step: f64,
    /// Which it is, and its bands of those that it has room for.
    pub fullest: (NodeId, (u32, u32)),
    /// Likewise.
    pub emptiest: (NodeId, (u32, u32)),
}

/// From when on something is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// A node that is away so long lacks what it has.
    pub absence_ns: u64,
    /// Nodes may differ by so much of their room.
    pub spread: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::VolumeId;

    const LIMITS: Limits = Limits { absence_ns: 100, spread: 0.2 };

    fn view(node: u32, domain: u32, bands_used: u32) -> NodeView {
        NodeView {
            node: NodeId(node),
            domain: DomainId(domain),
            state: NodeState::In,
            durable: true,
            bands: 100,
            bands_used,
            want: 1.0,
        }
    }

    fn nodes(views: &[NodeView]) -> Nodes {
        let mut nodes = Nodes::default();
        nodes.set(Instant(0), views.to_vec());
        views.iter().for_each(|view| nodes.up(view.node));
        nodes
    }

    fn band(holders: &[u32]) -> SealedBand {
        let name = BandName { volume: VolumeId(1), band: 3, life: 1 << 32 };
        SealedBand { name, pages: 4, holders: holders.iter().map(|&id| NodeId(id)).collect() }
    }

    fn four() -> Vec<NodeView> {
        vec![view(0, 0, 50), view(1, 1, 50), view(2, 2, 50), view(3, 2, 40)]
    }

    #[test]
    fn a_band_that_is_where_it_should_be_needs_nothing() {
        let nodes = nodes(&four());
        assert_eq!(nodes.need(Instant(0), &band(&[0, 2]), 2, LIMITS), Need::Nothing);
    }

    #[test]
    fn a_copy_comes_from_who_has_all_of_it_and_of_others_only_where_nobody_has() {
        let mut nodes = nodes(&four());
        let (busy, name) = (BTreeMap::from([(NodeId(0), 1)]), band(&[]).name);
        let sources = |nodes: &Nodes, holders: &[u32], bad: &[u32]| {
            let bad = bad.iter().map(|&node| (NodeId(node), name)).collect();
            let found = nodes.sources(&band(holders), &busy, &bad)?;
            Some(found.nodes().iter().map(|node| node.0).collect::<Vec<_>>())
        };
        assert_eq!(sources(&nodes, &[0, 2], &[]), Some(vec![2, 0]), "the one that is asked less");
        assert_eq!(sources(&nodes, &[0], &[3, 1]), Some(vec![0, 1, 3]));
        assert_eq!(sources(&nodes, &[1], &[1, 3]), Some(vec![1, 3]), "together they may have it");
        nodes.down(Instant(10), NodeId(0));
        assert_eq!(sources(&nodes, &[0], &[3]), None, "it is waited for");
        nodes.elapsed(Instant(200), 100);
        assert_eq!(sources(&nodes, &[0], &[3]), Some(vec![3]), "as long as it may be back soon");
    }

    /// Else a copy that was made would be freed at once, and made again for ever.
    #[test]
    fn a_holder_that_goes_gives_its_place_where_there_are_as_many_as_there_can_be() {
        let mut views = four();
        views[1].state = NodeState::Draining;
        views[2].state = NodeState::Out;
        let mut nodes = nodes(&views);
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2]), None), None, "there is place");
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2, 3]), None), Some(NodeId(2)), "given up");
        assert_eq!(nodes.gives_way(&band(&[0, 1, 3, 9]), None), Some(NodeId(9)), "nobody knows it");
        views[2].state = NodeState::In;
        nodes.set(Instant(0), views.clone());
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2, 3]), None), Some(NodeId(1)), "drained");
        views[1].state = NodeState::In;
        nodes.set(Instant(0), views);
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2, 3]), None), None, "all stay");
        let leaves = Some(NodeId(1));
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2, 3]), leaves), leaves, "it moves from there");
        nodes.down(Instant(10), NodeId(3));
        assert_eq!(nodes.gives_way(&band(&[0, 1, 2, 3]), None), Some(NodeId(3)), "away");
    }

    #[test]
    fn a_node_that_is_away_for_long_lacks_its_copies_and_two_in_one_domain_are_one() {
        let mut nodes = nodes(&four());
        nodes.down(Instant(10), NodeId(0));
        assert_eq!(nodes.need(Instant(109), &band(&[0, 2]), 2, LIMITS), Need::Nothing);
        let (lacking, none) = (Need::Copy(Urgency::Lacking { copies: 1 }), BTreeSet::new());
        assert_eq!(nodes.need(Instant(110), &band(&[0, 2]), 2, LIMITS), lacking);
        assert_eq!(nodes.need(Instant(0), &band(&[2, 3]), 2, LIMITS), lacking);
        assert_eq!(
            nodes.target(Instant(0), &band(&[0, 2]), &band(&[2]).holders, &none),
            Some(NodeId(1))
        );
        let bad = BTreeSet::from([(NodeId(1), band(&[]).name)]);
        assert_eq!(nodes.target(Instant(0), &band(&[0, 2]), &band(&[2]).holders, &bad), None);
        assert!(Urgency::Lacking { copies: 1 } < Urgency::Lacking { copies: 2 });
    }

    #[test]
    fn copies_of_a_node_that_is_drained_count_until_others_are_there_and_go_first() {
        let mut views = four();
        views[0].state = NodeState::Draining;
        let nodes = nodes(&views);
        assert_eq!(nodes.need(Instant(0), &band(&[0, 2]), 2, LIMITS), Need::Copy(Urgency::Drain));
        assert_eq!(nodes.need(Instant(0), &band(&[0, 1, 2]), 2, LIMITS), Need::Drop(NodeId(0)));
        assert_eq!(nodes.members_after(&band(&[0, 2]), NodeId(1), 2), [NodeId(1), NodeId(2)]);
    }

    #[test]
    fn a_copy_goes_only_if_those_that_stay_can_be_reached() {
        let mut nodes = nodes(&four());
        assert_eq!(nodes.need(Instant(0), &band(&[0, 1, 2]), 2, LIMITS), Need::Drop(NodeId(0)));
        nodes.down(Instant(0), NodeId(1));
        assert_eq!(nodes.need(Instant(0), &band(&[0, 1, 2]), 2, LIMITS), Need::Drop(NodeId(1)));
        nodes.down(Instant(0), NodeId(2));
        assert_eq!(nodes.need(Instant(0), &band(&[0, 1, 2]), 2, LIMITS), Need::Nothing);
    }

    #[test]
    fn bands_move_from_full_nodes_to_empty_ones_unless_a_domain_forbids_it() {
        let nodes = nodes(&[view(0, 0, 90), view(1, 1, 50), view(2, 2, 50), view(3, 2, 10)]);
        let spread = Need::Copy(Urgency::Spread);
        let moves = |holders: &[u32]| nodes.moves(Instant(0), &band(holders), LIMITS.spread);
        assert_eq!(nodes.need(Instant(0), &band(&[0, 1]), 2, LIMITS), spread);
        assert_eq!(moves(&[0, 1]), Some(NodeId(0)));
        assert_eq!(moves(&[0, 2]), Some(NodeId(0)), "not as far, but nearer");
        assert_eq!(moves(&[1, 2]), Some(NodeId(2)), "within its domain");
        assert_eq!(moves(&[1, 3]), None);
    }

    #[test]
    fn one_node_that_is_far_from_all_others_is_emptied_though_each_of_those_has_what_it_should() {
        let mut views: Vec<NodeView> = (0..20).map(|node| view(node, node, 50)).collect();
        views[0].bands_used = 90;
        let nodes = nodes(&views);
        assert_eq!(nodes.moves(Instant(0), &band(&[0, 3]), 0.2), Some(NodeId(0)));
        let apart = nodes.apart().expect("there are nodes");
        assert!((apart.share - 0.4).abs() < 1e-6, "{apart:?}");
        assert_eq!((apart.fullest, apart.emptiest.1), ((NodeId(0), (90, 100)), (50, 100)));
    }

    #[test]
    fn nodes_that_differ_by_a_band_do_not_change_places_however_near_they_are_to_be() {
        let nodes = nodes(&[view(0, 0, 51), view(1, 1, 50), view(2, 2, 50)]);
        assert_eq!(nodes.moves(Instant(0), &band(&[0, 1]), 0.001), None);
    }
}
