//! The raw store where the disk below is full for a while.

use super::*;
use flash::{Random, SECOND};
use std::collections::{BTreeMap, BTreeSet};

/// What was acknowledged of a band.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    pages: u32,
    /// It takes no more, as something of it was refused.
    refused: bool,
    sealed: bool,
}

/// A store, and what was said to its client.
struct Client {
    bench: Bench,
    tolds: BTreeMap<u32, Told>,
    /// Bands of which a free was refused: whether they are gone is not known.
    unfreed: BTreeSet<u32>,
}

const FOREVER: Instant = Instant(u64::MAX);

impl Client {
    fn new(manner: Manner) -> Self {
        let (disk, now) = format(Small { manner, ..SMALL }, Faults::default()).expect("it suits");
        let bench = Bench { disk, now, next: 0 };
        let mut client = Self { bench, tolds: BTreeMap::new(), unfreed: BTreeSet::new() };
        assert_eq!(client.bench.run(fence(1, 1)), Ok(Done::Done));
        client
    }

    /// Does something to a band, which may be refused if the disk `is_full`.
    fn disturb(&mut self, random: &mut Random, is_full: bool) {
        let number = 1 + random.below(6) as u32;
        if self.unfreed.contains(&number) {
            return;
        }
        let told = self.tolds.get(&number).copied().unwrap_or_default();
        let open = !told.refused && !told.sealed && told.pages < SHAPE.pages;
        let result = match random.below(8) {
            0..5 if open => self.append(number, told),
            5 if told.pages > 0 => self.seal(number, told),
            6 if told.pages > 0 => self.free(number),
            7 => self.bench.run(fence(2, self.bench.next)).map(drop),
            _ => Ok(()),
        };
        if let Err(error) = result {
            assert!(is_full, "{error:?} with room below");
            assert!(matches!(error, StoreError::Full | StoreError::BandFailed), "{error:?}");
        }
    }

    fn append(&mut self, number: u32, told: Told) -> Result<(), StoreError> {
        let result = self.bench.append(number, told.pages).map(drop);
        let pages = told.pages + u32::from(result.is_ok());
        if pages > 0 {
            self.tolds.insert(number, Told { pages, refused: result.is_err(), ..told });
        }
        result
    }

    fn seal(&mut self, number: u32, told: Told) -> Result<(), StoreError> {
        let result = self.bench.run(seal(number, told.pages)).map(drop);
        let sealed = told.sealed || result.is_ok();
        let refused = told.refused || result.is_err();
        self.tolds.insert(number, Told { sealed, refused, ..told });
        result
    }

    fn free(&mut self, number: u32) -> Result<(), StoreError> {
        self.tolds.remove(&number);
        let result = self.bench.run(Command::Free { band: band(number) }).map(drop);
        if result.is_err() {
            self.unfreed.insert(number);
        }
        result
    }

    fn assert_told(&mut self) {
        for (&number, told) in &self.tolds {
            (0..told.pages).for_each(|page| self.bench.assert_whole(number, page));
        }
    }

    /// The process ends and comes back, whatever the disk is like.
    fn restart(&mut self) {
        // What the store has begun by itself ends, and nobody hears of it.
        self.bench.disk.abandon(&mut self.bench.now);
        let found = self.bench.restart().expect("a full disk keeps nobody from reading");
        for found in &found.bands {
            let number = found.entry.band.band;
            let known = self.tolds.contains_key(&number) || self.unfreed.contains(&number);
            assert!(known, "band {number} was freed, or never there");
        }
        for (&number, told) in &mut self.tolds {
            let there = found.bands.iter().find(|it| it.entry.band == band(number));
            let there = there.unwrap_or_else(|| panic!("band {number} {told:?} is gone"));
            assert!(there.entry.pages >= told.pages, "{told:?}: {there:?}");
            told.refused |= there.failed || there.entry.pages > told.pages;
            told.sealed |= there.entry.sealed;
        }
        self.assert_told();
    }

    /// There is room again: what was refused is done now.
    fn make_up(&mut self) {
        let until = self.bench.now + 10 * SECOND;
        while self.bench.disk.deadline().is_some_and(|at| at <= until) {
            self.bench.now = self.bench.disk.deadline().unwrap_or(until).max(self.bench.now);
            self.bench.disk.advance(self.bench.now);
        }
        self.bench.now = until;
        for number in std::mem::take(&mut self.unfreed) {
            assert_eq!(self.free(number), Ok(()), "band {number}");
        }
        for (number, told) in self.tolds.clone() {
            if told.refused && !told.sealed {
                assert_eq!(self.seal(number, told), Ok(()), "band {number} {told:?}");
            }
        }
    }

    fn fill(&mut self, to: Instant) {
        let from = Instant(if to == FOREVER { self.bench.now.0 } else { 0 });
        self.bench.disk.medium_mut().fill(from, to);
    }
}

/// The lab's medium refuses what is programmed twice.
#[test]
fn a_full_disk_below_refuses_appends_and_takes_nothing_that_was_acknowledged() {
    for seed in 1..=60 {
        println!("seed {seed}");
        let random = &mut Random::new(seed);
        let mut client = Client::new(Manner::File);
        for _ in 0..4 {
            (0..20).for_each(|_| client.disturb(random, false));
            assert_eq!(client.bench.run(Command::Flush), Ok(Done::Done));
            client.fill(FOREVER);
            (0..12).for_each(|_| client.disturb(random, true));
            client.assert_told();
            if random.chance(0.7) {
                client.restart();
                (0..6).for_each(|_| client.disturb(random, true));
                client.assert_told();
            }
            client.fill(client.bench.now);
            client.make_up();
        }
        client.restart();
    }
}
