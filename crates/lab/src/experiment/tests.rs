//! The built-in experiments are whole; what is wrong with a file is named.

use super::{Experiment, Options, Scale, builtin, builtin_names};

#[test]
fn every_built_in_experiment_is_whole_and_named_like_its_file() {
    for name in builtin_names() {
        let experiment = Experiment::parse(builtin(name).expect("it is listed"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(experiment.name, name);
        assert!(!experiment.claim_ids().is_empty(), "{name} claims nothing");
        assert!(
            experiment.seconds > 0.0,
            "{name} does not say how long it takes: `claims --times`"
        );
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

/// The same on another device, all of which is written first.
fn filled(device: &str) -> String {
    let device = format!("device = \"{device}\"\nblocks_per_plane = 16");
    let fill = "[[case.prepare]]\npattern = \"sequential\"\nbytes = \"64KiB\"\ndepth = 16\n\
                [[case.client]]";
    SMALL.replace("device = \"sdf\"", &device).replace("[[case.client]]", fill)
}

#[test]
fn every_key_that_is_wrong_is_named_at_once_with_its_line() {
    let text = SMALL
        .replace("title = \"A try\"\n", "titel = \"A try\"\n")
        .replace("reads = 1.0", "raeds = 1.0\nerase_frist = true")
        .replace("bytes = \"4KiB\"", "")
        .replace("unit = \"1/s\"\n", "")
        .replace("warmup = \"0s\"", "warmup = 7");
    let error = Experiment::parse(&text).expect_err("seven are wrong").to_string();
    let line = |of: &str| 1 + text.lines().position(|line| line.starts_with(of)).expect("there");
    assert!(error.starts_with("7 keys are wrong:"), "{error}");
    for (line, said) in [
        (1, "the file: the key title is missing; for example: title = \"One line\""),
        (line("titel"), "the file: nobody knows the key titel: expected one of"),
        (line("warmup"), "[case]: warmup = 7: "),
        (line("[[case.client"), "[case.client]: the key bytes is missing; for example: bytes"),
        (line("raeds"), "[case.client]: nobody knows the key raeds"),
        (line("erase_frist"), "[case.client]: nobody knows the key erase_frist"),
        (line("[[claim"), "[claim]: the key unit is missing; for example: unit = \"ms\""),
    ] {
        assert!(error.contains(&format!("line {line}, {said}")), "line {line}, {said}: {error}");
    }
}

#[test]
fn a_device_and_its_flash_may_be_files_and_what_is_wrong_with_them_is_known_before_anything_runs() {
    let text = filled("mine/drive.toml");
    let flash = include_str!("../../../nand/profiles/mlc-25nm.toml");
    let drive = "name = \"drive\"\nkind = \"ftl\"\nprofile = \"mlc-25nm\"\n[layout]\nchannels = 2\n\
                 dies_per_channel = 1\nblocks_per_plane = 64\n[ftl]\nover_provisioning = 0.3\n";
    let own = drive.replace("mlc-25nm", "flash.toml");
    let parsed = |own: &str, flash: &str| {
        let (own, flash) = (own.to_owned(), flash.to_owned());
        Experiment::parse_with(&text, &move |name| match name {
            "mine/drive.toml" => Ok(own.clone()),
            "mine/flash.toml" => Ok(flash.clone()),
            other => Err(format!("{other}: no such file")),
        })
    };
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 1, threads: 1 };
    let measured = |experiment: &Experiment| {
        let results = super::run(experiment, &options, &super::Kept::default(), &|_| ());
        results.expect("it runs")[0].cases[0].points[0].values["read_mean"]
    };
    let own_flash = parsed(&own, flash).expect("it is whole");
    let built_in = parsed(drive, "").expect("it is whole");
    assert_eq!(measured(&own_flash), measured(&built_in), "it is the same flash");
    let slower = parsed(&own, &flash.replace("[75_000]", "[175_000]")).expect("it is whole");
    assert!(measured(&slower) > measured(&built_in) + 0.09, "it is the file's flash");
    let odd = flash.replace("[75_000]", "[]");
    for (own, flash, named) in [
        (&*own, &*odd, "mine/flash.toml"),
        (&own.replace("kind", "knid"), flash, "mine/drive.toml"),
        (&own.replace("channels", "chanels"), flash, "mine/drive.toml\": device: 2 keys are wrong"),
        (&own.replace("flash.toml", "flush.toml"), flash, "mine/flush.toml: no such file"),
    ] {
        let error = parsed(own, flash).expect_err(named).to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
    // Flash alone is a device, too; so is a kind that comes with Weir.
    assert!(parsed(flash, "").is_ok());
    let tlc = SMALL.replace("device = \"sdf\"", "device = \"tlc\"\nblocks_per_plane = 16");
    assert!(Experiment::parse(&tlc).is_ok());
    let unknown = SMALL.replace("device = \"sdf\"", "device = \"sfd\"");
    let error = Experiment::parse(&unknown).expect_err("there is none").to_string();
    assert!(error.contains("\"sfd\"; there are the devices sdf, "), "{error}");
}

#[test]
fn curves_are_of_the_same_ios_as_the_metrics_and_several_seeds_have_bands() {
    let curves = "[[figure]]\nid = \"cdf\"\ntitle = \"a\"\nkind = \"cdf\"\nof = \"read\"\n\
                  at = { depth = 2 }\n[[figure]]\nid = \"course\"\ntitle = \"b\"\n\
                  kind = \"over-time\"\nof = \"read_iops\"\n[[claim]]";
    let text =
        filled("tlc").replace("[[claim]]", curves).replace("\"read_iops\"]", "\"read_p90\"]");
    let experiment = Experiment::parse(&text).expect("it is whole");
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 3, threads: 2 };
    let seeds = super::run(&experiment, &options, &super::Kept::default(), &|_| ()).expect("runs");
    let report = super::report(&experiment, &options, &seeds).expect("it is judged");
    let [cdf, course] = &report.figures[..] else { panic!("two figures") };
    let [distribution] = &cdf.series[..] else { panic!("one point fits: {:?}", cdf.series) };
    let p90 =
        seeds.iter().map(|seed| seed.cases[0].points[1].values["read_p90"]).sum::<f64>() / 3.0;
    let (latency, _) = distribution.points[90];
    assert!((latency - p90).abs() < 1e-9, "{latency} ms, and the metric is {p90}");
    assert_eq!(course.series.len(), 2, "a point for each depth");
    for (at, series) in course.series.iter().enumerate() {
        let rate = series.points.iter().map(|(_, y)| y).sum::<f64>() / series.points.len() as f64;
        let whole = super::seeds::combined(&seeds).cases[0].points[at].values["read_iops"];
        assert!((rate / whole - 1.0).abs() < 0.02, "{rate} over time, {whole} in all");
        let bars = series.error_bars.as_ref().expect("three seeds have intervals");
        assert!(bars.iter().zip(&series.points).all(|(bar, (_, y))| bar.0 <= *y && *y <= bar.1));
    }
    // The table has a column of half intervals behind each metric.
    let table = report.tables.last().expect("of all points");
    assert_eq!(table.columns.last().expect("it has some").label, crate::report::PLUS_MINUS);
    let wrong = text.replace("of = \"read\"", "of = \"raed\"");
    assert!(Experiment::parse(&wrong).expect_err("no such one").0.contains("batch, transaction"));
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

#[test]
fn a_case_is_measured_at_the_points_that_it_names_only() {
    let other = "[[case]]\nname = \"other\"\nat = { depth = [2] }\nafter = \"one\"\ndevice = \"tlc\"\n\
                 blocks_per_plane = 16\nmeasure = \"$measure\"\n[[case.client]]\nbytes = \"4KiB\"\n\
                 depth = \"$depth\"\n[[claim]]";
    let text = filled("tlc").replace("[[claim]]", other);
    let experiment = Experiment::parse(&text).expect("it is whole");
    let options = Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 2, threads: 2 };
    let seeds = super::run(&experiment, &options, &super::Kept::default(), &|_| ()).expect("runs");
    let measured = |case: usize| seeds[1].cases[case].points.iter().map(|point| point.at.clone());
    assert_eq!(measured(0).collect::<Vec<_>>(), experiment.points());
    assert_eq!(measured(1).collect::<Vec<_>>(), experiment.points()[1..]);
    let report = super::report(&experiment, &options, &seeds).expect("it is judged");
    assert_eq!(report.tables.last().expect("of all points").rows.len(), 3);

    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Experiment::parse(&text.replace(from, to)).expect_err("it is wrong").0
    };
    let named = "at = { depth = [2] }";
    for (at, said) in [
        ("at = { depth = [3] }", "at.depth = 3: not a value of that sweep"),
        ("at = { depth = 2 }", "a list of values of that sweep"),
        ("at = { depth = [] }", "a list of values of that sweep"),
        ("at = { width = [2] }", "at.width: there is no such sweep"),
    ] {
        let error = refused(named, at);
        assert!(error.contains("case \"other\"") && error.contains(said), "{at}: {error}");
    }
    let unmeasured = refused("name = \"one\"", "name = \"one\"\nat = { depth = [1] }");
    assert!(unmeasured.contains("not measured wherever this one is"), "{unmeasured}");
    let claim = |case: &str, depth: u32| {
        format!("case = \"{case}\"\nmetric = \"read_iops\"\nat = {{ depth = {depth} }}")
    };
    let elsewhere = refused(&claim("one", 2), &claim("other", 1));
    assert!(elsewhere.contains("\"other\" is not measured there"), "{elsewhere}");
}
