//! Scrub: all copies of a band are read, page by page, and their sums compared, slowly and while nothing else
//! goes on. A node that cannot read what it has, or has it no more, has a damaged copy. Copies that are sound but
//! unlike are told of and not touched: sums do not say which one is right, the FTL's own check does, when it reads.
//!
//! Bands that are open are compared as far as all their members have them: those pages never change. Where a copy of one
//! is damaged the band ends there, as where a member fails.
//!
//! A *round* is one walk over all bands. What it found is counted with it, and so is what it could not read: a round
//! that is whole says nothing of the copies of a node that was away.

use super::plan::Nodes;
use super::{Directory, Repair, RepairOutput, SealedBand};
use crate::message::{Answer, Ask, AskId, Refusal, Slot};
use crate::words::{BandName, BandShape, Generation, NodeId};
use flash::{BLOCK_BYTES, Instant, MILLISECOND, Oob, SECOND};
use std::collections::{BTreeMap, BTreeSet};

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
    /// Of the band that is compared.
    seen: Seen,
    /// What this round has found so far, and what the last whole one did.
    pub round: Round,
    pub last: Round,
}

/// What a round of scrub found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Round {
    /// Damaged copies of bands that have a sound one.
    pub damaged: u64,
    /// Bands with a page that no node which is there has sound.
    pub unsound: u64,
    /// Bands with sound copies that are unlike.
    pub unlike: u64,
    /// Copies of bands that were not read, or not all of them: their nodes were away, or always busy.
    pub unread: u64,
}

/// What was counted of a band already.
#[derive(Clone, Debug, Default)]
struct Seen {
    unsound: bool,
    unlike: bool,
    unread: BTreeSet<NodeId>,
}

/// A page that is being compared.
#[derive(Clone, Debug)]
struct Page {
    band: SealedBand,
    page: u32,
    /// How often it was read in vain, as a node was busy.
    attempts: u32,
    /// Who was asked, and what came of it.
    asked: BTreeMap<AskId, NodeId>,
    busy: BTreeSet<NodeId>,
    /// Of each slot that is sound; of none where there is no such page.
    sums: BTreeMap<NodeId, Vec<Option<Sum>>>,
    /// Who has a copy that is known to be damaged, maybe elsewhere: asked only for whether anybody has this page sound.
    damaged: BTreeSet<NodeId>,
}

/// All that a slot says of its content.
pub(super) type Sum = (u32, Oob, bool);

/// That of each slot which is sound.
pub(super) fn sums_of<D>(slots: &[Option<Slot<D>>]) -> Vec<Option<Sum>> {
    let sum = |slot: &Slot<D>| (slot.crc, slot.oob, slot.data.is_none());
    let sound = |slot: &&Slot<D>| !slot.is_lost();
    slots.iter().map(|slot| slot.as_ref().filter(sound).map(sum)).collect()
}

/// What was found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Found {
    Damaged(BandName, NodeId),
    Unlike(BandName, Vec<NodeId>),
    /// Of no use to repair.
    Unsound,
}

impl<D> Repair<D> {
    /// Whole rounds of scrub.
    pub fn scrub_rounds(&self) -> u64 {
        self.scrub.rounds_done
    }

    /// Whether a node's copy of this life is known to be none, or damaged.
    pub fn is_bad(&self, node: NodeId, name: BandName) -> bool {
        self.bad.contains(&(node, name))
    }

    pub(super) fn compare(&mut self, now: Instant, directory: &dyn Directory) {
        let (nodes, mut asks) = (&self.nodes, self.asks);
        let mut next_id = || {
            asks += 1;
            AskId(asks)
        };
        let rounds = self.scrub.rounds_done;
        let reads = self.scrub.step(now, directory, (nodes, &self.bad), &mut next_id);
        self.asks = asks;
        for (node, id, ask) in reads {
            self.outputs.push_back(RepairOutput::Node { node, id, ask });
        }
        if self.scrub.rounds_done > rounds {
            // Whether all that it found is repaired is told by a walk that begins now.
            self.scan_anew(now);
        }
    }

    pub(super) fn found(&mut self, now: Instant, found: Vec<Found>, directory: &dyn Directory) {
        for found in found {
            match found {
                Found::Damaged(name, node) => {
                    // It may have been dropped, or the band freed, since it was asked.
                    let band = directory.written(name.band).filter(|band| band.name == name);
                    if band.is_some_and(|band| band.holders.contains(&node)) {
                        self.scrub.round.damaged += 1;
                        self.bad.insert((node, name));
                        self.damaged.insert(name);
                        self.told.insert(name.band);
                        self.outputs.push_back(RepairOutput::Damaged(name, node));
                        self.scan_anew(now);
                    }
                }
                Found::Unlike(name, nodes) => {
                    if !std::mem::replace(&mut self.scrub.seen.unlike, true) {
                        self.scrub.round.unlike += 1;
                    }
                    self.outputs.push_back(RepairOutput::Unlike(name, nodes));
                }
                Found::Unsound => {
                    if !std::mem::replace(&mut self.scrub.seen.unsound, true) {
                        self.scrub.round.unsound += 1;
                    }
                }
            }
        }
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
            seen: Seen::default(),
            round: Round::default(),
            last: Round::default(),
        }
    }

    /// A round begins, whatever was compared so far. Answers that are still to come are of nothing then.
    pub fn begin(&mut self) {
        (self.after, self.page) = (None, None);
        (self.seen, self.round) = (Seen::default(), Round::default());
    }

    /// The asks of the next page, if it is time for one.
    pub fn step<D>(
        &mut self,
        now: Instant,
        directory: &dyn Directory,
        (nodes, bad): (&Nodes, &BTreeSet<(NodeId, BandName)>),
        next_id: &mut dyn FnMut() -> AskId,
    ) -> Vec<(NodeId, AskId, Ask<D>)> {
        let waits = self.page.as_ref().is_some_and(|page| !page.asked.is_empty());
        if !self.idle || waits || now < self.read_at || self.bytes_per_s == 0 {
            return Vec::new();
        }
        let Some(mut page) = self.next(directory) else {
            // Also where the volume is empty rounds are not as many as turns.
            self.read_at = now + ROUND_PAUSE_NS;
            return Vec::new();
        };
        let slots = self.shape.slots_per_page;
        let mut asks = Vec::new();
        let holders = &page.band.holders;
        let of_band = bad.iter().filter(|(_, name)| *name == page.band.name);
        let damaged = of_band.map(|(node, _)| *node).filter(|node| !holders.contains(node));
        page.damaged = damaged.filter(|node| nodes.is_up(*node)).collect();
        for &node in page.band.holders.iter().chain(&page.damaged) {
            if !nodes.is_up(node) {
                if nodes.is_missed(node) {
                    self.miss(node);
                }
                continue;
            }
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

    /// A node's copy of the band is not read whole.
    fn miss(&mut self, node: NodeId) {
        self.round.unread += u64::from(self.seen.unread.insert(node));
    }

    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.page.as_ref().is_some_and(|page| !page.asked.is_empty());
        (self.idle && !waits && self.bytes_per_s > 0).then_some(self.read_at)
    }

    /// Whether the answer was one of these; what was found once a page is complete.
    pub fn answered<D>(
        &mut self,
        now: Instant,
        id: AskId,
        answer: &Answer<D>,
    ) -> Option<Vec<Found>> {
        let page = self.page.as_mut()?;
        let node = page.asked.remove(&id)?;
        let sums = match answer {
            Answer::Slots(slots) => sums_of(slots),
            // Nothing, or less than it should.
            Answer::Refused(Refusal::NoBand | Refusal::Invalid) => Vec::new(),
            // Failing as a whole, or with other things to do: nothing is known of this copy.
            _ => {
                page.busy.insert(node);
                return Some(self.complete(now));
            }
        };
        page.sums.insert(node, sums);
        Some(self.complete(now))
    }

    /// A node does not answer any more.
    pub fn down(&mut self, now: Instant, node: NodeId) -> Vec<Found> {
        let Some(page) = &mut self.page else { return Vec::new() };
        let before = page.asked.len();
        page.asked.retain(|_, of| *of != node);
        if page.asked.len() == before {
            return Vec::new();
        }
        if !page.damaged.contains(&node) {
            self.miss(node);
        }
        self.complete(now)
    }

    fn complete(&mut self, now: Instant) -> Vec<Found> {
        let Some(page) = self.page.as_mut().filter(|page| page.asked.is_empty()) else {
            return Vec::new();
        };
        // Who was always busy with one page of the band is not waited for at the next.
        let waits = page.busy.iter().any(|node| !self.seen.unread.contains(node));
        if waits && page.attempts < ATTEMPTS_MAX {
            page.attempts += 1;
            self.read_at = self.read_at.max(now + AGAIN_NS);
            return Vec::new();
        }
        page.attempts = 0;
        self.pages_done += 1;
        let name = page.band.name;
        let (others, holders): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut page.sums)
            .into_iter()
            .partition(|(node, _)| page.damaged.contains(node));
        let count = self.shape.slots_per_page as usize;
        let is_sound = |sums: &Vec<Option<Sum>>| sums.iter().flatten().count() == count;
        let (sound, bad): (BTreeMap<_, _>, BTreeMap<_, _>) =
            holders.iter().partition(|(_, sums)| is_sound(sums));
        let damaged = || bad.keys().map(|node| Found::Damaged(name, **node));
        let all = || holders.values().chain(others.values());
        let is_there = |at: usize| all().any(|sums| sums.get(at).is_some_and(Option::is_some));
        let mut found = match sound.is_empty() && !bad.is_empty() {
            // Where nobody can read it there is nothing to copy from: all copies stay.
            true if !(0..count).all(is_there) => vec![Found::Unsound],
            // Each has what another lacks: the band stays where it is if that is one which was a copy until now.
            true => damaged().skip(1).collect(),
            false => damaged().collect::<Vec<_>>(),
        };
        let first = sound.values().next();
        if sound.values().any(|sums| Some(sums) != first) {
            found.push(Found::Unlike(name, sound.keys().map(|node| **node).collect()));
        }
        let missed: Vec<NodeId> = page.busy.difference(&page.damaged).copied().collect();
        page.busy.clear();
        missed.into_iter().for_each(|node| self.miss(node));
        found
    }

    /// The same page again, the next one of the band, or the first of the next band; `None` where a round ends.
    fn next(&mut self, directory: &dyn Directory) -> Option<Page> {
        let of = |band, page, attempts| {
            let (asked, busy, sums) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
            Page { band, page, attempts, asked, busy, sums, damaged: BTreeSet::new() }
        };
        if let Some(page) = self.page.take() {
            let now = directory.written(page.band.name.band);
            let next = page.page + u32::from(page.attempts == 0);
            if let Some(band) = now.filter(|band| band.name == page.band.name && next < band.pages)
            {
                return Some(of(band, next, page.attempts));
            }
        }
        self.seen = Seen::default();
        let Some(band) = directory.next_written(self.after) else {
            self.rounds_done += 1;
            self.last = self.round;
            self.begin();
            return None;
        };
        self.after = Some(band.name.band);
        Some(of(band, 0, 0))
    }
}

/// Between two pages, whatever the rate.
const MIN_PAUSE_NS: u64 = 1000;
/// Between two rounds.
const ROUND_PAUSE_NS: u64 = MILLISECOND;
/// A page that a node was too busy to read is read again after this, and so often.
const AGAIN_NS: u64 = 20 * MILLISECOND;
const ATTEMPTS_MAX: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::values::NodeState;
    use crate::repair::NodeView;
    use crate::words::{DomainId, VolumeId};
    use flash::OOB_BYTES;

    struct One(SealedBand);

    impl Directory for One {
        fn next(&self, after: Option<u32>) -> Option<SealedBand> {
            after.is_none().then(|| self.0.clone())
        }

        fn band(&self, _: u32) -> Option<SealedBand> {
            Some(self.0.clone())
        }

        fn next_written(&self, after: Option<u32>) -> Option<SealedBand> {
            self.next(after)
        }

        fn written(&self, band: u32) -> Option<SealedBand> {
            self.band(band)
        }

        fn is_over(&self, _: BandName) -> bool {
            false
        }

        fn is_on_record(&self, _: BandName) -> bool {
            false
        }

        fn may_have_more(&self, _: NodeId) -> bool {
            false
        }
    }

    fn slot(crc: u32) -> Option<Slot<u64>> {
        Some(Slot { oob: [0; OOB_BYTES], crc, data: Some(crc.into()) })
    }

    const NAME: BandName = BandName { volume: VolumeId(1), band: 0, life: 1 };

    /// A band of two pages on three nodes, all of them up.
    struct Bench {
        scrub: Scrub,
        directory: One,
        nodes: Nodes,
        bad: BTreeSet<(NodeId, BandName)>,
        asks: u64,
    }

    impl Bench {
        fn new() -> Self {
            let holders = vec![NodeId(0), NodeId(1), NodeId(2)];
            let view = |node: &NodeId| NodeView {
                node: *node,
                domain: DomainId(node.0),
                state: NodeState::In,
                durable: true,
                bands: 9,
                bands_used: 1,
                want: 1.0,
            };
            let mut nodes = Nodes::default();
            nodes.set(Instant(0), holders.iter().map(view).collect());
            holders.iter().for_each(|node| nodes.up(*node));
            let shape = BandShape { pages: 2, slots_per_page: 2 };
            let mut scrub = Scrub::new(Generation(1), shape, 1 << 20);
            scrub.idle = true;
            Self {
                scrub,
                directory: One(SealedBand { name: NAME, pages: 2, holders }),
                nodes,
                bad: BTreeSet::new(),
                asks: 0,
            }
        }

        /// Who is asked next, by which asks.
        fn step(&mut self) -> Vec<(NodeId, AskId)> {
            let now = self.scrub.read_at;
            let mut next_id = || {
                self.asks += 1;
                AskId(self.asks)
            };
            let of = (&self.nodes, &self.bad);
            let asks = self.scrub.step::<u64>(now, &self.directory, of, &mut next_id);
            asks.into_iter().map(|(node, id, _)| (node, id)).collect()
        }

        /// All who are asked next answer so.
        fn answer(&mut self, answer: &Answer<u64>) {
            for (_, id) in self.step() {
                self.scrub.answered(Instant(0), id, answer).expect("it was asked");
            }
        }
    }

    /// What is found when three nodes answer so to the first page.
    fn found(answers: [Answer<u64>; 3]) -> Vec<Found> {
        let mut bench = Bench::new();
        let asks = bench.step();
        let mut scrub = bench.scrub;
        assert_eq!(asks.len(), 3);
        assert_eq!(scrub.deadline(), None, "one page at a time");
        let mut found = Vec::new();
        for ((_, id), answer) in asks.iter().zip(&answers) {
            found.extend(scrub.answered(Instant(0), *id, answer).expect("it was asked"));
        }
        // Three copies of two slots take so long at this rate.
        assert_eq!(scrub.deadline(), Some(Instant(6 * 4096 * SECOND / (1 << 20))));
        found
    }

    /// Two copies were damaged at different places: one is no holder any more, and nothing is lost.
    #[test]
    fn a_page_is_not_lost_while_a_copy_that_is_damaged_elsewhere_has_it() {
        for (answer, expected) in [
            // One of the two stays, so that the band is somewhere, and the other is made anew.
            (Answer::Slots(vec![slot(1), slot(2)]), vec![Found::Damaged(NAME, NodeId(1))]),
            (Answer::Refused(Refusal::NoBand), vec![Found::Unsound]),
        ] {
            let mut bench = Bench::new();
            bench.directory.0.holders.retain(|node| *node != NodeId(2));
            bench.bad.insert((NodeId(2), NAME));
            let mut found = Vec::new();
            for (node, id) in bench.step() {
                let refused = Answer::Refused(Refusal::Invalid);
                let answer = if node == NodeId(2) { &answer } else { &refused };
                found.extend(bench.scrub.answered(Instant(0), id, answer).expect("it was asked"));
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn copies_that_are_alike_are_well_and_one_that_cannot_be_read_is_damaged() {
        let well = || Answer::Slots(vec![slot(1), slot(2)]);
        assert_eq!(found([well(), well(), well()]), []);
        let torn = Answer::Slots(vec![slot(1), None]);
        assert_eq!(found([well(), torn, well()]), [Found::Damaged(NAME, NodeId(1))]);
        let gone = Answer::Refused(Refusal::NoBand);
        assert_eq!(found([well(), well(), gone]), [Found::Damaged(NAME, NodeId(2))]);
        let short = Answer::Refused(Refusal::Invalid);
        assert_eq!(found([short, well(), well()]), [Found::Damaged(NAME, NodeId(0))]);
        let busy = || Answer::Refused(Refusal::Busy);
        assert_eq!(found([busy(), well(), busy()]), [], "nothing is known of who is busy");
    }

    #[test]
    fn sound_copies_that_differ_are_told_of_and_a_last_one_is_not_given_up() {
        let (one, other) =
            (Answer::Slots(vec![slot(1), slot(2)]), Answer::Slots(vec![slot(1), slot(3)]));
        let both = vec![NodeId(0), NodeId(1), NodeId(2)];
        assert_eq!(found([one.clone(), other, one]), [Found::Unlike(NAME, both)]);
        let torn = || Answer::Slots(vec![None, slot(2)]);
        assert_eq!(found([torn(), torn(), torn()]), [Found::Unsound]);
        let other = || Answer::Slots(vec![slot(1), None]);
        let together = [1, 2].map(|node| Found::Damaged(NAME, NodeId(node)));
        assert_eq!(found([torn(), other(), torn()]), together, "each has what the others lack");
        assert_eq!(found([torn(), other(), Answer::Refused(Refusal::NoBand)]), together);
    }

    #[test]
    fn a_round_that_begins_anew_reads_all_again_and_hears_no_answer_of_before() {
        let (mut bench, well) = (Bench::new(), Answer::Slots(vec![slot(1), slot(2)]));
        bench.answer(&well);
        let before = bench.step();
        bench.scrub.begin();
        assert_eq!(bench.scrub.answered(Instant(0), before[0].1, &well), None);
        for _ in 0..2 {
            assert_eq!(bench.scrub.rounds_done, 0);
            bench.answer(&well);
        }
        assert_eq!((bench.step().len(), bench.scrub.rounds_done), (0, 1), "both pages of it");
    }

    #[test]
    fn copies_on_nodes_that_are_away_or_always_busy_are_counted_once_as_not_read() {
        let (mut bench, well) = (Bench::new(), Answer::Slots(vec![slot(1), slot(2)]));
        bench.nodes.down(Instant(0), NodeId(1));
        let mut pages = 0;
        while bench.scrub.rounds_done == 0 {
            for (node, id) in bench.step() {
                let busy = node == NodeId(2);
                let answer = if busy { Answer::Refused(Refusal::Busy) } else { well.clone() };
                bench.scrub.answered(Instant(0), id, &answer);
                pages += u32::from(busy);
            }
        }
        assert_eq!(bench.scrub.last, Round { unread: 2, ..Round::default() });
        assert_eq!(pages, ATTEMPTS_MAX + 2, "it is asked for the first page again and again");
        assert_eq!(bench.scrub.pages_done, 2);
    }
}
