//! Things that serve one after the other, in the order of asking: a direction of a link, processors.

use flash::Instant;

/// One server. First come, first served, so the instant it is free is all its state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial {
    free_at: Instant,
}

impl Serial {
    /// Takes the server for `ns` from when it is free, and says until when.
    pub fn take(&mut self, now: Instant, ns: u64) -> Instant {
        self.free_at = self.free_at.max(now) + ns;
        self.free_at
    }
}

/// Like servers with one queue.
#[derive(Clone, Debug)]
pub struct Pool {
    servers: Vec<Serial>,
}

impl Pool {
    /// At least one server.
    pub fn new(servers: u32) -> Self {
        Self { servers: vec![Serial::default(); servers.max(1) as usize] }
    }

    /// Takes the server that is free first.
    pub fn take(&mut self, now: Instant, ns: u64) -> Instant {
        let first = self.servers.iter_mut().min_by_key(|server| server.free_at);
        first.expect("there is at least one").take(now, ns)
    }

    /// Spreads `ns` of work over all of them.
    pub fn take_all(&mut self, now: Instant, ns: u64) {
        let share = ns / self.servers.len() as u64;
        for server in &mut self.servers {
            server.take(now, share);
        }
    }
}

/// How long `bytes` take at `bytes_per_s`; nothing if that is 0, for no cap.
pub fn transfer_ns(bytes: u64, bytes_per_s: f64) -> u64 {
    if bytes_per_s > 0.0 { (bytes as f64 * 1e9 / bytes_per_s).round() as u64 } else { 0 }
}
