//! Dies that share a chip, and commands that wait for the bus: what works at a time, and what goes first.

use crate::bench::Bench;
use nand::{BlockRecord, Faults, Layout, Profile};

/// Round numbers: read 50 us + 10 us on the bus, program 10 us + 1 ms, erase 3 ms.
fn profile(chip_units: u32) -> Profile {
    Profile {
        page_bytes: 4096,
        oob_bytes: 0,
        planes: 1,
        pairing: "none".into(),
        command_ns: 0,
        read_ns: vec![50_000],
        program_ns: vec![1_000_000],
        erase_ns: 3_000_000,
        bus_ns_per_byte: 10_000.0 / 4096.0,
        suspend_erase_ns: 20_000,
        suspend_program_ns: 0,
        cache_read: false,
        cache_program: false,
        queue_depth: 4,
        chip_units,
        ..Profile::builtin("tlc").unwrap()
    }
}

/// Four units on one channel; block `4 u` is the first of unit `u`, of which the first half is written.
fn bench(profile: &Profile) -> Bench {
    let layout = Layout { channels: 1, dies_per_channel: 4, blocks_per_plane: 4 };
    let mut bench = Bench::with(profile, layout, Faults::default());
    for unit in 0..4 {
        let record = BlockRecord { write_pointer: 100, ..BlockRecord::default() };
        bench.nand.restore(flash::BlockId(4 * unit), record);
    }
    bench
}

#[test]
fn units_of_a_chip_take_turns_and_those_of_others_do_not() {
    // Units 0 and 2 are of one chip, 1 and 3 of the other.
    for (other, ends_at) in [(8, 2_020_000), (4, 1_020_000)] {
        let mut bench = bench(&profile(2));
        let first = bench.give_program(bench.page(0, 100)).unwrap();
        let second = bench.give_program(bench.page(other, 100)).unwrap();
        assert_eq!(bench.next_at(), (first, 1_010_000));
        assert_eq!(bench.next_at(), (second, ends_at));
        assert_eq!(bench.nand.deadline(), None);
    }
}

#[test]
fn reads_go_before_what_waits_in_a_chip_and_only_an_urgent_one_suspends() {
    let mut bench = bench(&profile(4));
    let running = bench.give_program(bench.page(0, 100)).unwrap();
    let waits = bench.give_program(bench.page(4, 100)).unwrap();
    let waits_too = bench.give_program(bench.page(4, 101)).unwrap();
    let read = bench.give_read(bench.page(4, 7), 1, false).unwrap();
    assert_eq!(bench.next_at(), (running, 1_010_000));
    assert_eq!(bench.next_at(), (read, 1_070_000));
    assert_eq!(bench.next_at(), (waits, 2_080_000));
    assert_eq!(bench.next_at(), (waits_too, 3_090_000));
    let erase = bench.give_erase(1).unwrap();
    let patient = bench.give_read(bench.page(8, 7), 1, false).unwrap();
    let urgent = bench.give_read(bench.page(12, 7), 1, true).unwrap();
    // Once the erase is suspended, both go.
    assert_eq!(bench.next_at(), (urgent, 3_170_000));
    assert_eq!(bench.next_at(), (patient, 3_230_000));
    assert_eq!(bench.next_at(), (erase, 3_090_000 + 3_000_000 + 120_000));
    assert_eq!(bench.nand.counters().suspensions, 1);
}

#[test]
fn a_command_waits_until_what_leaves_is_gone() {
    for (commands_wait, second_at) in [(false, 120_000), (true, 130_000)] {
        let profile = Profile { commands_wait, ..profile(2) };
        let mut bench = bench(&profile);
        let first = bench.give_read(bench.page(0, 1), 1, false).unwrap();
        let other = bench.give_read(bench.page(4, 1), 1, false).unwrap();
        let second = bench.give_read(bench.page(0, 2), 1, false).unwrap();
        assert_eq!(bench.next_at(), (first, 60_000));
        assert_eq!(bench.next_at(), (other, 70_000));
        assert_eq!(bench.next_at(), (second, second_at));
    }
}

/// What arithmetic says of a saturated device is what the emulator does.
#[test]
fn saturated_chips_do_what_their_profile_says() {
    for (chip_units, commands_wait) in [(1, true), (2, false), (2, true), (4, true)] {
        let profile = Profile { commands_wait, ..profile(chip_units) };
        let layout = Layout { channels: 1, dies_per_channel: 4, blocks_per_plane: 4 };
        let mut bench = bench(&profile);
        let mut bytes = 0.0;
        let mut page = 0;
        for unit in 0..4 {
            bench.give_read(bench.page(4 * unit, 0), 1, false).unwrap();
            bench.give_read(bench.page(4 * unit, 1), 1, false).unwrap();
        }
        while bench.now.0 < 50_000_000 {
            let Some(nand::Outcome::Read { slot, .. }) = bench.next() else { panic!("a read") };
            bytes += 4096.0;
            page = (page + 1) % 100;
            let block = bench.geometry().block_of(slot);
            bench.give_read(bench.page(block.0, page), 1, false).unwrap();
        }
        let rate = bytes * 1e9 / bench.now.0 as f64;
        let expected = profile.raw_read_bandwidth(&layout);
        assert!(
            (rate / expected - 1.0).abs() < 0.02,
            "{chip_units} {commands_wait}: {rate} {expected}"
        );
    }
}

#[test]
fn what_a_chip_cannot_be_is_refused() {
    let text = include_str!("../../profiles/tlc.toml");
    let message = Profile::parse(&format!("chip_units = 2\n{text}")).unwrap_err().to_string();
    assert!(message.contains("cache_read = true") && message.contains("chip_units"), "{message}");
    let layout = Layout { channels: 1, dies_per_channel: 3, blocks_per_plane: 4 };
    let message = nand::Nand::new(&profile(2), &layout, Faults::default()).unwrap_err();
    assert!(message.contains("a multiple of chip_units = 2, for example 4"), "{message}");
}
