//! Media that bound how many blocks are partly programmed, as zoned devices do: the emulated medium
//! refuses what goes beyond, and that ends a run.

use crate::{THREADS, passed, policies_of_seed, seeds};
use flash::{FastTier, Pairing};
use lab::crash::{CrashOptions, explore_seeds};
use lab::device::Manner;
use lab::parallel::for_each_seed;
use lab::soak::{SoakOptions, run_model_twice};
use nand::Faults;

/// From hardly enough up.
fn bound_of_seed(seed: u64) -> u32 {
    5 + seed as u32 % 5
}

#[test]
fn a_zoned_disk_keeps_what_was_flushed_after_any_power_cut() {
    let test = "a_zoned_disk_keeps_what_was_flushed_after_any_power_cut";
    let options = |seed| {
        let mut options = CrashOptions::of_seed(seed);
        options.device.manner = [Manner::File, Manner::Nand(Pairing::None)][seed as usize % 2];
        options.device.open_blocks_max = bound_of_seed(seed);
        options.images_per_cut = 12;
        // Of some the label is changed, each time by a checkpoint.
        options.relabel = seed >= 630;
        options
    };
    let report = passed(test, explore_seeds(seeds(600..640), THREADS, options));
    assert!(report.images > 0 && report.cuts > 0, "nothing was cut: {report:?}");
    assert!(report.labels > 0, "the label was never changed: {report:?}");
}

#[test]
fn a_fast_tier_before_a_zoned_device_comes_and_goes_under_power_cuts() {
    let test = "a_fast_tier_before_a_zoned_device_comes_and_goes_under_power_cuts";
    let options = |seed| {
        let mut options = CrashOptions::tiered_of_seed(seed);
        options.device.open_blocks_max = bound_of_seed(seed);
        options.volumes = 1;
        options.fill = options.fill.min(0.7);
        // Without the tier the points of the host need places, too, and so does a checkpoint.
        options.detach = options.device.open_blocks_max >= 8;
        options.images_per_cut = 16;
        options
    };
    passed(test, explore_seeds(seeds(640..660), THREADS, options));
}

#[test]
fn a_zoned_device_lives_on_through_failures_and_switches() {
    let test = "a_zoned_device_lives_on_through_failures_and_switches";
    let run = |seed: u64| {
        let mut options = SoakOptions::quiet(policies_of_seed(seed), seed);
        let fast = FastTier { units: 2, blocks_per_unit: 6 + seed as u32 % 4 };
        options.device.manner = match seed % 4 {
            0 => Manner::File,
            1 | 2 => Manner::Nand([Pairing::None, Pairing::Adjacent(2)][seed as usize / 4 % 2]),
            _ => Manner::Tiered { pairing: Pairing::None, fast },
        };
        if !seed.is_multiple_of(4) {
            options.faults =
                Faults { seed, program_fail: 0.0003, erase_fail: 0.0003, ..Faults::default() };
        }
        options.device.open_blocks_max = bound_of_seed(seed / 4) + 1;
        options.device.blocks_per_unit = 32;
        options.fill = [0.5, 0.8][seed as usize / 2 % 2];
        options.settings.handles = 1 + (seed / 8 % 4) as u8;
        options.operations_per_switch = 300;
        options.operations_per_cut = 1500;
        run_model_twice(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(0..32), THREADS, run));
    assert!(reports.iter().any(|report| report.switches > 0), "no policy was switched");
}
