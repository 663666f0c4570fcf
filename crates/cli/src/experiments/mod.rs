//! `weir lab list`, `run` and `claims`: the papers' figures and tables, measured on Weir's own code.

pub mod compare;
pub mod new;
mod rows;

use crate::features;
use crate::output::{Progress, print, print_json, table};
use crate::{End, Failure};
use lab::experiment::{self, Experiment, ExperimentError, Kept, Options, Results, Scale, Told};
use lab::report::{self, Claim, Report};
use rows::Rows;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  weir lab list\n  weir lab list --json | jq '.[].name'")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab run sdf-bandwidth                            a table, in seconds\n  \
    weir lab run sdf-bandwidth --report out/sdf.html      with plots; SVG and PNG beside it\n  \
    weir lab run my.toml --set measure=2s --seed 7        an experiment file of your own (`weir lab new`)\n  \
    weir lab run my.toml --seeds 5 --results my.csv       means with intervals; every figure, as it is measured\n\n\
    `weir lab list` names the experiments that come with Weir; docs/experiments.md describes the\n\
    file. The same experiment, scale, settings and seed give the same report, byte for byte.\n\n\
    What was measured before an interruption is kept, and the same command of the same build goes on with it.")]
pub struct RunArgs {
    /// A built-in experiment, or a .toml file
    #[arg(value_name = "NAME|FILE")]
    name: String,
    /// Change a variable of the experiment
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// Write the report as JSON to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a page with plots; each plot also as SVG and PNG beside it
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab claims               every claim of every experiment, at the small scale\n  \
    weir lab claims --json\n  \
    weir lab claims --only sdf-bandwidth,sdf-capacity --report out/\n\n\
    Each is measured with several seeds: told are the mean, the interval in which it lies at 95 %, and a\n\
    question mark behind a verdict that not all of the interval bears. A missed claim stays in the table,\n\
    with its reason. Exit status 0 says that all were measured, not that all were reproduced; an experiment\n\
    whose recorded traces are not there is named.\n\n\
    Each experiment is told when it is done. What was measured before an interruption is kept, and the same\n\
    command of the same build goes on with it.")]
pub struct ClaimsArgs {
    #[command(flatten)]
    common: Common,
    /// Only these experiments
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Print JSON, when all are done
    #[arg(long)]
    json: bool,
    /// Write into this folder a page for each experiment, and index.html with all claims and figures
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Common {
    /// How large the devices are and how long the runs
    #[arg(long, value_enum, default_value_t = ScaleName::Small)]
    scale: ScaleName,
    /// Everything that is drawn comes from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::lab::seed_range())]
    seed: u64,
    /// Seeds from that one on, of which means and intervals are told [default: 5 for claims, 1 for run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Cases at a time [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Tell at the end, on standard error, how long each experiment and each case kept a processor
    #[arg(long)]
    times: bool,
    /// Write what each case measured with each seed into this file as soon as it is measured: JSON lines, or
    /// comma-separated values with a line for each metric
    #[arg(long, value_name = "FILE.jsonl|FILE.csv")]
    results: Option<PathBuf>,
    /// Measure all anew, whatever an interrupted run has kept
    #[arg(long)]
    fresh: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ScaleName {
    /// Minutes for all experiments together
    Small,
    /// As the source ran it, as far as memory allows: hours
    Full,
}

impl Common {
    fn options(&self, set: Vec<(String, String)>, seeds: u64) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            scale: match self.scale {
                ScaleName::Small => Scale::Small,
                ScaleName::Full => Scale::Full,
            },
            set,
            seed: self.seed,
            seeds: self.seeds.unwrap_or(seeds),
            threads: self.threads.unwrap_or(cores),
        }
    }

    /// What an interrupted run kept, with the file of results, if one is wanted.
    fn kept(
        &self,
        place: Option<&Path>,
        experiments: &[&Experiment],
    ) -> Result<(Kept, Option<Arc<Rows>>), Failure> {
        let rows = self.results.as_deref().map(|path| Rows::create(path, experiments));
        let rows = rows.transpose()?;
        let kept = keep(place, self.fresh);
        Ok(match &rows {
            Some(told) => (told.of(kept), rows),
            None => (kept, None),
        })
    }
}

pub fn list(args: &ListArgs) -> Result<End, Failure> {
    let experiments = experiment::builtin_names().into_iter().map(|name| open(name, &[]));
    let experiments = experiments.collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let entries = experiments.iter().map(|experiment| {
            serde_json::json!({
                "name": experiment.name,
                "title": experiment.title,
                "source": experiment.source,
                "claims": experiment.claim_ids(),
                "seconds": experiment.seconds,
            })
        });
        print_json(&entries.collect());
        return Ok(End::Good);
    }
    let mut rows =
        vec![["name", "title", "claims", "seconds", "source"].map(String::from).to_vec()];
    rows.extend(experiments.iter().map(|experiment| {
        vec![
            experiment.name.clone(),
            experiment.title.clone(),
            experiment.claim_ids().len().to_string(),
            experiment.seconds.to_string(),
            experiment.source.clone(),
        ]
    }));
    print(&table(&rows));
    Ok(End::Good)
}

pub fn run(args: &RunArgs) -> Result<End, Failure> {
    let set = args.set.iter().map(|text| {
        let pair = text.split_once('=').map(|(name, value)| (name.into(), value.into()));
        pair.ok_or_else(|| format!("--set {text}: give KEY=VALUE, for example --set seconds=10"))
    });
    let options = args.common.options(set.collect::<Result<Vec<_>, _>>()?, 1);
    let costs = Costs::default();
    let experiment = open(&args.name, &options.set)?;
    let place = kept_place(&format!("run-{}", experiment.name), options.scale);
    let (kept, rows) = args.common.kept(place.as_deref(), &[&experiment])?;
    let report = measure(&experiment, &options, &kept, &costs)?;
    costs.tell(args.common.times);
    rows.map_or(Ok(()), |rows| rows.finish())?;
    if let Some(path) = &args.report {
        write_report(&report, path)?;
    }
    match &args.json {
        Some(path) if path == Path::new("-") => print_json(&as_json(&report)),
        json => {
            if let Some(path) = json {
                let text = serde_json::to_string_pretty(&report).expect("a report has no odd keys");
                std::fs::write(path, text + "\n")
                    .map_err(|error| format!("{}: cannot be written: {error}", path.display()))?;
            }
            print(&report::text(&report).map_err(|error| error.to_string())?);
        }
    }
    forget(place, &kept, &[&experiment]);
    Ok(End::Good)
}

pub fn claims(args: &ClaimsArgs) -> Result<End, Failure> {
    let names: Vec<&str> = if args.only.is_empty() {
        experiment::builtin_names()
    } else {
        args.only.iter().map(String::as_str).collect()
    };
    // All are read before the first one runs: a mistake in the last must not cost ten minutes.
    let experiments = names.iter().map(|name| open(name, &[])).collect::<Result<Vec<_>, _>>()?;
    let options = args.common.options(Vec::new(), SEEDS_OF_CLAIMS);
    let mut skipped = Vec::new();
    let mut measured = Vec::new();
    for experiment in &experiments {
        let missing = experiment.missing_trace(options.scale, &options.set);
        match missing.map_err(|error| error.to_string())? {
            Some(missing) => {
                skipped.push(format!("{} was not measured: {missing}\n", experiment.name));
            }
            None => measured.push(experiment),
        }
    }
    // The longest first, so that no processor is idle while another one works on it.
    measured.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let costs = Costs::default();
    let place = kept_place("claims", options.scale);
    let (kept, rows) = args.common.kept(place.as_deref(), &measured)?;
    let mut reports = measure_all(&measured, &options, &kept, &costs, args)?;
    reports.sort_by_key(|report| experiments.iter().position(|it| it.name == report.name));
    costs.tell(args.common.times);
    rows.map_or(Ok(()), |rows| rows.finish())?;
    if let Some(folder) = &args.report {
        let written = report::write_index(&reports, &run_of(args, &options), folder);
        written.map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let claims: Vec<&Claim> = reports.iter().flat_map(|report| &report.claims).collect();
    if args.json {
        print_json(&serde_json::to_value(&claims).expect("a claim has no odd keys"));
    } else {
        print(&report::tallies(&claims));
    }
    forget(place, &kept, &measured);
    skipped.iter().for_each(|why| eprint!("{why}"));
    Ok(End::Good)
}

/// What repeats the run, and under which conditions it was.
fn run_of(args: &ClaimsArgs, options: &Options) -> report::Run {
    let (scale, seed, seeds) = (options.scale.name(), options.seed, options.seeds);
    let mut command = format!("weir lab claims --scale {scale} --seed {seed} --seeds {seeds}");
    if !args.only.is_empty() {
        command.push_str(&format!(" --only {}", args.only.join(",")));
    }
    command.push_str(" --report FOLDER");
    let last = seed + seeds - 1;
    let seeds = if seeds == 1 { seed.to_string() } else { format!("{seed} to {last}") };
    let conditions = [
        ("weir", env!("CARGO_PKG_VERSION").to_owned()),
        ("scale", scale.to_owned()),
        ("seeds", seeds),
        ("clock", "virtual time; the same seeds give the same figures on any machine".to_owned()),
    ];
    let conditions = conditions.map(|(name, value)| (name.to_owned(), value)).to_vec();
    report::Run { command, conditions }
}

/// Seeds that every claim is measured with.
const SEEDS_OF_CLAIMS: u64 = 5;

/// What was kept of these experiments is told.
fn forget(place: Option<PathBuf>, kept: &Kept, told: &[&Experiment]) {
    let told: Vec<&str> = told.iter().map(|experiment| experiment.name.as_str()).collect();
    if let Some(place) = place.filter(|_| kept.is_kept() && kept.forget(&told).unwrap_or(true)) {
        let _ = std::fs::remove_file(place);
    }
}

/// Where results are kept until all are told.
fn kept_place(what: &str, scale: Scale) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    Some(cache.join("weir").join(format!("{what}-{}.jsonl", scale.name())))
}

/// Goes on with what an interrupted run of this build kept. Where nothing can be kept, nothing is.
fn keep(place: Option<&Path>, fresh: bool) -> Kept {
    let Some(place) = place else { return Kept::default() };
    let opened = place.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        let build = std::env::current_exe()?.metadata()?;
        let modified = build.modified()?.duration_since(std::time::UNIX_EPOCH);
        let modified = modified.map_or(0, |since| since.as_nanos());
        Kept::open(place, &format!("weir {} {modified}", build.len()), fresh)
    });
    match opened {
        Ok(kept) => {
            if kept.cases() > 0 {
                eprintln!(
                    "kept of an earlier run: {} measured; what is of the same files is taken (--fresh measures all anew)",
                    kept.cases()
                );
            }
            kept
        }
        Err(error) => {
            let place = place.display();
            eprintln!("{place}: {error}: an interruption of this run will lose what it measured");
            Kept::default()
        }
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    serde_json::to_value(report).expect("a report has no odd keys")
}

/// A built-in experiment, or the file of that name, with the devices that these variables name. Files that it names
/// lie beside it.
fn open(name: &str, set: &[(String, String)]) -> Result<Experiment, Failure> {
    let built_in = experiment::builtin(name);
    if built_in.is_none() && !name.ends_with(".toml") {
        let known = experiment::builtin_names().join(", ");
        return Err(format!(
            "no experiment is called {name:?}; there are {known}, or give a .toml file (`weir lab new` begins one)"
        ));
    }
    let read = |path: &Path| serve::files::read_named_text(path);
    let (text, place, folder) = match built_in {
        Some(text) => (text.to_owned(), "experiment", Path::new("")),
        None => {
            let text = read(name.as_ref())
                .map_err(|error| format!("experiment file {name}: cannot be read: {error}"))?;
            (text, "experiment file", Path::new(name).parent().unwrap_or(Path::new("")))
        }
    };
    let beside = |file: &str| {
        let path = folder.join(file);
        read(&path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))
    };
    let opened = Experiment::parse_with(&text, &beside).and_then(|mut experiment| {
        if !set.is_empty() {
            experiment.load_devices(set, &beside)?;
        }
        experiment.called = built_in.is_none().then(|| name.to_owned());
        Ok(experiment)
    });
    opened.map_err(|error| format!("{place} {name}: {error}"))
}

fn measure(
    experiment: &Experiment,
    options: &Options,
    kept: &Kept,
    costs: &Costs,
) -> Result<Report, Failure> {
    let progress = Mutex::new(Progress::new(experiment.name.clone()));
    let results = experiment::run(experiment, options, kept, &teller(&progress, costs));
    let results = results.map_err(|error| error.to_string())?;
    experiment::report(experiment, options, &results).map_err(|error| error.to_string())
}

/// Measures all of them, and tells each as soon as it is done.
fn measure_all(
    experiments: &[&Experiment],
    options: &Options,
    kept: &Kept,
    costs: &Costs,
    args: &ClaimsArgs,
) -> Result<Vec<Report>, Failure> {
    let progress = Mutex::new(Progress::new("claims"));
    let mut reports: Vec<Report> = Vec::new();
    let mut finished = |number: usize, results: Vec<Results>| {
        let report = experiment::report(experiments[number], options, &results)?;
        if let Some(folder) = &args.report {
            write_report(&report, &folder.join(format!("{}.html", report.name)))
                .map_err(ExperimentError)?;
        }
        if !args.json {
            progress.lock().expect("nothing panics while it holds it").clear();
            let (name, title) = (&report.name, &report.title);
            let claims = report::claims_text(&report.claims);
            print(&format!("{name}: {title}\n\n{}\n", claims.trim_end()));
        }
        reports.push(report);
        Ok(())
    };
    experiment::run_all(experiments, options, kept, &teller(&progress, costs), &mut finished)
        .map_err(|error| error.to_string())?;
    Ok(reports)
}

/// Shows how far a run is, and counts what it costs.
fn teller<'a>(
    progress: &'a Mutex<Progress>,
    costs: &'a Costs,
) -> impl Fn(Told<'_>) + Sync + use<'a> {
    move |told: Told<'_>| {
        costs.add(&told);
        let Told { case, done, total, .. } = told;
        let mut progress = progress.lock().expect("nothing panics while it holds it");
        progress.tell(&format!("{done} of {total} points, last {case:?}"));
    }
}

/// How long the cases kept a processor: what a run takes does not tell where others work on the machine.
#[derive(Default)]
struct Costs(Mutex<BTreeMap<(String, String), u64>>);

impl Costs {
    /// A thread that only measures has measured a point.
    fn add(&self, told: &Told<'_>) {
        thread_local!(static BEFORE: Cell<u64> = const { Cell::new(0) });
        let ran = ran_ns();
        let cost = ran - BEFORE.replace(ran);
        let mut costs = self.0.lock().expect("nothing panics while it holds it");
        *costs.entry((told.experiment.into(), told.case.into())).or_default() += cost;
    }

    /// The dearest first.
    fn tell(&self, wanted: bool) {
        if !wanted {
            return;
        }
        let costs = self.0.lock().expect("nothing panics while it holds it");
        let mut of_each: BTreeMap<&str, u64> = BTreeMap::new();
        for ((of, _), cost) in costs.iter() {
            *of_each.entry(of).or_default() += cost;
        }
        let mut experiments: Vec<_> = of_each.into_iter().collect();
        experiments.sort_by_key(|&(_, cost)| std::cmp::Reverse(cost));
        let mut cases: Vec<_> = costs.iter().collect();
        cases.sort_by_key(|(_, cost)| std::cmp::Reverse(**cost));
        let seconds = |cost: u64| format!("{:.1}", cost as f64 / 1e9);
        let head = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut rows: Vec<Vec<String>> = vec![head(&["s of a processor", "experiment"])];
        rows.extend(experiments.into_iter().map(|(of, cost)| vec![seconds(cost), of.to_owned()]));
        rows.push(vec![seconds(costs.values().sum()), "all".into()]);
        eprintln!("{}", table(&rows));
        let mut rows: Vec<Vec<String>> = vec![head(&["s of a processor", "experiment", "case"])];
        let row = |((of, case), cost): (&(String, String), &u64)| {
            vec![seconds(*cost), of.clone(), case.clone()]
        };
        rows.extend(cases.into_iter().map(row));
        eprint!("{}", table(&rows));
    }
}

/// Nanoseconds that the calling thread ran, 0 where the kernel does not tell.
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ran| ran.parse().ok()).unwrap_or(0)
}

fn write_report(report: &Report, path: &Path) -> Result<(), Failure> {
    report::write(report, path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !report::PNG_BUILT_IN && !report.figures.is_empty() {
        eprintln!("the figures are SVG only: this build of weir has no png; {}", features::MEND);
    }
    Ok(())
}
