//! Compiles the modules of users apart from serving: one at a time, in a process of its own that has
//! bounds on its processor time and its memory and steps back for everybody else. What it used is
//! given back when it ends, however it ends.
//!
//! Invariants:
//! - at most one module is compiled at a time, and at most [`WAITING_MAX`] wait for that;
//! - what is run is only what our own child said over our own pipe, and only if it ended well.

use plugin::{MODULE_BYTES_MAX, Module};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Modules that may wait to be compiled.
const WAITING_MAX: usize = 4;

/// Processor time of one. Modules just below each limit (`what_the_bounds_allow_is_compiled_within_a_bound`
/// of the tests of `plugin`) were measured at 0.1 to 1.0 s each, with the compiler itself built by the dev
/// profile, which is our slowest: so this is thirty times what is known to be needed.
const CPU_SECONDS_MAX: u64 = 30;

/// Memory of one, beside the program itself.
const DATA_BYTES_MAX: u64 = 768 << 20;

/// Longest that one may take, however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Most that is compiled of a module.
const ARTIFACT_BYTES_MAX: usize = 8 << 20;

/// What the child begins with if it has compiled the module, and if it has not.
const GOOD: &[u8; 8] = b"WeirCode";
const BAD: &[u8; 8] = b"WeirText";

/// The argument by which the program knows that it is the child.
pub const COMMAND: &str = "compile-module";

/// Why a module was not compiled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CompileError {
    /// Too many wait already.
    Busy,
    /// What is wrong with it.
    Refused(String),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => write!(
                f,
                "a module is being compiled and {WAITING_MAX} wait: busy, try again in some seconds"
            ),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Compiler {
    /// Called with [`COMMAND`]; without it this process compiles, as libraries do.
    program: Option<PathBuf>,
    waiting: AtomicUsize,
    one: Mutex<()>,
}

impl Compiler {
    /// One that calls `program`, which hands the call on to [`child`].
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program, ..Self::default() }
    }

    /// Compiles and tries a module. Blocks until that is done.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn compile(&self, name: &str, bytes: &[u8]) -> Result<Module, CompileError> {
        let _place = Place::take(&self.waiting).ok_or(CompileError::Busy)?;
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match &self.program {
            None => Module::load(name, bytes).map_err(|error| error.to_string()),
            Some(program) => apart(program, name, bytes),
        };
        module.map_err(CompileError::Refused)
    }
}

/// A place among those that wait, and the one that is compiled.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(places: &'a AtomicUsize) -> Option<Self> {
        let taken = places.fetch_add(1, Ordering::AcqRel);
        let place = Self(places);
        (taken <= WAITING_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn apart(program: &PathBuf, name: &str, bytes: &[u8]) -> Result<Module, String> {
    let failed = |what: &str, error: io::Error| format!("the compiler cannot be {what}: {error}");
    let mut command = Command::new(program);
    command.args([COMMAND, name]).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed("started", error))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let answer = std::thread::scope(|scope| {
        // Beside the reading: neither of two pipes may wait for the other.
        scope.spawn(move || {
            // A child that ends early says why by its end.
            input.map(|mut input| input.write_all(bytes).ok());
        });
        let answer = output.map(|output| read_until(output, Instant::now() + TIME_MAX));
        if !matches!(answer, Some(Ok(_))) {
            child.kill().ok();
        }
        answer
    });
    let status = reap(&mut child).map_err(|error| failed("awaited", error))?;
    let answer = match answer {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => return Err(failed("heard", error)),
        None => return Err("the compiler says nothing".into()),
    };
    match answer.split_first_chunk() {
        Some((GOOD, artifact)) if status.success() => {
            // SAFETY: the child is this very program, nobody else has its end of the pipe, and by its
            // status it has said all.
            let module = unsafe { Module::of_artifact(name, bytes.len(), artifact) };
            module.map_err(|error| error.to_string())
        }
        Some((BAD, text)) if status.success() => Err(String::from_utf8_lossy(text).into_owned()),
        _ => Err(format!(
            "to compile it takes more than {CPU_SECONDS_MAX} s or {} MiB of memory ({status}): make \
             it simpler",
            DATA_BYTES_MAX >> 20
        )),
    }
}

/// Reads to the end, but not beyond `deadline`, nor more than there can be.
fn read_until(mut output: impl Read + AsRawFd, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let fd = output.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is valid for the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as i32) };
        if ready == 0 && left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if ready <= 0 {
            continue;
        }
        let count = output.read(&mut part)?;
        bytes.extend_from_slice(&part[..count]);
        if count == 0 {
            return Ok(bytes);
        }
        if bytes.len() > ARTIFACT_BYTES_MAX {
            let most = ARTIFACT_BYTES_MAX >> 20;
            return Err(io::Error::other(format!("it compiles to more than {most} MiB")));
        }
    }
}

/// The end of a child that has closed its output; one that goes on is killed.
fn reap(child: &mut Child) -> io::Result<ExitStatus> {
    for _ in 0..200 {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()
}

/// The child: compiles the module on standard input and writes what came of it to standard output.
pub fn child(name: &str) -> ExitCode {
    let answer = match compile_bounded(name) {
        Ok(artifact) => [&GOOD[..], &artifact].concat(),
        Err(reason) => [&BAD[..], reason.as_bytes()].concat(),
    };
    match io::stdout().write_all(&answer).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn compile_bounded(name: &str) -> Result<Vec<u8>, String> {
    bound_myself().map_err(|error| format!("the compiler cannot be bounded: {error}"))?;
    let mut bytes = Vec::new();
    let input = io::stdin().take(MODULE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    input.map_err(|error| format!("the compiler hears nothing: {error}"))?;
    let module = Module::load(name, &bytes).map_err(|error| error.to_string())?;
    module.artifact()
}

/// Steps back for every other process, and has itself ended if it takes too much.
fn bound_myself() -> io::Result<()> {
    let limits = [
        (libc::RLIMIT_CPU, CPU_SECONDS_MAX),
        // Not the address space: of that a runtime reserves much and uses little.
        (libc::RLIMIT_DATA, DATA_BYTES_MAX),
        (libc::RLIMIT_CORE, 0),
    ];
    for (which, most) in limits {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the limit is valid for the call.
        if unsafe { libc::setrlimit(which, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: no memory is involved. It is a favour, so that it is refused is no matter.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    Ok(())
}
