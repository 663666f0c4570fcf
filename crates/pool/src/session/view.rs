//! What repair and rejoining see of what the client knows.

use super::standing::Standing;
use crate::client::Directory;
use crate::client::directory::{Entry, Held, Phase};
use crate::control::mutant::Mutant;
use crate::control::registry::Registry;
use crate::control::values::BandRecord;
use crate::opening::KnownBand;
use crate::repair::{self, SealedBand};
use crate::words::{BandName, NodeId};
use flash::BlockId;

/// See the head of this file.
pub(super) struct View<'a> {
    pub directory: &'a Directory,
    pub registry: &'a Registry,
    pub standing: &'a Standing,
    pub bands: u32,
    /// Nodes that are being taken in: what they have is not known yet.
    pub coming: &'a [NodeId],
    pub mutant: Option<Mutant>,
}

impl View<'_> {
    /// A band as repair may see it: sealed, and the next opening would find it as long as it is, whichever copy goes. For
    /// that the control plane has its length, or every copy says it: a member that repair has emptied would make it one of
    /// no pages else, beside one that has not heard yet where it ends.
    fn sealed(&self, held: &Held) -> Option<SealedBand> {
        let name = held.name;
        let is_open = self.registry.record(name).is_some_and(|record| record.sealed.is_none());
        let is_told = !is_open && !self.standing.is_changing(name);
        let settled = held.phase == Phase::Sealed
            && self.standing.is_sealed(name)
            && (is_told || self.standing.is_sealed_on(name, &held.nodes));
        settled.then(|| as_sealed(held))
    }
}

/// With the pages that count now.
fn as_sealed(held: &Held) -> SealedBand {
    SealedBand { name: held.name, pages: held.pages, holders: held.nodes.clone() }
}

impl repair::Directory for View<'_> {
    fn next(&self, after: Option<u32>) -> Option<SealedBand> {
        let from = after.map_or(0, |after| after + 1);
        (from..self.bands).find_map(|band| self.band(band))
    }

    fn band(&self, band: u32) -> Option<SealedBand> {
        self.directory.held(BlockId(band)).and_then(|held| self.sealed(held))
    }

    fn next_written(&self, after: Option<u32>) -> Option<SealedBand> {
        let from = after.map_or(0, |after| after + 1);
        (from..self.bands).find_map(|band| self.written(band))
    }

    fn written(&self, band: u32) -> Option<SealedBand> {
        let held = self.directory.held(BlockId(band)).filter(|held| held.pages > 0);
        held.map(as_sealed)
    }

    fn is_over(&self, name: BandName) -> bool {
        match self.directory.entry(BlockId(name.band)) {
            Entry::Held(held) => held.name != name,
            Entry::Unbound | Entry::Spent => true,
            Entry::Unsure => false,
        }
    }

    fn is_on_record(&self, name: BandName) -> bool {
        let is_told = |record: &BandRecord| record.sealed.is_some();
        self.registry.record(name).is_some_and(is_told) && !self.standing.is_changing(name)
    }

    fn may_have_more(&self, node: NodeId) -> bool {
        let open = |record: &BandRecord| record.sealed.is_none() && record.members.has(node);
        // Repair does not meet a band whose members have not sealed it durably.
        let unsettled = |held: &Held| {
            let record = self.registry.record(held.name);
            let member = record.is_some_and(|record| record.members.has(node));
            self.sealed(held).is_none() && (member || held.nodes.contains(&node))
        };
        self.coming.contains(&node)
            || self.registry.records().any(open)
            || (self.directory.unsure() > 0 && !Mutant::UnsureNotCounted.is(self.mutant))
            || self.directory.bands().any(unsettled)
    }
}

/// What is known of a band that a node has which comes back, and what is on record of this life of it.
pub(super) fn known(
    directory: &Directory,
    registry: &Registry,
    bands: u32,
    name: BandName,
) -> (KnownBand, Option<BandRecord>) {
    if name.band >= bands {
        return (KnownBand::Unknown, None);
    }
    let known = match directory.entry(BlockId(name.band)) {
        Entry::Held(held) if held.phase == Phase::Open => KnownBand::Open(held.name),
        Entry::Held(held) => KnownBand::Sealed(held.name, held.pages),
        Entry::Unbound | Entry::Spent => KnownBand::Empty,
        Entry::Unsure => KnownBand::Unknown,
    };
    (known, registry.record(name).copied())
}
