//! A store whose processes are killed at moments that a seed draws: one, two or all three of them, under puts, deletions and
//! files, or while the store opens. After each, what is there is what was acknowledged last, or what was on its way.
//!
//! A release run goes on for longer: `WEIR_STORE_CRASH_MINUTES=60 WEIR_E2E_SEED=1 ./x e2e whatever_is_killed`.

use crate::rocksdb::Both;
use crate::store::Served;
use crate::tools::pattern;
use client::{Error, Store};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
const KEYS: u64 = 40;
const FILES: u64 = 3;
/// Rounds of a short run.
const ROUNDS: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(90);

/// Draws from a seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// What a name holds: the number of a version; `None` of what is not there.
type Held = Option<u64>;

fn bytes_of(version: u64, name: &str) -> Vec<u8> {
    let count = if name.starts_with("file") { 900_000 } else { 100 };
    pattern(version, count + (version % 60_000 * 7919 % 60_000) as usize)
}

/// What a thread knows of its names.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<String, Held>,
    /// Of whose last change nobody heard the end.
    going: Option<(String, Held)>,
    changes: u64,
}

/// Changes one name; `Err` if nobody knows what became of it.
fn change(store: &Store, name: &str, to: Held) -> Result<(), Error> {
    match (name.starts_with("file"), to) {
        (false, Some(version)) => store.put(name.as_bytes(), &bytes_of(version, name)),
        (false, None) => store.delete(name.as_bytes()),
        (true, Some(version)) => {
            let bytes = bytes_of(version, name);
            store.put_file(name, &mut &bytes[..], bytes.len() as u64)
        }
        (true, None) => store.delete_file(name),
    }
}

/// Changes names until the store is gone.
fn change_on(store: &Store, thread: u64, seed: u64, known: &mut Known) {
    let mut random = Random::new(seed);
    loop {
        let is_file = random.below(40) == 0;
        let name = match is_file {
            true => format!("file-{thread}/{}", random.below(FILES)),
            false => format!("{thread}:{}", random.below(KEYS)),
        };
        let before = known.acknowledged.get(&name).copied().flatten();
        // A file is not written over: it is there, or it is not.
        let deletes = if is_file { before.is_some() } else { random.below(6) == 0 };
        let to = (!deletes).then_some(seed << 20 | known.changes);
        match change(store, &name, to) {
            Ok(()) => drop(known.acknowledged.insert(name, to)),
            // No room for a moment: nothing was done.
            Err(Error::Refused { code: 507, .. }) => {}
            Err(_) => {
                known.going = Some((name, to));
                return;
            }
        }
        known.changes += 1;
    }
}

fn found(store: &Store, name: &str, context: &str) -> Option<Vec<u8>> {
    let read = || match name.starts_with("file") {
        false => store.get(name.as_bytes()),
        true => {
            let mut bytes = Vec::new();
            store.file(name, &mut bytes).map(|is_there| is_there.then_some(bytes))
        }
    };
    read().unwrap_or_else(|error| panic!("{context}: {name}: {error}"))
}

/// What is there is what was acknowledged, or what was going: then that is known from now on.
fn check(store: &Store, known: &mut Known, context: &str) {
    let going = known.going.take();
    if let Some((name, _)) = &going {
        known.acknowledged.entry(name.clone()).or_insert(None);
    }
    for (name, held) in &mut known.acknowledged {
        let there = found(store, name, context);
        let is = |version: Held| there == version.map(|version| bytes_of(version, name));
        if is(*held) {
            continue;
        }
        let later = going.as_ref().filter(|(of, _)| of == name).map(|(_, to)| *to);
        assert!(
            later.is_some_and(is),
            "{context}: {name}: {} bytes are there, and {held:?} was acknowledged, {later:?} going",
            there.map_or(0, |bytes| bytes.len())
        );
        *held = later.flatten();
    }
}

/// Kills some of the three at a moment, while clients change names.
fn kill_under_load(both: &mut Both, served: &mut Served, known: &mut [Known], random: &mut Random) {
    let (wait, which) = (Duration::from_millis(random.below(2500)), 1 + random.below(7));
    let seeds: Vec<u64> = (0..THREADS).map(|_| random.below(1 << 40)).collect();
    std::thread::scope(|scope| {
        for ((thread, known), seed) in (0..).zip(known.iter_mut()).zip(seeds) {
            let store = served.client();
            scope.spawn(move || change_on(&store, thread, seed, known));
        }
        std::thread::sleep(wait);
        for at in 0..2 {
            if which & 1 << at != 0 {
                both.kill(at);
            }
        }
        // Without units it may go on for as long as memory lasts.
        if which & 4 == 0 {
            std::thread::sleep(Duration::from_millis(random.below(1500)));
        }
        served.child.kill().expect("it is ours");
    });
}

#[test]
fn whatever_is_killed_at_any_moment_what_was_acknowledged_is_there() {
    let minutes = std::env::var("WEIR_STORE_CRASH_MINUTES").ok().and_then(|text| text.parse().ok());
    let time = minutes.map(|minutes: u64| Duration::from_secs(60 * minutes));
    let seed = std::env::var("WEIR_E2E_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (mut random, begun) = (Random::new(seed), Instant::now());
    let mut both = Both::start("storecrash", "512MiB");
    let mut known: Vec<Known> = (0..THREADS).map(|_| Known::default()).collect();
    let (mut round, mut killed_opening) = (0, 0);
    while time.map_or(round < ROUNDS, |time| begun.elapsed() < time) {
        let context = format!("WEIR_E2E_SEED={seed} round {round}");
        if random.below(3) == 0 {
            killed_opening += u64::from(kill_while_it_opens(&mut both, &mut random));
        }
        let mut served = Served::start(&both, "st", &["--slices", "2"]);
        kill_under_load(&mut both, &mut served, &mut known, &mut random);
        drop(served);
        both.start_again();
        let served = Served::start(&both, "st", &[]);
        let store = served.client();
        known.iter_mut().for_each(|known| check(&store, known, &context));
        if round % 8 == 0 {
            assert!(served.run(&["scrub"]).contains("all sound"), "{context}");
        }
        match random.below(2) {
            0 => served.stop(),
            _ => drop(served),
        }
        round += 1;
    }
    let changes: u64 = known.iter().map(|known| known.changes).sum();
    println!(
        "seed {seed}: {round} rounds, {killed_opening} killed while opening, {changes} acknowledged changes"
    );
    assert!(changes > 20 * round, "{changes} changes in {round} rounds");
}

/// One of the two servers dies while the store opens; true if that did not open then.
fn kill_while_it_opens(both: &mut Both, random: &mut Random) -> bool {
    let (at, wait) = (random.below(2) as usize, Duration::from_millis(random.below(400)));
    let data = both.scratch().path().join("st");
    let opened = std::thread::scope(|scope| {
        let pid = both.pid(at);
        scope.spawn(move || {
            std::thread::sleep(wait);
            // SAFETY: kill takes no pointer; the server is ours, and nobody reaps it meanwhile.
            unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
        });
        let begun = Instant::now();
        let opened = Served::try_start(both, data, &["--slices", "2"]);
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        opened.is_ok()
    });
    both.kill(at);
    both.start_again();
    !opened
}
