//! Running other people's programs: bounded in time, and loud about what went wrong.

use crate::refuse;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Longest that one call of a tool may take.
const TOOL_SECONDS_MAX: u32 = 240;

/// Runs a tool and returns what it printed. Panics with everything it said if it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = output(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {} failed ({}):\n{text}\n{}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs a tool whatever comes of it.
pub fn output(program: &str, args: &[&str]) -> Output {
    output_as(program, args, |_| ())
}

fn output_as(program: &str, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Output {
    let seconds = TOOL_SECONDS_MAX.to_string();
    let mut command = Command::new("timeout");
    prepare(&mut command);
    let output = command
        .args(["--kill-after=5", &seconds, program])
        .args(args)
        .env("LC_ALL", "C")
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .output()
        .expect("coreutils' timeout starts");
    assert!(
        output.status.code() != Some(127),
        "{program} is not installed: `./x test` installs what these tests need"
    );
    assert!(
        output.status.code() != Some(124),
        "{program} {} did not end within {TOOL_SECONDS_MAX} s",
        args.join(" ")
    );
    output
}

/// The built binary, or the one named by `WEIR_E2E_BINARY`.
pub fn weir_path() -> PathBuf {
    std::env::var_os("WEIR_E2E_BINARY")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_weir")), PathBuf::from)
}

/// Runs a `weir` subcommand to its end, whatever comes of it.
pub fn weir(args: &[&str]) -> Output {
    let path = weir_path();
    output_as(path.to_str().expect("the binary's path is UTF-8"), args, refuse::as_told)
}

/// Standard output and error of a finished program, for messages and searches.
pub fn said(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

/// mkfs and losetup live in /usr/sbin, which an ordinary user's PATH may lack.
pub fn search_path() -> String {
    format!("{}:/usr/local/sbin:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// The stretches of `bytes` that look the same from run to run: a generator without state for
/// test images.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = flash::Random::new(seed);
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    out.truncate(bytes);
    out
}
