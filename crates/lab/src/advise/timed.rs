//! What a combination does on the device: write amplification and latencies of one and the same rounds of
//! the trace, with its reads, flushes and times. This is what `weir replay` does with the device, by the same
//! code: filled, brought to the steady state of the trace, and measured over one round.

use super::recorded::Recorded;
use crate::driver::Failure;
use crate::load::Latency;
use crate::replay::precondition::{Preconditioned, precondition_by_trace};
use crate::replay::{
    ByReason, Fit, LaneOptions, Lanes, Pace, Part, Programmed, ReplayError, behind_after_ns,
    run_until,
};
use crate::target::Target;
use crate::trace::{Op, Record, TraceError};
use std::ops::RangeInclusive;

/// Requests in flight that the open loop may pile up.
const IN_FLIGHT_MAX: u32 = 16384;

/// What was measured over a round of the trace.
#[derive(Clone, Debug)]
pub struct Timed {
    /// From when each read was due.
    pub reads: Latency,
    /// The same of writes; one with FUA ends with its flush.
    pub writes: Latency,
    /// It took no longer than the trace says, or hardly: the device keeps up with it.
    pub keeps_up: bool,
    /// Slots programmed for any reason, by slots written for the host.
    pub waf: f64,
    /// The same by reason.
    pub by_reason: ByReason,
    /// How long the round took.
    pub took_ns: u64,
    /// The rounds before.
    pub before: Preconditioned,
    /// Bytes of flash of the device.
    pub flash_bytes: u64,
    /// Bytes written by the host in a second of media time.
    pub bytes_per_s: f64,
}

impl Timed {
    /// Slots written for the host or relocated, by slots written for the host.
    pub fn waf_by_gc(&self) -> f64 {
        1.0 + self.by_reason.gc + self.by_reason.upkeep
    }

    /// Slots programmed beyond the host's and GC's, by slots written: padding and checkpoints.
    pub fn overhead(&self) -> f64 {
        (self.waf - self.waf_by_gc()).max(0.0)
    }
}

/// A device with policies and over-provisioning of its own.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The stream policy, with parameters.
    pub stream: &'a str,
    /// The victim policy.
    pub victim: &'a str,
    /// Physical above logical capacity, in percent.
    pub op_percent: f64,
    /// Of policies that draw.
    pub seed: u64,
}

/// When the requests go out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Playing {
    /// When the trace says, so many times as fast.
    Timestamps(f64),
    /// So many in flight.
    Depth(u32),
}

/// How a device is measured.
#[derive(Clone, Debug)]
pub struct Pass {
    /// How the trace is played.
    pub playing: Playing,
    /// Ends as soon as it is clear that the device cannot keep up.
    pub gives_up: bool,
    /// Rounds until the steady state, at least and at most.
    pub rounds: RangeInclusive<usize>,
}

/// Fills the device, brings it to the steady state of the trace, and measures a round. `progress` is told how
/// many requests were done since it was told last.
pub fn measure(
    target: &mut dyn Target,
    trace: &Recorded,
    pass: Pass,
    progress: &mut dyn FnMut(u64),
) -> Result<Timed, Failure> {
    let failed = |error: ReplayError| Failure(error.to_string());
    let span_ns = (trace.period_ns() * trace.passes()) as f64;
    let (pace, behind_ns) = match pass.playing {
        Playing::Timestamps(load) => {
            let pace = Pace::Timestamps { load, in_flight_max: IN_FLIGHT_MAX };
            (pace, behind_after_ns(span_ns / load))
        }
        Playing::Depth(depth) => (Pace::Depth(depth), u64::MAX),
    };
    let fit = Fit::whole(target.bytes());
    let round = || lanes(trace, pace);
    let mut told = 0;
    // Each round counts from its beginning.
    let mut tell = |done: u64| {
        let before = std::mem::replace(&mut told, done);
        progress(if done < before { done } else { done - before });
    };
    let before = precondition_by_trace(target, &fit, pass.rounds, &mut &round, &mut tell);
    let before = before.map_err(failed)?;
    let (counts, programmed) = (target.counts(), Programmed::of(target));
    let end_ns = if pass.gives_up { behind_ns } else { u64::MAX };
    let ran = run_until(end_ns, target, &mut round(), &fit, &mut tell);
    let (tally, took_ns) = ran.map_err(failed)?;
    if let Some(error) = tally.first_error {
        return Err(Failure(error));
    }
    let counts = target.counts().since(&counts);
    let host = counts.bytes_written.max(1) as f64;
    Ok(Timed {
        reads: tally.kind(Op::Read).latency.clone(),
        writes: tally.kind(Op::Write).latency.clone(),
        keeps_up: took_ns <= behind_ns,
        waf: counts.waf(),
        by_reason: Programmed::of(target).since(&programmed).unwrap_or_default(),
        took_ns,
        before,
        flash_bytes: target.flash_bytes(),
        bytes_per_s: host * 1e9 / took_ns.max(1) as f64,
    })
}

/// A round of the trace.
fn lanes(trace: &Recorded, pace: Pace) -> Lanes<'_> {
    let period_ns = trace.period_ns();
    let records = (0..trace.passes()).flat_map(move |pass| {
        let later =
            move |record: &Record| Record { time_ns: record.time_ns + pass * period_ns, ..*record };
        trace.requests.iter().map(later).map(Ok::<_, TraceError>)
    });
    let options = LaneOptions { part: Part::All, pace, write_cap: None };
    Lanes::new(vec![(options, Box::new(records))])
}
