//! Appends that move: what GC relocates, and what a page held that could not be programmed. They
//! wait in one queue until there is room.
//!
//! Invariant: the band that a move comes from is not erased before the move is done or dropped.

use crate::format::{Kind, UNMAPPED};
use crate::log::points::{Append, Appended, NONE, Owner};
use crate::policy::Purpose;
use crate::space::Grounds;
use crate::whole::Ftl;
use flash::{SlotId, SlotWrite};

/// An append that moves: a relocation, or the content of a page that could not be programmed.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub append: Append,
    pub from: Option<SlotId>,
    /// The order of the failed page, held until this is safe elsewhere.
    pub failed_order: Option<u64>,
    /// What the map said before the failed page. It is still there.
    pub previous: u32,
    /// The append point that it wants.
    pub point: u16,
    /// Host slots that this earns while writes are throttled, in 1/256.
    pub credit: i64,
}

/// What is still to be done about a move once it has its slot.
struct Moved {
    lba: u32,
    owner: Owner,
    from: Option<SlotId>,
    failed_order: Option<u64>,
    previous: u32,
    /// The map points elsewhere already.
    superseded: bool,
}

impl Ftl {
    pub(crate) fn append_again(
        &mut self,
        from: SlotId,
        previous: u32,
        order: u64,
        slot: SlotWrite,
        owner: Owner,
    ) {
        let entry = self.failed_move(from, previous, order, slot, owner);
        if entry.append.kind != Kind::Pad {
            if self.checkpoint.covers(order) && self.comes_late(&entry) {
                self.checkpoint.begin_anew();
            }
            self.durable.hold(order);
            self.moves_failed += 1;
            self.push_move(entry);
        }
    }

    pub(crate) fn failed_move(
        &self,
        from: SlotId,
        previous: u32,
        order: u64,
        slot: SlotWrite,
        owner: Owner,
    ) -> Move {
        let header = self.own_header(from, &slot);
        Move {
            append: Append {
                kind: header.kind,
                lba: header.lba,
                sequence: header.sequence,
                payload_crc: header.payload_crc,
                argument: header.argument,
                group: header.group,
                data: slot.data,
                owner,
            },
            from: (header.kind == Kind::Data).then_some(from),
            failed_order: Some(order),
            previous,
            point: self.point_again(from) as u16,
            credit: 0,
        }
    }

    /// The medium failed: what waits to be moved stays where it was. What could not be programmed
    /// was never acknowledged, or is a copy; the block shows again what it held before.
    pub(crate) fn drop_move(&mut self, entry: Move) {
        if let Some(from) = entry.from.filter(|_| entry.failed_order.is_some()) {
            self.redirect(from, entry.previous);
            self.give_back(entry.append.lba, from, entry.previous, self.durable.next() - 1);
        }
        match entry.append.owner {
            Owner::Request(request) => self.abandon(request),
            Owner::Relocation(chunk) => self.give_relocation(chunk),
            Owner::Nobody | Owner::RefusedTrim => {}
        }
    }

    /// Nothing that is being moved finds a place, and what could make one has none either: all stays where it was.
    pub(crate) fn put_back_moves(&mut self) {
        let all = std::mem::take(&mut self.moves);
        for entry in all {
            if entry.failed_order.is_some() || entry.from.is_none() {
                self.moves.push_back(entry);
                continue;
            }
            self.unhold_source(&entry);
            self.drop_move(entry);
        }
        self.put_back_victims();
    }

    /// Queues a move. Until it is taken out again the band it comes from is not erased: a slot of
    /// the same address with other content would pass for the one that was read.
    pub(crate) fn push_move(&mut self, entry: Move) {
        if let Some(from) = entry.from {
            let block = self.bands.block_of(from);
            self.bands[block].reads_pending += 1;
            if self.geometry.is_fast(block)
                && entry.failed_order.is_none()
                && let Some(tier) = &mut self.tier
            {
                let stays = self.points[usize::from(entry.point)].keeps;
                let queue = if stays { &mut tier.kept } else { &mut tier.moves };
                queue.push_back(entry);
                return;
            }
        }
        self.moves.push_back(entry);
    }

    fn pop_move(&mut self) -> Move {
        let entry = self.moves.pop_front().expect("the front was looked at");
        self.unhold_source(&entry);
        entry
    }

    pub(crate) fn unhold_source(&mut self, entry: &Move) {
        if let Some(from) = entry.from {
            let block = self.bands.block_of(from);
            self.bands[block].reads_pending -= 1;
            self.drain_check = true;
        }
    }

    /// Nothing finds room: the moves that are not needed any more let their bands go, which may be
    /// the room.
    fn drop_superseded(&mut self) {
        if self.bands.draining.is_empty() || self.bands.free > self.host_floor() {
            return;
        }
        // Asked time and again while there is no room; most of the time there are none.
        let mut at = 0;
        while let Some(entry) = self.moves.get(at) {
            let stands = entry.from.is_none_or(|from| self.bands.is_valid(from));
            if stands || entry.failed_order.is_some() {
                at += 1;
                continue;
            }
            let entry = self.moves.remove(at).expect("it was looked at");
            self.unhold_source(&entry);
            self.tell(entry.append.owner);
        }
    }

    /// Whether a newer version of what `entry` is about may have a place already: its order comes
    /// after that of the newer one.
    fn comes_late(&self, entry: &Move) -> bool {
        match entry.append.kind {
            Kind::Data => entry
                .from
                .is_some_and(|from| entry.failed_order.is_some() && !self.bands.is_valid(from)),
            Kind::Trim | Kind::Poison => true,
            // Decides its members, which have orders of their own.
            _ => false,
        }
    }

    /// A checkpoint between a newer version and an older one that comes late would bring the older
    /// one back.
    pub(crate) fn checkpoint_waits_for_moves(&self) -> bool {
        self.checkpoint.is_wanted() && self.moves.iter().any(|entry| self.comes_late(entry))
    }

    /// Where a move that wishes for one append point goes. While space is tight it does not open a
    /// band for its handle alone if one of a handle after it is open: policies count from short-lived
    /// to long-lived, and what dies young among old data does less harm than the reverse.
    fn move_point(&mut self, wished: usize, grounds: Grounds) -> Option<usize> {
        if self.points[wished].page != NONE {
            return Some(wished);
        }
        let is_open = |point: &crate::log::points::Point| point.page != NONE || point.has_open();
        let tight = self.bands.free <= self.host_floor();
        if tight && !is_open(&self.points[wished]) {
            for other in wished + 1..self.points.len() {
                let point = &self.points[other];
                let fits = point.purpose == Purpose::Relocate && is_open(point);
                if fits && self.page_of(other, grounds).is_some() {
                    self.counters.stream_fallbacks += 1;
                    return Some(other);
                }
            }
        }
        let found =
            self.point_or_any(wished, self.bands.free == 0 || self.on_fast(wished), grounds);
        let reserve = self.relocate_point();
        if found.is_none() && self.points[wished].purpose == Purpose::Host && wished != reserve {
            // GC's reserve is for its own append points.
            return self.move_point(reserve, grounds);
        }
        found
    }

    /// Appends what waits to be moved, as far as there is room.
    pub(crate) fn place_moves(&mut self, grounds: Grounds) {
        self.take_arrivals();
        self.credit_kept();
        while !self.keeps_moves()
            && let Some(front) = self.moves.front()
        {
            let superseded = front.from.is_some_and(|from| !self.bands.is_valid(from));
            // What a failed page held is appended all the same: what superseded it may not be
            // durable yet, and what it superseded waits for its order only.
            if superseded && front.failed_order.is_none() {
                let dropped = self.pop_move();
                self.tell(dropped.append.owner);
                continue;
            }
            self.lba_next = front.append.lba;
            let (wished, failed) = (usize::from(front.point), front.failed_order.is_some());
            let closing = self.closing_point(wished, grounds);
            let mut found =
                if closing == wished { self.move_point(wished, grounds) } else { Some(closing) };
            // What a failed page held is nowhere else.
            if found.is_none() && (failed || self.checkpoint_waits_for_moves()) {
                found = self.record_point(Grounds::Record);
            }
            let Some(point) = found else {
                if !failed && self.bring_failed_forward() {
                    continue;
                }
                self.drop_superseded();
                return;
            };
            let entry = self.pop_move();
            self.reclaim.credit += entry.credit;
            self.place_move(entry, point, superseded);
        }
    }

    /// What a failed page held comes before what is moved, which has its old place. False if nothing of it waits.
    fn bring_failed_forward(&mut self) -> bool {
        let failed = |entry: &Move| entry.failed_order.is_some();
        let at = if self.moves_failed > 0 { self.moves.iter().position(failed) } else { None };
        let entry = at.and_then(|at| self.moves.remove(at));
        let found = entry.is_some();
        entry.into_iter().for_each(|entry| self.moves.push_front(entry));
        found
    }

    /// Fills the room of `page` with what waits to be moved, as far as it goes.
    pub(crate) fn fill_with_moves(&mut self, page: u32) {
        while (self.pages[page].slots.len() as u32) < self.pages[page].room
            && let Some(front) = self.moves.front()
        {
            let superseded = front.from.is_some_and(|from| !self.bands.is_valid(from));
            let needed = !superseded || front.failed_order.is_some();
            let Move { append, from, failed_order, previous, credit, .. } = self.pop_move();
            if needed {
                self.reclaim.credit += credit;
                let (lba, owner) = (append.lba, append.owner);
                let appended = self.append_to(page, append);
                self.counters.slots_moved_closing += 1;
                let moved = Moved { lba, owner, from, failed_order, previous, superseded };
                self.settle_move(moved, appended);
            } else {
                self.tell(append.owner);
            }
        }
    }

    /// Appends what moves to `point`, which has a page.
    pub(crate) fn place_move(&mut self, entry: Move, point: usize, superseded: bool) {
        let Move { append, from, failed_order, previous, .. } = entry;
        let (lba, owner) = (append.lba, append.owner);
        let appended = self.append(point, append);
        let moved = Moved { lba, owner, from, failed_order, previous, superseded };
        self.settle_move(moved, appended);
    }

    /// What moved is in its page: the map and all who wait for it are told.
    fn settle_move(&mut self, moved: Moved, appended: Appended) {
        let Moved { lba, owner, from, failed_order, previous, superseded } = moved;
        let Appended { slot, order, page } = appended;
        if let Some(from) = from {
            // There is nothing in a slot that could not be programmed. Of one that was superseded, too:
            // what superseded it may be undone.
            let before = if failed_order.is_some() { previous } else { from.0 };
            let in_page = (slot.0 - self.pages[page].slot.0) as usize;
            self.pages[page].previous[in_page] = before;
        }
        if let Some(from) = from.filter(|_| !superseded) {
            self.remap_known(self.holder(lba, from), from.0, slot.0, order);
            self.counters.slots_relocated += 1;
            if let Owner::Request(request) = owner {
                self.move_member(request, from, slot);
            }
            self.note_moved(from, slot, owner);
        }
        if superseded {
            // The map never points to it. It goes when what superseded it is durable, which has
            // an earlier order.
            let block = self.bands.block_of(slot);
            let band = &mut self.bands[block];
            band.invalid_order = band.invalid_order.max(order);
        }
        if let Owner::Request(request) = owner {
            self.note_order(request, order);
            self.note_placed(request, slot, UNMAPPED);
        }
        if let Some(failed) = failed_order {
            if let Some(from) = from {
                self.redirect(from, slot.0);
            }
            self.moves_failed -= 1;
            if self.durable.is_vital(failed) {
                // Who waits for the page that failed waits for this one.
                self.durable.make_vital(order);
            }
            self.durable.link(vec![order], failed);
            self.durable_rose = true;
        }
    }
}
