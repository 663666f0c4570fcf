//! The rules of the house, checked. Each rule is a function from the repository to the faults it
//! finds; a fault names file, line, rule and mend. What a rule needs to know stands in the document
//! that people read (the tables of ARCHITECTURE.md), not in a second list here.

mod documents;
mod layers;
mod outside;
mod parts;
mod source;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Every fault of the repository at `root`.
pub fn run(root: &Path, metadata: &Value) -> Result<Vec<String>, String> {
    let files = files(root)?;
    let mut faults = root_entries(root)?;
    let architecture = read(&root.join("ARCHITECTURE.md"))?;
    let table = layers::table(&architecture)?;
    faults.extend(layers::check(&table, metadata));
    faults.extend(layers::pure_crates(root, &table));
    for (krate, house) in &parts::tables(&architecture)? {
        faults.extend(parts::check(krate, house, &parts::sources(root, krate, &files)?));
    }
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => faults.extend(source::check(&name, &read(path)?)),
            Some("md") => faults.extend(documents::check(root, path, &name, &read(path)?)),
            _ => {}
        }
        // Not all files are text; a path in one that is not is nobody's to follow.
        if let Ok(text) = fs::read_to_string(path) {
            faults.extend(outside::check(root, path, &name, &text));
        }
    }
    faults.extend(documents::required(root)?);
    Ok(faults)
}

/// What may lie in the root. Anything else needs a better place.
const ROOT_ENTRIES: &[&str] = &[
    ".cargo",
    ".ci",
    ".git",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "GLOSSARY.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "STYLE.md",
    "crates",
    "deny.toml",
    "devices",
    "docs",
    "experiments",
    "fuzz",
    "monitoring",
    "packaging",
    "plugins",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "target",
    "traces",
    "weir-data",
    "x",
    "xtask",
];

fn root_entries(root: &Path) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root).map_err(|error| format!("{}: {error}", root.display()))? {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        let name = name.to_string_lossy();
        if !ROOT_ENTRIES.contains(&&*name) {
            faults.push(format!("{name}: does not belong in the root (xtask/src/tidy/mod.rs)"));
        }
    }
    Ok(faults)
}

/// Every file that is ours, in a fixed order.
fn files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(&*name, "target" | ".git" | "weir-data" | "corpus" | "artifacts") {
                    directories.push(path);
                }
            } else if name != ".git" {
                // In a worktree .git is a file, and git's own.
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
