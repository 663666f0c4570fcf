//! The fast tier: what was acknowledged from it is there, and reads as it was written, whatever
//! destage is doing.

use crate::{THREADS, passed, policies_of_seed, seeds};
use flash::{FastTier, Hint, Instant, Pairing};
use ftl::{Core, FastShare, FormatOptions, Settings};
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::{Manner, Small};
use lab::driver::{Failure, Sim, Step};
use lab::host::Host;
use lab::medium::SimMedium;
use lab::model::Model;
use lab::parallel::for_each_seed;
use lab::soak::{SoakOptions, run_model, run_model_twice};
use lab::workload::{Arrival, Generator, Pattern, Workload};
use nand::Faults;

/// A small two-tier device under policies that follow from the seed.
fn options_of_seed(seed: u64) -> SoakOptions {
    let mut options = SoakOptions::quiet(policies_of_seed(seed), seed);
    let pairings = [Pairing::None, Pairing::Staircase, Pairing::Adjacent(2)];
    options.device.manner = Manner::Tiered {
        pairing: pairings[seed as usize % 3],
        fast: FastTier { units: 2, blocks_per_unit: 6 + seed as u32 % 4 },
    };
    options.device.slots_per_page = [2, 4, 8][seed as usize / 3 % 3];
    options.fill = [0.5, 0.9, 1.0][seed as usize / 2 % 3];
    options.settings.destage_above = [0, 50, 80][seed as usize % 3];
    options.volumes = 1 + seed as u32 % 4;
    options
}

#[test]
fn a_fast_tier_keeps_every_acknowledged_write_after_any_power_cut() {
    let test = "a_fast_tier_keeps_every_acknowledged_write_after_any_power_cut";
    let explored = explore_seeds(seeds(0..20), THREADS, CrashOptions::tiered_of_seed);
    let report: CrashReport = passed(test, explored);
    println!("{test}: {report:?}");
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
    assert_eq!(report.alarms, 0, "a power cut is called damage");
}

#[test]
fn a_fast_tier_keeps_everything_when_blocks_fail_and_the_power_goes() {
    let test = "a_fast_tier_keeps_everything_when_blocks_fail_and_the_power_goes";
    let options = |seed| {
        let mut options = CrashOptions::tiered_of_seed(seed);
        options.faults =
            Faults { seed, program_fail: 0.002, erase_fail: 0.002, ..Faults::default() };
        options.fill = options.fill.min(0.7);
        options.images_per_cut = 16;
        options
    };
    passed(test, explore_seeds(seeds(500..512), THREADS, options));
}

/// Steps of the medium after a failed program: enough for the next checkpoint to be under way.
const CUTS_AFTER_FAILURE: u32 = 30;

/// What a power cut would leave now is mounted and read.
fn cut(host: &Host, settings: &Settings) -> Result<(), Failure> {
    let mut medium = host.sim.medium().clone();
    medium.power_cut(&mut |_| 0);
    let mut sim = Sim::mount(medium, settings.clone(), host.sim.now())?;
    sim.run_until_ready()?;
    let blocks = host.model.logical_blocks();
    host.model.check_recovered(&sim.read_all(blocks)?).map_err(Failure)
}

/// Of the programs in the life of a device one fails; the power may go at each of the next steps. Its
/// fast tier has one band more than it must have, and a checkpoint takes one band or two. Returns how
/// many programs there were.
fn live_with_a_failed_program(failing: u64, checkpoint_bands: u32) -> Result<u64, Failure> {
    let mut settings = SoakOptions::quiet(policies_of_seed(0), 0).settings;
    settings.checkpoint_slots = 30;
    let pairing = if checkpoint_bands == 1 { Pairing::None } else { Pairing::Staircase };
    let fast = FastTier { units: 1, blocks_per_unit: 7 + 2 * checkpoint_bands };
    let manner = Manner::Tiered { pairing, fast };
    let device = Small {
        manner,
        units: 2,
        blocks_per_unit: 14,
        pages_per_block: 8,
        slots_per_page: 1,
        open_blocks_max: 0,
    };
    let faults = Faults { programs_failing: vec![failing], ..Faults::default() };
    let (mut host, logical_blocks) = host_of(&device, &settings, faults, 0)?;
    let geometry = *host.sim.medium().geometry();
    let least = ftl::fast_blocks_min(&geometry, logical_blocks, &settings);
    assert_eq!(fast.blocks_per_unit, least + 1, "the least and one");
    let workload = Workload {
        reads: 0.1,
        // Their records hold bands until the next checkpoint.
        trims: 0.2,
        flushes: 0.05,
        fua: 0.1,
        atomic: 0.1,
        sizes: vec![(1, 3.0), (4, 1.0)],
        pattern: Pattern::HotCold { fraction: 0.1, share: 0.8 },
        arrival: Arrival::Closed { depth: 4 },
    };
    let mut generator = Generator::new(workload, logical_blocks, 0).map_err(Failure)?;
    let mut cuts = 0;
    for _ in 0..300 {
        host.submit(generator.draw(), Hint::default());
        while host.sim.in_flight() >= 4 {
            let step = host.sim.step(Instant(u64::MAX))?;
            host.collect()?;
            if step == Step::Idle {
                return Err(host.sim.stuck());
            }
            let cuts_here = step == Step::Change && cuts < CUTS_AFTER_FAILURE;
            if cuts_here && host.sim.ftl().counter("programs_failed") > 0 {
                cut(&host, &settings)?;
                cuts += 1;
            }
        }
    }
    host.drain()?;
    host.sim.verify()?;
    let programs = host.sim.ftl().counter("slots_programmed");
    let Host { sim, model, .. } = host;
    let now = sim.now();
    let mut sim = Sim::mount(sim.shutdown()?, settings, now)?;
    sim.run_until_ready()?;
    model.check_recovered(&sim.read_all(logical_blocks)?).map_err(Failure)?;
    Ok(programs)
}

#[test]
fn whatever_program_fails_on_the_least_fast_tier_the_device_goes_on_and_ends_cleanly() {
    let test = "whatever_program_fails_on_the_least_fast_tier_the_device_goes_on_and_ends_cleanly";
    for bands in [1, 3] {
        let programs = live_with_a_failed_program(u64::MAX, bands).unwrap();
        let run = |failing| live_with_a_failed_program(failing, bands);
        passed(test, for_each_seed(seeds(1..programs + 1), THREADS, run));
    }
}

#[test]
fn a_fast_tier_is_detached_and_attached_again_with_a_power_cut_at_any_step() {
    let test = "a_fast_tier_is_detached_and_attached_again_with_a_power_cut_at_any_step";
    let options = |seed| {
        let mut options = CrashOptions::tiered_of_seed(seed);
        // Both tiers must hold the map and the data alone.
        options.fill = options.fill.min(0.9);
        options.operations = 16;
        options.images_per_cut = 16;
        options.detach = true;
        options
    };
    let report: CrashReport = passed(test, explore_seeds(seeds(900..920), THREADS, options));
    println!("{test}: {report:?}");
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
    assert_eq!(report.alarms, 0, "a power cut is called damage");
}

/// A host on a new device of which it uses six tenths.
fn host_of(
    device: &Small,
    settings: &Settings,
    faults: Faults,
    seed: u64,
) -> Result<(Host, u32), Failure> {
    let medium = device.build(faults).map_err(Failure)?;
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), settings);
    let logical_blocks = max * 6 / 10;
    let format = FormatOptions { logical_blocks, uuid: seed.into(), label: Vec::new() };
    let mut sim = Sim::format(medium, format, settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    Ok((Host::new(sim, Model::new(logical_blocks, true)), logical_blocks))
}

/// Submits a request and goes on until fewer than `depth` are in flight.
fn submit(host: &mut Host, generator: &mut Generator, depth: u32) -> Result<(), Failure> {
    host.submit(generator.draw(), Hint::default());
    while host.sim.in_flight() >= depth {
        if host.sim.step(Instant(u64::MAX))? == Step::Idle {
            return Err(host.sim.stuck());
        }
        host.collect()?;
    }
    Ok(())
}

/// Writes mostly a few hot blocks on a two-tier device, every third with a part of its map in DRAM, cuts
/// the power and looks at everything. Returns the slots that were kept on the fast tier, and those that were destaged.
fn overwrite_hot_blocks(seed: u64) -> Result<(u64, u64), Failure> {
    let mut options = options_of_seed(seed);
    let Manner::Tiered { fast, .. } = &mut options.device.manner else {
        unreachable!("a two-tier device")
    };
    fast.blocks_per_unit = 16;
    options.settings.destage_above = 80;
    if seed % 3 == 1 {
        let medium = options.device.build(Faults::default()).map_err(Failure)?;
        options.settings.map_piece_blocks = 16;
        options.settings.map_bytes = ftl::map_bytes_min(medium.geometry(), 16);
    }
    let (mut host, logical_blocks) =
        host_of(&options.device, &options.settings, Faults::default(), seed)?;
    let workload = Workload {
        reads: 0.1,
        trims: 0.01,
        flushes: 0.01,
        fua: 0.1,
        atomic: 0.05,
        sizes: vec![(1, 3.0), (4, 1.0)],
        pattern: Pattern::HotCold { fraction: 0.03, share: 0.85 },
        arrival: Arrival::Closed { depth: 8 },
    };
    let mut generator = Generator::new(workload, logical_blocks, seed).map_err(Failure)?;
    for _ in 0..20_000 {
        submit(&mut host, &mut generator, 8)?;
    }
    let ftl = host.sim.ftl();
    ftl.verify().map_err(Failure)?;
    let counted = (ftl.counter("slots_kept"), ftl.counter("slots_destaged"));
    cut(&host, &options.settings)?;
    Ok(counted)
}

#[test]
fn what_lives_on_among_hot_blocks_stays_on_the_fast_tier_and_is_there_after_a_power_cut() {
    let test =
        "what_lives_on_among_hot_blocks_stays_on_the_fast_tier_and_is_there_after_a_power_cut";
    let counts = passed(test, for_each_seed(seeds(0..6), THREADS, overwrite_hot_blocks));
    println!("{test}: kept and destaged {counts:?}");
    // With many handles such a tier keeps nothing.
    assert!(counts.iter().filter(|(kept, _)| *kept > 0).count() >= counts.len() / 2, "{counts:?}");
    assert!(counts.iter().all(|&(_, destaged)| destaged > 0), "{counts:?}");
}

/// Runs a two-tier device until all units of one tier stop answering, and on until that is noticed.
/// What the other tier holds is read; when the tier is back, nothing is missing.
fn lose_a_tier(seed: u64, fast: bool) -> Result<u32, Failure> {
    let options = CrashOptions::tiered_of_seed(seed);
    let (mut host, logical_blocks) =
        host_of(&options.device, &options.settings, Faults::default(), seed)?;
    let geometry = *host.sim.medium().geometry();
    let workload = Workload {
        reads: 0.2,
        trims: 0.05,
        flushes: 0.05,
        fua: 0.1,
        atomic: 0.1,
        sizes: vec![(1, 3.0), (4, 1.0)],
        pattern: Pattern::HotCold { fraction: 0.3, share: 0.6 },
        arrival: Arrival::Closed { depth: 4 },
    };
    let mut generator = Generator::new(workload, logical_blocks, seed).map_err(Failure)?;
    let slow = 0..geometry.capacity_units();
    let lost = if fast { slow.end..geometry.units } else { slow };
    for operation in 0..1600 {
        if operation == 800 {
            lost.clone().for_each(|unit| host.sim.kill_unit(unit));
            host.refusals_are_legal = true;
            host.model.tolerate_unreadable();
        }
        submit(&mut host, &mut generator, 4)?;
    }
    host.drain()?;
    let tier = host.sim.ftl().status().tier.expect("a two-tier device");
    let phase = host.sim.ftl().status().phase;
    if tier.lost.is_none() || phase != "failed" {
        return Err(Failure(format!("{phase}, but every unit of a tier is gone: {tier:?}")));
    }
    let observed = host.sim.read_all(logical_blocks)?;
    let mut readable = 0;
    for (lba, stamp) in (0..).zip(&observed) {
        let slot = host.sim.ftl().slot_of(flash::Lba(lba));
        let there = slot.is_some_and(|slot| geometry.is_fast(geometry.block_of(slot)) != fast);
        if there && stamp.is_none() {
            return Err(Failure(format!("block {lba} is on the other tier, and is not read")));
        }
        readable += u32::from(there);
    }
    let (mut medium, now) = (host.sim.medium().clone(), host.sim.now());
    lost.for_each(|unit| medium.revive_unit(unit));
    medium.power_cut(&mut |_| 0);
    let mut sim = Sim::mount(medium, options.settings, now)?;
    sim.run_until_ready()?;
    host.model.expect_readable();
    host.model.check_recovered(&sim.read_all(logical_blocks)?).map_err(Failure)?;
    Ok(readable)
}

#[test]
fn what_the_other_tier_holds_is_read_when_one_is_lost_and_nothing_is_missing_when_it_is_back() {
    let test =
        "what_the_other_tier_holds_is_read_when_one_is_lost_and_nothing_is_missing_when_it_is_back";
    for fast in [true, false] {
        let run = |seed| lose_a_tier(seed, fast);
        let readable: Vec<u32> = passed(test, for_each_seed(seeds(0..24), THREADS, run));
        assert!(readable.iter().any(|&blocks| blocks > 0), "nothing was left to read");
    }
}

/// Writes mostly a few hot blocks, with more in flight than the fast units' queues take. Returns the slots
/// that were kept on the fast tier once it was full, and those that were destaged.
fn overwrite_with_many_in_flight(seed: u64) -> Result<(u64, u64), Failure> {
    let settings = Settings::default();
    let fast = FastTier { units: 2, blocks_per_unit: 64 };
    let manner = Manner::Tiered { pairing: Pairing::None, fast };
    let device = Small {
        manner,
        units: 4,
        blocks_per_unit: 128,
        pages_per_block: 8,
        slots_per_page: 8,
        open_blocks_max: 0,
    };
    let (mut host, logical_blocks) = host_of(&device, &settings, Faults::default(), seed)?;
    let workload = Workload {
        reads: 0.0,
        trims: 0.0,
        flushes: 0.0,
        fua: 0.0,
        atomic: 0.0,
        sizes: vec![(8, 1.0)],
        pattern: Pattern::HotCold { fraction: 0.02, share: 0.9 },
        arrival: Arrival::Closed { depth: 128 },
    };
    let mut generator = Generator::new(workload, logical_blocks, seed).map_err(Failure)?;
    let mut write = |host: &mut Host| {
        (0..4_000).try_for_each(|_| submit(host, &mut generator, 128))?;
        let ftl = host.sim.ftl();
        Ok::<_, Failure>((ftl.counter("slots_kept"), ftl.counter("slots_destaged")))
    };
    let (before, after) = (write(&mut host)?, write(&mut host)?);
    Ok((after.0 - before.0, after.1 - before.1))
}

#[test]
fn what_is_to_stay_on_the_fast_tier_waits_for_its_units_and_is_not_destaged_for_that() {
    let test = "what_is_to_stay_on_the_fast_tier_waits_for_its_units_and_is_not_destaged_for_that";
    let counts = passed(test, for_each_seed(seeds(0..3), THREADS, overwrite_with_many_in_flight));
    println!("{test}: kept and destaged {counts:?}");
    // All is kept once before it is destaged.
    assert!(counts.iter().all(|&(kept, destaged)| destaged < kept), "{counts:?}");
}

/// The p99.9 of writes of so many blocks, 20 MB a second of them, to the upper half of a device, in
/// nanoseconds of media time; beside a flood of writes to the lower half, if one is asked for.
fn latency_of_a_neighbour(
    seed: u64,
    blocks: u32,
    (flood, shared): (bool, bool),
) -> Result<u64, Failure> {
    let profile = |name: &str| nand::Profile::builtin(name).expect("a built-in profile");
    let layout = nand::Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 12 };
    let fast = FastTier { units: 4, blocks_per_unit: 8 };
    let (slow, quick) = (profile("tlc"), profile("optane"));
    let nand = nand::Nand::tiered(&slow, &layout, &quick, fast, Faults::default());
    let medium = SimMedium::nand(nand.map_err(Failure)?);
    let mut settings = Settings::default();
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let logical_blocks = max / 10 * 8;
    let half = logical_blocks / 2;
    if shared {
        let share = |first| FastShare { first, blocks: half, weight: 1 };
        settings.fast_shares = vec![share(0), share(half)];
    }
    let format = FormatOptions { logical_blocks, uuid: 7, label: Vec::new() };
    let mut sim = Sim::format(medium, format, settings, Instant(0))?;
    sim.run_until_ready()?;
    let mut random = flash::Random::new(seed);
    let mut latencies = Vec::new();
    let (mut flooding, mut flooded, mut next) = (0, 0, Instant(u64::MAX));
    if !flood {
        next = sim.now();
    }
    while latencies.len() < 5_000 {
        while flood && flooding < 64 {
            let lba = random.below(u64::from(half) - 4) as u32;
            sim.write(0, lba, &[u64::from(lba); 4], (false, false), Hint::default());
            flooding += 1;
        }
        if sim.now() >= next {
            let lba = half + random.below(u64::from(half - blocks)) as u32;
            sim.write(
                1,
                lba,
                &vec![u64::from(lba); blocks as usize],
                (false, false),
                Hint::default(),
            );
            next = next + 200_000 * u64::from(blocks);
        }
        sim.step(next)?;
        while let Some(finished) = sim.take_finished() {
            finished.result.map_err(|error| Failure(format!("{error:?}")))?;
            if finished.token == 0 {
                (flooding, flooded) = (flooding - 1, flooded + 1);
            } else {
                latencies.push(finished.finished - finished.submitted);
            }
            sim.release(finished);
            // The neighbour comes when the tier is short: the flood has filled it twice over.
            if next.0 == u64::MAX
                && flooded * 4 > 2 * u64::from(fast.units * fast.blocks_per_unit) * 3072
            {
                next = sim.now();
            }
        }
    }
    latencies.sort_unstable();
    Ok(latencies[latencies.len() * 999 / 1000])
}

#[test]
fn a_flood_from_one_volume_does_not_take_the_write_latency_of_another() {
    let test = "a_flood_from_one_volume_does_not_take_the_write_latency_of_another";
    let run = |seed| {
        // What is being programmed when a write comes is waited for: a page at most, beside its own time.
        let page = latency_of_a_neighbour(seed, 8, (false, true))?;
        for blocks in [1, 8] {
            let alone = latency_of_a_neighbour(seed, blocks, (false, true))?;
            let beside = latency_of_a_neighbour(seed, blocks, (true, true))?;
            let unshared = latency_of_a_neighbour(seed, blocks, (true, false))?;
            println!(
                "seed {seed}, {blocks} blocks: p99.9 of {alone} ns alone, {beside} beside a flood, \
                 {unshared} without shares"
            );
            if beside > alone + page {
                return Err(Failure(format!("p99.9 of {beside} ns beside a flood, {alone} alone")));
            }
            if unshared <= 10 * (alone + page) {
                return Err(Failure(format!("{unshared} ns without shares: no flood at all")));
            }
        }
        Ok(())
    };
    passed(test, for_each_seed(seeds(0..2), THREADS, run));
}

#[test]
fn reads_behind_a_fast_tier_return_the_last_write_in_long_runs_with_power_cuts() {
    let test = "reads_behind_a_fast_tier_return_the_last_write_in_long_runs_with_power_cuts";
    let run = |seed| {
        let report = run_model(seed, &options_of_seed(seed))?;
        if report.counts.no_space > 0 {
            return Err(lab::Failure(format!("refused for want of space: {report:?}")));
        }
        Ok(report)
    };
    passed(test, for_each_seed(seeds(0..36), THREADS, run));
}

#[test]
fn a_run_with_a_fast_tier_is_the_same_twice() {
    let test = "a_run_with_a_fast_tier_is_the_same_twice";
    let run = |seed| {
        let mut options = options_of_seed(seed);
        options.operations = 4_000;
        run_model_twice(seed, &options)
    };
    passed(test, for_each_seed(seeds(0..6), THREADS, run));
}
