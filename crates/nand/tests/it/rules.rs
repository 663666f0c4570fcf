//! What a real part does not do is refused, with the rule and the place.

use crate::bench::{Bench, ONE_DIE};
use flash::{BlockId, Command, Instant, MediumError, SlotId, SlotStatus, Tag};
use nand::{Faults, Illegal, Layout, Nand, Outcome, Profile};

fn mlc() -> Bench {
    Bench::new("mlc-25nm", ONE_DIE, Faults::default())
}

#[test]
fn a_page_is_programmed_once_between_erases() {
    let mut bench = mlc();
    bench.fill(2, 3);
    let block = BlockId(2);
    let refused = bench.program(2, 1);
    assert_eq!(refused, Err(Illegal::ProgramTwice { block, page: 1, write_pointer: 3 }));
    assert_eq!(bench.erase(2), Ok(()));
    bench.fill(2, 3);
}

#[test]
fn pages_of_a_block_are_programmed_in_order() {
    let mut bench = mlc();
    bench.fill(2, 1);
    let refused = bench.program(2, 2);
    let block = BlockId(2);
    assert_eq!(refused, Err(Illegal::ProgramOutOfOrder { block, page: 2, write_pointer: 1 }));
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "page 2 of block 2 is out of order: program page 1 first");
}

#[test]
fn a_full_block_takes_no_program_until_it_is_erased() {
    let mut bench = Bench::new("slc", ONE_DIE, Faults::default());
    bench.fill(0, 64);
    assert!(matches!(bench.program(0, 0), Err(Illegal::ProgramTwice { write_pointer: 64, .. })));
    assert_eq!(bench.erase(0), Ok(()));
    assert_eq!(bench.program(0, 0), Ok(Ok(())));
    assert_eq!(bench.nand.record(BlockId(0)).erase_count, 1);
}

#[test]
fn a_program_starts_at_the_first_slot_of_a_page() {
    let mut bench = mlc();
    let refused = bench.give_program(SlotId(1));
    assert_eq!(refused, Err(Illegal::ProgramInsidePage { slot: SlotId(1) }));
}

#[test]
fn a_read_stays_within_a_page_and_asks_for_something() {
    let mut bench = mlc();
    assert_eq!(bench.geometry().slots_per_page, 4);
    assert_eq!(
        bench.give_read(SlotId(2), 3, false),
        Err(Illegal::ReadAcrossPages { slot: SlotId(2), count: 3, left: 2 })
    );
    assert_eq!(
        bench.give_read(SlotId(0), 0, false),
        Err(Illegal::ReadOfNothing { slot: SlotId(0) })
    );
    assert!(bench.give_read(SlotId(2), 2, false).is_ok());
    let huge = bench.give_read(SlotId(1), u32::MAX, false);
    assert!(matches!(huge, Err(Illegal::ReadAcrossPages { .. })));
}

#[test]
fn addresses_beyond_the_medium_are_refused() {
    let mut bench = mlc();
    let slots = bench.geometry().slots();
    for slot in [slots as u32, u32::MAX] {
        let refused = Err(Illegal::OutOfRange { slot: slot.into(), slots });
        assert_eq!(bench.give_read(SlotId(slot), 1, false), refused);
        assert_eq!(bench.give_program(SlotId(slot)), refused);
    }
    assert!(matches!(bench.give_erase(8), Err(Illegal::OutOfRange { .. })));
    assert!(matches!(bench.give_erase(u32::MAX), Err(Illegal::OutOfRange { .. })));
}

#[test]
fn a_unit_takes_no_more_commands_than_its_queue_holds() {
    for profile in ["instant", "slc"] {
        let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
        bench.give_erase(0).unwrap();
        bench.give_erase(1).unwrap();
        let refused = bench.give_read(SlotId(0), 1, true);
        assert_eq!(refused, Err(Illegal::QueueFull { unit: 0, depth: 2 }), "{profile}");
        assert_eq!(bench.nand.in_flight(), 2);
        bench.next().unwrap();
        assert!(bench.give_erase(2).is_ok(), "{profile}: one was taken out");
    }
}

#[test]
fn a_refused_command_changes_nothing() {
    let mut bench = mlc();
    bench.fill(0, 2);
    let (records, counters) = (bench.nand.records().collect::<Vec<_>>(), bench.nand.counters());
    assert!(bench.program(0, 0).is_err());
    assert!(bench.program(0, 9).is_err());
    assert!(bench.give_read(SlotId(0), 9, false).is_err());
    assert_eq!(bench.nand.records().collect::<Vec<_>>(), records);
    assert_eq!(bench.nand.counters(), counters);
    assert_eq!(bench.nand.in_flight(), 0);
    assert_eq!(bench.nand.deadline(), None);
}

#[test]
fn an_erased_page_reads_erased_and_a_programmed_one_sound() {
    for profile in Profile::builtin_names() {
        let mut bench = Bench::new(profile, ONE_DIE, Faults::default());
        bench.fill(1, 5);
        assert_eq!(bench.picture(1, 8), "ooooo...", "{profile}");
        assert_eq!(bench.erase(1), Ok(()));
        assert_eq!(bench.picture(1, 8), "........", "{profile}");
    }
}

#[test]
fn commands_of_a_unit_see_what_was_ordered_before_them() {
    let mut bench = Bench::new("slc", ONE_DIE, Faults::default());
    let slot = bench.page(0, 0);
    bench.give_program(slot).unwrap();
    bench.give_read(slot, 1, false).unwrap();
    assert!(matches!(bench.next(), Some(Outcome::Program { result: Ok(()), .. })));
    assert!(matches!(bench.next(), Some(Outcome::Read { status: Ok(SlotStatus::Ok), .. })));
}

#[test]
fn a_flush_is_answered_at_once_as_completed_programs_are_durable() {
    let mut bench = mlc();
    bench.give_erase(0).unwrap();
    bench.nand.handle(Instant(5), Command::Flush { tag: Tag(99) }).unwrap();
    assert_eq!(bench.nand.poll(Instant(5)), Some(Outcome::Flush { tag: Tag(99), result: Ok(()) }));
    assert!(bench.geometry().durable_at_completion);
    assert_eq!(bench.nand.in_flight(), 1);
}

#[test]
fn no_more_blocks_are_partly_programmed_than_the_profile_allows() {
    let profile = Profile { open_blocks_max: 2, ..Profile::builtin("slc").unwrap() };
    let mut bench = Bench::with(&profile, ONE_DIE, Faults::default());
    assert_eq!(bench.geometry().open_blocks_max, 2);
    assert_eq!((bench.program(0, 0), bench.program(1, 0)), (Ok(Ok(())), Ok(Ok(()))));
    let third = bench.page(2, 0);
    let refused = bench.give_program(third).unwrap_err();
    assert_eq!(refused, Illegal::TooManyOpen { block: BlockId(2), max: 2 });
    assert!(refused.to_string().contains("finish one first"), "{refused}");
    // One that is full, finished or erased makes room, and a finished one takes no more.
    let finish = |bench: &mut Bench, block| {
        let command = Command::Finish { tag: Tag(7), block: BlockId(block) };
        bench.nand.handle(bench.now, command).unwrap();
        assert_eq!(bench.next(), Some(Outcome::Finish { tag: Tag(7) }));
    };
    finish(&mut bench, 1);
    let behind = bench.page(1, 1);
    assert_eq!(bench.give_program(behind), Err(Illegal::Finished { block: BlockId(1) }));
    bench.fill(2, bench.geometry().pages_per_block);
    assert_eq!(bench.program(3, 0), Ok(Ok(())));
    assert_eq!(bench.erase(3), Ok(()));
    assert_eq!(bench.program(4, 0), Ok(Ok(())));
    // After a loss of power all are finished.
    bench.nand.power_cut(&mut |_| 0);
    let behind = bench.page(0, 1);
    assert_eq!(bench.give_program(behind), Err(Illegal::Finished { block: BlockId(0) }));
    assert_eq!((bench.program(5, 0), bench.program(6, 0)), (Ok(Ok(())), Ok(Ok(()))));
}

#[test]
fn a_gone_unit_answers_every_command_with_unit_gone_and_others_live_on() {
    let layout = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 4 };
    for profile in ["instant", "slc"] {
        let mut bench = Bench::new(profile, layout.clone(), Faults::default());
        bench.fill(0, 1);
        bench.nand.kill_unit(0);
        assert_eq!(bench.read(0, 0), Err(MediumError::UnitGone), "{profile}");
        assert_eq!(bench.program(0, 9), Ok(Err(MediumError::UnitGone)), "{profile}");
        assert_eq!(bench.erase(0), Err(MediumError::UnitGone), "{profile}");
        assert_eq!(bench.nand.health().units_gone, [0]);
        bench.fill(4, 1);
    }
}

#[test]
fn a_unit_dies_at_its_hour_and_takes_what_it_was_doing_with_it_or_answers_still() {
    let faults = Faults { dead_unit: Some((0, Instant(1_000_000))), ..Faults::default() };
    let mut bench = Bench::new("slc", ONE_DIE, faults);
    bench.fill(0, 1);
    assert!(bench.now < Instant(1_000_000), "a program takes 0.45 ms");
    for block in 1..3 {
        bench.give_erase(block).expect("an erase is legal anywhere");
    }
    let ends: Vec<_> = std::iter::from_fn(|| bench.next())
        .map(|outcome| match outcome {
            Outcome::Erase { result, .. } => result,
            other => panic!("not the end of an erase: {other:?}"),
        })
        .collect();
    let still = ends.iter().filter(|end| end.is_ok()).count();
    assert_eq!((ends.len(), still), (2, 1), "an erase takes 2 ms: {ends:?}");
    assert_eq!(bench.erase(3), Err(MediumError::UnitGone), "what it is asked later");
    assert_eq!(bench.nand.health().units_gone, [0]);
}

#[test]
fn a_wrong_layout_or_fault_is_named() {
    let profile = Profile::builtin("slc").unwrap();
    let fails = |layout: Layout, faults| Nand::new(&profile, &layout, faults).unwrap_err();
    let none = fails(Layout { channels: 0, ..ONE_DIE }, Faults::default());
    assert!(none.contains("units is 0"), "{none}");
    let huge = Layout { channels: 4096, dies_per_channel: 1 << 20, ..ONE_DIE };
    assert!(fails(huge, Faults::default()).contains("units is"));
    let faults = Faults { program_fail: 1.5, ..Faults::default() };
    assert!(fails(ONE_DIE, faults).starts_with("program_fail = 1.5: must be 0 to 1"));
    let faults = Faults { correctable: f64::NAN, ..Faults::default() };
    assert!(fails(ONE_DIE, faults).starts_with("correctable = NaN"));
    let faults = Faults { dead_unit: Some((1, Instant(0))), ..Faults::default() };
    assert!(fails(ONE_DIE, faults).starts_with("dead_unit = 1"));
}

#[test]
fn a_page_of_the_geometry_is_the_same_page_of_every_plane() {
    let slots = |name: &str| {
        let bench = Bench::new(name, ONE_DIE, Faults::default());
        (bench.geometry().slots_per_page, bench.geometry().pages_per_block)
    };
    assert_eq!(slots("instant"), (1, 256));
    assert_eq!(slots("slc"), (1, 64));
    assert_eq!(slots("mlc-50nm"), (2, 128));
    assert_eq!(slots("mlc-25nm"), (4, 256));
    assert_eq!(slots("tlc"), (8, 384));
    assert_eq!(slots("qlc"), (8, 512));
}

#[test]
fn a_restored_device_continues_where_its_records_stood() {
    let mut bench = mlc();
    bench.fill(0, 3);
    bench.fill(1, 1);
    assert_eq!(bench.erase(1), Ok(()));
    let mut copy = mlc();
    for (block, record) in bench.nand.records() {
        let bytes = record.encode();
        copy.nand.restore(block, nand::BlockRecord::decode(&bytes).expect("just encoded"));
    }
    assert_eq!(copy.nand.health(), bench.nand.health());
    assert_eq!(copy.picture(0, 5), "ooo..");
    assert_eq!(copy.program(0, 3), Ok(Ok(())));
}
