//! What an ask comes to that its volume's fence lets through. Each either is answered at once, waits for what is
//! under way at its band, or becomes a command of the store.

use super::store::{Command, Data, Done, End, Opening, Sensed, StoreError};
use super::store::{is_sound, page_sum, slots_are_sound};
use super::{ALL_SOUND, Band, BandState, Mode, Node, Pending, Task, refusal_of};
use crate::message::{Answer, Ask, BandEntry, BandHeader, Refusal, Slot};
use crate::words::{BandName, Generation, VolumeId};
use std::collections::VecDeque;
use std::ops::Bound;

impl<D: Data> Node<D> {
    pub(super) fn begin(&mut self, index: u32) {
        if self.gone.contains(&self.asks[index].peer) {
            return self.refuse(index, Refusal::Busy);
        }
        if self.must_wait(index) {
            return;
        }
        let ask = self.asks[index].ask.take().expect("it is begun once");
        match ask {
            Ask::Fence { .. } => self.answer(index, Answer::Done, Sensed::default()),
            Ask::Append { band, generation, page, open, slots } => {
                self.append(index, (band, generation, page), open, slots);
            }
            Ask::Read { band, slot, count, urgent, .. } => {
                self.read(index, band, (slot, count), urgent);
            }
            Ask::Seal { band, generation, pages } => self.seal(index, band, generation, pages),
            Ask::Free { band, .. } => self.free(index, band),
            Ask::Flush { .. } if self.durable => {
                self.answer(index, Answer::Done, Sensed::default());
            }
            Ask::Flush { .. } => self.command(Command::Flush, Task::Flush { ask: index }),
            Ask::List { volume, after, .. } => self.list(index, volume, after),
            Ask::Copy { .. } => self.copy(index, ask),
        }
    }

    /// A change waits in line where one before it must have ended.
    fn must_wait(&mut self, index: u32) -> bool {
        let (name, ends) = match self.asks[index].ask {
            Some(Ask::Append { band, .. } | Ask::Copy { band, .. }) => (band, false),
            Some(Ask::Seal { band, .. } | Ask::Free { band, .. }) => (band, true),
            _ => return false,
        };
        let Some(band) = self.bands.get_mut(&name) else { return false };
        let busy = matches!(band.state, BandState::Ending | BandState::Freeing)
            || ends && band.appending > 0 && band.state != BandState::Copying
            || !band.waiting.is_empty();
        if busy {
            band.waiting.push_back(index);
        }
        busy
    }

    /// Something at the band has ended: what waits for it may go on.
    fn wake(&mut self, name: BandName) {
        let Some(band) = self.bands.get_mut(&name) else { return };
        let ending = matches!(band.state, BandState::Ending | BandState::Freeing);
        if ending || band.appending > 0 {
            return;
        }
        // Each is begun before the next: it may be what the next has to wait for.
        for index in std::mem::take(&mut band.waiting) {
            self.begin(index);
        }
    }

    fn append(
        &mut self,
        index: u32,
        (name, generation, page): (BandName, Generation, u32),
        open: Option<BandHeader>,
        slots: Vec<Slot<D>>,
    ) {
        if open.is_some() && page > 0 {
            return self.refuse(index, Refusal::Invalid);
        }
        let Some(band) = self.bands.get(&name) else {
            return match (page, open) {
                (0, Some(header)) => self.open(index, (name, generation), header, slots),
                _ => self.refuse(index, Refusal::NoBand),
            };
        };
        let shape = band.header.shape;
        if slots.len() != shape.slots_per_page as usize || page >= shape.pages {
            return self.refuse(index, Refusal::Invalid);
        }
        if open.is_some_and(|header| header != band.header) {
            return self.refuse(index, Refusal::Differs);
        }
        if band.state == BandState::Copying {
            return self.refuse(index, Refusal::Busy);
        }
        if page < band.pages {
            let sum = page_sum(&slots);
            return self.command(Command::Sum { band: name, page }, Task::Sum { ask: index, sum });
        }
        let taken = match band.state {
            BandState::Open { taken } => taken,
            BandState::Sealed => {
                let pages = band.pages;
                return self.refuse(index, Refusal::Sealed { pages });
            }
            _ => return self.refuse(index, Refusal::BandFailed),
        };
        if page != taken {
            // It is on its way, or something before it is missing.
            let late = Refusal::OutOfOrder { expected: taken };
            return self.refuse(index, if page < taken { Refusal::Busy } else { late });
        }
        if self.failed {
            return self.refuse(index, Refusal::Failed);
        }
        if !slots_are_sound(&slots) {
            return self.refuse(index, Refusal::Invalid);
        }
        self.put(index, (name, generation, page), None, slots);
    }

    /// The first page of a band that is not here.
    fn open(
        &mut self,
        index: u32,
        (name, generation): (BandName, Generation),
        header: BandHeader,
        slots: Vec<Slot<D>>,
    ) {
        let fits = slots.len() == header.shape.slots_per_page as usize && slots_are_sound(&slots);
        if !fits || !self.is_sound(&header) {
            return self.refuse(index, Refusal::Invalid);
        }
        if self.failed {
            return self.refuse(index, Refusal::Failed);
        }
        if self.mode == Mode::Reads && self.now >= self.mode_strict_at {
            return self.refuse(index, Refusal::Mode);
        }
        if self.bands.len() as u32 >= self.bands_max {
            return self.refuse(index, Refusal::Full);
        }
        let state = BandState::Open { taken: 0 };
        self.bands.insert(name, Band::new(header, state));
        let opening = Opening { header, hidden: false };
        self.put(index, (name, generation, 0), Some(opening), slots);
    }

    fn put(
        &mut self,
        index: u32,
        (name, generation, page): (BandName, Generation, u32),
        open: Option<Opening>,
        slots: Vec<Slot<D>>,
    ) {
        let band = self.bands.get_mut(&name).expect("it takes the page");
        band.state = BandState::Open { taken: page + 1 };
        band.appending += 1;
        let command = Command::Append { band: name, generation, page, open, slots };
        self.command(command, Task::Append { ask: index, band: name });
    }

    /// Whether a band may be here that is said to be so.
    pub(super) fn is_sound(&self, header: &BandHeader) -> bool {
        is_sound(header.shape) && header.members.has(self.node)
    }

    fn read(&mut self, index: u32, name: BandName, (slot, count): (u32, u32), urgent: bool) {
        let band = self.bands.get(&name).filter(|band| band.is_visible());
        let Some(band) = band.filter(|band| band.state != BandState::Freeing) else {
            return self.refuse(index, Refusal::NoBand);
        };
        let slots = band.header.shape.slots_per_page;
        let in_page = slot % slots;
        if count == 0 || count > slots - in_page || slot / slots >= band.pages {
            return self.refuse(index, Refusal::Invalid);
        }
        let command = Command::Read { band: name, slot, count, urgent };
        self.command(command, Task::Read { ask: index });
    }

    fn seal(&mut self, index: u32, name: BandName, generation: Generation, pages: u32) {
        let Some(band) = self.bands.get_mut(&name) else {
            return self.refuse(index, Refusal::NoBand);
        };
        let there = band.pages;
        match band.state {
            BandState::Copying => return self.refuse(index, Refusal::Busy),
            BandState::Sealed if pages == there => {
                return self.answer(index, Answer::Done, Sensed::default());
            }
            BandState::Sealed => return self.refuse(index, Refusal::Sealed { pages: there }),
            _ if pages > there => return self.refuse(index, Refusal::Invalid),
            _ if self.failed => return self.refuse(index, Refusal::Failed),
            _ => band.state = BandState::Ending,
        }
        let command = Command::Seal { band: name, generation, pages };
        self.command(command, Task::Seal { ask: index, band: name, pages });
    }

    fn free(&mut self, index: u32, name: BandName) {
        let Some(band) = self.bands.get_mut(&name) else {
            return self.answer(index, Answer::Done, Sensed::default());
        };
        if band.state == BandState::Copying {
            return self.refuse(index, Refusal::Busy);
        }
        if self.failed {
            return self.refuse(index, Refusal::Failed);
        }
        band.state = BandState::Freeing;
        self.command(Command::Free { band: name }, Task::Free { ask: index, band: name });
    }

    fn list(&mut self, index: u32, volume: VolumeId, after: Option<BandName>) {
        let first = BandName { volume, band: 0, life: 0 };
        let last = BandName { volume, band: u32::MAX, life: u64::MAX };
        let from = match after {
            Some(after) if after >= last => {
                let answer = Answer::Bands { bands: Vec::new(), more: false };
                return self.answer(index, answer, Sensed::default());
            }
            Some(after) if after >= first => Bound::Excluded(after),
            _ => Bound::Included(first),
        };
        let bands = self.bands.range((from, Bound::Included(last)));
        let mut visible =
            bands.filter(|(_, band)| band.is_visible()).map(|(&name, band)| band.entry(name));
        let bands: Vec<BandEntry> =
            visible.by_ref().take(self.settings.list_max as usize).collect();
        let more = visible.next().is_some();
        self.answer(index, Answer::Bands { bands, more }, Sensed::default());
    }

    pub(super) fn ended(&mut self, end: End<D>) {
        let task = self.tasks.remove(&end.id).expect("a command ends once");
        let End { result, sensed, .. } = end;
        if let Err(error) = result {
            self.note_error(error);
        }
        let plain = result.as_ref().map(|_| ()).map_err(|error| *error);
        match task {
            Task::Fence(volume) => self.raised(volume, plain),
            Task::Append { ask, band } => self.end_append(ask, band, plain, sensed),
            Task::Sum { ask, sum } => {
                let same = matches!(result, Ok(Done::Sum(Some(found))) if found == sum);
                let differs = Answer::Refused(Refusal::Differs);
                let answer = match result {
                    Ok(_) => {
                        if same {
                            Answer::Done
                        } else {
                            differs
                        }
                    }
                    Err(error) => Answer::Refused(refusal_of(error)),
                };
                self.answer(ask, answer, sensed);
            }
            Task::Read { ask } => {
                let answer = match result {
                    Ok(Done::Slots(slots)) => Answer::Slots(slots),
                    Ok(_) => unreachable!("a read ends with slots"),
                    Err(error) => Answer::Refused(refusal_of(error)),
                };
                self.note_latency(ask, false, &answer);
                self.answer(ask, answer, sensed);
            }
            Task::Seal { ask, band, pages } => self.end_seal(ask, band, pages, plain),
            Task::Free { ask, band } => self.end_free(ask, band, plain),
            Task::FreeDeleted { band } => self.freed_deleted(band, plain),
            Task::Forget(volume) => self.forgotten(volume, plain),
            Task::Flush { ask } => self.answer(ask, answer_of(plain), sensed),
            Task::CopyAppend { ask } => self.copy_appended(ask, plain),
            Task::CopySeal { ask } => self.copy_sealed(ask, plain),
            Task::CopyFree { ask } => self.copy_freed(ask, plain),
        }
    }

    /// Counts how long a read or an append took, if it was done.
    fn note_latency(&mut self, ask: u32, write: bool, answer: &Answer<D>) {
        if !matches!(answer, Answer::Refused(_)) {
            let Pending { since, blocks, .. } = self.asks[ask];
            self.monitor.ended(self.now, write, blocks, self.now - since, self.tasks.len() as u32);
        }
    }

    fn end_append(
        &mut self,
        ask: u32,
        name: BandName,
        result: Result<(), StoreError>,
        sensed: Sensed,
    ) {
        let band = self.bands.get_mut(&name).expect("it takes a page");
        band.appending -= 1;
        match result {
            Ok(()) => band.pages += 1,
            Err(_) => band.state = BandState::Failed,
        }
        let over = band.appending == 0;
        let gone = over && band.pages == 0 && band.state == BandState::Failed;
        let waiting = if gone {
            self.bands.remove(&name).map(|band| band.waiting).unwrap_or_default()
        } else {
            VecDeque::new()
        };
        let answer = answer_of(result);
        self.note_latency(ask, true, &answer);
        self.answer(ask, answer, sensed);
        for index in waiting {
            self.begin(index);
        }
        if over {
            self.wake(name);
        }
    }

    fn end_seal(&mut self, ask: u32, name: BandName, pages: u32, result: Result<(), StoreError>) {
        let band = self.bands.get_mut(&name).expect("it is sealed");
        band.state = BandState::Failed;
        if result.is_ok() {
            (band.state, band.pages) = (BandState::Sealed, pages);
        }
        self.answer(ask, answer_of(result), Sensed::default());
        self.wake(name);
    }

    fn end_free(&mut self, ask: u32, name: BandName, result: Result<(), StoreError>) {
        let band = self.bands.get_mut(&name).expect("it is freed");
        // Whether it is gone after a crash is not known where the store failed: nothing is built on it.
        band.state = BandState::Failed;
        let mut waiting = VecDeque::new();
        if result.is_ok() {
            waiting = std::mem::take(&mut band.waiting);
            self.bands.remove(&name);
        }
        self.answer(ask, answer_of(result), Sensed::default());
        for index in waiting {
            self.begin(index);
        }
        self.wake(name);
    }
}

impl Band {
    /// Without a page yet.
    pub(super) fn new(header: BandHeader, state: BandState) -> Self {
        let waiting = VecDeque::new();
        let (torn, loose) = (false, 0);
        Self { header, pages: 0, sound: ALL_SOUND, torn, loose, state, appending: 0, waiting }
    }

    /// What a list tells of it. A sealed one ends where it is sealed, whatever was behind that.
    fn entry(&self, band: BandName) -> BandEntry {
        let (header, pages, sound) = (self.header, self.pages, self.sound.min(self.pages));
        let sealed = self.state == BandState::Sealed;
        let (torn, loose) = if sealed { (false, 0) } else { (self.torn, self.loose) };
        BandEntry { band, header, pages, sealed, sound, torn, loose }
    }

    /// Whether anybody may know of it.
    pub(super) fn is_visible(&self) -> bool {
        match self.state {
            BandState::Copying => false,
            // Its first page is on its way.
            BandState::Open { .. } => self.pages > 0,
            BandState::Failed | BandState::Ending | BandState::Freeing => true,
            BandState::Sealed => true,
        }
    }
}

fn answer_of<D>(result: Result<(), StoreError>) -> Answer<D> {
    match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Refused(refusal_of(error)),
    }
}
