//! Finding what a raw block holds: when the store is opened, and later where the pages of a sealed band are if that
//! was forgotten.
//!
//! The last slot that was written is read. If it is of a footer, the footer says all. Else the headers are walked
//! from the start, each of which says where the next one is; what was torn by a power cut ends the walk. Where a header
//! is damaged, the next one is searched page by page, and the pages between count as lost.
//!
//! Where a power cut may have left out any page that was not flushed, a footer says only what it was to be the end of: the
//! log knows of each seal that was answered. A band that is not sealed is read through: what is behind a page that is missing
//! may have been flushed, so it is all told, and from where on it is not sound. So is one that was sealed for all that.

use super::format::{AppendHeader, Block, Entry, Footer, LOST, Sealed};
use super::io::What;
use super::log::{LOG_TAG, RAW_BLOCKS};
use super::{Data, Held, OpenError, Output, Phase, RawStore};
use crate::message::{BandEntry, BandHeader};
use crate::node::ALL_SOUND;
use crate::node::store::{Found, FoundBand};
use crate::volume::PAGE_SLOTS;
use crate::words::BandName;
use flash::{Lba, Oob, RequestError};
use std::collections::BTreeSet;

/// Raw blocks that are looked at at a time when the store is opened.
const LOOKS_MAX: usize = 64;

/// Where a look is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// Asked for the last slot.
    Last,
    /// Asked for the footer that lies from there on.
    Footer { place: u32 },
    /// Asked for a header there.
    Walk { place: u32 },
    /// Asked for the data of the last page that is known, which ends there.
    Data { end: u32 },
}

/// One raw block being looked at.
#[derive(Clone, Debug)]
pub(super) struct Look {
    raw: u32,
    pub(super) band: BandName,
    written: u32,
    step: Step,
    entries: Vec<Entry>,
    header: Option<BandHeader>,
    hidden: bool,
    /// Sealed at so many pages.
    sealed: Option<u32>,
    /// Only one copy of the footer may be left.
    thin: bool,
    /// All that was written was understood.
    clean: bool,
    /// Behind the last page that is known lies what is none.
    torn: bool,
    /// The data are read, too, and footers do not count.
    checks: bool,
    /// Only footers of so many pages count: what the log says, where it knows of all seals.
    told: Option<u32>,
    /// Of each slot of the last page that is known, but zeroes.
    sums: Vec<Option<u32>>,
    /// Pages whose data are damaged, or some of them.
    damaged: BTreeSet<u32>,
    /// The drive did not even say what is there.
    unanswered: bool,
}

impl<D: Data> RawStore<D> {
    /// The units are mounted: reads the logs, then looks at what else was written.
    pub(super) fn begin_looking(&mut self) {
        self.phase = Phase::Looking;
        let lanes = self.units.lanes();
        self.free = vec![BTreeSet::new(); lanes.lanes as usize];
        self.open = vec![0; lanes.lanes as usize];
        if let Err(why) = self.log_fits() {
            return self.open_failed(OpenError::Shape(why));
        }
        let mut logs = Vec::new();
        let gone: Vec<bool> = (0..lanes.lanes).map(|lane| self.units.is_lane_gone(lane)).collect();
        self.blind = gone.contains(&true);
        for raw in 0..lanes.lanes * lanes.raw_blocks {
            let block = self.units.raw_block(Lba(raw * lanes.slots)).expect("it is one");
            match block.tag {
                _ if block.state == "erased" && gone[self.lane_of(raw)] => {}
                _ if block.state == "erased" => {
                    let lane = self.lane_of(raw);
                    self.free[lane].insert(raw);
                }
                Some(LOG_TAG) if block.blocks_before_gap > 0 => {
                    logs.push((raw, block.blocks_before_gap));
                }
                Some(_) if block.blocks_written > 0 => self.unlooked.push_back(raw),
                _ => self.doomed.push(raw),
            }
        }
        if self.formats {
            self.log_format();
            return self.pump_looks();
        }
        self.log_begin(logs);
    }

    /// Begins what may be begun, and is ready when all is known.
    pub(super) fn pump_looks(&mut self) {
        if self.phase != Phase::Looking || !self.log.is_known() {
            return;
        }
        while self.looks.len() < LOOKS_MAX
            && let Some(raw) = self.unlooked.pop_front()
        {
            self.begin_look(raw);
        }
        if self.looks.is_empty() {
            // A volume is fenced before its first band is opened: whatever kept that is gone.
            let fenced = |band: &BandName| self.log.fences().contains_key(&band.volume);
            if !self.bands.keys().all(fenced) {
                return self.open_failed(OpenError::Log);
            }
            self.phase = Phase::Settling;
            for raw in std::mem::take(&mut self.doomed) {
                self.erase(What::Reclaim { raw }, raw);
            }
            let thin = std::mem::take(&mut self.thin);
            self.log_settle(thin);
        }
    }

    /// All that was found will be found again, whatever happens.
    pub(super) fn become_ready(&mut self) {
        self.phase = Phase::Ready;
        let found = Box::new(self.found());
        self.outputs.push_back(Output::Ready(Ok(found)));
    }

    fn found(&self) -> Found {
        let bands = self.bands.iter().map(|(&band, held)| {
            let &Held { header, pages, sealed, sound, torn, loose, failed, .. } = held;
            let sound = sound.min(pages);
            let entry = BandEntry { band, header, pages, sealed, sound, torn, loose };
            FoundBand { entry, failed }
        });
        let lanes = self.units.lanes();
        let alive = (0..lanes.lanes).filter(|&lane| !self.units.is_lane_gone(lane)).count();
        Found {
            bands: bands.collect(),
            fences: self.log.fences().clone(),
            bands_max: (alive as u32 * lanes.raw_blocks).saturating_sub(RAW_BLOCKS),
            band_pages: self.band_pages(PAGE_SLOTS),
            durable: self.geometry.durable_at_completion,
        }
    }

    pub(super) fn begin_look(&mut self, raw: u32) {
        let block = self.units.raw_block(Lba(raw * self.units.lanes().slots)).expect("it is one");
        let (written, band) =
            (block.blocks_written, BandName::of_tag(block.tag.expect("bands have tags")));
        let sealed = self.log.sealed(band).filter(|_| !self.geometry.durable_at_completion);
        let is_told = sealed.is_some_and(|sealed| !sealed.damaged);
        // What is known of a band need not be read again.
        let is_new = self.phase == Phase::Looking;
        let checks = is_new && !is_told && !self.geometry.durable_at_completion;
        let place = if checks { 0 } else { written - 1 };
        let look = Look {
            raw,
            band,
            written,
            step: if checks { Step::Walk { place } } else { Step::Last },
            entries: Vec::new(),
            header: None,
            hidden: false,
            sealed: None,
            thin: false,
            clean: true,
            torn: false,
            checks,
            told: sealed.map(|sealed| sealed.pages),
            sums: Vec::new(),
            damaged: BTreeSet::new(),
            unanswered: false,
        };
        self.looks_begun += 1;
        self.looks.insert(self.looks_begun, look);
        let what = What::Look { look: self.looks_begun };
        self.read_bytes(what, raw, place, 1);
    }

    /// What a look asked for was read.
    pub(super) fn looked(
        &mut self,
        id: u64,
        slots: Vec<Option<Block>>,
        result: Result<(), RequestError>,
    ) {
        let page = self.geometry.slots_per_page;
        // Its band was freed meanwhile.
        let Some(look) = self.looks.get_mut(&id) else { return };
        look.unanswered |= result == Err(RequestError::Failed);
        let next = match look.step {
            Step::Last => look.take_last(&slots),
            Step::Footer { .. } => look.take_footer(&slots, page),
            Step::Walk { place } => look.take_header(place, slots[0].as_ref(), page),
            Step::Data { .. } => unreachable!("data are no slots of the store's own"),
        };
        self.look_on(id, next);
    }

    /// The data of a page were read.
    pub(super) fn looked_through(
        &mut self,
        id: u64,
        slots: Vec<(Option<D>, Option<u32>)>,
        result: Result<(), RequestError>,
    ) {
        let page = self.geometry.slots_per_page;
        let Some(look) = self.looks.get_mut(&id) else { return };
        look.unanswered |= result == Err(RequestError::Failed);
        let found: Vec<Option<u32>> = slots.into_iter().map(|(_, sum)| sum).collect();
        let next = look.take_data(&found, page);
        self.look_on(id, Some(next));
    }

    fn look_on(&mut self, id: u64, next: Option<Next>) {
        let look = self.looks.get_mut(&id).expect("it is under way");
        let raw = look.raw;
        let next = next.map(|next| match next {
            Next::Footer { place, count } => (Step::Footer { place }, place, count),
            Next::Walk { place } => (Step::Walk { place }, place, 1),
            Next::Data { place, count } => (Step::Data { end: place + count }, place, count),
        });
        let Some((step, place, count)) =
            next.filter(|&(_, place, count)| place.saturating_add(count) <= look.written)
        else {
            return self.end_look(id);
        };
        look.step = step;
        let what = What::Look { look: id };
        match step {
            Step::Data { .. } => self.read_data(what, raw, place, count),
            _ => self.read_bytes(what, raw, place, count),
        }
    }

    fn end_look(&mut self, id: u64) {
        let mut look = self.looks.remove(&id).expect("it is under way");
        let raw = look.raw;
        look.seal_as_logged(self.log.sealed(look.band));
        if self.phase == Phase::Looking {
            self.take_look(raw, look);
            return self.pump_looks();
        }
        let name = look.band;
        let Some(held) = self.bands.get_mut(&name).filter(|held| held.raw == raw) else { return };
        // What cannot be found any more is lost: what it was sealed with stays.
        look.entries.resize(held.pages as usize, Entry { place: LOST, ..Entry::default() });
        self.indexed_pages += u64::from(held.pages);
        held.index = Some(look.entries);
        for (id, command) in self.waiting.remove(&name).unwrap_or_default() {
            self.command(id, command);
        }
        self.drop_indexes();
    }

    /// Takes a raw block for the band that it holds, or erases it.
    fn take_look(&mut self, raw: u32, look: Look) {
        let lba = Lba(raw * self.units.lanes().slots);
        let block = self.units.raw_block(lba).expect("it is one");
        let unanswered = look.unanswered;
        let (sound, loose) = look.sound();
        let torn = (look.torn || block.goes_on || loose > 0) && look.sealed.is_none();
        let Look { band, written, entries, header, hidden, sealed, thin, clean, .. } = look;
        let counts = sealed.is_some() || !hidden && !entries.is_empty();
        if !counts && unanswered {
            // It may be sound when the drive answers again: left alone until the next mount.
            self.blind = true;
            return;
        }
        let Some(header) = header.filter(|_| counts) else {
            return self.doomed.push(raw);
        };
        // Of two the later was answered: the other is what a failed opening has left.
        if let Some(other) = self.bands.get(&band) {
            let of_other = Lba(other.raw * self.units.lanes().slots);
            let other_block = self.units.raw_block(of_other).expect("it is one");
            if other_block.sequence > block.sequence {
                return self.doomed.push(raw);
            }
            self.doomed.push(other.raw);
            self.forget_found(band);
        }
        let thin = thin || !self.footers_suffice();
        if let Some(pages) = sealed.filter(|_| thin && self.log.sealed(band).is_none()) {
            self.thin.push((band, pages));
        }
        let pages = sealed.unwrap_or(entries.len() as u32);
        // Its seal goes to the log then: without a footer it is read through again.
        let failed = sealed.is_none() && (block.state != "open" || !clean || sound < pages);
        if sealed.is_none() {
            let lane = self.lane_of(raw);
            self.open[lane] += 1;
        }
        let held = Held {
            raw,
            header,
            pages,
            sound,
            torn,
            loose,
            sealed: sealed.is_some(),
            hidden,
            failed,
            next: written,
            writing: 0,
            index: sealed.is_none().then_some(entries),
            used: 0,
        };
        self.bands.insert(band, held);
    }

    fn forget_found(&mut self, band: BandName) {
        if let Some(held) = self.bands.remove(&band)
            && !held.sealed
        {
            let lane = self.lane_of(held.raw);
            self.open[lane] -= 1;
        }
    }
}

/// What a look needs next.
enum Next {
    Footer {
        place: u32,
        count: u32,
    },
    /// A header.
    Walk {
        place: u32,
    },
    /// The data of the last page that is known.
    Data {
        place: u32,
        count: u32,
    },
}

impl Look {
    fn take_last(&mut self, slots: &[Option<Block>]) -> Option<Next> {
        match self.footer(slots[0].as_ref()) {
            Some(footer) => Some(Next::Footer { place: footer.place, count: footer.count }),
            None => Some(Next::Walk { place: 0 }),
        }
    }

    /// A footer of the band in a slot, if it counts.
    fn footer(&self, slot: Option<&Block>) -> Option<Footer> {
        let footer = slot.and_then(|block| Footer::decode(&block[..]))?;
        let counts = !self.checks && self.told.is_none_or(|pages| pages == footer.pages);
        (counts && footer.band == self.band && footer.pages <= self.written).then_some(footer)
    }

    fn take_footer(&mut self, slots: &[Option<Block>], page: u32) -> Option<Next> {
        let footer = |(index, slot): (u32, &Option<Block>)| {
            self.footer(slot.as_ref()).filter(|footer| footer.index == index)
        };
        let footers: Option<Vec<Footer>> = (0..).zip(slots).map(footer).collect();
        // A part of it is damaged: the headers say the same.
        let Some(footers) = footers else { return Some(Next::Walk { place: 0 }) };
        let first = &footers[0];
        (self.header, self.sealed) = (Some(first.header), Some(first.pages));
        // What the power has cut off is the second copy.
        self.thin = first.copy == 0;
        let end = first.place;
        // A header and what it says is stored lie before the footer, in pages of their own.
        let fits = |entry: &Entry, slots: u32| {
            let stored = slots.saturating_sub(entry.zeroes.count_ones());
            let after = entry.place.checked_add(1 + stored);
            entry.place.is_multiple_of(page) && after.is_some_and(|after| after <= end)
        };
        let slots = first.header.shape.slots_per_page;
        let all = footers.into_iter().flat_map(|footer| footer.entries);
        let lost = Entry { place: LOST, ..Entry::default() };
        self.entries = all.map(|entry| if fits(&entry, slots) { entry } else { lost }).collect();
        None
    }

    fn take_header(&mut self, place: u32, slot: Option<&Block>, page: u32) -> Option<Next> {
        if let Some(footer) = self.footer(slot) {
            let end = footer.place.saturating_add(footer.count);
            if end <= self.written {
                (self.header, self.sealed) = (Some(footer.header), Some(footer.pages));
                // Not both copies are sound, or the last slot would have told.
                self.thin = true;
                self.lose_up_to(footer.pages as usize);
                self.entries.truncate(footer.pages as usize);
            }
            return None;
        }
        let header = slot.and_then(|block| AppendHeader::decode(&block[..]));
        let header = header.filter(|it| {
            (it.band, it.place) == (self.band, place) && it.page as usize >= self.entries.len()
        });
        let Some(header) = header.filter(|it| it.page < it.header.shape.pages.min(self.written))
        else {
            (self.clean, self.torn) = (false, true);
            return Some(Next::Walk { place: place + page });
        };
        let end = place + 1 + header.stored();
        if end > self.written {
            (self.clean, self.torn) = (false, true);
            return None;
        }
        self.lose_up_to(header.page as usize);
        self.hidden |= header.hidden;
        self.header = Some(header.header);
        self.entries.push(header.entry());
        self.torn = false;
        if !self.checks || header.stored() == 0 {
            return Some(Next::Walk { place: end.next_multiple_of(page) });
        }
        let slots = header.slots.iter().enumerate();
        let sum =
            |(at, (_, sum)): (usize, &(Oob, u32))| (header.zeroes >> at & 1 == 0).then_some(*sum);
        self.sums = slots.map(sum).collect();
        Some(Next::Data { place: place + 1, count: header.stored() })
    }

    /// What was read where the data of the last page lie.
    fn take_data(&mut self, found: &[Option<u32>], page: u32) -> Next {
        let Step::Data { end } = self.step else { unreachable!("data were asked for") };
        let mut found = found.iter().copied();
        let is_sound = |sum: &Option<u32>| sum.is_none() || found.next() == Some(*sum);
        if !self.sums.iter().all(is_sound) {
            self.damaged.insert(self.entries.len() as u32 - 1);
        }
        Next::Walk { place: end.next_multiple_of(page) }
    }

    /// The first page that is damaged or lost, or any number behind the last, and how many of the last ones are.
    fn sound(&self) -> (u32, u32) {
        let lost = (0..).zip(&self.entries).filter(|(_, entry)| entry.place == LOST);
        let all = lost.map(|(page, _)| page).chain(self.damaged.iter().copied());
        let pages = self.entries.len() as u32;
        let loose = (0..pages).rev().take_while(|page| self.damaged.contains(page)).count();
        (all.min().unwrap_or(ALL_SOUND), loose as u32)
    }

    /// Pages below this were there, and their headers are damaged.
    fn lose_up_to(&mut self, pages: usize) {
        if self.entries.len() < pages {
            self.entries.resize(pages, Entry { place: LOST, ..Entry::default() });
        }
    }

    /// The log knows of a seal that the raw block could not take.
    fn seal_as_logged(&mut self, sealed: Option<Sealed>) {
        let pages = sealed.map(|sealed| sealed.pages);
        if let (Some(pages), None, Some(_)) = (pages, self.sealed, self.header) {
            self.lose_up_to(pages as usize);
            self.entries.truncate(pages as usize);
            self.sealed = Some(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{BandShape, Generation, Members, NodeId, VolumeId};

    #[test]
    fn a_footer_that_names_places_beyond_its_own_loses_those_pages_only() {
        let members = Members::new(&[NodeId(1)]).expect("one");
        let header = BandHeader { members, shape: BandShape { pages: 4, slots_per_page: 3 } };
        let band = BandName { volume: VolumeId(1), band: 2, life: 3 };
        let entry = |place| Entry { place, sum: 0, zeroes: 0 };
        // The last two run into the footer, or begin within a page.
        let entries = [entry(0), entry(u32::MAX - 1), entry(14), entry(5)];
        let footers = Footer::of((band, Generation(1)), header, (1, 16), &entries);
        let mut look = Look {
            raw: 0,
            band,
            written: 18,
            step: Step::Footer { place: 16 },
            entries: Vec::new(),
            header: None,
            hidden: false,
            sealed: None,
            thin: false,
            clean: true,
            torn: false,
            checks: false,
            told: None,
            sums: Vec::new(),
            damaged: BTreeSet::new(),
            unanswered: false,
        };
        let slots: Vec<_> = footers.iter().map(|footer| Some(footer.encode())).collect();
        assert!(look.take_footer(&slots, 2).is_none(), "it is understood");
        let places: Vec<u32> = look.entries.iter().map(|entry| entry.place).collect();
        assert_eq!((look.sealed, places), (Some(4), vec![0, LOST, LOST, LOST]));
        assert_eq!(look.sound().0, 1, "and the node knows it");
    }
}
