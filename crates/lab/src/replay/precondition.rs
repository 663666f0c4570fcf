//! Brings a simulated device into a state worth measuring: full once, and on request in the steady
//! state of random writes or of a trace, which is detected and not assumed.

use super::{Fit, LaneOptions, Lanes, Pace, Part, ReplayError, Tally, run};
use crate::target::Target;
use crate::trace::{Op, Record, TraceError};
use flash::{BLOCK_BYTES, Random};
use std::ops::RangeInclusive;

/// What a device has been through before the measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Precondition {
    /// Nothing: it is empty, and reads of what was never written cost nothing.
    None,
    /// Every block was written once, in order.
    Fill,
    /// After that, random writes of 4 KiB until write amplification and free space no longer change
    /// over a full overwrite.
    Random,
    /// After that, the trace again and again, until rounds that write the capacity no longer differ.
    Trace,
}

/// How it went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preconditioned {
    /// Write amplification of each overwrite of the whole device.
    pub rounds: Vec<f64>,
    /// The last two rounds agree; true if none was asked for.
    pub steady: bool,
}

/// Overwrites of the whole device, or rounds of a trace that write as much, at most.
pub const ROUNDS_MAX: usize = 12;
/// Two rounds agree if their write amplification differs by no more,
const WAF_SHARE: f64 = 0.02;
/// and their free bands by no more, or by one.
const FREE_SHARE: f64 = 0.05;

const FILL_BYTES: u64 = 256 << 10;
const DEPTH: u32 = 64;

/// Does it, but that of a trace only fills: the rest is [`precondition_by_trace`]. `progress` is told the share that is done, as far as that can be foreseen.
pub fn precondition(
    target: &mut dyn Target,
    wanted: Precondition,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<Preconditioned, ReplayError> {
    let (bytes, rules) = (target.bytes(), target.rules());
    if wanted == Precondition::None {
        return Ok(Preconditioned { rounds: Vec::new(), steady: true });
    }
    let fill_bytes = FILL_BYTES.max(rules.write_bytes);
    let fills = bytes.div_ceil(fill_bytes);
    let records = (0..fills).map(|i| {
        let offset = i * fill_bytes;
        write(offset, fill_bytes.min(bytes - offset))
    });
    write_all(target, records, &mut |done| progress(done as f64 / fills as f64))?;
    // Nothing is ever moved on raw units: written once is as steady as it gets.
    if wanted != Precondition::Random || rules.erase_bytes > 0 {
        return Ok(Preconditioned { rounds: Vec::new(), steady: true });
    }
    let mut random = Random::new(seed);
    let blocks = bytes / BLOCK_BYTES as u64;
    until_steady(target, 1..=ROUNDS_MAX, &mut |target| {
        let records = (0..blocks)
            .map(|_| write(random.below(blocks) * BLOCK_BYTES as u64, BLOCK_BYTES as u64));
        write_all(target, records, &mut |done| progress(done as f64 / blocks as f64))
    })
}

/// Fills the device and plays rounds of a trace until it is in their steady state: at least as many as
/// `counts` begins with, at most as many as it ends with. `round` gives what is played in one of them;
/// it should write the capacity, as a difference over less says little. `progress` is told how many
/// requests of the present round are done.
pub fn precondition_by_trace<'a>(
    target: &mut dyn Target,
    fit: &Fit,
    counts: RangeInclusive<usize>,
    round: &mut dyn FnMut() -> Lanes<'a>,
    progress: &mut dyn FnMut(u64),
) -> Result<Preconditioned, ReplayError> {
    precondition(target, Precondition::Fill, 0, &mut |_| {})?;
    until_steady(target, counts, &mut |target| {
        all_done(run(target, &mut round(), fit, progress)?.0)
    })
}

/// Rounds of writes until two in a row agree.
fn until_steady(
    target: &mut dyn Target,
    counts: RangeInclusive<usize>,
    round: &mut dyn FnMut(&mut dyn Target) -> Result<(), ReplayError>,
) -> Result<Preconditioned, ReplayError> {
    let (mut rounds, mut free_before) = (Vec::new(), 0);
    while rounds.len() < *counts.end() {
        let before = target.counts();
        round(target)?;
        let waf = target.counts().since(&before).waf();
        let free = target.counter("bands_free");
        let steady = rounds.last().is_some_and(|&last| agree((last, free_before), (waf, free)));
        free_before = free;
        rounds.push(waf);
        if steady && rounds.len() >= *counts.start() {
            return Ok(Preconditioned { rounds, steady });
        }
    }
    Ok(Preconditioned { rounds, steady: false })
}

/// Whether a device no longer changes: two rounds in a row, each its write amplification and the
/// free bands at its end, are alike.
pub fn agree((waf_before, free_before): (f64, u64), (waf, free): (f64, u64)) -> bool {
    let free_change = free.abs_diff(free_before);
    (waf / waf_before - 1.0).abs() <= WAF_SHARE
        && (free_change <= 1 || free_change as f64 <= FREE_SHARE * free_before as f64)
}

fn write(offset: u64, length: u64) -> Result<Record, TraceError> {
    let (op, fua) = (Op::Write, false);
    Ok(Record { time_ns: 0, op, fua, offset, length, volume: 0, response_ns: None })
}

fn write_all<'a>(
    target: &mut dyn Target,
    records: impl Iterator<Item = Result<Record, TraceError>> + 'a,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ReplayError> {
    let options = LaneOptions { part: Part::All, pace: Pace::Depth(DEPTH), write_cap: None };
    let mut lanes = Lanes::new(vec![(options, Box::new(records))]);
    let fit = Fit::whole(target.bytes());
    all_done(run(target, &mut lanes, &fit, progress)?.0)
}

/// The device did all that it was asked for.
fn all_done(tally: Tally) -> Result<(), ReplayError> {
    match tally.first_error {
        Some(error) => Err(crate::Failure(format!("while preconditioning: {error}")).into()),
        None => Ok(()),
    }
}
