//! Which programs would survive a power cut.
//!
//! Every page gets an *order*, counted through the life of the device, when it is opened for
//! appending. An order is *safe* when nothing that can still happen on the medium destroys its page
//! (programmed, cells not shared with a page yet to come, its atomic groups committed, or its slots
//! appended again elsewhere and safe there). `safe_below` is the first order that is not safe:
//! everything under it is. On a medium with a volatile cache a flush must follow; `durable_below`
//! trails `safe_below` by that.
//!
//! On a two-tier device, and where pages share cells, an order is *vital* if its page holds what the
//! host was told, or will be: pages of the fast tier, and others with more in them than copies.
//! Nobody's promise rests on a copy before its original is erased, so a flush waits for vital orders
//! only, and never pads the pages that destage and GC are filling: else a host that flushes each write
//! would fill GC's reserve with padding. On other devices every order is vital.
//!
//! Invariant: `durable_below <= safe_below <= vital_below <= next`.

use crate::format::Kind;
use crate::log::points::{Append, NONE, Owner};
use crate::whole::Ftl;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct Order {
    /// Reasons why it is not safe yet.
    holds: u32,
    /// The open band it was opened in.
    open: u32,
    vital: bool,
    /// First sequence that was free when it was opened: those below went to earlier orders.
    sequence: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Durable {
    /// From `safe_below` on.
    orders: VecDeque<Order>,
    /// A bit for each order from the last multiple of 64 before `safe_below` on: it has holds.
    held: VecDeque<u64>,
    safe_below: u64,
    vital_below: u64,
    durable_below: u64,
    /// Where a flush is needed: the first sequence that was not durable after the last one.
    sequences_flushed: u64,
    /// When all the first orders are safe, the second loses one hold.
    links: Vec<(Vec<u64>, u64)>,
    flush_needed: bool,
}

impl Durable {
    /// Orders start at `next`. With `flush_needed` nothing is durable before the first flush.
    pub fn new(next: u64, flush_needed: bool) -> Self {
        let durable_below = if flush_needed { 0 } else { next };
        Self {
            orders: VecDeque::new(),
            held: VecDeque::new(),
            safe_below: next,
            vital_below: next,
            durable_below,
            sequences_flushed: 0,
            links: Vec::new(),
            flush_needed,
        }
    }

    /// The order of the next page.
    pub fn next(&self) -> u64 {
        self.safe_below + self.orders.len() as u64
    }

    /// Opens an order in the band `open`, held once until its page is programmed and closed. No
    /// sequence from `sequence` on was given yet.
    pub fn open(&mut self, open: u32, vital: bool, sequence: u64) -> u64 {
        let order = self.next();
        self.orders.push_back(Order { holds: 1, open, vital, sequence });
        let (word, bit) = self.held_at(order);
        if word == self.held.len() {
            self.held.push_back(0);
        }
        self.held[word] |= bit;
        self.advance_vital();
        order
    }

    /// More than copies goes to the page of `order`.
    pub fn make_vital(&mut self, order: u64) {
        self.order_mut(order).vital = true;
        self.vital_below = self.vital_below.min(order);
    }

    /// Whether `order`, which is not safe, is vital.
    pub fn is_vital(&self, order: u64) -> bool {
        order < self.safe_below || self.orders[(order - self.safe_below) as usize].vital
    }

    fn order_mut(&mut self, order: u64) -> &mut Order {
        &mut self.orders[(order - self.safe_below) as usize]
    }

    fn held_at(&self, order: u64) -> (usize, u64) {
        ((order / 64 - self.safe_below / 64) as usize, 1 << (order % 64))
    }

    fn advance_vital(&mut self) {
        self.vital_below = self.vital_below.max(self.safe_below);
        while let Some(order) = self.orders.get((self.vital_below - self.safe_below) as usize)
            && (order.holds == 0 || !order.vital)
        {
            self.vital_below += 1;
        }
    }

    /// One more reason why `order` is not safe.
    pub fn hold(&mut self, order: u64) {
        let entry = self.order_mut(order);
        assert!(entry.holds > 0, "order {order} is safe already");
        entry.holds += 1;
    }

    /// Takes one hold from `release` as soon as every order of `after` is safe by itself.
    pub fn link(&mut self, mut after: Vec<u64>, release: u64) {
        after.retain(|&order| {
            order >= self.safe_below && self.orders[(order - self.safe_below) as usize].holds > 0
        });
        if after.is_empty() {
            self.release(release);
        } else {
            self.links.push((after, release));
        }
    }

    /// The last order that must become safe so that all up to `order` are.
    pub fn reach(&self, order: u64) -> u64 {
        let mut reach = order;
        loop {
            let waited = self.links.iter().filter(|(_, release)| *release <= reach);
            let last = waited.flat_map(|(after, _)| after).max().copied().unwrap_or(0);
            if last <= reach {
                return reach;
            }
            reach = last;
        }
    }

    /// One reason less. Returns true if `safe_below` or `vital_below` rose.
    pub fn release(&mut self, order: u64) -> bool {
        let mut work = vec![];
        self.release_one(order, &mut work);
        while let Some(next) = work.pop() {
            self.release_one(next, &mut work);
        }
        let before = self.safe_below;
        while self.orders.pop_front_if(|order| order.holds == 0).is_some() {
            self.safe_below += 1;
        }
        self.held.drain(..(self.safe_below / 64 - before / 64) as usize);
        let vital_before = self.vital_below;
        self.advance_vital();
        if !self.flush_needed {
            self.durable_below = self.safe_below;
        }
        self.safe_below > before || self.vital_below > vital_before
    }

    fn release_one(&mut self, order: u64, work: &mut Vec<u64>) {
        let entry = self.order_mut(order);
        assert!(entry.holds > 0, "order {order} was released too often");
        entry.holds -= 1;
        if entry.holds > 0 {
            return;
        }
        let (word, bit) = self.held_at(order);
        self.held[word] &= !bit;
        if !self.links.is_empty() {
            self.links.retain_mut(|(after, release)| {
                after.retain(|&other| other != order);
                if after.is_empty() {
                    work.push(*release);
                }
                !after.is_empty()
            });
        }
    }

    /// A flush that was issued when `safe_below` was `covered`, and [`Self::sequences_safe`] was
    /// `sequences`, is done.
    pub fn flushed(&mut self, covered: u64, sequences: u64) {
        assert!(covered <= self.safe_below, "a flush covers what was safe when it began");
        self.durable_below = self.durable_below.max(covered);
        self.sequences_flushed = self.sequences_flushed.max(sequences);
    }

    /// Every version of a sequence below this lies in an order that is safe; `next` is the first
    /// sequence that was not given yet.
    pub fn sequences_safe(&self, next: u64) -> u64 {
        let first = self.orders.get((self.vital_below - self.safe_below) as usize);
        first.map_or(next, |order| order.sequence)
    }

    /// Likewise, and durable.
    pub fn sequences_durable(&self, next: u64) -> u64 {
        if self.flush_needed { self.sequences_flushed } else { self.sequences_safe(next) }
    }

    /// Orders that are not safe by themselves, oldest first, with the open bands they were opened
    /// in. Such a band may have been closed since, and its index be another band's.
    pub fn unsafe_orders(&self) -> impl Iterator<Item = (u64, u32)> {
        let first = self.safe_below / 64;
        // Bits of the word before `word` that were not given yet.
        let (mut word, mut rest) = (0, 0u64);
        std::iter::from_fn(move || {
            while rest == 0 {
                rest = *self.held.get(word)?;
                word += 1;
            }
            let order = 64 * (first + word as u64 - 1) + u64::from(rest.trailing_zeros());
            rest &= rest - 1;
            Some((order, self.orders[(order - self.safe_below) as usize].open))
        })
    }

    /// First order that is not safe.
    pub fn safe_below(&self) -> u64 {
        self.safe_below
    }

    /// First order that is vital and not safe.
    pub fn vital_below(&self) -> u64 {
        self.vital_below
    }

    /// First order that is vital and not durable.
    pub fn vital_durable_below(&self) -> u64 {
        if self.flush_needed { self.durable_below } else { self.vital_below }
    }

    /// First order that is not durable.
    pub fn durable_below(&self) -> u64 {
        self.durable_below
    }
}

impl Ftl {
    /// Starts the order count; for recovery and format.
    pub(crate) fn restart_orders(&mut self, next: u64) {
        self.durable = Durable::new(next, !self.geometry.durable_at_completion);
    }

    pub(crate) fn release(&mut self, order: u64) {
        if self.durable.release(order) {
            self.durable_rose = true;
        }
    }

    /// Fills what is left of `page`.
    pub(crate) fn pad(&mut self, page: u32) {
        while (self.pages[page].slots.len() as u32) < self.pages[page].room {
            self.pad_slot(page);
        }
    }

    pub(crate) fn pad_slot(&mut self, page: u32) {
        // A page of a checkpoint counts as one, whatever fills it.
        if self.opens[self.pages[page].open].point != NONE {
            self.counters.slots_padded += 1;
        }
        let append = Append::record(Kind::Pad, 0, 0, 0, self.empty_crc, Owner::Nobody);
        self.put(page, append);
    }

    /// Makes sure that every order up to `order` will become safe without any further append.
    pub(crate) fn force_safe(&mut self, order: u64) {
        self.force(order, false);
    }

    /// The same for those that are vital.
    pub(crate) fn force_vital(&mut self, order: u64) {
        self.force(order, self.tells_vital());
    }

    /// Whether some orders are not vital. A flush of the medium is for all of them, so where it needs
    /// one they are.
    pub(crate) fn tells_vital(&self) -> bool {
        let shared = self.geometry.pairing != flash::Pairing::None;
        self.geometry.is_tiered() || shared && self.geometry.durable_at_completion
    }

    fn force(&mut self, order: u64, vital_only: bool) {
        let order = self.durable.reach(order);
        for point in 0..self.points.len() {
            let page = self.points[point].page;
            if page == NONE || self.pages[page].order > order {
                continue;
            }
            if !vital_only || self.durable.is_vital(self.pages[page].order) {
                self.fill_up_page(page, vital_only);
                self.seal(point);
            }
        }
        if self.geometry.pairing == flash::Pairing::None {
            return;
        }
        for open in self.opens.indices() {
            if !self.opens[open].live || self.opens[open].point == NONE {
                continue;
            }
            let Some(target) = self.partner_wanted(open, order, vital_only) else { continue };
            self.close_to(open, target, vital_only);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Durable;

    #[test]
    fn safe_below_waits_for_the_oldest_hold() {
        let mut durable = Durable::new(10, false);
        let (a, b) = (durable.open(0, true, 0), durable.open(1, true, 0));
        assert!(!durable.release(b));
        assert_eq!(durable.durable_below(), 10);
        assert!(durable.release(a));
        assert_eq!(durable.durable_below(), 12);
    }

    #[test]
    fn orders_that_are_not_safe_are_listed_however_many_safe_ones_lie_between() {
        let mut random = flash::Random::new(7);
        let mut durable = Durable::new(random.below(200), false);
        let mut held = std::collections::BTreeMap::new();
        for step in 0..20_000 {
            // Mostly few are held, at times many.
            let most = if step % 2000 < 1000 { 10 } else { 300 };
            if held.len() < most && random.chance(0.6) {
                let open = random.below(9) as u32;
                held.insert(durable.open(open, true, 0), open);
            } else if let Some(&order) =
                held.keys().nth(random.below(1 + held.len() as u64 / 2) as usize)
            {
                held.remove(&order);
                durable.release(order);
            }
            let listed: Vec<_> = durable.unsafe_orders().collect();
            assert!(listed.into_iter().eq(held.clone()), "step {step}");
        }
    }

    #[test]
    fn a_linked_order_is_safe_only_after_the_other() {
        let mut durable = Durable::new(0, false);
        let (member, commit) = (durable.open(0, true, 0), durable.open(1, true, 0));
        durable.hold(member);
        durable.link(vec![commit], member);
        durable.release(member);
        assert_eq!(durable.safe_below(), 0);
        durable.release(commit);
        assert_eq!(durable.safe_below(), 2);
    }

    #[test]
    fn vital_orders_do_not_wait_for_copies_until_more_goes_to_their_page() {
        let mut durable = Durable::new(5, false);
        let (copy, host) = (durable.open(0, false, 0), durable.open(1, true, 0));
        assert_eq!(durable.vital_below(), host, "a copy alone holds nobody up");
        durable.release(host);
        assert_eq!((durable.safe_below(), durable.vital_below()), (copy, durable.next()));
        durable.make_vital(copy);
        assert_eq!(durable.vital_below(), copy, "now somebody waits for that page");
        durable.release(copy);
        assert_eq!((durable.safe_below(), durable.vital_below()), (7, 7));
    }

    #[test]
    fn a_volatile_medium_is_durable_only_as_far_as_it_was_flushed() {
        let mut durable = Durable::new(0, true);
        let order = durable.open(0, true, 0);
        durable.release(order);
        assert_eq!((durable.safe_below(), durable.durable_below()), (1, 0));
        durable.flushed(1, 7);
        assert_eq!(durable.durable_below(), 1);
    }

    #[test]
    fn sequences_are_durable_up_to_those_of_the_oldest_order_that_is_not() {
        let mut durable = Durable::new(10, false);
        assert_eq!(durable.sequences_durable(5), 5, "all that was given");
        let (a, b) = (durable.open(0, true, 5), durable.open(1, true, 8));
        durable.release(b);
        assert_eq!(durable.sequences_durable(20), 5);
        durable.release(a);
        assert_eq!(durable.sequences_durable(20), 20);

        let mut volatile = Durable::new(10, true);
        let a = volatile.open(0, true, 5);
        volatile.release(a);
        assert_eq!((volatile.sequences_safe(9), volatile.sequences_durable(9)), (9, 0));
        volatile.flushed(11, 9);
        assert_eq!(volatile.sequences_durable(30), 9);
    }
}
