//! The cached map against the plain one: whatever comes and goes, both say the same.

use super::{Cached, bytes_min};
use crate::format::{CHUNK_ENTRIES, POISONED, UNMAPPED};
use flash::Random;

/// A cached map, the plain one, and the checkpoint it rests on, as chunks.
struct Twin {
    cached: Cached,
    plain: Vec<u32>,
    base: Vec<Vec<u8>>,
    /// The checkpoint being written.
    next: Option<Vec<Vec<u8>>>,
    random: Random,
}

impl Twin {
    fn new(blocks: u32, piece: u32, seed: u64) -> Self {
        let chunks = blocks.div_ceil(CHUNK_ENTRIES as u32);
        Self {
            cached: Cached::new(blocks, bytes_min(blocks, piece), piece),
            plain: vec![UNMAPPED; blocks as usize],
            base: vec![vec![0xff; 4096]; chunks as usize],
            next: None,
            random: Random::new(seed),
        }
    }

    fn load(&mut self, piece: u32) {
        if self.cached.is_resident(piece) {
            return;
        }
        let frame = self.cached.take_frame(false).expect("one is not pinned");
        let chunk = self.cached.chunk_of(piece) as usize;
        let base = self.cached.needs_base(piece).then(|| &self.base[chunk][..]);
        self.cached.fill(piece, frame, base);
    }

    fn any_block(&mut self) -> u32 {
        let blocks = self.plain.len() as u64;
        // Half of the time among a few.
        let of = if self.random.chance(0.5) { blocks / 8 } else { blocks };
        self.random.below(of) as u32
    }

    fn any_entry(&mut self) -> u32 {
        match self.random.below(12) {
            0 => POISONED,
            1..3 => UNMAPPED,
            _ => self.random.below(1 << 31) as u32,
        }
    }

    /// As the host does it.
    fn replace(&mut self) {
        let (lba, entry) = (self.any_block(), self.any_entry());
        self.load(self.cached.piece(lba));
        let previous = self.cached.replace(lba, entry);
        assert_eq!(previous, std::mem::replace(&mut self.plain[lba as usize], entry));
    }

    fn trim(&mut self) {
        let first = self.any_block();
        let end = (first + 700).min(self.plain.len() as u32);
        for lba in first..end {
            self.load(self.cached.piece(lba));
            assert_eq!(self.cached.replace(lba, UNMAPPED), self.plain[lba as usize]);
            self.plain[lba as usize] = UNMAPPED;
        }
    }

    /// As GC does it.
    fn set(&mut self) {
        let (lba, entry) = (self.any_block(), self.any_entry());
        let previous = self.plain[lba as usize];
        if previous != UNMAPPED && entry != UNMAPPED {
            self.cached.set(lba, previous, entry);
            self.plain[lba as usize] = entry;
        }
    }

    fn chunk_bytes(&self, chunk: u32) -> Vec<u8> {
        let base = self.cached.chunk_needs_base(chunk).then(|| &self.base[chunk as usize][..]);
        let mut entries = [0; CHUNK_ENTRIES];
        self.cached.compose(chunk, base, &mut entries);
        entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    /// The checkpoint goes on by a chunk, is complete, or is given up.
    fn checkpoint(&mut self) {
        if self.next.is_some() && self.random.chance(0.05) {
            self.next = None;
            self.cached.checkpoint_aborted();
            return;
        }
        if self.next.is_none() {
            self.cached.sweep(u32::MAX);
        }
        let mut next = self.next.take().unwrap_or_default();
        let chunk = next.len() as u32;
        if (chunk as usize) < self.base.len() {
            next.push(self.chunk_bytes(chunk));
            self.cached.cover(chunk);
            self.next = Some(next);
        } else {
            self.base = next;
            self.cached.checkpoint_completed(false);
        }
    }

    fn check(&self) {
        for chunk in 0..self.base.len() as u32 {
            let bytes = self.chunk_bytes(chunk);
            let entries =
                bytes.chunks_exact(4).map(|at| u32::from_le_bytes(at.try_into().unwrap()));
            let first = chunk as usize * CHUNK_ENTRIES;
            let plain = &self.plain[first..(first + CHUNK_ENTRIES).min(self.plain.len())];
            let held: Vec<u32> = entries.take(plain.len()).collect();
            assert_eq!(held, plain, "chunk {chunk}");
        }
        self.cached.verify().unwrap();
    }
}

#[test]
fn a_cached_map_says_what_a_plain_one_says() {
    for seed in 0..24 {
        let piece = [8, 32, 256, 1024][seed as usize % 4];
        let blocks = [40 * piece + 5, 120 * piece, 9000][seed as usize / 4 % 3].max(100);
        let mut twin = Twin::new(blocks, piece, seed);
        println!("seed {seed}: {blocks} blocks, pieces of {piece}");
        for step in 0..6_000 {
            match twin.random.below(100) {
                0 => twin.trim(),
                1..5 => twin.checkpoint(),
                5..40 => twin.set(),
                40..42 => twin.cached.sweep_on(),
                _ => twin.replace(),
            }
            let lba = twin.any_block();
            if let Some(entry) = twin.cached.peek(lba) {
                assert_eq!(entry, twin.plain[lba as usize], "block {lba} at step {step}");
            }
            if step % 500 == 0 {
                twin.check();
            }
        }
        twin.check();
        assert!(twin.cached.evictions > 0 || twin.cached.frames_shared() * piece >= blocks);
    }
}

#[test]
fn what_is_held_stays_and_the_rest_has_frames_left() {
    let (blocks, piece, held) = (9000, 8, 100..360);
    let bytes = super::bytes_min_to_hold(blocks, piece, std::slice::from_ref(&held));
    let mut twin = Twin::new(blocks, piece, 5);
    twin.cached = Cached::new(blocks, bytes, piece);
    twin.cached.hold_all(&held);
    assert!(twin.cached.frames_shared() >= 24, "{} frames are left", twin.cached.frames_shared());
    held.clone().for_each(|lba| twin.load(twin.cached.piece(lba)));
    for _ in 0..5_000 {
        twin.replace();
        assert!(held.clone().all(|lba| twin.cached.is_resident(twin.cached.piece(lba))));
    }
    twin.check();
    assert!(twin.cached.evictions > 0, "nothing had to leave");
}

#[test]
fn a_map_that_is_trimmed_whole_keeps_no_changes() {
    let mut twin = Twin::new(100_000, 1024, 1);
    for _ in 0..5_000 {
        twin.replace();
    }
    for lba in 0..twin.plain.len() as u32 {
        twin.load(twin.cached.piece(lba));
        twin.cached.replace(lba, UNMAPPED);
        twin.plain[lba as usize] = UNMAPPED;
    }
    twin.check();
    assert_eq!(twin.cached.changes_bytes(), 0);
    assert!(!(0..twin.base.len() as u32).any(|chunk| twin.cached.chunk_needs_base(chunk)));
}

impl Twin {
    /// A mount: the checkpoint is `plain` as it was, and some blocks changed since.
    fn recover(&mut self, piece: u32) {
        let blocks = self.plain.len() as u32;
        let chunk = |entries: &[u32]| {
            let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
            bytes.resize(4 * CHUNK_ENTRIES, 0xff);
            bytes
        };
        self.base = self.plain.chunks(CHUNK_ENTRIES).map(chunk).collect();
        self.cached = Cached::new(blocks, bytes_min(blocks, piece), piece);
        let first = self.any_block();
        let trimmed = first..(first + 700).min(blocks);
        self.cached.recover_unmapped(trimmed.clone());
        self.plain[trimmed.start as usize..trimmed.end as usize].fill(UNMAPPED);
        for _ in 0..blocks / 10 {
            let (lba, entry) = (self.any_block(), self.any_entry());
            self.cached.recover(lba, entry);
            self.plain[lba as usize] = entry;
        }
        self.cached.forget_use();
    }

    /// What `chunk` holds is counted.
    fn count(&mut self, chunk: u32) {
        let base = self.cached.chunk_needs_base(chunk).then(|| &self.base[chunk as usize][..]);
        let mut entries = [0; CHUNK_ENTRIES];
        self.cached.compose(chunk, base, &mut entries);
        self.cached.count_chunk(chunk, &entries);
    }
}

#[test]
fn a_map_is_right_before_it_is_counted_and_after_and_what_is_in_dram_outlives_its_base() {
    for seed in 0..24 {
        let piece = [8, 32, 256, 1024][seed as usize % 4];
        let blocks = [40 * piece + 5, 120 * piece, 9000][seed as usize / 4 % 3].max(100);
        let mut twin = Twin::new(blocks, piece, seed);
        println!("seed {seed}: {blocks} blocks, pieces of {piece}");
        (0..2_000).for_each(|_| twin.replace());
        twin.recover(piece);
        twin.check();
        for _ in 0..50 {
            let lba = twin.any_block();
            twin.load(twin.cached.piece(lba));
            assert_eq!(twin.cached.peek(lba), Some(twin.plain[lba as usize]));
        }
        // The base of one chunk is lost: what is not in DRAM is found again.
        let lost = twin.random.below(twin.base.len() as u64) as u32;
        let kept = twin.cached.lose_base_of(lost);
        twin.base[lost as usize].fill(0x11);
        let first = lost * CHUNK_ENTRIES as u32;
        for lba in first..(first + CHUNK_ENTRIES as u32).min(blocks) {
            if !kept.iter().any(|range| range.contains(&lba)) {
                twin.cached.recover(lba, twin.plain[lba as usize]);
            }
        }
        assert!(!twin.cached.chunk_needs_base(lost));
        twin.check();
        (0..twin.base.len() as u32).for_each(|chunk| twin.count(chunk));
        for _ in 0..3_000 {
            match twin.random.below(100) {
                0..3 => twin.checkpoint(),
                3..40 => twin.set(),
                _ => twin.replace(),
            }
        }
        twin.check();
    }
}
