//! Brings a simulated device into a state worth measuring: full once, and on request in the steady
//! state of random writes, which is detected and not assumed.

use super::{Fit, LaneOptions, Lanes, Pace, Part, ReplayError, run};
use crate::target::Target;
use crate::trace::{Op, Record, TraceError};
use flash::{BLOCK_BYTES, Random};

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
}

/// How it went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preconditioned {
    /// Write amplification of each overwrite of the whole device.
    pub rounds: Vec<f64>,
    /// The last two rounds agree; true if none was asked for.
    pub steady: bool,
}

/// Overwrites of the whole device at most.
pub const ROUNDS_MAX: usize = 12;
/// Two rounds agree if their write amplification differs by no more,
const WAF_SHARE: f64 = 0.02;
/// and their free bands by no more, or by one.
const FREE_SHARE: f64 = 0.05;

const FILL_BYTES: u64 = 256 << 10;
const DEPTH: u32 = 64;

/// Does it. `progress` is told the share that is done, as far as that can be foreseen.
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
    if wanted == Precondition::Fill || rules.erase_bytes > 0 {
        return Ok(Preconditioned { rounds: Vec::new(), steady: true });
    }
    let mut random = Random::new(seed);
    let blocks = bytes / BLOCK_BYTES as u64;
    let (mut rounds, mut free_before) = (Vec::new(), 0);
    while rounds.len() < ROUNDS_MAX {
        let before = target.counts();
        let records = (0..blocks)
            .map(|_| write(random.below(blocks) * BLOCK_BYTES as u64, BLOCK_BYTES as u64));
        write_all(target, records, &mut |done| progress(done as f64 / blocks as f64))?;
        let after = target.counts();
        let programmed = after.bytes_programmed - before.bytes_programmed;
        let waf = programmed as f64 / (after.bytes_written - before.bytes_written).max(1) as f64;
        let free = target.counter("bands_free");
        let steady = rounds.last().is_some_and(|&last| agree((last, free_before), (waf, free)));
        free_before = free;
        rounds.push(waf);
        if steady {
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
    let (tally, _) = run(target, &mut lanes, &fit, progress)?;
    match tally.first_error {
        Some(error) => Err(crate::Failure(format!("while preconditioning: {error}")).into()),
        None => Ok(()),
    }
}
