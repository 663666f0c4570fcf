//! The small files of a store: what an opening makes of its logs, and of a RocksDB whose CURRENT, MANIFEST, IDENTITY or OPTIONS
//! are not what was written.

use crate::nbd::Client;
use crate::rocksdb::Both;
use crate::store::Served;
use crate::tools::{pattern, said, weir};
use client::Error;
use client::store::Range;
use std::fs;
use std::path::Path;
use std::process::Output;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// How a block of the small volume begins, and where its payload does.
const MAGIC: u32 = 0x4b4c_4257;
const HEAD_BYTES: usize = 32;
const KEYS: u64 = 200;
const NEWER: &[u8] = b"what was put last";

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

/// SSTs of all slices.
fn tables(served: &Served) -> u64 {
    let status = served.client().status().expect("an answer");
    let slices = status["slices"].as_array().expect("slices");
    slices.iter().filter_map(|slice| slice["tables"].as_u64()).sum()
}

#[test]
fn what_the_log_has_is_read_when_a_store_is_opened_and_no_unit_has_to_take_it() {
    let both = Both::start("storelogs", "128MiB");
    let mut served = Served::start(&both, "st", &["--slices", "2"]);
    let value = |number: u64| pattern(number, 100 * KIB);
    let mut put = 0;
    for round in 0..4 {
        let store = served.client();
        (put..put + 2).for_each(|n| store.put(&key(n), &value(n)).expect("a put"));
        put += 2;
        // Killed, or ended well: nothing is flushed in either case.
        match round % 2 {
            0 => drop(served),
            _ => served.stop(),
        }
        served = Served::start(&both, "st", &[]);
        assert_eq!(tables(&served), 0, "{round}");
    }
    // More than a memtable has in each slice, which is then flushed while the store answers.
    let store = served.client();
    (put..80).for_each(|n| store.put(&key(n), &value(n)).expect("a put"));
    drop(served);
    let served = Served::start(&both, "st", &[]);
    let store = served.client();
    for n in 0..80 {
        assert!(store.get(&key(n)).expect("an answer") == Some(value(n)), "{n}");
    }
    (80..160).for_each(|n| store.put(&key(n), &value(n)).expect("a put"));
    served.run(&["compact"]);
    assert!(served.run(&["scrub"]).contains("all sound"));
    for n in 0..160 {
        assert!(store.get(&key(n)).expect("an answer") == Some(value(n)), "{n}");
    }
    served.stop();
}

/// Overwrites every block of the small volume whose payload is such, and says how many.
fn damage(both: &Both, with: &[u8; 4096], is_it: impl Fn(&[u8]) -> bool) -> usize {
    let socket = Path::new(&both.places()[1]).join("nbd.sock");
    let mut volume = Client::connect(&socket, "default").expect("it answers");
    let mut count = 0;
    for at in (0..volume.size).step_by(MIB) {
        let bytes = volume.read(at, MIB as u32);
        for (block, bytes) in bytes.chunks(4096).enumerate() {
            if bytes[..4] == MAGIC.to_le_bytes() && is_it(&bytes[HEAD_BYTES..]) {
                volume.write(at + 4096 * block as u64, with);
                count += 1;
            }
        }
    }
    volume.flush();
    count
}

/// What CURRENT has.
fn is_current(payload: &[u8]) -> bool {
    payload.starts_with(b"MANIFEST-0") && payload[15..17] == *b"\n\0"
}

/// The first block of a manifest: its first record has the name of the comparator.
fn is_manifest(payload: &[u8]) -> bool {
    payload[..64].windows(7).any(|part| part == b"leveldb")
}

/// A UUID, and nothing else.
fn is_identity(payload: &[u8]) -> bool {
    let is_part = |&byte: &u8| byte == b'-' || byte.is_ascii_hexdigit();
    payload[..36].iter().all(is_part) && payload[8] == b'-' && payload[36] == 0
}

const TORN: [u8; 4096] = [0x5a; 4096];
const BLANK: [u8; 4096] = [0; 4096];

/// A store of which some is in SSTs, some in memory, and some deleted in each.
fn filled(both: &Both) {
    let served = Served::start(both, "st", &["--slices", "3"]);
    let store = served.client();
    (0..KEYS).for_each(|n| store.put(&key(n), &pattern(n, 20 * KIB)).expect("a put"));
    served.run(&["compact"]);
    (0..KEYS).step_by(5).for_each(|n| store.put(&key(n), NEWER).expect("a put"));
    (1..KEYS).step_by(5).for_each(|n| store.delete(&key(n)).expect("a deletion"));
    served.run(&["compact", "--slice", "1"]);
    (2..KEYS).step_by(5).for_each(|n| store.put(&key(n), NEWER).expect("a put"));
    served.stop();
}

/// What a key had last.
fn last(n: u64) -> Option<Vec<u8>> {
    match n % 5 {
        0 | 2 => Some(NEWER.to_vec()),
        1 => None,
        _ => Some(pattern(n, 20 * KIB)),
    }
}

/// All is as it was written last, by key and in ranges.
fn is_whole(served: &Served) {
    let store = served.client();
    for n in 0..KEYS {
        assert!(store.get(&key(n)).expect("an answer") == last(n), "{n}");
    }
    let (mut found, mut from) = (0, Some(Vec::new()));
    while let Some(first) = from {
        let range = Range { from: Some(&first), ..Range::default() };
        let (pairs, next) = store.scan(&range).expect("a range");
        found += pairs.len();
        from = next;
    }
    assert_eq!(found, (0..KEYS).filter(|&n| last(n).is_some()).count());
}

fn start(both: &Both, args: &[&str]) -> Result<Served, String> {
    Served::try_start(both, both.scratch().path().join("st"), args)
}

fn repair(both: &Both) -> Output {
    let [units, small] = both.places();
    weir(&["store", "repair", "--units", &units, "--small", &small])
}

#[test]
fn what_other_files_say_too_is_made_anew_and_nothing_is_lost() {
    for (name, is_it, bytes) in [
        ("CURRENT", is_current as fn(&[u8]) -> bool, &TORN),
        ("CURRENT", is_current, &BLANK),
        ("IDENTITY", is_identity, &TORN),
        ("IDENTITY", is_identity, &BLANK),
    ] {
        let both = Both::start("storemended", "128MiB");
        filled(&both);
        let sound = repair(&both);
        assert!(said(&sound).contains("nothing to mend"), "{}", said(&sound));
        assert!(damage(&both, bytes, is_it) > 0, "{name}");
        for args in [&[][..], &["--damaged"]] {
            let told = start(&both, args).map(drop).unwrap_err();
            let mend = told.contains(name) && told.contains("weir store repair");
            assert!(mend && told.starts_with("exit status: 2"), "{name}: {told}");
        }
        let mended = repair(&both);
        assert!(mended.status.success() && said(&mended).contains(name), "{}", said(&mended));
        let served = start(&both, &[]).unwrap_or_else(|told| panic!("{name}: {told}"));
        is_whole(&served);
        let busy = repair(&both);
        assert!(!busy.status.success() && said(&busy).contains("in use"), "{}", said(&busy));
        assert!(served.run(&["scrub"]).contains("all sound"));
        served.stop();
        // To read what is left tells the SSTs of another database by it.
        let served = start(&both, &["--damaged"]).expect("nothing is missing");
        assert!(!served.run(&["status"]).contains("MISSING"), "{name}");
        served.stop();
    }
}

#[test]
fn without_a_manifest_all_that_ssts_and_logs_have_is_read_and_dumped_and_nothing_is_changed() {
    for bytes in [&TORN, &BLANK] {
        let both = Both::start("storemanifest", "128MiB");
        filled(&both);
        assert!(damage(&both, bytes, is_manifest) > 0);
        for args in [&[][..], &["--damaged"]] {
            let told = start(&both, args).map(drop).unwrap_err();
            let mend = told.contains("MANIFEST") && told.contains("--damaged=older");
            assert!(mend && told.starts_with("exit status: 2"), "{told}");
        }
        let refused = repair(&both);
        assert!(!refused.status.success(), "{}", said(&refused));
        assert!(said(&refused).contains("--damaged=older"), "{}", said(&refused));
        let held = blocks_of(&both);
        let served = start(&both, &["--damaged=older"]).unwrap_or_else(|told| panic!("{told}"));
        // Nothing was being compacted, so nothing of it is older.
        is_whole(&served);
        assert!(served.run(&["status"]).contains("MISSING     MANIFEST"), "it is told");
        let put = served.client().put(b"k", b"v");
        assert!(matches!(put, Err(Error::Refused { code: 503, .. })), "{put:?}");
        let dump = served.weir(&["dump"]);
        assert_eq!(dump.status.code(), Some(1), "{}", said(&dump));
        served.stop();
        assert_eq!(blocks_of(&both), held, "nothing was put, and nothing erased");
        let file = both.scratch().path().join("left.dump");
        fs::write(&file, &dump.stdout).expect("a file");
        let other = Both::start("storeloaded", "128MiB");
        let served = Served::start(&other, "st", &["--slices", "2"]);
        served.run(&["load", file.to_str().expect("UTF-8")]);
        is_whole(&served);
        served.stop();
    }
}

fn blocks_of(both: &Both) -> Vec<u128> {
    let control = Path::new(&both.places()[0]).join("control.sock");
    let blocks = client::Blocks::open(control.as_path()).expect("it answers");
    let mut ids: Vec<u128> = blocks.list().expect("a list").iter().map(|block| block.id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_damaged_options_file_is_in_nobodys_way() {
    let both = Both::start("storeoptions", "128MiB");
    filled(&both);
    let is_options = |payload: &[u8]| payload.windows(9).any(|part| part == b"[Version]");
    assert!(damage(&both, &TORN, is_options) > 0);
    let served = start(&both, &[]).expect("it is written anew at each opening");
    is_whole(&served);
    served.stop();
}

#[test]
fn a_database_without_its_manifest_is_told_and_mended_by_rocksdbs_own_tool() {
    let both = Both::start("rdbrepair", "64MiB");
    let keys: Vec<String> = (0..50).map(|n| format!("key-{n:02}")).collect();
    let pairs = keys.iter().flat_map(|key| [key.as_str(), "value"]);
    let put: Vec<&str> =
        ["ldb", "--db=/a", "--create_if_missing", "batchput"].into_iter().chain(pairs).collect();
    let done = both.output(&put);
    assert!(done.status.success(), "{}", said(&done));
    assert!(damage(&both, &TORN, is_manifest) > 0);
    let refused = both.output(&["ldb", "--db=/a", "checkconsistency"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(said(&refused).contains("/a/MANIFEST-"), "{}", said(&refused));
    let mended = both.output(&["ldb", "--db=/a", "repair"]);
    assert!(mended.status.success(), "{}", said(&mended));
    let found = said(&both.output(&["ldb", "--db=/a", "scan"]));
    assert!(keys.iter().all(|key| found.contains(&format!("{key} : value"))), "{found}");
}
