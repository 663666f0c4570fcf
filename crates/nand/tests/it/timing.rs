//! Latency and bandwidth are what arithmetic says of the profile.

use crate::bench::{Bench, ONE_DIE};
use flash::{BlockId, Command, Instant, Payload, Random, SlotId, Tag};
use nand::{Faults, Layout, Nand, Outcome, Profile};

fn timed_profiles() -> impl Iterator<Item = Profile> {
    let names = Profile::builtin_names().iter();
    names.map(|name| Profile::builtin(name).unwrap()).filter(|profile| !profile.is_instant())
}

/// Page times that differ leave gaps on a bus that several dies share: then the bound is not quite
/// reached, but never exceeded.
fn assert_bound(what: &str, measured: f64, bound: f64, uneven: bool) {
    if uneven {
        assert!(measured < bound * 1.01, "{what}: {measured} exceeds {bound}");
        assert!(measured > bound * 0.9, "{what}: {measured} is far below {bound}");
    } else {
        assert_near(what, measured, bound, 0.01);
    }
}

fn assert_near(what: &str, measured: f64, expected: f64, tolerance: f64) {
    let off = measured / expected - 1.0;
    assert!(off.abs() < tolerance, "{what}: {measured} instead of {expected}, {off:+.4}");
}

/// Bytes a second when every die of one plane-sized workload is kept full. `command` gives the
/// n-th command of a unit.
fn saturate(
    profile: &Profile,
    layout: &Layout,
    fill: bool,
    commands: u32,
    command: impl Fn(&Nand, u32, u32) -> (Command, u64),
) -> f64 {
    let mut nand = Nand::new(profile, layout, Faults::default()).unwrap();
    let geometry = nand.geometry();
    if fill {
        for (block, record) in nand.records().collect::<Vec<_>>() {
            let write_pointer = geometry.pages_per_block;
            nand.restore(block, nand::BlockRecord { write_pointer, ..record });
        }
    }
    let (mut given, mut now) = (vec![0; geometry.units as usize], Instant(0));
    let give = |nand: &mut Nand, given: &mut Vec<u32>, unit: u32, now| {
        let (command, bytes) = command(nand, unit, given[unit as usize]);
        given[unit as usize] += 1;
        nand.handle(now, command).unwrap_or_else(|illegal| panic!("{illegal}"));
        bytes
    };
    let mut bytes_per_command = 0;
    for unit in 0..geometry.units {
        for _ in 0..geometry.queue_depth {
            bytes_per_command = give(&mut nand, &mut given, unit, now);
        }
    }
    // The first tenth fills the pipes.
    let (warm, mut ended, mut started) = (commands / 10, 0, Instant(0));
    while ended < commands {
        now = nand.deadline().expect("commands are in flight");
        while let Some(outcome) = nand.poll(now) {
            ended += 1;
            if ended == warm {
                started = now;
            }
            let unit = match outcome {
                Outcome::Read { slot, .. } | Outcome::Program { slot, .. } => {
                    geometry.unit_of(geometry.block_of(slot))
                }
                Outcome::Erase { block, .. } => geometry.unit_of(block),
                Outcome::Finish { .. } | Outcome::Flush { .. } => unreachable!("none was given"),
            };
            give(&mut nand, &mut given, unit, now);
        }
    }
    f64::from(ended - warm) * bytes_per_command as f64 * 1e9 / (now - started) as f64
}

const LAYOUTS: [Layout; 3] = [
    Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 512 },
    Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 512 },
    Layout { channels: 1, dies_per_channel: 16, blocks_per_plane: 512 },
];

/// Each profile as it is, and without its cache registers.
fn variants() -> impl Iterator<Item = Profile> {
    timed_profiles().flat_map(|profile| {
        let plain = Profile {
            name: format!("{} without cache", profile.name),
            cache_read: false,
            cache_program: false,
            ..profile.clone()
        };
        [profile, plain]
    })
}

#[test]
fn saturated_reads_reach_the_raw_read_bandwidth() {
    for (profile, layout) in variants().flat_map(|p| LAYOUTS.map(|l| (p.clone(), l))) {
        let slots = (profile.page_bytes * profile.planes / 4096).max(1);
        let measured = saturate(&profile, &layout, true, 20_000, |nand, unit, n| {
            let geometry = nand.geometry();
            let block = geometry.block(unit, n / geometry.pages_per_block % 64);
            let slot = geometry.slot(block, n % geometry.pages_per_block, 0);
            let command =
                Command::Read { tag: Tag(n), slot, count: slots, into: None, urgent: false };
            (command, u64::from(slots) * 4096)
        });
        let what = format!("reads of {} on {layout:?}", profile.name);
        let uneven = profile.read_ns.len() > 1 && layout.dies_per_channel > 1;
        assert_bound(&what, measured, profile.raw_read_bandwidth(&layout), uneven);
    }
}

#[test]
fn saturated_programs_reach_the_raw_program_bandwidth() {
    for (profile, layout) in variants().flat_map(|p| LAYOUTS.map(|l| (p.clone(), l))) {
        let bytes = u64::from(profile.page_bytes * profile.planes);
        let measured = saturate(&profile, &layout, false, 20_000, |nand, unit, n| {
            let geometry = nand.geometry();
            let block = geometry.block(unit, n / geometry.pages_per_block);
            let slot = geometry.slot(block, n % geometry.pages_per_block, 0);
            (Command::Program { tag: Tag(n), slot, count: geometry.slots_per_page }, bytes)
        });
        let what = format!("programs of {} on {layout:?}", profile.name);
        let uneven = profile.program_ns.len() > 1 && layout.dies_per_channel > 1;
        assert_bound(&what, measured, profile.raw_program_bandwidth(&layout), uneven);
    }
}

#[test]
fn saturated_erases_reach_the_raw_erase_bandwidth() {
    for (profile, layout) in timed_profiles().flat_map(|p| LAYOUTS.map(|l| (p.clone(), l))) {
        let bytes = u64::from(profile.page_bytes * profile.planes * profile.pages_per_block);
        let measured = saturate(&profile, &layout, false, 5_000, |nand, unit, n| {
            (Command::Erase { tag: Tag(n), block: nand.geometry().block(unit, n % 64) }, bytes)
        });
        let what = format!("erases of {}", profile.name);
        assert_near(&what, measured, profile.raw_erase_bandwidth(&layout), 0.01);
    }
}

#[test]
fn one_command_at_a_time_takes_exactly_the_sum_of_its_stages() {
    for profile in timed_profiles() {
        let mut bench = Bench::with(&profile, ONE_DIE, Faults::default());
        let slots = bench.geometry().slots_per_page;
        let pages = 48;
        let (mut program_ns, mut started) = (0, bench.now);
        for page in 0..pages {
            bench.fill_one(0, page);
            program_ns += bench.now - started;
            started = bench.now;
        }
        let program_unit = u64::from(profile.planes * (profile.page_bytes + profile.oob_bytes));
        let wire = (program_unit as f64 * profile.bus_ns_per_byte).round() as u64;
        let array: u64 = (0..pages).map(|page| program_ns_of(&profile, page)).sum();
        assert_eq!(program_ns, u64::from(pages) * (profile.command_ns + wire) + array);

        for count in [1, slots] {
            let (mut sum, from) = (0, bench.now);
            for page in 0..pages {
                bench.now = from + u64::from(page) * 10_000_000;
                let (started, slot) = (bench.now, bench.page(0, page));
                bench.give_read(slot, count, false).unwrap();
                bench.next().unwrap();
                sum += bench.now - started;
            }
            let mean = sum as f64 / f64::from(pages);
            let expected = profile.read_latency_ns(u64::from(count) * 4096) as f64;
            assert_near(&format!("{} read of {count}", profile.name), mean, expected, 0.01);
        }
        let started = bench.now;
        bench.erase(0).unwrap();
        assert_eq!(bench.now - started, profile.command_ns + profile.erase_ns);
    }
}

impl Bench {
    fn fill_one(&mut self, block: u32, page: u32) {
        assert_eq!(self.program(block, page), Ok(Ok(())));
    }
}

/// tPROG of a page by the page order of the data sheets, written out once more.
fn program_ns_of(profile: &Profile, page: u32) -> u64 {
    let level = match profile.pairing.as_str() {
        "adjacent" => page % profile.bits_per_cell,
        _ => 0,
    };
    profile.program_ns[level as usize % profile.program_ns.len()]
}

#[test]
fn a_partial_read_moves_its_slots_and_a_whole_page_read_the_pages_it_touches() {
    let mut whole = Profile::builtin("mlc-25nm").unwrap();
    (whole.command_ns, whole.read_ns) = (0, vec![75_000]);
    let partial = Profile { partial_read: true, ..whole.clone() };
    let latency = |profile: &Profile, first: u32, count: u32| {
        let mut bench = Bench::with(profile, ONE_DIE, Faults::default());
        bench.give_read(SlotId(first), count, false).unwrap();
        bench.next_at().1
    };
    assert_eq!(latency(&whole, 0, 1), 75_000 + 216_000);
    assert_eq!(latency(&whole, 0, 2), 75_000 + 216_000);
    assert_eq!(latency(&whole, 1, 2), 75_000 + 432_000, "one slot of each plane");
    assert_eq!(latency(&whole, 0, 4), 75_000 + 432_000);
    assert_eq!(latency(&partial, 0, 1), 75_000 + 108_000);
    assert_eq!(latency(&partial, 1, 2), 75_000 + 216_000);
}

#[test]
fn a_host_reads_a_part_of_a_block_and_the_ftl_all_of_it() {
    let mut profile = Profile::builtin("mlc-25nm").unwrap();
    (profile.command_ns, profile.read_ns) = (0, vec![75_000]);
    (profile.partial_read, profile.host_read_bytes) = (true, 1024);
    let latency = |count: u32, buffer: Option<u32>| {
        let mut bench = Bench::with(&profile, ONE_DIE, Faults::default());
        let into = buffer.map(|buffer| Payload { buffer, index: 0 });
        let command = Command::Read { tag: Tag(2), slot: SlotId(0), count, into, urgent: false };
        bench.nand.handle(bench.now, command).unwrap();
        bench.next_at().1
    };
    assert_eq!(latency(1, Some(0)), 75_000 + 27_000);
    assert_eq!(latency(2, Some(0)), 75_000 + 54_000);
    assert_eq!(latency(1, Some(Payload::RELOCATION)), 75_000 + 108_000);
    assert_eq!(latency(1, None), 75_000 + 108_000, "what the FTL reads for itself");
}

#[test]
fn dies_of_one_channel_share_its_bus_first_ready_first_served() {
    let mut profile = Profile::builtin("mlc-25nm").unwrap();
    profile.command_ns = 0;
    let two = Layout { channels: 1, dies_per_channel: 2, blocks_per_plane: 8 };
    let mut bench = Bench::with(&profile, two, Faults::default());
    let (near, far) = (bench.page(0, 0), bench.page(8, 0));
    let read_near = bench.give_read(near, 2, false).unwrap();
    bench.now = Instant(1_000);
    let read_far = bench.give_read(far, 2, false).unwrap();
    assert_eq!(bench.next_at(), (read_near, 75_000 + 216_000));
    assert_eq!(bench.next_at(), (read_far, 75_000 + 2 * 216_000), "it waited for the bus");

    // A program given later, but ready for the bus before a read's data is.
    let start = bench.now.0;
    let read_near = bench.give_read(near, 2, false).unwrap();
    bench.now = Instant(start + 50_000);
    let program_far = bench.give_program(far).unwrap();
    let bus_free_at = start + 50_000 + 432_000;
    assert_eq!(bench.next_at(), (read_near, bus_free_at + 216_000));
    assert_eq!(bench.next_at(), (program_far, bus_free_at + 1_427_500));
}

#[test]
fn channels_do_not_share_a_bus() {
    let two = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 8 };
    let mut bench = Bench::new("mlc-25nm", two, Faults::default());
    bench.give_read(bench.page(0, 0), 2, false).unwrap();
    bench.give_read(bench.page(8, 0), 2, false).unwrap();
    let (first, second) = (bench.next_at().1, bench.next_at().1);
    assert_eq!(first, second);
}

#[test]
fn units_are_spread_over_the_channels_in_turn() {
    // Units 0 and 2 share channel 0, unit 1 has channel 1 to itself.
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 8 };
    let mut bench = Bench::new("mlc-25nm", layout, Faults::default());
    let tags = [0, 1, 2].map(|unit| bench.give_read(bench.page(unit * 8, 0), 2, false).unwrap());
    let ended = [bench.next_at(), bench.next_at(), bench.next_at()];
    assert_eq!(ended.map(|(tag, _)| tag), tags);
    assert_eq!(ended[0].1, ended[1].1);
    assert_eq!(ended[2].1, ended[0].1 + 216_000);
}

#[test]
fn cache_program_overlaps_the_next_transfer_with_the_running_program() {
    let profile = Profile { command_ns: 0, ..Profile::builtin("mlc-25nm").unwrap() };
    let plain = Profile { cache_program: false, ..profile.clone() };
    let second_ends_at = |profile: &Profile| {
        let mut bench = Bench::with(profile, ONE_DIE, Faults::default());
        bench.give_program(bench.page(0, 0)).unwrap();
        bench.give_program(bench.page(0, 1)).unwrap();
        assert_eq!(bench.next_at().1, 432_000 + 1_427_500);
        bench.next_at().1
    };
    assert_eq!(second_ends_at(&profile), 432_000 + 2 * 1_427_500);
    assert_eq!(second_ends_at(&plain), 2 * (432_000 + 1_427_500));
}

#[test]
fn commands_of_a_unit_end_in_the_order_given() {
    for (seed, profile) in (0..20).flat_map(|seed| variants().map(move |p| (seed, p))) {
        let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 64 };
        let mut bench = Bench::with(&profile, layout, Faults::default());
        let mut random = Random::new(seed);
        let mut queues = vec![std::collections::VecDeque::new(); 4];
        let mut last_end = 0;
        for _ in 0..200 {
            let unit = random.below(4) as u32;
            let block = unit * 64 + random.below(64) as u32;
            let page = bench.nand.record(BlockId(block)).write_pointer;
            let slot = bench.page(block, page);
            let given = match random.below(3) {
                0 => bench.give_program(slot),
                1 => bench.give_erase(block),
                _ => bench.give_read(slot, 1, false),
            };
            match given {
                Ok(tag) => queues[unit as usize].push_back(tag),
                Err(_) => {
                    let (tag, at) = bench.next_at();
                    let queue = queues.iter_mut().find(|queue| queue.front() == Some(&tag));
                    let queue = queue.unwrap_or_else(|| panic!("seed {seed}: {tag:?} overtook"));
                    queue.pop_front();
                    assert!(at >= last_end, "seed {seed}: outcomes in order of time");
                    last_end = at;
                }
            }
        }
    }
}

#[test]
fn busy_time_is_the_time_with_a_command() {
    let mut bench = Bench::new("slc", ONE_DIE, Faults::default());
    bench.erase(0).unwrap();
    let erase_ns = 2_000_000 + 210;
    assert_eq!(bench.nand.unit_busy_ns(0), erase_ns);
    bench.now = bench.now + 5_000_000;
    assert!(bench.nand.poll(bench.now).is_none());
    assert_eq!(bench.nand.unit_busy_ns(0), erase_ns, "it was idle");
    bench.give_erase(1).unwrap();
    let half = bench.now + 1_000_000;
    assert!(bench.nand.poll(half).is_none());
    assert_eq!(bench.nand.unit_busy_ns(0), erase_ns + 1_000_000);
    bench.nand.power_cut(&mut |_| 0);
    assert_eq!(bench.nand.unit_busy_ns(0), erase_ns + 1_000_000, "the cut ended it");
}
