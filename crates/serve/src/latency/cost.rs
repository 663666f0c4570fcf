//! What it costs to record a request, for the benchmark that holds it against what the request costs.

use super::{Latencies, Slowest, Timed};
use crate::cpu;
use crate::volume::{Kind, Request};
use flash::{Instant, Random, Spent};

/// Nanoseconds of processor time that recording takes for a request: the mean of `requests` reads and writes of
/// two volumes, with times that vary as those of emulated flash under load do, and one in a thousand slow.
pub fn recording_ns(requests: usize) -> f64 {
    let mut random = Random::new(1);
    let drawn: Vec<Timed> = (0..256).map(|_| drawn(&mut random)).collect();
    let (mut latencies, mut slowest) = (Latencies::default(), Slowest::default());
    let begun = cpu::thread_ns();
    for (at, timed) in drawn.iter().cycle().take(requests).enumerate() {
        let sent = Instant(timed.done.0 + 2000 + at as u64 % 512);
        let total_ns = latencies.record(timed, sent);
        slowest.note(total_ns, timed, sent);
    }
    let took = cpu::thread_ns() - begun;
    std::hint::black_box((&latencies, &slowest));
    took as f64 / requests as f64
}

fn drawn(random: &mut Random) -> Timed {
    let kind =
        if random.chance(0.5) { Kind::Read } else { Kind::Write { fua: false, handle: None } };
    let request = Request { volume: random.below(2) as usize, kind, offset: 0, len: 4096 };
    let slow = if random.chance(0.001) { 100 } else { 1 };
    let medium_ns = (20_000 + random.below(300_000)) * slow;
    let spent = Spent { queue_ns: random.below(50_000), medium_ns, ..Spent::default() };
    let (asked, begun) = (Instant(1000), Instant(1000 + random.below(2000)));
    let done = begun + spent.queue_ns + spent.medium_ns;
    let spent = Some(spent);
    Timed { request, asked, begun, done, limited_ns: 0, failed: false, waited: None, spent }
}
