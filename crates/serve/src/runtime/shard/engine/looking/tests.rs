//! What a look finds, in virtual time on emulated flash whose erases take 2 ms.

use crate::Config;
use crate::offline::{self, Offline};
use crate::runtime::buffer::Buffer;
use crate::runtime::shard::{Finished, Work};
use flash::{MICROSECOND, MILLISECOND, Random, Spent};
use ftl::{Ahead, Waits};

/// Looks begin before a read from an idle unit would have ended.
const OLD_NS: u64 = 20 * MICROSECOND;

/// How long it took, what was asked, and what became of it.
type Played = (u64, Work, Finished);

/// Overwrites all of a device several times, with a read beside each write.
fn overwrite(shard: &mut Offline) -> Vec<Played> {
    let blocks = shard.report().logical_blocks;
    let (read, write) = (Buffer::new(1), Buffer::new(16));
    let mut random = Random::new(3);
    let mut played = Vec::new();
    for _ in 0..4 * blocks / 256 {
        let mut pieces = Vec::new();
        for _ in 0..16 {
            let lba = random.below(u64::from(blocks / 16)) as u32 * 16;
            pieces.push((Work::Write { fua: false, handle: 0, atomic: false }, lba, 16));
            pieces.push((Work::Read, random.below(u64::from(blocks)) as u32, 1));
        }
        let ended = shard.play(&pieces, [&read, &write], OLD_NS);
        played.extend(ended.into_iter().map(|(took_ns, finished)| {
            let (work, ..) = pieces[finished.origin.request as usize];
            (took_ns, work, finished)
        }));
    }
    played
}

fn played(test: &str) -> Vec<Played> {
    let folder = std::env::temp_dir().join(format!("weir-look-{}-{test}", std::process::id()));
    let text = "[device]\nprofile = \"slc\"\ncapacity = \"16MiB\"\nop_percent = 60\nchannels = 2\n\
                shards = 1\nkept_memory = \"off\"\n";
    let config = Config::parse(text, &folder).unwrap();
    offline::format(&config.device, &config.ftl).unwrap();
    let shards = |shards: &mut [Offline]| overwrite(&mut shards[0]);
    let played = offline::with_device(&config.device.kind, &config.ftl, false, shards);
    std::fs::remove_dir_all(&folder).unwrap();
    played.unwrap()
}

/// How long all reads, or all else, waited for what `of` picks.
fn waited(played: &[Played], read: bool, of: impl Fn(Waits) -> bool) -> u64 {
    let mine = played.iter().filter(|(_, work, _)| (*work == Work::Read) == read);
    let parts =
        mine.filter_map(|(.., finished)| finished.waited.as_ref()).flat_map(|it| it.parts());
    parts.filter(|(waits, _)| of(*waits)).map(|(_, ns)| ns).sum()
}

#[test]
fn a_read_behind_an_erase_names_it_and_a_write_without_room_names_gc() {
    let played = played("names");
    let erase = |unit| move |waits| waits == Waits::Unit(unit, Ahead::Erase);
    let by_unit: Vec<u64> = (0..2).map(|unit| waited(&played, true, erase(unit))).collect();
    assert!(by_unit.iter().all(|&ns| ns > 2 * MILLISECOND), "{by_unit:?}");
    let gc = |waits| matches!(waits, Waits::FreeBand | Waits::GcPace);
    assert!(waited(&played, false, gc) > 50 * MILLISECOND);
    assert_eq!(waited(&played, true, gc), 0, "no read waits for room");
    let looked_at = played.iter().filter(|(.., finished)| finished.waited.is_some()).count();
    assert!(looked_at > 100, "{looked_at} of {}", played.len());
}

#[test]
fn what_is_told_of_a_piece_is_all_of_its_time() {
    for (took_ns, work, finished) in played("sums") {
        assert_eq!(finished.result, Ok(()), "{work:?}");
        let Spent { place_ns, queue_ns, medium_ns, safety_ns } = finished.spent.unwrap();
        let spent = [place_ns, queue_ns, medium_ns, safety_ns];
        assert_eq!(spent.iter().sum::<u64>(), took_ns, "{work:?}: {spent:?}");
        if let Some(waited) = finished.waited {
            let parts = waited.parts();
            assert_eq!(
                parts.iter().map(|part| part.1).sum::<u64>(),
                took_ns,
                "{work:?}: {parts:?}"
            );
        }
    }
}

#[test]
fn who_is_not_old_is_not_looked_at() {
    for (took_ns, work, finished) in played("young") {
        assert!(took_ns >= OLD_NS || finished.waited.is_none(), "{work:?} took {took_ns} ns");
    }
}
