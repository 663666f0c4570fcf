//! Snapshots: what they show, what they cost, and what is left of them after power cuts and damage.

use crate::{THREADS, passed, seeds};
use flash::{Hint, Instant, Lba};
use flash::{Pairing, RequestError};
use ftl::{
    FormatOptions, MountError, Settings, ShadowStretch, SnapshotError, SnapshotOrder, SnapshotStep,
};
use lab::device::{Manner, Small};
use lab::driver::{Sim, State};
use lab::parallel::for_each_seed;
use lab::snapshots::{
    SnapshotEnd, SnapshotReport, SnapshotRotReport, explore, options_of_seed, survive_missing,
    survive_rot,
};
use lab::{Failure, Step};
use nand::Faults;

fn total(reports: &[SnapshotReport]) -> SnapshotReport {
    let mut total = SnapshotReport::default();
    reports.iter().for_each(|report| total.add(report));
    total
}

#[test]
fn snapshots_are_what_their_blocks_held_whatever_the_host_does() {
    let test = "snapshots_are_what_their_blocks_held_whatever_the_host_does";
    let run = |seed: u64| {
        let mut options = options_of_seed(seed);
        (options.operations_before, options.operations) = (4_000, 0);
        options.depth += 3;
        // Fewer, in so long a run.
        options.faults.program_fail /= 10.0;
        explore(seed, &options)
    };
    let total = total(&passed(test, for_each_seed(seeds(0..72), THREADS, run)));
    println!("{test}: {total:?}");
    assert!(total.taken > 2_000 && total.dropped > 1_000, "hardly any were taken: {total:?}");
    assert!(total.refused > 0 && total.no_room > 0, "no device was ever full: {total:?}");
    assert!(total.cloned > 500 && total.clones_dropped > 300, "hardly a clone: {total:?}");
}

#[test]
fn snapshots_are_there_wholly_or_not_at_all_after_any_power_cut() {
    let test = "snapshots_are_there_wholly_or_not_at_all_after_any_power_cut";
    let run = |seed: u64| explore(seed, &options_of_seed(seed));
    let total = total(&passed(test, for_each_seed(seeds(1000..1048), THREADS, run)));
    println!("{test}: {total:?}");
    assert!(total.doubtful_there > 50 && total.doubtful_gone > 50, "not cut there: {total:?}");
    assert!(total.lived_on > 50, "hardly any lived on: {total:?}");
}

#[test]
fn pages_of_a_map_with_shadows_may_rot() {
    let test = "pages_of_a_map_with_shadows_may_rot";
    let run = |seed: u64| {
        let mut options = options_of_seed(seed);
        options.faults = Faults::default();
        // As many snapshots as there can be.
        options.operations_before = 300;
        survive_rot(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(2000..2036), THREADS, run));
    let sum = |of: fn(&SnapshotRotReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (single, many) = (sum(|report| report.single), sum(|report| report.many));
    let unreadable = sum(|report| report.unreadable);
    println!("{single} single pages, {many} images, {unreadable} blocks unreadable");
    assert!(single > 100 && unreadable > 0, "a case was not met");
}

#[test]
fn a_slot_that_is_damaged_is_never_something_else_in_a_snapshot() {
    let test = "a_slot_that_is_damaged_is_never_something_else_in_a_snapshot";
    let run = |seed: u64| {
        let mut options = options_of_seed(seed);
        options.faults = Faults::default();
        survive_missing(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(3000..3036), THREADS, run));
    let images: u64 = reports.iter().map(|report| report.0).sum();
    let errors: u64 = reports.iter().map(|report| report.1).sum();
    println!("{images} images, {errors} blocks were errors");
    assert!(images > 1_000 && errors > 0, "nothing was ever missed");
}

/// A device of some hundred blocks, all of which hold data.
fn full_device() -> Result<(Sim, u32), Failure> {
    let device = Small {
        manner: Manner::Nand(Pairing::None),
        units: 2,
        blocks_per_unit: 24,
        pages_per_block: 8,
        slots_per_page: 2,
        open_blocks_max: 0,
    };
    let medium = device.build(Faults::default()).map_err(Failure)?;
    let settings = Settings { relocation_blocks: 64, ..Settings::default() };
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let logical_blocks = max / 2;
    let format = FormatOptions { logical_blocks, uuid: 3, label: Vec::new() };
    let mut sim = Sim::format(medium, format, settings, Instant(0))?;
    sim.run_until_ready()?;
    for lba in 0..logical_blocks / 2 {
        assert_eq!(write(&mut sim, lba, 1), Ok(()));
    }
    Ok((sim, logical_blocks))
}

fn ended(sim: &mut Sim) -> Result<(), RequestError> {
    sim.run_until_answered().expect("it goes on");
    let finished = sim.take_finished().expect("it was answered");
    let result = finished.result;
    sim.release(finished);
    result
}

fn write(sim: &mut Sim, lba: u32, stamp: u64) -> Result<(), RequestError> {
    sim.write(0, lba, &[stamp], (false, false), Hint::default());
    ended(sim)
}

fn trim(sim: &mut Sim, lba: u32, blocks: u32) -> Result<(), RequestError> {
    sim.trim(0, lba, blocks, false);
    ended(sim)
}

fn read(sim: &mut Sim, lba: u32) -> Result<u64, RequestError> {
    sim.read(0, lba, 1);
    sim.run_until_answered().expect("it goes on");
    let finished = sim.take_finished().expect("it was answered");
    let result = finished.result.map(|()| sim.stamps(&finished)[0]);
    sim.release(finished);
    result
}

fn order(sim: &mut Sim, number: u32, order: SnapshotOrder<'_>) -> Result<(), SnapshotError> {
    let step = order.step();
    sim.order_snapshot(number, order);
    loop {
        if let Some(end) = sim.take_snapshot_end() {
            assert_eq!((end.number, end.step), (number, step));
            return end.result;
        }
        assert_ne!(sim.step(Instant(u64::MAX)).expect("it goes on"), Step::Idle, "it never ends");
    }
}

fn take(sim: &mut Sim, number: u32, stretch: ShadowStretch) -> Result<(), SnapshotError> {
    order(sim, number, SnapshotOrder::Prepare(&[stretch]))?;
    order(sim, number, SnapshotOrder::Cut)
}

#[test]
fn a_full_device_refuses_what_a_snapshot_makes_it_keep_and_no_trim() {
    let (mut sim, blocks) = full_device().expect("it is made");
    let half = blocks / 2;
    let stretch = ShadowStretch { first: 0, blocks, shadow: blocks };
    take(&mut sim, 1, stretch).expect("there is room");
    assert_eq!(sim.ftl().counter("blocks_shadowed"), 0, "it costs nothing");
    // What is written anew is kept twice, until nothing more can be.
    for lba in 0..half {
        assert_eq!(write(&mut sim, lba, 2), Ok(()));
    }
    let held = sim.ftl().snapshots()[0].blocks_held;
    assert_eq!(held, u64::from(half));
    assert_eq!(write(&mut sim, 0, 3), Ok(()), "nobody needs what was there");
    let mut at = half;
    while write(&mut sim, at, 2) == Ok(()) {
        at += 1;
        assert!(at < blocks, "more is held than the device offers");
    }
    assert!(sim.ftl().counter("blocks_mapped") <= u64::from(blocks));
    assert_eq!(trim(&mut sim, 0, half), Ok(()));
    assert_eq!(write(&mut sim, at, 2), Ok(()), "a trim of what no snapshot has gives room");
    for lba in 0..half {
        assert_eq!((read(&mut sim, lba), read(&mut sim, blocks + lba)), (Ok(0), Ok(1)));
    }
    assert_eq!(read(&mut sim, blocks + half), Ok(0), "there was nothing");
    assert_eq!(sim.ftl().mapped_run(Lba(blocks), blocks), (true, half));
    assert_eq!(sim.ftl().mapped_run(Lba(blocks + half), blocks), (false, blocks - half));
    order(&mut sim, 1, SnapshotOrder::Drop).expect("it goes");
    while !sim.ftl().snapshots().is_empty() {
        sim.step(Instant(u64::MAX)).expect("it goes on");
    }
    assert_eq!(read(&mut sim, blocks), Err(RequestError::OutOfRange), "it is gone");
    for lba in 0..blocks {
        assert_eq!(write(&mut sim, lba, 4), Ok(()));
    }
    sim.verify().expect("it is sound");
}

#[test]
fn what_cannot_be_a_snapshot_is_refused() {
    let (mut sim, blocks) = full_device().expect("it is made");
    let stretch = ShadowStretch { first: 0, blocks: 8, shadow: blocks };
    assert_eq!(order(&mut sim, 1, SnapshotOrder::Cut), Err(SnapshotError::Number));
    assert_eq!(order(&mut sim, 1, SnapshotOrder::Drop), Err(SnapshotError::Number));
    let beyond = ShadowStretch { blocks: blocks + 1, ..stretch };
    let prepare = |sim: &mut Sim, number, stretches: &[ShadowStretch]| {
        order(sim, number, SnapshotOrder::Prepare(stretches))
    };
    assert_eq!(prepare(&mut sim, 1, &[beyond]), Err(SnapshotError::Stretches));
    assert_eq!(prepare(&mut sim, 1, &[]), Err(SnapshotError::Stretches));
    assert_eq!(prepare(&mut sim, 1, &[stretch]), Ok(()));
    assert_eq!(prepare(&mut sim, 1, &[stretch]), Err(SnapshotError::Number));
    assert_eq!(prepare(&mut sim, 2, &[stretch]), Err(SnapshotError::Stretches), "the same place");
    assert_eq!(read(&mut sim, blocks), Err(RequestError::OutOfRange), "it is not taken yet");
    // A write of its blocks is under way.
    sim.write(0, 7, &[9], (false, false), Hint::default());
    sim.order_snapshot(1, SnapshotOrder::Cut);
    let (number, step, result) = (1, SnapshotStep::Cut, Err(SnapshotError::Busy));
    while sim.in_flight() > 0 {
        sim.step(Instant(u64::MAX)).expect("it goes on");
    }
    assert_eq!(sim.take_snapshot_end(), Some(SnapshotEnd { number, step, result }));
    assert_eq!(ended(&mut sim), Ok(()));
    assert_eq!(order(&mut sim, 1, SnapshotOrder::Cut), Ok(()));
    assert_eq!((read(&mut sim, blocks + 7), read(&mut sim, blocks + 6)), (Ok(9), Ok(1)));
    assert_eq!(read(&mut sim, blocks + 8), Err(RequestError::OutOfRange));
    assert_eq!(write(&mut sim, blocks, 1), Err(RequestError::OutOfRange));
    assert_eq!(trim(&mut sim, blocks, 1), Err(RequestError::OutOfRange));
    // A shadow that the flash has no room for the map of.
    let far = ShadowStretch { shadow: u32::MAX - 100, ..stretch };
    assert_eq!(prepare(&mut sim, 3, &[far]), Err(SnapshotError::NoSpace));
    let mut number = 10;
    let full = loop {
        let stretch = ShadowStretch { shadow: blocks + 8 * number, ..stretch };
        match take(&mut sim, number, stretch) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((full, number), (SnapshotError::TooMany, 10 + 900 / 24 - 1));
    for of in 10..number {
        assert_eq!(read(&mut sim, blocks + 8 * of), Ok(1));
    }
    sim.verify().expect("it is sound");
}

#[test]
fn snapshots_want_the_whole_map_in_dram() {
    let (mut sim, blocks) = full_device().expect("it is made");
    let stretch = ShadowStretch { first: 0, blocks: 8, shadow: blocks };
    take(&mut sim, 1, stretch).expect("there is room");
    let settings = sim.settings().clone();
    let medium = sim.shutdown().expect("it stops");
    let (map_bytes, map_piece_blocks) = (ftl::map_bytes_min(medium.geometry(), 8), 8);
    let part = Settings { map_bytes, map_piece_blocks, ..settings.clone() };
    let mut sim = Sim::mount(medium.clone(), part, Instant(0)).expect("it begins");
    while *sim.state() == State::Starting {
        sim.step(Instant(u64::MAX)).expect("it goes on");
    }
    assert_eq!(*sim.state(), State::Refused(MountError::MapOfSnapshots));
    let mut sim = Sim::mount(medium, settings, Instant(0)).expect("it begins");
    sim.run_until_ready().expect("it mounts");
    assert_eq!(read(&mut sim, blocks), Ok(1));
}

#[test]
fn a_device_that_fails_ends_every_order_and_still_shows_its_snapshots() {
    let (mut sim, blocks) = full_device().expect("it is made");
    let stretch = ShadowStretch { first: 0, blocks: 8, shadow: blocks };
    take(&mut sim, 1, stretch).expect("there is room");
    assert_eq!(write(&mut sim, 0, 5), Ok(()));
    sim.order_snapshot(1, SnapshotOrder::Drop);
    let next = ShadowStretch { shadow: blocks + 8, ..stretch };
    sim.order_snapshot(2, SnapshotOrder::Prepare(&[next]));
    sim.fail();
    let mut ends = Vec::new();
    while sim.step(Instant(u64::MAX)).expect("it goes on") != Step::Idle {
        ends.extend(sim.take_snapshot_end());
    }
    ends.extend(std::iter::from_fn(|| sim.take_snapshot_end()));
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|end| end.result == Err(SnapshotError::Failed)), "{ends:?}");
    assert_eq!((read(&mut sim, 0), read(&mut sim, blocks)), (Ok(5), Ok(1)));
    assert_eq!(order(&mut sim, 3, SnapshotOrder::Prepare(&[next])), Err(SnapshotError::Failed));
}

#[test]
fn what_cannot_be_a_clone_is_refused_and_one_costs_nothing() {
    let (mut sim, blocks) = full_device().expect("it is made");
    let clone = |sim: &mut Sim, number, stretches: &[ShadowStretch]| {
        order(sim, number, SnapshotOrder::Clone(stretches))
    };
    // The upper half of the device holds nothing.
    let upper = blocks / 2 + 8;
    let stretch = ShadowStretch { first: upper, blocks: 8, shadow: blocks };
    assert_eq!(clone(&mut sim, 2, &[stretch]), Err(SnapshotError::Stretches), "of nothing");
    take(&mut sim, 1, ShadowStretch { first: 0, blocks: 12, shadow: blocks }).expect("room");
    let wider = ShadowStretch { blocks: 13, ..stretch };
    assert_eq!(clone(&mut sim, 2, &[wider]), Err(SnapshotError::Stretches), "more than it has");
    assert_eq!(clone(&mut sim, 1, &[stretch]), Err(SnapshotError::Number));
    let lower = ShadowStretch { first: 20, ..stretch };
    assert_eq!(clone(&mut sim, 2, &[lower]), Err(SnapshotError::NotEmpty));
    let held = sim.ftl().counter("blocks_mapped");
    assert_eq!(clone(&mut sim, 2, &[stretch]), Ok(()));
    assert_eq!(sim.ftl().counter("blocks_mapped"), held, "it costs nothing");
    assert_eq!(clone(&mut sim, 3, &[stretch]), Err(SnapshotError::Stretches), "it is one already");
    assert_eq!(sim.ftl().mapped_run(Lba(upper), 20), (true, 8));
    for at in 0..8 {
        assert_eq!(read(&mut sim, upper + at), Ok(1));
    }
    assert_eq!(read(&mut sim, upper + 8), Ok(0));
    // What is trimmed of it and what is written of either is its own.
    assert_eq!(trim(&mut sim, upper, 2), Ok(()));
    assert_eq!(write(&mut sim, upper + 2, 7), Ok(()));
    assert_eq!(write(&mut sim, 3, 8), Ok(()));
    let seen = |sim: &mut Sim| (0..5).map(|at| read(sim, upper + at)).collect::<Vec<_>>();
    assert_eq!(seen(&mut sim), [Ok(0), Ok(0), Ok(7), Ok(1), Ok(1)]);
    assert_eq!(order(&mut sim, 1, SnapshotOrder::Drop), Err(SnapshotError::Needed));
    take(&mut sim, 4, ShadowStretch { first: upper, blocks: 8, shadow: blocks + 12 })
        .expect("room");
    assert_eq!(order(&mut sim, 2, SnapshotOrder::Drop), Err(SnapshotError::Needed));
    assert_eq!(read(&mut sim, blocks + 12 + 4), Ok(1), "a snapshot of what it inherits");
    order(&mut sim, 4, SnapshotOrder::Drop).expect("it goes");
    while sim.ftl().snapshots().len() > 1 {
        sim.step(Instant(u64::MAX)).expect("it goes on");
    }
    // A read of it is under way.
    sim.read(0, upper + 5, 1);
    sim.order_snapshot(2, SnapshotOrder::Drop);
    sim.run_until_answered().expect("it goes on");
    let finished = sim.take_finished().expect("it was answered");
    sim.release(finished);
    let (number, step, result) = (2, SnapshotStep::Drop, Err(SnapshotError::Busy));
    assert_eq!(sim.take_snapshot_end(), Some(SnapshotEnd { number, step, result }));
    order(&mut sim, 2, SnapshotOrder::Drop).expect("it goes");
    assert_eq!(seen(&mut sim), [Ok(0), Ok(0), Ok(7), Ok(0), Ok(0)]);
    order(&mut sim, 1, SnapshotOrder::Drop).expect("nobody needs it");
    sim.verify().expect("it is sound");
}
