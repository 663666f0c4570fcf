//! Figures of whole devices in the lab: the simulator's speed, write amplification against theory,
//! usable capacity, recovery. All on the production FTL in virtual time.

use super::{Figure, Goal, Request, allocated_bytes, cpu_ns, measured};
use crate::output::Progress;
use flash::Instant;
use ftl::{FormatOptions, Settings};
use lab::figures::DeviceLoad;
use lab::workload::{Arrival, Generator, Pattern, Workload};
use lab::{Failure, Sim, Step};
use nand::{Faults, Layout};

pub fn sim_rate(request: &mut Request<'_>) {
    let operations = if request.quick { 1_000_000 } else { 5_000_000 };
    for (name, profile) in [("sim-rate", "mlc-25nm"), ("sim-rate-instant", "instant")] {
        if !request.wants(name) {
            continue;
        }
        let goal = Goal::AtLeast(1e6);
        let figure = lab::figures::sim_rate(profile, 0.5, operations, cpu_ns).map(|rate| {
            Figure::new(name, rate.operations_per_second(), "ops/s", goal).note(format!(
                "{profile}: half 4 KiB random reads, half writes, 80 % utilization, 64 in flight, \
                 WAF {:.2}",
                rate.waf
            ))
        });
        (request.sink)(measured(name, "ops/s", goal, figure));
    }
    device_rate(request);
}

/// What MQSim does in a second of processor time on its default device, here, on one core: random
/// reads of 8 KiB at queue depth 256, and random writes with greedy GC at 20 % over-provisioning.
const MQSIM_READS: f64 = 126e3;
const MQSIM_WRITES: f64 = 71e3;

/// TSSD under a load like the first of its applications: 12 reads to a write.
const TSSD: DeviceLoad = DeviceLoad {
    device: "tssd",
    changes: "",
    blocks_per_plane: 128,
    bytes: 4096,
    reads: 12.0 / 13.0,
    depth: 204,
    warmup: 1_000_000,
    operations: 0,
};

/// Blocks of a plane with which TSSD has a tebibyte of flash.
const TSSD_TIB_BLOCKS: u32 = 10_280;

/// The simulator's memory for a device that was filled and overwritten in part.
pub fn memory(request: &mut Request<'_>) {
    let (name, goal) = ("sim-memory-per-tib", Goal::AtMost(4.0));
    let parts = if request.quick { 32 } else { 1 };
    let blocks_per_plane = TSSD_TIB_BLOCKS / parts;
    let load = DeviceLoad { reads: 0.0, blocks_per_plane, ..TSSD };
    let before = allocated_bytes();
    let figure = lab::figures::device_in_use(&load).map(|target| {
        let bytes = (allocated_bytes() - before) as f64;
        let flash = target.flash_bytes() as f64;
        let note = format!("tssd with {:.0} GiB of flash, every byte written", flash / GIB);
        Figure::new(name, bytes / flash * 1024.0, "GiB", goal).note(note)
    });
    (request.sink)(measured(name, "GiB", goal, figure));
}

const GIB: f64 = (1u64 << 30) as f64;

/// The simulator's speed on devices as experiments build them.
fn device_rate(request: &mut Request<'_>) {
    let operations = if request.quick { 1_000_000 } else { 4_000_000 };
    let tssd = DeviceLoad { operations, ..TSSD };
    let mqsim = DeviceLoad {
        device: "mqsim-default",
        changes: "",
        blocks_per_plane: 64,
        bytes: 8192,
        reads: 1.0,
        depth: 256,
        warmup: 0,
        operations,
    };
    let mqsim_writes = DeviceLoad {
        changes: "[ftl]\nover_provisioning = 0.2\nvictim = \"greedy\"",
        reads: 0.0,
        warmup: 2_000_000,
        ..mqsim
    };
    let loads = [
        ("sim-rate-tssd", tssd, Goal::AtLeast(1.5e6)),
        ("sim-rate-mqsim-read", mqsim, Goal::AtLeast(20.0 * MQSIM_READS)),
        ("sim-rate-mqsim-write", mqsim_writes, Goal::AtLeast(20.0 * MQSIM_WRITES)),
    ];
    for (name, load, goal) in loads {
        if !request.wants(name) {
            continue;
        }
        let figure = lab::figures::device_rate(&load, cpu_ns).map(|rate| {
            let waf = if load.reads < 1.0 { format!(", WAF {:.2}", rate.waf) } else { "".into() };
            Figure::new(name, rate.operations_per_second(), "ops/s", goal).note(format!(
                "{} with {} blocks a plane: {} KiB, {:.0} % reads, {} in flight{waf}",
                load.device,
                load.blocks_per_plane,
                load.bytes / 1024,
                load.reads * 100.0,
                load.depth,
            ))
        });
        (request.sink)(measured(name, "ops/s", goal, figure));
    }
}

pub fn waf(request: &mut Request<'_>) {
    const SLOTS_PER_BAND: u32 = 64;
    for victim in ["fifo", "greedy"] {
        for op_percent in [7, 10, 28] {
            let name = format!("waf-{victim}-{op_percent}");
            if !request.wants(&name) {
                continue;
            }
            let op_percent = f64::from(op_percent);
            let unmeasured = 1.0 + op_percent / 100.0;
            let unmeasured = lab::figures::waf_theory(victim, unmeasured, SLOTS_PER_BAND);
            let goal = Goal::Near(unmeasured.unwrap_or(1.0), 0.03);
            let figure = lab::figures::waf(op_percent, victim, SLOTS_PER_BAND).map(|waf| {
                Figure::new(&*name, waf.measured, "x", Goal::Near(waf.theory, 0.03)).note(format!(
                    "theory at the measured OP of {:.2} %; {:.3} with all metadata",
                    (waf.alpha - 1.0) * 100.0,
                    waf.measured_all
                ))
            });
            (request.sink)(measured(&name, "x", goal, figure));
        }
    }
}

/// The share of the maker's bad blocks that SDF's flash had on average.
const FACTORY_BAD: f64 = 0.005;

pub fn usable_capacity(request: &mut Request<'_>) {
    let goal = Goal::AtLeast(98.5);
    let figure = fill_whole(if request.quick { 1 } else { 4 });
    (request.sink)(measured("usable-capacity", "%", goal, figure));
}

/// A device of SDF's flash, whole blocks per plane and fewer channels, filled to the last block it
/// offers and overwritten once.
fn fill_whole(channels: u32) -> Result<Figure, Failure> {
    let layout = Layout { channels, dies_per_channel: 2, blocks_per_plane: 2048 };
    let faults = Faults { seed: 1, factory_bad: FACTORY_BAD, ..Faults::default() };
    let medium = lab::device::nand_of("mlc-25nm", &layout, faults, |_| {}).map_err(Failure)?;
    let settings = Settings::default();
    let slots = medium.geometry().slots();
    let bad = medium.health().bad_blocks.len() as f64 / f64::from(medium.geometry().blocks());
    let logical_blocks = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, settings, Instant(0))?;
    sim.run_until_ready()?;
    let workload = Workload {
        pattern: Pattern::Sequential,
        sizes: vec![(64, 1.0)],
        arrival: Arrival::Closed { depth: 16 },
        ..Workload::default()
    };
    let mut generator = Generator::new(workload, logical_blocks, 1).map_err(Failure)?;
    let mut progress = Progress::new("usable-capacity");
    let runs = u64::from(logical_blocks / 64);
    for pass in 0..2 {
        for part in 0..100 {
            progress.at(pass * 100 + part, 200);
            let operations = runs * (part + 1) / 100 - runs * part / 100;
            write_all(&mut sim, &mut generator, operations)?;
        }
        // The generator begins anew where 64 blocks no longer fit: the rest by itself.
        let rest = Workload { sizes: vec![(1, 1.0)], ..generator.workload().clone() };
        let mut rest = Generator::new(rest, logical_blocks, 1).map_err(Failure)?;
        for _ in 0..logical_blocks / 64 * 64 {
            rest.draw();
        }
        write_all(&mut sim, &mut rest, u64::from(logical_blocks % 64))?;
    }
    let mapped = sim.ftl().counter("blocks_mapped");
    if mapped != u64::from(logical_blocks) {
        return Err(Failure(format!("{mapped} of {logical_blocks} blocks are mapped")));
    }
    let value = f64::from(logical_blocks) / slots as f64 * 100.0;
    let goal = Goal::AtLeast(98.5);
    Ok(Figure::new("usable-capacity", value, "%", goal).note(format!(
        "{channels} channels of 2 mlc-25nm dies, {:.2} % bad blocks; filled and overwritten, \
         {} refused",
        bad * 100.0,
        sim.ftl().counter("writes_refused")
    )))
}

/// Steps without an answer after which a device is taken to be stuck in work that leads to nothing.
const STEPS_MAX: u64 = 5_000_000;

/// Writes what the generator draws, in a closed loop; a device that stops answering is a failure
/// and not a wait without end.
fn write_all(sim: &mut Sim, generator: &mut Generator, operations: u64) -> Result<(), Failure> {
    let Arrival::Closed { depth } = generator.workload().arrival else {
        return Err(Failure("a closed loop is wanted".into()));
    };
    let (mut submitted, mut steps) = (0, 0);
    while submitted < operations || sim.in_flight() > 0 {
        while submitted < operations && sim.in_flight() < depth {
            let op = generator.draw();
            submitted += 1;
            let stamps: Vec<u64> = (0..op.blocks).map(|i| u64::from(op.lba + i)).collect();
            sim.write(submitted, op.lba, &stamps, (false, false), flash::Hint::default());
        }
        steps += 1;
        if sim.step(Instant(u64::MAX))? == Step::Idle || steps > STEPS_MAX {
            let ftl = sim.ftl();
            return Err(Failure(format!(
                "writes stopped being answered after {} blocks: {} victims since the start, {} \
                 for wear, {} slots relocated, {} bands free",
                ftl.counter("host_blocks_written"),
                ftl.counter("victims"),
                ftl.counter("wear_moves"),
                ftl.counter("slots_relocated"),
                ftl.counter("bands_free"),
            )));
        }
        while let Some(finished) = sim.take_finished() {
            if let Err(error) = finished.result {
                return Err(Failure(format!("{:?} failed: {error:?}", finished.request)));
            }
            sim.release(finished);
            steps = 0;
        }
    }
    Ok(())
}

pub fn recovery(request: &mut Request<'_>) {
    // A smaller device recovers in less than its share of a large one's time: the name says it.
    let (name, tib) = if request.quick {
        ("recovery-seconds-per-tib-from-64gib", 1.0 / 16.0)
    } else {
        ("recovery-seconds-per-tib", 1.0)
    };
    let goal = Goal::AtMost(5.0);
    eprintln!("{name}: fills and recovers a device of {tib} TiB");
    let begun = cpu_ns();
    let figure = lab::figures::recovery(tib).map(|recovery| {
        let scale = (1u64 << 40) as f64 / recovery.capacity_bytes as f64;
        let media = recovery.virtual_ns as f64 / 1e9 * scale;
        let host = recovery.seconds * scale;
        let mapped = recovery.report.blocks_mapped as f64 / f64::from(recovery.logical_blocks);
        Figure::new(name, media.max(host), "s/TiB", goal).note(format!(
            "media {media:.2} s, processor {host:.2} s; {:.0} % of the blocks mapped, {} bands \
             probed, {} scanned, {} slots replayed; {:.0} s with the filling",
            mapped * 100.0,
            recovery.report.bands_probed,
            recovery.report.bands_scanned,
            recovery.report.slots_replayed,
            (cpu_ns() - begun) as f64 / 1e9,
        ))
    });
    (request.sink)(measured(name, "s/TiB", goal, figure));
}
