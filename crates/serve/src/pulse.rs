//! Whether the shards go on: what `/healthz` answers, and what a service manager's watchdog is told. No shard is asked,
//! so whoever wants to know waits for none.

use crate::runtime::shard::is_turn;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A turn that takes so long has no end.
const STUCK: Duration = Duration::from_secs(20);

/// What was seen of the turns of each shard: which, and since when.
pub(crate) struct Pulse {
    seen: Mutex<Vec<(u64, Instant)>>,
    stuck: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new(STUCK)
    }
}

impl Pulse {
    /// Of shards that are stuck when a turn takes so long.
    pub(crate) fn new(stuck: Duration) -> Self {
        Self { seen: Mutex::default(), stuck }
    }

    /// Takes what the counts of turns are `now`; tells who has been in one turn for too long, and for how long.
    pub(crate) fn stuck(&self, counts: &[u64], now: Instant) -> Option<(usize, Duration)> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.resize(counts.len(), (0, now));
        for (seen, &count) in seen.iter_mut().zip(counts) {
            if seen.0 != count || !is_turn(count) {
                *seen = (count, now);
            }
        }
        let ages = seen.iter().map(|&(_, since)| now.saturating_duration_since(since)).enumerate();
        ages.filter(|&(_, age)| age >= self.stuck).max_by_key(|&(_, age)| age)
    }
}

#[cfg(test)]
mod tests {
    use super::{Pulse, STUCK};
    use crate::{Config, Server, Wanted};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn a_shard_that_is_busy_or_asleep_is_healthy_and_one_whose_turn_has_no_end_is_not() {
        let (pulse, start) = (Pulse::default(), Instant::now());
        assert_eq!(pulse.stuck(&[0, 7], start), None);
        assert_eq!(pulse.stuck(&[0, 9], start + STUCK), None, "another turn");
        assert_eq!(pulse.stuck(&[0, 9], start + STUCK * 3 / 2), None, "not long enough");
        let stuck = pulse.stuck(&[0, 9], start + STUCK * 2);
        assert_eq!(stuck, Some((1, STUCK)), "who sleeps may do so for ever");
        assert_eq!(pulse.stuck(&[0, 10], start + STUCK * 3), None, "it has ended");
    }

    #[test]
    fn a_shard_of_a_server_that_is_stuck_is_found_and_one_that_goes_on_again_is_not() {
        let folder = std::env::temp_dir().join(format!("weir-pulse-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = "[device]\nkind = \"memory\"\nprofile = \"instant\"\ncapacity = \"64MiB\"\nshards = 2\n\
                    [http]\nenabled = false\n[control]\nenabled = false\n[nbd]\nunix = \"nbd.sock\"\n";
        let config = Config::parse(text, &folder).expect("a config");
        let server = Server::start(&config).expect("it serves");
        let control = server.control();
        let pulse = Pulse::new(Duration::from_millis(1));
        // The second shard's thread waits here, as one would that is stuck.
        let (go_on, held) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel::<()>();
        control.status(1, Wanted::default(), move |_| {
            begun.send(()).expect("it is waited for");
            _ = held.recv();
        });
        begins.recv().expect("it answers");
        // Two looks at one turn, the second one later than a turn may take; the other shard sleeps in the end.
        pulse.stuck(&control.beats(), Instant::now());
        std::thread::sleep(Duration::from_millis(5));
        while pulse.stuck(&control.beats(), Instant::now()).is_none_or(|(shard, _)| shard != 1) {}
        go_on.send(()).expect("it waits");
        while pulse.stuck(&control.beats(), Instant::now()).is_some() {}
        server.shut_down().expect("it ends well");
        std::fs::remove_dir_all(&folder).ok();
    }
}
