//! See `crates/fuzzing/src/nbd.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::nbd::run(bytes));
