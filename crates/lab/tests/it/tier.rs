//! The fast tier: what was acknowledged from it is there, and reads as it was written, whatever
//! destage is doing.

use crate::{THREADS, passed, seeds};
use flash::{FastTier, Pairing};
use ftl::PolicyNames;
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::Manner;
use lab::parallel::for_each_seed;
use lab::soak::{SoakOptions, run_model, run_model_twice};
use nand::Faults;

/// A small two-tier device under policies that follow from the seed.
fn options_of_seed(seed: u64) -> SoakOptions {
    let pick =
        |names: &[&str], every: u64| names[(seed / every) as usize % names.len()].to_string();
    let policies = PolicyNames {
        victim: pick(ftl::policy::VICTIMS, 1),
        wear: pick(ftl::policy::WEARS, 4),
        erase: pick(ftl::policy::ERASES, 5),
        unit: pick(ftl::policy::UNITS, 2),
        stream: pick(ftl::policy::stream::STREAMS, 3),
        ..PolicyNames::default()
    };
    let mut options = SoakOptions::quiet(policies, seed);
    let pairings = [Pairing::None, Pairing::Staircase, Pairing::Adjacent(2)];
    options.device.manner = Manner::Tiered {
        pairing: pairings[seed as usize % 3],
        fast: FastTier { units: 2, blocks_per_unit: 6 + seed as u32 % 4 },
    };
    options.device.slots_per_page = [2, 4, 8][seed as usize / 3 % 3];
    options.fill = [0.5, 0.9, 1.0][seed as usize / 2 % 3];
    options.settings.destage_above = [0, 50, 80][seed as usize % 3];
    options
}

#[test]
fn a_fast_tier_keeps_every_acknowledged_write_after_any_power_cut() {
    let test = "a_fast_tier_keeps_every_acknowledged_write_after_any_power_cut";
    let explored = explore_seeds(seeds(0..20), THREADS, CrashOptions::tiered_of_seed);
    let report: CrashReport = passed(test, explored);
    println!("{test}: {report:?}");
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
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
