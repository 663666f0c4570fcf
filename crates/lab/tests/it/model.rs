//! Long random runs against the model: every policy, failing flash, power cuts and remounts.

use crate::{MANNERS, THREADS, passed, seeds};
use flash::Pairing;
use lab::device::Manner;
use lab::parallel::for_each_seed;
use lab::soak::{SoakOptions, SoakReport, policy_combinations, run_model, run_model_twice};
use lab::worn::{WornOptions, WornReport, run_worn};
use nand::Faults;

#[test]
fn every_policy_combination_reads_back_what_was_written_and_repeats_itself() {
    let test = "every_policy_combination_reads_back_what_was_written_and_repeats_itself";
    let combinations = policy_combinations();
    let run = |seed: u64| {
        let policies = combinations[seed as usize % combinations.len()].clone();
        run_model_twice(
            seed,
            &SoakOptions { operations: 6_000, ..SoakOptions::quiet(policies, seed) },
        )
    };
    let twice = 2 * combinations.len() as u64;
    let reports = passed(test, for_each_seed(seeds(0..twice), THREADS, run));
    println!("{} combinations, for example {:?}", reports.len(), reports[0]);
}

#[test]
fn policies_may_be_switched_at_any_time() {
    let test = "policies_may_be_switched_at_any_time";
    let run = |seed| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.operations_per_switch = 50;
        run_model_twice(seed, &options)
    };
    passed(test, for_each_seed(seeds(0..8), THREADS, run));
}

#[test]
fn bad_blocks_and_failing_programs_and_erases_lose_nothing() {
    let test = "bad_blocks_and_failing_programs_and_erases_lose_nothing";
    let run = |seed| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.device.blocks_per_unit = 40;
        options.fill = 0.7;
        options.faults = Faults {
            seed,
            factory_bad: 0.02,
            program_fail: 1e-4,
            erase_fail: 3e-4,
            correctable: 0.01,
            ..Faults::default()
        };
        run_model_twice(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(0..12), THREADS, run));
    println!("for example {:?}", reports[0]);
}

#[test]
fn pages_that_rot_are_reported_and_never_returned_wrong() {
    let test = "pages_that_rot_are_reported_and_never_returned_wrong";
    let run = |seed| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.faults = Faults { seed, uncorrectable: 2e-4, ..Faults::default() };
        options.data_may_be_lost = true;
        run_model_twice(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(0..8), THREADS, run));
    assert!(reports.iter().any(|report| report.counts.unreadable > 0), "nothing rotted");
    let count = |of: fn(&SoakReport) -> bool| reports.iter().filter(|report| of(report)).count();
    assert_eq!(count(|report| report.mount_refused), 0, "a device was lost whole");
    println!("{} of {} became read-only", count(|report| report.read_only), reports.len());
}

/// Blocks fail fast, so the device wears out within the run: data moves as long as there is room,
/// then writes are refused, and every read is right to the end.
#[test]
fn a_device_worn_out_refuses_writes_and_reads_on() {
    let test = "a_device_worn_out_refuses_writes_and_reads_on";
    let run = |seed| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.fill = 0.7;
        options.faults = Faults {
            seed,
            factory_bad: 0.03,
            program_fail: 2e-4,
            erase_fail: 4e-3,
            wear_errors: true,
            ..Faults::default()
        };
        run_model_twice(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(0..24), THREADS, run));
    let worn_out = reports.iter().filter(|report| report.worn_out).count();
    println!("{worn_out} of {} wore out, for example {:?}", reports.len(), reports[0]);
    assert!(worn_out > reports.len() / 2, "only {worn_out} wore out");
}

/// Bands go bad under random writes until nothing new fits. The way out that status tells goes on.
#[test]
fn trims_go_on_where_flash_has_worn_out_under_what_it_holds_and_make_room_again() {
    let test = "trims_go_on_where_flash_has_worn_out_under_what_it_holds_and_make_room_again";
    let run = |seed: u64| {
        let SoakOptions { mut device, settings, .. } = SoakOptions::quiet(Default::default(), seed);
        (device.blocks_per_unit, device.pages_per_block) = (40, 32);
        let program_fail = [1e-3, 5e-4, 2e-4][seed as usize % 3];
        run_worn(seed, &WornOptions { device, settings, fill: 0.4, program_fail })
    };
    let reports = passed(test, for_each_seed(seeds(0..48), THREADS, run));
    let worn: Vec<&WornReport> = reports.iter().flatten().collect();
    let used_up = worn.iter().filter(|report| report.used_up).count();
    println!("{} worn, {used_up} used up, for example {:?}", worn.len(), worn.first());
    let all = std::env::var("LAB_SEED").is_err();
    assert!(!all || worn.len() > reports.len() / 2, "only {} were worn", worn.len());
    // One band in thirty goes bad when it is filled, at worst: a streak of them takes every reserve.
    assert!(!all || used_up <= worn.len() / 8, "{used_up} of {} were used up", worn.len());
}

#[test]
fn a_dead_die_takes_its_own_data_and_nothing_else() {
    let test = "a_dead_die_takes_its_own_data_and_nothing_else";
    let run = |seed: u64| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.fill = 0.4;
        let dies_at = flash::Instant(100_000_000 + seed * 30_000_000);
        options.faults = Faults { seed, dead_unit: Some((1, dies_at)), ..Faults::default() };
        options.data_may_be_lost = true;
        run_model(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(0..8), THREADS, run));
    assert!(reports.iter().any(|report| report.counts.unreadable > 0), "no die died");
}

#[test]
fn every_manner_of_medium_survives_a_long_run() {
    let test = "every_manner_of_medium_survives_a_long_run";
    let run = |seed: u64| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        options.operations_per_cut = 500;
        run_model_twice(seed, &options)
    };
    passed(test, for_each_seed(seeds(0..16), THREADS, run));
}

#[test]
fn a_nearly_full_device_keeps_working() {
    let test = "a_nearly_full_device_keeps_working";
    let run = |seed| {
        let mut options = SoakOptions::quiet(Default::default(), seed);
        options.fill = 1.0;
        options.operations = 40_000;
        let report = run_model(seed, &options)?;
        if report.counts.no_space > 0 {
            return Err(lab::Failure(format!("refused for want of space: {report:?}")));
        }
        Ok(report)
    };
    passed(test, for_each_seed(seeds(0..8), THREADS, run));
}

#[test]
fn a_service_level_of_reads_never_stops_a_full_device() {
    let test = "a_service_level_of_reads_never_stops_a_full_device";
    let combinations = policy_combinations();
    let run = |seed: u64| {
        let policies = combinations[seed as usize % combinations.len()].clone();
        let mut options = SoakOptions::quiet(policies, seed);
        options.fill = [0.95, 0.97, 0.99, 1.0][seed as usize % 4];
        // From what no medium gives to what asks for nothing.
        options.settings.read_slo_ns = [1, 40_000, 130_000, 1_000_000][seed as usize / 4 % 4];
        options.device.manner =
            [Manner::Nand(Pairing::Staircase), Manner::Nand(Pairing::None)][seed as usize / 2 % 2];
        options.device.blocks_per_unit = 32;
        options.operations = 15_000;
        let report = run_model(seed, &options)?;
        if report.counts.no_space > 0 {
            return Err(lab::Failure(format!("refused for want of space: {report:?}")));
        }
        Ok(report)
    };
    passed(test, for_each_seed(seeds(0..24), THREADS, run));
}
