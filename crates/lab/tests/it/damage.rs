//! Damage of every kind to every kind of slot: what is read is right or an error, and the device says so.

use crate::{THREADS, passed};
use lab::damage::{
    Case, Combination, DamageOptions, DamageReport, Harm, LoneOptions, Matrix, RAW_KINDS, Shape,
    SlotKind, explore_damage, explore_raw_damage, run_lone,
};
use lab::device::Manner;
use lab::parallel::{SeedFailure, for_each_seed};
use lab::soak::SoakOptions;

/// Enough that every kind of device meets every case.
const SEEDS: std::ops::Range<u64> = 0..72;
const RAW_SEEDS: u64 = 100;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn options() -> DamageOptions {
    DamageOptions { only: number("LAB_IMAGE"), ..DamageOptions::default() }
}

/// The images of all seeds; a failure names its seed, and its image in its words.
fn total(
    test: &str,
    seeds: std::ops::Range<u64>,
    run: impl Fn(u64, &DamageOptions) -> Result<DamageReport, lab::Failure> + Sync,
) -> DamageReport {
    let (begun, options) = (std::time::Instant::now(), options());
    let reports = for_each_seed(crate::seeds(seeds), THREADS, |seed| run(seed, &options));
    let reports = reports.inspect_err(|failed: &SeedFailure| {
        println!("one image alone: LAB_SEED={} LAB_IMAGE=(its number)", failed.seed);
    });
    let mut total = DamageReport::default();
    passed(test, reports).iter().for_each(|report| total.add(report));
    let rate = total.matrix.total().images as f64 / begun.elapsed().as_secs_f64();
    println!("{}{rate:.0} images/s", total.as_text());
    total
}

#[test]
fn whatever_is_damaged_reads_right_or_as_an_error() {
    let test = "whatever_is_damaged_reads_right_or_as_an_error";
    let report = total(test, SEEDS, explore_damage);
    if number("LAB_SEED").is_some() {
        return;
    }
    let (images, missing) =
        (report.matrix.total().images, report.matrix.missing(&Shape::KINDS, true));
    assert!(images >= 20_000, "only {images} images");
    assert!(missing.is_empty(), "never tried: {missing:?}");
    assert_eq!(report.beyond_known(), None);
}

/// Files of a folder that are as they were at an earlier moment: of all that is programmed but the last
/// page of a block the records say that it was durable.
#[test]
fn a_folder_of_which_a_file_is_rolled_back_reads_right_or_as_an_error() {
    let test = "a_folder_of_which_a_file_is_rolled_back_reads_right_or_as_an_error";
    let report = total(test, 0..12, |number, options| {
        let case = Some(Case::Several(Combination::Tails));
        let options = DamageOptions { case, images: 60, ..options.clone() };
        explore_damage(Shape::Folder.seed(number), &options)
    });
    assert!(report.matrix.total().images >= 500, "only {} images", report.matrix.total().images);
}

/// What a band held in an earlier life is sound by itself, and may be of the very blocks that the map
/// seeks there.
#[test]
fn a_band_that_shows_an_earlier_life_reads_right_or_as_an_error() {
    let test = "a_band_that_shows_an_earlier_life_reads_right_or_as_an_error";
    let kinds = [SlotKind::Data, SlotKind::Copy, SlotKind::Pad];
    for (kind, shape) in kinds.into_iter().flat_map(|kind| Shape::ALL.map(|shape| (kind, shape))) {
        total(test, 0..2, |number, options| {
            let case = Some(Case::One(kind, Harm::Stale));
            let options = DamageOptions { case, images: 100, ..options.clone() };
            explore_damage(shape.seed(number), &options)
        });
    }
}

#[test]
fn whatever_is_damaged_of_raw_units_reads_right_or_as_an_error() {
    let test = "whatever_is_damaged_of_raw_units_reads_right_or_as_an_error";
    let report = total(test, 0..12, explore_raw_damage);
    if number("LAB_SEED").is_some() {
        return;
    }
    let missing = report.matrix.missing(&RAW_KINDS, false);
    assert!(missing.is_empty(), "never tried: {missing:?}");
    assert_eq!(report.beyond_known(), None);
}

/// A raw block that shows what it held before it was erased, and lane records of which some are gone, so
/// that older ones count.
#[test]
fn raw_units_that_show_an_earlier_moment_read_right_or_as_an_error() {
    let test = "raw_units_that_show_an_earlier_moment_read_right_or_as_an_error";
    let of_records = [Harm::Foreign, Harm::Stale, Harm::Unreadable, Harm::PointerSmall];
    let of_records = of_records.map(|harm| (SlotKind::LaneRecord, harm));
    for (kind, harm) in [(SlotKind::RawData, Harm::Stale)].into_iter().chain(of_records) {
        total(test, 0..RAW_SEEDS, |number, options| {
            let case = Some(Case::One(kind, harm));
            let options = DamageOptions { case, images: 200, ..options.clone() };
            explore_raw_damage(number, &options)
        });
    }
}

#[test]
fn an_empty_matrix_misses_every_case() {
    let all = Matrix::default().missing(&Shape::KINDS, true).len();
    assert!(all > 1000, "only {all} cases");
}

/// Where pages share cells a lone writer fills one band, as it would have to close the other for each flush.
#[test]
fn what_a_lone_writer_made_durable_never_reads_old_where_the_end_of_a_band_is_damaged() {
    let test = "what_a_lone_writer_made_durable_never_reads_old_where_the_end_of_a_band_is_damaged";
    for manner in [Manner::File, Manner::Folder, Manner::Nand(flash::Pairing::None)] {
        let run = |seed: u64| {
            let SoakOptions { mut device, settings, .. } =
                SoakOptions::quiet(Default::default(), seed);
            (device.manner, device.pages_per_block) = (manner, 32);
            // A few bands, or all of the device several times over.
            let anywhere = seed % 2 == 1;
            let writes = if anywhere { 1500 } else { 40 + seed as u32 * 7 };
            let pages = [1, 3, 16][seed as usize % 3];
            run_lone(seed, &LoneOptions { device, settings, writes, pages, anywhere })
        };
        let reports = passed(test, for_each_seed(crate::seeds(0..24), THREADS, run));
        let sum = |of: fn(&lab::damage::LoneReport) -> u32| reports.iter().map(of).sum::<u32>();
        let (bands, old, errors) = (sum(|it| it.bands), sum(|it| it.old), sum(|it| it.errors));
        println!("{manner:?}: {bands} bands, {old} blocks old, {errors} errors");
        assert!(bands >= 48 && errors > old, "{bands} bands, {errors} errors");
    }
}
