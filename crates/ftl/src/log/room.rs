//! Which units have room for the next page of an append point, and how much each is wanted: whoever knows
//! more of the medium than the FTL does (a pool, whose bands lie on unlike drives) gives open bands weights, and
//! units, for the bands that are opened there next.
//!
//! Invariants:
//! - what has weight 0 gets a new page only where no other could take one, now or when its queue has moved;
//! - a band that is put aside has the append point that it had, and comes back before another is opened on its unit;
//! - while all weights are full, which they are until somebody sets them, everything is as without them.

use crate::log::points::{Aside, NONE, OpenBand, Point};
use crate::policy::{UnitView, UnitWeights, WEIGHT_FULL};
use crate::space::{Grounds, RESERVE_BANDS};
use crate::whole::Ftl;
use flash::Pairing;

/// Of so many bands that are not needed for data one may be put aside: half of it is room that GC cannot use.
const SPARE_PER_ASIDE: u32 = 8;

/// What is wanted so many times as much makes a band one that is hardly wanted.
const DWARFS: u32 = 4;

/// The units that can take a page of one append point, kept from one page to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views {
    pub list: Vec<UnitView>,
    /// A unit that is not listed has bands, but they are not erased.
    pub dirty: bool,
    /// The point, and what must not have changed since; `None` if the list serves only once.
    pub of: Option<(usize, u64)>,
    /// Somebody has set weights: without them nobody looks at those of open bands.
    pub weighed: bool,
}

impl Views {
    pub fn page_queued(&mut self, unit: u32, appends_max: u32) {
        if self.of.is_none() {
            return;
        }
        let Some(index) = self.list.iter().position(|view| view.unit == unit) else { return };
        self.list[index].appends_waiting += 1;
        if self.list[index].appends_waiting >= appends_max {
            self.list.remove(index);
        }
    }
}

impl Ftl {
    /// How much places for new pages are wanted. Holds until it is called again; a mount begins with full weights.
    /// Drain [`Ftl::poll`] after the next [`Ftl::handle`] as always: nothing is written because of this alone.
    pub fn set_unit_weights(&mut self, weights: &UnitWeights) {
        for (index, unit) in self.units.iter_mut().enumerate() {
            unit.weight =
                weights.next.get(index).map_or(WEIGHT_FULL, |&next| next.min(WEIGHT_FULL));
        }
        for open in self.opens.indices() {
            let OpenBand { block, .. } = self.opens[open];
            let named = weights.open.binary_search_by_key(&block, |&(named, _)| named);
            let unit = self.geometry.unit_of(block) as usize;
            let of_unit = |_| self.units[unit].weight;
            let weight = named.map_or_else(of_unit, |at| weights.open[at].1.min(WEIGHT_FULL));
            self.opens[open].weight = weight;
        }
        self.put_aside();
        (self.views.of, self.views.weighed) = (None, true);
        self.room_changes += 1;
    }

    /// Of the bands that an append point has on a unit the one that is wanted most is the one that it fills. One that
    /// is hardly wanted makes room for a new one, as long as not too many are put aside: else the unit would be of no
    /// use until the band is wanted again.
    fn put_aside(&mut self) {
        let mut left = self.aside_max();
        for point in 0..self.points.len() {
            let kept = self.bring_back(point) as u32;
            left = left.saturating_sub(kept);
        }
        for point in 0..self.points.len() {
            for unit in 0..self.points[point].open.units() {
                let open = self.points[point].open[unit];
                let may = open != NONE && left > 0 && !self.points[point].idle;
                let opens = !self.bands.clean(unit as u32).is_empty();
                let next = self.units[unit].weight;
                if may && opens && self.is_dwarfed(open, next) && !self.fills(point, open) {
                    self.points[point].open.put(unit, NONE);
                    self.points[point].aside.push(Aside { open, unit: unit as u32 });
                    left -= 1;
                }
            }
        }
    }

    /// Whether a band is hardly wanted beside one of this weight.
    fn is_dwarfed(&self, open: u32, weight: u16) -> bool {
        DWARFS * u32::from(self.opens[open].weight) < u32::from(weight)
    }

    /// What was put aside and is wanted comes back where `point` has nothing like it. How many are left.
    fn bring_back(&mut self, point: usize) -> usize {
        let aside = std::mem::take(&mut self.points[point].aside);
        let mut left = Vec::with_capacity(aside.len());
        for Aside { open, unit } in aside {
            let unit = unit as usize;
            let (other, weight) = (self.points[point].open[unit], self.opens[open].weight);
            let is_better = match other {
                NONE => !self.is_dwarfed(open, self.units[unit].weight),
                other => self.is_dwarfed(other, weight) && !self.fills(point, other),
            };
            if is_better {
                self.points[point].open.put(unit, open);
                self.streams.bands_left |= self.points[point].idle;
            }
            let stays = if is_better { other } else { open };
            if stays != NONE {
                left.push(Aside { open: stays, unit: unit as u32 });
            }
        }
        self.points[point].aside = left;
        self.points[point].aside.len()
    }

    /// Whether `point` is filling a page of this band.
    fn fills(&self, point: usize, open: u32) -> bool {
        let page = self.points[point].page;
        page != NONE && self.pages[page].open == open
    }

    /// Bands that may be put aside: an eighth of those that are not needed for data. None where pages share cells,
    /// as these wait for the next ones of their band, and where only so many may be open.
    fn aside_max(&self) -> u32 {
        if self.geometry.pairing != Pairing::None || self.bands.openings.are_bounded() {
            return 0;
        }
        let data = self.map.blocks().div_ceil(self.geometry.slots_per_block());
        let needed = data + 2 * self.layout.bands + RESERVE_BANDS + self.bands.failing;
        self.geometry.capacity_blocks().saturating_sub(needed) / SPARE_PER_ASIDE
    }

    /// The band of `unit` that `point` had put aside is the one that it fills, unless it may open one there that is
    /// wanted more.
    pub(crate) fn take_from_aside(&mut self, unit: u32, point: usize, grounds: Grounds) -> bool {
        let own = &self.points[point];
        if own.aside.is_empty() {
            return false;
        }
        let may_widen = self.may_widen(own, grounds);
        let Some(at) = self.aside_on(own, unit as usize, may_widen) else { return false };
        let Aside { open, .. } = self.points[point].aside.swap_remove(at);
        self.points[point].open.put(unit as usize, open);
        self.room_changes += 1;
        true
    }

    /// Of what `point` has put aside on a unit, the place of what is wanted most, unless a band that may be opened
    /// there is wanted more.
    fn aside_on(&self, point: &Point, unit: usize, may_widen: bool) -> Option<usize> {
        let aside = point.aside.iter().enumerate().filter(|(_, aside)| aside.unit as usize == unit);
        let (at, &Aside { open, .. }) =
            aside.max_by_key(|(_, aside)| self.opens[aside.open].weight)?;
        let opens = may_widen && !self.bands.clean(unit as u32).is_empty();
        let is_best = !opens || !self.is_dwarfed(open, self.units[unit].weight);
        is_best.then_some(at)
    }

    /// Brings the list of units that can take a page of `point` up to date. Between two events
    /// pages only come, and [`Ftl::queue_page`] tells the list, which is made anew only for another
    /// point or after a band changed its state.
    pub(crate) fn list_units(&mut self, point: usize, grounds: Grounds) {
        let usual = self.host.groups_undecided == 0 && !self.checkpoint.is_wanted();
        let key = self.room_key(grounds).filter(|_| usual);
        let of = key.map(|key| (point, key + self.events));
        if of.is_none() || self.views.of != of {
            let mut list = std::mem::take(&mut self.views.list);
            self.views.dirty = self.list_units_anew(point, grounds, &mut list);
            self.views.list = list;
            self.views.of = of;
        }
    }

    /// Units that can take a page of `point`. True if one has only dirty bands for it.
    fn list_units_anew(&self, point: usize, grounds: Grounds, views: &mut Vec<UnitView>) -> bool {
        views.clear();
        let (mut dirty, mut others_later) = (false, false);
        let own = &self.points[point];
        let (may_widen, may_adopt) = (self.may_widen(own, grounds), self.may_adopt(own));
        let appends_max = self.appends_max_of(own.purpose);
        let units = self.units_for(own.purpose);
        let units = units.start as usize..units.end as usize;
        for (index, unit) in units.clone().zip(&self.units[units]) {
            let band = self.band_at(own, index, (may_widen, may_adopt));
            let open = band != NONE;
            // First, because it is foreseeable: this runs several times for every page.
            if !open && !may_widen {
                continue;
            }
            let weight = match (self.views.weighed, open) {
                (false, _) => WEIGHT_FULL,
                (true, true) => self.opens[band].weight,
                (true, false) => unit.weight,
            };
            let appends_waiting = unit.appends_waiting();
            if unit.gone || appends_waiting >= appends_max {
                others_later |= !unit.gone && weight > 0;
                continue;
            }
            let bands_free = self.bands.clean(index as u32).len() as u32;
            if !open && bands_free == 0 {
                dirty |= !self.bands.dirty(index as u32).is_empty();
                continue;
            }
            views.push(UnitView {
                unit: index as u32,
                appends_waiting,
                reads_waiting: self.reads_ahead(unit),
                bands_free,
                erases_running: unit.erases_running,
                victims: self.bands.sums(index as u32).victims,
                open,
                weight,
            });
        }
        // Where nobody has set weights all are full.
        let weighed = self.views.weighed;
        if weighed && (others_later || views.iter().any(|view| view.weight > 0)) {
            views.retain(|view| view.weight > 0);
        }
        dirty
    }

    /// The open band that the next page of `point` would go to on a unit; `NONE` if a new one would be opened.
    #[inline]
    fn band_at(&self, point: &Point, unit: usize, (may_widen, may_adopt): (bool, bool)) -> u32 {
        let own = point.open[unit];
        if own != NONE || point.aside.is_empty() && !may_adopt {
            return own;
        }
        if let Some(at) = self.aside_on(point, unit, may_widen) {
            return point.aside[at].open;
        }
        let left = if may_adopt { self.who_left(unit) } else { None };
        left.map_or(NONE, |other| self.points[other].open[unit])
    }

    /// True if `point` may open a band on one more unit. Not inlined: it would take the registers
    /// of the loop around it.
    #[inline(never)]
    pub(crate) fn may_widen(&self, point: &Point, grounds: Grounds) -> bool {
        self.may_open(point.purpose, point.has_open(), grounds)
            && self.is_below_stripe(point)
            && self.may_open_one_more(point)
    }

    /// True if `point` may fill a band that an idle point has left on one more unit. However few bands
    /// are free, it takes none.
    pub(crate) fn may_adopt(&self, point: &Point) -> bool {
        self.streams.bands_left && self.is_below_stripe(point)
    }

    /// Slots that nobody has yet in the bands that `point` has open.
    pub(crate) fn slots_left(&self, point: &Point) -> u32 {
        let written = |open: u32| self.bands[self.opens[open].block].slots_written;
        point.bands().map(|open| self.geometry.slots_per_block() - written(open)).sum()
    }

    fn is_below_stripe(&self, point: &Point) -> bool {
        let stripe = match self.settings.stripe_units {
            0 => self.geometry.units,
            units => units,
        };
        point.open.count() < stripe
    }
}
