//! A trace, laid onto a device that is as large as what it touches.
//!
//! Invariants of the requests: each lies within the logical blocks, none is a wipe, its volume is
//! a rank below [`Facts::volumes`]; the changes are those of the requests, in their order but for the
//! turn at [`Recorded::warm`].

use super::AdviseError;
use crate::driver::REQUEST_BLOCKS_MAX;
use crate::replay::{Fit, FitKind, Survey};
use crate::streams::{Change, ChangeKind, Changes};
use crate::trace::{Op, Reader, Record, Repairs};
use flash::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Requests that are kept in memory, 48 bytes each; what a trace has beyond them is left out.
const REQUESTS_MAX: usize = 8 << 20;
/// A device has at least so many blocks, or it would have too few bands to choose from.
const BLOCKS_MIN: u32 = 4096;
/// Unless told otherwise, only a part of the address space is taken above so many blocks (8 GiB),
const SAMPLED_BLOCKS: u64 = 2 << 20;
/// or so many blocks written,
const SAMPLED_WRITES: u64 = 3 << 20;
/// but never less than this (512 MiB).
const SAMPLE_BLOCKS_MIN: u64 = 128 << 10;
/// So many capacities bring a device near its steady state; the rounds see to the rest.
const WARM_CAPACITIES: i64 = 2;
/// A single trim of a larger share of the space is a new file system: it would happen once in the
/// life of a device, not once in every round.
const WIPE_SHARE: f64 = 0.1;

/// What is known about the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Requests that were read.
    pub requests: u64,
    /// The trace goes on, but no more are kept.
    pub cut: bool,
    /// One in so many regions of the address space is taken.
    pub sample: u64,
    /// Of what was taken: requests by kind, in the order of [`Op::ALL`].
    pub kinds: [u64; 4],
    /// Blocks that are written.
    pub blocks_written: u64,
    /// Bytes of writes, before they are widened to whole blocks.
    pub bytes_written: u64,
    /// From the first to the last.
    pub duration_ns: u64,
    /// Volumes.
    pub volumes: usize,
    /// Where the last volume would end if nothing was packed.
    pub span_bytes: u64,
    /// Bytes of the extents that are read or written.
    pub touched_bytes: u64,
    /// Bytes of the device they are packed on.
    pub logical_bytes: u64,
    /// Trims left out because they wipe much of the device.
    pub wipes: u64,
    /// What had to be mended.
    pub repairs: Repairs,
}

impl Facts {
    /// Bytes that the trace writes in a second, all of its address space.
    pub fn write_rate(&self) -> f64 {
        let bytes = (self.blocks_written * BLOCK * self.sample) as f64;
        bytes * 1e9 / self.duration_ns.max(1) as f64
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Placed on the device, in order.
    pub requests: Vec<Record>,
    /// Their writes and trims, in whole blocks; the last ones, which warm a device up, come first.
    pub changes: Changes,
    /// How many those are; all, if the trace does not write so much.
    pub warm: u64,
    /// Where they come from.
    pub facts: Facts,
    /// What laid them out.
    survey: Survey,
}

impl Recorded {
    /// Reads a trace to its end. `sample` takes one in so many regions of the address space; `None`
    /// chooses. `progress` is called now and then.
    ///
    /// # Errors
    /// A trace that cannot be read, is empty, or writes nothing.
    pub fn read(
        reader: &mut Reader,
        sample: Option<u64>,
        progress: &mut dyn FnMut(&Reader),
    ) -> Result<Self, AdviseError> {
        let (mut records, mut cut) = (Vec::new(), false);
        while let Some(record) = reader.next() {
            let record = record?;
            if records.len() >= REQUESTS_MAX {
                cut = true;
                break;
            }
            records.push(record);
            if records.len().is_multiple_of(4096) {
                progress(reader);
            }
        }
        let facts = Facts {
            requests: records.len() as u64,
            cut,
            duration_ns: records.last().map_or(0, |record| record.time_ns),
            repairs: reader.repairs().clone(),
            ..Facts::default()
        };
        Self::of_records(records, sample, facts)
    }

    fn of_records(
        mut records: Vec<Record>,
        sample: Option<u64>,
        mut facts: Facts,
    ) -> Result<Self, AdviseError> {
        if records.is_empty() {
            return Err(AdviseError::Empty);
        }
        let mut survey = survey_of(&records);
        facts.sample = sample.unwrap_or_else(|| sample_for(&records, &survey)).max(1);
        if facts.sample > 1 {
            records.retain(|record| record.is_sampled(facts.sample));
            survey = survey_of(&records);
        }
        if !records.iter().any(|record| record.op == Op::Write) {
            return Err(if facts.sample > 1 {
                AdviseError::SampleTooSmall { share: facts.sample }
            } else {
                AdviseError::NoWrites { requests: facts.requests }
            });
        }
        facts.volumes = survey.volumes();
        facts.span_bytes = survey.span_bytes(FitKind::Refuse);
        facts.touched_bytes = survey.span_bytes(FitKind::Pack);
        let blocks = facts.touched_bytes / BLOCK;
        if blocks >= u64::from(u32::MAX) / 2 {
            return Err(AdviseError::TooLarge { bytes: facts.touched_bytes });
        }
        let logical_blocks = (blocks as u32).max(BLOCKS_MIN);
        facts.logical_bytes = u64::from(logical_blocks) * BLOCK;
        let fit = Fit::new(&survey, FitKind::Pack, facts.logical_bytes)?;
        place(&mut records, &fit, &mut facts);
        let list: Vec<Change> = records.iter().flat_map(changes_of).collect();
        let mut fill_handles = vec![0; logical_blocks as usize];
        for change in &list {
            let first = change.lba as usize;
            fill_handles[first..first + usize::from(change.blocks)].fill(change.handle);
        }
        let mut changes = Changes { logical_blocks, fill_handles, list };
        facts.blocks_written = changes.blocks_written();
        let warm = warming(&changes);
        let before = changes.list.len() - warm;
        changes.list.rotate_left(before);
        Ok(Self { requests: records, changes, warm: warm as u64, facts, survey })
    }

    /// The same on a device whose cache survives a power cut: it has done what a flush or FUA asks for.
    pub fn without_flushes(mut self) -> Self {
        self.requests.retain(|record| record.op != Op::Flush);
        self.requests.iter_mut().for_each(|record| record.fua = false);
        self
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.facts.logical_bytes
    }

    /// How many times the requests make a round, which writes the device.
    pub fn passes(&self) -> u64 {
        self.survey.passes_of_round(self.bytes()).unwrap_or(1)
    }

    /// From the begin of one pass to that of the next.
    pub fn period_ns(&self) -> u64 {
        self.survey.period_ns()
    }
}

fn survey_of(records: &[Record]) -> Survey {
    let mut survey = Survey::default();
    records.iter().for_each(|record| survey.add(record, None, FitKind::Pack));
    survey
}

/// Changes at the end that warm a device up, or all.
fn warming(changes: &Changes) -> usize {
    let mut left = i64::from(changes.logical_blocks) * WARM_CAPACITIES;
    let before = changes.list.iter().rposition(|change| {
        left -= if change.kind == ChangeKind::Write { i64::from(change.blocks) } else { 0 };
        left <= 0
    });
    changes.list.len() - before.unwrap_or(0)
}

/// One in how many regions makes a trace small enough to be gone through a dozen times.
fn sample_for(records: &[Record], survey: &Survey) -> u64 {
    let writes = records.iter().filter(|record| record.op == Op::Write);
    let written: u64 = writes.map(|record| record.length.div_ceil(BLOCK)).sum();
    let touched = survey.span_bytes(FitKind::Pack) / BLOCK;
    let wanted = touched.div_ceil(SAMPLED_BLOCKS).max(written.div_ceil(SAMPLED_WRITES));
    wanted.min(touched / SAMPLE_BLOCKS_MIN).max(1)
}

/// Moves each record to where it lies on the device and numbers the volumes by rank.
fn place(records: &mut Vec<Record>, fit: &Fit, facts: &mut Facts) {
    let mut volumes: Vec<u32> = records.iter().map(|record| record.volume).collect();
    volumes.sort_unstable();
    volumes.dedup();
    let mut pieces = Vec::new();
    records.retain_mut(|record| {
        if record.op != Op::Flush {
            fit.pieces(record, &mut pieces);
            // What is touched lies in the order of the trace, so what was in one piece still is; of a
            // trim only what something else touches is left, maybe nothing.
            let Some((&(first, _), &(last, length))) = pieces.first().zip(pieces.last()) else {
                return false;
            };
            (record.offset, record.length) = (first, last + length - first);
            let wipe = (facts.logical_bytes as f64 * WIPE_SHARE) as u64;
            if record.op == Op::Trim && record.length > wipe {
                facts.wipes += 1;
                return false;
            }
            facts.bytes_written += if record.op == Op::Write { record.length } else { 0 };
        }
        facts.kinds[record.op as usize] += 1;
        record.volume = volumes.binary_search(&record.volume).unwrap_or(0) as u32;
        true
    });
}

/// A write takes the blocks that it touches, a trim those that it covers.
fn changes_of(record: &Record) -> impl Iterator<Item = Change> + use<> {
    let (kind, first, end) = match record.op {
        Op::Write => (ChangeKind::Write, record.offset / BLOCK, record.end().div_ceil(BLOCK)),
        Op::Trim => (ChangeKind::Trim, record.offset.div_ceil(BLOCK), record.end() / BLOCK),
        Op::Read | Op::Flush => (ChangeKind::Trim, 0, 0),
    };
    let handle = record.volume as u8;
    (first..end.max(first)).step_by(REQUEST_BLOCKS_MAX as usize).map(move |lba| {
        let blocks = (end - lba).min(u64::from(REQUEST_BLOCKS_MAX)) as u16;
        Change { lba: lba as u32, blocks, kind, handle }
    })
}
