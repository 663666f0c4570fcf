//! The coarse map against a plain model of what its reads and writes do to the data of each unit.

use super::{Indirection, IndirectionConfig};
use crate::caching::InPlace;
use crate::driver::Failure;
use crate::load::{Client, Pace, Window, run};
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use crate::workload::Pattern;
use flash::{Hint, Instant, MICROSECOND, Random, RequestError, SECOND};
use nand::Profile;
use std::collections::BTreeMap;

const UNIT: u64 = 65536;
const BLOCKS: u64 = 16;

/// What happened inside, in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Inside {
    Begins(Io),
    Ends(Io),
}

/// A device that remembers what was asked of it, and may fail its writes.
struct Watched {
    inner: InPlace,
    open: BTreeMap<u64, Io>,
    seen: Vec<Inside>,
    fails: bool,
}

impl Target for Watched {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
    fn flash_bytes(&self) -> u64 {
        self.inner.bytes()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.seen.push(Inside::Begins(io));
        self.open.insert(token, io);
        self.inner.submit(now, token, io)
    }
    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.inner.advance(now)
    }
    fn take_done(&mut self) -> Option<Done> {
        let mut done = self.inner.take_done()?;
        let io = self.open.remove(&done.token).expect("it is open");
        self.seen.push(Inside::Ends(io));
        if self.fails && io.kind == IoKind::Write {
            done.result = Err(RequestError::NoSpace);
        }
        Some(done)
    }
    fn counts(&self) -> TargetCounts {
        self.inner.counts()
    }
    fn counter(&self, _: &str) -> u64 {
        0
    }
    fn erase_count_max(&self) -> u32 {
        0
    }
    fn queue_at(&self, _: u64) -> u32 {
        0
    }
}

fn device(units: u64, room: u64, merge_ns: u64) -> Indirection<Watched> {
    let mut profile = Profile::builtin("optane").expect("built in");
    (profile.read_ns, profile.program_ns) = (vec![100_000], vec![5_000_000]);
    // A part of a unit beyond the last whole one.
    let inner = InPlace::new(&profile, 64, units * BLOCKS + 5, Instant(0));
    let watched = Watched { inner, open: BTreeMap::new(), seen: Vec::new(), fails: false };
    let config = IndirectionConfig { unit_bytes: UNIT, buffer_bytes: room * UNIT, merge_ns };
    Indirection::new(watched, config)
}

fn io(kind: IoKind, block: u64, blocks: u64) -> Io {
    Io { kind, offset: block * 4096, bytes: blocks * 4096, hint: Hint::default() }
}

/// Lets everything end; returns the tokens in the order of their ends, with the instants.
fn drain(target: &mut Indirection<Watched>) -> Vec<(u64, u64)> {
    let mut ends = Vec::new();
    while let Some(at) = target.deadline() {
        target.advance(at).expect("no failure");
        while let Some(done) = target.take_done() {
            assert_eq!(done.result, Ok(()));
            ends.push((done.token, done.at.0));
        }
    }
    ends
}

/// What the units hold after what was seen inside, if the pieces of each unit are merged in this order:
/// for each unit the token, first block and blocks of each write.
fn contents(seen: &[Inside], pieces: &BTreeMap<u64, Vec<(u64, u64, u64)>>) -> BTreeMap<u64, u64> {
    let mut flash: BTreeMap<u64, u64> = BTreeMap::new();
    let mut read: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut writing: BTreeMap<u64, bool> = BTreeMap::new();
    let mut merged: BTreeMap<u64, usize> = BTreeMap::new();
    for step in seen {
        let (Inside::Begins(io) | Inside::Ends(io)) = *step;
        let unit = io.offset / UNIT;
        let whole = io.bytes == UNIT && io.offset % UNIT == 0;
        let blocks = unit * BLOCKS..(unit + 1) * BLOCKS;
        match (*step, io.kind) {
            (Inside::Begins(_), IoKind::Read) if whole => {
                assert!(!writing.get(&unit).is_some_and(|it| *it), "unit {unit} is being written");
            }
            (Inside::Ends(_), IoKind::Read) if whole => {
                let of = |block| flash.get(&block).copied().unwrap_or(0);
                read.insert(unit, blocks.map(of).collect());
            }
            (Inside::Begins(_), IoKind::Write) => {
                assert!(whole, "{io:?} is not a unit");
                assert!(!writing.insert(unit, true).unwrap_or(false), "unit {unit}: two writes");
                let at = merged.entry(unit).or_default();
                let (token, first, count) = pieces[&unit][*at];
                *at += 1;
                let mut data = read.remove(&unit).unwrap_or_default();
                if data.is_empty() {
                    assert_eq!(count, BLOCKS, "unit {unit} was not read before a part was merged");
                    data.resize(BLOCKS as usize, 0);
                }
                let part = (first - unit * BLOCKS) as usize..;
                data[part].iter_mut().take(count as usize).for_each(|it| *it = token);
                flash.extend(blocks.zip(data));
            }
            (Inside::Ends(_), IoKind::Write) => {
                writing.insert(unit, false);
            }
            _ => {}
        }
    }
    flash
}

#[test]
fn the_units_hold_what_was_written_whatever_the_sizes_and_order() {
    for seed in 1..=10 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut target = device(12, 3, 50_000);
        let mut plain: BTreeMap<u64, u64> = BTreeMap::new();
        let mut pieces: BTreeMap<u64, Vec<(u64, u64, u64)>> = BTreeMap::new();
        let (mut ended, mut parts) = (0, 0);
        for token in 1..=400 {
            let kind = if random.chance(0.2) { IoKind::Read } else { IoKind::Write };
            let blocks = if random.chance(0.3) { BLOCKS } else { 1 + random.below(40) };
            let first = random.below(12 * BLOCKS - blocks + 1);
            let first = if random.chance(0.5) { first / BLOCKS * BLOCKS } else { first };
            let end = (first + blocks).min(12 * BLOCKS);
            if kind == IoKind::Write {
                plain.extend((first..end).map(|block| (block, token)));
                for unit in first / BLOCKS..end.div_ceil(BLOCKS) {
                    let from = first.max(unit * BLOCKS);
                    let count = end.min((unit + 1) * BLOCKS) - from;
                    parts += u64::from(count < BLOCKS);
                    pieces.entry(unit).or_default().push((token, from, count));
                }
            }
            target.submit(target.now(), token, io(kind, first, end - first)).expect("takes it");
            if random.chance(0.3) {
                let at = target.deadline().expect("something is in flight");
                target.advance(at).expect("no failure");
            }
            while target.take_done().is_some() {
                ended += 1;
            }
        }
        ended += drain(&mut target).len();
        assert_eq!(ended, 400);
        assert_eq!(target.counter("units_merged"), parts);
        let found = contents(&target.inner_mut().seen, &pieces);
        for (block, token) in plain {
            assert_eq!(found.get(&block), Some(&token), "block {block}");
        }
    }
}

#[test]
fn a_write_is_acknowledged_with_room_and_the_next_of_its_unit_after_the_program() {
    let mut target = device(12, 2, 0);
    for token in 0..3 {
        target.submit(Instant(0), token, io(IoKind::Write, 0, 16)).expect("takes it");
    }
    target.submit(Instant(0), 3, io(IoKind::Write, 16, 16)).expect("takes it");
    target.submit(Instant(0), 4, io(IoKind::Write, 32, 16)).expect("takes it");
    let ends: BTreeMap<u64, u64> = drain(&mut target).into_iter().collect();
    assert_eq!((ends[&0], ends[&3]), (0, 0), "the buffer has room for two units");
    assert!(ends[&1] > 5_000_000 && ends[&2] > 2 * 5_000_000, "{ends:?}");
    assert!(ends[&4] > 5_000_000, "there was no room: {ends:?}");
    assert_eq!(target.counter("units_merged"), 0);
}

#[test]
fn reads_wait_behind_a_write_that_waits_for_room_and_a_buffered_unit_is_read_at_once() {
    let mut target = device(12, 1, 0);
    target.submit(Instant(0), 0, io(IoKind::Write, 0, 16)).expect("takes it");
    target.submit(Instant(0), 1, io(IoKind::Read, 3, 2)).expect("takes it");
    target.submit(Instant(0), 2, io(IoKind::Write, 16, 16)).expect("takes it");
    target.submit(Instant(0), 3, io(IoKind::Read, 100, 2)).expect("takes it");
    let ends: BTreeMap<u64, u64> = drain(&mut target).into_iter().collect();
    assert_eq!((ends[&0], ends[&1]), (0, 0));
    assert!(ends[&3] > ends[&2] && ends[&2] > 5_000_000, "{ends:?}");
}

#[test]
fn merges_take_the_firmware_one_after_another() {
    let mut target = device(4000, 4000, 100 * MICROSECOND);
    let client = Client {
        pace: Pace::Depth(512),
        pattern: Pattern::Uniform,
        bytes: 4096,
        ..Client::default()
    };
    let window = Window { warmup_ns: SECOND / 10, measure_ns: SECOND };
    let seen = run(&mut target, &[client], window, 1).expect("nothing fails").remove(0);
    let each = seen.per_second(seen.writes_done);
    assert!((each / 10_000.0 - 1.0).abs() < 0.02, "{each} a second");
    assert_eq!(target.counts().bytes_written / 4096, target.counter("units_merged"));
}

#[test]
fn a_trim_of_part_of_a_unit_changes_nothing_and_a_flush_tells_of_what_failed() {
    let mut target = device(12, 2, 0);
    target.submit(Instant(0), 0, io(IoKind::Erase, 8, 32)).expect("takes it");
    drain(&mut target);
    let trims: Vec<_> = target
        .inner_mut()
        .seen
        .iter()
        .filter_map(|step| match step {
            Inside::Begins(io) if io.kind == IoKind::Erase => Some((io.offset, io.bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(trims, [(UNIT, UNIT)]);
    target.inner_mut().fails = true;
    target.submit(target.now(), 1, io(IoKind::Write, 0, 16)).expect("takes it");
    drain(&mut target);
    for (token, failed) in [(2, true), (3, false)] {
        target.submit(target.now(), token, io(IoKind::Flush, 0, 0)).expect("takes it");
        assert_eq!(target.take_done().expect("at once").result.is_err(), failed);
    }
    let beyond = io(IoKind::Write, 12 * BLOCKS - 1, 2);
    target.submit(target.now(), 4, beyond).expect("takes it");
    let refused = target.take_done().expect("at once").result;
    assert_eq!(refused, Err(RequestError::OutOfRange));
}
