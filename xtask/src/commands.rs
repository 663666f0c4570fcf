//! The commands themselves: each a short list of programs to run in order, stopping at the first
//! that fails.

use crate::{root, tidy};
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

/// Formatting, lints and the rules of the house.
pub fn check() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
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
    // The server's own crates and the pure ones in the dev profile, with overflow checks. The
    // clients' tests drive the binary that users run, so they come last and in release.
    cargo(&["test", "--workspace", "--exclude", "cli"], args)?;
    cargo(&["test", "--package", "cli", "--bins"], args)?;
    mutants(args)?;
    e2e(args)?;
    e2e_without_io_uring(args)
}

/// The tests that plant a bug in the FTL and demand that a checker finds it, if the lab has them.
fn mutants(args: &[String]) -> Result<(), String> {
    if !has_feature(&metadata()?, "lab", "mutants") {
        return Ok(());
    }
    cargo(&["test", "--release", "--package", "lab", "--features", "mutants"], args)
}

/// The real clients.
pub fn e2e(args: &[String]) -> Result<(), String> {
    cargo(&["test", "--release", "--package", "cli", "--test", "e2e"], args)
}

/// A part of the real clients where the system refuses io_uring, as in many containers. Not if only
/// some tests are asked for.
fn e2e_without_io_uring(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Ok(());
    }
    run(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--release", "--package", "cli", "--test", "e2e", "--"])
        .args(["clients::", "hostile::", "kill::", "tier::"])
        .env("WEIR_E2E_DRIVER", "threads"))
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
    // The cargo that runs us, so that a chosen toolchain stays chosen.
    run(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(words)
        .args(args))
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}").replace('"', "");
    eprintln!("$ {shown}");
    let status = command.current_dir(root()).status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {shown}")) }
}

/// What cargo knows about the workspace.
fn metadata() -> Result<Value, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
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
