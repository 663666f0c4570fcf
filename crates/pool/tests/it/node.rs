//! A node against a model of what it has promised, under random asks: replays, stale generations, and a power cut
//! after any step.
//!
//! What was answered as done must be there; what was not answered may be. After each cut the model takes what the
//! node shows for what is there, once that is found to keep every promise.

use crate::disks::{Disk, RawDisk, Stamp, memory};
use flash::{Instant, MICROSECOND, Pairing, Random};
use ftl::raw::RawFormat;
use lab::device::{Manner, Small};
use nand::Faults;
use pool::message::{Answer, Ask, AskId, BandHeader, Refusal, Slot};
use pool::node::congestion::ExpectedTail;
use pool::node::memory::{MemoryFaults, MemorySettings};
use pool::node::raw::RawStoreSettings;
use pool::node::store::{Data, Found};
use pool::node::{Input, Node, NodeSettings, Output, PeerId};
use pool::words::{BandName, BandShape, Generation, Members, NodeId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

const SHAPE: BandShape = BandShape { pages: 3, slots_per_page: 3 };
/// Names an ask while nothing else is asked.
const ALONE: AskId = AskId(u64::MAX);
const VOLUMES: u64 = 2;
const BANDS: u64 = 2;

/// What a slot held when it was asked to be appended: `None` for zeroes.
type Page = Vec<Option<u64>>;

/// What is known of one band at one life.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Pages that were answered as done.
    done: Vec<Page>,
    /// Of those, pages that a power cut may not take.
    durable: usize,
    /// Pages that were not durable, and that the node says it cannot read since.
    damaged: BTreeSet<u32>,
    /// What else may be there, by page.
    maybe: BTreeMap<u32, Vec<Page>>,
    sealed: Option<u32>,
    /// What a seal has forgotten, and how many asks there had been: reads of before may still see it.
    forgotten: Vec<(u32, Page)>,
    forgotten_at: u64,
    maybe_sealed: BTreeSet<u32>,
    maybe_freed: bool,
}

struct Model {
    bands: BTreeMap<BandName, Known>,
    freed: BTreeSet<BandName>,
    fences: BTreeMap<VolumeId, Generation>,
    maybe_fences: BTreeMap<VolumeId, BTreeSet<Generation>>,
}

/// An ask without an answer, and what was durable for certain if it is a flush.
struct Asked {
    ask: Ask<Stamp>,
    /// The least generation that counted when it was asked.
    least: Generation,
    /// Something of the band had been asked for before that.
    known: bool,
    flushes: Vec<(BandName, usize)>,
}

struct Rig<T> {
    disk: T,
    node: Node<Stamp>,
    now: Instant,
    random: Random,
    asked: BTreeMap<AskId, Asked>,
    /// The answer to what is asked alone.
    alone: Option<Answer<Stamp>>,
    next: u64,
    stamps: u64,
    model: Model,
    /// Bands whose free was cut off.
    half_freed: Vec<BandName>,
    /// Appends may fail by themselves.
    failing: bool,
    /// Slots may be lost by themselves.
    losing: bool,
    durable: bool,
    answers: u64,
    cuts: u64,
    /// Pages that were made unreadable.
    rotten: u64,
    /// Bands that were found with a page missing before others.
    gaps: u64,
}

fn node_over(now: Instant, found: Found) -> Node<Stamp> {
    let settings = NodeSettings { list_max: 2, ..NodeSettings::default() };
    Node::new(now, NodeId(1), settings, found, Box::new(|_| ExpectedTail::default()))
}

fn header() -> BandHeader {
    let members = Members::new(&[NodeId(1), NodeId(2)]).expect("two different");
    BandHeader { members, shape: SHAPE }
}

fn slots_of(page: &Page) -> Vec<Slot<Stamp>> {
    let slot = |content: &Option<u64>| {
        let data = content.map(Stamp);
        let crc = data.map_or(flash::crc(&[0; 4096]), |data| data.crc());
        Slot { oob: [content.unwrap_or(7) as u8; 32], crc, data }
    };
    page.iter().map(slot).collect()
}

impl<T: Disk> Rig<T> {
    fn new(mut disk: T, seed: u64, mut now: Instant, manner: (bool, bool)) -> Self {
        let found = disk.mount(&mut now);
        let durable = found.durable;
        let model = Model {
            bands: BTreeMap::new(),
            freed: BTreeSet::new(),
            fences: BTreeMap::new(),
            maybe_fences: BTreeMap::new(),
        };
        Self {
            node: node_over(now, found),
            disk,
            now,
            random: Random::new(seed),
            asked: BTreeMap::new(),
            alone: None,
            next: 0,
            stamps: 0,
            model,
            half_freed: Vec::new(),
            failing: manner.0,
            losing: manner.1,
            durable,
            answers: 0,
            cuts: 0,
            rotten: 0,
            gaps: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// A name that is or was in use, or the next life of its band.
    fn name(&mut self) -> BandName {
        let (volume, band) = (VolumeId(self.below(VOLUMES) as u32), self.below(BANDS) as u32);
        let lives = self.model.freed.iter().filter(|it| (it.volume, it.band) == (volume, band));
        let life = lives.count() as u64;
        let old = life > 0 && self.random.chance(0.1);
        BandName { volume, band, life: if old { life - 1 } else { life } }
    }

    fn generation(&mut self, volume: VolumeId) -> Generation {
        let least = self.model.fences.get(&volume).map_or(0, |least| least.0);
        match self.below(20) {
            0 => Generation(least.saturating_sub(1)),
            1 => Generation(least + 1),
            _ => Generation(least),
        }
    }

    fn draw(&mut self) -> Ask<Stamp> {
        let band = self.name();
        let volume = band.volume;
        let generation = self.generation(volume);
        let known = self.model.bands.get(&band);
        let done = known.map_or(0, |known| known.done.len() as u32);
        let begun = known.and_then(|known| known.maybe.keys().last()).map_or(done, |page| page + 1);
        // A life is used once: whoever asked to free a band never opens it again.
        let over = self.model.freed.contains(&band) || known.is_some_and(|known| known.maybe_freed);
        match self.below(100) {
            2..60 if over => {
                let slot = self.below(u64::from(SHAPE.slots())) as u32;
                Ask::Read { band, generation, slot, count: 1, urgent: false }
            }
            0..2 => Ask::Fence { volume, generation, owner: 0 },
            2..60 => {
                let page = match self.below(10) {
                    0 => self.below(SHAPE.pages.into()) as u32,
                    1 => done,
                    _ => begun.min(SHAPE.pages - 1),
                };
                let again = known_page(&self.model, band, page).filter(|_| self.random.chance(0.7));
                let content = again.unwrap_or_else(|| self.new_page());
                let open = (page == 0).then_some(header());
                Ask::Append { band, generation, page, open, slots: slots_of(&content) }
            }
            60..78 => {
                let slot = self.below(u64::from(SHAPE.slots())) as u32;
                let count = 1 + self.below(3) as u32;
                Ask::Read { band, generation, slot, count, urgent: self.random.chance(0.5) }
            }
            78..84 => {
                let pages = self.below(u64::from(done) + 1) as u32;
                Ask::Seal { band, generation, pages }
            }
            84..89 => Ask::Free { band, generation },
            89..93 => Ask::Flush { volume, generation },
            _ => {
                let after = self.random.chance(0.5).then_some(band);
                Ask::List { volume, generation, after }
            }
        }
    }

    fn new_page(&mut self) -> Page {
        (0..SHAPE.slots_per_page)
            .map(|_| {
                self.stamps += 1;
                (self.below(4) > 0).then_some(self.stamps)
            })
            .collect()
    }

    /// Notes what an ask may bring about.
    fn note_asked(&mut self, ask: &Ask<Stamp>) -> Vec<(BandName, usize)> {
        let (volume, generation) = owner(ask);
        self.model.maybe_fences.entry(volume).or_default().insert(generation);
        match ask {
            Ask::Append { band, generation, .. }
            | Ask::Seal { band, generation, .. }
            | Ask::Free { band, generation }
                if *generation < self.least(band.volume) => {}
            Ask::Append { band, page, slots, .. } => {
                let content = slots.iter().map(|slot| slot.data.map(|data| data.0)).collect();
                let known = self.model.bands.entry(*band).or_default();
                known.maybe.entry(*page).or_default().push(content);
            }
            Ask::Seal { band, pages, .. } => {
                if let Some(known) = self.model.bands.get_mut(band) {
                    known.maybe_sealed.insert(*pages);
                }
            }
            Ask::Free { band, .. } => {
                if let Some(known) = self.model.bands.get_mut(band) {
                    known.maybe_freed = true;
                }
            }
            Ask::Flush { .. } => {
                let bands = self.model.bands.iter();
                return bands.map(|(&name, known)| (name, known.done.len())).collect();
            }
            Ask::Fence { .. } | Ask::Read { .. } | Ask::List { .. } | Ask::Copy { .. } => {}
        }
        Vec::new()
    }

    fn send(&mut self) {
        let ask = self.draw();
        let flushes = self.note_asked(&ask);
        self.next += 1;
        let (peer, id) = (PeerId(self.next % 3), AskId(self.next));
        let least = self.least(owner(&ask).0);
        let known = matches!(&ask, Ask::Free { band, .. } if self.model.bands.contains_key(band));
        self.asked.insert(id, Asked { ask: ask.clone(), least, known, flushes });
        self.node.handle(self.now, Input::Ask { peer, id, ask });
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Answer { id, answer, .. } => self.answered(id, answer),
                Output::Command { id, command } => self.disk.begin(self.now, id, command),
                Output::Ask { .. } => unreachable!("nothing is copied here"),
            }
        }
    }

    /// Does the next thing; false if nothing is under way.
    fn step(&mut self) -> bool {
        let due = self.disk.deadline().into_iter().chain(self.node.deadline()).min();
        let Some(at) = due else { return false };
        self.now = self.now.max(at);
        let mut nothing = true;
        for end in self.disk.advance(self.now) {
            nothing = false;
            self.node.handle(self.now, Input::Ended(end));
            self.drain();
        }
        if nothing && self.node.deadline().is_some_and(|at| at <= self.now) {
            self.node.handle(self.now, Input::Deadline);
            self.drain();
        }
        true
    }

    fn answered(&mut self, id: AskId, answer: Answer<Stamp>) {
        if id == ALONE {
            self.alone = Some(answer);
            return;
        }
        self.answers += 1;
        let asked = self.asked.remove(&id).expect("each ask is answered once");
        let Asked { ask, least: least_then, known, flushes } = asked;
        let (volume, generation) = owner(&ask);
        let least = self.least(volume);
        if generation < least {
            let stale =
                matches!(answer, Answer::Refused(Refusal::Stale { highest }) if highest >= least);
            // What a read sees cannot change: one that was let through before may end later.
            let read =
                matches!(ask, Ask::Read { .. } | Ask::Flush { .. }) && generation >= least_then;
            let refused = matches!(answer, Answer::Refused(_));
            assert!(
                stale || read || refused && generation >= least_then,
                "{ask:?} below {least:?}: {answer:?}"
            );
            return;
        }
        let heard = matches!(ask, Ask::Fence { .. } | Ask::Append { .. } | Ask::Seal { .. })
            && answer == Answer::Done;
        if heard {
            self.model.fences.insert(volume, generation.max(least));
        }
        match (ask, answer) {
            (ask, Answer::Refused(refusal)) => self.refused(&ask, refusal),
            (Ask::Fence { .. }, Answer::Done) => {}
            (Ask::Append { band, page, slots, .. }, Answer::Done) => {
                self.note_appended(id, band, page, &slots);
            }
            (Ask::Seal { band, pages, .. }, Answer::Done) => self.note_sealed(band, pages),
            (Ask::Free { band, .. }, Answer::Done) => {
                // One that was asked before anything was appended has freed nothing.
                if known && self.model.bands.contains_key(&band) {
                    self.model.bands.remove(&band);
                    self.model.freed.insert(band);
                }
            }
            (Ask::Flush { .. }, Answer::Done) => {
                for (name, pages) in flushes {
                    if let Some(known) = self.model.bands.get_mut(&name) {
                        known.durable = known.durable.max(pages.min(known.done.len()));
                    }
                }
            }
            (Ask::Read { band, slot, .. }, Answer::Slots(found)) => {
                self.check_read(id.0, band, slot, &found);
            }
            (Ask::List { volume, .. }, Answer::Bands { bands, .. }) => {
                for entry in bands {
                    assert_eq!(entry.band.volume, volume);
                    let freed = self.model.freed.contains(&entry.band);
                    assert!(!freed, "{entry:?} was freed");
                }
            }
            (ask, answer) => panic!("{ask:?} is answered by {answer:?}"),
        }
    }

    fn note_appended(&mut self, id: AskId, band: BandName, page: u32, slots: &[Slot<Stamp>]) {
        let Some(known) = self.model.bands.get_mut(&band) else {
            panic!("{id:?}: nobody knows of {band:?}, and page {page} is there");
        };
        let content: Page = slots.iter().map(|slot| slot.data.map(|it| it.0)).collect();
        match known.done.get(page as usize) {
            Some(before) => assert_eq!(*before, content, "{band:?} page {page} changed"),
            None => {
                assert_eq!(known.done.len(), page as usize, "{band:?}: pages have a hole");
                known.done.push(content);
                known.maybe.remove(&page);
                if self.durable {
                    known.durable = known.done.len();
                }
            }
        }
    }

    fn note_sealed(&mut self, band: BandName, pages: u32) {
        let known = self.model.bands.get_mut(&band).expect("it was noted");
        assert!(known.sealed.is_none_or(|sealed| sealed == pages), "{band:?} sealed twice");
        if known.sealed.replace(pages).is_some() {
            return;
        }
        let done = (0..).zip(known.done.drain(..)).collect::<Vec<_>>();
        let maybe = std::mem::take(&mut known.maybe).into_iter();
        let maybe = maybe.flat_map(|(page, all)| all.into_iter().map(move |it| (page, it)));
        let is_done = |(page, _): &(u32, Page)| *page < pages;
        let (done, gone): (Vec<_>, Vec<_>) = done.into_iter().partition(is_done);
        known.done = done.into_iter().map(|(_, content)| content).collect();
        known.forgotten = gone.into_iter().chain(maybe).collect();
        known.forgotten_at = self.next;
        known.durable = pages as usize;
    }

    fn least(&self, volume: VolumeId) -> Generation {
        self.model.fences.get(&volume).copied().unwrap_or(Generation(0))
    }

    fn refused(&self, ask: &Ask<Stamp>, refusal: Refusal) {
        match refusal {
            Refusal::Failed => panic!("{ask:?}: the drive is sound"),
            Refusal::BandFailed => {
                let fine = self.failing || self.cuts > 0;
                assert!(fine, "{ask:?}: nothing was planted that fails");
            }
            _ => {}
        }
    }

    fn check_read(&self, ask: u64, band: BandName, slot: u32, found: &[Option<Slot<Stamp>>]) {
        let Some(known) = self.model.bands.get(&band) else { return };
        let page = slot / SHAPE.slots_per_page;
        let mut candidates: Vec<&Page> = match known.done.get(page as usize) {
            Some(done) => vec![done],
            None => known.maybe.get(&page).into_iter().flatten().collect(),
        };
        if ask <= known.forgotten_at {
            let forgotten = known.forgotten.iter().filter(|(it, _)| *it == page);
            candidates.extend(forgotten.map(|(_, content)| content));
        }
        for (at, found) in (slot % SHAPE.slots_per_page..).zip(found) {
            if found.as_ref().is_none_or(Slot::is_lost) {
                let is_told = self.losing || known.damaged.contains(&page);
                assert!(is_told, "{band:?} page {page} slot {at} was lost");
            }
            let Some(found) = found else { continue };
            let fits = candidates.iter().any(|page| may_be(found, page[at as usize]));
            assert!(fits, "{band:?} page {page} slot {at}: {found:?} of {candidates:?}");
        }
    }

    /// Answers everything that is under way.
    fn settle(&mut self) {
        while !self.asked.is_empty() {
            assert!(self.step(), "{} asks are never answered", self.asked.len());
        }
    }

    fn cut(&mut self) {
        self.disk.cut(&mut self.random);
        self.cuts += 1;
        self.asked.clear();
        // Recovery may be cut off anywhere, and begins again.
        while self.random.chance(0.3) {
            self.disk.mount_in_part(&mut self.now, &mut self.random);
            self.disk.cut(&mut self.random);
            self.cuts += 1;
        }
        if self.random.chance(0.3) {
            self.rotten += u64::from(self.disk.rot(&mut self.random));
        }
        let found = self.disk.mount(&mut self.now);
        self.check_found(&found);
        self.node = node_over(self.now, found);
        for band in std::mem::take(&mut self.half_freed) {
            let generation = self.model.fences[&band.volume];
            assert_eq!(self.ask_one(Ask::Free { band, generation }), Answer::Done);
        }
        self.read_all();
    }

    /// Holds what is there after a cut against what was promised, and takes it for what is there.
    fn check_found(&mut self, found: &Found) {
        for (&volume, &promised) in &self.model.fences {
            let least = found.fences.get(&volume).map_or(Generation(0), |to| to.generation);
            let allowed = self.model.maybe_fences.get(&volume);
            let fits = least == promised || allowed.is_some_and(|all| all.contains(&least));
            assert!(fits && least >= promised, "{volume:?}: {least:?}, promised {promised:?}");
        }
        self.model.fences =
            found.fences.iter().map(|(volume, to)| (*volume, to.generation)).collect();
        self.model.maybe_fences.clear();
        let before = std::mem::take(&mut self.model.bands);
        for band in &found.bands {
            let (name, pages) = (band.entry.band, band.entry.pages as usize);
            let Some(known) = before.get(&name) else {
                panic!("{band:?} was never asked for, or freed")
            };
            let mut known = known.clone();
            if known.maybe_freed {
                // A free that was cut off may leave anything less: it is asked again.
                self.half_freed.push(name);
                self.model.freed.insert(name);
                continue;
            }
            match (known.sealed, band.entry.sealed) {
                (Some(sealed), now) => {
                    assert!(now && sealed as usize == pages, "{band:?} was sealed at {sealed}");
                }
                (None, true) => {
                    let asked = known.maybe_sealed.contains(&band.entry.pages);
                    assert!(asked, "{band:?}: {:?} were asked", known.maybe_sealed);
                }
                (None, false) => {
                    assert!(pages >= known.durable, "{band:?}: {} are durable", known.durable);
                }
            }
            let sound = band.entry.sound as usize;
            let is_told = known.damaged.contains(&band.entry.sound);
            let fine = self.losing || sound >= known.durable.min(pages) || is_told;
            assert!(fine, "{band:?}: {} are durable", known.durable);
            self.gaps += u64::from(sound < pages);
            // What was read at the last mount is durable since.
            let may_be_lost = known.durable.max(sound)..pages;
            known.damaged.extend(may_be_lost.map(|page| page as u32));
            for page in known.done.len()..pages {
                assert!(
                    known.maybe.contains_key(&(page as u32)),
                    "{band:?}: nobody asked for {page}"
                );
            }
            known.done.truncate(pages);
            known.forgotten_at = 0;
            known.sealed = band.entry.sealed.then_some(band.entry.pages);
            self.model.bands.insert(name, known);
        }
        for (name, known) in before {
            if !self.model.bands.contains_key(&name) && !self.half_freed.contains(&name) {
                let fine = known.maybe_freed || known.durable == 0 && known.sealed.is_none();
                assert!(fine, "{name:?} is gone: {known:?}");
                if known.maybe_freed || !known.done.is_empty() {
                    self.model.freed.insert(name);
                }
            }
        }
    }

    /// Reads each page: what was only possible is known from then on.
    fn read_all(&mut self) {
        let names: Vec<BandName> = self.model.bands.keys().copied().collect();
        for band in names {
            let found_pages = self.pages_of(band);
            for page in 0..found_pages {
                self.read_page(band, page);
            }
            let known = self.model.bands.get_mut(&band).expect("it is there");
            known.durable = known.done.len();
            known.maybe.clear();
            known.maybe_sealed.clear();
            known.maybe_freed = false;
        }
    }

    fn pages_of(&mut self, band: BandName) -> u32 {
        let generation = self.model.fences[&band.volume];
        let mut after = None;
        loop {
            let ask = Ask::List { volume: band.volume, generation, after };
            let Answer::Bands { bands, more } = self.ask_one(ask) else { panic!("no list") };
            if let Some(entry) = bands.iter().find(|entry| entry.band == band) {
                return entry.pages;
            }
            assert!(more, "{band:?} is listed");
            after = bands.last().map(|entry| entry.band);
        }
    }

    fn read_page(&mut self, band: BandName, page: u32) {
        let (generation, count) = (self.model.fences[&band.volume], SHAPE.slots_per_page);
        let ask = Ask::Read { band, generation, slot: page * count, count, urgent: false };
        let Answer::Slots(found) = self.ask_one(ask) else { panic!("{band:?} page {page}") };
        self.check_read(u64::MAX, band, page * count, &found);
        let known = self.model.bands.get_mut(&band).expect("it is there");
        if known.done.len() == page as usize {
            let fits = |of: &&Page| {
                let same = |(slot, of): (&Option<Slot<Stamp>>, &Option<u64>)| {
                    slot.as_ref().is_none_or(|slot| may_be(slot, *of))
                };
                found.iter().zip(of.iter()).all(same)
            };
            let one = known.maybe[&page].iter().find(fits);
            known.done.push(one.expect("one was asked for").clone());
        }
    }

    /// Asks, and waits for the answer.
    fn ask_one(&mut self, ask: Ask<Stamp>) -> Answer<Stamp> {
        self.node.handle(self.now, Input::Ask { peer: PeerId(9), id: ALONE, ask });
        self.drain();
        loop {
            if let Some(answer) = self.alone.take() {
                return answer;
            }
            assert!(self.step(), "an ask is never answered");
        }
    }

    fn run(&mut self, asks: u64) {
        for _ in 0..asks {
            if self.asked.len() < 8 {
                self.send();
            }
            for _ in 0..self.random.below(4) {
                self.step();
                if self.random.chance(0.02) {
                    self.cut();
                }
            }
        }
        self.settle();
        self.cut();
    }
}

/// Whether a slot is of this content, or what is left of it: then its sum is.
fn may_be(slot: &Slot<Stamp>, content: Option<u64>) -> bool {
    match slot.is_lost() {
        true => content.is_some_and(|data| Stamp(data).crc() == slot.crc),
        false => slot.data.map(|data| data.0) == content,
    }
}

fn known_page(model: &Model, band: BandName, page: u32) -> Option<Page> {
    let known = model.bands.get(&band)?;
    known.done.get(page as usize).or_else(|| known.maybe.get(&page)?.first()).cloned()
}

fn owner(ask: &Ask<Stamp>) -> (VolumeId, Generation) {
    match *ask {
        Ask::Fence { volume, generation, .. }
        | Ask::Flush { volume, generation }
        | Ask::List { volume, generation, .. } => (volume, generation),
        Ask::Append { band, generation, .. }
        | Ask::Read { band, generation, .. }
        | Ask::Seal { band, generation, .. }
        | Ask::Free { band, generation, .. }
        | Ask::Copy { band, generation, .. } => (band.volume, generation),
    }
}

/// Runs `run` for each seed. The last one that was printed is the one that failed.
fn for_seeds(count: u64, mut run: impl FnMut(u64) -> (u64, u64)) {
    let (mut answers, mut cuts) = (0, 0);
    for seed in 0..count {
        println!("seed={seed}");
        let (more, cut) = run(seed);
        answers += more;
        cuts += cut;
    }
    println!("{answers} answers, {cuts} power cuts");
    assert!(answers > 0 && cuts > 0);
}

#[test]
fn a_node_on_any_store_in_memory_keeps_what_it_has_answered() {
    for_seeds(1000, |seed| {
        let mut random = Random::new(seed ^ 0x6e6f_6465);
        let (failing, losing) = (random.chance(0.3), random.chance(0.3));
        let faults = MemoryFaults {
            failing: if failing { 0.05 } else { 0.0 },
            lost: if losing { 0.05 } else { 0.0 },
            slow: 0.1,
            slow_ns: 100 * MICROSECOND,
            ..MemoryFaults::default()
        };
        let settings = MemorySettings {
            bands_max: 3 + random.below(3) as u32,
            durable: random.chance(0.5),
            open_after_cut: random.chance(0.5),
            faults,
            ..MemorySettings::default()
        };
        let mut rig = Rig::new(memory(settings, seed), seed, Instant(0), (failing, losing));
        rig.run(400);
        (rig.answers, rig.cuts)
    });
}

/// Bands that were found with a gap.
fn on_raw_units(count: u64, manner: Manner) -> u64 {
    let mut gaps = 0;
    for_seeds(count, |seed| {
        let mut random = Random::new(seed ^ 0x7261_7773);
        let small = Small {
            manner,
            units: 2 + 2 * random.below(2) as u32,
            blocks_per_unit: 12,
            pages_per_block: 16,
            slots_per_page: 1 + random.below(3) as u32,
            open_blocks_max: 0,
        };
        let gang = 1 + random.below(2) as u32;
        // Programs and erases that fail, and so many blocks more that there are enough for all of them.
        let failing = manner == Manner::Nand(Pairing::None) && random.chance(0.4);
        let (mut small, mut faults, mut spare) =
            (small, Faults { seed, ..Faults::default() }, 0.34);
        if failing {
            (small.blocks_per_unit, spare) = (60, 0.8);
            (faults.program_fail, faults.erase_fail) = (2e-3, 2e-3);
            faults.program_cut = 2e-3;
        }
        let medium = small.build(faults).expect("a sound shape");
        let format = RawFormat { gang, spare, uuid: u128::from(seed) + 1, label: Vec::new() };
        let settings = RawStoreSettings {
            volumes_max: 4,
            indexed_pages_max: random.below(8) as u32,
            headers_max: 1 + random.below(4) as u32,
            ..RawStoreSettings::default()
        };
        let mut now = Instant(0);
        let mut disk = RawDisk::format(medium, format, settings, &mut now).expect("it suits");
        assert!(disk.stop(&mut now), "what was formatted is durable");
        let mut rig = Rig::new(disk, seed, now, (failing, false));
        rig.run(300);
        assert!(rig.rotten > 0 || rig.cuts < 20, "something was made unreadable");
        gaps += rig.gaps;
        (rig.answers, rig.cuts)
    });
    gaps
}

#[test]
fn a_node_on_raw_units_of_nand_keeps_what_it_has_answered() {
    assert_eq!(on_raw_units(400, Manner::Nand(Pairing::None)), 0, "pages are durable in order");
}

#[test]
fn a_node_on_raw_units_of_a_file_keeps_what_was_flushed() {
    assert!(on_raw_units(400, Manner::File) > 0, "pages that were not flushed went before others");
}
