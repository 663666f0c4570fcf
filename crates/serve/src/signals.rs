//! Serving until a signal: the first SIGTERM or SIGINT begins a clean shutdown, a second ends the
//! process at once (nothing acknowledged is lost by that either).

use crate::{Config, Ready, ServeError, Server};
use std::io;

/// Serves until SIGTERM or SIGINT. `ready` is called once clients may come.
///
/// Call it before other threads are started: the signals are blocked for the calling thread and
/// its children, so that only this function takes them.
pub fn run(config: &Config, ready: impl FnOnce(&Ready)) -> Result<(), ServeError> {
    let system = |doing| move |error| ServeError::System { doing, error };
    let signals = block_signals().map_err(system("block signals"))?;
    let mut server = Server::start(config)?;
    ready(server.ready());
    let control = server.control();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            crate::panics::end_the_process();
            wait(&signals);
            tracing::info!("shutting down");
            control.shut_down();
            wait(&signals);
            std::process::exit(1);
        })
        .map_err(system("start a thread"))?;
    server.join()
}

fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by `sigemptyset` before it is used.
    let (signals, result) = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::sigaddset(&raw mut signals, libc::SIGINT);
        // A write to a pipe that nobody reads (a log, say) must be an error, not the end.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let result =
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        (signals, result)
    };
    if result == 0 { Ok(signals) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn wait(signals: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: both are valid for the call. It fails only for an invalid set.
    unsafe { libc::sigwait(signals, &raw mut signal) };
}
