//! Raw units: power cuts after every step, failing flash, and the figures of SDF.

use crate::{THREADS, passed, seeds};
use flash::{
    BlockId, Hint, Instant, Lba, MILLISECOND, Operation, Pairing, Random, RequestError, SlotId,
};
use ftl::raw::format::LaneRecord;
use ftl::raw::ids::{Id, Ids, Step as IdStep};
use ftl::raw::{EraseTime, Lanes, RawFormat, RawSettings, RawUnits, WriteUnit};
use ftl::{FormatOptions, Settings};
use lab::Failure;
use lab::Sim;
use lab::crash::CrashReport;
use lab::device::{Manner, nand_of};
use lab::driver::Step;
use lab::medium::{Content, SimMedium};
use lab::parallel::for_each_seed;
use lab::raw_crash::{RawCrashOptions, explore_ids, explore_raw};
use lab::raw_host::RawCounts;
use lab::raw_ids::IdHostCounts;
use lab::target::{Io, IoKind, RawTarget, Target};
use nand::{Faults, Layout};
use std::collections::BTreeMap;

fn explore(test: &str, range: std::ops::Range<u64>, manner: Manner) {
    let begun = std::time::Instant::now();
    let run = |seed| explore_raw(seed, &RawCrashOptions::of_seed(seed, manner));
    let reports = passed(test, for_each_seed(seeds(range), THREADS, run));
    let mut total = CrashReport::default();
    reports.iter().for_each(|(report, _)| total.add(report));
    let rate = total.images as f64 / begun.elapsed().as_secs_f64();
    println!("{test}: {total:?}, {rate:.0} images/s");
    assert!(total.images > 0 && total.lived_on > 0, "nothing was cut: {total:?}");
}

#[test]
fn raw_units_on_slc_keep_every_acknowledged_page_and_erase_after_any_power_cut() {
    let test = "raw_units_on_slc_keep_every_acknowledged_page_and_erase_after_any_power_cut";
    explore(test, 1000..1040, Manner::Nand(Pairing::None));
}

#[test]
fn raw_units_on_staircase_pages_keep_their_promises_after_any_power_cut() {
    let test = "raw_units_on_staircase_pages_keep_their_promises_after_any_power_cut";
    explore(test, 1100..1140, Manner::Nand(Pairing::Staircase));
}

#[test]
fn raw_units_on_a_file_keep_what_was_flushed_after_any_power_cut() {
    let test = "raw_units_on_a_file_keep_what_was_flushed_after_any_power_cut";
    explore(test, 1200..1240, Manner::File);
}

#[test]
fn raw_units_of_a_folder_keep_what_was_flushed_after_any_power_cut() {
    let test = "raw_units_of_a_folder_keep_what_was_flushed_after_any_power_cut";
    explore(test, 1600..1620, Manner::Folder);
}

fn failing(test: &str, faults: impl Fn(u64) -> Faults + Sync) -> Vec<RawCounts> {
    let run = |seed| {
        let mut options = RawCrashOptions::of_seed(seed, Manner::Nand(Pairing::None));
        options.device.blocks_per_unit = 40;
        options.spare = 0.5;
        options.faults = faults(seed);
        (options.operations_before, options.operations) = (3_000, 4);
        Ok(explore_raw(seed, &options)?.1)
    };
    passed(test, for_each_seed(seeds(0..24), THREADS, run))
}

#[test]
fn raw_units_lose_nothing_to_bad_blocks_and_failing_programs_and_erases() {
    let test = "raw_units_lose_nothing_to_bad_blocks_and_failing_programs_and_erases";
    let counts = failing(test, |seed| Faults {
        seed,
        factory_bad: 0.02,
        program_fail: 4e-4,
        erase_fail: 1e-3,
        correctable: 0.01,
        ..Faults::default()
    });
    println!("for example {:?}", counts[0]);
    assert!(counts.iter().any(|counts| counts.failed > 0), "no write failed");
}

/// In the middle of random work a unit stops answering, once or again after a mount: what its lane is
/// asked ends with an error, every other lane goes on, and nothing is left without an answer.
#[test]
fn a_unit_of_raw_units_that_goes_takes_its_lane_with_it_and_no_other() {
    let test = "a_unit_of_raw_units_that_goes_takes_its_lane_with_it_and_no_other";
    let run = |seed| {
        let mut options = RawCrashOptions::of_seed(seed, Manner::Nand(Pairing::None));
        options.device.units = 4;
        (options.settings.write, options.depth) = (WriteUnit::Block, 16);
        let medium = options.device.build(Faults::default()).map_err(Failure)?;
        let format = RawFormat {
            gang: options.gang,
            spare: options.spare,
            uuid: u128::from(seed) + 1,
            label: Vec::new(),
        };
        let settings = options.settings.clone();
        let mut sim = Sim::format_raw(medium, format, settings.clone(), Instant(0))?;
        sim.run_until_ready()?;
        let random = &mut Random::new(seed);
        let gone = random.below(4) as u32;
        rounds_of_raw_blocks(&mut sim, random, gone, None)?;
        let failed = rounds_of_raw_blocks(&mut sim, random, gone, Some(gone))?;
        let (now, mut medium) = (sim.now(), sim.into_medium());
        medium.power_cut(&mut |_| 0);
        let mut sim = Sim::mount_raw(medium, options.gang, settings, now)?;
        sim.run_until_ready()?;
        rounds_of_raw_blocks(&mut sim, random, gone, Some(gone))?;
        Ok(failed)
    };
    let failed = passed(test, for_each_seed(seeds(0..200), THREADS, run));
    let in_flight = failed.iter().filter(|&&failed| failed > 20).count();
    println!("{in_flight} of {} lost a unit at work", failed.len());
    assert!(std::env::var("LAB_SEED").is_ok() || in_flight > 50, "{in_flight} at work");
}

/// Writes and erases raw blocks of all lanes at random, up to three at once on each raw block; part of
/// the way `kill` stops answering. Returns how many ended with an error, all of them on `gone`'s lane.
fn rounds_of_raw_blocks(
    sim: &mut Sim<RawUnits>,
    random: &mut Random,
    gone: u32,
    kill: Option<u32>,
) -> Result<u32, Failure> {
    let lanes = sim.ftl().lanes();
    let raw_blocks = lanes.lanes * lanes.raw_blocks;
    let mut written: Vec<bool> = vec![false; raw_blocks as usize];
    for (lba, _) in sim.ftl().written() {
        written[(lba.0 / lanes.slots) as usize] = true;
    }
    let stamps: Vec<u64> = (1..=u64::from(lanes.slots)).collect();
    let (mut failed, mut busy) = (0, vec![false; raw_blocks as usize]);
    for round in 0..400 {
        if round == 200
            && let Some(unit) = kill
        {
            sim.kill_unit(unit);
        }
        let raw = random.below(u64::from(raw_blocks)) as u32;
        let (at, lba) = (raw as usize, raw * lanes.slots);
        if !busy[at] && sim.in_flight() < 16 {
            busy[at] = true;
            let is_written = written[at];
            written[at] = !is_written;
            if is_written {
                sim.trim(u64::from(raw), lba, lanes.slots, random.chance(0.5));
            } else {
                sim.write(u64::from(raw), lba, &stamps, (false, false), Hint::default());
            }
            sim.read(u64::MAX, lba, lanes.slots);
        }
        for _ in 0..random.below(4) {
            sim.step(Instant(u64::MAX))?;
        }
        if round == 399 {
            sim.run_until_answered()?;
        }
        while let Some(finished) = sim.take_finished() {
            let raw = finished.request.lba.0 / lanes.slots;
            let of_gone = raw / lanes.raw_blocks == lanes.lane_of(gone);
            let is_read = matches!(finished.request.operation, Operation::Read { .. });
            if finished.token != u64::MAX {
                busy[raw as usize] = false;
            }
            match finished.result {
                Err(RequestError::NotWritten) if is_read => {}
                Err(_) if of_gone && kill.is_some() => failed += 1,
                Err(error) => {
                    let request = finished.request;
                    return Err(Failure(format!("{request:?} ended with {error:?}")));
                }
                Ok(()) => {}
            }
            sim.release(finished);
        }
    }
    sim.verify()?;
    Ok(failed)
}

/// SDF: 44 channels of two dies, with as many blocks as the test needs.
fn sdf(blocks: u32, write: WriteUnit) -> RawTarget {
    let layout = Layout { channels: 44, dies_per_channel: 2, blocks_per_plane: blocks };
    let medium = nand_of("mlc-25nm", &layout, Faults::default(), |_| {}).expect("built-in");
    let format = RawFormat { gang: 2, spare: 0.5, uuid: 1, label: Vec::new() };
    let settings = RawSettings { write, read_granule: 2, ..RawSettings::default() };
    let mut sim = Sim::format_raw(medium, format, settings, Instant(0)).expect("fits");
    sim.run_until_ready().expect("formats");
    RawTarget::raw(sim)
}

/// One synchronous client a lane, each doing `ios` I/Os that `io` gives. Returns the bytes moved a
/// second, and every latency with its kind.
fn one_client_a_lane(
    target: &mut RawTarget,
    ios: u64,
    io: impl Fn(u64, u64) -> Io,
) -> (f64, Vec<(IoKind, u64)>) {
    let lanes = u64::from(target.sim().ftl().lanes().lanes);
    let begun = target.sim().now();
    let mut next = vec![0; lanes as usize];
    let mut submitted = vec![(IoKind::Read, begun); lanes as usize];
    let (mut bytes, mut latencies, mut now) = (0, Vec::new(), begun);
    for lane in 0..lanes {
        submitted[lane as usize].0 = io(lane, 0).kind;
        target.submit(now, lane, io(lane, 0)).expect("takes it");
    }
    let mut busy = lanes;
    while busy > 0 {
        while let Some(done) = target.take_done() {
            assert_eq!(done.result, Ok(()), "client {} at {now:?}", done.token);
            let (kind, at) = submitted[done.token as usize];
            latencies.push((kind, done.at - at));
            let lane = done.token as usize;
            if kind != IoKind::Erase {
                bytes += io(done.token, next[lane]).bytes;
            }
            next[lane] += 1;
            if next[lane] == ios {
                busy -= 1;
                continue;
            }
            let following = io(done.token, next[lane]);
            submitted[lane] = (following.kind, now);
            target.submit(now, done.token, following).expect("takes it");
        }
        if busy > 0 {
            now = target.deadline().expect("I/Os are in flight").max(now);
            target.advance(now).expect("no failure");
        }
    }
    (bytes as f64 / (now - begun) as f64, latencies)
}

#[test]
fn raw_units_of_sdf_give_its_raw_bandwidth() {
    let mut target = sdf(12, WriteUnit::Block);
    let lanes = target.sim().ftl().lanes();
    let (unit, lane_bytes) = (8 << 20, u64::from(lanes.lane_slots()) * 4096);
    assert_eq!(u64::from(lanes.slots) * 4096, unit);
    let at = |kind, lane, offset, bytes| Io {
        kind,
        offset: lane * lane_bytes + offset,
        bytes,
        hint: Hint::default(),
    };
    // The erase that software must issue comes before each write; the first finds nothing to do.
    let write = |lane, step: u64| match step % 2 {
        0 => at(IoKind::Erase, lane, 0, unit),
        _ => at(IoKind::Write, lane, 0, unit),
    };
    one_client_a_lane(&mut target, 2, write);
    let (write_rate, latencies) = one_client_a_lane(&mut target, 4, write);
    let mean = |kind| {
        let of: Vec<u64> =
            latencies.iter().filter(|(it, _)| *it == kind).map(|(_, ns)| *ns).collect();
        of.iter().sum::<u64>() as f64 / of.len() as f64 / 1e6
    };
    let (erase_ms, write_ms) = (mean(IoKind::Erase), mean(IoKind::Write));
    let (read_rate, _) =
        one_client_a_lane(&mut target, 2, |lane, _| at(IoKind::Read, lane, 0, unit));
    let pages = unit / 8192;
    let (small_rate, _) = one_client_a_lane(&mut target, 64, |lane, step| {
        at(IoKind::Read, lane, (step * 277 + lane * 31) % pages * 8192, 8192)
    });
    println!(
        "8 MiB writes {write_rate:.3} GB/s, erase {erase_ms:.2} ms + write {write_ms:.2} ms; 8 MiB \
         reads {read_rate:.3} GB/s; 8 KiB reads {small_rate:.3} GB/s"
    );
    assert!((0.96..1.02).contains(&write_rate), "{write_rate}");
    assert!((365.0..385.0).contains(&(erase_ms + write_ms)), "{erase_ms} + {write_ms}");
    assert!((1.63..1.68).contains(&read_rate), "{read_rate}");
    // Without the 2 us of the host's stack.
    assert!((1.22..1.25).contains(&small_rate), "{small_rate}");
}

/// The share of SDF's flash that raw units can use if so many blocks of each plane are bad, and the
/// share of the blocks that are then lost with their neighbours in other planes.
fn sdf_usable(factory_bad: f64) -> (f64, f64) {
    let layout = Layout { channels: 44, dies_per_channel: 2, blocks_per_plane: 2048 };
    let profile = nand::Profile::builtin("mlc-25nm").expect("built-in");
    let faults = Faults { seed: 1, factory_bad, ..Faults::default() };
    let nand = nand::Nand::new(&profile, &layout, faults).expect("a sound layout");
    let (geometry, health) = (nand.geometry(), nand.health());
    let lanes = (0..100).find_map(|spare| {
        let spare = f64::from(spare) / 2048.0;
        let format = RawFormat { gang: 2, spare, uuid: 1, label: Vec::new() };
        Lanes::of_format(&geometry, &health, &format).ok()
    });
    let usable = f64::from(lanes.expect("fits").logical_blocks()) / geometry.slots() as f64;
    (usable, health.bad_blocks.len() as f64 / f64::from(geometry.blocks()))
}

#[test]
fn raw_units_of_sdf_use_99_percent_of_the_flash() {
    for factory_bad in [0.001, 0.0025, 0.0035, 0.005] {
        let (usable, lost) = sdf_usable(factory_bad);
        println!(
            "{:.2} % of the blocks bad: {:.2} % of the superblocks lost, {:.2} % of the flash usable",
            factory_bad * 100.0,
            lost * 100.0,
            usable * 100.0
        );
        // Lanes are of one size, so the unit with the most bad blocks decides.
        assert!(usable >= if factory_bad < 0.003 { 0.99 } else { 0.985 }, "{usable}");
    }
}

#[test]
fn a_device_is_refused_by_the_core_of_the_other_kind() {
    let small = RawCrashOptions::of_seed(0, Manner::Nand(Pairing::None)).device;
    let medium = small.build(Faults::default()).expect("a sound shape");
    let format = RawFormat { gang: 1, spare: 0.5, uuid: 1, label: Vec::new() };
    let mut raw =
        Sim::format_raw(medium, format, RawSettings::default(), Instant(0)).expect("fits");
    raw.run_until_ready().expect("formats");
    let now = raw.now();
    let mut as_ftl =
        Sim::mount(raw.into_medium(), Settings::default(), now).expect("sound settings");
    let refused = as_ftl.run_until_ready().expect_err("raw units are no block device");
    assert!(refused.0.contains("formatted as raw units"), "{refused}");

    let medium = small.build(Faults::default()).expect("a sound shape");
    let format = FormatOptions { logical_blocks: 8, uuid: 1, label: Vec::new() };
    let mut ftl = Sim::format(medium, format, Settings::default(), Instant(0)).expect("fits");
    ftl.run_until_ready().expect("formats");
    let now = ftl.now();
    let mut as_raw =
        Sim::mount_raw(ftl.into_medium(), 1, RawSettings::default(), now).expect("sound settings");
    let refused = as_raw.run_until_ready().expect_err("a block device is no raw units");
    assert!(refused.0.contains("formatted as a block device"), "{refused}");
}

/// The blocks that hold lane records, and the number of the record in each of their pages.
fn records_of(medium: &SimMedium) -> BTreeMap<BlockId, Vec<u64>> {
    let geometry = *medium.geometry();
    let mut records: BTreeMap<BlockId, Vec<u64>> = BTreeMap::new();
    for slot in (0..geometry.slots() as u32).map(SlotId).filter(|&slot| medium.is_readable(slot)) {
        if let Some((_, Content::Meta(bytes))) = medium.peek(slot)
            && let Some(Ok(record)) = LaneRecord::decode(&bytes[..])
        {
            records.entry(geometry.block_of(slot)).or_default().push(record.number);
        }
    }
    records
}

/// New raw units of one lane to `gang` units.
fn formatted(options: &RawCrashOptions, gang: u32) -> Sim<RawUnits> {
    let medium = options.device.build(Faults::default()).expect("a sound shape");
    let format = RawFormat { gang, spare: 0.5, uuid: 1, label: Vec::new() };
    let sim = Sim::format_raw(medium, format, options.settings.clone(), Instant(0));
    let mut sim = sim.expect("fits");
    sim.run_until_ready().expect("formats");
    sim
}

/// How the request ended that is under way.
fn done(sim: &mut Sim<RawUnits>) -> Result<(), RequestError> {
    sim.run_until_answered().expect("is answered");
    let finished = sim.take_finished().expect("it was answered");
    let result = finished.result;
    sim.release(finished);
    result
}

/// A block of lane records whose first page cannot be read has more of them behind it.
#[test]
fn lane_records_behind_a_damaged_first_page_count() {
    let mut options = RawCrashOptions::of_seed(0, Manner::Nand(Pairing::None));
    options.settings.erase = EraseTime::Background;
    options.settings.write = WriteUnit::Block;
    let mut sim = formatted(&options, 2);
    let blocks = sim.ftl().lanes().lane_slots() / sim.ftl().lanes().raw_blocks;
    let stamps: Vec<u64> = (1..=u64::from(blocks)).collect();
    // Until the newest records of both sides lie behind first pages.
    let (first, second, later) = loop {
        sim.write(0, 0, &stamps, (true, false), Hint::default());
        done(&mut sim).expect("is written");
        sim.trim(0, 0, blocks, true);
        done(&mut sim).expect("is erased");
        let mut sides: Vec<_> = records_of(sim.medium()).into_iter().collect();
        sides.sort_by_key(|(_, numbers)| std::cmp::Reverse(numbers.iter().max().copied()));
        let [(newest, later), (second, numbers), ..] = &sides[..] else { continue };
        if later.len() > 1 && numbers.len() > 1 {
            break (*newest, *second, later.len() as u32);
        }
    };
    let (now, mut medium) = (sim.now(), sim.into_medium());
    let geometry = *medium.geometry();
    medium.rot(geometry.slot(second, 0, 0));
    (1..later).for_each(|page| medium.rot(geometry.slot(first, page, 0)));
    let mut sim = Sim::mount_raw(medium, 2, options.settings, now).expect("sound settings");
    sim.run_until_ready().expect("mounts");
    sim.read(0, 0, geometry.slots_per_page);
    assert_eq!(done(&mut sim), Err(RequestError::NotWritten), "it was erased");
}

/// A seed of the ID layer: SDF's whole blocks.
fn ids_of_seed(seed: u64, manner: Manner) -> RawCrashOptions {
    let mut options = RawCrashOptions::of_seed(seed, manner);
    options.settings.write = WriteUnit::Block;
    options
}

fn explore_the_ids(test: &str, range: std::ops::Range<u64>, manner: Manner) {
    let run = |seed| explore_ids(seed, &ids_of_seed(seed, manner));
    let reports = passed(test, for_each_seed(seeds(range), THREADS, run));
    let (mut total, mut counts) = (CrashReport::default(), IdHostCounts::default());
    for (report, seen) in &reports {
        total.add(report);
        counts.puts += seen.puts;
        counts.waited += seen.waited;
        counts.deletes += seen.deletes;
        counts.reads += seen.reads;
        counts.full += seen.full;
        counts.refused += seen.refused;
    }
    println!("{test}: {total:?}, {counts:?}");
    assert!(total.images > 0 && total.lived_on > 0, "nothing was cut: {total:?}");
    let IdHostCounts { puts, waited, deletes, reads, full, refused } = counts;
    let rarest = [puts, waited, deletes, reads, full, refused].into_iter().min();
    assert!(rarest > Some(0), "something never happened: {counts:?}");
}

#[test]
fn ids_on_slc_keep_acknowledged_puts_and_deletes_after_any_power_cut() {
    let test = "ids_on_slc_keep_acknowledged_puts_and_deletes_after_any_power_cut";
    explore_the_ids(test, 1300..1330, Manner::Nand(Pairing::None));
}

#[test]
fn ids_on_staircase_pages_keep_acknowledged_puts_and_deletes_after_any_power_cut() {
    let test = "ids_on_staircase_pages_keep_acknowledged_puts_and_deletes_after_any_power_cut";
    explore_the_ids(test, 1400..1430, Manner::Nand(Pairing::Staircase));
}

#[test]
fn ids_on_a_file_keep_acknowledged_puts_and_deletes_after_any_power_cut() {
    let test = "ids_on_a_file_keep_acknowledged_puts_and_deletes_after_any_power_cut";
    explore_the_ids(test, 1500..1530, Manner::File);
}

#[test]
fn ids_find_what_a_plain_map_holds_over_thousands_of_operations_and_clean_restarts() {
    let test = "ids_find_what_a_plain_map_holds_over_thousands_of_operations_and_clean_restarts";
    let run = |seed| {
        let mut options = ids_of_seed(seed, Manner::Nand(Pairing::None));
        (options.operations_before, options.operations) = (4_000, 0);
        Ok(explore_ids(seed, &options)?.1)
    };
    let counts = passed(test, for_each_seed(seeds(0..16), THREADS, run));
    assert!(counts.iter().all(|counts| counts.puts > 200), "{counts:?}");
}

/// Carries out one ask of the ID layer at a device and says how long its answer took.
fn answered(sim: &mut Sim<RawUnits>, ids: &mut Ids, ask: impl FnOnce(&mut Ids, &RawUnits)) -> u64 {
    let begun = sim.now();
    ask(ids, sim.ftl());
    loop {
        while let Some(step) = ids.poll() {
            match step {
                IdStep::Write { token, id, lba, blocks } => {
                    let stamps: Vec<u64> = (1..=u64::from(blocks)).collect();
                    sim.ftl_mut().tag(lba, id.0);
                    sim.write(token, lba.0, &stamps, (true, false), Hint::default());
                }
                IdStep::Read { token, lba, blocks } => sim.read(token, lba.0, blocks),
                IdStep::Erase { token, lba, blocks } => sim.trim(token, lba.0, blocks, true),
                IdStep::Reply { result, .. } => {
                    assert_eq!(result, Ok(()));
                    return sim.now() - begun;
                }
            }
        }
        sim.step(Instant(u64::MAX)).expect("no failure");
        while let Some(finished) = sim.take_finished() {
            ids.ended(sim.ftl(), finished.token, finished.result);
            sim.release(finished);
        }
    }
}

/// Microseconds that a delete on a full lane takes, and the put after it, and the same put if the lane
/// was idle between them.
fn delete_and_put(erase: EraseTime) -> [u64; 3] {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 8 };
    let medium = nand_of("mlc-25nm", &layout, Faults::default(), |_| {}).expect("built-in");
    let format = RawFormat { gang: 2, spare: 0.25, uuid: 1, label: Vec::new() };
    let settings = RawSettings { erase, ..RawSettings::default() };
    let mut sim = Sim::format_raw(medium, format, settings, Instant(0)).expect("fits");
    sim.run_until_ready().expect("formats");
    let mut ids = Ids::mounted(sim.ftl()).expect("whole blocks");
    let lanes = sim.ftl().lanes();
    let id = |index: u32| Id::new(3, u64::from(index * lanes.lanes));
    for index in 0..lanes.raw_blocks {
        answered(&mut sim, &mut ids, |ids, units| ids.put(units, 1, id(index)));
    }
    let (mut delete, mut put) = (0, 0);
    // The first finds the block that is kept back.
    for index in 0..4 {
        delete = answered(&mut sim, &mut ids, |ids, units| ids.delete(units, 1, id(index)));
        put = answered(&mut sim, &mut ids, |ids, units| ids.put(units, 1, id(100 + index)));
    }
    answered(&mut sim, &mut ids, |ids, units| ids.delete(units, 1, id(100)));
    let until = sim.now() + 100 * MILLISECOND;
    while sim.step(until).expect("no failure") != Step::Idle {}
    let rested = answered(&mut sim, &mut ids, |ids, units| ids.put(units, 1, id(200)));
    [delete, put, rested].map(|ns| ns / 1000)
}

#[test]
fn a_deleted_block_of_a_full_lane_is_erased_at_once_or_when_the_lane_is_idle_and_a_put_waits_for_it()
 {
    let [delete, put, rested] = delete_and_put(EraseTime::Now);
    println!("eager: delete {delete} us, put {put} us, put after a rest {rested} us");
    let erase = 3_800;
    assert!(delete >= erase, "answered when it is erased: {delete}");
    let records = 2 * 1_400;
    let waited = put.abs_diff(rested);
    assert!(waited < records, "waits for the erase's records at most: {put} and {rested}");
    let write = rested;
    let [delete, put, rested] = delete_and_put(EraseTime::Background);
    println!("idle: delete {delete} us, put {put} us, put after a rest {rested} us");
    assert!(delete < erase, "answered when a record of it is durable: {delete}");
    assert!(put > write + erase / 2, "waits for the erase: {put}, {write} without");
    assert!(rested.abs_diff(write) < 500, "erased while the lane was idle: {rested}, {write}");
}

/// A page that cannot be read hid all that was flushed behind it, after a crash, where any page may be missing.
#[test]
fn what_lies_behind_a_damaged_page_is_read_after_a_crash() {
    for manner in [Manner::File, Manner::Folder, Manner::Nand(Pairing::None)] {
        let mut options = RawCrashOptions::of_seed(0, manner);
        options.settings.write = WriteUnit::Page;
        let mut sim = formatted(&options, 1);
        let slots = sim.medium().geometry().slots_per_page;
        let pages = sim.medium().geometry().pages_per_block - 2;
        let stamps = |page: u32| -> Vec<u64> {
            (0..slots).map(|slot| u64::from(page * slots + slot) + 1).collect()
        };
        for page in 0..pages {
            sim.write(0, page * slots, &stamps(page), (true, false), Hint::default());
            done(&mut sim).expect("is written");
        }
        let (now, mut medium) = (sim.now(), sim.into_medium());
        let mut all = (0..medium.geometry().slots() as u32).map(SlotId);
        let stamp = |slot| match medium.peek(slot) {
            Some((_, Content::Stamp(stamp))) => Some(stamp),
            _ => None,
        };
        let damaged = all.find(|slot| stamp(*slot) == Some(stamps(1)[0]));
        medium.rot(damaged.expect("it was written"));
        let mut sim = Sim::mount_raw(medium, 2, options.settings, now).expect("sound settings");
        sim.run_until_ready().expect("mounts");
        for page in 0..pages {
            sim.read(0, page * slots, slots);
            let read = done(&mut sim);
            assert_eq!(read.is_ok(), page != 1, "{manner:?}, page {page}: {read:?}");
        }
    }
}

/// A host that keeps copies elsewhere would take the damaged end for one that was never written, and cut them there.
#[test]
fn a_raw_block_whose_last_page_is_damaged_says_that_it_went_on() {
    let mut options = RawCrashOptions::of_seed(0, Manner::Nand(Pairing::None));
    options.settings.write = WriteUnit::Page;
    let mut sim = formatted(&options, 1);
    let slots = sim.medium().geometry().slots_per_page;
    for page in 0..3 {
        let stamps: Vec<u64> = (0..slots).map(|slot| u64::from(page * slots + slot) + 1).collect();
        sim.write(0, page * slots, &stamps, (true, false), Hint::default());
        done(&mut sim).expect("is written");
    }
    let (now, settings, medium) = (sim.now(), &options.settings, sim.into_medium());
    let found = |medium| {
        let mut sim = Sim::mount_raw(medium, 2, settings.clone(), now).expect("sound settings");
        sim.run_until_ready().expect("mounts");
        let block = sim.ftl().raw_block(Lba(0)).expect("it is one");
        (block.blocks_written, block.goes_on)
    };
    assert_eq!(found(medium.clone()), (3 * slots, false));
    let mut damaged = medium;
    for slot in (0..damaged.geometry().slots() as u32).map(SlotId) {
        if let Some((_, Content::Stamp(stamp))) = damaged.peek(slot)
            && stamp > u64::from(2 * slots)
        {
            damaged.rot(slot);
        }
    }
    assert_eq!(found(damaged), (2 * slots, true));
}
