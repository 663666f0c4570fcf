//! Loads with the shape of WSR's table ("O+Q in the cloud"), on the device `wsr` (QLC behind a fast
//! tier) and on its flash alone under the same FTL (`wsr-qlc`). The paper's own baselines, a
//! conventional QLC SSD and a traditional cache, are not among them.
//!
//! `cargo run --release -p lab --example wsr_rows -- 40` builds 40 blocks on each die, of 2 MiB; the fast
//! tier is 4.8 % of that. Both devices are filled first, and aged by random writes before the
//! rows of random writes.

use lab::device_file::{DeviceSpec, Scale};
use lab::load::{Client, Pace, Window, run};
use lab::target::Target;
use lab::workload::Pattern;
use nand::Faults;

/// A row: name, pattern, bytes, in flight, share of reads.
type Row = (&'static str, Pattern, u64, u32, f64);

const FRESH: [Row; 2] = [
    ("seq 64K W", Pattern::Sequential, 65536, 256, 0.0),
    ("seq 4K W", Pattern::Sequential, 4096, 32, 0.0),
];

const AGED: [Row; 6] = [
    ("rnd 64K W", Pattern::Uniform, 65536, 256, 0.0),
    ("zipf 0.8 64K W", Pattern::Zipf { theta: 0.8 }, 65536, 32, 0.0),
    ("zipf 1.2 64K W", Pattern::Zipf { theta: 1.2 }, 65536, 32, 0.0),
    ("rnd 4K W, 1 in flight", Pattern::Uniform, 4096, 1, 0.0),
    ("rnd 4K W", Pattern::Uniform, 4096, 32, 0.0),
    ("rnd 64K R+W", Pattern::Uniform, 65536, 32, 0.5),
];

const MEASURED: Window = Window { warmup_ns: 200_000_000, measure_ns: 1_000_000_000 };
const ALL_OF_IT: Window = Window { warmup_ns: 0, measure_ns: u64::MAX };
const SEED: u64 = 7;

fn main() -> Result<(), String> {
    let blocks = match std::env::args().nth(1) {
        None => 40,
        Some(text) => text.parse().map_err(|why| format!("blocks of a die: {text:?}: {why}"))?,
    };
    for name in ["wsr", "wsr-qlc"] {
        let small: toml::Table =
            "profile_changes = { pages_per_block = 8 }".parse().expect("it is TOML");
        let spec = DeviceSpec::builtin_with(name, &small)?;
        let mut target = spec.build(Scale::BlocksPerPlane(blocks), &Faults::default(), SEED)?;
        println!("{name}: {:.1} GiB, seed {SEED}", target.bytes() as f64 / (1u64 << 30) as f64);
        let fill = ("fill", Pattern::Sequential, 1 << 20, 64, 0.0);
        let age = ("age", Pattern::Uniform, 65536, 256, 0.0);
        go_over(&mut *target, fill)?;
        FRESH.into_iter().try_for_each(|row| measure(&mut *target, row))?;
        go_over(&mut *target, age)?;
        AGED.into_iter().try_for_each(|row| measure(&mut *target, row))?;
    }
    Ok(())
}

fn client((name, pattern, bytes, depth, reads): Row) -> Client {
    let pace = Pace::Depth(depth);
    Client { name: name.into(), pace, reads, bytes, pattern, ..Client::default() }
}

/// Writes as much as the device holds.
fn go_over(target: &mut dyn Target, row: Row) -> Result<(), String> {
    let client = Client { ios_max: target.bytes() / row.2, ..client(row) };
    run(target, &[client], ALL_OF_IT, SEED).map(|_| ()).map_err(|why| why.to_string())
}

fn measure(target: &mut dyn Target, row: Row) -> Result<(), String> {
    let before = target.counts();
    let (destaged, dropped) = (target.counter("slots_destaged"), target.counter("slots_dropped"));
    let seen = run(target, &[client(row)], MEASURED, SEED).map_err(|why| why.to_string())?;
    let (seen, after) = (&seen[0], target.counts());
    let written = (after.bytes_written - before.bytes_written).max(1) as f64;
    let fast = (after.bytes_programmed_fast - before.bytes_programmed_fast) as f64;
    let all = (after.bytes_programmed - before.bytes_programmed) as f64;
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "  {:22} write {:6.0} MB/s, p50 {:7.3} p99 {:7.3} ms; read {:5.0} MB/s, p99.9 {:7.3} ms; \
         WAF of the flash {:.2}, of the fast tier {:.2}; destaged {}, dropped {}",
        row.0,
        seen.per_second(seen.bytes_written) / 1e6,
        ms(seen.writes.quantile_ns(0.5)),
        ms(seen.writes.quantile_ns(0.99)),
        seen.per_second(seen.bytes_read) / 1e6,
        if seen.reads.count() > 0 { ms(seen.reads.quantile_ns(0.999)) } else { 0.0 },
        (all - fast) / written,
        fast / written,
        target.counter("slots_destaged") - destaged,
        target.counter("slots_dropped") - dropped,
    );
    Ok(())
}
