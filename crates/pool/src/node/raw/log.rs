//! The log: who is fenced, and the seals that the raw block of a band could not take. It lies in one raw block of a
//! tag of its own. When that is full, or was not stopped cleanly, a summary of all that counts begins the next one, in
//! one write, and the old one is erased.
//!
//! Invariants:
//! - What was answered is durable: every write is forced.
//! - The raw block with the highest number counts of those whose summary is whole; it was whole before the one before
//!   it was erased.
//! - A slot that is damaged is not passed over: a fence could be in it. Nor is a band of a volume that no fence
//!   tells of.

use super::format::{Block, LOG_RECORDS, LogSlot, Record};
use super::io::{What, Written};
use super::{CommandId, Data, Done, OpenError, RawStore, StoreError};
use crate::words::{BandName, Generation, VolumeId};
use flash::{Lba, RequestError};
use std::collections::{BTreeMap, VecDeque};

/// The tag of the log's raw blocks: no band has it, as no volume has its number.
pub(super) const LOG_TAG: u128 = u128::MAX;

/// Raw blocks that may fail one after the other before the log gives up.
const TRIES_MAX: u32 = 3;

/// What is written at present.
#[derive(Debug)]
enum Writing {
    /// These records, behind what is there.
    Records(Vec<(CommandId, Record)>),
    /// A summary, to a raw block; with these records in it.
    Summary { raw: u32, slots: u32, with: Vec<(CommandId, Record)> },
}

#[derive(Debug, Default)]
pub(super) struct Log {
    /// The raw block, and where the next record goes; `None` if it takes no more.
    raw: Option<u32>,
    next: Option<u32>,
    number: u64,
    /// Slots of the summary that the raw block begins with.
    summary_slots: u32,
    fences: BTreeMap<VolumeId, Generation>,
    seals: BTreeMap<BandName, u32>,
    pending: VecDeque<(CommandId, Record)>,
    writing: Option<Writing>,
    tries: u32,
    /// Raw blocks that are still to be read when the store is opened.
    unread: usize,
    /// The newest of those that were; nothing of it where a slot is damaged.
    best: Option<(u32, Option<Vec<LogSlot>>)>,
    /// Those of which no slot is sound.
    unsound: Vec<u32>,
}

impl Log {
    pub(super) fn fences(&self) -> &BTreeMap<VolumeId, Generation> {
        &self.fences
    }

    pub(super) fn sealed(&self, band: BandName) -> Option<u32> {
        self.seals.get(&band).copied()
    }

    /// The band is gone: nobody needs to know where it was sealed.
    pub(super) fn forget(&mut self, band: BandName) {
        self.seals.remove(&band);
    }

    pub(super) fn is_known(&self) -> bool {
        self.unread == 0
    }

    /// Raw blocks that the log has now.
    pub(super) fn raw_blocks(&self) -> usize {
        let summary = matches!(self.writing, Some(Writing::Summary { .. }));
        usize::from(self.raw.is_some()) + usize::from(summary)
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Fence(volume, generation) => {
                let least = self.fences.entry(volume).or_default();
                *least = generation.max(*least);
            }
            Record::Seal(band, pages) => drop(self.seals.insert(band, pages)),
        }
    }

    /// All that counts, and what is about to.
    fn summary(&self, with: &[(CommandId, Record)]) -> Vec<Record> {
        let fences = self.fences.iter().map(|(&volume, &least)| Record::Fence(volume, least));
        let seals = self.seals.iter().map(|(&band, &pages)| Record::Seal(band, pages));
        fences.chain(seals).chain(with.iter().map(|&(_, record)| record)).collect()
    }
}

impl<D: Data> RawStore<D> {
    /// Whether the summary of the most that can be known fits twice.
    pub(super) fn log_fits(&self) -> Result<(), String> {
        let lanes = self.units.lanes();
        let records = u64::from(self.settings.volumes_max)
            + u64::from(lanes.lanes) * u64::from(lanes.raw_blocks);
        let slots = self.whole(records.div_ceil(LOG_RECORDS as u64)) * 2;
        if slots <= u64::from(lanes.slots) && lanes.lanes * lanes.raw_blocks > 2 {
            return Ok(());
        }
        Err(format!(
            "the log of {} volumes and as many bands as there are raw blocks takes {slots} slots of 4 KiB, and two \
             of more raw blocks; a raw block has {} and there are {}: allow fewer volumes, or use larger raw \
             blocks (raw.gang)",
            self.settings.volumes_max,
            lanes.slots,
            lanes.lanes * lanes.raw_blocks
        ))
    }

    pub(super) fn log_begin(&mut self, raw_blocks: usize) {
        self.log.unread = raw_blocks;
    }

    /// One of the log's raw blocks was read whole.
    pub(super) fn log_read(&mut self, raw: u32, slots: Vec<Option<Block>>) {
        self.log.unread -= 1;
        let page = self.geometry.slots_per_page as usize;
        let decode = |slot: &Option<Block>| slot.as_ref().and_then(|it| LogSlot::decode(&it[..]));
        let decoded: Vec<Option<LogSlot>> = slots.iter().map(decode).collect();
        let found = decoded.iter().flatten().next().map(|slot| (slot.number, slot.summary));
        match found {
            Some((number, summary)) if (summary as usize) <= slots.len() => {
                let (head, tail) = decoded.split_at(summary as usize);
                // Behind the summary each page has one slot, and what fills it up.
                let head_end = (summary as usize).next_multiple_of(page) - summary as usize;
                let tail = tail.iter().skip(head_end).step_by(page);
                let told: Option<Vec<LogSlot>> = head.iter().chain(tail).cloned().collect();
                let mut loser = Some(raw);
                if number > self.log.number {
                    (self.log.number, self.log.summary_slots) = (number, summary);
                    loser = self.log.best.replace((raw, told)).map(|(raw, _)| raw);
                }
                if let Some(raw) = loser {
                    self.erase(What::Reclaim { raw }, raw);
                }
            }
            // A summary that was cut off: the one before it still counts.
            Some(_) => self.erase(What::Reclaim { raw }, raw),
            None => self.log.unsound.push(raw),
        }
        if self.log.unread == 0 {
            self.log_take();
        }
    }

    /// All of the log was read.
    fn log_take(&mut self) {
        let unsound = std::mem::take(&mut self.log.unsound);
        match self.log.best.take() {
            Some((_, None)) => return self.open_failed(OpenError::Log),
            None if !unsound.is_empty() => return self.open_failed(OpenError::Log),
            None => {}
            Some((raw, Some(slots))) => {
                for record in slots.into_iter().flat_map(|slot| slot.records) {
                    self.log.apply(record);
                }
                let lanes = self.units.lanes();
                let block = self.units.raw_block(Lba(raw * lanes.slots)).expect("it is one");
                self.log.raw = Some(raw);
                self.log.next = (block.state == "open").then_some(block.blocks_written);
            }
        }
        // The erase of an old one was cut off: it began when a newer one was durable, which was found.
        for raw in unsound {
            self.erase(What::Reclaim { raw }, raw);
        }
        self.pump_looks();
    }

    pub(super) fn log_add(&mut self, id: CommandId, record: Record) {
        self.log.pending.push_back((id, record));
        self.log_pump();
    }

    /// Writes what is pending, if nothing is being written.
    pub(super) fn log_pump(&mut self) {
        if self.log.writing.is_some() || self.log.pending.is_empty() {
            return;
        }
        let page = self.geometry.slots_per_page;
        let count = self.log.pending.len().min(LOG_RECORDS);
        let room = |next: &u32| next + page <= self.units.lanes().slots;
        let (Some(raw), Some(place)) = (self.log.raw, self.log.next.filter(room)) else {
            return self.log_summarize(count);
        };
        let with: Vec<(CommandId, Record)> = self.log.pending.drain(..count).collect();
        let records = with.iter().map(|&(_, record)| record).collect();
        let (number, summary) = (self.log.number, self.log.summary_slots);
        let slot = LogSlot { number, place, summary, records };
        self.log.next = Some(place + page);
        self.log.writing = Some(Writing::Records(with));
        let slots = vec![(Written::Bytes(slot.encode()), 0)];
        self.write(What::LogWrite, (raw, place), slots, (None, true));
    }

    /// Begins another raw block with all that counts.
    fn log_summarize(&mut self, count: usize) {
        if self.log.tries >= TRIES_MAX || self.units.has_failed() {
            return self.log_failed();
        }
        let Some(raw) = self.take_free(0) else {
            // One that is being erased will do, when it is.
            if !self
                .ios
                .values()
                .any(|io| matches!(io.what, What::Reclaim { .. } | What::Free { .. }))
            {
                self.log_failed();
            }
            return;
        };
        let with: Vec<(CommandId, Record)> = self.log.pending.drain(..count).collect();
        let records = self.log.summary(&with);
        let slots = records.len().div_ceil(LOG_RECORDS).max(1) as u32;
        let number = self.log.number + 1;
        let slot = |(place, records): (u32, &[Record])| {
            let slot = LogSlot { number, place, summary: slots, records: records.to_vec() };
            (Written::Bytes(slot.encode()), 0)
        };
        let written = (0..).zip(records.chunks(LOG_RECORDS)).map(slot).collect();
        self.log.number = number;
        self.log.writing = Some(Writing::Summary { raw, slots, with });
        self.write(What::LogWrite, (raw, 0), written, (Some(LOG_TAG), true));
    }

    fn log_failed(&mut self) {
        for (id, _) in std::mem::take(&mut self.log.pending) {
            self.end(id, Err(StoreError::Failed), None);
        }
    }

    pub(super) fn log_written(&mut self, result: Result<(), RequestError>) {
        let writing = self.log.writing.take().expect("it was under way");
        let with = match (writing, result) {
            (Writing::Records(with), Ok(())) => with,
            (Writing::Records(with), Err(_)) => {
                self.log.next = None;
                self.log_again(with);
                return;
            }
            (Writing::Summary { raw, slots, with }, Ok(())) => {
                self.log.tries = 0;
                self.log.summary_slots = slots;
                self.log.next = Some(self.whole(slots.into()) as u32);
                if let Some(old) = self.log.raw.replace(raw) {
                    self.erase(What::Reclaim { raw: old }, old);
                }
                with
            }
            (Writing::Summary { raw, with, .. }, Err(_)) => {
                self.log.tries += 1;
                self.erase(What::Reclaim { raw }, raw);
                self.log_again(with);
                return;
            }
        };
        for (id, record) in with {
            self.log.apply(record);
            match record {
                Record::Fence(..) => self.end(id, Ok(Done::Done), None),
                Record::Seal(band, pages) => self.sealed(id, band, pages),
            }
        }
        self.log_pump();
    }

    fn log_again(&mut self, with: Vec<(CommandId, Record)>) {
        for entry in with.into_iter().rev() {
            self.log.pending.push_front(entry);
        }
        self.log_pump();
    }
}
