//! A map of which a part is in DRAM.
//!
//! The map is cut into *pieces* of equal size: a map chunk of a checkpoint, or an equal part of one.
//! What a block holds now is what the last complete checkpoint says (its *base*), but for what changed
//! since. A piece in DRAM (in a *frame*) holds what is now, and knows which of its entries changed; of
//! a piece that is not, the changes alone are kept (`changes`). So no part of the map is ever written
//! outside checkpoints, and a piece may leave DRAM at any time.
//!
//! While a checkpoint is written, changes are of two *rounds*: those it covers, as they came before
//! their piece was put into it, and the later ones. When it is complete the first are forgotten; if it
//! is aborted all are of one round again. A change counts as later if its piece is among those put
//! into the checkpoint already, which are written in order.
//!
//! A piece of which every block is unmapped is *void*: whatever its base says, it counts as unmapped,
//! and so does what is written to it later but for its changes. That is what keeps a trim of the whole
//! device, or a map that recovery found no checkpoint of, from being a change for each block.
//!
//! Invariants:
//! - base, void marks of either round and changes of either round make up what is now, in this order;
//! - `used` of a piece counts its entries that are not unmapped, or says that they were not counted yet;
//! - a piece is in a frame or has records in `changes`, never both;
//! - a piece that is pinned or being loaded keeps its frame.

use super::changes::{Change, Changes, GROUP_BLOCKS};
use super::queues::{Bits, Queues};
use crate::format::{CHUNK_ENTRIES, POISONED, UNMAPPED, u32_at};
use std::ops::Range;

/// No frame.
const NONE: u32 = u32::MAX;

/// As `used`: not known, as recovery did not look.
const UNCOUNTED: u16 = u16::MAX;

/// Bytes that a change of a piece in a frame will take when the piece leaves.
const CHANGE_BYTES: u64 = 6;

/// Least bytes for changes: several times what an atomic write changes.
const CHANGES_BYTES_MIN: u64 = 2048;

/// Groups of changes looked through at a time for those that a checkpoint covers.
const SWEEP_GROUPS: u32 = 64;

#[derive(Clone, Debug)]
pub(crate) struct Cached {
    blocks: u32,
    /// Blocks of a piece, as a power of two.
    shift: u32,
    /// Frame by piece.
    place: Vec<u32>,
    used: Vec<u16>,
    void: [Bits; 2],
    changes: Changes,
    /// Changed entries in frames.
    changes_resident: u64,
    changes_bytes_max: u64,
    /// Of changes that the next checkpoint will cover, or the one being written.
    round: u8,
    /// Pieces below are in the checkpoint that is being written.
    covered_below: u32,
    /// Groups from here on still have changes that the last checkpoint covers.
    swept: u32,

    frames: u32,
    entries: Vec<u32>,
    /// Bits of changed entries: by frame, by round.
    dirty: Vec<u64>,
    piece_of: Vec<u32>,
    pins: Vec<u16>,
    free: Vec<u32>,
    queues: Queues,
    pinned: u32,
    loading: u32,
    /// Pieces that stay once they came, and how many they are.
    held: Bits,
    held_count: u32,
    pub evictions: u64,
    scratch: Vec<Change>,
}

/// What a part of the map takes of DRAM.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tables: u64,
    frame: u64,
    frames_min: u64,
}

impl Sizes {
    fn of(blocks: u32, shift: u32) -> Self {
        let pieces = u64::from(blocks.div_ceil(1 << shift));
        // Void, by round, and held.
        let bits = 3 + Queues::BITS_PER_PIECE;
        let tables = pieces * 6 + pieces * bits / 8 + Changes::bytes_min(blocks);
        let dirty = 2 * words(shift) * 8;
        // Pins, the piece, the list of free frames.
        let frame = (4 << shift) + dirty as u64 + 10 + Queues::BYTES_PER_FRAME;
        Self { tables, frame, frames_min: u64::from(frames_min(shift)) }
    }

    fn bytes_min(&self) -> u64 {
        self.tables + self.frames_min * self.frame + CHANGES_BYTES_MIN
    }

    /// Frames that so many bytes hold.
    fn frames(&self, bytes: u64) -> u64 {
        let rest = bytes.max(self.bytes_min()) - self.tables;
        (rest / 2).max(self.frames_min * self.frame) / self.frame
    }
}

/// Words of changed bits of a frame and round.
fn words(shift: u32) -> usize {
    (1usize << shift).div_ceil(64)
}

/// Fewest frames: three eighths hold what the oldest write needs, which may be an atomic one.
fn frames_min(shift: u32) -> u32 {
    let atomic = crate::api::ATOMIC_BLOCKS_MAX.div_ceil(1 << shift) + 1;
    (atomic * 8).div_ceil(3).max(24)
}

/// Fewest bytes of DRAM that a map of so many blocks works in.
pub(crate) fn bytes_min(blocks: u32, piece_blocks: u32) -> u64 {
    Sizes::of(blocks, piece_blocks.ilog2()).bytes_min()
}

/// The same with pieces that stay there, those of `held`.
pub(crate) fn bytes_min_to_hold(blocks: u32, piece_blocks: u32, held: &[Range<u32>]) -> u64 {
    let shift = piece_blocks.ilog2();
    let sizes = Sizes::of(blocks, shift);
    let pieces: u64 = held.iter().map(|blocks| pieces_of(blocks, shift).len() as u64).sum();
    match pieces {
        0 => sizes.bytes_min(),
        // Frames take half of what the tables leave.
        pieces => sizes.tables + 2 * (pieces + sizes.frames_min) * sizes.frame + CHANGES_BYTES_MIN,
    }
}

/// The pieces that have one of these blocks.
fn pieces_of(blocks: &Range<u32>, shift: u32) -> Range<u32> {
    if blocks.is_empty() { 0..0 } else { blocks.start >> shift..((blocks.end - 1) >> shift) + 1 }
}

impl Cached {
    /// Every block is unmapped. `bytes` is at least [`bytes_min`].
    pub fn new(blocks: u32, bytes: u64, piece_blocks: u32) -> Self {
        let shift = piece_blocks.ilog2();
        let pieces = blocks.div_ceil(1 << shift);
        let sizes = Sizes::of(blocks, shift);
        let rest = bytes.max(sizes.bytes_min()) - sizes.tables;
        let frames = sizes.frames(bytes).min(u64::from(pieces)) as u32;
        Self {
            blocks,
            shift,
            place: vec![NONE; pieces as usize],
            used: vec![0; pieces as usize],
            void: [Bits::new(pieces), Bits::new(pieces)],
            changes: Changes::new(blocks),
            changes_resident: 0,
            changes_bytes_max: rest - u64::from(frames) * sizes.frame,
            round: 0,
            covered_below: 0,
            swept: blocks.div_ceil(GROUP_BLOCKS),
            frames,
            entries: vec![0; (frames as usize) << shift],
            dirty: vec![0; frames as usize * 2 * words(shift)],
            piece_of: vec![NONE; frames as usize],
            pins: vec![0; frames as usize],
            free: (0..frames).rev().collect(),
            queues: Queues::new(frames, pieces),
            pinned: 0,
            loading: 0,
            held: Bits::new(pieces),
            held_count: 0,
            evictions: 0,
            scratch: Vec::new(),
        }
    }

    /// Frames that are for whatever is looked at most.
    pub fn frames_shared(&self) -> u32 {
        self.frames - self.held_count
    }

    /// The pieces of these blocks stay in DRAM once they came. There are frames for them: see
    /// [`bytes_min_to_hold`].
    pub fn hold_all(&mut self, blocks: &Range<u32>) {
        let pieces = pieces_of(&(blocks.start..blocks.end.min(self.blocks)), self.shift);
        pieces.for_each(|piece| self.hold(piece, true));
    }

    /// `piece` stays in DRAM once it came, or (`false`) may leave it again.
    pub fn hold(&mut self, piece: u32, stays: bool) {
        // With a frame for each piece none ever leaves.
        if self.held.get(piece) == stays || self.frames == self.place.len() as u32 {
            return;
        }
        self.held.set(piece, stays);
        if stays {
            self.held_count += 1;
            self.pin(piece);
        } else {
            self.held_count -= 1;
            if self.is_resident(piece) {
                self.unpin(piece);
            }
        }
    }

    /// Frames that a further piece could have: free ones, and those of pieces that are not pinned.
    pub fn frames_to_have(&self) -> u32 {
        self.frames - self.loading - self.pinned
    }

    /// Bytes of DRAM that all this takes, changes as they are now.
    pub fn memory_bytes(&self) -> u64 {
        let sizes = Sizes::of(self.blocks, self.shift);
        sizes.tables + u64::from(self.frames) * sizes.frame + self.changes.record_bytes()
    }

    /// Bytes that the changes since the last checkpoint take, or will when their pieces leave.
    pub fn changes_bytes(&self) -> u64 {
        self.changes.record_bytes() + CHANGE_BYTES * self.changes_resident
    }

    pub fn changes_bytes_max(&self) -> u64 {
        self.changes_bytes_max
    }

    #[inline]
    pub fn piece(&self, lba: u32) -> u32 {
        lba >> self.shift
    }

    /// The blocks of `piece`.
    pub fn blocks_of(&self, piece: u32) -> Range<u32> {
        let first = piece << self.shift;
        first..(first + (1 << self.shift)).min(self.blocks)
    }

    /// The end of the blocks of so many pieces, from that of `lba` on.
    pub fn end_of_pieces(&self, lba: u32, pieces: u32) -> u32 {
        let end = u64::from(self.piece(lba) + pieces) << self.shift;
        end.min(u64::from(self.blocks)) as u32
    }

    /// The map chunk that `piece` is part of.
    pub fn chunk_of(&self, piece: u32) -> u32 {
        (piece << self.shift) / CHUNK_ENTRIES as u32
    }

    fn pieces_of_chunk(&self, chunk: u32) -> Range<u32> {
        let per_chunk = CHUNK_ENTRIES as u32 >> self.shift;
        let end = (chunk + 1) * per_chunk;
        chunk * per_chunk..end.min(self.place.len() as u32)
    }

    #[inline]
    pub fn is_resident(&self, piece: u32) -> bool {
        self.place[piece as usize] != NONE
    }

    /// No block of it is mapped.
    #[inline]
    pub fn is_unused(&self, piece: u32) -> bool {
        self.used[piece as usize] == 0
    }

    /// What `lba` holds, if that is known without a look at flash.
    #[inline]
    pub fn peek(&self, lba: u32) -> Option<u32> {
        let piece = self.piece(lba);
        let frame = self.place[piece as usize];
        if frame == NONE {
            return self.is_unused(piece).then_some(UNMAPPED);
        }
        Some(self.entries[self.at(frame, lba)])
    }

    #[inline]
    fn at(&self, frame: u32, lba: u32) -> usize {
        (frame as usize) << self.shift | (lba as usize & ((1 << self.shift) - 1))
    }

    /// The entries of `piece`, which is in a frame.
    pub fn entries_of(&self, piece: u32) -> Option<&[u32]> {
        let frame = self.place[piece as usize];
        let first = (frame as usize) << self.shift;
        (frame != NONE).then(|| &self.entries[first..first + (1 << self.shift)])
    }

    /// How many blocks of a piece that is not in a frame hold something: all, none or some.
    pub fn used_of(&self, piece: u32) -> u32 {
        u32::from(self.used[piece as usize])
    }

    /// `piece` is used: it may be worth to be kept.
    #[inline]
    pub fn touch(&mut self, piece: u32) {
        let frame = self.place[piece as usize];
        if frame != NONE {
            self.queues.touch(frame);
        }
    }

    fn round_of(&self, piece: u32) -> u8 {
        self.round ^ u8::from(piece < self.covered_below)
    }

    /// `lba`, whose piece is in a frame, holds `entry` now. Returns what it held.
    pub fn replace(&mut self, lba: u32, entry: u32) -> u32 {
        let piece = self.piece(lba);
        let frame = self.place[piece as usize];
        if frame == NONE {
            assert!(
                entry == UNMAPPED && self.is_unused(piece),
                "block {lba} changes, and its piece of the map is not there"
            );
            return UNMAPPED;
        }
        let at = self.at(frame, lba);
        let previous = std::mem::replace(&mut self.entries[at], entry);
        if previous != entry {
            self.mark(frame, lba);
            self.count_use(piece, previous, entry);
        }
        previous
    }

    /// `lba`, which holds `previous`, holds `entry` now. Its piece may be anywhere.
    pub fn set(&mut self, lba: u32, previous: u32, entry: u32) {
        let piece = self.piece(lba);
        if self.is_resident(piece) {
            let found = self.replace(lba, entry);
            assert_eq!(found, previous, "block {lba} holds what its slot says");
            return;
        }
        self.changes.set(Change { lba, entry, round: self.round_of(piece) });
        self.count_use(piece, previous, entry);
    }

    fn count_use(&mut self, piece: u32, previous: u32, entry: u32) {
        let used = &mut self.used[piece as usize];
        *used = *used + u16::from(previous == UNMAPPED) - u16::from(entry == UNMAPPED);
        if *used == 0 {
            self.forget_changes(piece);
            self.void[usize::from(self.round_of(piece))].set(piece, true);
        }
    }

    fn forget_changes(&mut self, piece: u32) {
        let frame = self.place[piece as usize];
        if frame == NONE {
            self.changes.remove(self.blocks_of(piece));
            return;
        }
        self.changes_resident -= self.count_changed(frame);
        let bits = self.dirty_of(frame, 0).start..self.dirty_of(frame, 1).end;
        self.dirty[bits].fill(0);
    }

    fn dirty_of(&self, frame: u32, round: u8) -> Range<usize> {
        let words = words(self.shift);
        let first = (2 * frame as usize + usize::from(round)) * words;
        first..first + words
    }

    fn mark(&mut self, frame: u32, lba: u32) {
        let index = lba as usize & ((1 << self.shift) - 1);
        let round = self.round_of(self.piece(lba));
        let (word, bit) = (index / 64, 1u64 << (index % 64));
        let own = self.dirty_of(frame, round).start + word;
        let other = self.dirty_of(frame, 1 - round).start + word;
        self.changes_resident += u64::from((self.dirty[own] | self.dirty[other]) & bit == 0);
        self.dirty[own] |= bit;
    }

    fn count_changed(&self, frame: u32) -> u64 {
        let (first, second) = (self.dirty_of(frame, 0), self.dirty_of(frame, 1));
        let pairs = self.dirty[first].iter().zip(&self.dirty[second]);
        pairs.map(|(a, b)| u64::from((a | b).count_ones())).sum()
    }

    /// Pins `piece` if it is in a frame.
    pub fn pin(&mut self, piece: u32) -> bool {
        let frame = self.place[piece as usize];
        if frame == NONE {
            return false;
        }
        let pins = &mut self.pins[frame as usize];
        self.pinned += u32::from(*pins == 0);
        *pins += 1;
        self.queues.touch(frame);
        true
    }

    pub fn unpin(&mut self, piece: u32) {
        let pins = &mut self.pins[self.place[piece as usize] as usize];
        *pins -= 1;
        self.pinned -= u32::from(*pins == 0);
    }

    /// Whether to read the base of `piece` to know what it holds.
    pub fn needs_base(&self, piece: u32) -> bool {
        !self.is_unused(piece) && !self.is_resident(piece) && !self.is_void(piece)
    }

    fn is_void(&self, piece: u32) -> bool {
        self.void.iter().any(|void| void.get(piece))
    }

    pub fn chunk_needs_base(&self, chunk: u32) -> bool {
        self.pieces_of_chunk(chunk).any(|piece| self.needs_base(piece))
    }

    /// A frame to load a piece into; `forget` is a seeded bug. `None` if every one is taken.
    pub fn take_frame(&mut self, forget: bool) -> Option<u32> {
        let frame = match self.free.pop() {
            Some(frame) => frame,
            None => {
                let (pins, piece_of) = (&self.pins, &self.piece_of);
                let may_leave = |frame: u32| pins[frame as usize] == 0;
                let frame = self.queues.evict(may_leave, |frame| piece_of[frame as usize])?;
                self.unload(frame, forget);
                frame
            }
        };
        self.loading += 1;
        Some(frame)
    }

    /// What was to be loaded into `frame` will not be.
    pub fn give_frame(&mut self, frame: u32) {
        self.loading -= 1;
        self.free.push(frame);
    }

    fn unload(&mut self, frame: u32, forget: bool) {
        self.evictions += 1;
        let piece = self.piece_of[frame as usize];
        let blocks = self.blocks_of(piece);
        let (first, second) = (self.dirty_of(frame, 0), self.dirty_of(frame, 1));
        let later = self.round ^ 1;
        let mut changes = std::mem::take(&mut self.scratch);
        changes.clear();
        for word in 0..words(self.shift) {
            let rounds = [self.dirty[first.start + word], self.dirty[second.start + word]];
            let mut bits = rounds[0] | rounds[1];
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                let is_later = rounds[usize::from(later)] >> bit & 1 != 0;
                let lba = blocks.start + 64 * word as u32 + bit;
                let round = if is_later { later } else { self.round };
                changes.push(Change { lba, entry: self.entries[self.at(frame, lba)], round });
            }
        }
        self.changes_resident -= changes.len() as u64;
        self.dirty[first.start..second.end].fill(0);
        self.place[piece as usize] = NONE;
        self.piece_of[frame as usize] = NONE;
        if !forget {
            self.changes.replace(blocks, changes.len(), changes.drain(..));
        }
        self.scratch = changes;
    }

    /// Puts `piece` into `frame`: its base, which is the bytes of its chunk, if it needs one, and
    /// what changed since.
    pub fn fill(&mut self, piece: u32, frame: u32, base: Option<&[u8]>) {
        assert!(!self.is_resident(piece), "a piece has one frame");
        self.loading -= 1;
        let first = (frame as usize) << self.shift;
        let blocks = self.piece_blocks(piece);
        let entries = &mut self.entries[first..first + (1 << self.shift)];
        copy_base(entries, blocks.start, base);
        // Those of the other round are in the base already.
        let sweeping = self.swept < self.changes.groups();
        let covered = self.round ^ 1;
        let mut changes = std::mem::take(&mut self.scratch);
        changes.clear();
        let records = self.changes.of(blocks.clone());
        changes.extend(records.filter(|change| !sweeping || change.round != covered));
        self.changes.remove(blocks.clone());
        for change in &changes {
            let at = self.at(frame, change.lba);
            self.entries[at] = change.entry;
            let index = (change.lba - blocks.start) as usize;
            let word = self.dirty_of(frame, change.round).start + index / 64;
            self.dirty[word] |= 1 << (index % 64);
        }
        self.changes_resident += changes.len() as u64;
        self.scratch = changes;
        if self.used[piece as usize] == UNCOUNTED {
            let entries = &self.entries[first..first + (1 << self.shift)];
            let used = entries.iter().filter(|&&entry| entry != UNMAPPED).count();
            self.used[piece as usize] = used as u16;
        }
        self.place[piece as usize] = frame;
        self.piece_of[frame as usize] = piece;
        self.queues.add(frame, piece);
        if self.held.get(piece) {
            self.pin(piece);
        }
    }

    /// The blocks of `piece`, as if the last one were whole.
    fn piece_blocks(&self, piece: u32) -> Range<u32> {
        piece << self.shift..(piece + 1) << self.shift
    }

    /// What every block of a chunk holds now; `base` has the bytes of the chunk, if it needs them.
    pub fn compose(&self, chunk: u32, base: Option<&[u8]>, into: &mut [u32; CHUNK_ENTRIES]) {
        into.fill(UNMAPPED);
        let first = chunk * CHUNK_ENTRIES as u32;
        for piece in self.pieces_of_chunk(chunk) {
            let blocks = self.piece_blocks(piece);
            let at = (blocks.start - first) as usize;
            let into = &mut into[at..at + (1 << self.shift)];
            if let Some(entries) = self.entries_of(piece) {
                into.copy_from_slice(entries);
            } else if !self.is_unused(piece) {
                let base = base.filter(|_| !self.is_void(piece));
                copy_base(into, blocks.start, base);
                for change in self.changes.of(blocks.clone()) {
                    into[(change.lba - blocks.start) as usize] = change.entry;
                }
            }
        }
    }

    /// What `chunk` holds now is in the checkpoint that is being written. Chunks come in order.
    pub fn cover(&mut self, chunk: u32) {
        self.covered_below = self.pieces_of_chunk(chunk).end;
    }

    /// The checkpoint that was written is the base now.
    pub fn checkpoint_completed(&mut self, lose_later: bool) {
        let covered = self.round;
        self.round ^= 1;
        self.covered_below = 0;
        self.swept = 0;
        for frame in 0..self.frames {
            let before = self.count_changed(frame);
            let bits = self.dirty_of(frame, covered);
            self.dirty[bits].fill(0);
            if lose_later {
                let bits = self.dirty_of(frame, covered ^ 1);
                self.dirty[bits].fill(0);
            }
            self.changes_resident -= before - self.count_changed(frame);
        }
        self.void[usize::from(covered)].clear();
    }

    /// The checkpoint that was being written will not be the base.
    pub fn checkpoint_aborted(&mut self) {
        self.covered_below = 0;
        let later = self.round ^ 1;
        for frame in 0..self.frames {
            let (from, to) = (self.dirty_of(frame, later), self.dirty_of(frame, self.round));
            for (from, to) in from.zip(to) {
                self.dirty[to] |= std::mem::take(&mut self.dirty[from]);
            }
        }
        let [first, second] = &mut self.void;
        if self.round == 0 {
            first.take(second)
        } else {
            second.take(first)
        }
        self.changes.join_rounds(self.round);
    }

    /// Gives back memory of changes that the last checkpoint covers; true when all is done.
    pub fn sweep(&mut self, groups: u32) -> bool {
        let end = self.changes.groups().min(self.swept.saturating_add(groups));
        for group in self.swept..end {
            self.changes.forget_round(group, self.round ^ 1);
        }
        self.swept = end;
        end == self.changes.groups()
    }

    /// The same, a little at a time.
    pub fn sweep_on(&mut self) {
        self.sweep(SWEEP_GROUPS);
    }

    /// Recovery: `lba` holds `entry`, whatever the base says. Its piece is not in a frame.
    pub fn recover(&mut self, lba: u32, entry: u32) {
        self.changes.set(Change { lba, entry, round: self.round_of(self.piece(lba)) });
    }

    /// Recovery: what `lba` held cannot be.
    pub fn poison(&mut self, lba: u32) {
        if self.is_resident(self.piece(lba)) {
            self.replace(lba, POISONED);
        } else {
            self.recover(lba, POISONED);
        }
    }

    /// Entries of `piece`, which is in a frame, that point beyond `slots` are none.
    pub fn drop_impossible(&mut self, piece: u32, slots: u64) {
        let first = (self.place[piece as usize] as usize) << self.shift;
        for entry in &mut self.entries[first..first + (1 << self.shift)] {
            if *entry < POISONED && u64::from(*entry) >= slots {
                *entry = POISONED;
            }
        }
    }

    /// Recovery: how many entries of a piece hold something is not known before it was looked at.
    pub fn forget_use(&mut self) {
        self.used.fill(UNCOUNTED);
    }

    /// Recovery: these blocks are unmapped.
    pub fn recover_unmapped(&mut self, blocks: Range<u32>) {
        let mut at = blocks.start;
        while at < blocks.end {
            let piece = self.piece(at);
            let whole = self.blocks_of(piece);
            let part = at..whole.end.min(blocks.end);
            if part == whole {
                self.lose(piece);
            } else {
                part.clone().for_each(|lba| self.recover(lba, UNMAPPED));
            }
            at = part.end;
        }
    }

    /// Recovery: there is no base of `chunk`.
    pub fn lose_chunk(&mut self, chunk: u32) {
        self.pieces_of_chunk(chunk).for_each(|piece| self.lose(piece));
    }

    fn lose(&mut self, piece: u32) {
        self.changes.remove(self.blocks_of(piece));
        self.void[usize::from(self.round_of(piece))].set(piece, true);
    }

    /// The base of `chunk` says nothing any more. Returns the blocks of its pieces that are in frames:
    /// they hold what they held, and all that is a change now. The others hold nothing.
    pub fn lose_base_of(&mut self, chunk: u32) -> Vec<Range<u32>> {
        let mut kept = Vec::new();
        for piece in self.pieces_of_chunk(chunk) {
            let frame = self.place[piece as usize];
            if frame == NONE {
                self.lose(piece);
                continue;
            }
            self.void[usize::from(self.round_of(piece))].set(piece, true);
            for lba in self.blocks_of(piece) {
                if self.entries[self.at(frame, lba)] != UNMAPPED {
                    self.mark(frame, lba);
                }
            }
            kept.push(self.blocks_of(piece));
        }
        kept
    }

    /// Recovery: what `lba` holds, if that does not hang on the base.
    pub fn recovered(&self, lba: u32) -> Option<u32> {
        let change = self.changes.of(lba..lba + 1).next().map(|change| change.entry);
        change.or_else(|| self.is_void(self.piece(lba)).then_some(UNMAPPED))
    }

    /// Recovery: what `chunk` holds, all changes being known, is counted.
    pub fn count_chunk(&mut self, chunk: u32, entries: &[u32; CHUNK_ENTRIES]) {
        let first = chunk * CHUNK_ENTRIES as u32;
        for piece in self.pieces_of_chunk(chunk) {
            let blocks = self.blocks_of(piece);
            let blocks = (blocks.start - first) as usize..(blocks.end - first) as usize;
            let used = entries[blocks].iter().filter(|&&entry| entry != UNMAPPED).count();
            self.used[piece as usize] = used as u16;
        }
    }

    /// Every entry that is in a frame, with its block.
    pub fn resident(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let pieces = (0..self.place.len() as u32).filter(|&piece| self.is_resident(piece));
        pieces.flat_map(move |piece| {
            let blocks = self.blocks_of(piece);
            let entries = self.entries_of(piece).unwrap_or_default();
            blocks.zip(entries.iter().copied())
        })
    }

    /// Checks the counts of this type; `Err` says what does not add up.
    pub fn verify(&self) -> Result<(), String> {
        let changed: u64 = (0..self.frames).map(|frame| self.count_changed(frame)).sum();
        if changed != self.changes_resident {
            return Err(format!(
                "{changed} entries in frames are changed, counted {}",
                self.changes_resident
            ));
        }
        for piece in 0..self.place.len() as u32 {
            let Some(entries) = self.entries_of(piece) else { continue };
            let used = entries.iter().filter(|&&entry| entry != UNMAPPED).count() as u32;
            if used != self.used_of(piece) {
                return Err(format!(
                    "piece {piece} counts {} used, has {used}",
                    self.used_of(piece)
                ));
            }
            if self.changes.of(self.blocks_of(piece)).next().is_some() {
                return Err(format!("piece {piece} is in a frame and has changes beside it"));
            }
        }
        let pinned = self.pins.iter().filter(|&&pins| pins > 0).count() as u32;
        if pinned != self.pinned {
            return Err(format!("{pinned} frames are pinned, counted {}", self.pinned));
        }
        Ok(())
    }
}

/// Copies what the bytes of a chunk say of the blocks from `first` on; unmapped without any.
fn copy_base(into: &mut [u32], first: u32, base: Option<&[u8]>) {
    let Some(bytes) = base else {
        into.fill(UNMAPPED);
        return;
    };
    let at = first as usize % CHUNK_ENTRIES;
    for (index, entry) in into.iter_mut().enumerate() {
        *entry = u32_at(bytes, 4 * (at + index));
    }
}
