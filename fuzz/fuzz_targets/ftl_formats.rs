//! See `crates/fuzzing/src/ftl_formats.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::ftl_formats::run(bytes));
