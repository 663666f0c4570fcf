//! The commands themselves: each a short list of programs to run in order, stopping at the first
//! that fails, but for the tests, which are all run.

use crate::steps::Steps;
use crate::{cargo_path, rocksdb, root, tidy};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Formatting, lints and the rules of the house.
pub fn check() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    quick_crates()?;
    tidy()
}

/// The rules that neither rustfmt nor clippy knows.
pub fn tidy() -> Result<(), String> {
    let faults = tidy::run(&root(), &metadata()?)?;
    if faults.is_empty() {
        println!("tidy: nothing to say");
        return Ok(());
    }
    Err(format!("{}\ntidy: {} faults", faults.join("\n"), faults.len()))
}

/// Everything that proves something. `args` go to each test run: usually a name.
pub fn test(args: &[String]) -> Result<(), String> {
    rocksdb::build()?;
    let metadata = metadata()?;
    let mut steps = Steps::new(&target(&metadata))?;
    let result = test_steps(&mut steps, &metadata, args);
    steps.end(result)
}

/// One profile for all, the one of developers: optimized where the time goes, with overflow checks
/// everywhere. And always the whole workspace, of which a step takes some targets: other packages would
/// mean other features of what they share, and all of that once more.
fn test_steps(steps: &mut Steps, metadata: &Value, args: &[String]) -> Result<(), String> {
    let every = ["--lib", "--bins", "--test", "it"];
    let build = ["test", "--workspace", "--no-run", "--test", "e2e"];
    steps.cargo("build", &[&build[..], &every].concat(), &[])?;
    // What fails does not keep the rest from being tried: who waits for it all learns of it all.
    let units = [&["test", "--workspace", "--no-fail-fast"][..], &every].concat();
    let mut results = vec![steps.cargo("unit, model, simulation", &units, args)];
    let documents = &["test", "--workspace", "--no-fail-fast", "--doc"];
    results.push(steps.cargo("examples in documents", documents, args));
    if has_feature(metadata, "lab", "mutants") {
        results.push(mutants(steps, args));
    }
    results.push(real_clients(steps, args));
    if args.is_empty() {
        // A part of them where the system refuses io_uring, as in many containers.
        let part = [E2E, &["--", "clients::", "hostile::", "kill::", "tier::"]].concat();
        let threads = [("WEIR_E2E_DRIVER", "threads")];
        results.push(steps.cargo_where("without io_uring", &part, &[], &threads));
    }
    let failed: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The tests that plant a bug in the FTL or the pool and demand that a checker finds it. The other tests
/// ran without the mutants already.
fn mutants(steps: &mut Steps, args: &[String]) -> Result<(), String> {
    let only = ["mutants::".to_owned()];
    let args = if args.is_empty() { &only[..] } else { args };
    // With cli, which has no such test, so that the crates of others have the features that they were
    // built with: alone the lab would want a dozen of them once more.
    let packages = ["--package", "lab", "--package", "pool", "--package", "cli"];
    let packages = [&packages[..], &["--features", "lab/mutants,pool/mutants"]].concat();
    steps.cargo("mutants", &[&["test"][..], &packages, &["--test", "it"]].concat(), args)
}

const E2E: &[&str] = &["test", "--workspace", "--test", "e2e"];

/// A third of their time they wait: for a lease, a node that is given up, a guest that boots. So half as many again
/// run at once as there are processors.
fn real_clients(steps: &mut Steps, args: &[String]) -> Result<(), String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once =
        std::env::var("RUST_TEST_THREADS").unwrap_or((processors + processors / 2).to_string());
    steps.cargo_where("real clients", E2E, args, &[("RUST_TEST_THREADS", &at_once)])
}

/// The real clients.
pub fn e2e(args: &[String]) -> Result<(), String> {
    rocksdb::build()?;
    let mut steps = Steps::new(&target(&metadata()?))?;
    let result = real_clients(&mut steps, args);
    steps.end(result)
}

/// Crates of others that the build of `./x run` may have at most. Somebody waits for each of them.
const QUICK_CRATES_MAX: usize = 174;
/// Processor seconds that this build takes from nothing on a quiet machine, at most. Two processors have 300 in 2.5 minutes,
/// which is the goal. It took 259 to 342 on machines of one kind within two days, and 532 on one that was busy.
const QUICK_SECONDS: f64 = 400.0;
/// How `./x run` builds, beside the profile.
const QUICK: [&str; 3] = ["--package", "cli", "--no-default-features"];

/// What `./x run` builds stays small, and leaves out what it says.
fn quick_crates() -> Result<(), String> {
    let tree = ["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(cargo_path())
        .args([&tree[..], &QUICK].concat())
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| line.trim_end_matches(" (*)"));
    // Ours have a path behind the version.
    let crates: BTreeSet<&str> =
        lines.filter(|line| !line.is_empty() && !line.contains("(/")).collect();
    let heavy = ["wasmtime ", "resvg "].map(|name| crates.iter().any(|c| c.starts_with(name)));
    println!("quick build: {} crates of others, at most {QUICK_CRATES_MAX}", crates.len());
    if heavy.contains(&true) || crates.len() > QUICK_CRATES_MAX {
        return Err(format!(
            "the build of ./x run has grown: it has {} crates of others of at most \
             {QUICK_CRATES_MAX}, and neither wasmtime nor resvg; `cargo tree {}` shows why: make a \
             feature of what serving does not need",
            crates.len(),
            QUICK.join(" ")
        ));
    }
    Ok(())
}

/// What all programs that were started and have ended took, theirs included.
fn processor_seconds_of_children() -> f64 {
    // SAFETY: all zeroes are a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable. It stays 0 if that fails, which it cannot with this argument.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Builds as `./x run` does, and asks the binary for what it has not.
pub fn quick() -> Result<(), String> {
    quick_crates()?;
    let metadata = metadata()?;
    let mut steps = Steps::new(&target(&metadata))?;
    let cold = !target(&metadata).join("quick/deps").exists();
    let before = processor_seconds_of_children();
    let built = steps.cargo(
        "build of ./x run",
        &[&["build", "--profile", "quick"][..], &QUICK].concat(),
        &[],
    );
    steps.end(built)?;
    let seconds = processor_seconds_of_children() - before;
    // Told, not demanded: the same build takes one machine twice what it takes another, or the same one that is busy.
    let much = cold && seconds > QUICK_SECONDS;
    println!(
        "quick build: {seconds:.0} processor seconds; {QUICK_SECONDS} from nothing on a quiet machine"
    );
    if much {
        let quick = QUICK.join(" ");
        println!(
            "more than that: `cargo build --profile quick {quick} --timings` shows where they go"
        );
    }
    let weir = target(&metadata).join("quick/weir");
    let module = root().join("plugins/greedy/greedy.wasm");
    let module = module.to_str().ok_or("the repository's path is not UTF-8")?;
    for (args, said) in [
        (&["--version"][..], "without certs, plugins, png"),
        (&["plugin", "test", module], "this build of weir has no plugins"),
    ] {
        let output = Command::new(&weir).args(args).output();
        let output = output.map_err(|error| format!("{}: {error}", weir.display()))?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if !text.contains(said) {
            return Err(format!("weir {} does not say {said:?}: {text}", args.join(" ")));
        }
    }
    Ok(())
}

/// Where cargo puts what it makes.
pub fn target_folder() -> Result<PathBuf, String> {
    Ok(target(&metadata()?))
}

fn target(metadata: &Value) -> PathBuf {
    let folder = metadata["target_directory"].as_str();
    folder.map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds weir in a profile, and returns where it is. Of the quick one what `./x run` has.
pub fn weir_binary(profile: &str) -> Result<PathBuf, String> {
    let how: &[&str] = if profile == "quick" { &QUICK } else { &["--package", "cli"] };
    cargo(&[&["build", "--profile", profile][..], how].concat(), &[])?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target_folder()?.join(folder).join("weir"))
}

/// One simulated system: `weir lab sim [--seed N]`.
pub fn sim(args: &[String]) -> Result<(), String> {
    match args {
        [] => weir(&["lab", "sim"], &[]),
        [seed, rest @ ..] => weir(&["lab", "sim", "--seed", seed], rest),
    }
}

/// Runs seeds until the time is over: each `weir lab sim` with a seed of its own. Every failing
/// seed is told; the first one ends the soak.
pub fn soak(args: &[String]) -> Result<(), String> {
    let minutes: u64 = match args {
        [flag, minutes] if flag == "--minutes" => {
            minutes.parse().map_err(|_| format!("--minutes {minutes}: a number, for example 10"))?
        }
        _ => return Err("soak needs --minutes N, for example --minutes 10".to_owned()),
    };
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let first = now.map_err(|_| "the clock is before 1970")?.as_secs();
    let mut seeds = 0;
    while Instant::now() < end {
        let seed = (first + seeds).to_string();
        weir(&["lab", "sim", "--seed", &seed], &[]).map_err(|error| {
            format!("seed {seed} failed; again: cargo xtask sim {seed}\n{error}")
        })?;
        seeds += 1;
    }
    println!("soak: {seeds} seeds in {minutes} minutes, none failed");
    Ok(())
}

/// `weir bench`, with everything it takes.
pub fn bench(args: &[String]) -> Result<(), String> {
    weir(&["bench"], args)
}

/// cargo-fuzz on one target, or on each for a minute.
pub fn fuzz(args: &[String]) -> Result<(), String> {
    let seconds = args.get(1).map_or("60", String::as_str);
    let seconds: u32 =
        seconds.parse().map_err(|_| format!("{seconds}: seconds, for example 300"))?;
    let targets = match args.first() {
        Some(target) => vec![target.clone()],
        None => fuzz_targets()?,
    };
    for target in targets {
        let limit = format!("-max_total_time={seconds}");
        run(Command::new("cargo").args(["+nightly", "fuzz", "run", &target, "--", &limit]))
            .map_err(|e| format!("{e}\n(cargo-fuzz and a nightly toolchain are needed)"))?;
    }
    Ok(())
}

fn fuzz_targets() -> Result<Vec<String>, String> {
    let directory = root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

/// Builds and runs the product.
fn weir(words: &[&str], args: &[String]) -> Result<(), String> {
    let build = ["run", "--release", "--quiet", "--package", "cli", "--bin", "weir", "--"];
    cargo(&[&build, words].concat(), args)
}

fn cargo(words: &[&str], args: &[String]) -> Result<(), String> {
    run(Command::new(cargo_path()).args(words).args(args))
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}").replace('"', "");
    eprintln!("$ {shown}");
    let status = command.current_dir(root()).status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {shown}")) }
}

/// What cargo knows about the workspace.
fn metadata() -> Result<Value, String> {
    let output = Command::new(cargo_path())
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn has_feature(metadata: &Value, package: &str, feature: &str) -> bool {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    packages.iter().any(|p| p["name"] == package && p["features"].get(feature).is_some())
}
