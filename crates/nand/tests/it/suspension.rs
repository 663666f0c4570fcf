//! Urgent reads: what they overtake, what they suspend, and what that costs.

use crate::bench::{Bench, ONE_DIE};
use flash::Instant;
use nand::{Faults, Profile};

/// Round numbers: read 50 us + 10 us on the bus, program 10 us + 1 ms, erase 3 ms.
fn profile() -> Profile {
    Profile {
        page_bytes: 4096,
        oob_bytes: 0,
        planes: 1,
        command_ns: 0,
        read_ns: vec![50_000],
        program_ns: vec![1_000_000],
        erase_ns: 3_000_000,
        bus_ns_per_byte: 10_000.0 / 4096.0,
        suspend_erase_ns: 20_000,
        suspend_program_ns: 5_000,
        queue_depth: 4,
        ..Profile::builtin("tlc").unwrap()
    }
}

const READ: u64 = 60_000;

fn bench(profile: &Profile) -> Bench {
    let mut bench = Bench::with(profile, ONE_DIE, Faults::default());
    let record = nand::BlockRecord { write_pointer: 384, ..nand::BlockRecord::default() };
    bench.nand.restore(flash::BlockId(7), record);
    bench
}

#[test]
fn an_urgent_read_suspends_an_erase_which_then_takes_the_rest_of_its_time() {
    let mut bench = bench(&profile());
    let erase = bench.give_erase(0).unwrap();
    bench.now = Instant(1_000_000);
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (read, 1_020_000 + READ));
    assert_eq!(bench.next_at(), (erase, 3_000_000 + READ), "paused for as long as the read took");
    assert_eq!(bench.nand.counters().suspensions, 1);
    assert_eq!(bench.nand.deadline(), None, "the cancelled event is gone too");
    assert_eq!(bench.nand.poll(Instant(9_000_000)), None);
}

#[test]
fn an_urgent_read_suspends_a_program() {
    let mut bench = bench(&profile());
    let program = bench.give_program(bench.page(0, 0)).unwrap();
    bench.now = Instant(110_000);
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (read, 115_000 + READ));
    assert_eq!(bench.next_at(), (program, 1_010_000 + READ));
}

#[test]
fn a_read_that_is_not_urgent_waits() {
    let mut bench = bench(&profile());
    let erase = bench.give_erase(0).unwrap();
    let read = bench.give_read(bench.page(7, 0), 1, false).unwrap();
    assert_eq!(bench.next_at(), (erase, 3_000_000));
    assert_eq!(bench.next_at(), (read, 3_000_000 + READ));
    assert_eq!(bench.nand.counters().suspensions, 0);
}

#[test]
fn a_die_that_cannot_suspend_lets_urgent_reads_only_pass_what_waits() {
    let mut bench = bench(&Profile { suspend_erase_ns: 0, suspend_program_ns: 0, ..profile() });
    assert!(!bench.geometry().suspend);
    let running = bench.give_erase(0).unwrap();
    let waiting = bench.give_erase(1).unwrap();
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (running, 3_000_000));
    assert_eq!(bench.next_at(), (read, 3_000_000 + READ));
    assert_eq!(bench.next_at(), (waiting, 6_000_000 + READ));
}

#[test]
fn only_what_the_profile_lets_be_suspended_is() {
    let profile = Profile { suspend_program_ns: 0, ..profile() };
    let mut bench = bench(&profile);
    assert!(bench.geometry().suspend);
    let program = bench.give_program(bench.page(0, 0)).unwrap();
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    // The data was still coming in, so the array was free for the read.
    assert_eq!(bench.next_at(), (read, READ));
    assert_eq!(bench.next_at(), (program, READ + 1_000_000));
    let start = bench.now.0;
    let program = bench.give_program(bench.page(0, 1)).unwrap();
    bench.now = Instant(start + 500_000);
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (program, start + 1_010_000));
    assert_eq!(bench.next_at(), (read, start + 1_010_000 + READ));
}

#[test]
fn an_erase_about_to_end_is_not_suspended() {
    let mut bench = bench(&profile());
    let erase = bench.give_erase(0).unwrap();
    bench.now = Instant(2_990_000);
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (erase, 3_000_000));
    assert_eq!(bench.next_at(), (read, 3_000_000 + READ));
    assert_eq!(bench.nand.counters().suspensions, 0);
}

#[test]
fn several_urgent_reads_share_one_suspension() {
    let mut bench = bench(&Profile { cache_read: false, ..profile() });
    let erase = bench.give_erase(0).unwrap();
    bench.now = Instant(1_000_000);
    let reads = [0, 1, 2].map(|page| bench.give_read(bench.page(7, page), 1, true).unwrap());
    for (nth, read) in (1..).zip(reads) {
        assert_eq!(bench.next_at(), (read, 1_020_000 + nth * READ));
    }
    assert_eq!(bench.next_at(), (erase, 3_000_000 + 3 * READ));
    assert_eq!(bench.nand.counters().suspensions, 1);
}

#[test]
fn an_erase_can_be_suspended_again_and_loses_no_time() {
    let mut bench = bench(&profile());
    let erase = bench.give_erase(0).unwrap();
    for at in [500_000, 1_000_000, 1_500_000] {
        bench.now = Instant(at);
        bench.give_read(bench.page(7, 0), 1, true).unwrap();
        assert_eq!(bench.next_at().1, at + 20_000 + READ);
    }
    assert_eq!(bench.next_at(), (erase, 3_000_000 + 3 * READ));
    assert_eq!(bench.nand.counters().suspensions, 3);
}

#[test]
fn an_urgent_read_waits_for_the_program_of_its_page_and_the_erase_of_its_block() {
    let mut bench = bench(&profile());
    let program = bench.give_program(bench.page(0, 0)).unwrap();
    let read = bench.give_read(bench.page(0, 0), 1, true).unwrap();
    assert_eq!(bench.next_at().0, program);
    assert_eq!(bench.next_at().0, read);
    let erase = bench.give_erase(7).unwrap();
    let read = bench.give_read(bench.page(7, 3), 1, true).unwrap();
    let other = bench.give_read(bench.page(0, 0), 1, true).unwrap();
    assert_eq!(bench.next_at().0, other, "another block's read passes both");
    assert_eq!(bench.next_at().0, erase);
    assert_eq!(bench.next_at().0, read);
}

#[test]
fn a_power_cut_tears_a_suspended_erase_like_any_other() {
    let mut bench = bench(&profile());
    bench.give_erase(7).unwrap();
    bench.now = Instant(1_000_000);
    bench.give_read(bench.page(0, 0), 1, true).unwrap();
    assert!(bench.nand.poll(Instant(1_030_000)).is_none());
    bench.nand.power_cut(&mut |_| 2);
    assert_eq!(bench.nand.in_flight(), 0);
    bench.now = Instant(1_030_000);
    assert_eq!(bench.picture(7, 3), "xxx");
}

#[test]
fn a_cached_program_goes_on_after_the_suspended_one() {
    let mut bench = bench(&profile());
    let first = bench.give_program(bench.page(0, 0)).unwrap();
    let second = bench.give_program(bench.page(0, 1)).unwrap();
    bench.now = Instant(510_000);
    let read = bench.give_read(bench.page(7, 0), 1, true).unwrap();
    assert_eq!(bench.next_at(), (read, 515_000 + READ));
    assert_eq!(bench.next_at(), (first, 1_010_000 + READ));
    assert_eq!(bench.next_at(), (second, 2_010_000 + READ));
}
