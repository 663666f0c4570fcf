//! What the service manager (systemd) is told by datagrams to `$NOTIFY_SOCKET`: that clients may come, that
//! the server lives, and that it stops. Without a manager nothing is told.
//!
//! That it lives is not told by a clock: every shard must answer first, as for `/healthz`. Where one is
//! stuck the manager hears nothing more, and starts the server anew.

use crate::Ready;
use crate::Wanted;
use crate::server::Control;
use sd_notify::NotifyState;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Clients may come: tells so and, if the manager has a watchdog, that the shards answer from now on.
pub(crate) fn ready(ready: &Ready, control: Control) {
    tell(&[NotifyState::Ready, NotifyState::Status(&status(ready))]);
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let watch = move || watch(&control, interval);
    if let Err(error) = std::thread::Builder::new().name("watchdog".into()).spawn(watch) {
        tracing::error!(%error, "no thread for the watchdog: the service manager will end the server");
    }
}

/// The shutdown has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("making all of it durable")]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
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

/// Least time between two questions to the shards.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Asks all shards three times in the manager's interval, and tells it each time that all answer.
fn watch(control: &Control, interval: Duration) {
    // A manager that wants to hear from it more often than this means nothing by it.
    let pause = (interval / 3).max(PAUSE_MIN);
    let mut silent = false;
    loop {
        let asked = Instant::now();
        match unanswered(control, pause) {
            None => {
                silent = false;
                tell(&[NotifyState::Watchdog]);
            }
            // Once for each time that it comes to this: the log is to be read.
            Some(shard) if !silent => {
                silent = true;
                tracing::error!(
                    shard,
                    "a shard does not answer: the watchdog is not told that it does"
                );
            }
            Some(_) => {}
        }
        std::thread::sleep(pause.saturating_sub(asked.elapsed()));
    }
}

/// A shard that does not say anything within `bound`; `None` if all do, or have ended.
fn unanswered(control: &Control, bound: Duration) -> Option<usize> {
    let deadline = Instant::now() + bound;
    let ask = |shard| {
        let (sender, receiver) = mpsc::channel();
        // It may answer after its time.
        control.status(shard, Wanted::default(), move |_| sender.send(()).unwrap_or(()));
        receiver
    };
    let asked: Vec<_> = (0..control.shards()).map(ask).collect();
    asked.iter().position(|answer| {
        let left = deadline.saturating_duration_since(Instant::now());
        answer.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
    })
}

#[cfg(test)]
mod tests {
    use super::unanswered;
    use crate::Wanted;
    use crate::{Config, Server};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_shard_that_is_stuck_is_found_and_one_that_goes_on_again_is_not() {
        let folder = std::env::temp_dir().join(format!("weir-notify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "[device]\nkind = \"memory\"\nprofile = \"instant\"\ncapacity = \"64MiB\"\nshards = 2\n\
                    [http]\nenabled = false\n[control]\nenabled = false\n[nbd]\nunix = \"nbd.sock\"\n";
        let config = Config::parse(text, &folder).expect("a config");
        let server = Server::start(&config).expect("it serves");
        let control = server.control();
        let patience = Duration::from_secs(60);
        assert_eq!(unanswered(&control, patience), None);

        // The second shard's thread waits here, as one would that is stuck.
        let (go_on, held) = mpsc::channel::<()>();
        control.status(1, Wanted::default(), move |_| _ = held.recv());
        assert_eq!(unanswered(&control, Duration::from_millis(50)), Some(1));
        go_on.send(()).expect("it waits");
        assert_eq!(unanswered(&control, patience), None);
        server.shut_down().expect("it ends well");
        std::fs::remove_dir_all(&folder).ok();
    }
}
