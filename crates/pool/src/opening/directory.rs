//! What an opening found: which life of each band lies where.

use super::decide::{self, Seen, Worth};
use super::peers::Peer;
use super::{Mutant, Open};
use crate::control::values::{NodeRecord, VolumeRecord};
use crate::message::BandEntry;
use crate::words::{BandName, NodeId};
use flash::Instant;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A volume that was opened.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Opened {
    /// What it is.
    pub volume: VolumeRecord,
    /// The nodes of the pool.
    pub nodes: Vec<NodeRecord>,
    /// The end of the lease, as far as it is known now.
    pub lease_until: Instant,
    /// All bands that have pages, by number. All are sealed.
    pub bands: Vec<OpenedBand>,
    /// Bands that are there, but of which nobody who can be asked has as much as there is: their reads are refused.
    pub refused: Vec<BandName>,
    /// What is in neither list is empty. Else it is not known, and not to be taken for empty.
    pub complete: bool,
    /// Nodes that were not asked.
    pub away: Vec<NodeId>,
    /// Nodes that hold nothing that is needed, and were not asked either.
    pub clear: Vec<NodeId>,
    /// Members of bands on record that have nothing of them.
    pub rid: Vec<(NodeId, BandName)>,
    /// Older lives: to be freed.
    pub garbage: Vec<(NodeId, BandName)>,
    /// Copies that are none: to be freed when the band has as many as it should. Until then they may have what others lack.
    pub bad: Vec<(NodeId, BandName)>,
    /// Copies that are not sealed and of which nothing is on record: never shown, and left alone until a later
    /// life of the band makes them garbage.
    pub strays: Vec<(NodeId, BandName)>,
}

/// A band of a volume that was opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpenedBand {
    /// Its newest life.
    pub name: BandName,
    /// Its pages.
    pub pages: u32,
    /// The nodes that have all of them, sealed. If nobody has, the one whose copy is damaged least, which is among those
    /// that are none as well.
    pub holders: Vec<NodeId>,
}

impl Opened {
    /// A band, by number.
    pub fn band(&self, band: u32) -> Option<&OpenedBand> {
        let at = self.bands.binary_search_by_key(&band, |of| of.name.band).ok()?;
        Some(&self.bands[at])
    }
}

impl Open {
    /// The directory, once all copies are sealed that could be.
    pub(super) fn opened(
        &self,
        lease_until: Instant,
        go_on: bool,
        mutant: Option<Mutant>,
    ) -> Opened {
        let mut opened = Opened {
            volume: self.volume.clone(),
            nodes: self.peers.all().map(|(_, peer)| peer.record.clone()).collect(),
            lease_until,
            complete: self.missing().is_empty(),
            away: self.away(),
            clear: self.peers.all().filter(|(_, peer)| peer.clear).map(|(node, _)| node).collect(),
            rid: self.rid(),
            ..Opened::default()
        };
        assert!(opened.complete || go_on, "bands that nobody knows of are waited for");
        let mut copies: BTreeMap<u32, Vec<(NodeId, BandEntry)>> = BTreeMap::new();
        for record in self.registry.records() {
            copies.insert(record.name.band, Vec::new());
        }
        for (node, peer) in self.peers.listed() {
            for entry in peer.entries() {
                copies.entry(entry.band.band).or_default().push((node, *entry));
            }
        }
        for (band, copies) in copies {
            let newest = self.registry.newest(band).filter(|record| self.is_newest(record));
            match newest {
                Some(record) => {
                    let pages = self.pages(record, mutant);
                    self.on_record(&mut opened, record.name, pages, &copies, mutant);
                }
                None => self.not_on_record(&mut opened, &copies),
            }
        }
        opened
    }

    /// Whether nobody who may hold something, and who may still come, is missing.
    pub(super) fn all_have_come(&self) -> bool {
        let has_come = |peer: &Peer| peer.is_listed() || peer.clear || !peer.record.state.counts();
        self.peers.all().all(|(_, peer)| has_come(peer))
    }

    /// Copies of a band of so many pages that are damaged, the soundest first.
    pub(super) fn parts(&self, name: BandName, pages: u32) -> Vec<NodeId> {
        let part = |(node, entry): Seen| {
            let entry = entry.filter(|of| decide::worth(pages, of) == Worth::Part)?;
            (!self.bad.contains(&(node, name))).then_some((Reverse(entry.sound), node))
        };
        let mut parts: Vec<_> = self.seen(name).into_iter().filter_map(part).collect();
        parts.sort_unstable();
        parts.into_iter().map(|(_, node)| node).collect()
    }

    fn rid(&self) -> Vec<(NodeId, BandName)> {
        let mut rid = Vec::new();
        for record in self.registry.records() {
            let seen = self.seen_by_members(record).into_iter();
            let nothing = seen.filter(|(_, entry)| entry.is_none());
            rid.extend(nothing.map(|(node, _)| (node, record.name)));
        }
        rid
    }

    fn on_record(
        &self,
        opened: &mut Opened,
        name: BandName,
        pages: Option<u32>,
        copies: &[(NodeId, BandEntry)],
        mutant: Option<Mutant>,
    ) {
        let mut holders = Vec::new();
        for &(node, entry) in copies {
            let worth = pages.map(|pages| decide::worth(pages, &entry));
            let taken = Mutant::PrefixNotCompleted.is(mutant);
            match worth {
                _ if entry.band.life < name.life => opened.garbage.push((node, entry.band)),
                // A later life would be on record itself.
                None => opened.strays.push((node, entry.band)),
                Some(_) if entry.band != name => opened.strays.push((node, entry.band)),
                Some(Worth::Whole) => holders.push(node),
                Some(Worth::Bad) if taken => holders.push(node),
                // A free that was refused, and a seal likewise.
                Some(Worth::Free) => opened.garbage.push((node, name)),
                Some(Worth::Seal | Worth::Part | Worth::Bad) => opened.bad.push((node, name)),
            }
        }
        if holders.is_empty() {
            holders.extend(pages.and_then(|pages| best_part(name, pages, copies.iter())));
        }
        match pages {
            Some(0) => {}
            Some(pages) if !holders.is_empty() => {
                opened.bands.push(OpenedBand { name, pages, holders });
            }
            _ => opened.refused.push(name),
        }
    }

    fn not_on_record(&self, opened: &mut Opened, copies: &[(NodeId, BandEntry)]) {
        let sealed = copies.iter().filter(|(_, entry)| entry.sealed).map(|(_, entry)| entry.band);
        let newest = sealed.max().or_else(|| copies.iter().map(|(_, entry)| entry.band).max());
        let Some(name) = newest else { return };
        let sealed = || copies.iter().filter(|(_, entry)| entry.band == name && entry.sealed);
        let fits = |entry: &BandEntry| entry.header.shape == self.volume.shape;
        let pages = sealed().filter(|(_, entry)| fits(entry)).map(|(_, entry)| entry.pages).max();
        let is_whole = |entry: &BandEntry| Some(entry.pages) == pages && entry.sound == entry.pages;
        let mut holders = Vec::new();
        for &(node, entry) in copies {
            if entry.band < name {
                opened.garbage.push((node, entry.band));
            } else if entry.band == name && entry.sealed && is_whole(&entry) {
                holders.push(node);
            } else if entry.band == name && entry.sealed && pages.is_some() {
                opened.bad.push((node, name));
            } else {
                opened.strays.push((node, name));
            }
        }
        if holders.is_empty() {
            holders.extend(pages.and_then(|pages| best_part(name, pages, sealed())));
        }
        match pages {
            // Sealed without a page: it holds nothing.
            Some(0) => opened.garbage.extend(holders.into_iter().map(|node| (node, name))),
            Some(pages) => opened.bands.push(OpenedBand { name, pages, holders }),
            // What is needed is sealed on as many nodes as the volume has replicas, one of which was listed: so
            // this is what an owner left that freed the band while the node was away.
            None if opened.complete && sealed().next().is_none() => {}
            None => opened.refused.push(name),
        }
    }
}

/// The copy that is damaged least: where nobody has all of a band it stands for it.
fn best_part<'a>(
    name: BandName,
    pages: u32,
    copies: impl Iterator<Item = &'a (NodeId, BandEntry)>,
) -> Option<NodeId> {
    let is_part =
        |entry: &BandEntry| entry.band == name && decide::worth(pages, entry) == Worth::Part;
    let parts = copies.filter(|(_, entry)| is_part(entry));
    parts.min_by_key(|(node, entry)| (Reverse(entry.sound), *node)).map(|(node, _)| *node)
}
