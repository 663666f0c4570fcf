//! Shares of the fast tier: with several volumes, none of them takes another's latency.
//!
//! Volumes are ranges of logical blocks with a weight each ([`FastShare`]). Among writes that wait, those
//! of the volume that was served least, by its weight, are placed first; so a flood waits behind itself.
//! Once the tier was short of bands, and until destage has caught up with it, each volume has a credit
//! of its own: what destage earns is given out by the weights, and what a volume does not use beyond a
//! reserve goes to those that wait. So a volume that takes more than its share goes at the pace of
//! destage, slot by slot and not in bursts of a band that was freed; one that takes less has its reserve,
//! and nothing is left unused.
//!
//! Nor does a flood crowd the fast units, short or not: while a volume writes much more than another
//! that writes, by their weights and over the last few milliseconds, it leaves half of these units idle
//! and its blocks share no program with those of the other; nor do the reads of destage take them all.
//!
//! Invariants:
//! - writes of one volume are placed in the order they came; those of different volumes share no block;
//! - an atomic write that is placed in part is finished first;
//! - without shares, or on a device of one kind, there is one queue and one credit.

use crate::config::{FastShare, SHARES_MAX};
use crate::host::requests::Class;
use crate::log::points::{NONE, Owner};
use crate::space::scheduler::Unit;
use crate::whole::Ftl;
use flash::{Instant, MILLISECOND};

/// What was written lately counts half after this time.
const HALF_NS: u64 = 10 * MILLISECOND;

/// What a slot counts for a volume of weight 1.
const SERVED_UNIT: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Share {
    first: u32,
    end: u32,
    weight: u64,
    /// Writes and trims that wait to be placed.
    queued: u32,
    /// Slots that may be placed while the tier is short, in 1/256.
    credit: i64,
    /// Slots placed, by weight; of one that was idle not less than of the others.
    served: u64,
    /// Slots placed lately, in 1/256: halved every [`HALF_NS`].
    lately: u64,
}

/// Who has how much of the fast tier; empty if it is everybody's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    list: Vec<Share>,
    weights: u64,
    /// Most credit that all may save up.
    reserve: i64,
    /// The tier was short, and destage has not caught up yet.
    short: bool,
    /// When `lately` was halved last.
    halved_at: Instant,
}

impl Shares {
    /// The last one is for what is in no range. `reserve` slots may be saved up in all.
    pub fn new(shares: &[FastShare], reserve: u32) -> Self {
        if shares.len() < 2 {
            return Self::default();
        }
        let of = |first, end, weight: u32| Share {
            first,
            end,
            weight: weight.max(1).into(),
            queued: 0,
            credit: 0,
            served: 0,
            lately: 0,
        };
        let named = shares.iter().take(SHARES_MAX);
        let mut list: Vec<Share> =
            named.map(|s| of(s.first, s.first.saturating_add(s.blocks), s.weight)).collect();
        list.push(of(0, u32::MAX, 1));
        let weights = list.iter().map(|share| share.weight).sum();
        let mut made = Self {
            list,
            weights,
            reserve: 256 * i64::from(reserve),
            short: false,
            halved_at: Instant(0),
        };
        made.refill();
        made
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn of(&self, lba: u32) -> u8 {
        let found = self.list.iter().position(|share| (share.first..share.end).contains(&lba));
        found.unwrap_or(0) as u8
    }

    fn reserve_of(&self, index: usize) -> i64 {
        (self.reserve * self.list[index].weight as i64 / self.weights as i64).max(256)
    }

    /// The tier is short of bands.
    pub fn run_short(&mut self) {
        self.short = !self.is_empty();
    }

    /// Destage has caught up: everybody has its reserve.
    pub fn refill(&mut self) {
        self.short = false;
        for index in 0..self.list.len() {
            self.list[index].credit = self.reserve_of(index);
        }
    }

    /// Gives out what destage has earned.
    pub fn earn(&mut self, credit: i64) {
        let mut left = 0;
        for index in 0..self.list.len() {
            let part = credit * self.list[index].weight as i64 / self.weights as i64;
            left += self.give(index, part);
        }
        // To those that wait, by their weights; then it is kept by none.
        let waiting: u64 = self.list.iter().filter(|s| s.queued > 0).map(|s| s.weight).sum();
        for index in 0..self.list.len() {
            if self.list[index].queued > 0 {
                let part = left * self.list[index].weight as i64 / waiting as i64;
                self.give(index, part);
            }
        }
    }

    /// Returns what is beyond its reserve.
    fn give(&mut self, index: usize, credit: i64) -> i64 {
        let reserve = self.reserve_of(index);
        let share = &mut self.list[index];
        let sum = share.credit + credit;
        share.credit = sum.min(reserve.max(share.credit));
        sum - share.credit
    }

    pub fn has_credit(&self, share: u8) -> bool {
        self.list[usize::from(share)].credit > 0
    }

    fn enter(&mut self, share: u8) {
        let active = self.list.iter().filter(|other| other.queued > 0);
        let least = active.map(|other| other.served).min();
        let share = &mut self.list[usize::from(share)];
        if share.queued == 0 {
            // Time in which it wanted nothing is not owed to it.
            share.served = share.served.max(least.unwrap_or(share.served));
        }
        share.queued += 1;
    }

    fn leave(&mut self, share: u8) {
        self.list[usize::from(share)].queued -= 1;
    }

    /// `share` writes more than twice as much as another one that writes, by their weights.
    fn floods(&self, share: u8) -> bool {
        let own = &self.list[usize::from(share)];
        self.list.iter().any(|other| {
            other.lately > 0 && own.lately * other.weight > 2 * other.lately * own.weight
        })
    }

    fn age(&mut self, now: Instant) {
        let halvings = (now - self.halved_at) / HALF_NS;
        if halvings > 0 {
            for share in &mut self.list {
                share.lately >>= halvings.min(63);
            }
            self.halved_at = now;
        }
    }

    fn charge(&mut self, share: u8) {
        let share = &mut self.list[usize::from(share)];
        share.credit = (share.credit - 256).max(-256 * i64::from(u16::MAX));
        share.served += SERVED_UNIT / share.weight;
        share.lately += 256;
    }

    /// The one whose turn it is, of those that wait and are not `blocked`.
    fn next(&self, blocked: u64) -> Option<u8> {
        let waiting = |&index: &usize| self.list[index].queued > 0 && blocked & 1 << index == 0;
        let turn = (0..self.list.len()).filter(waiting).min_by_key(|&i| (self.list[i].served, i));
        turn.map(|index| index as u8)
    }
}

impl Ftl {
    /// A write or trim waits to be placed.
    pub(crate) fn queue_write(&mut self, index: u32) {
        if !self.shares.is_empty() {
            let share = self.shares.of(self.host.requests[index].lba);
            self.host.requests[index].share = share;
            self.shares.enter(share);
        }
        self.host.writes.push_back(index);
    }

    /// It does not any more.
    pub(crate) fn unqueue_write(&mut self, index: u32) {
        if !self.shares.is_empty() {
            self.shares.leave(self.host.requests[index].share);
        }
    }

    /// Where in the queue the write is that is placed next: not of a share that is `blocked`.
    pub(crate) fn next_write(&self, blocked: u64) -> Option<usize> {
        if self.shares.is_empty() {
            let any = blocked == 0 && !self.host.writes.is_empty();
            return any.then_some(0);
        }
        if self.host.atomic_placing {
            // The one that was begun: it need not be the first in the queue.
            let begun = |&index: &u32| {
                let request = &self.host.requests[index];
                matches!(request.class, Class::Write { atomic: true, .. }) && request.pending > 0
            };
            return self.host.writes.iter().position(begun).filter(|_| blocked == 0);
        }
        let share = self.shares.next(blocked)?;
        self.host.writes.iter().position(|&index| self.host.requests[index].share == share)
    }

    /// The write at `at` found no place: others may, if they are of another share. Returns those that
    /// may not.
    pub(crate) fn block_share(&self, index: u32, blocked: u64) -> Option<u64> {
        let alone = self.shares.is_empty() || self.host.atomic_placing;
        (!alone).then(|| blocked | 1 << self.host.requests[index].share)
    }

    /// One slot of `index` was placed.
    pub(crate) fn charge_share(&mut self, index: u32) {
        if !self.shares.is_empty() {
            self.shares.age(self.now);
            self.shares.charge(self.host.requests[index].share);
        }
    }

    /// Lets destage read where it may by now.
    pub(crate) fn resume_destage(&mut self) {
        if !self.shares.is_empty() {
            for unit in self.geometry.capacity_units()..self.geometry.units {
                if !self.units[unit as usize].reads_low.is_empty() {
                    self.dispatch(unit);
                }
            }
        }
    }

    /// Reads that a write would wait for on `unit`: with shares those of destage count, too.
    pub(crate) fn reads_ahead(&self, unit: &Unit) -> u32 {
        let own = unit.running - unit.programs_running - unit.erases_running - unit.reads_running;
        let destage = if !self.shares.is_empty() { own + unit.reads_low.len() as u32 } else { 0 };
        unit.reads_waiting() + destage
    }

    fn floods(&self, index: u32) -> bool {
        self.shares.floods(self.host.requests[index].share)
    }

    /// Another share floods, by the measure of the share of `index`.
    pub(crate) fn is_beside_a_flood(&self, index: u32) -> bool {
        let own = self.host.requests[index].share;
        let others = 0..self.shares.list.len() as u8;
        self.tier_serves()
            && others.into_iter().any(|other| other != own && self.shares.floods(other))
    }

    fn fast_is_crowded(&self) -> bool {
        let fast = self.units.fast();
        2 * fast.iter().filter(|unit| unit.appends_waiting() > 0).count() >= fast.len()
    }

    /// The page that `point` is filling goes out before a block of `index` comes there, if it holds
    /// blocks of another share and this one does not flood.
    pub(crate) fn part_from_flood(&mut self, index: u32, point: usize) {
        if self.shares.is_empty() || self.points[point].page == NONE || self.floods(index) {
            return;
        }
        let own = self.host.requests[index].share;
        let other = |owner: &Owner| match *owner {
            Owner::Request(other) => self.host.requests[other].share != own,
            _ => false,
        };
        if self.pages[self.points[point].page].owners.iter().any(other) {
            self.seal(point);
        }
    }

    /// Whether the share of `index` may place; `None` without shares.
    pub(crate) fn share_has_credit(&self, index: u32) -> Option<bool> {
        let share = self.host.requests[index].share;
        let crowds = || self.floods(index) && self.fast_is_crowded();
        let may = || (!self.shares.short || self.shares.has_credit(share)) && !crowds();
        (!self.shares.is_empty()).then(may)
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;
    use crate::config::FastShare;

    fn shares() -> Shares {
        let share = |first, weight| FastShare { first, blocks: 100, weight };
        Shares::new(&[share(0, 1), share(100, 3)], 40)
    }

    #[test]
    fn who_was_served_least_by_its_weight_comes_next() {
        let mut shares = shares();
        shares.enter(0);
        shares.enter(1);
        let mut turns = [0; 2];
        for _ in 0..400 {
            let next = shares.next(0).expect("both wait");
            turns[usize::from(next)] += 1;
            shares.charge(next);
        }
        assert_eq!(turns, [100, 300]);
        assert_eq!(shares.next(0b11), None, "both are blocked");
    }

    #[test]
    fn time_in_which_a_volume_wanted_nothing_is_not_owed_to_it() {
        let mut shares = shares();
        shares.enter(0);
        (0..1000).for_each(|_| shares.charge(0));
        shares.enter(1);
        (0..3).for_each(|_| shares.charge(1));
        assert_eq!(shares.next(0), Some(0), "one each, by weight");
    }

    #[test]
    fn a_volume_that_takes_little_keeps_a_reserve_and_the_rest_goes_to_who_waits() {
        let mut shares = shares();
        shares.enter(0);
        (0..1000).for_each(|_| shares.charge(0));
        assert!(!shares.has_credit(0) && shares.has_credit(1));
        let before = shares.list[0].credit;
        shares.earn(5000);
        // The other one's reserve is full: all but roundings goes to the one that waits.
        assert!(shares.list[0].credit - before > 4900, "{shares:?}");
        assert_eq!(shares.list[1].credit, shares.reserve_of(1));
    }

    #[test]
    fn blocks_in_no_range_have_a_share_of_their_own() {
        let shares = shares();
        assert_eq!([shares.of(99), shares.of(100), shares.of(200)], [0, 1, 2]);
    }
}
