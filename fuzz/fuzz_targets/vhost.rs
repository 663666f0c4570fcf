//! See `crates/fuzzing/src/vhost.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::vhost::run(bytes));
