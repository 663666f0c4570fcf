//! What befalls the two servers under a store: raw blocks that are gone, units that stop answering, volumes and units of other
//! stores. Nothing is erased before the store is known to be whole, and who needs no unit never waits for one.

use crate::rocksdb::Both;
use crate::store::Served;
use crate::tools::{pattern, said};
use client::store::Cell;
use client::{Error, Store};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

fn blocks(both: &Both) -> client::Blocks {
    let control = Path::new(&both.places()[0]).join("control.sock");
    client::Blocks::open(control.as_path()).expect("it answers")
}

fn ids(both: &Both) -> Vec<u128> {
    let mut ids: Vec<u128> =
        blocks(both).list().expect("a list").iter().map(|block| block.id).collect();
    ids.sort_unstable();
    ids
}

/// The value of a key before some were put anew.
fn old(number: u64) -> Vec<u8> {
    pattern(number, 60_000)
}

/// Of how many keys it is told that a raw block is missing, and how many are what was written last: no other answer may be.
fn told_or_right(store: &Store, block: &str) -> (u64, u64) {
    let (mut told, mut right) = (0, 0);
    for number in 0..300 {
        let expected = match number % 10 {
            0 => Some(b"newer".to_vec()),
            5 => None,
            _ => Some(old(number)),
        };
        match store.get(&key(number)) {
            Ok(found) => {
                assert!(found == expected, "{number}");
                right += 1;
            }
            Err(Error::Refused { code: 500, message }) => {
                assert!(message.contains(block), "{number}: {message}");
                assert!(number % 10 != 0, "{number}: it is newer than what is missing");
                told += 1;
            }
            Err(error) => panic!("{number}: {error}"),
        }
    }
    (told, right)
}

#[test]
fn a_store_that_misses_a_raw_block_is_read_as_far_as_it_goes_and_nothing_of_it_is_erased() {
    let mut both = Both::start("storeleft", "256MiB");
    let served = Served::start(&both, "st", &["--slices", "2"]);
    let store = served.client();
    (0..300).for_each(|number| store.put(&key(number), &old(number)).expect("a put"));
    store.put_cell(&Cell::new("t", "r", "f", "c"), b"cell").expect("a put");
    let file = pattern(7, 5 * MIB);
    store.put_file("a/file", &mut &file[..], file.len() as u64).expect("a file");
    served.run(&["compact"]);
    // Some are newer than all SSTs, and some are deleted.
    (0..300).step_by(10).for_each(|at| store.put(&key(at), b"newer").expect("a put"));
    (5..300).step_by(10).for_each(|at| store.delete(&key(at)).expect("a deletion"));
    served.stop();
    // What a crash leaves is no file's: it has to stay too. The newest is some SST's.
    let has_values = |&id: &u128| {
        let mut head = [0; 8 << 10];
        blocks(&both).get(id, 0, &mut head).expect("its first bytes");
        head.windows(4).any(|bytes| bytes == b"key-")
    };
    let lost = ids(&both).into_iter().rev().find(has_values).expect("an SST of values");
    blocks(&both).delete(lost).expect("it is there");
    let held = ids(&both);

    let data = both.scratch().path().join("st");
    let refused = Served::try_start(&both, data.clone(), &[]).map(drop).unwrap_err();
    let block = format!("raw block {lost:032x} is not on the units");
    assert!(refused.contains(&block) && refused.contains("--damaged"), "{refused}");
    assert!(refused.contains("1 files of the store miss") && refused.contains(".sst"), "{refused}");
    assert_eq!(ids(&both), held, "nothing is erased");

    let served = Served::start(&both, "st", &["--damaged"]);
    let store = served.client();
    let (told, right) = told_or_right(&store, &block);
    assert!(told > 5 && right > 150, "{told} are told of, {right} are right");
    let Err(Error::Refused { code: 503, message }) = store.put(b"k", b"v") else { panic!("a put") };
    assert!(message.contains("--damaged"), "{message}");
    let status = served.run(&["status"]);
    assert!(status.contains("MISSING") && status.contains("key key-0"), "{status}");
    let scrub = served.weir(&["scrub"]);
    assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
    let dump = served.weir(&["dump"]);
    let told = String::from_utf8_lossy(&dump.stderr);
    assert!(dump.status.code() == Some(1) && told.contains("MISSING: slice"), "{told}");
    let left = data.join("left.dump");
    fs::write(&left, &dump.stdout).expect("a dump");
    served.stop();
    assert_eq!(ids(&both), held, "nothing is erased");
    // What may be older is had by who asks for it.
    let served = Served::start(&both, "st", &["--damaged=older"]);
    let found = (0..300).filter(|&number| served.client().get(&key(number)).is_ok()).count();
    assert_eq!(found, 300);
    served.stop();
    assert_eq!(ids(&both), held, "nothing is erased");
    // A dump of what is left is loaded into another store.
    let other = Both::start("storeleft2", "256MiB");
    let loaded = Served::start(&other, "st", &[]);
    loaded.run(&["load", left.to_str().expect("UTF-8")]);
    assert_eq!(loaded.client().get(&key(10)).expect("an answer"), Some(b"newer".to_vec()));
    loaded.stop();
    both.stop(0);
    both.start_again();
}

#[test]
fn a_raw_block_that_goes_while_a_store_runs_is_damage_of_its_sst_and_other_keys_are_read() {
    let both = Both::start("storegone", "128MiB");
    let served = Served::start(&both, "st", &["--slices", "1", "--cache", "1MiB"]);
    let store = served.client();
    (0..200).for_each(|number| store.put(&key(number), &old(number)).expect("a put"));
    served.run(&["compact"]);
    let lost = ids(&both)[1];
    blocks(&both).delete(lost).expect("it is there");
    let (mut told, mut right) = (0, 0);
    for number in 0..200 {
        match store.get(&key(number)) {
            Ok(found) => {
                assert!(found == Some(old(number)), "{number}");
                right += 1;
            }
            Err(Error::Refused { code: 500, message }) => {
                let names = message.contains(".sst") && message.contains(&format!("{lost:032x}"));
                assert!(names && message.contains("Corruption"), "{number}: {message}");
                told += 1;
            }
            Err(error) => panic!("{number}: {error}"),
        }
    }
    assert!(told > 5 && right > 100, "{told} are told of, {right} are right");
    let scrub = served.weir(&["scrub"]);
    let found = said(&scrub);
    assert!(!scrub.status.success(), "{found}");
    assert!(found.contains("DAMAGED: slice 0: ") && found.contains("to key key-"), "{found}");
    // What is put is taken meanwhile.
    store.put(&key(0), b"newer").expect("a put");
    assert_eq!(store.get(&key(0)).expect("an answer").as_deref(), Some(&b"newer"[..]));
    served.stop();
}

#[test]
fn units_that_are_stopped_are_told_within_the_time_that_was_given_and_hold_up_nobody_else() {
    let both = Both::start("storestop", "128MiB");
    let served =
        Served::start(&both, "st", &["--slices", "1", "--cache", "1MiB", "--read-time", "1s"]);
    let store = served.client();
    (0..120).for_each(|number| store.put(&key(number), &pattern(number, 50_000)).expect("a put"));
    served.run(&["compact"]);
    both.signal_units(libc::SIGSTOP);
    let socket = served.data.join("control.sock");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..100)
            .map(|reader| {
                let store = served.client();
                scope.spawn(move || {
                    let begun = Instant::now();
                    let result = store.get(&key(reader % 120));
                    (result, begun.elapsed())
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        for round in 0..5_u8 {
            store.put(b"warm", &[round]).expect("memory takes it");
            assert_eq!(store.get(b"warm").expect("it is in memory"), Some(vec![round]));
            let metrics = client::http::get(&client::Place::from(socket.as_path()), "/metrics");
            assert!(metrics.expect("an answer").contains("weir_store_units_answer"));
            store.status().expect("an answer");
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let mut refused = 0;
        for reader in readers {
            let (result, took) = reader.join().expect("it does not panic");
            assert!(took < Duration::from_secs(15), "{took:?}");
            match result {
                // Some were in the cache.
                Ok(_) => {}
                Err(Error::Refused { code: 503, message }) => {
                    assert!(message.contains("the units do not answer"), "{message}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 50, "{refused}");
    });
    both.signal_units(libc::SIGCONT);
    let begun = Instant::now();
    while store.get(&key(3)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "{}", served.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    for number in 0..120 {
        let found = store.get(&key(number)).expect("an answer");
        assert!(found == Some(pattern(number, 50_000)), "{number}");
    }
    served.stop();
}

/// Just opened, it has neither indexes nor filters of its SSTs in memory: these are read within the same time.
#[test]
fn a_store_that_was_started_again_waits_no_longer_for_units_that_are_stopped() {
    let both = Both::start("storecold", "128MiB");
    let args = ["--slices", "2", "--cache", "1MiB", "--read-time", "2s"];
    let served = Served::start(&both, "st", &args);
    let store = served.client();
    (0..120).for_each(|number| store.put(&key(number), &pattern(number, 50_000)).expect("a put"));
    served.run(&["compact"]);
    served.stop();
    let served = Served::start(&both, "st", &args);
    both.signal_units(libc::SIGSTOP);
    let (store, begun) = (served.client(), Instant::now());
    let refused = |result: Result<(), Error>| match result {
        Err(Error::Refused { code: 503, message }) => {
            assert!(message.contains("the units do not answer"), "{message}");
        }
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("it was read of units that are stopped"),
    };
    refused(store.get(&key(3)).map(drop));
    refused(store.scan(&client::store::Range::default()).map(drop));
    refused(store.get_all(&[&key(4)[..], &key(90)[..]]).map(drop));
    // The store's own bound is 120 s a read.
    let took = begun.elapsed();
    both.signal_units(libc::SIGCONT);
    assert!(took < PATIENCE, "{took:?}");
    served.stop();
}

/// Two memtables fill while no unit takes their tables: a new log is begun for each, and nobody waits for a table to be put.
/// What comes when there is no memory left for more waits, and nothing else waits with it.
#[test]
fn puts_wait_for_no_table_on_its_way_until_memory_is_full_and_then_only_puts_wait() {
    let both = Both::start("storeroll", "128MiB");
    let served = Served::start(&both, "sr", &["--slices", "1"]);
    let store = served.client();
    let status = store.status().expect("an answer");
    let block = status["room"]["raw_block_bytes"].as_u64().expect("a number") as usize;
    let value = |number: u64| pattern(number, block / 16);
    let socket = served.data.join("control.sock");
    both.signal_units(libc::SIGSTOP);
    std::thread::scope(|scope| {
        // What has not ended in so long waits for the units, which are stopped.
        let ends = |what: &str, thread: std::thread::ScopedJoinHandle<'_, ()>| {
            let begun = Instant::now();
            while !thread.is_finished() {
                if begun.elapsed() > PATIENCE {
                    both.signal_units(libc::SIGCONT);
                    panic!("{what} waits for a table that no unit takes: {}", served.log());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let first = scope.spawn(|| {
            (0..36).for_each(|number| store.put(&key(number), &value(number)).expect("a put"));
        });
        ends("a put", first);
        let more: Vec<_> = (0..4)
            .map(|writer| {
                let store = served.client();
                scope.spawn(move || {
                    (36 + writer * 15..51 + writer * 15)
                        .for_each(|number| store.put(&key(number), &value(number)).expect("a put"));
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        let waits = more.iter().any(|writer| !writer.is_finished());
        let others = scope.spawn(|| {
            for _ in 0..5 {
                let metrics = client::http::get(&client::Place::from(socket.as_path()), "/metrics");
                assert!(metrics.expect("an answer").contains("weir_store_units_answer"));
                assert_eq!(store.get(&key(30)).expect("it is in memory"), Some(value(30)));
            }
        });
        ends("what is no put", others);
        both.signal_units(libc::SIGCONT);
        assert!(waits, "five memtables fit in memory: this tests nothing");
    });
    for number in 0..96 {
        assert_eq!(store.get(&key(number)).expect("an answer"), Some(value(number)), "{number}");
    }
    served.stop();
}

#[test]
fn a_units_server_that_has_ended_is_503_for_who_gets_a_value() {
    let mut both = Both::start("storedown", "64MiB");
    let served = Served::start(&both, "st", &["--slices", "1", "--cache", "1MiB"]);
    let store = served.client();
    (0..60).for_each(|number| store.put(&key(number), &pattern(number, 50_000)).expect("a put"));
    served.run(&["compact"]);
    both.kill(0);
    let told: Vec<String> = (0..60)
        .filter_map(|number| match store.get(&key(number)) {
            Ok(_) => None,
            Err(Error::Refused { code: 503, message }) => Some(message),
            Err(error) => panic!("{error}"),
        })
        .collect();
    assert!(told.len() > 20, "{}", told.len());
    assert!(told.iter().all(|told| told.contains("the units do not answer")), "{told:?}");
    both.start_again();
    assert!(store.get(&key(7)).expect("it is there again") == Some(pattern(7, 50_000)));
    served.stop();
}

#[test]
fn the_control_socket_of_another_server_and_the_volume_of_no_store_are_told_before_anything_is_put()
{
    let (one, two) = (Both::start("storeone", "64MiB"), Both::start("storetwo", "64MiB"));
    let socket = |both: &Both, name: &str| format!("{}/{name}", both.places()[0]);
    let units = format!("nbd+unix:///?socket={}", socket(&one, "nbd.sock"));
    let control = socket(&two, "control.sock");
    let mixed = [units, one.places()[1].clone()];
    let data = one.scratch().path().join("mixed");
    let start = |args: &[&str]| {
        let args = [&["--control", &control][..], args].concat();
        Served::try_start_at(&mixed, data.clone(), &args).map(drop).unwrap_err()
    };
    // Of a store that is to be made, on two empty devices.
    let refused = start(&[]);
    assert!(refused.contains("is not one device"), "{refused}");
    assert!(ids(&one).is_empty() && ids(&two).is_empty(), "nothing is left there");
    // Of one that is there.
    let mut other = None;
    for both in [&one, &two] {
        let served = Served::start(both, "st", &["--slices", "1"]);
        (0..80).for_each(|at| served.client().put(&key(at), &pattern(at, 50_000)).expect("a put"));
        served.run(&["compact"]);
        served.stop();
        other = Some(ids(both).len());
    }
    let refused = start(&[]);
    assert!(
        refused.contains("is not one device") || refused.contains("on these units"),
        "{refused}"
    );
    // An empty small volume beside the units of a store.
    let empty = Both::start("storeempty", "64MiB");
    let beside = [two.places()[0].clone(), empty.places()[1].clone()];
    let refused = Served::try_start_at(&beside, data.clone(), &[]).map(drop).unwrap_err();
    let count = other.expect("a store");
    let told = format!("the units hold {count} raw blocks, of 1 owners");
    assert!(refused.contains(&told) && refused.contains("--new"), "{refused}");
    let served = Served::try_start_at(&beside, data, &["--new"]).unwrap_or_else(|e| panic!("{e}"));
    served.client().put(b"k", b"v").expect("it is a store of its own");
    served.stop();
    assert!(ids(&two).len() >= count, "the other one has all of its blocks");
}
