//! Whatever it is told, the device does not panic, and every command it takes ends exactly once.

use crate::bench::tag_of;
use flash::{BlockId, Command, Instant, Payload, Random, SlotId, Tag};
use nand::{Faults, Layout, Nand, Profile};
use std::collections::BTreeSet;

/// A command that is legal about two times in three.
fn any_command(nand: &Nand, random: &mut Random, tag: Tag) -> Command {
    let geometry = nand.geometry();
    // One block too many, now and then.
    let block = BlockId(random.below(u64::from(geometry.blocks()) + 1) as u32);
    let slots = u64::from(geometry.slots_per_block());
    let slot = |in_block: u64| SlotId((u64::from(block.0) * slots + in_block) as u32);
    match random.below(10) {
        0..4 => {
            let pointer = nand.record(BlockId(block.0.min(geometry.blocks() - 1))).write_pointer;
            let page = if random.chance(0.9) { u64::from(pointer) } else { random.below(9) };
            Command::Program {
                tag,
                slot: slot(page * u64::from(geometry.slots_per_page)),
                count: geometry.slots_per_page,
            }
        }
        4 => Command::Erase { tag, block },
        5 if random.chance(0.2) => Command::Flush { tag },
        _ => Command::Read {
            tag,
            slot: slot(random.below(slots / 8)),
            count: random.below(3) as u32,
            into: random.chance(0.5).then_some(Payload { buffer: 1, index: tag.0 }),
            urgent: random.chance(0.7),
        },
    }
}

#[test]
fn every_command_taken_ends_exactly_once() {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 6 };
    let names = Profile::builtin_names().iter().cycle();
    for (seed, name) in (0..120).zip(names) {
        let mut random = Random::new(seed);
        let profile = Profile {
            queue_depth: 1 + random.below(8) as u32,
            suspend_program_ns: random.below(2) * 5_000,
            suspend_erase_ns: random.below(2) * 20_000,
            cache_read: random.chance(0.5),
            cache_program: random.chance(0.5),
            ..Profile::builtin(name).unwrap()
        };
        let faults = Faults {
            seed,
            factory_bad: 0.05,
            program_fail: 0.01,
            erase_fail: 0.01,
            correctable: 0.01,
            uncorrectable: 0.01,
            dead_unit: (seed % 4 == 0).then_some((1, Instant(50_000_000))),
            wear_errors: seed % 3 == 0,
            ..Faults::default()
        };
        let mut nand = Nand::new(&profile, &layout, faults).unwrap();
        let (mut now, mut open) = (Instant(0), BTreeSet::new());
        for step in 0..1500 {
            let tag = Tag(step);
            if nand.handle(now, any_command(&nand, &mut random, tag)).is_ok() {
                open.insert(tag);
            }
            now = now + random.below(100_000) * random.below(2);
            while random.chance(0.8)
                && let Some(outcome) = nand.poll(now)
            {
                assert!(open.remove(&tag_of(&outcome)), "{name} seed {seed}: {outcome:?} twice");
            }
            assert_eq!(nand.in_flight(), open.len(), "{name} seed {seed} step {step}");
            if random.chance(0.005) {
                nand.power_cut(&mut |n| random.below(n.into()) as u32);
                open.clear();
            }
        }
        while let Some(at) = nand.deadline() {
            now = now.max(at);
            while let Some(outcome) = nand.poll(now) {
                assert!(open.remove(&tag_of(&outcome)), "{name} seed {seed}: {outcome:?} twice");
            }
        }
        assert!(open.is_empty(), "{name} seed {seed}: {open:?} never ended");
    }
}
