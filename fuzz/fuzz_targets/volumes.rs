//! See `crates/fuzzing/src/volumes.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::volumes::run(bytes));
