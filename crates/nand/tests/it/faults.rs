//! Injected faults happen as often as asked, where asked, and the same again for the same seed.

use crate::bench::{Bench, ONE_DIE};
use flash::{BlockId, Instant, MediumError, Random, SECOND, SlotStatus};
use nand::{Faults, Layout, Nand, Profile};

#[test]
fn factory_bad_blocks_cost_their_own_share_of_capacity_and_no_more() {
    let layout = Layout { channels: 44, dies_per_channel: 2, blocks_per_plane: 2048 };
    let profile = Profile::builtin("mlc-25nm").unwrap();
    for seed in 0..5 {
        let faults = Faults { seed, factory_bad: 0.005, ..Faults::default() };
        let nand = Nand::new(&profile, &layout, faults).unwrap();
        let lost = nand.health().bad_blocks.len() as f64 / f64::from(nand.geometry().blocks());
        // The worst of two planes: a little over 0.5 %. Unpaired planes would cost 1 %.
        assert!((0.005..0.0065).contains(&lost), "seed {seed}: {lost}");
    }
}

#[test]
fn factory_bad_blocks_lie_at_the_end_of_each_unit_and_block_0_is_good() {
    let layout = Layout { channels: 4, dies_per_channel: 1, blocks_per_plane: 64 };
    let faults = Faults { seed: 3, factory_bad: 0.1, ..Faults::default() };
    let mut bench = Bench::new("instant", layout, faults);
    let bad = bench.nand.health().bad_blocks;
    assert!(!bad.is_empty());
    for unit in 0..4 {
        let good = (0..64).take_while(|index| !bad.contains(&BlockId(unit * 64 + index))).count();
        assert!(good >= 1);
        assert!((good as u32..64).all(|index| bad.contains(&BlockId(unit * 64 + index))));
    }
    let last = bad[bad.len() - 1].0;
    assert!(bench.program(last, 0).is_err(), "a program of a bad block is refused");
    assert_eq!(bench.erase(last), Err(MediumError::BlockFailed));
    assert_eq!(bench.read(last, 0), Ok(SlotStatus::Uncorrectable));
}

#[test]
fn a_failed_program_makes_the_block_bad_and_leaves_earlier_pages_readable() {
    for profile in ["instant", "mlc-25nm"] {
        let faults = Faults { seed: 1, program_fail: 0.05, ..Faults::default() };
        let mut bench = Bench::new(profile, ONE_DIE, faults);
        let mut page = 0;
        while bench.program(0, page) == Ok(Ok(())) {
            page += 1;
        }
        assert!(page > 0, "seed 1 fails later than page 0");
        assert_eq!(bench.nand.health().bad_blocks, [BlockId(0)]);
        let picture = bench.picture(0, page + 2);
        assert_eq!(picture, "o".repeat(page as usize) + "x.");
        assert!(bench.program(0, page + 1).is_err(), "no further programs");
        assert_eq!(bench.erase(0), Err(MediumError::BlockFailed));
        assert_eq!(bench.picture(0, page + 2), picture, "and it is still readable");
        assert_eq!(bench.nand.counters().program_failures, 1);
    }
}

#[test]
fn a_program_behind_a_failing_one_fails_too_instead_of_being_refused() {
    let faults = Faults { program_fail: 1.0, ..Faults::default() };
    let mut bench = Bench::new("slc", ONE_DIE, faults);
    let (first, second) = (bench.page(0, 0), bench.page(0, 1));
    bench.give_program(first).unwrap();
    bench.give_program(second).expect("the failure is not known yet");
    for _ in 0..2 {
        let outcome = bench.next().unwrap();
        assert!(
            matches!(outcome, nand::Outcome::Program { result: Err(MediumError::BlockFailed), .. }),
            "{outcome:?}"
        );
    }
    assert!(bench.give_program(second).is_err(), "now it is known");
}

#[test]
fn a_failed_erase_makes_the_block_bad_and_its_pages_unreadable() {
    let faults = Faults { erase_fail: 1.0, ..Faults::default() };
    let mut bench = Bench::new("slc", ONE_DIE, faults);
    bench.fill(1, 2);
    assert_eq!(bench.erase(1), Err(MediumError::BlockFailed));
    assert_eq!(bench.picture(1, 4), "xxxx");
    assert_eq!(bench.nand.health().bad_blocks, [BlockId(1)]);
    assert_eq!(bench.nand.record(BlockId(1)).erase_count, 1);
}

#[test]
fn read_errors_come_as_often_as_asked() {
    let faults = Faults { seed: 9, correctable: 0.1, ..Faults::default() };
    let mut bench = Bench::new("instant", ONE_DIE, faults);
    bench.fill(0, 1);
    let corrected = (0..10_000)
        .filter(|_| matches!(bench.read(0, 0), Ok(SlotStatus::Corrected(1..=8))))
        .count();
    assert!((900..1100).contains(&corrected), "seed 9: {corrected}");
    assert_eq!(bench.nand.counters().reads_corrected, corrected as u64);
}

#[test]
fn an_uncorrectable_page_stays_so_until_it_is_erased() {
    let faults = Faults { seed: 4, uncorrectable: 0.01, ..Faults::default() };
    let mut bench = Bench::new("instant", ONE_DIE, faults);
    bench.fill(0, 100);
    let lost: Vec<u32> =
        (0..100).filter(|&page| bench.read(0, page) == Ok(SlotStatus::Uncorrectable)).collect();
    assert!((1..10).contains(&lost.len()), "seed 4: {lost:?}");
    assert!(lost.iter().all(|&page| bench.read(0, page) == Ok(SlotStatus::Uncorrectable)));
    assert_eq!(bench.nand.damaged_pages().next(), Some(bench.page(0, lost[0])));
    assert_eq!(bench.erase(0), Ok(()));
    assert_eq!(bench.nand.damaged_pages().count(), 0);
}

#[test]
fn a_marked_page_is_uncorrectable_until_it_is_programmed_again() {
    let mut bench = Bench::new("mlc-25nm", ONE_DIE, Faults::default());
    bench.fill(0, 3);
    let inside = flash::SlotId(bench.page(0, 1).0 + 2);
    bench.nand.mark_uncorrectable(inside);
    assert_eq!(bench.nand.status(inside), SlotStatus::Uncorrectable);
    assert_eq!(bench.picture(0, 4), "oxo.");
    assert_eq!(bench.erase(0), Ok(()));
    bench.fill(0, 3);
    assert_eq!(bench.picture(0, 4), "ooo.");
    let erased = bench.page(0, 3);
    bench.nand.mark_uncorrectable(erased);
    assert_eq!(bench.picture(0, 4), "ooo.", "an erased page has nothing to lose");
}

#[test]
fn the_error_model_makes_worn_old_blocks_err_and_fresh_ones_not() {
    let profile = Profile::builtin("mlc-25nm").unwrap();
    let year = 365.0;
    let fresh = profile.rber.rate(0, 0.0, 0);
    assert!((fresh - 8.34e-5).abs() < 1e-9, "{fresh}");
    assert!(profile.rber.rate(3000, year, 10_000) > 20.0 * fresh);

    let faults = Faults { seed: 2, wear_errors: true, ..Faults::default() };
    let mut bench = Bench::with(&profile, ONE_DIE, faults);
    let worn = nand::BlockRecord { erase_count: 6000, ..nand::BlockRecord::default() };
    bench.nand.restore(BlockId(1), worn);
    bench.fill(0, 1);
    bench.fill(1, 1);
    let uncorrectable = |bench: &mut Bench, block| {
        (0..200).filter(|_| bench.read(block, 0) == Ok(SlotStatus::Uncorrectable)).count()
    };
    assert_eq!(uncorrectable(&mut bench, 1), 0, "seed 2: worn, but just programmed");
    bench.now = bench.now + 730 * 86_400 * SECOND;
    assert_eq!(uncorrectable(&mut bench, 0), 0, "seed 2: two years old, but never worn");
    assert!(uncorrectable(&mut bench, 1) > 150, "seed 2: worn and two years old");
    assert_eq!(bench.erase(1), Ok(()));
    bench.fill(1, 1);
    assert_eq!(uncorrectable(&mut bench, 1), 0, "seed 2: programmed anew");
}

#[test]
fn bit_errors_match_the_mean_of_the_model() {
    // 72-layer TLC starts with 12 errors in each KiB: 8 codewords of a read of two slots.
    let faults = Faults { seed: 6, wear_errors: true, ..Faults::default() };
    let mut bench = Bench::new("tlc", ONE_DIE, faults);
    bench.fill(0, 1);
    let mut worst = 0;
    for _ in 0..1000 {
        match bench.read(0, 0) {
            Ok(SlotStatus::Corrected(bits)) => worst += bits,
            other => panic!("seed 6: {other:?}"),
        }
    }
    // The mean of the largest of four Poisson draws of mean 12.1 is 15.8.
    assert!((15_000..16_600).contains(&worst), "seed 6: {worst}");
}

#[test]
fn the_same_seed_gives_the_same_outcomes() {
    let run = |seed| {
        let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 16 };
        let faults = Faults {
            seed,
            factory_bad: 0.02,
            program_fail: 0.001,
            erase_fail: 0.001,
            correctable: 0.1,
            uncorrectable: 0.01,
            dead_unit: Some((3, Instant(SECOND))),
            wear_errors: true,
            ..Faults::default()
        };
        let mut bench = Bench::new("tlc", layout, faults);
        let mut random = Random::new(seed);
        let mut trace = Vec::new();
        for _ in 0..2000 {
            let block = random.below(64) as u32;
            let page = bench.nand.record(BlockId(block)).write_pointer.min(383);
            let slot = bench.page(block, page);
            let given = match random.below(8) {
                0..4 => bench.give_program(slot),
                4 => bench.give_erase(block),
                _ => bench.give_read(slot, 8, random.chance(0.5)),
            };
            trace.push(format!("{given:?}"));
            while bench.nand.in_flight() > 6 {
                trace.push(format!("{:?} at {:?}", bench.next(), bench.now));
            }
        }
        trace.push(format!("{:?} {:?}", bench.nand.counters(), bench.nand.health()));
        trace
    };
    for seed in [11, 12] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(11), run(12));
}
