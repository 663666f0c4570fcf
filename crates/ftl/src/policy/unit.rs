//! Which unit takes the next page of a placement handle. What waits on a unit counts the more, the less
//! weight the unit has; with equal weights the order is that of the queues alone.

use super::{PageView, UnitPolicy, UnitView, WEIGHT_FULL};

/// Fewest appends waiting; among equals those of [`among_equals`].
///
/// Where weights differ they are to be met: among equals each unit has as many turns as its weight is of all.
#[derive(Clone, Debug, Default)]
pub struct ShortestQueue {
    turns: Turns,
}

/// What each unit has had by its weight: the more weight, the less a page counts.
#[derive(Clone, Debug, Default)]
struct Turns {
    had: Vec<u64>,
    /// What the unit had that was picked last.
    now: u64,
}

/// A unit that was not listed for a while makes up for no more than one page, or for so much.
const MISSED_MAX: u64 = 8 << 8;

impl Turns {
    fn pick(&mut self, units: &[UnitView]) -> usize {
        let end = units.iter().map(|view| view.unit as usize + 1).max().unwrap_or(0);
        if self.had.len() < end {
            self.had.resize(end, 0);
        }
        let then = |turns: &Self, view: &UnitView| {
            let page = (u64::from(WEIGHT_FULL) << 8) / u64::from(view.weight.max(1));
            let least = turns.now.saturating_sub(page.max(MISSED_MAX));
            turns.had[view.unit as usize].max(least) + page
        };
        let index = least(units, |view| (view.appends_waiting, then(self, view), !view.open));
        if let Some(view) = units.get(index) {
            let unit = view.unit as usize;
            let had = then(self, view);
            self.now = self.now.max(self.had[unit]);
            self.had[unit] = had;
        }
        index
    }
}

impl UnitPolicy for ShortestQueue {
    fn name(&self) -> &'static str {
        "shortest-queue"
    }

    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        let mut differ = false;
        let index = least(units, |view| {
            differ |= view.weight != WEIGHT_FULL;
            // One number, most significant first: compared in one go, for every page.
            ((u64::from(view.appends_waiting) + 1) << 8).min((1 << 29) - 1) << 34
                | among_equals(view, page)
        });
        if differ { self.turns.pick(units) } else { index }
    }
}

/// Fewest appends waiting; among equals the next after the last. For a fast tier: what follows one another
/// lies apart, so that no damage takes a slot together with what vouches for it.
pub(crate) fn spread(units: &[UnitView], page: &PageView) -> usize {
    least(units, |view| (view.appends_waiting, view.unit <= page.last, view.unit))
}

/// The next unit after the last, whatever its queue.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin;

impl UnitPolicy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        units.iter().position(|view| view.unit > page.last).unwrap_or(0)
    }
}

/// Least work waiting, each command weighed by how long it takes here (LOCS's LWQL: reads, programs
/// and erases all hold up what comes after); among equals as `ShortestQueue`.
#[derive(Clone, Copy, Debug)]
pub struct WeightedQueue;

impl UnitPolicy for WeightedQueue {
    fn name(&self) -> &'static str {
        "weighted-queue"
    }

    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        least(units, |view| weight(view, page, false))
    }
}

/// As `WeightedQueue` among the units that GC does not work on, as LOCS places a table away from the
/// channels that compaction reads (Wang et al. 2014): what is appended where GC reads waits for it
/// and holds it up. Where GC works on all, as `WeightedQueue`.
#[derive(Clone, Copy, Debug)]
pub struct CompactionAware;

impl UnitPolicy for CompactionAware {
    fn name(&self) -> &'static str {
        "compaction-aware"
    }

    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        least(units, |view| weight(view, page, view.victims > 0))
    }
}

/// Whether it is `last_choice`; work waiting, each command weighed by how long it takes here; then an open band before a new one,
/// the unit of the last page, and more free bands.
#[inline(always)]
fn weight(view: &UnitView, page: &PageView, last_choice: bool) -> u128 {
    let work_ns = u64::from(view.reads_waiting) * page.costs.read_ns
        + u64::from(view.appends_waiting) * page.costs.program_ns
        + u64::from(view.erases_running) * page.costs.erase_ns;
    // With the page that looks for a place: else weights would not count where nothing waits.
    let work_ns = weighed(work_ns + page.costs.program_ns, 1, view.weight);
    let rest = among_equals(view, page);
    u128::from(work_ns | u64::from(last_choice) << 63) << 34 | u128::from(rest)
}

/// The least of these 34 bits is best among units on which the same waits. An open band comes before a new one, then the unit of
/// the last page, so that a lone writer fills one band, and its shared cells, before it spreads; where the last two pages are to be
/// apart, he fills two in turn. Then the one with the most free bands.
#[inline(always)]
fn among_equals(view: &UnitView, page: &PageView) -> u64 {
    let (new, other) = (!view.open, view.unit != page.last);
    let (first, second) = if page.apart { (!other, new) } else { (new, other) };
    u64::from(first) << 33 | u64::from(second) << 32 | u64::from(u32::MAX - view.bands_free)
}

/// `load` in parts of `1 / scale`, as it counts on a unit of `weight`.
#[inline(always)]
fn weighed(load: u64, scale: u64, weight: u16) -> u64 {
    match weight {
        // No division: it is so for every page where nobody has set weights.
        WEIGHT_FULL => load * scale,
        weight => load * scale * u64::from(WEIGHT_FULL) / u64::from(weight.max(1)),
    }
}

/// The first unit with the least key.
#[inline(always)]
fn least<K: Ord + Copy>(units: &[UnitView], mut key: impl FnMut(&UnitView) -> K) -> usize {
    let Some(first) = units.first() else { return 0 };
    let mut best = (0, key(first));
    for (index, view) in units.iter().enumerate().skip(1) {
        let key = key(view);
        if key < best.1 {
            best = (index, key);
        }
    }
    best.0
}

/// Static mapping: the unit follows from the logical address, page by page over all units. A page
/// of several blocks follows its first.
#[derive(Clone, Copy, Debug)]
pub struct StaticUnit;

impl UnitPolicy for StaticUnit {
    fn name(&self) -> &'static str {
        "static"
    }

    /// The home unit has no room: as `ShortestQueue`.
    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        ShortestQueue::default().pick(units, page)
    }

    fn home(&self, page: &PageView) -> Option<u32> {
        Some(page.index % page.units.max(1))
    }
}
