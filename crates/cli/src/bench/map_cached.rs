//! A map of which a part is in DRAM: what reads lose by it on a whole device, the DRAM it takes, and
//! what a look at it costs where the piece is there.

use super::core_cost::{GEOMETRY, RUNS, aged};
use super::{Figure, Goal, Request, measured};
use ftl::Settings;
use lab::map_reads::{MapLoad, MapReads, map_reads};

/// Reads of 4 KiB whose places follow Zipf's law, ranks scattered over a device of 30 GB.
const LOAD: MapLoad = MapLoad {
    device: "wsr",
    blocks_per_plane: 128,
    theta: 1.0,
    depth: 256,
    map_percent: 0.0,
    warmup: 4_000_000,
    operations: 2_000_000,
};

/// Megabytes of DRAM for a terabyte of flash.
const DRAM_GOAL: f64 = 110.0;

pub fn figures(request: &mut Request<'_>) {
    device_figures(request);
    let name = "map-cached-hit-cpu";
    if request.wants(name) {
        let goal = Goal::AtMost(30.0);
        (request.sink)(measured(name, "ns/read", goal, hit_cost(request.quick, name, goal)));
    }
}

fn device_figures(request: &mut Request<'_>) {
    let load = if request.quick {
        MapLoad { blocks_per_plane: 64, warmup: 1_000_000, operations: 500_000, ..LOAD }
    } else {
        LOAD
    };
    let shares = [
        ("map-cached-zipf-5", "map-cached-dram-5", 5.0, DRAM_GOAL),
        ("map-cached-zipf-1", "map-cached-dram-1", 1.0, DRAM_GOAL),
    ];
    let wanted =
        |names: [&str; 2], request: &Request<'_>| names.iter().any(|name| request.wants(name));
    let mut whole: Option<Result<MapReads, lab::Failure>> = None;
    for (rate_name, dram_name, map_percent, dram) in shares {
        if !wanted([rate_name, dram_name], request) {
            continue;
        }
        let whole = whole.get_or_insert_with(|| map_reads(&load)).as_ref();
        let part = map_reads(&MapLoad { map_percent, ..load });
        let goal = Goal::AtLeast(90.0);
        let both = whole
            .map_err(Clone::clone)
            .and_then(|whole| part.as_ref().map(|part| (whole, part)).map_err(Clone::clone));
        let rate = both.map(|(whole, part)| {
            let share = 100.0 * part.iops / whole.iops;
            Figure::new(rate_name, share, "%", goal).note(format!(
                "of {:.0} k reads/s with the whole map in DRAM: {} of {:.0} GB, Zipf {}, {} in flight; \
                 {:.1} % find their piece there; mean {:.0} us, not {:.0}",
                whole.iops / 1e3,
                load.device,
                part.logical_bytes / 1e9,
                load.theta,
                load.depth,
                100.0 * part.hit_share,
                part.mean_us,
                whole.mean_us,
            ))
        });
        (request.sink)(measured(rate_name, "%", goal, rate));
        let goal = Goal::AtMost(dram);
        let dram = part.map(|part| {
            let per_tb = part.dram_bytes / 1e6 / (part.flash_bytes / 1e12);
            let flat = part.flat_bytes / 1e6 / (part.flash_bytes / 1e12);
            Figure::new(dram_name, per_tb, "MB/TB", goal).note(format!(
                "map, changes and bands, for each TB of flash; map_bytes is {map_percent} % of the \
                 {:.0} MB/TB of a whole map",
                flat
            ))
        });
        (request.sink)(measured(dram_name, "MB/TB", goal, dram));
    }
}

/// What a random read costs more where its piece is in DRAM than with the whole map there.
fn hit_cost(quick: bool, name: &str, goal: Goal) -> Result<Figure, String> {
    let operations = if quick { 1_000_000 } else { 4_000_000 };
    // The frames hold a quarter of the map.
    let share = 0.15;
    let flat_bytes = GEOMETRY.slots() * 4;
    let settings = Settings { map_bytes: flat_bytes / 2, ..Settings::default() };
    let whole =
        aged(GEOMETRY, false, Settings::default())?.cost_within(share, operations, false)?;
    let mut core = aged(GEOMETRY, false, settings)?;
    // The first reads bring it there.
    core.cost_within(share, operations / 4, false)?;
    let misses = core.ftl.counter("map_misses");
    let part = core.cost_within(share, operations, false)?;
    let misses = core.ftl.counter("map_misses") - misses;
    Ok(Figure::new(name, part - whole, "ns/read", goal).note(format!(
        "{part:.0} ns where the piece is in DRAM, {whole:.0} ns with a whole map; {misses} misses; \
         median of {RUNS}"
    )))
}
