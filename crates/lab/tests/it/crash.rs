//! Power cuts after every step of the medium.

use crate::{MANNERS, THREADS, passed, seeds};
use flash::Pairing;
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::Manner;
use lab::missed::survive_missing;
use lab::parallel::for_each_seed;
use lab::rot::survive_rot;
use nand::Faults;

fn explore(test: &str, range: std::ops::Range<u64>, manner: Manner) -> CrashReport {
    let begun = std::time::Instant::now();
    let report = passed(
        test,
        explore_seeds(seeds(range), THREADS, |seed| {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = manner;
            if manner == Manner::Nand(Pairing::Staircase) {
                // A checkpoint takes two bands of such pages.
                options.device.blocks_per_unit += 2;
            }
            options.images_per_cut = if manner.forgets() { 16 } else { 64 };
            options
        }),
    );
    let rate = report.images as f64 / begun.elapsed().as_secs_f64();
    println!("{test}: {report:?}, {rate:.0} images/s");
    assert!(report.images > 0 && report.cuts > 0, "nothing was cut: {report:?}");
    // Elsewhere a cut may leave what looks like damage.
    let exact = matches!(manner, Manner::Nand(_));
    assert!(!exact || report.alarms == 0, "a power cut is called damage: {report:?}");
    report
}

#[test]
fn slc_keeps_every_acknowledged_write_after_any_power_cut() {
    explore(
        "slc_keeps_every_acknowledged_write_after_any_power_cut",
        0..30,
        Manner::Nand(Pairing::None),
    );
}

#[test]
fn staircase_pages_keep_what_was_flushed_after_any_power_cut() {
    explore(
        "staircase_pages_keep_what_was_flushed_after_any_power_cut",
        100..130,
        Manner::Nand(Pairing::Staircase),
    );
}

#[test]
fn adjacent_pages_keep_what_was_flushed_after_any_power_cut() {
    explore(
        "adjacent_pages_keep_what_was_flushed_after_any_power_cut",
        200..230,
        Manner::Nand(Pairing::Adjacent(2)),
    );
}

#[test]
fn a_file_keeps_what_was_flushed_after_any_power_cut() {
    explore("a_file_keeps_what_was_flushed_after_any_power_cut", 300..330, Manner::File);
}

#[test]
fn a_folder_keeps_what_was_flushed_after_any_power_cut() {
    explore("a_folder_keeps_what_was_flushed_after_any_power_cut", 400..420, Manner::Folder);
}

/// A device whose label is changed now and then.
pub fn relabelled(seed: u64) -> CrashOptions {
    let mut options = match seed % 6 {
        5 => CrashOptions::tiered_of_seed(seed),
        _ => CrashOptions::of_seed(seed),
    };
    if seed % 6 < 5 {
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        // Of pages that share cells a checkpoint takes two bands.
        options.device.blocks_per_unit += 2;
    }
    (options.relabel, options.images_per_cut, options.recut_every) = (true, 6, 61);
    options
}

#[test]
fn a_label_that_is_changed_is_the_old_or_the_new_one_after_any_power_cut() {
    let test = "a_label_that_is_changed_is_the_old_or_the_new_one_after_any_power_cut";
    let report = passed(test, explore_seeds(seeds(700..724), THREADS, relabelled));
    println!("{test}: {report:?}");
    assert!(report.labels > 24, "the label was hardly changed: {report:?}");
}

#[test]
fn any_single_page_may_rot() {
    let test = "any_single_page_may_rot";
    let run = |seed: u64| {
        let mut options = CrashOptions::of_seed(seed);
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        // Of pages that share cells a checkpoint takes two bands.
        options.device.blocks_per_unit += 2;
        survive_rot(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(400..448), THREADS, run));
    let sum = |of: fn(&lab::rot::RotReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (images, rebuilt) = (sum(|report| report.images), sum(|report| report.rebuilt));
    let (read_only, stale) = (sum(|report| report.read_only), sum(|report| report.stale));
    println!("{images} images, {rebuilt} rebuilt, {read_only} read-only, {stale} stale blocks");
    assert!(rebuilt > 0 && read_only > 0 && stale > 0, "a case was not met");
}

#[test]
fn a_slot_that_is_damaged_after_a_crash_never_brings_an_old_version_back() {
    let test = "a_slot_that_is_damaged_after_a_crash_never_brings_an_old_version_back";
    let run = |seed: u64| {
        let mut options = CrashOptions::of_seed(seed);
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        survive_missing(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(600..632), THREADS, run));
    let sum = |of: fn(&lab::missed::MissedReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (images, noticed) = (sum(|report| report.images), sum(|report| report.noticed));
    let (refused, blocks) = (sum(|report| report.refused), sum(|report| report.blocks));
    let older = sum(|report| report.older);
    println!(
        "{images} images, {noticed} noticed, {refused} refused, {older} older, {blocks} blocks are errors"
    );
    assert!(older < images / 20, "vouchers make up for most of it");
    assert!(noticed > 0 && blocks > 0, "nothing was ever missed");
    assert!(refused < images / 20, "vouchers tell which block it was");
}

/// What a recovery does by itself is cut off wherever it can be: the first mount and the second one
/// must agree. In most images of the other tests a recovery runs to its end.
#[test]
fn a_recovery_that_is_cut_off_changes_nothing() {
    let test = "a_recovery_that_is_cut_off_changes_nothing";
    let report = passed(
        test,
        explore_seeds(seeds(500..524), THREADS, |seed| {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = MANNERS[seed as usize % MANNERS.len()];
            (options.images_per_cut, options.operations) = (2, 20);
            (options.recut_every, options.live_on_every) = (5, u64::MAX);
            options
        }),
    );
    println!("{test}: {report:?}");
    assert!(report.recuts > report.cuts, "recoveries were hardly cut: {report:?}");
}

/// A page that cannot be programmed is appended again later, out of the order of its writes.
#[test]
fn writes_whose_program_failed_stay_in_order_after_any_power_cut() {
    let test = "writes_whose_program_failed_stay_in_order_after_any_power_cut";
    let manners = [
        Manner::Nand(Pairing::None),
        Manner::Nand(Pairing::Staircase),
        Manner::Nand(Pairing::Adjacent(2)),
    ];
    let report = passed(
        test,
        explore_seeds(seeds(2600..2648), THREADS, |seed| {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = manners[seed as usize % 3];
            // Room for blocks that go bad, and checkpoints all the time.
            options.device.blocks_per_unit = 48;
            (options.fill, options.settings.checkpoint_slots) = (0.1, 12);
            options.faults = Faults { seed, program_fail: 0.01, ..Faults::default() };
            (options.depth, options.operations_before) = (8, 0);
            (options.operations, options.images_per_cut) = (300, 2);
            (options.recut_every, options.live_on_every) = (397, u64::MAX);
            options
        }),
    );
    println!("{test}: {report:?}");
    assert!(report.cuts > 0, "nothing was cut: {report:?}");
}

/// A program that is cut short leaves its page there or not, and nothing bad.
#[test]
fn writes_whose_program_was_cut_short_stay_in_order_after_any_power_cut() {
    let test = "writes_whose_program_was_cut_short_stay_in_order_after_any_power_cut";
    let report = passed(
        test,
        explore_seeds(seeds(2700..2732), THREADS, |seed| {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = MANNERS[seed as usize % MANNERS.len()];
            options.device.blocks_per_unit = 48;
            (options.fill, options.settings.checkpoint_slots) = (0.1, 12);
            options.faults = Faults { seed, program_cut: 0.02, ..Faults::default() };
            (options.depth, options.operations_before) = (8, 0);
            (options.operations, options.images_per_cut) = (200, 2);
            (options.recut_every, options.live_on_every) = (397, u64::MAX);
            options
        }),
    );
    println!("{test}: {report:?}");
    assert!(report.cuts > 0, "nothing was cut: {report:?}");
}
