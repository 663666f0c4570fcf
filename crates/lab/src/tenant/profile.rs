//! What a tenant does to its part of the device, in the figures by which a generator is held against
//! a recording: sizes, order, flushes, overwrites and their distances, how unequal blocks are, trims.
//! Counted in blocks of 4 KiB, and in blocks written instead of time, so that a fast device and a
//! slow one compare.

use crate::target::IoKind;
use flash::BLOCK_BYTES;
use hdrhistogram::Histogram;

/// Collects. See the head of this file.
#[derive(Clone, Debug)]
pub struct Profile {
    sizes: Histogram<u64>,
    distances: Histogram<u64>,
    writes: u64,
    bytes_written: u64,
    sequential: u64,
    flushes: u64,
    reads: u64,
    blocks_written: u64,
    blocks_trimmed: u64,
    end: u64,
    /// By block: how much had been written, from 1, when it was last; 0 if it holds nothing.
    written_at: Vec<u64>,
    /// By block: how often it was written.
    counts: Vec<u32>,
}

/// The figures of a [`Profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Writes.
    pub writes: u64,
    /// Blocks written, each time counted.
    pub blocks_written: u64,
    /// Blocks written at least once.
    pub footprint: u64,
    /// Mean bytes of a write.
    pub size_mean: f64,
    /// Median bytes of a write.
    pub size_p50: f64,
    /// Share of the writes with at most 8 KiB.
    pub small: f64,
    /// Share of the writes that begin where the one before ended.
    pub sequential: f64,
    /// Flushes by writes.
    pub flushes: f64,
    /// Reads by writes.
    pub reads: f64,
    /// Share of the blocks written that were overwrites.
    pub overwrites: f64,
    /// Blocks written between two writes of a block: quartiles.
    pub distances: [f64; 3],
    /// Share of the overwrites that come within 64 blocks.
    pub near: f64,
    /// Share of the blocks written that went to the hundredth, and to the tenth, of the footprint that
    /// was written most.
    pub top: [f64; 2],
    /// Written blocks that were trimmed, by blocks written.
    pub trimmed: f64,
}

impl Figures {
    /// A quartile of the distances, in percent of the footprint.
    pub fn distance(&self, quartile: usize) -> f64 {
        100.0 * self.distances[quartile] / self.footprint.max(1) as f64
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            sizes: histogram(),
            distances: histogram(),
            writes: 0,
            bytes_written: 0,
            sequential: 0,
            flushes: 0,
            reads: 0,
            blocks_written: 0,
            blocks_trimmed: 0,
            end: 0,
            written_at: Vec::new(),
            counts: Vec::new(),
        }
    }
}

impl Profile {
    /// Takes one I/O more.
    pub fn add(&mut self, kind: IoKind, offset: u64, bytes: u64) {
        let block = BLOCK_BYTES as u64;
        match kind {
            IoKind::Flush => self.flushes += 1,
            IoKind::Read => self.reads += 1,
            IoKind::Write => {
                self.writes += 1;
                self.bytes_written += bytes;
                self.sizes.record(bytes).expect("it resizes itself");
                self.sequential += u64::from(self.end == offset);
                self.end = offset + bytes;
                let end = (offset + bytes).div_ceil(block) as usize;
                if end > self.written_at.len() {
                    self.written_at.resize(end, 0);
                    self.counts.resize(end, 0);
                }
                for index in (offset / block) as usize..end {
                    self.write(index);
                }
            }
            IoKind::Erase => {
                let end = ((offset + bytes) / block).min(self.written_at.len() as u64) as usize;
                for at in &mut self.written_at[(offset.div_ceil(block) as usize).min(end)..end] {
                    self.blocks_trimmed += u64::from(std::mem::take(at) > 0);
                }
            }
        }
    }

    fn write(&mut self, index: usize) {
        self.blocks_written += 1;
        let before = std::mem::replace(&mut self.written_at[index], self.blocks_written);
        if before > 0 {
            let distance = self.blocks_written - before;
            self.distances.record(distance).expect("it resizes itself");
        }
        self.counts[index] += 1;
    }

    /// What it came to.
    pub fn figures(&self) -> Figures {
        let by = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let mut counts: Vec<u32> = self.counts.iter().copied().filter(|&count| count > 0).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top = |part: usize| {
            let first = &counts[..counts.len().div_ceil(part)];
            by(first.iter().map(|&count| u64::from(count)).sum(), self.blocks_written)
        };
        let distance = |share| self.distances.value_at_quantile(share) as f64;
        Figures {
            writes: self.writes,
            blocks_written: self.blocks_written,
            footprint: counts.len() as u64,
            size_mean: by(self.bytes_written, self.writes),
            size_p50: self.sizes.value_at_quantile(0.5) as f64,
            small: by(self.sizes.count_between(0, 8192), self.writes),
            sequential: by(self.sequential, self.writes),
            flushes: by(self.flushes, self.writes),
            reads: by(self.reads, self.writes),
            overwrites: by(self.distances.len(), self.blocks_written),
            distances: [distance(0.25), distance(0.5), distance(0.75)],
            near: by(self.distances.count_between(0, 64), self.distances.len()),
            top: if counts.is_empty() { [0.0; 2] } else { [top(100), top(10)] },
            trimmed: by(self.blocks_trimmed, self.blocks_written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Profile;
    use crate::target::IoKind;

    #[test]
    fn a_short_list_is_counted_by_hand() {
        let mut profile = Profile::default();
        let block = 4096;
        profile.add(IoKind::Write, 0, 2 * block);
        profile.add(IoKind::Write, 2 * block, block);
        profile.add(IoKind::Flush, 0, 0);
        profile.add(IoKind::Read, 0, block);
        // Block 0 was written 3 blocks ago, counting itself.
        profile.add(IoKind::Write, 0, block);
        profile.add(IoKind::Erase, 0, 2 * block);
        // Trimmed: nothing is overwritten.
        profile.add(IoKind::Write, block, block);
        let figures = profile.figures();
        assert_eq!((figures.writes, figures.blocks_written, figures.footprint), (4, 5, 3));
        assert_eq!(figures.size_mean, 5120.0);
        assert!((figures.size_p50 - 4096.0).abs() < 8.0, "three digits: {figures:?}");
        assert_eq!((figures.sequential, figures.flushes, figures.reads), (0.75, 0.25, 0.25));
        assert_eq!((figures.overwrites, figures.trimmed), (0.2, 0.4));
        assert_eq!((figures.distances, figures.near), ([3.0; 3], 1.0));
        assert_eq!(figures.top, [0.4, 0.4]);
    }
}
