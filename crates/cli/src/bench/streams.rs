//! What a stream policy costs each write: processor time of one question, over a volume of 1 TiB
//! whose table does not fit the cache.

use super::{Figure, Goal, Request, cpu_ns};
use flash::{Hint, Random};
use ftl::policy::stream::{STREAMS, Shape, StreamPolicy, WriteView, by_name};

/// Logical blocks of the volume.
pub const BLOCKS: u32 = 1 << 28;
/// Writes whose places are drawn beforehand.
const PLACES: usize = 1 << 20;
const RUNS: usize = 5;
/// Writes that the FTL has waiting at a time, on a busy server: it tells the policy of all of them first.
pub const BATCH: usize = 32;

pub fn policies(request: &mut Request<'_>) {
    for name in STREAMS {
        let figure = format!("stream-{name}-ns");
        if !request.wants(&figure) {
            continue;
        }
        let goal = Goal::AtMost(60.0);
        let rounds = if request.quick { 2 } else { 8 };
        let measured = by_name(name, Shape { blocks: BLOCKS, handles: 8 }).map(|mut policy| {
            let ns = cost(&mut *policy, rounds, BATCH);
            (ns, cost(&mut *policy, rounds, 1), policy.memory_bytes())
        });
        (request.sink)(match measured {
            Ok((ns, alone, bytes)) => Figure::new(figure, ns, "ns/write", goal).note(format!(
                "1 TiB, tables of {:.1} MiB, half of the writes to 1 % of it, {BATCH} at a time; one by \
                 one {alone:.1}; least of {RUNS}",
                bytes as f64 / f64::from(1 << 20)
            )),
            Err(why) => Figure::missing(figure, "ns/write", goal, &why),
        });
    }
}

/// Nanoseconds of one `place_write` of a policy for [`BLOCKS`] blocks, its share of the `warm` for each
/// `batch` writes included.
pub fn cost(policy: &mut dyn StreamPolicy, rounds: u64, batch: usize) -> f64 {
    let mut random = Random::new(1);
    let places: Vec<u32> = (0..PLACES)
        .map(|_| {
            let range = if random.chance(0.5) { BLOCKS / 100 } else { BLOCKS };
            random.below(u64::from(range)) as u32
        })
        .collect();
    let (handles, mut now, mut least) = (policy.handles(), 0, f64::MAX);
    let mut sum = 0u64;
    for _ in 0..RUNS {
        let begun = cpu_ns();
        for _ in 0..rounds {
            for writes in places.chunks(batch) {
                policy.warm(writes);
                for &lba in writes {
                    now += 1;
                    let hint = Hint { handle: lba as u8, ..Hint::default() };
                    let age = Some(u64::from(lba));
                    let write = WriteView { lba, continues: false, hint, now, age, handles };
                    sum += u64::from(policy.place_write(&write));
                }
            }
        }
        least = least.min((cpu_ns() - begun) as f64 / (rounds as f64 * PLACES as f64));
    }
    // Else nothing would have to be computed.
    std::hint::black_box(sum);
    least
}
