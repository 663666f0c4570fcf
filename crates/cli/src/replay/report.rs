//! What a replay came to, as a table and as JSON. Every figure of time says whose clock it is of.

use super::Plan;
use crate::output::{print, print_json, table};
use crate::size::{bytes, count};
use crate::trace::{ns_text, repairs_json, tell_repairs};
use crate::{End, Failure};
use lab::advise::span;
use lab::load::Latency;
use lab::replay::precondition::{Precondition, Preconditioned};
use lab::replay::{ByReason, FitKind, Tally, Wearing, behind_after_ns, fell_behind, overloaded};
use lab::trace::Op;
use serde_json::{Value, json};
use std::path::Path;

/// Whose time the figures are in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clock {
    /// Virtual time of emulated flash.
    Media,
    /// The wall clock.
    Host,
}

/// What a replay came to.
pub struct Outcome {
    pub clock: Clock,
    /// What answered.
    pub against: String,
    pub capacity: u64,
    pub elapsed_ns: u64,
    pub late_after_ns: u64,
    pub tally: Tally,
    /// Of emulated flash.
    pub device: Option<Device>,
}

/// What the emulated device did.
pub struct Device {
    pub preconditioned: Preconditioned,
    pub bytes_written: u64,
    pub bytes_programmed: u64,
    /// `None` if nothing was written.
    pub waf: Option<f64>,
    pub by_reason: Option<ByReason>,
    /// The drive as it is named; `None` if nothing was written, or nothing wears.
    pub wearing: Option<Wearing>,
    pub counters: Vec<(&'static str, u64)>,
    pub bands_free: u64,
    pub erase_count_max: u32,
}

/// Tells people, or writes JSON. `Bad` if requests failed.
pub fn tell(plan: &Plan<'_>, outcome: &Outcome) -> Result<End, Failure> {
    match plan.args.json.as_deref() {
        Some(path) if path == Path::new("-") => print_json(&as_json(plan, outcome)),
        path => {
            print(&as_text(plan, outcome));
            if let Some(path) = path {
                let json = serde_json::to_string_pretty(&as_json(plan, outcome));
                let json = json.expect("a JSON value has no odd keys");
                std::fs::write(path, format!("{json}\n")).map_err(|error| {
                    format!("{}: cannot be written: {error}: give another path", path.display())
                })?;
            }
        }
    }
    tell_repairs(&plan.survey.repairs);
    Ok(if outcome.tally.errors() == 0 { End::Good } else { End::Bad })
}

impl Clock {
    fn name(self) -> &'static str {
        match self {
            Self::Media => "media time",
            Self::Host => "host time",
        }
    }
}

/// How long the replay takes on a drive that keeps up.
fn wanted_ns(plan: &Plan<'_>) -> f64 {
    let pacing = &plan.args.pacing;
    (plan.survey.period_ns() * pacing.rounds) as f64 / pacing.load.unwrap_or(1.0)
}

/// How many times as long as the trace says the replay took, if that is longer than a drive takes that keeps up.
fn behind(plan: &Plan<'_>, outcome: &Outcome) -> Option<f64> {
    let (pacing, wanted_ns) = (&plan.args.pacing, wanted_ns(plan));
    // What a cap holds back is not the drive's.
    let is_open = pacing.is_open() && pacing.write_cap.is_none();
    let behind = is_open && outcome.elapsed_ns > behind_after_ns(wanted_ns);
    behind.then(|| outcome.elapsed_ns as f64 / wanted_ns.max(1.0))
}

/// What is to be known before all else: that the drive cannot carry the trace, or not always.
fn headline(plan: &Plan<'_>, outcome: &Outcome) -> Option<String> {
    let longest = || Op::ALL.iter().map(|&op| outcome.tally.kind(op).latency.max_ns()).max();
    match behind(plan, outcome) {
        Some(times) => Some(overloaded(times)),
        None if plan.args.pacing.is_open() => fell_behind(longest().unwrap_or(0)),
        None => None,
    }
}

/// Bytes a second that the trace writes, or as much of it as the drive took.
fn write_rate(plan: &Plan<'_>, outcome: &Outcome) -> f64 {
    let written = outcome.tally.kind(Op::Write).bytes as f64;
    written * 1e9 / wanted_ns(plan).max(1.0) / behind(plan, outcome).unwrap_or(1.0)
}

fn per_second(count: u64, outcome: &Outcome) -> f64 {
    count as f64 * 1e9 / outcome.elapsed_ns.max(1) as f64
}

fn as_text(plan: &Plan<'_>, outcome: &Outcome) -> String {
    let (args, tally) = (plan.args, &outcome.tally);
    let clock = outcome.clock.name();
    let mut text = format!(
        "{}: {} requests of {:.3} s, {} volumes\non {}\n{}; seed {}; spikes above {}\n\
         all times are {clock}\n\n",
        args.trace.display(),
        count(plan.survey.requests),
        plan.survey.duration_ns as f64 / 1e9,
        plan.survey.volumes(),
        outcome.against,
        args.pacing.text(),
        args.seed,
        ns_text(args.spike),
    );
    if let Some(headline) = headline(plan, outcome) {
        text = format!("{headline}\n\n{text}");
    }
    if behind(plan, outcome).is_none() {
        text.push_str(&latencies(outcome, args.spike));
    }
    let moved = tally.kind(Op::Read).bytes + tally.kind(Op::Write).bytes;
    text.push_str(&format!(
        "\n{} answered in {:.3} s of {clock}: {:.1} requests/s, {}/s\n",
        count(tally.requests()),
        outcome.elapsed_ns as f64 / 1e9,
        per_second(tally.requests(), outcome),
        bytes(per_second(moved, outcome) as u64),
    ));
    if args.pacing.is_open() {
        text.push_str(&format!(
            "{} issued late (by more than {}), the latest by {}\n",
            count(tally.late),
            ns_text(outcome.late_after_ns),
            ns_text(tally.late_max_ns),
        ));
    }
    let notes = [
        (tally.moved, "were moved to fit the device"),
        (tally.partial_writes, "writes covered a block in part"),
        (tally.errors(), "FAILED"),
    ];
    for (requests, note) in notes.iter().filter(|(requests, _)| *requests > 0) {
        text.push_str(&format!("{} {note}\n", count(*requests)));
    }
    if let Some(error) = &tally.first_error {
        text.push_str(&format!("first error: {error}\n"));
    }
    if let Some(device) = &outcome.device {
        text.push_str(&device_text(device, plan));
        let by_reason = device.by_reason.map(|by| by.text()).filter(|text| !text.is_empty());
        text.extend(by_reason.map(|by| format!("WAF       {by}\n")));
        let asks = if behind(plan, outcome).is_some() {
            "of this trace it takes"
        } else {
            "this trace writes"
        };
        let wear = |wearing| wear_text(&wearing, write_rate(plan, outcome), asks);
        text.extend(device.wearing.map(wear));
    }
    text
}

/// Years for which drives are rated.
const RATED_YEARS: f64 = 5.0;

fn wear_text(wearing: &Wearing, rate: f64, asks: &str) -> String {
    format!(
        "wear      the drive ({} of flash for {}, {} erases) takes {:.1} TB written, {:.2} times its size a day for {} \
         years; {asks} {:.2} a day, for which it lasts {}\n",
        bytes(wearing.flash_bytes),
        bytes(wearing.offered_bytes),
        count(wearing.endurance.into()),
        wearing.bytes_written_max() / 1e12,
        wearing.writes_per_day(RATED_YEARS),
        RATED_YEARS,
        wearing.asked_per_day(rate),
        span(wearing.years(rate)),
    )
}

fn wear_json(wearing: &Wearing, rate: f64) -> Value {
    json!({
        "flash_bytes": wearing.flash_bytes,
        "offered_bytes": wearing.offered_bytes,
        "endurance": wearing.endurance,
        "tbw_bytes": wearing.bytes_written_max(),
        "dwpd": wearing.writes_per_day(RATED_YEARS),
        "dwpd_years": RATED_YEARS,
        "dwpd_of_trace": wearing.asked_per_day(rate),
        "years": wearing.years(rate),
    })
}

fn latencies(outcome: &Outcome, spike_ns: u64) -> String {
    let head = ["", "requests", "mean", "p50", "p99", "p99.9", "p99.99", "max", "spikes"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for op in Op::ALL {
        let kind = outcome.tally.kind(op);
        if kind.requests == 0 {
            continue;
        }
        let latency = &kind.latency;
        let mut row =
            vec![op.name().into(), count(kind.requests), ns_text(latency.mean_ns() as u64)];
        row.extend(QUANTILES.iter().map(|&(_, share)| ns_text(latency.quantile_ns(share))));
        row.push(ns_text(latency.max_ns()));
        row.push(format!("{:.4} %", latency.share_over(spike_ns) * 100.0));
        rows.push(row);
    }
    table(&rows)
}

const QUANTILES: [(&str, f64); 4] =
    [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999), ("p9999_ns", 0.9999)];

fn device_text(device: &Device, plan: &Plan<'_>) -> String {
    let rounds = device.preconditioned.rounds.len();
    let before = match (plan.args.precondition, device.preconditioned.steady) {
        (Precondition::None, _) => {
            "empty at the start: reads of what was never written cost nothing".into()
        }
        (Precondition::Fill, _) => "filled at the start".into(),
        (Precondition::Random, true) => format!("in steady state after {rounds} overwrites"),
        (Precondition::Random, false) => format!("not in steady state after {rounds} overwrites"),
        (Precondition::Trace, true) => {
            format!("in steady state after {rounds} rounds of the trace")
        }
        (Precondition::Trace, false) => {
            format!("not in steady state after {rounds} rounds of the trace")
        }
    };
    let waf = device.waf.map_or("none".into(), |waf| format!("{waf:.3}"));
    let counters: Vec<String> = device
        .counters
        .iter()
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), count(*value)))
        .collect();
    format!(
        "\ndevice    {before}\nflash     {} written by the host, {} programmed: WAF {waf}\n\
         work      {}\n",
        bytes(device.bytes_written),
        bytes(device.bytes_programmed),
        if counters.is_empty() { "none".into() } else { counters.join(", ") },
    )
}

fn as_json(plan: &Plan<'_>, outcome: &Outcome) -> Value {
    let (args, tally) = (plan.args, &outcome.tally);
    let behind = behind(plan, outcome);
    let mut kinds = serde_json::Map::new();
    for op in Op::ALL {
        let kind = tally.kind(op);
        let value = json!({
            "requests": kind.requests,
            "bytes": kind.bytes,
            "errors": kind.errors,
            "latency": match behind {
                Some(_) => Value::Null,
                None => latency_json(&kind.latency, args.spike),
            },
        });
        kinds.insert(op.name().into(), value);
    }
    json!({
        "trace": args.trace.display().to_string(),
        "trace_requests": plan.survey.requests,
        "trace_duration_ns": plan.survey.duration_ns,
        "repairs": repairs_json(&plan.survey.repairs),
        "against": outcome.against,
        "capacity": outcome.capacity,
        "clock": match outcome.clock { Clock::Media => "media", Clock::Host => "host" },
        "seed": args.seed,
        "options": {
            "pacing": args.pacing.text(),
            "load": args.pacing.load.unwrap_or(1.0),
            "qd": args.pacing.qd,
            "read_threads": args.pacing.read_threads,
            "write_threads": args.pacing.write_threads,
            "write_cap_bytes_per_s": args.pacing.write_cap,
            "rounds": args.pacing.rounds,
            "spike_ns": args.spike,
            "fit": match args.fit {
                FitKind::Refuse => "refuse",
                FitKind::Wrap => "wrap",
                FitKind::Scale => "scale",
                FitKind::Pack => "pack",
            },
            "precondition": match args.precondition {
                Precondition::None => "none",
                Precondition::Fill => "fill",
                Precondition::Random => "random",
                Precondition::Trace => "trace",
            },
        },
        "headline": headline(plan, outcome),
        "drives_needed": behind,
        "elapsed_ns": outcome.elapsed_ns,
        "requests_per_s": per_second(tally.requests(), outcome),
        "kinds": kinds,
        "late": tally.late,
        "late_after_ns": outcome.late_after_ns,
        "late_max_ns": tally.late_max_ns,
        "moved": tally.moved,
        "partial_writes": tally.partial_writes,
        "errors": tally.errors(),
        "first_error": tally.first_error,
        "device": outcome.device.as_ref().map(|device| device_json(device, write_rate(plan, outcome))),
    })
}

fn latency_json(latency: &Latency, spike_ns: u64) -> Value {
    if latency.count() == 0 {
        return Value::Null;
    }
    let mut value = json!({
        "mean_ns": latency.mean_ns(),
        "max_ns": latency.max_ns(),
        "spike_share": latency.share_over(spike_ns),
    });
    for (name, share) in QUANTILES {
        value[name] = latency.quantile_ns(share).into();
    }
    value
}

fn device_json(device: &Device, rate: f64) -> Value {
    let by_reason = device.by_reason.map(|by| {
        let parts = by.parts().map(|(_, name, value)| (name.to_owned(), value.into()));
        Value::Object(parts.into_iter().collect())
    });
    json!({
        "waf_by_reason": by_reason,
        "wear": device.wearing.map(|wearing| wear_json(&wearing, rate)),
        "precondition_waf": device.preconditioned.rounds,
        "steady": device.preconditioned.steady,
        "bytes_written": device.bytes_written,
        "bytes_programmed": device.bytes_programmed,
        "waf": device.waf,
        "counters": device.counters.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        "bands_free": device.bands_free,
        "erase_count_max": device.erase_count_max,
    })
}
