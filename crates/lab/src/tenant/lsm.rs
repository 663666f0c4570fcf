//! A store of sorted tables: Cassandra under YCSB-A, half reads, half updates of whole records.
//!
//! - *Clients* read (a record that the page cache does not hold costs a read in the youngest table
//!   that has it) and update: the record goes to the commit log and the memtable.
//! - The *log writer* writes what has come since its last write once it is enough (Cassandra syncs
//!   periodically), into segments; a segment is deleted when every memtable it serves is flushed.
//! - The *flusher* writes a full memtable as a file, in one go from its start to its end.
//! - The *compactor* merges four tables of about one size into one (size-tiered), reading and writing
//!   in large pieces, and deletes them. When room runs out it merges all.
//!
//! Deleted files are trimmed if the file system is mounted so; else their place is written again when
//! its turn comes, and until then the device keeps what nobody needs.

use super::extents::{EXTENT_BYTES, Extents, File};
use super::{Plan, Program, Step};
use crate::workload::{Generator, Pattern, Workload};
use flash::Random;
use std::collections::VecDeque;

/// What a store is.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its part of the device.
    pub part_bytes: u64,
    /// Bytes of all records.
    pub data_bytes: u64,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Operations at a time.
    pub clients: u32,
    /// Share of reads.
    pub reads: f64,
    /// Popularity of records.
    pub theta: f64,
    /// Reads that the page cache answers.
    pub cached: f64,
    /// Bytes of a read.
    pub read_bytes: u64,
    /// A memtable of this size is flushed.
    pub memtable_bytes: u64,
    /// Bytes of a commit log segment.
    pub segment_bytes: u64,
    /// The commit log is written once so much has come.
    pub log_write_bytes: u64,
    /// Tables of about one size that are merged.
    pub merged: usize,
    /// Bytes of each I/O of a flush or compaction.
    pub stream_bytes: u64,
    /// Deleted files are trimmed.
    pub trims: bool,
    /// Processor time of an operation.
    pub think_ns: u64,
}

impl Config {
    /// Cassandra with 1 KiB records. Memtable and segment have the share of the data that Cassandra's
    /// defaults (a quarter of a heap of 8 GiB, 32 MiB) have of 100 M records.
    pub fn cassandra(part_bytes: u64, clients: u32) -> Self {
        let data_bytes = part_bytes / 8 * 3;
        Self {
            part_bytes,
            data_bytes,
            record_bytes: 1024,
            clients,
            reads: 0.5,
            theta: 0.99,
            cached: 0.95,
            read_bytes: 16 << 10,
            memtable_bytes: (data_bytes / 50).max(2 << 20),
            segment_bytes: (data_bytes / 200).max(EXTENT_BYTES).next_multiple_of(EXTENT_BYTES),
            log_write_bytes: 128 << 10,
            merged: 4,
            stream_bytes: 256 << 10,
            trims: false,
            think_ns: 2_000_000,
        }
    }
}

struct Table {
    file: File,
    /// Its records, in order.
    keys: Vec<u32>,
}

/// A commit log segment: its file, the bytes in it, and the memtable it serves last.
struct Segment {
    file: File,
    memtable: u64,
}

/// See the head of this file.
pub struct Lsm {
    config: Config,
    random: Random,
    popular: Generator,
    extents: Extents,
    /// Youngest last.
    tables: Vec<Table>,
    /// Which records the memtable holds: the number of the memtable that has each.
    memtable_of: Vec<u32>,
    memtable: Vec<u32>,
    memtable_number: u64,
    /// Bytes of its commit log.
    memtable_logged: u64,
    flushing: Option<(File, Vec<u32>)>,
    segments: VecDeque<Segment>,
    segment_bytes: u64,
    log_pending: u64,
    log_writing: bool,
    /// The record of an update that waits, by client.
    held: Vec<Option<u32>>,
    waiting: Vec<u32>,
    compaction: Option<Compaction>,
}

/// One that the compactor has planned; when it plans again, it is done.
struct Compaction {
    inputs: Vec<usize>,
    output: File,
    keys: Vec<u32>,
}

impl Lsm {
    /// A store with all of its records in one table.
    pub fn new(config: Config, seed: u64) -> Result<Self, String> {
        let records = (config.data_bytes / config.record_bytes) as u32;
        let workload =
            Workload { pattern: Pattern::Zipf { theta: config.theta }, ..Workload::default() };
        let mut extents = Extents::new(0, config.part_bytes);
        let room = config.data_bytes * 9 / 4 + 12 * config.memtable_bytes;
        if room > config.part_bytes || records < 64 {
            return Err(format!(
                "a part of {} bytes for {} of data: compaction needs {room}, and there are 64 \
                 records at least",
                config.part_bytes, config.data_bytes
            ));
        }
        let file = extents.allocate(config.data_bytes).ok_or("no room for the first table")?;
        let first = extents.allocate(config.segment_bytes).ok_or("no room for the commit log")?;
        Ok(Self {
            random: Random::new(seed),
            popular: Generator::new(workload, records, seed ^ 0x15)?,
            extents,
            tables: vec![Table { file, keys: (0..records).collect() }],
            memtable_of: vec![0; records as usize],
            memtable: Vec::new(),
            memtable_number: 1,
            memtable_logged: 0,
            flushing: None,
            segments: VecDeque::from([Segment { file: first, memtable: 1 }]),
            segment_bytes: 0,
            log_pending: 0,
            log_writing: false,
            held: vec![None; config.clients as usize],
            waiting: Vec::new(),
            compaction: None,
            config,
        })
    }

    fn log_writer(&self) -> u32 {
        self.config.clients
    }

    fn flusher(&self) -> u32 {
        self.config.clients + 1
    }

    fn compactor(&self) -> u32 {
        self.config.clients + 2
    }

    fn memtable_is_full(&self) -> bool {
        self.memtable.len() as u64 * self.config.record_bytes >= self.config.memtable_bytes
            || self.memtable_logged >= LOGGED_MAX * self.config.memtable_bytes
    }

    fn operate(&mut self, client: u32, plan: &mut Plan) {
        let held = self.held[client as usize].take();
        let key = held.unwrap_or_else(|| self.popular.draw().lba);
        if held.is_none() && self.random.chance(self.config.reads) {
            self.read(key, plan);
        } else if self.memtable_is_full() && self.flushing.is_some()
            || self.log_pending > 16 * self.config.log_write_bytes
        {
            // Both memtables are full, or the log is behind: updates wait.
            self.held[client as usize] = Some(key);
            self.waiting.push(client);
            plan.wake(self.log_writer());
            return;
        } else {
            self.update(key, plan);
        }
        plan.step(Step::Think(self.config.think_ns));
        plan.step(Step::Done);
    }

    fn read(&mut self, key: u32, plan: &mut Plan) {
        let in_memory = u64::from(self.memtable_of[key as usize]) == self.memtable_number;
        if in_memory || self.random.chance(self.config.cached) {
            return;
        }
        for table in self.tables.iter().rev() {
            let Ok(rank) = table.keys.binary_search(&key) else { continue };
            let from = rank as u64 * self.config.record_bytes;
            let from = from / self.config.read_bytes * self.config.read_bytes;
            for (offset, bytes) in table.file.places(from, self.config.read_bytes) {
                plan.read(offset, bytes);
            }
            plan.wait();
            return;
        }
    }

    fn update(&mut self, key: u32, plan: &mut Plan) {
        if u64::from(self.memtable_of[key as usize]) != self.memtable_number {
            self.memtable_of[key as usize] = self.memtable_number as u32;
            self.memtable.push(key);
        }
        self.log_pending += self.config.record_bytes + ENTRY_BYTES;
        self.memtable_logged += self.config.record_bytes + ENTRY_BYTES;
        if self.log_pending >= self.config.log_write_bytes {
            plan.wake(self.log_writer());
        }
        if self.memtable_is_full() {
            plan.wake(self.flusher());
        }
    }

    /// Appends to the commit log; a full segment is followed by a new one.
    fn write_log(&mut self, plan: &mut Plan) -> Result<(), String> {
        if std::mem::replace(&mut self.log_writing, false) {
            self.waiting.drain(..).for_each(|client| plan.wake(client));
        }
        if self.log_pending < self.config.log_write_bytes {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.log_pending);
        let mut left = pending;
        while left > 0 {
            let room = self.config.segment_bytes - self.segment_bytes;
            if room == 0 {
                let Some(file) = self.extents.allocate(self.config.segment_bytes) else {
                    // Whoever deletes files next makes room.
                    if self.flushing.is_none() && self.compaction.is_none() {
                        return Err(self.full("a commit log segment", self.config.segment_bytes));
                    }
                    self.log_pending = left;
                    break;
                };
                self.segments.push_back(Segment { file, memtable: self.memtable_number });
                self.segment_bytes = 0;
                continue;
            }
            let count = left.min(room);
            let segment = self.segments.back_mut().expect("there is always one");
            segment.memtable = self.memtable_number;
            for (offset, bytes) in segment.file.places(self.segment_bytes, count) {
                plan.write(offset, bytes);
            }
            self.segment_bytes += count;
            left -= count;
        }
        self.log_writing = left < pending;
        if self.log_writing {
            plan.sync();
        }
        Ok(())
    }

    /// Writes a full memtable as a file.
    fn flush(&mut self, plan: &mut Plan) -> Result<(), String> {
        if let Some((file, keys)) = self.flushing.take() {
            self.tables.push(Table { file, keys });
            // Its log is not needed any more; the segment that is being written stays.
            let flushed = self.memtable_number - 1;
            while self.segments.len() > 1 && self.segments[0].memtable <= flushed {
                let segment = self.segments.pop_front().expect("there are two");
                self.delete(&segment.file, plan);
            }
            self.waiting.drain(..).for_each(|client| plan.wake(client));
            plan.wake(self.compactor());
            plan.wake(self.log_writer());
        }
        if !self.memtable_is_full() {
            return Ok(());
        }
        let bytes = self.memtable.len() as u64 * self.config.record_bytes;
        // Room for the log of the next memtable stays.
        let log = (LOGGED_MAX + 1) * self.config.memtable_bytes + self.config.segment_bytes;
        if self.extents.free_bytes() < bytes + log {
            return match self.compaction {
                Some(_) => Ok(()),
                None => Err(self.full("a flush", bytes)),
            };
        }
        let file = self.extents.allocate(bytes).ok_or_else(|| self.full("a flush", bytes))?;
        let mut keys = std::mem::take(&mut self.memtable);
        keys.sort_unstable();
        self.memtable_number += 1;
        self.memtable_logged = 0;
        let mut at = 0;
        while at < bytes {
            for (offset, bytes) in file.places(at, self.config.stream_bytes) {
                plan.write(offset, bytes);
            }
            plan.wait();
            at += self.config.stream_bytes;
        }
        plan.sync();
        self.flushing = Some((file, keys));
        self.waiting.drain(..).for_each(|client| plan.wake(client));
        Ok(())
    }

    fn full(&self, what: &str, bytes: u64) -> String {
        let free = self.extents.free_bytes();
        format!("{what} of {bytes} bytes, and {free} are free: give the store a larger part")
    }

    fn delete(&mut self, file: &File, plan: &mut Plan) {
        self.extents.release(file);
        if self.config.trims {
            file.pieces.iter().for_each(|&(offset, bytes)| plan.trim(offset, bytes));
        }
    }

    fn compact(&mut self, plan: &mut Plan) -> Result<(), String> {
        if let Some(compaction) = self.compaction.take() {
            let mut inputs = compaction.inputs;
            inputs.sort_unstable();
            for &index in inputs.iter().rev() {
                let table = self.tables.remove(index);
                self.delete(&table.file, plan);
            }
            let merged = Table { file: compaction.output, keys: compaction.keys };
            self.tables.insert(inputs[0], merged);
            // It may have waited for room.
            plan.wake(self.flusher());
            plan.wake(self.log_writer());
        }
        let Some(inputs) = self.choose() else { return Ok(()) };
        let mut keys: Vec<u32> =
            inputs.iter().flat_map(|&index| self.tables[index].keys.iter().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let bytes = keys.len() as u64 * self.config.record_bytes;
        let output =
            self.extents.allocate(bytes).ok_or_else(|| self.full("a compaction", bytes))?;
        let pieces = bytes.div_ceil(self.config.stream_bytes);
        for piece in 0..pieces {
            for &index in &inputs {
                let file = &self.tables[index].file;
                let (from, to) = (file.bytes * piece / pieces, file.bytes * (piece + 1) / pieces);
                for (offset, bytes) in file.places(from, to - from) {
                    plan.read(offset, bytes);
                }
            }
            plan.wait();
            for (offset, bytes) in
                output.places(piece * self.config.stream_bytes, self.config.stream_bytes)
            {
                plan.write(offset, bytes);
            }
        }
        plan.sync();
        self.compaction = Some(Compaction { inputs, output, keys });
        Ok(())
    }

    /// Neighbours in age of about one size; or all, if room runs out.
    fn choose(&self) -> Option<Vec<usize>> {
        let all: u64 = self.tables.iter().map(|table| table.file.bytes).sum();
        let output = all.min(self.config.data_bytes);
        let log = (LOGGED_MAX + 1) * self.config.memtable_bytes + self.config.segment_bytes;
        let reserve = output + 2 * (self.config.memtable_bytes + log);
        if self.tables.len() > 1 && self.extents.free_bytes() < reserve {
            return Some((0..self.tables.len()).collect());
        }
        let mut order: Vec<usize> = (0..self.tables.len()).collect();
        order.sort_by_key(|&index| (self.tables[index].file.bytes, index));
        for window in order.windows(self.config.merged) {
            let sizes = window.iter().map(|&index| self.tables[index].file.bytes);
            let mean = sizes.clone().sum::<u64>() / self.config.merged as u64;
            if sizes.clone().all(|bytes| bytes * 2 > mean && bytes * 2 < mean * 3) {
                return Some(window.to_vec());
            }
        }
        None
    }
}

/// Beside the record itself, in the commit log.
const ENTRY_BYTES: u64 = 100;

/// A memtable with so many times its size in the commit log is flushed, however few records it holds
/// (Cassandra's bound on all of the log).
const LOGGED_MAX: u64 = 4;

impl Program for Lsm {
    fn actors(&self) -> u32 {
        self.config.clients + 3
    }

    fn files(&self) -> Vec<(u64, u64)> {
        if self.config.trims {
            return self.tables[0].file.pieces.clone();
        }
        // All of the part: a file system that has been in use has written everywhere.
        vec![(0, self.config.part_bytes / EXTENT_BYTES * EXTENT_BYTES)]
    }

    fn plan(&mut self, actor: u32, plan: &mut Plan) -> Result<(), String> {
        if actor == self.log_writer() {
            self.write_log(plan)
        } else if actor == self.flusher() {
            self.flush(plan)
        } else if actor == self.compactor() {
            self.compact(plan)
        } else {
            self.operate(actor, plan);
            Ok(())
        }
    }
}
