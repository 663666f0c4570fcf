//! Which unit takes the next page of a placement handle.

use super::{UnitPolicy, UnitView};

/// Fewest appends waiting; among equals an open band before a new one, then the unit of the last
/// page, so that a lone writer fills one band (and its shared cells) before it spreads.
#[derive(Clone, Copy, Debug)]
pub struct ShortestQueue;

impl UnitPolicy for ShortestQueue {
    fn name(&self) -> &'static str {
        "shortest-queue"
    }

    fn pick(&mut self, units: &[UnitView], last: u32) -> usize {
        let key = |view: &UnitView| {
            // One number, most significant first: compared in one go, for every page.
            u64::from(view.appends_waiting.min(1 << 29)) << 34
                | u64::from(!view.open) << 33
                | u64::from(view.unit != last) << 32
                | u64::from(u32::MAX - view.bands_free)
        };
        let mut best = (0, u64::MAX);
        for (index, view) in units.iter().enumerate() {
            let key = key(view);
            if key < best.1 {
                best = (index, key);
            }
        }
        best.0
    }
}

/// The next unit after the last, whatever its queue.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin;

impl UnitPolicy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn pick(&mut self, units: &[UnitView], last: u32) -> usize {
        units.iter().position(|view| view.unit > last).unwrap_or(0)
    }
}
