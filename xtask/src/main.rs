//! `cargo xtask COMMAND`: the developer commands of this repository, one function each. `./x` sets
//! up a machine and calls them.

mod commands;
mod package;
mod rocksdb;
mod steps;
mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Every command, with what it does. Tidy compares what the documents name with this list.
pub const COMMANDS: &[(&str, &str)] = &[
    ("check", "cargo fmt --check, clippy with warnings as errors, tidy"),
    ("tidy", "the rules of the house: layers, lengths, links, words"),
    ("test", "[filter]: unit, model, simulation, mutant and real-client tests"),
    ("e2e", "[filter]: the tests with real clients"),
    ("quick", "the build of `./x run`: its size, and that it says what it leaves out"),
    ("package", "[args]: a tarball, a Debian package and an OCI image of weir"),
    (
        "rocksdb",
        "RocksDB's file system over a store and its engine, for `weir rocksdb` and `weir store`",
    ),
    ("sim", "[seed]: one simulated system; the same seed does the same, to the bit"),
    ("soak", "--minutes N: new seeds until time is over"),
    ("bench", "[args]: `weir bench`"),
    ("fuzz", "[target] [seconds]: one fuzz target, or each for a minute"),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let result = match command {
        "check" => commands::check(),
        "tidy" => commands::tidy(),
        "test" => commands::test(rest),
        "quick" => commands::quick(),
        "e2e" => commands::e2e(rest),
        "package" => package::package(rest),
        "rocksdb" => rocksdb::build().map(drop),
        "sim" => commands::sim(rest),
        "soak" => commands::soak(rest),
        "bench" => commands::bench(rest),
        "fuzz" => commands::fuzz(rest),
        _ => Err(usage(command)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn usage(command: &str) -> String {
    let mut text = match command {
        "help" | "--help" | "-h" => String::new(),
        unknown => format!("unknown command: {unknown}\n"),
    };
    for (name, what) in COMMANDS {
        text.push_str(&format!("cargo xtask {name:7} {what}\n"));
    }
    text
}

/// The cargo that runs us, so that a chosen toolchain stays chosen.
pub fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The repository's root: where this crate's folder lies.
pub fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the root").to_path_buf()
}
