//! Modules against the host, and against the FTL in the lab.
//!
//! The modules of plugins/ are read as they are checked in: no compiler for WebAssembly is needed.
//! Those that misbehave are written here, as text.

mod bad;
mod document;
mod good;
mod hostile;

use plugin::Module;

/// A module of plugins/.
pub fn shipped(name: &str) -> Module {
    let path = format!("{}/../../plugins/{name}/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Module::load(name, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The bytes of a module that is written as text.
pub fn assembled(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A victim module: `head` is what comes before its functions, `pick` the body of `victim_pick`.
pub fn victim(head: &str, pick: &str) -> Vec<u8> {
    assembled(&format!(
        "(module {head} (memory (export \"memory\") 16)
            (func (export \"weir_abi\") (result i32) i32.const 1)
            (func (export \"victim_room\") (param i32 i32) (result i32) i32.const 1024)
            (func (export \"victim_pick\") (param $len i32) (param $slots i32) (param $now i64)
                (result i32) {pick}))"
    ))
}

/// A stream module: `write` is the body of `stream_write`.
pub fn stream(head: &str, write: &str) -> Vec<u8> {
    assembled(&format!(
        "(module {head} (memory (export \"memory\") 1)
            (func (export \"weir_abi\") (result i32) i32.const 1)
            (func (export \"stream_start\") (param i32) (result i32) i32.const 0x204)
            (func (export \"stream_write\") (param $lba i32) (param $flags i32) (param $hint i32)
                (param $handles i32) (param $now i64) (param $age i64) (result i32) {write}))"
    ))
}
