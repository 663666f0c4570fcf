//! Units that are added to a device: it is the larger one wholly or not at all, and what it held is there.

use crate::{MANNERS, THREADS, passed, seeds};
use flash::{Hint, Instant, Pairing};
use ftl::{FormatOptions, MountError, Settings, ShadowStretch, SnapshotOrder};
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::{Manner, Small};
use lab::driver::{Sim, State, Step};
use lab::medium::SimMedium;
use lab::parallel::for_each_seed;
use lab::snapshots::{SnapshotReport, explore_growth, options_of_seed};
use nand::Faults;

#[test]
fn a_device_grows_with_a_power_cut_at_any_step() {
    let test = "a_device_grows_with_a_power_cut_at_any_step";
    let options = |seed: u64| {
        let mut options = CrashOptions::of_seed(seed);
        options.device.manner = MANNERS[seed as usize % MANNERS.len()];
        // The units that it has first hold two checkpoints, of pages that share cells of two bands each.
        options.device.blocks_per_unit += 4;
        options.units_added = 1 + seed as u32 / 4 % 3;
        options.device.units += options.units_added;
        options.operations = 16;
        options.images_per_cut = 16;
        options
    };
    let report: CrashReport = passed(test, explore_seeds(seeds(1200..1224), THREADS, options));
    println!("{test}: {report:?}");
    assert!(report.images > 0 && report.recuts > 0, "nothing was cut: {report:?}");
}

#[test]
fn a_device_with_snapshots_grows_with_a_power_cut_at_any_step() {
    let test = "a_device_with_snapshots_grows_with_a_power_cut_at_any_step";
    let run = |seed: u64| {
        // No device with a fast tier grows.
        let mut options = options_of_seed(seed - seed % 6 + seed % 5);
        options.units_added = 1 + seed as u32 / 4 % 3;
        options.device.units += options.units_added;
        explore_growth(seed, &options)
    };
    let reports: Vec<SnapshotReport> = passed(test, for_each_seed(seeds(1300..1324), THREADS, run));
    let mut total = SnapshotReport::default();
    reports.iter().for_each(|report| total.add(report));
    println!("{test}: {total:?}");
    assert!(total.taken > 50 && total.cloned > 10, "hardly any were taken: {total:?}");
    assert!(total.doubtful_there > 0 && total.doubtful_gone > 0, "not cut there: {total:?}");
    assert!(total.lived_on > 10, "hardly any lived on: {total:?}");
}

const UNITS_ADDED: u32 = 2;
const BLOCKS: u32 = 200;
const BLOCKS_GROWN: u32 = 500;

fn medium() -> SimMedium {
    let device = Small {
        manner: Manner::Nand(Pairing::None),
        units: 2 + UNITS_ADDED,
        blocks_per_unit: 24,
        pages_per_block: 8,
        slots_per_page: 2,
        open_blocks_max: 0,
    };
    let mut medium = device.build(Faults::default()).expect("it is built");
    medium.hide_units(UNITS_ADDED);
    medium
}

fn settings() -> Settings {
    Settings { relocation_blocks: 64, ..Settings::default() }
}

fn formatted() -> Sim {
    let format = FormatOptions { logical_blocks: BLOCKS, uuid: 3, label: Vec::new() };
    let mut sim = Sim::format(medium(), format, settings(), Instant(0)).expect("it is formatted");
    sim.run_until_ready().expect("it is ready");
    sim
}

/// The device with its new units, mounted with these settings.
fn grown(sim: Sim, settings: Settings) -> Sim {
    let now = sim.now();
    let mut medium = sim.shutdown().expect("it stops");
    medium.show_all();
    let mut sim = Sim::mount(medium, settings, now).expect("it is mounted");
    while *sim.state() == State::Starting {
        sim.step(Instant(u64::MAX)).expect("it goes on");
    }
    sim
}

fn ended(sim: &mut Sim) -> u64 {
    sim.run_until_answered().expect("it goes on");
    let finished = sim.take_finished().expect("it was answered");
    assert_eq!(finished.result, Ok(()));
    let stamp = sim.stamps(&finished).first().copied().unwrap_or(0);
    sim.release(finished);
    stamp
}

fn write(sim: &mut Sim, lba: u32, stamp: u64) {
    sim.write(0, lba, &[stamp], (false, false), Hint::default());
    ended(sim);
}

fn read(sim: &mut Sim, lba: u32) -> u64 {
    sim.read(0, lba, 1);
    ended(sim)
}

fn order(sim: &mut Sim, number: u32, order: SnapshotOrder<'_>) {
    sim.order_snapshot(number, order);
    loop {
        if let Some(end) = sim.take_snapshot_end() {
            assert_eq!(end.result, Ok(()));
            return;
        }
        assert_ne!(sim.step(Instant(u64::MAX)).expect("it goes on"), Step::Idle, "it never ends");
    }
}

#[test]
fn snapshots_and_clones_stay_with_a_device_that_grows() {
    let mut sim = formatted();
    for lba in 0..20 {
        write(&mut sim, lba, 1);
    }
    let shadow = ShadowStretch { first: 0, blocks: 20, shadow: BLOCKS };
    order(&mut sim, 1, SnapshotOrder::Prepare(&[shadow]));
    order(&mut sim, 1, SnapshotOrder::Cut);
    order(&mut sim, 2, SnapshotOrder::Clone(&[ShadowStretch { first: 100, ..shadow }]));
    write(&mut sim, 3, 7);
    write(&mut sim, 104, 8);
    let wanted = Settings { logical_blocks_min: BLOCKS_GROWN, ..settings() };
    let mut sim = grown(sim, wanted.clone());
    for life in 0..2 {
        let seen: Vec<u64> = (0..6).map(|at| read(&mut sim, at)).collect();
        assert_eq!(seen, [1, 1, 1, 7, 1, 1], "life {life}");
        let seen: Vec<u64> = (0..6).map(|at| read(&mut sim, BLOCKS_GROWN + at)).collect();
        assert_eq!(seen, [1; 6], "life {life}: the snapshot is behind the new blocks");
        let seen: Vec<u64> = (0..6).map(|at| read(&mut sim, 100 + at)).collect();
        assert_eq!(seen, [1, 1, 1, 1, 8, 1], "life {life}");
        write(&mut sim, BLOCKS_GROWN - 1, 9 + life);
        assert_eq!(read(&mut sim, BLOCKS_GROWN - 1), 9 + life);
        sim.verify().expect("it is sound");
        sim = grown(sim, wanted.clone());
    }
}

#[test]
fn units_without_a_word_about_blocks_leave_a_device_as_large_as_it_was() {
    let mut sim = formatted();
    write(&mut sim, 5, 1);
    let read_only = Settings { read_only: true, logical_blocks_min: BLOCKS_GROWN, ..settings() };
    let mut sim = grown(sim, read_only);
    let State::Ready(report) = sim.state() else { panic!("it is {:?}", sim.state()) };
    let seen = (report.logical_blocks, report.blocks_added);
    assert_eq!(seen, (BLOCKS_GROWN, BLOCKS_GROWN - BLOCKS), "as long as it is looked at");
    assert!(report.may_grow);
    assert_eq!((read(&mut sim, 5), read(&mut sim, BLOCKS_GROWN - 1)), (1, 0));
    let mut sim = Sim::mount(sim.medium().clone(), settings(), sim.now()).expect("it is mounted");
    let report = sim.run_until_ready().expect("it is ready");
    assert_eq!((report.logical_blocks, report.blocks_added), (BLOCKS, 0));
    // They are its own from now on, and give it room for what it has.
    let wanted = Settings { logical_blocks_min: BLOCKS_GROWN, ..settings() };
    let sim = grown(sim, wanted);
    let State::Ready(report) = sim.state() else { panic!("it is {:?}", sim.state()) };
    assert_eq!(report.logical_blocks, BLOCKS, "nothing was added this time");
}

#[test]
fn a_device_grows_with_its_whole_map_in_dram() {
    let format = FormatOptions { logical_blocks: BLOCKS, uuid: 3, label: Vec::new() };
    let medium = medium();
    let mut all = medium.clone();
    all.show_all();
    let map_bytes = ftl::map_bytes_min(all.geometry(), 8);
    let part = Settings { map_bytes, map_piece_blocks: 8, ..settings() };
    let mut sim = Sim::format(medium, format, part.clone(), Instant(0)).expect("it is formatted");
    sim.run_until_ready().expect("it is ready");
    let wanted = Settings { logical_blocks_min: BLOCKS_GROWN, ..part };
    let sim = grown(sim, wanted);
    assert_eq!(*sim.state(), State::Refused(MountError::MapOfGrowth));
}
