//! `cargo xtask rocksdb`: what of a store needs RocksDB, for the one that this machine has: its file system for programs that are
//! not changed, and the engine of `weir store`. It is no part of any other build: it needs g++ and RocksDB's headers, which
//! `./x setup` installs.

use crate::commands::target_folder;
use crate::{cargo_path, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `weir rocksdb` and `weir store` look, seen from cargo's folder.
const FOLDER: &str = "rocksdb";
/// What is built: its file, its sources, and what of it others see.
const LIBRARIES: [(&str, [&str; 2], &str); 2] = [
    ("libweir_rocksdb.so", ["file_system.cc", "preload.cc"], "preload.map"),
    ("libweir_store.so", ["file_system.cc", "engine.cc"], "engine.map"),
];
/// What these are written against; a newer one may have renamed what they override.
const HEADER: &str = "rocksdb/file_system.h";

/// Builds all; the folder that they are in.
pub fn build() -> Result<PathBuf, String> {
    let target = target_folder()?;
    let words = ["rustc", "--package", "store", "--lib", "--crate-type", "staticlib", "--release"];
    run(Command::new(cargo_path()).args(words))?;
    let folder = target.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (file, sources, map) in LIBRARIES {
        let (made, new) = (folder.join(file), folder.join(format!("{file}.new")));
        let source = Path::new("crates/store/rocksdb");
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
        compiler.arg("-fvisibility=hidden").args(sources.map(|of| source.join(of)));
        compiler.arg(target.join("release/libstore.a"));
        let map = source.join(map);
        compiler.arg(format!("-Wl,--version-script={},--gc-sections", map.display()));
        compiler.arg("-o").arg(&new).args(["-lrocksdb", "-ldl", "-lpthread"]);
        run(&mut compiler).map_err(|error| {
            format!(
                "{error}\nthis needs g++ and <{HEADER}> of RocksDB 7.8: `./x setup` installs both"
            )
        })?;
        // In one step, so that a program that loads it meanwhile has a whole one.
        std::fs::rename(&new, &made).map_err(|error| format!("{}: {error}", made.display()))?;
        println!("{}", made.display());
    }
    Ok(folder)
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    eprintln!("$ {shown}");
    let status = command.current_dir(root()).status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {shown}")) }
}
