//! See `crates/fuzzing/src/nvme.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::nvme::run(bytes));
