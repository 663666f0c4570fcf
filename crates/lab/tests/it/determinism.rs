//! The same seed gives the same report, byte for byte: run after run, with any number of threads, and
//! on any machine. The last is what the golden digest watches; crates/lab/clippy.toml forbids the
//! floating-point functions that would break it.

use lab::experiment::{
    Experiment, ExperimentError, Kept, Options, Results, Scale, Told, report, run, run_all,
};
use lab::report::{Report, claims_text, html, png, svg, text};

/// Every kind of device and of client, small.
const EXPERIMENT: &str = r#"
name = "twice"
title = "Twice the same"
source = "nowhere"
summary = "One of each."
columns = ["iops", "io_mean", "io_p99", "io_deviation", "waf", "usable"]
[small]
measure = "40ms"
[full]
measure = "40ms"
[sweep]
load = [1, 4]
[[case]]
name = "FTL"
device = "tssd"
blocks_per_plane = 64
set = { layout = { channels = 2 }, ftl = { utilization = 0.7 } }
warmup = "5ms"
measure = "$measure"
[[case.prepare]]
pattern = "sequential"
bytes = "64KiB"
depth = 8
[[case.client]]
name = "arrivals"
rate = 3000.0
load = "$load"
reads = 0.7
bytes = "4KiB"
pattern = "zipf:0.99"
[[case]]
name = "drive"
baseline = true
device = "intel-320"
blocks_per_plane = 64
factory_bad = 0.01
set = { layout = { channels = 2, dies_per_channel = 1 } }
warmup = "5ms"
measure = "$measure"
[[case.prepare]]
pattern = "sequential"
bytes = "1MiB"
depth = 4
[[case.client]]
name = "threads"
threads = 3
depth = "$load"
reads = 0.5
bytes = "4KiB"
[[case]]
name = "raw"
device = "sdf"
blocks_per_plane = 16
set = { layout = { channels = 3 }, raw = { spare = 0.2 } }
warmup = "5ms"
measure = "$measure"
[[case.prepare]]
threads = 3
place = "lane"
pattern = "sequential"
bytes = "8MiB"
erase_first = true
[[case.client]]
name = "readers"
rate = 2000.0
load = "$load"
reads = 1.0
bytes = "8KiB"
pattern = "zipf:0.8"
[[figure]]
id = "mean"
title = "Mean"
x = "load"
x_label = "load"
x_log = true
y = "io_mean"
y_label = "latency"
y_log = true
[[claim]]
id = "quick"
said = "0.1-0.4"
unit = "ms"
tolerance = "within 50 %"
case = "raw"
metric = "io_mean"
over = "mean"
baseline = { case = "drive" }
"#;

fn reported(experiment: &Experiment, options: &Options, kept: &Kept) -> Report {
    let results = run(experiment, options, kept, &|_| {}).expect("it runs");
    report(experiment, options, &results).expect("it is judged")
}

/// JSON, and everything that people see of it.
fn bytes(experiment: &Experiment, threads: usize) -> (String, Vec<Vec<u8>>) {
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 7, seeds: 1, threads };
    let report = reported(experiment, &options, &Kept::default());
    let json = serde_json::to_string(&report).expect("a report has no odd keys");
    let figure = &report.figures[0];
    let shown = vec![
        text(&report).expect("it is shown").into_bytes(),
        claims_text(&report.claims).into_bytes(),
        html(&report).expect("it is drawn").into_bytes(),
        svg(figure).expect("it is drawn").into_bytes(),
        png(figure).expect("it is drawn"),
    ];
    (json, shown)
}

#[test]
fn the_same_seed_gives_the_same_report_on_one_thread_or_two() {
    let experiment = Experiment::parse(EXPERIMENT).expect("it is whole");
    let first = bytes(&experiment, 1);
    for threads in [1, 2, 3] {
        assert!(bytes(&experiment, threads) == first, "{threads} threads");
    }
}

#[test]
fn a_case_without_the_variable_of_a_sweep_is_measured_once_and_told_at_each_value() {
    let readers = "rate = 2000.0\nload = \"$load\"";
    assert!(EXPERIMENT.contains(readers), "the raw units' readers");
    let text = EXPERIMENT.replace(readers, "rate = 2000.0");
    let experiment = Experiment::parse(&text).expect("it is whole");
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 7, seeds: 1, threads: 2 };
    let points = std::sync::Mutex::new(Vec::new());
    let told = |Told { case, total, .. }: Told<'_>| {
        points.lock().expect("nobody panics").push((case.to_owned(), total));
    };
    let results = run(&experiment, &options, &Kept::default(), &told).expect("it runs");
    let told = points.into_inner().expect("nobody panics");
    assert_eq!(told.iter().filter(|(case, _)| case == "raw").count(), 1);
    assert!(told.len() == 5 && told.iter().all(|(_, total)| *total == 5), "{told:?}");
    let raw = results[0].cases.iter().find(|case| case.case == "raw").expect("it was run");
    assert_eq!(raw.points[0].values, raw.points[1].values);
    assert_ne!(raw.points[0].at, raw.points[1].at);
}

#[test]
fn several_experiments_are_told_in_their_order_until_one_cannot_be() {
    let text = |name: &str| EXPERIMENT.replace("\"twice\"", &format!("{name:?}"));
    let experiments = ["first", "second", "third"]
        .map(|name| Experiment::parse(&text(name)).expect("it is whole"));
    let experiments: Vec<&Experiment> = experiments.iter().collect();
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 7, seeds: 2, threads: 3 };
    let mut told = Vec::new();
    let mut all = |number: usize, results: Vec<Results>| {
        told.push((number, results.len(), results[0].cases.len()));
        Ok(())
    };
    let progress = |_: Told<'_>| {};
    run_all(&experiments, &options, &Kept::default(), &progress, &mut all).expect("they run");
    assert_eq!(told, [(0, 2, 3), (1, 2, 3), (2, 2, 3)]);
    let mut refuse = |_: usize, _: Vec<Results>| Err(ExperimentError("a full disk".into()));
    let ended = run_all(&experiments, &options, &Kept::default(), &progress, &mut refuse);
    assert_eq!(ended, Err(ExperimentError("a full disk".into())));
}

#[test]
fn a_run_that_goes_on_with_what_was_kept_gives_the_same_report() {
    let experiment = Experiment::parse(EXPERIMENT).expect("it is whole");
    let path = std::env::temp_dir().join(format!("weir-went-on-{}", std::process::id()));
    let options =
        |seeds| Options { scale: Scale::Small, set: Vec::new(), seed: 7, seeds, threads: 2 };
    let open = || Kept::open(&path, "this build", false).expect("a file");
    let whole = reported(&experiment, &options(2), &Kept::default());
    reported(&experiment, &options(1), &open());
    let kept = open();
    assert_eq!(kept.cases(), 3);
    assert_eq!(reported(&experiment, &options(2), &kept), whole);
    std::fs::remove_file(&path).expect("it is there");
    let figures = &whole.figures[0];
    assert!(figures.series.iter().all(|series| series.error_bars.is_some()), "{figures:?}");
    assert!(whole.claims.iter().all(|claim| claim.interval().is_some()));
}

#[test]
fn the_same_seed_gives_the_same_figures_on_any_machine() {
    // Raw units only: their figures change with the emulated flash, the clients and the report, and not
    // with every policy of the FTL. Whoever changes those on purpose puts the new digest here.
    const GOLDEN: u32 = 0x675c_9215;
    let mut file: toml::Table = EXPERIMENT.parse().expect("it is TOML");
    let cases = file["case"].as_array_mut().expect("it has cases");
    cases.retain(|case| case["name"].as_str() == Some("raw"));
    let claims = file["claim"].as_array_mut().expect("it has claims");
    claims[0].as_table_mut().expect("a claim").remove("baseline");
    let experiment = Experiment::parse(&file.to_string()).expect("it is whole");
    let (json, _) = bytes(&experiment, 1);
    let digest = flash::crc(json.as_bytes());
    assert_eq!(digest, GOLDEN, "{digest:#010x} is the digest of: {json}");
}
