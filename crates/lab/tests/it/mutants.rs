//! Tests of the tests: a seeded bug in the FTL must be found by the suite within a few seeds, which
//! the sound FTL passes.

use crate::crash::relabelled;
use crate::map::several_chunks;
use crate::{MANNERS, THREADS};
use flash::Pairing;
use ftl::Mutant;
use ftl::raw::WriteUnit;
use lab::crash::{CrashOptions, explore};
use lab::damage::{DamageOptions, explore_damage};
use lab::device::Manner;
use lab::driver::Plant;
use lab::missed::survive_missing;
use lab::parallel::{SeedFailure, for_each_seed};
use lab::raw_crash::{RawCrashOptions, explore_ids};
use lab::rot::{survive_map_rot, survive_rot};
use lab::snapshots::{explore as explore_snapshots, options_of_seed};

const SEEDS: std::ops::Range<u64> = 0..48;

/// One seed of everything that looks for broken promises.
fn suite(seed: u64, plant: Plant) -> Result<(), lab::Failure> {
    let mut options = CrashOptions::of_seed(seed);
    options.device.manner = MANNERS[seed as usize % MANNERS.len()];
    options.images_per_cut = 12;
    options.plant = plant;
    let damage = DamageOptions { images: 60, plant: options.plant.clone(), ..Default::default() };
    explore_damage(seed, &damage)?;
    survive_rot(seed, &options)?;
    if seed % 4 == 1 {
        survive_missing(seed, &options)?;
    }
    explore(seed, &options).map(|_| ())
}

fn first_failure(mutant: Option<Mutant>) -> Option<SeedFailure> {
    // The panics of mutants are expected; their text would drown the report.
    let plant =
        mutant.map_or_else(Plant::default, |mutant| Plant::new(move |ftl| ftl.set_mutant(mutant)));
    for_each_seed(SEEDS, THREADS, |seed| suite(seed, plant.clone())).err()
}

#[test]
fn every_mutant_is_found_and_the_sound_ftl_is_not() {
    assert_eq!(first_failure(None), None, "the sound FTL fails");
    let mut survivors = Vec::new();
    for &mutant in Mutant::ALL {
        match first_failure(Some(mutant)) {
            Some(found) => println!("{mutant:?}: {found}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found within {SEEDS:?}: {survivors:?}");
}

/// One seed of what looks for broken promises behind a fast tier.
fn tier_suite(seed: u64, plant: Plant) -> Result<(), lab::Failure> {
    let mut options = CrashOptions::tiered_of_seed(seed);
    options.images_per_cut = 12;
    options.plant = plant;
    explore(seed, &options).map(|_| ())
}

#[test]
fn every_mutant_of_destage_is_found_and_the_sound_tier_is_not() {
    let first = |mutant: Option<Mutant>| {
        let plant = mutant
            .map_or_else(Plant::default, |mutant| Plant::new(move |ftl| ftl.set_mutant(mutant)));
        for_each_seed(0..12, THREADS, |seed| tier_suite(seed, plant.clone())).err()
    };
    assert_eq!(first(None), None, "the sound tier fails");
    let mut survivors = Vec::new();
    for &mutant in Mutant::TIER {
        match first(Some(mutant)) {
            Some(found) => println!("{mutant:?}: {found}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found within {SEEDS:?}: {survivors:?}");
}

#[test]
fn every_mutant_of_the_label_is_found() {
    let first = |mutant: Mutant| {
        let plant = Plant::new(move |ftl| ftl.set_mutant(mutant));
        for_each_seed(700..724, THREADS, |seed| {
            explore(seed, &CrashOptions { plant: plant.clone(), ..relabelled(seed) })
        })
        .err()
    };
    // The sound FTL passes all of them: see the test of the label.
    for &mutant in Mutant::LABEL {
        let found = first(mutant).unwrap_or_else(|| panic!("{mutant:?} was not found"));
        println!("{mutant:?}: {found}");
    }
}

#[test]
fn every_mutant_of_snapshots_is_found() {
    let first = |mutant: Mutant| {
        let plant = Plant::new(move |ftl| ftl.set_mutant(mutant));
        for_each_seed(1000..1072, THREADS, |seed| {
            let mut options = options_of_seed(seed);
            options.plant = plant.clone();
            explore_snapshots(seed, &options)?;
            // What is undone while a snapshot is given up takes a longer run, and no cuts.
            (options.operations_before, options.operations) = (3_000, 0);
            explore_snapshots(seed, &options)
        })
        .err()
    };
    // The sound FTL passes all of them: see the tests of snapshots.
    let mut survivors = Vec::new();
    for &mutant in Mutant::SNAPSHOTS {
        match first(mutant) {
            Some(found) => println!("{mutant:?}: {found}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}

/// One seed of what looks for broken promises where a part of the map is in DRAM.
fn map_suite(seed: u64, plant: Plant) -> Result<(), lab::Failure> {
    let options = if seed.is_multiple_of(2) {
        CrashOptions::of_seed(seed)
    } else {
        CrashOptions::tiered_of_seed(seed)
    };
    let mut options = options.with_part_of_the_map();
    options.images_per_cut = 6;
    options.plant = plant.clone();
    explore(seed, &options)?;
    if seed.is_multiple_of(2) {
        options = several_chunks(seed);
        options.plant = plant;
        survive_map_rot(seed, &options)?;
    }
    Ok(())
}

#[test]
fn every_mutant_of_a_part_of_the_map_is_found_and_the_sound_map_is_not() {
    let first = |mutant: Option<Mutant>| {
        let plant = mutant
            .map_or_else(Plant::default, |mutant| Plant::new(move |ftl| ftl.set_mutant(mutant)));
        for_each_seed(SEEDS, THREADS, |seed| map_suite(seed, plant.clone())).err()
    };
    assert_eq!(first(None), None, "the sound map fails");
    let mut survivors = Vec::new();
    for &mutant in Mutant::MAP {
        match first(Some(mutant)) {
            Some(found) => println!("{mutant:?}: {found}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found within {SEEDS:?}: {survivors:?}");
}

/// One seed of what looks for broken promises of raw units and the IDs on them.
fn raw_suite(seed: u64, mutant: Option<Mutant>) -> Result<(), lab::Failure> {
    let manners = [Manner::Nand(Pairing::None), Manner::Nand(Pairing::Staircase), Manner::File];
    let mut options = RawCrashOptions::of_seed(seed, manners[seed as usize % 3]);
    options.settings.write = WriteUnit::Block;
    options.images_per_cut = 12;
    options.mutant = mutant;
    explore_ids(seed, &options).map(|_| ())
}

#[test]
fn every_mutant_of_raw_units_is_found_by_their_ids_and_the_sound_units_are_not() {
    let first = |mutant| for_each_seed(SEEDS, THREADS, |seed| raw_suite(seed, mutant)).err();
    assert_eq!(first(None), None, "the sound units fail");
    let mut survivors = Vec::new();
    for &mutant in Mutant::RAW {
        match first(Some(mutant)) {
            Some(found) => println!("{mutant:?}: {found}"),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "not found within {SEEDS:?}: {survivors:?}");
}
