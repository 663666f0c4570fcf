//! The examples of STYLE.md, compiled and run as doctests: `cargo test --doc -p xtask`.
#![doc = include_str!("../../STYLE.md")]
