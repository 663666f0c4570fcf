//! See `crates/fuzzing/src/lab_files.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| fuzzing::lab_files::run(text));
