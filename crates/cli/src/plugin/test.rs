//! `weir plugin test`: loads a module as the server does, then runs it in the lab on the production
//! FTL, and the built-in policies for the same decision, on the same writes; and tells what a call
//! costs.

use crate::bench::policy_cost;
use crate::output::{Progress, print, print_json, table};
use crate::size::bytes;
use crate::trace::Reading;
use crate::{End, Failure};
use ftl::policy::catalogue;
use ftl::{Ftl, Switch};
use lab::replay::precondition::{Precondition, precondition};
use lab::replay::{Fit, FitKind, LaneOptions, Lanes, Looped, Pace, Part, Records, Survey};
use lab::streams::StreamRun;
use lab::target::{SimTarget, Target};
use lab::trace::{Op, Reader};
use lab::workload::Pattern;
use plugin::{Kind, Module};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Requests in flight.
const DEPTH: u32 = 32;
/// A trace goes round until it has written the device so often, or so many times.
const OVERWRITES: u64 = 4;
const ROUNDS_MAX: u64 = 64;
/// A device for a trace has about so many bands.
const BANDS: u32 = 512;

#[derive(clap::Args)]
pub struct Args {
    /// The module
    #[arg(value_name = "FILE.wasm")]
    file: PathBuf,
    /// Run on the writes and trims of this trace, instead of a built-in workload
    #[arg(long, value_name = "TRACE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Without a trace: how skewed the writes are; 0 is uniform
    #[arg(long, value_name = "THETA", default_value_t = 1.0, conflicts_with = "trace")]
    zipf: f64,
    /// Flash beyond the capacity, in percent of it
    #[arg(long, value_name = "PERCENT", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(5..=100))]
    op_percent: u32,
    /// The victim policy, where the module decides something else
    #[arg(long, value_name = "NAME", default_value = "cost-benefit")]
    victim: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a policy came to.
struct Row {
    policy: String,
    waf: f64,
    /// It was replaced: why.
    broke: Option<String>,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    if !(0.0..=3.0).contains(&args.zipf) {
        return Err(format!("--zipf {}: must be from 0 to 3, for example 0.99", args.zipf));
    }
    let shown = args.file.display();
    let code = serve::policies::read_module(&args.file)?;
    let module = Module::load("tested", &code).map_err(|error| format!("{shown}: {error}"))?;
    let load = Load::of(args)?;
    let mut results = Vec::new();
    let mut costs = Vec::new();
    let mut broke = false;
    for &kind in module.kinds() {
        let rows = compare(&load, &module, kind)?;
        broke |= rows.iter().any(|row| row.broke.is_some());
        let cost = policy_cost::of_module(&module, kind);
        if args.json {
            results.push(rows_json(kind, &rows));
            let ns = cost.as_ref().ok().map(|cost| cost.ns);
            let told = cost.as_ref().map_or_else(String::clone, |cost| cost.call.clone());
            costs.push(json!({ "decision": kind.decision(), "call": told, "ns": ns }));
        } else {
            let checked = "checked: exports, bounds, the same answer to the same view";
            print(&format!("{shown}: {} bytes, decides {kind}; {checked}\n", module.bytes()));
            print(&format!("WAF on {}\n{}", load.description, rows_text(&rows)));
            print(&match &cost {
                Ok(cost) => format!("a call takes {:.0} ns: {}\n", cost.ns, cost.call),
                Err(why) => format!("what a call costs was not measured: {why}\n"),
            });
        }
    }
    if args.json {
        print_json(&json!({
            "file": shown.to_string(),
            "bytes": module.bytes(),
            "workload": load.description,
            "decisions": results,
            "costs": costs,
        }));
    }
    Ok(if broke { End::Bad } else { End::Good })
}

fn rows_json(kind: Kind, rows: &[Row]) -> Value {
    let row = |row: &Row| json!({ "policy": row.policy, "waf": row.waf, "broke": row.broke });
    json!({ "decision": kind.decision(), "policies": rows.iter().map(row).collect::<Vec<_>>() })
}

fn rows_text(rows: &[Row]) -> String {
    let row = |row: &Row| {
        let broke = row.broke.as_ref().map(|why| format!("REPLACED: {why}"));
        vec![format!("  {}", row.policy), format!("{:.3}", row.waf), broke.unwrap_or_default()]
    };
    table(&rows.iter().map(row).collect::<Vec<_>>())
}

/// The module, then each built-in policy for the decision, best first.
fn compare(load: &Load<'_>, module: &Module, kind: Kind) -> Result<Vec<Row>, Failure> {
    let decision = kind.decision();
    let mut progress = Progress::new("running the policies");
    let mut rows = vec![load.measure("yours", &|ftl| {
        let shapes = ftl.stream_shapes(decision)?;
        let chosen = shapes.iter().map(|&shape| module.make(decision, shape));
        let chosen = chosen.collect::<Result<_, _>>()?;
        let (now, name, by) = (flash::Instant(0), "wasm:tested", "weir plugin test");
        ftl.switch_policy(Switch { now, decision, name, by, chosen }).map(drop)
    })?];
    for entry in catalogue::of(decision) {
        progress.tell(entry.name);
        rows.push(load.measure(entry.name, &|ftl| ftl.set_policy(decision, entry.name))?);
    }
    rows.sort_by(|one, other| one.waf.total_cmp(&other.waf));
    Ok(rows)
}

/// What is written, on which device.
struct Load<'a> {
    run: StreamRun,
    recorded: Option<Recorded<'a>>,
    description: String,
}

struct Recorded<'a> {
    args: &'a Args,
    trace: &'a PathBuf,
    survey: Survey,
    rounds: u64,
}

impl<'a> Load<'a> {
    fn of(args: &'a Args) -> Result<Self, Failure> {
        let op_percent = args.op_percent.into();
        let victim = args.victim.clone();
        let Some(trace) = &args.trace else {
            let pattern = match args.zipf {
                0.0 => Pattern::Uniform,
                theta => Pattern::Zipf { theta },
            };
            let base = StreamRun { bands: BANDS, overwrites: 5.0, ..StreamRun::default() };
            let run = StreamRun { pattern, op_percent, victim, ..base.scaled(8) };
            let description = format!(
                "4 KiB random writes, Zipf {}, {} bands of {} blocks, {} % over-provisioning, written \
                 {} times over",
                args.zipf, run.bands, run.slots_per_band, run.op_percent, run.overwrites
            );
            return Ok(Self { run, recorded: None, description });
        };
        let mut reader = args.reading.open(trace)?;
        let survey = Survey::read(&mut reader, FitKind::Pack, &mut |_| {});
        let survey = survey.map_err(|error| error.to_string())?;
        let write_bytes = write_bytes(args, trace)?;
        if write_bytes == 0 {
            return Err(format!(
                "{}: it writes nothing: no policy has anything to do",
                trace.display()
            ));
        }
        let span = survey.span_bytes(FitKind::Pack);
        let blocks = u32::try_from(span / flash::BLOCK_BYTES as u64).ok().filter(|&n| n < 1 << 26);
        let blocks = blocks.ok_or_else(|| {
            format!("{}: touches {}; at most 256 GiB can be tried", trace.display(), bytes(span))
        })?;
        let slots_per_band = (blocks / BANDS).next_power_of_two().clamp(64, 1024);
        let bands = blocks.div_ceil(slots_per_band).max(64);
        let run = StreamRun { bands, slots_per_band, op_percent, victim, ..StreamRun::default() };
        let rounds = (OVERWRITES * span).div_ceil(write_bytes).clamp(1, ROUNDS_MAX);
        let description = format!(
            "{}, packed to {}, {rounds} rounds, {bands} bands of {slots_per_band} blocks, {op_percent} % \
             over-provisioning",
            trace.display(),
            bytes(span)
        );
        let recorded = Some(Recorded { args, trace, survey, rounds });
        Ok(Self { run, recorded, description })
    }

    /// The run with what `put` puts in charge.
    fn measure(
        &self,
        policy: &str,
        put: &dyn Fn(&mut Ftl) -> Result<(), String>,
    ) -> Result<Row, Failure> {
        let (waf, status) = match &self.recorded {
            None => {
                let measured = self.run.measure_and_look("none", put);
                let (waf, status) = measured.map_err(|failure| format!("{policy}: {failure}"))?;
                (waf.waf_all, status)
            }
            Some(recorded) => recorded.measure(&self.run, put)?,
        };
        let broke = status.switches.iter().find(|change| change.why.starts_with("it broke"));
        Ok(Row { policy: policy.into(), waf, broke: broke.map(|change| change.why.clone()) })
    }
}

/// Bytes that the trace writes in one round.
fn write_bytes(args: &Args, trace: &Path) -> Result<u64, Failure> {
    let mut bytes = 0u64;
    for record in args.reading.open(trace)? {
        let record = record.map_err(|error| error.to_string())?;
        if record.op == Op::Write {
            bytes = bytes.saturating_add(record.end() - record.offset);
        }
    }
    Ok(bytes)
}

impl Recorded<'_> {
    fn measure(
        &self,
        run: &StreamRun,
        put: &dyn Fn(&mut Ftl) -> Result<(), String>,
    ) -> Result<(f64, ftl::Status), Failure> {
        let text = |error: lab::Failure| error.to_string();
        let mut sim = run.device("none").map_err(text)?;
        put(sim.ftl_mut())?;
        let mut target = SimTarget::new(sim);
        precondition(&mut target, Precondition::Fill, run.seed, &mut |_| {})
            .map_err(|error| error.to_string())?;
        let fit = Fit::new(&self.survey, FitKind::Pack, target.bytes());
        let fit = fit.map_err(|error| format!("{}: {error}", self.trace.display()))?;
        let reading = self.args.reading.options();
        let open = move || Reader::open(self.trace, &reading);
        let looped = Looped::new(open, self.rounds, self.survey.period_ns());
        let options = LaneOptions { part: Part::Others, pace: Pace::Depth(DEPTH), write_cap: None };
        let mut lanes = Lanes::new(vec![(options, Box::new(looped) as Records<'_>)]);
        let before = target.counts();
        let ran = lab::replay::run(&mut target, &mut lanes, &fit, &mut |_| {});
        ran.map_err(|error| error.to_string())?;
        let after = target.counts();
        let written = (after.bytes_written - before.bytes_written).max(1);
        let waf = (after.bytes_programmed - before.bytes_programmed) as f64 / written as f64;
        Ok((waf, target.sim().ftl().status()))
    }
}
