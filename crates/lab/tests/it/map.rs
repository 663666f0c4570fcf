//! A map of which a part is in DRAM: what was written is there, and reads as it was written, whatever
//! piece of the map comes and goes meanwhile.

use crate::{THREADS, passed, policies_of_seed, seeds};
use flash::{FastTier, Pairing};
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::damage::survive_damage;
use lab::device::Manner;
use lab::lost_map::{LostMapReport, survive_lost_map};
use lab::parallel::for_each_seed;
use lab::rot::survive_rot;
use lab::soak::{SoakOptions, run_model, run_model_twice};
use nand::Faults;

/// A device under policies that follow from the seed, every other one with a fast tier.
fn options_of_seed(seed: u64) -> SoakOptions {
    let mut options = SoakOptions::quiet(policies_of_seed(seed), seed);
    let pairings = [Pairing::None, Pairing::Staircase, Pairing::Adjacent(2)];
    let pairing = pairings[seed as usize % 3];
    options.device.manner = match seed % 4 {
        0 => Manner::Nand(pairing),
        1 => Manner::File,
        _ => Manner::Tiered {
            pairing,
            fast: FastTier { units: 2, blocks_per_unit: 6 + seed as u32 % 4 },
        },
    };
    options.device.slots_per_page = [2, 4, 8][seed as usize / 3 % 3];
    options.fill = [0.5, 0.9, 1.0][seed as usize / 2 % 3];
    options.operations = 8_000;
    // Some with several chunks on a page of the checkpoint; they take longer.
    if seed % 6 == 2 {
        options.device.blocks_per_unit = 48;
        options.operations = 3_000;
    }
    // Of every third more than the frames can take at a time.
    options.depth = [8, 16, 64][seed as usize % 3];
    options.settings.map_piece_blocks = [8, 16, 64][seed as usize / 4 % 3];
    let medium = options.device.build(Faults::default()).unwrap();
    options.settings.map_bytes =
        ftl::map_bytes_min(medium.geometry(), options.settings.map_piece_blocks);
    options
}

#[test]
fn a_part_of_the_map_in_dram_keeps_every_acknowledged_write_after_any_power_cut() {
    let test = "a_part_of_the_map_in_dram_keeps_every_acknowledged_write_after_any_power_cut";
    let options = |seed| {
        let options = if seed % 2 == 0 {
            CrashOptions::of_seed(seed)
        } else {
            CrashOptions::tiered_of_seed(seed)
        };
        CrashOptions { images_per_cut: 12, ..options.with_part_of_the_map() }
    };
    let report: CrashReport = passed(test, explore_seeds(seeds(0..24), THREADS, options));
    println!("{test}: {report:?}");
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
}

#[test]
fn a_part_of_the_map_in_dram_stays_right_while_a_fast_tier_comes_and_goes() {
    let test = "a_part_of_the_map_in_dram_stays_right_while_a_fast_tier_comes_and_goes";
    let options = |seed| {
        let mut options = CrashOptions::tiered_of_seed(seed).with_part_of_the_map();
        options.fill = options.fill.min(0.9);
        options.operations = 16;
        options.images_per_cut = 8;
        // What the map rests on moves from one tier to the other, in another shape.
        options.detach = true;
        options
    };
    let report: CrashReport = passed(test, explore_seeds(seeds(900..912), THREADS, options));
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
}

#[test]
fn reads_with_a_part_of_the_map_in_dram_return_the_last_write_in_long_runs() {
    let test = "reads_with_a_part_of_the_map_in_dram_return_the_last_write_in_long_runs";
    let run = |seed| {
        let report = run_model(seed, &options_of_seed(seed))?;
        if report.counts.no_space > 0 {
            return Err(lab::Failure(format!("refused for want of space: {report:?}")));
        }
        Ok(report)
    };
    let reports = passed(test, for_each_seed(seeds(0..24), THREADS, run));
    let loaded: u64 = reports.iter().map(|report| report.map_pieces_loaded).sum();
    println!("{test}: {loaded} pieces were loaded");
    assert!(loaded > 0, "all of the map was in DRAM");
}

#[test]
fn a_part_of_the_map_in_dram_keeps_everything_when_blocks_fail_and_the_power_goes() {
    let test = "a_part_of_the_map_in_dram_keeps_everything_when_blocks_fail_and_the_power_goes";
    let options = |seed: u64| {
        let mut options = if seed.is_multiple_of(2) {
            CrashOptions::of_seed(seed)
        } else {
            CrashOptions::tiered_of_seed(seed)
        };
        options.fill = options.fill.min(0.6);
        options = options.with_part_of_the_map();
        options.faults =
            Faults { seed, program_fail: 0.002, erase_fail: 0.002, ..Faults::default() };
        options.settings.checkpoint_slots = 60;
        options.images_per_cut = 4;
        options
    };
    passed(test, explore_seeds(seeds(700..712), THREADS, options));
}

#[test]
fn any_single_page_may_rot_where_a_part_of_the_map_is_in_dram() {
    let test = "any_single_page_may_rot_where_a_part_of_the_map_is_in_dram";
    let run = |seed: u64| {
        let mut options = CrashOptions::of_seed(seed).with_part_of_the_map();
        options.device.blocks_per_unit -= 8;
        survive_rot(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(800..806), THREADS, run));
    let rebuilt: u64 = reports.iter().map(|report| report.rebuilt).sum();
    assert!(rebuilt > 0, "no map was rebuilt");
}

#[test]
fn damage_is_found_where_a_part_of_the_map_is_in_dram() {
    let test = "damage_is_found_where_a_part_of_the_map_is_in_dram";
    let run = |seed: u64| survive_damage(seed, &CrashOptions::of_seed(seed).with_part_of_the_map());
    passed(test, for_each_seed(seeds(0..16), THREADS, run));
}

#[test]
fn a_map_that_rots_under_a_running_device_costs_nothing_but_a_mount() {
    let test = "a_map_that_rots_under_a_running_device_costs_nothing_but_a_mount";
    let run = |seed: u64| {
        let mut options = if seed.is_multiple_of(2) {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = Manner::Nand(Pairing::None);
            options
        } else {
            CrashOptions::tiered_of_seed(seed)
        };
        options.fill = options.fill.min(0.8);
        survive_lost_map(seed, &options.with_part_of_the_map())
    };
    let reports = passed(test, for_each_seed(seeds(0..24), THREADS, run));
    let sum = |of: fn(&LostMapReport) -> u64| reports.iter().map(of).sum::<u64>();
    println!("{test}: {} pieces lost, {} rebuilt", sum(|r| r.pieces_lost), sum(|r| r.rebuilt));
    assert!(sum(|report| report.pieces_lost) > 0 && sum(|report| report.rebuilt) > 0);
}

#[test]
fn a_run_with_a_part_of_the_map_in_dram_is_the_same_twice() {
    let test = "a_run_with_a_part_of_the_map_in_dram_is_the_same_twice";
    let run = |seed| {
        let mut options = options_of_seed(seed);
        options.operations = 3_000;
        run_model_twice(seed, &options)
    };
    passed(test, for_each_seed(seeds(0..4), THREADS, run));
}
