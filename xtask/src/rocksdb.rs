//! `cargo xtask rocksdb`: RocksDB's file system over a store, for the RocksDB that this machine has. It is no part of
//! any other build: it needs g++ and RocksDB's headers, which `./x setup` installs.

use crate::commands::target_folder;
use crate::{cargo_path, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `weir rocksdb` looks, seen from cargo's folder.
const FOLDER: &str = "rocksdb";
const FILE: &str = "libweir_rocksdb.so";
/// What the file system is written against; a newer one may have renamed what it overrides.
const HEADER: &str = "rocksdb/file_system.h";

/// Builds it; where it is.
pub fn build() -> Result<PathBuf, String> {
    let target = target_folder()?;
    let words = ["rustc", "--package", "store", "--lib", "--crate-type", "staticlib", "--release"];
    run(Command::new(cargo_path()).args(words))?;
    let folder = target.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let made = folder.join(FILE);
    let new = folder.join(format!("{FILE}.new"));
    let source = Path::new("crates/store/rocksdb");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
    compiler.arg("-fvisibility=hidden").arg(source.join("file_system.cc"));
    compiler.arg(target.join("release/libstore.a"));
    let map = source.join("exports.map");
    compiler.arg(format!("-Wl,--version-script={},--gc-sections", map.display()));
    compiler.arg("-o").arg(&new).args(["-lrocksdb", "-ldl", "-lpthread"]);
    run(&mut compiler).map_err(|error| {
        format!("{error}\nthis needs g++ and <{HEADER}> of RocksDB 7.8: `./x setup` installs both")
    })?;
    // In one step, so that a program that loads it meanwhile has a whole one.
    std::fs::rename(&new, &made).map_err(|error| format!("{}: {error}", made.display()))?;
    println!("{}", made.display());
    Ok(made)
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    eprintln!("$ {shown}");
    let status = command.current_dir(root()).status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {shown}")) }
}
