//! A module, compiled and tried, and the policies that are made of it.

use crate::abi::{self, Kind, Signature};
use crate::guest::{self, Guest};
use crate::{
    LoadError, MODULE_BYTES_MAX, NAME_BYTES_MAX, check, erase, stream, unit, victim, wear,
};
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;
use std::fmt;
use std::sync::Arc;

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
        let code = guest::compile(bytes).map_err(LoadError::Invalid)?;
        if let Some(import) = code.imports().next() {
            return Err(LoadError::Imports(format!("{}.{}", import.module(), import.name())));
        }
        let kinds = abi::kinds(&exports(&code)).map_err(LoadError::Exports)?;
        let module = Self { name: name.into(), bytes: bytes.len(), kinds, code: Arc::new(code) };
        for &kind in &module.kinds {
            check::check(&module, kind).map_err(|reason| LoadError::Check { kind, reason })?;
        }
        Ok(module)
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

    pub(crate) fn made(&self, kind: Kind, shape: Shape) -> Result<Chosen, String> {
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
