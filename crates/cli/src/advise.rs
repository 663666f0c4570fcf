//! `weir advise`: a trace of the user's own over stream policies, victim policies and
//! over-provisioning; what to choose, why, and how far it is from perfect knowledge. How it is
//! measured: docs/advise.md.

use crate::devices::Dies;
use crate::output::{Progress, print, print_json, table};
use crate::size::{bytes, count};
use crate::trace::{Reading, ns_text, repairs_json, share, tell_repairs};
use crate::{End, Failure};
use ftl::PolicyNames;
use ftl::policy::stream::{self, STREAMS, Shape};
use lab::advise::{
    Advice, Advised, Drive, Options, Playing, Recorded, Row, advise, choose, how, span,
};
use lab::load::Latency;
use lab::replay::ByReason;
use nand::Profile;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir advise pgbench.csv.gz --device tlc\n  \
    weir advise web.csv.gz --device intel-320 --op 7,15,28 --report advice.html\n  \
    weir advise web.csv.gz --device tlc --streams none,sepbit,sfr:handles=7 --gc greedy,cost-benefit\n  \
    weir advise web.csv.gz --device tlc --json | jq .choice\n\n\
    The device is fitted to what the trace touches. Every combination runs on the production FTL; \
    docs/advise.md tells what is measured how. The same trace, options and seed give the same bytes.")]
pub struct Args {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// A device (`weir lab devices` lists them), a flash profile, or a .toml file of either
    #[arg(long, value_name = "NAME")]
    device: String,
    #[command(flatten)]
    dies: Dies,
    /// What the drive offers, such as 480GiB [default: of a device what its flash allows, of a flash profile
    /// 1TiB]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    capacity: Option<u64>,
    /// Stream policies, with parameters if wanted [default: every one, hint if there are several
    /// volumes to tell apart]
    #[arg(long, value_name = "NAME,...")]
    streams: Option<String>,
    /// Victim policies: greedy, cost-benefit, age-adaptive, d-choices:N, fifo
    #[arg(
        long = "gc",
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "greedy,cost-benefit"
    )]
    victims: Vec<String>,
    /// Over-provisioning: flash beyond the logical capacity, in percent of that
    #[arg(long = "op", value_name = "PERCENT,...", value_delimiter = ',', value_parser = percent,
        default_value = "7,28")]
    op_percents: Vec<f64>,
    /// Placement handles that a policy may use in all, for the host's writes and for GC's
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u8).range(2..=32))]
    budget_handles: u8,
    /// Write amplification counts once the trace has written the device so many times
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = overwrites)]
    overwrites: f64,
    /// So many times faster than recorded, such as 3x
    #[arg(long, value_name = "X", value_parser = crate::replay::load, default_value = "1x",
        conflicts_with = "qd")]
    load: f64,
    /// In a closed loop: so many in flight [default: by the timestamps, or 16 where
    /// the device cannot keep up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    qd: Option<u32>,
    /// The device's cache survives a power cut: flushes and FUA cost nothing
    #[arg(long)]
    plp: bool,
    /// Only a share of the address space, such as 1/10 [default: all of it up to 8 GiB]
    #[arg(long, value_name = "1/N", value_parser = share)]
    sample: Option<u64>,
    /// How long the flash should last, in years
    #[arg(long, value_name = "YEARS", default_value_t = 5.0, value_parser = overwrites)]
    years: f64,
    /// Simulations at a time [default: processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// What is drawn is drawn from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::lab::seed_range())]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn capacity(text: &str) -> Result<u64, String> {
    (flash::quantity::bytes(text).filter(|&bytes| bytes >= flash::BLOCK_BYTES as u64))
        .ok_or_else(|| "must be a size of at least 4KiB, for example 480GiB".into())
}

fn percent(text: &str) -> Result<f64, String> {
    (text.parse().ok().filter(|percent| (3.0..=400.0).contains(percent)))
        .ok_or_else(|| "must be a percentage from 3 to 400, for example 15".into())
}

fn overwrites(text: &str) -> Result<f64, String> {
    (text.parse().ok().filter(|number| (0.1..=1000.0).contains(number)))
        .ok_or_else(|| "must be a number from 0.1 to 1000, for example 3".into())
}

pub fn run(args: &Args) -> Result<End, Failure> {
    if args.trace.as_os_str() == "-" {
        return Err("-: tell the trace by a file: its name tells its format, too".into());
    }
    let drive = drive(args)?;
    check_policies(args)?;
    let trace = read(args)?;
    let (streams, left_out) = streams(args, trace.facts.volumes)?;
    let options = Options {
        drive,
        streams,
        victims: args.victims.clone(),
        op_percents: args.op_percents.clone(),
        overwrites: args.overwrites,
        load: args.load,
        depth: args.qd,
        seed: args.seed,
        threads: args.threads.map_or_else(crate::bench::cores, |threads| threads as usize),
    };
    let progress = Mutex::new(Progress::new("simulating"));
    let tell = |done, all| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).at(done, all);
    };
    let advice = advise(&trace, &options, &tell);
    drop(progress);
    let advice = advice.map_err(|error| format!("{}: {error}", args.trace.display()))?;
    let choice = choose(&advice, args.years);
    if let Some(path) = &args.report {
        write_report(args, &advice, &choice, path)?;
    }
    if args.json {
        print_json(&as_json(args, &advice, &choice, &left_out));
    } else {
        print(&as_text(args, &advice, &choice, &left_out));
    }
    tell_repairs(&advice.facts.repairs);
    Ok(End::Good)
}

fn read(args: &Args) -> Result<Recorded, Failure> {
    let mut reader = args.reading.open(&args.trace)?;
    let mut progress = Progress::new(format!("reading {}", args.trace.display()));
    let trace = Recorded::read(&mut reader, args.sample, &mut |reader| {
        let (done, whole) = reader.progress();
        progress.at(done, whole);
    });
    drop(progress);
    let trace = trace.map(|trace| if args.plp { trace.without_flushes() } else { trace });
    trace.map_err(|error| match error {
        // It names the file itself.
        lab::advise::AdviseError::Trace(error) => error.to_string(),
        error => format!("{}: {error}", args.trace.display()),
    })
}

fn drive(args: &Args) -> Result<Drive, Failure> {
    if let Some(spec) = crate::devices::device_file(&args.device)? {
        return Ok(Drive::of_file(spec, args.capacity));
    }
    let profile = match Profile::builtin(&args.device) {
        Some(profile) => profile,
        None => {
            let text = serve::files::read_named_text(args.device.as_ref())
                .map_err(|why| format!("{}: {why}", args.device))?;
            Profile::parse(&text).map_err(|why| format!("{}: {why}", args.device))?
        }
    };
    Ok(Drive::of_flash(profile, args.dies.or_default(), args.capacity))
}

fn check_policies(args: &Args) -> Result<(), Failure> {
    for victim in &args.victims {
        let names = PolicyNames { victim: victim.clone(), ..PolicyNames::default() };
        names.validate().map_err(|why| format!("--gc: {why}"))?;
    }
    for stream in args.streams.iter().flat_map(|list| split_streams(list)) {
        handles(&stream).map_err(|why| format!("--streams: {why}"))?;
    }
    Ok(())
}

/// Names with parameters behind a colon, which themselves are parted by commas: `a:x=1,y=2,b` is
/// `a:x=1,y=2` and `b`.
fn split_streams(list: &str) -> Vec<String> {
    let mut streams: Vec<String> = Vec::new();
    for part in list.split(',') {
        let goes_on = part.contains('=') && !part.contains(':');
        match streams.last_mut().filter(|last| goes_on && last.contains(':')) {
            Some(last) => *last = format!("{last},{part}"),
            None => streams.push(part.into()),
        }
    }
    streams
}

/// Placement handles of a stream policy in all.
fn handles(stream: &str) -> Result<u8, String> {
    let policy = stream::by_name(stream, Shape { blocks: 1 << 20, handles: 1 })?;
    let handles = policy.handles();
    Ok(handles.host + handles.moved)
}

/// The stream policies to try, within the budget, and why others are left out.
fn streams(args: &Args, volumes: usize) -> Result<(Vec<String>, Vec<String>), Failure> {
    if let Some(list) = &args.streams {
        let streams = split_streams(list);
        for stream in &streams {
            let wanted = handles(stream)?;
            if wanted > args.budget_handles {
                return Err(format!(
                    "--streams: {stream} uses {wanted} placement handles, more than --budget-handles \
                     {}: give it fewer, or a larger budget",
                    args.budget_handles
                ));
            }
        }
        return Ok((streams, Vec::new()));
    }
    let (mut streams, mut left_out) = (Vec::new(), Vec::new());
    for &name in STREAMS {
        if name == "hint" && volumes < 2 {
            left_out.push("hint: the trace says nothing about its data, not even a volume".into());
            continue;
        }
        match within(name, args.budget_handles, volumes) {
            Some(stream) => streams.push(stream),
            None => left_out.push(format!(
                "{name}: uses {} placement handles, more than the budget of {}",
                handles(name)?,
                args.budget_handles
            )),
        }
    }
    Ok((streams, left_out))
}

/// The policy with as many handles as the budget allows, and it can use.
fn within(name: &str, budget: u8, volumes: usize) -> Option<String> {
    let fits = |stream: &String| handles(stream).is_ok_and(|wanted| wanted <= budget);
    if name == "hint" {
        // One handle for each volume, for the host and for GC.
        let handles = usize::from(budget / 2).min(volumes).min(16);
        return Some(format!("hint:handles={handles}"));
    }
    let alone = Some(name.to_string()).filter(fits);
    alone.or_else(|| {
        let fewer = (1..=budget).rev().map(|handles| format!("{name}:handles={handles}"));
        fewer.into_iter().find(fits)
    })
}

fn write_report(
    args: &Args,
    advice: &Advice,
    choice: &Advised,
    path: &PathBuf,
) -> Result<(), Failure> {
    let trace = args.trace.file_name().unwrap_or_default().to_string_lossy();
    let report = lab::advise::report(advice, choice, &trace, &command(args), args.seed);
    let page = lab::report::html(&report).map_err(|error| error.to_string())?;
    std::fs::write(path, page).map_err(|error| {
        format!("{}: cannot be written: {error}: give another path", path.display())
    })
}

/// The line that repeats the run.
fn command(args: &Args) -> String {
    let ops: Vec<String> = args.op_percents.iter().map(f64::to_string).collect();
    let mut command = format!(
        "weir advise {} --device {} --gc {} --op {} --budget-handles {} --overwrites {} --seed {}",
        args.trace.display(),
        args.device,
        args.victims.join(","),
        ops.join(","),
        args.budget_handles,
        args.overwrites,
        args.seed
    );
    if args.load != 1.0 {
        command.push_str(&format!(" --load {}x", args.load));
    }
    if let Some(capacity) = args.capacity {
        command.push_str(&format!(" --capacity {}", crate::size::config_text(capacity)));
    }
    if let Some(streams) = &args.streams {
        command.push_str(&format!(" --streams {streams}"));
    }
    if args.plp {
        command.push_str(" --plp");
    }
    if let Some(depth) = args.qd {
        command.push_str(&format!(" --qd {depth}"));
    }
    if let Some(share) = args.sample {
        command.push_str(&format!(" --sample 1/{share}"));
    }
    command.push_str(&args.reading.as_arguments());
    command
}

fn as_text(args: &Args, advice: &Advice, choice: &Advised, left_out: &[String]) -> String {
    let facts = &advice.facts;
    let [reads, writes, trims, flushes] = facts.kinds;
    let mut text = format!(
        "{}: {} reads, {} writes of {} in all, {} trims, {} flushes in {:.3} s; {}/s written\n\
         on {}, {} erases a block; seed {}; DWPD over {}\n\n",
        args.trace.display(),
        count(reads),
        count(writes),
        bytes(facts.bytes_written),
        count(trims),
        count(flushes),
        facts.duration_ns as f64 / 1e9,
        bytes(advice.write_rate() as u64),
        advice.device,
        count(u64::from(advice.endurance)),
        args.seed,
        span(args.years),
    );
    if let Some(headline) = headline(advice, choice) {
        text = format!("{}: {headline}\n\n{text}", advice.device);
    }
    text.push_str(&rows(args, advice, choice));
    text.push_str(&format!("\n{}\n", choice.why));
    for (number, note) in (1..).zip(how(advice)) {
        text.push_str(&format!("{}{number}. {note}\n", if number == 1 { "\n" } else { "" }));
    }
    for note in left_out {
        text.push_str(&format!("left out  {note}\n"));
    }
    text
}

/// That the drive cannot carry the trace, or not always, if so: under what was chosen, or else under the first that works.
fn headline(advice: &Advice, choice: &Advised) -> Option<String> {
    let row = choice.row.map(|row| &advice.rows[row]);
    advice.headline(row.or_else(|| advice.rows.iter().find(|row| row.timed.is_ok()))?)
}

/// Write amplification and lifetime, the write amplification by reason, then latencies, by combination.
fn rows(args: &Args, advice: &Advice, choice: &Advised) -> String {
    let head = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let what = ["", "OP", "streams", "victim"];
    let waf = ["WAF", "by GC", "above oracle", "overhead", "lifetime", "TBW", "DWPD", "memory/TiB"];
    let mut wafs = vec![head(&[&what[..], &waf].concat())];
    let times = ["read mean", "p99", "p99.9", "write mean", "p99", "p99.9"];
    let mut latencies = vec![head(&[&what[..], &times].concat())];
    let mut reasons = vec![head(&what)];
    reasons[0].extend(ByReason::default().parts().map(|(name, ..)| name.to_owned()));
    for (index, row) in advice.rows.iter().enumerate() {
        let mark = if Some(index) == choice.row { "=>" } else { "" };
        let name =
            [mark, &format!("{} %", row.op_percent), &row.stream, &row.victim].map(String::from);
        let mut cells = name.to_vec();
        let (mut times, mut parts) = (name.to_vec(), name.to_vec());
        match &row.timed {
            Ok(timed) => {
                let mark = if timed.before.steady { "" } else { " ?" };
                cells.extend([
                    format!("{:.3}{mark}", timed.waf),
                    format!("{:.3}", timed.waf_by_gc()),
                    format!("{:+.0} %", advice.distance(row).unwrap_or(0.0) * 100.0),
                    format!("{:.3}", timed.overhead()),
                    span(row.years),
                ]);
                let wearing = row.wearing(advice.endurance);
                cells.push(terabytes(wearing.bytes_written_max()));
                cells.push(format!("{:.2}", wearing.writes_per_day(args.years)));
                parts.extend(timed.by_reason.parts().map(|(.., value)| format!("{value:.3}")));
                times.extend(three(&timed.reads).into_iter().chain(three(&timed.writes)));
            }
            Err(_) => {
                cells.extend([(); 7].map(|()| "failed".to_string()));
                times.push("failed".into());
                parts.push("failed".into());
            }
        }
        cells.push(bytes(row.memory_per_tib));
        wafs.push(cells);
        latencies.push(times);
        reasons.push(parts);
        let last = advice.rows.get(index + 1).is_none_or(|next| next.op_percent != row.op_percent);
        if let Some(bound) = advice.bound_of(row).filter(|_| last) {
            let waf = format!("{:.3}", bound.waf.waf);
            let cells = ["", &format!("{} %", row.op_percent), "oracle", "cost-benefit", "", &waf];
            wafs.push(cells.map(String::from).to_vec());
        }
    }
    let mut text = format!("{}\nWAF by reason\n{}", table(&wafs), table(&reasons));
    if !advice.behind {
        text.push_str(&format!("\n{}", table(&latencies)));
    }
    text
}

/// Of 10^12 bytes, as data sheets have them.
fn terabytes(bytes: f64) -> String {
    match bytes / 1e12 {
        tb if tb >= 100.0 => format!("{tb:.0} TB"),
        tb if tb >= 1.0 => format!("{tb:.1} TB"),
        tb => format!("{tb:.3} TB"),
    }
}

/// Mean, p99 and p99.9.
fn three(latency: &Latency) -> [String; 3] {
    match latency.count() {
        0 => [(); 3].map(|()| "-".to_string()),
        _ => [latency.mean_ns() as u64, latency.quantile_ns(0.99), latency.quantile_ns(0.999)]
            .map(ns_text),
    }
}

fn as_json(args: &Args, advice: &Advice, choice: &Advised, left_out: &[String]) -> Value {
    let facts = &advice.facts;
    let [reads, writes, trims, flushes] = facts.kinds;
    let chosen = choice.row.map(|row| &advice.rows[row]);
    let bounds = advice.bounds.iter().map(|bound| {
        json!({
            "op_percent": bound.op_percent,
            "waf": bound.waf.waf,
            "rounds": bound.waf.rounds,
            "steady": bound.waf.steady,
        })
    });
    json!({
        "trace": args.trace.display().to_string(),
        "device": advice.device,
        "endurance": advice.endurance,
        "seed": args.seed,
        "command": command(args),
        "requests": {
            "all": facts.requests,
            "reads": reads,
            "writes": writes,
            "trims": trims,
            "flushes": flushes,
            "wipes_left_out": facts.wipes,
        },
        "cut": facts.cut,
        "repairs": repairs_json(&facts.repairs),
        "sample": facts.sample,
        "duration_ns": facts.duration_ns,
        "bytes_written": facts.bytes_written,
        "write_bytes_per_s": advice.write_rate(),
        "volumes": facts.volumes,
        "span_bytes": facts.span_bytes,
        "touched_bytes": facts.touched_bytes,
        "logical_bytes": facts.logical_bytes,
        "whole": advice.whole,
        "timed": match advice.playing {
            Playing::Timestamps(load) => json!({ "load": load }),
            Playing::Depth(depth) => json!({ "qd": depth, "behind_timestamps": advice.behind }),
        },
        "timed_requests": advice.timed_requests,
        "headline": headline(advice, choice),
        "drives_needed": chosen.and_then(|row| advice.needs(row)),
        "dwpd_years": args.years,
        "how": how(advice),
        "left_out": left_out,
        "rows": advice.rows.iter().map(|row| row_json(args, advice, row)).collect::<Vec<_>>(),
        "oracle": bounds.collect::<Vec<_>>(),
        "choice": {
            "row": choice.row,
            "stream": chosen.map(|row| &row.stream),
            "victim": chosen.map(|row| &row.victim),
            "op_percent": chosen.map(|row| row.op_percent),
            "why": choice.why,
        },
    })
}

fn row_json(args: &Args, advice: &Advice, row: &Row) -> Value {
    let latency = |latency: &Latency| match latency.count() {
        0 => Value::Null,
        // Of a drive that falls behind they tell how far the trace was played.
        _ if advice.behind => Value::Null,
        requests => json!({
            "requests": requests,
            "mean_ns": latency.mean_ns(),
            "p50_ns": latency.quantile_ns(0.5),
            "p99_ns": latency.quantile_ns(0.99),
            "p999_ns": latency.quantile_ns(0.999),
            "max_ns": latency.max_ns(),
        }),
    };
    let mut value = json!({
        "stream": row.stream,
        "victim": row.victim,
        "op_percent": row.op_percent,
        "above_oracle": advice.distance(row),
        "drive_bytes": row.drive.logical_blocks * flash::BLOCK_BYTES as u64,
        "drive_flash_bytes": row.drive.flash_bytes(),
        "memory_bytes_per_tib": row.memory_per_tib,
        "failure": row.timed.as_ref().err(),
    });
    if let Ok(timed) = &row.timed {
        value["waf"] = timed.waf.into();
        value["waf_by_gc"] = timed.waf_by_gc().into();
        value["overhead"] = timed.overhead().into();
        value["rounds"] = json!(timed.before.rounds);
        value["steady"] = timed.before.steady.into();
        value["measured_flash_bytes"] = timed.flash_bytes.into();
        let parts = timed.by_reason.parts().map(|(_, name, value)| (name.to_owned(), value.into()));
        value["waf_by_reason"] = Value::Object(parts.into_iter().collect());
        value["years"] = row.years.into();
        let wearing = row.wearing(advice.endurance);
        value["tbw_bytes"] = wearing.bytes_written_max().into();
        value["dwpd"] = wearing.writes_per_day(args.years).into();
        value["dwpd_of_trace"] = wearing.asked_per_day(advice.rate(row)).into();
        value["drives_needed"] = advice.needs(row).into();
        value["keeps_up"] = timed.keeps_up.into();
        value["write_bytes_per_s"] = timed.bytes_per_s.into();
        value["reads"] = latency(&timed.reads);
        value["writes"] = latency(&timed.writes);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::{split_streams, within};

    #[test]
    fn parameters_of_a_policy_stay_with_it() {
        assert_eq!(
            split_streams("none,sfr:handles=4,decay=1GiB,sepbit"),
            ["none", "sfr:handles=4,decay=1GiB", "sepbit"]
        );
    }

    #[test]
    fn a_policy_gets_as_many_handles_as_the_budget_allows() {
        assert_eq!(within("multiq", 9, 1).as_deref(), Some("multiq"));
        assert_eq!(within("multiq", 8, 1).as_deref(), Some("multiq:handles=7"));
        assert_eq!(within("interval", 9, 1).as_deref(), Some("interval:handles=4"));
        assert_eq!(within("sepbit", 6, 1).as_deref(), Some("sepbit"));
        assert_eq!(within("sepbit", 5, 1), None);
        assert_eq!(within("hint", 8, 3).as_deref(), Some("hint:handles=3"));
        assert_eq!(within("none", 2, 1).as_deref(), Some("none"));
    }
}
