//! Fetching a sealed band from other nodes: repair, drain and rebalance are made of it. The node is a client of
//! those that have the band: it reads page after page, checks every slot, appends what is sound, and seals the copy
//! when it is whole. What one of them cannot read the next one is asked for: copies that are damaged at different places
//! are together one that is sound, as a slot of a life has one content only.
//!
//! Invariants:
//! - Nobody sees the band before it is sealed; a crash before that leaves nothing of it, and so does a copy that
//!   fails.
//! - Reads keep to the rate that was asked for, and at most [`READS_MAX`] are on their way.
//! - A copy always ends: each page is asked for a few times only, with a bound on the time of each, and one that gets
//!   no page for [`STALL_NS`] makes room for another, whatever rate it was asked to keep to.

use super::store::{Command, Data, Opening, Sensed, StoreError, slots_are_sound};
use super::{Band, BandState, Node, Output, Task, refusal_of};
use crate::message::{Answer, Ask, AskId, BandHeader, Refusal, Slot};
use crate::words::{BandName, Generation, Members, NodeId, VolumeId};
use flash::{BLOCK_BYTES, Instant, MILLISECOND, SECOND};
use std::collections::{BTreeMap, VecDeque};

/// Pages of a copy that are asked for and not yet at the store.
pub const READS_MAX: usize = 2;
/// How often a node is asked for a page before the copy fails.
pub const ATTEMPTS_MAX: u32 = 4;
/// How long another node may take for a page.
pub const PATIENCE_NS: u64 = SECOND;
/// A copy that got no sound page for so long fails.
pub const STALL_NS: u64 = 30 * SECOND;
/// How long to wait before a page is asked for again.
const AGAIN_NS: u64 = 10 * MILLISECOND;

/// A page that was asked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    page: u32,
    attempts: u32,
}

/// A copy under way.
#[derive(Debug)]
pub(super) struct Copying<D> {
    band: BandName,
    generation: Generation,
    from: Members,
    header: BandHeader,
    pages: u32,
    bytes_per_s_max: u64,
    /// The next page to be asked for the first time.
    next: u32,
    /// When the rate allows the next read.
    pace_at: Instant,
    /// It fails if no page has come by then.
    stalls_at: Instant,
    /// On their way: from whom, and until when.
    asked: BTreeMap<AskId, (Wanted, NodeId, Instant)>,
    /// To be asked for again, from that instant on.
    again: VecDeque<(Wanted, Instant)>,
    /// Pages of which some slots were fetched, with those.
    pieces: BTreeMap<u32, Vec<Option<Slot<D>>>>,
    /// Fetched and not yet appended, by page.
    fetched: BTreeMap<u32, Vec<Slot<D>>>,
    /// Pages begun at the store, and those that have ended.
    begun: u32,
    done: u32,
    end: Ending,
}

/// How a copy ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    /// Not yet.
    Going,
    Sealing,
    /// For this reason, once nothing of it is at the store.
    Failing(Refusal),
    /// Its volume is fenced: the ask is looked at again afterwards.
    Stopping,
    /// What was there of it is being freed.
    Freeing {
        why: Option<Refusal>,
    },
}

impl<D> Copying<D> {
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.end != Ending::Going {
            return None;
        }
        let patience = self.asked.values().map(|(.., until)| *until);
        let room = self.asked.len() + self.fetched.len() < READS_MAX;
        let first = room && self.again.is_empty() && self.next < self.pages;
        let next = first.then_some(self.pace_at);
        let again = self.again.front().map(|(_, at)| (*at).max(self.pace_at)).filter(|_| room);
        let stalls = self.fetches().then_some(self.stalls_at);
        patience.chain(next).chain(again).chain(stalls).min()
    }

    /// Something is still to come from other nodes.
    fn fetches(&self) -> bool {
        !self.asked.is_empty() || !self.again.is_empty() || self.next < self.pages
    }

    fn page_bytes(&self) -> u64 {
        u64::from(self.header.shape.slots_per_page) * BLOCK_BYTES as u64
    }

    /// The page to ask for now, if the rate allows one.
    fn take_wanted(&mut self, now: Instant) -> Option<Wanted> {
        let room = self.asked.len() + self.fetched.len() < READS_MAX;
        if !room || now < self.pace_at {
            return None;
        }
        if let Some((wanted, at)) = self.again.front().copied() {
            // A page that comes again holds back those behind it: they could not be appended.
            return (at <= now).then(|| {
                self.again.pop_front();
                wanted
            });
        }
        if self.next == self.pages {
            return None;
        }
        self.next += 1;
        Some(Wanted { page: self.next - 1, attempts: 0 })
    }

    /// Asks once more for a page, the next one that may have it, or fails for `why`.
    fn retry(&mut self, now: Instant, wanted: Wanted, why: Refusal) {
        if wanted.attempts >= ATTEMPTS_MAX * self.from.nodes().len() as u32 {
            self.end = Ending::Failing(why);
        } else {
            self.again.push_back((wanted, now + AGAIN_NS));
        }
    }

    /// Whom to ask for a page, which was asked for so often.
    fn source(&self, attempts: u32) -> NodeId {
        let nodes = self.from.nodes();
        nodes[attempts as usize % nodes.len()]
    }

    /// A node has sent what it can read of a page.
    fn take(&mut self, now: Instant, wanted: Wanted, slots: Vec<Option<Slot<D>>>)
    where
        D: Data,
    {
        let count = self.header.shape.slots_per_page as usize;
        if slots.len() != count {
            return self.retry(now, wanted, Refusal::Invalid);
        }
        let sound = |slot: &Slot<D>| slots_are_sound(std::slice::from_ref(slot));
        let slots = slots.into_iter().map(|slot| slot.filter(sound));
        let before = self.pieces.remove(&wanted.page).unwrap_or_else(|| vec![None; count]);
        let page: Vec<Option<Slot<D>>> =
            before.into_iter().zip(slots).map(|(before, slot)| before.or(slot)).collect();
        if page.iter().any(Option::is_none) {
            self.pieces.insert(wanted.page, page);
            return self.retry(now, wanted, Refusal::Invalid);
        }
        self.stalls_at = now + STALL_NS;
        self.fetched.insert(wanted.page, page.into_iter().flatten().collect());
    }
}

impl<D: Data> Node<D> {
    /// A copy is asked for, by the owner of its volume.
    pub(super) fn copy(&mut self, index: u32, ask: Ask<D>) {
        let Ask::Copy { band, generation, from, header, pages, bytes_per_s_max } = ask else {
            unreachable!("only copies come here");
        };
        let sound = self.is_sound(&header) && (1..=header.shape.pages).contains(&pages);
        let others = !from.nodes().is_empty() && !from.has(self.node);
        if !sound || !others || bytes_per_s_max == 0 {
            return self.refuse(index, Refusal::Invalid);
        }
        match self.bands.get(&band) {
            Some(Band { state: BandState::Copying, .. }) => {
                return self.refuse(index, Refusal::Busy);
            }
            Some(there) => {
                let sealed = there.state == BandState::Sealed;
                if sealed && there.pages == pages && there.header == header {
                    return self.answer(index, Answer::Done, Sensed::default());
                }
                return self.refuse(index, Refusal::Differs);
            }
            None => {}
        }
        if self.failed {
            return self.refuse(index, Refusal::Failed);
        }
        if self.copies.len() as u32 >= self.settings.copies_max {
            return self.refuse(index, Refusal::Busy);
        }
        if self.bands.len() as u32 >= self.bands_max {
            return self.refuse(index, Refusal::Full);
        }
        let state = BandState::Copying;
        self.bands.insert(band, Band::new(header, state));
        let copying = Copying {
            band,
            generation,
            from,
            header,
            pages,
            bytes_per_s_max,
            next: 0,
            pace_at: self.now,
            stalls_at: self.now + STALL_NS,
            asked: BTreeMap::new(),
            again: VecDeque::new(),
            pieces: BTreeMap::new(),
            fetched: BTreeMap::new(),
            begun: 0,
            done: 0,
            end: Ending::Going,
        };
        self.copies.insert(index, copying);
        self.pump_copy(index);
    }

    pub(super) fn pump_copies(&mut self) {
        let copies: Vec<u32> = self.copies.keys().copied().collect();
        for index in copies {
            self.pump_copy(index);
        }
    }

    /// Moves a copy on as far as it goes now.
    fn pump_copy(&mut self, index: u32) {
        let now = self.now;
        let copying = self.copies.get_mut(&index).expect("it is under way");
        let late = copying.asked.extract_if(.., |_, (.., until)| *until <= now);
        let late: Vec<Wanted> = late.map(|(_, (wanted, ..))| wanted).collect();
        if copying.end == Ending::Going {
            for wanted in late {
                copying.retry(now, wanted, Refusal::Busy);
            }
        }
        if copying.end == Ending::Going && copying.fetches() && copying.stalls_at <= now {
            copying.end = Ending::Failing(Refusal::Busy);
        }
        while self.copies[&index].end == Ending::Going {
            let copying = self.copies.get_mut(&index).expect("it is under way");
            if let Some(slots) = copying.fetched.remove(&copying.begun) {
                self.put_copied(index, slots);
                continue;
            }
            let Some(wanted) = copying.take_wanted(now) else { break };
            self.ask_page(index, wanted);
        }
        self.end_copy(index);
    }

    fn ask_page(&mut self, index: u32, wanted: Wanted) {
        self.asked += 1;
        let id = AskId(self.asked);
        let copying = self.copies.get_mut(&index).expect("it is under way");
        let count = copying.header.shape.slots_per_page;
        let ns = u128::from(copying.page_bytes()) * u128::from(SECOND)
            / u128::from(copying.bytes_per_s_max);
        copying.pace_at = self.now + u64::try_from(ns).unwrap_or(u64::MAX);
        let to = copying.source(wanted.attempts);
        let wanted = Wanted { attempts: wanted.attempts + 1, ..wanted };
        copying.asked.insert(id, (wanted, to, self.now + PATIENCE_NS));
        let (band, generation) = (copying.band, copying.generation);
        let slot = wanted.page * count;
        let ask = Ask::Read { band, generation, slot, count, urgent: false };
        self.outputs.push_back(Output::Ask { to, id, ask });
    }

    fn put_copied(&mut self, index: u32, slots: Vec<Slot<D>>) {
        let copying = self.copies.get_mut(&index).expect("it is under way");
        let page = copying.begun;
        copying.begun += 1;
        let open = (page == 0).then_some(Opening { header: copying.header, hidden: true });
        let (band, generation) = (copying.band, copying.generation);
        let command = Command::Append { band, generation, page, open, slots };
        self.command(command, Task::CopyAppend { ask: index });
    }

    /// Another node answers: one that is asked nothing, or that nobody waits for any more, is not heard.
    pub(super) fn copy_answered(&mut self, from: NodeId, id: AskId, answer: Answer<D>) {
        let now = self.now;
        let mut copies = self.copies.values_mut();
        let is_of = |it: &&mut Copying<D>| it.asked.get(&id).is_some_and(|(_, of, _)| *of == from);
        let Some(copying) = copies.find(is_of) else { return };
        let (wanted, ..) = copying.asked.remove(&id).expect("found by it");
        if copying.end != Ending::Going {
            return;
        }
        match answer {
            Answer::Slots(slots) => copying.take(now, wanted, slots),
            Answer::Refused(Refusal::Busy) => copying.retry(now, wanted, Refusal::Busy),
            Answer::Refused(stale @ Refusal::Stale { .. }) => copying.end = Ending::Failing(stale),
            // It has no such band, or not so many pages of it, or cannot read: another one may.
            _ if copying.from.nodes().len() > 1 => copying.retry(now, wanted, Refusal::NoBand),
            _ => copying.end = Ending::Failing(Refusal::NoBand),
        }
    }

    pub(super) fn copy_appended(&mut self, index: u32, result: Result<(), StoreError>) {
        let copying = self.copies.get_mut(&index).expect("it is under way");
        copying.done += 1;
        if let (Err(error), Ending::Going) = (result, copying.end) {
            copying.end = Ending::Failing(refusal_of(error));
        }
    }

    /// Seals what is whole, and frees what will not be.
    fn end_copy(&mut self, index: u32) {
        let copying = self.copies.get_mut(&index).expect("it is under way");
        let quiet = copying.begun == copying.done;
        let (band, generation, pages) = (copying.band, copying.generation, copying.pages);
        let why = match copying.end {
            Ending::Going if quiet && copying.done == pages => {
                copying.end = Ending::Sealing;
                let command = Command::Seal { band, generation, pages };
                return self.command(command, Task::CopySeal { ask: index });
            }
            Ending::Failing(why) if quiet => Some(why),
            Ending::Stopping if quiet => None,
            _ => return,
        };
        copying.end = Ending::Freeing { why };
        self.command(Command::Free { band }, Task::CopyFree { ask: index });
    }

    pub(super) fn copy_sealed(&mut self, index: u32, result: Result<(), StoreError>) {
        let copying = self.copies.get_mut(&index).expect("it is under way");
        if let Err(error) = result {
            copying.end = Ending::Failing(refusal_of(error));
            return;
        }
        let copying = self.copies.remove(&index).expect("it is under way");
        let band = self.bands.get_mut(&copying.band).expect("it is copied here");
        (band.state, band.pages) = (BandState::Sealed, copying.pages);
        self.answer(index, Answer::Done, Sensed::default());
    }

    /// What a copy left is gone, or the store has failed and cannot tell: a hidden band is nobody's then.
    pub(super) fn copy_freed(&mut self, index: u32, result: Result<(), StoreError>) {
        let copying = self.copies.remove(&index).expect("it is under way");
        let Ending::Freeing { why } = copying.end else { unreachable!("it was freed") };
        self.bands.remove(&copying.band);
        match (why, result) {
            (Some(why), _) => self.refuse(index, why),
            (None, Err(error)) => self.refuse(index, refusal_of(error)),
            (None, Ok(())) => self.ask_again(index, copying),
        }
    }

    /// A copy that a fence has stopped is held against it, as if it came now.
    fn ask_again(&mut self, index: u32, copying: Copying<D>) {
        let Copying { band, generation, from, header, pages, bytes_per_s_max, .. } = copying;
        let pending = &mut self.asks[index];
        pending.ask = Some(Ask::Copy { band, generation, from, header, pages, bytes_per_s_max });
        pending.changes = false;
        let volume = pending.volume;
        self.ready.push_back(index);
        self.change_over(volume);
    }

    /// A newer owner is heard of: no copy of an older one may hold it up.
    pub(super) fn stop_copies_of(&mut self, volume: VolumeId) {
        let copies = self.copies.values_mut().filter(|copying| copying.band.volume == volume);
        for copying in copies.filter(|copying| copying.end == Ending::Going) {
            copying.end = Ending::Stopping;
        }
        self.pump_copies();
    }
}
