//! The slowest requests of the last minutes, with where their time went: `GET /slow`, and the first of them in the
//! status.

use crate::ShardStatus;
use crate::latency::{Op, Slow, Waited};
use crate::nbd::Export;
use flash::{MICROSECOND, MILLISECOND};
use ftl::Waits;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::time::{SystemTime, UNIX_EPOCH};

/// As many reads, and as many other requests, `/slow` tells; and as many of all the status.
pub const TOLD: usize = 50;
pub const TOLD_BY_STATUS: usize = 5;

/// What is shorter than this share of a request is not told in words.
const SHARE_TOLD: u64 = 50;

/// One thing that a request waited for.
struct Part {
    cause: &'static str,
    ns: u64,
    unit: Option<u32>,
    words: String,
}

/// The `each` slowest reads and the `each` slowest other requests of all shards, slowest first.
pub fn json(exports: &[Export], shards: &[ShardStatus], each: usize) -> Vec<Value> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let units = first_units(shards);
    let of_shard = |shard: &'_ ShardStatus| {
        let now = shard.now;
        shard.slow.iter().map(move |slow| (slow.clone(), now)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = shards.iter().flat_map(of_shard).collect();
    all.sort_by_key(|(slow, now)| (Reverse(slow.total_ns), *now - slow.sent));
    let one = |(slow, now): &(Slow, flash::Instant)| {
        let ago_ms = (*now - slow.sent) / MILLISECOND;
        let at_unix_ms = (unix.as_millis() as u64).saturating_sub(ago_ms);
        told(slow, exports, &units, at_unix_ms)
    };
    let mut left = [each; 2];
    let told = all.iter().filter(|(slow, _)| {
        let left = &mut left[usize::from(slow.op == Op::Read)];
        let told = *left > 0;
        *left -= usize::from(told);
        told
    });
    told.map(one).collect()
}

/// The number that the first unit of each shard has among those of the server.
fn first_units(shards: &[ShardStatus]) -> Vec<u32> {
    let counts = shards.iter().map(|shard| shard.core.units() as u32);
    let first = counts.scan(0, |next, count| {
        *next += count;
        Some(*next - count)
    });
    first.collect()
}

fn told(slow: &Slow, exports: &[Export], units: &[u32], at_unix_ms: u64) -> Value {
    let parts = parts(slow, units);
    let why = |part: &Part| {
        let us = part.ns as f64 / MICROSECOND as f64;
        json!({ "cause": part.cause, "us": us, "unit": part.unit })
    };
    let volume = exports.iter().find(|export| export.volume == slow.request.volume);
    json!({
        "at_unix_ms": at_unix_ms,
        "volume": volume.map_or("", |export| export.name.as_str()),
        "op": slow.op.name(),
        "offset": slow.request.offset,
        "length": slow.request.len,
        "total_us": slow.total_ns as f64 / MICROSECOND as f64,
        "why": parts.iter().map(why).collect::<Vec<_>>(),
        "told": in_words(slow.total_ns, &parts),
    })
}

/// Where the time went, most of it first. The parts add up to the whole.
fn parts(slow: &Slow, units: &[u32]) -> Vec<Part> {
    let [admission, device, reply] = slow.stages;
    let mut parts = vec![
        part(
            "admission",
            admission.saturating_sub(slow.limited_ns),
            "its data to come and memory for it",
        ),
        part("limit", slow.limited_ns, "the limits of its volume"),
        part("send", reply, "its reply to be sent, and taken"),
    ];
    let waited = slow.waited.as_deref();
    parts.extend(waited.iter().flat_map(|waited| of_device(waited, units)));
    let known = waited.map_or(0, |waited| {
        waited.parked_ns + waited.parts().iter().map(|&(_, ns)| ns).sum::<u64>()
    });
    let left = device.saturating_sub(known);
    parts.push(match waited {
        None if device < crate::latency::SLOW_NS => part("device", left, "the device"),
        _ => part("server", left, "the server, whose thread was busy or did not run"),
    });
    parts.retain(|part| part.ns >= MICROSECOND);
    parts.sort_by_key(|part| Reverse(part.ns));
    parts
}

fn part(cause: &'static str, ns: u64, words: &str) -> Part {
    Part { cause, ns, unit: None, words: words.into() }
}

fn of_device(waited: &Waited, units: &[u32]) -> Vec<Part> {
    let first = units.get(waited.shard).copied().unwrap_or(0);
    let of = |&(waits, ns): &(Waits, u64)| {
        let waits = match waits {
            Waits::Unit(unit, ahead) => Waits::Unit(first + unit, ahead),
            other => other,
        };
        Part { cause: waits.name(), ns, unit: waits.unit(), words: waits.to_string() }
    };
    let parked = part("same_block", waited.parked_ns, "earlier changes of the same blocks");
    std::iter::once(parked).chain(waited.parts().iter().map(of)).collect()
}

/// A line for people.
fn in_words(total_ns: u64, parts: &[Part]) -> String {
    let ms = |ns: u64| match ns as f64 / 1e6 {
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    };
    let long = parts.iter().filter(|part| part.ns * SHARE_TOLD >= total_ns);
    let told = long.map(|part| format!("{} for {}", ms(part.ns), part.words));
    format!("{}: waited {}", ms(total_ns), told.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metrics::shards;
    use crate::volume::{Kind, Request};
    use flash::Instant;
    use ftl::Ahead;

    fn slow(ms: u64, waited: Option<Waited>) -> Slow {
        let request = Request { volume: 0, kind: Kind::Read, offset: 4096, len: 8192 };
        let stages = [MILLISECOND / 10, ms * MILLISECOND, 0];
        let (sent, total_ns) = (Instant(0), stages.iter().sum());
        let waited = waited.map(Box::new);
        Slow { sent, request, op: Op::Read, total_ns, stages, limited_ns: 0, waited }
    }

    #[test]
    fn a_read_behind_an_erase_names_it_and_its_unit_as_the_server_counts_units() {
        let mut shards = shards("slow");
        let mut waited = Waited::new(Instant(0), 0);
        waited.shard = 1;
        waited.look(Instant(MILLISECOND), 0, Waits::Unit(3, Ahead::Erase));
        waited.look(Instant(7 * MILLISECOND), 0, Waits::Unit(3, Ahead::Medium));
        waited.count(Instant(8 * MILLISECOND), 0);
        shards[0].slow = vec![slow(2, None)];
        shards[1].slow = vec![slow(8, Some(waited))];
        let told = json(&[Export::new("disk", 1 << 20)], &shards, 10);
        let unit = shards[0].core.units() + 3;
        assert_eq!(told[0]["volume"], "disk");
        assert_eq!((&told[0]["offset"], &told[0]["length"]), (&json!(4096), &json!(8192)));
        assert_eq!(told[0]["why"][0], json!({ "cause": "erase", "us": 7000.0, "unit": unit }));
        assert_eq!(told[0]["why"][1], json!({ "cause": "medium", "us": 1000.0, "unit": unit }));
        assert_eq!(
            told[0]["told"],
            format!(
                "8.1 ms: waited 7.0 ms for an erase of unit {unit}, 1.0 ms for the medium itself, on unit {unit}"
            )
        );
        assert_eq!(told[1]["why"][0]["cause"], "server", "nobody looked for 2 ms: {}", told[1]);
        assert_eq!(json(&[], &shards, 1).len(), 1);
    }

    #[test]
    fn the_parts_of_a_request_add_up_to_the_whole() {
        let mut waited = Waited::parked(2 * MILLISECOND, Instant(0), 0);
        waited.look(Instant(MILLISECOND), 0, Waits::FreeBand);
        waited.count(Instant(3 * MILLISECOND), 0);
        let slow = slow(6, Some(waited));
        let parts = parts(&slow, &[0]);
        assert_eq!(parts.iter().map(|part| part.ns).sum::<u64>(), slow.total_ns);
        let causes: Vec<&str> = parts.iter().map(|part| part.cause).collect();
        assert_eq!(causes, ["gc_free_band", "same_block", "server", "admission"]);
    }
}
