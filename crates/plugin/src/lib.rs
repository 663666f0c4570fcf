//! Policies as WebAssembly: a user's own choice for any decision of the FTL, the same module in the
//! lab and in the server. docs/policies.md tells how to write one.
//!
//! A module has no imports. What a policy sees comes as arguments, or the host writes it into the
//! module's memory; what it answers is a number. [`Module::load`] compiles and checks it, which takes
//! milliseconds; a server has that done by another process, which hands back an [`Module::artifact`].
//! [`Module::make`] makes a policy of it, to be handed over to an FTL.
//!
//! Invariants:
//! - whatever a module does, a call ends within its fuel (one unit an instruction, or a byte that is
//!   copied), its memory stays within its bound, and it reaches nothing outside;
//! - the same calls give the same answers, on every machine: no imports, no threads, no relaxed
//!   SIMD, NaNs made canonical;
//! - a policy that breaks says so once ([`ftl::policy::Fault`]) and then answers what no FTL takes,
//!   so that the default decides until it is replaced.
#![warn(missing_docs)]
#![deny(unsafe_code)]

mod abi;
mod check;
mod erase;
mod guest;
mod limits;
mod stream;
mod unit;
mod victim;
mod wear;

pub use abi::{Kind, functions};

use abi::Signature;
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;
use guest::Guest;
use std::fmt;
use std::sync::Arc;

/// Largest module: compiling takes time in proportion.
pub const MODULE_BYTES_MAX: usize = 256 << 10;

/// Longest name of a module.
pub const NAME_BYTES_MAX: usize = 32;

/// Why a module is not taken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LoadError {
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

/// A module that is compiled and was tried.
#[derive(Clone)]
pub struct Module {
    name: String,
    bytes: usize,
    kinds: Vec<Kind>,
    code: Arc<wasmtime::Module>,
}

impl Module {
    /// Compiles `bytes`, checks what it exports, and tries it on views of each kind.
    ///
    /// # Errors
    /// What is wrong with it, and the mend.
    pub fn load(name: &str, bytes: &[u8]) -> Result<Self, LoadError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
            return Err(LoadError::Name(name.chars().take(NAME_BYTES_MAX).collect()));
        }
        if bytes.len() > MODULE_BYTES_MAX {
            return Err(LoadError::TooLarge(bytes.len()));
        }
        if !bytes.starts_with(b"\0asm") {
            return Err(LoadError::NotWasm);
        }
        limits::check(bytes).map_err(LoadError::Invalid)?;
        let code = guest::compile(bytes).map_err(LoadError::Invalid)?;
        let module = Self::of(name, bytes.len(), code)?;
        for &kind in &module.kinds {
            check::check(&module, kind).map_err(|reason| LoadError::Check { kind, reason })?;
        }
        Ok(module)
    }

    fn of(name: &str, bytes: usize, code: wasmtime::Module) -> Result<Self, LoadError> {
        if let Some(import) = code.imports().next() {
            return Err(LoadError::Imports(format!("{}.{}", import.module(), import.name())));
        }
        let kinds = abi::kinds(&exports(&code)).map_err(LoadError::Exports)?;
        Ok(Self { name: name.into(), bytes, kinds, code: Arc::new(code) })
    }

    /// What is compiled, for [`Module::of_artifact`].
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn artifact(&self) -> Result<Vec<u8>, String> {
        self.code.serialize().map_err(|error| format!("{error:#}"))
    }

    /// The module called `name`, of `bytes` bytes, that another process of this program has loaded. It
    /// is not tried again.
    ///
    /// # Safety
    /// `artifact` is what [`Module::artifact`] gave, unchanged: it is code that will run.
    ///
    /// # Errors
    /// It was made by another version of this program, or for another machine.
    #[expect(unsafe_code, reason = "what is handed in is run")]
    pub unsafe fn of_artifact(
        name: &str,
        bytes: usize,
        artifact: &[u8],
    ) -> Result<Self, LoadError> {
        // SAFETY: as the caller says.
        let code = unsafe { guest::compiled(artifact) }.map_err(LoadError::Invalid)?;
        Self::of(name, bytes, code)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a policy of it is called: `wasm:NAME`.
    pub fn policy_name(&self) -> String {
        format!("wasm:{}", self.name)
    }

    /// Bytes of the module.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The decisions it can make.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// A policy for `decision`; one for streams is made for `shape`.
    ///
    /// # Errors
    /// It has none of that kind, or it broke while it was made.
    pub fn make(&self, decision: &str, shape: Shape) -> Result<Chosen, String> {
        let kind = self.kinds.iter().find(|kind| kind.decision() == decision).ok_or_else(|| {
            let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.decision()).collect();
            format!("{} decides {}, not {decision}", self.policy_name(), kinds.join(" and "))
        })?;
        self.made(*kind, shape).map_err(|reason| format!("{}: {reason}", self.policy_name()))
    }

    fn made(&self, kind: Kind, shape: Shape) -> Result<Chosen, String> {
        let guest = Guest::new(&self.code)?;
        Ok(match kind {
            Kind::Victim => Chosen::Victim(Box::new(victim::WasmVictim::new(guest)?)),
            Kind::Stream => Chosen::Stream(Box::new(stream::WasmStream::new(guest, shape)?)),
            Kind::Erase => Chosen::Erase(Box::new(erase::WasmErase::new(guest)?)),
            Kind::Wear => Chosen::Wear(Box::new(wear::WasmWear::new(guest)?)),
            Kind::Unit => Chosen::Unit(Box::new(unit::WasmUnit::new(guest)?)),
        })
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({}, {} bytes, {:?})", self.name, self.bytes, self.kinds)
    }
}

/// What the module exports: functions by their signature, `None` for the memory.
fn exports(code: &wasmtime::Module) -> Vec<(String, Option<Signature>)> {
    use wasmtime::{ExternType, ValType};
    let letter = |of: ValType| match of {
        ValType::I32 => 'i',
        ValType::I64 => 'l',
        _ => '?',
    };
    let mut list = Vec::new();
    for export in code.exports() {
        match export.ty() {
            ExternType::Func(function) => {
                let params = function.params().map(letter).collect();
                let results = function.results().map(letter).collect();
                list.push((export.name().to_owned(), Some((params, results))));
            }
            ExternType::Memory(memory) if !memory.is_64() && !memory.is_shared() => {
                list.push((export.name().to_owned(), None));
            }
            _ => {}
        }
    }
    list
}
