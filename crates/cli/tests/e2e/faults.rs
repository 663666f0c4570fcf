//! The whole server over a medium that delays, fails, tears and lies, by seed: emulated flash with every
//! fault on. A client keeps 16 requests in flight and a model of what each block may hold.
//!
//! Held to: every request ends, within the patience of the client and with no word of a late one in the
//! log that is not resolved; a read gives what was acknowledged, or an error; nothing panics; every stop
//! ends within its bound, and says so by its status; the next start works, or is refused in words.
//!
//! `WEIR_E2E_SEED` repeats one seed, `WEIR_E2E_FAULTS` runs as many from 1 on as it says.

use crate::nbd::{Answer, Client, FLAG_FUA, FLUSH, READ, TRIM, WRITE};
use crate::scratch::Scratch;
use crate::server::Server;
use flash::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

const BLOCK: usize = flash::BLOCK_BYTES;
const BLOCKS: u64 = 4096;
const DEPTH: usize = 16;
const RUN_BLOCKS_MAX: u64 = 32;
/// A block that was never written, or trimmed.
const ZEROES: u64 = 0;
/// What `stop_within` of the config gives a stop, and what the process may take beside.
const STOP_WITHIN: Duration = Duration::from_secs(4);
const STOP_SLACK: Duration = Duration::from_secs(20);

#[test]
fn every_request_and_every_stop_ends_whatever_the_medium_does() {
    let one = std::env::var("WEIR_E2E_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let many = std::env::var("WEIR_E2E_FAULTS").ok().and_then(|count| count.parse::<u64>().ok());
    let seeds = one.map_or(1..=many.unwrap_or(8), |seed| seed..=seed);
    let mut seen = Seen::default();
    for seed in seeds {
        println!("WEIR_E2E_SEED={seed} repeats what follows");
        run(seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(one.is_some() || seen.errors > 0 && seen.unclean > 0, "no fault was met: {seen:?}");
}

/// What a run came to.
#[derive(Debug, Default)]
struct Seen {
    answers: u64,
    /// Answers that were errors.
    errors: u64,
    /// Stops that could not make all durable.
    unclean: u64,
    refused: u64,
    longest: Duration,
}

/// What goes wrong in a run.
struct Faults {
    text: String,
    /// What was acknowledged may be lost, or older when it comes back after a restart.
    lies: bool,
    /// A read may be an error.
    unreadable: bool,
}

impl Faults {
    /// Each seed has a few kinds of faults, and all of them meet in every four seeds.
    fn draw(seed: u64, random: &mut Random) -> Self {
        let mut text = format!("seed = {seed}\n");
        let mut add = |key: &str, on: bool, value: String| {
            if on {
                text.push_str(&format!("{key} = {value}\n"));
            }
        };
        let rate = |random: &mut Random, most: f64| (0.1 + 0.9 * random.fraction()) * most;
        let kind = seed % 4;
        let lies = kind == 3;
        add("slow", true, rate(random, 0.02).to_string());
        add("slow_for", true, "\"80ms\"".into());
        add("program_fail", kind != 2, rate(random, 0.002).to_string());
        add("erase_fail", kind != 2, rate(random, 0.01).to_string());
        add("correctable", true, rate(random, 0.05).to_string());
        add("flush_fail", kind == 1 || kind == 2, rate(random, 0.05).to_string());
        add("io_error", kind == 0, rate(random, 0.0005).to_string());
        add("uncorrectable", lies, rate(random, 0.001).to_string());
        for key in ["lost_writes", "stray_writes", "stray_reads", "flipped_reads"] {
            add(key, lies, rate(random, 0.002).to_string());
        }
        // Of a life and its medium, pages that a failed program has left are none of the client's.
        Self { text, lies, unreadable: lies }
    }
}

fn config(scratch: &Scratch, seed: u64, faults: &Faults) -> String {
    let config = scratch.file("weir.toml");
    let (data, socket) = (scratch.data(), scratch.data().join("nbd.sock"));
    let shards = 1 + seed / 4 % 2;
    let kept = if seed.is_multiple_of(3) { "off" } else { "auto" };
    let fast = scratch.file("fast");
    let fast = match seed % 5 {
        4 => format!("[device.fast]\npath = {fast:?}\ncapacity = \"16MiB\"\n"),
        _ => String::new(),
    };
    let text = format!(
        "[server]\nslow_request = \"5s\"\nstop_within = \"{}s\"\n\
         [device]\npath = {data:?}\nprofile = \"instant\"\nshards = {shards}\nop_percent = 60\n\
         kept_memory = {kept:?}\n[device.faults]\n{}{fast}[nbd]\nunix = {socket:?}\n\
         [[volume]]\nname = \"default\"\nsize = \"{}KiB\"\n",
        STOP_WITHIN.as_secs(),
        faults.text,
        BLOCKS * 4,
    );
    fs::write(&config, text).expect("a config");
    config
}

fn run(seed: u64, seen: &mut Seen) {
    let scratch = Scratch::new(&format!("faults{seed}"));
    fs::create_dir_all(scratch.data()).expect("a folder");
    let mut random = Random::new(seed);
    let mut model = Model::new();
    // A device keeps the faults that it was made with.
    let faults = Faults::draw(seed, &mut random);
    for life in 0..3 {
        let config = config(&scratch, seed, &faults);
        let args = ["--config", &*config];
        let context = format!("seed={seed} life={life}");
        let Some(mut server) = Server::start_or_refuse(&scratch, &args) else {
            seen.refused += 1;
            assert!(faults.lies, "{context}: refused though nothing lied");
            return;
        };
        if life > 0 {
            let settled = model.settle(&mut server.connect(), &faults, &context);
            settled.unwrap_or_else(|why| panic!("{context}: {why}\n{}", server.log()));
        }
        let served = serve(&mut server, &mut model, &mut random, &faults, seen, &context);
        served.unwrap_or_else(|why| panic!("{context}: {why}\n{}", server.log()));
        let signal = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT][life as usize % 3];
        let (status, took) = server.stop(signal, STOP_WITHIN + STOP_SLACK);
        seen.longest = seen.longest.max(took);
        let code = status.code();
        assert!(matches!(code, Some(0 | 2)), "{context}: ended with {status:?}");
        seen.unclean += u64::from(code == Some(2));
    }
}

/// Requests until enough were answered, well or not.
fn serve(
    server: &mut Server,
    model: &mut Model,
    random: &mut Random,
    faults: &Faults,
    seen: &mut Seen,
    context: &str,
) -> Result<(), String> {
    let mut client = server.connect();
    let count = 600 + random.below(600);
    let mut submitted = 0;
    while submitted < count || !model.in_flight.is_empty() {
        while submitted < count && model.in_flight.len() < DEPTH {
            model.submit(&mut client, random);
            submitted += 1;
        }
        let answer = client.receive().map_err(|error| {
            let left = model.in_flight.len();
            format!("{left} requests have no answer: {error}")
        })?;
        seen.answers += 1;
        seen.errors += u64::from(answer.error != 0);
        model.take(&answer, faults, context)?;
    }
    Ok(())
}

#[derive(Clone)]
struct State {
    /// What a read may return when nothing is in flight: one version, or more after an error.
    now: BTreeSet<u64>,
    /// What a restart may show beside.
    later: BTreeSet<u64>,
    busy: bool,
}

struct InFlight {
    first: u64,
    count: u64,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Write(u64),
    Trim,
    Read,
    Flush,
}

struct Model {
    blocks: Vec<State>,
    in_flight: BTreeMap<u64, InFlight>,
    version_next: u64,
}

impl Model {
    fn new() -> Self {
        let fresh = State { now: BTreeSet::from([ZEROES]), later: BTreeSet::new(), busy: false };
        Self { blocks: vec![fresh; BLOCKS as usize], in_flight: BTreeMap::new(), version_next: 1 }
    }

    fn submit(&mut self, client: &mut Client, random: &mut Random) {
        if random.chance(0.04) {
            let cookie = client.send(FLUSH, 0, 0, 0, &[]).expect("the server takes requests");
            self.in_flight.insert(cookie, InFlight { first: 0, count: 0, what: What::Flush });
            return;
        }
        let (first, count) = loop {
            let space = if random.chance(0.5) { BLOCKS / 8 } else { BLOCKS };
            let first = random.below(space);
            let count = (1 + random.below(RUN_BLOCKS_MAX)).min(BLOCKS - first);
            let mut run = self.blocks[first as usize..(first + count) as usize].iter();
            if run.all(|block| !block.busy) {
                break (first, count);
            }
        };
        let (offset, length) = (first * BLOCK as u64, count as u32 * BLOCK as u32);
        let flags = if random.chance(0.2) { FLAG_FUA } else { 0 };
        let (cookie, what) = match random.below(10) {
            0..=2 => (client.send(READ, 0, offset, length, &[]), What::Read),
            3 => (client.send(TRIM, flags, offset, length, &[]), What::Trim),
            _ => {
                let version = self.version_next;
                self.version_next += 1;
                let data: Vec<u8> =
                    (first..first + count).flat_map(|lba| stamp(lba, version)).collect();
                (client.send(WRITE, flags, offset, length, &data), What::Write(version))
            }
        };
        let cookie = cookie.expect("the server takes requests");
        for block in &mut self.blocks[first as usize..(first + count) as usize] {
            block.busy = true;
        }
        self.in_flight.insert(cookie, InFlight { first, count, what });
    }

    fn take(&mut self, answer: &Answer, faults: &Faults, context: &str) -> Result<(), String> {
        let done = self.in_flight.remove(&answer.cookie).expect("a reply to what was asked");
        let InFlight { first, count, what } = done;
        for lba in first..first + count {
            let block = &mut self.blocks[lba as usize];
            block.busy = false;
            let version = match what {
                What::Write(version) => version,
                What::Trim => ZEROES,
                What::Read if answer.error == 0 => {
                    let at = (lba - first) as usize * BLOCK;
                    let found = read_stamp(lba, &answer.data[at..at + BLOCK], context)?;
                    if !block.now.contains(&found) {
                        let may = &block.now;
                        return Err(format!("block {lba} is version {found}, may be {may:?}"));
                    }
                    continue;
                }
                What::Read if !faults.unreadable => {
                    return Err(format!("block {lba}: errno {} though nothing lies", answer.error));
                }
                What::Read | What::Flush => continue,
            };
            if answer.error == 0 {
                // A trim that no flush covers may come undone, and with it what was before.
                block.later.append(&mut block.now);
                if version != ZEROES {
                    block.later.clear();
                }
                block.now.insert(version);
            } else {
                block.now.insert(version);
            }
        }
        Ok(())
    }

    /// Reads everything after a restart; what is found stays.
    fn settle(
        &mut self,
        client: &mut Client,
        faults: &Faults,
        context: &str,
    ) -> Result<(), String> {
        for lba in 0..BLOCKS {
            let block = &mut self.blocks[lba as usize];
            match client.try_read(lba * BLOCK as u64, BLOCK as u32) {
                Ok(bytes) => {
                    let found = read_stamp(lba, &bytes, context)?;
                    let legal = block.now.contains(&found) || block.later.contains(&found);
                    // A lie before a restart can hide what was newest.
                    if !legal && !faults.lies {
                        return Err(format!(
                            "block {lba} came back as version {found}, may be {:?} or {:?}",
                            block.now, block.later
                        ));
                    }
                    block.now = BTreeSet::from([found]);
                    block.later.clear();
                }
                Err(errno) if !faults.unreadable => {
                    return Err(format!("block {lba} came back as errno {errno}"));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// A block full of its address and version.
/// A device of one kind whose flash does not answer any more, or takes no page at all, has nowhere to put
/// what failed: its writes end with an error all the same, and so does the server.
#[test]
fn writes_of_a_device_that_is_gone_end_with_an_error() {
    for faults in ["capacity_gone = \"300ms\"", "io_error = 1.0"] {
        let scratch = Scratch::new("gone");
        let path = scratch.file("weir.toml");
        let text = format!(
            "[device]\nprofile = \"instant\"\nkept_memory = \"off\"\n[device.faults]\n{faults}\n\
             [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
        );
        fs::write(&path, text).expect("a config");
        let server = Server::start(&scratch, &["--config", &path]);
        let mut client = server.connect();
        let begun = Instant::now();
        let error = loop {
            match client.try_write(0, &[1; 4096]) {
                Ok(()) => assert!(begun.elapsed() < STOP_WITHIN, "{faults}: it never fails"),
                Err(error) => break error,
            }
        };
        assert_eq!(error, libc::EIO as u32, "{faults}");
        client.try_write(4096, &[1; 4096]).expect_err("nothing is written any more");
        let (status, _) = server.stop(libc::SIGTERM, STOP_WITHIN);
        assert_eq!(status.code(), Some(2), "{faults}");
    }
}

fn stamp(lba: u64, version: u64) -> Vec<u8> {
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&lba.to_le_bytes());
    pair[8..].copy_from_slice(&version.to_le_bytes());
    pair.repeat(BLOCK / 16)
}

fn read_stamp(lba: u64, bytes: &[u8], context: &str) -> Result<u64, String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(ZEROES);
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if bytes != stamp(lba, version) {
        return Err(format!("{context}: block {lba} is wrong: {:?}...", &bytes[..32]));
    }
    Ok(version)
}
