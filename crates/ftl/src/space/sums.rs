//! What the bands of one unit come to, so that nobody counts them one by one.

use crate::space::bands::{Band, BandState, is_free, is_reclaimable};

/// What the bands of one unit come to, kept up to date with every change of one of them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct UnitSums {
    pub slots_valid: u64,
    /// Slots of full bands that hold none.
    pub slots_reclaimable: u64,
    pub bands_free: u32,
    /// Bands that GC is emptying or has emptied: they will be free soon.
    pub bands_coming: u32,
    /// Of them, those that GC is emptying.
    pub victims: u32,
    pub bands_retired: u32,
    /// Erase counts of usable bands and how many have each, ascending. Levelled wear keeps it short.
    erase_counts: Vec<(u32, u32)>,
}

impl UnitSums {
    pub fn erase_count_min(&self) -> u32 {
        self.erase_counts.first().map_or(0, |entry| entry.0)
    }

    pub fn erase_count_max(&self) -> u32 {
        self.erase_counts.last().map_or(0, |entry| entry.0)
    }

    pub fn add_count(&mut self, count: u32) {
        match self.erase_counts.binary_search_by_key(&count, |entry| entry.0) {
            Ok(at) => self.erase_counts[at].1 += 1,
            Err(at) => self.erase_counts.insert(at, (count, 1)),
        }
    }

    pub fn remove_count(&mut self, count: u32) {
        let at = self.erase_counts.binary_search_by_key(&count, |entry| entry.0);
        let at = at.expect("the count of a usable band is listed");
        self.erase_counts[at].1 -= 1;
        if self.erase_counts[at].1 == 0 {
            self.erase_counts.remove(at);
        }
    }

    /// A band comes to the state it has, or (`false`) is about to leave it.
    pub fn account(&mut self, band: &Band, slots: u32, comes: bool) {
        let step = |to: &mut u32| if comes { *to += 1 } else { *to -= 1 };
        let gain = u64::from(slots - band.slots_valid);
        if matches!(band.state, BandState::Victim | BandState::Draining) {
            step(&mut self.bands_coming);
            if band.state == BandState::Victim {
                step(&mut self.victims);
            }
        }
        match band.state {
            BandState::Retired => {
                step(&mut self.bands_retired);
                return;
            }
            state if is_free(state) => step(&mut self.bands_free),
            state if is_reclaimable(state) && comes => self.slots_reclaimable += gain,
            state if is_reclaimable(state) => self.slots_reclaimable -= gain,
            _ => {}
        }
        if comes {
            self.add_count(band.erase_count);
        } else {
            self.remove_count(band.erase_count);
        }
    }
}
