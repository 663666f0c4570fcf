//! See `crates/fuzzing/src/nand_formats.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::nand_formats::run(bytes));
