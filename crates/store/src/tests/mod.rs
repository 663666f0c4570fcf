//! The store against a model, with the power cut, the process killed or a step failed, at every step.

mod damage;
mod late;
mod model;
mod older;
mod world;

use crate::path;
use crate::tail::{Head, encode};
use crate::{Entry, Error, Opening, Store, Volume, Wanted};
use model::{Run, contents};
use std::sync::Arc;
use std::time::Duration;
pub use world::{Mishap, World};
use world::{RAW_BYTES, UNITS};

const BLOCKS: u64 = 1024;

fn open(world: &World, nonce: u64) -> Result<Arc<Store>, Error> {
    let how = Opening { new: true, damaged: false };
    opened(world, nonce, how)
}

fn opened(world: &World, nonce: u64, how: Opening) -> Result<Arc<Store>, Error> {
    let (volume, blocks) = (Box::new(world.clone()), Box::new(world.clone()));
    Store::open(volume, blocks, nonce, how).map(|(store, _)| store)
}

/// How the store was before: so many changes in its journal, and so many blocks are put at once.
type Before = (u32, usize);

/// Runs a seed with a mishap at a step; false if it ended before that.
fn mishap_at(seed: u64, step: u64, mishap: Mishap, (worn, at_once): Before) -> bool {
    let context = format!("seed={seed} step={step} {mishap:?} worn={worn} at_once={at_once}");
    let mut run = Run::new(seed, BLOCKS, at_once);
    run.wear(worn);
    run.world().in_steps(step, mishap);
    for _ in 0..120 {
        if run.step().is_err() {
            break;
        }
    }
    // What is on its way arrives, or not.
    run.die();
    let happened = run.world().had_mishap();
    run.world().restart();
    // The next opening is cut off too, some steps on, and then there is one that is not.
    run.world().in_steps(1 + step % 7, mishap);
    if mishap != Mishap::Fail {
        run.open();
        run.die();
    }
    run.world().restart();
    assert!(run.open(), "{context}");
    run.check(mishap, &context);
    for _ in 0..20 {
        run.step().unwrap_or_else(|error| panic!("{context}: it goes on: {error}"));
    }
    run.die();
    run.world().restart();
    assert!(run.open(), "{context}");
    run.check(Mishap::Kill, &context);
    happened
}

/// `STORE_SEEDS` has a release run take more.
fn seeds(least: u64) -> u64 {
    std::env::var("STORE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(least)
}

fn at_every_step(seeds: u64, mishap: Mishap, before: Before) {
    for seed in 1..=seeds {
        let mut step = 1;
        while mishap_at(seed, step, mishap, before) {
            step += 1;
        }
        assert!(step > 50, "seed {seed} has {step} steps");
    }
}

#[test]
fn what_was_synced_is_there_after_a_power_cut_at_any_step() {
    at_every_step(seeds(40), Mishap::Cut, (0, 1));
    at_every_step(seeds(4), Mishap::Cut, (0, 3));
}

#[test]
fn what_was_pushed_is_there_after_a_kill_at_any_step() {
    at_every_step(seeds(40), Mishap::Kill, (0, 1));
    at_every_step(seeds(4), Mishap::Kill, (0, 3));
}

#[test]
fn a_step_that_fails_loses_nothing_that_was_acknowledged() {
    at_every_step(seeds(40), Mishap::Fail, (0, 1));
    at_every_step(seeds(4), Mishap::Fail, (0, 3));
}

#[test]
fn the_last_block_of_a_file_that_is_opened_again_is_not_lost_with_the_record_of_that() {
    // Found by the test above: the record of the new writer was still in the cache when its block was not.
    mishap_at(39, 40, Mishap::Cut, (0, 1));
}

#[test]
fn the_journal_is_begun_anew_with_the_power_cut_at_any_step() {
    // An area holds 4644 pairs of records: it is full some steps on.
    for worn in [4620, 4640] {
        at_every_step(1, Mishap::Cut, (worn, 1));
    }
}

fn write(store: &Arc<Store>, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let mut writer = store.writer(path, false)?;
    writer.append(bytes)?;
    writer.sync()?;
    writer.close()?;
    store.sync_folder(path::parent(path).expect("it is in one"))
}

fn bytes(count: u64) -> Vec<u8> {
    (0..count).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

fn numbers(store: &Store, path: &str) -> Vec<u64> {
    match store.find(path).unwrap().entry {
        Entry::Table(table) => table.numbers,
        other => panic!("{path} is {other:?}"),
    }
}

fn reason(result: Result<impl Sized, Error>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn an_older_copy_of_the_small_volume_is_refused_while_the_units_hold_newer_blocks() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let mut copies = Vec::new();
    for file in 0..5u64 {
        write(&store, &format!("/{file}.sst"), &bytes(RAW_BYTES + file)).unwrap();
        if file > 0 {
            store.delete(&format!("/{}.sst", file - 1)).unwrap();
            store.erase().unwrap();
        }
        world.settle();
        copies.push(world.volume());
    }
    drop(store);
    let last = copies.pop().unwrap();
    let held = world.lock().raw.clone();
    for (file, copy) in copies.into_iter().enumerate() {
        world.set_volume(copy);
        let told = reason(open(&world, 2));
        let foreign = "raw blocks that the files of the store lie in is on these units";
        assert!(told.contains("set back") || told.contains(foreign), "{file}: {told}");
        assert!(world.lock().raw == held, "{file}: nothing is erased");
    }
    world.set_volume(last);
    let store = open(&world, 3).unwrap();
    assert!(contents(&store, "/4.sst") == bytes(RAW_BYTES + 4));
}

#[test]
fn a_table_larger_than_a_raw_block_takes_several_and_they_take_turns_on_the_units() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let long = bytes(3 * RAW_BYTES + 5);
    write(&store, "/1.sst", &long).unwrap();
    assert_eq!(numbers(&store, "/1.sst"), [0, 1, 2, 3]);
    assert!(contents(&store, "/1.sst") == long);
    let reader = store.reader("/1.sst").unwrap();
    for (offset, count) in
        [(0, 10), (4090, 10), (RAW_BYTES - 3, 6), (RAW_BYTES, 4096), (long.len() as u64 - 2, 2)]
    {
        let mut into = vec![0; count];
        assert_eq!(reader.read(offset, &mut into), Ok(count));
        assert!(into == long[offset as usize..][..count], "{offset}");
    }
    assert_eq!(reader.read(long.len() as u64, &mut [0; 9]), Ok(0));
    store.delete("/1.sst").unwrap();
    assert_eq!(world.lock().raw.len(), 4, "not before the delete is durable");
    assert_eq!(store.erase(), Ok(4));
    assert!(world.lock().raw.is_empty());
}

/// What a compaction reads: a get that comes meanwhile waits for a step of it.
#[test]
fn a_large_part_is_read_in_steps_by_who_waits_as_long_as_it_takes_and_at_once_by_others() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let long = bytes(20 * RAW_BYTES + 5);
    write(&store, "/1.sst", &long).unwrap();
    let reader = store.reader("/1.sst").unwrap();
    let read = |patience, offset: usize, count: usize| {
        let reads = world.lock().reads;
        let mut into = vec![0; count];
        let mut wanted = [Wanted::new(offset as u64, &mut into)];
        reader.read_many(&mut wanted, patience);
        let [Wanted { read, .. }] = wanted;
        let there = &long[offset.min(long.len())..][..count.min(long.len().saturating_sub(offset))];
        assert_eq!(read, Ok(there.len()), "{count} from {offset} on");
        assert!(into[..there.len()] == *there, "{count} from {offset} on");
        world.lock().reads - reads
    };
    let patience = Some(Duration::from_secs(9));
    assert_eq!(read(None, 3, 600_000), 3);
    assert_eq!(read(patience, 3, 600_000), 1);
    assert_eq!(read(None, 380_000, 600_000), 2, "the rest of it lies behind the end");
    assert_eq!(read(None, 9, 1000), 1);
    let lost = world.lock().raw.keys().nth(15).copied().unwrap();
    world.lock().raw.remove(&lost);
    assert!(reader.read(0, &mut vec![0; 600_000]).is_err());
}

#[test]
fn many_parts_of_a_table_are_read_at_a_time_and_one_that_fails_leaves_the_others() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let long = bytes(4 * RAW_BYTES + 5);
    write(&store, "/1.sst", &long).unwrap();
    write(&store, "/1.log", &long[..9000]).unwrap();
    let parts =
        [(0, 10), (RAW_BYTES - 7, 5000), (3 * RAW_BYTES + 1, 70_000), (RAW_BYTES, 0), (1 << 40, 9)];
    let read = |path: &str| -> Vec<(Result<usize, Error>, Vec<u8>)> {
        let reader = store.reader(path).unwrap();
        let mut into = parts.map(|(_, count)| vec![0; count]);
        let mut wanted: Vec<Wanted<'_>> = into
            .iter_mut()
            .zip(parts)
            .map(|(into, (offset, _))| Wanted::new(offset, into))
            .collect();
        reader.read_many(&mut wanted, None);
        wanted.into_iter().map(|one| (one.read, one.into.to_vec())).collect()
    };
    for (path, whole) in [("/1.sst", &long[..]), ("/1.log", &long[..9000])] {
        for ((read, into), (offset, count)) in read(path).into_iter().zip(parts) {
            let there = &whole[whole.len().min(offset as usize)..];
            let there = &there[..there.len().min(count)];
            assert_eq!(read, Ok(there.len()), "{path} {offset}");
            assert!(into[..there.len()] == *there, "{path} {offset}");
        }
    }
    let second = *world.lock().raw.keys().nth(1).unwrap();
    world.lock().raw.remove(&second);
    let found: Vec<bool> = read("/1.sst").into_iter().map(|(read, _)| read.is_ok()).collect();
    assert_eq!(found, [true, false, true, true, true]);
}

#[test]
fn numbers_that_are_taken_are_passed_over_and_other_stores_blocks_left_alone() {
    let world = World::new(1, BLOCKS);
    let other = 77 << 64;
    for number in 0..300 {
        world.lock().raw.insert(other | number, vec![9; RAW_BYTES as usize]);
    }
    let store = open(&world, 1).unwrap();
    write(&store, "/1.sst", b"some").unwrap();
    assert_eq!(numbers(&store, "/1.sst"), [300]);
    store.delete("/1.sst").unwrap();
    store.erase().unwrap();
    assert_eq!(world.lock().raw.len(), 300);
    for number in 300..2000 {
        world.lock().raw.insert(other | number, vec![9; RAW_BYTES as usize]);
    }
    assert_eq!(reason(write(&store, "/1.sst", b"some")), "taken");
}

#[test]
fn full_units_are_told_of_and_have_room_again_after_a_delete() {
    let world = World::new(1, BLOCKS);
    world.lock().raw_blocks_max = 2;
    let store = open(&world, 1).unwrap();
    let blocks = u64::from(UNITS) * 2;
    write(&store, "/1.sst", &bytes((blocks - 1) * RAW_BYTES)).unwrap();
    write(&store, "/2.sst", b"some").unwrap();
    assert!(reason(write(&store, "/3.sst", b"more")).contains("every unit is full"));
    assert_eq!(store.find("/3.sst"), Err(Error::NotFound("/3.sst".into())));
    assert!(contents(&store, "/2.sst") == b"some");
    store.delete("/2.sst").unwrap();
    // Nobody erases in the background here: who needs the room does.
    write(&store, "/3.sst", b"more").unwrap();
    assert!(contents(&store, "/3.sst") == b"more");
}

#[test]
fn a_store_is_not_opened_on_another_device_and_nothing_is_erased_there() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    write(&store, "/1.sst", &bytes(3 * RAW_BYTES)).unwrap();
    write(&store, "/1.log", b"some").unwrap();
    drop(store);
    // One that is empty, and one where somebody else has the same numbers.
    for others in [0, 300] {
        let other = world.copy();
        other.lock().raw.clear();
        for number in 0..others {
            other.lock().raw.insert(77 << 64 | number, vec![9; RAW_BYTES as usize]);
        }
        for nonce in 2..4 {
            let refused = open(&other, nonce).map(drop).unwrap_err();
            assert!(matches!(&refused, Error::Foreign(_)), "{refused}");
            assert!(refused.to_string().contains("none of the 3 raw blocks"), "{refused}");
        }
        assert_eq!(other.lock().raw.len() as u128, others);
    }
    // A device that has lost some is the same device all the same: the rest is read, and the file is told.
    let first = *world.lock().raw.keys().next().unwrap();
    world.lock().raw.remove(&first);
    let store = open(&world, 5).unwrap();
    let missing = store.missing();
    assert_eq!((missing.len(), &*missing[0].path, missing[0].id), (1, "/1.sst", first));
    let reader = store.reader("/1.sst").unwrap();
    assert!(reader.read(0, &mut [0; 9]).is_err());
    assert_eq!(reader.read(RAW_BYTES, &mut [0; 9]), Ok(9));
    assert!(contents(&store, "/1.log") == b"some");
}

#[test]
fn nothing_is_erased_before_the_engine_found_what_it_needs_nor_while_blocks_are_missing() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    store.create_folder("/db").unwrap();
    write(&store, "/db/1.sst", b"one").unwrap();
    write(&store, "/db/2.sst", b"two").unwrap();
    drop(store);
    // A table that never became a file.
    let orphaned = || {
        let store = open(&world, 2).unwrap();
        let mut writer = store.writer("/db/3.sst", false).unwrap();
        writer.append(&bytes(RAW_BYTES)).unwrap();
        let _never_dropped = std::mem::ManuallyDrop::new(writer);
    };
    orphaned();
    let held = world.lock().raw.len();
    assert_eq!(held, 3);
    let store = open(&world, 3).unwrap();
    assert_eq!(store.erase(), Ok(0), "a reader found nothing yet");
    write(&store, "/db/CURRENT.tmp", b"1").unwrap();
    store.rename("/db/CURRENT.tmp", "/db/CURRENT").unwrap();
    assert_eq!(store.erase(), Ok(1), "the engine is open");
    drop(store);
    orphaned();
    let first = *world.lock().raw.keys().next().unwrap();
    let block = world.lock().raw.remove(&first).unwrap();
    let store = open(&world, 4).unwrap();
    write(&store, "/db/CURRENT.tmp", b"2").unwrap();
    store.rename("/db/CURRENT.tmp", "/db/CURRENT").unwrap();
    assert_eq!(store.erase(), Ok(0), "it may be an older copy");
    drop(store);
    // To read what is left, nothing at all is changed.
    let left = Opening { new: false, damaged: true };
    let store = opened(&world, 5, left).unwrap();
    assert!(contents(&store, "/db/2.sst") == b"two" && contents(&store, "/db/CURRENT") == b"2");
    assert!(reason(store.delete("/db/2.sst")).contains("--damaged"));
    assert!(reason(write(&store, "/db/9.sst", b"new")).contains("--damaged"));
    assert!(store.erase().is_err());
    drop(store);
    world.lock().raw.insert(first, block);
    let store = open(&world, 6).unwrap();
    assert!(store.missing().is_empty() && contents(&store, "/db/1.sst") == b"one");
}

#[test]
fn an_empty_volume_beside_blocks_of_others_is_taken_only_if_that_is_meant() {
    let world = World::new(1, BLOCKS);
    for id in [7 << 64, 7 << 64 | 1, 9 << 64 | 2] {
        world.lock().raw.insert(id, vec![9; RAW_BYTES as usize]);
    }
    let told = reason(opened(&world, 1, Opening::default()));
    assert!(told.contains("hold 3 raw blocks, of 2 owners") && told.contains("--new"), "{told}");
    drop(opened(&world, 2, Opening { new: true, damaged: false }).unwrap());
    assert!(opened(&world, 3, Opening::default()).is_ok(), "it is there now");
    assert!(opened(&World::new(1, BLOCKS), 1, Opening::default()).is_ok(), "fresh units");
}

#[test]
fn a_full_small_volume_is_told_of_and_has_room_again_after_a_delete() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    write(&store, "/1.log", &bytes(1 << 20)).unwrap();
    let mut writer = store.writer("/2.log", false).unwrap();
    let mut refused = None;
    for _ in 0..64 {
        if let Err(error) = writer.append(&bytes(64 << 10)) {
            refused = Some(error.to_string());
            break;
        }
    }
    assert!(refused.expect("4 MiB are not endless").contains("small volume of the store is full"));
    store.delete("/1.log").unwrap();
    writer.append(&bytes(64 << 10)).unwrap();
    writer.sync().unwrap();
}

#[test]
fn a_journal_full_of_names_refuses_more_and_takes_deletes() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let path = |number: u32| format!("/{number}{}", "a".repeat(900));
    let made = (0..1000).find(|&number| store.create_folder(&path(number)).is_err()).unwrap();
    assert!(made > 100, "{made}");
    assert!(reason(store.create_folder(&path(made))).contains("journal of the store is full"));
    for number in 0..made {
        store.delete_folder(&path(number)).unwrap();
    }
    store.create_folder(&path(made)).unwrap();
    store.sync().unwrap();
    drop(store);
    let store = open(&world, 2).unwrap();
    assert_eq!(store.children("/").unwrap().len(), 1);
}

#[test]
fn who_opens_a_store_fences_off_whoever_had_it() {
    let world = World::new(1, BLOCKS);
    let old = open(&world, 1).unwrap();
    write(&old, "/1.log", b"old").unwrap();
    let mut writer = old.writer("/2.log", false).unwrap();
    let new = open(&world, 2).unwrap();
    writer.append(b"lost").unwrap();
    assert!(reason(writer.sync()).contains("another process has taken the store"));
    assert!(matches!(old.create_folder("/a"), Err(Error::Owned(_))));
    assert!(contents(&new, "/1.log") == b"old");
    write(&new, "/1.log", b"new").unwrap();
    drop((writer, old));
    assert!(contents(&open(&world, 3).unwrap(), "/1.log") == b"new");
}

#[test]
fn what_is_no_store_or_not_this_one_is_refused_and_left_alone() {
    let world = World::new(1, BLOCKS);
    world.bend(0, 5);
    assert!(reason(open(&world, 1)).contains("is no store's"));
    assert!(reason(open(&World::new(1, 100), 1)).contains("needs 4096 KiB"));

    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    write(&store, "/1.sst", b"some").unwrap();
    drop(store);
    world.settle();
    // The journal is gone, and with it what the block on the units is for.
    let area = BLOCKS / 64;
    for block in 2..2 + 2 * area.max(64) {
        world.bend(block, 0);
    }
    assert!(reason(open(&world, 2)).contains("nothing is erased"));
    assert_eq!(world.lock().raw.len(), 1);
}

#[test]
fn a_block_that_changed_on_the_volume_is_told_and_never_read() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    write(&store, "/1.log", &bytes(20_000)).unwrap();
    store.sync().unwrap();
    world.settle();
    let chunks = 2 + 2 * 64;
    world.bend(chunks + 1, 99);
    let reader = store.reader("/1.log").unwrap();
    assert_eq!(reader.read(0, &mut [0; 100]), Ok(100));
    assert!(reason(reader.read(5000, &mut [0; 100])).contains("not what was written there"));
}

#[test]
fn names_are_those_of_files_and_folders_that_are_there() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    assert!(matches!(store.reader("/x"), Err(Error::NotFound(_))));
    assert!(matches!(store.writer("/no/1.log", false), Err(Error::NotFound(_))));
    store.create_folder("/db/deep").unwrap();
    for refused in [
        reason(store.reader("/db")),
        reason(store.writer("/db", false)),
        reason(store.delete("/db")),
        reason(store.delete_folder("/db")),
        reason(store.rename("/db", "/db/deep/er")),
        reason(store.create_folder("/../x")),
    ] {
        assert!(refused.starts_with('/'), "it says which: {refused}");
    }
    write(&store, "/db/1.log", b"a").unwrap();
    write(&store, "/db/1.sst", b"b").unwrap();
    assert!(reason(store.rename("/db/1.sst", "/db/2.log")).contains("small volume"));
    assert!(reason(store.writer("/db/1.sst", true)).contains("written once"));
    assert!(reason(store.truncate("/db/1.sst", 0)).contains("written once"));
    store.truncate("/db/1.log", 0).unwrap();
    assert_eq!(store.find("/db/1.log").unwrap().size, 0);
    store.rename("/db", "/other").unwrap();
    assert_eq!(store.children("/other").unwrap(), ["1.log", "1.sst", "deep"]);
}

#[test]
fn a_table_that_got_another_name_while_it_is_written_is_not_written_on() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let mut writer = store.writer("/1.sst", false).unwrap();
    writer.append(b"some").unwrap();
    writer.sync().unwrap();
    writer.append(b" more").unwrap();
    writer.sync().unwrap();
    assert!(contents(&store, "/1.sst") == b"some more");
    store.rename("/1.sst", "/2.sst").unwrap();
    writer.append(b" of it").unwrap();
    assert!(writer.sync().is_err());
    drop(writer);
    store.erase().unwrap();
    assert!(contents(&store, "/2.sst") == b"some more");
    assert_eq!(world.lock().raw.len(), 1, "the block that was half full is erased");
}

#[test]
fn a_table_whose_blocks_are_put_side_by_side_is_whole_or_none() {
    for failing in 0..14 {
        let world = World::new(1, BLOCKS);
        world.lock().puts_at_once = 3;
        let store = open(&world, 1).unwrap();
        write(&store, "/1.sst", b"some").unwrap();
        let long = bytes(12 * RAW_BYTES + 5);
        if failing > 0 {
            world.in_steps(failing, Mishap::Fail);
        }
        let written = write(&store, "/2.sst", &long);
        assert_eq!(written.is_ok(), failing == 0, "{failing}: {written:?}");
        if failing == 0 {
            assert!(contents(&store, "/2.sst") == long);
            store.delete("/2.sst").unwrap();
        }
        // What failed may have been a number that was to be made durable: then the store stops.
        let stopped = store.sync().is_err();
        let store = if stopped { open(&world, 2).unwrap() } else { store };
        store.settle(&mut store.catalog());
        store.erase().unwrap();
        assert!(contents(&store, "/1.sst") == b"some");
        assert_eq!(world.lock().raw.len(), 1, "{failing}: nothing is left of it");
    }
}

#[test]
fn what_only_a_forger_writes_is_refused_or_served_and_never_a_panic() {
    let lines = [
        r#"{"seal":{"file":7,"size":18446744073709551615}}"#,
        r#"{"reopen":{"file":7,"size":18446744073709551615,"stamp":1}}"#,
        r#"{"extend":{"file":7,"chunks":[4294967295]}}"#,
        r#"{"extend":{"file":7,"chunks":[0,0]}}"#,
        r#"{"extend":{"file":8,"chunks":[]}}"#,
        r#"{"reserve":{"number":18446744073709551615}}"#,
        r#"{"table":{"path":"/1.sst","size":18446744073709551615,"numbers":[],"modified":0}}"#,
        r#"{"rename":{"from":"/x","to":"/y"}}"#,
        r#"{"delete":{"path":"/x"}}"#,
        "[]",
    ];
    for line in lines {
        let world = World::new(1, BLOCKS);
        drop(open(&world, 1).unwrap());
        let small = r#"{"small":{"path":"/a","file":7,"stamp":1,"modified":0}}"#;
        let text = format!("{{\"whole\":{{}}}}\n{small}\n{line}\n");
        let head = Head::new(0, 9 << 32, 0);
        world.clone().write(2, &encode(head, text.as_bytes())).unwrap();
        let Ok(store) = open(&world, 2) else { continue };
        for path in ["/a", "/1.sst"] {
            if let Ok(reader) = store.reader(path) {
                for offset in [0, 1 << 40, u64::MAX - 9] {
                    reader.read(offset, &mut [0; 9]).ok();
                }
            }
        }
        store.writer("/a", true).and_then(|mut writer| writer.append(b"more")).ok();
        write(&store, "/2.sst", b"some").ok();
    }
    for label in [r#""area_blocks":18446744073709551615"#, r#""area_blocks":0"#, r#""version":3"#] {
        let world = World::new(1, BLOCKS);
        let key = label.split(':').next().unwrap();
        let rest =
            [r#""version":1"#, r#""area_blocks":64"#].into_iter().find(|it| !it.starts_with(key));
        let text = format!(
            r#"{{{label},{},"key":5,"block_bytes":{RAW_BYTES},"volume_blocks":{BLOCKS}}}"#,
            rest.unwrap()
        );
        let head = Head::new(1, 0, 0);
        world.clone().write(0, &encode(head, text.as_bytes())).unwrap();
        assert!(open(&world, 1).is_err(), "{label}");
    }
}
