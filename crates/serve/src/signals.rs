//! Serving until a signal: the first SIGTERM, SIGINT or SIGHUP begins a clean shutdown, a second one, a second later or more, ends
//! the process at once (nothing acknowledged is lost by that either), and so does a shutdown that takes
//! longer than it may. A server that was told to ignore SIGHUP (`nohup`) does; one whose terminal is gone
//! ends as cleanly as by SIGTERM.

use crate::{Config, Ready, ServeError, Server};
use flash::SECOND;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Beyond what shards may take, for whatever else there is to end.
const GRACE_NS: u64 = 5 * SECOND;

/// What comes so soon after a signal is the same one: `timeout`, and whoever ends a group of processes, signal twice.
const SAME_NS: u64 = SECOND;

/// Serves until a signal. `ready` is called once clients may come.
///
/// Call it before other threads are started: the signals are blocked for the calling thread and
/// its children, so that only this function takes them.
pub fn run(config: &Config, ready: impl FnOnce(&Ready)) -> Result<(), ServeError> {
    let stopper = Stopper::new(config.bounds.stop_ns)?;
    let mut server = Server::start(config)?;
    let control = server.control();
    // Before anybody hears that it is ready: who hears may send a signal at once.
    stopper.stops(move || control.shut_down());
    ready(server.ready());
    crate::notify::ready(server.ready(), server.control());
    server.join()
}

type Stop = Box<dyn FnOnce() + Send>;

/// What a signal does: until something is served it ends the process, then it stops what is served.
pub(crate) struct Stopper(Arc<Mutex<Option<Stop>>>);

impl Stopper {
    /// Takes signals from now on. What is stopped may take `stop_ns`.
    pub fn new(stop_ns: u64) -> Result<Self, ServeError> {
        let system = |doing| move |error| ServeError::System { doing, error };
        let signals = block(&[]).map_err(system("block signals"))?;
        let served: Arc<Mutex<Option<Stop>>> = Arc::default();
        let stop = Arc::clone(&served);
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                crate::panics::end_the_process();
                let signal = wait(&signals, None);
                let stop = stop.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(stop) = stop else {
                    // A mount or a format may be cut off anywhere.
                    tracing::warn!(signal, "ended before it was ready; nothing is lost by that");
                    std::process::exit(0);
                };
                tracing::info!(signal, "shutting down");
                crate::notify::stopping();
                stop();
                let why = match another(&signals, stop_ns + GRACE_NS) {
                    Some(_) => "a second signal",
                    None => "the shutdown does not end",
                };
                tracing::error!(
                    "{why}: the process ends at once; what was acknowledged is safe, and the next start recovers"
                );
                std::process::exit(1);
            })
            .map_err(system("start a thread"))?;
        Ok(Self(served))
    }

    /// Something is served, and is stopped so.
    pub fn stops(&self, stop: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(stop));
    }
}

/// Ends the process with status 0 at a signal: for processes that may end at any time, as nothing acknowledged
/// is ever lost by that. Call it before other threads are started.
///
/// # Errors
/// What the system says.
pub(crate) fn end_the_process() -> io::Result<()> {
    let signals = block(&[])?;
    let wait = move || {
        let signal = wait(&signals, None);
        tracing::info!(signal, "ended by a signal");
        std::process::exit(0);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// From now on the signals that end a process, and these, wait until they are asked for ([`wait`]). Call it before other
/// threads are started.
///
/// # Errors
/// What the system says.
pub(crate) fn block(others: &[i32]) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by `sigemptyset` before it is used, and `old` by the kernel.
    let (signals, result) = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for &signal in [libc::SIGTERM, libc::SIGINT].iter().chain(others) {
            libc::sigaddset(&raw mut signals, signal);
        }
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut old);
        if old.sa_sigaction != libc::SIG_IGN {
            libc::sigaddset(&raw mut signals, libc::SIGHUP);
        }
        // A write to a pipe that nobody reads (a log, say) must be an error, not the end.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let result =
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        (signals, result)
    };
    if result == 0 { Ok(signals) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// A signal that comes [`SAME_NS`] after a first one or later; `None` if there is none within `bound_ns`.
fn another(signals: &libc::sigset_t, bound_ns: u64) -> Option<i32> {
    let first = Instant::now();
    loop {
        let since_ns = first.elapsed().as_nanos() as u64;
        let signal = wait(signals, Some(bound_ns.saturating_sub(since_ns)))?;
        if first.elapsed() >= Duration::from_nanos(SAME_NS) {
            return Some(signal);
        }
    }
}

/// The next signal; `None` if there is none within `bound_ns`.
pub(crate) fn wait(signals: &libc::sigset_t, bound_ns: Option<u64>) -> Option<i32> {
    let Some(bound_ns) = bound_ns else {
        let mut signal = 0;
        // SAFETY: both are valid for the call. It fails only for an invalid set.
        unsafe { libc::sigwait(signals, &raw mut signal) };
        return Some(signal);
    };
    let bound = libc::timespec {
        tv_sec: (bound_ns / SECOND) as libc::time_t,
        tv_nsec: (bound_ns % SECOND) as libc::c_long,
    };
    // SAFETY: both are valid for the call, which needs no room for details.
    let signal = unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const bound) };
    (signal > 0).then_some(signal)
}
