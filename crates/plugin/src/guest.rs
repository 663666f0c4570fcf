//! An instance of a module: calls with a bound on their time, memory with a bound on its size, and
//! what broke it.

use ftl::policy::{Fault, FaultKind};
use wasmtime::{
    Config, Engine, Instance, Memory, Module, ResourceLimiter, Store, Trap, TypedFunc, WasmParams,
    WasmResults,
};

/// Memory of any module: its own data, stack and tables of constant size.
pub const MEMORY_BASE: usize = 4 << 20;

/// Fuel of a call that sets something up. It is not made while requests wait.
pub const FUEL_SET_UP: u64 = 200_000_000;

/// Entries of a table, such as for indirect calls.
const TABLE_MAX: usize = 10_000;

/// Bytes of the stack that calls nest on.
const STACK_BYTES: usize = 128 << 10;

/// Compiles a module, for this machine.
pub fn compile(bytes: &[u8]) -> Result<Module, String> {
    Module::new(&engine()?, bytes).map_err(|error| format!("{error:#}"))
}

/// Takes a module that [`compile`] made, perhaps in another process of this program.
///
/// # Safety
/// `artifact` is what `wasmtime::Module::serialize` gave for such a module: it holds code that will run.
#[expect(unsafe_code, reason = "there is no other way to take code from another process")]
pub unsafe fn compiled(artifact: &[u8]) -> Result<Module, String> {
    // SAFETY: as the caller says.
    let module = unsafe { Module::deserialize(&engine()?, artifact) };
    module.map_err(|error| format!("{error:#}"))
}

fn engine() -> Result<Engine, String> {
    let mut config = Config::new();
    config.consume_fuel(true);
    config.cranelift_nan_canonicalization(true);
    config.wasm_relaxed_simd(false);
    config.wasm_memory64(false);
    config.max_wasm_stack(STACK_BYTES);
    config.wasm_backtrace_max_frames(None);
    Engine::new(&config).map_err(|error| format!("{error:#}"))
}

/// What an instance may have.
struct Bounds {
    memory_bytes: usize,
    /// A policy may take memory only when it is told how much there will be to look at.
    may_grow: bool,
    /// What it was refused.
    refused: Option<String>,
}

impl ResourceLimiter for Bounds {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.memory_bytes {
            let most = self.memory_bytes;
            self.refused = Some(format!("it wanted {desired} bytes of memory and may have {most}"));
        } else if !self.may_grow {
            let more = desired - current;
            self.refused = Some(format!("it wanted {more} bytes more of memory while it decided"));
        }
        match &self.refused {
            // A refusal that it could overlook would not be noticed: it ends the call.
            Some(reason) => Err(wasmtime::Error::msg(reason.clone())),
            None => Ok(true),
        }
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_MAX)
    }

    fn memories(&self) -> usize {
        1
    }
}

/// See the head of this file.
pub struct Guest {
    store: Store<Bounds>,
    instance: Instance,
    memory: Memory,
    broken: bool,
    /// What broke it, until it is told.
    fault: Option<Fault>,
}

impl Guest {
    /// A new instance of `module`, which has been checked for its exports.
    ///
    /// # Errors
    /// What it did wrong when it began.
    pub fn new(module: &Module) -> Result<Self, String> {
        let bounds = Bounds { memory_bytes: MEMORY_BASE, may_grow: true, refused: None };
        let mut store = Store::new(module.engine(), bounds);
        store.limiter(|bounds| bounds);
        store.set_fuel(FUEL_SET_UP).map_err(|error| error.to_string())?;
        let made = Instance::new(&mut store, module, &[]);
        let instance = made.map_err(|error| fault_of(&mut store, &error).reason)?;
        let memory = instance.get_memory(&mut store, "memory").ok_or("it exports no memory")?;
        let mut guest = Self { store, instance, memory, broken: false, fault: None };
        let version: i32 = guest
            .function::<(), i32>("weir_abi")?
            .and_then(|function| guest.set_up(&function, ()))
            .ok_or_else(|| guest.last_words())?;
        if version != crate::abi::VERSION {
            return Err(format!(
                "it is made for version {version} of the interface; this Weir has version {}",
                crate::abi::VERSION
            ));
        }
        guest.store.data_mut().may_grow = false;
        Ok(guest)
    }

    /// A function that it exports; `None` if it does not.
    ///
    /// # Errors
    /// It has another signature.
    pub fn function<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &str,
    ) -> Result<Option<TypedFunc<P, R>>, String> {
        let Some(function) = self.instance.get_func(&mut self.store, name) else { return Ok(None) };
        function.typed(&self.store).map(Some).map_err(|error| format!("{name}: {error}"))
    }

    /// A function that it must export.
    ///
    /// # Errors
    /// It does not, or it has another signature.
    pub fn required<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &str,
    ) -> Result<TypedFunc<P, R>, String> {
        self.function(name)?.ok_or_else(|| format!("it does not export {name}"))
    }

    /// Calls `function`, for at most `fuel` instructions. `None` if it broke, now or before.
    #[inline]
    pub fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        function: &TypedFunc<P, R>,
        fuel: u64,
        params: P,
    ) -> Option<R> {
        if self.broken {
            return None;
        }
        let called = self.store.set_fuel(fuel);
        match called.and_then(|()| function.call(&mut self.store, params)) {
            Ok(result) => Some(result),
            Err(error) => {
                let fault = fault_of(&mut self.store, &error);
                self.breaks(fault);
                None
            }
        }
    }

    /// Calls `function`, which may take memory and some time.
    pub fn set_up<P: WasmParams, R: WasmResults>(
        &mut self,
        function: &TypedFunc<P, R>,
        params: P,
    ) -> Option<R> {
        self.store.data_mut().may_grow = true;
        let result = self.call(function, FUEL_SET_UP, params);
        self.store.data_mut().may_grow = false;
        result
    }

    /// It may have `bytes` beside what every module may.
    pub fn grant(&mut self, bytes: usize) {
        let bounds = self.store.data_mut();
        bounds.memory_bytes = bounds.memory_bytes.max(MEMORY_BASE + bytes);
    }

    /// Asks for room for a view of `bytes`: `ask` tells the address. `None` if it broke.
    pub fn room<P: WasmParams>(
        &mut self,
        ask: &TypedFunc<P, i32>,
        params: P,
        bytes: usize,
    ) -> Option<usize> {
        self.grant(2 * bytes);
        let at = self.set_up(ask, params)? as u32 as usize;
        let size = self.memory.data_size(&self.store);
        if at == 0 || at.checked_add(bytes).is_none_or(|end| end > size) {
            self.out_of_range(format!(
                "it gave address {at} for {bytes} bytes, in a memory of {size}"
            ));
            return None;
        }
        Some(at)
    }

    /// Its memory from `at` on.
    ///
    /// # Panics
    /// If it has no `bytes` there; what [`Guest::room`] gave, it has: memory never shrinks.
    #[inline]
    pub fn bytes_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        &mut self.memory.data_mut(&mut self.store)[at..at + bytes]
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    /// Its answer is none of those that are possible.
    #[cold]
    pub fn out_of_range(&mut self, reason: String) {
        self.breaks(Fault { kind: FaultKind::OutOfRange, reason });
    }

    /// What broke it, once.
    #[inline]
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// What broke it, in words.
    pub fn last_words(&mut self) -> String {
        self.fault.take().map_or_else(|| "it does not answer".into(), |fault| fault.reason)
    }

    fn breaks(&mut self, fault: Fault) {
        if !self.broken {
            self.broken = true;
            self.fault = Some(fault);
        }
    }
}

/// What an error of a call was.
#[cold]
fn fault_of(store: &mut Store<Bounds>, error: &wasmtime::Error) -> Fault {
    let (kind, reason) = match (store.data_mut().refused.take(), error.downcast_ref::<Trap>()) {
        (Some(refused), _) => (FaultKind::OutOfMemory, refused),
        (None, Some(Trap::OutOfFuel)) => {
            (FaultKind::OutOfTime, "it did not decide in the time it has".into())
        }
        (None, Some(trap)) => (FaultKind::Trapped, format!("it trapped: {trap}")),
        (None, None) => (FaultKind::Trapped, format!("it trapped: {error:#}")),
    };
    Fault { kind, reason }
}
