//! Power cuts after every step of the medium.

use crate::{THREADS, passed, seeds};
use flash::Pairing;
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::Manner;

fn explore(test: &str, range: std::ops::Range<u64>, manner: Manner) -> CrashReport {
    let begun = std::time::Instant::now();
    let report = passed(
        test,
        explore_seeds(seeds(range), THREADS, |seed| {
            let mut options = CrashOptions::of_seed(seed);
            options.device.manner = manner;
            options.images_per_cut = if manner == Manner::File { 16 } else { 64 };
            options
        }),
    );
    let rate = report.images as f64 / begun.elapsed().as_secs_f64();
    println!("{test}: {report:?}, {rate:.0} images/s");
    assert!(report.images > 0 && report.cuts > 0, "nothing was cut: {report:?}");
    report
}

#[test]
fn slc_keeps_every_acknowledged_write_after_any_power_cut() {
    explore(
        "slc_keeps_every_acknowledged_write_after_any_power_cut",
        0..60,
        Manner::Nand(Pairing::None),
    );
}

#[test]
fn staircase_pages_keep_what_was_flushed_after_any_power_cut() {
    explore(
        "staircase_pages_keep_what_was_flushed_after_any_power_cut",
        100..160,
        Manner::Nand(Pairing::Staircase),
    );
}

#[test]
fn adjacent_pages_keep_what_was_flushed_after_any_power_cut() {
    explore(
        "adjacent_pages_keep_what_was_flushed_after_any_power_cut",
        200..260,
        Manner::Nand(Pairing::Adjacent(2)),
    );
}

#[test]
fn a_file_keeps_what_was_flushed_after_any_power_cut() {
    explore("a_file_keeps_what_was_flushed_after_any_power_cut", 300..360, Manner::File);
}
