//! What a trace does: how much of what, how large, how fast, where, and how long blocks live.
//!
//! Blocks are of 4 KiB; a request touches every block it has a byte of. Memory: a few bytes per
//! block of the footprint (one bit read, one written, four bytes for the time of the last write),
//! and nothing that grows with the length of the trace.

use super::{Op, Record};
use flash::{BLOCK_BYTES, SECOND};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, HashMap};

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Kind {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many begin where the last one of their kind and volume ended.
    pub sequential: u64,
    /// How many do not begin and end on blocks of 4 KiB.
    pub unaligned: u64,
    /// The largest.
    pub size_max: u64,
    /// Sizes in bytes, to three digits.
    pub sizes: Histogram<u64>,
    /// Response times in nanoseconds, if they were recorded.
    pub responses: Histogram<u64>,
}

/// One volume.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Volume {
    /// Requests.
    pub requests: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Where the last of its requests ends.
    pub end: u64,
}

/// What is known of blocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Footprint {
    /// Blocks read at least once.
    pub blocks_read: u64,
    /// Blocks written at least once.
    pub blocks_written: u64,
    /// Blocks read or written.
    pub blocks: u64,
    /// Block writes, each time counted.
    pub writes: u64,
    /// Block writes that overwrote what the trace had written and not trimmed.
    pub overwrites: u64,
    /// Blocks that the trace had written and then trimmed.
    pub trims: u64,
    /// Blocks that hold data of the trace at its end.
    pub alive: u64,
}

/// The busiest second of a trace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Peak {
    /// Most requests in one second.
    pub requests: u64,
    /// Most bytes read or written in one second.
    pub bytes: u64,
}

/// Collects. See the head of this file.
pub struct Stat {
    /// By [`Op::ALL`].
    kinds: Vec<Kind>,
    fua: u64,
    volumes: BTreeMap<u32, Volume>,
    /// By volume and kind: where the last request ended.
    ends: HashMap<(u32, Op), u64>,
    regions: HashMap<(u32, u64), Region>,
    footprint: Footprint,
    /// In milliseconds: block lives that ended with an overwrite or a trim.
    lifetimes: Histogram<u64>,
    gaps: Histogram<u64>,
    last_ns: u64,
    second: (u64, Peak),
    peak: Peak,
}

/// Blocks whose bits fit into a word.
const REGION_BLOCKS: u64 = 64;

#[derive(Default)]
struct Region {
    read: u64,
    /// Ever.
    written: u64,
    /// Holds what the trace wrote.
    alive: u64,
    /// Milliseconds of the last write of each block.
    written_at: Option<Box<[u32; REGION_BLOCKS as usize]>>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

fn count(value: u64, histogram: &mut Histogram<u64>) {
    // Not `saturating_record`: that one cuts off where others make room.
    histogram.record(value).expect("it resizes itself");
}

impl Default for Stat {
    fn default() -> Self {
        let kind = || Kind {
            requests: 0,
            bytes: 0,
            sequential: 0,
            unaligned: 0,
            size_max: 0,
            sizes: histogram(),
            responses: histogram(),
        };
        Self {
            kinds: Op::ALL.map(|_| kind()).into(),
            fua: 0,
            volumes: BTreeMap::new(),
            ends: HashMap::new(),
            regions: HashMap::new(),
            footprint: Footprint::default(),
            lifetimes: histogram(),
            gaps: histogram(),
            last_ns: 0,
            second: (0, Peak::default()),
            peak: Peak::default(),
        }
    }
}

impl Stat {
    /// Takes one record more. Records come in the order of time.
    pub fn add(&mut self, record: &Record) {
        if self.requests() > 0 {
            count(record.time_ns - self.last_ns, &mut self.gaps);
        }
        self.last_ns = record.time_ns;
        self.fua += u64::from(record.fua);
        let kind = &mut self.kinds[record.op as usize];
        kind.requests += 1;
        kind.bytes += record.length;
        if let Some(response_ns) = record.response_ns {
            count(response_ns, &mut kind.responses);
        }
        let volume = self.volumes.entry(record.volume).or_default();
        volume.requests += 1;
        let moved = match record.op {
            Op::Read => &mut volume.bytes_read,
            Op::Write => &mut volume.bytes_written,
            Op::Trim | Op::Flush => &mut 0,
        };
        *moved += record.length;
        self.count_second(record);
        if record.op != Op::Flush {
            self.add_range(record);
        }
    }

    fn count_second(&mut self, record: &Record) {
        let second = record.time_ns / SECOND;
        if second != self.second.0 {
            self.second = (second, Peak::default());
        }
        let Peak { requests, bytes } = &mut self.second.1;
        *requests += 1;
        if matches!(record.op, Op::Read | Op::Write) {
            *bytes += record.length;
        }
        self.peak.requests = self.peak.requests.max(*requests);
        self.peak.bytes = self.peak.bytes.max(*bytes);
    }

    fn add_range(&mut self, record: &Record) {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let kind = &mut self.kinds[record.op as usize];
        count(record.length, &mut kind.sizes);
        kind.size_max = kind.size_max.max(record.length);
        let aligned = record.offset.is_multiple_of(BLOCK) && record.length.is_multiple_of(BLOCK);
        kind.unaligned += u64::from(!aligned);
        let last = self.ends.insert((record.volume, record.op), record.end());
        kind.sequential += u64::from(last == Some(record.offset));
        let volume = self.volumes.entry(record.volume).or_default();
        volume.end = volume.end.max(record.end());
        // A trim frees only the blocks that it covers whole.
        let (first, end) = match record.op {
            Op::Trim => (record.offset.div_ceil(BLOCK), record.end() / BLOCK),
            _ => (record.offset / BLOCK, record.end().div_ceil(BLOCK)),
        };
        if record.op == Op::Trim {
            self.trim(record.volume, first, end);
            return;
        }
        let mut block = first;
        while block < end {
            let region = block / REGION_BLOCKS;
            let stop = end.min((region + 1) * REGION_BLOCKS);
            self.touch(record, region, mask(block, stop));
            block = stop;
        }
    }

    /// The blocks of `mask` in a region are read or written.
    fn touch(&mut self, record: &Record, number: u64, mask: u64) {
        let Footprint { blocks, blocks_read, blocks_written, writes, overwrites, alive, .. } =
            &mut self.footprint;
        let ones = |mask: u64| u64::from(mask.count_ones());
        let region = self.regions.entry((record.volume, number)).or_default();
        *blocks += ones(mask & !(region.read | region.written));
        if record.op == Op::Read {
            *blocks_read += ones(mask & !region.read);
            region.read |= mask;
            return;
        }
        *writes += ones(mask);
        *blocks_written += ones(mask & !region.written);
        *overwrites += ones(mask & region.alive);
        *alive += ones(mask & !region.alive);
        end_lives(region, mask & region.alive, record.time_ns, &mut self.lifetimes);
        region.written |= mask;
        region.alive |= mask;
        let times = region.written_at.get_or_insert_with(|| Box::new([0; REGION_BLOCKS as usize]));
        let now = milliseconds(record.time_ns);
        (0..64).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| times[bit] = now);
    }

    /// Most of a trim is often nothing the trace has written: only regions that are there count.
    fn trim(&mut self, volume: u32, first: u64, end: u64) {
        let regions = first / REGION_BLOCKS..end.div_ceil(REGION_BLOCKS);
        let count = regions.end.saturating_sub(regions.start);
        let numbers: Vec<u64> = if count <= self.regions.len() as u64 {
            regions.collect()
        } else {
            let known = self.regions.keys().filter(|key| key.0 == volume).map(|key| key.1);
            known.filter(|number| regions.contains(number)).collect()
        };
        for number in numbers {
            let Some(region) = self.regions.get_mut(&(volume, number)) else { continue };
            let start = number * REGION_BLOCKS;
            let mask = mask(first.max(start), end.min(start + REGION_BLOCKS)) & region.alive;
            let count = u64::from(mask.count_ones());
            self.footprint.trims += count;
            self.footprint.alive -= count;
            end_lives(region, mask, self.last_ns, &mut self.lifetimes);
            region.alive &= !mask;
        }
    }

    /// All requests so far.
    pub fn requests(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.requests).sum()
    }

    /// Requests of one kind.
    pub fn kind(&self, op: Op) -> &Kind {
        &self.kinds[op as usize]
    }

    /// Requests that are durable before they are answered.
    pub fn fua(&self) -> u64 {
        self.fua
    }

    /// By number.
    pub fn volumes(&self) -> &BTreeMap<u32, Volume> {
        &self.volumes
    }

    /// Blocks.
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// How long blocks lived, from a write to the overwrite or trim, in milliseconds. Those that
    /// live at the end are not in it.
    pub fn lifetimes(&self) -> &Histogram<u64> {
        &self.lifetimes
    }

    /// From one request to the next, in nanoseconds.
    pub fn gaps(&self) -> &Histogram<u64> {
        &self.gaps
    }

    /// The busiest seconds.
    pub fn peak(&self) -> Peak {
        self.peak
    }

    /// From the first request to the last.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns
    }
}

fn milliseconds(ns: u64) -> u32 {
    u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX)
}

/// The bits of the blocks from `first` to `end`, which lie in one region.
fn mask(first: u64, end: u64) -> u64 {
    if end <= first {
        return 0;
    }
    let low = first % REGION_BLOCKS;
    let count = end - first;
    (u64::MAX >> (REGION_BLOCKS - count)) << low
}

fn end_lives(region: &Region, mask: u64, now_ns: u64, lifetimes: &mut Histogram<u64>) {
    let Some(times) = &region.written_at else { return };
    let now = milliseconds(now_ns);
    for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
        count(u64::from(now - times[bit]), lifetimes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Footprint, Peak, Stat, Volume, mask};
    use crate::trace::{Op, Record};
    use flash::Random;
    use std::collections::{BTreeMap, BTreeSet};

    fn record(time_ms: u64, op: Op, offset: u64, length: u64) -> Record {
        let time_ns = time_ms * 1_000_000;
        Record { time_ns, op, fua: false, offset, length, volume: 1, response_ns: None }
    }

    #[test]
    fn a_short_trace_is_counted_by_hand() {
        let mut stat = Stat::default();
        for record in [
            record(0, Op::Write, 0, 8192),
            record(5, Op::Write, 8192, 4096),
            record(25, Op::Write, 100, 4096),
            record(1030, Op::Read, 4096, 4096),
            record(1040, Op::Trim, 0, 12287),
            record(1050, Op::Flush, 0, 0),
        ] {
            stat.add(&record);
        }
        let expected = Footprint {
            blocks_read: 1,
            blocks_written: 3,
            blocks: 3,
            writes: 5,
            overwrites: 2,
            trims: 2,
            alive: 1,
        };
        assert_eq!(stat.footprint(), expected);
        let writes = stat.kind(Op::Write);
        assert_eq!((writes.requests, writes.bytes), (3, 16384));
        assert_eq!((writes.sequential, writes.unaligned), (1, 1));
        assert_eq!((writes.size_max, writes.sizes.min()), (8192, 4096));
        assert_eq!(stat.gaps().len(), 5);
        assert!(stat.gaps().max() >= 1_005_000_000);
        assert_eq!(stat.kind(Op::Flush).requests, 1);
        // Two blocks lived 25 ms until they were overwritten, then 1015 ms until the trim.
        let lives: Vec<u64> =
            stat.lifetimes().iter_recorded().map(|v| v.value_iterated_to()).collect();
        assert_eq!((stat.lifetimes().len(), lives), (4, vec![25, 1015]));
        assert_eq!(stat.peak(), Peak { requests: 3, bytes: 16384 });
        assert_eq!(stat.duration_ns(), 1_050_000_000);
        let volume = Volume { requests: 6, bytes_read: 4096, bytes_written: 16384, end: 12288 };
        assert_eq!(stat.volumes(), &BTreeMap::from([(1, volume)]));
    }

    #[test]
    fn any_response_time_is_counted() {
        let mut stat = Stat::default();
        for response in [0, 1, u64::MAX] {
            let response_ns = Some(response);
            stat.add(&Record { response_ns, ..record(0, Op::Read, 0, 4096) });
        }
        let responses = &stat.kind(Op::Read).responses;
        assert_eq!((responses.len(), responses.max()), (3, u64::MAX));
    }

    #[test]
    fn masks_cover_what_they_say() {
        assert_eq!(mask(0, 64), u64::MAX);
        assert_eq!(mask(64, 65), 1);
        assert_eq!(mask(127, 128), 1 << 63);
        assert_eq!(mask(3, 5), 0b11000);
        assert_eq!(mask(5, 5), 0);
    }

    #[test]
    fn the_footprint_is_that_of_plain_sets() {
        let seed = 11;
        let mut random = Random::new(seed);
        let (mut stat, mut read, mut written) = (Stat::default(), BTreeSet::new(), BTreeSet::new());
        let (mut alive, mut overwrites, mut trims) = (BTreeSet::new(), 0, 0);
        for time in 0..3000 {
            let (first, count) = (random.below(2000), 1 + random.below(300));
            let op = [Op::Read, Op::Write, Op::Trim][random.below(3) as usize];
            stat.add(&record(time, op, first * 4096, count * 4096));
            for block in first..first + count {
                match op {
                    Op::Read => drop(read.insert(block)),
                    Op::Write => {
                        written.insert(block);
                        overwrites += u64::from(!alive.insert(block));
                    }
                    _ => trims += u64::from(alive.remove(&block)),
                }
            }
        }
        let found = stat.footprint();
        assert_eq!(found.blocks, read.union(&written).count() as u64, "seed {seed}");
        assert_eq!(found.blocks_read, read.len() as u64, "seed {seed}");
        assert_eq!(found.blocks_written, written.len() as u64, "seed {seed}");
        assert_eq!(found.alive, alive.len() as u64, "seed {seed}");
        assert_eq!((found.overwrites, found.trims), (overwrites, trims), "seed {seed}");
        assert_eq!(stat.lifetimes().len(), overwrites + trims, "seed {seed}");
    }
}
