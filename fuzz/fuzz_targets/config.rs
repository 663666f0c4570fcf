//! See `crates/fuzzing/src/config.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| fuzzing::config::run(text));
