//! Every torn outcome of a program and an erase, paired pages too.

use crate::bench::{Bench, ONE_DIE};
use flash::{BlockId, Random};
use nand::{BlockRecord, Faults, Illegal, Layout};

/// Cuts the power, choosing `outcomes` in turn. Returns how many there were to choose from.
fn cut(bench: &mut Bench, outcomes: &[u32]) -> Vec<u32> {
    let mut asked = Vec::new();
    let mut left = outcomes.iter();
    bench.nand.power_cut(&mut |n| {
        asked.push(n);
        *left.next().expect("not asked more often than expected")
    });
    assert_eq!(left.len(), 0, "asked only {asked:?}");
    assert_eq!(bench.nand.in_flight(), 0);
    assert_eq!(bench.nand.deadline(), None);
    asked
}

/// How a block reads after the program of page `page` was torn.
fn torn_program(profile: &str, page: u32, outcome: u32) -> (String, u32) {
    let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
    bench.fill(0, page);
    let slot = bench.page(0, page);
    bench.give_program(slot).unwrap();
    let asked = cut(&mut bench, &[outcome]);
    let picture = bench.picture(0, page + 2);
    let refused = bench.give_program(bench.page(0, bench.nand.record(BlockId(0)).write_pointer));
    assert_eq!(refused, Err(Illegal::NeedsErase { block: BlockId(0) }));
    assert_eq!(bench.picture(0, page + 2), picture, "reading does not heal");
    assert_eq!(bench.erase(0), Ok(()));
    bench.fill(0, page + 2);
    assert!(!bench.picture(0, page + 2).contains(['x', '.']), "an erase heals");
    (picture, asked[0])
}

#[test]
fn a_torn_program_leaves_its_page_erased_or_programmed_or_uncorrectable() {
    for profile in ["instant", "slc"] {
        for (outcome, expected) in [(0, "oo.."), (1, "ooo."), (2, "oox.")] {
            let (picture, outcomes) = torn_program(profile, 2, outcome);
            assert_eq!(picture, expected, "{profile} outcome {outcome}");
            assert_eq!(outcomes, 3, "no page shares cells");
        }
    }
}

#[test]
fn a_torn_upper_page_can_take_its_lower_page_with_it() {
    // Staircase: page 4 shares cells with page 1, pages 1 and 3 are lower pages.
    assert_eq!(torn_program("mlc-25nm", 4, 2), ("oooox.".into(), 4));
    assert_eq!(torn_program("mlc-25nm", 4, 3), ("oxoox.".into(), 4));
    assert_eq!(torn_program("mlc-25nm", 2, 3), ("xox.".into(), 4), "page 0 pairs with page 2");
    assert_eq!(torn_program("mlc-25nm", 3, 2).1, 3, "a lower page has no earlier partner");
    let (picture, outcomes) = torn_program("mlc-50nm", 126, 3);
    assert_eq!((picture[120..].to_string(), outcomes), ("oooxoox.".into(), 4), "123 and 126");
}

#[test]
fn a_torn_page_of_a_wordline_can_take_all_earlier_ones_with_it() {
    assert_eq!(torn_program("tlc", 3, 2).1, 3, "the first of its wordline");
    assert_eq!(torn_program("tlc", 4, 3), ("oooxx.".into(), 4));
    assert_eq!(torn_program("tlc", 5, 3), ("oooxxx.".into(), 4));
    assert_eq!(torn_program("qlc", 7, 3), ("ooooxxxx.".into(), 4));
}

#[test]
fn a_torn_erase_leaves_the_block_whole_erased_lost_or_half_erased() {
    for profile in ["instant", "mlc-25nm"] {
        let expected = ["oooo..", "......", "xxxxxx", "oxxxxx", ".ooo.."];
        for (outcome, expected) in expected.into_iter().enumerate() {
            let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
            bench.fill(3, 4);
            bench.give_erase(3).unwrap();
            assert_eq!(cut(&mut bench, &[outcome as u32]), [5]);
            assert_eq!(bench.picture(3, 6), expected, "{profile} outcome {outcome}");
            let refused = bench.program(3, 0);
            assert_eq!(refused, Err(Illegal::NeedsErase { block: BlockId(3) }));
            let count = bench.nand.record(BlockId(3)).erase_count;
            assert_eq!(count, u32::from(outcome != 0));
            assert_eq!(bench.erase(3), Ok(()));
            bench.fill(3, 6);
            assert_eq!(bench.picture(3, 6), "oooooo");
        }
    }
}

#[test]
fn a_half_erased_block_that_was_empty_keeps_its_first_page_erased() {
    let mut bench = Bench::new("instant", ONE_DIE, Faults::default());
    bench.give_erase(0).unwrap();
    cut(&mut bench, &[3]);
    assert_eq!(bench.picture(0, 3), ".xx");
}

#[test]
fn nothing_behind_an_unfinished_command_of_its_unit_has_started() {
    let mut bench = Bench::new("mlc-25nm", ONE_DIE, Faults::default());
    bench.fill(0, 1);
    let (first, second) = (bench.page(0, 1), bench.page(0, 2));
    let given = |bench: &mut Bench| {
        bench.give_program(first).unwrap();
        bench.give_program(second).unwrap();
    };
    let mut torn = bench.nand.clone();
    given(&mut bench);
    assert_eq!(cut(&mut bench, &[0]), [3], "the second is not asked about");
    assert_eq!(bench.picture(0, 4), "o...");
    std::mem::swap(&mut bench.nand, &mut torn);
    given(&mut bench);
    assert_eq!(cut(&mut bench, &[1, 3]), [3, 4]);
    assert_eq!(bench.picture(0, 4), "xox.", "page 2 shares cells with page 0");
}

#[test]
fn a_queued_command_that_never_started_still_leaves_its_block_to_be_erased() {
    let mut bench = Bench::new("slc", ONE_DIE, Faults::default());
    bench.fill(1, 2);
    bench.give_erase(0).unwrap();
    bench.give_program(bench.page(1, 2)).unwrap();
    assert_eq!(cut(&mut bench, &[2]), [5]);
    assert_eq!(bench.picture(1, 4), "oo..");
    assert_eq!(bench.program(1, 2), Err(Illegal::NeedsErase { block: BlockId(1) }));
}

#[test]
fn erase_and_first_program_in_flight_are_undone_together() {
    let mut bench = Bench::new("slc", ONE_DIE, Faults::default());
    bench.fill(0, 3);
    let whole = bench.nand.clone();
    for (outcomes, expected) in
        [(&[0][..], "ooo."), (&[1, 0], "...."), (&[1, 1], "o..."), (&[4], ".oo.")]
    {
        bench.nand = whole.clone();
        bench.give_erase(0).unwrap();
        bench.give_program(bench.page(0, 0)).unwrap();
        cut(&mut bench, outcomes);
        assert_eq!(bench.picture(0, 4), expected, "{outcomes:?}");
    }
}

#[test]
fn what_was_polled_is_safe_and_what_ended_unpolled_is_still_in_flight() {
    for profile in ["instant", "slc"] {
        let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
        bench.fill(0, 2);
        cut(&mut bench, &[]);
        assert_eq!(bench.picture(0, 3), "oo.");
        assert_eq!(bench.program(0, 2), Ok(Ok(())), "nothing was in flight: the block goes on");
        bench.give_program(bench.page(0, 3)).unwrap();
        let long_after = bench.now + 1_000_000_000;
        bench.nand.handle(long_after, flash::Command::Flush { tag: flash::Tag(0) }).unwrap();
        assert_eq!(cut(&mut bench, &[0]), [3], "{profile}: its outcome was never taken");
        assert_eq!(bench.picture(0, 5), "ooo..");
    }
}

#[test]
fn a_failure_that_was_never_told_is_forgotten_by_the_cut() {
    let faults = Faults { program_fail: 1.0, ..Faults::default() };
    let mut bench = Bench::new("slc", ONE_DIE, faults);
    bench.give_program(bench.page(0, 0)).unwrap();
    bench.give_program(bench.page(0, 1)).unwrap();
    assert_eq!(cut(&mut bench, &[2]), [3]);
    assert!(bench.nand.health().bad_blocks.is_empty());
    assert_eq!(bench.picture(0, 2), "x.");
}

#[test]
fn units_are_torn_each_on_its_own() {
    let layout = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 4 };
    let mut bench = Bench::new("instant", layout, Faults::default());
    bench.give_program(bench.page(0, 0)).unwrap();
    bench.give_program(bench.page(4, 0)).unwrap();
    assert_eq!(cut(&mut bench, &[0, 1]), [3, 3]);
    assert_eq!((bench.picture(0, 1), bench.picture(4, 1)), (".".into(), "o".into()));
}

#[test]
fn a_torn_state_survives_encoding() {
    for outcome in 0..5 {
        let mut bench = Bench::new("mlc-25nm", ONE_DIE, Faults::default());
        bench.fill(0, 4);
        bench.fill(1, 4);
        bench.give_program(bench.page(0, 4)).unwrap();
        bench.give_erase(1).unwrap();
        let program = [1, 1, 1, 1, 1][outcome as usize];
        cut(&mut bench, &[program, outcome]);
        let mut copy = Bench::new("mlc-25nm", ONE_DIE, Faults::default());
        for (block, record) in bench.nand.records() {
            copy.nand.restore(block, BlockRecord::decode(&record.encode()).unwrap());
        }
        for block in 0..2 {
            assert_eq!(copy.picture(block, 8), bench.picture(block, 8), "outcome {outcome}");
            assert!(copy.program(block, 5).is_err());
        }
    }
}

/// Random commands and cuts; a model of one state per page says how every page must read.
#[test]
fn pages_read_as_a_simple_model_says_after_any_power_cut() {
    for (seed, profile) in (0..40).zip(["instant", "slc", "mlc-25nm", "tlc"].into_iter().cycle()) {
        let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
        let (mut random, pages) = (Random::new(seed), bench.geometry().pages_per_block);
        let mut model = vec!['.'; (8 * pages) as usize];
        for step in 0..200 {
            let block = random.below(8) as u32;
            let record = bench.nand.record(BlockId(block));
            let first = (block * pages) as usize;
            if random.chance(0.1) || record.needs_erase || record.write_pointer == pages {
                bench.erase(block).unwrap();
                model[first..first + pages as usize].fill('.');
                continue;
            }
            let page = record.write_pointer;
            bench.give_program(bench.page(block, page)).unwrap();
            if random.chance(0.2) {
                let mut chosen = 0;
                bench.nand.power_cut(&mut |n| {
                    chosen = random.below(n.into()) as u32;
                    chosen
                });
                let at = first + page as usize;
                model[at] = ['.', 'o', 'x', 'x'][chosen as usize];
                if chosen == 3 {
                    for partner in bench.geometry().pairing.earlier_partners(page, pages) {
                        model[first + partner as usize] = 'x';
                    }
                }
            } else {
                bench.next().unwrap();
                model[first + page as usize] = 'o';
            }
            let expected: String = model[first..first + 40].iter().collect();
            assert_eq!(bench.picture(block, 40), expected, "{profile} seed {seed} step {step}");
        }
    }
}
