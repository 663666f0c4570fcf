//! A panic on a thread that others rely on ends the process, before anything is unwound.
//!
//! Shards hold raw views of each other's buffers, and the kernel writes to them: what a shard that
//! unwinds would free is still in use. And a server that has lost a thread is up, but serves some of
//! its clients only. So nothing goes on, and the next start recovers as from any crash.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static OTHERS_RELY_ON: Cell<bool> = const { Cell::new(false) };
}

/// From now on, a panic of the calling thread ends the process, after its message was printed.
pub fn end_the_process() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            print(info);
            if OTHERS_RELY_ON.get() {
                // Standard error, where the log goes, keeps nothing back that would have to be flushed.
                eprintln!(
                    "error: Weir has a bug, and ends at once so that no damage is done: what was \
                     acknowledged is safe; start it again, and please report the lines above"
                );
                std::process::abort();
            }
        }));
    });
    OTHERS_RELY_ON.set(true);
}
