//! Which units have room for the next page of an append point, and how much each is wanted: whoever knows
//! more of the medium than the FTL does (a pool, whose units lie on unlike drives) gives units weights.
//!
//! Invariants:
//! - a unit of weight 0 gets a new page only where no other could take one, now or when its queue has moved;
//! - while all weights are full, which they are until somebody sets them, everything is as without them.

use crate::log::points::{NONE, Point};
use crate::policy::{UnitView, WEIGHT_FULL};
use crate::space::Grounds;
use crate::whole::Ftl;

/// The units that can take a page of one append point, kept from one page to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views {
    pub list: Vec<UnitView>,
    /// A unit that is not listed has bands, but they are not erased.
    pub dirty: bool,
    /// The point, and what must not have changed since; `None` if the list serves only once.
    pub of: Option<(usize, u64)>,
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
    /// How much each unit is wanted for new pages, from 0 to [`WEIGHT_FULL`]; units beyond the end of the
    /// list have the full weight. Holds until it is called again; a mount begins with full weights. Drain
    /// [`Ftl::poll`] after the next [`Ftl::handle`] as always: nothing is written because of this alone.
    pub fn set_unit_weights(&mut self, weights: &[u16]) {
        for (index, unit) in self.units.iter_mut().enumerate() {
            unit.weight = weights.get(index).map_or(WEIGHT_FULL, |&weight| weight.min(WEIGHT_FULL));
        }
        self.views.of = None;
        self.room_changes += 1;
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
            let open = own.open[index] != NONE || may_adopt && self.who_left(index).is_some();
            // First, because it is foreseeable: this runs several times for every page.
            if !open && !may_widen {
                continue;
            }
            let appends_waiting = unit.appends_waiting();
            if unit.gone || appends_waiting >= appends_max {
                others_later |= !unit.gone && unit.weight > 0;
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
                weight: unit.weight,
            });
        }
        if others_later || views.iter().any(|view| view.weight > 0) {
            views.retain(|view| view.weight > 0);
        }
        dirty
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

    fn is_below_stripe(&self, point: &Point) -> bool {
        let stripe = match self.settings.stripe_units {
            0 => self.geometry.units,
            units => units,
        };
        point.bands().nth(stripe as usize - 1).is_none()
    }
}
