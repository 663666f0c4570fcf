//! How fast the emulator is: a figure to look at, not a test.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use flash::{Command, Instant, Random, Tag};
use nand::{Faults, Layout, Nand, Profile};
use std::hint::black_box;

/// Programs, reads and erases in turn on every unit, two at a time.
fn commands_per_run(profile: &str, layout: &Layout, commands: u32) -> u32 {
    let profile = Profile::builtin(profile).unwrap();
    let mut nand = Nand::new(&profile, layout, Faults::default()).unwrap();
    let (geometry, mut random) = (nand.geometry(), Random::new(1));
    let (mut now, mut ended, mut given) = (Instant(0), 0, 0);
    let mut next_page = vec![0; geometry.units as usize];
    while ended < commands {
        for unit in 0..geometry.units {
            let page = next_page[unit as usize];
            let (nth, index) = (page / geometry.pages_per_block, page % geometry.pages_per_block);
            let block = geometry.block(unit, nth % layout.blocks_per_plane);
            if index == 0 {
                given += 1;
                nand.handle(now, Command::Erase { tag: Tag(given), block }).unwrap();
            } else {
                let back = random.below(index.into()) as u32;
                let slot = geometry.slot(block, back, 0);
                let (tag, into, urgent) = (Tag(given), None, false);
                given += 1;
                nand.handle(now, Command::Read { tag, slot, count: 1, into, urgent }).unwrap();
            }
            given += 1;
            let slot = geometry.slot(block, index, 0);
            nand.handle(
                now,
                Command::Program { tag: Tag(given), slot, count: geometry.slots_per_page },
            )
            .unwrap();
            next_page[unit as usize] += 1;
        }
        while let Some(at) = nand.deadline() {
            now = now.max(at);
            while let Some(outcome) = nand.poll(now) {
                black_box(outcome);
                ended += 1;
            }
        }
    }
    ended
}

#[test]
#[ignore = "a measurement: run with --release -- --ignored --nocapture"]
fn nanoseconds_per_command() {
    let large = Layout { channels: 44, dies_per_channel: 2, blocks_per_plane: 1024 };
    let small = Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 256 };
    for (name, layout) in [
        ("instant", &small),
        ("instant", &large),
        ("mlc-25nm", &small),
        ("mlc-25nm", &large),
        ("tlc", &small),
    ] {
        let best = (0..5)
            .map(|_| {
                let start = std::time::Instant::now();
                let commands = commands_per_run(name, layout, 4_000_000);
                start.elapsed().as_nanos() as f64 / f64::from(commands)
            })
            .fold(f64::MAX, f64::min);
        println!("{name:9} {:3} dies: {best:6.1} ns a command", layout.channels * 2);
    }
    let tiny = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 8 };
    let nand = Nand::new(&Profile::builtin("instant").unwrap(), &tiny, Faults::default()).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..1_000_000 {
        black_box(nand.clone());
    }
    println!("clone of 2 dies x 8 blocks: {:.0} ns", start.elapsed().as_nanos() as f64 / 1e6);
}
