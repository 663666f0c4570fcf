//! Every decoder of bytes that come from outside, as a function that must not panic on any input.
//!
//! cargo-fuzz calls them (`fuzz/fuzz_targets`), and so does the test below: on the committed corpus
//! (`fuzz/corpus`) and on a fixed count of inputs that a seed makes of it. A fuzzer finds more; the
//! test sees to it that no change breaks what it has found, and that every target runs at all.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod config;
pub mod ftl_formats;
pub mod lab_files;
mod mutate;
pub mod nand_formats;
pub mod nbd;
pub mod nvme;
pub mod pool;
pub mod trace;
pub mod vhost;
pub mod volumes;

pub use mutate::Mutator;

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Also that of its file in `fuzz/fuzz_targets` and of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Panics if the decoder is wrong.
    pub run: fn(&[u8]),
    /// Inputs that a test makes of the corpus.
    pub count: u32,
}

/// All of them.
pub const TARGETS: [Target; 10] = [
    Target { name: "config", run: |bytes| text(bytes, config::run), count: 2_000 },
    Target { name: "ftl_formats", run: ftl_formats::run, count: 20_000 },
    Target { name: "lab_files", run: |bytes| text(bytes, lab_files::run), count: 2_000 },
    Target { name: "nand_formats", run: nand_formats::run, count: 10_000 },
    Target { name: "nbd", run: nbd::run, count: 20_000 },
    Target { name: "nvme", run: nvme::run, count: 20_000 },
    Target { name: "pool", run: pool::run, count: 20_000 },
    Target { name: "trace", run: trace::run, count: 20_000 },
    Target { name: "vhost", run: vhost::run, count: 10_000 },
    Target { name: "volumes", run: volumes::run, count: 20_000 },
];

fn text(bytes: &[u8], run: fn(&str)) {
    run(&String::from_utf8_lossy(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;
    use std::fs;
    use std::panic::catch_unwind;
    use std::path::{Path, PathBuf};

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
    }

    fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
        let folder = folder().join("corpus").join(name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut inputs: Vec<(String, Vec<u8>)> = entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
            .collect();
        inputs.sort();
        inputs
    }

    fn run_all(target: &Target) {
        let corpus = corpus(target.name);
        assert!(!corpus.is_empty(), "{}: the corpus holds something", target.name);
        for (path, input) in &corpus {
            let ended = catch_unwind(|| (target.run)(input));
            assert!(ended.is_ok(), "{}: {path}", target.name);
        }
        let seeds: Vec<&[u8]> = corpus.iter().map(|(_, input)| &input[..]).collect();
        for seed in 0..u64::from(target.count) {
            let input = Mutator::new(Random::new(seed)).input(&seeds);
            let ended = catch_unwind(|| (target.run)(&input));
            assert!(ended.is_ok(), "{} seed={seed} input={}", target.name, input.escape_ascii());
        }
    }

    macro_rules! each {
        ($($name:ident),*) => {
            /// One test a target, so that they run beside each other and a failure names its own.
            mod corpus_and_a_fixed_count_of_changes {
                $(#[test]
                fn $name() {
                    let named = |target: &&super::Target| target.name == stringify!($name);
                    super::run_all(super::TARGETS.iter().find(named).expect("it is listed"));
                })*
            }
            const TESTED: &[&str] = &[$(stringify!($name)),*];
        };
    }

    each!(config, ftl_formats, lab_files, nand_formats, nbd, nvme, pool, trace, vhost, volumes);

    #[test]
    fn every_target_is_listed_built_tested_and_has_a_corpus() {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut names: Vec<String> = entries
                .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        let listed: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names(&folder().join("fuzz_targets")), listed, "fuzz/fuzz_targets");
        assert_eq!(names(&folder().join("corpus")), listed, "fuzz/corpus");
        assert_eq!(TESTED, listed, "the tests of this file");
        let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        let mut built: Vec<&str> = manifest
            .split("[[bin]]")
            .skip(1)
            .filter_map(|bin| bin.split("name = \"").nth(1)?.split('"').next())
            .collect();
        built.sort_unstable();
        assert_eq!(built, listed, "fuzz/Cargo.toml");
        for name in listed {
            let path = folder().join(format!("fuzz_targets/{name}.rs"));
            let source = fs::read_to_string(&path).unwrap();
            assert!(source.contains(&format!("fuzzing::{name}::run(")), "{}", path.display());
            let bytes: usize = corpus(name).iter().map(|(_, input)| input.len()).sum();
            assert!(bytes > 0 && bytes <= 96 << 10, "{name}: a corpus of {bytes} bytes");
        }
    }
}
