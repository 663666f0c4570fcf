//! Devices that fail as a whole, at every step of their lives.

use crate::{MANNERS, THREADS, passed, seeds};
use flash::{FastTier, Pairing};
use lab::crash::CrashOptions;
use lab::device::Manner;
use lab::failing::{FailReport, When, fail_at, fill_up};
use lab::parallel::for_each_seed;
use lab::soak::{SoakOptions, run_model};
use nand::Faults;

/// Small and quick: GC, checkpoints, groups and a remount in a few thousand steps.
fn options(seed: u64, manner: Manner) -> CrashOptions {
    let mut options = CrashOptions::of_seed(seed);
    options.device.manner = manner;
    // Each try that a full disk refuses takes a band until that can be erased.
    options.device.blocks_per_unit += 2;
    options.operations_before = [20, 150][seed as usize % 2];
    options
}

/// Every flush of a life fails once, in a life of its own.
fn every_flush(
    test: &str,
    range: std::ops::Range<u64>,
    of_seed: impl Fn(u64) -> CrashOptions + Sync,
) {
    let reports = for_each_seed(seeds(range), THREADS, |seed| {
        let options = of_seed(seed);
        let (mut runs, mut loaded, mut stopping, mut early) = (0u32, 0u32, 0u32, 0u32);
        for number in 1.. {
            let report = fail_at(seed, &options, When::Flush(number))
                .map_err(|why| lab::driver::Failure(format!("flush {number}: {why}")))?;
            if !report.failed {
                break;
            }
            runs += 1;
            loaded += u32::from(report.in_flight > 1);
            stopping += u32::from(report.stopping);
            early += u32::from(report.before_ready);
        }
        Ok((runs, loaded, stopping, early))
    });
    let sum = |of: fn(&(u32, u32, u32, u32)) -> u32| -> u32 {
        reports.as_ref().map_or(0, |reports| reports.iter().map(of).sum())
    };
    let (runs, loaded, stopping, early) = (sum(|r| r.0), sum(|r| r.1), sum(|r| r.2), sum(|r| r.3));
    passed(test, reports);
    println!(
        "{test}: {runs} failed flushes, {loaded} with requests in flight, {stopping} at the end, {early} in a format"
    );
    let all = std::env::var("LAB_SEED").is_err();
    assert!(!all || loaded > 50 && stopping > 2 && early > 2, "too little was met");
}

#[test]
fn a_flush_that_fails_ends_every_request_and_loses_nothing_promised() {
    let test = "a_flush_that_fails_ends_every_request_and_loses_nothing_promised";
    every_flush(test, 0..12, |seed| options(seed, Manner::File));
}

#[test]
fn a_flush_that_fails_with_a_part_of_the_map_in_dram_ends_every_request() {
    let test = "a_flush_that_fails_with_a_part_of_the_map_in_dram_ends_every_request";
    every_flush(test, 100..104, |seed| options(seed, Manner::File).with_part_of_the_map());
}

#[test]
fn a_flush_that_fails_on_zones_ends_every_request() {
    let test = "a_flush_that_fails_on_zones_ends_every_request";
    every_flush(test, 200..205, |seed| {
        let mut options = options(seed, Manner::File);
        options.device.open_blocks_max = 8;
        options
    });
}

/// Nothing may be written any more from some step on; the steps are spread over the whole life.
fn some_steps(
    test: &str,
    range: std::ops::Range<u64>,
    runs: u64,
    of_seed: impl Fn(u64) -> CrashOptions + Sync,
) {
    let reports = for_each_seed(seeds(range), THREADS, |seed| {
        let options = of_seed(seed);
        let whole = fail_at(seed, &options, When::Step(u64::MAX))?;
        let mut reports = Vec::new();
        for run in 0..runs {
            let step = 1 + whole.steps * run / runs + seed % 7;
            let report = fail_at(seed, &options, When::Step(step))
                .map_err(|why| lab::driver::Failure(format!("step {step}: {why}")))?;
            reports.push(report);
        }
        Ok(reports)
    });
    let reports: Vec<FailReport> = passed(test, reports).into_iter().flatten().collect();
    let count = |of: fn(&&FailReport) -> bool| reports.iter().filter(of).count();
    let (failed, loaded) = (count(|r| r.failed), count(|r| r.in_flight > 1));
    let stopping = count(|r| r.stopping && r.failed);
    println!("{test}: {failed} failures, {loaded} with requests in flight, {stopping} at the end");
    let all = std::env::var("LAB_SEED").is_err();
    assert!(
        !all || loaded > 50 && stopping > 0,
        "too little was met: {failed}, {loaded}, {stopping}"
    );
}

#[test]
fn a_device_that_is_taken_away_at_any_step_ends_every_request() {
    let test = "a_device_that_is_taken_away_at_any_step_ends_every_request";
    some_steps(test, 300..312, 60, |seed| options(seed, MANNERS[seed as usize % MANNERS.len()]));
}

#[test]
fn a_device_with_a_fast_tier_that_is_taken_away_at_any_step_ends_every_request_and_the_detach() {
    let test = "a_device_with_a_fast_tier_that_is_taken_away_at_any_step_ends_every_request_and_the_detach";
    some_steps(test, 400..408, 60, |seed| {
        let fast = FastTier { units: 2, blocks_per_unit: 8 };
        let mut options = options(seed, Manner::Tiered { pairing: Pairing::None, fast });
        options.detach = seed % 2 == 0;
        options.volumes = 1 + (seed % 3) as u32;
        options
    });
}

#[test]
fn a_device_with_a_part_of_the_map_in_dram_that_is_taken_away_at_any_step_ends_every_request() {
    let test =
        "a_device_with_a_part_of_the_map_in_dram_that_is_taken_away_at_any_step_ends_every_request";
    some_steps(test, 500..506, 60, |seed| {
        let manner = [Manner::Nand(Pairing::None), Manner::File][seed as usize % 2];
        options(seed, manner).with_part_of_the_map()
    });
}

#[test]
fn on_a_full_disk_every_request_and_the_stop_end_and_with_room_all_goes_on() {
    let test = "on_a_full_disk_every_request_and_the_stop_end_and_with_room_all_goes_on";
    let reports = for_each_seed(seeds(600..700), THREADS, |seed| {
        let mut options = options(seed, Manner::File);
        if seed % 4 == 0 {
            options = options.with_part_of_the_map();
        }
        fill_up(seed, &options)
    });
    let reports = passed(test, reports);
    let refused = reports.iter().map(|report| report.refused).sum::<u64>();
    println!("{test}: {refused} requests were refused");
    assert!(
        std::env::var("LAB_SEED").is_ok() || refused > 100,
        "only {refused} requests met the full disk"
    );
}

/// Every request has a bound in every long run; here with all that goes wrong with flash at once, until
/// devices are worn out.
#[test]
fn no_request_outlives_a_bound_with_every_fault_on() {
    let test = "no_request_outlives_a_bound_with_every_fault_on";
    let run = |seed: u64| {
        let mut options = SoakOptions::quiet(crate::policies_of_seed(seed), seed);
        options.operations = 6_000;
        options.depth = 16;
        options.device.manner = match seed % 4 {
            0 => Manner::File,
            1 => Manner::Nand(Pairing::Staircase),
            2 => Manner::Nand(Pairing::None),
            _ => Manner::Tiered {
                pairing: Pairing::None,
                fast: FastTier { units: 2, blocks_per_unit: 10 },
            },
        };
        options.device.blocks_per_unit = 24;
        options.fill = [0.5, 0.7][seed as usize / 4 % 2];
        let fails = [0.0002, 0.001, 0.004][seed as usize % 3];
        let dies_at = flash::Instant(50_000_000 + seed % 7 * 40_000_000);
        options.faults = Faults {
            seed,
            factory_bad: 0.02,
            program_fail: fails,
            erase_fail: 2.0 * fails,
            correctable: 0.02,
            uncorrectable: 1e-4,
            dead_unit: seed.is_multiple_of(5).then_some((1, dies_at)),
            ..Faults::default()
        };
        (options.data_may_be_lost, options.may_give_up) = (true, true);
        run_model(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(700..760), THREADS, run));
    let worn_out = reports.iter().filter(|report| report.worn_out).count();
    println!("{worn_out} of {} wore out", reports.len());
    assert!(std::env::var("LAB_SEED").is_ok() || worn_out > 5, "{worn_out} wore out");
}

/// Nothing is bad where programs are cut short, as on a pool whose nodes come and go: every write is taken,
/// every block reads as it was written, and no band is lost to it, whatever the policies.
#[test]
fn programs_that_are_cut_short_cost_no_request_and_no_band() {
    let test = "programs_that_are_cut_short_cost_no_request_and_no_band";
    let run = |seed: u64| {
        let mut options = SoakOptions::quiet(crate::policies_of_seed(seed), seed);
        options.operations = 2_500;
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        options.device.blocks_per_unit = 24;
        options.operations_per_cut = [1_000, 0][seed as usize / 2 % 2];
        // A band holds only what came before its cut: with one page in twenty cut, 11 of its 16 pages.
        let (program_cut, fill) = [(0.001, 0.7), (0.01, 0.6), (0.05, 0.4)][seed as usize % 3];
        options.fill = fill;
        options.faults = Faults { seed, program_cut, ..Faults::default() };
        let report = run_model(seed, &options)?;
        // The last mount's.
        Ok((report.counts, report.worn_out))
    };
    let reports = passed(test, for_each_seed(seeds(800..1100), THREADS, run));
    let refused: u64 = reports.iter().map(|(counts, _)| counts.refused + counts.no_space).sum();
    let worn_out = reports.iter().filter(|(_, worn_out)| *worn_out).count();
    println!("{test}: {} seeds, {refused} requests refused, {worn_out} worn out", reports.len());
    assert_eq!((refused, worn_out), (0, 0), "a program that was cut short is no failure");
}
