//! See `crates/fuzzing/src/trace.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::trace::run(bytes));
