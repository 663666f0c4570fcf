//! Group commit where pages share cells. A flush there wants the pages before it *closed*: everything
//! that shares cells with them programmed. To close by padding for each flush, on every unit that a
//! block of it lies on, costs a host that flushes each small write several pages for each block, and
//! in the end the room that GC needs. So:
//! - closing goes in *rounds*: flushes that come while one is under way wait for the next;
//! - while flushes come often, the next page of an append point goes where it closes others, and a page
//!   in part filled waits for those of its append point that are under way: what comes meanwhile is
//!   committed together;
//! - what a round has to append for no other reason is what GC moves, as far as there is some, and
//!   padding only for the rest. A few moves are kept back for that.
//!
//! Invariants:
//! - a round waits for nothing but what is on its way: a flush takes two rounds at most, each as long
//!   as the units take for what they have queued and the pages of one closing;
//! - moves are kept back only while a round is under way, or nobody waits for what they earn.

use crate::log::points::NONE;
use crate::policy::Purpose;
use crate::space::FREE_AT_REST;
use crate::space::Grounds;
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{BlockId, Instant, MILLISECOND, Pairing};

/// Flushes come often if fewer pages than so many for each unit are opened from one to the next.
const PAGES_PER_COMMIT: u64 = 8;

/// Longest that a page in part filled waits for others of its append point: about as long as the slowest
/// word line takes.
const GATHER_MAX_NS: u64 = 20 * MILLISECOND;

/// Pages of moves that are kept back for the next round: as many as the closing of a few bands takes.
const PAGES_KEPT: u32 = 8;

/// So many times more pages than usual may wait on a unit, rather than to begin another band, where
/// space is short.
const QUEUES_SHORT: u32 = 2;

/// Relocation buffers for each move that is kept back: at worst each has one of its own.
const CHUNKS_PER_KEPT: u32 = 4;

/// Free bands above those at which GC begins, below which it moves what flushes close with, and no more.
const FILL_AHEAD: u32 = 2;

/// A band is worth reading for that if it gains one slot in so many.
const FILLER_GAIN: u32 = 4;

/// What is known of rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commit {
    /// The round under way makes all vital orders below this safe.
    until: u64,
    /// The next order when somebody last asked for a commit.
    asked_at: Option<u64>,
}

impl Ftl {
    /// Whether flushes close pages in rounds: where the host's pages share cells, and nothing else has
    /// to be flushed.
    fn commits_in_rounds(&self) -> bool {
        self.geometry.pairing != Pairing::None && self.tells_vital() && !self.geometry.is_tiered()
    }

    /// Somebody waits for a commit. False if each is to be closed for by itself.
    pub(crate) fn note_commit(&mut self) -> bool {
        let rounds = self.commits_in_rounds();
        if rounds {
            self.commit.asked_at = Some(self.durable.next());
        }
        rounds
    }

    /// Whether commits come so often that it pays to append for them.
    pub(crate) fn commits_often(&self) -> bool {
        let pages = PAGES_PER_COMMIT * u64::from(self.geometry.units);
        self.commit.asked_at.is_some_and(|at| self.durable.next() - at < pages)
    }

    /// Begins a round if somebody waits for one and none is under way.
    pub(crate) fn commit_pump(&mut self) {
        let below = self.durable.vital_below();
        if !self.commits_in_rounds() || below < self.commit.until {
            return;
        }
        let waited = self.host.waiters.iter().map(|waiter| waiter.order).max();
        let waited = waited.map(|order| order.min(self.durable.next() - 1));
        if let Some(order) = waited.filter(|&order| order >= below) {
            self.commit.until = order + 1;
            self.force_vital(order);
        }
    }

    /// The unit where the next page of `point` closes others that somebody waits for, or soon will.
    pub(crate) fn unfinished(&self, point: usize) -> Option<u32> {
        let own = &self.points[point];
        if own.purpose != Purpose::Host || !self.commits_often() {
            return None;
        }
        // Where space is short, longer queues are better than more bands to close.
        let queues = if self.has_plenty() { 1 } else { QUEUES_SHORT };
        let appends_max = queues * self.appends_max();
        let closes = |unit: u32| {
            let open = own.open[unit as usize];
            open != NONE
                && self.units[unit as usize].appends_waiting() < appends_max
                && self
                    .partner_wanted(open, u64::MAX, true)
                    .is_some_and(|last| last >= self.pages_written(self.opens[open].block))
        };
        // The one where it appended last comes first: the fewer are begun, the fewer are to be closed.
        std::iter::once(own.last_unit).chain(0..self.geometry.units).find(|&unit| closes(unit))
    }

    /// Since when a page may count as waiting: it gathers while others of its append point are under way.
    pub(crate) fn gathers_until(&self, page: u32) -> Instant {
        let entry = &self.pages[page];
        let point = self.points.get(self.opens[entry.open].point as usize);
        let gathers = self.commits_often() && point.is_some_and(|point| point.under_way > 0);
        if gathers { entry.opened_at + GATHER_MAX_NS } else { entry.opened_at }
    }

    /// Most moves that are kept back: not so many that GC is short of buffers.
    pub(crate) fn moves_kept(&self) -> u32 {
        let chunks = self.settings.relocation_blocks / self.geometry.slots_per_page;
        (PAGES_KEPT * self.geometry.slots_per_page).min(chunks / CHUNKS_PER_KEPT)
    }

    /// Whether GC reads ahead what the next rounds close with.
    pub(crate) fn wants_fillers(&self) -> bool {
        self.commits_in_rounds() && self.commits_often() && self.phase == Phase::Running
    }

    /// Starts a victim though there is space, if flushes close pages with what it holds: padding would
    /// cost as much and gain nothing.
    pub(crate) fn pick_filler(&mut self) {
        if self.has_plenty() || !self.wants_fillers() || !self.reclaim.victims.is_empty() {
            return;
        }
        let slots = self.geometry.slots_per_block();
        let picked = self.pick_victim();
        let gain = |block: &BlockId| slots - self.bands[*block].slots_valid;
        if let Some(block) = picked.filter(|block| gain(block) >= slots / FILLER_GAIN) {
            self.start_victim(block, "gc: filled pages that flushes close", true);
        }
    }

    /// Free bands enough that padding does no harm.
    pub(crate) fn has_plenty(&self) -> bool {
        self.bands.free >= self.gc_low() + FILL_AHEAD
    }

    /// Slots that may be in hand. What flushes will close with is read as they go on, not a band at a
    /// time; while the host waits for space a little more, for the append points of GC.
    pub(crate) fn in_hand_max(&self) -> i64 {
        let enough = self.bands.free > self.host_floor() + FREE_AT_REST;
        if !enough || !self.wants_fillers() {
            return i64::MAX;
        }
        let waited = if self.host.held { self.slow_units() } else { 0 };
        i64::from(self.moves_kept() + waited * self.geometry.slots_per_page)
    }

    /// The host came to wait for space in this turn: what was kept back earns it some.
    pub(crate) fn place_kept_moves(&mut self) {
        if !self.host.held || self.moves.is_empty() || !self.commits_often() {
            return;
        }
        self.place_moves(Grounds::Usual);
        self.place_writes();
        self.host.held = !self.host.writes.is_empty();
        if self.host_stands_still() {
            self.reclaim_pump();
        }
    }

    /// Whether what waits to be moved stays for the next round.
    pub(crate) fn keeps_moves(&self) -> bool {
        !self.moves.is_empty()
            && self.moves.len() as u32 <= self.moves_kept()
            && self.commits_in_rounds()
            && self.commits_often()
            && self.phase == Phase::Running
            && self.moves_failed == 0
            && (!self.host.held || !self.host.waiters.is_empty())
            && self.checkpoint.is_idle()
            && self.bands.free > self.host_floor()
    }

    /// What is kept back has its place in the next round, so what it earns is earned: else the host,
    /// whose flush begins that round, would wait for it.
    pub(crate) fn credit_kept(&mut self) {
        if !self.moves.is_empty() && self.wants_fillers() {
            let kept = self.moves_kept() as usize;
            let kept = self.moves.iter_mut().take(kept);
            self.reclaim.credit += kept.map(|entry| std::mem::take(&mut entry.credit)).sum::<i64>();
        }
    }

    /// Fills what is left of a page with moves, if it is programmed for a round.
    pub(crate) fn fill_up_page(&mut self, page: u32, for_round: bool) {
        if for_round && self.commits_in_rounds() {
            self.fill_with_moves(page);
        }
    }

    /// Appends until page `target` of an open band is on its way: for a round what is to be moved
    /// first, then padding.
    pub(crate) fn close_to(&mut self, open: u32, target: u32, for_round: bool) {
        if for_round && self.commits_in_rounds() && !self.moves.is_empty() {
            self.move_to(open, target);
        }
        self.pad_to(open, target);
    }

    fn move_to(&mut self, open: u32, target: u32) {
        let block = self.opens[open].block;
        let end = (target + 1) * self.geometry.slots_per_page;
        if let Some(point) = self.points.get(self.opens[open].point as usize)
            && point.page != NONE
            && self.pages[point.page].open == open
            && self.pages[point.page].index <= target
        {
            self.fill_with_moves(point.page);
            self.seal(self.opens[open].point as usize);
        }
        while !self.moves.is_empty() && self.bands[block].slots_written < end {
            let page = self.allocate_page(open);
            self.fill_with_moves(page);
            self.pad(page);
            self.queue_page(page);
        }
    }
}
