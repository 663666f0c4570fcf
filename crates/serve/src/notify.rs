//! What the service manager (systemd) is told by datagrams to `$NOTIFY_SOCKET`: that clients may come, that
//! the server lives, and that it stops. Without a manager nothing is told.
//!
//! That it lives is not told by a clock: the turns of every shard must come to an end, as for `/healthz`. Where one is
//! stuck the manager hears nothing more, and starts the server anew.

use crate::Ready;
use crate::pulse::Pulse;
use crate::server::Control;
use sd_notify::NotifyState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients may come: tells so and, if the manager has a watchdog, that the shards answer from now on.
pub(crate) fn ready(ready: &Ready, control: Control) {
    tell(&[NotifyState::Ready, NotifyState::Status(&status(ready))]);
    // An interval of nothing is none, as for systemd's own library.
    let interval = sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero());
    let Some(interval) = interval else { return };
    let watch = move || watch(&control, interval);
    if let Err(error) = std::thread::Builder::new().name("watchdog".into()).spawn(watch) {
        tracing::error!(%error, "no thread for the watchdog: the service manager will end the server");
    }
}

/// What this process is for is there.
pub(crate) fn serves(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The shutdown has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("making all of it durable")]);
}

fn tell(state: &[NotifyState<'_>]) {
    // Whoever empties the variable means that there is no manager.
    if std::env::var_os("NOTIFY_SOCKET").is_none_or(|socket| socket.is_empty()) {
        return;
    }
    // Once: the watchdog would tell of it for ever.
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Err(error) = sd_notify::notify(state)
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(%error, "the service manager cannot be told how the server does");
    }
}

/// One line for whoever asks the manager.
fn status(ready: &Ready) -> String {
    if let [why, ..] = &ready.restart.impaired[..] {
        return format!("serving READ-ONLY: {why}");
    }
    let what = if ready.raw.is_some() { "raw units" } else { "volumes" };
    let whence = if ready.nbd.is_empty() { String::new() } else { ready.nbd.join(" and ") };
    format!("serving {} {what} at {whence}; {}", ready.volumes.len(), ready.restart)
}

/// Least time between two looks at the shards.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Looks at the shards three times in the manager's interval, and tells it each time that all go on.
fn watch(control: &Control, interval: Duration) {
    // A manager that wants to hear from it more often than this means nothing by it.
    let pause = (interval / 3).max(PAUSE_MIN);
    let pulse = Pulse::default();
    let mut silent = false;
    loop {
        match pulse.stuck(&control.beats(), Instant::now()) {
            None => {
                silent = false;
                tell(&[NotifyState::Watchdog]);
            }
            // Once for each time that it comes to this: the log is to be read.
            Some((shard, age)) if !silent => {
                silent = true;
                let seconds = age.as_secs();
                tracing::error!(
                    shard,
                    seconds,
                    "a shard is stuck: the watchdog is not told that it goes on"
                );
            }
            Some(_) => {}
        }
        std::thread::sleep(pause);
    }
}
