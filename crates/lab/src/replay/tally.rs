//! What a replay saw: per kind of request how many, how large, how long, and how many failed.

use super::lanes::Issue;
use crate::load::Latency;
use crate::trace::Op;

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    /// Answered without an error.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they took, from when they were due (open loop) or issued (closed loop).
    pub latency: Latency,
    /// Failed; not part of the above.
    pub errors: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Tally {
    kinds: [Kind; 4],
    late_after_ns: u64,
    /// Requests issued later than they were due.
    pub late: u64,
    /// The most that one was late.
    pub late_max_ns: u64,
    /// Requests whose address was changed to fit the device.
    pub moved: u64,
    /// Writes that covered a block in part, for which the rest was read first.
    pub partial_writes: u64,
    /// The first error.
    pub first_error: Option<String>,
}

impl Tally {
    /// A request counts as late if it is issued more than `late_after_ns` after it was due.
    pub fn new(late_after_ns: u64) -> Self {
        Self {
            kinds: Default::default(),
            late_after_ns,
            late: 0,
            late_max_ns: 0,
            moved: 0,
            partial_writes: 0,
            first_error: None,
        }
    }

    /// A request goes out at `now_ns` of the replay.
    pub fn issued(&mut self, issue: &Issue, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(issue.due_ns);
        if late_ns > self.late_after_ns {
            self.late += 1;
            self.late_max_ns = self.late_max_ns.max(late_ns);
        }
    }

    /// A request was answered at `now_ns` of the replay.
    pub fn ended(&mut self, issue: &Issue, now_ns: u64, error: Option<String>) {
        let kind = &mut self.kinds[issue.record.op as usize];
        if let Some(error) = error {
            kind.errors += 1;
            let record = &issue.record;
            self.first_error.get_or_insert_with(|| {
                format!(
                    "{} of {} bytes at {}: {error}",
                    record.op.name(),
                    record.length,
                    record.offset
                )
            });
            return;
        }
        kind.requests += 1;
        kind.bytes += issue.record.length;
        kind.latency.add(now_ns.saturating_sub(issue.due_ns));
    }

    /// A request was moved to fit, or not.
    pub fn moved(&mut self, moved: bool) {
        self.moved += u64::from(moved);
    }

    /// The rest of a block is read for a write.
    pub fn partial(&mut self) {
        self.partial_writes += 1;
    }

    /// Requests of one kind.
    pub fn kind(&self, op: Op) -> &Kind {
        &self.kinds[op as usize]
    }

    /// All requests that were answered.
    pub fn requests(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.requests + kind.errors).sum()
    }

    /// All that failed.
    pub fn errors(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.errors).sum()
    }
}
