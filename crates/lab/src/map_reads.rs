//! What reads lose where only a part of the map is in DRAM, on a device as experiments build it.

use crate::device_file::{DeviceSpec, Scale};
use crate::driver::Failure;
use crate::load::{self, Client, Pace, Window};
use crate::target::Target;
use crate::workload::Pattern;
use flash::BLOCK_BYTES;
use nand::Faults;

/// A device and what reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapLoad {
    /// Of the built-in device file.
    pub device: &'static str,
    /// The device's size, in blocks of each plane.
    pub blocks_per_plane: u32,
    /// Places follow Zipf's law with this exponent; their ranks are scattered.
    pub theta: f64,
    /// Reads of 4 KiB in flight.
    pub depth: u32,
    /// DRAM for the map, in percent of what a whole one takes; 0 for the whole one.
    pub map_percent: f64,
    /// Reads before the measurement.
    pub warmup: u64,
    /// Reads measured.
    pub operations: u64,
}

/// What came of it. Times are virtual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapReads {
    /// Reads a second.
    pub iops: f64,
    /// Mean time of a read.
    pub mean_us: f64,
    /// Share of the reads that found the entry there.
    pub hit_share: f64,
    /// DRAM of the map, of what changed in it, and of the bands.
    pub dram_bytes: f64,
    /// What a whole map takes.
    pub flat_bytes: f64,
    /// Bytes that the device offers.
    pub logical_bytes: f64,
    /// Bytes of its flash.
    pub flash_bytes: f64,
}

/// Fills the device, warms the map up and measures.
pub fn map_reads(load: &MapLoad) -> Result<MapReads, Failure> {
    let bytes = match load.map_percent {
        0.0 => 0,
        percent => {
            let blocks = build(load, 0)?.bytes() / BLOCK_BYTES as u64;
            (blocks as f64 * 4.0 * percent / 100.0) as u64
        }
    };
    let mut target = build(load, bytes)?;
    let fill = Client { pace: Pace::Depth(64), ..Client::filling(target.bytes() >> 12) };
    load::run(&mut *target, &[fill], Window::WHENEVER, 1)?;
    let client = |ios_max| Client {
        reads: 1.0,
        bytes: BLOCK_BYTES as u64,
        pattern: Pattern::Zipf { theta: load.theta },
        pace: Pace::Depth(load.depth),
        ios_max,
        ..Client::default()
    };
    let (mapped, blocks) = (target.counter("blocks_mapped"), target.counter("logical_blocks"));
    if mapped * 100 < blocks * 99 {
        return Err(Failure(format!("{mapped} of {blocks} blocks are mapped after the filling")));
    }
    load::run(&mut *target, &[client(load.warmup)], Window::WHENEVER, 2)?;
    let looks = |target: &dyn Target| (target.counter("map_hits"), target.counter("map_misses"));
    let (hits, misses) = looks(&*target);
    let begun = target.now();
    load::run(&mut *target, &[client(load.operations)], Window::WHENEVER, 3)?;
    let seconds = (target.now() - begun) as f64 / 1e9;
    let (hits, misses) = (looks(&*target).0 - hits, looks(&*target).1 - misses);
    let hit_share = if bytes == 0 { 1.0 } else { hits as f64 / (hits + misses).max(1) as f64 };
    let iops = load.operations as f64 / seconds;
    Ok(MapReads {
        iops,
        // Little's law.
        mean_us: f64::from(load.depth) / iops * 1e6,
        hit_share,
        dram_bytes: target.counter("map_bytes") as f64,
        flat_bytes: target.bytes() as f64 / BLOCK_BYTES as f64 * 4.0,
        logical_bytes: target.bytes() as f64,
        flash_bytes: target.flash_bytes() as f64,
    })
}

fn build(load: &MapLoad, map_bytes: u64) -> Result<Box<dyn Target>, Failure> {
    let changes = format!("[ftl]\nmap_bytes = {map_bytes}");
    let changes = changes.parse().map_err(|why| Failure(format!("{changes}: {why}")))?;
    let spec = DeviceSpec::builtin_with(load.device, &changes).map_err(Failure)?;
    let scale = Scale::BlocksPerPlane(load.blocks_per_plane);
    spec.build(scale, &Faults::default(), 1).map_err(Failure)
}

#[cfg(test)]
mod tests {
    use super::{MapLoad, map_reads};

    #[test]
    fn many_reads_at_a_time_end_however_few_pieces_are_in_dram() {
        let load = MapLoad {
            device: "wsr",
            blocks_per_plane: 8,
            theta: 1.0,
            depth: 256,
            map_percent: 10.0,
            warmup: 10_000,
            operations: 20_000,
        };
        let reads = map_reads(&load).unwrap();
        println!("{reads:?}");
        assert!(reads.hit_share > 0.0 && reads.hit_share < 1.0, "{reads:?}");
    }
}
