//! Residency: brings pieces of the map into DRAM where only a part of it is there, before a host
//! request looks at them.
//!
//! A request whose pieces are there goes on at once. One that misses *claims* all the pieces it needs
//! for its next step together: those that are there are pinned, the others loaded from the last
//! complete checkpoint, and when the last has come it goes on. A load goes with host reads; a second
//! request for the same piece waits for the same load. Writes and trims keep their order: the oldest
//! waits for its pieces, those behind it may have theirs loaded meanwhile.
//!
//! GC, destage and whoever else moves a slot need no entry in DRAM: the slot's header and valid bit say
//! what the entry is, unless recovery found the band (`Ftl::may_trust`).
//!
//! Invariants:
//! - nobody waits for a frame while holding another: a claim is granted whole or not at all;
//! - reads, the oldest write, and the writes behind it each have a bounded share of the frames, which
//!   leave some to be had, so none can starve another;
//! - a chunk that was read counts only if it is of the last complete checkpoint: one that was on its
//!   way when another was completed is read again.

use crate::format::Kind;
use crate::map::Map;
use crate::map::Needs;
use crate::mutant::Mutant;
use crate::space::read_slo::Way;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use flash::{MediumError, RequestError, SlotId, SlotRead, SlotStatus};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Reads of a chunk before it counts as lost.
pub(crate) const TRIES_MAX: u32 = 4;

/// Which share of the frames a claim is of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Share {
    /// Host reads: three eighths of the frames.
    #[default]
    Reads,
    /// The oldest write or trim: three eighths.
    Oldest,
    /// Writes behind it: an eighth.
    Ahead,
}

/// What a host request has claimed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim {
    share: Share,
    pieces: Vec<u32>,
    /// Of them, those that are being loaded.
    pub missing: u32,
}

/// A piece on its way to DRAM.
#[derive(Clone, Debug, Default)]
struct Load {
    frame: u32,
    pins: u32,
    /// Requests to tell, by index.
    waiters: Vec<u32>,
    tries: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Residency {
    /// By piece.
    loads: BTreeMap<u32, Load>,
    /// Host reads that no frames could be had for, oldest first.
    waiting: VecDeque<u32>,
    /// Pieces claimed by reads, and by writes behind the oldest.
    reads: u32,
    ahead: u32,
    /// Pieces claimed by the oldest write.
    oldest: u32,
    /// The oldest write found no frames.
    starved: bool,
    pub hits: u64,
    pub misses: u64,
    pub loaded: u64,
    /// Loads that had to be read again, and those that failed for good.
    pub retried: u64,
    pub lost: u64,
}

/// What came of asking for pieces.
enum Claimed {
    There,
    /// Some are being loaded.
    Waits,
    /// The frames are all taken.
    NoRoom,
}

impl Ftl {
    /// Frames that claims of `share` may take in all.
    fn share_max(&self, share: Share) -> u32 {
        let frames = self.map.cached().map_or(0, |cached| cached.frames_shared());
        match share {
            Share::Reads | Share::Oldest => frames / 8 * 3 + frames % 8 * 3 / 8,
            Share::Ahead => frames / 8,
        }
    }

    /// Goes on with host read `index`: looks up as many blocks as have their entries there, and again
    /// when the others have come.
    pub(crate) fn read_on(&mut self, index: u32) {
        loop {
            let (lba, left) = self.left_of(index);
            let Some(cached) = self.map.cached() else { return };
            // What is looked up at once shows no atomic write in part, so the parts are large.
            let pieces_max = self.share_max(Share::Reads);
            let count = left.min(cached.end_of_pieces(lba, pieces_max) - lba);
            if !self.map.is_there(lba, count) {
                // What held nothing when it was claimed may have been written and have left since.
                self.unclaim(index);
                match self.claim(index, lba..lba + count, Share::Reads) {
                    Claimed::There => {}
                    Claimed::Waits => return,
                    Claimed::NoRoom => {
                        self.host.residency.waiting.push_back(index);
                        return;
                    }
                }
            }
            if self.host.atomic_writes > 0 && self.wait_for_group(index) {
                self.unclaim(index);
                return;
            }
            self.touch(lba, count);
            self.look_up(index, count);
            self.unclaim(index);
            if count == left {
                self.part_ended(index);
                return;
            }
        }
    }

    /// The next block of a request to be looked at, and how many are left with it.
    fn left_of(&self, index: u32) -> (u32, u32) {
        let entry = &self.host.requests[index];
        (entry.lba + entry.placed, entry.blocks - entry.placed)
    }

    fn touch(&mut self, lba: u32, blocks: u32) {
        if let Some(cached) = self.map.cached_mut() {
            let (first, last) = (cached.piece(lba), cached.piece(lba + blocks - 1));
            (first..=last).for_each(|piece| cached.touch(piece));
        }
    }

    /// Goes on with reads that waited for frames, as far as there are some.
    pub(crate) fn admit_reads(&mut self) {
        while let Some(&index) = self.host.residency.waiting.front() {
            let (lba, left) = self.left_of(index);
            let Some(cached) = self.map.cached() else { return };
            let pieces = cached.piece(lba + left - 1) - cached.piece(lba) + 1;
            let wanted = pieces.min(self.share_max(Share::Reads));
            if !self.has_room(wanted, Share::Reads) {
                return;
            }
            self.host.residency.waiting.pop_front();
            self.read_on(index);
        }
    }

    pub(crate) fn reads_wait_for_frames(&self) -> bool {
        !self.host.residency.waiting.is_empty()
    }

    /// Whether so many pieces of `share` can be claimed now, whichever they are.
    fn has_room(&self, pieces: u32, share: Share) -> bool {
        let taken = match share {
            Share::Reads => self.host.residency.reads,
            Share::Ahead => self.host.residency.ahead,
            Share::Oldest => self.host.residency.oldest,
        };
        let Some(cached) = self.map.cached() else { return true };
        taken + pieces <= self.share_max(share) && pieces <= cached.frames_to_have()
    }

    /// Claims the pieces of `blocks` for request `index`, which has claimed none.
    fn claim(&mut self, index: u32, blocks: Range<u32>, share: Share) -> Claimed {
        let Some(cached) = self.map.cached() else { return Claimed::There };
        let pieces = cached.piece(blocks.start)..cached.piece(blocks.end - 1) + 1;
        // Only what is written needs a frame for a piece that holds nothing.
        let writes = self.host.requests[index].writes();
        let wanted =
            |piece: &u32| writes || cached.is_resident(*piece) || !cached.is_unused(*piece);
        let mut list = std::mem::take(&mut self.host.requests[index].claim.pieces);
        list.clear();
        list.extend(pieces.filter(wanted));
        if !self.has_room(list.len() as u32, share) {
            list.clear();
            self.host.requests[index].claim.pieces = list;
            return Claimed::NoRoom;
        }
        *self.share_of(share) += list.len() as u32;
        // First what is there, so that it does not leave for the others.
        let is_resident = |map: &Map, piece| map.cached().is_some_and(|of| of.is_resident(piece));
        list.sort_unstable_by_key(|&piece| (!is_resident(&self.map, piece), piece));
        let mut missing = 0;
        for &piece in &list {
            missing += u32::from(!self.pin_or_load(piece, Some(index)));
        }
        self.host.requests[index].claim = Claim { share, pieces: list, missing };
        if missing > 0 { Claimed::Waits } else { Claimed::There }
    }

    fn share_of(&mut self, share: Share) -> &mut u32 {
        match share {
            Share::Reads => &mut self.host.residency.reads,
            Share::Ahead => &mut self.host.residency.ahead,
            Share::Oldest => &mut self.host.residency.oldest,
        }
    }

    /// Gives back what request `index` has claimed.
    pub(crate) fn unclaim(&mut self, index: u32) {
        let claim = &mut self.host.requests[index].claim;
        if claim.pieces.is_empty() {
            return;
        }
        let (mut list, share) = (std::mem::take(&mut claim.pieces), claim.share);
        claim.missing = 0;
        *self.share_of(share) -= list.len() as u32;
        for piece in list.drain(..) {
            if let Some(load) = self.host.residency.loads.get_mut(&piece) {
                load.pins -= 1;
                load.waiters.retain(|&other| other != index);
            } else if let Some(cached) = self.map.cached_mut() {
                cached.unpin(piece);
            }
        }
        self.host.requests[index].claim.pieces = list;
        // A write that waits for frames is tried again.
        self.stirred |= std::mem::take(&mut self.host.residency.starved);
    }

    /// Pins `piece` for a request if it is in DRAM; else loads it, and the request is told. True if it
    /// is there.
    fn pin_or_load(&mut self, piece: u32, waiter: Option<u32>) -> bool {
        let Some(cached) = self.map.cached_mut() else { return true };
        if waiter.is_some() && cached.pin(piece) || waiter.is_none() && cached.is_resident(piece) {
            return true;
        }
        if let Some(load) = self.host.residency.loads.get_mut(&piece) {
            load.pins += u32::from(waiter.is_some());
            load.waiters.extend(waiter);
            return false;
        }
        let chunk = cached.chunk_of(piece);
        let forget = cfg!(feature = "mutants") && self.mutant == Some(Mutant::EvictForgetsChanges);
        let Some(frame) = cached.take_frame(forget) else {
            assert!(waiter.is_none(), "a claim that is granted finds frames");
            return false;
        };
        let lost = self.is_lost(chunk) && !self.is_mutant(Mutant::ServeBeforeRebuilt);
        let Some(cached) = self.map.cached_mut() else { return true };
        if !cached.needs_base(piece) && !lost {
            cached.fill(piece, frame, None);
            return waiter.is_none() || cached.pin(piece);
        }
        let waiters: Vec<u32> = waiter.into_iter().collect();
        let pins = waiters.len() as u32;
        self.host.residency.loads.insert(piece, Load { frame, pins, waiters, tries: 0 });
        self.read_piece(piece);
        false
    }

    /// Reads the base of `piece`, if it is still on its way.
    pub(crate) fn read_piece(&mut self, piece: u32) {
        if !self.host.residency.loads.contains_key(&piece) {
            return;
        }
        let chunk = self.map.cached().map_or(0, |cached| cached.chunk_of(piece));
        if self.is_lost(chunk) {
            // It comes when the chunk is rebuilt.
            return;
        }
        let slot = self.base_slot(chunk);
        let block = self.bands.block_of(slot);
        self.bands[block].reads_pending += 1;
        let read = self.units.reads.take();
        self.units.reads[read] = ReadOp {
            purpose: ReadPurpose::Map(piece),
            slot,
            count: 1,
            into: None,
            lba: chunk,
            since: self.now,
            way: Way::Reads,
            begun: self.now,
        };
        self.queue_read(read);
    }

    /// Where `chunk` lies in the last complete checkpoint.
    pub(crate) fn base_slot(&self, chunk: u32) -> SlotId {
        let per_page = self.geometry.slots_per_page;
        let base = self.checkpoint.base_layout.expect("a chunk whose base is read has one");
        let (position, page) = base.place(base.page_of_content(chunk / per_page));
        let block = self.checkpoint.base_bands[position as usize];
        let block = block.expect("a chunk whose band was not found has no base");
        self.geometry.slot(block, page, chunk % per_page)
    }

    /// The bytes of `chunk` of the last complete checkpoint, if that is what was read and it is sound.
    pub(crate) fn base_bytes<'a>(
        &mut self,
        chunk: u32,
        slot: SlotId,
        read: Option<&SlotRead<'a>>,
    ) -> Option<Cow<'a, [u8]>> {
        let base = self.checkpoint.base_name;
        let trusts_old = self.is_mutant(Mutant::TrustOldBase);
        let sound = read.and_then(|read| {
            let (header, bytes) = self.checkpoint_bytes(slot, read)?;
            let of_base = header.sequence == base || trusts_old && header.sequence < base;
            let it = header.kind == Kind::Map && header.lba == chunk && of_base;
            it.then_some((read.status, bytes))
        });
        let Some((status, bytes)) = sound else {
            return self.checkpoint.mended.bytes_of(chunk).map(|bytes| Cow::Owned(bytes.to_vec()));
        };
        let fades =
            matches!(status, SlotStatus::Corrected(bits) if bits >= self.settings.refresh_bits);
        if fades && self.checkpoint.is_idle() && self.may_write() {
            self.counters.refreshes += 1;
            self.checkpoint.want();
        }
        Some(Cow::Borrowed(bytes))
    }

    /// A read of a piece's base came back.
    pub(crate) fn end_piece_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let ReadPurpose::Map(piece) = op.purpose else {
            unreachable!("only reads of pieces end here")
        };
        if self.is_lost(op.lba) {
            // What came may still be right, but others have missed it: it comes when it is rebuilt.
            return;
        }
        let Some(load) = self.host.residency.loads.get_mut(&piece) else { return };
        load.tries += 1;
        let tries = load.tries;
        let slot = self.base_slot(op.lba);
        let base = self.base_bytes(op.lba, op.slot, slots.ok().and_then(<[_]>::first));
        if let Some(bytes) = base {
            self.host.residency.loaded += 1;
            self.end_load(piece, Some(&bytes));
        } else if slot != op.slot || tries < TRIES_MAX {
            // Cells at their limit may be read the next time.
            if slot != op.slot
                && let Some(load) = self.host.residency.loads.get_mut(&piece)
            {
                load.tries = 0;
            }
            self.host.residency.retried += 1;
            self.read_piece(piece);
        } else if !self.regains(op.lba, Needs::Piece(piece)) {
            self.lose_piece(piece);
        }
    }

    /// Loads that wait for `chunks` come to their end: what these hold does not hang on a base any more.
    pub(crate) fn end_loads_of(&mut self, chunks: &BTreeSet<u32>) {
        let Some(cached) = self.map.cached() else { return };
        let of_them = |&&piece: &&u32| chunks.contains(&cached.chunk_of(piece));
        let pieces: Vec<u32> = self.host.residency.loads.keys().filter(of_them).copied().collect();
        pieces.into_iter().for_each(|piece| self.end_load(piece, None));
    }

    fn end_load(&mut self, piece: u32, base: Option<&[u8]>) {
        let load = self.host.residency.loads.remove(&piece).expect("a load is under way");
        let cached = self.map.cached_mut().expect("only a part of the map is in DRAM");
        cached.fill(piece, load.frame, base);
        if self.checkpoint.counting.is_some() {
            cached.drop_impossible(piece, self.geometry.slots());
        }
        for _ in 0..load.pins {
            cached.pin(piece);
        }
        for index in load.waiters {
            let entry = &mut self.host.requests[index];
            entry.claim.missing -= 1;
            if entry.claim.missing == 0 && entry.reads() {
                self.read_on(index);
            }
        }
    }

    /// The base of `piece` cannot be read, nor made up for. Nothing of it is lost: what it said can be told from every
    /// band, which a mount does. Until then who needs it is told, and nothing more is written, as no
    /// checkpoint could be.
    fn lose_piece(&mut self, piece: u32) {
        let load = self.host.residency.loads.remove(&piece).expect("a load is under way");
        if let Some(cached) = self.map.cached_mut() {
            cached.give_frame(load.frame);
        }
        for index in load.waiters {
            let claim = &mut self.host.requests[index].claim;
            claim.pieces.retain(|&other| other != piece);
            let share = claim.share;
            *self.share_of(share) -= 1;
            self.unclaim(index);
            if self.host.requests[index].reads() {
                self.counters.reads_unreadable += 1;
                self.fail_request(index, RequestError::Unreadable);
                self.part_ended(index);
            }
        }
        self.fail_reroutes(piece);
        self.lose_base();
    }

    /// `chunk` of the last checkpoint cannot be read. True if it is made up for while the host is served.
    pub(crate) fn regains(&mut self, chunk: u32, needs: Needs) -> bool {
        self.lose_chunk(chunk) || self.mends(chunk, needs)
    }

    /// A chunk of the last checkpoint cannot be read, and is not made up for before the next mount.
    pub(crate) fn lose_base(&mut self) {
        self.host.residency.lost += 1;
        if self.may_write() {
            self.fail();
        }
    }

    /// Whether the entry of the next block of the oldest write, `index`, is there to be replaced; of
    /// all its blocks if it is atomic. If not, it is loaded.
    pub(crate) fn entry_is_there(&mut self, index: u32) -> bool {
        let Some(cached) = self.map.cached_mut() else { return true };
        let entry = &self.host.requests[index];
        let lba = entry.lba + entry.placed;
        let first = cached.piece(lba);
        let end = if entry.is_atomic() { entry.lba + entry.blocks } else { lba + 1 };
        if (first..=cached.piece(end - 1)).all(|piece| cached.is_resident(piece)) {
            cached.touch(first);
            return true;
        }
        let pieces_max = self.share_max(Share::Oldest);
        let Some(cached) = self.map.cached() else { return true };
        let (lba, left) = self.left_of(index);
        let end = cached.end_of_pieces(lba, pieces_max).min(lba + left);
        self.claim_next(index, lba..end)
    }

    /// Blocks of the next record of trim `index`: as many, up to `max`, as have their entries there.
    /// `None` while these are loaded.
    pub(crate) fn trim_window(&mut self, index: u32, max: u32) -> Option<u32> {
        let Some(cached) = self.map.cached() else { return Some(max) };
        let (lba, _) = self.left_of(index);
        let pieces_max = self.share_max(Share::Oldest);
        let (mut end, mut used) = (lba, 0);
        while end < lba + max {
            let piece = cached.piece(end);
            used += u32::from(!cached.is_unused(piece));
            if used > pieces_max {
                break;
            }
            end = cached.blocks_of(piece).end.min(lba + max);
        }
        let there = self.map.is_there(lba, end - lba) || self.claim_next(index, lba..end);
        there.then_some(end - lba)
    }

    /// Claims what the oldest write needs next. True if it is there.
    fn claim_next(&mut self, index: u32, blocks: Range<u32>) -> bool {
        if self.host.requests[index].claim.missing > 0 {
            return false;
        }
        self.unclaim(index);
        match self.claim(index, blocks, Share::Oldest) {
            Claimed::There => true,
            Claimed::Waits => false,
            Claimed::NoRoom => {
                self.host.residency.starved = true;
                false
            }
        }
    }

    /// A write came: what it needs is loaded while it waits for its turn.
    pub(crate) fn claim_ahead(&mut self, index: u32) {
        let (lba, left) = self.left_of(index);
        let Some(cached) = self.map.cached() else { return };
        let pieces = cached.piece(lba)..cached.piece(lba + left - 1) + 1;
        let count = pieces.end - pieces.start;
        if pieces.clone().all(|piece| cached.is_resident(piece)) {
            self.host.residency.hits += 1;
            return;
        }
        self.host.residency.misses += 1;
        if self.has_room(count, Share::Ahead) {
            let claimed = self.claim(index, lba..lba + left, Share::Ahead);
            // Who finds all there needs no claim.
            if matches!(claimed, Claimed::There) && self.host.writes.len() <= 1 {
                self.unclaim(index);
            }
        }
    }

    /// Brings the entries of these blocks into DRAM, for nobody's request. True if they are there.
    pub(crate) fn entries_are_there(&mut self, lba: u32, blocks: u32) -> bool {
        let Some(cached) = self.map.cached() else { return true };
        let pieces = cached.piece(lba)..=cached.piece(lba + blocks - 1);
        let absent: Vec<u32> = pieces
            .filter(|&piece| !cached.is_resident(piece) && !cached.is_unused(piece))
            .collect();
        // All of them, so that they come together.
        absent.into_iter().filter(|&piece| !self.pin_or_load(piece, None)).count() == 0
    }

    /// Brings `piece` into DRAM, for nobody's request. False if every frame is taken.
    pub(crate) fn load_piece(&mut self, piece: u32) -> bool {
        self.pin_or_load(piece, None) || self.host.residency.loads.contains_key(&piece)
    }

    /// Loads that no request waits for.
    pub(crate) fn loads_for_nobody(&self) -> usize {
        self.host.residency.loads.values().filter(|load| load.pins == 0).count()
    }

    /// Rerouted reads of blocks of `piece` fail.
    fn fail_reroutes(&mut self, piece: u32) {
        let Some(cached) = self.map.cached() else { return };
        let blocks = cached.blocks_of(piece);
        let lost =
            |&(_, lba, count): &(u32, u32, u32)| lba < blocks.end && blocks.start < lba + count;
        let (failed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.host.reroutes).into_iter().partition(lost);
        self.host.reroutes = kept;
        for (request, ..) in failed {
            self.fail_request(request, RequestError::Unreadable);
            self.part_ended(request);
        }
    }

    /// Pieces on their way to DRAM: who waits for them is served without anything else happening.
    pub(crate) fn loads_running(&self) -> usize {
        self.host.residency.loads.len()
    }

    /// Counts a host read that finds all its entries there, or not.
    pub(crate) fn note_looked_up(&mut self, lba: u32, blocks: u32) {
        if self.map.is_there(lba, blocks) {
            self.host.residency.hits += 1;
        } else {
            self.host.residency.misses += 1;
        }
    }
}
