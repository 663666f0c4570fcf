//! Which policy decides what, over all shards; and the WebAssembly modules that policies may be made
//! of.
//!
//! Invariants:
//! - policies are made and dropped here, never on a shard: a shard only exchanges them;
//! - one switch at a time, on all shards or, if the first refuses, on none;
//! - modules are bounded in number; one that is replaced or forgotten lives on in the policies that
//!   were made of it.

use crate::compiler::{CompileError, Compiler};
use crate::runtime::shard::PolicySwitch;
use crate::server::Control;
use ftl::policy::Chosen;
use ftl::policy::stream::Shape;
use plugin::Module;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// How long a shard may take to answer.
pub const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Most modules that are kept.
const MODULES_MAX: usize = 32;

/// What begins the name of a policy that is made of a module.
pub const WASM: &str = "wasm:";

/// A module that the config names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PluginFile {
    /// What its policies are called, behind `wasm:`.
    pub name: String,
    /// Where it is.
    pub file: PathBuf,
}

/// The modules there are.
#[derive(Debug, Default)]
pub struct Plugins {
    compiler: Compiler,
    modules: Mutex<BTreeMap<String, Module>>,
    /// Held for a switch.
    switching: Mutex<()>,
}

impl Plugins {
    /// None yet; `compiler` will make them.
    pub fn new(compiler: Compiler) -> Self {
        Self { compiler, ..Self::default() }
    }

    /// Compiles and checks a module, and keeps it in place of one of the same name.
    ///
    /// # Errors
    /// What is wrong with it, or that too many are being compiled.
    pub fn load(&self, name: &str, bytes: &[u8]) -> Result<Module, CompileError> {
        // Before the work, and after: others may have come meanwhile.
        self.room(name, &self.modules())?;
        let module = self.compiler.compile(name, bytes).map_err(|error| match error {
            CompileError::Refused(reason) => CompileError::Refused(format!("{name}: {reason}")),
            CompileError::Busy => error,
        })?;
        let mut modules = self.modules();
        self.room(name, &modules)?;
        modules.insert(name.into(), module.clone());
        Ok(module)
    }

    /// `Err` if there are as many modules as there may be, and none is called `name`.
    fn room(&self, name: &str, modules: &BTreeMap<String, Module>) -> Result<(), CompileError> {
        if modules.len() < MODULES_MAX || modules.contains_key(name) {
            return Ok(());
        }
        Err(CompileError::Refused(format!(
            "{name}: there are {MODULES_MAX} modules already: load it in place of one of them, {}",
            modules.keys().cloned().collect::<Vec<_>>().join(", ")
        )))
    }

    fn modules(&self) -> MutexGuard<'_, BTreeMap<String, Module>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same with a file.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it.
    pub fn load_file(&self, plugin: &PluginFile) -> Result<Module, String> {
        let bytes = read_module(&plugin.file)?;
        self.load(&plugin.name, &bytes)
            .map_err(|reason| format!("{}: {reason}", plugin.file.display()))
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Module> {
        let modules = self.modules();
        modules.values().cloned().collect()
    }

    fn find(&self, name: &str) -> Result<Module, String> {
        let modules = self.modules();
        modules.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = modules.keys().map(String::as_str).collect();
            let there = if names.is_empty() { "none".into() } else { names.join(", ") };
            format!(
                "no module is called {name:?}; loaded are {there}: `weir ctl policy load FILE.wasm` \
                 loads one"
            )
        })
    }
}

/// The bytes of a module's file, if it is not too large for one.
///
/// # Errors
/// It cannot be read.
pub fn read_module(file: &std::path::Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let shown = file.display();
    let open = crate::files::open_named(file, std::fs::File::options().read(true));
    let mut bytes = Vec::new();
    // One byte more than is taken, so that what is too large is found so.
    open.map_err(|error| format!("{shown}: {error}"))?
        .take(plugin::MODULE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    Ok(bytes)
}

/// Why a policy was not switched.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SwitchError {
    /// What was asked for cannot be: nothing has changed.
    Refused(String),
    /// A shard does not answer.
    NoAnswer(usize),
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => f.write_str(reason),
            Self::NoAnswer(shard) => {
                write!(f, "shard {shard} does not answer: it is stopping, or stuck")
            }
        }
    }
}

/// Puts the policy `name` in charge of `decision` on all shards: "victim", "wear", "erase", "unit",
/// "stream" or "stream/VOLUME", "mapping" or "mapping/VOLUME". Blocks until it is.
///
/// # Errors
/// What there is instead.
pub fn switch(control: &Control, decision: &str, name: &str, by: &str) -> Result<(), SwitchError> {
    let plugins = control.plugins();
    let _one = plugins.switching.lock().unwrap_or_else(PoisonError::into_inner);
    let counted = counted(control, decision).map_err(SwitchError::Refused)?;
    let mut ready = Vec::new();
    for shard in 0..control.shards() {
        let (sender, receiver) = mpsc::channel();
        control.shapes(shard, &counted, name, move |shapes| drop(sender.send(shapes)));
        let shapes = receiver.recv_timeout(ANSWER_TIME);
        let shapes = shapes.map_err(|_| SwitchError::NoAnswer(shard))?;
        let shapes = shapes.map_err(SwitchError::Refused)?;
        ready.push(make(plugins, &counted, name, &shapes).map_err(SwitchError::Refused)?);
    }
    for (shard, chosen) in ready.into_iter().enumerate() {
        let (sender, receiver) = mpsc::channel();
        control.switch(
            shard,
            PolicySwitch {
                decision: counted.clone(),
                name: name.into(),
                by: by.into(),
                chosen,
                done: Box::new(move |result| drop(sender.send(result))),
            },
        );
        // Those that were in charge end here.
        let before = receiver.recv_timeout(ANSWER_TIME);
        before.map_err(|_| SwitchError::NoAnswer(shard))?.map_err(SwitchError::Refused)?;
    }
    tracing::info!(decision, name, by, "a policy was switched");
    Ok(())
}

/// The FTL counts its volumes; people call them by name.
fn counted(control: &Control, decision: &str) -> Result<String, String> {
    let Some((kind @ ("stream" | "mapping"), volume)) = decision.split_once('/') else {
        return Ok(decision.into());
    };
    let (exports, settled) = (control.exports(), control.settled());
    let there = exports.iter().any(|export| export.name == volume);
    match settled.iter().position(|name| name == volume) {
        // A lone volume is all there is.
        Some(_) if there && exports.len() == 1 && settled.len() == 1 => Ok(kind.into()),
        Some(index) if there => Ok(format!("{kind}/{index}")),
        _ if there => Err(format!(
            "{volume:?} was made or renamed since the server has started, and goes by what is decided for the whole \
             device: say in [[volume]] of the config what it shall have from the next start on"
        )),
        _ => {
            let names: Vec<_> = exports.iter().map(|export| export.name.as_str()).collect();
            Err(format!("no volume is called {volume:?}; there are {}", names.join(", ")))
        }
    }
}

/// The policies called `name` for these shapes.
fn make(
    plugins: &Plugins,
    decision: &str,
    name: &str,
    shapes: &[Shape],
) -> Result<Vec<Chosen>, String> {
    let kind = decision.split('/').next().unwrap_or(decision);
    match name.strip_prefix(WASM) {
        None => shapes.iter().map(|&shape| Chosen::by_name(kind, name, shape)).collect(),
        Some(module) => {
            let module = plugins.find(module)?;
            shapes.iter().map(|&shape| module.make(kind, shape)).collect()
        }
    }
}
