//! Experiments as a researcher has them: begun by `weir lab new`, run over several seeds, interrupted, compared.

use crate::scratch::Scratch;
use crate::tools::{run, said, weir, weir_path};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What makes the experiment that `weir lab new` writes a matter of a second.
const SHORTER: [&str; 6] =
    ["--set", "blocks=16", "--set", "measure=50ms", "--set", "overwrites=0.1"];

fn lab(args: &[&str]) -> String {
    run(weir_path().to_str().expect("the binary's path is UTF-8"), &[&["lab"], args].concat())
}

fn rows(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn what_new_writes_runs_as_it_stands_over_seeds_and_two_runs_are_compared() {
    let scratch = Scratch::new("lab-new");
    let (named, file) = (scratch.file("mine"), scratch.file("mine.toml"));
    let told = lab(&["new", &named]);
    assert!(told.contains(&format!("weir lab run {file}")), "{told}");
    let again = weir(&["lab", "new", &named]);
    assert!(said(&again).contains("is there already"), "{}", said(&again));
    assert!(said(&weir(&["lab", "new", "My File"])).contains("a-z, 0-9 and -"));
    lab(&["devices", &scratch.file("mine-device.toml")]);

    let (a, b, page) = (scratch.file("a.json"), scratch.file("b.json"), scratch.file("mine.html"));
    let csv = scratch.file("mine.csv");
    let text = lab(&[
        &["run", &file, "--seeds", "2", "--json", &a, "--report", &page, "--results", &csv],
        &SHORTER[..],
    ]
    .concat());
    for part in ["±", "waf", "figure tail", "mine-reads-grow", &format!("weir lab run {file}")] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let html = fs::read_to_string(&page).unwrap();
    for part in ["id=\"latency\"", "id=\"tail\"", "id=\"course\""] {
        assert!(html.contains(part), "{part}");
    }
    // A case, three depths, two seeds.
    let csv = fs::read_to_string(&csv).unwrap();
    assert!(csv.starts_with("experiment,scale,seed,case,depth,metric,value\n"), "{csv}");
    let iops = csv.lines().filter(|line| line.contains(",read_iops,")).count();
    assert_eq!(iops, 6, "{csv}");

    lab(&[&["run", &file, "--seeds", "2", "--json", &b], &SHORTER[..]].concat());
    let same: Value = serde_json::from_str(&lab(&["compare", &a, &b, "--json"])).unwrap();
    let same = same.as_array().unwrap();
    assert_eq!(same.len(), 15, "three points of five columns");
    assert!(same.iter().all(|row| row["a"] == row["b"] && row["significant"] == false));
    let page = scratch.file("compared.html");
    let text = lab(&["compare", &a, &b, "--report", &page]);
    assert!(text.contains("0 of 15 differences are significant"), "{text}");
    let html = fs::read_to_string(&page).unwrap();
    assert_eq!(html.matches("<figure>").count(), 6, "three figures, side by side");
    let none = weir(&["lab", "compare", &a, &file]);
    assert!(said(&none).contains("is no report"), "{}", said(&none));
}

#[test]
fn an_interrupted_run_keeps_its_results_and_the_next_one_goes_on() {
    let scratch = Scratch::new("lab-again");
    lab(&["new", &scratch.file("mine")]);
    let (file, results) = (scratch.file("mine.toml"), scratch.file("r.jsonl"));
    let args = ["lab", "run", &file, "--seeds", "3", "--threads", "1", "--results", &results];
    let args = [&args[..], &SHORTER].concat();
    let command = || {
        let mut command = Command::new(weir_path());
        command.args(&args).env("XDG_CACHE_HOME", scratch.path()).stdin(Stdio::null());
        command
    };
    let mut first = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while rows(&results).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(200), "no case ended");
        assert!(first.try_wait().unwrap().is_none(), "it ended before it could be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let kept = rows(&results);
    assert!(kept.len() < 9, "of three points and three seeds some were measured: {}", kept.len());

    let output = command().output().unwrap();
    assert!(said(&output).contains("kept of an earlier run"), "{}", said(&output));
    let all = rows(&results);
    assert_eq!(all.len(), 9);
    assert!(kept.iter().all(|row| all.contains(row)), "what was measured stays");
    // What is told is forgotten: nothing is left to go on with.
    assert!(!scratch.path().join("weir/run-mine-small.jsonl").exists());
    let wrong = weir(&["lab", "run", &file, "--results", "r.txt"]);
    assert!(said(&wrong).contains(".jsonl"), "{}", said(&wrong));
}
