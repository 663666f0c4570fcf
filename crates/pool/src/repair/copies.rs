//! Copies: from whom and to whom one goes, and what came of it.

use super::plan::{self, Need, Urgency};
use super::{Asked, Copied, Directory, Job, QUEUE_MAX, REST_NS, Repair, RepairOutput, SealedBand};
use crate::control::mutant::Mutant;
use crate::message::{Ask, BandHeader, Refusal};
use crate::words::{BandName, Members, NodeId};
use flash::{Instant, SECOND};
use std::collections::BTreeMap;

impl<D> Repair<D> {
    pub(super) fn copy(&mut self, now: Instant, directory: &dyn Directory) {
        while self.jobs.len() + self.places.len() < self.config.copies_max as usize {
            let Some((_, number)) = self.queue.pop_first() else { break };
            let under_way = self.jobs.contains_key(&number) || self.places.contains_key(&number);
            let fresh = !under_way && !self.told.contains(&number);
            let Some(band) = directory.band(number).filter(|_| fresh) else {
                continue;
            };
            // What was needed when it was queued may not be any more.
            let need = self.nodes.need(now, &band, self.replicas(), self.limits());
            let Need::Copy(urgency) = need else { continue };
            if !self.begin(now, &band, urgency) {
                self.rest.insert(number, now + REST_NS);
                if self.rest.len() > QUEUE_MAX {
                    self.rest.pop_first();
                }
            }
        }
        if self.jobs.is_empty() {
            if self.copied.since.is_some() {
                // Whether that was all the next walk tells.
                self.scan_anew(now);
            }
            self.copied = Copied { since: None, bytes: 0, ..self.copied };
        }
    }

    /// Has a band copied, if there is a node to copy it from and one to copy it to.
    fn begin(&mut self, now: Instant, band: &SealedBand, urgency: Urgency) -> bool {
        let mut busy: BTreeMap<NodeId, u32> = BTreeMap::new();
        self.jobs.values().for_each(|job| *busy.entry(job.from.nodes()[0]).or_default() += 1);
        let rest = self.staying(now, band, urgency);
        let to = self.nodes.target(now, band, &rest, &self.unfit(band.name));
        let Some(sources) = self.nodes.sources(band, &busy, &self.bad) else { return false };
        let from = sources.nodes()[0];
        let Some(to) = to else { return self.begin_place(now, band, &rest, from) };
        let members = self.nodes.members_after(band, to, self.replicas());
        let members = Members::new(&members).expect("different, and no more than replicas");
        let header = BandHeader { members, shape: self.config.shape };
        let (name, pages, generation) = (band.name, band.pages, self.config.generation);
        let bytes_per_s_max = self.bytes_per_s();
        let copy =
            Ask::Copy { band: name, generation, from: sources, header, pages, bytes_per_s_max };
        let leaves = band.holders.iter().copied().find(|node| !rest.contains(node));
        let leaves = leaves.filter(|_| urgency == Urgency::Spread);
        self.jobs.insert(name.band, Job { urgency, name, pages, from: sources, to, leaves });
        self.nodes.coming(to, true, false);
        self.nodes.going(leaves, true);
        self.copied.since.get_or_insert(now);
        self.ask(to, Asked::Copy { band: name.band }, copy);
        if Mutant::FreedTooEarly.is(self.mutant) && band.holders.len() >= self.replicas() {
            self.leave(band, from);
        }
        true
    }

    /// The holders beside which the new copy must be in another domain: all but one that is to go.
    pub(super) fn staying(&self, now: Instant, band: &SealedBand, urgency: Urgency) -> Vec<NodeId> {
        match urgency {
            Urgency::Spread => {
                let from = self.nodes.moves(now, band, self.config.spread_max);
                band.holders.iter().copied().filter(|node| Some(*node) != from).collect()
            }
            _ => self.nodes.present(now, &band.holders, self.config.absence_ns),
        }
    }

    pub(super) fn copied(&mut self, band: u32, directory: &dyn Directory) {
        let Some(job) = self.jobs.remove(&band) else { return };
        self.nodes.coming(job.to, false, true);
        self.nodes.going(job.leaves, false);
        self.bad.remove(&(job.to, job.name));
        self.copied.bytes += u64::from(job.pages) * self.page_bytes();
        self.copied.bands += 1;
        // What the last walk counted is one less.
        let tally = &mut self.scan.last;
        tally.pages = tally.pages.saturating_sub(u64::from(job.pages));
        *tally.of(job.urgency) = tally.of(job.urgency).saturating_sub(1);
        let of = directory.band(band);
        let of = of.filter(|of| of.name == job.name && of.pages == job.pages);
        if let Some(of) = of {
            if let Some(node) = self.nodes.gives_way(&of, job.leaves) {
                self.leave(&of, node);
            }
            self.told.insert(band);
            self.outputs.push_back(RepairOutput::Joined(job.name, job.to));
            // What it had too many is dropped when the directory is looked at next.
            self.scan.again = true;
        } else {
            // The band was freed meanwhile.
            self.garbage.insert((job.to, job.name));
        }
    }

    pub(super) fn not_copied(
        &mut self,
        now: Instant,
        band: u32,
        refusal: Refusal,
        directory: &dyn Directory,
    ) {
        let Some(job) = self.jobs.remove(&band) else { return };
        self.nodes.coming(job.to, false, false);
        self.nodes.going(job.leaves, false);
        match refusal {
            Refusal::Full | Refusal::Mode | Refusal::Failed | Refusal::BandFailed => {
                self.nodes.avoid(job.to, now + REST_NS);
            }
            // There is another copy there, which is none.
            Refusal::Differs | Refusal::Sealed { .. } => drop(self.bad.insert((job.to, job.name))),
            Refusal::Busy => drop(self.rest.insert(band, now + plan::BUSY_NS)),
            // All were asked, and together they do not have it.
            Refusal::Invalid => {
                let of = directory.band(band).filter(|of| of.name == job.name);
                let was_asked = |node: &NodeId| job.from.has(*node);
                let rest_ns = if of.is_some_and(|of| of.holders.iter().all(was_asked)) {
                    self.not_whole(job.name);
                    UNREADABLE_NS
                } else {
                    // Who has come meanwhile may have it.
                    REST_NS
                };
                self.rest.insert(band, now + rest_ns);
            }
            _ => drop(self.rest.insert(band, now + REST_NS)),
        }
        self.scan_anew(now);
    }

    /// Nobody who was asked has all of the band. Who was away then may have what the others lack.
    pub(super) fn not_whole(&mut self, name: BandName) {
        if self.nodes.all_up() {
            self.outputs.push_back(RepairOutput::NotWhole(name));
        }
    }
}

/// A band that nobody can read all of: each try writes up to where it ends.
const UNREADABLE_NS: u64 = 60 * SECOND;
