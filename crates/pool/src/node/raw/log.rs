//! The log: who is fenced, and the seals that the raw block of a band could not take. It lies twice, in two raw blocks
//! of a tag of its own, byte for byte the same, on different lanes where there are several. When they are full, or one
//! takes no more, a summary of all that counts begins the next two, in one write each, and the old ones are erased.
//!
//! Invariants:
//! - What was answered is durable in both: every write is forced.
//! - The raw blocks with the highest number count if their summary is whole; it was whole in both before those before
//!   them were erased.
//! - There is a log from the format on: a store without one has lost it.
//! - A place that is damaged in both is not passed over: a fence could be in it. Nor is a band of a volume that no
//!   fence tells of.
//! - A logged seal goes before its band does: a band of the same name that comes later is not sealed by it.

use super::format::{Block, LOG_RECORDS, LogSlot, Record, Sealed};
use super::io::{What, Written};
use super::{CommandId, Data, Done, OpenError, Phase, RawStore, StoreError};
use crate::words::{BandName, Fenced, VolumeId};
use flash::{Lba, RequestError};
use ftl::MountError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The tag of the log's raw blocks: no band has it, as no volume has its number.
pub(super) const LOG_TAG: u128 = u128::MAX;

/// Raw blocks of the log: it and its copy.
const COPIES: usize = 2;

/// Raw blocks that are kept for it: it begins others before those are erased that it has.
pub(super) const RAW_BLOCKS: u32 = 2 * COPIES as u32;

/// Pairs of raw blocks that may fail one after the other before the log gives up.
const TRIES_MAX: u32 = 3;

/// A record, and the command that it ends when it is durable; none if it is the store's own.
type Entry = (Option<CommandId>, Record);

/// Where is written at present.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Behind what is there.
    End,
    /// A summary of so many slots, at the start of these.
    Summary { raws: [u32; COPIES], slots: u32 },
}

/// What is written at present.
#[derive(Debug)]
struct Writing {
    place: Place,
    with: Vec<Entry>,
    /// Writes without an end, and whether one has failed.
    left: u32,
    failed: bool,
    /// As there was no room below, which says nothing of the raw blocks.
    lacks_room: bool,
}

impl Writing {
    fn of(place: Place, with: Vec<Entry>, copies: usize) -> Self {
        Self { place, with, left: copies as u32, failed: false, lacks_room: false }
    }
}

/// What one raw block of the log holds: its slots, where they are sound and of this log.
#[derive(Debug)]
struct Copy {
    raw: u32,
    number: u64,
    /// Slots of the summary that it begins with.
    summary: u32,
    slots: Vec<Option<LogSlot>>,
}

impl Copy {
    /// What was written to a raw block; `None` if no slot of it is sound.
    fn of(raw: u32, slots: &[Option<Block>]) -> Option<Self> {
        let decode = |(place, slot): (u32, &Option<Block>)| {
            let slot = slot.as_ref().and_then(|block| LogSlot::decode(&block[..]));
            slot.filter(|slot| slot.place == place)
        };
        let mut slots: Vec<Option<LogSlot>> = (0..).zip(slots).map(decode).collect();
        let first = slots.iter().flatten().next()?;
        let (number, summary) = (first.number, first.summary);
        for slot in &mut slots {
            slot.take_if(|slot| (slot.number, slot.summary) != (number, summary));
        }
        Some(Self { raw, number, summary, slots })
    }

    /// Where there are slots: behind the summary each page has one, and what fills it up.
    fn places(&self, page: usize) -> impl Iterator<Item = usize> {
        let summary = self.summary as usize;
        (0..summary).chain((summary.next_multiple_of(page)..self.slots.len()).step_by(page))
    }

    /// The summary was written to its end, whatever became of it.
    fn is_begun(&self) -> bool {
        self.slots.len() >= self.summary as usize
    }
}

/// Of the copies that were read the number of the log that counts, and its records. That is the highest; or, if only one
/// copy of it has its summary and that is damaged, one before it that lies there twice: the highest was cut off
/// then, and nothing was answered of it.
fn newest(copies: &[Copy], page: usize) -> Option<(u64, Vec<Record>)> {
    let of = |number: u64| -> Vec<&Copy> {
        copies.iter().filter(|copy| copy.number == number && copy.is_begun()).collect()
    };
    let numbers = || copies.iter().map(|copy| copy.number);
    let highest = numbers().filter(|&it| !of(it).is_empty()).max()?;
    if let Some(records) = records_of(&of(highest), page) {
        return Some((highest, records));
    }
    let before = numbers().filter(|&it| it < highest && of(it).len() == COPIES).max();
    let before = before.filter(|_| of(highest).len() < COPIES)?;
    Some((before, records_of(&of(before), page)?))
}

/// What copies of one number say together; `None` if a place is damaged in all of them.
fn records_of(copies: &[&Copy], page: usize) -> Option<Vec<Record>> {
    let shortest = copies.iter().map(|copy| copy.slots.len()).min()?;
    let longest = copies.iter().max_by_key(|copy| copy.slots.len())?;
    let mut records = Vec::new();
    for place in longest.places(page) {
        let mut slots = copies.iter().filter_map(|copy| copy.slots.get(place)?.as_ref());
        match slots.next() {
            Some(slot) => records.extend(&slot.records),
            // One that only one copy had was never answered.
            None if place >= shortest && copies.len() == COPIES => {}
            None => return None,
        }
    }
    Some(records)
}

#[derive(Debug, Default)]
pub(super) struct Log {
    /// The raw blocks, and where the next record goes in each; `None` if they take no more.
    raws: Vec<u32>,
    next: Option<u32>,
    number: u64,
    /// Slots of the summary that the raw blocks begin with.
    summary_slots: u32,
    fences: BTreeMap<VolumeId, Fenced>,
    seals: BTreeMap<BandName, Sealed>,
    pending: VecDeque<Entry>,
    writing: Option<Writing>,
    tries: u32,
    /// All that counts is to be written anew, as it does not lie there twice.
    renew: bool,
    /// There was no room below when that was tried last: it is tried again with the next record.
    lacks_room: bool,
    /// Raw blocks that are still to be read when the store is opened.
    unread: usize,
    copies: Vec<Copy>,
    /// Raw blocks of which no slot is sound.
    unsound: Vec<u32>,
}

impl Log {
    pub(super) fn fences(&self) -> &BTreeMap<VolumeId, Fenced> {
        &self.fences
    }

    pub(super) fn sealed(&self, band: BandName) -> Option<Sealed> {
        self.seals.get(&band).copied()
    }

    pub(super) fn is_known(&self) -> bool {
        self.unread == 0
    }

    /// Raw blocks that the log has now.
    pub(super) fn raw_blocks(&self) -> usize {
        let place = self.writing.as_ref().map(|writing| writing.place);
        let summary = matches!(place, Some(Place::Summary { .. }));
        self.raws.len() + if summary { COPIES } else { 0 }
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Fence(volume, to) => {
                let least = self.fences.entry(volume).or_default();
                *least = to.max(*least);
            }
            Record::Forget(volume) => drop(self.fences.remove(&volume)),
            Record::Seal(band, sealed) => drop(self.seals.insert(band, sealed)),
            Record::Unseal(band) => drop(self.seals.remove(&band)),
        }
    }

    /// All that counts, and what is about to.
    fn summary(&self, with: &[Entry]) -> Vec<Record> {
        let fences = self.fences.iter().map(|(&volume, &least)| Record::Fence(volume, least));
        let seals = self.seals.iter().map(|(&band, &sealed)| Record::Seal(band, sealed));
        fences.chain(seals).chain(with.iter().map(|&(_, record)| record)).collect()
    }

    /// Whether a volume is known, or one more may be.
    fn has_room_for(&self, volume: VolumeId, volumes_max: u32) -> bool {
        let coming = self.pending.iter().chain(self.writing.iter().flat_map(|it| &it.with));
        let coming = coming.filter_map(|(_, record)| match record {
            Record::Fence(volume, _) => Some(*volume),
            Record::Forget(_) | Record::Seal(..) | Record::Unseal(_) => None,
        });
        let volumes: BTreeSet<VolumeId> = coming.chain(self.fences.keys().copied()).collect();
        volumes.contains(&volume) || volumes.len() < volumes_max as usize
    }

    /// Takes the newest log of those that were read; the raw blocks that it does not lie in.
    fn take_newest(&mut self, page: usize) -> Result<Vec<u32>, OpenError> {
        let mut copies = std::mem::take(&mut self.copies);
        let (number, records) = newest(&copies, page).ok_or(OpenError::Log)?;
        records.into_iter().for_each(|record| self.apply(record));
        self.number = copies.iter().map(|copy| copy.number).max().unwrap_or(number);
        // One whose summary was cut off is no copy yet.
        let is_other = |copy: &mut Copy| copy.number != number || !copy.is_begun();
        let others: Vec<Copy> = copies.extract_if(.., is_other).collect();
        let longest = copies.iter().map(|copy| copy.slots.len()).max().unwrap_or(0);
        let is_whole = |copy: &Copy| {
            let mut places = copy.places(page);
            copy.slots.len() == longest && places.all(|place| copy.slots[place].is_some())
        };
        self.renew = copies.len() != COPIES || !copies.iter().all(is_whole);
        self.summary_slots = copies[0].summary;
        self.raws = copies.iter().map(|copy| copy.raw).collect();
        self.next = (!self.renew && self.number == number).then_some(longest as u32);
        let others = others.into_iter().map(|copy| copy.raw);
        Ok(others.chain(std::mem::take(&mut self.unsound)).collect())
    }
}

impl<D: Data> RawStore<D> {
    /// Whether the summary of the most that can be known fits twice.
    pub(super) fn log_fits(&self) -> Result<(), String> {
        let lanes = self.units.lanes();
        let records = u64::from(self.settings.volumes_max)
            + u64::from(lanes.lanes) * u64::from(lanes.raw_blocks);
        let slots = self.whole(records.div_ceil(LOG_RECORDS as u64)) * 2;
        let raw_blocks = u64::from(lanes.lanes) * u64::from(lanes.raw_blocks);
        if raw_blocks <= RAW_BLOCKS.into() {
            let mib = (u64::from(lanes.slots) * flash::BLOCK_BYTES as u64) >> 20;
            return Err(format!(
                "the drive has {raw_blocks} raw blocks of {mib} MiB, and the log of who is fenced alone takes \
                 {RAW_BLOCKS}: give it more (device.capacity), or make them smaller (raw.gang)"
            ));
        }
        if slots <= u64::from(lanes.slots) {
            return Ok(());
        }
        Err(format!(
            "the log of {} volumes and as many bands as there are raw blocks takes {slots} slots of 4 KiB in each of \
             two raw blocks; a raw block has {}: allow fewer volumes, or use larger raw blocks (raw.gang)",
            self.settings.volumes_max, lanes.slots,
        ))
    }

    /// The drive is empty: it gets a log that says so.
    pub(super) fn log_format(&mut self) {
        self.log.renew = true;
    }

    pub(super) fn log_begin(&mut self, raw_blocks: Vec<(u32, u32)>) {
        self.log.unread = raw_blocks.len();
        if raw_blocks.is_empty() {
            return self.open_failed(OpenError::Log);
        }
        for (raw, written) in raw_blocks {
            self.read_bytes(What::LogRead { raw }, raw, 0, written);
        }
    }

    /// One of the log's raw blocks was read whole.
    pub(super) fn log_read(&mut self, raw: u32, slots: Vec<Option<Block>>) {
        self.log.unread -= 1;
        match Copy::of(raw, &slots) {
            Some(copy) => self.log.copies.push(copy),
            None => self.log.unsound.push(raw),
        }
        if self.log.unread > 0 {
            return;
        }
        let page = self.geometry.slots_per_page as usize;
        match self.log.take_newest(page) {
            Ok(others) => self.doomed.extend(others),
            Err(error) => return self.open_failed(error),
        }
        // Raw blocks that were not stopped cleanly take nothing more.
        let slots = self.units.lanes().slots;
        let open = |&raw: &u32| {
            self.units.raw_block(Lba(raw * slots)).is_some_and(|block| block.state == "open")
        };
        if !self.log.raws.iter().all(open) {
            self.log.next = None;
        }
        self.pump_looks();
    }

    /// All is known. What does not lie in the log twice is written anew, and seals of bands that are not here any more
    /// leave it, unless the drive cannot tell whether they are.
    pub(super) fn log_settle(&mut self, seals: Vec<(BandName, u32)>) {
        let whole = |pages| Sealed { pages, damaged: false };
        let seals = seals.into_iter().map(|(band, pages)| Record::Seal(band, whole(pages)));
        let gone = self.log.seals.keys().filter(|band| !self.bands.contains_key(band));
        let gone = gone.filter(|_| !self.blind).map(|&band| Record::Unseal(band));
        let records: Vec<Record> = seals.chain(gone).collect();
        self.log.pending.extend(records.into_iter().map(|record| (None, record)));
        self.log_pump();
    }

    pub(super) fn fence(&mut self, id: CommandId, volume: VolumeId, to: Fenced) {
        if !self.log.has_room_for(volume, self.settings.volumes_max) {
            return self.end(id, Err(StoreError::Full), None);
        }
        self.log_add(id, Record::Fence(volume, to));
    }

    /// Not where something of the volume may lie that cannot be read at present: a mount that finds it would take
    /// the fence for lost.
    pub(super) fn forget_fence(&mut self, id: CommandId, volume: VolumeId) {
        let lanes = self.units.lanes().lanes;
        if self.blind || (0..lanes).any(|lane| self.units.is_lane_gone(lane)) {
            return self.end(id, Err(StoreError::BandFailed), None);
        }
        self.log_add(id, Record::Forget(volume));
    }

    pub(super) fn log_add(&mut self, id: CommandId, record: Record) {
        self.log.pending.push_back((Some(id), record));
        // Not where the log itself looks for raw blocks: it would do so again for each erase that finds no room.
        self.erase_again();
        self.log_pump();
    }

    /// Writes what is pending, if nothing is being written.
    pub(super) fn log_pump(&mut self) {
        if self.log.writing.is_some() || !matches!(self.phase, Phase::Settling | Phase::Ready) {
            return;
        }
        let renews = self.log.renew && !self.log.lacks_room;
        if self.log.pending.is_empty() && !renews {
            return self.log_at_rest();
        }
        let page = self.geometry.slots_per_page;
        let count = self.log.pending.len().min(LOG_RECORDS);
        let room = |next: &u32| next + page <= self.units.lanes().slots;
        let Some(place) = self.log.next.filter(room).filter(|_| !self.log.renew) else {
            return self.log_summarize(count);
        };
        let with: Vec<Entry> = self.log.pending.drain(..count).collect();
        let records = with.iter().map(|&(_, record)| record).collect();
        let (number, summary) = (self.log.number, self.log.summary_slots);
        let slot = LogSlot { number, place, summary, records };
        self.log.next = Some(place + page);
        let raws = self.log.raws.clone();
        self.log.writing = Some(Writing::of(Place::End, with, raws.len()));
        for raw in raws {
            let slots = vec![(Written::Bytes(slot.encode()), 0)];
            self.write(What::LogWrite, (raw, place), slots, (None, true));
        }
    }

    /// Begins other raw blocks with all that counts.
    fn log_summarize(&mut self, count: usize) {
        if self.log.tries >= TRIES_MAX || self.units.has_failed() {
            return self.log_failed(StoreError::Failed);
        }
        let with: Vec<Entry> = self.log.pending.iter().take(count).copied().collect();
        let records = self.log.summary(&with);
        let slots = records.len().div_ceil(LOG_RECORDS).max(1) as u32;
        if self.whole(slots.into()) > self.units.lanes().slots.into() {
            return self.log_failed(StoreError::Full);
        }
        let Some(raws) = self.take_pair() else {
            // What is being erased will do, when it is.
            let erases = |what: &What| matches!(what, What::Reclaim { .. } | What::Free { .. });
            if !self.ios.values().any(|io| erases(&io.what)) {
                self.log_failed(StoreError::Full);
            }
            return;
        };
        self.log.pending.drain(..count);
        let number = self.log.number + 1;
        let slot = |(place, records): (u32, &[Record])| {
            let slot = LogSlot { number, place, summary: slots, records: records.to_vec() };
            (Written::Bytes(slot.encode()), 0)
        };
        // A summary of nothing is a slot, too.
        let chunks = records.chunks(LOG_RECORDS).chain(records.is_empty().then_some(&[][..]));
        let written: Vec<_> = (0..).zip(chunks).map(slot).collect();
        self.log.number = number;
        let place = Place::Summary { raws, slots };
        self.log.writing = Some(Writing::of(place, with, COPIES));
        for raw in raws {
            self.write(What::LogWrite, (raw, 0), written.clone(), (Some(LOG_TAG), true));
        }
    }

    /// Erased raw blocks for the log and its copy, of different lanes if that can be.
    fn take_pair(&mut self) -> Option<[u32; COPIES]> {
        let first = self.take_free(0, None)?;
        let lane = self.lane_of(first);
        let Some(second) = self.take_free(0, Some(lane)).or_else(|| self.take_free(0, None)) else {
            self.free[lane].insert(first);
            return None;
        };
        Some([first, second])
    }

    /// Nothing more can be written; what waits for that ends.
    fn log_failed(&mut self, error: StoreError) {
        // What is written next begins with a summary again: nothing is written behind what may be torn.
        (self.log.renew, self.log.next) = (false, None);
        for (id, _) in std::mem::take(&mut self.log.pending) {
            if let Some(id) = id {
                self.end(id, Err(error), None);
            }
        }
        if self.phase == Phase::Settling && self.formats {
            let why = "no two raw blocks of this drive take the log of fences: use another drive";
            return self.open_failed(OpenError::Shape(why.into()));
        }
        self.log_at_rest();
    }

    /// Nothing is to be written: a store that was waiting for that is ready. Also one that cannot write: what it holds
    /// can be read.
    fn log_at_rest(&mut self) {
        if self.phase == Phase::Settling {
            self.become_ready();
        }
    }

    /// A write to one of the copies has ended.
    pub(super) fn log_written(&mut self, result: Result<(), RequestError>) {
        let writing = self.log.writing.as_mut().expect("it was under way");
        writing.left -= 1;
        writing.failed |= result.is_err();
        writing.lacks_room |= result == Err(RequestError::NoSpace);
        if writing.left > 0 {
            return;
        }
        let Writing { place, with, failed, lacks_room, .. } =
            self.log.writing.take().expect("looked above");
        match place {
            Place::End if failed => self.log.renew = true,
            Place::End => {}
            Place::Summary { raws, .. } if failed => {
                self.log.tries += u32::from(!lacks_room);
                (self.log.renew, self.log.lacks_room) = (true, lacks_room);
                raws.into_iter().for_each(|raw| self.erase(What::Reclaim { raw }, raw));
            }
            Place::Summary { raws, slots } => {
                (self.log.tries, self.log.renew, self.log.lacks_room) = (0, false, false);
                self.log.summary_slots = slots;
                self.log.next = Some(self.whole(slots.into()) as u32);
                for raw in std::mem::replace(&mut self.log.raws, raws.to_vec()) {
                    self.erase(What::Reclaim { raw }, raw);
                }
            }
        }
        if failed {
            for entry in with.into_iter().rev() {
                self.log.pending.push_front(entry);
            }
        } else {
            with.into_iter().for_each(|entry| self.log_done(entry));
        }
        if self.log.lacks_room {
            return self.log_lacks_room();
        }
        self.log_pump();
    }

    /// There is no room below for another log: nobody is to wait for it.
    fn log_lacks_room(&mut self) {
        if self.phase == Phase::Settling && self.formats {
            return self.open_failed(OpenError::Units(MountError::NoSpace));
        }
        self.log_failed(StoreError::Full);
    }

    /// A record is durable.
    fn log_done(&mut self, (id, record): Entry) {
        self.log.apply(record);
        let Some(id) = id else { return };
        match record {
            Record::Fence(..) | Record::Forget(_) => self.end(id, Ok(Done::Done), None),
            Record::Seal(band, sealed) => self.sealed(id, band, sealed.pages),
            Record::Unseal(band) => self.erase_band(id, band),
        }
    }
}
