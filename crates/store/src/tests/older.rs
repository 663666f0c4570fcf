//! A block of the small volume that is an older copy of itself, as a write that was lost leaves it: it is told, and never
//! read as if nothing had been written since.

use super::model::{Run, read_all};
use super::world::Block;
use super::{BLOCKS, World, bytes, contents, open, reason, seeds, write};
use crate::layout::JOURNAL;
use crate::tail::{PAYLOAD, as_builds_before_wrote, decode};
use crate::{BLOCK_BYTES, Error};
use std::collections::BTreeMap;

/// Copies of the world, each with one block as it was at some time before, or blank; how many there were.
fn with_each_older(
    world: &World,
    versions: &BTreeMap<u64, Vec<Block>>,
    mut check: impl FnMut(&World, &str),
) -> u32 {
    let mut count = 0;
    for (&block, versions) in versions {
        let now = world.block(block);
        let before = [[0; BLOCK_BYTES]].into_iter().chain(versions.iter().copied());
        for (number, before) in before.enumerate().filter(|(_, before)| now != Some(*before)) {
            let older = world.copy();
            older.put(block, before);
            check(&older, &format!("block {block} as its version {number}"));
            count += 1;
        }
    }
    count
}

/// A log or a manifest that a process which was killed had synced piece by piece; `check` sees the world after each.
fn synced_by_pieces(path: &str, mut check: impl FnMut(&World, &BTreeMap<u64, Vec<Block>>, &[u8])) {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    world.keep_versions();
    let mut writer = store.writer(path, false).unwrap();
    let mut whole = Vec::new();
    let to_full = PAYLOAD as u64 - 410;
    for (number, count) in (1..).zip([10, 300, 100, to_full, 1, 5000, 20, 9000, 700]) {
        let piece = bytes(count + number).split_off(number as usize);
        writer.append(&piece).and_then(|()| writer.sync()).unwrap();
        whole.extend(piece);
        world.settle();
        check(&world, &world.versions(), &whole);
    }
    let _killed = std::mem::ManuallyDrop::new(writer);
}

#[test]
fn an_older_copy_of_a_block_of_a_log_or_a_manifest_is_told_and_never_read() {
    for path in ["/1.log", "/MANIFEST-1"] {
        let mut told = 0;
        synced_by_pieces(path, |world, versions, whole| {
            assert!(contents(&open(&world.copy(), 2).unwrap(), path) == whole);
            with_each_older(world, versions, |older, what| {
                match open(older, 2).and_then(|store| read_all(&store, path)) {
                    Ok(found) => assert!(found == whole, "{what}: {} bytes", found.len()),
                    Err(error) => {
                        assert!(matches!(&error, Error::Damaged(_)), "{what}: {error}");
                        told += 1;
                    }
                }
                // What was found by the first opening is what the next one finds.
                let again = open(older, 3).and_then(|store| read_all(&store, path));
                assert!(again.is_err() || again.is_ok_and(|found| found == whole), "{what}");
            });
        });
        assert!(told > 50, "{path}: {told}");
    }
}

#[test]
fn the_last_block_of_a_log_that_is_older_than_its_sync_is_told_by_its_place() {
    synced_by_pieces("/1.log", |world, versions, whole| {
        let last = ((whole.len() - 1) / PAYLOAD) as u32;
        let is_last = |block: &Block| {
            decode(block).is_some_and(|(head, payload)| {
                head.file > JOURNAL + 2 && head.index == last && !payload.is_empty()
            })
        };
        let of_last = |(block, versions): (&u64, &Vec<Block>)| {
            versions.iter().any(is_last).then(|| (*block, versions.clone()))
        };
        let versions = versions.iter().filter_map(of_last).collect();
        with_each_older(world, &versions, |older, what| {
            let store = open(older, 2).unwrap();
            assert_eq!(store.find("/1.log").unwrap().size, whole.len() as u64, "{what}");
            let before = last as usize * PAYLOAD;
            let reader = store.reader("/1.log").unwrap();
            let mut found = vec![0; before];
            assert_eq!(reader.read(0, &mut found), Ok(before), "{what}");
            assert!(found == whole[..before], "{what}");
            let mut rest = vec![0; whole.len() - before];
            let told = reason(reader.read(before as u64, &mut rest));
            assert!(told.contains(&format!("block {last} of small file")), "{what}: {told}");
        });
    });
}

#[test]
fn what_was_synced_of_a_log_is_vouched_for_while_it_goes_on_in_the_next_blocks() {
    for more in [4000, 9000] {
        let world = World::new(1, BLOCKS);
        let store = open(&world, 1).unwrap();
        world.keep_versions();
        let mut writer = store.writer("/1.log", false).unwrap();
        let whole = bytes(1500 + more);
        for piece in whole[..1500].chunks(500) {
            writer.append(piece).and_then(|()| writer.sync()).unwrap();
        }
        // The block that vouched is written over, and no sync follows.
        writer.append(&whole[1500..]).and_then(|()| writer.push()).unwrap();
        let _killed = std::mem::ManuallyDrop::new(writer);
        world.settle();
        with_each_older(&world, &world.versions(), |older, what| {
            match open(older, 2).and_then(|store| read_all(&store, "/1.log")) {
                Ok(found) => {
                    let right = found.len() >= 1500 && whole.starts_with(&found);
                    assert!(right, "{what}: {} bytes", found.len());
                }
                Err(error) => assert!(matches!(&error, Error::Damaged(_)), "{what}: {error}"),
            }
        });
    }
}

#[test]
fn an_older_copy_of_a_block_of_the_journal_is_told_or_costs_nothing() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    world.keep_versions();
    let mut names = Vec::new();
    for count in 0..60 {
        let name = format!("/{count:050}.sst");
        write(&store, &name, name.as_bytes()).unwrap();
        names.push(name);
    }
    drop(store);
    world.settle();
    let mut told = 0;
    let count = with_each_older(&world, &world.versions(), |older, what| match open(older, 9) {
        Ok(store) => {
            names
                .iter()
                .for_each(|name| assert!(contents(&store, name) == name.as_bytes(), "{what}"));
        }
        Err(error) => {
            assert!(error.to_string().contains("the journal of the store is damaged"), "{error}");
            told += 1;
        }
    });
    assert!(told > 100 && told < count, "{told} of {count}");
}

#[test]
fn an_older_copy_of_any_block_is_told_or_is_what_was_synced_whatever_was_done() {
    let worn = [(1, 4620), (2, 4640)];
    for (seed, worn) in (1..=seeds(40)).map(|seed| (seed, 0)).chain(worn) {
        let mut run = Run::new(seed, BLOCKS, 1);
        run.wear(worn);
        run.world().keep_versions();
        for _ in 0..90 {
            run.step().unwrap();
        }
        run.die();
        run.world().settle();
        let (mut count, mut told) = (0, 0);
        with_each_older(run.world(), &run.world().versions(), |older, what| {
            let what = format!("seed={seed} worn={worn}: {what}");
            count += 1;
            told += u32::from(run.is_told_or_right(older, &what));
        });
        assert!(told > 10 && told < count, "seed={seed} worn={worn}: {told} of {count}");
    }
}

#[test]
fn what_the_build_before_left_is_read_and_damage_to_its_last_block_told() {
    synced_by_pieces("/1.log", |world, versions, whole| {
        let before = world.copy();
        for &block in versions.keys() {
            let now = world.block(block).unwrap();
            before.put(block, as_builds_before_wrote(&now).unwrap_or(now));
        }
        assert!(contents(&open(&before.copy(), 2).unwrap(), "/1.log") == whole);
        for &block in versions.keys() {
            let bent = before.copy();
            bent.bend(block, 40);
            match open(&bent, 2).and_then(|store| read_all(&store, "/1.log")) {
                Ok(found) => assert!(found == whole, "block {block} bent"),
                Err(error) => assert!(matches!(&error, Error::Damaged(_)), "{block}: {error}"),
            }
        }
    });
}
