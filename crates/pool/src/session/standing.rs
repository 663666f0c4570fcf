//! Lives of bands that are on record, as far as they have come off it: who has each sealed, and who has nothing of
//! it. What follows for the record is in [`Standing::step`].
//!
//! Invariants:
//! - a node counts as one that has a life sealed, or nothing of it, only when that is durable there;
//! - every change of a record is told when it is kept ([`Standing::kept`]), in order, so what waits for one waits
//!   until none is under way.

use crate::control::values::BandRecord;
use crate::words::{BandName, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// One life.
#[derive(Clone, Debug, Default)]
struct Life {
    /// That count, from its end on; 0 if it is over.
    pages: Option<u32>,
    sealed: BTreeSet<NodeId>,
    rid: BTreeSet<NodeId>,
    /// The same of nodes that have said so, but may not have it durably before the next checkpoint.
    loose: Vec<(NodeId, bool)>,
    /// A checkpoint of this number began after its end.
    covered_at: u64,
    /// Its end is to be on record whoever has it: a flush waits for that.
    ends: bool,
    /// It was never begun.
    is_unused: bool,
    /// Changes of its record that are not kept yet.
    changes: u32,
}

/// What is to be done about a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Nothing, for now.
    None,
    /// It has so many pages, for ever.
    Decide(u32),
    /// A checkpoint covers it, or it is over; it is with these, and these have nothing.
    Close { pages: u32, holders: Vec<NodeId>, rid: Vec<NodeId> },
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    lives: BTreeMap<BandName, Life>,
    checkpoints: u64,
    /// To be looked at.
    stirred: BTreeSet<BandName>,
}

impl Standing {
    /// A life on record that an opening found: with so many pages, sealed there, and nothing of it elsewhere.
    pub fn found(&mut self, record: &BandRecord, pages: u32, holders: &[NodeId], rid: &[NodeId]) {
        let life = Life {
            pages: Some(pages),
            sealed: holders.iter().copied().collect(),
            rid: rid.iter().copied().collect(),
            // The FTL is mounted on it, so its first checkpoint has it.
            covered_at: u64::from(!record.covered),
            ..Life::default()
        };
        self.lives.insert(record.name, life);
        self.stirred.insert(record.name);
    }

    /// A life ended, or its members came further. Those of `loose` are not durable at completion.
    pub fn closed(
        &mut self,
        name: BandName,
        pages: u32,
        (sealed, nothing): (&[NodeId], &[NodeId]),
        is_durable: impl Fn(NodeId) -> bool,
    ) {
        let life = self.lives.entry(name).or_default();
        if life.pages == Some(0) && pages > 0 {
            // It was over when its seals were told.
            return;
        }
        if pages == 0 {
            life.sealed.clear();
            life.loose.retain(|(_, sealed)| !sealed);
        }
        life.pages = Some(pages);
        // The first one to end may have begun before.
        life.covered_at = self.checkpoints + 2;
        for (nodes, is_sealed) in [(sealed, true), (nothing, false)] {
            for &node in nodes {
                match is_durable(node) {
                    true if is_sealed => drop(life.sealed.insert(node)),
                    true => drop(life.rid.insert(node)),
                    false => life.loose.push((node, is_sealed)),
                }
            }
        }
        self.stirred.insert(name);
    }

    /// A life was registered and never begun.
    pub fn unused(&mut self, name: BandName, members: &[NodeId]) {
        let life = self.lives.entry(name).or_default();
        (life.pages, life.is_unused) = (Some(0), true);
        life.rid.extend(members);
        self.stirred.insert(name);
    }

    /// Nobody needs the life any more.
    pub fn over(&mut self, name: BandName) {
        let life = self.lives.entry(name).or_default();
        life.pages = Some(0);
        life.sealed.clear();
        life.loose.retain(|(_, sealed)| !sealed);
    }

    /// The end of a life is to be on record before a flush ends.
    pub fn ends(&mut self, name: BandName, pages: u32) {
        let life = self.lives.entry(name).or_default();
        life.ends = true;
        life.pages.get_or_insert(pages);
        self.stirred.insert(name);
    }

    /// A node has the sealed life, durably.
    pub fn joined(&mut self, name: BandName, node: NodeId) {
        if let Some(life) = self.lives.get_mut(&name).filter(|life| life.pages != Some(0)) {
            life.sealed.insert(node);
            life.rid.remove(&node);
            self.stirred.insert(name);
        }
    }

    /// A node's copy does not count any more.
    pub fn left(&mut self, name: BandName, node: NodeId) {
        if let Some(life) = self.lives.get_mut(&name) {
            life.sealed.remove(&node);
            life.loose.retain(|(of, sealed)| *of != node || !sealed);
            self.stirred.insert(name);
        }
    }

    /// Nothing is left of the life on a node, durably.
    pub fn rid(&mut self, name: BandName, node: NodeId) {
        if let Some(life) = self.lives.get_mut(&name) {
            life.sealed.remove(&node);
            life.rid.insert(node);
            self.stirred.insert(name);
        }
    }

    /// A node is gone: what it has not flushed it may have lost.
    pub fn down(&mut self, node: NodeId) {
        for (name, life) in &mut self.lives {
            life.loose.retain(|(of, _)| *of != node);
            self.stirred.insert(*name);
        }
    }

    /// A node has flushed what it had sealed by then.
    pub fn flushed(&mut self, name: BandName, node: NodeId) {
        let Some(life) = self.lives.get_mut(&name) else { return };
        if life.loose.extract_if(.., |(of, sealed)| *of == node && *sealed).count() > 0 {
            life.sealed.insert(node);
            self.stirred.insert(name);
        }
    }

    /// Seals that are told, and may not be durable before the next checkpoint.
    pub fn loose(&self) -> Vec<(BandName, NodeId)> {
        let of = |(name, life): (&BandName, &Life)| {
            let sealed = life.loose.iter().filter(|(_, is_sealed)| *is_sealed);
            sealed.map(|(node, _)| (*name, *node)).collect::<Vec<_>>()
        };
        self.lives.iter().flat_map(of).collect()
    }

    /// Nodes came, or something is meant to become of them.
    pub fn stir(&mut self) {
        self.stirred.extend(self.lives.keys());
    }

    /// The FTL has written so many checkpoints.
    pub fn checkpoints(&mut self, checkpoints: u64) {
        if checkpoints == self.checkpoints {
            return;
        }
        self.checkpoints = checkpoints;
        for life in self.lives.values_mut().filter(|life| checkpoints >= life.covered_at) {
            // A checkpoint flushes its medium.
            for (node, is_sealed) in life.loose.drain(..) {
                if is_sealed {
                    life.sealed.insert(node)
                } else {
                    life.rid.insert(node)
                };
            }
        }
        self.stir();
    }

    /// A change of the record is on its way.
    pub fn changes(&mut self, name: BandName) {
        self.lives.entry(name).or_default().changes += 1;
    }

    /// A change is kept; true if it was the last one under way.
    pub fn kept(&mut self, name: BandName) -> bool {
        let Some(life) = self.lives.get_mut(&name) else { return true };
        life.changes = life.changes.saturating_sub(1);
        life.changes == 0
    }

    /// Whether changes of the record are under way.
    pub fn is_changing(&self, name: BandName) -> bool {
        self.lives.get(&name).is_some_and(|life| life.changes > 0)
    }

    /// The life is on record no more.
    pub fn forget(&mut self, name: BandName) {
        self.lives.remove(&name);
        self.stirred.remove(&name);
    }

    /// Whether all members of a sealed life that are there have sealed it.
    pub fn is_sealed(&self, name: BandName) -> bool {
        self.lives.get(&name).is_none_or(|life| !life.sealed.is_empty() || !life.loose.is_empty())
    }

    /// Whether all of these have sealed the life, durably.
    pub fn is_sealed_on(&self, name: BandName, nodes: &[NodeId]) -> bool {
        let life = self.lives.get(&name);
        life.is_some_and(|life| nodes.iter().all(|node| life.sealed.contains(node)))
    }

    /// The next life to look at.
    pub fn next(&mut self) -> Option<BandName> {
        self.stirred.pop_first()
    }

    /// What is to be done about a record. `all_listed`: no node has what is not known. `is_here`: a node can be
    /// reached and stays. `is_clear`: it is never asked again.
    pub fn step(
        &self,
        record: &BandRecord,
        all_listed: bool,
        is_here: impl Fn(NodeId) -> bool,
        is_clear: impl Fn(NodeId) -> bool,
    ) -> Step {
        let Some(life) = self.lives.get(&record.name) else { return Step::None };
        let Some(pages) = life.pages else { return Step::None };
        let clear = record.members.nodes().iter().copied().filter(|node| is_clear(*node));
        let mut rid: Vec<NodeId> = life.rid.iter().copied().chain(clear).collect();
        if pages == 0 && !all_listed && !life.is_unused {
            // A node that is away may have this life or an older one, which is held against the record.
            rid.clear();
        }
        let holders: Vec<NodeId> = life.sealed.iter().copied().collect();
        if pages == 0 || (self.checkpoints >= life.covered_at && !holders.is_empty()) {
            return Step::Close { pages, holders, rid };
        }
        let all_here = record.members.nodes().iter().all(|node| is_here(*node));
        if record.sealed.is_none() && (life.ends || !all_here) {
            return Step::Decide(pages);
        }
        Step::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Members, VolumeId};

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const NAME: BandName = BandName { volume: VolumeId(1), band: 2, life: 3 };

    fn record() -> BandRecord {
        let members = Members::new(&[A, B]).unwrap();
        BandRecord { name: NAME, members, ..BandRecord::default() }
    }

    fn step(standing: &Standing, here: &[NodeId]) -> Step {
        standing.step(&record(), true, |node| here.contains(&node), |_| false)
    }

    #[test]
    fn a_life_is_sealed_on_all_when_each_of_them_has_said_so_durably() {
        let mut standing = Standing::default();
        assert!(!standing.is_sealed_on(NAME, &[A]), "nobody has said where it ends");
        standing.closed(NAME, 7, (&[A], &[]), |_| true);
        assert!(standing.is_sealed_on(NAME, &[A]) && !standing.is_sealed_on(NAME, &[A, B]));
        standing.closed(NAME, 7, (&[B], &[]), |_| false);
        assert!(!standing.is_sealed_on(NAME, &[A, B]), "not before the next checkpoint");
        standing.checkpoints(2);
        assert!(standing.is_sealed_on(NAME, &[A, B]));
    }

    #[test]
    fn a_record_is_closed_when_a_checkpoint_that_began_after_the_seal_has_ended() {
        let mut standing = Standing::default();
        standing.checkpoints(4);
        standing.closed(NAME, 7, (&[A, B], &[]), |_| true);
        assert_eq!(step(&standing, &[A, B]), Step::None);
        standing.checkpoints(5);
        assert_eq!(step(&standing, &[A, B]), Step::None, "it may have begun before");
        standing.checkpoints(6);
        let close = Step::Close { pages: 7, holders: vec![A, B], rid: vec![] };
        assert_eq!(step(&standing, &[A, B]), close);
    }

    #[test]
    fn the_end_of_a_band_goes_on_record_at_once_where_a_member_is_away_or_went_unflushed() {
        let mut standing = Standing::default();
        standing.closed(NAME, 7, (&[A], &[]), |_| true);
        assert_eq!(step(&standing, &[A]), Step::Decide(7));
        let mut standing = Standing::default();
        standing.ends(NAME, 5);
        assert_eq!(step(&standing, &[A, B]), Step::Decide(5));
    }

    #[test]
    fn a_seal_on_a_node_that_is_not_durable_counts_from_the_checkpoint_on() {
        let mut standing = Standing::default();
        standing.closed(NAME, 7, (&[A, B], &[]), |node| node == A);
        assert_eq!(standing.loose(), [(NAME, B)]);
        standing.down(B);
        assert_eq!(standing.loose(), []);
        standing.checkpoints(2);
        let close = Step::Close { pages: 7, holders: vec![A], rid: vec![] };
        assert_eq!(step(&standing, &[A, B]), close, "it went before it was flushed");
        standing.closed(NAME, 7, (&[B], &[]), |_| false);
        assert_eq!(step(&standing, &[A, B]), Step::None);
        standing.checkpoints(4);
        let close = Step::Close { pages: 7, holders: vec![A, B], rid: vec![] };
        assert_eq!(step(&standing, &[A, B]), close);
    }

    #[test]
    fn a_life_that_is_over_is_closed_at_once_with_who_has_nothing_of_it() {
        let mut standing = Standing::default();
        standing.closed(NAME, 7, (&[A, B], &[]), |_| true);
        standing.closed(NAME, 0, (&[], &[A]), |_| true);
        let close = Step::Close { pages: 0, holders: vec![], rid: vec![A] };
        assert_eq!(step(&standing, &[A, B]), close);
        let away = standing.step(&record(), false, |_| true, |_| false);
        let close = Step::Close { pages: 0, holders: vec![], rid: vec![] };
        assert_eq!(away, close, "a node that is away may have it, or an older one");
        standing.changes(NAME);
        standing.changes(NAME);
        assert!(!standing.kept(NAME) && standing.kept(NAME));
    }
}
