//! The built-in experiments are whole; what is wrong with a file is named.

use super::{Experiment, Options, Scale, builtin, builtin_names};

#[test]
fn every_built_in_experiment_is_whole_and_named_like_its_file() {
    for name in builtin_names() {
        let experiment = Experiment::parse(builtin(name).expect("it is listed"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(experiment.name, name);
        assert!(!experiment.claim_ids().is_empty(), "{name} claims nothing");
        assert!(experiment.points().len() * experiment.cases() > 0);
    }
}

#[test]
fn claims_have_ids_of_their_own() {
    let mut ids = Vec::new();
    for name in builtin_names() {
        let experiment = Experiment::parse(builtin(name).expect("listed")).expect("parses");
        ids.extend(experiment.claim_ids().into_iter().map(str::to_owned));
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "two claims share an id");
}

const SMALL: &str = r#"
name = "try"
title = "A try"
source = "nowhere"
summary = "Nothing."
columns = ["read_iops"]
[small]
measure = "10ms"
[full]
measure = "1s"
[sweep]
depth = [1, 2]
[[case]]
name = "one"
device = "sdf"
warmup = "0s"
measure = "$measure"
[[case.client]]
reads = 1.0
bytes = "4KiB"
depth = "$depth"
[[claim]]
id = "c"
said = 1
unit = "1/s"
tolerance = "at least"
case = "one"
metric = "read_iops"
at = { depth = 2 }
"#;

#[test]
fn an_experiment_that_is_whole_is_taken() {
    let experiment = Experiment::parse(SMALL).expect("it is whole");
    let at = &experiment.points()[1];
    let case = experiment.case(0, Scale::Full, &[], at).expect("resolves");
    assert_eq!(case.measure_ns, 1_000_000_000);
    assert_eq!(case.clients[0].pace, crate::load::Pace::Depth(2));
    let set = [("measure".to_owned(), "2s".to_owned())];
    let case = experiment.case(0, Scale::Full, &set, at).expect("resolves");
    assert_eq!(case.measure_ns, 2_000_000_000);
}

#[test]
fn what_is_wrong_with_an_experiment_is_named() {
    let wrong = [
        ("bytes = \"4KiB\"", "bytes = \"4Kib\"", "4Kib"),
        ("reads = 1.0", "raeds = 1.0", "raeds"),
        ("reads = 1.0", "reads = 1.5", "reads = 1.5"),
        ("\"$measure\"", "\"$mesure\"", "$mesure"),
        ("depth = [1, 2]", "depth = []", "sweep.depth"),
        ("read_iops\"\nat", "read_ipos\"\nat", "read_ipos"),
        ("unit = \"1/s\"", "unit = \"GB/s\"", "measured in"),
        ("at = { depth = 2 }", "at = { depth = 3 }", "at.depth"),
        ("case = \"one\"", "case = \"two\"", "two"),
        ("depth = \"$depth\"", "depth = 1\nbatch = 2", "one of depth, batch and rate"),
        ("measure = \"1s\"", "measure = \"0s\"", "above \"0s\""),
    ];
    for (from, to, named) in wrong {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL, "{from} is in the text");
        let error = Experiment::parse(&text).expect_err(to).to_string();
        assert!(error.contains(named), "{to}: {error}");
    }
}

#[test]
fn a_device_that_settles_has_emptied_its_cache_before_it_is_measured() {
    let text = SMALL
        .replace(
            "device = \"sdf\"",
            "device = \"gen3\"\nblocks_per_plane = 32\nsettle = \"SETTLE\"",
        )
        .replace("reads = 1.0\nbytes = \"4KiB\"", "bytes = \"1MiB\"")
        .replace("depth = 2 }", "depth = 1 }")
        .replace("read_iops", "write_min")
        .replace("unit = \"1/s\"", "unit = \"ms\"")
        .replace(
            "[[case.client]]",
            "[[case.prepare]]\npattern = \"sequential\"\nbytes = \"1MiB\"\ndepth = 16\n\
             times = 0.05\n[[case.client]]",
        );
    let shortest = |settle: &str| {
        let experiment = Experiment::parse(&text.replace("SETTLE", settle)).expect("it is whole");
        let options =
            Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 1, threads: 1 };
        let results = super::run(&experiment, &options, &super::Kept::default(), &|_| ());
        results.expect("it runs")[0].cases[0].points[0].values["write_min"]
    };
    // The link alone takes 0.9 ms for 1 MiB; where the cache is full the flash has to make room for it.
    let (at_once, settled) = (shortest("0s"), shortest("200ms"));
    assert!(settled < 1.0 && at_once > 1.1 * settled, "seed 1: {at_once} and {settled} ms");
}

#[test]
fn values_of_a_sweep_bring_variables_and_a_client_of_no_threads_is_left_out() {
    let text = SMALL
        .replace("depth = [1, 2]", "depth = [1, 2]\n[with.depth.1]\nn = 0\n[with.depth.2]\nn = 3")
        .replace("reads = 1.0", "reads = 1.0\nthreads = \"$n\"");
    // A case without any client is none.
    let error = Experiment::parse(&text).expect_err("no client is left").to_string();
    assert!(error.contains("a case needs clients"), "{error}");
    let experiment = Experiment::parse(&text.replace("n = 0", "n = 1")).expect("it is whole");
    let points = experiment.points();
    let resolved = |at| experiment.case(0, Scale::Small, &[], at).expect("resolves");
    let threads = points.iter().map(|at| resolved(at).clients[0].threads);
    assert_eq!(threads.collect::<Vec<_>>(), [1, 3]);
    let error = Experiment::parse(&text.replace("depth.2", "depth.4")).expect_err("no such value");
    assert!(error.to_string().contains("with.depth"), "{error}");
    let table = "[[table]]\ntitle = \"t\"\nrows = \"depth\"\n[[table.column]]\nlabel = \"l\"\n\
                 case = \"one\"\nmetric = \"read_iops\"\npaper = { 7 = 1.0 }\n";
    let error = Experiment::parse(&format!("{SMALL}{table}")).expect_err("no such row");
    assert!(error.to_string().contains("paper.7"), "{error}");
}

/// A text with a few of its bytes, words or lines gone, doubled or exchanged.
fn broken(text: &str, random: &mut flash::Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(lines.len() as u64) as usize;
        let other = lines[random.below(lines.len() as u64) as usize].clone();
        let value = ["0", "-1", "1e300", "\"\"", "[]", "{}", "true", "18446744073709551615", "nan"];
        let value = value[random.below(value.len() as u64) as usize];
        match random.below(4) {
            0 => lines[at].clear(),
            1 => lines[at] = other,
            2 => {
                let key = lines[at].split('=').next().unwrap_or_default().to_owned();
                lines[at] = format!("{key} = {value}");
            }
            _ => {
                let cut = random.below(lines[at].chars().count() as u64 + 1) as usize;
                lines[at] = lines[at].chars().take(cut).collect();
            }
        }
    }
    lines.join("\n")
}

#[test]
fn broken_files_are_refused_or_taken_and_never_panic() {
    use crate::device_file::DeviceSpec;
    for seed in 0..400 {
        println!("seed {seed}");
        let mut random = flash::Random::new(seed);
        let names = builtin_names();
        let name = names[random.below(names.len() as u64) as usize];
        let text = broken(builtin(name).expect("it is listed"), &mut random);
        if let Err(error) = Experiment::parse(&text) {
            assert!(!error.to_string().is_empty(), "{name}, seed {seed}");
        }
        let devices = DeviceSpec::texts();
        let device = devices[random.below(devices.len() as u64) as usize];
        match DeviceSpec::parse(&broken(device, &mut random)) {
            Ok(device) => assert!(!device.figures().usable_bytes.is_nan(), "seed {seed}"),
            Err(error) => assert!(!error.to_string().is_empty(), "seed {seed}"),
        }
    }
}

/// Where the recorded traces are, seen from the crate.
const RECORDED: &str = "../../traces";

#[test]
fn what_is_said_of_the_recordings_is_what_they_hold() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORDED);
    let text = builtin("autostream-loads").expect("it is listed");
    let experiment = Experiment::parse(text).expect("parses");
    for (name, file) in
        [("PostgreSQL", "pgbench-s60-ext4.weir.zst"), ("SQLite", "sqlite-ycsba-ext4.weir.zst")]
    {
        let path = folder.join(file);
        let (requests, _) = crate::tenant::requests(&path).expect("reads");
        let mut profile = crate::tenant::Profile::default();
        requests.iter().for_each(|&(kind, offset, bytes)| profile.add(kind, offset, bytes));
        let mut values = std::collections::BTreeMap::new();
        super::metric::add_profile(&mut values, "database", &profile.figures());
        for claim in experiment.claims.iter().filter(|claim| claim.select.case == name) {
            let said = super::select::number_of(&claim.said).expect("a number");
            let found = values[claim.select.metric.as_deref().expect("it has one")];
            assert!((found / said - 1.0).abs() < 0.002, "{}: {found}, not {said}", claim.id);
        }
    }
}

#[test]
fn a_trace_that_is_not_there_is_missed_before_anything_runs() {
    let text = builtin("autostream-traces").expect("it is listed");
    let experiment = Experiment::parse(text).expect("parses");
    let set = [("traces".to_owned(), "/nowhere".to_owned())];
    let missing = experiment.missing_trace(Scale::Small, &set).expect("resolves");
    let missing = missing.expect("there is no such folder");
    assert!(missing.contains("/nowhere") && missing.contains("--set traces"), "{missing}");
}

#[test]
fn what_draws_nothing_is_measured_with_one_seed_whatever_their_number() {
    let folder = format!("{}/{RECORDED}", env!("CARGO_MANIFEST_DIR"));
    let jobs = |name: &str, set: Vec<(String, String)>, seeds: u64| {
        let experiment = Experiment::parse(builtin(name).expect("it is listed")).expect("parses");
        let options = Options { scale: Scale::Small, set, seed: 3, seeds, threads: 1 };
        let plan = super::run::Plan::new(&experiment, &options).expect("resolves");
        plan.jobs(&options).count()
    };
    let traces = || vec![("traces".to_owned(), folder.clone())];
    assert_eq!(jobs("autostream-traces", traces(), 1), jobs("autostream-traces", traces(), 5));
    assert_eq!(5 * jobs("hot-cold-theory", vec![], 1), jobs("hot-cold-theory", vec![], 5));
}

#[test]
fn a_case_after_another_shares_its_device_and_is_refused_where_that_is_another_one() {
    let text = builtin("profiles").expect("it is listed");
    let experiment = Experiment::parse(text).expect("parses");
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 2, threads: 1 };
    let plan = super::run::Plan::new(&experiment, &options).expect("resolves");
    let jobs: Vec<_> = plan.jobs(&options).map(|job| (job.seed, job.points)).collect();
    assert_eq!(jobs.len(), 2 * 5);
    let loads = vec![(0, 3), (1, 3), (2, 3)];
    assert_eq!(jobs[3], (1, loads.clone()), "each profile has a device for the three loads");
    assert_eq!(jobs[8], (2, loads));

    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Experiment::parse(&text.replace(from, to)).expect_err("it is wrong").0
    };
    let after = "after = \"mixed\"";
    let unknown = refused(after, "after = \"small writes\"");
    assert!(unknown.contains("a case above this one"), "{unknown}");
    let other = refused(after, &format!("{after}\nfactory_bad = 0.001"));
    assert!(other.contains("must be the same one"), "{other}");
    let prepared = refused(after, &format!("{after}\nprepare = [{{ bytes = \"8MiB\" }}]"));
    assert!(prepared.contains("no prepare"), "{prepared}");
}
