//! Scrub: all copies of a band are read, page by page, and their sums compared, slowly and while nothing else
//! goes on. A node that cannot read what it has, or has it no more, has a damaged copy. Copies that are sound but
//! unlike are told of and not touched: sums do not say which one is right, the FTL's own check does, when it reads.

use super::{Directory, SealedBand};
use crate::message::{Answer, Ask, AskId, Slot};
use crate::words::{BandName, BandShape, Generation, NodeId};
use flash::{BLOCK_BYTES, Instant, Oob, SECOND};
use std::collections::BTreeMap;

/// The walk over all copies of all bands.
#[derive(Clone, Debug)]
pub(super) struct Scrub {
    generation: Generation,
    shape: BandShape,
    bytes_per_s: u64,
    pub idle: bool,
    /// The band that was looked at last.
    after: Option<u32>,
    page: Option<Page>,
    /// Not before then is the next page read.
    read_at: Instant,
    pub pages_done: u64,
    pub rounds_done: u64,
}

/// A page that is being compared.
#[derive(Clone, Debug)]
struct Page {
    band: SealedBand,
    page: u32,
    /// Who was asked, and what came of it.
    asked: BTreeMap<AskId, NodeId>,
    sums: BTreeMap<NodeId, Option<Vec<Sum>>>,
}

/// All that a slot says of its content.
type Sum = (u32, Oob, bool);

/// What was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Found {
    Damaged(BandName, NodeId),
    Unlike(BandName, Vec<NodeId>),
}

impl<D> super::Repair<D> {
    /// Whole rounds of scrub.
    pub fn scrub_rounds(&self) -> u64 {
        self.scrub.rounds_done
    }
}

impl Scrub {
    pub fn new(generation: Generation, shape: BandShape, bytes_per_s: u64) -> Self {
        Self {
            generation,
            shape,
            bytes_per_s,
            idle: false,
            after: None,
            page: None,
            read_at: Instant(0),
            pages_done: 0,
            rounds_done: 0,
        }
    }

    /// The asks of the next page, if it is time for one.
    pub fn step<D>(
        &mut self,
        now: Instant,
        directory: &dyn Directory,
        is_up: impl Fn(NodeId) -> bool,
        next_id: &mut dyn FnMut() -> AskId,
    ) -> Vec<(NodeId, AskId, Ask<D>)> {
        let waits = self.page.as_ref().is_some_and(|page| !page.asked.is_empty());
        if !self.idle || waits || now < self.read_at || self.bytes_per_s == 0 {
            return Vec::new();
        }
        let Some(mut page) = self.next(directory) else { return Vec::new() };
        let slots = self.shape.slots_per_page;
        let mut asks = Vec::new();
        for &node in page.band.holders.iter().filter(|node| is_up(**node)) {
            let (band, slot) = (page.band.name, page.page * slots);
            let id = next_id();
            page.asked.insert(id, node);
            let generation = self.generation;
            asks.push((
                node,
                id,
                Ask::Read { band, generation, slot, count: slots, urgent: false },
            ));
        }
        let bytes = asks.len() as u64 * u64::from(slots) * BLOCK_BYTES as u64;
        self.read_at = now + (bytes * SECOND).div_ceil(self.bytes_per_s).max(MIN_PAUSE_NS);
        self.page = Some(page);
        asks
    }

    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.page.as_ref().is_some_and(|page| !page.asked.is_empty());
        (self.idle && !waits && self.bytes_per_s > 0).then_some(self.read_at)
    }

    /// Whether the answer was one of these; what was found once a page is complete.
    pub fn answered<D>(&mut self, id: AskId, answer: &Answer<D>) -> Option<Vec<Found>> {
        let page = self.page.as_mut()?;
        let node = page.asked.remove(&id)?;
        let sum = |slot: &Slot<D>| (slot.crc, slot.oob, slot.data.is_none());
        let sums = match answer {
            Answer::Slots(slots) => slots.iter().map(|slot| slot.as_ref().map(sum)).collect(),
            // Busy, or failing as a whole: nothing is known of this copy.
            Answer::Refused(crate::message::Refusal::NoBand) => None,
            _ => return Some(self.complete()),
        };
        page.sums.insert(node, sums);
        Some(self.complete())
    }

    /// A node does not answer any more.
    pub fn down(&mut self, node: NodeId) -> Vec<Found> {
        let Some(page) = &mut self.page else { return Vec::new() };
        let before = page.asked.len();
        page.asked.retain(|_, of| *of != node);
        if page.asked.len() < before { self.complete() } else { Vec::new() }
    }

    fn complete(&mut self) -> Vec<Found> {
        let Some(page) = self.page.as_ref().filter(|page| page.asked.is_empty()) else {
            return Vec::new();
        };
        self.pages_done += 1;
        let name = page.band.name;
        let bad = page.sums.iter().filter(|(_, sums)| sums.is_none());
        let mut found: Vec<Found> = bad.map(|(&node, _)| Found::Damaged(name, node)).collect();
        let sound: Vec<_> =
            page.sums.iter().filter_map(|(&node, sums)| Some((node, sums.as_ref()?))).collect();
        // Where nobody can read it there is nothing to copy from: all copies stay.
        if sound.is_empty() {
            found.clear();
        }
        if sound.iter().any(|(_, sums)| *sums != sound[0].1) {
            found.push(Found::Unlike(name, sound.iter().map(|(node, _)| *node).collect()));
        }
        found
    }

    /// The next page of the band, or the first of the next band, or of the first one again.
    fn next(&mut self, directory: &dyn Directory) -> Option<Page> {
        let (asked, sums) = (BTreeMap::new(), BTreeMap::new());
        if let Some(page) = self.page.take() {
            let now = directory.band(page.band.name.band);
            let next = page.page + 1;
            if let Some(band) = now.filter(|band| band.name == page.band.name && next < band.pages)
            {
                return Some(Page { band, page: next, asked, sums });
            }
        }
        let band = directory.next(self.after).or_else(|| {
            self.rounds_done += 1;
            directory.next(None)
        })?;
        self.after = Some(band.name.band);
        Some(Page { band, page: 0, asked, sums })
    }
}

/// Between two pages, whatever the rate.
const MIN_PAUSE_NS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Refusal;
    use crate::words::VolumeId;
    use flash::OOB_BYTES;

    struct One(SealedBand);

    impl Directory for One {
        fn next(&self, after: Option<u32>) -> Option<SealedBand> {
            after.is_none().then(|| self.0.clone())
        }

        fn band(&self, _: u32) -> Option<SealedBand> {
            Some(self.0.clone())
        }

        fn is_over(&self, _: BandName) -> bool {
            false
        }

        fn may_have_more(&self, _: NodeId) -> bool {
            false
        }
    }

    fn slot(crc: u32) -> Option<Slot<u64>> {
        Some(Slot { oob: [0; OOB_BYTES], crc, data: None })
    }

    /// What is found when three nodes answer so to the first page.
    fn found(answers: [Answer<u64>; 3]) -> Vec<Found> {
        let name = BandName { volume: VolumeId(1), band: 0, life: 1 };
        let holders = vec![NodeId(0), NodeId(1), NodeId(2)];
        let directory = One(SealedBand { name, pages: 2, holders });
        let shape = BandShape { pages: 2, slots_per_page: 2 };
        let mut scrub = Scrub::new(Generation(1), shape, 1 << 20);
        scrub.idle = true;
        let mut next = 0;
        let mut next_id = || {
            next += 1;
            AskId(next)
        };
        let asks = scrub.step::<u64>(Instant(0), &directory, |_| true, &mut next_id);
        assert_eq!(asks.len(), 3);
        assert_eq!(scrub.deadline(), None, "one page at a time");
        let mut found = Vec::new();
        for ((_, id, _), answer) in asks.iter().zip(&answers) {
            found.extend(scrub.answered(*id, answer).expect("it was asked"));
        }
        // Three copies of two slots take so long at this rate.
        assert_eq!(scrub.deadline(), Some(Instant(6 * 4096 * SECOND / (1 << 20))));
        found
    }

    #[test]
    fn copies_that_are_alike_are_well_and_one_that_cannot_be_read_is_damaged() {
        let well = || Answer::Slots(vec![slot(1), slot(2)]);
        let name = BandName { volume: VolumeId(1), band: 0, life: 1 };
        assert_eq!(found([well(), well(), well()]), []);
        let torn = Answer::Slots(vec![slot(1), None]);
        assert_eq!(found([well(), torn, well()]), [Found::Damaged(name, NodeId(1))]);
        let gone = Answer::Refused(Refusal::NoBand);
        assert_eq!(found([well(), well(), gone]), [Found::Damaged(name, NodeId(2))]);
        let busy = || Answer::Refused(Refusal::Busy);
        assert_eq!(found([busy(), well(), busy()]), [], "nothing is known of who is busy");
    }

    #[test]
    fn sound_copies_that_differ_are_told_of_and_a_last_one_is_not_given_up() {
        let name = BandName { volume: VolumeId(1), band: 0, life: 1 };
        let (one, other) =
            (Answer::Slots(vec![slot(1), slot(2)]), Answer::Slots(vec![slot(1), slot(3)]));
        let both = vec![NodeId(0), NodeId(1), NodeId(2)];
        assert_eq!(found([one.clone(), other, one]), [Found::Unlike(name, both)]);
        let torn = || Answer::Slots(vec![None, slot(2)]);
        assert_eq!(found([torn(), torn(), torn()]), []);
    }
}
