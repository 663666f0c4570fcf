//! `weir store`: values, tables and files over RocksDB on two servers, by the client that programs have, by the commands and
//! by curl; and what is left when any of the three processes is killed.

use crate::rocksdb::Both;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{pattern, run, said, weir, weir_path};
use client::store::{Cell, Range};
use client::{Error, Store};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A `weir store serve`. It is killed when it is dropped.
pub struct Served {
    pub child: Child,
    pub data: PathBuf,
    log: PathBuf,
    ready: String,
}

impl Served {
    /// Starts it on the two servers; `Err` is what it said if it ended.
    pub fn try_start(both: &Both, data: PathBuf, args: &[&str]) -> Result<Self, String> {
        Self::try_start_at(&both.places(), data, args)
    }

    /// The same with any two places.
    pub fn try_start_at(
        places: &[String; 2],
        data: PathBuf,
        args: &[&str],
    ) -> Result<Self, String> {
        let log = data.with_extension("log");
        let stderr = fs::File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Command::new(weir_path());
        let [units, small] = places;
        command.args(["store", "serve", "--units", units, "--small", small, "--data"]).arg(&data);
        if !args.contains(&"--http") {
            command.args(["--http", "none"]);
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("weir starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.starts_with("ready"));
        let mut served = Self { child, data, log, ready: ready.unwrap_or_default() };
        if served.ready.is_empty() {
            let status = served.wait().expect("it has closed its output, and ends");
            return Err(format!("{status}: {}", served.log()));
        }
        Ok(served)
    }

    pub fn start(both: &Both, name: &str, args: &[&str]) -> Self {
        let data = both.scratch().path().join(name);
        Self::try_start(both, data, args).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn client(&self) -> Store {
        Store::at(self.data.join("control.sock").as_path())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A command on this store.
    pub fn weir(&self, words: &[&str]) -> Output {
        let data = self.data.to_str().expect("UTF-8");
        weir(&[&["store"], words, &["--data", data]].concat())
    }

    /// The same; it must end well.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.weir(words);
        assert!(output.status.success(), "{words:?}: {}\n{}", said(&output), self.log());
        String::from_utf8(output.stdout).expect("text")
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub fn stop(mut self) {
        // SAFETY: kill takes no pointer; the child is not reaped yet, so the pid is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let status = self.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn values_tables_and_files_are_what_commands_curl_and_programs_put() {
    let both = Both::start("store", "256MiB");
    let served = Served::start(&both, "st", &[]);
    let store = served.client();
    served.run(&["put", "user:7", "--value", "Ada"]);
    assert_eq!(served.run(&["get", "user:7"]), "Ada");
    assert_eq!(served.run(&["scan", "--prefix", "user:"]), "user:7\tAda\n");
    let none = served.weir(&["get", "user:8"]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    served.run(&["delete", "user:7", "user:8"]);
    assert_eq!(store.get(b"user:7").expect("an answer"), None);

    let socket = served.data.join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let file = served.data.join("bytes");
    let bytes = pattern(3, 7 * MIB + 13);
    fs::write(&file, &bytes).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let curl = |words: &[&str]| {
        run("curl", &[&["-sS", "--fail-with-body", "--unix-socket", socket], words].concat())
    };
    curl(&["-T", file, "http://weir/fs/a/large"]);
    let copy = served.data.join("copy");
    served.run(&["file", "get", "a/large", copy.to_str().expect("UTF-8")]);
    assert!(fs::read(&copy).expect("it was written") == bytes);
    let part = served.data.join("part");
    curl(&["-r", "1048570-3145739", "-o", part.to_str().expect("UTF-8"), "http://weir/fs/a/large"]);
    assert!(fs::read(&part).expect("it was written") == bytes[1_048_570..=3_145_739]);
    served.run(&["file", "rename", "a/large", "a/b/larger"]);
    assert_eq!(served.run(&["file", "list", "a"]), "b/\n");
    assert_eq!(served.run(&["file", "list", "--all"]), "a/b/larger  7.0 MiB\n");
    let taken = served.weir(&["file", "put", file, "a/b"]);
    assert!(said(&taken).contains("is a folder with files in it"), "{}", said(&taken));

    curl(&["-X", "PUT", "-d", "anchor", "http://weir/table/links/example.org/to/www.example.com"]);
    let row = served.run(&["table", "get", "links", "example.org"]);
    assert_eq!(row, "example.org\tto\twww.example.com\tanchor\n");
    let told = curl(&["http://weir/table/links?from=a&to=f"]);
    assert!(told.contains(r#""cell":"links/example.org/to/www.example.com""#), "{told}");

    let status = served.run(&["status"]);
    assert!(status.contains("raw blocks of 2 MiB are free"), "{status}");
    assert!(served.run(&["scrub"]).contains("all sound"));
    served.run(&["compact"]);
    tells_what_its_alerts_ask_for(&curl(&["http://weir/metrics"]));
    served.stop();
    // Closed and opened again.
    let served = Served::start(&both, "st", &[]);
    assert_eq!(
        served
            .client()
            .cell(&Cell::new("links", "example.org", "to", "www.example.com"))
            .expect("an answer"),
        Some(b"anchor".to_vec())
    );
    served.stop();
}

/// The metrics have what the rules of `monitoring/` name, and RocksDB and the store below it have counted.
fn tells_what_its_alerts_ask_for(metrics: &str) {
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    for name in ["flush_written_bytes", "log_written_bytes", "raw_blocks_put", "table_reads"] {
        assert!(value(&format!("weir_store_{name}_total")) > 0.0, "{name}: {metrics}");
    }
    assert!(value("weir_store_table_read_bytes_total") > 7e6, "the scrub read the file: {metrics}");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring/weir-store-rules.yml");
    let rules = fs::read_to_string(rules).expect("the rules");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let names = rules.split(|c| !is_word(c)).filter(|word| word.starts_with("weir_store_"));
    let unknown: Vec<&str> = names.filter(|name| !metrics.contains(*name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} of the rules are no metrics: {metrics}");
}

/// What a thread has put: for each key the newest number that was acknowledged, and the one that nobody heard the end of.
#[derive(Default)]
struct Put {
    newest: BTreeMap<u64, u64>,
    unheard: Option<u64>,
    files: Vec<String>,
}

const THREADS: u64 = 4;
const KEYS: u64 = 60;
const VALUE_BYTES: usize = 12_000;

fn value(thread: u64, number: u64) -> Vec<u8> {
    pattern(thread << 32 | number, VALUE_BYTES)
}

/// Puts until the store is gone.
fn put_on(store: &Store, thread: u64, round: u64, acknowledged: &AtomicUsize) -> Put {
    let mut put = Put::default();
    for number in round * 1_000_000.. {
        // Now and then a file of some pieces.
        if number % 40 == 39 {
            let name = format!("files-{thread}/{number}");
            let bytes = pattern(number, 2 * MIB + number as usize % 100);
            match store.put_file(&name, &mut &bytes[..], bytes.len() as u64) {
                Ok(()) => put.files.push(name),
                Err(_) => return put,
            }
        }
        let key = format!("{thread}:{}", number % KEYS);
        if store.put(key.as_bytes(), &value(thread, number)).is_err() {
            put.unheard = Some(number);
            return put;
        }
        put.newest.insert(number % KEYS, number);
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    put
}

/// What is there is what was acknowledged last, or the one put of the thread that nobody heard the end of.
fn check(
    store: &Store,
    known: &BTreeMap<(u64, u64), u64>,
    files: &[String],
    unheard: &[Option<u64>],
    round: u64,
) {
    for (&(thread, key), &number) in known {
        let found = store.get(format!("{thread}:{key}").as_bytes()).expect("an answer");
        let later = unheard[thread as usize].filter(|later| later % KEYS == key);
        let is_known = found == Some(value(thread, number))
            || later.is_some_and(|later| found == Some(value(thread, later)));
        assert!(
            is_known,
            "round {round}: key {thread}:{key} is not what was acknowledged as {number}"
        );
        if let Some(later) = later.filter(|&later| found == Some(value(thread, later))) {
            assert!(later > number);
        }
    }
    for name in files {
        let number: usize =
            name.split('/').nth(1).and_then(|text| text.parse().ok()).expect("a number");
        let mut bytes = Vec::new();
        assert!(store.file(name, &mut bytes).expect("an answer"), "round {round}: {name}");
        assert!(bytes == pattern(number as u64, 2 * MIB + number % 100), "round {round}: {name}");
    }
}

#[test]
fn everything_acknowledged_is_there_after_a_kill_of_any_of_the_three_processes() {
    let mut both = Both::start("storekill", "1GiB");
    let mut known: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut files = Vec::new();
    // A release run has more of them.
    let rounds = std::env::var("WEIR_E2E_KILLS").ok().and_then(|count| count.parse().ok());
    for round in 0..rounds.unwrap_or(3) {
        let mut served = Served::start(&both, "st", &["--slices", "2"]);
        let acknowledged = AtomicUsize::new(0);
        let puts: Vec<Put> = std::thread::scope(|scope| {
            let put = |thread| {
                let (store, acknowledged) = (served.client(), &acknowledged);
                scope.spawn(move || put_on(&store, thread, round, acknowledged))
            };
            let threads: Vec<_> = (0..THREADS).map(put).collect();
            let begun = Instant::now();
            while acknowledged.load(Ordering::Relaxed) < 300 {
                assert!(begun.elapsed() < PATIENCE, "round {round}: {}", served.log());
                std::thread::sleep(Duration::from_millis(1));
            }
            match round % 3 {
                0 => both.kill(0),
                1 => both.kill(1),
                _ => served.child.kill().expect("it runs"),
            }
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        // Without one of its servers it says so and ends by itself, with the first write that fails. (A file's thread may
        // have ended with a read.)
        let store = served.client();
        let begun = Instant::now();
        while served.child.try_wait().expect("it can be waited for").is_none() {
            assert!(begun.elapsed() < PATIENCE, "round {round}: {}", served.log());
            store.put(b"filler", &value(0, 0)).ok();
        }
        let status = served.wait().unwrap_or_else(|| panic!("round {round}: {}", served.log()));
        if round % 3 < 2 {
            assert_eq!(status.code(), Some(2), "round {round}: {}", served.log());
            assert!(served.log().contains("the store has ended"), "{}", served.log());
        }
        drop(served);
        both.start_again();
        let served = Served::start(&both, "st", &[]);
        let unheard: Vec<Option<u64>> = puts.iter().map(|put| put.unheard).collect();
        for (thread, put) in (0..).zip(puts) {
            known.extend(put.newest.into_iter().map(|(key, number)| ((thread, key), number)));
            files.extend(put.files);
        }
        let store = served.client();
        check(&store, &known, &files, &unheard, round);
        let listed = store.all_files(None).expect("a list");
        let whole = listed.files.iter().all(|file| file.bytes >= Some(2 * MIB as u64));
        assert!(
            whole && listed.files.len() <= files.len() + THREADS as usize * (round as usize + 1)
        );
        // What was not heard of may be there: then it is what comes next.
        for (thread, later) in (0..).zip(unheard) {
            let Some(later) = later else { continue };
            let key = format!("{thread}:{}", later % KEYS);
            if store.get(key.as_bytes()).expect("an answer") == Some(value(thread, later)) {
                known.insert((thread, later % KEYS), later);
            }
        }
        assert!(served.run(&["scrub"]).contains("all sound"));
        served.stop();
    }
}

#[test]
fn a_dump_is_loaded_into_another_store_of_other_slices() {
    let (one, two) = (Both::start("storedump", "256MiB"), Both::start("storeload", "256MiB"));
    let (from, to) =
        (Served::start(&one, "st", &[]), Served::start(&two, "st", &["--slices", "3"]));
    let store = from.client();
    for number in 0..500_u64 {
        let key = number.to_be_bytes();
        store.put(&key, &pattern(number, number as usize * 7)).expect("a put");
        let cell = Cell {
            table: b"t/\0".to_vec(),
            row: key.to_vec(),
            family: b"f".to_vec(),
            column: vec![],
        };
        store.put_cell(&cell, &key).expect("a put");
    }
    for (name, bytes) in [("a/b/large", 3 * MIB + 1), ("a/empty", 0), ("\u{e9} %/x", 7)] {
        let bytes = pattern(9, bytes);
        store.put_file(name, &mut &bytes[..], bytes.len() as u64).expect("a file");
    }
    let dump = from.data.join("dump");
    let dumped = from.weir(&["dump"]);
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    fs::write(&dump, &dumped.stdout).expect("a dump");
    let dump = dump.to_str().expect("UTF-8");
    to.run(&["load", dump]);
    let again = to.weir(&["dump"]);
    assert!(again.stdout == dumped.stdout, "the dump of what was loaded is the same");
    // Files stay as they are, if that is said.
    let refused = to.weir(&["load", dump]);
    assert!(said(&refused).contains("--go-on"), "{}", said(&refused));
    to.run(&["load", dump, "--go-on"]);
    for cut in [0, 10, 1000, dumped.stdout.len() - 1] {
        fs::write(dump, &dumped.stdout[..cut]).expect("a dump");
        let refused = to.weir(&["load", dump, "--go-on"]);
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        let is_dump = cut >= 1000;
        assert_eq!(said(&refused).contains("records are loaded"), is_dump, "{}", said(&refused));
    }
    // What follows its end would not be loaded.
    fs::write(dump, [&dumped.stdout[..], &dumped.stdout].concat()).expect("two dumps");
    let refused = to.weir(&["load", dump, "--go-on"]);
    assert!(!refused.status.success() && said(&refused).contains("more follows"), "{refused:?}");
    // A folder where the dump has a file is not that file.
    to.client().delete_file("a/empty").expect("it is there");
    to.client().put_file("a/empty/within", &mut &b"1"[..], 1).expect("a file");
    fs::write(dump, &dumped.stdout).expect("a dump");
    let refused = to.weir(&["load", dump, "--go-on"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    to.client().delete_file("a/empty/within").expect("it is there");
    // From one to the other without a file between.
    let [from, to] = [&from, &to].map(|of| of.data.to_str().expect("UTF-8"));
    let weir = weir_path();
    let script = format!(
        "set -o pipefail; {0} store dump --data {from} | {0} store load --go-on --data {to}",
        weir.display()
    );
    run("bash", &["-c", &script]);
}

#[test]
fn a_scrub_finds_a_damaged_value_and_says_where() {
    let mut both = Both::start("storescrub", "128MiB");
    let served = Served::start(&both, "st", &["--slices", "2"]);
    let store = served.client();
    let values: Vec<Vec<u8>> = (0..40).map(|number| pattern(number, 100_000)).collect();
    for (number, value) in values.iter().enumerate() {
        store.put(format!("key-{number:03}").as_bytes(), value).expect("a put");
    }
    // Into SSTs, and not only in the log.
    served.run(&["compact"]);
    assert!(served.run(&["scrub"]).contains("all sound"));
    served.stop();
    both.stop(0);
    let file = both.places()[0].clone() + "/shard-0/data";
    let file = PathBuf::from(file);
    flip(&file, &values[17][50_000..50_064]);
    both.start_again();
    let served = Served::start(&both, "st", &[]);
    let scrub = served.weir(&["scrub"]);
    assert_eq!(scrub.status.code(), Some(1), "{}", said(&scrub));
    let told = said(&scrub);
    assert!(
        told.contains("DAMAGED: slice") && told.contains("key key-0") && told.contains("1 DAMAGED"),
        "{told}"
    );
    // Never other bytes: an error, and all else is read.
    assert!(served.client().get(b"key-017").is_err());
    let sound = (0..40).filter(|&number| {
        let got = served.client().get(format!("key-{number:03}").as_bytes());
        got.is_ok_and(|got| got.as_ref() == Some(&values[number]))
    });
    assert!(sound.count() >= 38);
}

#[test]
fn puts_wait_for_room_on_a_small_volume_that_is_smaller_than_what_is_in_memory() {
    let both = Both::start_with("storetight", "512MiB", "16MiB");
    let served = Served::start(&both, "st", &["--slices", "4"]);
    let value = |thread: u64, number: u64| pattern(thread * 1000 + number, 120_000);
    let key = |thread: u64, number: u64| format!("{thread}-{number:04}").into_bytes();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = served.client();
            scope.spawn(move || {
                for number in 0..200 {
                    let told = store.put(&key(thread, number), &value(thread, number));
                    told.unwrap_or_else(|told| panic!("{thread}-{number}: {told}"));
                }
            });
        }
    });
    let status = served.client().status().expect("a status");
    assert!(status["not_ready"].is_null(), "{status}");
    served.stop();
    let served = Served::start(&both, "st", &[]);
    for number in (0..200).step_by(7) {
        let found = served.client().get(&key(3, number)).expect("a get");
        assert!(found == Some(value(3, number)), "{number}");
    }
    served.stop();
}

#[test]
fn a_batch_that_the_small_volume_has_never_room_for_is_refused_alone_and_the_store_goes_on() {
    let both = Both::start_with("storesmall", "512MiB", "8MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    let value = |number: u64| pattern(number, 900_000);
    let key = |number: u64| format!("{number:04}").into_bytes();
    let large: Vec<_> = (0..9).map(|n| (key(n), value(n))).collect();
    let changes = large.iter().map(|(key, value)| (&key[..], Some(&value[..])));
    match served.client().write(changes) {
        Err(Error::Refused { code: 507, message }) => {
            assert!(message.contains("small volume"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let store = served.client();
            scope.spawn(move || {
                for n in (0..30).map(|n| thread * 100 + n) {
                    store.put(&key(n), &value(n)).unwrap_or_else(|told| panic!("{n}: {told}"));
                }
            });
        }
    });
    let status = served.client().status().expect("a status");
    assert!(status["not_ready"].is_null(), "{status}");
    // Killed.
    drop(served);
    let served = Served::start(&both, "st", &[]);
    for n in [100, 229, 429] {
        assert!(served.client().get(&key(n)).expect("a get") == Some(value(n)), "{n}");
    }
    assert_eq!(served.client().get(&key(3)).expect("a get"), None);
    served.stop();
}

/// Bytes of an SST for each of a raw block's.
fn blocks_of_an_sst(store: &Store) -> f64 {
    let status = store.status().expect("a status");
    let slices = status["slices"].as_array().expect("slices");
    let tables: u64 = slices.iter().filter_map(|slice| slice["tables"].as_u64()).sum();
    let block = status["room"]["raw_block_bytes"].as_f64().expect("the units answer");
    status["table_bytes"].as_f64().expect("a number") / block / tables as f64
}

#[test]
fn ssts_of_more_raw_blocks_are_fuller_and_a_store_may_go_to_and_fro() {
    let both = Both::start("storedense", "512MiB");
    let value = |number: u64| pattern(number, 100_000);
    let key = |number: u64| format!("{number:05}").into_bytes();
    let count = 700;
    let mut filled = Vec::new();
    for (at, blocks) in ["4", "1", "4"].into_iter().enumerate() {
        let slices = if at == 0 { &["--slices", "2"][..] } else { &[] };
        let served = Served::start(&both, "st", &[slices, &["--sst-blocks", blocks]].concat());
        let store = served.client();
        if at == 0 {
            (0..count).for_each(|number| store.put(&key(number), &value(number)).expect("a put"));
        }
        served.run(&["compact"]);
        filled.push(blocks_of_an_sst(&store));
        for number in 0..count {
            assert!(store.get(&key(number)).expect("a get") == Some(value(number)), "{number}");
        }
        assert!(served.run(&["scrub"]).contains("all sound"));
        served.stop();
    }
    assert!(filled[0] > 1.5 && filled[1] <= 1.0 && filled[2] > 1.5, "{filled:?}");
}

/// Flips a bit behind each place that begins so: what was moved may still lie where it was before.
fn flip(file: &Path, needle: &[u8]) {
    let bytes = fs::read(file).expect("the flash");
    let device = fs::File::options().write(true).open(file).expect("the flash");
    let places = bytes.windows(8).enumerate().filter(|(_, window)| *window == &needle[..8]);
    let places: Vec<usize> = places.map(|(at, _)| at + 100).collect();
    assert!(!places.is_empty(), "the value is on the units");
    for at in places {
        device.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("another byte");
    }
}

#[test]
fn full_units_are_said_and_a_deletion_makes_room_again() {
    let both = Both::start("storefull", "64MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    let store = served.client();
    let put = |number: u64| store.put(format!("{number:05}").as_bytes(), &pattern(number, 500_000));
    let refused = (0..1000).find_map(|number| put(number).err().map(|error| (number, error)));
    let (count, refused) = refused.expect("64 MiB are less than 500 MB");
    let Error::Refused { code: 507, message } = refused else {
        panic!("{refused}: {}", served.log())
    };
    assert!(
        message.contains("the units are full") && message.contains("weir store compact"),
        "{message}"
    );
    assert!((20..200).contains(&count), "{count} values of 0.5 MB fit 64 MiB");
    for number in 0..count {
        let found = store.get(format!("{number:05}").as_bytes()).expect("an answer");
        assert!(found == Some(pattern(number, 500_000)), "{number}");
    }
    let keys: Vec<String> = (0..count).map(|number| format!("{number:05}")).collect();
    served.run(&[&["delete"][..], &keys.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    served.run(&["compact"]);
    // Erases go on in the background.
    let begun = Instant::now();
    while let Err(error) = put(7) {
        assert!(begun.elapsed() < PATIENCE, "{error}: {}", served.run(&["status"]));
        std::thread::sleep(Duration::from_millis(50));
    }
    served.stop();
}

#[test]
fn units_of_another_device_at_the_same_address_are_told_and_nothing_acknowledged_is_lost() {
    let mut both = Both::start("storeother", "128MiB");
    let mut served = Served::start(&both, "st", &["--slices", "1"]);
    let store = served.client();
    let key = |number: u64| format!("key-{number:03}");
    let put = |number: u64| store.put(key(number).as_bytes(), &pattern(number, 100_000));
    (0..40).for_each(|number| put(number).expect("a put"));
    served.run(&["compact"]);
    both.start_other_units();
    let told = store.get(key(7).as_bytes()).expect_err("it is not there").to_string();
    assert!(told.contains("another device"), "{told}");
    // A scrub does not say that all of it is damaged without saying why.
    let scrub = said(&served.weir(&["scrub"]));
    assert!(scrub.contains("another device"), "{scrub}");
    // What is put now is in the log, and no SST of it goes to the other device.
    let acknowledged = (40..200).take_while(|&number| put(number).is_ok()).count() as u64;
    assert!(acknowledged < 160, "{}", served.log());
    let status = served.wait().expect("it ends");
    assert_eq!(status.code(), Some(2), "{}", served.log());
    assert!(served.log().contains("another device"), "{}", served.log());
    let data = both.scratch().path().join("st");
    let refused = Served::try_start(&both, data, &[]).map(drop).unwrap_err();
    assert!(refused.contains("raw blocks that the files of the store lie in"), "{refused}");
    let other = client::Blocks::open(Path::new(&both.places()[0]).join("control.sock").as_path());
    assert_eq!(other.expect("it answers").list().expect("a list"), [], "nothing is left there");
    both.start_own_units();
    let served = Served::start(&both, "st", &[]);
    let store = served.client();
    for number in 0..40 + acknowledged {
        let found = store.get(key(number).as_bytes()).expect("an answer");
        assert!(found == Some(pattern(number, 100_000)), "{number} of {acknowledged}");
    }
    assert!(served.run(&["scrub"]).contains("all sound"));
    served.stop();
}

#[test]
fn units_whose_server_has_ended_are_told_by_status_scrub_and_readiness() {
    let mut both = Both::start("storegone", "64MiB");
    let served = Served::start(&both, "st", &["--slices", "1"]);
    let store = served.client();
    (0..40).for_each(|number: u8| store.put(&[number], &pattern(1, 50_000)).expect("a put"));
    served.run(&["compact"]);
    let socket = served.data.join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let ready = || {
        let words = ["-sS", "--unix-socket", socket, "-w", " %{http_code}", "http://weir/readyz"];
        run("curl", &words)
    };
    assert!(ready().ends_with(" 200"), "{}", ready());
    both.kill(0);
    let begun = Instant::now();
    while !ready().ends_with(" 503") {
        assert!(begun.elapsed() < PATIENCE, "{}", ready());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(ready().contains("the units do not answer"), "{}", ready());
    let status = served.run(&["status"]);
    assert!(status.contains("NOT KNOWN: the units do not answer: "), "{status}");
    let scrub = served.weir(&["scrub"]);
    let told = said(&scrub);
    assert_eq!(scrub.status.code(), Some(2), "{told}");
    assert!(told.contains("the units do not answer") && !told.contains("DAMAGED"), "{told}");
    // Started again, it goes on: reads connect anew.
    both.start_again();
    assert!(served.run(&["scrub"]).contains("all sound"));
    let begun = Instant::now();
    while !ready().ends_with(" 200") {
        assert!(begun.elapsed() < PATIENCE, "{}", ready());
        std::thread::sleep(Duration::from_millis(50));
    }
    served.stop();
}

#[test]
fn what_cannot_be_served_is_told_with_the_mend() {
    let both = Both::start("storebad", "128MiB");
    let folder = |name: &str| both.scratch().path().join(name);
    let refused = |data: &str, args: &[&str], why: &str| {
        let told = Served::try_start(&both, folder(data), args).map(drop).unwrap_err();
        assert!(told.contains("exit status: 2") && told.contains(why), "{args:?}: {told}");
        fs::remove_file(folder(data).with_extension("log")).expect("it is there");
    };
    refused("a", &["--engine", "nowhere.so"], "./x rocksdb");
    let other = both.scratch().file("other.so");
    fs::write(&other, "nothing").expect("a file");
    refused("a", &["--engine", &other], "./x rocksdb");
    refused("a", &["--http", "0.0.0.0:0"], "--http-remote");
    refused("a", &["--http", "here"], "127.0.0.1:8421");
    refused("a", &["--cache", "1"], "at least 1MiB");
    refused("a", &["--slices", "0"], "1..=64");
    let served = Served::start(&both, "st", &["--slices", "4"]);
    let pid = served.child.id();
    refused("a", &[], &format!("in use by process {pid}"));
    refused("st", &[], "in use");
    served.stop();
    refused("a", &["--slices", "5"], "made with 4 slices, not 5");
    let output = weir(&["store", "get", "k", "--data", folder("a").to_str().expect("UTF-8")]);
    assert!(said(&output).contains("weir store serve --data"), "{}", said(&output));
    // Somebody else's server.
    let scratch = Scratch::new("storeno");
    let device = Server::start(&scratch, crate::server::SMALL);
    let output = weir(&["store", "status", "--data", scratch.data().to_str().expect("UTF-8")]);
    assert!(said(&output).contains("is no store"), "{}", said(&output));
    drop(device);
}

#[test]
fn over_tcp_the_token_opens_the_data_and_without_it_only_the_state_is_told() {
    let both = Both::start("storetcp", "64MiB");
    let token = both.scratch().file("token");
    let args = ["--http", "127.0.0.1:0", "--http-token-file", &token, "--slices", "1"];
    let served = Served::start(&both, "st", &args);
    let http =
        served.ready.split(' ').find_map(|word| word.strip_prefix("http://")).expect("an address");
    let with = weir(&["store", "put", "k", "--value", "1", "--http", http, "--token-file", &token]);
    assert!(with.status.success(), "{}", said(&with));
    let without = weir(&["store", "get", "k", "--http", http]);
    assert!(!without.status.success() && said(&without).contains("token"), "{}", said(&without));
    assert!(weir(&["store", "status", "--http", http]).status.success());
    let store = Store::at(http.parse::<std::net::SocketAddr>().expect("an address"));
    assert!(store.scan(&Range::default()).is_err());
    served.stop();
}
