//! Programs with RocksDB, unchanged, on raw units: Debian's db_bench and ldb, and one that says which of its puts
//! were acknowledged.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{run, said, weir, weir_path};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// Raw blocks of 2 MiB on four units, without delays.
const UNITS: &[&str] = &[
    "--raw",
    "--profile",
    "instant",
    "--channels",
    "4",
    "--dies-per-channel",
    "2",
    "--gang",
    "2",
    "--erase",
    "background",
];
/// As many values as the program has keys.
const KEYS: u64 = 400;

/// The two servers that a store needs.
pub struct Both {
    units: Option<Server>,
    small: Option<Server>,
    folders: [Scratch; 2],
    capacity: &'static str,
    small_capacity: &'static str,
}

impl Both {
    pub fn start(name: &str, capacity: &'static str) -> Self {
        Self::start_with(name, capacity, "256MiB")
    }

    /// The same with so much for the small volume.
    pub fn start_with(name: &str, capacity: &'static str, small_capacity: &'static str) -> Self {
        let folders = [Scratch::new(&format!("{name}-u")), Scratch::new(&format!("{name}-s"))];
        let mut both = Self { units: None, small: None, folders, capacity, small_capacity };
        both.start_again();
        both
    }

    /// Starts those that are not there.
    pub fn start_again(&mut self) {
        let [units, small] = &self.folders;
        let args = [UNITS, &["--capacity", self.capacity]].concat();
        self.units.get_or_insert_with(|| Server::start(units, &args));
        let args = ["--profile", "instant", "--capacity", self.small_capacity];
        self.small.get_or_insert_with(|| Server::start(small, &args));
    }

    /// Kills one of them.
    pub fn kill(&mut self, at: usize) {
        let server = if at == 0 { &mut self.units } else { &mut self.small };
        server.take().expect("it runs").kill();
    }

    /// Ends one of them well.
    pub fn stop(&mut self, at: usize) {
        let server = if at == 0 { &mut self.units } else { &mut self.small };
        server.take().expect("it runs").terminate();
    }

    /// The process of one of them.
    pub fn pid(&self, at: usize) -> u32 {
        let server = if at == 0 { &self.units } else { &self.small };
        server.as_ref().expect("it runs").pid()
    }

    /// Sends the units' server a signal.
    pub fn signal_units(&self, signal: i32) {
        self.units.as_ref().expect("it runs").signal(signal);
    }

    /// Ends the units, puts their device away, and starts a server of another one in its place.
    pub fn start_other_units(&mut self) {
        self.stop(0);
        let data = self.folders[0].data();
        std::fs::rename(&data, data.with_extension("own")).expect("it is a folder");
        self.start_again();
    }

    /// The units' own device is served there again.
    pub fn start_own_units(&mut self) {
        self.stop(0);
        let data = self.folders[0].data();
        std::fs::remove_dir_all(&data).expect("the other device");
        std::fs::rename(data.with_extension("own"), &data).expect("it was put away");
        self.start_again();
    }

    /// The folders of their devices.
    pub fn places(&self) -> [String; 2] {
        [0, 1].map(|at| self.folders[at].data().to_str().expect("UTF-8").to_owned())
    }

    /// A folder that goes away with them.
    pub fn scratch(&self) -> &Scratch {
        &self.folders[0]
    }

    /// `weir rocksdb` with the store that they are, up to the program.
    fn words(&self) -> Vec<String> {
        let [units, small] = self.places();
        let words = ["rocksdb", "--units", &units, "--small", &small, "--"];
        words.map(str::to_owned).to_vec()
    }

    /// Runs a program to its end.
    pub fn output(&self, program: &[&str]) -> Output {
        let mut words = self.words();
        words.extend(program.iter().map(|word| (*word).to_owned()));
        weir(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The same; it must end well.
    fn run(&self, program: &[&str]) -> String {
        let output = self.output(program);
        assert!(output.status.success(), "{program:?}: {}", said(&output));
        said(&output)
    }

    /// Starts a program, whose lines are read one by one.
    fn spawn(&self, program: &[&str]) -> Child {
        let mut command = Command::new(weir_path());
        command.args(self.words()).args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("weir starts")
    }

    fn status(&self) -> Value {
        let data = self.folders[0].data();
        let status = weir(&["status", "--json", "--data", data.to_str().expect("UTF-8")]);
        serde_json::from_slice(&status.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&status)))
    }
}

/// The program of `rocksdb-puts.c`.
fn puts(scratch: &Scratch) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/rocksdb-puts.c");
    let program = scratch.file("puts");
    run("cc", &["-O1", "-Wall", "-Werror", "-o", &program, source, "-lrocksdb"]);
    program
}

const BENCH: &[&str] = &[
    "db_bench",
    "--db=/bench",
    "--value_size=1000",
    "--compression_type=none",
    "--compression_ratio=1",
    "--write_buffer_size=5000000",
    "--target_file_size_base=1900000",
    "--max_bytes_for_level_base=8000000",
    "--level0_file_num_compaction_trigger=2",
    "--max_background_jobs=2",
];

#[test]
fn db_bench_runs_unchanged_and_the_flash_collects_no_garbage() {
    let both = Both::start("rdb", "512MiB");
    let load = ["--benchmarks=fillrandom,compact,readrandom", "--num=30000", "--reads=3000"];
    let told = both.run(&[BENCH, &load].concat());
    assert!(told.contains("fillrandom") && told.contains("of 3000 found"), "{told}");
    // By its URI too, as RocksDB names a file system; and with compaction all the way.
    let load = ["--use_existing_db=1", "--benchmarks=overwrite,waitforcompaction,readrandom"];
    let uri = ["--fs_uri=weir://", "--num=30000", "--reads=3000", "--verify_checksum=1"];
    let told = both.run(&[BENCH, &load, &uri].concat());
    assert!(told.contains("overwrite") && told.contains("of 3000 found"), "{told}");
    assert!(both.run(&["ldb", "--db=/bench", "checkconsistency"]).contains("OK"));
    // A backup's files have other names until they are whole.
    both.run(&["ldb", "--db=/bench", "backup", "--backup_dir=/backup"]);
    both.run(&["ldb", "--db=/again", "restore", "--backup_dir=/backup"]);
    assert!(both.run(&["ldb", "--db=/again", "checkconsistency"]).contains("OK"));

    let status = both.status();
    let waf = status["waf"].as_f64().expect("something was written");
    assert!((1.0..1.01).contains(&waf), "the flash's WAF is {waf}");
    assert!(status["counters"]["host_blocks_trimmed"].as_u64() > Some(0), "SSTs are erased");
    let data = both.folders[0].data();
    let shown = said(&weir(&["status", "--data", data.to_str().expect("UTF-8")]));
    assert!(shown.contains("WAF since start  1.00"), "{shown}");
}

/// Puts until something is killed, and checks that every acknowledged put is there.
#[test]
fn every_acknowledged_put_is_there_after_a_kill_of_the_program_or_of_a_server() {
    let mut both = Both::start("rdbkill", "256MiB");
    let program = puts(&both.folders[0]);
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut first = 0;
    // A release run has more of them.
    let rounds = std::env::var("WEIR_E2E_KILLS").ok().and_then(|count| count.parse().ok());
    for round in 0..rounds.unwrap_or(5) {
        let acknowledged = 300 + 250 * (round % 7);
        let mut child = both.spawn(&[&program, "put", "/puts", &first.to_string(), "1000000"]);
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut last = None;
        for line in lines.by_ref().take(acknowledged).map_while(Result::ok) {
            let number: u64 = line.parse().expect("a number");
            newest.insert(number * 7919 % KEYS, number);
            last = Some(number);
        }
        let Some(mut last) = last else {
            let output = child.wait_with_output().expect("it ends");
            panic!("round {round}: nothing was put: {}", said(&output));
        };
        let end = |server: &mut Option<Server>| server.take().expect("it runs").kill();
        match round % 5 {
            0 | 3 => child.kill().expect("it runs"),
            1 => end(&mut both.units),
            2 => end(&mut both.small),
            _ => {
                end(&mut both.units);
                end(&mut both.small);
            }
        }
        // What was said before the end counts; where a server is gone, the program ends by itself.
        for line in lines.map_while(Result::ok) {
            let Ok(number) = line.parse::<u64>() else { break };
            newest.insert(number * 7919 % KEYS, number);
            last = number;
        }
        let output = child.wait_with_output().expect("it ends");
        assert!(!output.status.success(), "round {round}: {}", said(&output));
        if matches!(round % 5, 1 | 2 | 4) {
            // A put that failed, with its reason, and not the end of the program.
            assert_eq!(output.status.code(), Some(1), "round {round}: {}", said(&output));
            assert!(said(&output).contains("weir: "), "round {round}: {}", said(&output));
        }
        both.start_again();
        check(&both, &program, &newest, last + 1, round);
        first = last + 2;
    }
    assert!(both.run(&["ldb", "--db=/puts", "checkconsistency"]).contains("OK"));
}

/// What is there is what was acknowledged last, or the one put that nobody heard the end of.
fn check(both: &Both, program: &str, newest: &BTreeMap<u64, u64>, unheard: u64, round: usize) {
    let listed = both.run(&[program, "list", "/puts"]);
    let numbers = listed.lines().filter_map(|line| line.parse::<u64>().ok());
    let found: BTreeMap<u64, u64> = numbers.map(|number| (number * 7919 % KEYS, number)).collect();
    for (key, &number) in newest {
        let there = found.get(key).copied();
        let good = there == Some(number) || there == Some(unheard);
        assert!(good, "round {round}: key {key} is {there:?}, and {number} was acknowledged");
    }
}

#[test]
fn one_process_has_a_store_and_the_next_one_is_told_who() {
    let both = Both::start("rdblock", "128MiB");
    let program = puts(&both.folders[0]);
    let mut child = both.spawn(&[&program, "put", "/puts", "0", "1000000"]);
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().is_some(), "it has the store");
    let refused = both.output(&["ldb", "--db=/puts", "scan"]);
    let told = said(&refused);
    assert!(!refused.status.success(), "{told}");
    assert!(told.contains(&format!("in use by process {}", child.id())), "{told}");
    // By another address too.
    let (link, [units, small]) = (both.folders[0].file("small.sock"), both.places());
    let socket = format!("{small}/nbd.sock");
    std::fs::hard_link(&socket, &link).expect("another name of the socket");
    let small = format!("nbd+unix:///default?socket={link}");
    let refused =
        weir(&["rocksdb", "--units", &units, "--small", &small, "--", "ldb", "--db=/puts", "scan"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(said(&refused).contains("another process of this machine"), "{}", said(&refused));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(both.output(&["ldb", "--db=/puts", "scan"]).status.success());
}

#[test]
fn full_units_stop_the_puts_with_the_reason_and_lose_nothing() {
    let both = Both::start("rdbfull", "32MiB");
    let load = ["--benchmarks=fillrandom", "--num=60000"];
    let refused = both.output(&[BENCH, &load].concat());
    let told = said(&refused);
    assert!(!refused.status.success() && told.contains("every unit is full"), "{told}");
    assert!(both.run(&["ldb", "--db=/bench", "checkconsistency"]).contains("OK"));
    assert!(both.output(&["ldb", "--db=/bench", "scan", "--max_keys=3"]).status.success());
}

#[test]
fn ids_of_somebody_else_are_left_alone() {
    let both = Both::start("rdbids", "128MiB");
    let units = both.units.as_ref().expect("it runs");
    let blocks = client::Blocks::open(units.control().as_path()).expect("blocks by ID");
    let bytes = vec![7; blocks.block_bytes() as usize];
    let mine = |number: u64| 0xb10c << 64 | u128::from(number);
    for number in [0, 1, 3] {
        blocks.put(mine(number), &bytes).expect("the number is free");
    }
    let load = ["--benchmarks=fillrandom,compact,readrandom", "--num=8000", "--reads=500"];
    let told = said(&both.output(&[BENCH, &load].concat()));
    assert!(told.contains("hold 3 raw blocks, of 1 owners") && told.contains("--new"), "{told}");
    let mut words = both.words();
    words.insert(1, "--new".into());
    words.extend([BENCH, &load].concat().iter().map(|word| (*word).to_owned()));
    let told = said(&weir(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(told.contains("of 500 found"), "{told}");
    let listed = blocks.list().expect("a list");
    let kept: Vec<u128> =
        listed.iter().map(|block| block.id).filter(|id| id >> 64 == 0xb10c).collect();
    assert_eq!(kept, [mine(0), mine(1), mine(3)]);
    let mut granule = vec![0; blocks.granule_bytes() as usize];
    blocks.get(mine(3), 0, &mut granule).expect("it is there");
    assert!(granule.iter().all(|&byte| byte == 7));
}

#[test]
fn what_is_missing_is_told_with_the_mend() {
    let scratch = Scratch::new("rdbbad");
    let nowhere = scratch.file("nowhere");
    let refused = |args: &[&str], why: &str| {
        let output = weir(args);
        let told = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(why), "{args:?}: {told}");
    };
    refused(&["rocksdb", "--units", &nowhere, "--", "ldb"], "weir serve --raw --data");
    refused(&["rocksdb", "--plugin", &nowhere, "--", "ldb"], "./x rocksdb");
    refused(&["rocksdb", "--units", "nbd://", "--", "ldb"], "--units nbd://");
    refused(&["rocksdb", "--units", "", "--", "ldb"], "--units '': names nothing");
    refused(&["rocksdb", "--units", "nbd://127.0.0.1:1", "--", "ldb"], "weir serve --data");
    refused(&["rocksdb"], "PROGRAM");

    let both = Both::start("rdbmiss", "64MiB");
    let [units, small] = both.places();
    refused(
        &["rocksdb", "--units", &units, "--small", "", "--", "ldb"],
        "--small '': names nothing",
    );
    refused(&["rocksdb", "--units", &units, "--small", &small, "--", "no-such"], "rocksdb-tools");
    let token = both.folders[0].file("token");
    std::fs::write(&token, "one\ntwo\n").expect("a file");
    refused(
        &[
            "rocksdb",
            "--units",
            &units,
            "--small",
            &small,
            "--control",
            "127.0.0.1:1",
            "--token-file",
            &token,
            "--",
            "ldb",
        ],
        "must hold one line",
    );
    // Blocks would be put on one device and read from another.
    let other = Both::start("rdbother", "64MiB");
    let (uri, control) = (
        format!("nbd+unix:///?socket={units}/nbd.sock"),
        format!("{}/control.sock", other.places()[0]),
    );
    let load = ["--benchmarks=fillrandom", "--num=20000"];
    let words =
        ["rocksdb", "--units", &uri, "--control", &control, "--small", &other.places()[1], "--"];
    let wrong = weir(&[&words, BENCH, &load].concat());
    assert!(!wrong.status.success(), "{}", said(&wrong));
    assert!(said(&wrong).contains("is not one device"), "{}", said(&wrong));
    // The two in each other's place.
    let wrong =
        weir(&["rocksdb", "--units", &small, "--small", &small, "--", "ldb", "--db=/a", "scan"]);
    assert!(said(&wrong).contains("offers no raw units"), "{}", said(&wrong));
    // A volume that holds somebody's data.
    let uri = both.small.as_ref().expect("it runs").uri();
    let letter = both.folders[0].file("letter");
    std::fs::write(&letter, [b'a'; 8192]).expect("a file");
    run("nbdcopy", &[&letter, &uri]);
    let wrong = both.output(&["ldb", "--db=/a", "--create_if_missing", "put", "a", "b"]);
    assert!(said(&wrong).contains("small volume is no store's"), "{}", said(&wrong));
}
