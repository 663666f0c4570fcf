//! A map of which a part is in DRAM: what was written is there, and reads as it was written, whatever
//! piece of the map comes and goes meanwhile.

use crate::{THREADS, passed, policies_of_seed, seeds};
use flash::{FastTier, Instant, Pairing};
use ftl::{FormatOptions, MapVolume, Settings};
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use lab::device::{Manner, nand_of};
use lab::load::{self, Client, Pace, Window};
use lab::lost_map::{LostMapReport, survive_lost_map};
use lab::parallel::for_each_seed;
use lab::rot::{RotReport, survive_map_rot, survive_rot};
use lab::soak::{SoakOptions, SoakReport, run_model, run_model_twice};
use lab::target::{SimTarget, Target};
use nand::{Faults, Layout};

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

/// A device whose map has several chunks, on several pages.
pub fn several_chunks(seed: u64) -> CrashOptions {
    let mut options = CrashOptions::of_seed(seed).with_part_of_the_map();
    options.device.slots_per_page = 2;
    options.device.blocks_per_unit += 180;
    options.fill = options.fill.min(0.8);
    let medium = options.device.build(Faults::default()).unwrap();
    options.settings.map_bytes = ftl::map_bytes_min(medium.geometry(), 8);
    options
}

#[test]
fn a_chunk_of_the_map_that_rots_is_rebuilt_while_the_others_serve() {
    let test = "a_chunk_of_the_map_that_rots_is_rebuilt_while_the_others_serve";
    let run = |seed: u64| survive_map_rot(seed, &several_chunks(seed));
    let reports = passed(test, for_each_seed(seeds(820..832), THREADS, run));
    let sum = |of: fn(&RotReport) -> u64| reports.iter().map(of).sum::<u64>();
    println!("{test}: {} images, {} rebuilt", sum(|r| r.images), sum(|r| r.rebuilt));
    assert!(sum(|report| report.rebuilt) > 0, "no map was rebuilt");
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
    let (lost, made_up) = (sum(|r| r.pieces_lost), sum(|r| r.made_up));
    println!("{test}: {} mended, {lost} pieces lost, {made_up} made up for", sum(|r| r.mended));
    assert!(sum(|r| r.mended) > 0 && lost > 0 && made_up > 0);
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

#[test]
fn volumes_may_be_mapped_in_another_way_at_any_time() {
    let test = "volumes_may_be_mapped_in_another_way_at_any_time";
    let run = |seed| {
        let mut options = options_of_seed(seed);
        options.operations_per_switch = 20;
        let slots = options.device.build(Faults::default()).unwrap().geometry().slots() as u32;
        let ends = [0, slots / 3, slots / 2 + 5, slots];
        let volume = |at: &[u32]| MapVolume { blocks: at[0]..at[1], page: seed % 3 == 2 };
        options.settings.map_volumes = ends.windows(2).map(volume).collect();
        options.settings.map_volumes[2].page = false;
        // Enough for some of them.
        options.settings.map_bytes += [4, 10, 20][seed as usize % 3] * u64::from(slots);
        run_model(seed, &options)
    };
    let reports = passed(test, for_each_seed(seeds(2000..2018), THREADS, run));
    let sum = |of: fn(&SoakReport) -> u64| reports.iter().map(of).sum::<u64>();
    let (switches, refused) =
        (sum(|report| report.switches), sum(|report| report.mappings_refused));
    println!("{test}: {switches} switches of all kinds, {refused} mappings refused");
    assert!(switches > 100 && refused > 10, "{switches} switches, {refused} mappings refused");
}

/// A device of which the first quarter is a volume of its own, and a part of the map in DRAM that can
/// hold that volume's.
fn device_of_two_volumes() -> SimTarget {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 24 };
    let medium = nand_of("mlc-25nm", &layout, Faults::default(), |_| {}).unwrap();
    let logical_blocks = 70_000;
    let mut settings = Settings { map_piece_blocks: 64, ..Settings::default() };
    let volume = |blocks| MapVolume { blocks, page: false };
    settings.map_volumes = vec![volume(0..17_500), volume(17_500..logical_blocks)];
    settings.map_bytes = ftl::map_bytes_min(medium.geometry(), 64) + 200_000;
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let mut sim = lab::Sim::format(medium, options, settings, Instant(0)).unwrap();
    sim.run_until_ready().unwrap();
    let mut target = SimTarget::new(sim);
    let fill = Client::filling(logical_blocks.into());
    load::run(&mut target, &[fill], Window::WHENEVER, 1).unwrap();
    target
}

#[test]
fn a_volume_that_is_mapped_by_page_misses_nothing_until_it_is_cached_again() {
    let mut target = device_of_two_volumes();
    // Reads of a part of the device: the longest, and how many found no entry.
    let read = |target: &mut SimTarget, from, span, ios_max| {
        let before = target.counter("map_misses");
        let pace = Pace::Depth(8);
        let reads = Client { pace, reads: 1.0, from, span, ios_max, ..Client::default() };
        let seen = load::run(target, &[reads], Window::WHENEVER, 1).unwrap().remove(0);
        (seen.reads.max_ns(), target.counter("map_misses") - before)
    };
    let set = |target: &mut SimTarget, decision, name| {
        target.sim_mut().ftl_mut().set_policy(decision, name)
    };
    let (longest, _) = read(&mut target, 0.25, 0.75, 20_000);
    assert!(read(&mut target, 0.0, 0.25, 2_000).1 > 100, "all of the map is there");
    set(&mut target, "mapping/0", "page").unwrap();
    let (longest_meanwhile, _) = read(&mut target, 0.25, 0.75, 20_000);
    assert!(longest_meanwhile < 2 * longest, "{longest_meanwhile} ns, {longest} before");
    let status = target.sim().ftl().status();
    let told =
        |index: usize| (status.mappings[index].mapping, status.mappings[index].blocks_to_come);
    assert_eq!((told(0), told(1)), (("page", 0), ("cached", 0)));
    assert_eq!(status.switches.last().unwrap().decision, "mapping/0");
    assert_eq!(read(&mut target, 0.0, 0.25, 20_000).1, 0);
    // There is no room for both.
    let why = set(&mut target, "mapping", "page").unwrap_err();
    assert!(why.contains("map_memory") && why.contains("map another volume as cached"), "{why}");
    assert_eq!(target.sim().ftl().status().mappings, status.mappings);
    assert!(set(&mut target, "mapping/2", "page").unwrap_err().contains("there are 2, from 0"));
    assert!(set(&mut target, "mapping/0", "block").unwrap_err().contains("page, cached"));
    set(&mut target, "mapping/0", "cached").unwrap();
    read(&mut target, 0.25, 0.75, 20_000);
    assert!(read(&mut target, 0.0, 0.25, 2_000).1 > 100, "nothing has left");
    assert!(set(&mut target, "mapping/1", "page").is_err(), "it is larger than what is there");
}
