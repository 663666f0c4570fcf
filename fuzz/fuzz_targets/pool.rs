//! See `crates/fuzzing/src/pool.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::pool::run(bytes));
