//! The fast units of a two-tier device.

use flash::{BlockId, Command, FastTier, Instant, MediumError, SlotId, SlotStatus, Tag};
use nand::{Faults, Illegal, Layout, Nand, Outcome, Profile};

/// A die of TLC, and behind it one fast unit of three blocks.
fn device(faults: Faults) -> Nand {
    let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 4 };
    let fast = FastTier { units: 1, blocks_per_unit: 3 };
    let (slow, quick) = (profile("tlc"), profile("optane"));
    Nand::tiered(&slow, &layout, &quick, fast, faults).expect("a sound layout")
}

fn profile(name: &str) -> Profile {
    Profile::builtin(name).expect("a built-in profile")
}

/// The first slot of the fast unit.
fn first(nand: &Nand) -> u32 {
    let geometry = nand.geometry();
    geometry.slot(geometry.block(1, 0), 0, 0).0
}

/// Programs slots of the fast unit.
fn program(nand: &mut Nand, slot: u32, count: u32) -> Result<(), Illegal> {
    let at = first(nand) + slot;
    program_at(nand, at, count)
}

fn program_at(nand: &mut Nand, slot: u32, count: u32) -> Result<(), Illegal> {
    let now = nand.deadline().unwrap_or(Instant(0));
    nand.handle(now, Command::Program { tag: Tag(slot), slot: SlotId(slot), count })
}

fn end(nand: &mut Nand) -> Result<(), MediumError> {
    loop {
        let at = nand.deadline().expect("a command is in flight");
        match nand.poll(at) {
            Some(Outcome::Program { result, .. } | Outcome::Erase { result, .. }) => return result,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

fn statuses(nand: &Nand, slots: u32) -> Vec<SlotStatus> {
    (0..slots).map(|slot| nand.status(SlotId(first(nand) + slot))).collect()
}

#[test]
fn a_page_of_a_fast_unit_is_programmed_in_parts_and_in_order() {
    let mut nand = device(Faults::default());
    let per_page = nand.geometry().slots_per_page;
    program(&mut nand, 0, 1).expect("a part");
    end(&mut nand).expect("programmed");
    program(&mut nand, 1, per_page - 1).expect("the rest of the page");
    end(&mut nand).expect("programmed");
    let statuses = statuses(&nand, per_page + 1);
    assert_eq!(statuses[per_page as usize - 1], SlotStatus::Ok);
    assert_eq!(statuses[per_page as usize], SlotStatus::Erased);
    let across = program(&mut nand, per_page, per_page + 1);
    assert!(matches!(across, Err(Illegal::ProgramOfPart { .. })), "{across:?}");
    let none = program(&mut nand, per_page, 0);
    assert!(matches!(none, Err(Illegal::ProgramOfPart { .. })), "{none:?}");
    let gap = program(&mut nand, per_page + 1, 1);
    assert!(matches!(gap, Err(Illegal::ProgramOutOfOrder { .. })), "{gap:?}");
    let again = program(&mut nand, 1, 1);
    assert!(matches!(again, Err(Illegal::ProgramTwice { .. })), "{again:?}");
}

#[test]
fn a_page_of_the_other_units_is_programmed_whole() {
    let mut nand = device(Faults::default());
    let geometry = nand.geometry();
    let part = program_at(&mut nand, 0, geometry.slots_per_page - 1);
    assert!(matches!(part, Err(Illegal::ProgramOfPart { .. })), "{part:?}");
    program_at(&mut nand, 0, geometry.slots_per_page).expect("a page");
}

#[test]
fn a_fast_unit_has_only_the_blocks_it_was_given() {
    let mut nand = device(Faults::default());
    let geometry = nand.geometry();
    let beyond = 3 * geometry.slots_per_block();
    assert!(!geometry.exists(BlockId(7)) && geometry.exists(BlockId(6)));
    let refused = program(&mut nand, beyond, 1);
    assert!(matches!(refused, Err(Illegal::ProgramBadBlock { .. })), "{refused:?}");
}

#[test]
fn a_power_cut_tears_a_program_of_a_fast_unit_slot_by_slot() {
    use SlotStatus::{Erased, Ok as Sound, Uncorrectable as Lost};
    let expected = [
        [Erased, Erased, Erased],
        [Sound, Sound, Sound],
        [Lost, Lost, Lost],
        [Sound, Lost, Lost],
        [Sound, Sound, Lost],
        [Lost, Sound, Sound],
        [Lost, Lost, Sound],
    ];
    for (fate, expected) in (0..).zip(expected) {
        let mut nand = device(Faults::default());
        program(&mut nand, 0, 1).expect("a part");
        end(&mut nand).expect("programmed");
        program(&mut nand, 1, 3).expect("three more");
        nand.power_cut(&mut |fates| {
            assert_eq!(fates, 7);
            fate
        });
        assert_eq!(statuses(&nand, 4)[0], Sound, "what had ended stays");
        assert_eq!(statuses(&nand, 4)[1..], expected, "fate {fate}");
    }
}

#[test]
fn a_failed_program_of_a_fast_unit_leaves_what_was_before() {
    let mut nand = device(Faults::default());
    program(&mut nand, 0, 2).expect("a part");
    end(&mut nand).expect("programmed");
    let records: Vec<_> = nand.records().collect();
    let mut failing = device(Faults { program_fail: 1.0, ..Faults::default() });
    records.into_iter().for_each(|(block, record)| failing.restore(block, record));
    program(&mut failing, 2, 3).expect("legal");
    assert_eq!(end(&mut failing), Err(MediumError::BlockFailed));
    use SlotStatus::{Ok as Sound, Uncorrectable as Lost};
    assert_eq!(statuses(&failing, 5), [Sound, Sound, Lost, Lost, Lost]);
}

#[test]
fn fast_units_take_the_times_of_their_own_profile_on_buses_of_their_own() {
    let mut nand = device(Faults::default());
    let quick = profile("optane");
    let bus_ns = (f64::from(4096 + quick.oob_bytes) * quick.bus_ns_per_byte).round() as u64;
    let geometry = nand.geometry();
    let slow = SlotId(0);
    // The bus of the other units is busy all the while.
    let command = Command::Program { tag: Tag(9), slot: slow, count: geometry.slots_per_page };
    nand.handle(Instant(0), command).expect("legal");
    let quick_slot = SlotId(first(&nand));
    nand.handle(Instant(0), Command::Program { tag: Tag(1), slot: quick_slot, count: 1 })
        .expect("legal");
    let ended = loop {
        let at = nand.deadline().expect("it runs");
        if let Some(Outcome::Program { tag: Tag(1), .. }) = nand.poll(at) {
            break at.0;
        }
    };
    assert_eq!(ended, bus_ns + quick.program_ns[0]);
}
