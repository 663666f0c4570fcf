//! What the cache does with data, against a plain model: each move that it makes is carried out on
//! arrays, and what reads find there is held against the last write.

use super::lines::{Lines, NONE};
use super::{Caching, CachingConfig, InPlace};
use crate::load::{Client, Pace, Window, run};
use crate::target::{Io, IoKind, Target};
use crate::workload::Pattern;
use flash::{Hint, Instant, MILLISECOND, Random};
use nand::Profile;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Data on its way, in the order in which the I/Os that move it were submitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moved {
    /// Into a line or out of it, for a command; out of it to be cleaned, if for none.
    Line { token: Option<u64>, is_read: bool, line: u32, block: u32 },
    /// What was read to be cleaned is behind.
    Behind { first: u32, end: u32 },
    /// A command reads or writes behind.
    Command { token: u64, first: u32, count: u32 },
    /// What a command read behind goes to a line.
    Filled { line: u32, block: u32 },
}

type Cache = Caching<InPlace, InPlace>;

impl<F: Target, S: Target> Caching<F, S> {
    pub(super) fn note_run(&mut self, token: Option<u64>, run: &Range<u32>, kind: IoKind) {
        let is_read = kind == IoKind::Read;
        for block in run.clone() {
            let line = self.lines.find(block);
            self.trace.push(Moved::Line { token, is_read, line, block });
        }
    }
}

const BLOCKS: u32 = 4096;

fn config() -> CachingConfig {
    CachingConfig {
        cores: 1,
        command_ns: 1000,
        line_ns: 100,
        clean_above: 20.0,
        clean_full: 60.0,
        clean_depth: 8,
        clean_bytes: 65536,
        past_bytes: 262_144,
        past_io_bytes: 65536,
    }
}

/// A cache of `lines` lines before a device that is 20 times as slow.
fn cache(lines: u64, config: CachingConfig) -> Cache {
    let optane = Profile::builtin("optane").expect("built in");
    let slow = Profile {
        read_ns: vec![100_000],
        program_ns: vec![100_000],
        bus_ns_per_byte: 30.0,
        ..optane.clone()
    };
    let fast = InPlace::new(&optane, 8, lines + 16, Instant(0));
    Caching::new(fast, InPlace::new(&slow, 4, u64::from(BLOCKS), Instant(0)), config)
}

fn io(kind: IoKind, block: u32, blocks: u32) -> Io {
    let (offset, bytes) = (u64::from(block) * 4096, u64::from(blocks) * 4096);
    Io { kind, offset, bytes, hint: Hint::default() }
}

/// Where data is, by the moves so far. Data is the token of the write that it came from.
#[derive(Default)]
struct Data {
    lines: BTreeMap<u32, u64>,
    behind: BTreeMap<u32, u64>,
    cleaned: BTreeMap<u32, u64>,
    fetched: BTreeMap<u32, u64>,
    /// What reads found, by token.
    found: BTreeMap<u64, BTreeMap<u32, u64>>,
}

impl Data {
    fn carry_out(&mut self, cache: &mut Cache, writes: &BTreeSet<u64>) {
        let get = |map: &BTreeMap<u32, u64>, at: u32| map.get(&at).copied().unwrap_or(0);
        for moved in std::mem::take(&mut cache.trace) {
            match moved {
                Moved::Line { token: Some(token), is_read: false, line, .. } => {
                    self.lines.insert(line, token);
                }
                Moved::Line { token: Some(token), line, block, .. } => {
                    let data = get(&self.lines, line);
                    self.found.entry(token).or_default().insert(block, data);
                }
                Moved::Line { token: None, line, block, .. } => {
                    self.cleaned.insert(block, get(&self.lines, line));
                }
                Moved::Behind { first, end } => {
                    for block in first..end {
                        let data = self.cleaned.remove(&block).expect("it was read first");
                        self.behind.insert(block, data);
                    }
                }
                Moved::Command { token, first, count } => {
                    for block in first..first + count {
                        if writes.contains(&token) {
                            self.behind.insert(block, token);
                        } else {
                            let data = get(&self.behind, block);
                            self.fetched.insert(block, data);
                            self.found.entry(token).or_default().insert(block, data);
                        }
                    }
                }
                Moved::Filled { line, block } => {
                    let data = self.fetched.remove(&block).expect("it was fetched");
                    self.lines.insert(line, data);
                }
            }
        }
    }
}

/// A random command that touches nothing which is being written.
fn draw(random: &mut Random, next: &mut u32, busy: &BTreeSet<u32>) -> Option<Io> {
    let kind = if random.chance(0.4) { IoKind::Read } else { IoKind::Write };
    let io = if random.chance(0.2) {
        // A stream that is to go past.
        let first = *next;
        *next = (*next + 16) % BLOCKS;
        io(IoKind::Write, first, 16)
    } else {
        let blocks = 1 + random.below(24) as u32;
        // Half of it goes to a part that the cache could hold.
        let space = if random.chance(0.5) { 256 } else { BLOCKS - 24 };
        io(kind, random.below(u64::from(space)) as u32, blocks)
    };
    let first = (io.offset / 4096) as u32;
    let free = (first..first + (io.bytes / 4096) as u32).all(|block| !busy.contains(&block));
    free.then_some(io)
}

fn blocks_of(io: &Io) -> Range<u32> {
    (io.offset / 4096) as u32..((io.offset + io.bytes) / 4096) as u32
}

#[test]
fn reads_return_the_last_write_and_no_dirty_line_is_lost() {
    for seed in 1..=12 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut cache = cache(400, config());
        let (mut data, mut writes) = (Data::default(), BTreeSet::new());
        let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
        let mut open: BTreeMap<u64, (Io, BTreeMap<u32, u64>)> = BTreeMap::new();
        let (mut busy, mut token, mut next) = (BTreeSet::new(), 0, 1008);
        while token < 3000 || !open.is_empty() {
            while token < 3000 && open.len() < 12 {
                let Some(io) = draw(&mut random, &mut next, &busy) else { break };
                token += 1;
                let of = |block| expected.get(&block).copied().unwrap_or(0);
                let wanted = blocks_of(&io).map(|block| (block, of(block))).collect();
                if io.kind == IoKind::Write {
                    writes.insert(token);
                    busy.extend(blocks_of(&io));
                    expected.extend(blocks_of(&io).map(|block| (block, token)));
                }
                // A read that is in flight may find what a later write brings: it is not judged.
                open.values_mut().for_each(|(_, wanted)| {
                    if io.kind == IoKind::Write {
                        wanted.retain(|block, _| !blocks_of(&io).contains(block));
                    }
                });
                open.insert(token, (io, wanted));
                cache.submit(cache.now(), token, io).expect("takes it");
            }
            let at = cache.deadline().expect("something is in flight");
            cache.advance(at).expect("no failure");
            data.carry_out(&mut cache, &writes);
            while let Some(done) = cache.take_done() {
                assert_eq!(done.result, Ok(()));
                let (io, wanted) = open.remove(&done.token).expect("it ends once");
                if io.kind == IoKind::Write {
                    blocks_of(&io).for_each(|block| assert!(busy.remove(&block)));
                    continue;
                }
                let found = data.found.remove(&done.token).expect("it read something");
                assert_eq!(found.len(), blocks_of(&io).len());
                for (block, wanted) in wanted {
                    assert_eq!(found[&block], wanted, "block {block}, read {}", done.token);
                }
            }
        }
        for (&block, &wanted) in &expected {
            let line = cache.lines.find(block);
            let found = if line == NONE { data.behind.get(&block) } else { data.lines.get(&line) };
            assert_eq!(found, Some(&wanted), "block {block}");
            let is_behind = data.behind.get(&block) == Some(&wanted);
            assert!(is_behind || cache.lines.is_dirty(line), "block {block} is nowhere but clean");
        }
        for name in ["cache_blocks_hit", "cache_blocks_cleaned", "cache_bytes_past"] {
            assert!(cache.counter(name) > 0, "nothing was tried of {name}");
        }
    }
}

#[test]
fn cleaning_keeps_to_its_watermarks() {
    // Never more than fits below the first watermark: nothing is cleaned.
    let window = Window { warmup_ns: 0, measure_ns: 50 * MILLISECOND };
    let client = |span| Client { pace: Pace::Depth(4), span, ..Client::default() };
    let mut target = cache(1000, config());
    run(&mut target, &[client(0.04)], window, 3).expect("runs");
    assert_eq!(target.counter("cache_blocks_cleaned"), 0);
    // More than that: it is kept between the watermarks, far from full.
    let mut target = cache(1000, config());
    let seen = run(&mut target, &[client(0.5)], window, 3).expect("runs");
    assert!(target.counter("cache_blocks_cleaned") > 0);
    let share = target.lines.dirty_share();
    assert!(share > 0.15, "{share}");
    assert!(seen[0].writes_done > 0.0);
}

#[test]
fn the_line_used_least_recently_is_taken_first_and_no_dirty_one() {
    let mut lines = Lines::new(4, 64);
    for block in 0..4 {
        let line = lines.take(block).expect("free");
        lines.hold(line, block == 1);
        lines.release(line, block == 1);
    }
    // Used again: no longer the oldest.
    lines.hold(lines.find(0), false);
    lines.release(lines.find(0), false);
    assert_eq!(lines.available(), 3);
    assert!(lines.take(10).is_some());
    assert_eq!(lines.find(2), NONE, "2 was the oldest");
    assert!(lines.take(11).is_some());
    assert_eq!(lines.find(3), NONE);
    assert!(lines.take(12).is_some());
    assert_eq!(lines.find(0), NONE);
    assert_eq!(lines.take(13), None, "what is left is dirty or in use");
    assert!(lines.begin_clean(1) && !lines.begin_clean(1));
    lines.end_clean(1, true);
    assert!(lines.take(13).is_some());
}

#[test]
fn a_line_written_while_it_is_cleaned_stays_dirty() {
    let mut lines = Lines::new(1, 4);
    let line = lines.take(2).expect("free");
    lines.hold(line, true);
    assert!(!lines.begin_clean(2), "its data is still on the way");
    lines.release(line, true);
    assert!(lines.begin_clean(2));
    lines.hold(line, true);
    lines.release(line, true);
    lines.end_clean(2, true);
    assert!(lines.is_dirty(line));
    assert_eq!(lines.next_dirty(0), 2);
    assert!(lines.begin_clean(2));
    lines.end_clean(2, false);
    assert!(lines.is_dirty(line), "what failed is still to be done");
}

#[test]
fn dirty_neighbours_are_cleaned_as_one_and_long_streams_go_past() {
    let window = Window { warmup_ns: 0, measure_ns: 20 * MILLISECOND };
    let stream = |bytes| Client {
        pace: Pace::Depth(4),
        pattern: Pattern::Sequential,
        bytes,
        ..Client::default()
    };
    let mut target = cache(1000, config());
    run(&mut target, &[stream(65536)], window, 1).expect("runs");
    assert!(target.counter("cache_bytes_past") > 0);
    let mut target = cache(1000, CachingConfig { clean_above: 0.0, ..config() });
    run(&mut target, &[stream(4096)], window, 1).expect("runs");
    assert_eq!(target.counter("cache_bytes_past"), 0, "these are too small to go past");
    let jobs = target.slow.counts().bytes_written / 65536;
    assert!(jobs > 0 && target.counter("cache_blocks_cleaned") >= 8 * jobs);
}
