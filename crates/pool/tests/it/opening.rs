//! Clients open one volume at the same time, own it, append, seal, free and write checkpoints, while links break,
//! clients are paused, resumed and killed, and the control plane crashes. Old messages arrive late. Watched at
//! every step: nothing acknowledged is lost, no older owner acknowledges or shows anything once another one has
//! opened the volume, and all openings agree on each life of each band.

mod owner;
mod world;

use world::{Rates, World};

const SEEDS: u64 = 400;

#[test]
fn whoever_opens_finds_all_that_was_acknowledged_and_nobody_else_goes_on() {
    let (mut opened, mut acknowledged, mut degraded, mut late) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut world = World::new(seed, Rates::of_seed(seed));
        world.run();
        opened += world.model.openings;
        acknowledged += world.model.acknowledged;
        degraded += world.model.degraded;
        late += world.model.stale;
    }
    println!(
        "{opened} openings, {acknowledged} appends acknowledged, {degraded} bands degraded, {late} asks refused as stale"
    );
    // The simulation must meet what it is for.
    assert!(opened > 3 * SEEDS && acknowledged > 50 * SEEDS && degraded > SEEDS / 4);
    assert!(late > SEEDS, "old clients were refused {late} times");
}

#[test]
fn the_same_seed_takes_the_same_course() {
    for seed in 0..5 {
        let course = || {
            let mut world = World::new(seed, Rates::of_seed(seed));
            world.run();
            (world.model.trace, world.model.openings)
        };
        assert_eq!(course(), course(), "seed {seed}");
    }
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::*;
    use pool::control::mutant::Mutant;

    #[test]
    fn every_planted_bug_of_opening_and_control_is_found() {
        std::panic::set_hook(Box::new(|_| {}));
        let mut missed = Vec::new();
        for &mutant in Mutant::OPENING {
            let found = (0..20 * SEEDS).find(|&seed| {
                std::panic::catch_unwind(|| {
                    let mut world = World::new(seed, Rates::of_seed(seed));
                    world.plant(mutant);
                    world.run();
                })
                .is_err()
            });
            println!("{mutant:?}: found by seed {found:?}");
            missed.extend(found.is_none().then_some(mutant));
        }
        let _ = std::panic::take_hook();
        assert!(missed.is_empty(), "not found: {missed:?}");
    }
}
