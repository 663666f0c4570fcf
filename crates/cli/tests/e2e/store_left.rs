//! What `weir store serve --damaged` makes of a store in which something is not what was written: an SST that cannot be
//! opened or is another's, a log, an older small volume, units that have nothing. With `sure` no answer is older than what was
//! written last, whatever the damage; with `older` all that can be read is read.

use crate::nbd::Client;
use crate::rocksdb::Both;
use crate::store::Served;
use crate::tools::{pattern, run, said};
use client::store::Range;
use client::{Blocks, Error, Store};
use std::path::{Path, PathBuf};

const KEYS: u64 = 200;
/// What is put last, and lies in the log alone.
const NEEDLE: &[u8] = b"what is put last, and lies in the log";

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

fn value(number: u64, round: u64) -> Vec<u8> {
    pattern(number * 10 + round, 40_000)
}

fn blocks(both: &Both) -> Blocks {
    let control = Path::new(&both.places()[0]).join("control.sock");
    Blocks::open(control.as_path()).expect("it answers")
}

/// All of a block is `bytes` from now on.
fn replace(both: &Both, id: u128, bytes: &[u8]) {
    let blocks = blocks(both);
    blocks.delete(id).expect("it is there");
    blocks.put(id, bytes).expect("there is room");
}

fn bytes_of(both: &Both, id: u128) -> Vec<u8> {
    let blocks = blocks(both);
    let mut bytes = vec![0; blocks.block_bytes() as usize];
    blocks.get(id, 0, &mut bytes).expect("it is there");
    bytes
}

/// A store whose keys were all put and compacted twice, some a third time, and a tenth deleted, which the log has alone.
fn filled(both: &Both) -> Vec<u128> {
    let served = Served::start(both, "st", &["--slices", "2"]);
    let store = served.client();
    for round in 0..2 {
        (0..KEYS).for_each(|n| store.put(&key(n), &value(n, round)).expect("a put"));
        served.run(&["compact"]);
    }
    (0..KEYS).step_by(10).for_each(|n| store.put(&key(n), NEEDLE).expect("a put"));
    (5..KEYS).step_by(10).for_each(|n| store.delete(&key(n)).expect("a deletion"));
    served.stop();
    let mut ids: Vec<u128> =
        blocks(both).list().expect("a list").iter().map(|block| block.id).collect();
    ids.sort_unstable();
    ids
}

/// What a key had last.
fn last(n: u64) -> Option<Vec<u8>> {
    match n % 10 {
        0 => Some(NEEDLE.to_vec()),
        5 => None,
        _ => Some(value(n, 1)),
    }
}

/// The keys of all ranges, in their order; each has what was written last.
fn ranged(store: &Store) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut from = Some(Vec::new());
    while let Some(first) = from {
        let range = Range { from: Some(&first), ..Range::default() };
        let (pairs, next) = store.scan(&range).expect("what is missing is left out");
        for (found, bytes) in pairs {
            let number = (0..KEYS).find(|&n| key(n) == found).expect("a key that was put");
            assert!(Some(bytes) == last(number), "{number} in a range");
            numbers.push(number);
        }
        from = next;
    }
    numbers
}

/// How many keys are refused as damaged; every answer is what was written last, of a range too.
fn refused(store: &Store) -> u64 {
    ranged(store);
    let mut refused = 0;
    for n in 0..KEYS {
        match store.get(&key(n)) {
            Ok(found) => assert!(found == last(n), "{n}"),
            Err(Error::Refused { code: 500, .. }) => refused += 1,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    refused
}

fn start(both: &Both, args: &[&str]) -> Result<Served, String> {
    Served::try_start(both, both.scratch().path().join("st"), args)
}

/// `serve` refuses and names the mend; with `--damaged` it has the rest.
fn is_read_as_far_as_it_goes(both: &Both, what: &str) {
    let told = start(both, &[]).map(drop).unwrap_err();
    assert!(told.contains("--damaged") && told.contains(".sst"), "{what}: {told}");
    let served = start(both, &["--damaged"]).unwrap_or_else(|told| panic!("{what}: {told}"));
    let missing = refused(&served.client());
    assert!((1..150).contains(&missing), "{what}: {missing}");
    let status = served.run(&["status"]);
    assert!(status.contains("MISSING"), "{what}: {status}");
    assert_eq!(served.weir(&["scrub"]).status.code(), Some(1), "{what}");
    served.stop();
}

#[test]
fn an_sst_that_cannot_be_opened_or_is_anothers_is_missing_and_the_rest_is_read() {
    let both = Both::start("storesst", "256MiB");
    let ids = filled(&both);
    // Of a compaction of all keys, which lie in several.
    let (one, other) = (ids[ids.len() - 2], ids[ids.len() - 1]);
    let (sound, others) = (bytes_of(&both, one), bytes_of(&both, other));
    replace(&both, one, &vec![0; sound.len()]);
    is_read_as_far_as_it_goes(&both, "zeroes");
    replace(&both, one, &others);
    is_read_as_far_as_it_goes(&both, "what another one holds");
    // Its last bytes, with which it begins to be read.
    let footer = sound.iter().rposition(|&byte| byte != 0).expect("it is not empty");
    let mut damaged = sound.clone();
    damaged[footer - 60..=footer].fill(7);
    replace(&both, one, &damaged);
    is_read_as_far_as_it_goes(&both, "a footer");
    replace(&both, one, &sound);
    let served = start(&both, &[]).expect("it is whole again");
    assert_eq!(refused(&served.client()), 0);
    served.stop();
}

#[test]
fn units_that_have_nothing_of_a_store_leave_what_its_log_has() {
    let both = Both::start("storenone", "256MiB");
    for id in filled(&both) {
        blocks(&both).delete(id).expect("it is there");
    }
    let told = start(&both, &[]).map(drop).unwrap_err();
    assert!(told.contains("is on these units"), "{told}");
    let served = start(&both, &["--damaged"]).expect("what is left");
    // Of a deletion in the log it is not known what it deleted.
    assert_eq!(refused(&served.client()), KEYS / 10 * 9);
    served.stop();
}

fn copy(from: &Path, to: &Path) {
    run("rm", &["-rf", to.to_str().expect("UTF-8")]);
    let [from, to] = [from, to].map(|path| path.to_str().expect("UTF-8"));
    run("cp", &["-a", "--sparse=always", from, to]);
}

#[test]
fn of_an_older_small_volume_nothing_is_sure_and_what_may_be_older_is_had_by_who_asks_for_it() {
    let mut both = Both::start("storeolder", "256MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    (0..KEYS).for_each(|n| served.client().put(&key(n), &value(n, 0)).expect("a put"));
    served.stop();
    both.stop(1);
    let small = PathBuf::from(&both.places()[1]);
    let older = small.with_extension("older");
    copy(&small, &older);
    both.start_again();
    let served = Served::start(&both, "st", &[]);
    (0..KEYS / 2).for_each(|n| served.client().put(&key(n), &value(n, 1)).expect("a put"));
    (KEYS / 2..KEYS).for_each(|n| served.client().delete(&key(n)).expect("a deletion"));
    served.run(&["compact"]);
    served.stop();
    both.stop(1);
    copy(&older, &small);
    both.start_again();
    for args in [&[][..], &["--damaged"]] {
        let told = start(&both, args).map(drop).unwrap_err();
        assert!(told.contains("was set back"), "{told}");
    }
    let served = start(&both, &["--damaged=older"]).expect("what may be older");
    let found = (0..KEYS).filter(|&n| match served.client().get(&key(n)) {
        Ok(found) => found == Some(value(n, 0)),
        Err(error) => panic!("{n}: {error}"),
    });
    let found = found.count();
    assert!(found > 0, "the log of that day has some");
    served.stop();
}

/// The small volume, and where the block begins in which `needle` is found first.
fn log_block(both: &Both, needle: &[u8]) -> (Client, u64) {
    let socket = Path::new(&both.places()[1]).join("nbd.sock");
    let mut volume = Client::connect(&socket, "default").expect("it answers");
    for at in (0..256).map(|mib: u64| mib << 20) {
        let Ok(bytes) = volume.try_read(at, 1 << 20) else { break };
        let found = bytes.windows(needle.len()).position(|part| part == needle);
        if let Some(found) = found {
            return (volume, at + found as u64 / 4096 * 4096);
        }
    }
    panic!("no put was found on the volume");
}

/// Overwrites that block.
fn damage_log(both: &Both, needle: &[u8]) {
    let (mut volume, at) = log_block(both, needle);
    volume.write(at, &[0x5a; 4096]);
    volume.flush();
}

#[test]
fn a_put_that_was_answered_last_before_a_kill_and_is_damaged_is_told_and_not_gone() {
    let both = Both::start("storelast", "256MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    let store = served.client();
    for n in 0..20 {
        let what_is_put: &[u8] = if n == 19 { NEEDLE } else { b"what was put before" };
        store.put(&key(n), what_is_put).expect("a put");
    }
    // Killed.
    drop(served);
    damage_log(&both, NEEDLE);
    for args in [&[][..], &["--damaged"]] {
        let told = start(&both, args).map(drop).unwrap_err();
        assert!(told.contains(".log") && told.contains("--damaged"), "{told}");
    }
    start(&both, &["--damaged=older"]).expect("what is left").stop();
}

#[test]
fn an_older_copy_of_the_block_that_was_written_last_is_told_and_not_taken_for_the_end() {
    let both = Both::start("storeprior", "256MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    let store = served.client();
    for n in 0..10 {
        store.put(&key(n), if n == 9 { NEEDLE } else { b"before" }).expect("a put");
    }
    let (mut volume, at) = log_block(&both, NEEDLE);
    let older = volume.read(at, 4096);
    for n in 10..20 {
        store.put(&key(n), b"behind").expect("a put");
    }
    // Killed.
    drop(served);
    assert!(volume.read(at, 4096) != older, "the same block has them");
    volume.write(at, &older);
    volume.flush();
    for args in [&[][..], &["--damaged"]] {
        let told = start(&both, args).map(drop).unwrap_err();
        assert!(told.contains(".log") && told.contains("--damaged"), "{told}");
    }
    let served = start(&both, &["--damaged=older"]).expect("what is left");
    assert_eq!(served.client().get(&key(9)).expect("an answer").as_deref(), Some(NEEDLE));
    assert!(served.run(&["status"]).contains("MISSING"), "it is told");
    served.stop();
}

#[test]
fn a_dump_of_what_is_left_goes_on_behind_each_damaged_part_of_an_sst() {
    let both = Both::start("storetorn", "256MiB");
    let ids = filled(&both);
    let mut lost = Vec::new();
    for &id in &ids {
        let mut bytes = bytes_of(&both, id);
        // In the first SST of a compaction some keys, in others one.
        let wanted = if lost.is_empty() { 3 } else { 1 };
        let is_in = |n: &u64| lies_at(&bytes, &value(*n, 1)).is_some();
        let there: Vec<u64> = (0..KEYS).filter(is_in).collect();
        for &n in there.iter().skip(5).step_by(11).take(wanted) {
            let at = lies_at(&bytes, &value(n, 1)).expect("it is there");
            bytes[at + 20_000] ^= 0x10;
            lost.push(n);
        }
        replace(&both, id, &bytes);
    }
    assert!(lost.len() > 3, "{lost:?}");
    let served = start(&both, &[]).expect("what is damaged within is met later");
    assert_eq!(served.weir(&["dump"]).status.code(), Some(2), "not half a dump without a word");
    served.stop();
    let served = start(&both, &["--damaged"]).expect("what is left");
    let store = served.client();
    let found = ranged(&store);
    assert!(found.is_sorted());
    // What was put last lies in none of them.
    assert!((0..KEYS).step_by(10).all(|n| found.contains(&n)), "{found:?}");
    let missing = (0..KEYS).filter(|n| last(*n).is_some() && !found.contains(n)).count();
    // With each the one behind it, and it is read by its name.
    assert!((lost.len() / 2..=2 * lost.len()).contains(&missing), "{missing} {lost:?}");
    let refused = (0..KEYS).filter(|n| store.get(&key(*n)).is_err()).count();
    assert!((1..=lost.len()).contains(&refused), "{refused} {lost:?}");
    let dump = served.weir(&["dump"]);
    assert_eq!(dump.status.code(), Some(1), "{}", said(&dump));
    assert!(said(&dump).contains("MISSING: slice"), "{}", said(&dump));
    served.stop();
}

/// Where these bytes begin in others.
fn lies_at(all: &[u8], bytes: &[u8]) -> Option<usize> {
    all.windows(32).position(|part| part == &bytes[..32])
}

#[test]
fn of_a_damaged_log_the_rest_is_read_by_who_takes_what_may_be_older() {
    let both = Both::start("storelog", "256MiB");
    filled(&both);
    // Where the first of the last puts lies.
    damage_log(&both, NEEDLE);
    for args in [&[][..], &["--damaged"]] {
        let told = start(&both, args).map(drop).unwrap_err();
        assert!(told.contains(".log") && told.contains("--damaged"), "{told}");
    }
    let served = start(&both, &["--damaged=older"]).expect("what is left");
    let store = served.client();
    for n in 0..KEYS {
        let found = store.get(&key(n)).expect("an answer");
        assert!(found == last(n) || found == Some(value(n, 1)), "{n}");
    }
    let status = served.run(&["status"]);
    assert!(status.contains("MISSING") && status.contains(".log, a log"), "{status}");
    let dump = served.weir(&["dump"]);
    assert_eq!(dump.status.code(), Some(1), "{}", said(&dump));
    served.stop();
}
