//! What each slot says of others, so that recovery misses what is not there any more.
//!
//! A power cut may take the last pages, and only those. So recovery would take whatever it cannot read,
//! and whatever reads as erased, for pages that a cut has torn, unless something durable says that more
//! was there. Two things do, in bytes beside slots that are written anyway:
//! - a *watermark*: every version with a sequence below it was durable when the slot was filled;
//! - a *voucher*: an earlier slot, on another page, has held this version of this block, or this record.
//!
//! Recovery misses a version that is vouched for, lies below the highest watermark and is later than the
//! checkpoint, if it finds neither it nor anything newer of the block: then the block's reads fail.
//! What is vouched for was programmed; a slot says it as soon as there is room, most often on the next
//! page. Copies are vouched for by nobody: what they are copies of is there until they are durable, and
//! after that a map without the copy points to where other data is, which no read takes for its own.
//!
//! Invariants:
//! - only what was programmed well, and is never taken back, is vouched for: members of an atomic write
//!   are when its commit record is programmed;
//! - the queue is bounded. What falls out of it nobody vouches for.

use crate::format::{Header, Kind, Voucher, vouched_by};
use crate::log::points::{Append, NONE, Owner, Point};
use crate::policy::Purpose;
use crate::space::Grounds;
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{Instant, MILLISECOND};
use std::collections::VecDeque;

/// Most vouchers that wait for room.
const WAITING_MAX: usize = 8192;

/// How long nothing must have been programmed for the host before a page is spent on what nobody has
/// said yet.
const REST_NS: u64 = 20 * MILLISECOND;

/// The same where so many pages were spent that they would be more than one in a hundred.
const REST_LONG_NS: u64 = 10_000 * MILLISECOND;

/// Pages of the host that earn one.
const PAGES_PER_PAGE: u32 = 100;

/// Pages that a device has to spend when it is mounted, and at most: in hundredths.
const BUDGET_MAX: u32 = 64 * PAGES_PER_PAGE;

/// Pages spent at a time.
const PAGES_AT_ONCE: usize = 4;

/// Vouchers among the oldest of which one is looked for that was not on the unit that says it.
const LOOK_AT: usize = 16;

/// A voucher, and the unit of the slot that it is about.
type Waiting = (u32, Voucher);

/// Vouchers that wait for a slot, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Vouching {
    waiting: VecDeque<Waiting>,
    /// Those that are said again, when none of the others waits.
    again: VecDeque<Waiting>,
    /// The highest watermark that was said.
    said: u64,
    /// When there last was something new to say, if it was not said.
    since: Option<Instant>,
    /// What may be spent on pages that say nothing else, in hundredths of a page.
    budget: u32,
}

impl Default for Vouching {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            said: 0,
            since: None,
            budget: BUDGET_MAX,
        }
    }
}

impl Vouching {
    fn push(&mut self, unit: u32, voucher: Voucher) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((unit, voucher));
    }

    fn push_again(&mut self, unit: u32, voucher: Voucher) {
        if self.again.len() < WAITING_MAX {
            self.again.push_back((unit, voucher));
        }
    }
}

/// The voucher that a slot of `unit` says: an old one that `fits`, of another unit if there is one. What
/// harms neighbours on the medium takes a slot and its voucher together where they are side by side.
fn take_for(
    unit: u32,
    waiting: &mut VecDeque<Waiting>,
    fits: impl Fn(&Voucher) -> bool,
) -> Option<Voucher> {
    let mut oldest = waiting.iter().take(LOOK_AT);
    let apart = oldest.position(|(other, voucher)| *other != unit && fits(voucher));
    match apart {
        Some(at) => waiting.remove(at),
        None => waiting.pop_front_if(|(_, voucher)| fits(voucher)),
    }
    .map(|(_, voucher)| voucher)
}

impl Ftl {
    /// The watermark and the voucher that the next slot of `page` says beside what is in it.
    pub(crate) fn told_of_others(&mut self, page: u32, append: &Append) -> (u64, Option<Voucher>) {
        // Recovery does not look for them among the pages of a checkpoint.
        if append.kind.is_of_checkpoint() || self.opens[self.pages[page].open].point == NONE {
            return (0, None);
        }
        let watermark = match append.owner {
            // That it says none tells recovery that its sequence is older than its place.
            Owner::Relocation(_) => 0,
            _ => self.durable.sequences_durable(self.sequence_next),
        };
        self.vouching.said = self.vouching.said.max(watermark);
        let (kind, group, sequence) = (append.kind, append.group, append.sequence);
        let fits = |voucher: &Voucher| Header::may_vouch(kind, group, sequence, voucher);
        let covered = self.checkpoint.sequence_covered;
        let unit = self.bands.unit_of_slot(self.pages[page].slot);
        let Vouching { waiting, again, .. } = &mut self.vouching;
        while waiting.pop_front_if(|(_, voucher)| voucher.sequence < covered).is_some() {}
        while again.pop_front_if(|(_, voucher)| voucher.sequence < covered).is_some() {}
        (watermark, take_for(unit, waiting, fits).or_else(|| take_for(unit, again, fits)))
    }

    /// The page is programmed: what is new in it is vouched for.
    pub(crate) fn note_to_vouch(&mut self, page: u32) {
        let page = &self.pages[page];
        let unit = self.bands.unit_of_slot(page.slot);
        let before = self.vouching.waiting.len();
        for (write, owner) in page.slots.iter().zip(&page.owners) {
            if matches!(owner, Owner::Relocation(_)) {
                continue;
            }
            let Some((kind, group_last, voucher)) = vouched_by(&write.oob) else { continue };
            let group = 0..=u32::from(group_last);
            match kind {
                // Its commit record vouches for it.
                Kind::Data if group_last > 0 => {}
                Kind::Commit => {
                    self.vouching.push(unit, Voucher { record: true, ..voucher });
                    for lba in group.map(|at| voucher.lba.saturating_add(at)) {
                        self.vouching.push(unit, Voucher { lba, ..voucher });
                    }
                }
                kind => {
                    self.vouching.push(unit, Voucher { record: kind == Kind::Trim, ..voucher });
                }
            }
        }
        let waiting = self.vouching.waiting.len();
        if self.vouching.since.is_none() && waiting > 0 {
            // There may be room for what there was none for.
            self.vouching.since = Some(self.now);
        }
        if waiting > before {
            self.vouching.since = Some(self.now);
            self.vouching.budget = (self.vouching.budget + 1).min(BUDGET_MAX);
        }
    }

    /// A slot moves, and its band is erased sooner or later: with it goes what it says of others, and what
    /// says so of it may have gone before. Both are said again, unless the checkpoint has them.
    pub(crate) fn vouch_again(&mut self, unit: u32, header: &Header) {
        let Header { lba, sequence, .. } = *header;
        let own = Voucher { lba, sequence, record: false };
        for voucher in header.vouches.into_iter().chain([own]) {
            if voucher.sequence >= self.checkpoint.sequence_covered {
                self.vouching.push_again(unit, voucher);
            }
        }
    }

    /// When to spend a page on what nobody has said.
    pub(crate) fn vouching_deadline(&self) -> Option<Instant> {
        let poor = self.vouching.budget < PAGES_PER_PAGE;
        let rest = if poor { REST_LONG_NS } else { REST_NS };
        let at = self.vouching.since.filter(|_| self.phase == Phase::Running)? + rest;
        // What is under way says it, or puts the time off. Where the disk below is full, each try that fails
        // would take a band.
        (self.host.requests.in_use() == 0 && self.no_space_tries == 0).then_some(at)
    }

    /// The host rests: what was acknowledged last is vouched for by nobody, as nothing was written
    /// since. A page of padding says it, where there is room for one; else the next program that ends has
    /// it tried again.
    pub(crate) fn vouch_at_rest(&mut self) {
        if self.vouching_deadline().is_none_or(|at| self.now < at) {
            return;
        }
        self.vouching.since = None;
        let more = self.vouching.said < self.durable.sequences_durable(self.sequence_next);
        if !more && self.vouching.waiting.is_empty()
            || self.checkpoint.settling
            || self.is_leaving()
        {
            return;
        }
        for _ in 0..PAGES_AT_ONCE {
            let Some((point, page)) = self.page_at_rest() else { return };
            self.vouching.budget = self.vouching.budget.saturating_sub(PAGES_PER_PAGE);
            let room = self.pages[page].room as usize - self.pages[page].slots.len();
            let wanted = self.vouching.waiting.len().clamp(1, room);
            for _ in 0..wanted {
                self.pad_slot(page);
            }
            if wanted == room {
                self.points[point].page = NONE;
                self.queue_page(page);
            } else {
                self.seal(point);
            }
            if self.vouching.waiting.is_empty() {
                break;
            }
        }
        self.vouching.since = (!self.vouching.waiting.is_empty()).then_some(self.now);
        self.want_flush();
        self.stirred = true;
    }

    /// A page of an append point of the host that nobody is filling, of an open band before one that has
    /// to be begun, as far as the host may begin one. What GC has left is GC's.
    fn page_at_rest(&mut self) -> Option<(usize, u32)> {
        let rests = |point: &Point| point.purpose == Purpose::Host && point.page == NONE;
        let mut points: Vec<usize> =
            (0..self.points.len()).filter(|&at| rests(&self.points[at])).collect();
        points.sort_by_key(|&at| (!self.points[at].has_open(), !self.on_fast(at)));
        points.into_iter().find_map(|at| Some((at, self.page_of(at, Grounds::Usual)?)))
    }
}
