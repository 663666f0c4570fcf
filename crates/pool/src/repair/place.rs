//! A copy that is damaged or none makes place for one that is sound, where no other node can take that: there may be only
//! as many nodes as copies. It is the one move that takes something away before there is something else, so what goes
//! must be nowhere else wanted:
//! - a sound copy was read *whole* just before, and beside it the one that goes: what that one has is the same there.
//!   Two copies that are damaged at different places both stay, as each has what the other lacks, and so do unlike ones;
//! - what was read is durable where it was read;
//! - the control plane has kept that the band lacks a copy. Whoever opens the volume before there is another one waits
//!   for the node that has it; else it would take the band for an empty one while that node is away.
//!
//! A crash in between leaves a band that lacks a copy, and its record.

use super::plan::{Need, Urgency};
use super::scrub::{Sum, sums_of};
use super::{Asked, Directory, REST_NS, Repair, RepairOutput, SealedBand};
use crate::control::mutant::Mutant;
use crate::message::{Answer, Ask, AskId, Refusal};
use crate::words::{BandName, NodeId};
use flash::{Instant, MILLISECOND, SECOND};
use std::collections::BTreeSet;

/// A copy that is to go, if a sound one can be read.
#[derive(Clone, Debug)]
pub(super) struct Place {
    name: BandName,
    pages: u32,
    /// Who has the sound copy.
    from: NodeId,
    /// Whose copy goes.
    at: NodeId,
    /// The page that is read now, or next.
    page: u32,
    /// How often it was read in vain, as a node was busy.
    attempts: u32,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    /// A page is read at this instant.
    Waits(Instant),
    /// Both are asked for a page; what they said.
    Reads { asked: Vec<(AskId, NodeId)>, said: Vec<(NodeId, Said)> },
    /// All was read, and is made durable.
    Flushes(AskId),
    /// The control plane is to keep what the band lacks. It is told, or looked at, at this instant; until then others
    /// wait for it.
    Recalls(Instant, Instant),
}

/// What a node said of a page.
#[derive(Clone, Debug)]
enum Said {
    /// A sum of each slot that is sound.
    Slots(Vec<Option<Sum>>),
    /// It has no such page.
    Nothing,
    Busy,
}

impl Place {
    pub fn deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Waits(at) | Step::Recalls(at, _) => Some(at),
            Step::Reads { .. } | Step::Flushes(_) => None,
        }
    }

    /// Whether it rests on this node.
    pub fn is_on(&self, node: NodeId) -> bool {
        self.from == node || self.at == node
    }

    fn waits_for(&self, id: AskId) -> bool {
        match &self.step {
            Step::Reads { asked, .. } => asked.iter().any(|(of, _)| *of == id),
            Step::Flushes(of) => *of == id,
            Step::Waits(_) | Step::Recalls(..) => false,
        }
    }
}

/// What a page says of whether the copy may go.
enum Verdict {
    Goes,
    Again,
    /// It may have what the other one lacks.
    Stays,
    Unlike,
}

impl<D> Repair<D> {
    /// Sees to it that a copy which is none makes place, if there is one where nothing else can go. False if not.
    pub(super) fn begin_place(
        &mut self,
        now: Instant,
        band: &SealedBand,
        rest: &[NodeId],
        from: NodeId,
    ) -> bool {
        let name = band.name;
        if self.bad.contains(&(from, name)) {
            self.not_whole(name);
            return false;
        }
        let Some(at) = self.nodes.place(now, band, rest, &self.bad) else { return false };
        if self.freeing().contains(&(at, name)) {
            return true;
        }
        if Mutant::FreedUnread.is(self.mutant) {
            self.outputs.push_back(RepairOutput::Recall(name, at));
            self.free_one(at, name);
            return true;
        }
        // One that is given up is no copy that something may rest on.
        if !self.nodes.is_missed(from) {
            return false;
        }
        let step = Step::Waits(now);
        let place = Place { name, pages: band.pages, from, at, page: 0, attempts: 0, step };
        self.places.insert(name.band, place);
        self.make_places_of(now, name.band);
        true
    }

    /// Goes on with those whose time has come.
    pub(super) fn make_places(&mut self, now: Instant, directory: &dyn Directory) {
        let due = |place: &Place| place.deadline().is_some_and(|at| at <= now);
        let due: Vec<u32> =
            self.places.iter().filter(|(_, place)| due(place)).map(|(band, _)| *band).collect();
        for number in due {
            let place = &self.places[&number];
            let need = self.place_needed(now, place, directory);
            match (need, &place.step) {
                (None, _) => drop(self.places.remove(&number)),
                (Some(_), Step::Waits(_)) => self.make_places_of(now, number),
                (Some(need), _) => self.recall(now, number, need, directory),
            }
        }
    }

    /// What the band needs, if the copy is still to go for it.
    fn place_needed(
        &self,
        now: Instant,
        place: &Place,
        directory: &dyn Directory,
    ) -> Option<Urgency> {
        let (name, from, at) = (place.name, place.from, place.at);
        let band = directory.band(name.band).filter(|band| band.name == name)?;
        let is_sound = band.holders.contains(&from) && !self.bad.contains(&(from, name));
        let is_bad = !band.holders.contains(&at) && self.bad.contains(&(at, name));
        let is_told = self.told.contains(&name.band);
        if band.pages != place.pages || !is_sound || !is_bad || is_told {
            return None;
        }
        let Need::Copy(urgency) = self.nodes.need(now, &band, self.replicas(), self.limits())
        else {
            return None;
        };
        let rest = self.staying(now, &band, urgency);
        let other = self.nodes.target(now, &band, &rest, &self.unfit(name));
        other.is_none().then_some(urgency)
    }

    /// Reads the next page of both copies.
    fn make_places_of(&mut self, now: Instant, number: u32) {
        let Place { name: band, from, at, page, .. } = self.places[&number];
        let (count, generation) = (self.config.shape.slots_per_page, self.config.generation);
        let mut asked = Vec::new();
        for node in [from, at] {
            let (slot, id) = (page * count, self.next_id());
            let ask = Ask::Read { band, generation, slot, count, urgent: false };
            self.outputs.push_back(RepairOutput::Node { node, id, ask });
            asked.push((id, node));
        }
        let place = self.places.get_mut(&number).expect("it was looked at");
        place.step = Step::Reads { asked, said: Vec::new() };
        self.copied.since.get_or_insert(now);
    }

    /// True if the answer was for one of these.
    pub(super) fn place_answered(&mut self, now: Instant, id: AskId, answer: &Answer<D>) -> bool {
        let of = |(_, place): &(&u32, &Place)| place.waits_for(id);
        let Some(number) = self.places.iter().find(of).map(|(band, _)| *band) else { return false };
        let mut place = self.places.remove(&number).expect("it was found");
        let goes_on = match &mut place.step {
            Step::Flushes(_) => {
                place.step = Step::Recalls(now, now + RECALLS_NS);
                matches!(answer, Answer::Done)
            }
            Step::Reads { asked, said } => {
                let at = asked.iter().position(|(of, _)| *of == id).expect("it waits for it");
                said.push((asked.remove(at).1, said_of(answer)));
                !asked.is_empty() || self.page_read(now, &mut place)
            }
            Step::Waits(_) | Step::Recalls(..) => unreachable!("it waits for an answer"),
        };
        if goes_on {
            self.places.insert(number, place);
        } else {
            self.rest.insert(number, now + STAYS_NS);
        }
        true
    }

    /// Both have said what they have of a page. False if the copy stays.
    fn page_read(&mut self, now: Instant, place: &mut Place) -> bool {
        let Step::Reads { said, .. } = &place.step else { unreachable!("it was read") };
        match verdict(place, said, self.config.shape.slots_per_page) {
            Verdict::Goes => (place.page, place.attempts) = (place.page + 1, 0),
            Verdict::Again => place.attempts += 1,
            Verdict::Stays => {
                self.not_whole(place.name);
                return false;
            }
            Verdict::Unlike => {
                let both = vec![place.from, place.at];
                self.outputs.push_back(RepairOutput::Unlike(place.name, both));
                return false;
            }
        }
        if place.page == place.pages {
            place.step = if self.nodes.is_durable(place.from) {
                Step::Recalls(now, now + RECALLS_NS)
            } else {
                let (id, volume) = (self.next_id(), place.name.volume);
                let ask = Ask::Flush { volume, generation: self.config.generation };
                self.outputs.push_back(RepairOutput::Node { node: place.from, id, ask });
                Step::Flushes(id)
            };
            return true;
        }
        let pace_ns =
            u128::from(self.page_bytes()) * u128::from(SECOND) / u128::from(self.bytes_per_s());
        let pace_ns = u64::try_from(pace_ns).unwrap_or(u64::MAX);
        let wait_ns = if place.attempts > 0 { AGAIN_NS } else { 0 };
        place.step = Step::Waits(now + pace_ns.max(wait_ns));
        place.attempts <= ATTEMPTS_MAX
    }

    /// All was read: the copy goes once it is on record that the band lacks it, where it does.
    fn recall(&mut self, now: Instant, number: u32, need: Urgency, directory: &dyn Directory) {
        let place = self.places.get_mut(&number).expect("it is looked at");
        let (name, at) = (place.name, place.at);
        let is_told = directory.is_on_record(name) || Mutant::PlaceNotRecorded.is(self.mutant);
        if need.is_lacking() && !is_told {
            if let Step::Recalls(again, until) = &mut place.step
                && now < *until
            {
                *again = now + RECALL_NS;
                self.outputs.push_back(RepairOutput::Recall(name, at));
            } else {
                // What it does not keep now it may keep later; bands that can be copied elsewhere do not wait for it.
                self.places.remove(&number);
                self.rest.insert(number, now + REST_NS);
            }
            return;
        }
        self.places.remove(&number);
        self.free_one(at, name);
    }

    /// Nothing is left of a copy: if it was one that is none, another one may be made there at once.
    pub(super) fn has_place(
        &mut self,
        now: Instant,
        node: NodeId,
        name: BandName,
        directory: &dyn Directory,
    ) {
        if !self.bad.remove(&(node, name)) {
            return;
        }
        self.rest.remove(&name.band);
        if let Some(band) = directory.band(name.band).filter(|band| band.name == name) {
            self.look(now, &band);
        }
    }

    /// Copies that nodes were told to free and of which they have not said that they are gone.
    pub(super) fn freeing(&self) -> BTreeSet<(NodeId, BandName)> {
        let freed = |asked: &Asked| match asked {
            Asked::Free { node, name } | Asked::FlushFree { node, name } => Some((*node, *name)),
            _ => None,
        };
        self.in_flight.values().filter_map(freed).collect()
    }

    /// Where a copy of this band cannot go, as there is one that is none, or is to be freed: it would take the new
    /// one with it.
    pub(super) fn unfit(&self, name: BandName) -> BTreeSet<(NodeId, BandName)> {
        let mut unfit = self.freeing();
        let of = self.nodes.all().map(|view| (view.node, name));
        unfit.extend(of.filter(|it| self.bad.contains(it) || self.garbage.contains(it)));
        unfit
    }

    /// How fast one copy is made, so that all together keep to the rate.
    pub(super) fn bytes_per_s(&self) -> u64 {
        (self.config.bytes_per_s_max / u64::from(self.config.copies_max)).max(1)
    }
}

fn said_of<D>(answer: &Answer<D>) -> Said {
    match answer {
        Answer::Slots(slots) => Said::Slots(sums_of(slots)),
        Answer::Refused(Refusal::NoBand | Refusal::Invalid) => Said::Nothing,
        // Failing as a whole, or with other things to do.
        _ => Said::Busy,
    }
}

fn verdict(place: &Place, said: &[(NodeId, Said)], slots: u32) -> Verdict {
    let of = |node: NodeId| said.iter().find(|(by, _)| *by == node).map(|(_, said)| said);
    let (Some(from), Some(at)) = (of(place.from), of(place.at)) else {
        unreachable!("both were asked, and have answered");
    };
    let sound = match from {
        Said::Slots(sums) if sums.len() == slots as usize => sums,
        Said::Slots(_) | Said::Nothing => return Verdict::Stays,
        Said::Busy => return Verdict::Again,
    };
    if sound.iter().any(Option::is_none) {
        return Verdict::Stays;
    }
    match at {
        Said::Busy => Verdict::Again,
        Said::Nothing => Verdict::Goes,
        Said::Slots(sums) => {
            let is_unlike =
                |(sum, sound): (&Option<Sum>, &Option<Sum>)| sum.is_some() && sum != sound;
            match sums.iter().zip(sound).any(is_unlike) {
                true => Verdict::Unlike,
                false => Verdict::Goes,
            }
        }
    }
}

/// A page that a node was too busy to read is read again after this, and so often.
const AGAIN_NS: u64 = 20 * MILLISECOND;
const ATTEMPTS_MAX: u32 = 50;
/// The control plane takes so long, or less; and so long at most, or it is away, or full.
const RECALL_NS: u64 = 20 * MILLISECOND;
const RECALLS_NS: u64 = 2 * SECOND;
/// A copy that has to stay is looked at again after this: both are read each time.
const STAYS_NS: u64 = 6 * REST_NS;
