//! The requests of a recorded trace as a tenant: as many at a time as wanted, in their order, from
//! the start again after the last.

use super::{Plan, Program, Step};
use crate::replay::{Fit, FitKind, Survey};
use crate::target::IoKind;
use crate::trace::{Op, Options, Reader};
use flash::BLOCK_BYTES;
use std::path::Path;
use std::sync::Arc;

/// A trim of more than this part of the device wipes it.
const WIPE_PART: u64 = 10;

/// A request: what, the first byte, bytes; in whole blocks.
pub type Request = (IoKind, u64, u64);

/// The requests of a trace, laid together as `weir replay --fit pack` does, and the bytes they span.
/// Writes that must be durable are followed by a flush. A trim of much of the device is left out: a
/// new file system is made once in a device's life, not in every round. `Err` says what is wrong and what would mend
/// it.
pub fn requests(path: &Path) -> Result<(Vec<Request>, u64), String> {
    let options = Options { repair_time: true, ..Options::default() };
    let name = path.display();
    let open = || Reader::open(path, &options).map_err(|error| error.to_string());
    let survey = Survey::read(&mut open()?, FitKind::Pack, &mut |_| {});
    let survey = survey.map_err(|error| error.to_string())?;
    let bytes = survey.span_bytes(FitKind::Pack);
    let fit = Fit::new(&survey, FitKind::Pack, bytes).map_err(|error| error.to_string())?;
    let (mut requests, mut pieces) = (Vec::new(), Vec::new());
    for record in open()? {
        let record = record.map_err(|error| error.to_string())?;
        if record.op == Op::Flush {
            requests.push((IoKind::Flush, 0, 0));
            continue;
        }
        fit.pieces(&record, &mut pieces);
        let block = BLOCK_BYTES as u64;
        let trimmed: u64 = pieces.iter().map(|&(_, bytes)| bytes).sum();
        if record.op == Op::Trim && trimmed > bytes / WIPE_PART {
            continue;
        }
        for &(offset, bytes) in &pieces {
            let (kind, first, end) = match record.op {
                Op::Read => (IoKind::Read, offset / block, (offset + bytes).div_ceil(block)),
                Op::Write => (IoKind::Write, offset / block, (offset + bytes).div_ceil(block)),
                _ => (IoKind::Erase, offset.div_ceil(block), (offset + bytes) / block),
            };
            if end > first {
                requests.push((kind, first * block, (end - first) * block));
            }
        }
        if record.fua {
            requests.push((IoKind::Flush, 0, 0));
        }
    }
    if !requests.iter().any(|request| request.0 == IoKind::Write) {
        return Err(format!("{name}: writes nothing"));
    }
    Ok((requests, bytes))
}

/// See the head of this file.
pub struct Recorded {
    requests: Arc<Vec<Request>>,
    bytes: u64,
    next: usize,
    depth: u32,
}

impl Recorded {
    /// `requests` span `bytes`.
    pub fn new(requests: Arc<Vec<Request>>, bytes: u64, depth: u32) -> Self {
        Self { requests, bytes, next: 0, depth }
    }
}

impl Program for Recorded {
    fn actors(&self) -> u32 {
        self.depth
    }

    fn files(&self) -> Vec<(u64, u64)> {
        vec![(0, self.bytes)]
    }

    fn plan(&mut self, _: u32, plan: &mut Plan) -> Result<(), String> {
        let (kind, offset, bytes) = self.requests[self.next];
        self.next = (self.next + 1) % self.requests.len();
        plan.step(Step::Submit(kind, offset, bytes));
        plan.wait();
        plan.step(Step::Done);
        Ok(())
    }
}
