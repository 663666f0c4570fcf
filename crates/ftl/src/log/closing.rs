//! Keeps orders moving. A drained band waits until every order up to the last that superseded one
//! of its slots is safe, so one page that nobody closes (partly filled, or with cells shared with a
//! page yet to come) holds back all bands drained since. An append point that appends on many units
//! leaves such pages behind wherever it does not come by, and the host's, while it waits for GC,
//! comes by nowhere. So when the oldest unsafe order lags, the next page goes to its band.
//!
//! Invariant: it only says where data goes next; nothing is padded for it.

use crate::log::points::NONE;
use crate::policy::Purpose;
use crate::space::FREE_AT_REST;
use crate::space::Grounds;
use crate::whole::Ftl;
use flash::Pairing;

/// Orders that may wait behind the oldest, for each open band: a page of every band that shares
/// cells with one three pages on, and what waits in the queues.
const LAG_PER_OPEN: u64 = 8;

/// Units for each drained band that may wait without harm.
const UNITS_PER_DRAINED: usize = 2;

/// Unsafe orders looked at for one page.
const LOOK_MAX: usize = 16;

impl Ftl {
    /// The append point and the unit of the band that most needs a page for its orders to become
    /// safe; `None` if none lags, or all that can be done is on its way.
    pub(crate) fn laggard(&self) -> Option<(usize, u32)> {
        // Where pages share no cells, none but the one being filled is left behind.
        if self.geometry.pairing == Pairing::None || !self.drained_bands_are_missed() {
            return None;
        }
        let lag_max = LAG_PER_OPEN * self.opens.in_use() as u64;
        let next = self.durable.next();
        if next - self.durable.safe_below() <= lag_max {
            return None;
        }
        let lagging = self.durable.unsafe_orders().take(LOOK_MAX);
        let mut lagging = lagging.take_while(|&(order, _)| order + lag_max < next);
        lagging.find_map(|(order, open)| self.closes(order, open))
    }

    /// The last page that has to be programmed so that all orders up to `order` here are safe.
    pub(crate) fn partner_wanted(&self, open: u32, order: u64, vital_only: bool) -> Option<u32> {
        let entry = &self.opens[open];
        let counts = |of: u64| of <= order && (!vital_only || self.durable.is_vital(of));
        let at_risk = entry.at_risk.iter().filter(|risk| counts(risk.1)).map(|risk| risk.0);
        let pages = self.geometry.pages_per_block;
        let pairing = self.geometry.pairing_of(entry.block);
        let outstanding = entry
            .outstanding
            .iter()
            .map(|&page| &self.pages[page])
            .filter(|page| counts(page.order))
            .map(|page| pairing.last_partner(page.index, pages));
        at_risk.chain(outstanding).max()
    }

    /// Where a page would help `order`, which was opened in the band `open`.
    fn closes(&self, order: u64, open: u32) -> Option<(usize, u32)> {
        let entry = &self.opens[open];
        if !entry.live || entry.point == NONE {
            return None;
        }
        let point = entry.point as usize;
        let unit = self.geometry.unit_of(entry.block);
        let assembling = self.points[point].page;
        let assembles = assembling != NONE && self.pages[assembling].open == open;
        // What the page would be for is looked for last, as that takes longest.
        let room = self.points[point].open[unit as usize] == open
            && self.units[unit as usize].appends_waiting() < self.appends_max();
        if !assembles && !room {
            return None;
        }
        let target = self.partner_wanted(open, order, false)?;
        let next =
            if assembles { self.pages[assembling].index } else { self.pages_written(entry.block) };
        (next <= target).then_some((point, unit))
    }

    /// Space is short, and more bands than pass through anyway only wait for orders. Where the host
    /// has hardly a band left to open, each of them is missed: with many handles few appends go to
    /// each, and a page that one of them left open would hold up all writes.
    fn drained_bands_are_missed(&self) -> bool {
        let free = self.bands.free;
        let none_left = free <= self.host_floor() + FREE_AT_REST;
        let passing = if none_left { 0 } else { self.geometry.units as usize / UNITS_PER_DRAINED };
        free < self.bands_free_low() && self.bands.draining_slow() > passing
    }

    /// The append point to use where `wished` would be: while space is short and bands wait for
    /// orders, the one whose band lags, whatever it is for. A few slots of the host beside cold
    /// ones, or the other way round, cost less than padding. But the room that GC has left is GC's
    /// when space is tight.
    pub(crate) fn closing_point(&mut self, wished: usize, grounds: Grounds) -> usize {
        if self.points[wished].page != NONE {
            return wished;
        }
        let Some((point, _)) = self.laggard().filter(|&(point, _)| point != wished) else {
            return wished;
        };
        let is_gcs = |point: usize| self.points[point].purpose == Purpose::Relocate;
        let tight = self.bands.free <= self.host_floor() + FREE_AT_REST + self.bands_for_streams();
        let other_tier = self.on_fast(point) != self.on_fast(wished);
        let refused = other_tier || tight && is_gcs(point) && !is_gcs(wished);
        if refused || self.page_of(point, grounds).is_none() { wished } else { point }
    }
}
