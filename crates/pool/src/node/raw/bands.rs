//! The commands of a node, on the raw blocks of bands.

use super::format::{AppendHeader, Block, Entry, Footer, LOST, Record, Sealed, footer_slots};
use super::io::{What, Written};
use super::{Command, CommandId, Data, Done, Held, RawStore, StoreError};
use crate::message::Slot;
use crate::node::ALL_SOUND;
use crate::node::store::Opening;
use crate::words::{BandName, Generation};
use flash::{Lba, RequestError};
use ftl::raw::RawBlockState;

/// A read of slots of one page.
#[derive(Debug)]
pub(super) struct Reading<D> {
    id: CommandId,
    band: BandName,
    page: u32,
    raw: u32,
    /// Of the page.
    first: u32,
    count: u32,
    entry: Entry,
    header: Option<AppendHeader>,
    data: Vec<(Option<D>, Option<u32>)>,
    /// Requests to the units without an answer.
    parts: u32,
}

impl<D> Reading<D> {
    pub(super) fn take_header(&mut self, slots: Vec<Option<Block>>) {
        let block = slots.into_iter().next().flatten();
        let header = block.and_then(|block| AppendHeader::decode(&block[..]));
        self.header = header.filter(|header| {
            (header.band, header.page, header.entry()) == (self.band, self.page, self.entry)
        });
    }

    pub(super) fn take_data(&mut self, slots: Vec<(Option<D>, Option<u32>)>) {
        self.data = slots;
    }

    /// Each slot that was asked for, if it is what its header says; of one whose data are damaged, what it says.
    fn slots(&mut self) -> Vec<Option<Slot<D>>> {
        let mut data = std::mem::take(&mut self.data).into_iter();
        let range = self.first..self.first + self.count;
        let Some(header) = &self.header else { return range.map(|_| None).collect() };
        let slot = |at: u32| {
            let (oob, crc) = header.slots[at as usize];
            if header.zeroes >> at & 1 == 1 {
                return Some(Slot { oob, crc, data: None });
            }
            let read = data.next().filter(|&(_, found)| found == Some(crc));
            let slot = Slot { oob, crc, data: read.and_then(|(data, _)| data) };
            // Data of the same sum as zeroes that are lost must not be taken for these.
            (slot.data.is_some() || slot.is_lost()).then_some(slot)
        };
        range.map(slot).collect()
    }
}

impl<D: Data> RawStore<D> {
    pub(super) fn command(&mut self, id: CommandId, command: Command<D>) {
        match command {
            Command::Fence { volume, to } => self.fence(id, volume, to),
            Command::Forget { volume } => self.forget_fence(id, volume),
            Command::Append { band, generation, page, open, slots } => {
                self.append(id, (band, generation, page), open, slots);
            }
            Command::Seal { band, generation, pages } => self.seal(id, band, generation, pages),
            Command::Free { band } => self.free_band(id, band),
            Command::Flush => self.flush_units(id),
            Command::Sum { band, page } => {
                if let Some(entry) = self.entry(id, &command, band, page) {
                    let sum = (entry.place != LOST).then_some(entry.sum);
                    self.end(id, Ok(Done::Sum(sum)), None);
                }
            }
            Command::Read { band, slot, count, .. } => {
                let Some(held) = self.bands.get(&band) else {
                    return self.end(id, Err(StoreError::NoBand), None);
                };
                let slots = held.header.shape.slots_per_page;
                let page = slot / slots;
                if let Some(entry) = self.entry(id, &command, band, page) {
                    self.read(id, (band, page), (slot % slots, count), entry);
                }
            }
        }
    }

    /// Where a page is; `None` if the command has ended, or waits until that is known.
    fn entry(
        &mut self,
        id: CommandId,
        command: &Command<D>,
        name: BandName,
        page: u32,
    ) -> Option<Entry> {
        self.uses += 1;
        let Some(held) = self.bands.get_mut(&name).filter(|held| page < held.pages) else {
            self.end(id, Err(StoreError::NoBand), None);
            return None;
        };
        held.used = self.uses;
        let lba = Lba(held.raw * self.units.lanes().slots);
        let there = |block: RawBlockState| block.tag == Some(name.tag());
        if held.failed && !self.units.raw_block(lba).is_some_and(there) {
            // Its erase was begun and has failed.
            return Some(Entry { place: LOST, ..Entry::default() });
        }
        if let Some(index) = &held.index {
            return Some(index[page as usize]);
        }
        let raw = held.raw;
        let waiting = self.waiting.entry(name).or_default();
        waiting.push((id, command.clone()));
        if waiting.len() == 1 {
            self.begin_look(raw);
        }
        None
    }

    fn append(
        &mut self,
        id: CommandId,
        (name, generation, page): (BandName, Generation, u32),
        open: Option<Opening>,
        slots: Vec<Slot<D>>,
    ) {
        if let Some(opening) = open
            && let Err(error) = self.open_band(name, opening)
        {
            return self.end(id, Err(error), None);
        }
        let stored = slots.iter().filter(|slot| slot.data.is_some()).count() as u64;
        let span = self.whole(1 + stored) as u32;
        let slots_max = self.units.lanes().slots;
        let Some(held) = self.bands.get_mut(&name) else {
            return self.end(id, Err(StoreError::NoBand), None);
        };
        let (raw, place) = (held.raw, held.next);
        if held.failed || held.sealed || place + span > slots_max {
            held.failed = true;
            return self.end(id, Err(StoreError::BandFailed), Some(raw));
        }
        let of = (name, page, generation);
        let header = AppendHeader::new(of, held.header, held.hidden, place, &slots);
        let index = held.index.as_mut().expect("an open band's pages are known");
        assert_eq!(index.len(), page as usize, "pages come in order");
        index.push(header.entry());
        held.next += span;
        held.writing += 1;
        let mut written = vec![(Written::Bytes(header.encode()), 0)];
        written.extend(
            slots
                .into_iter()
                .filter_map(|slot| slot.data.map(|data| (Written::Data(data), slot.crc))),
        );
        let tag = open.map(|_| name.tag());
        self.write(What::Append { id, band: name }, (raw, place), written, (tag, false));
    }

    fn open_band(&mut self, name: BandName, opening: Opening) -> Result<(), StoreError> {
        assert!(!self.bands.contains_key(&name), "a band is opened once");
        self.fits(opening.header.shape).map_err(|_| StoreError::Shape)?;
        if self.units.has_failed() {
            return Err(StoreError::Failed);
        }
        if self.log.sealed(name).is_some() {
            // The log could not be told that the one of this name is gone: it would seal this one.
            return Err(StoreError::BandFailed);
        }
        self.erase_again();
        let raw = self.take_free(self.log_reserve(), None).ok_or(StoreError::Full)?;
        let lane = self.lane_of(raw);
        self.open[lane] += 1;
        let held = Held {
            raw,
            header: opening.header,
            pages: 0,
            sound: ALL_SOUND,
            torn: false,
            loose: 0,
            sealed: false,
            hidden: opening.hidden,
            failed: false,
            next: 0,
            writing: 0,
            index: Some(Vec::new()),
            used: self.uses,
        };
        self.bands.insert(name, held);
        Ok(())
    }

    pub(super) fn appended(
        &mut self,
        id: CommandId,
        name: BandName,
        result: Result<(), RequestError>,
    ) {
        let held = self.bands.get_mut(&name).expect("it is written to");
        held.writing -= 1;
        match result {
            Ok(()) => held.pages += 1,
            Err(_) => held.failed = true,
        }
        let (raw, quiet, pages) = (held.raw, held.writing == 0, held.pages);
        if held.failed && quiet {
            held.index.as_mut().expect("its pages are known").truncate(pages as usize);
            if pages == 0 {
                self.forget(name);
                self.erase(What::Reclaim { raw }, raw);
            }
        }
        let error = |error| match error {
            RequestError::NoSpace if pages == 0 => StoreError::Full,
            RequestError::Failed if self.units.has_failed() => StoreError::Failed,
            _ => StoreError::BandFailed,
        };
        let result = result.map(|()| Done::Done).map_err(error);
        self.end(id, result, Some(raw));
    }

    /// Nothing is known of a band any more.
    fn forget(&mut self, name: BandName) -> Option<Held> {
        let held = self.bands.remove(&name)?;
        if !held.sealed {
            let lane = self.lane_of(held.raw);
            self.open[lane] -= 1;
        } else if let Some(index) = &held.index {
            self.indexed_pages -= index.len() as u64;
        }
        Some(held)
    }

    fn seal(&mut self, id: CommandId, name: BandName, generation: Generation, pages: u32) {
        let Some(held) = self.bands.get(&name) else {
            return self.end(id, Err(StoreError::NoBand), None);
        };
        assert!(
            pages <= held.pages && held.writing == 0,
            "a node seals what is there, and at rest"
        );
        if held.sealed {
            // Its free has failed, so that the node takes it for one that is failed.
            let same =
                if held.pages == pages { Ok(Done::Done) } else { Err(StoreError::BandFailed) };
            return self.end(id, same, None);
        }
        let (raw, place, header) = (held.raw, held.next, held.header);
        let index = held.index.as_ref().expect("an open band's pages are known");
        let index = &index[..pages as usize];
        let span = self.whole(footer_slots(pages).into()) as u32;
        let room = u64::from(place) + 2 * u64::from(span);
        if held.failed || room > u64::from(self.units.lanes().slots) {
            let sealed = Sealed { pages, damaged: held.sound < pages };
            return self.log_add(id, Record::Seal(name, sealed));
        }
        let mut written: Vec<(Written<D>, u32)> = Vec::new();
        // Twice, in pages of the flash of their own: one that is damaged must not take the seal with it.
        for (copy, end) in [(0, span), (1, 2 * span)] {
            let at = (copy, place + copy * span);
            let footers = Footer::of((name, generation), header, at, index);
            written.extend(footers.iter().map(|footer| (Written::Bytes(footer.encode()), 0)));
            // The last slot of the raw block says where the footer is, so what fills the page repeats it.
            let last = written.last().cloned().expect("a footer has a slot");
            written.resize(end as usize, last);
        }
        self.write(What::Footer { id, band: name, pages }, (raw, place), written, (None, true));
    }

    pub(super) fn footer_written(
        &mut self,
        id: CommandId,
        name: BandName,
        pages: u32,
        result: Result<(), RequestError>,
    ) {
        let suffices = self.footers_suffice();
        let sealed = Sealed { pages, damaged: false };
        let held = self.bands.get_mut(&name).expect("it is sealed");
        match result {
            Ok(()) if suffices => self.sealed(id, name, pages),
            Ok(()) => self.log_add(id, Record::Seal(name, sealed)),
            Err(_) => {
                held.failed = true;
                self.log_add(id, Record::Seal(name, sealed));
            }
        }
    }

    /// Whether the units show the second copy of a footer where the first is damaged and the power was cut. Where a raw
    /// block lies in several units, or pages are not durable in order, what is missing may never have been
    /// written, and nothing behind it is shown: the seal is in the log, too.
    pub(super) fn footers_suffice(&self) -> bool {
        self.units.lanes().gang == 1 && self.geometry.durable_at_completion
    }

    /// A seal is durable.
    pub(super) fn sealed(&mut self, id: CommandId, name: BandName, pages: u32) {
        let held = self.bands.get_mut(&name).expect("it is sealed");
        (held.sealed, held.pages) = (true, pages);
        let raw = held.raw;
        let index = held.index.as_mut().expect("an open band's pages are known");
        index.truncate(pages as usize);
        self.indexed_pages += u64::from(pages);
        let lane = self.lane_of(raw);
        self.open[lane] -= 1;
        self.drop_indexes();
        self.end(id, Ok(Done::Done), Some(raw));
    }

    /// Forgets where the pages of the bands are that were used least, until few enough are known.
    pub(super) fn drop_indexes(&mut self) {
        while self.indexed_pages > u64::from(self.settings.indexed_pages_max) {
            let known = self.bands.values_mut().filter(|held| held.sealed && held.index.is_some());
            let Some(least) = known.min_by_key(|held| held.used) else { return };
            let index = least.index.take().expect("filtered above");
            self.indexed_pages -= index.len() as u64;
        }
    }

    fn free_band(&mut self, id: CommandId, name: BandName) {
        if !self.bands.contains_key(&name) {
            return self.end(id, Ok(Done::Done), None);
        }
        if self.log.sealed(name).is_some() {
            // Before the erase: what comes later under this name must not be sealed by it.
            return self.log_add(id, Record::Unseal(name));
        }
        self.erase_band(id, name);
    }

    /// Nothing but its raw block says anything of a band any more.
    pub(super) fn erase_band(&mut self, id: CommandId, name: BandName) {
        let held = self.forget(name).expect("it is freed once");
        for (id, _) in self.waiting.remove(&name).unwrap_or_default() {
            self.end(id, Err(StoreError::NoBand), None);
        }
        // What still looks at its raw block would take what comes there next for what was there.
        self.looks.retain(|_, look| look.band != name);
        let raw = held.raw;
        self.freeing.insert(id, (name, held));
        self.erase(What::Free { id, raw }, raw);
    }

    /// The erase of a band has ended. One that failed leaves the band, to be freed again: the die may be gone, which
    /// is no reason to refuse what the others can do.
    pub(super) fn freed(&mut self, id: CommandId, raw: u32, result: Result<(), RequestError>) {
        let (name, held) = self.freeing.remove(&id).expect("it is freed");
        let failed = self.units.has_failed();
        let error = if failed { StoreError::Failed } else { StoreError::BandFailed };
        self.end(id, result.map(|()| Done::Done).map_err(|_| error), Some(raw));
        if result.is_err() && (held.sealed || !held.hidden) {
            self.hold(name, Held { failed: true, ..held });
            return self.log_pump();
        }
        self.reclaimed(raw, result);
    }

    /// The other way round than `forget`.
    fn hold(&mut self, name: BandName, held: Held) {
        if !held.sealed {
            let lane = self.lane_of(held.raw);
            self.open[lane] += 1;
        } else if let Some(index) = &held.index {
            self.indexed_pages += index.len() as u64;
        }
        self.bands.insert(name, held);
    }

    pub(super) fn flushed(&mut self, id: CommandId, result: Result<(), RequestError>) {
        let ended = result.map(|()| Done::Done).map_err(|_| StoreError::Failed);
        self.end(id, ended, None);
    }

    fn read(
        &mut self,
        id: CommandId,
        (band, page): (BandName, u32),
        (first, count): (u32, u32),
        entry: Entry,
    ) {
        let raw = self.bands[&band].raw;
        let below = |at: u32| {
            let zeroes = entry.zeroes & low_bits(at);
            at - zeroes.count_ones()
        };
        let (stored_first, stored_end) = (below(first), below(first + count));
        let header = self.headers.get(&(band, page)).filter(|it| it.entry() == entry).cloned();
        let cached = header.is_some();
        let (data, parts) = (Vec::new(), 1);
        let reading = Reading { id, band, page, raw, first, count, entry, header, data, parts };
        let read = self.reads.insert(reading);
        if entry.place == LOST {
            return self.end_read_part(read);
        }
        if !cached {
            self.reads[read].parts += 1;
            self.read_bytes(What::Read { read }, raw, entry.place, 1);
        }
        if stored_end > stored_first {
            self.reads[read].parts += 1;
            let place = entry.place + 1 + stored_first;
            self.read_data(What::Read { read }, raw, place, stored_end - stored_first);
        }
        self.end_read_part(read);
    }

    /// A part of a read has ended; the last one ends it.
    pub(super) fn end_read_part(&mut self, read: u32) {
        self.reads[read].parts -= 1;
        if self.reads[read].parts > 0 {
            return;
        }
        let mut reading = self.reads.remove(read);
        let slots = reading.slots();
        let Reading { id, band, page, raw, header, .. } = reading;
        if let Some(header) = header {
            self.keep_header((band, page), header);
        }
        self.end(id, Ok(Done::Slots(slots)), Some(raw));
    }

    fn keep_header(&mut self, key: (BandName, u32), header: AppendHeader) {
        if self.headers.insert(key, header).is_none() {
            self.headers_order.push_back(key);
        }
        if self.headers_order.len() > self.settings.headers_max as usize
            && let Some(oldest) = self.headers_order.pop_front()
        {
            self.headers.remove(&oldest);
        }
    }
}

/// A number with the lowest `count` of 64 bits set.
fn low_bits(count: u32) -> u64 {
    if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 }
}
