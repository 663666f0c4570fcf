//! Running other people's programs: bounded in time, and loud about what went wrong.

use crate::refuse;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    // Asked before it is run: 127 may as well be what a shell says of a program in its script.
    assert!(
        find(program).is_some(),
        "{program} is not installed: `./x test` installs what these tests need"
    );
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
        output.status.code() != Some(124),
        "{program} {} did not end within {TOOL_SECONDS_MAX} s",
        args.join(" ")
    );
    output
}

/// Where a program is: the first of that name in the search path, or what is given if it is a path.
pub fn find(program: &str) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = search_path();
    let folders = if program.contains('/') { "" } else { &*path };
    folders.split(':').map(|folder| Path::new(folder).join(program)).find(|path| runs(path))
}

/// Says that `test` does not run here, and why. Each test that steps aside for what a machine lacks
/// says so by this, so that nobody believes that it ran: `cargo xtask` hands over a file, tells at the
/// end what is in it, and fails for it in CI.
pub fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED: {test}: {why}\n");
    // Not a macro: the test runner would keep what that prints of a test that passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("WEIR_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let noted = file.and_then(|mut file| file.write_all(line.as_bytes()));
        noted.unwrap_or_else(|error| panic!("{}: {error}", path.to_string_lossy()));
    }
}

/// If the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: asks for the user's number, nothing else.
    unsafe { libc::geteuid() == 0 }
}

/// If the test has root and `device`, which it needs; else it is skipped.
pub fn root_and(test: &str, device: &str) -> bool {
    let there = is_root() && Path::new(device).exists();
    if !there {
        skipped(test, &format!("it needs root and {device}"));
    }
    there
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

#[test]
fn a_missing_program_is_named_and_not_taken_for_the_shell_that_looks_for_it() {
    assert!(find("sh").is_some_and(|path| path.ends_with("sh")) && find("/bin/sh").is_some());
    for missing in ["no-such-program", "/bin/no-such-program", "/bin", "/etc/passwd"] {
        assert_eq!(find(missing), None, "{missing}");
    }
    let script = output("sh", &["-c", "no-such-program"]);
    assert_eq!(script.status.code(), Some(127), "what the shell says is passed on");
    let told = std::panic::catch_unwind(|| output("no-such-program", &[])).expect_err("panics");
    let told = told.downcast_ref::<String>().expect("a message");
    assert!(told.contains("no-such-program is not installed"), "{told}");
}
