//! Holds the emulator to the rules and the identities of NAND. Run one part by name, for example
//! `cargo test -p nand timing`; the speed with
//! `cargo test -p nand --release -- --ignored --nocapture`.

mod bench;
mod chips;
mod fast;
mod faults;
mod liveness;
mod power_cut;
mod rules;
mod speed;
mod suspension;
mod timing;
