//! The wish to end early: the first SIGINT, SIGTERM or SIGHUP is a wish, which a measurement or a screen looks for; the
//! second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static WISHED: AtomicBool = AtomicBool::new(false);

/// What the process dies of, as a shell tells it, is the caller's matter: here it ends like any program that was
/// interrupted.
const INTERRUPTED: libc::c_int = 130;

extern "C" fn wish(_: libc::c_int) {
    if WISHED.swap(true, Ordering::SeqCst) {
        interrupted();
    }
}

/// Ends the process at once, with nothing restored.
pub fn interrupted() -> ! {
    // SAFETY: it may be called from a signal handler.
    unsafe { libc::_exit(INTERRUPTED) }
}

/// From now on signals are wishes.
pub fn listen() {
    let handler = wish as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only touches an atomic and ends the process.
        unsafe {
            let before = libc::signal(signal, handler);
            // Who was told to ignore it, as in the background of a script, does.
            if before == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// True once somebody wished it.
pub fn is_wished() -> bool {
    WISHED.load(Ordering::SeqCst)
}
