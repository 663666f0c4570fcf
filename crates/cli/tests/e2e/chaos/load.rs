//! The load: threads that write and read blocks of their own, each over a connection to whichever client has the
//! volume, and hold every answer against the [`Checker`].
//!
//! When another client has taken the volume over they go on there, and keep asking the old one, which may only have
//! been paused: it must not show what is out of date, and must not acknowledge a write.

use super::checker::{Checker, Expected};
use crate::nbd::{Answer, Client, FLAG_FUA, FLUSH, READ, WRITE};
use flash::{BLOCK_BYTES, Random};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DEPTH: usize = 16;
const RUN_BLOCKS_MAX: u64 = 8;
const CHECK_BLOCKS: u64 = 32;
/// How often a client that has lost the volume is tried.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// A client that has the volume, from some moment on.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Grows with each that takes the volume over.
    pub term: u64,
    pub socket: PathBuf,
}

/// What all of the load has done.
#[derive(Default)]
pub struct Done {
    pub writes: AtomicU64,
    pub reads: AtomicU64,
    pub refused: AtomicU64,
    pub late: AtomicU64,
    pub probes: AtomicU64,
    pub checked: AtomicU64,
}

/// What the threads and the test share.
#[derive(Default)]
pub struct Shared {
    serving: Mutex<Option<Serving>>,
    /// Threads check all of their blocks when this grows, and do nothing else until it is done.
    check: AtomicU64,
    end: AtomicBool,
    wrong: Mutex<Vec<String>>,
    pub done: Done,
}

impl Shared {
    pub fn serve(&self, serving: Serving) {
        *self.serving.lock().expect("nobody panics with it") = Some(serving);
    }

    /// What was found wrong.
    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().expect("nobody panics with it").clone()
    }

    fn tell(&self, wrong: String) {
        self.wrong.lock().expect("nobody panics with it").push(wrong);
    }
}

/// The threads. They end when this is dropped.
pub struct Load {
    pub shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// How many checks each thread has done.
    checks: Vec<Arc<AtomicU64>>,
}

impl Load {
    /// `threads` of them over `blocks` of the volume.
    pub fn start(seed: u64, threads: u64, blocks: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let each = blocks / threads;
        let mut load =
            Self { shared: Arc::clone(&shared), threads: Vec::new(), checks: Vec::new() };
        for at in 0..threads {
            let checks = Arc::new(AtomicU64::new(0));
            load.checks.push(Arc::clone(&checks));
            let shared = Arc::clone(&shared);
            load.threads.push(std::thread::spawn(move || {
                Worker::new(seed, (at * each, each), shared, checks).run();
            }));
        }
        load
    }

    /// Has every block read and held against what it may hold.
    pub fn check(&self, within: Duration) -> Result<(), String> {
        let wanted = self.shared.check.fetch_add(1, Relaxed) + 1;
        let begun = Instant::now();
        while self.checks.iter().any(|done| done.load(Relaxed) < wanted) {
            if begun.elapsed() > within {
                return Err(format!("not all blocks could be read within {within:?}"));
            }
            if !self.shared.wrong().is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.end.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.tell("a thread of the load has panicked".into());
            }
        }
    }
}

/// What was asked, and is not answered yet.
enum Asked {
    Write {
        block: u64,
        versions: Vec<u64>,
    },
    Read {
        block: u64,
        expected: Vec<Expected>,
    },
    Flush,
    /// Of a client that has lost the volume.
    StaleWrite {
        block: u64,
    },
    StaleRead {
        block: u64,
    },
}

struct Connection {
    term: u64,
    client: Client,
    asked: BTreeMap<u64, Asked>,
    probed: Instant,
}

struct Worker {
    checker: Checker,
    random: Random,
    range: (u64, u64),
    shared: Arc<Shared>,
    checks: Arc<AtomicU64>,
    now: Option<Connection>,
    /// The last term that was heard of.
    term: u64,
    old: Vec<Connection>,
    /// The next block to be checked, while there is a check.
    checking: Option<u64>,
}

impl Worker {
    fn new(seed: u64, range: (u64, u64), shared: Arc<Shared>, checks: Arc<AtomicU64>) -> Self {
        Self {
            checker: Checker::new(seed, range.0, range.1),
            random: Random::new(seed ^ (range.0 + 1)),
            range,
            shared,
            checks,
            now: None,
            term: 0,
            old: Vec::new(),
            checking: None,
        }
    }

    fn run(mut self) {
        while !self.shared.end.load(Relaxed) && self.shared.wrong().is_empty() {
            self.follow();
            self.look_at_old_ones();
            let Some(mut connection) = self.now.take() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.turn(&mut connection).is_ok() {
                self.now = Some(connection);
            }
        }
    }

    /// Goes to whoever has the volume now.
    fn follow(&mut self) {
        let serving = self.shared.serving.lock().expect("nobody panics with it").clone();
        let Some(serving) = serving.filter(|serving| serving.term > self.term) else { return };
        self.term = serving.term;
        if let Some(mut old) = self.now.take() {
            // What it said while it had the volume may still lie here.
            while old.client.is_ready(Duration::ZERO) {
                let Ok(answer) = old.client.receive() else { break };
                self.answered(&mut old, answer);
            }
            self.old.push(old);
        }
        self.checker.taken_over();
        if self.checking.is_some() {
            self.checking = Some(self.range.0);
        }
        let connected = Client::connect(&serving.socket, super::VOLUME);
        self.now = connected.ok().map(|client| Connection {
            term: serving.term,
            client,
            asked: BTreeMap::new(),
            probed: Instant::now(),
        });
    }

    /// Asks as much as may be under way, and takes what is answered.
    fn turn(&mut self, on: &mut Connection) -> std::io::Result<()> {
        let wanted = self.shared.check.load(Relaxed);
        if self.checks.load(Relaxed) < wanted && self.checking.is_none() && on.asked.is_empty() {
            self.checking = Some(self.range.0);
        }
        let checks = self.checks.load(Relaxed) < wanted;
        while on.asked.len() < DEPTH {
            match self.checking {
                Some(block) if block < self.range.0 + self.range.1 => self.check(on, block)?,
                Some(_) if on.asked.is_empty() => {
                    self.checking = None;
                    self.checks.store(wanted, Relaxed);
                    return Ok(());
                }
                Some(_) => break,
                // What is under way ends first.
                None if checks => break,
                None => self.ask(on)?,
            }
        }
        let mut patience = Duration::from_millis(20);
        while on.client.is_ready(patience) {
            let answer = on.client.receive()?;
            self.answered(on, answer);
            patience = Duration::ZERO;
        }
        Ok(())
    }

    fn check(&mut self, on: &mut Connection, block: u64) -> std::io::Result<()> {
        let blocks = CHECK_BLOCKS.min(self.range.0 + self.range.1 - block);
        self.read(on, block, blocks)?;
        self.checking = Some(block + blocks);
        self.shared.done.checked.fetch_add(blocks, Relaxed);
        Ok(())
    }

    fn ask(&mut self, on: &mut Connection) -> std::io::Result<()> {
        let (first, count) = self.range;
        let block = first + self.random.below(count);
        let blocks = (1 + self.random.below(RUN_BLOCKS_MAX)).min(first + count - block);
        if self.random.chance(0.02) {
            let cookie = on.client.send(FLUSH, 0, 0, 0, &[])?;
            on.asked.insert(cookie, Asked::Flush);
            return Ok(());
        }
        if self.random.chance(0.4) {
            return self.read(on, block, blocks);
        }
        let free = (block..block + blocks).take_while(|&at| !self.checker.is_under_way(at)).count();
        if free == 0 {
            return self.read(on, block, blocks);
        }
        let versions: Vec<u64> = (block..).take(free).map(|at| self.checker.send(at)).collect();
        let data =
            (block..).zip(&versions).flat_map(|(at, &version)| self.checker.data(at, version));
        let data: Vec<u8> = data.collect();
        let flags = if self.random.chance(0.1) { FLAG_FUA } else { 0 };
        let cookie = on.client.send(WRITE, flags, offset(block), data.len() as u32, &data)?;
        on.asked.insert(cookie, Asked::Write { block, versions });
        Ok(())
    }

    fn read(&mut self, on: &mut Connection, block: u64, blocks: u64) -> std::io::Result<()> {
        let expected = (block..block + blocks).map(|at| self.checker.expect(at)).collect();
        let bytes = blocks as u32 * BLOCK_BYTES as u32;
        let cookie = on.client.send(READ, 0, offset(block), bytes, &[])?;
        on.asked.insert(cookie, Asked::Read { block, expected });
        Ok(())
    }

    fn answered(&mut self, on: &mut Connection, answer: Answer) {
        let asked = on.asked.remove(&answer.cookie).expect("only what was asked is answered");
        let late = on.term < self.term;
        let done = &self.shared.done;
        let told = match asked {
            Asked::Write { block, .. } | Asked::Read { block, .. } if answer.error != 0 => {
                // A client that is about to end refuses what it has; any other has no reason to.
                done.refused.fetch_add(1, Relaxed);
                if let Asked::Write { versions, .. } = &asked
                    && !late
                {
                    (block..).zip(versions).for_each(|(at, _)| self.checker.refused(at));
                }
                Ok(())
            }
            Asked::Write { block, versions } => {
                done.writes.fetch_add(1, Relaxed);
                done.late.fetch_add(u64::from(late), Relaxed);
                let mut each = (block..).zip(versions);
                each.try_for_each(|(at, version)| self.checker.acknowledged(at, version, late))
            }
            // It was sent while that client had the volume: what it shows was right then.
            Asked::Read { .. } if late => Ok(()),
            Asked::Read { block, expected } => {
                done.reads.fetch_add(1, Relaxed);
                let mut each = (block..).zip(expected).zip(answer.data.chunks(BLOCK_BYTES));
                each.try_for_each(|((at, expected), data)| self.checker.read(at, expected, data))
            }
            Asked::Flush => Ok(()),
            Asked::StaleWrite { block } if answer.error == 0 => Err(format!(
                "block {block}: a client that has lost the volume acknowledged a write"
            )),
            Asked::StaleRead { block } if answer.error == 0 => {
                let is_old = self.checker.is_out_of_date(block, &answer.data);
                let shown = format!(
                    "block {block}: a client that has lost the volume showed an old version"
                );
                if is_old { Err(shown) } else { Ok(()) }
            }
            Asked::StaleWrite { .. } | Asked::StaleRead { .. } => Ok(()),
        };
        if let Err(wrong) = told {
            self.shared.tell(format!("term {} of {}: {wrong}", on.term, self.term));
        }
    }

    /// Takes what clients that have lost the volume still say, and asks them more.
    fn look_at_old_ones(&mut self) {
        for mut old in std::mem::take(&mut self.old) {
            let mut lives = true;
            while lives && old.client.is_ready(Duration::ZERO) {
                match old.client.receive() {
                    Ok(answer) => self.answered(&mut old, answer),
                    Err(_) => lives = false,
                }
            }
            if lives && old.probed.elapsed() > PROBE_EVERY && old.asked.len() < 2 * DEPTH {
                lives = self.probe(&mut old).is_ok();
            }
            if lives {
                self.old.push(old);
            }
        }
    }

    fn probe(&mut self, old: &mut Connection) -> std::io::Result<()> {
        old.probed = Instant::now();
        let block = self.range.0 + self.random.below(self.range.1);
        let cookie = old.client.send(READ, 0, offset(block), BLOCK_BYTES as u32, &[])?;
        old.asked.insert(cookie, Asked::StaleRead { block });
        let data = self.checker.stale(block);
        let cookie = old.client.send(WRITE, FLAG_FUA, offset(block), BLOCK_BYTES as u32, &data)?;
        old.asked.insert(cookie, Asked::StaleWrite { block });
        self.shared.done.probes.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn offset(block: u64) -> u64 {
    block * BLOCK_BYTES as u64
}
