//! Policies as WebAssembly: a user's own choice for any decision of the FTL, the same module in the
//! lab and in the server. docs/policies.md tells how to write one.
//!
//! A module has no imports. What a policy sees comes as arguments, or the host writes it into the
//! module's memory; what it answers is a number. [`Module::load`] compiles and checks it, which takes
//! milliseconds; [`Module::make`] makes a policy of it, to be handed over to an FTL.
//!
//! Invariants:
//! - whatever a module does, a call ends within its fuel (one unit an instruction, or a byte that is
//!   copied), its memory stays within its bound, and it reaches nothing outside;
//! - the same calls give the same answers, on every machine: no imports, no threads, no relaxed
//!   SIMD, NaNs made canonical;
//! - a policy that breaks says so once ([`ftl::policy::Fault`]) and then answers what no FTL takes,
//!   so that the default decides until it is replaced.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(not(feature = "wasm"))]
mod absent;
// Without the feature nobody asks which exports make which policy.
#[cfg_attr(not(feature = "wasm"), allow(dead_code))]
mod abi;
#[cfg(feature = "wasm")]
mod check;
#[cfg(feature = "wasm")]
mod erase;
#[cfg(feature = "wasm")]
mod guest;
#[cfg(feature = "wasm")]
mod module;
#[cfg(feature = "wasm")]
mod stream;
#[cfg(feature = "wasm")]
mod unit;
#[cfg(feature = "wasm")]
mod victim;
#[cfg(feature = "wasm")]
mod wear;

pub use abi::{Kind, functions};
#[cfg(not(feature = "wasm"))]
pub use absent::Module;
#[cfg(feature = "wasm")]
pub use module::Module;

use std::fmt;

/// Whether this build compiles and runs modules (the feature `wasm`).
pub const BUILT_IN: bool = cfg!(feature = "wasm");

/// Largest module: compiling takes time in proportion.
pub const MODULE_BYTES_MAX: usize = 256 << 10;

/// Longest name of a module.
pub const NAME_BYTES_MAX: usize = 32;

/// Why a module is not taken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LoadError {
    /// This build has nothing to compile it with.
    NotBuilt,
    /// Its name cannot be part of a policy's.
    Name(String),
    /// Larger than [`MODULE_BYTES_MAX`].
    TooLarge(usize),
    /// Does not begin as WebAssembly does.
    NotWasm,
    /// Not valid, or it uses what is switched off.
    Invalid(String),
    /// Wants something from outside.
    Imports(String),
    /// The exports of no policy, or not all of one.
    Exports(String),
    /// It broke, or answered nonsense, when it was tried.
    Check {
        /// As what it was tried.
        kind: Kind,
        /// What happened.
        reason: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => write!(
                f,
                "this build of weir has no plugins: `./x weir` makes one that has, and so does \
                 `cargo build --release -p cli`"
            ),
            Self::Name(name) => write!(
                f,
                "the name {name:?} must have 1 to {NAME_BYTES_MAX} of the characters a-z, 0-9 and -"
            ),
            Self::TooLarge(bytes) => write!(
                f,
                "the module has {bytes} bytes; at most {MODULE_BYTES_MAX} are taken: build it with \
                 --release, and strip it"
            ),
            Self::NotWasm => write!(
                f,
                "this is not WebAssembly: build it with `cargo build --release --target \
                 wasm32-unknown-unknown` and give the .wasm file"
            ),
            Self::Invalid(reason) => write!(f, "the module is not valid: {reason}"),
            Self::Imports(import) => write!(
                f,
                "the module asks for the import {import}: a policy gets all it sees in its memory and \
                 may call nothing: build it for wasm32-unknown-unknown without libraries that do I/O"
            ),
            Self::Exports(reason) => write!(f, "{reason}: see docs/policies.md"),
            Self::Check { kind, reason } => write!(f, "tried as a {kind} policy, {reason}"),
        }
    }
}

impl std::error::Error for LoadError {}
