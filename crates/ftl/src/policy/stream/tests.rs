//! Each stream policy on small views, and what must hold of all.

use super::*;
use flash::{Lifetime, Random};

const TIB_BLOCKS: u32 = 1 << 28;

fn made(text: &str, blocks: u32) -> Box<dyn StreamPolicy> {
    by_name(text, Shape { blocks, handles: 1 }).unwrap_or_else(|error| panic!("{error}"))
}

fn write(policy: &dyn StreamPolicy, lba: u32, now: u64) -> WriteView {
    let handles = policy.handles();
    WriteView { lba, continues: false, hint: Hint::default(), now, age: None, handles }
}

fn moved(policy: &dyn StreamPolicy, from: Origin, age: u64) -> MoveView {
    MoveView { lba: 0, now: 1 << 40, age, from, handles: policy.handles() }
}

#[test]
fn answers_stay_within_the_handles_there_are() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        for name in STREAMS {
            let blocks = 1 + random.below(5000) as u32;
            let mut policy = made(name, blocks);
            let wanted = policy.handles();
            let handles = Handles {
                host: 1 + random.below(u64::from(wanted.host)) as u8,
                moved: 1 + random.below(u64::from(wanted.moved)) as u8,
            };
            for now in 0..5000 {
                let lba = random.below(u64::from(blocks)) as u32;
                let age = random.chance(0.5).then(|| random.below(1000));
                let lifetime = Lifetime::from_linux(random.below(6) as u8);
                let hint = Hint { handle: random.below(256) as u8, lifetime };
                let continues = random.chance(0.3);
                let view = WriteView { lba, continues, hint, now, age, handles };
                assert!(policy.place_write(&view) < handles.host, "{name} seed={seed} {view:?}");
                let from = match random.below(3) {
                    0 => Origin::Host(random.below(256) as u8),
                    1 => Origin::Moved(random.below(256) as u8),
                    _ => Origin::Unknown,
                };
                let view = MoveView { lba, now, age: random.below(1 << 40), from, handles };
                assert!(policy.place_move(&view) < handles.moved, "{name} seed={seed} {view:?}");
                if random.chance(0.1) {
                    policy.reclaimed(from, random.below(1 << 20));
                    policy.trimmed(lba, 1 + random.below(u64::from(blocks - lba)) as u32);
                }
            }
        }
    }
}

#[test]
fn being_told_of_writes_changes_no_answer() {
    let seed = 3;
    let mut random = Random::new(seed);
    for name in STREAMS {
        let (mut told, mut untold) = (made(name, 5000), made(name, 5000));
        for now in 0..20_000 {
            let range = if random.chance(0.5) { 500 } else { 5000 };
            let lba = random.below(range) as u32;
            let others: Vec<u32> =
                (0..random.below(40)).map(|_| random.next_u64() as u32).collect();
            told.warm(&others);
            told.warm(&[lba]);
            let view = WriteView { age: Some(random.below(9000)), ..write(&*told, lba, now) };
            assert_eq!(told.place_write(&view), untold.place_write(&view), "{name} seed={seed}");
            if random.chance(0.01) {
                told.trimmed(lba, (5000 - lba).min(600));
                untold.trimmed(lba, (5000 - lba).min(600));
            }
        }
    }
}

#[test]
fn memory_is_bounded_by_16_mib_for_a_device_of_1_tib() {
    for name in STREAMS {
        // A byte a block tells most; who has less memory gives it larger chunks.
        let text = if *name == "interval" { "interval:chunk=64KiB" } else { name };
        let bytes = made(text, TIB_BLOCKS).memory_bytes();
        assert!(bytes <= 16 << 20, "{text}: {bytes}");
    }
    assert_eq!(made("interval", 1 << 20).memory_bytes(), 1 << 20);
    assert_eq!(made("sfr", TIB_BLOCKS).memory_bytes(), 8 << 20);
    assert_eq!(made("multiq", TIB_BLOCKS).memory_bytes(), 16 << 20);
}

#[test]
fn sfr_goes_on_in_the_stream_of_what_a_write_continues() {
    let mut sfr = made("sfr:handles=8,decay=1GiB", 1 << 20);
    for now in 0..8 {
        let view = write(&*sfr, 1000, now);
        sfr.place_write(&view);
    }
    let view = write(&*sfr, 1000, 8);
    assert_eq!(sfr.place_write(&view), 3, "9 writes: log2 is 3");
    let view = write(&*sfr, 1001, 9);
    assert_eq!(sfr.place_write(&view), 3, "sequential");
    let view = write(&*sfr, 500_000, 10);
    assert_eq!(sfr.place_write(&view), 0, "elsewhere, and new");
}

#[test]
fn sfr_halves_a_count_with_every_decay_period() {
    let mut sfr = made("sfr:decay=4MiB", 1 << 20);
    for _ in 0..16 {
        let view = write(&*sfr, 0, 0);
        sfr.place_write(&view);
    }
    // 16 writes, two periods: a quarter is left, and this one.
    let view = write(&*sfr, 0, 2048);
    assert_eq!(sfr.place_write(&view), 2);
    // After 200 periods nothing is.
    let view = write(&*sfr, 0, 2048 + 200 * 1024);
    assert_eq!(sfr.place_write(&view), 0);
}

#[test]
fn a_decay_in_percent_is_that_share_of_the_volume() {
    for blocks in [1 << 14, 1 << 17] {
        let mut shared = made("sfr:decay=50%", blocks);
        let mut sized = made(&format!("sfr:decay={}KiB", blocks / 2 * 4), blocks);
        for step in 0..2000 {
            // Chunks come again after a tenth of the volume to the whole of it.
            let (lba, now) = (step % 10 * 512, u64::from(step * (blocks / 100)));
            let places = [&mut shared, &mut sized].map(|sfr| {
                let view = write(sfr.as_ref(), lba, now);
                sfr.place_write(&view)
            });
            assert_eq!(places[0], places[1], "{blocks} blocks, step {step}");
        }
    }
}

#[test]
fn a_trimmed_chunk_is_cold_again() {
    for name in ["sfr", "multiq"] {
        let mut policy = made(name, 1 << 20);
        for now in 0..100 {
            let view = write(&*policy, 256, now);
            policy.place_write(&view);
        }
        policy.trimmed(256, 255);
        let view = write(&*policy, 256, 100);
        assert!(policy.place_write(&view) > 0, "{name}: part of a chunk is left");
        policy.trimmed(256, 256);
        let view = write(&*policy, 256, 101);
        assert_eq!(policy.place_write(&view), 0, "{name}");
    }
}

#[test]
fn sepbit_infers_from_the_lifetime_of_what_is_overwritten() {
    let mut sepbit = made("sepbit", 1000);
    let place = |sepbit: &mut dyn StreamPolicy, age| {
        sepbit.place_write(&WriteView { age, ..write(sepbit, 0, 1 << 40) })
    };
    assert_eq!(place(&mut *sepbit, None), 1, "nothing was overwritten");
    assert_eq!(place(&mut *sepbit, Some(1 << 39)), 0, "nothing is known yet");
    for _ in 0..16 {
        sepbit.reclaimed(Origin::Host(1), 7);
        sepbit.reclaimed(Origin::Host(0), 100);
    }
    assert_eq!(place(&mut *sepbit, Some(99)), 0);
    assert_eq!(place(&mut *sepbit, Some(100)), 1);
    let class =
        |sepbit: &mut dyn StreamPolicy, from, age| 2 + sepbit.place_move(&moved(sepbit, from, age));
    assert_eq!(class(&mut *sepbit, Origin::Host(0), 10_000), 2);
    assert_eq!(class(&mut *sepbit, Origin::Host(1), 399), 3);
    assert_eq!(class(&mut *sepbit, Origin::Moved(0), 400), 4);
    assert_eq!(class(&mut *sepbit, Origin::Unknown, 1600), 5);
}

#[test]
fn hints_spread_over_the_handles_in_the_order_of_lifetimes() {
    let mut hint = made("hint:handles=2", 1000);
    let mut place = |lifetime, handle| {
        let view = write(&*hint, 0, 0);
        hint.place_write(&WriteView { hint: Hint { handle, lifetime }, ..view })
    };
    let of = [Lifetime::Short, Lifetime::Medium, Lifetime::Long, Lifetime::Extreme];
    assert_eq!(of.map(|lifetime| place(lifetime, 0)), [0, 0, 1, 1]);
    assert_eq!(place(Lifetime::Unknown, 3), 1, "the handle of the request");
    assert_eq!(made("hint", 1000).handles(), Handles { host: 4, moved: 4 });
}

#[test]
fn a_wrong_name_or_parameter_is_refused_with_what_is_allowed() {
    let error = |text: &str| match by_name(text, Shape { blocks: 1000, handles: 1 }) {
        Ok(_) => panic!("{text} passed"),
        Err(error) => error,
    };
    assert!(error("sfrr").contains("none, hint, multiq, sfr, sepbit, midas, interval"));
    assert!(error("sfr:half=2").ends_with("there are handles, chunk, decay, base"));
    assert!(error("sfr:handles=17").contains("from 1 to 16"));
    assert!(error("sfr:chunk=3MiB").contains("power of two"));
    assert!(error("sfr:decay=0KiB").contains("at least 4KiB"));
    assert!(error("sfr:decay=0%").contains("0.1% to 10000% of the volume, for example 100%"));
    assert!(error("multiq:chunk=5%").contains("must be a size"));
    assert!(error("sfr:base=1").contains("from 1.01"));
    assert!(error("sfr:handles").contains("KEY=VALUE"));
    assert!(error("sfr:handles=2,handles=3").contains("twice"));
    assert!(error("sepbit:near=8,far=4").contains("far = 4"));
}
